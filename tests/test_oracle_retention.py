"""Who goes where a memory is full: against plain Python, that knows every record and every time a query returned it.

Each walk is run with a pass of its own, and with one that is kept (`EXACT` 0) while records come, go, change and are
used. With the clock standing still both must give the oracle's order to the last record; while it runs, a kept pass may
be off by what a thousandth of the half-life makes.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import islice

import pytest
from harness import JUNE, SECOND
from recalld.index import retention
from recalld.index.analyzer import Vocabulary
from recalld.index.memory import NEVER, Memory
from recalld.index.settings import ALL, Settings
from recalld.index.side import PIN, Extra

HALF_LIFE_S = 5_000
STEPS = 400


@dataclass
class Kept:
    """A record as the oracle has it."""

    importance: float
    updated_at: int
    order: int  # of first writing
    pinned: bool
    size: int
    returned: list[int] = field(default_factory=list)

    def retention(self, now: int) -> float:
        half_life = HALF_LIFE_S * 1000
        recency = 0.5 ** (max(0, now - self.updated_at) / half_life)
        uses = sum(0.5 ** ((now - then) / half_life) for then in self.returned)
        return (self.importance + recency + uses / (1 + uses)) / 3


class Both:
    """A memory and its oracle, changed together by chance."""

    def __init__(self, seed: int, history: int, moving: bool) -> None:
        self.rng = random.Random(seed)
        settings = Settings(mode="SEARCH", half_life=HALF_LIFE_S, max_records=1, history=history)
        self.memory = Memory(settings, Vocabulary(), JUNE)
        self.now = JUNE
        self.kept: dict[bytes, Kept] = {}
        self.written = 0
        self.moving = moving
        assert self.memory.record_bytes == 0  # counted from here on

    def put(self) -> None:
        rng = self.rng
        record_id = b"%d" % rng.randrange(120)
        # Few values, so that some are equal.
        importance, pinned = rng.choice((0.0, 0.25, 0.5, 0.5, 1.0)), rng.random() < 0.1
        updated = self.now - rng.choice((0, 0, 0, 1_000_000, 10_000_000, -50_000))
        valid_at = self.now + 30_000 if rng.random() < 0.1 else -NEVER
        known = min(updated, self.now)
        extra = Extra(known, known, valid_at=valid_at, flags=PIN if pinned else 0)
        text = b"words " * rng.randrange(1, 9)
        self.memory.put(
            record_id,
            text,
            b"",
            (b"field", b"value"),
            (b"tag",),
            importance=importance,
            created_at=updated,
            updated_at=updated,
            deadline=NEVER,
            max_words=100,
            at=self.now,
            extra=extra,
        )
        old = self.kept.pop(record_id, None)
        if old is None:
            self.written += 1
        size = len(record_id) + len(text) + len(b"fieldvaluetag")
        self.kept[record_id] = Kept(
            importance,
            updated,
            self.written if old is None else old.order,
            pinned,
            size,
            [] if old is None else old.returned,
        )

    def remove(self, record_id: bytes) -> None:
        self.memory.remove(record_id, self.now)
        del self.kept[record_id]

    def step(self) -> None:
        rng = self.rng
        what = rng.random()
        if what < 0.45 or not self.kept:
            self.put()
            return
        record_id = rng.choice(list(self.kept))
        if what < 0.55:
            self.remove(record_id)
        elif what < 0.75:
            self.memory.returned([record_id, b"nobody"], self.now)
            self.kept[record_id].returned.append(self.now)
        elif what < 0.8:
            self.memory.set_meta(record_id, (), self.now)
            self.kept[record_id].size = len(record_id) + len(self.memory.text(record_id) or b"") + len(b"tag")
        elif what < 0.81:
            self.memory.compact()
        elif what < 0.82:
            compaction = self.memory.compaction()
            compaction.build()
            self.memory.returned([record_id], self.now)
            self.kept[record_id].returned.append(self.now)
            self.put()
            compaction.install()
        elif self.moving:
            self.now += rng.choice((1, 40, 900))
            self.memory.expire(self.now)
        self.evict()

    def evict(self) -> None:
        """Some go, as the oracle has it."""
        slack = 2e-3 if self.moving and retention.EXACT == 0 else 1e-12
        wanted = self.order()
        # Seldom all of them, which makes a pass that has them all.
        some = len(wanted) if self.rng.random() < 0.02 else self.rng.choice((1, 1, 2, 5))
        places = list(islice(self.memory.least(self.now), some))
        gone = [place.id for place in places]
        assert len(gone) == min(some, len(wanted))
        worth = {record_id: kept.retention(self.now) for record_id, kept in self.kept.items()}
        for place, record_id, expected in zip(places, gone, wanted, strict=False):
            assert worth[record_id] == pytest.approx(worth[expected], abs=slack)
            assert self.memory.retention(place, self.now).retention == pytest.approx(worth[record_id], abs=1e-12)
        if slack < 1e-3:
            assert gone == wanted[: len(gone)]
        for record_id in gone[: self.rng.choice((0, 1, 2))]:
            self.remove(record_id)

    def order(self) -> list[bytes]:
        """Everybody who may go, in the order of going."""
        free = [record_id for record_id, kept in self.kept.items() if not kept.pinned]
        worth = {record_id: self.kept[record_id] for record_id in free}
        # What differs in the last bits only is equal, as it is for the formula.
        return sorted(
            free,
            key=lambda each: (round(worth[each].retention(self.now), 12), worth[each].updated_at, worth[each].order),
        )


@pytest.mark.parametrize("history", [0, ALL])
@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize("exact", [retention.EXACT, 0])
@pytest.mark.parametrize("seed", range(4))
def test_who_goes(monkeypatch: pytest.MonkeyPatch, seed: int, exact: int, moving: bool, history: int) -> None:
    monkeypatch.setattr(retention, "EXACT", exact)
    monkeypatch.setattr(retention, "_FEW", 1)
    monkeypatch.setattr(retention, "_MANY", 8)
    both = Both(seed, history, moving)
    for _ in range(STEPS):
        both.step()
        size = sum(kept.size for kept in both.kept.values())
        assert both.memory.record_bytes == size
    both.memory._bytes = -1  # as after a restart
    assert both.memory.record_bytes == size
    assert both.written > 100


def test_a_pass_serves_many_evictions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 300 records each pass picks 30: a record in and one out, 120 times, takes four passes."""
    monkeypatch.setattr(retention, "EXACT", 100)
    monkeypatch.setattr(retention, "_FEW", 1)
    monkeypatch.setattr(retention, "_MANY", 30)
    passes = []
    pick = retention.Picks._pick
    monkeypatch.setattr(retention.Picks, "_pick", lambda picks, count: (passes.append(count), pick(picks, count)))
    memory = Memory(Settings(mode="SEARCH", max_records=300), Vocabulary(), JUNE)

    def put(number: int) -> None:
        at = JUNE + number
        memory.put(
            b"%d" % number,
            b"t",
            b"",
            (),
            (),
            importance=0.5,
            created_at=at,
            updated_at=at,
            deadline=NEVER,
            max_words=9,
            at=at,
        )

    for number in range(300):
        put(number)
    for number in range(120):
        place = next(memory.least(JUNE + 300 + number))
        assert place.id == b"%d" % number
        memory.remove(place.id, JUNE + 300 + number)
        put(300 + number)
    assert passes == [30] * 4


