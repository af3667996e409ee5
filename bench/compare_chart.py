"""The chart of compare.py: a panel for each kind of result that there is."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any

Row = dict[str, Any]

COLOURS = {"recalld": "#1f77b4", "RediSearch": "#d62728"}
MARKS = {"knn": "o-", "keyword": "s--", "hybrid": "^:", "hybrid RRF": "v-."}
COLUMNS = 3


def pyplot() -> Any:
    """matplotlib.pyplot, set to draw into files; it is no dependency of recalld."""
    try:
        importlib.import_module("matplotlib").use("Agg")
        return importlib.import_module("matplotlib.pyplot")
    except ImportError:
        raise SystemExit("--png needs matplotlib: pip install matplotlib") from None


def draw(results: Row, path: str) -> None:
    panels: dict[str, Callable[[Any, Sequence[Row]], None]] = {
        "queries": ratios,
        "cost": cost,
        "concurrency": concurrency,
        "memory": memory,
        "ingest": ingest,
        "ping": ping,
    }
    shown = [name for name in panels if results[name]]
    if not shown:
        raise SystemExit("nothing was measured that could be drawn")
    plot = pyplot()
    columns = min(COLUMNS, len(shown))
    lines = -(-len(shown) // columns)
    figure, axes = plot.subplots(lines, columns, figsize=(6 * columns, 5 * lines), squeeze=False, layout="constrained")
    for axis in axes.flat[len(shown) :]:
        axis.set_visible(False)
    for axis, name in zip(axes.flat, shown, strict=False):
        panels[name](axis, results[name])
    facts = results["machine"]
    figure.suptitle(f"recalld and RediSearch, same run: {facts['cores']} cores, {facts['cpu']}, {facts['system']}")
    figure.savefig(path, dpi=110)


def ratios(axis: Any, rows: Sequence[Row]) -> None:
    """Bars: how many times as many queries per second; a line where the wanted ratio is."""
    names = [f"{row['query']}, {size(row['records'])}, {row['connections']} conn." for row in rows]
    places = range(len(rows), 0, -1)
    colours = [COLOURS["recalld"] if row["connections"] == 1 else "#7fb3d9" for row in rows]
    bars = axis.barh(places, [row["ratio"] for row in rows], color=colours)
    axis.bar_label(bars, [f" {row['ratio']:.2g}" for row in rows], fontsize=7)
    wanted = [(place, row["wanted"]) for place, row in zip(places, rows, strict=True) if row["wanted"]]
    axis.scatter([least for _, least in wanted], [place for place, _ in wanted], marker="|", s=90, color="black")
    axis.axvline(1.0, color="grey", linewidth=0.8)
    axis.set_yticks(places, names, fontsize=7)
    axis.set_xscale("log")
    axis.set_title("queries per second, recalld / RediSearch (|: wanted)", fontsize=10)


def cost(axis: Any, rows: Sequence[Row]) -> None:
    curves(axis, rows, "records", "ms per query, 1 connection, by records", lambda side: side["p50_ms"])


def concurrency(axis: Any, rows: Sequence[Row]) -> None:
    title = f"ms per query (1000 / rate) by queries at once, {size(rows[0]['records'])} records"
    curves(axis, rows, "connections", title, lambda side: 1000 / side["per_s"])


def curves(axis: Any, rows: Sequence[Row], by: str, title: str, value: Callable[[Row], float]) -> None:
    for kind in dict.fromkeys(row["query"] for row in rows):
        mine = [row for row in rows if row["query"] == kind]
        for name, colour in COLOURS.items():
            line = [value(row[name]) for row in mine]
            axis.plot([row[by] for row in mine], line, MARKS[kind], color=colour, label=f"{name} {kind}", markersize=4)
    axis.set_xscale("log", base=2 if by == "connections" else 10)
    axis.set_yscale("log")
    axis.set_xlabel(by)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
    axis.set_title(title, fontsize=10)


def memory(axis: Any, rows: Sequence[Row]) -> None:
    names = [f"{row['server']}\n{size(row['records'])}" for row in rows]
    columns(axis, names, [row["bytes_per_record"] for row in rows], [row["server"] for row in rows])
    axis.set_title("bytes per record, growth of the process", fontsize=10)


def ingest(axis: Any, rows: Sequence[Row]) -> None:
    servers = ["RediSearch" if row["way"].startswith("HSET") else "recalld" for row in rows]
    columns(axis, [row["way"].replace(", ", "\n") for row in rows], [row["per_s"] for row in rows], servers)
    axis.set_title(f"records added per second, {size(rows[0]['records'])}, fsync every second", fontsize=10)


def ping(axis: Any, rows: Sequence[Row]) -> None:
    names = [f"{row['server']}\n{row['scanning_connections']} scanning" for row in rows]
    columns(axis, names, [row["p99_ms"] for row in rows], [row["server"] for row in rows])
    axis.set_yscale("log")
    axis.set_title(f"PING p99 in ms beside KNN of {size(rows[0]['records'])} records", fontsize=10)


def columns(axis: Any, names: Sequence[str], values: Sequence[float], servers: Sequence[str]) -> None:
    places = range(len(names))
    bars = axis.bar(places, values, color=[COLOURS[server] for server in servers])
    axis.bar_label(bars, [f"{value:,.0f}" if value >= 100 else f"{value:.2g}" for value in values], fontsize=8)
    axis.set_xticks(places, names, fontsize=7)


def size(records: int) -> str:
    return f"{records // 1_000_000}M" if records % 1_000_000 == 0 else f"{records // 1000}k"
