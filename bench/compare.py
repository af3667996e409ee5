"""recalld beside RediSearch, on the same records, in the same run, taking turns.

    python bench/compare.py [--records 10000,100000,1000000] [--rounds 3] [--seconds 3] [--json FILE] [--png FILE]
                            [--only knn,keyword,hybrid,filter,ingest,memory,ping,scale]

Prints, and writes as JSON and as a chart, medians over the rounds and their ratios:

    knn      exact top 10 by cosine, at 1 and 16 connections: MEM.VSEARCH beside a FLAT index
    keyword  top 10 by BM25 of records with any of 2 to 5 words: MEM.SEARCH beside FT.SEARCH a|b|c
    hybrid   both: MEM.QUERY as it is by default (LINEAR, four signals), and with FUSION RRF, beside a BM25 query and a
             KNN query sent together and fused by RRF in the client
    filter   knn among the 1 % and the 20 % of the records that have one value in a metadata field
    ingest   pipelined MEM.ADD, and MEM.MADD, beside pipelined HSET, the log synced every second on both sides
    memory   bytes per record: what the processes have grown by, and what they say about it themselves; without what
             recalld's compiled loops take once
    ping     PING on one connection while others keep the server at KNN queries of all records
    scale    milliseconds per query by number of records, queries per second by number of connections

One pair of servers grows from size to size; keyword, hybrid and filter stop at 100 000 records. `wanted` is the ratio
that is aimed at. At each size, before anything is timed, both must give the same ten neighbours, with and
without a filter; where they do not, the run ends with an error.

Fairness: records are equal byte by byte. RediSearch is tuned (redisearch.py says how); --redisearch-args gives its
module other arguments. Both stem English, and no query has a stop word. The client of RediSearch fuses ten hits of each
query, the least that it could do, where MEM.QUERY ranks all records by words, vector, recency and importance. The
generator is one process, and its processor time per query stands beside the server's.
"""

from __future__ import annotations

import argparse
import multiprocessing
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    DIM,
    REPO,
    Corpus,
    Floats,
    Link,
    Running,
    encode,
    machine,
    median,
    pipelined,
    print_machine,
    print_records,
    recalld,
    resident,
    write_json,
)
from compare_chart import draw, pyplot
from compare_load import Queries, hammer, measure, ping
from redisearch import INDEX, MODULE_ARGS, create, fuse, install, keyword, knn, redisearch

SECTIONS = ("knn", "keyword", "hybrid", "filter", "ingest", "memory", "ping", "scale")
KEY = "bench"
CHUNK = 1_000  # records are made so many at a time; sizes are multiples of it
KEPT = 20  # of each chunk's records, for queries to be made from
ASKED = 1_000  # different queries of each kind
CHECKED = 25  # queries whose neighbours are compared
BATCH = 100  # records of a MEM.MADD, commands of a pipeline
CONNECTIONS = (1, 16)
SMALL = 100_000  # the largest size for all but knn, memory, ping and scale
LARGE_ROUNDS = 2  # at most, beyond that
WARM_S = 0.2
QUIET_S = 4.0  # in which recalld gives back what it freed
WARM_LIMIT_S = 120
PIECE = 10_000  # records that ingest gives one server before it is another's turn
SCALE_RECORDS = (1_000, 3_000, 10_000, 30_000, 100_000, 300_000)
SCALE_CONNECTIONS = (1, 2, 4, 8, 16, 32)
# One project in five records, and each of eighty others in one of a hundred.
PROJECTS = np.array(["p0", *(f"p{i}" for i in range(1, 81))])
SHARES = np.array([0.2, *[0.01] * 80])
FILTERS = {"filter 20 %": "p0", "filter 1 %": "p1"}
# Two float32 products of 384 numbers each near 1 differ by less; neighbours that near to each other may change places.
TIE = 2e-6
# Aimed at: queries per second of recalld over RediSearch, at 1 and at 16 connections.
WANTED = {
    ("knn", 10_000): (2.0, 3.0),
    ("knn", 100_000): (3.5, 8.0),
    ("knn", 1_000_000): (5.0, 10.0),
    ("keyword", 10_000): (2.0, 2.0),
    ("keyword", 100_000): (6.0, 6.0),
    ("hybrid", 10_000): (2.0, 2.5),
    ("hybrid", 100_000): (4.0, 8.0),
    ("filter 1 %", 100_000): (2.0, 4.0),
    ("filter 20 %", 100_000): (3.0, 6.0),
}
WANTED_INGEST = 1.0
WANTED_BYTES = 0.6  # at most
WANTED_PING_MS = 5.0  # at most

