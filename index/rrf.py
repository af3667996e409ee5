"""Reciprocal rank fusion over every matching record, exact, though most ranks are never worked out.

    score = sum over the signals with a positive weight of weight / (rrf_k + rank)

The head of each signal, its best few hundred rows, has exact ranks by itself; every other row ranks behind them, which
bounds what the signal can add to it. Sums of these bounds leave a few candidates (Fagin's threshold algorithm, the
lists read as arrays), whose ranks are then counted exactly.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .selection import floor_of_best

if TYPE_CHECKING:
    from .ranking import Ranking

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]

_HEAD_MIN = 512
# More candidates than this beside four per wanted hit: longer heads cost less than their exact ranks.
_CANDIDATES_MAX = 64
# The rounding of a sum of four quotients, relative.
_ROUNDING = 1e-12
# How far `recency_estimate` may be off, relative, and below which size it is only noise.
_ESTIMATE = 1e-11
_NOISE = 1e-290
# Up to so many values are counted one by one; for more the column is sorted.
_COUNT_SINGLY = 32


def candidates(ranking: Ranking, places: Int64s | None, need: int) -> dict[str, Any]:
    """The canonical scores of the places that may be among the best `need` of `places` (None: all)."""
    among = ranking.m if places is None else len(places)
    head = max(_HEAD_MIN, 2 * need)
    while need < among and head < ranking.m:
        low, high = bounds(ranking, head)
        if places is not None:
            low, high = low[places], high[places]
        left = np.flatnonzero(high >= floor_of_best(low, need))
        if len(left) <= 4 * need + _CANDIDATES_MAX:
            return ranking.scores(left if places is None else places[left], "RRF")
        head *= 4
    return ranking.scores(np.arange(ranking.m) if places is None else places, "RRF")


def scores(ranking: Ranking, ranks: dict[str, Floats], m: int) -> Floats:
    """The score (m,) for these ranks, nan where a row lacks a signal."""
    score = np.zeros(m)
    for name, weight in ranking.ranked_by:
        if weight and name in ranks:
            score = score + np.where(np.isnan(ranks[name]), 0.0, weight / (ranking.query.rrf_k + ranks[name]))
    return score


def exact_ranks(ranking: Ranking, places: Int64s, sims: Floats, *, weighed: bool) -> dict[str, Floats]:
    """The rank of the rows at `places` by each signal, or by those that weigh something, 1 + how many rows are better;
    nan where a row lacks the signal.

    `sims` are their exact similarities.
    """
    wanted = {name for name, weight in ranking.ranked_by if weight or not weighed}
    ranks: dict[str, Floats] = {}
    if "keyword" in wanted and ranking.query.text is not None:
        values = ranking.keyword_at(places)
        ranks["keyword"] = np.where(values > 0.0, _ranks(ranking.keyword_s, values), np.nan)
    if "vector" in wanted and ranking.vector is not None:
        ranks["vector"] = np.where(np.isnan(sims), np.nan, _ranks(_similarities_around(ranking, places, sims), sims))
    if "recency" in wanted:
        ranks["recency"] = _recency_ranks(ranking, places)
    if "importance" in wanted:
        importance = ranking.view.importance
        ranks["importance"] = _ranks(ranking.column(importance), ranking.column(importance, places))
    if "anchor" in wanted and ranking.anchor_s is not None:
        ranks["anchor"] = ranking.anchor_s[places]
    return ranks


def _ranks(column: Any, values: Any) -> Floats:
    """1 + how many of `column` exceed each value; nan in the column exceeds nothing."""
    if len(values) <= _COUNT_SINGLY:
        with np.errstate(invalid="ignore"):
            return np.array([1.0 + np.count_nonzero(column > value) for value in values], np.float64)
    ordered = np.sort(column[~np.isnan(column)])
    ranks: Floats = 1.0 + (len(ordered) - np.searchsorted(ordered, values, side="right"))
    return ranks


def _similarities_around(ranking: Ranking, places: Int64s, sims: Floats) -> Floats:
    """A column that compares with each of `sims` as the exact similarities do: exact for every row whose interval holds
    one of them, elsewhere within the interval."""
    points = np.unique(sims[~np.isnan(sims)])
    low, high = ranking.enclosed
    with np.errstate(invalid="ignore"):  # -inf and inf: such an interval holds every point
        column: Floats = (low.astype(np.float64) + high) * 0.5
    unsure = np.flatnonzero(_holds(low, high, points))
    if ranking.coarse and len(unsure):
        low, high = ranking.close(unsure)
        with np.errstate(invalid="ignore"):
            column[unsure] = (low.astype(np.float64) + high) * 0.5
        unsure = unsure[_holds(low, high, points)]
    column[unsure] = ranking.similarity(unsure)
    column[places] = sims
    return column


def _holds(low: Any, high: Any, points: Floats) -> npt.NDArray[np.bool_]:
    """Which intervals hold one of the ascending `points`."""
    at = np.searchsorted(points, low, side="left")
    inside = at < len(points)
    at[~inside] = 0
    with np.errstate(invalid="ignore"):
        holds: npt.NDArray[np.bool_] = inside & (points[at] <= high) if len(points) else inside
    return holds


def _recency_ranks(ranking: Ranking, places: Int64s) -> Floats:
    exact = ranking.recency(places)
    updated = ranking.column(ranking.view.updated)
    estimate = ranking.recency_estimate()
    if len(places) > _COUNT_SINGLY:
        order = np.argsort(exact)
        near = _near(estimate, exact[order])
        estimate[near] = _decayed(ranking, updated[near])
        return _ranks(estimate, exact)
    ranks = np.empty(len(places))
    known: dict[float, float] = {}
    for number, (place, value) in enumerate(zip(places.tolist(), exact.tolist(), strict=True)):
        if value not in known:
            better = estimate > value * (1 + _ESTIMATE) + _NOISE
            unsure = updated[~better & (estimate >= value * (1 - _ESTIMATE) - _NOISE)]
            closer = 0
            if (unsure != updated[place]).any():  # others than those of the same time, which is the common case
                closer = int(np.count_nonzero(_decayed(ranking, unsure) > value))
            known[value] = 1.0 + np.count_nonzero(better) + closer
        ranks[number] = known[value]
    return ranks


def _near(estimate: Floats, points: Floats) -> Int64s:
    """The rows whose estimate cannot be told from one of the ascending `points`."""
    return np.flatnonzero(_holds(estimate * (1 - _ESTIMATE) - _NOISE, estimate * (1 + _ESTIMATE) + _NOISE, points))


def _decayed(ranking: Ranking, times: Int64s) -> Floats:
    unique, which = np.unique(times, return_inverse=True)
    return ranking.decayed(unique.tolist())[which]


def bounds(ranking: Ranking, head: int) -> tuple[Floats, Floats]:
    """(low, high) of the score of every matching row, from heads of about `head` rows."""
    low, high = np.zeros(ranking.m), np.zeros(ranking.m)
    k = ranking.query.rrf_k
    for name, weight in ranking.ranked_by:
        if not weight:
            continue
        found = _HEADS[name](ranking, head)
        if found is None:
            continue
        rows, best, worst, behind = found
        others = weight / (k + behind) if behind else 0.0
        high += others
        high[rows] += weight / (k + best) - others
        low[rows] += weight / (k + worst)
    return low * (1 - _ROUNDING), high * (1 + _ROUNDING) + _NOISE


# A head: (rows, the best and the worst rank that each can have, the best that any other row can have, 0 where no other
# row has the signal).
_Head = tuple[Int64s, Floats, Floats, int]


def _keyword_head(ranking: Ranking, head: int) -> _Head | None:
    values = ranking.keyword_s
    if values is None or ranking.query.text is None:
        return None
    rows = np.flatnonzero(values)  # none is negative; most are zero, which would make a partition slow
    held = values[rows]
    least = floor_of_best(held, head)
    among = held >= least
    ranks = _ranks_within(held[among])
    return rows[among], ranks, ranks, len(ranks) + 1 if least > 0.0 else 0


def _vector_head(ranking: Ranking, head: int) -> _Head | None:
    if ranking.vector is None:
        return None
    low, high = ranking.enclosed
    if ranking.has is not None:
        low = np.where(ranking.has, low, np.float32(-np.inf))
    least = floor_of_best(low, head)
    every = least == -np.inf  # fewer rows have a vector
    with np.errstate(invalid="ignore"):
        rows = np.flatnonzero(high >= least)  # nan, a row without a vector, is not
    if ranking.coarse:
        low, high = ranking.close(rows)
        least = max(least, floor_of_best(low, head))
    else:
        low, high = low[rows], high[rows]
    lows, highs = np.sort(low), np.sort(high)
    best: Floats = (1 + len(rows) - np.searchsorted(lows, high, side="right")).astype(np.float64)
    worst: Floats = np.maximum(len(rows) - np.searchsorted(highs, low, side="left"), 1).astype(np.float64)
    # A row of the head that may be below `least` may have better ones outside.
    worst[low < least] = ranking.m
    return rows, best, worst, 0 if every else head + 1


def _recency_head(ranking: Ranking, head: int) -> _Head:
    estimate = ranking.recency_estimate()
    least = floor_of_best(estimate, head) * (1 - _ESTIMATE) - _NOISE
    rows = np.flatnonzero(estimate >= least)
    exact = _decayed(ranking, ranking.column(ranking.view.updated)[rows])
    # An exact value within the estimate's error of `least` may be that of a row outside too.
    certain = exact > least * (1 + _ESTIMATE) + _NOISE if least > 0.0 else np.ones(len(rows), np.bool_)
    ranks = _ranks_within(exact)[certain]
    return rows[certain], ranks, ranks, int(np.count_nonzero(certain)) + 1


def _importance_head(ranking: Ranking, head: int) -> _Head:
    values = ranking.column(ranking.view.importance)
    rows = np.flatnonzero(values >= floor_of_best(values, head))
    ranks = _ranks_within(values[rows])
    return rows, ranks, ranks, len(rows) + 1


def _anchor_head(ranking: Ranking, head: int) -> _Head | None:
    if ranking.anchor_s is None:
        return None
    rows = np.flatnonzero(~np.isnan(ranking.anchor_s))
    ranks = ranking.anchor_s[rows]
    return rows, ranks, ranks, 0


def _ranks_within(values: Any) -> Floats:
    ordered = np.sort(values)
    ranks: Floats = 1.0 + (len(ordered) - np.searchsorted(ordered, values, side="right"))
    return ranks


_HEADS: dict[str, Any] = {
    "keyword": _keyword_head,
    "vector": _vector_head,
    "recency": _recency_head,
    "importance": _importance_head,
    "anchor": _anchor_head,
}
