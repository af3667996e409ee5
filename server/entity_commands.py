"""MEM.ENTITY, MEM.ENTITIES, MEM.PATHS: what facts are about, and how facts hang together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from ..index.entities import ALIASES_MAX, Entities, Entity, Resolved, entity_name, type_named
from ..index.fact_index import FactIndex, Key, Node, meant, node_of, one_thing
from ..index.memory import Memory
from ..index.moment import joined
from ..index.settings import Settings
from ..index.side import Fact
from ..index.view import View
from .arguments import Floats, Words
from .aside import change
from .commands import command
from .embedded import write_with_vectors
from .entries import DropEntity, Entry, PutEntity, Remove, Retell
from .errors import CommandError, shown_word
from .fact_maps import FactRow, fact_at, fact_map, fact_row, fact_slots, read_page
from .fact_words import characters
from .memory_commands import find
from .record_vectors import stored_vector

if TYPE_CHECKING:
    from .client import Client
    from .config import Config

# As many characters as an object has, which an entity's name may become.
_NAME_CHARS = 500
_NAME_BYTES = 16 * _NAME_CHARS
# Comparing a vector with so many of 384 numbers takes a millisecond or two; with more a thread does it.
_NEAREST_ON_LOOP = 4096
# As many facts as MEM.PATHS looks at in some milliseconds; beyond, a thread looks at all of them.
_PATHS_ON_LOOP = 1000
_DEPTH_MAX = 3


def unit_vector(vector: Floats, settings: Settings) -> bytes:
    """The float32 bytes kept of an entity's vector, a unit vector whatever the metric; raises BadMemory."""
    return stored_vector(vector, replace(settings, metric="COSINE"))


def put_entity(key: bytes, memory: Memory, resolved: Resolved, now: int) -> PutEntity | None:
    """The entry that makes an entity what it was resolved to; None where it is that."""
    entity = resolved.entity
    stored = memory.entities.get(entity.name, entity.type) if memory.entities is not None else None
    if stored is not None and stored == entity:
        return None
    return _entry(key, entity, now)


def _entry(key: bytes, entity: Entity, now: int) -> PutEntity:
    return PutEntity(
        key=key,
        name=entity.name,
        type=entity.type,
        aliases=entity.aliases,
        created_at=entity.created_at,
        vector=entity.vector,
        at=now,
    )


def resolving(
    ctx: Client,
    key: bytes,
    name: bytes,
    entity_type: bytes,
    vector: bytes,
    finish: Callable[[Memory, Resolved], Any],
) -> Any:
    """`finish(memory, what the name means)`, now; or later, where a thread compares many vectors first."""
    threshold = ctx.server.config["mem-entity-threshold"]
    memory = find(ctx, key)

    def settled() -> Any:
        entities = memory.entities if memory.entities is not None else Entities()
        return finish(memory, entities.resolve(name, entity_type, vector, threshold, ctx.now))

    entities = memory.entities
    if (
        entities is None
        or ctx.must_finish
        or not vector
        or entities.vector_count(entity_type) <= _NEAREST_ON_LOOP
        or entities.lookup(name, entity_type)
    ):
        return settled()
    version, search = entities.version, entities.search(entity_type)
    query = np.frombuffer(vector, "<f4").astype(np.float64)

    def late(found: list[tuple[int, float]]) -> Any:
        if find(ctx, key) is not memory:
            raise CommandError("the key was replaced while its entities were being compared; nothing was written")
        if ctx.server.log.failure is not None:
            raise CommandError(ctx.server.log.failure, "MISCONF")
        if entities.version != version:
            return settled()
        return finish(memory, entities.resolve(name, entity_type, vector, threshold, ctx.now, found))

    return ctx.write_after(ctx.background(lambda: search.nearest(query, 1, threshold)), late)


