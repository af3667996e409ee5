"""Ranking: every matching record, four signals, one exact order.

    LINEAR   score = wk*keyword + wv*vector + wr*recency + wi*importance, each part scaled to 0..1
    RRF      score = sum of w / (rrf_k + rank) over the signals with a positive weight
    raw      MEM.SEARCH: BM25; MEM.VSEARCH: the similarity

How an exact answer is found without scoring everything exactly: each row's score is first enclosed in an interval (the
similarity is known to about 1e-5 from a float32 scan, the rest to rounding). Rows whose upper end is below the k-th
best lower end cannot be on the page; the few others are scored by the canonical routine, in float64, and sorted by
(score, newer updated_at, smaller id). No row is left out by a window of candidates, and a reported score never comes
from the scan.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from . import bm25
from .analyzer import QueryTerm
from .bm25 import TermHits
from .errors import BadMemory
from .postings import PostingList
from .query import SIGNALS, Hit, Query, Result
from .ranks import meeting, rank_all, rank_bounds
from .settings import Weights
from .vectors import bounds, centroid_similarity, pairwise, similarities
from .view import View, matching

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

#: How many of the best DIVERSITY reorders.
DIVERSITY_WINDOW = 500
# Covers the rounding of what the interval ends are computed from besides the similarity: at most a dozen float64
# operations on values below 4 (LINEAR), with room to spare.
_ROUNDING = 1e-12
# Up to so many terms the forward index is compared with each; a longer query takes one pass for all.
_TERMS_SINGLY = 8
# A filter that keeps fewer than one row in so many makes the scan gather its rows instead of reading all.
_GATHER_BELOW = 5


@dataclass(slots=True)
class Plan:
    """A query and the moment it sees: all that `run` needs, and it needs nothing else."""

    view: View
    query: Query
    terms: list[tuple[QueryTerm, PostingList | None]]  # each with its list as of this moment
    posted: int  # rows below are in the posting lists, the others in the forward index only
    explain_slot: int = -1

    @property
    def cost(self) -> int:
        """About how many float operations the scan takes, to choose between the loop and a thread."""
        query, n = self.query, self.view.n
        dim = len(query.vector) if query.vector is not None else 0
        # A clause looks at a row in about a fifth of a microsecond or, where it is encoded already, much less.
        cost = n * (dim + 32 + 1000 * len(query.filters)) + 5000 * sum(len(clause.values) for clause in query.filters)
        if not n or not self.terms:
            return cost
        ends = self.view.terms_end
        unposted = int(ends[-1]) - (int(ends[self.posted - 1]) if self.posted else 0)
        cost += unposted * min(len(self.terms), _TERMS_SINGLY + 20)
        return cost + 10 * sum(posting.n for _, posting in self.terms if posting is not None)


def run(plan: Plan) -> Result:
    """Answer a query; raises BadMemory where it asks for more than its limits allow."""
    return _Ranking(plan).result()


class _Ranking:
    """One run. Arrays named `..._s` are parallel to `slots`, the matching rows that survive the filters."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.view = view = plan.view
        self.query = query = plan.query
        settings = view.settings
        self.weights: Weights = query.weights or settings.weights
        self.fusion = query.fusion or settings.fusion
        self.half_life_ms = (query.half_life or settings.half_life) * 1000.0
        self.avgdl = view.total_len / view.live if view.live else 0.0
        self.terms = self._terms() if query.text is not None else []
        self.vector = query.vector
        self.centroid = 0.0
        if self.vector is not None and settings.metric == "COSINE":
            self.centroid = centroid_similarity(view.vector_sum, view.vector_live, self.vector)

    # -- which rows match

    def _terms(self) -> list[TermHits]:
        """What the rows hold of the query's terms: from the posting lists, and from the forward index behind them."""
        known = [each for each in self.plan.terms if each[0].term_id >= 0]
        some_unposted = known and self.plan.posted < self.view.n
        behind = self._unposted([term.term_id for term, _ in known]) if some_unposted else None
        found: list[TermHits] = []
        for number, (term, posting) in enumerate(known):
            parts: list[tuple[Int64s, npt.NDArray[Any]]] = []
            df = 0
            if posting is not None and posting.df:
                df = posting.df
                data = posting.data[: posting.n]
                parts.append((data >> 16, data & 0xFFFF))
            if behind is not None:
                slots, halves, live = behind[number]
                df += live
                if live:
                    parts.append((slots, halves))
            if len(parts) == 1:
                found.append(TermHits(term.term, term.weight, df, *parts[0]))
            elif parts:
                slots, halves = (np.concatenate(column) for column in zip(*parts, strict=True))
                found.append(TermHits(term.term, term.weight, df, slots, halves))
        return found

    def _unposted(self, terms: list[int]) -> list[tuple[Int64s, npt.NDArray[np.uint16], int]]:
        """For each term the rows behind the posting lists that hold it, how often, and how many of them are alive."""
        view, posted = self.view, self.plan.posted
        alive, ends = view.alive(), view.terms_end
        first = int(ends[posted - 1]) if posted else 0
        halves = view.fwd_halves[first : int(ends[-1])]
        found = []
        for at in _places(view.fwd_terms[first : int(ends[-1])], terms):
            slots = posted + np.searchsorted(ends[posted:], first + at, side="right")
            live = len(slots) if alive is None else int(np.count_nonzero(alive[slots]))
            found.append((slots, halves[at], live))
        return found

    def _match(self) -> None:
        """Find the matching rows, count them, and apply the filters."""
        view, query = self.view, self.query
        alive = view.alive()
        matched: Bools | None = None
        self.best_keyword = 0.0
        self.keyword: Floats | None = None
        if query.text is not None:
            settings = view.settings
            scores = bm25.score(
                self.terms, view.doc_len, records=view.live, avgdl=self.avgdl, k1=settings.k1, b=settings.b
            )
            if alive is not None:
                scores = np.where(alive, scores, 0.0)
            self.keyword = scores
            matched = scores > 0.0
            self.best_keyword = float(scores.max(initial=0.0))
        if self.vector is not None:
            has = view.vrow >= 0
            if alive is not None:
                has &= alive
            matched = has if matched is None else matched | has
        assert matched is not None
        self.matched = int(np.count_nonzero(matched))
        passing = matching([clause.mask(view) for clause in query.filters])
        if passing is not None:
            matched = matched & passing
        self.slots = np.flatnonzero(matched)
        self.filtered = self.matched - len(self.slots)

    # -- the signals, scaled

    def _score_bounds(self) -> None:
        """keyword_s; sim_low/sim_high, nan where a row has no vector; recency and importance."""
        view, slots = self.view, self.slots
        m = len(slots)
        self.everything = m == view.n  # then `slots` is 0..n-1 and indexing by it would copy for nothing
        self.keyword_s = self._take(self.keyword) if self.keyword is not None else np.zeros(m)
        self.vrow_s = self._take(view.vrow)
        if self.vector is None:
            return
        rows = self.vrow_s[self.vrow_s >= 0]
        if len(rows) > self.query.max_scan:
            raise BadMemory(
                f"a scan of {len(rows)} vectors exceeds mem-max-scan ({self.query.max_scan}); raise it or narrow the"
                " query with FILTER"
            )
        metric = view.settings.metric
        selective = len(rows) * _GATHER_BELOW < view.vector_n
        low, high = bounds(
            view.blocks, view.vector_n, view.norms, self.vector, metric, rows if selective else None
        ) if len(rows) else (np.zeros(0), np.zeros(0))
        if not selective and len(rows) != view.vector_n:
            low, high = low[rows], high[rows]
        if len(rows) == m:
            self.sim_low, self.sim_high = low, high
        else:
            self.sim_low, self.sim_high = np.full(m, np.nan), np.full(m, np.nan)
            has = self.vrow_s >= 0
            self.sim_low[has], self.sim_high[has] = low, high

    def _take(self, column: Any) -> Any:
        return column if self.everything else column[self.slots]

    def _scale_similarity(self, sims: Floats) -> Floats:
        """Similarities to 0..1 (SPEC section 4, LINEAR); monotone; 0 for nan, a row without a vector."""
        metric = self.view.settings.metric
        if metric == "COSINE":
            scaled = np.maximum((sims - self.centroid) / (1.0 - self.centroid), 0.0)
        elif metric == "L2":
            scaled = sims
        else:
            with np.errstate(invalid="ignore"):
                scaled = (1.0 + sims / (1.0 + np.abs(sims))) / 2.0
            scaled = np.where(np.isinf(sims), sims > 0, scaled)
        return np.where(np.isnan(scaled), 0.0, scaled)

    def _recency_estimate(self) -> Floats:
        ages = np.maximum(self.view.now - self._take(self.view.updated), 0)
        recency: Floats = np.exp2(ages * (-1.0 / self.half_life_ms))
        return recency

    def _linear_bounds(self) -> tuple[Floats, Floats]:
        wk, wv, wr, wi = self.weights
        slack = _ROUNDING * (1.0 + wk + wv + wr + wi)
        m = len(self.slots)
        if not math.isfinite(slack):  # weights whose sum is no double any more: nothing can be told from estimates
            return np.full(m, -np.inf), np.full(m, np.inf)
        base = np.zeros(m)
        if wk and self.best_keyword > 0.0:
            base += self.keyword_s * (wk / self.best_keyword)
        if wr:
            base += wr * self._recency_estimate()
        if wi:
            base += wi * self._take(self.view.importance)
        if self.vector is None or not wv:
            return base - slack, base + slack
        low = base + wv * self._scale_similarity(self.sim_low) - slack
        high = base + wv * self._scale_similarity(self.sim_high) + slack
        return low, high

    # -- canonical scores of a few rows, given by their places in `slots`

    def _similarity(self, places: Int64s) -> Floats:
        """Exact similarities, nan where there is no vector."""
        out = np.full(len(places), np.nan)
        if self.vector is None:
            return out
        rows = self.vrow_s[places]
        has = rows >= 0
        out[has] = similarities(self.view.blocks, rows[has], self.vector, self.view.settings.metric)
        return out

    def _recency(self, places: Int64s) -> Floats:
        return self._decayed(self.view.updated[self.slots[places]].tolist())

    def _decayed(self, times: list[int]) -> Floats:
        now = self.view.now
        # Python's pow: numpy's vector routines differ between processors in the last bit.
        return np.array([0.5 ** (max(now - time, 0) / self.half_life_ms) for time in times], np.float64)

    def _linear(self, places: Int64s, sims: Floats, recency: Floats) -> tuple[Floats, dict[str, Floats]]:
        """The LINEAR score and its four contributions."""
        wk, wv, wr, wi = self.weights
        m = len(places)
        keyword = self.keyword_s[places] / self.best_keyword if self.best_keyword > 0.0 else np.zeros(m)
        scaled = {
            "keyword": keyword,
            "vector": self._scale_similarity(sims) if self.vector is not None else np.zeros(m),
            "recency": recency,
            "importance": self.view.importance[self.slots[places]],
        }
        with np.errstate(over="ignore"):
            score = wk * scaled["keyword"] + wv * scaled["vector"] + wr * scaled["recency"] + wi * scaled["importance"]
        return score, scaled

    # -- RRF

    def _rank_columns(self) -> list[tuple[str, Floats, Floats | None]]:
        """The signals that rank: (name, values or lower ends, upper ends or None where values are exact); nan where
        a row lacks the signal."""
        columns: list[tuple[str, Floats, Floats | None]] = []
        if self.query.text is not None:
            columns.append(("keyword", np.where(self.keyword_s > 0.0, self.keyword_s, np.nan), None))
        if self.vector is not None:
            columns.append(("vector", self.sim_low, self.sim_high))
        times, which = np.unique(self._take(self.view.updated), return_inverse=True)
        columns.append(("recency", self._decayed(times.tolist())[which], None))
        columns.append(("importance", self._take(self.view.importance), None))
        return columns

    def _rrf_bounds(self) -> tuple[Floats, Floats]:
        k = self.query.rrf_k
        low, high = np.zeros(len(self.slots)), np.zeros(len(self.slots))
        for name, values, upper in self._rank_columns():
            weight = self.weights[SIGNALS.index(name)]
            if not weight:
                continue
            worst, best = (rank_all(values),) * 2 if upper is None else rank_bounds(values, upper)
            low += np.where(np.isnan(worst), 0.0, weight / (k + worst))
            high += np.where(np.isnan(best), 0.0, weight / (k + best))
        return low - _ROUNDING * high, high + _ROUNDING * high

    def _rrf(self, places: Int64s, ranks: dict[str, Floats]) -> Floats:
        score = np.zeros(len(places))
        for name, weight in zip(SIGNALS, self.weights, strict=True):
            if weight and name in ranks:
                score = score + np.where(np.isnan(ranks[name]), 0.0, weight / (self.query.rrf_k + ranks[name]))
        return score

    def _exact_ranks(self, places: Int64s, sims: Floats) -> dict[str, Floats]:
        """The rank of the rows at `places` by each signal; nan where a row lacks it."""
        ranks: dict[str, Floats] = {}
        for name, values, upper in self._rank_columns():
            if upper is None:
                ranks[name] = rank_all(values)[places]
                continue
            # Only rows whose interval meets that of one of these need their exact similarity to be told apart.
            meets = meeting(values, upper, places)
            with np.errstate(invalid="ignore"):  # -inf and inf: such an interval meets every other
                mixed = (values + upper) * 0.5
            exact_places = np.flatnonzero(meets)
            mixed[exact_places] = self._similarity(exact_places)
            mixed[places] = sims
            ordered = np.sort(mixed[~np.isnan(mixed)])
            better = len(ordered) - np.searchsorted(ordered, sims, side="right")
            ranks[name] = np.where(np.isnan(sims), np.nan, better + 1.0)
        return ranks

    # -- the page

    def result(self) -> Result:
        query = self.query
        self._match()
        self._score_bounds()
        low, high = self._final_bounds()
        keep, below = self._thresholds()
        if keep is not None:
            places = np.flatnonzero(keep)
            low, high = low[places], high[places]
        else:
            places = np.arange(len(self.slots))
        result = Result([], self.view.live, self.matched, self.filtered, below, self._signals(), self._tier())
        if query.explain_id is not None:
            self._explain_one(result, places, low, high)
            return result
        need = query.offset + query.top_k
        if query.diversity is not None:
            need = max(need, DIVERSITY_WINDOW)
        hits = self._best(places, low, high, need)
        result.hits = hits[query.offset : query.offset + query.top_k]
        self._complete(result.hits)
        return result

    def _final_bounds(self) -> tuple[Floats, Floats]:
        kind = self.query.kind
        if kind == "keyword":
            return self.keyword_s, self.keyword_s
        if kind == "vector":
            return self.sim_low, self.sim_high
        return self._linear_bounds() if self.fusion == "LINEAR" else self._rrf_bounds()

    def _thresholds(self) -> tuple[Bools | None, int]:
        """Which rows MINSIM and MINSCORE leave (None: all), and how many MINSCORE dropped of those MINSIM left."""
        query = self.query
        keep: Bools | None = None
        if query.min_sim is not None:
            if self.vector is None:
                keep = np.zeros(len(self.slots), np.bool_)
            else:
                keep = self._at_least(query.min_sim, self.sim_low, self.sim_high, self._similarity)
        if query.min_score is None:
            return keep, 0
        if query.kind == "keyword":
            passing = self.keyword_s >= query.min_score
        elif query.kind == "vector":
            passing = self._at_least(query.min_score, self.sim_low, self.sim_high, self._similarity)
        else:
            low, high = self._linear_bounds()
            passing = self._at_least(
                query.min_score,
                low,
                high,
                lambda places: self._linear(places, self._similarity(places), self._recency(places))[0],
            )
        if keep is None:
            return passing, int(np.count_nonzero(~passing))
        return keep & passing, int(np.count_nonzero(keep & ~passing))

    @staticmethod
    def _at_least(least: float, low: Floats, high: Floats, exact: Any) -> Bools:
        """Whether each value is at least `least`, deciding by the exact value where the interval does not."""
        with np.errstate(invalid="ignore"):
            passing = low >= least
            unsure = np.flatnonzero(~passing & (high >= least))
        if len(unsure):
            passing[unsure] = exact(unsure) >= least
        return passing

    def _best(self, places: Int64s, low: Floats, high: Floats, need: int) -> list[Hit]:
        """The first `need` hits of the ranking, DIVERSITY applied."""
        if need < len(places):
            kth = np.partition(low, len(low) - need)[len(low) - need]
            places = places[high >= kth]
        hits = self._ordered(self._hits(places), need)
        if self.query.diversity is not None:
            hits[:DIVERSITY_WINDOW] = self._diversified(hits[:DIVERSITY_WINDOW])
        return hits

    def _hits(self, places: Int64s) -> dict[str, Any]:
        """The canonical scores of the rows at `places`."""
        sims = self._similarity(places)
        kind = self.query.kind
        part: dict[str, Any] = {"places": places, "sims": sims}
        if kind == "keyword":
            part["score"] = self.keyword_s[places]
        elif kind == "vector":
            part["score"] = sims
        else:
            part["recency"] = self._recency(places)
            if self.fusion == "LINEAR":
                part["score"], _ = self._linear(places, sims, part["recency"])
            else:
                part["score"] = self._rrf(places, self._exact_ranks(places, sims))
        return part

    def _ordered(self, part: dict[str, Any], need: int) -> list[Hit]:
        """Hits in the total order: score, newer updated_at, smaller id."""
        score: Floats = part["score"]
        slots = self.slots[part["places"]]
        updated = self.view.updated[slots]
        order = np.lexsort((-updated, -score))
        if need < len(order):
            last = order[need - 1]
            # All that equal the last in what numbers can say stay in: their ids decide.
            tied = (score[order] == score[last]) & (updated[order] == updated[last])
            tied[:need] = True
            order = order[tied]
        ids = self.view.ids
        kind = self.query.kind
        keyword, sims = self.keyword_s[part["places"]], part["sims"]
        recency = part.get("recency")
        importance = self.view.importance
        rows = [(-float(score[at]), -int(updated[at]), ids[slots[at]], int(at)) for at in order.tolist()]
        rows.sort()
        hits = []
        for negative, _, _, at in rows[:need]:
            slot = int(slots[at])
            hits.append(
                Hit(
                    slot,
                    -negative,
                    float(keyword[at]) if keyword[at] > 0.0 else None,
                    None if np.isnan(sims[at]) else float(sims[at]),
                    float(recency[at]) if recency is not None else None,
                    float(importance[slot]) if kind == "fused" else None,
                )
            )
        return hits

    def _diversified(self, hits: list[Hit]) -> list[Hit]:
        """Reorder greedily by lambda*score - (1-lambda)*(largest similarity to one already chosen)."""
        share = self.query.diversity
        assert share is not None
        view, metric = self.view, self.view.settings.metric
        rows = view.vrow[[hit.slot for hit in hits]] if hits else np.zeros(0, np.int32)
        has = rows >= 0
        vectors = view.gather(rows[has]).astype(np.float64) if has.any() else np.zeros((0, 1))
        at_vector = np.cumsum(has) - 1
        scores = share * np.array([hit.score for hit in hits])
        nearest = np.full(len(hits), -np.inf)
        left = np.ones(len(hits), np.bool_)
        chosen: list[Hit] = []
        # What stands behind the page is not worth choosing, except to MEM.EXPLAIN.
        wanted = len(hits) if self.query.explain_id is not None else self.query.offset + self.query.top_k
        while len(chosen) < min(wanted, len(hits)):
            penalty = np.where(np.isneginf(nearest), 0.0, nearest)
            value = np.where(left, scores - (1.0 - share) * penalty, -np.inf)
            at = int(np.argmax(value))  # the first of equals: the ranking decides ties
            left[at] = False
            chosen.append(hits[at])
            alike = np.zeros(len(hits))
            if has[at]:
                alike[has] = pairwise(vectors, vectors[at_vector[at]], metric)
            nearest = np.maximum(nearest, alike)
        return chosen + [hit for hit, waits in zip(hits, left.tolist(), strict=True) if waits]

    # -- saying why

    def _signals(self) -> list[str]:
        names = []
        if self.query.text is not None:
            names.append("keyword")
        if self.vector is not None:
            names.append("vector")
        if self.query.kind == "fused":
            names += ["recency", "importance"]
        return names

    def _tier(self) -> str:
        if self.vector is None:
            return "keyword"
        return "hybrid" if self.query.text is not None else "vector"

    def _complete(self, hits: list[Hit]) -> None:
        """Add the explanations, where asked for."""
        if not (self.query.explain and hits):
            return
        places = np.searchsorted(self.slots, [hit.slot for hit in hits])
        sims = self._similarity(places)
        ranks = self._exact_ranks(places, sims)
        recency = self._recency(places)
        _, scaled = self._linear(places, sims, recency)
        for at, hit in enumerate(hits):
            hit.explain = self._explanation(hit, at, scaled, ranks)

    def _explanation(self, hit: Hit, at: int, scaled: dict[str, Floats], ranks: dict[str, Floats]) -> dict[str, Any]:
        fused = self.query.kind == "fused"
        raw = {"keyword": hit.keyword, "vector": hit.vector, "recency": hit.recency, "importance": hit.importance}
        parts: dict[str, Any] = {}
        for name in self._signals():
            if raw[name] is None:  # the record does not have it
                continue
            rank = ranks[name][at]
            weight = self.weights[SIGNALS.index(name)] if fused else 1.0
            if not fused:
                contribution = raw[name]
            elif self.fusion == "LINEAR":
                contribution = weight * float(scaled[name][at])
            else:
                contribution = weight / (self.query.rrf_k + float(rank))
            parts[name] = {
                "raw": raw[name],
                "scaled": float(scaled[name][at]),
                "rank": int(rank),
                "weight": weight,
                "contribution": contribution,
            }
        parts["terms"] = self._term_parts(hit.slot)
        parts["tier"] = self._tier()
        return parts

    def _term_parts(self, slot: int) -> list[dict[str, Any]]:
        found = []
        view = self.view
        doc_len = view.doc_len[slot : slot + 1]
        for term in self.terms:
            at = int(np.searchsorted(term.slots, slot))
            if at == len(term.slots) or term.slots[at] != slot:
                continue
            idf = bm25.idf(view.live, term.df)
            part = bm25.parts(
                term.halves[at : at + 1],
                doc_len,
                scale=idf * term.weight,
                avgdl=self.avgdl,
                k1=view.settings.k1,
                b=view.settings.b,
            )
            found.append({"term": term.term, "idf": idf, "tf": int(term.halves[at]) * 0.5, "part": float(part[0])})
        return found

    def _explain_one(self, result: Result, places: Int64s, low: Floats, high: Floats) -> None:
        """MEM.EXPLAIN: the rank and parts of one record, or the first reason why it is not on the page."""
        query, slot = self.query, self.plan.explain_slot
        failed = next((n for n, clause in enumerate(query.filters, 1) if not clause.matches(self.view.row(slot))), None)
        if failed is not None:
            result.reason = f"filter {failed}"
            return
        place = int(np.searchsorted(self.slots, slot))
        if place == len(self.slots) or self.slots[place] != slot:
            result.reason = "no query word and no vector"
            return
        at = int(np.searchsorted(places, place))
        dropped = at == len(places) or places[at] != place
        hit = self._ordered(self._hits(np.array([place])), 1)[0]
        self._complete_one(result, hit)
        if dropped:
            unlike = query.min_sim is not None and not (hit.vector is not None and hit.vector >= query.min_sim)
            result.reason = "under MINSIM" if unlike else "under MINSCORE"
            return
        result.rank = self._rank_of(hit, places, low, high)
        if not query.offset < result.rank <= query.offset + query.top_k:
            result.reason = "beyond TOPK" if result.rank > query.offset else "before OFFSET"

    def _complete_one(self, result: Result, hit: Hit) -> None:
        explain, self.query.explain = self.query.explain, True
        self._complete([hit])
        self.query.explain = explain
        result.hits = [hit]

    def _rank_of(self, hit: Hit, places: Int64s, low: Floats, high: Floats) -> int:
        above = int(np.count_nonzero(low > hit.score))
        unsure = places[(low <= hit.score) & (high >= hit.score)]
        ordered = self._ordered(self._hits(unsure), len(unsure))
        rank = above + 1 + next(n for n, other in enumerate(ordered) if other.slot == hit.slot)
        if self.query.diversity is not None and rank <= DIVERSITY_WINDOW:
            best = self._best(places, low, high, DIVERSITY_WINDOW)
            rank = 1 + next(n for n, other in enumerate(best) if other.slot == hit.slot)
        return rank


def _places(held: npt.NDArray[np.uint32], terms: list[int]) -> list[Int64s]:
    """Where each of the distinct `terms` stands in the forward index, ascending."""
    if len(terms) <= _TERMS_SINGLY:
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
