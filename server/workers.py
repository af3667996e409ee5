"""Work on memories that may take longer than the loop has: in threads, one batch per memory at a time.

Rule 1: a job works on a view, so it may run at any later moment and still answers for the moment it was made.
Rule 2: jobs of one memory never run at the same time: what comes while a batch runs is the next batch. The caches of
        encoded columns and codes rely on it, and the queries of a batch share one pass over the vectors. Between two
        batches the replies of the first leave: else those whose clients ask again at once would be in the one after.
Rule 3: a cheap job of an idle memory runs at once on the loop: handing over would cost more than it takes. So does a
        short query that comes alone; where several come in one turn of the loop, those of one memory run together.

The first query, or load of records, that is worth it has the compiled loops loaded (compiled_loops.py), in a thread: a
server of small memories never needs the time and the memory they take.
"""

from __future__ import annotations

import logging
from asyncio import Future
from collections.abc import Callable
from threading import Thread
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

from ..index.matches import Plan
from ..index.memory import Memory, run, run_together
from ..index.query import Result
from ..protocol.encoder import encode_within
from ..protocol.reply import Encoded
from . import compiled_loops

if TYPE_CHECKING:
    from .server import Server

log = logging.getLogger("recalld")

# About 200 microseconds: float operations of a scan, as Plan.cost counts them.
INLINE_COST = 1_000_000
# About half a millisecond: less than waking a thread and the loop again makes its reply late.
_SHORT_COST = 6_000_000
# From here on compiled loops make a difference that shows.
_COMPILED_COST = 200_000
# From so many records on, written several at once, it is likely that as many more follow, for which they save as much
# time as loading them takes.
_COMPILED_WRITES = 100_000

Job = Callable[[], Any]
Finish = Callable[[Result], Any]


class ReadJob(Future[Any]):
    """The reply of a job that only reads: cancelled, where its client has gone, it does not run if it has not begun."""


class _Work(NamedTuple):
    """A query and what becomes of its result, or any other job; and the protocol in which its reply is encoded, 0 for
    none."""

    plan: Plan | None
    job: Callable[..., Any]
    proto: int
    future: ReadJob


