"""The backfill and the change of model, attacked: deletes, refusals, slow models, copies, writes meanwhile."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from durable import DIR, on_loop
from fake_embedder import FakeEmbedder
from fake_provider import Provider, vector_of
from faulty_files import FaultyFiles
from harness import PATIENCE_S, Clock, Running, Wire, flat_pairs
from recalld.server import embedder, embedding
from recalld.server.embedder import Floats, Model

MODEL = ("EMBEDDER", "openai", "MODEL", "m3", "DIM", 3)
NEXT = ("EMBEDDER", "openai", "MODEL", "m5", "DIM", 5)
#: Less than the time after which all memories are looked at; what is due at once is done long before.
SOON_S = PATIENCE_S / 2


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


def info(wire: Wire, key: str = "k") -> dict[bytes, Any]:
    return flat_pairs(wire("MEM.INFO", key))


def model(wire: Wire, key: str = "k") -> bytes:
    found: bytes = flat_pairs(wire("MEM.CONFIG", key))[b"model"]
    return found


def soon(holds: Callable[[], bool]) -> None:
    """Wait until it holds."""
    end = time.monotonic() + SOON_S
    while not holds():
        assert time.monotonic() < end, "it does not come to pass"


def unseen(wire: Wire, *words: object) -> None:
    """Write in EXEC, which embeds nothing: what is written is pending."""
    wire("MULTI")
    wire(*words)  # type: ignore[arg-type]
    wire("EXEC")


# -- what is pending is embedded by itself


@pytest.mark.parametrize("how", ["RENAME", "RENAMENX", "COPY", "RESTORE"])
def test_a_memory_that_comes_to_a_key(
    how: str, wire: Wire, provider: Provider, server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("recalld.server.backfill._LOOK_S", float("inf"))
    provider.down = True
    wire("MEM.ADD", "k", "TEXT", "one")
    assert info(wire)[b"pending"] == 1
    payload = wire("DUMP", "k")
    provider.down = False
    assert isinstance(server.clock, Clock)
    server.clock.advance(5_000)
    if how == "RESTORE":
        wire("DEL", "k")
        wire("RESTORE", "twin", 0, payload)
    else:
        wire(how, "k", "twin")
    soon(lambda: info(wire, "twin")[b"pending"] == 0)


def test_entities_after_a_restart(wire: Wire, server: Running, provider: Provider) -> None:
    """A name without a vector waits as a record does."""
    provider.down = True
    wire("MEM.ENTITY", "k", "acme", "TYPE", "ORG")
    provider.down = False
    server.restart()
    again = server.wire()

    def vectors() -> list[object]:
        return [flat_pairs(entity).get(b"vector") for entity in again("MEM.ENTITIES", "k", "WITHVEC")[1]]

    soon(lambda: vectors() == [vector_of("m3", 3, "acme").tobytes()])


def test_a_record_that_comes_while_names_are_embedded(wire: Wire, provider: Provider, server: Running) -> None:
    """The memory stays among those that have something to embed."""
    wire("MEM.ADD", "k", "TEXT", "so that the model is loaded")
    provider.gate.clear()
    unseen(wire, "MEM.ENTITY", "k", "acme", "TYPE", "ORG")
    soon(lambda: b"embed_waiting:1" in wire("INFO", "embedding"))
    unseen(wire, "MEM.ADD", "k", "TEXT", "late")
    provider.gate.set()
    soon(lambda: info(wire)[b"pending"] == 0)


def test_a_slow_model_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text whose batch takes longer than embedder-timeout-ms gets its vector, however often others waited in vain."""
    fake = FakeEmbedder()
    fake.batch_texts = 1
    monkeypatch.setattr(embedding, "make", fake.make)
    with Running(clock=Clock(), embedder_timeout_ms="200") as server:
        wire = server.wire()
        wire("MEM.CREATE", "k", "EMBEDDER", "openai", "MODEL", "fake", "DIM", 8)
        wire("MEM.ADD", "k", "TEXT", "so that the model is loaded")
        fake.gate.clear()
        fake.holds = {"slow"}
        wire("MULTI")
        wire("MEM.ADD", "k", "TEXT", "slow")
        wire("MEM.ADD", "k", "TEXT", "quick")
        wire("EXEC")
        wire("MEM.ADD", "k", "TEXT", "waits as long as it may")
        wire("MEM.ADD", "k", "TEXT", "and so does this one")
        assert info(wire)[b"pending"] >= 2
        fake.gate.set()
        soon(lambda: info(wire)[b"pending"] == 0)


