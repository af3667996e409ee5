"""The shape of every reply of SPEC sections 2 to 5: which type, which fields in which order, how numbers are written.

Whole replies are compared byte by byte where nothing in them is the server's choice; `b` below is a bulk string.
"""

from __future__ import annotations

import re
import struct
from typing import Any

import pytest
from harness import JUNE, Agent, Clock, Double, Running, Simple, Wire, Word, flat_pairs, number
from oracle import cid

RECORD = [b"id", b"text", b"importance", b"created_at", b"updated_at", b"pttl", b"cid"]
HIT = [b"id", b"score", b"text", b"importance", b"created_at", b"updated_at", b"pttl"]
SIGNALS = [b"keyword", b"vector", b"recency", b"importance"]
AT = ("AT", JUNE)

DECIMAL = re.compile(rb"-?(0|[1-9][0-9]*)\.[0-9]{4,6}")
SHORTEST = re.compile(rb"-?(0|[1-9][0-9]*)(\.[0-9]*[1-9])?(e-?[0-9]+)?")


def b(*values: str | bytes) -> bytes:
    data = [value.encode() if isinstance(value, str) else value for value in values]
    return b"".join(b"$%d\r\n%s\r\n" % (len(value), value) for value in data)


def array(*parts: bytes) -> bytes:
    return b"*%d\r\n" % len(parts) + b"".join(parts)


@pytest.fixture
def two(agent: Agent) -> Agent:
    """Two records in `ns`: `full` has everything, `bare` a text alone."""
    agent("MEM.CREATE", "ns", "DIM", 2)
    words = ("META", "rank", 7, "META", "kind", "x y", "TAGS", 2, "red", "blue", "IMPORTANCE", "0.85", "TTL", 60)
    agent("MEM.ADD", "ns", "ID", "full", "TEXT", "alpha beta", "FVEC", 2, 3, 4, *words, *AT)
    agent("MEM.ADD", "ns", "ID", "bare", "TEXT", "alpha gamma", *AT)
    return agent


def is_double(value: Any, form: str) -> bool:
    """A RESP3 double; on RESP2 a bulk string in the shortest form."""
    if form == "resp3":
        return isinstance(value, Double)
    return isinstance(value, bytes) and SHORTEST.fullmatch(value) is not None


# -- memories


def test_memories_answer_ok_and_integers(agent: Agent) -> None:
    assert agent.wire.raw("MEM.CREATE", "ns", "DIM", 2) == b"+OK\r\n"
    assert agent.wire.raw("MEM.CONFIG", "ns", "K1", "1.2") == b"+OK\r\n"
    assert agent.wire.raw("MEM.CARD", "ns") == b":0\r\n"


def test_info(two: Agent) -> None:
    info = two.map("MEM.INFO", "ns")
    assert list(info) == [
        *(b"mode", b"dim", b"metric", b"weights", b"halflife", b"fusion", b"lang", b"k1", b"b"),
        *(b"records", b"vectors", b"terms", b"avg_doc_len", b"bytes", b"tier", b"pending", b"next_id"),
        *(b"created_at", b"updated_at"),
    ]
    assert list(info[b"weights"]) == SIGNALS
    assert [number(weight) for weight in info[b"weights"].values()] == [0.35, 0.5, 0.1, 0.05]
    assert all(is_double(weight, two.form) for weight in info[b"weights"].values())
    assert (info[b"mode"], info[b"dim"], info[b"metric"], info[b"halflife"]) == (b"HYBRID", 2, b"COSINE", 604800)
    assert (info[b"fusion"], info[b"lang"]) == (b"LINEAR", b"english")
    counts = [info[name] for name in (b"records", b"vectors", b"terms", b"pending", b"next_id")]
    assert counts == [2, 1, 3, 0, 1]
    assert all(is_double(info[name], two.form) for name in (b"k1", b"b", b"avg_doc_len"))
    assert number(info[b"avg_doc_len"]) == 2.0
    assert isinstance(info[b"bytes"], int) and info[b"bytes"] > 0


