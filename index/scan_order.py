"""The order in which SCAN walks: by serial number, so that a cursor means the same whatever is added or removed.

Each item gets the next serial when it is added and keeps it until it is removed; a cursor is the serial to go on from.
What is there from the start to the end of a walk is met exactly once. A page costs O(log n + its own length): holes
are dropped once they outnumber the items.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable, Sequence
from sys import getsizeof
from typing import Generic, TypeVar

import numpy as np

T = TypeVar("T")

_MIN_HOLES = 64
# However small its count, a page looks at so many places: a short list full of holes is then one page, not many.
_MIN_PLACES = 256


class ScanOrder(Generic[T]):
    """Items by ascending serial (from 1)."""

    __slots__ = ("_holes", "_items", "_serials", "next_serial")

    def __init__(self) -> None:
        self.next_serial = 1
        self._serials = array("q")
        self._items: list[T | None] = []
        self._holes = 0

    def __len__(self) -> int:
        return len(self._items) - self._holes

    def add(self, item: T) -> int:
        """Append `item`; its serial."""
        serial = self.next_serial
        self.next_serial += 1
        self._serials.append(serial)
        self._items.append(item)
        return serial

    def add_all(self, items: Sequence[T]) -> range:
        """The same for several; their serials."""
        serials = range(self.next_serial, self.next_serial + len(items))
        self.next_serial = serials.stop
        self._serials.extend(serials)
        self._items.extend(items)
        return serials

    def remove(self, serial: int) -> None:
        """Forget the item with `serial`, which is there."""
        self._items[bisect_left(self._serials, serial)] = None
        self._holes += 1
        self._close_holes()

    def remove_all(self, serials: list[int]) -> None:
        """Forget the items with these serials, which are there."""
        items = self._items
        for at in np.searchsorted(np.array(self._serials), np.array(serials, np.int64)).tolist():
            items[at] = None
        self._holes += len(serials)
        self._close_holes()

    def clear(self) -> None:
        """Forget all items; serials go on where they were."""
        self._serials, self._items, self._holes = array("q"), [], 0

    def _close_holes(self) -> None:
        if self._holes > _MIN_HOLES and self._holes * 2 > len(self._items):
            pairs = zip(self._serials, self._items, strict=True)
            self._serials = array("q", [serial for serial, item in pairs if item is not None])
            self._items = [item for item in self._items if item is not None]
            self._holes = 0

    def page(self, cursor: int, count: int) -> tuple[int, list[T]]:
        """Up to `count` items from serial `cursor` on, and the next cursor, 0 at the end."""
        at = bisect_left(self._serials, cursor)
        found: list[T] = []
        end = len(self._items)
        # A page looks at twice its count or little more, so that a run of holes costs pages, not one long page.
        stop = min(end, at + max(2 * count, _MIN_PLACES))
        while at < stop and len(found) < count:
            item = self._items[at]
            at += 1
            if item is not None:
                found.append(item)
        return (self._serials[at] if at < end else 0), found

    def choose(self, below: Callable[[int], int]) -> T | None:
        """Any item, all equally likely, None where there are none. `below(n)` draws a number from 0 to n - 1."""
        while len(self):
            # Holes are never many more than half, so this ends soon.
            item = self._items[below(len(self._items))]
            if item is not None:
                return item
        return None

    @classmethod
    def restored(cls, serials: list[int], items: list[T], next_serial: int) -> ScanOrder[T]:
        """An order of these items, by ascending serial."""
        order: ScanOrder[T] = cls()
        order.next_serial = next_serial
        order._serials = array("q", serials)
        order._items = list(items)
        return order

    def nbytes(self) -> int:
        return getsizeof(self) + getsizeof(self._serials) + getsizeof(self._items)

    def joined(self, other: ScanOrder[T]) -> ScanOrder[T]:
        """An order of the items of both, which have no serial in common."""
        items = {
            serial: item
            for order in (self, other)
            for serial, item in zip(order._serials, order._items, strict=True)
            if item is not None
        }
        serials = sorted(items)
        next_serial = max(self.next_serial, other.next_serial)
        return ScanOrder.restored(serials, [items[serial] for serial in serials], next_serial)

    def copy(self) -> ScanOrder[T]:
        twin: ScanOrder[T] = ScanOrder()
        twin.next_serial = self.next_serial
        twin._serials = self._serials[:]
        twin._items = self._items[:]
        twin._holes = self._holes
        return twin
