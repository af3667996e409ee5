"""The console's pages of memories and records: lists, queries taken apart, edits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from hashlib import sha256
from heapq import merge
from itertools import islice
from typing import Any

from starlette.responses import Response

from .console_client import Changed, Refused, Word
from .console_page import Form, Page, link, survives, text
from .console_samples import Size
from .console_session import may
from .console_svg import stacked_bar

_PAGE = 50
_RECORDS = 25
_SCAN = 500
_SORTS = ("name", "records", "bytes", "growth")
_SIGNALS = ("keyword", "vector", "recency", "importance")
_SETTINGS = "mode dim metric weights halflife fusion lang k1 b embedder model tagboost history".split()
_SET = "halflife fusion k1 b history maxrecords maxbytes".split()
_OPERATORS = "EQ NE GT GTE LT LTE IN NIN CONTAINS PREFIX EXISTS".split()


# Memories.


async def memories(page: Page) -> Response:
    """All memories that the user may look at, a page of them with their numbers."""
    search, sort = page.form.text("search"), page.form.text("sort", "name")
    sizes, growth = page.console.samples.sizes, page.console.samples.growth
    nothing = Size(0, 0)
    if sort not in _SORTS:
        sort = "name"

    def rank(key: bytes) -> tuple[float, bytes]:
        known = sizes.get(key, nothing)
        if sort == "growth":
            grown = growth(key, known)
            return (-grown.bytes if grown else 0, key)
        return (0 if sort == "name" else -known.records if sort == "records" else -known.bytes, key)

    pieces = [sorted(keys, key=rank) async for keys in _keys(page, search)]
    count = sum(map(len, pieces))
    last = max(1, -(-count // _PAGE))
    at = page.form.number("page", 1, 1, last)
    shown = islice(merge(*pieces, key=rank), (at - 1) * _PAGE, at * _PAGE)
    rows = []
    for key in await asyncio.to_thread(list, shown):
        info, error = await page.attempt("MEM.INFO", key)
        row = {"key": key, "info": info, "error": error, "growth": None}
        if info is not None:
            row["growth"] = growth(key, Size(info["records"], info["bytes"]))
        rows.append(row)
    return await page.show(
        "memories.html",
        rows=rows,
        count=count,
        search=search,
        sort=sort,
        sorts=_SORTS,
        at=at,
        last=last,
        since=page.console.samples.since,
    )


async def _keys(page: Page, search: str) -> AsyncIterator[list[bytes]]:
    """The keys that hold what is searched for, or match it where it is a glob, in pieces.

    With 100 000 of them each piece is sorted in its turn of the loop, and a thread merges as many as a page needs.
    """
    words: list[Word] = ["COUNT", _SCAN]
    if search:
        is_glob = any(special in search for special in "*?[")
        words += ["MATCH", search if is_glob else "*" + search.replace("\\", "\\\\") + "*"]
    cursor: Word = 0
    while True:
        cursor, found = await page.run("SCAN", cursor, *words)
        yield [key for key in found if may(page.session.account, [b"MEM.INFO", key])]
        if cursor == b"0":
            return


async def browse(page: Page) -> Response:
    """The records of a memory, the newest first."""
    key, form = page.key, page.form
    info = await page.run("MEM.INFO", key)
    at = form.number("page", 1, 1, 10_000_000)
    clauses = filters(form)
    records, error = await page.attempt(
        "MEM.LIST", key, "LIMIT", _RECORDS + 1, "OFFSET", (at - 1) * _RECORDS, "WITHMETA", *clauses
    )
    return await page.show(
        "records.html",
        memory=key,
        info=info,
        error=error,
        records=(records or [])[:_RECORDS],
        more=len(records or []) > _RECORDS,
        at=at,
        form=form,
        operators=_OPERATORS,
        filtered=bool(clauses),
    )


def filters(form: Form) -> list[Word]:
    """The clauses of a form: tags, one per comma, and one filter."""
    words: list[Word] = []
    tags = [tag.strip() for tag in form.text("tags").split(",") if tag.strip()]
    if tags:
        words += ["TAGS", "ALL" if form.text("all_tags") else "ANY", len(tags), *tags]
    field, operator = form.text("field"), form.text("operator", "EQ")
    if field and operator in _OPERATORS:
        words += ["FILTER", field, operator, form.text("value")]
    return words


# Queries.


async def query(page: Page) -> Response:
    """Ask a memory, and show what each hit's score is made of."""
    key, form = page.key, page.form
    info = await page.run("MEM.INFO", key)
    asked, error = await _query_words(page)
    hits: list[dict[str, Any]] = []
    stats, missing = None, None
    if asked and not error:
        reply, error = await page.attempt(
            "MEM.QUERY", key, *asked, "WITHSCORES", "WITHMETA", "EXPLAIN", "WITHSTATS"
        )
        if reply is not None:
            hits, stats = reply
        if form.text("why") and not error:
            missing, error = await page.attempt("MEM.EXPLAIN", key, form.text("why"), *asked)
    full = max((hit["score"] for hit in hits), default=0.0)
    shown = [explained(hit, full, number) for number, hit in enumerate(hits, 1)]
    return await page.show(
        "query.html",
        memory=key,
        info=info,
        form=form,
        asked=bool(asked),
        error=error,
        hits=shown,
        stats=stats,
        missing=missing,
        missing_shown=explained(missing, full, 0) if missing and "score" in missing else None,
        signals=_SIGNALS,
        operators=_OPERATORS,
        fusion=form.text("fusion") or text(info["fusion"]),
        limits=_limits(form),
    )