def test_what_one_model_refuses_another_takes(wire: Wire, provider: Provider) -> None:
    provider.refuses = {"bad"}
    unseen(wire, "MEM.MADD", "k", 2, "RECORD", "TEXT", "good", "RECORD", "TEXT", "bad")
    soon(lambda: info(wire)[b"pending"] == 1)
    provider.refuses = set()
    wire("MEM.CONFIG", "k", *NEXT)
    soon(lambda: model(wire) == b"m5")
    assert info(wire)[b"pending"] == 0


def test_many_refusals_stop_nothing(wire: Wire, provider: Provider) -> None:
    """A batch of which nothing came is no reason to wait."""
    texts = [f"bad {number}" for number in range(70)]
    provider.refuses = set(texts)
    unseen(wire, "MEM.MADD", "k", 71, *(word for text in ["good", *texts] for word in ("RECORD", "TEXT", text)))
    assert wire("MEM.EMBED", "k")[1] == 70


@pytest.mark.parametrize("then", ["auto", "NONE"])
def test_a_vector_memory_that_waits_for_auto(then: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Texts without a vector, of no model yet, are kept by DUMP and by the log's base."""
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    embedder.need.cache_clear()
    monkeypatch.setattr(embedder, "find_spec", lambda name: None)
    with Running(clock=Clock(), dir=tmp_path) as server:
        wire = server.wire()
        wire("MEM.CREATE", "k", "MODE", "VECTOR", "EMBEDDER", "auto")
        wire("MEM.ADD", "k", "ID", "a", "TEXT", "one")
        if then == "NONE":
            wire("MEM.CONFIG", "k", "EMBEDDER", then)
        assert model(wire) == b"" and info(wire)[b"vectors"] == 0
        payload = wire("DUMP", "k")
        assert wire("RESTORE", "twin", 0, payload) == "OK"
        wire("SAVE")
        server.restart()
        wire = server.wire()
        assert wire("DUMP", "k") == wire("DUMP", "twin") == payload


def test_names_that_are_refused_keep_none_from_its_vector(wire: Wire, provider: Provider) -> None:
    names = [f"bad {number}" for number in range(70)]
    provider.refuses = set(names)
    wire("MULTI")
    for name in [*names, "good"]:
        wire("MEM.ENTITY", "k", name, "TYPE", "ORG")
    wire("EXEC")
    wire("MEM.EMBED", "k")
    found = [flat_pairs(each) for each in wire("MEM.ENTITIES", "k", "LIMIT", 100, "WITHVEC")[1]]
    assert [each[b"name"] for each in found if each.get(b"vector")] == [b"good"]


# -- the change of model


def test_progress_counts_records_that_are_there(wire: Wire, provider: Provider, server: Running) -> None:
    """What was embedded for the next model and is deleted, or written over, is not done."""
    for number in range(20):
        wire("MEM.ADD", "k", "ID", number, "TEXT", f"text {number}")
    wire("MEM.ADD", "k", "ID", "late", "TEXT", "stays out")
    provider.refuses = {"stays out"}
    provider.gate.clear()
    wire("MEM.CONFIG", "k", *NEXT)
    soon(lambda: b"embed_waiting:21" in wire("INFO", "embedding"))
    provider.down = True  # from the second batch on
    memory = server.server.keyspace.memories[b"k"]
    state = server.server.backfill._state(b"k", memory)
    for number in range(10):
        state.vectors[b"%d" % number] = (memory.serial(b"%d" % number), b"text %d" % number, bytes(20))
    assert flat_pairs(info(wire)[b"switching"]) == {b"model": b"m5", b"done": 10, b"left": 11}
    wire("MEM.DEL", "k", *range(8))
    assert flat_pairs(info(wire)[b"switching"]) == {b"model": b"m5", b"done": 2, b"left": 11}
    provider.gate.set()


class Slow(Provider):
    """The same, which takes its time with m5."""

    def _make(self, model: Model, config: Any, closing: threading.Event) -> Any:
        made = super()._make(model, config, closing)
        embed = made.embed

        def slowly(texts: list[str]) -> Floats:
            time.sleep(0.03)
            found: Floats = embed(texts)
            return found

        if model.name == "m5":
            made.embed = slowly
        return made


@pytest.mark.parametrize("before", [MODEL, ("DIM", 3)])
def test_a_change_ends_while_others_write(
    before: tuple[str | int, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """However slow the next model is: a write waits for its vector too."""
    Slow(monkeypatch)
    with Running(clock=Clock(), dir=tmp_path) as server:
        wire = server.wire()
        wire("MEM.CREATE", "k", *before)
        wire("MEM.ADD", "k", "TEXT", "first", "FVEC", 3, 1, 0, 0)
        stop = threading.Event()

        def write() -> None:
            mine, number = server.wire(), 0
            while not stop.is_set():
                mine("MEM.ADD", "k", "TEXT", f"text {number}")
                number += 1

        writing = threading.Thread(target=write)
        writing.start()
        try:
            soon(lambda: wire("MEM.CARD", "k") > 20)
            wire("MEM.CONFIG", "k", *NEXT)
            soon(lambda: model(wire) == b"m5")
        finally:
            stop.set()
            writing.join()
        assert info(wire)[b"pending"] == 0


@pytest.mark.parametrize("history", ["0", "ALL"])
def test_a_change_begins_no_version(history: str, wire: Wire, server: Running) -> None:
    """It is the same before and after a restart, and a look back finds what was known, by the new vectors."""
    assert isinstance(server.clock, Clock)
    wire("MEM.CONFIG", "k", "HISTORY", history)
    for number in range(10):
        wire("MEM.ADD", "k", "ID", number, "TEXT", f"text {number}")
    wire("MEM.FACT", "k", "user", "likes", "tea", "ID", "f")
    wire("MEM.FACT", "k", "user", "lives in", "Rome", "ID", "g")
    wire("MEM.INVALIDATE", "k", "g")
    wire("MEM.ENTITY", "k", "acme", "TYPE", "ORG")
    server.clock.advance(1_000)
    before = server.clock.now_ms
    server.clock.advance(1_000)
    wire("MEM.CONFIG", "k", *NEXT)
    wire("MEM.EMBED", "k")
    soon(lambda: model(wire) == b"m5")
    asked = ("TEXT", "text 7", "TOPK", 20, "KNOWNAT", before, "ASOF", before, "WITHVEC")
    if history == "ALL":
        hits = [flat_pairs(hit) for hit in wire("MEM.QUERY", "k", *asked)]
        assert {hit[b"id"]: hit.get(b"vector") for hit in hits}[b"7"] == vector_of("m5", 5, "text 7").tobytes()
    wire("MEM.EMBED", "k")  # the entity's name
    assert flat_pairs(wire("MEM.GET", "k", "g", "WITHVEC"))[b"vector"] is not None
    state = wire("DUMP", "k"), wire("MEM.QUERY", "k", *asked), wire("MEM.INFO", "k")
    server.restart()
    again = server.wire()
    assert (again("DUMP", "k"), again("MEM.QUERY", "k", *asked)) == state[:2]
    assert info(again)[b"vectors"] == flat_pairs(state[2])[b"vectors"]


def test_a_reader_of_before_the_change_sees_the_old_vectors(wire: Wire, server: Running) -> None:
    """The vectors of a view that was taken before are its own."""
    for number in range(10):
        wire("MEM.ADD", "k", "ID", number, "TEXT", f"text {number}")
    memory = server.server.keyspace.memories[b"k"]
    view = memory.view(server.server.clock())
    old = [view.vector(slot) for slot in range(view.n)]
    wire("MEM.CONFIG", "k", *NEXT)
    wire("MEM.EMBED", "k")
    assert model(wire) == b"m5"
    assert all(np.array_equal(view.vector(slot), each) for slot, each in enumerate(old))


# -- a disk that fails


def test_a_log_that_fails_while_a_text_is_embedded(provider: Provider) -> None:
    """Nothing changes that the log could not take; once it can, the text gets its vector."""
    files = FaultyFiles()
    with Running(files=files, dir=DIR) as server:
        wire = server.wire()
        wire("MEM.CREATE", "k", *MODEL)
        wire("MEM.ADD", "k", "ID", "a", "TEXT", "so that the model is loaded")
        provider.gate.clear()
        unseen(wire, "MEM.ADD", "k", "ID", "b", "TEXT", "late")
        unseen(wire, "MEM.ENTITY", "k", "acme", "TYPE", "ORG")
        soon(lambda: b"embed_waiting:1" in wire("INFO", "embedding"))
        files.fail("write", errno.ENOSPC, nth=0)
        assert wire.error("MEM.SETMETA", "k", "a", "f", "v").startswith("MISCONF")
        provider.gate.set()
        soon(lambda: b"embed_waiting:0" in wire("INFO", "embedding"))
        assert info(wire)[b"pending"] == 1
        files.heal()
        on_loop(server, server.server.log.every_second)
        soon(lambda: info(wire)[b"pending"] == 0)
        server.restart()
        assert info(server.wire())[b"pending"] == 0
