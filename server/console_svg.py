"""The console's drawings: values in, SVG text out.

Rule 1: pure and deterministic: no clock, no chance, the same values give the same bytes.
Rule 2: whatever a record holds is escaped here, since the templates trust what they get from here.
Rule 3: colours are classes of console.css, dark and light; nothing is said by colour alone: each drawing has a title,
        and its numbers stand in a table beside it.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import isfinite, log10

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


def clean(text: str) -> str:
    """On one line, without characters that show nothing or turn the line around."""
    return "".join(" " if unicodedata.category(char)[0] == "C" else char for char in text)


def cut(text: str, length: int) -> str:
    """The beginning, cleaned; no more of it is looked at than is shown."""
    return clean(text) if len(text) <= length else clean(text[: length - 1]) + "…"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    kind = f' class="{kind}"' if kind else ""
    anchor = f' text-anchor="{anchor}"' if anchor else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind}{anchor}>{escape(text)}</text>'


def _svg(width: float, height: float, title: str, body: Sequence[str], kind: str, more: str = "") -> str:
    title = escape(clean(title))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="{kind}" viewBox="0 0 {width:.0f} {height:.0f}" role="img"'
        f' aria-label="{title}"{more}><title>{title}</title>{"".join(body)}</svg>'
    )


# Bars of contributions.


def stacked_bar(parts: Mapping[str, float], full: float) -> str:
    """What each signal adds to a score, one behind the other; the whole width is `full`."""
    full = full if isfinite(full) and full > 0 else 1.0
    body, x = ['<rect class="bar-back" width="1000" height="22"/>'], 0.0
    for name, value in parts.items():
        width = max(0.0, min(1000 * value / full, 1000 - x)) if isfinite(value) else 0.0
        if width:
            tip = f"<title>{escape(name)} {value:.4f}</title>"
            body.append(
                f'<rect class="signal-{escape(name)}" x="{x:.2f}" width="{width:.2f}" height="22">{tip}</rect>'
            )
            # A gap in the page's colour, so that neighbours are told apart without their colours.
            body.append(f'<rect class="bar-gap" x="{max(0.0, x + width - 3):.2f}" width="3" height="22"/>')
        x += width
    title = ", ".join(f"{name} {value:.4f}" for name, value in parts.items())
    return _svg(1000, 22, title, body, "bar", ' preserveAspectRatio="none"')


# Lines over time.


def line_chart(
    lines: Mapping[str, Sequence[float | None]], times: Sequence[int], title: str, show: Callable[[float], str]
) -> str:
    """Lines over unix milliseconds; None is a gap. `show` writes a value for people."""
    width, height, left, top, bottom = 520, 190, 66, 12, 160
    values = [value for line in lines.values() for value in line if value is not None]
    high = _round_up(max(values, default=0.0))
    first, last = (times[0], times[-1]) if times else (0, 0)
    span = max(1, last - first)

    def x_of(at: int) -> float:
        return left + (width - left - 12) * (at - first) / span

    def y_of(value: float) -> float:
        return bottom - (bottom - top) * value / high

    body = []
    for part in (0.0, 0.5, 1.0):
        y = y_of(high * part)
        body.append(f'<line class="grid" x1="{left}" x2="{width - 12}" y1="{y:.1f}" y2="{y:.1f}"/>')
        body.append(_text(left - 6, y + 4, show(high * part), "axis", "end"))
    if times:
        body.append(_text(left, bottom + 20, _ago(last - first), "axis"))
        body.append(_text(width - 12, bottom + 20, "now", "axis", "end"))
    for number, line in enumerate(lines.values()):
        pen, path = "M", []
        for at, value in zip(times, line, strict=True):
            if value is None:
                pen = "M"
                continue
            path.append(f"{pen}{x_of(at):.1f} {y_of(value):.1f}")
            pen = "L"
        body.append(f'<path class="line line-{number}" d="{"".join(path)}"/>')
    return _svg(width, height, title, body, "chart")


def _round_up(value: float) -> float:
    """The next 1, 2 or 5 times a power of ten."""
    if not isfinite(value) or value <= 0:
        return 1.0
    power = 10.0 ** int(np.floor(log10(value)))
    return float(next(step * power for step in (1, 2, 5, 10) if step * power >= value))


def _ago(ms: int) -> str:
    seconds = ms // 1000
    if seconds < 120:
        return f"{seconds} s ago"
    return f"{seconds // 60} min ago" if seconds < 7200 else f"{seconds / 3600:.1f} h ago"


# Facts over time.


@dataclass(slots=True, frozen=True)
class Span:
    """One fact: from `start` to `end` (unix milliseconds; None: open), `broken` where it was invalidated."""

    id: str
    label: str
    href: str
    start: float | None
    end: float | None
    broken: bool
    superseded_by: str | None
    tip: str


def timeline(spans: Sequence[Span], now: float, ticks: Callable[[float, float], Sequence[tuple[float, str]]]) -> str:
    """Bars from their start to their end, each linked; an arrow leads from a superseded one to what came after it.

    `ticks(from, to)` gives the marks of the axis.
    """
    width, left, row, top = 900.0, 270.0, 30.0, 34.0
    moments = [moment for span in spans for moment in (span.start, span.end) if moment is not None]
    low, high = min([*moments, now]), max([*moments, now])
    margin = max(1.0, (high - low) * 0.04)
    low, high = low - margin, high + margin
    height = top + row * len(spans) + 12

    def x_of(moment: float) -> float:
        return left + (width - left - 10) * (moment - low) / (high - low)

    body = [
        '<defs><marker id="arrow" class="arrow-head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto"><path d="M0 0L8 4L0 8z"/></marker></defs>'
    ]
    for moment, label in ticks(low, high):
        x = x_of(moment)
        body.append(f'<line class="grid" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 8:.0f}" y2="{height - 6:.0f}"/>')
        body.append(_text(x, top - 14, label, "axis", "middle"))
    places: dict[str, tuple[float, float, float]] = {}
    for number, span in enumerate(spans):
        y = top + row * number
        start = x_of(span.start) if span.start is not None else left
        end = x_of(span.end) if span.end is not None else width - 10
        end = max(end, start + 4)
        places[span.id] = start, end, y
        kind = "span-broken" if span.broken else "span-ended" if span.end is not None and span.end <= now else "span-on"
        # An open end has no right edge: it goes on.
        open_end = "" if span.end is not None else f'<path class="span-open" d="M{end - 6:.1f} {y + 5:.1f}l6 8l-6 8"/>'
        body.append(
            f'<a href="{escape(span.href)}"><title>{escape(clean(span.tip))}</title>'
            f'<rect class="band" x="0" y="{y:.1f}" width="{width:.0f}" height="{row - 4:.0f}"/>'
            + _text(6, y + 18, cut(span.label, 38), "label")
            + f'<rect class="{kind}" x="{start:.1f}" y="{y + 5:.1f}" width="{end - start:.1f}" height="16" rx="3"/>'
            + open_end
            + "</a>"
        )
    for span in spans:
        if span.superseded_by in places and span.superseded_by != span.id:
            _, x1, y1 = places[span.id]
            x2, _, y2 = places[span.superseded_by]
            bend = 14 if y2 > y1 else -14
            body.append(
                f'<path class="arrow" marker-end="url(#arrow)"'
                f' d="M{x1:.1f} {y1 + 13:.1f}C{x1 + 18:.1f} {y1 + 13 + bend:.1f} {x2 - 22:.1f} {y2 + 13 - bend:.1f}'
                f' {x2 - 2:.1f} {y2 + 13:.1f}"/>'
            )
    x = x_of(now)
    body.append(f'<line class="now" x1="{x:.1f}" x2="{x:.1f}" y1="{top - 8:.0f}" y2="{height - 6:.0f}"/>')
    return _svg(width, height, f"{len(spans)} facts on a time line", body, "timeline").replace(
        'role="img"', 'role="group"', 1
    )


# Entities as a graph.


@dataclass(slots=True, frozen=True)
class Node:
    name: str
    label: str
    kind: str
    href: str
    weight: int


@dataclass(slots=True, frozen=True)
class Edge:
    source: int
    target: int
    label: str


def graph(nodes: Sequence[Node], edges: Sequence[Edge]) -> str:
    """Circles and lines; a circle links to its entity. The label is inside the link, so it can be clicked as well."""
    width = 900.0
    linked = sorted({end for edge in edges if edge.source != edge.target for end in (edge.source, edge.target)})
    number = {place: at for at, place in enumerate(linked)}
    pairs = [(number[edge.source], number[edge.target]) for edge in edges if edge.source != edge.target]
    field = min(620.0, 160.0 + 40 * len(linked)) if linked else 0.0
    xs, ys = np.zeros(len(nodes)), np.zeros(len(nodes))
    if linked:
        places = layout(len(linked), pairs)
        xs[linked], ys[linked] = places[:, 0] * (width - 200) + 100, places[:, 1] * (field - 90) + 40
    # What nothing links stands in rows below.
    alone = [at for at in range(len(nodes)) if at not in number]
    for at, place in enumerate(alone):
        xs[place], ys[place] = 75 + 125 * (at % 7), field + 36 + 58 * (at // 7)
    height = field + 58 * -(-len(alone) // 7) + 14
    body = []
    joined: dict[tuple[int, int], list[str]] = {}
    for edge in edges:
        joined.setdefault((edge.source, edge.target), []).append(edge.label)
    for (source, target), labels in joined.items():
        if source == target:
            continue
        x1, y1, x2, y2 = xs[source], ys[source], xs[target], ys[target]
        tip = escape(clean(", ".join(labels)))
        body.append(
            f'<line class="edge" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"><title>{tip}</title></line>'
        )
        if len(joined) <= 40:
            label = cut(labels[0], 22) + (f" +{len(labels) - 1}" if len(labels) > 1 else "")
            body.append(_text((x1 + x2) / 2, (y1 + y2) / 2 - 3, label, "edge-label", "middle"))
    for node, x, y in zip(nodes, xs, ys, strict=True):
        radius = 7 + min(15.0, 3 * log10(1 + node.weight) * 2)
        tip = escape(clean(f"{node.name} ({node.kind}), {node.weight} facts"))
        body.append(
            f'<a href="{escape(node.href)}"><title>{tip}</title>'
            f'<circle class="node" cx="{x:.1f}" cy="{y:.1f}" r="{radius:.1f}"/>'
            + _text(x, y + radius + 13, cut(node.label, 24), "label", "middle")
            + "</a>"
        )
    return _svg(width, height, f"{len(nodes)} entities and what links them", body, "graph").replace(
        'role="img"', 'role="group"', 1
    )


def layout(count: int, edges: Sequence[tuple[int, int]], steps: int = 120) -> Floats:
    """Places in the unit square: linked nodes attract, all push each other off (Fruchterman and Reingold, 1991).

    They start on a spiral, so nothing is left to chance. O(steps * count**2): 20 ms for 200 nodes.
    """
    if count == 0:
        return np.zeros((0, 2))
    number = np.arange(count)
    angle = number * np.pi * (3 - np.sqrt(5))
    radius = np.sqrt((number + 0.5) / count)
    at = np.column_stack((radius * np.cos(angle), radius * np.sin(angle)))
    links = np.zeros((count, count))
    for source, target in edges:
        if source != target:
            links[source, target] = links[target, source] = 1.0
    ideal = np.sqrt(4.0 / count)
    for step in range(steps if count > 1 else 0):
        apart = at[:, None, :] - at[None, :, :]
        distance = np.maximum(np.sqrt((apart**2).sum(axis=2)), 1e-3)
        force = ideal**2 / distance**2 - links * distance / ideal
        np.fill_diagonal(force, 0.0)
        # The middle draws a little, or parts without a link would leave.
        move = (apart * force[:, :, None]).sum(axis=1) - 0.3 * at
        length = np.maximum(np.sqrt((move**2).sum(axis=1, keepdims=True)), 1e-9)
        at = at + move / length * np.minimum(length, 0.15 * (1 - step / steps) + 0.005)
    low, high = at.min(axis=0), at.max(axis=0)
    spread = high - low
    return np.where(spread > 1e-9, (at - low) / np.where(spread > 1e-9, spread, 1.0), 0.5)
