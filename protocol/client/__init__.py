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
    Config,
    Entity,
    Event,
    Explanation,
    Fact,
    Hit,
    Hits,
    Info,
    Page,
    Part,
    Recall,
    Record,
    Stats,
    Term,
    Weights,
)

__all__ = [
    "AsyncMemory",
    "Command",
    "Config",
    "ConfigOptions",
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
    "Page",
    "Part",
    "QueryOptions",
    "Recall",
    "Record",
    "SearchOptions",
    "Stats",
    "Term",
    "Weights",
]
