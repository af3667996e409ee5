"""All memories as of one moment, taken while writes go on: what fork() gives Redis, by views.

At the moment it begins, a snapshot notes which keys there are. Each is frozen (a view and a few numbers, about three
microseconds) by whichever comes first: the walk, some hundred keys per turn of the loop, or the first change to it
(`Keyspace.before_change`). A frozen memory is immutable, so a thread may write it.

Expiry is no change here: what has passed its deadline is gone for every later moment as well, and no entry logged since
can be about it, so a memory that lost expired records before it was frozen is the same to a reader of the base. What is
due is dropped before a memory is frozen, so that no file holds it after a rewrite.
"""

from __future__ import annotations

from collections.abc import Iterable

from .base import Frozen, freeze
from .entries import Copy, Drop, Entry, Flush, PutNew, Rename
from .keyspace import Keyspace


class Snapshot:
    """Begun on creation; `walk` until it returns True, then `take` what there was, in the order of SCAN."""

    def __init__(self, keyspace: Keyspace, now: int) -> None:
        self._keyspace = keyspace
        self._now = now
        self._left = {key: place for place, key in enumerate(keyspace.memories)}
        self._frozen: list[Frozen | None] = [None] * len(self._left)
        self.vocabulary = keyspace.vocabulary  # FLUSHALL begins another one
        keyspace.before_change = self.before

    def walk(self, count: int) -> bool:
        """Freeze up to `count` more; whether all are."""
        left = self._left
        while left and count > 0:
            key = next(iter(left))
            self._keyspace.get(key, self._now)  # an expired key goes, so that it is in no file
            self._freeze(key, self._now)
            count -= 1
        if not left:
            self._keyspace.before_change = None
        return not left

    def take(self) -> list[Frozen]:
        """What was frozen, handed over: so much memory is not kept twice."""
        frozen, self._frozen = self._frozen, []
        return [each for each in frozen if each is not None]

    def abandon(self) -> None:
        """Stop watching changes."""
        self._left.clear()
        self._keyspace.before_change = None

    def before(self, entry: Entry | PutNew) -> None:
        """An entry is about to apply."""
        # Not what expires after the time of the entry, which may be about it.
        at = min(self._now, getattr(entry, "at", self._now))
        for key in _changes(entry, self._left):
            if key in self._left:
                self._freeze(key, at)

    def _freeze(self, key: bytes, now: int) -> None:
        place = self._left.pop(key)
        memory = self._keyspace.memories.get(key)
        if memory is not None:  # else its key has expired
            self._keyspace.prune(key, now)
            memory.version += 1  # what is changed aside begins again: it may be about records that have expired since
            self._frozen[place] = freeze(key, memory, self._keyspace.deadlines.get(key, 0), self._now)


def _changes(entry: Entry | PutNew, left: Iterable[bytes]) -> Iterable[bytes]:
    """The keys that an entry changes, as far as they were there at the beginning."""
    if isinstance(entry, Flush):
        return list(left)
    if isinstance(entry, Drop):
        return entry.keys
    if isinstance(entry, Rename | Copy):
        return entry.key, entry.to
    return (entry.key,)
