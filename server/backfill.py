"""Vectors for records that have none, and the change from one model to another, beside the queries.

Rule 1: which records are pending is no state of its own: they have no vector although the memory has an embedder.
Rule 2: a vector is committed only to the record (its serial) and the text that it was made of, and only while its model
        is the memory's; the checks and the commit are one turn of the loop.
Rule 3: a change of model becomes visible in one turn of the loop, when every current record has its new vector.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import Future
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ..index.columns import VROW, Table
from ..index.memory import Memory
from ..index.settings import Settings
from .embedded import Vectors, spoken
from .embedding import EmbedderError, Model, model_of
from .entries import PutEntity, SetVectors, Switch
from .memory_commands import model_of_memory, next_model

if TYPE_CHECKING:
    from .server import Server

log = logging.getLogger("recalld")

# Texts per batch: some hundred milliseconds of a local model, one request of a provider.
BATCH = 64
# How often what could not be embedded is tried again, and all memories are looked at for any.
_RETRY_S = 5.0
# Records of one memory that are embedded before the next memory has its turn.
_SHARE = 16 * BATCH
_LOOK_S = 60.0
# Vectors per log entry of a change of model.
_PIECE = 256
# So often a text is tried that the provider gives no vector for.
_TRIES = 3


class _Row(NamedTuple):
    """A current record: what it is, and what is embedded of it."""

    id: bytes
    serial: int
    text: bytes


class _Next:
    """The vectors of a memory's next model, until all are there."""

    def __init__(self, memory: Memory, model: Model) -> None:
        self.memory = memory
        self.model = model
        self.vectors: dict[bytes, tuple[int, bytes, bytes]] = {}  # id -> serial, text, vector
        self.rows: Iterator[_Row] = iter(())  # of a pass over the records

    def lacks(self, row: _Row) -> bool:
        """Whether there is no vector of this record's text yet."""
        held = self.vectors.get(row.id)
        if held is None:
            return True
        if held[:2] == (row.serial, row.text):
            return False
        del self.vectors[row.id]  # it was written over
        return True

    def done(self) -> int:
        """How many records have theirs; one that was written over since the last pass is among them."""
        return sum(1 for record_id in self.vectors if record_id in self.memory)


