"""Posting lists and their copies: what one writes no other sees, whoever has the room behind a list; and the counts."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from recalld.index.postings import Postings, pack

TERMS = 6
Model = dict[int, list[tuple[int, int]]]


class Twin:
    """Postings, and what they should hold: (slot, halves) by term."""

    def __init__(self, postings: Postings, held: Model, slots: int, alive: dict[int, list[int]]) -> None:
        self.postings = postings
        self.held = held
        self.slots = slots
        self.alive = alive  # slot -> its terms

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

    def remove(self, number: int) -> None:
        if self.alive:
            slot = sorted(self.alive)[number % len(self.alive)]
            self.postings.remove(self.alive.pop(slot))

    def copy(self, takes_room: bool) -> Twin:
        held = {term: list(postings) for term, postings in self.held.items()}
        return Twin(self.postings.copy(takes_room=takes_room), held, self.slots, dict(self.alive))

    def check(self) -> None:
        postings = self.postings
        for term in range(TERMS):
            found = postings.get(term)
            expected = self.held.get(term, [])
            assert (found is None) == (not expected)
            if found is not None:
                data = found.data[: found.n]
                assert list(zip((data >> 16).tolist(), (data & 0xFFFF).tolist(), strict=True)) == expected
                assert found.df == sum(term in row for row in self.alive.values())
                assert found.most == max(halves for _, halves in expected)
        assert postings.live_terms == len({term for row in self.alive.values() for term in row})
        self.check_counts()

    def check_counts(self) -> None:
        """What is counted for itself are the arrays that nobody else writes to; the rest it has in common."""
        postings = self.postings
        own = {
            id(each.data): len(each.data)
            for term, each in postings._lists.items()
            if (shared := postings._shared.get(term)) is None
            or each.data is not shared.data
            or each.key is postings._key
        }
        assert postings._capacity + postings._taken == sum(own.values())
        common = {id(each.data): len(each.data) for each in postings._shared.values() if id(each.data) not in own}
        unused = postings._replaced - postings._taken
        assert postings._shared_capacity - postings._taken >= sum(common.values()) - unused
        assert 0 <= postings._taken <= postings._replaced <= postings._shared_capacity


rows = st.lists(st.lists(st.integers(0, TERMS - 1), max_size=TERMS, unique=True).map(sorted), max_size=8)
steps = st.one_of(
    st.tuples(st.just("extend"), st.integers(0, 9), rows),
    st.tuples(st.just("remove"), st.integers(0, 9), st.integers(0, 99)),
    st.tuples(st.just("copy"), st.integers(0, 9), st.booleans()),
    st.tuples(st.just("drop"), st.integers(0, 9), st.none()),
)


@given(st.lists(steps, max_size=40), st.booleans())
def test_copies_are_independent(script: list[tuple[str, int, object]], from_file: bool) -> None:
    first = Twin(Postings(), {}, 0, {})
    if from_file:
        first.extend([[0, 2], [2, 3], [1, 2, 4]])
        listed = [(slot, term, halves) for term, held in first.held.items() for slot, halves in held]
        slots, terms, halves = zip(*sorted(listed), strict=True)
        packed = pack(np.array(slots, np.int64), np.array(terms, np.uint32), np.array(halves, np.uint16))
        first.postings = Postings.restored(packed)
    twins = [first]
    seen: list[tuple[np.ndarray, list[int]]] = []  # what a reader holds, and what it was then
    for name, which, what in script:
        twin = twins[which % len(twins)]
        if name == "extend":
            twin.extend(what)
        elif name == "remove":
            twin.remove(what)
        elif name == "copy" and len(twins) < 5:
            twins.append(twin.copy(what))
        elif name == "drop" and len(twins) > 1:
            twins.remove(twin)
        seen += [(each.data[: each.n], each.data[: each.n].tolist()) for each in twin.postings.lists()]
        for each in twins:
            each.check()
        for data, then in seen:
            assert data.tolist() == then


def test_who_takes_the_room_writes_in_place() -> None:
    twin = Twin(Postings(), {}, 0, {})
    twin.extend([[0]] * 3)
    twin.extend([[0]])
    before = twin.postings.get(0)
    assert before is not None and len(before.data) > before.n
    taker, other = twin.copy(True), twin.copy(False)
    for each, in_place in ((other, False), (twin, False), (taker, True)):
        each.extend([[0]])
        each.check()
        after = each.postings.get(0)
        assert after is not None and (after.data is before.data) == in_place


def test_what_is_replaced_is_let_go_of() -> None:
    twin = Twin(Postings(), {}, 0, {})
    twin.extend([[0, 1, 2]] * 20)
    for _ in range(6):
        twin = twin.copy(True)
        twin.extend([[0, 1, 2]] * 20)
    twin.check()
    assert len(twin.postings.lists()) == 3
