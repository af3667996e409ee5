"""A typed Python client, sync and asyncio, over redis-py (`pip install recalld[client]`).

    from recalld.client import F, Memory

    memory = Memory("redis://127.0.0.1:7171", "user:1")
    memory.create(mode="SEARCH", exists_ok=True)
    memory.add("The keys hang by the door", tags=["home"], meta={"room": "hall"})
    for hit in memory.query("where are my keys?", filters=F("room") == "hall"):
        print(hit.id, hit.text, hit.score)

docs/client.md shows the rest.
"""

from .commands import Command, ConfigOptions, NewRecord, QueryOptions, SearchOptions
from .filters import F, Filter
from .memory import AsyncMemory, Memory
from .results import (
    Added,
    Analyzed,
    Answer,
    Config,
    Embedded,
    Entity,
    Event,
    Explanation,
    Fact,
    Hit,
    Hits,
    Info,
    NextModel,
    Page,
    Part,
    QueryCounts,
    Read,
    Recall,
    Record,
    Retention,
    Stats,
    Switching,
    Term,
    Verified,
    Weights,
)

__all__ = [
    "Added",
    "Analyzed",
    "Answer",
    "AsyncMemory",
    "Command",
    "Config",
    "ConfigOptions",
    "Embedded",
    "Entity",
    "Event",
    "Explanation",
    "F",
    "Fact",
    "Filter",
    "Hit",
    "Hits",
    "Info",
    "Memory",
    "NewRecord",
    "NextModel",
    "Page",
    "Part",
    "QueryCounts",
    "QueryOptions",
    "Read",
    "Recall",
    "Record",
    "Retention",
    "SearchOptions",
    "Stats",
    "Switching",
    "Term",
    "Verified",
    "Weights",
]
