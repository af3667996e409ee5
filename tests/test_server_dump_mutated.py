"""Payloads of facts, history and entities that somebody changed, with checksums that hold: RESTORE refuses them and
changes nothing, or what it makes is a memory in every respect (`fact_states.check`)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from random import Random
from typing import Any

import numpy as np
import pytest
from durable import on_loop
from fact_states import check, memory_of, wander
from harness import DAY, JUNE, Clock, Running, Wire, WireError
from hypothesis import given
from hypothesis import strategies as st
from recalld.index.side import (
    CONFIDENCE,
    FACT,
    FLAGS,
    INVALID_AT,
    KNOWN_TO,
    NEVER,
    SINCE,
    VALID_AT,
    VALID_UNTIL,
    WRITTEN,
)
from test_server_dump import WRONG, Parts, number, section, setting


def fill(wire: Wire, clock: Clock) -> None:
    """Notes and facts, current and not, versions of them, entities, other settings once; rows as ROWS has them."""
    wire("MEM.CREATE", "k", "DIM", 2, "HISTORY", "ALL")
    wire("MEM.ENTITY", "k", "acme", "TYPE", "ORG", "ALIAS", "aa", "FVEC", 2, 3, 4)
    wire("MEM.ENTITY", "k", "zoo", "TYPE", "ORG")
    wire("MEM.FACT", "k", "ann", "likes", "aa", "TYPE", "ORG", "ID", "f", "QUOTE", "q", "FVEC", 2, 1, 0)
    wire("MEM.FACT", "k", "ann", "likes", "zoo", "ID", "g", "VALIDUNTIL", JUNE + 9 * DAY)
    wire("MEM.ADD", "k", "ID", "n", "TEXT", "one two", "FVEC", 2, 0, 1)
    clock.advance(DAY)
    wire("MEM.CONFIG", "k", "HALFLIFE", 7)
    wire("MEM.ADD", "k", "ID", "n", "TEXT", "three four")
    wire("MEM.FACT", "k", "ann", "likes", "bread", "ID", "h", "SUPERSEDES", "f", "CONFIDENCE", 0.5)
    wire("MEM.FACT", "k", "bob", "likes", "zoo", "ID", "later", "VALIDAT", JUNE + 5 * DAY)
    clock.advance(DAY)
    wire("MEM.DEL", "k", "n")


@cache
def whole() -> bytes:
    clock = Clock()
    with Running(clock=clock) as server:
        wire = server.wire()
        fill(wire, clock)
        return wire("DUMP", "k")


#: The rows of the payload: id, and whether the version has ended.
ROWS = [(b"g", False), (b"h", False), (b"n", True), (b"f", True), (b"f", False), (b"later", False), (b"n", True)]
#: Of these rows `table` has so many.
TABLE = 2


def place(record_id: bytes, ended: bool, nth: int = 0) -> int:
    return [at for at, row in enumerate(ROWS) if row == (record_id, ended)][nth]


G, H, F, LATER = (place(each, False) for each in (b"g", b"h", b"f", b"later"))
OLD_F, OLD_N, OLDER_N = place(b"f", True), place(b"n", True, 1), place(b"n", True)


def columns(parts: Parts, row: int) -> tuple[np.ndarray[Any, Any], int]:
    """The side columns of the part with this row, and the row's place in them."""
    flat = parts.numbers("side")
    if row < TABLE:
        return flat[: 8 * TABLE].reshape(8, TABLE), row
    return flat[8 * TABLE :].reshape(8, len(ROWS) - TABLE), row - TABLE


def side(row: int, **values: int | float) -> Callable[[Parts], None]:
    """Other side columns of a row."""

    def edit(parts: Parts) -> None:
        cols, slot = columns(parts, row)
        for name, value in values.items():
            column = cols[COLUMNS[name]]
            (column.view(np.float64) if name == "confidence" else column)[slot] = value

    return edit


COLUMNS = {
    "written": WRITTEN,
    "since": SINCE,
    "known_to": KNOWN_TO,
    "valid_at": VALID_AT,
    "valid_until": VALID_UNTIL,
    "invalid_at": INVALID_AT,
    "flags": FLAGS,
    "confidence": CONFIDENCE,
}


