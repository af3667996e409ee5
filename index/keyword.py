"""BM25 of a query over a view: of every row, or of the best ones only.

TAGBOOST, where the query names tags, is one more addend of the rows that match: known for every row from the start.

`best_rows` is MaxScore (Turtle and Flood, 1995) over arrays: the lists of rare terms are read whole; once the k-th best
sum so far exceeds all that the remaining terms could add, rows that hold none of the rare terms cannot be on the page,
and the long lists of common words are only searched for the rows found so far.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from . import bm25, kernels, scratch
from .bm25 import TermHits
from .selection import floor_of_best

if TYPE_CHECKING:
    from .matches import Plan

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
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
_SKIPPED_MIN = 4096
_NO_MASK: Bools = np.zeros(0, np.bool_)
# What the sums' rounding may be, relative.
_ROUNDING = 1e-12
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

    __slots__ = ("_by_vector", "avgdl", "boost", "terms", "view")

    def __init__(self, plan: Plan) -> None:
        self.view = plan.view
        self._by_vector = plan.query.vector is not None  # a row with a vector matches, whatever its words
        self.avgdl = self.view.total_len / self.view.live if self.view.live else 0.0
        self.terms = _terms(plan)
        self.boost = _boost(plan)

    def parts(self, term: TermHits, slots: Int64s, halves: npt.NDArray[np.integer]) -> Floats:
        """What `term` adds to these rows, which hold it so often (half units)."""
        view = self.view
        settings = view.settings
        scale = bm25.idf(view.live, term.df) * term.weight
        return bm25.parts(halves, view.doc_len[slots], scale=scale, avgdl=self.avgdl, k1=settings.k1, b=settings.b)

    def scores(self) -> Floats:
        """BM25 of every row, float64 (n,): 0.0 where no term occurs; dead rows score too."""
        scores = np.zeros(self.view.n)
        loops = kernels.loops
        noted = None if loops is None else _touched(self.view.n)
        for term in self.terms:
            for data in term.lists:
                if loops is not None:
                    loops.add_part(scores, noted, 0, data, self.view.doc_len, *self._factors(term))
                    continue
                slots = data >> 16
                scores[slots] += self.parts(term, slots, data & 0xFFFF)
        return scores if self.boost is None else self._boosted(scores, self.boost, self.view.vrow)

    def _boosted(self, scores: Floats, boost: Floats, vrow: npt.NDArray[np.int32]) -> Floats:
        """`scores` of rows, with the boost of those that match."""
        matching = (scores > 0.0) | (vrow >= 0) if self._by_vector else scores > 0.0
        boosted: Floats = scores + np.where(matching, boost, 0.0)
        return boosted

    def scores_of(self, slots: Int64s) -> Floats:
        """The same for some rows only, (m,), ascending: the same operations in the same order, so the same bits."""
        scores = np.zeros(len(slots))
        loops = kernels.loops
        for term in self.terms:
            for data in term.lists:
                if loops is not None:
                    loops.add_found(scores, slots, data, self.view.doc_len, *self._factors(term))
                    continue
                held, halves = _search(data, slots)
                if len(held):
                    scores[held] += self.parts(term, slots[held], halves)
        return scores if self.boost is None else self._boosted(scores, self.boost[slots], self.view.vrow[slots])

    def best_rows(self, need: int, allowed: Bools | None) -> tuple[Int64s, Floats]:
        """(slots ascending, BM25) of rows among which are the `need` best and all that equal the last of them, for a
        query that has no vector.

        `allowed` (n,) says which rows count; None: all do.
        """
        if self.compiled:
            slots, values, _ = self._best(need, allowed)
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
            slots = slots[values >= floor_of_best(values, need) * (1 - 2 * _ROUNDING)]
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
            bounds = Bounds(0.0, slots, values, math.fsum(map(self._most, left)) * (1 + _ROUNDING))
            if left:
                slots, values = self._with_rest(slots, values, 1, left)
        finally:
            for part in found:
                sums[part] = 0.0
        if not len(slots):
            return bounds
        slots = slots[values >= values.max() * (1 - 2 * _ROUNDING)]
        slots.sort()
        return bounds._replace(best=float(self.scores_of(slots).max()))

    # -- the same by compiled loops

    @property
    def compiled(self) -> bool:
        """Whether compiled loops work here, which they do for any number of rows; not for boosts."""
        return kernels.loops is not None and self.boost is None

    def _factors(self, term: TermHits) -> tuple[float, float, float, float]:
        """What `parts` computes of a term alone, by the same operations."""
        view = self.view
        k1, b = view.settings.k1, view.settings.b
        scale = bm25.idf(view.live, term.df) * term.weight
        return scale, k1 + 1.0, k1 * (1.0 - b), k1 * b / self.avgdl if self.avgdl else 0.0

    def _sum(self, allowed: Bools, need: int, share: float) -> tuple[Floats, npt.NDArray[np.int32], list[TermHits]]:
        """(sums, the rows that have one, the terms left), as `_read`: the sums are this thread's, to be put back to
        zero."""
        loops, doc_len = kernels.loops, self.view.doc_len
        sums, touched = _scratch(self.view.n), _touched(self.view.n)
        terms = sorted(self.terms, key=lambda term: sum(map(len, term.lists)))
        most = [self._most(term) for term in terms]
        count = 0
        for number, term in enumerate(terms):
            if count >= need and sum(map(len, term.lists)) > _SKIPPED_MIN:
                rest = math.fsum(most[number:]) * (1 + _ROUNDING)
                least = loops.floor_of_sums(sums, touched[:count], allowed, need) * (1 - 2 * _ROUNDING)
                if least > rest and rest <= share * least:
                    return sums, touched[:count], terms[number:]
            for data in term.lists:
                count = loops.add_part(sums, touched, count, data, doc_len, *self._factors(term))
        return sums, touched[:count], []

    def _best(self, need: int, allowed: Bools | None) -> tuple[Int64s, Floats, list[TermHits]]:
        """The rows among which are the `need` best, in no order, and their sums of the terms in some order."""
        loops, mask = kernels.loops, _NO_MASK if allowed is None else allowed
        sums, touched, left = self._sum(mask, need, math.inf)
        rest = math.fsum(map(self._most, left)) * (1 + _ROUNDING)
        least = loops.floor_of_sums(sums, touched, mask, need) * (1 - 2 * _ROUNDING) - rest
        slots, values = loops.take_sums(sums, touched, mask, least)
        if left:
            slots, values = self._with_rest(slots, values, need, left)
            if need < len(slots):
                slots = slots[values >= floor_of_best(values, need) * (1 - 2 * _ROUNDING)]
        return slots, values, left

    def _compiled_bounds(self, allowed: Bools | None, share: float) -> Bounds:
        loops, mask = kernels.loops, _NO_MASK if allowed is None else allowed
        sums, touched, left = self._sum(mask, 1, share)
        slots, values = loops.take_sums(sums, touched, mask, 0.0)
        bounds = Bounds(0.0, slots, values, math.fsum(map(self._most, left)) * (1 + _ROUNDING))
        if not len(slots):
            return bounds
        if left:
            near = values >= values.max() * (1 - 2 * _ROUNDING) - bounds.rest
            slots, values = self._with_rest(slots[near], values[near], 1, left)
        slots = slots[values >= values.max() * (1 - 2 * _ROUNDING)]
        slots.sort()
        return bounds._replace(best=float(self.scores_of(slots).max()))

    # -- the same by numpy

    def _read(
        self, sums: Floats, found: list[Int64s], allowed: Bools | None, need: int, share: float
    ) -> tuple[Int64s, Floats, list[TermHits]]:
        """Add up the lists, the short ones first, until those left can bring no other row among the `need` best, nor
        add more than `share` of what the last of these has: (the rows found that are allowed, their sums, the terms
        left).

        `found` takes what is to be put back to zero in `sums`; rows that it has already stand there with their boost.
        """
        # Of rows that are found by their words only, the boost comes on top of the sum.
        boost = self.boost if not found else None
        unseen = 0.0 if boost is None else float(boost.max())
        terms = sorted(self.terms, key=lambda term: sum(map(len, term.lists)))
        most = [self._most(term) for term in terms]
        for number, term in enumerate(terms):
            if found:
                rest = math.fsum(most[number:]) * (1 + _ROUNDING)
                slots, values = self._allowed(sums, found, allowed, boost)
                least = floor_of_best(values, need) * (1 - 2 * _ROUNDING)
                if least > rest + unseen and rest <= share * least:
                    return slots, values, terms[number:]
            for data in term.lists:
                slots = data >> 16
                before = sums[slots]
                after = sums[slots] = before + self.parts(term, slots, data & 0xFFFF)
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

    def _with_rest(
        self, slots: Int64s, values: Floats, need: int, terms: list[TermHits]
    ) -> tuple[Int64s, Floats]:
        """Add the terms left to the rows found, dropping rows that cannot be among the `need` best any more."""
        most = [self._most(term) for term in terms]
        for number, term in enumerate(terms):
            if need < len(slots):
                least = floor_of_best(values, need) * (1 - 2 * _ROUNDING) - math.fsum(most[number:]) * (1 + _ROUNDING)
                near = values >= least
                slots, values = slots[near], values[near]
            if number == 0:
                order = slots.argsort()
                slots, values = slots[order], values[order]
            for data in term.lists:
                if kernels.loops is not None:
                    kernels.loops.add_found(values, slots, data, self.view.doc_len, *self._factors(term))
                    continue
                held, halves = _search(data, slots)
                if len(held):
                    values[held] += self.parts(term, slots[held], halves)
        return slots, values

    def _most(self, term: TermHits) -> float:
        """The most that a term can add to any row: the highest frequency in a record of one word."""
        settings, view = self.view.settings, self.view
        tf = term.most_halves * 0.5
        norm = settings.k1 * (1.0 - settings.b) + (settings.k1 * settings.b / self.avgdl if self.avgdl else 0.0)
        scale = bm25.idf(view.live, term.df) * term.weight
        return scale * (tf * (settings.k1 + 1.0)) / (tf + norm)


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


def _touched(n: int) -> npt.NDArray[np.int32]:
    """Room for the numbers of `n` rows, this thread's."""
    held: npt.NDArray[np.int32] | None = getattr(scratch.kept, "touched", None)
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


def _terms(plan: Plan) -> list[TermHits]:
    """What the rows hold of the query's terms: from the posting lists, and from the forward index behind them."""
    known = [each for each in plan.terms if each[0].term_id >= 0]
    some_unposted = known and plan.posted < plan.view.n
    behind = _unposted(plan, [term.term_id for term, _ in known]) if some_unposted else None
    found: list[TermHits] = []
    shown = plan.view.alive() if plan.view.masked else None
    for number, (term, posting) in enumerate(known):
        lists: list[Int64s] = []
        df = most = 0
        if posting is not None and posting.df:
            df, most = posting.df, posting.most
            data = posting.data[: posting.n]
            if shown is not None:
                df = int(np.count_nonzero(shown[data >> 16]))
            if df:
                lists.append(data)
        if behind is not None:
            data, live = behind[number]
            df += live
            if live:
                lists.append(data)
                most = max(most, int((data & 0xFFFF).max()))
        if lists:
            found.append(TermHits(term.term, term.weight, df, lists, most))
    return found


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


