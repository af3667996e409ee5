"""Entities: names, aliases, similarity within a type, against plain Python; and which facts touch them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recalld.index.entities import Entities, Entity, entity_name, type_named
from recalld.index.fact_index import FactIndex, Key, meant, node_of
from recalld.index.side import Fact

NEVER = 1 << 62


def vector(*numbers: float) -> bytes:
    array = np.array(numbers)
    return (array / np.sqrt((array * array).sum())).astype("<f4").tobytes()


def entity(name: bytes, kind: bytes = b"ORG", *aliases: bytes, vector: bytes = b"") -> Entity:
    return Entity(0, name, kind, aliases, 1, vector)


def fact(subject: bytes, spoken: bytes, kind: bytes = b"", predicate: bytes = b"likes") -> Fact:
    return Fact(subject, predicate, spoken, kind, b"", b"", b"", b"")


@pytest.mark.parametrize(
    ("word", "name"), [(b"  Apple Inc ", b"apple inc"), ("ÉCOLE".encode(), "école".encode()), (b"\xffA", b"\xffa")]
)
def test_names(word: bytes, name: bytes) -> None:
    assert entity_name(word) == name


@pytest.mark.parametrize(
    ("word", "kind"), [(b"org", b"ORG"), (b"Food ", b"FOOD"), (b"company", b"THING"), (b"", b"THING")]
)
def test_types(word: bytes, kind: bytes) -> None:
    assert type_named(word) == kind


def test_resolution_by_name_then_alias_then_similarity() -> None:
    entities = Entities()
    entities.put(entity(b"apple", vector=vector(1, 0)))
    entities.put(entity(b"microsoft", b"ORG", b"ms", vector=vector(0, 1)))
    assert entities.resolve(b"apple", b"ORG", vector(0, 1), 0.9, 5).how == "exact", "a name comes before likeness"
    found = entities.resolve(b"ms", b"ORG", b"", 0.9, 5)
    assert (found.how, found.entity.name) == ("alias", b"microsoft")
    found = entities.resolve(b"apple inc", b"ORG", vector(1, 0.1), 0.9, 5)
    assert (found.how, found.entity.name, found.entity.aliases) == ("similar", b"apple", (b"apple inc",))
    assert found.entity.vector == vector(1, 0), "the stored vector stays"
    assert entities.resolve(b"apple inc", b"ORG", b"", 0.9, 5).how == "created", "no vector, no similarity"
    assert entities.resolve(b"apple inc", b"ORG", vector(1, 1), 0.9, 5).how == "created", "not similar enough"
    found = entities.resolve(b"apple", b"FOOD", vector(1, 0), 0.9, 5)
    assert found == (Entity(0, b"apple", b"FOOD", (), 5, vector(1, 0)), "created"), "types never meet"
    entities.put(entity(b"ibm"))
    assert entities.resolve(b"ibm", b"ORG", vector(1, 0), 0.9, 5).entity.vector == vector(1, 0), "it had none"


def test_equal_similarities_go_to_the_smaller_name() -> None:
    entities = Entities()
    for name in (b"b", b"a", b"c"):
        entities.put(entity(name, vector=vector(1, 2, 3)))
    assert [each.name for each, _ in entities.nearest(np.array([1.0, 0, 0]), b"ORG", 2, -1.0)] == [b"a", b"b"]


NAMES = st.sampled_from([b"a", b"b", b"c", b"d"])
KINDS = st.sampled_from([b"ORG", b"FOOD"])
VECTORS = st.sampled_from([b"", vector(1, 0), vector(1, 0.1), vector(0, 1), vector(-1, 1)])
STEPS = st.lists(st.tuples(NAMES, KINDS, VECTORS, st.sampled_from(["put", "put", "drop"])), max_size=30)


@settings(max_examples=200, deadline=None)
@given(STEPS)
def test_state_against_plain_python(steps: list[tuple[bytes, bytes, bytes, str]]) -> None:
    """Each put is what `resolve` says; afterwards names, aliases, numbers, views and nearest ones agree with a list."""
    entities = Entities()
    plain: list[Entity] = []
    for name, kind, blob, what in steps:
        if what == "drop":
            gone = next((each for each in plain if (each.name, each.type) == (name, kind)), None)
            if gone is not None:
                entities.drop(name, kind)
                plain.remove(gone)
            continue
        resolved = entities.resolve(name, kind, blob, 0.95, 7)
        same_type = [each for each in plain if each.type == kind]
        exact = [each for each in same_type if each.name == name]
        alias = [each for each in same_type if name in each.aliases]
        near = sorted(
            ((-cosine(each.vector, blob), each.name, each) for each in same_type if each.vector and blob),
        )
        if exact or alias:
            old = (exact or alias)[0]
            how, wanted = ("exact" if exact else "alias"), old._replace(vector=old.vector or blob)
        elif near and -near[0][0] >= 0.95:
            old = near[0][2]
            how, wanted = "similar", old._replace(aliases=(*old.aliases, name))
        else:
            old = None
            how, wanted = "created", Entity(0, name, kind, (), 7, blob)
        assert resolved == (wanted, how)
        entities.put(resolved.entity)
        stored = entities.get(wanted.name, kind)
        assert stored is not None and stored._replace(number=wanted.number) == wanted
        if old is None:
            plain.append(stored)
        else:
            assert stored.number == old.number
            plain[plain.index(old)] = stored
        assert entities.page(b"", 0, 99)[0] == len(plain)
    assert list(entities) == plain
    by_name = sorted(plain, key=lambda each: (each.name, each.type))
    assert entities.page(b"", 1, 2) == (len(plain), by_name[1:3])
    food = [each for each in by_name if each.type == b"FOOD"]
    assert entities.page(b"FOOD", 0, 99) == (len(food), food)
    for name in (b"a", b"b", b"c", b"d"):
        found = [(each, "exact") for each in plain if each.name == name]
        found += [(each, "alias") for each in plain if name in each.aliases]
        assert entities.lookup(name) == found
        assert sorted(entities.names.find(name, 9)) == sorted({each.number for each, _ in found})
        assert sorted(entities.freeze().names.find(name, 9)) == sorted({each.number for each, _ in found})
    query = np.array([1.0, 0.0])
    expected = sorted(
        ((each, cosine(each.vector, vector(1, 0))) for each in plain if each.vector),
        key=lambda pair: (-pair[1], pair[0].name, pair[0].type),
    )
    got = entities.nearest(query, b"", 3, 0.5)
    assert [each for each, _ in got] == [each for each, value in expected if value >= 0.5][:3]
    twin = entities.copy()
    assert [each._replace(number=0) for each in twin] == [each._replace(number=0) for each in entities]


def cosine(a: bytes, b: bytes) -> float:
    left, right = np.frombuffer(a, "<f4").astype(float).tolist(), np.frombuffer(b, "<f4").astype(float).tolist()
    dot = math.fsum(x * y for x, y in zip(left, right, strict=True))
    return dot / math.sqrt(math.fsum(x * x for x in left)) if dot else 0.0


def test_nearest_of_many_is_exact() -> None:
    rng = np.random.default_rng(5)
    rows = rng.normal(size=(9000, 8))
    entities = Entities()
    for number, row in enumerate(rows):
        entities.put(entity(b"e%d" % number, b"ORG" if number % 2 else b"FOOD", vector=vector(*row)))
    query = rng.normal(size=8)
    query /= np.sqrt(query @ query)
    stored = {each.number: np.frombuffer(each.vector, "<f4").astype(float) for each in entities}
    order = sorted(stored, key=lambda number: -(stored[number] @ query))
    assert [number for number, _ in entities.freeze().nearest(query, 5, -1.0)] == order[:5]
    many = [number for number, _ in entities.freeze().nearest(query, 9000, 0.5)]
    assert many == [number for number in order if stored[number] @ query >= 0.5]


def test_a_view_keeps_its_vectors() -> None:
    entities = Entities()
    for number in range(20):
        entities.put(entity(b"e%d" % number, vector=vector(1, number)))
    view = entities.freeze()
    before = view.nearest(np.array([0.0, 1.0]), 20, -1.0)
    for number in range(0, 20, 2):
        entities.drop(b"e%d" % number, b"ORG")
    entities.put(entity(b"new", vector=vector(0, 1)))
    assert view.nearest(np.array([0.0, 1.0]), 20, -1.0) == before


# Which facts say the same, and which touch.


def test_same_is_by_type_then_smaller_id() -> None:
    facts = FactIndex()
    key = Key(b"user", b"likes", b"apple", NEVER)
    facts.add(b"2", fact(b"user", b"apple", b"ORG"), NEVER, NEVER)
    facts.add(b"1", fact(b"user", b"apple", b"FOOD"), NEVER, 100)
    assert facts.same(key, b"ORG", 5) == b"2"
    assert facts.same(key, b"FOOD", 99) == b"1"
    assert facts.same(key, b"FOOD", 100) is None, "invalidated by then"
    assert facts.same(key, b"PLACE", 5) is None
    assert facts.same(key, b"", 5) == b"1"
    assert facts.same(key, b"", 5, besides=b"1") == b"2"
    facts.add(b"3", fact(b"user", b"apple"), NEVER, NEVER)
    assert facts.same(key, b"PLACE", 5) == b"3", "an untyped object is any type's"
    assert facts.same(key._replace(valid_until=9), b"", 5) is None
    facts.remove(b"3", fact(b"user", b"apple"), NEVER)
    assert facts.same(key, b"PLACE", 5) is None


def test_touching() -> None:
    """Typed objects; subjects and untyped objects by name or alias where that means the entity; other names alone."""
    entities, facts = Entities(), FactIndex()
    entities.put(entity(b"apple", b"ORG", b"aapl"))
    entities.put(entity(b"apple", b"FOOD"))
    org, food = list(entities)
    said = {
        b"1": fact(b"user", b"apple", b"ORG"),
        b"2": fact(b"user", b"Apple"),
        b"3": fact(b"aapl", b"tea"),
        b"4": fact(b"user", b"apple", b"FOOD"),
        b"5": fact(b"apple", b"apple"),
    }
    for record_id, each in said.items():
        facts.add(record_id, each, NEVER, NEVER)
    # One use each: the name alone means the entity that came first.
    assert meant(entities, facts, b"apple") == org
    assert sorted(facts.touching(org.number, entities)) == [b"1", b"2", b"3", b"5"]
    assert facts.touching(food.number, entities) == [b"4"]
    facts.add(b"6", fact(b"user", b"apple", b"FOOD", b"eats"), NEVER, NEVER)
    assert meant(entities, facts, b"apple") == food, "the more used"
    assert sorted(facts.touching(food.number, entities)) == [b"2", b"4", b"5", b"6"]
    assert sorted(facts.touching(org.number, entities)) == [b"1", b"3"]
    assert sorted(facts.touching(b"user", entities)) == [b"1", b"2", b"4", b"6"]
    assert facts.touching(b"tea", entities) == [b"3"]
    assert node_of(entities, facts, b" AAPL") == org.number
    assert node_of(entities, facts, b"Tea ") == b"tea"
    assert node_of(entities, facts, b"apple", b"PLACE") == b"apple"
    assert node_of(None, None, b"Tea") == b"tea"
    for record_id, each in said.items():
        facts.remove(record_id, each, NEVER)
    facts.remove(b"6", fact(b"user", b"apple", b"FOOD", b"eats"), NEVER)
    assert (facts._about, facts._typed, facts._said) == ({}, {}, {})


def test_a_twin_goes_its_own_way() -> None:
    entities = Entities()
    for number in range(20):
        entities.put(entity(b"e%d" % number, b"ORG", b"alias%d" % number, vector=vector(number, 1)))
    assert entities.page(b"", 0, 3)[0] == 20

    def told(some: Entities) -> Any:
        near = some.nearest(np.array([1.0, 0.0]), b"", 50, -1.0)
        names = [some.names.find(b"e%d alias%d" % (number, number), 9) for number in range(40)]
        return list(some), some.page(b"", 0, 50), near, names, some.lookup(b"alias3"), some.get(b"e3", b"ORG")

    twin, before = entities.copy(), told(entities)
    assert told(twin) == before
    twin.drop(b"e3", b"ORG")
    twin.put(entity(b"e30", b"FOOD", b"alias3", vector=vector(-1, 0)))
    twin.put(entity(b"e4", b"ORG", b"other", vector=vector(0, 1)))
    changed = told(twin)
    assert told(entities) == before != changed
    entities.drop(b"e7", b"ORG")
    entities.put(entity(b"e31", b"ORG", vector=vector(-1, -1)))
    assert told(twin) == changed
    assert [each.number for each in twin][-1] == 21


def test_who_bears_a_name_stays_so_for_a_reader() -> None:
    entities = Entities()
    entities.put(entity(b"a", b"ORG", b"x"))
    entities.put(entity(b"b", b"ORG"))
    still = entities.still()
    before = [still.lookup(name) for name in (b"a", b"b", b"x")]
    entities.drop(b"a", b"ORG")
    entities.put(entity(b"b", b"ORG", b"a", b"x"))
    assert [still.lookup(name) for name in (b"a", b"b", b"x")] == before
    assert [each.name for each, _ in entities.lookup(b"x")] == [b"b"]
    assert still.numbered(1) is not None and entities.numbered(1) is None
