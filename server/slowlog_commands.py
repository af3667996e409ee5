"""SLOWLOG."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..protocol.reply import OK, SimpleString
from .arguments import integer
from .commands import command, container
from .errors import CommandError

if TYPE_CHECKING:
    from .client import Client

_FLAGS = "admin loading stale"
_SHOWN = 10

container("SLOWLOG", summary="Show the commands that took long.", group="server")


@command(
    "SLOWLOG GET",
    arity=-2,
    flags=_FLAGS,
    usage="SLOWLOG GET [count]",
    complexity="O(count)",
    group="server",
    options=[
        "count: how many, -1 for all (10)",
        "an entry is: id, unix time in seconds, microseconds, the words, the client's address, its name",
    ],
)
def slowlog_get(ctx: Client, args: list[bytes]) -> list[list[Any]]:
    """Show the commands that took slowlog-log-slower-than microseconds or more, the newest first."""
    count = _SHOWN
    if len(args) > 1:
        raise CommandError("wrong number of arguments for 'slowlog|get' command")
    if args:
        try:
            count = integer(args[0])
        except CommandError:
            count = -2
        if count < -1:
            raise CommandError("count should be greater than or equal to -1")
    return [
        [slow.id, slow.time_s, slow.usec, slow.words, slow.addr, slow.client_name]
        for slow in ctx.server.observer.slowlog.newest(count)
    ]


@command("SLOWLOG LEN", arity=2, flags=_FLAGS, usage="SLOWLOG LEN", group="server")
def slowlog_len(ctx: Client, args: list[bytes]) -> int:
    """Count the entries of the slow log."""
    return len(ctx.server.observer.slowlog)


@command("SLOWLOG RESET", arity=2, flags=_FLAGS, usage="SLOWLOG RESET", complexity="O(entries)", group="server")
def slowlog_reset(ctx: Client, args: list[bytes]) -> SimpleString:
    """Empty the slow log."""
    ctx.server.observer.slowlog.clear()
    return OK
