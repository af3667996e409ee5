"""What MULTI gathers, and EXEC: at once where that takes milliseconds, in turns of the loop where it takes longer.

Rule 1: while a transaction is under way, whoever would read or write a key of it waits until it is over, and so does
        whoever looks at all keys: commands (`holding`), what goes on behind a command (`waits`), what the server
        does by itself (`free`, `Keyspace.held`). So nobody sees a part of it, and it sees nothing that others do. One
        that looks at all keys itself has all others wait.
Rule 2: commands on other keys go on. What it writes reaches the log when it is over, as one group; what others logged
        meanwhile is about other keys, so that a replay gives the same memories (new keys may stand in another order).
Rule 3: it goes on when its client has gone. Where the server ends first, it has not happened, and nothing is logged
        that saw a part of it (`abandon`).
Rule 4: a snapshot begins when none is under way that writes (`none`), and then none gets so; a command that looks at
        all keys must not wait for ever either. So while somebody waits for that, a short transaction runs at once, and
        others wait.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Task
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ..protocol.encoder import encode
from ..protocol.reply import Encoded
from .client import chain
from .command_keys import reach
from .commands import Command, PendingWrite
from .dispatch import call, error_reply, settled
from .errors import CommandError
from .incr import encode_entries, framed
from .log_files import stopping
from .workers import ReadJob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .client import Client
    from .entries import Entry
    from .server import HeldBack, Server

# How long a transaction runs at once, and then in each turn, in nanoseconds.
AT_ONCE_NS, TURN_NS = 5_000_000, 2_000_000
# So many of its reads may be with the threads; before the next one the first is waited for.
_READS = 16
# One of so few commands and bytes, all of them "fast", runs at once where none may get under way.
_FEW, _FEW_BYTES = 16, 1 << 16
# Who has gone subscribes to nothing.
_SUBSCRIPTIONS = frozenset({"subscribe", "psubscribe", "unsubscribe", "punsubscribe"})


async def next_turn() -> None:
    """Let all others have theirs."""
    await asyncio.sleep(0)


@dataclass(slots=True)
class Queue:
    """The commands since MULTI, and what they are about."""

    commands: list[tuple[Command, list[bytes]]] = field(default_factory=list)
    keys: set[bytes] = field(default_factory=set)
    written: set[bytes] = field(default_factory=set)
    sees_all: bool = False
    """Whether one of them is about all keys, or about some that only show when it runs."""
    writes: bool = False
    is_fast: bool = True
    needs_memory: bool = False
    size: int = 0
    """About how many bytes they take."""
    failed: bool = False

    def add(self, entry: Command, words: list[bytes], size: int) -> None:
        keys, sees_all = reach(entry, words)
        self.commands.append((entry, words))
        self.keys.update(keys)
        self.sees_all = self.sees_all or sees_all
        self.size += size
        self.is_fast = self.is_fast and "fast" in entry.flags
        self.needs_memory = self.needs_memory or "denyoom" in entry.flags
        if entry.is_write:
            self.writes = True
            self.written.update(keys)

    @property
    def is_short(self) -> bool:
        return self.is_fast and len(self.commands) <= _FEW and self.size <= _FEW_BYTES

    def empty(self) -> list[Any]:
        """What it held, in lists, the last references to it."""
        held: list[Any] = [self.commands, [self.keys], [self.written]]
        self.commands, self.keys, self.written, self.size = [], set(), set(), 0
        return held


class Transactions:
    """Those of one server that are under way. `matters`: something may have to wait, and is to ask."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._under_way: dict[Transaction, Task[Encoded]] = {}
        self._bars = 0
        self._wanted = False  # a command waits for there to be none
        self._after: list[Callable[[], None]] = []
        self._end = asyncio.Event()
        self._waiting: HeldBack = {}  # those that may not get under way
        self.matters = False
        self.abandoned = False

    def begin(self, transaction: Transaction, rest: Future[Any] | None) -> PendingWrite:
        """The reply of one whose first turn is over and that waits for `rest`."""
        reply = PendingWrite(loop=self._server.loop)
        self._under_way[transaction] = task = self._server.spawn(transaction.go_on(rest))
        self.matters = True
        chain(task, reply)  # after those who waited have been told
        return reply

    def end(self, transaction: Transaction) -> None:
        """It is over, and all that waited goes on."""
        if self._under_way.pop(transaction, None) is None:
            return
        after, self._after = self._after, []
        for each in after:
            self._server.loop.call_soon(each)
        self._end.set()
        self._end.clear()
        self._server.keyspace.put_back()
        self._server.resume(transaction.waiting)
        if not self._server.is_resuming:
            self.resumed()

    def resumed(self) -> None:
        """Whoever waited has had a turn: until then none gets under way of those that came later."""
        if not self._under_way:
            self._wanted = False
        self._settle()

    def _settle(self) -> None:
        self.matters = bool(self._under_way or self._bars or self._wanted)
        if self._waiting and not (self._wanted or self._bars):
            self._server.resume(self._waiting)

    async def abandon(self) -> None:
        """The server ends: those under way have not happened, and nothing is written any more, as it may have seen a
        part of one."""
        tasks = list(self._under_way.values())
        if tasks:
            self.abandoned = True
            self._server.log.seal()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- who waits

    def holds(self, key: bytes) -> bool:
        """Whether nothing but a transaction may change the key now."""
        return any(each.queue.sees_all or key in each.queue.keys for each in self._under_way)

    @property
    def under_way(self) -> bool:
        return bool(self._under_way)

    @property
    def first_waiting(self) -> HeldBack | None:
        """Of one that is under way, those who wait for it."""
        return next((each.waiting for each in self._under_way), None)

    def bars(self, queue: Queue) -> bool:
        """Whether one of these commands may not get under way."""
        return self._wanted or (self._bars > 0 and queue.writes)

    def holding(self, ctx: Client, entry: Command, words: list[bytes]) -> HeldBack | None:
        """Where the command has to wait; None where it has not."""
        if entry.name != "exec":
            return self._holding(*reach(entry, words))
        queue = ctx.multi
        if queue is None or queue.failed:
            return None
        if self.bars(queue) and not queue.is_short:
            return self._waiting
        found = self._holding(queue.keys, queue.sees_all)
        return self._holding(ctx.watched, False) if found is None else found

    def _holding(self, keys: Collection[bytes], sees_all: bool) -> HeldBack | None:
        """Where those wait who are about these keys."""
        if sees_all and self._under_way:
            self._wanted = True
        for each in self._under_way:
            if sees_all or (each.queue.sees_all and keys) or not each.queue.keys.isdisjoint(keys):
                return each.waiting
        return None

    def waits(self, keys: Collection[bytes], sees_all: bool, then: Callable[[], None]) -> bool:
        """Whether one is about any of the keys; `then` is called when it is over."""
        if self._holding(keys, sees_all) is None:
            return False
        self._after.append(then)
        return True

    async def free(self, key: bytes) -> None:
        """Return in a turn of the loop in which no transaction is about the key. Raises CommandError where the server
        ends before."""
        while self.holds(key):
            await self._end.wait()
        if self.abandoned:
            raise CommandError("the server is shutting down")

    @asynccontextmanager
    async def none(self) -> AsyncIterator[None]:
        """While none is under way that writes, nor gets so. Raises OSError where the server ends before."""
        self._bars += 1
        self.matters = True
        try:
            while any(each.queue.writes for each in self._under_way):
                await self._end.wait()
            if self.abandoned:
                raise stopping()
            yield
        finally:
            self._bars -= 1
            self._settle()


