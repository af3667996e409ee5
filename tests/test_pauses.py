"""What is large is done in threads or by copies that share rows; what it does is what it says, all of it or nothing.

The server of these tests has one thread for such work. A test that stops it (`stopped`) has a command under way for as
long as it likes.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import DAY, JUNE, SECOND, Clock, Process, Running, Wire, Word, flat_pairs
from recalld.index.analyzer import Vocabulary
from recalld.index.memory import NEVER, Memory, free
from recalld.index.settings import Settings
from recalld.server.entries import SetMeta

#: More than the loop changes by itself, more than are in the forward index alone, and no whole block of vectors.
MANY = 1500
WORDS = "amber birch cedar delta ember fjord grove heath inlet jetty knoll ledge marsh north oasis prism".split()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock, tmp_path: Path) -> Iterator[Running]:
    with Running(clock=clock, dir=tmp_path, mem_threads="1") as running:
        yield running


@contextmanager
def stopped(server: Running) -> Iterator[None]:
    """Meanwhile the thread does nothing."""
    go = threading.Event()
    server.server.executor.submit(go.wait)
    try:
        yield
    finally:
        go.set()


def record(number: int, rng: random.Random) -> list[Word]:
    words = " ".join(rng.choices(WORDS, k=6))
    vector = np.array([rng.gauss(0, 1) for _ in range(4)], "<f4").tobytes()
    tag = "even" if number % 2 == 0 else "odd"
    return ["ID", f"r{number}", "TEXT", f"{words} w{number}", "VEC", vector, "META", "n", number, "TAGS", 2, "all", tag]


@cache
def records(count: int) -> list[list[Word]]:
    rng = random.Random(count)
    return [record(number, rng) for number in range(count)]


def fill(wire: Wire, key: str, count: int = MANY, *settings: Word) -> None:
    """By fifties: so few are written on the loop."""
    wire("MEM.CREATE", key, "DIM", 4, *settings)
    some = [records(count)[start : start + 50] for start in range(0, count, 50)]
    adds = [["MEM.MADD", key, len(each), *(word for words in each for word in ("RECORD", *words))] for each in some]
    assert sum(map(len, wire.pipeline(*adds))) == count


def fill_facts(wire: Wire, key: str, count: int) -> None:
    """`count` facts about the entity `other`, of which every tenth is said of `hub` as well."""
    wire("MEM.CREATE", key, "MODE", "SEARCH")
    for name in ("hub", "other"):
        wire("MEM.ENTITY", key, name, "TYPE", "ORG")
    wire.pipeline(*[("MEM.FACT", key, f"person {n}", "works at", "other", "TYPE", "ORG") for n in range(count)])
    wire.pipeline(*[("MEM.FACT", key, f"person {n}", "works at", "hub", "TYPE", "ORG") for n in range(0, count, 10)])


def state(wire: Wire, key: str) -> list[bytes]:
    """What there is to be seen of a memory, but for its times."""
    questions: list[tuple[Word, ...]] = [
        ("MEM.SCAN", key, 0, "COUNT", 100_000),
        ("MEM.LIST", key, "LIMIT", 1000, "WITHMETA", "WITHVEC"),
        ("MEM.LIST", key, "TAGS", "ANY", 1, "odd", "LIMIT", 1000),
        ("MEM.SEARCH", key, "amber delta w7 w1501", "TOPK", 50, "WITHSCORES"),
        ("MEM.FACTS", key, "LIMIT", 1000, "INVALIDATED"),
        ("MEM.ENTITIES", key),
    ]
    info = flat_pairs(wire("MEM.INFO", key))
    if info[b"mode"] == b"HYBRID":
        query = np.array([0.5, -0.25, 0.125, 1][: info[b"dim"]], "<f4").tobytes()
        questions.append(("MEM.QUERY", key, "TEXT", "birch cedar", "VEC", query, "TOPK", 50, "WITHSCORES"))
    replies = wire.raws(*questions)
    assert not any(reply.startswith(b"-") for reply in replies)
    return replies


# -- COPY: both have the rows in common until either changes


def changes(rng: random.Random) -> list[tuple[Word, ...]]:
    """What becomes of a memory of MANY records."""
    found: list[tuple[Word, ...]] = []
    for _ in range(900):
        number = rng.randrange(MANY + 700)
        found.append(("MEM.DEL", f"r{number}") if rng.random() < 0.4 else ("MEM.ADD", *record(number, rng)))
    return found


@pytest.mark.parametrize("settings", [(), ("HISTORY", "ALL"), ("METRIC", "L2")])
def test_a_copy_and_its_source_go_their_own_ways(server: Running, clock: Clock, settings: tuple[Word, ...]) -> None:
    """Each has the state of a memory that was filled like it and never copied; so has a copy of the copy."""
    wire = server.wire()
    names = ("source", "copy", "second")
    for name in ("source", "alone source", "alone copy", "alone second"):
        fill(wire, name, MANY, *settings)
    wire("COPY", "source", "copy")
    wire("COPY", "copy", "second")
    rngs = {name: random.Random(name) for name in names}
    steps = {name: changes(rng) for name, rng in rngs.items()}
    for at in range(900):
        clock.advance(SECOND)
        wire.pipeline(
            *[(steps[name][at][0], key, *steps[name][at][1:]) for name in names for key in (name, f"alone {name}")]
        )
    for name in names:
        assert state(wire, name) == state(wire, f"alone {name}"), name
    seen = {name: state(wire, name) for name in names}
    assert seen["source"] != seen["copy"]
    server.restart()
    wire = server.wire()
    assert {name: state(wire, name) for name in names} == seen


def test_a_copy_of_facts_goes_its_own_way(server: Running) -> None:
    """Names, entities and what facts say are shared too, and change apart."""
    wire = server.wire()
    fill_facts(wire, "source", 40)
    wire("COPY", "source", "copy")
    before = state(wire, "source")
    wire("MEM.ENTITY", "copy", "hub", "TYPE", "ORG", "MERGE", "other")
    wire("MEM.FACT", "copy", "person 1", "likes", "tea")
    wire("MEM.INVALIDATE", "copy", "3")
    assert state(wire, "source") == before
    wire("MEM.DEL", "source", *range(1, 30))
    assert wire("MEM.FACTS", "copy", "ENTITY", "hub")[0] == 39


# -- changes made aside


def merge(key: str = "k") -> tuple[Word, ...]:
    return ("MEM.ENTITY", key, "hub", "TYPE", "ORG", "MERGE", "other")


def until_paused(server: Running, wire: Wire) -> None:
    """Return once the server holds a command back."""
    while not server.server.blocked_clients():
        assert wire("PING") == "PONG"


def test_others_read_what_there_was_and_write_after_it(server: Running) -> None:
    """While a MERGE is under way: its connection waits, reads see the state before, a write to the key waits, a write
    to another key does not."""
    one, two, three = server.wire(), server.wire(), server.wire()
    fill_facts(one, "k", 300)
    with stopped(server):
        one.send(*merge())
        one.send("MEM.FACTS", "k", "ENTITY", "hub", "LIMIT", 1)
        two.send("MEM.ENTITY", "k", "third", "TYPE", "ORG")
        two.send("MEM.ENTITY", "k", "third", "TYPE", "ORG", "MERGE", "other")
        until_paused(server, three)
        assert three("MEM.FACTS", "k", "ENTITY", "other", "LIMIT", 1)[0] == 300
        assert three("MEM.FACTS", "k", "ENTITY", "hub", "LIMIT", 1)[0] == 30
        assert three("MEM.CREATE", "other key", "MODE", "SEARCH") == "OK"
    first = one.read()
    assert flat_pairs(first)[b"facts"] == 300
    assert one.read()[0] == 300
    assert two.read()
    last = two.read()
    # `other` is an alias of hub by then.
    assert flat_pairs(last)[b"aliases"] == [b"hub", b"other"]


def test_a_change_that_had_begun_before_is_not_lost(server: Running) -> None:
    """What is committed without asking (vectors of an embedder) sends the work back: both are there, also after a
    restart."""
    one, two = server.wire(), server.wire()
    fill_facts(one, "k", 300)
    with stopped(server):
        one.send(*merge())
        two.send("MEM.DEL", "k", "300")
        until_paused(server, server.wire())
        loop = server.server.loop
        entry = SetMeta(b"k", b"7", (b"field", b"value"), JUNE)
        done = threading.Event()
        loop.call_soon_threadsafe(lambda: (server.server.commit(entry), done.set()))
        done.wait()
    one.read()
    assert two.read() == 1
    seen = state(two, "k")
    assert [b"field", b"value"] in two("MEM.GET", "k", "7", "WITHMETA")
    assert two("MEM.FACTS", "k", "ENTITY", "hub", "LIMIT", 1)[0] == 299
    server.restart()
    assert state(server.wire(), "k") == seen


def test_a_key_that_goes_meanwhile(server: Running) -> None:
    """Nothing is written then, to the key or to another of its name."""
    one, two = server.wire(), server.wire()
    fill_facts(one, "k", 300)
    fill_facts(two, "new", 30)
    seen = state(two, "new")
    with stopped(server):
        one.send(*merge())
        two.send("MEM.CREATE", "other", "MODE", "SEARCH")
        two.send("FLUSHALL")
        assert (two.read(), two.read()) == ("OK", "OK")
        assert not server.server.keyspace.memories
    assert "the key was replaced" in str(one.read())
    assert two("DBSIZE") == 0
    fill_facts(two, "new", 30)
    assert state(two, "new") == seen
    server.restart()
    assert state(server.wire(), "new") == seen


BIG: dict[str, tuple[tuple[Word, ...], ...]] = {
    "FORGET of half": (("MEM.FORGET", "k", "TAGS", "ANY", 1, "even"),),
    "FORGET of all": (("MEM.FORGET", "k", "TAGS", "ANY", 1, "all"),),
    "DEL of many": (("MEM.DEL", "k", *[f"r{n}" for n in range(0, MANY, 3)]),),
    "another model": (("MEM.CONFIG", "k", "MODEL", "other", "DIM", 3),),
    "another model, then words": (("MEM.CONFIG", "k", "MODEL", "other", "DIM", 3), ("MEM.ADD", "k", "TEXT", "more")),
}


@pytest.mark.parametrize("history", ["0", "ALL"])
@pytest.mark.parametrize("name", BIG)
def test_as_a_transaction_has_it_and_the_log(server: Running, clock: Clock, name: str, history: str) -> None:
    """In a thread or, in EXEC, on the loop: the same replies and the same state; and so after a restart."""
    wire = server.wire()
    for key in ("k", "twin"):
        fill(wire, key, MANY, "HISTORY", history)
        clock.advance(SECOND)
        wire("MEM.DEL", key, "r1", "r2")
        wire("MEM.ADD", key, *record(4, random.Random(4)))
        wire("MEM.ADD", key, *record(1, random.Random(4)))
        clock.advance(-SECOND)
    clock.advance(DAY)
    here = [wire(*command) for command in BIG[name]]
    wire("MULTI")
    for command in BIG[name]:
        wire(command[0], "twin", *command[2:])
    assert wire("EXEC") == here
    seen = state(wire, "k")
    assert seen == state(wire, "twin")
    if history == "ALL":
        asof = ("KNOWNAT", JUNE + SECOND)
        found = wire("MEM.SEARCH", "k", "amber w4 w5", "TOPK", 100, *asof)
        assert found == wire("MEM.SEARCH", "twin", "amber w4 w5", "TOPK", 100, *asof)
    server.restart()
    wire = server.wire()
    assert state(wire, "k") == state(wire, "twin") == seen


def test_history_that_ends_takes_its_versions(server: Running, clock: Clock) -> None:
    """MEM.CONFIG HISTORY 0 on many versions leaves the current records, and nothing of the others."""
    wire = server.wire()
    fill(wire, "k", MANY, "HISTORY", "ALL")
    clock.advance(SECOND)
    wire("MEM.DEL", "k", *[f"r{n}" for n in range(MANY - 100)])
    clock.advance(SECOND)
    before = state(wire, "k")
    assert wire("MEM.CONFIG", "k", "HISTORY", 0) == "OK"
    assert state(wire, "k") == before
    past = server.server.keyspace.memories[b"k"].past
    assert past is None or past.live == 0


def test_a_merge_is_whole_or_not_at_all_after_kill_9(tmp_path: Path) -> None:
    """Whenever the server is killed: all facts are hub's, or none but its own."""
    words = ("--appendonly", "yes", "--appendfsync", "always")
    with Process(tmp_path, *words) as server:
        fill_facts(server.wire(), "k", 2000)
        server.kill()
    for delay_pings in (0, 3, 30, 300, None):
        with Process(tmp_path, *words) as server:
            wire, other = server.wire(), server.wire()
            if delay_pings != 0:
                hub = wire("MEM.FACTS", "m", "ENTITY", "hub", "LIMIT", 1)[0]
                assert hub in (200, 2000)
                names = [entity[1] for entity in wire("MEM.ENTITIES", "m")[1]]
                assert names == ([b"hub", b"other"] if hub == 200 else [b"hub"])
                assert wire("MEM.CARD", "m") == (2200 if hub == 200 else 2000)
            if delay_pings is not None:
                wire("COPY", "k", "m", "REPLACE")
                wire.send(*merge("m"))
                for _ in range(delay_pings):
                    other("PING")
            server.kill()


