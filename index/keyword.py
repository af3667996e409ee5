"""BM25 of a query over a view: of every row, or of the best ones only.

TAGBOOST, where the query names tags, is one more addend of the rows that match: known for every row from the start.

`best_rows` is MaxScore (Turtle and Flood, 1995) over arrays: the lists of rare terms are read whole; once the k-th best
sum so far exceeds all that the remaining terms could add, rows that hold none of the rare terms cannot be on the page,
and the long lists of common words are only searched for the rows found so far.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from . import bm25, kernels, scratch
from .bm25 import TermList
from .selection import floor_of_best

if TYPE_CHECKING:
    from .matches import Plan

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

# Up to so many terms the forward index is compared with each; a longer query takes one pass for all.
TERMS_SINGLY = 8
# Up to so many, compiled.
_TERMS_COMPARED = 64
#: With fewer rows an array of all their scores costs less than leaving some out.
PRUNE_MIN = 16_384
# A list is searched for single rows where it is so many times longer than they are many.
_SEARCH_ABOVE = 8
# A list of so many postings is worth knowing whether it can be left out, where loops are compiled.
_SKIPPED_MIN = 8192
_NO_POSTINGS: Int64s = np.zeros(0, np.int64)
_NO_MASK: Bools = np.zeros(0, np.bool_)
# What the sums' rounding may be, relative.
_ROUNDING = 1e-12
_LESS = 1 - 2 * _ROUNDING
# So that no sum of boosts is infinite.
_BOOST_MAX = 1e300


class Bounds(NamedTuple):
    """BM25 of the allowed rows: the best, exactly; at least `values` at `slots` (each once, in no order) and 0
    elsewhere; at most `rest` more than that."""

    best: float
    slots: Int64s
    values: Floats
    rest: float


class Keyword:
    """One query's words against one view."""

    __slots__ = ("_by_vector", "_norms", "avgdl", "boost", "lists", "view")

    def __init__(self, plan: Plan) -> None:
        self.view = plan.view
        self._by_vector = plan.query.vector is not None  # a row with a vector matches, whatever its words
        self.avgdl = self.view.total_len / self.view.live if self.view.live else 0.0
        k1, b = self.view.settings.k1, self.view.settings.b
        # What `bm25.parts` computes beside a row, by the same operations.
        self._norms = k1 + 1.0, k1 * (1.0 - b), k1 * b / self.avgdl if self.avgdl else 0.0
        self.lists = self._found(plan)  # in the order of the query's terms
        self.boost = _boost(plan)

    def _found(self, plan: Plan) -> list[TermList]:
        """What the rows hold of the query's terms: from the posting lists, and from the forward index behind them."""
        view = plan.view
        known = [each for each in plan.terms if each[0].term_id >= 0]
        some_unposted = known and plan.posted < view.n
        behind = _unposted(plan, [term.term_id for term, _ in known]) if some_unposted else None
        shown = view.alive() if view.masked else None
        k1_more, norm, per_word = self._norms
        found: list[TermList] = []
        for number, (term, posting) in enumerate(known):
            lists: list[Int64s] = []
            df = most = 0
            if posting is not None and posting.df:
                df, most = posting.df, posting.most
                if shown is not None:
                    df = sum([int(np.count_nonzero(shown[data >> 16])) for data in posting.lists])
                if df:
                    lists += posting.lists
            if behind is not None:
                data, live = behind[number]
                df += live
                if live:
                    lists.append(data)
                    most = max(most, int((data & 0xFFFF).max()))
            if lists:
                idf = bm25.idf(view.live, df)
                scale = idf * term.weight
                # To a record of one word, with the highest frequency.
                tf = most * 0.5
                at_most = scale * (tf * k1_more) / (tf + norm + per_word)
                found += [TermList(term.term, number, idf, scale, at_most, data) for data in lists]
        return found

    def parts(self, scale: float, slots: Int64s, halves: npt.NDArray[np.integer]) -> Floats:
        """What a term that counts for `scale` (idf * weight) adds to rows that hold it so often (half units)."""
        settings = self.view.settings
        return bm25.parts(
            halves, self.view.doc_len[slots], scale=scale, avgdl=self.avgdl, k1=settings.k1, b=settings.b
        )

    def scores(self) -> Floats:
        """BM25 of every row, float64 (n,): 0.0 where no term occurs; dead rows score too."""
        scores = np.zeros(self.view.n)
        loops = kernels.loops
        noted = None if loops is None else _touched(self.view.n)
        for each in self.lists:
            if loops is not None:
                loops.add_part(scores, noted, 0, each.data, self.view.doc_len, each.scale, *self._norms)
                continue
            slots = each.data >> 16
            scores[slots] += self.parts(each.scale, slots, each.data & 0xFFFF)
        return scores if self.boost is None else self._boosted(scores, self.boost, self.view.vrow)

    def _boosted(self, scores: Floats, boost: Floats, vrow: npt.NDArray[np.int32]) -> Floats:
        """`scores` of rows, with the boost of those that match."""
        matching = (scores > 0.0) | (vrow >= 0) if self._by_vector else scores > 0.0
        boosted: Floats = scores + np.where(matching, boost, 0.0)
        return boosted

    def scores_of(self, slots: Int64s) -> Floats:
        """The same for some rows only, (m,), ascending: the same operations in the same order, so the same bits."""
        scores = np.zeros(len(slots))
        self._add_found(self.lists, scores, slots)
        return scores if self.boost is None else self._boosted(scores, self.boost[slots], self.view.vrow[slots])

    def _add_found(self, lists: list[TermList], sums: Floats, slots: Int64s) -> None:
        """Add what the lists say of these rows, ascending."""
        loops = kernels.loops
        for each in lists:
            if loops is not None:
                loops.add_found(sums, slots, each.data, self.view.doc_len, each.scale, *self._norms)
                continue
            held, halves = _search(each.data, slots)
            if len(held):
                sums[held] += self.parts(each.scale, slots[held], halves)

    def best_rows(self, need: int, allowed: Bools | None) -> tuple[Int64s, Floats]:
        """(slots ascending, BM25) of rows among which are the `need` best and all that equal the last of them, for a
        query that has no vector.

        `allowed` (n,) says which rows count; None: all do.
        """
        if self.compiled:
            mask = _NO_MASK if allowed is None else allowed
            if len(self.lists) <= kernels.loops.LISTS[-1]:
                return self._best_of_few(need, mask)
            slots = self._best(need, mask)
            slots.sort()
            return slots, self.scores_of(slots)
        sums = _scratch(self.view.n)
        found: list[Int64s] = []
        try:
            slots, values, left = self._read(sums, found, allowed, need, math.inf)
            if left:
                slots, values = self._with_rest(slots, values, need, left)
        finally:
            for part in found:
                sums[part] = 0.0
        if need < len(slots):
            slots = slots[values >= floor_of_best(values, need) * _LESS]
        slots.sort()
        return slots, self.scores_of(slots)

    def bounds(self, allowed: Bools | None, share: float) -> Bounds:
        """Without the long lists of words that add no more than `share` of the best BM25 in all; for a query and a view
        in which every row has a vector, so that all match."""
        if self.compiled:
            return self._compiled_bounds(allowed, share)
        sums = _scratch(self.view.n)
        found: list[Int64s] = []
        try:
            if self.boost is not None:
                found.append(np.flatnonzero(self.boost))
                sums[found[0]] = self.boost[found[0]]
            slots, values, left = self._read(sums, found, allowed, 1, share)
            bounds = Bounds(0.0, slots, values, _rest(left))
            if left:
                slots, values = self._with_rest(slots, values, 1, left)
        finally:
            for part in found:
                sums[part] = 0.0
        if not len(slots):
            return bounds
        slots = slots[values >= values.max() * _LESS]
        slots.sort()
        return bounds._replace(best=float(self.scores_of(slots).max()))

    # -- the same by compiled loops

    @property
    def compiled(self) -> bool:
        """Whether compiled loops work here, which they do for any number of rows; not for boosts."""
        return kernels.loops is not None and self.boost is None

    def _best_of_few(self, need: int, allowed: Bools) -> tuple[Int64s, Floats]:
        """`best_rows` where a single call takes all lists."""
        lists, loops, n = self.lists, kernels.loops, self.view.n
        missing = next(size for size in loops.LISTS if size >= len(lists)) - len(lists)
        nothing = (0.0,) * missing
        found: tuple[Int64s, Floats] = loops.best_of_lists(
            (*[each.data for each in lists], *(_NO_POSTINGS,) * missing),
            (*[each.scale for each in lists], *nothing),
            (*[each.most for each in lists], *nothing),
            (*[each.number for each in lists], *(-1,) * missing),
            *(self._norms, self.view.doc_len, allowed, need, _LESS, _SKIPPED_MIN, _scratch(n), _touched(n)),
        )
        return found

    def _sum(self, allowed: Bools, need: int, share: float) -> tuple[Floats, Int32s, list[TermList]]:
        """(sums, the rows that have one, the lists left), as `_read`: the sums are this thread's, to be put back to
        zero."""
        loops, doc_len = kernels.loops, self.view.doc_len
        sums, touched = _scratch(self.view.n), _touched(self.view.n)
        lists = sorted(self.lists, key=_length)
        count = 0
        for number, each in enumerate(lists):
            if count >= need and len(each.data) > _SKIPPED_MIN:
                rest = _rest(lists[number:])
                least = loops.floor_of_sums(sums, touched[:count], allowed, need) * _LESS
                if least > rest and rest <= share * least:
                    return sums, touched[:count], lists[number:]
            count = loops.add_part(sums, touched, count, each.data, doc_len, each.scale, *self._norms)
        return sums, touched[:count], []

    def _best(self, need: int, allowed: Bools) -> Int64s:
        """The rows among which are the `need` best, in no order."""
        loops = kernels.loops
        sums, touched, left = self._sum(allowed, need, math.inf)
        least = loops.floor_of_sums(sums, touched, allowed, need) * _LESS - _rest(left)
        slots, values = loops.take_sums(sums, touched, allowed, least)
        if left:
            slots, values = self._with_rest(slots, values, need, left)
            if need < len(slots):
                slots = slots[values >= floor_of_best(values, need) * _LESS]
        found: Int64s = slots
        return found

    def _compiled_bounds(self, allowed: Bools | None, share: float) -> Bounds:
        loops, mask = kernels.loops, _NO_MASK if allowed is None else allowed
        sums, touched, left = self._sum(mask, 1, share)
        slots, values = loops.take_sums(sums, touched, mask, 0.0)
        bounds = Bounds(0.0, slots, values, _rest(left))
        if not len(slots):
            return bounds
        if left:
            near = values >= values.max() * _LESS - bounds.rest
            slots, values = self._with_rest(slots[near], values[near], 1, left)
        slots = slots[values >= values.max() * _LESS]
        slots.sort()
        return bounds._replace(best=float(self.scores_of(slots).max()))

    # -- the same by numpy

    def _read(
        self, sums: Floats, found: list[Int64s], allowed: Bools | None, need: int, share: float
    ) -> tuple[Int64s, Floats, list[TermList]]:
        """Add up the lists, the short ones first, until those left can bring no other row among the `need` best, nor
        add more than `share` of what the last of these has: (the rows found that are allowed, their sums, the terms
        left).

        `found` takes what is to be put back to zero in `sums`; rows that it has already stand there with their boost.
        """
        # Of rows that are found by their words only, the boost comes on top of the sum.
        boost = self.boost if not found else None
        unseen = 0.0 if boost is None else float(boost.max())
        lists = sorted(self.lists, key=_length)
        for number, each in enumerate(lists):
            if found:
                rest = _rest(lists[number:])
                slots, values = self._allowed(sums, found, allowed, boost)
                least = floor_of_best(values, need) * _LESS
                if least > rest + unseen and rest <= share * least:
                    return slots, values, lists[number:]
            slots = each.data >> 16
            before = sums[slots]
            after = sums[slots] = before + self.parts(each.scale, slots, each.data & 0xFFFF)
            # Each once: with a K1 at the end of what there is, a part is zero.
            found.append(slots[(before == 0.0) & (after != 0.0)])
        slots, values = self._allowed(sums, found, allowed, boost)
        return slots, values, []

    @staticmethod
    def _allowed(
        sums: Floats, found: list[Int64s], allowed: Bools | None, boost: Floats | None
    ) -> tuple[Int64s, Floats]:
        if len(found) != 1:
            found[:] = [np.concatenate(found) if found else np.zeros(0, np.int64)]
        slots = found[0] if allowed is None else found[0][allowed[found[0]]]
        return slots, sums[slots] if boost is None else sums[slots] + boost[slots]

    def _with_rest(self, slots: Int64s, values: Floats, need: int, lists: list[TermList]) -> tuple[Int64s, Floats]:
        """Add the lists left to the rows found, dropping rows that cannot be among the `need` best any more."""
        for number in range(len(lists)):
            if need < len(slots):
                near = values >= floor_of_best(values, need) * _LESS - _rest(lists[number:])
                slots, values = slots[near], values[near]
            if number == 0:
                order = slots.argsort()
                slots, values = slots[order], values[order]
            self._add_found(lists[number : number + 1], values, slots)
        return slots, values


