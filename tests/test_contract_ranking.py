"""SPEC section 4 as properties: what holds between replies to related queries, and the formulas by hand.

The oracle tests say that each ranking is right; these say what a client may rely on, without knowing how to rank.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest
from harness import DAY, JUNE, Agent, Clock, Hit, Running, Wire, Word, flat_pairs
from hypothesis import given
from hypothesis import strategies as st

TEXTS = ["alpha beta", "alpha alpha", "beta gamma delta", "gamma", "", "delta alpha beta gamma", "the of", "epsilon"]


def fill(wire: Wire, count: int = 60) -> None:
    """Records with many equal scores: few texts, vectors, times and importances."""
    chance = random.Random(17)
    wire("MEM.CREATE", "ns", "DIM", 2)
    words: list[Word] = []
    for i in range(count):
        words += ["RECORD", "ID", f"m{i * 37 % count:03}", "TEXT", chance.choice(TEXTS), "META", "n", i % 10]
        words += ["IMPORTANCE", chance.choice(("0", "0.5", "1")), "AT", JUNE - chance.choice((0, DAY, 30 * DAY))]
        if chance.random() < 0.8:
            words += ["FVEC", 2, *chance.choice(((1, 0), (0, 1), (1, 1), (-1, 2), (2, -1)))]
    wire("MEM.MADD", "ns", count, *words)


@pytest.fixture
def filled(server: Running) -> Iterator[Agent]:
    """RESP3, where a double is the score to the last bit."""
    agent = server.agent("resp3")
    fill(agent.wire)
    yield agent
    agent.wire.close()


KINDS: list[tuple[Word, ...]] = [
    ("MEM.SEARCH", "ns", "alpha gamma"),
    ("MEM.VSEARCH", "ns", "FVEC", 2, 2, 1),
    ("MEM.QUERY", "ns", "TEXT", "alpha gamma"),
    ("MEM.QUERY", "ns", "FVEC", 2, 2, 1),
    ("MEM.QUERY", "ns", "TEXT", "beta", "FVEC", 2, 2, 1),
    ("MEM.QUERY", "ns", "TEXT", "beta", "FVEC", 2, 2, 1, "FUSION", "RRF"),
    ("MEM.QUERY", "ns", "TEXT", "beta", "FVEC", 2, 2, 1, "DIVERSITY", "0.5"),
    ("MEM.QUERY", "ns", "TEXT", "beta", "FVEC", 2, 2, 1, "WEIGHTS", 0, 0, 0, 0),
    ("MEM.QUERY", "ns", "TEXT", "beta", "FVEC", 2, 2, 1, "MINSCORE", "0.3"),
    ("MEM.QUERY", "ns", "TEXT", "beta", "FVEC", 2, 2, 1, "FUSION", "RRF", "MINSCORE", "0.3", "MINSIM", "0.1"),
]
EACH_KIND = pytest.mark.parametrize("query", KINDS, ids=lambda query: " ".join(map(str, query[0:1] + query[2:])))


# -- pages


@EACH_KIND
def test_a_shorter_topk_is_a_prefix_of_a_longer_one(filled: Agent, query: tuple[Word, ...]) -> None:
    full = filled(*query, "TOPK", 1000, "WITHSCORES")
    for top_k in range(1, len(full) + 2):
        assert filled(*query, "TOPK", top_k, "WITHSCORES") == full[:top_k]


@pytest.mark.parametrize("weight", ["1e308", "1e300", "1e-300", "5e-324"])
@pytest.mark.parametrize("fusion", ["LINEAR", "RRF"])
@pytest.mark.parametrize("query", [("TEXT", "alpha gamma"), ("FVEC", 2, 2, 1), ("TEXT", "beta", "FVEC", 2, 2, 1)])
def test_weights_of_any_size_rank(filled: Agent, query: tuple[Word, ...], fusion: str, weight: str) -> None:
    """Each finite and >= 0, no more is asked of them: even where their sum is beyond a double."""
    command = ("MEM.QUERY", "ns", *query, "WEIGHTS", *[weight] * 4, "FUSION", fusion)
    full = filled(*command, "TOPK", 1000)
    assert len(full) == len(filled("MEM.QUERY", "ns", *query, "TOPK", 1000))
    for top_k in (1, 3, 20):
        assert filled(*command, "TOPK", top_k) == full[:top_k]


@EACH_KIND
@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_pages_neither_repeat_nor_skip(filled: Agent, query: tuple[Word, ...], size: int) -> None:
    full = filled(*query, "TOPK", 1000, "WITHSCORES")
    pages = (filled(*query, "TOPK", size, "OFFSET", at, "WITHSCORES") for at in range(0, len(full) + size, size))
    assert list(itertools.chain.from_iterable(pages)) == full
    assert filled(*query, "OFFSET", 10**9) == []


@EACH_KIND
def test_topk_is_ten(filled: Agent, query: tuple[Word, ...]) -> None:
    assert filled(*query) == filled(*query, "TOPK", 10, "OFFSET", 0)


@EACH_KIND
def test_the_same_query_has_the_same_reply(filled: Agent, query: tuple[Word, ...]) -> None:
    first = filled.wire.raw(*query, "WITHSCORES", "EXPLAIN", "TOPK", 100)
    assert all(filled.wire.raw(*query, "WITHSCORES", "EXPLAIN", "TOPK", 100) == first for _ in range(3))


# -- filters


FILTER_SETS: list[tuple[Word, ...]] = [
    ("FILTER", "n", "LT", 5),
    ("FILTER", "n", "EQ", 3),
    ("FILTER", "@importance", "GT", 0, "FILTER", "n", "IN", "1,2,3,4"),
    ("FILTER", "@id", "PREFIX", "m00"),
    ("FILTER", "n", "EQ", "none"),
]


@pytest.mark.parametrize("query", [query for query in KINDS if "RRF" not in query and "DIVERSITY" not in query])
@pytest.mark.parametrize("filters", FILTER_SETS, ids=lambda filters: " ".join(map(str, filters)))
def test_a_filter_removes_records_but_changes_no_score(
    filled: Agent, query: tuple[Word, ...], filters: tuple[Word, ...]
) -> None:
    """To the last bit, order included; and it never empties a page that had matches further down."""
    passing = set(filled("MEM.SCAN", "ns", 0, "COUNT", 1000, *filters)[1])
    full = filled(*query, "TOPK", 1000, "WITHSCORES")
    expected = [hit for hit in full if hit[b"id"] in passing]
    assert filled(*query, *filters, "TOPK", 1000, "WITHSCORES") == expected
    assert filled(*query, *filters, "TOPK", 2, "WITHSCORES") == expected[:2]


@pytest.mark.parametrize("filters", FILTER_SETS, ids=lambda filters: " ".join(map(str, filters)))
def test_rrf_ranks_the_records_that_survive(filled: Agent, filters: tuple[Word, ...]) -> None:
    """As if the others matched nothing: the best of each signal has rank 1."""
    hits = filled("MEM.QUERY", "ns", "TEXT", "beta", "FVEC", 2, 2, 1, "FUSION", "RRF", *filters, "TOPK", 100, "EXPLAIN")
    for name in (b"keyword", b"vector", b"recency", b"importance"):
        shown = [hit[b"explain"][name] for hit in hits if name in hit[b"explain"]]
        ranked = sorted((part[b"rank"], -part[b"raw"]) for part in shown if part[b"rank"] is not None)
        for rank, negative in ranked:
            assert rank == 1 + sum(other < negative for _, other in ranked), name


# -- scores


@pytest.mark.parametrize("query", KINDS[2:], ids=lambda query: " ".join(map(str, query[2:])))
def test_contributions_add_up_to_the_score(filled: Agent, query: tuple[Word, ...]) -> None:
    for hit in filled(*query, "TOPK", 1000, "EXPLAIN"):
        parts = [hit[b"explain"][name] for name in hit[b"explain"] if name not in (b"terms", b"tier")]
        assert math.fsum(part[b"contribution"] for part in parts) == pytest.approx(hit[b"score"], abs=1e-12)


@pytest.mark.parametrize("query", KINDS[2:6], ids=lambda query: " ".join(map(str, query[2:])))
def test_terms_add_up_to_the_keyword_score(filled: Agent, query: tuple[Word, ...]) -> None:
    for hit in filled(*query, "TOPK", 1000, "EXPLAIN", "WITHSCORES"):
        total = math.fsum(term[b"part"] for term in hit[b"explain"][b"terms"])
        assert total == pytest.approx(hit.get(b"keyword_score", 0.0), abs=1e-12)


@EACH_KIND
def test_the_order_is_total(filled: Agent, query: tuple[Word, ...]) -> None:
    """Equal scores: the newer updated_at first, then the smaller id."""
    if "DIVERSITY" in query:
        return
    hits = filled(*query, "TOPK", 1000)
    keys = [(-hit[b"score"], -hit[b"updated_at"], hit[b"id"]) for hit in hits]
    assert keys == sorted(keys)
    assert len({hit[b"score"] for hit in hits}) < len(hits), "there are ties"


@given(st.permutations(range(12)))
def test_ties_do_not_depend_on_the_order_of_writing(server: Running, order: list[int]) -> None:
    wire = server.wire()
    wire("FLUSHALL")
    wire("MEM.CREATE", "ns", "DIM", 1)
    for i in order:
        wire("MEM.ADD", "ns", "ID", f"{i:02}", "TEXT", "alpha", "FVEC", 1, 1, "AT", JUNE - i // 4)
    expected = [b"%02d" % i for i in range(12)]
    for query in (
        ("MEM.SEARCH", "ns", "alpha"),
        ("MEM.VSEARCH", "ns", "FVEC", 1, 1),
        ("MEM.QUERY", "ns", "TEXT", "alpha"),
    ):
        assert [hit[0] for hit in wire(*query, "TOPK", 20)] == expected
    wire.close()


def by_id(hits: list[Hit]) -> dict[bytes, Hit]:
    return {hit.id: hit for hit in hits}


@pytest.mark.parametrize("fusion", ["LINEAR", "RRF"])
def test_minscore_means_the_linear_score_under_either_fusion(filled: Agent, fusion: str) -> None:
    query: tuple[Word, ...] = ("MEM.QUERY", "ns", "TEXT", "beta", "FVEC", 2, 2, 1, "TOPK", 1000)
    linear = {hit.id: hit.score for hit in filled.hits(*query, "FUSION", "LINEAR")}
    for limit in (0, 0.2, 0.4, 0.9, 2):
        expected = {record_id for record_id, score in linear.items() if score is not None and score >= limit}
        assert set(filled.ids(*query, "FUSION", fusion, "MINSCORE", limit)) == expected
    for score in list(linear.values())[:5]:
        assert score is not None
        kept = filled.hits(*query, "FUSION", "LINEAR", "MINSCORE", score)
        assert kept[-1].score == score, "what equals the limit stays"


@pytest.mark.parametrize("query", KINDS[:2], ids=["SEARCH", "VSEARCH"])
def test_minscore_of_a_single_signal_is_the_score_itself(filled: Agent, query: tuple[Word, ...]) -> None:
    full = filled.hits(*query, "TOPK", 1000)
    for limit in {hit.score for hit in full}:
        assert limit is not None
        expected = [hit for hit in full if hit.score is not None and hit.score >= limit]
        assert filled.hits(*query, "TOPK", 1000, "MINSCORE", limit) == expected


def test_minsim_drops_what_is_less_similar_or_has_no_vector(filled: Agent) -> None:
    query: tuple[Word, ...] = ("MEM.QUERY", "ns", "TEXT", "alpha", "FVEC", 2, 2, 1, "TOPK", 1000, "WITHSCORES")
    full = filled.hits(*query)
    assert any(hit.similarity is None for hit in full)
    for limit in (-1, 0, 0.5, 0.95, 1.1):
        expected = [hit for hit in full if hit.similarity is not None and hit.similarity >= limit]
        assert filled.hits(*query, "MINSIM", limit) == expected


def test_diversity_of_1_is_the_ranking_itself(filled: Agent) -> None:
    query: tuple[Word, ...] = ("MEM.QUERY", "ns", "TEXT", "beta", "FVEC", 2, 2, 1, "TOPK", 1000)
    assert filled.hits(*query, "DIVERSITY", 1) == filled.hits(*query)


def test_diversity_puts_the_twin_last(wire: Wire) -> None:
    """Greedy: lambda*score - (1-lambda)*(largest similarity to one already chosen)."""
    wire("MEM.CREATE", "ns", "DIM", 2, "WEIGHTS", 0, 0, 0, 1)
    records = (("best", "1", 1, 0), ("twin", "0.9", 1, 0), ("other", "0.6", 0, 1), ("opposite", "0.1", -1, 0))
    for name, importance, x, y in records:
        wire("MEM.ADD", "ns", "ID", name, "TEXT", "t", "IMPORTANCE", importance, "FVEC", 2, x, y)
    wire("MEM.ADD", "ns", "ID", "bare", "TEXT", "t", "IMPORTANCE", "0.2")
    query = ("MEM.QUERY", "ns", "TEXT", "t", "NOTEXT")
    assert [hit[0] for hit in wire(*query)] == [b"best", b"twin", b"other", b"bare", b"opposite"]
    # best 0.5; opposite 0.05+0.5, other 0.3, bare 0.1, twin 0.45-0.5; other 0.3, bare 0.1; bare 0.1; twin
    diverse = [hit[0] for hit in wire(*query, "DIVERSITY", "0.5")]
    assert diverse == [b"best", b"opposite", b"other", b"bare", b"twin"]


# -- the formulas, by hand


def test_bm25_by_hand(wire: Wire) -> None:
    """N 3, avgdl 2: `alpha` is in two records, `beta` in one; K1 0.9, B 0.4."""
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    for name, text in (("a", "alpha alpha beta"), ("b", "alpha"), ("c", "gamma delta")):
        wire("MEM.ADD", "ns", "ID", name, "TEXT", text)
    idf_alpha, idf_beta = math.log(1 + 1.5 / 2.5), math.log(1 + 2.5 / 1.5)
    norm_a, norm_b = 0.9 * (0.6 + 0.4 * 3 / 2), 0.9 * (0.6 + 0.4 * 1 / 2)
    a = idf_alpha * 2 * 1.9 / (2 + norm_a) + idf_beta * 1.9 / (1 + norm_a)
    b = idf_alpha * 1.9 / (1 + norm_b)
    hits = wire("MEM.SEARCH", "ns", "alpha beta", "NOTEXT", "WITHSCORES")
    got = {hit[0]: float(flat_pairs(hit[1])[b"score"]) for hit in hits}
    assert got == pytest.approx({b"a": a, b"b": b}, abs=1e-4)
    twice = wire("MEM.SEARCH", "ns", "alpha alpha", "NOTEXT", "WITHSCORES")
    got = {hit[0]: float(flat_pairs(hit[1])[b"score"]) for hit in twice}
    once = idf_alpha * 2 * 1.9 / (2 + norm_a)
    assert got == pytest.approx({b"a": 2 * once, b"b": 2 * b}, abs=1e-4), "a word twice in the query counts twice"


def test_a_text_without_a_term_counts_as_a_document(wire3: Wire) -> None:
    wire3("MEM.CREATE", "ns", "MODE", "SEARCH")
    wire3("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha")
    wire3("MEM.ADD", "ns", "ID", "b", "TEXT", "the of and")
    assert wire3("MEM.INFO", "ns")[b"avg_doc_len"] == 0.5
    (hit,) = wire3("MEM.SEARCH", "ns", "alpha")
    assert hit[b"score"] == pytest.approx(math.log(2) * 1.9 / (1 + 0.9 * (0.6 + 0.4 / 0.5)))


def test_linear_by_hand(server: Running, clock: Clock) -> None:
    """g is the query's similarity to the sum of all unit vectors, over n + 20; keyword is scaled by the best BM25."""
    agent = server.agent("resp3")
    agent("MEM.CREATE", "ns", "DIM", 2, "HALFLIFE", 100)
    agent("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha alpha", "FVEC", 2, 3, 4, "IMPORTANCE", 1)
    agent("MEM.ADD", "ns", "ID", "b", "TEXT", "alpha beta", "FVEC", 2, 0, 5, "IMPORTANCE", 0, "AT", JUNE - 200_000)
    agent("MEM.ADD", "ns", "ID", "c", "TEXT", "beta beta")
    hits = by_id(agent.hits("MEM.QUERY", "ns", "TEXT", "alpha", "FVEC", 2, 2, 0, "WITHSCORES"))
    g = 0.6 / 22
    best, other = hits[b"a"].keyword, hits[b"b"].keyword
    assert best is not None and other is not None and best > other
    assert hits[b"a"].score == pytest.approx(0.35 + 0.5 * (0.6 - g) / (1 - g) + 0.1 + 0.05, abs=1e-6)
    assert hits[b"b"].score == pytest.approx(0.35 * other / best + 0 + 0.1 * 0.25 + 0, abs=1e-6)
    assert b"c" not in hits, "neither a word nor a vector"
    agent.wire.close()


