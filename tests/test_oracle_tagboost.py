"""TAGBOOST against the oracle, and on every path of the ranking: over the wire, large memories, ASOF, EXPLAIN."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest
from harness import DAY, JUNE, Agent, Clock, Running, Word
from oracle import Memory, Query, Vector, blob
from recalld.index import codes, columns, filters, keyword, matches, ranking
from recalld.index.analyzer import Vocabulary
from recalld.index.memory import Memory as Product
from recalld.index.memory import run
from recalld.index.query import Query as Asked
from recalld.index.settings import Settings
from test_index_paths import DIM, ROWS, answers, answers_together, fill, queries
from test_oracle_ranking import check

WORDS = [f"w{i}" for i in range(12)] + ["red", "shoes", "the", "user_id"]
#: Some are words of texts, some of queries only, some of more than one word, some only a part of a query's word.
TAGS = [b"w1", b"W2", b"red shoes", b"shoes red", b"Red", b"the", b"user-id", b"w", b"\xff", b"", b"nowhere"]
TAGS.append("é".encode())


def vectors(chance: random.Random) -> Vector:
    return tuple(chance.choice((-1.0, 1.0, 2.0)) for _ in range(3))


def filled(agent: Agent, size: int, boost: float, mode: str = "HYBRID", lacking: float = 0.3) -> Memory:
    """The same records in `ns` and in an oracle."""
    chance = random.Random(f"{size} {boost} {mode}")
    dim = 0 if mode == "SEARCH" else 3
    memory = Memory(mode, dim, tagboost=boost)
    agent("CONFIG", "SET", "mem-max-topk", 100_000)
    agent("MEM.CREATE", "ns", "MODE", mode, *(("DIM", dim) if dim else ()), "TAGBOOST", boost)
    batch: list[Word] = []
    for number in range(size):
        text = " ".join(chance.choices(WORDS, k=chance.randint(0, 6))).encode()
        vector = vectors(chance) if dim and chance.random() >= lacking else None
        tags = tuple(chance.sample(TAGS, chance.randint(0, 3)))
        at = JUNE - chance.choice((0, 1000, DAY, 30 * DAY))
        memory.add(JUNE, b"%d" % number, text, vector, (), tags, at=at)
        batch += ["RECORD", "ID", number, "TEXT", text, "AT", at, "TAGS", len(tags), *tags]
        batch += [] if vector is None else ["VEC", blob(vector)]
    agent("MEM.MADD", "ns", size, *batch)
    return memory


def asked(memory: Memory, count: int) -> list[Query]:
    chance = random.Random(count)
    made = []
    for number in range(count):
        text = " ".join(chance.choices([*WORDS, "nowhere", "É", "RED", "Shoes,"], k=chance.randint(1, 5))).encode()
        query = Query(("SEARCH", "QUERY", "QUERY")[number % 3], text)
        if query.kind == "QUERY":
            query.vector = vectors(chance) if memory.dim and chance.random() < 0.7 else None
            query.fusion = chance.choice(("LINEAR", "RRF"))
            query.weights = chance.choice((None, (1, 0, 0, 0), (1, 1, 0.1, 0.1)))
        if chance.random() < 0.3:
            query.filters = ((b"@tags", "EQ", chance.choice((b"w1", b"Red"))),)
        if chance.random() < 0.3:
            query.minscore = round(chance.uniform(0, 1), 3) + 0.000137
        made.append(query)
    return made


@pytest.mark.parametrize("boost", [0.25, 3.0, 1e9])
@pytest.mark.parametrize(("mode", "size"), [("HYBRID", 60), ("SEARCH", 60), ("HYBRID", 1500)])
def test_random_memories(server: Running, mode: str, size: int, boost: float) -> None:
    maps = server.agent("resp3")
    memory = filled(maps, size, boost, mode)
    boosted = 0
    for query in asked(memory, 30 if size < 100 else 12):
        boosted += any(match.boost for match in check(maps, memory, query, JUNE).hits)
    assert boosted > 3


def test_every_row_has_a_vector_and_most_words_are_common(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paths that bound what words add."""
    monkeypatch.setattr(matches, "PRUNE_MIN", 0)
    maps = server.agent("resp3")
    memory = filled(maps, 1500, 0.5, lacking=0.0)
    for query in asked(memory, 24):
        check(maps, memory, query, JUNE)


