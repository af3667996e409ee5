"""What each memory is asked: how often, how long that took, how good the best hits were. MEM.STATS shows it.

Counted since the server started or CONFIG RESETSTAT, beside the memory itself, so RENAME takes the counts along and DEL
ends them. A memory that was never asked has none; one that was, takes about 250 bytes for them.

Replies are built on the loop or in a thread, but those of one memory never at the same time (workers.py), so counting
needs no lock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .commands import command
from .memory_commands import find

if TYPE_CHECKING:
    from ..index.memory import Memory
    from .client import Client


class QueryCounts:
    """The counts of one memory."""

    __slots__ = (
        "empty",
        "last_ms",
        "max_ns",
        "queries",
        "score_best",
        "score_sum",
        "score_worst",
        "scored",
        "total_ns",
    )

    def __init__(self) -> None:
        self.queries = 0
        self.empty = 0  # of them, those that found nothing
        self.total_ns = 0
        self.max_ns = 0
        self.last_ms = 0
        # Of the best hit of each query by LINEAR, which is of one scale, whatever the memory and the query.
        self.scored = 0
        self.score_sum = 0.0
        self.score_best = 0.0
        self.score_worst = 0.0


def count_query(memory: Memory, now: int, took_ns: int, hits: int, best: float | None = None) -> None:
    """Count one query; `best` is the LINEAR score of its best hit, where it has one."""
    counts: QueryCounts | None = memory.queries
    if counts is None:
        counts = memory.queries = QueryCounts()
    counts.queries += 1
    counts.empty += not hits
    counts.total_ns += took_ns
    counts.max_ns = max(counts.max_ns, took_ns)
    counts.last_ms = now
    if best is not None:
        counts.score_best = max(counts.score_best, best) if counts.scored else best
        counts.score_worst = min(counts.score_worst, best) if counts.scored else best
        counts.scored += 1
        counts.score_sum += best


@command(
    "MEM.STATS",
    arity=2,
    flags="readonly fast",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.STATS key",
    options=(
        "queries, empty: how many of MEM.QUERY, SEARCH, VSEARCH and RECALL there were, how many found nothing",
        "usec, usec_mean, usec_max: from the start of a query to its reply; last_query_at: unix milliseconds, or nil",
        "scored, score_mean, score_min, score_max: over the best hits of those that rank by LINEAR; nil without any",
    ),
)
def mem_stats(ctx: Client, args: list[bytes]) -> dict[str, Any]:
    """Show what a memory was asked since the server started: how often, how long it took, how well hits scored."""
    counts: QueryCounts = find(ctx, args[0]).queries or QueryCounts()
    scored = counts.scored
    return {
        "queries": counts.queries,
        "empty": counts.empty,
        "usec": counts.total_ns // 1000,
        "usec_mean": counts.total_ns / 1000 / counts.queries if counts.queries else 0.0,
        "usec_max": counts.max_ns // 1000,
        "last_query_at": counts.last_ms or None,
        "scored": scored,
        "score_mean": counts.score_sum / scored if scored else None,
        "score_min": counts.score_worst if scored else None,
        "score_max": counts.score_best if scored else None,
    }
