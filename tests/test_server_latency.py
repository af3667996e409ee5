"""LATENCY: spikes and histograms; INFO commandstats and latencystats; MEM.STATS. Counts, never durations."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pytest
from harness import JUNE, SECOND, Clock, Running, Wire, Word, flat_pairs
from peer import connect, needs_redis, redis_server
from recalld.server.command_times import UPPER_NS, CommandTimes, Times
from recalld.server.commands import TABLE
from recalld.server.latency import Event, LatencyMonitor, graph, report
from recalld.server.stats import Stats

Start = Callable[..., Running]


def times_of(*ns: int) -> Times:
    """Times that have seen these durations."""
    times = CommandTimes(Stats())
    times.samples["x"] += ns
    [(_, found)] = times.all()
    return found


# The histogram


def test_buckets_cover_every_duration_without_gap() -> None:
    """Each upper bound is above the one before, and none is more than a sixteenth above what it counts."""
    assert list(UPPER_NS[:18]) == list(range(18))
    assert UPPER_NS[-1] == (1 << 40) - 1
    for low, high in pairwise(UPPER_NS):
        assert low < high <= max(low + 1, (int(low) + 1) * 17 / 16)


def test_a_percentile_is_the_least_bound_that_holds() -> None:
    rng = Random(7)
    ns = [int(10 ** rng.uniform(0, 11)) for _ in range(5_000)]
    times = times_of(*ns)
    assert (times.calls, times.total_ns) == (len(ns), sum(ns))
    ns.sort()
    percents = (0.0, 1.0, 50.0, 99.0, 99.9, 100.0)
    for percent, found in zip(percents, times.percentiles_ns(percents), strict=True):
        true = ns[max(0, -(-int(len(ns) * percent * 10) // 1000) - 1)]
        assert true <= found <= max(true + 1, true * 17 / 16)


def test_one_call_has_one_percentile() -> None:
    times = times_of(1_000)
    assert times.percentiles_ns([0, 50, 100]) == [1_023] * 3
    assert times.percentiles_ns([]) == []
    assert Times().percentiles_ns([50]) == [0]
    assert times_of(1 << 50).percentiles_ns([100]) == [(1 << 40) - 1]


def test_counts_below_powers_of_two() -> None:
    times = times_of(0, 1023, 1024, 2047, 2048, 5_000_000)
    assert times.below([1024, 2048, 4096, 1 << 30]) == [2, 4, 5, 6]
    assert times.histogram() == {1: 2, 2: 4, 4: 5, 8454: 6}


def test_labels_are_those_of_redis() -> None:
    """As redis-server 7 names them in LATENCY HISTOGRAM."""
    labels = [next(iter(times_of((1024 << power) - 1).histogram())) for power in range(12)]
    assert labels == [1, 2, 4, 8, 16, 33, 66, 132, 264, 528, 1056, 2113]


# LATENCY HISTOGRAM, INFO


def histogram(wire3: Wire, *names: str) -> dict[str, int]:
    """Command -> calls; the cumulative counts must end there."""
    found = wire3("LATENCY", "HISTOGRAM", *names)
    for each in found.values():
        counts = list(each[b"histogram_usec"].values())
        assert counts == sorted(counts)
        assert counts[-1] == each[b"calls"]
    return {name.decode(): each[b"calls"] for name, each in found.items()}


def test_calls_are_counted_by_command(running: Start) -> None:
    wire = running().wire(3)
    for _ in range(3):
        wire("ECHO", "x")
    wire("CLIENT", "ID")
    wire("CLIENT", "GETNAME")
    wire.error("MEM.CARD", "absent")
    wire.error("ECHO")
    assert histogram(wire, "echo") == {"echo": 3}
    assert histogram(wire, "CLIENT") == {"client|id": 1, "client|getname": 1}
    assert histogram(wire, "client|id", "nonsense", "mem.add") == {"client|id": 1}
    assert histogram(wire)["mem.card"] == 1
    assert histogram(wire)["latency|histogram"] == 4


def test_the_reply_on_resp2_is_pairs(running: Start) -> None:
    wire = running().wire()
    wire("ECHO", "x")
    [name, fields] = wire("LATENCY", "HISTOGRAM", "ECHO")
    assert name == b"echo"
    pairs = flat_pairs(fields)
    assert pairs[b"calls"] == 1
    assert list(flat_pairs(pairs[b"histogram_usec"]).values()) == [1]


def test_no_histogram_while_tracking_is_off(running: Start) -> None:
    """Calls are counted all the same."""
    wire = running(latency_tracking="no").wire(3)
    wire("ECHO", "x")
    assert wire("LATENCY", "HISTOGRAM") == {}
    assert info(wire, "latencystats") == {}
    assert info(wire, "commandstats")["cmdstat_echo"].startswith("calls=1,")
    wire("CONFIG", "SET", "latency-tracking", "yes")
    wire("ECHO", "x")
    assert histogram(wire, "echo") == {"echo": 1}
    assert info(wire, "commandstats")["cmdstat_echo"].startswith("calls=2,")


def info(wire: Wire, section: str) -> dict[str, str]:
    lines = wire("INFO", section).decode().split("\r\n")
    return dict(line.split(":", 1) for line in lines if line and not line.startswith("#"))


def test_commandstats_has_redis_form(running: Start) -> None:
    wire = running().wire()
    wire("ECHO", "x")
    wire.error("ECHO")
    wire.error("RENAME", "a", "b")
    wire.error("CLIENT", "KILL")
    wire.pipeline(("MULTI",), ("RENAME", "a", "b"), ("ECHO",), ("EXEC",))
    stats = info(wire, "commandstats")
    form = r"calls=(\d+),usec=\d+,usec_per_call=\d+\.\d\d,rejected_calls=(\d+),failed_calls=(\d+)"
    counts = {name: tuple(map(int, re.fullmatch(form, text).groups())) for name, text in stats.items()}  # type: ignore[union-attr]
    assert counts == {
        "cmdstat_echo": (1, 2, 0),
        "cmdstat_rename": (1, 0, 1),
        "cmdstat_client|kill": (0, 1, 0),
        "cmdstat_multi": (1, 0, 0),
        "cmdstat_exec": (1, 0, 1),
    }
    assert info(wire, "stats")["total_commands_processed"] == str(4 + 1)


def test_latencystats_has_redis_form(running: Start) -> None:
    wire = running().wire()
    wire("ECHO", "x")
    assert re.fullmatch(r"p50=\d+\.\d{3},p99=\d+\.\d{3},p99\.9=\d+\.\d{3}", info(wire, "latencystats")[P + "echo"])
    wire("CONFIG", "SET", "latency-tracking-info-percentiles", "100 0.5")
    assert re.fullmatch(r"p100=\d+\.\d{3},p0\.5=\d+\.\d{3}", info(wire, "latencystats")[P + "echo"])
    wire("CONFIG", "SET", "latency-tracking-info-percentiles", "")
    assert info(wire, "latencystats")[P + "echo"] == ""
    assert wire.error("CONFIG", "SET", "latency-tracking-info-percentiles", "101") == (
        "ERR CONFIG SET failed (possibly related to argument 'latency-tracking-info-percentiles') -"
        " latency-tracking-info-percentiles parameters should sit between [0.0,100.0]"
    )


P = "latency_percentiles_usec_"


def test_resetstat_forgets_them(running: Start) -> None:
    wire = running().wire(3)
    wire("ECHO", "x")
    wire.error("ECHO")
    wire.error("RENAME", "a", "b")
    wire("CONFIG", "RESETSTAT")
    assert list(info(wire, "commandstats")) == ["cmdstat_config|resetstat"]
    assert histogram(wire, "ECHO") == {}


def test_a_command_that_ends_in_a_thread_counts_at_its_reply(running: Start) -> None:
    server = running()
    wire = server.wire()
    wire("MEM.CREATE", "m", "MODE", "SEARCH")
    for at in range(0, 3000, 500):
        records = [word for n in range(at, at + 500) for word in ("RECORD", "TEXT", f"hello {n}")]
        wire("MEM.MADD", "m", "500", *records)
    query = ("MEM.LIST", "m", "FILTER", "f", "NE", "1")  # 3000 records are no work for the loop
    wire.pipeline(query, query, ("MULTI",), query, ("EXEC",))
    assert info(wire, "commandstats")["cmdstat_mem.list"].startswith("calls=3,")


# Spikes


def test_what_is_quick_or_unasked_is_no_spike() -> None:
    monitor = LatencyMonitor(0)
    monitor.saw("command", 10_000, JUNE)
    monitor.threshold_ms = 100
    monitor.saw("command", 99.9, JUNE)
    assert monitor.events == {}
    monitor.saw("command", 100.0, JUNE)
    assert list(monitor.events["command"].samples) == [(JUNE // 1000, 100)]


def test_a_second_keeps_its_worst_and_an_event_160() -> None:
    event = Event()
    for time_s, ms in [(1, 5), (1, 9), (1, 7), (2, 3)]:
        event.add(time_s, ms)
    assert list(event.samples) == [(1, 9), (2, 3)]
    assert event.max_ms == 9
    for time_s in range(3, 200):
        event.add(time_s, 1)
    assert list(event.samples) == [(time_s, 1) for time_s in range(40, 200)]
    assert event.max_ms == 9


@pytest.fixture
def spiky(running: Start) -> tuple[Wire, Clock, Any]:
    clock = Clock()
    # High enough for no real command to come in between.
    server = running(clock=clock, latency_monitor_threshold="1000000")
    latency = server.server.observer.latency
    for seconds, event, ms in [(0, "command", 2_000_000), (7, "command", 1_500_000), (9, "expire-cycle", 1_000_000)]:
        latency.saw(event, ms, JUNE + seconds * SECOND)
    clock.advance(70 * SECOND)
    return server.wire(), clock, latency


def test_latest_and_history(spiky: tuple[Wire, Clock, Any]) -> None:
    wire, _, _ = spiky
    second = JUNE // 1000
    assert wire("LATENCY", "LATEST") == [
        [b"command", second + 7, 1_500_000, 2_000_000],
        [b"expire-cycle", second + 9, 1_000_000, 1_000_000],
    ]
    assert wire("LATENCY", "HISTORY", "command") == [[second, 2_000_000], [second + 7, 1_500_000]]
    assert wire("LATENCY", "HISTORY", "nothing") == []


def test_reset(spiky: tuple[Wire, Clock, Any]) -> None:
    wire, _, _ = spiky
    assert wire("LATENCY", "RESET", "command", "nothing", "command") == 1
    assert [row[0] for row in wire("LATENCY", "LATEST")] == [b"expire-cycle"]
    assert wire("LATENCY", "RESET") == 1
    assert wire("LATENCY", "LATEST") == []
    assert wire("LATENCY", "RESET") == 0


def test_graph(spiky: tuple[Wire, Clock, Any]) -> None:
    wire, _, _ = spiky
    assert wire("LATENCY", "GRAPH", "command").decode().splitlines() == [
        "command - high 2000000 ms, low 1500000 ms (all time high 2000000 ms)",
        "-" * 80,
        "# ",
        "| ",
        "| ",
        "|_",
        "  ",
        "11",
        "mm",
    ]
    assert wire.error("LATENCY", "GRAPH", "nothing") == "ERR No samples available for event 'nothing'"


def test_graph_shows_80_samples_and_every_height() -> None:
    event = Event()
    for step in range(100):
        event.add(1000 + step, step)
    rows = graph("x", event, 1000 + 100_000).splitlines()
    assert {len(row) for row in rows[2:]} == {80}
    assert set("".join(rows[2:6])) == set(" _o#|")
    assert rows[-2:] == ["1" * 80, "d" * 80]


def test_doctor(spiky: tuple[Wire, Clock, Any], running: Start) -> None:
    wire, _, _ = spiky
    text = wire("LATENCY", "DOCTOR").decode()
    assert "1. command: 2 latency spikes, one every 7.0 seconds (average 1750000 ms, mean deviation 250000 ms)" in text
    assert "the last 1m ago took 1500000 ms, the worst of all 2000000 ms" in text
    assert "SLOWLOG" in text
    assert "2. expire-cycle: 1 latency spikes (average" in text
    wire("LATENCY", "RESET")
    assert wire("LATENCY", "DOCTOR").startswith(b"Nothing took 1000000 milliseconds or more")
    assert "latency-monitor-threshold" in report(LatencyMonitor(0), 0)


def test_commands_are_seen_by_whether_they_are_fast(running: Start) -> None:
    """Through the observer's own door: no test waits for a slow command."""
    server = running(clock=Clock(), latency_monitor_threshold="1000")
    wire = server.wire()
    wire("PING")
    [client] = server.server.clients.values()
    observer = server.server.observer
    assert observer.notable_ns == 10_000_000  # the slow log's is less
    observer.note(client, TABLE["ping"], [b"PING"], 2_000_000_000)
    observer.note(client, TABLE["keys"], [b"KEYS", b"*"], 3_000_000_000)
    observer.note(client, TABLE["keys"], [b"KEYS", b"*"], 20_000_000)
    assert [(row[0], row[2]) for row in wire("LATENCY", "LATEST")] == [(b"fast-command", 2000), (b"command", 3000)]
    assert [(row[2], row[3]) for row in wire("SLOWLOG", "GET")] == [
        (20_000, [b"KEYS", b"*"]),
        (3_000_000, [b"KEYS", b"*"]),
        (2_000_000, [b"PING"]),
    ]


