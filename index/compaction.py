"""What tidies up a table without changing what it says: a compaction, a merge of posting lists.

Both go in three steps: begun on the loop, `build` in a thread, `install` on the loop; what changed meanwhile is brought
over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .columns import DEAD_AT, NEVER, Table
from .postings import Postings

if TYPE_CHECKING:
    from .memory import Memory

# Dead rows that are worth a compaction, beside "more than the live ones".
_COMPACT_MIN = 64


def is_worth(table: Table) -> bool:
    """Whether dead rows outnumber the live ones so that `Table.compacted` pays."""
    return table.n - table.live > max(_COMPACT_MIN, table.live)


def wants_tidying(table: Table) -> bool:
    """The same, or whether posting lists are to be merged."""
    return is_worth(table) or (table.postings is not None and table.postings.wants_merge)


class Merging:
    """A merge of posting lists, in the steps of a compaction."""

    def __init__(self, postings: Postings) -> None:
        self._postings = postings
        self._merge = postings.begin_merge()

    def build(self) -> None:
        self._merge.build()

    def install(self) -> None:
        self._postings.end_merge(self._merge)

    def abandon(self) -> None:
        """Instead of `install`, where `build` failed."""
        self._postings.abandon_merge()


class Compaction:
    """A compaction in three steps: begun on the loop, `build` in a thread, `install` on the loop."""

    def __init__(self, memory: Memory, table: Table) -> None:
        self._memory = memory
        self._old = table
        self._n = table.n
        self._sequence = table.sequence

    def build(self) -> None:
        self._new, self._kept = self._old.compacted(self._n, self._sequence)

    def install(self) -> None:
        """Bring what changed meanwhile over and swap."""
        memory, old, new = self._memory, self._old, self._new
        if old.side is not None and new.side is None:  # it has come since
            new.side = old.side.taken(self._kept)
        new.uses = None if old.uses is None else old.uses.taken(self._kept)  # as they are now
        dead_at = old.wide[DEAD_AT]
        died = np.flatnonzero((dead_at[: self._n] > self._sequence) & (dead_at[: self._n] != NEVER))
        for slot, place in zip(died.tolist(), np.searchsorted(self._kept, died).tolist(), strict=True):
            if new.by_id.get(old.ids[slot]) == place:
                del new.by_id[old.ids[slot]]
            new.kill(place)
        for slot in range(self._n, old.n):
            if dead_at[slot] != NEVER:
                continue
            memory._move(old, slot, new, old.extra(slot))
        memory._swap(old, new)

    def abandon(self) -> None:
        """Instead of `install`, where `build` failed: nothing has changed."""
