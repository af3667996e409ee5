"""What sees every command: their times, the slow log, the latency monitor, MONITOR.

Rule 1: a command that nobody has asked to hear of costs two readings of the clock, an append and a comparison
        (`dispatch.call`): `notable_ns` is the least duration that anybody wants to know of, -1 while somebody monitors.
Rule 2: a command whose reply comes later, from a thread, lasts until then.
"""

from __future__ import annotations

from asyncio import Future
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from .command_times import CommandTimes
from .commands import PendingWrite
from .latency import LatencyMonitor
from .monitor import Monitors
from .shown_words import SLOWLOG_WORDS, shown
from .slowlog import SlowLog

if TYPE_CHECKING:
    from .client import Client
    from .commands import Command
    from .config import Config
    from .stats import Stats

_NEVER = 1 << 62


class Observer:
    """Of one server."""

    def __init__(self, config: Config, stats: Stats) -> None:
        self._config = config
        self.times = CommandTimes(stats)
        self.samples = self.times.samples
        self.slowlog = SlowLog(config["slowlog-max-len"])
        self.latency = LatencyMonitor(config["latency-monitor-threshold"])
        self.monitors = Monitors()
        self.notable_ns = _NEVER
        self._slow_ns = _NEVER
        config.on_change("slowlog-max-len", self.slowlog.resize)
        config.on_change("latency-tracking", self._track)
        config.on_change("slowlog-log-slower-than", lambda value: self._settle())
        config.on_change("latency-monitor-threshold", lambda value: self._settle())
        self._track(config["latency-tracking"])
        self._settle()

    def _track(self, on: bool) -> None:
        self.times.fold()  # what came before is counted as it was to be
        self.times.tracking = on

    def _settle(self) -> None:
        """Take over what CONFIG SET changed, and who monitors."""
        slower_than, threshold = self._config["slowlog-log-slower-than"], self._config["latency-monitor-threshold"]
        self._slow_ns = slower_than * 1000 if slower_than >= 0 else _NEVER
        self.latency.threshold_ms = threshold
        least = min(self._slow_ns, threshold * 1_000_000 if threshold else _NEVER)
        self.notable_ns = -1 if self.monitors else least

    def monitor(self, client: Client) -> None:
        """Show `client` what all others run from now on."""
        self.monitors.add(client)
        self._settle()

    def forget(self, client: Client) -> None:
        """`client` monitors no more."""
        self.monitors.drop(client)
        self._settle()

    def begun(self, ctx: Client, entry: Command, words: list[bytes], began: int, reply: Future[Any]) -> None:
        """A command goes on behind its handler."""
        is_behind = entry.name == "exec" and isinstance(reply, PendingWrite)  # its commands run in turns
        if self.monitors and not is_behind:
            self.monitors.feed(ctx, entry, words)

        def ended(done: Future[Any]) -> None:
            if self.monitors and is_behind:
                self.monitors.feed(ctx, entry, words)
            took = perf_counter_ns() - began
            self.samples[entry.name].append(took)
            if took >= self.notable_ns:
                self._note_time(ctx, entry, words, took)

        reply.add_done_callback(ended)

    def note(self, ctx: Client, entry: Command, words: list[bytes], took_ns: int) -> None:
        """A command is done, and somebody may want to know."""
        if self.monitors:
            self.monitors.feed(ctx, entry, words)
        self._note_time(ctx, entry, words, took_ns)

    def _note_time(self, ctx: Client, entry: Command, words: list[bytes], took_ns: int) -> None:
        now = ctx.server.clock()
        self.latency.saw("fast-command" if "fast" in entry.flags else "command", took_ns / 1e6, now)
        if took_ns >= self._slow_ns and "skip_slowlog" not in entry.flags:
            seen = shown(entry.name, words, first=SLOWLOG_WORDS)
            self.slowlog.add(now // 1000, took_ns // 1000, seen, ctx.addr, ctx.name)
