"""What broke compiled loops and their surroundings, or might: numbers at the end of their range, absurd pages, vectors
filled in out of order, parts of parts in threads; and random queries, compiled against numpy, to the bit."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from conftest import NOT_COMPILED
from harness import PATIENCE_S, Running, pack
from recalld.index import codes, columns, filters, kernels, keyword, matches, parallel, ranking, scan
from recalld.index.analyzer import Vocabulary
from recalld.index.filters import clause, tag_clauses
from recalld.index.memory import NEVER, Memory, run, run_together
from recalld.index.query import Query
from recalld.index.settings import Settings
from recalld.index.vectors import normalised
from recalld.server import workers

WORDS = [f"w{number}" for number in range(40)]
NOW = 60_000


def put(memory: Memory, record_id: bytes, text: str, vector: bytes = b"", at: int = 0, **more: Any) -> None:
    fields = {"importance": 0.5, "created_at": at, "updated_at": at, "deadline": NEVER, "max_words": 5_000, "at": at}
    memory.put(record_id, text.encode(), vector, **{"meta": (), "tags": (), **fields, **more})


def test_a_page_beyond_all_rows_is_empty_and_harms_nothing(server: Running, loops: str) -> None:
    wire = server.wire()
    wire("MEM.CREATE", "m", "MODE", "SEARCH")
    for number in range(30):
        wire("MEM.ADD", "m", "ID", number, "TEXT", f"common w{number % 7}")
    first = wire("MEM.SEARCH", "m", "common w3", "TOPK", 3, "WITHSCORES")
    for offset in (29, 30, 10**9, 10**13):
        assert len(wire("MEM.SEARCH", "m", "common w3", "TOPK", 3, "OFFSET", offset)) == max(0, 30 - offset)
        assert wire("MEM.SEARCH", "m", "common w3", "TOPK", 3, "WITHSCORES") == first


@pytest.mark.filterwarnings("ignore:overflow")
def test_parts_that_are_zero_are_no_rows(monkeypatch: pytest.MonkeyPatch, loops: str) -> None:
    """With a K1 near the end of float64 a long record's part is zero, for each of its words again."""
    monkeypatch.setattr(keyword, "PRUNE_MIN", 0)
    memory = Memory(Settings(mode="SEARCH", lang="none", k1=1e308, b=1.0), Vocabulary(), 0)
    for number in range(40):
        put(memory, b"%d" % number, " ".join(f"a{word}" for word in range(400 if number % 2 else 3)))
    text = " ".join(f"a{word}" for word in range(200)).encode()
    for counts in (True, False):
        result = run(memory.plan(Query(kind="keyword", text=text, top_k=100, counts=counts), NOW))
        names = [memory.table.ids[hit.slot] for hit in result.hits]
        assert len(set(names)) == len(names)
        assert {int(name) % 2 for name in names} <= {0}


@pytest.mark.parametrize("refused", [0, 5])
@pytest.mark.parametrize("metric", ["COSINE", "L2"])
def test_vectors_filled_in_out_of_order_are_their_records(
    monkeypatch: pytest.MonkeyPatch, loops: str, metric: str, refused: int
) -> None:
    """A change of model fills the newest first, in pieces, and leaves out what the model refuses."""
    monkeypatch.setattr(codes, "CODES_MIN", 256)
    rng = np.random.default_rng(1)
    memory = Memory(Settings(dim=8, metric=metric, embedder="x", model="a"), Vocabulary(), 0)
    vectors: dict[bytes, np.ndarray] = {}
    for number in range(700):
        put(memory, b"%d" % number, "t", normalised(rng.standard_normal(8)).astype("<f4").tobytes())
        vectors[b"%d" % number] = normalised(rng.standard_normal(8)).astype("<f4")
    memory.switch(replace(memory.settings, model="b"), 2)
    for number in range(refused):
        del vectors[b"%d" % (number * 100)]
    items = [(name, memory.serial(name), vector.tobytes()) for name, vector in reversed(vectors.items())]
    for start in range(0, len(items), 100):
        memory.fill_vectors(items[start : start + 100], 2)

    def look() -> None:
        for _ in range(10):
            probe = normalised(rng.standard_normal(8))
            near = sorted(vectors, key=lambda name: -float(vectors[name] @ probe))[:4]
            for kind in ("vector", "fused"):
                query = Query(kind=kind, vector=probe, top_k=4, counts=False, weights=(0.0, 1.0, 0.0, 0.0))
                hits = run(memory.plan(query, NOW)).hits
                assert [memory.table.ids[hit.slot] for hit in hits] == near
                for hit, name in zip(hits, near, strict=True):
                    wanted = float(vectors[name] @ probe)
                    if metric == "L2":
                        wanted = 1 / (1 + float(np.linalg.norm(vectors[name] - probe)))
                    assert hit.vector == pytest.approx(wanted, abs=1e-6)

    look()
    for number in range(1, 700, 7):
        memory.remove(b"%d" % number, 3)
        vectors.pop(b"%d" % number, None)
    look()
    memory.compact()
    look()


