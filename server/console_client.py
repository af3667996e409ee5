"""A client of the server in its own process: how the console does everything that it does.

Rule 1: a command goes through `dispatch.execute` like one from a socket, so permissions, audit, limits, the log and
        events hold, and there is no second way to the state.
Rule 2: a reply is what a client on RESP3 reads: it is encoded and read again. Nothing of it is shared with the index.
        Names of maps are str, whatever else are strings is bytes.
Rule 3: a reply is given when it might have left the server: a write's once the log has it, with appendfsync always a
        read's too.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import hiredis

from ..protocol.encoder import encode
from ..protocol.reply import Encoded
from .client import Client
from .commands import PendingWrite
from .dispatch import Paused, execute, settled
from .errors import CommandError

if TYPE_CHECKING:
    from .acl import User
    from .connection import Connection
    from .server import HeldBack, Server

Word = bytes | str | int | float
# Of one stream of events, before it loses the oldest.
_MOST_PUSHED = 1000


class Refused(Exception):
    """The server answered with an error."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code, _, self.message = text.partition(" ")


class Changed(Exception):
    """Somebody has been quicker, and nothing was done."""


class Insider:
    """One client, for one request or one stream of events; `close` it."""

    def __init__(self, server: Server, addr: str, account: User | None = None) -> None:
        """Without an account it may do what a connection may before AUTH."""
        self.addr = addr
        self._server = server
        self._client = Client(server, 0, addr, "console", server.clock())
        self._client.connection = cast("Connection", _Place(server.loop))
        self._client.proto = 3
        self._client.name = b"console"
        if account is None:
            self._client.log_out()
        else:
            self._client.log_in(account)

    @property
    def account(self) -> User:
        return self._client.account

    def log_in(self, name: bytes, password: bytes) -> bool:
        """Become that user; whether it may be. A failure stands in ACL LOG like one of AUTH."""
        try:
            self._server.acl.log_in(self._client, name, password, b"AUTH")
        except CommandError:
            return False
        return True

    async def __call__(self, *words: Word, unless: Callable[[], bool] | None = None) -> Any:
        """The reply to one command. Raises Refused; Changed where `unless`, asked right before, says so."""
        return _read(await self._run([_bytes(word) for word in words], unless))

    def at_once(self, *words: Word) -> Any:
        """The reply to a read, in this turn of the loop: for `unless`. Raises Refused; Changed where a thread makes it,
        as of a record that is looked for by its content."""
        reply = execute(self._client, [_bytes(word) for word in words])
        if isinstance(reply, Future):
            raise Changed
        return _read(reply)

    async def _run(self, words: list[bytes], unless: Callable[[], bool] | None) -> Any:
        client, log, place = self._client, self._server.log, self._place
        await asyncio.sleep(0)  # between two commands others have their turn
        begun: Future[tuple[Any, bool]] = self._server.loop.create_future()
        place.ticket = 0
        self._try(words, unless, begun)
        reply, wrote = await begun
        if isinstance(reply, Future):
            if not reply.done():
                await asyncio.wait([reply])
            reply = settled(client, client.last_command, reply)
        if wrote or log.gates_reads:
            position = log.position
            if not log.gates_reads:
                log.flush()
            while log.released < position:
                if log.failure is not None:
                    if wrote:
                        raise Refused(f"MISCONF {log.failure} This write may or may not be kept.")
                    break
                await place.until(log.waiters.add)
        return reply

    def _try(self, words: list[bytes], unless: Callable[[], bool] | None, begun: Future[tuple[Any, bool]]) -> None:
        """Run the command, in the very turn in which it may: `begun` is its reply and whether it wrote."""
        if begun.done():  # nobody waits any more
            return
        log, place = self._server.log, self._place
        before = log.position
        try:
            if unless is not None and unless():
                raise Changed
            reply = execute(self._client, words)
        except Paused as paused:
            place.ticket = place.ticket or self._server.next_ticket()
            place.held = words
            place.again = partial(self._try, words, unless, begun)
            self._server.wait(cast("Connection", place), paused.waiting)
        except Exception as error:
            begun.set_exception(error)
        else:
            begun.set_result((reply, log.position != before or isinstance(reply, PendingWrite)))

    @property
    def _place(self) -> _Place:
        return cast(_Place, self._client.connection)

    async def pushed(self, timeout_s: float) -> list[Any]:
        """The messages that came since the last call, after at most so many seconds."""
        place = self._place
        if not place.messages:
            await place.until(lambda _: None, timeout_s)
        messages = [*place.messages]
        place.messages.clear()
        return messages

    def wake(self) -> None:
        """Let `pushed` return."""
        self._place.drain()

    def close(self) -> None:
        server, client = self._server, self._client
        server.pubsub.drop(client)
        server.unwatch(client)
        server.log.waiters.discard(client.connection)
        self._place.waits_in.pop(client.connection, None)
        self._place.again = None


@dataclass(slots=True)
class _Parser:
    authenticated: bool = True
    buffered_bytes: int = 0


class _Place:
    """What stands where a client has its connection: it is woken where a connection goes on.

    It has what `client_line` says of one, since refusals of a console's user stand in ACL LOG too.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.parser = _Parser()
        self.held: list[bytes] | None = None
        self.rest: list[list[bytes]] = []
        self._loop = loop
        self._woken: Future[None] | None = None
        self.messages: deque[Any] = deque(maxlen=_MOST_PUSHED)
        self.waiting: tuple[()] = ()
        self.waits_in: HeldBack = {}
        self.ticket = 0
        self.again: Callable[[], None] | None = None

    async def until(self, tell: Callable[[Any], object], timeout_s: float | None = None) -> None:
        """Wait to be woken; `tell` those who do it where we are."""
        self._woken = self._loop.create_future()
        tell(self)
        await asyncio.wait([self._woken], timeout=timeout_s)
        self._woken = None

    def drain(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    refuse_writes = drain

    def process(self) -> None:
        """What was held back may be tried again."""
        again, self.again, self.held = self.again, None, None
        if again is not None:
            again()

    def unsent_bytes(self) -> int:
        return 0

    def fileno(self) -> int:
        return -1

    def push(self, message: Any) -> None:
        self.messages.append(message)
        self.drain()


def _bytes(word: Word) -> bytes:
    return word if isinstance(word, bytes) else str(word).encode("utf-8", "surrogateescape")


def _read(reply: Any) -> Any:
    """What a client reads of it. Raises Refused."""
    reader = hiredis.Reader()
    reader.feed(reply if isinstance(reply, Encoded) else encode(reply, 3))
    value = reader.gets()
    if isinstance(value, hiredis.ReplyError):
        raise Refused(str(value))
    return _named(value)


def _named(value: Any) -> Any:
    """With str for the names of maps; the fields of metadata are not ours to read."""
    if isinstance(value, dict):
        return {
            (key := name.decode()): each if key == "meta" else _named(each)
            for name, each in value.items()
        }
    return [_named(each) for each in value] if isinstance(value, list) else value
