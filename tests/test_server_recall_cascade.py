"""MEM.RECALL with CASCADE and ACROSS as clients meet it: what it says, who takes part by what, what is refused."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from durable import on_loop
from fake_provider import Provider, vector_of
from harness import DAY, JUNE, PATIENCE_S, Clock, Running, Wire, Word, flat_pairs
from recalld.server import workers


@pytest.fixture
def tree(wire3: Wire) -> Wire:
    """What is known of a user, in one chat of the user's, and of the team."""
    for key in ("user", "user:chat", "team"):
        wire3("MEM.CREATE", key, "DIM", 2)
    wire3("MEM.FACT", "user", "user", "works at", "Acme", "TYPE", "ORG", "ID", "job", "CONFIDENCE", 0.9)
    wire3("MEM.ENTITY", "user", "acme", "TYPE", "ORG", "ALIAS", "the factory")
    wire3("MEM.FACT", "user:chat", "user", "is late for", "Acme", "TYPE", "ORG", "ID", "late", "CONFIDENCE", 0.8)
    wire3("MEM.FACT", "team", "acme", "is closed on", "friday", "ID", "closed", "CONFIDENCE", 0.7)
    return wire3


def recalled(wire: Wire, key: str, *words: Word) -> dict[str, Any]:
    return {name.decode(): value for name, value in wire("MEM.RECALL", key, *words, "FORMAT", "MAP").items()}


def found(wire: Wire, key: str, *words: Word) -> list[str]:
    """key/id of the facts found."""
    return [f"{each[b'key'].decode()}/{each[b'id'].decode()}" for each in recalled(wire, key, *words)["facts"]]


# -- what it says


def test_the_block_groups_the_facts_of_all(tree: Wire) -> None:
    """By anchor, whichever memory a fact is in."""
    tree("MEM.FACT", "user", "user", "plays", "chess", "TYPE", "SKILL", "CONFIDENCE", 0.85)
    asked = ("MEM.RECALL", "user:chat", "TEXT", "what about acme and chess", "CASCADE", "UP", "ACROSS", 1, "team")
    assert tree(*asked) == (
        b"Known facts about user, acme, most relevant first.\n\n# FACTS  (format: fact (valid: from - to))\n"
        b"- user works at acme  (valid: 2026-06-01 - present)\n"
        b"- user is late for acme  (valid: 2026-06-01 - present)\n"
        b"- acme is closed on friday  (valid: 2026-06-01 - present)\n"
        b"- user plays chess  (valid: 2026-06-01 - present)\n\n"
        b"# ENTITIES\n- acme (ORG)\n- chess (SKILL)"
    )


def test_an_entity_is_one_anchor_under_the_names_of_all(tree: Wire) -> None:
    """Its other name is known to one memory; the others' facts are about it all the same, and count."""
    across: tuple[Word, ...] = ("ACROSS", 2, "user", "team")
    assert found(tree, "user:chat", "TEXT", "is the factory open", "CASCADE", "DOWN") == []
    asked: tuple[Word, ...] = ("TEXT", "is the factory open", *across)
    assert found(tree, "user:chat", *asked) == ["user/job", "user:chat/late", "team/closed"]
    (entity,) = recalled(tree, "user:chat", *asked)["entities"]
    assert entity == {
        b"name": b"acme",
        b"type": b"ORG",
        b"aliases": [b"the factory"],
        b"facts": 3,
        b"created_at": float(JUNE),
    }


def test_types_are_two_anchors_across_memories_too(tree: Wire) -> None:
    """And a name without a type means the one that most facts of all use."""
    tree("MEM.FACT", "team", "team", "bakes", "acme", "TYPE", "FOOD", "ID", "cake", "CONFIDENCE", 0.95)
    asked: tuple[Word, ...] = ("TEXT", "acme", "ACROSS", 2, "user", "team")
    # `acme is closed`: the ORG's at first, two facts to one; at two to two the named memory's; then the FOOD's.
    for verb, food, org in (("", 1, 3), ("sold", 2, 3), ("eats", 4, 2)):
        if verb:
            tree("MEM.FACT", "team", "team", verb, "acme", "TYPE", "FOOD")
        entities = recalled(tree, "user:chat", *asked)["entities"]
        assert [(each[b"type"], each[b"facts"]) for each in entities] == [(b"FOOD", food), (b"ORG", org)]


