"""Rankings of whole memories against the oracle: every metric, mode, fusion and size, with data chosen to be nasty.

The state machine (test_oracle_machine.py) is about small memories and many kinds of writes; here memories are as large
as a server may treat differently (postings, blocks, codes, threads), and full of duplicates and ties.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import LONG
from harness import DAY, JUNE, Agent, Clock, Running, Wire, WireError, Word, scan
from oracle import Answer, Filter, Memory, Query, TagTest, Vector, blob

WORDS = [f"w{i}" for i in range(30)] + ["running", "runs", "user_id", "id", "café", "cafe", "the", "of"]
METRICS = ("COSINE", "L2", "IP")
SIZES = (0, 1, 2, 40, 700) + ((6_000,) if LONG else ())

Make = Callable[[random.Random, int], Vector]


def grid(chance: random.Random, dim: int) -> Vector:
    """Small integers: many equal similarities, many duplicates."""
    while True:
        vector = tuple(float(chance.randint(-2, 2)) for _ in range(dim))
        if any(vector):
            return vector


def smooth(chance: random.Random, dim: int) -> Vector:
    return tuple(chance.gauss(0, 1) for _ in range(dim))


def clustered(chance: random.Random, dim: int) -> Vector:
    """All but equal: apart by what float32 just holds."""
    return tuple(1.0 + i / 7 + chance.choice((0, 0, 1, -1)) * 2.0**-22 for i in range(dim))


def magnitudes(chance: random.Random, dim: int) -> Vector:
    """Huge and tiny ones together."""
    scale = 10.0 ** chance.randint(-18, 18)
    return tuple(chance.gauss(0, 1) * scale for _ in range(dim))


MAKES: dict[str, Make] = {"grid": grid, "smooth": smooth, "clustered": clustered, "magnitudes": magnitudes}


def check(agent: Agent, memory: Memory, query: Query, now: int, key: bytes = b"ns") -> Answer:
    """Ask the server, compare every hit, then its pages and its counts; the oracle's answer."""
    answer = memory.answer(query, now)
    words = query.words(key)
    hits = agent.hits(*words, "TOPK", 100_000, "NOTEXT")
    answer.check([(hit.id, hit.score) for hit in hits])
    ids = [hit.id for hit in hits]
    for offset, top_k in ((0, 1), (0, 10), (len(ids) // 2, 7), (len(ids), 3)):
        page = agent.ids(*words, "TOPK", top_k, "OFFSET", offset, "NOTEXT")
        assert page == ids[offset : offset + top_k], (offset, top_k)
    _, stats = agent(*words, "WITHSTATS")
    stats = agent.as_map(stats)
    assert (stats[b"records"], stats[b"matched"]) == (len(memory.records), answer.matched)
    assert stats[b"filtered"] == answer.filtered
    if query.minsim is None and not answer.doubtful:
        assert stats[b"below_minscore"] == answer.below_minscore
    return answer


def fill(
    agent: Agent, mode: str, metric: str, size: int, dim: int, make: Make, seed: int, lang: str = "english"
) -> Memory:
    """The same records in `ns` and in an oracle."""
    chance = random.Random(f"{mode} {metric} {size} {dim} {seed}")
    dim = 0 if mode == "SEARCH" else dim
    memory = Memory(mode, dim, metric, lang=lang)
    agent("CONFIG", "SET", "mem-max-topk", 100_000)
    agent("MEM.CREATE", "ns", "MODE", mode, *(("DIM", dim) if dim else ()), "METRIC", metric, "LANG", lang)
    batch: list[Word] = []
    for i in range(size):
        text = " ".join(chance.choices(WORDS, k=chance.randint(0, 6))).encode()
        vector = make(chance, dim) if dim and (mode == "VECTOR" or chance.random() < 0.8) else None
        importance = chance.choice((0.0, 0.25, 0.5, 0.5, 1.0))
        at = JUNE - chance.choice((0, 1, 1000, DAY, 7 * DAY, 400 * DAY, -DAY))
        meta = [(b"n", b"%d" % chance.randint(0, 9)), (b"f", chance.choice((b"a", b"b", b"c")))]
        tags = tuple(chance.sample((b"red", b"green", b"blue"), chance.randint(0, 2)))
        record_id = b"%x" % (i * 7919 % 65536)
        memory.add(JUNE, record_id, text, vector, meta, tags, importance, at=at)
        batch += ["RECORD", "ID", record_id, "TEXT", text, "IMPORTANCE", importance, "AT", at, "TAGS", len(tags), *tags]
        batch += [] if vector is None else ["VEC", blob(vector)]
        batch += itertools.chain.from_iterable(("META", name, value) for name, value in meta)
    if size:
        agent("MEM.MADD", "ns", size, *batch)
    return memory


FILTERS: list[tuple[Filter, ...]] = [
    (),
    ((b"f", "EQ", b"a"),),
    ((b"n", "GTE", b"3"), (b"n", "LT", b"8")),
    ((b"@tags", "IN", b"red,blue"),),
    ((b"@importance", "GT", b"0.3"), (b"@updated_at", "LT", b"2026-06-01")),
    ((b"n", "EQ", b"7"), (b"f", "EQ", b"c"), (b"@tags", "EQ", b"green")),
    ((b"f", "EQ", b"nothing"),),
]
TAGS: list[tuple[TagTest, ...]] = [(), (), (), (("ANY", (b"red", b"blue")),), (("ALL", (b"green", b"red")),)]


def queries(memory: Memory, make: Make, count: int, seed: int) -> list[Query]:
    chance = random.Random(f"{memory.mode} {memory.metric} {seed}")
    kinds = [k for k in ("SEARCH", "VSEARCH", "QUERY", "QUERY", "QUERY") if k != "SEARCH" or memory.mode != "VECTOR"]
    kinds = [k for k in kinds if k != "VSEARCH" or memory.mode != "SEARCH"]
    stored = [record.vector for record in memory.records.values() if record.vector is not None]
    found = []
    for _ in range(count):
        kind = chance.choice(kinds)
        text, vector = None, None
        if memory.mode != "VECTOR" and kind != "VSEARCH":
            text = " ".join(chance.choices([*WORDS, "nowhere"], k=chance.randint(1, 4))).encode()
        if memory.mode != "SEARCH" and kind != "SEARCH":
            vector = make(chance, memory.dim) if not stored or chance.random() < 0.7 else chance.choice(stored)
        if text is not None and vector is not None and chance.random() < 0.3:
            text = None
        query = Query(kind, text, vector, chance.choice(FILTERS), chance.choice(TAGS))
        if chance.random() < 0.3:
            query.minscore = round(chance.uniform(0, 1), 3) + 0.000137
        if kind == "QUERY":
            query.fusion = chance.choice((None, "LINEAR", "RRF", "RRF"))
            query.rrf_k = chance.choice((60, 60, 1, 10))
            query.half_life = chance.choice((None, 1, 3600, 7 * 86400))
            query.weights = chance.choice(
                (
                    None,
                    (1, 1, 1, 1),
                    (1, 0, 0, 0),
                    (0, 1, 0, 0),
                    (0, 0, 1, 0),
                    (0, 0, 0, 1),
                    (0, 0, 0, 0),
                    (0.3, 2, 0, 5),
                )
            )
            if vector is not None and chance.random() < 0.2:
                query.minsim = round(chance.uniform(-1, 1), 3) + 0.000137
            if chance.random() < 0.2:
                query.diversity = chance.choice((0.0, 0.3, 0.7, 1.0))
        found.append(query)
    return found


@pytest.fixture
def maps(server: Running) -> Agent:
    """RESP3, where numbers are shown to the last bit."""
    return server.agent("resp3")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("mode", "metric"), [*itertools.product(["HYBRID", "VECTOR"], METRICS), ("SEARCH", "COSINE")])
def test_random_memories(maps: Agent, mode: str, metric: str, size: int) -> None:
    memory = fill(maps, mode, metric, size, 3, grid, 1)
    for query in queries(memory, grid, 200 if LONG else 8 if size > 100 else 18, size):
        check(maps, memory, query, JUNE)


@pytest.mark.parametrize("make", ["smooth", "clustered", "magnitudes"])
@pytest.mark.parametrize("metric", METRICS)
def test_vectors_of_every_kind(maps: Agent, metric: str, make: str) -> None:
    memory = fill(maps, "HYBRID", metric, 5_000 if LONG else 500, 16, MAKES[make], 2)
    for query in queries(memory, MAKES[make], 100 if LONG else 7, 2):
        check(maps, memory, query, JUNE)


def test_a_memory_of_more_than_one_block(maps: Agent) -> None:
    """Some thousands of rows: exact where a scan works on blocks, codes or threads."""
    memory = fill(maps, "HYBRID", "COSINE", 20_000 if LONG else 4_500, 4, smooth, 3)
    for query in queries(memory, smooth, 50 if LONG else 4, 3):
        check(maps, memory, query, JUNE)


def test_statistics_follow_every_write(maps: Agent) -> None:
    """N, df, avgdl and g are always those of the records that count now: after each of many writes."""
    chance = random.Random(4)
    memory = fill(maps, "HYBRID", "COSINE", 60, 3, grid, 4)
    query = Query("QUERY", b"w1 w2 running", (1.0, 2.0, -1.0), weights=(1, 1, 0, 0))
    for turn in range(60):
        record_id = chance.choice(sorted(memory.records))
        if turn % 3 == 0:
            maps("MEM.DEL", "ns", record_id)
            del memory.records[record_id]
        else:
            text = " ".join(chance.choices(WORDS, k=5)).encode()
            vector = grid(chance, 3)
            maps("MEM.ADD", "ns", "ID", record_id, "TEXT", text, "VEC", blob(vector), "AT", JUNE)
            memory.add(JUNE, record_id, text, vector, at=JUNE)
        hits = maps.hits(*query.words(), "TOPK", 1000, "NOTEXT")
        memory.answer(query, JUNE).check([(hit.id, hit.score) for hit in hits])
        info = maps.map("MEM.INFO", "ns")
        for name, value in memory.info().items():
            assert info[name.encode()] == pytest.approx(value, abs=1e-9), name


@pytest.mark.parametrize("lang", ["none", "german", "french"])
def test_languages(maps: Agent, lang: str) -> None:
    memory = fill(maps, "HYBRID", "COSINE", 50, 2, grid, 5, lang)
    for query in queries(memory, grid, 10, 5):
        check(maps, memory, query, JUNE)


@pytest.mark.parametrize("fusion", ["LINEAR", "RRF"])
def test_explanations(maps: Agent, fusion: str) -> None:
    """Every part of EXPLAIN, for every hit: raw, scaled, rank, weight, contribution; idf, tf and part of each term."""
    memory = fill(maps, "HYBRID", "COSINE", 80, 3, grid, 6)
    for base in queries(memory, grid, 12, 6):
        if base.kind != "QUERY":
            continue
        base.fusion = fusion
        base.diversity = None
        answer = memory.answer(base, JUNE)
        expected = {match.record.id: match for match in answer.hits}
        hits = maps.hits(*base.words(), "TOPK", 1000, "NOTEXT", "EXPLAIN", "WITHSCORES")
        answer.check([(hit.id, hit.score) for hit in hits])
        for hit in hits:
            match = expected[hit.id]
            explain = hit.explain
            assert explain is not None
            total = 0.0
            for name, signal in match.signals.items():
                part = explain[name.encode()]
                assert part[b"raw"] == pytest.approx(signal.raw, abs=1e-6)
                assert part[b"scaled"] == pytest.approx(signal.scaled, abs=1e-6)
                assert part[b"weight"] == signal.weight
                assert signal.rank_low <= part[b"rank"] <= signal.rank_high, name
                assert signal.low - 1e-6 <= part[b"contribution"] <= signal.high + 1e-6, name
                total += part[b"contribution"]
            assert total == pytest.approx(hit.score, abs=1e-9)
            parts = {term[b"term"].decode(): term for term in explain[b"terms"]}
            assert parts.keys() == {term for term, *_ in match.term_parts}
            for term, idf, tf, part in match.term_parts:
                shown = parts[term]
                assert (shown[b"tf"], shown[b"idf"]) == (tf, pytest.approx(idf))
                assert shown[b"part"] == pytest.approx(part, abs=1e-9)


def test_mem_explain_knows_the_rank_of_every_record(maps: Agent) -> None:
    """The place that the record has in the query's own reply, or why it has none."""
    memory = fill(maps, "HYBRID", "L2", 60, 2, grid, 7)
    for query in [q for q in queries(memory, grid, 30, 7) if q.kind == "QUERY"][:10]:
        words = query.words()
        places = {record_id: at for at, record_id in enumerate(maps.ids(*words, "TOPK", 100_000, "NOTEXT"), 1)}
        for record_id in memory.records:
            shown = maps.map("MEM.EXPLAIN", "ns", record_id, *words[2:], "TOPK", 100_000)
            assert shown.get(b"rank") == places.get(record_id), shown
            assert (b"reason" in shown) == (record_id not in places)


def test_a_scan_in_a_thread_sees_one_moment(maps: Agent, server: Running) -> None:
    """Queries in a pipeline among writes: each sees exactly the writes before it."""
    memory = fill(maps, "HYBRID", "COSINE", 3_000, 4, smooth, 8)
    query = Query("VSEARCH", vector=(1.0, 0.5, 0.25, -1.0))
    best = [match.record.id for match in memory.answer(query, JUNE).hits][:200]
    commands: list[list[Word]] = []
    for record_id in best[:50]:
        commands += [[*query.words(), "TOPK", 3, "NOTEXT"], ["MEM.DEL", "ns", record_id]]
    wire: Wire = server.wire()
    replies = wire.pipeline(*commands)
    for at, hits in enumerate(replies[::2]):
        assert [hit[0] for hit in hits] == best[at : at + 3]
    wire.close()


def test_a_memory_that_shrinks_by_thousands(running: Callable[..., Running], tmp_path: Path) -> None:
    """Deleted, replaced and added while whatever a server does about dead rows goes on; then a restart."""
    server = running(clock=Clock(), dir=tmp_path, appendfsync="no")
    maps = server.agent("resp3")
    size = 7_000
    memory = fill(maps, "HYBRID", "COSINE", size, 2, grid, 9)
    chance = random.Random(9)
    asked = [query for query in queries(memory, grid, 20, 9) if query.kind == "QUERY"][:4]
    ids = sorted(memory.records)
    chance.shuffle(ids)
    for at in range(0, 6_000, 500):
        writes: list[list[Word]] = [["MEM.DEL", "ns", *ids[at : at + 450]]]
        for record_id in ids[at : at + 450]:
            del memory.records[record_id]
        for record_id in ids[at + 450 : at + 500]:
            text, vector = chance.choice(WORDS).encode(), grid(chance, 2)
            writes.append(["MEM.ADD", "ns", "ID", record_id, "TEXT", text, "VEC", blob(vector), "AT", JUNE])
            memory.add(JUNE, record_id, text, vector, at=JUNE)
        writes.append(["MEM.SETMETA", "ns", ids[at + 499], "n", "5"])
        writes += [[*query.words(), "TOPK", 5] for query in asked]
        replies = maps.wire.pipeline(*writes)
        assert not [reply for reply in replies if isinstance(reply, WireError)]
        memory.records[ids[at + 499]].meta[b"n"] = b"5"
    assert sorted(scan(maps.wire, "ns", "COUNT", 700)) == sorted(memory.records)
    for query in asked:
        check(maps, memory, query, JUNE)
    before = [maps.wire.raw(*query.words(), "TOPK", 1000, "EXPLAIN", "WITHMETA", "WITHVEC") for query in asked]
    server.restart()
    maps = server.agent("resp3")
    assert [maps.wire.raw(*query.words(), "TOPK", 1000, "EXPLAIN", "WITHMETA", "WITHVEC") for query in asked] == before
    for query in asked:
        maps("CONFIG", "SET", "mem-max-topk", 100_000)
        check(maps, memory, query, JUNE)


def test_forgetting_beside_other_writers(server: Running) -> None:
    """What MEM.FORGET says it deleted is gone, nothing else is, and who writes meanwhile loses nothing."""
    one, two = server.wire(), server.wire()
    size = 20_000
    one("MEM.CREATE", "ns", "MODE", "SEARCH")
    words = (word for i in range(size) for word in ("RECORD", "ID", i, "TEXT", "t", "META", "odd", i % 2))
    one("MEM.MADD", "ns", size, *words)
    one.send("MEM.FORGET", "ns", "FILTER", "odd", "EQ", 1)
    fresh = [f"new{i}".encode() for i in range(200)]
    mixed: list[list[Word]] = [["MEM.ADD", "ns", "ID", name, "TEXT", "t", "META", "odd", "1"] for name in fresh]
    mixed += [["MEM.SETMETA", "ns", i, "odd", 0] for i in range(1, 400, 2)]
    mixed += [["MEM.DEL", "ns", i] for i in range(401, 600, 2)]
    replies = two.pipeline(*mixed)
    count, forgotten = one.read()
    assert count == len(forgotten) == len(set(forgotten))
    left = set(scan(one, "ns", "COUNT", 5_000))
    assert one("MEM.CARD", "ns") == len(left)
    assert left.isdisjoint(forgotten)
    kept = {b"%d" % i for i, reply in zip(range(1, 400, 2), replies[200:400], strict=True) if reply == 0}
    deleted = {b"%d" % i for i, reply in zip(range(401, 600, 2), replies[400:], strict=True) if reply == 1}
    expected = {b"%d" % i for i in range(0, size, 2)} | (kept - set(forgotten)) | (set(fresh) - set(forgotten))
    assert left == expected
    assert deleted.isdisjoint(forgotten)
    assert deleted | set(forgotten) | left >= {b"%d" % i for i in range(size)}
    one.close()
    two.close()