class Workers:
    """The queues before the thread pool."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._compactions: dict[int, Memory] = {}  # that are due, by id(memory), the first one running
        self._waiting: dict[int, list[_Work]] = {}  # by id(memory); present: a batch is running
        self._short = 0  # short queries of this turn of the loop
        self._crowded = False  # whether the last turn had several
        self._gathered: dict[int, tuple[Memory, list[_Work]]] = {}  # those of this turn, by id(memory)
        self._written = 0  # records, several at once
        self._loading = False  # whether the compiled loops are loaded, or were tried

    def submit(self, memory: Memory, cost: int, job: Job, proto: int = 0) -> Any:
        """`job`'s result, where it is cheap and can run now; else a future of it.

        With `proto` the result is a reply, which the thread encodes as well.
        """
        if cost <= INLINE_COST and id(memory) not in self._waiting:
            return job()
        return self._queue(memory, None, job, proto)

    def ask(self, memory: Memory, plan: Plan, more: int, finish: Finish, proto: int) -> Any:
        """`finish(result of the query)`, a reply that costs so much `more`: now, or a future of it encoded."""
        if id(memory) in self._waiting:
            return self._queue(memory, plan, finish, proto)
        cost = plan.cost + more  # which looks at what only one thread at a time may
        if cost > _COMPILED_COST and not self._loading:
            self._load()
        if cost > _SHORT_COST:
            return self._queue(memory, plan, finish, proto)
        if cost <= INLINE_COST:
            return finish(run(plan))
        self._short += 1
        if self._short == 1:
            self._server.loop.call_soon(self._turn)
            if not self._crowded:
                return finish(run(plan))
        work = _Work(plan, finish, proto, ReadJob(loop=self._server.loop))
        self._gathered.setdefault(id(memory), (memory, []))[1].append(work)
        return work.future

    def written(self, count: int) -> None:
        """So many records were written at once."""
        self._written += count if count > 1 else 0  # no compiled loop is for one
        if self._written > _COMPILED_WRITES and not self._loading:
            self._load()

    def _load(self) -> None:
        self._loading = True
        Thread(target=_load_kernels, name="kernels", daemon=True).start()

    def _turn(self) -> None:
        """All that had come to the loop has been read: start what was gathered."""
        self._crowded, self._short = self._short > 1, 0
        gathered, self._gathered = self._gathered, {}
        for memory, batch in gathered.values():
            waiting = self._waiting.get(id(memory))
            if waiting is not None:
                waiting += batch
            else:
                self._waiting[id(memory)] = []
                self._start(memory, batch)

    def _queue(self, memory: Memory, plan: Plan | None, job: Callable[..., Any], proto: int) -> ReadJob:
        work = _Work(plan, job, proto, ReadJob(loop=self._server.loop))
        waiting = self._waiting.get(id(memory))
        if waiting is not None:
            waiting.append(work)
        else:
            self._waiting[id(memory)] = []
            self._start(memory, [work])
        return work.future

    def _start(self, memory: Memory, batch: list[_Work]) -> None:
        # The callback's reference keeps `memory` alive, so its id stays its own.
        most: int = self._server.config["client-output-buffer-limit"]["normal"][0]
        running = self._server.background(lambda: _outcomes(batch, most))
        running.add_done_callback(lambda done: self._finished(memory, batch, done))

    def _finished(self, memory: Memory, batch: list[_Work], done: Future[Any]) -> None:
        outcomes = [None] * len(batch) if done.cancelled() else done.result()
        for work, outcome in zip(batch, outcomes, strict=True):
            future = work.future
            if future.cancelled():
                continue
            if outcome is None:
                future.cancel()
            elif outcome[1] is not None:
                future.set_exception(outcome[1])
            else:
                future.set_result(outcome[0])
        if done.cancelled():
            del self._waiting[id(memory)]
            return
        # In the next turn of the loop the replies leave, and what is asked upon them is read before the one after it.
        loop = self._server.loop
        loop.call_soon(loop.call_soon, self._next, memory)

    def _next(self, memory: Memory) -> None:
        """Start the batch of what has come meanwhile."""
        waiting = self._waiting.pop(id(memory))
        if waiting:
            self._waiting[id(memory)] = []
            self._start(memory, waiting)

    def compact(self, memory: Memory) -> None:
        """Compact a large memory in a thread, one after another: more would take the threads from the queries."""
        if id(memory) in self._compactions:
            return
        self._compactions[id(memory)] = memory
        if len(self._compactions) == 1:
            self._compact_next()

    def _compact_next(self) -> None:
        memory = next(iter(self._compactions.values()))
        compaction = memory.compaction()

        def install(done: Future[Any]) -> None:
            del self._compactions[id(memory)]
            if done.cancelled():
                compaction.abandon()
                return
            error = done.exception()
            if error is None:
                compaction.install()
                if memory.wants_compaction:
                    self._compactions[id(memory)] = memory
            else:
                compaction.abandon()
                log.error("compaction failed", exc_info=error)
            if self._compactions:
                self._compact_next()

        self._server.background(compaction.build).add_done_callback(install)


def _load_kernels() -> None:
    started = perf_counter()
    try:
        compiled_loops.load()
    except compiled_loops.NotCompiled as reason:
        log.info("no compiled loops, queries run in numpy alone: %s", reason)
    except Exception:
        log.exception("compiled loops cannot be used, queries run in numpy alone")
    else:
        log.info("compiled loops in use after %.1f s", perf_counter() - started)


_Outcome = tuple[Any, BaseException | None] | None


def _outcomes(batch: list[_Work], most: int) -> list[_Outcome]:
    """What became of each, None where nobody waits for it any more. A reply of more than `most` bytes stays a value:
    the connection, which may not have it, is cut off."""
    outcomes: list[_Outcome] = [None] * len(batch)
    asked: list[tuple[int, Plan]] = []
    for number, work in enumerate(batch):
        if work.future.cancelled():
            continue
        if work.plan is not None:
            asked.append((number, work.plan))
        else:
            outcomes[number] = _outcome(work, most)
    for (number, _), result in zip(asked, run_together([plan for _, plan in asked]), strict=True):
        work = batch[number]
        if not work.future.cancelled():
            outcomes[number] = (None, result) if isinstance(result, Exception) else _outcome(work, most, result)
    return outcomes


def _outcome(work: _Work, most: int, *given: Any) -> _Outcome:
    try:
        result = work.job(*given)
        encoded = encode_within(result, work.proto, most) if work.proto else None
        return (result if encoded is None else Encoded(encoded)), None
    except Exception as error:
        return None, error
