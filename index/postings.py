"""term -> posting list, for memories above a thousand rows.

A posting is one int64, `slot << 16 | halves`, where halves is the term frequency in half units (an exact occurrence
counts 2, a second form 1): one array and one store per posting, and slots ascend, so arrays stay sorted. Lists keep
dead slots, which the reader masks; `df` counts live records only, so a score never knows what was once deleted.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getsizeof
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .shared import Arrays

Int64s = npt.NDArray[np.int64]

_FIRST_CAPACITY = 4
# A list is its object (64), an array object (112 and 32) with rounding (16), and the number of its term (32).
_LIST_BYTES = 256


class Packed(NamedTuple):
    """All lists behind one another: `lengths[i]` postings of `terms[i]`, terms ascending, slots ascending in each."""

    terms: npt.NDArray[np.uint32]
    lengths: Int64s
    data: Int64s


def pack(slots: Int64s, terms: npt.NDArray[np.uint32], halves: npt.NDArray[np.uint16]) -> Packed:
    """The lists of rows given as parallel arrays (one element per row and term), slots ascending."""
    order, sorted_terms = _by_term(terms)
    starts = np.flatnonzero(np.diff(sorted_terms, prepend=np.int64(-1)))
    lengths = np.diff(starts, append=len(order))
    return Packed(sorted_terms[starts].astype(np.uint32), lengths, ((slots << 16) | halves)[order])


def _by_term(terms: npt.NDArray[np.uint32]) -> tuple[Int64s, Int64s]:
    """(the order of `terms`, those equal as they come; they in this order). To sort numbers that hold the place as well
    is six times as fast as np.argsort."""
    keys = terms.astype(np.int64) << 32 | np.arange(len(terms))
    keys.sort()
    return keys & 0xFFFFFFFF, keys >> 32


class PostingList:
    """One term's postings; `n` of `data` are used, and those never change. `most` is the largest `halves` so far. The
    room behind them is for who has the `key`."""

    __slots__ = ("data", "df", "key", "most", "n")

    def __init__(self, data: Int64s, n: int, df: int, most: int, key: object = None) -> None:
        self.data = data
        self.n = n
        self.df = df
        self.most = most
        self.key = key


class Postings:
    """All posting lists of one memory."""

    __slots__ = ("_capacity", "_key", "_lists", "_replaced", "_shared", "_shared_capacity", "_taken", "live_terms")

    def __init__(self) -> None:
        self._key = object()
        self._lists: dict[int, PostingList] = {}
        # Those of a moment when this was copied, which two or more have in common: nobody writes to them. One that is
        # to be written to gets a twin in `_lists`, which goes first.
        self._shared: dict[int, PostingList] = {}
        self._capacity = 0  # postings that the arrays of `_lists` have room for
        self._shared_capacity = 0
        self._replaced = 0  # what lists of `_shared` have room for that are of no use here any more
        self._taken = 0  # of it, what is still in use in `_lists`, as this one has the key to it
        self.live_terms = 0  # terms with df > 0

    @classmethod
    def restored(cls, packed: Packed) -> Postings:
        """Postings of live rows only, as `pack` gave them. The lists are views of `packed.data` until they grow."""
        postings = cls()
        data, lists, start = packed.data, postings._lists, 0
        starts = np.cumsum(packed.lengths) - packed.lengths
        most = np.maximum.reduceat(data & 0xFFFF, starts).tolist() if len(data) else []
        for term, length, halves in zip(packed.terms.tolist(), packed.lengths.tolist(), most, strict=True):
            lists[term] = PostingList(data[start : start + length], length, length, halves)
            start += length
        postings.live_terms = len(lists)
        postings._capacity = len(data)
        return postings

    def copy(self, *, takes_room: bool = False) -> Postings:
        """An independent twin. Each list that either of them writes to is copied first; but where this one is as good
        as gone, the twin takes the room behind the lists, too."""
        if self._lists:
            self._shared, self._lists = {**self._shared, **self._lists}, {}
            self._shared_capacity += self._capacity + self._taken - self._replaced
            self._capacity = self._replaced = self._taken = 0
        twin = Postings()
        twin._shared, twin._shared_capacity, twin.live_terms = self._shared, self._shared_capacity, self.live_terms
        if takes_room:
            twin._key = self._key
        self._key = object()
        return twin

    def _shed(self) -> None:
        """Let go of what is replaced; whoever has it in common keeps it."""
        own, key = self._lists, self._key
        self._shared = {
            term: each
            for term, each in self._shared.items()
            if term not in own or (own[term].data is each.data and each.key is not key)
        }
        self._capacity += self._taken
        self._shared_capacity -= self._replaced
        self._replaced = self._taken = 0

    def lists(self) -> list[PostingList]:
        return [*self._lists.values(), *self._shared.values()]

    def get(self, term: int) -> PostingList | None:
        return self._lists.get(term) or self._shared.get(term)

    def _own(self, term: int) -> PostingList | None:
        """The term's list, to be written to."""
        posting = self._lists.get(term)
        if posting is None and (shared := self._shared.get(term)) is not None:
            posting = self._lists[term] = PostingList(shared.data, shared.n, shared.df, shared.most, shared.key)
            if shared.key is self._key:
                self._taken += len(shared.data)
                self._replaced += len(shared.data)
        return posting

    def extend(
        self,
        slots: Int64s,
        terms: npt.NDArray[np.uint32],
        halves: npt.NDArray[np.uint16],
        alive: npt.NDArray[np.bool_],
    ) -> None:
        """Add rows given as parallel arrays (one element per row and term), slots ascending and above all before."""
        if not len(terms):  # rows without a word
            return
        order, sorted_terms = _by_term(terms)
        data = ((slots << 16) | halves)[order]
        starts = np.flatnonzero(np.diff(sorted_terms, prepend=np.int64(-1)))
        live = np.add.reduceat(alive[order].astype(np.int64), starts)
        largest = np.maximum.reduceat(halves[order], starts)
        ends = np.append(starts[1:], len(order))
        lists, capacity, live_terms, key = self._lists, self._capacity, self.live_terms, self._key
        values = data.tolist()
        for term, start, end, df, most in zip(
            sorted_terms[starts].tolist(), starts.tolist(), ends.tolist(), live.tolist(), largest.tolist(), strict=True
        ):
            posting = lists.get(term)
            if posting is None and self._shared:
                posting = self._own(term)
            if posting is None:
                lists[term] = PostingList(data[start:end].copy(), end - start, df, most, key)
                capacity += end - start
                live_terms += df > 0
                continue
            n, held = posting.n, posting.data
            size = n + end - start
            if size > len(held) or posting.key is not key:
                grown = np.empty(max(_FIRST_CAPACITY, size + (size >> 1)), np.int64)
                grown[:n] = held[:n]
                capacity += len(grown)
                shared = self._shared.get(term)
                if shared is None or held is not shared.data:
                    capacity -= len(held)
                elif posting.key is key:
                    self._taken -= len(held)
                else:
                    self._replaced += len(held)
                posting.data, posting.key, held = grown, key, grown
            if size - n == 1:  # most are, and numpy takes a number in a quarter of the time of a slice
                held[n] = values[start]
            else:
                held[n:size] = data[start:end]
            posting.n = size
            live_terms += posting.df == 0 and df > 0
            posting.df += df
            if most > posting.most:
                posting.most = most
        self._capacity, self.live_terms = capacity, live_terms
        if 2 * self._replaced > self._shared_capacity:
            self._shed()

    def remove(self, terms: Sequence[int]) -> None:
        """A row with these terms died."""
        for term in terms:
            posting = self._lists.get(term) or self._own(term)
            assert posting is not None
            posting.df -= 1
            if posting.df == 0:
                self.live_terms -= 1

    def remove_all(self, terms: npt.NDArray[np.uint32]) -> None:
        """Rows died: their terms, each as often as rows had it."""
        counts = np.bincount(terms)
        gone = np.flatnonzero(counts)
        for term, count in zip(gone.tolist(), counts[gone].tolist(), strict=True):
            posting = self._lists.get(term) or self._own(term)
            assert posting is not None
            posting.df -= count
            if posting.df == 0:
                self.live_terms -= 1

    @property
    def terms(self) -> int:
        """How many terms have a list."""
        return max(len(self._shared), len(self._lists))

    def arrays(self) -> Arrays:
        """What a copy has in common with this."""
        if not self._shared:
            return {}
        size = 8 * (self._shared_capacity - self._taken) + _LIST_BYTES * len(self._shared) + getsizeof(self._shared)
        return {("postings", id(self._shared)): size}

    def nbytes(self) -> int:
        """Without that."""
        return 8 * (self._capacity + self._taken) + _LIST_BYTES * len(self._lists) + getsizeof(self._lists)
