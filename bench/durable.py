"""What durability costs, beside redis-server in the same run: writes by fsync policy, loading, the pause of a rewrite.

    python bench/durable.py [--records 100000] [--rounds 3] [--seconds 5] [--only writes,load,pause] [--json FILE]

Servers take turns within each round, so that whatever else the machine does falls on both; ratios are those of the
medians. Every folder is a fresh one under --dir, on one file system. Automatic rewriting is off in both.

Writes: a fresh server per point and round. recalld gets MEM.ADD of a 200-byte text into a memory of MODE SEARCH, and
with a 384-d vector into one of MODE HYBRID; Redis gets HSET of the same fields. Every id is new. One client process
with one thread and a selector sends them over raw sockets, encoded before the clock starts except for the id's eight
digits; each connection has one command outstanding. Where `client cpu` nears 1 the client is the limit, and the ratio
says little.

--fsync-ms makes every fsync of both servers take so much longer, by a library put before libc's (it needs a C
compiler): what an fsync takes here is not what it takes on most disks.

Load: seconds from the start of the process until it answers PING (which neither does while it loads), and what its log
says of the load alone. The files are those just written, so they are in the page cache. `start, no records` is what
interpreter and imports cost. Redis has no query to compare; its columns for that are empty.

Pause: PING about once a millisecond on one connection, without and during BGREWRITEAOF. A late reply also delays the
PINGs that were due meanwhile, which were never sent: the `due` column counts them as HdrHistogram does.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, overload

from common import (
    DIM,
    Corpus,
    Link,
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
from serve import DEPTH, Data, summary

SECTIONS = ("writes", "load", "pause")
POLICIES = ("always", "everysec", "no")
CONNECTIONS = (1, 16, 64)
KEY = "bench"
TEXT_BYTES = 200
TEXTS = 1_000  # different ones, in turn
WARM_UP = 200  # writes before the clock starts
LATER_QUERIES = 20
PACE_S = 0.001  # between PINGs
LOOK_S = 0.02  # between looks at whether the rewrite is over

# What it is held to.
ALWAYS_RATIO = 0.7
PAUSE_MS = 5.0

PING = encode("PING")
PERSISTENCE = encode("INFO", "persistence")
LOADED = re.compile(rb"DB loaded from (?:append only file|disk): ([0-9.]+) seconds")

Row = dict[str, Any]
Start = Callable[..., Running]


class Targets:
    """The numbers that were promised, and what became of them."""

    def __init__(self) -> None:
        self.rows: list[Row] = []

    def judge(self, what: str, wanted: str, got: float, passed: bool) -> None:
        self.rows.append({"target": what, "wanted": wanted, "got": got, "mark": "pass" if passed else "MISSED"})


def servers(options: argparse.Namespace) -> dict[str, Start]:
    """How each server is started: a function of its options."""

    def ours(*words: str) -> Running:
        return recalld("--auto-aof-rewrite-percentage", "0", *words, under=options.dir)

    def theirs(*words: str) -> Running:
        server = redis_server("--auto-aof-rewrite-percentage", "0", *words, under=options.dir)
        assert server is not None
        return server

    return {"recalld": ours, "redis-server": theirs} if options.redis else {"recalld": ours}


SLOW_FSYNC = r"""
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>
static void late(void) { usleep((useconds_t)atoi(getenv("FSYNC_US"))); }
int fsync(int fd) { late(); return (int)syscall(SYS_fsync, fd); }
int fdatasync(int fd) { late(); return (int)syscall(SYS_fdatasync, fd); }
"""


def slow_fsync(ms: float, folder: str) -> None:
    """Let servers that are started from now on wait `ms` in each fsync before it begins."""
    library = os.path.join(folder, "slow_fsync.so")
    build = ["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", library]
    try:
        subprocess.run(build, input=SLOW_FSYNC.encode(), check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"--fsync-ms needs a C compiler: {error}") from error
    os.environ |= {"LD_PRELOAD": library, "FSYNC_US": str(int(ms * 1000))}


def durable(policy: str) -> tuple[str, ...]:
    return ("--appendonly", "yes", "--appendfsync", policy)


def in_turn(names: Sequence[str], rounds: int) -> Iterator[str]:
    """Each name once per round, every second round backwards."""
    for number in range(rounds):
        yield from names if number % 2 == 0 else reversed(names)


def medians(runs: Sequence[Row]) -> Row:
    return {column: median([run[column] for run in runs]) for column in runs[0]}


# -- writes


class Numbered(Sequence[bytes]):
    """Commands encoded beforehand but for eight digits, which differ in each: a list of them would be too big."""

    DIGITS = b"00000000"

    def __init__(self, commands: Sequence[bytes], first: int) -> None:
        parts = [command.partition(self.DIGITS) for command in commands]
        self._head = parts[0][0]
        self._tails = [tail for _, _, tail in parts]
        self._first = first

    def __len__(self) -> int:
        return int(10 ** len(self.DIGITS)) - self._first

    @overload
    def __getitem__(self, index: int) -> bytes: ...

    @overload
    def __getitem__(self, index: slice) -> list[bytes]: ...

    def __getitem__(self, index: int | slice) -> bytes | list[bytes]:
        if isinstance(index, slice):
            return [self[at] for at in range(*index.indices(len(self)))]
        return b"%b%08d%b" % (self._head, self._first + index, self._tails[index % len(self._tails)])


def write_commands(corpus: Corpus) -> dict[tuple[str, str], list[bytes]]:
    """By what is written and by server: the commands, with DIGITS for the id."""
    words = corpus.texts(TEXTS * 10)
    texts = [" ".join(words[i * 10 : i * 10 + 10])[:TEXT_BYTES] for i in range(TEXTS)]
    both = list(zip(texts, (row.tobytes() for row in corpus.vectors(TEXTS)), strict=True))
    digits = Numbered.DIGITS
    redis_key = b"w:" + digits
    return {
        ("text", "recalld"): [encode("MEM.ADD", KEY, "ID", digits, "TEXT", text) for text in texts],
        ("text", "redis-server"): [encode("HSET", redis_key, "text", text) for text in texts],
        ("text+vector", "recalld"): [encode("MEM.ADD", KEY, "ID", digits, "TEXT", t, "VEC", v) for t, v in both],
        ("text+vector", "redis-server"): [encode("HSET", redis_key, "text", t, "vec", v) for t, v in both],
    }


CREATE = {
    "text": encode("MEM.CREATE", KEY, "MODE", "SEARCH"),
    "text+vector": encode("MEM.CREATE", KEY, "MODE", "HYBRID", "DIM", DIM),
}


def bench_writes(starts: dict[str, Start], options: argparse.Namespace, targets: Targets) -> list[Row]:
    commands = write_commands(Corpus(options.seed))
    rows: list[Row] = []
    for policy in options.policies.split(","):
        for what, create in CREATE.items():
            for connections in CONNECTIONS:
                seen: dict[str, list[Row]] = {name: [] for name in starts}
                for name in in_turn(list(starts), options.rounds):
                    with starts[name](*durable(policy)) as server:
                        if name == "recalld":
                            _call(server, create)
                        seen[name].append(_write(server, commands[what, name], connections, options.seconds))
                point = {"fsync": policy, "written": what, "connections": connections}
                rows += compare(point, seen, targets if policy == "always" and connections == 64 else None)
    print_records(
        f"writes, {options.seconds:g} s a point, medians of {options.rounds} rounds; text: {TEXT_BYTES} bytes, vector:"
        f" {DIM} dims; recalld: MEM.ADD, redis-server: HSET; client: 1 process, 1 thread, selectors",
        [{column: value for column, value in row.items() if column != "runs_per_s"} for row in rows],
    )
    return rows


def compare(point: Row, seen: dict[str, list[Row]], targets: Targets | None) -> list[Row]:
    rows: list[Row] = []
    for name, runs in seen.items():
        row = point | {"server": name} | medians(runs) | {"ratio": ""}
        rows.append(row | {"runs_per_s": [run["per_s"] for run in runs]})
    if "redis-server" in seen:
        ratio = rows[0]["ratio"] = rows[0]["per_s"] / rows[1]["per_s"]
        if targets is not None:
            what = f"writes of {point['written']}, always, 64 connections, of Redis's"
            targets.judge(what, f">= {ALWAYS_RATIO}", ratio, ratio >= ALWAYS_RATIO)
    return rows


def _write(server: Running, commands: Sequence[bytes], connections: int, seconds: float) -> Row:
    warm = Numbered(commands, 0)
    closed_loop(server.port, warm, connections=connections, count=WARM_UP, limit_s=60.0)
    used = time.process_time()
    load = closed_loop(
        server.port, Numbered(commands, WARM_UP), connections=connections, count=sys.maxsize, limit_s=seconds
    )
    used = time.process_time() - used
    _expect_records(server, WARM_UP + load.requests)
    return summary(load) | {"client_cpu": used / load.elapsed_s}


def _call(server: Running, command: bytes) -> Any:
    with Link(server.port) as link:
        return link.call(command)


def _expect_records(server: Running, wanted: int) -> None:
    count = encode("MEM.CARD", KEY) if server.name == "recalld" else encode("DBSIZE")
    if (found := _call(server, count)) != wanted:
        raise SystemExit(f"{server.name} has {found} records, not {wanted}")


# -- load


def fill(server: Running, data: Data) -> None:
    """All records, pipelined: into a HYBRID memory, or as hashes of the same fields."""
    if server.name == "recalld":
        _call(server, CREATE["text+vector"])
        commands = data.adds(KEY)
    else:
        commands = [encode("HSET", *_as_hash(record)) for record in data.records]
    pipelined(server.port, commands, DEPTH)
    _expect_records(server, len(data.records))


def _as_hash(record: Sequence[bytes | str | int | float]) -> list[bytes | str | int | float]:
    """ID r1 TEXT .. VEC .. becomes r1 TEXT .. VEC .."""
    return list(record[1:])


def bench_load(starts: dict[str, Start], data: Data, options: argparse.Namespace, targets: Targets) -> list[Row]:
    rows: list[Row] = []
    with ExitStack() as stack:
        running = {name: stack.enter_context(start(*durable("everysec"))) for name, start in starts.items()}
        everything = list(running.values())

        def measure(files: dict[str, str], folders: dict[str, str], records: int) -> None:
            for server in everything:
                server.stop()
            seen: dict[str, list[Row]] = {name: [] for name in running}
            for name in in_turn(list(running), options.rounds):
                seen[name].append(_load(running[name], data, records))
            for name, runs in seen.items():
                row = {"records": records, "server": name, "from": files[name]} | medians(runs)
                rows.append(row | {"disk_mb": _size_mb(Path(running[name].folder, folders[name]))})

        logs = dict.fromkeys(running, "appendonlydir")
        measure(dict.fromkeys(running, "start, no records"), logs, 0)
        for server in everything:
            server.start()
            fill(server, data)
        measure({"recalld": "incr file", "redis-server": "AOF, not rewritten"}, logs, len(data.records))
        for server in everything:
            server.start()
            _call(server, encode("SAVE"))  # recalld's is a rewrite that replies when it is done
            if server.name == "redis-server":
                server.argv += ["--appendonly", "no"]  # the last one counts; without it the AOF would be loaded
        measure({"recalld": "base file", "redis-server": "RDB"}, logs | {"redis-server": "dump.rdb"}, len(data.records))
    print_records(
        f"load, medians of {options.rounds} rounds, page cache warm; query: MEM.QUERY of text and vector, top 10;"
        f" later: median of {LATER_QUERIES}",
        rows,
    )
    if "redis-server" in running:
        ours, theirs = rows[-2], rows[-1]
        for column, what in (("load_s", "load by the log, s"), ("ready_s", "start until PING is answered, s")):
            passed = ours[column] <= theirs[column]
            targets.judge(f"base file: {what}", f"<= {theirs[column]:.3f} (RDB)", ours[column], passed)
    return rows


def _load(server: Running, data: Data, records: int) -> Row:
    """One start, and what the first query costs after it."""
    row: Row = {"ready_s": server.start(), "load_s": 0.0}
    if found := LOADED.findall(Path(server.log_path).read_bytes()):
        row["load_s"] = float(found[-1])
    if b"loading:0" not in _call(server, PERSISTENCE):
        raise SystemExit(f"{server.name} answers PING while it loads")
    if records:
        _expect_records(server, records)
        if server.name == "recalld":
            queries = data.queries(KEY)["MEM.QUERY"]
            load = closed_loop(server.port, queries, connections=1, count=1 + LATER_QUERIES, limit_s=60.0)
            first, *later = load.latencies_s
            row |= {"first_query_ms": first * 1000, "later_query_ms": median(later) * 1000}
    server.stop()
    return row


def _size_mb(path: Path) -> float:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file()) / 1e6


# -- pause


def bench_pause(starts: dict[str, Start], data: Data, options: argparse.Namespace, targets: Targets) -> list[Row]:
    rows: list[Row] = []
    with ExitStack() as stack:
        running = {name: stack.enter_context(start(*durable("everysec"))) for name, start in starts.items()}
        for server in running.values():
            fill(server, data)
        seen: dict[tuple[str, str], list[Row]] = {}
        for name in in_turn(list(running), options.rounds):
            server = running[name]
            seen.setdefault((name, "nothing"), []).append(_ping_for(server, options.seconds))
            seen.setdefault((name, "BGREWRITEAOF"), []).append(_ping_during_rewrite(server))
    for (name, beside), runs in seen.items():
        # The worst of all rounds is what a maximum is for.
        row = {"server": name, "beside": beside} | medians(runs) | {"max_ms": max(run["max_ms"] for run in runs)}
        rows.append(row)
        if (name, beside) == ("recalld", "BGREWRITEAOF"):
            for column, what in (("p99_ms", ""), ("due_p99_ms", ", with those that were due")):
                p99 = row[column]
                targets.judge(f"PING p99 during a rewrite, ms{what}", f"< {PAUSE_MS:g}", p99, p99 < PAUSE_MS)
    print_records(
        f"PING every {PACE_S * 1000:g} ms, 1 connection, {len(data.records):,} records, medians of {options.rounds}"
        " rounds (max: of all)",
        rows,
    )
    return rows


def _ping_for(server: Running, seconds: float) -> Row:
    with Link(server.port) as link:
        ends = time.perf_counter() + seconds
        return _pings(link, lambda: time.perf_counter() >= ends)


def _ping_during_rewrite(server: Running) -> Row:
    with Link(server.port) as link, Link(server.port) as control:
        # The log is synced first, or the rewrite's own sync would also pay for the fill.
        time.sleep(1.5)
        started = looked = time.perf_counter()
        # Not waited for: what the command itself holds up belongs to the pause.
        control.socket.sendall(encode("BGREWRITEAOF") + PERSISTENCE)
        replied = False

        def over() -> bool:
            nonlocal looked, replied
            if time.perf_counter() - looked < LOOK_S:
                return False
            if not replied:
                control.read()
                replied = True
            else:
                control.socket.sendall(PERSISTENCE)
            info: bytes = control.read()
            looked = time.perf_counter()
            return b"aof_rewrite_in_progress:0" in info and b"aof_rewrite_scheduled:0" in info

        row = _pings(link, over)
        took_s = time.perf_counter() - started
        if b"aof_last_bgrewrite_status:ok" not in control.call(PERSISTENCE):
            raise SystemExit(f"the rewrite of {server.name} failed")
    return row | {"took_s": took_s}


def _pings(link: Link, over: Callable[[], bool]) -> Row:
    latencies: list[float] = []
    clock = time.perf_counter
    while True:
        before = clock()
        link.call(PING)
        after = clock()
        latencies.append(after - before)
        if over():
            break
        time.sleep(max(0.0, before + PACE_S - clock()))
    return {
        "pings": len(latencies),
        "p50_ms": percentile(latencies, 50) * 1000,
        "p99_ms": percentile(latencies, 99) * 1000,
        "max_ms": max(latencies) * 1000,
        "due_p99_ms": percentile(with_due(latencies, PACE_S), 99) * 1000,
    }


def with_due(latencies: Sequence[float], pace_s: float) -> list[float]:
    """With what the PINGs would have seen that were due while an earlier one had no reply."""
    out = list(latencies)
    for latency in latencies:
        while latency > pace_s:
            latency -= pace_s
            out.append(latency)
    return out


# -- main


def disk(folder: str) -> Row:
    """What the folder is on, and what a small append costs there when it is synced."""
    kind = "?"
    try:
        mounts = [line.split()[:3] for line in Path("/proc/mounts").read_text("utf-8").splitlines()]
        real = os.path.realpath(folder)
        on = [mount for mount in mounts if os.path.commonpath([real, mount[1]]) == mount[1]]
        kind = "{2} on {0}".format(*max(on, key=lambda mount: len(mount[1])))
    except (OSError, ValueError):
        pass  # not Linux
    took: list[float] = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(100):
            before = time.perf_counter()
            os.write(file.fileno(), bytes(256))
            os.fsync(file.fileno())
            took.append(time.perf_counter() - before)
    return {"folder": folder, "kind": kind, "fsync_p50_ms": median(took) * 1000, "fsync_max_ms": max(took) * 1000}


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000, help="of load and pause")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=5.0, help="per point of writes, and of PING without a rewrite")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"of {','.join(SECTIONS)}")
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="where the servers' folders are made")
    parser.add_argument("--policies", default=",".join(POLICIES), help="of writes")
    parser.add_argument("--fsync-ms", type=float, default=0.0, help="how much longer an fsync is to take")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    options = parser.parse_args()
    sections = options.only.split(",")
    if unknown := set(sections) - set(SECTIONS):
        parser.error(f"--only knows {','.join(SECTIONS)}, not {','.join(sorted(unknown))}")
    options.redis = redis_server() is not None

    facts, where = machine(), disk(options.dir)
    print_machine(facts)
    print(
        f"folders: in {where['folder']}, {where['kind']}; 256 bytes and an fsync there: p50"
        f" {where['fsync_p50_ms']:.3f} ms, max {where['fsync_max_ms']:.3f} ms"
    )
    if where["kind"].startswith("tmpfs"):
        print("a tmpfs has no disk to wait for: choose another --dir, or the rates mean nothing")
    if not options.redis:
        print("no redis-server on PATH: no ratios, and only the pause is judged")
    if options.fsync_ms:
        slow_fsync(options.fsync_ms, tempfile.mkdtemp(prefix="recalld-bench-"))
        print(f"every fsync takes {options.fsync_ms:g} ms longer")
    starts, targets = servers(options), Targets()
    results: Row = {"machine": facts, "disk": where, "fsync_ms": options.fsync_ms}
    results |= {"rounds": options.rounds, "seconds": options.seconds}
    if "writes" in sections:
        results["writes"] = bench_writes(starts, options, targets)
    if {"load", "pause"} & set(sections):
        data = Data(Corpus(options.seed), options.records)
        if "load" in sections:
            results["load"] = bench_load(starts, data, options, targets)
        if "pause" in sections:
            results["pause"] = bench_pause(starts, data, options, targets)
    if targets.rows:
        print_records(f"targets, here with {options.records:,} records", targets.rows)
    results["targets"] = targets.rows
    write_json(options.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
