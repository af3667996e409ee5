"""Prometheus's metrics over HTTP, `GET /metrics` on `metrics-port`, in the text that prometheus-client writes.

What is counted is what INFO counts; the histograms are those of LATENCY HISTOGRAM, in seconds. Numbers are taken on the
loop, which owns them; the text, which takes some milliseconds with many commands, is made in a thread.

The server here speaks as much HTTP as a scraper needs: one request per connection, no body, a limit on size and time.
"""

from __future__ import annotations

import asyncio
import logging
import resource
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from . import info
from .cli import version
from .config import ConfigError, host_of

if TYPE_CHECKING:
    from .server import Server

log = logging.getLogger("recalld")

# Powers of two, as the histograms are cut: 4 microseconds to 17 seconds, each four times the one before.
_BOUNDS_NS = [1 << power for power in range(12, 35, 2)]
_REQUEST_BYTES = 8 << 10
_REQUEST_S = 5
# A scraper asks once in 15 seconds.
_MOST_CONNECTIONS = 16


@dataclass(slots=True, frozen=True)
class Number:
    """One metric at one moment: a value, or one for each value of a label."""

    kind: str  # counter | gauge
    name: str
    help: str
    value: float | dict[str, float]
    label: str = ""


@dataclass(slots=True, frozen=True)
class Snapshot:
    """All metrics at one moment. Of each command the calls, below each bound and in all, and seconds."""

    numbers: list[Number]
    commands: dict[str, tuple[list[int], int, float]]


def snapshot(server: Server) -> Snapshot:
    """Take the numbers; on the loop."""
    commands = {
        name: (times.below(_BOUNDS_NS), times.tracked, times.tracked_ns / 1e9)
        for name, times in server.observer.times.all()
    }
    return Snapshot(list(_numbers(server)), commands)


def _numbers(server: Server) -> Iterator[Number]:
    stats, observer, keyspace, times = server.stats, server.observer, server.keyspace, server.observer.times
    yield Number("gauge", "recalld_info", "The server's version, always 1", {version(): 1}, "version")
    yield Number("gauge", "recalld_start_time_seconds", "Unix time of the start", server.started_ms / 1000)
    yield Number("gauge", "recalld_connected_clients", "Clients that are connected", len(server.clients))
    yield Number("gauge", "recalld_max_clients", "How many may be connected", server.config["maxclients"])
    yield Number("gauge", "recalld_maxmemory_bytes", "The limit of memory, 0 for none", server.config["maxmemory"])
    yield Number("gauge", "recalld_memories", "Keys, each of which holds a memory", len(keyspace.memories))
    yield Number("gauge", "recalld_memories_expiring", "Keys with a deadline", len(keyspace.deadlines))
    yield Number("gauge", "recalld_memory_used_bytes", "Memory that the process holds", info.resident_bytes())
    yield Number("gauge", "recalld_slowlog_length", "Entries of the slow log", len(observer.slowlog))
    yield Number("gauge", "recalld_pubsub_channels", "Channels with subscribers", len(server.pubsub.channels))
    yield Number("gauge", "recalld_pubsub_patterns", "Patterns with subscribers", len(server.pubsub.patterns))
    yield Number("gauge", "recalld_monitors", "Clients in MONITOR", len(observer.monitors))
    yield Number("gauge", "recalld_embed_pending", "Texts that wait for their vectors", server.backfill.pending())
    yield Number("gauge", "recalld_loading", "1 while the log is being loaded", int(server.loading))
    yield Number("gauge", "recalld_log_ok", "0 while writes are refused because the disk failed", _log_ok(server))
    if server.rewriter is not None:
        file_log = server.rewriter.log
        yield Number("gauge", "recalld_aof_current_size_bytes", "Size of the append-only files", file_log.size)
        yield Number("gauge", "recalld_aof_base_size_bytes", "Size of the base file", file_log.base_size)
        yield Number(
            "gauge", "recalld_aof_last_rewrite_seconds", "How long the last rewrite took", server.rewriter.last_took_s
        )
        yield Number(
            "gauge", "recalld_aof_last_rewrite_ok", "Whether the last rewrite succeeded", int(server.rewriter.last_ok)
        )
    yield Number("counter", "recalld_connections", "Connections that were accepted", stats.connections)
    yield Number("counter", "recalld_connections_rejected", "Connections turned away", stats.rejected_connections)
    yield Number(
        "counter",
        "recalld_clients_cut_off",
        "Clients that were cut off, by the limit that they reached",
        {"query-buffer": stats.query_cut_offs, "output-buffer": stats.output_cut_offs},
        "limit",
    )
    yield Number("counter", "recalld_commands_processed", "Commands that ran", stats.commands)
    yield Number("counter", "recalld_net_input_bytes", "Bytes from clients", stats.input_bytes)
    yield Number("counter", "recalld_net_output_bytes", "Bytes to clients", stats.output_bytes)
    yield Number("counter", "recalld_keyspace_hits", "Keys that commands looked for and found", stats.hits)
    yield Number("counter", "recalld_keyspace_misses", "Keys that commands looked for in vain", stats.misses)
    yield Number("counter", "recalld_expired_memories", "Keys that passed their deadline", keyspace.expired_keys)
    yield Number("counter", "recalld_expired_records", "Records that passed theirs", keyspace.expired_records)
    yield Number("counter", "recalld_evicted_memories", "Keys that went because of maxmemory", stats.evicted_keys)
    yield Number("counter", "recalld_evicted_records", "Records that went because of limits", stats.evicted_records)
    yield Number("counter", "recalld_changes", "Changes that were logged, since the start", stats.changes)
    yield Number("counter", "recalld_errors", "Error replies, by code", dict(stats.error_codes), "code")
    yield Number(
        "counter", "recalld_commands_rejected", "Commands refused before they ran", dict(times.rejected), "command"
    )
    yield Number("counter", "recalld_commands_failed", "Commands that ran into an error", dict(times.failed), "command")
    yield Number(
        "counter", "recalld_acl_denied", "What ACL rules and wrong passwords refused", dict(stats.denied), "reason"
    )
    usage = resource.getrusage(resource.RUSAGE_SELF)
    yield Number(
        "counter",
        "recalld_cpu_seconds",
        "Processor time of the process",
        {"user": usage.ru_utime, "system": usage.ru_stime},
        "mode",
    )
    if hasattr(resource, "RUSAGE_THREAD"):
        loop = resource.getrusage(resource.RUSAGE_THREAD)
        yield Number(
            "counter",
            "recalld_loop_cpu_seconds",
            "Processor time of the loop, which every command needs; 1 a second is all there is",
            loop.ru_utime + loop.ru_stime,
        )


