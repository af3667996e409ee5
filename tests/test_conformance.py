"""What existing MEM.* clients expect: every row of the conformance page by its name, in every reply format.

The page is input and expected result; `=` there is `agent.error(..) ==` here, `~` is `in`. Where the page and SPEC.md
differ, SPEC.md wins: those rows are at the end.
"""

from __future__ import annotations

import struct

import pytest
import redis
from harness import JUNE, Agent, Clock, Running, number

AT = ("AT", JUNE)
KLYRO = ("K1", "1.2", "B", "0.75")
FIVE = {
    "m1": ("User prefers Lisbon for winter holidays.", "preference", (".9", ".4", ".1")),
    "m2": ("User is currently planning a mountain hiking trip.", "project", (".7", ".2", ".3")),
    "m3": ("User likes quiet beach resorts.", "preference", (".1", ".2", ".9")),
    "m4": ("User previously visited Oslo.", "fact", (".8", ".5", ".1")),
    "m5": ("User is planning Aurora, a Lisbon beach retreat.", "project", (".95", ".35", ".2")),
}


def floats(*values: float) -> bytes:
    """VEC's blob."""
    return struct.pack(f"<{len(values)}f", *values)


@pytest.fixture
def five(agent: Agent) -> Agent:
    """The page's fixture in `ns`, with Klyro's K1 and B."""
    agent("MEM.CREATE", "ns", "DIM", 3, *KLYRO)
    for name, (text, kind, vector) in FIVE.items():
        agent("MEM.ADD", "ns", "ID", name, "TEXT", text, "FVEC", 3, *vector, "META", "type", kind, *AT)
    return agent


@pytest.fixture
def ns(agent: Agent) -> Agent:
    """An empty HYBRID memory of two dimensions in `ns`."""
    agent("MEM.CREATE", "ns", "DIM", 2)
    return agent


def scores(agent: Agent, *words: str | int | bytes) -> dict[str, float]:
    """id -> score in the order of the hits."""
    return {hit.id.decode(): hit.score for hit in agent.hits(*words, "WITHSCORES") if hit.score is not None}


# -- the fixture


def test_fixture_avg_doc_len_is_5_2(five: Agent) -> None:
    assert number(five.map("MEM.INFO", "ns")[b"avg_doc_len"]) == 5.2


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("Lisbon", {"m1": 0.8895, "m5": 0.8236}),
        ("user", {"m4": 0.0961, "m1": 0.0884, "m3": 0.0884, "m2": 0.0819, "m5": 0.0819}),
        ("planning beach", {"m5": 1.6473, "m3": 0.8895, "m2": 0.8236}),
        ("Oslo.", {"m4": 1.5308}),
        (
            "Which mountain activity is the user currently interested in?",
            {"m2": 2.6903, "m4": 0.0961, "m1": 0.0884, "m3": 0.0884, "m5": 0.0819},
        ),
    ],
)
def test_fixture_keyword_scores(five: Agent, query: str, expected: dict[str, float]) -> None:
    got = scores(five, "MEM.SEARCH", "ns", query)
    assert list(got) == list(expected)
    assert got == pytest.approx(expected, abs=5.1e-5)


def test_fixture_vector_scores(five: Agent) -> None:
    got = scores(five, "MEM.VSEARCH", "ns", "FVEC", 3, ".9", ".4", ".1")
    assert list(got) == ["m1", "m5", "m4", "m2", "m3"]
    assert got == pytest.approx({"m1": 1.0, "m5": 0.9935, "m4": 0.9903, "m2": 0.9493, "m3": 0.2832}, abs=5.1e-5)


# -- A. create, info, config


def test_a1_create_and_info(agent: Agent) -> None:
    assert agent("MEM.CREATE", "ns", "DIM", 4) == "OK"
    info = agent.map("MEM.INFO", "ns")
    assert (info[b"mode"], info[b"metric"]) == (b"HYBRID", b"COSINE")
    assert (info[b"dim"], info[b"halflife"], info[b"records"]) == (4, 604800, 0)
    weights = {name.decode(): number(value) for name, value in info[b"weights"].items()}
    assert weights == {"keyword": 0.35, "vector": 0.5, "recency": 0.1, "importance": 0.05}


def test_a2_create_where_a_memory_is(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "TEXT", "t")
    assert ns.error("MEM.CREATE", "ns", "DIM", 2) == "ERR memory index already exists"
    assert ns("MEM.CARD", "ns") == 1


def test_a3_create_without_dim(agent: Agent) -> None:
    expected = "ERR DIM is required for a VECTOR or HYBRID index"
    assert agent.error("MEM.CREATE", "ns", "MODE", "HYBRID") == expected