def words(name: str, at: int, value: bytes) -> Callable[[Parts], None]:
    """Another string in a column of them."""

    def edit(parts: Parts) -> None:
        lengths = parts.numbers(name + ".len")
        start = int(lengths[:at].sum())
        data = bytes(parts.data[name])
        parts.data[name] = data[:start] + value + data[start + int(lengths[at]) :]
        lengths[at] = len(value)

    return edit


#: Which of the facts, in the order of rows, and which of a fact's words.
FACTS = [row for row, (record_id, _) in enumerate(ROWS) if record_id != b"n"]
SUBJECT, PREDICATE, OBJECT, TYPE = range(4)


def says(row: int, **changes: tuple[int, bytes]) -> Callable[[Parts], None]:
    """Another subject, predicate, object or type of a fact, its text being what they say."""

    def edit(parts: Parts) -> None:
        first = 8 * FACTS.index(row)
        for at, value in changes.values():
            words("facts", first + at, value)(parts)
        lengths = parts.numbers("facts.len").tolist()
        ends = np.cumsum(lengths)
        said = [bytes(parts.data["facts"])[ends[n] - lengths[n] : ends[n]] for n in range(first, first + 3)]
        words("texts", row, b" ".join(said))(parts)

    return edit


def both(*edits: Callable[[Parts], None]) -> Callable[[Parts], None]:
    def edit(parts: Parts) -> None:
        for each in edits:
            each(parts)

    return edit


