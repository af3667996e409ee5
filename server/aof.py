"""The log: what was applied is appended, synced by policy, and decides when replies may leave.

    always     replies leave after the fsync that covers what they show; one turn of the loop writes for all clients
               at once. A thread syncs, and what comes meanwhile is the next batch, which may wait for company; a disk
               that is quicker than handing over is waited for on the loop (group_commit.py)
    everysec   a write's reply leaves once write(2) has returned; a thread syncs every second. While a sync runs,
               nothing is written to that file (it would block the loop on most file systems): what comes is
               acknowledged from memory for up to two seconds, and longer than that only reads are answered
    no         as everysec, with a sync only every 32 MiB

Rule 1: entries reach the file in the order in which they were applied, each group whole.
Rule 2: after a failed write or sync, what may not be in the file is kept in memory and written again before anything
        else, every second until it works; after a failed sync that is all since the last one, which is cut off the
        file. Meanwhile writes are refused (`failure`), and the writes whose replies had not left are answered with an
        error: they may or may not be kept.
Rule 3: only the thread of the log touches the manifest.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from ..index.analyzer import Vocabulary
from . import incr, manifest
from .base import Frozen
from .entries import Entry
from .errors import CommandError
from .files import Files, Lock
from .group_commit import Company, Patience
from .incr import IncrWriter, encode_pieces
from .log_files import remove_unnamed, stopping, write_base_file
from .manifest import Manifest, base_name, incr_name

if TYPE_CHECKING:
    from .connection import Connection

log = logging.getLogger("recalld")

T = TypeVar("T")

# How long `everysec` acknowledges writes that a running sync keeps from the file.
_STALL_S = 2.0
# With `no`: what is kept in memory to mend a failed sync (that of WAITAOF, or of a rewrite) must end somewhere.
_UNSYNCED_BYTES = 1 << 25
# So much is written by the thread whatever the policy: the loop would wait for the copy, and for the system's cache.
_LARGE_BYTES = 4 << 20


class _NotSynced(OSError):
    """What was written since the last sync may not be on the disk."""


class Log:
    """A log that keeps nothing: `appendonly no`, and the base of the one in files.

    `position` counts the bytes appended. A write's reply leaves once `released` has reached its position, and so does
    a read's where `gates_reads`; `waiters` are the connections to `drain` when `released` moves. What is below
    `durable` is on the disk. `failure` is why writes are refused, None while they are not.
    """

    keeps = False
    gates_reads = False

    def __init__(self) -> None:
        self.position = 0
        self.released = 0
        self.durable = 0
        self.waiters: set[Connection] = set()
        self.failure: str | None = None

    @property
    def waits_here(self) -> bool:
        """Whether replies wait for a disk for which the loop waits itself."""
        return False

    def append(self, group: list[Entry], encoded: list[bytes] | None = None) -> None:
        """Log entries that belong together; `encoded` is what `encode_pieces` makes of them, where somebody has."""

    def seal(self) -> None:
        """Take no more: whoever appends is told that the server is shutting down (CommandError)."""

    def flush(self) -> None:
        """Write what was appended, or see that it is written."""

    def every_second(self) -> None:
        """Sync by policy, retry after a failure."""

    async def wait_durable(self, position: int) -> None:
        """Return once everything below `position` is on the disk."""

    async def close(self) -> None:
        """Write and sync what is left."""


class FileLog(Log):
    """The log in `dir`/`appenddirname`. `load` opens it; everything but the thread's jobs runs on the loop."""

    keeps = True

    def __init__(
        self,
        files: Files,
        folder: str,
        current: Manifest,
        writer: IncrWriter,
        lock: Lock,
        policy: str,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__()
        self._files = files
        self._folder = folder
        self._manifest = current
        self._writer = writer
        self._lock = lock
        self._loop = loop
        self._thread = ThreadPoolExecutor(1, "aof")
        self._buffer: list[bytes] = []  # groups not written yet
        self._unsynced: list[bytes] = []  # groups written since the last sync, to be written again where it fails
        self._synced = writer.mark
        self._job: Future[Any] | None = None  # what the thread does now; meanwhile the loop leaves the file alone
        self._job_began = 0.0
        self._job_writes = False  # no reply leaves before it has
        self.timed: Callable[[str, float], None] = lambda event, ms: None  # told on the loop how long the disk took
        self._patience = Patience()
        self._company = Company()
        self._late: asyncio.TimerHandle | None = None  # until when the next batch waits for more of them
        self._idle = asyncio.Event()
        self._idle.set()
        self._turns = 0  # who waits in `_turn`
        self._base_job: asyncio.Future[int] | None = None  # a base is being written
        self._closing = False
        self._sealed = False
        self._durable_waits: list[tuple[int, asyncio.Future[None]]] = []
        self._manifest_owed = False  # the one in the folder may not be `_manifest` yet
        self._scheduled = False
        self.base_size = self._size_of_base()
        self._older_incrs = sum(self._file_size(incr_name(current.prefix, seq)) for seq in current.incrs[:-1])
        self.set_policy(policy)

    def set_policy(self, policy: str) -> None:
        """Follow CONFIG SET appendfsync."""
        self.policy = policy
        self.gates_reads = policy == "always"
        self.flush()

    @property
    def waits_here(self) -> bool:
        return self.policy == "always" and self._patience.waits_here

    @property
    def size(self) -> int:
        """Bytes of the files that make up the state."""
        return self.base_size + self._older_incrs + self._writer.size

    # -- appending

    def seal(self) -> None:
        self._sealed = True

    def append(self, group: list[Entry], encoded: list[bytes] | None = None) -> None:
        if self._sealed:
            raise CommandError("the server is shutting down")
        pieces = encode_pieces(group) if encoded is None else encoded
        self._buffer += pieces
        self.position += sum(map(len, pieces))
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._flush_soon)

    def _flush_soon(self) -> None:
        self._scheduled = False
        self.flush()

    def flush(self) -> None:
        if not self._buffer or self.failure is not None:
            return
        if self._job is not None:
            if self.policy != "always" and not self._job_writes and self._loop.time() - self._job_began < _STALL_S:
                self._release(self.position)
            return
        if self.policy == "always":
            if self._turns or (self._late is not None and self._company.is_awaited(len(self.waiters))):
                return
            self._stop_waiting()
        groups, self._buffer = self._buffer, []
        is_large = sum(map(len, groups)) > _LARGE_BYTES
        if self.policy == "always" or is_large:
            if not is_large and self._patience.waits_here:
                self._write_here(groups)
            else:
                self._start(lambda: self._write_and_sync(groups), self.position, groups)
            return
        began = time.perf_counter()
        try:
            self._writer.write(groups)
        except OSError as error:
            self._fail(error, groups)
            return
        self.timed("aof-write", (time.perf_counter() - began) * 1000)
        self._unsynced += groups
        self._release(self.position)
        if self._writer.size - self._synced.size > _UNSYNCED_BYTES and self._job is None and not self._turns:
            self._sync()

    def _write_here(self, groups: list[bytes]) -> None:
        """Write and sync on the loop: handing over to the thread and back takes longer than this disk does."""
        error: BaseException | None = None
        position = self.position
        began = time.perf_counter()
        try:
            self._write_and_sync(groups)
        except Exception as failed:  # whatever it is, `groups` are still to be written
            error = failed
        took = time.perf_counter() - began
        self._patience.took_here(took)
        self.timed("aof-fsync-always", took * 1000)
        self._settle(error, position, groups)

    @property
    def _written(self) -> int:
        """The position up to which entries have been given to the file."""
        return self.position - sum(map(len, self._buffer))

    def _write_and_sync(self, groups: list[bytes]) -> None:
        """In the thread, mostly. Raises _NotSynced, or another OSError, and then nothing of `groups` was written."""
        try:
            if self._manifest_owed:
                manifest.write(self._files, self._folder, self._manifest)
                self._manifest_owed = False
            if groups:
                self._writer.write(groups)
        finally:
            # A full disk is no reason not to sync what was written before.
            try:
                self._writer.sync()
            except OSError as error:
                self._patience.failed()
                raise _NotSynced(error.errno, error.strerror) from error

    # -- the thread's jobs

    def _start(
        self, work: Callable[[], None], position: int, groups: list[bytes], then: Callable[[], None] | None = None
    ) -> None:
        """Run `work` in the thread: it writes `groups`, if any, and syncs, so that all below `position` is durable.

        `then` runs on the loop where that worked, before anything else is written.
        """
        self._stop_waiting()  # what is not in this job is the next one's
        self._idle.clear()
        self._job_began = self._loop.time()
        self._job_writes = bool(groups)
        self._job = job = self._thread.submit(work)
        job.add_done_callback(
            lambda done: self._loop.call_soon_threadsafe(self._finished, done, position, groups, then)
        )

    def _came_late(self) -> None:
        if self._buffer:
            self._company.missed()
        self._stop_waiting()
        self.flush()

    def _stop_waiting(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    async def _turn(self) -> None:
        """Return when no job runs, for the caller to start one at once.

        Batches wait for it: with `always` and two clients there is a next one whenever one has ended.
        """
        self._turns += 1
        try:
            while self._job is not None:
                await self._idle.wait()
        finally:
            self._turns -= 1

    def _finished(
        self, done: Future[None], position: int, groups: list[bytes], then: Callable[[], None] | None
    ) -> None:
        self._job = None
        self._idle.set()
        took_ms = (self._loop.time() - self._job_began) * 1000
        self._patience.took_in_thread(took_ms / 1000)
        released = len(self.waiters)
        self.timed("aof-fsync-always" if self.policy == "always" else "aof-fsync", took_ms)
        self._settle(done.exception(), position, groups, then)
        if self.policy == "always" and self.failure is None and not self._patience.waits_here:
            left = len(self.waiters)
            wait_s = self._company.leaves(released - left, left, took_ms / 1000)
            if wait_s and self._job is None and not self._durable_waits:
                self._late = self._loop.call_later(wait_s, self._came_late)
        self.flush()
        if self._durable_waits and self.failure is None and self._job is None and not self._turns:
            self._sync()

    def _settle(
        self,
        error: BaseException | None,
        position: int,
        groups: list[bytes],
        then: Callable[[], None] | None = None,
    ) -> None:
        """A write and sync has ended: release what waits for it, or refuse it."""
        if isinstance(error, OSError):
            self._fail(error, groups)
            return
        if error is not None:
            log.critical("the thread of the log failed", exc_info=error)
            self._fail(OSError(0, str(error)), groups)
            return
        self._unsynced.clear()  # nothing is written to the file while a job runs
        self._synced = self._writer.mark
        self.durable = max(self.durable, position)
        for wait in self._durable_waits:
            if wait[0] <= self.durable and not wait[1].done():
                wait[1].set_result(None)
        self._durable_waits = [wait for wait in self._durable_waits if not wait[1].done()]
        if self.failure is not None:
            self.failure = None
            log.warning("AOF write error looks solved, writes are accepted again.")
        if then is not None:
            then()
        self._release(max(self.released, position))

    def _release(self, position: int) -> None:
        self.released = position
        waiters, self.waiters = self.waiters, set()
        for connection in waiters:
            connection.drain()

    def _fail(self, error: OSError, groups: list[bytes]) -> None:
        """Keep what may not be in the file to be written again, `groups` and maybe more; refuse writes."""
        if isinstance(error, _NotSynced):
            groups = [*self._unsynced, *groups]
            self._unsynced.clear()
            try:
                self._writer.rewind(self._synced)
            except OSError as again:
                log.error("The AOF cannot be cut back to what is synced, which goes first once it can: %s", again)
        self._buffer[:0] = groups
        why = error.strerror or str(error)
        if self.failure is None:
            log.error("Error writing to the AOF: %s. Writes are refused until it works again.", why)
        self.failure = f"Errors writing to the AOF file: {why}. Writes are refused until it works again; reads go on."
        waiters, self.waiters = self.waiters, set()
        for connection in waiters:
            connection.refuse_writes()
            connection.drain()  # which closes it, if that was all

    def every_second(self) -> None:
        if self._job is not None or self._turns:
            return
        if self.failure is not None:
            groups, self._buffer = self._buffer, []
            self._start(lambda: self._write_and_sync(groups), self.position, groups)
        elif self.policy != "no" and self.durable < self._written:
            self._sync()

    def _sync(self) -> None:
        self._start(lambda: self._write_and_sync([]), self._written, [])

    async def wait_durable(self, position: int) -> None:
        while self.durable < position:
            if self._job is None and not self._turns and self.failure is None:
                self._stop_waiting()
                self.flush()
                if self._job is None and self.failure is None:
                    self._sync()
            wait = self._loop.create_future()
            self._durable_waits.append((min(position, self.position), wait))
            await wait

    async def close(self) -> None:
        self._closing = True
        if self._base_job is not None:  # the folder is this server's until nobody writes there
            await asyncio.wait([self._base_job])
        await self._turn()
        if self._buffer or self.durable < self._written:
            groups, self._buffer = self._buffer, []
            self._start(lambda: self._write_and_sync(groups), self.position, groups)
            await self._idle.wait()
        self._thread.shutdown()
        self._writer.close()
        self._lock.release()

    # -- rewriting: see rewrite.py

    async def switch(self, moment: Callable[[], T]) -> T:
        """Let what is appended from now on go to a new incr file. `moment` is called at that very moment; its result.

        Raises OSError where the new file cannot be had.
        """
        await self._turn()
        self._check_open()
        if self.failure is not None:
            raise OSError(0, self.failure)
        result = moment()
        groups, self._buffer = self._buffer, []
        following = self._manifest.with_incr(self._manifest.incrs[-1] + 1)
        path = os.path.join(self._folder, following.names[-1])
        created: list[IncrWriter] = []
        errors: list[OSError] = []

        def work() -> None:
            self._write_and_sync(groups)
            try:
                created.append(incr.create(self._files, path))
                manifest.write(self._files, self._folder, following)
            except OSError as error:
                errors.append(error)

        def use() -> None:
            if not created:
                return  # the old file goes on
            self._older_incrs += self._writer.size
            self._writer.close()
            self._writer, self._manifest, self._synced = created[0], following, created[0].mark
            if errors:
                # Which manifest is in the folder is unknown, and nothing may go to a file that it may not name.
                self._manifest_owed = True
                self._fail(errors[0], [])

        self._start(work, self.position, groups, use)
        await self._idle.wait()
        if errors or not created:
            raise errors[0] if errors else OSError(0, self.failure or "the log could not be written")
        return result

    async def install(self, frozen: list[Frozen], vocabulary: Vocabulary) -> int:
        """Write the base of the moment of the last `switch` and let the state begin with it; how many records.

        Raises OSError, and the old files stay the state.
        """
        since = self._manifest.incrs[-1]
        old = self._manifest
        seq = (old.base or 0) + 1
        name = base_name(old.prefix, seq)
        self._check_open()
        write = partial(write_base_file, self._files, self._folder, name, frozen, vocabulary, lambda: self._closing)
        self._base_job = self._loop.run_in_executor(None, write)
        try:
            records = await self._base_job
        finally:
            self._base_job = None
        await self._turn()
        self._check_open()
        self._manifest, self._manifest_owed = old.with_base(seq, since), True
        self._sync()
        await self._idle.wait()
        if self._manifest_owed:
            raise OSError(0, self.failure or "the manifest could not be written")
        self.base_size, self._older_incrs = self._file_size(name), 0
        await asyncio.to_thread(remove_unnamed, self._files, self._folder, self._manifest)
        return records

    def _check_open(self) -> None:
        if self._closing:
            raise stopping()

    def _file_size(self, name: str) -> int:
        return self._files.size(os.path.join(self._folder, name))

    def _size_of_base(self) -> int:
        current = self._manifest
        return 0 if current.base is None else self._file_size(base_name(current.prefix, current.base))
