"""The entities of one memory: what the objects of its facts are, under one name each.

Rule 1: names and aliases are stripped and lower-cased. A name is unique within its type, and so is an alias, which is
        no name of that type either; types never merge.
Rule 2: vectors are float32 unit vectors and compared by cosine, whatever the memory's metric.
Rule 3: an entity's number is its place in the order of coming. It counts up here and is written nowhere, so only the
        order of numbers survives a rewrite; nothing may depend on more.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from immutables import Map

from .names import Names, NamesView
from .vectors import cosines

Floats = npt.NDArray[np.float64]
Floats32 = npt.NDArray[np.float32]
Int64s = npt.NDArray[np.int64]

#: How many other names one entity may be given; each change of it writes them all.
ALIASES_MAX = 1000
# More than any type has.
_TYPE_BYTES = 64
TYPES = (
    b"PERSON",
    b"ORG",
    b"PLACE",
    b"PRODUCT",
    b"SKILL",
    b"TOPIC",
    b"EVENT",
    b"FOOD",
    b"ROLE",
    b"CONCEPT",
    b"THING",
    b"DATE",
)

_FIRST_ROWS = 8
# Rows compared at a time: 4096 x 384 float32 are 6 MB.
_STEP = 4096
# A float32 dot product of unit vectors of 65 536 numbers is this close to the exact one: n * 2**-24, with room.
_DOT_ERROR = 65_536 * 2.0**-23


class Entity(NamedTuple):
    """`vector` is float32 bytes, b"" for none; `number` is 0 in one that is not stored yet."""

    number: int
    name: bytes
    type: bytes
    aliases: tuple[bytes, ...]
    created_at: int
    vector: bytes


class Resolved(NamedTuple):
    """What a name means: the entity as it is to become, and how it was found: exact, alias, similar or created."""

    entity: Entity
    how: str


class _Vectors:
    """The vectors of one type's entities. Rows below `n` never change, so a reader keeps (rows, numbers, n)."""

    __slots__ = ("n", "numbers", "rows")

    def __init__(self, dim: int) -> None:
        self.n = 0
        self.rows: Floats32 = np.empty((_FIRST_ROWS, dim), np.float32)
        self.numbers: Int64s = np.empty(_FIRST_ROWS, np.int64)

    def add(self, number: int, vector: bytes) -> None:
        if self.n == len(self.numbers):
            rows, numbers = self.rows, self.numbers
            self.rows = np.empty((2 * self.n, rows.shape[1]), np.float32)
            self.numbers = np.empty(2 * self.n, np.int64)
            self.rows[: self.n], self.numbers[: self.n] = rows, numbers
        self.rows[self.n] = np.frombuffer(vector, "<f4")
        self.numbers[self.n] = number
        self.n += 1

    def remove(self, number: int) -> None:
        # New arrays, for the readers' sake. Entities go in merges alone.
        keep = np.flatnonzero(self.numbers[: self.n] != number)
        self.n = len(keep)
        self.rows = np.concatenate((self.rows[keep], np.empty((_FIRST_ROWS, self.rows.shape[1]), np.float32)))
        self.numbers = np.concatenate((self.numbers[keep], np.empty(_FIRST_ROWS, np.int64)))

    def freeze(self) -> VectorsView:
        return VectorsView(self.rows, self.numbers, self.n)

    def copy(self) -> _Vectors:
        twin = _Vectors(self.rows.shape[1])
        twin.n, twin.rows, twin.numbers = self.n, self.rows.copy(), self.numbers.copy()
        return twin


