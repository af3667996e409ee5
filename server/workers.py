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
from functools import partial
from typing import TYPE_CHECKING, Any

from ..index.memory import Compaction, Memory
from ..protocol.encoder import encode
from ..protocol.reply import Encoded

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
        self._compactions: dict[int, Memory] = {}  # that are due, by id(memory), the first one running
        self._waiting: dict[int, list[tuple[Job, Future[Any]]]] = {}  # by id(memory); present: a batch is running

    def submit(self, memory: Memory, cost: int, job: Job, proto: int = 0) -> Any:
        """`job`'s result, where it is cheap and can run now; else a future of it.

        With `proto` the result is a reply, which the thread encodes as well.
        """
        waiting = self._waiting.get(id(memory))
        if waiting is None and cost <= INLINE_COST:
            return job()
        if proto:
            job = partial(_encoded, job, proto)
        future = self._server.loop.create_future()
        if waiting is not None:
            waiting.append((job, future))
        else:
            self._waiting[id(memory)] = []
            self._start(memory, [(job, future)])
        return future

    def _start(self, memory: Memory, batch: list[tuple[Job, Future[Any]]]) -> None:
        # The callback's reference keeps `memory` alive, so its id stays its own.
        running = self._server.background(lambda: [_outcome(job, future) for job, future in batch])
        running.add_done_callback(lambda done: self._finished(memory, batch, done))

    def _finished(self, memory: Memory, batch: list[tuple[Job, Future[Any]]], done: Future[Any]) -> None:
        waiting = self._waiting.pop(id(memory))
        if waiting and not done.cancelled():
            self._waiting[id(memory)] = []
            self._start(memory, waiting)
        outcomes = [None] * len(batch) if done.cancelled() else done.result()
        for (_, future), outcome in zip(batch, outcomes, strict=True):
            if future.cancelled():
                continue
            if outcome is None:
                future.cancel()
            elif outcome[1] is not None:
                future.set_exception(outcome[1])
            else:
                future.set_result(outcome[0])

    def compact(self, memory: Memory) -> None:
        """Compact a large memory in a thread, one after another: more would take the threads from the queries."""
        if id(memory) in self._compactions:
            return
        self._compactions[id(memory)] = memory
        if len(self._compactions) == 1:
            self._compact_next()

    def _compact_next(self) -> None:
        memory = next(iter(self._compactions.values()))
        compaction: Compaction = memory.compaction()

        def install(done: Future[Any]) -> None:
            del self._compactions[id(memory)]
            if not done.cancelled():
                error = done.exception()
                if error is None:
                    compaction.install()
                else:
                    log.error("compaction failed", exc_info=error)
                if self._compactions:
                    self._compact_next()

        self._server.background(compaction.build).add_done_callback(install)


def _encoded(job: Job, proto: int) -> Encoded:
    return Encoded(encode(job(), proto))


def _outcome(job: Job, future: Future[Any]) -> tuple[Any, BaseException | None] | None:
    if future.cancelled():
        return None
    try:
        return job(), None
    except Exception as error:
        return None, error
