"""Keyspace notifications: which events, in which order, on which channels."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from harness import DAY, SECOND, Clock, Running, Wire, WireError, Word
from peer import MAKE, connect, for_redis, for_us, needs_redis, redis_server

Start = Callable[..., Running]


def watch(server: Running, classes: str) -> tuple[Wire, Wire]:
    """A connection that works, and one that hears every notification of these classes."""
    wire, heard = server.wire(), server.wire()
    wire("CONFIG", "SET", "notify-keyspace-events", classes)
    heard("PSUBSCRIBE", "__key*")
    return wire, heard


def events(heard: Wire, wire: Wire) -> list[tuple[str, str]]:
    """What was told so far: (channel, message)."""
    wire("PUBLISH", "__key:end", "")
    found = []
    while (message := heard.read())[2] != b"__key:end":
        found.append((message[2].decode(), message[3].decode()))
    return found


def keyspace(*pairs: tuple[str, str]) -> list[tuple[str, str]]:
    return [(f"__keyspace@0__:{key}", event) for key, event in pairs]


def test_channels_are_chosen_by_k_and_e(running: Start) -> None:
    wire, heard = watch(running(), "Kg")
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    wire("DEL", "a", "absent")
    assert events(heard, wire) == keyspace(("a", "del"))
    wire("CONFIG", "SET", "notify-keyspace-events", "Eg")
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    wire("DEL", "a")
    assert events(heard, wire) == [("__keyevent@0__:del", "a")]
    wire("CONFIG", "SET", "notify-keyspace-events", "KEg")
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    wire("DEL", "a")
    assert events(heard, wire) == [*keyspace(("a", "del")), ("__keyevent@0__:del", "a")]
    for classes in ("", "g", "KE"):
        wire("CONFIG", "SET", "notify-keyspace-events", classes)
        wire("MEM.CREATE", "a", "MODE", "SEARCH")
        wire("DEL", "a")
        assert events(heard, wire) == []


def test_what_happens_to_keys(running: Start) -> None:
    wire, heard = watch(running(clock=Clock()), "Kgn")
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    wire("EXPIRE", "a", 100)
    wire("PERSIST", "a")
    wire("PERSIST", "a")
    wire("RENAME", "a", "b")
    wire("COPY", "b", "c")
    payload = wire("DUMP", "b")
    wire("RESTORE", "d", 0, payload)
    wire("RESTORE", "d", 0, payload, "REPLACE")
    wire("EXPIRE", "d", -1)
    wire("DEL", "b", "c")
    wire("MEM.CREATE", "e", "MODE", "SEARCH")
    wire("FLUSHALL")  # tells nothing, as in Redis
    assert events(heard, wire) == keyspace(
        *[("a", "new"), ("a", "expire"), ("a", "persist")],
        *[("b", "new"), ("a", "rename_from"), ("b", "rename_to"), ("c", "new"), ("c", "copy_to")],
        *[("d", "new"), ("d", "restore"), ("d", "new"), ("d", "restore"), ("d", "del")],
        *[("b", "del"), ("c", "del"), ("e", "new")],
    )


def test_keys_expire(running: Start) -> None:
    """When they are gone, by whoever looks first."""
    clock = Clock()
    wire, heard = watch(running(clock=clock), "Kx")
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    wire("EXPIRE", "a", 100)
    assert events(heard, wire) == []
    clock.advance(DAY)
    wire("EXISTS", "a")
    assert events(heard, wire) == keyspace(("a", "expired"))


def test_a_key_that_nobody_looks_at_expires_too(running: Start) -> None:
    clock = Clock()
    wire, heard = watch(running(clock=clock), "Kx")
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    wire("EXPIRE", "a", 100)
    clock.advance(DAY)
    assert heard.read()[2:] == [b"__keyspace@0__:a", b"expired"]


def test_what_happens_in_memories(running: Start) -> None:
    """One event per record, without its id, which `__mem__:<key>` tells."""
    clock = Clock()
    wire, heard = watch(running(clock=clock), "Kd")
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    wire("MEM.CONFIG", "a", "HALFLIFE", 5)
    wire("MEM.MADD", "a", 2, "RECORD", "TEXT", "x", "RECORD", "TEXT", "y", "TTL", 5)
    wire("MEM.SETMETA", "a", 1, "k", "v")
    fact = wire("MEM.FACT", "a", "user", "likes", "tea")
    wire("MEM.INVALIDATE", "a", fact)
    wire("MEM.ENTITY", "a", "tea", "TYPE", "FOOD")
    wire("MEM.DEL", "a", 1)
    clock.advance(10 * SECOND)
    wire("MEM.CARD", "a")
    assert events(heard, wire) == keyspace(
        *[("a", f"mem.{event}") for event in ("create", "config", "add", "add", "ttl", "meta", "fact", "invalidate")],
        *[("a", f"mem.{event}") for event in ("entity", "del", "expire")],
    )


def test_a_key_that_is_missed(running: Start) -> None:
    wire, heard = watch(running(), "Em")
    wire.error("MEM.GET", "absent", 1)
    wire("EXISTS", "absent", "other")
    assert events(heard, wire) == [
        ("__keyevent@0__:keymiss", key) for key in ("absent", "absent", "other")
    ]


def test_exec_tells_as_it_runs(running: Start) -> None:
    wire, heard = watch(running(), "Kg")
    wire.pipeline(("MULTI",), ("MEM.CREATE", "a", "MODE", "SEARCH"), ("DEL", "a"), ("EXPIRE", "a", 5), ("EXEC",))
    assert events(heard, wire) == keyspace(("a", "del"))


def test_the_same_on_resp3_is_a_push(running: Start) -> None:
    server = running(notify_keyspace_events="Kg")
    wire, heard = server.wire(), server.wire(3)
    heard("SUBSCRIBE", "__keyspace@0__:a")
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    wire("DEL", "a")
    assert heard.read() == [b"message", b"__keyspace@0__:a", b"del"]


@pytest.mark.parametrize(
    ("letters", "shown"),
    [("KEA", "AKE"), ("Kg$lszxedt", "g$lszxetdK"), ("AKEmn", "AKEmn"), ("", ""), ("A", "A"), ("gx", "gx")],
)
def test_letters_are_shown_as_redis_shows_them(running: Start, letters: str, shown: str) -> None:
    wire = running().wire()
    wire("CONFIG", "SET", "notify-keyspace-events", letters)
    assert wire("CONFIG", "GET", "notify-keyspace-events")[1].decode() == shown


def test_a_letter_that_is_none(running: Start) -> None:
    assert running().wire().error("CONFIG", "SET", "notify-keyspace-events", "Kq") == (
        "ERR CONFIG SET failed (possibly related to argument 'notify-keyspace-events') - Invalid event class"
        " character. Use 'Ag$lshzxeKEtmdn'."
    )


@needs_redis
def test_redis_tells_the_same(running: Start, tmp_path: Path) -> None:
    """Of the classes that both have; a missed key is told by reads alone there."""
    commands: list[tuple[Word, ...]] = [
        (MAKE, "a"),
        ("EXPIRE", "a", 100),
        ("EXPIRE", "a", 100, "NX"),
        ("EXPIREAT", "a", 4_000_000_000),
        ("PERSIST", "a"),
        ("PERSIST", "a"),
        ("RENAME", "a", "b"),
        (MAKE, "a"),
        ("RENAME", "a", "b"),
        ("RENAMENX", "b", "c"),
        ("RENAME", "c", "c"),
        ("COPY", "c", "d"),
        ("COPY", "c", "d"),
        ("COPY", "c", "d", "REPLACE"),
        ("EXPIRE", "d", -1),
        ("EXPIRE", "absent", 5),
        ("UNLINK", "absent", "c"),
        (MAKE, "e"),
        ("PEXPIREAT", "e", 1),
        (MAKE, "f"),
        ("FLUSHDB",),
    ]
    heard_by = []
    with redis_server(tmp_path) as path:
        here = running()
        sides = [(here.wire(), here.wire(), for_us), (connect(path), connect(path), for_redis)]
        for wire, heard, spelling in sides:
            wire("CONFIG", "SET", "notify-keyspace-events", "KEgxn")
            heard("PSUBSCRIBE", "__key*")
            for words in commands:
                wire.send(*spelling(words))
                assert not isinstance(wire.read(), WireError), words
            heard_by.append(events(heard, wire))
    assert heard_by[0] == heard_by[1]