# MEM.STATS


def stats(wire3: Wire, key: str) -> dict[str, Any]:
    return {name.decode(): value for name, value in wire3("MEM.STATS", key).items()}


def test_what_a_memory_is_asked(running: Start) -> None:
    clock = Clock()
    wire = running(clock=clock).wire(3)
    wire("MEM.CREATE", "m", "MODE", "SEARCH")
    assert stats(wire, "m") == {
        "queries": 0,
        "empty": 0,
        "usec": 0,
        "usec_mean": 0.0,
        "usec_max": 0,
        "last_query_at": None,
        "scored": 0,
        "score_mean": None,
        "score_min": None,
        "score_max": None,
    }
    wire("MEM.ADD", "m", "TEXT", "red apples", "IMPORTANCE", 1)
    wire("MEM.ADD", "m", "TEXT", "green pears", "IMPORTANCE", 0)
    best = [wire("MEM.QUERY", "m", "TEXT", word)[0][b"score"] for word in ("apples", "pears")]
    clock.advance(SECOND)
    wire("MEM.QUERY", "m", "TEXT", "nothing")
    wire("MEM.SEARCH", "m", "apples")
    wire("MEM.QUERY", "m", "TEXT", "apples", "FUSION", "RRF")
    wire("MEM.RECALL", "m", "TEXT", "apples")
    wire.error("MEM.QUERY", "m")
    found = stats(wire, "m")
    assert (found["queries"], found["empty"], found["last_query_at"]) == (6, 2, JUNE + SECOND)
    assert (found["scored"], found["score_min"], found["score_max"]) == (2, min(best), max(best))
    assert found["score_mean"] == pytest.approx(sum(best) / 2)
    assert found["usec_max"] <= found["usec"]


