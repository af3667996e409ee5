"""Attacks on TLS that once worked, or might: what a reader or a stranger may have the server hold."""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from certificates import Authority, Certificate
from harness import PATIENCE_S, Running, Wire, free_port, pack
from recalld.server import server as server_module
from recalld.server import tls

Start = Callable[..., Running]


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def over_tls(running: Start, ca: Authority) -> Start:
    """Start servers with TLS beside plain TCP."""
    mine = ca.issue("server")

    def begin(**options: str) -> Running:
        files = {"tls_cert_file": str(mine.cert), "tls_key_file": str(mine.key), "tls_ca_cert_file": str(ca.path)}
        for _ in range(10):
            ports = {"tls_port": str(free_port()), "port": str(free_port())}
            try:
                return running(**(ports | files | {"tls_auth_clients": "no"} | options))
            except OSError as error:
                if error.errno != 98:  # EADDRINUSE: somebody else was quicker
                    raise
        raise AssertionError("no port is free")

    return begin


def secure(server: Running, ca: Authority, certificate: Certificate | None = None) -> ssl.SSLSocket:
    context = ssl.create_default_context(cafile=ca.path)
    if certificate is not None:
        context.load_cert_chain(certificate.cert, certificate.key)
    sock = socket.create_connection(("127.0.0.1", server.tls_port), timeout=PATIENCE_S)
    return context.wrap_socket(sock, server_hostname="localhost")


def ended(sock: socket.socket) -> int:
    """How many bytes come until the server closes."""
    size = 0
    try:
        while data := sock.recv(1 << 20):
            size += len(data)
    except (ConnectionError, ssl.SSLError):
        pass
    return size


def is_ended(wire: Wire) -> bool:
    """Whether the server has closed the connection."""
    with pytest.raises(EOFError):
        wire.read()
    return True


def test_one_large_reply_over_tls_is_in_the_output_limits(over_tls: Start, ca: Authority) -> None:
    """It was in no count at all, so a client that did not read could have the server hold any size."""
    server = over_tls(client_output_buffer_limit="normal 5mb 0 0 pubsub 5mb 0 0", proto_max_bulk_len="100mb")
    size = 32_000_000
    plain = server.wire()
    echo = secure(server, ca)
    echo.sendall(pack("ECHO", b"x" * size))
    assert ended(echo) < size
    listener = secure(server, ca)
    listener.sendall(pack("SUBSCRIBE", "news"))
    assert listener.recv(100).startswith(b"*3")
    assert plain("PUBLISH", "news", b"x" * size) == 1
    assert ended(listener) < size
    while len(plain("CLIENT", "LIST").splitlines()) > 1:
        pass
    assert "client_output_buffer_limit_disconnections:2" in plain("INFO", "stats").decode()


def test_a_slow_reader_over_tls_gets_all_and_is_counted(over_tls: Start, ca: Authority) -> None:
    """Byte by byte as they were, replies behind a large one among them; CLIENT LIST says what waits."""
    server = over_tls(client_output_buffer_limit="normal 0 0 0")
    plain = server.wire()
    slow = Wire(secure(server, ca))
    big = bytes(range(256)) * 80_000
    slow.send("ECHO", big)
    slow.send("PING")
    slow.send("ECHO", big[::-1])
    waiting = 0
    while waiting < 10_000_000:
        waiting = max(int(line.split(b" omem=")[1].split()[0]) for line in plain("CLIENT", "LIST").splitlines())
    assert [slow.read(), slow.read(), slow.read()] == [big, "PONG", big[::-1]]


def test_the_end_of_a_reply_is_not_lost_when_the_server_stops(over_tls: Start, ca: Authority) -> None:
    """The last 64 KB below TLS are in no count: of a reply a little larger than what the system holds for a reader they
    went down with the server."""
    server = over_tls(client_output_buffer_limit="normal 0 0 0")
    readers: dict[bytes, tuple[int, Wire]] = {}
    for size in range(2_000_000, 4_000_000, 40_000):
        raw = socket.socket()
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        raw.settimeout(PATIENCE_S)
        raw.connect(("127.0.0.1", server.tls_port))
        address = b"127.0.0.1:%d" % raw.getsockname()[1]
        reader = Wire(ssl.create_default_context(cafile=ca.path).wrap_socket(raw, server_hostname="localhost"))
        reader.send("ECHO", b"y" * size)
        readers[address] = (size, reader)
    plain = server.wire()

    def unsent() -> dict[bytes, int]:
        lines = [line.split(b" ") for line in plain("CLIENT", "LIST").splitlines() if b" cmd=echo " in line]
        fields = [dict(field.split(b"=", 1) for field in line) for line in lines]
        return {each[b"addr"]: int(each[b"omem"]) for each in fields}

    before: dict[bytes, int] = {}
    while len(now := unsent()) < len(readers) or now != before:
        before = now
    # Those of whom something is counted are waited for anyway; of two more their goodbye will be.
    for address in [address for address, size in now.items() if size]:
        readers.pop(address)[1].close()
    for address in list(readers)[-2:]:
        readers.pop(address)[1].close()
    assert readers
    ending = threading.Thread(target=server.stop)
    ending.start()
    assert is_ended(plain)
    assert [len(reader.read()) for _, reader in readers.values()] == [size for size, _ in readers.values()]
    ending.join()


