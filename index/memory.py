"""One memory: settings, a table of records, and what keeps the two in step.

Pure state: the methods that change it never refuse (server/keyspace.py settles and checks first), and time is an
argument. All of them run on the server's loop; `run(plan)` alone may run in a thread.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from sys import getsizeof

import numpy as np

from . import ranking
from .analyzer import Analyzer, Document, QueryTerm, Vocabulary, analyzer_for
from .columns import DEAD_AT, DEADLINE, DOC_LEN, NEVER, SERIAL, Table
from .postings import PostingList
from .query import Query
from .ranking import Plan
from .settings import Settings
from .view import View

__all__ = ["NEVER", "Memory", "run", "run_together"]

_NO_WORDS = Document([], [], 0)
# Dead rows that are worth a compaction, beside "more than the live ones".
_COMPACT_MIN = 64
# Above so many rows, or bytes of vectors, a compaction takes longer than the loop may: a thread does it (`compaction`).
COMPACT_ON_LOOP = 5_000
_COMPACT_ON_LOOP_BYTES = 8 << 20
# Deadlines kept beyond two per record before the stale ones are dropped.
_STALE_MIN = 64
# How many expired ids MEM.EXPLAIN can still tell from absent ones.
_EXPIRED_KEPT = 1024

run = ranking.run
run_together = ranking.run_together


class Memory:
    """Records that can be asked. `len()` counts the live ones; `next_deadline` says when `expire` has work."""

    __slots__ = (
        "_analyzer",
        "_due",
        "_expired",
        "created_at",
        "next_deadline",
        "next_id",
        "settings",
        "table",
        "updated_at",
        "vocabulary",
    )

    def __init__(self, settings: Settings, vocabulary: Vocabulary, at: int) -> None:
        self.settings = settings.shared()
        self.vocabulary = vocabulary
        self.created_at = at
        self.updated_at = at
        self.next_id = 1  # the counter behind automatic ids
        self.next_deadline = NEVER
        self.table = Table(settings)
        self._analyzer: Analyzer | None = analyzer_for(settings.lang, vocabulary) if settings.has_text else None
        self._due: list[tuple[int, bytes]] = []  # heap; rows whose record changed since are skipped
        self._expired: dict[bytes, None] = {}

    def __len__(self) -> int:
        return self.table.live

    # -- reading

    def __contains__(self, record_id: bytes) -> bool:
        return record_id in self.table.by_id

    def slot(self, record_id: bytes) -> int | None:
        """The slot of the live record `record_id`."""
        return self.table.by_id.get(record_id)

    def has_expired(self, record_id: bytes) -> bool:
        """Whether the record that is not there any more went by its deadline, lately."""
        return record_id in self._expired

    def serial(self, record_id: bytes) -> int:
        """The place of a live record in the order of first writing."""
        return int(self.table.wide[SERIAL, self.table.by_id[record_id]])

    def live_slots(self) -> list[int]:
        """The slots of all live records."""
        return list(self.table.by_id.values())

    def written_since(self, view: View) -> list[int]:
        """The slots of the live records written since `view` was taken; all of them, where it was compacted since."""
        if not view.is_of(self.table):
            return self.live_slots()
        by_id, ids = self.table.by_id, self.table.ids
        return [slot for slot in range(view.n, self.table.n) if by_id.get(ids[slot]) == slot]

    @property
    def vector_count(self) -> int:
        vectors = self.table.vectors
        return vectors.live if vectors is not None else 0

    def term_count(self) -> int:
        return self.table.term_count()

    @property
    def avg_doc_len(self) -> float:
        return self.table.total_len / self.table.live if self.table.live else 0.0

    def free_id(self, number: int) -> int:
        """The first number from `number` on that no record has as its id."""
        by_id = self.table.by_id
        while b"%d" % number in by_id:
            number += 1
        return number

    def view(self, now: int) -> View:
        """This moment, for readers."""
        return View(self.table, self.settings, now)

    def plan(self, query: Query, now: int) -> Plan:
        """Fix what `query` sees: the rows and statistics of this moment."""
        terms: list[tuple[QueryTerm, PostingList | None]] = []
        if query.text is not None:
            # Reading what is behind the lists would cost each query as much as this costs once.
            self.table.post()
        postings = self.table.postings
        if query.text is not None and self._analyzer is not None:
            for term in self._analyzer.query(query.text, query.max_terms):
                posting = postings.get(term.term_id) if postings is not None and term.term_id >= 0 else None
                # A copy: the list itself grows on, though never within its first `n`.
                terms.append((term, posting and PostingList(posting.data, posting.n, posting.df, posting.most)))
        slot = -1
        if query.explain_id is not None:
            slot = self.table.by_id[query.explain_id]
        return Plan(self.view(now), query, terms, self.table.posted, slot)

    # -- changing; `at` is the time of the write

    def put(
        self,
        record_id: bytes,
        text: bytes,
        vector: bytes,
        meta: tuple[bytes, ...],
        tags: tuple[bytes, ...],
        *,
        importance: float,
        created_at: int,
        updated_at: int,
        deadline: int,
        max_words: int,
        at: int,
    ) -> None:
        """Make the record this; `vector` is float32 bytes as stored, b"" for none; `deadline` is NEVER for none."""
        words = self._analyzer.document(text, max_words) if self._analyzer is not None else _NO_WORDS
        self._write(record_id, text, vector, meta, tags, words, importance, created_at, updated_at, deadline)
        self._expired.pop(record_id, None)
        self._changed(at)

    def remove(self, record_id: bytes, at: int) -> None:
        """Delete a record that is there."""
        self.table.forget(record_id)
        self._changed(at)

    def set_meta(self, record_id: bytes, meta: tuple[bytes, ...], at: int) -> None:
        """Give a record that is there other metadata; nothing else of it changes."""
        table = self.table
        slot = table.by_id[record_id]
        self._rewrite(slot, meta, table.deadline(slot))
        self._changed(at)

    def set_deadline(self, record_id: bytes, deadline: int, at: int) -> None:
        """Give a record that is there another deadline, NEVER for none."""
        table = self.table
        slot = table.by_id[record_id]
        self._rewrite(slot, table.metas[slot], deadline)
        self._changed(at)

    def configure(self, settings: Settings, at: int) -> None:
        """New settings; mode, dim, metric and lang stay."""
        self.settings = settings
        self.updated_at = at

    def expire(self, now: int) -> list[bytes]:
        """Drop the records whose deadline is `now` or earlier; their ids, in the order of their deadlines."""
        gone = []
        due, table = self._due, self.table
        while due and due[0][0] <= now:
            deadline, record_id = heappop(due)
            slot = table.by_id.get(record_id)
            if slot is None or table.deadline(slot) != deadline:
                continue
            table.forget(record_id)
            gone.append(record_id)
            self._expired[record_id] = None
            if len(self._expired) > _EXPIRED_KEPT:
                del self._expired[next(iter(self._expired))]
        self.next_deadline = due[0][0] if due else NEVER
        if gone:
            self._compact_if_worth()
        return gone

    def copy(self) -> Memory:
        """An independent twin."""
        twin = Memory(self.settings, self.vocabulary, self.created_at)
        twin.updated_at = self.updated_at
        twin.next_id = self.next_id
        twin.next_deadline = self.next_deadline
        twin.table = self.table.copy()
        twin._due = list(self._due)
        twin._expired = dict(self._expired)
        return twin

    @classmethod
    def restored(
        cls, settings: Settings, vocabulary: Vocabulary, table: Table, next_id: int, created_at: int, updated_at: int
    ) -> Memory:
        """A memory over a table of live rows, as a base file holds it."""
        memory = cls(settings, vocabulary, created_at)
        memory.updated_at = updated_at
        memory.next_id = next_id
        memory.table = table
        deadlines = table.wide[DEADLINE, : table.n]
        memory._due = [(table.deadline(slot), table.ids[slot]) for slot in np.flatnonzero(deadlines < NEVER).tolist()]
        heapify(memory._due)
        memory.next_deadline = memory._due[0][0] if memory._due else NEVER
        return memory

    def _changed(self, at: int) -> None:
        self.updated_at = at
        self._compact_if_worth()

    def _rewrite(self, slot: int, meta: tuple[bytes, ...], deadline: int) -> None:
        """Write the row at `slot` again, its words taken over."""
        table = self.table
        where = table.terms_of(slot)
        words = Document(
            table.fwd_terms[where].tolist(), table.fwd_halves[where].tolist(), int(table.narrow[DOC_LEN, slot])
        )
        self._write(
            table.ids[slot],
            table.texts[slot],
            table.vector(slot),
            meta,
            table.tags[slot],
            words,
            table.importance(slot),
            table.created(slot),
            table.updated(slot),
            deadline,
        )

    def _write(
        self,
        record_id: bytes,
        text: bytes,
        vector: bytes,
        meta: tuple[bytes, ...],
        tags: tuple[bytes, ...],
        words: Document,
        importance: float,
        created_at: int,
        updated_at: int,
        deadline: int,
    ) -> None:
        table = self.table
        old = table.by_id.get(record_id)
        serial = 0
        if old is not None:
            serial = int(table.wide[SERIAL, old])
            record_id = table.ids[old]  # one bytes object per id, however often it is written
            table.kill(old)
        table.append(
            record_id,
            text,
            vector,
            meta,
            tags,
            words,
            importance=importance,
            created_at=created_at,
            updated_at=updated_at,
            deadline=deadline,
            serial=serial,
        )
        if deadline < NEVER:
            heappush(self._due, (deadline, record_id))
            if len(self._due) > 2 * table.live + _STALE_MIN:
                self._forget_stale()
            self.next_deadline = self._due[0][0]

    def _forget_stale(self) -> None:
        """Drop the deadlines that were moved since: a TTL renewed at each use would pile them up."""
        table = self.table
        deadlines = table.wide[DEADLINE]
        self._due = [(int(deadlines[slot]), key) for key, slot in table.by_id.items() if deadlines[slot] < NEVER]
        heapify(self._due)

    # -- compaction

    @property
    def wants_compaction(self) -> bool:
        """Whether dead rows outnumber the live ones so that `compacted` pays."""
        table = self.table
        return table.n - table.live > max(_COMPACT_MIN, table.live)

    def _compact_if_worth(self) -> None:
        table = self.table
        if (
            table.n - table.live > max(_COMPACT_MIN, table.live)
            and table.n <= COMPACT_ON_LOOP
            and table.n * self.settings.dim * 4 <= _COMPACT_ON_LOOP_BYTES
        ):
            self.compact()

    def compact(self) -> None:
        """Drop the dead rows, here and now."""
        self.table, _ = self.table.compacted(self.table.n, self.table.sequence)

    def compaction(self) -> Compaction:
        """Begin a compaction that a thread does."""
        return Compaction(self)

    def nbytes(self) -> int:
        """About how many bytes of memory this memory takes."""
        # A deadline is a tuple (64) and a number (32).
        own = sum(map(getsizeof, (self, self._due, self._expired)))
        return own + self.table.nbytes() + 96 * len(self._due)


class Compaction:
    """A compaction in three steps: begun on the loop, `build` in a thread, `install` on the loop."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._old = memory.table
        self._n = memory.table.n
        self._sequence = memory.table.sequence

    def build(self) -> None:
        self._new, self._kept = self._old.compacted(self._n, self._sequence)

    def install(self) -> None:
        """Bring what changed meanwhile over and swap."""
        memory, old, new = self._memory, self._old, self._new
        dead_at = old.wide[DEAD_AT]
        died = np.flatnonzero((dead_at[: self._n] > self._sequence) & (dead_at[: self._n] != NEVER))
        for slot, place in zip(died.tolist(), np.searchsorted(self._kept, died).tolist(), strict=True):
            del new.by_id[old.ids[slot]]
            new.kill(place)
        for slot in range(self._n, old.n):
            if dead_at[slot] != NEVER:
                continue
            where = old.terms_of(slot)
            new.append(
                old.ids[slot],
                old.texts[slot],
                old.vector(slot),
                old.metas[slot],
                old.tags[slot],
                Document(old.fwd_terms[where].tolist(), old.fwd_halves[where].tolist(), int(old.narrow[DOC_LEN, slot])),
                importance=old.importance(slot),
                created_at=old.created(slot),
                updated_at=old.updated(slot),
                deadline=old.deadline(slot),
                serial=int(old.wide[SERIAL, slot]),
            )
        memory.table = new