def _limits(form: Form) -> str:
    """What of the folded part of the form is in use."""
    names = {"tags": "tags", "field": "filter", "asof": "as of", "knownat": "as known at", "fusion": "fusion"}
    names |= {"tier": "by", "like": "vector of", "why": "why not"}
    return ", ".join(f"{shown} {form.text(name)}" for name, shown in names.items() if form.text(name))


async def _query_words(page: Page) -> tuple[list[Word], str]:
    """The words of the query behind its key, none where nothing was asked; and why it cannot be asked."""
    form = page.form
    words: list[Word] = []
    if form.text("q"):
        words += ["TEXT", form.bytes("q").replace(b"\r\n", b"\n")]
    if form.text("like"):
        record, error = await page.attempt("MEM.GET", page.key, form.bytes("like"), "WITHVEC")
        if error:
            return [], error
        if record is None or not record.get("vector"):
            return [], f"The record '{form.text('like')}' is not there, or has no vector to compare with."
        words += ["VEC", record["vector"]]
    if not words:
        return [], ""
    words += ["TOPK", form.number("top", 10, 1, 100), *filters(form)]
    for name in ("asof", "knownat"):
        if form.text(name):
            words += [name.upper(), form.text(name)]
    if form.text("fusion") in ("LINEAR", "RRF"):
        words += ["FUSION", form.text("fusion")]
    if form.text("tier") in ("KEYWORD", "LIKE"):
        words += ["TIER", form.text("tier")]
    return words, ""


def explained(hit: dict[str, Any], full: float, number: int) -> dict[str, Any]:
    """A hit with its breakdown: rows for the table, parts for the bar. The numbers are EXPLAIN's own."""
    explain = hit.get("explain", hit)
    rows = [{"name": name, **explain[name]} for name in _SIGNALS if name in explain]
    parts = {row["name"]: float(row.get("contribution") or 0.0) for row in rows}
    return {
        "number": number,
        "hit": hit,
        "rows": rows,
        "parts": parts,
        "bar": stacked_bar(parts, full),
        "terms": explain.get("terms", []),
        "tier": text(explain.get("tier", "")),
    }


# A record.


async def record(page: Page) -> Response:
    """Show a record, with a form to change it; or change it."""
    key, form = page.key, page.form
    record_id = form.bytes("id")
    found = await page.run(*_get(key, record_id))
    if found is None:
        return await page.show(
            "message.html", 404, memory=key, title="Not found", text=f"There is no record '{text(record_id)}'."
        )
    if page.request.method == "POST":
        opened = form.text("version")
        changes = _changes(form, found, key) if opened == version(found) else []
        done, note, status = 0, "", 400
        try:
            if opened != version(found):
                raise Changed
            for words in changes:
                await page.run(*words, unless=None if done else lambda: version(_current(page, found["id"])) != opened)
                done += 1
        except Changed:
            status, note = 409, (
                "Nothing was saved: the record has changed since you opened it. Below are your words, and the metadata"
                " as it is now; what is saved next takes the place of what others wrote."
            )
        except Refused as error:
            status = {"NOPERM": 403, "OOM": 503, "MISCONF": 503}.get(error.code, 400)
            note = f"{'Part of it is saved; the rest was refused' if done else 'The server refused'}: {error}"
        if not note:
            return page.to("/memory/record", key=key, id=found["id"], saved=1 if changes else 0)
        if done or status == 409:
            found = await page.run(*_get(key, found["id"]))
            if found is None:
                return await page.show("message.html", 404, memory=key, title="Not found", text="It was deleted.")
        return await _show_record(page, found, status, note, form)
    note = {"1": "Saved.", "0": "Nothing was changed."}.get(form.text("saved"), "")
    return await _show_record(page, found, 200, note)


