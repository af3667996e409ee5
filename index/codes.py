"""int8 codes of vectors: a scan reads a quarter of the bytes and still knows for certain where the true product lies.

Per row: c = rint(x / s) with s = max|x| / 127, and err = |x - s c|. The query is coded likewise, q = t d + r. Then

    x.q = s t (c.d)  +  (x - s c).q  +  (s c).r        |difference| <= err |q| + (|x| + err) |r|

by Cauchy and Schwarz, and c.d is an integer that int32 holds exactly. The interval is about 0.02 wide for unit
vectors; the tens of rows that it leaves are looked at in float32 and then in float64 (ranking.py).

The scanning reader makes the codes (Columns does so too): a write never waits for them, and what is loaded from a
base file needs none. Rows that have none yet are scanned in float32, and one scan codes at most SCAN_CODES rows.
Only one reader at a time may scan a table (server/workers.py sees to it).

The integer products are NumKong's, those of one query the compiled loops' where there are any; without NumKong the
scan is in float32 only and gives the same answers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from . import kernels
from .blocks import BLOCK, Addresses, Floats32, room, used_bytes
from .parallel import split
from .shared import Arrays, whole

numkong: Any
try:
    import numkong
except ImportError:  # no wheel for this platform
    numkong = None

Floats = npt.NDArray[np.float64]
AnyFloats = npt.NDArray[np.floating[Any]]

#: A table below so many rows fits the caches as float32, where codes gain nothing.
CODES_MIN = 2048
#: Rows coded by one scan at most, about 15 milliseconds of work.
SCAN_CODES = 8 * BLOCK
# The codes' own blocks: large enough for the kernel's huge pages, without which a scan takes half as long again.
_SLAB = 4 * BLOCK
# Rows are coded so many at a time: the temporaries stay in the cache.
_CHUNK = 256
# So many single rows are worth a thread of their own: about 0.2 milliseconds.
_ROWS_EACH = 4096


# One for all that have no codes yet, for there may be a hundred thousand small memories.
_NONE: dict[type[np.floating[Any]], AnyFloats] = {dtype: np.empty(0, dtype) for dtype in (np.float32, np.float64)}


def available() -> bool:
    """Whether integer products can be computed here."""
    return numkong is not None


class Codes:
    """The codes of the first `n` rows of a table; `scales` and `errors` are per row, rounded up."""

    __slots__ = ("_places", "_slabs", "dim", "errors", "n", "row_places", "scales")

    def __init__(self, dim: int, dtype: type[np.floating[Any]]) -> None:
        self.dim = dim
        self.n = 0
        self._slabs: list[npt.NDArray[np.int8]] = []
        self._places = Addresses()  # of the slabs
        self.row_places = Addresses()  # of the table's blocks
        # float32 for unit vectors; float64 where a vector may have any length.
        self.scales: AnyFloats = _NONE[dtype]
        self.errors: AnyFloats = _NONE[dtype]

    def extend(self, blocks: list[Floats32], n: int) -> None:
        """Code rows until `n` of them are, SCAN_CODES at most."""
        end = min(n, self.n + SCAN_CODES)
        if end > len(self.scales):
            self.scales, self.errors = _grown(self.scales, end), _grown(self.errors, end)
        while self.n < end:
            start = self.n
            count = min(_CHUNK, end - start, BLOCK - start % BLOCK)  # within a block
            x = blocks[start // BLOCK][start % BLOCK :][:count].astype(self.scales.dtype, copy=False)
            codes, scale, error = _coded(x)
            self._slab_for(start + count)[start % _SLAB :][:count] = codes
            self.scales[start : start + count] = scale
            self.errors[start : start + count] = error
            self.n = start + count

    def _slab_for(self, n: int) -> npt.NDArray[np.int8]:
        """The last slab, with room for `n` rows in all."""
        held = _SLAB * (len(self._slabs) - 1) + len(self._slabs[-1]) if self._slabs else 0
        if n > held:
            if held and held < _SLAB:
                grown = room((min(_SLAB, max(2 * held, n)), self.dim), np.int8)
                grown[:held] = self._slabs[0]
                self._slabs[0] = grown
            else:
                self._slabs.append(room((_SLAB if held else max(CODES_MIN, n), self.dim), np.int8))
        return self._slabs[-1]

    def taken(self, rows: npt.NDArray[np.integer]) -> Codes:
        """The codes of these rows, ascending, as far as there are any: a new table's first rows."""
        twin = Codes(self.dim, self.scales.dtype.type)
        rows = rows[: int(np.searchsorted(rows, self.n))]
        twin.n = len(rows)
        twin.scales, twin.errors = self.scales[rows], self.errors[rows]
        for start in range(0, len(rows), _SLAB):
            part = rows[start : start + _SLAB]
            slab = room((max(CODES_MIN, len(part)) if len(rows) <= _SLAB else _SLAB, self.dim), np.int8)
            of = part // _SLAB
            for number in np.unique(of).tolist():
                slab[: len(part)][of == number] = self._slabs[number][part[of == number] % _SLAB]
            twin._slabs.append(slab)
        return twin

    def copy(self) -> Codes:
        """The codes of the whole slabs, which are shared: nobody writes to them any more."""
        twin = Codes(self.dim, self.scales.dtype.type)
        whole = self.n // _SLAB  # read once: a reader may be coding more
        twin.n, twin._slabs = whole * _SLAB, self._slabs[:whole]
        twin.scales, twin.errors = self.scales[: twin.n], self.errors[: twin.n]
        return twin

    def products(self, n: int, units: Floats, out: AnyFloats) -> Floats:
        """Estimate the products of the first `n` coded rows with queries of length 1, (m, dim), into `out` (m, n).

        Returns |r| of each query, (m,): a product is off by at most errors * (1 + |r|) + |x| * |r| and rounding.
        """
        loops = kernels.loops
        if loops is not None and len(units) == 1:
            code = np.empty(self.dim, np.int16)
            scale, rest = loops.code_query(units[0], code)

            def read(first: int, last: int) -> None:
                while first < last:
                    end = min(last, (first // _SLAB + 1) * _SLAB)
                    rows = self._slabs[first // _SLAB][first % _SLAB :][: end - first]
                    loops.code_products(rows, code, scale, self.scales, first, out[0])
                    first = end

            split(n, BLOCK, read)
            return np.array([rest])
        codes, steps, rests = _coded_queries(units)
        packed = numkong.dots_pack(codes)

        def multiply(first: int, last: int) -> None:
            for start in range(first, last, BLOCK):
                end = min(start + BLOCK, last)
                rows = self._slabs[start // _SLAB][start % _SLAB :][: end - start]
                _scale(np.asarray(numkong.dots_packed(rows, packed)), self.scales[start:end], steps, start, out)

        split(n, BLOCK, multiply)
        return rests

    def products_of_rows(self, rows: npt.NDArray[np.int64], units: Floats) -> tuple[AnyFloats, AnyFloats, Floats]:
        """The same for some coded rows, ascending, and several queries, (m, dim), for which they are read once:
        (products (m, rows), the rows' errors, |r| of each query)."""
        codes, steps, rests = _coded_queries(units)
        packed = numkong.dots_pack(codes)
        out = np.empty((len(units), len(rows)), self.scales.dtype)
        scales = self.scales[rows]

        def multiply(first: int, last: int) -> None:
            held = np.empty((min(BLOCK, last - first), self.dim), np.int8)
            for start in range(first, last, BLOCK):
                part = rows[start : min(start + BLOCK, last)]
                numbers = range(int(part[0]) // _SLAB, int(part[-1]) // _SLAB + 1)
                cuts = np.searchsorted(part, [number * _SLAB for number in (*numbers, numbers.stop)]).tolist()
                for number, begin, end in zip(numbers, cuts, cuts[1:], strict=False):
                    within = part[begin:end] - number * _SLAB
                    np.take(self._slabs[number], within, axis=0, out=held[begin:end], mode="clip")
                dots = np.asarray(numkong.dots_packed(held[: len(part)], packed))
                _scale(dots, scales[start : start + len(part)], steps, start, out)

        split(len(rows), BLOCK, multiply)
        return out, self.errors[rows], rests

    def products_of(self, rows: npt.NDArray[np.int64], unit: Floats) -> tuple[AnyFloats, AnyFloats, float]:
        """The same for some coded rows and one query (dim,), by a compiled loop (kernels.py): (products,
        the rows' errors, |r|)."""
        loops, code = kernels.loops, np.empty(self.dim, np.int16)
        step, rest = loops.code_query(unit, code)
        out, errors = np.empty(len(rows), self.scales.dtype), np.empty(len(rows), self.scales.dtype)
        slabs = self._places.of(self._slabs)

        def multiply(first: int, last: int) -> None:
            part, found, off = rows[first:last], out[first:last], errors[first:last]
            loops.row_products(slabs, _SLAB, part, code, step, self.scales, self.errors, found, off)

        split(len(rows), 1, multiply, least=_ROWS_EACH)
        return out, errors, rest

    def arrays(self) -> Arrays:
        """The arrays that a copy has in common with this until one of them changes."""
        if not self.n:
            return {}  # the arrays are everybody's
        n, per_row = self.n, self.scales.itemsize
        found: Arrays = {
            ("scales", whole(self.scales)): used_bytes(self.scales, n * per_row),
            ("errors", whole(self.errors)): used_bytes(self.errors, n * per_row),
        }
        for number, slab in enumerate(self._slabs):
            found["codes", whole(slab)] = used_bytes(slab, min(_SLAB, n - _SLAB * number) * self.dim)
        return found


def _scale(dots: npt.NDArray[np.int32], scales: AnyFloats, steps: Floats, start: int, out: AnyFloats) -> None:
    """Integer products (rows, m) into out[:, start:], in the units of rows and queries."""
    if kernels.loops is not None:
        kernels.loops.scale_products(dots, scales, steps, start, out)
        return
    part = out[:, start : start + len(dots)]
    # int32 to floating and transposed in one step: twice as fast as a product of mixed types.
    np.copyto(part, dots.T, casting="same_kind")
    part *= scales
    part *= steps.astype(scales.dtype)[:, None]


def _coded_queries(units: Floats) -> tuple[npt.NDArray[np.int8], Floats, Floats]:
    """(codes (m, dim), their scales (m,), the lengths |r| of what they leave (m,)) of queries of length 1."""
    if kernels.loops is None:
        codes, wide, _ = _coded(units)
        scales: Floats = wide.astype(np.float64)
        return codes, scales, np.sqrt(((units - codes * scales[:, None]) ** 2).sum(axis=1)) * (1 + 1e-12)
    codes = np.empty(units.shape, np.int8)
    found = [kernels.loops.code_query(unit, code) for unit, code in zip(units, codes, strict=True)]
    return codes, np.array([scale for scale, _ in found]), np.array([rest for _, rest in found])


def _coded(x: AnyFloats) -> tuple[npt.NDArray[np.int8], AnyFloats, AnyFloats]:
    """(codes, scales, errors) of rows (m, dim)."""
    largest = np.abs(x).max(axis=1)
    scales = largest / 127
    # A row of zeros has scale 0. So have subnormal rows whose quotient would vanish.
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        scaled = np.where(scales[:, None] > 0, x / scales[:, None], 0)
    codes = np.clip(np.rint(scaled), -127, 127).astype(np.int8)
    rest = x - codes * scales[:, None]
    # The factor covers the rounding of this line and of `rest`, which is at most half a unit in x's last place.
    eps = float(np.finfo(x.dtype).eps)
    errors = np.sqrt((rest * rest).sum(axis=1)) * (1 + x.shape[1] * eps) + largest * eps * np.sqrt(x.shape[1])
    return codes, scales, errors


def _grown(array: AnyFloats, size: int) -> AnyFloats:
    new = room((max(size, len(array) + (len(array) >> 1)),), array.dtype)
    new[: len(array)] = array
    return new
