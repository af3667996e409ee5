"""Recall: the facts that a query needs, by three signals fused, and the episodes near it.

    vector    by similarity to the query
    anchor    what touches the entities that the query names, or that are near its vector, by (entity's match,
              confidence, later valid_at); behind all of them what touches an entity that one of those facts names
    keyword   by BM25, with the memory's own statistics
    score     the sum of 1 / (60 + rank) over the signals that a fact has, equals sharing the best rank; then higher
              confidence, later valid_at, smaller key of several memories', smaller id

Candidates are the facts that show and have the least confidence asked for. Ranks are exact (ranking.py, rrf.py): there
is no window of candidates. `plan` fixes the moment on the loop; `run` is for a thread, one at a time per memory.
Under ASOF, too, names mean what they mean today: MERGE moves facts. Several memories are one (cascade.py), and so are
their entities (common_entities.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from . import cascade, rrf
from .common_entities import CommonEntities, Held
from .entities import Entity
from .fact_columns import FactPart
from .filters import Clause
from .matches import Plan
from .memory import Memory
from .query import Query
from .ranking import Ranking
from .ranking import run as run_query
from .scan import scan
from .side import CONFIDENCE, FACT, FLAGS, KIND, VALID_AT, Fact
from .vectors import normalised
from .view import View

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

RRF_K = 60
_SIGNALS = (("vector", 1.0), ("anchor", 1.0), ("keyword", 1.0))
_EPISODES = Clause("@kind", b"", "EQ", (b"episode",))
# In float operations of a scan, of which a microsecond has some 5000: to find the names in a fact, and to show one.
_NAMES_COST = 35_000
_SHOWN_COST = 10_000
# And to find what touches a named entity, and the names in a byte of the query.
_NAMED_COST = 10_000
_BYTE_COST = 500
# Names are found on the loop in a query of so many bytes at most; in longer ones that may take milliseconds.
_SHORT_TEXT = 4096


@dataclass(slots=True)
class Recall:
    """What is asked. `vector` is float64 of shape (dim,), a unit vector under COSINE; without it and `text` the most
    recent facts are. `recent` asks for them where nothing matched, too."""

    text: bytes | None = None
    vector: Floats | None = None
    facts: int = 8
    episodes: int = 0
    min_confidence: float = 0.5
    anchor_top_k: int = 3
    anchor_min: float = 0.75
    as_of: int | None = None
    recent: bool = False
    max_scan: int = 1 << 62
    max_terms: int = 1 << 62


class RecallHit(NamedTuple):
    """A fact: score and ranks are None where there is no query, a rank where the fact lacks the signal. `anchor` is
    what it is about: its object where that is an entity, else its subject; None where that is none."""

    slot: int
    anchor: Entity | None
    score: float | None = None
    vector_rank: int | None = None
    anchor_rank: int | None = None
    keyword_rank: int | None = None


@dataclass(slots=True)
class RecallPlan:
    """A recall and the moment it sees."""

    plan: Plan
    asked: Recall
    named: list[int] | None  # the entities that the query names; None: the thread finds them
    entities: CommonEntities

    @property
    def cost(self) -> int:
        """About how many float operations it takes, to choose between the loop and a thread."""
        asked = self.asked
        rows = self.plan.view.n if self.plan.moment is None else self.plan.moment.rows
        near = 0 if asked.vector is None else self.entities.vector_count
        cost = self.plan.cost + rows * (500 if self.named == [] and not near else _NAMES_COST)
        cost += min(rows, asked.facts + asked.episodes) * _SHOWN_COST
        cost += len(asked.text or b"") * _BYTE_COST if self.named is None else len(self.named) * _NAMED_COST
        return cost + (0 if asked.vector is None else near * len(asked.vector))


@dataclass(slots=True)
class Recalled:
    """What was found, best first; slots are of `view`."""

    view: View
    facts: list[RecallHit]
    episodes: list[int]
    graph: Graph


def plan(members: Mapping[bytes, Memory], asked: Recall, now: int) -> RecallPlan:
    """Fix what `asked` sees of these memories, by their keys; the first is the one that was named."""
    memory = next(iter(members.values()))
    query = Query(
        text=asked.text if memory.settings.has_text else None,
        vector=asked.vector,
        fusion="RRF",
        rrf_k=RRF_K,
        as_of=asked.as_of,
        max_scan=asked.max_scan,
        max_terms=asked.max_terms,
    )
    others = [members[key] for key in sorted(members) if members[key] is not memory]
    held = [
        Held(
            each.entities.still(),
            each.entities.freeze(),
            each.facts,
            cascade.comparable(each.settings, memory.settings),
        )
        for each in (memory, *others)
        if each.entities is not None
    ]
    entities = CommonEntities(held)
    at_once = len(asked.text or b"") <= _SHORT_TEXT and entities.memories < 2
    named = entities.named_by(asked.text or b"", asked.max_terms) if at_once else None
    return RecallPlan(cascade.plan(members, query, now), asked, named, entities)


def with_vector(planned: RecallPlan, vector: Floats) -> RecallPlan:
    """The same recall, its text's vector made since: float64 of shape (dim,), a unit vector under COSINE."""
    plan = replace(planned.plan, query=replace(planned.plan.query, vector=vector))
    return replace(planned, plan=plan, asked=replace(planned.asked, vector=vector))


