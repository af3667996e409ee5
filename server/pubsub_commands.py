"""SUBSCRIBE and its family, PUBLISH, PUBSUB.

A subscription is confirmed per channel by a push, which is all the reply there is. On RESP2 a push is an array like
any other, so a subscribed client may send little else (dispatch.py); on RESP3 it may go on as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ..protocol.reply import Push, Replies
from .commands import command, container
from .errors import CommandError
from .glob import check_glob, compile_glob

if TYPE_CHECKING:
    from .client import Client

_SUBSCRIBES = "pubsub noscript loading stale"
# As many names as take two milliseconds or three.
_AT_ONCE = 500
_LISTS = "pubsub loading stale"


@command(
    "SUBSCRIBE",
    arity=-2,
    flags=_SUBSCRIBES,
    usage="SUBSCRIBE channel [channel ...]",
    complexity="O(channels)",
    group="pubsub",
)
def subscribe(ctx: Client, args: list[bytes]) -> Replies:
    """Listen to channels."""
    ctx.check_names(ctx.channels, args, "channels")
    return _confirm_each(ctx, b"subscribe", args, ctx.server.pubsub.subscribe)


@command(
    "PSUBSCRIBE",
    arity=-2,
    flags=_SUBSCRIBES,
    usage="PSUBSCRIBE pattern [pattern ...]",
    complexity="O(patterns)",
    group="pubsub",
)
def psubscribe(ctx: Client, args: list[bytes]) -> Replies:
    """Listen to all channels that match a glob pattern."""
    ctx.check_names(ctx.patterns, args, "patterns")
    for pattern in args:
        check_glob(pattern)  # one that is refused refuses the command, before anything of it is done
    return _confirm_each(ctx, b"psubscribe", args, ctx.server.pubsub.subscribe_pattern)


@command(
    "UNSUBSCRIBE",
    arity=-1,
    flags=_SUBSCRIBES,
    usage="UNSUBSCRIBE [channel [channel ...]]",
    complexity="O(channels)",
    group="pubsub",
)
def unsubscribe(ctx: Client, args: list[bytes]) -> Replies:
    """Stop listening to channels, to all of them where none is named."""
    return _confirm_each(ctx, b"unsubscribe", args or sorted(ctx.channels), ctx.server.pubsub.unsubscribe)


@command(
    "PUNSUBSCRIBE",
    arity=-1,
    flags=_SUBSCRIBES,
    usage="PUNSUBSCRIBE [pattern [pattern ...]]",
    complexity="O(patterns)",
    group="pubsub",
)
def punsubscribe(ctx: Client, args: list[bytes]) -> Replies:
    """Stop listening to patterns, to all of them where none is named."""
    return _confirm_each(ctx, b"punsubscribe", args or sorted(ctx.patterns), ctx.server.pubsub.unsubscribe_pattern)


def _confirm_each(ctx: Client, kind: bytes, names: list[bytes], change: Callable[[Client, bytes], None]) -> Replies:
    """Apply `change` to each name; each reply says how many subscriptions there are by then. Of very many names, the
    rest are the connection's next commands: others have their turn between."""
    if len(names) > _AT_ONCE and ctx.connection is not None and not ctx.in_exec:
        starts = range(_AT_ONCE, len(names), _AT_ONCE)
        ctx.connection.rest = [[kind, *names[start : start + _AT_ONCE]] for start in reversed(starts)]
        names = names[:_AT_ONCE]
    replies = []
    for name in names:
        change(ctx, name)
        replies.append(Push((kind, name, _subscriptions(ctx))))
    # An UNSUBSCRIBE with nothing to end still answers, or its client would wait for ever.
    return Replies(replies or [Push((kind, None, _subscriptions(ctx)))])


def _subscriptions(ctx: Client) -> int:
    return len(ctx.channels) + len(ctx.patterns)


@command(
    "PUBLISH",
    arity=3,
    flags="pubsub loading stale fast",
    usage="PUBLISH channel message",
    complexity="O(receivers + patterns)",
    group="pubsub",
)
def publish(ctx: Client, args: list[bytes]) -> int:
    """Send a message to all that listen to a channel; reply with how many times it was sent."""
    return ctx.server.pubsub.publish(args[0], args[1])


container("PUBSUB", summary="Look at channels and their subscribers.", group="pubsub")


@command(
    "PUBSUB CHANNELS",
    arity=-2,
    flags=_LISTS,
    usage="PUBSUB CHANNELS [pattern]",
    complexity="O(channels)",
    group="pubsub",
)
def pubsub_channels(ctx: Client, args: list[bytes]) -> list[bytes]:
    """List the channels that have subscribers, those that match a glob pattern where one is given."""
    if len(args) > 1:
        raise CommandError(
            "unknown subcommand or wrong number of arguments for 'CHANNELS'. Try PUBSUB HELP."  # Redis's words
        )
    channels = ctx.server.pubsub.channels
    if not args:
        return list(channels)
    matches = compile_glob(args[0]).fullmatch
    return [channel for channel in channels if matches(channel)]


@command(
    "PUBSUB NUMSUB",
    arity=-2,
    flags=_LISTS,
    usage="PUBSUB NUMSUB [channel [channel ...]]",
    complexity="O(channels)",
    group="pubsub",
)
def pubsub_numsub(ctx: Client, args: list[bytes]) -> list[bytes | int]:
    """Count the subscribers of each channel, those by pattern left out."""
    channels = ctx.server.pubsub.channels
    return [word for channel in args for word in (channel, len(channels.get(channel, ())))]


@command("PUBSUB NUMPAT", arity=2, flags=_LISTS, usage="PUBSUB NUMPAT", group="pubsub")
def pubsub_numpat(ctx: Client, args: list[bytes]) -> int:
    """Count the patterns that have subscribers."""
    return len(ctx.server.pubsub.patterns)
