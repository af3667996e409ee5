"""term -> posting lists, for memories above a thousand rows.

A posting is one int64, `slot << 16 | halves`, where halves is the term frequency in half units (an exact occurrence
counts 2, a second form 1). Lists keep dead slots, which the reader masks; `df` counts live records only, so a score
never knows what was once deleted.

The lists of a run of rows are a segment: arrays that never change (but for its counts of live records), made at once
when some hundred rows have come. Segments follow one another as the rows do, and small ones are merged, each into one
at most `_RATIO` times as large, so that a term is in few of them and a posting is copied a few times in its life. Once
queries have spent as much time on looking in several as a merge of all takes, all are merged. That, and a merge that
would hold up the loop, is done in a thread (`Merge`).
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .blocks import room
from .selection import distinct
from .shared import Arrays

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]

_RATIO = 8
# So many postings are merged in some three milliseconds.
_MERGED_ON_LOOP = 300_000
# So many rows that died are taken off the counts together.
_DIED_MOST = 256
# A thread that merges copies so many at a time.
_PIECE = 1 << 16
# A query takes as long for each segment beyond the first as a merge for so many postings: some five microseconds.
_FOUND_COST = 500
# A segment's object and those of its arrays.
_SEGMENT_BYTES = 1000


_NO_TERMS = np.zeros(0, np.uint32)


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


class PostingLists(NamedTuple):
    """What the rows hold of a term at one moment: lists that follow one another, `df` live rows in all, and the largest
    `halves` of any row."""

    lists: list[Int64s]
    df: int
    most: int

    @property
    def n(self) -> int:
        return sum(map(len, self.lists))


class Segment:
    """The lists of the rows from `first` on: those of `terms[i]` (ascending) are `data[starts[i]:starts[i + 1]]`.
    `df[i]` of them are live, which alone may change."""

    __slots__ = ("data", "df", "first", "most", "starts", "terms")

    def __init__(
        self,
        first: int,
        terms: npt.NDArray[np.uint32],
        starts: Int64s,
        data: Int64s,
        df: Int32s,
        most: npt.NDArray[np.uint16],
    ) -> None:
        self.first = first
        self.terms = terms
        self.starts = starts
        self.data = data
        self.df = df
        self.most = most

    def copy(self) -> Segment:
        """An independent twin."""
        return Segment(self.first, self.terms, self.starts, self.data, self.df.copy(), self.most)


class Merge:
    """Segments that follow one another become one: `build` in any thread, `finish` where they live."""

    def __init__(self, segments: list[Segment]) -> None:
        self.segments = segments

    def build(self) -> None:
        segments = self.segments
        self._order, terms = _by_term(np.concatenate([each.terms for each in segments]))
        self._starts = np.flatnonzero(np.diff(terms, prepend=np.int64(-1)))
        lengths = np.concatenate([np.diff(each.starts) for each in segments])[self._order]
        ends = np.cumsum(lengths)
        # Where each list begins in all the data behind one another.
        offsets = np.cumsum([0, *(len(each.data) for each in segments[:-1])])
        begins = np.concatenate([each.starts[:-1] + at for each, at in zip(segments, offsets, strict=True)])
        places = np.repeat(begins[self._order] - (ends - lengths), lengths)
        places += np.arange(len(places))
        data = room((len(places),), np.int64)
        held = np.concatenate([each.data for each in segments])
        for start in range(0, len(data), _PIECE):  # in one piece it would keep the interpreter from others
            end = start + _PIECE
            np.take(held, places[start:end], out=data[start:end], mode="clip")
        most = np.maximum.reduceat(np.concatenate([each.most for each in segments])[self._order], self._starts)
        starts = np.append((ends - lengths)[self._starts], len(data))
        self._made = segments[0].first, terms[self._starts].astype(np.uint32), starts, data, most

    def finish(self) -> Segment:
        first, terms, starts, data, most = self._made
        df = np.add.reduceat(np.concatenate([each.df for each in self.segments])[self._order], self._starts)
        return Segment(first, terms, starts, data, df.astype(np.int32), most)


class Postings:
    """All posting lists of one memory."""

    __slots__ = ("_died", "_live_terms", "_merging", "_segments", "_spent", "wants_merge")

    def __init__(self) -> None:
        self._segments: list[Segment] = []
        self._merging = 0  # so many of the first may be in a merge that goes on
        self._spent = 0  # by queries since all were merged, as postings
        self._live_terms = -1  # not counted since rows came or went
        self._died: list[tuple[int, npt.NDArray[np.uint32]]] = []  # rows, and their terms, that are still in `df`
        self.wants_merge = False  # whether there is one that a thread is to do

    @classmethod
    def restored(cls, packed: Packed) -> Postings:
        """Postings of live rows only, as `pack` gave them, over these very arrays where the terms still ascend: they
        may have got other numbers since."""
        postings = cls()
        if len(packed.data):
            starts = np.concatenate((np.zeros(1, np.int64), np.cumsum(packed.lengths)))
            most = np.maximum.reduceat((packed.data & 0xFFFF).astype(np.uint16), starts[:-1])
            df = packed.lengths.astype(np.int32)
            segment = Segment(0, packed.terms, starts, packed.data, df, most)
            if (packed.terms[1:] < packed.terms[:-1]).any():
                merge = Merge([segment])
                merge.build()
                segment = merge.finish()
            postings._segments.append(segment)
        return postings

    def copy(self) -> Postings:
        """An independent twin, which has the arrays in common."""
        self._count_died()
        twin = Postings()
        twin._segments = [each.copy() for each in self._segments]
        twin.wants_merge = twin._merged_from() is not None
        return twin

    def find(self, terms: Sequence[int]) -> list[PostingLists | None]:
        """What is held of each term now, None for nothing; -1 is no term. On the loop."""
        self._count_died()
        if len(self._segments) > 1 and not self._merging:
            self._spend()
        wanted = np.array(terms, np.int64).astype(np.uint32)
        found: list[tuple[list[Int64s], int, int]] = [([], 0, 0)] * len(terms)
        for each in self._segments:
            term_at, start_at, data = each.terms.item, each.starts.item, each.data
            count = len(each.terms)
            for number, place in enumerate(each.terms.searchsorted(wanted).tolist()):
                if place < count and term_at(place) == terms[number]:
                    lists, df, most = found[number]
                    found[number] = (
                        [*lists, data[start_at(place) : start_at(place + 1)]],
                        df + each.df.item(place),
                        max(most, each.most.item(place)),
                    )
        return [PostingLists(*each) if each[0] else None for each in found]

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
        self._live_terms = -1
        order, sorted_terms = _by_term(terms)
        starts = np.flatnonzero(np.diff(sorted_terms, prepend=np.int64(-1)))
        self._segments.append(
            Segment(
                int(slots[0]),
                sorted_terms[starts].astype(np.uint32),
                np.append(starts, len(order)),
                ((slots << 16) | halves)[order],
                np.add.reduceat(alive[order].astype(np.int32), starts),
                np.maximum.reduceat(halves[order], starts),
            )
        )
        begin = self._merged_from(_MERGED_ON_LOOP)
        if begin is not None:
            self._merge(begin)
        self.wants_merge = not self._merging and self._merged_from() is not None

    def _spend(self) -> None:
        self._spent += _FOUND_COST * (len(self._segments) - 1)
        total = sum([len(each.data) for each in self._segments])
        self.wants_merge = self.wants_merge or self._spent >= total

    def _merge(self, begin: int) -> None:
        merge = Merge(self._segments[begin:])
        merge.build()
        self._segments[begin:] = [merge.finish()]

    def _merged_from(self, limit: int = 1 << 62) -> int | None:
        """The first of the last segments that are worth a merge of `limit` postings at most; None for none."""
        segments = self._segments
        begin, total = len(segments), 0
        while begin > self._merging:
            before = len(segments[begin - 1].data)
            if total and (before >= _RATIO * total or before + total > limit):
                break
            begin, total = begin - 1, total + before
        return begin if begin < len(segments) - 1 else None

    def begin_merge(self) -> Merge:
        """Begin a merge that is wanted; until it ends rows may come and go."""
        begin = self._merged_from()
        if begin is None:  # queries want all merged
            begin, self._spent = 0, 0
        self._merging, self.wants_merge = len(self._segments), False
        return Merge(self._segments[begin:])

    def abandon_merge(self) -> None:
        """It could not be done."""
        self._merging = 0

    def end_merge(self, merge: Merge) -> None:
        begin = self._segments.index(merge.segments[0])
        self._segments[begin : self._merging] = [merge.finish()]
        self._merging = 0
        self.wants_merge = self._merged_from() is not None

    def remove(self, slot: int, terms: npt.NDArray[np.uint32]) -> None:
        """The row at `slot`, with these terms, died."""
        if len(terms):
            self._died.append((slot, terms))
            if len(self._died) >= _DIED_MOST:
                self._count_died()

    def _count_died(self) -> None:
        """Take those that died one by one off the counts. Together: a search in an array lets go of the interpreter,
        and a thread that does so for each of many rows keeps the loop waiting, which never wakes in time to take it."""
        died, self._died = sorted(self._died, key=itemgetter(0)), []
        if died:
            slots = np.repeat([slot for slot, _ in died], [len(terms) for _, terms in died])
            self.remove_all(slots, np.concatenate([terms for _, terms in died]))

    def remove_all(self, slots: Int64s, terms: npt.NDArray[np.uint32]) -> None:
        """Rows died: parallel arrays, one element per row and term, slots ascending."""
        if not len(terms):
            return
        self._live_terms = -1
        cuts = np.searchsorted(slots, [each.first for each in self._segments]).tolist()
        for each, start, end in zip(self._segments, cuts, [*cuts[1:], len(slots)], strict=True):
            if start < end:
                gone = np.bincount(each.terms.searchsorted(terms[start:end]), minlength=len(each.df))
                each.df -= gone.astype(np.int32)

    @property
    def live_terms(self) -> int:
        """How many terms some live row holds."""
        self._count_died()
        if self._live_terms < 0:
            live = [each.terms[each.df > 0] for each in self._segments]
            self._live_terms = len(distinct(np.concatenate([_NO_TERMS, *live])))
        return self._live_terms

    @property
    def terms(self) -> int:
        """About how many terms have a list."""
        return max((len(each.terms) for each in self._segments), default=0)

    def arrays(self) -> Arrays:
        """What a copy has in common with this."""
        return {
            ("postings", id(each.data)): each.data.nbytes + each.starts.nbytes + each.terms.nbytes + each.most.nbytes
            for each in self._segments
        }

    def nbytes(self) -> int:
        """Without that."""
        return sum([_SEGMENT_BYTES + each.df.nbytes for each in self._segments])
