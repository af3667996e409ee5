"""klyro-db, the Python client of another server for MEM.* commands, as PyPI has it (0.1.1).

It reads hits as maps, so it needs `protocol=3`, or a server whose `mem-hit-format` is `map`: both are tried. What it
expects beyond that stands in its memory.py: maps have text keys, a vector is float32 bytes, and `id importance
created_at updated_at pttl` are in every record and hit.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

import pytest
import redis
from harness import JUNE, Clock, Running

klyro = pytest.importorskip("klyro_db", reason="needs klyro-db (pip install klyro-db)")

NS = "notes"
RECORDS = (
    ("m1", "User prefers Lisbon for winter holidays.", (0.9, 0.4, 0.1), "preference"),
    ("m2", "User is currently planning a mountain hiking trip.", (0.7, 0.2, 0.3), "project"),
    ("m3", "User likes quiet beach resorts.", (0.1, 0.2, 0.9), "preference"),
    ("m4", "User previously visited Oslo.", (0.8, 0.5, 0.1), "fact"),
    ("m5", "User is planning Aurora, a Lisbon beach retreat.", (0.95, 0.35, 0.2), "project"),
)


@pytest.fixture(params=("resp3", "map"))
def db(server: Running, request: pytest.FixtureRequest) -> Iterator[Any]:
    """Their client, in both ways to have maps."""
    options = {"protocol": 3 if request.param == "resp3" else 2}
    with klyro.Klyro(port=server.port, **options) as client:
        if request.param == "map":
            client.config_set("mem-hit-format", "map")
        yield client


@pytest.fixture
def memory(db: Any) -> Any:
    """Their typed MEM.* methods, with RECORDS in NS."""
    db.memory.create(NS, klyro.MemoryCreate(mode="HYBRID", dim=3))
    for name, text, vector, kind in RECORDS:
        record = klyro.MemoryAdd(text=text, id=name, vector=vector, metadata={"type": kind})
        assert db.memory.add(NS, record) == name
    return db.memory


def ids(hits: list[Any]) -> list[str]:
    return [hit.id for hit in hits]


def test_readme_example(db: Any) -> None:
    """The example of its README, with other numbers in the vectors."""
    vector = [0.1] * 384
    db.memory.create("notes", klyro.MemoryCreate(mode="HYBRID", dim=384))
    record = klyro.MemoryAdd(text="User prefers PostgreSQL", vector=vector, metadata={"kind": "preference"})
    name = db.memory.add("notes", record)
    query = klyro.MemoryQuery(text="database preference", vector=vector, top_k=5, with_metadata=True, with_scores=True)
    hits = db.memory.query("notes", query)
    assert ids(hits) == [name]
    assert hits[0].metadata == {"kind": "preference"}
    assert hits[0].vector_score == pytest.approx(1)


def test_create_info_config(db: Any) -> None:
    memory = db.memory
    weights = klyro.Weights(keyword=0.4, vector=0.4, recency=0.1, importance=0.1)
    assert memory.create(NS, klyro.MemoryCreate(dim=3, metric="L2", weights=weights, halflife=3600)) == "OK"
    info = memory.info(NS)
    assert (info.mode, info.dim, info.metric, info.weights, info.halflife) == ("HYBRID", 3, "L2", weights, 3600)
    assert (info.records, info.vectors, info.terms) == (0, 0, 0)
    assert info.bytes >= 0
    assert memory.config(NS, klyro.MemoryConfig(weights=klyro.Weights(), halflife=60)) == "OK"
    info = memory.info(NS)
    assert (info.weights, info.halflife) == (klyro.Weights(0.35, 0.5, 0.1, 0.05), 60)
    with pytest.raises(redis.ResponseError, match="memory index already exists"):
        memory.create(NS, klyro.MemoryCreate(dim=3))
    with pytest.raises(redis.ResponseError, match="DIM is required"):
        memory.create("other", klyro.MemoryCreate())


def test_info_counts(memory: Any) -> None:
    info = memory.info(NS)
    assert (info.records, info.vectors) == (5, 5)
    assert info.terms > 0
    assert info.avg_doc_len > 0


def test_records(memory: Any) -> None:
    record = memory.get(NS, "m1", klyro.MemoryReturn(with_metadata=True, with_vector=True))
    assert (record.id, record.text, record.metadata) == ("m1", RECORDS[0][1], {"type": "preference"})
    assert (record.importance, record.created_at, record.updated_at, record.pttl) == (0.5, JUNE, JUNE, -1)
    assert record.vector == pytest.approx((0.9091, 0.4041, 0.1010), abs=1e-4)  # / sqrt(.81 + .16 + .01)
    plain = memory.get(NS, "m1")
    assert (plain.metadata, plain.vector) == (None, None)
    assert memory.get(NS, "m1", klyro.MemoryReturn(no_text=True)).text is None
    assert memory.get(NS, "absent") is None
    assert [found and found.id for found in memory.mget(NS, "m2", "absent", "m1")] == ["m2", None, "m1"]
    assert memory.card(NS) == 5
    assert memory.delete(NS, "m1", "absent", "m2") == 2
    assert memory.card(NS) == 3


def test_vectors_are_kept_under_ip(db: Any) -> None:
    vector = (0.1, -2.5, 3e10)
    db.memory.create(NS, klyro.MemoryCreate(dim=3, metric="IP"))
    db.memory.add(NS, klyro.MemoryAdd(text="x", id="a", vector=struct.pack("<3f", *vector)))
    kept = db.memory.get(NS, "a", klyro.MemoryReturn(with_vector=True)).vector
    assert struct.pack("<3f", *kept) == struct.pack("<3f", *vector)


def test_ids_are_given(memory: Any) -> None:
    assert memory.add(NS, klyro.MemoryAdd(text="first without an id")) == "1"
    assert memory.add(NS, klyro.MemoryAdd(text="second without an id")) == "2"
    assert memory.get(NS, "1", klyro.MemoryReturn(with_vector=True)).vector is None


def test_conditions(memory: Any) -> None:
    for name, condition in (("m1", "NX"), ("absent", "XX")):
        with pytest.raises(redis.ResponseError, match="record existence condition not met"):
            memory.add(NS, klyro.MemoryAdd(text="x", id=name, condition=condition))
    assert memory.add(NS, klyro.MemoryAdd(text="User moved to Porto.", id="m1", condition="XX")) == "m1"
    assert ids(memory.search(NS, "porto")) == ["m1"]


def test_metadata(memory: Any) -> None:
    assert memory.set_metadata(NS, "m1", {"seen": 3, "score": 0.5}) == 2
    assert memory.set_metadata(NS, "m1", {"seen": 4}) == 0
    assert memory.delete_metadata(NS, "m1", "score", "absent") == 1
    record = memory.get(NS, "m1", klyro.MemoryReturn(with_metadata=True))
    assert record.metadata == {"type": "preference", "seen": "4"}
    with pytest.raises(redis.ResponseError, match="no such record"):
        memory.set_metadata(NS, "absent", {"a": "b"})


def test_expiry(memory: Any, clock: Clock) -> None:
    assert memory.expire(NS, "m1", 100) is True
    assert memory.get(NS, "m1").pttl == 100_000
    assert memory.expire(NS, "m1", 0) is True
    assert memory.get(NS, "m1").pttl == -1
    assert memory.expire(NS, "absent", 10) is False
    memory.add(NS, klyro.MemoryAdd(text="short lived", id="brief", ttl=1))
    clock.advance(1_000)
    assert memory.get(NS, "brief") is None
    assert memory.search(NS, "lived") == []


def test_scan(memory: Any) -> None:
    found: list[str] = []
    cursor: str | int = 0
    while cursor != "0":
        page = memory.scan(NS, cursor, klyro.MemoryScan(count=2))
        found += page.ids
        cursor = page.cursor
    assert sorted(found) == ["m1", "m2", "m3", "m4", "m5"]
    projects = klyro.MemoryScan(count=100, filters=[klyro.Filter("type", "EQ", "project")])
    assert sorted(memory.scan(NS, 0, projects).ids) == ["m2", "m5"]


def test_search(memory: Any) -> None:
    assert sorted(ids(memory.search(NS, "Lisbon"))) == ["m1", "m5"]
    assert ids(memory.search(NS, "Oslo.")) == ["m4"]
    assert ids(memory.search(NS, "planning beach", klyro.MemorySearch(top_k=1))) == ["m5"]
    assert memory.search(NS, "zebra") == []
    wanted = klyro.MemorySearch(with_metadata=True, with_scores=True, no_text=True, with_vector=True)
    hit = memory.search(NS, "Oslo", wanted)[0]
    assert hit.text is None
    assert hit.metadata == {"type": "fact"}
    assert len(hit.vector) == 3
    assert hit.keyword_score == hit.score > 0
    assert hit.vector_score is None
    assert (hit.importance, hit.created_at, hit.pttl) == (0.5, JUNE, -1)


def test_filters(memory: Any) -> None:
    def found(*filters: Any) -> list[str]:
        return ids(memory.search(NS, "Lisbon", klyro.MemorySearch(filters=filters)))

    assert found(klyro.Filter("type", "EQ", "preference")) == ["m1"]
    assert found(klyro.Filter("type", "EQ", "project")) == ["m5"]
    assert found(klyro.Filter("type", "IN", "project,fact"), klyro.Filter("@text", "CONTAINS", "beach")) == ["m5"]
    assert found(klyro.Filter("@importance", "LT", 0.5)) == []


def test_vector_search(memory: Any) -> None:
    hits = memory.vector_search(NS, (0.9, 0.4, 0.1), klyro.MemorySearch(with_scores=True))
    expected = {"m1": 1.0, "m5": 0.9935, "m4": 0.9903, "m2": 0.9493, "m3": 0.2832}
    assert ids(hits) == list(expected)
    assert {hit.id: hit.score for hit in hits} == pytest.approx(expected, abs=1e-4)
    assert all(hit.vector_score == hit.score and hit.keyword_score is None for hit in hits)


def test_query(memory: Any) -> None:
    both = klyro.MemoryQuery(text="Lisbon", vector=(0.1, 0.2, 0.9), with_scores=True)
    hits = {hit.id: hit for hit in memory.query(NS, both)}
    assert len(hits) == 5
    assert hits["m1"].keyword_score > 0
    assert hits["m3"].vector_score == pytest.approx(1)
    assert hits["m1"].recency_score == 1
    scores = [hit.score for hit in hits.values()]
    assert scores == sorted(scores, reverse=True)
    assert sorted(ids(memory.query(NS, klyro.MemoryQuery(text="Lisbon")))) == ["m1", "m5"]
    near = klyro.MemoryQuery(vector=(0.1, 0.2, 0.9), top_k=1)
    assert ids(memory.query(NS, near)) == ["m3"]
    words_only = klyro.Weights(1, 0, 0, 0)
    assert ids(memory.query(NS, klyro.MemoryQuery(text="Oslo", vector=(0.1, 0.2, 0.9), weights=words_only)))[0] == "m4"
    fused = klyro.MemoryQuery(text="Lisbon", vector=(0.1, 0.2, 0.9), fusion="RRF")
    assert sorted(ids(memory.query(NS, fused))) == ["m1", "m2", "m3", "m4", "m5"]


def test_redis_methods_beside(db: Any, memory: Any) -> None:
    """It is a redis-py client too."""
    assert db.ping()
    assert db.exists(NS) == 1
    assert db.type(NS) == b"memory"
    assert db.expire(NS, 60)
    assert db.ttl(NS) == 60
    assert db.delete(NS) == 1
    with pytest.raises(redis.ResponseError, match="no such memory index"):
        memory.card(NS)
