"""What an embedder adds to commands: texts that come without a vector get one.

A write waits for its vectors and is settled when they are there, as things stand then; a read fixes the moment it sees
at once and only runs later. EXEC is one moment and waits for nothing: it takes what is cached. What has no vector goes
on without: a record is pending (backfill.py), a query answers from the next tier down.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..index.entities import Entity
from ..index.memory import Memory
from ..index.side import Fact
from ..index.view import View
from .client import chain
from .embedding import Model
from .errors import CommandError
from .memory_commands import find, model_of_memory, next_model

if TYPE_CHECKING:
    from .client import Client
    from .keyspace import Keyspace

Vectors = list[bytes | None]
Vector64 = npt.NDArray[np.float64]


def spoken(fact: Fact) -> bytes:
    """What is embedded of a fact."""
    anchor = fact.object if fact.entity_type else fact.subject
    return fact.text + b". About: " + anchor + b"."


def widened(vector: bytes) -> Vector64:
    """float32 bytes as the float64 vector (dim,) that a client's would be."""
    return np.frombuffer(vector, "<f4").astype(np.float64)


def live_digests(keyspace: Keyspace, now: int) -> Callable[[], Iterator[bytes]]:
    """The sha256 of whatever is embedded in some memory now, found when the result is called, in any thread."""
    held: list[tuple[list[View], tuple[Entity, ...]]] = [
        (memory.views(now), tuple(memory.entities or ()))
        for memory in keyspace.memories.values()
        if memory.settings.embeds
    ]

    def digests() -> Iterator[bytes]:
        for views, entities in held:
            for entity in entities:
                yield sha256(entity.name).digest()
            for view in views:
                for slot in range(view.n) if (alive := view.alive()) is None else np.flatnonzero(alive).tolist():
                    fact = None if view.side is None else view.facts[slot]
                    yield sha256(view.texts[slot] if fact is None else spoken(fact)).digest()

    return digests


def write_with_vectors(
    ctx: Client,
    key: bytes,
    memory: Memory,
    texts: list[bytes],
    settle: Callable[[Memory, Vectors], Any],
    others: Sequence[bytes] = (),
) -> Any:
    """`settle(memory, a vector or None for each text)`, the reply of a write: now, or once they are there. `others` are
    texts that came with a vector, of which only the memory's next model makes one."""
    nothing: Vectors = [None] * len(texts)
    # Those of the next model wait in the cache: a change would never end where writes outrun the backfill.
    wanted = {model_of_memory(memory.settings): texts, next_model(memory.settings): [*texts, *others]}
    wanted.pop(None, None)
    if not any(wanted.values()):
        return settle(memory, nothing)
    embedding, backfill = ctx.server.embedding, ctx.server.backfill

    def finish(memory: Memory, vectors: Vectors) -> Any:
        reply = settle(memory, vectors)
        if None in vectors:
            backfill.add(key)
        return reply

    def settled(memory: Memory) -> Any:
        model = model_of_memory(memory.settings)
        found = made.get(model, nothing) if model is not None else nothing
        return finish(memory, (found.result() if isinstance(found, Future) else found)[: len(texts)])

    def late(_: object) -> Any:
        if ctx.server.log.failure is not None:
            raise CommandError(ctx.server.log.failure, "MISCONF")
        return settled(find(ctx, key))

    made: dict[Model, Vectors | Future[Vectors]] = {
        model: embedding.cached(model, some) if ctx.in_exec else embedding.ask(model, some, keep=True)
        for model, some in wanted.items()
        if model is not None
    }
    waited = [found for found in made.values() if isinstance(found, Future)]
    if not waited:
        return settled(memory)
    return ctx.write_after(waited[0] if len(waited) == 1 else asyncio.gather(*waited), late)


def read_with_vector(ctx: Client, memory: Memory, text: bytes, run: Callable[[bytes | None], Any]) -> Any:
    """`run(the text's vector, None where there is none to be had)`: now, or a future of it."""
    model = model_of_memory(memory.settings)
    if model is None:
        return run(None)
    embedding = ctx.server.embedding
    found = embedding.cached(model, [text]) if ctx.in_exec else embedding.ask(model, [text], keep=False)
    if not isinstance(found, Future):
        return run(found[0])
    reply: Future[Any] = ctx.server.loop.create_future()

    def then(done: Future[Vectors]) -> None:
        if reply.cancelled() or done.cancelled():
            reply.cancel()
            return
        try:
            answer = run(done.result()[0])
        except Exception as error:
            reply.set_exception(error)
            return
        if isinstance(answer, Future):
            chain(answer, reply)
        else:
            reply.set_result(answer)

    found.add_done_callback(then)
    return reply
