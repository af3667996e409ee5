"""Time travel over the wire, notes and facts together: what was replied at t is replied again ASOF t KNOWNAT t.

As test_oracle_time.py, which writes facts by entries of its own; here all of it is commands: MEM.FACT with entities,
SUPERSEDES and restatements, MEM.INVALIDATE, MEM.ENTITY with MERGE, notes under the same ids. MEM.FACTS is asked too.
Nothing expires or is forgotten, so there is no exception.
"""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from durable import eventually
from harness import JUNE, Clock, Running, Wire, WireError, Word

NAMES = ("ann", "Ann", "bob", "acme", "ACME Corp", "İzmir", "北京", b"\xff\xfe")
IDS = ("a", "b", "c", "d", "e", "1", "2")
TYPES = ("ORG", "FOOD")
TEXTS = ("ann", "bob likes", "acme lake", "北京 izmir", "likes works")
CLAUSES = (
    ("@kind", "EQ", "fact"),
    ("@subject", "EQ", "ann"),
    ("@predicate", "NE", "likes"),
    ("@object", "EXISTS", 1),
    ("@confidence", "GTE", "0.5"),
    ("@valid_at", "GT", JUNE + 9_000),
    ("@valid_until", "EXISTS", 1),
    ("@invalid_at", "EXISTS", 0),
    ("@quote", "EQ", "q"),
)


class Driver:
    """Commands at random; `mode` is the memory's."""

    def __init__(self, rng: Random, clock: Clock, mode: str) -> None:
        self.rng, self.clock, self.mode = rng, clock, mode

    def some(self, chance: float, *words: Word) -> tuple[Word, ...]:
        return words if self.rng.random() < chance else ()

    def vector(self) -> tuple[Word, ...]:
        return 2, *(round(self.rng.uniform(-1, 1), 2) + 0.001 for _ in range(2))

    def near(self) -> int:
        return self.clock.now_ms + self.rng.randrange(-4_000, 6_000)

    def embedded(self) -> tuple[Word, ...]:
        chance = {"SEARCH": 0.0, "HYBRID": 0.6, "VECTOR": 1.0}[self.mode]
        return self.some(chance, "FVEC", *self.vector())

    def write(self) -> tuple[Word, ...]:
        rng, some = self.rng, self.some
        some_id, chance = rng.choice(IDS), rng.random()
        if chance < 0.2:
            text = " ".join(rng.choices(TEXTS, k=rng.randrange(3)))
            words = *self.embedded(), *some(0.2, "VALIDAT", self.near()), *some(0.2, "KIND", "episode")
            return "MEM.ADD", "k", "ID", some_id, "TEXT", text, *words, *some(0.3, "META", "x", rng.randrange(3))
        if chance < 0.6:
            typed = some(0.5, "TYPE", rng.choice(TYPES))
            words = *typed, *self.embedded(), *some(0.3, "CONFIDENCE", rng.choice((0, "-0", 0.25, 1)))
            words += *some(0.3, "VALIDAT", self.near()), *some(0.2, "VALIDUNTIL", self.near() + 4_000)
            words += *some(0.3, "ID", some_id), *some(0.3, "SUPERSEDES", rng.choice(IDS)), *some(0.2, "QUOTE", "q")
            if typed and self.mode != "SEARCH":
                words += some(0.5, "ENTITYFVEC", *self.vector())
            return "MEM.FACT", "k", rng.choice(NAMES), rng.choice(("likes", "Works-at!")), rng.choice(NAMES), *words
        if chance < 0.75:
            words = *some(0.7, "TYPE", rng.choice(TYPES)), *some(0.4, "ALIAS", rng.choice(NAMES))
            return "MEM.ENTITY", "k", rng.choice(NAMES), *words, *some(0.6, "MERGE", rng.choice(NAMES))
        if chance < 0.85:
            at = self.clock.now_ms + rng.randrange(5_000)
            return "MEM.INVALIDATE", "k", some_id, *rng.choice(((), ("AT", at), ("CLEAR",)))
        if chance < 0.9:
            return "MEM.DEL", "k", some_id
        if chance < 0.95:
            return "MEM.SETMETA", "k", some_id, "x", rng.randrange(3)
        return "MEM.CONFIG", "k", "WEIGHTS", *rng.choice(((1, 1, 1, 1), (0.35, 0.5, 0.1, 0.05)))

    def query(self) -> tuple[Word, ...]:
        rng, some = self.rng, self.some
        text, vector = rng.choice(TEXTS), ("FVEC", *self.vector())
        words = "TOPK", rng.choice((2, 10)), "WITHSCORES", "WITHMETA", *some(0.5, "FILTER", *rng.choice(CLAUSES))
        words += some(0.3, "EXPLAIN")
        kind = rng.choice(("facts", "facts", "search", "vsearch", "explain", "query"))
        if kind == "facts":
            words = some(0.0 if self.mode == "VECTOR" else 0.4, "TEXT", text)
            words += *some(0.4, "LIMIT", rng.choice((1, 3))), *some(0.3, "OFFSET", rng.choice((0, 1, 3)))
            return "MEM.FACTS", "k", *words, *some(0.4, "INVALIDATED")
        if kind == "search" and self.mode != "VECTOR":
            return "MEM.SEARCH", "k", text, *words
        if kind == "vsearch" and self.mode != "SEARCH":
            return "MEM.VSEARCH", "k", *vector, *words
        asked = *(() if self.mode == "VECTOR" else ("TEXT", text)), *(() if self.mode == "SEARCH" else vector)
        fused = "FUSION", rng.choice(("LINEAR", "RRF")), *some(0.2, "DIVERSITY", 0.5)
        if kind == "explain":
            return "MEM.EXPLAIN", "k", rng.choice(IDS), *asked, *words, *fused
        return "MEM.QUERY", "k", *asked, *words, *fused


