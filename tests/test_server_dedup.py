"""MEM.ADD's DEDUP and NEAR."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from fake_provider import Provider
from harness import DAY, JUNE, Clock, Running, Wire
from oracle import blob
from recalld.index import memory, texts


@pytest.fixture
def ns(wire: Wire) -> Wire:
    wire("MEM.CREATE", "ns", "DIM", 2)
    return wire


def add(wire: Wire, text: str | bytes, *words: object) -> list[object]:
    reply = wire("MEM.ADD", "ns", "TEXT", text, *words, "DEDUP")  # type: ignore[arg-type]
    assert isinstance(reply, list)
    return reply


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("The keys hang by the door", "the  KEYS\thang by\n the door ", True),
        ("Straße", "STRASSE", True),
        ("caf\u00e9", "CAFE\u0301", True),
        ("caf\u00e9", "cafe", False),
        ("a\u00a0b", "A  B", True),
        ("a b", "ab", False),
        ("port 8080", "port 8081", False),
        ("a.b", "a b", False),
        ("", " \n", True),
        (b"\xff X", b"\xff x", True),
        (b"\xff", b"\xfe", False),
        ("\uff57", "w", False),
        ("a\x1cb", "A B", True),
    ],
)
def test_what_counts_as_the_same(ns: Wire, first: str | bytes, second: str | bytes, same: bool) -> None:
    """Case and spaces aside, in composed or decomposed letters; nothing else."""
    assert add(ns, first) == [b"1", 1, []]
    assert add(ns, second) == ([b"1", 0, []] if same else [b"2", 1, []])
    assert ns("MEM.CARD", "ns") == (1 if same else 2)
    assert ns("MEM.GET", "ns", 1)[3] == (first if isinstance(first, bytes) else first.encode())


def test_nothing_is_stored_and_nothing_else_is_looked_at(ns: Wire) -> None:
    """The record stays as it is, to the last field; not even NX, the vector's width or a full memory matter."""
    ns("CONFIG", "SET", "mem-max-records", 1)
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "Lake", "META", "f", "v", "TAGS", 1, "t", "FVEC", 2, 1, 0)
    before = ns("MEM.GET", "ns", "a", "WITHMETA", "WITHVEC")
    rest = ("META", "f", "w", "TAGS", 0, "AT", 5, "TTL", 5, "IMPORTANCE", 1, "VALIDUNTIL", 9, "KIND", "episode", "PIN")
    for words in (("ID", "a"), ("ID", "b"), ("NX",), ("ID", "a", "NX"), ("XX",), ("FVEC", 3, 1, 2, 3), rest):
        assert add(ns, "lake", *words) == [b"a", 0, []], words
    assert ns("MEM.GET", "ns", "a", "WITHMETA", "WITHVEC") == before
    assert ns("MEM.INFO", "ns")[ns("MEM.INFO", "ns").index(b"next_id") + 1] == 1
    assert ns.error("MEM.ADD", "ns", "TEXT", "hill", "DEDUP") == "ERR memory index is full at mem-max-records (1)"


def test_a_new_text_is_stored_as_ever(ns: Wire) -> None:
    """DEDUP may stand anywhere; NX and XX are asked when nothing is the same."""
    assert ns("MEM.ADD", "ns", "DEDUP", "ID", "a", "TEXT", "one", "FVEC", 2, 3, 4) == [b"a", 1, []]
    assert add(ns, "two", "ID", "a", "META", "f", "v") == [b"a", 1, []]  # written over
    assert add(ns, "one") == [b"1", 1, []]
    error = "ERR record existence condition not met"
    assert ns.error("MEM.ADD", "ns", "ID", "a", "NX", "TEXT", "three", "DEDUP") == error
    assert ns.error("MEM.ADD", "ns", "ID", "z", "XX", "TEXT", "three", "DEDUP") == error
    assert ns.error("MEM.ADD", "none", "TEXT", "x", "DEDUP") == "ERR no such memory index"
    assert ns.error("MEM.ADD", "ns", "TEXT", "x", "DEDUP", "NEAR", "much") == "ERR value is not a valid float"
    assert ns.error("MEM.ADD", "ns", "TEXT", "x", "DEDUP", "NEAR") == "ERR syntax error"
    assert "DEDUP" in ns.error("MEM.MADD", "ns", 1, "RECORD", "TEXT", "x", "DEDUP")


