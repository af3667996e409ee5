"""Whatever commands made of a memory, it is the same behind DUMP and RESTORE, COPY, RENAME, a restart and a rewrite:
equal replies at random moments, and every invariant."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import LONG
from durable import on_loop
from fact_states import SECOND, asked, check, memory_of, replies, wander
from harness import Clock, Running

SEEDS = range(40 if LONG else 5)
MEMORIES = [
    ["MODE", "HYBRID", "DIM", 2, "HISTORY", "ALL"],
    ["MODE", "HYBRID", "DIM", 2, "METRIC", "L2", "HISTORY", 20],
    ["MODE", "HYBRID", "DIM", 2, "METRIC", "IP"],
]


def checked(server: Running, key: str) -> None:
    on_loop(server, lambda: check(memory_of(server, key), server.server.clock()))


@pytest.mark.parametrize("options", MEMORIES, ids=("all", "seconds", "none"))
@pytest.mark.parametrize("seed", SEEDS)
def test_dump_and_restore(server: Running, clock: Clock, options: list[Any], seed: int) -> None:
    """What DUMP gives is never refused, and gives the same bytes again, whenever it is restored."""
    rng, wire, start = Random(f"{seed} {options}"), server.wire(3), clock.now_ms
    wire("MEM.CREATE", "k", *options)
    for _ in range(6):
        wander(rng, wire, clock, "k", 25)
        checked(server, "k")
        payload = wire("DUMP", "k")
        assert wire("RESTORE", "twin", 0, payload, "REPLACE") == "OK"
        checked(server, "twin")
        assert wire("DUMP", "twin") == payload
        wire("COPY", "k", "copy", "REPLACE")
        checked(server, "copy")
        assert wire("DUMP", "copy") == payload
        clock.advance(rng.choice((0, SECOND, 10 * SECOND)))
        wire("RESTORE", "late", 0, payload, "REPLACE")
        questions = asked(rng, start, clock.now_ms)
        wanted = replies(wire, "k", questions)
        for key in ("twin", "copy", "late"):
            assert replies(wire, key, questions) == wanted, key
            checked(server, key)
        if rng.random() < 0.5:
            wire("RENAME", rng.choice(("twin", "copy", "late")), "k")  # and on from there
    wire.close()


@pytest.mark.parametrize("seed", SEEDS)
def test_dump_with_the_clock_set_back(server: Running, clock: Clock, seed: int) -> None:
    """What DUMP gives is never refused, whatever the clock did."""
    rng, wire = Random(seed), server.wire(3)
    wire("MEM.CREATE", "k", *rng.choice(MEMORIES))
    for _ in range(8):
        wander(rng, wire, clock, "k", 25, back=True)
        payload = wire("DUMP", "k")
        assert wire("RESTORE", "twin", 0, payload, "REPLACE") == "OK"
        checked(server, "twin")
    wire.close()


@pytest.mark.parametrize("options", MEMORIES, ids=("all", "seconds", "none"))
@pytest.mark.parametrize("seed", SEEDS)
def test_restart_and_rewrite(tmp_path: Path, options: list[Any], seed: int) -> None:
    """Replay of the log, a base, and a base with a log behind it."""
    rng, clock = Random(f"{seed} {options}"), Clock()
    start = clock.now_ms
    with Running(clock=clock, dir=tmp_path, appendfsync="no") as server:
        wire = server.wire(3)
        wire("MEM.CREATE", "k", *options)
        for turn in range(4):
            wander(rng, wire, clock, "k", 30)
            if turn == 1:
                wire("COPY", "k", "other")
                wire("RENAME", "other", "k")
            if rng.random() < 0.5:
                assert wire("SAVE") == "OK"
                wander(rng, wire, clock, "k", rng.choice((0, 10)))
            questions = asked(rng, start, clock.now_ms)
            wanted = replies(wire, "k", questions)
            wire.close()
            server.restart()
            wire = server.wire(3)
            assert replies(wire, "k", questions) == wanted
            checked(server, "k")
        wire.close()


def test_minus_zero_is_zero(tmp_path: Path) -> None:
    """Settings that are equal are the same to the digit, also once a base has them in common."""
    with Running(clock=Clock(), dir=tmp_path) as server:
        wire = server.wire(3)
        for key, zero in (("a", "0"), ("b", "-0")):
            wire("MEM.CREATE", key, "MODE", "SEARCH", "K1", zero, "B", zero, "WEIGHTS", zero, zero, zero, zero)
            wire("MEM.ADD", key, "ID", "n", "TEXT", "one two")
        questions = [["MEM.CONFIG"], ["MEM.QUERY", "TEXT", "one", "WITHSCORES", "EXPLAIN"]]
        wanted = [replies(wire, key, questions) for key in ("a", "b")]
        assert wanted[0] == wanted[1]
        assert wire("SAVE") == "OK"
        wire.close()
        server.restart()
        wire = server.wire(3)
        assert [replies(wire, key, questions) for key in ("a", "b")] == wanted
        wire.close()
