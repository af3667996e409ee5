"""Forgotten means gone: after a rewrite no file of the folder holds anything of what was deleted.

And churn: after a rewrite of records that were written thousands of times, disk and tables are those of as many fresh.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from conftest import LONG
from durable import DIR, on_loop
from faulty_files import FaultyFiles
from harness import HOUR, JUNE, Clock, Running, Wire, Word, pack
from oracle import blob
from recalld.index.settings import Settings
from recalld.server.entries import Create, Put
from recalld.server.keyspace import Keyspace
from recalld.server.snapshot import Snapshot

VECTOR = blob([0.123, 0.456, 0.789, 0.321])
#: What a record of SECRET leaves: text and its words and stems, vector, metadata, tag, id.
TRACES = (b"zanzibar", b"quixotically", b"quixot", b"secretfield", b"secretvalue", b"secrettag", b"secretid", VECTOR)
SECRET: list[Word] = [
    "ID", "secretid", "TEXT", "Zanzibar zanzibars quixotically", "VEC", VECTOR, "META", "secretfield", "secretvalue",
    "TAGS", 1, "secrettag",
]  # fmt: skip


def add(wire: Wire, key: str, *more: Word) -> None:
    # Under IP the vector is stored as it came.
    assert wire("MEM.ADD", key, *SECRET, *more) == b"secretid"


def by_expiry(wire: Wire, clock: Clock) -> None:
    add(wire, "k", "TTL", 60)
    clock.advance(61_000)


def by_key_expiry(wire: Wire, clock: Clock) -> None:
    add(wire, "k")
    wire("PEXPIRE", "k", 60_000)
    clock.advance(61_000)


def by_a_later_deadline(wire: Wire, clock: Clock) -> None:
    add(wire, "k")
    wire("MEM.EXPIRE", "k", "secretid", 60)
    clock.advance(61_000)


def by_replacement(wire: Wire, clock: Clock) -> None:
    add(wire, "k")
    wire("MEM.DELMETA", "k", "secretid", "secretfield")
    wire("MEM.ADD", "k", "ID", "secretid", "TEXT", "other", "VEC", blob([1, 0, 0, 0]), "TAGS", 0)


def by_overwriting_the_key(wire: Wire, clock: Clock) -> None:
    add(wire, "k")
    wire("MEM.CREATE", "other", "MODE", "SEARCH")
    wire("RENAME", "other", "k")


def by_restoring_over_it(wire: Wire, clock: Clock) -> None:
    wire("MEM.CREATE", "other", "MODE", "SEARCH")
    payload = wire("DUMP", "other")
    add(wire, "k")
    wire("RESTORE", "k", 0, payload, "REPLACE")


def by_flushing(wire: Wire, clock: Clock) -> None:
    add(wire, "k")
    wire("COPY", "k", "twin")
    wire("FLUSHALL")


def by_delete(*command: Word) -> Callable[[Wire, Clock], None]:
    def forget(wire: Wire, clock: Clock) -> None:
        add(wire, "k")
        wire(*command)

    return forget


WAYS: dict[str, Callable[[Wire, Clock], None]] = {
    "MEM.DEL": by_delete("MEM.DEL", "k", "secretid"),
    "MEM.FORGET by metadata": by_delete("MEM.FORGET", "k", "FILTER", "secretfield", "EQ", "secretvalue"),
    "MEM.FORGET by tag": by_delete("MEM.FORGET", "k", "TAGS", "ANY", 1, "secrettag"),
    "DEL": by_delete("DEL", "k"),
    "UNLINK": by_delete("UNLINK", "k"),
    "FLUSHALL": by_flushing,
    "record TTL": by_expiry,
    "MEM.EXPIRE": by_a_later_deadline,
    "key TTL": by_key_expiry,
    "replacement": by_replacement,
    "RENAME over it": by_overwriting_the_key,
    "RESTORE over it": by_restoring_over_it,
}


def traces(folder: Path) -> list[tuple[str, bytes]]:
    files = [path for path in folder.rglob("*") if path.is_file()]
    found = [(path.name, path.read_bytes().lower()) for path in files]
    return [(name, trace) for name, data in found for trace in TRACES if trace.lower() in data]


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_a_rewrite_forgets(tmp_path: Path, way: str, restarted: bool) -> None:
    """Whichever way it was deleted, in this life of the server or the one before."""
    clock = Clock(JUNE)
    with Running(clock=clock, dir=tmp_path) as server:
        wire = server.wire()
        wire("MEM.CREATE", "k", "DIM", 4, "METRIC", "IP")
        wire("MEM.ADD", "k", "ID", "kept", "TEXT", "what stays here", "VEC", blob([1, 0, 0, 0]))
        if restarted:
            # In a base already, and in memory as it was loaded from there.
            add(wire, "k")
            assert wire("SAVE") == "OK"
            assert len({trace for _, trace in traces(tmp_path)}) == len(TRACES)
            wire.close()
            server.restart()
            wire = server.wire()
        WAYS[way](wire, clock)
        assert traces(tmp_path), "it is in no file to begin with"
        assert wire("SAVE") == "OK"
        left = {b"secretid"} if way == "replacement" else set()
        assert {trace for _, trace in traces(tmp_path)} == left
        if way.startswith("MEM.") or way == "record TTL":
            assert wire("MEM.SCAN", "k", 0) == [b"0", [b"kept"]]
        wire.close()
        server.restart()
        assert {trace for _, trace in traces(tmp_path)} == left


def test_what_is_kept_is_found_by_the_same_search(tmp_path: Path) -> None:
    """The traces are looked for in the right places: they are all there as long as the record is."""
    with Running(clock=Clock(JUNE), dir=tmp_path) as server:
        wire = server.wire()
        wire("MEM.CREATE", "k", "DIM", 4, "METRIC", "IP")
        add(wire, "k")
        assert wire("SAVE") == "OK"
        assert {trace for _, trace in traces(tmp_path)} == set(TRACES)


def test_a_rewrite_forgets_what_failed_ones_left() -> None:
    """A base that was written and never named, and the files that a manifest in doubt would have dropped."""
    for op in ("sync", "rename", "sync_dir", "open", "write"):
        for nth in range(1, 5):
            files = FaultyFiles()
            with Running(files=files, dir=DIR, appendfsync="always") as server:
                wire = server.wire()
                wire("MEM.CREATE", "k", "DIM", 4, "METRIC", "IP")
                add(wire, "k")
                files.fail(op, errno.EIO, nth=nth)
                wire.send("SAVE")
                wire.read()
                files.heal()
                on_loop(server, server.server.log.every_second)
                while str(wire.pipeline(["MEM.DEL", "k", "secretid"])[0]).startswith("MISCONF"):
                    on_loop(server, server.server.log.every_second)
                assert wire("SAVE") == "OK"
                data = b"".join(files.image().values()).lower()
                assert [trace for trace in TRACES if trace.lower() in data] == [], (op, nth)
                wire.close()


def test_a_change_during_the_rewrite_brings_nothing_back() -> None:
    """What has expired is not in the base either where a change to its memory comes before the walk does."""
    keyspace = Keyspace()
    keyspace.apply(Create(b"k", Settings(mode="SEARCH"), JUNE))
    for number, deadline in ((1, JUNE + HOUR), (2, 0)):
        keyspace.apply(Put(b"k", b"%d" % number, b"t", b"", (), (), 0.5, JUNE, JUNE, deadline, number + 1, 9, JUNE))
    snapshot = Snapshot(keyspace, JUNE + HOUR)
    keyspace.apply(Put(b"k", b"3", b"t", b"", (), (), 0.5, JUNE, JUNE, 0, 4, 9, JUNE + HOUR))
    assert snapshot.walk(9)
    (frozen,) = snapshot.take()
    alive = frozen.view.alive()
    assert [each for slot, each in enumerate(frozen.view.ids[:2]) if alive is None or alive[slot]] == [b"2"]


# -- churn

IDS = 100
UPDATES = 100_000 if LONG else 2_000
#: A rewritten folder against one of as many fresh records, in bytes. The manifest's numbers have more digits.
DISK_FACTOR = 1.05
#: Tables against fresh ones: dead rows up to as many as live ones wait for their compaction, and arrays grow by half.
MEMORY_FACTOR = 3


def record(number: int, turn: int) -> list[Word]:
    vector = blob([number + 1, turn % 7 + 1, 3, 4])
    return ["ID", f"id{number}", "TEXT", f"record {number} lake {turn % 50}", "VEC", vector, "META", "n", turn % 10]


@cache
def update(turn: int) -> bytes:
    """Every record once, as it is sent; only so many different ones that each is made once (see `record`)."""
    words = [word for number in range(IDS) for word in ("RECORD", *record(number, turn))]
    return pack("MEM.MADD", "k", IDS, *words)


def sizes(server: Running, folder: Path) -> tuple[int, int]:
    """Bytes of the folder after a rewrite, and of the memory's tables."""
    wire = server.wire()
    assert wire("SAVE") == "OK"
    wire.close()
    on_disk = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return on_disk, on_loop(server, lambda: server.server.keyspace.memories[b"k"].nbytes())


