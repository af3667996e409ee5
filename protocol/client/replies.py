"""Replies as results: of RESP2 or RESP3, with strings as bytes. Fields that this version does not know are ignored.

Rule 1: what a reply leaves out, or has nil for, is None here, or the field's default.
Rule 2: RESP2 has a map as a flat array of pairs and a number with a fraction as a string; `as_map`, `_real` and
        `_integer` are the only places that know.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np

from . import results

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HitForm:
    """What a query asked for: how RESP2 arrays of hits are read. Tags and scores are always asked for."""

    key: bool = False
    text: bool = True
    meta: bool = True
    vector: bool = False
    explain: bool = False
    stats: bool = False


def text(reply: bytes) -> str:
    return reply.decode("utf-8", "surrogateescape")


def texts(reply: list[bytes]) -> tuple[str, ...]:
    return tuple(map(text, reply))


def integer(reply: Any) -> int:
    return int(float(reply)) if isinstance(reply, bytes | float) else int(reply)


def as_map(reply: Any) -> dict[str, Any]:
    """A map by name, whichever way it came."""
    pairs = reply.items() if isinstance(reply, dict) else zip(reply[::2], reply[1::2], strict=True)
    return {text(name): value for name, value in pairs}


def _real(reply: Any) -> float:
    return float(reply)


def _vector(reply: bytes) -> results.Float32s:
    return np.frombuffer(reply, "<f4").astype(np.float32)


def _strings(reply: Any) -> dict[str, str]:
    return {name: text(value) for name, value in as_map(reply).items()}


def _get(found: dict[str, Any], name: str, read: Callable[[Any], T]) -> T | None:
    value = found.get(name)
    return None if value is None else read(value)


# -- records


def added(reply: Any) -> results.Added:
    """An id, or with DEDUP `[id, 1 or 0, [id, ..]]`."""
    if isinstance(reply, bytes):
        return results.Added(text(reply))
    record_id, stored, near = reply
    made = results.Added(text(record_id))
    made.stored, made.near = bool(stored), texts(near)
    return made


def verified(reply: Any) -> results.Verified:
    found = as_map(reply)
    return results.Verified(integer(found["checked"]), integer(found["bad"]))


def record(reply: Any) -> results.Record | None:
    if reply is None:
        return None
    found = as_map(reply)
    return results.Record(
        id=text(found["id"]),
        text=_get(found, "text", text),
        importance=_real(found["importance"]),
        created_at=integer(found["created_at"]),
        updated_at=integer(found["updated_at"]),
        pttl=integer(found["pttl"]),
        cid=text(found["cid"]),
        tags=_get(found, "tags", texts) or (),
        kind=_get(found, "kind", text) or "note",
        valid_at=_get(found, "valid_at", integer),
        valid_until=_get(found, "valid_until", integer),
        meta=_get(found, "meta", _strings),
        vector=_get(found, "vector", _vector),
        fact=_get(found, "fact", fact),
        pin=_get(found, "pin", bool) or False,
        key=_get(found, "key", text),
    )


def records(reply: list[Any]) -> list[results.Record]:
    return [each for each in map(record, reply) if each is not None]


# -- hits


def hits(reply: Any, form: HitForm) -> results.Hits:
    stats = None
    if form.stats:
        reply, stats = reply
    found = results.Hits(_hit(each, form) for each in reply)
    found.stats = None if stats is None else _stats(stats)
    return found


def _hit(reply: Any, form: HitForm) -> results.Hit:
    # No array has both names in these places: a map's text or vector is followed by lists.
    is_map = isinstance(reply, dict) or (reply[0] == b"id" and {b"score", b"importance"} <= set(_names(reply)))
    return _hit_of_map(as_map(reply)) if is_map else _hit_of_array(reply, form)


def _names(reply: list[Any]) -> list[bytes]:
    return [name for name in reply[::2] if isinstance(name, bytes)]


def _hit_of_map(found: dict[str, Any]) -> results.Hit:
    record_id, score = text(found["id"]), _real(found["score"])
    return results.Hit(
        id=record_id,
        score=score,
        text=_get(found, "text", text),
        importance=_get(found, "importance", _real),
        created_at=_get(found, "created_at", integer),
        updated_at=_get(found, "updated_at", integer),
        pttl=_get(found, "pttl", integer),
        tags=_get(found, "tags", texts) or (),
        meta=_get(found, "meta", _strings),
        vector=_get(found, "vector", _vector),
        keyword=_get(found, "keyword_score", _real),
        similarity=_get(found, "vector_score", _real),
        recency=_get(found, "recency_score", _real),
        explain=_get(found, "explain", lambda reply: _explanation(as_map(reply), record_id, score)),
        key=_get(found, "key", text),
    )


def _hit_of_array(reply: list[Any], form: HitForm) -> results.Hit:
    fields = iter(reply)
    record_id = text(next(fields))
    key = text(next(fields)) if form.key else None
    said = text(next(fields)) if form.text else None
    meta = _strings(next(fields)) if form.meta else None
    tags = texts(next(fields))
    blob = next(fields) if form.vector else None
    scores = as_map(next(fields))
    score = _real(scores["score"])
    return results.Hit(
        id=record_id,
        score=score,
        text=said,
        importance=_get(scores, "importance", _real),
        tags=tags,
        meta=meta,
        vector=None if blob is None else _vector(blob),
        keyword=_get(scores, "keyword", _real),
        similarity=_get(scores, "vector", _real),
        recency=_get(scores, "recency", _real),
        explain=_explanation(as_map(next(fields)), record_id, score) if form.explain else None,
        key=key,
    )


def _stats(reply: Any) -> results.Stats:
    found = as_map(reply)
    return results.Stats(
        records=integer(found["records"]),
        matched=integer(found["matched"]),
        filtered=integer(found["filtered"]),
        below_min_score=integer(found["below_minscore"]),
        returned=integer(found["returned"]),
        signals=texts(found["signals"]),
        tier=text(found["tier"]),
        usec=integer(found["usec"]),
    )


def explanation(reply: Any) -> results.Explanation:
    found = as_map(reply)
    return _explanation(found, text(found["id"]), _get(found, "score", _real))


def _explanation(found: dict[str, Any], record_id: str, score: float | None) -> results.Explanation:
    signals = results.Weights._fields
    return results.Explanation(
        id=record_id,
        rank=_get(found, "rank", integer),
        score=score,
        reason=_get(found, "reason", text),
        parts={name: _part(found[name]) for name in signals if found.get(name) is not None},
        terms=tuple(map(_term, found.get("terms") or ())),
        tier=_get(found, "tier", text),
    )


def _part(reply: Any) -> results.Part:
    found = as_map(reply)
    return results.Part(
        raw=_real(found["raw"]),
        scaled=_real(found["scaled"]),
        rank=integer(found["rank"]),
        weight=_real(found["weight"]),
        contribution=_real(found["contribution"]),
        tag_boost=_get(found, "tagboost", _real),
    )


def _term(reply: Any) -> results.Term:
    found = as_map(reply)
    return results.Term(
        term=text(found["term"]), idf=_real(found["idf"]), tf=_real(found["tf"]), part=_real(found["part"])
    )


# -- facts


def fact(reply: Any) -> results.Fact:
    found = as_map(reply)
    return results.Fact(
        id=text(found["id"]),
        subject=text(found["subject"]),
        predicate=text(found["predicate"]),
        object=text(found["object"]),
        entity_type=_get(found, "entity_type", text),
        confidence=_real(found["confidence"]),
        quote=_get(found, "quote", text),
        valid_at=integer(found["valid_at"]),
        valid_until=_get(found, "valid_until", integer),
        invalid_at=_get(found, "invalid_at", integer),
        episode=_get(found, "episode", text),
        created_at=integer(found["created_at"]),
        supersedes=_get(found, "supersedes", text),
        superseded_by=_get(found, "superseded_by", text),
        depth=_get(found, "depth", integer),
        score=_get(found, "score", _real),
        vector_rank=_get(found, "vector_rank", integer),
        anchor_rank=_get(found, "anchor_rank", integer),
        keyword_rank=_get(found, "keyword_rank", integer),
        key=_get(found, "key", text),
    )


def entity(reply: Any) -> results.Entity:
    found = as_map(reply)
    return results.Entity(
        name=text(found["name"]),
        type=text(found["type"]),
        aliases=texts(found["aliases"]),
        facts=integer(found["facts"]),
        created_at=integer(found["created_at"]),
        resolved=_get(found, "resolved", text),  # type: ignore[arg-type]  # one of the four words
    )


def page(reply: Any, read: Callable[[Any], T]) -> results.Page[T]:
    """`[total, [..]]`."""
    total, some = reply
    found = results.Page(map(read, some))
    found.total = integer(total)
    return found


def recall(reply: Any) -> results.Recall:
    found = as_map(reply)
    return results.Recall(
        context=text(found["context"]),
        facts=tuple(map(fact, found["facts"])),
        entities=tuple(map(entity, found["entities"])),
        episodes=tuple(records(found["episodes"])),
        omitted=texts(found["omitted"]),
        synthesis=_get(found, "synthesis", text),
        synthesis_error=_get(found, "synthesis_error", text),
    )


def analyzed(reply: Any) -> results.Analyzed:
    found = as_map(reply)
    return results.Analyzed(texts(found["facts"]), integer(found["stored"]), integer(found["restated"]))


def answer(reply: Any) -> results.Answer:
    found = as_map(reply)
    return results.Answer(_get(found, "answer", text), texts(found["ids"]))


# -- memories


def config(reply: Any) -> results.Config:
    return results.Config(**_settings(as_map(reply)))


def info(reply: Any) -> results.Info:
    found = as_map(reply)
    return results.Info(
        **_settings(found),
        records=integer(found["records"]),
        vectors=integer(found["vectors"]),
        terms=integer(found["terms"]),
        avg_doc_len=_real(found["avg_doc_len"]),
        bytes=integer(found["bytes"]),
        tier=text(found["tier"]),
        pending=integer(found["pending"]),
        next_id=integer(found["next_id"]),
        created_at=integer(found["created_at"]),
        updated_at=integer(found["updated_at"]),
        switching=_get(found, "switching", _switching),
    )


def _next(reply: Any) -> results.NextModel:
    found = as_map(reply)
    return results.NextModel(text(found["embedder"]), text(found["model"]), integer(found["dim"]))


def _switching(reply: Any) -> results.Switching:
    found = as_map(reply)
    return results.Switching(text(found["model"]), integer(found["done"]), integer(found["left"]))


def _settings(found: dict[str, Any]) -> dict[str, Any]:
    weights = as_map(found["weights"])
    return {
        "mode": text(found["mode"]),
        "dim": integer(found["dim"]),
        "metric": text(found["metric"]),
        "weights": results.Weights(*(_real(weights[name]) for name in results.Weights._fields)),
        "half_life": integer(found["halflife"]),
        "fusion": text(found["fusion"]),
        "lang": text(found["lang"]),
        "k1": _real(found["k1"]),
        "b": _real(found["b"]),
        "history": _get(found, "history", _history),
        "embedder": _get(found, "embedder", text),
        "model": _get(found, "model", text),
        "tag_boost": _get(found, "tagboost", _real),
        "max_records": _get(found, "maxrecords", integer),
        "max_bytes": _get(found, "maxbytes", integer),
        "next": _get(found, "next", _next),
    }


def _history(reply: Any) -> int | str:
    return text(reply) if reply == b"ALL" else integer(reply)


def embedded(reply: Any) -> results.Embedded:
    return results.Embedded(*map(integer, reply))


def retention(reply: Any) -> results.Retention:
    found = as_map(reply)
    return results.Retention(
        text(found["id"]), *(_real(found[name]) for name in ("retention", "importance", "recency", "use"))
    )


def query_counts(reply: Any) -> results.QueryCounts:
    found = as_map(reply)
    return results.QueryCounts(
        queries=integer(found["queries"]),
        empty=integer(found["empty"]),
        usec=integer(found["usec"]),
        usec_mean=_real(found["usec_mean"]),
        usec_max=integer(found["usec_max"]),
        last_query_at=_get(found, "last_query_at", integer),
        scored=integer(found["scored"]),
        score_mean=_get(found, "score_mean", _real),
        score_min=_get(found, "score_min", _real),
        score_max=_get(found, "score_max", _real),
    )


def read(reply: Any) -> results.Read:
    found = as_map(reply)
    return results.Read(
        accessor=text(found["accessor"]),
        client=text(found["client"]),
        memory=text(found["memory"]),
        command=text(found["command"]),
        query=text(found["query"]),
        results=_get(found, "results", integer),
        tier=_get(found, "tier", text),
        time=integer(found["time"]),
    )


def event(message: bytes) -> results.Event:
    """`add 17`: the kind and, behind the first space, the id as it is."""
    kind, _, record_id = message.partition(b" ")
    return results.Event(text(kind), text(record_id))
