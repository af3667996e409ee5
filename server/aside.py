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

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from ..index.memory import Memory
from .entries import Entry, PutNew
from .errors import CommandError
from .incr import encode_entries, framed

if TYPE_CHECKING:
    from asyncio import Future

    from .client import Client

Settle = Callable[[Memory], list[Entry]]
Part = list[Any]  # of entries, PutNew among them
Parts = Callable[[Memory], Iterator[Part]]

# So many records are changed in about 10 milliseconds.
ON_LOOP = 200
_TRIES = 4


def change(
    ctx: Client,
    key: bytes,
    memory: Memory,
    rows: int,
    settle: Settle,
    finish: Callable[[Part], Any],
    parts: Parts | None = None,
) -> Any:
    """Commit what `settle(memory)` says, some `rows` records; `finish(these entries)`, the reply, now or as a future.

    `settle` runs in a thread where there are many, and reads nothing but the memory it is given, then a copy,
    and `ctx.now`, which is later where it begins again. There `parts` takes its place where it is given: what it says
    is applied to the copy before it is asked for more, so that a large command needs no memory for all that it makes
    at once; `finish` then gets the last of it.
    """
    if ctx.must_finish or rows <= ON_LOOP:
        group = settle(memory)
        ctx.server.commit_all(group)
        return finish(group)
    return _begin(ctx, key, memory, settle, finish, parts or (lambda memory: iter([settle(memory)])), _TRIES)


def joined(pieces: list[bytes]) -> bytes:
    """What was made, for the log: the thread's last step."""
    return b"".join(pieces)


def _begin(
    ctx: Client,
    key: bytes,
    memory: Memory,
    settle: Settle,
    finish: Callable[[Part], Any],
    parts: Parts,
    tries: int,
) -> Any:
    server = ctx.server
    version, twin = memory.version, memory.copy()
    in_exec = ctx.in_exec
    made: list[tuple[Part, int, bytes]] = []

    def work() -> None:
        alone = server.keyspace.of_one(key, twin)
        pieces: list[bytes] = []
        count = 0
        group: Part = []
        for group in parts(twin):
            alone.apply_all(group)
            pieces += encode_entries(group)
            count += sum([len(entry.ids) if isinstance(entry, PutNew) else 1 for entry in group])
        made.append((group, count, joined(pieces if in_exec else framed(pieces, count)) if count else b""))

    def install(_: object) -> Any:
        if server.log.failure is not None:
            raise CommandError(server.log.failure, "MISCONF")
        if ctx.look_up(key) is not memory:
            raise CommandError("the key was replaced while its memory was being changed; nothing was written")
        group, count, encoded = made.pop()
        server.keyspace.foretell(group)
        if memory.version == version:
            if count:
                server.commit_made(key, twin, group, count, encoded, ctx.now)
            reply = finish(group)
            server.release([group])
            return reply
        if tries:
            return _begin(ctx, key, memory, settle, finish, parts, tries - 1)
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
