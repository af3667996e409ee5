"""Exact answers where they are hardest: vectors that tie, nearly tie, or are of any length; and while writes go on."""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
import redis.asyncio
from harness import Running
from recalld.index import codes, matches, ranking
from recalld.index.analyzer import Vocabulary
from recalld.index.memory import NEVER, Memory, run_together
from recalld.index.query import Query
from recalld.index.settings import Settings
from recalld.index.vectors import normalised

pytestmark = pytest.mark.usefixtures("loops")

METRICS = ["COSINE", "L2", "IP"]


def count_of(dim: int) -> int:
    """How many rows: more than CODES_MIN below, and of the longest vectors no more than take a while."""
    return 700 if dim < 4096 else 280


def ties(rng: np.random.Generator, dim: int) -> np.ndarray:
    """Twenty vectors, each as often."""
    return np.repeat(rng.standard_normal((20, dim)), count_of(dim) // 20, axis=0)


def near_ties(rng: np.random.Generator, dim: int) -> np.ndarray:
    """One direction, with differences of a last bit of float32."""
    return rng.standard_normal(dim) * (1 + 1e-7 * rng.integers(-3, 4, (count_of(dim), dim)))


def lengths(rng: np.random.Generator, dim: int) -> np.ndarray:
    """From 1e-30 to 1e30."""
    count = count_of(dim)
    return rng.standard_normal((count, dim)) * 10.0 ** rng.uniform(-30, 30, (count, 1))


def equal(rng: np.random.Generator, dim: int) -> np.ndarray:
    return np.repeat(rng.standard_normal((1, dim)), count_of(dim), axis=0)


def sparse(rng: np.random.Generator, dim: int) -> np.ndarray:
    """One number each, which a code tells exactly, beside rows that it tells badly."""
    count = count_of(dim)
    rows = np.zeros((count, dim))
    rows[np.arange(count), rng.integers(0, dim, count)] = rng.choice([-1.0, 1.0], count)
    rows[::3] += rng.standard_normal((len(rows[::3]), dim)) * 1e-3
    return rows


def exact_similarities(rows: np.ndarray, query: np.ndarray, metric: str) -> np.ndarray:
    """The textbook's, in the longest floating point there is."""
    x, q = rows.astype(np.longdouble), query.astype(np.longdouble)
    if metric == "L2":
        return 1 / (1 + np.sqrt(((x - q) ** 2).sum(axis=1)))
    dots = (x * q).sum(axis=1)
    return dots if metric == "IP" else dots / np.sqrt((x * x).sum(axis=1)) / np.sqrt((q * q).sum())


Make = Callable[[np.random.Generator, int], np.ndarray]


@cache
def asked_of(make: Make, dim: int, metric: str) -> tuple[np.ndarray, np.ndarray, list[tuple[np.ndarray, np.ndarray]]]:
    """The rows, when each was updated, and some vectors with the exact similarity of every row: the same for all loops,
    made once."""
    rng = np.random.default_rng(dim)
    rows = make(rng, dim)
    if metric == "COSINE":
        rows = np.array([normalised(row) for row in rows])
    rows = rows.astype(np.float32)
    updated = rng.integers(0, 5, len(rows))
    asked = []
    for vector in (rows[3].astype(np.float64), rng.standard_normal(dim), rows[5].astype(np.float64) * 1.0000001):
        query = normalised(vector) if metric == "COSINE" else vector
        assert query is not None
        asked.append((query, exact_similarities(rows, query, metric)))
    return rows, updated, asked


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dim", [1, 2, 17, 384, 4096])
@pytest.mark.parametrize("make", [ties, near_ties, lengths, equal, sparse])
def test_the_answer_is_the_oracles(monkeypatch, make, dim, metric):
    """Every hit has the similarity that the oracle gives its place, ties by newest and id; by codes and without,
    together and alone, to the same bits."""
    monkeypatch.setattr(codes, "CODES_MIN", 256)
    monkeypatch.setattr(ranking, "_CLOSE_MIN", 8)
    rows, updated, vectors = asked_of(make, dim, metric)
    memory = Memory(Settings(mode="VECTOR", dim=dim, metric=metric), Vocabulary(), 0)
    for number, row in enumerate(rows):
        fields = {"importance": 0.5, "created_at": 0, "updated_at": int(updated[number]), "deadline": NEVER}
        memory.put(b"%04d" % number, b"", row.tobytes(), (), (), **fields, max_words=1, at=9)
    tops = (1, 10, 40, len(rows))
    cases = [(Query(kind="vector", vector=each, top_k=top), exact) for each, exact in vectors for top in tops]
    asked = [query for query, _ in cases]

    def answers(plans: list[matches.Plan]) -> list[list[tuple[bytes, float]]]:
        return [[(memory.table.ids[hit.slot], hit.score) for hit in result.hits] for result in run_together(plans)]

    found = answers([memory.plan(query, 9) for query in asked])
    for (query, exact), hits in zip(cases, found, strict=True):
        best = np.sort(exact)[::-1][: query.top_k]
        slack = 1e-13 * (1.0 if metric != "IP" else float(np.abs(exact).max()))
        scores = np.array([score for _, score in hits])
        assert len(hits) == query.top_k
        assert np.abs(scores - best).max() <= slack
        keys = [(-score, -int(updated[int(name)]), name) for name, score in hits]
        assert keys == sorted(keys)
        # Equal rows have equal scores, so whoever ties with the last hit and is newer, or has the smaller id, is on.
        last = keys[-1]
        left_out = set(range(len(rows))) - {int(name) for name, _ in hits}
        same_row = left_out & set(np.flatnonzero((rows == rows[int(hits[-1][0])]).all(axis=1)).tolist())
        assert all((last[0], -int(updated[n]), b"%04d" % n) > last for n in same_row)
    assert [answers([memory.plan(query, 9)])[0] for query in asked] == found
    monkeypatch.setattr(codes, "numkong", None)
    assert answers([memory.plan(query, 9) for query in asked]) == found
    assert [answers([memory.plan(query, 9)])[0] for query in asked] == found


def test_answers_are_right_while_writes_go_on(server: Running) -> None:
    """A thousand queries from sixteen connections beside a writer: each answer is that of some moment between its
    sending and its reply."""
    dim, rng = 256, np.random.default_rng(1)
    centre = rng.standard_normal(dim)

    def row() -> np.ndarray:
        unit = normalised(centre + rng.standard_normal(dim) * 2)
        assert unit is not None
        return unit.astype(np.float32)

    rows = {b"%d" % number: row() for number in range(5000)}
    asked = [row() for _ in range(20)]
    every = np.array(list(rows.values())).astype(np.float64)
    sims = [dict(zip(rows, (every @ query.astype(np.float64)).tolist(), strict=True)) for query in asked]
    # Of each query the ids by similarity, after each write; a write is known by its number.
    orders = [sorted((-sim, name) for name, sim in of.items()) for of in sims]
    tops = [[[name for _, name in order[:5]]] for order in orders]
    begun = ended = 0

    def note(name: bytes, vector: np.ndarray | None) -> None:
        for of, order, top, query in zip(sims, orders, tops, asked, strict=True):
            if name in of:
                del order[bisect_left(order, (-of[name], name))]
                del of[name]
            if vector is not None:
                of[name] = float(vector.astype(np.float64) @ query)
                insort(order, (-of[name], name))
            top.append([each for _, each in order[:5]])

    async def go() -> int:
        nonlocal begun, ended
        client = redis.asyncio.Redis(port=server.port, max_connections=40)
        await client.execute_command("MEM.CREATE", "m", "MODE", "VECTOR", "DIM", dim)
        async with client.pipeline(transaction=False) as pipe:
            for name, vector in rows.items():
                pipe.execute_command("MEM.ADD", "m", "ID", name, "TEXT", "", "VEC", vector.tobytes())
            await pipe.execute()
        done = False

        async def write() -> None:
            nonlocal begun, ended
            while not done:
                number = int(rng.integers(len(asked)))
                best = orders[number][int(rng.integers(5))][1]
                vector = None if begun % 2 else normalised(asked[number] + rng.standard_normal(dim) * 0.05)
                name = best if begun % 3 else b"new%d" % begun
                if vector is None and name not in sims[0]:
                    name = best
                stored = None if vector is None else vector.astype(np.float32)
                note(name, stored)
                begun += 1
                if stored is None:
                    await client.execute_command("MEM.DEL", "m", name)
                else:
                    await client.execute_command("MEM.ADD", "m", "ID", name, "TEXT", "", "VEC", stored.tobytes())
                ended += 1

        async def ask(connection: int) -> int:
            wrong = 0
            for turn in range(63):
                number = (connection + turn) % len(asked)
                first = ended
                words = ("VEC", asked[number].tobytes(), "TOPK", 5, "NOTEXT")
                hits = await client.execute_command("MEM.VSEARCH", "m", *words)
                wrong += [hit[0] for hit in hits] not in tops[number][first : begun + 1]
            return wrong

        writer = asyncio.ensure_future(write())
        wrong = sum(await asyncio.gather(*(ask(connection) for connection in range(16))))
        done = True
        await writer
        await client.aclose()
        return wrong

    assert asyncio.run(go()) == 0
    assert ended > 50