def test_info_of_a_search_memory(agent: Agent) -> None:
    agent("MEM.CREATE", "ns", "MODE", "SEARCH", "LANG", "NONE")
    info = agent.map("MEM.INFO", "ns")
    assert (info[b"mode"], info[b"dim"], info[b"vectors"], info[b"lang"]) == (b"SEARCH", 0, 0, b"none")
    assert number(info[b"avg_doc_len"]) == 0.0


def test_config(two: Agent) -> None:
    """MEM.CREATE's options, lower-case, as they stand."""
    two("MEM.CONFIG", "ns", "WEIGHTS", 1, 0, 0, "0.5", "HALFLIFE", 60, "FUSION", "RRF", "K1", "1.2", "B", "0.75")
    config = two.map("MEM.CONFIG", "ns")
    names = [b"mode", b"dim", b"metric", b"weights", b"halflife", b"fusion", b"lang", b"k1", b"b"]
    assert [name for name in config if name in names] == names
    assert (config[b"halflife"], config[b"fusion"]) == (60, b"RRF")
    assert (number(config[b"k1"]), number(config[b"b"])) == (1.2, 0.75)


def test_defaults_of_new_memories_are_settings(agent: Agent) -> None:
    agent("CONFIG", "SET", "mem-default-weights", "1 2 3 4", "mem-recency-halflife", "60")
    agent("MEM.CREATE", "ns", "DIM", 2)
    info = agent.map("MEM.INFO", "ns")
    assert [number(weight) for weight in info[b"weights"].values()] == [1, 2, 3, 4]
    assert info[b"halflife"] == 60


# -- records


def test_writes_answer_ids_and_counts(agent: Agent) -> None:
    raw = agent.wire.raw
    agent("MEM.CREATE", "ns", "DIM", 2)
    assert raw("MEM.ADD", "ns", "TEXT", "t") == b("1")
    assert raw("MEM.ADD", "ns", "ID", "x", "TEXT", "t") == b("x")
    assert raw("MEM.MADD", "ns", 2, "RECORD", "TEXT", "t", "RECORD", "ID", "y", "TEXT", "t") == array(b("2"), b("y"))
    assert raw("MEM.SETMETA", "ns", "x", "f", 1, "g", 2) == b":2\r\n"
    assert raw("MEM.DELMETA", "ns", "x", "f", "h") == b":1\r\n"
    assert raw("MEM.EXPIRE", "ns", "x", 5) == b":1\r\n"
    assert raw("MEM.EXPIRE", "ns", "nobody", 5) == b":0\r\n"
    assert raw("MEM.SCAN", "ns", 0, "FILTER", "@id", "EQ", "x") == array(b("0"), array(b("x")))
    assert raw("MEM.FORGET", "ns", "FILTER", "@id", "EQ", "x", "DRYRUN") == array(b":1\r\n", array(b("x")))
    assert raw("MEM.FORGET", "ns", "FILTER", "@id", "EQ", "x") == array(b":1\r\n", array(b("x")))
    assert raw("MEM.FORGET", "ns", "FILTER", "@id", "EQ", "x") == array(b":0\r\n", array())
    assert raw("MEM.DEL", "ns", "1", "y", "nobody", "y") == b":2\r\n"


def test_nothing_is_null_or_empty(two: Agent) -> None:
    null = b"_\r\n" if two.form == "resp3" else b"$-1\r\n"
    assert two.wire.raw("MEM.GET", "ns", "nobody") == null
    assert two.wire.raw("MEM.MGET", "ns", "nobody", "no one") == array(null, null)
    assert two.wire.raw("MEM.LIST", "ns", "FILTER", "@id", "EQ", "nobody") == array()
    assert two.wire.raw("MEM.SEARCH", "ns", "unknown") == array()


def test_get(two: Agent) -> None:
    record = two.map("MEM.GET", "ns", "full")
    assert list(record) == [*RECORD, b"tags"]
    assert (record[b"id"], record[b"text"], record[b"tags"]) == (b"full", b"alpha beta", [b"red", b"blue"])
    assert record[b"cid"] == cid(b"alpha beta")
    numbers = [number(record[name]) for name in (b"importance", b"created_at", b"updated_at", b"pttl")]
    assert numbers == [0.85, JUNE, JUNE, 60_000]


