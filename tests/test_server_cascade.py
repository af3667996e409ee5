"""CASCADE and ACROSS as clients meet them: what a reply looks like, which memories it covers, what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from durable import on_loop
from fake_provider import Provider, vector_of
from harness import JUNE, PATIENCE_S, SECOND, Agent, Clock, Running, Wire, WireError, Word, flat_pairs
from recalld.server import workers
from recalld.server.paths import KeyPaths, ancestors

TREE = ("a", "a:b", "a:b:c", "a:b:d", "ab", "a:bc", "x", "x:y:z")


@pytest.fixture
def tree(wire: Wire) -> Wire:
    """A record `1` that says alpha in each memory of TREE."""
    for key in TREE:
        wire("MEM.CREATE", key, "DIM", 2)
        wire("MEM.ADD", key, "TEXT", f"alpha {key[-1]}", "FVEC", 2, 1, 0)
    return wire


def covers(wire: Wire, key: Word, *words: Word) -> list[bytes]:
    """The memories of which there are hits, in the order of their keys, which here is that of the hits."""
    hits = wire("MEM.QUERY", key, "FVEC", 2, 1, 0, "WEIGHTS", 0, 1, 0, 0, "NOTEXT", "TOPK", 100, *words)
    return [hit[1] for hit in hits]


# -- which memories


@pytest.mark.parametrize(
    ("key", "words", "expected"),
    [
        ("a:b:c", ["CASCADE", "UP"], "a a:b a:b:c"),
        ("a", ["CASCADE", "UP"], "a"),
        ("a", ["CASCADE", "DOWN"], "a a:b a:b:c a:b:d a:bc"),
        ("a:b", ["CASCADE", "DOWN"], "a:b a:b:c a:b:d"),
        ("a:b", ["CASCADE", "UP"], "a a:b"),
        ("a:b:c", ["cascade", "down"], "a:b:c"),
        ("x", ["CASCADE", "DOWN"], "x x:y:z"),  # x:y is not there
        ("x:y:z", ["CASCADE", "UP"], "x x:y:z"),
        ("a:b", ["ACROSS", 0], "a:b"),
        ("a:b", ["ACROSS", 2, "x", "ab"], "a:b ab x"),
        ("a:b", ["ACROSS", 4, "x", "a:b", "x", "absent"], "a:b x"),
        ("a:b", ["CASCADE", "UP", "ACROSS", 2, "x", "a"], "a a:b x"),
        ("a:b", ["ACROSS", 1, "x", "CASCADE", "DOWN"], "a:b a:b:c a:b:d x"),
        ("a:b", ["CASCADE", "UP", "CASCADE", "DOWN"], "a:b a:b:c a:b:d"),  # the last counts
        ("a:b", ["ACROSS", 1, "x", "ACROSS", 1, "ab"], "a:b ab"),
    ],
)
def test_what_is_covered(tree: Wire, key: str, words: list[Word], expected: str) -> None:
    assert covers(tree, key, *words) == expected.encode().split()


def test_keys_that_come_go_and_are_renamed(tree: Wire, clock: Clock) -> None:
    """Whatever happened to keys since the first question about descendants."""
    assert covers(tree, "x", "CASCADE", "DOWN") == [b"x", b"x:y:z"]
    tree("RENAME", "a:b:c", "x:q")
    assert covers(tree, "x", "CASCADE", "DOWN") == [b"x", b"x:q", b"x:y:z"]
    assert covers(tree, "a:b", "CASCADE", "DOWN") == [b"a:b", b"a:b:d"]
    tree("COPY", "ab", "x:y:z:deep")
    tree("DEL", "x:y:z")
    assert covers(tree, "x", "CASCADE", "DOWN") == [b"x", b"x:q", b"x:y:z:deep"]
    dumped = tree("DUMP", "ab")
    tree("RESTORE", "x::", 0, dumped)
    tree("EXPIRE", "x:q", 10)
    assert covers(tree, "x", "CASCADE", "DOWN") == [b"x", b"x::", b"x:q", b"x:y:z:deep"]
    clock.advance(10 * SECOND)
    assert covers(tree, "x", "CASCADE", "DOWN") == [b"x", b"x::", b"x:y:z:deep"]
    assert covers(tree, "x:y:z:deep", "CASCADE", "UP", "ACROSS", 1, "x:q") == [b"x", b"x:y:z:deep"]
    tree("FLUSHALL")
    tree("MEM.CREATE", "x", "DIM", 2)
    assert covers(tree, "x", "CASCADE", "DOWN") == []
    tree("MEM.CREATE", "x:new", "DIM", 2)
    tree("MEM.ADD", "x:new", "TEXT", "t", "FVEC", 2, 1, 0)
    assert covers(tree, "x", "CASCADE", "DOWN") == [b"x:new"]


def test_a_forbidden_memory_is_as_if_it_were_not_there(server: Running, tree: Wire) -> None:
    """It has no hit, and counts in no statistic."""
    words = ("MEM.QUERY", "a", "TEXT", "alpha", "CASCADE", "DOWN", "WITHSCORES")
    tree("ACL", "SETUSER", "reader", "reset", "on", "nopass", "+mem.query", "~a", "~a:b:*", "~a:bc")
    reader = server.wire()
    reader("AUTH", "reader", "")
    without = reader(*words)
    tree("ACL", "DELUSER", "reader")
    assert [hit[1] for hit in tree(*words)] == [b"a", b"a:b", b"a:b:c", b"a:b:d", b"a:bc"]
    tree("DEL", "a:b")
    assert tree(*words) == without


def test_paths_against_looking_at_every_key() -> None:
    """After every coming and going, above and below are what the names say; deep paths too."""
    deep = b":".join([b"p"] * 70)
    names = [b"a", b"a:b", b"a:b:c", b"a::", b"a:", b":", b"", b":a", b"ab", b"a:b:c:d:e", deep, deep + b":x"]
    names += [deep + b":x:y", deep[:129], deep[:127], deep + b"x"]
    keys: dict[bytes, None] = {}
    paths = KeyPaths(keys)

    def check() -> None:
        for name in names:
            below = sorted(paths.descendants(name))
            assert below == sorted(key for key in keys if key.startswith(name + b":"))
            above = [key for key in ancestors(name, keys) if key in keys]
            assert sorted(above) == sorted(key for key in keys if name.startswith(key + b":"))

    for name in [*names, *names[::-1], *names[3:9]]:
        if name in keys:
            del keys[name]
            paths.remove(name)
        else:
            keys[name] = None
            paths.add(name)
        check()
    built = KeyPaths(keys)
    assert all(sorted(built.descendants(name)) == sorted(paths.descendants(name)) for name in names)
    for name in list(keys):
        del keys[name]
        paths.remove(name)
    assert not paths._below


# -- what replies look like


def test_the_key_stands_after_the_id(tree: Wire) -> None:
    """In an array, in a map, and in the array of pairs."""
    words = ("MEM.QUERY", "a:b", "TEXT", "alpha", "CASCADE", "UP", "WITHMETA", "WITHTAGS")
    assert tree(*words) == [[b"1", b"a", b"alpha a", [], []], [b"1", b"a:b", b"alpha b", [], []]]
    assert tree(*words, "NOTEXT", "TOPK", 1)[0][:2] == [b"1", b"a"]
    tree("CONFIG", "SET", "mem-hit-format", "map")
    assert list(flat_pairs(tree(*words)[1]))[:4] == [b"id", b"key", b"score", b"text"]
    tree("HELLO", 3)
    hit = tree(*words)[1]
    assert list(hit)[:4] == [b"id", b"key", b"score", b"text"]
    assert (hit[b"id"], hit[b"key"], hit[b"text"]) == (b"1", b"a:b", b"alpha b")


def test_without_either_no_hit_says_its_key(tree: Wire) -> None:
    assert tree("MEM.QUERY", "a:b", "TEXT", "alpha") == [[b"1", b"alpha b"]]


def test_equal_scores(wire: Wire) -> None:
    """The newer first, whatever its key; then the smaller key, whatever the id; then the smaller id."""
    for key in ("k:b", "k", "k:a"):
        wire("MEM.CREATE", key, "MODE", "SEARCH")
        for record_id in (b"2", b"1", b"\xff"):
            wire("MEM.ADD", key, "ID", record_id, "TEXT", "alpha", "AT", JUNE)
    wire("MEM.ADD", "k:b", "ID", "new", "TEXT", "alpha", "AT", JUNE + 1)
    hits = wire("MEM.QUERY", "k:b", "TEXT", "alpha", "ACROSS", 2, "k:a", "k", "NOTEXT", "WEIGHTS", 1, 0, 0, 0)
    expected = [[b"new", b"k:b"]]
    expected += [[record_id, key] for key in (b"k", b"k:a", b"k:b") for record_id in (b"1", b"2", b"\xff")]
    assert hits == expected


def test_counts_are_of_all_that_is_covered(tree: Wire) -> None:
    asked = ("MEM.QUERY", "a", "TEXT", "alpha", "CASCADE", "DOWN", "FILTER", "@text", "NE", "alpha c", "WITHSTATS")
    _, stats = tree(*asked)
    counts = flat_pairs(stats)
    assert [counts[name] for name in (b"records", b"matched", b"filtered", b"returned")] == [5, 5, 2, 3]
    _, stats = tree("MEM.QUERY", "ab", "TEXT", "alpha", "CASCADE", "UP", "WITHSTATS")
    assert flat_pairs(stats)[b"records"] == 1


def test_explain_ranks_the_named_memorys_record_among_all(tree: Wire) -> None:
    for place, key in enumerate(("a", "a:b", "a:b:c"), 1):
        others = [other for other in ("a", "a:b", "a:b:c") if other != key]
        asked = ("MEM.EXPLAIN", key, "1", "TEXT", "alpha", "WEIGHTS", 0, 0, 0, 1, "ACROSS", 2, *others)
        assert flat_pairs(tree(*asked))[b"rank"] == place
    assert flat_pairs(tree("MEM.EXPLAIN", "a", "nobody", "TEXT", "alpha", "CASCADE", "DOWN"))[b"reason"] == b"absent"
    tree("MEM.ADD", "a:b", "ID", "only", "TEXT", "alpha")
    absent = flat_pairs(tree("MEM.EXPLAIN", "a", "only", "TEXT", "alpha", "CASCADE", "DOWN"))
    assert absent[b"reason"] == b"absent"


# -- who takes part by what


def test_a_memory_of_other_vectors_takes_part_by_words(wire: Wire) -> None:
    """Another width, metric or model: no similarity, but the words count; in VECTOR mode it is left with nothing."""
    wire("MEM.CREATE", "m", "DIM", 2)
    wire("MEM.ADD", "m", "TEXT", "beta", "FVEC", 2, 1, 0)
    kinds: dict[str, list[Word]] = {
        "m:dim": ["DIM", 3],
        "m:l2": ["DIM", 2, "METRIC", "L2"],
        "m:model": ["DIM", 2, "MODEL", "other"],
        "m:search": ["MODE", "SEARCH"],
        "m:same": ["DIM", 2],
        "m:vector": ["DIM", 2, "MODE", "VECTOR"],
        "m:far": ["DIM", 3, "MODE", "VECTOR"],
    }
    for key, words in kinds.items():
        wire("MEM.CREATE", key, *words)
        dim = words[words.index("DIM") + 1] if "DIM" in words else 0
        vector = ["FVEC", dim, *([1] + [0] * 8)[: int(dim)]] if dim else []
        wire("MEM.ADD", key, "TEXT", "alpha", *vector)
    hits = wire("MEM.QUERY", "m", "TEXT", "alpha", "FVEC", 2, 1, 0, "CASCADE", "DOWN", "NOTEXT", "WITHSCORES")
    has = {hit[1]: set(flat_pairs(hit[2])) & {b"keyword", b"vector"} for hit in hits}
    by_words = {b"m:dim": {b"keyword"}, b"m:l2": {b"keyword"}, b"m:model": {b"keyword"}, b"m:search": {b"keyword"}}
    by_vector = {b"m": {b"vector"}, b"m:vector": {b"vector"}}
    assert has == by_words | by_vector | {b"m:same": {b"keyword", b"vector"}}
    # A named memory of words only has no vector to compare with, and one of vectors only no words.
    hits = wire("MEM.QUERY", "m:search", "TEXT", "alpha", "CASCADE", "UP", "ACROSS", 2, "m:vector", "m:same", "NOTEXT")
    assert [hit[1] for hit in hits] == [b"m:same", b"m:search"]
    assert "stores no vectors" in wire.error("MEM.QUERY", "m:search", "FVEC", 2, 1, 0, "CASCADE", "UP")
    assert "does not index text" in wire.error("MEM.QUERY", "m:vector", "TEXT", "alpha", "CASCADE", "UP")
    hits = wire("MEM.QUERY", "m:vector", "FVEC", 2, 1, 0, "CASCADE", "UP", "ACROSS", 1, "m:model", "NOTEXT")
    assert [hit[1] for hit in hits] == [b"m", b"m:vector"]


def test_the_named_memorys_language_cuts_the_query(wire: Wire) -> None:
    """A record is found by the words that its own memory gave it."""
    for key, lang in (("w", "english"), ("w:none", "none")):
        wire("MEM.CREATE", key, "MODE", "SEARCH", "LANG", lang)
        wire("MEM.ADD", key, "ID", "s", "TEXT", "runs")
        wire("MEM.ADD", key, "ID", "ing", "TEXT", "running")
        wire("MEM.ADD", key, "ID", "stem", "TEXT", "run")
    words = ("TEXT", "running", "NOTEXT", "WEIGHTS", 1, 0, 0, 0)
    english = wire("MEM.QUERY", "w", *words, "CASCADE", "DOWN")
    assert sorted(map(tuple, english)) == [(b"ing", b"w"), (b"s", b"w"), (b"stem", b"w"), (b"stem", b"w:none")]
    none = wire("MEM.QUERY", "w:none", *words, "CASCADE", "UP")
    assert none == [[b"ing", b"w:none"]]


def test_like_looks_at_the_texts_of_all(tree: Wire) -> None:
    hits = tree("MEM.QUERY", "a", "TEXT", "LPHA", "CASCADE", "DOWN", "TIER", "LIKE", "NOTEXT")
    assert [hit[1] for hit in hits] == [b"a", b"a:b", b"a:b:c", b"a:b:d", b"a:bc"]
    hits = tree("MEM.QUERY", "a", "TEXT", "lph", "CASCADE", "DOWN", "FALLBACK", "LIKE", "NOTEXT", "TOPK", 2)
    assert [hit[1] for hit in hits] == [b"a", b"a:b"]


def test_the_named_memorys_embedder_makes_the_vector(
    running: Callable[..., Running], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is compared with the vectors of the same model only, as they were when the query came."""
    provider = Provider(monkeypatch)
    server = running(clock=Clock(), embedder_timeout_ms="60000")
    wire, other = server.wire(), server.wire()
    for key, model in (("e", "m1"), ("e:same", "m1"), ("e:other", "m2")):
        wire("MEM.CREATE", key, "EMBEDDER", "openai", "MODEL", model, "DIM", 3)
        wire("MEM.ADD", key, "TEXT", "alpha " + key)
    asked = ("MEM.QUERY", "e", "TEXT", "alpha", "CASCADE", "DOWN", "NOTEXT", "WITHSCORES")
    given = ("VEC", vector_of("m1", 3, "alpha").tobytes())
    expected = wire(*asked, *given)
    has = {hit[1]: b"vector" in flat_pairs(hit[2]) for hit in expected}
    assert has == {b"e": True, b"e:same": True, b"e:other": False}
    waiting = threading.Event()
    wait = provider.gate.wait
    monkeypatch.setattr(provider.gate, "wait", lambda timeout: waiting.set() or wait(timeout))
    provider.gate.clear()
    wire.send(*asked)
    assert waiting.wait(PATIENCE_S)
    other("MEM.CONFIG", "e:same", "EMBEDDER", "NONE", "MODEL", "m3")
    other("DEL", "e:other")
    provider.gate.set()
    assert wire.read() == expected
    provider.down = True
    _, stats = wire("MEM.QUERY", "e", "TEXT", "nothing", "CASCADE", "DOWN", "WITHSTATS")
    assert flat_pairs(stats)[b"tier"] == b"keyword"


