"""One answer, whichever path found it: forward scan or posting lists, record by record or encoded columns, few rows
gathered or all scanned. The small paths are held to the oracle over the wire (test_oracle_*.py); here large memories
are held to the small paths, bit for bit."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from recalld.index import codes, columns, filters, matches, parallel, ranking, rrf
from recalld.index.analyzer import Vocabulary
from recalld.index.estimates import Estimates
from recalld.index.filters import OPERATORS, clause, tag_clauses
from recalld.index.memory import NEVER, Memory, run, run_together
from recalld.index.query import Query, Result
from recalld.index.settings import Settings
from recalld.index.vectors import normalised

ROWS = 1700
DIM = 5
WORDS = [f"word{number}" for number in range(60)]
SKEW = 1.0 / np.arange(1, len(WORDS) + 1)
SKEW /= SKEW.sum()
VALUES = [b"1", b"1.0", b"01", b"2", b"-3", b"1e3", b"apple", b"apple pie", b"", b"zebra", b"100000000000000000001"]


def fill(memory: Memory, seed: int) -> None:
    """Records with many ties, some rewritten, some removed, some without a vector or words."""
    rng = np.random.default_rng(seed)
    cosine = memory.settings.metric == "COSINE"
    for number in range(ROWS):
        text = " ".join(rng.choice(WORDS, rng.integers(0, 9)))
        vector = rng.integers(-2, 3, DIM).astype(np.float64)
        blob = b""
        if vector.any() and number % 11:
            stored = normalised(vector) if cosine else vector * 10.0 ** rng.integers(-3, 4)
            blob = stored.astype("<f4").tobytes()
        meta = (b"kind", VALUES[rng.integers(len(VALUES))]) if number % 5 else ()
        if number % 3 == 0:
            meta += (b"n", b"%d" % rng.integers(-50, 50))
        tags = tuple(b"t%d" % tag for tag in sorted(set(rng.integers(0, 6, rng.integers(0, 4)).tolist())))
        at = int(rng.integers(0, 40)) * 1000
        memory.put(
            b"%d" % rng.integers(0, ROWS),
            text.encode(),
            blob,
            meta,
            tags,
            importance=float(rng.integers(0, 5)) / 4,
            created_at=at // 2,
            updated_at=at,
            deadline=NEVER,
            max_words=100,
            at=at,
        )
        if number % 13 == 0:
            gone = next(iter(memory.table.by_id))
            memory.remove(gone, at)


def queries(seed: int, metric: str) -> list[Query]:
    rng = np.random.default_rng(seed)
    made = []
    for number in range(40):
        vector = rng.standard_normal(DIM)
        if metric == "COSINE":
            vector = normalised(vector)
        query = Query(
            kind=["fused", "fused", "keyword", "vector"][number % 4],
            text=" ".join(rng.choice(WORDS, 3)).encode() if number % 5 else b"word1 word1 unknown",
            vector=vector if number % 3 else None,
            top_k=int(rng.integers(1, 60)),
            offset=int(rng.integers(0, 20)),
            fusion=["LINEAR", "RRF"][number % 2],
            weights=[None, (1.0, 1.0, 0.0, 0.0), (0.0, 0.0, 0.0, 0.0), (0.2, 0.3, 0.4, 0.1)][number % 4],
            half_life=int(rng.integers(1, 100)),
            explain=number % 7 == 0,
            counts=number % 8 != 2,
        )
        if query.kind == "keyword":
            query.vector = None
        if query.kind == "vector":
            query.text, query.vector = None, vector
        if number % 4 == 1:
            query.min_score = 0.3
        if number % 6 == 1:
            query.diversity = 0.7
        if number % 8 == 2 and query.vector is not None:
            query.min_sim = 0.2
        if number % 3 == 2:
            query.filters = [clause(b"kind", b"NE", b"1"), *tag_clauses("ANY", [b"t1", b"t2"])]
        if number % 9 == 4:
            query.filters = [clause(b"@updated_at", b"GTE", b"30000"), clause(b"n", b"LT", b"-20")]
        made.append(query)
    return made


def answers(memory: Memory, asked: list[Query]) -> list[object]:
    return shown(memory, asked, [run(memory.plan(query, 45_000)) for query in asked])


def answers_together(memory: Memory, asked: list[Query]) -> list[object]:
    return shown(memory, asked, run_together([memory.plan(query, 45_000) for query in asked]))


def shown(memory: Memory, asked: list[Query], results: list[Result]) -> list[object]:
    found = []
    for query, result in zip(asked, results, strict=True):
        hits = [(memory.table.ids[h.slot], h.score, h.keyword, h.vector, h.recency, h.explain) for h in result.hits]
        counts = (result.matched, result.filtered, result.below) if query.counts else None
        found.append((hits, counts))
    return found


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("metric", ["COSINE", "L2", "IP"])
def test_large_and_small_paths_agree_to_the_bit(monkeypatch, metric):
    """The same records, kept with and without postings and columns, with and without gathering."""
    settings = Settings(dim=DIM, metric=metric, lang="none")
    large = Memory(settings, Vocabulary(), 0)
    fill(large, 1)
    assert large.table.postings is not None
    expected = answers(large, queries(2, metric))
    monkeypatch.setattr(matches, "_GATHER_BELOW", 0)
    assert answers(large, queries(2, metric)) == expected
    monkeypatch.setattr(matches, "_GATHER_BELOW", 10**9)
    assert answers(large, queries(2, metric)) == expected
    monkeypatch.setattr(ranking, "_CLOSE_MIN", 0)
    monkeypatch.setattr(matches, "PRUNE_MIN", 0)
    monkeypatch.setattr(codes, "CODES_MIN", 256)
    monkeypatch.setattr(codes, "SCAN_CODES", 100)  # so the first scans find rows that have none yet
    assert answers(large, queries(2, metric)) == expected
    assert large.table.vectors.codes.n > 0
    assert answers_together(large, queries(2, metric)) == expected
    monkeypatch.setattr(codes, "numkong", None)
    assert answers_together(large, queries(2, metric)) == expected
    monkeypatch.setattr(columns, "POSTINGS_MIN", 10**9)
    monkeypatch.setattr(filters, "COLUMNS_MIN", 10**9)
    small = Memory(settings, Vocabulary(), 0)
    fill(small, 1)
    assert small.table.postings is None
    assert answers(small, queries(2, metric)) == expected
    assert small.term_count() == large.term_count()


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("counts", [False, True])
def test_the_common_case_agrees_to_the_bit(monkeypatch, counts):
    """Every record has words and a vector: by quick looks at all rows, and by none."""
    rng = np.random.default_rng(4)
    memory = Memory(Settings(dim=24, lang="none"), Vocabulary(), 0)
    centres = rng.standard_normal((20, 24))
    for number in range(3000):
        vector = normalised(centres[number % 20] + rng.standard_normal(24) * rng.choice([0.0, 0.05, 0.6]))
        memory.put(
            b"%d" % number,
            " ".join(rng.choice(WORDS, rng.integers(1, 9), p=SKEW)).encode(),
            vector.astype("<f4").tobytes(),
            (),
            (),
            importance=float(rng.integers(0, 5)) / 4,
            created_at=0,
            updated_at=int(rng.integers(0, 60)) * 1000,  # some are from the future
            deadline=NEVER,
            max_words=100,
            at=0,
        )
    asked = []
    for number in range(60):
        asked.append(
            Query(
                kind=["fused", "fused", "vector"][number % 3],
                text=" ".join(rng.choice(WORDS, rng.integers(1, 4), p=SKEW)).encode() if number % 3 else None,
                vector=normalised(centres[number % 20] + rng.standard_normal(24) * 0.3),
                top_k=int(rng.integers(1, 40)),
                weights=[None, (1.0, 1.0, 0.0, 0.0), (0.0, 1.0, 0.0, 0.0), (5.0, 0.1, 3.0, 0.2)][number % 4],
                fusion=["LINEAR", "RRF"][number % 5 == 0],
                half_life=[1, 20, 10**6][number % 3],
                explain=number % 7 == 0,
                counts=counts,
            )
        )
        if number % 3 == 2:
            asked[-1].text = None
    memory_now = 45_000
    with monkeypatch.context() as slow:
        slow.setattr(matches, "PRUNE_MIN", 10**9)
        slow.setattr(codes, "CODES_MIN", 10**9)
        slow.setattr(ranking.Ranking, "_quick_candidates", lambda self, need: None)
        expected = shown(memory, asked, [run(memory.plan(query, memory_now)) for query in asked])
    monkeypatch.setattr(matches, "PRUNE_MIN", 0)
    monkeypatch.setattr(ranking, "_CLOSE_MIN", 4)
    monkeypatch.setattr(codes, "CODES_MIN", 256)
    monkeypatch.setattr(codes, "SCAN_CODES", 100)  # so the first scans find rows that have none yet
    monkeypatch.setattr(rrf, "_HEAD_MIN", 16)
    for now in (memory_now, memory_now - 1, memory_now + 1):  # what is kept for a while is worked out at another time
        run(memory.plan(asked[1], now))
        assert shown(memory, asked, [run(memory.plan(query, memory_now)) for query in asked]) == expected
    assert shown(memory, asked, run_together([memory.plan(query, memory_now) for query in asked])) == expected
    parallel.use(3)
    try:
        monkeypatch.setattr(parallel, "_EACH_ROWS_MIN", 0)
        monkeypatch.setattr(parallel, "_ROWS_MIN", 256)
        assert shown(memory, asked, run_together([memory.plan(query, memory_now) for query in asked])) == expected
    finally:
        parallel.use(1)
    monkeypatch.setattr(codes, "numkong", None)
    assert shown(memory, asked, run_together([memory.plan(query, memory_now) for query in asked])) == expected


def test_filters_agree_row_by_row(monkeypatch):
    """Each operator on each kind of field: `mask` passes exactly the rows that `matches` passes."""
    memory = Memory(Settings(mode="SEARCH", lang="none"), Vocabulary(), 0)
    fill(memory, 3)
    view = memory.view(50_000)
    assert view.n >= filters.COLUMNS_MIN
    monkeypatch.setattr(filters, "_cid", cache(filters._cid))  # asked for again and again
    rows = [view.row(slot) for slot in range(view.n)]
    fields = [b"kind", b"n", b"absent", b"@tags", b"@importance", b"@created_at", b"@updated_at", b"@id", b"@text"]
    fields += [b"@kind", b"@cid", b"@subject"]
    listed = 0
    wanted = [b"1", b"1.00", b"0.5", b"t1", b"apple", b"7,apple,t2,1,12000", b"note", b"word1", b"12000", b"1e3", b""]
    for field in fields:
        for operator in sorted(OPERATORS):
            for value in (b"0", b"1") if operator == "EXISTS" else wanted:
                made = clause(field, operator.encode(), value)
                expected = [made.matches(row) for row in rows]
                assert made.mask(view).tolist() == expected, (field, operator, value)
                for most in (10, view.n):
                    slots = made.slots(view, most)
                    if slots is not None:
                        listed += 1
                        assert slots.tolist() == np.flatnonzero(expected).tolist(), (field, operator, value)
                        assert len(slots) <= most
    assert listed > 20
    for made in tag_clauses("ANY", [b"t1", b"t9"]) + tag_clauses("ALL", [b"t1", b"t2"]):
        assert made.mask(view).tolist() == [made.matches(row) for row in rows]


def test_rows_behind_a_sorted_column_are_found():
    """A field's slots are sorted once in a while: what came since, and what an older view does not see, is right."""
    memory = Memory(Settings(mode="SEARCH", lang="none"), Vocabulary(), 0)
    fill(memory, 5)
    older = memory.view(50_000)
    for number in range(400):
        fields = {"importance": 0.5, "created_at": 1, "updated_at": 1, "deadline": NEVER, "max_words": 100, "at": 1}
        memory.put(b"new%d" % number, b"x", b"", (b"kind", b"2" if number % 40 else b"fresh"), (), **fields)
        if number % 57 == 0 or number == 399:
            for view in (memory.view(50_000), older):
                for value in (b"fresh", b"2.0", b"1", b"nowhere"):
                    made = clause(b"kind", b"EQ", value)
                    expected = [slot for slot in range(view.n) if made.matches(view.row(slot))]
                    assert made.slots(view, view.n).tolist() == expected


