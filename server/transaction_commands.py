"""MULTI, EXEC and WATCH.

Commands between MULTI and EXEC are checked and queued by dispatch. EXEC runs them without anything in between, at one
time, and logs all that they wrote as one group: after a crash it has happened whole or not at all.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from typing import TYPE_CHECKING, Any

from ..protocol.reply import NULL_ARRAY, OK, SimpleString
from .commands import Command, command
from .dispatch import call, error_reply, settled
from .errors import CommandError

if TYPE_CHECKING:
    from .client import Client

_FLAGS = "noscript loading stale fast allow_busy"


@command("MULTI", arity=1, flags=_FLAGS, usage="MULTI", group="transactions")
def multi(ctx: Client, args: list[bytes]) -> SimpleString:
    """Start a transaction: what follows is queued until EXEC."""
    if ctx.multi is not None:
        raise CommandError("MULTI calls can not be nested")
    ctx.multi = []
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
    queue, failed, dirty = ctx.multi, ctx.multi_failed, ctx.dirty
    ctx.discard_transaction()
    if failed:
        raise CommandError("Transaction discarded because of previous errors.", "EXECABORT")
    if dirty:
        return NULL_ARRAY

    group = server.group = []
    ctx.in_exec = True
    try:
        replies = [_run(ctx, entry, words) for entry, words in queue]
    finally:
        ctx.in_exec = False
        server.group = None
        if group:
            server.log.append(group)
    if not any(isinstance(reply, Future) for reply in replies):
        return replies
    return server.loop.create_task(_settle(ctx, [entry.name for entry, _ in queue], replies))


def _run(ctx: Client, entry: Command, words: list[bytes]) -> Any:
    if entry.name not in ctx.granted:
        try:
            ctx.server.acl.check_queued(ctx, entry, words)
        except CommandError as error:
            return error_reply(ctx, entry.name, error)
    return call(ctx, entry, words)


async def _settle(ctx: Client, names: list[str], replies: list[Any]) -> list[Any]:
    """Wait for the replies that threads still work on."""
    await asyncio.wait([reply for reply in replies if isinstance(reply, Future)])
    return [
        settled(ctx, name, reply) if isinstance(reply, Future) else reply
        for name, reply in zip(names, replies, strict=True)
    ]


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
    for key in args:
        ctx.server.keyspace.get(key, ctx.now)  # what is due already must not count as a change later
        ctx.server.watch(ctx, key)
    return OK


@command("UNWATCH", arity=1, flags=_FLAGS, usage="UNWATCH", group="transactions")
def unwatch(ctx: Client, args: list[bytes]) -> SimpleString:
    """Forget all watches."""
    ctx.server.unwatch(ctx)
    return OK
