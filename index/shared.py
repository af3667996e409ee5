"""What copies of a memory have in common, for MEMORY USAGE: rows, arrays and posting lists, until one of them changes.

    objects   a sample tells, by the references to them, in how many lists they are
    arrays    tables that came from one another compare which they have

What two have in common is half of each, so that the sizes of all memories add up.
"""

from __future__ import annotations

from collections.abc import Sequence, Sized
from sys import getrefcount
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from .columns import Table

_SAMPLES = 100
# A family is looked at anew whenever somebody asks; of more tables than this, when somebody asked as often as there are
# tables: as all of them do.
_LOOKED_AT_ALWAYS = 16

#: An array or the like by its kind and the `id` of what it is a part of -> how many bytes of it are used.
Arrays = dict[tuple[object, int], int]


def own_part(objects: Sequence[Sized | None]) -> float:
    """The part of `objects` that a list of them is to count: of what stands in three lists a third."""
    sample = objects[:: len(objects) // _SAMPLES + 1]
    # Three more references: the sample's, the loop's, the call's. Bytes objects of length 0 and 1 are everybody's.
    holders = [getrefcount(each) - 3 for each in sample if each is not None and len(each) > 1]
    return sum([1 / max(1, count) for count in holders]) / len(holders) if holders else 1.0


def whole(array: npt.NDArray[Any]) -> int:
    """The `id` of the array that `array` is a part of, if not of itself."""
    return id(array.base if isinstance(array.base, np.ndarray) else array)


class Family:
    """Tables that came from one another by COPY."""

    __slots__ = ("_asked", "_used", "tables")

    def __init__(self) -> None:
        self.tables: WeakSet[Table] = WeakSet()
        self._asked = 0  # how often since it was looked at
        self._used: dict[tuple[object, int], list[int]] = {}  # of each array, what each that has it uses, ascending

    def own_bytes(self, arrays: Arrays) -> int:
        """What a table that has these is to count of them."""
        count = len(self.tables)
        if count == 1:
            return sum(arrays.values())
        self._asked += 1
        if count <= _LOOKED_AT_ALWAYS or not self._used or self._asked >= count:
            self._look()
        return sum([_part_of(used, self._used.get(array, [used])) for array, used in arrays.items()])

    def _look(self) -> None:
        self._used = {}
        for table in self.tables:
            for array, used in table.arrays().items():
                self._used.setdefault(array, []).append(used)
        for each in self._used.values():
            each.sort()
        self._asked = 0


def _part_of(used: int, everybody: list[int]) -> int:
    """What one counts of an array of which it uses the first `used` bytes: of those that several use, its part."""
    total, begin, holders = 0, 0, len(everybody)
    for end in everybody:
        total += max(0, min(used, end) - begin) // holders
        begin = end
        holders -= 1
    return total