# -- errors


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["CASCADE"], "ERR syntax error"),
        (["CASCADE", "SIDEWAYS"], "ERR syntax error"),
        (["ACROSS"], "ERR syntax error"),
        (["ACROSS", "x"], "ERR value is not an integer or out of range"),
        (["ACROSS", -1], "ERR value is not an integer or out of range"),
        (["ACROSS", 2, "x"], "ERR syntax error"),
        (["ACROSS", 1, "x", "y"], "ERR unexpected argument 'y'"),
    ],
)
@pytest.mark.parametrize("command", [["MEM.QUERY", "absent"], ["MEM.EXPLAIN", "absent", "1"]])
def test_bad_options(wire: Wire, command: list[Word], words: list[Word], error: str) -> None:
    """Before the key is looked up."""
    assert wire.error(*command, "TEXT", "alpha", *words) == error


def test_the_named_memory_must_be_there(tree: Wire) -> None:
    assert tree.error("MEM.QUERY", "a:q", "TEXT", "alpha", "CASCADE", "UP") == "ERR no such memory index"
    assert tree.error("MEM.QUERY", "q", "TEXT", "alpha", "ACROSS", 1, "a") == "ERR no such memory index"


@pytest.mark.parametrize("option", [["CASCADE", "UP"], ["ACROSS", 1, "x"]])
def test_search_and_vsearch_do_not_have_it(tree: Wire, option: list[Word]) -> None:
    assert tree.error("MEM.SEARCH", "a", "alpha", *option) == f"ERR unexpected argument '{option[0]}'"
    assert tree.error("MEM.VSEARCH", "a", "FVEC", 2, 1, 0, *option) == f"ERR unexpected argument '{option[0]}'"


