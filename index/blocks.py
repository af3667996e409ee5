"""Rows of one length kept in blocks, so that growth copies one block at most and readers keep what they counted on."""

from __future__ import annotations

import mmap
from math import prod
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Floats32 = npt.NDArray[np.float32]
T = TypeVar("T", bound=np.generic)

#: Rows per block.
BLOCK = 4096
# So many rows are fetched one by one: less than what it costs to sort them by block.
_SINGLY = 24
# One for all small memories, of which there may be a hundred thousand.
_NO_BLOCKS: tuple[Any, npt.NDArray[np.int64]] = None, np.zeros(0, np.int64)
# An array from this size on is mapped by itself: what was never written takes nothing.
_LARGE = 128 << 10


def gather(blocks: list[npt.NDArray[T]], rows: npt.NDArray[np.integer]) -> npt.NDArray[T]:
    """The rows (m, dim) by their number."""
    if len(blocks) == 1:
        only: npt.NDArray[T] = blocks[0][rows]
        return only
    if len(rows) <= _SINGLY:
        few = [blocks[row // BLOCK][row % BLOCK] for row in rows.tolist()]
        return np.stack(few) if few else np.empty((0, blocks[0].shape[1]), blocks[0].dtype)
    if (rows[1:] < rows[:-1]).any():
        order = np.argsort(rows)
        shuffled = np.empty((len(rows), blocks[0].shape[1]), blocks[0].dtype)
        shuffled[order] = gather(blocks, rows[order])
        return shuffled
    out = np.empty((len(rows), blocks[0].shape[1]), blocks[0].dtype)
    first, last = int(rows[0]) // BLOCK, int(rows[-1]) // BLOCK
    starts = np.searchsorted(rows, np.arange(first, last + 2) * BLOCK).tolist()
    within = rows % BLOCK
    for number in range(first, last + 1):
        start, end = starts[number - first], starts[number - first + 1]
        if start < end:
            np.take(blocks[number], within[start:end], axis=0, out=out[start:end], mode="clip")
    return out


def addresses(blocks: list[npt.NDArray[T]]) -> npt.NDArray[np.int64]:
    """Where each block begins in memory, for compiled loops, which take no lists of arrays."""
    return np.array([block.ctypes.data for block in blocks], np.int64)


class Addresses:
    """The same of one list that grows, whose blocks but the last stay: to ask takes a microsecond a block."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known = _NO_BLOCKS

    def of(self, blocks: list[npt.NDArray[T]]) -> npt.NDArray[np.int64]:
        known, found = self._known
        last = blocks[-1] if blocks else None
        if len(found) != len(blocks) or last is not known:
            found = addresses(blocks)
            self._known = last, found  # at once: several threads may ask
        return found


def room(shape: tuple[int, ...], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
    """An array for what is to come. A large one is a mapping of its own: what is never written is not in memory, which
    in memory that the allocator uses again it may be, and what is let go of is given back at once."""
    kind = np.dtype(dtype)
    size = prod(shape) * kind.itemsize
    if size < _LARGE:
        return np.empty(shape, kind)
    try:
        mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError:  # there may be too many mappings (vm.max_map_count)
        return np.empty(shape, kind)
    return np.ndarray(shape, kind, mapping)


def used_bytes(array: npt.NDArray[Any], used: int) -> int:
    """What an array takes of which `used` bytes were written: a large one's rest is not in memory before it is. Its
    object is 112 bytes, its shape 32, the allocator's rounding 16."""
    return 160 + (array.nbytes if array.nbytes < _LARGE else min(used, array.nbytes))
