"""The server: owns the state, the log, the clients and the threads, and runs the loop."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import uvloop

from ..index import parallel
from . import info
from .aof import Log
from .audit import Audit
from .backfill import Backfill
from .client import Client
from .config import Config
from .connection import Connection
from .embedded import live_digests
from .embedding import Embedding
from .files import Files
from .incr import LogDamaged
from .inference import Inference
from .keyspace import Keyspace
from .log import VERBOSE
from .log_load import open_log
from .pubsub import PubSub
from .rewrite import Rewriter
from .stats import Stats
from .workers import Workers

if TYPE_CHECKING:
    from .commands import Command
    from .entries import Entry

log = logging.getLogger("recalld")


def wall_clock() -> int:
    """Unix time in milliseconds."""
    return time.time_ns() // 1_000_000


class Server:
    """One server. `clock` gives unix milliseconds and `files` are the disk; tests pass their own."""

    def __init__(self, config: Config, clock: Callable[[], int] = wall_clock, files: Files | None = None) -> None:
        self.config = config
        self.clock = clock
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self.started_ms = clock()
        self.startup_bytes = info.resident_bytes()  # before anything is loaded
        self.keyspace = Keyspace()
        self.files = Files() if files is None else files
        self.log = Log()
        self.rewriter: Rewriter | None = None
        self.pubsub = PubSub()
        self.stats = Stats()
        threads = config["mem-threads"] or os.cpu_count() or 1
        self.executor = ThreadPoolExecutor(threads, "scan")
        parallel.use(threads)
        self.workers = Workers(self)
        self.embedding = Embedding(config, self.loop, config["dir"] if config["appendonly"] else None, clock)
        self.backfill = Backfill(self)
        self.audit = Audit(config, self._owner)
        self.inference = Inference(config, self.loop)
        self.clients: dict[int, Client] = {}
        self.next_client_id = 1
        self.ports: list[tuple[str, int]] = []
        self.watchers: dict[bytes, set[Client]] = {}
        self.group: list[Entry] | None = None  # what EXEC has written so far
        self.pause_until = 0  # CLIENT PAUSE, unix ms
        self.pause_writes_only = False
        self.paused_connections: set[Connection] = set()
        self.loading = False
        self._listeners: list[asyncio.Server] = []
        self._stopping: asyncio.Event = asyncio.Event()
        self._cron: asyncio.Task[None] | None = None
        self._backfilling: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.keyspace.touched = self._touched
        self.keyspace.announce = self.announce

    # -- writing

    def commit(self, entry: Entry) -> None:
        """Apply a settled entry and log it."""
        self.keyspace.apply(entry)
        if self.group is not None:
            self.group.append(entry)
        else:
            self.log.append([entry])

    def commit_all(self, group: list[Entry]) -> None:
        """Apply and log entries that belong together."""
        for entry in group:
            self.keyspace.apply(entry)
        if self.group is not None:
            self.group.extend(group)
        elif group:
            self.log.append(group)

    def _owner(self, key: bytes) -> str | None:
        """Who created the memory at `key`."""
        memory = self.keyspace.memories.get(key)
        return None if memory is None else memory.settings.owner

    async def _forget_embeddings(self) -> None:
        """No file is to hold a vector of a text that no record has any more."""
        live = live_digests(self.keyspace, self.clock())
        await self.background(lambda: self.embedding.forget(live))

    def announce(self, key: bytes, event: bytes) -> None:
        """Publish what happened to a record of the memory at `key`."""
        if self.pubsub.active:
            self.pubsub.publish(b"__mem__:" + key, event)

    def _touched(self, key: bytes) -> None:
        for client in self.watchers.get(key, ()):
            client.dirty = True

    def background(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Run `work` in a worker thread."""
        return self.loop.run_in_executor(self.executor, work)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Run a coroutine beside the connections; it is kept until it ends."""
        task = self.loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    # -- clients

    def admit(self, connection: Connection) -> str | None:
        """Make a session for a new connection; the error line where it is refused."""
        transport = connection.transport
        peer = transport.get_extra_info("peername") or ("?", 0)
        here = transport.get_extra_info("sockname") or ("?", 0)
        client = Client(self, self.next_client_id, _address(peer), _address(here), self.clock())
        self.next_client_id += 1
        client.connection = connection
        connection.client = client
        self.stats.connections += 1
        if len(self.clients) >= self.config["maxclients"]:
            self.stats.rejected_connections += 1
            return "ERR max number of clients reached"
        if not self.config["requirepass"]:
            loopback = str(peer[0]).startswith("127.") or peer[0] in ("::1", "::ffff:127.0.0.1")
            if self.config["protected-mode"] and not loopback:
                self.stats.rejected_connections += 1
                return (
                    "DENIED recalld is running in protected mode because protected mode is enabled and no password is"
                    " set for the default user. In this mode connections are only accepted from the loopback interface."
                    " To accept others, set a password (requirepass) or turn protected-mode off."
                )
        else:
            client.authenticated = False
            connection.parser.authenticated = False
        sock: socket.socket | None = transport.get_extra_info("socket")
        keepalive = self.config["tcp-keepalive"]
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if keepalive:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, keepalive)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(1, keepalive // 3))
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
        self.clients[client.id] = client
        log.log(VERBOSE, "Accepted %s", client.addr)
        return None

    def forget_client(self, client: Client) -> None:
        """A connection is gone."""
        if self.clients.pop(client.id, None) is not None:
            log.log(VERBOSE, "Client closed connection %s", client.addr)
        self.pubsub.drop(client)
        self.unwatch(client)
        self.log.waiters.discard(client.connection)
        self.paused_connections.discard(client.connection)

    def watch(self, client: Client, key: bytes) -> None:
        client.watched.add(key)
        self.watchers.setdefault(key, set()).add(client)

    def unwatch(self, client: Client) -> None:
        for key in client.watched:
            watching = self.watchers[key]
            watching.discard(client)
            if not watching:
                del self.watchers[key]
        client.watched.clear()
        client.dirty = False

    # -- CLIENT PAUSE

    def pause(self, now: int, timeout_ms: int, *, writes_only: bool) -> None:
        """Hold commands back. A pause that is on may become longer and stricter by it, never the opposite."""
        on = now < self.pause_until
        self.pause_writes_only = writes_only and (self.pause_writes_only or not on)
        self.pause_until = max(self.pause_until, now + timeout_ms)

    def holds(self, client: Client, entry: Command) -> bool:
        """Whether the pause holds this command back."""
        if client.now >= self.pause_until:
            self.unpause()
            return False
        if entry.name in ("client|unpause", "client|pause"):
            return False  # or nobody could end the pause
        return not self.pause_writes_only or client.would_write(entry) or entry.name == "publish"

    def unpause(self) -> None:
        self.pause_until = 0
        connections, self.paused_connections = self.paused_connections, set()
        for connection in connections:
            self.loop.call_soon(connection.process)

    # -- life

    async def start(self) -> None:
        """Load the log and listen. Raises LogDamaged, OSError."""
        config = self.config
        if config["appendonly"]:
            gc.disable()  # loading makes millions of objects and no garbage
            try:
                self.log = file_log = open_log(
                    self.files,
                    config["dir"],
                    os.path.join(config["dir"], config["appenddirname"]),
                    config["appendfilename"],
                    self.keyspace,
                    self.loop,
                    policy=config["appendfsync"],
                    cut_tail=config["aof-load-truncated"],
                )
            finally:
                gc.enable()
            self.rewriter = Rewriter(self, file_log)
            self.rewriter.then = self._forget_embeddings
            config.on_change("appendfsync", file_log.set_policy)
        self.audit.open()
        self.keyspace.compactable = self.workers.compact
        config.on_change("proto-max-bulk-len", self._set_max_bulk)
        port = config["port"]
        for host in config["bind"]:
            optional = host.startswith("-")
            try:
                listener = await self.loop.create_server(
                    lambda: Connection(self), _host(host[optional:]), port, backlog=config["tcp-backlog"]
                )
            except OSError as error:
                # ::1 is in the default list and missing on many machines; any address that cannot be had at all is
                # said, and fatal only where the list asked for it by name.
                if optional or (host == "::1" and self._listeners):
                    log.info("Not listening on %s: %s", host, error)
                    continue
                raise
            for sock in listener.sockets:
                address = sock.getsockname()
                self.ports.append((address[0], address[1]))
                port = port or address[1]
            self._listeners.append(listener)
        gc.collect()
        gc.freeze()
        # Records are not cyclic garbage; a full collection over millions of them is a pause for nothing.
        gc.set_threshold(50_000, 20, 1_000)
        self._cron = self.loop.create_task(self._run_cron())
        self.backfill.look()
        self._backfilling = self.loop.create_task(self.backfill.run())
        for address in self.ports:
            log.warning("Ready to accept connections tcp on %s:%d", *address[:2])

    async def _run_cron(self) -> None:
        tick = 0
        while True:
            await asyncio.sleep(0.1)
            tick += 1
            now = self.clock()
            try:
                # A bounded slice each time: the reads see exact deadlines anyway.
                self.keyspace.expire(now, limit=2000)
                if self.pause_until and now >= self.pause_until:
                    self.unpause()
                if tick % 10 == 0:
                    self.log.every_second()
                    if self.rewriter is not None:
                        self.rewriter.start_if_grown()
                    self._close_idle(now)
                    self.stats.sample(now)
            except Exception:
                log.exception("the periodic task failed; it goes on")

    def _close_idle(self, now: int) -> None:
        timeout_ms = self.config["timeout"] * 1000
        if not timeout_ms:
            return
        for client in list(self.clients.values()):
            subscribed = client.channels or client.patterns
            if now - client.last_ms > timeout_ms and not subscribed and not client.connection.waiting:
                client.connection.abort()

    def _set_max_bulk(self, value: int) -> None:
        for client in self.clients.values():
            client.connection.parser.max_bulk_bytes = value

    def request_stop(self) -> None:
        self._stopping.set()

    async def run(self) -> None:
        """Serve until SIGTERM or SIGINT."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(signum, self._on_signal, signum)
        await self._stopping.wait()
        await self.stop()

    def _on_signal(self, signum: int) -> None:
        log.warning("Received %s, shutting down", signal.Signals(signum).name)
        self.request_stop()

    async def stop(self) -> None:
        """Stop listening, close the log, drop the clients."""
        for listener in self._listeners:
            listener.close()
        if self._cron is not None:
            self._cron.cancel()
        for client in self.clients.values():
            client.connection.transport.pause_reading()
            client.connection.stopping = True
        if self._backfilling is not None:
            self._backfilling.cancel()
        await self.embedding.close()
        self.audit.close()
        await self.inference.close()
        await self.log.close()
        for client in list(self.clients.values()):
            client.connection.drain()
            client.connection.transport.close()
        self.executor.shutdown(wait=False, cancel_futures=True)
        log.warning("recalld is now ready to exit, bye bye...")


def _address(peer: tuple[Any, ...] | str) -> str:
    if isinstance(peer, str):
        return peer
    return f"[{peer[0]}]:{peer[1]}" if ":" in str(peer[0]) else f"{peer[0]}:{peer[1]}"


def _host(word: str) -> str:
    return {"*": "0.0.0.0", "::*": "::"}.get(word, word)


async def _serve(config: Config) -> int:
    server = Server(config)
    try:
        await server.start()
    except (LogDamaged, OSError) as error:
        log.error("%s", error)
        await server.log.close()
        return 1
    await server.run()
    return 0


def run(config: Config) -> int:
    """Run a server to its end; the process's exit code."""
    from . import command_modules  # noqa: F401 - fills the command table

    # A thread that scans hands the interpreter over after so long when the loop asks for it; Python's own 5 ms would
    # be a PING's.
    sys.setswitchinterval(0.0005)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config))
