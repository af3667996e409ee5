"""The console's pages of what goes on: charts, slow log, who read a memory, its events as they happen."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any
from urllib.parse import quote

from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from .console_client import Insider
from .console_page import Page, size, text
from .console_samples import Sample
from .console_svg import line_chart

# A line at least so often, so that a reader who is gone is noticed, and the end of the session.
_HEARTBEAT_S = 10
_MOST_STREAMS = 4  # per session


async def status(page: Page) -> Response:
    """Memory, commands and latency over the last hour, and the commands by time."""
    info = await page.run("INFO", "everything")
    ring = list(page.console.samples.ring)
    charts = await asyncio.to_thread(_charts, ring)
    fields = _fields(text(info))
    latest, latency_error = await page.attempt("LATENCY", "LATEST")
    return await page.show(
        "status.html",
        charts=charts,
        ring=ring[-12:],
        fields=fields,
        commands=_commands(fields),
        latest=latest or [],
        latency_error=latency_error,
    )


def _charts(ring: list[Sample]) -> list[tuple[str, list[str], str]]:
    """Each chart's heading, the names of its lines, and the drawing."""
    times = [sample.time for sample in ring]
    return [
        (
            "Memory of the process",
            ["resident"],
            line_chart({"resident": [float(s.resident_bytes) for s in ring]}, times, "Memory of the process", size),
        ),
        (
            "Commands per second",
            ["commands"],
            line_chart({"commands": [s.ops_per_s for s in ring]}, times, "Commands per second", _short),
        ),
        (
            "Latency, mean of five seconds, milliseconds",
            ["all commands", "queries"],
            line_chart(
                {"all commands": [s.mean_ms for s in ring], "queries": [s.query_ms for s in ring]},
                times,
                "Latency in milliseconds",
                _short,
            ),
        ),
    ]


def _short(value: float) -> str:
    return f"{value:g}"


def _fields(info: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in info.splitlines() if ":" in line)
    return {name: value for name, _, value in pairs}


def _commands(fields: dict[str, str]) -> list[dict[str, str]]:
    """The commands of INFO commandstats, those that took the most time in all first."""
    rows = []
    for name, value in fields.items():
        if name.startswith("cmdstat_"):
            row = dict(pair.split("=", 1) for pair in value.split(",") if "=" in pair)
            percentiles = fields.get("latency_percentiles_usec_" + name.removeprefix("cmdstat_"), "")
            row |= {"name": name.removeprefix("cmdstat_"), "percentiles": percentiles.replace(",", " ")}
            rows.append(row)
    return sorted(rows, key=lambda row: -float(row.get("usec", 0)))[:30]


async def slowlog(page: Page) -> Response:
    """The commands that took long."""
    entries = await page.run("SLOWLOG", "GET", 100)
    config, _ = await page.attempt("CONFIG", "GET", "slowlog-log-slower-than")
    slower = text((config or {}).get("slowlog-log-slower-than", ""))
    return await page.show("slowlog.html", entries=entries, slower=slower)


async def audit(page: Page) -> Response:
    """Who read a memory."""
    form = page.form
    words = ["ACCESSOR", form.text("accessor")] if form.text("accessor") else []
    entries, error = await page.attempt("MEM.AUDIT", page.key, "LIMIT", 200, *words)
    config, _ = await page.attempt("CONFIG", "GET", "mem-audit")
    return await page.show(
        "audit.html",
        memory=page.key,
        form=form,
        entries=entries or [],
        error=error,
        kept=text((config or {}).get("mem-audit", "")),
    )


async def watch(page: Page) -> Response:
    """The page that shows a memory's events; its script reads them from `events`."""
    return await page.show("watch.html", memory=page.key)


async def events(page: Page) -> Response:
    """A memory's events as server-sent events, each a JSON object, until somebody leaves."""
    if page.session.streams >= _MOST_STREAMS:
        return await page.show("message.html", 429, title="Too many", text="You are watching enough already.")
    channel = b"__mem__:" + page.key
    # In the name of the stream, which outlives this request.
    run = Insider(page.console.server, page.run.addr, page.session.account)
    page.session.streams += 1
    page.console.streams.add(run)

    def end() -> None:
        page.session.streams -= 1
        page.console.streams.discard(run)
        run.close()

    async def lines() -> AsyncIterator[str]:
        console = page.console
        yield "retry: 3000\n\n"
        while not console.closing:
            messages = await run.pushed(_HEARTBEAT_S)
            here = console.sessions.find(page.token, touch=False) is page.session
            if not here or page.session.account.channels_denied([channel], []):
                yield "event: ended\ndata: {}\n\n"
                return
            yield "".join(_event(message, console.server.clock()) for message in messages) or ": here\n\n"

    try:
        await run("SUBSCRIBE", channel)
    except BaseException:
        end()
        raise
    return _Stream(lines(), end)


class _Stream(StreamingResponse):
    """Server-sent events; `end` is called when they end, also where somebody left before the first."""

    def __init__(self, lines: AsyncIterator[str], end: Callable[[], None]) -> None:
        super().__init__(lines, media_type="text/event-stream", headers={"x-accel-buffering": "no"})
        self._end = end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._end()


def _event(message: Any, now: int) -> str:
    kind, _, rest = message[2].partition(b" ")
    told = {"time": now, "event": text(kind), "id": text(rest), "to": quote(rest, safe="")}
    return f"data: {json.dumps(told)}\n\n"


ROUTES = (
    ("/status", status, ("GET",)),
    ("/slowlog", slowlog, ("GET",)),
    ("/memory/audit", audit, ("GET",)),
    ("/memory/watch", watch, ("GET",)),
    ("/memory/events", events, ("GET",)),
)
