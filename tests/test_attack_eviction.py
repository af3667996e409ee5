"""Eviction attacked: whole sequences of commands beside plain Python, crashes, every policy and every command at the
limit, and what maxmemory must not drop."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import pytest
from durable import eventually, on_loop, state
from harness import DAY, HOUR, SECOND, Clock, Process, Running, Wire
from recalld.index.memory import Memory
from recalld.server import cli
from recalld.server.commands import TABLE

OOM = "OOM command not allowed when used memory > 'maxmemory'."
WEEK_MS = 7 * DAY
POLICIES = [f"{which}-{how}" for which in ("allkeys", "volatile") for how in ("lru", "lfu", "random")]


# MAXRECORDS and MAXBYTES beside plain Python


@dataclass
class Kept:
    """A record as the formula needs it."""

    serial: int
    text: str
    importance: float = 0.5
    updated_at: int = 0
    pin: bool = False
    deadline: int = 0
    meta: dict[str, str] = field(default_factory=dict)
    uses: list[int] = field(default_factory=list)

    def retention(self, now: int) -> float:
        def faded(then: int) -> float:
            return float(0.5 ** (max(0, now - then) / WEEK_MS))

        use = sum(map(faded, self.uses))
        return (self.importance + faded(self.updated_at) + use / (1 + use)) / 3


class Twin:
    """One memory on a server, and what it ought to be."""

    def __init__(self, wire: Wire, listener: Wire, clock: Clock, limits: dict[str, int], history: object) -> None:
        self.wire, self.listener, self.clock = wire, listener, clock
        self.limits = limits
        self.records: dict[str, Kept] = {}
        self.serial = self.evicted = self.refused = 0
        words = [word for pair in limits.items() for word in pair]
        wire("MEM.CREATE", "k", "MODE", "SEARCH", "HISTORY", history, *words)

    def size(self, record_id: str, kept: Kept) -> int:
        return len(record_id) + len(kept.text) + sum(map(len, (*kept.meta, *kept.meta.values())))

    def order(self, keep: set[str]) -> list[str]:
        now = self.clock()
        found = [name for name, kept in self.records.items() if not kept.pin and name not in keep]
        rank = {name: (kept.retention(now), kept.updated_at, kept.serial) for name, kept in self.records.items()}
        return sorted(found, key=rank.__getitem__)

    def expire(self) -> None:
        now = self.clock()
        self.records = {name: kept for name, kept in self.records.items() if not 0 < kept.deadline <= now}

    def room(self, new: dict[str, Kept]) -> list[str] | None:
        """Who goes before these are written; None where there is no room."""
        count, size = len(self.records), sum(self.size(*each) for each in self.records.items())
        more_records = len(new.keys() - self.records.keys())
        more_size = sum(self.size(*each) for each in new.items())
        more_size -= sum(self.size(name, self.records[name]) for name in new.keys() & self.records.keys())
        over = [0, 0]
        if more_records <= 0 and (more_size <= 0 or not self.limits["MAXBYTES"]):
            return []
        if self.limits["MAXRECORDS"]:
            over[0] = count + more_records - self.limits["MAXRECORDS"]
        if self.limits["MAXBYTES"]:
            over[1] = size + more_size - self.limits["MAXBYTES"]
        gone: list[str] = []
        for name in self.order(set(new)):
            if max(over) <= 0:
                break
            gone.append(name)
            over[0] -= 1
            over[1] -= self.size(name, self.records[name])
        was = [max(0, count - (self.limits["MAXRECORDS"] or count)), max(0, size - (self.limits["MAXBYTES"] or size))]
        return None if over[0] > was[0] or over[1] > was[1] else gone

    def write(self, new: dict[str, Kept], *command: Any) -> None:
        """Run the command: it evicts who ought to go, announces them first, or is refused and changes nothing."""
        self.expire()
        self.wire("MEM.CARD", "k")  # what has expired is announced
        self.told()
        gone = self.room(new)
        if gone:
            [shown] = self.wire.pipeline(("MEM.EVICT", "k", "COUNT", 1000, "DRYRUN"))
            assert [each[b"id"].decode() for each in shown if each[b"id"].decode() not in new][: len(gone)] == gone
        [reply] = self.wire.pipeline(command)
        if gone is None:
            assert str(reply).startswith("ERR memory index is full at MAX"), (command, reply)
            gone, new = [], {}
            self.refused += 1
        else:
            assert not str(reply).startswith("ERR"), (command, reply)
        told = self.told()
        assert [event[6:] for event in told[: len(gone)]] == gone, command
        assert not any(event.startswith("evict") for event in told[len(gone) :])
        self.evicted += len(gone)
        for name in gone:
            del self.records[name]
        self.records |= new
        self.check()

    def check(self) -> None:
        held = self.wire("MEM.SCAN", "k", 0, "COUNT", 1000)[1]
        assert sorted(each.decode() for each in held) == sorted(self.records)

    def told(self) -> list[str]:
        """The events since the last time."""
        self.wire("PUBLISH", "__mem__:k", "stop")
        found = []
        while (event := self.listener.read()[2].decode()) != "stop":
            found.append(event)
        return found

    # -- what is done

    def kept(self, name: str, **changes: Any) -> Kept:
        old = self.records.get(name)
        if old is None:
            self.serial += 1
            return Kept(self.serial, **changes)
        values = {"importance": old.importance, "pin": old.pin, "deadline": old.deadline, "meta": old.meta}
        return Kept(old.serial, uses=old.uses, **(values | changes))

    def random_step(self, rng: Random) -> None:
        now = self.clock()
        self.expire()
        name = f"r{rng.randrange(14)}"
        match rng.randrange(10):
            case 0 | 1 | 2 | 3:
                new = {}
                words: list[Any] = []
                for at in range(rng.choice((1, 1, 1, 3, 9))):
                    name = f"r{rng.randrange(14)}" if at else name
                    if name in new:
                        continue
                    values: dict[str, Any] = {"text": "w" * rng.randrange(1, 40), "updated_at": now}
                    more: list[Any] = []
                    if rng.random() < 0.7:
                        values["importance"] = rng.choice((0.0, 0.25, rng.random()))
                        more += ["IMPORTANCE", repr(values["importance"])]
                    if rng.random() < 0.4:
                        values["updated_at"] = now + rng.choice((-30 * DAY, -WEEK_MS, -HOUR, DAY))
                        more += ["AT", values["updated_at"]]
                    if rng.random() < 0.15:
                        values["pin"] = True
                        more += ["PIN"]
                    if rng.random() < 0.15:
                        values["deadline"] = now + 5 * SECOND
                        more += ["TTL", 5]
                    new[name] = self.kept(name, **values)
                    words += ["RECORD", "ID", name, "TEXT", values["text"], *more]
                if len(new) == 1:
                    self.write(new, "MEM.ADD", "k", *words[1:])
                else:
                    self.write(new, "MEM.MADD", "k", len(new), *words)
            case 4 | 5:
                for hit in self.wire("MEM.LIST", "k", "LIMIT", rng.randrange(1, 4)):
                    found = self.wire("MEM.SEARCH", "k", hit[b"text"], "TOPK", 2)
                    for each in found:
                        self.records[each[b"id"].decode()].uses.append(now)
            case 6:
                if name in self.records:
                    old = self.records[name]
                    new_meta = old.meta | {"f": "v" * rng.randrange(40)}
                    changed = Kept(**(vars(old) | {"meta": new_meta}))
                    self.write({name: changed}, "MEM.SETMETA", "k", name, "f", new_meta["f"])
            case 7:
                self.wire("MEM.DEL", "k", name)
                self.records.pop(name, None)
            case 8:
                count = rng.randrange(1, 3)
                gone = self.order(set())[:count]
                dry = self.wire("MEM.EVICT", "k", "COUNT", count, "DRYRUN")
                assert self.wire("MEM.EVICT", "k", "COUNT", count) == dry
                assert [each[b"id"].decode() for each in dry] == gone
                for each in dry:
                    kept = self.records.pop(each[b"id"].decode())
                    assert each[b"retention"] == pytest.approx(kept.retention(now), abs=1e-12)
            case 9:
                records, size = rng.choice(((0, 60), (0, 300), (1, 0), (4, 150), (8, 0), (8, 400)))
                self.limits = {"MAXRECORDS": records, "MAXBYTES": size}
                self.wire("MEM.CONFIG", "k", *(word for pair in self.limits.items() for word in pair))
        self.check()


@pytest.mark.parametrize("history", [0, "ALL"])
@pytest.mark.parametrize("seed", range(4))
def test_whole_sequences_beside_plain_python(tmp_path: Path, seed: int, history: object) -> None:
    clock, rng = Clock(), Random(seed)
    with Running(clock=clock, dir=tmp_path) as server:
        wire, listener = server.wire(3), server.wire(3)
        listener("SUBSCRIBE", "__mem__:k")
        twin = Twin(wire, listener, clock, {"MAXRECORDS": 6, "MAXBYTES": 300}, history)
        for _ in range(300):
            twin.random_step(rng)
            clock.advance(rng.choice((0, 1, SECOND, HOUR, DAY)))
        assert twin.evicted > 12 and twin.refused > 0
        before = on_loop(server, lambda: state(server.server.keyspace))
        server.restart()
        assert on_loop(server, lambda: state(server.server.keyspace)) == before


def test_a_crash_after_any_write_leaves_what_was_answered(tmp_path: Path) -> None:
    """kill -9: who has gone stays away, who was kept is there, and the settings are."""
    rng = Random(7)
    for round_ in range(3):
        with Process(tmp_path, "--appendfsync", "always") as process:
            wire = process.wire(3)
            if not round_:
                wire("MEM.CREATE", "k", "MODE", "SEARCH", "MAXRECORDS", 7, "HISTORY", "ALL")
            else:
                assert wire("MEM.LIST", "k", "WITHMETA", "LIMIT", 100) == before  # noqa: F821
            for _ in range(rng.randrange(20, 40)):
                name = f"r{rng.randrange(40)}"
                wire("MEM.ADD", "k", "ID", name, "TEXT", "words", "IMPORTANCE", rng.random())
                wire("MEM.FACT", "k", "ann", "likes", f"thing {rng.randrange(40)}", "TYPE", "FOOD")
                wire("MEM.EVICT", "k") if rng.random() < 0.1 else None
            assert wire("MEM.CARD", "k") <= 7
            before = wire("MEM.LIST", "k", "WITHMETA", "LIMIT", 100)
            # One more, of which there is no answer: it is whole or not there.
            wire.sock.sendall(b"MEM.MADD k 2 RECORD ID last1 TEXT a RECORD ID last2 TEXT b\r\n")
            process.kill()
        with Process(tmp_path, "--appendfsync", "always") as process:
            after = process.wire(3)("MEM.LIST", "k", "WITHMETA", "LIMIT", 100)
            names = {each[b"id"] for each in after}
            assert after == before or ({b"last1", b"last2"} <= names and len(names) <= 7)
            before = after
            process.kill()


# What the limits meet on other ways


@pytest.mark.parametrize("limit", [("MAXRECORDS", 3), ("MAXBYTES", 30)])
def test_what_is_beyond_a_lowered_limit_is_kept_on_every_way(
    tmp_path: Path, running: Callable[..., Running], limit: tuple[str, int]
) -> None:
    """DUMP and RESTORE, COPY, RENAME, a rewrite, a restart, and export with import: none of them evicts."""
    server, other = running(clock=Clock(), dir=tmp_path / "a"), running(clock=Clock())
    wire, there = server.wire(3), other.wire(3)
    wire("MEM.CREATE", "k", "MODE", "SEARCH", "HISTORY", "ALL")
    for at in range(250):
        wire("MEM.ADD", "k", "ID", f"r{at}", "TEXT", f"text {at}", *(["PIN"] if at % 3 == 0 else []))
        wire("MEM.FACT", "k", "ann", "likes", f"thing {at}", "TYPE", "FOOD")
    wire("MEM.CONFIG", "k", *limit)
    listed = wire("MEM.SCAN", "k", 0, "COUNT", 1000)[1]
    assert len(listed) == 500
    wire("COPY", "k", "copy")
    there("RESTORE", "k", 0, wire("DUMP", "k"))
    wire("BGREWRITEAOF")
    eventually(lambda: b"aof_rewrite_in_progress:0" in wire("INFO", "persistence"))
    server.restart()
    wire = server.wire(3)
    wire("RENAME", "k", "named")
    path, address = str(tmp_path / "file.jsonl"), f"redis://127.0.0.1:{other.port}"
    assert cli.main(["export", path, "--url", f"redis://127.0.0.1:{server.port}", "--key", "named"]) == 0
    assert cli.main(["import", path, "--url", address]) == 0
    for held, key in ((wire, "copy"), (wire, "named"), (there, "k"), (there, "named")):
        assert sorted(held("MEM.SCAN", key, 0, "COUNT", 1000)[1]) == sorted(listed)
        assert held("MEM.CONFIG", key)[limit[0].lower().encode()] == limit[1]
    # From then on the limit is one.
    there("MEM.ADD", "named", "ID", "new", "TEXT", "t")
    assert there("MEM.CARD", "named") < 500


def test_an_import_that_was_cut_off_gets_its_limits_when_it_is_run_again(
    tmp_path: Path, running: Callable[..., Running]
) -> None:
    server, other = running(clock=Clock()), running(clock=Clock())
    wire, there = server.wire(3), other.wire(3)
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    for at in range(30):
        wire("MEM.ADD", "k", "TEXT", f"text {at}")
    wire("MEM.CONFIG", "k", "MAXRECORDS", 5)
    server.clock.advance(HOUR)
    path, address = tmp_path / "file.jsonl", f"redis://127.0.0.1:{other.port}"
    assert cli.main(["export", str(path), "--url", f"redis://127.0.0.1:{server.port}"]) == 0
    whole = path.read_bytes()
    there("CONFIG", "SET", "mem-max-text-bytes", 3)
    assert cli.main(["import", str(path), "--url", address]) == 1
    assert there("MEM.CARD", "k") == 0
    there("CONFIG", "SET", "mem-max-text-bytes", 1000)
    for _ in range(2):
        assert cli.main(["import", str(path), "--url", address]) == 0
        assert there("MEM.CARD", "k") == 30 and there("MEM.CONFIG", "k")[b"maxrecords"] == 5
    # Into one that was there it brings none.
    other.clock.advance(HOUR)
    there("MEM.CREATE", "other", "MODE", "SEARCH")
    renamed = re.sub(rb'("memory": ?)"k"', rb'\1"other"', whole)
    assert renamed != whole
    path.write_bytes(renamed)
    assert cli.main(["import", str(path), "--url", address]) == 0
    assert there("MEM.CONFIG", "other")[b"maxrecords"] == 0 and there("MEM.CARD", "other") == 30


def test_nobody_is_looked_at_for_what_an_empty_memory_would_not_take(
    monkeypatch: pytest.MonkeyPatch, wire3: Wire
) -> None:
    """Or each such write holds up everybody for as long as it takes to look at all records."""
    for key, *limit in (("r", "MAXRECORDS", 3), ("b", "MAXBYTES", 40)):
        wire3("MEM.CREATE", key, "MODE", "SEARCH", *limit)
        for name in "abc":
            wire3("MEM.ADD", key, "ID", name, "TEXT", "text")

    def looks(memory: Memory, now: int) -> Any:
        raise AssertionError("looked at")

    monkeypatch.setattr(Memory, "least", looks)
    five = [word for name in "vwxyz" for word in ("RECORD", "ID", name, "TEXT", "t")]
    assert wire3.error("MEM.MADD", "r", 5, *five) == "ERR memory index is full at MAXRECORDS (3)"
    for words in (("ADD", "b", "ID", "d", "TEXT", "x" * 41), ("ADD", "b", "ID", "a", "TEXT", "x" * 50)):
        assert wire3.error(f"MEM.{words[0]}", *words[1:]) == "ERR memory index is full at MAXBYTES (40)"
    assert wire3.error("MEM.SETMETA", "b", "a", "f", "x" * 41) == "ERR memory index is full at MAXBYTES (40)"
    assert wire3("MEM.CARD", "r") == wire3("MEM.CARD", "b") == 3
    # One that was beyond its limit already may stay there.
    monkeypatch.undo()
    wire3("MEM.CONFIG", "b", "MAXBYTES", 2)
    wire3("MEM.ADD", "b", "ID", "a", "TEXT", "texts")
    assert wire3("MEM.SCAN", "b", 0)[1] == [b"a"]


@pytest.mark.parametrize(
    "words", [("MAXRECORDS", -1), ("MAXBYTES", -1), ("MAXRECORDS", "x"), ("MAXRECORDS", 1.5), ("MAXRECORDS", 2**63)]
)
def test_bad_limits_change_nothing(wire3: Wire, words: tuple[Any, ...]) -> None:
    wire3("MEM.CREATE", "k", "MODE", "SEARCH", "MAXRECORDS", 5)
    assert wire3.error("MEM.CREATE", "n", "MODE", "SEARCH", *words).startswith("ERR")
    assert wire3.error("MEM.CONFIG", "k", *words).startswith("ERR")
    assert wire3("MEM.CONFIG", "k")[b"maxrecords"] == 5 and wire3("EXISTS", "n") == 0


# maxmemory


#: Of one memory of `fill`; a few of them are far more than all else that a test writes.
SIZE = 100_000


class Full:
    """A server with memories of SIZE bytes."""

    def __init__(self, server: Running) -> None:
        self.server = server
        assert isinstance(server.clock, Clock)
        self.clock = server.clock
        self.wire = server.wire(3)

    def fill(self, keys: str) -> None:
        for key in keys:
            self.wire("MEM.CREATE", key, "MODE", "SEARCH")
            for half in "12":
                self.wire("MEM.ADD", key, "ID", half, "TEXT", "x" * (SIZE // 2))
            self.clock.advance(SECOND)

    def used(self) -> int:
        return int(on_loop(self.server, self.server.server.eviction.used))

    def limit(self, memories: float, policy: str = "noeviction") -> None:
        """Allow what is taken now and so many memories more, or less."""
        self.wire("CONFIG", "SET", "maxmemory-policy", "noeviction", "maxmemory", 1 << 60)
        self.wire("CONFIG", "SET", "maxmemory", self.used() + int(memories * SIZE))
        self.wire("CONFIG", "SET", "maxmemory-policy", policy)

    def sweep(self) -> None:
        """What happens in between commands, now."""
        on_loop(self.server, lambda: self.server.server.eviction.sweep(self.clock()))


@pytest.fixture
def full(running: Callable[..., Running]) -> Full:
    return Full(running(clock=Clock()))


@pytest.mark.parametrize("policy", ["allkeys-lru", "allkeys-lfu", "allkeys-random"])
def test_one_memory_that_outgrows_the_server_is_refused_more_and_not_dropped(full: Full, policy: str) -> None:
    full.fill("a")
    full.limit(0.7, policy)
    refused = 0
    for _ in range(8):
        [reply] = full.wire.pipeline(("MEM.ADD", "a", "TEXT", "x" * (SIZE // 2)))
        refused += str(reply) == OOM
        for _ in range(4):
            full.sweep()
    assert refused >= 5 and full.wire("MEM.CARD", "a") >= 3
    assert b"evicted_keys:0" in full.wire("INFO", "stats")


def test_expired_memories_are_room_however_many_there_are(full: Full) -> None:
    """A draw that finds none but expired ones refuses nobody."""
    for at in range(600):
        full.wire("MEM.CREATE", f"m{at}", "MODE", "SEARCH")
        full.wire("PEXPIRE", f"m{at}", 5000)
    full.fill("a")
    full.limit(0)
    size = on_loop(full.server, lambda: full.server.server.keyspace.own_bytes(b"m0"))
    full.limit(-400 * size / SIZE, "volatile-lru")

    def one_turn() -> bool:
        full.clock.advance(10 * SECOND)
        return bool(full.server.server.eviction.make_room(full.clock(), {b"a"}))

    assert on_loop(full.server, one_turn)
    while on_loop(full.server, lambda: bool(full.server.server.keyspace.deadlines)):
        full.sweep()
    assert full.wire("DBSIZE") == 1 and full.used() <= full.server.server.eviction.limit
    assert b"evicted_keys:0" in full.wire("INFO", "stats")


#: A call of each command that Redis's `denyoom` stops here.
GROWS: dict[str, tuple[Any, ...]] = {
    "mem.create": ("n", "MODE", "SEARCH"),
    "mem.add": ("a", "TEXT", "t"),
    "mem.madd": ("a", 1, "RECORD", "TEXT", "t"),
    "mem.setmeta": ("a", "1", "f", "v"),
    "mem.fact": ("a", "ann", "likes", "tea"),
    "mem.entity": ("a", "tea", "TYPE", "FOOD"),
    "mem.embed": ("text",),
    "mem.analyze": ("a", "TEXT", "t"),
    "copy": ("a", "c"),
    "restore": ("r", 0, b"payload"),
}
#: And some of those that must go on, since they free, read or manage.
GOES_ON: list[tuple[Any, ...]] = [
    ("PING",),
    ("MEM.GET", "a", "1"),
    ("MEM.SEARCH", "a", "x"),
    ("MEM.EVICT", "a", "DRYRUN"),
    ("MEM.DELMETA", "a", "1", "f"),
    ("MEM.EXPIRE", "a", "1", 1000),
    ("MEM.CONFIG", "a", "MAXRECORDS", 5),
    ("EXPIRE", "a", 1000),
    ("PERSIST", "a"),
    ("RENAME", "a", "b"),
    ("RENAMENX", "b", "a"),
    ("MEM.FORGET", "a", "FILTER", "@id", "EQ", "none"),
    ("MULTI",),
    ("DISCARD",),
    ("WATCH", "a"),
    ("UNWATCH",),
    ("SUBSCRIBE", "c"),
    ("UNSUBSCRIBE", "c"),
    ("CONFIG", "SET", "maxmemory-samples", 5),
    ("MEM.EVICT", "a"),
    ("MEM.DEL", "a", "1", "2"),
    ("DEL", "a"),
    ("FLUSHALL",),
]


def test_what_noeviction_stops(full: Full) -> None:
    full.fill("a")
    full.limit(-0.5)
    assert {name for name, entry in TABLE.items() if "denyoom" in entry.flags} == set(GROWS)
    for name, words in GROWS.items():
        assert full.wire.error(name, *words) == OOM
    listener = full.server.wire(3)
    for words in GOES_ON:
        [reply] = listener.pipeline(words)
        assert "OOM" not in str(reply), words
    listener.close()


def test_a_transaction_at_the_limit(full: Full) -> None:
    """Whatever is queued takes memory, so all of it is refused, and EXEC then says so."""
    full.fill("a")
    full.limit(-0.5)
    replies = full.wire.pipeline(("MULTI",), ("MEM.GET", "a", "1"), ("EXEC",))
    assert str(replies[1]) == OOM and str(replies[2]).startswith("EXECABORT")
    # Queued before the limit came: refused as one, and nothing of it was done.
    other = full.server.wire(3)
    full.wire("CONFIG", "SET", "maxmemory", 0)
    other.pipeline(("MULTI",), ("MEM.DEL", "a", "1"), ("MEM.ADD", "a", "ID", "3", "TEXT", "t"))
    full.limit(-0.5)
    assert other.error("EXEC") == f"EXECABORT Transaction discarded because of: {OOM}"
    assert full.wire("MEM.CARD", "a") == 2
    full.wire("CONFIG", "SET", "maxmemory", 0)
    other.pipeline(("MULTI",), ("MEM.GET", "a", "1"), ("MEM.DEL", "a", "1"))
    full.limit(-0.5)
    assert other("EXEC")[1] == 1  # nothing in it needs memory
    other.close()


@pytest.mark.parametrize("policy", [*POLICIES, "volatile-ttl", "noeviction"])
def test_no_policy_goes_on_for_ever_or_beyond_what_it_may_drop(full: Full, policy: str) -> None:
    """At a limit that nothing meets, with and without deadlines."""
    for at in range(60):
        full.wire("MEM.CREATE", f"m{at}", "MODE", "SEARCH")
        if at % 3 == 0:
            full.wire("EXPIRE", f"m{at}", 1000 + at)
    full.wire("CONFIG", "SET", "maxmemory-policy", policy, "maxmemory", 1, "maxmemory-samples", 3)
    left = {"allkeys": 1, "volatile": 40, "noeviction": 60}[policy.partition("-")[0]]
    eventually(lambda: full.wire("DBSIZE") == left)
    for _ in range(5):
        full.sweep()
        assert full.wire("DBSIZE") == left
        if not policy.startswith("allkeys"):  # where the last one goes for another, by its command
            assert full.wire.error("MEM.CREATE", "new", "MODE", "SEARCH") == OOM
    evicted = full.wire("INFO", "stats").partition(b"evicted_keys:")[2].partition(b"\r")[0]
    assert int(evicted) >= 60 - left
    kept = full.wire("KEYS", "*")
    if policy.startswith("volatile"):
        assert all(full.wire("TTL", key) == -1 for key in kept)


@pytest.mark.parametrize("policy", ["allkeys-lru", "volatile-ttl"])
def test_evictions_while_the_log_is_rewritten_are_in_it(tmp_path: Path, policy: str) -> None:
    with Running(clock=Clock(), dir=tmp_path) as server:
        full = Full(server)
        full.fill("abcdefgh")
        for at, key in enumerate("abcdefgh"):
            full.wire("EXPIRE", key, 10_000 + at)
        full.wire("CONFIG", "SET", "notify-keyspace-events", "KEe")
        listener = server.wire(3)
        listener("PSUBSCRIBE", "__key*__:*")
        full.wire("BGREWRITEAOF")
        full.limit(-2.5, policy)
        eventually(lambda: full.wire("DBSIZE") <= 5)
        eventually(lambda: b"aof_rewrite_in_progress:0" in full.wire("INFO", "persistence"))
        left = sorted(full.wire("KEYS", "*"))
        assert left == [b"d", b"e", b"f", b"g", b"h"]
        told = [listener.read()[2:] for _ in range(6)]
        assert told[::2] == [[b"__keyspace@0__:%c" % key, b"evicted"] for key in b"abc"]
        assert told[1::2] == [[b"__keyevent@0__:evicted", b"%c" % key] for key in b"abc"]
        assert b"evicted_keys:3" in full.wire("INFO", "stats")
        before = on_loop(server, lambda: state(server.server.keyspace))
        server.restart()
        assert on_loop(server, lambda: state(server.server.keyspace)) == before


def test_a_crash_keeps_who_was_evicted_away(tmp_path: Path) -> None:
    words = ("--appendfsync", "always", "--maxmemory-policy", "allkeys-lru")
    with Process(tmp_path, *words) as process:
        wire = process.wire(3)
        for at in range(40):
            wire("MEM.CREATE", f"m{at}", "MODE", "SEARCH")
            wire("MEM.ADD", f"m{at}", "TEXT", "x" * 20_000)
        wire("CONFIG", "SET", "maxmemory", 1 << 60)
        used = int(wire("INFO", "memory").partition(b"used_memory:")[2].partition(b"\r")[0])
        wire("CONFIG", "SET", "maxmemory", used - 300_000)
        for at in range(40, 60):
            wire("MEM.CREATE", f"m{at}", "MODE", "SEARCH")
            wire("MEM.ADD", f"m{at}", "TEXT", "x" * 20_000)
        wire("CONFIG", "SET", "maxmemory-policy", "noeviction")
        keys = sorted(wire("KEYS", "*"))
        evicted = int(wire("INFO", "stats").partition(b"evicted_keys:")[2].partition(b"\r")[0])
        assert evicted == 60 - len(keys) > 20
        process.kill()
    with Process(tmp_path) as process:
        assert sorted(process.wire(3)("KEYS", "*")) == keys


def test_a_limit_that_goes_up_and_down_while_others_write(full: Full) -> None:
    """Nobody is refused anything but by OOM, the writers' own memories stay while they write, and it ends within."""
    full.limit(3, "allkeys-lru")
    failed: list[str] = []

    def write(key: str) -> None:
        wire = full.server.wire(3)
        for at in range(150):
            [reply] = wire.pipeline(("MEM.ADD", key, "ID", at % 5, "TEXT", f"{key} {at} " * 500))
            if str(reply).startswith("ERR no such memory index"):  # another one's write took it
                wire.pipeline(("MEM.CREATE", key, "MODE", "SEARCH"))
            elif isinstance(reply, Exception) and str(reply) != OOM:
                failed.append(str(reply))
        wire.close()

    writers = [threading.Thread(target=write, args=(f"w{at}",)) for at in range(4)]
    for writer in writers:
        writer.start()
    base = full.server.server.eviction.limit
    while any(writer.is_alive() for writer in writers):
        for limit in (base, 1, 0, base // 2, base):
            full.wire("CONFIG", "SET", "maxmemory", limit)
    assert failed == []
    full.wire("CONFIG", "SET", "maxmemory", base)
    eviction, keyspace = full.server.server.eviction, full.server.server.keyspace
    eventually(lambda: on_loop(full.server, eviction.used) <= eviction.limit or full.wire("DBSIZE") == 1)
    counted = on_loop(full.server, lambda: sum(map(keyspace.own_bytes, keyspace.memories)))
    assert full.used() == full.server.server.startup_bytes + counted + keyspace.vocabulary.nbytes()