def run(planned: RecallPlan) -> Recalled:
    """Recall; raises BadMemory where that takes more than the limits allow."""
    plan, asked = planned.plan.settled(), planned.asked
    view = plan.view
    graph = Graph(planned, view)
    found: list[RecallHit] = []
    candidates = graph.shown & (graph.confidence >= asked.min_confidence)
    if asked.facts and candidates.any():
        queried = asked.text is not None or asked.vector is not None
        if queried:
            found = _ranked(plan, graph, candidates, graph.anchor_ranks(candidates))
        if not found and (asked.recent or not queried):
            slots = np.flatnonzero(candidates)
            keys = (graph.valid_at[slots], graph.confidence[slots])
            best = _best(view, slots, keys, asked.facts)
            found = [RecallHit(slot, graph.anchor(slot)) for slot in slots[best].tolist()]
    return Recalled(view, found, _episodes(plan, asked), graph)


def _ranked(plan: Plan, graph: Graph, candidates: Bools, anchor_ranks: Floats) -> list[RecallHit]:
    ranking = _RecallRanking(plan, candidates, anchor_ranks)
    if not ranking.m:
        return []
    if ranking.scans:
        assert ranking.vector is not None
        ranking.take_scan(scan(ranking.view, [ranking.vector])[0])
    count = graph.planned.asked.facts
    part = rrf.candidates(ranking, None, count)
    slots: Int64s = ranking.slots_at(part["places"])
    best = _best(plan.view, slots, (part["score"], graph.confidence[slots], graph.valid_at[slots]), count)
    scores, ranks = part["score"][best].tolist(), part["ranks"]
    columns = [_ranks_at(ranks.get(name), best) for name, _ in _SIGNALS]
    return [
        RecallHit(slot, graph.anchor(slot), score, *row)
        for slot, score, row in zip(slots[best].tolist(), scores, zip(*columns, strict=True), strict=True)
    ]


def _ranks_at(ranks: Floats | None, places: list[int]) -> list[int | None]:
    if ranks is None:
        return [None] * len(places)
    return [None if rank != rank else int(rank) for rank in ranks[places].tolist()]


