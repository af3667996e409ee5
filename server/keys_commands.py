"""Keys as such: whether they are there, how long, under which name, in which order. What they hold is never looked at.

Every deadline here is unix milliseconds, and a key is gone from its deadline on. Reading a key (`keyspace.get`) drops
it where that has come, so no command sees a key that is past it.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any

from ..protocol.reply import OK, SimpleString
from .arguments import Words, integer
from .commands import command
from .entries import Copy, Drop, ExpireKey, Flush, Rename
from .errors import CommandError, syntax_error
from .glob import compile_glob
from .names import affordable, check_name, matching

if TYPE_CHECKING:
    from .client import Client

_INT64_MAX = (1 << 63) - 1
# COUNT is a hint: a page of so many keys takes about 2 milliseconds, a longer one would keep the others waiting.
_SCAN_PAGE_MAX = 10_000

_CURSOR = re.compile(rb"[0-9]{1,20}\Z")


def _exists(ctx: Client, key: bytes) -> bool:
    return ctx.look_up(key) is not None


# Presence


@command(
    "EXISTS",
    arity=-2,
    flags="readonly fast",
    keys=(1, -1, 1),
    key_flags=["RO"],
    usage="EXISTS key [key ...]",
    complexity="O(keys)",
    group="generic",
)
def exists(ctx: Client, args: list[bytes]) -> int:
    """Count the keys that exist; one named twice counts twice."""
    return sum(_exists(ctx, key) for key in args)


@command(
    "TOUCH",
    arity=-2,
    flags="readonly fast",
    keys=(1, -1, 1),
    key_flags=["RO"],
    usage="TOUCH key [key ...]",
    complexity="O(keys)",
    group="generic",
)
def touch(ctx: Client, args: list[bytes]) -> int:
    """Count the keys that exist, as EXISTS does, and take them for used where maxmemory-policy asks for that."""
    ctx.server.eviction.use_keys(ctx, args)
    return exists(ctx, args)


@command(
    "TYPE",
    arity=2,
    flags="readonly fast",
    keys=(1, 1, 1),
    key_flags=["RO"],
    usage="TYPE key",
    group="generic",
)
def type_(ctx: Client, args: list[bytes]) -> SimpleString:
    """Reply with `memory`, or `none` where there is no such key."""
    return SimpleString("memory" if _exists(ctx, args[0]) else "none")


@command(
    "DEL",
    arity=-2,
    flags="write",
    keys=(1, -1, 1),
    key_flags=["RM delete"],
    usage="DEL key [key ...]",
    complexity="O(keys)",
    group="generic",
)
def del_(ctx: Client, args: list[bytes]) -> int:
    """Delete keys; reply with how many there were."""
    present = tuple(key for key in dict.fromkeys(args) if _exists(ctx, key))
    if present:
        ctx.server.commit(Drop(present))
    return len(present)


@command(
    "UNLINK",
    arity=-2,
    flags="write fast",
    keys=(1, -1, 1),
    key_flags=["RM delete"],
    usage="UNLINK key [key ...]",
    complexity="O(keys)",
    group="generic",
)
def unlink(ctx: Client, args: list[bytes]) -> int:
    """Delete keys, as DEL does."""
    return del_(ctx, args)


_FLUSH_OPTIONS = ["ASYNC|SYNC: accepted; the keys are gone when the reply comes, either way"]


@command(
    "FLUSHDB",
    arity=-1,
    flags="write",
    usage="FLUSHDB [ASYNC|SYNC]",
    complexity="O(keys)",
    group="server",
    options=_FLUSH_OPTIONS,
)
def flushdb(ctx: Client, args: list[bytes]) -> SimpleString:
    """Delete every key."""
    if len(args) > 1 or (args and args[0].upper() not in (b"ASYNC", b"SYNC")):
        raise syntax_error()
    if ctx.server.keyspace.memories:
        ctx.server.commit(Flush())
    return OK


@command(
    "FLUSHALL",
    arity=-1,
    flags="write",
    usage="FLUSHALL [ASYNC|SYNC]",
    complexity="O(keys)",
    group="server",
    options=_FLUSH_OPTIONS,
)
def flushall(ctx: Client, args: list[bytes]) -> SimpleString:
    """Delete every key, as FLUSHDB does: there is one database."""
    return flushdb(ctx, args)


# Deadlines


_EXPIRE_OPTIONS = [
    "NX, XX: only where the key has no deadline, has one",
    "GT, LT: only where the new deadline is later, earlier than the old one; none counts as the latest of all",
]


@command(
    "EXPIRE",
    arity=-3,
    flags="write fast",
    keys=(1, 1, 1),
    usage="EXPIRE key seconds [NX|XX|GT|LT]",
    group="generic",
    options=_EXPIRE_OPTIONS,
)
def expire(ctx: Client, args: list[bytes]) -> int:
    """Let a key go in so many seconds; reply with whether that was done. A time that has passed deletes it."""
    return _expire(ctx, args, "expire", unit_ms=1000, since=ctx.now)


@command(
    "PEXPIRE",
    arity=-3,
    flags="write fast",
    keys=(1, 1, 1),
    usage="PEXPIRE key milliseconds [NX|XX|GT|LT]",
    group="generic",
    options=_EXPIRE_OPTIONS,
)
def pexpire(ctx: Client, args: list[bytes]) -> int:
    """Let a key go in so many milliseconds, as EXPIRE does."""
    return _expire(ctx, args, "pexpire", unit_ms=1, since=ctx.now)


@command(
    "EXPIREAT",
    arity=-3,
    flags="write fast",
    keys=(1, 1, 1),
    usage="EXPIREAT key unix-time-seconds [NX|XX|GT|LT]",
    group="generic",
    options=_EXPIRE_OPTIONS,
)
def expireat(ctx: Client, args: list[bytes]) -> int:
    """Let a key go at a unix time in seconds, as EXPIRE does."""
    return _expire(ctx, args, "expireat", unit_ms=1000, since=0)


@command(
    "PEXPIREAT",
    arity=-3,
    flags="write fast",
    keys=(1, 1, 1),
    usage="PEXPIREAT key unix-time-milliseconds [NX|XX|GT|LT]",
    group="generic",
    options=_EXPIRE_OPTIONS,
)
def pexpireat(ctx: Client, args: list[bytes]) -> int:
    """Let a key go at a unix time in milliseconds, as EXPIRE does."""
    return _expire(ctx, args, "pexpireat", unit_ms=1, since=0)


def _expire(ctx: Client, args: list[bytes], name: str, *, unit_ms: int, since: int) -> int:
    """The four commands: `args` are key, a number of units after `since`, options."""
    options = {word.upper() for word in args[2:]}
    for word in args[2:]:
        if word.upper() not in (b"NX", b"XX", b"GT", b"LT"):
            raise CommandError(f"Unsupported option {word.decode('utf-8', 'replace')}")
    if b"NX" in options and len(options) > 1:
        raise CommandError("NX and XX, GT or LT options at the same time are not compatible")
    if options >= {b"GT", b"LT"}:
        raise CommandError("GT and LT options at the same time are not compatible")
    deadline = integer(args[1]) * unit_ms
    # What would not fit 64 bits on the way there is refused, as in Redis, whether the key exists or not.
    if not -_INT64_MAX - 1 <= deadline <= _INT64_MAX - since:
        raise CommandError(f"invalid expire time in '{name}' command")
    deadline += since

    key = args[0]
    if not _exists(ctx, key):
        return 0
    current = ctx.server.keyspace.deadlines.get(key)
    if (
        (b"NX" in options and current is not None)
        or (b"XX" in options and current is None)
        or (b"GT" in options and (current is None or deadline <= current))
        or (b"LT" in options and current is not None and deadline >= current)
    ):
        return 0
    ctx.server.commit(Drop((key,)) if deadline <= ctx.now else ExpireKey(key, deadline))
    return 1


@command(
    "TTL",
    arity=2,
    flags="readonly fast",
    keys=(1, 1, 1),
    usage="TTL key",
    group="generic",
)
def ttl(ctx: Client, args: list[bytes]) -> int:
    """Reply with the seconds that a key has left, rounded; -1 without a deadline, -2 without the key."""
    return _in_seconds(pttl(ctx, args))


@command(
    "PTTL",
    arity=2,
    flags="readonly fast",
    keys=(1, 1, 1),
    usage="PTTL key",
    group="generic",
)
def pttl(ctx: Client, args: list[bytes]) -> int:
    """Reply with the milliseconds that a key has left; -1 without a deadline, -2 without the key."""
    deadline = pexpiretime(ctx, args)
    return deadline if deadline < 0 else deadline - ctx.now


@command(
    "EXPIRETIME",
    arity=2,
    flags="readonly fast",
    keys=(1, 1, 1),
    usage="EXPIRETIME key",
    group="generic",
)
def expiretime(ctx: Client, args: list[bytes]) -> int:
    """Reply with a key's deadline, unix time in seconds, rounded; -1 without a deadline, -2 without the key."""
    return _in_seconds(pexpiretime(ctx, args))


