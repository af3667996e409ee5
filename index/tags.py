"""The tags of all rows as sets of slots (roaring bitmaps): for filters, and for TAGBOOST."""

from __future__ import annotations

from itertools import islice
from sys import getsizeof
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap

from .names import Names

if TYPE_CHECKING:
    from .filters import Clause

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

#: TAGS' own operator: one of these very bytes (EQ and IN would take `7` for `7.0`).
HAS = "HAS"


_SPAN_BYTES = 8192


class TagSlots:
    """tag -> the slots that hold it."""

    __slots__ = ("_all", "_n", "_names", "_tags")

    def __init__(self) -> None:
        self._n = 0
        self._tags: dict[bytes, BitMap] = {}
        self._all = BitMap()
        self._names: tuple[Names, list[BitMap]] | None = None  # tags as names, numbered in the order of `_tags`

    def extend(self, tags: list[tuple[bytes, ...]], n: int) -> None:
        """Cover the first `n` rows."""
        for slot in range(self._n, n):
            held = tags[slot]
            if held:
                self._all.add(slot)
            for tag in held:
                slots = self._tags.get(tag)
                if slots is None:
                    slots = self._tags[tag] = BitMap()
                slots.add(slot)
        self._n = max(n, self._n)

    def nbytes(self) -> int:
        """About how many bytes this takes: two a slot, but of 65 536 slots not more than 8 KB."""
        per_tag = _SPAN_BYTES * (1 + (self._n >> 16))
        slots = sum([min(2 * len(tagged), per_tag) for tagged in (self._all, *self._tags.values())])
        return getsizeof(self._tags) + 200 * len(self._tags) + slots

    def mask(self, clause: Clause, n: int) -> Bools:
        """bool (n,): the rows whose tags pass."""
        if clause.op == "EXISTS":
            chosen, inverted = self._all, clause.values != (b"1",)
        elif clause.op == HAS:
            known = (self._tags[tag] for tag in clause.values if tag in self._tags)
            chosen, inverted = BitMap.union(BitMap(), *known), False
        else:
            inverted = clause.op in ("NE", "NIN")
            passing = (
                slots
                for tag, slots in self._tags.items()
                if (clause._equals(tag) if inverted else clause.test(tag))
            )
            chosen = BitMap.union(BitMap(), *passing)
        mask = np.zeros(n, np.bool_)
        if chosen:
            mask[_below(chosen, n)] = True
        return ~mask if inverted else mask

    def named(self, text: bytes, max_words: int, n: int) -> Int64s | None:
        """int64 (n,): how many of a row's tags the first `max_words` words of `text` hold, as whole words (names.py);
        None where that is none of any row."""
        if self._names is None:
            self._names = Names(), []
        names, numbered = self._names
        for tag, slots in islice(self._tags.items(), len(numbered), None):
            names.add(tag, len(numbered))
            numbered.append(slots)
        counts: Int64s | None = None
        for number in names.find(text, max_words):
            held = _below(numbered[number], n)
            if len(held):
                if counts is None:
                    counts = np.zeros(n, np.int64)
                counts[held] += 1
        return counts


def _below(chosen: BitMap, n: int) -> Int64s:
    slots = np.asarray(chosen.to_array(), np.int64)
    return slots[slots < n]
