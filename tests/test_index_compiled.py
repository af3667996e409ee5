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
def test_products_of_codes_are_numkongs(monkeypatch, loops, dim, dtype):
    """To the bit, whatever the ranges of the threads, over several slabs and a part of one; of several queries, too."""
    if not codes.available():
        pytest.skip("numkong is not installed")
    rng = np.random.default_rng(dim)
    monkeypatch.setattr(codes, "_SLAB", 2 * BLOCK)
    n = 5 * BLOCK + 77
    held = codes.Codes(dim, dtype)
    held._slabs = [rng.integers(-127, 128, (2 * BLOCK, dim), np.int8) for _ in range(3)]
    held.n, held.scales = n, rng.random(n).astype(dtype)
    units = rng.standard_normal((3, dim))
    units /= np.linalg.norm(units, axis=1, keepdims=True)
    together, ours = np.empty((3, n), dtype), np.empty((1, n), dtype)
    rests = held.products(n, units, together)
    for threads in (1, 3):
        parallel.use(threads)
        monkeypatch.setattr(parallel, "_ROWS_MIN", 1)
        try:
            for unit, wanted, rest in zip(units, together, rests, strict=True):
                ours[:] = np.nan
                assert held.products(n, unit[None], ours) == [rest]
                assert np.array_equal(ours[0], wanted)
        finally:
            parallel.use(1)


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


@pytest.mark.parametrize("dim", [3, 8, 9, 16, 130, 300])
@pytest.mark.parametrize("metric", ["COSINE", "IP"])
def test_zeros_have_numpys_sign(monkeypatch, loops, dim, metric):
    """Where all products are -0.0 the sum is 0.0."""
    rows = np.eye(dim, dtype=np.float32)[1:]
    query = -np.eye(dim)[0]
    ours = similarities([rows], np.arange(dim - 1), query, metric)
    with monkeypatch.context() as patch:
        patch.setattr(kernels, "loops", None)
        assert ours.tobytes() == similarities([rows], np.arange(dim - 1), query, metric).tobytes()


def test_similarities_of_rows_that_stand_anywhere(monkeypatch, loops):
    """Over several blocks, in any order, some more than once; in memory at no even address, as a mapped file may be."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((2 * BLOCK + 50, 11)).astype(np.float32)
    rows[5], rows[BLOCK] = 0.0, rows[7]
    rows[9:11] *= np.float32(1e-30)
    mapped = np.frombuffer(b"x" + rows[BLOCK : 2 * BLOCK].tobytes(), np.float32, offset=1).reshape(BLOCK, 11)
    blocks = [rows[:BLOCK], mapped, rows[2 * BLOCK :]]
    query = rng.standard_normal(11)
    for metric in ("COSINE", "L2", "IP"):
        for chosen in (rng.integers(0, len(rows), 200, np.int32), np.array([5, 7, BLOCK, 9, 10, len(rows) - 1])):
            with np.errstate(invalid="ignore"):
                ours = similarities(blocks, chosen, query, metric)
                with monkeypatch.context() as numpy_only:
                    numpy_only.setattr(kernels, "loops", None)
                    wanted = similarities([rows], chosen, query, metric)
            assert ours.tobytes() == wanted.tobytes()
    assert similarities([], np.zeros(0, np.int32), query, "COSINE").tolist() == []


@pytest.mark.skipif(kernels.loops is None, reason="there are no compiled loops here")
@pytest.mark.parametrize("need", [1, 7, 200])
@pytest.mark.parametrize("coded", [False, True])
def test_the_candidates_hold_all_that_may_be_among_the_best(need, coded):
    """Of all rows, of some that slots pick out, and of the same given by themselves; with many equals."""
    rng = np.random.default_rng(need)
    values = (rng.integers(-20, 20, 1000) / 16).astype(np.float32)
    errors = (rng.integers(1, 4, 1000) / 64).astype(np.float32) if coded else np.zeros(0, np.float32)
    fixed, words = rng.random(1000).astype(np.float32), rng.random(1000)
    chosen = np.sort(rng.choice(1000, 300, replace=False))
    nowhere, nothing = np.zeros(0, np.int64), np.zeros(0)

    def near(of: np.ndarray, off: np.ndarray, slots: np.ndarray, linear: bool, added: np.ndarray) -> list[int]:
        room = np.empty(1000, np.float32)
        given = (of, off, 0.5, linear, 0.5, 0.1, fixed, slots, nowhere, added, 0.25, 0.01, need, room)
        found: list[int] = kernels.loops.near_best(*given).tolist()
        return found

    every = np.arange(1000)
    for linear in (False, True):
        for slots in (nowhere, chosen):
            at = slots if len(slots) else every
            some_errors = errors[at] if coded else errors
            added = words[at] if linear else nothing
            middle = values[at].astype(np.float64)
            if linear:
                middle = np.maximum(middle * 0.5 - 0.1, 0.0) + fixed[at] + added * 0.25
            spread = 0.5 * some_errors if coded else 0.0
            low, high = middle - spread, middle + spread
            least = np.sort(low)[-need]
            found = near(values, errors, slots, linear, added)
            assert found == near(values[at], some_errors, slots, linear, added)
            assert set(np.flatnonzero(high >= least)) <= set(found) <= set(np.flatnonzero(high >= least - 0.02))


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
    # More lists than a call takes, and nearly as many.
    texts += [" ".join(["common", *(f"odd{number}" for number in range(count))]).encode() for count in (9, 60)]
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


def test_postings_of_the_forward_index_are_numpys(monkeypatch, loops):
    """Of terms that stand at the edges of what is looked at together, in rows with and without words, some dead."""
    rng = np.random.default_rng(4)
    memory = Memory(Settings(mode="SEARCH"), Vocabulary(), 0)
    for number in range(500):
        words = [f"w{word}" for word in rng.integers(0, 200, rng.integers(0, 30))] if number % 9 else []
        words = ["edge", *words] if number % 64 == 63 else words
        more = {"importance": 0.5, "created_at": 0, "updated_at": 0, "deadline": NEVER, "max_words": 100, "at": 0}
        memory.put(b"%d" % number, " ".join(words).encode(), b"", (), (), **more)
    for number in range(0, 500, 7):
        memory.remove(b"%d" % number, 1)
    for text in (b"edge", b"edge w1 w2 w3", b"w199 w0 w7 w8 w9 w10 w11 w12 w13 w14 w15 w16", b"w5 unheard"):
        plan = memory.plan(Query(kind="keyword", text=text), 1)
        terms = [term.term_id for term, _ in plan.terms if term.term_id >= 0]
        ours = keyword._unposted(plan, terms)
        with monkeypatch.context() as numpy_only:
            numpy_only.setattr(kernels, "loops", None)
            wanted = keyword._unposted(plan, terms)
        assert [(data.tolist(), live) for data, live in ours] == [(data.tolist(), live) for data, live in wanted]
        assert plan.posted == 0 and any(live for _, live in wanted)


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
