"""MEM.ADD's DEDUP NEAR: which records are similar to one that is being written. They are reported and nothing else: two
ports, two dates can be 0.99 alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..index.errors import BadMemory
from ..index.filters import clause
from ..index.memory import Memory
from ..index.query import Query, Result
from ..index.view import View

if TYPE_CHECKING:
    from .client import Client

#: How many are reported at most.
NEAR_MAX = 10


def with_near(
    ctx: Client,
    memory: Memory,
    vector: npt.NDArray[np.float64] | None,
    least: float | None,
    settle: Callable[[], bytes],
    *,
    is_new: bool,
) -> Any:
    """`[settle's id, is_new, the ids of records as similar as `least`]`: those there were before, notes and episodes,
    most similar first."""
    if least is None:
        return [settle(), int(is_new), []]
    if not memory.settings.has_vectors:
        raise BadMemory("this memory index stores no vectors; create it with MODE VECTOR or MODE HYBRID")
    if vector is None:
        return [settle(), int(is_new), []]
    limit = ctx.server.config["mem-max-scan"]
    if memory.vector_count > limit:
        raise BadMemory(f"a scan of {memory.vector_count} vectors exceeds mem-max-scan ({limit}); raise it")
    # One more than are shown: one may be the record itself.
    query = Query(kind="vector", vector=vector, min_sim=least, top_k=NEAR_MAX + 1, counts=False)
    query.filters = [clause(b"@kind", b"NE", b"fact")]
    plan = memory.plan(query, ctx.now)
    record_id = settle()

    def reply(result: Result) -> list[Any]:
        view: View = result.view or plan.view
        ids = [view.ids[hit.slot] for hit in result.hits]
        return [record_id, int(is_new), [each for each in ids if each != record_id][:NEAR_MAX]]

    return ctx.server.workers.ask(memory, plan, 0, reply, 0)