Row = dict[str, Any]


# -- records and queries


@dataclass(frozen=True, slots=True)
class Record:
    id: str
    text: str
    vector: bytes
    project: str


class Data:
    """Seeded records, chunk by chunk, and queries made from those that have been taken so far."""

    def __init__(self, seed: int) -> None:
        self.corpus = Corpus(seed)
        self.records = 0
        self._texts: list[str] = []
        self._vectors: list[Floats] = []

    def take(self) -> list[Record]:
        """The next chunk."""
        number, first = self.records // CHUNK, self.records
        texts, vectors = self.corpus.chunk(number, CHUNK)
        projects = np.random.default_rng([self.corpus.seed, 7, number]).choice(PROJECTS, CHUNK, p=SHARES).tolist()
        self.records += CHUNK
        self._texts += texts[:KEPT]
        self._vectors.append(vectors[:KEPT])
        rows = zip(texts, vectors, projects, strict=True)
        return [
            Record(f"r{first + i}", text, vector.tobytes(), project) for i, (text, vector, project) in enumerate(rows)
        ]

    def queries(self) -> tuple[list[str], list[bytes]]:
        """Texts and vectors to ask for, near records from all over the set."""
        texts = self.corpus.query_texts(self._texts, ASKED)
        return texts, [row.tobytes() for row in self.corpus.query_vectors(np.concatenate(self._vectors), ASKED)]


# -- the two sides


class Recalld:
    name = "recalld"

    def __init__(self, running: Running) -> None:
        self.running = running

    def create(self, records: int) -> bytes:
        return encode("MEM.CREATE", KEY, "DIM", DIM)

    def adds(self, records: Sequence[Record]) -> list[bytes]:
        return [encode("MEM.ADD", KEY, *self._fields(record)) for record in records]

    def loads(self, records: Sequence[Record]) -> list[bytes]:
        """The fastest way in, `BATCH` records a command."""
        batches = [records[start : start + BATCH] for start in range(0, len(records), BATCH)]
        fields = [[word for record in batch for word in ("RECORD", *self._fields(record))] for batch in batches]
        return [encode("MEM.MADD", KEY, len(batch), *words) for batch, words in zip(batches, fields, strict=True)]

    @staticmethod
    def _fields(record: Record) -> tuple[str | bytes, ...]:
        return "ID", record.id, "TEXT", record.text, "VEC", record.vector, "META", "project", record.project

    def knn(self, vectors: Sequence[bytes], project: str | None = None) -> Queries:
        return Queries([encode(*self._knn(vector, project), "NOTEXT") for vector in vectors])

    @staticmethod
    def _knn(vector: bytes, project: str | None) -> list[str | bytes | int]:
        kept = ("FILTER", "project", "EQ", project) if project else ()
        return ["MEM.VSEARCH", KEY, "VEC", vector, "TOPK", 10, *kept]

    def keyword(self, texts: Sequence[str]) -> Queries:
        return Queries([encode("MEM.SEARCH", KEY, text, "TOPK", 10, "NOTEXT", "WITHSCORES") for text in texts])

    def hybrid(self, texts: Sequence[str], vectors: Sequence[bytes], *options: str) -> Queries:
        tail = ("TOPK", 10, "NOTEXT", *options)
        both = zip(texts, vectors, strict=True)
        return Queries([encode("MEM.QUERY", KEY, "TEXT", text, "VEC", vector, *tail) for text, vector in both])

    def nearest(self, link: Link, vector: bytes, project: str | None) -> list[tuple[bytes, float]]:
        """Ids and distances, to be compared."""
        link.call(encode("HELLO", 3))  # with all the digits
        hits = link.call(encode(*self._knn(vector, project), "NOTEXT", "WITHSCORES"))
        return [(hit[b"id"], 1.0 - hit[b"vector_score"]) for hit in hits]

    def best(self, link: Link, text: str) -> list[bytes]:
        link.call(encode("HELLO", 3))
        return [hit[b"id"] for hit in link.call(encode("MEM.SEARCH", KEY, text, "NOTEXT"))]

    def says_bytes(self, link: Link) -> float:
        """What the server itself says that the records take."""
        return float(link.call(encode("MEMORY", "USAGE", KEY)))


