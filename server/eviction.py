"""maxmemory: how much the memories take, and which of them go where that is too much.

Rule 1: what is used is counted, not asked of the system: the resident size at start, each memory as MEMORY USAGE has
        it, and the words that all share. The allocator gives little back, so by the resident size one memory too many
        would evict them all. A memory is measured again when it has changed and somebody asks (6 to 10 microseconds,
        whatever its size); caches that reads fill and what a compaction frees are found by a walk over all memories, a
        few each tenth of a second.
Rule 2: a memory goes before the command that needs the space, or in between commands, by an entry of its own: never
        inside of what EXEC does, and never the memory that the command is about.
Rule 3: no command waits for more than a few evictions: while any were made it may go on. In between commands
        the last memory stays: one that outgrows the server is refused more, not dropped.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Collection, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING

from ..index.memory import Memory
from . import entries

if TYPE_CHECKING:
    from .client import Client
    from .server import Server

# How many memories are measured at a time, a millisecond or so, and evicted for one command.
_MEASURED, _EVICTED = 100, 20
# How fast uses are forgotten: an hour ago counts half.
_HALF_LIFE_MS = 3_600_000


class Eviction:
    """Of one server. `limit` is maxmemory, 0 for none; `tracks` says whether it matters when memories are used."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._keyspace = server.keyspace
        self._config = server.config
        self._sizes: dict[bytes, int] = {}  # as last measured
        self._total = 0
        self._changed: dict[bytes, None] = {}  # since then
        self._round: Iterator[bytes] = iter(())
        self._volatile: list[bytes] = []  # keys with a deadline, to draw from
        self.limit = 0
        self.tracks = False
        self.is_held = False  # a transaction holds some that might go
        server.config.on_change("maxmemory", self._set_limit)
        server.config.on_change("maxmemory-policy", self._set_policy)

    def start(self) -> None:
        """The memories are loaded."""
        self._set_policy(self._config["maxmemory-policy"])
        self._set_limit(self._config["maxmemory"])
        self._measure(len(self._changed))

    def _set_policy(self, policy: str) -> None:
        self.tracks = policy.endswith(("lru", "lfu"))

    def _set_limit(self, limit: int) -> None:
        if limit and not self.limit:
            self._changed = dict.fromkeys(self._keyspace.memories)
            if self._changed:
                self._server.spawn(self._measure_all())
        elif not limit:
            self._sizes, self._total, self._changed = {}, 0, {}
        self.limit = limit

    async def _measure_all(self) -> None:
        """What is there when the limit comes, in between the commands; what is not measured yet counts for nothing."""
        while self._changed:
            self._measure(_MEASURED)
            await asyncio.sleep(0)

    # -- what is used

    def touched(self, key: bytes) -> None:
        """The key has changed, has come or has gone."""
        self._changed[key] = None

    def used(self) -> int:
        """Bytes, where there is a limit."""
        self._measure(_MEASURED)
        return self._server.startup_bytes + self._total + self._keyspace.vocabulary.nbytes()

    def _measure(self, count: int) -> None:
        """Measure up to so many of those that changed; who has gone costs nothing."""
        changed, keyspace = self._changed, self._keyspace
        while changed and count > 0:
            key, _ = changed.popitem()
            self._total -= self._sizes.pop(key, 0)
            if key in keyspace.memories:
                self._sizes[key] = size = keyspace.own_bytes(key)
                self._total += size
                count -= 1

    def sweep(self, now: int) -> None:
        """Ten times a second: measure some memories again, and evict what a lowered limit, or a growth that no command
        asked for, leaves over."""
        if not self.limit:
            return
        if not self._changed:
            some = list(islice(self._round, _MEASURED))
            if not some:
                self._round = iter(list(self._sizes))
            self._changed.update(dict.fromkeys(some))
        self.make_room(now, stay=1)

    # -- who goes

    def use(self, ctx: Client, memory: Memory) -> None:
        """A client's command uses the memory."""
        if not ctx.no_touch:
            memory.use_count = self.faded(memory, ctx.now) + 1.0
            memory.used_at = ctx.now

    def use_keys(self, ctx: Client, keys: Iterable[bytes]) -> None:
        """The same for those of the keys that are there, where it matters."""
        for memory in map(self._keyspace.memories.get, keys) if self.tracks else ():
            if memory is not None:
                self.use(ctx, memory)

    @staticmethod
    def faded(memory: Memory, now: int) -> float:
        return memory.use_count * math.exp2(-max(0, now - memory.used_at) / _HALF_LIFE_MS)

    def make_room(self, now: int, keep: Collection[bytes] = (), stay: int = 0) -> bool:
        """Evict until what is used is within the limit; False where it is not and nobody can go. `keep` stays, and so
        many in all."""
        server = self._server
        self.is_held = False
        if self.used() <= self.limit:
            return True
        if server.log.failure is not None or now < server.pause_until:
            return True  # nothing can be written, or nothing is to change
        due = self._keyspace.expire(now, _MEASURED)  # what is due goes first; whether more is
        for _ in range(_EVICTED):
            if self.used() <= self.limit:
                return True
            key = self._choose(now, keep) if len(self._keyspace.memories) > stay else None
            if key is None:
                return due
            self._evict(key)
        return True

    def _evict(self, key: bytes) -> None:
        server, entry = self._server, entries.Drop((key,))
        server.keyspace.apply(entry)
        server.log.append([entry])
        server.stats.changes += 1
        server.stats.evicted_keys += 1
        server.notifications.notify("e", b"evicted", key)

    def _choose(self, now: int, keep: Collection[bytes]) -> bytes | None:
        """Who goes first of some; None for nobody."""
        which, _, how = self._config["maxmemory-policy"].partition("-")
        if which == "noeviction":
            return None
        count = 1 if how == "random" else self._config["maxmemory-samples"]
        found: dict[bytes, Memory] = {}
        for key in self._drawn(which, count + len(keep)):
            if self._keyspace.held(key):
                self.is_held = True
            elif key not in keep:
                memory = self._keyspace.get(key, now)
                if memory is not None:
                    found[key] = memory
        if not found:
            return None
        if how == "lru":
            return min(found, key=lambda key: max(found[key].used_at, found[key].updated_at))
        if how == "lfu":
            return min(found, key=lambda key: (self.faded(found[key], now), found[key].used_at))
        if how == "ttl":
            return min(found, key=self._keyspace.deadlines.__getitem__)
        return next(iter(found))

    def _drawn(self, which: str, count: int) -> list[bytes]:
        """So many keys of those that may go, all equally likely; all of them where there are no more."""
        keyspace = self._keyspace
        held = keyspace.memories if which == "allkeys" else keyspace.deadlines
        if len(held) <= count:
            keys = list(held)
            random.shuffle(keys)
            return keys
        found: dict[bytes, None] = {}
        while len(found) < count:
            key = keyspace.order.choose(random.randrange) if which == "allkeys" else self._draw_volatile()
            if key is not None and key in held:
                found[key] = None
        return list(found)

    def _draw_volatile(self) -> bytes:
        """A key that had a deadline lately."""
        # Drawn empty before it is made anew, which so costs each draw next to nothing.
        keys = self._volatile
        if not keys:
            keys += self._keyspace.deadlines
        at = random.randrange(len(keys))
        keys[at], keys[-1] = keys[-1], keys[at]
        return keys.pop()