def test_get_leaves_out_what_is_not_there(two: Agent) -> None:
    assert list(two.map("MEM.GET", "ns", "bare")) == RECORD
    record = two.map("MEM.GET", "ns", "bare", "WITHMETA", "WITHVEC")
    assert list(record)[: len(RECORD) + 1] == [*RECORD, b"meta"]
    assert (record[b"meta"], record.get(b"vector"), number(record[b"pttl"])) == ({}, None, -1)


def test_get_with_everything(two: Agent) -> None:
    record = two.map("MEM.GET", "ns", "full", "WITHVEC", "WITHMETA")
    assert list(record) == [*RECORD, b"tags", b"meta", b"vector"]
    assert list(record[b"meta"].items()) == [(b"rank", b"7"), (b"kind", b"x y")]
    assert record[b"vector"] == struct.pack("<2f", 0.6, 0.8), "normalised under COSINE"
    without = [name for name in RECORD if name != b"text"]
    assert list(two.map("MEM.GET", "ns", "full", "NOTEXT")) == [*without, b"tags"]


def test_get_floats(two: Agent) -> None:
    vector = two.map("MEM.GET", "ns", "full", "WITHVEC", "FLOATS")[b"vector"]
    assert isinstance(vector, list)
    assert all(is_double(x, two.form) for x in vector)
    assert struct.pack("<2f", *map(float, vector)) == struct.pack("<2f", 0.6, 0.8), "no bit is lost"


def test_the_numbers_of_a_record(two: Agent) -> None:
    """Doubles, in RESP2 as bulk strings in the shortest form (conformance row B3: importance "0.85", pttl "-1")."""
    record = two.map("MEM.GET", "ns", "bare")
    assert is_double(record[b"importance"], two.form)
    if two.form == "resp3":
        assert record[b"importance"].raw == b"0.5"
        assert [record[name] for name in (b"created_at", b"updated_at", b"pttl")] == [JUNE, JUNE, -1]
    else:
        assert record[b"importance"] == b"0.5"
        assert [record[name] for name in (b"created_at", b"updated_at", b"pttl")] == [b"%d" % JUNE, b"%d" % JUNE, b"-1"]


def test_mget_and_list_answer_maps_as_get(two: Agent) -> None:
    bare, full = (two("MEM.GET", "ns", name) for name in ("bare", "full"))
    assert two("MEM.MGET", "ns", "full", "nobody", "bare", "full") == [full, None, bare, full]
    assert two("MEM.LIST", "ns") == [bare, full]
    flags = ("NOTEXT", "WITHMETA", "WITHVEC", "FLOATS")
    assert two("MEM.LIST", "ns", *flags) == [two("MEM.GET", "ns", name, *flags) for name in ("bare", "full")]


# -- hits: RESP2 arrays


@pytest.fixture
def plain(wire: Wire) -> Wire:
    """The two records of `two`, for the array form."""
    wire("MEM.CREATE", "ns", "DIM", 2)
    words = ("META", "rank", 7, "META", "kind", "x y", "TAGS", 2, "red", "blue", "IMPORTANCE", "0.85", "TTL", 60)
    wire("MEM.ADD", "ns", "ID", "full", "TEXT", "alpha beta", "FVEC", 2, 3, 4, *words, *AT)
    wire("MEM.ADD", "ns", "ID", "bare", "TEXT", "alpha gamma", *AT)
    return wire


FULL_VECTOR = struct.pack("<2f", 0.6, 0.8)
META = array(b("rank"), b("7"), b("kind"), b("x y"))