def test_the_formula() -> None:
    """(0.8 + 0.5 + 0.6) / 3: a half-life old, returned once now and once a half-life ago."""
    memory = Memory(Settings(mode="SEARCH", half_life=10, max_records=5), Vocabulary(), JUNE)
    memory.put(
        b"a", b"t", b"", (), (), importance=0.8, created_at=0, updated_at=JUNE, deadline=NEVER, max_words=9, at=JUNE
    )
    memory.returned([b"a"], JUNE)
    memory.returned([b"a"], JUNE + 10 * SECOND)
    (place,) = memory.least(JUNE + 10 * SECOND)
    parts = memory.retention(place, JUNE + 10 * SECOND)
    assert parts == pytest.approx(((0.8 + 0.5 + 1.5 / 2.5) / 3, 0.8, 0.5, 0.6), abs=1e-15)


def test_a_memory_without_a_limit_counts_no_uses() -> None:
    memory = Memory(Settings(mode="SEARCH"), Vocabulary(), JUNE)
    memory.put(
        b"a", b"t", b"", (), (), importance=0.8, created_at=0, updated_at=JUNE, deadline=NEVER, max_words=9, at=JUNE
    )
    memory.returned([b"a"], JUNE)
    assert memory.table.uses is None


def test_a_copy_has_uses_of_its_own() -> None:
    memory = Memory(Settings(mode="SEARCH", half_life=10, max_records=5), Vocabulary(), JUNE)
    memory.put(
        b"a", b"t", b"", (), (), importance=0.0, created_at=0, updated_at=JUNE, deadline=NEVER, max_words=9, at=JUNE
    )
    memory.returned([b"a"], JUNE)
    twin = memory.copy()
    memory.returned([b"a"], JUNE)
    uses = [each.retention(next(each.least(JUNE)), JUNE).use for each in (memory, twin)]
    assert uses == pytest.approx([2 / 3, 1 / 2], abs=1e-15)