def test_the_second_hop_leads_into_other_memories(tree: Wire) -> None:
    tree("MEM.FACT", "team", "the oven", "stands beside friday at", "rome", "TYPE", "PLACE", "ID", "oven")
    tree("MEM.FACT", "user", "rome", "is", "far", "ID", "far")
    assert found(tree, "user", "TEXT", "about an oven", "ACROSS", 1, "team") == ["team/oven"]
    tree("MEM.ENTITY", "user", "the oven", "TYPE", "THING")
    assert found(tree, "user", "TEXT", "what of the oven", "ACROSS", 1, "team") == ["team/oven", "user/far"]


@pytest.mark.parametrize("protocol", [2, 3])
def test_facts_and_episodes_say_their_key(server: Running, tree: Wire, protocol: int) -> None:
    tree("MEM.ADD", "user", "TEXT", "at acme all day", "KIND", "episode", "ID", "e")
    wire = server.wire(protocol)
    asked = ("MEM.RECALL", "user:chat", "TEXT", "acme", "EPISODES", 1, "FORMAT", "MAP")
    reply = wire(*asked, "CASCADE", "UP")
    parts = flat_pairs(reply) if protocol == 2 else reply
    for name, keys in ((b"facts", [b"user", b"user:chat"]), (b"episodes", [b"user"])):
        maps = [flat_pairs(each) if protocol == 2 else each for each in parts[name]]
        assert [list(each)[:2] for each in maps] == [[b"id", b"key"]] * len(keys)
        assert [each[b"key"] for each in maps] == keys
    plain = wire(*asked)
    (fact,) = (flat_pairs(plain) if protocol == 2 else plain)[b"facts"]
    assert b"key" not in (flat_pairs(fact) if protocol == 2 else fact), "unless one of the two was asked for"


def test_ties_go_to_the_smaller_key_then_the_smaller_id(wire3: Wire) -> None:
    for key in ("k:b", "k", "k:a"):
        wire3("MEM.CREATE", key, "MODE", "SEARCH")
        for fact_id in ("2", "1"):
            wire3("MEM.FACT", key, f"s{fact_id}", "likes", "tea", "ID", fact_id)
            wire3("MEM.ADD", key, "TEXT", "tea time", "ID", f"e{fact_id}", "KIND", "episode")
    expected = [f"{key}/{fact_id}" for key in ("k", "k:a", "k:b") for fact_id in (1, 2)]
    for words in ((), ("TEXT", "tea"), ("TEXT", "none", "FALLBACK", "RECENT")):
        assert found(wire3, "k:b", *words, "ACROSS", 2, "k:a", "k") == expected
        assert found(wire3, "k:b", *words, "ACROSS", 2, "k:a", "k", "FACTS", 3) == expected[:3]
    for query in ((), ("TEXT", "tea")):
        episodes = recalled(wire3, "k:b", *query, "ACROSS", 2, "k:a", "k", "EPISODES", 3)["episodes"]
        assert [(each[b"key"], each[b"id"]) for each in episodes] == [(b"k", b"e1"), (b"k", b"e2"), (b"k:a", b"e1")]


def test_the_same_statement_in_two_memories_is_two_facts(tree: Wire) -> None:
    tree("MEM.FACT", "team", "user", "works at", "Acme", "TYPE", "ORG", "ID", "job", "CONFIDENCE", 0.9)
    assert found(tree, "user", "TEXT", "works", "ACROSS", 1, "team") == ["team/job", "user/job"]
    cut = recalled(tree, "user", "TEXT", "works", "ACROSS", 1, "team", "BUDGET", 1)
    assert (cut["facts"], cut["omitted"]) == ([], [b"job", b"job"])


# -- who takes part by what


