"""Values are binary safe: any bytes, of any length that the settings allow, come back as they were."""

from __future__ import annotations

import hashlib
import struct

import pytest
from harness import Agent, Running, Wire, flat_pairs
from hypothesis import given
from hypothesis import strategies as st
from oracle import cid

EVERY_BYTE = bytes(range(256))
ANY = st.binary(max_size=40)


@pytest.mark.parametrize("byte", range(256), ids="{:02x}".format)
def test_each_byte_alone_everywhere(wire: Wire, byte: int) -> None:
    """As key, id, text, field, value and tag; found again by each."""
    one = bytes([byte])
    wire("MEM.CREATE", one, "MODE", "SEARCH")
    assert wire("MEM.ADD", one, "ID", one, "TEXT", one, "META", one, one, "TAGS", 1, one) == one
    got = flat_pairs(wire("MEM.GET", one, one, "WITHMETA"))
    assert (got[b"id"], got[b"text"], got[b"tags"], got[b"meta"]) == (one, one, [one], [one, one])
    assert wire("KEYS", "*") == [one]
    for clause in (("@id", one), ("@text", one), ("@tags", one)) + (() if one == b"@" else ((one, one),)):
        assert wire("MEM.SCAN", one, 0, "FILTER", clause[0], "EQ", clause[1]) == [b"0", [one]]
    assert wire("MEM.DEL", one, one) == 1


def test_all_bytes_in_every_form(agent: Agent) -> None:
    agent("MEM.CREATE", EVERY_BYTE, "MODE", "SEARCH")
    words = ("META", EVERY_BYTE, EVERY_BYTE, "TAGS", 1, EVERY_BYTE)
    agent("MEM.ADD", EVERY_BYTE, "ID", EVERY_BYTE, "TEXT", EVERY_BYTE + b" alpha", *words)
    (hit,) = agent.hits("MEM.SEARCH", EVERY_BYTE, "alpha", "WITHMETA", "WITHTAGS")
    assert (hit.id, hit.text) == (EVERY_BYTE, EVERY_BYTE + b" alpha")
    assert (hit.meta, hit.tags) == ({EVERY_BYTE: EVERY_BYTE}, [EVERY_BYTE])


@given(key=ANY, record_id=ANY, text=ANY, field=ANY, value=ANY, tag=ANY)
def test_any_bytes(
    server: Running, key: bytes, record_id: bytes, text: bytes, field: bytes, value: bytes, tag: bytes
) -> None:
    wire = server.wire()
    wire("FLUSHALL")
    wire("MEM.CREATE", key, "MODE", "SEARCH")
    wire("MEM.MADD", key, 1, "RECORD", "ID", record_id, "TEXT", text, "META", field, value, "TAGS", 1, tag)
    (got,) = wire("MEM.MGET", key, record_id)
    pairs = flat_pairs(got)
    assert (pairs[b"id"], pairs[b"text"], pairs[b"tags"], pairs[b"cid"]) == (record_id, text, [tag], cid(text))
    assert flat_pairs(flat_pairs(wire("MEM.GET", key, record_id, "WITHMETA"))[b"meta"]) == {field: value}
    assert wire("MEM.SEARCH", key, text) in ([], [[record_id, text]])
    wire.close()


@given(st.lists(st.binary(max_size=60), max_size=20))
def test_no_text_and_no_query_is_a_syntax_error(server: Running, texts: list[bytes]) -> None:
    """Every text finds itself, if it has a word at all: a record has at least the terms of the query that it is."""
    wire = server.wire()
    wire("FLUSHALL")
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    for i, text in enumerate(texts):
        wire("MEM.ADD", "ns", "ID", i, "TEXT", text)
    for i, text in enumerate(texts):
        hits = [hit[0] for hit in wire("MEM.SEARCH", "ns", text, "TOPK", 1000, "NOTEXT")]
        assert not hits or b"%d" % i in hits
        wire("MEM.QUERY", "ns", "TEXT", text)
    wire.close()


def test_words_that_look_like_options_are_values(wire: Wire) -> None:
    wire("MEM.CREATE", "TEXT", "MODE", "SEARCH")
    wire("MEM.ADD", "TEXT", "ID", "ID", "TEXT", "TEXT", "META", "META", "TAGS", "TAGS", 2, "NX", "XX")
    got = flat_pairs(wire("MEM.GET", "TEXT", "ID", "WITHMETA"))
    assert (got[b"text"], got[b"meta"], got[b"tags"]) == (b"TEXT", [b"META", b"TAGS"], [b"NX", b"XX"])
    assert wire("MEM.SEARCH", "TEXT", "TEXT", "NOTEXT") == [[b"ID"]]


