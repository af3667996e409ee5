"""MEM.ANALYZE and MEM.CONSULT against a chat server that answers, and a model that answers well or badly.

What a model says reaches the memory only by the words of MEM.FACT, whole or not at all: each refused answer here is
followed by a look at what is stored.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_provider import Provider
from harness import DAY, JUNE, Running, Wire, WireError
from hypothesis import given
from hypothesis import strategies as st
from inference_stand_in import (
    MESSAGE,
    QUESTION,
    REFUSED,
    Asked,
    StandIn,
    analysed,
    fact,
    fill,
    hangs,
    says,
    thinks,
)
from recalld.server import inference_commands, inference_prompts
from recalld.server.client import Client
from recalld.server.fact_commands import state
from recalld.server.fact_words import FactDraft
from recalld.server.inference_schema import ANSWER, FACTS, SYNTHESIS
from recalld.server.memory_commands import find

OFF = "ERR inference is off: set inference-url and inference-model"

Start = Callable[..., Running]


@pytest.fixture
def server(asking: Start) -> Running:
    return asking()


@pytest.fixture
def wire(server: Running) -> Iterator[Wire]:
    """A connection to it, in RESP3, and the memory `k`, which has no record."""
    wire = server.wire(3)
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    yield wire
    wire.close()


def stored(wire: Wire) -> list[tuple[bytes, ...]]:
    """What the open facts say, the oldest valid_at first."""
    return [(each[b"subject"], each[b"predicate"], each[b"object"]) for each in wire("MEM.FACTS", "k")[1]]


# MEM.ANALYZE


def test_facts_of_a_message(wire: Wire, model: StandIn) -> None:
    """They are stated as MEM.FACT states them, with the words they were taken from and the time of the message."""
    model.will(
        says(
            {
                "facts": [
                    fact(type="PLACE", object="Berlin", valid_at="2026-05-01"),
                    fact("Anna", "works  at!", "Siemens", "ORG", 1, quote="Anna works at\tSiemens"),
                ]
            }
        )
    )
    assert wire("MEM.ANALYZE", "k", "TEXT", MESSAGE, "AT", "2026-05-20") == analysed("1", "2")
    first, second = wire("MEM.FACTS", "k")[1]
    written = JUNE - 12 * DAY
    assert {name: first[name] for name in (b"subject", b"predicate", b"object", b"entity_type", b"confidence")} == {
        b"subject": b"user",
        b"predicate": b"lives in",
        b"object": b"berlin",
        b"entity_type": b"PLACE",
        b"confidence": 0.9,
    }
    assert (first[b"quote"], first[b"valid_at"], first[b"created_at"]) == (
        b"moved to Berlin in May",
        JUNE - 31 * DAY,
        written,
    )
    assert stored(wire) == [(b"user", b"lives in", b"berlin"), (b"anna", b"works at", b"siemens")]
    assert (second[b"quote"], second[b"valid_at"]) == (b"Anna works at Siemens", written)
    assert [each[b"name"] for each in wire("MEM.ENTITIES", "k")[1]] == [b"berlin", b"siemens"]


def test_what_the_model_is_asked(wire: Wire, model: StandIn) -> None:
    """One request: instructions of ours alone, and everything else as JSON in the user's message."""
    wire("MEM.FACT", "k", "user", "lives in", "paris", "ID", "home")
    wire("MEM.FACT", "k", "cats", "like", "boxes")
    assert wire("MEM.ANALYZE", "k", "TEXT", "who lives where") == analysed()
    (asked,) = model.asked
    assert asked.path == "/v1/chat/completions"
    assert asked.body == {
        "model": "tiny",
        "messages": [{"role": "system", "content": inference_prompts.ANALYZE}, asked.body["messages"][1]],
        "response_format": {"type": "json_schema", "json_schema": {"name": "facts", "strict": True, "schema": FACTS}},
    }
    assert asked.data == {
        "time": "2026-06-01T00:00:00Z",
        "message": "who lives where",
        "known": [{"id": "home", "fact": "user lives in paris"}],
    }
    assert "authorization" not in asked.headers


