"""MEM.MADD of many records: all or none, in order, in one moment for everybody else, though it is made aside."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Running, Wire, WireError
from recalld.server import record_commands

COUNT = 6_000  # beyond what is read, and what is written, on the loop


def word(number: int) -> bytes:
    return b"z%cq%c" % (97 + number % 97 // 20, 97 + number % 97 % 20)


def madd(*, first: int = 0, count: int = COUNT, bad: int = -1) -> list[bytes]:
    words: list[bytes] = []
    for number in range(first, first + count):
        words += [b"RECORD", b"ID", b"r%d" % number, b"TEXT", word(number) + b" and more"]
        if number == bad:
            words += [b"IMPORTANCE", b"2"]
    return [b"MEM.MADD", b"m", b"%d" % count, *words]


@pytest.fixture
def wire(server: Running) -> Wire:
    wire = server.wire(2)
    wire("MEM.CREATE", "m", "MODE", "SEARCH")
    return wire


def test_all_are_there_in_order(wire: Wire) -> None:
    assert wire(*madd()) == [b"r%d" % number for number in range(COUNT)]
    assert wire("MEM.CARD", "m") == COUNT
    hits = wire("MEM.SEARCH", "m", word(5), "TOPK", 100, "NOTEXT")
    assert {hit[0] for hit in hits} == {b"r%d" % number for number in range(5, COUNT, 97)}


def test_one_bad_record_and_none_is_there(wire: Wire) -> None:
    wire("MEM.ADD", "m", "ID", "r3", "TEXT", "before")
    with pytest.raises(WireError, match="record 5001: IMPORTANCE must be between 0 and 1"):
        wire(*madd(bad=5_000))
    with pytest.raises(WireError, match="syntax error"):
        wire(*madd()[:-1])
    assert wire("MEM.CARD", "m") == 1


def test_what_comes_behind_sees_all_of_it(wire: Wire) -> None:
    wire.send(*madd())
    wire.send("MEM.ADD", "m", "ID", "r0", "TEXT", "changed")
    wire.send("MEM.CARD", "m")
    assert len(wire.read()) == COUNT
    assert wire.read() == b"r0"
    assert wire.read() == COUNT
    assert wire("MEM.SEARCH", "m", "changed", "NOTEXT") == [[b"r0"]]


def test_others_see_none_or_all_and_their_writes_stay(server: Running, wire: Wire) -> None:
    seen: list[int] = []
    done = threading.Event()

    def look() -> None:
        other = server.wire(2)
        while not done.is_set():
            seen.append(other("MEM.CARD", "m"))
        other.close()

    def write() -> None:
        other = server.wire(2)
        for number in range(50):
            other("MEM.ADD", "m", "ID", f"w{number}", "TEXT", "mine")
        other.close()

    wire("MEM.ADD", "m", "ID", "w0", "TEXT", "first")
    threads = [threading.Thread(target=look), threading.Thread(target=write)]
    for thread in threads:
        thread.start()
    wire(*madd())
    threads[1].join()
    done.set()
    threads[0].join()
    assert wire("MEM.CARD", "m") == COUNT + 50
    assert all(count <= 50 or count >= COUNT for count in seen)


def test_it_survives_a_restart(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    with Running(dir=tmp_path) as server:
        wire = server.wire(2)
        wire("MEM.CREATE", "m", "DIM", 4)
        words = []
        for number in range(300):
            words += [b"RECORD", b"TEXT", b"t%d" % number, b"VEC", rng.standard_normal(4).astype("<f4").tobytes()]
        ids = wire("MEM.MADD", "m", 300, *words)
        before = [wire("MEM.VSEARCH", "m", "FVEC", 4, *probe, "WITHSCORES") for probe in ("1000", "0110", "0011")]
    with Running(dir=tmp_path) as server:
        wire = server.wire(2)
        assert wire("MEM.CARD", "m") == 300
        assert ids == [b"%d" % number for number in range(1, 301)]
        after = [wire("MEM.VSEARCH", "m", "FVEC", 4, *probe, "WITHSCORES") for probe in ("1000", "0110", "0011")]
        assert after == before
        assert wire("MEM.ADD", "m", "TEXT", "next") == b"301"


def test_limits_hold(wire: Wire) -> None:
    wire("MEM.CONFIG", "m", "MAXRECORDS", 1_000)
    with pytest.raises(WireError, match="MAXRECORDS"):
        wire(*madd())
    assert wire("MEM.CARD", "m") == 0
    wire(*madd(count=900))
    assert len(wire(*madd(first=900, count=900))) == 900
    assert wire("MEM.CARD", "m") == 1_000
    assert wire("MEM.SEARCH", "m", word(5), "TOPK", 100, "NOTEXT")


def in_a_row(count: int, first: list[str], last: list[str]) -> list[str]:
    return ["RECORD", *first, *["RECORD", "TEXT", "a b"] * (count - 2), "RECORD", *last]


@pytest.mark.parametrize("count", [10, 8_000])
def test_which_of_two_errors_is_said(server: Running, wire: Wire, count: int) -> None:
    """What is no record first, then that there is no key, then what a record may not be: however many there are."""
    refused = ["TEXT", "x", "XX", "ID", "q"]
    assert "record 1: unexpected" in wire.error("MEM.MADD", "n", count, *in_a_row(count, ["TEXT", "x", "FOO"], refused))
    words = in_a_row(count, refused, ["TEXT", "x", "FOO"])
    assert f"record {count}: unexpected" in wire.error("MEM.MADD", "m", count, *words)
    words = in_a_row(count, refused, ["TEXT", "x"])
    assert wire.error("MEM.MADD", "m", count - 1, *words) == "ERR unexpected argument 'RECORD'"
    assert "record 1: record existence" in wire.error("MEM.MADD", "m", count, *words)
    assert wire.error("MEM.MADD", "n", count, *words) == "ERR no such memory index"
    assert wire("MEM.CARD", "m") == 0


def test_few_records_of_many_words_are_read_in_a_thread(monkeypatch: pytest.MonkeyPatch, server: Running) -> None:
    wire, seen = server.wire(2), set()
    read_draft = record_commands.read_draft

    def noted(*args: Any, **more: Any) -> Any:
        seen.add(threading.current_thread().name)
        return read_draft(*args, **more)

    monkeypatch.setattr(record_commands, "read_draft", noted)
    wire("MEM.CREATE", "v", "DIM", 384)
    wire("MEM.MADD", "v", 100, *["RECORD", "TEXT", "x", "FVEC", 384, *[1] * 384] * 100)
    assert seen and "recalld" not in seen


@pytest.mark.parametrize("text", ["", "the", "!"])
def test_records_without_a_word_behind_a_base(tmp_path: Path, text: str) -> None:
    """Whose arrays are mapped, and so may not be written to; nor, when it starts again, by the log."""
    with Running(dir=tmp_path) as server:
        wire = server.wire(2)
        wire("MEM.CREATE", "m", "MODE", "SEARCH")
        wire("MEM.ADD", "m", "TEXT", "lake")
        wire("SAVE")
        wire("MEM.MADD", "m", 20, *["RECORD", "TEXT", text] * 20)
    with Running(dir=tmp_path) as server:
        wire = server.wire(2)
        assert wire("MEM.CARD", "m") == 21
        wire("SAVE")
    with Running(dir=tmp_path) as server:
        wire = server.wire(2)
        assert len(wire("MEM.MADD", "m", 20, *["RECORD", "TEXT", text] * 20)) == 20
        assert wire("MEM.CARD", "m") == 41
