"""Deadlines over restarts: absolute times, what expired while the server was down is gone, and clocks that jump."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from harness import DAY, HOUR, JUNE, Clock, Running, Wire, WireError, Word, scan

#: How a state comes back: from the entries, or from a base.
WAYS = pytest.mark.parametrize("way", ["entries", "base"])


class Timed:
    def __init__(self, folder: Path) -> None:
        self.clock = Clock(JUNE)
        self.server = Running(clock=self.clock, dir=folder)
        self.server.start()
        self.wire = self.server.wire(3)
        self.wire("MEM.CREATE", "k", "MODE", "SEARCH")

    def restart(self, way: str, later_ms: int = 0) -> Wire:
        """Stop, let time pass, and start again."""
        if way == "base":
            assert self.wire("SAVE") == "OK"
        self.wire.close()
        self.server.stop()
        self.clock.advance(later_ms)
        self.server.start()
        self.wire = self.server.wire(3)
        return self.wire

    def pttl(self, record_id: str) -> Any:
        record = self.wire("MEM.GET", "k", record_id)
        return None if record is None else record[b"pttl"]


@pytest.fixture
def timed(tmp_path: Path) -> Iterator[Timed]:
    timed = Timed(tmp_path)
    yield timed
    timed.wire.close()
    timed.server.stop()


@WAYS
def test_deadlines_are_absolute(timed: Timed, way: str) -> None:
    """Time goes on while the server is down; to the millisecond."""
    timed.wire("MEM.ADD", "k", "ID", "a", "TEXT", "alpha", "TTL", 60)
    timed.wire("MEM.ADD", "k", "ID", "b", "TEXT", "beta")
    timed.wire("MEM.EXPIRE", "k", "b", 90)
    timed.wire("PEXPIRE", "k", 100_000)
    wire = timed.restart(way, 59_999)
    assert (timed.pttl("a"), timed.pttl("b"), wire("PTTL", "k")) == (1, 30_001, 40_001)
    assert wire("PEXPIRETIME", "k") == JUNE + 100_000
    timed.clock.advance(1)
    assert wire("MEM.GET", "k", "a") is None
    assert wire("MEM.SEARCH", "k", "alpha") == []
    assert wire("MEM.CARD", "k") == 1
    timed.clock.advance(30_000)
    assert wire("MEM.CARD", "k") == 0
    timed.clock.advance(9_999)
    assert wire("EXISTS", "k") == 1
    timed.clock.advance(1)
    assert wire("EXISTS", "k") == 0


@WAYS
def test_what_expired_while_the_server_was_down_is_gone(timed: Timed, way: str) -> None:
    """Records and keys; the id starts afresh, and nothing of it is counted."""
    timed.wire("MEM.ADD", "k", "ID", "a", "TEXT", "alpha", "META", "f", "old", "TTL", 60)
    timed.wire("MEM.ADD", "k", "ID", "b", "TEXT", "beta")
    timed.wire("COPY", "k", "gone")
    timed.wire("PEXPIRE", "gone", 60_000)
    wire = timed.restart(way, 60_000)
    assert wire("DBSIZE") == 1
    assert wire("EXISTS", "gone") == 0
    assert wire("MEM.CARD", "k") == 1
    assert wire("MEM.SCAN", "k", 0) == [b"0", [b"b"]]
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "again")
    assert wire("MEM.GET", "k", "a", "WITHMETA")[b"meta"] == {}
    wire = timed.restart(way)
    assert wire("MEM.GET", "k", "a")[b"text"] == b"again"


@WAYS
def test_cleared_deadlines_stay_cleared(timed: Timed, way: str) -> None:
    """MEM.EXPIRE 0, PERSIST, and deadlines that COPY and RENAME carry along."""
    timed.wire("MEM.ADD", "k", "ID", "a", "TEXT", "alpha", "TTL", 60)
    timed.wire("MEM.EXPIRE", "k", "a", 0)
    timed.wire("PEXPIRE", "k", 60_000)
    timed.wire("COPY", "k", "copied")
    timed.wire("COPY", "k", "renamed")
    timed.wire("RENAME", "renamed", "moved")
    timed.wire("PERSIST", "k")
    wire = timed.restart(way, 30_000)
    assert [wire("PTTL", key) for key in ("k", "copied", "moved")] == [-1, 30_000, 30_000]
    wire = timed.restart(way, 30_000)
    assert wire("KEYS", "*") == [b"k"]
    assert timed.pttl("a") == -1


@WAYS
def test_counters_survive_expiry(timed: Timed, way: str) -> None:
    """An id that was issued is never issued again, expired or not, restarted or not."""
    assert [timed.wire("MEM.ADD", "k", "TEXT", "t", "TTL", 60) for _ in range(3)] == [b"1", b"2", b"3"]
    wire = timed.restart(way, HOUR)
    assert wire("MEM.CARD", "k") == 0
    assert wire("MEM.ADD", "k", "TEXT", "t") == b"4"


@WAYS
def test_a_clock_that_jumps_back_a_year(timed: Timed, way: str) -> None:
    """Records of the future are records; nothing is lost, and TTLs count from the new now."""
    timed.wire("MEM.ADD", "k", "ID", "a", "TEXT", "alpha")
    timed.wire("MEM.ADD", "k", "ID", "b", "TEXT", "beta", "TTL", 60)
    timed.clock.advance(-365 * DAY)
    timed.wire("MEM.ADD", "k", "ID", "c", "TEXT", "gamma", "TTL", 60)
    timed.wire("MEM.ADD", "k", "ID", "a", "TEXT", "alpha again")
    wire = timed.restart(way)
    assert wire("MEM.SCAN", "k", 0) == [b"0", [b"a", b"b", b"c"]]
    assert timed.pttl("c") == 60_000
    timed.clock.advance(60_000)
    assert wire("MEM.SCAN", "k", 0) == [b"0", [b"a", b"b"]]


@pytest.mark.parametrize("seed", range(6))
def test_a_clock_that_jumps_about_loses_nothing(timed: Timed, seed: int) -> None:
    """Writes of all kinds, rewrites and restarts while the clock jumps back and forth over every deadline.

    Records without a deadline in keys without one are all there, as they were; the rest is never shown behind its
    deadline; and whatever the order of times, the log loads.
    """
    rng = Random(seed)
    keys, ids = ["k", "l", "m"], [f"r{number}" for number in range(8)]
    for _ in range(40):
        for _ in range(12):
            timed.clock.now_ms = JUNE + rng.randint(-20_000, 20_000)
            key, other, record = rng.choice(keys), rng.choice(keys), rng.choice(ids)
            ttl: list[Word] = ["TTL", rng.randint(1, 15)] if rng.random() < 0.5 else []
            command: list[Word] = rng.choice(
                [
                    ["MEM.ADD", key, "ID", record, "TEXT", f"text {rng.random()}", *ttl],
                    ["MEM.ADD", key, "ID", record, "TEXT", f"text {rng.random()}", *ttl],
                    ["MEM.ADD", key, "TEXT", f"text {rng.random()}", *ttl],
                    ["MEM.EXPIRE", key, record, rng.choice((0, 5, 10))],
                    ["MEM.SETMETA", key, record, "f", rng.random()],
                    ["MEM.DEL", key, record],
                    ["PEXPIRE", key, rng.choice((5_000, 10_000, 10**9))],
                    ["PERSIST", key],
                    ["COPY", key, other, "REPLACE"],
                    ["RENAME", key, other],
                    ["MEM.CREATE", key, "MODE", "SEARCH"],
                ]
            )
            reply = timed.wire.pipeline(command)[0]
            assert "internal" not in str(reply), (command, reply)
        timed.clock.now_ms = JUNE + rng.randint(-20_000, 20_000)
        before = lasting(timed.wire, keys)
        wire = timed.restart(rng.choice(("entries", "entries", "base")))
        after = lasting(wire, keys)
        for key, records in before.items():
            assert {record: after[key][record] for record in records} == records


def lasting(wire: Wire, keys: list[str]) -> dict[str, dict[bytes, Any]]:
    """The records without a deadline, by key; those with one are looked at, too."""
    found: dict[str, dict[bytes, Any]] = {}
    for key in keys:
        if wire("PTTL", key) != -1:
            continue
        found[key] = {}
        try:
            ids = list(scan(wire, key))
        except WireError:
            continue
        for record_id in ids:
            record = wire("MEM.GET", key, record_id, "WITHMETA")
            assert record[b"pttl"] == -1 or record[b"pttl"] > 0
            if record.pop(b"pttl") == -1:
                found[key][record_id] = record
    return found
