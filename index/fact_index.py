"""Which facts say the same, and which touch an entity: ids of the current facts of one memory, valid or not.

A fact *touches* an entity where its object is it (stated with a TYPE: the entity of that type whose name it is, or its
alias since a merge), or where its subject or untyped object is one of the entity's names and that name, without a type,
means it: its only entity, else the most used (`meant`).
What is no entity's name is a node by itself, so that facts about it hang together too.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getsizeof
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from .entities import TYPES, Entities, Entity, entity_name

if TYPE_CHECKING:
    from .side import Fact

T = TypeVar("T")
_NEVER = 1 << 62

#: An entity's number, or a name that is no entity's.
Node = int | bytes


class Key(NamedTuple):
    """Of facts that agree in this, one is not invalidated; typed objects of two types are two things, though."""

    subject: bytes
    predicate: bytes
    object: bytes
    valid_until: int


class _Said(NamedTuple):
    id: bytes
    type: bytes  # of the object, b"" for none
    invalid_at: int


#: Ids of facts in order, each once. A few are a tuple: most names are those of a few facts, and tuples take less and
#: cost nothing to copy.
_Ids = tuple[bytes, ...] | dict[bytes, None]
_FEW = 8


class FactIndex:
    """Facts by what they say and by what they are about."""

    __slots__ = ("_about", "_said", "_typed")

    def __init__(self) -> None:
        self._said: dict[Key, tuple[_Said, ...]] = {}
        self._about: dict[bytes, _Ids] = {}  # by name of subject or untyped object
        self._typed: dict[tuple[bytes, bytes], _Ids] = {}  # by typed object

    # -- reading

    def same(self, key: Key, entity_type: bytes, now: int, besides: bytes | None = None) -> bytes | None:
        """The fact, other than `besides`, that says so and is not invalidated by `now`: of the type, else of none (an
        untyped object and a typed one of that name are one thing), and then the smallest id."""
        found = [
            (said.type != entity_type, said.id)
            for said in self._said.get(key, ())
            if said.invalid_at > now and said.id != besides and one_thing(said.type, entity_type)
        ]
        return min(found)[1] if found else None

    def saying(self, key: Key, now: int) -> list[bytes]:
        """The ids of all facts of this key that are not invalidated by `now`, whatever their type."""
        return [said.id for said in self._said.get(key, ()) if said.invalid_at > now]

    def used(self, entity: Entity) -> int:
        """How many facts have it as their object by its type."""
        return len(self._typed.get((entity.name, entity.type), ()))

    def about(self, entity: Entity) -> int:
        """How many facts may touch it, at most, once for each of its names and for its type."""
        names = (entity.name, *entity.aliases)
        return sum(len(self._about.get(name, ())) + len(self._typed.get((name, entity.type), ())) for name in names)

    def touching(self, node: Node, entities: Entities | None) -> list[bytes]:
        """The ids of the facts that touch `node`, each once."""
        if isinstance(node, bytes):
            found = dict.fromkeys(self._about.get(node, ()))
            for each in TYPES:  # an object may be typed without its entity being there: a payload may say so
                if (node, each) in self._typed and (entities is None or not entities.lookup(node, each)):
                    found.update(dict.fromkeys(self._typed[node, each]))
            return list(found)
        entity = entities.numbered(node) if entities is not None else None
        if entity is None:
            return []
        found = {}
        for name in (entity.name, *entity.aliases):
            found.update(dict.fromkeys(self._typed.get((name, entity.type), ())))
            about = self._about.get(name)
            if about and meant(entities, self, name) == entity:
                found.update(dict.fromkeys(about))
        return list(found)

    # -- changing

    def add(self, record_id: bytes, fact: Fact, valid_until: int, invalid_at: int) -> None:
        """A current fact begins to be there. `invalid_at` is NEVER for none."""
        key = Key(fact.subject, fact.predicate, fact.object, valid_until)
        self._said[key] = (*self._said.get(key, ()), _Said(record_id, fact.entity_type, invalid_at))
        for place, name in _places(self, fact):
            ids = place.get(name, ())
            if isinstance(ids, dict):
                ids[record_id] = None
            elif record_id not in ids:
                place[name] = (*ids, record_id) if len(ids) < _FEW else dict.fromkeys((*ids, record_id))

    def remove(self, record_id: bytes, fact: Fact, valid_until: int) -> None:
        """It is there no more; `fact` and `valid_until` are what `add` was told."""
        key = Key(fact.subject, fact.predicate, fact.object, valid_until)
        left = tuple(said for said in self._said[key] if said.id != record_id)
        if left:
            self._said[key] = left
        else:
            del self._said[key]
        for place, name in _places(self, fact):
            ids = place.get(name, ())  # subject and object may be one name
            if isinstance(ids, dict):
                ids.pop(record_id, None)
            else:
                place[name] = ids = tuple([each for each in ids if each != record_id])
            if not ids:
                del place[name]

    def copy(self) -> FactIndex:
        """An independent twin."""
        twin = FactIndex()
        twin._said = dict(self._said)
        twin._about, twin._typed = _copied(self._about), _copied(self._typed)
        return twin

    def objects(self) -> list[list[Any]]:
        """What takes long to free, in lists of its own."""
        places: tuple[dict[Any, Any], ...] = (self._said, self._about, self._typed)
        return [each for place in places for each in (list(place), list(place.values()))]

    def nbytes(self, part: float) -> int:
        """About how many bytes this takes, `part` of the tuples being its own: a copy has the same."""
        objects = 250 * len(self._said) + 110 * len(self._about) + 180 * len(self._typed)
        return int(objects * part) + sum(map(getsizeof, (self._said, self._about, self._typed)))


def _copied(places: dict[T, _Ids]) -> dict[T, _Ids]:
    twin = dict(places)
    for name, ids in places.items():
        if type(ids) is dict:
            twin[name] = ids.copy()
    return twin


def one_thing(entity_type: bytes, other: bytes) -> bool:
    """Whether objects of one name are one thing: unless they are of two types."""
    return entity_type == other or not (entity_type and other)


def _places(index: FactIndex, fact: Fact) -> list[tuple[dict, object]]:  # type: ignore[type-arg]
    if fact.entity_type:
        return [(index._about, fact.subject), (index._typed, (fact.object, fact.entity_type))]
    return [(index._about, fact.subject), (index._about, entity_name(fact.object))]


def meant(entities: Entities | None, facts: FactIndex | None, name: bytes) -> Entity | None:
    """The entity that a name means without a type: of those of that name, else of those with that alias, the one that
    most facts use, then the smaller number."""
    if entities is None:
        return None
    return most_used(entities.lookup(name), facts.used if facts is not None else lambda _: 0)


def most_used(found: list[tuple[Entity, str]], used: Callable[[Entity], int]) -> Entity | None:
    """The one of a name's bearers (Entities.lookup) that it means."""
    if len(found) < 2:
        return found[0][0] if found else None
    best = [entity for entity, how in found if how == found[0][1]]
    return min(best, key=lambda entity: (-used(entity), entity.number))


def node_of(entities: Entities | None, facts: FactIndex | None, name: bytes, entity_type: bytes = b"") -> Node:
    """What a subject or object stands for: an entity's number, else the name itself."""
    name = entity_name(name)
    if entity_type:
        found = entities.lookup(name, entity_type) if entities is not None else []
        entity = found[0][0] if found else None
    else:
        entity = meant(entities, facts, name)
    return name if entity is None else entity.number
