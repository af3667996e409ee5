"""float32 copies of columns, for bounds: half the bytes, and recency without an exponential per row and query.

A row's updated_at and importance never change, so 2 ** ((updated_at - t0) / half_life) is kept for each row, and one
query multiplies all of them by one number; and what recency and importance add to a LINEAR score is kept for the
weights last used and a while. What is reported is worked out from the columns themselves, in float64.

Kept by the readers of one table; those of one batch may be several threads.
"""

from __future__ import annotations

from threading import Lock

import numpy as np
import numpy.typing as npt

from .blocks import room, used_bytes

Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]

# How far recency may fall before what is kept for a while is worked out anew.
_FALLEN_MAX = 1e-3
# Half-lives that `now` may be ahead of t0 before everything is worked out anew: float32 reaches 2 ** 127.
_AHEAD = 60
_LARGEST = 120.0
_NONE: Floats32 = np.empty(0, np.float32)


class Estimates:
    """Importance, and recency for one half-life at a time, of the first rows of a table; off by 1e-6 at most."""

    __slots__ = (
        "_fixed",
        "_fixed_key",
        "_fixed_n",
        "_fixed_now",
        "_half_life_ms",
        "_importance",
        "_importance_n",
        "_lock",
        "_recency",
        "_recency_n",
        "_t0",
    )

    def __init__(self) -> None:
        self._lock = Lock()
        self._half_life_ms = 0.0
        self._t0 = 0
        self._recency_n = self._importance_n = 0
        self._recency: Floats32 = np.empty(0, np.float32)
        self._importance: Floats32 = np.empty(0, np.float32)
        self._fixed: Floats32 = np.empty(0, np.float32)
        self._fixed_n = self._fixed_now = 0
        self._fixed_key = (0.0, 0.0, 0.0)  # half-life and weights

    def importance(self, column: Floats) -> Floats32:
        """The importance of rows (n,)."""
        with self._lock:
            n, known = len(column), self._importance_n
            if n > known:
                self._importance = _grown(self._importance, known, n)
                self._importance[known:n] = column[known:]
                self._importance_n = n
            return self._importance[:n]

    def recency(self, updated: Int64s, now: int, half_life_ms: float) -> Floats32:
        """2 ** (-max(now - updated, 0) / half_life_ms) of rows updated at these times (n,); a new array."""
        with self._lock:
            ahead = (now - self._t0) / half_life_ms
            if half_life_ms != self._half_life_ms or not 0 <= ahead <= _AHEAD:
                self._half_life_ms, self._t0, self._recency_n, ahead = half_life_ms, now, 0, 0.0
                self._recency = _NONE  # another thread may be reading the old one
            n, known = len(updated), self._recency_n
            if n > known:
                self._recency = _grown(self._recency, known, n)
                # A row from the future is as new as can be, however far.
                self._recency[known:n] = np.exp2(np.minimum((updated[known:] - self._t0) / half_life_ms, _LARGEST))
                self._recency_n = n
            kept = self._recency[:n]
        recency: Floats32 = kept * np.float32(2.0**-ahead)
        np.minimum(recency, np.float32(1.0), out=recency)
        return recency

    def fixed(
        self, updated: Int64s, column: Floats, now: int, half_life_ms: float, weights: tuple[float, float]
    ) -> tuple[Floats32, float]:
        """(recency * weight + importance * weight of rows (n,), by how much that may be too large)."""
        wr, wi = weights
        with self._lock:
            fallen = 1.0 - 2.0 ** (-(now - self._fixed_now) / half_life_ms) if now >= self._fixed_now else 1.0
            if self._fixed_key != (half_life_ms, wr, wi) or fallen > _FALLEN_MAX:
                self._fixed_key, self._fixed_now, self._fixed_n, fallen = (half_life_ms, wr, wi), now, 0, 0.0
                self._fixed = _NONE
            n, known = len(updated), self._fixed_n
            if n > known:
                self._fixed = _grown(self._fixed, known, n)
                ages = np.maximum(self._fixed_now - updated[known:], 0)
                self._fixed[known:n] = np.exp2(ages * (-1.0 / half_life_ms)) * wr + column[known:] * wi
                self._fixed_n = n
            return self._fixed[:n], fallen * wr

    def nbytes(self) -> int:
        kept = ((self._recency, self._recency_n), (self._importance, self._importance_n), (self._fixed, self._fixed_n))
        return 200 + sum(used_bytes(array, 4 * n) for array, n in kept)


def _grown(array: Floats32, n: int, size: int) -> Floats32:
    """`array`, whose first `n` are kept, with room for `size`; what stands in the first `n` never changes, whoever
    reads it."""
    if size <= len(array):
        return array
    new = room((max(size, len(array) + (len(array) >> 1)),), np.float32)
    new[:n] = array[:n]
    return new
