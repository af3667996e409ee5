"""DUMP and RESTORE: a memory as bytes, with its records, times, counter and settings (payload.py draws them).

A large memory is written, and a large payload read, in a thread. DUMP gives the moment at which it came; RESTORE stops
its connection until it is done, and decides at its end whether the key is free.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..index.analyzer import Vocabulary
from ..index.memory import Memory
from ..protocol.reply import OK, Ready, SimpleString
from .arguments import Words, integer
from .base import Frozen, freeze
from .commands import command
from .entries import Drop, Restore
from .errors import CommandError, syntax_error
from .names import check_name
from .payload import PayloadDamaged, dump, load, pieces

if TYPE_CHECKING:
    from .client import Client

_INT64_MAX = (1 << 63) - 1
# So many rows are written in about a millisecond, so many bytes read in two (20 records, their texts analysed anew):
# below it a thread is not worth the handover.
_DUMP_INLINE = 64
_RESTORE_INLINE = 1 << 13


@command(
    "DUMP",
    arity=2,
    flags="readonly",
    keys=(1, 1, 1),
    usage="DUMP key",
    complexity="O(records)",
    group="generic",
)
def dump_(ctx: Client, args: list[bytes]) -> Any:
    """Give a memory as bytes that RESTORE takes, here or elsewhere; nil where there is no such key."""
    keyspace = ctx.server.keyspace
    memory = ctx.look_up(args[0])
    if memory is None:
        return None
    keyspace.prune(args[0], ctx.now)
    frozen = freeze(b"", memory, 0, ctx.now)
    rows = frozen.view.n + (frozen.past.n if frozen.past is not None else 0)
    if ctx.must_finish or rows <= _DUMP_INLINE:
        return dump(frozen, keyspace.vocabulary)
    return ctx.background(partial(_bulk, frozen, keyspace.vocabulary))


def _bulk(frozen: Frozen, vocabulary: Vocabulary) -> Ready:
    """The payload as it goes to the client, put together once."""
    parts = pieces(frozen, vocabulary)
    return Ready(b"".join((b"$%d\r\n" % sum(map(len, parts)), *parts, b"\r\n")))


@dataclass(slots=True, frozen=True)
class _Order:
    """What RESTORE asks for. `deadline` is unix milliseconds, 0 for none."""

    key: bytes
    payload: bytes
    deadline: int
    replace: bool


@command(
    "RESTORE",
    arity=-4,
    flags="write denyoom",
    keys=(1, 1, 1),
    key_flags=["OW update"],
    usage="RESTORE key ttl payload [REPLACE] [ABSTTL] [IDLETIME seconds] [FREQ frequency]",
    complexity="O(records)",
    group="generic",
    options=[
        "ttl: milliseconds until the key goes, 0 for never",
        "payload: of DUMP. What does not hold is refused and changes nothing",
        "REPLACE: overwrite the key where it exists",
        "ABSTTL: ttl is unix time in milliseconds; one that has passed leaves no key",
        "IDLETIME seconds, FREQ frequency: accepted; what is restored counts as used now",
    ],
)
def restore(ctx: Client, args: list[bytes]) -> Any:
    """Make a key of what DUMP gave."""
    order = _read_order(ctx, args)
    keyspace = ctx.server.keyspace

    def read() -> Memory:
        return _load(order.payload, keyspace.vocabulary, ctx.now)

    if ctx.must_finish or len(order.payload) <= _RESTORE_INLINE:
        return _commit(ctx, order, read())

    def finish(memory: Memory) -> SimpleString:
        # The log may have failed, and another client taken the key, while the thread read.
        if ctx.server.log.failure is not None:
            raise CommandError(ctx.server.log.failure, "MISCONF")
        _refuse_busy(ctx, order.key, replace=order.replace)
        return _commit(ctx, order, memory)

    return ctx.write_after(ctx.background(read), finish)


def _read_order(ctx: Client, args: list[bytes]) -> _Order:
    """Read the words; as in Redis the options first, then whether the key is free, then the ttl."""
    options: dict[bytes, int] = {}
    words = Words(args, 3)
    while words:
        option = words.option()
        match option:
            case b"REPLACE" | b"ABSTTL":
                options[option] = 1
            case b"IDLETIME" if b"FREQ" not in options:
                options[option] = words.integer()
                if options[option] < 0:
                    raise CommandError("Invalid IDLETIME value, must be >= 0")
            case b"FREQ" if b"IDLETIME" not in options:
                options[option] = words.integer()
                if not 0 <= options[option] <= 255:
                    raise CommandError("Invalid FREQ value, must be >= 0 and <= 255")
            case _:
                raise syntax_error()
    replace = b"REPLACE" in options
    _refuse_busy(ctx, args[0], replace=replace)
    check_name(args[0], "key")
    deadline = integer(args[1])
    if deadline < 0:
        raise CommandError("Invalid TTL value, must be >= 0")
    if deadline and b"ABSTTL" not in options:
        deadline += ctx.now
        if deadline > _INT64_MAX:
            raise CommandError("invalid expire time in 'restore' command")
    return _Order(args[0], args[2], deadline, replace)


def _refuse_busy(ctx: Client, key: bytes, *, replace: bool) -> None:
    if ctx.server.keyspace.get(key, ctx.now) is not None and not replace:
        raise CommandError("Target key name already exists.", "BUSYKEY")


def _load(payload: bytes, vocabulary: Vocabulary, now: int) -> Memory:
    try:
        memory = load(payload).attach(vocabulary)
    except PayloadDamaged:
        raise CommandError("DUMP payload version or checksum are wrong") from None
    memory.expire(now)  # so that `apply` has little left to do
    memory.settle(now)
    return memory


def _commit(ctx: Client, order: _Order, memory: Memory) -> SimpleString:
    server = ctx.server
    widest = server.config["mem-max-dim"]
    if memory.settings.dim > widest:
        raise CommandError(f"DIM must be between 1 and mem-max-dim ({widest})")
    if 0 < order.deadline <= ctx.now:
        if order.key in server.keyspace.memories:
            server.commit(Drop((order.key,)))
        return OK
    server.commit(Restore(order.key, order.payload, order.deadline, ctx.now, memory))
    server.eviction.use_keys(ctx, [order.key])
    server.backfill.add(order.key)
    return OK