def _length(each: TermList) -> int:
    return len(each.data)


def _rest(lists: Sequence[TermList]) -> float:
    """The most that these lists can add to any row, which is in one list of a term only."""
    return sum({each.number: each.most for each in lists}.values()) * (1 + _ROUNDING)


def _search(data: Int64s, slots: Int64s) -> tuple[Int64s, npt.NDArray[np.integer]]:
    """Which of the ascending `slots` a list holds: (their places, their halves)."""
    if not len(slots):
        return slots, slots
    if len(slots) * _SEARCH_ABOVE > len(data):
        at = np.searchsorted(slots, data >> 16)
        within = at < len(slots)
        at, data = at[within], data[within]
        same = slots[at] == data >> 16
        return at[same], data[same] & 0xFFFF
    at = data.searchsorted(slots << 16)
    if at[-1] == len(data):  # the others are before it
        at = at[: int(at.searchsorted(len(data)))]
    there = data[at]
    held = (there >> 16 == slots[: len(at)]).nonzero()[0]
    return held, there[held] & 0xFFFF


def _touched(n: int) -> Int32s:
    """Room for the numbers of `n` rows, this thread's."""
    held: Int32s | None = getattr(scratch.kept, "touched", None)
    if held is None or len(held) < n:
        held = scratch.kept.touched = np.empty(n + (n >> 1), np.int32)
    return held


