"""One connection: bytes in, replies out, in order, with bounded buffers.

Rule 1: commands of one connection run in the order they came, and so do its replies leave, whichever is ready first.
Rule 2: no write's reply leaves before the log has the write (`Log.released`), and with appendfsync always no reply at
        all that could show it. Where the log fails, the writes that wait for it are answered with MISCONF.
Rule 3: above HIGH_WATER unsent bytes no further command runs. Its input still gathers (a client that writes its whole
        pipeline before it reads must not deadlock), up to client-query-buffer-limit.
Rule 4: no connection keeps the loop longer than SLICE_MS at a time.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from select import POLLOUT, poll
from typing import TYPE_CHECKING, Any, cast

from ..protocol.encoder import encode, encode_within
from ..protocol.errors import ProtocolError
from ..protocol.parser import Parser
from ..protocol.reply import Encoded, ErrorReply, Replies
from .adds import SPELLINGS
from .client import Client
from .commands import PendingWrite
from .dispatch import Paused, execute, settled
from .workers import ReadJob

if TYPE_CHECKING:
    from .server import HeldBack, Server

log = logging.getLogger("recalld")

HIGH_WATER = 1 << 20
# What is given to a TLS transport at once: as much as the socket's own transport below it takes before it says enough.
TLS_PIECE = 1 << 16
SLICE_MS = 2
# A command of more words ends the slice: the clock is read at the beginning of a command only.
LONG_WORDS = 1024
FULL_READ_BYTES = 1 << 16
# The input that is held is added up once so much has come: after each read it would be a fifteenth of a PING.
MEASURE_BYTES = 1 << 16
# Replies that may wait for threads per connection: a pipeline of slow queries is bounded by this, not by its length. A
# connection begins with FIRST_WAITING; small replies double what it may have at once, large ones take it back to what
# HIGH_WATER holds of them. So sixteen replies of 20 MB are never in memory for one client.
MAX_WAITING = 16
FIRST_WAITING = 2
# An argument from which on it is put together in a thread: copying so much takes half a millisecond.
APART_BYTES = 1 << 20
# What may gather of somebody who has not said who he is.
STRANGERS_BYTES = 1 << 20
# The log position of a write that has not written yet: beyond any there is.
UNKNOWN = 1 << 62


@dataclass(slots=True)
class Waiting:
    """Bytes, or the future of a reply, that may not leave before the log has come to `position`.

    `writes`: it says that a write was done. `name` is the command's, `proto` the version that the client spoke when it
    came; 0: nobody wants the reply. `held_bytes` is what it counts for in the connection's `waiting_bytes`.
    """

    position: int
    payload: bytes | Future[Any]
    writes: bool
    name: str = ""
    proto: int = 0
    held_bytes: int = 0
    on_done: Callable[[Future[Any]], None] | None = None


class Connection(asyncio.Protocol):
    """The transport's side of a Client."""

    def __init__(self, server: Server, *, over_tls: bool = False) -> None:
        self.server = server
        # Over TLS, what the transport has not been given yet; there only while it takes no more.
        self.unwritten: deque[memoryview] | None = deque() if over_tls else None
        self.unwritten_bytes = 0
        self.client: Client = cast(Client, None)
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.parser = Parser(max_bulk_bytes=server.config["proto-max-bulk-len"], apart_bytes=APART_BYTES)
        self.joining = False  # a thread puts an argument together
        self.waiting: deque[Waiting] = deque()  # what may not leave yet, in order
        self.waiting_bytes = 0
        self.futures = 0
        self.may_wait = FIRST_WAITING  # how many futures at once
        self.blocked: Waiting | None = None  # a write that goes on in a thread: what follows it must see its effect
        self.unmeasured_bytes = 0
        self.taken = 0  # commands that wait for the end of the turn (adds.py), with replies that stand around them
        self.out: list[bytes] = []
        self.writes: list[int] = []
        self.running = False  # in `process`; what a command publishes to its own client comes behind its reply
        self.pushed: list[bytes] = []
        self.pushed_bytes = 0
        self.held: list[bytes] | None = None  # a command that is held back (dispatch.Paused)
        self.waits_in: HeldBack = {}  # where it is known that it is, then
        self.ticket = 0  # its place in the order in which such commands came
        self.rest: list[list[bytes]] = []  # what is left of one that is done in turns: commands, the last first
        self.writable = True  # with nothing in `unwritten`
        self.closing = False
        self.aborted = False
        self.gone = False  # and without a client
        self.refused: Future[None] | None = None  # over, when one that was not let in is gone
        self.closing_after_input = False  # no more comes, or is wanted: what has come runs, then we close
        self.stopping = False  # the server is: no further command runs
        self.scheduled = False
        self.soft_since = 0.0

    # -- the transport's events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER)
        refusal = self.server.admit(self)
        if refusal is not None:
            self.closing = True
            self.refused = self.server.loop.create_future()
            self.transport.write(encode(ErrorReply(refusal), 2))
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        if self.taken:
            self.server.adds.run()
        self._forget_waiting()
        client = self.client
        if client is not None:
            self.server.forget_client(client)
            client.discard_transaction()
        # A full collection is rare: so no cycle may hold it, nor it anything large, as long as a reply is being made.
        self.gone = True
        self.client = cast(Client, None)
        self.parser = Parser()
        self.held, self.rest = None, []
        if self.refused is not None and not self.refused.done():
            self.refused.set_result(None)

    def eof_received(self) -> bool:
        # A half-closed client (`printf ... | nc`) still gets the replies to what it sent. TLS has no such state.
        if self.taken:
            self.server.adds.run()
        self.finish()
        return self.unwritten is None

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        if self.soft_since:
            self.limit_unsent()  # which is less by now: a soft limit is for who stays over it
        if self.unwritten:
            self._write_pieces(self.unwritten)
        self._drain()
        self.process()  # before it is closed: commands may have waited for the room

    def data_received(self, data: bytes) -> None:
        if self.closing or self.closing_after_input:
            return
        self.parser.feed(data)
        size = len(data)
        self.server.stats.input_bytes += size
        if self.held is None or self not in self.waits_in:  # else it is told when to try again
            self.process()
        if size >= FULL_READ_BYTES and self.transport.is_reading():
            # Or uvloop goes on, up to 32 times, as long as reads are full, with a slice of commands for each.
            self.transport.pause_reading()
            self.server.loop.call_soon(self._read_on)
        self.unmeasured_bytes += size
        if self.unmeasured_bytes > MEASURE_BYTES:
            self.unmeasured_bytes = 0
            limit = self.server.config["client-query-buffer-limit"]
            if self.parser.buffered_bytes > (limit if self.client.authenticated else min(limit, STRANGERS_BYTES)):
                log.warning("Closing client that reached max query buffer length: %s", self.client.addr)
                self.server.stats.query_cut_offs += 1
                self.abort()

    # -- running commands

    def process(self) -> None:
        """Run what has arrived, until there is no more, a limit says wait, or the time slice is over."""
        client = self.client
        if self.scheduled or self.closing or self.stopping:
            return
        if client.close_after_reply:  # what came behind is not run
            self._close_when_done()
            return
        log_, adds = self.server.log, self.server.adds
        out: list[bytes] = []
        writes: list[int] = []  # places in `out` that answer a write
        if self.taken:
            out, writes, self.out, self.writes = self.out, self.writes, out, writes
        out_bytes = 0
        began = 0  # the clock that each command reads anyway is fine enough
        next_command = self.parser.next_command
        retried = self.held
        self.running = True
        while (
            self.blocked is None and self.writable and self.futures < self.may_wait and self.waiting_bytes < HIGH_WATER
        ):
            try:
                args = self.held or (self.rest.pop() if self.rest else next_command())
            except ProtocolError as error:
                if self.taken:
                    adds.run()
                    continue  # with what was given back; then it is raised again
                self.server.stats.error_codes["ERR"] += 1
                out.append(encode(ErrorReply(f"ERR Protocol error: {error}"), 2))
                client.close_after_reply = True
                break
            if args is None:
                if self.parser.pieces and not self.joining:
                    self._join()
                break
            if not args:  # much has been read and is no whole command: others have their turn
                self.scheduled = True
                self.server.loop.call_soon(self._resume)
                break
            self.held = None
            if args[0] in SPELLINGS and args is not retried and adds.take(self, args, out, writes):
                began = began or client.now
                if client.now - began > SLICE_MS:
                    self.scheduled = True
                    self.server.loop.call_soon(self._resume)
                    break
                continue
            if self.taken:
                self.rest.append(args)
                adds.run()
                args = self.rest.pop()  # this one, or what was given back
            before = log_.position
            try:
                reply = execute(client, args)
            except Paused as paused:
                self.held = args
                if args is not retried:
                    self.ticket = self.server.next_ticket()
                self.server.wait(self, paused.waiting)
                break
            proto = client.proto
            if client.reply_mode != "on" and not isinstance(reply, PendingWrite) and self._is_muted(reply):
                proto = 0
            if isinstance(reply, Future):
                if reply.done():
                    reply = settled(client, client.last_command, reply)
                else:
                    if out:
                        self._send(out, writes)
                        out, writes = [], []
                    self._wait_for(reply, proto, log_.position != before)
                    proto = 0
            if proto:
                data = encode(reply, proto) if type(reply) is not list else self._encoded(reply, proto)
                if data is None:
                    out = []
                    break
                if log_.position != before:
                    writes.append(len(out))
                out.append(data)
                out_bytes += len(data)
            if self.pushed:
                self._take_pushed(out)
            if client.close_after_reply:
                break
            if out_bytes > HIGH_WATER:
                self._send(out, writes)
                out, writes = [], []
                out_bytes = 0
            began = began or client.now
            if client.now - began > SLICE_MS or len(args) > LONG_WORDS:
                self.scheduled = True
                self.server.loop.call_soon(self._resume)
                break
        self.running = False
        if self.pushed:
            self._take_pushed(out)
        if self.taken:
            self.out, self.writes = out, writes
        elif out:
            self._send(out, writes)
        client.last_ms = client.now
        if client.close_after_reply or self.closing_after_input:
            self._close_when_done()

    def _take_pushed(self, out: list[bytes]) -> None:
        out += self.pushed
        self.pushed.clear()
        self.pushed_bytes = 0

    def settle(self) -> None:
        """What was taken (adds.py) is done, or given back."""
        if self.running:
            return  # who runs sends
        out, writes, self.out, self.writes = self.out, self.writes, [], []
        if self.closing or self.transport.is_closing():
            return
        if out:
            self._send(out, writes)
        if self.rest and not self.scheduled:  # not here: another connection may be in the middle of its commands
            self.scheduled = True
            self.server.loop.call_soon(self._resume)
        if self.client.close_after_reply or self.closing_after_input:
            self._close_when_done()

    def _resume(self) -> None:
        self.scheduled = False
        self.process()

    def _read_on(self) -> None:
        if not (self.stopping or self.transport.is_closing()):
            self.transport.resume_reading()

    def _join(self) -> None:
        pieces = self.parser.pieces

        def work() -> bytes:
            whole = b"".join(pieces)
            while len(pieces) > 1:  # until `put` it waits for one
                pieces.pop()
            return whole

        def put(done: Future[bytes]) -> None:
            self.joining = False
            if done.cancelled() or self.closing:
                return
            if done.exception() is not None:
                log.error("Closing client %s: no memory for an argument of its command", self.client.addr)
                self.abort()
            else:
                self.client.has_long_words = True
                self.parser.put(done.result())
                self.process()

        self.joining = True
        self.server.background(work).add_done_callback(put)

    def _is_muted(self, reply: Any) -> bool:
        """CLIENT REPLY OFF and SKIP: the command ran, its reply is dropped. SKIP lasts for one command."""
        client = self.client
        if client.reply_mode == "skip-next":  # set by this very command, which has no reply itself
            client.reply_mode = "skip"
            return True
        if client.reply_mode == "skip":
            client.reply_mode = "on"
        return not isinstance(reply, Replies)  # the pushes of SUBSCRIBE are no replies

    def _wait_for(self, reply: Future[Any], proto: int, writes: bool) -> None:
        entry = Waiting(self._needs(writes), reply, writes, self.client.last_command, proto)
        self.waiting.append(entry)
        self.futures += 1
        if isinstance(reply, PendingWrite):
            entry.position, entry.writes = UNKNOWN, True
            self.blocked = entry
        entry.on_done = partial(self._on_reply, entry)
        reply.add_done_callback(entry.on_done)

    def _on_reply(self, entry: Waiting, reply: Future[Any]) -> None:
        self.futures -= 1
        if self.blocked is not None and self.blocked.payload is reply:
            self.blocked.position = self.server.log.position  # its reply needs what it has just logged
            self.blocked = None
            if self.client is not None and self.client.reply_mode != "on" and self._is_muted(reply):
                entry.proto = 0  # only now: EXEC may contain CLIENT REPLY
        if self.closing:
            entry.on_done = None  # which refers to the entry
            if not reply.cancelled():
                reply.exception()  # seen: nobody is left to hear of it
            return
        still_waits = entry.on_done is not None  # one of a batch may have left with another's callback
        if still_waits and not reply.cancelled() and reply.exception() is None and isinstance(reply.result(), Encoded):
            entry.held_bytes = len(reply.result())
            self.waiting_bytes += entry.held_bytes
            self.may_wait = max(1, min(2 * self.may_wait, MAX_WAITING, HIGH_WATER // max(entry.held_bytes, 1)))
        self._drain()
        self.process()

    # -- replies

    def _needs(self, writes: bool) -> int:
        """The log position without which a reply computed now may not leave."""
        log_ = self.server.log
        if log_.failure is not None:
            # It may last, and readers need not wait for it. A write that did happen is refused by `refuse_writes`.
            return 0
        return log_.position if writes or log_.gates_reads else 0

    def _send(self, out: list[bytes], writes: list[int]) -> None:
        """Send replies, those at the places `writes` being of writes, as soon as the log allows it."""
        log_ = self.server.log
        data = out[0] if len(out) == 1 else b"".join(out)
        self.server.stats.output_bytes += len(data)
        if log_.position > log_.released and not log_.gates_reads:
            log_.flush()
        if not self.waiting and (log_.position <= log_.released or not (writes or log_.gates_reads)):
            self._write(data)
            if len(data) > HIGH_WATER:  # smaller ones stop the commands behind them before they come near a limit
                self.limit_unsent()
            return
        if writes:
            place = 0
            for at in [*writes, len(out)]:
                if at > place:
                    self._hold(b"".join(out[place:at]), writes=False)
                if at < len(out):
                    self._hold(out[at], writes=True)
                place = at + 1
        else:
            self._hold(data, writes=False)
        if log_.failure is not None:
            self.refuse_writes()
        else:
            self._drain()

    def _hold(self, data: bytes, *, writes: bool) -> None:
        log_ = self.server.log
        position = log_.position if writes and log_.failure is not None else self._needs(writes)
        self.waiting.append(Waiting(position, data, writes, held_bytes=len(data)))
        self.waiting_bytes += len(data)

    def refuse_writes(self) -> None:
        """The log failed: what waits for it and wrote is answered with an error, the rest may leave."""
        log_ = self.server.log
        if self.waiting_bytes >= HIGH_WATER:
            self.server.loop.call_soon(self.process)  # what came behind has room again
        for entry in self.waiting:
            if entry.position <= log_.released or entry.position == UNKNOWN:
                continue
            entry.position = 0
            if not entry.writes:
                continue
            refusal = encode(ErrorReply(f"MISCONF {log_.failure} This write may or may not be kept."), 2)
            if isinstance(entry.payload, Future):
                if not entry.proto:
                    refusal = b""
                entry.payload.add_done_callback(lambda done: done.cancelled() or done.exception())
                if not entry.payload.done() and entry.on_done is not None:
                    self.futures -= 1
                    entry.payload.remove_done_callback(entry.on_done)
                    self.server.loop.call_soon(self.process)  # there may have been too many
                entry.on_done = None
            entry.payload = refusal
            self.waiting_bytes += len(entry.payload) - entry.held_bytes
            entry.held_bytes = len(entry.payload)
        self._drain()

    def drain(self) -> None:
        """Send what may leave by now."""
        if self.gone:
            return
        was_full = self.waiting_bytes >= HIGH_WATER
        self._drain()
        if was_full:
            self.process()
        if self.client.close_after_reply or self.closing_after_input:
            self._close_when_done()

    def _drain(self) -> None:
        """Send what may leave, a megabyte at a time: what the socket does not take waits here."""
        while self.writable and not self.closing and not self.transport.is_closing():
            data = self._releasable()
            if not data:
                return
            self._write(data)
            if len(data) > HIGH_WATER:
                self.limit_unsent()

    def _releasable(self) -> bytes:
        """The next replies that may leave, about HIGH_WATER of them; they wait no longer."""
        waiting, log_ = self.waiting, self.server.log
        out: list[bytes] = []
        size = 0
        while waiting and size <= HIGH_WATER:
            entry = waiting[0]
            payload = entry.payload
            if entry.position > log_.released:
                log_.waiters.add(self)
                break
            if isinstance(payload, Future):
                if not payload.done():
                    break
                reply = settled(self.client, entry.name, payload)
                if entry.proto:
                    data = self._encoded(reply, entry.proto)
                    if data is None:
                        return b""
                    self.server.stats.output_bytes += len(data)
                    out.append(data)
                    size += len(data)
            else:
                out.append(payload)
                size += len(payload)
            self.waiting_bytes -= entry.held_bytes
            entry.on_done = None
            waiting.popleft()
        return out[0] if len(out) == 1 else b"".join(out)

    def push(self, message: Any) -> None:
        """Send a pub/sub message behind the replies queued so far; a reader too slow for its limit is cut off."""
        if self.closing:
            return
        data = encode(message, self.client.proto)
        if self.running:
            self.pushed.append(data)
            self.pushed_bytes += len(data)
        else:
            self._send([data], [])
        self.limit_unsent()

    def limit_unsent(self) -> None:
        """Cut off a client that leaves more unread than `client-output-buffer-limit` allows its kind."""
        if self.aborted:
            return
        subscribed = self.client.channels or self.client.patterns
        limits = self.server.config["client-output-buffer-limit"]
        hard, soft, soft_s = limits["pubsub" if subscribed else "normal"]
        # What a subscriber or monitor is told piles up however slowly it reads; replies wait here, and their queries
        # with them.
        told = subscribed or self.client.monitoring
        unsent = self.unsent_bytes() if told else self._written_bytes()
        if soft and unsent > soft:
            now = self.server.loop.time()
            self.soft_since = self.soft_since or now
            over = now - self.soft_since >= soft_s
        else:
            self.soft_since = 0.0
            over = False
        if over or (hard and unsent > hard):
            self.cut_off()

    def cut_off(self) -> None:
        """End a client that is over its client-output-buffer-limit."""
        if self.gone:
            return
        log.warning("Client %s closed for overcoming of output buffer limits.", self.client.addr)
        self.server.stats.output_cut_offs += 1
        self.abort()

    @property
    def most_reply_bytes(self) -> int:
        """The largest reply that this client may have, 0 for any."""
        hard: int = self.server.config["client-output-buffer-limit"]["normal"][0]
        return hard

    def _encoded(self, reply: Any, proto: int) -> bytes | None:
        """The bytes of a reply; None where there would be too many, and then the client is cut off."""
        data = encode_within(reply, proto, self.most_reply_bytes)
        if data is None:
            self.cut_off()
        return data

    def unsent_bytes(self) -> int:
        """What is held for the client to read."""
        return self._written_bytes() + self.waiting_bytes + self.pushed_bytes

    def _written_bytes(self) -> int:
        """What has left for the client and the socket has not taken."""
        return self.transport.get_write_buffer_size() + self.unwritten_bytes

    def _write(self, data: bytes) -> None:
        """Give it to the transport. Over TLS in pieces, and no more while that has enough: what it has encrypted and
        handed on to the socket's own transport is in no count of its own, so one large write would be in none."""
        if self.unwritten is None or (self.writable and len(data) <= TLS_PIECE):
            self.transport.write(data)
            return
        self.unwritten.append(memoryview(data))
        self.unwritten_bytes += len(data)
        self._write_pieces(self.unwritten)

    def _write_pieces(self, unwritten: deque[memoryview]) -> None:
        while unwritten and self.writable:
            data = unwritten.popleft()
            if len(data) > TLS_PIECE:
                unwritten.appendleft(data[TLS_PIECE:])
                data = data[:TLS_PIECE]
            self.unwritten_bytes -= len(data)
            self.transport.write(data)

    def fileno(self) -> int:
        sock = self.transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    # -- the end

    def _close_when_done(self) -> None:
        waits = self.waiting or self.taken or self.running or self.scheduled or self.joining or self.held is not None
        idle = not waits and self.writable
        if idle and not self.closing:
            self.closing = True
            self.transport.close()

    def finish(self, *, drop_held: bool = False) -> None:
        """Run what has come, send the replies, and close. What comes from now on is read and dropped.

        Not left unread: closing with unread bytes resets the connection, and with it replies that are under way.
        With `drop_held`, a command that CLIENT PAUSE holds back will not run, nor what is behind it. One that waits for
        a change of its memory will.
        """
        if drop_held and self.server.pause_until and self.held is not None and self in self.server.paused:
            self.held = None
            self.client.close_after_reply = True
        self.closing_after_input = True
        self._close_when_done()

    @property
    def is_flushed(self) -> bool:
        """Whether the peer has been sent all that it is to get. Over TLS it may yet owe us its goodbye."""
        if not self.closing or self._written_bytes():
            return False
        return self.unwritten is None or self._socket_takes_more()

    def _socket_takes_more(self) -> bool:
        """Whether nothing can be left below TLS either, where the last 64 KB are in no count."""
        number = self.fileno()
        if number < 0:  # it is closed
            return True
        looked = poll()
        looked.register(number, POLLOUT)
        return bool(looked.poll(0))

    def abort(self) -> None:
        """Close now, whatever is unsent."""
        self.aborted = True
        self._forget_waiting()
        self.transport.abort()

    def _forget_waiting(self) -> None:
        self.closing = True
        for entry in self.waiting:
            if isinstance(entry.payload, ReadJob):
                entry.payload.cancel()  # what has not begun does not
            entry.on_done = None  # which refers to the entry
        self.waiting.clear()
        self.waiting_bytes = 0
        self.pushed.clear()
        self.pushed_bytes = 0
        if self.unwritten:
            self.unwritten.clear()
        self.unwritten_bytes = 0
