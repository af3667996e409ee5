"""SUBSCRIBE and its family, PUBLISH, PUBSUB.

A subscription is confirmed per channel by a push, which is all the reply there is. On RESP2 a push is an array like
any other, so a subscribed client may send little else (dispatch.py); on RESP3 it may go on as before.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..protocol.reply import Push, Replies
from .commands import command, container
from .errors import CommandError
from .glob import bytes_to_compile, check_glob, ns_per_byte
from .names import NAME_MAX, NS_MAX, check_name, matching

if TYPE_CHECKING:
    from .client import Client

_SUBSCRIBES = "pubsub noscript loading stale"
# As many names as take two milliseconds or three, and as much of patterns as takes 20 to compile.
_AT_ONCE = 500
_COMPILED_AT_ONCE = 8192
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
    for channel in args:
        check_name(channel, "channel")
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
    for pattern in args:  # one that is refused refuses the command, before anything of it is done
        check_name(pattern, "pattern")
        check_glob(pattern)
    ctx.check_names(ctx.patterns, args, "patterns")
    ns = ctx.patterns.ns + sum(map(ns_per_byte, set(args) - ctx.patterns))
    if ns > NS_MAX:
        raise CommandError(
            f"the patterns of one connection would take {ns * NAME_MAX // 1_000_000} ms to match at worst,"
            f" which exceeds {NS_MAX * NAME_MAX // 1_000_000}; those with one * or none count for nothing"
        )
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
    if ctx.connection is not None and not ctx.in_exec:
        names, *rest = _turns(names)
        if rest:
            ctx.connection.rest = [[kind, *part] for part in reversed(rest)]
    replies = []
    for name in names:
        change(ctx, name)
        replies.append(Push((kind, name, _subscriptions(ctx))))
    # An UNSUBSCRIBE with nothing to end still answers, or its client would wait for ever.
    return Replies(replies or [Push((kind, None, _subscriptions(ctx)))])


def _turns(names: list[bytes]) -> list[list[bytes]]:
    """The names of each turn of the loop, in their order; one turn at least."""
    turns: list[list[bytes]] = []
    for start in range(0, len(names) or 1, _AT_ONCE):
        turns.append(names[start : start + _AT_ONCE])
        sizes = list(map(bytes_to_compile, turns[-1]))
        if sum(sizes) <= _COMPILED_AT_ONCE:
            continue
        turn: list[bytes] = []
        left = _COMPILED_AT_ONCE
        for name, size in zip(turns.pop(), sizes, strict=True):
            if turn and size > left:
                turns.append(turn)
                turn, left = [], _COMPILED_AT_ONCE
            turn.append(name)
            left -= size
        turns.append(turn)
    return turns


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
    check_name(args[0], "channel")
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
def pubsub_channels(ctx: Client, args: list[bytes]) -> Any:
    """List the channels that have subscribers, those that match a glob pattern where one is given."""
    if len(args) > 1:
        raise CommandError(
            "unknown subcommand or wrong number of arguments for 'CHANNELS'. Try PUBSUB HELP."  # Redis's words
        )
    return matching(ctx, list(ctx.server.pubsub.channels), args[0] if args else b"*")


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
