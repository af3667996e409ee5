"""EMBEDDER, MODEL, tiers and the backfill as clients meet them; the provider is fake, all else is real."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_provider import Provider, vector_of
from harness import Clock, Running, Wire, flat_pairs

TEXTS = [f"text number {number}" for number in range(20)]
MODEL = ("EMBEDDER", "openai", "MODEL", "m3", "DIM", 3)


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> Provider:
    return Provider(monkeypatch)


@pytest.fixture
def server(provider: Provider, tmp_path: Path) -> Iterator[Running]:
    with Running(clock=Clock(), dir=tmp_path, mem_hit_format="map") as running:
        yield running


@pytest.fixture
def wire(server: Running) -> Wire:
    wire = server.wire()
    wire("MEM.CREATE", "k", *MODEL)
    return wire


def info(wire: Wire, key: str = "k") -> dict[bytes, object]:
    return flat_pairs(wire("MEM.INFO", key))


def stored(wire: Wire, record: str, key: str = "k") -> np.ndarray | None:
    blob = flat_pairs(wire("MEM.GET", key, record, "WITHVEC"))[b"vector"]
    return None if blob is None else np.frombuffer(blob, "<f4")


def stats(wire: Wire, *words: object) -> tuple[list[bytes], dict[bytes, object]]:
    hits, counts = wire("MEM.QUERY", "k", *words, "WITHSTATS")
    return [flat_pairs(hit)[b"id"] for hit in hits], flat_pairs(counts)


# -- writing and asking


def test_a_text_gets_its_vector(wire: Wire) -> None:
    """MEM.ADD, MADD and an overwriting ADD embed what they store; a vector that is given stays."""
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "one")
    wire("MEM.MADD", "k", 2, "RECORD", "ID", "b", "TEXT", "two", "RECORD", "ID", "c", "TEXT", "3", "FVEC", 3, 1, 0, 0)
    assert np.array_equal(stored(wire, "a"), vector_of("m3", 3, "one"))
    assert np.array_equal(stored(wire, "b"), vector_of("m3", 3, "two"))
    assert stored(wire, "c").tolist() == [1, 0, 0]
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "other")
    assert np.array_equal(stored(wire, "a"), vector_of("m3", 3, "other"))
    assert info(wire)[b"pending"] == 0


def test_a_text_is_embedded_once(wire: Wire, provider: Provider) -> None:
    """The same text in another memory, and a query by it, come from the cache; so does KEEPVEC's and a same text's."""
    wire("MEM.CREATE", "other", *MODEL)
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "one")
    wire("MEM.ADD", "other", "ID", "a", "TEXT", "one")
    wire("MEM.QUERY", "k", "TEXT", "one")
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "one", "META", "f", "v")
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "two", "KEEPVEC")
    assert provider.texts == ["one"]
    assert np.array_equal(stored(wire, "a"), vector_of("m3", 3, "one"))


def test_a_query_is_that_of_its_vector(wire: Wire) -> None:
    """A text with an embedder is the query with the text and its vector; NOEMBED and TIER KEYWORD the one without."""
    for text in TEXTS:
        wire("MEM.ADD", "k", "TEXT", text)
    blob = vector_of("m3", 3, "number 7").tobytes()
    told = ("WITHSCORES", "EXPLAIN")
    assert wire("MEM.QUERY", "k", "TEXT", "number 7", *told) == wire(
        "MEM.QUERY", "k", "TEXT", "number 7", "VEC", blob, *told
    )
    ids, counts = stats(wire, "TEXT", "number 7", "TOPK", 20)
    assert counts[b"tier"] == b"hybrid" and len(ids) == 20
    ids, counts = stats(wire, "TEXT", "7", "NOEMBED")
    assert (ids, counts[b"tier"]) == ([b"8"], b"keyword")
    assert stats(wire, "TEXT", "7", "TIER", "KEYWORD", "VEC", blob)[0] == [b"8"]


def test_like_is_literal_and_newest_first(wire: Wire, clock: Clock) -> None:
    """TIER LIKE finds a substring in any case; the newest first, then the smaller id; filters and OFFSET apply."""
    for record, text in (("a", "Straße 12-34"), ("b", "STRASSE 12-34 z"), ("c", "12-345"), ("d", "1234")):
        wire("MEM.ADD", "k", "ID", record, "TEXT", text, "META", "n", record)
        clock.advance(1_000 if record != "b" else 0)
    ids, counts = stats(wire, "TEXT", "2-3", "TIER", "LIKE")
    assert (ids, counts[b"tier"], counts[b"matched"]) == ([b"b", b"c", b"a"], b"like", 3)
    assert stats(wire, "TEXT", "strasse", "TIER", "LIKE")[0] == [b"b", b"a"]
    assert stats(wire, "TEXT", "2-3", "TIER", "LIKE", "OFFSET", 1, "FILTER", "n", "NE", "c")[0] == [b"a"]
    told = flat_pairs(wire("MEM.EXPLAIN", "k", "c", "TEXT", "2-3", "TIER", "LIKE"))
    assert (told[b"rank"], told[b"tier"]) == (2, b"like")


def test_fallback_like(wire: Wire) -> None:
    """Where no word matches, the literal text; where one does, nothing changes."""
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "antidisestablishment")
    asked = ("TIER", "KEYWORD", "FALLBACK", "LIKE")
    ids, counts = stats(wire, "TEXT", "disest", *asked)
    assert (ids, counts[b"tier"]) == ([b"a"], b"like")
    ids, counts = stats(wire, "TEXT", "antidisestablishment", *asked)
    assert (ids, counts[b"tier"]) == ([b"a"], b"keyword")
    assert stats(wire, "TEXT", "xyz", *asked)[0] == []


def test_exec_does_not_wait(wire: Wire, provider: Provider, clock: Clock) -> None:
    """In EXEC a text that is not cached is stored pending, and a query by it uses words."""
    wire("MEM.ADD", "k", "ID", "z", "TEXT", "known")
    provider.gate.clear()
    wire("MULTI")
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "new")
    wire("MEM.ADD", "k", "ID", "b", "TEXT", "known")
    wire("MEM.QUERY", "k", "TEXT", "new", "WITHSTATS")
    replies = wire("EXEC")
    assert replies[:2] == [b"a", b"b"]
    assert flat_pairs(replies[2][1])[b"tier"] == b"keyword"
    assert stored(wire, "a") is None and stored(wire, "b") is not None
    assert info(wire)[b"pending"] == 1
    provider.gate.set()
    assert sum(wire("MEM.EMBED", "k")) <= 1  # by itself, or by this
    assert np.array_equal(stored(wire, "a"), vector_of("m3", 3, "new"))


def test_facts_and_entities(wire: Wire) -> None:
    """A fact is embedded with its anchor, an entity by its name, which then resolves similar names."""
    wire("MEM.FACT", "k", "user", "Likes", "Tea")
    wire("MEM.FACT", "k", "user", "works at", "ACME", "TYPE", "ORG", "ID", "f")
    assert np.array_equal(stored(wire, "1"), vector_of("m3", 3, "user likes Tea. About: user."))
    assert np.array_equal(stored(wire, "f"), vector_of("m3", 3, "user works at acme. About: acme."))
    (entity,) = wire("MEM.ENTITIES", "k", "WITHVEC")[1]
    assert flat_pairs(entity)[b"vector"] == vector_of("m3", 3, "acme").tobytes()
    wire("MEM.ENTITY", "k", "initech", "TYPE", "ORG")
    assert info(wire)[b"pending"] == 0


def test_a_vector_memory_of_texts(server: Running, provider: Provider) -> None:
    """MODE VECTOR with an embedder takes texts without vectors and queries by them; without one, LIKE answers."""
    wire = server.wire()
    wire("MEM.CREATE", "k", "MODE", "VECTOR", *MODEL)
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "Hello there")
    assert stats(wire, "TEXT", "anything")[1][b"tier"] == b"vector"
    provider.down = True
    ids, counts = stats(wire, "TEXT", "hello")
    assert (ids, counts[b"tier"]) == ([b"a"], b"like")
    assert wire("MEM.TIER", "k") == b"like"
    wire("MEM.ADD", "k", "ID", "b", "TEXT", "pending")
    assert info(wire)[b"pending"] == 1


# -- a provider that fails


def test_a_provider_that_fails_fails_no_command(wire: Wire, provider: Provider, clock: Clock, server: Running) -> None:
    """Queries use words and say so, texts are stored and pending; when it is back they are embedded, also after a
    restart and a rewrite in between."""
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "alpha")
    assert wire("MEM.TIER", "k") == b"hybrid"
    provider.down = True
    for text in TEXTS:
        wire("MEM.ADD", "k", "TEXT", text)
    assert wire("MEM.TIER", "k") == b"keyword"
    ids, counts = stats(wire, "TEXT", "beta alpha")
    assert (ids, counts[b"tier"]) == ([b"a"], b"keyword")
    assert info(wire)[b"pending"] == 20 and info(wire)[b"tier"] == b"keyword"
    assert wire("MEM.EMBED", "k") == [0, 20]
    assert b"embed_pending:20" in wire("INFO", "embedding")
    server.restart()
    wire = server.wire()
    wire("BGREWRITEAOF")
    assert wire("MEM.EMBED", "k") == [0, 20]
    provider.down = False
    clock.advance(5_000)
    before = wire("MEM.MGET", "k", "1", "20")
    done, left = wire("MEM.EMBED", "k", "COUNT", 7)
    assert (done, left) == (7, 13)  # nothing runs by itself in between: it waits for five seconds
    wire("MEM.EMBED", "k")
    assert info(wire)[b"pending"] == 0
    assert np.array_equal(stored(wire, "20"), vector_of("m3", 3, TEXTS[19]))
    assert wire("MEM.MGET", "k", "1", "20") == before  # no time has moved
    assert wire("MEM.TIER", "k") == b"hybrid"


def test_a_text_that_is_refused(wire: Wire, provider: Provider) -> None:
    """It is stored, stays pending, and keeps no other from its vector."""
    provider.refuses = {"bad"}
    for text in ("good", "bad", "fine"):
        wire("MEM.ADD", "k", "ID", text, "TEXT", text)
    assert wire("MEM.EMBED", "k") == [0, 1]
    assert stored(wire, "bad") is None and stored(wire, "fine") is not None
    assert stats(wire, "TEXT", "bad")[1][b"tier"] == b"keyword"


def test_a_text_written_over_meanwhile(wire: Wire, provider: Provider, server: Running, clock: Clock) -> None:
    """The vector of the old text never lands on the new one."""
    provider.down = True
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "old")
    provider.down = False
    clock.advance(5_000)
    provider.gate.clear()
    other = server.wire()
    other.send("MEM.EMBED", "k")
    wire("MULTI")
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "new")
    wire("EXEC")
    provider.gate.set()
    other.read()
    wire("MEM.EMBED", "k")
    assert np.array_equal(stored(wire, "a"), vector_of("m3", 3, "new"))


# -- another model


def fill(wire: Wire) -> None:
    for text in TEXTS:
        wire("MEM.ADD", "k", "ID", text[-2:].strip(), "TEXT", text)


@pytest.mark.parametrize("serves", ["vectors", "words"])
def test_a_change_of_model_under_load(serves: str, provider: Provider, tmp_path: Path) -> None:
    """While another model of another width takes over, no query fails, and each answers by one model: all records by
    the old one, or by words, or those there are by the new one."""
    with Running(clock=Clock(), dir=tmp_path, mem_hit_format="map", mem_switch_serves=serves) as server:
        wire = server.wire()
        wire("MEM.CREATE", "k", *MODEL)
        fill(wire)
        asked = ("TEXT", "text number 7", "TOPK", 20, "WITHSCORES")
        by_old = wire("MEM.QUERY", "k", *asked)
        by_words = wire("MEM.QUERY", "k", *asked, "TIER", "KEYWORD")
        provider.gate.clear()
        assert wire("MEM.CONFIG", "k", "EMBEDDER", "openai", "MODEL", "m5", "DIM", 5) == "OK"
        config = flat_pairs(wire("MEM.CONFIG", "k"))
        if serves == "vectors":
            assert wire("MEM.QUERY", "k", *asked) == by_old
            assert (config[b"dim"], flat_pairs(config[b"next"])[b"dim"]) == (3, 5)
            assert flat_pairs(info(wire)[b"switching"])[b"left"] == 20
        else:
            assert wire("MEM.QUERY", "k", *asked, "NOEMBED") == by_words
            assert (config[b"dim"], info(wire)[b"pending"]) == (5, 20)
        seen: list[list[object]] = []
        stop = threading.Event()

        def ask() -> None:
            mine = server.wire()
            while not (seen and stop.is_set()):  # once at least, however late the thread has its turn
                seen.append(mine("MEM.QUERY", "k", *asked))

        asking = threading.Thread(target=ask)
        asking.start()
        provider.gate.set()
        wire("MEM.ADD", "k", "ID", "late", "TEXT", "text number 7")
        wire("MEM.EMBED", "k")
        stop.set()
        asking.join()
        config = flat_pairs(wire("MEM.CONFIG", "k"))
        assert (config[b"model"], config[b"dim"]) == (b"m5", 5) and b"next" not in config
        for record, text in [*((text[-2:].strip(), text) for text in TEXTS), ("late", "text number 7")]:
            assert np.array_equal(stored(wire, record), vector_of("m5", 5, text)), record
        assert seen and all(isinstance(reply, list) for reply in seen)
        by_new = wire("MEM.QUERY", "k", *asked)
        blob = vector_of("m5", 5, "text number 7").tobytes()
        assert by_new == wire("MEM.QUERY", "k", "VEC", blob, *asked)
        server.restart()
        again = server.wire()
        assert again("MEM.QUERY", "k", *asked) == by_new
        again("BGREWRITEAOF")
        server.restart()
        assert server.wire()("MEM.QUERY", "k", *asked) == by_new


def test_a_change_of_model_goes_on_after_a_restart(
    wire: Wire, server: Running, provider: Provider, clock: Clock
) -> None:
    """It is a setting; what was embedded comes from the cache."""
    fill(wire)
    provider.down = True
    wire("MEM.CONFIG", "k", "EMBEDDER", "openai", "MODEL", "m5", "DIM", 5)
    server.restart()
    wire = server.wire()
    assert flat_pairs(wire("MEM.CONFIG", "k"))[b"model"] == b"m3"
    assert wire("MEM.EMBED", "k") == [0, 20]
    provider.down = False
    clock.advance(5_000)
    assert wire("MEM.EMBED", "k")[1] == 0
    assert flat_pairs(wire("MEM.CONFIG", "k"))[b"model"] == b"m5"


def test_back_to_the_old_model(wire: Wire, provider: Provider) -> None:
    """Naming the model that it has ends a change that is under way."""
    fill(wire)
    provider.down = True
    wire("MEM.CONFIG", "k", "EMBEDDER", "openai", "MODEL", "m5", "DIM", 5)
    wire("MEM.CONFIG", "k", "MODEL", "m3")
    config = flat_pairs(wire("MEM.CONFIG", "k"))
    assert (config[b"model"], config[b"dim"]) == (b"m3", 3) and b"next" not in config
    assert stored(wire, "7") is not None


def test_vectors_of_a_client_and_their_model(wire: Wire) -> None:
    """Naming the model of vectors that are there keeps them; another one, with another width, drops them."""
    wire("MEM.CREATE", "own", "DIM", 2)
    wire("MEM.ADD", "own", "ID", "a", "TEXT", "t", "FVEC", 2, 1, 0)
    wire("MEM.CONFIG", "own", "MODEL", "mine")
    assert stored(wire, "a", "own").tolist() == [1, 0]
    assert wire.error("MEM.CONFIG", "own", "DIM", 3) == "ERR DIM changes only with MODEL"
    wire("MEM.CONFIG", "own", "MODEL", "other", "DIM", 3)
    assert stored(wire, "a", "own") is None
    assert wire("MEM.ADD", "own", "ID", "a", "TEXT", "t", "FVEC", 3, 0, 1, 0) == b"a"
    assert flat_pairs(wire("MEM.CONFIG", "own"))[b"model"] == b"other"


def test_history_across_a_change_of_model(wire: Wire, clock: Clock) -> None:
    """A moment before it is answered without vectors of the old model."""
    wire("MEM.CONFIG", "k", "HISTORY", "ALL")
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "alpha one")
    clock.advance(1_000)
    then = clock()
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "beta two")
    clock.advance(1_000)
    wire("MEM.CONFIG", "k", "EMBEDDER", "openai", "MODEL", "m5", "DIM", 5)
    wire("MEM.EMBED", "k")
    asked = ("TEXT", "alpha", "ASOF", then - 1, "KNOWNAT", then - 1, "WITHVEC")
    (hit,) = wire("MEM.QUERY", "k", *asked)
    assert flat_pairs(hit)[b"text"] == b"alpha one" and flat_pairs(hit).get(b"vector") is None


def test_dump_and_restore(wire: Wire, provider: Provider) -> None:
    """Embedder, model and what is pending go with a memory."""
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "one")
    provider.down = True
    wire("MEM.ADD", "k", "ID", "b", "TEXT", "two")
    payload = wire("DUMP", "k")
    wire("RESTORE", "twin", 0, payload)
    assert wire("MEM.CONFIG", "twin") == wire("MEM.CONFIG", "k")
    assert info(wire, "twin")[b"pending"] == 1
    assert wire("DUMP", "twin") == payload


def test_forgotten_texts_leave_the_cache(wire: Wire, server: Running, tmp_path: Path) -> None:
    """After a rewrite the folder holds no vector of a text that no record has."""
    wire("MEM.ADD", "k", "ID", "gone", "TEXT", "secret")
    wire("MEM.ADD", "k", "ID", "kept", "TEXT", "public")
    blobs = [vector_of("m3", 3, text).tobytes() for text in ("secret", "public")]
    wire("MEM.FORGET", "k", "FILTER", "@id", "EQ", "gone")
    wire("SAVE")
    server.stop()
    held = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert [blob in held for blob in blobs] == [False, True]