def test_who_is_refused_over_tls_counts_until_gone(
    over_tls: Start, ca: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """protected-mode says why behind a handshake; who does not answer the goodbye held a descriptor that nobody
    counted."""
    server = over_tls(maxclients="20")
    plain = server.wire()
    assert plain("PING") == "PONG"
    monkeypatch.setattr(server_module, "_is_loopback", lambda peer: False)
    refused = []
    for _ in range(19):
        refused.append(secure(server, ca))
        assert refused[-1].recv(100).startswith(b"-DENIED")
    assert len(server.server.tls.handshakes) == 19
    with pytest.raises((ssl.SSLError, ConnectionError)):
        secure(server, ca)
    assert plain("PING") == "PONG"
    for sock in refused:
        sock.close()
    while server.server.tls.handshakes:
        assert plain("PING") == "PONG"


def test_half_open_handshakes_do_not_close_the_door(
    over_tls: Start, ca: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are few at any time, far fewer than maxclients, and the oldest of them makes room for the next."""
    monkeypatch.setattr(tls, "MOST_HANDSHAKES", 5)
    server = over_tls()
    flood = [socket.create_connection(("127.0.0.1", server.tls_port), PATIENCE_S) for _ in range(12)]
    with secure(server, ca) as sock:
        sock.sendall(pack("PING"))
        assert sock.recv(100) == b"+PONG\r\n"
    assert [ended(each) for each in flood[:7]] == [0] * 7
    assert len(server.server.tls.handshakes) <= 5
    for each in flood:
        each.close()
    plain = server.wire()
    while server.server.tls.handshakes:
        assert plain("PING") == "PONG"


def test_client_certificates_that_have_expired(over_tls: Start, ca: Authority) -> None:
    late, good = ca.issue("late", days=-1), ca.issue("good")
    for mode in ("yes", "optional"):
        server = over_tls(tls_auth_clients=mode)
        for certificate, answered in ((late, False), (good, True)):
            try:
                with secure(server, ca, certificate) as sock:
                    sock.sendall(pack("PING"))
                    assert (sock.recv(100) == b"+PONG\r\n") == answered, mode
            except (ssl.SSLError, ConnectionError):
                assert not answered, mode


@pytest.mark.parametrize(
    "rubbish", [b"\x17\x03\x03\x00\x20" + b"A" * 32, b"PING\r\n", b"\x15\x03\x03\x00\x02\x02\x28", b""]
)
def test_rubbish_behind_a_handshake_ends_the_connection(
    over_tls: Start, ca: Authority, caplog: pytest.LogCaptureFixture, rubbish: bytes
) -> None:
    """A record that cannot be decrypted, plain text, an alert, a reset: others are served, and the log is no longer."""
    server = over_tls()
    plain = server.wire()
    assert plain("PING") == "PONG"
    before = len(caplog.records)
    sock = secure(server, ca)
    sock.sendall(pack("PING"))
    assert sock.recv(100) == b"+PONG\r\n"
    below = socket.socket(fileno=sock.detach())
    if rubbish:
        below.sendall(rubbish)
    else:
        below.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    below.close()
    while len(plain("CLIENT", "LIST").splitlines()) > 1:
        pass
    assert [record.message for record in caplog.records[before:]] == []


def test_tls_to_the_plain_port(over_tls: Start, ca: Authority) -> None:
    """Neither hangs nor answers in kind; the server goes on."""
    server = over_tls()
    context = ssl.create_default_context(cafile=ca.path)
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE_S) as sock:
        incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        half = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
        with pytest.raises(ssl.SSLWantReadError):
            half.do_handshake()
        sock.sendall(outgoing.read() + b"\r\n")
        sock.shutdown(socket.SHUT_WR)
        incoming.write(sock.recv(1000) or b"-")
        with pytest.raises(ssl.SSLError):
            half.do_handshake()
    assert server.wire()("PING") == "PONG"