def test_known_facts_are_those_that_recall_finds(wire: Wire, model: StandIn) -> None:
    """Sixteen at most, whatever their confidence; with AT those that were valid then and still are open; none whose id
    is no text."""
    for number in range(20):
        wire("MEM.FACT", "k", "user", "likes", f"thing{number}", "CONFIDENCE", 0.1)
    wire("MEM.ANALYZE", "k", "TEXT", "user")
    assert len(model.asked[-1].data["known"]) == 16
    wire("MEM.FACT", "k", "dog", "is called", "rex", "VALIDAT", "2026-04-01", "ID", "old")
    wire("MEM.FACT", "k", "dog", "is called", "max", "VALIDAT", "2026-05-20", "ID", "new")
    wire("MEM.FACT", "k", "dog", "is called", "bo", "VALIDAT", "2026-04-01", "ID", b"\xff")
    wire("MEM.FACT", "k", "dog", "is called", "fido", "VALIDAT", "2026-04-01", "ID", "ended")
    wire("MEM.INVALIDATE", "k", "ended", "AT", "2026-05-25")
    asof = wire("MEM.RECALL", "k", "TEXT", "the dog", "ASOF", "2026-05-01", "FORMAT", "MAP")
    assert {each[b"id"] for each in asof[b"facts"]} == {b"old", b"\xff", b"ended"}
    wire("MEM.ANALYZE", "k", "TEXT", "the dog", "AT", "2026-05-01")
    assert [each["id"] for each in model.asked[-1].data["known"]] == ["old"]


def test_only_user(asking: Start, model: StandIn) -> None:
    """The model is told of mem-fact-subjects, and held to it."""
    wire = asking(mem_fact_subjects="user").wire(3)
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    model.will(says({"facts": [fact(), fact("anna")]}))
    assert wire.error("MEM.ANALYZE", "k", "TEXT", MESSAGE) == (
        REFUSED + "fact 2: subject must be 'user' (mem-fact-subjects user)"
    )
    assert stored(wire) == []
    said = inference_prompts.ANALYZE + inference_prompts.ONLY_USER
    assert model.asked[0].body["messages"][0]["content"] == said


def test_restatements_are_counted(wire: Wire, model: StandIn) -> None:
    """What was stated before, in another message or this one, keeps its id."""
    wire("MEM.FACT", "k", "user", "lives in", "berlin", "ID", "home")
    other = fact(object="a flat")
    model.will(says({"facts": [fact(), other, other]}))
    assert wire("MEM.ANALYZE", "k", "TEXT", MESSAGE) == analysed("home", "1", "1", restated=2)
    assert wire("MEM.ANALYZE", "k", "TEXT", MESSAGE) == analysed("home", "1", "1", restated=3)
    assert wire("MEM.CARD", "k") == 2


def test_events_are_those_of_fact(server: Running, wire: Wire, model: StandIn) -> None:
    listener = server.wire(3)
    listener("SUBSCRIBE", "__mem__:k")
    wire("MEM.FACT", "k", "user", "lives in", "paris", "ID", "home")
    model.will(says({"facts": [fact(object="Berlin", type="PLACE", supersedes="home")]}))
    wire("MEM.ANALYZE", "k", "TEXT", "I, the user, moved to Berlin in May")
    assert [listener.read()[-1] for _ in range(4)] == [b"fact home", b"entity berlin", b"fact 1", b"invalidate home"]


