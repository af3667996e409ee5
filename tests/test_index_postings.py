"""Posting lists in segments: what they hold, whatever is merged when; copies and readers see none of what comes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recalld.index import postings as module
from recalld.index.analyzer import Vocabulary
from recalld.index.memory import NEVER, Memory
from recalld.index.postings import Merge, Packed, PostingLists, Postings, pack
from recalld.index.settings import Settings

TERMS = 6
Held = dict[int, list[tuple[int, int]]]


class Twin:
    """Postings, and what they should hold: (slot, halves) by term."""

    def __init__(self, postings: Postings, held: Held, slots: int, alive: dict[int, list[int]]) -> None:
        self.postings = postings
        self.held = held
        self.slots = slots
        self.alive = alive  # slot -> its terms
        self.merge: Merge | None = None

    def extend(self, rows: list[list[int]]) -> None:
        slots, terms, halves = [], [], []
        for row in rows:
            for term in row:
                slots.append(self.slots)
                terms.append(term)
                halves.append(2 + (self.slots + term) % 5)
                self.held.setdefault(term, []).append((self.slots, halves[-1]))
            self.alive[self.slots] = row
            self.slots += 1
        self.postings.extend(
            np.array(slots, np.int64),
            np.array(terms, np.uint32),
            np.array(halves, np.uint16),
            np.ones(len(slots), np.bool_),
        )

    def remove(self, numbers: list[int]) -> None:
        chosen = sorted({sorted(self.alive)[number % len(self.alive)] for number in numbers if self.alive})
        gone = [(slot, term) for slot in chosen for term in self.alive.pop(slot)]
        if len(chosen) == 1:
            self.postings.remove(chosen[0], np.array([term for _, term in gone], np.uint32))
        else:
            slots, terms = np.array(gone, np.int64).reshape(-1, 2).T
            self.postings.remove_all(slots, terms.astype(np.uint32))

    def step(self) -> None:
        """Go on with a merge."""
        if self.merge is None:
            if self.postings.wants_merge:
                self.merge = self.postings.begin_merge()
                self.merge.build()
        else:
            self.postings.end_merge(self.merge)
            self.merge = None

    def copy(self) -> Twin:
        held = {term: list(postings) for term, postings in self.held.items()}
        return Twin(self.postings.copy(), held, self.slots, dict(self.alive))

    def check(self) -> None:
        found = self.postings.find([*range(TERMS), TERMS, -1])
        assert found[TERMS:] == [None, None]
        for term in range(TERMS):
            assert read(found[term]) == self.held.get(term, [])
            lists = found[term]
            if lists is not None:
                assert lists.df == sum(term in row for row in self.alive.values())
                assert lists.most == max(halves for _, halves in self.held[term])
                assert lists.n == len(self.held[term])
        assert self.postings.live_terms == len({term for row in self.alive.values() for term in row})
        assert self.postings.terms <= len(self.held)
        assert self.postings.nbytes() > 0 or not self.held


def read(lists: PostingLists | None) -> list[tuple[int, int]]:
    return [] if lists is None else [(each >> 16, each & 0xFFFF) for data in lists.lists for each in data.tolist()]


rows = st.lists(st.lists(st.integers(0, TERMS - 1), max_size=TERMS, unique=True).map(sorted), max_size=8)
steps = st.one_of(
    st.tuples(st.just("extend"), st.integers(0, 9), rows),
    st.tuples(st.just("remove"), st.integers(0, 9), st.lists(st.integers(0, 99), min_size=1, max_size=3)),
    st.tuples(st.just("step"), st.integers(0, 9), st.none()),
    st.tuples(st.just("copy"), st.integers(0, 9), st.none()),
    st.tuples(st.just("check"), st.integers(0, 9), st.none()),
)


@given(
    st.lists(steps, max_size=40),
    st.sampled_from(["", "from a file", "renumbered"]),
    st.sampled_from([8, 40, 10_000]),
    st.sampled_from([2, 8]),
    st.sampled_from([2, 256]),
)
def test_whatever_is_merged_when(
    script: list[tuple[str, int, Any]], begun: str, on_loop: int, ratio: int, died: int
) -> None:
    first = Twin(Postings(), {}, 0, {})
    if begun:
        first.extend([[0, 2], [2, 3], [1, 2, 4]])
        listed = sorted((slot, term, halves) for term, held in first.held.items() for slot, halves in held)
        slots, terms, halves = zip(*listed, strict=True)
        packed = pack(np.array(slots, np.int64), np.array(terms, np.uint32), np.array(halves, np.uint16))
        if begun == "renumbered":
            order = [4, 2, 0, 3, 1]
            lists = np.split(packed.data, np.cumsum(packed.lengths)[:-1])
            data = np.concatenate([lists[at] for at in order])
            packed = Packed(packed.terms[order], packed.lengths[order], data)
        first.postings = Postings.restored(packed)
    twins = [first]
    seen: list[tuple[np.ndarray, list[int]]] = []  # what a reader holds, and what it was then
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_MERGED_ON_LOOP", on_loop)
        patch.setattr(module, "_RATIO", ratio)
        patch.setattr(module, "_DIED_MOST", died)
        for name, which, what in script:
            twin = twins[which % len(twins)]
            if name == "copy":
                twins = [*twins[-3:], twin.copy()]
            elif name == "step":
                twin.step()
            elif name != "check":
                getattr(twin, name)(what)
            if name != "check":
                continue
            held = [lists.lists for lists in twin.postings.find(range(TERMS)) if lists is not None]
            seen += [(data, data.tolist()) for lists in held for data in lists]
            for each in twins:
                each.check()
            for data, then in seen:
                assert data.tolist() == then
        for each in twins:
            each.check()


def test_a_row_that_went_just_now_is_not_counted() -> None:
    """Neither here, nor in a copy, nor among the terms; though they are taken off the counts some at a time."""
    for look in (
        lambda postings: postings.live_terms == 1,
        lambda postings: postings.copy().live_terms == 1,
        lambda postings: [lists and lists.df for lists in postings.find([0, 1])] == [1, 0],
        lambda postings: [lists and lists.df for lists in postings.copy().find([0, 1])] == [1, 0],
    ):
        twin = Twin(Postings(), {}, 0, {})
        twin.extend([[0, 1], [0]])
        assert twin.postings.live_terms == 2
        twin.remove([0])
        assert look(twin.postings)


def test_a_term_is_in_few_segments() -> None:
    """Some 90 000 postings come 40 at a time: each is copied a few times, and they are in one segment for each power of
    eight."""
    postings, copied, rng = Postings(), 0, np.random.default_rng(1)
    for number in range(2300):
        before = {id(each) for each in postings._segments}
        slots = np.repeat(np.arange(number * 10, number * 10 + 10), 4)
        terms = rng.integers(0, 300, 40).astype(np.uint32)
        postings.extend(slots, terms, np.full(40, 2, np.uint16), np.ones(40, np.bool_))
        copied += sum(len(each.data) for each in postings._segments if id(each) not in before)
        assert len(postings._segments) <= 5
    assert sum(len(each.data) for each in postings._segments) == 2300 * 40
    assert copied < 25 * 2300 * 40
    assert not postings.wants_merge


def test_a_merge_too_large_for_the_loop_waits_for_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MERGED_ON_LOOP", 100)
    twin = Twin(Postings(), {}, 0, {})
    for _ in range(10):
        twin.extend([[0, 1, 2]] * 10)
    assert twin.postings.wants_merge and len(twin.postings._segments) > 2
    twin.step()
    assert not twin.postings.wants_merge
    twin.remove([0, 5, 99])
    twin.extend([[0, 3]] * 10)
    twin.check()
    twin.step()
    twin.check()
    assert len(twin.postings._segments) == 2


def test_queries_have_all_merged_in_the_end() -> None:
    """After as many as are worth it, in a thread, and then no more."""
    twin = Twin(Postings(), {}, 0, {})
    for rows in (8_000, 300, 20):
        twin.extend([[0, 1, 2]] * rows)
    assert len(twin.postings._segments) == 3
    asked = 0
    while not twin.postings.wants_merge:
        twin.postings.find([0])
        asked += 1
    assert asked == -(-8_320 * 3 // (2 * module._FOUND_COST))
    twin.step()
    twin.postings.find([0])  # meanwhile they are not counted
    assert not twin.postings.wants_merge
    twin.step()
    assert len(twin.postings._segments) == 1
    twin.check()
    twin.extend([[0]])
    twin.postings.find([0])
    assert len(twin.postings._segments) == 2 and not twin.postings.wants_merge


def test_a_merge_that_fails_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MERGED_ON_LOOP", 100)
    memory = Memory(Settings(mode="SEARCH"), Vocabulary(), 0)
    number = 0

    def put() -> None:
        nonlocal number
        fields = {"importance": 0.5, "created_at": 0, "updated_at": 0, "deadline": NEVER, "max_words": 9, "at": 0}
        memory.put(b"%d" % number, b"w%d common words" % (number % 50), b"", (), (), **fields)
        number += 1

    while not memory.wants_compaction:
        put()
    step = memory.compaction()
    with monkeypatch.context() as patch:
        patch.setattr(module, "room", lambda *_: (_ for _ in ()).throw(MemoryError()))
        with pytest.raises(MemoryError):
            step.build()
    step.abandon()
    assert not memory.wants_compaction
    for _ in range(1000):
        put()
    assert memory.wants_compaction
    memory.tidy()
    postings = memory.table.postings
    assert postings is not None and len(postings._segments) <= 3
