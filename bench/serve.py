"""Speed over sockets: PING beside redis-server, then adds and queries at several sizes, then PING under a scan.

    python bench/serve.py [--records 1000,10000,100000] [--rounds 5] [--only ping,memory,stall] [--json FILE]

PING: recalld and redis-server take turns within each round, so that whatever else the machine does falls on both; the
ratio is that of the medians. The generator is redis-benchmark where it is on PATH, else this program's own.

Memory: seeded records (common.Corpus), each with a text, a 384-d vector, a time and an importance. Queries are sent
from pre-encoded commands; latencies are what the client sees, from its write to the whole reply, top 10, no filter.
Each round asks the same queries; numbers are medians over the rounds of each round's rate, p50 and p99.

Stall: PING on one connection while a second client process runs queries on the largest memory back to back.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    DIM,
    Corpus,
    Link,
    Load,
    Running,
    closed_loop,
    encode,
    machine,
    median,
    percentile,
    pipelined,
    print_machine,
    print_records,
    recalld,
    redis_server,
    write_json,
)

SECTIONS = ("ping", "memory", "stall")
PING = encode("PING")
# connections, pipeline depth, requests
PING_CASES = ((1, 1, 30_000), (50, 1, 100_000), (1, 100, 500_000), (50, 100, 1_000_000))
DEPTH = 100  # of pipelined MEM.ADD
MADD_RECORDS = 100
ONE_BY_ONE = 2_000
QUERIES = 1_000
CONNECTIONS = (1, 16)
LIMIT_S = 10.0  # a round of queries ends there, whatever it has asked
SPREAD_MS = 90 * 24 * 3600 * 1000  # the records' times: the last ninety days


# -- PING


def bench_ping(servers: Sequence[Running], rounds: int, scale: float) -> list[dict[str, Any]]:
    program = shutil.which("redis-benchmark")
    generator = "redis-benchmark" if program else "own, 1 process, 1 thread"
    cases: list[dict[str, Any]] = []
    seen: dict[str, list[dict[str, float]]] = {}
    for connections, depth, full in PING_CASES:
        if not program and connections > 1 and depth > 1:
            continue
        requests = max(connections * depth * 2, int(full * scale))
        seen = {server.name: [] for server in servers}
        for number in range(rounds):
            for server in servers if number % 2 == 0 else reversed(servers):
                if program:
                    result = _redis_benchmark(program, server.port, connections, depth, requests)
                else:
                    result = _own_ping(server.port, connections, depth, requests)
                seen[server.name].append(result)
        case: dict[str, Any] = {"connections": connections, "pipeline": depth, "requests": requests}
        case |= {name: {key: median([r[key] for r in runs]) for key in runs[0]} for name, runs in seen.items()}
        if "redis-server" in case:
            case["ratio"] = case["recalld"]["per_s"] / case["redis-server"]["per_s"]
        cases.append(case)

    rows = [
        {
            "connections": case["connections"],
            "pipeline": case["pipeline"],
            "requests": case["requests"],
            "server": name,
            **case[name],
            "ratio": case.get("ratio", "") if name == "recalld" else "",
        }
        for case in cases
        for name in seen
    ]
    print_records(f"PING, generator: {generator}; medians of {rounds} rounds, servers alternating", rows)
    return cases


def _redis_benchmark(program: str, port: int, connections: int, depth: int, requests: int) -> dict[str, float]:
    argv = [program, "-p", port, "-c", connections, "-P", depth, "-n", requests, "-t", "ping_mbulk", "--csv"]
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    head = next((i for i, line in enumerate(lines) if line.startswith('"test"')), None)
    if head is None:
        raise SystemExit(f"redis-benchmark said nothing usable:\n{done.stdout}{done.stderr}")
    row = next(csv.DictReader(lines[head:]))
    return {"per_s": float(row["rps"]), "p50_ms": float(row["p50_latency_ms"]), "p99_ms": float(row["p99_latency_ms"])}


def _own_ping(port: int, connections: int, depth: int, requests: int) -> dict[str, float]:
    if depth > 1:
        return summary(pipelined(port, [PING] * requests, depth))
    return summary(closed_loop(port, [PING], connections=connections, count=requests, limit_s=LIMIT_S))


def summary(load: Load) -> dict[str, float]:
    return {"per_s": load.rate, "p50_ms": load.ms(50), "p99_ms": load.ms(99)}


# -- memory


class Data:
    """The records and queries of one size, and the commands made of them."""

    def __init__(self, corpus: Corpus, records: int) -> None:
        rng = np.random.default_rng([corpus.seed, 5])
        texts = corpus.texts(records)
        vectors = corpus.vectors(records)
        now_ms = time.time_ns() // 1_000_000
        times = (now_ms - rng.integers(0, SPREAD_MS, records)).tolist()
        importances = rng.random(records).round(2).tolist()
        self.records: list[tuple[bytes | str | int | float, ...]] = [
            ("ID", f"r{i}", "TEXT", text, "VEC", vector.tobytes(), "AT", at, "IMPORTANCE", importance)
            for i, (text, vector, at, importance) in enumerate(zip(texts, vectors, times, importances, strict=True))
        ]
        self.query_texts = corpus.query_texts(texts, QUERIES)
        self.query_vectors = [row.tobytes() for row in corpus.query_vectors(vectors, QUERIES)]

    def adds(self, key: str, start: int = 0, stop: int | None = None) -> list[bytes]:
        return [encode("MEM.ADD", key, *record) for record in self.records[start:stop]]

    def madds(self, key: str) -> list[bytes]:
        batches: list[bytes] = []
        for start in range(0, len(self.records), MADD_RECORDS):
            batch = self.records[start : start + MADD_RECORDS]
            words = [word for record in batch for word in ("RECORD", *record)]
            batches.append(encode("MEM.MADD", key, len(batch), *words))
        return batches

    def queries(self, key: str) -> dict[str, list[bytes]]:
        both = zip(self.query_texts, self.query_vectors, strict=True)
        return {
            "MEM.SEARCH": [encode("MEM.SEARCH", key, text) for text in self.query_texts],
            "MEM.VSEARCH": [encode("MEM.VSEARCH", key, "VEC", vector) for vector in self.query_vectors],
            "MEM.QUERY": [encode("MEM.QUERY", key, "TEXT", text, "VEC", vector) for text, vector in both],
        }


def bench_adds(server: Running, data: Data, key: str) -> list[dict[str, Any]]:
    """Fill `key` with all the records, most of them pipelined, the last one by one."""
    records = len(data.records)
    tail = min(ONE_BY_ONE, records // 2)
    with Link(server.port) as link:
        link.call(encode("MEM.CREATE", key, "DIM", DIM))
    adds = data.adds(key)
    first = pipelined(server.port, adds[:-tail], DEPTH)
    last = closed_loop(server.port, adds[-tail:], connections=1, count=tail, limit_s=float("inf"))
    _expect_card(server, key, records)
    return [
        {"records": records, "way": f"MEM.ADD, pipeline {DEPTH}", "added": records - tail} | summary(first),
        {"records": records, "way": "MEM.ADD one by one", "added": tail} | summary(last),
    ]


def bench_madd(server: Running, data: Data, key: str) -> dict[str, Any]:
    """Fill `key` with all the records by MEM.MADD, one command at a time, and delete it."""
    records = len(data.records)
    with Link(server.port) as link:
        link.call(encode("MEM.CREATE", key, "DIM", DIM))
        commands = data.madds(key)
        load = closed_loop(server.port, commands, connections=1, count=len(commands), limit_s=float("inf"))
        _expect_card(server, key, records)
        link.call(encode("DEL", key))
    row = {"records": records, "way": f"MEM.MADD of {MADD_RECORDS}", "added": records}
    return row | summary(load) | {"per_s": records / load.elapsed_s}


def _expect_card(server: Running, key: str, records: int) -> None:
    with Link(server.port) as link:
        card = link.call(encode("MEM.CARD", key))
    if card != records:
        raise SystemExit(f"{records} records were added to {key}, but MEM.CARD says {card}")


def bench_queries(server: Running, data: Data, key: str, rounds: int, scale: float) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    count = max(20, int(QUERIES * scale))
    for name, commands in data.queries(key).items():
        with Link(server.port) as link:
            hits = [len(link.call(command)) for command in commands[:20]]  # warms up
        if not all(hits):
            raise SystemExit(f"{name} on {key} finds nothing: {hits} hits")
        for connections in CONNECTIONS:
            runs = [
                summary(closed_loop(server.port, commands, connections=connections, count=count, limit_s=LIMIT_S))
                for _ in range(rounds)
            ]
            row = {"records": len(data.records), "command": name, "connections": connections, "queries": count}
            rows.append(row | {column: median([run[column] for run in runs]) for column in runs[0]})
    return rows


def resident_mib(server: Running) -> float:
    """What the server's process occupies; 0 where there is no /proc."""
    if server.process is None:
        return 0.0
    try:
        status = Path(f"/proc/{server.process.pid}/status").read_text("utf-8")
    except OSError:
        return 0.0
    return next((int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS:")), 0.0)


# -- stall


def hammer(port: int, commands: Sequence[bytes], stop: Event, ready: Event, rate: Any) -> None:
    """Run queries back to back on one connection until told to stop: a client process of its own."""
    with Link(port) as link:
        started = time.perf_counter()
        number = 0
        while not stop.is_set():
            link.call(commands[number % len(commands)])
            number += 1
            ready.set()
        rate.value = number / (time.perf_counter() - started)


def bench_stall(server: Running, data: Data, key: str, scale: float) -> list[dict[str, Any]]:
    """PING's latencies with and without a neighbour that queries a large memory."""
    count = max(100, int(5_000 * scale))
    spawn = multiprocessing.get_context("spawn")
    rows: list[dict[str, Any]] = []

    def ping(neighbour: str) -> None:
        load = closed_loop(server.port, [PING], connections=1, count=count, limit_s=LIMIT_S)
        slowest = percentile(load.latencies_s, 100) * 1000
        rows.append({"neighbour": neighbour, "pings": load.requests} | summary(load) | {"max_ms": slowest})

    ping("none")
    for name, commands in data.queries(key).items():
        stop, ready, rate = spawn.Event(), spawn.Event(), spawn.Value("d", 0.0)
        neighbour = spawn.Process(target=hammer, args=(server.port, commands, stop, ready, rate))
        neighbour.start()
        if not ready.wait(60):
            raise SystemExit(f"the process that sends {name} did not start")
        ping(name)
        stop.set()
        neighbour.join()
        rows[-1]["neighbours_per_s"] = rate.value
    return rows


# -- main


def numbers(word: str) -> list[int]:
    return [int(number.replace("_", "")) for number in word.split(",")]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=numbers, default=[1_000, 10_000, 100_000], help="sizes, with commas between")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--scale", type=float, default=1.0, help="times the usual number of requests (0.05: a try)")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"of {','.join(SECTIONS)}")
    parser.add_argument("--fsync", default="everysec", choices=("always", "everysec", "no", "off"), help="off: no AOF")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    options = parser.parse_args()
    sections = options.only.split(",")
    if unknown := set(sections) - set(SECTIONS):
        parser.error(f"--only knows {','.join(SECTIONS)}, not {','.join(sorted(unknown))}")
    durable = ["--appendonly", "yes", "--appendfsync", options.fsync]
    if options.fsync == "off":
        durable = ["--appendonly", "no"]

    facts = machine()
    print_machine(facts)
    results: dict[str, Any] = {"machine": facts, "rounds": options.rounds, "fsync": options.fsync}
    with ExitStack() as stack:
        server = stack.enter_context(recalld(*durable))
        if "ping" in sections:
            servers = [server]
            peer = redis_server(*durable)
            if peer is None:
                print("no redis-server on PATH: PING is measured without a comparison")
            else:
                servers.append(stack.enter_context(peer))
            results["ping"] = bench_ping(servers, options.rounds, options.scale)
        if {"memory", "stall"} & set(sections):
            bench_memories(server, options, sections, results)
    write_json(options.json, results)
    return 0


def bench_memories(server: Running, options: argparse.Namespace, sections: list[str], results: dict[str, Any]) -> None:
    corpus = Corpus(options.seed)
    ceiling = closed_loop(server.port, [PING], connections=16, count=int(20_000 * options.scale), limit_s=LIMIT_S).rate
    print(
        f"\nclient: 1 process, 1 thread (stall: 2 processes), pre-encoded commands, RESP2; at 16 connections it gets"
        f" {ceiling:,.0f} PING/s, which no rate of queries below can exceed; AOF: {options.fsync}"
    )
    results["client_ceiling_per_s"] = ceiling
    adds: list[dict[str, Any]] = []
    queries: list[dict[str, Any]] = []
    sizes: list[dict[str, Any]] = []
    for records in sorted(options.records):
        data = Data(corpus, records)
        key = f"bench:{records}"
        before = resident_mib(server)
        adds += bench_adds(server, data, key)
        sizes.append({"records": records, "before_mib": before, "after_mib": resident_mib(server)})
        if "memory" in sections:
            adds.append(bench_madd(server, data, f"{key}:madd"))
            queries += bench_queries(server, data, key, options.rounds, options.scale)
        if "stall" in sections and records == max(options.records):
            results["stall"] = bench_stall(server, data, key, options.scale)
        with Link(server.port) as link:
            link.call(encode("DEL", key))

    if "memory" in sections:
        results |= {"adds": adds, "queries": queries, "resident": sizes}
        print_records(
            f"records added, one run; text and {DIM} dims; latencies are of a command, of a batch where pipelined", adds
        )
        print_records(f"queries, top 10, medians of {options.rounds} rounds", queries)
        print_records("resident memory of the server's process, before and after a memory is filled by MEM.ADD", sizes)
    if "stall" in sections:
        print_records(f"PING, 1 connection, beside queries on {max(options.records):,} records", results["stall"])


if __name__ == "__main__":
    sys.exit(main())