def test_a_fact_is_superseded(wire: Wire, model: StandIn) -> None:
    wire("MEM.FACT", "k", "user", "lives in", "paris", "ID", "home", "VALIDAT", "2026-01-01")
    model.will(says({"facts": [fact(supersedes="home")]}))
    assert wire("MEM.ANALYZE", "k", "TEXT", f"user: {MESSAGE}", "AT", "2026-05-20") == analysed("1")
    old, new = wire("MEM.FACTS", "k", "INVALIDATED")[1]
    assert (old[b"id"], old[b"invalid_at"], old[b"superseded_by"]) == (b"home", JUNE - 12 * DAY, b"1")
    assert (new[b"id"], new[b"supersedes"]) == (b"1", b"home")


def test_a_fact_does_not_supersede_what_says_the_same(wire: Wire, model: StandIn) -> None:
    wire("MEM.FACT", "k", "user", "lives in", "Berlin", "TYPE", "PLACE", "ID", "home")
    model.will(says({"facts": [fact(object="Berlin", type="PLACE", supersedes="home")]}))
    assert wire("MEM.ANALYZE", "k", "TEXT", f"user: {MESSAGE}") == analysed("home", restated=1)
    assert wire("MEM.FACTS", "k")[1][0][b"supersedes"] is None


def test_only_what_was_shown_and_is_open_is_superseded(server: Running, wire: Wire, model: StandIn) -> None:
    """Neither an id out of the air, nor a note's, nor a fact that recall did not find, nor one that ended meanwhile."""
    wire("MEM.FACT", "k", "cats", "like", "boxes", "ID", "cats")
    wire("MEM.FACT", "k", "user", "lives in", "paris", "ID", "home")
    wire("MEM.ADD", "k", "TEXT", "user note", "ID", "note")
    for name in ("99", "cats", "note", ""):
        model.will(says({"facts": [fact(object="rome"), fact(supersedes=name)]}))
        assert wire.error("MEM.ANALYZE", "k", "TEXT", f"user: {MESSAGE}") == (
            REFUSED + "fact 2: it supersedes an id that the model was not shown"
        )
    other = server.wire()

    def invalidate(asked: Asked) -> Any:
        other("MEM.INVALIDATE", "k", "home")
        return {"facts": [fact(supersedes=asked.data["known"][0]["id"])]}

    model.will(thinks(invalidate))
    assert wire.error("MEM.ANALYZE", "k", "TEXT", f"user: {MESSAGE}") == (
        REFUSED + "fact 1: it supersedes 'home', which is no longer open"
    )
    assert stored(wire) == [(b"cats", b"like", b"boxes")]