def test_asof(running: Callable[..., Running]) -> None:
    """As of a time the tags of that time count, of the records of that time."""
    clock = Clock()
    maps = running(clock=clock).agent("resp3")
    memory = filled(maps, 50, 2.0)
    maps("MEM.CONFIG", "ns", "HISTORY", "ALL")
    clock.advance(1000)
    for number in range(0, 50, 2):
        maps("MEM.ADD", "ns", "ID", number, "TEXT", "red shoes", "TAGS", 1, "red shoes")
    for query in asked(memory, 20):
        words = query.words()
        hits = maps.hits(*words, "TOPK", 1000, "NOTEXT", "ASOF", JUNE)
        memory.answer(query, JUNE).check([(hit.id, hit.score) for hit in hits])


def test_it_is_explained(server: Running) -> None:
    """In the keyword part, where there is any; raw is the sum of the words' parts and the boost."""
    agent = server.agent("resp3")
    agent("MEM.CREATE", "ns", "DIM", 2, "TAGBOOST", 1.5)
    agent("MEM.ADD", "ns", "ID", "a", "TEXT", "red lake", "TAGS", 3, "red", "the lake", "blue", "FVEC", 2, 1, 0)
    agent("MEM.ADD", "ns", "ID", "b", "TEXT", "red lake", "TAGS", 1, "blue", "FVEC", 2, 1, 0)
    agent("MEM.ADD", "ns", "ID", "c", "TEXT", "hill", "TAGS", 1, "red", "FVEC", 2, 1, 0)
    query = ("MEM.QUERY", "ns", "TEXT", "the lake is red", "FVEC", 2, 1, 0, "EXPLAIN")
    explained = {hit.id: hit.explain for hit in agent.hits(*query)}
    plain = float(explained[b"b"][b"keyword"][b"raw"])
    assert b"tagboost" not in explained[b"b"][b"keyword"]
    assert float(explained[b"a"][b"keyword"][b"tagboost"]) == 3.0
    assert float(explained[b"a"][b"keyword"][b"raw"]) == pytest.approx(plain + 3.0, abs=1e-6)
    assert float(explained[b"a"][b"keyword"][b"scaled"]) == 1.0
    # Its vector makes it match, so its tag counts.
    assert float(explained[b"c"][b"keyword"][b"raw"]) == float(explained[b"c"][b"keyword"][b"tagboost"]) == 1.5
    assert agent.ids("MEM.SEARCH", "ns", "the lake is red") == [b"a", b"b"]
    assert agent.ids("MEM.SEARCH", "ns", "red") == [b"a", b"b"]
    agent("MEM.CONFIG", "ns", "TAGBOOST", 0)
    assert all(b"tagboost" not in hit.explain[b"keyword"] for hit in agent.hits(*query) if hit.id != b"c")


def test_no_boost_overflows(agent: Agent) -> None:
    """The largest boost is a number still, and the order is that of the tags."""
    agent("MEM.CREATE", "ns", "DIM", 2, "TAGBOOST", 1.7e308)
    for name, tags in ((b"none", ()), (b"one", ("red",)), (b"two", ("red", "lake"))):
        agent("MEM.ADD", "ns", "ID", name, "TEXT", "red lake", "TAGS", len(tags), *tags, "FVEC", 2, 1, 0)
    for query in (("MEM.SEARCH", "ns", "red lake"), ("MEM.QUERY", "ns", "TEXT", "red lake", "FVEC", 2, 0, 1)):
        assert agent.ids(*query) == [b"two", b"one", b"none"]


def with_tags(asked: list[Asked]) -> list[Asked]:
    for number, query in enumerate(asked):
        if query.text is not None:
            query.text += b" t%d, T%d" % (number % 7, (number + 2) % 7)
    return asked


