"""MEM.RECALL: what each signal costs, and what the anchor signal does for retrieval on real questions.

    python bench/recall.py [--facts N,N,..] [--entities N] [--data DIR] [--json FILE]

Speed: one memory grows to 1 000, 10 000 and 100 000 facts, all with vectors, beside 100 000 entities, all with vectors
too; one fact in ten is about one entity ("the hub"), the others about one each. One connection asks one recall after
another, eight facts, as text; each row is one kind of question.

Quality: the turns of LoCoMo's conversations as facts (subject: the speaker; object: what was said, cut at 500
characters), with the data's vectors. recall@8 is the share of a question's evidence among the eight facts. "With the
anchor signal" the speakers are entities, without it nobody is: all else is equal.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import redis
from common import (
    DIM,
    REPO,
    STOP_WORDS,
    Corpus,
    closed_loop,
    encode,
    machine,
    pipelined,
    print_machine,
    print_records,
    print_table,
    recalld,
    write_json,
)
from quality import BATCH, Dataset

KEY = "bench:recall"
HUB = "hub of hubs"
TYPES = ("PERSON", "ORG", "PLACE", "PRODUCT", "TOPIC")
QUESTIONS = 200
LIMIT_S = 15.0
OBJECT_CHARS = 500


# -- speed


class World:
    """Seeded entities and facts."""

    def __init__(self, facts: int, entities: int) -> None:
        corpus = Corpus()
        rng = np.random.default_rng(11)
        words = corpus.words[len(STOP_WORDS) :]
        pairs: dict[str, None] = {}
        while len(pairs) < max(entities, facts):
            first, second = rng.integers(0, len(words), 2)
            pairs[f"{words[first]} {words[second]}"] = None
        self.names = list(pairs)
        self.entities = entities
        self.texts = corpus.texts(facts)
        self.vectors = corpus.vectors(facts)
        self.entity_vectors = corpus.chunk(1, entities)[1]
        self.query_vectors = corpus.query_vectors(self.vectors, QUESTIONS)
        self.rng = rng

    def predicates(self, start: int, end: int) -> Iterator[str]:
        """Six to eight words each."""
        for number in range(start, end):
            yield " ".join(self.texts[number].split()[: 6 + number % 3])

    def facts(self, start: int, end: int) -> Iterator[bytes]:
        for number, predicate in enumerate(self.predicates(start, end), start):
            name = HUB if number % 10 == 0 else self.names[number % self.entities]
            yield encode(
                *(
                    "MEM.FACT",
                    KEY,
                    f"user{number % 7}",
                    predicate,
                    name,
                    "TYPE",
                    TYPES[number % 5 if name != HUB else 0],
                ),
                *("VEC", self.vectors[number].tobytes(), "VALIDAT", 1_700_000_000_000 + number),
            )

    def entity_commands(self, with_vectors: bool) -> Iterator[bytes]:
        for number in range(self.entities):
            words: list[bytes | str] = ["MEM.ENTITY", KEY, self.names[number], "TYPE", TYPES[number % 5]]
            if with_vectors:
                words += ["VEC", self.entity_vectors[number].tobytes()]
            yield encode(*words)

    def questions(self, facts: int) -> dict[str, list[bytes]]:
        """Kind of question -> commands."""
        about = [int(number) for number in self.rng.integers(0, facts, QUESTIONS)]
        about = [number + 1 if number % 10 == 0 else number for number in about]
        words = [" ".join(self.texts[number].split()[:4]) for number in about]
        names = [self.names[number % self.entities] for number in about]
        blobs = [vector.tobytes() for vector in self.query_vectors]

        def ask(*given: Sequence[Any]) -> list[bytes]:
            return [encode("MEM.RECALL", KEY, *sum(parts, ())) for parts in zip(*given, strict=True)]

        text = [("TEXT", some) for some in words]
        named = [("TEXT", f"what of {name} and {some}") for name, some in zip(names, words, strict=True)]
        vector = [("VEC", blob) for blob in blobs]
        no_anchor = [("ANCHORTOPK", 0)] * QUESTIONS
        return {
            "recent (no query)": ask([()] * QUESTIONS),
            "keyword": ask(text),
            "keyword, anchor by name": ask(named),
            "the hub named": ask([("TEXT", HUB)] * QUESTIONS),
            "vector": ask(vector, no_anchor),
            "vector, anchor by vector": ask(vector),
            "all three": ask(named, vector),
            "all three, ASOF now": ask(named, vector, [("ASOF", 4_000_000_000_000)] * QUESTIONS),
        }


def measure_speed(sizes: Sequence[int], entities: int) -> list[dict[str, Any]]:
    world = World(sizes[-1], entities)
    rows: list[dict[str, Any]] = []
    with recalld("--appendonly", "no") as server:
        pipelined(server.port, [encode("MEM.CREATE", KEY, "DIM", DIM)], 1)
        loaded = 0
        for size in sizes:
            load = pipelined(server.port, list(world.facts(loaded, size)), 100)
            print(f"{size:,} facts: the last {size - loaded:,} at {load.rate:,.0f} a second", file=sys.stderr)
            loaded = size
            if size == sizes[0]:
                rows += ask_all(server.port, world, size, "their own")
                for with_vectors in (False, True):  # a new name with a vector would be compared with all others
                    pipelined(server.port, list(world.entity_commands(with_vectors)), 100)
            rows += ask_all(server.port, world, size, f"{entities:,}")
    return rows


def ask_all(port: int, world: World, size: int, entities: str) -> list[dict[str, Any]]:
    rows = []
    for kind, commands in world.questions(size).items():
        closed_loop(port, commands, connections=1, count=5, limit_s=LIMIT_S)  # what readers keep is built
        load = closed_loop(port, commands, connections=1, count=QUESTIONS, limit_s=LIMIT_S)
        rows.append(
            {"question": kind, "facts": size, "entities": entities, "p50_ms": load.ms(50), "p99_ms": load.ms(99)}
        )
    return rows


# -- quality

#: Name of the row -> (given, options); "anchor" rows are asked once the speakers are entities.
CONFIGS: dict[str, tuple[str, tuple[str | float, ...]]] = {
    "keyword": ("text", ()),
    "vector": ("vector", ("ANCHORTOPK", 0)),
    "keyword + vector": ("both", ("ANCHORTOPK", 0)),
    "keyword + anchor": ("text", ()),
    "keyword + vector + anchor": ("both", ("ANCHORTOPK", 0)),
}


def load(client: Any, data: Dataset) -> dict[tuple[str, str], str]:
    """The turns as facts; (key, turn) -> the fact's id, which two turns share that say the same."""
    ids: dict[tuple[str, str], str] = {}
    for key in data.keys:
        client.execute_command("MEM.CREATE", key, "DIM", DIM)
    for start in range(0, len(data.records), BATCH):
        some = data.records[start : start + BATCH]
        with client.pipeline(transaction=False) as batch:
            for row, record in enumerate(some, start):
                said = record["text"].removeprefix(f"{record['speaker']}: ")[:OBJECT_CHARS]
                batch.execute_command(
                    "MEM.FACT", data.key(record["ns"]), record["speaker"], "said", said, "ID", record["id"],
                    "VEC", data.record_vectors[row].tobytes(), "AT", record["created_at"],
                )  # fmt: skip
            for record, made in zip(some, batch.execute(), strict=True):
                ids[data.key(record["ns"]), record["id"]] = made.decode()
    return ids


