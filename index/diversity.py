"""DIVERSITY: the best hits reordered so that each is unlike those before it (maximal marginal relevance)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from .query import Hit
from .vectors import pairwise

if TYPE_CHECKING:
    from .ranking import Ranking

#: How many of the best are reordered.
WINDOW = 500


def reordered(ranking: Ranking, hits: list[Hit]) -> list[Hit]:
    """Reorder greedily by lambda*score - (1-lambda)*(largest similarity to one already chosen)."""
    query = ranking.query
    share = query.diversity
    assert share is not None
    view, metric = ranking.view, ranking.view.settings.metric
    rows = view.vrow[[hit.slot for hit in hits]] if hits else np.zeros(0, np.int32)
    has = rows >= 0
    vectors = view.gather(rows[has]).astype(np.float64) if has.any() else np.zeros((0, 1))
    at_vector = np.cumsum(has) - 1
    scores = share * np.array([hit.score for hit in hits])
    nearest = np.full(len(hits), -np.inf)
    left = np.ones(len(hits), np.bool_)
    chosen: list[Hit] = []
    # What stands behind the page is not worth choosing, except to MEM.EXPLAIN.
    wanted = len(hits) if query.explain_id is not None else query.offset + query.top_k
    while len(chosen) < min(wanted, len(hits)):
        penalty = np.where(np.isneginf(nearest), 0.0, nearest)
        value = np.where(left, scores - (1.0 - share) * penalty, -np.inf)
        at = int(np.argmax(value))  # the first of equals: the ranking decides ties
        left[at] = False
        chosen.append(hits[at])
        alike = np.zeros(len(hits))
        if has[at]:
            alike[has] = pairwise(vectors, vectors[at_vector[at]], metric)
        nearest = np.maximum(nearest, alike)
    return chosen + [hit for hit, waits in zip(hits, left.tolist(), strict=True) if waits]