class VectorsView(NamedTuple):
    """Vectors of some entities at one moment: float32 (capacity, dim), int64 (capacity,), how many."""

    rows: Floats32
    numbers: Int64s
    n: int

    def nearest(self, vector: Floats, k: int, at_least: float) -> list[tuple[int, float]]:
        """The entities (number, cosine) with cosine >= `at_least`, each of them that may be among the `k` nearest;
        `vector` is a float64 unit vector (dim,). Exact: float32 only rules out."""
        if not self.n or k < 1:
            return []
        query = vector.astype(np.float32)
        rough = np.concatenate([self.rows[at : min(at + _STEP, self.n)] @ query for at in range(0, self.n, _STEP)])
        bar = at_least
        if k < self.n:
            bar = max(bar, float(np.partition(rough, self.n - k)[self.n - k]) - _DOT_ERROR)
        kept = np.flatnonzero(rough >= bar - _DOT_ERROR)
        exact: list[tuple[int, float]] = []
        for at in range(0, len(kept), _STEP):
            rows = kept[at : at + _STEP]
            found = cosines(self.rows[rows], vector)
            exact += [
                (number, value)
                for number, value in zip(self.numbers[rows].tolist(), found.tolist(), strict=True)
                if value >= at_least
            ]
        return exact


class EntityView:
    """The entities at one moment, for any thread: their names and vectors."""

    __slots__ = ("_vectors", "names")

    def __init__(self, names: NamesView, vectors: tuple[VectorsView, ...]) -> None:
        self.names = names
        self._vectors = vectors

    @property
    def vector_count(self) -> int:
        return sum(vectors.n for vectors in self._vectors)

    def nearest(self, vector: Floats, k: int, at_least: float) -> list[tuple[int, float]]:
        """The `k` nearest (number, cosine), the nearest first, then the smaller number; `vector` is a float64 unit
        vector (dim,)."""
        return sorted(self.near(vector, k, at_least), key=lambda pair: (-pair[1], pair[0]))[:k]

    def near(self, vector: Floats, k: int, at_least: float) -> list[tuple[int, float]]:
        """The same and some more: each that fewer than `k` are nearer than."""
        return [pair for vectors in self._vectors for pair in vectors.nearest(vector, k, at_least)]


