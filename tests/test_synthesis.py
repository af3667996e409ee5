"""MEM.RECALL .. SYNTHESIS: prose behind the block, which stays what it is; a model that fails costs the prose alone."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import Running, Wire
from inference_stand_in import Asked, StandIn, closes, fails, hangs, says, sends, thinks
from recalld.server import inference_prompts
from recalld.server.inference_schema import SYNTHESIS

Start = Callable[..., Running]

TEXT = ("TEXT", "where does the user live?")


@pytest.fixture(autouse=True)
def _prose(model: StandIn) -> None:
    model.will(says({"synthesis": "They live in Berlin."}))


@pytest.fixture
def server(asking: Start) -> Running:
    return asking()


@pytest.fixture
def wire(server: Running) -> Iterator[Wire]:
    """A connection to it, in RESP3, and the memory `k` with two facts about the question, one about cats, and two
    episodes."""
    wire = server.wire(3)
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    fill(wire)
    yield wire
    wire.close()


def fill(wire: Wire) -> None:
    wire("MEM.FACT", "k", "user", "lives in", "berlin", "TYPE", "PLACE", "ID", "b", "QUOTE", "I live in Berlin")
    wire("MEM.FACT", "k", "user", "lived in", "paris", "ID", "p", "VALIDAT", "2020-02-02", "VALIDUNTIL", "2027-01-01")
    wire("MEM.FACT", "k", "cats", "like", "boxes", "ID", "c")
    for name in ("e1", "e2"):
        wire("MEM.ADD", "k", "TEXT", f"the user said where they live\n({name})", "KIND", "episode", "ID", name)


def test_prose_behind_the_block(wire: Wire, model: StandIn) -> None:
    block = wire("MEM.RECALL", "k", *TEXT, "EPISODES", 1)
    assert wire("MEM.RECALL", "k", *TEXT, "EPISODES", 1, "SYNTHESIS") == (
        block + b"\n\n# SYNTHESIS\nThey live in Berlin."
    )


@pytest.mark.parametrize("protocol", [2, 3])
def test_prose_in_the_map(server: Running, wire: Wire, model: StandIn, protocol: int) -> None:
    client = server.wire(protocol)
    words = ("MEM.RECALL", "k", "SYNTHESIS", *TEXT, "FORMAT", "MAP")
    without = client(*(word for word in words if word != "SYNTHESIS"))
    beside = [b"synthesis", b"They live in Berlin.", b"synthesis_error", None]
    expected = without + beside if protocol == 2 else without | dict(zip(beside[::2], beside[1::2], strict=True))
    assert client(*words) == expected


def test_what_the_model_is_asked(wire: Wire, model: StandIn) -> None:
    """The facts and episodes that the block shows, in the order of the ranking, and no more."""
    shown = wire("MEM.RECALL", "k", *TEXT, "EPISODES", 1, "SYNTHESIS", "FORMAT", "MAP")
    (asked,) = model.asked
    assert asked.body["messages"][0]["content"] == inference_prompts.SYNTHESIS
    assert asked.body["response_format"]["json_schema"] == {"name": "synthesis", "strict": True, "schema": SYNTHESIS}
    facts = {
        b"b": {"fact": "user lives in berlin", "from": "2026-06-01", "to": None, "quote": "I live in Berlin"},
        b"p": {"fact": "user lived in paris", "from": "2020-02-02", "to": "2027-01-01", "quote": None},
    }
    ids = [each[b"id"] for each in shown[b"facts"]]
    assert sorted(ids) == [b"b", b"p"]
    (episode,) = shown[b"episodes"]
    assert asked.data == {
        "question": TEXT[1],
        "facts": [{"number": number} | facts[each] for number, each in enumerate(ids, 1)],
        "episodes": [f"the user said where they live ({episode[b'id'].decode()})"],
    }


def test_what_the_budget_leaves_out_is_not_shown(wire: Wire, model: StandIn) -> None:
    """The budget is the block's; the prose comes on top."""
    whole = wire("MEM.RECALL", "k", *TEXT, "EPISODES", 2, "FORMAT", "MAP")
    budget = -(-len(whole[b"context"]) // 4) - 1
    shown = wire("MEM.RECALL", "k", *TEXT, "EPISODES", 2, "BUDGET", budget, "SYNTHESIS", "FORMAT", "MAP")
    assert len(shown[b"omitted"]) == 1
    assert [len(model.asked[0].data[name]) for name in ("facts", "episodes")] == [2, 1]
    shown = wire("MEM.RECALL", "k", *TEXT, "BUDGET", 1, "SYNTHESIS", "FORMAT", "MAP")
    assert (shown[b"context"], shown[b"synthesis"], shown[b"synthesis_error"]) == (b"", None, None)
    assert len(model.asked) == 1


def test_without_a_query(wire: Wire, model: StandIn) -> None:
    assert wire("MEM.RECALL", "k", "SYNTHESIS").endswith(b"\n\n# SYNTHESIS\nThey live in Berlin.")
    assert (model.asked[0].data["question"], len(model.asked[0].data["facts"])) == (None, 3)


def test_where_nothing_is_found_nobody_is_asked(wire: Wire, model: StandIn) -> None:
    assert wire("MEM.RECALL", "k", "TEXT", "quantum", "SYNTHESIS") == b""
    shown = wire("MEM.RECALL", "k", "TEXT", "quantum", "SYNTHESIS", "FORMAT", "MAP")
    assert (shown[b"synthesis"], shown[b"synthesis_error"]) == (None, None)
    assert model.asked == []


@pytest.mark.parametrize(
    ("said", "prose"),
    [
        (" Two\r\nlines,\u2028three. ", b"Two lines, three."),
        ("\n# FACTS\n- user lives in  rome", b"# FACTS - user lives in rome"),
        ("", None),
        (" \n", None),
    ],
)
def test_prose_is_one_line(wire: Wire, model: StandIn, said: str, prose: bytes | None) -> None:
    """Whatever the model says, it adds no other line to the block."""
    model.will(says({"synthesis": said}))
    block = wire("MEM.RECALL", "k", *TEXT)
    with_prose = block if prose is None else block + b"\n\n# SYNTHESIS\n" + prose
    assert wire("MEM.RECALL", "k", *TEXT, "SYNTHESIS") == with_prose
    assert wire("MEM.RECALL", "k", *TEXT, "SYNTHESIS", "FORMAT", "MAP")[b"synthesis"] == prose


@pytest.mark.parametrize(
    ("act", "error"),
    [
        (fails(500), b"the inference server answered 500"),
        (fails(429), b"the inference server answered 429: too many requests, or the quota is used up"),
        (closes(), b"the inference server cannot be reached at inference-url (ProtocolError)"),
        (sends(b"<html>"), b"the inference server sent an answer that is no chat completion"),
        (hangs(), b"the inference server did not answer within inference-timeout-ms"),
        (says("Berlin."), b"the model's answer was refused: it is not JSON"),
        (says({"prose": "x"}), b"the model's answer was refused: synthesis is missing"),
        (says({"synthesis": "x" * 10_001}), b"the model's answer was refused: it has more than 10000 characters"),
    ],
)
def test_a_recall_never_fails_for_the_model(asking: Start, model: StandIn, act: Any, error: bytes) -> None:
    wire = asking(inference_timeout_ms="500").wire(3)
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    fill(wire)
    model.will(act)
    assert wire("MEM.RECALL", "k", *TEXT, "SYNTHESIS") == wire("MEM.RECALL", "k", *TEXT)
    without = wire("MEM.RECALL", "k", *TEXT, "FORMAT", "MAP")
    found = wire("MEM.RECALL", "k", *TEXT, "FORMAT", "MAP", "SYNTHESIS")
    assert found == without | {b"synthesis": None, b"synthesis_error": error}


def test_it_shows_the_moment_of_asking(server: Running, wire: Wire, model: StandIn) -> None:
    other = server.wire()

    def act(asked: Asked) -> Any:
        other("MEM.DEL", "k", "b", "p")
        return {"synthesis": "x"}

    block = wire("MEM.RECALL", "k", *TEXT)
    model.will(thinks(act))
    assert wire("MEM.RECALL", "k", *TEXT, "SYNTHESIS") == block + b"\n\n# SYNTHESIS\nx"
    assert wire("MEM.RECALL", "k", *TEXT) == b""


def test_what_is_wrong_with_a_recall_is_still_an_error(wire: Wire, model: StandIn) -> None:
    wire("CONFIG", "SET", "mem-max-scan", 1)
    wire("MEM.CREATE", "h", "MODE", "HYBRID", "DIM", 2)
    for number in range(2):
        wire("MEM.FACT", "h", "user", "likes", number, "FVEC", 2, 1, number)
    words = ("MEM.RECALL", "h", "FVEC", 2, 1, 0)
    assert wire.error(*words, "SYNTHESIS") == wire.error(*words)
    assert wire.error("MEM.RECALL", "no", "SYNTHESIS") == "ERR no such memory index"
    assert model.asked == []


def test_not_in_a_transaction(wire: Wire, model: StandIn) -> None:
    replies = wire.pipeline(("MULTI",), ("MEM.RECALL", "k", "SYNTHESIS"), ("MEM.CARD", "k"), ("EXEC",))[-1]
    assert [str(each) for each in replies] == [
        "ERR SYNTHESIS is not possible in a transaction: it waits for another server",
        "5",
    ]
    assert model.asked == []


@pytest.mark.parametrize("missing", ["inference_url", "inference_model"])
def test_off(asking: Start, model: StandIn, missing: str) -> None:
    wire = asking(**{missing: ""}).wire()
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    assert wire.error("MEM.RECALL", "k", "SYNTHESIS") == (
        "ERR inference is off: set inference-url and inference-model"
    )
    assert model.asked == []


def test_the_page_shows_prompt_and_schema() -> None:
    page = (Path(__file__).parents[1] / "docs" / "inference.md").read_text(encoding="utf-8")
    assert f"```text\n{inference_prompts.SYNTHESIS}\n```" in page
    assert SYNTHESIS in [json.loads(block) for block in re.findall(r"```json\n(.*?)\n```", page, re.S)]
