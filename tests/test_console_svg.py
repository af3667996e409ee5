"""The console's drawings: where things stand, what is linked, that nothing in a record can leave its place."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from math import inf, nan

import numpy as np
import pytest
from console_demo import HOSTILE
from hypothesis import given
from hypothesis import strategies as st
from recalld.server.console_facts import ticks
from recalld.server.console_svg import Edge, Node, Span, clean, cut, graph, layout, line_chart, stacked_bar, timeline

SVG = "{http://www.w3.org/2000/svg}"
DAY = 86_400_000.0


def parsed(svg: str) -> ElementTree.Element:
    return ElementTree.fromstring(svg)


def texts(svg: str) -> list[str]:
    return [element.text or "" for element in parsed(svg).iter(f"{SVG}text")]


def by_class(svg: str, name: str) -> list[ElementTree.Element]:
    return [element for element in parsed(svg).iter() if element.get("class") == name]


def span(id: str, start: float | None, end: float | None, **more: object) -> Span:
    fields: dict[str, object] = {"label": id, "href": "/", "broken": False, "superseded_by": None, "tip": id}
    return Span(id=id, start=start, end=end, **(fields | more))  # type: ignore[arg-type]


# Bars


def test_bar_parts_are_as_wide_as_what_they_add() -> None:
    svg = stacked_bar({"keyword": 0.35, "vector": 0.4, "recency": 0.05}, 1.0)
    rects = [by_class(svg, f"signal-{name}")[0] for name in ("keyword", "vector", "recency")]
    places = [(float(rect.get("x", "")), float(rect.get("width", ""))) for rect in rects]
    assert places == [(0, 350), (350, 400), (750, 50)]
    assert parsed(svg).get("aria-label") == "keyword 0.3500, vector 0.4000, recency 0.0500"


@pytest.mark.parametrize("value", [nan, inf, -1.0, 0.0])
def test_bar_of_what_adds_nothing_is_empty(value: float) -> None:
    assert by_class(stacked_bar({"keyword": value}, 1.0), "signal-keyword") == []


@given(st.dictionaries(st.sampled_from("abcd"), st.floats()), st.floats())
def test_bar_never_leaves_its_frame(parts: dict[str, float], full: float) -> None:
    for rect in parsed(stacked_bar(parts, full)).iter(f"{SVG}rect"):
        start, width = float(rect.get("x", "0")), float(rect.get("width", "0"))
        assert start >= 0 and start + width <= 1000.011


# Lines


def test_line_goes_through_its_values_and_stops_at_gaps() -> None:
    svg = line_chart({"a": [0.0, 10.0, None, 5.0]}, [0, 1000, 2000, 3000], "t", str)
    [path] = by_class(svg, "line line-0")
    assert path.get("d") == "M66.0 160.0L213.3 12.0M508.0 86.0"
    assert texts(svg) == ["0.0", "5.0", "10.0", "3 s ago", "now"]


def test_line_without_samples_is_a_frame() -> None:
    assert by_class(line_chart({"a": []}, [], "t", str), "line line-0")[0].get("d") == ""


# Time line


def test_bars_stand_where_their_times_are() -> None:
    svg = timeline([span("a", 0, 50 * DAY), span("b", 50 * DAY, None)], 100 * DAY, lambda low, high: [])
    [on] = by_class(svg, "span-on")
    [ended] = by_class(svg, "span-ended")
    [now] = by_class(svg, "now")
    low, high = -4 * DAY, 104 * DAY

    def x_of(moment: float) -> float:
        return 270 + 620 * (moment - low) / (high - low)

    assert float(ended.get("x", "")) == pytest.approx(x_of(0), abs=0.1)
    assert float(ended.get("width", "")) == pytest.approx(x_of(50 * DAY) - x_of(0), abs=0.1)
    assert float(on.get("x", "")) == pytest.approx(x_of(50 * DAY), abs=0.1)
    assert float(on.get("x", "")) + float(on.get("width", "")) == pytest.approx(890, abs=0.1)
    assert float(now.get("x1", "")) == pytest.approx(x_of(100 * DAY), abs=0.1)
    assert len(by_class(svg, "span-open")) == 1


def test_an_arrow_leads_to_what_superseded_a_fact() -> None:
    old = span("a", 0, DAY, broken=True, superseded_by="b")
    svg = timeline([old, span("b", DAY, None)], 2 * DAY, lambda low, high: [])
    assert len(by_class(svg, "arrow")) == 1 and len(by_class(svg, "span-broken")) == 1
    # Not where the other is not drawn.
    assert by_class(timeline([old], 2 * DAY, lambda low, high: []), "arrow") == []


@given(st.lists(st.tuples(st.none() | st.floats(-1e15, 1e15), st.none() | st.floats(-1e15, 1e15)), max_size=5))
def test_time_line_of_any_times_stays_in_its_frame(times: list[tuple[float | None, float | None]]) -> None:
    spans = [span(str(at), start, end) for at, (start, end) in enumerate(times)]
    for rect in parsed(timeline(spans, 0.0, ticks)).iter(f"{SVG}rect"):
        start, width = float(rect.get("x", "0")), float(rect.get("width", "0"))
        assert start >= 0 and width > 0 and start + width <= 905


def test_ticks_are_few_and_inside() -> None:
    for length in (1e3, 6e4, 3.6e6, DAY, 30 * DAY, 3000 * DAY, 1e15):
        marks = ticks(1e12, 1e12 + length)
        assert len(marks) <= 8
        assert all(1e12 <= at <= 1e12 + length for at, _ in marks)
    assert [label for _, label in ticks(0, 3 * DAY)] == ["01-01 12:00", "01-02 00:00", "01-02 12:00", "01-03 00:00",
                                                         "01-03 12:00"]


# Graph


def test_layout_is_the_same_each_time_and_keeps_linked_nodes_close() -> None:
    edges = [(0, at) for at in range(1, 6)] + [(6, at) for at in range(7, 12)]
    places = layout(12, edges)
    assert np.array_equal(places, layout(12, edges))
    assert places.min() >= 0 and places.max() <= 1
    apart = np.sqrt(((places[:, None] - places[None, :]) ** 2).sum(axis=2))
    assert np.mean([apart[edge] for edge in edges]) < np.mean(apart[:6, 6:])


@given(st.integers(0, 12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=20))
def test_layout_of_any_graph_is_finite(count: int, edges: list[tuple[int, int]]) -> None:
    places = layout(count, [edge for edge in edges if max(edge) < count], steps=20)
    assert places.shape == (count, 2)
    assert np.isfinite(places).all() and (places >= 0).all() and (places <= 1).all()


def test_graph_links_each_node_and_draws_each_pair_once() -> None:
    nodes = [Node(name, name, "ORG", f"/e?name={name}", 1) for name in ("a", "b", "c")]
    svg = graph(nodes, [Edge(0, 1, "knows"), Edge(0, 1, "pays"), Edge(2, 2, "is")])
    assert [link.get("href") for link in parsed(svg).iter(f"{SVG}a")] == ["/e?name=a", "/e?name=b", "/e?name=c"]
    [line] = by_class(svg, "edge")
    assert line[0].text == "knows, pays"
    assert [element.text for element in by_class(svg, "edge-label")] == ["knows +1"]
    # c is linked with nothing else: it stands below the others.
    heights = [float(circle.get("cy", "")) for circle in by_class(svg, "node")]
    assert heights[2] > max(heights[:2])


# Text


def test_hostile_text_stays_text() -> None:
    """Parsed again, there are the elements there always are, and the text is what it was."""
    drawings = [
        graph([Node(HOSTILE, HOSTILE, HOSTILE, f'/"><script>{HOSTILE}', 1)], []),
        graph([Node("a", "a", "b", "/", 1), Node("c", "c", "d", "/", 1)], [Edge(0, 1, HOSTILE)]),
        timeline([span(HOSTILE, 0, 1, label=HOSTILE, tip=HOSTILE, href=HOSTILE)], 2.0, lambda low, high: []),
        stacked_bar({HOSTILE: 1.0}, 1.0),
    ]
    known = {"svg", "title", "a", "rect", "text", "circle", "line", "path", "defs", "marker"}
    for drawing in drawings:
        assert {element.tag.removeprefix(SVG) for element in parsed(drawing).iter()} <= known
        assert not [name for element in parsed(drawing).iter() for name in element.attrib if name.startswith("on")]
    [title] = [element.text for element in parsed(drawings[2]).iter(f"{SVG}title") if "script" in (element.text or "")]
    assert title == clean(HOSTILE)


def test_text_is_cut_and_cleaned() -> None:
    assert cut("a\nb\u202ec\0d", 20) == "a b c d"
    assert cut("abcdef", 4) == "abc\u2026"
