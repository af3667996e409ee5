"""Records by their content ids, and MEM.VERIFY."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from harness import DAY, JUNE, Agent, Clock, Running, Wire
from oracle import cid
from recalld.index import memory, texts
from recalld.index.filters import content_digest, content_id
from recalld.index.memory import Memory
from recalld.server import content_ids

#: The empty block and `hello world` as IPFS names them, and the example of rust-cid's readme.
PUBLISHED = {
    b"": b"bafkreihdwdcefgh4dqkjv67uzcmw7ojee6xedzdetojuzjevtenxquvyku",
    b"hello world": b"bafkreifzjut3te2nhyekklss27nh3k72ysco7y32koao5eei66wof36n5e",
    b"beep boop": b"bafkreieq5jui4j25lacwomsqgjeswwl3y5zcdrresptwgmfylxo2depppq",
}


@pytest.fixture
def short_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An index takes many turns of the loop even for a few records."""
    for module in (texts, memory, content_ids):
        monkeypatch.setattr(module, "STEP_RECORDS", 2)


def memory_of(server: Running, key: bytes = b"ns") -> Memory:
    found: Memory = server.server.keyspace.memories[key]
    return found


def test_published_vectors(agent: Agent) -> None:
    agent("MEM.CREATE", "ns", "MODE", "SEARCH")
    for number, (text, name) in enumerate(PUBLISHED.items()):
        assert content_id(text) == name
        agent("MEM.ADD", "ns", "ID", number, "TEXT", text)
        assert agent.map("MEM.GET", "ns", name) == agent.map("MEM.GET", "ns", number)
        assert agent.map("MEM.GET", "ns", name)[b"cid"] == name
    # multiformats/cid's example, base32 instead of base58.
    digest = content_digest(b"bafkreidon73zkcrwdb5iafqtijxildoonbwnpv7dyd6ef3qdgads2jc4su")
    assert digest is not None
    assert digest.hex() == "6e6ff7950a36187a801613426e858dce686cd7d7e3c0fc42ee0330072d245c95"


@pytest.mark.parametrize(
    "word",
    [
        b"",
        b"bafkrei",
        PUBLISHED[b""][:-1],
        PUBLISHED[b""] + b"a",
        PUBLISHED[b""][:-1] + b"v",  # bits that a digest has not
        PUBLISHED[b""].upper(),
        PUBLISHED[b""][:-1] + b"1",
        PUBLISHED[b""][:-1] + b"\xff",
        b"bafybeigdyrzt5sfp7udm7hu76uh7y26nf3efuylqabf3oclgtqy55fbzdi",  # not of raw bytes
    ],
)
def test_other_words_are_ids(wire: Wire, word: bytes) -> None:
    assert content_digest(word) is None
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    wire("MEM.ADD", "ns", "TEXT", "")
    assert wire("MEM.GET", "ns", word) is None
    wire("MEM.ADD", "ns", "ID", word, "TEXT", "")
    assert wire("MEM.GET", "ns", word)[1] == word


def test_an_id_wins_and_of_several_the_smallest(wire: Wire) -> None:
    """MEM.MGET takes every word as an id."""
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    name = cid(b"twice")
    for record_id in ("b", "a", "c"):
        wire("MEM.ADD", "ns", "ID", record_id, "TEXT", "twice")
    assert wire("MEM.GET", "ns", name, "NOTEXT")[1] == b"a"
    wire("MEM.DEL", "ns", "a")
    assert wire("MEM.GET", "ns", name)[1] == b"b"
    assert wire("MEM.MGET", "ns", name) == [None]
    wire("MEM.ADD", "ns", "ID", name, "TEXT", "other")
    assert wire("MEM.GET", "ns", name)[3] == b"other"
    wire("MEM.DEL", "ns", "b", "c", name)
    assert wire("MEM.GET", "ns", name) is None
    assert wire.error("MEM.GET", "none", name) == "ERR no such memory index"