@pytest.mark.parametrize(
    ("flags", "full"),
    [
        ("", array(b("full"), b("alpha beta"))),
        ("NOTEXT", array(b("full"))),
        ("WITHMETA", array(b("full"), b("alpha beta"), META)),
        ("WITHTAGS", array(b("full"), b("alpha beta"), array(b("red"), b("blue")))),
        ("WITHVEC", array(b("full"), b("alpha beta"), b(FULL_VECTOR))),
        ("NOTEXT WITHVEC WITHTAGS WITHMETA", array(b("full"), META, array(b("red"), b("blue")), b(FULL_VECTOR))),
    ],
)
def test_array_hits_hold_what_was_asked_for(plain: Wire, flags: str, full: bytes) -> None:
    assert plain.raw("MEM.SEARCH", "ns", "beta", *flags.split()) == array(full)
    assert plain.raw("MEM.VSEARCH", "ns", "FVEC", 2, 1, 0, *flags.split()) == array(full)
    assert plain.raw("MEM.QUERY", "ns", "TEXT", "beta", *flags.split()) == array(full)


def test_array_hits_show_what_is_missing(plain: Wire) -> None:
    """A missing vector is nil; no metadata and no tags are empty arrays."""
    expected = array(array(b("bare"), b("alpha gamma"), array(), array(), b"$-1\r\n"))
    assert plain.raw("MEM.SEARCH", "ns", "gamma", "WITHVEC", "WITHTAGS", "WITHMETA") == expected


@pytest.mark.parametrize(
    ("query", "names"),
    [
        ("MEM.SEARCH ns beta", [b"score", b"keyword"]),
        ("MEM.VSEARCH ns FVEC 2 1 0", [b"score", b"vector"]),
        ("MEM.QUERY ns TEXT beta FVEC 2 1 0", [b"score", *SIGNALS]),
        ("MEM.QUERY ns TEXT beta", [b"score", b"keyword", b"recency", b"importance"]),
        ("MEM.QUERY ns FVEC 2 1 0", [b"score", b"vector", b"recency", b"importance"]),
        ("MEM.QUERY ns TEXT beta FVEC 2 1 0 FUSION RRF", [b"score", *SIGNALS]),
    ],
)
def test_array_scores(plain: Wire, query: str, names: list[bytes]) -> None:
    """What the query does not use is left out; keyword and vector are the raw BM25 score and similarity."""
    (hit,) = plain(*query.split(), "WITHSCORES")
    scores = flat_pairs(hit[2])
    assert list(scores) == names
    assert all(DECIMAL.fullmatch(value) for value in scores.values()), scores
    expected = {b"vector": 0.6, b"recency": 1.0, b"importance": 0.85}
    for name in set(expected) & set(scores):
        assert float(scores[name]) == pytest.approx(expected[name], abs=5e-5)


def test_array_scores_leave_out_what_the_record_lacks(plain: Wire) -> None:
    hits = {
        hit[0]: flat_pairs(hit[1]) for hit in plain(*"MEM.QUERY ns TEXT gamma FVEC 2 1 0 NOTEXT WITHSCORES".split())
    }
    assert list(hits[b"bare"]) == [b"score", b"keyword", b"recency", b"importance"]
    assert list(hits[b"full"]) == [b"score", b"vector", b"recency", b"importance"]


def test_array_fields_keep_their_order_with_explain(plain: Wire) -> None:
    flags = ("EXPLAIN", "WITHSCORES", "WITHVEC", "WITHTAGS", "WITHMETA")
    (hit,) = plain("MEM.QUERY", "ns", "TEXT", "beta", *flags)
    assert hit[:2] == [b"full", b"alpha beta"]
    assert flat_pairs(hit[2]) == {b"rank": b"7", b"kind": b"x y"}
    assert hit[3] == [b"red", b"blue"]
    assert hit[4] == FULL_VECTOR
    assert hit[5][0] == b"score"
    assert hit[6][0] == b"keyword"
    assert len(hit) == 7


# -- hits: maps


#: For the tests of hits as maps.
MAPS = pytest.mark.parametrize("agent", ["map", "resp3"], indirect=True)