def test_memories_of_other_vectors_take_part_by_words_and_anchors(wire3: Wire) -> None:
    """Facts, entities and episodes alike."""
    kinds: dict[str, list[Word]] = {
        "m": ["DIM", 2],
        "m:same": ["DIM", 2],
        "m:dim": ["DIM", 3],
        "m:l2": ["DIM", 2, "METRIC", "L2"],
        "m:model": ["DIM", 2, "MODEL", "other"],
        "m:search": ["MODE", "SEARCH"],
    }
    for key, words in kinds.items():
        wire3("MEM.CREATE", key, *words)
        dim = int(words[1]) if words[0] == "DIM" else 0
        vector: list[Word] = ["VEC", vector_of("", dim, key).tobytes()] if dim else []
        entity: list[Word] = ["ENTITYFVEC", dim, *([1] + [0] * (dim - 1))] if dim else []
        wire3("MEM.FACT", key, "s", "likes", "tea", "ID", "words", *vector)
        wire3("MEM.FACT", key, "s", "knows", key, "TYPE", "ORG", "ID", "anchor", *entity)
    facts = recalled(wire3, "m", "FVEC", 2, 1, 0, "CASCADE", "DOWN", "FACTS", 100)["facts"]
    by_vector = {each[b"key"] for each in facts if each[b"vector_rank"] is not None}
    by_anchor = {each[b"key"] for each in facts if each[b"anchor_rank"] is not None}
    assert by_vector == by_anchor == {b"m", b"m:same"}
    facts = recalled(wire3, "m", "TEXT", "tea", "FVEC", 2, 1, 0, "CASCADE", "DOWN", "FACTS", 100)["facts"]
    assert {each[b"key"] for each in facts if each[b"keyword_rank"] == 1} == {key.encode() for key in kinds}
    for key in kinds:
        name = key.replace(":", " ")
        wire3("MEM.ENTITY", key, key, "TYPE", "ORG", "ALIAS", name)
        asked = recalled(wire3, "m", "TEXT", name, "FVEC", 2, 0, 1, "ANCHORTOPK", 0, "CASCADE", "DOWN", "FACTS", 100)
        assert key.encode() in {each[b"key"] for each in asked["facts"] if each[b"anchor_rank"] is not None}


def test_the_named_memory_embeds_the_text(running: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> None:
    """It is compared with what has that model, as things stood when the recall came."""
    provider = Provider(monkeypatch)
    server = running(clock=Clock(), embedder_timeout_ms="60000")
    wire, other = server.wire(3), server.wire(3)
    for key, model in (("e", "m1"), ("e:same", "m1"), ("e:other", "m2")):
        wire("MEM.CREATE", key, "EMBEDDER", "openai", "MODEL", model, "DIM", 3)
        wire("MEM.FACT", key, "s", "likes", f"tea {key}")
    asked = ("MEM.RECALL", "e", "TEXT", "tea", "CASCADE", "DOWN", "FORMAT", "MAP", "ANCHORTOPK", 0)
    expected = wire(*asked, "VEC", vector_of("m1", 3, "tea").tobytes())
    ranks = {each[b"key"]: each[b"vector_rank"] for each in expected[b"facts"]}
    assert sorted(filter(None, ranks.values())) == [1, 2]
    assert ranks[b"e:other"] is None
    waiting = threading.Event()
    wait = provider.gate.wait
    monkeypatch.setattr(provider.gate, "wait", lambda timeout: waiting.set() or wait(timeout))
    provider.gate.clear()
    wire.send(*asked)
    assert waiting.wait(PATIENCE_S)
    other("MEM.FACT", "e:same", "s", "likes", "tea later", "VEC", vector_of("m1", 3, "x").tobytes())
    other("DEL", "e:other")
    provider.gate.set()
    assert wire.read() == expected


def test_asof_looks_back_in_each(tree: Wire, clock: Clock) -> None:
    asked: tuple[Word, ...] = ("TEXT", "acme", "ACROSS", 2, "user:chat", "team")
    before = found(tree, "user", *asked)
    at = clock.now_ms
    clock.advance(DAY)
    tree("MEM.INVALIDATE", "team", "closed")
    tree("MEM.FACT", "user:chat", "user", "left", "acme", "TYPE", "ORG", "ID", "new", "SUPERSEDES", "late")
    assert found(tree, "user", *asked) == ["user:chat/new", "user/job"]
    assert found(tree, "user", *asked, "ASOF", at) == before == ["user/job", "user:chat/late", "team/closed"]


# -- which memories, and who is told


def test_what_is_forbidden_is_as_if_it_were_not_there(server: Running, tree: Wire) -> None:
    """Nor does the client learn the names that only that memory knows."""
    asked: tuple[Word, ...] = ("MEM.RECALL", "user:chat", "TEXT", "the factory", "CASCADE", "UP", "FORMAT", "MAP")
    tree("ACL", "SETUSER", "reader", "reset", "on", "nopass", "+mem.recall", "~user:*")
    reader = server.wire(3)
    reader("AUTH", "reader", "")
    without = reader(*asked)
    tree("ACL", "DELUSER", "reader")
    assert len(tree(*asked)[b"facts"]) == 2
    tree("DEL", "user")
    assert tree(*asked) == without
    assert without[b"facts"] == []


def test_the_audit_has_it_in_each_memory(tree: Wire) -> None:
    tree("CONFIG", "SET", "mem-audit", "all")
    try:
        tree("MEM.RECALL", "user:chat", "TEXT", "acme", "CASCADE", "UP")
        for key in ("user", "user:chat"):
            (entry,) = tree("MEM.AUDIT", key)
            assert (entry[b"command"], entry[b"memory"], entry[b"results"]) == (b"MEM.RECALL", key.encode(), 2)
        assert tree("MEM.AUDIT", "team") == []
    finally:
        tree("CONFIG", "SET", "mem-audit", "no")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["CASCADE"], "ERR syntax error"),
        (["CASCADE", "SIDEWAYS"], "ERR syntax error"),
        (["ACROSS", "x"], "ERR value is not an integer or out of range"),
        (["ACROSS", 2, "x"], "ERR syntax error"),
        (["ACROSS", 1, "x", "y"], "ERR unexpected argument 'y'"),
        (["CASCADE", "UP"], "ERR no such memory index"),
    ],
)
def test_what_is_refused(wire3: Wire, words: list[Word], error: str) -> None:
    """Bad words before the key is looked up."""
    assert wire3.error("MEM.RECALL", "absent", *words) == error


