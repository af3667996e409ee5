"""What tools of Redis ask beside the rest: how keys are used, for memory back, and for modules and a cluster, where the
answer is that of a Redis that has neither."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..index.memory import Memory
from ..protocol.reply import OK
from .commands import command, container
from .errors import CommandError
from .trim import trim

if TYPE_CHECKING:
    from .client import Client

# MODULE, CLUSTER

container("MODULE", summary="Say which modules are loaded: none.", group="server")


@command("MODULE LIST", arity=2, flags="admin noscript", usage="MODULE LIST", group="server")
def module_list(ctx: Client, args: list[bytes]) -> list[Any]:
    """Reply with an empty array: the memory commands are the server's own."""
    return []


container("CLUSTER", summary="Say that there is no cluster.", group="server")


def _no_cluster(ctx: Client, args: list[bytes]) -> None:
    """Refuse, as a Redis does that is no part of a cluster."""
    raise CommandError("This instance has cluster support disabled")


for _name in ("INFO", "MYID", "NODES", "SHARDS", "SLOTS"):
    command(f"CLUSTER {_name}", arity=2, flags="stale", usage=f"CLUSTER {_name}", group="server")(_no_cluster)

# OBJECT

container("OBJECT", summary="Show how a key is kept and used.", group="generic")

_NOT_TRACKED = (
    "An LFU maxmemory policy is not selected, access frequency not tracked. Under an lru or lfu maxmemory-policy uses"
    " are counted from then on."
)


def _peeked(ctx: Client, key: bytes) -> Memory | None:
    """The memory, without this counting as a use of it."""
    return ctx.server.keyspace.get(key, ctx.now)


@command(
    "OBJECT ENCODING",
    arity=3,
    flags="readonly",
    keys=(2, 2, 1),
    key_flags=["RO"],
    usage="OBJECT ENCODING key",
    group="generic",
)
def object_encoding(ctx: Client, args: list[bytes]) -> str | None:
    """Reply with the memory's mode, `search`, `vector` or `hybrid`; nil where there is none."""
    memory = _peeked(ctx, args[0])
    return None if memory is None else memory.settings.mode.lower()


@command(
    "OBJECT REFCOUNT",
    arity=3,
    flags="readonly",
    keys=(2, 2, 1),
    key_flags=["RO"],
    usage="OBJECT REFCOUNT key",
    group="generic",
)
def object_refcount(ctx: Client, args: list[bytes]) -> int | None:
    """Reply with 1, nil where there is no such key."""
    return None if _peeked(ctx, args[0]) is None else 1


@command(
    "OBJECT IDLETIME",
    arity=3,
    flags="readonly",
    keys=(2, 2, 1),
    key_flags=["RO"],
    usage="OBJECT IDLETIME key",
    group="generic",
)
def object_idletime(ctx: Client, args: list[bytes]) -> int | None:
    """Reply with the seconds since a command used the key, under an lru or lfu maxmemory-policy; else since a write."""
    memory = _peeked(ctx, args[0])
    if memory is None:
        return None
    return max(0, ctx.now - max(memory.used_at, memory.updated_at)) // 1000


@command(
    "OBJECT FREQ",
    arity=3,
    flags="readonly",
    keys=(2, 2, 1),
    key_flags=["RO"],
    usage="OBJECT FREQ key",
    group="generic",
)
def object_freq(ctx: Client, args: list[bytes]) -> int | None:
    """Reply with how often commands used the key, an hour ago counting half, under an lru or lfu maxmemory-policy."""
    memory = _peeked(ctx, args[0])
    if memory is None:
        return None
    eviction = ctx.server.eviction
    if not eviction.tracks:
        raise CommandError(_NOT_TRACKED)
    return round(eviction.faded(memory, ctx.now))


# MEMORY PURGE


@command("MEMORY PURGE", arity=2, flags="", usage="MEMORY PURGE", complexity="O(memory)", group="server")
def memory_purge(ctx: Client, args: list[bytes]) -> Any:
    """Give the system back what was freed and the allocator keeps, where the C library can (glibc)."""

    def work() -> str:
        trim()
        return OK

    return ctx.background(work)