@MAPS
@pytest.mark.parametrize(
    "query", ["MEM.SEARCH ns beta", "MEM.VSEARCH ns FVEC 2 1 0", "MEM.QUERY ns TEXT beta FVEC 2 1 0"]
)
def test_map_hits(two: Agent, query: str) -> None:
    command = query.split()
    (hit,) = two.hits(*command)
    assert hit.pairs is not None
    assert list(hit.pairs) == [*HIT, b"tags"]
    (hit,) = two.hits(*command, "WITHMETA", "WITHVEC", "NOTEXT")
    assert hit.pairs is not None
    assert list(hit.pairs) == [name for name in HIT if name != b"text"] + [b"tags", b"meta", b"vector"]
    assert (hit.meta, hit.vector) == ({b"rank": b"7", b"kind": b"x y"}, FULL_VECTOR)
    parts = {
        "MEM.SEARCH": [b"keyword_score"],
        "MEM.VSEARCH": [b"vector_score"],
        "MEM.QUERY": [b"keyword_score", b"vector_score", b"recency_score"],
    }[command[0]]
    (hit,) = two.hits(*command, "WITHSCORES")
    assert hit.pairs is not None
    assert list(hit.pairs) == [*HIT, b"tags", *parts]
    numbers = [b"score", b"importance", *parts]
    assert all(is_double(hit.pairs[name], two.form) for name in numbers), hit.pairs
    assert [number(hit.pairs[name]) for name in (b"created_at", b"updated_at", b"pttl")] == [JUNE, JUNE, 60_000]


@MAPS
def test_map_hits_leave_out_what_is_not_there(two: Agent) -> None:
    (hit,) = two.hits("MEM.SEARCH", "ns", "gamma", "WITHMETA", "WITHVEC")
    assert hit.pairs is not None
    assert b"tags" not in hit.pairs
    assert (hit.meta, hit.vector) == ({}, None)


def test_resp2_maps_are_flat_pairs_in_shortest_form(wire: Wire) -> None:
    wire("CONFIG", "SET", "mem-hit-format", "map")
    wire("MEM.CREATE", "ns", "DIM", 2)
    wire("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha", "FVEC", 2, 1, 0, *AT)
    expected = ["id", "a", "score", "1", "text", "alpha", "importance", "0.5"]
    expected += ["created_at", str(JUNE), "updated_at", str(JUNE), "pttl", "-1"]
    assert wire.raw("MEM.VSEARCH", "ns", "FVEC", 2, 2, 0) == array(array(*map(b, expected)))


@pytest.mark.parametrize("agent", ["resp3"], indirect=True)
def test_resp3_hits_are_maps_whatever_the_setting(two: Agent) -> None:
    for setting in ("array", "map"):
        two("CONFIG", "SET", "mem-hit-format", setting)
        (hit,) = two("MEM.SEARCH", "ns", "beta")
        assert isinstance(hit, dict)


def test_the_setting_holds_for_resp2_connections_at_once(server: Running) -> None:
    two, three = server.wire(2), server.wire(3)
    two("MEM.CREATE", "ns", "MODE", "SEARCH")
    two("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha")
    assert two("MEM.SEARCH", "ns", "alpha") == [[b"a", b"alpha"]]
    three("CONFIG", "SET", "mem-hit-format", "map")
    assert two("MEM.SEARCH", "ns", "alpha")[0][:3] == [b"id", b"a", b"score"]
    two.close()
    three.close()


# -- FLOATS, WITHSTATS, EXPLAIN


def test_hits_with_floats(two: Agent) -> None:
    (hit,) = two.hits("MEM.SEARCH", "ns", "beta", "WITHVEC", "FLOATS")
    assert [number(x) for x in hit.vector] == pytest.approx([0.6, 0.8], abs=1e-6)


@pytest.mark.parametrize(
    "query", ["MEM.SEARCH ns alpha", "MEM.VSEARCH ns FVEC 2 1 0", "MEM.QUERY ns TEXT alpha FVEC 2 1 0"]
)
def test_withstats(two: Agent, query: str) -> None:
    hits, stats = two(*query.split(), "WITHSTATS", "FILTER", "@id", "EQ", "full")
    assert [hit.id for hit in two.as_hits(hits)] == [b"full"]
    stats = two.as_map(stats)
    assert list(stats) == [
        *(b"records", b"matched", b"filtered", b"below_minscore", b"returned", b"signals", b"tier", b"usec")
    ]
    matched = 1 if "VSEARCH" in query else 2
    counts = [stats[name] for name in (b"records", b"matched", b"filtered", b"below_minscore", b"returned")]
    assert counts == [2, matched, matched - 1, 0, 1]
    assert isinstance(stats[b"usec"], int) and stats[b"usec"] >= 0
    assert isinstance(stats[b"signals"], list)


