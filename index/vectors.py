"""Exact vectors: float32 rows in blocks, and the one routine that scores.

Rule 1: reported similarities come from `similarities`, float64, row by row, so that a score does not depend on what
        else was computed with it. What a scan multiplies (scan.py) selects candidates and is never reported.
Rule 2: rows are append-only; blocks of BLOCK rows, so growth copies one block at most.

Under COSINE a stored row is a unit vector up to float32 rounding; `similarities` divides that rounding out.
"""

from __future__ import annotations

import math
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from . import kernels
from .blocks import BLOCK, Floats32, addresses, gather, room, used_bytes
from .codes import Codes
from .shared import Arrays, whole

Floats = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
AnyFloats = npt.NDArray[np.floating[Any]]
T = TypeVar("T", bound=np.generic)

_FIRST_ROWS = 8
_NONE: Floats = np.empty(0, np.float64)
# The vector sum is kept in units of 2**-36: components are at most 1, so 2**26 vectors fit in 63 bits, and one
# rounding is 1.5e-11.
_FIXED = float(1 << 36)
# Half the distance between 1 and the next float32.
UNIT = 2.0**-24
# Rows summed per step, to bound the copies.
_SUM_ROWS = 256
# So many rows may be in no sum yet: a millisecond.
_SUMMED_AT_LEAST = 1024
# Rows scored per step of `similarities`, to bound its float64 copies.
_STEP = 1024
_METRICS = {"COSINE": 0, "L2": 1, "IP": 2}  # by compiled.py's numbers


