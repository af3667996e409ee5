"""MEM.RECALL of random memories against plain Python: every fact looked at, three rankings, their fusion and its ties.

What was stored is read back fact by fact (MEM.GET, MEM.ENTITIES); BM25 and similarity are the oracle's of queries.
Equal values come of equal words and vectors, which are drawn from few: so 1e-10 tells equal from unequal.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from harness import DAY, JUNE, Clock, Running, Wire
from oracle import Memory, Vector, blob, dot, float32, unit
from recalld.index import codes, rrf

NAMES = ("acme", "big tea", "rome", "new rome", "oslo", "tea", "ann", "bob", "go")
VERBS = ("likes", "saw rome at", "works with ann at", "sold tea to", "left", "moved from oslo to")
QUESTIONS = ("who likes tea", "what did ann do in rome", "news of big tea and oslo", "start", "the", "", "go to acme")
DIM = 4
START = JUNE - 100 * DAY


@dataclass(frozen=True)
class Row:
    """A record as stored; a fact has `fact`, the map of WITHFACT."""

    id: bytes
    text: bytes
    vector: Vector | None
    written: int
    fact: dict[bytes, Any] | None

    def counts(self, t: int) -> bool:
        """Whether it was valid at `t`."""
        if self.fact is None:
            return self.written <= t
        ends = [self.fact[name] for name in (b"valid_until", b"invalid_at") if self.fact[name] is not None]
        return bool(self.fact[b"valid_at"] <= t < min(ends, default=t + 1))


@dataclass(frozen=True)
class Entity:
    number: int
    name: str
    type: str
    names: tuple[str, ...]
    vectors: tuple[Vector, ...]  # of several memories' (test_oracle_recall_cascade.py) there may be many


def vector_of(data: bytes | None) -> Vector | None:
    return None if not data else tuple(memoryview(data).cast("f"))


def stored(wire: Wire, ids: list[bytes], key: str = "k") -> tuple[list[Row], list[Entity]]:
    found = wire.pipeline(*(("MEM.GET", key, each, "WITHFACT", "WITHVEC") for each in ids))
    rows = [
        Row(each[b"id"], each[b"text"], vector_of(each[b"vector"]), int(each[b"updated_at"]), each.get(b"fact"))
        for each in found
        if each is not None
    ]
    _, maps = wire("MEM.ENTITIES", key, "WITHVEC", "LIMIT", 1000)
    maps.sort(key=lambda each: each[b"created_at"])
    entities = [
        Entity(
            number,
            each[b"name"].decode(),
            each[b"type"].decode(),
            tuple(name.decode() for name in (each[b"name"], *each[b"aliases"])),
            tuple(filter(None, [vector_of(each[b"vector"])])),
        )
        for number, each in enumerate(maps)
    ]
    return rows, entities


class Graph:
    """What facts touch, and what texts name."""

    def __init__(self, rows: list[Row], entities: list[Entity]) -> None:
        self.entities = entities
        self.used = {
            each.number: sum(
                row.fact is not None
                and (row.fact[b"object"], row.fact[b"entity_type"]) == (each.name.encode(), each.type.encode())
                for row in rows
            )
            for each in entities
        }

    def meant(self, name: str) -> int | None:
        named = [each for each in self.entities if each.name == name]
        named = named or [each for each in self.entities if name in each.names]
        return min(named, key=lambda each: (-self.used[each.number], each.number)).number if named else None

    def touched(self, fact: dict[bytes, Any]) -> set[int]:
        other, kind = fact[b"object"].decode(), (fact[b"entity_type"] or b"").decode()
        found = {self.meant(fact[b"subject"].decode())}
        if kind:
            found |= {each.number for each in self.entities if each.type == kind and other in each.names}
        else:
            found.add(self.meant(other.lower()))
        return {number for number in found if number is not None}

    def named(self, text: str) -> set[int]:
        words = " " + " ".join(re.findall("[a-z]+", text.lower())) + " "
        return {each.number for each in self.entities if any(f" {name} " in words for name in each.names)}


def rank(values: dict[bytes, Any]) -> dict[bytes, int]:
    """id -> rank; equals share the best one."""
    ordered = sorted(values.values(), reverse=True)
    first = {value: place for place, value in reversed(list(enumerate(ordered, 1)))}
    return {key: first[value] for key, value in values.items()}


def expected(
    rows: list[Row],
    entities: list[Entity],
    metric: str,
    t: int,
    text: str | None,
    vector: Vector | None,
    least: float,
    top_k: int,
    anchor_min: float,
) -> list[tuple[bytes, float | None, list[int | None]]]:
    """(id, score, its ranks by vector, anchor, keyword) of every fact that matches, best first."""
    graph = Graph(rows, entities)
    memory = Memory(dim=DIM, metric=metric)
    for row in rows:
        if row.counts(t):
            memory.add(t, row.id, row.text, row.vector)
    facts = {row.id: row.fact for row in rows if row.fact is not None and row.counts(t)}
    facts = {key: fact for key, fact in facts.items() if fact[b"confidence"] >= least}
    order = {key: (-fact[b"confidence"], -fact[b"valid_at"], key) for key, fact in facts.items()}
    if text is None and vector is None:
        recent = sorted(facts, key=lambda key: (order[key][1], order[key][0], key))
        return [(key, None, [None] * 3) for key in recent]
    by_vector: dict[bytes, float] = {}
    anchors = dict.fromkeys(graph.named(text or ""), 1.0)
    if vector is not None:
        query = unit(float32(vector)) if metric == "COSINE" else float32(vector)
        for key in facts:
            held = memory.records[key].vector
            if held is not None:
                by_vector[key] = round(memory.similarity(query, held), 10)
        near = [
            (round(max(dot(unit(vector), unit(held)) for held in each.vectors), 10), each.number)
            for each in entities
            if each.vectors
        ]
        near = [pair for pair in near if pair[0] >= anchor_min]
        for similarity, number in sorted(near, key=lambda pair: (-pair[0], pair[1]))[:top_k]:
            anchors[number] = max(anchors.get(number, similarity), similarity)
    by_anchor: dict[bytes, tuple[float, float, float]] = {}
    touched = {key: graph.touched(fact) for key, fact in facts.items()}
    for key in facts:
        matches = [anchors[number] for number in touched[key] if number in anchors]
        if matches:
            by_anchor[key] = (max(matches), -order[key][0], -order[key][1])
    onward = {number for key in by_anchor for number in graph.named(memory.records[key].text.decode())}
    for key in facts:
        if key not in by_anchor and touched[key] & onward:
            by_anchor[key] = (-9.0, -order[key][0], -order[key][1])
    terms = memory.analyzer.query(text.encode(), 1024) if text is not None else []
    bm25 = {key: sum(part for *_, part in parts) for key, parts in memory.bm25(terms).items() if key in facts}
    by_keyword = {key: round(score, 10) for key, score in bm25.items() if score > 0}
    rankings = [rank(by_vector), rank(by_anchor), rank(by_keyword)]
    found: list[tuple[bytes, float | None, list[int | None]]] = []
    for key in facts:
        ranks = [ranking.get(key) for ranking in rankings]
        if any(ranks):
            score = 0.0
            for part in sorted(1 / (60 + each) for each in ranks if each is not None):
                score += part
            found.append((key, score, ranks))
    return sorted(found, key=lambda each: (-(each[1] or 0.0), order[each[0]]))


def fill(wire: Wire, clock: Clock, rng: Random, count: int, pool: list[Vector], key: str = "k") -> list[bytes]:
    """A memory of facts, notes and entities, with times behind and ahead; the ids. Without a pool none has a vector."""

    def vector(name: str, share: float) -> tuple[Any, ...]:
        # Entities have none of the queries': a similarity of 1, but for rounding, is not quite a name.
        has = rng.random() < share and pool
        return (name, blob(rng.choice(pool[3:] if "ENTITY" in name else pool))) if has else ()

    ids: list[bytes] = []
    for name in rng.sample(NAMES, 4):
        kind = rng.choice(("ORG", "PLACE", "PERSON"))
        own = ("VEC", blob(rng.choice(pool[3:]))) if rng.random() < 0.7 and pool else ()
        wire("MEM.ENTITY", key, name, "TYPE", kind, "ALIAS", f"{name} alias", *own)
        clock.advance(1)
    commands: list[tuple[Any, ...]] = []
    for _ in range(count):
        kind = rng.choice(((), ("TYPE", "ORG"), ("TYPE", "PLACE")))
        words = ["CONFIDENCE", rng.choice((0.25, 0.5, 0.75, 1)), "VALIDAT", START + rng.randrange(120) * DAY]
        if rng.random() < 0.2:
            words += ["VALIDUNTIL", START + rng.randrange(121, 140) * DAY - rng.choice((0, 50 * DAY))]
        if rng.random() < 0.1:
            commands.append(("MEM.ADD", key, "TEXT", f"{rng.choice(NAMES)} {rng.choice(VERBS)}", *vector("VEC", 0.5)))
        subject = rng.choice((*NAMES, "user", f"user{rng.randrange(count)}"))
        entity_vector = vector("ENTITYVEC", 0.3) if kind else ()
        fact = (subject, rng.choice(VERBS), rng.choice(NAMES), *kind, *vector("VEC", 0.7), *entity_vector)
        commands.append(("MEM.FACT", key, *fact, *words))
    for command in commands:
        clock.advance(1)
        made = wire.pipeline(command)[0]
        if isinstance(made, bytes):  # else VALIDUNTIL came before VALIDAT
            ids.append(made)
            if rng.random() < 0.15:
                wire("MEM.INVALIDATE", key, made, "AT", START + rng.randrange(150) * DAY)
    return sorted(set(ids))


def check(wire: Wire, rng: Random, ids: list[bytes], metric: str, pool: list[Vector], now: int) -> None:
    rows, entities = stored(wire, ids)
    for _ in range(12):
        text = rng.choice((None, *QUESTIONS))
        vector = rng.choice((None, *pool[:3]))
        as_of = rng.choice((None, None, START + rng.randrange(150) * DAY))
        least, top_k, limit = rng.choice((0.5, 0, 0.75)), rng.choice((3, 0, 50)), rng.choice((8, 1, 40, 1000))
        anchor_min = rng.choice((0.75, -1, 0.5))
        words: list[Any] = ["MINCONF", least, "ANCHORTOPK", top_k, "ANCHORMIN", anchor_min, "FACTS", limit]
        words += [] if text is None else ["TEXT", text]
        words += [] if vector is None else ["VEC", blob(vector)]
        words += [] if as_of is None else ["ASOF", as_of]
        found = wire("MEM.RECALL", "k", *words, "FORMAT", "MAP")[b"facts"]
        got = [
            (each[b"id"], each[b"score"], [each[b"%s_rank" % name] for name in (b"vector", b"anchor", b"keyword")])
            for each in found
        ]
        t = now if as_of is None else as_of
        assert got == expected(rows, entities, metric, t, text, vector, least, top_k, anchor_min)[:limit], words


def vectors(rng: Random, count: int) -> list[Vector]:
    return [float32(rng.gauss(0, 1) for _ in range(DIM)) for _ in range(count)]


@pytest.mark.parametrize("seed", range(24))
def test_random_memories(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:  # as large ones are: codes, and bounds of most ranks
        monkeypatch.setattr(codes, "CODES_MIN", 4)
        monkeypatch.setattr(rrf, "_HEAD_MIN", 2)
        monkeypatch.setattr(rrf, "_CANDIDATES_MAX", 0)
    rng = Random(seed)
    clock = Clock()
    metric = rng.choice(("COSINE", "COSINE", "L2", "IP"))
    pool = vectors(rng, 9)
    with Running(clock=clock) as server:
        wire = server.wire(3)
        wire("MEM.CREATE", "k", "DIM", DIM, "METRIC", metric)
        ids = fill(wire, clock, rng, rng.choice((3, 30, 90)), pool)
        check(wire, rng, ids, metric, pool, clock())
        _, entities = stored(wire, ids)
        same = [(a, b) for a in entities for b in entities if a.type == b.type and a != b]
        if same:
            into, other = rng.choice(same)
            wire("MEM.ENTITY", "k", into.name, "TYPE", into.type, "MERGE", other.name)
        clock.advance(30 * DAY)
        check(wire, rng, ids, metric, pool, clock())


@pytest.mark.parametrize("distinct", [12, 100_000])
def test_more_facts_than_are_ranked_one_by_one(distinct: int) -> None:
    """Most ranks are then bounded only: many equals, or none."""
    rng = Random(distinct)
    clock = Clock()
    pool = vectors(rng, min(distinct, 2500))
    with Running(clock=clock) as server:
        wire = server.wire(3)
        wire("MEM.CREATE", "k", "DIM", DIM)
        ids = fill(wire, clock, rng, 2500, pool)
        check(wire, rng, ids, "COSINE", pool, clock())
