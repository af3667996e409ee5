"""`recalld export` and `recalld import` of facts, entities, episodes, validity and PIN: as they stood, and twice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from random import Random
from typing import Any

import fact_states
import pytest
from harness import DAY, HOUR, JUNE, SECOND, Clock, Running, Wire
from hypothesis import given
from hypothesis import strategies as st
from recalld.server.link import Link
from test_portable import about, export, import_


def records(wire: Wire, key: str = "k") -> list[bytes]:
    """All that MEM.GET shows of every record, valid or not, in SCAN's order, byte for byte."""
    _, ids = wire("MEM.SCAN", key, 0, "COUNT", 10_000)
    return [wire.raw("MEM.GET", key, each, "WITHMETA", "WITHVEC", "WITHFACT") for each in ids]


def state(wire: Wire, key: str = "k") -> list[Any]:
    """What an export holds of a memory."""
    return [about(wire, key), *records(wire, key), wire.raw("MEM.ENTITIES", key, "WITHVEC", "LIMIT", 1000)]


def answers(wire: Wire, dim: int, key: str = "k") -> list[bytes]:
    flags: list[Any] = ["WITHSCORES", "WITHMETA", "WITHTAGS", "WITHVEC", "EXPLAIN", "TOPK", 100]
    vector: list[Any] = ["FVEC", dim, *range(1, dim + 1)] if dim else []
    found = [wire.raw("MEM.QUERY", key, "TEXT", "ann likes acme", *vector, *flags)]
    found += [wire.raw("MEM.QUERY", key, "TEXT", "ann likes acme", *vector, *flags, "FILTER", "@kind", "EQ", "fact")]
    for name in NAMES:
        found += [wire.raw("MEM.FACTS", key, "ENTITY", name), wire.raw("MEM.PATHS", key, name, "DEPTH", 3)]
    return [*found, wire.raw("MEM.FACTS", key), wire.raw("MEM.FACTS", key, "INVALIDATED", "LIMIT", 1000)]


def line(path: Path, which: str, name: str) -> dict[str, Any]:
    """The line of a file whose field `which` is this."""
    lines = [json.loads(each) for each in path.read_text().splitlines()]
    [found] = [each for each in lines if each.get(which) == name]
    return dict(found)


# Round trips


NAMES: list[Any] = ["ann", "acme", "acme inc", "apple", b"\xff\xfe", "zo\u00eb"]
names = st.sampled_from(NAMES)
ids = st.sampled_from(["f1", "f2", "f3", "1", "2", b"\xfd"])
numbers = st.floats(-100, 100, width=32)
vectors = st.tuples(st.floats(1, 100, width=32), numbers, numbers)