def test_which_records_count(server: Running, clock: Clock, ns: Wire) -> None:
    """Notes and episodes, valid or not; not facts, not what expired, was deleted or written over."""
    ns("MEM.CONFIG", "ns", "HISTORY", "ALL")
    ns("MEM.FACT", "ns", "ann", "likes", "tea", "ID", "f")
    assert add(ns, "Ann likes tea", "ID", "n") == [b"n", 1, []]
    ns("MEM.ADD", "ns", "ID", "e", "TEXT", "talk", "KIND", "episode")
    ns("MEM.ADD", "ns", "ID", "later", "TEXT", "later", "VALIDAT", JUNE + DAY)
    ns("MEM.ADD", "ns", "ID", "short", "TEXT", "short", "TTL", 10)
    assert [add(ns, text)[:2] for text in ("talk", "later", "short")] == [[b"e", 0], [b"later", 0], [b"short", 0]]
    clock.advance(10_000)
    ns("MEM.DEL", "ns", "e")
    ns("MEM.ADD", "ns", "ID", "later", "TEXT", "changed")
    assert [add(ns, text)[1] for text in ("talk", "later", "short", "changed")] == [1, 1, 1, 0]


def test_the_smallest_id_of_several(ns: Wire) -> None:
    for record_id in ("c", "a", "b"):
        ns("MEM.ADD", "ns", "ID", record_id, "TEXT", "same")
    assert add(ns, "SAME") == [b"a", 0, []]
    ns("MEM.DEL", "ns", "a")
    assert add(ns, "SAME") == [b"b", 0, []]


def angle(degrees: float) -> tuple[float, float]:
    return math.cos(math.radians(degrees)), math.sin(math.radians(degrees))


def test_near(ns: Wire) -> None:
    """Records there were whose similarity is at least x, most similar first; they stop nothing."""
    for degrees in (80, 40, 10, 20):
        ns("MEM.ADD", "ns", "ID", degrees, "TEXT", f"at {degrees}", "VEC", blob(angle(degrees)))
    ns("MEM.ADD", "ns", "ID", "none", "TEXT", "no vector")
    least = math.cos(math.radians(31))
    words = ("MEM.ADD", "ns", "ID", "x", "TEXT", "new", "VEC", blob(angle(0)), "DEDUP", "NEAR", least)
    assert ns(*words) == [b"x", 1, [b"10", b"20"]]
    # The record itself is none of them, neither as it was nor as it is.
    assert ns("MEM.ADD", "ns", "ID", "x", "TEXT", "y", "VEC", blob(angle(0)), "DEDUP", "NEAR", 0.99) == [b"x", 1, []]
    # Of a text that is there: by the vector given, else by the one it has.
    assert ns("MEM.ADD", "ns", "TEXT", "AT 40", "DEDUP", "NEAR", least) == [b"40", 0, [b"20", b"10"]]
    assert ns("MEM.ADD", "ns", "TEXT", "AT 40", "VEC", blob(angle(81)), "DEDUP", "NEAR", least) == [b"40", 0, [b"80"]]
    # Without a vector there is nothing to compare.
    assert ns("MEM.ADD", "ns", "TEXT", "no VECTOR", "DEDUP", "NEAR", -1) == [b"none", 0, []]
    assert ns("MEM.ADD", "ns", "ID", "z", "TEXT", "new again", "DEDUP", "NEAR", -1) == [b"z", 1, []]


