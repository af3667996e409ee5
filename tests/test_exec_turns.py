"""Transactions held up between two of their commands, while everything else happens: to their keys, the log, their
client. Whether they reply as those do that are done at once, tests/test_server_transactions.py shows."""

from __future__ import annotations

import asyncio
import errno
import gc
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from select import select
from typing import Any

import pytest
from durable import eventually, on_loop
from fake_embedder import FakeEmbedder
from faulty_files import FaultyFiles
from harness import PATIENCE_S, SECOND, Clock, Running, Wire, WireError
from inference_stand_in import MESSAGE, StandIn, fact, hangs, says
from recalld.server import aside, connection, console_client, record_commands, rewrite, transactions, workers
from test_attack_aside import KEYS, MEMORIES, Script, heard, held_by, repeated_at_once, said, same_after_restart, small


class Turns:
    """Stops transactions between two commands, while it is closed."""

    def __init__(self) -> None:
        self.closed = False
        self.taken = 0  # turns that were asked for
        self.before_last = 0  # how many turns may be taken although it is closed

    async def next_turn(self) -> None:
        self.taken += 1
        while self.closed and self.before_last <= 0:
            await asyncio.sleep(0.001)
        self.before_last -= 1
        await asyncio.sleep(0)


@pytest.fixture
def turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    """Each command of a transaction has a turn of its own."""
    turns = Turns()
    monkeypatch.setattr(transactions, "AT_ONCE_NS", -1)
    monkeypatch.setattr(transactions, "TURN_NS", -1)
    monkeypatch.setattr(transactions, "next_turn", turns.next_turn)
    yield turns
    turns.closed = False


@pytest.fixture
def kept(turns: Turns, tmp_path: Path) -> Iterator[Running]:
    """A server that keeps what it acknowledges, with a record in each of two memories."""
    with Running(clock=Clock(), dir=tmp_path, appendfsync="always") as server:
        wire = server.wire(2)
        for key in ("m", "o"):
            wire("MEM.CREATE", key, "MODE", "SEARCH")
            wire("MEM.ADD", key, "ID", "first", "TEXT", "the first")
        yield server
        turns.closed = False


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeEmbedder:
    """What every embedder is."""
    fake = FakeEmbedder()
    monkeypatch.setattr("recalld.server.embedding.make", fake.make)
    return fake


def begin(turns: Turns, wire: Wire, *commands: list[Any], done: int = 1) -> None:
    """Send a transaction and return when so many of its commands are done and no more will be."""
    wire.pipeline(["MULTI"], *commands)
    turns.closed, turns.before_last, turns.taken = True, done - 1, 0
    wire.send("EXEC")
    eventually(lambda: turns.taken == done)


def add(key: str, name: str, *more: Any) -> list[Any]:
    return ["MEM.ADD", key, "ID", name, "TEXT", f"text {name}", *more]


def nothing_came(wire: Wire) -> bool:
    return not select([wire.sock], [], [], 0)[0]


def paused(server: Running) -> int:
    return on_loop(server, lambda: server.server.blocked_clients())


TWO = [add("m", "a"), add("m", "b")]


# Who waits


@pytest.mark.parametrize(
    ("command", "reply"),
    [
        (["MEM.CARD", "m"], 3),
        (["MEM.GET", "m", "a"], None),
        (["MEM.QUERY", "m", "TEXT", "text", "TOPK", 1, "NOTEXT"], [[b"a"]]),
        (["MEM.QUERY", "o", "TEXT", "text", "ACROSS", 1, "m", "TOPK", 1, "NOTEXT"], [[b"a", b"m"]]),
        (["MEM.QUERY", "o", "TEXT", "first", "CASCADE", "DOWN", "NOTEXT"], [[b"first", b"o"]]),
        (["EXISTS", "o", "m"], 2),
        (["DUMP", "m"], None),
        (["COPY", "m", "copy"], 1),
        (["RENAME", "o", "m"], "OK"),
        (["MEM.DEL", "m", "a", "b", "c"], 2),
        (["MEM.MADD", "m", 1, "RECORD", "ID", "c", "TEXT", "more"], [b"c"]),
        (["MEM.FORGET", "m", "FILTER", "id", "EQ", "b"], None),
        (["DEL", "m"], 1),
        (["WATCH", "m"], "OK"),
        (["DBSIZE"], 2),
        (["KEYS", "*"], None),
        (["SCAN", 0], None),
        (["RANDOMKEY"], None),
        (["FLUSHALL"], "OK"),
        (["MEMORY", "USAGE", "m"], None),
    ],
    ids=lambda value: str(value[0]) if isinstance(value, list) and value else None,
)
def test_whoever_is_about_its_keys_waits(kept: Running, turns: Turns, command: list[Any], reply: Any) -> None:
    wire, other = kept.wire(2), kept.wire(2)
    begin(turns, wire, *TWO)
    other.send(*command)
    eventually(lambda: paused(kept) == 1)
    assert nothing_came(other)
    turns.closed = False
    assert wire.read() == [b"a", b"b"]
    found = other.read()
    assert reply is None or found == reply
    same_after_restart(kept)