class Transaction:
    """An EXEC that runs, at the time when it began. `at_once`: to its end, and nothing of it may wait for a thread but
    reads."""

    def __init__(self, ctx: Client, queue: Queue, *, at_once: bool) -> None:
        self.queue = queue
        self.at_once = at_once
        self.now = ctx.now
        self.group: list[Entry] = []  # what it wrote, not packed yet
        self.waiting: HeldBack = {}  # who waits until it is over
        self.subscribed_bytes = 0  # what its subscriptions have taken of what there is for them
        self._ctx = ctx
        self._server = ctx.server
        self._pieces: list[bytes] = []
        self._packed = 0  # entries
        self._at = 0
        self._replies: list[bytes] = []  # and before them `_joined`, which are so many
        self._joined: list[bytes] = []
        self._joined_count = 0
        self._waiting: dict[int, tuple[str, Future[Any]]] = {}  # by place among the replies: the command's name
        self._size = 0
        self._most: int = ctx.connection.most_reply_bytes

    def begin(self) -> Any:
        """Run it; its reply, or the future of it."""
        self._ctx.transaction = self
        try:
            rest = self._run(AT_ONCE_NS)
        except BaseException:
            self._end()
            raise
        if rest is not None or self._at < len(self.queue.commands):
            return self._server.transactions.begin(self, rest)
        self._end()
        return self._server.loop.create_task(self._settle()) if self._waiting else self._reply()

    async def go_on(self, rest: Future[Any] | None) -> Encoded:
        """The turns after the first; `rest` is what has to be waited for."""
        try:
            while rest is not None or self._at < len(self.queue.commands):
                if rest is None:
                    await next_turn()
                else:
                    await asyncio.wait([rest])
                self._take_replies()
                rest = self._run(TURN_NS)
        except asyncio.CancelledError:
            self._pieces, self._packed, self.group = [], 0, []
            raise
        finally:
            self._end()
        return await self._settle()

    def _run(self, nanoseconds: int) -> Future[Any] | None:
        """Run commands for so long, then None; or up to one that has to be waited for."""
        commands, ends = self.queue.commands, perf_counter_ns() + nanoseconds
        self._ctx.now = self.now
        with self.writing():
            while self._at < len(commands):
                entry, words = commands[self._at]
                self._at += 1
                if self._is_too_much and "readonly" in entry.flags:
                    continue
                reply = self._call(entry, words)
                if not isinstance(reply, Future):
                    self._add_reply(reply)
                else:
                    self._waiting[len(self._replies)] = entry.name, reply
                    self._replies.append(b"")
                    if self.at_once:
                        continue
                    # A read of a view may go on beside what follows. The others look at the memory as it is.
                    if not isinstance(reply, ReadJob):
                        return reply
                    if len(self._waiting) > _READS:
                        return next(iter(self._waiting.values()))[1]
                if perf_counter_ns() > ends and not self.at_once:
                    break
        if self._at < len(commands):
            self._pack()
            self._join()
        return None

    def _call(self, entry: Command, words: list[bytes]) -> Any:
        ctx = self._ctx
        if ctx.connection.gone and entry.name in _SUBSCRIPTIONS:
            return None
        if entry.name not in ctx.granted:
            try:
                ctx.server.acl.check_queued(ctx, entry, words)
            except CommandError as error:
                return error_reply(ctx, entry.name, error)
        return call(ctx, entry, words)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """What is committed meanwhile is part of it."""
        self._server.transaction = self
        try:
            yield
        finally:
            self._server.transaction = None

    def add_made(self, count: int, encoded: bytes) -> None:
        """So many entries that were made aside are part of it, `encoded` as `encode_entries` does."""
        self._pack()
        self._pieces.append(encoded)
        self._packed += count

    def _pack(self) -> None:
        """The rest of it in its turns: all at the end would take long."""
        self._packed += len(self.group)
        self._pieces += encode_entries(self.group)
        self.group.clear()

    def _end(self) -> None:
        self._ctx.transaction = None
        if self._packed:
            self._pack()
            self._server.log.append([], framed(self._pieces, self._packed))
        elif self.group:
            self._server.log.append(self.group)
        self._pieces = []
        self._server.transactions.end(self)
        self._server.release(self.queue.empty())

    # -- replies

    @property
    def _is_too_much(self) -> bool:
        """Whether the replies are more than the client may have: it is cut off in the end."""
        return bool(self._most) and self._size > self._most

    def _add_reply(self, reply: Any) -> None:
        self._replies.append(data := encode(reply, self._ctx.proto))
        self._size += len(data)

    def _join(self) -> None:
        """The rest of the reply in its turns, as `_pack`."""
        if not self._waiting:
            self._joined.append(b"".join(self._replies))
            self._joined_count += len(self._replies)
            self._replies.clear()

    def _take_replies(self) -> None:
        """Those that are there of those that were waited for."""
        for at, (name, reply) in list(self._waiting.items()):
            if reply.done():
                del self._waiting[at]
                self._replies[at] = data = encode(settled(self._ctx, name, reply), self._ctx.proto)
                self._size += len(data)

    async def _settle(self) -> Encoded:
        """Wait for the replies that threads still work on."""
        while self._waiting:
            _, reply = next(iter(self._waiting.values()))
            if self._is_too_much:
                reply.cancel()  # what has not begun does not
            else:
                await asyncio.wait([reply])
            self._take_replies()
        return self._reply()

    def _reply(self) -> Encoded:
        if self._is_too_much:
            self._ctx.connection.cut_off()
            return Encoded(b"*0\r\n")
        count = self._joined_count + len(self._replies)
        return Encoded(b"".join((b"*%d\r\n" % count, *self._joined, *self._replies)))