def test_the_counts_belong_to_the_memory(wire3: Wire) -> None:
    wire3("MEM.CREATE", "m", "MODE", "SEARCH")
    wire3("MEM.SEARCH", "m", "x")
    wire3("RENAME", "m", "n")
    wire3("COPY", "n", "c")
    assert (stats(wire3, "n")["queries"], stats(wire3, "c")["queries"]) == (1, 0)
    wire3("DEL", "n")
    wire3("MEM.CREATE", "n", "MODE", "SEARCH")
    assert stats(wire3, "n")["queries"] == 0
    assert wire3.error("MEM.STATS", "m") == "ERR no such memory index"


def test_hits_and_misses(running: Start) -> None:
    """What hit ratios are made of."""
    wire = running().wire()
    wire("MEM.CREATE", "m", "MODE", "SEARCH")
    wire("CONFIG", "RESETSTAT")
    wire("MEM.CARD", "m")
    wire("EXISTS", "m", "m", "absent")
    wire.error("MEM.GET", "absent", "1")
    fields = info(wire, "stats")
    assert (fields["keyspace_hits"], fields["keyspace_misses"]) == ("3", "2")




def test_a_loop_that_is_held_up_is_seen(running: Start) -> None:
    """Nothing else would show it: no command was running."""
    server = running(latency_monitor_threshold="100")
    wire = server.wire()
    while not any(row[0] == b"event-loop" for row in wire("LATENCY", "LATEST")):
        server.server.loop.call_soon_threadsafe(time.sleep, 0.3)
    assert wire("LATENCY", "HISTORY", "event-loop")[-1][1] >= 100


