"""SLOWLOG: what goes in, how it is cut, and that no secret does."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import JUNE, SECOND, Clock, Running, Wire, Word
from peer import connect, needs_redis, redis_server
from recalld.server.shown_words import cut, shown

Start = Callable[..., Running]

ALL = {"slowlog_log_slower_than": "0"}


def entries(wire: Wire, count: int = -1) -> list[list[object]]:
    return wire("SLOWLOG", "GET", count)


def words_of(wire: Wire) -> list[list[bytes]]:
    """The words of all entries, the oldest first."""
    return [entry[3] for entry in reversed(entries(wire))]


def test_an_entry_has_redis_shape(running: Start) -> None:
    clock = Clock()
    server = running(clock=clock, **ALL)
    wire = server.wire()
    wire("CLIENT", "SETNAME", "me")
    clock.advance(5 * SECOND)
    wire("EcHo", "hello")
    [entry] = entries(wire, 1)
    number, time_s, usec, words, addr, name = entry
    assert (number, time_s, words, name) == (1, JUNE // 1000 + 5, [b"EcHo", b"hello"], b"me")
    assert isinstance(usec, int) and usec >= 0
    assert addr.decode() in {client.addr for client in server.server.clients.values()}


def test_the_threshold_decides(running: Start) -> None:
    """-1 keeps none, 0 all, and 10 ms, the default, no ECHO of a machine that is not ill."""
    wire = running(slowlog_log_slower_than="-1").wire()
    wire("ECHO", "x")
    assert wire("SLOWLOG", "LEN") == 0
    wire("CONFIG", "SET", "slowlog-log-slower-than", "0")
    wire("ECHO", "y")
    assert words_of(wire)[-1] == [b"ECHO", b"y"]
    wire("CONFIG", "SET", "slowlog-log-slower-than", str(10**12))
    before = wire("SLOWLOG", "LEN")
    wire("ECHO", "z")
    assert wire("SLOWLOG", "LEN") == before


def test_it_is_bounded_and_ids_go_on(running: Start) -> None:
    wire = running(slowlog_max_len="3", **ALL).wire()
    for number in range(5):
        wire("ECHO", number)
    assert [entry[0] for entry in entries(wire)] == [4, 3, 2]
    wire("CONFIG", "SET", "slowlog-max-len", "1")
    assert [entry[3] for entry in entries(wire)] == [[b"CONFIG", b"SET", b"slowlog-max-len", b"1"]]
    assert wire("SLOWLOG", "RESET") == "OK"
    assert [entry[3] for entry in entries(wire)] == [[b"SLOWLOG", b"RESET"]]
    assert entries(wire)[0][0] > 4
    wire("CONFIG", "SET", "slowlog-max-len", "0")
    assert entries(wire) == []


def test_ten_are_shown_unless_told_otherwise(running: Start) -> None:
    wire = running(**ALL).wire()
    for number in range(12):
        wire("ECHO", number)
    assert len(wire("SLOWLOG", "GET")) == 10
    assert len(wire("SLOWLOG", "GET", "2")) == 2
    assert wire("SLOWLOG", "GET", "0") == []
    for bad in ("-2", "x", ""):
        assert wire.error("SLOWLOG", "GET", bad) == "ERR count should be greater than or equal to -1"
    assert wire.error("SLOWLOG", "GET", "1", "2").startswith("ERR wrong number of arguments for 'slowlog|get' command")


def test_what_exec_runs_is_kept_exec_is_not(running: Start) -> None:
    wire = running(**ALL).wire()
    wire.pipeline(("MULTI",), ("ECHO", "a"), ("ECHO", "b"), ("EXEC",))
    assert words_of(wire) == [[b"MULTI"], [b"ECHO", b"a"], [b"ECHO", b"b"]]


def test_what_was_refused_has_not_run(running: Start) -> None:
    wire = running(**ALL).wire()
    wire.error("NONSENSE")
    wire.error("ECHO")
    wire.error("MEM.CARD", "absent")
    assert words_of(wire) == [[b"MEM.CARD", b"absent"]]


def test_a_command_that_a_thread_works_on_is_kept_with_its_words(running: Start) -> None:
    """CONFIG REWRITE, SAVE, large scans reply later; they are in the log by the time of their reply."""
    wire = running(**ALL).wire()
    for number in range(1200):
        wire.send("MEM.CREATE", f"k{number}", "MODE", "SEARCH")
    for _ in range(1200):
        wire.read()
    wire("KEYS", "k1?")
    assert words_of(wire)[-1] == [b"KEYS", b"k1?"]


SECRETS: list[tuple[Word, ...]] = [
    ("AUTH", "hunter2"),
    ("AUTH", "default", "hunter2"),
    ("HELLO", "2", "AUTH", "default", "hunter2", "SETNAME", "me"),
    ("HELLO", "2", "SETNAME", "me", "AUTH", "default", "hunter2"),
    ("CONFIG", "SET", "timeout", "0", "RequirePass", "hunter2"),
    ("MULTI",),
]


def test_no_secret_is_shown(running: Start) -> None:
    wire = running(**ALL).wire()
    for words in SECRETS:
        wire.send(*words)
        wire.read()
    wire.pipeline(("AUTH", "hunter2"), ("EXEC",))
    shown_ = words_of(wire)
    assert b"hunter2" not in b" ".join(word for words in shown_ for word in words)
    assert [b"AUTH", b"(redacted)", b"(redacted)"] in shown_
    assert [b"HELLO", b"2", b"AUTH", b"(redacted)", b"(redacted)", b"SETNAME", b"me"] in shown_
    assert [b"CONFIG", b"SET", b"timeout", b"0", b"RequirePass", b"(redacted)"] in shown_


def test_users_of_acl_are_secret_whole() -> None:
    words = [b"ACL", b"SETUSER", b"joe", b"on", b">pw"]
    assert shown("acl|setuser", words) == [b"ACL", b"SETUSER", b"(redacted)", b"(redacted)", b"(redacted)"]
    dryrun = [b"ACL", b"DRYRUN", b"joe", b"AUTH", b"pw"]
    assert shown("acl|dryrun", dryrun) == [*dryrun[:3], b"(redacted)", b"(redacted)"]


def test_vectors_are_shown_by_their_size(running: Start) -> None:
    wire = running(**ALL).wire()
    wire("MEM.CREATE", "m", "DIM", 16)
    blob = struct.pack("<16f", *[1.0] * 16)
    numbers = [1.5] * 16
    wire("MEM.ADD", "m", "TEXT", "VEC", "VEC", blob, "META", "a", "b")
    wire("MEM.QUERY", "m", "TOPK", "1", "FVEC", "16", *numbers, "NOTEXT")
    assert words_of(wire)[1:] == [
        [b"MEM.ADD", b"m", b"TEXT", b"VEC", b"VEC", b"(vector of 64 bytes)", b"META", b"a", b"b"],
        [b"MEM.QUERY", b"m", b"TOPK", b"1", b"FVEC", b"16", b"(vector of 16 numbers)", b"NOTEXT"],
    ]


@pytest.mark.parametrize(
    "words",
    [
        [b"MEM.ADD", b"m", b"FVEC"],
        [b"MEM.ADD", b"m", b"VEC"],
        [b"MEM.ADD", b"m", b"FVEC", b"999999"],
        [b"MEM.ADD", b"m", b"FVEC", b"x", b"1"],
        [b"MEM.ADD", b"m", b"TEXT", b"VEC", b"META", b"a", b"b"],
        [b"MEM.ADD", b"m", b"FVEC", b"2", b"1", b"2"],
    ],
)
def test_what_is_no_vector_is_shown_as_it_is(words: list[bytes]) -> None:
    assert shown("mem.add", words) == words


def test_cut_by_hand() -> None:
    assert cut([b"x" * 129]) == [b"x" * 128 + b"... (1 more bytes)"]
    assert cut([b"x" * 128]) == [b"x" * 128]
    assert cut([b"%d" % n for n in range(32)]) == [b"%d" % n for n in range(32)]
    assert cut([b"%d" % n for n in range(33)]) == [*(b"%d" % n for n in range(31)), b"... (2 more arguments)"]


@needs_redis
def test_redis_keeps_the_same_words(running: Start, tmp_path: Path) -> None:
    commands: list[tuple[Word, ...]] = [
        ("PING",),
        ("dEl", *range(40)),
        ("ECHO", b"\x00" * 400),
        ("EXISTS", *["k" * 128] * 31),
        ("EXISTS", *["k" * 129] * 32),
        *SECRETS,
        ("ECHO", "queued"),
        ("NONSENSE",),
        ("EXEC",),
        ("MULTI",),
        ("TTL", "a"),
        ("EXEC",),
    ]
    seen = []
    with redis_server(tmp_path) as path:
        for wire in (running(**ALL).wire(), connect(path)):
            wire("CONFIG", "SET", "slowlog-log-slower-than", "0")
            wire("SLOWLOG", "RESET")
            for words in commands:
                wire.send(*words)
                wire.read()
            seen.append([words for words in words_of(wire) if words[0] != b"SLOWLOG"])
            assert wire("SLOWLOG", "LEN") > len(seen[-1])
    assert seen[0] == seen[1]
