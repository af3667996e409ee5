"""Long and many words where something comes between: what gathers behind a command that waits, subscriptions that are
made or ended in turns, an argument for which there is no memory. And MEMORY USAGE of memories that have much in common.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import random
import re
import socket
import ssl
import struct
import threading
import time
import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from certificates import Authority
from durable import eventually
from harness import PATIENCE_S, Running, Wire, WireError, free_port, pack
from recalld.index import blocks
from recalld.protocol.parser import Parser
from recalld.server import connection as connection_module

MB = 1 << 20


def _gathered(admin: Wire) -> int:
    """The most bytes that any connection holds for commands to come."""
    return max(int(size) for size in re.findall(rb" qbuf=(\d+)", admin("CLIENT", "LIST")))


# -- long words


def test_an_argument_that_gathered_is_put_together_elsewhere_too() -> None:
    """Fed while no command was taken: `next_command` joins little more than it needs."""
    parser = Parser(apart_bytes=MB)
    value = bytes(2 * MB)
    data = pack(b"PING") + pack(b"ECHO", value) + pack(b"PING")
    parser.feed(pack(b"PING"))
    for at in range(0, len(data), 50_000):
        parser.feed(data[at : at + 50_000])
    assert parser.next_command() == [b"PING"]
    assert parser.next_command() == [b"PING"]
    assert parser.next_command() is None
    assert b"".join(parser.pieces) == value
    parser.put(value)
    assert parser.next_command() == [b"ECHO", value]
    assert parser.next_command() == [b"PING"]
    assert parser.next_command() is None
    assert parser.buffered_bytes == 0


def test_small_commands_that_gathered() -> None:
    """Many chunks, none of which ends where a command does."""
    parser = Parser()
    commands = [[b"SET", b"key%d" % n, bytes(n % 5000)] for n in range(2000)]
    data = b"".join(pack(*command) for command in commands)
    parser.feed(pack(b"PING"))
    for at in range(0, len(data), 4999):
        parser.feed(data[at : at + 4999])
    assert parser.next_command() == [b"PING"]
    taken = []
    while (command := parser.next_command()) is not None:
        taken.append(command)
    assert taken == commands
    assert parser.buffered_bytes == 0


def test_a_word_that_is_too_long_behind_a_command_that_waits() -> None:
    """It is refused as if nothing had been before it."""
    with Running() as server:
        admin, wire = server.wire(), server.wire()
        admin("CLIENT", "PAUSE", 600_000, "WRITE")
        wire.send("DEL", "k")
        eventually(lambda: b"flags=b" in admin("CLIENT", "LIST"))
        wire.send("PING", bytes(40 * MB))
        eventually(lambda: _gathered(admin) > 40 * MB)
        admin("CLIENT", "UNPAUSE")
        assert wire.read() == 0
        assert str(wire.read()).startswith(f"ERR a command of {40 * MB + 4} bytes exceeds the {32 * MB}")
        assert wire("PING") == "PONG"


def test_an_argument_for_which_there_is_no_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection ends, and nobody else's."""
    with Running() as server:
        other, wire = server.wire(), server.wire()

        def failing(work: Callable[[], Any]) -> asyncio.Future[Any]:
            future: asyncio.Future[Any] = server.server.loop.create_future()
            future.set_exception(MemoryError())
            return future

        monkeypatch.setattr(server.server, "background", failing)
        wire.send("PING", bytes(3 * MB))
        with pytest.raises((EOFError, ConnectionError)):
            wire.read()
        assert other("PING") == "PONG"


