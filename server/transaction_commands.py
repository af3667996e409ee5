"""MULTI, EXEC and WATCH.

Commands between MULTI and EXEC are checked and queued by dispatch. EXEC runs them without anything in between, at one
time (transactions.py), and logs all that they wrote as one group: after a crash it has happened whole or not at all.

What they reply is added up: a client whose replies become more than its output buffer may hold is cut off in the end.
What it has written is written; what would only have read for it is not run any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..protocol.reply import NULL_ARRAY, OK, SimpleString
from .commands import command
from .errors import CommandError
from .transactions import Queue, Transaction

if TYPE_CHECKING:
    from .client import Client

_FLAGS = "noscript loading stale fast allow_busy"


@command("MULTI", arity=1, flags=_FLAGS, usage="MULTI", group="transactions")
def multi(ctx: Client, args: list[bytes]) -> SimpleString:
    """Start a transaction: what follows is queued until EXEC."""
    if ctx.multi is not None:
        raise CommandError("MULTI calls can not be nested")
    ctx.multi = Queue()
    return OK


@command(
    "EXEC",
    arity=1,
    flags="noscript loading stale skip_slowlog",
    usage="EXEC",
    complexity="that of the commands",
    group="transactions",
)
def exec_(ctx: Client, args: list[bytes]) -> Any:
    """Run what was queued since MULTI, without anything in between; reply with all the replies."""
    if ctx.multi is None:
        raise CommandError("EXEC without MULTI")
    server = ctx.server
    for key in list(ctx.watched):
        server.keyspace.get(key, ctx.now)  # what has expired meanwhile counts as changed
    queue, dirty = ctx.multi, ctx.dirty
    if queue.failed or dirty:
        ctx.discard_transaction()
        if queue.failed:
            raise CommandError("Transaction discarded because of previous errors.", "EXECABORT")
        return NULL_ARRAY
    ctx.multi = None
    server.unwatch(ctx)
    return Transaction(ctx, queue, at_once=server.transactions.bars(queue)).begin()


@command("DISCARD", arity=1, flags=_FLAGS, usage="DISCARD", complexity="O(commands)", group="transactions")
def discard(ctx: Client, args: list[bytes]) -> SimpleString:
    """Forget what was queued since MULTI, and all watches."""
    if ctx.multi is None:
        raise CommandError("DISCARD without MULTI")
    ctx.discard_transaction()
    return OK


@command(
    "WATCH",
    arity=-2,
    flags=_FLAGS,
    keys=(1, -1, 1),
    key_flags=["RO"],
    usage="WATCH key [key ...]",
    complexity="O(keys)",
    group="transactions",
)
def watch(ctx: Client, args: list[bytes]) -> SimpleString:
    """Let the next EXEC run only if these keys have not changed until then."""
    if ctx.multi is not None:
        raise CommandError("WATCH inside MULTI is not allowed")
    ctx.check_names(ctx.watched, args, "watched keys")
    for key in args:
        ctx.server.keyspace.get(key, ctx.now)  # what is due already must not count as a change later
        ctx.server.watch(ctx, key)
    return OK


@command("UNWATCH", arity=1, flags=_FLAGS, usage="UNWATCH", group="transactions")
def unwatch(ctx: Client, args: list[bytes]) -> SimpleString:
    """Forget all watches."""
    ctx.server.unwatch(ctx)
    return OK
