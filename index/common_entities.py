"""The entities of the memories that a recall covers, as those of one memory: a name and type is one entity everywhere.

It has the aliases of all of them, in the order of the memories, and is as old as the oldest. Its number is that of the
first memory that has it, behind those of all memories before; so of equals the first memory's comes first, and one
memory's entities keep the order, and the numbers, that they have there.

What several memories have is put together when it is first asked for, a microsecond or two an entity: for a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .entities import Entities, Entity, EntityView
from .fact_index import FactIndex, most_used
from .names import NamesView, first_words
from .names import joined as joined_names

Floats = npt.NDArray[np.float64]

# Numbers count up by one, and there are fewer than this in a memory's life.
_PLACE = 40


class Held(NamedTuple):
    """One memory's entities at a moment: `still` and `frozen` are what Entities gives readers."""

    still: Entities
    frozen: EntityView
    facts: FactIndex | None
    vectors: bool  # whether theirs can be compared with the query's


class CommonEntities:
    """The entities of some memories; of none it knows none."""

    def __init__(self, held: Sequence[Held]) -> None:
        self._held = held
        self._meant: dict[bytes, Entity | None] = {}

    @property
    def memories(self) -> int:
        """Of how many memories."""
        return len(self._held)

    @property
    def vector_count(self) -> int:
        """How many vectors `nearest` looks at."""
        return sum(each.frozen.vector_count for each in self._held if each.vectors)

    def numbered(self, number: int) -> Entity:
        """The entity of a number that was got here."""
        entity = self._bearers.numbered(number)
        assert entity is not None  # what the memories give readers is of one moment
        return entity

    def lookup(self, name: bytes, entity_type: bytes = b"") -> list[tuple[Entity, str]]:
        """Who bears the name, as Entities.lookup says it."""
        return self._bearers.lookup(name, entity_type)

    def meant(self, name: bytes) -> Entity | None:
        """The entity that a name means without a type, by the facts of all memories."""
        if name not in self._meant:
            self._meant[name] = most_used(self.lookup(name), self._used)
        return self._meant[name]

    def named_by(self, text: bytes, max_words: int) -> list[int]:
        """The numbers of those that the first `max_words` words of a text name."""
        return self.named_in(list(first_words(text, max_words))) if self._held else []

    def named_in(self, text_words: Sequence[str]) -> list[int]:
        """The same of a text's words."""
        return self._names.find_in(text_words)

    def nearest(self, vector: Floats, k: int, at_least: float) -> list[tuple[int, float]]:
        """As EntityView.nearest; an entity is as near as the nearest of its vectors."""
        best: dict[int, float] = {}
        for place, each in enumerate(self._held):
            # None that is left out is among the k nearest of all: k entities of one memory are nearer.
            for number, cosine in each.frozen.near(vector, k, at_least) if each.vectors else ():
                common = self._bearers.number(place, number) if isinstance(self._bearers, _Joined) else number
                best[common] = max(cosine, best.get(common, cosine))
        return sorted(best.items(), key=lambda pair: (-pair[1], pair[0]))[:k]

    def _used(self, entity: Entity) -> int:
        return sum(each.facts.used(entity) for each in self._held if each.facts is not None)

    @cached_property
    def _bearers(self) -> Entities | _Joined:
        if len(self._held) > 1:
            return _Joined([each.still for each in self._held])
        return self._held[0].still if self._held else Entities()

    @cached_property
    def _names(self) -> NamesView:
        views = [each.frozen.names for each in self._held]
        return joined_names(views, self._bearers.number) if isinstance(self._bearers, _Joined) else views[0]


class _Joined:
    """Several memories' entities by their common numbers and by what they are called."""

    def __init__(self, memories: Iterable[Entities]) -> None:
        common: dict[tuple[bytes, bytes], Entity] = {}  # by name and type
        self._numbers: dict[int, int] = {}
        for place, entities in enumerate(memories):
            for entity in entities:
                own = (place << _PLACE) + entity.number
                known = common.get((entity.name, entity.type))
                if known is None:
                    known = entity._replace(number=own)
                else:
                    aliases = tuple(dict.fromkeys((*known.aliases, *entity.aliases)))
                    known = known._replace(aliases=aliases, created_at=min(known.created_at, entity.created_at))
                common[entity.name, entity.type] = known
                self._numbers[own] = known.number
        self._by_number: dict[int, Entity] = {}
        self._exact: dict[bytes, list[Entity]] = {}  # each in the order of numbers, as `common` is
        self._alias: dict[bytes, list[Entity]] = {}
        for entity in common.values():
            self._by_number[entity.number] = entity
            self._exact.setdefault(entity.name, []).append(entity)
            for alias in entity.aliases:
                self._alias.setdefault(alias, []).append(entity)

    def number(self, place: int, number: int) -> int:
        """The common number of an entity of one memory."""
        return self._numbers[(place << _PLACE) + number]

    def numbered(self, number: int) -> Entity | None:
        return self._by_number.get(number)

    def lookup(self, name: bytes, entity_type: bytes = b"") -> list[tuple[Entity, str]]:
        return [
            (entity, how)
            for table, how in ((self._exact, "exact"), (self._alias, "alias"))
            for entity in table.get(name, ())
            if entity.type == entity_type or not entity_type
        ]
