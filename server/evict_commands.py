"""MEM.EVICT: who goes first, and why."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

from .arguments import Words
from .commands import command
from .errors import CommandError
from .memory_commands import find
from .room import announce_evicted, evictions

if TYPE_CHECKING:
    from .client import Client


@command(
    "MEM.EVICT",
    arity=-2,
    flags="write",
    keys=(1, 1, 1),
    key_flags=["RW access update"],
    group="memory",
    usage="MEM.EVICT key [COUNT n] [DRYRUN]",
    complexity="O(records), then O(n)",
    options=(
        "COUNT n: how many, 1 to 1000 (1); fewer where no more are without a PIN",
        "DRYRUN: only say which, and what each is worth keeping",
    ),
)
def evict(ctx: Client, args: list[bytes]) -> list[Any]:
    """Evict the records of least retention, as a full memory does by itself: maps of their ids and retention."""
    words, count, dry_run = Words(args, 1), 1, False
    while words:
        option = words.option()
        if option == b"COUNT":
            count = words.integer()
            if not 1 <= count <= 1000:
                raise CommandError("COUNT must be between 1 and 1000")
        elif option == b"DRYRUN":
            dry_run = True
        else:
            raise words.unexpected()
    key, memory = args[0], find(ctx, args[0])
    places = list(islice(memory.least(ctx.now), count))
    shown = [{"id": place.id, **memory.retention(place, ctx.now)._asdict()} for place in places]
    if not dry_run:
        ids = tuple(place.id for place in places)
        ctx.server.commit_all(evictions(key, memory, ids, ctx.now))
        announce_evicted(ctx.server, key, ids)
    return shown