@pytest.mark.parametrize(
    "command",
    [
        ["PING"],
        ["MEM.CARD", "o"],
        add("o", "more"),
        ["MEM.CREATE", "new", "MODE", "SEARCH"],
        ["MEM.QUERY", "o", "TEXT", "first", "ACROSS", 1, "x"],
        ["DEL", "o"],
        ["MEM.EXPIRE", "o", "first", 5],
        ["INFO"],
        ["CLIENT", "LIST"],
        ["PUBLISH", "m", "x"],
        ["CONFIG", "SET", "maxmemory", 0],
    ],
    ids=lambda words: words[0],
)
def test_others_are_served(
    monkeypatch: pytest.MonkeyPatch, kept: Running, turns: Turns, command: list[Any]
) -> None:
    """Alone and in a transaction of their own, and all of it is there after a restart."""
    wire, other = kept.wire(2), kept.wire(2)
    begin(turns, wire, *TWO, ["MEM.CARD", "m"])
    other(*command)
    monkeypatch.setattr(transactions, "AT_ONCE_NS", 1 << 60)
    other.pipeline(["MULTI"], command, ["MEM.CARD", "o"])
    assert len(other("EXEC")) == 2
    assert nothing_came(wire)
    turns.closed = False
    assert wire.read() == [b"a", b"b", 3]
    if command[0] != "MEM.CREATE":  # its place among the keys is that of its entry
        same_after_restart(kept)


def test_a_transaction_on_its_keys_waits_and_one_that_saw_them_before_fails(kept: Running, turns: Turns) -> None:
    wire, watcher, other = (kept.wire(2) for _ in range(3))
    watcher("WATCH", "m")
    watcher.pipeline(["MULTI"], ["MEM.CARD", "m"])
    other.pipeline(["MULTI"], ["MEM.CARD", "o"], add("m", "c"), ["MEM.CARD", "m"])
    begin(turns, wire, *TWO)
    watcher.send("EXEC")
    other.send("EXEC")
    eventually(lambda: paused(kept) == 2)
    turns.closed = False
    assert wire.read() == [b"a", b"b"]
    assert watcher.read() is None
    assert other.read() == [1, b"c", 4]


def test_one_that_looks_at_all_keys_has_all_others_wait(kept: Running, turns: Turns) -> None:
    wire, other, third = (kept.wire(2) for _ in range(3))
    begin(turns, wire, ["DBSIZE"], ["MEM.CREATE", "x", "MODE", "SEARCH"], ["DBSIZE"])
    other.send("MEM.CREATE", "y", "MODE", "SEARCH")
    third.send("MEM.CARD", "o")
    eventually(lambda: paused(kept) == 2)
    assert kept.wire(2)("PING") == "PONG"
    turns.closed = False
    assert wire.read() == [2, "OK", 3]
    assert (other.read(), third.read()) == ("OK", 1)
    same_after_restart(kept)


def test_who_came_first_is_served_first(kept: Running, turns: Turns) -> None:
    """Each transaction that ends lets one more begin; nobody's turn never comes."""
    first, second = kept.wire(2), kept.wire(2)
    writers = [kept.wire(2) for _ in range(6)]
    begin(turns, first, *TWO)
    second.pipeline(["MULTI"], add("m", "x"), add("m", "y"))
    second.send("EXEC")
    eventually(lambda: paused(kept) == 1)
    for number, writer in enumerate(writers):
        writer.send(*add("m", f"w{number}"))
        eventually(lambda number=number: paused(kept) == number + 2)
    turns.closed = False
    assert first.read() == [b"a", b"b"]
    assert second.read() == [b"x", b"y"]
    assert [writer.read() for writer in writers] == [b"w%d" % number for number in range(6)]
    names = first("MEM.SCAN", "m", 0, "COUNT", 100)[1]
    assert names == [b"first", b"a", b"b", b"x", b"y", *(b"w%d" % number for number in range(6))]


def test_who_waits_again_is_not_passed(kept: Running, turns: Turns) -> None:
    first, second, third, writer = (kept.wire(2) for _ in range(4))
    begin(turns, first, *TWO)
    for wire, ids in ((second, "xy"), (third, "zz")):
        wire.pipeline(["MULTI"], *(add("m", each) for each in ids))
    second.send("EXEC")
    eventually(lambda: paused(kept) == 1)
    writer.send(*add("m", "w"))
    eventually(lambda: paused(kept) == 2)
    turns.before_last, taken = 1, turns.taken  # the second gets under way, and the writer waits again
    eventually(lambda: not nothing_came(first) and turns.taken > taken and paused(kept) == 1)
    third.send("EXEC")
    eventually(lambda: paused(kept) == 2)

    def turn_round() -> None:
        waiting = kept.server.transactions.first_waiting
        turned = list(waiting)[::-1]
        waiting.clear()
        waiting.update(dict.fromkeys(turned))

    on_loop(kept, turn_round)
    turns.closed = False
    third.read()
    assert first.read() == [b"a", b"b"]
    names = first("MEM.SCAN", "m", 0, "COUNT", 100)[1]
    assert names.index(b"y") < names.index(b"w") < names.index(b"z")


def test_one_that_waits_for_all_keys_gets_them(kept: Running, turns: Turns) -> None:
    """Transactions follow each other on different keys; those that come behind it wait."""
    first, second, asking = kept.wire(2), kept.wire(2), kept.wire(2)
    begin(turns, first, *TWO)
    asking.send("DBSIZE")
    eventually(lambda: paused(kept) == 1)
    second.pipeline(["MULTI"], ["MEM.CARD", "o"], ["COPY", "o", "other"])  # not one that is quick for certain
    second.send("EXEC")
    eventually(lambda: paused(kept) == 2)
    assert kept.wire(2)("MEM.CARD", "o") == 1
    turns.closed = False
    assert asking.read() == 2
    assert second.read() == [1, 1]


def test_what_another_watches_does_not_expire_by_it(kept: Running, turns: Turns) -> None:
    wire, other = kept.wire(2), kept.wire(2)
    wire("PEXPIRE", "m", 1_000)
    other("WATCH", "m")
    other.pipeline(["MULTI"], ["PING"])
    begin(turns, wire, ["EXISTS", "m"], add("m", "a"), ["PERSIST", "m"])
    kept.clock.advance(2 * SECOND)
    other.send("EXEC")
    eventually(lambda: paused(kept) == 1)
    turns.closed = False
    assert wire.read() == [1, b"a", 1]
    assert other.read() is None
    assert same_after_restart(kept)("MEM.CARD", "m") == 2


