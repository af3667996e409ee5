"""Words that come again and again in the metadata and tags of a table, each kept once: a field's name is in every
record that has the field, and many values (a source, a user, a kind) are in many. So are whole lists of words.
"""

from __future__ import annotations

from sys import getsizeof
from typing import Any

Words = tuple[bytes, ...]

# Words and lists of a table; those that are seen first, as what comes often does.
_MOST = 1024
_LONGEST = 64


class Common:
    """What is kept once; one table's and its copies'."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}

    def kept(self, words: Words) -> tuple[Words, int]:
        """(the same words, of objects that are there already as far as they are, the bytes that the others take). A
        bytes object is 33 and its length, a tuple 40 and 8 for each reference, both rounded up to 16."""
        known = self._known
        found = known.get(words)
        if found is not None:
            return found, 0
        size, has_room, is_new = 48 + 8 * len(words) & -16, len(known) < _MOST, False
        objects: list[bytes] = []
        for word in words:
            there = known.get(word)
            if there is None:
                size, is_new, there = size + (48 + len(word) & -16), True, word
                if has_room and len(word) <= _LONGEST:
                    known[word] = word
            objects.append(there)
        found = tuple(objects)
        if has_room and not is_new:  # of words that come again, so it may come again
            known[found] = found
        return found, size

    def nbytes(self) -> int:
        """Beside the words."""
        return getsizeof(self._known)