class RediSearch:
    name = "RediSearch"

    def __init__(self, running: Running) -> None:
        self.running = running

    def create(self, records: int) -> bytes:
        return encode(*create(records))

    def adds(self, records: Sequence[Record]) -> list[bytes]:
        return [encode("HSET", r.id, "text", r.text, "vec", r.vector, "project", r.project) for r in records]

    loads = adds

    def knn(self, vectors: Sequence[bytes], project: str | None = None) -> Queries:
        return Queries([encode(*knn(vector, project, "NOCONTENT")) for vector in vectors])

    def keyword(self, texts: Sequence[str]) -> Queries:
        return Queries([encode(*keyword(text, "WITHSCORES")) for text in texts])

    def hybrid(self, texts: Sequence[str], vectors: Sequence[bytes], *options: str) -> Queries:
        """The same whatever the options: they are recalld's."""
        both = zip(texts, vectors, strict=True)
        requests = [encode(*keyword(text)) + encode(*knn(vector, None, "NOCONTENT")) for text, vector in both]
        return Queries(requests, replies=2, finish=fuse)

    def nearest(self, link: Link, vector: bytes, project: str | None) -> list[tuple[bytes, float]]:
        _, *hits = link.call(encode(*knn(vector, project, "RETURN", 1, "d")))
        return [(record, float(shown[1])) for record, shown in zip(hits[::2], hits[1::2], strict=True)]

    def best(self, link: Link, text: str) -> list[bytes]:
        return list(link.call(encode(*keyword(text, scorer="BM25STD")))[1:])  # the standard formula, a little slower

    def says_bytes(self, link: Link) -> float:
        """The sizes of the index's parts; the hashes that it indexes are not among them."""
        info = link.call(encode("FT.INFO", INDEX))
        named = dict(zip(info[::2], info[1::2], strict=True))
        parts = [size for name, size in named.items() if name.endswith((b"_sz_mb", b"_size_mb"))]
        # There is a total among them, but of the words' part alone.
        return (sum(map(float, parts)) - float(named.get(b"total_index_memory_sz_mb", 0))) * 2**20


Side = Recalld | RediSearch


def call(side: Side, *commands: bytes) -> list[Any]:
    with Link(side.running.port) as link:
        return [link.call(command) for command in commands]


def load(sides: Sequence[Side], data: Data, records: int) -> None:
    """Let both grow to so many records."""
    while data.records < records:
        chunk = data.take()
        for side in sides:
            pipelined(side.running.port, side.loads(chunk), BATCH)


# -- the same answers