@command(
    "PEXPIRETIME",
    arity=2,
    flags="readonly fast",
    keys=(1, 1, 1),
    usage="PEXPIRETIME key",
    group="generic",
)
def pexpiretime(ctx: Client, args: list[bytes]) -> int:
    """Reply with a key's deadline, unix time in milliseconds; -1 without a deadline, -2 without the key."""
    if not _exists(ctx, args[0]):
        return -2
    return ctx.server.keyspace.deadlines.get(args[0], -1)


def _in_seconds(ms: int) -> int:
    return ms if ms < 0 else (ms + 500) // 1000


@command(
    "PERSIST",
    arity=2,
    flags="write fast",
    keys=(1, 1, 1),
    usage="PERSIST key",
    group="generic",
)
def persist(ctx: Client, args: list[bytes]) -> int:
    """Take a key's deadline away; reply with whether it had one."""
    if not _exists(ctx, args[0]) or args[0] not in ctx.server.keyspace.deadlines:
        return 0
    ctx.server.commit(ExpireKey(args[0], 0))
    return 1


# Names


@command(
    "RENAME",
    arity=3,
    flags="write",
    keys=(1, 2, 1),
    key_flags=["RW access delete", "OW update"],
    usage="RENAME key newkey",
    group="generic",
)
def rename(ctx: Client, args: list[bytes]) -> SimpleString:
    """Give a key another name, its deadline with it; what had that name is overwritten."""
    key, to = args
    if not _exists(ctx, key):
        raise CommandError("no such key")
    if to != key:
        check_name(to, "key")
        _exists(ctx, to)  # what is due goes as expired, not as overwritten
        ctx.server.commit(Rename(key, to))
        ctx.server.backfill.add(to)
    return OK


