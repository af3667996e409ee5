"""Ranking: every matching record, four signals, one exact order.

    LINEAR   score = wk*keyword + wv*vector + wr*recency + wi*importance, each part scaled to 0..1
    RRF      score = sum of w / (rrf_k + rank) over the signals with a positive weight
    raw      MEM.SEARCH: BM25; MEM.VSEARCH: the similarity

How an exact answer is found without scoring everything exactly: each row's score is first enclosed in an interval (the
similarity is known to about 0.02 from a scan of codes, the rest to rounding). Rows whose upper end is below the k-th
best lower end cannot be on the page. The few others are looked at again in float32; what is left is scored by the
canonical routine, in float64, and sorted by (score, newer updated_at, smaller id). No row is left out by a window of
candidates, and a reported score never comes from the scan.

A place is an index into the matching rows; `slots[place]` is the row's slot, and where every row matches the two are
the same and `slots` is None.
"""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from . import diversity, explanation, rrf
from .analyzer import QueryTerm
from .errors import BadMemory
from .keyword import PRUNE_MIN, TERMS_SINGLY, Keyword
from .moment import Moment, joined
from .postings import PostingList
from .query import Hit, Query, Result
from .scan import Scan, close_intervals, intervals, scan
from .selection import floor_of_best
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
_ROUNDING32 = 1e-6
# A filter that keeps fewer than one row in so many makes the scan gather its rows instead of reading all.
_GATHER_BELOW = 16
# So many candidates are scored at once; of more, float32 first tells which can be on the page.
_CLOSE_MIN = 32
# Products of one scan at most, in numbers: how many queries share it is limited by that.
_SCAN_PRODUCTS = 16 << 20


@dataclass(slots=True)
class Plan:
    """A query and the moment it sees: all that `run` needs, and it needs nothing else."""

    view: View
    query: Query
    terms: list[tuple[QueryTerm, PostingList | None]]  # each with its list as of this moment
    posted: int  # rows below are in the posting lists, the others in the forward index only
    explain_slot: int = -1
    explain_reason: str = "not valid then"  # where there is no slot
    moment: Moment | None = None  # ASOF, KNOWNAT: `view` is then to be made of it

    def settled(self) -> Plan:
        """The plan with the view that it is about."""
        if self.moment is None:
            return self
        view, slot, reason = joined(self.moment), -1, "not valid then"
        if self.query.explain_id is not None:
            slot, known = view.shown_slot(self.query.explain_id)
            reason = "not valid then" if known else "absent"
        return replace(self, view=view, explain_slot=slot, moment=None, explain_reason=reason)

    @property
    def cost(self) -> int:
        """About how many float operations the scan takes, to choose between the loop and a thread."""
        query, n = self.query, self.view.n
        dim = len(query.vector) if query.vector is not None else 0
        # A clause looks at a row in about a fifth of a microsecond or, where it is encoded already, much less.
        if self.moment is not None:
            n = self.moment.rows
        per_row = dim + (32 if self.moment is None else 200) + 1000 * len(query.filters)
        cost = n * per_row + 5000 * sum(len(clause.values) for clause in query.filters)
        if not self.view.n or not self.terms:
            return cost
        ends = self.view.terms_end
        unposted = int(ends[-1]) - (int(ends[self.posted - 1]) if self.posted else 0)
        cost += unposted * min(len(self.terms), TERMS_SINGLY + 20)
        return cost + 10 * sum(posting.n for _, posting in self.terms if posting is not None)


def run(plan: Plan) -> Result:
    """Answer a query; raises BadMemory where it asks for more than its limits allow."""
    (answer,) = run_together([plan])
    if isinstance(answer, Exception):
        raise answer
    return answer


