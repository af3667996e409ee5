"""What the durability tests share: a keyspace with its log, driven by hand, and states that can be compared.

    store = Store(files, "always")            open_log on a FaultyFiles, as a server does it, without clients
    store.commit([entry])                     apply and log; `store.states` has the state after each group
    store.write(rng)                          the same with a random group
    store.settle()                            until neither the loop nor the log's thread has anything to do
    Store(files.crash(rng), "always").state   what the next start finds

Rule 1: time passes where a test says so (`store.loop.now`, seconds; entries carry `store.now`, milliseconds).
Rule 2: two states are equal exactly if no command could tell them apart, at any later time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import numpy as np
from faulty_files import FaultyFiles
from harness import DAY, JUNE, PATIENCE_S, Running
from recalld.index.columns import Table
from recalld.index.memory import Memory
from recalld.index.settings import Settings
from recalld.server.base import freeze
from recalld.server.entries import (
    Configure,
    Copy,
    Create,
    Drop,
    Entry,
    ExpireKey,
    Flush,
    Put,
    Remove,
    Rename,
    Restore,
    SetDeadline,
    SetMeta,
)
from recalld.server.files import Files
from recalld.server.keyspace import Keyspace
from recalld.server.log_load import open_log
from recalld.server.payload import dump
from recalld.server.rewrite import Rewriter
from recalld.server.stats import Stats
from recalld.server.transactions import Transactions

DIR = "/data"
FOLDER = "/data/appendonlydir"
PREFIX = "appendonly.aof"


class Loop(asyncio.SelectorEventLoop):
    """A loop whose clock a test sets."""

    now = 0.0

    def time(self) -> float:
        return self.now


class Store:
    """A keyspace and its log in `files`. `states[n]` is the state after n groups, `ends[n]` the log's position then."""

    def __init__(self, files: Files, policy: str = "always", *, cut_tail: bool = True) -> None:
        self.files = files
        self.loop = Loop()
        self.now = JUNE
        self.keyspace = Keyspace()
        self.config = {"auto-aof-rewrite-percentage": 100, "auto-aof-rewrite-min-size": 1}
        try:
            self.log = open_log(
                files, DIR, FOLDER, PREFIX, self.keyspace, self.loop, policy=policy, cut_tail=cut_tail
            )
        except BaseException:
            self.loop.close()
            raise
        self.stats = Stats()
        self.transactions = Transactions(self)  # type: ignore[arg-type]  # of which there are none
        self.rewriter = Rewriter(self, self.log)  # type: ignore[arg-type]  # what it needs of a server
        self.states = [self.state]
        self.ends = [0]

    def clock(self) -> int:
        return self.now

    @property
    def state(self) -> list[Any]:
        return state(self.keyspace)

    def commit(self, group: list[Entry], *, applied: bool = False) -> None:
        """Apply a group, unless it is, and log it."""
        for entry in group if not applied else ():
            self.keyspace.apply(entry)
        self.log.append(group)
        self.states.append(self.state)
        self.ends.append(self.log.position)

    def write(self, rng: Random, most: int = 3) -> None:
        """Commit a random group."""
        self.commit(random_group(self, rng, most), applied=True)

    def upto(self, position: int) -> int:
        """How many groups end at or before this position of the log."""
        return sum(end <= position for end in self.ends) - 1

    def turn(self, count: int = 1) -> None:
        """Let the loop go round, whatever the thread does."""
        for _ in range(count):
            self.loop.call_soon(self.loop.stop)
            self.loop.run_forever()

    def settle(self) -> None:
        """Let loop and thread go on until the log has nothing more to do."""

        async def idle() -> None:
            for _ in range(3):
                await asyncio.sleep(0)
                while self.log._job is not None:
                    await self.log._idle.wait()
                    await asyncio.sleep(0)

        self.loop.run_until_complete(idle())

    def until(self, condition: Callable[[], bool]) -> None:
        """Let the loop go on until the condition holds."""

        async def wait() -> None:
            while not condition():
                await asyncio.sleep(0)

        self.loop.run_until_complete(wait())

    def rewrite(self) -> bool:
        """A rewrite from beginning to end; whether it succeeded."""
        return self.loop.run_until_complete(self.rewriter.start())

    def second(self) -> None:
        """One second later: what the server does every second, to its end."""
        self.loop.now += 1.0
        self.log.every_second()
        self.settle()

    def close(self) -> None:
        """As SIGTERM."""
        self.loop.run_until_complete(self.log.close())
        self.drop()

    def drop(self) -> None:
        """As kill -9: nothing more is written. Nothing may be stalled."""
        self.settle()
        if self.rewriter.running:
            self.loop.run_until_complete(self.rewriter.start())
        self.log._thread.shutdown()
        self.loop.run_until_complete(self.loop.shutdown_default_executor())
        self.loop.close()
        self.log._lock.release()


def reloaded(files: FaultyFiles, *, cut_tail: bool = True) -> list[Any]:
    """The state that a start on `files` finds."""
    store = Store(files, cut_tail=cut_tail)
    found = store.states[0]
    store.drop()
    return found


def state(keyspace: Keyspace) -> list[Any]:
    """Everything that a command could show, now or later."""
    order = keyspace.order.page(1, 1 << 30)[1]
    assert order == list(keyspace.memories)
    return [(key, keyspace.deadlines.get(key), *memory_state(keyspace.memories[key])) for key in order]


