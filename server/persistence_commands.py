"""BGREWRITEAOF, SAVE, BGSAVE, LASTSAVE, WAITAOF, SHUTDOWN: what the log keeps, and when."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from ..protocol.reply import OK, Replies, SimpleString
from .arguments import Words
from .commands import command
from .errors import CommandError, syntax_error
from .rewrite import Rewriter

if TYPE_CHECKING:
    from .client import Client


def _rewriter(ctx: Client) -> Rewriter:
    rewriter = ctx.server.rewriter
    if rewriter is None:
        raise CommandError("the append-only file is off (appendonly no), so there is nothing to write to")
    return rewriter


@command(
    "BGREWRITEAOF",
    arity=1,
    flags="admin noscript",
    group="persistence",
    usage="BGREWRITEAOF",
    complexity="O(records), in a thread",
)
def bgrewriteaof(ctx: Client, args: list[bytes]) -> SimpleString:
    """Write the log anew, compact, while the server goes on."""
    rewriter = _rewriter(ctx)
    if rewriter.running:
        raise CommandError("Background append only file rewriting already in progress")
    rewriter.start()
    return SimpleString("Background append only file rewriting started")


@command(
    "BGSAVE",
    arity=-1,
    flags="admin noscript",
    group="persistence",
    usage="BGSAVE [SCHEDULE]",
    complexity="O(records), in a thread",
)
def bgsave(ctx: Client, args: list[bytes]) -> SimpleString:
    """The same as BGREWRITEAOF: the log's base file is the snapshot."""
    schedule = len(args) == 1 and args[0].upper() == b"SCHEDULE"
    if args and not schedule:
        raise syntax_error()
    rewriter = _rewriter(ctx)
    if rewriter.running and not schedule:
        raise CommandError("Background save already in progress")
    rewriter.start()
    return SimpleString("Background saving scheduled" if schedule else "Background saving started")


@command("SAVE", arity=1, flags="admin noscript no_multi", group="persistence", usage="SAVE", complexity="O(records)")
def save(ctx: Client, args: list[bytes]) -> Any:
    """Write the log anew and reply when it is done; others are served meanwhile."""
    rewriter = _rewriter(ctx)
    reply = ctx.server.loop.create_future()

    async def wait() -> None:
        # One that is running may have begun before this client's last write.
        if rewriter.running:
            await rewriter.start()
        done = await rewriter.start()
        if reply.done():
            return
        if done:
            reply.set_result(OK)
        else:
            reply.set_exception(CommandError("the rewrite failed; the server's log says why"))

    ctx.server.spawn(wait())
    return reply


@command("LASTSAVE", arity=1, flags="loading stale fast", group="persistence", usage="LASTSAVE")
def lastsave(ctx: Client, args: list[bytes]) -> int:
    """Unix time in seconds of the last successful rewrite, or of the start."""
    rewriter = ctx.server.rewriter
    return ctx.server.started_ms // 1000 if rewriter is None else rewriter.last_save_s


@command(
    "WAITAOF",
    arity=4,
    flags="noscript",
    group="persistence",
    usage="WAITAOF numlocal numreplicas timeout",
    options=("numlocal: 1 waits for this server's disk, 0 does not", "timeout: milliseconds, 0 for ever"),
)
def waitaof(ctx: Client, args: list[bytes]) -> Any:
    """Wait until this client's writes so far are on the disk: [1 or 0, replicas (none)]."""
    words = Words(args)
    local, replicas, timeout_ms = words.integer(), words.integer(), words.integer()
    if local not in (0, 1) or replicas < 0:
        raise CommandError("value is out of range, must be between 0 and 1")
    if timeout_ms < 0:
        raise CommandError("timeout is negative")
    log = ctx.server.log
    if local and not log.keeps:
        raise CommandError("WAITAOF cannot be used when numlocal is set but appendonly is disabled.")
    position = log.position
    if ctx.in_exec or (log.durable >= position and not replicas):
        return [int(log.keeps and log.durable >= position), 0]

    async def wait() -> list[int]:
        # Replicas there are none of, so asking for some lasts until the timeout.
        waiting = asyncio.Event().wait() if replicas else log.wait_durable(position)
        with suppress(TimeoutError):
            await asyncio.wait_for(waiting, timeout_ms / 1000 if timeout_ms else None)
        return [int(log.keeps and log.durable >= position), 0]

    return ctx.server.spawn(wait())


@command(
    "SHUTDOWN",
    arity=-1,
    flags="admin noscript loading stale no_multi",
    group="persistence",
    usage="SHUTDOWN [NOSAVE|SAVE] [NOW] [FORCE]",
    options=(
        "SAVE: write the log anew first",
        "NOSAVE: only write and sync what is logged, as without either word",
        "NOW: wait for no client (see shutdown-timeout)",
        "FORCE: stop although SAVE failed",
    ),
)
def shutdown(ctx: Client, args: list[bytes]) -> Any:
    """Stop the server, everything logged and synced; no reply where it succeeds."""
    words = [word.upper() for word in args]
    if not set(words) <= {b"SAVE", b"NOSAVE", b"NOW", b"FORCE"} or {b"SAVE", b"NOSAVE"} <= set(words):
        raise syntax_error()
    server = ctx.server
    reply = server.loop.create_future()

    async def stop() -> None:
        if b"SAVE" in words and not await _rewriter(ctx).start() and b"FORCE" not in words:
            reply.set_exception(CommandError("Errors trying to SHUTDOWN. Check logs."))
            return
        reply.set_result(Replies())  # none
        server.request_stop(hurry=b"NOW" in words)

    if b"SAVE" in words:
        _rewriter(ctx)  # the error where there is no log
    server.spawn(stop())
    return reply
