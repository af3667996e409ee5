"""BM25 of a query over a view: of every row, or of the best ones only.

`best_rows` is MaxScore (Turtle and Flood, 1995) over arrays: the lists of rare terms are read whole; once the k-th best
sum so far exceeds all that the remaining terms could add, rows that hold none of the rare terms cannot be on the page,
and the long lists of common words are only searched for the rows found so far.
"""

from __future__ import annotations

import math
import threading
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from . import bm25
from .bm25 import TermHits
from .selection import floor_of_best

if TYPE_CHECKING:
    from .ranking import Plan

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# Up to so many terms the forward index is compared with each; a longer query takes one pass for all.
TERMS_SINGLY = 8
# Below so many postings nothing is gained by leaving some out.
PRUNE_MIN = 4096
# A list is searched for single rows where it is so many times longer than they are many.
_SEARCH_ABOVE = 8
# What the sums' rounding may be, relative.
_ROUNDING = 1e-12


class Keyword:
    """One query's words against one view."""

    __slots__ = ("avgdl", "terms", "view")

    def __init__(self, plan: Plan) -> None:
        self.view = plan.view
        self.avgdl = self.view.total_len / self.view.live if self.view.live else 0.0
        self.terms = _terms(plan)

    @property
    def postings(self) -> int:
        """How many postings the query's terms have."""
        return sum(len(data) for term in self.terms for data in term.lists)

    def parts(self, term: TermHits, slots: Int64s, halves: npt.NDArray[np.integer]) -> Floats:
        """What `term` adds to these rows, which hold it so often (half units)."""
        view = self.view
        settings = view.settings
        scale = bm25.idf(view.live, term.df) * term.weight
        return bm25.parts(halves, view.doc_len[slots], scale=scale, avgdl=self.avgdl, k1=settings.k1, b=settings.b)

    def scores(self) -> Floats:
        """BM25 of every row, float64 (n,): 0.0 where no term occurs; dead rows score too."""
        scores = np.zeros(self.view.n)
        for term in self.terms:
            for data in term.lists:
                slots = data >> 16
                scores[slots] += self.parts(term, slots, data & 0xFFFF)
        return scores

    def scores_of(self, slots: Int64s) -> Floats:
        """The same for some rows only, (m,): the same operations in the same order, so the same bits."""
        scores = np.zeros(len(slots))
        for term in self.terms:
            for data in term.lists:
                held, halves = _search(data, slots)
                if len(held):
                    scores[held] += self.parts(term, slots[held], halves)
        return scores

    def best_rows(self, need: int, allowed: Bools | None) -> tuple[Int64s, Floats]:
        """(slots ascending, BM25) of rows among which are the `need` best and all that equal the last of them.

        `allowed` (n,) says which rows count; None: all do.
        """
        terms = sorted(self.terms, key=lambda term: sum(map(len, term.lists)))
        most = [self._most(term) for term in terms]
        sums = _scratch(self.view.n)
        found: list[Int64s] = []
        try:
            for number, term in enumerate(terms):
                rest = math.fsum(most[number:]) * (1 + _ROUNDING)
                if number and self._settled(sums, found, allowed, need, rest):
                    self._add_to_found(sums, found, allowed, need, terms[number:], most[number:])
                    break
                for data in term.lists:
                    slots = data >> 16
                    before = sums[slots]
                    sums[slots] = before + self.parts(term, slots, data & 0xFFFF)
                    new = slots[before == 0.0]
                    found.append(new)
            slots = np.concatenate(found) if found else np.zeros(0, np.int64)
            values = sums[slots]
        finally:
            for part in found:
                sums[part] = 0.0
        if allowed is not None:
            passing = allowed[slots]
            slots, values = slots[passing], values[passing]
        if need < len(slots):
            slots = slots[values >= floor_of_best(values, need) * (1 - 2 * _ROUNDING)]
        slots = np.sort(slots)
        return slots, self.scores_of(slots)

    def _most(self, term: TermHits) -> float:
        """The most that a term can add to any row: the highest frequency in a record of one word."""
        settings, view = self.view.settings, self.view
        tf = term.most_halves * 0.5
        norm = settings.k1 * (1.0 - settings.b) + (settings.k1 * settings.b / self.avgdl if self.avgdl else 0.0)
        scale = bm25.idf(view.live, term.df) * term.weight
        return scale * (tf * (settings.k1 + 1.0)) / (tf + norm)

    def _settled(self, sums: Floats, found: list[Int64s], allowed: Bools | None, need: int, rest: float) -> bool:
        """Whether rows not found so far, with `rest` at most, are beyond the page."""
        slots = np.concatenate(found)
        found[:] = [slots]
        if allowed is not None:
            slots = slots[allowed[slots]]
        return len(slots) >= need and floor_of_best(sums[slots], need) * (1 - 2 * _ROUNDING) > rest

    def _add_to_found(
        self,
        sums: Floats,
        found: list[Int64s],
        allowed: Bools | None,
        need: int,
        terms: list[TermHits],
        most: list[float],
    ) -> None:
        """Add the remaining terms to the rows found so far, dropping those that fall behind."""
        slots = found[0] if allowed is None else found[0][allowed[found[0]]]
        for number, term in enumerate(terms):
            values = sums[slots]
            if need < len(slots):
                least = floor_of_best(values, need) * (1 - 2 * _ROUNDING) - math.fsum(most[number:]) * (1 + _ROUNDING)
                slots = slots[values >= least]
            slots = np.sort(slots)
            for data in term.lists:
                held, halves = _search(data, slots)
                if len(held):
                    rows = slots[held]
                    sums[rows] += self.parts(term, rows, halves)


def _search(data: Int64s, slots: Int64s) -> tuple[Int64s, npt.NDArray[np.integer]]:
    """Which of the ascending `slots` a list holds: (their places, their halves)."""
    if len(slots) * _SEARCH_ABOVE > len(data):
        at = np.searchsorted(slots, data >> 16)
        within = at < len(slots)
        at, data = at[within], data[within]
        same = slots[at] == data >> 16
        return at[same], data[same] & 0xFFFF
    at = np.searchsorted(data, slots << 16)
    inside = np.flatnonzero(at < len(data))
    there = data[at[inside]]
    same = there >> 16 == slots[inside]
    return inside[same], there[same] & 0xFFFF


_threads = threading.local()


def _scratch(n: int) -> Floats:
    """Zeros (n or more,) of this thread: whoever changes them puts them back to zero."""
    held: Floats | None = getattr(_threads, "scratch", None)
    if held is None or len(held) < n:
        held = _threads.scratch = np.zeros(n + (n >> 1))
    return held


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
    found = []
    for at in _places(view.fwd_terms[first : int(ends[-1])], terms):
        slots = posted + np.searchsorted(ends[posted:], first + at, side="right")
        live = len(slots) if alive is None else int(np.count_nonzero(alive[slots]))
        found.append((slots << 16 | halves[at], live))
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