def _scratch(n: int) -> Floats:
    """Zeros (n or more,) of this thread: whoever changes them puts them back to zero."""
    held: Floats | None = getattr(scratch.kept, "sums", None)
    if held is None or len(held) < n:
        held = scratch.kept.sums = np.zeros(n + (n >> 1))
    return held


def _boost(plan: Plan) -> Floats | None:
    """TAGBOOST for each of a row's tags that the query names, (n,) whether or not the row matches; None for none."""
    view, query = plan.view, plan.query
    if not view.settings.tagboost or query.text is None:
        return None
    counts = view.columns.tag_slots(view).named(query.text, query.max_terms, view.n)
    return None if counts is None else np.float64(min(view.settings.tagboost, _BOOST_MAX)) * counts


def _unposted(plan: Plan, terms: list[int]) -> list[tuple[Int64s, int]]:
    """For each term the postings of the rows behind the lists, and how many of those rows are alive."""
    view, posted = plan.view, plan.posted
    alive, ends = view.alive(), view.terms_end
    first = int(ends[posted - 1]) if posted else 0
    halves = view.fwd_halves[first : int(ends[-1])]
    if kernels.loops is not None and len(terms) <= _TERMS_COMPARED:
        return _compiled_unposted(plan, terms, first)
    found = []
    for at in _places(view.fwd_terms[first : int(ends[-1])], terms):
        slots = posted + np.searchsorted(ends[posted:], first + at, side="right")
        live = len(slots) if alive is None else int(np.count_nonzero(alive[slots]))
        found.append((slots << 16 | halves[at], live))
    return found


