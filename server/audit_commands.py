"""MEM.AUDIT: who read a memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .arguments import Words
from .audit import as_map
from .commands import command
from .errors import CommandError

if TYPE_CHECKING:
    from .client import Client


@command(
    "MEM.AUDIT",
    arity=-2,
    flags="readonly admin",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.AUDIT key [LIMIT n] [ACCESSOR user] [FROM time]",
    complexity="O(entries kept)",
    options=(
        "LIMIT n: how many, 1 to 1000 (50)",
        "ACCESSOR user: only that user's reads",
        "FROM time: only those from then on",
    ),
)
def audit(ctx: Client, args: list[bytes]) -> list[dict[str, Any]]:
    """List the reads of a memory that mem-audit had kept, the newest first."""
    words, limit, accessor, since = Words(args, 1), 50, None, 0
    while words:
        option = words.option()
        if option == b"LIMIT":
            limit = words.integer()
            if not 1 <= limit <= 1000:
                raise CommandError("LIMIT must be between 1 and 1000")
        elif option == b"ACCESSOR":
            accessor = words.next().decode("utf-8", "surrogateescape")
        elif option == b"FROM":
            since = words.time()
        else:
            raise words.unexpected()
    # The memory may be gone: who read it is still to be told.
    return [as_map(seen) for seen in ctx.server.audit.entries(args[0], accessor, since, limit)]