def test_withstats_of_nothing(two: Agent) -> None:
    hits, stats = two("MEM.SEARCH", "ns", "unknown", "WITHSTATS")
    assert hits == []
    counts = {name: value for name, value in two.as_map(stats).items() if isinstance(value, int)}
    assert (counts[b"records"], counts[b"matched"], counts[b"returned"]) == (2, 0, 0)


def explained(agent: Agent, explain: dict[bytes, Any]) -> dict[str, dict[str, float]]:
    """The signals of an EXPLAIN map as numbers."""
    parts = {}
    for name in SIGNALS:
        if name in explain:
            part = explain[name] if isinstance(explain[name], dict) else flat_pairs(explain[name])
            assert list(part) == [b"raw", b"scaled", b"rank", b"weight", b"contribution"]
            parts[name.decode()] = {key.decode(): number(value) for key, value in part.items()}
    return parts


@pytest.mark.parametrize("fusion", ["LINEAR", "RRF"])
def test_explain(two: Agent, fusion: str) -> None:
    query = ("MEM.QUERY", "ns", "TEXT", "alpha beta", "FVEC", 2, 3, 4, "FUSION", fusion, "WITHSCORES", "EXPLAIN")
    full, bare = two.hits(*query)
    assert (full.id, bare.id) == (b"full", b"bare")
    for hit, names in ((full, SIGNALS), (bare, [name for name in SIGNALS if name != b"vector"])):
        assert hit.explain is not None and hit.score is not None
        assert list(hit.explain) == [*names, b"terms", b"tier"]
        parts = explained(two, hit.explain)
        exact = 1e-12 if two.form == "resp3" else 3e-4
        assert sum(part["contribution"] for part in parts.values()) == pytest.approx(hit.score, abs=exact)
        assert [part["weight"] for part in parts.values()] == pytest.approx(
            [{"keyword": 0.35, "vector": 0.5, "recency": 0.1, "importance": 0.05}[name] for name in parts]
        )
        if fusion == "LINEAR":
            for part in parts.values():
                assert part["contribution"] == pytest.approx(part["weight"] * part["scaled"], abs=exact)
                assert 0 <= part["scaled"] <= 1
        else:
            for part in parts.values():
                assert part["contribution"] == pytest.approx(part["weight"] / (60 + part["rank"]), abs=exact)
    assert full.explain is not None
    parts = explained(two, full.explain)
    assert [parts[name]["rank"] for name in parts] == [1, 1, 1, 1]
    assert parts["importance"]["raw"] == pytest.approx(0.85, abs=1e-4)
    assert parts["vector"]["raw"] == pytest.approx(1.0, abs=1e-4)
    assert bare.explain is not None
    assert explained(two, bare.explain)["keyword"]["rank"] == 2
    assert explained(two, bare.explain)["recency"]["rank"] == 1, "equal values share the best rank"


def test_explain_terms(two: Agent) -> None:
    (hit, _) = two.hits("MEM.SEARCH", "ns", "beta alpha unknown", "EXPLAIN", "WITHSCORES")
    assert hit.explain is not None
    terms = [term if isinstance(term, dict) else flat_pairs(term) for term in hit.explain[b"terms"]]
    assert all(list(term) == [b"term", b"idf", b"tf", b"part"] for term in terms)
    assert {term[b"term"] for term in terms} == {b"alpha", b"beta"}
    assert sum(number(term[b"part"]) for term in terms) == pytest.approx(hit.keyword, abs=3e-4)


# -- MEM.EXPLAIN