def _compiled_unposted(plan: Plan, terms: list[int], first: int) -> list[tuple[Int64s, int]]:
    view, alive, ends = plan.view, plan.view.alive(), plan.view.terms_end
    counts = np.zeros(len(terms), np.int64)
    last = int(ends[-1])
    postings: Int64s = kernels.loops.forward_postings(
        view.fwd_terms[first:last],
        view.fwd_halves[first:last],
        ends,
        plan.posted,
        first,
        np.array(terms, np.uint32),
        counts,
    )
    found, start = [], 0
    for count in counts.tolist():
        data = postings[start : start + count]
        found.append((data, count if alive is None else int(np.count_nonzero(alive[data >> 16]))))
        start += count
    return found


def _places(held: npt.NDArray[np.uint32], terms: list[int]) -> list[Int64s]:
    """Where each of the distinct `terms` stands in the forward index, ascending."""
    if len(terms) <= TERMS_SINGLY:
        return [np.flatnonzero(held == term) for term in terms]
    ids = np.array(terms, np.uint32)
    order = np.argsort(ids)
    ids = ids[order]
    found = np.minimum(np.searchsorted(ids, held), len(ids) - 1)
    at = np.flatnonzero(ids[found] == held)
    which = found[at]
    by_term = np.split(at[np.argsort(which, kind="stable")], np.cumsum(np.bincount(which, minlength=len(ids)))[:-1])
    places: list[Int64s] = [at] * len(ids)
    for number, place in zip(order.tolist(), by_term, strict=True):
        places[number] = place
    return places