def embedding_name(
    ctx: Client,
    key: bytes,
    memory: Memory,
    name: bytes,
    entity_type: bytes,
    finish: Callable[[Memory, bytes], Any],
) -> Any:
    """`finish(memory, the vector that the memory's embedder makes of the name)`: b"" where there is no embedder, it
    fails, or the name is known."""
    entities = memory.entities
    if not memory.settings.embeds or (entities is not None and entities.lookup(name, entity_type)):
        return finish(memory, b"")
    return write_with_vectors(ctx, key, memory, [name], lambda memory, vectors: finish(memory, vectors[0] or b""))


@dataclass(slots=True)
class _Asked:
    """MEM.ENTITY's words."""

    name: bytes
    type: bytes = b""
    aliases: list[bytes] = field(default_factory=list)
    vector: Floats | None = None
    other: bytes | None = None


def name_of(word: bytes) -> bytes:
    """The word as an entity's name; raises CommandError."""
    # One that is far too long is not looked at.
    name = entity_name(word) if len(word) <= _NAME_BYTES else word
    if not name:
        raise CommandError("an entity's name must not be empty")
    if len(name) > _NAME_BYTES or characters(name) > _NAME_CHARS:
        raise CommandError(f"an entity's name must not exceed {_NAME_CHARS} characters")
    return name


@command(
    "MEM.ENTITY",
    arity=-3,
    flags="write denyoom",
    keys=(1, 1, 1),
    key_flags=["RW access update"],
    group="facts",
    usage="MEM.ENTITY key name [TYPE entity-type] [ALIAS name]* [VEC blob | FVEC n f1 .. fn] [MERGE other]",
    complexity="O(1), with a vector O(entities of the type * dim), with MERGE O(facts about the other)",
    options=(
        "TYPE entity-type: PERSON ORG PLACE PRODUCT SKILL TOPIC EVENT FOOD ROLE CONCEPT THING DATE; any other word is"
        " THING; without it the name means its only, else its most used entity, else a new THING",
        "ALIAS name: another name of it, repeatable; it may have 1000",
        "VEC, FVEC: its vector, by which similar names of the type are found",
        "MERGE other: the other entity of the type goes; its names and facts become this one's",
    ),
)
def entity(ctx: Client, args: list[bytes]) -> Any:
    """Find or create an entity by name, alias or similarity; what it is, and how it was found."""
    words, asked = Words(args, 2), _Asked(name_of(args[1]))
    while words:
        option = words.option()
        if option == b"TYPE":
            asked.type = type_named(words.next())
        elif option == b"ALIAS":
            asked.aliases.append(name_of(words.next()))
        elif option in (b"VEC", b"FVEC"):
            asked.vector = words.vector(option)
        elif option == b"MERGE":
            asked.other = name_of(words.next())
        else:
            raise words.unexpected()
    key = args[0]
    memory = find(ctx, key)
    entity_type = asked.type
    if not entity_type:
        known = meant(memory.entities, memory.facts, asked.name)
        entity_type = known.type if known is not None else b"THING"

    def resolve(memory: Memory, vector: bytes) -> Any:
        return resolving(
            ctx,
            key,
            asked.name,
            entity_type,
            vector,
            lambda memory, resolved: _settle(ctx, key, memory, asked, resolved),
        )

    if asked.vector is not None:
        return resolve(memory, unit_vector(asked.vector, memory.settings))
    return embedding_name(ctx, key, memory, asked.name, entity_type, resolve)


def _settle(ctx: Client, key: bytes, memory: Memory, asked: _Asked, resolved: Resolved) -> Any:
    """Commit what MEM.ENTITY asks for, the name being resolved; the reply, or a future of it."""
    config, rows = ctx.server.config, 0
    if asked.other is not None and memory.facts is not None:
        rows = memory.facts.about(_other(memory.entities or Entities(), asked, resolved))

    def finish(group: list[Entry]) -> dict[str, Any]:
        name, entity_type = resolved.entity.name, resolved.entity.type
        if group:
            ctx.server.announce(key, b"entity " + name)
            for moved in group if ctx.server.pubsub.active else ():
                for record_id in moved.ids if isinstance(moved, Remove) else ():
                    ctx.server.announce(key, b"del " + record_id)
        assert memory.entities is not None
        stored = memory.entities.get(name, entity_type)
        assert stored is not None
        return {**entity_map(memory, stored), "resolved": resolved.how}

    def settle(memory: Memory) -> list[Entry]:
        return _entries(key, memory, asked, resolved, config, ctx.now)

    return change(ctx, key, memory, rows, settle, finish)


