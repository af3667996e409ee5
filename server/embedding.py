"""Text to vector for the whole server: asked on the loop, embedded in threads, in batches, each text once.

Rule 1: one batch of a model at a time; what is asked meanwhile is the next one, queries first. No timer delays any.
Rule 2: nobody waits longer than `embedder-timeout-ms`; the batch then goes on, and what it made is kept. Texts that
        are in no batch yet, and that nobody waits for any more, are left out.
Rule 3: a provider that failed is left alone for a while, RETRY_MS at most, and meanwhile nobody waits for it. Then one
        batch tries it, and the others still do not wait.
Rule 4: the front of the cache is the loop's, its file belongs to the threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import threading
from asyncio import Future
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from .config import Config
from .embedder import Embedder, EmbedderError, Model, make, model_of
from .embedding_cache import REFUSED, CacheFile, Front

__all__ = ["RETRY_MS", "Embedder", "EmbedderError", "Embedding", "Model", "model_of"]

log = logging.getLogger("recalld")

#: A provider that is down is tried again at least so often.
RETRY_MS = 5_000
_FIRST_RETRY_MS = 500
# Most wait for a provider, few compute: more models than this at once queue up.
_THREADS = 8

Vectors = list[bytes | None]


class _Ask:
    """One call of `ask` that waits: what it has so far, and how much is missing."""

    __slots__ = ("future", "missing", "timer", "vectors")

    def __init__(self, future: Future[Vectors], vectors: Vectors, missing: int) -> None:
        self.future = future
        self.vectors = vectors
        self.missing = missing
        self.timer: asyncio.TimerHandle | None = None

    def settle(self, at: int, vector: bytes | None) -> None:
        self.vectors[at] = vector
        self.missing -= 1
        if not self.missing:
            self.end()

    def end(self) -> None:
        """Answer with what is there."""
        if self.timer is not None:
            self.timer.cancel()
        if not self.future.done():
            self.future.set_result(list(self.vectors))


class _Wanted:
    """A text that is, or will be, in a batch, and where its vector goes."""

    __slots__ = ("asks", "keep", "text")

    def __init__(self, text: bytes) -> None:
        self.text = text
        self.keep = False
        self.asks: list[tuple[_Ask, int]] = []

    def settle(self, vector: bytes | None) -> None:
        for ask, at in self.asks:
            ask.settle(at, vector)


_Texts = dict[bytes, _Wanted]  # by the sha256 of the text


class _Outcome(NamedTuple):
    """What a batch brought, by the sha256 of the text; REFUSED for what the model has no vector for."""

    kept: dict[bytes, bytes]
    made: dict[bytes, bytes]
    error: EmbedderError | None


class _Lane:
    """The texts that wait for one model, and how it is."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.embedder: Embedder | None = None  # the threads'
        self.batch_texts = 32  # until the embedder is loaded, and says
        self.batch_bytes = 16_384
        self.running: _Texts = {}
        self.queries: _Texts = {}
        self.records: _Texts = {}
        self.failures = 0  # in a row
        self.retry_at_ms = 0
        self.error = ""

    def want(self, digest: bytes, text: bytes, keep: bool) -> _Wanted:
        wanted = self.running.get(digest)
        if wanted is None:
            wanted = self.queries.get(digest)
        if wanted is None:
            wanted = self.records.get(digest) or _Wanted(text)
            if keep:
                self.records[digest] = wanted
            else:
                self.records.pop(digest, wanted)
                self.queries[digest] = wanted
        wanted.keep = wanted.keep or keep
        return wanted

    def next_batch(self) -> None:
        """Fill `running`: at least one text that somebody waits for, if there is one."""
        size = 0
        for waiting in (self.queries, self.records):
            while waiting:
                digest = next(iter(waiting))
                wanted = waiting[digest]
                if not all(ask.future.done() for ask, _ in wanted.asks):
                    size += len(wanted.text)
                    if self.running and (size > self.batch_bytes or len(self.running) >= self.batch_texts):
                        return
                    self.running[digest] = wanted
                del waiting[digest]

    def take_all(self) -> list[_Wanted]:
        """Empty the queues."""
        waiting = [*self.queries.values(), *self.records.values()]
        self.queries.clear()
        self.records.clear()
        return waiting


