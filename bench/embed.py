"""EMBEDDER local end to end: real texts, no vectors from the client.

    python bench/embed.py [--data DIR] [--json FILE]

Loads the LoCoMo turns into memories that embed them (MEM.MADD, 64 a time), asks the dev questions by their text alone
(MEM.QUERY, recency 0), and loads all again into other memories: that second load is from the cache. Prints texts per
second, query latency (new texts, and the same ones again), nDCG@10 beside its target, and the cache's ratio.
Exit code 0: both targets met, 1: one missed, 2: no data.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import redis
from common import REPO, machine, print_machine, print_table, recalld, write_json
from quality import METRICS, NO_RECENCY, Dataset, score

BATCH = 64
TARGET = 0.50
CACHE_TARGET = 50.0


def load(client: Any, data: Dataset, prefix: str) -> float:
    """Make the memories and fill them; seconds."""
    for key in data.keys:
        client.execute_command("MEM.CREATE", prefix + key, "EMBEDDER", "local")
    batches: list[list[Any]] = []
    for key in data.keys:
        records = [record for record in data.records if data.key(record["ns"]) == key]
        for at in range(0, len(records), BATCH):
            some = records[at : at + BATCH]
            words: list[Any] = ["MEM.MADD", prefix + key, len(some)]
            for record in some:
                words += ["RECORD", "ID", record["id"], "AT", record["created_at"], "TEXT", record["text"]]
            batches.append(words)
    started = time.perf_counter()
    for words in batches:
        client.execute_command(*words)
    return time.perf_counter() - started


def ask(client: Any, data: Dataset) -> tuple[list[list[str]], list[float]]:
    """The ids found for each question, and milliseconds each."""
    found, took = [], []
    for query in data.queries:
        started = time.perf_counter()
        hits = client.execute_command(
            "MEM.QUERY", data.key(query["ns"]), "TEXT", query["text"], *NO_RECENCY, "TOPK", 10, "NOTEXT"
        )
        took.append((time.perf_counter() - started) * 1e3)
        found.append([hit[b"id"].decode() for hit in hits])
    return found, took


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=REPO.parent / "shared/data", help="folder of the data sets")
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    options = parser.parse_args()
    folder = options.data / "locomo"
    if not (folder / "records.jsonl").exists():
        print(f"no evaluation data in {folder}; name its folder with --data DIR", file=sys.stderr)
        return 2
    data, facts = Dataset.read(folder), machine()
    print_machine(facts)
    with (
        recalld("--embedder-timeout-ms", "60000") as server,
        redis.Redis(port=server.port, protocol=3, socket_timeout=120) as client,
    ):
        client.execute_command("MEM.CREATE", "warm", "EMBEDDER", "local")
        client.execute_command("MEM.ADD", "warm", "TEXT", "load the model before the clock starts")
        first = load(client, data, "")
        again = load(client, data, "again:")
        pending = sum(client.execute_command("MEM.INFO", prefix + key)[b"pending"] for key in data.keys
                      for prefix in ("", "again:"))  # fmt: skip
        found, new = ask(client, data)
        same, cached = ask(client, data)
    if pending or same != found:
        raise SystemExit(f"wrong: {pending} pending, answers repeat: {same == found}")
    scores = [score(ids, set(query["relevant"])) for ids, query in zip(found, data.queries, strict=True)]
    means = dict(zip(METRICS, np.mean(scores, axis=0).tolist(), strict=True))
    n = len(data.records)
    print_table(
        f"locomo: {n} texts, {len(data.queries)} questions",
        ("", "value"),
        [
            ("texts per second, embedding", n / first),
            ("texts per second, from the cache", n / again),
            ("ratio", first / again),
            ("MEM.QUERY of a new text, ms p50", float(np.percentile(new, 50))),
            ("MEM.QUERY of a new text, ms p99", float(np.percentile(new, 99))),
            ("the same text again, ms p50", float(np.percentile(cached, 50))),
            ("the same text again, ms p99", float(np.percentile(cached, 99))),
            *means.items(),
        ],
    )
    met = {"nDCG@10": means["nDCG@10"] >= TARGET, "cache": first / again >= CACHE_TARGET}
    for name, value, target in (("nDCG@10", means["nDCG@10"], TARGET), ("cache", first / again, CACHE_TARGET)):
        print(f"{'PASS' if met[name] else 'MISS'}  {name} {value:.3f}, target {target}")
    results = {
        "machine": facts,
        "texts": n,
        "seconds": {"first": first, "again": again},
        "query_ms": {"new": new, "cached": cached},
        "metrics": means,
    }
    write_json(options.json, results)
    return 0 if all(met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
