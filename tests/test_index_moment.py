"""Which rows show at (t, k), against a list of all versions and the rules as loops; and the statistics they give."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recalld.index.analyzer import Vocabulary
from recalld.index.memory import Memory
from recalld.index.moment import joined
from recalld.index.query import Query
from recalld.index.ranking import run
from recalld.index.settings import ALL, Settings
from recalld.index.side import FACT, NEVER, Extra, Fact

BASE = Settings(mode="HYBRID", dim=2)
IDS = (b"a", b"b", b"c")
VECTORS = (b"", b"\0\0\x80?\0\0\0\0", b"\0\0\0\0\0\0\x80?")


@dataclass
class Version:
    """One state of one record."""

    id: bytes
    text: bytes
    vector: bytes
    written: int
    since: int
    known_to: int
    valid_at: int
    valid_until: int
    invalid_at: int
    fact: bool


class BitemporalOracle:
    """Every version there was, in the order of coming."""

    def __init__(self, history: int) -> None:
        self.history = history
        self.versions: list[Version] = []

    def current(self, record_id: bytes) -> Version | None:
        return next((v for v in self.versions if v.id == record_id and v.known_to == NEVER), None)

    def begins(self, record_id: bytes, since: int) -> None:
        """Versions of the id end when one begins, or at their deletion."""
        for version in self.versions:
            if version.id == record_id and version.known_to > since:
                version.known_to = since
        self.versions = [v for v in self.versions if v.known_to > v.since]

    def put(self, version: Version) -> None:
        self.begins(version.id, version.since)
        self.versions.append(version)

    def shown(self, t: int, k: int, now: int) -> list[Version]:
        """The rules, one by one."""
        horizon = {0: now, ALL: -NEVER}.get(self.history, now - self.history * 1000)
        m, found = min(t, k), []
        for v in self.versions:
            if v.known_to <= horizon:
                continue
            since = v.since if v.since > horizon else v.written
            dated = v.valid_at > -NEVER
            known = since <= (k if dated else m) < v.known_to
            ends = v.invalid_at <= (t if v.since > horizon or k >= now else m)
            if known and v.valid_at <= t and t < v.valid_until and not ends:
                found.append(v)
        latest = {v.id: v for v in sorted(found, key=lambda v: v.since)}
        return [v for v in found if latest[v.id] is v]


@st.composite
def writes(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    """(what, id, milliseconds passed since the last write, details ..)."""
    step = st.one_of(
        st.tuples(
            st.just("put"),
            st.sampled_from(IDS),
            st.integers(0, 900),
            st.integers(-3_000, 2_000),  # AT, from now
            st.sampled_from((b"alpha", b"alpha beta", b"beta beta gamma")),
            st.sampled_from(VECTORS),
            st.one_of(st.none(), st.integers(-3_000, 3_000)),  # VALIDAT
            st.one_of(st.none(), st.integers(1, 4_000)),  # VALIDUNTIL, behind that
            st.booleans(),  # whether it is a fact
        ),
        st.tuples(st.just("meta"), st.sampled_from(IDS), st.integers(1, 900)),
        st.tuples(st.just("remove"), st.sampled_from(IDS), st.integers(1, 900)),
        st.tuples(
            st.just("invalidate"),
            st.sampled_from(IDS),
            st.integers(1, 900),
            st.one_of(st.none(), st.integers(-2_000, 2_000)),
        ),
        st.tuples(st.just("compact"), st.just(b""), st.integers(0, 900)),
        st.tuples(st.just("prune"), st.just(b""), st.integers(0, 900)),
    )
    return draw(st.lists(step, min_size=1, max_size=25))


class Both:
    """A memory and its oracle, written alike."""

    def __init__(self, history: int) -> None:
        self.now = 100_000
        self.memory = Memory(replace(BASE, history=history), Vocabulary(), self.now)
        self.oracle = BitemporalOracle(history)

    def write(self, what: str, record_id: bytes, passed: int, *more: Any) -> None:
        self.now += passed
        self.memory.expire(self.now)
        if what in ("compact", "prune"):
            self.memory.compact() if what == "compact" else self.memory.prune(self.now)
            return
        getattr(self, what)(record_id, *more)

    def put(
        self,
        record_id: bytes,
        at: int,
        text: bytes,
        vector: bytes,
        valid_at: int | None,
        until: int | None,
        fact: bool,
    ) -> None:
        # Without a side the time of a command that dates a text into the future is nowhere (moment.py).
        now, written = self.now, self.now + (at if self.oracle.history else min(at, 0))
        known = min(written, now)
        begins = -NEVER if valid_at is None else now + valid_at
        if fact and valid_at is None:
            begins = written
        ends = NEVER if until is None else (written if begins == -NEVER else begins) + until
        said = Fact(b"user", b"likes", record_id) if fact else None
        extra = Extra(known, known, NEVER, begins, ends, NEVER, FACT if fact else 0, 0.5, said)
        plain = not fact and begins == -NEVER and ends == NEVER
        self.memory.put(
            *(record_id, text, vector, (), ()),
            importance=0.5,
            created_at=written,
            updated_at=written,
            deadline=NEVER,
            max_words=99,
            at=now,
            extra=None if plain else extra,
        )
        self.oracle.put(Version(record_id, text, vector, known, known, NEVER, begins, ends, NEVER, fact))

    def meta(self, record_id: bytes) -> None:
        old = self.oracle.current(record_id)
        if old is not None:
            self.memory.set_meta(record_id, (b"x", b"%d" % self.now), self.now)
            self.oracle.put(replace(old, since=max(self.now, old.written)))

    def remove(self, record_id: bytes) -> None:
        if self.oracle.current(record_id) is not None:
            self.memory.remove(record_id, self.now)
            self.oracle.begins(record_id, self.now)

    def invalidate(self, record_id: bytes, at: int | None) -> None:
        old = self.oracle.current(record_id)
        if old is not None and old.fact:
            invalid_at = NEVER if at is None else self.now + at
            self.memory.invalidate(record_id, invalid_at, b"", self.now)
            since = max(min(invalid_at, self.now), old.written)
            self.oracle.put(replace(old, since=since, invalid_at=invalid_at))


@given(
    history=st.sampled_from((0, 2, ALL)),
    steps=writes(),
    times=st.lists(st.tuples(st.integers(-6_000, 6_000), st.integers(-6_000, 6_000)), min_size=3, max_size=3),
)
@settings(max_examples=400)
def test_what_shows(history: int, steps: list[tuple[Any, ...]], times: list[tuple[int, int]]) -> None:
    both = Both(history)
    for step in steps:
        both.write(*step)
    memory, now = both.memory, both.now
    memory.expire(now)
    # What counts now is what the table holds, and what ASOF now finds.
    assert {v.id for v in both.oracle.shown(now, now, now)} == set(memory.table.by_id)
    for at, known in [(0, 0), *times, *((at, at) for at, _ in times)]:
        t, k = now + at, now + known
        view = joined(memory.moment(t, k, now))
        slots = np.flatnonzero(view.alive()).tolist()
        expected = both.oracle.shown(t, k, now)
        assert sorted((view.ids[slot], view.texts[slot]) for slot in slots) == sorted((v.id, v.text) for v in expected)
        same = fresh(expected, now)
        assert (view.live, view.total_len, view.vector_live) == (same.live, same.total_len, same.vector_live)
        assert view.vector_sum.tolist() == same.vector_sum.tolist()


def fresh(versions: list[Version], now: int) -> Any:
    """A view of a memory that never held any others."""
    memory = Memory(BASE, Vocabulary(), now)
    for v in versions:
        memory.put(
            *(v.id, v.text, v.vector, (), ()),
            importance=0.5,
            created_at=now,
            updated_at=now,
            deadline=NEVER,
            max_words=99,
            at=now,
        )
    return memory.view(now)


@pytest.mark.parametrize("metric", ["COSINE", "L2", "IP"])
def test_blocks_of_both_tables(metric: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors of `past` are found behind those of `table`, whose last block may be short or long."""
    memory = Memory(Settings(mode="VECTOR", dim=2, metric=metric, history=ALL), Vocabulary(), 0)
    for number in range(30):
        vector = np.array([1, number], "<f4")
        vector = vector / np.sqrt((vector * vector).sum()) if metric == "COSINE" else vector
        memory.put(
            *(b"%d" % (number % 20), b"t", vector.tobytes(), (), ()),
            importance=0.5,
            created_at=number,
            updated_at=number,
            deadline=NEVER,
            max_words=9,
            at=number,
        )
        query = Query(kind="vector", vector=np.array([0.6, 0.8]), top_k=40)
        told = [(memory.table.ids[hit.slot], hit.vector) for hit in run(memory.plan(query, number)).hits]
        for later in (number, 40):
            again = replace(query, as_of=number, known_at=number)
            result = run(memory.plan(again, later))
            assert result.view is not None
            assert [(result.view.ids[hit.slot], hit.vector) for hit in result.hits] == told


