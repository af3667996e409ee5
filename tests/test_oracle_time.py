"""Time travel against the server itself: every reply is kept with the time it was given, and asked for again later.

ASOF t KNOWNAT t gives, to the byte, what the query gave at t, whatever was written, replaced, deleted, invalidated,
compacted, replayed or configured since. Excepted is what by right has left no trace: records that expired or were
forgotten. And a query as of now is the query.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import LONG
from durable import on_loop
from harness import DAY, JUNE, Clock, Running, Word
from hypothesis import given, settings
from hypothesis import strategies as st
from recalld.index import columns, compaction, filters, keyword
from recalld.index.side import FACT, NEVER, Extra, Fact
from recalld.server.entries import Invalidate, Put

WORDS = ("alpha", "beta", "gamma", "delta", "lake", "lakes", "user_id")
IDS = ("a", "b", "c", "d", "e", "f", "g")
FACT_IDS = ("f1", "f2", "f3")
#: The one that may expire or be forgotten: what was said while it was there is not to be had again then.
MORTAL = "g"


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Posting lists, encoded columns and compactions from a few rows on."""
    monkeypatch.setattr(columns, "POSTINGS_MIN", 4)
    monkeypatch.setattr(columns, "_UNPOSTED_MAX", 3)
    monkeypatch.setattr(filters, "COLUMNS_MIN", 6)
    monkeypatch.setattr(keyword, "PRUNE_MIN", 2)
    monkeypatch.setattr(compaction, "_COMPACT_MIN", 4)


CLAUSES: tuple[tuple[Word, ...], ...] = (
    ("@kind", "NE", "fact"),
    ("x", "EQ", 1),
    ("@valid_until", "EXISTS", 1),
    ("@subject", "EQ", "user"),
    ("@confidence", "GTE", "0.4"),
    ("@predicate", "NE", "has"),
)