@command(
    "RENAMENX",
    arity=3,
    flags="write fast",
    keys=(1, 2, 1),
    key_flags=["RW access delete", "OW insert"],
    usage="RENAMENX key newkey",
    group="generic",
)
def renamenx(ctx: Client, args: list[bytes]) -> int:
    """Give a key another name, unless there is a key of that name; reply with whether it was done."""
    key, to = args
    if not _exists(ctx, key):
        raise CommandError("no such key")
    if _exists(ctx, to):
        return 0
    check_name(to, "key")
    ctx.server.commit(Rename(key, to))
    ctx.server.backfill.add(to)
    return 1


@command(
    "COPY",
    arity=-3,
    flags="write denyoom",
    keys=(1, 2, 1),
    key_flags=["RO access", "OW update"],
    usage="COPY source destination [DB destination-db] [REPLACE]",
    complexity="O(records)",
    group="generic",
    options=[
        "DB destination-db: there is one, 0",
        "REPLACE: overwrite the destination where it exists",
    ],
)
def copy(ctx: Client, args: list[bytes]) -> int:
    """Copy a key, its deadline and its counter of ids with it; reply with whether it was done."""
    key, to = args[:2]
    replace = False
    words = Words(args, 2)
    while words:
        match words.option():
            case b"REPLACE":
                replace = True
            case b"DB":
                if words.integer() != 0:
                    raise CommandError("DB index is out of range")
            case _:
                raise syntax_error()
    if key == to:
        raise CommandError("source and destination objects are the same")
    if not _exists(ctx, key) or (_exists(ctx, to) and not replace):
        return 0
    check_name(to, "key")
    ctx.server.commit(Copy(key, to))
    ctx.server.eviction.use_keys(ctx, [key, to])
    ctx.server.backfill.add(to)
    return 1


# All of them


@command("DBSIZE", arity=1, flags="readonly fast", usage="DBSIZE", group="server")
def dbsize(ctx: Client, args: list[bytes]) -> int:
    """Count the keys."""
    return ctx.server.keyspace.count(ctx.now)


@command("KEYS", arity=2, flags="readonly", usage="KEYS pattern", complexity="O(keys)", group="generic")
def keys(ctx: Client, args: list[bytes]) -> Any:
    """List the keys that match a glob pattern, oldest first. SCAN does so in pages."""
    return matching(ctx, ctx.server.keyspace.keys(ctx.now), args[0])


@command(
    "SCAN",
    arity=-2,
    flags="readonly",
    usage="SCAN cursor [MATCH pattern] [COUNT count] [TYPE type]",
    complexity="O(count)",
    group="generic",
    options=[
        "MATCH pattern: only keys that match the glob pattern; a page may then be empty before the end",
        "COUNT count: about how many keys to look at, 10000 at most (10), or as many as match in some milliseconds",
        "TYPE type: only keys of this type, of which there is one, memory",
    ],
)
def scan(ctx: Client, args: list[bytes]) -> list[Any]:
    """Walk over the keys in pages: reply with the next cursor, 0 at the end, and keys.

    Each key that is there from start to end is met once, whatever comes and goes meanwhile.
    """
    if not _CURSOR.match(args[0]) or (cursor := int(args[0])) > 2 * _INT64_MAX + 1:
        raise CommandError("invalid cursor")
    count, of_type = 10, True
    pattern = b"*"
    words = Words(args, 1)
    while words:
        match words.option():
            case b"MATCH":
                pattern = words.next()
            case b"COUNT":
                count = words.integer()
                if count < 1:
                    raise syntax_error()
            case b"TYPE":
                of_type = words.next().lower() == b"memory"
            case _:
                raise syntax_error()
    matches = None if pattern == b"*" else compile_glob(pattern).fullmatch
    order = ctx.server.keyspace.order
    cursor = min(cursor, _INT64_MAX)  # no serial is beyond 64 bits; a cursor that is, is past the end
    following, page = order.page(cursor, min(count, _SCAN_PAGE_MAX))
    if (fewer := affordable(page, pattern)) < len(page):
        following, page = order.page(cursor, fewer)
    found = [key for key in page if of_type and (matches is None or matches(key)) and _exists(ctx, key)]
    return [str(following), found]


@command("RANDOMKEY", arity=1, flags="readonly", usage="RANDOMKEY", group="generic")
def randomkey(ctx: Client, args: list[bytes]) -> bytes | None:
    """Reply with any key, all equally likely; nil where there are none."""
    return ctx.server.keyspace.choose(ctx.now, random.randrange)
