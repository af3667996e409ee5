"""Facts, entities and time under hostile and odd input: what broke once, and what must not."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness import JUNE, SECOND, Clock, Running, Wire
from recalld.index.view import View
from recalld.server.fact_maps import fact_slots


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock, tmp_path: Path) -> Iterator[Running]:
    with Running(clock=clock, dir=tmp_path, save="") as running:
        yield running


@pytest.fixture
def wire(server: Running) -> Wire:
    wire = server.wire(3)
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    return wire


def facts(wire: Wire, *words: Any) -> list[dict[bytes, Any]]:
    found: list[dict[bytes, Any]] = wire("MEM.FACTS", "k", *words)[1]
    return found


def test_an_object_too_long_once_it_is_lower_cased_is_refused(wire: Wire) -> None:
    """`İ` lower-cased is two characters: the entity could not be named, and DUMP's payload not be restored."""
    wire("MEM.FACT", "k", "a", "b", "İ" * 250, "TYPE", "PLACE")
    before = wire("DUMP", "k")
    for word in ("İ" * 251, "x" * 499 + "İ"):
        assert wire.error("MEM.FACT", "k", "c", "b", word, "TYPE", "PLACE") == "ERR object exceeds 500 characters"
        assert wire("DUMP", "k") == before
        wire("MEM.FACT", "k", "d", "b", word)  # as written, where it is no entity's name
        before = wire("DUMP", "k")
    assert wire("RESTORE", "twin", 0, before) == "OK"
    assert wire("MEM.ENTITY", "k", "İ" * 250)[b"type"] == b"PLACE"


def test_minus_zero_is_zero(wire: Wire) -> None:
    """Bytes are compared where a filter's value is no number, so `-0` would be another value, by chance: of equal
    numbers a large memory looks at one."""
    wire("MEM.FACT", "k", "a", "b", "c", "CONFIDENCE", "-0", "ID", "f")
    wire("MEM.ADD", "k", "ID", "n", "TEXT", "t", "IMPORTANCE", "-0.0")
    assert wire("MEM.GET", "k", "n")[b"importance"].raw == b"0"
    assert facts(wire)[0][b"confidence"].raw == b"0"
    for field in ("@confidence", "@importance"):
        assert [each[b"id"] for each in wire("MEM.LIST", "k", "FILTER", field, "PREFIX", "-")] == []


def test_superseding_what_was_invalid_long_ago_is_known_from_now_on(wire: Wire, clock: Clock) -> None:
    """The earlier invalid_at stays; what was known between then and now of the fact stays as well."""
    wire("MEM.CONFIG", "k", "HISTORY", "ALL")
    wire("MEM.FACT", "k", "ann", "likes", "tea", "ID", "old")
    clock.advance(SECOND)
    wire("MEM.INVALIDATE", "k", "old")
    clock.advance(SECOND)
    wire("MEM.SETMETA", "k", "old", "x", 1)
    clock.advance(SECOND)
    then = clock.now_ms
    asked: tuple[Any, ...] = ("MEM.FACTS", "k", "INVALIDATED")
    said = wire.raw(*asked)
    clock.advance(SECOND)
    wire("MEM.FACT", "k", "ann", "likes", "coffee", "ID", "new", "SUPERSEDES", "old")
    (old, _) = facts(wire, "INVALIDATED")
    assert (old[b"invalid_at"], old[b"superseded_by"]) == (JUNE + SECOND, b"new")
    assert wire.raw(*asked, "ASOF", then, "KNOWNAT", then) == said
    # Once more by a third, which changes nothing but whose it is.
    clock.advance(SECOND)
    then, said = clock.now_ms, wire.raw(*asked)
    clock.advance(SECOND)
    wire("MEM.FACT", "k", "ann", "likes", "milk", "SUPERSEDES", "old")
    assert wire.raw(*asked, "ASOF", then, "KNOWNAT", then) == said