TOO_LONG = "x" * 501


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("I am sorry, Dave.", "it is not JSON"),
        ("", "it is not JSON"),
        ('```json\n{"facts": []}\n```', "it is not JSON"),
        ('{"facts": []} {"facts": []}', "it is not JSON"),
        ('{"facts": [], "facts": []}', "it is not JSON"),
        ('{"facts": ' + "[" * 100_000, "it is not JSON"),
        (json.dumps({"facts": [fact(confidence=float("nan"))]}), "it is not JSON"),
        (json.dumps({"facts": [fact(confidence=float("inf"))]}), "it is not JSON"),
        ([], "it must be of type object"),
        ({}, "facts is missing"),
        ({"facts": None}, "facts must be of type array"),
        ({"facts": [], "note": "hi"}, "there are fields that were not asked for"),
        ({"facts": ["user lives in berlin"]}, "fact 1: it must be of type object"),
        ({"facts": [fact(), {"subject": "user"}]}, "fact 2: predicate is missing"),
        ({"facts": [fact() | {"id": "7"}]}, "fact 1: there are fields that were not asked for"),
        ({"facts": [fact() | {"object": None}]}, "fact 1: object must be of type string"),
        ({"facts": [fact() | {"subject": "\ud800"}]}, "fact 1: subject holds half a character"),
        ({"facts": [fact(confidence="0.9")]}, "fact 1: confidence must be of type number"),
        ({"facts": [fact(confidence=True)]}, "fact 1: confidence must be of type number"),
        ({"facts": [fact(confidence=1.5)]}, "fact 1: CONFIDENCE must be between 0 and 1"),
        ({"facts": [fact(confidence=-(10**400))]}, "fact 1: CONFIDENCE must be between 0 and 1"),
        (json.dumps({"facts": [fact()]}).replace("0.9", "1e999"), "fact 1: CONFIDENCE must be between 0 and 1"),
        (
            {"facts": [fact(type="Person")]},
            "fact 1: type must be one of PERSON, ORG, PLACE, PRODUCT, SKILL, TOPIC, EVENT, FOOD, ROLE, CONCEPT, THING,"
            " DATE, null",
        ),
        ({"facts": [fact(subject=" ")]}, "fact 1: subject, predicate and object must not be empty"),
        ({"facts": [fact(predicate="?!")]}, "fact 1: subject, predicate and object must not be empty"),
        ({"facts": [fact(object=TOO_LONG)]}, "fact 1: object exceeds 500 characters"),
        ({"facts": [fact(subject="x" * 70_000)]}, "fact 1: text exceeds mem-max-text-bytes (65536)"),
        ({"facts": [fact(), fact(quote="")]}, "fact 2: its quote is empty"),
        ({"facts": [fact(quote=" \n")]}, "fact 1: its quote is empty"),
        ({"facts": [fact(quote="moved to berlin")]}, "fact 1: its quote does not stand in the message"),
        ({"facts": [fact(quote="moved ... May")]}, "fact 1: its quote does not stand in the message"),
        ({"facts": [fact(valid_at="in May")]}, "fact 1: valid_at must be YYYY-MM-DD or YYYY-MM-DDTHH:MM:SSZ"),
        ({"facts": [fact(valid_at="2026")]}, "fact 1: valid_at must be YYYY-MM-DD or YYYY-MM-DDTHH:MM:SSZ"),
        (
            {"facts": [fact(valid_at="2026-13-01")]},
            "fact 1: '2026-13-01' is not a time: unix milliseconds or ISO 8601",
        ),
        ({"facts": [fact(object=f"town {n}") for n in range(33)]}, "more than 32 facts"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_answers_store_nothing(wire: Wire, model: StandIn, answer: Any, reason: str) -> None:
    model.will(says(answer))
    before = wire("MEM.INFO", "k")
    assert wire.error("MEM.ANALYZE", "k", "TEXT", MESSAGE) == REFUSED + reason
    assert wire("MEM.INFO", "k") == before
    assert len(model.asked) == 1  # another answer would be no better for being asked for


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(), lambda each: st.lists(each, max_size=3)
)
WORDS = st.sampled_from(["user", "Berlin", "moved to Berlin", "2026-05-01", "PLACE", "home", "9" * 30]) | JSON


@given(st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(fact(), WORDS)), max_size=3))
def test_any_answer_is_stored_or_refused(wire: Wire, model: StandIn, changes: list[dict[str, Any]]) -> None:
    """Whole or not at all, and always in words."""
    wire("FLUSHALL")
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    wire("MEM.FACT", "k", "user", "lives in", "paris", "ID", "home")
    model.will(says({"facts": [fact() | change for change in changes]}))
    wire.send("MEM.ANALYZE", "k", "TEXT", f"user: {MESSAGE}")
    reply = wire.read()
    if isinstance(reply, WireError):
        assert str(reply).startswith(REFUSED)
        assert wire("MEM.CARD", "k") == 1
    else:
        assert len(reply[b"facts"]) == len(changes)
        assert wire("MEM.CARD", "k") == 1 + reply[b"stored"]


def test_a_refusal_is_short(wire: Wire, model: StandIn) -> None:
    """Whatever of the answer it repeats."""
    model.will(says({"facts": [fact(valid_at="2026-05-01\r\n+OK" + "x" * 100_000)]}))
    error = wire.error("MEM.ANALYZE", "k", "TEXT", MESSAGE)
    assert error.startswith(REFUSED + "fact 1: '2026-05-01  +OKxxx")
    assert len(error) < 400


