"""MONITOR."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.reply import OK, SimpleString
from .commands import command
from .errors import CommandError

if TYPE_CHECKING:
    from .client import Client


@command("MONITOR", arity=1, flags="admin noscript loading stale", usage="MONITOR", group="server")
def monitor(ctx: Client, args: list[bytes]) -> SimpleString:
    """Show every command that runs from now on, but those for administrators; RESET ends it.

    Passwords are left out, vectors shown by their size, very long words cut.
    """
    if ctx.in_exec:
        raise CommandError("MONITOR isn't allowed for DENY BLOCKING client")  # Redis's words
    ctx.server.observer.monitor(ctx)
    return OK
