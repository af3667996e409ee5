"""Deadlines, and the times that a record shows.

An expired record is gone at its deadline, exactly: never returned, never counted, and no score knows that it was there.
`updated_at` is when the text was last written, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from harness import DAY, JUNE, Clock, Running, Wire, Word, flat_pairs

QUERIES: list[tuple[Word, ...]] = [
    ("MEM.CARD", "ns"),
    ("MEM.SCAN", "ns", 0),
    ("MEM.LIST", "ns"),
    ("MEM.GET", "ns", "brief"),
    ("MEM.MGET", "ns", "brief", "lasting"),
    ("MEM.SEARCH", "ns", "alpha beta", "WITHSCORES"),
    ("MEM.VSEARCH", "ns", "FVEC", 2, 1, 2, "WITHSCORES"),
    ("MEM.QUERY", "ns", "TEXT", "alpha", "FVEC", 2, 1, 2, "WITHSCORES", "EXPLAIN"),
    ("MEM.QUERY", "ns", "TEXT", "alpha", "FVEC", 2, 1, 2, "FUSION", "RRF", "WITHSCORES"),
    ("MEM.FORGET", "ns", "FILTER", "@id", "EXISTS", 1, "DRYRUN"),
]


def record(wire: Wire, record_id: str = "a", key: str = "ns") -> dict[str, int]:
    """created_at, updated_at and pttl."""
    pairs = flat_pairs(wire("MEM.GET", key, record_id))
    return {name: int(pairs[name.encode()]) for name in ("created_at", "updated_at", "pttl")}


def info(wire: Wire, key: str = "ns") -> dict[bytes, object]:
    """MEM.INFO without its times and its size in memory."""
    pairs = flat_pairs(wire("MEM.INFO", key))
    return {name: value for name, value in pairs.items() if name not in (b"bytes", b"created_at", b"updated_at")}


@pytest.fixture
def ns(wire: Wire) -> Wire:
    wire("MEM.CREATE", "ns", "DIM", 2)
    return wire


# -- deadlines


def test_gone_at_the_deadline_exactly(ns: Wire, clock: Clock) -> None:
    """There a millisecond before; at the deadline every reply is that of a memory which never held it."""
    ns("MEM.ADD", "ns", "ID", "lasting", "TEXT", "alpha gamma", "FVEC", 2, 2, 1)
    ns("COPY", "ns", "never")
    ns("MEM.ADD", "ns", "ID", "brief", "TEXT", "alpha beta", "FVEC", 2, 1, 2, "TTL", 10)
    clock.advance(9_999)
    assert flat_pairs(ns("MEM.GET", "ns", "brief"))[b"pttl"] == b"1"
    for command, _, *words in QUERIES:
        assert ns.raw(command, "ns", *words) != ns.raw(command, "never", *words), command
    clock.advance(1)
    for command, _, *words in QUERIES:
        assert ns.raw(command, "ns", *words) == ns.raw(command, "never", *words), command
    assert info(ns, "ns") == info(ns, "never")


@pytest.mark.parametrize("query", QUERIES, ids=lambda query: " ".join(map(str, query[:3])))
def test_each_read_alone_sees_the_deadline(ns: Wire, clock: Clock, query: tuple[Word, ...]) -> None:
    """Whichever command is the first after it."""
    ns("MEM.ADD", "ns", "ID", "lasting", "TEXT", "alpha", "FVEC", 2, 2, 1, "AT", JUNE - DAY)
    ns("MEM.ADD", "ns", "ID", "brief", "TEXT", "alpha", "FVEC", 2, 1, 2, "TTL", 1)
    clock.advance(1_000)
    assert b"brief" not in ns.raw(*query)


def test_writes_find_no_expired_record(ns: Wire, clock: Clock) -> None:
    for name in "abcdef":
        ns("MEM.ADD", "ns", "ID", name, "TEXT", "t", "TTL", 1)
    clock.advance(1_000)
    assert ns("MEM.DEL", "ns", "a") == 0
    assert ns("MEM.EXPIRE", "ns", "b", 100) == 0
    assert ns("MEM.EXPIRE", "ns", "b", 0) == 0
    assert ns.error("MEM.SETMETA", "ns", "c", "f", "v") == "ERR no such record"
    assert ns.error("MEM.DELMETA", "ns", "c", "f") == "ERR no such record"
    assert ns.error("MEM.ADD", "ns", "ID", "d", "TEXT", "t", "XX") == "ERR record existence condition not met"
    assert ns("MEM.ADD", "ns", "ID", "e", "TEXT", "t", "NX") == b"e"
    assert ns("MEM.FORGET", "ns", "FILTER", "@id", "EXISTS", 1) == [1, [b"e"]]


@pytest.mark.parametrize("end", ["expired", "deleted"])
def test_an_id_starts_afresh(ns: Wire, clock: Clock, end: str) -> None:
    old = ("FVEC", 2, 1, 0, "META", "f", "v", "TAGS", 1, "t", "IMPORTANCE", 1)
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t", *old, "TTL", 1)
    clock.advance(1_000 if end == "expired" else 500)
    if end == "deleted":
        ns("MEM.DEL", "ns", "a")
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t")
    again = flat_pairs(ns("MEM.GET", "ns", "a", "WITHMETA", "WITHVEC"))
    assert b"tags" not in again
    assert (again[b"meta"], again.get(b"vector"), again[b"importance"], again[b"pttl"]) == ([], None, b"0.5", b"-1")
    assert record(ns)["created_at"] == clock.now_ms


def test_an_expired_id_is_not_given_again(ns: Wire, clock: Clock) -> None:
    assert ns("MEM.ADD", "ns", "TEXT", "t", "TTL", 1) == b"1"
    clock.advance(1_000)
    assert ns("MEM.ADD", "ns", "TEXT", "t") == b"2"
    ns("MEM.DEL", "ns", "2")
    assert ns("MEM.ADD", "ns", "TEXT", "t") == b"3"


def test_the_counter_lives_as_long_as_its_key(ns: Wire) -> None:
    assert [ns("MEM.ADD", "ns", "TEXT", "t") for _ in range(3)] == [b"1", b"2", b"3"]
    ns("DEL", "ns")
    ns("MEM.CREATE", "ns", "MODE", "SEARCH")
    assert ns("MEM.ADD", "ns", "TEXT", "t") == b"1"


def test_expire_sets_and_clears(ns: Wire, clock: Clock) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "TTL", 5)
    clock.advance(4_000)
    assert record(ns)["pttl"] == 1_000
    assert ns("MEM.EXPIRE", "ns", "a", 60) == 1
    assert record(ns)["pttl"] == 60_000
    clock.advance(59_999)
    assert ns("MEM.EXPIRE", "ns", "a", 0) == 1
    clock.advance(10 * DAY)
    assert record(ns)["pttl"] == -1


def test_replacing_keeps_the_deadline_that_it_does_not_name(ns: Wire, clock: Clock) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "TTL", 10)
    clock.advance(4_000)
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "new")
    assert record(ns)["pttl"] == 6_000
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "newer", "TTL", 20)
    assert record(ns)["pttl"] == 20_000


def test_ttl_counts_from_now_whatever_at_says(ns: Wire) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "AT", JUNE - 100 * DAY, "TTL", 10)
    assert record(ns) == {"created_at": JUNE - 100 * DAY, "updated_at": JUNE - 100 * DAY, "pttl": 10_000}


def test_the_longest_ttl(ns: Wire) -> None:
    """Ten thousand years."""
    years = 10_000 * 365 * DAY // 1000
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "TTL", years)
    assert record(ns)["pttl"] == years * 1000


def test_records_and_keys_expire_apart(ns: Wire, clock: Clock) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "TTL", 5)
    ns("MEM.ADD", "ns", "ID", "b", "TEXT", "t")
    assert ns("TTL", "ns") == -1
    ns("EXPIRE", "ns", 10)
    assert (record(ns, "a")["pttl"], record(ns, "b")["pttl"]) == (5_000, -1)
    clock.advance(5_000)
    assert (ns("MEM.CARD", "ns"), ns("TTL", "ns")) == (1, 5)
    clock.advance(4_999)
    assert ns("EXISTS", "ns") == 1
    clock.advance(1)
    assert ns("EXISTS", "ns") == 0
    assert ns.error("MEM.CARD", "ns") == "ERR no such memory index"
    assert ns("DBSIZE") == 0


def test_a_memory_stays_when_its_last_record_expires(ns: Wire, clock: Clock) -> None:
    ns("MEM.ADD", "ns", "TEXT", "t", "TTL", 1)
    clock.advance(DAY)
    assert (ns("EXISTS", "ns"), ns("MEM.CARD", "ns"), ns("TYPE", "ns")) == (1, 0, "memory")


def test_copies_and_renamed_keys_keep_deadlines(ns: Wire, clock: Clock) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "TTL", 5)
    ns("EXPIRE", "ns", 60)
    ns("COPY", "ns", "twin")
    ns("RENAME", "ns", "new")
    clock.advance(4_999)
    assert [ns("MEM.CARD", key) for key in ("twin", "new")] == [1, 1]
    clock.advance(1)
    assert [ns("MEM.CARD", key) for key in ("twin", "new")] == [0, 0]
    assert [ns("TTL", key) for key in ("twin", "new")] == [55, 55]


def test_deadlines_pass_while_the_server_is_down(running: Callable[..., Running], tmp_path: Path) -> None:
    clock = Clock()
    server = running(clock=clock, dir=tmp_path)
    wire = server.wire()
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    wire("MEM.CREATE", "gone", "MODE", "SEARCH")
    wire("MEM.ADD", "ns", "ID", "brief", "TEXT", "alpha", "TTL", 5)
    wire("MEM.ADD", "ns", "ID", "longer", "TEXT", "alpha", "TTL", 60)
    wire("PEXPIRE", "gone", 1_000)
    server.stop()
    clock.advance(5_000)
    server.start()
    wire = server.wire()
    assert [hit[0] for hit in wire("MEM.SEARCH", "ns", "alpha")] == [b"longer"]
    assert wire("DBSIZE") == 1
    assert record(wire, "longer")["pttl"] == 55_000


# -- the times of a record


def test_what_touches_updated_at(ns: Wire, clock: Clock) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "META", "f", "v")
    clock.advance(1_000)
    ns("MEM.SETMETA", "ns", "a", "g", "w")
    ns("MEM.DELMETA", "ns", "a", "f")
    ns("MEM.EXPIRE", "ns", "a", 100)
    ns("MEM.GET", "ns", "a")
    ns("MEM.SEARCH", "ns", "t")
    assert record(ns) == {"created_at": JUNE, "updated_at": JUNE, "pttl": 100_000}
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t")
    assert record(ns)["updated_at"] == JUNE + 1_000
    assert record(ns)["created_at"] == JUNE


def test_at_sets_the_time_of_writing_and_may_lower_it(ns: Wire, clock: Clock) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "AT", "2026-05-01")
    may = JUNE - 31 * DAY
    assert record(ns) == {"created_at": may, "updated_at": may, "pttl": -1}
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "u")
    assert record(ns) == {"created_at": may, "updated_at": JUNE, "pttl": -1}
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "v", "AT", may + 5)
    assert record(ns) == {"created_at": may, "updated_at": may + 5, "pttl": -1}
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "w", "AT", may - 5)
    assert record(ns)["created_at"] == may
    ns("MEM.ADD", "ns", "ID", "b", "TEXT", "t", "AT", -1_000)
    assert record(ns, "b")["created_at"] == -1_000


def test_one_command_one_time(ns: Wire, clock: Clock) -> None:
    ns("MEM.MADD", "ns", 3, *("RECORD", "TEXT", "t") * 3)
    assert {record(ns, name)["created_at"] for name in ("1", "2", "3")} == {clock.now_ms}


def test_replacing_keeps_what_it_does_not_name(ns: Wire) -> None:
    """Meta is merged; tags, importance and the rest stay; the vector stays with the text it described."""
    given = ("META", "f", 1, "META", "g", 2, "TAGS", 2, "x", "y", "IMPORTANCE", "0.9")
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "FVEC", 2, 1, 0, *given)
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "META", "g", 3, "META", "h", 4)
    kept = flat_pairs(ns("MEM.GET", "ns", "a", "WITHMETA", "WITHVEC", "FLOATS"))
    assert flat_pairs(kept[b"meta"]) == {b"f": b"1", b"g": b"3", b"h": b"4"}
    assert (kept[b"tags"], kept[b"importance"], kept[b"vector"]) == ([b"x", b"y"], b"0.9", [b"1", b"0"])
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "TAGS", 1, "z", "IMPORTANCE", 0)
    replaced = flat_pairs(ns("MEM.GET", "ns", "a"))
    assert (replaced[b"tags"], replaced[b"importance"]) == ([b"z"], b"0")
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "TAGS", 0)
    assert b"tags" not in flat_pairs(ns("MEM.GET", "ns", "a"))


@pytest.mark.parametrize(
    ("mode", "text", "words", "expected"),
    [
        ("HYBRID", "old", (), [b"1", b"0"]),
        ("HYBRID", "new", (), None),
        ("HYBRID", "new", ("KEEPVEC",), [b"1", b"0"]),
        ("HYBRID", "new", ("FVEC", 2, 0, 2), [b"0", b"1"]),
        ("HYBRID", "old", ("FVEC", 2, 0, 2, "KEEPVEC"), [b"0", b"1"]),
        ("VECTOR", "old", (), [b"1", b"0"]),
        ("VECTOR", "new", ("KEEPVEC",), [b"1", b"0"]),
        ("VECTOR", "new", ("FVEC", 2, 0, 2), [b"0", b"1"]),
    ],
)
def test_the_vector_of_a_replaced_record(
    wire: Wire, mode: str, text: str, words: tuple[Word, ...], expected: list[bytes] | None
) -> None:
    wire("MEM.CREATE", "ns", "MODE", mode, "DIM", 2)
    wire("MEM.ADD", "ns", "ID", "a", "TEXT", "old", "FVEC", 2, 1, 0)
    wire("MEM.ADD", "ns", "ID", "a", "TEXT", text, *words)
    assert flat_pairs(wire("MEM.GET", "ns", "a", "WITHVEC", "FLOATS")).get(b"vector") == expected


def test_the_clock_may_stand_before_a_records_time(ns: Wire) -> None:
    """A future time scores 1 for recency."""
    ns("MEM.ADD", "ns", "ID", "future", "TEXT", "alpha", "AT", JUNE + DAY)
    ns("MEM.ADD", "ns", "ID", "now", "TEXT", "alpha")
    ns("MEM.ADD", "ns", "ID", "week", "TEXT", "alpha", "AT", JUNE - 7 * DAY)
    hits = ns("MEM.QUERY", "ns", "TEXT", "alpha", "WEIGHTS", 0, 0, 1, 0, "NOTEXT", "WITHSCORES")
    recency = {hit[0]: float(flat_pairs(hit[1])[b"recency"]) for hit in hits}
    assert recency == {b"future": 1.0, b"now": 1.0, b"week": 0.5}
    assert [hit[0] for hit in hits] == [b"future", b"now", b"week"]


def test_recency_halves_as_told(ns: Wire, clock: Clock) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha")
    ns("MEM.CONFIG", "ns", "HALFLIFE", 60)
    clock.advance(120_000)
    query = ("MEM.QUERY", "ns", "TEXT", "alpha", "WEIGHTS", 0, 0, 1, 0, "NOTEXT", "WITHSCORES")
    assert flat_pairs(ns(*query)[0][1])[b"score"].startswith(b"0.25")
    assert flat_pairs(ns(*query, "HALFLIFE", 120)[0][1])[b"score"].startswith(b"0.5")


@pytest.mark.parametrize("at", [JUNE, JUNE - DAY])
def test_memory_times(wire: Wire, clock: Clock, at: int) -> None:
    """created_at is MEM.CREATE's time, updated_at that of the last change, whatever AT says."""
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    clock.advance(1_000)
    wire("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "AT", at)
    clock.advance(1_000)
    wire("MEM.SEARCH", "ns", "t")
    times = flat_pairs(wire("MEM.INFO", "ns"))
    assert (times[b"created_at"], times[b"updated_at"]) == (JUNE, JUNE + 1_000)