def check(sides: Sequence[Side], data: Data) -> Row:
    """Stop unless all sides give the same neighbours. How much their BM25 rankings have in common is only told."""
    texts, vectors = data.queries()
    shared: list[int] = []
    with ExitStack() as stack:
        links = [stack.enter_context(Link(side.running.port)) for side in sides]
        pairs = list(zip(sides, links, strict=True))
        for text, vector in zip(texts[:CHECKED], vectors[:CHECKED], strict=True):
            for project in (None, *FILTERS.values()):
                ours, theirs = (side.nearest(link, vector, project) for side, link in pairs)
                if not same_neighbours(ours, theirs):
                    where = f"at {data.records:,} records, {project=}"
                    raise SystemExit(f"not the same neighbours {where}:\n{ours}\n{theirs}")
            one, other = (set(side.best(link, text)) for side, link in pairs)
            if not one or not other:
                raise SystemExit(f"nothing found for {text!r}")
            shared.append(len(one & other))
    return {
        "records": data.records,
        "queries": 3 * CHECKED,
        "neighbours": "same",
        "BM25 hits in common": f"{median(shared):g} of 10",
    }


def same_neighbours(ours: Sequence[tuple[bytes, float]], theirs: Sequence[tuple[bytes, float]]) -> bool:
    """Whether two rankings are the same, but for records that are equally far as far as float32 can tell."""
    if len(ours) != len(theirs) or any(abs(a[1] - b[1]) > TIE for a, b in zip(ours, theirs, strict=True)):
        return False
    last = max((distance for _, distance in ours), default=0.0)
    only = set(dict(ours)) ^ set(dict(theirs))
    return all(last - distance <= 2 * TIE for record, distance in (*ours, *theirs) if record in only)


# -- queries


Make = Callable[[Side], Queries]


def kinds(data: Data, names: Sequence[str]) -> dict[str, Make]:
    """Of each row's name, how a side is asked."""
    texts, vectors = data.queries()
    made: dict[str, Make] = {}
    if "knn" in names:
        made["knn"] = lambda side: side.knn(vectors)
    if "keyword" in names:
        made["keyword"] = lambda side: side.keyword(texts)
    if "hybrid" in names:
        made["hybrid"] = lambda side: side.hybrid(texts, vectors)
        made["hybrid RRF"] = lambda side: side.hybrid(texts, vectors, "FUSION", "RRF")
    if "filter" in names:
        made |= {name: lambda side, kept=kept: side.knn(vectors, kept) for name, kept in FILTERS.items()}  # type: ignore[misc]
    return made


def race(sides: Sequence[Side], make: Make, connections: int, rounds: int, seconds: float) -> Row:
    """Both asked in turn; of each the medians, and the ratio of the rates."""
    asked = [(side, make(side)) for side in sides]
    runs: dict[str, list[dict[str, float]]] = {side.name: [] for side in sides}
    for side, queries in asked:
        measure(side.running, queries, connections, min(WARM_S, seconds))
    for number in range(rounds):
        for side, queries in asked if number % 2 == 0 else asked[::-1]:
            runs[side.name].append(measure(side.running, queries, connections, seconds))
    row: Row = {name: {key: median([run[key] for run in seen]) for key in seen[0]} for name, seen in runs.items()}
    return row | {"ratio": row[Recalld.name]["per_s"] / row[RediSearch.name]["per_s"]}


def bench_queries(sides: Sequence[Side], data: Data, names: Sequence[str], options: argparse.Namespace) -> list[Row]:
    rounds = options.rounds if data.records <= SMALL else min(options.rounds, LARGE_ROUNDS)
    rows: list[Row] = []
    for name, make in kinds(data, names).items():
        wanted = WANTED.get((name, data.records), (None, None))
        for connections, least in zip(CONNECTIONS, wanted, strict=True):
            row: Row = {"query": name, "records": data.records, "connections": connections}
            rows.append(row | race(sides, make, connections, rounds, options.seconds) | {"wanted": least})
    print_races(f"queries, {data.records:,} records, top 10, medians of {rounds} rounds of {options.seconds} s", rows)
    return rows


