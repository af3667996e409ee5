"""The latency monitor: what took `latency-monitor-threshold` milliseconds or more, per kind of event.

    command       a command without the flag `fast`, from its start to its reply
    fast-command  one with it
    expire-cycle  dropping what has expired, ten times a second
    aof-write     writing to the log, aof-fsync and aof-fsync-always: syncing it, writing to it included
    event-loop    how late the periodic task came: nobody was served meanwhile

As in Redis each event keeps its last 160 samples, the worst one of each second.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from statistics import fmean

_SAMPLES = 160
_GRAPH_COLUMNS = 80
_GRAPH_ROWS = 4
_GRAPH_STEPS = "_o#"

Sample = tuple[int, int]
"""Unix seconds, milliseconds."""

_ADVICE = {
    "command": "SLOWLOG GET shows the commands themselves. Queries in threads count from their start to their reply,"
    " so more of them than mem-threads can serve wait for each other; FILTER and a smaller TOPK make them cheaper.",
    "fast-command": "A fast command that is slow was held up: the machine is overloaded, swaps, or another event below"
    " says what ran before it.",
    "expire-cycle": "Many records or keys expire at the same moment: spread their deadlines.",
    "aof-write": "The system takes long to accept a write: the disk is overloaded, or its cache is full.",
    "aof-fsync": "The disk takes long to sync, in a thread: writes wait only where it takes more than a second.",
    "aof-fsync-always": "The disk takes long to sync, and with appendfsync always every write waits for it: everysec,"
    " or a disk with less latency.",
    "event-loop": "The loop was busy or the process got no processor: look for very large pipelines, transactions and"
    " replies, and for other programs on this machine.",
}


class Event:
    """The samples of one kind of event, the newest last."""

    __slots__ = ("max_ms", "samples")

    def __init__(self) -> None:
        self.max_ms = 0
        self.samples: deque[Sample] = deque(maxlen=_SAMPLES)

    def add(self, time_s: int, ms: int) -> None:
        self.max_ms = max(self.max_ms, ms)
        if self.samples and self.samples[-1][0] == time_s:
            ms = max(ms, self.samples.pop()[1])
        self.samples.append((time_s, ms))


class LatencyMonitor:
    """`threshold_ms` 0 is off; what was seen before stays."""

    def __init__(self, threshold_ms: int) -> None:
        self.threshold_ms = threshold_ms
        self.events: dict[str, Event] = {}

    def saw(self, event: str, ms: float, now: int) -> None:
        """Keep a sample if it is long enough; `now` in unix milliseconds."""
        if self.threshold_ms and ms >= self.threshold_ms:
            if event not in self.events:
                self.events[event] = Event()
            self.events[event].add(now // 1000, int(ms))

    def reset(self, names: Iterable[str]) -> int:
        """Forget these events, all where none is named; how many there were."""
        gone = [name for name in (list(names) or list(self.events)) if self.events.pop(name, None) is not None]
        return len(gone)


def graph(name: str, event: Event, now_s: int) -> str:
    """The samples as bars, with the age of each below, from top to bottom."""
    samples = list(event.samples)[-_GRAPH_COLUMNS:]
    values = [ms for _, ms in samples]
    low, high = min(values), max(values)
    lines = [f"{name} - high {high} ms, low {low} ms (all time high {event.max_ms} ms)", "-" * _GRAPH_COLUMNS]
    per_row = len(_GRAPH_STEPS)
    steps = per_row * _GRAPH_ROWS
    heights = [min(steps - 1, (value - low) * steps // max(1, high - low)) for value in values]
    for row in reversed(range(_GRAPH_ROWS)):
        cells = [height - row * per_row for height in heights]
        lines.append("".join(" " if cell < 0 else (_GRAPH_STEPS + "|")[min(cell, per_row)] for cell in cells))
    labels = [_age(now_s - time_s) for time_s, _ in samples]
    lines.append(" " * len(samples))
    for row in range(max(map(len, labels))):
        lines.append("".join(label[row : row + 1] or " " for label in labels))
    return "\n".join(lines) + "\n"


def _age(seconds: int) -> str:
    for unit, length in (("d", 86_400), ("h", 3_600), ("m", 60)):
        if seconds >= length:
            return f"{seconds // length}{unit}"
    return f"{max(0, seconds)}s"


def report(monitor: LatencyMonitor, now_s: int) -> str:
    """What LATENCY DOCTOR says."""
    if not monitor.events:
        if not monitor.threshold_ms:
            return (
                "Latency monitoring is off. CONFIG SET latency-monitor-threshold <milliseconds> turns it on; 100 is a"
                " good value to begin with."
            )
        return f"Nothing took {monitor.threshold_ms} milliseconds or more since monitoring began."
    parts = []
    for number, (name, event) in enumerate(monitor.events.items(), 1):
        values = [ms for _, ms in event.samples]
        mean = fmean(values)
        deviation = fmean(abs(value - mean) for value in values)
        (first_s, _), (last_s, last_ms) = event.samples[0], event.samples[-1]
        every = f", one every {(last_s - first_s) / (len(values) - 1):.1f} seconds" if len(values) > 1 else ""
        parts.append(
            f"{number}. {name}: {len(values)} latency spikes{every} (average {mean:.0f} ms, mean deviation"
            f" {deviation:.0f} ms); the last {_age(now_s - last_s)} ago took {last_ms} ms, the worst of all"
            f" {event.max_ms} ms. {_ADVICE.get(name, '')}".rstrip()
        )
    return "\n\n".join(parts) + "\n"