def _entries(
    key: bytes, memory: Memory, asked: _Asked, resolved: Resolved, config: Config, now: int
) -> list[Entry]:
    """The entries that make of the memory what MEM.ENTITY asks for. Raises CommandError."""
    entities = memory.entities if memory.entities is not None else Entities()
    found = resolved.entity
    other = None if asked.other is None else _other(entities, asked, resolved)
    names = dict.fromkeys((found.name, *found.aliases))
    for alias in asked.aliases:
        if alias in names:
            continue
        for holder, _ in entities.lookup(alias, found.type):
            if holder.number not in (found.number, other.number if other is not None else 0):
                raise CommandError(
                    f"'{shown_word(alias)}' already names another {found.type.decode()}; MERGE joins them"
                )
        names[alias] = None
    had, own = len(found.aliases), tuple(names)[1:]
    if other is not None:
        names.update(dict.fromkeys((other.name, *other.aliases)))
    if len(names) - 1 > max(had, ALIASES_MAX):
        raise CommandError(f"an entity may have {ALIASES_MAX} aliases, this one would have {len(names) - 1}")
    found = found._replace(aliases=own)
    group: list[Entry] = []
    if other is not None:
        merged = found._replace(aliases=tuple(names)[1:], vector=found.vector or other.vector)
        group = [DropEntity(key, other.name, other.type, now), _entry(key, merged, now)]
        group += _moved(key, memory, merged, other, config, now)
    else:
        entry = put_entity(key, memory, Resolved(found, resolved.how), now)
        if entry is not None:
            group.append(entry)
    return group


def _other(entities: Entities, asked: _Asked, resolved: Resolved) -> Entity:
    """The entity that MERGE names, to be joined to the one found."""
    assert asked.other is not None
    if resolved.how == "created":
        raise CommandError(f"no such entity '{shown_word(asked.name)}'")
    found = entities.lookup(asked.other, resolved.entity.type)
    if not found:
        if entities.lookup(asked.other):
            raise CommandError("entities of different types never merge")
        raise CommandError(f"no such entity '{shown_word(asked.other)}'")
    if found[0][0].number == resolved.entity.number:
        raise CommandError("an entity cannot be merged with itself")
    return found[0][0]


def _moved(key: bytes, memory: Memory, into: Entity, other: Entity, config: Config, now: int) -> list[Entry]:
    """The entries that tell the facts about `other` of `into`. Of facts that say the same then, the one with the
    earlier valid_at stays, with the highest confidence, and the others go."""
    entities, facts = memory.entities, memory.facts
    if facts is None:
        return []
    limit = config["mem-max-text-bytes"]
    rows: dict[bytes, tuple[FactRow, Fact]] = {}  # those that move and those that they meet, by id
    moving = facts.touching(other.number, entities)
    for record_id in moving:
        row = _row(memory, record_id, now)
        fact = row.fact
        if node_of(entities, facts, fact.subject) == other.number:
            fact = fact._replace(subject=into.name)
        if node_of(entities, facts, fact.object, fact.entity_type) == other.number:
            fact = fact._replace(object=into.name)
        if len(fact.text) > limit:
            raise CommandError(f"text exceeds mem-max-text-bytes ({limit})")
        rows[record_id] = (row, fact)
    for row, fact in list(rows.values()):
        for record_id in facts.saying(_key(row, fact), now):
            if record_id not in rows:
                met = _row(memory, record_id, now)
                rows[record_id] = (met, met.fact)
    stays: list[tuple[FactRow, Fact, float]] = []
    gone: list[bytes] = []
    said: dict[Key, list[int]] = {}  # -> places in `stays`
    for row, fact in sorted(rows.values(), key=lambda pair: (pair[0].valid_at, memory.serial(pair[0].id))):
        places = said.setdefault(_key(row, fact), []) if row.invalid_at > now else []
        for place in places:
            first, told, confidence = stays[place]
            if one_thing(told.entity_type, fact.entity_type):
                told = told._replace(entity_type=told.entity_type or fact.entity_type)
                stays[place] = (first, told, max(confidence, row.confidence))
                gone.append(row.id)
                break
        else:
            places.append(len(stays))
            stays.append((row, fact, row.confidence))
    entries: list[Entry] = []
    max_words = config["mem-max-terms-per-doc"]
    for row, fact, confidence in stays:
        if confidence != row.confidence:
            entries.append(row.put(key, memory, fact, confidence, since=now, max_words=max_words, at=now))
        elif fact != row.fact:
            entries.append(Retell(key, row.id, fact, max_words, now))
    if gone:
        entries.append(Remove(key, tuple(gone), now))
    return entries