def print_races(title: str, rows: Sequence[Row]) -> None:
    """A line for each row: both sides' numbers next to each other."""
    if not rows:
        return
    columns = {
        "per_s": "per s",
        "p50_ms": "p50",
        "p99_ms": "p99",
        "server_cpu_ms": "cpu",
        "client_cpu_ms": "client cpu",
    }
    lines: list[Row] = []
    for row in rows:
        line: Row = {key: row[key] for key in ("query", "records", "connections") if key in row}
        for name, short in ((Recalld.name, "rd"), (RediSearch.name, "RS")):
            line |= {f"{short} {label}": row[name][key] for key, label in columns.items()}
        line["ratio"] = row["ratio"]
        line["wanted"] = row.get("wanted") or ""
        lines.append(line)
    print_records(f"{title} (rd: recalld, RS: RediSearch; ms per query)", lines)


# -- scale


def bench_cost(sides: Sequence[Side], data: Data, options: argparse.Namespace) -> list[Row]:
    """One connection: milliseconds per query at this size."""
    names = ("knn", "keyword", "hybrid") if data.records <= SMALL else ("knn",)
    shape = {"records": data.records, "connections": 1}
    return [
        {"query": name} | shape | race(sides, make, 1, 1, options.seconds) for name, make in kinds(data, names).items()
    ]


def bench_concurrency(sides: Sequence[Side], data: Data, options: argparse.Namespace) -> list[Row]:
    """More and more queries at once at one size."""
    rows: list[Row] = []
    for name, make in kinds(data, ("knn", "keyword", "hybrid")).items():
        for connections in SCALE_CONNECTIONS:
            row: Row = {"query": name, "records": data.records, "connections": connections}
            rows.append(row | race(sides, make, connections, 1, options.seconds))
    return rows


# -- memory


def sizes(side: Side) -> tuple[int, int]:
    """What the process holds, and what the server calls used_memory."""
    (info,) = call(side, encode("INFO", "memory"))
    used = next(line for line in info.splitlines() if line.startswith(b"used_memory:"))
    return resident(side.running), int(used.partition(b":")[2])


def bench_memory(sides: Sequence[Side], data: Data, before: dict[str, tuple[int, int]]) -> list[Row]:
    """After all kinds of queries, so that what is built for the first of them counts too, and a rest."""
    for make in kinds(data, ("knn", "keyword", "hybrid") if data.records <= SMALL else ("knn",)).values():
        for side in sides:
            measure(side.running, make(side), 16, WARM_S)
    time.sleep(QUIET_S)
    rows: list[Row] = []
    for side in sides:
        with Link(side.running.port) as link:
            says = side.says_bytes(link)
        grown, used = (now - then for now, then in zip(sizes(side), before[side.name], strict=True))
        row: Row = {"server": side.name, "records": data.records, "grown_mib": grown / 2**20}
        row |= {"bytes_per_record": grown / data.records, "used_memory_per_record": used / data.records}
        rows.append(row | {"index_says_per_record": says / data.records})
    ours, theirs = rows
    if theirs["bytes_per_record"] > 0:
        ours |= {"ratio": ours["bytes_per_record"] / theirs["bytes_per_record"], "at_most": WANTED_BYTES}
    return rows


# -- PING


@contextmanager
def hammered(side: Side, queries: Queries, connections: int) -> Iterator[Any]:
    """Queries without a pause meanwhile, by another process; its rate, known afterwards."""
    spawn = multiprocessing.get_context("spawn")
    ready, stop, rate = spawn.Event(), spawn.Event(), spawn.Value("d", 0.0)
    process = spawn.Process(
        target=hammer, args=(side.running.port, queries, connections, ready, stop, rate), daemon=True
    )
    process.start()
    try:
        if not ready.wait(120):
            raise SystemExit("the process that sends the queries did not start")
        yield rate
    finally:
        stop.set()
        process.join(120)
        if process.is_alive():
            process.terminate()
            process.join()


def bench_ping(sides: Sequence[Side], data: Data, options: argparse.Namespace) -> list[Row]:
    _, vectors = data.queries()
    seconds = max(5.0, options.seconds)
    rows: list[Row] = []
    for connections in (0, *CONNECTIONS):
        for side in sides:
            row: Row = {"server": side.name, "records": data.records, "scanning_connections": connections}
            if not connections:
                rows.append(row | ping(side.running.port, seconds))
                continue
            with hammered(side, side.knn(vectors), connections) as rate:
                row |= ping(side.running.port, seconds)
            row |= {"scans_per_s": rate.value}
            rows.append(row | ({"at_most": WANTED_PING_MS} if side.name == Recalld.name else {}))
    return rows


