"""The page of a query that ranks by words alone and wants no more than its hits, which is what MEM.SEARCH mostly is: of
the other rows nothing is worked out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import kernels
from .keyword import PRUNE_MIN, Keyword
from .query import Hit, Result
from .view import matching

if TYPE_CHECKING:
    from .matches import Plan


def word_page(plan: Plan) -> Result | None:
    """The answer to a settled plan; None where it wants more, or where numpy has so few rows that the scores of all
    cost less."""
    query, view = plan.query, plan.view
    if (
        query.kind != "keyword"
        or query.text is None
        or query.vector is not None
        or query.counts
        or query.explain
        or query.explain_id is not None
        or query.diversity is not None
        or query.min_sim is not None
        or (view.n < PRUNE_MIN and kernels.loops is None)
    ):
        return None
    alive = view.alive()
    allowed = matching([*[clause.mask(view) for clause in query.filters], *([] if alive is None else [alive])])
    need = query.offset + query.top_k
    slots, scores = Keyword(plan).best_rows(need, allowed)
    key, ids, updated = view.key, view.ids, view.updated.item
    rows = sorted(
        [
            (-score, -updated(slot), key(slot) or b"", ids[slot], slot)
            for score, slot in zip(scores.tolist(), slots.tolist(), strict=True)
        ]
    )[query.offset : need]
    least = query.min_score
    hits = [
        Hit(slot, -score, -score, None, None, None)
        for score, _, _, _, slot in rows
        if least is None or -score >= least
    ]
    return Result(hits, view.live, len(slots), 0, 0, ["keyword"], "keyword", view=view)
