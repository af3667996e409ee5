"""MAXRECORDS and MAXBYTES: what must go for a write to fit.

A write decides who goes before it commits anything, and logs it in its own group: after a crash both have happened or
neither, and a replay decides nothing. What it writes itself, and what it is about, stays. Evicted means gone with all
versions: HISTORY must not keep what there is no room for.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ..index.memory import Memory
from .entries import Entry, Forget, Remove
from .errors import CommandError

if TYPE_CHECKING:
    from .server import Server

# Beyond what it needs itself, a write takes so many at most of what a lowered limit has left over: about 10 ms.
_LEFT_OVER = 1000


def make_room(memory: Memory, now: int, *, records: int, size: int, keep: Collection[bytes] = ()) -> tuple[bytes, ...]:
    """Who goes, the least retention first, where a write adds so many records and bytes; `keep` stays. Raises
    CommandError where that is not enough: everything else has a PIN."""
    settings = memory.settings
    if not settings.has_limit or (records <= 0 and size <= 0):
        return ()
    # How far beyond its limits the memory is, and would be. It may be beyond them where they were lowered.
    was_records = max(0, memory.held - settings.max_records) if settings.max_records else 0
    was_size = max(0, memory.record_bytes - settings.max_bytes) if settings.max_bytes else 0
    over_records = memory.held + records - settings.max_records if settings.max_records else 0
    over_size = memory.record_bytes + size - settings.max_bytes if settings.max_bytes else 0
    # What not even an empty memory would take: a look at all its records would hold up everybody, for nothing.
    if settings.max_records and records - settings.max_records > was_records:
        raise _full("MAXRECORDS", settings.max_records)
    if settings.max_bytes and size - settings.max_bytes > was_size:
        raise _full("MAXBYTES", settings.max_bytes)
    gone: list[bytes] = []
    if over_records > 0 or over_size > 0:
        for place in memory.least(now):
            if place.id in keep:
                continue
            gone.append(place.id)
            over_records -= 1
            over_size -= memory.bytes_of(place.id) if settings.max_bytes else 0
            fits = over_records <= 0 and over_size <= 0
            if fits or (len(gone) >= _LEFT_OVER and over_records <= was_records and over_size <= was_size):
                break
    if over_records > was_records:
        raise _full("MAXRECORDS", settings.max_records)
    if over_size > was_size:
        raise _full("MAXBYTES", settings.max_bytes)
    return tuple(gone)


def _full(name: str, limit: int) -> CommandError:
    return CommandError(f"memory index is full at {name} ({limit})")


def evictions(key: bytes, memory: Memory, ids: tuple[bytes, ...], now: int) -> list[Entry]:
    """The entries with which these records go."""
    if not ids:
        return []
    return [Remove(key, ids, now) if memory.past is None else Forget(key, ids, (), now)]


def announce_evicted(server: Server, key: bytes, ids: tuple[bytes, ...]) -> None:
    """Count and announce that they went."""
    server.stats.evicted_records += len(ids)
    for record_id in ids:
        server.announce(key, b"evict " + record_id)
