"""Ranking: every matching record, four signals, one exact order.

    LINEAR   score = wk*keyword + wv*vector + wr*recency + wi*importance, each part scaled to 0..1
    RRF      score = sum of w / (rrf_k + rank) over the signals with a positive weight
    raw      MEM.SEARCH: BM25; MEM.VSEARCH: the similarity

How an exact answer is found without scoring everything exactly: each row's score is first enclosed in an interval
(matches.py). Rows whose upper end is below the k-th best lower end cannot be on the page. The few others are looked at
again more closely; what is left is scored by the canonical routine and sorted by (score, newer updated_at, smaller
key, smaller id). No row is left out by a window of candidates, and a reported score never comes from the scan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from . import diversity, explanation, kernels, rrf, scratch
from .errors import BadMemory
from .matches import ROUNDING32, AnyFloats, Bools, Floats, Int64s, Matches, Plan
from .parallel import each
from .query import Hit, Result
from .scan import reach, scan, scan_same_rows
from .selection import floor_of_best
from .word_page import word_page

# So many candidates are scored at once; of more, float32 first tells which can be on the page.
_CLOSE_MIN = 32
# The same where loops are compiled: the exact similarity of a row then takes half a microsecond.
_CLOSE_MIN_COMPILED = 256
# Products of one scan at most, in numbers: how many queries share it is limited by that.
_SCAN_PRODUCTS = 16 << 20
# Queries that run together and whose filters leave the same rows, one in so many or fewer, share a pass over those.
_SAME_ROWS_BELOW = 2
# A heap is how compiled loops find the best; for more than so many numpy is faster.
_HEAP_MAX = 512
_NONE32: Any = np.zeros(0, np.float32)
_NONE: Any = np.zeros(0)
_NOWHERE: Any = np.zeros(0, np.int64)


def _scratch(n: int) -> Any:
    """Room for `n` float32 of this thread: new memory would be a page fault for each thousand of them."""
    held = getattr(scratch.kept, "low", None)
    if held is None or len(held) < n:
        held = scratch.kept.low = np.empty(n + (n >> 1), np.float32)
    return held


def run(plan: Plan) -> Result:
    """Answer a query; raises BadMemory where it asks for more than its limits allow."""
    (answer,) = run_together([plan])
    if isinstance(answer, Exception):
        raise answer
    return answer


def run_together(plans: Sequence[Plan]) -> list[Result | Exception]:
    """Answer queries of one memory, those that scan its vectors in one pass; an exception in the place of an answer
    that failed."""
    answers = _run_together(plans)
    for number, plan in enumerate(plans):
        query, answer = plan.query, answers[number]
        if query.fallback_like and query.text is not None and isinstance(answer, Result) and not answer.matched:
            answers[number] = _run_together([replace(plan, query=query.as_like(query.text), terms=[])])[0]
    return answers


def _run_together(plans: Sequence[Plan]) -> list[Result | Exception]:
    answers: list[Result | Exception] = [BadMemory("")] * len(plans)
    scanning: list[tuple[int, Ranking]] = []
    for number, plan in enumerate(plans):
        try:
            plan = plan.settled()
            page = word_page(plan)
            if page is not None:
                answers[number] = page
                continue
            ranking = Ranking(plan, len(plans))
            if ranking.scans:
                scanning.append((number, ranking))
            else:
                answers[number] = ranking.result()
        except Exception as error:  # the other queries are to be answered
            answers[number] = error
    while scanning:
        view = scanning[0][1].view
        group = [each for each in scanning if each[1].view.same_rows(view)]
        scanning = [each for each in scanning if each not in group]
        most = max(1, _SCAN_PRODUCTS // max(1, view.vector_n))
        for part, rows in _parts(group):
            for start in range(0, len(part), most):
                _answer_scanning(part[start : start + most], rows, answers)
    return answers


_Part = list[tuple[int, "Ranking"]]


def _parts(group: _Part) -> list[tuple[_Part, Int64s | None]]:
    """Those that leave the same rows, few enough to be read alone, as queries with the same filter do; the others."""
    parts: list[tuple[_Part, Int64s]] = []
    others: _Part = []
    for number, ranking in group:
        rows = ranking.rows
        if len(rows) * _SAME_ROWS_BELOW > ranking.view.vector_n:
            others.append((number, ranking))
            continue
        same = next((part for part, known in parts if np.array_equal(known, rows)), None)
        if same is None:
            parts.append(([(number, ranking)], rows))
        else:
            same.append((number, ranking))
    others += [part[0] for part, _ in parts if len(part) == 1]
    return [*((part, rows) for part, rows in parts if len(part) > 1), (others, None)]


def _answer_scanning(part: _Part, rows: Int64s | None, answers: list[Result | Exception]) -> None:
    """Answer these queries of one table by one pass, over `rows` where that is all that they are about."""
    vectors = [ranking.vector for _, ranking in part if ranking.vector is not None]
    # Later views of a table have the rows of earlier ones before their own.
    widest = max((ranking.view for _, ranking in part), key=lambda view: view.vector_n)
    of_rows = None if rows is None else scan_same_rows(widest, vectors, rows.astype(np.int64, copy=False))
    found = scan(widest, vectors) if of_rows is None else of_rows

    def answer(at: int) -> None:
        number, ranking = part[at]
        try:
            if of_rows is None:
                ranking.take_scan(found[at])
            else:
                ranking.take_rows(found[at])
            answers[number] = ranking.result()
        except Exception as error:
            answers[number] = error

    each(len(part), answer, rows=len(found[0].values))


class Ranking(Matches):
    """The page that a query asks for."""

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
            return self.enclosed if places is None else self.close(places)
        return self.linear_bounds(places)

    def _thresholds(self) -> tuple[Bools | None, int]:
        """Which rows MINSIM and MINSCORE leave (None: all), and how many MINSCORE dropped of those MINSIM left."""
        query = self.query
        keep: Bools | None = None
        if query.min_sim is not None:
            if self.vector is None:
                keep = np.zeros(self.m, np.bool_)
            else:
                keep = self._at_least(query.min_sim, self.enclosed, self.close, self.similarity)
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
        left = self._quick_candidates(need) if places is None else None
        if left is None:
            low, high = self.final_bounds()
            if places is not None:
                low, high = low[places], high[places]
            left = np.flatnonzero(high >= floor_of_best(low, need))
        places = left if places is None else places[left]
        if self.coarse and len(places) > max(_CLOSE_MIN if kernels.loops is None else _CLOSE_MIN_COMPILED, need):
            low, high = self.final_bounds(places)
            places = places[high >= floor_of_best(low, need)]
        return places

    def _quick_candidates(self, need: int) -> Int64s | None:
        """The same at first sight, by as few passes over the rows as it takes; None where this is not the common case:
        COSINE, by vector or LINEAR, every row with a vector, and without compiled loops that every row matches."""
        view, found, kind = self.view, self.found, self.query.kind
        if found is None or self.has is not None or view.settings.metric != "COSINE":
            return None
        compiled = kernels.loops is not None and need <= _HEAP_MAX
        if self.slots is not None and not compiled:
            return None
        by_error, within = reach(found, view.settings.dim)
        wk, wv, wr, wi = self.weights
        linear = kind != "vector"
        per, more = 1.0, 0.0
        fixed, words, at, per_word = _NONE32, _NONE, _NOWHERE, 0.0
        if linear:
            if wv <= 0.0 or sum(self.weights) >= 1e9:
                return None
            per = wv / (1.0 - self.centroid)
            fixed, more = view.fixed_estimate(self.half_life_ms, (wr, wi))
            within += ROUNDING32 * (1.0 + sum(self.weights) / per)
            if wk and self.best_keyword > 0.0:
                per_word = wk / self.best_keyword
                if self.bounds is not None and self.slots is None:
                    at, words, rest = self.bounds.slots, self.bounds.values, self.bounds.rest
                else:
                    words, rest = self._words(None)
                more += rest * per_word
        values, errors = found.values, found.errors
        slack = 2.0 * per * within + more
        if compiled:
            found_at: Int64s = kernels.loops.near_best(
                values,
                _NONE32 if errors is None else errors,
                per * by_error,
                linear,
                per,
                per * self.centroid,
                fixed,
                _NOWHERE if self.slots is None else self.slots,
                at,
                words,
                per_word,
                slack,
                need,
                _scratch(self.m),
            )
            return found_at
        if linear:
            value = values * np.float32(per)
            value -= np.float32(per * self.centroid)
            np.maximum(value, np.float32(0.0), out=value)
            value += fixed
            if len(at):
                value[at] += words * per_word
            elif len(words):
                value += words * per_word
        else:
            value = values.copy()
        if errors is None:
            return np.flatnonzero(value >= np.float32(floor_of_best(value, need) - slack))
        # Scaling is monotone and never stretches by more than `per`.
        spread = errors * np.float32(per * by_error)
        least = floor_of_best(value - spread, need) - slack
        value += spread
        return np.flatnonzero(value >= np.float32(least))

    def scores(self, places: Int64s, fusion: str) -> dict[str, Any]:
        """The canonical scores of the rows at `places`, and what they are made of; `fusion` RRF is rrf.py's."""
        sims = self.similarity(places)
        kind = self.query.kind
        part: dict[str, Any] = {"places": places, "sims": sims}
        if kind == "vector":
            part["score"] = sims
            return part
        part["keyword"] = self.keyword_at(places)
        if kind == "keyword":
            part["score"] = part["keyword"]
            return part
        part["recency"] = self.recency(places)
        if fusion == "LINEAR":
            part["score"], _ = self.linear(places, sims, part["recency"], part["keyword"])
        else:
            part["score"] = rrf.scores(self, rrf.exact_ranks(self, places, sims, weighed=True), len(places))
        return part

    def ordered(self, part: dict[str, Any], need: int) -> list[Hit]:
        """Hits in the total order: score, newer updated_at, smaller key, smaller id."""
        score: Floats = part["score"]
        slots = self.slots_at(part["places"])
        view = self.view
        least = floor_of_best(score, need)  # all that equal the last stay in: their times and ids decide
        ids, key, updated = view.ids, view.key, view.updated.item
        rows = sorted(
            (-value, -updated(slot), key(slot) or b"", ids[slot], at, slot)
            for at, (value, slot) in enumerate(zip(score.tolist(), slots.tolist(), strict=True))
            if value >= least
        )[:need]
        sims, words, fresh, importance = part["sims"].item, None, None, None
        if "keyword" in part:
            words = part["keyword"].item
        if "recency" in part:
            fresh, importance = part["recency"].item, view.importance.item
        return [
            Hit(
                slot,
                -value,
                None if words is None else words(at) or None,
                None if (sim := sims(at)) != sim else sim,
                None if fresh is None else fresh(at),
                None if importance is None else importance(slot),
            )
            for value, _, _, _, at, slot in rows
        ]

    # -- what it was

    def signals(self) -> list[str]:
        names = []
        if self.query.text is not None:
            names.append("keyword")
        if self.vector is not None:
            names.append("vector")
        if self.query.like is not None:
            return ["recency"]
        if self.query.kind == "fused":
            names += ["recency", "importance"]
        return names

    def tier(self) -> str:
        if self.query.like is not None:
            return "like"
        if self.vector is None:
            return "keyword"
        return "hybrid" if self.query.text is not None else "vector"