# -- ingest


def bench_ingest(binaries: Path, options: argparse.Namespace) -> list[Row]:
    """Three servers fill up in turn, a piece at a time; commands are encoded before the clock starts."""
    most = min(SMALL, max(options.records))
    data, piece = Data(options.seed), min(PIECE, most)
    total = most // piece * piece
    took: dict[str, list[float]] = {}
    with ExitStack() as stack:
        ours, bulk = (Recalld(stack.enter_context(start_recalld(options, log=True))) for _ in range(2))
        theirs = RediSearch(stack.enter_context(start_redisearch(binaries, options, log=True)))
        ways: list[tuple[str, Side, Callable[[Sequence[Record]], list[bytes]], int]] = [
            (f"MEM.ADD, pipeline {BATCH}", ours, ours.adds, BATCH),
            (f"HSET, pipeline {BATCH}", theirs, theirs.adds, BATCH),
            (f"MEM.MADD of {BATCH}", bulk, bulk.loads, 1),
        ]
        for side in (ours, theirs, bulk):
            call(side, side.create(total))
        for number in range(total // piece):
            records = [record for _ in range(piece // CHUNK) for record in data.take()]
            for name, side, encoded, depth in ways if number % 2 == 0 else ways[::-1]:
                took.setdefault(name, []).append(pipelined(side.running.port, encoded(records), depth).elapsed_s)
    rates = {name: median([piece / seconds for seconds in seen]) for name, seen in took.items()}
    base = rates[ways[1][0]]
    rows: list[Row] = [{"way": name, "records": total, "per_s": rates[name]} for name, *_ in ways]
    for row in rows:
        if row["way"] != ways[1][0]:
            row |= {"ratio": row["per_s"] / base, "wanted": WANTED_INGEST}
    return rows


# -- main


def start_recalld(options: argparse.Namespace, *, log: bool) -> Running:
    durable = ("--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0")
    args = options.recalld_args.split()
    return recalld(*(durable if log else ("--appendonly", "no")), *args, under=options.dir)


def start_redisearch(binaries: Path, options: argparse.Namespace, *, log: bool) -> Running:
    # No rewrites, on either side: one that happens to fall into a piece would be measured with it.
    durable = ("--appendonly", "yes", "--appendfsync", "everysec", "--auto-aof-rewrite-percentage", "0")
    return redisearch(binaries, options.redisearch_args, *(durable if log else ()), under=options.dir)


def numbers(word: str) -> list[int]:
    sizes = sorted({int(number.replace("_", "")) for number in word.split(",")})
    if not sizes or sizes[0] <= 0 or any(size % CHUNK for size in sizes):
        raise argparse.ArgumentTypeError(f"sizes are multiples of {CHUNK}, with commas between")
    return sizes


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=numbers, default=[10_000, 100_000, 1_000_000], help="sizes, commas between")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each side, row and round")
    parser.add_argument("--only", default=",".join(SECTIONS), help=f"of {','.join(SECTIONS)}")
    parser.add_argument("--recalld-args", default="", help="options of recalld, in one word")
    parser.add_argument("--redisearch-args", default=MODULE_ARGS, help=f"arguments of its module ({MODULE_ARGS})")
    parser.add_argument("--cache", type=Path, default=REPO / "build", help="where RediSearch is unpacked (build/)")
    parser.add_argument("--dir", default=tempfile.gettempdir(), help="where the servers' folders are made")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    parser.add_argument("--png", metavar="FILE", help="draw them there too (needs matplotlib)")
    options = parser.parse_args()
    options.sections = options.only.split(",")
    if unknown := set(options.sections) - set(SECTIONS):
        parser.error(f"--only knows {','.join(SECTIONS)}, not {','.join(sorted(unknown))}")
    return options


def warm(side: Side, corpus: Corpus) -> None:
    """Let recalld load its compiled loops, some 30 MB that no record is the reason of, before memory is looked at."""
    texts, vectors = corpus.chunk(0, CHUNK)
    words: list[str | bytes] = []
    for text, vector in zip(texts, vectors, strict=True):
        words += ["RECORD", "TEXT", text, "VEC", vector.tobytes()]
    query = encode("MEM.QUERY", "warm", "TEXT", texts[0], "VEC", vectors[0].tobytes())
    call(side, encode("MEM.CREATE", "warm", "DIM", DIM), encode("MEM.MADD", "warm", CHUNK, *words), query)
    deadline = time.monotonic() + WARM_LIMIT_S
    while b"compiled loops" not in Path(side.running.log_path).read_bytes():
        if time.monotonic() > deadline:
            raise SystemExit(f"recalld's log says nothing of compiled loops after {WARM_LIMIT_S} s")
        time.sleep(0.05)
    call(side, encode("DEL", "warm"))


def bench_sizes(binaries: Path, options: argparse.Namespace, results: Row) -> None:
    """All that is measured on the pair of servers that grows from size to size."""
    sections, largest = options.sections, max(options.records)
    small = max((size for size in options.records if size <= SMALL), default=0)
    scales = [size for size in SCALE_RECORDS if size < largest] + [largest] if "scale" in sections else []
    data = Data(options.seed)
    with ExitStack() as stack:
        sides: list[Side] = [
            Recalld(stack.enter_context(start_recalld(options, log=False))),
            RediSearch(stack.enter_context(start_redisearch(binaries, options, log=False))),
        ]
        warm(sides[0], data.corpus)
        for side in sides:
            call(side, side.create(largest))
        before = {side.name: sizes(side) for side in sides}
        for size in sorted({*options.records, *scales}):
            started = time.perf_counter()
            load(sides, data, size)
            print(f"\n{size:,} records: both filled in {time.perf_counter() - started:.0f} s", flush=True)
            results["checks"].append(check(sides, data))
            if size in options.records:
                names = [name for name in sections if size <= SMALL or name == "knn"]
                if size != small and "filter" in names:
                    names.remove("filter")
                results["queries"] += bench_queries(sides, data, names, options)
            if size in scales:
                results["cost"] += bench_cost(sides, data, options)
            if size == small and "scale" in sections:
                results["concurrency"] = bench_concurrency(sides, data, options)
            if size in options.records and "memory" in sections:
                results["memory"] += bench_memory(sides, data, before)
        if "ping" in sections:
            results["ping"] = bench_ping(sides, data, options)


def main() -> int:
    options = parse()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers are stopped then too
    if options.png:
        pyplot()  # not after an hour of measuring
    facts = machine()
    print_machine(facts)
    binaries = install(options.cache)
    results: Row = {"machine": facts, "rounds": options.rounds, "seconds": options.seconds}
    results |= {name: [] for name in ("checks", "queries", "cost", "concurrency", "memory", "ping", "ingest")}
    if set(options.sections) - {"ingest"}:
        bench_sizes(binaries, options, results)
        print_records("the same answers", results["checks"])
        print_races("cost by records", results["cost"])
        print_races("queries at once", results["concurrency"])
        if results["memory"]:
            print_records(
                "memory, after queries of all kinds; RediSearch's index leaves out the hashes", results["memory"]
            )
        if results["ping"]:
            print_records("PING beside KNN queries without a pause", results["ping"])
    if "ingest" in options.sections:
        results["ingest"] = bench_ingest(binaries, options)
        print_records(f"ingest, log synced every second; medians over pieces of {PIECE:,}", results["ingest"])
    write_json(options.json, results)
    if options.png:
        draw(results, options.png)
    return 0


if __name__ == "__main__":
    sys.exit(main())