# -- what goes at once


def test_many_records_expire_at_once(server: Running, clock: Clock) -> None:
    """In the order of their deadlines; those that were renewed, or went before, do not count."""
    wire, listener = server.wire(), server.wire()
    wire("MEM.CREATE", "k", "MODE", "SEARCH", "HISTORY", "ALL")
    for number in range(600):
        wire("MEM.ADD", "k", "ID", f"r{number}", "TEXT", f"amber w{number}", "TTL", 10 + number % 50)
    wire("MEM.EXPIRE", "k", "r5", 0)
    wire("MEM.EXPIRE", "k", "r6", 1000)
    wire("MEM.DEL", "k", "r7")
    listener("SUBSCRIBE", "__mem__:k")
    clock.advance(100 * SECOND)
    assert wire("MEM.CARD", "k") == 2
    events = [listener.read()[2] for _ in range(597)]
    numbers = [int(event.removeprefix(b"expire r")) for event in events]
    assert sorted(numbers) == sorted(set(range(600)) - {5, 6, 7})
    assert [number % 50 for number in numbers] == sorted(number % 50 for number in numbers)
    assert wire("MEM.SCAN", "k", 0)[1] == [b"r5", b"r6"]
    assert wire("MEM.SEARCH", "k", "amber", "KNOWNAT", JUNE) == wire("MEM.SEARCH", "k", "amber")
    server.restart()
    assert server.wire()("MEM.CARD", "k") == 2