class World:
    """A server, and what it replied when."""

    def __init__(self, server: Running, clock: Clock, rng: Random, mode: str, metric: str, history: str) -> None:
        self.server, self.clock, self.rng = server, clock, rng
        self.mode = mode
        self.compared = 0
        self.told: list[tuple[int, int, tuple[Word, ...], bytes, frozenset[bytes]]] = []
        self.connect()
        self.wire("FLUSHALL")
        where = () if mode == "SEARCH" else ("DIM", 2, "METRIC", metric)
        self.wire("MEM.CREATE", "ns", "MODE", mode, *where, "HISTORY", history)
        self.began = clock.now_ms

    def connect(self) -> None:
        self.wires = {protocol: self.server.wire(protocol) for protocol in (2, 3)}
        self.wire = self.wires[2]

    # -- writes

    def words(self) -> str:
        return " ".join(self.rng.choices(WORDS, k=self.rng.randrange(0, 6)))

    def numbers(self) -> tuple[Word, ...]:
        return ("FVEC", 2, *(round(self.rng.uniform(-1, 1), 2) + 0.001 for _ in range(2)))

    def time(self) -> int:
        return self.clock.now_ms + self.rng.randrange(-5_000, 20_000)

    def add(self) -> None:
        rng, words = self.rng, list[Word]()
        if self.mode == "VECTOR" or (self.mode == "HYBRID" and rng.random() < 0.6):
            words += self.numbers()
        if rng.random() < 0.3:
            words += ("META", rng.choice("xy"), rng.randrange(3))
        if rng.random() < 0.3:
            words += ("TAGS", 1, rng.choice(("red", "blue")))
        if rng.random() < 0.3:
            words += ("IMPORTANCE", rng.choice((0, 0.25, 1)))
        if rng.random() < 0.2:
            words += ("KIND", rng.choice(("note", "episode")))
        if rng.random() < 0.15:
            words += ("PIN",)
        record_id = rng.choice(IDS)
        if record_id == MORTAL and rng.random() < 0.3:
            words += ("TTL", rng.randrange(10, 100))
        times = sorted(self.time() for _ in range(2))
        if rng.random() < 0.25:
            words += ("VALIDAT", times[0], "VALIDUNTIL", times[1] + 1)
        elif rng.random() < 0.1:
            words += ("VALIDUNTIL", self.clock.now_ms + rng.randrange(1, 20_000))
        text = self.words() or "alpha"
        try:
            self.wire("MEM.ADD", "ns", "ID", record_id, "TEXT", text, *words)
        except Exception as error:
            assert "VALIDUNTIL must be after VALIDAT" in str(error)

    def fact(self) -> None:
        rng, now = self.rng, self.clock.now_ms
        said = Fact(b"user", rng.choice((b"likes", b"has")), self.words().encode() or b"lake", quote=b"q")
        found = self.inside(lambda memory: memory.next_id)
        valid_at = self.time()
        extra = Extra(now, now, NEVER, valid_at, rng.choice((NEVER, valid_at + 9_000)), NEVER, FACT, 0.5, said)
        vector = b"\0\0\x80?\0\0\0\0" if self.mode != "SEARCH" else b""
        record_id = rng.choice(FACT_IDS).encode()
        put = Put(b"ns", record_id, said.text, vector, (), (), 0.5, now, now, 0, found, 99, now, extra)
        on_loop(self.server, lambda: self.server.server.commit_all([put]))

    def invalidate(self) -> None:
        record_id = self.rng.choice(FACT_IDS).encode()
        if self.inside(lambda memory: record_id in memory):
            at = self.rng.choice((self.clock.now_ms, NEVER, self.clock.now_ms + 5_000))
            entry = Invalidate(b"ns", record_id, at, b"", self.clock.now_ms)
            on_loop(self.server, lambda: self.server.server.commit_all([entry]))

    def change(self) -> None:
        rng, some = self.rng, self.rng.choice(IDS + FACT_IDS)
        kind = rng.randrange(10)
        if kind == 0:
            self.wire("MEM.DEL", "ns", some)
        elif kind == 1:
            if rng.random() < 0.3:
                self.forget("@id", "EQ", MORTAL)
        elif kind == 2:
            self.wire("MEM.EXPIRE", "ns", MORTAL, rng.choice((0, 10, 100)))
        elif kind in (3, 4) and self.inside(lambda memory: some.encode() in memory):
            self.wire("MEM.SETMETA", "ns", some, rng.choice("xy"), rng.randrange(3))
        elif kind == 5:
            weights = rng.choice(((1, 1, 1, 1), (0.35, 0.5, 0.1, 0.05)))
            self.wire("MEM.CONFIG", "ns", "K1", rng.choice((0.5, 1.2)), "WEIGHTS", *weights)
        elif kind == 6:
            self.invalidate()
        elif kind == 7:
            self.fact()
        else:
            self.add()

    def forget(self, *clause: Word) -> None:
        # Gone records are forgotten as well, though the reply names the current ones.
        self.wire("MEM.FORGET", "ns", "FILTER", *clause)
        self.lost(str(clause[2]).encode())

    def lost(self, record_id: bytes) -> None:
        """The record has left no trace: replies that knew of it are not to be had again."""
        self.told = [each for each in self.told if record_id not in each[4]]

    def pass_time(self) -> None:
        # Looked at before: once it is due the server drops it at any moment.
        step = self.rng.choice((1, 1, 7, 1_000, 4_000))
        now = self.clock.now_ms + step
        with_deadline = self.inside(
            lambda memory: [record_id for deadline, record_id, _ in memory._due if deadline <= now]
        )
        for record_id in with_deadline:  # that some of them were moved since costs the test a few replies
            self.lost(record_id)
        self.clock.advance(step)

    def inside(self, look: Any) -> Any:
        return on_loop(self.server, lambda: look(self.server.server.keyspace.memories[b"ns"]))

    # -- reads

    def query(self) -> tuple[Word, ...]:
        rng = self.rng
        text, vector = self.words() or "alpha", self.numbers()
        words: list[Word] = ["TOPK", rng.choice((2, 10))]
        if rng.random() < 0.4:
            words += ["FILTER", *rng.choice(CLAUSES)]
        if rng.random() < 0.2:
            words += ["MINSCORE", 0.2]
        if rng.random() < 0.3:
            words += ["EXPLAIN"]
        words += ["WITHSCORES", "WITHTAGS", "WITHMETA"]
        asked: list[Word] = []
        if self.mode != "VECTOR":
            asked += ["TEXT", text]
        if self.mode != "SEARCH" and (self.mode == "VECTOR" or rng.random() < 0.7):
            asked += vector
        kind = rng.randrange(4)
        if kind == 0 and self.mode != "VECTOR":
            return ("MEM.SEARCH", "ns", text, *words)
        if kind == 1 and self.mode != "SEARCH":
            return ("MEM.VSEARCH", "ns", *vector, *words)
        fused = ["FUSION", rng.choice(("LINEAR", "RRF"))]
        if rng.random() < 0.2:
            fused += ["DIVERSITY", 0.5]
        if kind == 2:
            return ("MEM.EXPLAIN", "ns", rng.choice(IDS + FACT_IDS), *asked, *words, *fused)
        return ("MEM.QUERY", "ns", *asked, *words, *fused)

    def ask(self) -> None:
        protocol, query, now = self.rng.choice((2, 3)), self.query(), self.clock.now_ms
        reply = self.wires[protocol].raw(*query)
        present = self.inside(
            lambda memory: frozenset(memory.table.by_id) | frozenset(memory.past.by_id if memory.past else ())
        )
        if query[0] == "MEM.EXPLAIN" and b"expired" in reply:
            return
        again = self.wires[protocol].raws((*query, "ASOF", now, "KNOWNAT", now), (*query, "ASOF", now))
        assert again == [reply, reply], query
        self.told.append((now, protocol, query, reply, present))

    def recall(self, since: int) -> None:
        for protocol, wire in self.wires.items():
            told = [(then, query, reply) for then, by, query, reply, _ in self.told if then >= since and by == protocol]
            self.compared += len(told)
            replies = wire.raws(*((*query, "ASOF", then, "KNOWNAT", then) for then, query, _ in told))
            for (then, query, reply), again in zip(told, replies, strict=True):
                if query[0] == "MEM.EXPLAIN" and (b"expired" in again or b"absent" in again):
                    # Asked of an id that has gone for good since and was not there then either.
                    assert b"absent" in reply
                    continue
                assert again == reply, (then, query)

    def table_is_what_counts(self) -> None:
        now = self.clock.now_ms
        self.wire("MEM.CARD", "ns")  # what is due goes

        def look(memory: Any) -> None:
            for table, counts in ((memory.table, True), (memory.past, False)):
                for slot in (table.by_id.values() if table is not None else ()):
                    assert table.extra(slot).counts(now) == counts
            indexed = {
                each.id for said in (memory.facts._said.values() if memory.facts else ()) for each in said
            }
            held = {
                record_id
                for table in memory._tables()
                for record_id, slot in table.by_id.items()
                if table.fact(slot) is not None
            }
            assert indexed == held
            assert not memory.past or not set(memory.table.by_id) & set(memory.past.by_id)

        self.inside(look)


