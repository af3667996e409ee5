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
from .names import NAME_MAX, check_name, matching
from .pubsub import AT_ONCE, NS_MAX

if TYPE_CHECKING:
    from .client import Client
    from .transactions import Transaction

_SUBSCRIBES = "pubsub noscript loading stale"
# As much of patterns as takes 20 milliseconds to compile.
_COMPILED_AT_ONCE = 8192
# What a name takes beside that, in bytes to compile.
_NAME = 2
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
    pubsub = ctx.server.pubsub
    new = sum(ns_per_byte(pattern) for pattern in set(args) if pattern not in pubsub.patterns)
    if new and pubsub.ns + new > NS_MAX:
        raise CommandError(
            f"the patterns of all connections would take {-(-(pubsub.ns + new) * NAME_MAX // 1_000_000)} ms to match at"
            f" worst, which exceeds {NS_MAX * NAME_MAX // 1_000_000}; those with one * or none count for nothing"
        )
    return _confirm_each(ctx, b"psubscribe", args, pubsub.subscribe_pattern)


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
    if ctx.transaction is not None:
        _take_from(ctx.transaction, names, compiles=kind == b"psubscribe")
    elif ctx.connection is not None:
        names, *rest = _turns(names)
        if rest:
            ctx.connection.rest = [[kind, *part] for part in reversed(rest)]
    replies = []
    for name in names:
        change(ctx, name)
        replies.append(Push((kind, name, _subscriptions(ctx))))
    # An UNSUBSCRIBE with nothing to end still answers, or its client would wait for ever.
    return Replies(replies or [Push((kind, None, _subscriptions(ctx)))])


def _take_from(transaction: Transaction, names: list[bytes], *, compiles: bool) -> None:
    """A command of EXEC is not divided: refuse what takes longer than a turn. Raises CommandError."""
    taken = transaction.subscribed_bytes + _NAME * len(names) + (sum(map(bytes_to_compile, names)) if compiles else 0)
    if taken > _COMPILED_AT_ONCE:
        raise CommandError(
            f"subscriptions of a transaction may name {_COMPILED_AT_ONCE // _NAME} channels and patterns, fewer where"
            f" PSUBSCRIBE names any with ? [ or \\ ({_COMPILED_AT_ONCE} bytes of these); send the rest outside of it"
        )
    transaction.subscribed_bytes = taken


def _turns(names: list[bytes]) -> list[list[bytes]]:
    """The names of each turn of the loop, in their order; one turn at least."""
    turns: list[list[bytes]] = []
    for start in range(0, len(names) or 1, AT_ONCE):
        turns.append(names[start : start + AT_ONCE])
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
