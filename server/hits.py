"""Hits as clients see them: an array in RESP2, a map in RESP3 and with `mem-hit-format map`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..index.query import Hit, Result
from ..index.view import View
from ..protocol.reply import Encoded
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


def hit_arrays(view: View, hits: list[Hit], flags: HitFlags) -> list[Any]:
    """Of each [id, key, text, meta, tags, vector, scores, explain], only what was asked for; RESP2."""
    slots = [hit.slot for hit in hits]
    columns: list[list[Any]] = [[view.ids[slot] for slot in slots]]
    if flags.key is not None:
        columns.append([key_of(view, slot, flags.key) for slot in slots])
    if flags.text:
        columns.append([view.texts[slot] for slot in slots])
    if flags.meta:
        columns.append([view.metas[slot] for slot in slots])
    if flags.tags:
        columns.append([view.tags[slot] for slot in slots])
    if flags.vector:
        columns.append([vector_value(view, slot, flags.floats) for slot in slots])
    if flags.scores:
        columns.append([_scores(hit) for hit in hits])
    if hits and hits[0].explain is not None:  # all have it, or none
        columns.append([hit.explain for hit in hits])
    return list(zip(*columns, strict=True))


def _scores(hit: Hit) -> Encoded:
    """[score, n, keyword, n, ..], of the signals that there are."""
    score = _number(hit.score)
    words, count = f"$5\r\nscore\r\n{score}", 2
    if hit.keyword is not None:
        words += f"$7\r\nkeyword\r\n{score if hit.keyword == hit.score else _number(hit.keyword)}"
        count += 2
    if hit.vector is not None:
        words += f"$6\r\nvector\r\n{score if hit.vector == hit.score else _number(hit.vector)}"
        count += 2
    if hit.recency is not None:
        words += f"$7\r\nrecency\r\n{_number(hit.recency)}"
        count += 2
    if hit.importance is not None:
        words += f"$10\r\nimportance\r\n{_number(hit.importance)}"
        count += 2
    return Encoded(f"*{count}\r\n{words}".encode())


def _number(value: float) -> str:
    """The bulk string of a number with 4 to 6 places, or of inf, -inf, nan."""
    text = f"{value:.6f}"
    if text[-1] == "0":
        if text == "-0.000000":
            text = text[1:]
        text = text[:-2] if text[-2] == "0" else text[:-1]
    return f"${len(text)}\r\n{text}\r\n"


def hit_maps(view: View, hits: list[Hit], flags: HitFlags) -> list[dict[str, Any]]:
    return [_hit_map(view, hit, flags) for hit in hits]


def _hit_map(view: View, hit: Hit, flags: HitFlags) -> dict[str, Any]:
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
