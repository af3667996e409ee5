"""Rewriting the log: a compact base of the state at one moment, written while reads and writes go on.

    1 `Log.switch`     everything logged so far stays in the old files, what follows goes to a new incr file
    2 `Snapshot.walk`  every memory as of that moment, some hundred per turn of the loop
    3 `write_base`     in a thread, from views; synced, renamed to its name
    4 `Log.install`    the manifest names the new base and the incr files since; the old files go

Whatever fails, the files before it stay the state, and the log goes on in the new incr file.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from .aof import FileLog
from .snapshot import Snapshot

if TYPE_CHECKING:
    from .server import Server

log = logging.getLogger("recalld")

# Keys frozen per turn of the loop: about a millisecond.
_KEYS_PER_TURN = 300
# An automatic rewrite that failed is tried again after a minute, then after twice as long, at most an hour (Redis:
# AOF_REWRITE_LIMITE_MAX_MINUTES): each try leaves another incr file.
_RETRY_S = 60
_RETRY_MAX_S = 3600


class Rewriter:
    """The rewrites of one server; what is public INFO shows."""

    def __init__(self, server: Server, file_log: FileLog) -> None:
        self._server = server
        self.log = file_log
        self._task: asyncio.Task[bool] | None = None
        self.last_ok = True
        self.last_save_s = int(server.clock() // 1000)
        self.last_took_s = -1
        self.saved_changes = 0  # of Stats.changes, those that the base has
        self._begun_changes = 0
        self.started = 0.0
        self.then: Callable[[], Awaitable[None]] | None = None  # part of a rewrite, once the files are there
        self.rewrites = 0  # that succeeded
        self.failures = 0  # in a row
        self._retry_at = 0.0

    @property
    def running(self) -> bool:
        return self._task is not None

    @property
    def running_s(self) -> int:
        """How long the rewrite has run, -1 where none does."""
        return int(time.monotonic() - self.started) if self.running else -1

    def start(self) -> asyncio.Task[bool]:
        """Begin a rewrite, or join the one that runs; the task's result is whether it succeeded."""
        if self._task is None:
            self.started = time.monotonic()
            self._task = self._server.loop.create_task(self._run())
            self._task.add_done_callback(self._done)
        return self._task

    def start_if_grown(self) -> None:
        """`auto-aof-rewrite-percentage` and `-min-size`."""
        config, file_log = self._server.config, self.log
        percentage = config["auto-aof-rewrite-percentage"]
        if self.running or not percentage or file_log.failure is not None or time.monotonic() < self._retry_at:
            return
        size, base = file_log.size, max(file_log.base_size, 1)
        if size >= config["auto-aof-rewrite-min-size"] and (size - base) * 100 >= base * percentage:
            log.info("Starting automatic rewriting of AOF on %d%% growth", (size - base) * 100 // base)
            self.start()

    def _done(self, task: asyncio.Task[bool]) -> None:
        self._task = None
        self.last_took_s = int(time.monotonic() - self.started)
        self.last_ok = not task.cancelled() and task.result()
        if self.last_ok:
            self.saved_changes = self._begun_changes
            self.last_save_s = int(self._server.clock() // 1000)
            self.rewrites += 1
            self.failures, self._retry_at = 0, 0.0
        else:
            self._retry_at = time.monotonic() + min(_RETRY_S << min(self.failures, 10), _RETRY_MAX_S)
            self.failures += 1

    async def _run(self) -> bool:
        server, file_log = self._server, self.log
        snapshot: Snapshot | None = None

        def begin() -> Snapshot:
            nonlocal snapshot
            self._begun_changes = server.stats.changes
            snapshot = Snapshot(server.keyspace, server.clock())
            return snapshot

        try:
            async with server.transactions.none():
                snapshot = await file_log.switch(begin)
            while not snapshot.walk(_KEYS_PER_TURN):
                await asyncio.sleep(0)
            records = await file_log.install(snapshot.take(), snapshot.vocabulary)
            if self.then is not None:
                await self.then()
        except OSError as error:
            log.error("Rewriting the AOF failed, the old files stay: %s", error)
            return False
        except Exception:
            log.exception("Rewriting the AOF failed, the old files stay")
            return False
        finally:
            if snapshot is not None:
                snapshot.abandon()
        log.info("AOF rewritten: %d records, %d bytes", records, file_log.base_size)
        return True