class Embedding:
    """The embedders of one server and what they have made. Everything but `forget` is called on the loop.

    `directory` holds the cache's file, None: there is none. `clock` gives unix milliseconds.
    """

    def __init__(
        self, config: Config, loop: asyncio.AbstractEventLoop, directory: str | None, clock: Callable[[], int]
    ) -> None:
        self._config = config
        self._loop = loop
        self._clock = clock
        self._front = Front()
        self._file = None if directory is None else CacheFile(directory)
        self._executor = ThreadPoolExecutor(_THREADS, "embed")
        # A thread of its own, as a write may have to wait until the file was copied.
        self._writer = ThreadPoolExecutor(1, "embed-cache")
        self._lanes: dict[Model, _Lane] = {}
        self._closing = threading.Event()
        self._texts = self._batches = self._failures = self._hits = self._misses = 0
        config.on_change("embedder-cache-bytes", self._bound_changed)
        self._bound_changed(self._bound)

    def ask(
        self, model: Model, texts: Sequence[bytes], *, keep: bool, patient: bool = False
    ) -> Vectors | Future[Vectors]:
        """The vector of each text: float32 bytes of unit length, None where there is none.

        At once where the front of the cache has them all or the provider is down; else a future, which never raises.
        None: the provider failed, or took too long; or it refuses that text, and then `is_up` is still true.
        `keep`: the texts are those of records, whose vectors go to the file. `patient`: rule 2 does not hold, so that
        None never means that it took too long.
        """
        digests = [hashlib.sha256(text).digest() for text in texts]
        entries = [self._front.get(model, digest) for digest in digests]
        vectors: Vectors = [entry[0] or None if entry is not None else None for entry in entries]
        self._hits += sum(1 for entry in entries if entry is not None)
        if keep:
            # Queries so far: only the front has them.
            new = {d: e[0] for d, e in zip(digests, entries, strict=True) if e is not None and e[0] and not e[1]}
            self._keep(model, new)
        missing = [at for at, entry in enumerate(entries) if entry is None]
        if not missing or not self.is_up(model):
            return vectors
        lane = self._lanes.get(model)
        if lane is None:
            lane = self._lanes[model] = _Lane(model)
        ask = _Ask(self._loop.create_future(), vectors, len(missing))
        for at in missing:
            lane.want(digests[at], texts[at], keep).asks.append((ask, at))
        if not patient:
            ask.timer = self._loop.call_later(self._config["embedder-timeout-ms"] / 1000, ask.end)
        if not lane.running:
            self._start(lane)
        return ask.future

    def cached(self, model: Model, texts: Sequence[bytes]) -> Vectors:
        """What the front of the cache has: for EXEC, which cannot wait."""
        entries = [self._front.get(model, hashlib.sha256(text).digest()) for text in texts]
        self._hits += sum(1 for entry in entries if entry is not None)
        return [entry[0] or None if entry is not None else None for entry in entries]

    def is_up(self, model: Model) -> bool:
        """Whether the next ask would be tried: the provider has not failed, or its next try is due."""
        if self._closing.is_set():
            return False
        lane = self._lanes.get(model)
        if lane is None or not lane.failures:
            return True
        if lane.running:
            return False
        # A clock that was set back must not keep it down.
        return not 0 < lane.retry_at_ms - self._clock() <= RETRY_MS

    def last_error(self, model: Model) -> str:
        """What the last failed batch said; "" once one has succeeded since."""
        lane = self._lanes.get(model)
        return "" if lane is None else lane.error

    def info(self) -> dict[str, int | str]:
        """Counts for INFO. Texts and batches are those that were embedded; bytes are those in memory and in the file,
        entries those of the file where there is one."""
        asked = self._hits + self._misses
        file = self._file
        lanes = self._lanes.values()
        return {
            "embed_texts": self._texts,
            "embed_batches": self._batches,
            "embed_failures": self._failures,
            "embed_waiting": sum(len(lane.running) + len(lane.queries) + len(lane.records) for lane in lanes),
            "embed_cache_hits": self._hits,
            "embed_cache_misses": self._misses,
            "embed_cache_hit_rate": f"{self._hits / asked if asked else 0:.4f}",
            "embed_cache_bytes": self._front.bytes + (0 if file is None else file.bytes),
            "embed_cache_entries": len(self._front) if file is None else file.entries,
        }

    def forget(self, live: Callable[[], Iterable[bytes]]) -> None:
        """Delete every kept vector whose text's sha256 is not among `live()`; for a thread, at a rewrite."""
        if self._file is not None:
            forgotten = self._file.forget(live)
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._front.drop, forgotten)

    async def close(self) -> None:
        """Answer whoever waits with what is there, and end the threads."""
        self._closing.set()
        for lane in self._lanes.values():
            for wanted in [*lane.running.values(), *lane.take_all()]:
                for ask, _ in wanted.asks:
                    ask.end()
        await self._loop.run_in_executor(None, self._executor.shutdown)
        await self._loop.run_in_executor(None, self._writer.shutdown)
        if self._file is not None:
            await self._loop.run_in_executor(None, self._file.close)

    # -- batches

    def _start(self, lane: _Lane) -> None:
        lane.next_batch()
        if lane.running:
            texts = {digest: wanted.text for digest, wanted in lane.running.items()}
            minute = self._minute()
            done = self._loop.run_in_executor(self._executor, lambda: self._run(lane, texts, minute))
            done.add_done_callback(lambda done: self._finished(lane, done))

    def _run(self, lane: _Lane, texts: dict[bytes, bytes], minute: int) -> _Outcome:
        """In a thread: look up, then embed the rest."""
        kept = {} if self._file is None else self._file.get(lane.model, list(texts), minute)
        made: dict[bytes, bytes] = {}
        error = None
        rest = [digest for digest in texts if digest not in kept]
        if rest:
            try:
                made = dict(zip(rest, self._embed(lane, [texts[digest] for digest in rest]), strict=True))
            except EmbedderError as failed:
                error = failed
            except Exception:
                log.exception("embedding with %s failed", lane.model.embedder)
                error = EmbedderError(f"{lane.model.embedder}: internal error")
        return _Outcome(kept, made, error)

    def _embed(self, lane: _Lane, texts: list[bytes]) -> list[bytes]:
        if lane.embedder is None:
            lane.embedder = make(lane.model, self._config, self._closing)
        rows = lane.embedder.embed([text.decode("utf-8", "replace") for text in texts])
        if rows.shape != (len(texts), lane.model.dim):
            wanted = f"{len(texts)} vectors of {lane.model.dim} dimensions"
            raise EmbedderError(f"{lane.model.embedder} gave {rows.shape}, expected {wanted}")
        return [REFUSED if np.isnan(row).any() else row.astype("<f4").tobytes() for row in rows]

    def _finished(self, lane: _Lane, done: Future[_Outcome]) -> None:
        batch, lane.running = lane.running, {}
        kept, made, error = done.result()
        self._hits += len(kept)
        self._misses += len(batch) - len(kept)
        for digest, vector in kept.items():
            self._front.put(lane.model, digest, vector, True, self._front_bound)
        for digest, vector in made.items():
            self._front.put(lane.model, digest, vector, batch[digest].keep, self._front_bound)
        self._keep(lane.model, {digest: vector for digest, vector in made.items() if vector and batch[digest].keep})
        if made:
            self._texts += len(made)
            self._batches += 1
            lane.failures = 0
            lane.error = ""
        if lane.embedder is not None:
            lane.batch_texts, lane.batch_bytes = lane.embedder.batch_texts, lane.embedder.batch_bytes
        if error is not None:
            self._failed(lane, error)
        for digest, wanted in batch.items():
            wanted.settle(kept.get(digest) or made.get(digest) or None)
        if error is not None:
            for wanted in lane.take_all():
                wanted.settle(None)
        elif not self._closing.is_set():
            self._start(lane)

    def _failed(self, lane: _Lane, error: EmbedderError) -> None:
        if not lane.failures and not self._closing.is_set():
            log.warning("%s fails, and is tried again: %s", lane.model.embedder, error)
        wait_ms = min(RETRY_MS, max(error.retry_ms, _FIRST_RETRY_MS << min(lane.failures, 4)))
        lane.failures += 1
        lane.retry_at_ms = self._clock() + wait_ms
        lane.error = str(error)
        self._failures += 1

    # -- cache

    @property
    def _bound(self) -> int:
        bound: int = self._config["embedder-cache-bytes"]
        return bound

    @property
    def _front_bound(self) -> int:
        return self._bound // 5

    def _minute(self) -> int:
        return self._clock() // 60_000

    def _keep(self, model: Model, vectors: dict[bytes, bytes]) -> None:
        """Write them to the file, in a thread."""
        file, bound, minute = self._file, self._bound, self._minute()
        if file is None or not bound or not vectors or self._closing.is_set():
            return
        for digest, vector in vectors.items():
            self._front.put(model, digest, vector, True, self._front_bound)
        self._loop.run_in_executor(self._writer, lambda: file.put(model, [*vectors.items()], minute, bound))

    def _bound_changed(self, bound: int) -> None:
        self._front.trim(bound // 5)
        file = self._file
        if file is not None and not self._closing.is_set():
            self._loop.run_in_executor(self._writer, lambda: file.trim(bound))