def test_what_is_due_is_not_counted_by_one_that_looks_at_all_keys(kept: Running, turns: Turns) -> None:
    wire = kept.wire(2)
    wire("PEXPIRE", "m", 1_000)
    kept.clock.advance(2 * SECOND)
    assert wire.pipeline(["MULTI"], ["PING"], ["DBSIZE"], ["KEYS", "*"], ["RANDOMKEY"], ["EXEC"])[-1] == [
        "PONG",
        1,
        [b"o"],
        b"o",
    ]


def test_facts_that_a_model_finds_come_behind(turns: Turns, tmp_path: Path) -> None:
    with StandIn() as model, Running(
        clock=Clock(), dir=tmp_path, inference_url=model.url, inference_model="tiny"
    ) as server:
        wire, other = server.wire(2), server.wire(2)
        wire("MEM.CREATE", "m", "MODE", "SEARCH")
        wire("MEM.ADD", "m", "ID", "first", "TEXT", "the first")
        model.will(hangs(says({"facts": [fact()]})))
        other.send("MEM.ANALYZE", "m", "TEXT", MESSAGE)
        model.wait()
        begin(turns, wire, ["MEM.CARD", "m"], ["MEM.ADD", "m", "TEXT", "mine"], ["MEM.CARD", "m"])
        model.gate.set()
        eventually(lambda: on_loop(server, lambda: bool(server.server.transactions._end._waiters)))
        turns.closed = False
        assert wire.read() == [1, b"1", 2]
        assert other.read()[1] == [b"2"]
        same_after_restart(server)


@pytest.mark.parametrize(("before", "inside"), [("ON", "OFF"), ("ON", "SKIP"), ("OFF", "ON"), ("SKIP", "ON")])
def test_client_reply_inside(monkeypatch: pytest.MonkeyPatch, kept: Running, before: str, inside: str) -> None:
    """As where it is done at once."""
    said = []
    for nanoseconds in (1 << 60, -1):
        monkeypatch.setattr(transactions, "AT_ONCE_NS", nanoseconds)
        wire = kept.wire(2)
        commands = [["CLIENT", "REPLY", before], ["MULTI"], ["PING"], ["CLIENT", "REPLY", inside], ["PING"], ["EXEC"]]
        for words in [*commands, ["CLIENT", "REPLY", "ON"], ["ECHO", "end"]]:
            wire.send(*words)
        received = b""
        while not received.endswith(b"end\r\n"):
            received += wire.sock.recv(4096)
        said.append(received)
    assert said[0] == said[1]


def test_a_flush_inside(kept: Running, turns: Turns) -> None:
    wire, other = kept.wire(2), kept.wire(2)
    begin(turns, wire, ["FLUSHALL"], ["MEM.CREATE", "m", "MODE", "SEARCH"], add("m", "a"))
    other.send(*add("m", "b"))
    eventually(lambda: paused(kept) == 1)
    turns.closed = False
    assert wire.read() == ["OK", "OK", b"a"]
    assert other.read() == b"b"
    assert same_after_restart(kept)("MEM.CARD", "m") == 2


def test_one_after_the_other(kept: Running, turns: Turns) -> None:
    """Transactions on one key of many clients, and commands between them, are each one moment."""
    for number in range(5):
        kept.wire(2)("MEM.CREATE", f"k{number}", "MODE", "SEARCH")
    failures: list[BaseException] = []

    def run(number: int) -> None:
        rng = Random(number)
        try:
            wire = kept.wire(2)
            for turn in range(12):
                key = f"k{rng.randrange(5)}"
                reply = wire.pipeline(
                    ["MULTI"],
                    ["MEM.CARD", key],
                    add(key, f"{number}-{turn}"),
                    add(f"k{rng.randrange(5)}", f"{number}-{turn}-too"),
                    ["MEM.DEL", key, f"{number}-{turn}"],
                    ["MEM.CARD", key],
                    ["EXEC"],
                )[-1]
                assert reply[3] == 1 and reply[4] - reply[0] in (0, 1)
                assert wire("DBSIZE") == 7
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert not kept.server.transactions.matters
    wire = kept.wire(2)
    assert sum(wire("MEM.CARD", f"k{number}") for number in range(5)) == 6 * 12
    same_after_restart(kept)


# What is under way besides


def test_a_write_that_had_begun_before_comes_behind(kept: Running, turns: Turns, fake: FakeEmbedder) -> None:
    """It waits for its vector while the transaction deletes the record."""
    wire, other = kept.wire(2), kept.wire(2)
    wire("MEM.CREATE", "e", "EMBEDDER", "openai", "MODEL", "fake", "DIM", 8)
    fake.gate.clear()
    other.send("MEM.ADD", "e", "ID", "a", "TEXT", "embedded")
    assert fake.entered.acquire(timeout=PATIENCE_S)
    begin(turns, wire, ["MEM.ADD", "e", "ID", "a", "TEXT", "mine", "META", "n", 1], ["MEM.CARD", "e"])
    fake.gate.set()
    eventually(lambda: on_loop(kept, lambda: bool(kept.server.transactions._after)))
    assert nothing_came(other)
    turns.closed = False
    assert wire.read() == [b"a", 1]
    assert other.read() == b"a"
    assert wire("MEM.SCAN", "e", 0)[1] == [b"a"]
    same_after_restart(kept)


