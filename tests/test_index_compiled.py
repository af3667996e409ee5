"""Compiled loops give numpy's answers to the bit: reported numbers, their order, counts; alone, together, in pieces."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest
from recalld.index import codes, kernels, keyword, matches, parallel, ranking, scan
from recalld.index.analyzer import Vocabulary
from recalld.index.blocks import BLOCK
from recalld.index.filters import clause
from recalld.index.memory import NEVER, Memory, run, run_together
from recalld.index.query import Query
from recalld.index.settings import Settings
from recalld.index.vectors import similarities
from test_index_paths import fill, queries


def found(memory: Memory, asked: list[Query], *, together: bool = False) -> list[object]:
    plans = [memory.plan(query, 60_000) for query in asked]
    results = run_together(plans) if together else [run(plan) for plan in plans]
    return [(result.hits, result.matched if query.counts else 0) for query, result in zip(asked, results, strict=True)]


@pytest.mark.parametrize("metric", ["COSINE", "L2", "IP"])
def test_answers_are_numpys(monkeypatch, loops, metric):
    memory = Memory(Settings(dim=5, metric=metric), Vocabulary(), 0)
    fill(memory, 11)
    asked = [query for seed in range(4) for query in queries(seed, metric)]
    with monkeypatch.context() as numpy_only:
        numpy_only.setattr(kernels, "loops", None)
        wanted = found(memory, asked)
    monkeypatch.setattr(codes, "CODES_MIN", 256)
    monkeypatch.setattr(scan, "_ROWS_MIN", 1)
    monkeypatch.setattr(ranking, "_CLOSE_MIN", 2)
    assert found(memory, asked) == wanted
    assert found(memory, asked, together=True) == wanted
    monkeypatch.setattr(codes, "_FAR_BYTES", 0)
    assert found(memory, asked) == wanted
    monkeypatch.setattr(codes, "_ROWS_EACH", 64)
    monkeypatch.setattr(matches, "_CODES_BELOW", 1)
    monkeypatch.setattr(matches, "_CODES_BELOW_TOGETHER", 1)
    parallel.use(3)
    try:
        again = Memory(Settings(dim=5, metric=metric), Vocabulary(), 0)
        fill(again, 11)
        assert found(again, asked) == wanted
    finally:
        parallel.use(1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dim", [1, 7, 64, 384, 1000])
def test_products_of_codes_that_no_cache_holds_are_numkongs(monkeypatch, loops, dim, dtype):
    """To the bit, whatever the ranges of the threads, over several slabs and a part of one."""
    if not codes.available():
        pytest.skip("numkong is not installed")
    rng = np.random.default_rng(dim)
    monkeypatch.setattr(codes, "_SLAB", 2 * BLOCK)
    n = 5 * BLOCK + 77
    held = codes.Codes(dim, dtype)
    held._slabs = [rng.integers(-127, 128, (2 * BLOCK, dim), np.int8) for _ in range(3)]
    held.n, held.scales = n, rng.random(n).astype(dtype)
    unit = rng.standard_normal((1, dim))
    unit /= np.linalg.norm(unit)
    wanted, ours = np.empty((1, n), dtype), np.empty((1, n), dtype)
    held.products(n, unit, wanted)
    monkeypatch.setattr(codes, "_FAR_BYTES", 0)
    for threads in (1, 3):
        parallel.use(threads)
        monkeypatch.setattr(parallel, "_ROWS_MIN", 1)
        try:
            ours[:] = np.nan
            held.products(n, unit, ours)
        finally:
            parallel.use(1)
        assert np.array_equal(ours, wanted)


@pytest.mark.parametrize("dim", [1, 3, 8, 129, 384, 1000])
def test_similarities_are_numpys(monkeypatch, loops, dim):
    rng = np.random.default_rng(dim)
    rows = (rng.standard_normal((300, dim)) * 10.0 ** rng.integers(-3, 4, (300, 1))).astype(np.float32)
    query = rng.standard_normal(dim)
    for metric in ("COSINE", "L2", "IP"):
        ours = similarities([rows], np.arange(300), query, metric)
        with monkeypatch.context() as numpy_only:
            numpy_only.setattr(kernels, "loops", None)
            assert ours.tobytes() == similarities([rows], np.arange(300), query, metric).tobytes()


@pytest.mark.skipif(kernels.loops is None, reason="there are no compiled loops here")
def test_products_of_some_rows_are_those_of_all():
    rng = np.random.default_rng(2)
    rows = rng.standard_normal((20_000, 4)).astype(np.float32)
    table = codes.Codes(4, np.float32)
    blocks = [rows[start : start + BLOCK] for start in range(0, len(rows), BLOCK)]
    table.extend(blocks, len(rows))
    unit = np.full(4, 0.5)
    out = np.empty((1, table.n), np.float32)
    (rest,) = table.products(table.n, unit[None], out)
    some = np.sort(rng.choice(table.n, 9_000, replace=False))
    parallel.use(2)
    try:
        values, errors, one_rest = table.products_of(some, unit)
    finally:
        parallel.use(1)
    assert table.n > 16_384  # more than one slab
    assert (values == out[0, some]).all()
    assert (errors == table.errors[some]).all()
    assert one_rest == rest


def test_long_lists_are_left_out_alike(monkeypatch, loops):
    """Common words beside rare ones, in a memory large enough for their lists not to be read whole."""
    rng = np.random.default_rng(3)
    memory = Memory(Settings(mode="SEARCH"), Vocabulary(), 0)
    for number in range(6000):
        words = ["common"] * int(rng.integers(0, 3)) + ["often"] * int(rng.integers(0, 2))
        words += [f"rare{number % 1500}", f"odd{rng.integers(300)}"]
        memory.put(
            b"%d" % number,
            " ".join(words).encode(),
            b"",
            (b"n", b"%d" % (number % 7)),
            (),
            importance=0.5,
            created_at=0,
            updated_at=number % 50,
            deadline=NEVER,
            max_words=100,
            at=0,
        )
    texts = [b"common often rare7 odd3", b"common often", b"often rare1", b"common rare2 rare3 rare4", b"nothing here"]
    filters = [[], [clause(b"n", b"EQ", b"3")], [clause(b"n", b"NE", b"3")]]
    asked = [
        Query(kind="keyword", text=text, top_k=k, filters=each)
        for text in texts
        for each in filters
        for k in (1, 10, 400)
    ]
    with monkeypatch.context() as numpy_only:
        numpy_only.setattr(kernels, "loops", None)
        wanted = found(memory, asked)
    if loops == "compiled":
        monkeypatch.setattr(keyword, "_SKIPPED_MIN", 100)
    assert found(memory, asked) == wanted


def test_where_no_code_may_be_made_there_are_no_loops():
    """As under systemd's MemoryDenyWriteExecute, where LLVM would end the process."""
    set_mdwe, refuse_exec_gain = 65, 1
    script = f"""
import ctypes
from recalld.index import kernels
from recalld.server import compiled_loops
if ctypes.CDLL(None).prctl({set_mdwe}, {refuse_exec_gain}, 0, 0, 0):
    raise SystemExit("no prctl")
try:
    compiled_loops.load()
except compiled_loops.NotCompiled as reason:
    print(reason, kernels.loops)
"""
    if not hasattr(ctypes.CDLL(None), "prctl"):
        pytest.skip("not Linux")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    if "no prctl" in done.stderr:
        pytest.skip("the kernel is older than 6.3")
    assert done.stdout == "the system lets this process make no code (MemoryDenyWriteExecute) None\n", done.stderr