@pytest.mark.parametrize("boost", [0.2, 5.0])
@pytest.mark.parametrize("metric", ["COSINE", "L2", "IP"])
def test_large_and_small_paths_agree_to_the_bit(monkeypatch: pytest.MonkeyPatch, metric: str, boost: float) -> None:
    settings = Settings(dim=DIM, metric=metric, lang="none", tagboost=boost)
    large = Product(settings, Vocabulary(), 0)
    fill(large, 1)
    made = with_tags(queries(2, metric))
    expected = answers(large, made)
    plain = Product(Settings(dim=DIM, metric=metric, lang="none"), Vocabulary(), 0)
    fill(plain, 1)
    assert answers(plain, made) != expected
    monkeypatch.setattr(matches, "PRUNE_MIN", 0)
    monkeypatch.setattr(ranking, "_CLOSE_MIN", 0)
    monkeypatch.setattr(codes, "CODES_MIN", 256)
    assert answers(large, made) == expected
    assert answers_together(large, made) == expected
    monkeypatch.setattr(columns, "POSTINGS_MIN", 10**9)
    monkeypatch.setattr(filters, "COLUMNS_MIN", 10**9)
    small = Product(settings, Vocabulary(), 0)
    fill(small, 1)
    assert answers(small, made) == expected


def test_the_best_rows_are_found_without_reading_every_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists are left out only where no tag could bring a row of theirs among the best."""
    rng = np.random.default_rng(3)
    left_out = 0
    read = keyword.Keyword._read

    def counted(self: keyword.Keyword, *given: object) -> object:
        nonlocal left_out
        found = read(self, *given)  # type: ignore[arg-type]
        left_out += bool(found[2])
        return found

    for boost in (0.01, 0.3, 6.0):
        memory = Product(Settings(dim=2, lang="none", tagboost=boost), Vocabulary(), 0)
        for number in range(ROWS):
            words = ["common"] * int(rng.integers(1, 4)) + ["rare"] * (number % 60 == 0) + ["t1"] * (number % 90 == 7)
            fields = {"importance": 0.5, "created_at": 1, "updated_at": 1, "deadline": 1 << 62, "max_words": 9, "at": 1}
            vector = np.array([1.0, 0.0], "<f4").tobytes()
            tags = (b"t1",) if number % 50 == 3 else ()
            memory.put(b"%d" % number, " ".join(words).encode(), vector, (), tags, **fields)
        for vector64 in (None, np.array([0.6, 0.8])):
            kind = "keyword" if vector64 is None else "fused"
            for text in (b"rare common", b"rare common t1", b"common", b"t1"):
                query = Asked(kind=kind, text=text, vector=vector64, top_k=12, counts=False)
                with monkeypatch.context() as full:
                    full.setattr(matches, "PRUNE_MIN", 10**9)
                    expected = run(memory.plan(query, 2))
                with monkeypatch.context() as pruned:
                    pruned.setattr(matches, "PRUNE_MIN", 0)
                    pruned.setattr(keyword.Keyword, "_read", counted)
                    found = run(memory.plan(query, 2))
                assert [(hit.slot, hit.score) for hit in found.hits] == [(hit.slot, hit.score) for hit in expected.hits]
    assert left_out


def test_across_memories(server: Running) -> None:
    """Several memories ranked as one give the scores of one memory with all their records; the named one's TAGBOOST."""
    wire = server.wire(3)
    chance = random.Random(5)
    for key, boost in (("one", 2), ("two", 0), ("both", 2)):
        wire("MEM.CREATE", key, "MODE", "SEARCH", "TAGBOOST", boost)
    for number in range(40):
        text, tags = " ".join(chance.choices(WORDS, k=4)), chance.sample(TAGS, 2)
        for key in (("one", "two")[number % 2], "both"):
            wire("MEM.ADD", key, "ID", number, "TEXT", text, "TAGS", 2, *tags, "AT", JUNE)
    boosted = 0
    for query in asked(Memory("SEARCH"), 10):
        found = [("MEM.QUERY", key, "TEXT", query.text, "TOPK", 100, "EXPLAIN") for key in ("one", "both")]
        across, both = (wire(*words, *more) for words, more in zip(found, (("ACROSS", 1, "two"), ()), strict=True))
        assert {hit[b"id"]: hit[b"score"] for hit in across} == {hit[b"id"]: hit[b"score"] for hit in both}
        boosted += any(b"tagboost" in hit[b"explain"][b"keyword"] for hit in across)
    assert boosted
    wire.close()
