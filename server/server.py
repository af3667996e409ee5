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
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import uvloop

from ..index import parallel
from ..index.memory import Memory, free, size
from . import info, open_files
from .acl_file import AclFile, load_users
from .acl_users import Acl
from .adds import Adds
from .aof import Log
from .audit import Audit
from .backfill import Backfill
from .client import Client
from .config import Config, ConfigError, host_of
from .connection import Connection
from .embedded import live_digests
from .embedding import Embedding
from .eviction import Eviction
from .files import Files
from .incr import LogDamaged, framed
from .inference import Inference
from .keyspace import Keyspace
from .log import VERBOSE
from .log import reopen as reopen_log
from .log_load import open_log
from .metrics import Metrics
from .notifications import Notifications
from .observer import Observer
from .pubsub import PubSub
from .rewrite import Rewriter
from .sd_notify import Notifier
from .stats import Stats
from .tls import Tls
from .transactions import Transaction, Transactions
from .trim import Trimmer, share_heap, trim
from .workers import Workers

if TYPE_CHECKING:
    from .commands import Command
    from .console import Console
    from .entries import Entry, PutNew

log = logging.getLogger("recalld")

_TICK_S = 0.1  # of the periodic task
# So long commands that were held back run in a turn of the loop, the last of them to its end.
_RESUMED_S = 0.002
# Connections that hold a command back.
HeldBack = dict["Connection", None]
# So many records, or things of any kind, are freed on the loop, in about a millisecond; and so many things by one job
# of a thread.
_FREED_HERE, _FREED_AT_ONCE = 1000, 1000
# How often a shutdown looks who has all replies. Nobody is there to be slowed down by it.
_DRAIN_LOOK_S = 0.02


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
        self.notifications = Notifications(config, self.pubsub)
        self.stats = Stats()
        self.trimmer = Trimmer()
        self.eviction = Eviction(self)
        self.observer = Observer(config, self.stats)
        threads = config["mem-threads"] or os.cpu_count() or 1
        self.executor = ThreadPoolExecutor(threads, "scan")
        parallel.use(threads)
        self.workers = Workers(self)
        self.adds = Adds(self)
        self.embedding = Embedding(config, self.loop, config["dir"] if config["appendonly"] else None, clock)
        self.backfill = Backfill(self)
        self.audit = Audit(config, self._owner)
        self.inference = Inference(config, self.loop)
        self.clients: dict[int, Client] = {}
        self.acl = Acl(config, self.clients)
        self.next_client_id = 1
        self.acl_file: AclFile | None = None
        self.ports: list[tuple[str, int]] = []
        self.tls_ports: list[tuple[str, int]] = []
        self.tls: Tls | None = None
        self.metrics: Metrics | None = None
        self.console: Console | None = None
        self.notifier = Notifier()
        self.watchers: dict[bytes, set[Client]] = {}
        self.changing: list[bytes] = []  # keys, one for each change that is made aside
        self._released: list[Memory | list[Any]] = []
        self._freeing = False
        self.transactions = Transactions(self)
        self.transaction: Transaction | None = None  # of which what is committed now is a part
        self.pause_until = 0  # CLIENT PAUSE, unix ms
        self.pause_writes_only = False
        self.paused: HeldBack = {}  # by it, or by a change that is made aside
        self._resuming: deque[Connection] = deque()
        self._tickets = 0
        self.loading = False
        self._listeners: list[asyncio.Server] = []
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()  # nobody is waited for any more
        self._cron: asyncio.Task[None] | None = None
        self._backfilling: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.keyspace.touched = self._touched
        self.keyspace.flushed = self._flushed
        self.keyspace.released = self.release
        self.keyspace.announce = self.announce
        self.keyspace.key_expired = self._key_expired
        self.keyspace.held = self.transactions.holds

    # -- writing

    def commit(self, entry: Entry) -> None:
        """Apply a settled entry and log it."""
        self.stats.changes += 1
        self.keyspace.apply(entry)
        if self.notifications.on:
            self.notifications.applied(entry)
        if self.transaction is not None:
            self.transaction.group.append(entry)
        else:
            self.log.append([entry])

    def commit_all(self, group: list[Entry]) -> None:
        """Apply and log entries that belong together."""
        self.stats.changes += len(group)
        self.workers.written(len(group))
        self.keyspace.apply_all(group)
        for entry in group if self.notifications.on else ():
            self.notifications.applied(entry)
        if self.transaction is not None:
            self.transaction.group.extend(group)
        elif group:
            self.log.append(group)

    def commit_new(self, put: PutNew, *, together: bool = False) -> None:
        """Apply new records and log them, each by itself or all together."""
        self.stats.changes += len(put.ids)
        self.workers.written(len(put.ids))
        self.keyspace.apply(put)
        self.log.append([], framed(put.packed, len(put.ids)) if together else put.packed)

    def commit_made(
        self, key: bytes, twin: Memory, group: Sequence[Entry | PutNew], count: int, encoded: bytes, now: int
    ) -> None:
        """Commit `count` entries that were applied to a copy of the memory at `key` (aside.py); `group` is those that
        may be about more than records."""
        self.stats.changes += count
        self.workers.written(count)
        self.keyspace.replace(key, twin, now)
        if self.notifications.on:
            for entry in group:
                self.notifications.applied(entry)
        if self.transaction is not None:
            self.transaction.add_made(count, encoded)
        else:
            self.log.append([], [encoded])

    def _owner(self, key: bytes) -> str | None:
        """Who created the memory at `key`."""
        memory = self.keyspace.memories.get(key)
        return None if memory is None else memory.settings.owner

    async def _forget_embeddings(self) -> None:
        """No file is to hold a vector of a text that no record has any more."""
        if self._stopping.is_set():  # after the next rewrite
            return
        live = live_digests(self.keyspace, self.clock())
        await self.background(lambda: self.embedding.forget(live))

    def announce(self, key: bytes, event: bytes) -> None:
        """Publish what happened to a record of the memory at `key`."""
        if self.pubsub.active:
            self.pubsub.publish(b"__mem__:" + key, event)
            if self.notifications.on:
                self.notifications.record(key, event)

    def _key_expired(self, key: bytes) -> None:
        if self.notifications.on:
            self.notifications.notify("x", b"expired", key)

    def _touched(self, key: bytes) -> None:
        if self.eviction.limit:
            self.eviction.touched(key)
        for client in self.watchers.get(key, ()):
            client.dirty = True

    def _flushed(self, keys: Mapping[bytes, object]) -> None:
        for key in keys if self.eviction.limit else keys.keys() & self.watchers.keys():
            self._touched(key)

    def release(self, things: list[Memory | list[Any]]) -> None:
        """Let go of these, the last references to them: after this turn, large ones in a thread."""
        if not self._released:
            self.loop.call_soon(self._free)
        self._released += things

    def _free(self) -> None:
        things = self._released
        large = len(things) > _FREED_HERE or any(size(thing) > _FREED_HERE for thing in things)
        if not large or self._stopping.is_set():
            things.clear()
        elif not self._freeing:
            self._freeing = True
            self.spawn(self._free_all())

    async def _free_all(self) -> None:
        """A part at a time: queries want the threads too."""
        things = self._released
        while things:
            some, things[-_FREED_AT_ONCE:] = things[-_FREED_AT_ONCE:], []
            await self.background(partial(free, some))
        self._freeing = False

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
        client.log_out()
        if self.acl.default.nopass and self.config["protected-mode"] and not _is_loopback(peer):
            self.stats.rejected_connections += 1
            return (
                "DENIED recalld is running in protected mode because protected mode is enabled and no password is set"
                " for the default user. In this mode connections are only accepted from the loopback interface. To"
                " accept others, set a password (requirepass) or turn protected-mode off."
            )
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
        self.pubsub.leaving.add(client)
        self._unsubscribe_gone(client)
        self.observer.forget(client)
        self.unwatch(client)
        self.log.waiters.discard(client.connection)
        client.connection.waits_in.pop(client.connection, None)

    def _unsubscribe_gone(self, client: Client) -> None:
        """Take its names off in turns; it hears nothing meanwhile, though PUBSUB still counts it."""
        if self.pubsub.drop_some(client):
            self.pubsub.leaving.discard(client)
        else:
            self.loop.call_soon(self._unsubscribe_gone, client)

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
        self.resume(self.paused)

    # -- commands that are held back

    def holding(self, client: Client, entry: Command, words: list[bytes]) -> HeldBack | None:
        """Where a command waits that writes to a memory that is being changed aside, or is about what a transaction is;
        None where nothing holds it back."""
        if self.transactions.matters:
            waiting = self.transactions.holding(client, entry, words)
            if waiting is not None:
                return waiting
        if not (self.changing and client.would_write(entry)):
            return None
        written = client.multi.written if entry.name == "exec" and client.multi else entry.keys_in(words)
        return self.paused if any(key in written for key in self.changing) else None

    def next_ticket(self) -> int:
        self._tickets += 1
        return self._tickets

    def wait(self, connection: Connection, waiting: HeldBack) -> None:
        """The connection holds a command back until those that are `waiting` are resumed."""
        connection.waits_in = waiting
        waiting[connection] = None

    def resume(self, waiting: HeldBack) -> None:
        """Let the commands that wait there try again, in the order in which they came first: whoever has to wait again
        is not passed by those who came later."""
        if not waiting:
            return
        if not self._resuming:
            self.loop.call_soon(self._resume_some)
        self._resuming.extend(sorted(waiting, key=lambda connection: connection.ticket))
        waiting.clear()

    def _resume_some(self) -> None:
        ends = time.perf_counter() + _RESUMED_S
        try:
            while self._resuming:
                self._resuming.popleft().process()
                if time.perf_counter() > ends:
                    break
        finally:
            if self._resuming:  # the rest after others
                self.loop.call_soon(self._resume_some)
            else:
                self.transactions.resumed()

    @property
    def is_resuming(self) -> bool:
        return bool(self._resuming)

    def blocked_clients(self) -> int:
        """How many clients have a command that is held back."""
        return sum(client.connection.held is not None for client in self.clients.values())

    # -- life

    async def start(self) -> None:
        """Load the log and listen. Raises LogDamaged, OSError, ConfigError."""
        config = self.config
        if config["tls-port"]:
            self.tls = Tls(self)
        if config["metrics-port"]:
            self.metrics = Metrics(self)
        if config["console-port"]:
            self.console = console_class()(self)
        self.acl_file = load_users(config, self.acl)
        self.notifier.status("Loading the log")
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
            file_log.timed = lambda event, ms: self.observer.latency.saw(event, ms, self.clock())
        self.audit.open()
        self.keyspace.compactable = self.workers.compact
        self.eviction.start()
        config.on_change("proto-max-bulk-len", self._set_max_bulk)
        if config["port"] or self.tls is None:
            self.ports = await self._listen(config["port"], self._listen_plain)
        if self.tls is not None:
            self.tls_ports = await self._listen(config["tls-port"], self.tls.listen)
        if self.metrics is not None:
            await self.metrics.start()
        if self.console is not None:
            await self.console.start()
        gc.collect()
        gc.freeze()
        # Records are not cyclic garbage; a full collection over millions of them is a pause for nothing. The others are
        # kept small: 50 000 new objects take 5 milliseconds, in whichever thread, and nothing else runs.
        gc.set_threshold(5_000, 10, 20_000)
        self._cron = self.loop.create_task(self._run_cron())
        self.backfill.look()
        self._backfilling = self.loop.create_task(self.backfill.run())

    async def _listen(
        self, port: int, listen: Callable[[str, int], Awaitable[list[tuple[str, int]]]]
    ) -> list[tuple[str, int]]:
        """Listen on every address of `bind`; where that is. Raises OSError."""
        where: list[tuple[str, int]] = []
        for host in self.config["bind"]:
            optional = host.startswith("-")
            try:
                where += await listen(host_of(host), port or (where[0][1] if where else 0))
            except OSError as error:
                # ::1 is in the default list and missing on many machines; any address that cannot be had at all is
                # said, and fatal only where the list asked for it by name.
                if optional or (host == "::1" and where):
                    log.info("Not listening on %s: %s", host, error)
                    continue
                raise
        return where

    async def _listen_plain(self, host: str, port: int) -> list[tuple[str, int]]:
        backlog = self.config["tcp-backlog"]
        listener = await self.loop.create_server(lambda: Connection(self), host, port, backlog=backlog)
        self._listeners.append(listener)
        return [sock.getsockname()[:2] for sock in listener.sockets]

    async def _run_cron(self) -> None:
        tick = 0
        latency = self.observer.latency
        while True:
            asleep = time.monotonic()
            await asyncio.sleep(_TICK_S)
            began = time.monotonic()
            tick += 1
            now = self.clock()
            try:
                latency.saw("event-loop", (began - asleep - _TICK_S) * 1000, now)
                # A bounded slice each time: the reads see exact deadlines anyway.
                self.keyspace.expire(now, limit=2000)
                self.eviction.sweep(now)
                latency.saw("expire-cycle", (time.monotonic() - began) * 1000, now)
                self.observer.times.fold()
                if self.pause_until and now >= self.pause_until:
                    self.unpause()
                if tick % 10 == 0:
                    self.log.every_second()
                    if self.rewriter is not None:
                        self.rewriter.start_if_grown()
                    self._close_idle(now)
                    self._close_slow()
                    self.stats.sample(now)
                    if self.trimmer.is_due(self.stats.commands, info.resident_bytes()):
                        self.background(trim)
            except Exception:
                log.exception("the periodic task failed; it goes on")

    def _close_idle(self, now: int) -> None:
        timeout_ms = self.config["timeout"] * 1000
        if not timeout_ms:
            return
        for client in list(self.clients.values()):
            told = client.channels or client.patterns or client.monitoring
            waits = client.connection.waiting or client.connection.held is not None
            if now - client.last_ms > timeout_ms and not told and not waits:
                client.connection.abort()

    def _close_slow(self) -> None:
        """A soft limit of client-output-buffer-limit ends a client also while nothing more is sent to it."""
        for client in list(self.clients.values()):
            if client.connection.unsent_bytes() or client.connection.soft_since:
                client.connection.limit_unsent()

    def _set_max_bulk(self, value: int) -> None:
        for client in self.clients.values():
            client.connection.parser.max_bulk_bytes = value

    def request_stop(self, *, hurry: bool = False) -> None:
        """End `run`; with `hurry` without waiting for clients."""
        if hurry:
            self._hurry.set()
        self._stopping.set()

    async def run(self) -> None:
        """Serve until SIGTERM, SIGINT or SHUTDOWN."""
        for signum in (signal.SIGTERM, signal.SIGINT):
            self.loop.add_signal_handler(signum, self._on_signal, signum)
        self.loop.add_signal_handler(signal.SIGHUP, self.reload)
        # Only now: whoever reads this may send a signal at once.
        for kind, ports in (("tcp", self.ports), ("tls", self.tls_ports)):
            for address in ports:
                log.warning("Ready to accept connections %s on %s:%d", kind, *address)
        self.notifier.ready("Ready to accept connections")
        self.notifier.start_watchdog(self.loop)
        await self._stopping.wait()
        await self.stop()

    def _on_signal(self, signum: int) -> None:
        name = signal.Signals(signum).name
        if self._hurry.is_set():  # what hangs now is the disk
            log.warning("Received %s again, exiting at once: what the disk has not taken is lost", name)
            os._exit(1)
        if self._stopping.is_set():
            log.warning("Received %s again, not waiting for clients", name)
        else:
            log.warning("Received %s, shutting down", name)
        self.request_stop(hurry=self._stopping.is_set())

    def reload(self) -> None:
        """SIGHUP: open logfile and mem-audit-file again, and read the TLS files again."""
        if self._stopping.is_set():
            return
        self.notifier.reloading()
        log.info("Received SIGHUP, reopening log files%s", " and reloading TLS files" if self.tls is not None else "")
        reopen_log()
        self.audit.reopen()
        if self.tls is not None:
            self.tls.reload()
        self.notifier.ready("Ready to accept connections")

    async def stop(self) -> None:
        """Stop listening, let the clients have their replies, close the log, drop who is left."""
        self._stopping.set()
        self.notifier.stopping()
        for listener in self._listeners:
            listener.close()
        if self.tls is not None:
            self.tls.close()
        if self.metrics is not None:
            self.metrics.close()
        if self.console is not None:
            await self.console.close()
        await self._drain()
        if self._cron is not None:
            self._cron.cancel()
        for client in self.clients.values():
            client.connection.transport.pause_reading()
            client.connection.stopping = True
        if self._backfilling is not None:
            self._backfilling.cancel()
        await self.transactions.abandon()
        await self.embedding.close()
        self.audit.close()
        await self.inference.close()
        await self.log.close()
        for client in list(self.clients.values()):
            client.connection.drain()
            client.connection.transport.close()
        self.executor.shutdown(wait=False, cancel_futures=True)
        self.notifier.stop_watchdog()
        log.warning("recalld is now ready to exit, bye bye...")

    async def _drain(self) -> None:
        """Let what has arrived run and its replies leave, for `shutdown-timeout` seconds at most."""
        deadline = self.loop.time() + self.config["shutdown-timeout"]
        while True:
            for client in list(self.clients.values()):  # each time: the system may have had one ready
                client.connection.finish(drop_held=True)
            waiting = [client for client in self.clients.values() if not client.connection.is_flushed]
            left = deadline - self.loop.time()
            if not (waiting or self.transactions.under_way) or left <= 0 or self._hurry.is_set():
                break
            with suppress(TimeoutError):
                await asyncio.wait_for(self._hurry.wait(), min(left, _DRAIN_LOOK_S))
        if waiting:
            log.warning("%d clients did not take their replies in time and are cut off", len(waiting))


