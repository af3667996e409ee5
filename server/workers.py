"""Work on memories that may take longer than the loop has: in threads, one batch per memory at a time.

Rule 1: a job works on a view, so it may run at any later moment and still answers for the moment it was made.
Rule 2: jobs of one memory never run at the same time: what comes while a batch runs is the next batch. The caches of
        encoded columns rely on it, and a batch can share one pass over the vectors.
Rule 3: a cheap job of an idle memory runs at once on the loop: handing over would cost more than it takes.
"""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..index.memory import Compaction, Memory

if TYPE_CHECKING:
    from .server import Server

log = logging.getLogger("recalld")

# About 200 microseconds: float operations of a scan, as Plan.cost counts them.
INLINE_COST = 1_000_000

Job = Callable[[], Any]


class Workers:
    """The queues before the thread pool."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._waiting: dict[int, list[tuple[Job, Future[Any]]]] = {}  # by id(memory); present: a batch is running

    def busy(self, memory: Memory) -> bool:
        """Whether a job of this memory is running in a thread."""
        return id(memory) in self._waiting

    def submit(self, memory: Memory, cost: int, job: Job) -> Any:
        """`job`'s result, where it is cheap and can run now; else a future of it."""
        waiting = self._waiting.get(id(memory))
        if waiting is None and cost <= INLINE_COST:
            return job()
        future = self._server.loop.create_future()
        if waiting is not None:
            waiting.append((job, future))
        else:
            self._waiting[id(memory)] = []
            self._start(memory, [(job, future)])
        return future

    def _start(self, memory: Memory, batch: list[tuple[Job, Future[Any]]]) -> None:
        # The callback's reference keeps `memory` alive, so its id stays its own.
        running = self._server.background(lambda: [_outcome(job) for job, future in batch if not future.cancelled()])
        running.add_done_callback(lambda done: self._finished(memory, batch, done))

    def _finished(self, memory: Memory, batch: list[tuple[Job, Future[Any]]], done: Future[Any]) -> None:
        waiting = self._waiting.pop(id(memory))
        if waiting and not done.cancelled():
            self._waiting[id(memory)] = []
            self._start(memory, waiting)
        outcomes = iter([] if done.cancelled() else done.result())
        for _, future in batch:
            outcome = next(outcomes, None)
            if future.cancelled():
                continue
            if outcome is None:
                future.cancel()
            elif outcome[1] is not None:
                future.set_exception(outcome[1])
            else:
                future.set_result(outcome[0])

    def compact(self, memory: Memory) -> None:
        """Compact a large memory in a thread, if it is not being done."""
        if memory.compacting:
            return
        compaction: Compaction = memory.compaction()
        built = self._server.background(compaction.build)

        def install(done: Future[Any]) -> None:
            if done.cancelled():
                return
            if done.exception() is not None:
                memory.compacting = False
                log.error("compaction failed", exc_info=done.exception())
                return
            compaction.install()

        built.add_done_callback(install)


def _outcome(job: Job) -> tuple[Any, BaseException | None]:
    try:
        return job(), None
    except Exception as error:
        return None, error
