"""MEM.SCAN under churn: every record present from start to end is returned once, whatever happens meanwhile."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LONG
from harness import Running, Wire, scan
from hypothesis import given
from hypothesis import strategies as st

#: Between two pages: what to do, to which of forty ids.
CHURN = st.lists(
    st.tuples(st.sampled_from(["add", "replace", "del", "readd", "meta", "expire"]), st.integers(0, 39)), max_size=8
)


@given(before=st.sets(st.integers(0, 39)), pages=st.lists(st.tuples(st.integers(1, 7), CHURN), max_size=12))
def test_present_from_start_to_end_is_returned_once(
    server: Running, before: set[int], pages: list[tuple[int, list[tuple[str, int]]]]
) -> None:
    wire = server.wire()
    wire("FLUSHALL")
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    for i in before:
        wire("MEM.ADD", "ns", "ID", i, "TEXT", "t")
    there, throughout, ever = set(before), set(before), set(before)
    found: list[int] = []
    cursor = b"0"
    for count, churn in [*pages, (10, [])]:
        cursor, ids = wire("MEM.SCAN", "ns", cursor, "COUNT", count)
        found += map(int, ids)
        if cursor == b"0":
            break
        for what, i in churn:
            if what == "del":
                wire("MEM.DEL", "ns", i)
                there.discard(i)
                throughout.discard(i)
            elif what == "readd":
                wire("MEM.DEL", "ns", i)
                wire("MEM.ADD", "ns", "ID", i, "TEXT", "again")
                there.add(i)
                throughout.discard(i)
            elif what == "meta" and i in there:
                wire("MEM.SETMETA", "ns", i, "f", "v")
            elif what == "expire" and i in there:
                wire("MEM.EXPIRE", "ns", i, 1000)
            elif what in ("add", "replace"):
                wire("MEM.ADD", "ns", "ID", i, "TEXT", f"{what} {i}")
                there.add(i)
            ever |= there
    while cursor != b"0":
        cursor, ids = wire("MEM.SCAN", "ns", cursor)
        found += map(int, ids)
    once = [i for i in found if i in throughout]
    assert sorted(once) == sorted(throughout), "missing, or twice"
    assert set(found) <= ever
    wire.close()


@pytest.mark.parametrize("count", [1, 10, 333])
def test_a_scan_ends_while_records_come_and_go(wire: Wire, count: int) -> None:
    """One record is added and one deleted for each page: a scan that follows its own tail never ends."""
    chance = random.Random(count)
    size = 3000 if LONG else 600
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    wire("MEM.MADD", "ns", size, *(w for i in range(size) for w in ("RECORD", "ID", f"m{i}", "TEXT", "t")))
    doomed = {f"m{i}".encode() for i in chance.sample(range(size), size // 2)}
    left = sorted(doomed)
    chance.shuffle(left)
    found: list[bytes] = []
    for turn, record_id in enumerate(scan(wire, "ns", "COUNT", count)):
        found.append(record_id)
        assert turn < 4 * size
        if turn % count == 0:
            if left:
                wire("MEM.DEL", "ns", left.pop())
            if turn < size:
                wire("MEM.ADD", "ns", "ID", f"new{turn}", "TEXT", "t")
    stayed = {f"m{i}".encode() for i in range(size)} - doomed
    assert len(found) == len(set(found))
    assert stayed <= set(found)


def test_filtered_scans_are_complete(wire: Wire) -> None:
    """A page may be short or empty; the walk is complete all the same."""
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    wire("MEM.MADD", "ns", 500, *(w for i in range(500) for w in ("RECORD", "ID", i, "TEXT", "t", "META", "n", i)))
    expected = {b"%d" % i for i in range(450, 500)}
    for count in (1, 7, 1000):
        found = list(scan(wire, "ns", "COUNT", count, "FILTER", "n", "GTE", 450))
        assert sorted(found) == sorted(expected)


def test_count_is_ten(wire: Wire) -> None:
    """As in Redis; COUNT is a hint for the page's length."""
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    wire("MEM.MADD", "ns", 30, *(w for i in range(30) for w in ("RECORD", "TEXT", "t")))
    cursor, ids = wire("MEM.SCAN", "ns", 0)
    assert cursor != b"0"
    assert len(ids) == 10


def test_an_empty_memory_is_scanned_at_once(wire: Wire) -> None:
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    assert wire("MEM.SCAN", "ns", 0) == [b"0", []]
    assert wire("MEM.SCAN", "ns", 12345)[0] == b"0"


def test_a_cursor_lives_through_a_restart(running: Callable[..., Running], tmp_path: Path) -> None:
    server = running(dir=tmp_path)
    wire = server.wire()
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    wire("MEM.MADD", "ns", 50, *(w for i in range(50) for w in ("RECORD", "ID", i, "TEXT", "t")))
    wire("MEM.DEL", "ns", *range(0, 50, 3))
    cursor, first = wire("MEM.SCAN", "ns", 0, "COUNT", 15)
    server.restart()
    wire = server.wire()
    rest: list[bytes] = []
    while cursor != b"0":
        cursor, ids = wire("MEM.SCAN", "ns", cursor, "COUNT", 15)
        rest += ids
    assert sorted(first + rest) == sorted(b"%d" % i for i in range(50) if i % 3)
