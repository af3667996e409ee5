"""What a record is worth keeping: where a memory is full, the least of it goes.

    retention  = (importance + recency + use) / 3          each part, and so the whole, is 0 to 1
    importance   the stored value
    recency      0.5 ** (age / half-life), age since updated_at; a future time counts 1: as a query has it
    use          u / (1 + u), u = sum of 0.5 ** (age / half-life) over the times that a query returned the record

Equal retention: the older updated_at goes first, then the one that was first written first. One with PIN never goes.
Uses are counted in memories that have a limit, and only in the process's memory: after a restart they begin at none.

Rule 1: finding the least must not cost a write a look at every record. One pass picks the first few; they are kept,
        and what is written or used later is looked at by itself, as of the time of that pass. Retention sinks with
        time, each record's by another amount: so a pass serves a thousandth of the half-life, or a second, not more.
Rule 2: up to EXACT rows a pass is so cheap that every choice makes its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .columns import DEAD_AT, IMPORTANCE, SERIAL, UPDATED, VROW, Table
from .side import FLAGS, KNOWN_TO, NEVER, PIN, Fact

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

#: Rows of a memory up to which retention is taken as of now, for each choice.
EXACT = 4096
# How many a pass picks: of few rows, of many, and the part of these that it is at least. A pass over a million rows
# takes about 30 ms, 70 the first time, so that is some 2 microseconds for each record that goes; 20 go to the one row
# that was written since.
_FEW, _MANY, _PART = 16, 1024, 64


class Uses:
    """How often queries returned the rows of a table: counts, each faded to a time of its own. Rows beyond are at 0."""

    __slots__ = ("_at", "_count")

    def __init__(self, size: int) -> None:
        self._count = np.zeros(size, np.float64)
        self._at = np.zeros(size, np.int64)  # unix ms

    def add(self, slot: int, now: int, half_life_ms: float) -> None:
        """A query returned the row."""
        count = float(self.faded(np.array([slot]), now, half_life_ms)[0]) + 1.0
        self._set(slot, count, max(now, self.last(slot)))

    def last(self, slot: int) -> int:
        """When it was last returned; 0: never."""
        return int(self._at[slot]) if slot < len(self._at) else 0

    def faded(self, slots: Int64s, now: int, half_life_ms: float) -> Floats:
        """The counts of these rows as of `now`."""
        found = np.zeros(len(slots), np.float64)
        here = slots < len(self._count)
        rows = slots[here]
        found[here] = self._count[rows] * np.exp2(np.minimum(self._at[rows] - now, 0) / half_life_ms)
        return found

    def carry(self, slot: int, other: Uses, old: int) -> None:
        """The record at `old` in the other table is at `slot` here from now on."""
        if other.last(old):
            self._set(slot, float(other._count[old]), other.last(old))

    def _set(self, slot: int, count: float, at: int) -> None:
        if slot >= len(self._count):
            more = max(slot + 1, len(self._count) + (len(self._count) >> 1)) - len(self._count)
            self._count = np.concatenate((self._count, np.zeros(more, np.float64)))
            self._at = np.concatenate((self._at, np.zeros(more, np.int64)))
        self._count[slot] = count
        self._at[slot] = at

    def taken(self, keep: Int64s) -> Uses:
        """Those of these rows, by ascending slot."""
        twin = Uses(0)
        rows = keep[: int(np.searchsorted(keep, len(self._count)))]
        twin._count, twin._at = self._count[rows], self._at[rows]
        return twin

    def copy(self) -> Uses:
        """An independent twin."""
        twin = Uses(0)
        twin._count, twin._at = self._count.copy(), self._at.copy()
        return twin

    def nbytes(self) -> int:
        return self._count.nbytes + self._at.nbytes + 300


def record_bytes(
    record_id: bytes, text: bytes, vector_bytes: int, meta: Sequence[bytes], tags: Sequence[bytes], fact: Fact | None
) -> int:
    """What a record counts for MAXBYTES: its id, text, vector, metadata and tags, and a fact's quote."""
    total = len(record_id) + len(text) + vector_bytes + sum(map(len, meta)) + sum(map(len, tags))
    return total if fact is None else total + len(fact.quote)


def bytes_of_rows(table: Table, slots: list[int], dim: int) -> int:
    """What these records of a table count; a hundred thousand of them in about 20 ms."""
    total = 0
    for words in (table.ids, table.texts):
        total += sum(map(len, [words[slot] for slot in slots]))
    for held in (table.metas, table.tags):
        total += sum(map(len, chain.from_iterable([held[slot] for slot in slots])))
    total += 4 * dim * int(np.count_nonzero(table.narrow[VROW, slots] >= 0)) if slots else 0
    if table.side is not None:
        facts = table.side.facts
        total += sum(len(fact.quote) for slot in slots if (fact := facts[slot]) is not None)
    return total


class Parts(NamedTuple):
    """A record's retention and what it is made of."""

    retention: float
    importance: float
    recency: float
    use: float


class Place(NamedTuple):
    """A current record and where it is."""

    id: bytes
    table: Table
    slot: int


def parts(table: Table, slot: int, now: int, half_life_ms: float) -> Parts:
    """The retention of one record as of `now`."""
    columns = _columns(table, np.array([slot]), now, half_life_ms)
    importance, recency, use = (float(column[0]) for column in columns)
    return Parts((importance + recency + use) / 3.0, importance, recency, use)


