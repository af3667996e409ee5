"""Does MEMORY USAGE tell the truth? What the process grows by, beside what it says, for several ways of loading.

    python bench/memory.py [--records 10000,100000] [--batches 50,1000,10000] [--dims 0,64,384] [--json FILE]

A server with its log at everysec, which knows the words already and has its compiled loops loaded, is given records by
MEM.MADD, so many a command; then it rests. `rested` is the growth of its anonymous memory (RssAnon) then, `asked` after
queries of 16 connections and another rest, bytes per record; `says` is MEMORY USAGE at the same moments.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    Corpus,
    Link,
    Running,
    closed_loop,
    encode,
    machine,
    print_machine,
    print_records,
    recalld,
    resident,
    write_json,
)

WARM = 10_000
QUERIES = 2_000
CONNECTIONS = 16
LIMIT_S = 10.0
QUIET_S = 3.5  # server/trim.py gives memory back after a second or two
SETTLED_S = 60.0


def numbers(word: str) -> list[int]:
    return [int(part) for part in word.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=numbers, default=[10_000, 100_000])
    parser.add_argument("--batches", type=numbers, default=[50, 1_000, 10_000], help="records of a MEM.MADD")
    parser.add_argument("--dims", type=numbers, default=[0, 64, 384], help="at most 384; 0: no vectors")
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    facts = machine()
    print_machine(facts)
    rows = [
        measure(Corpus(), records, batch, dim)
        for records in given.records
        for dim in given.dims
        for batch in given.batches
    ]
    print_records("bytes per record", rows)
    write_json(given.json, {"machine": facts, "memory": rows})


def measure(corpus: Corpus, records: int, batch: int, dim: int) -> dict[str, Any]:
    with recalld("--appendonly", "yes", "--auto-aof-rewrite-percentage", "0") as server, Link(server.port) as link:
        load(link, corpus, "warm", 1_000_000, WARM, 100, dim)
        ask(server, corpus, "warm", dim)
        deadline = time.monotonic() + SETTLED_S
        while b"compiled loops" not in Path(server.log_path).read_bytes() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(QUIET_S)
        before = resident(server)
        load(link, corpus, "k", 0, records, batch, dim)
        row: dict[str, Any] = {"records": records, "dim": dim, "batch": batch}
        for name in ("rested", "asked"):
            if name == "asked":
                ask(server, corpus, "k", dim)
            time.sleep(QUIET_S)
            grown, says = resident(server) - before, int(link.call(encode("MEMORY", "USAGE", "k")))
            row |= {name: grown / records, f"says_{name}": says / records, f"off_{name}_%": 100 * (says / grown - 1)}
        return row


def load(link: Link, corpus: Corpus, key: str, first: int, records: int, batch: int, dim: int) -> None:
    link.call(encode("MEM.CREATE", key, *(("DIM", dim) if dim else ("MODE", "SEARCH"))))
    for start in range(0, records, batch):
        count = min(batch, records - start)
        texts, vectors = corpus.chunk(first + start, count)
        words: list[str | bytes] = []
        for text, vector in zip(texts, vectors, strict=True):
            words += ["RECORD", "TEXT", text]
            if dim:
                words += ["VEC", np.ascontiguousarray(vector[:dim]).tobytes()]
        link.call(encode("MEM.MADD", key, count, *words))


def ask(server: Running, corpus: Corpus, key: str, dim: int) -> None:
    texts, vectors = corpus.chunk(2_000_000, 100)
    queries = []
    for text, vector in zip(texts, vectors, strict=True):
        words: list[str | bytes] = ["TEXT", " ".join(text.split()[:4])]
        if dim:
            words += ["VEC", np.ascontiguousarray(vector[:dim]).tobytes()]
        queries.append(encode("MEM.QUERY", key, *words))
    closed_loop(server.port, queries, connections=CONNECTIONS, count=QUERIES, limit_s=LIMIT_S)


if __name__ == "__main__":
    main()