class _RecallRanking(Ranking):
    """Facts by three signals of equal weight, of which "anchor" is ready-made: ranks (n,), nan for none."""

    def __init__(self, plan: Plan, candidates: Bools, anchor_ranks: Floats) -> None:
        self._eligible = candidates
        self._anchor_ranks = anchor_ranks
        super().__init__(plan)
        self.ranked_by = _SIGNALS
        self.anchor_s = self.column(anchor_ranks)

    def _match(self) -> None:
        """A candidate matches by any of the three."""
        self.bounds = None
        self.best_keyword = 0.0  # nothing is scaled by it
        self.keyword_s = None
        matched = ~np.isnan(self._anchor_ranks)
        if self.words is not None:
            self.keyword_s = self.words.scores()
            matched |= self.keyword_s > 0.0
        if self.vector is not None:
            matched |= self.view.vrow >= 0
        matched &= self._eligible
        self.slots = np.flatnonzero(matched)
        self.m = self.matched = len(self.slots)
        self.filtered = 0
        if self.keyword_s is not None:
            self.keyword_s = self.keyword_s[self.slots]

    def scores(self, places: Int64s, fusion: str) -> dict[str, Any]:
        sims = self.similarity(places)
        ranks = rrf.exact_ranks(self, places, sims, weighed=True)
        parts = np.zeros((len(_SIGNALS), len(places)))
        for part, (name, weight) in zip(parts, _SIGNALS, strict=True):
            if name in ranks:
                part[:] = np.where(np.isnan(ranks[name]), 0.0, weight / (RRF_K + ranks[name]))
        # The smallest first, so that the same ranks are the same score to the bit, whichever signals they are by.
        parts.sort(axis=0)
        score = np.zeros(len(places))
        for part in parts:
            score += part
        return {"places": places, "ranks": ranks, "score": score}


def _best(view: View, slots: Int64s, keys: Sequence[npt.NDArray[Any]], count: int) -> list[int]:
    """The places of the first `count` of `slots`: by each of `keys`, the greatest first, then by the smaller key and
    id."""
    order = np.lexsort(tuple(-key for key in reversed(keys)))
    if count < len(order):
        # All that equal the last one stay in: their ids decide.
        equal = np.logical_and.reduce([key[order] == key[order[count - 1]] for key in keys])
        equal[:count] = True
        order = order[equal]
    names = [(view.key(slot) or b"", view.ids[slot]) for slot in slots[order].tolist()]
    columns = [(-key[order]).tolist() for key in keys]
    rows = sorted(zip(*columns, names, order.tolist(), strict=True))
    return [row[-1] for row in rows[:count]]


def _episodes(plan: Plan, asked: Recall) -> list[int]:
    """The slots of the nearest episodes: by vector where the query and one of them have any, else by words; without
    a query the newest."""
    if not asked.episodes or plan.view.side is None:
        return []
    query = replace(plan.query, top_k=asked.episodes, filters=[_EPISODES], counts=False)
    found: list[int] = []
    if asked.vector is not None:
        nearest = run_query(replace(plan, query=replace(query, kind="vector", text=None)))
        found = [hit.slot for hit in nearest.hits]
    if not found and asked.text is not None:
        nearest = run_query(replace(plan, query=replace(query, kind="keyword", vector=None)))
        found = [hit.slot for hit in nearest.hits]
    if asked.text is None and asked.vector is None:
        mask, alive = _EPISODES.mask(plan.view), plan.view.alive()
        slots = np.flatnonzero(mask if alive is None else mask & alive)
        found = slots[_best(plan.view, slots, (plan.view.updated[slots],), asked.episodes)].tolist()
    return found


