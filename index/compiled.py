"""The inner loops of a query, compiled by numba: imported once, in a thread (server/compiled_loops.py).

Each does in one pass what the numpy code beside its caller does in several, and gives the same answers: a number that
is reported (BM25) is computed by the same float64 operations in the same order, and nothing here reassociates or fuses
them; what only selects (products of codes, bounds) may differ by what its caller's margins cover.

They let go of the interpreter, and do not check indices: callers pass arrays of one moment, whose lengths agree.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt
from numba.extending import intrinsic

# Values that are looked at together.
_PIECE = 64
# Bytes that come from memory together, and how many bytes ahead they are asked for (bench/bandwidth.py).
_LINE = 64
_AHEAD = 4096
# The same of rows that stand alone.
_ROWS_AHEAD = 8

F = TypeVar("F", bound=Callable[..., Any])
Array = npt.NDArray[Any]

_numba: Any = numba
_types: Any = _numba.types
_ir: Any = _numba.core.cgutils.ir  # llvmlite's, which numba brings
_INT = _types.int64
_REAL = _types.float64


def _read(number: Any, dimensions: int = 1) -> Any:
    """An array that is only read: it may be mapped from a file, so neither writable nor aligned."""
    return _types.Array(number, dimensions, "C", readonly=True, aligned=False)


def _written(number: Any, dimensions: int = 1) -> Any:
    return _types.Array(number, dimensions, "C")


_BOOLS = _read(_types.boolean)
_INTS, _INT32S = _read(_INT), _read(_types.int32)
_REALS, _REAL32S = _read(_REAL), _read(_types.float32)


def _compiled(*signatures: Any) -> Callable[[F], F]:
    """Compiled at once, for these arguments and no others (a query must not wait for a compiler), and kept on disk for
    the next process where there is a place for that."""

    def decorate(function: F) -> F:
        jit: Any = numba.njit
        try:
            made: F = jit(list(signatures), nogil=True, error_model="numpy", cache=True)(function)
        except RuntimeError:  # numba may write neither beside the source nor in the user's cache
            made = jit(list(signatures), nogil=True, error_model="numpy")(function)
        return made

    return decorate


# -- the k best


@_compiled(_types.void(_written(_REAL), _REAL), _types.void(_written(_types.float32), _types.float32))
def _offer(heap: Array, value: Any) -> None:
    """Put `value` in the place of the least of a heap, which it exceeds."""
    size = len(heap)
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        if child + 1 < size and heap[child + 1] < heap[child]:
            child += 1
        if heap[child] >= value:
            break
        heap[at] = heap[child]
        at = child
    heap[at] = value


@_compiled(_INT(_written(_types.float32), _types.float32))
def _count_above(values: Array, least: Any) -> Any:
    count = np.int32(0)
    for i in range(len(values)):
        count += np.int32(values[i] > least)
    return count


# -- codes (codes.py)


def _ask(builder: Any, place: Any) -> None:
    number = _ir.IntType(32)
    kind = _ir.FunctionType(_ir.VoidType(), [place.type, number, number, number])
    asked = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
    builder.call(asked, [place, number(0), number(3), number(1)])  # to read, into every cache, data


def _asking(context: Any, array: Any, at: Any) -> Any:
    """`_fetch(array, at)`: ask for the memory at `array[at]`, which may lie behind its end: asking never fails."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, args[0]).data
        _ask(builder, builder.bitcast(builder.gep(data, [args[1]]), _ir.IntType(8).as_pointer()))
        return context.get_dummy_value()

    return _types.void(array, at), generate


_fetch: Any = intrinsic(_asking)