def option(name: str, values: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """An option with its value, now and then."""
    return st.one_of(st.just([]), values.map(lambda value: [name, value]))


def options(*choices: st.SearchStrategy[list[Any]]) -> st.SearchStrategy[list[Any]]:
    return st.tuples(*choices).map(lambda found: [word for words in found for word in words])


class Ago(int):
    """Seconds from the time of the command, which `run` knows."""


times = st.integers(-10, 4).map(Ago)
ends = st.integers(5, 15).map(Ago)  # behind each beginning, so that no command is refused for it
common = (
    option("AT", times),
    option("VALIDAT", times),
    option("VALIDUNTIL", ends),
    option("TTL", st.integers(10, 40)),
    vectors.map(lambda vector: ["FVEC", vector]) | st.just(["FVEC", None]),
    st.lists(names, max_size=2).map(lambda tags: ["TAGS", len(tags), *tags] if tags else []),
    st.lists(st.tuples(names, names), max_size=2).map(lambda pairs: [w for pair in pairs for w in ("META", *pair)]),
)
types = st.sampled_from(["ORG", "FOOD", "PERSON"])
facts = st.tuples(
    st.tuples(names, st.sampled_from(["likes", "Works, at", b"\xfb is"]), names),
    options(
        *common,
        option("ID", ids),
        option("TYPE", types),
        option("CONFIDENCE", st.floats(0, 1)),
        option("QUOTE", names),
        option("EPISODE", ids),
        option("SUPERSEDES", ids),
    ),
).map(lambda found: ["MEM.FACT", *found[0], *found[1]])
notes = st.tuples(
    names,
    options(*common, option("ID", ids), option("KIND", st.just("episode")), st.sampled_from([[], [], ["PIN"]])),
).map(lambda found: ["MEM.ADD", "TEXT", found[0], *found[1]])
entities = st.tuples(
    names, options(option("TYPE", types), option("ALIAS", names), option("MERGE", names), option("FVEC", vectors))
).map(lambda found: ["MEM.ENTITY", found[0], *found[1]])
invalidations = st.tuples(ids, st.one_of(st.just([]), st.just(["CLEAR"]), times.map(lambda at: ["AT", at]))).map(
    lambda found: ["MEM.INVALIDATE", found[0], *found[1]]
)
others = st.one_of(
    ids.map(lambda each: ["MEM.DEL", each]),
    st.tuples(ids, names).map(lambda found: ["MEM.SETMETA", found[0], "m", found[1]]),
    st.tuples(ids, st.sampled_from([0, 9])).map(lambda found: ["MEM.EXPIRE", *found]),
)
# Facts and what becomes of them, more than the rest.
commands = st.one_of(facts, facts, facts, facts, facts, notes, notes, entities, invalidations, others)
settings = st.sampled_from([("SEARCH", 0, "COSINE"), ("VECTOR", 3, "L2"), ("HYBRID", 3, "COSINE"), ("HYBRID", 3, "IP")])


def run(wire: Wire, clock: Clock, mode: str, found: list[list[Any]], key: str = "k") -> None:
    """Do the commands, a second apart. The server refuses what it must, which leaves the rest of them."""
    for words in found:
        clock.advance(SECOND)
        said: list[Any] = []
        left = iter(words)
        for word in left:
            if word == "FVEC":
                vector = next(left)
                if mode == "VECTOR" or (mode == "HYBRID" and vector is not None):
                    said += ["FVEC", 3, *(vector or (1, 2, 3))]
            else:
                said.append(clock.now_ms + word * SECOND if isinstance(word, Ago) else word)
        wire.send(said[0], key, *said[1:])
        wire.read()


@given(settings, st.sampled_from([0, 30, "ALL"]), st.lists(commands, min_size=8, max_size=30))
def test_what_goes_out_comes_in(
    server: Running,
    clock: Clock,
    tmp_path_factory: pytest.TempPathFactory,
    setting: tuple[str, int, str],
    history: int | str,
    found: list[list[Any]],
) -> None:
    """Any memory, exported, flushed, imported: the same records, facts, entities and answers, then and ever after.
    Again: not a byte of it changes."""
    mode, dim, metric = setting
    clock.now_ms = JUNE
    wire = server.wire()
    wire("FLUSHALL")
    vectors: list[Any] = ["DIM", dim, "METRIC", metric] if dim else []
    wire("MEM.CREATE", "k", "MODE", mode, *vectors, "HISTORY", history)
    run(wire, clock, mode, found)
    out = tmp_path_factory.mktemp("export") / "out"
    assert export(server, out) == 0
    now = clock.now_ms
    before = [(state(wire), answers(wire, dim))]
    # Facts begin and end, and records expire, as time goes on.
    for _ in range(4):
        clock.advance(5 * SECOND)
        before.append((state(wire), answers(wire, dim)))
    clock.now_ms = now
    wire("FLUSHALL")
    assert import_(server, out) == 0
    payload = wire("DUMP", "k")
    assert import_(server, out) == 0
    assert wire("DUMP", "k") == payload
    for expected in before:
        assert (state(wire), answers(wire, dim)) == expected
        clock.advance(5 * SECOND)
    wire.close()


@pytest.mark.parametrize("seed", range(20))
def test_full_memories_come_in(server: Running, clock: Clock, tmp_path: Path, wire3: Wire, seed: int) -> None:
    """The same of memories in which much has happened: facts restated, superseded, merged and gone again. Deadlines
    are not on the second there, and an import rounds them up."""
    rng = Random(seed)
    wire3("MEM.CREATE", "k", "DIM", 2, "METRIC", rng.choice(["COSINE", "L2"]))
    for _ in range(100):
        fact_states.wander(rng, wire3, clock, "k", 1)
        clock.advance(1)  # no two entities at once
    asks = fact_states.asked(rng, clock.now_ms, clock.now_ms)

    def shown() -> list[Any]:
        _, found = wire3("MEM.SCAN", "k", 0, "COUNT", 1000)
        gets = [["MEM.GET", each, "WITHMETA", "WITHVEC", "WITHFACT"] for each in found]
        now = [words for words in asks if not {"ASOF", "KNOWNAT"} & set(words)]
        return [re.sub(rb"pttl\r\n,(\d+)", _seconds, each) for each in fact_states.replies(wire3, "k", gets + now)]

    before = shown()
    assert export(server, tmp_path / "out") == 0
    wire3("FLUSHALL")
    assert import_(server, tmp_path / "out") == 0
    assert shown() == before
    fact_states.check(fact_states.memory_of(server, "k"), clock.now_ms)
    payload = wire3("DUMP", "k")
    assert import_(server, tmp_path / "out") == 0
    assert wire3("DUMP", "k") == payload


def _seconds(pttl: re.Match[bytes]) -> bytes:
    return b"pttl %d" % -(-int(pttl[1]) // 1000)


def test_the_lines_are_as_documented(server: Running, clock: Clock, tmp_path: Path) -> None:
    """A fact, one that it superseded, an episode, an entity: each with what it has and nothing else."""
    wire = server.wire()
    wire("MEM.CREATE", "k", "DIM", 2, "HISTORY", "ALL")
    wire("MEM.ENTITY", "k", "Apple Inc", "TYPE", "ORG", "ALIAS", "apple", "FVEC", 2, 0, 3)
    wire("MEM.ADD", "k", "ID", "e", "TEXT", "we met", "KIND", "episode", "PIN", "VALIDUNTIL", JUNE + HOUR)
    wire("MEM.FACT", "k", "User", "works, at", b"\xff", "ID", "1", "AT", 5, "VALIDAT", 4)
    clock.advance(SECOND)
    words: list[Any] = ["TYPE", "org", "CONFIDENCE", 0.25, "QUOTE", "I do", "EPISODE", "e", "VALIDUNTIL", JUNE + DAY]
    wire("MEM.FACT", "k", "user", "works at", "apple", "ID", "2", "SUPERSEDES", "1", *words, "FVEC", 2, 1, 0)
    assert export(server, tmp_path / "out") == 0
    lines = [json.loads(each) for each in (tmp_path / "out").read_text().splitlines()]
    assert lines[0] == {"recalld": 2}
    assert lines[1]["settings"]["history"] == "ALL"
    assert lines[1]["entities"] == [
        {"name": "apple inc", "type": "ORG", "aliases": ["apple"], "created_at": JUNE, "vector": "AAAAAAAAgD8="}
    ]
    assert lines[2:] == [
        {
            "id": "e",
            "text": "we met",
            "importance": 0.5,
            "created_at": JUNE,
            "updated_at": JUNE,
            "kind": "episode",
            "valid_until": JUNE + HOUR,
            "pin": True,
        },
        {
            "id": "1",
            "text": {"base64": "dXNlciB3b3JrcyBhdCD/"},
            "importance": 0.5,
            "created_at": 5,
            "updated_at": 5,
            "kind": "fact",
            "valid_at": 4,
            "fact": {
                "subject": "user",
                "predicate": "works at",
                "object": {"base64": "/w=="},
                "superseded_by": "2",
                "confidence": 1.0,
                "invalid_at": JUNE + SECOND,
            },
        },
        {
            "id": "2",
            "text": "user works at apple inc",
            "vector": "AACAPwAAAAA=",
            "importance": 0.5,
            "created_at": JUNE + SECOND,
            "updated_at": JUNE + SECOND,
            "kind": "fact",
            "valid_at": JUNE + SECOND,
            "valid_until": JUNE + DAY,
            "fact": {
                "subject": "user",
                "predicate": "works at",
                "object": "apple inc",
                "entity_type": "ORG",
                "quote": "I do",
                "episode": "e",
                "supersedes": "1",
                "confidence": 0.25,
            },
        },
        {"end": {"memories": 1, "records": 3}},
    ]


FORMAT_1 = """\
{"recalld":1}
{"memory":"k","settings":{"mode":"HYBRID","dim":2,"metric":"IP","weights":{"keyword":0.35,"vector":0.5,"recency":0.1,\
"importance":0.05},"halflife":60,"fusion":"LINEAR","lang":"english","k1":0.9,"b":0.4},"next_id":2,"created_at":7}
{"id":"1","text":"a\\nb","vector":"AACAPwAAAMA=","meta":{"b":"1"},"tags":["t"],"importance":0.5,"created_at":7,\
"updated_at":9}
{"id":{"base64":"/w=="},"text":"c","importance":1.0,"created_at":5,"updated_at":5}
{"end":{"memories":1,"records":2}}
"""


def test_a_file_of_format_1(server: Running, tmp_path: Path, wire3: Wire) -> None:
    """As 0.1 wrote it."""
    (tmp_path / "in").write_text(FORMAT_1)
    assert import_(server, tmp_path / "in") == 0
    [first, second] = (wire3("MEM.GET", "k", each, "WITHMETA", "WITHVEC", "WITHFACT") for each in ("1", b"\xff"))
    assert first == {
        b"id": b"1",
        b"text": b"a\nb",
        b"importance": 0.5,
        b"created_at": 7,
        b"updated_at": 9,
        b"pttl": -1,
        b"cid": first[b"cid"],
        b"tags": [b"t"],
        b"meta": {b"b": b"1"},
        b"vector": b"\0\0\x80?\0\0\0\xc0",
    }
    assert (second[b"text"], second[b"importance"], second[b"vector"]) == (b"c", 1.0, None)
    assert wire3("MEM.INFO", "k")[b"next_id"] == 2


def test_history_begins_with_the_import(server: Running, clock: Clock, tmp_path: Path) -> None:
    """The file is of the present: what was known before is not made up."""
    wire = server.wire()
    wire("MEM.CREATE", "k", "MODE", "SEARCH", "HISTORY", "ALL")
    wire("MEM.ADD", "k", "ID", "n", "TEXT", "first")
    clock.advance(HOUR)
    wire("MEM.ADD", "k", "ID", "n", "TEXT", "second")
    assert export(server, tmp_path / "out") == 0
    wire("FLUSHALL")
    clock.advance(HOUR)
    assert import_(server, tmp_path / "out") == 0
    clock.advance(HOUR)
    wire("MEM.ADD", "k", "ID", "n", "TEXT", "third")
    seen = [
        [hit[1] for hit in wire("MEM.QUERY", "k", "TEXT", "first second third", "KNOWNAT", JUNE + hours * HOUR)]
        for hours in (0, 1, 2, 3)
    ]
    assert [b"first" in str(hits).encode() for hits in seen] == [False] * 4
    assert len(seen[0]) == 0 and b"third" in str(seen[3]).encode()


def test_more_entities_than_a_page(server: Running, clock: Clock, tmp_path: Path) -> None:
    """In the order of coming, which names' meanings depend on; some go between two pages, and no other is lost."""
    wire = server.wire()
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    for number in range(250):
        clock.advance(1)
        wire("MEM.ENTITY", "k", f"name {(number * 7) % 250:03}", "TYPE", "ORG")
    assert export(server, tmp_path / "out") == 0
    expected = [f"name {(number * 7) % 250:03}" for number in range(250)]
    assert [each["name"] for each in line(tmp_path / "out", "memory", "k")["entities"]] == expected
    before = state(wire)
    wire("FLUSHALL")
    for _ in range(2):
        assert import_(server, tmp_path / "out") == 0
        assert state(wire) == before


def test_entities_that_go_between_two_pages(server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those behind them move up by so many places; none of them is lost."""
    wire = server.wire()
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    for number in range(350):
        wire("MEM.ENTITY", "k", f"name {number:03}", "TYPE", "ORG")
    pipeline, merges = Link.pipeline, iter([0, 120])

    def merging(link: Link, words: Any) -> Any:
        replies = pipeline(link, words)
        if words[0][0] == "MEM.ENTITIES" and (count := next(merges, 0)):
            for number in range(count):
                wire("MEM.ENTITY", "k", "name 349", "TYPE", "ORG", "MERGE", f"name {number:03}")
        return replies

    monkeypatch.setattr(Link, "pipeline", merging)
    assert export(server, tmp_path / "out") == 0
    found = [each["name"] for each in line(tmp_path / "out", "memory", "k")["entities"]]
    assert len(found) == len(set(found))
    assert set(found) >= {f"name {number:03}" for number in range(120, 350)}


# Importing into what is there


@pytest.fixture
def exported(server: Running, clock: Clock, tmp_path: Path) -> Path:
    """A file of the memory `k`: the entity acme, the facts 1, invalidated, and 2, which superseded it."""
    wire = server.wire()
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    wire("MEM.FACT", "k", "ann", "works at", "acme", "TYPE", "ORG", "ID", "1", "META", "f", "old")
    clock.advance(HOUR)
    wire("MEM.FACT", "k", "ann", "works at", "umbrella", "ID", "2", "SUPERSEDES", "1")
    assert export(server, tmp_path / "out") == 0
    return tmp_path / "out"


def fact(wire: Wire, each: str) -> dict[bytes, Any] | None:
    found = wire("MEM.GET", "k", each, "WITHFACT")
    return None if found is None else found.get(b"fact")


def test_the_later_update_wins(server: Running, clock: Clock, exported: Path, wire3: Wire) -> None:
    """A fact of the file replaces an older record with its id, whole; a newer one stays."""
    wire3("MEM.DEL", "k", "1", "2")
    wire3("MEM.ADD", "k", "ID", "1", "TEXT", "an older note", "META", "g", "new", "AT", JUNE - 1)
    wire3("MEM.FACT", "k", "ann", "works at", "newer", "ID", "2", "AT", clock.now_ms + 1)
    assert import_(server, exported) == 0
    found = wire3("MEM.GET", "k", "1", "WITHFACT", "WITHMETA")
    assert (found[b"kind"], found[b"meta"]) == (b"fact", {b"f": b"old"})
    assert (found[b"fact"][b"invalid_at"], found[b"fact"][b"superseded_by"]) == (JUNE + HOUR, b"2")
    newer = fact(wire3, "2")
    assert newer is not None and newer[b"object"] == b"newer"


def test_an_older_file_undoes_no_invalidation(server: Running, clock: Clock, exported: Path, wire3: Wire) -> None:
    """Superseded since the export: that stays so. Invalidated in the file and not here: it is, then."""
    clock.advance(HOUR)
    wire3("MEM.FACT", "k", "ann", "works at", "hooli", "ID", "3", "SUPERSEDES", "2")
    wire3("MEM.INVALIDATE", "k", "1", "CLEAR")
    assert import_(server, exported) == 0
    first, second = fact(wire3, "1"), fact(wire3, "2")
    assert first is not None and second is not None
    assert (first[b"invalid_at"], first[b"superseded_by"]) == (JUNE + HOUR, b"2")
    assert (second[b"invalid_at"], second[b"superseded_by"]) == (JUNE + 2 * HOUR, b"3")


def test_what_another_fact_says_stays_out(
    server: Running, clock: Clock, exported: Path, wire3: Wire, capsys: pytest.CaptureFixture[str]
) -> None:
    """Said again meanwhile under another id: that one stays as it is, and the invalidated one of the file comes in."""
    wire3("MEM.DEL", "k", "1", "2")
    wire3("MEM.FACT", "k", "ann", "works at", "umbrella", "ID", "other", "QUOTE", "q", "AT", 5)
    before = fact(wire3, "other")
    for _ in range(2):
        assert import_(server, exported) == 0
        assert fact(wire3, "other") == before
        assert fact(wire3, "2") is None
        old = fact(wire3, "1")
        assert old is not None and old[b"invalid_at"] == JUNE + HOUR
    assert capsys.readouterr().err.endswith(
        "imported: 1 memory, 1 record (1 there already)\nimported: 1 memory, 0 records (2 there already)\n"
    )


def test_an_entity_that_has_another_name_by_now(server: Running, exported: Path, wire3: Wire) -> None:
    """Facts are about what their entity is here; importing twice still changes nothing."""
    wire3("MEM.ENTITY", "k", "acme inc", "TYPE", "ORG", "ALIAS", "the firm")
    wire3("MEM.ENTITY", "k", "acme inc", "TYPE", "ORG", "MERGE", "acme")
    wire3("MEM.DEL", "k", "1")
    assert import_(server, exported) == 0
    found = fact(wire3, "1")
    assert found is not None and found[b"object"] == b"acme inc"
    assert wire3("MEM.ENTITIES", "k")[0] == 1
    payload = wire3("DUMP", "k")
    assert import_(server, exported) == 0
    assert wire3("DUMP", "k") == payload


def test_an_alias_that_is_anothers(
    server: Running, exported: Path, wire: Wire, capsys: pytest.CaptureFixture[str]
) -> None:
    """The line is named and nothing of its records comes in."""
    wire("MEM.ENTITY", "k", "acme", "TYPE", "ORG", "ALIAS", "the firm")
    assert export(server, exported) == 0
    wire("FLUSHALL")
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    wire("MEM.ENTITY", "k", "the firm", "TYPE", "ORG")
    capsys.readouterr()
    assert import_(server, exported) == 1
    assert capsys.readouterr().err == (
        "recalld import: line 2: the server refused it: ERR 'the firm' already names another ORG; MERGE joins them\n"
        "imported before that: 0 memories, 0 records\n"
    )
    assert wire("MEM.CARD", "k") == 0
    assert import_(server, exported, "--replace") == 0


def test_subjects_that_a_server_does_not_take(
    server: Running, exported: Path, wire: Wire, capsys: pytest.CaptureFixture[str]
) -> None:
    """mem-fact-subjects user: the line is named, what stood above it is in and counted, and what was there stays."""
    wire("FLUSHALL")
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    wire("MEM.FACT", "k", "user", "likes", "tea", "ID", "first", "AT", 5)
    assert export(server, exported.parent / "first") == 0
    lines = exported.read_text().splitlines()
    above = (exported.parent / "first").read_text().splitlines()[2]
    lines[2:] = [above, *lines[2:4], '{"end":{"memories":1,"records":3}}', ""]
    exported.write_text("\n".join(lines))
    wire("CONFIG", "SET", "mem-fact-subjects", "user")
    wire("MEM.DEL", "k", "first")
    wire("MEM.ADD", "k", "ID", "1", "TEXT", "an older note", "AT", 5)
    capsys.readouterr()
    assert import_(server, exported) == 1
    assert capsys.readouterr().err == (
        "recalld import: line 4: the server refused it: ERR subject must be 'user' (mem-fact-subjects user)\n"
        "imported before that: 1 memory, 1 record\n"
    )
    assert wire("MEM.SCAN", "k", 0)[1] == [b"first", b"1"]
    assert b"an older note" in wire("MEM.GET", "k", "1")


# Lines that are none


SAID = {"subject": "ann", "predicate": "likes", "object": "tea"}
GOOD: dict[str, Any] = {"id": "9", "created_at": 1, "updated_at": 2, "kind": "fact", "valid_at": 1, "fact": SAID}
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "another kind": (GOOD | {"kind": "dream"}, "kind is neither note, episode nor fact"),
    "a kind that is a list": (GOOD | {"kind": ["fact"]}, "kind is neither note, episode nor fact"),
    "a note with a fact": (GOOD | {"kind": "note"}, "a fact whose kind is not fact"),
    "a fact without one": ({"id": "9", "kind": "fact"}, "kind fact without a fact"),
    "a fact that is a word": (GOOD | {"fact": "tea"}, "fact is no object"),
    "no subject": (GOOD | {"fact": {"predicate": "a", "object": "b"}}, "no subject"),
    "an empty predicate": (
        GOOD | {"fact": SAID | {"predicate": "?!"}},
        "subject, predicate and object must not be empty",
    ),
    "an unknown field": (GOOD | {"fact": SAID | {"mood": "x"}}, "a field that this version does not know: mood"),
    "confidence 2": (GOOD | {"fact": SAID | {"confidence": 2}}, "confidence is no number from 0 to 1"),
    "confidence true": (GOOD | {"fact": SAID | {"confidence": True}}, "confidence is no number from 0 to 1"),
    "another type": (GOOD | {"fact": SAID | {"entity_type": "STAR"}}, "entity_type is none of PERSON ORG .* DATE"),
    "no time": ({name: GOOD[name] for name in GOOD if name != "valid_at"}, "no valid_at"),
    "a time that is a word": (GOOD | {"fact": SAID | {"invalid_at": "now"}}, "invalid_at is no integer from .*"),
    "never valid": (GOOD | {"valid_until": 1}, "valid_until is not after valid_at"),
    "another text": (GOOD | {"text": "x"}, "the text of a fact is its subject, predicate and object"),
    "a pinned fact": (GOOD | {"pin": True}, "a fact has no pin, and no importance but 0.5"),
    "a pin that is a number": (GOOD | {"pin": 1}, "pin is neither true nor false"),
    "a quote that is a number": (GOOD | {"fact": SAID | {"quote": 1}}, "quote is neither a string nor base64"),
    "a long object": (GOOD | {"fact": SAID | {"object": "o" * 501}}, "the server refused it: ERR object exceeds .*"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_line_is_named(
    server: Running, exported: Path, capsys: pytest.CaptureFixture[str], what: str, wire: Wire
) -> None:
    """It stops there, says which line and why, and what stood above it is in and counted."""
    bad, reason = BAD[what]
    lines = exported.read_text().splitlines()
    exported.write_text("\n".join([*lines[:4], json.dumps(bad), *lines[4:], ""]).replace('"records":2', '"records":3'))
    wire("FLUSHALL")
    capsys.readouterr()
    assert import_(server, exported) == 1
    said = capsys.readouterr().err
    assert re.fullmatch(f"recalld import: line 5: {reason}\nimported before that: 1 memory, 2 records\n", said), said
    assert wire("MEM.SCAN", "k", 0)[1] == [b"1", b"2"]


ENTITY: dict[str, Any] = {"name": "acme", "type": "ORG", "created_at": 1}
BAD_ENTITIES: dict[str, tuple[Any, str]] = {
    "no list": ({}, "entities is no list of objects"),
    "no objects": (["acme"], "entities is no list of objects"),
    "no name": ([{"type": "ORG", "created_at": 1}], "entity 1: no name"),
    "no type": ([{"name": "acme", "created_at": 1}], "entity 1: no type"),
    "no time": ([{"name": "acme", "type": "ORG"}], "entity 1: no created_at"),
    "another type": ([ENTITY | {"type": "org"}], "entity 1: type is none of PERSON ORG .* DATE"),
    "an empty name": ([ENTITY | {"name": " "}], "entity 1: a name is empty"),
    "an unknown field": ([ENTITY | {"facts": 1}], "entity 1: a field that this version does not know: facts"),
    "a name twice": ([ENTITY, ENTITY | {"name": "b", "aliases": ["ACME"]}], "entity 2: 'acme' names another ORG"),
    "an alias twice": ([ENTITY | {"aliases": ["a", "a"]}], "entity 1: 'a' names another ORG"),
    "aliases that are a word": ([ENTITY | {"aliases": "a"}], "entity 1: aliases is no list"),
    "a vector": ([ENTITY | {"vector": "AACAPwAAAAA="}], "entity 1: this memory index stores no vectors; .*"),
    "half a number": ([ENTITY | {"vector": "AACA"}], "entity 1: the vector has 3 bytes, which is no float32s"),
}


@pytest.mark.parametrize("what", BAD_ENTITIES)
def test_a_bad_entity_is_named(
    server: Running, exported: Path, capsys: pytest.CaptureFixture[str], what: str, wire: Wire
) -> None:
    """Nothing of its memory is made."""
    value, reason = BAD_ENTITIES[what]
    lines = exported.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | {"entities": value})
    exported.write_text("\n".join(lines))
    wire("FLUSHALL")
    capsys.readouterr()
    assert import_(server, exported) == 1
    said = capsys.readouterr().err
    assert re.fullmatch(f"recalld import: line 2: {reason}\nimported before that: 0 memories, 0 records\n", said), said
    assert wire("DBSIZE") == 0


def test_words_are_written_as_the_server_writes_them(server: Running, exported: Path, wire3: Wire) -> None:
    """A file of other tools may spell a fact and an entity as MEM.FACT takes them; twice is still no change."""
    lines = exported.read_text().splitlines()
    about_k = json.loads(lines[1]) | {"entities": [ENTITY | {"name": " Acme ", "aliases": ["The Firm"]}]}
    told = {"subject": " Ann", "predicate": "Works, at", "object": "the firm ", "entity_type": "ORG"}
    lines[1:] = [json.dumps(about_k), json.dumps(GOOD | {"fact": told}), '{"end":{"memories":1,"records":1}}', ""]
    exported.write_text("\n".join(lines))
    wire3("FLUSHALL")
    assert import_(server, exported) == 0
    found = fact(wire3, "9")
    assert found is not None
    assert (found[b"subject"], found[b"predicate"], found[b"object"]) == (b"ann", b"works at", b"acme")
    payload = wire3("DUMP", "k")
    assert import_(server, exported) == 0
    assert wire3("DUMP", "k") == payload


# MEM.FACT .. IMPORT


def test_import_words(wire3: Wire) -> None:
    """It needs an ID and times, changes no other fact, and leaves nothing of the one whose place it takes."""
    wire3("MEM.CREATE", "k", "MODE", "SEARCH")
    said = ("MEM.FACT", "k", "ann", "likes", "tea")
    assert wire3.error(*said, "IMPORT", 1, "", "") == "ERR IMPORT needs ID"
    assert wire3.error(*said, "ID", "1", "IMPORT", "x", "", "") == (
        "ERR 'x' is not a time: unix milliseconds or ISO 8601"
    )
    assert wire3.error(*said, "ID", "1", "IMPORT", 1, "") == "ERR syntax error"
    wire3(*said, "ID", "1", "META", "f", "v", "TAGS", 1, "t", "TTL", 60)
    words = ("ID", "2", "AT", 9, "SUPERSEDES", "1")
    assert wire3("MEM.FACT", "k", "ann", "likes", "coffee", *words, "IMPORT", 5, "", "") == b"2"
    first, second = (wire3("MEM.GET", "k", each, "WITHFACT")[b"fact"] for each in ("1", "2"))
    assert (first[b"invalid_at"], first[b"superseded_by"]) == (None, None)
    assert (second[b"created_at"], second[b"supersedes"]) == (5, b"1")
    assert wire3("MEM.FACT", "k", "Ann", "likes", "tea", "ID", "3", "QUOTE", "q", "IMPORT", 5, "", "") == b"1"
    assert wire3("MEM.GET", "k", "1", "WITHFACT")[b"fact"] == first
    assert wire3(*said, "ID", "1", "AT", 9, "IMPORT", 0, 7, "gone") == b"1"
    found = wire3("MEM.GET", "k", "1", "WITHFACT", "WITHMETA")
    told = found[b"fact"]
    assert (told[b"created_at"], told[b"invalid_at"], told[b"superseded_by"]) == (0, 7, b"gone")
    assert (found[b"meta"], found.get(b"tags"), found[b"pttl"]) == ({}, None, -1)