def test_it_follows_every_write(running: Callable[..., Running], tmp_path: Path) -> None:
    """After replacement, metadata, deletion, forgetting, expiry, RENAME, COPY, RESTORE, a rewrite and a restart."""
    clock = Clock()
    server = running(clock=clock, dir=tmp_path)
    wire = server.wire()
    wire("MEM.CREATE", "ns", "MODE", "SEARCH", "HISTORY", "ALL")

    def holder(text: str, key: str = "ns") -> bytes | None:
        found = wire("MEM.GET", key, cid(text.encode()), "NOTEXT")
        assert wire("MEM.VERIFY", key) == [b"checked", wire("MEM.CARD", key), b"bad", 0]
        return None if found is None else found[1]

    wire("MEM.ADD", "ns", "ID", "a", "TEXT", "one")
    assert (holder("one"), holder("two")) == (b"a", None)
    wire("MEM.ADD", "ns", "ID", "a", "TEXT", "two")
    assert (holder("one"), holder("two")) == (None, b"a")
    wire("MEM.SETMETA", "ns", "a", "f", "v")
    wire("MEM.ADD", "ns", "ID", "b", "TEXT", "one", "TTL", 10)
    wire("MEM.ADD", "ns", "ID", "c", "TEXT", "three", "META", "f", "w")
    assert (holder("one"), holder("two"), holder("three")) == (b"b", b"a", b"c")
    payload = wire("DUMP", "ns")
    wire("COPY", "ns", "copy")
    wire("MEM.FORGET", "ns", "FILTER", "f", "EQ", "w")
    assert (holder("three"), holder("three", "copy")) == (None, b"c")
    wire("RENAME", "ns", "other")
    wire("RESTORE", "ns", 0, payload)
    assert (holder("three"), holder("three", "other")) == (b"c", None)
    clock.advance(10_000)
    assert [holder("one", key) for key in ("ns", "copy", "other")] == [None] * 3
    wire("BGREWRITEAOF")
    server.restart()
    wire = server.wire()
    assert (holder("two"), holder("three"), holder("two", "other")) == (b"a", b"c", b"a")


def test_valid_or_not(wire: Wire) -> None:
    """It sees what MEM.GET sees: facts and records that are not valid yet too, no version that ended."""
    wire("MEM.CREATE", "ns", "MODE", "SEARCH", "HISTORY", "ALL")
    wire("MEM.ADD", "ns", "ID", "later", "TEXT", "tomorrow", "VALIDAT", JUNE + DAY)
    fact = wire("MEM.FACT", "ns", "Ann", "likes", "tea")
    assert wire("MEM.GET", "ns", cid(b"tomorrow"))[1] == b"later"
    assert wire("MEM.GET", "ns", cid(wire("MEM.GET", "ns", fact)[3]))[1] == fact
    wire("MEM.ADD", "ns", "ID", "later", "TEXT", "today")
    assert wire("MEM.GET", "ns", cid(b"tomorrow")) is None


def test_verify_finds_what_has_changed(server: Running, wire: Wire) -> None:
    """A text that is not the one that was written, in the memory of the process; alone, by id, by content id."""
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    for number in range(5):
        wire("MEM.ADD", "ns", "ID", number, "TEXT", f"text {number}")
    assert wire("MEM.VERIFY", "ns") == [b"checked", 5, b"bad", 0]
    table = memory_of(server).table
    table.texts[table.by_id[b"3"]] = b"text 4"
    assert wire("MEM.VERIFY", "ns") == [b"checked", 5, b"bad", 1]
    assert wire("MEM.VERIFY", "ns", "3") == [b"checked", 1, b"bad", 1]
    assert wire("MEM.VERIFY", "ns", cid(b"text 3")) == [b"checked", 1, b"bad", 1]
    assert wire("MEM.VERIFY", "ns", cid(b"text 4")) == [b"checked", 1, b"bad", 0]
    assert wire("MEM.VERIFY", "ns", "4") == [b"checked", 1, b"bad", 0]
    assert wire("MEM.GET", "ns", cid(b"text 3")) is None
    wire("MEM.ADD", "ns", "ID", 3, "TEXT", "new")
    assert wire("MEM.VERIFY", "ns") == [b"checked", 5, b"bad", 0]
    assert wire("MEM.VERIFY", "ns", cid(b"text 3")) == [b"checked", 0, b"bad", 0]
    assert wire("MEM.VERIFY", "ns", "nobody") == [b"checked", 0, b"bad", 0]