def run_together(plans: Sequence[Plan]) -> list[Result | Exception]:
    """Answer queries of one memory, those that scan its vectors in one pass; an exception in the place of an answer
    that failed."""
    answers: list[Result | Exception] = [BadMemory("")] * len(plans)
    scanning: list[tuple[int, Ranking]] = []
    for number, plan in enumerate(plans):
        try:
            ranking = Ranking(plan)
            if ranking.scans:
                scanning.append((number, ranking))
            else:
                answers[number] = ranking.result()
        except Exception as error:  # the other queries are to be answered
            answers[number] = error
    while scanning:
        view = scanning[0][1].view
        most = max(1, _SCAN_PRODUCTS // max(1, view.vector_n))
        group = [each for each in scanning if each[1].view.same_rows(view)][:most]
        scanning = [each for each in scanning if each not in group]
        # Later views of a table have the rows of earlier ones before their own.
        widest = max((ranking.view for _, ranking in group), key=lambda view: view.vector_n)
        found = scan(widest, [ranking.vector for _, ranking in group if ranking.vector is not None])
        for (number, ranking), products in zip(group, found, strict=True):
            try:
                ranking.take_scan(products)
                answers[number] = ranking.result()
            except Exception as error:
                answers[number] = error
    return answers


class Ranking:
    """One run. Arrays named `..._s` are parallel to the matching rows that survive the filters: indexed by place."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan = plan.settled()
        self.view = view = plan.view
        self.query = query = plan.query
        settings = view.settings
        self.weights: Weights = query.weights or settings.weights
        self.fusion = query.fusion or settings.fusion
        self.half_life_ms = (query.half_life or settings.half_life) * 1000.0
        self.words = Keyword(plan) if query.text is not None else None
        self.vector = query.vector
        self.centroid = 0.0
        if self.vector is not None and settings.metric == "COSINE":
            self.centroid = centroid_similarity(view.vector_sum, view.vector_live, self.vector)
        self.sim_low: AnyFloats = np.zeros(0)
        self.sim_high: AnyFloats = np.zeros(0)
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
        self.slots: Int64s | None = None
        if self.words is not None and self._pages_only() and self.words.postings >= PRUNE_MIN:
            allowed = matching([*self._clauses(), *([] if alive is None else [alive])])
            self.slots, self.keyword_s = self.words.best_rows(query.offset + query.top_k, allowed)
            self.m = self.matched = len(self.slots)
            self.filtered = 0
            return
        matched: Bools | None = None
        if self.words is not None:
            scores = self.words.scores()
            if alive is not None:
                scores *= alive
            self.keyword_s = scores
            self.best_keyword = float(scores.max(initial=0.0))
        if self.vector is None or view.vector_n < view.n:
            if self.vector is not None:
                matched = view.vrow >= 0
                if alive is not None:
                    matched &= alive
            if self.keyword_s is not None:
                matched = self.keyword_s > 0.0 if matched is None else matched | (self.keyword_s > 0.0)
        else:
            matched = alive  # every row has a vector
        self.m = self.matched = view.n if matched is None else int(np.count_nonzero(matched))
        passing = matching([*self._clauses(), *([] if matched is None else [matched])])
        if passing is None:
            self.filtered = 0
            return
        self.slots = np.flatnonzero(passing)
        self.m = len(self.slots)
        self.filtered = self.matched - self.m
        if self.m == view.n:
            self.slots = None
        elif self.keyword_s is not None:
            self.keyword_s = self.keyword_s[self.slots]

    def _pages_only(self) -> bool:
        """Whether rows beyond the page need not even be counted."""
        query = self.query
        return query.kind == "keyword" and not query.counts and query.explain_id is None and query.diversity is None

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
        self.vrow_s = self.column(view.vrow)
        # Every row has a vector and slots are rows, or some have none.
        self.has: Bools | None = None if view.vector_n == view.n else self.vrow_s >= 0
        rows = self.vrow_s if self.has is None else self.vrow_s[self.has]
        if len(rows) > self.query.max_scan:
            raise BadMemory(
                f"a scan of {len(rows)} vectors exceeds mem-max-scan ({self.query.max_scan}); raise it or narrow the"
                " query with FILTER"
            )
        # A view of two tables has no codes, and its blocks may end anywhere.
        self.scans = bool(len(rows)) and len(rows) * _GATHER_BELOW >= view.vector_n and not view.masked
        if not self.scans:
            close = close_intervals(view, self.vector, rows) if len(rows) else (np.zeros(0), np.zeros(0))
            self._set_intervals(*close)

    def take_scan(self, found: Scan) -> None:
        """Go on with these products of all vectors."""
        assert self.vector is not None
        view, n = self.view, self.view.vector_n
        found = Scan(found.values[:n], found.rest, None if found.errors is None else found.errors[:n])
        self.coarse = found.errors is not None
        low, high = intervals(view, self.vector, found)
        if self.slots is not None or self.has is not None:
            rows = self.vrow_s if self.has is None else self.vrow_s[self.has]
            low, high = low[rows], high[rows]
        self._set_intervals(low, high)

    def _set_intervals(self, low: AnyFloats, high: AnyFloats) -> None:
        if self.has is not None and len(low) != self.m:
            self.sim_low, self.sim_high = np.full(self.m, np.nan, low.dtype), np.full(self.m, np.nan, low.dtype)
            self.sim_low[self.has], self.sim_high[self.has] = low, high
        else:
            self.sim_low, self.sim_high = low, high

    def close(self, places: Int64s) -> tuple[AnyFloats, AnyFloats]:
        """(low, high) of the similarities at `places` by float32, nan where there is no vector."""
        assert self.vector is not None
        rows = self.vrow_s[places]
        if self.has is None:
            return close_intervals(self.view, self.vector, rows)
        low = np.full(len(places), np.nan)
        high = low.copy()
        has = np.flatnonzero(rows >= 0)
        if len(has):
            low[has], high[has] = close_intervals(self.view, self.vector, rows[has])
        return low, high

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
        base = wr * self.recency_estimate(places) if wr else np.zeros(m)
        if wi:
            base += wi * self.column(self.view.importance, places)
        if wk and self.best_keyword > 0.0 and self.keyword_s is not None:
            keyword = self.keyword_s if places is None else self.keyword_s[places]
            base += keyword * (wk / self.best_keyword)
        if self.vector is None or not wv:
            return base - _ROUNDING * total, base + _ROUNDING * total
        sim_low, sim_high = (self.sim_low, self.sim_high) if places is None else self.close(places)
        slack = _ROUNDING * total
        if sim_low.dtype == np.float32:
            # 1 - centroid amplifies what float32 leaves open.
            slack = _ROUNDING32 * (total + wv / (1.0 - self.centroid))
            if total < 1e9:
                base = base.astype(np.float32)
            else:
                sim_low, sim_high = sim_low.astype(np.float64), sim_high.astype(np.float64)
        low = self._scale_similarity(sim_low) * wv
        low += base
        low -= slack
        high = self._scale_similarity(sim_high) * wv
        high += base
        high += slack
        return low, high

    # -- canonical scores of a few rows, given by their places

    def similarity(self, places: Int64s) -> Floats:
        """Exact similarities, nan where there is no vector."""
        out = np.full(len(places), np.nan)
        if self.vector is None:
            return out
        rows = self.vrow_s[places]
        metric = self.view.settings.metric
        if self.has is None:
            return similarities(self.view.blocks, rows, self.vector, metric)
        has = rows >= 0
        out[has] = similarities(self.view.blocks, rows[has], self.vector, metric)
        return out

    def keyword_at(self, places: Int64s) -> Floats:
        return self.keyword_s[places] if self.keyword_s is not None else np.zeros(len(places))

    def recency(self, places: Int64s) -> Floats:
        return self.decayed(self.view.updated[self.slots_at(places)].tolist())

    def decayed(self, times: list[int]) -> Floats:
        """Recency of records updated at these times, to the bit."""
        now = self.view.now
        # Python's pow: numpy's vector routines differ between processors in the last bit.
        return np.array([0.5 ** (max(now - time, 0) / self.half_life_ms) for time in times], np.float64)

    def linear(self, places: Int64s, sims: Floats, recency: Floats) -> tuple[Floats, dict[str, Floats]]:
        """The LINEAR score and its four contributions."""
        wk, wv, wr, wi = self.weights
        m = len(places)
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

    # -- the page

    def result(self) -> Result:
        query = self.query
        keep, below = self._thresholds()
        places = None if keep is None else np.flatnonzero(keep)
        result = Result([], self.view.live, self.matched, self.filtered, below, self.signals(), self.tier())
        result.view = self.view
        if query.explain_id is not None:
            explanation.explain_one(self, result, places)
            return result
        need = query.offset + query.top_k
        hits = self.best(places, need if query.diversity is None else max(need, diversity.WINDOW))
        result.hits = hits[query.offset : query.offset + query.top_k]
        if query.explain:
            explanation.complete(self, result.hits)
        return result

    def final_bounds(self, places: Int64s | None = None) -> tuple[AnyFloats, AnyFloats]:
        """(low, high) of the final scores, RRF excepted."""
        kind = self.query.kind
        if kind == "keyword":
            keyword = self.keyword_s if self.keyword_s is not None else np.zeros(self.m)
            if places is not None:
                keyword = keyword[places]
            return keyword, keyword
        if kind == "vector":
            return (self.sim_low, self.sim_high) if places is None else self.close(places)
        return self.linear_bounds(places)

    def _thresholds(self) -> tuple[Bools | None, int]:
        """Which rows MINSIM and MINSCORE leave (None: all), and how many MINSCORE dropped of those MINSIM left."""
        query = self.query
        keep: Bools | None = None
        if query.min_sim is not None:
            if self.vector is None:
                keep = np.zeros(self.m, np.bool_)
            else:
                keep = self._at_least(query.min_sim, (self.sim_low, self.sim_high), self.close, self.similarity)
        if query.min_score is None:
            return keep, 0
        bounds, close = self.final_bounds(), self.final_bounds
        passing = self._at_least(query.min_score, bounds, close, lambda places: self.scores(places, "LINEAR")["score"])
        if keep is None:
            return passing, int(np.count_nonzero(~passing))
        return keep & passing, int(np.count_nonzero(keep & ~passing))

    def _at_least(
        self,
        least: float,
        bounds: tuple[AnyFloats, AnyFloats],
        close: Callable[[Int64s], tuple[AnyFloats, AnyFloats]],
        exact: Callable[[Int64s], Floats],
    ) -> Bools:
        """Whether each value is at least `least`: by its interval, else by a closer one, else by the exact value."""
        low, high = bounds
        with np.errstate(invalid="ignore"):
            passing: Bools = low >= least
            unsure = np.flatnonzero(~passing & (high >= least))
            if self.coarse and len(unsure) > _CLOSE_MIN:
                low, high = close(unsure)
                passing[unsure[low >= least]] = True
                unsure = unsure[(low < least) & (high >= least)]
        if len(unsure):
            passing[unsure] = exact(unsure) >= least
        return passing

    def best(self, places: Int64s | None, need: int) -> list[Hit]:
        """The first `need` hits of the ranking among the rows at `places` (None: all), DIVERSITY applied."""
        if self.query.kind == "fused" and self.fusion == "RRF":
            hits = self.ordered(rrf.candidates(self, places, need), need)
        else:
            hits = self.ordered(self.scores(self._candidates(places, need), self.fusion), need)
        if self.query.diversity is not None:
            hits[: diversity.WINDOW] = diversity.reordered(self, hits[: diversity.WINDOW])
        return hits

    def _candidates(self, places: Int64s | None, need: int) -> Int64s:
        """The places that may be among the best `need`, by ever closer intervals."""
        if need >= (self.m if places is None else len(places)):
            return np.arange(self.m) if places is None else places
        low, high = self.final_bounds()
        if places is not None:
            low, high = low[places], high[places]
        left = np.flatnonzero(high >= floor_of_best(low, need))
        places = left if places is None else places[left]
        if self.coarse and len(places) > max(_CLOSE_MIN, need):
            low, high = self.final_bounds(places)
            places = places[high >= floor_of_best(low, need)]
        return places

    def scores(self, places: Int64s, fusion: str) -> dict[str, Any]:
        """The canonical scores of the rows at `places`; `fusion` RRF is rrf.py's."""
        sims = self.similarity(places)
        kind = self.query.kind
        part: dict[str, Any] = {"places": places, "sims": sims}
        if kind == "keyword":
            part["score"] = self.keyword_at(places)
        elif kind == "vector":
            part["score"] = sims
        else:
            part["recency"] = self.recency(places)
            if fusion == "LINEAR":
                part["score"], _ = self.linear(places, sims, part["recency"])
            else:
                part["score"] = rrf.scores(self, rrf.exact_ranks(self, places, sims), len(places))
        return part

    def ordered(self, part: dict[str, Any], need: int) -> list[Hit]:
        """Hits in the total order: score, newer updated_at, smaller id."""
        score: Floats = part["score"]
        places: Int64s = part["places"]
        slots = self.slots_at(places)
        if need < len(score):
            # All that equal the last in score stay in: their times and ids decide.
            kept = np.flatnonzero(score >= np.partition(score, len(score) - need)[len(score) - need])
        else:
            kept = np.arange(len(score))
        ids, updated = self.view.ids, self.view.updated
        rows = sorted(
            (-value, -time, ids[slot], at, slot)
            for value, time, at, slot in zip(
                score[kept].tolist(),
                updated[slots[kept]].tolist(),
                kept.tolist(),
                slots[kept].tolist(),
                strict=True,
            )
        )[:need]
        chosen = [row[3] for row in rows]
        fused = self.query.kind == "fused"
        keyword = self.keyword_at(places[chosen]).tolist()
        sims = part["sims"][chosen].tolist()
        recency = part["recency"][chosen].tolist() if fused else [None] * len(rows)
        importance = self.view.importance
        return [
            Hit(
                row[4],
                -row[0],
                words if words > 0.0 else None,
                None if sim != sim else sim,
                fresh,
                float(importance[row[4]]) if fused else None,
            )
            for row, words, sim, fresh in zip(rows, keyword, sims, recency, strict=True)
        ]

    # -- what it was

    def signals(self) -> list[str]:
        names = []
        if self.query.text is not None:
            names.append("keyword")
        if self.vector is not None:
            names.append("vector")
        if self.query.kind == "fused":
            names += ["recency", "importance"]
        return names

    def tier(self) -> str:
        if self.vector is None:
            return "keyword"
        return "hybrid" if self.query.text is not None else "vector"