class Gate:
    """Threads that put arguments together, and do whatever else, wait for it."""

    def __init__(self, server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open, self.waited = threading.Event(), threading.Event()
        background = server.server.background

        def gated(work: Callable[[], Any]) -> asyncio.Future[Any]:
            def wait() -> Any:
                self.waited.set()
                assert self.open.wait(PATIENCE_S)
                return work()

            future: asyncio.Future[Any] = background(wait)
            return future

        monkeypatch.setattr(server.server, "background", gated)


def test_a_long_word_over_tls(tmp_path: Path) -> None:
    mine = (ca := Authority(tmp_path)).issue("server")
    files = {"tls_cert_file": str(mine.cert), "tls_key_file": str(mine.key), "tls_auth_clients": "no"}
    context = ssl.create_default_context(cafile=ca.path)
    with Running(tls_port=str(free_port()), port=str(free_port()), **files) as server:
        raw = socket.create_connection(("127.0.0.1", server.tls_port), PATIENCE_S)
        wire = Wire(context.wrap_socket(raw, server_hostname="localhost"))
        word = random.Random(1).randbytes(20 * MB)
        assert wire("ECHO", word) == word
        assert wire.error("ECHO", bytes(33 * MB)).startswith(f"ERR a command of {33 * MB + 4} bytes exceeds")
        assert wire.error("DEL", *[bytes(12 * MB)] * 3).startswith(f"ERR a command of {36 * MB + 3} bytes exceeds")
        assert wire.pipeline(["ECHO", word[: 3 * MB]], ["PING"]) == [word[: 3 * MB], "PONG"]


def test_the_query_buffer_limit_reached_behind_a_long_word(monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection ends while a thread still works for it."""
    with Running(client_query_buffer_limit="8mb") as server:
        admin, wire = server.wire(), server.wire()
        gate = Gate(server, monkeypatch)
        wire.send("ECHO", bytes(3 * MB))
        assert gate.waited.wait(PATIENCE_S)
        with contextlib.suppress(ConnectionError):
            wire.send("ECHO", bytes(7 * MB))
        with pytest.raises((EOFError, ConnectionError)):
            wire.read()
        gate.open.set()
        eventually(lambda: len(admin("CLIENT", "LIST").splitlines()) == 1)
        assert b"client_query_buffer_limit_disconnections:1" in admin("INFO", "stats")
        assert server.wire()("ECHO", bytes(3 * MB)) == bytes(3 * MB)


def test_the_end_while_a_long_word_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its command has come whole, so it runs; what another's lacks is not waited for."""
    with Running(shutdown_timeout="3600") as server:
        wire, half = server.wire(), server.wire()
        half.sock.sendall(pack("ECHO", bytes(3 * MB))[: 2 * MB])
        gate = Gate(server, monkeypatch)
        wire.send("ECHO", bytes(3 * MB))
        wire.send("PING")
        assert gate.waited.wait(PATIENCE_S)
        ending = threading.Thread(target=server.stop)
        ending.start()
        assert half.sock.recv(10) == b""  # all have been told
        gate.open.set()
        assert wire.read() == bytes(3 * MB)
        assert wire.read() == "PONG"
        assert wire.sock.recv(10) == b""
        ending.join(PATIENCE_S)
        assert not ending.is_alive()


def test_an_end_that_does_not_wait_for_a_long_word(monkeypatch: pytest.MonkeyPatch) -> None:
    with Running(shutdown_timeout="0") as server:
        wire = server.wire()
        gate = Gate(server, monkeypatch)
        wire.send("ECHO", bytes(3 * MB))
        assert gate.waited.wait(PATIENCE_S)
        ending = threading.Thread(target=server.stop)
        ending.start()
        with pytest.raises((EOFError, ConnectionError)):
            wire.read()
        gate.open.set()
        ending.join(PATIENCE_S)
        assert not ending.is_alive()


def test_a_pause_while_a_long_word_is_put_together(monkeypatch: pytest.MonkeyPatch) -> None:
    with Running() as server:
        admin, wire = server.wire(), server.wire()
        gate = Gate(server, monkeypatch)
        wire.send("ECHO", bytes(3 * MB))
        assert gate.waited.wait(PATIENCE_S)
        admin("CLIENT", "PAUSE", 600_000)
        gate.open.set()
        wire.sock.settimeout(0.2)
        with pytest.raises(TimeoutError):
            wire.sock.recv(1, socket.MSG_PEEK)
        wire.sock.settimeout(PATIENCE_S)
        admin("CLIENT", "UNPAUSE")
        assert wire.read() == bytes(3 * MB)


# -- what connections hold


@pytest.mark.parametrize(
    "last",
    [
        (("PING",),),
        (("SUBSCRIBE", "news"), ("PSUBSCRIBE", "n*")),
        (("WATCH", "k"), ("MULTI",), ("ECHO", "x" * 100_000)),
        (("MONITOR",),),
        (("CLIENT", "TRACKING", "OFF"), ("MEM.QUERY", "k", "TEXT", "tea")),
    ],
    ids=str,
)
def test_a_connection_that_is_gone_leaves_nothing(last: tuple[tuple[str, ...], ...]) -> None:
    """Without a collection of cycles: that is rare."""
    with Running() as server:
        admin = server.wire()
        admin("MEM.CREATE", "k", "MODE", "SEARCH")
        wire = server.wire()
        gc.collect()
        gc.disable()
        try:
            for command in last:
                wire.send(*command)
                wire.read()
            held = weakref.ref(max(server.server.clients.items())[1].connection)
            wire.sock.sendall(pack("ECHO", bytes(3 * MB))[:-MB])
            eventually(lambda: _gathered(admin) >= 2 * MB)
            wire.close()
            eventually(lambda: held() is None)
        finally:
            gc.enable()


def test_input_of_a_connection_that_is_gone_is_freed_though_its_query_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    with Running() as server:
        admin, wire = server.wire(), server.wire()
        assert admin("PING") == wire("PING") == "PONG"
        gate = Gate(server, monkeypatch)
        connection = max(server.server.clients.items())[1].connection
        wire.sock.sendall(pack("ECHO", bytes(3 * MB)) + pack("ECHO", bytes(9 * MB))[:-1])
        assert gate.waited.wait(PATIENCE_S)
        eventually(lambda: _gathered(admin) > 9 * MB)
        wire.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset, no end of input
        wire.close()
        eventually(lambda: connection.gone)
        assert connection.parser.buffered_bytes == 0 and connection.joining
        gate.open.set()
        eventually(lambda: not connection.joining)


def test_strangers_may_send_little_ahead() -> None:
    """Who has not said who he is, and does not read."""
    with Running(requirepass="secret") as server:
        admin, wire = server.wire(), server.wire()
        admin("AUTH", "secret")
        with pytest.raises(ConnectionError):
            for _ in range(400):
                wire.sock.sendall(b"PING\r\n" * (MB // 6))
        assert b"client_query_buffer_limit_disconnections:1" in admin("INFO", "stats")
        wire = server.wire()
        assert wire("AUTH", "secret") == "OK"
        assert len(wire("ECHO", bytes(8 * MB))) == 8 * MB


@pytest.mark.parametrize(
    "own", [("PSUBSCRIBE", *(f"n{'*' * n}" for n in range(1, 101))), ("MONITOR",)], ids=lambda own: own[0]
)
def test_what_a_client_tells_itself_counts(own: tuple[str, ...]) -> None:
    """Before it is sent: its pushes wait for the reply of the command that made them."""
    with Running(client_output_buffer_limit="normal 4mb 0 0 pubsub 4mb 0 0") as server:
        admin, wire = server.wire(), server.wire(3)
        wire.send(*own)
        for _ in own[1:] or own:
            wire.read()
        word = "x" * MB
        if own[0] == "MONITOR":
            wire.sock.sendall(pack("MULTI") + pack("EXISTS", *["x" * 16_000] * 16) * 40 + pack("EXEC"))
        else:
            wire.send("PUBLISH", "n", word)
        with pytest.raises((EOFError, ConnectionError)):
            while True:
                wire.read()
        assert b"client_output_buffer_limit_disconnections:1" in admin("INFO", "stats")


@pytest.mark.parametrize(
    ("data", "ran", "reads_on"),
    [
        (pack("ECHO", "x" * 70_000), 1, False),  # a full read, behind which others may come in the same turn
        (pack("ECHO", "x" * 6_000) * 5, 5, True),
        (pack("EXISTS", *["k"] * 2000) * 3, 1, True),
        (pack("EXISTS", *["k"] * 200) * 3, 3, True),
    ],
)
def test_how_much_is_run_in_a_turn_of_the_loop(
    monkeypatch: pytest.MonkeyPatch, data: bytes, ran: int, reads_on: bool
) -> None:
    execute, done = connection_module.execute, itertools.count()
    monkeypatch.setattr(connection_module, "execute", lambda *words: (next(done), execute(*words))[1])
    with Running(clock=lambda: 1) as server:  # no slice ends by time
        wire = server.wire()
        wire("PING")
        connection = max(server.server.clients.items())[1].connection
        seen: list[object] = []

        def turn() -> None:
            before = next(done) + 1
            connection.data_received(data)
            seen.extend((next(done) - before, connection.transport.is_reading()))

        server.server.loop.call_soon_threadsafe(turn)
        for _ in range(data.count(b"*")):
            wire.read()
        assert seen == [ran, reads_on]
        assert wire("PING") == "PONG"  # and it is read on


def test_the_most_words() -> None:
    with Running() as server:
        wire = server.wire()
        wire.sock.sendall(b"*1048577\r\n")
        assert str(wire.read()) == "ERR Protocol error: invalid multibulk length"


# -- subscriptions in turns


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Running, threading.Event]]:
    """A server that takes its time for each turn of a SUBSCRIBE, and what says that it has begun."""
    begun = threading.Event()
    with Running() as server:
        subscribe, count = server.server.pubsub.subscribe, itertools.count(1)

        def slowly(client: Any, name: bytes) -> None:
            subscribe(client, name)
            if next(count) % 500 == 0:
                begun.set()
                time.sleep(0.05)

        monkeypatch.setattr(server.server.pubsub, "subscribe", slowly)
        yield server, begun


NAMES = [f"n{n}" for n in range(10_000)]


def test_a_pause_between_turns(slow: tuple[Running, threading.Event]) -> None:
    server, begun = slow
    admin, wire = server.wire(), server.wire()
    wire.send("SUBSCRIBE", *NAMES)
    assert begun.wait(PATIENCE_S)
    admin("CLIENT", "PAUSE", 600_000)
    admin("CLIENT", "UNPAUSE")
    assert [wire.read()[1:] for _ in NAMES] == [[name.encode(), n] for n, name in enumerate(NAMES, 1)]


def test_the_command_is_taken_away_between_turns(slow: tuple[Running, threading.Event]) -> None:
    """What is left is refused, an error for each turn, and what was made stays."""
    server, begun = slow
    admin, wire = server.wire(), server.wire(3)
    admin("ACL", "SETUSER", "someone", "on", "nopass", "+@all", "&*")
    wire("AUTH", "someone", "x")
    wire.send("SUBSCRIBE", *NAMES)
    assert begun.wait(PATIENCE_S)
    admin("ACL", "SETUSER", "someone", "-subscribe")
    made = len(admin("PUBSUB", "CHANNELS"))
    assert 500 <= made < len(NAMES) and made % 500 == 0
    assert [wire.read()[2] for _ in range(made)] == list(range(1, made + 1))
    errors = [str(wire.read()) for _ in range((len(NAMES) - made) // 500)]
    assert all(error.startswith("NOPERM") for error in errors)
    assert wire("PING") == "PONG"


def test_the_channels_are_taken_away_between_turns(slow: tuple[Running, threading.Event]) -> None:
    """As where they have been made: the connection ends."""
    server, begun = slow
    admin, wire = server.wire(), server.wire()
    admin("ACL", "SETUSER", "someone", "on", "nopass", "+@all", "&*")
    wire("AUTH", "someone", "x")
    wire.send("SUBSCRIBE", *NAMES)
    assert begun.wait(PATIENCE_S)
    admin("ACL", "SETUSER", "someone", "resetchannels")
    with pytest.raises((EOFError, ConnectionError)):
        for _ in range(len(NAMES)):
            wire.read()
    eventually(lambda: admin("PUBSUB", "CHANNELS") == [])


@pytest.mark.parametrize("kind", ["SUBSCRIBE", "PSUBSCRIBE"])
def test_all_are_ended_though_they_are_more_than_a_command_may_name(kind: str) -> None:
    with Running(max_command_words="1024") as server:
        wire = server.wire()
        for begin in range(0, 3000, 1000):
            wire.send(kind, *(f"n{n}" for n in range(begin, begin + 1000)))
            assert [wire.read()[2] for _ in range(1000)] == list(range(begin + 1, begin + 1001))
        wire.send("UN" + kind if kind == "SUBSCRIBE" else "PUNSUBSCRIBE")
        told = [wire.read() for _ in range(3000)]
        assert not any(isinstance(each, WireError) for each in told)
        assert [each[2] for each in told] == list(range(2999, -1, -1))
        assert wire("PING") == "PONG"


def test_what_is_pipelined_behind_comes_behind() -> None:
    """RESET, and what ends the connection, wait for the last turn."""
    names = [f"n{n}" for n in range(1700)]
    with Running() as server:
        for last, reply in (("RESET", "RESET"), ("QUIT", "OK")):
            wire = server.wire()
            wire.sock.sendall(pack("SUBSCRIBE", *names) + pack(last))
            assert [wire.read()[1] for _ in names] == [name.encode() for name in names]
            assert wire.read() == reply
        admin = server.wire()
        eventually(lambda: admin("PUBSUB", "CHANNELS") == [])


def test_a_monitor_sees_each_name_once() -> None:
    """And with the command as it came, but not with what is left at each turn."""
    names = [f"n{n}" for n in range(1700)]
    with Running() as server:
        monitor, wire = server.wire(), server.wire()
        monitor("MONITOR")
        wire.send("SUBSCRIBE", *names)
        for _ in names:
            wire.read()
        wire("PING")
        lines = []
        while '"PING"' not in (line := str(monitor.read())):
            lines.append(line)
        assert max("".join(lines).count(f'"{name}"') for name in names) == 2


# -- MEMORY USAGE of copies


_WORDS = [f"{a}{b}{c}" for a in ("ba", "ke", "lo", "mu") for b in ("ran", "sol") for c in range(50)]


def _add(wire: Wire, key: str, count: int, rng: random.Random, first: int = 0) -> None:
    for begin in range(0, count, 50):
        words: list[Any] = ["MEM.MADD", key, 50]
        for n in range(begin, begin + 50):
            words += ["RECORD", "ID", f"id{first + n}", "TEXT", " ".join(rng.choices(_WORDS, k=12)), "TAGS", 1, f"t{n}"]
        wire(*words)


def _written_copies(wire: Wire, rng: random.Random) -> None:
    """Copies each of which is written to: arrays and posting lists part, the records of before stay common."""
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    _add(wire, "a", 3000, rng)
    for n in range(4):
        wire("COPY", "a", f"c{n}")
        _add(wire, f"c{n}", 500, rng, 3000)


def _overwritten_copies(wire: Wire, rng: random.Random) -> None:
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    _add(wire, "a", 3000, rng)
    for n in range(4):
        wire("COPY", "a", f"c{n}")
        _add(wire, f"c{n}", 500, rng)


def _copies_of_what_grows(wire: Wire, rng: random.Random) -> None:
    """As backups are: each has all that the one before has."""
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    for n in range(6):
        _add(wire, "a", 800, rng, 800 * n)
        wire("COPY", "a", f"c{n}")


def _compacted_copies(wire: Wire, rng: random.Random) -> None:
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    _add(wire, "a", 5000, rng)
    for n in range(3):
        wire("COPY", "a", f"c{n}")
    for begin in range(0, 4000, 500):
        wire("MEM.DEL", "c0", *(f"id{n}" for n in range(begin, begin + 500)))


def _copies_of_facts(wire: Wire, rng: random.Random) -> None:
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    for n in range(3000):
        wire("MEM.FACT", "a", f"somebody{n % 500}", f"likes{n % 7}", " ".join(rng.choices(_WORDS, k=4)))
    wire("COPY", "a", "b")
    wire("COPY", "b", "c")


def _entities(wire: Wire, rng: random.Random) -> None:
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    for n in range(3000):
        wire("MEM.ENTITY", "a", f"name{n}", "TYPE", "PERSON", "ALIAS", f"also{n}")


@pytest.mark.parametrize(
    "fill",
    [_written_copies, _overwritten_copies, _copies_of_what_grows, _compacted_copies, _copies_of_facts, _entities],
)
def test_sizes_add_up_to_what_is_allocated(
    monkeypatch: pytest.MonkeyPatch, fill: Callable[[Wire, random.Random], None]
) -> None:
    """As Python's own account has it, in which freed memory that the allocator keeps is not, nor mappings are. With
    them the sizes are the same."""

    def no_more(*args: Any, **options: Any) -> Any:
        raise OSError("too many mappings")

    with Running() as server:
        wire, rng = server.wire(), random.Random(1)
        fill(wire, rng)
        mapped = sum(wire("MEMORY", "USAGE", key) for key in wire("KEYS", "*"))
    monkeypatch.setattr(blocks, "mmap", SimpleNamespace(mmap=no_more, MAP_PRIVATE=0, MAP_ANONYMOUS=0))
    with Running() as server:
        wire, rng = server.wire(), random.Random(1)
        fill(wire, rng)
        assert abs(sum(wire("MEMORY", "USAGE", key) for key in wire("KEYS", "*")) - mapped) < 0.01 * mapped
    with Running() as server:
        wire, rng = server.wire(), random.Random(1)
        wire("MEM.CREATE", "warm", "MODE", "SEARCH")
        _add(wire, "warm", 1500, rng)
        before = wire("MEMORY", "USAGE", "warm")  # with the vocabulary, which is there already
        gc.collect()
        tracemalloc.start()
        try:
            fill(wire, rng)
            gc.collect()
            grown = tracemalloc.get_traced_memory()[0]
        finally:
            tracemalloc.stop()
        told = sum(wire("MEMORY", "USAGE", key) for key in wire("KEYS", "*")) - before
    assert 0.85 * grown < told < 1.15 * grown


def test_sizes_of_very_many_copies() -> None:
    """Which are not all looked at for each of them."""
    with Running() as server:
        wire, rng = server.wire(), random.Random(1)
        wire("MEM.CREATE", "a", "MODE", "SEARCH")
        _add(wire, "a", 1500, rng)
        alone = wire("MEMORY", "USAGE", "a")
        for n in range(40):
            wire("COPY", "a", f"c{n}")
        sizes = [wire("MEMORY", "USAGE", key) for key in wire("KEYS", "*")]
        assert max(sizes[:-1]) < alone / 2  # each has places of its own for its rows
        wire("DEL", *(f"c{n}" for n in range(40)))
        for _ in range(50):
            left = wire("MEMORY", "USAGE", "a")
        eventually(lambda: wire("MEMORY", "USAGE", "a") > 0.95 * alone)
        assert left <= 1.05 * alone