def test_empty_values(wire: Wire) -> None:
    wire("MEM.CREATE", "", "MODE", "SEARCH")
    wire("MEM.ADD", "", "ID", "", "TEXT", "", "META", "", "", "TAGS", 1, "")
    got = flat_pairs(wire("MEM.GET", "", "", "WITHMETA"))
    assert (got[b"id"], got[b"text"], got[b"meta"], got[b"tags"]) == (b"", b"", [b"", b""], [b""])
    assert wire("MEM.SEARCH", "", "") == []
    assert wire("MEM.CARD", "") == 1


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=8))
def test_vectors_come_back_to_the_bit(server: Running, values: list[float]) -> None:
    """Under L2 and IP as they came, negative zeros and denormals included."""
    blob = struct.pack(f"<{len(values)}f", *values)
    wire = server.wire()
    wire("FLUSHALL")
    for metric in ("L2", "IP"):
        wire("MEM.CREATE", metric, "DIM", len(values), "METRIC", metric)
        wire("MEM.ADD", metric, "ID", "blob", "TEXT", "t", "VEC", blob)
        wire("MEM.ADD", metric, "ID", "words", "TEXT", "t", "FVEC", len(values), *values)
        for name in ("blob", "words"):
            assert flat_pairs(wire("MEM.GET", metric, name, "WITHVEC"))[b"vector"] == blob
            floats = flat_pairs(wire("MEM.GET", metric, name, "WITHVEC", "FLOATS"))[b"vector"]
            assert struct.pack(f"<{len(values)}f", *map(float, floats)) == blob
    wire.close()


@pytest.mark.parametrize("scale", [1e30, 1e-30, 1e38, 1e-38, 1.0])
def test_directions_of_any_length(wire: Wire, scale: float) -> None:
    """Vectors are normalised in float64: a huge and a tiny one have a direction like any other."""
    wire("MEM.CREATE", "ns", "DIM", 2)
    wire("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "FVEC", 2, scale, scale)
    wire("MEM.ADD", "ns", "ID", "b", "TEXT", "t", "FVEC", 2, 1, 1)
    vectors = [flat_pairs(wire("MEM.GET", "ns", name, "WITHVEC"))[b"vector"] for name in ("a", "b")]
    assert vectors[0] == vectors[1]
    hits = wire("MEM.VSEARCH", "ns", "FVEC", 2, scale, scale, "NOTEXT", "WITHSCORES")
    assert [float(flat_pairs(scores)[b"score"]) for _, scores in hits] == pytest.approx([1, 1], abs=1e-4)


@pytest.mark.parametrize("words", [b"alpha beta ", b"\xff\x00\xfe", "東京".encode(), b"x", b"a.b-c_d/"])
def test_texts_of_20_mb(wire: Wire, words: bytes) -> None:
    """Stored and returned whole, searchable by their first words, and the others are served meanwhile."""
    size = 20 * 1000 * 1000
    wire("CONFIG", "SET", "mem-max-text-bytes", "32mb")
    text = b"needle " + (words * (size // len(words) + 1))[: size - 7]
    assert len(text) == size
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    assert wire("MEM.ADD", "ns", "ID", "a", "TEXT", text) == b"a"
    got = flat_pairs(wire("MEM.GET", "ns", "a"))
    assert hashlib.sha256(got[b"text"]).digest() == hashlib.sha256(text).digest()
    assert got[b"cid"] == cid(text)
    assert wire("MEM.SEARCH", "ns", "needle", "NOTEXT") == [[b"a"]]
    assert wire("MEM.SEARCH", "ns", text, "NOTEXT") == [[b"a"]]


def test_words_beyond_the_limit_are_not_indexed(wire: Wire) -> None:
    wire("CONFIG", "SET", "mem-max-terms-per-doc", 3)
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    wire("MEM.ADD", "ns", "ID", "a", "TEXT", "one two three four")
    assert [len(wire("MEM.SEARCH", "ns", word)) for word in ("one", "three", "four")] == [1, 1, 0]
    assert flat_pairs(wire("MEM.INFO", "ns"))[b"terms"] == 3
    assert flat_pairs(wire("MEM.GET", "ns", "a"))[b"text"] == b"one two three four"


def test_words_of_a_query_beyond_the_limit_do_not_count(wire: Wire) -> None:
    wire("CONFIG", "SET", "mem-max-query-terms", 2)
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    wire("MEM.ADD", "ns", "ID", "a", "TEXT", "three")
    assert wire("MEM.SEARCH", "ns", "one two three") == []
    assert wire("MEM.SEARCH", "ns", "one three two") != []
