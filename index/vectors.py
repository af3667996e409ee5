"""Exact vectors: float32 rows in blocks, the one routine that scores, and bounds for the scan that only searches.

Rule 1: reported similarities come from `similarities`, float64, row by row, so that a score does not depend on what
        else was computed with it. What a scan multiplies in float32 selects candidates and is never reported.
Rule 2: a scan returns an interval that holds the true value for certain: |fl(x.q) - x.q| <= gamma(dim) |x| |q|
        (Higham, Accuracy and Stability, 3.1), whatever the order in which the product was summed.
Rule 3: rows are append-only; blocks of BLOCK rows, so growth copies one block at most.

Under COSINE a stored row is a unit vector up to float32 rounding; `similarities` divides that rounding out.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
import numpy.typing as npt

Floats32 = npt.NDArray[np.float32]
Floats = npt.NDArray[np.float64]
Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
T = TypeVar("T", bound=np.generic)

BLOCK = 4096
_FIRST_ROWS = 8
# The vector sum is kept in units of 2**-36: components are at most 1, so 2**26 vectors fit in 63 bits, and one
# rounding is 1.5e-11.
_FIXED = float(1 << 36)
_U = 2.0**-24
# Rows scored per step of `similarities`, to bound its float64 copies.
_STEP = 1024


class VectorTable:
    """The vectors of one memory. Rows are numbered as they come; a record's is its slot's `vrow` (columns.py)."""

    __slots__ = ("blocks", "dim", "live", "metric", "n", "norms", "sum")

    def __init__(self, dim: int, metric: str) -> None:
        self.dim = dim
        self.metric = metric
        self.n = 0
        self.live = 0
        self.blocks: list[Floats32] = []
        # Squared lengths, for the bounds of L2 and IP. Under COSINE they are 1.
        self.norms: Floats = np.empty(0 if metric == "COSINE" else _FIRST_ROWS, np.float64)
        # The sum of the live unit vectors, fixed point: integers add exactly in any order, so a vector that was
        # added and removed leaves no trace. Replaced, never changed in place: views keep the one they saw.
        self.sum: Int64s = np.zeros(dim if metric == "COSINE" else 0, np.int64)

    def append(self, vector: Floats32) -> int:
        """Store a row of shape (dim,); its vrow."""
        row = self.n
        at = row % BLOCK
        if at == 0:
            first = _FIRST_ROWS if row == 0 else BLOCK
            self.blocks.append(np.empty((first, self.dim), np.float32))
        block = self.blocks[-1]
        if at == len(block):
            grown = np.empty((min(BLOCK, 2 * at), self.dim), np.float32)
            grown[:at] = block
            # The list is replaced with the block: a reader's list keeps the block it counted on.
            self.blocks = [*self.blocks[:-1], grown]
            block = grown
        block[at] = vector
        if self.metric == "COSINE":
            self.sum = self.sum + _fixed(vector)
        else:
            if row == len(self.norms):
                self.norms = _doubled(self.norms)
            wide = vector.astype(np.float64)
            self.norms[row] = (wide * wide).sum()
        self.n = row + 1
        self.live += 1
        return row

    def remove(self, row: int) -> None:
        """The row's record died: it no longer weighs in the sum."""
        self.live -= 1
        if self.metric == "COSINE":
            self.sum = self.sum - _fixed(self.row(row))

    def row(self, row: int) -> Floats32:
        vector: Floats32 = self.blocks[row // BLOCK][row % BLOCK]
        return vector

    def taken(self, rows: Int32s) -> VectorTable:
        """A new table of these rows, all live."""
        twin = VectorTable(self.dim, self.metric)
        twin.n = twin.live = len(rows)
        if not len(rows):
            return twin
        for start in range(0, len(rows), BLOCK):
            part = rows[start : start + BLOCK]
            block = np.empty((BLOCK if len(rows) > BLOCK else len(part), self.dim), np.float32)
            block[: len(part)] = gather(self.blocks, part)
            twin.blocks.append(block)
            if self.metric == "COSINE":
                twin.sum = twin.sum + np.rint(block[: len(part)].astype(np.float64) * _FIXED).astype(np.int64).sum(0)
        if self.metric != "COSINE":
            twin.norms = self.norms[rows]
        return twin

    @classmethod
    def restored(cls, rows: Floats32, metric: str, derived: npt.NDArray[np.generic]) -> VectorTable:
        """A table over `rows` (n, dim), all live and never written: the blocks are views of it. `derived` is the sum
        (dim,) under COSINE, else the squared lengths (n,)."""
        table = cls(rows.shape[1], metric)
        table.n = table.live = len(rows)
        if len(rows):
            table.blocks = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
        if metric == "COSINE":
            table.sum = derived.astype(np.int64)
        elif len(rows):
            table.norms = derived.astype(np.float64)
        return table

    def nbytes(self) -> int:
        return sum(block.nbytes for block in self.blocks) + self.norms.nbytes + self.sum.nbytes


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
    return abs(math.sqrt(squared_length) - 1.0) <= _U * 1.001


def gather(blocks: list[Floats32], rows: npt.NDArray[np.integer]) -> Floats32:
    """The rows (m, dim) by vrow."""
    if len(blocks) == 1:
        only: Floats32 = blocks[0][rows]
        return only
    dim = blocks[0].shape[1]
    out = np.empty((len(rows), dim), np.float32)
    block_of = rows // BLOCK
    within = rows % BLOCK
    for number in np.unique(block_of).tolist():
        here = block_of == number
        out[here] = blocks[number][within[here]]
    return out


def similarities(blocks: list[Floats32], rows: npt.NDArray[np.integer], query: Floats, metric: str) -> Floats:
    """The similarity of each row to `query` (dim,) float64: the numbers that clients see.

    COSINE: the cosine, `query` a unit vector. IP: the inner product. L2: 1 / (1 + distance). Returns float64 (m,).
    """
    out = np.empty(len(rows), np.float64)
    for start in range(0, len(rows), _STEP):
        x = gather(blocks, rows[start : start + _STEP]).astype(np.float64)
        out[start : start + _STEP] = _row_similarities(x, query, metric)
    return out


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


def bounds(
    blocks: list[Floats32], n: int, norms: Floats, query: Floats, metric: str, rows: npt.NDArray[np.integer] | None
) -> tuple[Floats, Floats]:
    """For each of the first `n` rows, or of `rows`, an interval that holds its similarity: (low, high), each (m,)."""
    dim = len(query)
    length = float(np.sqrt((query * query).sum()))
    # The scan's query has length about 1, so that it fits float32 whatever the client's magnitudes.
    scale = length or 1.0
    q32 = (query / scale).astype(np.float32)
    dots = np.empty(n if rows is None else len(rows), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for number, start in enumerate(range(0, len(dots), BLOCK)):
            end = min(start + BLOCK, len(dots))
            block = blocks[number][: end - start] if rows is None else gather(blocks, rows[start:end])
            np.dot(block, q32, out=dots[start:end])
    products = dots.astype(np.float64)
    # dim + 4: the product's own rounding, the query's, and under COSINE the row's length being 1 only to float32.
    gamma = (dim + 4) * _U * 1.01
    # Products below float32's range vanish; each loses less than 2**-149.
    lost = dim * 2.0**-148
    if metric == "COSINE":
        error = gamma + lost
        return products - error, products + error
    squares = norms[:n] if rows is None else norms[rows]
    lengths = np.sqrt(squares)
    errors: Floats = gamma * lengths + lost
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = (products - errors) * scale, (products + errors) * scale
        # Rows whose float32 product overflowed are looked at whatever the others are.
        wild = ~np.isfinite(products)
        if metric == "IP":
            low[wild], high[wild] = -np.inf, np.inf
            return low, high
        slack = 1e-13 * (squares + length * length)
        near = np.sqrt(np.maximum(squares + length * length - 2.0 * high - slack, 0.0))
        far = np.sqrt(np.maximum(squares + length * length - 2.0 * low + slack, 0.0))
        near[wild], far[wild] = 0.0, np.inf
        return 1.0 / (1.0 + far) - 1e-15, 1.0 / (1.0 + near) + 1e-15


def centroid_similarity(vector_sum: Int64s, count: int, query: Floats) -> float:
    """g: the query's similarity to the memory as a whole, `q . sum / (count + 20)`; below 1 always."""
    total = (query * (vector_sum.astype(np.float64) / _FIXED)).sum()
    return float(total) / (count + 20)


def pairwise(x: Floats, one: Floats, metric: str) -> Floats:
    """The similarity of stored rows (m, dim) float64 to another stored row (dim,): float64 (m,)."""
    if metric == "COSINE":
        one = one / np.sqrt((one * one).sum())
    return _row_similarities(x, one, metric)


def _fixed(vector: Floats32) -> Int64s:
    scaled: Floats = np.multiply(vector, _FIXED, dtype=np.float64)
    fixed: Int64s = np.rint(scaled, out=scaled).astype(np.int64)
    return fixed


def _doubled(array: npt.NDArray[T]) -> npt.NDArray[T]:
    new: npt.NDArray[T] = np.empty(max(_FIRST_ROWS, 2 * len(array)), array.dtype)
    new[: len(array)] = array
    return new
