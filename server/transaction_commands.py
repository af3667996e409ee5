"""MULTI, EXEC and WATCH.

Commands between MULTI and EXEC are checked and queued by dispatch. EXEC runs them without anything in between, at one
time, and logs all that they wrote as one group: after a crash it has happened whole or not at all.

What they reply is bytes at once, so that it can be added up: a client whose replies become more than its output buffer
may hold is cut off in the end. What it has written is written; what would only have read for it is not run any more.
"""

from __future__ import annotations

import asyncio
from asyncio import Future
from typing import TYPE_CHECKING, Any

from ..protocol.encoder import encode
from ..protocol.reply import NULL_ARRAY, OK, Encoded, SimpleString
from .commands import Command, PendingWrite, command
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
    ctx.discard_transaction()  # the queue goes, but not in this turn of the loop
    if failed:
        raise CommandError("Transaction discarded because of previous errors.", "EXECABORT")
    if dirty:
        return NULL_ARRAY

    group = server.group = []
    ctx.in_exec = True
    ctx.exec_subscribes = 0
    most, size = ctx.connection.most_reply_bytes, 0
    replies: list[Any] = []
    try:
        for entry, words in queue:
            if most and size > most and "readonly" in entry.flags:
                continue
            reply = _as_bytes(ctx, _run(ctx, entry, words))
            if isinstance(reply, bytes):
                size += len(reply)
            replies.append(reply)
    finally:
        ctx.in_exec = False
        server.group = None
        if group:
            server.log.append(group)
    if any(isinstance(reply, Future) for reply in replies):
        return server.loop.create_task(_settle(ctx, [entry.name for entry, _ in queue], replies, size))
    if most and size > most:
        ctx.connection.cut_off()
        return []
    return replies


def _run(ctx: Client, entry: Command, words: list[bytes]) -> Any:
    if entry.name not in ctx.granted:
        try:
            ctx.server.acl.check_queued(ctx, entry, words)
        except CommandError as error:
            return error_reply(ctx, entry.name, error)
    return call(ctx, entry, words)


async def _settle(ctx: Client, names: list[str], replies: list[Any], size: int) -> list[Any]:
    """Wait for the replies that threads still work on; `size` is that of the others, in bytes."""
    most = ctx.connection.most_reply_bytes
    for at, reply in enumerate(replies):
        if not isinstance(reply, Future):
            continue
        if most and size > most and not isinstance(reply, PendingWrite):
            reply.cancel()  # what has not begun does not
            continue
        await asyncio.wait([reply])
        replies[at] = _as_bytes(ctx, settled(ctx, names[at], reply))
        if isinstance(replies[at], bytes):
            size += len(replies[at])
    if most and size > most:
        ctx.connection.cut_off()
        return []
    return replies


def _as_bytes(ctx: Client, reply: Any) -> Any:
    """A reply that may be large as what is sent of it."""
    return Encoded(encode(reply, ctx.proto)) if type(reply) is list or type(reply) is dict else reply


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