def test_thirty_two_facts(wire: Wire, model: StandIn) -> None:
    model.will(says({"facts": [fact(object=f"town {n}") for n in range(32)]}))
    assert wire("MEM.ANALYZE", "k", "TEXT", MESSAGE)[b"stored"] == 32


def test_facts_that_take_a_while(wire: Wire, model: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where an embedder makes their vectors: one is waited for before the next is stated."""
    begun: list[bytes] = []

    def slowly(ctx: Client, key: bytes, draft: FactDraft) -> Any:
        begun.append(draft.object)
        assert len(find(ctx, key)) == len(begun) - 1
        return ctx.write_after(ctx.background(lambda: None), lambda _: state(ctx, key, draft))

    monkeypatch.setattr(inference_commands, "state", slowly)
    wire("CONFIG", "SET", "mem-max-records", 2)
    model.will(says({"facts": [fact(), fact("anna"), fact("otto")]}))
    assert wire.error("MEM.ANALYZE", "k", "TEXT", MESSAGE) == (
        "ERR fact 3 was refused: memory index is full at mem-max-records (2); stored before it: '1', '2'"
    )
    assert len(begun) == 3


def test_a_full_memory_says_what_was_stored(asking: Start, model: StandIn) -> None:
    wire = asking(mem_max_records="2").wire(3)
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    model.will(says({"facts": [fact(object=f"town {n}") for n in range(4)]}))
    full = "memory index is full at mem-max-records (2)"
    assert wire.error("MEM.ANALYZE", "k", "TEXT", MESSAGE) == (
        f"ERR fact 3 was refused: {full}; stored before it: '1', '2'"
    )
    assert len(stored(wire)) == 2
    model.will(says({"facts": [fact(object="elsewhere")]}))
    assert wire.error("MEM.ANALYZE", "k", "TEXT", MESSAGE) == (
        f"ERR fact 1 was refused: {full}; stored before it: nothing"
    )


@pytest.mark.parametrize(
    ("command", "error"),
    [
        ("DEL k", "ERR no such memory index"),
        ("RENAME other k", "ERR the key was replaced while the model was asked"),
    ],
)
def test_the_memory_goes_meanwhile(server: Running, wire: Wire, model: StandIn, command: str, error: str) -> None:
    other = server.wire()
    other("MEM.CREATE", "other", "MODE", "SEARCH")

    def act(asked: Asked) -> Any:
        other(*command.split())
        return {"facts": [fact()]}

    model.will(thinks(act))
    assert wire.error("MEM.ANALYZE", "k", "TEXT", MESSAGE) == error
    assert [wire("MEM.CARD", key) for key in wire("KEYS", "*")] in ([0], [])


def test_facts_outlive_the_server(asking: Start, model: StandIn, tmp_path: Path) -> None:
    server = asking(dir=tmp_path)
    wire = server.wire(3)
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    model.will(says({"facts": [fact(type="PLACE"), fact("anna")]}))
    wire("MEM.ANALYZE", "k", "TEXT", MESSAGE)
    before = wire("MEM.FACTS", "k")
    wire.close()
    server.restart()
    assert server.wire(3)("MEM.FACTS", "k") == before


def test_other_clients_are_served_meanwhile(server: Running, wire: Wire, model: StandIn) -> None:
    """The connection itself runs nothing until its write has ended; others see the memory as it is."""
    model.will(hangs(says({"facts": [fact()]})))
    wire.send("MEM.ANALYZE", "k", "TEXT", MESSAGE)
    wire.send("MEM.CARD", "k")
    model.wait()
    other = server.wire()
    assert other("MEM.CARD", "k") == 0
    other("MEM.FACT", "k", "cats", "like", "boxes")
    model.gate.set()
    assert (wire.read(), wire.read()) == (analysed("2"), 2)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("k", "AT", 1, "TEXT"), "ERR syntax error"),
        (("k", "TEXT", ""), "ERR TEXT must not be empty"),
        (("k", "TEXT", " \n"), "ERR TEXT must not be empty"),
        (("k", "TEXT", "x" * 65_537), "ERR text exceeds mem-max-text-bytes (65536)"),
        (("k", "TEXT", "x", "AT", "soon"), "ERR 'soon' is not a time: unix milliseconds or ISO 8601"),
        (("k", "TEXT", "x", "LIMIT", 3), "ERR unexpected argument 'LIMIT'"),
        (("k", "AT", 1, "AT", 2), "ERR TEXT is required"),
        (("no", "TEXT", "x"), "ERR no such memory index"),
    ],
)
def test_words_that_are_refused(wire: Wire, model: StandIn, words: tuple[Any, ...], error: str) -> None:
    if len(words) > 2:
        assert wire.error("MEM.ANALYZE", *words) == error
    assert words[1] != "TEXT" or len(words) > 3 or wire.error("MEM.CONSULT", *words) == error
    assert model.asked == []


def test_not_in_a_transaction(wire: Wire, model: StandIn) -> None:
    for command in ("MEM.ANALYZE", "MEM.CONSULT"):
        wire("MULTI")
        assert wire.error(command, "k", "TEXT", MESSAGE) == "ERR Command not allowed inside a transaction"
        assert wire.error("EXEC").startswith("EXECABORT")
    assert model.asked == []


@pytest.mark.parametrize("missing", [("inference_url", ""), ("inference_model", "")])
def test_off(asking: Start, model: StandIn, missing: tuple[str, str]) -> None:
    wire = asking(**dict([missing])).wire()
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    assert wire.error("MEM.ANALYZE", "k", "TEXT", MESSAGE) == OFF
    assert wire.error("MEM.CONSULT", "k", "TEXT", MESSAGE) == OFF
    assert model.asked == []


# MEM.CONSULT


@pytest.fixture
def home(wire: Wire) -> Wire:
    """With facts about where somebody lives."""
    fill(wire)
    return wire


def test_an_answer_and_the_facts_it_used(home: Wire, model: StandIn) -> None:
    model.will(says({"answer": " In Berlin. ", "used": [2]}))
    found = {
        each[b"id"]: each for each in home("MEM.RECALL", "k", "TEXT", QUESTION, "FORMAT", "MAP")[b"facts"]
    }
    second = list(found)[1]
    assert home("MEM.CONSULT", "k", "TEXT", QUESTION) == {b"answer": b"In Berlin.", b"ids": [second]}
    (asked,) = model.asked
    assert asked.body["messages"][0]["content"] == inference_prompts.CONSULT
    assert asked.body["response_format"]["json_schema"]["schema"] == ANSWER
    shown = {
        b"p": {"fact": "user lived in paris", "from": "2020-02-02", "to": "2027-01-01", "quote": None},
        b"b": {"fact": "user lives in berlin", "from": "2026-06-01", "to": None, "quote": "I live in Berlin"},
    }
    assert set(found) == set(shown)
    assert asked.data == {
        "question": QUESTION,
        "facts": [{"number": number} | shown[each] for number, each in enumerate(found, 1)],
    }


@pytest.mark.parametrize(
    ("used", "ids"),
    [([], 0), ([2, 1, 2], 2), ([0, -1, 3, 99, 10**30], 0), ([1, 99], 1)],
)
def test_only_facts_that_were_shown_are_cited(home: Wire, model: StandIn, used: list[int], ids: int) -> None:
    model.will(says({"answer": "In Berlin.", "used": used}))
    found = home("MEM.CONSULT", "k", "TEXT", QUESTION)[b"ids"]
    assert len(found) == ids
    assert set(found) <= {b"p", b"b"}


@pytest.mark.parametrize("answer", [None, "", " \n"])
def test_no_answer(home: Wire, model: StandIn, answer: str | None) -> None:
    model.will(says({"answer": answer, "used": [1]}))
    assert home("MEM.CONSULT", "k", "TEXT", QUESTION) == {b"answer": None, b"ids": []}


def test_without_facts_nobody_is_asked(wire: Wire, model: StandIn) -> None:
    wire("MEM.FACT", "k", "cats", "like", "boxes", "CONFIDENCE", 0.4)
    assert wire("MEM.CONSULT", "k", "TEXT", "what do cats like?") == {b"answer": None, b"ids": []}
    assert model.asked == []


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ({"answer": "x" * 10_001, "used": []}, "it has more than 10000 characters"),
        ({"answer": "x", "used": None}, "used must be of type array"),
        ({"answer": "x", "used": [1, 1.5]}, "number 2: it must be of type integer"),
        ({"answer": "x", "used": ["b"]}, "number 1: it must be of type integer"),
        ({"answer": "x"}, "used is missing"),
        ({"answer": 7, "used": []}, "answer must be of type string or null"),
        ('{"answer": "x", "used": [NaN]}', "it is not JSON"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_answers_are_no_answers(home: Wire, model: StandIn, answer: Any, reason: str) -> None:
    model.will(says(answer))
    assert home.error("MEM.CONSULT", "k", "TEXT", QUESTION) == REFUSED + reason


def test_it_answers_for_the_moment_of_asking(server: Running, home: Wire, model: StandIn) -> None:
    """What changes while the model thinks does not change what it was shown, and a question changes nothing."""
    other = server.wire()
    before = home("MEM.INFO", "k")

    def act(asked: Asked) -> Any:
        other("MEM.DEL", "k", "p", "b")
        return {"answer": "both", "used": [1, 2]}

    model.will(says({"answer": "x", "used": [1]}))
    home("MEM.CONSULT", "k", "TEXT", QUESTION)
    assert home("MEM.INFO", "k") == before
    model.will(thinks(act))
    assert set(home("MEM.CONSULT", "k", "TEXT", QUESTION)[b"ids"]) == {b"p", b"b"}


def test_days_of_any_year(wire: Wire, model: StandIn) -> None:
    model.will(says({"answer": None, "used": []}))
    wire("MEM.FACT", "k", "user", "lives in", "ur", "VALIDAT", -200_000_000_000_000, "VALIDUNTIL", 300_000_000_000_000)
    wire("MEM.CONSULT", "k", "TEXT", QUESTION)
    (shown,) = model.asked[0].data["facts"]
    assert (shown["from"], shown["to"]) == ("-4368-04-02", "11476-08-15")


def test_a_vector_memory_has_no_words(wire: Wire) -> None:
    wire("MEM.CREATE", "v", "MODE", "VECTOR", "DIM", 2)
    no_text = "ERR this memory index does not index text; create it with MODE SEARCH or MODE HYBRID"
    assert wire.error("MEM.CONSULT", "v", "TEXT", "x") == no_text
    assert wire.error("MEM.ANALYZE", "v", "TEXT", "x") == no_text


def test_a_consultation_is_a_read(home: Wire, model: StandIn) -> None:
    """It is kept as one, with how many facts it looked at; never what they say, nor the answer."""
    home("CONFIG", "SET", "mem-audit", "all")
    model.will(says({"answer": "In Berlin.", "used": []}))
    home("MEM.CONSULT", "k", "TEXT", QUESTION)
    (kept,) = home("MEM.AUDIT", "k")
    assert (kept[b"command"], kept[b"results"]) == (b"MEM.CONSULT", 2)
    assert b"berlin" not in repr(kept).lower().encode()


# With an embedder


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    return Provider(monkeypatch)


@pytest.mark.parametrize("mode", ["VECTOR", "HYBRID"])
def test_vectors_are_the_embedders(provider: Provider, wire: Wire, model: StandIn, mode: str) -> None:
    """Of the message and the question, by which facts are found without a word in common, and of the facts."""
    wire("MEM.CREATE", "e", "MODE", mode, "EMBEDDER", "openai", "MODEL", "m", "DIM", 3)
    wire("MEM.FACT", "e", "cats", "like", "boxes", "ID", "c")
    model.will(says({"facts": [fact(type="PLACE"), fact("anna", quote="Anna")]}))
    assert wire("MEM.ANALYZE", "e", "TEXT", MESSAGE) == analysed("1", "2")
    assert model.asked[0].data["known"] == [{"id": "c", "fact": "cats like boxes"}]
    assert provider.texts[1:] == [
        MESSAGE,
        "berlin",
        "user lives in berlin. About: berlin.",
        "anna lives in berlin. About: anna.",
    ]
    info = wire("MEM.INFO", "e")
    assert (info[b"records"], info[b"vectors"], info[b"pending"]) == (3, 3, 0)
    model.will(says({"answer": "x", "used": [1, 2, 3]}))
    assert set(wire("MEM.CONSULT", "e", "TEXT", "quo vadis?")[b"ids"]) == {b"c", b"1", b"2"}


def test_the_embedder_is_down(provider: Provider, wire: Wire, model: StandIn) -> None:
    """Facts are found by words then, and those that are stated get their vectors later."""
    provider.down = True
    wire("MEM.CREATE", "e", "EMBEDDER", "openai", "MODEL", "m", "DIM", 3)
    wire("MEM.FACT", "e", "user", "lives in", "paris", "ID", "home")
    model.will(says({"facts": [fact(supersedes="home")]}))
    assert wire("MEM.ANALYZE", "e", "TEXT", f"user: {MESSAGE}") == analysed("1")
    assert wire("MEM.INFO", "e")[b"pending"] == 2


# The page

PAGE = (Path(__file__).parents[1] / "docs" / "inference.md").read_text(encoding="utf-8")


def test_the_page_shows_the_prompts() -> None:
    blocks = re.findall(r"```text\n(.*?)\n```", PAGE, re.S)
    assert blocks == [inference_prompts.ANALYZE, inference_prompts.CONSULT, inference_prompts.SYNTHESIS]


def test_the_page_shows_the_schemas() -> None:
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)\n```", PAGE, re.S)]
    assert [block for block in blocks if "title" in block] == [FACTS, ANSWER, SYNTHESIS]


def test_the_page_shows_an_answer_that_would_do(wire: Wire, model: StandIn) -> None:
    """And what is asked for it."""
    blocks = [json.loads(block) for block in re.findall(r"```json\n(.*?)\n```", PAGE, re.S)]
    (data,) = [block for block in blocks if "message" in block]
    (answer,) = [block for block in blocks if "facts" in block and "question" not in block]
    wire("MEM.FACT", "k", "user", "lives in", "paris", "TYPE", "PLACE", "VALIDAT", "2026-01-01")
    model.will(says(answer))
    assert wire("MEM.ANALYZE", "k", "TEXT", data["message"], "AT", data["time"]) == analysed("2", "3")
    assert model.asked[0].data == data
    question, summed_up = [block for block in blocks if "question" in block]
    model.will(says({"answer": "In Berlin, since May 2026.", "used": [1]}))
    assert wire("MEM.CONSULT", "k", "TEXT", question["question"])[b"ids"] == [b"2"]
    assert model.asked[1].data == question
    model.will(says({"synthesis": "The user has lived in Berlin since May 2026."}))
    shown = wire("MEM.RECALL", "k", "TEXT", question["question"], "SYNTHESIS").decode()
    assert f"```\n> MEM.RECALL user:123 TEXT \"where does the user live?\" SYNTHESIS\n{shown}\n```" in PAGE
    assert model.asked[2].data == summed_up
