"""The inner loops of analysing texts, compiled by numba: what most words of most texts need.

A table of stretches (word_table.py) is two arrays. `slots` has pairs: a stretch's hash, and where in `held` its length
and bytes stand, shifted left by 32, with its value in the lower half; FREE where there is none. Whoever finds a hash
compares the bytes. These loops do not let go of the interpreter, which is what keeps others from changing the arrays
meanwhile: a text takes some hundred microseconds at most.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
F = TypeVar("F", bound=Callable[..., Any])

_numba: Any = numba
_types: Any = _numba.types
_BYTES, _INT = _types.uint8, _types.int64

# FNV-1a of 64 bits.
_START, _PRIME = np.uint64(0xCBF29CE484222325), np.uint64(0x100000001B3)
#: So many slots are looked at. A table of which a third is free hardly ever needs as many, unless somebody chose words.
PROBES = 64
#: Longer stretches are in no table.
LONGEST = 64
#: A text of more forms, all words' together, is not counted here: each is compared with all.
MOST_FORMS = 512
NOT_COUNTED = -1
FREE = -1
_NEITHER = -(1 << 62)


def _read(number: Any) -> Any:
    return _types.Array(number, 1, "C", readonly=True, aligned=False)


def _written(number: Any) -> Any:
    return _types.Array(number, 1, "C")




_INTS, _INT32S = _read(_INT), _read(_types.int32)


def _compiled(signature: Any) -> Callable[[F], F]:
    """Compiled at once, and kept on disk where there is a place for that (compiled.py)."""

    def decorate(function: F) -> F:
        jit: Any = numba.njit
        try:
            made: F = jit([signature], error_model="numpy", cache=True)(function)
        except RuntimeError:
            made = jit([signature], error_model="numpy")(function)
        return made

    return decorate


@_compiled(_INT(_read(_BYTES), _INT, _INT, _INT, _INTS, _read(_BYTES)))
def _find(text: Array, start: int, end: int, hashed: Any, slots: Array, held: Array) -> Any:
    """Where in `slots` what is known of `text[start:end]` stands, or as -1 - place where there is room for it; or
    _NEITHER."""
    mask = len(slots) - 1
    place = (2 * hashed) & mask
    for _ in range(PROBES):
        if slots[place + 1] == FREE:
            return -1 - place
        if slots[place] == hashed:
            begin = slots[place + 1] >> 32
            if held[begin] == end - start:
                for at in range(end - start):
                    if held[begin + 1 + at] != text[start + at]:
                        break
                else:
                    return place
        place = (place + 2) & mask
    return _NEITHER


@_compiled(
    _INT(*(_read(_BYTES), _INTS, _INT32S), *(_written(_INT), _written(_BYTES)), _INT),
)
def enter(words: Array, cuts: Array, values: Array, slots: Array, held: Array, used: int) -> int:
    """Enter the stretches `words[cuts[i]:cuts[i + 1]]`, none of which is there; how many bytes of `held` are used
    then, one more for each than it has."""
    for number in range(len(values)):
        start, end = cuts[number], cuts[number + 1]
        hashed = _START
        for at in range(start, end):
            hashed = (hashed ^ np.uint64(words[at])) * _PRIME
        place = _find(words, start, end, np.int64(hashed), slots, held)
        if _NEITHER < place < 0:
            place = -1 - place
            held[used] = end - start
            for at in range(start, end):
                held[used + 1 + at - start] = words[at]
            slots[place] = np.int64(hashed)
            slots[place + 1] = used << 32 | np.int64(values[number]) & 0xFFFFFFFF
            used += 1 + end - start
    return used


@_compiled(
    _INT(
        *(_read(_BYTES), _INTS),
        *(_INTS, _read(_BYTES)),
        *(_INTS, _INTS, _INTS, _INTS),
        *(_written(_types.uint32), _written(_types.uint16), _written(_INT), _written(_INT)),
        _written(_INT),
    )
)
def count(
    text: Array,
    cuts: Array,
    slots: Array,
    held: Array,
    form_starts: Array,
    form_words: Array,
    form_terms: Array,
    form_tfs: Array,
    terms: Array,
    tfs: Array,
    counts: Array,
    doc_lens: Array,
    unknown: Array,
) -> int:
    """Count the words of the texts `text[cuts[i]:cuts[i + 1]]` into `terms` and `tfs`, one behind the other:
    `counts[i]` terms of `doc_lens[i]` words; NOT_COUNTED where there is an unknown stretch, or too much. How many
    bounds of unknown stretches `unknown` has now.

    A value from 0 on is the term of a stretch, -1 stands for none, and -2 - n for the forms from `form_starts[n]` on,
    of `form_words[n]` words.
    """
    done = found = 0
    for number in range(len(counts)):
        first, doc_len, forms, whole = done, 0, 0, True
        at, stop = cuts[number], cuts[number + 1]
        while at < stop:
            byte = text[at]
            if byte == 32 or 9 <= byte <= 13:
                at += 1
                continue
            start = at
            hashed = _START
            while at < stop:
                byte = text[at]
                if byte == 32 or 9 <= byte <= 13:
                    break
                hashed = (hashed ^ np.uint64(byte)) * _PRIME
                at += 1
            place = -1
            if at - start <= LONGEST:
                place = _find(text, start, at, np.int64(hashed), slots, held)
            if place < 0:
                whole = False
                if found + 2 <= len(unknown):
                    unknown[found], unknown[found + 1] = start, at
                    found += 2
                continue
            value = np.int64(np.int32(slots[place + 1] & 0xFFFFFFFF))
            if value == -1 or not whole:  # of the others only what is unknown still matters
                continue
            if value >= 0:
                doc_len += 1
                form, last = -1, 0
            else:
                doc_len += form_words[-2 - value]
                form, last = form_starts[-2 - value], form_starts[-1 - value]
            while form < last:
                term, tf = value, 2
                if form >= 0:
                    term, tf = form_terms[form], form_tfs[form]
                row = first
                while row < done and terms[row] != term:
                    row += 1
                if row == done:
                    if done == len(terms):
                        whole = False
                        break
                    terms[done], tfs[done] = term, 0
                    done += 1
                tfs[row] += tf
                form += 1
                forms += 1
            if forms > MOST_FORMS:
                whole = False
                break
        if not whole:
            done, doc_len = first, 0
        counts[number] = done - first if whole else NOT_COUNTED
        doc_lens[number] = doc_len
    return found