def test_a4_create_search(agent: Agent) -> None:
    assert agent("MEM.CREATE", "ns", "MODE", "SEARCH") == "OK"
    assert agent.map("MEM.INFO", "ns")[b"dim"] == 0


@pytest.mark.parametrize("dim", [99999, 0])
def test_a5_dim_out_of_range(agent: Agent, dim: int) -> None:
    assert "ERR DIM must be between 1 and mem-max-dim" in agent.error("MEM.CREATE", "ns", "DIM", dim)


def test_a7_dim_on_search(agent: Agent) -> None:
    assert "did you mean MODE HYBRID?" in agent.error("MEM.CREATE", "ns", "MODE", "SEARCH", "DIM", 384)
    assert agent("EXISTS", "ns") == 0


def test_a8_mode_cut_short(agent: Agent) -> None:
    assert agent.error("MEM.CREATE", "ns", "MODE") == "ERR syntax error"


def test_a9_config(ns: Agent) -> None:
    assert ns("MEM.CONFIG", "ns", "WEIGHTS", ".2", ".6", ".1", ".1", "HALFLIFE", 3600) == "OK"
    info = ns.map("MEM.INFO", "ns")
    assert [number(value) for value in info[b"weights"].values()] == [0.2, 0.6, 0.1, 0.1]
    assert info[b"halflife"] == 3600


def test_a10_config_of_what_is_fixed(ns: Agent) -> None:
    assert ns.error("MEM.CONFIG", "ns", "MODE", "SEARCH") == "ERR unexpected argument 'MODE'"


def test_a11_negative_weights(ns: Agent) -> None:
    expected = "ERR WEIGHTS must be finite and non-negative"
    assert ns.error("MEM.CONFIG", "ns", "WEIGHTS", -1, 0, 0, 0) == expected


@pytest.mark.parametrize(
    "command",
    [
        ("MEM.INFO", "ns"),
        ("MEM.CARD", "ns"),
        ("MEM.GET", "ns", "a"),
        ("MEM.DEL", "ns", "a"),
        ("MEM.SEARCH", "ns", "a"),
        ("MEM.SCAN", "ns", 0),
        ("MEM.EXPIRE", "ns", "a", 1),
        ("MEM.SETMETA", "ns", "a", "f", "v"),
    ],
    ids=lambda command: command[0],
)
def test_a13_no_such_key(agent: Agent, command: tuple[str | int, ...]) -> None:
    assert agent.error(*command) == "ERR no such memory index"


def test_a15_unknown_command(agent: Agent) -> None:
    assert "ERR unknown command" in agent.error("MEM.NONSENSE", "x")


# -- B. records


def test_b1_add_answers_the_id(ns: Agent) -> None:
    words = ("ID", "mem_001", "TEXT", "t", "FVEC", 2, 1, 0, "META", "type", "preference", "IMPORTANCE", "0.85")
    assert ns("MEM.ADD", "ns", *words) == b"mem_001"


def test_b3_get(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "mem_001", "TEXT", "t", "META", "type", "preference", "IMPORTANCE", "0.85")
    record = ns.map("MEM.GET", "ns", "mem_001", "WITHMETA")
    assert list(record) == [b"id", b"text", b"importance", b"created_at", b"updated_at", b"pttl", b"cid", b"meta"]
    assert (record[b"id"], record[b"text"], record[b"meta"]) == (b"mem_001", b"t", {b"type": b"preference"})
    assert [number(record[name]) for name in (b"importance", b"created_at", b"pttl")] == [0.85, JUNE, -1]
    if ns.form != "resp3":
        assert (record[b"importance"], record[b"pttl"]) == (b"0.85", b"-1")


def test_b4_get_an_absent_id(ns: Agent) -> None:
    assert ns("MEM.GET", "ns", "absent") is None


def test_b5_mget(ns: Agent) -> None:
    for name in ("a", "b"):
        ns("MEM.ADD", "ns", "ID", name, "TEXT", name)
    b, missing, a = ns("MEM.MGET", "ns", "b", "missing", "a")
    assert (ns.as_map(b)[b"id"], missing, ns.as_map(a)[b"id"]) == (b"b", None, b"a")