REFUSED: dict[str, Callable[[Parts], None]] = {
    "versions that overlap": side(OLDER_N, known_to=JUNE + DAY + 1),
    "a version that goes on beside the current": side(OLD_F, known_to=JUNE + 3 * DAY),
    "two current versions": side(OLD_F, known_to=NEVER),
    "a version that ends as it begins": side(OLD_F, known_to=JUNE),
    "a version that ends before": side(OLD_F, known_to=JUNE - 1),
    "a version that ends beyond all": side(OLD_F, known_to=NEVER - 1),
    "an ended version in the table": side(H, known_to=JUNE + 2 * DAY),
    "one that begins before it was written": side(F, since=JUNE - 1),
    "one written before time": side(F, written=-NEVER),
    "an id current in both parts": both(words("ids", F, b"g"), words("ids", OLD_F, b"g")),
    "a serial of two records": number("serial", LATER, 1),
    "versions without history": setting("history", 0),
    "history of -2": setting("history", -2),
    "no side": section("part", bytes([0, 2])),
    "two tables": section("part", bytes([1, 1])),
    "a past without a table": section("part", bytes([2, 1])),
    "fewer parts": section("part", bytes([1])),
    "a part of another kind": section("part", bytes([1, 3])),
    "a fact never valid": side(G, valid_until=JUNE),
    "a fact valid since ever": side(G, valid_at=-NEVER),
    "valid from before time": side(G, valid_at=-(1 << 61)),
    "a note that is invalidated": side(OLD_N, invalid_at=JUNE),
    "a note with confidence": side(OLD_N, confidence=0.5),
    "confidence above 1": side(G, confidence=1.0000001),
    "confidence below 0": side(G, confidence=-1e-9),
    "confidence NaN": side(G, confidence=np.nan),
    "an unknown kind": side(OLD_N, flags=3),
    "an unknown flag": side(G, flags=FACT | 8),
    "negative flags": side(G, flags=-1),
    "a fact that is a note": side(G, flags=0),
    "a note that is a fact": side(OLD_N, flags=FACT),
    "another text": words("texts", G, b"ann likes bears"),
    "a subject that is not normal": says(G, s=(SUBJECT, b"Ann")),
    "no subject": says(G, s=(SUBJECT, b"")),
    "a predicate that is not normal": says(G, p=(PREDICATE, b"likes, much")),
    "no predicate": says(G, p=(PREDICATE, b"")),
    "no object": says(G, o=(OBJECT, b"")),
    "an object with spaces around": says(G, o=(OBJECT, b" zoo")),
    "an object of 501 characters": says(G, o=(OBJECT, b"x" * 501)),
    "a typed object that is not normal": says(F, o=(OBJECT, b"Acme")),
    "an unknown type": says(G, t=(TYPE, b"ANIMAL")),
    "two open facts that say the same": both(says(LATER, s=(SUBJECT, b"ann"), o=(OBJECT, b"bread"))),
    "two of them, one typed": both(says(LATER, s=(SUBJECT, b"ann"), o=(OBJECT, b"bread"), t=(TYPE, b"FOOD"))),
    "a word more": lambda parts: parts.data.__setitem__("facts.len", parts.data["facts.len"] + bytes(4)),
    "a word less": section("facts.len", b""),
    "a side too long": lambda parts: parts.data.__setitem__("side", bytes(parts.data["side"]) + bytes(64)),
    "a side too short": lambda parts: parts.data.__setitem__("side", bytes(parts.data["side"])[:-64]),
    "rows without end": number("memories", 1, (1 << 62) + 5, "records"),
    "fewer than no rows": number("memories", 1, -5, "records"),
    "vectors before the first": number("memories", 1, -64, "vector_at"),
    "vectors beyond the last": number("memories", 1, 1 << 62, "vector_at"),
    "an entity that is not normal": words("entity_names", 0, b"Acme"),
    "an entity twice": words("entity_names", 1, b"acme"),
    "an entity without a name": words("entity_names", 0, b""),
    "an entity of another type": words("entity_types", 0, b"animal"),
    "an entity that is another's alias": words("entity_names", 1, b"aa"),
    "an alias that is not normal": words("entity_aliases", 0, b"AA"),
    "an alias that is its name": words("entity_aliases", 0, b"acme"),
    "aliases without end": number("entity_aliases.n", 0, 0xFFFFFFFF),
    "an entity's vector of zeros": words("entity_vectors", 0, bytes(8)),
    "an entity's vector of length 2": words("entity_vectors", 0, np.array([2, 0], "<f4").tobytes()),
    "an entity's vector with NaN": words("entity_vectors", 0, np.array([np.nan, 0], "<f4").tobytes()),
    "an entity's vector of three": words("entity_vectors", 0, np.array([1, 0, 0], "<f4").tobytes()),
    "an entity created after time": number("entity_created", 0, 1 << 61),
    "entities without end": number("timed", 3, 1 << 40),
    "fewer than no entities": number("timed", 3, -1),
    "history of another memory": number("timed", 0, 1),
    "a floor beyond time": number("timed", 1, NEVER),
    "a floor before -NEVER": number("timed", 1, -(1 << 63)),
    "old settings without end": number("timed", 2, 1 << 62),
    "old settings of nowhere": number("old", 1, 2),
    "old settings from behind": number("old", 1, -1),
    "old settings until beyond time": number("old", 0, NEVER),
    "old settings of another mode": lambda parts: parts.settings[1].update(mode="SEARCH", dim=0),
    "old settings of another dim": lambda parts: parts.settings[1].update(dim=3),
    "old settings of another metric": lambda parts: parts.settings[1].update(metric="IP"),
    "old settings of another language": lambda parts: parts.settings[1].update(lang="german"),
    "old settings that are none": lambda parts: parts.settings[1].update(half_life=0),
}


def test_rows_are_where_this_file_thinks() -> None:
    parts = Parts(whole())
    lengths = parts.numbers("ids.len").tolist()
    ends = np.cumsum(lengths).tolist()
    ids = [bytes(parts.data["ids"])[end - n : end] for n, end in zip(lengths, ends, strict=True)]
    ended = [columns(parts, row)[0][KNOWN_TO][columns(parts, row)[1]] != NEVER for row in range(len(ids))]
    assert list(zip(ids, ended, strict=True)) == ROWS
    assert parts.numbers("memories")["records"].tolist() == [TABLE, len(ROWS) - TABLE]


@pytest.mark.parametrize("what", REFUSED)
def test_refused(server: Running, clock: Clock, what: str) -> None:
    """Each value that no memory can have: the error of Redis, and no key."""
    clock.advance(2 * DAY)
    wire = server.wire()
    assert wire("RESTORE", "fine", 0, Parts(whole()).payload()) == "OK"
    parts = Parts(whole())
    REFUSED[what](parts)
    assert wire.error("RESTORE", "new", 0, parts.payload()) == WRONG
    assert wire("DBSIZE") == 1
    wire.close()


