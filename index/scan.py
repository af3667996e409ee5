"""Scans: for every row an interval that certainly holds its similarity to a query.

    coded rows      |estimate - x.q| <= errors * (1 + |r|) + |x| * |r|                 (codes.py; q of length 1)
    float32 rows    |fl(x.q) - x.q|  <= gamma(dim) |x|, whatever the order of summing  (Higham, Accuracy and
                                                                                      Stability, 3.1)

Queries that wait for the same table are multiplied together: the memory's speed limits one query, and a pass for
sixteen takes three times as long as for one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import codes as coding
from . import kernels, scratch
from .blocks import BLOCK, Floats32, gather
from .parallel import split
from .vectors import UNIT, AnyFloats, Floats

if TYPE_CHECKING:
    from .view import View

# From so many queries on, numpy's matrix product is faster than a product for each.
_MATRIX_MIN = 5
# Of fewer rows the float32 numbers are as quickly read as the codes, and are closer.
_ROWS_MIN = 128
# 2 MB that a thread keeps.
_KEPT_PRODUCTS = 1 << 19
# Rounding of an estimate beside what Scan.rest says, as a share of |x|: the product's scaling, and lengths that are 1
# only to float32.
_ROUNDING = 1e-6


class Scan(NamedTuple):
    """One query's estimated products with the first rows of a table, (n,), the query taken to length 1."""

    values: AnyFloats
    rest: float  # |r|, what the query's code leaves
    errors: AnyFloats | None  # of the rows' codes, (n,); None: all products are float32


def _room(m: int, n: int, dtype: type[np.floating[Any]]) -> AnyFloats:
    """An array (m, n) with anything in it. Smaller ones are this thread's last one again: new memory is a page fault
    for each thousand numbers."""
    if m * n > _KEPT_PRODUCTS or dtype is not np.float32:
        return np.empty((m, n), dtype)
    held: AnyFloats | None = getattr(scratch.kept, "products", None)
    if held is None or held.size < m * n:
        held = scratch.kept.products = np.empty(m * n + (m * n >> 2), np.float32)
    return held[: m * n].reshape(m, n)


def scan(view: View, queries: list[Floats]) -> list[Scan]:
    """Multiply each query (dim,) with the first `vector_n` rows of the view's table. The products stand until this
    thread scans again."""
    n = view.vector_n
    units = np.array([_unit(query) for query in queries])
    codes = view.codes
    coded = 0
    if n >= coding.CODES_MIN and coding.available():
        codes.extend(view.blocks, n)
        coded = min(codes.n, n)
    values = _room(len(queries), n, np.float32 if view.settings.metric == "COSINE" or not coded else np.float64)
    rests: Floats = np.zeros(len(queries))
    if coded:
        rests = codes.products(coded, units, values)
    if coded < n:
        _float_products(view.blocks, coded, n, units.astype(np.float32), values)
    errors: AnyFloats | None = None
    if coded:
        # Rows beyond the codes have errors of 0: the share of `gamma` in `intervals` is theirs.
        errors = codes.errors[:coded]
        if coded < n:
            errors = np.concatenate((errors, np.zeros(n - coded, errors.dtype)))
    return [Scan(row, float(rest), errors) for row, rest in zip(values, rests.tolist(), strict=True)]


def scan_rows(view: View, query: Floats, rows: npt.NDArray[np.int64]) -> Scan | None:
    """The same of some rows, by number, for one query: (m,) each. None where that would be slower than float32."""
    n = view.vector_n
    if kernels.loops is None or len(rows) < _ROWS_MIN or n < coding.CODES_MIN:
        return None
    codes = view.codes
    codes.extend(view.blocks, n)
    if codes.n < n:
        return None
    values, errors, rest = codes.products_of(rows, _unit(query))
    return Scan(values, rest, errors)


def scan_same_rows(view: View, queries: list[Floats], rows: npt.NDArray[np.int64]) -> list[Scan] | None:
    """The same of some rows for several queries. None where there are no codes, or the rows do not ascend, as after a
    change of model they may not."""
    n = view.vector_n
    if n < coding.CODES_MIN or not coding.available() or (rows[1:] < rows[:-1]).any():
        return None
    codes = view.codes
    codes.extend(view.blocks, n)
    if codes.n < n:
        return None
    values, errors, rests = codes.products_of_rows(rows, np.array([_unit(query) for query in queries]))
    return [Scan(row, rest, errors) for row, rest in zip(values, rests.tolist(), strict=True)]