def test_parts_of_parts_wait_for_no_thread() -> None:
    """Queries of a batch, each in a thread, split their scans in turn: all threads waited for a free one, for ever."""
    done = [np.zeros(64, np.int64) for _ in range(5)]

    def work(number: int) -> None:
        def count(start: int, end: int) -> None:
            done[number][start:end] += 1

        parallel.split(64, 1, count, least=1)

    parallel.use(2)
    try:
        for _ in range(20):
            thread = threading.Thread(target=lambda: parallel.each(5, work, rows=1 << 20), daemon=True)
            thread.start()
            thread.join(PATIENCE_S)
            assert not thread.is_alive()
    finally:
        parallel.use(1)
    assert all((each == 20).all() for each in done)


def test_what_a_part_raises_is_raised() -> None:
    def work(start: int, end: int) -> None:
        if start:
            raise ValueError("behind")

    parallel.use(2)
    try:
        for _ in range(20):
            with pytest.raises(ValueError, match="behind"):
                parallel.split(64, 1, work, least=1)
    finally:
        parallel.use(1)


def filled(rng: np.random.Generator, settings: Settings, rows: int, gaps: bool, extreme: bool) -> Memory:
    memory = Memory(settings, Vocabulary(), 0)
    for number in range(rows):
        blob = b""
        if settings.has_vectors and not (gaps and number % 9 == 0):
            vector = rng.integers(-2, 3, settings.dim) + (rng.random() < 0.5) * rng.random(settings.dim)
            vector[0] += 0.25
            if settings.metric == "COSINE":
                vector = normalised(vector)
            elif extreme:
                vector = vector * 10.0 ** float(rng.integers(-30, 15))
            blob = vector.astype("<f4").tobytes()
        put(
            memory,
            b"%d" % rng.integers(0, rows),
            " ".join(rng.choice(WORDS, rng.integers(0, 12))),
            blob,
            at=int(rng.integers(0, 30)) * 1000,
            importance=float(rng.integers(0, 5)) / 4,
            meta=(b"n", b"%d" % rng.integers(0, 20)) if number % 5 else (),
            tags=tuple(b"w%d" % tag for tag in sorted(set(rng.integers(0, 6, rng.integers(0, 3)).tolist()))),
        )
        if number % 11 == 0:
            memory.remove(next(iter(memory.table.by_id)), 30_000)
    return memory


def asked(rng: np.random.Generator, settings: Settings, extreme: bool, count: int) -> list[Query]:
    made = []
    for _ in range(count):
        kinds = ["fused", "fused", "fused", "keyword", "vector"] if settings.has_vectors else ["keyword"]
        kind = str(rng.choice(kinds))
        vector = None
        if kind == "vector" or (kind == "fused" and rng.random() < 0.8):
            vector = rng.standard_normal(settings.dim)
            if settings.metric == "COSINE":
                vector = normalised(vector)
            elif extreme:
                vector = (vector * 10.0 ** float(rng.integers(-20, 20))).astype("<f4").astype(np.float64)
        text = None
        if kind == "keyword" or (kind == "fused" and (vector is None or rng.random() < 0.7)):
            text = " ".join(rng.choice([*WORDS, "absent"], rng.integers(1, 14))).encode()
        query = Query(
            kind=kind,
            text=text,
            vector=vector,
            top_k=int(rng.choice([1, 3, 10, 100, 600])),
            offset=int(rng.choice([0, 0, 0, 5, 400, 5_000])),
            fusion=str(rng.choice(["LINEAR", "LINEAR", "RRF"])),
            weights=[None, (1.0, 1.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0), (0.2, 0.3, 0.4, 0.1), (1e7, 1e-7, 3.0, 0.0)][
                int(rng.integers(5))
            ],
            half_life=int(rng.choice([1, 40, 10**6, 10**9])),
            explain=rng.random() < 0.15,
            counts=rng.random() < 0.4,
        )
        if rng.random() < 0.25:
            query.min_score = float(rng.choice([0.1, 0.35, 0.5, 2.0]))
        if vector is not None and rng.random() < 0.25:
            query.min_sim = float(rng.choice([-0.2, 0.0, 0.3, 0.5]))
        if rng.random() < 0.15:
            query.diversity = float(rng.choice([0.0, 0.5, 0.9]))
        choice = rng.integers(8)
        if choice == 0:
            query.filters = [clause(b"n", b"EQ", b"%d" % rng.integers(0, 25))]
        elif choice == 1:
            query.filters = [clause(b"n", b"NE", b"3"), *tag_clauses("ANY", [b"w1", b"w2"])]
        elif choice == 2:
            query.filters = [clause(b"@updated_at", b"GTE", b"20000"), clause(b"n", b"LT", b"9")]
        elif choice == 3:
            query.filters = tag_clauses("ALL", [b"w1"])
        made.append(query)
    return made


def shown(memory: Memory, queries: list[Query], results: list[Any]) -> list[Any]:
    found = []
    for query, result in zip(queries, results, strict=True):
        assert not isinstance(result, Exception), result
        hits = [(memory.table.ids[h.slot], h.score, h.keyword, h.vector, h.recency, h.explain) for h in result.hits]
        found.append(repr((hits, (result.matched, result.filtered, result.below) if query.counts else None)))
    return found


