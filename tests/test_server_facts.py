"""MEM.FACT, MEM.INVALIDATE, MEM.FACTS over the wire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import DAY, HOUR, JUNE, Clock, Running, Wire, flat_pairs

FIELDS = (
    "id subject predicate object entity_type confidence quote valid_at valid_until invalid_at episode created_at"
    " supersedes superseded_by"
).split()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def server(clock: Clock, tmp_path: Path) -> Iterator[Running]:
    with Running(clock=clock, dir=tmp_path, save="") as running:
        yield running


@pytest.fixture
def wire(server: Running) -> Wire:
    wire = server.wire(3)
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    return wire


def facts(wire: Wire, *words: Any, key: str = "k") -> list[dict[str, Any]]:
    """The maps of MEM.FACTS, names as text."""
    total, found = wire("MEM.FACTS", key, *words)
    maps = [{name.decode(): value for name, value in each.items()} for each in found]
    assert all(list(each) == FIELDS for each in maps)
    if "LIMIT" not in words and "OFFSET" not in words:
        assert total == len(maps)
    return maps


def ids(wire: Wire, *words: Any) -> list[bytes]:
    return [each["id"] for each in facts(wire, *words)]


def test_a_fact_is_written_its_way(wire: Wire) -> None:
    """Subject trimmed and lower-cased, predicate without punctuation, object as written; every field in the map."""
    made = wire(
        *("MEM.FACT", "k", "  Alice ", "Works--at (since 2020)!", " ACME Corp. ", "CONFIDENCE", 0.75),
        *("QUOTE", "I'm with ACME", "VALIDAT", "2026-01-01", "VALIDUNTIL", "2027-01-01", "EPISODE", "e1"),
        *("META", "source", "chat", "TAGS", 1, "job", "TTL", 60, "ID", "f1"),
    )
    assert made == b"f1"
    assert facts(wire) == [
        {
            "id": b"f1",
            "subject": b"alice",
            "predicate": b"works at since 2020",
            "object": b"ACME Corp.",
            "entity_type": None,
            "confidence": 0.75,
            "quote": b"I'm with ACME",
            "valid_at": 1_767_225_600_000.0,
            "valid_until": 1_798_761_600_000.0,
            "invalid_at": None,
            "episode": b"e1",
            "created_at": float(JUNE),
            "supersedes": None,
            "superseded_by": None,
        }
    ]
    shown = wire("MEM.GET", "k", "f1", "WITHMETA")
    assert shown[b"text"] == b"alice works at since 2020 ACME Corp."
    assert (shown[b"kind"], shown[b"pttl"], shown[b"tags"]) == (b"fact", 60_000.0, [b"job"])
    assert shown[b"meta"] == {b"source": b"chat"}
    assert shown[b"valid_at"] == 1_767_225_600_000.0


@pytest.mark.parametrize(
    ("words", "stored"),
    [
        (("ÉMILE", "a\u2014b\u00a0 c", "x"), ("émile", "a b c", "x")),
        (("s", "¿qué?", "y"), ("s", "qué", "y")),
        (("s", "$price<5", "z"), ("s", "price 5", "z")),
        (("s", "p\tq\nr", "o"), ("s", "p q r", "o")),
    ],
)
def test_words(wire: Wire, words: tuple[str, ...], stored: tuple[str, ...]) -> None:
    wire("MEM.FACT", "k", *words)
    found = facts(wire)[0]
    assert tuple(found[name].decode() for name in ("subject", "predicate", "object")) == stored


def test_bytes_that_are_no_text_stay(wire: Wire) -> None:
    wire("MEM.FACT", "k", b"\xffA", b"B\xfe", b"\x80 C")
    assert [facts(wire)[0][name] for name in ("subject", "predicate", "object")] == [b"\xffa", b"b\xfe", b"\x80 C"]


ERRORS = [
    (("", "p", "o"), "ERR subject, predicate and object must not be empty"),
    (("s", "?!", "o"), "ERR subject, predicate and object must not be empty"),
    (("s", "p", "  "), "ERR subject, predicate and object must not be empty"),
    (("s", "p", "o" * 501), "ERR object exceeds 500 characters"),
    (("s", "p", "o", "CONFIDENCE", "1.1"), "ERR CONFIDENCE must be between 0 and 1"),
    (("s", "p", "o", "CONFIDENCE", "nan"), "ERR CONFIDENCE must be between 0 and 1"),
    (("s", "p", "o", "CONFIDENCE", "x"), "ERR value is not a valid float"),
    (("s", "p", "o", "VALIDUNTIL", JUNE), "ERR VALIDUNTIL must be after VALIDAT"),
    (("s", "p", "o", "AT", 500, "VALIDUNTIL", 500), "ERR VALIDUNTIL must be after VALIDAT"),
    (("s", "p", "o", "VALIDUNTIL", 5, "VALIDAT", 5), "ERR VALIDUNTIL must be after VALIDAT"),
    (("s", "p", "o", "VALIDAT", "soon"), "ERR 'soon' is not a time: unix milliseconds or ISO 8601"),
    (("s", "p", "o", "ENTITYFVEC", 1, 1), "ERR ENTITYVEC needs TYPE"),
    (("s", "p", "o", "TTL", 0), "ERR TTL must be positive"),
    (("s", "p", "o", "NONSENSE"), "ERR unexpected argument 'NONSENSE'"),
    (("s", "p", "o", "QUOTE"), "ERR syntax error"),
    (("s", "p", "o", "ID", "note"), "ERR id 'note' is held by a note"),
    (("s", "p", "o", "ID", "episode"), "ERR id 'episode' is held by an episode"),
    (("s", "p", "o", "SUPERSEDES", "none"), "ERR no such fact"),
    (("s", "p", "o", "SUPERSEDES", "note"), "ERR no such fact"),
    (("s", "p", "o", "SUPERSEDES", "f", "ID", "f"), "ERR a fact cannot supersede itself"),
    (("s", "p", "o", "QUOTE", "q" * 65_537), "ERR QUOTE exceeds mem-max-text-bytes (65536)"),
    (("s" * 65_536, "p", "o"), "ERR text exceeds mem-max-text-bytes (65536)"),
    (
        ("s", "p", "o", "FVEC", 1, 1),
        "ERR this memory index stores no vectors; create it with MODE VECTOR or MODE HYBRID",
    ),
    (
        ("s", "p", "o", "TYPE", "ORG", "ENTITYFVEC", 1, 1),
        "ERR this memory index stores no vectors; create it with MODE VECTOR or MODE HYBRID",
    ),
]


@pytest.mark.parametrize(("words", "error"), ERRORS, ids=[error[:60] for _, error in ERRORS])
def test_what_is_refused_changes_nothing(wire: Wire, words: tuple[Any, ...], error: str) -> None:
    wire("MEM.ADD", "k", "ID", "note", "TEXT", "n")
    wire("MEM.ADD", "k", "ID", "episode", "TEXT", "e", "KIND", "episode")
    wire("MEM.FACT", "k", "a", "b", "c", "ID", "f")
    before = wire.raw("DUMP", "k")
    assert wire.error("MEM.FACT", "k", *words) == error
    assert wire.raw("DUMP", "k") == before


def test_other_errors(wire: Wire) -> None:
    assert wire.error("MEM.FACT", "absent", "s", "p", "o") == "ERR no such memory index"
    assert wire.error("MEM.FACT", "k", "s", "p") == "ERR wrong number of arguments for 'mem.fact' command"
    wire("MEM.FACT", "k", "s", "p", "o" * 500, "ID", "f")
    assert wire.error("MEM.ADD", "k", "ID", "f", "TEXT", "x") == "ERR id 'f' is held by a fact; MEM.FACT writes it"
    wire("CONFIG", "SET", "mem-fact-subjects", "user", "mem-max-records", 1)
    assert wire.error("MEM.FACT", "k", "bob", "p", "o") == "ERR subject must be 'user' (mem-fact-subjects user)"
    assert wire.error("MEM.FACT", "k", "User", "p", "o") == "ERR memory index is full at mem-max-records (1)"
    wire("CONFIG", "SET", "mem-fact-subjects", "any")
    assert wire("MEM.FACT", "k", "s", "p", "o" * 500) == b"f", "a restatement is no new record"
    for words, error in (
        (("LIMIT", 0), "ERR LIMIT must be between 1 and 1000"),
        (("LIMIT", 1001), "ERR LIMIT must be between 1 and 1000"),
        (("OFFSET", -1), "ERR OFFSET must not be negative"),
        (("X",), "ERR unexpected argument 'X'"),
    ):
        assert wire.error("MEM.FACTS", "k", *words) == error
    assert wire.error("MEM.INVALIDATE", "k", "f", "AT", 5, "CLEAR") == "ERR syntax error"
    assert wire.error("MEM.INVALIDATE", "k", "f", "NOW") == "ERR unexpected argument 'NOW'"
    wire("MEM.CREATE", "v", "MODE", "VECTOR", "DIM", 2)
    assert wire.error("MEM.FACT", "v", "s", "p", "o") == "ERR a VECTOR-mode index needs a vector on every record"
    assert (
        wire.error("MEM.FACTS", "v", "TEXT", "o")
        == "ERR this memory index does not index text; create it with MODE SEARCH or MODE HYBRID"
    )


def test_stating_it_again(wire: Wire, clock: Clock) -> None:
    """The same id, the first valid_at and updated_at, the higher confidence; what the words name is replaced."""
    made = wire("MEM.FACT", "k", "s", "p", "o", "CONFIDENCE", 0.5, "QUOTE", "q", "META", "a", 1)
    clock.advance(HOUR)
    assert wire("MEM.FACT", "k", "S ", "p.", "o", "CONFIDENCE", 0.4, "ID", "x", "VALIDAT", 5) == made
    shown = wire("MEM.GET", "k", made, "WITHMETA")
    assert (shown[b"created_at"], shown[b"updated_at"]) == (JUNE, JUNE)
    found = facts(wire)[0]
    assert (found["confidence"], found["valid_at"], found["quote"]) == (0.5, JUNE, b"q")
    assert wire("MEM.FACT", "k", "s", "p", "o", "QUOTE", "r", "META", "b", 2, "TAGS", 1, "t", "TTL", 9) == made
    found = facts(wire)[0]
    assert (found["confidence"], found["valid_at"], found["quote"]) == (1.0, JUNE, b"r")
    shown = wire("MEM.GET", "k", made, "WITHMETA")
    assert shown[b"meta"] == {b"a": b"1", b"b": b"2"}
    assert (shown[b"tags"], shown[b"pttl"], shown[b"updated_at"]) == ([b"t"], 9000, JUNE)
    assert wire("MEM.CARD", "k") == 1
    assert wire("MEM.FACT", "k", "s", "p", "o", "VALIDUNTIL", "2030-01-01") != made, "another end is another fact"
    assert wire("MEM.FACT", "k", "s", "p", "O") != made, "objects are as written"
    assert wire("MEM.CARD", "k") == 3


def test_validity_comes_and_goes_by_itself(wire: Wire, clock: Clock) -> None:
    wire("MEM.FACT", "k", "s", "p", "o", "ID", "f", "VALIDAT", JUNE + DAY, "VALIDUNTIL", JUNE + 2 * DAY)
    assert (ids(wire), wire("MEM.CARD", "k"), wire("MEM.SEARCH", "k", "o")) == ([], 0, [])
    assert wire("MEM.GET", "k", "f")[b"id"] == b"f", "MEM.GET ignores validity"
    clock.advance(DAY)
    assert (ids(wire), wire("MEM.CARD", "k")) == ([b"f"], 1)
    clock.advance(DAY - 1)
    assert ids(wire) == [b"f"]
    clock.advance(1)
    assert (ids(wire), wire("MEM.CARD", "k")) == ([], 0)
    assert ids(wire, "ASOF", JUNE + DAY) == [b"f"]
    shown = wire("MEM.GET", "k", "f", "WITHFACT")[b"fact"]
    assert [name.decode() for name in shown] == FIELDS
    assert (shown[b"object"], shown[b"valid_until"]) == (b"o", JUNE + 2 * DAY)
    wire("MEM.ADD", "k", "ID", "n", "TEXT", "note")
    assert b"fact" not in wire("MEM.GET", "k", "n", "WITHFACT")
    assert ids(wire, "INVALIDATED") == [], "lifts the test of invalidation only"


def test_superseding(wire: Wire, clock: Clock) -> None:
    wire("MEM.FACT", "k", "s", "lives in", "Rome", "ID", "old")
    clock.advance(DAY)
    assert wire("MEM.FACT", "k", "s", "lives in", "Oslo", "ID", "new", "SUPERSEDES", "old") == b"new"
    assert ids(wire) == [b"new"]
    old, new = facts(wire, "INVALIDATED")
    assert (old["invalid_at"], old["superseded_by"], old["supersedes"]) == (JUNE + DAY, b"new", None)
    assert (new["invalid_at"], new["superseded_by"], new["supersedes"]) == (None, None, b"old")
    assert ids(wire, "ASOF", JUNE + DAY - 1) == [b"old"]
    assert ids(wire, "ASOF", JUNE + DAY) == [b"new"]
    clock.advance(DAY)
    wire("MEM.FACT", "k", "s", "lives in", "Bonn", "ID", "third", "SUPERSEDES", "old")
    old = facts(wire, "INVALIDATED")[0]
    assert (old["invalid_at"], old["superseded_by"]) == (JUNE + DAY, b"third"), "the earlier end stays"


def test_superseding_by_restating(wire: Wire, clock: Clock) -> None:
    wire("MEM.FACT", "k", "s", "p", "a", "ID", "a")
    wire("MEM.FACT", "k", "s", "p", "b", "ID", "b")
    assert wire("MEM.FACT", "k", "s", "p", "b", "SUPERSEDES", "a") == b"b"
    assert ids(wire) == [b"b"]
    assert facts(wire)[0]["supersedes"] == b"a"
    # The superseded one says the same: it is no restatement of itself.
    assert wire("MEM.FACT", "k", "s", "p", "b", "SUPERSEDES", "b", "ID", "c") == b"c"
    assert ids(wire) == [b"c"]


def test_written_over_by_its_id(wire: Wire, clock: Clock) -> None:
    wire("MEM.FACT", "k", "s", "p", "a", "ID", "f", "QUOTE", "q", "META", "m", 1)
    wire("MEM.INVALIDATE", "k", "f")
    clock.advance(DAY)
    assert wire("MEM.FACT", "k", "s", "p", "b", "ID", "f") == b"f"
    found = facts(wire)[0]
    assert (found["object"], found["invalid_at"], found["quote"]) == (b"b", None, None)
    assert (found["created_at"], found["valid_at"]) == (JUNE, JUNE + DAY)
    assert wire("MEM.GET", "k", "f", "WITHMETA")[b"meta"] == {b"m": b"1"}
    assert wire("MEM.FACT", "k", "s", "p", "a") != b"f", "what it said before is nobody's now"


def test_invalidate(wire: Wire, clock: Clock) -> None:
    wire("MEM.FACT", "k", "s", "p", "o", "ID", "f")
    wire("MEM.ADD", "k", "ID", "n", "TEXT", "note")
    clock.advance(DAY)
    assert wire("MEM.INVALIDATE", "k", "absent") == 0
    assert wire("MEM.INVALIDATE", "k", "n") == 0
    assert wire("MEM.INVALIDATE", "k", "f") == 1
    assert wire("MEM.INVALIDATE", "k", "f") == 0
    assert ids(wire) == []
    assert facts(wire, "INVALIDATED")[0]["invalid_at"] == JUNE + DAY
    assert wire("MEM.INVALIDATE", "k", "f", "AT", JUNE + HOUR) == 1
    assert wire("MEM.INVALIDATE", "k", "f", "AT", JUNE + HOUR) == 0
    assert ids(wire, "ASOF", JUNE + HOUR - 1) == [b"f"]
    assert ids(wire, "ASOF", JUNE + HOUR) == []
    assert wire("MEM.INVALIDATE", "k", "f", "CLEAR") == 1
    assert wire("MEM.INVALIDATE", "k", "f", "CLEAR") == 0
    assert ids(wire) == [b"f"]
    assert wire("MEM.INVALIDATE", "k", "f", "AT", JUNE + 2 * DAY) == 1, "an end to come"
    assert ids(wire) == [b"f"]
    assert wire("MEM.FACT", "k", "s", "p", "o") == b"f", "still what is said"
    clock.advance(DAY)
    assert ids(wire) == []


def test_clear_where_it_was_said_again(wire: Wire, clock: Clock) -> None:
    wire("MEM.FACT", "k", "s", "p", "o", "ID", "f")
    wire("MEM.INVALIDATE", "k", "f")
    assert wire("MEM.FACT", "k", "s", "p", "o", "ID", "g") == b"g"
    assert wire.error("MEM.INVALIDATE", "k", "f", "CLEAR") == "ERR fact 'g' says the same"
    assert wire.error("MEM.INVALIDATE", "k", "f", "AT", JUNE + DAY) == "ERR fact 'g' says the same"
    wire("MEM.DEL", "k", "g")
    assert wire("MEM.INVALIDATE", "k", "f", "CLEAR") == 1


def test_what_was_known(wire: Wire, clock: Clock) -> None:
    """KNOWNAT leaves out what was written, and invalidated, later; a back-dated AT is known from then."""
    wire("MEM.FACT", "k", "s", "p", "a", "ID", "a", "VALIDAT", JUNE - 10 * DAY)
    clock.advance(DAY)
    wire("MEM.FACT", "k", "s", "p", "b", "ID", "b", "AT", JUNE - DAY, "SUPERSEDES", "a")
    clock.advance(DAY)
    assert ids(wire, "ASOF", JUNE - 5 * DAY) == [b"a"]
    assert ids(wire, "ASOF", JUNE - 5 * DAY, "KNOWNAT", JUNE - DAY) == []
    assert ids(wire, "KNOWNAT", JUNE - DAY) == [b"b"]
    assert ids(wire, "KNOWNAT", JUNE - DAY, "INVALIDATED") == [b"b"]
    assert ids(wire, "KNOWNAT", JUNE, "INVALIDATED") == [b"a", b"b"]
    assert ids(wire, "KNOWNAT", JUNE - DAY - 1) == []


def test_facts_are_listed_by_valid_at_then_id(wire: Wire) -> None:
    for name, day in (("c", 1), ("a", 2), ("b", 1), ("d", 0)):
        wire("MEM.FACT", "k", "s", "p", name, "ID", name, "VALIDAT", JUNE - 10 * DAY + day * DAY)
    assert ids(wire) == [b"d", b"b", b"c", b"a"]
    total, page = wire("MEM.FACTS", "k", "LIMIT", 2, "OFFSET", 1)
    assert (total, [each[b"id"] for each in page]) == (4, [b"b", b"c"])
    assert wire("MEM.FACTS", "k", "OFFSET", 9) == [4, []]


def test_facts_by_words_and_entity(wire: Wire) -> None:
    wire("MEM.FACT", "k", "alice", "likes", "running shoes", "ID", "1")
    wire("MEM.FACT", "k", "bob", "works at", "Netflix", "TYPE", "ORG", "ID", "2")
    wire("MEM.FACT", "k", "netflix", "streams", "shoes", "ID", "3")
    wire("MEM.ADD", "k", "TEXT", "a note of shoes")
    assert ids(wire, "TEXT", "shoe run") == [b"1", b"3"], "any of the words, stemmed"
    assert ids(wire, "TEXT", "the zebra") == []
    assert ids(wire, "ENTITY", " NETFLIX ") == [b"2", b"3"]
    assert ids(wire, "ENTITY", "netflix", "TEXT", "shoes") == [b"3"]
    assert ids(wire, "ENTITY", "alice") == [b"1"]
    assert ids(wire, "ENTITY", "absent") == []
    assert ids(wire, "ENTITY", "netflix", "KNOWNAT", JUNE) == [b"2", b"3"]
    assert ids(wire, "ENTITY", "netflix", "ASOF", JUNE) == [b"2", b"3"]


def test_facts_are_records(wire: Wire, clock: Clock) -> None:
    """Filters, tags, scan, list, search and explanations work on them; deadlines take them away."""
    wire("MEM.FACT", "k", "alice", "likes", "tea", "ID", "f", "CONFIDENCE", 0.5, "TAGS", 1, "t", "TTL", 60)
    wire("MEM.ADD", "k", "ID", "n", "TEXT", "tea")
    for clause in (
        ("@kind", "EQ", "fact"),
        ("@subject", "EQ", "alice"),
        ("@predicate", "PREFIX", "lik"),
        ("@object", "IN", "tea,coffee"),
        ("@confidence", "LTE", "0.5"),
        ("@valid_at", "GTE", "2026-01-01"),
    ):
        assert [hit[b"id"] for hit in wire("MEM.SEARCH", "k", "tea", "FILTER", *clause)] == [b"f"], clause
    assert wire("MEM.EXPLAIN", "k", "f", "TEXT", "tea")[b"rank"] == 2
    assert [each[b"id"] for each in wire("MEM.LIST", "k", "TAGS", "ANY", 1, "t")] == [b"f"]
    clock.advance(60_000)
    assert ids(wire) == []
    assert wire("MEM.FACT", "k", "alice", "likes", "tea") == b"1", "an expired fact says nothing"


def test_vectors(server: Running, wire: Wire) -> None:
    """As MEM.ADD's: kept where the text is the same, replaced where one is given, else gone."""
    wire("MEM.CREATE", "h", "DIM", 2)
    wire("MEM.FACT", "h", "s", "p", "o", "ID", "f", "FVEC", 2, 3, 4)
    wire("MEM.FACT", "h", "s", "p", "o", "QUOTE", "q")
    blob = wire("MEM.GET", "h", "f", "WITHVEC")[b"vector"]
    assert np.frombuffer(blob, "<f4").tolist() == pytest.approx([0.6, 0.8])
    wire("MEM.FACT", "h", "s", "p", "o", "FVEC", 2, 1, 0)
    assert wire("MEM.GET", "h", "f", "WITHVEC", "FLOATS")[b"vector"] == [1.0, 0.0]
    wire("MEM.FACT", "h", "s", "p", "other", "ID", "f")
    assert wire("MEM.GET", "h", "f", "WITHVEC", "FLOATS")[b"vector"] is None