@pytest.mark.parametrize(
    ("metric", "query", "raw", "scaled"),
    [
        ("L2", (1, 1), 1 / (1 + math.sqrt(5)), 1 / (1 + math.sqrt(5))),
        ("IP", (1, 2), 8.0, (1 + 8 / 9) / 2),
        ("IP", (-1, -2), -8.0, (1 - 8 / 9) / 2),
    ],
)
def test_other_metrics_by_hand(wire3: Wire, metric: str, query: tuple[int, int], raw: float, scaled: float) -> None:
    wire3("MEM.CREATE", "ns", "DIM", 2, "METRIC", metric, "WEIGHTS", 0, 1, 0, 0)
    wire3("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "FVEC", 2, 2, 3)
    (hit,) = wire3("MEM.VSEARCH", "ns", "FVEC", 2, *query)
    assert hit[b"score"] == pytest.approx(raw, abs=1e-12)
    (hit,) = wire3("MEM.QUERY", "ns", "FVEC", 2, *query)
    assert hit[b"score"] == pytest.approx(scaled, abs=1e-12)


def test_rrf_by_hand(server: Running) -> None:
    """Equal values share the best rank; a record without a signal gets nothing from it; RRFK is 60."""
    agent = server.agent("resp3")
    agent("MEM.CREATE", "ns", "DIM", 2, "FUSION", "RRF", "WEIGHTS", 1, 2, 0, 4)
    agent("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha", "FVEC", 2, 1, 0, "IMPORTANCE", "0.5")
    agent("MEM.ADD", "ns", "ID", "b", "TEXT", "alpha", "FVEC", 2, 1, 1, "IMPORTANCE", "0.5")
    agent("MEM.ADD", "ns", "ID", "c", "TEXT", "beta", "FVEC", 2, 1, 1, "IMPORTANCE", "0.4")
    agent("MEM.ADD", "ns", "ID", "d", "TEXT", "alpha", "IMPORTANCE", "0.9")
    agent("MEM.ADD", "ns", "ID", "e", "TEXT", "beta", "IMPORTANCE", "1")
    expected = {
        b"a": 1 / 61 + 2 / 61 + 4 / 62,
        b"b": 1 / 61 + 2 / 62 + 4 / 62,
        b"c": 2 / 62 + 4 / 64,
        b"d": 1 / 61 + 4 / 61,
    }
    hits = agent.hits("MEM.QUERY", "ns", "TEXT", "alpha", "FVEC", 2, 1, 0)
    assert [hit.id for hit in hits] == sorted(expected, key=lambda record_id: -expected[record_id])
    assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-12)
    (first, *_) = agent.hits("MEM.QUERY", "ns", "TEXT", "alpha", "FVEC", 2, 1, 0, "RRFK", 1)
    assert first.score == pytest.approx(1 / 2 + 2 / 2 + 4 / 3)
    agent.wire.close()


