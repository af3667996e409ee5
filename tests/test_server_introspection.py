"""COMMAND, CONFIG, INFO: what clients read before they do anything, and people when something is wrong."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from harness import DAY, HOUR, JUNE, SECOND, Clock, Running, Wire, WireError, pack
from recalld.server import info as info_text
from recalld.server.cli import version
from recalld.server.commands import TABLE
from recalld.server.stats import Stats

Start = Callable[..., Running]


def info(wire: Wire, *sections: str) -> dict[str, str]:
    lines = wire("INFO", *sections).decode().split("\r\n")
    return dict(line.split(":", 1) for line in lines if line and not line.startswith("#"))


def titles(wire: Wire, *sections: str) -> list[str]:
    return [line[2:] for line in wire("INFO", *sections).decode().split("\r\n") if line.startswith("# ")]


# COMMAND


def test_command_lists_everything_once(wire: Wire) -> None:
    rows = wire("COMMAND")
    assert sorted(row[0].decode() for row in rows) == sorted(TABLE)
    assert wire("COMMAND", "COUNT") == len(rows)
    assert wire("COMMAND", "INFO") == rows
    assert sorted(name.decode() for name in wire("COMMAND", "LIST")) == sorted(TABLE)


def test_command_info_has_redis_shape(wire: Wire, wire3: Wire) -> None:
    """On RESP3 flags, categories, tips, key specifications and subcommands are sets, and the specifications maps."""
    assert wire.raw("COMMAND", "INFO", "copy") == (
        b"*1\r\n*10\r\n$4\r\ncopy\r\n:-3\r\n*2\r\n+denyoom\r\n+write\r\n:1\r\n:2\r\n:1\r\n"
        b"*3\r\n+@write\r\n+@keyspace\r\n+@slow\r\n*0\r\n*2\r\n"
        b"*6\r\n$5\r\nflags\r\n*2\r\n+RO\r\n+access\r\n"
        b"$12\r\nbegin_search\r\n*4\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n*2\r\n$5\r\nindex\r\n:1\r\n"
        b"$9\r\nfind_keys\r\n*4\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n"
        b"*6\r\n$7\r\nlastkey\r\n:0\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n"
        b"*6\r\n$5\r\nflags\r\n*2\r\n+OW\r\n+update\r\n"
        b"$12\r\nbegin_search\r\n*4\r\n$4\r\ntype\r\n$5\r\nindex\r\n$4\r\nspec\r\n*2\r\n$5\r\nindex\r\n:2\r\n"
        b"$9\r\nfind_keys\r\n*4\r\n$4\r\ntype\r\n$5\r\nrange\r\n$4\r\nspec\r\n"
        b"*6\r\n$7\r\nlastkey\r\n:0\r\n$7\r\nkeystep\r\n:1\r\n$5\r\nlimit\r\n:0\r\n*0\r\n"
    )
    three = wire3.raw("COMMAND", "INFO", "exists")
    assert b":-2\r\n~2\r\n+fast\r\n+readonly\r\n:1\r\n:-1\r\n:1\r\n~3\r\n" in three
    assert b"~0\r\n~1\r\n%3\r\n$5\r\nflags\r\n~1\r\n+RO\r\n$12\r\nbegin_search\r\n%2\r\n" in three


def test_command_info_of_some(wire: Wire) -> None:
    nothing, kill, client, add = wire("COMMAND", "INFO", "nonsense", "client|kill", "CLIENT", "mem.add")
    assert nothing is None
    assert kill[:2] == [b"client|kill", -3]
    assert client[:3] == [b"client", -2, []]
    assert {sub[0] for sub in client[9]} >= {b"client|id", b"client|kill", b"client|help"}
    assert {"@write", "@memory"} < set(add[6])
    assert wire("COMMAND", "INFO", "client|dance", "|", "mem.add|") == [None, None, None]


def test_command_docs(wire3: Wire) -> None:
    docs = wire3("COMMAND", "DOCS", "scan", "nonsense", "client|kill")
    assert list(docs) == [b"scan", b"client|kill"]
    scan = docs[b"scan"]
    assert list(scan) == [b"summary", b"since", b"group", b"complexity", b"arguments"]
    cursor, pattern, number, _ = scan[b"arguments"]
    assert cursor == {b"name": b"cursor", b"type": b"integer"}
    assert pattern == {b"name": b"pattern", b"type": b"pattern", b"token": b"MATCH", b"flags": ["optional"]}
    assert number[b"token"] == b"COUNT"
    client = wire3("COMMAND", "DOCS", "CLIENT")[b"client"]
    assert client[b"subcommands"][b"client|kill"] == docs[b"client|kill"]
    assert sorted(wire3("COMMAND", "DOCS")) == sorted(name.encode() for name in TABLE)


def test_command_docs_say_which_key_is_which(wire3: Wire) -> None:
    arguments = wire3("COMMAND", "DOCS", "rename")[b"rename"][b"arguments"]
    assert [argument[b"key_spec_index"] for argument in arguments] == [0, 1]


def test_command_list_filters(wire: Wire) -> None:
    assert wire("COMMAND", "LIST", "FILTERBY", "PATTERN", "PubSub|N*") == [b"pubsub|numsub", b"pubsub|numpat"]
    assert wire("COMMAND", "LIST", "FILTERBY", "MODULE", "search") == []
    assert set(wire("COMMAND", "LIST", "FILTERBY", "ACLCAT", "transaction")) == {
        *(b"multi", b"exec", b"discard", b"watch", b"unwatch")
    }
    memory = wire("COMMAND", "LIST", "filterby", "aclcat", "MEMORY")
    assert set(memory) == {name.encode() for name in TABLE if name.startswith("mem.")}
    assert wire("COMMAND", "LIST", "FILTERBY", "ACLCAT", "nothing") == []
    for words in (["FILTERBY"], ["FILTERBY", "PATTERN"], ["FILTERBY", "COLOUR", "x"], ["SORTBY", "PATTERN", "x"]):
        assert wire.error("COMMAND", "LIST", *words) == "ERR syntax error"


def test_the_same_name_a_thousand_times(wire: Wire) -> None:
    """A short request must not have gigabytes of reply."""
    for words in (["COMMAND", "INFO"], ["COMMAND", "DOCS"]):
        wire(*words, *["client"] * 1000)
        assert wire.error(*words, *["client"] * 1001) == "ERR more than 1000 names; ask for fewer at a time"
    number = wire("CLIENT", "ID")
    assert wire("CLIENT", "LIST", "ID", *[number] * 5).count(b"\n") == 1


def test_getkeys(wire: Wire) -> None:
    assert wire("COMMAND", "GETKEYS", "DEL", "a", "b") == [b"a", b"b"]
    assert wire("COMMAND", "GETKEYS", "MEM.ADD", "a", "TEXT", "t") == [b"a"]
    assert wire("COMMAND", "GETKEYSANDFLAGS", "rename", "a", "b") == [
        [b"a", ["RW", "access", "delete"]],
        [b"b", ["OW", "update"]],
    ]
    assert wire("COMMAND", "GETKEYSANDFLAGS", "DEL", "a", "b") == [[b"a", ["RM", "delete"]], [b"b", ["RM", "delete"]]]
    assert wire.error("COMMAND", "GETKEYS", "PING") == "ERR The command has no key arguments"
    assert wire.error("COMMAND", "GETKEYS", "CLIENT", "ID") == "ERR The command has no key arguments"
    assert wire.error("COMMAND", "GETKEYS", "NONSENSE", "a") == "ERR Invalid command specified"
    assert wire.error("COMMAND", "GETKEYS", "CLIENT", "DANCE") == "ERR Invalid command specified"
    assert wire.error("COMMAND", "GETKEYS", "RENAME", "a") == "ERR Invalid number of arguments specified for command"


@pytest.mark.parametrize("container", ["CLIENT", "COMMAND", "CONFIG", "LATENCY", "PUBSUB", "SLOWLOG"])
def test_help(wire: Wire, container: str) -> None:
    """Status lines, as in Redis: a head, then each subcommand with its summary."""
    lines = wire(container, "HELP")
    assert lines[0] == f"{container} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"
    assert lines[-2:] == ["HELP", "    List the subcommands."]
    for entry in TABLE[container.lower()].subcommands.values():
        assert entry.usage.removeprefix(f"{container} ") in lines
    assert wire.error(container, "HELP", "x").startswith("ERR wrong number of arguments")
    assert wire.error(container, "DANCE") == f"ERR unknown subcommand 'DANCE'. Try {container} HELP."


# CONFIG


def test_config_get(wire: Wire, wire3: Wire) -> None:
    assert wire("CONFIG", "GET", "maxclients") == [b"maxclients", b"10000"]
    assert wire3("CONFIG", "GET", "mem-max-t*", "PORT", "mem-max-topk", "nonsense") == {
        b"mem-max-topk": b"1000",
        b"mem-max-text-bytes": b"65536",
        b"mem-max-terms-per-doc": b"1024",
        b"PORT": wire3("CONFIG", "GET", "port")[b"port"],
    }
    assert wire3("CONFIG", "GET", "nonsense") == {}
    assert len(wire3("CONFIG", "GET", "*")) > 20


def test_config_set_is_all_or_nothing(wire3: Wire) -> None:
    before = wire3("CONFIG", "GET", "*")
    for words in (
        ["mem-max-topk", "5", "nonsense", "1"],
        ["mem-max-topk", "5", "timeout", "x"],
        ["mem-max-topk", "5", "mem-max-topk", "6"],
        ["mem-max-topk", "5", "dir", "/tmp"],
        ["mem-max-topk", "5", "timeout"],
    ):
        wire3.error("CONFIG", "SET", *words)
        assert wire3("CONFIG", "GET", "*") == before
    assert wire3("CONFIG", "SET", "mem-max-topk", "5", "MEM-MAX-DIM", "7") == "OK"
    changed = {b"mem-max-topk": b"5", b"mem-max-dim": b"7"}
    assert wire3("CONFIG", "GET", "*") == before | changed


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["a", "b"], "ERR Unknown option or number of arguments for CONFIG SET - 'a'"),
        (["timeout", "5", "foo"], "ERR syntax error"),
        (["dir", "/"], "ERR CONFIG SET failed (possibly related to argument 'dir') - can't set immutable config"),
    ],
)
def test_config_set_refuses(wire: Wire, words: list[str], error: str) -> None:
    assert wire.error("CONFIG", "SET", *words) == error


def test_bytes_of_a_setting_come_back(running: Start) -> None:
    """A password need not be UTF-8."""
    wire = running().wire()
    password = b"\xff\0 \xc3\xa4"
    wire("CONFIG", "SET", "requirepass", password)
    assert wire("CONFIG", "GET", "requirepass") == [b"requirepass", password]
    assert wire("AUTH", password) == "OK"


# INFO


def test_info_has_every_section_once(wire: Wire, wire3: Wire) -> None:
    everything = [
        *("Server", "Clients", "Memory", "Persistence", "Stats", "Replication", "CPU", "Modules"),
        *("Commandstats", "Errorstats", "Latencystats", "Cluster", "Keyspace", "Embedding", "Audit", "Memorydb"),
    ]
    default = [title for title in everything if title not in ("Commandstats", "Latencystats")]
    assert titles(wire) == titles(wire, "DEFAULT", "cpu") == default
    for word in ("all", "Everything"):
        assert titles(wire, word, "cpu") == everything
    assert titles(wire, "keyspace", "CPU", "cpu", "nonsense") == ["CPU", "Keyspace"]
    assert wire("INFO", "nonsense") == b""
    assert wire3.raw("INFO", "cluster") == b"=34\r\ntxt:# Cluster\r\ncluster_enabled:0\r\n\r\n"


def test_info_says_who_the_server_is(running: Start) -> None:
    clock = Clock()
    server = running(clock=clock)
    wire = server.wire()
    clock.advance(2 * DAY + 7 * SECOND)
    fields = info(wire, "server")
    assert (fields["redis_version"], fields["recalld_version"]) == ("7.4.0", version())
    assert (fields["redis_mode"], fields["tcp_port"]) == ("standalone", str(server.port))
    assert (fields["uptime_in_seconds"], fields["uptime_in_days"]) == (str(2 * 86400 + 7), "2")
    assert fields["server_time_usec"] == str(clock() * 1000)
    assert fields["process_id"] == str(os.getpid())
    assert len(fields["run_id"]) == 40
    assert fields["run_id"] != info(running().wire(), "server")["run_id"]
    replication = info(wire, "replication")
    assert (replication["role"], replication["connected_slaves"]) == ("master", "0")
    assert (replication["master_replid"], replication["master_repl_offset"]) == (fields["run_id"], "0")


def test_info_counts(running: Start) -> None:
    server = running(clock=Clock())
    wire = server.wire()
    other = server.wire(3)
    other("SUBSCRIBE", "news")
    other("WATCH", "a", "b")
    wire("PING")
    wire.error("NONSENSE")
    wire.error("AUTH", "a", "b")
    wire.pipeline(("MULTI",), ("PING",), ("RENAME", "a", "b"), ("EXEC",))
    fields = info(wire)
    # Queued commands count when they run, all commands when they are done; what was refused before it ran does not.
    expected = ["HELLO", "SUBSCRIBE", "WATCH", "PING", "AUTH", "MULTI", "EXEC", "PING", "RENAME"]
    assert fields["total_commands_processed"] == str(len(expected))
    assert fields["total_connections_received"] == "2"
    assert fields["total_error_replies"] == "3"
    assert info(wire, "errorstats") == {"errorstat_ERR": "count=2", "errorstat_WRONGPASS": "count=1"}
    assert (fields["connected_clients"], fields["pubsub_clients"], fields["watching_clients"]) == ("2", "1", "1")
    assert (fields["total_watched_keys"], fields["pubsub_channels"], fields["pubsub_patterns"]) == ("2", "1", "0")
    sent = sum(len(pack(*words)) for words in [("HELLO", 3), ("SUBSCRIBE", "news"), ("WATCH", "a", "b"), ("PING",)])
    assert int(fields["total_net_input_bytes"]) > sent
    assert int(fields["total_net_output_bytes"]) > 100


def test_resetstat(running: Start) -> None:
    clock = Clock()
    server = running(clock=clock)
    wire = server.wire()
    wire.error("NONSENSE")
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    wire("PEXPIRE", "a", 1)
    clock.advance(1)
    assert wire("DBSIZE") == 0
    assert info(wire)["expired_keys"] == "1"
    assert wire("CONFIG", "RESETSTAT") == "OK"
    fields = info(wire)
    assert (fields["total_commands_processed"], fields["expired_keys"]) == ("1", "0")
    assert (fields["total_error_replies"], fields["total_connections_received"]) == ("0", "0")
    assert fields["connected_clients"] == "1"


def test_info_keyspace(clock: Clock, wire: Wire) -> None:
    assert wire("INFO", "keyspace") == b"# Keyspace\r\n"
    for key, seconds in (("a", 0), ("b", 10), ("c", 30)):
        wire("MEM.CREATE", key, "MODE", "SEARCH")
        if seconds:
            wire("EXPIRE", key, seconds)
    assert info(wire, "keyspace") == {"db0": "keys=3,expires=2,avg_ttl=20000"}
    clock.advance(10 * SECOND)
    assert info(wire, "keyspace") == {"db0": "keys=2,expires=1,avg_ttl=20000"}


def test_info_memorydb(clock: Clock, wire: Wire) -> None:
    wire("MEM.CREATE", "a", "DIM", 2)
    wire("MEM.ADD", "a", "TEXT", "alpha beta gamma", "FVEC", 2, 1, 0)
    names = ["memory_indexes", "memory_records", "memory_vectors", "memory_terms"]
    assert info(wire, "memorydb") == dict(zip(names, "1113", strict=True))
    wire("MEM.CREATE", "b", "MODE", "SEARCH")
    wire("MEM.ADD", "b", "TEXT", "alpha delta", "TTL", 10)
    assert info(wire, "memorydb") == dict(zip(names, "2215", strict=True))
    clock.advance(10 * SECOND)
    assert info(wire, "memorydb") == dict(zip(names, "2113", strict=True))


def test_info_over_many_memories(wire: Wire, wire3: Wire) -> None:
    """They are added up in several turns of the loop; the reply keeps its place, in EXEC too."""
    wire.pipeline(*(("MEM.CREATE", f"k{n}", "MODE", "SEARCH") for n in range(250)))
    wire.pipeline(*(("MEM.ADD", f"k{n}", "TEXT", "alpha beta") for n in range(250)))
    expected = b"# Memorydb\r\nmemory_indexes:250\r\nmemory_records:250\r\nmemory_vectors:0\r\nmemory_terms:500\r\n"
    for client in (wire, wire3):
        assert client.pipeline(("INFO", "memorydb"), ("PING",)) == [expected, "PONG"]
        assert client("INFO").endswith(b"\r\n\r\n" + expected)
        assert client.pipeline(("MULTI",), ("INFO", "memorydb"), ("PING",), ("EXEC",))[-1] == [expected, "PONG"]


def test_info_persistence(tmp_path: Path, running: Start, wire: Wire) -> None:
    assert info(wire, "persistence")["aof_enabled"] == "0"
    server = running(dir=tmp_path)
    mine = server.wire()
    mine("MEM.CREATE", "a", "MODE", "SEARCH")
    fields = info(mine, "persistence")
    assert (fields["aof_enabled"], fields["aof_last_write_status"], fields["loading"]) == ("1", "ok", "0")
    assert int(fields["aof_current_size"]) > 0


def test_info_memory(wire: Wire) -> None:
    fields = info(wire, "memory")
    assert 10 << 20 < int(fields["used_memory"]) <= int(fields["used_memory_peak"])
    assert int(fields["used_memory_peak"]) < int(fields["total_system_memory"])
    assert (fields["maxmemory"], fields["maxmemory_policy"]) == ("0", "noeviction")


@pytest.mark.parametrize(
    ("size", "shown"),
    [(0, "0B"), (1023, "1023B"), (1024, "1.00K"), (941736, "919.66K"), (25276514304, "23.54G"), (1 << 50, "1024.00T")],
)
def test_sizes_for_people(size: int, shown: str) -> None:
    assert info_text._human(size) == shown


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py(server: Running, protocol: int) -> None:
    """Its parsers of INFO, COMMAND, CONFIG GET and TIME take what they get."""
    with server.client(protocol, decode_responses=True) as client:
        client.execute_command("MEM.CREATE", "a", "MODE", "SEARCH")
        fields = client.info()
        assert fields["redis_version"] == "7.4.0"
        assert fields["db0"] == {"keys": 1, "expires": 0, "avg_ttl": 0}
        assert client.info("replication")["role"] == "master"
        assert client.command_count() == len(client.command())
        assert client.config_get("maxclients") == {"maxclients": "10000"}
        assert client.config_set("timeout", 0)
        assert client.time() == (JUNE // 1000, 0)
        assert client.command_getkeys("DEL", "a", "b") == ["a", "b"]
        with pytest.raises(redis.ResponseError):
            client.config_set("nonsense", 1)


# Rates


def test_rates_are_of_the_last_second() -> None:
    stats = Stats()
    stats.sample(JUNE)
    stats.commands, stats.input_bytes, stats.output_bytes = 300, 6000, 9000
    stats.sample(JUNE + 1500)
    assert (stats.ops_per_s, stats.input_bytes_per_s, stats.output_bytes_per_s) == (200, 4000, 6000)
    stats.sample(JUNE + 2500)
    assert (stats.ops_per_s, stats.input_bytes_per_s, stats.output_bytes_per_s) == (0, 0, 0)


def test_rates_take_no_harm_from_the_clock() -> None:
    """A clock that stands still or is set back gives no rate, and the next second a true one."""
    stats = Stats()
    for now in (JUNE, JUNE, JUNE - HOUR):
        stats.sample(now)
        stats.commands += 100
        assert stats.ops_per_s == 0
    stats.sample(JUNE - HOUR + 1000)
    assert stats.ops_per_s == 100


def test_rates_start_anew_with_resetstat() -> None:
    stats = Stats()
    stats.commands = 500
    stats.sample(JUNE)
    stats.reset()
    stats.commands = 3
    stats.sample(JUNE + 1000)
    assert stats.ops_per_s == 0
    stats.commands = 10
    stats.sample(JUNE + 2000)
    assert stats.ops_per_s == 7


def test_error_codes_are_counted_inside_exec(running: Start) -> None:
    wire = running().wire()
    replies = wire.pipeline(("MULTI",), ("RENAME", "a", "b"), ("MEM.CARD", "a"), ("EXEC",))[-1]
    assert [type(reply) for reply in replies] == [WireError, WireError]
    assert info(wire, "errorstats") == {"errorstat_ERR": "count=2"}
