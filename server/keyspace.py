"""Keys to memories, and the one door through which their state changes.

Rule 1: state changes in `apply(entry)` and nowhere else, except that what has expired by a given time may be dropped
        at any moment: every read asks for a time first and sees nothing that is past its deadline.
Rule 2: `apply` never refuses, reads no clock and draws no random number: the same entries give the same state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heappush
from time import monotonic
from typing import Any

from ..index.analyzer import Vocabulary
from ..index.entities import Entity
from ..index.memory import NEVER, Memory
from ..index.scan_order import ScanOrder
from . import entries
from .entries import Entry, PutNew
from .paths import KeyPaths
from .payload import load

# What a key takes beside its name and its memory: entries of two dictionaries, its place in SCAN's order, its serial.
_KEY_BYTES = 200
# The words of all memories are counted anew when somebody asks; with more memories than this not so often.
_COUNTED_ALWAYS, _COUNTED_S = 1000, 10.0
# So many keys that are due go for one question about all keys, in some milliseconds; of the others it is only known
# that they are due.
_EXPIRED_AT_ONCE = 1000
# So many records are worth being written together, and so many at a time: their parts stay in the cache.
_TOGETHER, _TOGETHER_MOST = 3, 128
# So often a key is drawn, where many may be due, before all are looked at.
_DRAWS = 64


class Keyspace:
    """All memories of the server.

    `touched(key)` is called after each change of a key (WATCH), `flushed(keys)` when all go at once,
    `announce(key, event)` for each record that expires, `key_expired(key)` for each key that does,
    `held(key)` says whether the time has not come for what is due at the key, `compactable(memory)` where dead rows
    outnumber the live ones or posting lists are to be merged, `released(things)` with what nobody needs any more, the
    last references to memories and lists.
    """

    def __init__(self) -> None:
        self.vocabulary = Vocabulary()
        self.memories: dict[bytes, Memory] = {}
        self.deadlines: dict[bytes, int] = {}  # of keys, unix ms
        self.order: ScanOrder[bytes] = ScanOrder()
        self.serials: dict[bytes, int] = {}
        self._paths: KeyPaths | None = None  # from the first question about descendants on
        self.touched: Callable[[bytes], None] = lambda key: None
        self.flushed: Callable[[Mapping[bytes, object]], None] = lambda keys: None
        self.announce: Callable[[bytes, bytes], None] = lambda key, event: None
        self.key_expired: Callable[[bytes], None] = lambda key: None
        self.compactable: Callable[[Memory], None] = Memory.tidy  # at once, until there is a loop to spare
        self.released: Callable[[list[Memory | list[Any]]], None] = lambda things: None  # they go at once
        self.held: Callable[[bytes], bool] = lambda key: False
        self.before_change: Callable[[Entry | PutNew], None] | None = None  # a snapshot is being taken
        self._words = 0.0, 0  # when the words of all memories were counted, and how many they were
        self.expired_keys = 0
        self.expired_records = 0
        # (time, key): when something of the key may be due; stale rows are skipped when they come up.
        self._due: list[tuple[int, bytes]] = []
        self._held_due: list[tuple[int, bytes]] = []  # that came up while their keys were held

    # -- reading; `now` is unix milliseconds

    def get(self, key: bytes, now: int) -> Memory | None:
        """The memory at `key`, all that is due by `now` gone from it."""
        memory = self.memories.get(key)
        if memory is None:
            return None
        if self.deadlines and self.deadlines.get(key, NEVER) <= now:
            self._expire_key(key)
            return None
        if memory.next_deadline <= now:
            self._expire_records(key, memory, now)
        return memory

    def count(self, now: int) -> int:
        """How many keys there are."""
        if not (self.expire(now, _EXPIRED_AT_ONCE) or self._held_due):
            return len(self.memories)
        return len(self.memories) - sum([deadline <= now for deadline in self.deadlines.values()])

    def keys(self, now: int) -> list[bytes]:
        """Every live key, oldest first."""
        if not (self.expire(now, _EXPIRED_AT_ONCE) or self._held_due):
            return list(self.memories)
        deadlines = self.deadlines
        return [key for key in self.memories if deadlines.get(key, NEVER) > now]

    def choose(self, now: int, below: Callable[[int], int]) -> bytes | None:
        """Any live key, all equally likely, None where there are none. `below(n)` draws a number from 0 to n - 1."""
        more_are_due = self.expire(now, _EXPIRED_AT_ONCE) or self._held_due
        for _ in range(_DRAWS if more_are_due else 1):
            key = self.order.choose(below)
            if key is None or self.deadlines.get(key, NEVER) > now:
                return key
        keys = self.keys(now)
        return keys[below(len(keys))] if keys else None

    def descendants(self, key: bytes) -> Iterator[bytes]:
        """The keys below `key` in no order, some of them due to expire. Not to be held across a change."""
        if self._paths is None:
            self._paths = KeyPaths(self.memories)
        return self._paths.descendants(key)

    def own_bytes(self, key: bytes) -> int:
        """About how many bytes a key that is there takes, its name and its places in the tables included."""
        return self.memories[key].nbytes() + 33 + len(key) + _KEY_BYTES

    def nbytes(self, key: bytes) -> int:
        """The same with the key's share of the vocabulary, which all memories have in common: as its words are to the
        words of all."""
        words, (at, everywhere) = self.memories[key].word_count, self._words
        if len(self.memories) <= _COUNTED_ALWAYS or monotonic() - at > _COUNTED_S:
            everywhere = sum(memory.word_count for memory in self.memories.values())
            self._words = monotonic(), everywhere
        return self.own_bytes(key) + (words and self.vocabulary.nbytes() * words // max(words, everywhere))

    def expire(self, now: int, limit: int = NEVER) -> bool:
        """Drop up to `limit` things that are due; whether more may be."""
        due = self._due
        while due and due[0][0] <= now:
            if limit <= 0:
                return True
            when, key = heappop(due)
            if self.held(key):
                self._held_due.append((when, key))
                continue
            limit -= 1
            memory = self.memories.get(key)
            if memory is None:
                continue
            if self.deadlines.get(key, NEVER) <= now:
                self._expire_key(key)
            elif memory.next_deadline <= now:
                self._expire_records(key, memory, now)
            elif when >= memory.watched_deadline:  # what was due then has moved
                self._watch_deadline(key, memory)
        return False

    def put_back(self) -> None:
        """What was held may be so no more."""
        for each in self._held_due:
            heappush(self._due, each)
        self._held_due.clear()

    def _expire_key(self, key: bytes) -> None:
        self.expired_keys += 1
        self._drop(key)
        self.key_expired(key)

    def _expire_records(self, key: bytes, memory: Memory, now: int) -> None:
        gone = memory.expire(now)
        self.expired_records += len(gone)
        self._watch_deadline(key, memory)
        if gone:
            self._changed(key, memory)
            for record_id in gone:
                self.announce(key, b"expire " + record_id)
        elif memory.wants_compaction:  # versions went that history held
            self.compactable(memory)

    def prune(self, key: bytes, now: int) -> None:
        """Drop from the memory at `key` what is due and what its history holds no more, so that no file and no payload
        has it."""
        memory = self.memories[key]
        if memory.next_deadline <= now:
            self._expire_records(key, memory, now)
        memory.prune(now)
        if memory.wants_compaction:
            self.compactable(memory)

    def _watch_deadline(self, key: bytes, memory: Memory) -> None:
        memory.watched_deadline = memory.next_deadline
        if memory.next_deadline < NEVER:
            self._watch(memory.next_deadline, key)

    def _watch(self, when: int, key: bytes) -> None:
        heappush(self._due, (when, key))
        if len(self._due) > 4 * len(self.memories) + 1000:
            # Mostly deadlines that were moved since.
            self._due = [(deadline, each) for each, deadline in self.deadlines.items()]
            for each, memory in self.memories.items():
                memory.watched_deadline = memory.next_deadline
                if memory.next_deadline < NEVER:
                    self._due.append((memory.next_deadline, each))
            heapify(self._due)

    # -- the door

    def apply(self, entry: Entry | PutNew) -> None:
        """Make `entry` so."""
        if self.before_change is not None:
            self.before_change(entry)
        self._APPLY[type(entry)](self, entry)

    def apply_all(self, group: Sequence[Entry | PutNew]) -> None:
        """Make all of `group` so, in order: what is the same, in half the time where many new records of one
        memory end it."""
        start = len(group)
        while start and type(group[start - 1]) is entries.Put:
            start -= 1
        if len(group) - start < _TOGETHER:
            start = len(group)
        for entry in group[:start]:
            self.apply(entry)
        while start < len(group):
            some = group[start : start + _TOGETHER_MOST]
            if not self._put_together(some):
                for entry in some:
                    self.apply(entry)
            start += len(some)

    def _put_together(self, puts: Sequence[Any]) -> bool:
        """Write these records together, if they are new and there is nothing more to them; whether they were."""
        first = puts[0]
        key, max_words, at = first.key, first.max_words, first.at
        for put in puts:
            if put.key != key or put.at != at or put.max_words != max_words or put.deadline or put.extra is not None:
                return False
        ids = [put.id for put in puts]
        if not self.memories[key].takes_together(ids):
            return False
        if self.before_change is not None:
            self.before_change(first)
        memory = self._current(key, at)
        memory.version += len(puts) - 1
        memory.put_new(
            ids,
            [put.text for put in puts],
            [put.vector for put in puts],
            [put.meta for put in puts],
            [put.tags for put in puts],
            importance=[put.importance for put in puts],
            created_at=[put.created_at for put in puts],
            updated_at=[put.updated_at for put in puts],
            max_words=max_words,
            at=at,
        )
        memory.next_id = puts[-1].next_id
        self._changed(key, memory)
        return True

    def _put_new(self, entry: PutNew) -> None:
        memory = self._current(entry.key, entry.at)
        memory.version += len(entry.ids) - 1
        columns = (entry.ids, entry.texts, entry.vectors, entry.metas, entry.tags)
        at, max_words = entry.at, entry.max_words
        if len(entry.ids) < _TOGETHER:
            for *record, importance in zip(*columns, entry.importance, strict=True):
                memory.put(
                    *record,
                    importance=importance,
                    created_at=at,
                    updated_at=at,
                    deadline=NEVER,
                    max_words=max_words,
                    at=at,
                )
        else:
            memory.put_new(
                *columns, importance=entry.importance, created_at=at, updated_at=at, max_words=max_words, at=at
            )
        memory.next_id = entry.next_id
        self._changed(entry.key, memory)

    def restore(self, key: bytes, memory: Memory, deadline: int) -> None:
        """Put a memory of a base file at `key`; `deadline` 0 is none."""
        self._set(key, memory)
        self._inherit(key, memory, deadline or None)

    @staticmethod
    def of_one(key: bytes, memory: Memory) -> Keyspace:
        """A keyspace of a copy, for a thread to apply entries to that are about it."""
        alone = Keyspace()
        alone.memories[key] = memory
        return alone

    def foretell(self, group: Sequence[Entry | PutNew]) -> None:
        """`group` is about to be made so: a snapshot that is being taken freezes the memory first, which counts as a
        change of it."""
        if self.before_change is not None:
            for entry in group:
                self.before_change(entry)

    def replace(self, key: bytes, twin: Memory, now: int) -> None:
        """Make `group`, which was foretold, so for the memory at `key`, given a copy of it for which that was done
        (aside.py)."""
        memory = self.memories[key]
        memory.version += 1
        twin.expire(now)  # as the memory has, and has said so
        memory.become(twin)
        self._changed(key, memory)
        self.released([twin])

    def _create(self, entry: entries.Create) -> None:
        self._set(entry.key, Memory(entry.settings, self.vocabulary, entry.at))

    def _configure(self, entry: entries.Configure) -> None:
        memory = self._current(entry.key, entry.at)
        memory.configure(entry.settings, entry.at)
        self._changed(entry.key, memory)

    def _put(self, entry: entries.Put) -> None:
        memory = self._current(entry.key, entry.at)
        memory.put(
            entry.id,
            entry.text,
            entry.vector,
            entry.meta,
            entry.tags,
            importance=entry.importance,
            created_at=entry.created_at,
            updated_at=entry.updated_at,
            deadline=entry.deadline or NEVER,
            max_words=entry.max_words,
            at=entry.at,
            extra=entry.extra,
        )
        memory.next_id = entry.next_id
        self._changed(entry.key, memory)

    def _remove(self, entry: entries.Remove) -> None:
        memory = self._current(entry.key, entry.at)
        memory.remove_all(entry.ids, entry.at)
        self._changed(entry.key, memory)

    def _forget(self, entry: entries.Forget) -> None:
        memory = self._current(entry.key, entry.at)
        memory.forget(entry.ids, entry.serials, entry.at)
        self._changed(entry.key, memory)

    def _invalidate(self, entry: entries.Invalidate) -> None:
        memory = self._current(entry.key, entry.at)
        memory.invalidate(entry.id, entry.invalid_at, entry.superseded_by, entry.at)
        self._changed(entry.key, memory)

    def _retell(self, entry: entries.Retell) -> None:
        memory = self._current(entry.key, entry.at)
        memory.retell(entry.id, entry.fact, entry.max_words, entry.at)
        self._changed(entry.key, memory)

    def _put_entity(self, entry: entries.PutEntity) -> None:
        memory = self._current(entry.key, entry.at)
        memory.put_entity(Entity(0, entry.name, entry.type, entry.aliases, entry.created_at, entry.vector), entry.at)
        self.touched(entry.key)

    def _drop_entity(self, entry: entries.DropEntity) -> None:
        memory = self._current(entry.key, entry.at)
        memory.drop_entity(entry.name, entry.type, entry.at)
        self.touched(entry.key)

    def _set_meta(self, entry: entries.SetMeta) -> None:
        memory = self._current(entry.key, entry.at)
        memory.set_meta(entry.id, entry.meta, entry.at)
        self._changed(entry.key, memory)

    def _set_deadline(self, entry: entries.SetDeadline) -> None:
        memory = self._current(entry.key, entry.at)
        memory.set_deadline(entry.id, entry.deadline or NEVER, entry.at)
        self._changed(entry.key, memory)

    def _set_vectors(self, entry: entries.SetVectors) -> None:
        memory = self._current(entry.key, entry.at)
        set_vectors = memory.fill_vectors if entry.fills else memory.set_vectors
        set_vectors(entry.items, entry.at)
        self._changed(entry.key, memory)

    def _switch(self, entry: entries.Switch) -> None:
        memory = self._current(entry.key, entry.at)
        memory.switch(entry.settings, entry.at)
        self._changed(entry.key, memory)

    def _drop_keys(self, entry: entries.Drop) -> None:
        memories: list[Memory | list[Any]] = []
        for key in entry.keys:
            memories.append(self.memories.pop(key))
            self.deadlines.pop(key, None)
            if self._paths is not None:
                self._paths.remove(key)
            self.touched(key)
        self.order.remove_all([self.serials.pop(key) for key in entry.keys])
        self.released(memories)

    def _expire_at(self, entry: entries.ExpireKey) -> None:
        if entry.deadline:
            self.deadlines[entry.key] = entry.deadline
            self._watch(entry.deadline, entry.key)
        else:
            self.deadlines.pop(entry.key, None)
        self.touched(entry.key)

    def _rename(self, entry: entries.Rename) -> None:
        memory = self.memories[entry.key]
        deadline = self.deadlines.get(entry.key)
        self._take(entry.key)
        self._set(entry.to, memory)
        self._inherit(entry.to, memory, deadline)

    def _copy(self, entry: entries.Copy) -> None:
        memory = self.memories[entry.key].copy()
        self._set(entry.to, memory)
        self._inherit(entry.to, memory, self.deadlines.get(entry.key))

    def _restore(self, entry: entries.Restore) -> None:
        memory = entry.memory
        if memory is None or memory.vocabulary is not self.vocabulary:
            memory = load(entry.payload).attach(self.vocabulary)
        memory.expire(entry.at)  # what was due before it came here is not announced: nobody here has seen it
        memory.settle(entry.at)
        self._set(entry.key, memory)
        self._inherit(entry.key, memory, entry.deadline or None)

    def _inherit(self, key: bytes, memory: Memory, deadline: int | None) -> None:
        if deadline is not None:
            self.deadlines[key] = deadline
            self._watch(deadline, key)
        self._watch_deadline(key, memory)

    def _flush(self, entry: entries.Flush) -> None:
        memories, deadlines, serials = self.memories, self.deadlines, self.serials
        things: list[Memory | list[Any]] = list(memories.values())
        things += [list(memories), list(deadlines.values()), list(serials.values()), self._due]
        self.memories, self.deadlines, self.serials, self._due = {}, {}, {}, []
        self.order.clear()
        self._paths = None
        self.vocabulary = Vocabulary()  # nobody holds a term any more
        self.flushed(memories)
        memories.clear()
        self.released(things)

    # -- the parts of apply

    def _current(self, key: bytes, at: int) -> Memory:
        memory = self.memories[key]
        memory.version += 1
        if memory.next_deadline <= at:
            self._expire_records(key, memory, at)
        return memory

    def _changed(self, key: bytes, memory: Memory) -> None:
        self.touched(key)
        if memory.next_deadline < memory.watched_deadline:
            self._watch_deadline(key, memory)
        if memory.wants_compaction:  # one that is small enough has done it by itself
            self.compactable(memory)

    def _set(self, key: bytes, memory: Memory) -> None:
        if key in self.memories:
            self._drop(key)
        self.memories[key] = memory
        self.serials[key] = self.order.add(key)
        if self._paths is not None:
            self._paths.add(key)
        self.touched(key)

    def _drop(self, key: bytes) -> None:
        self.released([self._take(key)])

    def _take(self, key: bytes) -> Memory:
        memory = self.memories.pop(key)
        self.deadlines.pop(key, None)
        self.order.remove(self.serials.pop(key))
        if self._paths is not None:
            self._paths.remove(key)
        self.touched(key)
        return memory

    _APPLY: dict[type, Callable[..., None]] = {  # noqa: RUF012
        entries.Create: _create,
        entries.Configure: _configure,
        entries.Put: _put,
        PutNew: _put_new,
        entries.Remove: _remove,
        entries.Forget: _forget,
        entries.Invalidate: _invalidate,
        entries.Retell: _retell,
        entries.PutEntity: _put_entity,
        entries.DropEntity: _drop_entity,
        entries.SetMeta: _set_meta,
        entries.SetDeadline: _set_deadline,
        entries.SetVectors: _set_vectors,
        entries.Switch: _switch,
        entries.Drop: _drop_keys,
        entries.ExpireKey: _expire_at,
        entries.Rename: _rename,
        entries.Copy: _copy,
        entries.Restore: _restore,
        entries.Flush: _flush,
    }
