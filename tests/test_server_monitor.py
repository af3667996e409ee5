"""MONITOR: its lines, who is shown what, and that a slow reader is cut off."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import JUNE, SECOND, Clock, Running, Wire, Word, pack
from peer import connect, needs_redis, redis_server
from recalld.server import transactions
from recalld.server.monitor import line, quoted

Start = Callable[..., Running]


@pytest.fixture(params=[2, 3])
def watcher(server: Running, request: pytest.FixtureRequest) -> Iterator[Wire]:
    """A connection in MONITOR, on RESP2 and on RESP3."""
    watching = server.wire(request.param)
    assert watching("MONITOR") == "OK"
    yield watching
    watching.close()


def lines(watcher: Wire, wire: Wire) -> list[str]:
    """What `watcher` is shown before `wire`'s ECHO, without time and address."""
    wire("ECHO", "the end")
    found: list[str] = []
    while not (text := str(watcher.read())).endswith('"ECHO" "the end"'):
        found.append(text.partition("] ")[2])
    return found


def test_a_line_is_redis(server: Running, watcher: Wire, wire: Wire) -> None:
    wire("EcHo", b'a"\\\n\r\t\x07\x08\x00\xff b')
    addr = next(client.addr for client in server.server.clients.values() if client.last_command == "echo")
    assert watcher.read() == (
        f'{JUNE // 1000}.000000 [0 {addr}] "EcHo" "a\\"\\\\\\n\\r\\t\\a\\b\\x00\\xff b"'
    )


def test_time_has_microseconds() -> None:
    assert line(1_234_567, "1.2.3.4:5", [b"PING"]) == '1234.567000 [0 1.2.3.4:5] "PING"'


def test_who_asks_sees_itself_but_no_commands_of_administrators(watcher: Wire, wire: Wire) -> None:
    wire("CONFIG", "GET", "port")
    wire("CLIENT", "ID")
    assert lines(watcher, wire) == ['"CLIENT" "ID"']
    watcher.send("PING")
    assert watcher.read() == "PONG"  # and then the line of it
    assert lines(watcher, wire) == ['"PING"']


@pytest.mark.parametrize("at_once_ns", [1 << 60, -1])
def test_what_exec_runs_is_shown_when_it_runs(
    monkeypatch: pytest.MonkeyPatch, watcher: Wire, wire: Wire, at_once_ns: int
) -> None:
    """And EXEC behind it, also where it goes on in turns."""
    monkeypatch.setattr(transactions, "AT_ONCE_NS", at_once_ns)
    wire("MULTI")
    wire("ECHO", "a")
    wire("EXISTS", "b")
    wire("EXEC")
    assert lines(watcher, wire) == ['"MULTI"', '"ECHO" "a"', '"EXISTS" "b"', '"EXEC"']
    wire.pipeline(("MULTI",), ("ECHO", "a"), ("DISCARD",))
    assert lines(watcher, wire) == ['"MULTI"', '"DISCARD"']


def test_what_was_refused_is_not_shown(watcher: Wire, wire: Wire) -> None:
    wire.error("NONSENSE")
    wire.error("ECHO")
    wire.error("MEM.CARD", "absent")
    assert lines(watcher, wire) == ['"MEM.CARD" "absent"']


def test_no_secret_is_shown(watcher: Wire, wire: Wire) -> None:
    wire.error("AUTH", "hunter2")
    wire("HELLO", "2", "AUTH", "default", "hunter2")
    wire("HELLO", "2")
    assert lines(watcher, wire) == [
        '"AUTH" "(redacted)"',
        '"HELLO" "2" "AUTH" "(redacted)" "(redacted)"',
        '"HELLO" "2"',
    ]


def test_long_words_and_lines_are_cut() -> None:
    assert quoted(b"x" * 20_000) == f'"{"x" * 16_384}... (3616 more bytes)"'
    text = line(0, "a", [b"DEL", *[b"k" * 1000] * 10_000])
    assert len(text) < 300_000
    assert re.search(r'"\.\.\. \(\d+ more arguments\)"$', text)


def test_reset_and_leaving_end_it(server: Running, wire: Wire) -> None:
    watching = server.wire()
    watching("MONITOR")
    assert watching("MONITOR") == "OK"  # again is no error
    assert [client.monitoring for client in server.server.clients.values()].count(True) == 1
    assert watching("RESET") == "RESET"
    wire("ECHO", "x")
    assert watching("PING") == "PONG"
    assert watching("MONITOR") == "OK"
    watching.sock.close()
    watching.close()
    while any(client.monitoring for client in server.server.clients.values()):
        wire("ECHO", "x")
    assert server.server.observer.notable_ns > 0


def test_not_in_a_transaction(wire: Wire) -> None:
    [reply] = wire.pipeline(("MULTI",), ("MONITOR",), ("EXEC",))[-1]
    assert str(reply) == "ERR MONITOR isn't allowed for DENY BLOCKING client"


def test_client_list_marks_it(watcher: Wire, wire: Wire) -> None:
    flags = re.findall(r"flags=(\w+)", wire("CLIENT", "LIST").decode())
    assert "O" in flags


def test_a_monitor_too_slow_is_cut_off(running: Start) -> None:
    """client-output-buffer-limit normal: the others go on."""
    server = running(clock=Clock(), client_output_buffer_limit="normal 1mb 0 0")
    watching, wire = server.wire(), server.wire()
    watching("MONITOR")
    [client] = [client for client in server.server.clients.values() if client.monitoring]
    word = b"x" * 10_000
    for _ in range(10_000):  # what the kernel takes is beside the limit
        if client.id not in server.server.clients:
            break
        assert wire("ECHO", word) == word
    assert client.id not in server.server.clients
    assert server.server.stats.output_cut_offs == 1
    assert wire("PING") == "PONG"


def test_a_monitor_is_never_idle(running: Start) -> None:
    """`timeout` is for those who wait for nothing."""
    clock = Clock()
    server = running(clock=clock, timeout="5")
    watching, idle = server.wire(), server.wire()
    watching("MONITOR")
    idle("PING")
    watching.read()
    clock.advance(60 * SECOND)
    with pytest.raises((EOFError, ConnectionError)):
        idle.read()
    server.wire()("ECHO", "still there")
    assert str(watching.read()).endswith('"ECHO" "still there"')


@needs_redis
def test_redis_shows_the_same(running: Start, tmp_path: Path) -> None:
    commands: list[tuple[Word, ...]] = [
        ("PING",),
        ("CONFIG", "GET", "port"),
        ("ECHO", bytes(range(256))),
        ("HELLO", "2", "AUTH", "default", "x", "SETNAME", "me"),
        ("AUTH", "x"),
        ("MULTI",),
        ("ExistS", "a"),
        ("AUTH", "x"),
        ("EXEC",),
        ("CLIENT", "ID"),
        ("DEL",),
        ("SUBSCRIBE", "a"),
        ("UNSUBSCRIBE", "a"),
        ("PUBLISH", "a", "b"),
        ("TTL", "a"),
        ("INFO", "server"),
        ("SLOWLOG", "LEN"),
        ("RESET",),
    ]
    seen = []
    with redis_server(tmp_path) as path:
        here = running()
        for wire, watching in ((here.wire(), here.wire()), (connect(path), connect(path))):
            watching("MONITOR")
            for words in commands:
                wire.sock.sendall(pack(*words))
                wire.read()
            seen.append(lines(watching, wire))
    assert seen[0] == seen[1]