def _reader(number: Any) -> Any:
    """`read(address, at)`: the number that stands `at` places behind an address, however that is aligned."""

    def reading(context: Any, address: Any, at: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            start = builder.inttoptr(args[0], context.get_data_type(number).as_pointer())
            return builder.load(builder.gep(start, [args[1]]), align=1)

        return number(_INT, _INT), generate

    return intrinsic(reading)


_float_at = _reader(_types.float32)
_code_at = _reader(_types.int8)


def _asking_for(context: Any, address: Any) -> Any:
    """`_fetch_from(address)`: the same as `_fetch` of an address."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = builder.inttoptr(args[0], _ir.IntType(8).as_pointer())
        _ask(builder, place)
        return context.get_dummy_value()

    return _types.void(_INT), generate


_fetch_from: Any = intrinsic(_asking_for)


def _widening(context: Any) -> Any:
    """`_wide()`: let the function that calls it use vectors of 64 bytes where the processor has them. LLVM prefers 32
    on some that do; products of codes take a fifth less with 64."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        # llvmlite's own `add` knows only attributes that are one word.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return _types.void(), generate


_wide: Any = intrinsic(_widening)


@_compiled(*(_types.UniTuple(_REAL, 2)(_REALS, _written(number)) for number in (_types.int8, _types.int16)))
def code_query(unit: Array, code: Array) -> tuple[float, float]:
    """Code a query of float64 (dim,) into `code`, numbers of 8 bits: (scale, the length of what the code leaves)."""
    largest = 0.0
    for value in unit:
        largest = max(largest, abs(value))
    scale = largest / 127.0
    rest = 0.0
    for i in range(len(unit)):
        number = 0.0
        if scale > 0.0:
            number = min(127.0, max(-127.0, np.rint(unit[i] / scale)))
        code[i] = np.int16(number)
        left = unit[i] - number * scale
        rest += left * left
    return scale, np.sqrt(rest) * (1.0 + 1e-12)


@_compiled(
    *(
        _types.void(_read(_types.int32, 2), _read(real), _REALS, _INT, _written(real, 2))
        for real in (_types.float32, _REAL)
    )
)
def scale_products(dots: Array, scales: Array, steps: Array, start: int, out: Array) -> None:
    """out[query, start + row] = dots[row, query], int32, in the units of both codes."""
    for query in range(dots.shape[1]):
        step, products = steps[query], out[query]
        for row in range(dots.shape[0]):
            products[start + row] = dots[row, query] * scales[row] * step


@_compiled(
    *(
        _types.void(*(_INTS, _INT, _INTS, _read(_types.int16), _REAL), *(_read(real),) * 2, *(_written(real),) * 2)
        for real in (_types.float32, _REAL)
    )
)
def row_products(
    slabs: Array,
    slab: int,
    rows: Array,
    code: Array,
    step: float,
    scales: Array,
    errors: Array,
    out: Array,
    off: Array,
) -> None:
    """The products of some rows' codes with one query's: into `out`, and the rows' errors into `off`, (m,).

    `slabs` are the addresses of what holds the codes, int8, so many rows in a `slab`; `code` is int16, which multiplies
    faster; `scales` and `errors` are of all rows.
    """
    _wide()
    dim = len(code)
    for i in range(len(rows)):
        if i + _ROWS_AHEAD < len(rows):
            row = rows[i + _ROWS_AHEAD]
            at = slabs[row // slab] + row % slab * dim
            for line in range(0, dim, _LINE):
                _fetch_from(at + line)
        row = rows[i]
        at = slabs[row // slab] + row % slab * dim
        total = np.int32(0)
        for j in range(dim):
            total += np.int32(_code_at(at, j)) * np.int32(code[j])
        out[i] = np.int32(total) * scales[row] * step  # which lets the sum be one of int32
        off[i] = errors[row]


@_compiled(
    *(
        _types.void(_read(_types.int8, 2), _read(_types.int16), _REAL, _read(real), _INT, _written(real))
        for real in (_types.float32, _REAL)
    )
)
def code_products(codes: Array, code: Array, step: float, scales: Array, start: int, out: Array) -> None:
    """out[start + row] = codes[row] . code, in the units of both. Each row is asked for some rows before its turn, by
    which a core reads a third more of what no cache holds."""
    _wide()
    rows, dim = codes.shape
    flat = codes.reshape(rows * dim)
    for row in range(rows):
        at = row * dim
        for line in range(0, dim, _LINE):
            _fetch(flat, at + line + _AHEAD)
        total = np.int32(0)
        for j in range(dim):
            total += np.int32(codes[row, j]) * np.int32(code[j])
        out[start + row] = np.int32(total) * scales[start + row] * step


# -- exact similarities (vectors.py)


@_compiled(_REAL(_written(_REAL), _INT, _INT))
def pairwise_sum(values: Array, start: int, count: int) -> Any:
    """The sum in the order in which numpy adds up a contiguous row (kernels.py makes sure), so to the bit the same."""
    if count < 8:
        total = 0.0
        for i in range(start, start + count):
            total += values[i]
        return total
    if count <= 128:
        part = values[start : start + count]
        a, b, c, d, e, f, g, h = part[0], part[1], part[2], part[3], part[4], part[5], part[6], part[7]
        for eight in range(1, count // 8):  # not in steps of 8: the compiler then knows that no index is negative
            i = 8 * eight
            a += part[i]
            b += part[i + 1]
            c += part[i + 2]
            d += part[i + 3]
            e += part[i + 4]
            f += part[i + 5]
            g += part[i + 6]
            h += part[i + 7]
        total = ((a + b) + (c + d)) + ((e + f) + (g + h))
        for i in range(count - count % 8, count):
            total += part[i]
        return total + 0.0  # numpy begins with 0.0, so never -0.0
    half = count // 2
    half -= half % 8
    return pairwise_sum(values, start, half) + pairwise_sum(values, start + half, count - half)


COSINE, L2, IP = 0, 1, 2


@_compiled(*(_types.void(_INTS, _INT, _read(number), _REALS, _INT, _written(_REAL)) for number in (_types.int32, _INT)))
def similarities(blocks: Array, block: int, rows: Array, query: Array, metric: int, out: Array) -> None:
    """vectors.py's similarity of each of the `rows` (m,) to `query` (dim,), into `out` (m,). `blocks` are the addresses
    of what holds the rows, float32, so many in a `block`; each row is asked for before its turn."""
    dim = len(query)
    products = np.empty(dim)
    width = 4 * dim
    for row in range(len(rows)):
        if row + 1 < len(rows):
            number = np.int64(rows[row + 1])
            at = blocks[number // block] + number % block * width
            for line in range(0, width, _LINE):
                _fetch_from(at + line)
        number = np.int64(rows[row])
        at = blocks[number // block] + number % block * width
        if metric == L2:
            for i in range(dim):
                apart = _float_at(at, i) - query[i]
                products[i] = apart * apart
            out[row] = 1.0 / (1.0 + np.sqrt(pairwise_sum(products, 0, dim)))
            continue
        for i in range(dim):
            products[i] = _float_at(at, i) * query[i]
        product = pairwise_sum(products, 0, dim)
        if metric == COSINE:
            for i in range(dim):
                wide = np.float64(_float_at(at, i))
                products[i] = wide * wide
            product /= np.sqrt(pairwise_sum(products, 0, dim))
            if product > 1.0:
                product = 1.0
            if product < -1.0:
                product = -1.0
        out[row] = product


# -- candidates (ranking.py)


@_compiled(_written(_INT)(
        *(_REAL32S, _REAL32S, _REAL, _types.boolean, _REAL, _REAL, _REAL32S, _INTS, _INTS, _REALS, _REAL, _REAL, _INT),
        _written(_types.float32),
    ))
def near_best(
    values: Array,
    errors: Array,
    per_error: float,
    linear: bool,
    per: float,
    shift: float,
    fixed: Array,
    slots: Array,
    word_places: Array,
    words: Array,
    per_word: float,
    slack: float,
    need: int,
    scratch: Array,
) -> Array:
    """The places, ascending, whose value may be among the `need` best.

    A value is `values`, or where `linear` max(values * per - shift, 0) + fixed[slot] + words * per_word; it is known to
    errors * per_error, and to `slack` beside. Values and errors are those of the slots, or of all rows. Without errors,
    slots or fixed their arrays are empty; words are those of `word_places`, or where that is empty of every place, or
    there are none. `need` is below the number of places, for each of which `scratch` has room.
    """
    m = len(slots) if len(slots) else len(values)
    apart = len(values) != m  # rows that the slots pick out
    low = scratch[:m]
    if apart:
        for i in range(m):
            low[i] = values[slots[i]]
    else:
        low[:] = values
    if linear:
        factor, less, zero = np.float32(per), np.float32(shift), np.float32(0.0)
        for i in range(m):
            low[i] = max(low[i] * factor - less, zero)
        if len(fixed):
            if len(slots):
                for i in range(m):
                    low[i] += fixed[slots[i]]
            else:
                for i in range(m):
                    low[i] += fixed[i]
        if len(word_places):
            for i in range(len(word_places)):
                low[word_places[i]] += np.float32(words[i] * per_word)
        elif len(words):
            for i in range(m):
                low[i] += np.float32(words[i] * per_word)
    spread = np.float32(per_error)
    if len(errors) and apart:
        for i in range(m):
            low[i] -= errors[slots[i]] * spread
    elif len(errors):
        for i in range(m):
            low[i] -= errors[i] * spread
    # Most pieces hold nothing that is better than what was found before them, which one pass without a branch tells.
    heap = np.full(need, -np.inf, np.float32)
    for start in range(0, m, _PIECE):
        piece = low[start : min(start + _PIECE, m)]
        if _count_above(piece, heap[0]):
            for i in range(len(piece)):
                if piece[i] > heap[0]:
                    _offer(heap, piece[i])
    least = np.nextafter(np.float32(heap[0] - slack), np.float32(-np.inf))
    # What was taken away twice is the upper end, but for roundings that `slack` covers.
    high = low
    if len(errors):
        spread *= np.float32(2.0)
        if apart:
            for i in range(m):
                high[i] += errors[slots[i]] * spread
        else:
            for i in range(m):
                high[i] += errors[i] * spread
    found = np.empty(_count_above(high, least), np.int64)
    count = 0
    for start in range(0, m, _PIECE):
        piece = high[start : min(start + _PIECE, m)]
        if _count_above(piece, least):
            for i in range(len(piece)):
                if piece[i] > least:
                    found[count] = start + i
                    count += 1
    return found


# -- BM25 (keyword.py)


@_compiled(_INT(_written(_REAL), _written(_types.int32), _INT, _INTS, _INT32S, _REAL, _REAL, _REAL, _REAL))
def add_part(
    sums: Array,
    touched: Array,
    count: int,
    postings: Array,
    doc_len: Array,
    scale: float,
    k1_more: float,
    norm: float,
    norm_per_word: float,
) -> int:
    """Add what one term adds to each row that holds it (bm25.py's `parts`). Rows whose sum was zero and is not any more
    are noted in `touched`, of which `count` are used; how many now are. So each is noted once: with a K1 at the end of
    what there is, a part is zero."""
    for posting in postings:
        slot = posting >> 16
        tf = (posting & 0xFFFF) * 0.5
        before = sums[slot]
        after = before + scale * (tf * k1_more) / (tf + (norm + norm_per_word * doc_len[slot]))
        if before == 0.0 and after != 0.0:
            touched[count] = slot
            count += 1
        sums[slot] = after
    return count


@_compiled(_types.void(_written(_REAL), _INTS, _INTS, _INT32S, _REAL, _REAL, _REAL, _REAL))
def add_found(
    sums: Array,
    slots: Array,
    postings: Array,
    doc_len: Array,
    scale: float,
    k1_more: float,
    norm: float,
    norm_per_word: float,
) -> None:
    """The same for some rows only, ascending, which are searched for in the list."""
    start, end = 0, len(postings)
    for i in range(len(slots)):
        wanted = slots[i] << 16
        # Steps that double, then halves: near the one before, this takes few.
        step, low, high = 1, start, start
        while high < end and postings[high] < wanted:
            low = high + 1
            high += step
            step += step
        high = min(high, end)
        while low < high:
            middle = (low + high) >> 1
            if postings[middle] < wanted:
                low = middle + 1
            else:
                high = middle
        start = low
        if low < end and postings[low] >> 16 == slots[i]:
            tf = (postings[low] & 0xFFFF) * 0.5
            sums[i] += scale * (tf * k1_more) / (tf + (norm + norm_per_word * doc_len[slots[i]]))


@_compiled(_REAL(_REALS, _INT32S, _BOOLS, _INT))
def floor_of_sums(sums: Array, touched: Array, allowed: Array, need: int) -> Any:
    """The `need`-th largest sum of the touched rows that are allowed (bool (n,), or empty: all); -inf for fewer."""
    if need > len(touched):
        return -np.inf
    heap = np.full(need, -np.inf)
    for slot in touched:
        value = sums[slot]
        if value > heap[0] and (len(allowed) == 0 or allowed[slot]):
            _offer(heap, value)
    return heap[0]


@_compiled(_types.Tuple((_written(_INT), _written(_REAL)))(_written(_REAL), _INT32S, _BOOLS, _REAL))
def take_sums(sums: Array, touched: Array, allowed: Array, least: float) -> tuple[Array, Array]:
    """(slots, sums) of the touched rows that are allowed and have at least `least`; all sums are zero again."""
    slots, values = np.empty(len(touched), np.int64), np.empty(len(touched))
    count = 0
    for slot in touched:
        value = sums[slot]
        if value >= least and (len(allowed) == 0 or allowed[slot]):
            slots[count], values[count] = slot, value
            count += 1
        sums[slot] = 0.0
    return slots[:count].copy(), values[:count].copy()


#: `best_of_lists` takes so many lists: of fewer, empty ones fill the next size.
LISTS = (8, 24)


@_compiled(_REAL(_written(_REAL), _INT))
def _floor(values: Array, need: int) -> Any:
    """The `need`-th largest; -inf for fewer."""
    if need > len(values):
        return -np.inf
    heap = np.full(need, -np.inf)
    for value in values:
        if value > heap[0]:
            _offer(heap, value)
    return heap[0]


@_compiled(
    *(
        _types.Tuple((_written(_INT), _written(_REAL)))(
            *(_types.UniTuple(kind, size) for kind in (_INTS, _REAL, _REAL, _INT)),
            *(_types.UniTuple(_REAL, 3), _INT32S, _BOOLS, _INT, _REAL, _INT),
            *(_written(_REAL), _written(_types.int32)),
        )
        for size in LISTS
    )
)
def best_of_lists(
    lists: tuple[Array, ...],
    scales: tuple[float, ...],
    most: tuple[float, ...],
    terms: tuple[int, ...],
    norms: tuple[float, float, float],
    doc_len: Array,
    allowed: Array,
    need: int,
    less: float,
    skipped: int,
    sums: Array,
    touched: Array,
) -> tuple[Array, Array]:
    """(slots ascending, BM25) of the `need` best rows and all that equal the last, from all lists of a query in the
    order of its terms: the loops above in one call, as calls are most of what short lists take. `most` is what each
    list adds at most; one of more than `skipped` postings is not read whole where it need not be; `less` is a factor
    that takes away what roundings may be. `terms` says which lists are of one term."""
    number = len(lists)
    lengths = np.empty(number, np.int64)
    for i in range(number):
        lengths[i] = len(lists[i])
    by_length = np.argsort(lengths)
    rests = np.zeros(number + 1)  # what each and those behind it can add
    if lengths[by_length[number - 1]] > skipped:
        for i in range(number - 1, -1, -1):
            rests[i] = rests[i + 1] + most[by_length[i]] / less
            for j in range(i + 1, number):
                if terms[by_length[j]] == terms[by_length[i]]:  # a row is in one list of a term only
                    rests[i] = rests[i + 1]
    count, read = 0, 0
    while read < number:
        which = by_length[read]
        if (
            count >= need
            and lengths[which] > skipped
            and floor_of_sums(sums, touched[:count], allowed, need) * less > rests[read]
        ):
            break
        count = add_part(sums, touched, count, lists[which], doc_len, scales[which], norms[0], norms[1], norms[2])
        read += 1
    least = floor_of_sums(sums, touched[:count], allowed, need) * less - rests[read]
    slots, values = take_sums(sums, touched[:count], allowed, least)
    order = np.argsort(slots)
    slots, values = slots[order], values[order]
    for i in range(read, number):  # those not read are searched for the rows that are left
        which = by_length[i]
        add_found(values, slots, lists[which], doc_len, scales[which], norms[0], norms[1], norms[2])
        near = values >= _floor(values, need) * less - rests[i + 1]
        slots, values = slots[near], values[near]
    values = np.zeros(len(slots))
    for i in range(number):
        add_found(values, slots, lists[i], doc_len, scales[i], norms[0], norms[1], norms[2])
    near = values >= _floor(values, need)
    return slots[near], values[near]


@_compiled(
    _written(_INT)(
        _read(_types.uint32),
        _read(_types.uint16),
        _INT32S,
        *(_INT, _INT),
        _read(_types.uint32),
        _written(_INT),
    )
)
def forward_postings(
    terms: Array, halves: Array, ends: Array, row: int, first: int, wanted: Array, counts: Array
) -> Array:
    """The postings of distinct terms in the forward index of the rows from `row` on, those of the first term first:
    `counts`, zeros before, says how many each has. `ends` is of all rows, `terms` and `halves` begin at `first`."""
    pieces = np.empty(len(terms) // _PIECE + 1, np.int64)
    held = total = 0
    for start in range(0, len(terms), _PIECE):
        # Most pieces hold none of them, which passes without a branch tell.
        count: Any = np.int32(0)
        piece = terms[start : start + _PIECE]
        for term in wanted:
            for i in range(len(piece)):
                count += np.int32(piece[i] == term)
        if count:
            pieces[held] = start
            held += 1
            total += count
    places, which = np.empty(total, np.int64), np.empty(total, np.int64)
    found = 0
    for start in pieces[:held]:
        for at in range(start, min(start + _PIECE, len(terms))):
            for number in range(len(wanted)):
                if wanted[number] == terms[at]:
                    places[found], which[found] = at, number
                    counts[number] += 1
                    found += 1
                    break
    nexts = np.cumsum(counts) - counts
    out = np.empty(total, np.int64)
    slot = row
    for i in range(total):
        at, number = places[i], which[i]
        while ends[slot] - first <= at:
            slot += 1
        out[nexts[number]] = slot << 16 | halves[at]
        nexts[number] += 1
    return out
