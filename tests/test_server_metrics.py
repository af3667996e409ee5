"""What Prometheus is served, read by prometheus-client's own parsers; and the log as JSON."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from harness import PATIENCE_S, Running
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text
from recalld.server import cli, log
from recalld.server.config import ConfigError, host_of
from recalld.server.metrics import Metrics

Start = Callable[..., Running]


class Scraped:
    """A server whose metrics are served on any free port (`metrics-port 0` is off)."""

    def __init__(self, server: Running) -> None:
        self.server = server
        self.metrics: Metrics = self.on_loop(self._start())
        self.port = self.metrics.ports[0][1]

    async def _start(self) -> Metrics:
        metrics = Metrics(self.server.server)
        await metrics.start()
        return metrics

    def on_loop(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self.server.server.loop).result(PATIENCE_S)

    def request(self, text: str) -> tuple[str, dict[str, str], str]:
        """Status line, headers in small letters, body."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S) as sock:
            sock.sendall(text.encode())
            data = b""
            while chunk := sock.recv(65536):
                data += chunk
        head, _, body = data.decode().partition("\r\n\r\n")
        status, *lines = head.split("\r\n")
        return status, {line.split(": ")[0].lower(): line.split(": ")[1] for line in lines if line}, body

    def samples(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """(name, labels) -> value."""
        status, _, body = self.request("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        assert status == "HTTP/1.1 200 OK"
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in parse_text(body)
            for sample in family.samples
        }


@pytest.fixture
def scraped(running: Start) -> Callable[..., Scraped]:
    made: list[Scraped] = []

    def start(**options: str) -> Scraped:
        made.append(Scraped(running(**options)))
        return made[-1]

    return start


def plain(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


def test_addresses_are_those_of_bind(scraped: Callable[..., Scraped]) -> None:
    """One that may be missing is left out where it is, as 192.0.2.1 is everywhere: it is for documentation."""
    assert {host for host, _ in scraped(metrics_bind="* -192.0.2.1").metrics.ports} == {"0.0.0.0"}
    assert [host_of(word) for word in ("::*", "-::*", "-::1", "::1")] == ["::", "::", "::1", "::1"]


def test_what_happened_is_in_the_metrics(scraped: Callable[..., Scraped]) -> None:
    here = scraped()
    wire = here.server.wire()
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    wire("EXPIRE", "a", 100)
    for _ in range(3):
        wire("ECHO", "x")
    wire.error("ECHO")
    wire.error("RENAME", "absent", "b")
    wire.error("AUTH", "x", "y")
    found = here.samples()
    assert found[plain("recalld_connected_clients")] == 1
    assert found[plain("recalld_memories")] == found[plain("recalld_memories_expiring")] == 1
    assert found[plain("recalld_commands_processed_total")] == 7
    assert found[plain("recalld_commands_rejected_total", command="echo")] == 1
    assert found[plain("recalld_commands_failed_total", command="rename")] == 1
    assert found[plain("recalld_errors_total", code="ERR")] == 2
    assert found[plain("recalld_errors_total", code="WRONGPASS")] == 1
    assert found[plain("recalld_keyspace_misses_total")] == 1  # RENAME's: MEM.CREATE wants no memory
    assert found[plain("recalld_acl_denied_total", reason="auth")] == 1
    assert found[plain("recalld_acl_denied_total", reason="key")] == 0
    assert (found[plain("recalld_max_clients")], found[plain("recalld_maxmemory_bytes")]) == (10_000, 0)
    assert found[plain("recalld_loop_cpu_seconds_total")] > 0
    assert found[plain("recalld_log_ok")] == 1
    assert found[plain("recalld_memory_used_bytes")] > 1 << 20


def test_histograms_per_command(scraped: Callable[..., Scraped]) -> None:
    here = scraped()
    wire = here.server.wire()
    for _ in range(3):
        wire("ECHO", "x")
    wire("CLIENT", "ID")
    found = here.samples()
    name = "recalld_command_duration_seconds"
    assert found[plain(name + "_count", command="echo")] == 3
    assert found[plain(name + "_count", command="client|id")] == 1
    assert found[plain(name + "_sum", command="echo")] > 0
    buckets = sorted(
        (float(dict(labels)["le"]), value)
        for (each, labels), value in found.items()
        if each == name + "_bucket" and ("command", "echo") in labels
    )
    assert len(buckets) == 13
    assert [value for _, value in buckets] == sorted(value for _, value in buckets)
    assert buckets[-1] == (float("inf"), 3)


def test_openmetrics_where_it_is_asked_for(scraped: Callable[..., Scraped]) -> None:
    here = scraped()
    here.server.wire()("ECHO", "x")
    status, headers, body = here.request(
        "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n"
    )
    assert (status, headers["content-type"].split(";")[0]) == ("HTTP/1.1 200 OK", "application/openmetrics-text")
    assert "recalld_command_duration_seconds" in {family.name for family in parse_openmetrics(body)}


def test_a_log_of_ones_own_has_its_sizes(scraped: Callable[..., Scraped], tmp_path: Path) -> None:
    here = scraped(dir=str(tmp_path))
    here.server.wire()("MEM.CREATE", "a", "MODE", "SEARCH")
    found = here.samples()
    assert found[plain("recalld_aof_current_size_bytes")] > 0
    assert found[plain("recalld_changes_total")] == 1


def test_nothing_else_is_served(scraped: Callable[..., Scraped]) -> None:
    here = scraped()
    assert here.request("GET / HTTP/1.1\r\n\r\n")[0] == "HTTP/1.1 404 Not Found"
    assert here.request("GET /metrics/x HTTP/1.1\r\n\r\n")[0] == "HTTP/1.1 404 Not Found"
    status, headers, _ = here.request("POST /metrics HTTP/1.1\r\n\r\n")
    assert (status, headers["allow"]) == ("HTTP/1.1 405 Method Not Allowed", "GET, HEAD")
    status, headers, body = here.request("HEAD /metrics?x=1 HTTP/1.0\r\n\r\n")
    assert (status, body) == ("HTTP/1.1 200 OK", "")
    assert int(headers["content-length"]) > 1000


@pytest.mark.parametrize("text", ["x" * 20_000, "GET /metrics HTTP/1.1\r\nX: " + "y" * 20_000 + "\r\n\r\n"])
def test_a_request_that_is_too_large_ends(scraped: Callable[..., Scraped], text: str) -> None:
    here = scraped()
    with socket.create_connection(("127.0.0.1", here.port), timeout=PATIENCE_S) as sock:
        try:
            sock.sendall(text.encode())
            assert sock.recv(100) == b""
        except ConnectionError:
            pass  # closed before it was read to its end
    assert here.request("GET /metrics HTTP/1.1\r\n\r\n")[0] == "HTTP/1.1 200 OK"


def test_connections_are_bounded(scraped: Callable[..., Scraped]) -> None:
    """Sixteen that say nothing; the next is closed, the server goes on, and they are forgotten when they leave."""
    here = scraped()
    silent = [socket.create_connection(("127.0.0.1", here.port), timeout=PATIENCE_S) for _ in range(16)]
    wire = here.server.wire()
    while here.metrics._connections < 16:
        wire("PING")
    with socket.create_connection(("127.0.0.1", here.port), timeout=PATIENCE_S) as one_more:
        assert one_more.recv(100) == b""
    for sock in silent:
        sock.close()
    while here.metrics._connections:
        wire("PING")
    assert here.request("GET /metrics HTTP/1.1\r\n\r\n")[0] == "HTTP/1.1 200 OK"


def test_without_the_package_the_start_says_what_to_do(running: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    with pytest.raises(ConfigError) as caught:
        running(metrics_port="1")
    assert "pip install 'recalld[metrics]'" in caught.value.message


def test_metrics_port_is_served_until_the_end() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    server = Running(metrics_port=str(port))
    server.start()
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as sock:
            sock.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert sock.recv(15) == b"HTTP/1.1 200 OK"
    finally:
        server.stop()
    with pytest.raises(ConnectionError):
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S).close()


# The log


def record(level: int, message: str, *args: object, **more: Any) -> logging.LogRecord:
    made = logging.LogRecord("recalld", level, __file__, 1, message, args, None, **more)
    made.created, made.msecs, made.process = 1_796_002_200.123, 123, 12345
    return made


@pytest.mark.parametrize(
    ("level", "name"),
    [(10, "debug"), (15, "verbose"), (20, "notice"), (30, "warning"), (40, "warning"), (5, "debug")],
)
def test_a_line_of_json(level: int, name: str) -> None:
    assert json.loads(log.JsonFormatter().format(record(level, "%d keys", 3))) == {
        "time": "2026-11-30T01:30:00.123Z",
        "level": name,
        "pid": 12345,
        "logger": "recalld",
        "message": "3 keys",
    }


def test_json_stays_on_one_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        made = record(40, 'a\n"b"\udcff')
        made.exc_info = sys.exc_info()
    text = log.JsonFormatter().format(made)
    assert text.isascii() and len(text.splitlines()) == 1
    assert json.loads(text)["message"] == 'a\n"b"\udcff'
    assert "ValueError: two\nlines" in json.loads(text)["exception"]


def test_the_format_changes_while_it_runs(capsys: pytest.CaptureFixture[str]) -> None:
    logger = logging.getLogger("recalld")
    before = (logger.handlers[:], logger.propagate, logger.level)
    others = logging.getLogger("asyncio")
    before_others = (others.handlers[:], others.propagate)
    try:
        log.setup("notice", "", "json")
        logger.info("one")
        log.set_format("text")
        logger.info("two")
    finally:
        logger.handlers[:], logger.propagate = before[0], before[1]
        logger.setLevel(before[2])
        others.handlers[:], others.propagate = before_others
    first, second = capsys.readouterr().out.splitlines()
    assert json.loads(first)["message"] == "one"
    assert second.endswith("* two")


def test_check_config_asks_for_the_package_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "recalld.conf"
    path.write_text("metrics-port 9171\n")
    assert cli.main(["--check-config", str(path)]) == 0
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert cli.main(["--check-config", str(path)]) == 1
    assert "pip install 'recalld[metrics]'" in capsys.readouterr().err