def ask(client: Any, data: Dataset, config: str) -> list[list[str]]:
    """The ids of the eight facts for each question."""
    given, options = CONFIGS[config]
    found: list[list[str]] = []
    for start in range(0, len(data.queries), BATCH):
        with client.pipeline(transaction=False) as batch:
            for row, query in enumerate(data.queries[start : start + BATCH], start):
                words: list[Any] = ["TEXT", query["text"]] if given != "vector" else []
                words += ["VEC", data.query_vectors[row].tobytes()] if given != "text" else []
                batch.execute_command(
                    "MEM.RECALL", data.key(query["ns"]), *words, *options, "FACTS", 8, "FORMAT", "MAP"
                )
            found += ([fact[b"id"].decode() for fact in reply[b"facts"]] for reply in batch.execute())
    return found


def measure_quality(client: Any, data: Dataset) -> dict[str, dict[str, float]]:
    """recall@8 of the evidence, over all questions and by category."""
    client.delete(*data.keys)
    ids = load(client, data)
    rows: dict[str, dict[str, float]] = {}
    people = {(data.key(record["ns"]), record["speaker"]) for record in data.records}
    for config in CONFIGS:
        if config.endswith("anchor") and people:
            for key, name in sorted(people):
                client.execute_command("MEM.ENTITY", key, name, "TYPE", "PERSON")
            people = set()
        shares: dict[str, list[float]] = {"all": []}
        for query, hits in zip(data.queries, ask(client, data, config), strict=True):
            relevant = {ids[data.key(query["ns"]), turn] for turn in query["relevant"]}
            share = len(relevant & set(hits)) / len(relevant)
            shares["all"].append(share)
            shares.setdefault(f"category {query['category']}", []).append(share)
        rows[config] = {name: float(np.mean(values)) for name, values in sorted(shares.items())}
    client.delete(*data.keys)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--facts", default="1000,10000,100000", help="sizes, ascending; 0: no measure of speed")
    parser.add_argument("--entities", type=int, default=100_000)
    parser.add_argument("--data", type=Path, default=REPO.parent / "shared/data", help="folder of the data sets")
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    options = parser.parse_args()
    sizes = [int(size) for size in options.facts.split(",") if int(size)]
    about = machine()
    print_machine(about)
    results: dict[str, Any] = {"machine": about}
    if sizes:
        results["speed"] = measure_speed(sizes, options.entities)
        print_records("MEM.RECALL, one connection, 8 facts", results["speed"])
    folder = options.data / "locomo"
    if not (folder / "records.jsonl").exists():
        print(f"\nno LoCoMo data in {folder}: quality is not measured; name its folder with --data DIR")
    else:
        data = Dataset.read(folder)
        with recalld("--appendonly", "no") as server, redis.Redis(port=server.port, protocol=3) as client:
            rows = measure_quality(client, data)
        results["recall_at_8"] = rows
        head = ("recall@8 of the evidence", *next(iter(rows.values())))
        title = f"locomo dev: {len(data.records)} turns in {len(data.keys)} memories, {len(data.queries)} questions"
        print_table(title, head, [(config, *row.values()) for config, row in rows.items()])
    write_json(options.json, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