@pytest.mark.parametrize("words", ["", "the"])
def test_rows_without_a_word(words):
    """A batch of rows that has no term at all reaches the posting lists like any other."""
    memory = Memory(Settings(mode="SEARCH"), Vocabulary(), 0)

    def put(number: int, text: str) -> None:
        fields = {"importance": 0.5, "created_at": 1, "updated_at": 1, "deadline": NEVER, "max_words": 100, "at": 1}
        memory.put(b"%d" % number, text.encode(), b"", (), (), **fields)

    for number in range(columns.POSTINGS_MIN + 600):
        put(number, words)
    put(9000, f"{words} lake")
    for number in range(9001, 9400):
        put(number, words)
    put(9400, words)
    assert memory.term_count() == 1
    memory.remove(b"5", 2)
    (hit,) = run(memory.plan(Query(kind="keyword", text=b"lake"), 3)).hits
    assert memory.table.ids[hit.slot] == b"9000"
    assert len(memory) == columns.POSTINGS_MIN + 600 + 401 - 1
    memory.compact()
    assert memory.term_count() == 1


def test_what_one_query_reads_another_does_not_write_over():
    """Queries of a batch run in several threads, and may differ in half-life and weights."""
    estimates, updated, importance = Estimates(), np.arange(100), np.linspace(0.0, 1.0, 100)
    fixed, _ = estimates.fixed(updated, importance, 200, 50.0, (1.0, 0.5))
    before = fixed.copy()
    estimates.fixed(updated, importance, 200, 7.0, (1.0, 0.5))
    estimates.fixed(updated, importance, 200, 50.0, (0.1, 0.0))
    assert (fixed == before).all()


