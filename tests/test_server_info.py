"""What redis_exporter, RedisInsight and redis-cli read of INFO, CONFIG and CLIENT LIST, in the form that they parse."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from durable import eventually
from harness import Clock, Running, Wire

Start = Callable[..., Running]

# What redis_exporter makes numbers of, by section; what is not here is of features that we do not have.
EXPORTED = {
    "Server": "uptime_in_seconds process_id configured_hz hz",
    "Clients": "connected_clients blocked_clients tracking_clients client_recent_max_input_buffer"
    " client_recent_max_output_buffer",
    "Memory": "used_memory used_memory_rss used_memory_peak used_memory_overhead used_memory_startup"
    " used_memory_dataset maxmemory total_system_memory mem_fragmentation_ratio mem_fragmentation_bytes"
    " mem_clients_normal mem_clients_slaves used_memory_lua used_memory_scripts active_defrag_running"
    " lazyfree_pending_objects",
    "Persistence": "loading rdb_changes_since_last_save rdb_bgsave_in_progress rdb_last_save_time"
    " rdb_last_bgsave_time_sec rdb_current_bgsave_time_sec aof_enabled aof_rewrite_in_progress aof_rewrite_scheduled"
    " aof_last_rewrite_time_sec aof_current_rewrite_time_sec module_fork_in_progress aof_pending_rewrite"
    " rdb_last_cow_size aof_last_cow_size module_fork_last_cow_size aof_rewrites aof_rewrites_consecutive_failures",
    "Stats": "pubsub_channels pubsub_patterns latest_fork_usec total_connections_received total_commands_processed"
    " rejected_connections total_net_input_bytes total_net_output_bytes expired_keys evicted_keys keyspace_hits"
    " keyspace_misses sync_full sync_partial_ok sync_partial_err acl_access_denied_auth acl_access_denied_cmd"
    " acl_access_denied_key acl_access_denied_channel",
    "Replication": "connected_slaves repl_backlog_size repl_backlog_active repl_backlog_first_byte_offset"
    " repl_backlog_histlen master_repl_offset second_repl_offset",
    "CPU": "used_cpu_sys used_cpu_user used_cpu_sys_children used_cpu_user_children",
}
STATES = ("rdb_last_bgsave_status", "aof_last_bgrewrite_status", "aof_last_write_status")
WITH_LOG = ("aof_current_size", "aof_base_size", "aof_buffer_length")


def sections(wire: Wire) -> dict[str, dict[str, str]]:
    """INFO ALL as redis_exporter reads it: `# Section`, then name:value."""
    found: dict[str, dict[str, str]] = {}
    for line in wire("INFO", "ALL").decode().split("\r\n"):
        if line.startswith("# "):
            found[line[2:]] = {}
        elif line:
            name, _, value = line.partition(":")
            assert name not in found[list(found)[-1]]
            found[list(found)[-1]][name] = value
    return found


@pytest.fixture(params=["yes", "no"])
def used(running: Start, request: pytest.FixtureRequest, tmp_path: Path) -> Wire:
    """A server that has done something, with and without a log."""
    wire = running(**({"dir": tmp_path} if request.param == "yes" else {})).wire()
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    wire("MEM.CREATE", "b", "MODE", "SEARCH")
    wire("MEM.ADD", "a", "TEXT", "hello")
    wire("EXPIRE", "a", 100)
    wire("CLIENT", "SETNAME", "me")
    wire.error("NONSENSE")
    wire.error("MEM.GET", "absent", 1)
    return wire


def test_every_exported_field_is_a_number(used: Wire) -> None:
    found = sections(used)
    for section, names in EXPORTED.items():
        for name in names.split():
            float(found[section][name])
    for name in STATES:
        assert found["Persistence"][name] == "ok"
    if found["Persistence"]["aof_enabled"] == "1":
        for name in WITH_LOG:
            assert int(found["Persistence"][name]) >= 0


def test_the_lines_with_parts(used: Wire) -> None:
    found = sections(used)
    assert re.fullmatch(r"keys=2,expires=1,avg_ttl=\d+", found["Keyspace"]["db0"])
    assert {"cmdstat_mem.create", "cmdstat_client|setname", "cmdstat_mem.get"} <= set(found["Commandstats"])
    for name, value in found["Commandstats"].items():
        assert name.startswith("cmdstat_")
        calls, usec, per_call, rejected, failed = (part.split("=") for part in value.split(","))
        assert [calls[0], usec[0], per_call[0]] == ["calls", "usec", "usec_per_call"]
        assert [rejected[0], failed[0]] == ["rejected_calls", "failed_calls"]
        assert float(per_call[1]) == pytest.approx(int(usec[1]) / max(1, int(calls[1])), abs=1)
    for name, value in found["Latencystats"].items():
        assert name.startswith("latency_percentiles_usec_")
        percentiles = {float(part[1 : part.index("=")]): float(part.split("=")[1]) for part in value.split(",")}
        assert list(percentiles) == [50.0, 99.0, 99.9]
        assert list(percentiles.values()) == sorted(percentiles.values())
    assert {name: value.partition("=")[0] for name, value in found["Errorstats"].items()} == {"errorstat_ERR": "count"}


def test_the_labels_of_an_instance(used: Wire) -> None:
    found = {name: value for fields in sections(used).values() for name, value in fields.items()}
    assert (found["role"], found["redis_mode"], found["maxmemory_policy"]) == ("master", "standalone", "noeviction")
    assert all(found[name] for name in ("redis_version", "os", "tcp_port", "run_id", "process_id", "master_replid"))


def test_what_is_asked_beside_info(used: Wire) -> None:
    settings = used("CONFIG", "GET", "*")
    values = dict(zip(settings[::2], settings[1::2], strict=True))
    assert values[b"databases"] == b"1"
    assert all(values[name].isdigit() for name in (b"maxclients", b"maxmemory"))
    assert used("LATENCY", "LATEST") == []
    assert used("SLOWLOG", "LEN") == 0
    assert used("SLOWLOG", "GET", "1") == []
    for name, fields in zip(*[iter(used("LATENCY", "HISTOGRAM"))] * 2, strict=True):
        assert isinstance(name, bytes)
        assert (fields[0], fields[2]) == (b"calls", b"histogram_usec")
        assert all(isinstance(value, int) for value in [fields[1], *fields[3]])
    assert used("ROLE") == [b"master", 0, []]


def test_a_line_of_client_list(used: Wire) -> None:
    """Words of name=value; the exporter gives a line up that has another."""
    [line] = used("CLIENT", "LIST").decode().splitlines()
    assert re.match(r"id=\d+ addr=\S+:\d+ ", line)
    fields = dict(part.split("=") for part in line.split(" "))
    assert {"name", "age", "idle", "flags", "db", "omem", "cmd", "user", "resp", "lib-name", "lib-ver"} <= set(fields)
    assert (fields["name"], fields["cmd"], fields["db"], fields["resp"]) == ("me", "client|list", "0", "2")


def test_what_clients_hold(running: Start) -> None:
    """The input of a command that is not whole yet is in mem_clients_normal, and goes with its client."""
    server = running()
    wire = server.wire()
    sock = server.raw()
    sock.sendall(b"*2\r\n$4\r\nECHO\r\n$100000\r\n" + b"x" * 50_000)

    def held() -> int:
        memory = sections(wire)["Memory"]
        assert float(memory["mem_fragmentation_ratio"]) == 1.0  # without maxmemory, used is the resident size
        return int(memory["mem_clients_normal"])

    eventually(lambda: 50_000 <= held() <= 51_000)
    sock.close()
    eventually(lambda: held() < 1_000)


def test_rewrites_are_counted(running: Start, tmp_path: Path) -> None:
    wire = running(dir=tmp_path).wire()
    for count in (1, 2):
        wire("SAVE")
        found = sections(wire)["Persistence"]
        assert [found[name] for name in ("rdb_saves", "aof_rewrites", "aof_rewrites_consecutive_failures")] == [
            *(str(count), str(count), "0")
        ]


def test_a_rewrite_is_a_save_in_progress(running: Start, tmp_path: Path) -> None:
    """What a script that waits for the end of BGSAVE reads."""
    wire = running(dir=tmp_path).wire()
    names = ("rdb_bgsave_in_progress", "rdb_current_bgsave_time_sec", "rdb_last_bgsave_time_sec")

    def seen(info: bytes) -> list[int]:
        return [int(re.findall(rf"^{name}:(.+)\r$", info.decode(), flags=re.MULTILINE)[0]) for name in names]

    assert seen(wire("INFO", "persistence")) == [0, -1, -1]
    # In a transaction, so that the rewrite cannot end before it is looked at.
    *_, (_, info) = wire.pipeline(("MULTI",), ("BGSAVE",), ("INFO", "persistence"), ("EXEC",))
    running_now, seconds, last = seen(info)
    assert (running_now, seconds >= 0, last) == (1, True, -1)
    eventually(lambda: seen(wire("INFO", "persistence"))[:2] == [0, -1])
    assert seen(wire("INFO", "persistence"))[2] >= 0


def test_changes_since_the_last_save(running: Start, tmp_path: Path) -> None:
    wire = running(dir=tmp_path, clock=Clock()).wire()

    def changes() -> int:
        return int(sections(wire)["Persistence"]["rdb_changes_since_last_save"])

    assert changes() == 0
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    wire("MEM.MADD", "a", 2, "RECORD", "TEXT", "x", "RECORD", "TEXT", "y")
    assert changes() == 3
    wire("SAVE")
    assert changes() == 0
    wire("DEL", "a")
    assert changes() == 1