def alone(memory: Memory, queries: list[Query]) -> list[Any]:
    return shown(memory, queries, [run(memory.plan(query, NOW)) for query in queries])


def together(memory: Memory, queries: list[Query]) -> list[Any]:
    return shown(memory, queries, run_together([memory.plan(query, NOW) for query in queries]))


SHAPES: list[dict[str, Any]] = [
    {"dim": 1},
    {"dim": 3, "metric": "L2"},
    {"dim": 7, "metric": "IP", "extreme": True},
    {"dim": 16, "gaps": True},
    {"dim": 33, "tagboost": 0.4},
    {"dim": 130, "metric": "L2", "gaps": True, "extreme": True},
    {"dim": 1000, "rows": 300},
    {"mode": "SEARCH", "k1": 0.0, "b": 0.0},
    {"mode": "SEARCH", "k1": 50.0, "b": 1.0, "tagboost": 2.0},
]


def compare(monkeypatch: pytest.MonkeyPatch, shape: dict[str, Any], seed: int, count: int) -> None:
    given = {"rows": 1_100, "gaps": False, "extreme": False, "lang": "none", **shape}
    rows, gaps, extreme = given.pop("rows"), given.pop("gaps"), given.pop("extreme")
    settings = Settings(**given)
    queries = asked(np.random.default_rng(seed + 1), settings, extreme, count)

    def memory() -> Memory:
        return filled(np.random.default_rng(seed), settings, rows, gaps, extreme)

    with monkeypatch.context() as numpy_only:
        numpy_only.setattr(kernels, "loops", None)
        numpy_only.setattr(columns, "POSTINGS_MIN", 10**9)
        numpy_only.setattr(filters, "COLUMNS_MIN", 10**9)
        wanted = alone(memory(), queries)
    one = memory()
    assert alone(one, queries) == wanted
    assert together(one, queries) == wanted
    for module, name, value in (
        (codes, "CODES_MIN", 256),
        (codes, "_ROWS_EACH", 64),
        (scan, "_ROWS_MIN", 1),
        (ranking, "_CLOSE_MIN", 2),
        (ranking, "_CLOSE_MIN_COMPILED", 2),
        (ranking, "_HEAP_MAX", 50),
        (keyword, "_SKIPPED_MIN", 20),
        (keyword, "PRUNE_MIN", 0),
        (matches, "PRUNE_MIN", 0),
        (parallel, "_EACH_ROWS_MIN", 0),
    ):
        monkeypatch.setattr(module, name, value)
    one = memory()
    assert alone(one, queries) == wanted
    parallel.use(3)
    try:
        assert together(memory(), queries) == wanted  # all that readers keep is made by threads at once
        assert together(one, queries) == wanted
        twin = one.copy()
        assert together(twin, queries) == wanted
    finally:
        parallel.use(1)


@pytest.mark.skipif(bool(NOT_COMPILED), reason=NOT_COMPILED or "-")
@pytest.mark.parametrize("number", range(len(SHAPES)))
def test_random_queries_are_answered_alike(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    compare(monkeypatch, SHAPES[number], 100 + number, 30)


@pytest.mark.parametrize("short_cost", [-1, 1 << 60])
def test_pipelined_queries_see_what_stood_before_them(
    server: Running, monkeypatch: pytest.MonkeyPatch, short_cost: int
) -> None:
    """Gathered per turn of the loop, or in threads: each answers for its place among the writes of its connection, in
    order, whoever else asks, writes, or goes away without reading."""
    monkeypatch.setattr(workers, "INLINE_COST", -1)
    monkeypatch.setattr(workers, "_SHORT_COST", short_cost)
    wires = [server.wire(2) for _ in range(4)]
    for number in range(4):
        wires[0]("MEM.CREATE", number, "DIM", 2)
    wires[0]("MEM.CREATE", "shared", "MODE", "SEARCH")
    for turn in range(15):
        gone = server.wire(2)
        for wire in [*wires, gone]:
            number = wires.index(wire) if wire is not gone else 0
            packed = []
            for key, more in ((number, ["FVEC", 2, 1, turn]), ("shared", [])):
                if wire is not gone:
                    packed.append(pack("MEM.ADD", key, "ID", f"{number}-{turn}", "TEXT", f"common w{number}", *more))
                packed.append(pack("MEM.SEARCH", key, f"w{number}", "TOPK", 100, "NOTEXT"))
                packed.append(pack("MEM.QUERY", key, "TEXT", f"w{number}", "TOPK", 100, "WITHSTATS"))
            wire.sock.sendall(b"".join(packed))
        gone.close()
        for number, wire in enumerate(wires):
            for _ in ("own", "shared"):
                assert wire.read() == b"%d-%d" % (number, turn)
                assert {hit[0] for hit in wire.read()} == {b"%d-%d" % (number, each) for each in range(turn + 1)}
                assert len(wire.read()[0]) == turn + 1
