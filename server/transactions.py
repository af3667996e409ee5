"""What MULTI gathers, and EXEC: at once where that takes milliseconds, in turns of the loop where it takes longer.

Rule 1: while a transaction is under way, whoever would read or write a key of it waits until it is over, and so does
        whoever looks at all keys: commands (`holds_back`), what goes on behind a command (`waits`), what the server
        does by itself (`free`, `Keyspace.held`). So nobody sees a part of it, and it sees nothing that others do. One
        that looks at all keys itself has all others wait.
Rule 2: commands on other keys go on. What it writes reaches the log when it is over, as one group; what others logged
        meanwhile is about other keys, so that a replay gives the same memories (new keys may stand in another order).
Rule 3: it goes on when its client has gone. Where the server ends first, it has not happened.
Rule 4: a snapshot begins when none is under way (`none`). Until then none gets under way: a short one still runs, at
        once, a long one waits.
"""

from __future__ import annotations

import asyncio
from asyncio import Future, Task
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ..protocol.encoder import encode
from ..protocol.reply import Encoded
from .command_keys import reach
from .commands import Command, PendingWrite
from .dispatch import call, error_reply, settled
from .errors import CommandError
from .incr import encode_entries, framed
from .workers import ReadJob

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .client import Client
    from .entries import Entry
    from .server import Server

# How long a transaction runs at once, and then in each turn, in nanoseconds.
AT_ONCE_NS, TURN_NS = 5_000_000, 2_000_000
# So many of its reads may be with the threads; before the next one the first is waited for.
_READS = 16
# One of so few commands and bytes runs at once where none may get under way.
_FEW, _FEW_BYTES = 16, 1 << 16


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
        self.needs_memory = self.needs_memory or "denyoom" in entry.flags
        if entry.is_write:
            self.writes = True
            self.written.update(keys)

    def empty(self) -> list[tuple[Command, list[bytes]]]:
        """Its commands, which it has no more."""
        commands, self.commands = self.commands, []
        self.keys, self.written, self.size = set(), set(), 0
        return commands


class Transactions:
    """Those of one server that are under way. `matters`: something may have to wait, and is to ask."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._under_way: dict[Transaction, Task[Encoded]] = {}
        self._bars = 0
        self._wanted = False  # a command waits for there to be none
        self._after: list[Callable[[], None]] = []
        self._end = asyncio.Event()
        self.matters = False

    def begin(self, transaction: Transaction, rest: Future[Any] | None) -> PendingWrite:
        """The reply of one whose first turn is over and that waits for `rest`."""
        reply = PendingWrite(loop=self._server.loop)
        self._under_way[transaction] = task = self._server.spawn(transaction.go_on(rest))
        self.matters = True

        def answer(done: Task[Encoded]) -> None:
            # Not before those who waited have been told.
            if done.cancelled():
                reply.cancel()
            elif (error := done.exception()) is not None:
                reply.set_exception(error)
            else:
                reply.set_result(done.result())

        task.add_done_callback(answer)
        return reply

    def end(self, transaction: Transaction) -> None:
        """It is over, and all that waited goes on."""
        if self._under_way.pop(transaction, None) is None:
            return
        if not self._under_way:
            self._wanted = False
        self._settle()
        after, self._after = self._after, []
        for each in after:
            self._server.loop.call_soon(each)
        self._end.set()
        self._end.clear()
        self._server.resume_paused()

    def _settle(self) -> None:
        self.matters = bool(self._under_way or self._bars)

    async def abandon(self) -> None:
        """The server ends: those under way have not happened, and nothing is written behind them."""
        self._after.clear()
        tasks = list(self._under_way.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # -- who waits

    def holds(self, key: bytes) -> bool:
        """Whether nothing but a transaction may change the key now."""
        return any(each.queue.sees_all or key in each.queue.keys for each in self._under_way)

    @property
    def barred(self) -> bool:
        """Whether none may get under way."""
        return self._bars > 0 or self._wanted

    def holds_back(self, ctx: Client, entry: Command, words: list[bytes]) -> bool:
        """Whether the command has to wait."""
        if entry.name != "exec":
            keys, sees_all = reach(entry, words)
            return self._concern(keys, sees_all=sees_all)
        queue = ctx.multi
        if queue is None or queue.failed:
            return False
        if self.barred and (len(queue.commands) > _FEW or queue.size > _FEW_BYTES):
            return True
        return self._concern(queue.keys, sees_all=queue.sees_all)

    def _concern(self, keys: Iterable[bytes], *, sees_all: bool) -> bool:
        """Whether those under way are about any of the keys."""
        if sees_all:
            self._wanted = bool(self._under_way)
            return self._wanted
        queues = [each.queue for each in self._under_way]
        return any((queue.sees_all and keys) or not queue.keys.isdisjoint(keys) for queue in queues)

    def waits(self, keys: Iterable[bytes], sees_all: bool, then: Callable[[], None]) -> bool:
        """Whether one is about any of the keys; `then` is called when it is over."""
        if not self._concern(keys, sees_all=sees_all):
            return False
        self._after.append(then)
        return True

    async def free(self, key: bytes) -> None:
        """Return in a turn of the loop in which no transaction is about the key."""
        while self.holds(key):
            await self._end.wait()

    @asynccontextmanager
    async def none(self) -> AsyncIterator[None]:
        """While none is under way, nor gets so."""
        self._bars += 1
        self.matters = True
        try:
            while self._under_way:
                await self._end.wait()
            yield
        finally:
            self._bars -= 1
            self._settle()
            self._server.resume_paused()


class Transaction:
    """An EXEC that runs, at the time when it began. `at_once`: to its end, and nothing of it may wait for a thread but
    reads."""

    def __init__(self, ctx: Client, queue: Queue, *, at_once: bool) -> None:
        self.queue = queue
        self.at_once = at_once
        self.now = ctx.now
        self.group: list[Entry] = []  # what it wrote, not packed yet
        self.subscribed_bytes = 0  # what its subscriptions have taken of what there is for them
        self._ctx = ctx
        self._server = ctx.server
        self._pieces: list[bytes] = []
        self._packed = 0  # entries
        self._at = 0
        self._replies: list[bytes] = []
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
        return None

    def _call(self, entry: Command, words: list[bytes]) -> Any:
        ctx = self._ctx
        if "pubsub" in entry.flags and ctx.connection.gone:
            return None  # who is no client any more has no subscriptions
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
        self._pack()
        if self._packed:
            self._server.log.append([], framed(self._pieces, self._packed))
        self._pieces = []
        self._server.transactions.end(self)
        self._server.release([self.queue.empty()])

    # -- replies

    @property
    def _is_too_much(self) -> bool:
        """Whether the replies are more than the client may have: it is cut off in the end."""
        return bool(self._most) and self._size > self._most

    def _add_reply(self, reply: Any) -> None:
        self._replies.append(data := encode(reply, self._ctx.proto))
        self._size += len(data)

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
        return Encoded(b"".join((b"*%d\r\n" % len(self._replies), *self._replies)))