def memory_state(memory: Memory) -> tuple[Any, ...]:
    table, past = memory.table, memory.past
    vectors = table.vectors
    return (
        memory.settings,
        memory.next_id,
        memory.created_at,
        memory.updated_at,
        table.order.next_serial,
        table.order.page(1, 1 << 30)[1],
        table.live,
        table.total_len,
        vectors and (vectors.live, vectors.sum.tolist()),
        sorted(_record_state(memory, table, slot) for slot in table.by_id.values()),
        sorted(_record_state(memory, past, slot) for slot in past.alive().nonzero()[0].tolist()) if past else [],
        [] if memory.entities is None else [entity._replace(number=0) for entity in memory.entities],
        memory.floor,
        memory.old_settings,
    )


def _record_state(memory: Memory, table: Table, slot: int) -> tuple[Any, ...]:
    where = table.terms_of(slot)
    words = map(memory.vocabulary.word, table.fwd_terms[where].tolist())
    extra = table.extra(slot)
    return (
        table.ids[slot],
        table.texts[slot],
        table.vector(slot),
        table.metas[slot],
        table.tags[slot],
        table.importance(slot),
        table.created(slot),
        table.updated(slot),
        table.deadline(slot),
        table.serial(slot),
        sorted(zip(words, table.fwd_halves[where].tolist(), strict=True)),
        () if extra is None else (*extra[:8], extra.fact or ()),
    )


KEYS = (b"a", b"b", b"c", b"d\xff\r\n")
WORDS = ("alpha", "beta", "gamma", "running", "runs", "lake", "café", "the")
SETTINGS = (
    Settings(mode="SEARCH"),
    Settings(mode="HYBRID", dim=3),
    Settings(mode="HYBRID", dim=2, metric="L2", lang="none"),
    Settings(mode="VECTOR", dim=2, metric="IP"),
)


def random_group(store: Store, rng: Random, most: int) -> list[Entry]:
    """Applied entries that a client could have caused, of every kind."""
    group: list[Entry] = []
    for _ in range(rng.randint(1, most)):
        entry = random_entry(store, rng)
        store.keyspace.apply(entry)
        group.append(entry)
    return group


def random_entry(store: Store, rng: Random) -> Entry:
    """One that applies; mostly a Put."""
    memories, now = store.keyspace.memories, store.now
    key = rng.choice(KEYS)
    if key not in memories:
        others = sorted(memories)
        if others and rng.random() < 0.3:
            kind = rng.choice((Copy, Rename))
            return kind(rng.choice(others), key)
        return Create(key, rng.choice(SETTINGS), now)
    memory = memories[key]
    ids = sorted(memory.table.by_id)
    chance = rng.random()
    if chance < 0.55 or not ids:
        return random_put(key, memory, rng, now)
    if chance < 0.65:
        return Remove(key, tuple(rng.sample(ids, min(len(ids), rng.randint(1, 3)))), now)
    if chance < 0.72:
        return SetMeta(key, rng.choice(ids), (b"f", rng.randbytes(4)), now)
    if chance < 0.79:
        return SetDeadline(key, rng.choice(ids), rng.choice((0, now + rng.randint(1, 9) * DAY)), now)
    if chance < 0.83:
        return Configure(key, replace(memory.settings, half_life=rng.randint(1, 99)), now)
    if chance < 0.87:
        return ExpireKey(key, rng.choice((0, now + rng.randint(1, 9) * DAY)))
    if chance < 0.90:
        return Copy(key, rng.choice([other for other in KEYS if other != key]))
    if chance < 0.93:
        return Rename(key, rng.choice([other for other in KEYS if other != key]))
    if chance < 0.96:
        deadline = store.keyspace.deadlines.get(key, 0)
        payload = dump(freeze(key, memory, 0, now), store.keyspace.vocabulary)
        return Restore(rng.choice(KEYS), payload, deadline, now)
    if chance < 0.99:
        return Drop((key,))
    return Flush()


def random_put(key: bytes, memory: Memory, rng: Random, now: int) -> Put:
    settings = memory.settings
    text = " ".join(rng.choices(WORDS, k=rng.randint(1, 5))).encode() + rng.choice((b"", b"\r\n#*$\x00"))
    vector = b""
    if settings.has_vectors and (settings.mode == "VECTOR" or rng.random() < 0.8):
        numbers = np.array([rng.uniform(0.1, 1) for _ in range(settings.dim)])
        if settings.metric == "COSINE":
            numbers /= np.sqrt((numbers * numbers).sum())
        vector = numbers.astype("<f4").tobytes()
    number = memory.free_id(memory.next_id)
    record_id, next_id = (b"%d" % number, number + 1) if rng.random() < 0.6 else (rng.choice(KEYS), memory.next_id)
    at = now + rng.randint(-5, 5)
    return Put(
        key,
        record_id,
        text,
        vector,
        (b"n", rng.randbytes(6)),
        (b"t",) * rng.randint(0, 1),
        rng.random(),
        at,
        at,
        0 if rng.random() < 0.8 else now + rng.randint(1, 9) * DAY,
        next_id,
        100,
        now,
    )


class Camera(FaultyFiles):
    """A disk of which power cuts are taken while it works on: `shot` is called before each operation, in its thread."""

    shot: Callable[[str], None] | None = None

    def _step(self, op: str, path: str) -> None:
        if self.shot is not None:
            self.shot(op)
        super()._step(op, path)


def on_loop(server: Running, work: Callable[[], Any]) -> Any:
    """Call `work` on the server's loop; its result."""

    async def call() -> Any:
        return work()

    return asyncio.run_coroutine_threadsafe(call(), server._loop).result(60)


def eventually(condition: Callable[[], bool]) -> None:
    """Ask until it holds; it must before anybody loses patience."""
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it never came to that"
