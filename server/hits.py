"""Hits as clients see them: an array in RESP2, a map in RESP3 and with `mem-hit-format map`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ..index.query import Hit, Result
from ..index.view import View
from .arguments import Words
from .record_maps import RecordFlags, meta_map, pttl, vector_value


@dataclass(slots=True)
class HitFlags(RecordFlags):
    """Which parts of a hit a reply shows."""

    tags: bool = False
    scores: bool = False
    stats: bool = False
    key: bytes | None = None  # of the memory that was named, where the hits say theirs

    def read(self, option: bytes, words: Words) -> bool:
        if option == b"WITHTAGS":
            self.tags = True
        elif option == b"WITHSCORES":
            self.scores = True
        elif option == b"WITHSTATS":
            self.stats = True
        else:
            return RecordFlags.read(self, option, words)
        return True


def hit_array(view: View, hit: Hit, flags: HitFlags) -> list[Any]:
    """[id, key, text, meta, tags, vector, scores, explain], only what was asked for."""
    slot = hit.slot
    found: list[Any] = [view.ids[slot]]
    if flags.key is not None:
        found.append(key_of(view, slot, flags.key))
    if flags.text:
        found.append(view.texts[slot])
    if flags.meta:
        found.append(view.metas[slot])
    if flags.tags:
        found.append(view.tags[slot])
    if flags.vector:
        found.append(vector_value(view, slot, flags.floats))
    if flags.scores:
        scores = ["score", decimal(hit.score)]
        for name in ("keyword", "vector", "recency", "importance"):
            value = getattr(hit, name)
            if value is not None:
                scores += [name, decimal(value)]
        found.append(scores)
    if hit.explain is not None:
        found.append(hit.explain)
    return found


def hit_map(view: View, hit: Hit, flags: HitFlags) -> dict[str, Any]:
    """{id key score text importance created_at updated_at pttl ..}, numbers as doubles."""
    slot = hit.slot
    found: dict[str, Any] = {"id": view.ids[slot]}
    if flags.key is not None:
        found["key"] = key_of(view, slot, flags.key)
    found["score"] = hit.score
    if flags.text:
        found["text"] = view.texts[slot]
    found["importance"] = float(view.importance[slot])
    found["created_at"] = float(view.created[slot])
    found["updated_at"] = float(view.updated[slot])
    found["pttl"] = pttl(view, slot)
    if view.tags[slot]:
        found["tags"] = view.tags[slot]
    if flags.meta:
        found["meta"] = meta_map(view, slot)
    if flags.vector:
        found["vector"] = vector_value(view, slot, flags.floats)
    if flags.scores:
        for name in ("keyword", "vector", "recency"):
            value = getattr(hit, name)
            if value is not None:
                found[name + "_score"] = value
    if hit.explain is not None:
        found["explain"] = hit.explain
    return found


def key_of(view: View, slot: int, named: bytes) -> bytes:
    """The key of the row's memory, which is the named one where the view has but one."""
    key = view.key(slot)
    return named if key is None else key


def stats_map(result: Result, seconds: float) -> dict[str, Any]:
    """WITHSTATS: what the query looked at."""
    return {
        "records": result.records,
        "matched": result.matched,
        "filtered": result.filtered,
        "below_minscore": result.below,
        "returned": len(result.hits),
        "signals": result.signals,
        "tier": result.tier,
        "usec": int(seconds * 1e6),
    }


def decimal(value: float) -> str:
    """A number with 4 to 6 places."""
    if not math.isfinite(value):
        return repr(value)
    text = f"{value:.6f}"
    if text == "-0.000000":
        text = "0.000000"
    return text[:-2] if text.endswith("00") else text.removesuffix("0")