MODES = [("HYBRID", "COSINE"), ("HYBRID", "L2"), ("SEARCH", "COSINE"), ("VECTOR", "IP"), ("VECTOR", "COSINE")]


@pytest.mark.parametrize("mode, metric", MODES)
@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=6 if LONG else 4)
def test_what_was_said_is_said_again(
    tmp_path_factory: pytest.TempPathFactory, mode: str, metric: str, seed: int
) -> None:
    rng, clock = Random(seed), Clock(JUNE)
    directory: Path = tmp_path_factory.mktemp("time")
    with Running(clock=clock, dir=directory, appendfsync="no") as server:
        world = World(server, clock, rng, mode, metric, "ALL")
        for step in range(60):
            world.pass_time()
            world.change()
            world.pass_time()
            for _ in range(2):
                world.ask()
            if step % 10 == 9:
                world.table_is_what_counts()
                world.recall(world.began)
            if step in (25, 45):
                server.restart()
                world.connect()
                world.recall(world.began)
        assert world.compared > 100


@given(seed=st.integers(0, 1 << 30))
@settings(max_examples=6 if LONG else 4)
def test_history_of_some_seconds(seed: int) -> None:
    """Replies of as long ago as the memory holds history; whether versions were dropped yet shows nowhere."""
    rng, clock = Random(seed), Clock(JUNE)
    with Running(clock=clock) as server:
        world = World(server, clock, rng, "HYBRID", "COSINE", "20")
        for _ in range(60):
            world.pass_time()
            world.change()
            world.pass_time()
            world.ask()
            since = clock.now_ms - 20_000 + 1
            # Also of times beyond the horizon the answer is the same whether what lies there was dropped yet or not.
            world.recall(since)
            query, then = world.query(), clock.now_ms - rng.randrange(40_000)
            reply = world.wire.raw(*query, "ASOF", then, "KNOWNAT", then)
            world.inside(lambda memory: memory.prune(clock.now_ms))
            assert world.wire.raw(*query, "ASOF", then, "KNOWNAT", then) == reply
            world.inside(lambda memory: memory.compact())
            assert world.wire.raw(*query, "ASOF", then, "KNOWNAT", then) == reply
        clock.advance(DAY)
        world.wire("MEM.CARD", "ns")
        assert world.inside(lambda memory: memory.past is None or not memory.past.versions)
