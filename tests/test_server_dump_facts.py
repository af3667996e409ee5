"""DUMP, RESTORE and COPY of facts, entities and history."""

from __future__ import annotations

import pytest
from harness import DAY, JUNE, Clock, Running
from recalld.index.analyzer import Vocabulary
from recalld.server.payload import load


@pytest.mark.parametrize("history", [0, "ALL"])
def test_all_of_it_travels(server: Running, clock: Clock, history: object) -> None:
    wire = server.wire(3)
    wire("MEM.CREATE", "k", "DIM", 2, "HISTORY", history)
    wire("MEM.ENTITY", "k", "a", "TYPE", "ORG", "ALIAS", "aa", "FVEC", 2, 1, 2)
    wire("MEM.FACT", "k", "user", "p", "aa", "TYPE", "ORG", "ID", "1", "QUOTE", "q", "FVEC", 2, 1, 0)
    wire("MEM.ADD", "k", "ID", "n", "TEXT", "first", "FVEC", 2, 0, 1)
    clock.advance(DAY)
    wire("MEM.FACT", "k", "user", "p", "c", "TYPE", "ORG", "ID", "2", "SUPERSEDES", "1")
    wire("MEM.ADD", "k", "ID", "n", "TEXT", "second", "FVEC", 2, 1, 1)
    wire("MEM.FACT", "k", "user", "p", "later", "ID", "3", "VALIDAT", JUNE + 3 * DAY)
    payload = wire("DUMP", "k")
    assert wire("RESTORE", "twin", 0, payload) == "OK"
    assert wire("DUMP", "twin") == payload
    wire("COPY", "k", "copy")
    assert wire("DUMP", "copy") == payload
    for words in (
        ("MEM.FACTS", "INVALIDATED"),
        ("MEM.FACTS", "ASOF", JUNE + 4 * DAY),
        ("MEM.FACTS", "KNOWNAT", JUNE),
        ("MEM.ENTITIES", "WITHVEC"),
    ):
        command, *rest = words
        assert wire(command, "twin", *rest) == wire(command, "k", *rest), words
    memory = load(payload).attach(Vocabulary())
    assert memory.past is not None and memory.entities is not None
    clock.advance(5 * DAY)
    assert wire.raw("MEM.FACTS", "twin") == wire.raw("MEM.FACTS", "k")


def test_a_history_longer_than_all_time(server: Running) -> None:
    """Where it reaches back before any time that can be said, the memory can be restored all the same."""
    wire = server.wire(3)
    wire("MEM.CREATE", "k", "MODE", "SEARCH", "HISTORY", 10**15)
    wire("MEM.CONFIG", "k", "HALFLIFE", 1)
    payload = wire("DUMP", "k")
    wire("RESTORE", "twin", 0, payload)
    assert wire("DUMP", "twin") == payload


def test_settings_changed_with_the_clock_set_back(server: Running, clock: Clock) -> None:
    wire = server.wire(3)
    wire("MEM.CREATE", "k", "MODE", "SEARCH", "HISTORY", "ALL")
    wire("MEM.CONFIG", "k", "HALFLIFE", 1)
    clock.advance(-DAY)
    wire("MEM.CONFIG", "k", "HALFLIFE", 2)
    payload = wire("DUMP", "k")
    wire("RESTORE", "twin", 0, payload)
    assert wire("DUMP", "twin") == payload


def test_two_facts_never_say_the_same_for_ever(server: Running) -> None:
    """One that is superseded from some day on by one that says the same cannot be cleared: RESTORE refuses two."""
    wire = server.wire(3)
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    wire("MEM.FACT", "k", "ann", "likes", "bread", "ID", "1")
    wire("MEM.FACT", "k", "ann", "likes", "bread", "ID", "2", "SUPERSEDES", "1", "AT", JUNE + DAY)
    assert wire.error("MEM.INVALIDATE", "k", "1", "CLEAR") == "ERR fact '2' says the same"
    assert wire("RESTORE", "twin", 0, wire("DUMP", "k")) == "OK"


def test_what_crossed_since_the_last_write_stays_in_its_place(server: Running, clock: Clock) -> None:
    """A payload has the rows in the order that they have here, whatever crossed over, and when."""
    wire = server.wire(3)
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    for number in (1, 2, 3):
        wire("MEM.FACT", "k", "ann", "likes", f"b{number}", "VALIDUNTIL", JUNE + (4 - number) * 1000)
    clock.advance(2500)
    payload = wire("DUMP", "k")
    clock.advance(100)
    wire("RESTORE", "twin", 0, payload)
    assert wire("DUMP", "twin") == payload
    clock.advance(DAY)
    assert wire("DUMP", "twin") == wire("DUMP", "k")