def _columns(table: Table, slots: Int64s, now: int, half_life_ms: float) -> tuple[Floats, Floats, Floats]:
    """Importance, recency and use of these rows."""
    importance: Floats = table.wide[IMPORTANCE].view(np.float64)[slots]
    recency = np.exp2(np.minimum(table.wide[UPDATED][slots] - now, 0) / half_life_ms)
    if table.uses is None:
        return importance, recency, np.zeros(len(slots), np.float64)
    count = table.uses.faded(slots, now, half_life_ms)
    return importance, recency, count / (1.0 + count)


def _evictable(table: Table, start: int) -> Int64s:
    """The slots from `start` on of current records without a PIN."""
    mask = table.wide[DEAD_AT, start : table.n] == NEVER
    if table.side is not None:
        cols = table.side.cols[:, start : table.n]
        mask &= (cols[KNOWN_TO] == NEVER) & (cols[FLAGS] & PIN == 0)
    slots: Int64s = start + np.flatnonzero(mask)
    return slots


# Of a record: retention, updated_at, serial, and where it is: the number of its table, its slot. Ascending is who goes.
_Pick = tuple[float, int, int, int, int]
_LAST: _Pick = (np.inf, 0, 0, 0, 0)


class Picks:
    """The records of a memory that go first, kept from one choice to the next."""

    __slots__ = ("_at", "_half_life_ms", "_heap", "_out", "_seen", "_tables", "_until")

    def __init__(self) -> None:
        self._at = 0  # when the pass was, unix ms
        self._half_life_ms = 0.0
        self._tables: list[Table] = []
        self._seen: list[int] = []  # how many rows of each have been looked at
        self._heap: list[_Pick] = []
        self._out: list[_Pick] = []  # what the last walk gave: whoever was not evicted is still to go
        self._until = _LAST  # who comes behind this one may not be in the heap

    def walk(self, tables: list[Table], half_life_ms: float, now: int) -> Iterator[Place]:
        """The records that may be evicted, the one that goes first first. Nothing may change meanwhile."""
        rows = sum(table.n for table in tables)
        count = _FEW if rows <= EXACT else max(_MANY, rows // _PART)
        if self._is_stale(tables, rows, half_life_ms, now):
            self._at, self._half_life_ms, self._tables = now, half_life_ms, tables
            self._pick(count)
        else:
            self._look_at_new()
            for pick in self._out:
                heappush(self._heap, pick)
            self._out = []
        given: set[tuple[int, int]] = set()
        while True:
            if not self._heap or self._heap[0] > self._until:
                if self._until == _LAST:
                    return
                self._at = now
                self._pick(max(count, 8 * (len(given) + _FEW)))
                continue
            pick = heappop(self._heap)
            number, slot = pick[3:]
            table = tables[number]
            if table.wide[DEAD_AT, slot] != NEVER:
                continue
            if table.uses is not None and table.uses.last(slot) >= self._at:
                again = self._picks(number, np.array([slot]))[0]
                if again > pick:  # it was used since
                    heappush(self._heap, again)
                    continue
            self._out.append(pick)
            if (number, slot) not in given:
                given.add((number, slot))
                yield Place(table.ids[slot], table, slot)

    def nbytes(self) -> int:
        return 250 * (len(self._heap) + len(self._out)) + 500

    def _is_stale(self, tables: list[Table], rows: int, half_life_ms: float, now: int) -> bool:
        if rows <= EXACT or half_life_ms != self._half_life_ms or len(tables) != len(self._tables):
            return True
        if any(new is not old for new, old in zip(tables, self._tables, strict=True)):
            return True
        return not 0 <= now - self._at <= max(half_life_ms / 1000, 1000)

    def _pick(self, count: int) -> None:
        """Look at all records, and keep the `count` that go first."""
        self._out, self._seen = [], [table.n for table in self._tables]
        slots = [_evictable(table, 0) for table in self._tables]
        retention = np.concatenate(
            [self._retention(table, some) for table, some in zip(self._tables, slots, strict=True)]
        )
        places = np.arange(len(retention))
        is_part = len(retention) > count
        if is_part:
            # Those that are worth as much as the last one that fits stay in: the order tells.
            places = np.flatnonzero(retention <= np.partition(retention, count - 1)[count - 1])
        numbers = np.repeat(np.arange(len(slots)), [len(some) for some in slots])[places]
        chosen = np.concatenate(slots)[places]
        updated, serials = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        for number, table in enumerate(self._tables):
            of_it = numbers == number
            updated[of_it] = table.wide[UPDATED][chosen[of_it]]
            serials[of_it] = table.wide[SERIAL][chosen[of_it]]
        order = np.lexsort((serials, updated, retention[places]))[:count]
        columns = (retention[places], updated, serials, numbers, chosen)
        self._heap = list(zip(*(column[order].tolist() for column in columns), strict=True))
        self._until = self._heap[-1] if is_part else _LAST

    def _look_at_new(self) -> None:
        """Of the rows that came since, keep those that go before the last that is kept."""
        for number, table in enumerate(self._tables):
            slots = _evictable(table, self._seen[number])
            self._seen[number] = table.n
            for pick in self._picks(number, slots) if len(slots) else ():
                if pick <= self._until:
                    heappush(self._heap, pick)

    def _picks(self, number: int, slots: Int64s) -> list[_Pick]:
        table = self._tables[number]
        updated, serials = table.wide[UPDATED][slots].tolist(), table.wide[SERIAL][slots].tolist()
        retention = self._retention(table, slots).tolist()
        return list(zip(retention, updated, serials, [number] * len(slots), slots.tolist(), strict=True))

    def _retention(self, table: Table, slots: Int64s) -> Floats:
        importance, recency, use = _columns(table, slots, self._at, self._half_life_ms)
        total: Floats = (importance + recency + use) / 3.0
        return total
