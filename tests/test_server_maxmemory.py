"""maxmemory: what is counted as used, what is refused, which memories go, and that it is durable and whole.

With fewer memories than `maxmemory-samples` the choice is exact. The server evicts in between the commands too, so what
is asked is who is left, never when they went.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from durable import eventually, on_loop, state
from harness import DAY, HOUR, SECOND, Clock, Running, Wire, Word
from peer import MAKE, connect, for_redis, for_us, needs_redis, redis_server, replies
from recalld.server import incr
from recalld.server.entries import Drop, Entry

#: Of one memory of `fill`; five of them are far more than all else that a test writes.
SIZE = 100_000
OOM = "OOM command not allowed when used memory > 'maxmemory'."


class Full:
    """A server with memories of SIZE bytes, and its writer."""

    def __init__(self, server: Running) -> None:
        self.server = server
        assert isinstance(server.clock, Clock)
        self.clock = server.clock
        self.wire = server.wire(3)

    def fill(self, keys: str) -> None:
        """A memory per letter, a second apart."""
        for key in keys:
            self.wire("MEM.CREATE", key, "MODE", "SEARCH")
            for half in "12":
                self.wire("MEM.ADD", key, "ID", half, "TEXT", "x" * (SIZE // 2))
            self.clock.advance(SECOND)

    def used(self) -> int:
        return int(on_loop(self.server, self.server.server.eviction.used))

    def limit(self, memories: float, policy: str = "noeviction") -> None:
        """Allow what is taken now and so many memories more, or less."""
        wire = self.wire
        wire("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", 1 << 60)
        wire("CONFIG", "SET", "maxmemory", self.used() + int(memories * SIZE))
        wire("CONFIG", "SET", "maxmemory-policy", policy)

    def left(self) -> str:
        """The keys that are left when what is used is within the limit."""
        eviction = self.server.server.eviction
        eventually(lambda: on_loop(self.server, eviction.used) <= eviction.limit)
        return b"".join(sorted(self.wire("KEYS", "*"))).decode()


@pytest.fixture
def full(running: Callable[..., Running]) -> Iterator[Full]:
    """Nothing in it yet."""
    found = Full(running(clock=Clock()))
    yield found
    found.wire.close()


# What is used


def counted(server: Running) -> int:
    """What is used, from the beginning."""
    keyspace = server.server.keyspace
    words = keyspace.vocabulary.nbytes()
    return int(server.server.startup_bytes + sum(map(keyspace.own_bytes, keyspace.memories)) + words)


def test_what_is_used_is_what_memory_usage_says_of_all(full: Full) -> None:
    wire, eviction = full.wire, full.server.server.eviction
    full.fill("ab")
    wire("CONFIG", "SET", "maxmemory", 1 << 60)
    assert full.used() == on_loop(full.server, lambda: counted(full.server))
    commands: list[tuple[Word, ...]] = [
        ("MEM.CREATE", "c", "DIM", 3),
        ("MEM.ADD", "c", "TEXT", "some words", "FVEC", 3, 1, 2, 3, "TTL", 5),
        ("MEM.FACT", "c", "ann", "likes", "tea", "TYPE", "FOOD", "VEC", b"\0\0\x80\x3f" * 3),
        ("MEM.ENTITY", "c", "milk", "TYPE", "FOOD"),
        ("RENAME", "a", "d"),
        ("COPY", "c", "e"),
        ("RESTORE", "f", 0, wire("DUMP", "a")),
        ("EXPIRE", "f", 3),
        ("MEM.DEL", "d", "1"),
        ("DEL", "b"),
        ("MEM.CONFIG", "c", "HISTORY", "ALL"),
        ("MEM.ADD", "c", "ID", "1", "TEXT", "others", "KEEPVEC"),
        ("MEM.FORGET", "c", "FILTER", "@id", "EQ", "1"),
        ("DBSIZE",),
        ("FLUSHALL",),
    ]
    for words in commands:
        wire(*words)
        full.clock.advance(SECOND)
        wire("DBSIZE")  # what is due goes
        used, wanted = on_loop(full.server, lambda: (eviction.used(), counted(full.server)))
        assert used == wanted, words


def test_growth_that_no_write_brings_is_found(full: Full) -> None:
    """The columns that a query makes."""
    wire = full.wire
    wire("MEM.CREATE", "k", "DIM", 64)
    for _ in range(10):
        wire("MEM.MADD", "k", 500, *(["RECORD", "TEXT", "t", "VEC", b"\0\0\x80\x3f" * 64] * 500))
    wire("CONFIG", "SET", "maxmemory", 1 << 60)
    before = full.used()
    wire("MEM.QUERY", "k", "VEC", b"\0\0\x80\x3f" * 64)
    eventually(lambda: full.used() > before + 100_000)
    eventually(lambda: on_loop(full.server, lambda: full.server.server.eviction.used() == counted(full.server)))


def test_many_memories_are_measured_when_the_limit_comes(full: Full) -> None:
    full.wire.pipeline(*(("MEM.CREATE", str(number), "MODE", "SEARCH") for number in range(500)))
    full.wire("CONFIG", "SET", "maxmemory", 1 << 60)
    eventually(lambda: on_loop(full.server, lambda: full.server.server.eviction.used() == counted(full.server)))
    full.wire("FLUSHALL")
    assert full.used() == on_loop(full.server, lambda: counted(full.server))
    full.wire("MEM.CREATE", "1", "MODE", "SEARCH")
    full.wire("CONFIG", "SET", "maxmemory", 0)
    full.wire("DEL", "1")
    full.wire("CONFIG", "SET", "maxmemory", 1 << 60)
    eventually(lambda: on_loop(full.server, lambda: full.server.server.eviction.used() == counted(full.server)))


def info(wire: Wire, section: str) -> dict[str, str]:
    lines = wire("INFO", section).decode().splitlines()
    return dict(line.split(":", 1) for line in lines if ":" in line)


def test_info(full: Full) -> None:
    full.fill("ab")
    full.limit(-0.5, "allkeys-lru")
    assert full.left() == "b"
    fields = info(full.wire, "memory")
    assert int(fields["used_memory"]) == full.used() < int(fields["maxmemory"])
    assert fields["maxmemory_policy"] == "allkeys-lru"
    assert info(full.wire, "stats")["evicted_keys"] == "1"
    full.wire("CONFIG", "RESETSTAT")
    assert info(full.wire, "stats")["evicted_keys"] == "0"


# noeviction


def test_noeviction_refuses_what_needs_memory_and_nothing_else(full: Full) -> None:
    wire = full.wire
    full.fill("ab")
    payload = wire("DUMP", "a")
    full.limit(-0.5)
    for words in (
        ("MEM.ADD", "a", "TEXT", "t"),
        ("MEM.MADD", "a", 1, "RECORD", "TEXT", "t"),
        ("MEM.CREATE", "c", "MODE", "SEARCH"),
        ("MEM.FACT", "a", "s", "p", "o"),
        ("MEM.ENTITY", "a", "e", "TYPE", "ORG"),
        ("MEM.SETMETA", "a", "1", "f", "v"),
        ("COPY", "a", "c"),
        ("RESTORE", "c", 0, payload),
    ):
        assert wire.error(*words) == OOM
    assert wire("MEM.GET", "a", "1")[b"id"] == b"1"
    assert wire("MEM.SEARCH", "a", "nothing") == []
    assert wire("EXPIRE", "a", 100) == 1
    assert wire("MEM.DEL", "a", "1") == 1
    assert wire("RENAME", "a", "c") == "OK"
    assert wire("DEL", "c") == 1
    assert full.left() == "b"
    assert wire("MEM.ADD", "b", "TEXT", "t") == b"3"


@needs_redis
def test_the_doctor_says_that_the_limit_is_passed(full: Full) -> None:
    full.limit(1)
    assert full.wire("MEMORY", "DOCTOR") == b"Nothing looks wrong."
    full.wire("CONFIG", "SET", "maxmemory", 1)
    def says_so() -> bool:
        """At one moment: memories are measured again now and then."""
        said = full.wire("MEMORY", "DOCTOR")
        return f"{full.used()} bytes are used, more than maxmemory, 1:".encode() in said and b"noeviction" in said

    eventually(says_so)


def test_refusals_are_redis_own(running: Callable[..., Running], tmp_path: Path) -> None:
    """Alone, while queueing, and of what was queued before."""
    before: list[tuple[Word, ...]] = [(MAKE, "a"), ("MULTI",), ("EXISTS", "a"), (MAKE, "b"), ("DEL", "a")]
    after: list[tuple[Word, ...]] = [
        *(("EXEC",), (MAKE, "b"), ("EXISTS", "a"), ("DEL", "b"), ("PING",)),
        *(("MULTI",), ("PING",), ("EXEC",), ("MULTI",), ("DISCARD",), ("MULTI",), ("EXEC",)),
        *(("WATCH", "a"), ("UNWATCH",), ("DEL", "a"), ("COPY", "a", "b")),
    ]
    ours = running(clock=Clock()).wire()
    with redis_server(tmp_path) as path:
        theirs = connect(path)
        found = []
        for wire, translated in ((ours, for_us), (theirs, for_redis)):
            there = replies(wire, [translated(words) for words in before])
            # Its own commands would be queued.
            other = connect(path) if wire is theirs else None
            setter = other or _beside(ours)
            setter("CONFIG", "SET", "maxmemory", 1)
            found.append(there + replies(wire, [translated(words) for words in after]))
            setter.close()
        theirs.close()
    assert found[0] == found[1]


def _beside(wire: Wire) -> Wire:
    """Another connection to where the wire goes."""
    return Wire(socket.create_connection(wire.sock.getpeername()))


# Which memories go


def test_lru(full: Full) -> None:
    """By use, be it reading, writing, naming among others, or TOUCH; not by looking at the key."""
    full.fill("abcdefgh")
    wire, clock = full.wire, full.clock
    wire("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    for words in (
        ("TTL", "b"),
        ("EXISTS", "b"),
        ("MEM.GET", "a", "1"),
        ("MEM.QUERY", "a", "TEXT", "x", "ACROSS", 1, "c"),
        ("TOUCH", "d"),
        ("MEM.SETMETA", "e", "1", "f", "v"),
    ):
        wire(*words)
        clock.advance(SECOND)
    full.limit(-3.5, "allkeys-lru")
    assert full.left() == "acde"


def test_what_is_restored_or_copied_is_used_now(full: Full) -> None:
    full.fill("ab")
    wire = full.wire
    wire("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    payload = wire("DUMP", "a")
    full.clock.advance(DAY)
    wire("RESTORE", "c", 0, payload)
    wire("COPY", "a", "d")
    full.limit(-0.5, "allkeys-lru")
    assert full.left() == "acd"


def test_no_touch(full: Full) -> None:
    full.fill("ab")
    full.wire("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    full.wire("CLIENT", "NO-TOUCH", "ON")
    full.wire("MEM.GET", "a", "1")
    full.wire("TOUCH", "a")
    full.limit(-0.5, "allkeys-lru")
    assert full.left() == "b"


def test_lfu(full: Full) -> None:
    """How often, an hour ago counting half: `b` was used thrice long ago, `c` twice now."""
    full.fill("abcd")
    wire, clock = full.wire, full.clock
    wire("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    for _ in range(3):
        wire("TOUCH", "b")
    wire("TOUCH", "d")
    clock.advance(HOUR)
    for key in "accd":
        wire("TOUCH", key)
    full.limit(-0.5, "allkeys-lfu")
    assert full.left() == "bcd"
    full.limit(-0.5, "allkeys-lfu")
    assert full.left() == "cd"  # 1.5 each of `b` and `d`, and `b` was used earlier


def test_volatile_takes_only_who_has_a_deadline(full: Full) -> None:
    full.fill("abcd")
    full.wire("EXPIRE", "b", 1000)
    full.wire("EXPIRE", "d", 1000)
    full.limit(-0.5, "volatile-lru")
    assert full.left() == "acd"
    full.limit(-0.5, "volatile-lfu")
    assert full.left() == "ac"
    full.limit(-0.5, "volatile-lru")
    assert full.wire.error("MEM.ADD", "a", "TEXT", "t") == OOM
    full.wire("EXPIRE", "c", 1000)
    assert full.wire("MEM.ADD", "a", "TEXT", "t") == b"3"
    assert full.left() == "a"


def test_volatile_ttl(full: Full) -> None:
    full.fill("abcd")
    for key, seconds in (("a", 300), ("b", 100), ("c", 200)):
        full.wire("EXPIRE", key, seconds)
    full.limit(-1.5, "volatile-ttl")
    assert full.left() == "ad"


@pytest.mark.parametrize("policy", ["allkeys-random", "volatile-random"])
def test_random(full: Full, policy: str) -> None:
    """Anybody may be the one: in twenty trials not always the same."""
    gone = set()
    for _ in range(20):
        full.wire("CONFIG", "SET", "maxmemory", 0)
        full.wire("FLUSHALL")
        full.fill("abcd")
        for key in "abc":
            full.wire("EXPIRE", key, 1000)
        full.limit(-0.5, policy)
        left = full.left()
        assert len(left) == 3
        gone |= set("abcd") - set(left)
    assert len(gone) > 1
    assert policy == "allkeys-random" or "d" not in gone


def test_among_many_the_sampled_ones(full: Full) -> None:
    """One sample of 64 out of 400, half of which were used: it takes one that was not."""
    wire = full.wire
    wire("CONFIG", "SET", "maxmemory-policy", "allkeys-lru", "maxmemory-samples", 64)
    wire.pipeline(*(("MEM.CREATE", f"{side}{number}", "MODE", "SEARCH") for side in "ab" for number in range(200)))
    full.clock.advance(DAY)
    wire("TOUCH", *(f"b{number}" for number in range(200)))
    full.limit(-0.1, "allkeys-lru")
    left = full.left()
    assert left.count("b") == 200 > left.count("a") > 0


def test_expired_memories_are_not_evicted(full: Full) -> None:
    full.fill("abc")
    full.wire("EXPIRE", "c", 10)
    full.limit(-0.5)
    full.clock.advance(10 * SECOND)
    full.wire("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    assert full.wire("MEM.ADD", "a", "TEXT", "t") == b"3"
    assert full.left() == "ab"
    assert info(full.wire, "stats")["evicted_keys"] == "0"


def test_the_memory_that_a_command_is_about_stays(full: Full) -> None:
    """Were it the one that goes, the command would find nothing."""
    full.fill("ab")
    full.server.server.eviction.sweep = lambda now: None  # what happens in between commands is another matter
    full.limit(0.5, "allkeys-lru")
    full.wire("MEM.ADD", "b", "TEXT", "x" * 60_000)
    full.clock.advance(SECOND)
    full.wire("MEM.ADD", "a", "TEXT", "t")
    assert full.left() == "a"


def test_one_memory_alone_is_refused_not_dropped(full: Full) -> None:
    full.fill("a")
    full.server.server.eviction.sweep = lambda now: None
    full.limit(-0.5, "allkeys-lru")
    assert full.wire.error("MEM.ADD", "a", "TEXT", "t") == OOM
    assert full.wire("MEM.CARD", "a") == 2


def test_a_lowered_limit_needs_no_command(full: Full) -> None:
    full.fill("abcd")
    full.limit(-2.5, "allkeys-lru")
    eventually(lambda: full.wire("DBSIZE") == 1)


# What others see of it, and durability


def test_notification(full: Full) -> None:
    full.fill("abc")
    reader = full.server.wire()
    full.wire("CONFIG", "SET", "notify-keyspace-events", "KEA")
    reader("PSUBSCRIBE", "__key*")
    full.limit(-0.5, "allkeys-lru")
    assert full.left() == "bc"
    assert reader.read()[2:] == [b"__keyspace@0__:a", b"evicted"]
    assert reader.read()[2:] == [b"__keyevent@0__:evicted", b"a"]
    reader.close()


def test_who_watches_an_evicted_key_sees_it_change(full: Full) -> None:
    full.fill("ab")
    other = full.server.wire()
    other("WATCH", "a")
    full.limit(-0.5, "allkeys-lru")
    assert full.left() == "b"
    other("MULTI")
    other("DISCARD")
    other("WATCH", "b")
    other("MULTI")
    other("MEM.CARD", "b")
    assert other("EXEC") == [2]
    other.close()


def test_exec_is_whole(full: Full) -> None:
    """Nothing goes in the middle of it, nor what it is about before it: its group holds what it wrote, all of it."""
    groups: list[list[Entry]] = []
    full.fill("abcd")
    full.limit(0.2)
    log = full.server.server.log
    append = log.append

    def spy(group: list[Entry], encoded: list[bytes] | None = None) -> Any:
        groups.extend([list(group)] if encoded is None else incr._parse(b"".join(encoded)))
        return append(group, encoded)

    log.append = spy
    full.wire("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    queued = [("MEM.ADD", "a", "ID", str(number), "TEXT", "x" * 50_000) for number in range(10, 18)]
    queued += [("DBSIZE",), ("MEM.CARD", "b")]
    found = full.wire.pipeline(("MULTI",), *queued, ("EXEC",))[-1]
    assert found[:8] == [b"%d" % number for number in range(10, 18)]
    assert found[8:] == [4, 2]
    eventually(lambda: full.wire("DBSIZE") < 3)  # `a` alone is more than the limit, and the last one stays
    (written,) = [group for group in groups if len(group) > 1]
    assert len(written) == 8
    assert all(isinstance(entry, Drop) for group in groups if group is not written for entry in group)
    log.append = append


def test_what_was_evicted_stays_away(running: Callable[..., Running], tmp_path: Path) -> None:
    full = Full(running(clock=Clock(), dir=tmp_path))
    full.fill("abcd")
    full.limit(-1.5, "allkeys-lru")
    assert full.left() == "cd"
    before = on_loop(full.server, lambda: state(full.server.server.keyspace))
    full.server.restart()
    assert on_loop(full.server, lambda: state(full.server.server.keyspace)) == before
    full.server.stop()
    full.server.overrides += [("maxmemory", ["1"]), ("maxmemory-policy", ["noeviction"])]
    full.server.start()
    assert full.server.wire().error("MEM.ADD", "c", "TEXT", "t") == OOM
    assert on_loop(full.server, lambda: full.server.server.eviction.used() == counted(full.server))


def test_nothing_goes_while_nothing_can_be_written(full: Full) -> None:
    full.fill("ab")
    full.server.server.log.failure = "the disk is full"
    full.limit(-0.5, "allkeys-lru")
    on_loop(full.server, lambda: full.server.server.eviction.sweep(full.clock.now_ms))
    assert full.wire("DBSIZE") == 2
    full.server.server.log.failure = None
    assert full.left() == "b"