def test_vectors_that_are_made_in_the_background_come_behind(kept: Running, turns: Turns, fake: FakeEmbedder) -> None:
    wire = kept.wire(2)
    wire("MEM.CREATE", "e", "EMBEDDER", "openai", "MODEL", "fake", "DIM", 8)
    fake.gate.clear()
    wire.pipeline(["MULTI"], ["MEM.ADD", "e", "ID", "a", "TEXT", "embedded"], ["EXEC"])  # which waits for no vector
    assert fake.entered.acquire(timeout=PATIENCE_S)
    begin(turns, wire, ["MEM.CARD", "e"], ["MEM.CARD", "e"])
    fake.gate.set()
    eventually(lambda: on_loop(kept, lambda: bool(kept.server.transactions._end._waiters)))
    memory = kept.server.keyspace.memories[b"e"]
    assert memory.pending == 1
    turns.closed = False
    assert wire.read() == [1, 1]
    eventually(lambda: memory.pending == 0)
    same_after_restart(kept)


def test_a_large_change_aside_that_had_begun_before_comes_behind(
    monkeypatch: pytest.MonkeyPatch, kept: Running, turns: Turns
) -> None:
    """The transaction only reads the key: it does not wait for the change, and sees nothing of it."""
    monkeypatch.setattr(aside, "ON_LOOP", 0)
    made, go_on = threading.Event(), threading.Event()
    encode = aside.joined

    def held(group: Any) -> bytes:
        made.set()
        assert go_on.wait(PATIENCE_S)
        return encode(group)

    monkeypatch.setattr(aside, "joined", held)
    wire, other = kept.wire(2), kept.wire(2)
    other.send("MEM.MADD", "m", 2, "RECORD", "TEXT", "x", "RECORD", "TEXT", "y")
    assert made.wait(PATIENCE_S)
    begin(turns, wire, ["MEM.CARD", "m"], ["MEM.CARD", "m"])
    go_on.set()
    eventually(lambda: on_loop(kept, lambda: bool(kept.server.transactions._after)))
    turns.closed = False
    assert wire.read() == [1, 1]
    assert other.read() == [b"1", b"2"]
    same_after_restart(kept)


def test_large_changes_inside_are_made_aside_and_seen_by_nobody_before(
    monkeypatch: pytest.MonkeyPatch, kept: Running, turns: Turns
) -> None:
    monkeypatch.setattr(aside, "ON_LOOP", 0)
    monkeypatch.setattr(record_commands, "_READ_ON_LOOP", 0)
    made = threading.Event()
    encode = aside.joined

    def noted(group: Any) -> bytes:
        made.set()
        return encode(group)

    monkeypatch.setattr(aside, "joined", noted)
    wire, other = kept.wire(2), kept.wire(2)
    madd = ["MEM.MADD", "m", 2, "RECORD", "TEXT", "x", "META", "n", 1, "RECORD", "TEXT", "y", "META", "n", 2]
    begin(turns, wire, add("m", "a"), madd, ["MEM.CARD", "m"], ["MEM.FORGET", "m", "FILTER", "n", "EQ", 1])
    other.send("MEM.CARD", "m")
    eventually(lambda: paused(kept) == 1)
    turns.closed = False
    assert wire.read() == [b"a", [b"1", b"2"], 4, [1, [b"1"]]]
    assert made.is_set()
    assert other.read() == 3
    same_after_restart(kept)


def test_nothing_on_its_keys_expires_meanwhile(kept: Running, turns: Turns) -> None:
    """It is one moment; what was due meanwhile goes behind it."""
    wire, other = kept.wire(2), kept.wire(2)
    wire("MEM.CREATE", "short", "MODE", "SEARCH")
    wire("EXPIRE", "short", 1)
    wire("MEM.ADD", "m", "ID", "brief", "TEXT", "brief", "TTL", 1)
    wire("MEM.ADD", "o", "ID", "brief", "TEXT", "brief", "TTL", 1)
    reads: list[list[Any]] = [["EXISTS", "short"], ["MEM.CARD", "m"]]
    begin(turns, wire, *reads, add("short", "a"), *reads)
    kept.clock.advance(2 * SECOND)
    on_loop(kept, lambda: kept.server.keyspace.expire(kept.clock()))
    on_loop(kept, lambda: kept.server.keyspace.expire(kept.clock(), 1))
    assert other("MEM.CARD", "o") == 1
    turns.closed = False
    assert wire.read() == [1, 2, b"a", 1, 2]
    on_loop(kept, lambda: kept.server.keyspace.expire(kept.clock()))
    assert set(kept.server.keyspace.memories) == {b"m", b"o"}
    assert kept.server.keyspace.memories[b"m"].table.live == 1
    same_after_restart(kept)


