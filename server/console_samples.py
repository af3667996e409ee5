"""What the console draws over time: numbers of the server every five seconds, for an hour, and the size of each memory.

Rule 1: it reads counters, as INFO does, and what the sizes of memories are; it changes nothing and shows no record.
Rule 2: never longer than SLICE_S at a time: with many memories a round over all of them takes some seconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from itertools import islice
from time import perf_counter
from typing import TYPE_CHECKING

from . import info

if TYPE_CHECKING:
    from .server import Server

log = logging.getLogger("recalld")

_EVERY_S = 5
_KEPT = 720
_SLICE_S = 0.002
_BETWEEN_SLICES_S = 0.05


@dataclass(slots=True, frozen=True)
class Sample:
    """The server at one moment. Latencies are of the time since the sample before; None: nothing ran."""

    time: int
    resident_bytes: int
    memories: int
    clients: int
    ops_per_s: float
    mean_ms: float | None
    query_ms: float | None


@dataclass(slots=True, frozen=True)
class Size:
    records: int
    bytes: int


class Samples:
    """Of one server; `run` and `measure` are tasks beside the connections."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.since = server.clock()
        self.ring: deque[Sample] = deque(maxlen=_KEPT)
        self.sizes: dict[bytes, Size] = {}
        self._first: dict[bytes, Size] = {}  # as the first round found them
        self._complete = False  # that round is
        self._totals = (server.clock(), 0, 0, 0, 0)
        self._sample()

    def growth(self, key: bytes, now: Size) -> Size | None:
        """What a memory has gained since the console started; None while that is not known yet."""
        first = self._first.get(key, Size(0, 0) if self._complete else None)
        return None if first is None else Size(now.records - first.records, now.bytes - first.bytes)

    async def run(self) -> None:
        """Take a sample every few seconds."""
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                self._sample()
            except Exception:
                log.exception("the console's sampling failed; it goes on")

    async def measure(self) -> None:
        """Measure the memories, again and again."""
        while True:
            try:
                await self._measure()
            except Exception:
                log.exception("measuring memories for the console failed; it goes on")
            self._complete = True
            await asyncio.sleep(_EVERY_S)

    async def _measure(self) -> None:
        """One round over all memories."""
        keyspace, sizes = self._server.keyspace, self.sizes
        began = perf_counter()
        keys = list(keyspace.memories)
        for number in range(0, len(keys), 16):
            for key in islice(keys, number, number + 16):
                memory = keyspace.memories.get(key)
                if memory is not None:
                    sizes[key] = Size(len(memory), keyspace.nbytes(key))
                    if not self._complete:
                        self._first.setdefault(key, sizes[key])
            if perf_counter() - began > _SLICE_S:
                await asyncio.sleep(_BETWEEN_SLICES_S)
                began = perf_counter()
        for key in sizes.keys() - keyspace.memories.keys():
            del sizes[key]

    def _sample(self) -> None:
        server = self._server
        now = server.clock()
        calls = total_ns = queries = query_ns = 0
        for name, times in server.observer.times.all():
            calls += times.calls
            total_ns += times.total_ns
            if name in ("mem.query", "mem.search", "mem.vsearch", "mem.recall"):
                queries += times.calls
                query_ns += times.total_ns
        then, *before = self._totals
        self._totals = (now, calls, total_ns, queries, query_ns)
        if calls < before[0]:  # CONFIG RESETSTAT
            before = [0, 0, 0, 0]
        new_calls, new_ns, new_queries, new_query_ns = (
            after - old for after, old in zip(self._totals[1:], before, strict=True)
        )
        elapsed_s = max(0.001, (now - then) / 1000)
        first = not self.ring
        self.ring.append(
            Sample(
                now,
                info.resident_bytes(),
                len(server.keyspace.memories),
                len(server.clients),
                0.0 if first else new_calls / elapsed_s,
                new_ns / new_calls / 1e6 if new_calls and not first else None,
                new_query_ns / new_queries / 1e6 if new_queries and not first else None,
            )
        )