def console_class() -> type[Console]:
    """The console, whose packages are an extra; raises ConfigError where one is not installed."""
    try:
        from .console import Console
    except ImportError as error:
        raise ConfigError(
            f"console-port needs the package {error.name}: pip install 'recalld[console]', or set console-port 0"
        ) from None
    return Console


def _is_loopback(peer: tuple[Any, ...] | str) -> bool:
    return str(peer[0]).startswith("127.") or peer[0] in ("::1", "::ffff:127.0.0.1")


def _address(peer: tuple[Any, ...] | str) -> str:
    if isinstance(peer, str):
        return peer
    return f"[{peer[0]}]:{peer[1]}" if ":" in str(peer[0]) else f"{peer[0]}:{peer[1]}"


async def _serve(config: Config) -> int:
    try:
        open_files.settle(config)
    except ConfigError as error:
        log.error("%s", error.message)
        return 1
    server = Server(config)
    try:
        await server.start()
    except (LogDamaged, OSError, ConfigError) as error:
        log.error("%s", error.message if isinstance(error, ConfigError) else error)
        await server.log.close()
        return 1
    await server.run()
    return 0


def run(config: Config) -> int:
    """Run a server to its end; the process's exit code."""
    from . import command_modules  # noqa: F401 - fills the command table

    share_heap()
    # A thread that scans hands the interpreter over after so long when the loop asks for it; Python's own 5 ms would
    # be a PING's.
    sys.setswitchinterval(0.0005)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(config))
