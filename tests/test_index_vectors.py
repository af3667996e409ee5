"""Vectors: intervals that hold for certain, scores that do not depend on company, a sum that leaves no trace."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recalld.index import codes
from recalld.index.blocks import BLOCK, gather
from recalld.index.scan import close_intervals, intervals, scan
from recalld.index.settings import Settings
from recalld.index.vectors import VectorTable, normalised, pairwise, similarities

pytestmark = pytest.mark.usefixtures("loops")

METRICS = ["COSINE", "L2", "IP"]


def table(rows: np.ndarray, metric: str) -> VectorTable:
    made = VectorTable(rows.shape[1], metric)
    for row in rows:
        made.append(row.astype(np.float32))
    return made


def random_rows(rng: np.random.Generator, count: int, dim: int, metric: str) -> np.ndarray:
    rows = rng.standard_normal((count, dim))
    if metric == "COSINE":
        return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
    # Lengths over twelve decades, some rows equal, some near-equal.
    rows *= 10.0 ** rng.uniform(-6, 6, (count, 1))
    rows[1::7] = rows[0::7][: len(rows[1::7])]
    rows[2::7] = rows[0::7][: len(rows[2::7])] * (1 + 1e-7)
    return rows.astype(np.float32)


def view_of(made: VectorTable) -> Any:
    """What a scan reads of a view."""
    return SimpleNamespace(
        blocks=made.blocks,
        codes=made.codes,
        norms=made.norms,
        settings=Settings(mode="VECTOR", dim=made.dim, metric=made.metric),
        vector_n=made.n,
    )


def queries_for(rng: np.random.Generator, rows: np.ndarray, metric: str) -> list[np.ndarray]:
    """Random ones of very different lengths, a stored row, and one that its code tells exactly."""
    dim = rows.shape[1]
    made = [rng.standard_normal(dim) * scale for scale in (1e-20, 1.0, 1e20)] + [rows[3].astype(np.float64)]
    made.append(np.eye(1, dim)[0])
    return [normalised(query) for query in made] if metric == "COSINE" else made


@pytest.fixture(params=["codes", "float32"])
def kernel(request, monkeypatch):
    """Scans by codes however few the rows, and scans as where there is no wheel."""
    monkeypatch.setattr(codes, "CODES_MIN", 256)
    if request.param == "float32":
        monkeypatch.setattr(codes, "numkong", None)
    elif codes.numkong is None:
        pytest.skip("numkong has no wheel for this platform")
    return request.param


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dim", [1, 2, 3, 17, 384, 4096])
def test_intervals_hold_the_exact_similarity(monkeypatch, kernel, metric, dim):
    """Every row's exact similarity lies in its interval, whatever the lengths, one query or several at once, by codes,
    and by float32 where there are none yet."""
    monkeypatch.setattr(codes, "SCAN_CODES", 512)
    rng = np.random.default_rng(dim)
    rows = random_rows(rng, 700, dim, metric)
    if metric != "COSINE":
        rows[5] = 0
        rows[6] *= np.float32(1e-42 / np.abs(rows[6]).max())  # subnormal
    made = table(rows, metric)
    view = view_of(made)
    asked = queries_for(rng, rows, metric)
    scans = scan(view, asked)
    assert made.codes.n == (512 if kernel == "codes" else 0)
    for query, found in zip(asked, scans, strict=True):
        exact = similarities(made.blocks, np.arange(700), query, metric)
        few = np.arange(0, 700, 3)
        for chosen, (low, high) in (
            (slice(None), intervals(view, query, found)),
            (slice(None), intervals(view, query, scan(view, [query])[0])),
            (few, close_intervals(view, query, few)),
        ):
            assert (low <= exact[chosen]).all()
            assert (exact[chosen] <= high).all()


@pytest.mark.parametrize("metric", METRICS)
def test_intervals_are_narrow(kernel, metric):
    """About 0.02 for codes of unit vectors, hundred times less for float32: what the search for candidates lives by."""
    rng = np.random.default_rng(5)
    rows = random_rows(rng, 512, 384, "COSINE")
    made = table(rows, metric)
    view = view_of(made)
    query = normalised(rng.standard_normal(384))
    low, high = intervals(view, query, scan(view, [query])[0])
    assert (high - low).max() < (0.06 if kernel == "codes" else 2e-4)
    close_low, close_high = close_intervals(view, query, np.arange(512))
    assert (close_high - close_low).max() < 2e-4


@pytest.mark.skipif(codes.numkong is None, reason="numkong has no wheel for this platform")
def test_codes_grow_in_steps_and_follow_a_compaction():
    """However the rows come, whatever is taken over into a new table: the same codes, and intervals that hold."""
    rng = np.random.default_rng(9)
    rows = random_rows(rng, 3 * BLOCK + 100, 8, "COSINE")
    query = normalised(rng.standard_normal(8))
    made = VectorTable(8, "COSINE")
    for start in range(0, len(rows), 1000):
        for row in rows[start : start + 1000]:
            made.append(row)
        scan(view_of(made), [query])
    assert made.codes.n == made.n
    kept = np.flatnonzero(rng.random(len(rows)) < 0.7).astype(np.int32)
    taken = made.taken(kept)
    assert taken.codes.n == len(kept)
    for row in rows[:600]:
        taken.append(row)
    low, high = intervals(view_of(taken), query, scan(view_of(taken), [query])[0])
    exact = similarities(taken.blocks, np.arange(taken.n), query, "COSINE")
    assert ((low <= exact) & (exact <= high)).all()
    assert taken.codes.n == taken.n


def test_intervals_hold_where_float32_overflows(kernel):
    """An inner product beyond float32 is looked at, not lost."""
    rows = np.full((300, 4), 3e38, np.float32)
    rows[1] = 1.0
    made = table(rows, "IP")
    query = np.full(4, 3e38)
    exact = similarities(made.blocks, np.arange(300), query, "IP")
    low, high = intervals(view_of(made), query, scan(view_of(made), [query])[0])
    assert np.isfinite(exact).all()
    assert ((low <= exact) & (exact <= high)).all()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dim", [1, 3, 8, 9, 127, 384, 1000])
def test_a_score_does_not_depend_on_its_company(metric, dim):
    """Scored alone, among a thousand, in any order: the same bits."""
    rng = np.random.default_rng(7)
    rows = random_rows(rng, 1500, dim, metric)
    made = table(rows, metric)
    query = normalised(rng.standard_normal(dim))
    together = similarities(made.blocks, np.arange(1500), query, metric)
    backwards = similarities(made.blocks, np.arange(1500)[::-1], query, metric)[::-1]
    assert (together == backwards).all()
    for row in rng.integers(0, 1500, 60).tolist():
        assert similarities(made.blocks, np.array([row]), query, metric)[0] == together[row]


def test_similarities_are_the_textbook_ones():
    """cos = q.x / |q||x|; L2 = 1/(1+d): d((3,4),(0,0)) = 5 gives 1/6; IP = q.x."""
    rows = np.array([[3, 4], [0, 2]], np.float32)
    for metric, expected in (("L2", [1 / 6, 1 / 3]), ("IP", [0.0, 0.0])):
        assert similarities(table(rows, metric).blocks, np.arange(2), np.zeros(2), metric).tolist() == expected
    assert similarities(table(rows, "IP").blocks, np.arange(2), np.array([1.0, 2.0]), "IP").tolist() == [11.0, 4.0]
    unit = table(np.array([[0.6, 0.8]], np.float32), "COSINE")
    assert similarities(unit.blocks, np.arange(1), np.array([0.6, 0.8]), "COSINE")[0] == pytest.approx(1.0, abs=1e-7)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 40)), max_size=60), st.integers(0, 1000))
@settings(deadline=None)
def test_the_sum_leaves_no_trace(steps, seed):
    """After any adds and removals the sum is bit for bit that of what is left, added in another order."""
    rng = np.random.default_rng(seed)
    rows = random_rows(rng, 41, 5, "COSINE")
    made = VectorTable(5, "COSINE")
    alive: dict[int, int] = {}
    for adding, which in steps:
        if adding and which not in alive:
            alive[which] = made.append(rows[which])
        elif not adding and which in alive:
            made.remove(alive.pop(which))
    fresh = VectorTable(5, "COSINE")
    for which in sorted(alive, reverse=True):
        fresh.append(rows[which])
    assert (made.sum == fresh.sum).all()
    assert made.live == len(alive)


def test_blocks_grow_without_moving_what_a_reader_counts_on():
    """A reader's list of blocks still holds its rows after the table has grown past several blocks."""
    made = VectorTable(3, "IP")
    rows = np.arange(3 * (2 * BLOCK + 10), dtype=np.float32).reshape(-1, 3)
    for slot in range(5):
        made.append(rows[slot])
    seen = made.blocks
    for slot in range(5, len(rows)):
        made.append(rows[slot])
    assert len(made.blocks) == 3
    assert (gather(seen, np.arange(5)) == rows[:5]).all()
    chosen = np.array([0, BLOCK - 1, BLOCK, 2 * BLOCK, 2 * BLOCK + 9])
    assert (gather(made.blocks, chosen) == rows[chosen]).all()
    taken = made.taken(chosen.astype(np.int32))
    assert (gather(taken.blocks, np.arange(5)) == rows[chosen]).all()


def test_normalising_survives_any_magnitude():
    """[1e30, 1e30] and [1e-30, 1e-30] have a direction like any other."""
    for scale in (1e-38, 1e-30, 1.0, 1e30, 3e38):
        assert normalised(np.array([scale, scale])) == pytest.approx([2**-0.5, 2**-0.5], abs=1e-15)
    assert normalised(np.zeros(3)) is None


@pytest.mark.parametrize("metric", METRICS)
def test_pairwise_is_similarity(metric):
    """What DIVERSITY compares by is the metric's similarity, the same bits for equal rows."""
    rows = random_rows(np.random.default_rng(3), 6, 64, "COSINE")
    rows[4] = rows[2]
    made = table(rows, metric)
    wide = rows.astype(np.float64)
    for row in wide:
        alike = pairwise(wide, row, metric)
        assert alike == pytest.approx(similarities(made.blocks, np.arange(6), row, metric), abs=1e-7)
        assert alike[4] == alike[2]