def test_all_weights_0_is_newest_first(wire: Wire) -> None:
    wire("MEM.CREATE", "ns", "MODE", "SEARCH", "WEIGHTS", 0, 0, 0, 0)
    for i, at in enumerate((3, 1, 2, 3)):
        wire("MEM.ADD", "ns", "ID", i, "TEXT", "alpha", "AT", JUNE + at)
    for fusion in ("LINEAR", "RRF"):
        hits = wire("MEM.QUERY", "ns", "TEXT", "alpha", "FUSION", fusion, "NOTEXT", "WITHSCORES")
        assert [hit[0] for hit in hits] == [b"0", b"3", b"2", b"1"]
        assert {float(flat_pairs(hit[1])[b"score"]) for hit in hits} == {0.0}


def test_identical_is_1_and_average_is_0(server: Running) -> None:
    """`0 says no closer than the average record, 1 says identical`, however many records there are."""
    agent = server.agent("resp3")
    agent("MEM.CREATE", "ns", "DIM", 2, "WEIGHTS", 0, 1, 0, 0)
    for i in range(50):
        agent("MEM.ADD", "ns", "ID", f"a{i}", "TEXT", "t", "FVEC", 2, 4, 3)
    agent("MEM.ADD", "ns", "ID", "far", "TEXT", "t", "FVEC", 2, 3, -4)
    hits = by_id(agent.hits("MEM.QUERY", "ns", "FVEC", 2, 4, 3, "TOPK", 100))
    assert hits[b"a0"].score == pytest.approx(1.0, abs=1e-9)
    assert hits[b"far"].score == 0.0
    agent.wire.close()


