"""What an analyzer knows of stretches, in arrays, for compiled loops (compiled_words.py) to count a text's words by.

It holds what the analyzer's dictionaries do, which stay the truth: a stretch that is missing here is looked up there.
Several threads may use it: each has it to itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import kernels
from .blocks import room

Int64s = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_FIRST = 1 << 4


class Counted(NamedTuple):
    """The words of several texts: as analyzer.Documents, but that `counts` is NOT_COUNTED for some, of which the
    stretches at `unknown` (start, end, start, ..) are a reason."""

    terms: npt.NDArray[np.uint32]
    tfs: npt.NDArray[np.uint16]
    counts: Int64s
    doc_lens: Int64s
    unknown: list[int]


class WordTable:
    """Stretches -> a term, NOTHING, or -2 - n: the n-th of the entries, which have several forms."""

    __slots__ = ("_count", "_entries", "_forms", "_held", "_lock", "_slots", "_used")

    def __init__(self) -> None:
        self._lock = Lock()
        self._count = self._used = self._entries = 0
        self._slots, self._held = _free(_FIRST), np.empty(_FIRST, np.uint8)
        # Where the forms of each entry begin, how many words it is, and the terms and half units of the forms.
        self._forms = (np.zeros(2, np.int64), np.zeros(1, np.int64), np.zeros(8, np.int64), np.zeros(8, np.int64))

    def __len__(self) -> int:
        return self._count

    def add(self, stretches: Sequence[bytes], values: Sequence[int]) -> None:
        """Enter stretches that are not there, with a term or NOTHING each."""
        with self._lock:
            self._add(stretches, values)

    def add_entry(self, stretch: bytes, words: int, forms: Sequence[tuple[int, int]]) -> None:
        """Enter one that is several words, or has several forms: (term, half units) each."""
        with self._lock:
            starts, counts, terms, tfs = self._forms
            at = int(starts[self._entries])
            while at + len(forms) > len(terms):
                terms, tfs = _doubled(terms), _doubled(tfs)
            if self._entries == len(counts):
                starts, counts = np.append(starts, np.zeros(len(counts), np.int64)), _doubled(counts)
            terms[at : at + len(forms)] = [term for term, _ in forms]
            tfs[at : at + len(forms)] = [tf for _, tf in forms]
            counts[self._entries], starts[self._entries + 1] = words, at + len(forms)
            self._forms = starts, counts, terms, tfs
            self._entries += 1
            self._add([stretch], [-1 - self._entries])

    def _add(self, stretches: Sequence[bytes], values: Sequence[int]) -> None:
        self._count += len(values)
        pairs = len(self._slots) // 2
        if 3 * self._count > 2 * pairs:
            while 3 * self._count > 2 * pairs:
                pairs *= 2
            self._grow(pairs)
        joined = b"".join(stretches)
        while self._used + len(joined) + len(values) > len(self._held):
            self._held = _doubled(self._held)
        self._enter(np.frombuffer(joined, np.uint8), _cuts(stretches), np.array(values, np.int32))

    def _grow(self, pairs: int) -> None:
        """Enter all anew."""
        there = self._slots[1::2]
        there = np.sort(there[there >= 0])  # as they stand in `_held`
        begins = there >> 32
        cuts = np.append(begins, self._used) - np.arange(len(there) + 1)
        held = self._held[: self._used]
        is_length = np.zeros(self._used, np.bool_)
        is_length[begins] = True
        self._slots, self._held, self._used = _free(pairs), room(self._held.shape, np.uint8), 0
        self._enter(held[~is_length], cuts, there.astype(np.int32))

    def _enter(self, words: Bytes, cuts: Int64s, values: npt.NDArray[np.int32]) -> None:
        self._used = kernels.words.enter(words, cuts, values, self._slots, self._held, self._used)

    def count(self, texts: Sequence[bytes]) -> Counted:
        """Count the words of texts."""
        joined = np.frombuffer(b"".join(texts), np.uint8)
        size = len(joined) + 64  # a term takes a byte and what parts it from the next; forms take what is left
        terms, tfs = np.empty(size, np.uint32), np.empty(size, np.uint16)
        counts, doc_lens = np.empty(len(texts), np.int64), np.empty(len(texts), np.int64)
        unknown = np.empty(4 * len(texts) + 64, np.int64)
        with self._lock:
            found = kernels.words.count(
                joined, _cuts(texts), self._slots, self._held, *self._forms, terms, tfs, counts, doc_lens, unknown
            )
        done = int(counts[counts > 0].sum())
        return Counted(terms[:done], tfs[:done], counts, doc_lens, unknown[:found].tolist())

    def nbytes(self) -> int:
        """About how many bytes this takes."""
        return sum([array.nbytes for array in (self._slots, self._held, *self._forms)])


def _free(pairs: int) -> Int64s:
    """So many slots that hold nothing."""
    slots: Int64s = room((2 * pairs,), np.int64)
    slots[:] = -1
    return slots


def _cuts(words: Iterable[bytes]) -> Int64s:
    """Where they begin and end, one behind the other."""
    return np.fromiter(chain((0,), map(len, words)), np.int64).cumsum()


def _doubled(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    doubled: npt.NDArray[Any] = room((2 * len(array),), array.dtype)
    doubled[: len(array)] = array
    return doubled