class Entities:
    """The entities of a memory. `version` counts the changes, `len()` the entities."""

    __slots__ = ("_aliases", "_by_number", "_named", "_next", "_sorted", "_vectors", "names", "version")

    def __init__(self) -> None:
        self.version = 0
        self.names = Names()
        self._next = 1
        # Replaced by each change, which shares all but a few nodes with the one before: a reader keeps its own.
        self._by_number: Map[int, Entity] = Map()
        self._named: Map[tuple[bytes, bytes], int] = Map()  # (name, type) -> number
        self._aliases: Map[tuple[bytes, bytes], int] = Map()  # (alias, type) -> number
        self._vectors: dict[bytes, _Vectors] = {}  # by type
        # (name, type) in order, by type and b"" for all; None until a page is asked for.
        self._sorted: dict[bytes, list[tuple[bytes, bytes]]] | None = None

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Entity]:
        """All, in the order of coming."""
        return iter(sorted(self._by_number.values()))

    # -- reading

    def numbered(self, number: int) -> Entity | None:
        """The entity of a number, None where it has gone."""
        return self._by_number.get(number)

    def get(self, name: bytes, entity_type: bytes) -> Entity | None:
        """The entity of exactly this name."""
        number = self._named.get((name, entity_type))
        return None if number is None else self._by_number[number]

    def lookup(self, name: bytes, entity_type: bytes = b"") -> list[tuple[Entity, str]]:
        """Who bears the name, those whose name it is ("exact") before those whose alias it is ("alias"), each in the
        order of numbers; of all types where `entity_type` is b""."""
        types = (entity_type,) if entity_type else TYPES
        found: list[tuple[Entity, str]] = []
        for table, how in ((self._named, "exact"), (self._aliases, "alias")):
            numbers = [number for each in types if (number := table.get((name, each))) is not None]
            found += [(self._by_number[number], how) for number in sorted(numbers)]
        return found

    def page(self, entity_type: bytes, offset: int, limit: int) -> tuple[int, list[Entity]]:
        """How many there are of a type, b"" for all, and a stretch of them by name, then type."""
        if self._sorted is None:
            keys = sorted(self._named, key=itemgetter(1))
            keys.sort(key=itemgetter(0))  # by name, then type: half the time that comparing pairs takes
            self._sorted = {b"": keys} | {each: [] for each in TYPES}
            for key in keys:
                self._sorted[key[1]].append(key)
        keys = self._sorted[entity_type]
        return len(keys), [self._by_number[self._named[key]] for key in keys[offset : offset + limit]]

    def vector_count(self, entity_type: bytes) -> int:
        """How many entities of the type have a vector."""
        vectors = self._vectors.get(entity_type)
        return 0 if vectors is None else vectors.n

    def nearest(self, vector: Floats, entity_type: bytes, k: int, at_least: float) -> list[tuple[Entity, float]]:
        """The `k` nearest by cosine, of all types where `entity_type` is b"", the nearest first, then the smaller name
        and type; `vector` is a float64 unit vector (dim,)."""
        views = [self._vectors[entity_type]] if entity_type in self._vectors else []
        if not entity_type:
            views = list(self._vectors.values())
        found = [pair for view in views for pair in view.freeze().nearest(vector, k, at_least)]
        return self._nearest_first(found)[:k]

    def _nearest_first(self, found: list[tuple[int, float]]) -> list[tuple[Entity, float]]:
        pairs = [(self._by_number[number], value) for number, value in found]
        return sorted(pairs, key=lambda pair: (-pair[1], pair[0].name, pair[0].type))

    def search(self, entity_type: bytes) -> VectorsView:
        """The vectors of a type, for a thread to look for the nearest in; it has some."""
        return self._vectors[entity_type].freeze()

    def resolve(
        self,
        name: bytes,
        entity_type: bytes,
        vector: bytes,
        threshold: float,
        at: int,
        near: list[tuple[int, float]] | None = None,
    ) -> Resolved:
        """What `name` means as an `entity_type`: the entity of that name, that alias, or with a vector the nearest one
        with similarity >= `threshold` (the name becomes its alias, unless it has ALIASES_MAX), else a new one created
        at `at`.

        `vector` is float32 bytes of a unit vector, b"" for none; one without a vector gets it. `near` is what
        `search(entity_type).nearest` found, where a thread did it. Changes nothing.
        """
        for entity, how in self.lookup(name, entity_type):
            return Resolved(_with_vector(entity, vector), how)
        if vector:
            if near is None:
                found = self.nearest(np.frombuffer(vector, "<f4").astype(np.float64), entity_type, 1, threshold)
            else:
                found = self._nearest_first(near)
            if found and len(found[0][0].aliases) < ALIASES_MAX:
                entity = found[0][0]
                return Resolved(entity._replace(aliases=(*entity.aliases, name)), "similar")
        return Resolved(Entity(0, name, entity_type, (), at, vector), "created")

    def freeze(self) -> EntityView:
        """This moment, for readers; some microseconds."""
        return EntityView(self.names.view(), tuple(each.freeze() for each in self._vectors.values()))

    def still(self) -> Entities:
        """Who bears which name at this moment, for a thread to ask for by `lookup`, `get` and `numbered`, and to
        iterate, nothing else; some microseconds."""
        twin = Entities()
        twin._by_number, twin._named, twin._aliases = self._by_number, self._named, self._aliases
        return twin

    # -- changing

    def put(self, entity: Entity) -> None:
        """The entity of this name and type becomes exactly this; its number is its own, or the next."""
        self.version += 1
        key = (entity.name, entity.type)
        number = self._named.get(key)
        old_aliases: tuple[bytes, ...] = ()
        old_vector = b""
        if number is None:
            number = self._next
            self._named = self._named.set(key, number)
            self._next += 1
            self.names.add(entity.name, number)
            if self._sorted is not None:
                insort(self._sorted[b""], key)
                insort(self._sorted[entity.type], key)
        else:
            old = self._by_number[number]
            old_aliases, old_vector = old.aliases, old.vector
        stay = set(old_aliases).intersection(entity.aliases)
        for alias in old_aliases:
            if alias not in stay:
                self._aliases = self._aliases.delete((alias, entity.type))
                self.names.remove(alias, number)
        for alias in entity.aliases:
            if alias not in stay:
                self._aliases = self._aliases.set((alias, entity.type), number)
                self.names.add(alias, number)
        if entity.vector != old_vector:
            vectors = self._vectors.get(entity.type)
            if old_vector and vectors is not None:
                vectors.remove(number)
            if entity.vector:
                if vectors is None:
                    vectors = self._vectors[entity.type] = _Vectors(len(entity.vector) // 4)
                vectors.add(number, entity.vector)
        self._by_number = self._by_number.set(number, entity._replace(number=number))

    def drop(self, name: bytes, entity_type: bytes) -> None:
        """The entity of this name, which is there, goes with its aliases."""
        self.version += 1
        number = self._named[name, entity_type]
        entity = self._by_number[number]
        self._named = self._named.delete((name, entity_type))
        self._by_number = self._by_number.delete(number)
        self.names.remove(name, number)
        if self._sorted is not None:
            for keys in (self._sorted[b""], self._sorted[entity_type]):
                del keys[bisect_left(keys, (name, entity_type))]
        for alias in entity.aliases:
            self._aliases = self._aliases.delete((alias, entity_type))
            self.names.remove(alias, number)
        if entity.vector:
            self._vectors[entity_type].remove(number)

    @property
    def bare(self) -> int:
        """How many have no vector."""
        return len(self._by_number) - sum(vectors.n for vectors in self._vectors.values())

    def drop_vectors(self) -> None:
        """None has a vector any more, and the next ones may be of another width."""
        self.version += 1
        self._vectors = {}
        for entity in [each for each in self if each.vector]:
            self._by_number = self._by_number.set(entity.number, entity._replace(vector=b""))

    def copy(self) -> Entities:
        """An independent twin."""
        twin = Entities()
        twin.version, twin._next = self.version, self._next
        twin.names = self.names.copy()
        twin._by_number, twin._named, twin._aliases = self._by_number, self._named, self._aliases
        twin._vectors = {entity_type: vectors.copy() for entity_type, vectors in self._vectors.items()}
        return twin

    @classmethod
    def of(cls, entities: Iterable[Entity]) -> Entities:
        """These, in their order."""
        made = cls()
        for entity in entities:
            made.put(entity)
        return made

    def objects(self) -> list[list[Any]]:
        """What takes long to free, in lists of its own."""
        return [list(self._by_number.values()), list(self._named), list(self._aliases)]

    def nbytes(self, part: float) -> int:
        """About how many bytes this takes, `part` of the entities being its own: a copy has the same."""
        vectors = sum(each.rows.nbytes + each.numbers.nbytes for each in self._vectors.values())
        objects = 430 * len(self._by_number) + 130 * len(self._aliases)
        return vectors + self.names.nbytes(part) + int(objects * part)


def entity_name(word: bytes) -> bytes:
    """A name as entities are known by: stripped, lower-cased; bytes that are no UTF-8 stay as they are."""
    if word.isascii():
        return word.strip().lower()
    return word.decode("utf-8", "surrogateescape").strip().lower().encode("utf-8", "surrogateescape")


def type_named(word: bytes) -> bytes:
    """The entity type that a word means: one of TYPES in any case, else THING."""
    upper = word.strip()[:_TYPE_BYTES].upper()
    return upper if upper in TYPES else b"THING"


def _with_vector(entity: Entity, vector: bytes) -> Entity:
    return entity._replace(vector=vector) if vector and not entity.vector else entity
