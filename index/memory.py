"""One memory: settings, a table of records, and what keeps the two in step.

Pure state: the methods that change it never refuse (server/keyspace.py settles and checks first), and time is an
argument. All of them run on the server's loop; `run(plan)` alone may run in a thread.

Rule 1: `table` holds exactly the records that count now, so queries of the present need not know of any others. `past`,
        absent until it is needed, holds the rest: current records that are not valid, or not yet (side.py), and, where
        the memory holds history, versions that ended. A record crosses over by itself when its moment comes.
Rule 2: where history is held, a version that ends (it is written over, or deleted) is kept with KNOWN_TO, unless one
        that begins no later takes its place: one id shows at most once at any moment.
Rule 3: expired and forgotten means every version. A record has one deadline, its last, deleted or not.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from sys import getsizeof
from typing import Any

import numpy as np

from . import ranking
from .analyzer import Analyzer, Document, QueryTerm, Vocabulary, analyzer_for, no_words
from .columns import DEAD_AT, DEADLINE, SERIAL, VROW, Table
from .compaction import Compaction, Merging, is_worth, wants_tidying
from .entities import Entities, Entity
from .fact_index import FactIndex
from .matches import Plan
from .moment import Moment
from .postings import PostingLists
from .query import Query
from .retention import Parts, Picks, Place, Uses, bytes_of_rows, parts, record_bytes
from .settings import ALL, Settings
from .shared import own_part
from .side import FACT, FLAGS, INVALID_AT, KIND, KNOWN_TO, NEVER, VALID_AT, VALID_UNTIL, Extra, Fact, Int64s
from .texts import STEP_BYTES, STEP_RECORDS, Contents, TextIndex, Wordings
from .view import View

__all__ = ["NEVER", "Memory", "run", "run_together"]

_NO_WORDS = Document([], [], 0)
# Above so many rows, or bytes of vectors, a compaction takes longer than the loop may: a thread does it (`compaction`).
COMPACT_ON_LOOP = 5_000
_COMPACT_ON_LOOP_BYTES = 8 << 20
# From so many records on, those that go do so by arrays.
_MANY = 128
# So many objects are freed at a time, in about half a millisecond.
_FREED = 2_000
# Deadlines kept beyond two per record before the stale ones are dropped.
_STALE_MIN = 64
# How many expired ids MEM.EXPLAIN can still tell from absent ones.
_EXPIRED_KEPT = 1024

# What a memory is, but for what the server, and who asked it, noted of it.
_HELD = (
    *("_bytes", "_due", "_prune_at", "_turns", "entities", "facts", "floor", "next_deadline", "next_id"),
    *("old_settings", "past", "settings", "table", "updated_at"),
)

run = ranking.run
run_together = ranking.run_together


class Memory:
    """Records that can be asked. `len()` counts those that count now; `next_deadline` says when `expire` has work.

    `past`, `facts` (the current ones, valid or not) and `entities` are None until they are needed. History is held from
    `floor` on; `old_settings` are those it had, each with the time until which.
    """

    __slots__ = (
        "_analyzer",
        "_bytes",
        "_due",
        "_expired",
        "_picks",
        "_prune_at",
        "_turns",
        "created_at",
        "entities",
        "facts",
        "floor",
        "next_deadline",
        "next_id",
        "old_settings",
        "past",
        "queries",
        "settings",
        "table",
        "texts",
        "updated_at",
        "use_count",
        "used_at",
        "version",
        "vocabulary",
        "watched_deadline",
    )

    def __init__(self, settings: Settings, vocabulary: Vocabulary, at: int) -> None:
        self.settings = settings.shared()
        self.vocabulary = vocabulary
        self.created_at = at
        self.updated_at = at
        self.version = 0  # the keyspace's: how many entries changed it
        self.next_id = 1  # the counter behind automatic ids
        self.next_deadline = NEVER
        self.used_at = 0  # the server's (eviction.py): when a command used it, unix ms, and how many did, faded to then
        self.use_count = 0.0
        self.watched_deadline = NEVER  # the keyspace's: the next_deadline of which it knows
        self.queries: Any = None  # the server's: what it counts of them
        self.table = Table(settings)
        self._analyzer: Analyzer | None = analyzer_for(settings.lang, vocabulary) if settings.has_text else None
        # Heaps. Rows whose record changed since are skipped.
        self._due: list[tuple[int, bytes, int]] = []  # deadline, id, serial
        self._turns: list[tuple[int, bytes]] = []  # when a record may have to cross over
        self._prune_at = NEVER
        self._picks: Picks | None = None
        self._bytes = -1  # of the current records; -1: nobody has asked since they were loaded
        self._expired: dict[bytes, None] = {}
        self.past: Table | None = None
        self.facts: FactIndex | None = None
        self.entities: Entities | None = None
        self.texts: tuple[TextIndex, ...] = ()  # that somebody asked
        self.floor = -NEVER
        self.old_settings: list[tuple[int, Settings]] = []
        if settings.history:
            self.table.need_side(at)

    def __len__(self) -> int:
        return self.table.live

    # -- reading

    def __contains__(self, record_id: bytes) -> bool:
        return record_id in self.table.by_id or (self.past is not None and record_id in self.past.by_id)

    @property
    def held(self) -> int:
        """How many current records there are, valid or not."""
        return self.table.live if self.past is None else self.table.live + len(self.past.by_id)

    @property
    def record_bytes(self) -> int:
        """What the current records, valid or not, count for MAXBYTES (retention.py)."""
        if self._bytes < 0:
            dim = self.settings.dim
            self._bytes = sum(bytes_of_rows(table, list(table.by_id.values()), dim) for table in self._tables())
        return self._bytes

    def bytes_of(self, record_id: bytes) -> int:
        """What a record counts of them, 0 where there is none."""
        found = self._find(record_id)
        return 0 if found is None else self._bytes_of(*found)

    def _bytes_of(self, table: Table, slot: int) -> int:
        vector_bytes = 4 * self.settings.dim if table.narrow[VROW, slot] >= 0 else 0
        fact = table.fact(slot)
        return record_bytes(table.ids[slot], table.texts[slot], vector_bytes, table.metas[slot], table.tags[slot], fact)

    def least(self, now: int) -> Iterator[Place]:
        """The current records without a PIN by ascending retention; the memory must not change meanwhile."""
        if self._picks is None:
            self._picks = Picks()
        return self._picks.walk(self._tables(), self.settings.half_life * 1000.0, now)

    def retention(self, place: Place, now: int) -> Parts:
        """What a record is worth keeping, as of `now`."""
        return parts(place.table, place.slot, now, self.settings.half_life * 1000.0)

    def slot(self, record_id: bytes) -> int | None:
        """The slot in `table` of the record `record_id`."""
        return self.table.by_id.get(record_id)

    def locate(self, record_id: bytes, now: int) -> tuple[View, int] | None:
        """Where the current record `record_id` is, valid or not: a view and its slot there."""
        found = self._find(record_id)
        return None if found is None else (View(found[0], self.settings, now), found[1])

    def locate_all(self, ids: Iterable[bytes], now: int) -> dict[bytes, tuple[View, int] | None]:
        """The same of many, each id once: a view takes ten times as long as to look an id up."""
        views: dict[int, View] = {}
        places: dict[bytes, tuple[View, int] | None] = {}
        for record_id in ids:
            found = self._find(record_id)
            if found is None:
                places[record_id] = None
                continue
            table, slot = found
            view = views.get(id(table))
            if view is None:
                view = views[id(table)] = View(table, self.settings, now)
            places[record_id] = view, slot
        return places

    def _find(self, record_id: bytes) -> tuple[Table, int] | None:
        slot = self.table.by_id.get(record_id)
        if slot is not None:
            return self.table, slot
        if self.past is not None:
            slot = self.past.by_id.get(record_id)
            if slot is not None:
                return self.past, slot
        return None

    def _found(self, record_id: bytes) -> tuple[Table, int]:
        found = self._find(record_id)
        if found is None:
            raise KeyError(record_id)
        return found

    def horizon(self, now: int) -> int:
        """What ended by then is not held any more, or never was."""
        history = self.settings.history
        if not history:
            return now
        return self.floor if history == ALL else max(self.floor, now - history * 1000)

    def has_version(self, record_id: bytes, now: int) -> bool:
        """Whether history holds a version of `record_id` that ended."""
        past = self.past
        if past is None or past.side is None:
            return False
        slots = past.versions.get(record_id)
        return slots is not None and int(past.side.cols[KNOWN_TO, next(reversed(slots))]) > self.horizon(now)

    def has_expired(self, record_id: bytes) -> bool:
        """Whether the record that is not there any more went by its deadline, lately."""
        return record_id in self._expired

    def serial(self, record_id: bytes) -> int:
        """The place of a current record in the order of first writing."""
        table, slot = self._found(record_id)
        return table.serial(slot)

    def views(self, now: int) -> list[View]:
        """This moment, of `table` and, where there is one, of `past`: all that is held."""
        return [View(table, self.settings, now) for table in self._tables()]

    def live_slots(self, view: View) -> list[int]:
        """The slots of the live rows of the table that `view` is of."""
        return self.written_since(None, view)

    def written_since(self, old: View | None, new: View) -> list[int]:
        """The slots of the live rows of the table that `new` is of, as of now, which the earlier view `old` of it has
        not; all of them for None, as where it was compacted since."""
        table = next(table for table in self._tables() if new.is_of(table))
        start = 0 if old is None else old.n
        slots: list[int] = (start + np.flatnonzero(table.wide[DEAD_AT, start : table.n] == NEVER)).tolist()
        return slots

    def _tables(self) -> list[Table]:
        return [self.table] if self.past is None else [self.table, self.past]

    @property
    def holds_vectors(self) -> bool:
        """Whether there is a vector of any record."""
        return any(table.vectors is not None and table.vectors.live for table in self._tables())

    @property
    def pending(self) -> int:
        """How many current records, valid or not, have no vector although somebody is to make one."""
        if not (self.settings.embedder and self.settings.has_vectors):
            return 0
        with_vector = self.vector_count
        if self.past is not None:
            rows = np.fromiter(self.past.by_id.values(), np.int64, len(self.past.by_id))
            with_vector += int(np.count_nonzero(self.past.narrow[VROW, rows] >= 0))
        return self.held - with_vector

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
        while b"%d" % number in self:
            number += 1
        return number

    def text_index(self, kind: type[TextIndex]) -> TextIndex:
        """The index of that kind, begun where there is none; to be asked once `extend_texts` says so."""
        for index in self.texts:
            if type(index) is kind:
                return index
        index = kind(self.current_ids())
        self.texts = (*self.texts, index)
        return index

    def extend_texts(self, index: TextIndex) -> bool:
        """Go one step on with an index; whether that was all."""
        left = STEP_BYTES
        for _ in range(STEP_RECORDS):
            if not index.waiting or left <= 0:
                break
            found = self._find(index.waiting.pop())
            if found is not None and (index.facts or found[0].fact(found[1]) is None):
                table, slot = found
                index.add(table.ids[slot], table.texts[slot])
                left -= len(table.texts[slot])
        return not index.waiting

    def with_digest(self, digest: bytes) -> bytes | None:
        """The smallest id of a current record, valid or not, whose text has this sha256."""
        return self._having(self.text_index(Contents), digest)

    def with_wording(self, text: bytes) -> bytes | None:
        """The smallest id of a current note or episode, valid or not, of this text, case and spaces aside."""
        return self._having(self.text_index(Wordings), Wordings.form(text))

    def _having(self, index: TextIndex, form: bytes | str) -> bytes | None:
        for record_id in index.ids(index.key(form)):
            text = self.text(record_id)
            if text is not None and index.form(text) == form:
                return record_id
        return None

    def current_ids(self) -> list[bytes]:
        """The ids of the current records, valid or not, in no order."""
        return [record_id for table in self._tables() for record_id in table.by_id]

    def text(self, record_id: bytes) -> bytes | None:
        """The text of a current record, valid or not."""
        found = self._find(record_id)
        return None if found is None else found[0].texts[found[1]]

    def view(self, now: int) -> View:
        """This moment, for readers."""
        return View(self.table, self.settings, now)

    def moment(self, as_of: int | None, known_at: int | None, now: int, *, invalidated: bool = False) -> Moment:
        """What is to be seen at these times, None: now; with `invalidated` also facts that were invalid by then."""
        settings = self.settings
        if known_at is not None:
            horizon = self.horizon(now)
            settings = next((old for until, old in self.old_settings if until > max(known_at, horizon)), settings)
        past = None if self.past is None else View(self.past, settings, now)
        return Moment(
            View(self.table, settings, now),
            past,
            now if as_of is None else as_of,
            now if known_at is None else known_at,
            now,
            self.horizon(now),
            settings,
            invalidated,
        )

    def plan(self, query: Query, now: int) -> Plan:
        """Fix what `query` sees: the rows and statistics of this moment, or what ASOF and KNOWNAT are to find."""
        terms: list[tuple[QueryTerm, PostingLists | None]] = []
        if query.text is not None:
            # Reading what is behind the lists would cost each query as much as this costs once.
            self.table.post()
        if query.text is not None and self._analyzer is not None:
            words = self._analyzer.query(query.text, query.max_terms)
            lists = self.table.posting_lists([word.term_id for word in words])
            terms = list(zip(words, lists, strict=True))
        slot = -1
        if query.as_of is not None or query.known_at is not None:
            moment = self.moment(query.as_of, query.known_at, now)
            return Plan(moment.main, query, terms, self.table.posted, moment=moment)
        if query.explain_id is not None:
            slot = self.table.by_id.get(query.explain_id, -1)
        return Plan(self.view(now), query, terms, self.table.posted, slot)

    # -- changing; `at` is the time of the write

    def returned(self, ids: Iterable[bytes], now: int) -> None:
        """A query returned these records; those that are there are worth more for it where records are evicted."""
        if not self.settings.has_limit:
            return
        for record_id in ids:
            found = self._find(record_id)
            if found is not None:
                table, slot = found
                if table.uses is None:
                    table.uses = Uses(table.n)
                table.uses.add(slot, now, self.settings.half_life * 1000.0)

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
        extra: Extra | None = None,
    ) -> None:
        """Make the record this; `vector` is float32 bytes as stored, b"" for none; `deadline` is NEVER for none;
        `extra` None makes it a plain note."""
        words = self._analyzed(text, max_words)
        if extra is not None:
            self.table.need_side(at)
        elif self.table.side is not None:
            written = min(updated_at, at)
            extra = Extra(written, written)
        self._write(record_id, text, vector, meta, tags, words, importance, created_at, updated_at, deadline, extra, at)
        self._expired.pop(record_id, None)
        self._changed(at)

    def takes_together(self, ids: Sequence[bytes]) -> bool:
        """Whether `put_new` may write them: to a plain memory, of records that are all new."""
        return self.is_plain and len(set(ids)) == len(ids) and self.table.by_id.keys().isdisjoint(ids)

    @property
    def is_plain(self) -> bool:
        """Whether all there is are notes that count now."""
        return self.table.side is None and self.past is None

    def put_new(
        self,
        ids: list[bytes],
        texts: list[bytes],
        vectors: list[bytes],
        metas: list[tuple[bytes, ...]],
        tags: list[tuple[bytes, ...]],
        *,
        importance: list[float],
        created_at: list[int] | int,
        updated_at: list[int] | int,
        max_words: int,
        at: int,
    ) -> None:
        """`put` of several plain notes without a deadline, of which `takes_together` holds, in half the
        time."""
        table, start = self.table, self.table.n
        analyzer = self._analyzer
        words = no_words(len(ids)) if analyzer is None else analyzer.documents(texts, max_words)
        table.append_all(
            ids,
            texts,
            vectors,
            metas,
            tags,
            words,
            importance=importance,
            created_at=created_at,
            updated_at=updated_at,
        )
        if self._bytes >= 0:
            self._bytes += bytes_of_rows(table, list(range(start, table.n)), self.settings.dim)
        for index in self.texts:
            for record_id, text in zip(ids, texts, strict=True):
                index.add(record_id, text)
        for record_id in ids if self._expired else ():
            self._expired.pop(record_id, None)
        self._changed(at)

    def remove(self, record_id: bytes, at: int) -> None:
        """Delete a record that is there."""
        self._remove(record_id, at)
        self._changed(at)

    def _remove(self, record_id: bytes, at: int) -> None:
        table, slot = self._found(record_id)
        serial = table.serial(slot)
        self._end(table, slot, at)
        self._keep_deadline(record_id, serial, table.deadline(slot))
        table.order.remove(serial)
        self._set_next_deadline()

    def remove_all(self, ids: Sequence[bytes], at: int) -> None:
        """Delete records that are there."""
        if self.settings.history or len(ids) < _MANY:
            for record_id in ids:
                self._remove(record_id, at)
        else:
            self._drop_all(ids)
        self._changed(at)

    def forget(self, ids: Sequence[bytes], serials: Sequence[int], at: int) -> None:
        """Delete the current records `ids` and every version of them, and what is left of records that have gone, by
        their serials."""
        if serials or len(ids) >= _MANY:
            self._drop_versions(np.concatenate((self._drop_all(ids), np.array(serials, np.int64))))
        else:
            for record_id in ids:
                table, slot = self._found(record_id)
                serial = table.serial(slot)
                self._unlink(table, slot)
                table.forget(record_id)
                self._kill_versions(record_id, serial)
        self._changed(at)

    def set_meta(self, record_id: bytes, meta: tuple[bytes, ...], at: int) -> None:
        """Give a record that is there other metadata; nothing else of it changes."""
        table, slot = self._found(record_id)
        self._rewrite(table, slot, at, meta=meta)
        self._changed(at)

    def set_deadline(self, record_id: bytes, deadline: int, at: int) -> None:
        """Give a record that is there another deadline, NEVER for none."""
        table, slot = self._found(record_id)
        self._rewrite(table, slot, at, deadline=deadline)
        self._changed(at)

    def invalidate(self, record_id: bytes, invalid_at: int, superseded_by: bytes, at: int) -> None:
        """A fact that is there is invalid from `invalid_at` on, NEVER: is not invalidated any more."""
        table, slot = self._found(record_id)
        extra = table.extra(slot)
        assert extra is not None and extra.fact is not None
        fact = extra.fact._replace(superseded_by=superseded_by)
        # What was invalid since then, and now is so by another fact, is what it was until now.
        said = at if invalid_at == extra.invalid_at else min(invalid_at, at)
        self._rewrite(table, slot, said, at=at, extra=extra._replace(invalid_at=invalid_at, fact=fact))
        self._changed(at)

    def set_vectors(self, items: Sequence[tuple[bytes, int, bytes]], at: int) -> None:
        """Give records vectors, float32 bytes as stored: (id, serial, vector) each. Nothing else of them changes; those
        that are not the same record any more, and those that have this very vector, are left alone."""
        for record_id, serial, vector in items:
            found = self._find(record_id)
            if found is not None and found[0].serial(found[1]) == serial and found[0].vector(found[1]) != vector:
                self._rewrite(*found, at, vector=vector)
        self._changed(at)

    def fill_vectors(self, items: Sequence[tuple[bytes, int, bytes]], at: int) -> None:
        """The same as part of a `switch`, before anybody has seen the records without: no version of them begins."""
        for record_id, serial, vector in items:
            found = self._find(record_id)
            if found is not None and found[0].serial(found[1]) == serial and not found[0].vector(found[1]):
                found[0].fill(found[1], vector)
        for table in self._tables():
            table.sort_vectors()
        self._changed(at)

    def switch(self, settings: Settings, at: int) -> None:
        """Another model: mode, metric and lang stay, every vector goes."""
        self.settings = settings = settings.shared()
        model = (settings.embedder, settings.model, settings.dim)
        self.old_settings = [
            (until, replace(old, embedder=model[0], model=model[1], dim=model[2])) for until, old in self.old_settings
        ]
        for table in self._tables():
            self._swap(table, table.without_vectors(settings))
        self._bytes = -1
        if self.entities is not None:
            self.entities.drop_vectors()
        self._changed(at)

    def retell(self, record_id: bytes, fact: Fact, max_words: int, at: int) -> None:
        """A fact that is there says this; vector and times stay."""
        table, slot = self._found(record_id)
        extra = table.extra(slot)
        assert extra is not None
        words = self._analyzed(fact.text, max_words)
        self._rewrite(table, slot, at, text=fact.text, words=words, extra=extra._replace(fact=fact))
        self._changed(at)

    def put_entity(self, entity: Entity, at: int) -> None:
        """The entity of this name and type becomes exactly this."""
        if self.entities is None:
            self.entities = Entities()
        self.entities.put(entity)
        self.updated_at = at

    def drop_entity(self, name: bytes, entity_type: bytes, at: int) -> None:
        """An entity that is there goes."""
        assert self.entities is not None
        self.entities.drop(name, entity_type)
        self.updated_at = at

    def configure(self, settings: Settings, at: int) -> None:
        """New settings; mode, dim, metric and lang stay."""
        old = self.settings
        if settings.history:
            if not old.history:
                self.floor = at
                self.table.need_side(at)
            else:
                self.floor = self.horizon(at)
                if settings != old:
                    # In order, also where the clock was set back.
                    until = max(at, self.old_settings[-1][0]) if self.old_settings else at
                    self.old_settings.append((until, old))
        self.settings = settings
        self.updated_at = at
        if old.history:
            self._prune_at = NEVER
            self.prune(at)

    def expire(self, now: int) -> list[bytes]:
        """Drop the records whose deadline is `now` or earlier, and let those cross over whose moment has come; the ids
        of the dropped, in the order of their deadlines."""
        gone: list[bytes] = []
        due = self._due
        while due and due[0][0] <= now:
            if len(gone) == _MANY:
                gone += self._expire_all(now)
                break
            deadline, record_id, serial = heappop(due)
            found = self._find(record_id)
            if found is not None and found[0].serial(found[1]) == serial:
                table, slot = found
                if table.deadline(slot) != deadline:
                    continue
                self._unlink(table, slot)
                table.forget(record_id)
                gone.append(record_id)
            elif self._last_deadline(record_id, serial) != deadline:
                continue
            self._kill_versions(record_id, serial)
        self._expired.update(dict.fromkeys(gone[-_EXPIRED_KEPT:]))
        while len(self._expired) > _EXPIRED_KEPT:
            del self._expired[next(iter(self._expired))]
        turns = self._turns
        while turns and turns[0][0] <= now:
            self._place(heappop(turns)[1], now)
        if self._prune_at <= now:
            self.prune(now)
        self._set_next_deadline()
        if gone or self.past is not None:
            self._compact_if_worth()
        return gone

    def _expire_all(self, now: int) -> list[bytes]:
        """Drop what is due by `now`, at once; the ids, in the order of their deadlines."""
        ids: list[bytes] = []
        deadlines, serials = [], []
        for table in self._tables():
            mask = (table.wide[DEADLINE, : table.n] <= now) & table.alive()
            if table.side is not None:
                mask &= table.side.cols[KNOWN_TO, : table.n] == NEVER
            slots = np.flatnonzero(mask)
            deadlines.append(table.wide[DEADLINE, slots])
            some = [table.ids[slot] for slot in slots.tolist()]
            for record_id in some:
                del table.by_id[record_id]
            ids += some
            serials.append(self._drop_rows(table, slots))
        order = np.lexsort((np.concatenate(serials), np.concatenate(deadlines)))
        self._drop_versions(np.concatenate(serials))
        due, self._due = self._due, [each for each in self._due if each[0] > now]
        heapify(self._due)
        if self.past is not None and self.past.versions:  # of records that had gone before
            for deadline, record_id, serial in due:
                if deadline <= now and self._last_deadline(record_id, serial) == deadline:
                    found = self._find(record_id)
                    if found is None or found[0].serial(found[1]) != serial:
                        self._kill_versions(record_id, serial)
        return [ids[place] for place in order.tolist()]

    def prune(self, now: int) -> None:
        """Drop the versions, and settings, that history does not hold any more."""
        if self.past is None and not self.old_settings:
            return
        past, horizon = self.past, self.horizon(now)
        self.old_settings = [each for each in self.old_settings if self.settings.history and each[0] > horizon]
        self._prune_at = NEVER
        if past is not None and past.versions and past.side is not None:
            known_to = past.side.cols[KNOWN_TO, : past.n]
            # Without history none is held, also where the clock was set back behind its end.
            gone = known_to <= horizon if self.settings.history else known_to != NEVER
            past.kill_all(np.flatnonzero(gone & past.alive()))
            left = known_to[(known_to != NEVER) & past.alive()]
            if len(left):
                self._prune_after(int(left.min()))
        self._set_next_deadline()
        self._compact_if_worth()

    def _prune_after(self, known_to: int) -> None:
        """See to it that a version that ended then is dropped in time: a sixteenth of the window late, or a second."""
        history = self.settings.history
        if history > 0:
            self._prune_at = min(self._prune_at, known_to + history * 1000 + max(history * 1000 // 16, 1000))

    def _set_next_deadline(self) -> None:
        due, turns = self._due, self._turns
        self.next_deadline = min(due[0][0] if due else NEVER, turns[0][0] if turns else NEVER, self._prune_at)

    def copy(self) -> Memory:
        """An independent twin, in some milliseconds for a hundred thousand records: see Table.copy."""
        twin = Memory(self.settings, self.vocabulary, self.created_at)
        twin.updated_at = self.updated_at
        twin.next_id = self.next_id
        twin.next_deadline = self.next_deadline
        twin.table = self.table.copy()
        if self.past is not None:
            twin.past = self.past.copy()
            twin.past.order = twin.table.order
        twin.facts = None if self.facts is None else self.facts.copy()
        twin.entities = None if self.entities is None else self.entities.copy()
        twin.floor = self.floor
        twin.old_settings = list(self.old_settings)
        twin._due = list(self._due)
        twin._turns = list(self._turns)
        twin._prune_at = self._prune_at
        twin._bytes = self._bytes
        twin._expired = dict(self._expired)
        return twin

    def become(self, twin: Memory) -> None:
        """Hold what `twin` holds, a copy that has changed since; it gets what was here."""
        for name in _HELD:
            mine = getattr(self, name)
            setattr(self, name, getattr(twin, name))
            setattr(twin, name, mine)
        self.texts, self._picks = (), None

    def objects(self) -> list[list[Any]]:
        """What takes long to free, one by one, in lists of its own."""
        found: list[list[Any]] = [list(self._due), list(self._turns)]
        for table in self._tables():
            found += [list(table.ids), list(table.texts), list(table.metas), list(table.tags)]
            found.append(list(table.by_id.values()))
            if table.side is not None:
                found.append(list(table.side.facts))
        for part in (self.facts, self.entities):
            if part is not None:
                found += part.objects()
        return found

    @classmethod
    def restored(
        cls,
        settings: Settings,
        vocabulary: Vocabulary,
        table: Table,
        next_id: int,
        created_at: int,
        updated_at: int,
        past: Table | None = None,
        entities: Entities | None = None,
        floor: int = -NEVER,
        old_settings: Sequence[tuple[int, Settings]] = (),
    ) -> Memory:
        """A memory over a table of live rows, as a base file holds it, and one of those that do not count, in which
        `settle` looks for what does by now."""
        memory = cls(settings, vocabulary, created_at)
        memory.updated_at = updated_at
        memory.next_id = next_id
        memory.table = table
        memory.past = past
        memory.entities = entities
        memory.floor = floor
        memory.old_settings = list(old_settings)
        if settings.history or past is not None:
            table.need_side(updated_at)
        if past is not None:
            past.need_side(updated_at)
            table.order = past.order = table.order.joined(past.order)
            for slots in past.versions.values():
                for slot in slots:
                    assert past.side is not None
                    memory._prune_after(int(past.side.cols[KNOWN_TO, slot]))
        for each in memory._tables():
            memory._index_facts(each)
        memory._forget_stale()
        memory._forget_stale_turns(-NEVER)
        memory._set_next_deadline()
        return memory

    def settle(self, now: int) -> None:
        """Let every record that is in the wrong table cross over."""
        for table in self._tables():
            if table.side is None:
                continue
            cols = table.side.cols[:, : table.n]
            counts = (cols[VALID_AT] <= now) & (now < np.minimum(cols[VALID_UNTIL], cols[INVALID_AT]))
            current = table.alive() & (cols[KNOWN_TO] == NEVER)
            for slot in np.flatnonzero(current & (counts != (table is self.table))).tolist():
                self._place(table.ids[slot], now)
        self._set_next_deadline()

    def _index_facts(self, table: Table) -> None:
        if table.side is None:
            return
        flags = table.side.cols[FLAGS, : table.n]
        current = (flags & KIND == FACT) & (table.side.cols[KNOWN_TO, : table.n] == NEVER) & table.alive()
        for slot in np.flatnonzero(current).tolist():
            self._link(table, slot)

    def _changed(self, at: int) -> None:
        self.updated_at = at
        self._compact_if_worth()

    # -- parts of a change

    def _analyzed(self, text: bytes, max_words: int) -> Document:
        return self._analyzer.document(text, max_words) if self._analyzer is not None else _NO_WORDS

    def _link(self, table: Table, slot: int) -> None:
        """Index the current row at `slot` if it is a fact."""
        extra = table.extra(slot)
        if extra is not None and extra.fact is not None:
            if self.facts is None:
                self.facts = FactIndex()
            self.facts.add(table.ids[slot], extra.fact, extra.valid_until, extra.invalid_at)

    def _unlink(self, table: Table, slot: int) -> None:
        """The current row at `slot` is about to go."""
        if self._bytes >= 0:
            self._bytes -= self._bytes_of(table, slot)
        self._unindex(table, slot)

    def _unindex(self, table: Table, slot: int) -> None:
        fact = table.fact(slot)
        for index in self.texts:
            if index.facts or fact is None:
                index.discard(table.ids[slot], table.texts[slot])
        if fact is not None and table.side is not None:
            assert self.facts is not None
            self.facts.remove(table.ids[slot], fact, int(table.side.cols[VALID_UNTIL, slot]))

    def _need_past(self) -> Table:
        if self.past is None:
            self.past = Table(self.settings, indexed=False)
            self.past.order = self.table.order
            self.past.need_side(0)
        return self.past

    def _end(self, table: Table, slot: int, until: int) -> None:
        """The current row at `slot` is current no more; history keeps it until then, if it began before."""
        self._unlink(table, slot)
        record_id, extra = table.ids[slot], table.extra(slot)
        del table.by_id[record_id]
        if self.settings.history and extra is not None:
            if until > extra.since:
                self._move(table, slot, self._need_past(), extra._replace(known_to=until))
                self._prune_after(until)
            self._trim_versions(record_id, until)
        table.kill(slot)

    def _trim_versions(self, record_id: bytes, until: int) -> None:
        """A version begins, or the record ends, at a time before some that ended already: they ended then."""
        past = self.past
        if past is None or past.side is None:
            return
        while slots := past.versions.get(record_id):
            slot = next(reversed(slots))
            extra = past.extra(slot)
            if extra is None or extra.known_to <= until:
                break
            past.kill(slot)
            if until > extra.since:
                self._move(past, slot, past, extra._replace(known_to=until))
                self._prune_after(until)

    def _drop_all(self, ids: Sequence[bytes]) -> Int64s:
        """Current records go, be they many; their serials. Versions of them that history holds stay."""
        serials = []
        for table in self._tables():
            by_id = table.by_id
            slots = [slot for each in ids if (slot := by_id.pop(each, -1)) >= 0]
            serials.append(self._drop_rows(table, np.sort(np.array(slots, np.int64))))
        return np.concatenate(serials)

    def _drop_rows(self, table: Table, slots: Int64s) -> Int64s:
        """The current rows at `slots`, ascending, which `by_id` names no more, go; their serials."""
        if self._bytes >= 0:
            self._bytes -= bytes_of_rows(table, slots.tolist(), self.settings.dim)
        if self.texts or table.side is not None:
            for slot in slots.tolist():
                self._unindex(table, slot)
        serials: Int64s = table.wide[SERIAL, slots]
        table.order.remove_all(serials.tolist())
        table.kill_all(slots)
        return serials

    def _drop_versions(self, serials: Int64s) -> None:
        """The versions that history holds of these records go."""
        past = self.past
        if past is not None and past.versions and len(serials):
            past.kill_all(np.flatnonzero(past.alive() & np.isin(past.wide[SERIAL, : past.n], serials)))

    def _kill_versions(self, record_id: bytes, serial: int) -> None:
        past = self.past
        if past is not None:
            for slot in list(past.versions.get(record_id, ())):
                if past.serial(slot) == serial:
                    past.kill(slot)

    def _last_deadline(self, record_id: bytes, serial: int) -> int:
        """The deadline that a record which has gone had at last, NEVER where history holds none."""
        slot = self._last_version(record_id, serial)
        return NEVER if slot is None or self.past is None else self.past.deadline(slot)

    def _last_version(self, record_id: bytes, serial: int) -> int | None:
        """The slot in `past` of the last version that ended."""
        past = self.past
        if past is None or past.side is None:
            return None
        slots = past.versions.get(record_id, {})
        return next((slot for slot in reversed(slots) if past.serial(slot) == serial), None)

    def _keep_deadline(self, record_id: bytes, serial: int, deadline: int) -> None:
        """A record has gone whose deadline was this: the last version that history holds has it, also where it came
        with one that ended as it began."""
        past, slot = self.past, self._last_version(record_id, serial)
        if past is not None and slot is not None and past.deadline(slot) != deadline:
            past.kill(slot)
            self._move(past, slot, past, past.extra(slot), deadline)

    @staticmethod
    def _move(source: Table, slot: int, target: Table, extra: Extra | None, deadline: int | None = None) -> None:
        """Append the row at `slot` to `target`, with this side, and another deadline where one is given."""
        place = target.append(
            source.ids[slot],
            source.texts[slot],
            source.vector(slot),
            source.metas[slot],
            source.tags[slot],
            source.words(slot),
            importance=source.importance(slot),
            created_at=source.created(slot),
            updated_at=source.updated(slot),
            deadline=source.deadline(slot) if deadline is None else deadline,
            serial=source.serial(slot),
            extra=extra,
        )
        _carry_uses(source, slot, target, place)

    def _place(self, record_id: bytes, now: int) -> None:
        """Let a current record cross over if it is in the wrong table at `now`."""
        found = self._find(record_id)
        if found is None:
            return
        table, slot = found
        extra = table.extra(slot)
        if extra is None:
            return
        if extra.counts(now) != (table is self.table):
            del table.by_id[record_id]
            self._move(table, slot, self.table if extra.counts(now) else self._need_past(), extra)
            table.kill(slot)
        self._watch_turn(record_id, extra, now)

    def _watch_turn(self, record_id: bytes, extra: Extra, now: int) -> None:
        turn = extra.next_turn(now)
        if turn < NEVER:
            heappush(self._turns, (turn, record_id))
            if len(self._turns) > 2 * self.held + _STALE_MIN:
                self._forget_stale_turns(now)

    def _rewrite(
        self,
        table: Table,
        slot: int,
        since: int,
        *,
        at: int | None = None,
        text: bytes | None = None,
        vector: bytes | None = None,
        meta: tuple[bytes, ...] | None = None,
        words: Document | None = None,
        deadline: int | None = None,
        extra: Extra | None = None,
    ) -> None:
        """Write the current row at `slot` again, as a version that begins at `since`; what is None is taken over. `at`
        is the time of the command where that is another."""
        extra = table.extra(slot) if extra is None else extra
        if extra is not None:
            extra = extra._replace(since=max(since, extra.written))
        self._write(
            table.ids[slot],
            table.texts[slot] if text is None else text,
            table.vector(slot) if vector is None else vector,
            table.metas[slot] if meta is None else meta,
            table.tags[slot],
            table.words(slot) if words is None else words,
            table.importance(slot),
            table.created(slot),
            table.updated(slot),
            table.deadline(slot) if deadline is None else deadline,
            extra,
            since if at is None else at,
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
        extra: Extra | None,
        at: int,
    ) -> None:
        """The record becomes this. `extra` is None where no record of the memory has one."""
        found = self._find(record_id)
        serial = 0
        if found is not None:
            source, old = found
            serial = source.serial(old)
            record_id = source.ids[old]  # one bytes object per id, however often it is written
            if extra is None:
                self._unlink(source, old)
                source.kill(old)
            else:
                self._end(source, old, extra.since)
        elif extra is not None:
            self._trim_versions(record_id, extra.since)
        target = self.table if extra is None or extra.counts(at) else self._need_past()
        slot = target.append(
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
            extra=extra,
        )
        if found is not None:
            _carry_uses(*found, target, slot)
        if self._bytes >= 0:
            self._bytes += self._bytes_of(target, slot)
        for index in self.texts:
            if index.facts or extra is None or extra.fact is None:
                index.add(record_id, text)
        if extra is not None:
            if extra.fact is not None:
                self._link(target, slot)
            self._watch_turn(record_id, extra, at)
        if deadline < NEVER:
            heappush(self._due, (deadline, record_id, target.serial(slot)))
            if len(self._due) > 2 * self.held + _STALE_MIN + self._gone_due():
                self._forget_stale()
        if extra is not None:
            self._set_next_deadline()
        elif self._due:
            self.next_deadline = self._due[0][0]

    def _gone_due(self) -> int:
        """How many deadlines records that have gone may have at most."""
        return len(self.past.versions) if self.past is not None else 0

    def _forget_stale(self) -> None:
        """Drop the deadlines that were moved since: a TTL renewed at each use would pile them up."""
        due: list[tuple[int, bytes, int]] = []
        for table in self._tables():
            slots = np.fromiter(table.by_id.values(), np.int64, len(table.by_id))
            slots = slots[table.wide[DEADLINE, slots] < NEVER]
            ids = [table.ids[slot] for slot in slots.tolist()]
            due += zip(table.wide[DEADLINE, slots].tolist(), ids, table.wide[SERIAL, slots].tolist(), strict=True)
        past = self.past
        for record_id in past.versions if past is not None else ():
            assert past is not None
            found = self._find(record_id)
            current = found[0].serial(found[1]) if found is not None else 0
            for serial in {past.serial(slot) for slot in past.versions[record_id]} - {current}:
                deadline = self._last_deadline(record_id, serial)
                if deadline < NEVER:
                    due.append((deadline, record_id, serial))
        self._due = due
        heapify(self._due)

    def _forget_stale_turns(self, now: int) -> None:
        """Keep only the next turn, after `now`, of each record; -NEVER for now: the next that may be, by where
        the record stands."""
        turns: list[tuple[int, bytes]] = []
        for table in self._tables():
            if table.side is None:
                continue
            slots = np.fromiter(table.by_id.values(), np.int64, len(table.by_id))
            valid_at, until = table.side.cols[VALID_AT, slots], table.side.cols[VALID_UNTIL, slots]
            until = np.minimum(until, table.side.cols[INVALID_AT, slots])
            # As Extra.next_turn has it; one in `table` has begun.
            begins = (now < valid_at) if table is not self.table else np.zeros(len(slots), np.bool_)
            turn = np.where(begins & (valid_at < until), valid_at, np.where(begins | (until <= now), NEVER, until))
            coming = turn < NEVER
            ids = [table.ids[slot] for slot in slots[coming].tolist()]
            turns += zip(turn[coming].tolist(), ids, strict=True)
        self._turns = turns
        heapify(self._turns)

    # -- compaction

    @property
    def wants_compaction(self) -> bool:
        """Whether dead rows outnumber the live ones so that `compacted` pays, or posting lists are to be merged."""
        past = self.past
        return wants_tidying(self.table) or (past is not None and wants_tidying(past))

    def _compact_if_worth(self) -> None:
        for table in self._tables():
            if (
                is_worth(table)
                and table.n <= COMPACT_ON_LOOP
                and table.n * self.settings.dim * 4 <= _COMPACT_ON_LOOP_BYTES
            ):
                self._swap(table, table.compacted(table.n, table.sequence)[0])

    def compact(self) -> None:
        """Drop the dead rows, here and now."""
        for table in self._tables():
            self._swap(table, table.compacted(table.n, table.sequence)[0])

    def tidy(self) -> None:
        """Do what `wants_compaction` asks for, here and now."""
        while self.wants_compaction:
            step = self.compaction()
            step.build()
            step.install()

    def _swap(self, old: Table, new: Table) -> None:
        if old is self.table:
            self.table = new
        elif old is self.past:
            self.past = new

    def compaction(self) -> Compaction | Merging:
        """Begin what a thread is to do: a compaction of `table`, of `past` where that alone needs it, or where none
        does a merge."""
        for table in self._tables():
            if is_worth(table):
                return Compaction(self, table)
        for table in self._tables():
            if table.postings is not None and table.postings.wants_merge:
                return Merging(table.postings)
        return Compaction(self, self.table)

    @property
    def word_count(self) -> int:
        """By how many words it shares in the vocabulary: different ones, or of a small memory all."""
        return sum(table.word_count for table in self._tables())

    def nbytes(self) -> int:
        """About how many bytes of memory this memory takes; what copies have in common is divided among them."""
        # A deadline is a tuple (64) and a number (32), and so is a turn.
        own = sum(map(getsizeof, (self, self._due, self._expired, self._turns)))
        own += 96 * (len(self._due) + len(self._turns))
        parts = (self.table, self.past, self._picks, *self.texts)
        own += sum(part.nbytes() for part in parts if part is not None)
        ours = own_part(self.table.texts)
        return own + sum(index.nbytes(ours) for index in (self.facts, self.entities) if index is not None)


def _carry_uses(source: Table, old: int, target: Table, slot: int) -> None:
    """What was at `old` in one table is at `slot` in the other."""
    if source.uses is not None:
        if target.uses is None:
            target.uses = Uses(target.n)
        target.uses.carry(slot, source.uses, old)


def size(thing: Memory | list[Any]) -> int:
    """How many records or objects go with it."""
    return thing.table.n if isinstance(thing, Memory) else len(thing)


def free(things: list[Memory | list[Any]]) -> None:
    """Let go of memories and lists that nobody needs any more, and empty the list; for a thread, which holds the
    interpreter for a few objects at a time. What a reader still holds goes with the reader."""
    while things:
        thing = things.pop()
        held = [thing] if isinstance(thing, list) else thing.objects() if size(thing) > _FREED else []
        del thing
        for objects in held:
            while objects:
                del objects[-_FREED:]