@pytest.mark.parametrize("history", ["0", "ALL"])
def test_what_will_be_invalid_is_so_as_of_then(wire: Wire, clock: Clock, history: str) -> None:
    """Valid at t means not invalidated by t, for a t to come as well."""
    wire("MEM.CONFIG", "k", "HISTORY", history)
    wire("MEM.FACT", "k", "ann", "works at", "acme", "ID", "f")
    clock.advance(SECOND)
    made, end = clock.now_ms, clock.now_ms + 10 * SECOND
    wire("MEM.INVALIDATE", "k", "f", "AT", end)

    def shown(*words: Any) -> bool:
        found = bool(facts(wire, *words))
        assert bool(wire("MEM.SEARCH", "k", "acme", *words)) == found
        reason = wire("MEM.EXPLAIN", "k", "f", "TEXT", "acme", *words).get(b"reason")
        assert reason == (None if found else b"not valid then")
        return found

    assert shown() and shown("ASOF", end - 1)
    assert not shown("ASOF", end) and not shown("ASOF", end + SECOND, "KNOWNAT", made)
    assert wire("MEM.PATHS", "k", "acme", "ASOF", end) == []
    assert facts(wire, "ASOF", end, "INVALIDATED") != []
    # Before it was said nobody knew.
    assert shown("ASOF", end, "KNOWNAT", made - 1)
    clock.advance(20 * SECOND)
    assert not shown() and not shown("ASOF", end) and shown("ASOF", end, "KNOWNAT", made - 1)


def test_an_entity_that_was_merged_is_found_in_what_was_known_before(wire: Wire, clock: Clock) -> None:
    """Names and merges are today's, only facts travel: a fact about `acme ltd` was about what is `acme` now."""
    wire("MEM.CONFIG", "k", "HISTORY", "ALL")
    wire("MEM.ENTITY", "k", "acme", "TYPE", "ORG")
    wire("MEM.FACT", "k", "ann", "works at", "Acme Ltd", "TYPE", "ORG", "ID", "f")
    wire("MEM.FACT", "k", "acme ltd", "sells", "tea", "ID", "g")
    clock.advance(SECOND)
    then = clock.now_ms
    clock.advance(SECOND)
    wire("MEM.ENTITY", "k", "acme", "TYPE", "ORG", "MERGE", "acme ltd")
    assert [each[b"id"] for each in facts(wire, "ENTITY", "acme")] == [b"f", b"g"]
    for name in ("acme", "acme ltd"):
        known = facts(wire, "ENTITY", name, "KNOWNAT", then)
        assert [(each[b"id"], each[b"object"]) for each in known] == [(b"f", b"acme ltd"), (b"g", b"tea")]


@pytest.mark.parametrize("asked", ["paths", "facts"])
def test_names_are_those_of_the_moment_of_asking(
    server: Running, wire: Wire, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    """While a thread walks the facts about an entity, it is merged into another."""
    wire("MEM.ENTITY", "k", "acme", "TYPE", "ORG")
    wire("MEM.ENTITY", "k", "acme ltd", "TYPE", "ORG")
    wire("MEM.FACT", "k", "ann", "works at", "acme", "TYPE", "ORG")
    words: tuple[Any, ...] = ("MEM.PATHS", "k", "acme", "DEPTH", 2)
    if asked == "facts":
        words = ("MEM.FACTS", "k", "ENTITY", "acme", "KNOWNAT", JUNE)
    before = wire.raw(*words)
    monkeypatch.setattr("recalld.server.entity_commands._PATHS_ON_LOOP", 0)
    monkeypatch.setattr("recalld.server.workers.INLINE_COST", -1)
    at_work, gate = threading.Event(), threading.Event()

    def slow(view: View) -> Any:
        at_work.set()
        gate.wait(60)
        return fact_slots(view)

    monkeypatch.setattr("recalld.server.entity_commands.fact_slots", slow)
    monkeypatch.setattr("recalld.server.fact_commands.fact_slots", slow)
    wire.send(*words)
    assert at_work.wait(60)
    server.wire(3)("MEM.ENTITY", "k", "acme ltd", "TYPE", "ORG", "MERGE", "acme")
    gate.set()
    wire.read()
    assert b"".join(wire._seen) == before


def test_a_fact_stated_again_may_not_become_too_long(wire: Wire) -> None:
    """Given its type, the object is called by the entity's name, which may be longer than the alias."""
    wire("CONFIG", "SET", "mem-max-text-bytes", 10)
    wire("MEM.FACT", "k", "a", "b", "l")
    wire("MEM.ENTITY", "k", "a long name", "TYPE", "ORG", "ALIAS", "l")
    before = wire("DUMP", "k")
    assert wire.error("MEM.FACT", "k", "a", "b", "l", "TYPE", "ORG") == "ERR text exceeds mem-max-text-bytes (10)"
    assert wire("DUMP", "k") == before
    wire("CONFIG", "SET", "mem-max-text-bytes", 65_536)
    assert wire("MEM.FACT", "k", "a", "b", "l", "TYPE", "ORG") == b"1"
    wire("CONFIG", "SET", "mem-max-text-bytes", 10)
    # It is that long already: the limit is for what is written anew.
    assert wire("MEM.FACT", "k", "a", "b", "l", "TYPE", "ORG", "CONFIDENCE", 1, "QUOTE", "q") == b"1"
