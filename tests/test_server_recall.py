"""MEM.RECALL over the wire: its three signals, the block byte for byte, and all that may be asked of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import DAY, HOUR, JUNE, Clock, Double, Running, Wire, flat_pairs

FACT_FIELDS = (
    "id subject predicate object entity_type confidence quote valid_at valid_until invalid_at episode created_at"
    " supersedes superseded_by score vector_rank anchor_rank keyword_rank"
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
    wire("MEM.CREATE", "v", "DIM", 3)
    return wire


def recalled(wire: Wire, *words: Any, key: str = "k") -> dict[str, Any]:
    """The map of FORMAT MAP, names as text."""
    found = {name.decode(): value for name, value in wire("MEM.RECALL", key, *words, "FORMAT", "MAP").items()}
    assert list(found) == ["context", "facts", "entities", "episodes", "omitted"]
    found["facts"] = [{name.decode(): value for name, value in each.items()} for each in found["facts"]]
    assert all(list(each) == FACT_FIELDS for each in found["facts"])
    assert wire("MEM.RECALL", key, *words) == found["context"]
    return found


def ids(wire: Wire, *words: Any, key: str = "k") -> list[bytes]:
    return [each["id"] for each in recalled(wire, *words, key=key)["facts"]]


def ranks(wire: Wire, *words: Any, key: str = "k") -> dict[bytes, tuple[int | None, int | None, int | None]]:
    """id -> ranks by vector, anchor, keyword."""
    return {
        each["id"]: (each["vector_rank"], each["anchor_rank"], each["keyword_rank"])
        for each in recalled(wire, *words, key=key)["facts"]
    }


# -- the block


def test_the_contracts_example(wire: Wire) -> None:
    wire(
        *("MEM.FACT", "k", "user", "is interested in", "Toyota Corolla Hybrid", "TYPE", "PRODUCT"),
        *("VALIDAT", "2026-08-16"),
    )
    assert wire("MEM.RECALL", "k", "TEXT", "toyota", "ASOF", "2026-09-01") == (
        b"Known facts about user, most relevant first.\n"
        b"\n"
        b"# FACTS  (format: fact (valid: from - to))\n"
        b"- user is interested in toyota corolla hybrid  (valid: 2026-08-16 - present)\n"
        b"\n"
        b"# ENTITIES\n"
        b"- toyota corolla hybrid (PRODUCT)"
    )


def test_groups_by_anchor_in_the_order_of_their_best_fact(wire: Wire) -> None:
    wire("MEM.FACT", "k", "ann", "works at", "Acme", "TYPE", "ORG", "ID", "1", "CONFIDENCE", 0.9)
    wire("MEM.FACT", "k", "bob", "lives in", "Rome", "ID", "2", "CONFIDENCE", 0.8)
    wire("MEM.FACT", "k", "cid", "left", "acme", "TYPE", "ORG", "ID", "3", "CONFIDENCE", 0.7)
    wire("MEM.FACT", "k", "Ann", "likes", "tea", "ID", "4", "CONFIDENCE", 0.6, "VALIDUNTIL", "2027-01-01")
    found = recalled(wire)
    assert [each["id"] for each in found["facts"]] == [b"1", b"2", b"3", b"4"], "the ranking is not the grouping"
    assert found["context"].decode().split("\n") == [
        "Known facts about ann, cid, bob, most relevant first.",
        "",
        "# FACTS  (format: fact (valid: from - to))",
        "- ann works at acme  (valid: 2026-06-01 - present)",
        "- cid left acme  (valid: 2026-06-01 - present)",
        "- bob lives in Rome  (valid: 2026-06-01 - present)",
        "- ann likes tea  (valid: 2026-06-01 - 2027-01-01)",
        "",
        "# ENTITIES",
        "- acme (ORG)",
    ]
    assert [each[b"name"] for each in found["entities"]] == [b"acme"]
    assert recalled(wire, "TEXT", "rome")["context"] == (
        b"Known facts about bob, most relevant first.\n\n# FACTS  (format: fact (valid: from - to))\n"
        b"- bob lives in Rome  (valid: 2026-06-01 - present)"
    ), "no anchor is an entity: no heading"


def test_a_subject_that_is_an_entity_is_the_anchor_by_any_of_its_names(wire: Wire) -> None:
    wire("MEM.ENTITY", "k", "Caroline", "TYPE", "PERSON", "ALIAS", "Caro")
    wire("MEM.FACT", "k", "caro", "plays", "chess", "ID", "1")
    wire("MEM.FACT", "k", "dave", "plays", "go", "ID", "2")
    wire("MEM.FACT", "k", "caroline", "plays", "bridge", "ID", "3")
    found = recalled(wire, "TEXT", "plays")
    assert found["context"].decode().split("\n")[3:] == [
        "- caro plays chess  (valid: 2026-06-01 - present)",
        "- caroline plays bridge  (valid: 2026-06-01 - present)",
        "- dave plays go  (valid: 2026-06-01 - present)",
        "",
        "# ENTITIES",
        "- caroline (PERSON)",
    ]
    (entity,) = found["entities"]
    assert entity == {
        b"name": b"caroline",
        b"type": b"PERSON",
        b"aliases": [b"caro"],
        b"facts": 2,
        b"created_at": float(JUNE),
    }


HOSTILE = [
    "a\r\nb",
    "# FACTS",
    "x\n- y  (valid: 1 - 2)",
    'q"q',
    "\x00\x1b[31m",
    "z\u2028z\u2029z\x85z\x0bz",
    "\n\n",
    "a\tb",
]


def test_no_text_breaks_out_of_its_line(wire: Wire) -> None:
    """One line per fact, entity and episode, whatever each field holds."""
    for number, text in enumerate(HOSTILE):
        other = HOSTILE[number - 1]
        wire("MEM.FACT", "k", f"s{text}s", f"p{other}p", f"o{text}o", "TYPE", "ORG", "QUOTE", text, "EPISODE", text)
        wire("MEM.FACT", "k", f"t{text}t", f"p{other}p", f"o{other}o", "ID", f"i{text}", "META", text, text)
        wire("MEM.ADD", "k", "TEXT", f"e{text}e", "KIND", "episode", "TAGS", 1, text)
    wire("MEM.FACT", "k", b"\xff\xfe\n", b"\xc0\n\xc1", b"\xed\xa0\x80\n", "TYPE", "ORG")
    wire("MEM.ADD", "k", "TEXT", b"\xff\n\xfe", "KIND", "episode")
    for words in ((), ("TEXT", "s o p t e q x y z a b facts valid"), ("TEXT", "\n# ENTITIES\n", "FALLBACK", "RECENT")):
        found = recalled(wire, *words, "FACTS", 1000, "EPISODES", 1000)
        lines = found["context"].decode().splitlines()
        parts = [len(found[name]) for name in ("facts", "entities", "episodes")]
        assert parts[0] and parts[1]
        headings = 1 + sum(2 for part in parts if part)  # each with a blank line before it
        assert len(lines) == headings + sum(parts)
        assert sum(line.startswith("#") for line in lines) == sum(1 for part in parts if part)
        assert sum(line.startswith("- ") for line in lines) == sum(parts)
        assert lines[0].startswith("Known facts about ")
        assert lines[0].endswith(", most relevant first.")


# -- anchors


def test_netflix(wire: Wire) -> None:
    """The second fact shares no word with the question and has no vector: it comes by what the first one names."""
    wire("MEM.FACT", "k", "user", "favourite show is", "breaking bad", "TYPE", "PRODUCT", "ID", "show")
    wire("MEM.FACT", "k", "user", "watches breaking bad on", "netflix", "TYPE", "ORG", "ID", "watches")
    wire("MEM.FACT", "k", "user", "lives in", "porto", "TYPE", "PLACE", "ID", "home")
    assert ranks(wire, "TEXT", "anything good on netflix tonight?") == {
        b"watches": (None, 1, 1),
        b"show": (None, 2, None),
    }
    assert wire("MEM.RECALL", "k", "TEXT", "anything good on netflix tonight?") == (
        b"Known facts about user, most relevant first.\n\n# FACTS  (format: fact (valid: from - to))\n"
        b"- user watches breaking bad on netflix  (valid: 2026-06-01 - present)\n"
        b"- user favourite show is breaking bad  (valid: 2026-06-01 - present)\n\n"
        b"# ENTITIES\n- netflix (ORG)\n- breaking bad (PRODUCT)"
    )


@pytest.mark.parametrize(
    ("name", "text", "found"),
    [
        ("art", "let us start with the party", False),
        ("art", "what about ART?", True),
        ("art", "the art's price", True),
        ("art", "state-of-the-art", True),
        ("new york", "a new flat in york", False),
        ("new york", "A New  York\nminute", True),
        ("new york", "new yorkers", False),
        ("c++", "is c++ fun", True),
        ("c++", "is c fun", False),
        ("北京", "我在北京工作", True),
        ("北京", "北方的京城", False),
        ("東京タワー", "昨日東京タワーに行った", True),
        ("москва", "погода в городе Москва", True),
        ("москва", "москвадан", False),
        ("नई दिल्ली", "कल नई दिल्ली में", True),
        ("αθήνα", "πάμε ΑΘΉΝΑ;", True),
        ("القاهرة", "أين القاهرة الآن", True),
        ("서울", "서울 날씨", True),
        ("straße", "die STRASSE dort", True),
        ("🍕", "who wants 🍕?", True),
    ],
)
def test_names_are_whole_words_in_any_script(wire: Wire, name: str, text: str, found: bool) -> None:
    wire("MEM.FACT", "k", "x", "y", name, "TYPE", "TOPIC", "ID", "f")
    wire("MEM.FACT", "k", "x", "z", "q", "ID", "g")
    held = ranks(wire, "TEXT", text)
    assert (held.get(b"f", (None, None, None))[1] == 1) is found
    assert b"g" not in held


def test_aliases_and_merged_names(wire: Wire) -> None:
    wire("MEM.FACT", "k", "user", "works at", "International Business Machines", "TYPE", "ORG", "ID", "1")
    wire("MEM.FACT", "k", "ibm", "makes", "mainframes", "ID", "2")
    assert ranks(wire, "TEXT", "who is at big blue") == {}
    wire("MEM.ENTITY", "k", "international business machines", "TYPE", "ORG", "ALIAS", "Big Blue", "ALIAS", "ibm")
    assert ranks(wire, "TEXT", "who is at big blue?") == {b"1": (None, 1, None), b"2": (None, 1, None)}
    wire("MEM.FACT", "k", "user", "left", "Red Hat", "TYPE", "ORG", "ID", "3")
    wire("MEM.ENTITY", "k", "international business machines", "TYPE", "ORG", "MERGE", "red hat")
    assert set(ranks(wire, "TEXT", "news of RED HAT")) == {b"1", b"2", b"3"}


def test_names_of_two_types_are_both_anchors(wire: Wire) -> None:
    wire("MEM.FACT", "k", "a", "buys", "apple", "TYPE", "ORG", "ID", "1")
    wire("MEM.FACT", "k", "a", "eats", "apple", "TYPE", "FOOD", "ID", "2", "CONFIDENCE", 0.9)
    found = recalled(wire, "TEXT", "apple")
    assert [(each["id"], each["anchor_rank"]) for each in found["facts"]] == [(b"1", 1), (b"2", 2)]
    assert found["context"].endswith(b"# ENTITIES\n- apple (ORG)\n- apple (FOOD)")


def test_anchored_facts_rank_by_confidence_then_later_valid_at(wire: Wire) -> None:
    """Never by the order of writing; equals share the best rank, and the smaller id stands first."""
    for name, confidence, days in (("e", 0.6, 9), ("b", 0.8, 1), ("d", 0.8, 0), ("c", 0.8, 1), ("a", 1, 0)):
        wire(
            *("MEM.FACT", "k", "x", f"p{name}", "acme", "TYPE", "ORG", "ID", name, "CONFIDENCE", confidence),
            *("VALIDAT", JUNE - DAY * 10 + days * DAY),
        )
    found = ranks(wire, "TEXT", "acme", "FACTS", 4)
    assert [(name, anchor) for name, (_, anchor, _) in found.items()] == [(b"a", 1), (b"b", 2), (b"c", 2), (b"d", 4)]
    assert list(ranks(wire, "TEXT", "acme"))[-1] == b"e"


def test_the_second_hop_stands_behind_the_first(wire: Wire) -> None:
    wire("MEM.FACT", "k", "x", "saw rome at", "acme", "TYPE", "ORG", "ID", "near", "CONFIDENCE", 0.5)
    wire("MEM.FACT", "k", "y", "likes", "rome", "TYPE", "PLACE", "ID", "far", "CONFIDENCE", 1)
    wire("MEM.FACT", "k", "z", "toured oslo and", "rome", "TYPE", "PLACE", "ID", "far2", "CONFIDENCE", 0.9)
    wire("MEM.FACT", "k", "z", "dislikes", "oslo", "TYPE", "PLACE", "ID", "third")
    assert ranks(wire, "TEXT", "acme") == {b"near": (None, 1, 1), b"far": (None, 2, None), b"far2": (None, 3, None)}
    # What is no candidate leads no further.
    assert ranks(wire, "TEXT", "acme", "MINCONF", 0.6) == {}
    wire("MEM.INVALIDATE", "k", "near")
    assert ranks(wire, "TEXT", "acme") == {}


def test_anchors_by_vector(wire: Wire) -> None:
    """The nearest entities, as many as ANCHORTOPK and as near as ANCHORMIN, ranked by how near they are."""
    wire("CONFIG", "SET", "mem-entity-threshold", 1)  # five entities, not one
    near = {"a": (1, 0, 0), "b": (0.9, 0.2, 0), "c": (0.9, 0.3, 0), "d": (0.9, 0.4, 0), "e": (0.5, 1, 0)}
    for name, vector in near.items():
        wire("MEM.FACT", "v", "x", "p", name, "TYPE", "ORG", "ID", name, "ENTITYFVEC", 3, *vector)
    wire("MEM.FACT", "v", "x", "p", "nothing", "ID", "n")
    query = ("FVEC", 3, 2, 0, 0)  # any length
    assert ranks(wire, *query, key="v") == {b"a": (None, 1, None), b"b": (None, 2, None), b"c": (None, 3, None)}
    assert ids(wire, *query, "ANCHORTOPK", 1, key="v") == [b"a"]
    assert ids(wire, *query, "ANCHORTOPK", 0, key="v") == []
    assert ids(wire, *query, "ANCHORTOPK", 9, key="v") == [b"a", b"b", b"c", b"d"]
    assert ids(wire, *query, "ANCHORTOPK", 9, "ANCHORMIN", 0.97, key="v") == [b"a", b"b"]
    assert ids(wire, *query, "ANCHORTOPK", 9, "ANCHORMIN", -1, key="v") == [b"a", b"b", b"c", b"d", b"e"]
    found = ranks(wire, *query, "TEXT", "what of c?", key="v")
    assert {name: anchor for name, (_, anchor, _) in found.items()} == {b"a": 1, b"c": 1, b"b": 3}, "named counts 1.0"
    wire("CONFIG", "SET", "mem-anchor-topk", 2)
    assert ids(wire, *query, key="v") == [b"a", b"b"]
    wire("CONFIG", "SET", "mem-anchor-min", 0.99)
    assert ids(wire, *query, key="v") == [b"a"]


def test_entity_vectors_are_compared_by_cosine_whatever_the_metric(wire: Wire) -> None:
    wire("MEM.CREATE", "l2", "DIM", 2, "METRIC", "L2")
    wire("MEM.FACT", "l2", "x", "p", "a", "TYPE", "ORG", "ID", "a", "ENTITYFVEC", 2, 1, 0.1)
    wire("MEM.FACT", "l2", "x", "p", "b", "TYPE", "ORG", "ID", "b", "ENTITYFVEC", 2, 0, 1)
    assert ids(wire, "FVEC", 2, 1000, 0, key="l2") == [b"a"]
    assert ids(wire, "FVEC", 2, 0, 0, key="l2") == [], "no direction, no anchor"


# -- vector, keyword, and the three together


def test_three_signals_one_score(wire: Wire) -> None:
    wire("MEM.FACT", "v", "user", "likes", "tea", "ID", "words", "FVEC", 3, 0, 0, 1)
    wire("MEM.FACT", "v", "user", "enjoys", "coffee", "ID", "near", "FVEC", 3, 1, 0.1, 0)
    wire("MEM.FACT", "v", "user", "works at", "acme", "TYPE", "ORG", "ID", "anchor")
    wire("MEM.FACT", "v", "user", "sleeps", "late", "ID", "none")
    wire("MEM.ADD", "v", "ID", "note", "TEXT", "tea at acme", "FVEC", 3, 1, 0, 0)
    found = recalled(wire, "TEXT", "is there tea at acme", "FVEC", 3, 1, 0, 0, key="v")["facts"]
    assert [(each["id"], each["score"]) for each in found] == [
        (b"anchor", 1 / 61 + 1 / 61),
        (b"words", 1 / 62 + 1 / 61),
        (b"near", 1 / 61),
    ], "notes rank nowhere"
    assert [(each["vector_rank"], each["anchor_rank"], each["keyword_rank"]) for each in found] == [
        (None, 1, 1),
        (2, None, 1),
        (1, None, None),
    ]
    # Statistics are the memory's: the note counts for df, and a filter of the kind changes no score.
    by_words = [hit[b"id"] for hit in wire("MEM.SEARCH", "v", "tea acme", "FILTER", "@kind", "EQ", "fact")]
    assert set(by_words) == {b"anchor", b"words"}


def test_scores_that_tie(wire: Wire) -> None:
    """Confidence, later valid_at, smaller id."""
    for name, confidence, day in (("z", 1, 0), ("y", 0.9, 2), ("x", 0.9, 2), ("w", 0.9, 1), ("v", 0.8, 5)):
        at = JUNE - 9 * DAY + day
        wire("MEM.FACT", "k", name, "likes", "tea", "ID", name, "CONFIDENCE", confidence, "VALIDAT", at)
    assert ids(wire, "TEXT", "tea") == [b"z", b"x", b"y", b"w", b"v"]
    assert {rank for _, _, rank in ranks(wire, "TEXT", "tea").values()} == {1}


def test_the_same_ranks_by_other_signals_are_the_same_score(wire: Wire) -> None:
    """Ranks (1, 2) and (2, 1) tie, to the bit."""
    wire("MEM.FACT", "v", "tea tea", "p", "o", "ID", "b", "FVEC", 3, 1, 1, 0, "CONFIDENCE", 0.7)
    wire("MEM.FACT", "v", "tea", "p", "o", "ID", "a", "FVEC", 3, 1, 0, 0, "CONFIDENCE", 0.6)
    found = recalled(wire, "TEXT", "tea", "FVEC", 3, 1, 0, 0, key="v")["facts"]
    assert found[0]["score"] == found[1]["score"] == 1 / 61 + 1 / 62
    assert [each["id"] for each in found] == [b"b", b"a"]


def test_a_missing_signal_leaves_the_others_working(wire: Wire) -> None:
    wire("MEM.FACT", "v", "user", "likes", "tea", "ID", "1", "FVEC", 3, 1, 0, 0)
    wire("MEM.FACT", "v", "user", "likes", "acme", "TYPE", "ORG", "ID", "2")
    assert ids(wire, "FVEC", 3, 0, 1, 0, key="v") == [b"1"], "a vector without words"
    assert ids(wire, "TEXT", "tea", key="v") == [b"1"]
    assert ids(wire, "TEXT", "the", key="v") == [], "only a stop word"
    assert ids(wire, "TEXT", "the", "FVEC", 3, 0, 1, 0, key="v") == [b"1"]
    assert ids(wire, "TEXT", "", key="v") == []
    wire("MEM.CREATE", "only", "MODE", "VECTOR", "DIM", 2)
    wire("MEM.FACT", "only", "a", "b", "c", "ID", "1", "FVEC", 2, 1, 0)
    assert ids(wire, "FVEC", 2, 1, 1, key="only") == [b"1"]


# -- candidates and how many


def test_confidence(wire: Wire) -> None:
    for confidence in ("1", "0.5", "0.49", "0"):
        wire("MEM.FACT", "k", f"s{confidence}", "likes", "tea", "ID", confidence, "CONFIDENCE", confidence)
    assert ids(wire, "TEXT", "tea") == ids(wire) == [b"1", b"0.5"]
    assert ids(wire, "TEXT", "tea", "MINCONF", 0) == [b"1", b"0.5", b"0.49", b"0"]
    assert ids(wire, "TEXT", "tea", "MINCONF", 1) == [b"1"]
    wire("CONFIG", "SET", "mem-recall-minconf", 0.2)
    assert ids(wire, "TEXT", "tea") == [b"1", b"0.5", b"0.49"]


def test_eight_facts_unless_told(wire: Wire) -> None:
    for number in range(12):
        wire("MEM.FACT", "k", f"s{number}", "likes", "tea", "ID", f"{number:02}")
    everything = [b"%02d" % number for number in range(12)]
    for words in ((), ("TEXT", "tea")):
        assert ids(wire, *words) == everything[:8]
        assert ids(wire, *words, "FACTS", 3) == everything[:3]
        assert ids(wire, *words, "FACTS", 1000) == everything
        assert wire("MEM.RECALL", "k", *words, "FACTS", 0) == b""
    wire("CONFIG", "SET", "mem-recall-facts", 2)
    assert ids(wire, "TEXT", "tea") == everything[:2]


def test_without_a_query_the_most_recent_facts(wire: Wire, clock: Clock) -> None:
    """By valid_at, then confidence, then id; no score and no rank."""
    for name, day, confidence in (("a", -3, 1), ("e", -1, 0.6), ("d", -1, 0.8), ("c", -1, 0.8), ("future", 1, 1)):
        wire("MEM.FACT", "k", name, "p", "o", "ID", name, "VALIDAT", JUNE + day * DAY, "CONFIDENCE", confidence)
    found = recalled(wire)["facts"]
    assert [each["id"] for each in found] == [b"c", b"d", b"e", b"a"]
    assert {each[name] for each in found for name in FACT_FIELDS[-4:]} == {None}
    assert ids(wire, "FACTS", 1) == [b"c"]
    clock.advance(DAY)
    assert ids(wire, "FACTS", 1) == [b"future"]


def test_fallback_recent(wire: Wire) -> None:
    wire("MEM.FACT", "k", "user", "likes", "tea", "ID", "1", "VALIDAT", JUNE - DAY)
    wire("MEM.FACT", "k", "user", "likes", "milk", "ID", "2")
    assert wire("MEM.RECALL", "k", "TEXT", "weather") == b""
    found = recalled(wire, "TEXT", "weather", "FALLBACK", "RECENT")["facts"]
    assert [(each["id"], each["score"]) for each in found] == [(b"2", None), (b"1", None)]
    assert ids(wire, "TEXT", "tea", "FALLBACK", "RECENT") == [b"1"], "only where nothing matched"
    assert ids(wire, "TEXT", "weather", "FALLBACK", "RECENT", "FACTS", 0) == []


def test_only_what_is_valid(wire: Wire, clock: Clock) -> None:
    wire("MEM.FACT", "k", "user", "lives in", "rome", "TYPE", "PLACE", "ID", "old")
    clock.advance(DAY)
    wire("MEM.FACT", "k", "user", "lives in", "oslo", "TYPE", "PLACE", "ID", "new", "SUPERSEDES", "old")
    wire("MEM.FACT", "k", "user", "moves to", "bonn", "TYPE", "PLACE", "ID", "plan", "VALIDAT", JUNE + 3 * DAY)
    wire("MEM.FACT", "k", "user", "visits", "rome", "TYPE", "PLACE", "ID", "trip", "VALIDUNTIL", JUNE + 2 * DAY)
    assert ids(wire, "TEXT", "rome oslo bonn") == [b"new", b"trip"]
    assert recalled(wire)["entities"][0][b"facts"] == 1
    clock.advance(DAY)
    assert ids(wire, "TEXT", "rome oslo bonn") == [b"new"]
    clock.advance(DAY)
    assert set(ids(wire, "TEXT", "rome oslo bonn")) == {b"new", b"plan"}


def test_asof(wire: Wire, clock: Clock) -> None:
    """The facts of that moment, with its statistics; their ends as they are known now."""
    wire("MEM.FACT", "k", "user", "lives in", "rome", "TYPE", "PLACE", "ID", "old")
    wire("MEM.FACT", "k", "user", "works in", "rome", "ID", "other", "CONFIDENCE", 0.9)
    then = {words: wire.raw("MEM.RECALL", "k", *words, "FORMAT", "MAP") for words in ((), ("TEXT", "who is in rome"))}
    clock.advance(DAY)
    wire("MEM.FACT", "k", "user", "lives in", "oslo", "TYPE", "PLACE", "ID", "new", "SUPERSEDES", "old")
    assert ids(wire, "TEXT", "lives") == [b"new"]
    assert ids(wire, "TEXT", "lives", "ASOF", JUNE) == [b"old"]
    assert ids(wire, "ASOF", JUNE - 1) == []
    block = wire("MEM.RECALL", "k", "TEXT", "lives", "ASOF", "2026-06-01")
    assert b"- user lives in rome  (valid: 2026-06-01 - 2026-06-02)" in block
    for words, reply in then.items():
        old, now = recalled(wire, *words, "ASOF", JUNE)["facts"], reply
        assert [each["id"] for each in old] == [b"old", b"other"]
        for each in old:
            if each["score"] is not None:
                assert b",%s\r\n" % each["score"].raw in now


# -- the budget


def test_budget(wire: Wire) -> None:
    """The longest prefix of the ranking that fits, entities that only the rest names left out; 4 characters a token."""
    for number in range(6):
        kind = ("TYPE", "ORG") if number % 2 else ()
        wire("MEM.FACT", "k", f"s{number}", "likes tea and", "é" * (7 * number + 1), *kind, "ID", number)
    wire("MEM.ADD", "k", "ID", "e1", "TEXT", "tea party", "KIND", "episode")
    wire("MEM.ADD", "k", "ID", "e2", "TEXT", "tea ceremony, long and beautiful", "KIND", "episode")
    query = ("TEXT", "tea")
    prefixes = [recalled(wire, *query, "FACTS", n) for n in range(7)]
    prefixes += [recalled(wire, *query, "EPISODES", n) for n in (1, 2)]
    every = [each["id"] for each in prefixes[-1]["facts"]] + [each[b"id"] for each in prefixes[-1]["episodes"]]
    tokens = [-(-len(each["context"].decode()) // 4) for each in prefixes]
    assert tokens == sorted(set(tokens))
    for budget in range(1, tokens[-1] + 2):
        fits = max(n for n, size in enumerate(tokens) if size <= budget)
        found = recalled(wire, *query, "EPISODES", 2, "BUDGET", budget)
        expected = prefixes[fits]
        assert found["context"] == expected["context"]
        assert found["omitted"] == every[fits:]
        for part in ("facts", "entities", "episodes"):
            assert found[part] == expected[part]


# -- episodes


def test_episodes(wire: Wire, clock: Clock) -> None:
    wire("MEM.ADD", "k", "ID", "n", "TEXT", "tea talk")
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "talk of tea\nand more", "KIND", "episode", "META", "m", 1)
    clock.advance(DAY)
    wire("MEM.ADD", "k", "ID", "b", "TEXT", "tea tea tea", "KIND", "episode", "TAGS", 1, "t", "TTL", 60)
    clock.advance(HOUR // 100)
    wire("MEM.ADD", "k", "ID", "c", "TEXT", "the weather", "KIND", "episode")
    wire("MEM.FACT", "k", "user", "likes", "tea", "ID", "f")

    def episodes(*words: Any) -> list[bytes]:
        return [each[b"id"] for each in recalled(wire, *words)["episodes"]]

    assert episodes("TEXT", "tea") == []
    by_words = [hit[b"id"] for hit in wire("MEM.SEARCH", "k", "tea", "FILTER", "@kind", "EQ", "episode")]
    assert episodes("TEXT", "tea", "EPISODES", 5) == by_words == [b"b", b"a"]
    assert episodes("TEXT", "tea", "EPISODES", 1) == [b"b"]
    assert episodes("EPISODES", 2) == [b"c", b"b"], "the newest"
    found = recalled(wire, "TEXT", "tea", "FACTS", 0, "EPISODES", 5)
    assert found["facts"] == found["entities"] == []
    assert found["context"] == b"# EPISODES\n- tea tea tea  (2026-06-02)\n- talk of tea and more  (2026-06-01)"
    assert found["episodes"] == [wire("MEM.GET", "k", name) for name in by_words]
    assert wire("MEM.RECALL", "k", "TEXT", "tea", "EPISODES", 1).endswith(
        b"- user likes tea  (valid: 2026-06-02 - present)\n\n# EPISODES\n- tea tea tea  (2026-06-02)"
    )
    assert episodes("TEXT", "tea", "EPISODES", 5, "ASOF", JUNE) == [b"a"]
    assert episodes("EPISODES", 5, "ASOF", JUNE) == [b"a"]


def test_episodes_by_vector(wire: Wire) -> None:
    wire("MEM.ADD", "v", "ID", "far", "TEXT", "tea", "KIND", "episode", "FVEC", 3, 0, 1, 0)
    query = ("TEXT", "tea", "FVEC", 3, 1, 0, 0, "EPISODES", 9)
    wire("MEM.ADD", "v", "ID", "words", "TEXT", "tea", "KIND", "episode")
    wire("MEM.ADD", "v", "ID", "near", "TEXT", "milk", "KIND", "episode", "FVEC", 3, 1, 0.5, 0)
    assert [each[b"id"] for each in recalled(wire, *query, key="v")["episodes"]] == [b"near", b"far"]
    wire("MEM.DEL", "v", "near", "far")
    assert [each[b"id"] for each in recalled(wire, *query, key="v")["episodes"]] == [b"words"], "none has a vector"


# -- replies and errors


def test_nothing_to_recall(wire: Wire) -> None:
    empty = {"context": b"", "facts": [], "entities": [], "episodes": [], "omitted": []}
    for words in ((), ("TEXT", "x"), ("EPISODES", 3), ("TEXT", "x", "FALLBACK", "RECENT")):
        assert recalled(wire, *words) == empty
    wire("MEM.ADD", "k", "TEXT", "x")
    assert recalled(wire, "TEXT", "x") == recalled(wire) == empty, "notes are no facts"


def test_resp2_and_resp3(wire: Wire, server: Running) -> None:
    wire("MEM.FACT", "k", "user", "works at", "acme", "TYPE", "ORG", "ID", "f", "CONFIDENCE", 0.75)
    two = server.wire(2)
    assert two("MEM.RECALL", "k", "TEXT", "acme") == wire("MEM.RECALL", "k", "TEXT", "acme")
    found = flat_pairs(two("MEM.RECALL", "k", "TEXT", "acme", "FORMAT", "map"))
    assert list(found) == [b"context", b"facts", b"entities", b"episodes", b"omitted"]
    (fact,) = map(flat_pairs, found[b"facts"])
    assert [name.decode() for name in fact] == FACT_FIELDS
    assert (fact[b"confidence"], fact[b"valid_at"], fact[b"quote"]) == (b"0.75", b"%d" % JUNE, None)
    assert (fact[b"score"], fact[b"vector_rank"], fact[b"anchor_rank"]) == (repr(2 / 61).encode(), None, 1)
    (fact,) = recalled(wire, "TEXT", "acme")["facts"]
    assert isinstance(fact["score"], Double)
    assert fact["score"] == 2 / 61
    assert (fact["vector_rank"], fact["anchor_rank"], fact["keyword_rank"]) == (None, 1, 1)
    assert type(fact["anchor_rank"]) is int


SYNTAX = "ERR syntax error"
ERRORS = [
    (("FACTS", 1001), "ERR FACTS must be between 0 and 1000"),
    (("FACTS", -1), "ERR FACTS must be between 0 and 1000"),
    (("EPISODES", 1001), "ERR EPISODES must be between 0 and 1000"),
    (("ANCHORTOPK", -1), "ERR ANCHORTOPK must be between 0 and 1000"),
    (("MINCONF", 1.5), "ERR MINCONF must be between 0 and 1"),
    (("MINCONF", "nan"), "ERR MINCONF must be between 0 and 1"),
    (("ANCHORMIN", -1.5), "ERR ANCHORMIN must be between -1 and 1"),
    (("BUDGET", 0), "ERR BUDGET must be positive"),
    (("BUDGET", -3), "ERR BUDGET must be positive"),
    (("BUDGET", "x"), "ERR value is not an integer or out of range"),
    (("MINCONF", "x"), "ERR value is not a valid float"),
    (("ASOF", "soon"), "ERR 'soon' is not a time: unix milliseconds or ISO 8601"),
    (("FORMAT", "JSON"), SYNTAX),
    (("FALLBACK", "LIKE"), SYNTAX),
    (("FALLBACK",), SYNTAX),
    (("TEXT",), SYNTAX),
    (("FACTS", 0, "nonsense"), "ERR unexpected argument 'nonsense'"),
    (("CASCADE", "SIDEWAYS"), "ERR syntax error"),
    (("SYNTHESIS",), "ERR inference is off: set inference-url and inference-model"),
    (("KNOWNAT", 5), "ERR unexpected argument 'KNOWNAT'"),
    (("VEC", "xyz"), "ERR vector is not float32 bytes; its length must be a multiple of 4"),
    (("FVEC", 2, 1, 0), "ERR wrong vector dimension, expected 3 got 2"),
    (("FVEC", 3, 0, 0, 0), "ERR a zero vector has no direction to compare under COSINE"),
    (("FVEC", 3, "nan", 0, 0), "ERR vector contains NaN or infinity"),
]


@pytest.mark.parametrize(("words", "error"), ERRORS, ids=[f"{words[0]} {error[4:40]}" for words, error in ERRORS])
def test_what_is_refused(wire: Wire, words: tuple[Any, ...], error: str) -> None:
    wire("MEM.FACT", "v", "a", "b", "c")
    assert wire.error("MEM.RECALL", "v", *words) == error
    if words[0] in ("VEC", "FVEC"):
        assert wire.error("MEM.QUERY", "v", *words) == error


def test_errors_of_the_memory(wire: Wire) -> None:
    no_vectors = "ERR this memory index stores no vectors; create it with MODE VECTOR or MODE HYBRID"
    no_text = "ERR this memory index does not index text; create it with MODE SEARCH or MODE HYBRID"
    wire("MEM.CREATE", "only", "MODE", "VECTOR", "DIM", 2)
    for name in ("MEM.RECALL", "MEM.QUERY"):
        assert wire.error(name, "absent", "TEXT", "x") == "ERR no such memory index"
        assert wire.error(name, "k", "FVEC", 1, 1) == no_vectors
        assert wire.error(name, "only", "TEXT", "x") == no_text
    assert wire.error("MEM.RECALL") == "ERR wrong number of arguments for 'mem.recall' command"
    assert wire.error("MEM.RECALL", "absent", "BUDGET", 0) == "ERR BUDGET must be positive", "words before the key"
    for number in range(3):
        wire("MEM.FACT", "v", number, "p", "o", "FVEC", 3, 1, number, 0, "CONFIDENCE", 0.5 + number / 10)
    wire("CONFIG", "SET", "mem-max-scan", 2)
    assert wire.error("MEM.RECALL", "v", "FVEC", 3, 1, 0, 0).startswith("ERR a scan of 3 vectors exceeds")
    assert len(ids(wire, "FVEC", 3, 1, 0, 0, "MINCONF", 0.6, key="v")) == 2


def test_it_is_a_read(wire: Wire) -> None:
    (info,) = wire("COMMAND", "INFO", "mem.recall")
    assert info[1] == -2
    assert "readonly" in info[2]
    assert wire("COMMAND", "GETKEYS", "MEM.RECALL", "k", "TEXT", "x") == [b"k"]
    wire("MULTI")
    wire("MEM.FACT", "k", "user", "likes", "tea")
    wire("MEM.RECALL", "k", "TEXT", "tea")
    _, block = wire("EXEC")
    assert b"- user likes tea  " in block


def test_larger_memories_in_a_thread_answer_for_their_moment(wire: Wire) -> None:
    """A pipeline's later writes do not show, and what is found stays so through deletions and compactions."""
    rng = np.random.default_rng(5)
    for number in range(700):
        vector = (rng.standard_normal(3).round(1) + 0.01).tolist()
        wire("MEM.FACT", "v", f"s{number % 50}", "uses", f"tool{number % 90}", "TYPE", "PRODUCT", "FVEC", 3, *vector)
    query = ("MEM.RECALL", "v", "TEXT", "who uses tool7", "FVEC", 3, 1, 0, 0, "FACTS", 50, "FORMAT", "MAP")
    before = wire(*query)
    answers = wire.pipeline(
        query, *(("MEM.FACT", "v", f"n{n}", "uses", "tool7", "TYPE", "PRODUCT") for n in range(50)), query
    )
    assert answers[0] == before
    assert answers[-1] != before
    wire("MEM.DEL", "v", *answers[1:-1])
    assert wire(*query) == before
    for again in range(2):  # all rows anew, so that they are compacted
        for number in range(700):
            wire(
                "MEM.FACT", "v", f"s{number % 50}", "uses", f"tool{number % 90}", "TYPE", "PRODUCT", "META", "a", again
            )
    assert wire(*query) == before