# -- which records match


def test_a_vector_query_explains_as_a_fused_one(wire3: Wire) -> None:
    """`scaled` is what LINEAR would multiply, whoever ranks."""
    wire3("MEM.CREATE", "ns", "DIM", 2)
    for number in range(40):
        wire3("MEM.ADD", "ns", "ID", number, "TEXT", "x", "FVEC", 2, 1, f"{number / 100}")
    words = ("FVEC", 2, 1, 1, "TOPK", 1, "EXPLAIN")
    alone = wire3("MEM.VSEARCH", "ns", *words)[0][b"explain"][b"vector"]
    fused = wire3("MEM.QUERY", "ns", *words, "WEIGHTS", 0, 1, 0, 0)[0][b"explain"][b"vector"]
    assert (alone[b"raw"], alone[b"scaled"]) == (fused[b"raw"], fused[b"scaled"])
    assert 0 < alone[b"scaled"] < alone[b"raw"]


@pytest.mark.parametrize("text", ["the of and", "unheard", "", "\u3000", "!?"])
def test_a_query_of_no_known_word_is_answered_by_its_vector_alone_or_by_nothing(filled: Agent, text: str) -> None:
    assert filled("MEM.SEARCH", "ns", text) == []
    assert filled("MEM.QUERY", "ns", "TEXT", text) == []
    with_text = filled.hits("MEM.QUERY", "ns", "TEXT", text, "FVEC", 2, 2, 1, "TOPK", 100)
    assert with_text == filled.hits("MEM.QUERY", "ns", "FVEC", 2, 2, 1, "TOPK", 100) != []