def _get(key: bytes, record_id: bytes) -> list[Word]:
    return ["MEM.GET", key, record_id, "WITHMETA", "WITHFACT", "WITHVEC"]


def _current(page: Page, record_id: bytes) -> dict[str, Any] | None:
    """The record as it is right now."""
    found: dict[str, Any] | None = page.run.at_once(*_get(page.key, record_id))
    return found


async def _show_record(
    page: Page, found: dict[str, Any], status: int, note: str, given: Form | None = None
) -> Response:
    """`given` is what somebody wrote who could not save it: their work is not lost."""
    written = {"text": text(found["text"]), "importance": f"{found['importance']:g}", "ttl": ""}
    written |= {"tags": "\n".join(map(_shown_tag, found.get("tags", []))), "new_field": "", "new_value": ""}
    meta = [
        {"field": field, "value": value, "editable": survives(value), "drop": False}
        for field, value in sorted(found["meta"].items())
    ]
    if given is not None:
        written = {name: given.text(name, value) for name, value in written.items()}
        if given.text("version") == version(found):  # or they are numbered otherwise
            for at, row in enumerate(meta):
                row |= {"value": given.text(f"value{at}", text(row["value"])), "drop": bool(given.text(f"drop{at}"))}
    return await page.show(
        "record.html",
        status,
        memory=page.key,
        record=found,
        fact=found.get("fact"),
        note=note,
        failed=status >= 400,
        version=version(found),
        editable=_editable(found),
        written=written,
        meta=meta,
        dim=len(found.get("vector") or b"") // 4,
    )


def version(found: dict[str, Any] | None) -> str:
    """Tells a record from what it was before a change; of none, nothing."""
    if found is None:
        return ""
    kept = sorted((name, value) for name, value in found.items() if name not in ("pttl", "vector"))
    return sha256(repr([*kept, found.get("pttl") == -1.0]).encode()).hexdigest()[:32]


def _editable(found: dict[str, Any]) -> bool:
    """Whether the text can be written, and survives a browser's form."""
    return "fact" not in found and survives(found["text"])


