"""Random memories of notes, facts, entities and history, what to ask them, and what holds in each of them.

wander(rng, wire, clock, "k", 200)      200 random commands, as time passes
asked(rng, start, now)                  queries at random moments; `replies` gives the answers as bytes
check(memory, now)                      every invariant, computed from the rows alone
"""

from __future__ import annotations

from itertools import pairwise
from random import Random
from typing import Any

import numpy as np
from harness import Clock, Running, WireError
from recalld.index.columns import DOC_LEN, NEVER, Table
from recalld.index.entities import TYPES, entity_name
from recalld.index.fact_index import FactIndex, one_thing
from recalld.index.memory import Memory
from recalld.index.side import FACT, NOTE
from recalld.index.vectors import fixed_sum, is_unit
from recalld.server.fact_words import characters, object_words, predicate_words

SECOND = 1000
SUBJECTS = ("ann", "Bob", "acme", "ACME inc", "é")
OBJECTS = ("Acme", "acme inc", "a c m e", "apple", "Apple", "ann", "Zoë", "zoë ")
FACT_IDS, NOTE_IDS = ("f1", "f2", "1", "2", "3"), ("n1", "n2", "n3")
KINDS = ("ORG", "FOOD", "PERSON")


def wander(rng: Random, wire: Any, clock: Clock, key: str, steps: int, *, back: bool = False) -> None:
    """Random commands, of which the server may refuse some; with `back` the clock is set back now and then."""
    for _ in range(steps):
        words = _command(rng, clock.now_ms)
        wire.send(words[0], key, *words[1:])
        reply = wire.read()
        assert not (isinstance(reply, WireError) and "internal" in str(reply)), words
        if rng.random() < 0.6:
            clock.advance(rng.choice((1, 1, SECOND, 4 * SECOND)))
        elif back and rng.random() < 0.1:
            clock.advance(-rng.randint(1, 15) * SECOND)


def _command(rng: Random, now: int) -> list[Any]:
    chance = rng.random()
    if chance < 0.40:
        return _fact(rng, now)
    if chance < 0.55:
        return _note(rng, now)
    if chance < 0.65:
        how = rng.choice(([], ["CLEAR"], ["AT", _near(rng, now)]))
        return ["MEM.INVALIDATE", rng.choice(FACT_IDS), *how]
    if chance < 0.77:
        words: list[Any] = ["MEM.ENTITY", rng.choice(OBJECTS), "TYPE", rng.choice(KINDS)]
        if rng.random() < 0.4:
            words += ["ALIAS", rng.choice(OBJECTS)]
        if rng.random() < 0.4:
            words += ["MERGE", rng.choice(OBJECTS)]
        return words + (["FVEC", 2, *_vector(rng)] if rng.random() < 0.2 else [])
    some_id = rng.choice(FACT_IDS + NOTE_IDS)
    if chance < 0.83:
        return ["MEM.DEL", some_id]
    if chance < 0.88:
        return ["MEM.EXPIRE", some_id, rng.choice((0, 3, 9))]
    if chance < 0.93:
        return ["MEM.SETMETA", some_id, "f", rng.randint(0, 3)]
    if chance < 0.95:
        return ["MEM.FORGET", "TAGS", "ANY", 1, rng.choice("tu")]
    if chance < 0.98:
        return ["MEM.CONFIG", "HALFLIFE", rng.randint(1, 5)]
    return ["MEM.CONFIG", "HISTORY", rng.choice((0, 5, 20, "ALL", "ALL", 10**15))]


def _near(rng: Random, now: int) -> int:
    return now + rng.randint(-12, 6) * SECOND


def _vector(rng: Random) -> list[int]:
    return [rng.randint(1, 3), rng.randint(-2, 2)]


def _some(rng: Random, *options: tuple[float, list[Any]]) -> list[Any]:
    return [word for chance, words in options if rng.random() < chance for word in words]


def _fact(rng: Random, now: int) -> list[Any]:
    said = [rng.choice(SUBJECTS), rng.choice(("likes", "Works, at")), rng.choice(OBJECTS)]
    valid_at = _near(rng, now)
    options = _some(
        rng,
        (0.5, ["TYPE", rng.choice(KINDS)]),
        (0.4, ["CONFIDENCE", rng.choice((0, 0.25, 0.5))]),
        (0.3, ["QUOTE", rng.choice(("q", "r"))]),
        (0.2, ["EPISODE", "n1"]),
        (0.3, ["AT", _near(rng, now)]),
        (0.3, ["VALIDAT", valid_at]),
        (0.2, ["VALIDUNTIL", valid_at + rng.randint(1, 15) * SECOND]),
        (0.5, ["ID", rng.choice(FACT_IDS)]),
        (0.3, ["SUPERSEDES", rng.choice(FACT_IDS)]),
        (0.2, ["TTL", rng.randint(1, 20)]),
        (0.2, ["META", "f", rng.randint(0, 3)]),
        (0.2, ["TAGS", 1, rng.choice("tu")]),
        (0.3, ["FVEC", 2, *_vector(rng)]),
        (0.1, ["IMPORT", _near(rng, now), rng.choice(("", _near(rng, now))), rng.choice(("", "f1"))]),
    )
    return ["MEM.FACT", *said, *options]