@pytest.mark.usefixtures("loops")
@pytest.mark.parametrize("metric", ["COSINE", "L2", "IP"])
def test_queries_with_the_same_filter_share_a_pass(monkeypatch, metric):
    """Over several slabs of codes and blocks of rows, dead ones among them, some without a vector; with others beside
    them that have another filter or none, and as of moments before and after a write."""
    monkeypatch.setattr(codes, "_SLAB", 8192)
    memory = Memory(Settings(dim=DIM, metric=metric), Vocabulary(), 0)
    rng = np.random.default_rng(3)
    values = rng.choice(4, 18_000, p=[0.3, 0.3, 0.3, 0.1]).tolist()

    def put(number: int) -> None:
        vector = rng.standard_normal(DIM)
        stored = normalised(vector) if metric == "COSINE" else vector * 10.0 ** rng.integers(-2, 3)
        blob = b"" if number % 10 == 0 else stored.astype("<f4").tobytes()
        times = {"created_at": 1, "updated_at": number % 7, "deadline": NEVER, "at": 9}
        meta = (b"kind", b"%d" % values[number])
        memory.put(b"%d" % number, b"word%d" % (number % 60), blob, meta, (), importance=0.5, max_words=9, **times)

    for number in range(17_900):
        put(number)
    memory.remove_all([b"%d" % number for number in range(0, 17_000, 17)], 9)
    shared, scan_same_rows = [], ranking.scan_same_rows

    def noted(view, asked, rows):
        shared.append(len(asked))
        return scan_same_rows(view, asked, rows)

    monkeypatch.setattr(ranking, "scan_same_rows", noted)
    kept = [[clause(b"kind", b"EQ", b"%d" % kind)] for kind in range(3)]
    plans, alone = [], []
    for number in range(14):
        vector = rng.standard_normal(DIM)
        query = Query(
            kind=["vector", "fused"][number % 2],
            text=b"word7 word12" if number % 2 else None,
            vector=normalised(vector) if metric == "COSINE" else vector,
            fusion=["LINEAR", "LINEAR", "RRF"][number % 3],
            top_k=int(rng.integers(1, 80)),
            filters=[*kept, []][[0, 0, 1, 0, 1, 3][number % 6]],
        )
        plans.append(memory.plan(query, 9))
        alone.append(run(memory.plan(query, 9)))
        if number == 7:
            for late in range(17_900, 18_000):
                put(late)
    together = run_together(plans)
    for one, other in zip(alone, together, strict=True):
        assert list(map(tuple_of, one.hits)) == list(map(tuple_of, other.hits))
    assert sorted(shared) == [2, 2, 3, 5]  # of either moment


