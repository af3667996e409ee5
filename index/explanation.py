"""EXPLAIN and MEM.EXPLAIN: a score taken apart, and why a record is not on the page."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from . import diversity, rrf
from .query import SIGNALS, Hit, Result

if TYPE_CHECKING:
    from .ranking import Ranking

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

# From so long heads the RRF scores of most rows are bounded before any is worked out.
_HEAD = 4096


def complete(ranking: Ranking, hits: list[Hit]) -> None:
    """Give each hit its explanation."""
    if not hits:
        return
    places = np.array([_place(ranking, hit.slot) for hit in hits])
    sims = ranking.similarity(places)
    ranks = rrf.exact_ranks(ranking, places, sims, weighed=False)
    _, scaled = ranking.linear(places, sims, ranking.recency(places))
    terms = _term_parts(ranking, [hit.slot for hit in hits])
    for at, hit in enumerate(hits):
        hit.explain = _explanation(ranking, hit, at, scaled, ranks)
        hit.explain["terms"] = terms[hit.slot]
        hit.explain["tier"] = ranking.tier()


def explain_one(ranking: Ranking, result: Result, places: Int64s | None) -> None:
    """MEM.EXPLAIN: the rank and parts of one record among those at `places` (None: all), or the first reason why it is
    not on the page."""
    query, slot = ranking.query, ranking.plan.explain_slot
    if slot < 0:
        result.reason = ranking.plan.explain_reason
        return
    row = ranking.view.row(slot)
    failed = next((n for n, clause in enumerate(query.filters, 1) if not clause.matches(row)), None)
    if failed is not None:
        result.reason = f"filter {failed}"
        return
    place = _place(ranking, slot)
    if place == ranking.m or ranking.slots_at(np.array([place]))[0] != slot:
        result.reason = "no query word and no vector"
        return
    hit = ranking.ordered(ranking.scores(np.array([place]), ranking.fusion), 1)[0]
    complete(ranking, [hit])
    result.hits = [hit]
    if places is not None and place not in places:
        unlike = query.min_sim is not None and not (hit.vector is not None and hit.vector >= query.min_sim)
        result.reason = "under MINSIM" if unlike else "under MINSCORE"
        return
    result.rank = _rank_of(ranking, hit, places)
    if not query.offset < result.rank <= query.offset + query.top_k:
        result.reason = "beyond TOPK" if result.rank > query.offset else "before OFFSET"


def _place(ranking: Ranking, slot: int) -> int:
    return slot if ranking.slots is None else int(np.searchsorted(ranking.slots, slot))


def _rank_of(ranking: Ranking, hit: Hit, places: Int64s | None) -> int:
    by_rank = ranking.query.kind == "fused" and ranking.fusion == "RRF"
    low, high = rrf.bounds(ranking, _HEAD) if by_rank else ranking.final_bounds()
    if places is None:
        places = np.arange(ranking.m)
    else:
        low, high = low[places], high[places]
    above = int(np.count_nonzero(low > hit.score))
    unsure = places[(low <= hit.score) & (high >= hit.score)]
    ordered = ranking.ordered(ranking.scores(unsure, ranking.fusion), len(unsure))
    rank = above + 1 + next(n for n, other in enumerate(ordered) if other.slot == hit.slot)
    if ranking.query.diversity is not None and rank <= diversity.WINDOW:
        best = ranking.best(places, diversity.WINDOW)
        rank = 1 + next(n for n, other in enumerate(best) if other.slot == hit.slot)
    return rank


def _explanation(
    ranking: Ranking, hit: Hit, at: int, scaled: dict[str, Floats], ranks: dict[str, Floats]
) -> dict[str, Any]:
    fused = ranking.query.kind == "fused"
    raw = {"keyword": hit.keyword, "vector": hit.vector, "recency": hit.recency, "importance": hit.importance}
    parts: dict[str, Any] = {}
    for name in ranking.signals():
        if raw[name] is None:  # the record does not have it
            continue
        rank = ranks[name][at]
        weight = ranking.weights[SIGNALS.index(name)] if fused else 1.0
        if not fused:
            contribution = raw[name]
        elif ranking.fusion == "LINEAR":
            contribution = weight * float(scaled[name][at])
        else:
            contribution = weight / (ranking.query.rrf_k + float(rank))
        parts[name] = {
            "raw": raw[name],
            "scaled": float(scaled[name][at]),
            "rank": int(rank),
            "weight": weight,
            "contribution": contribution,
        }
    boost = None if ranking.words is None else ranking.words.boost
    if boost is not None and boost[hit.slot] and "keyword" in parts:
        parts["keyword"]["tagboost"] = float(boost[hit.slot])
    return parts


def _term_parts(ranking: Ranking, slots: list[int]) -> dict[int, list[dict[str, Any]]]:
    """Each record's words that the query has, and what they add."""
    # Word by word for all records at once: record by record, a thousand words of a thousand hits took 20 s.
    found: dict[int, list[dict[str, Any]]] = {slot: [] for slot in slots}
    words = ranking.words
    if words is None:
        return found
    wanted = np.array(sorted(found))
    for each in words.lists:
        data = each.data
        at = np.searchsorted(data, (wanted << 16).astype(data.dtype))
        inside = at < len(data)
        at, there = at[inside], wanted[inside]
        has = data[at] >> 16 == there
        halves, there = data[at[has]] & 0xFFFF, there[has]
        if not len(there):
            continue
        for slot, half, part in zip(there, halves, words.parts(each.scale, there, halves), strict=True):
            found[int(slot)].append(
                {"term": each.term, "idf": each.idf, "tf": int(half) * 0.5, "part": float(part)}
            )
    return found
