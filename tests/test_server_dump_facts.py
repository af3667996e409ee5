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