def test_verify_counts_all_of_one_content(wire3: Wire) -> None:
    wire3("MEM.CREATE", "ns", "MODE", "SEARCH")
    wire3("MEM.CREATE", "empty", "MODE", "SEARCH")
    for text in ("same", "same", "other"):
        wire3("MEM.ADD", "ns", "TEXT", text)
    assert wire3("MEM.VERIFY", "ns", cid(b"same")) == {b"checked": 2, b"bad": 0}
    assert wire3("MEM.VERIFY", "empty") == {b"checked": 0, b"bad": 0}
    assert wire3.error("MEM.VERIFY", "none") == "ERR no such memory index"
    assert wire3.error("MEM.VERIFY", "ns", "1", "2") == "ERR wrong number of arguments for 'mem.verify' command"


@pytest.mark.usefixtures("short_steps")
def test_an_index_is_made_while_others_work(server: Running, wire: Wire) -> None:
    """Whoever asks first waits; what is written and deleted meanwhile is in the answers that follow."""
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    for number in range(40):
        wire("MEM.ADD", "ns", "ID", number, "TEXT", f"text {number}")
    other = server.wire()
    wire.send("MEM.GET", "ns", cid(b"text 7"), "NOTEXT")
    other.pipeline(
        *(["MEM.DEL", "ns", number] for number in range(10, 20)),
        *(["MEM.ADD", "ns", "ID", number, "TEXT", f"new {number}"] for number in range(20, 30)),
    )
    assert wire.read()[1] == b"7"
    for number in range(40):
        found = wire("MEM.GET", "ns", cid(b"text %d" % number))
        assert (found is None) == (10 <= number < 30), number
        found = wire("MEM.GET", "ns", cid(b"new %d" % number))
        assert (found is None) == (not 20 <= number < 30), number
    assert wire("MEM.VERIFY", "ns") == [b"checked", 30, b"bad", 0]
    assert len(memory_of(server).texts) == 1


@pytest.mark.usefixtures("short_steps")
def test_in_exec_nothing_waits(wire: Wire) -> None:
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    for number in range(9):
        wire("MEM.ADD", "ns", "ID", number, "TEXT", f"text {number}")
    commands = [["MEM.GET", "ns", cid(b"text 1"), "NOTEXT"], ["MEM.DEL", "ns", 1], ["MEM.VERIFY", "ns"]]
    replies = wire.pipeline(["MULTI"], *commands, ["EXEC"])[-1]
    assert (replies[0][1], replies[1:]) == (b"1", [1, [b"checked", 8, b"bad", 0]])


@pytest.mark.usefixtures("short_steps")
def test_the_memory_goes_while_it_is_looked_at(server: Running, wire: Wire) -> None:
    """An error or the new memory's answer, whichever command came first."""
    for _ in range(5):
        wire("MEM.CREATE", "ns", "MODE", "SEARCH")
        wire("MEM.MADD", "ns", 60, *(word for n in range(60) for word in ("RECORD", "ID", n, "TEXT", f"text {n}")))
        other = server.wire()
        wire.send("MEM.VERIFY", "ns")
        other("DEL", "ns")
        reply = wire.read()
        assert reply == [b"checked", 60, b"bad", 0] or str(reply) == "ERR no such memory index"
        other.close()


def test_a_memory_that_never_asks_has_no_index(server: Running, wire: Wire) -> None:
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    wire("MEM.ADD", "ns", "TEXT", "text")
    wire("MEM.GET", "ns", "1")
    wire("MEM.GET", "ns", "no id")
    assert memory_of(server).texts == ()
    before = wire("MEMORY", "USAGE", "ns")
    wire("MEM.GET", "ns", cid(b"text"))
    assert wire("MEMORY", "USAGE", "ns") > before
