"""The patterns of a user's keys or channels, all at once.

A value is asked only of the patterns whose head, the bytes before their first star or wildcard, it begins with: with a
pattern per tenant (`user:alice:*`) that is one of thousands. The heads are sorted. The greatest of those that are not
above the value begins with every head that the value begins with, so these are found from it on, one by one.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable

from .glob import Glob, compile_glob, ns_per_byte

# What asking one pattern takes beside what depends on the value's length.
_EACH_NS = 250

_HEAD = re.compile(rb"[^*?\[\\]*")


def head_of(pattern: bytes) -> bytes:
    """The bytes before its first star or wildcard."""
    found = _HEAD.match(pattern)
    assert found is not None
    return found[0]


class Patterns:
    """Patterns of glob.py, compiled."""

    __slots__ = ("_each_ns", "_exact", "_globs", "_heads", "_ns_per_byte", "_shorter")

    def __init__(self, patterns: Iterable[bytes]) -> None:
        self._exact: set[bytes] = set()  # those that are one value
        globs: dict[bytes, list[Glob]] = {}
        per_byte: dict[bytes, int] = {}
        for pattern in patterns:
            head = head_of(pattern)
            if head == pattern:
                self._exact.add(pattern)
            else:
                globs.setdefault(head, []).append(compile_glob(pattern))
                per_byte[head] = per_byte.get(head, 0) + ns_per_byte(pattern)
        self._heads = sorted(globs)
        self._globs = [globs[head] for head in self._heads]
        self._shorter: list[int] = []  # the place of the longest other head that each begins with, or -1
        # What a value may take that is asked from the head before a place on.
        each, byte = [0], [0]
        for at, head in enumerate(self._heads):
            before = at - 1
            while before >= 0 and not head.startswith(self._heads[before]):
                before = self._shorter[before]
            self._shorter.append(before)
            each.append(each[before + 1] + _EACH_NS * len(self._globs[at]))
            byte.append(byte[before + 1] + per_byte[head])
        self._each_ns, self._ns_per_byte = max(each), max(byte)

    def ns(self, values: int, size: int) -> int:
        """How long so many values of `size` bytes together may take to match, about."""
        return self._each_ns * values + self._ns_per_byte * size

    def match(self, value: bytes) -> bool:
        """Whether one of them matches the whole value."""
        if value in self._exact:
            return True
        at = bisect_right(self._heads, value) - 1
        while at >= 0:
            if value.startswith(self._heads[at]):
                for glob in self._globs[at]:
                    if glob.fullmatch(value) is not None:
                        return True
            at = self._shorter[at]
        return False
