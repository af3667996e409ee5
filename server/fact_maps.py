"""Facts as rows and as clients see them: the map of MEM.FACTS, MEM.PATHS and MEM.RECALL."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..index.memory import NEVER, Memory
from ..index.side import FACT, FLAGS, KIND, Fact, Int64s
from ..index.view import View
from .arguments import Words
from .entries import Put
from .errors import CommandError

_PAGE_MAX = 1000


class FactRow(NamedTuple):
    """One fact at one moment; times are unix milliseconds, NEVER for none, `deadline` 0 for none."""

    view: View
    slot: int
    id: bytes
    fact: Fact
    confidence: float
    written: int
    valid_at: int
    valid_until: int
    invalid_at: int
    deadline: int

    def put(
        self, key: bytes, memory: Memory, fact: Fact, confidence: float, *, since: int, max_words: int, at: int
    ) -> Put:
        """The entry that makes it say this from `since` on, all else as it is."""
        view, slot = self.view, self.slot
        return Put(
            key=key,
            id=self.id,
            text=fact.text,
            vector=view.vector(slot),
            meta=view.metas[slot],
            tags=view.tags[slot],
            importance=float(view.importance[slot]),
            created_at=int(view.created[slot]),
            updated_at=int(view.updated[slot]),
            deadline=self.deadline,
            next_id=memory.next_id,
            max_words=max_words,
            at=at,
            extra=view.extra(slot)._replace(fact=fact, confidence=confidence, since=max(since, self.written)),
        )


def fact_row(view: View, slot: int) -> FactRow:
    """The fact in this row."""
    extra = view.extra(slot)
    assert extra.fact is not None
    deadline = view.deadline(slot)
    return FactRow(
        view,
        slot,
        view.ids[slot],
        extra.fact,
        extra.confidence,
        extra.written,
        extra.valid_at,
        extra.valid_until,
        extra.invalid_at,
        deadline if deadline < NEVER else 0,
    )


def fact_at(memory: Memory, record_id: bytes, now: int) -> FactRow | None:
    """The current fact of this id, valid or not; None where there is none."""
    found = memory.locate(record_id, now)
    if found is None:
        return None
    view, slot = found
    return fact_row(view, slot) if view.kind(slot) == FACT else None


def fact_slots(view: View) -> Int64s:
    """The slots of the facts that show, ascending."""
    flags = view.side_column(FLAGS)
    if flags is None:
        return np.zeros(0, np.int64)
    alive = view.alive()
    facts = (flags & KIND) == FACT
    return np.flatnonzero(facts if alive is None else facts & alive)


def fact_map(view: View, slot: int) -> dict[str, Any]:
    """A fact; nil where there is none of something, numbers as doubles."""
    row = fact_row(view, slot)
    fact = row.fact
    return {
        "id": row.id,
        "subject": fact.subject,
        "predicate": fact.predicate,
        "object": fact.object,
        "entity_type": fact.entity_type or None,
        "confidence": row.confidence,
        "quote": fact.quote or None,
        "valid_at": float(row.valid_at),
        "valid_until": _time(row.valid_until),
        "invalid_at": _time(row.invalid_at),
        "episode": fact.episode or None,
        "created_at": float(view.created[slot]),
        "supersedes": fact.supersedes or None,
        "superseded_by": fact.superseded_by or None,
    }


def _time(value: int) -> float | None:
    return float(value) if value < NEVER else None


def read_page(option: bytes, words: Words, page: list[int]) -> bool:
    """Read LIMIT or OFFSET into `page`, [limit, offset]; whether it was one."""
    if option == b"LIMIT":
        page[0] = words.integer()
        if not 1 <= page[0] <= _PAGE_MAX:
            raise CommandError(f"LIMIT must be between 1 and {_PAGE_MAX}")
    elif option == b"OFFSET":
        page[1] = words.integer()
        if page[1] < 0:
            raise CommandError("OFFSET must not be negative")
    else:
        return False
    return True
