"""LATENCY: the spikes that the latency monitor saw, and the histogram of every command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..protocol.reply import Verbatim
from .commands import TABLE, command, container
from .errors import CommandError
from .latency import graph, report

if TYPE_CHECKING:
    from .client import Client

_FLAGS = "admin noscript loading stale"

container("LATENCY", summary="Show what took long, and how long commands take.", group="server")


@command("LATENCY LATEST", arity=2, flags=_FLAGS, usage="LATENCY LATEST", complexity="O(events)", group="server")
def latency_latest(ctx: Client, args: list[bytes]) -> list[list[Any]]:
    """Show each event's latest spike: name, unix time in seconds, milliseconds, and the worst of all."""
    return [[name, *event.samples[-1], event.max_ms] for name, event in ctx.server.observer.latency.events.items()]


@command("LATENCY HISTORY", arity=3, flags=_FLAGS, usage="LATENCY HISTORY event", group="server")
def latency_history(ctx: Client, args: list[bytes]) -> list[list[int]]:
    """Show an event's last 160 spikes: unix time in seconds, milliseconds."""
    event = ctx.server.observer.latency.events.get(_text(args[0]))
    return [] if event is None else [list(sample) for sample in event.samples]


@command("LATENCY GRAPH", arity=3, flags=_FLAGS, usage="LATENCY GRAPH event", group="server")
def latency_graph(ctx: Client, args: list[bytes]) -> Verbatim:
    """Draw an event's spikes in characters."""
    name = _text(args[0])
    event = ctx.server.observer.latency.events.get(name)
    if event is None:
        raise CommandError(f"No samples available for event '{name}'")
    return Verbatim(graph(name, event, ctx.now // 1000))


@command("LATENCY DOCTOR", arity=2, flags=_FLAGS, usage="LATENCY DOCTOR", complexity="O(events)", group="server")
def latency_doctor(ctx: Client, args: list[bytes]) -> Verbatim:
    """Say in words what the latency monitor saw, and what to do about it."""
    return Verbatim(report(ctx.server.observer.latency, ctx.now // 1000))


@command(
    "LATENCY RESET",
    arity=-2,
    flags=_FLAGS,
    usage="LATENCY RESET [event [event ...]]",
    complexity="O(events)",
    group="server",
)
def latency_reset(ctx: Client, args: list[bytes]) -> int:
    """Forget the spikes of these events, of all where none is named; reply with how many events there were."""
    return ctx.server.observer.latency.reset(map(_text, args))


@command(
    "LATENCY HISTOGRAM",
    arity=-2,
    flags=_FLAGS,
    usage="LATENCY HISTOGRAM [command [command ...]]",
    complexity="O(commands)",
    group="server",
    options=["command: as CLIENT or CLIENT|LIST; of CLIENT all subcommands are shown. What was not called is left out"],
)
def latency_histogram(ctx: Client, args: list[bytes]) -> dict[str, Any]:
    """Show how many calls of each command took at most 1, 2, 4, 8, 16, 33, .. microseconds."""
    wanted = {name for word in set(args) for name in _names(_text(word).lower())}
    return {
        name: {"calls": times.tracked, "histogram_usec": times.histogram()}
        for name, times in ctx.server.observer.times.all()
        if times.tracked and (not args or name in wanted)
    }


def _names(name: str) -> list[str]:
    """The names under which a command's times are kept: those of its subcommands too."""
    entry = TABLE.get(name)
    return [name] if entry is None else [name, *(sub.name for sub in entry.subcommands.values())]


def _text(word: bytes) -> str:
    return word.decode("utf-8", "replace")