def test_scans_are_limited_over_all(tree: Wire) -> None:
    tree("CONFIG", "SET", "mem-max-scan", 4)
    assert "a scan of 5 vectors exceeds" in tree.error("MEM.QUERY", "a", "FVEC", 2, 1, 0, "CASCADE", "DOWN")
    assert covers(tree, "a:b", "CASCADE", "DOWN") == [b"a:b", b"a:b:c", b"a:b:d"]


# -- beside writes


def test_inside_a_transaction(tree: Wire) -> None:
    """EXEC is one moment: what it wrote is seen, in every memory."""
    words: tuple[Word, ...] = ("MEM.QUERY", "a:b:c", "TEXT", "alpha", "CASCADE", "UP", "NOTEXT")
    tree("MULTI")
    for command in (words, ("DEL", "a:b"), words, ("MEM.ADD", "a", "ID", "2", "TEXT", "alpha"), words):
        assert tree(*command) == "QUEUED"
    first, _, second, _, third = tree("EXEC")
    assert sorted(hit[1] for hit in first) == [b"a", b"a:b", b"a:b:c"]
    assert sorted(hit[1] for hit in second) == [b"a", b"a:b:c"]
    assert sorted(map(tuple, third)) == [(b"1", b"a"), (b"1", b"a:b:c"), (b"2", b"a")]


