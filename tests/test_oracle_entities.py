"""Random facts, merges and walks against plain Python: what moves, which of two facts stays, what is how far away."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

import pytest
from harness import DAY, JUNE, Clock, Running, Wire

NAMES = ("a", "b", "c", "d", "e", "f")


@dataclass(frozen=True)
class Told:
    id: int
    subject: str
    predicate: str
    object: str
    type: str
    confidence: float
    valid_at: int
    invalid: bool


def all_facts(wire: Wire) -> list[Told]:
    _, found = wire("MEM.FACTS", "k", "INVALIDATED", "LIMIT", 1000)
    told = [
        Told(
            int(each[b"id"]),
            each[b"subject"].decode(),
            each[b"predicate"].decode(),
            each[b"object"].decode(),
            (each[b"entity_type"] or b"").decode(),
            each[b"confidence"],
            int(each[b"valid_at"]),
            each[b"invalid_at"] is not None,
        )
        for each in found
    ]
    return sorted(told, key=lambda each: each.id)


def bearers(wire: Wire) -> dict[str, str]:
    """Name or alias -> the entity's name; all are of one type."""
    _, found = wire("MEM.ENTITIES", "k")
    return {alias.decode(): each[b"name"].decode() for each in found for alias in (each[b"name"], *each[b"aliases"])}


def merged(facts: list[Told], meaning: dict[str, str], into: str, other: str) -> list[Told]:
    moved = [
        replace(
            each,
            subject=into if meaning.get(each.subject) == other else each.subject,
            object=into if meaning.get(each.object.lower()) == other else each.object,
        )
        for each in facts
    ]
    kept: list[Told] = [each for each in moved if each.invalid]
    for each in sorted(moved, key=lambda each: (each.valid_at, each.id)):
        if each.invalid:
            continue
        for at, first in enumerate(kept):
            if (
                not first.invalid
                and (first.subject, first.predicate, first.object) == (each.subject, each.predicate, each.object)
                and (first.type == each.type or "" in (first.type, each.type))
            ):
                confidence = max(first.confidence, each.confidence)
                kept[at] = replace(first, type=first.type or each.type, confidence=confidence)
                break
        else:
            kept.append(each)
    return sorted(kept, key=lambda each: each.id)


def around(facts: list[Told], meaning: dict[str, str], start: str, depth: int) -> list[tuple[int, int]]:
    def ends(each: Told) -> set[str]:
        return {meaning.get(name, name) for name in (each.subject, each.object.lower())}

    reached = {meaning.get(start, start)}
    found: dict[int, int] = {}
    for level in range(1, depth + 1):
        here = [each for each in facts if not each.invalid and each.id not in found and ends(each) & reached]
        here.sort(key=lambda each: (-each.confidence, -each.valid_at, str(each.id)))
        found.update((each.id, level) for each in here)
        reached |= {end for each in here for end in ends(each)}
    return list(found.items())


@pytest.mark.parametrize("seed", range(25))
def test_random_graphs(seed: int) -> None:
    rng = Random(seed)
    clock = Clock()
    with Running(clock=clock) as server:
        wire = server.wire(3)
        wire("MEM.CREATE", "k", "MODE", "SEARCH")
        for _ in range(4):
            for _ in range(rng.randrange(12)):
                kind = rng.choice(((), ("TYPE", "ORG"), ("TYPE", "ORG")))
                name = rng.choice((*NAMES, "A", "C"))
                words = ("CONFIDENCE", rng.choice((0.25, 0.5, 1)), "VALIDAT", JUNE - rng.randrange(3) * DAY)
                made = wire("MEM.FACT", "k", rng.choice(NAMES), rng.choice(("p", "q")), name, *kind, *words)
                if rng.random() < 0.2:
                    wire("MEM.INVALIDATE", "k", made)
            clock.advance(1)
            meaning, facts = bearers(wire), all_facts(wire)
            for name in NAMES:
                depth = rng.randint(1, 3)
                found = wire("MEM.PATHS", "k", name, "DEPTH", depth, "LIMIT", 1000)
                told = [(int(each[b"id"]), each[b"depth"]) for each in found]
                assert told == around(facts, meaning, name, depth)
                touching = wire("MEM.FACTS", "k", "ENTITY", name)[0]
                assert touching == len(around(facts, meaning, name, 1))
            entities = sorted(set(meaning.values()))
            if len(entities) > 1:
                into, other = rng.sample(entities, 2)
                wire("MEM.ENTITY", "k", into, "TYPE", "ORG", "MERGE", other)
                assert all_facts(wire) == merged(facts, meaning, into, other), (into, other)
                after = bearers(wire)
                assert after == {name: into if end == other else end for name, end in meaning.items()}