def test_records_without_a_signal_are_not_dropped(filled: Agent) -> None:
    hits = filled.hits("MEM.QUERY", "ns", "TEXT", "alpha", "FVEC", 2, 1, 0, "TOPK", 100, "WITHSCORES")
    kinds = {(hit.keyword is None, hit.similarity is None) for hit in hits}
    assert kinds == {(False, False), (False, True), (True, False)}


def test_a_vector_query_finds_every_record_with_a_vector(filled: Agent) -> None:
    info = filled.map("MEM.INFO", "ns")
    assert len(filled.ids("MEM.VSEARCH", "ns", "FVEC", 2, -1, -1, "TOPK", 1000)) == info[b"vectors"]


def test_an_exact_form_ranks_before_a_second_form(wire: Wire) -> None:
    """Accents folded, parts of identifiers: searchable, behind the exact form."""
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    for name, text in (("folded", "cafe"), ("exact", "café"), ("part", "id"), ("whole", "user_id")):
        wire("MEM.ADD", "ns", "ID", name, "TEXT", text)
    assert [hit[0] for hit in wire("MEM.SEARCH", "ns", "café")] == [b"exact", b"folded"]
    assert next(hit[0] for hit in wire("MEM.SEARCH", "ns", "user_id")) == b"whole"
    assert {hit[0] for hit in wire("MEM.SEARCH", "ns", "id")} == {b"part", b"whole"}
