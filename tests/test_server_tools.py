"""What tools ask first, and how they scan: RedisInsight's handshake, OBJECT, redis-cli's modes."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest
from harness import HOUR, PATIENCE_S, SECOND, Clock, Running, Wire

CLI = shutil.which("redis-cli") or ""
Start = Callable[..., Running]
needs_cli = pytest.mark.skipif(not CLI, reason="needs redis-cli on PATH (Debian: redis-tools)")


def test_redisinsight_connects(wire: Wire) -> None:
    """What it sends at the start and while it shows the keys, in its order, has an answer or the error of a Redis
    without modules and cluster."""
    wire("MEM.CREATE", "user:1", "MODE", "SEARCH")
    assert wire("CLIENT", "SETNAME", "redisinsight-common-1a2b3c4d") == "OK"
    assert b"\r\n# Keyspace\r\ndb0:keys=1,expires=0," in wire("INFO")
    assert wire("MODULE", "LIST") == []
    assert wire.error("CLUSTER", "INFO") == "ERR This instance has cluster support disabled"
    assert wire.error("SENTINEL", "MASTERS").startswith("ERR unknown command")
    assert wire("COMMAND", "INFO", "ft._list", "json.get", "ts.add") == [None] * 3
    assert wire("CONFIG", "GET", "databases") == [b"databases", b"1"]
    assert wire("ACL", "WHOAMI") == b"default"
    assert wire("DBSIZE") == 1
    assert wire("SCAN", "0", "MATCH", "*", "COUNT", "10000") == [b"0", [b"user:1"]]
    assert wire("SCAN", "0", "MATCH", "*", "COUNT", "10000", "TYPE", "hash") == [b"0", []]
    assert wire("SCAN", "0", "MATCH", "*", "COUNT", "10000", "TYPE", "memory") == [b"0", [b"user:1"]]
    usage, kind, ttl = wire.pipeline(
        ["MEMORY", "USAGE", "user:1", "SAMPLES", "0"], ["TYPE", "user:1"], ["TTL", "user:1"]
    )
    assert usage > 0 and (kind, ttl) == ("memory", -1)
    assert wire("SLOWLOG", "GET", "50") is not None
    assert wire("CONFIG", "GET", "slowlog*")[::2] == [b"slowlog-log-slower-than", b"slowlog-max-len"]
    assert wire.error("XINFO", "STREAM", "user:1").startswith("ERR unknown command 'XINFO'")
    assert wire.error("FUNCTION", "LIST").startswith("ERR unknown command 'FUNCTION'")


def test_there_is_no_cluster(wire: Wire) -> None:
    for word in ("INFO", "MYID", "NODES", "SHARDS", "SLOTS"):
        assert wire.error("CLUSTER", word) == "ERR This instance has cluster support disabled"
    assert wire.error("CLUSTER", "DANCE") == "ERR unknown subcommand 'DANCE'. Try CLUSTER HELP."
    assert wire.error("MODULE", "LOAD", "x") == "ERR unknown subcommand 'LOAD'. Try MODULE HELP."


def test_object(running: Start) -> None:
    """Uses fade by half in an hour, and asking is none; without a policy that needs them they are not counted."""
    clock = Clock()
    wire = running(clock=clock).wire()
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    assert (wire("OBJECT", "ENCODING", "k"), wire("OBJECT", "REFCOUNT", "k")) == (b"search", 1)
    for word in ("ENCODING", "REFCOUNT", "IDLETIME", "FREQ"):
        assert wire("OBJECT", word, "absent") is None
    assert wire.error("OBJECT", "FREQ", "k").startswith("ERR An LFU maxmemory policy is not selected, access frequency")
    clock.advance(90 * SECOND)
    assert wire("OBJECT", "IDLETIME", "k") == 90
    wire("CONFIG", "SET", "maxmemory-policy", "allkeys-lfu")
    assert wire("OBJECT", "FREQ", "k") == 0
    for _ in range(8):
        wire("MEM.CARD", "k")
    assert (wire("OBJECT", "FREQ", "k"), wire("OBJECT", "IDLETIME", "k")) == (8, 0)
    clock.advance(HOUR)
    assert (wire("OBJECT", "FREQ", "k"), wire("OBJECT", "IDLETIME", "k")) == (4, 3600)
    wire("MEM.ADD", "k", "TEXT", "a write is a use, too")
    assert (wire("OBJECT", "FREQ", "k"), wire("OBJECT", "IDLETIME", "k")) == (5, 0)


def test_memory_purge(wire: Wire) -> None:
    assert wire("MEMORY", "PURGE") == "OK"
    assert wire("PING") == "PONG"


@pytest.fixture
def cli(running: Start) -> Iterator[Callable[..., str]]:
    """redis-cli on a server of three memories, one much larger than the others."""
    server = running(maxmemory_policy="allkeys-lfu")
    wire = server.wire()
    for number in range(3):
        wire("MEM.CREATE", f"user:{number}", "MODE", "SEARCH")
    for number in range(50):
        wire("MEM.ADD", "user:1", "TEXT", f"note {number}")

    def run(*words: str) -> str:
        done = subprocess.run(
            [CLI, "-p", str(server.port), *words], capture_output=True, text=True, timeout=PATIENCE_S, check=True
        )
        return done.stdout

    yield run


@needs_cli
@pytest.mark.parametrize("mode", ["--bigkeys", "--memkeys", "--hotkeys"])
def test_redis_cli_samples_the_keys(cli: Callable[..., str], mode: str) -> None:
    said = cli(mode)
    assert "Sampled 3 keys in the keyspace!" in said
    if mode == "--memkeys":
        assert re.search(r"Biggest memory found '\"user:1\"' has \d+ bytes", said)
        assert "3 memorys with" in said
    if mode == "--hotkeys":
        assert re.search(r"hot key found with counter: 5\d\tkeyname: \"user:1\"", said)


@needs_cli
def test_redis_cli_scans_and_watches(cli: Callable[..., str]) -> None:
    assert sorted(cli("--scan", "--pattern", "user:*").split()) == ["user:0", "user:1", "user:2"]
    assert cli("--scan", "--pattern", "other:*") == ""
    # --stat has no end of its own: its line is made of these.
    fields = dict(line.split(":", 1) for line in cli("INFO").split() if ":" in line)
    for name in ("used_memory", "connected_clients", "blocked_clients", "total_commands_processed"):
        assert fields[name].isdigit()
    assert fields["total_connections_received"].isdigit() and fields["db0"].startswith("keys=3,")