def _note(rng: Random, now: int) -> list[Any]:
    valid_at = _near(rng, now)
    words = ["MEM.ADD", "ID", rng.choice(NOTE_IDS), "TEXT", " ".join(rng.choices(("ann", "likes", "acme", "é"), k=3))]
    return words + _some(
        rng,
        (0.3, ["AT", _near(rng, now)]),
        (0.2, ["VALIDAT", valid_at]),
        (0.2, ["VALIDUNTIL", valid_at + rng.randint(1, 15) * SECOND]),
        (0.2, ["KIND", "EPISODE"]),
        (0.1, ["PIN"]),
        (0.2, ["TTL", rng.randint(1, 20)]),
        (0.3, ["META", "f", rng.randint(0, 3)]),
        (0.3, ["TAGS", 1, rng.choice("tu")]),
        (0.6, ["FVEC", 2, *_vector(rng)]),
    )


def asked(rng: Random, start: int, now: int) -> list[list[Any]]:
    """Queries of this moment, and of random ones; the key is to come behind the command."""
    words: list[list[Any]] = [["MEM.CONFIG"], ["MEM.CARD"], ["MEM.SCAN", 0, "COUNT", 1000], ["MEM.ENTITIES", "WITHVEC"]]
    words += [["MEM.GET", each, "WITHMETA", "WITHVEC"] for each in FACT_IDS + NOTE_IDS]
    words += [["MEM.FACTS"], ["MEM.FACTS", "INVALIDATED"]]
    words += [["MEM.FACTS", "ENTITY", name] for name in OBJECTS]
    words += [["MEM.PATHS", name, "DEPTH", 3] for name in OBJECTS]
    flags = ["WITHSCORES", "WITHMETA", "WITHTAGS", "EXPLAIN", "TOPK", 100]
    for _ in range(8):
        as_of, known_at = rng.randint(start - 12 * SECOND, now + 8 * SECOND), rng.randint(start - 12 * SECOND, now)
        when: list[Any] = rng.choice(([], ["ASOF", as_of], ["KNOWNAT", known_at], ["ASOF", as_of, "KNOWNAT", known_at]))
        words += [["MEM.FACTS", *when], ["MEM.FACTS", *when, "INVALIDATED", "TEXT", "acme likes"]]
        words += [["MEM.FACTS", *when, "ENTITY", rng.choice(OBJECTS)]]
        words += [["MEM.PATHS", rng.choice(OBJECTS), "DEPTH", 2, "ASOF", as_of]]
        words += [["MEM.QUERY", "TEXT", "ann likes acme", "FVEC", 2, 1, 0.5, *when, *flags]]
    return words


def replies(wire: Any, key: str, words: list[list[Any]]) -> list[bytes]:
    found: list[bytes] = wire.raws(*([command, key, *rest] for command, *rest in words))
    return found


def memory_of(server: Running, key: str) -> Memory:
    """The memory at `key`; for when nobody asks the server anything."""
    found = server.server.keyspace.get(key.encode(), server.server.clock())
    assert found is not None
    return found


# -- what holds in every memory