def test_the_disk_is_timed(running: Start, tmp_path: Path) -> None:
    """Each kind of write to the log tells how long it took, whatever that was."""
    server = running(dir=tmp_path)
    told: set[str] = set()
    server.server.log.timed = lambda event, ms: told.add(event)
    wire = server.wire()
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    assert wire("WAITAOF", 1, 0, 0) == [1, 0]
    assert told == {"aof-write", "aof-fsync"}
    wire("CONFIG", "SET", "appendfsync", "always")
    for number in range(100):
        wire("MEM.ADD", "a", "TEXT", number)
    assert told == {"aof-write", "aof-fsync", "aof-fsync-always"}


@needs_redis
def test_redis_counts_the_same(running: Start, tmp_path: Path) -> None:
    commands: list[tuple[Word, ...]] = [
        ("PING",),
        ("PING", "a", "b"),
        ("ECHO",),
        ("NONSENSE",),
        ("CLIENT", "ID"),
        ("CLIENT", "KILL"),
        ("CLIENT", "NONSENSE"),
        ("RENAME", "a", "b"),
        ("AUTH", "x", "y"),
        ("MULTI",),
        ("RENAME", "a", "b"),
        ("TTL", "a"),
        ("EXEC",),
        ("MULTI",),
        ("ECHO",),
        ("TTL", "a"),
        ("EXEC",),
        ("EXEC",),
        ("DISCARD",),
        ("SUBSCRIBE", "c"),
        ("TTL", "a"),
        ("UNSUBSCRIBE", "c"),
        ("INFO", "server"),
        ("CONFIG", "SET", "nonsense", "1"),
    ]
    seen = []
    with redis_server(tmp_path) as path:
        for wire in (running().wire(), connect(path)):
            for words in commands:
                wire.send(*words)
                wire.read()
            counts = {}
            for name, text in info(wire, "commandstats").items():
                fields = dict(part.split("=") for part in text.split(","))
                counts[name] = (fields["calls"], fields["rejected_calls"], fields["failed_calls"])
            seen.append((counts, info(wire, "errorstats")))
    assert seen[0] == seen[1]