def test_a_memory_of_it_is_not_evicted_and_who_needs_the_room_waits(kept: Running, turns: Turns) -> None:
    wire, other = kept.wire(2), kept.wire(2)
    wire("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
    begin(turns, wire, *TWO)
    other("CONFIG", "SET", "maxmemory", 1 << 40)
    eventually(lambda: not kept.server.eviction._changed)
    other("CONFIG", "SET", "maxmemory", on_loop(kept, kept.server.eviction.used) - 1)
    other.send(*add("o", "more"))
    eventually(lambda: paused(kept) == 1)
    assert b"m" in kept.server.keyspace.memories
    turns.closed = False
    assert wire.read() == [b"a", b"b"]
    assert other.read() == b"more"
    assert set(kept.server.keyspace.memories) == {b"o"}
    other("CONFIG", "SET", "maxmemory", 0)
    same_after_restart(kept)


def test_a_rewrite_is_of_a_moment_before_or_behind(kept: Running, turns: Turns) -> None:
    wire, other = kept.wire(2), kept.wire(2)
    begin(turns, wire, add("m", "a"), add("m", "b"), ["MEM.DEL", "m", "first"])
    other("BGREWRITEAOF")
    other(*add("o", "meanwhile"))
    assert b"aof_rewrite_in_progress:1" in other("INFO", "persistence")
    # None that writes gets under way any more: a short one is done at once, a long one waits, and one that may be.
    other.pipeline(["MULTI"], ["MEM.CARD", "o"], add("o", "short"))
    assert other("EXEC") == [2, b"short"]
    third, heavy = kept.wire(2), kept.wire(2)
    third.pipeline(["MULTI"], *[add("o", f"long-{number}") for number in range(40)])
    third.send("EXEC")
    heavy.pipeline(["MULTI"], ["COPY", "o", "copy"])
    heavy.send("EXEC")
    eventually(lambda: paused(kept) == 2)
    turns.closed = False
    assert wire.read() == [b"a", b"b", 1]
    assert len(third.read()) == 40
    assert heavy.read() == [1]
    eventually(lambda: b"aof_rewrite_in_progress:0" in other("INFO", "persistence"))
    assert b"aof_last_bgrewrite_status:ok" in other("INFO", "persistence")
    assert kept.server.rewriter.rewrites == 1
    assert same_after_restart(kept)("MEM.CARD", "o") == 43


def test_a_rewrite_that_has_begun_goes_on(
    monkeypatch: pytest.MonkeyPatch, kept: Running, turns: Turns
) -> None:
    """Its base is of the moment before the transaction, all of which is in the new log."""
    wire, other = kept.wire(2), kept.wire(2)
    monkeypatch.setattr(rewrite, "_KEYS_PER_TURN", 0)
    other("BGREWRITEAOF")
    eventually(lambda: on_loop(kept, lambda: kept.server.keyspace.before_change and not kept.server.transactions._bars))
    begin(turns, wire, add("m", "a"), ["MEM.DEL", "m", "first"], ["MEM.CREATE", "new", "MODE", "SEARCH"], done=2)
    other(*add("o", "b"))
    monkeypatch.setattr(rewrite, "_KEYS_PER_TURN", 300)
    eventually(lambda: kept.server.rewriter.rewrites == 1)
    turns.closed = False
    assert wire.read() == [b"a", 1, "OK"]
    same_after_restart(kept)


# How it ends


def test_a_crash_finds_all_of_it_or_nothing(kept: Running, turns: Turns, tmp_path: Path) -> None:
    """As kill -9 leaves the files: in the middle, with writes of others since it began, and once it is answered."""

    def found(name: str) -> list[Any]:
        copied = tmp_path.parent / f"{tmp_path.name}-{name}"
        shutil.copytree(tmp_path, copied)
        with Running(clock=kept.clock, dir=copied) as other:
            return held_by(other)

    wire, other = kept.wire(2), kept.wire(2)
    before = held_by(kept)
    begin(turns, wire, *TWO, ["RENAME", "m", "n"], done=2)
    assert found("during") == before
    other(*add("o", "c"))
    crashed = found("later")
    assert [each[0] for each in crashed] == [b"m", b"o"]
    assert crashed[0] == before[0] and crashed[1] != before[1]
    turns.closed = False
    assert wire.read() == [b"a", b"b", "OK"]
    assert found("after") == held_by(kept)


@pytest.mark.parametrize("how", ["closed", "killed", "deleted"])
def test_it_goes_on_without_its_client(kept: Running, turns: Turns, how: str) -> None:
    """All of it, but who has gone subscribes to nothing."""
    admin, other, listener = kept.wire(2), kept.wire(2), kept.wire(2)
    listener("SUBSCRIBE", "said")
    admin("ACL", "SETUSER", "bob", "on", "nopass", "~*", "&*", "+@all")
    wire = kept.wire(2)
    wire("AUTH", "bob", "x")
    number = wire("CLIENT", "ID")
    begin(turns, wire, *TWO, ["SUBSCRIBE", "news"], ["PUBLISH", "said", "x"], add("m", "c"))
    other.send("MEM.CARD", "m")
    eventually(lambda: paused(kept) == 1)
    if how == "closed":
        wire.close()
    elif how == "killed":
        admin("CLIENT", "KILL", "ID", number)
    else:
        admin("ACL", "DELUSER", "bob")
    if how != "closed":  # that one may be half closed, and still wait for its reply
        eventually(lambda: number not in kept.server.clients)
    turns.closed = False
    assert other.read() == 4
    eventually(lambda: admin("PUBSUB", "CHANNELS") == [b"said"])
    assert listener.read() == [b"message", b"said", b"x"]
    assert not kept.server.transactions.matters
    same_after_restart(kept)


@pytest.mark.parametrize("heals", [False, True])
def test_where_the_log_fails_its_reply_says_so(turns: Turns, heals: bool) -> None:
    files = FaultyFiles()
    with Running(clock=Clock(), dir="/data", files=files, appendfsync="always") as server:
        wire, other = server.wire(2), server.wire(2)
        wire("MEM.CREATE", "m", "MODE", "SEARCH")
        wire("MEM.CREATE", "o", "MODE", "SEARCH")
        begin(turns, wire, *TWO)
        files.fail("write", errno.ENOSPC, nth=0)
        assert "MISCONF" in other.error(*add("o", "x"))
        if heals:
            files.heal()
            eventually(lambda: said(other, add("o", "y")) == b"y")
            turns.closed = False
            assert wire.read() == [b"a", b"b"]
        else:
            turns.closed = False
            assert "MISCONF" in heard(wire)
            files.heal()
            eventually(lambda: said(other, add("o", "y")) == b"y")
        assert other("MEM.CARD", "m") == 2
        same_after_restart(server)


def test_a_shutdown_lets_it_end(kept: Running, turns: Turns) -> None:
    wire = kept.wire(2)
    begin(turns, wire, *TWO)
    connections = [client.connection for client in kept.server.clients.values()]
    stopping = threading.Thread(target=kept.stop)
    stopping.start()
    eventually(lambda: all(each.closing_after_input for each in connections))
    turns.closed = False
    assert wire.read() == [b"a", b"b"]
    stopping.join()
    kept.start()
    assert kept.wire(2)("MEM.CARD", "m") == 3


def test_where_the_server_ends_first_it_has_not_happened(kept: Running, turns: Turns, fake: FakeEmbedder) -> None:
    """Nor has what waited for it in the middle of a write."""
    wire, other = kept.wire(2), kept.wire(2)
    wire("MEM.CREATE", "e", "EMBEDDER", "openai", "MODEL", "fake", "DIM", 8)
    fake.gate.clear()
    other.send("MEM.ADD", "e", "ID", "a", "TEXT", "embedded")
    assert fake.entered.acquire(timeout=PATIENCE_S)
    before = held_by(kept)
    begin(turns, wire, ["RENAME", "e", "f"], *TWO)
    fake.gate.set()
    eventually(lambda: on_loop(kept, lambda: bool(kept.server.transactions._after)))
    on_loop(kept, kept.server._hurry.set)
    kept.stop()
    assert "shutting down" in heard(wire)
    kept.start()
    assert held_by(kept) == before


def test_a_shutdown_lets_one_end_whose_client_has_gone(kept: Running, turns: Turns) -> None:
    wire, other = kept.wire(2), kept.wire(2)
    number = wire("CLIENT", "ID")
    begin(turns, wire, *TWO)
    other("CLIENT", "KILL", "ID", number)
    eventually(lambda: number not in kept.server.clients)
    stopping = threading.Thread(target=kept.stop)
    stopping.start()
    eventually(lambda: not kept.server.clients)
    turns.closed = False
    stopping.join()
    kept.start()
    assert kept.wire(2)("MEM.CARD", "m") == 3


@pytest.mark.parametrize("what", ["its own", "another's", "a rewrite"])
def test_nothing_is_written_that_saw_a_part_of_what_has_not_happened(
    monkeypatch: pytest.MonkeyPatch, kept: Running, turns: Turns, fake: FakeEmbedder, what: str
) -> None:
    """The server ends while a thread works for a transaction, or for somebody who waits for it."""
    monkeypatch.setattr(aside, "ON_LOOP", 0)
    abandon = kept.server.transactions.abandon
    in_thread, go_on, abandoned = threading.Event(), threading.Event(), threading.Event()

    async def abandoned_first() -> None:
        await abandon()
        abandoned.set()
        go_on.set()
        for _ in range(100):  # what the thread has made comes now
            await asyncio.sleep(0.002)

    kept.server.transactions.abandon = abandoned_first
    encode = aside.joined

    def held(group: Any) -> bytes:
        in_thread.set()
        assert go_on.wait(PATIENCE_S)
        return encode(group)

    monkeypatch.setattr(aside, "joined", held)
    wire, other = kept.wire(2), kept.wire(2)
    wire("MEM.CREATE", "e", "EMBEDDER", "openai", "MODEL", "fake", "DIM", 8)
    if what == "another's":
        fake.gate.clear()
        other.send("MEM.ADD", "e", "TEXT", "embedded")
        assert fake.entered.acquire(timeout=PATIENCE_S)
    before = held_by(kept)
    if what == "its own":
        wire.pipeline(["MULTI"], ["MEM.CREATE", "new", "MODE", "SEARCH"], ["RENAME", "m", "n"])
        wire("MEM.MADD", "new", 2, "RECORD", "TEXT", "x", "RECORD", "TEXT", "y")
        wire.send("EXEC")
        assert in_thread.wait(PATIENCE_S)
    else:
        begin(turns, wire, ["MEM.ADD", "e", "TEXT", "first", "NOEMBED"][:4], ["RENAME", "m", "n"], *TWO, done=2)
    if what == "another's":
        fake.gate.set()
        eventually(lambda: on_loop(kept, lambda: bool(kept.server.transactions._after)))
    elif what == "a rewrite":
        assert b"started" in str(other("BGREWRITEAOF")).encode()
    on_loop(kept, kept.server._hurry.set)
    kept.stop()
    assert abandoned.is_set()
    kept.start()
    assert held_by(kept) == before


def test_replies_beyond_the_output_limit_end_it(kept: Running, turns: Turns) -> None:
    """What it writes is written; what would only have read is not run any more."""
    wire, other = kept.wire(2), kept.wire(2)
    wire("MEM.ADD", "m", "ID", "long", "TEXT", "x" * 5_000)
    wire("CONFIG", "SET", "client-output-buffer-limit", "normal 20000 0 0")
    wire.pipeline(["MULTI"], *[["MEM.GET", "m", "long"]] * 9, add("m", "a"))
    wire.send("EXEC")
    with pytest.raises((ConnectionError, EOFError)):
        wire.read()
    assert other("MEM.CARD", "m") == 3
    same_after_restart(kept)


def test_pushes_and_what_follows_come_behind_its_reply(kept: Running, turns: Turns) -> None:
    wire, other = kept.wire(3), kept.wire(2)
    begin(turns, wire, ["SUBSCRIBE", "news"], ["MEM.CARD", "m"], add("m", "a"))
    assert other("PUBLISH", "news", "early") == 1
    wire.send("PING")
    assert nothing_came(wire)
    turns.closed = False
    said = b""
    while not said.endswith(b"+PONG\r\n"):
        said += wire.sock.recv(4096)
    assert said == (
        b"*3\r\n>3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n:1\r\n$1\r\na\r\n"
        b">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$5\r\nearly\r\n+PONG\r\n"
    )


async def looked(server: Running) -> Any:
    insider = console_client.Insider(server.server, "127.0.0.1:0", server.server.acl.default)
    try:
        return await insider("MEM.CARD", "m")
    finally:
        insider.close()


def test_the_console_waits_as_others_do(kept: Running, turns: Turns) -> None:
    wire = kept.wire(2)
    begin(turns, wire, *TWO)
    looking = asyncio.run_coroutine_threadsafe(looked(kept), kept._loop)
    eventually(lambda: bool(on_loop(kept, lambda: kept.server.transactions.first_waiting)))
    assert not looking.done()
    turns.closed = False
    assert looking.result(PATIENCE_S) == 3


# Anything


@pytest.mark.parametrize("seed", range(5))
def test_random_interleavings(
    turns: Turns, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    """A transaction is to others as if it had been done at once when it began, on a server that does so."""
    small(monkeypatch)
    monkeypatch.setattr(aside, "ON_LOOP", 1)
    monkeypatch.setattr(record_commands, "_READ_ON_LOOP", 8)
    rng = Random(seed)
    script = Script(rng, MEMORIES[seed % len(MEMORIES)])
    clock = Clock()
    with (
        Running(clock=clock, dir=tmp_path, appendfsync=rng.choice(["always", "everysec", "no"])) as live,
        Running(clock=clock) as plain,
    ):
        plain.server.transactions.bars = lambda queue: True  # what it does, it does at once
        reference = plain.wire(2)
        wires = [live.wire(2) for _ in range(3)]

        def wanted(words: list[Any]) -> Any:
            return said(reference, words) if words[0] in ("EXEC", "MULTI") else repeated_at_once(reference, words)

        def both(words: list[Any]) -> None:
            assert said(wires[1], words) == wanted(words), words

        for number in range(12):
            turns.closed = False
            for key in KEYS:
                if not wires[1]("EXISTS", key):
                    both(["MEM.CREATE", key, *script.shape])
            mine = rng.sample(KEYS, rng.randint(1, max(1, len(KEYS) - 1)))
            commands: list[list[Any]] = []
            for _ in range(rng.randint(1, 7)):
                key = rng.choice(mine)
                words = script.write(key) if rng.random() < 0.7 else rng.choice(script.reads(key))
                if words[0] not in ("COPY", "RENAME") or words[2] in mine:
                    commands.append(words)
            replies = [said(wire, ["MULTI"]) for wire in (wires[0], reference)]
            assert replies == ["OK", "OK"]
            queued = [[said(wire, words) for words in commands] for wire in (wires[0], reference)]
            assert queued[0] == queued[1]
            turns.closed, turns.before_last, turns.taken = True, rng.randint(0, len(commands)), 0
            wires[0].send("EXEC")
            eventually(lambda wire=wires[0]: turns.before_last <= 0 < turns.taken or not nothing_came(wire))
            reply = said(reference, ["EXEC"])
            others = [each for each in KEYS if each not in mine]
            for _ in range(rng.randint(0, 4) if others else 0):
                key = rng.choice(others)
                words = script.write(key) if rng.random() < 0.6 else rng.choice(script.reads(key))
                if words[0] not in ("COPY", "RENAME") or words[2] in others:
                    both(words)
            if rng.random() < 0.3:
                wires[1]("BGREWRITEAOF")
            keys = [words[1] for words in commands] or mine
            waiting = [script.write(rng.choice(keys)) for _ in range(rng.randint(0, 3))]
            for words in waiting:
                wires[2].send(*words)
            if waiting and live.server.transactions._under_way:
                eventually(lambda: paused(live) == 1)
            while waiting and not live.server.transactions._under_way:
                words = waiting.pop(0)
                assert heard(wires[2]) == wanted(words), words
            if rng.random() < 0.3:
                clock.advance(rng.choice([1, 500, SECOND]))
                on_loop(live, lambda: live.server.keyspace.expire(clock()))
            turns.closed = False
            assert heard(wires[0]) == (f"error {reply}" if isinstance(reply, WireError) else reply), commands
            for words in waiting:
                assert heard(wires[2]) == wanted(words), words
            eventually(lambda: not live.server.rewriter.running)
            assert held_by(live) == held_by(plain)
            if rng.random() < 0.2 or number == 11:
                same_after_restart(live)
                wires = [live.wire(2) for _ in range(3)]
                assert held_by(live) == held_by(plain)


def test_what_waits_for_a_thread_leaves_no_cycle_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Full collections are rare: what a cycle holds, all records of a MEM.MADD, would stay for long."""
    monkeypatch.setattr(aside, "ON_LOOP", 0)
    monkeypatch.setattr(record_commands, "_READ_ON_LOOP", 0)
    monkeypatch.setattr(transactions, "AT_ONCE_NS", -1)
    monkeypatch.setattr(transactions, "TURN_NS", -1)
    madd = ["MEM.MADD", "m", 2, "RECORD", "TEXT", "x", "META", "n", 1, "RECORD", "TEXT", "y", "META", "n", 1]
    forget = ["MEM.FORGET", "m", "FILTER", "n", "EQ", 1]
    with Running(clock=Clock()) as server:
        wire = server.wire(2)
        wire("MEM.CREATE", "m", "MODE", "SEARCH")
        gc.collect()
        gc.disable()
        try:
            for words in (madd, forget, madd, ["MEM.QUERY", "m", "TEXT", "x"], ["DUMP", "m"], ["MEM.VERIFY", "m"]):
                wire(*words)
            wire.pipeline(["MULTI"], madd, forget, *TWO, ["MEM.QUERY", "m", "TEXT", "x"], ["EXEC"])
            wire("PING")
            gone = server.wire(2)
            gone.pipeline(["MULTI"], *[["MEM.QUERY", "m", "TEXT", "x"]] * 300)
            number = max(server.server.clients)
            gone.send("EXEC")
            wire("CLIENT", "KILL", "ID", number)
            gone.close()
            eventually(lambda: not server.server.transactions.under_way and number not in server.server.clients)
            gc.set_debug(gc.DEBUG_SAVEALL)
            on_loop(server, gc.collect)
            ours = [each for each in gc.garbage if str(getattr(each, "__module__", "")).startswith("recalld")]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()
        assert not ours


def test_the_console_has_its_place_among_those_who_wait(kept: Running, turns: Turns) -> None:
    """It has its reply although the next transaction is under way by then."""
    first, second = kept.wire(2), kept.wire(2)
    begin(turns, first, *TWO)
    looking = asyncio.run_coroutine_threadsafe(looked(kept), kept._loop)
    eventually(lambda: bool(on_loop(kept, lambda: kept.server.transactions.first_waiting)))
    second.pipeline(["MULTI"], add("m", "x"), add("m", "y"))
    second.send("EXEC")
    eventually(lambda: paused(kept) == 1)
    turns.before_last, taken = 1, turns.taken
    assert first.read() == [b"a", b"b"]
    eventually(lambda: turns.taken > taken)
    assert looking.result(PATIENCE_S) == 3
    assert nothing_came(second)
    turns.closed = False
    assert second.read() == [b"x", b"y"]


@pytest.mark.parametrize("words", [["PING"], ["MEM.CARD", "m"]])
def test_a_command_that_waits_is_not_tried_whenever_more_comes(
    monkeypatch: pytest.MonkeyPatch, kept: Running, turns: Turns, words: list[Any]
) -> None:
    wire, other = kept.wire(2), kept.wire(2)
    begin(turns, wire, *TWO)
    tried: list[bytes] = []
    execute = connection.execute
    monkeypatch.setattr(connection, "execute", lambda ctx, args: tried.append(args[0]) or execute(ctx, args))
    other.send("MEM.CARD", "m")
    eventually(lambda: paused(kept) == 1)
    before = kept.server.stats.input_bytes
    other.send(*words)
    eventually(lambda: kept.server.stats.input_bytes > before)
    assert tried == [b"MEM.CARD"]
    turns.closed = False
    assert other.read() == 3
    assert other.read() == ("PONG" if words == ["PING"] else 3)


def test_who_waits_is_not_idle(kept: Running, turns: Turns) -> None:
    wire, other = kept.wire(2), kept.wire(2)
    wire("CONFIG", "SET", "timeout", 1)
    begin(turns, wire, *TWO)
    other.send("MEM.CARD", "m")
    eventually(lambda: paused(kept) == 1)
    on_loop(kept, lambda: kept.server._close_idle(kept.clock() + 5 * SECOND))
    turns.closed = False
    assert wire.read() == [b"a", b"b"]
    assert other.read() == 3
    wire("CONFIG", "SET", "timeout", 0)


def test_what_is_due_elsewhere_goes_however_much_is_held(kept: Running, turns: Turns) -> None:
    wire = kept.wire(2)
    for number in range(20):
        wire("MEM.CREATE", f"held{number}", "MODE", "SEARCH")
        wire("PEXPIRE", f"held{number}", 500)
    wire("PEXPIRE", "o", 600)
    begin(turns, wire, *(["EXISTS", f"held{number}"] for number in range(20)))
    kept.clock.advance(SECOND)
    on_loop(kept, lambda: kept.server.keyspace.expire(kept.clock(), 5))
    assert b"o" not in kept.server.keyspace.memories and len(kept.server.keyspace.memories) == 21
    assert not on_loop(kept, lambda: kept.server.keyspace.expire(kept.clock(), 5))
    turns.closed = False
    assert wire.read() == [1] * 20
    on_loop(kept, lambda: kept.server.keyspace.expire(kept.clock()))
    assert set(kept.server.keyspace.memories) == {b"m"}


def test_a_refusal_is_muted_as_its_reply_would_be(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a write in a thread, with CLIENT REPLY OFF: whoever sends and does not read would take it for another's."""
    monkeypatch.setattr(aside, "ON_LOOP", 0)
    monkeypatch.setattr(record_commands, "_READ_ON_LOOP", 0)
    files = FaultyFiles()
    with Running(clock=Clock(), dir="/data", files=files, appendfsync="always") as server:
        wire, other = server.wire(2), server.wire(2)
        other("MEM.CREATE", "m", "MODE", "SEARCH")
        wire.send("CLIENT", "REPLY", "OFF")
        files.fail("sync", errno.EIO)
        wire.send("MEM.MADD", "m", 2, "RECORD", "TEXT", "x", "RECORD", "TEXT", "y")
        eventually(lambda: server.server.log.failure is not None)
        eventually(lambda: said(other, ["MEM.CREATE", "p", "MODE", "SEARCH"]) == "OK")
        assert wire("CLIENT", "REPLY", "ON") == "OK"
        assert wire("MEM.CARD", "m") == 2


def test_what_follows_refused_transactions_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their reads are with threads, as many as a client may have, when the log fails."""
    monkeypatch.setattr(workers, "INLINE_COST", -1)
    monkeypatch.setattr(workers, "_SHORT_COST", -1)
    files, gate = FaultyFiles(), threading.Event()
    with Running(clock=Clock(), dir="/data", files=files, appendfsync="always") as server:
        wire = server.wire(2)
        wire("MEM.CREATE", "m", "MODE", "SEARCH")
        wire("MEM.ADD", "m", "TEXT", "lake")
        for _ in range(8):
            on_loop(server, lambda: server.server.background(lambda: gate.wait(PATIENCE_S)) and None)
        files.fail("sync", errno.EIO, nth=0)
        transaction = [["MULTI"], ["MEM.ADD", "m", "TEXT", "lake"], ["MEM.SEARCH", "m", "lake"], ["EXEC"]]
        for words in [*transaction, *transaction, ["PING"]]:
            wire.send(*words)
        replies = [heard(wire) for _ in range(9)]
        assert replies[-1] == "PONG" and "MISCONF" in str(replies[3])
        gate.set()
        files.heal()