@pytest.mark.usefixtures("loops")
def test_queries_with_the_same_filter_where_rows_are_in_no_order(monkeypatch):
    """As after a change of model: whoever has a vector got it in any order, and one has none."""
    monkeypatch.setattr(codes, "_SLAB", 4096)
    rng = np.random.default_rng(0)
    memory = Memory(Settings(dim=8, lang="none"), Vocabulary(), 0)
    times = {"created_at": 0, "updated_at": 0, "deadline": NEVER, "at": 0}
    for number in range(12_000):
        kind = (b"kind", b"%d" % (number % 4))
        memory.put(b"%d" % number, b"x", b"", kind, (), importance=0.5, max_words=9, **times)
    given = rng.permutation(12_000)[:-1].tolist()
    vectors = {number: normalised(rng.standard_normal(8)).astype("<f4") for number in given}
    serials = {number: memory.serial(b"%d" % number) for number in given}
    memory.fill_vectors([(b"%d" % n, serials[n], vector.tobytes()) for n, vector in vectors.items()], 1)
    kept = [clause(b"kind", b"EQ", b"1")]
    asked = [Query(kind="vector", vector=normalised(rng.standard_normal(8)), filters=kept) for _ in range(4)]
    together = run_together([memory.plan(query, 2) for query in asked])
    for query, result in zip(asked, together, strict=True):
        sims = {n: float(vector.astype(float) @ query.vector) for n, vector in vectors.items() if n % 4 == 1}
        best = sorted(sims, key=sims.__getitem__, reverse=True)[:10]
        assert [int(memory.table.ids[hit.slot]) for hit in result.hits] == best


def tuple_of(hit) -> tuple:
    return hit.slot, hit.score, hit.keyword, hit.vector, hit.recency
