"""MEM.ENTITY, MEM.ENTITIES, MEM.PATHS over the wire, and entities as the objects of facts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from durable import eventually
from harness import DAY, JUNE, Clock, Running, Wire
from recalld.index.entities import VectorsView


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock, tmp_path: Path) -> Iterator[Running]:
    with Running(clock=clock, dir=tmp_path) as running:
        yield running


@pytest.fixture
def wire(server: Running) -> Wire:
    wire = server.wire(3)
    wire("MEM.CREATE", "k", "DIM", 2)
    return wire


def entity(wire: Wire, *words: Any) -> tuple[Any, ...]:
    """name, type, aliases, facts, resolved of MEM.ENTITY."""
    shown = wire("MEM.ENTITY", "k", *words)
    assert list(shown) == [b"name", b"type", b"aliases", b"facts", b"created_at", b"resolved"]
    return tuple(shown[name] for name in (b"name", b"type", b"aliases", b"facts", b"resolved"))


def names(wire: Wire, *words: Any) -> list[tuple[bytes, bytes, list[bytes], int]]:
    _, found = wire("MEM.ENTITIES", "k", *words)
    return [(each[b"name"], each[b"type"], each[b"aliases"], each[b"facts"]) for each in found]


def told(wire: Wire, *words: Any) -> list[tuple[bytes, ...]]:
    """id, subject, object, type of MEM.FACTS."""
    _, found = wire("MEM.FACTS", "k", *words)
    return [(each[b"id"], each[b"subject"], each[b"object"], each[b"entity_type"]) for each in found]


def test_resolution(wire: Wire, clock: Clock) -> None:
    """Created, then exact, by alias, by similarity; types never meet."""
    assert entity(wire, " Apple ", "TYPE", "org", "FVEC", 2, 1, 0) == (b"apple", b"ORG", [], 0, b"created")
    clock.advance(DAY)
    assert entity(wire, "APPLE", "TYPE", "ORG", "ALIAS", "AAPL") == (b"apple", b"ORG", [b"aapl"], 0, b"exact")
    assert entity(wire, "aapl", "TYPE", "ORG") == (b"apple", b"ORG", [b"aapl"], 0, b"alias")
    similar = entity(wire, "Apple Inc", "TYPE", "ORG", "FVEC", 2, 1, 0.1)
    assert similar == (b"apple", b"ORG", [b"aapl", b"apple inc"], 0, b"similar")
    assert entity(wire, "apple inc", "TYPE", "ORG")[-1] == b"alias", "the name became one"
    assert entity(wire, "apple", "TYPE", "FOOD", "FVEC", 2, 1, 0) == (b"apple", b"FOOD", [], 0, b"created")
    assert entity(wire, "pear", "TYPE", "FOOD", "FVEC", 2, 1, 1)[-1] == b"created", "0.71 is under 0.88"
    wire("CONFIG", "SET", "mem-entity-threshold", 0.7)
    assert entity(wire, "quince", "TYPE", "FOOD", "FVEC", 2, 1, 2)[:2] == (b"pear", b"FOOD")
    assert wire("MEM.ENTITY", "k", "apple", "TYPE", "ORG")[b"created_at"] == JUNE
    assert entity(wire, "x", "TYPE", "company")[1] == b"THING"


def test_without_a_type(wire: Wire) -> None:
    """The only entity of the name, else the most used, else the first; none: a new THING."""
    entity(wire, "apple", "TYPE", "ORG", "ALIAS", "jobs' shop")
    assert entity(wire, "apple")[1::3] == (b"ORG", b"exact")
    assert entity(wire, "Jobs' Shop")[0::4] == (b"apple", b"alias")
    entity(wire, "apple", "TYPE", "FOOD")
    assert entity(wire, "apple")[1] == b"ORG"
    wire("MEM.FACT", "k", "s", "eats", "apple", "TYPE", "FOOD")
    assert entity(wire, "apple")[1] == b"FOOD"
    assert entity(wire, "other") == (b"other", b"THING", [], 0, b"created")


ERRORS = [
    (("",), "ERR an entity's name must not be empty"),
    (("n" * 501,), "ERR an entity's name must not exceed 500 characters"),
    (("a", "ALIAS", " "), "ERR an entity's name must not be empty"),
    (("a", "X"), "ERR unexpected argument 'X'"),
    (("a", "ALIAS"), "ERR syntax error"),
    (("a", "TYPE", "ORG", "ALIAS", "b"), "ERR 'b' already names another ORG; MERGE joins them"),
    (("a", "TYPE", "ORG", "ALIAS", "bee"), "ERR 'bee' already names another ORG; MERGE joins them"),
    (("a", "TYPE", "ORG", "MERGE", "zz"), "ERR no such entity 'zz'"),
    (("zz", "TYPE", "ORG", "MERGE", "a"), "ERR no such entity 'zz'"),
    (("a", "TYPE", "ORG", "MERGE", "a"), "ERR an entity cannot be merged with itself"),
    (("a", "TYPE", "ORG", "MERGE", "c"), "ERR entities of different types never merge"),
    (("a", "FVEC", 3, 1, 2, 3), "ERR wrong vector dimension, expected 2 got 3"),
    (("a", "FVEC", 2, 0, 0), "ERR a zero vector has no direction to compare under COSINE"),
]


@pytest.mark.parametrize(("words", "error"), ERRORS, ids=[error for _, error in ERRORS])
def test_what_is_refused_changes_nothing(wire: Wire, words: tuple[Any, ...], error: str) -> None:
    entity(wire, "a", "TYPE", "ORG")
    entity(wire, "b", "TYPE", "ORG", "ALIAS", "bee")
    entity(wire, "c", "TYPE", "FOOD")
    before = names(wire)
    assert wire.error("MEM.ENTITY", "k", *words) == error
    assert names(wire) == before


def test_page(wire: Wire) -> None:
    assert wire("MEM.ENTITIES", "k") == [0, []]
    for name, kind in (("b", "ORG"), ("a", "PERSON"), ("a", "FOOD"), ("c", "ORG")):
        entity(wire, name, "TYPE", kind)
    assert [each[:2] for each in names(wire)] == [(b"a", b"FOOD"), (b"a", b"PERSON"), (b"b", b"ORG"), (b"c", b"ORG")]
    assert [each[0] for each in names(wire, "TYPE", "org")] == [b"b", b"c"]
    total, page = wire("MEM.ENTITIES", "k", "LIMIT", 1, "OFFSET", 2)
    assert (total, page[0][b"name"]) == (4, b"b")
    assert list(page[0]) == [b"name", b"type", b"aliases", b"facts", b"created_at"]
    assert wire.error("MEM.ENTITIES", "k", "LIMIT", 0) == "ERR LIMIT must be between 1 and 1000"
    assert wire.error("MEM.ENTITIES", "absent") == "ERR no such memory index"
    entity(wire, "a", "TYPE", "FOOD", "FVEC", 2, 3, 4)
    shown = wire("MEM.ENTITIES", "k", "WITHVEC")[1]
    assert [len(each[b"vector"] or b"") for each in shown] == [8, 0, 0, 0]


def test_objects_are_entities(wire: Wire, clock: Clock) -> None:
    """TYPE resolves as MEM.ENTITY does and stores the canonical name; types make two facts of one name."""
    entity(wire, "International Business Machines", "TYPE", "ORG", "ALIAS", "ibm")
    wire("MEM.FACT", "k", "s", "works at", "IBM", "TYPE", "ORG", "ID", "1")
    assert told(wire) == [(b"1", b"s", b"international business machines", b"ORG")]
    assert wire("MEM.FACT", "k", "s", "works at", "international business machines", "TYPE", "ORG") == b"1"
    wire("MEM.FACT", "k", "s", "likes", "Apple", "ID", "2")
    assert wire("MEM.FACT", "k", "s", "likes", "Apple", "TYPE", "ORG", "ID", "x") == b"2", "the same, now with a type"
    assert told(wire, "ENTITY", "apple") == [(b"2", b"s", b"apple", b"ORG")]
    assert wire("MEM.FACT", "k", "s", "likes", "apple", "TYPE", "FOOD", "ID", "3") == b"3"
    assert wire("MEM.FACT", "k", "s", "likes", "apple") == b"2", "untyped is either, the smaller id"
    wire("MEM.FACT", "k", "s", "eats", "Granny Smith", "TYPE", "FOOD", "ENTITYFVEC", 2, 1, 0, "ID", "4")
    wire("MEM.FACT", "k", "s", "eats", "grannysmith", "TYPE", "FOOD", "ENTITYFVEC", 2, 1, 0.1)
    assert names(wire, "TYPE", "FOOD")[1] == (b"granny smith", b"FOOD", [b"grannysmith"], 1)
    clock.advance(DAY)
    wire("MEM.INVALIDATE", "k", "4")
    assert names(wire, "TYPE", "FOOD")[1][3] == 0, "counts what is valid now"


def test_merge_moves_every_fact(wire: Wire, clock: Clock) -> None:
    """By object, by subject, by alias; invalidated ones too; times and vectors stay; names add up."""
    entity(wire, "ibm", "TYPE", "ORG", "ALIAS", "big blue")
    entity(wire, "ib machines", "TYPE", "ORG", "ALIAS", "ibmachines", "FVEC", 2, 3, 4)
    wire("MEM.FACT", "k", "ann", "works at", "IB Machines", "TYPE", "ORG", "ID", "1", "FVEC", 2, 1, 0)
    wire("MEM.FACT", "k", "ibmachines", "sells", "cards", "ID", "2")
    wire("MEM.FACT", "k", "bob", "left", "ib machines", "TYPE", "ORG", "ID", "3")
    wire("MEM.FACT", "k", "cat", "sat on", "mat", "ID", "4")
    wire("MEM.INVALIDATE", "k", "3")
    clock.advance(DAY)
    merged = entity(wire, "big blue", "MERGE", "IBMachines")
    assert merged == (b"ibm", b"ORG", [b"big blue", b"ib machines", b"ibmachines"], 2, b"alias")
    assert told(wire, "INVALIDATED") == [
        (b"1", b"ann", b"ibm", b"ORG"),
        (b"2", b"ibm", b"cards", None),
        (b"3", b"bob", b"ibm", b"ORG"),
        (b"4", b"cat", b"mat", None),
    ]
    shown = wire("MEM.GET", "k", "1", "WITHVEC", "FLOATS")
    assert (shown[b"text"], shown[b"updated_at"], shown[b"vector"]) == (b"ann works at ibm", JUNE, [1.0, 0.0])
    assert sorted(hit[b"id"] for hit in wire("MEM.SEARCH", "k", "ibm")) == [b"1", b"2"]
    assert wire("MEM.SEARCH", "k", "machines") == []
    assert wire("MEM.ENTITIES", "k", "WITHVEC")[1][0][b"vector"] is not None
    assert wire("MEM.FACT", "k", "ann", "works at", "ib machines", "TYPE", "ORG") == b"1"


def test_merge_where_facts_become_one(server: Running, wire: Wire, clock: Clock) -> None:
    """The one with the earlier valid_at stays, with the higher confidence; another end is another fact."""
    entity(wire, "a", "TYPE", "ORG")
    entity(wire, "b", "TYPE", "ORG")
    wire("MEM.FACT", "k", "s", "p", "b", "TYPE", "ORG", "ID", "old", "VALIDAT", JUNE - DAY, "CONFIDENCE", 0.25)
    wire("MEM.FACT", "k", "s", "p", "a", "TYPE", "ORG", "ID", "met", "CONFIDENCE", 0.75)
    wire("MEM.FACT", "k", "s", "p", "b", "TYPE", "ORG", "ID", "ends", "VALIDUNTIL", JUNE + DAY)
    wire("MEM.FACT", "k", "s", "q", "b", "TYPE", "ORG", "ID", "first", "CONFIDENCE", 0.5)
    wire("MEM.FACT", "k", "s", "q", "a", "TYPE", "ORG", "ID", "second", "CONFIDENCE", 0.5)
    listener = server.wire(3)
    listener("SUBSCRIBE", "__mem__:k")
    clock.advance(1)
    entity(wire, "a", "TYPE", "ORG", "MERGE", "b")
    assert [listener.read()[2] for _ in range(3)] == [b"entity a", b"del met", b"del second"]
    found = {each[b"id"]: each[b"confidence"] for each in wire("MEM.FACTS", "k")[1]}
    assert found == {b"old": 0.75, b"ends": 1.0, b"first": 0.5}
    assert {each[2] for each in told(wire)} == {b"a"}


def test_paths(wire: Wire, clock: Clock) -> None:
    """Breadth first, each fact once, cycles safe; within a depth by confidence, later valid_at, id."""
    for record_id, subject, spoken, words in (
        ("1", "ann", "acme", ("TYPE", "ORG")),
        ("2", "bob", "acme", ("TYPE", "ORG", "CONFIDENCE", 0.5)),
        ("3", "bob", "ann", ()),
        ("4", "bob", "cat", ()),
        ("5", "cat", "dog", ()),
        ("6", "dog", "acme", ("TYPE", "ORG", "VALIDAT", JUNE - DAY)),
        ("7", "elf", "fir", ()),
    ):
        wire("MEM.FACT", "k", subject, "knows", spoken, *words, "ID", record_id)

    def paths(*words: Any) -> list[tuple[bytes, int]]:
        return [(each[b"id"], each[b"depth"]) for each in wire("MEM.PATHS", "k", *words)]

    near = [(b"1", 1), (b"6", 1), (b"2", 1)]
    assert paths("ACME") == near
    assert paths("acme", "DEPTH", 2) == [*near, (b"3", 2), (b"4", 2), (b"5", 2)]
    assert paths("acme", "DEPTH", 3) == paths("acme", "DEPTH", 2)
    assert paths("elf", "DEPTH", 3) == [(b"7", 1)]
    assert paths("acme", "DEPTH", 2, "LIMIT", 4) == [*near, (b"3", 2)]
    assert paths("nobody") == []
    clock.advance(DAY)
    wire("MEM.INVALIDATE", "k", "2")
    assert paths("acme") == near[:2]
    assert paths("acme", "ASOF", JUNE) == near
    assert paths("acme", "ASOF", JUNE - DAY) == [(b"6", 1)]
    assert wire.error("MEM.PATHS", "k", "a", "DEPTH", 4) == "ERR DEPTH must be between 1 and 3"
    assert wire.error("MEM.PATHS", "k", "a", "LIMIT", 1001) == "ERR LIMIT must be between 1 and 1000"
    assert wire.error("MEM.PATHS", "k", "a", "OFFSET", 1) == "ERR unexpected argument 'OFFSET'"


def test_paths_of_many_facts_are_those_of_few(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that looks at all facts finds what the index finds."""
    for number in range(40):
        wire("MEM.FACT", "k", f"s{number % 7}", "p", f"s{number * 5 % 9}", "VALIDAT", number, "TYPE", "ORG")
    found = wire.raw("MEM.PATHS", "k", "s1", "DEPTH", 3)
    monkeypatch.setattr("recalld.server.entity_commands._PATHS_ON_LOOP", 0)
    assert wire.raw("MEM.PATHS", "k", "s1", "DEPTH", 3) == found


