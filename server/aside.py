"""Large changes of one memory, made aside: to a copy, in a thread, while everybody reads what there was.

Rule 1: the copy costs milliseconds (`Table.copy`). The entries are settled against it and applied to it, as a replay of
        the log would; then, in one turn of the loop, the memory holds what the copy does and the log has the entries.
Rule 2: meanwhile whoever wants to write to the key waits (`Server.holding`), and so does the connection itself. Reads
        go on.
Rule 3: what changes the memory all the same (vectors of its embedder, a write that had begun before) sends the work
        back to its beginning; after a few times the loop does it itself. What expires meanwhile does so in both. A
        snapshot between counts as a change: its base has no more what expired, and the entries may be about that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..index.memory import Memory
from .entries import Entry
from .errors import CommandError
from .incr import encode_entries, encode_group

if TYPE_CHECKING:
    from asyncio import Future

    from .client import Client

Settle = Callable[[Memory], list[Entry]]

# So many records are changed in about 10 milliseconds.
ON_LOOP = 200
_TRIES = 4


def change(
    ctx: Client, key: bytes, memory: Memory, rows: int, settle: Settle, finish: Callable[[list[Entry]], Any]
) -> Any:
    """Commit what `settle(memory)` says, some `rows` records; `finish(these entries)`, the reply, now or as a future.

    `settle` runs in a thread where there are many, and reads nothing but the memory it is given, then a copy,
    and `ctx.now`, which is later where it begins again.
    """
    if ctx.must_finish or rows <= ON_LOOP:
        group = settle(memory)
        ctx.server.commit_all(group)
        return finish(group)
    return _begin(ctx, key, memory, settle, finish, _TRIES)


def _encode_part(group: list[Entry]) -> bytes:
    return b"".join(encode_entries(group))


def _begin(
    ctx: Client, key: bytes, memory: Memory, settle: Settle, finish: Callable[[list[Entry]], Any], tries: int
) -> Any:
    server = ctx.server
    version, twin = memory.version, memory.copy()
    encode = _encode_part if ctx.in_exec else encode_group
    made: list[tuple[list[Entry], bytes]] = []

    def work() -> None:
        group = settle(twin)
        alone = server.keyspace.of_one(key, twin)
        alone.apply_all(group)
        made.append((group, encode(group) if group else b""))

    def install(_: object) -> Any:
        if server.log.failure is not None:
            raise CommandError(server.log.failure, "MISCONF")
        if ctx.look_up(key) is not memory:
            raise CommandError("the key was replaced while its memory was being changed; nothing was written")
        group, encoded = made.pop()
        server.keyspace.foretell(group)
        if memory.version == version:
            if group:
                server.commit_made(key, twin, group, encoded, ctx.now)
            reply = finish(group)
            server.release([group])
            return reply
        if tries:
            return _begin(ctx, key, memory, settle, finish, tries - 1)
        group = settle(memory.copy())
        server.commit_all(group)
        return finish(group)

    def let_go(_: Future[Any]) -> None:
        server.changing.remove(key)
        server.resume(server.paused)

    server.changing.append(key)
    done = ctx.background(work)
    done.add_done_callback(let_go)  # before `install`: what waited has its turn after it
    return ctx.write_after(done, install)