def test_a_compaction_in_a_thread_keeps_what_came_meanwhile() -> None:
    """Rows, versions and the side itself that come while a compaction is built."""
    memory = Memory(BASE, Vocabulary(), 0)

    def put(record_id: bytes, at: int, extra: Extra | None = None) -> None:
        memory.put(
            *(record_id, b"alpha", b"", (), ()),
            importance=0.5,
            created_at=at,
            updated_at=at,
            deadline=NEVER,
            max_words=9,
            at=at,
            extra=extra,
        )

    for number in range(5):
        put(b"%d" % number, number)
    memory.remove(b"1", 6)
    compaction = memory.compaction()
    compaction.build()
    memory.configure(replace(BASE, history=ALL), 7)
    put(b"2", 8)
    put(b"later", 9, Extra(9, 9, valid_at=100))
    compaction.install()
    assert set(memory.table.by_id) == {b"0", b"2", b"3", b"4"}
    assert memory.past is not None and set(memory.past.by_id) == {b"later"}
    view = joined(memory.moment(8, 7, 10))
    shown = np.flatnonzero(view.alive()).tolist()
    assert sorted((view.ids[slot], int(view.updated[slot])) for slot in shown) == [
        (b"0", 0),
        (b"2", 2),
        (b"3", 3),
        (b"4", 4),
    ]
    put(b"3", 11)
    compaction = memory.compaction()
    compaction.build()
    put(b"4", 12)
    memory.forget((b"3",), (), 13)
    compaction.install()
    assert memory.expire(100) == []
    assert set(memory.table.by_id) == {b"0", b"2", b"4", b"later"}
    assert memory.past.versions.keys() == {b"2", b"4"}