def intervals(
    view: View, query: Floats, found: Scan, rows: npt.NDArray[np.integer] | None = None
) -> tuple[AnyFloats, AnyFloats]:
    """(low, high), each (n,), of the similarities of the rows that were scanned: all, or `rows`."""
    metric = view.settings.metric
    norms = None if metric == "COSINE" else view.norms if rows is None else view.norms[rows]
    return _enclosed(found, query, norms, metric)


def close_intervals(view: View, query: Floats, rows: npt.NDArray[np.integer]) -> tuple[AnyFloats, AnyFloats]:
    """(low, high), each (m,), of these rows by float32: narrower than codes can tell, for few rows."""
    unit = _unit(query).astype(np.float32)
    values = np.empty(len(rows), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for start in range(0, len(rows), BLOCK):
            part = rows[start : start + BLOCK]
            np.dot(gather(view.blocks, part), unit, out=values[start : start + len(part)])
    metric = view.settings.metric
    return _enclosed(Scan(values, 0.0, None), query, view.norms[rows] if metric != "COSINE" else None, metric)


def close_intervals_of_all(view: View, query: Floats) -> tuple[AnyFloats, AnyFloats]:
    """The same for the first `vector_n` rows: cheaper than gathering where more than a few are wanted."""
    values = np.empty((1, view.vector_n), np.float32)
    _float_products(view.blocks, 0, view.vector_n, _unit(query).astype(np.float32)[None], values)
    metric = view.settings.metric
    return _enclosed(Scan(values[0], 0.0, None), query, view.norms if metric != "COSINE" else None, metric)


def _unit(query: Floats) -> Floats:
    length = math.sqrt(query.dot(query))
    return query / length if length else query


def _float_products(blocks: list[Floats32], start: int, n: int, units: Floats32, out: AnyFloats) -> None:
    """out[:, start:n] = the products of those rows with each of `units` (m, dim)."""

    def multiply(first: int, last: int) -> None:
        with np.errstate(over="ignore", invalid="ignore"):
            while first < last:
                number, at = divmod(first, BLOCK)
                end = min(last, (number + 1) * BLOCK)
                block = blocks[number][at : at + end - first]
                if len(units) >= _MATRIX_MIN:
                    out[:, first:end] = np.matmul(units, block.T)
                else:
                    for unit, row in zip(units, out, strict=True):
                        row[first:end] = np.dot(block, unit)
                first = end

    if start:
        multiply(start, n)  # the rows behind the codes
    else:
        split(n, BLOCK, multiply)


def reach(found: Scan, dim: int) -> tuple[float, float]:
    """(a, b): a unit vector's product is within errors * a + b of the estimate (errors None: within b)."""
    # dim + 4: the product's own rounding, the query's, and the row's length being 1 only to float32.
    relative = found.rest + (dim + 4) * UNIT * 1.01 + (_ROUNDING if found.errors is not None else 2 * UNIT)
    # Products below float32's range vanish; each loses less than 2**-149.
    return 1.0 + found.rest, (relative + dim * 2.0**-148) * (1.0 + 1e-6)


def _enclosed(found: Scan, query: Floats, squares: Floats | None, metric: str) -> tuple[AnyFloats, AnyFloats]:
    by_error, relative = reach(found, len(query))
    if squares is not None:
        return _enclosed_far(found, query, squares[: len(found.values)], metric, relative)
    spread: Any = np.float32(relative)
    if found.errors is not None:
        spread = found.errors * np.float32(by_error)
        spread += np.float32(relative)
    return found.values - spread, found.values + spread


def _enclosed_far(
    found: Scan, query: Floats, squares: Floats, metric: str, relative: float
) -> tuple[Floats, Floats]:
    """The same under L2 and IP, where lengths vary."""
    products = found.values.astype(np.float64)
    length = float(np.sqrt((query * query).sum()))
    scale = length or 1.0
    errors: Floats = relative * np.sqrt(squares) + len(query) * 2.0**-148
    if found.errors is not None:
        errors += found.errors * (1.0 + found.rest + _ROUNDING)
    with np.errstate(invalid="ignore", over="ignore"):
        low, high = (products - errors) * scale, (products + errors) * scale
        # Rows whose product overflowed are looked at whatever the others are.
        wild = ~np.isfinite(products)
        if metric == "IP":
            low[wild], high[wild] = -np.inf, np.inf
            return low, high
        slack = 1e-13 * (squares + length * length)
        near = np.sqrt(np.maximum(squares + length * length - 2.0 * high - slack, 0.0))
        far = np.sqrt(np.maximum(squares + length * length - 2.0 * low + slack, 0.0))
        near[wild], far[wild] = 0.0, np.inf
        return 1.0 / (1.0 + far) - 1e-15, 1.0 / (1.0 + near) + 1e-15
