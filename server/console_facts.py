"""The console's pages of facts and entities: a time line, a graph, and what is around one entity."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from starlette.responses import Response

from .console_client import Word
from .console_memories import record_link
from .console_page import Page, link, text, when
from .console_svg import Edge, Node, Span, graph, timeline

_FACTS = 60
# Of those that MEM.FACTS does not list, and how many thousand records are looked at to find them.
_OTHERS = 40
_STEPS = 100
_NODES = 150
# Entities and facts that a graph is made of: so many replies of a thousand.
_REPLIES = 10
# Entities in the list below it.
_LISTED = 200


async def facts(page: Page) -> Response:
    """Facts, the oldest first, as bars on a time line and as a table."""
    key, form = page.key, page.form
    at = form.number("page", 1, 1, 1_000_000)
    words: list[Word] = ["LIMIT", _FACTS, "OFFSET", (at - 1) * _FACTS]
    if form.text("q"):
        words += ["TEXT", form.text("q")]
    if form.text("entity"):
        words += ["ENTITY", form.text("entity")]
    words += _times(page)
    # Without a form that was sent: all that was ever believed.
    if not form.text("sent") or form.text("invalidated"):
        words.append("INVALIDATED")
    reply, error = await page.attempt("MEM.FACTS", key, *words)
    total, found = reply or (0, [])
    others: list[dict[str, Any]] = []
    if words[-1] == "INVALIDATED" and len(words) == 5 and at == 1 and not error:
        others = await _others(page)
        found = sorted([*found, *others], key=lambda fact: (fact["valid_at"], fact["id"]))
    now = page.console.server.clock()
    drawing = await asyncio.to_thread(timeline, [_span(key, fact) for fact in found], float(now), ticks)
    return await page.show(
        "facts.html",
        memory=key,
        form=form,
        error=error,
        facts=found,
        total=total,
        others=len(others),
        drawing=drawing if found else "",
        at=at,
        last=max(1, -(-total // _FACTS)),
    )


async def _others(page: Page) -> list[dict[str, Any]]:
    """Facts that MEM.FACTS leaves out, since they have ended or are still to come: the first that a walk finds."""
    now = page.console.server.clock()
    found: dict[bytes, dict[str, Any]] = {}
    for clause in (("@valid_until", "LTE", now), ("@valid_at", "GT", now)):
        cursor: Word = 0
        for _ in range(_STEPS):
            reply, error = await page.attempt(
                "MEM.SCAN", page.key, cursor, "COUNT", 1000, "FILTER", "@kind", "EQ", "fact", "FILTER", *clause
            )
            if error:
                return []
            cursor, ids = reply
            for record_id in ids[: _OTHERS - len(found)]:
                record, error = await page.attempt("MEM.GET", page.key, record_id, "NOTEXT", "WITHFACT")
                if record and "fact" in record:
                    found[record_id] = record["fact"]
            if cursor == b"0" or len(found) >= _OTHERS:
                break
    return list(found.values())


def _times(page: Page) -> list[Word]:
    words: list[Word] = []
    for name in ("asof", "knownat"):
        if page.form.text(name):
            words += [name.upper(), page.form.text(name)]
    return words


def _span(key: bytes, fact: dict[str, Any]) -> Span:
    ends = [end for end in (fact["valid_until"], fact["invalid_at"]) if end is not None]
    end = min(ends) if ends else None
    label = " ".join(text(fact[name]) for name in ("subject", "predicate", "object"))
    tip = f"{label}: {when(fact['valid_at'])} to {when(end) if end is not None else 'now and on'}"
    if fact["superseded_by"]:
        tip += f", superseded by {text(fact['superseded_by'])}"
    return Span(
        id=text(fact["id"]),
        label=label,
        href=record_link(key, fact["id"]),
        start=fact["valid_at"],
        end=end,
        broken=fact["invalid_at"] is not None,
        superseded_by=text(fact["superseded_by"]) if fact["superseded_by"] else None,
        tip=tip,
    )


def ticks(low: float, high: float) -> Sequence[tuple[float, str]]:
    """Four to eight marks at round days, or at round times where it is less than some days."""
    span_s = (high - low) / 1000
    steps = [1, 5, 15, 60, 300, 900, 3600, 3 * 3600, 6 * 3600, 12 * 3600]
    steps += [days * 86400 for days in (1, 2, 7, 14, 30, 90, 180, 365, 730, 1825, 3650, 36500, 365000)]
    step = next((step for step in steps if span_s / step <= 7), steps[-1])
    form = "%H:%M:%S" if step < 60 else "%m-%d %H:%M" if step < 86400 else "%Y-%m-%d"
    marks: list[tuple[float, str]] = []
    at = (low / 1000 // step + 1) * step
    while at * 1000 < high and len(marks) < 12:
        try:
            marks.append((at * 1000, (datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=at)).strftime(form)))
        except OverflowError:
            break
        at += step
    return marks


async def invalidate(page: Page) -> Response:
    """Say that a fact is no longer true, or that it was true after all."""
    fact = page.form.bytes("id")
    await page.run("MEM.INVALIDATE", page.key, fact, *(["CLEAR"] if page.form.text("clear") else []))
    return page.to("/memory/record", key=page.key, id=fact)


async def entities(page: Page) -> Response:
    """The entities that are named the most as a graph, and a list of all."""
    key, form = page.key, page.form
    limit = form.number("nodes", 60, 2, _NODES)
    typed = ["TYPE", form.text("type")] if form.text("type") else []
    total, found, error = await _thousands(page, "MEM.ENTITIES", key, *typed)
    facts_total, facts_found, facts_error = await _thousands(page, "MEM.FACTS", key)
    drawing, left_out = await asyncio.to_thread(_graph, key, found, facts_found, limit)
    return await page.show(
        "entities.html",
        memory=key,
        form=form,
        error=error or facts_error,
        entities=found,
        listed=found[:_LISTED],
        total=total,
        unseen=max(0, total - len(found)),
        facts_seen=len(facts_found),
        facts_unseen=max(0, facts_total - len(facts_found)),
        drawing=drawing,
        left_out=left_out,
        limit=limit,
    )


async def _thousands(page: Page, *words: Word) -> tuple[int, list[dict[str, Any]], str]:
    """How many a command lists in all, the first thousands of them, and its error."""
    total = 0
    found: list[dict[str, Any]] = []
    for number in range(_REPLIES):
        reply, error = await page.attempt(*words, "LIMIT", 1000, "OFFSET", 1000 * number)
        if error:
            return total, found, error
        total, some = reply
        found += some
        if len(found) >= total or not some:
            break
    return total, found, ""


def _graph(
    key: bytes, found: list[dict[str, Any]], facts_found: list[dict[str, Any]], limit: int
) -> tuple[str, int]:
    """The drawing, and how many entities did not fit; puts those with the most facts first. A subject that is no entity
    is a node too."""
    found.sort(key=lambda entity: (-entity["facts"], entity["name"], entity["type"]))
    shown = found[:limit]
    places: dict[bytes, int] = {}
    typed: dict[tuple[bytes, bytes], int] = {}
    nodes = []
    for at, entity in enumerate(shown):
        for name in (entity["name"], *entity["aliases"]):
            places.setdefault(name.lower(), at)
            typed[name.lower(), entity["type"]] = at
        nodes.append(_node(key, entity["name"], text(entity["type"]), entity["facts"]))
    edges = []
    for fact in facts_found:
        target = typed.get((fact["object"].lower(), fact["entity_type"])) if fact["entity_type"] else None
        if target is None:
            continue
        subject = fact["subject"].lower()
        if subject not in places:
            if len(nodes) >= limit + limit // 2:
                continue
            places[subject] = len(nodes)
            nodes.append(_node(key, fact["subject"], "subject", 1))
        edges.append(Edge(places[subject], target, text(fact["predicate"])))
    return (graph(nodes, edges) if nodes else ""), len(found) - len(shown)


def _node(key: bytes, name: bytes, kind: str, weight: int) -> Node:
    return Node(text(name), text(name), kind, link("/memory/entity", key=key, name=name), int(weight))


async def entity(page: Page) -> Response:
    """The facts around an entity: MEM.PATHS."""
    key, form = page.key, page.form
    depth = form.number("depth", 1, 1, 3)
    words: list[Word] = ["DEPTH", depth, "LIMIT", 200]
    if form.text("asof"):
        words += ["ASOF", form.text("asof")]
    found, error = await page.attempt("MEM.PATHS", key, form.bytes("name"), *words)
    return await page.show(
        "entity.html", memory=key, form=form, name=form.bytes("name"), depth=depth, facts=found or [], error=error
    )


ROUTES = (
    ("/memory/facts", facts, ("GET",)),
    ("/memory/invalidate", invalidate, ("POST",)),
    ("/memory/entities", entities, ("GET",)),
    ("/memory/entity", entity, ("GET",)),
)