def test_memories_written_meanwhile(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """In threads, among writes to every memory that is covered: each query sees exactly the writes before it."""
    monkeypatch.setattr(workers, "INLINE_COST", -1)
    wire = server.wire()
    keys = ("m", "m:a", "m:b")
    for key in keys:
        wire("MEM.CREATE", key, "DIM", 2)
    commands: list[list[Word]] = []
    expected: list[set[tuple[bytes, bytes]]] = []
    there: set[tuple[bytes, bytes]] = set()
    for number in range(150):
        key = keys[number % 3]
        if number % 4 == 3 and there:
            record_id, of = min(there)
            commands.append(["MEM.DEL", of, record_id])
            there.discard((record_id, of))
        else:
            commands.append(["MEM.ADD", key, "ID", number, "TEXT", "alpha", "FVEC", 2, 1, number])
            there.add((b"%d" % number, key.encode()))
        named = keys[number % 2]
        asked = ["MEM.QUERY", named, "TEXT", "alpha", "FVEC", 2, 1, 0, "ACROSS", 3, *keys, "NOTEXT", "TOPK", 1000]
        commands.append(asked)
        expected.append(set(there))
    replies = wire.pipeline(*commands)
    assert not [reply for reply in replies if isinstance(reply, WireError)]
    assert [set(map(tuple, hits)) for hits in replies[1::2]] == expected


def test_readers_keep_nothing_in_the_members(server: Running) -> None:
    """Encoded columns, codes and estimates belong to the queries of one memory (workers.py, rule 2)."""
    wire = server.wire()
    for key in ("m", "m:a"):
        wire("MEM.CREATE", key, "DIM", 2)
        batch: list[Word] = []
        for number in range(5_000):
            batch += ["RECORD", "TEXT", "alpha", "FVEC", 2, 1, number, "META", "f", number % 7, "TAGS", 1, "red"]
        wire("MEM.MADD", key, 5_000, *batch)
    asked = ("TEXT", "alpha", "FVEC", 2, 1, 0, "FILTER", "f", "EQ", 3, "TAGS", "ANY", 1, "red", "TOPK", 3)

    def kept() -> list[Any]:
        tables = [memory.table for memory in server.server.keyspace.memories.values()]
        return [(table._columns, table._estimates, table.vectors.codes.n) for table in tables]

    before = on_loop(server, kept)
    assert len(wire("MEM.QUERY", "m", *asked, "CASCADE", "DOWN")) == 3
    assert on_loop(server, kept) == before == [(None, None, 0)] * 2
    wire("MEM.QUERY", "m", *asked)
    assert on_loop(server, kept) != before


def test_every_reply_format(agent: Agent) -> None:
    agent("MEM.CREATE", "m", "MODE", "SEARCH")
    agent("MEM.CREATE", "m:a", "MODE", "SEARCH")
    agent("MEM.ADD", "m:a", "TEXT", "alpha", "META", "x", 1)
    (hit,) = agent("MEM.QUERY", "m", "TEXT", "alpha", "CASCADE", "DOWN", "WITHMETA")
    if agent.form == "array":
        assert hit == [b"1", b"m:a", b"alpha", [b"x", b"1"]]
    else:
        assert agent.as_map(hit)[b"key"] == b"m:a"
