"""One client's session: everything the server remembers about a connection, apart from its socket."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Collection
from collections.abc import Set as AbstractSet
from functools import partial
from typing import TYPE_CHECKING, Any

from .commands import PendingWrite
from .errors import CommandError
from .names import HELD_MAX, Names, most_size_of, size_of

if TYPE_CHECKING:
    from ..index.memory import Memory
    from .acl import User
    from .audit import Seen
    from .commands import Command
    from .server import Server
    from .transactions import Queue, Transaction

# Queued commands of which no more are let go of at once.
_FREED_HERE = 1000


def chain(source: Future[Any], target: Future[Any]) -> None:
    """Let `target` end as `source` does."""

    def hand_over(done: Future[Any]) -> None:
        if target.cancelled():
            return
        if done.cancelled():
            target.cancel()
        elif (error := done.exception()) is not None:
            target.set_exception(error)
        else:
            target.set_result(done.result())

    source.add_done_callback(hand_over)


class Client:
    """The context that handlers get as `ctx`.

    `now` is the time of the command that runs, unix milliseconds: handlers read it instead of a clock, and a whole
    EXEC sees one time.
    """

    __slots__ = (
        "account",
        "addr",
        "authenticated",
        "channels",
        "close_after_reply",
        "connection",
        "created_ms",
        "dirty",
        "goes_on",
        "granted",
        "has_long_words",
        "id",
        "laddr",
        "last_command",
        "last_ms",
        "lib_name",
        "lib_ver",
        "monitoring",
        "multi",
        "name",
        "no_evict",
        "no_touch",
        "now",
        "patterns",
        "proto",
        "reply_mode",
        "seen",
        "server",
        "transaction",
        "user",
        "watched",
    )

    account: User
    user: str
    """The account's name."""
    authenticated: bool
    granted: AbstractSet[str]
    """Commands that may run whatever their words are. Others are looked at by Acl.check; a stranger has none."""

    def __init__(self, server: Server, client_id: int, addr: str, laddr: str, now: int) -> None:
        self.server = server
        self.connection: Any = None  # server.connection.Connection; None in tests of handlers
        self.id = client_id
        self.addr = addr
        self.laddr = laddr
        self.created_ms = now
        self.last_ms = now
        self.now = now
        self.last_command = "NULL"
        self.close_after_reply = False
        self.proto = 2
        self.name = b""
        self.lib_name = b""
        self.lib_ver = b""
        self.no_evict = False
        self.no_touch = False
        self.monitoring = False
        self.reply_mode = "on"  # on | off | skip (the command that runs) | skip-next
        self.multi: Queue | None = None  # None outside MULTI
        self.transaction: Transaction | None = None  # the EXEC that runs
        self.goes_on: tuple[Collection[bytes], bool] = (), False  # what the write is about that goes on in a thread
        self.seen: Seen | None = None  # the read that runs, where it is kept
        self.has_long_words = False  # the command at hand has some that had to be put together apart
        self.dirty = False  # a watched key changed
        self.watched = Names()
        self.channels = Names()
        self.patterns = Names()
        self.log_out()

    def log_in(self, account: User) -> None:
        """Act as this user from now on."""
        self._act_as(account, authenticated=True)

    def log_out(self) -> None:
        """Act as a connection does before AUTH."""
        acl = self.server.acl
        self._act_as(acl.default, authenticated=acl.is_open)

    def _act_as(self, account: User, *, authenticated: bool) -> None:
        self.account = account
        self.user = account.name
        self.authenticated = authenticated
        self.granted = account.granted if authenticated else frozenset()
        if self.connection is not None:
            self.connection.parser.authenticated = authenticated

    def check_user(self) -> None:
        """Raise CommandError where the user was deleted or switched off since the command began."""
        if not self.account.enabled or self.server.acl.users.get(self.user) is not self.account:
            raise CommandError("the user was deleted or switched off meanwhile", "NOPERM")

    def look_up(self, key: bytes) -> Memory | None:
        """The memory at `key` for the command that runs, counted as found or missed."""
        server = self.server
        memory = server.keyspace.get(key, self.now)
        if memory is not None:
            server.stats.hits += 1
        else:
            server.stats.misses += 1
            if server.notifications.on:
                server.notifications.notify("m", b"keymiss", key)
        return memory

    def would_write(self, entry: Command) -> bool:
        """Whether `entry` writes if it runs now: EXEC does where a queued command does."""
        if entry.name == "exec":
            return self.multi is not None and self.multi.writes
        return entry.is_write

    @property
    def in_exec(self) -> bool:
        return self.transaction is not None

    @property
    def must_finish(self) -> bool:
        """Whether the command that runs cannot wait for a thread: what EXEC does at once cannot be divided."""
        return self.transaction is not None and self.transaction.at_once

    def discard_transaction(self) -> None:
        """End MULTI and every watch."""
        if self.multi is not None and len(self.multi.commands) > _FREED_HERE:
            self.server.release(self.multi.empty())
        self.multi = None
        self.server.unwatch(self)

    def check_names(self, held: Names, names: list[bytes], what: str) -> None:
        """Refuse what makes more of them, or of their bytes, than a connection may have; raises CommandError."""
        limit = self.server.config["max-client-names"]
        if len(held) + len(names) > limit and (count := len(held.union(names))) > limit:
            raise CommandError(f"{count} {what} of one connection exceed max-client-names ({limit})")
        size = self.watched.size + self.channels.size + self.patterns.size
        new = set(names) - held
        if size + most_size_of(new) > HELD_MAX and (size := size + sum(map(size_of, new))) > HELD_MAX:
            raise CommandError(
                f"{size} bytes of watched keys, channels and patterns of one connection exceed {HELD_MAX}"
            )

    def push(self, message: Any) -> None:
        """Send an out-of-band message (pub/sub) behind the replies already queued."""
        if self.connection is not None:
            self.connection.push(message)

    def write_after(self, found: Future[Any], finish: Callable[[Any], Any]) -> PendingWrite:
        """The reply of a write that a thread begins: `finish(found's result)`, at the time when that is ready."""
        reply = PendingWrite(loop=self.server.loop)
        found.add_done_callback(partial(self._finish_write, reply, finish, self.transaction))
        return reply

    # No function that refers to itself: full collections are rare, and a cycle would keep what it holds until then.
    def _finish_write(
        self,
        reply: PendingWrite,
        finish: Callable[[Any], Any],
        begun_in: Transaction | None,
        done: Future[Any],
    ) -> None:
        if reply.cancelled() or done.cancelled():
            reply.cancel()
            return
        transaction = begun_in if begun_in is self.transaction else None
        transactions = self.server.transactions
        has_ended = begun_in is not None and transaction is None and not begun_in.at_once
        if transactions.abandoned or has_ended:
            reply.cancel()  # it would be about what has not happened
            return
        if transaction is None and transactions.matters:
            again = partial(self._finish_write, reply, finish, begun_in, done)
            if transactions.waits(*self.goes_on, again):
                return
        try:
            value = done.result()
            if transaction is None:
                self.now = self.server.clock()
                self.check_user()
                result = finish(value)
            else:
                self.now = transaction.now
                with transaction.writing():
                    result = finish(value)
        except Exception as error:
            reply.set_exception(error)
            return
        if isinstance(result, Future):
            chain(result, reply)
        else:
            reply.set_result(result)

    def background(self, work: Callable[[], Any]) -> Future[Any]:
        """Run `work` in a worker thread; the future holds its result."""
        return self.server.background(work)