MODES = [("HYBRID", "COSINE"), ("HYBRID", "L2"), ("HYBRID", "IP"), ("SEARCH", ""), ("VECTOR", "COSINE")]


@pytest.mark.parametrize(("mode", "metric"), MODES)
@pytest.mark.parametrize("seed", range(2))
def test_what_was_replied_is_replied_again(tmp_path: Path, mode: str, metric: str, seed: int) -> None:
    rng, clock = Random(f"{mode} {metric} {seed}"), Clock()
    told: list[tuple[int, int, tuple[Word, ...], bytes]] = []
    with Running(clock=clock, dir=tmp_path, appendfsync="no") as server:
        wires = {protocol: server.wire(protocol) for protocol in (2, 3)}
        where = () if mode == "SEARCH" else ("DIM", 2, "METRIC", metric)
        wires[2]("MEM.CREATE", "k", "MODE", mode, *where, "HISTORY", "ALL")
        driver = Driver(rng, clock, mode)
        for step in range(120):
            clock.advance(rng.choice((1, 1, 7, 1_000, 2_500)))
            _try(wires[2], driver.write())
            clock.advance(rng.choice((1, 1, 1_000)))
            now, protocol = clock.now_ms, rng.choice((2, 3))
            query = driver.query()
            reply = wires[protocol].raw(*query)
            for moment in (("ASOF", now), ("KNOWNAT", now), ("ASOF", now, "KNOWNAT", now)):
                assert wires[protocol].raw(*query, *moment) == reply, (query, moment)
            told.append((now, protocol, query, reply))
            if step == 60:
                wires[2]("BGREWRITEAOF")
                eventually(lambda wire=wires[2]: b"aof_rewrite_in_progress:0" in wire("INFO", "persistence"))
                server.restart()
                wires = {protocol: server.wire(protocol) for protocol in (2, 3)}
            if step % 20 == 19:
                for then, protocol, query, reply in told:
                    again = wires[protocol].raw(*query, "ASOF", then, "KNOWNAT", then)
                    assert again == reply, (then, query)
                payload = wires[2]("DUMP", "k")
                assert wires[2]("RESTORE", "twin", 0, payload, "REPLACE") == "OK"
                assert wires[2]("DUMP", "twin") == payload


def _try(wire: Wire, words: tuple[Word, ...]) -> None:
    """Many are refused by right, none for another reason than what it asks."""
    try:
        wire(*words)
    except WireError as error:
        reasons = ("held by", "no such", "must be after", "merge", "MERGE", "says the same", "supersede itself")
        assert any(reason in str(error) for reason in reasons), (words, error)