def _row(memory: Memory, record_id: bytes, now: int) -> FactRow:
    row = fact_at(memory, record_id, now)
    assert row is not None
    return row


def _key(row: FactRow, fact: Fact) -> Key:
    return Key(fact.subject, fact.predicate, fact.object, row.valid_until)


def entity_map(memory: Memory, entity: Entity) -> dict[str, Any]:
    """An entity; `facts` counts those that touch it and are valid now."""
    facts = 0
    if memory.facts is not None:
        by_id = memory.table.by_id
        facts = sum(each in by_id for each in memory.facts.touching(entity.number, memory.entities))
    return entity_shown(entity, facts)


def entity_shown(entity: Entity, facts: int) -> dict[str, Any]:
    """An entity that `facts` facts touch."""
    return {
        "name": entity.name,
        "type": entity.type,
        "aliases": entity.aliases,
        "facts": facts,
        "created_at": float(entity.created_at),
    }


@command(
    "MEM.ENTITIES",
    arity=-2,
    flags="readonly",
    keys=(1, 1, 1),
    group="facts",
    usage="MEM.ENTITIES key [TYPE entity-type] [LIMIT n] [OFFSET n] [WITHVEC]",
    complexity="O(n + facts about them)",
    options=(
        "TYPE entity-type: only these",
        "LIMIT n: how many, 1 to 1000 (50)",
        "OFFSET n: leave out the first n (0)",
        "WITHVEC: with each one's vector as float32 bytes, nil for none",
    ),
)
def entities(ctx: Client, args: list[bytes]) -> Any:
    """List entities by name, then type: how many there are, and a page of them."""
    words, page, entity_type, with_vector = Words(args, 1), [50, 0], b"", False
    while words:
        option = words.option()
        if option == b"TYPE":
            entity_type = type_named(words.next())
        elif option == b"WITHVEC":
            with_vector = True
        elif not read_page(option, words, page):
            raise words.unexpected()
    memory = find(ctx, args[0])
    total, found = (0, []) if memory.entities is None else memory.entities.page(entity_type, page[1], page[0])
    maps = [entity_map(memory, each) for each in found]
    if with_vector:
        maps = [{**shown, "vector": each.vector or None} for shown, each in zip(maps, found, strict=True)]
    if ctx.seen is not None:
        ctx.seen.results = len(maps)
    return [total, maps]