def test_nearest_in_a_thread_is_nearest_on_the_loop(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recalld.server.entity_commands._NEAREST_ON_LOOP", 1)
    wire("CONFIG", "SET", "mem-entity-threshold", 1)
    for number in range(5):
        entity(wire, f"e{number}", "TYPE", "ORG", "FVEC", 2, 1, number)
    wire("CONFIG", "SET", "mem-entity-threshold", 0.88)
    assert entity(wire, "f", "TYPE", "ORG", "FVEC", 2, 1, 2.05)[:3] == (b"e2", b"ORG", [b"f"])
    assert wire("MEM.FACT", "k", "s", "p", "g", "TYPE", "ORG", "ENTITYFVEC", 2, 1, 0.01) == b"1"
    assert told(wire) == [(b"1", b"s", b"e0", b"ORG")]


def test_all_of_it_after_a_restart(server: Running, wire: Wire, clock: Clock) -> None:
    """The log, and a base, give the same entities and facts, and they resolve alike."""
    entity(wire, "a", "TYPE", "ORG", "ALIAS", "aa", "FVEC", 2, 1, 2)
    entity(wire, "b", "TYPE", "ORG", "ALIAS", "bb")
    entity(wire, "a", "TYPE", "FOOD")
    wire("MEM.FACT", "k", "s", "p", "bb", "TYPE", "ORG", "ID", "1", "QUOTE", "q", "EPISODE", "e")
    wire("MEM.FACT", "k", "s", "p", "c", "TYPE", "ORG", "ID", "2", "SUPERSEDES", "1")
    wire("MEM.FACT", "k", "s", "p", "later", "ID", "3", "VALIDAT", JUNE + DAY)
    entity(wire, "a", "TYPE", "ORG", "MERGE", "b")

    def shown(wire: Wire) -> list[Any]:
        asked = [("MEM.ENTITIES", "k", "WITHVEC"), ("MEM.FACTS", "k", "INVALIDATED"), ("MEM.GET", "k", "3", "WITHMETA")]
        asked += [("MEM.PATHS", "k", "a", "DEPTH", 2), ("MEM.FACTS", "k", "ASOF", JUNE + 2 * DAY), ("MEM.INFO", "k")]
        replies = [wire(*words) for words in asked]
        del replies[-1][b"bytes"]  # an estimate
        return replies

    before = shown(wire)
    server.restart()
    wire = server.wire(3)
    assert shown(wire) == before
    wire("BGREWRITEAOF")
    eventually(lambda: b"aof_rewrite_in_progress:0" in wire("INFO", "persistence"))
    server.restart()
    wire = server.wire(3)
    assert shown(wire) == before
    assert entity(wire, "bb")[:2] == (b"a", b"ORG")
    assert wire("MEM.FACT", "k", "s", "p", "c", "TYPE", "ORG") == b"2"
    clock.advance(DAY)
    assert [each[0] for each in told(wire)] == [b"2", b"3"]


def test_a_key_replaced_meanwhile_is_not_written_to(
    server: Running, wire: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a thread found in one memory means nothing in another."""
    monkeypatch.setattr("recalld.server.entity_commands._NEAREST_ON_LOOP", 0)
    entity(wire, "a", "TYPE", "ORG", "FVEC", 2, 1, 0)
    gate = threading.Event()
    nearest = VectorsView.nearest

    def slow(self: VectorsView, *words: Any) -> Any:
        gate.wait(60)
        return nearest(self, *words)

    monkeypatch.setattr(VectorsView, "nearest", slow)
    wire.send("MEM.FACT", "k", "s", "p", "b", "TYPE", "ORG", "ENTITYFVEC", 2, 0, 1)
    other = server.wire(3)
    # The other client's commands run behind the one that was sent first.
    eventually(lambda: other("CLIENT", "LIST").count(b"cmd=mem.fact") == 1)
    other("DEL", "k")
    other("MEM.CREATE", "k", "DIM", 3)
    gate.set()
    expected = "ERR the key was replaced while its entities were being compared; nothing was written"
    assert str(wire.read()) == expected
    assert other("MEM.ENTITIES", "k") == [0, []]


def test_an_entity_has_a_thousand_aliases_at_most(wire: Wire) -> None:
    """By ALIAS and by MERGE; a similar name becomes an entity of its own then. What is refused changes nothing."""
    words = [word for n in range(1001) for word in ("ALIAS", f"a{n}")]
    refusal = "ERR an entity may have 1000 aliases, this one would have 1001"
    assert wire.error("MEM.ENTITY", "k", "full", *words) == refusal
    assert names(wire) == []
    assert len(entity(wire, "full", "FVEC", 2, 1, 0, *words[:-2])[2]) == 1000
    assert wire.error("MEM.ENTITY", "k", "full", "ALIAS", "one more") == refusal
    assert entity(wire, "full", "ALIAS", "A7")[-1] == b"exact"
    assert entity(wire, "fuller", "FVEC", 2, 1, 0.01)[-1] == b"created"
    assert wire.error("MEM.ENTITY", "k", "full", "MERGE", "fuller") == refusal
    assert [(name, len(aliases)) for name, _, aliases, _ in names(wire)] == [(b"full", 1000), (b"fuller", 0)]