def test_b6_ip_keeps_the_bytes_of_a_vector(agent: Agent) -> None:
    agent("MEM.CREATE", "ns", "DIM", 2, "METRIC", "IP")
    agent("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "VEC", floats(0.3, -7))
    assert agent.map("MEM.GET", "ns", "a", "WITHVEC")[b"vector"] == floats(0.3, -7)


def test_b7_replace(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha", "FVEC", 2, 1, 0)
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "beta", "FVEC", 2, 0, 1)
    assert ns("MEM.CARD", "ns") == 1
    assert ns.map("MEM.GET", "ns", "a")[b"text"] == b"beta"
    assert ns.ids("MEM.SEARCH", "ns", "alpha") == []
    assert ns.ids("MEM.SEARCH", "ns", "beta") == [b"a"]
    assert ns.map("MEM.INFO", "ns")[b"vectors"] == 1


def test_b8_existence_unmet(ns: Agent) -> None:
    expected = "ERR record existence condition not met"
    assert ns.error("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "XX") == expected
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t")
    assert ns.error("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "NX") == expected


def test_b11_nx_with_xx(ns: Agent) -> None:
    expected = "ERR NX and XX are mutually exclusive"
    assert ns.error("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "NX", "XX") == expected


def test_b12_delete_all(ns: Agent) -> None:
    for name in ("a", "b"):
        ns("MEM.ADD", "ns", "ID", name, "TEXT", name)
    assert ns("MEM.DEL", "ns", "a", "missing", "b") == 2
    assert ns("MEM.CARD", "ns") == 0
    assert ns("TYPE", "ns") == "memory"
    assert ns.map("MEM.INFO", "ns")[b"dim"] == 2


def test_b13_binary_safety(ns: Agent) -> None:
    text, value = b"one\ntwo\x00three\xff", b"a\r\nb\x00"
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", text, "META", "f", value)
    record = ns.map("MEM.GET", "ns", "a", "WITHMETA")
    assert (record[b"text"], record[b"meta"]) == (text, {b"f": value})


def test_b14_setmeta_counts_new_fields(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t")
    assert ns("MEM.SETMETA", "ns", "a", "x", 1, "y", 2) == 2
    assert ns("MEM.SETMETA", "ns", "a", "x", 3) == 0
    assert ns.map("MEM.GET", "ns", "a", "WITHMETA")[b"meta"] == {b"x": b"3", b"y": b"2"}


def test_b15_delmeta_counts_what_was_there(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "META", "x", 1)
    assert ns("MEM.DELMETA", "ns", "a", "x", "absent") == 1


def test_b16_setmeta_on_an_absent_id(ns: Agent) -> None:
    assert ns.error("MEM.SETMETA", "ns", "absent", "f", "v") == "ERR no such record"


def test_b17_setmeta_without_a_value(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t")
    expected = "ERR wrong number of arguments for 'mem.setmeta' command"
    assert ns.error("MEM.SETMETA", "ns", "a", "x", 1, "y") == expected


def test_b18_expire(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t")
    assert ns("MEM.EXPIRE", "ns", "a", 100) == 1
    assert 99_000 < number(ns.map("MEM.GET", "ns", "a")[b"pttl"]) <= 100_000


def test_b19_expire_0_clears(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "TTL", 100)
    assert ns("MEM.EXPIRE", "ns", "a", 0) == 1
    assert number(ns.map("MEM.GET", "ns", "a")[b"pttl"]) == -1


def test_b20_expire_an_absent_id(ns: Agent) -> None:
    assert ns("MEM.EXPIRE", "ns", "missing", 10) == 0
    assert ns("TTL", "ns") == -1


def test_b21_scan_in_pages(ns: Agent) -> None:
    for i in range(7):
        ns("MEM.ADD", "ns", "ID", f"m{i}", "TEXT", "t")
    found, cursor = [], b"0"
    for _ in range(20):
        cursor, ids = ns("MEM.SCAN", "ns", cursor, "COUNT", 3)
        found += ids
        if cursor == b"0":
            break
    assert cursor == b"0"
    assert sorted(found) == [b"m%d" % i for i in range(7)]


def test_b22_scan_with_a_filter(five: Agent) -> None:
    cursor, ids = five("MEM.SCAN", "ns", 0, "COUNT", 100, "FILTER", "type", "EQ", "preference")
    assert (cursor, sorted(ids)) == (b"0", [b"m1", b"m3"])


def test_b23_text_is_required(ns: Agent) -> None:
    assert ns.error("MEM.ADD", "ns", "FVEC", 2, 1, 0) == "ERR TEXT is required"


def test_b24_unexpected_word(ns: Agent) -> None:
    assert ns.error("MEM.ADD", "ns", "TEXT", "x", "NONSENSE") == "ERR unexpected argument 'NONSENSE'"


def test_b26_to_b29_bad_vectors_leave_nothing(agent: Agent) -> None:
    agent("MEM.CREATE", "ns", "DIM", 3)
    b26 = agent.error("MEM.ADD", "ns", "TEXT", "alpha", "FVEC", 2, 1, 0)
    assert b26 == "ERR wrong vector dimension, expected 3 got 2"
    b27 = agent.error("MEM.ADD", "ns", "TEXT", "alpha", "FVEC", 3, 0, 0, 0)
    assert b27 == "ERR a zero vector has no direction to compare under COSINE"
    b28 = agent.error("MEM.ADD", "ns", "TEXT", "alpha", "VEC", b"12345")
    assert "multiple of 4" in b28
    assert agent("MEM.CARD", "ns") == 0
    assert agent.map("MEM.INFO", "ns")[b"terms"] == 0


def test_b30_vector_on_search(agent: Agent) -> None:
    agent("MEM.CREATE", "ns", "MODE", "SEARCH")
    assert "stores no vectors" in agent.error("MEM.ADD", "ns", "TEXT", "t", "FVEC", 2, 1, 0)


def test_b31_search_on_vector(agent: Agent) -> None:
    agent("MEM.CREATE", "ns", "MODE", "VECTOR", "DIM", 2)
    assert "does not index text" in agent.error("MEM.SEARCH", "ns", "t")


def test_b32_no_vector_on_vector(agent: Agent) -> None:
    agent("MEM.CREATE", "ns", "MODE", "VECTOR", "DIM", 2)
    assert "needs a vector on every record" in agent.error("MEM.ADD", "ns", "TEXT", "t")


def test_b33_max_text_bytes(ns: Agent) -> None:
    ns("CONFIG", "SET", "mem-max-text-bytes", 16)
    assert ns("MEM.ADD", "ns", "ID", "a", "TEXT", "x" * 16) == b"a"
    assert "mem-max-text-bytes (16)" in ns.error("MEM.ADD", "ns", "TEXT", "x" * 17)


@pytest.mark.parametrize(
    "query",
    [
        ("MEM.SEARCH", "ns", "user"),
        ("MEM.VSEARCH", "ns", "FVEC", 3, 1, 0, 0),
        ("MEM.QUERY", "ns", "TEXT", "user", "FVEC", 3, 1, 0, 0),
    ],
    ids=lambda query: query[0],
)
def test_b34_max_topk(five: Agent, query: tuple[str | int, ...]) -> None:
    five("CONFIG", "SET", "mem-max-topk", 3)
    assert len(five.hits(*query, "TOPK", 3)) == 3
    assert "mem-max-topk (3)" in five.error(*query, "TOPK", 4)


def test_b37_hello_3_answers_maps(server: Running) -> None:
    wire = server.wire(2)
    wire("MEM.CREATE", "ns", "DIM", 2)
    wire("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha", "META", "f", "v")
    wire("HELLO", 3)
    assert wire("MEM.GET", "ns", "a", "WITHMETA")[b"meta"] == {b"f": b"v"}
    (hit,) = wire("MEM.SEARCH", "ns", "alpha", "WITHSCORES")
    assert isinstance(hit, dict)
    assert isinstance(hit[b"keyword_score"], float) and hit[b"keyword_score"] > 0
    wire.close()


# -- C. keyspace


def test_c1_type_exists_dbsize_keys(ns: Agent) -> None:
    assert ns("TYPE", "ns") == "memory"
    assert ns("EXISTS", "ns") == 1
    assert ns("DBSIZE") == 1
    assert ns("KEYS", "n*") == [b"ns"]


def test_c2_copies_diverge(ns: Agent) -> None:
    assert [ns("MEM.ADD", "ns", "TEXT", "alpha") for _ in range(2)] == [b"1", b"2"]
    ns("MEM.DEL", "ns", "2")
    assert ns("COPY", "ns", "twin") == 1
    assert ns("MEM.ADD", "twin", "TEXT", "beta") == b"3"
    assert ns("MEM.ADD", "ns", "TEXT", "gamma") == b"3"
    assert (ns.ids("MEM.SEARCH", "twin", "beta"), ns.ids("MEM.SEARCH", "ns", "beta")) == ([b"3"], [])
    assert (ns.ids("MEM.SEARCH", "twin", "gamma"), ns.ids("MEM.SEARCH", "ns", "gamma")) == ([], [b"3"])


def test_c6_rename_expire_ttl_del(five: Agent) -> None:
    assert five("RENAME", "ns", "new") == "OK"
    assert five.ids("MEM.SEARCH", "new", "Oslo") == [b"m4"]
    assert five.error("MEM.CARD", "ns") == "ERR no such memory index"
    assert five("EXPIRE", "new", 100) == 1
    assert five("TTL", "new") == 100
    assert five("DEL", "new") == 1
    assert five("EXISTS", "new") == 0


def test_c9_info_memorydb(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "TEXT", "alpha beta gamma", "FVEC", 2, 1, 0)
    lines = ns("INFO", "memorydb").decode().split("\r\n")
    expected = {"memory_indexes:1", "memory_records:1", "memory_vectors:1", "memory_terms:3"}
    assert expected <= set(lines)


# -- D. keyword


@pytest.mark.parametrize("word", ["Lisbon", "lisbon"])
def test_d1_case_is_folded(five: Agent, word: str) -> None:
    assert set(five.ids("MEM.SEARCH", "ns", word)) == {b"m1", b"m5"}


def test_d3_punctuation_is_no_part_of_a_word(five: Agent) -> None:
    assert five.ids("MEM.SEARCH", "ns", "Oslo.") == [b"m4"]


def test_d4_two_words_beat_one(five: Agent) -> None:
    assert five.ids("MEM.SEARCH", "ns", "planning beach")[0] == b"m5"


@pytest.mark.parametrize("word", ["mem_001", "MAX_RETRIES"])
def test_d7_identifiers(ns: Agent, word: str) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "see mem_001 and MAX_RETRIES")
    assert ns.ids("MEM.SEARCH", "ns", word) == [b"a"]


def test_d8_topk_is_a_prefix(five: Agent) -> None:
    full = five.ids("MEM.SEARCH", "ns", "user")
    assert five.ids("MEM.SEARCH", "ns", "user", "TOPK", 2) == full[:2]


def test_d9_filters(five: Agent) -> None:
    preference, project = ("FILTER", "type", "EQ", "preference"), ("FILTER", "type", "EQ", "project")
    assert five.ids("MEM.SEARCH", "ns", "Lisbon", *preference) == [b"m1"]
    assert five.ids("MEM.SEARCH", "ns", "Lisbon", *project) == [b"m5"]
    assert five.ids("MEM.SEARCH", "ns", "Lisbon", *preference, *project) == []


def test_d12_filters_on_reserved_fields(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "high", "TEXT", "alpha beta", "IMPORTANCE", "0.9")
    ns("MEM.ADD", "ns", "ID", "low", "TEXT", "alpha gamma", "IMPORTANCE", "0.1")
    assert ns.ids("MEM.SEARCH", "ns", "alpha", "FILTER", "@importance", "GTE", "0.5") == [b"high"]
    assert ns.ids("MEM.SEARCH", "ns", "alpha", "FILTER", "@text", "CONTAINS", "gamma") == [b"low"]
    assert ns.ids("MEM.SEARCH", "ns", "alpha", "FILTER", "@id", "IN", "high,missing") == [b"high"]


def test_d15_numbers_compare_as_numbers(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha", "META", "rank", 42)
    ns("MEM.ADD", "ns", "ID", "b", "TEXT", "alpha", "META", "rank", 100)
    assert ns.ids("MEM.SEARCH", "ns", "alpha", "FILTER", "rank", "GT", 50) == [b"b"]
    assert ns.ids("MEM.SEARCH", "ns", "alpha", "FILTER", "rank", "LT", 50) == [b"a"]


def test_d16_expired_records_are_not_returned(ns: Agent, clock: Clock) -> None:
    ns("MEM.ADD", "ns", "ID", "brief", "TEXT", "alpha", "TTL", 1)
    ns("MEM.ADD", "ns", "ID", "lasting", "TEXT", "alpha")
    clock.advance(1_100)
    assert ns.ids("MEM.SEARCH", "ns", "alpha") == [b"lasting"]


def test_d18_notext_withmeta_withscores(five: Agent) -> None:
    (hit,) = five.hits("MEM.SEARCH", "ns", "Oslo", "NOTEXT", "WITHMETA", "WITHSCORES")
    assert (hit.text, hit.meta) == (None, {b"type": b"fact"})
    assert hit.keyword == hit.score


def test_d19_nothing_to_find(ns: Agent) -> None:
    assert ns("MEM.SEARCH", "ns", "alpha") == []
    ns("MEM.ADD", "ns", "TEXT", "alpha")
    assert ns("MEM.SEARCH", "ns", "unknown") == []


def test_d20_deleted_records_are_not_found(five: Agent) -> None:
    five("MEM.DEL", "ns", "m1")
    assert five.ids("MEM.SEARCH", "ns", "Lisbon") == [b"m5"]


# -- E. vector


def test_e1_cosine_ignores_length(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "same", "TEXT", "t", "FVEC", 2, 5, 0)
    ns("MEM.ADD", "ns", "ID", "orthogonal", "TEXT", "t", "FVEC", 2, 0, 3)
    got = scores(ns, "MEM.VSEARCH", "ns", "FVEC", 2, "0.25", 0)
    assert list(got) == ["same", "orthogonal"]
    assert got["same"] == 1.0
    assert abs(got["orthogonal"]) < 1e-6


def test_e2_l2_near_before_far(agent: Agent) -> None:
    agent("MEM.CREATE", "ns", "DIM", 2, "METRIC", "L2")
    agent("MEM.ADD", "ns", "ID", "far", "TEXT", "t", "FVEC", 2, 9, 9)
    agent("MEM.ADD", "ns", "ID", "near", "TEXT", "t", "FVEC", 2, 1, 2)
    assert agent.ids("MEM.VSEARCH", "ns", "FVEC", 2, 1, 1) == [b"near", b"far"]


def test_e3_ip_large_before_small(agent: Agent) -> None:
    agent("MEM.CREATE", "ns", "DIM", 2, "METRIC", "IP")
    agent("MEM.ADD", "ns", "ID", "small", "TEXT", "t", "FVEC", 2, 1, 1)
    agent("MEM.ADD", "ns", "ID", "large", "TEXT", "t", "FVEC", 2, 5, 5)
    assert agent.ids("MEM.VSEARCH", "ns", "FVEC", 2, 1, 1) == [b"large", b"small"]


def test_e4_fvec_and_vec_are_the_same(five: Agent) -> None:
    words = five.hits("MEM.VSEARCH", "ns", "FVEC", 3, ".9", ".4", ".1", "WITHSCORES")
    assert words == five.hits("MEM.VSEARCH", "ns", "VEC", floats(0.9, 0.4, 0.1), "WITHSCORES")


def test_e5_query_of_another_width(five: Agent) -> None:
    expected = "ERR wrong vector dimension, expected 3 got 2"
    assert five.error("MEM.VSEARCH", "ns", "FVEC", 2, 1, 0) == expected


def test_e6_vsearch_without_a_vector(five: Agent) -> None:
    assert five.error("MEM.VSEARCH", "ns", "TOPK", 3) == "ERR VEC or FVEC is required"


def test_e8_vsearch_on_search(agent: Agent) -> None:
    agent("MEM.CREATE", "ns", "MODE", "SEARCH")
    assert "stores no vectors" in agent.error("MEM.VSEARCH", "ns", "FVEC", 2, 1, 0)


def test_e9_max_scan(ns: Agent) -> None:
    ns("CONFIG", "SET", "mem-max-scan", 2)
    for i in range(3):
        ns("MEM.ADD", "ns", "ID", f"m{i}", "TEXT", "t", "FVEC", 2, 1, i)
    assert "exceeds mem-max-scan (2)" in ns.error("MEM.VSEARCH", "ns", "FVEC", 2, 1, 0)
    ns("MEM.DEL", "ns", "m2")
    assert ns.ids("MEM.VSEARCH", "ns", "FVEC", 2, 1, 0) == [b"m0", b"m1"]


# -- F. hybrid


def test_f1_query_by_text(five: Agent) -> None:
    assert set(five.ids("MEM.QUERY", "ns", "TEXT", "Lisbon")) == {b"m1", b"m5"}


def test_f4_a_missing_side_has_no_score(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "worded", "TEXT", "alpha")
    ns("MEM.ADD", "ns", "ID", "aimed", "TEXT", "beta", "FVEC", 2, 1, 0)
    hits = {hit.id: hit for hit in ns.hits("MEM.QUERY", "ns", "TEXT", "alpha", "FVEC", 2, 1, 0, "WITHSCORES")}
    assert set(hits) == {b"worded", b"aimed"}
    assert hits[b"worded"].similarity is None and hits[b"worded"].keyword is not None
    assert hits[b"aimed"].keyword is None and hits[b"aimed"].similarity is not None


def test_f5_weights_of_one_query(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "worded", "TEXT", "alpha", "FVEC", 2, 0, 1)
    ns("MEM.ADD", "ns", "ID", "aimed", "TEXT", "beta", "FVEC", 2, 1, 0)
    before = ns.map("MEM.INFO", "ns")[b"weights"]
    query = ("MEM.QUERY", "ns", "TEXT", "alpha", "FVEC", 2, 1, 0)
    assert ns.ids(*query, "WEIGHTS", 1, 0, 0, 0)[0] == b"worded"
    assert ns.ids(*query, "WEIGHTS", 0, 1, 0, 0)[0] == b"aimed"
    assert ns.map("MEM.INFO", "ns")[b"weights"] == before


def test_f8_importance(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "dull", "TEXT", "alpha", "IMPORTANCE", 0)
    ns("MEM.ADD", "ns", "ID", "vital", "TEXT", "alpha", "IMPORTANCE", 1)
    assert ns.ids("MEM.QUERY", "ns", "TEXT", "alpha", "WEIGHTS", 0, 0, 0, 1) == [b"vital", b"dull"]


def test_f9_fusions_match_the_same(five: Agent) -> None:
    query = ("MEM.QUERY", "ns", "TEXT", "Lisbon beach", "FVEC", 3, 1, 0, 0)
    linear, rrf = (set(five.ids(*query, "FUSION", fusion)) for fusion in ("LINEAR", "RRF"))
    assert linear == rrf == {name.encode() for name in FIVE}


def test_f10_unknown_fusion(five: Agent) -> None:
    assert five.error("MEM.QUERY", "ns", "TEXT", "x", "FUSION", "NONSENSE") == "ERR syntax error"


def test_f12_query_of_nothing(five: Agent) -> None:
    assert five.error("MEM.QUERY", "ns", "TOPK", 5) == "ERR TEXT, VEC, or FVEC is required"


def test_f14_query_on_search(agent: Agent) -> None:
    agent("MEM.CREATE", "ns", "MODE", "SEARCH")
    agent("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha")
    assert "stores no vectors" in agent.error("MEM.QUERY", "ns", "TEXT", "alpha", "FVEC", 2, 1, 0)
    assert agent.ids("MEM.QUERY", "ns", "TEXT", "alpha") == [b"a"]


# -- K. more of the grammar


def test_k1_argument_errors_come_before_the_key(agent: Agent) -> None:
    assert agent.error("MEM.SEARCH", "no", "q", "TOPK", 0) == "ERR TOPK must be between 1 and mem-max-topk (1000)"


def test_k2_the_last_of_a_repeated_option_wins(five: Agent) -> None:
    assert len(five.hits("MEM.SEARCH", "ns", "user", "TOPK", 5, "TOPK", 2)) == 2


def test_k3_options_in_any_case_and_order(five: Agent) -> None:
    one = five.hits("MEM.QUERY", "ns", "TEXT", "Lisbon", "FVEC", 3, 1, 0, 0, "TOPK", 3, "WITHSCORES", "WITHMETA")
    two = five.hits("mem.query", "ns", "withmeta", "topk", 3, "fvec", 3, 1, 0, 0, "withscores", "text", "Lisbon")
    assert one == two


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (("MEM.EXPIRE", "ns", "id", -1), "ERR TTL must not be negative"),
        (("MEM.ADD", "ns", "TEXT", "t", "TTL", 0), "ERR TTL must be positive"),
        (("MEM.ADD", "ns", "TEXT", "t", "IMPORTANCE", "1.5"), "ERR IMPORTANCE must be between 0 and 1"),
        (("MEM.ADD", "ns", "TEXT", "t", "IMPORTANCE", "nan"), "ERR IMPORTANCE must be between 0 and 1"),
    ],
)
def test_k5_bounds(ns: Agent, command: tuple[str | int, ...], expected: str) -> None:
    assert ns.error(*command) == expected


def test_k10_scan_arguments(ns: Agent) -> None:
    assert ns.error("MEM.SCAN", "ns", -1) == "ERR invalid cursor"
    assert ns.error("MEM.SCAN", "ns", 0, "COUNT", 0) == "ERR syntax error"


@pytest.mark.parametrize("op", ["EQ", "NE", "GT", "GTE", "LT", "LTE", "IN", "CONTAINS"])
def test_k11_an_absent_field_fails_all_but_ne(five: Agent, op: str) -> None:
    found = five.ids("MEM.SEARCH", "ns", "user", "FILTER", "absentfield", op, "x")
    assert len(found) == (5 if op == "NE" else 0)


def test_k13_every_word_of_mget_is_an_id(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "WITHMETA", "TEXT", "t", "META", "f", "v")
    (record,) = ns("MEM.MGET", "ns", "WITHMETA")
    assert ns.as_map(record)[b"id"] == b"WITHMETA"
    assert b"meta" not in ns.as_map(record)


# -- deliberate differences: SPEC.md wins


def test_automatic_ids_skip_ids_that_exist(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "2", "TEXT", "t")
    assert [ns("MEM.ADD", "ns", "TEXT", "t") for _ in range(2)] == [b"1", b"3"]


def test_config_without_options_answers_the_settings(ns: Agent) -> None:
    config = ns.map("MEM.CONFIG", "ns")
    assert (config[b"mode"], config[b"dim"]) == (b"HYBRID", 2)
    assert [number(config[name]) for name in (b"k1", b"b")] == [0.9, 0.4]


def test_words_are_stemmed_by_default(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "holidays")
    assert ns.ids("MEM.SEARCH", "ns", "holiday") == [b"a"]


def test_ties_go_by_time_then_by_id(ns: Agent) -> None:
    for name, at in (("b", JUNE), ("a", JUNE), ("z", JUNE + 1)):
        ns("MEM.ADD", "ns", "ID", name, "TEXT", "alpha", "AT", at)
    assert ns.ids("MEM.SEARCH", "ns", "alpha") == [b"z", b"a", b"b"]


def test_expired_records_are_gone_everywhere(ns: Agent, clock: Clock) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha", "TTL", 1)
    clock.advance(1_000)
    assert ns("MEM.CARD", "ns") == 0
    assert ns("MEM.GET", "ns", "a") is None
    assert ns("MEM.DEL", "ns", "a") == 0
    assert ns.map("MEM.INFO", "ns")[b"terms"] == 0


def test_metadata_does_not_refresh_recency(ns: Agent, clock: Clock) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha")
    clock.advance(5_000)
    ns("MEM.SETMETA", "ns", "a", "f", "v")
    assert number(ns.map("MEM.GET", "ns", "a")[b"updated_at"]) == JUNE


def test_a_changed_text_loses_its_vector(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha", "FVEC", 2, 1, 0)
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "beta")
    assert ns.map("MEM.INFO", "ns")[b"vectors"] == 0


def test_eq_compares_numbers_only_where_both_are_plain(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha", "META", "n", "7.0", "META", "m", "007")
    assert ns.ids("MEM.SEARCH", "ns", "alpha", "FILTER", "n", "EQ", "7") == [b"a"]
    assert ns.ids("MEM.SEARCH", "ns", "alpha", "FILTER", "m", "EQ", "7") == []


def test_a_zero_query_has_no_direction(five: Agent) -> None:
    expected = "ERR a zero vector has no direction to compare under COSINE"
    assert five.error("MEM.VSEARCH", "ns", "FVEC", 3, 0, 0, 0) == expected


def test_parts_of_identifiers_are_searchable(ns: Agent) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "see max_retries")
    assert ns.ids("MEM.SEARCH", "ns", "retries") == [b"a"]


@pytest.mark.parametrize(("text", "query"), [("STRASSE", "straße"), ("東京都に住む", "東京")])
def test_unicode_case_and_cjk(ns: Agent, text: str, query: str) -> None:
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", text)
    assert ns.ids("MEM.SEARCH", "ns", query) == [b"a"]


def test_l2_scores(agent: Agent) -> None:
    agent("MEM.CREATE", "ns", "DIM", 2, "METRIC", "L2")
    agent("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "FVEC", 2, 3, 4)
    assert scores(agent, "MEM.VSEARCH", "ns", "FVEC", 2, 0, 0) == pytest.approx({"a": 1 / 6}, abs=1e-4)


def test_max_topk_is_1000(five: Agent) -> None:
    assert len(five.hits("MEM.SEARCH", "ns", "user", "TOPK", 1000)) == 5
    expected = "ERR TOPK must be between 1 and mem-max-topk (1000)"
    assert five.error("MEM.SEARCH", "ns", "user", "TOPK", 1001) == expected


# -- as its clients see it


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_reads_maps(server: Running, protocol: int) -> None:
    """klyro-db takes a dict, or a flat list of pairs; it calls int() and float() on what it finds there."""
    client: redis.Redis = server.client(protocol)
    client.execute_command("CONFIG", "SET", "mem-hit-format", "map")
    client.execute_command("MEM.CREATE", "ns", "MODE", "HYBRID", "DIM", 2, "METRIC", "COSINE")
    client.execute_command("MEM.ADD", "ns", "TEXT", "alpha", "VEC", floats(1, 0), "META", "rank", 1)
    (hit,) = client.execute_command("MEM.QUERY", "ns", "TEXT", "alpha", "VEC", floats(1, 0), "WITHSCORES", "WITHVEC")
    hit = hit if isinstance(hit, dict) else dict(zip(hit[::2], hit[1::2], strict=True))
    assert (int(hit[b"created_at"]), int(hit[b"updated_at"]), int(hit[b"pttl"])) == (JUNE, JUNE, -1)
    assert hit[b"vector"] == floats(1, 0)
    assert all(float(hit[name]) > 0 for name in (b"score", b"keyword_score", b"vector_score", b"recency_score"))
    client.close()