class Backfill:
    """One task that works through the keys that may have something to embed."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._keys: dict[bytes, None] = {}
        self._next: dict[bytes, _Next] = {}
        # (key, model, serial, text): how often the provider gave no vector for it although it was up.
        self._tries: dict[tuple[bytes, Model, int, bytes], int] = {}
        self._wake = asyncio.Event()
        self._turn = asyncio.Lock()

    def add(self, key: bytes) -> None:
        """The memory at `key` may have something to embed."""
        self._keys[key] = None
        self._wake.set()

    def look(self) -> None:
        """Find the memories that have something to embed."""
        for key, memory in self._server.keyspace.memories.items():
            settings = memory.settings
            bare = memory.entities.bare if memory.entities is not None else 0
            if settings.is_switching or (settings.embedder and (memory.pending or bare)):
                self.add(key)

    def pending(self) -> int:
        """How many records wait, in the memories that are known to have any."""
        memories = self._server.keyspace.memories
        return sum(memories[key].pending for key in self._keys if key in memories)

    def progress(self, key: bytes, memory: Memory) -> int:
        """How many records of a memory have their vector of the next model already."""
        state = self._next.get(key)
        return state.done() if state is not None and state.memory is memory else 0

    async def run(self) -> None:
        """Work until cancelled."""
        looked = 0.0
        while True:
            try:
                async with asyncio.timeout(_RETRY_S if self._keys else _LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            if self._server.loop.time() - looked >= _LOOK_S:
                looked = self._server.loop.time()
                self.look()
            self._wake.clear()
            for key in list(self._keys):
                try:
                    if await self._free_memory(key) is None:
                        self._leave(key)
                    if await self._work(key, _SHARE) >= _SHARE:
                        self._wake.set()  # there is more, after the others
                except Exception:
                    log.exception("embedding in the background failed; it goes on")

    async def embed(self, key: bytes, count: int) -> tuple[int, int]:
        """Embed up to `count` of a memory's records now; how many it did and how many are left."""
        self._tries = {each: tries for each, tries in self._tries.items() if each[0] != key}
        done = await self._work(key, count)
        memory = await self._free_memory(key)
        return done, 0 if memory is None else self._left(key, memory)

    # -- one memory

    async def _work(self, key: bytes, count: int) -> int:
        """Embed until there is no more, or `count` is reached, or the provider fails; how many records that were."""
        done = 0
        while done < count:
            await self._server.transactions.free(key)  # not in the lock: others have none to wait for
            async with self._turn:
                memory = await self._free_memory(key)
                made = None if memory is None else await self._step(key, memory, min(BATCH, count - done))
            if made is None:
                break
            done += made
        return done

    async def _step(self, key: bytes, memory: Memory, most: int) -> int | None:
        """Embed one batch; how many records that were. None: there is nothing more to do, or not now."""
        if self._server.log.failure is not None:
            return None
        if memory.settings.embedder == "auto":
            self._resolve(key, memory)
        settings = memory.settings
        model = self._model(settings)
        if model is None:
            if settings.embedder != "auto":
                self._leave(key)
            return None
        rows = self._rows(key, memory, most)
        if rows:
            vectors, up = await self._ask(key, model, [row.text for row in rows])
            return self._take(key, memory, model, rows, vectors, up)
        if settings.is_switching:
            self._switch(key, memory)
        elif await self._embed_names(key, memory, model) and not self._rows(key, memory, 1):
            self._leave(key)
        return None

    def _memory(self, key: bytes) -> Memory | None:
        return self._server.keyspace.get(key, self._server.clock())

    async def _free_memory(self, key: bytes) -> Memory | None:
        """The same at a moment when it may be changed."""
        await self._server.transactions.free(key)
        return self._memory(key)

    def _leave(self, key: bytes) -> None:
        self._keys.pop(key, None)
        self._next.pop(key, None)

    @staticmethod
    def _model(settings: Settings) -> Model | None:
        return next_model(settings) or model_of_memory(settings)

    async def _ask(self, key: bytes, model: Model, texts: list[bytes]) -> tuple[Vectors, bool]:
        """Their vectors, at a moment when the memory may be changed, and whether None means that the model refuses the
        text: the provider was up all the time."""
        embedding = self._server.embedding
        up = embedding.is_up(model)
        found = embedding.ask(model, texts, keep=True, patient=True)
        vectors = await found if isinstance(found, Future) else found
        await self._server.transactions.free(key)
        return vectors, up and embedding.is_up(model)

    def _resolve(self, key: bytes, memory: Memory) -> None:
        """Look once more for an embedder where there was none."""
        try:
            model = model_of("auto", "", 0, self._server.config)
        except EmbedderError:
            return
        if model.dim > self._server.config["mem-max-dim"]:
            return
        settings = replace(memory.settings, embedder=model.embedder, model=model.name, dim=model.dim)
        self._server.commit(Switch(key, settings, self._server.clock()))

    def _rows(self, key: bytes, memory: Memory, most: int) -> list[_Row]:
        """Up to `most` current records that need a vector, the newest first."""
        if not memory.settings.is_switching:
            model = self._model(memory.settings)
            wanted = (row for row in _current(memory, without_vector=True) if not self._is_refused(key, model, row))
            return list(islice(wanted, most))
        state = self._state(key, memory)
        rows = list(islice(state.rows, most))
        if not rows:
            # The last pass is over, and records were written during it: the change is due when one finds nothing.
            model = state.model
            state.rows = (row for row in _current(memory) if state.lacks(row) and not self._is_refused(key, model, row))
            rows = list(islice(state.rows, most))
        return rows

    def _is_refused(self, key: bytes, model: Model | None, row: _Row) -> bool:
        return model is not None and self._tries.get((key, model, row.serial, row.text), 0) >= _TRIES

    def _left(self, key: bytes, memory: Memory) -> int:
        if not memory.settings.is_switching:
            return memory.pending
        return memory.held - self._state(key, memory).done()

    def _state(self, key: bytes, memory: Memory) -> _Next:
        model = self._model(memory.settings)
        assert model is not None
        state = self._next.get(key)
        if state is None or state.memory is not memory or state.model != model:
            state = self._next[key] = _Next(memory, model)
        return state

    def _take(
        self, key: bytes, memory: Memory, model: Model, rows: list[_Row], vectors: Vectors, up: bool
    ) -> int | None:
        """Commit what was made, as far as it still fits; how many vectors that are, None where the provider failed (not
        `up`)."""
        if self._server.log.failure is not None:  # it has failed since
            return None
        if self._memory(key) is not memory or self._model(memory.settings) != model:
            return 0
        items = []
        for row, vector in zip(rows, vectors, strict=True):
            if vector is None and up:
                name = (key, model, row.serial, row.text)
                # Where the provider takes other texts of the batch it is the text.
                self._tries[name] = _TRIES if any(vectors) else self._tries.get(name, 0) + 1
            elif vector is not None and _as_it_is(memory, row):
                items.append((row, vector))
        if memory.settings.is_switching:
            have = self._state(key, memory).vectors
            for row, vector in items:
                have[row.id] = (row.serial, row.text, vector)
        elif items:
            stored = tuple((row.id, row.serial, vector) for row, vector in items)
            self._server.commit(SetVectors(key, stored, self._server.clock()))
        return len(items) if items or up else None

    def _switch(self, key: bytes, memory: Memory) -> None:
        """Every current record has its new vector, as a pass over them found in this turn of the loop: make them the
        memory's."""
        old, now = memory.settings, self._server.clock()
        state = self._state(key, memory)
        settings = replace(
            old,
            embedder=old.next_embedder,
            model=old.next_model,
            dim=old.next_dim,
            next_embedder="",
            next_model="",
            next_dim=0,
        )
        items = [
            (record_id, serial, vector)
            for record_id, (serial, _, vector) in state.vectors.items()
            if record_id in memory
        ]
        self._server.commit(Switch(key, settings, now))
        for at in range(0, len(items), _PIECE):
            self._server.commit(SetVectors(key, tuple(items[at : at + _PIECE]), now, fills=True))
        del self._next[key]
        self.add(key)  # the entities' names
        log.info("%d records of a memory have vectors of %s now", len(items), settings.model)

    async def _embed_names(self, key: bytes, memory: Memory, model: Model) -> bool:
        """Give entities without a vector theirs; whether none is left that could have one."""
        while True:
            bare = (each for each in memory.entities or () if not each.vector)
            wanted = (each for each in bare if self._tries.get((key, model, 0, each.name), 0) < _TRIES)
            entities = list(islice(wanted, BATCH))
            if not entities:
                return True
            vectors, up = await self._ask(key, model, [each.name for each in entities])
            if self._server.log.failure is not None or not (up or any(vectors)):
                return False
            if self._memory(key) is not memory or self._model(memory.settings) != model:
                return False
            now = self._server.clock()
            for each, vector in zip(entities, vectors, strict=True):
                known = memory.entities.get(each.name, each.type) if memory.entities is not None else None
                if vector is None and up:
                    self._tries[key, model, 0, each.name] = _TRIES
                elif vector is not None and known is not None and not known.vector:
                    entry = PutEntity(key, known.name, known.type, known.created_at, vector, known.aliases, now)
                    self._server.commit(entry)


def _current(memory: Memory, *, without_vector: bool = False) -> Iterator[_Row]:
    """The current records, valid or not, those written last first."""
    for table in [memory.table] if memory.past is None else [memory.table, memory.past]:
        slots = np.flatnonzero(table.alive() & (table.narrow[VROW, : table.n] < 0)) if without_vector else None
        order = range(table.n - 1, -1, -1) if slots is None else slots[::-1].tolist()
        for slot in order:
            if table.by_id.get(table.ids[slot]) == slot:
                yield _Row(table.ids[slot], table.serial(slot), _text(table, slot))


def _text(table: Table, slot: int) -> bytes:
    fact = table.fact(slot)
    return table.texts[slot] if fact is None else spoken(fact)


def _as_it_is(memory: Memory, row: _Row) -> bool:
    """Whether the record is still the one that the row was of."""
    for table in [memory.table] if memory.past is None else [memory.table, memory.past]:
        slot = table.by_id.get(row.id)
        if slot is not None:
            return table.serial(slot) == row.serial and _text(table, slot) == row.text
    return False