class VectorTable:
    """The vectors of one memory. Rows are numbered as they come; a record's is its slot's `vrow` (columns.py)."""

    __slots__ = ("_sum", "_summed", "blocks", "codes", "dim", "live", "metric", "n", "norms")

    def __init__(self, dim: int, metric: str) -> None:
        self.dim = dim
        self.metric = metric
        self.n = 0
        self.live = 0
        self.blocks: list[Floats32] = []
        self.codes = Codes(dim, np.float32 if metric == "COSINE" else np.float64)  # the readers' (codes.py)
        # Squared lengths, for the bounds of L2 and IP. Under COSINE they are 1.
        self.norms: Floats = _NONE if metric == "COSINE" else np.empty(_FIRST_ROWS, np.float64)
        # Replaced, never changed in place: views keep the one they saw. Of the rows below `_summed`.
        self._sum: Int64s = np.zeros(dim if metric == "COSINE" else 0, np.int64)
        self._summed = 0

    def append(self, vector: Floats32) -> int:
        """Store a row of shape (dim,); its vrow."""
        row = self.n
        self._with_room()[row % BLOCK] = vector
        if self.metric != "COSINE":
            if row == len(self.norms):
                self.norms = _doubled(self.norms)
            wide = vector.astype(np.float64)
            self.norms[row] = (wide * wide).sum()
        self.n = row + 1
        self._added(1)
        return row

    def append_all(self, vectors: Floats32) -> int:
        """The same for several, (m, dim); the first one's vrow."""
        first, done = self.n, 0
        while done < len(vectors):
            block = self._with_room()
            at = self.n % BLOCK
            part = vectors[done : done + len(block) - at]
            block[at : at + len(part)] = part
            self.n += len(part)
            done += len(part)
        if self.metric != "COSINE":
            while len(self.norms) < self.n:
                self.norms = _doubled(self.norms)
            wide = vectors.astype(np.float64)
            self.norms[first : self.n] = (wide * wide).sum(axis=1)
        self._added(len(vectors))
        return first

    def _with_room(self) -> Floats32:
        """The block that the next row belongs to."""
        at = self.n % BLOCK
        if at == 0:
            self.blocks.append(room((_FIRST_ROWS if self.n == 0 else BLOCK, self.dim), np.float32))
        block = self.blocks[-1]
        if at == len(block):
            grown = room((min(BLOCK, 2 * at), self.dim), np.float32)
            grown[:at] = block
            # The list is replaced with the block: a reader's list keeps the block it counted on.
            self.blocks = [*self.blocks[:-1], grown]
            block = grown
        return block

    def _added(self, count: int) -> None:
        """So many rows came."""
        self.live += count
        if self.metric == "COSINE" and self.n - self._summed >= _SUMMED_AT_LEAST:
            self._sum = self.sum  # of a load of a hundred thousand rows it would take a tenth of a second

    def remove(self, row: int) -> None:
        """The row's record died: it no longer weighs in the sum."""
        self.live -= 1
        if self.metric == "COSINE":
            self._sum = self.sum - _fixed(self.row(row)).astype(np.int64)

    def remove_all(self, rows: Int32s) -> None:
        """The same for many rows."""
        self.live -= len(rows)
        if self.metric != "COSINE":
            return
        if not self.live:
            self._sum, self._summed = np.zeros(self.dim, np.int64), self.n
            return
        total = self.sum
        for start in range(0, len(rows), _SUM_ROWS):
            total = total - fixed_sum(gather(self.blocks, rows[start : start + _SUM_ROWS]))
        self._sum = total

    @property
    def sum(self) -> Int64s:
        """The sum (dim,) of the live unit vectors, fixed point: integers add exactly in any order, so a vector that was
        added and removed leaves no trace. Rows added since it was last asked for are summed together, which costs a
        third of one by one; on the loop. Empty under L2 and IP."""
        if self._summed < self.n and self.metric == "COSINE":
            total = self._sum
            while self._summed < self.n:
                number, at = divmod(self._summed, BLOCK)
                rows = self.blocks[number][at : at + min(self.n - self._summed, _SUM_ROWS)]
                total = total + fixed_sum(rows)
                self._summed += len(rows)
            self._sum = total
        return self._sum

    def row(self, row: int) -> Floats32:
        vector: Floats32 = self.blocks[row // BLOCK][row % BLOCK]
        return vector

    def taken(self, rows: Int32s) -> VectorTable:
        """A new table of these rows, all live."""
        twin = VectorTable(self.dim, self.metric)
        twin.n = twin.live = twin._summed = len(rows)
        if not len(rows):
            return twin
        for start in range(0, len(rows), BLOCK):
            part = rows[start : start + BLOCK]
            block = room((BLOCK if len(rows) > BLOCK else len(part), self.dim), np.float32)
            block[: len(part)] = gather(self.blocks, part)
            twin.blocks.append(block)
            if self.metric == "COSINE":
                twin._sum = twin._sum + fixed_sum(block[: len(part)])
        if self.metric != "COSINE":
            twin.norms = self.norms[rows]
        if not (rows[1:] < rows[:-1]).any():  # others are coded anew
            twin.codes = self.codes.taken(rows)
        return twin

    def copy(self) -> VectorTable:
        """An independent twin, which shares the rows: the room behind them is not its own."""
        twin = VectorTable(self.dim, self.metric)
        twin.n, twin.live = self.n, self.live
        twin.blocks = list(self.blocks)
        if at := self.n % BLOCK:
            twin.blocks[-1] = self.blocks[-1][:at]
        twin.norms = self.norms[: self.n]
        twin._sum, twin._summed = self._sum, self._summed
        twin.codes = self.codes.copy()
        return twin

    @classmethod
    def restored(cls, rows: Floats32, metric: str, derived: npt.NDArray[np.generic]) -> VectorTable:
        """A table over `rows` (n, dim), all live and never written: the blocks are views of it. `derived` is the sum
        (dim,) under COSINE, else the squared lengths (n,)."""
        table = cls(rows.shape[1], metric)
        table.n = table.live = table._summed = len(rows)
        if len(rows):
            table.blocks = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
        if metric == "COSINE":
            table._sum = derived.astype(np.int64)
        elif len(rows):
            table.norms = derived.astype(np.float64)
        return table

    def arrays(self) -> Arrays:
        """The arrays that a copy has in common with this until one of them changes."""
        found = self.codes.arrays()
        if len(self.norms):
            found["norms", whole(self.norms)] = used_bytes(self.norms, 8 * self.n)
        for number, block in enumerate(self.blocks):
            rows = min(BLOCK, self.n - BLOCK * number)
            found[number, whole(block)] = used_bytes(block, rows * self.dim * 4)
        return found

    def nbytes(self) -> int:
        """Without those."""
        return 600 + self._sum.nbytes


def normalised(vector: Floats) -> Floats | None:
    """`vector` (dim,) scaled to length 1 in float64, whatever its magnitude; None where it is zero."""
    largest = float(np.abs(vector).max(initial=0.0))
    if largest == 0.0:
        return None
    scaled = vector / largest
    unit: Floats = scaled / np.sqrt((scaled * scaled).sum())
    return unit


def is_unit(squared_length: float) -> bool:
    """Whether a vector of float32 numbers is one that `normalised` and rounding to float32 may have made."""
    return abs(math.sqrt(squared_length) - 1.0) <= UNIT * 1.001


def similarities(
    blocks: list[Floats32],
    rows: npt.NDArray[np.integer],
    query: Floats,
    metric: str,
    starts: Int64s | None = None,
) -> Floats:
    """The similarity of each row to `query` (dim,) float64: the numbers that clients see.

    COSINE: the cosine, `query` a unit vector. IP: the inner product. L2: 1 / (1 + distance). Returns float64 (m,).
    `starts` are the blocks' addresses, where they are known.
    """
    out = np.empty(len(rows), np.float64)
    if kernels.loops is not None and kernels.sums_alike:
        if starts is None:
            starts = addresses(blocks)
        kernels.loops.similarities(starts, BLOCK, np.ascontiguousarray(rows), query, _METRICS[metric], out)
        return out
    for start in range(0, len(rows), _STEP):
        x = gather(blocks, rows[start : start + _STEP])
        out[start : start + _STEP] = _row_similarities(x.astype(np.float64), query, metric)
    return out


def cosines(rows: Floats32, query: Floats) -> Floats:
    """The cosine of each row (m, dim) to `query` (dim,), a float64 unit vector: float64 (m,)."""
    return _row_similarities(rows.astype(np.float64), query, "COSINE")


def _row_similarities(x: Floats, query: Floats, metric: str) -> Floats:
    # sum(axis=1) over contiguous rows adds each row on its own (numpy's pairwise sum), whatever stands beside it.
    if metric == "L2":
        diff = x - query
        result: Floats = 1.0 / (1.0 + np.sqrt((diff * diff).sum(axis=1)))
        return result
    dots: Floats = (x * query).sum(axis=1)
    if metric == "COSINE":
        dots = np.clip(dots / np.sqrt((x * x).sum(axis=1)), -1.0, 1.0)
    return dots


def centroid_similarity(vector_sum: Int64s, count: int, query: Floats) -> float:
    """g: the query's similarity to the memory as a whole, `q . sum / (count + 20)`; below 1 always."""
    total = (query * (vector_sum.astype(np.float64) / _FIXED)).sum()
    return float(total) / (count + 20)


def pairwise(x: Floats, one: Floats, metric: str) -> Floats:
    """The similarity of stored rows (m, dim) float64 to another stored row (dim,): float64 (m,)."""
    if metric == "COSINE":
        one = one / np.sqrt((one * one).sum())
    return _row_similarities(x, one, metric)


def fixed_sum(rows: Floats32) -> Int64s:
    """What rows (m, dim), m at most 2**16, add to a vector sum (dim,)."""
    total = np.zeros(rows.shape[1], np.float64)
    for start in range(0, len(rows), _SUM_ROWS):  # a piece stays in the cache
        total += _fixed(rows[start : start + _SUM_ROWS]).sum(axis=0)
    fixed: Int64s = total.astype(np.int64)
    return fixed


def _fixed(vector: Floats32) -> Floats:
    """Unit vectors, one or several, in units of 1 / _FIXED: integers, so float64 adds 2**16 of them exactly."""
    scaled: Floats = np.multiply(vector, _FIXED, dtype=np.float64)
    return np.rint(scaled, out=scaled)


def _doubled(array: npt.NDArray[T]) -> npt.NDArray[T]:
    new: npt.NDArray[T] = room((max(_FIRST_ROWS, 2 * len(array)),), array.dtype)
    new[: len(array)] = array
    return new
