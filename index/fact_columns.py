"""What readers keep of a table's facts: the slots by what subjects and objects are called, and the words of texts.

FactIndex (fact_index.py) knows the current facts by id, and changes; this only appends, as the rows do, so a thread
finds in it what its view shows: a slot stays where it is, and a reader leaves out those that are dead or later.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from sys import getsizeof
from typing import NamedTuple

from .entities import entity_name
from .names import first_words
from .side import Fact

#: The name of a subject or untyped object, or a typed object: (name, type).
End = bytes | tuple[bytes, bytes]

# Names are looked for in so many words of a text: an object has 500 characters, but a subject may be long.
_MAX_WORDS = 1024


class FactColumns:
    """One table's, built on demand. Not to be used by two threads at once."""

    __slots__ = ("_n", "_slots", "_words")

    def __init__(self) -> None:
        self._n = 0
        self._slots: dict[End, list[int]] = {}
        self._words: dict[int, tuple[str, ...]] = {}

    def extend(self, facts: list[Fact | None], n: int) -> None:
        """Cover the first `n` rows."""
        for slot in range(self._n, min(n, len(facts))):
            fact = facts[slot]
            if fact is None:
                continue
            other: End = (fact.object, fact.entity_type) if fact.entity_type else entity_name(fact.object)
            for end in {fact.subject, other}:
                self._slots.setdefault(end, []).append(slot)
        self._n = max(n, self._n)

    def nbytes(self) -> int:
        """About how many bytes this takes: two places a fact, and the words of the texts that were looked at."""
        return getsizeof(self._slots) + 150 * len(self._slots) + getsizeof(self._words) + 150 * len(self._words)

    def slots(self, end: End) -> Sequence[int]:
        """The slots of the facts with this end."""
        return self._slots.get(end, ())

    def words(self, slot: int, text: bytes) -> tuple[str, ...]:
        """The words of a fact's text as names have them. To find them takes six times as long as to look names up."""
        found = self._words.get(slot)
        if found is None:
            found = self._words[slot] = tuple(map(sys.intern, first_words(text, _MAX_WORDS)))
        return found


class FactPart(NamedTuple):
    """Rows of a view that are the first `n` of a table, from the view's slot `start` on."""

    columns: FactColumns
    start: int
    n: int