def test_mem_explain_shows_rank_and_parts(two: Agent) -> None:
    query: tuple[Word, ...] = ("TEXT", "alpha beta", "FVEC", 2, 3, 4)
    for rank, name in enumerate(("full", "bare"), 1):
        shown = two.map("MEM.EXPLAIN", "ns", name, *query)
        assert number(shown[b"rank"]) == rank
        assert b"reason" not in shown
    by_id = {hit.id: hit for hit in two.hits("MEM.QUERY", "ns", *query, "EXPLAIN", "WITHSCORES")}
    shown = two.map("MEM.EXPLAIN", "ns", "full", *query)
    assert number(shown[b"score"]) == pytest.approx(by_id[b"full"].score, abs=1e-4)


@pytest.mark.parametrize(
    ("name", "words", "reason"),
    [
        ("nobody", "TEXT alpha", b"absent"),
        ("bare", "TEXT alpha FILTER @id EQ bare FILTER @id EQ full", b"filter 2"),
        ("bare", "TEXT beta", b"no query word and no vector"),
        ("bare", "FVEC 2 1 0", b"no query word and no vector"),
        ("bare", "TEXT alpha MINSCORE 5", b"under MINSCORE"),
        ("bare", "TEXT alpha TOPK 1", b"beyond TOPK"),
        ("bare", "TEXT beta FILTER @id EQ full MINSCORE 5 TOPK 1", b"filter 1"),
    ],
)
def test_mem_explain_says_why_not(two: Agent, name: str, words: str, reason: bytes) -> None:
    """The first that holds."""
    assert two.map("MEM.EXPLAIN", "ns", name, *words.split())[b"reason"] == reason


def test_mem_explain_tells_expired_from_deleted(two: Agent, clock: Clock) -> None:
    two("MEM.ADD", "ns", "ID", "gone", "TEXT", "alpha")
    two("MEM.DEL", "ns", "gone")
    clock.advance(60_000)
    assert two.map("MEM.EXPLAIN", "ns", "gone", "TEXT", "alpha")[b"reason"] == b"absent"
    assert two.map("MEM.EXPLAIN", "ns", "full", "TEXT", "alpha")[b"reason"] == b"expired"


# -- inside EXEC, and on the bare wire


def test_replies_inside_exec_are_the_same(two: Agent) -> None:
    commands: list[tuple[Word, ...]] = [
        ("MEM.INFO", "ns"),
        ("MEM.GET", "ns", "full", "WITHMETA", "WITHVEC"),
        ("MEM.LIST", "ns"),
        ("MEM.SCAN", "ns", 0),
        ("MEM.SEARCH", "ns", "alpha", "WITHSCORES"),
        ("MEM.VSEARCH", "ns", "FVEC", 2, 1, 0, "EXPLAIN"),
        ("MEM.QUERY", "ns", "TEXT", "alpha", "FVEC", 2, 1, 0, "WITHSCORES", "EXPLAIN"),
        ("MEM.GET", "ns", "nobody"),
    ]
    alone = two.wire.pipeline(*commands)
    two.wire.pipeline(("MULTI",), *commands)
    assert two.wire("EXEC") == alone


def test_queued_commands_answer_queued(two: Agent) -> None:
    assert two("MULTI") == Simple("OK")
    assert two("MEM.CARD", "ns") == Simple("QUEUED")
    assert two("EXEC") == [2]


def test_a_bad_command_while_queueing_aborts(two: Agent) -> None:
    two("MULTI")
    assert two("MEM.DEL", "ns", "full") == "QUEUED"
    assert two.error("MEM.CARD") == "ERR wrong number of arguments for 'mem.card' command"
    assert two.error("EXEC").startswith("EXECABORT")
    assert two("MEM.CARD", "ns") == 2


def test_help_of_the_command_table(wire: Wire) -> None:
    """Every command of sections 2 to 4 is in COMMAND."""
    names = {name.lower() for name in wire("COMMAND", "LIST")}
    memory = "create config info card add madd get mget del setmeta delmeta expire scan list forget".split()
    expected = {b"mem." + name.encode() for name in [*memory, "search", "vsearch", "query", "explain"]}
    assert expected <= names
