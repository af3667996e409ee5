"""MEM.TIER, MEM.EMBED: what texts are looked up with, and the vectors that are still to be made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .arguments import Words
from .commands import command
from .errors import CommandError
from .memory_commands import find, tier

if TYPE_CHECKING:
    from .client import Client


@command("MEM.TIER", arity=2, flags="readonly fast", keys=(1, 1, 1), group="memory", usage="MEM.TIER key")
def show_tier(ctx: Client, args: list[bytes]) -> str:
    """Say what the next query with a text would use: hybrid, keyword, vector or like."""
    return tier(ctx, find(ctx, args[0]).settings)


@command(
    "MEM.EMBED",
    arity=-2,
    flags="write denyoom",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.EMBED key [COUNT n]",
    complexity="O(records without a vector)",
    options=("COUNT n: at most so many records (all)",),
)
def embed(ctx: Client, args: list[bytes]) -> Any:
    """Make the vectors that a memory lacks, now; how many were made and how many are left."""
    words, count = Words(args, 1), 1 << 62
    while words:
        if words.option() != b"COUNT":
            raise words.unexpected()
        count = words.integer()
        if count < 1:
            raise CommandError("COUNT must be positive")
    memory = find(ctx, args[0])
    if not memory.settings.embeds:
        raise CommandError("this memory has no embedder; MEM.CONFIG key EMBEDDER name gives it one")
    if ctx.in_exec:
        raise CommandError("MEM.EMBED waits for an embedder, which EXEC cannot")
    server = ctx.server
    return ctx.write_after(server.spawn(server.backfill.embed(args[0], count)), list)
