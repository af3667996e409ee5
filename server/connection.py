"""One connection: bytes in, replies out, in order, with bounded buffers.

Rule 1: commands of one connection run in the order they came, and so do its replies leave, whichever is ready first.
Rule 2: no reply leaves before the log has what it depends on (`Log.released`).
Rule 3: above HIGH_WATER unsent bytes no further command runs. Its input still gathers (a client that writes its whole
        pipeline before it reads must not deadlock), up to client-query-buffer-limit.
Rule 4: no connection keeps the loop longer than SLICE_S at a time.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections import deque
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, cast

from ..protocol.encoder import encode
from ..protocol.errors import ProtocolError
from ..protocol.parser import Parser
from ..protocol.reply import ErrorReply, Replies
from .client import Client
from .commands import PendingWrite
from .dispatch import Paused, execute, settled

if TYPE_CHECKING:
    from .server import Server

log = logging.getLogger("recalld")

HIGH_WATER = 1 << 20
SLICE_S = 0.002
# The input that is held is added up once so much has come: after each read it would be a fifteenth of a PING.
MEASURE_BYTES = 1 << 16
# Replies that may wait for threads per connection: a pipeline of slow queries is bounded by this, not by its length.
MAX_WAITING = 256
# The log position of a write that has not written yet: beyond any there is.
UNKNOWN = 1 << 62


@dataclass(slots=True)
class Waiting:
    """Bytes, or the future of a reply, that may not leave before the log has come to `position`.

    `name` is the command's, `proto` the version that the client spoke when it came; 0: nobody wants the reply.
    """

    position: int
    payload: bytes | Future[Any]
    name: str = ""
    proto: int = 0


class Connection(asyncio.Protocol):
    """The transport's side of a Client."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.client: Client = cast(Client, None)
        self.transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.parser = Parser(max_bulk_bytes=server.config["proto-max-bulk-len"])
        self.waiting: deque[Waiting] = deque()  # what may not leave yet, in order
        self.waiting_bytes = 0
        self.futures = 0
        self.blocked: Waiting | None = None  # a write that goes on in a thread: what follows it must see its effect
        self.unmeasured_bytes = 0
        self.running = False  # in `process`; what a command publishes to its own client comes behind its reply
        self.pushed: list[bytes] = []
        self.held: list[bytes] | None = None  # a command that CLIENT PAUSE holds back
        self.writable = True
        self.closing = False
        self.closing_after_input = False
        self.scheduled = False
        self.soft_since = 0.0

    # -- the transport's events

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=HIGH_WATER)
        refusal = self.server.admit(self)
        if refusal is not None:
            self.closing = True
            self.transport.write(encode(ErrorReply(refusal), 2))
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_waiting()
        if self.client is not None:
            self.server.forget_client(self.client)

    def eof_received(self) -> bool:
        # A half-closed client (`printf ... | nc`) still gets the replies to what it sent.
        self.closing_after_input = True
        self._close_when_done()
        return True

    def pause_writing(self) -> None:
        self.writable = False

    def resume_writing(self) -> None:
        self.writable = True
        self.process()

    def data_received(self, data: bytes) -> None:
        if self.closing:
            return
        self.parser.feed(data)
        size = len(data)
        self.server.stats.input_bytes += size
        self.process()
        self.unmeasured_bytes += size
        if self.unmeasured_bytes > MEASURE_BYTES:
            self.unmeasured_bytes = 0
            if self.parser.buffered_bytes > self.server.config["client-query-buffer-limit"]:
                log.warning("Closing client that reached max query buffer length: %s", self.client.addr)
                self.abort()

    # -- running commands

    def process(self) -> None:
        """Run what has arrived, until there is no more, a limit says wait, or the time slice is over."""
        if self.scheduled or self.closing:
            return
        client = self.client
        out: list[bytes] = []
        out_bytes = 0
        until = 0.0
        next_command = self.parser.next_command
        self.running = True
        while self.blocked is None and self.writable and self.futures < MAX_WAITING:
            try:
                args = self.held if self.held is not None else next_command()
            except ProtocolError as error:
                self.server.stats.error_codes["ERR"] += 1
                out.append(encode(ErrorReply(f"ERR Protocol error: {error}"), 2))
                client.close_after_reply = True
                break
            if args is None:
                break
            self.held = None
            try:
                reply = execute(client, args)
            except Paused:
                self.held = args
                self.server.paused_connections.add(self)
                break
            proto = client.proto
            if client.reply_mode != "on" and self._is_muted(reply):
                proto = 0
            if isinstance(reply, Future):
                if reply.done():
                    reply = settled(client, client.last_command, reply)
                else:
                    if out:
                        self._send(b"".join(out))
                        out.clear()
                    self._wait_for(reply, proto)
                    proto = 0
            if proto:
                data = encode(reply, proto)
                out.append(data)
                out_bytes += len(data)
            if self.pushed:
                out += self.pushed
                self.pushed.clear()
            if client.close_after_reply:
                break
            if out_bytes > HIGH_WATER:
                self._send(b"".join(out))
                out.clear()
                out_bytes = 0
            now = perf_counter()
            if not until:
                until = now + SLICE_S
            elif now > until:
                self.scheduled = True
                self.server.loop.call_soon(self._resume)
                break
        self.running = False
        if out:
            self._send(out[0] if len(out) == 1 else b"".join(out))
        client.last_ms = client.now
        if client.close_after_reply or self.closing_after_input:
            self._close_when_done()

    def _resume(self) -> None:
        self.scheduled = False
        self.process()

    def _is_muted(self, reply: Any) -> bool:
        """CLIENT REPLY OFF and SKIP: the command ran, its reply is dropped. SKIP lasts for one command."""
        client = self.client
        if client.reply_mode == "skip-next":  # set by this very command, which has no reply itself
            client.reply_mode = "skip"
            return True
        if client.reply_mode == "skip":
            client.reply_mode = "on"
        return not isinstance(reply, Replies)  # the pushes of SUBSCRIBE are no replies

    def _wait_for(self, reply: Future[Any], proto: int) -> None:
        entry = Waiting(self.server.log.position, reply, self.client.last_command, proto)
        self.waiting.append(entry)
        self.futures += 1
        if isinstance(reply, PendingWrite):
            entry.position = UNKNOWN
            self.blocked = entry
        reply.add_done_callback(self._on_reply)

    def _on_reply(self, reply: Future[Any]) -> None:
        self.futures -= 1
        if self.blocked is not None and self.blocked.payload is reply:
            self.blocked.position = self.server.log.position  # its reply needs what it has just logged
            self.blocked = None
        if self.closing:
            if not reply.cancelled():
                reply.exception()  # seen: nobody is left to hear of it
            return
        self._drain()
        self.process()

    # -- replies

    def _send(self, data: bytes) -> None:
        server = self.server
        server.stats.output_bytes += len(data)
        log_ = server.log
        if not self.waiting and log_.position <= log_.released:
            self.transport.write(data)
            return
        self.waiting.append(Waiting(log_.position, data))
        self.waiting_bytes += len(data)
        if log_.position > log_.released:
            log_.waiters.add(self)

    def drain(self) -> None:
        """Send what may leave by now."""
        self._drain()
        if self.client.close_after_reply or self.closing_after_input:
            self._close_when_done()

    def _drain(self) -> None:
        waiting = self.waiting
        if not waiting:
            return
        log_ = self.server.log
        out: list[bytes] = []
        while waiting:
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
                    out.append(encode(reply, entry.proto))
            else:
                self.waiting_bytes -= len(payload)
                out.append(payload)
            waiting.popleft()
        if out and not self.transport.is_closing():
            self.transport.write(b"".join(out))

    def push(self, message: Any) -> None:
        """Send a pub/sub message behind the replies queued so far; a reader too slow for its limit is cut off."""
        if self.closing:
            return
        data = encode(message, self.client.proto)
        if self.running:
            self.pushed.append(data)
        else:
            self._send(data)
        hard, soft, soft_s = self.server.config["client-output-buffer-limit"]["pubsub"]
        unsent = self.unsent_bytes()
        if soft and unsent > soft:
            now = self.server.loop.time()
            self.soft_since = self.soft_since or now
            over = now - self.soft_since >= soft_s
        else:
            self.soft_since = 0.0
            over = False
        if over or (hard and unsent > hard):
            log.warning("Client %s closed for overcoming of output buffer limits.", self.client.addr)
            self.abort()

    def unsent_bytes(self) -> int:
        """What is held for the client to read."""
        return self.transport.get_write_buffer_size() + self.waiting_bytes

    def fileno(self) -> int:
        sock = self.transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    # -- the end

    def _close_when_done(self) -> None:
        idle = not self.waiting and not self.scheduled and self.held is None and self.writable
        if idle and not self.closing:
            self.closing = True
            self.transport.close()

    def abort(self) -> None:
        """Close now, whatever is unsent."""
        self._forget_waiting()
        self.transport.abort()

    def _forget_waiting(self) -> None:
        self.closing = True
        self.waiting.clear()
        self.waiting_bytes = 0