def check(memory: Memory, now: int) -> None:
    """Compute every invariant from the rows; what is due by `now` must have been seen to."""
    table, past = memory.table, memory.past
    tables = [table] if past is None else [table, past]
    current: dict[bytes, int] = {}
    spans: dict[bytes, list[tuple[int, int]]] = {}
    of_serial: dict[int, bytes] = {}
    for each in tables:
        assert each.by_id.keys().isdisjoint(current)
        assert each.live == int(each.alive().sum())
        assert each.total_len == int(each.narrow[DOC_LEN, : each.n][each.alive()].sum())
        ended: dict[bytes, list[int]] = {}
        for slot in np.flatnonzero(each.alive()).tolist():
            record_id, serial = each.ids[slot], each.serial(slot)
            assert of_serial.setdefault(serial, record_id) == record_id
            assert serial < memory.table.order.next_serial
            _check_row(memory, each, slot, now)
            extra = each.extra(slot)
            if extra is None or extra.known_to == NEVER:
                assert each.by_id[record_id] == slot
                current[record_id] = serial
                assert extra is None or extra.counts(now) == (each is table), (record_id, extra, now)
            else:
                ended.setdefault(record_id, []).append(slot)
            if extra is not None:
                spans.setdefault(record_id, []).append((extra.since, extra.known_to))
        assert {key: sorted(slots) for key, slots in each.versions.items()} == ended
        for slots in each.versions.values():
            ends = [extra.known_to for slot in slots if (extra := each.extra(slot)) is not None]
            assert ends == sorted(ends)
        assert not ended or (each is past and memory.settings.history)
        _check_vectors(each)
    assert len(set(current.values())) == len(current)
    assert table.order.page(1, 1 << 30)[1] == sorted(current, key=lambda record_id: current[record_id])
    for several in spans.values():
        assert all(before[1] <= after[0] for before, after in pairwise(sorted(several)))
    _check_facts(memory)
    _check_entities(memory)
    untils = [until for until, _ in memory.old_settings]
    assert untils == sorted(untils)
    assert not untils or memory.settings.history


def _check_row(memory: Memory, table: Table, slot: int, now: int) -> None:
    text, deadline = table.texts[slot], table.deadline(slot)
    assert table.by_id.get(table.ids[slot]) != slot or deadline > now
    if table.by_id.get(table.ids[slot]) == slot:
        assert memory.next_deadline <= deadline
    assert 0 <= table.importance(slot) <= 1
    words = table.words(slot)
    if memory._analyzer is not None:
        assert words == memory._analyzer.document(text, words.doc_len)
    extra = table.extra(slot)
    if extra is None:
        return
    assert extra.written <= extra.since < extra.known_to
    assert extra.valid_at < extra.valid_until
    if extra.known_to == NEVER:
        assert memory.next_deadline <= extra.next_turn(now)
    fact = extra.fact
    assert (extra.kind == FACT) == (fact is not None)
    if fact is None:
        assert (extra.invalid_at, extra.confidence) == (NEVER, 0.0)
        assert extra.kind >= NOTE
        return
    assert text == fact.text
    assert fact.subject and fact.subject == entity_name(fact.subject)
    assert fact.predicate and fact.predicate == predicate_words(fact.predicate)
    assert fact.object and fact.object == object_words(fact.object) and characters(fact.object) <= 1500
    assert not fact.entity_type or (fact.entity_type in TYPES and fact.object == entity_name(fact.object))
    assert 0 <= extra.confidence <= 1
    assert extra.valid_at > -NEVER


def _check_vectors(table: Table) -> None:
    if table.vectors is None:
        return
    rows = [table.vectors.row(int(row)) for row in table.narrow[1, : table.n][table.alive()] if row >= 0]
    assert table.vectors.live == len(rows)
    if table.vectors.metric == "COSINE" and rows:
        assert table.vectors.sum.tolist() == fixed_sum(np.array(rows)).tolist()
        assert all(is_unit(float(np.square(row.astype(np.float64)).sum())) for row in rows)


def _check_facts(memory: Memory) -> None:
    """The index is that of the current facts; of what says the same one is open."""
    built = FactIndex()
    opened: list[tuple[Any, bytes]] = []
    for table in memory._tables():
        for slot in table.by_id.values():
            extra = table.extra(slot)
            if extra is None or extra.fact is None:
                continue
            fact = extra.fact
            built.add(table.ids[slot], fact, extra.valid_until, extra.invalid_at)
            if extra.invalid_at == NEVER:
                key = (fact.subject, fact.predicate, fact.object, extra.valid_until)
                assert not [1 for other, kind in opened if other == key and one_thing(kind, fact.entity_type)], key
                opened.append((key, fact.entity_type))
    found = memory.facts if memory.facts is not None else FactIndex()
    assert {key: set(said) for key, said in found._said.items()} == {k: set(said) for k, said in built._said.items()}
    for name in ("_about", "_typed"):
        kept, anew = getattr(found, name), getattr(built, name)
        assert {key: set(ids) for key, ids in kept.items()} == {key: set(ids) for key, ids in anew.items()}


def _check_entities(memory: Memory) -> None:
    names: set[tuple[bytes, bytes]] = set()
    for entity in memory.entities or ():
        assert entity.type in TYPES
        for name in (entity.name, *entity.aliases):
            assert name and name == entity_name(name)
            assert (name, entity.type) not in names
            names.add((name, entity.type))
        if entity.vector:
            assert is_unit(float(np.square(np.frombuffer(entity.vector, "<f4").astype(np.float64)).sum()))