def test_near_is_bounded_and_of_notes(ns: Wire) -> None:
    """Ten at most, facts left out; a refusal stores nothing."""
    for number in range(15):
        ns("MEM.ADD", "ns", "ID", f"{number:02}", "TEXT", number, "VEC", blob(angle(number)), "AT", JUNE)
    ns("MEM.FACT", "ns", "ann", "likes", "tea", "VEC", blob(angle(0)))
    reply = ns("MEM.ADD", "ns", "ID", "x", "TEXT", "x", "VEC", blob(angle(0)), "DEDUP", "NEAR", 0)
    assert reply == [b"x", 1, [b"%02d" % number for number in range(10)]]
    ns("CONFIG", "SET", "mem-max-scan", 3)
    assert ns.error("MEM.ADD", "ns", "TEXT", "y", "VEC", blob(angle(0)), "DEDUP", "NEAR", 0).startswith("ERR a scan of")
    ns("MEM.CREATE", "words", "MODE", "SEARCH")
    error = "ERR this memory index stores no vectors; create it with MODE VECTOR or MODE HYBRID"
    assert ns.error("MEM.ADD", "words", "TEXT", "y", "DEDUP", "NEAR", 0.5) == error
    assert (ns("MEM.CARD", "ns"), ns("MEM.CARD", "words")) == (17, 0)


def test_in_exec(ns: Wire) -> None:
    words = ["MEM.ADD", "ns", "TEXT", "one", "VEC", blob(angle(0)), "DEDUP", "NEAR", 0.5]
    replies = ns.pipeline(["MULTI"], words, words, ["EXEC"])[-1]
    assert replies == [[b"1", 1, []], [b"1", 0, []]]


def test_the_index_is_made_once_and_followed(
    server: Running, wire: Wire, monkeypatch: pytest.MonkeyPatch, ns: Wire
) -> None:
    """The first DEDUP of a large memory waits for its index; others write meanwhile, and what they wrote is known."""
    for module in (texts, memory):
        monkeypatch.setattr(module, "STEP_RECORDS", 2)
    for number in range(40):
        ns("MEM.ADD", "ns", "ID", number, "TEXT", f"text {number}")
    other = server.wire()
    ns.send("MEM.ADD", "ns", "TEXT", "TEXT 39", "DEDUP")
    other.pipeline(*(["MEM.ADD", "ns", "ID", number, "TEXT", f"new {number}"] for number in range(0, 40, 3)))
    reply = ns.read()
    assert reply[:2] == [b"39", 0] or reply[1] == 1  # 39 was written over before or after
    for number in range(1, 39):
        expected = "new" if number % 3 == 0 else "text"
        assert add(ns, f"{expected.upper()} {number}") == [b"%d" % number, 0, []]
    other.close()


def test_the_decision_is_made_when_the_record_is_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two that wait for the same text's vector: one is stored. A text that is there is not embedded. It lasts."""
    provider = Provider(monkeypatch)
    with Running(clock=Clock(), dir=tmp_path) as server:
        one, two = server.wire(), server.wire()
        one("MEM.CREATE", "ns", "EMBEDDER", "openai", "MODEL", "m3", "DIM", 3)
        provider.gate.clear()
        one.send("MEM.ADD", "ns", "TEXT", "The lake", "DEDUP", "NEAR", 0.5)
        two.send("MEM.ADD", "ns", "TEXT", "the LAKE", "DEDUP", "NEAR", 0.5)
        provider.gate.set()
        replies = [one.read(), two.read()]
        assert sorted(replies) == [[b"1", 0, []], [b"1", 1, []]]
        assert one("MEM.CARD", "ns") == 1
        asked = len(provider.texts)
        assert one("MEM.ADD", "ns", "TEXT", "THE  LAKE", "DEDUP", "NEAR", 0.5) == [b"1", 0, []]
        assert len(provider.texts) == asked
        provider.down = True
        assert one("MEM.ADD", "ns", "TEXT", "hill", "DEDUP", "NEAR", -1) == [b"2", 1, []]
        server.restart()
        one = server.wire()
        assert one("MEM.ADD", "ns", "TEXT", "the lake", "DEDUP") == [b"1", 0, []]
        assert one("MEM.CARD", "ns") == 2
