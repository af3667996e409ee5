"""Forgotten means gone, with its history: after a rewrite no file of the folder, and no payload of DUMP, holds anything
of a fact, or of the versions of a note, that were forgotten, expired, or ended before what HISTORY holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from harness import DAY, JUNE, Clock, Running, Wire, Word
from oracle import blob

VECTOR = blob([0.123, 0.456, 0.789, 0.321])
OLD_VECTOR = blob([0.321, 0.789, 0.456, 0.123])
#: What the secret records leave: words and stems of texts, quote, vectors, metadata, tags; those of old versions too.
TRACES = (
    b"zanzibar", b"quixot", b"secretquote", b"secretfield", b"secretvalue", b"secrettag", b"oldfield", b"oldtag",
    b"oldtext", VECTOR, OLD_VECTOR,
)  # fmt: skip


def tell(wire: Wire, clock: Clock, *more: Word) -> None:
    """A fact and a note, each in two versions, of which the second holds other things."""
    wire("MEM.FACT", "k", "ann", "likes", "Zanzibar quixotically", "ID", "f", "QUOTE", "oldtext", "VEC", OLD_VECTOR,
         "META", "oldfield", 1, "TAGS", 2, "oldtag", "secret")  # fmt: skip
    wire("MEM.ADD", "k", "ID", "n", "TEXT", "oldtexts", "VEC", OLD_VECTOR, "TAGS", 1, "secret")
    clock.advance(1000)
    wire("MEM.FACT", "k", "ann", "likes", "Zanzibar quixotically", "QUOTE", "secretquote", "VEC", VECTOR,
         "META", "secretfield", "secretvalue", "TAGS", 2, "secrettag", "secret", *more)  # fmt: skip
    wire("MEM.ADD", "k", "ID", "n", "TEXT", "Zanzibars", "VEC", VECTOR, "TAGS", 1, "secret", *more)
    clock.advance(1000)


def by_forgetting(wire: Wire, clock: Clock) -> None:
    tell(wire, clock)
    assert wire("MEM.FORGET", "k", "TAGS", "ANY", 1, "secret") == [2, [b"f", b"n"]]


def by_forgetting_what_was_deleted(wire: Wire, clock: Clock) -> None:
    tell(wire, clock)
    wire("MEM.DEL", "k", "f", "n")
    clock.advance(1000)
    wire("MEM.FORGET", "k", "TAGS", "ANY", 1, "secret")


def by_forgetting_what_was_invalidated(wire: Wire, clock: Clock) -> None:
    tell(wire, clock)
    wire("MEM.INVALIDATE", "k", "f")
    wire("MEM.DEL", "k", "n")
    wire("MEM.ADD", "k", "ID", "n", "TEXT", "another record of that id")
    wire("MEM.FORGET", "k", "TAGS", "ANY", 1, "secret")
    assert wire("MEM.DEL", "k", "n") == 1


def by_expiry(wire: Wire, clock: Clock) -> None:
    tell(wire, clock, "TTL", 60)
    clock.advance(61_000)


def by_expiry_of_what_was_deleted(wire: Wire, clock: Clock) -> None:
    tell(wire, clock, "TTL", 60)
    wire("MEM.DEL", "k", "f", "n")
    clock.advance(61_000)


def by_expiry_said_as_it_was_deleted(wire: Wire, clock: Clock) -> None:
    tell(wire, clock)
    for record_id in ("f", "n"):
        wire("MEM.EXPIRE", "k", record_id, 60)
        wire("MEM.DEL", "k", record_id)
    clock.advance(61_000)


def by_the_horizon(wire: Wire, clock: Clock) -> None:
    wire("MEM.CONFIG", "k", "HISTORY", 60)
    tell(wire, clock)
    wire("MEM.DEL", "k", "f", "n")
    clock.advance(60_000)


def by_history_0(wire: Wire, clock: Clock) -> None:
    tell(wire, clock)
    wire("MEM.DEL", "k", "f", "n")
    wire("MEM.CONFIG", "k", "HISTORY", 0)


def by_history_0_with_the_clock_set_back(wire: Wire, clock: Clock) -> None:
    tell(wire, clock)
    wire("MEM.DEL", "k", "f", "n")
    clock.advance(-1500)
    wire("MEM.CONFIG", "k", "HISTORY", 0)


def without_history(wire: Wire, clock: Clock) -> None:
    wire("MEM.CONFIG", "k", "HISTORY", 0)
    tell(wire, clock)
    wire("MEM.DEL", "k", "f", "n")


def with_the_key(wire: Wire, clock: Clock) -> None:
    tell(wire, clock)
    wire("MEM.ENTITY", "k", "zanzibar", "TYPE", "PLACE", "ALIAS", "quixot", "VEC", VECTOR)
    wire("MEM.ENTITY", "k", "tanzania", "TYPE", "PLACE")
    wire("MEM.ENTITY", "k", "tanzania", "TYPE", "PLACE", "MERGE", "zanzibar")
    wire("DEL", "k")
    wire("MEM.CREATE", "k", "MODE", "SEARCH")


WAYS: dict[str, Callable[[Wire, Clock], None]] = {
    "MEM.FORGET": by_forgetting,
    "MEM.FORGET of what was deleted": by_forgetting_what_was_deleted,
    "MEM.FORGET of what was invalidated": by_forgetting_what_was_invalidated,
    "TTL": by_expiry,
    "TTL of what was deleted": by_expiry_of_what_was_deleted,
    "TTL said as it was deleted": by_expiry_said_as_it_was_deleted,
    "beyond HISTORY": by_the_horizon,
    "HISTORY 0": by_history_0,
    "HISTORY 0, the clock set back": by_history_0_with_the_clock_set_back,
    "no HISTORY": without_history,
    "DEL": with_the_key,
}


def traces(data: bytes) -> set[bytes]:
    return {trace for trace in TRACES if trace.lower() in data.lower()}


def on_disk(folder: Path) -> set[bytes]:
    return traces(b"\n".join(path.read_bytes() for path in folder.rglob("*") if path.is_file()))


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_rewrite_forgets(tmp_path: Path, way: str, restarted: bool) -> None:
    """Whichever way it went, and whether it is in a base or in a log; the versions that history holds are there till
    then."""
    clock = Clock(JUNE)
    with Running(clock=clock, dir=tmp_path) as server:
        wire = server.wire()
        wire("MEM.CREATE", "k", "DIM", 4, "METRIC", "IP", "HISTORY", "ALL")
        if restarted:
            tell(wire, clock)
            assert wire("SAVE") == "OK"
            assert on_disk(tmp_path) == set(TRACES)
            wire.close()
            server.restart()
            wire = server.wire()
        WAYS[way](wire, clock)
        assert on_disk(tmp_path) == set(TRACES), "what is forgotten was there"
        assert traces(wire("DUMP", "k")) == set()
        assert wire("SAVE") == "OK"
        assert on_disk(tmp_path) == set()
        assert wire("MEM.SCAN", "k", 0) == [b"0", []]
        wire.close()
        server.restart()
        assert on_disk(tmp_path) == set()


def test_history_is_in_the_files(tmp_path: Path) -> None:
    """Until then it is there, all of it: the traces are looked for in the right places."""
    clock = Clock(JUNE)
    with Running(clock=clock, dir=tmp_path) as server:
        wire = server.wire()
        wire("MEM.CREATE", "k", "DIM", 4, "METRIC", "IP", "HISTORY", 60)
        tell(wire, clock)
        wire("MEM.DEL", "k", "f", "n")
        clock.advance(58_000)
        assert traces(wire("DUMP", "k")) == set(TRACES)
        assert wire("SAVE") == "OK"
        assert on_disk(tmp_path) == set(TRACES)
        clock.advance(1_000)  # the first versions ended a minute ago
        assert wire("SAVE") == "OK"
        assert on_disk(tmp_path) == set(TRACES) - {b"oldtag", b"oldtext", OLD_VECTOR}
        clock.advance(DAY)
        assert wire("SAVE") == "OK"
        assert on_disk(tmp_path) == set()


def test_an_entity_stays(tmp_path: Path) -> None:
    """It is no record: the name of what a forgotten fact was about stays known, with its vector, and nothing else."""
    clock = Clock(JUNE)
    with Running(clock=clock, dir=tmp_path) as server:
        wire = server.wire()
        wire("MEM.CREATE", "k", "DIM", 4, "METRIC", "IP", "HISTORY", "ALL")
        tell(wire, clock)
        wire("MEM.FACT", "k", "ann", "likes", "zanzibar", "TYPE", "PLACE", "ENTITYVEC", blob([1, 0, 0, 0]), "TAGS", 1,
             "secret")  # fmt: skip
        wire("MEM.FORGET", "k", "TAGS", "ANY", 1, "secret")
        assert wire("SAVE") == "OK"
        assert on_disk(tmp_path) == {b"zanzibar"}
        wire("MEM.ENTITY", "k", "tanzania", "TYPE", "PLACE")
        wire("MEM.ENTITY", "k", "tanzania", "TYPE", "PLACE", "MERGE", "zanzibar")
        assert wire("MEM.ENTITIES", "k")[1][0][5] == [b"zanzibar"], "a name that was merged away is one still"
        wire("DEL", "k")
        assert wire("SAVE") == "OK"
        assert on_disk(tmp_path) == set()