# -- beside writes


def test_inside_a_transaction(tree: Wire) -> None:
    """EXEC is one moment: what it wrote is seen, in every memory."""
    words: tuple[Word, ...] = ("MEM.RECALL", "user:chat", "TEXT", "acme", "CASCADE", "UP", "FORMAT", "MAP")
    tree("MULTI")
    for command in (words, ("MEM.INVALIDATE", "user", "job"), words):
        assert tree(*command) == "QUEUED"
    first, _, second = tree("EXEC")
    assert [each[b"id"] for each in first[b"facts"]] == [b"job", b"late"]
    assert [each[b"id"] for each in second[b"facts"]] == [b"late"]


def test_memories_written_meanwhile(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """In threads, among writes and recalls of every member: each sees exactly the writes before it."""
    monkeypatch.setattr(workers, "INLINE_COST", -1)
    wire = server.wire(3)
    keys = ("m", "m:a", "m:b")
    for key in keys:
        wire("MEM.CREATE", key, "MODE", "SEARCH")
    commands: list[list[Word]] = []
    expected: list[set[tuple[bytes, bytes]]] = []
    there: set[tuple[bytes, bytes]] = set()
    for number in range(150):
        key = keys[number % 3]
        if number % 4 == 3:
            fact_id, of = min(there)
            commands.append(["MEM.DEL", of, fact_id])
            there.discard((fact_id, of))
        else:
            # A new name each time: readers put names together while more of them come.
            commands.append(["MEM.FACT", key, "s", "uses acme with", f"o{number}", "TYPE", "ORG", "ID", number])
            there.add((b"%d" % number, key.encode()))
        asked: list[Word] = ["TEXT", "acme o1 o2 o3", "FACTS", 1000, "FORMAT", "MAP"]
        commands.append(["MEM.RECALL", keys[number % 2], *asked, "ACROSS", 3, *keys])
        commands.append(["MEM.RECALL", key, *asked])
        expected.append(set(there))
    replies = wire.pipeline(*commands)
    got = [{(each[b"id"], each[b"key"]) for each in reply[b"facts"]} for reply in replies[1::3]]
    assert got == expected


def test_readers_keep_nothing_in_the_members(server: Running) -> None:
    """What facts touch is kept for the recalls of one memory (workers.py, rule 2), not for those of several."""
    wire = server.wire(3)
    for key in ("m", "m:a"):
        wire("MEM.CREATE", key, "MODE", "SEARCH")
        wire("MEM.FACT", key, "user", "works at", "acme", "TYPE", "ORG")

    def kept() -> dict[bytes, bool]:
        held = server.server.keyspace.memories.items()
        return {key: memory.table._columns is not None for key, memory in held}

    assert len(wire("MEM.RECALL", "m", "TEXT", "acme", "CASCADE", "DOWN", "FORMAT", "MAP")[b"facts"]) == 2
    assert on_loop(server, kept) == {b"m": False, b"m:a": False}
    wire("MEM.RECALL", "m", "TEXT", "acme")
    assert on_loop(server, kept) == {b"m": True, b"m:a": False}