def test_all_keys_while_many_are_due(server: Running, clock: Clock) -> None:
    """Some go for each question; no answer knows of any that is due."""
    wire = server.wire()
    wire.pipeline(*[("MEM.CREATE", f"due {n}", "MODE", "SEARCH") for n in range(3000)])
    wire.pipeline(*[("PEXPIRE", f"due {n}", 1000) for n in range(3000)])
    for name in ("one", "two"):
        wire("MEM.CREATE", name, "MODE", "SEARCH")
    with frozen_cron(server):
        clock.advance(5 * SECOND)
        assert wire("RANDOMKEY") in (b"one", b"two")
        assert wire("DBSIZE") == 2
        assert wire("KEYS", "*") == [b"one", b"two"]
    assert wire("KEYS", "*") == [b"one", b"two"]


@contextmanager
def frozen_cron(server: Running) -> Iterator[None]:
    """The periodic task, which lets keys go too, does not."""
    keyspace = server.server.keyspace
    expire = keyspace.expire
    keyspace.expire = lambda now, limit=NEVER: expire(now, limit) if limit < 2000 else True
    try:
        yield
    finally:
        keyspace.expire = expire


def test_what_is_freed_stays_with_who_reads_it() -> None:
    """A view of a memory that went still has its rows."""
    memory = Memory(Settings(mode="SEARCH", weights=(1, 0, 0, 0), half_life=1), Vocabulary(), JUNE)
    for number in range(3000):
        memory.put(
            b"%d" % number, b"text %d" % number, b"", (), (),
            importance=0.5, created_at=JUNE, updated_at=JUNE, deadline=NEVER, max_words=10, at=JUNE,
        )  # fmt: skip
    view = memory.view(JUNE)
    things: list[Memory | list[Any]] = [memory, [b"x"] * 5000]
    del memory
    free(things)
    assert not things
    assert view.texts == [b"text %d" % number for number in range(3000)]
