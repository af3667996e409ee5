"""The end in good order: what had arrived runs, its replies leave, and nobody else is waited for.

Where a test would hang if somebody were waited for, shutdown-timeout is an hour: the test then fails by its own limit.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import ssl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from certificates import Authority
from durable import eventually
from harness import PATIENCE_S, Running, Wire, free_port, pack
from manager import Service
from recalld.server.files import Files, Handle

Start = Callable[..., Running]
HOUR_S = "3600"
BIG = b"x" * 30_000_000  # more than the sockets of both sides hold


class GatedDisk(Files):
    """A disk whose fsync waits at `gate`."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.waits = threading.Event()

    def _open(self, path: str, *, new: bool) -> Handle:
        handle = super()._open(path, new=new)
        sync = handle.sync

        def gated() -> None:
            if not self.gate.is_set():
                self.waits.set()
            assert self.gate.wait(PATIENCE_S)
            sync()

        handle.sync = gated  # type: ignore[method-assign]
        return handle


class Ending:
    """`server.stop()` in a thread."""

    def __init__(self, server: Running) -> None:
        self._thread = threading.Thread(target=server.stop, daemon=True)
        self._server = server
        self._thread.start()
        # Nobody is let in any more: then the clients have been told.
        while True:
            try:
                server.raw().close()
            except ConnectionError:
                return

    @property
    def goes_on(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server did not stop"


def is_closed(wire: Wire) -> bool:
    """Whether the server has closed the connection, everything sent before being read."""
    try:
        wire.read()
    except (EOFError, ConnectionError):
        return True
    return False


def test_what_runs_is_finished(running: Start, tmp_path: Path) -> None:
    """A write that waits for the disk gets its reply, and so does what had arrived behind it."""
    disk = GatedDisk()
    server = running(dir=tmp_path, files=disk, appendfsync="always", shutdown_timeout=HOUR_S)
    wire = server.wire()
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    disk.gate.clear()
    wire.sock.sendall(pack("MEM.ADD", "k", "TEXT", "tea") + pack("MEM.CARD", "k") + pack("ECHO", "behind"))
    assert disk.waits.wait(PATIENCE_S)
    ending = Ending(server)
    assert ending.goes_on
    disk.gate.set()
    assert [wire.read() for _ in range(3)] == [b"1", 1, b"behind"]
    assert is_closed(wire)
    ending.join()
    server.start()
    assert server.wire()("MEM.CARD", "k") == 1


def test_what_comes_later_does_not_run(running: Start, tmp_path: Path) -> None:
    """It is read and dropped, so that the replies before it are not lost with the connection."""
    disk = GatedDisk()
    server = running(dir=tmp_path, files=disk, appendfsync="always", shutdown_timeout=HOUR_S)
    wire = server.wire()
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    disk.gate.clear()
    wire.send("MEM.ADD", "k", "TEXT", "tea")
    assert disk.waits.wait(PATIENCE_S)
    ending = Ending(server)
    for _ in range(100):
        wire.send("MEM.ADD", "k", "TEXT", "x" * 10_000)
    disk.gate.set()
    assert wire.read() == b"1"
    assert is_closed(wire)
    ending.join()
    server.start()
    assert server.wire()("MEM.CARD", "k") == 1


def test_a_large_reply_is_sent_whole(running: Start) -> None:
    server = running(shutdown_timeout=HOUR_S, client_output_buffer_limit="normal 0 0 0")
    wire = server.wire()
    wire.send("ECHO", BIG)
    # Its head is here, so the command has run; the rest does not fit into the sockets.
    assert wire.sock.recv(11, socket.MSG_PEEK | socket.MSG_WAITALL) == b"$30000000\r\n"
    ending = Ending(server)
    assert ending.goes_on
    assert wire.read() == BIG
    assert is_closed(wire)
    ending.join()


@pytest.mark.parametrize("half_closed", [True, False])
@pytest.mark.parametrize("in_threads", [True, False])
def test_what_waits_behind_large_replies_runs(running: Start, half_closed: bool, in_threads: bool) -> None:
    """Commands that were held up because the client had not read the replies before, whoever ends the connection."""
    server = running(shutdown_timeout=HOUR_S, client_output_buffer_limit="normal 0 0 0")
    wire = server.wire()
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    text = "x" * 60_000
    for name in range(100):
        wire("MEM.ADD", "k", "ID", str(name), "TEXT", text)
    command = ("MEM.LIST", "k", "LIMIT", 100) if in_threads else ("ECHO", "x" * 6_000_000)
    stats = server.server.stats
    arrived = stats.input_bytes + 8 * len(pack(*command))
    wire.sock.sendall(pack(*command) * 8)
    assert wire.sock.recv(1, socket.MSG_PEEK)
    if half_closed:
        wire.sock.shutdown(socket.SHUT_WR)
    else:
        eventually(lambda: stats.input_bytes == arrived)  # a command of which the end has not come is not run
        ending = Ending(server)
    replies = [wire.read() for _ in range(8)]
    assert [len(reply) for reply in replies] == [100 if in_threads else 6_000_000] * 8
    assert is_closed(wire)
    if not half_closed:
        ending.join()


def test_who_does_not_read_is_cut_off_in_time(running: Start) -> None:
    server = running(shutdown_timeout="0", client_output_buffer_limit="normal 0 0 0")
    wire = server.wire()
    wire.send("ECHO", BIG)
    assert wire.sock.recv(11, socket.MSG_PEEK | socket.MSG_WAITALL) == b"$30000000\r\n"
    Ending(server).join()
    with pytest.raises((EOFError, ConnectionError, ValueError)):
        reply = wire.read()
        if reply != BIG:  # cut short
            raise EOFError


def test_idle_clients_and_subscribers_are_not_waited_for(running: Start) -> None:
    server = running(shutdown_timeout=HOUR_S)
    idle, half, subscriber = server.wire(), server.wire(), server.wire()
    assert idle("PING") == "PONG"
    assert subscriber("SUBSCRIBE", "news")[0] == b"subscribe"
    half.sock.sendall(b"*2\r\n$4\r\nECHO\r\n$100\r\nhalf of it")
    assert idle("PING") == "PONG"
    Ending(server).join()
    assert is_closed(idle) and is_closed(subscriber) and is_closed(half)


def test_over_tls(running: Start, tmp_path: Path) -> None:
    """The idle are not waited for, though they owe a goodbye, nor those who never said hello."""
    ca = Authority(tmp_path)
    mine = ca.issue("server")
    files = {"tls_cert_file": str(mine.cert), "tls_key_file": str(mine.key), "tls_auth_clients": "no"}
    server = running(tls_port=str(free_port()), port=str(free_port()), shutdown_timeout=HOUR_S, **files)
    context = ssl.create_default_context(cafile=ca.path)

    def connect() -> Wire:
        raw = socket.create_connection(("127.0.0.1", server.tls_port), PATIENCE_S)
        return Wire(context.wrap_socket(raw, server_hostname="localhost"))

    idle, reader = connect(), connect()
    silent = socket.create_connection(("127.0.0.1", server.tls_port), PATIENCE_S)
    assert idle("PING") == "PONG"
    reader.send("ECHO", BIG)
    assert reader._file.peek(11)[:11] == b"$30000000\r\n"
    ending = Ending(server)
    assert ending.goes_on
    assert reader.read() == BIG
    ending.join()
    assert is_closed(reader) and is_closed(idle)
    assert silent.recv(100) == b""


def test_what_client_pause_holds_back_does_not_run(running: Start, tmp_path: Path) -> None:
    """Nor does it delay the end: a pause before a shutdown is there to keep writes out."""
    server = running(dir=tmp_path, shutdown_timeout=HOUR_S)
    held, other = server.wire(), server.wire()
    held("MEM.CREATE", "k", "MODE", "SEARCH")
    other("CLIENT", "PAUSE", 1_000_000, "WRITE")
    held.sock.sendall(pack("ECHO", "before") + pack("MEM.ADD", "k", "TEXT", "x") + pack("ECHO", "behind"))
    assert held.read() == b"before"
    assert b"blocked_clients:1" in other("INFO", "clients")
    Ending(server).join()
    assert is_closed(held)
    server.start()
    assert server.wire()("MEM.CARD", "k") == 0


def test_a_reply_that_a_thread_works_at_is_sent(running: Start, tmp_path: Path) -> None:
    disk = GatedDisk()
    server = running(dir=tmp_path, files=disk, appendfsync="everysec", shutdown_timeout=HOUR_S)
    wire = server.wire()
    disk.gate.clear()
    assert wire("MEM.CREATE", "k", "MODE", "SEARCH") == "OK"
    wire.sock.sendall(pack("WAITAOF", 1, 0, 0) + pack("ECHO", "behind"))
    assert disk.waits.wait(PATIENCE_S)
    ending = Ending(server)
    assert ending.goes_on
    disk.gate.set()
    assert [wire.read(), wire.read()] == [[1, 0], b"behind"]
    assert is_closed(wire)
    ending.join()


# Signals and SHUTDOWN, in a process


def unread(service: Service) -> Wire:
    """A client that has asked for more than it reads."""
    wire = service.wire()
    wire.send("ECHO", BIG)
    assert wire.sock.recv(11, socket.MSG_PEEK | socket.MSG_WAITALL) == b"$30000000\r\n"
    return wire


WAITS = ("--shutdown-timeout", HOUR_S, "--appendonly", "no", "--client-output-buffer-limit", "normal", "0", "0", "0")


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_at_once(tmp_path: Path, first: signal.Signals, second: signal.Signals) -> None:
    with Service(tmp_path, *WAITS) as service:
        wire = unread(service)
        service.send(first)
        service.manager.wait_for("STOPPING")
        service.send(second)
        assert service.end() == 0
        assert f"Received {first.name}, shutting down" in service.output
        assert f"Received {second.name} again, not waiting for clients" in service.output
        assert "1 clients did not take their replies in time and are cut off" in service.output
        wire.close()


def test_shutdown_waits_and_shutdown_now_does_not(tmp_path: Path) -> None:
    with Service(tmp_path, *WAITS) as service:
        slow, other = unread(service), service.wire()
        other.send("SHUTDOWN")
        service.manager.wait_for("STOPPING")
        assert is_closed(other)  # no reply, as in Redis
        assert slow.read() == BIG
        assert service.end() == 0
    (tmp_path / "now").mkdir()
    with Service(tmp_path / "now", *WAITS) as service:
        slow, other = unread(service), service.wire()
        other.send("SHUTDOWN", "NOW")
        assert is_closed(other)
        assert service.end() == 0
        slow.close()


def test_nothing_acknowledged_is_lost(tmp_path: Path) -> None:
    """A client that writes without pause until it is sent away finds each acknowledged record again."""
    with Service(tmp_path) as service:
        wire = service.wire()
        wire("MEM.CREATE", "k", "MODE", "SEARCH")
        kept = 0
        try:
            while True:
                replies = wire.pipeline(*[("MEM.ADD", "k", "TEXT", "tea")] * 10)
                kept = int(replies[-1])
                if kept == 50:
                    service.send(signal.SIGTERM)
        except (EOFError, ConnectionError):
            pass
        assert service.end() == 0
    assert kept >= 50
    (tmp_path / "notify").unlink()
    with Service(tmp_path) as service:
        assert service.wire()("MEM.CARD", "k") >= kept


def test_the_loop_is_left_clean(running: Start) -> None:
    """No task outlives `stop`."""
    server = running()
    wire = server.wire()
    assert wire("PING") == "PONG"
    left: list[str] = []
    inside = server.server
    stop = inside.stop

    async def and_look() -> None:
        await stop()
        await asyncio.sleep(0)
        left.extend(str(task) for task in asyncio.all_tasks() if task is not asyncio.current_task())

    inside.stop = and_look
    server.stop()
    assert left == []