def _log_ok(server: Server) -> int:
    return int(server.log.failure is None)


def prometheus() -> Any:
    """The package prometheus-client; raises ConfigError where it is not installed."""
    try:
        import prometheus_client
        import prometheus_client.core
    except ImportError:
        raise ConfigError(
            "metrics-port needs the package prometheus-client: pip install 'recalld[metrics]', or set metrics-port 0"
        ) from None
    return prometheus_client


class Metrics:
    """The HTTP server of one recalld server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._prometheus = prometheus()
        self._connections = 0
        self._listeners: list[asyncio.Server] = []
        self.ports: list[tuple[str, int]] = []

    async def start(self) -> None:
        """Listen; raises OSError."""
        config = self._server.config
        port = config["metrics-port"]
        for host in config["metrics-bind"]:
            optional = host.startswith("-")
            try:
                listener = await asyncio.start_server(self._serve, host_of(host), port, limit=_REQUEST_BYTES)
            except OSError as error:
                if not optional:
                    raise
                log.info("No metrics on %s: %s", host, error)
                continue
            self._listeners.append(listener)
            self.ports += [sock.getsockname()[:2] for sock in listener.sockets]
        for host, port in self.ports:
            log.warning("Ready to serve metrics on http://%s:%d/metrics", f"[{host}]" if ":" in host else host, port)

    def close(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections += 1
        try:
            if self._connections > _MOST_CONNECTIONS:
                return
            async with asyncio.timeout(_REQUEST_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._answer(head))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass
        except Exception:
            log.exception("serving metrics failed")
        finally:
            self._connections -= 1
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    async def _answer(self, head: bytes) -> bytes:
        request, *lines = head.decode("latin-1").split("\r\n")
        method, _, rest = request.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        if method not in ("GET", "HEAD"):
            return _response(HTTPStatus.METHOD_NOT_ALLOWED, "text/plain", b"GET /metrics\n", "Allow: GET, HEAD\r\n")
        if path != "/metrics":
            return _response(HTTPStatus.NOT_FOUND, "text/plain", b"The metrics are at /metrics\n")
        accept = next((line[7:] for line in lines if line[:7].lower() == "accept:"), "")
        encode, content_type = self._prometheus.exposition.choose_encoder(accept.strip())
        taken = snapshot(self._server)
        # Not one of the threads that scan: a server that is busy is when metrics are wanted.
        body = await asyncio.to_thread(lambda: encode(self._filled(taken)))
        response = _response(HTTPStatus.OK, content_type, body)
        return response[: len(response) - len(body)] if method == "HEAD" else response

    def _filled(self, taken: Snapshot) -> Any:
        """A registry of these metrics alone: the process's own would be shared by all servers in it."""
        registry = self._prometheus.CollectorRegistry(auto_describe=False)
        registry.register(_Collector(self._prometheus.core, taken))
        return registry


def _response(status: HTTPStatus, content_type: str, body: bytes, more: str = "") -> bytes:
    head = (
        f"HTTP/1.1 {status.value} {status.phrase}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
        f"{more}Connection: close\r\n\r\n"
    )
    return head.encode("latin-1") + body


class _Collector:
    """A snapshot as prometheus-client wants it."""

    def __init__(self, core: Any, taken: Snapshot) -> None:
        self._core = core
        self._taken = taken

    def collect(self) -> Iterator[Any]:
        core = self._core
        families = {"counter": core.CounterMetricFamily, "gauge": core.GaugeMetricFamily}
        for number in self._taken.numbers:
            family = families[number.kind](number.name, number.help, labels=[number.label] if number.label else [])
            values = number.value if isinstance(number.value, dict) else {"": number.value}
            for label, value in values.items():
                family.add_metric([label] if number.label else [], value)
            yield family
        durations = core.HistogramMetricFamily(
            "recalld_command_duration_seconds",
            "From the start of a command to its reply, while latency-tracking is on",
            labels=["command"],
        )
        for name, (below, calls, seconds) in self._taken.commands.items():
            buckets = [(repr(bound / 1e9), count) for bound, count in zip(_BOUNDS_NS, below, strict=True)]
            durations.add_metric([name], [*buckets, ("+Inf", calls)], seconds)
        yield durations