def test_events(server: Running, wire: Wire) -> None:
    wire("MEM.FACT", "k", "s", "p", "a", "ID", "a")
    listener = server.wire(3)
    listener("SUBSCRIBE", "__mem__:k")
    wire("MEM.FACT", "k", "s", "p", "Acme", "TYPE", "ORG", "ID", "b", "SUPERSEDES", "a", "TTL", 5)
    wire("MEM.FACT", "k", "s", "p", "Acme", "TYPE", "ORG")
    wire("MEM.INVALIDATE", "k", "b")
    wire("MEM.FACT", "k", "s", "p", "end", "ID", "c")
    heard = [listener.read()[2] for _ in range(6)]
    assert heard == [b"entity acme", b"fact b", b"ttl b", b"invalidate a", b"invalidate b", b"fact c"]


def test_resp2(server: Running, wire: Wire) -> None:
    """Flat maps, numbers in shortest form, nil where there is none."""
    wire("MEM.FACT", "k", "s", "p", "o", "ID", "f", "CONFIDENCE", 0.5)
    total, (found,) = server.wire(2)("MEM.FACTS", "k")
    pairs = flat_pairs(found)
    assert (total, [name.decode() for name in pairs]) == (1, FIELDS)
    assert (pairs[b"confidence"], pairs[b"quote"], float(pairs[b"valid_at"])) == (b"0.5", None, JUNE)


def test_a_transaction_holds_it_all(wire: Wire) -> None:
    wire("MULTI")
    wire("MEM.FACT", "k", "s", "p", "o", "TYPE", "ORG", "ID", "f")
    wire("MEM.INVALIDATE", "k", "f")
    wire("MEM.FACTS", "k", "INVALIDATED")
    made, changed, (total, _) = wire("EXEC")
    assert (made, changed, total) == (b"f", 1, 1)
