"""Large changes made aside, held up at the moment before they are installed, while everything else happens: to the
memory, its key, its log, its client. And memories that share rows, changed apart."""

from __future__ import annotations

import errno
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from select import select
from typing import Any

import numpy as np
import pytest
from durable import eventually, memory_state, on_loop, state
from fake_embedder import FakeEmbedder
from faulty_files import FaultyFiles
from harness import JUNE, PATIENCE_S, SECOND, Clock, Running, Wire, WireError
from recalld.index import columns, compaction, filters
from recalld.index import memory as index_memory
from recalld.index.analyzer import Vocabulary
from recalld.index.memory import NEVER, Memory, run
from recalld.index.query import Query
from recalld.index.settings import ALL, Settings
from recalld.index.vectors import normalised
from recalld.server import aof as filelog
from recalld.server import aside, content_ids, query_commands, record_commands, workers
from recalld.server import server as server_module
from recalld.server.entries import Drop, Put, Switch


class Gate:
    """Holds up every change that is made aside once it is made, while it is closed."""

    def __init__(self) -> None:
        self._open = threading.Event()
        self._open.set()
        self._made = threading.Semaphore(0)
        self.made = 0

    def __call__(self, pieces: list[bytes]) -> bytes:
        self.made += 1
        self._made.release()
        assert self._open.wait(PATIENCE_S)
        return b"".join(pieces)

    def close(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    def wait(self) -> None:
        """Until a change is made."""
        assert self._made.acquire(timeout=PATIENCE_S)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[Gate]:
    """All changes that may be made aside are."""
    gate = Gate()
    monkeypatch.setattr(aside, "joined", gate)
    monkeypatch.setattr(aside, "ON_LOOP", 0)
    monkeypatch.setattr(query_commands, "ON_LOOP", 0)
    monkeypatch.setattr(workers, "INLINE_COST", -1)
    monkeypatch.setattr(record_commands, "_DEL_ON_LOOP", 0)
    monkeypatch.setattr(record_commands, "_READ_ON_LOOP", 0)
    monkeypatch.setattr(record_commands, "_COPIED_PER_WRITTEN", 1 << 30)
    yield gate
    gate.open()


@pytest.fixture
def kept(gate: Gate, tmp_path: Path) -> Iterator[Running]:
    """A server that keeps what it acknowledges."""
    with Running(clock=Clock(), dir=tmp_path, appendfsync="always") as server:
        yield server
        gate.open()


def held_up(gate: Gate, wire: Wire, *words: Any) -> None:
    """Send a command and return when its change is made and not yet there."""
    gate.close()
    wire.send(*words)
    gate.wait()


def held_by(server: Running) -> list[Any]:
    """All that it holds, but for what is due."""

    def look() -> list[Any]:
        keyspace, now = server.server.keyspace, server.clock()
        for key in keyspace.keys(now):
            keyspace.prune(key, now)
        return state(keyspace)

    found: list[Any] = on_loop(server, look)
    return found


def same_after_restart(server: Running) -> Wire:
    before = held_by(server)
    server.restart()
    assert held_by(server) == before
    return server.wire(2)


def rewritten(wire: Wire) -> None:
    wire("BGREWRITEAOF")
    eventually(lambda: b"aof_rewrite_in_progress:0" in wire("INFO", "persistence"))
    assert b"aof_last_bgrewrite_status:ok" in wire("INFO", "persistence")


@pytest.mark.parametrize("command", ["DEL", "FORGET", "MADD"])
@pytest.mark.parametrize("seen", [False, True])
def test_records_that_expire_before_a_rewrite_are_no_part_of_the_change(
    kept: Running, gate: Gate, command: str, seen: bool
) -> None:
    """The log named records that the base, of a moment between, had no more: the next start refused it."""
    wire, other = kept.wire(2), kept.wire(2)
    wire("MEM.CREATE", "m", "MODE", "SEARCH")
    for name in "abc":
        wire("MEM.ADD", "m", "ID", name, "TEXT", "word", "META", "n", 1)
    wire("MEM.ADD", "m", "ID", "short", "TEXT", "word", "META", "n", 1, "TTL", 1)
    words = {
        "DEL": ["MEM.DEL", "m", "a", "short"],
        "FORGET": ["MEM.FORGET", "m", "FILTER", "n", "EQ", 1],
        "MADD": ["MEM.MADD", "m", 2, "RECORD", "ID", "short", "TEXT", "new", "TTL", 9, "RECORD", "TEXT", "more"],
    }[command]
    held_up(gate, wire, *words)
    kept.clock.advance(2 * SECOND)
    if seen:
        assert other("MEM.CARD", "m") == 3
    rewritten(other)
    gate.open()
    wire.read()
    after = same_after_restart(kept)
    assert after("MEM.CARD", "m") == {"DEL": 2, "FORGET": 0, "MADD": 5}[command]


def test_verify_goes_on_over_a_change(kept: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had indexed is not there any more: all records left were bad."""
    wire = kept.wire(2)
    wire("MEM.CREATE", "m", "MODE", "SEARCH")
    for number in range(20):
        wire("MEM.ADD", "m", "TEXT", f"text {number}")
    check = content_ids._check
    monkeypatch.setattr(content_ids, "STEP_RECORDS", 3)

    def and_change(memory: Any, ids: list[bytes]) -> tuple[int, int]:
        found = check(memory, ids)
        memory.become(memory.copy())
        return found

    monkeypatch.setattr(content_ids, "_check", and_change)
    assert wire("MEM.VERIFY", "m") == [b"checked", 20, b"bad", 0]


def test_a_change_that_begins_again_is_of_the_time_when_it_does(kept: Running, gate: Gate) -> None:
    """A record written meanwhile was deleted as of a time before it was written."""
    wire, other = kept.wire(2), kept.wire(2)
    wire("MEM.CREATE", "m", "MODE", "SEARCH", "HISTORY", "ALL")
    wire("MEM.ADD", "m", "ID", "a", "TEXT", "first")
    kept.clock.advance(SECOND)
    held_up(gate, wire, "MEM.DEL", "m", "a")
    kept.clock.advance(SECOND)
    on_loop(kept, lambda: _write(kept, b"a", b"second"))
    kept.clock.advance(SECOND)
    gate.open()
    assert wire.read() == 1
    assert other("MEM.CARD", "m") == 0
    asked = ["MEM.QUERY", "m", "TEXT", "second", "KNOWNAT", JUNE + 2 * SECOND, "ASOF", JUNE + 2 * SECOND, "NOTEXT"]
    assert other(*asked) == [[b"a"]]
    assert same_after_restart(kept)(*asked) == [[b"a"]]


def _write(server: Running, record_id: bytes, text: bytes) -> None:
    """As a write that had begun before: it does not wait."""
    real = server.server
    memory, now = real.keyspace.memories[b"m"], real.clock()
    put = Put(
        key=b"m", id=record_id, text=text, vector=b"", meta=(), tags=(), importance=0.5, created_at=now,
        updated_at=now, deadline=0, next_id=memory.next_id, max_words=100, at=now, extra=None,
    )  # fmt: skip
    real.commit(put)


def test_a_crash_finds_all_of_it_or_nothing(kept: Running, gate: Gate, tmp_path: Path) -> None:
    """As kill -9 leaves the files: while the change is made, and once it is answered."""

    def found(name: str) -> list[Any]:
        copied = tmp_path.parent / f"{tmp_path.name}-{name}"
        shutil.copytree(tmp_path, copied)
        with Running(clock=kept.clock, dir=copied) as other:
            return held_by(other)

    wire = kept.wire(2)
    wire("MEM.CREATE", "m", "MODE", "SEARCH", "HISTORY", "ALL")
    for number in range(9):
        wire("MEM.ADD", "m", "ID", number, "TEXT", f"text {number}", "META", "n", number % 2)
    held_up(gate, wire, "MEM.FORGET", "m", "FILTER", "n", "EQ", 1)
    assert found("during") == held_by(kept)
    gate.open()
    assert wire.read()[0] == 4
    assert found("after") == held_by(kept)


def test_where_the_log_fails_nothing_is_changed(gate: Gate) -> None:
    files = FaultyFiles()
    with Running(clock=Clock(), dir="/data", files=files, appendfsync="always") as server:
        wire, other = server.wire(2), server.wire(2)
        wire("MEM.CREATE", "m", "MODE", "SEARCH")
        wire("MEM.ADD", "m", "ID", "a", "TEXT", "word")
        before = held_by(server)
        held_up(gate, wire, "MEM.MADD", "m", 1, "RECORD", "TEXT", "more")
        files.fail("write", errno.ENOSPC, nth=0)
        assert "MISCONF" in other.error("MEM.CREATE", "o", "MODE", "SEARCH")
        gate.open()
        assert "MISCONF" in heard(wire)
        assert held_by(server)[:1] == before
        files.heal()
        eventually(lambda: said(wire, ["MEM.MADD", "m", 1, "RECORD", "TEXT", "more"]) == [b"1"])
        assert wire("MEM.CARD", "m") == 2
        gate.open()


@pytest.mark.parametrize("how", ["user", "client", "key", "flush", "expired"])
def test_what_ends_a_change(kept: Running, gate: Gate, how: str) -> None:
    """Whoever waits behind it goes on, whatever became of it; it is made wholly or not at all."""
    admin, other = kept.wire(2), kept.wire(2)
    admin("ACL", "SETUSER", "bob", "on", "nopass", "~*", "+@all")
    admin("MEM.CREATE", "m", "MODE", "SEARCH")
    admin("MEM.ADD", "m", "ID", "a", "TEXT", "word")
    if how == "expired":
        admin("PEXPIRE", "m", 1_000)
    wire = kept.wire(2)
    wire("AUTH", "bob", "x")
    held_up(gate, wire, "MEM.MADD", "m", 2, "RECORD", "TEXT", "more", "RECORD", "TEXT", "and more")
    if how == "expired":
        kept.clock.advance(SECOND)
    other.send("MEM.ADD", "m", "ID", "b", "TEXT", "behind")
    eventually(lambda: bool(kept.server.blocked_clients()))
    if how == "user":
        admin("ACL", "DELUSER", "bob")
    elif how == "client":
        wire.close()
    elif how == "flush":
        admin("FLUSHALL")
    elif how == "key":
        on_loop(kept, lambda: kept.server.commit(Drop((b"m",))))
    gate.open()
    reply = heard(other)
    assert not kept.server.changing
    if how == "client":
        assert reply == b"b"
        assert admin("MEM.CARD", "m") == 4
    elif how == "user":
        assert reply == b"b"
        assert admin("MEM.CARD", "m") == 2
    else:
        assert "no such memory" in reply
        assert admin("EXISTS", "m") == 0
    same_after_restart(kept)


def test_watchers_and_transactions_see_it_at_one_moment(kept: Running, gate: Gate) -> None:
    wire, other = kept.wire(2), kept.wire(2)
    wire("MEM.CREATE", "m", "MODE", "SEARCH")
    wire("MEM.ADD", "m", "ID", "a", "TEXT", "word")
    other("WATCH", "m")
    held_up(gate, wire, "MEM.MADD", "m", 2, "RECORD", "TEXT", "more", "RECORD", "TEXT", "and more")
    other("MULTI")
    other("MEM.CARD", "m")
    assert other("EXEC") == [1]  # it has not changed yet, and a transaction that only reads waits for nothing
    other("WATCH", "m")
    other("MULTI")
    other("MEM.CARD", "m")
    other("MEM.ADD", "m", "TEXT", "mine")
    other.send("EXEC")
    eventually(lambda: bool(kept.server.blocked_clients()))
    gate.open()
    assert other.read() is None
    assert wire.read() == [b"1", b"2"]
    assert other("MEM.CARD", "m") == 3


def test_vectors_of_a_model_that_the_memory_has_no_more_are_not_stored(kept: Running, gate: Gate) -> None:
    """The change of model ended meanwhile; the new one is as wide."""
    wire = kept.wire(2)
    wire("MEM.CREATE", "m", "DIM", 2)
    held_up(gate, wire, "MEM.MADD", "m", 1, "RECORD", "TEXT", "more", "FVEC", 2, 1, 2)
    memory = kept.server.keyspace.memories[b"m"]
    settings = replace(memory.settings, embedder="local", model="another")
    on_loop(kept, lambda: kept.server.commit(Switch(b"m", settings, kept.clock())))
    gate.open()
    assert "another model" in heard(wire)
    assert wire("MEM.CARD", "m") == 0


def test_a_write_that_waits_for_its_vector_comes_between(
    monkeypatch: pytest.MonkeyPatch, kept: Running, gate: Gate
) -> None:
    """It had begun before, so it does not wait: the change is made again, of what there is then."""
    fake = FakeEmbedder()
    monkeypatch.setattr("recalld.server.embedding.make", fake.make)
    wire, other = kept.wire(2), kept.wire(2)
    wire("MEM.CREATE", "m", "EMBEDDER", "openai", "MODEL", "fake", "DIM", 8)
    fake.gate.clear()
    other.send("MEM.ADD", "m", "ID", "a", "TEXT", "embedded", "META", "by", "other")
    assert fake.entered.acquire(timeout=PATIENCE_S)
    vector = ["FVEC", 8, *range(1, 9)]
    held_up(
        gate, wire, "MEM.MADD", "m", 2, "RECORD", "ID", "a", "TEXT", "mine", *vector, "RECORD", "TEXT", "b", *vector
    )
    fake.gate.set()
    assert other.read() == b"a"
    gate.open()
    assert wire.read() == [b"a", b"1"]
    assert gate.made == 2
    shown = wire("MEM.GET", "m", "a", "WITHMETA")
    assert b"mine" in shown
    assert [b"by", b"other"] in shown
    same_after_restart(kept)


@pytest.mark.parametrize("seed", range(4))
def test_copies_and_their_views_are_independent(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Memories that were copied from each other, changed and compacted apart, against ones that share nothing; plans
    made before answer as they did."""
    small(monkeypatch)
    rng = Random(seed)
    settings = Settings(dim=2, lang="none", history=ALL if seed % 2 else 0, max_records=1_000)
    vocabulary = Vocabulary()
    pairs = [(Memory(settings, vocabulary, 0), Memory(settings, vocabulary, 0))]
    done: list[list[tuple[Any, ...]]] = [[]]
    asked: list[tuple[Any, Any]] = []

    def apply(memory: Memory, step: tuple[Any, ...]) -> None:
        kind, ids, text, at = step
        there = [record_id for record_id in ids if record_id in memory]
        if kind == "put":
            for record_id in ids:
                unit = normalised(np.array([len(text), 1.0 + at % 5]))
                memory.put(
                    record_id, text, b"" if at % 4 == 0 else unit.astype("<f4").tobytes(), (b"n", text), (text[:2],),
                    importance=0.5, created_at=at, updated_at=at, max_words=9, at=at,
                    deadline=NEVER if at % 3 else at + 40,
                )  # fmt: skip
        elif kind == "remove":
            memory.remove_all(there, at)
        elif kind == "forget":
            memory.forget(there, (), at)
        elif kind == "meta" and there:
            memory.set_meta(there[0], (b"n", text), at)
        elif kind == "compact":
            memory.compact()
        elif kind == "used":
            memory.returned(there, at)
        memory.expire(at)

    for at in range(1, 160):
        number = rng.randrange(len(pairs))
        if rng.random() < 0.12 and len(pairs) < 6:
            fresh = Memory(settings, vocabulary, 0)
            for step in done[number]:
                apply(fresh, step)
            pairs.append((pairs[number][0].copy(), fresh))
            done.append(list(done[number]))
        kinds = ["put", "put", "put", "put", "remove", "forget", "meta", "compact", "used"]
        ids = [b"%d" % each for each in rng.sample(range(12), rng.randint(1, 5))]
        step = (rng.choice(kinds), ids, rng.choice(TEXTS).encode() * rng.randint(1, 2), at)
        for memory in pairs[number]:
            apply(memory, step)
        done[number].append(step)
        query = Query(text=b"lake iron wolfwolf", vector=np.array([0.6, 0.8]), top_k=50, explain=True)
        for kept, fresh in pairs if at % 8 == 0 else [pairs[number]]:
            assert repr(memory_state(kept)) == repr(memory_state(fresh))
            answers = [_answer(memory.plan(query, at)) for memory in (kept, fresh)]
            assert answers[0] == answers[1]
            assert kept.term_count() == fresh.term_count()
        plan = pairs[number][0].plan(query, at)
        asked.append((plan, _answer(plan)))
    for plan, answer in asked:
        assert _answer(plan) == answer


def _answer(plan: Any) -> list[Any]:
    return [
        (plan.view.ids[hit.slot], plan.view.metas[hit.slot], hit.score, repr(hit.explain)) for hit in run(plan).hits
    ]


class Later:
    """A loop whose clock is ahead by as much as a test says."""

    def __init__(self, loop: Any) -> None:
        self._loop = loop
        self.ahead = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loop, name)

    def time(self) -> float:
        return float(self._loop.time() + self.ahead)


def test_the_soft_limit_is_for_who_stays_over_it(running: Any) -> None:
    """One large reply, read to its end, and another one a minute later: that was a minute over the limit."""
    server = running()
    wire = server.wire(2)
    wire("CONFIG", "SET", "client-output-buffer-limit", "normal 0 1048576 60")
    wire("MEM.CREATE", "m", "MODE", "SEARCH")
    wire("MEM.ADD", "m", "ID", "a", "TEXT", "x" * 60_000)
    loop = server.server.loop = Later(server.server.loop)
    (client,) = server.server.clients.values()
    for _ in range(3):
        wire.send("MEM.MGET", "m", *["a"] * 400)
        eventually(lambda: client.connection.soft_since > 0.0 or not server.server.clients)
        assert len(wire.read()) == 400
        wire("PING")
        loop.ahead += 61.0


# Random interleavings, against a server that does everything at once.

KEYS = ("m", "c", "d")
TEXTS = ("lake", "iron", "salt", "wolf", "moon", "reed")
NAMES = ("ann", "bob", "cid", "dee")
IDS = [f"r{number}" for number in range(14)]
MEMORIES: tuple[tuple[Any, ...], ...] = (
    ("MODE", "HYBRID", "DIM", 2, "LANG", "NONE"),
    ("MODE", "HYBRID", "DIM", 2, "METRIC", "L2", "HISTORY", "ALL"),
    ("MODE", "SEARCH", "HISTORY", 3600),
    ("MODE", "HYBRID", "DIM", 3, "MAXRECORDS", 9),
    ("MODE", "VECTOR", "DIM", 2, "METRIC", "IP"),
)


class Script:
    """Random commands for one shape of memory."""

    def __init__(self, rng: Random, shape: tuple[Any, ...]) -> None:
        self.rng = rng
        self.shape = shape
        self.dim = int(shape[shape.index("DIM") + 1]) if "DIM" in shape else 0

    def text(self) -> str:
        return " ".join(self.rng.choices(TEXTS, k=self.rng.randint(1, 5)))

    def vector(self, needed: bool = False) -> list[Any]:
        if not self.dim or (self.rng.random() < 0.2 and not needed and "VECTOR" not in self.shape):
            return []
        return ["FVEC", self.dim, *(self.rng.randint(1, 9) / 4 for _ in range(self.dim))]

    def record(self) -> list[Any]:
        rng = self.rng
        words: list[Any] = ["ID", rng.choice(IDS)] if rng.random() < 0.7 else []
        words += ["TEXT", self.text(), *self.vector()]
        if rng.random() < 0.5:
            words += ["META", "n", rng.randint(0, 3)]
        if rng.random() < 0.3:
            words += ["TAGS", 1, rng.choice(TEXTS)]
        if rng.random() < 0.15:
            words += ["TTL", rng.randint(1, 4)]
        if rng.random() < 0.1:
            words += ["VALIDUNTIL", JUNE + 10 * SECOND]
        return words

    def large(self, key: str) -> list[Any]:
        rng = self.rng
        kind = rng.random()
        if kind < 0.4:
            count = rng.randint(1, 6)
            return ["MEM.MADD", key, count, *(word for _ in range(count) for word in ("RECORD", *self.record()))]
        if kind < 0.6:
            return ["MEM.DEL", key, *rng.sample(IDS, rng.randint(1, 6))]
        if kind < 0.8:
            return ["MEM.FORGET", key, "FILTER", "n", "EQ", rng.randint(0, 3)]
        if kind < 0.9 and "SEARCH" not in self.shape:
            return ["MEM.ENTITY", key, rng.choice(NAMES), "TYPE", "PERSON", "MERGE", rng.choice(NAMES)]
        return ["MEM.CONFIG", key, "HISTORY", rng.choice(["0", "ALL", "5"])]

    def write(self, key: str) -> list[Any]:
        rng = self.rng
        kind = rng.random()
        if kind < 0.35:
            return ["MEM.ADD", key, *self.record()]
        if kind < 0.45:
            return ["MEM.SETMETA", key, rng.choice(IDS), "n", rng.randint(0, 3)]
        if kind < 0.5:
            return ["MEM.EXPIRE", key, rng.choice(IDS), rng.randint(0, 3)]
        if kind < 0.6:
            fact = [rng.choice(NAMES), rng.choice(["knows", "likes"]), rng.choice(NAMES)]
            return ["MEM.FACT", key, *fact, *(["TYPE", "PERSON"] if rng.random() < 0.5 else []), *self.vector(True)]
        if kind < 0.68:
            return ["MEM.ENTITY", key, rng.choice(NAMES), "TYPE", "PERSON", *self.vector(True)]
        if kind < 0.88:
            return ["COPY", key, rng.choice([other for other in KEYS if other != key]), "REPLACE"]
        if kind < 0.9:
            return ["RENAME", key, rng.choice(KEYS)]
        if kind < 0.92:
            return ["DEL", key]
        if kind < 0.94:
            return ["EXPIRE", key, rng.randint(1, 30)]
        return self.large(key)

    def reads(self, key: str) -> list[list[Any]]:
        near = ["FVEC", self.dim, *([1.0] * self.dim)] if self.dim else []
        text = [] if "VECTOR" in self.shape else ["TEXT", self.text()]
        found = [["MEM.CARD", key], ["MEM.SCAN", key, 0, "COUNT", 100], ["MEM.LIST", key, "FILTER", "n", "EQ", 1]]
        if "MAXRECORDS" in self.shape:
            return found  # what is evicted depends on what queries returned, of which nothing is logged
        found.append(["MEM.QUERY", key, *text, *near, "TOPK", self.rng.choice([1, 3, 50]), "WITHSCORES"])
        found.append(["MEM.QUERY", key, *text, *near, "FILTER", "n", "GTE", 1, "EXPLAIN", "ASOF", JUNE + 4 * SECOND])
        found.append(["MEM.FACTS", key, "ENTITY", self.rng.choice(NAMES)])
        found.append(["MEM.ENTITIES", key])
        found.append(["MEM.VERIFY", key])
        if "VECTOR" not in self.shape:
            found.append(["MEM.SEARCH", key, self.text(), "TOPK", 50, "WITHSCORES", "WITHMETA"])
        return found


def said(wire: Wire, words: list[Any]) -> Any:
    try:
        return wire(*words)
    except WireError as error:
        return f"error {error}"


def heard(wire: Wire) -> Any:
    reply = wire.read()
    return f"error {reply}" if isinstance(reply, WireError) else reply


def at_once(wire: Wire, words: list[Any]) -> Any:
    """The reply of a command that is not made aside."""
    wire("MULTI")
    if isinstance(queued := said(wire, words), str) and queued.startswith("error"):
        wire("DISCARD")
        return queued
    wire.send("EXEC")
    (reply,) = wire.read()
    return f"error {reply}" if isinstance(reply, WireError) else reply


def repeated_at_once(wire: Wire, words: list[Any]) -> Any:
    """The same, where a failure of EXEC is a reply too."""
    try:
        return at_once(wire, words)
    except WireError as error:
        return f"error {error}"


def play(gate: Gate, tmp_path: Path, seed: int, rounds: int) -> None:
    rng = Random(seed)
    script = Script(rng, MEMORIES[seed % len(MEMORIES)])
    clock = Clock()
    with (
        Running(clock=clock, dir=tmp_path, appendfsync=rng.choice(["always", "everysec"])) as live,
        Running(clock=clock) as plain,
    ):
        wires = [live.wire(2) for _ in range(3)]
        reference = plain.wire(2)
        plain.server.transactions.bars = lambda queue: True  # what it does, it does at once

        def both(words: list[Any]) -> None:
            assert said(wires[1], words) == repeated(words), words

        def repeated(words: list[Any]) -> Any:
            return repeated_at_once(reference, words)

        def compare() -> None:
            states = [held_by(each) for each in (live, plain)]
            assert states[0] == states[1]

        for number in range(rounds):
            gate.open()
            for key in KEYS:
                if not wires[1]("EXISTS", key):
                    both(["MEM.CREATE", key, *script.shape])
            for _ in range(rng.randint(0, 8)):
                both(script.write(rng.choice(KEYS)))
            if rng.random() < 0.4:
                clock.advance(rng.choice([1, 500, SECOND]))
            key = rng.choice(KEYS)
            words = script.large(key)
            gate.close()
            made = gate.made
            wires[0].send(*words)
            eventually(lambda made=made, sock=wires[0].sock: gate.made > made or select([sock], [], [], 0)[0] != [])
            held = gate.made > made
            if not held:
                assert heard(wires[0]) == repeated(words), words
            others = [each for each in KEYS if each != key]
            for _ in range(rng.randint(0, 3)):
                for read in script.reads(rng.choice(KEYS)):
                    both(read)
                both(["MEM.ADD", rng.choice(others), *script.record()])
            if rng.random() < 0.2:
                rewritten(wires[1])
            flushed = rng.random() < 0.04
            if flushed:
                both(["FLUSHALL"])
            waiting = [script.write(key) for _ in range(rng.randint(0, 3))]
            for each in waiting:
                wires[2].send(*each)
            if held and waiting:
                eventually(lambda: bool(live.server.blocked_clients()))
            gate.open()
            if held:
                reply, wanted = heard(wires[0]), repeated(words)
                assert flushed or reply == wanted, words
            for each in waiting:
                assert heard(wires[2]) == repeated(each), each
            compare()
            for each in KEYS:
                for read in script.reads(each):
                    both(read)
            if rng.random() < 0.12 or number == rounds - 1:
                same_after_restart(live)
                wires = [live.wire(2) for _ in range(3)]
                compare()


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """What only large memories do, small ones do."""
    for module, name, value in (
        (columns, "POSTINGS_MIN", 4),
        (columns, "_UNPOSTED_MAX", 3),
        (filters, "COLUMNS_MIN", 3),
        (index_memory, "_MANY", 2),
        (compaction, "_COMPACT_MIN", 3),
        (index_memory, "COMPACT_ON_LOOP", 6),
        (index_memory, "_FREED", 3),
        (server_module, "_FREED_HERE", 2),
        (content_ids, "STEP_RECORDS", 2),
        (filelog, "_LARGE_BYTES", 300),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("seed", range(5))
def test_random_interleavings(gate: Gate, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    small(monkeypatch)
    play(gate, tmp_path, seed, 8)


def test_many_writers_and_readers_at_once(kept: Running, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups of five come and go wholly, whoever else changes the memory aside at that moment."""
    small(monkeypatch)
    admin = kept.wire(2)
    admin("MEM.CREATE", "m", "MODE", "HYBRID", "DIM", 2, "HISTORY", "ALL")
    left: list[set[bytes]] = [set() for _ in range(3)]
    failures: list[BaseException] = []
    over = threading.Event()

    def write(number: int) -> None:
        rng, mine = Random(number), left[number]
        with kept.raw() as sock:
            wire = Wire(sock)
            for turn in range(25):
                ids = [b"%d-%d-%d" % (number, turn, each) for each in range(5)]
                words: list[Any] = ["MEM.MADD", "m", 5]
                for each in ids:
                    words += ["RECORD", "ID", each, "TEXT", f"lake {turn}", "FVEC", 2, 1, turn, "META", "g", ids[0]]
                assert wire(*words) == ids
                mine.update(ids)
                if rng.random() < 0.4:
                    assert wire("MEM.FORGET", "m", "FILTER", "g", "EQ", ids[0]) == [5, ids]
                    mine.difference_update(ids)
                elif rng.random() < 0.4:
                    assert wire("MEM.DEL", "m", *ids, "absent") == 5
                    mine.difference_update(ids)
                elif rng.random() < 0.2:
                    wire("MEM.CONFIG", "m", "HISTORY", rng.choice(["0", "ALL"]))

    def read(number: int) -> None:
        rng = Random(number)
        with kept.raw() as sock:
            wire = Wire(sock)
            while not over.is_set():
                group = f"{rng.randrange(3)}-{rng.randrange(25)}-0"
                assert len(wire("MEM.QUERY", "m", "TEXT", "lake", "FILTER", "g", "EQ", group, "TOPK", 9)) in (0, 5)
                assert wire("MEM.CARD", "m") % 5 == 0

    def run_one(work: Any, number: int) -> None:
        try:
            work(number)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=run_one, args=(work, number)) for work in (write, read) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads[:3]:
        thread.join()
    over.set()
    for thread in threads[3:]:
        thread.join()
    assert not failures
    assert set(admin("MEM.SCAN", "m", 0, "COUNT", 1_000)[1]) == set().union(*left)
    same_after_restart(kept)


def test_a_write_that_waits_for_a_change_is_done_before_a_shutdown(kept: Running, gate: Gate) -> None:
    """It had arrived: unlike what CLIENT PAUSE holds back, it waits for nobody but the server."""
    wire, other = kept.wire(2), kept.wire(2)
    wire("MEM.CREATE", "m", "MODE", "SEARCH")
    held_up(gate, wire, "MEM.MADD", "m", 1, "RECORD", "TEXT", "more")
    other.send("MEM.ADD", "m", "ID", "b", "TEXT", "behind")
    eventually(lambda: bool(kept.server.blocked_clients()))
    connections = [client.connection for client in kept.server.clients.values()]
    stopping = threading.Thread(target=kept.stop)
    stopping.start()
    eventually(lambda: all(each.closing_after_input for each in connections))
    gate.open()
    assert wire.read() == [b"1"]
    assert other.read() == b"b"
    stopping.join()
    kept.start()
    assert kept.wire(2)("MEM.CARD", "m") == 2
