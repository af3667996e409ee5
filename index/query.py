"""What is asked of a memory, and what comes back."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .filters import Clause
from .settings import Weights

if TYPE_CHECKING:
    from .view import View

#: The order in which contributions are added and shown.
SIGNALS = ("keyword", "vector", "recency", "importance")


@dataclass(slots=True)
class Query:
    """One retrieval. `text` or `vector` or both; a `kind` of "keyword" or "vector" scores by that signal alone, raw
    (MEM.SEARCH, MEM.VSEARCH), "fused" by all four (MEM.QUERY).

    `vector` is float64 of shape (dim,), a unit vector under COSINE. Settings left None are the memory's own.
    """

    kind: str = "fused"
    text: bytes | None = None
    vector: npt.NDArray[np.float64] | None = None
    top_k: int = 10
    offset: int = 0
    min_score: float | None = None
    min_sim: float | None = None
    diversity: float | None = None
    filters: list[Clause] = field(default_factory=list)
    weights: Weights | None = None
    fusion: str | None = None
    rrf_k: int = 60
    half_life: int | None = None
    explain: bool = False
    counts: bool = True  # whether the counts of WITHSTATS are wanted
    explain_id: bytes | None = None  # MEM.EXPLAIN: rank this one record
    as_of: int | None = None  # what counted then, unix ms; None: now
    known_at: int | None = None  # as it was known then
    max_scan: int = 1 << 62
    max_terms: int = 1 << 62
    like: bytes | None = None  # instead of text and vector: records whose text holds this (like.py)
    tier: str = ""  # keyword, like: no other
    no_embed: bool = False  # the text is not embedded
    fallback_like: bool = False  # where no word matches, ask so

    def as_like(self, wanted: bytes) -> Query:
        """The same query in the lowest tier: literally, the newest first."""
        return replace(
            self,
            text=None,
            vector=None,
            like=wanted,
            fallback_like=False,
            weights=(0.0, 0.0, 1.0, 0.0),
            fusion="LINEAR",
            min_sim=None,
        )


@dataclass(slots=True)
class Hit:
    """One record found. A signal is None where the query does not use it or the record does not have it.

    `keyword` and `vector` are raw (BM25, similarity); `explain` is the map of EXPLAIN.
    """

    slot: int
    score: float
    keyword: float | None
    vector: float | None
    recency: float | None
    importance: float | None
    explain: dict[str, Any] | None = None


@dataclass(slots=True)
class Result:
    """What a query found, best first, and the counts of WITHSTATS (without meaning where `Query.counts` is off).

    `matched` counts before filters, `filtered` those that filters removed, `below` those under MINSCORE. For
    MEM.EXPLAIN, `rank` is the record's place from 1, or `reason` says why it has none on the page.
    """

    hits: list[Hit]
    records: int
    matched: int
    filtered: int
    below: int
    signals: list[str]
    tier: str
    rank: int | None = None
    reason: str | None = None
    view: View | None = field(default=None, compare=False, repr=False)  # what the hits' slots are of