@command(
    "MEM.PATHS",
    arity=-3,
    flags="readonly",
    keys=(1, 1, 1),
    group="facts",
    usage="MEM.PATHS key entity [DEPTH n] [ASOF time] [LIMIT n]",
    complexity="O(facts around the entity)",
    options=(
        "DEPTH n: 1 to 3: how many facts away from the entity (1)",
        "ASOF time: the facts that were valid then (now)",
        "LIMIT n: how many, 1 to 1000 (50)",
    ),
)
def paths(ctx: Client, args: list[bytes]) -> Any:
    """List the facts around an entity, the nearest first, each with its depth."""
    words, page, depth, as_of = Words(args, 2), [50, 0], 1, None
    while words:
        option = words.option()
        if option == b"DEPTH":
            depth = words.integer()
            if not 1 <= depth <= _DEPTH_MAX:
                raise CommandError(f"DEPTH must be between 1 and {_DEPTH_MAX}")
        elif option == b"ASOF":
            as_of = words.time()
        elif option == b"OFFSET" or not read_page(option, words, page):
            raise words.unexpected()
    memory = find(ctx, args[0])
    entities, facts = memory.entities, memory.facts
    if facts is None and as_of is None:
        return []
    start, limit, seen = node_of(entities, facts, args[1]), page[0], ctx.seen

    def shown(view: View, around: Callable[[Node], Iterable[int]], ends: Ends) -> list[dict[str, Any]]:
        found = _breadth_first(view, start, depth, limit, around, ends)
        if seen is not None:
            seen.results = len(found)
        return [{**fact_map(view, slot), "depth": level} for slot, level in found]

    if as_of is None and facts is not None:
        by_id, room = memory.table.by_id, _PATHS_ON_LOOP

        def indexed(node: Node) -> list[int]:
            nonlocal room
            ids = facts.touching(node, entities)
            room -= 1 + len(ids)
            if room < 0:
                raise _TooMany
            return [by_id[each] for each in ids if each in by_id]

        try:
            return shown(memory.view(ctx.now), indexed, Ends(entities, facts))
        except _TooMany:
            pass
    moment = None if as_of is None else memory.moment(as_of, None, ctx.now)
    now = memory.view(ctx.now)
    ends = Ends(entities.still() if entities is not None else None, facts)

    def walk() -> list[dict[str, Any]]:
        view = now if moment is None else joined(moment)
        around: dict[Node, list[int]] = {}
        for slot in fact_slots(view).tolist():
            for node in ends.of(view.facts[slot]):
                around.setdefault(node, []).append(slot)
        return shown(view, lambda node: around.get(node, ()), ends)

    rows = now.n if moment is None else moment.rows
    return ctx.server.workers.submit(memory, rows * 3000, walk, ctx.proto)


class _TooMany(Exception):
    """More facts than the loop should look at."""


class Ends:
    """What facts connect; for a thread, by the names of a moment that `Entities.still` holds."""

    def __init__(self, entities: Entities | None, facts: FactIndex | None) -> None:
        self._entities = entities
        self._facts = facts
        self._known: dict[tuple[bytes, bytes], Node] = {}

    def of(self, fact: Fact | None) -> set[Node]:
        assert fact is not None
        return {self._node(fact.subject, b""), self._node(fact.object, fact.entity_type)}

    def _node(self, name: bytes, entity_type: bytes) -> Node:
        node = self._known.get((name, entity_type))
        if node is None:
            node = self._known[name, entity_type] = node_of(self._entities, self._facts, name, entity_type)
        return node


def _breadth_first(
    view: View, start: Node, depth: int, limit: int, around: Callable[[Node], Iterable[int]], ends: Ends
) -> list[tuple[int, int]]:
    """(slot, depth) of the first `limit` facts: those of a depth by confidence, later valid_at, smaller id."""
    frontier, reached = {start}, {start}
    shown: set[int] = set()
    found: list[tuple[int, int]] = []
    for level in range(1, depth + 1):
        slots = {slot for node in frontier for slot in around(node)} - shown
        rows = [fact_row(view, slot) for slot in slots]
        rows.sort(key=lambda row: (-row.confidence, -row.valid_at, row.id))
        found += [(row.slot, level) for row in rows[: limit - len(found)]]
        if len(found) == limit:
            break
        shown |= slots
        frontier = {node for row in rows for node in ends.of(row.fact)} - reached
        reached |= frontier
    return found