def _shown_tag(tag: bytes) -> str:
    """On a line of its own."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text(tag)).strip()


def _changes(form: Form, found: dict[str, Any], key: bytes) -> list[list[Word]]:
    """The commands that make of the record what the form says; what was not touched is not written."""
    record_id, meta = found["id"], sorted(found["meta"].items())
    dropped = [field for at, (field, _) in enumerate(meta) if form.text(f"drop{at}")]
    fields: list[Word] = []
    for at, (field, value) in enumerate(meta):
        given = form.bytes(f"value{at}")
        if field not in dropped and survives(value) and _lines(given) != _lines(value):
            fields += [field, _lines(given)]
    for field, value in zip(form.all("new_field"), form.all("new_value"), strict=False):
        if field:
            fields += [field, _lines(value.encode("utf-8", "surrogateescape"))]
    changes: list[list[Word]] = []
    written = _written(form, found) if _editable(found) else []
    if written:
        pairs = [word for at in range(0, len(fields), 2) for word in ("META", *fields[at : at + 2])]
        changes.append(["MEM.ADD", key, "ID", record_id, *written, *pairs, "XX"])
    elif fields:
        changes.append(["MEM.SETMETA", key, record_id, *fields])
    if dropped:
        changes.append(["MEM.DELMETA", key, record_id, *dropped])
    if form.text("ttl"):
        changes.append(["MEM.EXPIRE", key, record_id, form.text("ttl")])
    return changes


def _written(form: Form, found: dict[str, Any]) -> list[Word]:
    """What MEM.ADD must say of text, tags and importance; nothing where they are as they were."""
    words: list[Word] = []
    old = found["text"]
    given = _lines(form.bytes("text"))
    new = old if given == _lines(old) else given
    tags = [tag.strip() for tag in form.text("tags").split("\n") if tag.strip()]
    known = {_shown_tag(tag): tag for tag in found.get("tags", [])}
    if tags != list(known):
        words += ["TAGS", len(tags), *(known.get(tag, tag) for tag in tags)]
    if form.text("importance") != f"{found['importance']:g}":
        words += ["IMPORTANCE", form.text("importance")]
    if new == old and not words:
        return []
    if found.get("vector") and (new == old or form.text("keepvec")):
        words.append("KEEPVEC")
    return ["TEXT", new, *words]


def _lines(value: bytes) -> bytes:
    """Browsers send every line end as CR LF."""
    return value.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


async def delete(page: Page) -> Response:
    """Ask whether a record is to go; then delete it."""
    key, record_id, seen = page.key, page.form.bytes("id"), page.form.text("version")
    note = ""
    if page.request.method == "POST":
        try:
            # Gone already: as it was to be.
            unless = (lambda: version(_current(page, record_id)) not in ("", seen)) if seen else None
            await page.run("MEM.DEL", key, record_id, unless=unless)
            return page.to("/memory", key=key)
        except Changed:
            note = "Nothing was deleted: the record has changed since you opened it."
    found = await page.run(*_get(key, record_id))
    if found is None:
        return await page.show("message.html", 404, memory=key, title="Not found", text="There is no such record.")
    return await page.show(
        "delete.html", 409 if note else 200, memory=key, record=found, version=version(found), note=note
    )


# Settings.


async def settings(page: Page) -> Response:
    """A memory's settings and counts; or change some."""
    key, form = page.key, page.form
    error = ""
    if page.request.method == "POST":
        old = await page.run("MEM.CONFIG", key)
        now = _settings_shown(old)
        words: list[Word] = []
        weights = [f"weight_{name}" for name in _SIGNALS]
        if [form.text(name) for name in weights] != [now[name] for name in weights]:
            words += ["WEIGHTS", *map(form.text, weights)]
        for name in _SET:
            if form.text(name) and form.text(name) != now[name]:
                words += [name.upper(), form.text(name)]
        opened = form.text("version", _settings_version(old))
        try:
            if words:
                await page.run(
                    "MEM.CONFIG",
                    key,
                    *words,
                    unless=lambda: _settings_version(page.run.at_once("MEM.CONFIG", key)) != opened,
                )
        except Changed:
            error = "Nothing was saved: the settings have changed since you opened them. Below are yours."
        except Refused as refusal:
            error = str(refusal)
        if not error:
            return page.to("/memory/settings", key=key, saved=1)
    info = await page.run("MEM.INFO", key)
    # To the server it is a write, whether or not it changes anything.
    config, refused = await page.attempt("MEM.CONFIG", key)
    config = config or {name: value for name, value in info.items() if name in _SETTINGS}
    rows = [(name, value) for name, value in info.items() if name not in config]
    shown = {} if refused else _settings_shown(config)
    if error:  # what somebody wrote is not lost
        shown = {name: form.text(name, value) for name, value in shown.items()}
    return await page.show(
        "settings.html",
        400 if error else 200,
        memory=key,
        config=config,
        version=_settings_version(config),
        shown=shown,
        rows=rows,
        error=error,
        refused=refused,
        saved=bool(form.text("saved")),
        signals=_SIGNALS,
        plain=plain,
    )


def _settings_shown(config: dict[str, Any]) -> dict[str, str]:
    """The fields of the form."""
    weights = {f"weight_{name}": plain(config["weights"][name]) for name in _SIGNALS}
    return weights | {name: plain(config[name]) for name in _SET}


def _settings_version(config: dict[str, Any]) -> str:
    return sha256(repr(sorted(config.items())).encode()).hexdigest()[:32]


def plain(value: Any) -> str:
    """A setting as one would write it."""
    return f"{value:g}" if isinstance(value, float) else text(value)


def record_link(key: bytes, record_id: bytes) -> str:
    return link("/memory/record", key=key, id=record_id)


ROUTES = (
    ("/", memories, ("GET",)),
    ("/memory", browse, ("GET",)),
    ("/memory/query", query, ("GET",)),
    ("/memory/record", record, ("GET", "POST")),
    ("/memory/delete", delete, ("GET", "POST")),
    ("/memory/settings", settings, ("GET", "POST")),
)