def test_rows_in_the_wrong_part_are_moved(server: Running, clock: Clock) -> None:
    """A payload that says of a fact to come that it counts now, and of one that counts that it does not."""
    clock.advance(2 * DAY)
    wire = server.wire()
    parts = Parts(whole())
    side(G, valid_at=JUNE + 3 * DAY)(parts)
    side(LATER, valid_at=JUNE)(parts)
    wire("RESTORE", "k", 0, parts.payload())
    on_loop(server, lambda: check(memory_of(server, "k"), clock()))
    assert [wire("MEM.CARD", "k"), wire("MEM.SCAN", "k", 0)[1]] == [2, [b"f", b"g", b"h", b"later"]]
    clock.advance(2 * DAY)
    on_loop(server, lambda: check(memory_of(server, "k"), clock()))
    assert wire("MEM.CARD", "k") == 3
    wire.close()


@cache
def payloads() -> list[bytes]:
    """Of random memories, and when."""
    found = [whole()]
    clock = Clock()
    with Running(clock=clock) as server:
        wire = server.wire(3)
        for seed in range(4):
            clock.now_ms = JUNE
            wire("FLUSHALL")
            wire("MEM.CREATE", "k", "DIM", 2, "HISTORY", "ALL")
            wander(Random(seed), wire, clock, "k", 80)
            found.append(wire("DUMP", "k"))
    return found


NUMBERS = [0, 1, 2, -1, 3, 7, 1 << 31, JUNE, JUNE + 1, JUNE + DAY, NEVER, -NEVER, (1 << 63) - 1, -(1 << 63)]


@given(st.data())
def test_whatever_comes_is_refused_or_a_memory(server: Running, data: st.DataObject) -> None:
    """Any numbers and strings of any sections replaced: refused and nothing changed, or every invariant holds, now and
    later."""
    assert isinstance(server.clock, Clock)
    server.clock.now_ms = JUNE + 2 * DAY
    parts = Parts(data.draw(st.sampled_from(payloads())))
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from([each for each in sorted(parts.data) if len(parts.data[each])]))
        if parts.kinds[name] == "S":
            at = data.draw(st.integers(0, len(parts.data[name + ".len"]) // 4 - 1))
            words(
                name, at, data.draw(st.sampled_from([b"", b"ann", b"Ann", b"likes", b"acme", b"ORG", b"f1", b"\xff"]))
            )(parts)
        else:
            array = parts.numbers(name)
            at = data.draw(st.integers(0, len(array) - 1))
            if parts.kinds[name] == "memory":
                field = data.draw(st.sampled_from(array.dtype.names or ()))
                array[field][at] = data.draw(st.sampled_from(NUMBERS))
            elif array.dtype.kind == "f":
                array[at] = data.draw(st.sampled_from([0.0, -0.0, 0.5, 1.0, 2.0, np.nan, np.inf, -1.0]))
            else:
                limits = np.iinfo(array.dtype)
                fits = [each for each in NUMBERS if limits.min <= each <= limits.max]
                array[at] = data.draw(st.sampled_from([*fits, int(array[at]) + 1, int(array[0])]))
    wire = server.wire()
    wire.send("RESTORE", "k", 0, parts.payload())
    reply = wire.read()
    if isinstance(reply, WireError):
        assert str(reply) == WRONG
        assert wire("DBSIZE") == 0
    else:
        for later in (0, DAY, 100 * DAY):
            server.clock.now_ms = JUNE + 2 * DAY + later
            on_loop(server, lambda: check(memory_of(server, "k"), server.server.clock()))
            assert isinstance(wire("MEM.FACTS", "k", "INVALIDATED", "KNOWNAT", JUNE), list)
        payload = wire("DUMP", "k")
        assert wire("RESTORE", "k", 0, payload, "REPLACE") == "OK"
        assert wire("DUMP", "k") == payload
        wire("FLUSHALL")
    wire.close()