class Graph:
    """How the facts of a view hang on entities."""

    def __init__(self, planned: RecallPlan, view: View) -> None:
        self.planned = planned
        self._view = view
        self._entities = planned.entities
        flags, confidence, valid_at = (view.side_column(name) for name in (FLAGS, CONFIDENCE, VALID_AT))
        if flags is None or confidence is None or valid_at is None:
            flags, confidence, valid_at = np.zeros((3, view.n), np.int64)
        self.shown: Bools = (flags & KIND) == FACT
        alive = view.alive()
        if alive is not None:
            self.shown &= alive
        self.confidence: Floats = confidence.view(np.float64)
        self.valid_at: Int64s = valid_at

    @cached_property
    def _parts(self) -> list[FactPart]:
        """Only where there are anchors: of several memories nothing is ready-made."""
        return self._view.fact_parts()

    def anchor_ranks(self, candidates: Bools) -> Floats:
        """The rank of each row by the anchor signal, (n,), nan for none."""
        ranks = np.full(self._view.n, np.nan)
        match = self._matches()
        if not match:
            return ranks
        by_match = np.full(self._view.n, -np.inf)
        for number, value in match.items():
            slots = self.touching(number)
            by_match[slots] = np.maximum(by_match[slots], value)
        near = np.flatnonzero(candidates & (by_match > -np.inf))
        ranks[near] = _shared_ranks(by_match[near], self.confidence[near], self.valid_at[near])
        behind = np.zeros(self._view.n, np.bool_)
        for number in self._named_by(near.tolist()) - match.keys():
            behind[self.touching(number)] = True
        behind[near] = False
        far = np.flatnonzero(behind & candidates)
        ranks[far] = len(near) + _shared_ranks(self.confidence[far], self.valid_at[far])
        return ranks

    def _matches(self) -> dict[int, float]:
        """The anchors: entities by number, and how well each matches."""
        asked = self.planned.asked
        match: dict[int, float] = {}
        if asked.vector is not None:
            unit = normalised(asked.vector)
            nearest = [] if unit is None else self._entities.nearest(unit, asked.anchor_top_k, asked.anchor_min)
            match = dict(nearest)
        named = self.planned.named
        if named is None:
            named = self._entities.named_by(asked.text or b"", asked.max_terms)
        return match | dict.fromkeys(named, 1.0)

    def _named_by(self, slots: list[int]) -> set[int]:
        """The entities that the texts of these facts name."""
        entities, texts = self._entities, self._view.texts
        found: set[int] = set()
        for columns, start, n in self._parts:
            for slot in slots:
                if start <= slot < start + n:
                    found.update(entities.named_in(columns.words(slot - start, texts[slot])))
        return found

    def touching(self, number: int) -> list[int]:
        """The slots of the facts, shown or not, that touch the entity, some perhaps twice."""
        entity = self._entities.numbered(number)
        found: list[int] = []
        for columns, start, n in self._parts:
            for name in (entity.name, *entity.aliases):
                slots = columns.slots((name, entity.type))
                about = columns.slots(name)  # first: an entity may have thousands of aliases that no fact has
                if about and self._entities.meant(name) == entity:
                    slots = [*slots, *about]
                found += [start + slot for slot in slots if slot < n]  # others are of later views
        return found

    def anchor(self, slot: int) -> Entity | None:
        """The entity that a fact is about."""
        fact = self.fact(slot)
        if not fact.entity_type:
            return self._entities.meant(fact.subject)
        found = self._entities.lookup(fact.object, fact.entity_type)
        return found[0][0] if found else None

    def fact(self, slot: int) -> Fact:
        fact = self._view.facts[slot]
        assert fact is not None
        return fact

    def count(self, entity: Entity) -> int:
        """How many facts that show touch the entity."""
        return int(np.count_nonzero(self.shown[list(set(self.touching(entity.number)))]))


def _shared_ranks(*keys: npt.NDArray[Any]) -> Floats:
    """Ranks from 1 by each of `keys`, the greatest first; rows equal in all share the best rank."""
    order = np.lexsort(tuple(-key for key in reversed(keys)))
    fresh = np.zeros(len(order), np.bool_)
    fresh[:1] = True
    for key in keys:
        fresh[1:] |= key[order][1:] != key[order][:-1]
    ranks = np.empty(len(order))
    first = np.flatnonzero(fresh)
    ranks[order] = 1.0 + first[np.cumsum(fresh) - 1]
    return ranks
