"""Which rows match a query, and what can be said of their scores: intervals of all, exact values of few.

A similarity is enclosed by a scan of codes (to about 0.02), more closely by float32, and is exact from the canonical
routine, in float64; every other part of a score is known to rounding. ranking.py makes the page of it.

A place is an index into the matching rows; `slots[place]` is the row's slot, and where every row matches the two are
the same and `slots` is None.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from . import kernels
from .analyzer import QueryTerm
from .cascade import Scope
from .errors import BadMemory
from .keyword import PRUNE_MIN, TERMS_SINGLY, Bounds, Keyword
from .like import like_mask
from .moment import Moment, joined
from .postings import PostingLists
from .query import SIGNALS, Query
from .scan import Scan, close_intervals, close_intervals_of_all, intervals, scan_rows
from .settings import Weights
from .vectors import centroid_similarity, similarities
from .view import View, matching

AnyFloats = npt.NDArray[np.floating[Any]]
Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

# Covers the rounding of what the interval ends are computed from besides the similarity: at most a dozen float64
# operations on values below 4 (LINEAR), with room to spare; the same in float32.
_ROUNDING = 1e-12
ROUNDING32 = 1e-6
# Words that can add no more than this share of the best BM25 are bounded at first: as much as codes leave open.
_LEFT_OUT = 0.05
# A filter that keeps fewer than one row in so many makes the scan gather its rows instead of reading all.
_GATHER_BELOW = 16
# The same where loops are compiled and gather codes; queries that run together share the pass over all.
_CODES_BELOW = 3
_CODES_BELOW_TOGETHER = 10
# Rows to be looked at closely are gathered while they are fewer than one in so many.
_SCAN_ABOVE = 8
# The same where loops are compiled and gather nothing.
_ALL_ABOVE = 4
# A filter that keeps one row in so many, or fewer, is a list of rows; others are a mask.
_FEW = 16
# What a posting, and a row that a filter keeps, take compiled loops beside its vector.
_POSTING_COST = 20
_KEPT_COST = 200
# To join one more memory, however small, takes 20 microseconds: as long as so many float operations of a scan.
_MEMBER_COST = 100_000


@dataclass(slots=True)
class Plan:
    """A query and the moment it sees: all that `run` needs, and it needs nothing else."""

    view: View
    query: Query
    terms: list[tuple[QueryTerm, PostingLists | None]]  # each with its list as of this moment
    posted: int  # rows below are in the posting lists, the others in the forward index only
    explain_slot: int = -1
    explain_reason: str = "not valid then"  # where there is no slot
    moment: Moment | Scope | None = None  # ASOF, KNOWNAT, several memories: `view` is then to be made of it

    def settled(self) -> Plan:
        """The plan with the view that it is about."""
        if self.moment is None:
            return self
        terms, posted = self.terms, self.posted
        if isinstance(self.moment, Scope):
            view, terms, posted = self.moment.joined(terms)
        else:
            view = joined(self.moment)
        slot, reason = -1, "not valid then"
        if self.query.explain_id is not None:
            slot, known = view.shown_slot(self.query.explain_id)
            reason = "not valid then" if known else "absent"
        return replace(
            self, view=view, terms=terms, posted=posted, explain_slot=slot, moment=None, explain_reason=reason
        )

    @property
    def cost(self) -> int:
        """About how many float operations the scan takes, to choose between the loop and a thread."""
        query, n = self.query, self.view.n
        dim = len(query.vector) if query.vector is not None else 0
        if self.moment is not None:
            n = self.moment.rows
        elif kernels.loops is not None:
            cost = self._compiled_cost(dim)
            if cost is not None:
                return cost
        # A clause looks at a row in about a fifth of a microsecond or, where it is encoded already, much less.
        per_row = dim + (32 if self.moment is None else 200) + 1000 * len(query.filters)
        if query.like is not None or query.fallback_like:
            per_row += 3000
        if query.text is not None and self.view.settings.tagboost:
            per_row += 200
        cost = n * per_row + 5000 * sum(len(clause.values) for clause in query.filters)
        if isinstance(self.moment, Scope):
            cost += _MEMBER_COST * len(self.moment.members)
        if not self.view.n or not self.terms:
            return cost
        ends = self.view.terms_end
        unposted = int(ends[-1]) - (int(ends[self.posted - 1]) if self.posted else 0)
        cost += unposted * min(len(self.terms), TERMS_SINGLY + 20)
        return cost + 10 * sum(posting.n for _, posting in self.terms if posting is not None)


    def _compiled_cost(self, dim: int) -> int | None:
        """The same where compiled loops answer a common kind of query in much less; None for others."""
        query, view = self.query, self.view
        if query.like is not None or query.fallback_like or view.settings.tagboost or self.posted < view.n:
            return None
        if query.kind == "keyword":
            if query.filters or query.counts or query.explain or query.explain_id is not None:
                return None
            return _POSTING_COST * sum(posting.n for _, posting in self.terms if posting is not None)
        if query.kind != "vector" or len(query.filters) != 1:
            return None
        kept = query.filters[0].known_count(view)
        return None if kept is None or kept * _CODES_BELOW > view.n else kept * (2 * dim + _KEPT_COST)


class Matches:
    """One run. Arrays named `..._s` are parallel to the matching rows that survive the filters: indexed by place."""

    def __init__(self, plan: Plan, together: int = 1) -> None:
        """`together`: how many queries run at once, of which those that scan all vectors share the pass."""
        self.together = together
        self.plan = plan = plan.settled()
        self.view = view = plan.view
        self.query = query = plan.query
        settings = view.settings
        self.weights: Weights = query.weights or settings.weights
        self.ranked_by: tuple[tuple[str, float], ...] = tuple(zip(SIGNALS, self.weights, strict=True))  # under RRF
        self.anchor_s: Floats | None = None  # the ranks of a signal beyond the four (recall.py), nan for none
        self.fusion = query.fusion or settings.fusion
        self.half_life_ms = (query.half_life or settings.half_life) * 1000.0
        self.words = Keyword(plan) if query.text is not None else None
        self.vector = query.vector
        self.centroid = 0.0
        if self.vector is not None and settings.metric == "COSINE" and (query.kind == "fused" or query.explain):
            self.centroid = centroid_similarity(view.vector_sum, view.vector_live, self.vector)
        self._enclosed: tuple[AnyFloats, AnyFloats] | None = None
        self.found: Scan | None = None
        self.by_place = False  # whether `found` is of the places' vectors alone, parallel to them
        self.coarse = False  # whether the similarities' intervals are those of codes
        self._match()
        self._vectors()

    # -- which rows match

    def _match(self) -> None:
        """Find the matching rows, count them, and apply the filters."""
        view, query = self.view, self.query
        alive = view.alive()
        self.best_keyword = 0.0
        self.keyword_s: Floats | None = None
        self.bounds: Bounds | None = None  # instead of keyword_s
        self.slots: Int64s | None = None
        matched: Bools | None = None
        if self.words is not None and self._bounds_do() and (view.n >= PRUNE_MIN or self.words.compiled):
            # Every row matches by its vector; what its words add is worked out for the few that may be on the page.
            self.bounds = self.words.bounds(alive, _LEFT_OUT)
            self.best_keyword = self.bounds.best
        elif self.words is not None:
            scores = self.words.scores()
            if alive is not None:
                scores *= alive
            self.keyword_s = scores
            self.best_keyword = float(scores.max(initial=0.0))
        if query.like is not None:
            matched = like_mask(view, query.like, alive)
        elif self.vector is None or view.vector_n < view.n:
            if self.vector is not None:
                matched = view.vrow >= 0
                if alive is not None:
                    matched &= alive
            if self.keyword_s is not None:
                matched = self.keyword_s > 0.0 if matched is None else matched | (self.keyword_s > 0.0)
        else:
            matched = alive  # every row has a vector
        self.m = self.matched = view.n if matched is None else int(np.count_nonzero(matched))
        self.slots = self._passing(matched)
        if self.slots is None:
            self.filtered = 0
            return
        self.m = len(self.slots)
        self.filtered = self.matched - self.m
        if self.m == view.n:
            self.slots = None
        elif self.keyword_s is not None:
            self.keyword_s = self.keyword_s[self.slots]

    def _passing(self, matched: Bools | None) -> Int64s | None:
        """The slots of the matched rows (None: all) that pass the filters; None where all rows do."""
        clauses, view = self.query.filters, self.view
        few = _FEW if kernels.loops is None else _CODES_BELOW
        for number, clause in enumerate(clauses):
            # One that leaves few rows saves looking at the others.
            slots = clause.slots(view, view.n // few)
            if slots is None:
                continue
            for other in (*clauses[:number], *clauses[number + 1 :]):
                slots = slots[other.mask(view)[slots]]
            return slots if matched is None else slots[matched[slots]]
        passing = matching([*self._clauses(), *([] if matched is None else [matched])])
        return None if passing is None else np.flatnonzero(passing)

    def _bounds_do(self) -> bool:
        """Whether the words of most rows need only be bounded."""
        query = self.query
        return (
            query.kind == "fused"
            and self.fusion == "LINEAR"
            and self.vector is not None
            and self.view.vector_n == self.view.n
            and not query.explain  # which wants ranks
            and query.explain_id is None
            and query.min_score is None
        )

    def _clauses(self) -> list[Bools]:
        return [clause.mask(self.view) for clause in self.query.filters]

    def slots_at(self, places: Int64s) -> Int64s:
        return places if self.slots is None else self.slots[places]

    def column(self, column: Any, places: Int64s | None = None) -> Any:
        """Values of the rows at `places`, None: of all matching rows."""
        if self.slots is None:
            return column if places is None else column[places]
        return column[self.slots if places is None else self.slots[places]]

    # -- the similarities, enclosed

    def _vectors(self) -> None:
        """Settle whether all vectors are scanned (`scans`) or the matching rows' alone."""
        self.scans = False
        if self.vector is None:
            return
        view = self.view
        # Every row has a vector and slots are rows, or some have none.
        every = view.vector_n == view.n
        self.vrow_s: Any = self.slots
        if self.slots is None or not every or view.masked:
            self.vrow_s = self.column(view.vrow)
        self.has: Bools | None = None if every else self.vrow_s >= 0
        rows = self.rows
        if len(rows) > self.query.max_scan:
            raise BadMemory(
                f"a scan of {len(rows)} vectors exceeds mem-max-scan ({self.query.max_scan}); raise it or narrow the"
                " query with FILTER"
            )
        # A joined view has no codes.
        below = _GATHER_BELOW
        if kernels.loops is not None:
            below = _CODES_BELOW if self.together == 1 else _CODES_BELOW_TOGETHER
        self.scans = bool(len(rows)) and len(rows) * below >= view.vector_n and not view.masked
        if self.scans:
            return
        found = None if view.masked else scan_rows(view, self.vector, rows.astype(np.int64, copy=False))
        if found is None:
            low, high = self._close_of_rows(rows)
            self._enclosed = self._spaced(low), self._spaced(high)
        else:
            self.take_rows(found)

    @property
    def rows(self) -> Int64s:
        """The numbers of the vectors of the matching rows."""
        rows: Int64s = self.vrow_s if self.has is None else self.vrow_s[self.has]
        return rows

    def take_rows(self, found: Scan) -> None:
        """Go on with these products of `rows`."""
        self.found, self.by_place, self.coarse = found, True, True

    def take_scan(self, found: Scan) -> None:
        """Go on with these products of all vectors."""
        n = self.view.vector_n
        self.found = Scan(found.values[:n], found.rest, None if found.errors is None else found.errors[:n])
        self.coarse = found.errors is not None

    @property
    def enclosed(self) -> tuple[AnyFloats, AnyFloats]:
        """(low, high) of the similarities of all matching rows, nan where there is no vector."""
        if self._enclosed is None:
            assert self.vector is not None and self.found is not None
            if self.by_place:
                low, high = intervals(self.view, self.vector, self.found, self.rows)
                self._enclosed = self._spaced(low), self._spaced(high)
                return self._enclosed
            low, high = intervals(self.view, self.vector, self.found)
            if self.slots is not None or self.has is not None:
                low, high = low[self.rows], high[self.rows]
            self._enclosed = self._spaced(low), self._spaced(high)
        return self._enclosed

    def _spaced(self, values: AnyFloats) -> AnyFloats:
        """Values of the rows that have a vector, among nan for those that have none."""
        if self.has is None or len(values) == self.m:
            return values
        spaced = np.full(self.m, np.nan, values.dtype)
        spaced[self.has] = values
        return spaced

    def close(self, places: Int64s) -> tuple[AnyFloats, AnyFloats]:
        """(low, high) of the similarities at `places` by float32, nan where there is no vector; compiled, the exact
        ones take no longer than to gather the rows."""
        if kernels.loops is not None and kernels.sums_alike and len(places) * _ALL_ABOVE <= self.view.vector_n:
            exact = self.similarity(places)
            return exact, exact
        rows = self.vrow_s[places]
        if self.has is None:
            return self._close_of_rows(rows)
        low = np.full(len(places), np.nan)
        high = low.copy()
        has = np.flatnonzero(rows >= 0)
        low[has], high[has] = self._close_of_rows(rows[has])
        return low, high

    def _close_of_rows(self, rows: Any) -> tuple[AnyFloats, AnyFloats]:
        """The same of these vectors."""
        assert self.vector is not None
        if not len(rows):
            return np.zeros(0), np.zeros(0)
        if len(rows) * _SCAN_ABOVE > self.view.vector_n:
            low, high = close_intervals_of_all(self.view, self.vector)
            return low[rows], high[rows]
        return close_intervals(self.view, self.vector, rows)

    # -- the signals, scaled

    def _scale_similarity(self, sims: AnyFloats) -> AnyFloats:
        """Similarities to 0..1 (SPEC section 4, LINEAR); monotone; 0 for nan, a row without a vector."""
        metric = self.view.settings.metric
        scaled: AnyFloats
        if metric == "COSINE":
            # Python's numbers keep the array's own precision.
            scaled = np.maximum((sims - self.centroid) / (1.0 - self.centroid), 0.0)
        elif metric == "L2":
            scaled = sims
        else:
            with np.errstate(invalid="ignore"):
                scaled = (1.0 + sims / (1.0 + np.abs(sims))) / 2.0
            scaled = np.where(np.isinf(sims), sims > 0, scaled)
        if self.has is None:
            return scaled
        return np.where(np.isnan(scaled), 0.0, scaled)

    def recency_estimate(self, places: Int64s | None = None) -> Floats:
        """Recency to 1e-12, relative."""
        ages = self.view.now - self.column(self.view.updated, places)
        recency: Floats = np.exp2(np.maximum(ages, 0) * (-1.0 / self.half_life_ms))
        return recency

    def linear_bounds(self, places: Int64s | None = None) -> tuple[AnyFloats, AnyFloats]:
        """(low, high) of the LINEAR scores of the rows at `places`, None: of all. For some, the similarities are
        looked at closely."""
        wk, wv, wr, wi = self.weights
        total = 1.0 + wk + wv + wr + wi
        m = self.m if places is None else len(places)
        if not math.isfinite(total * _ROUNDING):
            # Weights whose sum is no double any more: nothing can be told from estimates.
            return np.full(m, -np.inf), np.full(m, np.inf)
        if self.vector is not None and wv and self.view.settings.metric == "COSINE" and total < 1e9:
            return self._cosine_linear_bounds(places, total)
        base = wr * self.recency_estimate(places) if wr else np.zeros(m)
        if wi:
            base += wi * self.column(self.view.importance, places)
        slack = _ROUNDING * (total + wv / (1.0 - self.centroid))
        low, high = base - slack, base + slack
        if wk and self.best_keyword > 0.0:
            words, rest = self._words(places)
            words = words * (wk / self.best_keyword)
            low += words
            high += words + rest * (wk / self.best_keyword)
        if self.vector is not None and wv:
            sim_low, sim_high = self.enclosed if places is None else self.close(places)
            # Weights may be beyond float32.
            low += self._scale_similarity(sim_low.astype(np.float64)) * wv - slack
            high += self._scale_similarity(sim_high.astype(np.float64)) * wv + slack
        return low, high

    def _words(self, places: Int64s | None) -> tuple[Floats, float]:
        """(at least the BM25 of the rows, how much more it can be)."""
        if places is not None:
            return self.keyword_at(places), 0.0
        if self.bounds is not None:
            lower = np.zeros(self.view.n)
            lower[self.bounds.slots] = self.bounds.values
            return self.column(lower), self.bounds.rest
        assert self.keyword_s is not None
        return self.keyword_s, 0.0

    def _cosine_linear_bounds(self, places: Int64s | None, total: float) -> tuple[AnyFloats, AnyFloats]:
        """The same for the common case, in float32 and in as few passes as it takes."""
        wk, wv, wr, wi = self.weights
        per_similarity = wv / (1.0 - self.centroid)
        slack = ROUNDING32 * (total + per_similarity)
        base: AnyFloats
        if places is None:
            base = self.column(self.view.recency_estimate(self.half_life_ms))
            base *= np.float32(wr)
            base += self.column(self.view.importance_estimate()) * np.float32(wi)
        else:
            base = self.recency_estimate(places) * wr
            base += self.column(self.view.importance, places) * wi
            base = base.astype(np.float32)
        more = slack
        if wk and self.best_keyword > 0.0:
            words, rest = self._words(places)
            base += words * (wk / self.best_keyword)  # in float64: there is no bound to TAGBOOST
            more += rest * (wk / self.best_keyword)
        enclosed = self.enclosed if places is None else self.close(places)
        ends = []
        for sims, shift in zip(enclosed, (-slack, more), strict=True):
            end = sims.astype(np.float32) if sims.dtype != np.float32 else sims.copy()
            end -= np.float32(self.centroid)
            end *= np.float32(per_similarity)
            # nan, a row without a vector, adds nothing.
            np.fmax(end, np.float32(0.0), out=end)
            end += base
            end += np.float32(shift)
            ends.append(end)
        return ends[0], ends[1]

    # -- canonical scores of a few rows, given by their places

    def similarity(self, places: Int64s) -> Floats:
        """Exact similarities, nan where there is no vector."""
        view = self.view
        if self.vector is None:
            return np.full(len(places), np.nan)
        rows = self.vrow_s[places]
        starts = None if view.masked or kernels.loops is None else view.codes.row_places.of(view.blocks)
        if self.has is None:
            return similarities(view.blocks, rows, self.vector, view.settings.metric, starts)
        has, out = rows >= 0, np.full(len(places), np.nan)
        out[has] = similarities(view.blocks, rows[has], self.vector, view.settings.metric, starts)
        return out

    def keyword_at(self, places: Int64s) -> Floats:
        """BM25 of the rows at `places`."""
        if self.keyword_s is not None:
            return self.keyword_s[places]
        if self.words is None:
            return np.zeros(len(places))
        if not (places[1:] < places[:-1]).any():
            return self.words.scores_of(self.slots_at(places))
        order = np.argsort(places)
        scores = np.empty(len(places))
        scores[order] = self.words.scores_of(self.slots_at(places[order]))
        return scores

    def recency(self, places: Int64s) -> Floats:
        return self.decayed(self.view.updated[self.slots_at(places)].tolist())

    def decayed(self, times: list[int]) -> Floats:
        """Recency of records updated at these times, to the bit."""
        now = self.view.now
        # Python's pow: numpy's vector routines differ between processors in the last bit.
        return np.array([0.5 ** (max(now - time, 0) / self.half_life_ms) for time in times], np.float64)

    def linear(
        self, places: Int64s, sims: Floats, recency: Floats, keyword: Floats | None = None
    ) -> tuple[Floats, dict[str, Floats]]:
        """The LINEAR score and its four contributions; `keyword` is the rows' BM25, where it is known."""
        wk, wv, wr, wi = self.weights
        m = len(places)
        if keyword is None:
            keyword = self.keyword_at(places)
        scaled: dict[str, Any] = {
            "keyword": keyword / self.best_keyword if self.best_keyword > 0.0 else np.zeros(m),
            "vector": self._scale_similarity(sims) if self.vector is not None else np.zeros(m),
            "recency": recency,
            "importance": self.view.importance[self.slots_at(places)],
        }
        with np.errstate(over="ignore"):
            score = wk * scaled["keyword"] + wv * scaled["vector"] + wr * scaled["recency"] + wi * scaled["importance"]
        return score, scaled
