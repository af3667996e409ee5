"""Many memories: what each costs and how fast they are made and asked.

    python bench/many.py [--memories 100000] [--records 10] [--json FILE]

Each memory has a few records of eight words, once with words only and once with vectors of 16 dimensions too. They are
made in a pipeline, MEM.CREATE and one MEM.MADD each; then memories are asked at random, top 10, one client process.
Bytes are the growth of the process's anonymous memory (RssAnon), beside what MEMORY USAGE says of the same memories.
`--appendonly no`: the log's speed is bench/durable.py's subject.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from common import (
    Corpus,
    Link,
    closed_loop,
    encode,
    machine,
    pipelined,
    print_machine,
    print_records,
    recalld,
    write_json,
)

WORDS = 8
QUERIES = 10_000
CONNECTIONS = 16
LIMIT_S = 8.0
DEPTH = 100
PIECE = 5_000  # memories whose commands are made at a time
USAGE_SAMPLE = 2_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memories", type=int, default=100_000)
    parser.add_argument("--records", type=int, default=10, help="of each memory")
    parser.add_argument("--json", metavar="FILE")
    given = parser.parse_args()
    facts = machine()
    print_machine(facts)
    corpus = Corpus()
    rows = [measure(corpus, dim, given.memories, given.records) for dim in (0, 16)]
    print_records(f"{given.memories:,} memories of {given.records} records", rows)
    write_json(given.json, {"machine": facts, "many": rows})


def measure(corpus: Corpus, dim: int, memories: int, records: int) -> dict[str, Any]:
    rng = np.random.default_rng([corpus.seed, dim])
    with recalld("--appendonly", "no") as server, Link(server.port) as link:
        pid = int(_field(link.call(encode("INFO", "server")), b"process_id"))
        learn_words(link, corpus)
        before = anonymous_bytes(pid)
        took_s = 0.0
        made = commands(corpus, rng, dim, memories, records)
        while piece := list(islice(made, 2 * PIECE)):
            took_s += pipelined(server.port, piece, DEPTH).elapsed_s
        time.sleep(0.5)
        grew = anonymous_bytes(pid) - before
        sample = rng.integers(0, memories, USAGE_SAMPLE).tolist()
        told = sum(link.call(encode("MEMORY", "USAGE", f"user:{i}")) for i in sample) / len(sample)
        row: dict[str, Any] = {
            "dimensions": dim,
            "bytes_per_memory": round(grew / memories),
            "bytes_per_record": round(grew / memories / records),
            "MEMORY_USAGE": round(told),
            "memories_made_per_s": round(memories / took_s),
            "records_per_s": round(memories * records / took_s),
        }
        for name, vectors in (("MEM.SEARCH", 0), ("MEM.QUERY", dim)):
            asked = list(queries(corpus, rng, name, vectors, memories))
            for connections in (1, CONNECTIONS):
                load = closed_loop(server.port, asked, connections=connections, count=QUERIES, limit_s=LIMIT_S)
                row[f"{name}_per_s_{connections}"] = round(load.rate)
        return row


def learn_words(link: Link, corpus: Corpus) -> None:
    """Let the server know the words, which all memories share, before what memories take is measured."""
    link.call(encode("MEM.CREATE", "words", "MODE", "SEARCH"))
    for start in range(0, len(corpus.words), WORDS):
        link.call(encode("MEM.ADD", "words", "ID", "same", "TEXT", " ".join(corpus.words[start : start + WORDS])))
    link.call(encode("DEL", "words"))


def commands(corpus: Corpus, rng: np.random.Generator, dim: int, memories: int, records: int) -> Iterator[bytes]:
    """MEM.CREATE and MEM.MADD of each memory in turn."""
    for number in range(memories):
        key = f"user:{number}"
        yield encode("MEM.CREATE", key, *(("DIM", dim) if dim else ("MODE", "SEARCH")))
        words: list[bytes | str | int | float] = []
        for _ in range(records):
            words += ("RECORD", "TEXT", text(corpus, rng, WORDS))
            if dim:
                words += ("VEC", vector(rng, dim))
        yield encode("MEM.MADD", key, records, *words)


def queries(corpus: Corpus, rng: np.random.Generator, name: str, dim: int, memories: int) -> Iterator[bytes]:
    for number in rng.integers(0, memories, QUERIES).tolist():
        words = text(corpus, rng, 3)
        if name == "MEM.SEARCH":
            yield encode(name, f"user:{number}", words)
        else:
            yield encode(name, f"user:{number}", "TEXT", words, *(("VEC", vector(rng, dim)) if dim else ()))


def text(corpus: Corpus, rng: np.random.Generator, count: int) -> str:
    """Words by Zipf's law."""
    return " ".join([corpus.words[rank] for rank in (rng.zipf(1.3, count) % len(corpus.words)).tolist()])


def vector(rng: np.random.Generator, dim: int) -> bytes:
    return rng.standard_normal(dim).astype("<f4").tobytes()


def anonymous_bytes(pid: int) -> int:
    """RssAnon: what the process holds beside mapped files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise SystemExit("this system does not tell RssAnon")


def _field(info: bytes, name: bytes) -> bytes:
    return info.split(name + b":", 1)[1].split(b"\r\n", 1)[0]


if __name__ == "__main__":
    main()
