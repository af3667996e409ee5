"""Ranks: by exact values, and what can be said of them where the values are only known within intervals.

Rank 1 is the greatest value; equal values share the best rank; nan stands for a row that lacks the signal.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def rank_all(values: Floats) -> Floats:
    """1 + how many values are greater; equal values share the best rank; nan stays nan."""
    ordered = np.sort(values[~np.isnan(values)])
    ranks = 1.0 + (len(ordered) - np.searchsorted(ordered, values, side="right"))
    return np.where(np.isnan(values), np.nan, ranks)


def rank_bounds(low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """(worst, best) rank that each row can have, given the intervals; nan stays nan."""
    has = ~np.isnan(low)
    lows, highs = np.sort(low[has]), np.sort(high[has])
    count = len(lows)
    best = 1.0 + (count - np.searchsorted(lows, high, side="right"))
    worst = np.maximum(1.0, 1.0 * (count - np.searchsorted(highs, low, side="left")))
    return np.where(has, worst, np.nan), np.where(has, best, np.nan)


def meeting(low: Floats, high: Floats, places: Int64s) -> Bools:
    """Which intervals meet the interval of one of `places`."""
    order = places[np.argsort(low[places])]
    order = order[~np.isnan(low[order])]
    if not len(order):
        return np.zeros(len(low), np.bool_)
    # Union of the intervals of `places` as disjoint spans, ascending.
    reach = np.maximum.accumulate(high[order])
    fresh = np.concatenate(([True], low[order][1:] > reach[:-1]))
    begins = low[order][fresh]
    ends = reach[np.concatenate((np.flatnonzero(fresh)[1:] - 1, [len(order) - 1]))]
    # The first span that ends at or after the interval's beginning is the only one that can meet it first.
    at = np.searchsorted(ends, low, side="left")
    inside = at < len(ends)
    result = np.zeros(len(low), np.bool_)
    with np.errstate(invalid="ignore"):
        result[inside] = begins[at[inside]] <= high[inside]
    return result