def churned(folder: Path, updates: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """The sizes after so many updates of each record, and again after a restart."""
    with Running(clock=Clock(JUNE), dir=folder, appendfsync="no") as server:
        wire = server.wire()
        wire("MEM.CREATE", "k", "DIM", 4, "METRIC", "L2")
        for start in range(0, updates, 20):
            turns = range(start, min(updates, start + 20))
            wire.sock.sendall(b"".join(update(turn % (50 * 7)) for turn in turns))
            assert all(isinstance(wire.read(), list) for _ in turns)
        assert wire("MEM.CARD", "k") == IDS
        wire.close()
        alive = sizes(server, folder)
        server.restart()
        return alive, sizes(server, folder)


def test_churn_leaves_nothing_behind(tmp_path: Path) -> None:
    """100 ids, each updated 2 000 times: the folder of 100 records, and tables within a small factor."""
    fresh, _ = churned(tmp_path / "fresh", 1)
    used, again = churned(tmp_path / "used", UPDATES)
    assert used[0] <= fresh[0] * DISK_FACTOR
    assert again[0] <= fresh[0] * DISK_FACTOR
    assert used[1] <= fresh[1] * MEMORY_FACTOR
    assert again[1] <= fresh[1] * DISK_FACTOR


@pytest.mark.parametrize("command", ["MEM.EXPIRE", "MEM.SETMETA"])
def test_a_deadline_renewed_for_ever_takes_no_room(tmp_path: Path, command: str) -> None:
    """One record touched again and again: neither deadlines nor rows pile up."""
    clock = Clock(JUNE)
    with Running(clock=clock, dir=tmp_path, appendfsync="no") as server:
        wire = server.wire()
        wire("MEM.CREATE", "k", "MODE", "SEARCH")
        wire("MEM.ADD", "k", "ID", "a", "TEXT", "t")
        before = sizes(server, tmp_path)
        for turn in range(5):
            clock.advance(HOUR)
            words: list[Word] = [7200] if command == "MEM.EXPIRE" else ["f", turn]
            wire.pipeline(*([command, "k", "a", *words] for _ in range(2_000)))
        after = sizes(server, tmp_path)
        assert after[0] < before[0] + 200
        assert after[1] < before[1] + 30_000
        wire.close()
