"""redis_exporter from PATH, at work on a server: what Prometheus gets to see, and what the exporter complains of."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from durable import eventually
from harness import JUNE, PATIENCE_S, Clock, Running, free_port
from prometheus_client.parser import text_string_to_metric_families

ROOT = Path(__file__).resolve().parents[1]
Start = Callable[..., Running]

EXPORTER = shutil.which("prometheus-redis-exporter") or shutil.which("redis_exporter") or ""
pytestmark = pytest.mark.skipif(not EXPORTER, reason="needs redis_exporter on PATH (Debian: prometheus-redis-exporter)")

Labels = tuple[tuple[str, str], ...]


class Scrape:
    """What one run of the exporter answered and logged. `scrape("db_keys", db="db0")` is a metric's value."""

    def __init__(self, server: Running, *options: str) -> None:
        port = free_port()
        address = f"redis://127.0.0.1:{server.port}"
        command = [EXPORTER, "-debug", "-redis.addr", address, "-web.listen-address", f"127.0.0.1:{port}", *options]
        with tempfile.TemporaryFile("w+") as log, subprocess.Popen(command, stdout=log, stderr=log) as process:

            def answers() -> bool:
                assert process.poll() is None, "the exporter has ended"
                try:
                    self._read(f"http://127.0.0.1:{port}/")
                except OSError:
                    return False
                return True

            try:
                eventually(answers)
                text = self._read(f"http://127.0.0.1:{port}/metrics")
            finally:
                process.kill()
                process.wait(PATIENCE_S)
            log.seek(0)
            self.log = log.read().splitlines()
        self.values: dict[str, dict[Labels, float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                self.values.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value

    @staticmethod
    def _read(url: str) -> str:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(url, timeout=PATIENCE_S) as answer:
            return str(answer.read().decode())

    def __call__(self, name: str, **labels: str) -> float:
        return self.values[f"redis_{name}"][tuple(sorted(labels.items()))]

    def labels(self, name: str) -> list[dict[str, str]]:
        return [dict(labels) for labels in self.values[f"redis_{name}"]]

    @property
    def complaints(self) -> list[str]:
        """Lines of warnings and errors, and at debug level those of commands that were answered by an error."""
        return [line for line in self.log if re.search(r"level=(warn|err|fatal|panic)|\berr: ", line)]


@pytest.fixture
def used(running: Start, tmp_path: Path) -> Iterator[Running]:
    """A server with two memories, of which one expires, three records, some traffic and two clients."""
    server = running(clock=Clock(), dir=tmp_path, maxmemory="64gb", slowlog_log_slower_than="0")
    wire = server.wire()
    for key in ("user:1", "user:2"):
        wire("MEM.CREATE", key, "MODE", "SEARCH")
    for text in ("tea", "milk", "sugar"):
        wire("MEM.ADD", "user:1", "TEXT", text)
    wire("MEM.QUERY", "user:1", "TEXT", "tea")
    wire("PEXPIREAT", "user:2", JUNE + 60_000)
    wire("CLIENT", "SETNAME", "me")
    wire("SUBSCRIBE", "news")
    other = server.wire()
    assert "unknown command" in other.error("NONSENSE")
    assert "no such memory" in other.error("MEM.GET", "absent", "1")
    other("SAVE")
    yield server
    wire.close()
    other.close()


def test_what_prometheus_sees(used: Running) -> None:
    options = ("-export-client-list", "-include-config-metrics", "-include-system-metrics", "-ping-on-connect")
    scrape = Scrape(used, *options, "-count-keys", "db0=user:*", "-check-single-keys", "absent")
    assert scrape("up") == 1
    assert scrape("exporter_last_scrape_error", err="") == 0
    assert scrape.complaints == []
    # who
    [instance] = scrape.labels("instance_info")
    assert (instance["redis_mode"], instance["role"], instance["tcp_port"]) == ("standalone", "master", str(used.port))
    assert instance["redis_version"] and instance["run_id"]
    # clients
    assert scrape("connected_clients") == 3
    assert scrape("blocked_clients") == scrape("rejected_connections_total") == 0
    assert {client["name"] for client in scrape.labels("connected_clients_details")} == {"me", "", "redis_exporter"}
    assert scrape("pubsub_channels") == 1
    # keys
    assert (scrape("db_keys", db="db0"), scrape("db_keys_expiring", db="db0")) == (2, 1)
    assert scrape("db_avg_ttl_seconds", db="db0") == 60
    assert scrape("keys_count", db="db0", key="user:*") == 2
    assert scrape("key_size", db="db0", key="absent") == 0
    assert scrape("keyspace_hits_total") > 0 and scrape("keyspace_misses_total") == 1
    # commands
    assert scrape("commands_total", cmd="mem.add") == 3
    assert scrape("commands_duration_seconds_total", cmd="mem.add") > 0
    assert scrape("commands_failed_calls_total", cmd="mem.get") == 1
    assert scrape("errors_total", err="ERR") == 2
    assert scrape("slowlog_length") > 10 and scrape("slowlog_last_id") > 10
    assert scrape("last_slow_execution_duration_seconds") < PATIENCE_S
    # memory
    assert scrape("memory_max_bytes") == scrape("config_maxmemory") == 1 << 36
    assert 0 < scrape("memory_used_bytes") <= scrape("memory_used_peak_bytes") < scrape("total_system_memory_bytes")
    assert scrape("memory_used_rss_bytes") > 0
    # the log
    assert scrape("aof_enabled") == scrape("aof_last_write_status") == scrape("aof_last_bgrewrite_status") == 1
    assert scrape("aof_current_size_bytes") >= scrape("aof_base_size_bytes") > 0
    assert scrape("rdb_last_save_timestamp_seconds") > 0 and scrape("loading_dump_file") == 0
    assert scrape("cpu_user_seconds_total") > 0
    assert scrape("net_input_bytes_total") > 0 and scrape("net_output_bytes_total") > 0


def test_a_memory_has_no_size_to_the_exporter(used: Running) -> None:
    """As docs/insight.md says: it knows Redis's types alone. It says so for each key, and the rest is all there."""
    scrape = Scrape(used, "-check-keys", "user:*")
    assert scrape("up") == 1 and scrape("db_keys", db="db0") == 2
    assert len(scrape.complaints) == 2
    assert all("unknown type: memory for key: user:" in line for line in scrape.complaints)


def test_passwords_and_users(used: Running) -> None:
    """No password and a wrong one: down. The right one, and the user that docs/insight.md makes: up, and no word."""
    wire = used.wire()
    [recipe] = re.findall(r"^ACL SETUSER exporter .*$", (ROOT / "docs" / "insight.md").read_text(), flags=re.MULTILINE)
    assert wire(*recipe.replace("password", "beans").split()) == "OK"
    wire("CONFIG", "SET", "requirepass", "sesame")
    assert Scrape(used)("up") == 0
    assert Scrape(used, "-redis.password", "wrong")("up") == 0
    scrape = Scrape(used, "-redis.password", "sesame")
    assert (scrape("up"), scrape.complaints) == (1, [])
    scrape = Scrape(used, "-redis.user", "exporter", "-redis.password", "beans")
    assert scrape("up") == 1 and scrape("db_keys", db="db0") == 2
    # It does without CONFIG GET, which would tell it the passwords among the settings.
    assert scrape.complaints and all("level=debug" in line and "config|get" in line for line in scrape.complaints)
