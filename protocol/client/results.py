"""What the commands answer, typed.

Texts are str; bytes that are no UTF-8 are lone surrogates in them (`surrogateescape`), so that
`text.encode("utf-8", "surrogateescape")` gives every byte back, and so do they on their way in. Times are unix
milliseconds. Vectors are float32. None is what the record does not have, or the command was not asked for.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

Float32s = npt.NDArray[np.float32]
T = TypeVar("T")


class Weights(NamedTuple):
    """What the four signals weigh in a query."""

    keyword: float
    vector: float
    recency: float
    importance: float


@dataclass(frozen=True, slots=True)
class Part:
    """What one signal adds to a hit's score; LINEAR: weight * scaled, RRF: weight / (rrf_k + rank).

    `tag_boost` is what tags that the query names add to `raw`.
    """

    raw: float
    scaled: float
    rank: int
    weight: float
    contribution: float
    tag_boost: float | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """What one word of the query adds to the keyword score."""

    term: str
    idf: float
    tf: float
    part: float


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a record ranks where it does: `parts` by signal add up to `score`; or `reason`, why it is not on the page."""

    id: str
    rank: int | None = None
    score: float | None = None
    reason: str | None = None
    parts: dict[str, Part] = field(default_factory=dict)
    terms: tuple[Term, ...] = ()
    tier: str | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """What a query looked at: `matched` before filters, `filtered` of those removed by filters."""

    records: int
    matched: int
    filtered: int
    below_min_score: int
    returned: int
    signals: tuple[str, ...]
    tier: str
    usec: int


@dataclass(frozen=True, slots=True, eq=False)
class Hit:
    """A record that a query found.

    `keyword` is the raw BM25 score, `similarity` the raw one of the vectors. A RESP2 connection says nothing of
    `created_at`, `updated_at` and `pttl` unless the server's mem-hit-format is map. `key` is the memory's, where the
    query covered several.
    """

    id: str
    score: float
    text: str | None = None
    importance: float | None = None
    created_at: int | None = None
    updated_at: int | None = None
    pttl: int | None = None
    tags: tuple[str, ...] = ()
    meta: dict[str, str] | None = None
    vector: Float32s | None = None
    keyword: float | None = None
    similarity: float | None = None
    recency: float | None = None
    explain: Explanation | None = None
    key: str | None = None


class Hits(list[Hit]):
    """Hits, best first; `stats` where they were asked for."""

    stats: Stats | None = None


class Page(list[T]):
    """A page of a longer list; `total` is how many there are in all."""

    total: int = 0


class Added(str):
    """A record's id. With dedup: whether it is `stored`, or there was one with this text, whose id this is; and the ids
    of records `near` it, the most similar first."""

    stored: bool = True
    near: tuple[str, ...] = ()


class Embedded(NamedTuple):
    """How many vectors were made, and how many are still to be."""

    done: int
    left: int


class Retention(NamedTuple):
    """What keeps a record in a full memory: `retention`, the mean of the other three; who has least goes first."""

    id: str
    retention: float
    importance: float
    recency: float
    use: float


class QueryCounts(NamedTuple):
    """What a memory was asked since the server started: queries of every kind, the `empty` of them that found nothing,
    their microseconds, and over the `scored` ones the score of the best hit; None where there was none."""

    queries: int
    empty: int
    usec: int
    usec_mean: float
    usec_max: int
    last_query_at: int | None
    scored: int
    score_mean: float | None
    score_min: float | None
    score_max: float | None


class Verified(NamedTuple):
    """How many records were looked at, and how many of them have not the text they had."""

    checked: int
    bad: int


@dataclass(frozen=True, slots=True)
class Fact:
    """A statement about a subject, and when it holds; `depth` is that of `paths`, what follows a recall's: `key` is the
    memory's, where it covered several."""

    id: str
    subject: str
    predicate: str
    object: str
    entity_type: str | None
    confidence: float
    quote: str | None
    valid_at: int
    valid_until: int | None
    invalid_at: int | None
    episode: str | None
    created_at: int
    supersedes: str | None
    superseded_by: str | None
    depth: int | None = None
    score: float | None = None
    vector_rank: int | None = None
    anchor_rank: int | None = None
    keyword_rank: int | None = None
    key: str | None = None

    @property
    def text(self) -> str:
        return f"{self.subject} {self.predicate} {self.object}"


@dataclass(frozen=True, slots=True, eq=False)
class Record:
    """What is stored under an id; `pttl` is -1 without a deadline. `fact` is there of a fact, and `pin` says whether it
    is never evicted, where `with_fact` asked for it; `key` is the memory's where a recall covered several."""

    id: str
    text: str | None
    importance: float
    created_at: int
    updated_at: int
    pttl: int
    cid: str
    tags: tuple[str, ...] = ()
    kind: str = "note"
    valid_at: int | None = None
    valid_until: int | None = None
    meta: dict[str, str] | None = None
    vector: Float32s | None = None
    fact: Fact | None = None
    pin: bool = False
    key: str | None = None


@dataclass(frozen=True, slots=True)
class Entity:
    """A thing that facts are about; `facts` is how many, `resolved` how `entity` found it."""

    name: str
    type: str
    aliases: tuple[str, ...]
    facts: int
    created_at: int
    resolved: Literal["exact", "alias", "similar", "created"] | None = None


@dataclass(frozen=True, slots=True)
class Recall:
    """What is known that bears on a question; `context` is the block to give a model, `omitted` what its budget cut.

    `synthesis` is the prose that a model made of it, where it was asked for, or `synthesis_error` why there is none.
    """

    context: str
    facts: tuple[Fact, ...]
    entities: tuple[Entity, ...]
    episodes: tuple[Record, ...]
    omitted: tuple[str, ...]
    synthesis: str | None = None
    synthesis_error: str | None = None

    def __str__(self) -> str:
        return self.context


class Analyzed(NamedTuple):
    """The facts that a model took from a message, by id: how many of them are new, and how many were known."""

    facts: tuple[str, ...]
    stored: int
    restated: int


class Answer(NamedTuple):
    """A model's answer from what a memory knows, None where that says nothing about it, and the `facts` it used."""

    answer: str | None
    facts: tuple[str, ...]


class NextModel(NamedTuple):
    """The model that a memory changes to while the vectors of the old one still serve."""

    embedder: str
    model: str
    dim: int


class Switching(NamedTuple):
    """How many records have a vector of the next model, and how many are to get one."""

    model: str
    done: int
    left: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A memory's settings; `history` is seconds or "ALL", `embedder` "NONE" for none; `info` says neither."""

    mode: str
    dim: int
    metric: str
    weights: Weights
    half_life: int
    fusion: str
    lang: str
    k1: float
    b: float
    history: int | str | None = None
    embedder: str | None = None
    model: str | None = None
    tag_boost: float | None = None
    max_records: int | None = None
    max_bytes: int | None = None
    next: NextModel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Info(Config):
    """A memory's settings, counts and size."""

    records: int
    vectors: int
    terms: int
    avg_doc_len: float
    bytes: int
    tier: str
    pending: int
    next_id: int
    created_at: int
    updated_at: int
    switching: Switching | None = None


@dataclass(frozen=True, slots=True)
class Read:
    """A read of a memory that mem-audit had kept: the words of `command`, how many results they gave, and from which
    tier."""

    accessor: str
    client: str
    memory: str
    command: str
    query: str
    results: int | None
    tier: str | None
    time: int


@dataclass(frozen=True, slots=True)
class Event:
    """A write to a memory: `kind` is add, del, meta, ttl, expire, fact, invalidate, entity or evict."""

    kind: str
    id: str
