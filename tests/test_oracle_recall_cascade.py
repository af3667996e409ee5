"""MEM.RECALL with CASCADE and ACROSS against plain Python: one memory of the facts and entities of all those covered.

Its ids are key, NUL, id: in the order of ties. An entity of several memories has the names and vectors of all.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Any

import pytest
from harness import DAY, JUNE, Clock, Running, Wire
from oracle import Vector, blob, float32
from recalld.index import cascade, codes, rrf
from recalld.index import memory as memory_module
from recalld.index.analyzer import Vocabulary
from test_oracle_recall import DIM, NAMES, QUESTIONS, START, Entity, Graph, Row, expected, fill, stored

KEYS = ("t", "t:u", "t:u:v", "t:u:w", "x")


class Kind:
    """What a memory is made with; vectors of its own kind can be compared with those of one that is the same."""

    def __init__(self, rng: Random, mode: str, dim: int, metric: str, model: str) -> None:
        self.mode, self.dim, self.metric, self.model = mode, dim, metric, model
        self.pool: list[Vector] = [float32(rng.gauss(0, 1) for _ in range(dim)) for _ in range(9 if dim else 0)]

    def same(self, other: Kind) -> bool:
        return (self.dim, self.metric, self.model) == (other.dim, other.metric, other.model) and self.dim > 0

    def words(self) -> list[Any]:
        words: list[Any] = ["MODE", self.mode]
        words += ["DIM", self.dim, "METRIC", self.metric] if self.dim else []
        return words + (["MODEL", self.model] if self.model else [])


def make(wire: Wire, clock: Clock, rng: Random) -> tuple[dict[str, Kind], dict[str, list[bytes]]]:
    """The memories, most of one kind, and the ids in each."""
    common = Kind(rng, "HYBRID", DIM, rng.choice(("COSINE", "COSINE", "L2", "IP")), "")
    others = [
        Kind(rng, "SEARCH", 0, "COSINE", ""),
        Kind(rng, "HYBRID", 3, common.metric, ""),
        Kind(rng, "HYBRID", DIM, "IP" if common.metric == "L2" else "L2", ""),
        Kind(rng, "HYBRID", DIM, common.metric, "other"),
    ]
    kinds: dict[str, Kind] = {}
    ids: dict[str, list[bytes]] = {}
    for key in rng.sample(KEYS, 4):
        kinds[key] = kind = common if rng.random() < 0.65 else rng.choice(others)
        wire("MEM.CREATE", key, *kind.words())
        ids[key] = []
        if rng.random() < 0.9:
            ids[key] = fill(wire, clock, rng, rng.choice((1, 12, 40)), kind.pool, key)
        for _ in range(2):  # names that are other entities' elsewhere; refused where they are so here
            name, alias = rng.sample(NAMES, 2)
            wire.pipeline(("MEM.ENTITY", key, name, "TYPE", rng.choice(("ORG", "PLACE")), "ALIAS", alias))
            clock.advance(1)
    return kinds, ids


def covered(rng: Random, named: str, keys: list[str]) -> tuple[list[Any], list[str]]:
    """Options, and what they cover."""
    direction, words, found = rng.choice(("UP", "DOWN", "")), list[Any](), [named]
    if direction == "UP":
        found += [key for key in keys if named.startswith(key + ":")]
    elif direction == "DOWN":
        found += [key for key in keys if key.startswith(named + ":")]
    words += ["CASCADE", direction] if direction else []
    if len(found) == 1 or rng.random() < 0.5:
        across = rng.choices([*keys, "absent"], k=rng.choice((0, 2, 5)))
        words += ["ACROSS", len(across), *across]
        found += [key for key in across if key in keys]
    return words, list(dict.fromkeys(found))


def whole(wire: Wire, kinds: dict[str, Kind], ids: dict[str, list[bytes]], covered: list[str]) -> Any:
    """The one memory: (rows, entities, the oldest date of each entity)."""
    named, *others = covered
    rows: list[Row] = []
    entities: dict[tuple[str, str], Entity] = {}
    ages: dict[tuple[str, str], float] = {}
    for key in (named, *sorted(others)):
        compares = kinds[key].same(kinds[named])
        held, found = stored(wire, ids[key], key)
        for row in held:
            name = key.encode() + b"\0" + row.id
            rows.append(replace(row, id=name, vector=row.vector if compares else None))
        _, maps = wire("MEM.ENTITIES", key, "LIMIT", 1000)
        made = {(each[b"name"].decode(), each[b"type"].decode()): each[b"created_at"] for each in maps}
        for entity in found:
            what = entity.name, entity.type
            before = entities.get(what, Entity(len(entities), *what, (), ()))
            names = tuple(dict.fromkeys((*before.names, *entity.names)))
            entities[what] = replace(before, names=names, vectors=before.vectors + (entity.vectors if compares else ()))
            ages[what] = min(ages.get(what, made[what]), made[what])
    return rows, list(entities.values()), ages


def check(wire: Wire, clock: Clock, rng: Random, kinds: dict[str, Kind], ids: dict[str, list[bytes]]) -> int:
    """Some recalls; how many facts came of another memory than the one named."""
    foreign = 0
    for _ in range(10):
        named = rng.choice(list(kinds))
        options, keys = covered(rng, named, list(kinds))
        rows, entities, ages = whole(wire, kinds, ids, keys)
        kind = kinds[named]
        text = rng.choice((None, *QUESTIONS))
        vector = rng.choice((None, *kind.pool[:3]))
        as_of = rng.choice((None, None, START + rng.randrange(150) * DAY))
        least, top_k, limit = rng.choice((0.5, 0, 0.75)), rng.choice((3, 0, 1, 50)), rng.choice((8, 1, 40, 1000))
        anchor_min = rng.choice((0.75, -1, 0.5))
        words: list[Any] = ["MINCONF", least, "ANCHORTOPK", top_k, "ANCHORMIN", anchor_min, "FACTS", limit]
        words += [] if text is None else ["TEXT", text]
        words += [] if vector is None else ["VEC", blob(vector)]
        words += [] if as_of is None else ["ASOF", as_of]
        found = wire("MEM.RECALL", named, *words, *options, "FORMAT", "MAP")
        got = [
            (
                each[b"key"] + b"\0" + each[b"id"],
                each[b"score"],
                [each[b"%s_rank" % name] for name in (b"vector", b"anchor", b"keyword")],
            )
            for each in found[b"facts"]
        ]
        t = clock() if as_of is None else as_of
        wanted = expected(rows, entities, kind.metric, t, text, vector, least, top_k, anchor_min)[:limit]
        assert got == wanted, (named, options, words)
        check_entities(found[b"entities"], [name for name, *_ in got], rows, entities, ages, t)
        foreign += sum(each[b"key"] != named.encode() for each in found[b"facts"])
    return foreign


def check_entities(
    maps: list[dict[bytes, Any]],
    shown: list[bytes],
    rows: list[Row],
    entities: list[Entity],
    ages: dict[tuple[str, str], float],
    t: int,
) -> None:
    """Those the shown facts are about, each with its names, its age, and how many facts touch it then."""
    graph, facts = Graph(rows, entities), {row.id: row.fact for row in rows if row.fact is not None}
    touched = [graph.touched(row.fact) for row in rows if row.fact is not None and row.counts(t)]
    about: dict[int, None] = {}
    for name in shown:
        fact = facts[name]
        assert fact is not None
        thing, kind = fact[b"object"].decode(), (fact[b"entity_type"] or b"").decode()
        number = graph.meant(fact[b"subject"].decode())
        if kind:
            typed = [each for each in entities if each.type == kind]
            bearers = [each for each in typed if each.name == thing] or [each for each in typed if thing in each.names]
            number = bearers[0].number if bearers else None
        if number is not None:
            about[number] = None
    expected_maps = [
        {
            b"name": each.name.encode(),
            b"type": each.type.encode(),
            b"aliases": [name.encode() for name in each.names if name != each.name],
            b"facts": sum(each.number in numbers for numbers in touched),
            b"created_at": ages[each.name, each.type],
        }
        for each in (entities[number] for number in about)
    ]
    assert maps == expected_maps


@pytest.mark.parametrize("seed", range(24))
def test_random_memories(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    if seed % 2:  # as large ones are: bounds of most ranks
        monkeypatch.setattr(codes, "CODES_MIN", 4)
        monkeypatch.setattr(rrf, "_HEAD_MIN", 2)
        monkeypatch.setattr(rrf, "_CANDIDATES_MAX", 0)
    rng, clock = Random(seed), Clock()
    with Running(clock=clock) as server:
        wire = server.wire(3)
        kinds, ids = make(wire, clock, rng)
        foreign = check(wire, clock, rng, kinds, ids)
        for key in kinds:
            _, entities = stored(wire, [], key)
            same = [(a, b) for a in entities for b in entities if a.type == b.type and a != b]
            if same:
                into, other = rng.choice(same)
                wire("MEM.ENTITY", key, into.name, "TYPE", into.type, "MERGE", other.name)
        clock.advance(30 * DAY)
        foreign += check(wire, clock, rng, kinds, ids)
        assert foreign, "no cascade found what the named memory has not"


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_alone_it_is_the_plain_recall_and_the_key(seed: int, joined: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the byte; and where it goes through what joins several, one of them empty."""
    rng, clock = Random(seed), Clock()
    pool = Kind(rng, "HYBRID", DIM, "COSINE", "").pool
    beside: dict[bytes, memory_module.Memory] = {}
    plan = cascade.plan
    monkeypatch.setattr(cascade, "plan", lambda members, *rest: plan({**members, **beside}, *rest))
    with Running(clock=clock) as server:
        wire = server.wire(3)
        wire("MEM.CREATE", "k", "DIM", DIM)
        fill(wire, clock, rng, 60, pool)
        for number in range(5):
            wire("MEM.ADD", "k", "TEXT", f"{rng.choice(NAMES)} at {number}", "KIND", "episode", "VEC", blob(pool[0]))
        for _ in range(20):
            words: list[Any] = ["FACTS", rng.choice((3, 100)), "EPISODES", rng.choice((0, 3))]
            words += ["BUDGET", 90] if rng.random() < 0.3 else []
            words += ["TEXT", rng.choice(QUESTIONS)] if rng.random() < 0.8 else []
            words += ["VEC", blob(rng.choice(pool[:3]))] if rng.random() < 0.5 else []
            words += ["ASOF", JUNE - 40 * DAY] if rng.random() < 0.3 else []
            block, as_map = wire.raw("MEM.RECALL", "k", *words), wire("MEM.RECALL", "k", *words, "FORMAT", "MAP")
            for kind in (b"facts", b"episodes"):
                as_map[kind] = [{b"id": each[b"id"], b"key": b"k", **each} for each in as_map[kind]]
            if joined:
                beside[b"~"] = memory_module.Memory(memory_module.Settings(mode="SEARCH"), Vocabulary(), 0)
            for alone in (["CASCADE", "DOWN"], ["CASCADE", "UP"], ["ACROSS", 0], ["ACROSS", 3, "k", "absent", "k"]):
                assert wire.raw("MEM.RECALL", "k", *words, *alone) == block
                found = wire("MEM.RECALL", "k", *words, *alone, "FORMAT", "MAP")
                assert found == as_map
                assert [list(each) for each in found[b"facts"]] == [list(each) for each in as_map[b"facts"]]
            beside.clear()
