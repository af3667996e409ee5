"""TLS: who gets in with which certificate, what reloading changes, and what a flood of handshakes may cost."""

from __future__ import annotations

import re
import resource
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from certificates import Authority, Certificate
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from harness import PATIENCE_S, Running, Wire, WireError, free_port, pack
from manager import Service
from recalld.server import cli, tls
from recalld.server.config import Config, ConfigError

Start = Callable[..., Running]
CLI = shutil.which("redis-cli") or ""


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.fixture
def mine(ca: Authority) -> Certificate:
    """The server's certificate."""
    return ca.issue("server")


@pytest.fixture
def start(running: Start, ca: Authority, mine: Certificate) -> Start:
    """Start a server with TLS beside plain TCP; it asks no client for a certificate unless told to."""

    def begin(**options: Any) -> Running:
        files = {"tls_cert_file": mine.cert, "tls_key_file": mine.key, "tls_ca_cert_file": ca.path}
        settings = files | {"tls_auth_clients": "no"} | options
        for _ in range(10):
            ports = {"tls_port": free_port(), "port": free_port()}
            try:
                return running(**{name: str(value) for name, value in (ports | settings).items()})
            except OSError as error:
                if error.errno != 98:  # EADDRINUSE: somebody else was quicker
                    raise
        raise AssertionError("no port is free")

    return begin


def secure(
    server: Running | Service, ca: Authority, certificate: Certificate | None = None, **limits: Any
) -> ssl.SSLSocket:
    """A client's socket over TLS that trusts `ca`, and shows `certificate`."""
    context = ssl.create_default_context(cafile=ca.path)
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    if certificate is not None:
        context.load_cert_chain(certificate.cert, certificate.key)
    for name, value in limits.items():
        setattr(context, name, value)
    sock = socket.create_connection(("127.0.0.1", server.tls_port), timeout=PATIENCE_S)
    return context.wrap_socket(sock, server_hostname="localhost")


def wire(server: Running, ca: Authority, certificate: Certificate | None = None) -> Wire:
    return Wire(secure(server, ca, certificate))


def serial_of(sock: ssl.SSLSocket) -> int:
    """The serial number of the certificate that the server has shown."""
    shown = sock.getpeercert()
    assert shown is not None
    return int(str(shown["serialNumber"]), 16)


def is_refused(server: Running, ca: Authority, certificate: Certificate | None = None, **limits: Any) -> bool:
    """Whether a client gets no reply. With TLS 1.3 it learns only when it reads that its certificate is no good."""
    try:
        with secure(server, ca, certificate, **limits) as sock:
            sock.sendall(pack("PING"))
            return sock.recv(100) != b"+PONG\r\n"
    except (ssl.SSLError, ConnectionError):
        return True


# Commands over TLS


def test_commands_over_tls(start: Start, ca: Authority) -> None:
    """Every kind of traffic: replies, pipelines, what is larger than any buffer, pushes; beside plain TCP."""
    server = start()
    over, plain = wire(server, ca), server.wire()
    assert over("PING") == "PONG"
    big = b"x" * 5_000_000
    assert over("ECHO", big) == big
    assert over.pipeline(*[("ECHO", str(n)) for n in range(2000)]) == [str(n).encode() for n in range(2000)]
    assert over("SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
    assert plain("PUBLISH", "news", "hello") == 1
    assert over.read() == [b"message", b"news", b"hello"]
    assert len(plain("CLIENT", "LIST").splitlines()) == 2


def test_port_0_is_no_plain_tcp(start: Start, ca: Authority, running: Start) -> None:
    """With a tls-port. Alone, 0 stays any free port."""
    both = start(port="0")
    assert (both.port, both.server.ports) == (0, [])
    assert wire(both, ca)("PING") == "PONG"
    assert running(port="0").wire()("PING") == "PONG"


def test_info_names_both_ports(start: Start, ca: Authority) -> None:
    server = start()
    lines = server.wire()("INFO", "server").decode().split("\r\n")
    assert f"tcp_port:{server.port}" in lines
    assert f"listener0:name=tcp,bind=127.0.0.1,port={server.port}" in lines
    assert f"listener1:name=tls,bind=127.0.0.1,port={server.tls_port}" in lines
    alone = start(port="0")
    lines = wire(alone, ca)("INFO", "server").decode().split("\r\n")
    assert f"tcp_port:{alone.tls_port}" in lines
    assert f"listener0:name=tls,bind=127.0.0.1,port={alone.tls_port}" in lines


def test_socket_options_are_those_of_plain_tcp(start: Start, ca: Authority) -> None:
    server = start(tcp_keepalive="77")
    over = wire(server, ca)
    assert over("PING") == "PONG"
    [client] = server.server.clients.values()
    sock = client.connection.transport.get_extra_info("socket")
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) != 0
    assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) != 0
    assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 77


def test_a_goodbye_ends_the_connection(start: Start, ca: Authority, caplog: pytest.LogCaptureFixture) -> None:
    """What came before it is answered; the server says goodbye, too, and nothing to the log."""
    server = start()
    sock = secure(server, ca)
    sock.sendall(pack("ECHO", "last"))
    assert sock.recv(100) == b"$4\r\nlast\r\n"
    sock.unwrap().close()
    plain = server.wire()
    while len(plain("CLIENT", "LIST").splitlines()) > 1:
        pass
    assert "eof_received" not in caplog.text


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_connects(start: Start, ca: Authority, protocol: int) -> None:
    server = start()
    with redis.Redis(
        host="localhost", port=server.tls_port, ssl=True, ssl_ca_certs=str(ca.path), protocol=protocol
    ) as client:
        assert client.ping()
        client.execute_command("MEM.CREATE", "k", "MODE", "SEARCH")  # type: ignore[no-untyped-call]
        assert client.execute_command("MEM.ADD", "k", "TEXT", "tea") == b"1"  # type: ignore[no-untyped-call]


@pytest.mark.skipif(not CLI, reason="needs redis-cli on PATH (Debian: redis-tools)")
def test_redis_cli_connects(start: Start, ca: Authority) -> None:
    shown = subprocess.run([CLI, "--help"], capture_output=True, text=True)
    if "--tls " not in shown.stdout + shown.stderr:
        pytest.skip("this redis-cli was built without TLS")
    server = start(tls_auth_clients="yes")
    client = ca.issue("client")
    words = ["-h", "localhost", "-p", str(server.tls_port), "--tls", "--cacert", str(ca.path)]
    certificate = ["--cert", str(client.cert), "--key", str(client.key)]
    said = subprocess.run([CLI, *words, *certificate, "PING"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert said.stdout == "PONG\n", said
    said = subprocess.run([CLI, *words, "PING"], capture_output=True, text=True, timeout=PATIENCE_S)
    assert said.stdout == "" and said.returncode != 0, said  # an error, or SIGPIPE


def test_the_command_line_connects(start: Start, ca: Authority, capsys: pytest.CaptureFixture[str]) -> None:
    """rediss:// with the words that redis-py has for the files."""
    server = start(tls_auth_clients="yes")
    client = ca.issue("client")
    url = f"rediss://localhost:{server.tls_port}"
    files = f"ssl_certfile={client.cert}&ssl_keyfile={client.key}"
    assert cli.main(["ping", "--url", f"{url}?ssl_ca_certs={ca.path}&{files}"]) == 0
    assert cli.main(["ping", "--url", f"{url}?ssl_cert_reqs=none&{files}"]) == 0
    assert capsys.readouterr().out == "PONG\nPONG\n"
    assert cli.main(["ping", "--url", f"{url}?{files}"]) == 1  # this machine does not know the authority
    assert "CERTIFICATE_VERIFY_FAILED" in capsys.readouterr().err
    assert cli.main(["ping", "--url", f"{url}?ssl_ca_certs=/nowhere"]) == 1
    assert capsys.readouterr().err == "ssl_ca_certs '/nowhere': No such file or directory\n"
    assert cli.main(["ping", "--url", f"{url}?ssl_typo=1"]) == 1
    assert "not an address of a server" in capsys.readouterr().err


# Client certificates


@pytest.mark.parametrize(
    ("mode", "without", "good", "strange"),
    [("yes", False, True, False), ("optional", True, True, False), ("no", True, True, True)],
)
def test_client_certificates(
    start: Start, ca: Authority, tmp_path: Path, mode: str, without: bool, good: bool, strange: bool
) -> None:
    """None, one of the authority, one of another authority of the same name."""
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").issue("client")
    server = start(tls_auth_clients=mode)
    got_in = [not is_refused(server, ca, shown) for shown in (None, ca.issue("client"), stranger)]
    assert got_in == [without, good, strange]


def test_authorities_from_a_folder(start: Start, ca: Authority, tmp_path: Path) -> None:
    folder = tmp_path / "authorities"
    folder.mkdir()
    # The name that OpenSSL looks for: a hash of the subject, here by the tool that people use for it.
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl on PATH")
    shutil.copy(ca.path, folder / "ca.crt")
    subprocess.run(["openssl", "rehash", folder], check=True, timeout=PATIENCE_S)
    server = start(tls_auth_clients="yes", tls_ca_cert_file="", tls_ca_cert_dir=folder)
    assert not is_refused(server, ca, ca.issue("client"))
    assert is_refused(server, ca)


def test_a_certificate_is_no_password(start: Start, ca: Authority) -> None:
    over = wire(start(tls_auth_clients="yes", requirepass="sesame"), ca, ca.issue("client"))
    assert over.error("PING").startswith("NOAUTH")
    assert over("AUTH", "sesame") == "OK"
    assert over("PING") == "PONG"


@pytest.mark.skipif(not shutil.which("openssl"), reason="needs openssl on PATH")
def test_the_page_makes_certificates_that_do(start: Start, tmp_path: Path) -> None:
    """The commands of docs/tls.md, for clients as strict as Python 3.13 makes them."""
    folder = tmp_path / "page"
    folder.mkdir()
    page = (Path(__file__).resolve().parents[1] / "docs" / "tls.md").read_text()
    [commands] = re.findall(r"```sh\n(umask.*?)```", page, flags=re.DOTALL)
    subprocess.run(["sh", "-euc", commands], cwd=folder, check=True, capture_output=True, timeout=PATIENCE_S)
    files = {"cert_file": "server.crt", "key_file": "server.key", "ca_cert_file": "ca.crt", "auth_clients": "yes"}
    paths = {f"tls_{name}": folder / file if "." in file else file for name, file in files.items()}
    server = start(**paths)
    context = ssl.create_default_context(cafile=folder / "ca.crt")
    context.verify_flags |= ssl.VERIFY_X509_STRICT
    context.load_cert_chain(folder / "client.crt", folder / "client.key")
    raw = socket.create_connection(("127.0.0.1", server.tls_port), timeout=PATIENCE_S)
    with context.wrap_socket(raw, server_hostname="localhost") as sock:
        sock.sendall(pack("PING"))
        assert sock.recv(100) == b"+PONG\r\n"
    assert (folder / "server.key").stat().st_mode & 0o077 == 0


# Versions and ciphers


def test_protocol_versions(start: Start, ca: Authority) -> None:
    v12, v13 = (
        {"minimum_version": version, "maximum_version": version}
        for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    )
    for words, offered in (("", (True, True)), ("TLSv1.2", (True, False)), ("tlsv1.3", (False, True))):
        server = start(tls_protocols=words)
        assert tuple(not is_refused(server, ca, **versions) for versions in (v12, v13)) == offered, words


def test_ciphers(start: Start, ca: Authority) -> None:
    server = start(tls_ciphers="ECDHE-ECDSA-AES256-GCM-SHA384", tls_protocols="TLSv1.2")
    with secure(server, ca) as sock:
        cipher = sock.cipher()
    assert cipher is not None and cipher[0] == "ECDHE-ECDSA-AES256-GCM-SHA384"


def test_whose_order_of_ciphers_counts(start: Start, ca: Authority) -> None:
    first, second = "ECDHE-ECDSA-AES128-GCM-SHA256", "ECDHE-ECDSA-AES256-GCM-SHA384"
    for prefer, chosen in (("yes", first), ("no", second)):
        server = start(tls_ciphers=f"{first}:{second}", tls_protocols="TLSv1.2", tls_prefer_server_ciphers=prefer)
        context = ssl.create_default_context(cafile=ca.path)
        context.set_ciphers(f"{second}:{first}")
        raw = socket.create_connection(("127.0.0.1", server.tls_port), timeout=PATIENCE_S)
        with context.wrap_socket(raw, server_hostname="localhost") as sock:
            cipher = sock.cipher()
            assert cipher is not None and cipher[0] == chosen


# What is refused


def bad_settings(ca: Authority, mine: Certificate, folder: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Settings, and a part of the reason."""
    other = ca.issue("other")
    locked = ca.issue("locked", password="sesame")
    garbage = folder / "garbage"
    garbage.write_text("no certificate\n")
    yield {"tls_cert_file": ""}, "No tls-cert-file configured!"
    yield {"tls_key_file": ""}, "No tls-key-file configured!"
    yield {"tls_cert_file": "/nowhere.crt"}, "tls-cert-file '/nowhere.crt': No such file or directory"
    yield {"tls_key_file": "/nowhere.key"}, "tls-key-file '/nowhere.key': No such file or directory"
    yield {"tls_cert_file": garbage}, f"tls-cert-file '{garbage}' with tls-key-file '{mine.key}': no PEM file, or"
    yield {"tls_key_file": garbage}, f"tls-key-file '{garbage}': no PEM file, or the wrong tls-key-file-pass"
    yield {"tls_key_file": other.key}, "key values mismatch"
    another_kind = folder / "rsa.key"
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    another_kind.write_bytes(rsa.generate_private_key(65_537, 2048).private_bytes(*pem))
    yield {"tls_key_file": another_kind}, f"'{another_kind}': the key is of another kind than the certificate's"
    yield {"tls_cert_file": locked.cert, "tls_key_file": locked.key}, "is encrypted: set tls-key-file-pass"
    wrong = {"tls_cert_file": locked.cert, "tls_key_file": locked.key, "tls_key_file_pass": "wrong"}
    yield wrong, f"tls-key-file '{locked.key}': no PEM file, or the wrong tls-key-file-pass"
    yield {"tls_ca_cert_file": garbage}, f"tls-ca-cert-file '{garbage}': no certificate or crl found"
    yield {"tls_ca_cert_file": "/nowhere.crt"}, "tls-ca-cert-file '/nowhere.crt': No such file or directory"
    yield {"tls_ca_cert_dir": "/nowhere"}, "tls-ca-cert-dir '/nowhere': there is no such folder"
    yield {"tls_ca_cert_file": "", "tls_auth_clients": "yes"}, "Either tls-ca-cert-file or tls-ca-cert-dir must be"
    yield {"tls_protocols": "TLSv1.1 TLSv1.2"}, "tls-protocols: 'tlsv1.1' is not offered"
    yield {"tls_ciphers": "no-such-cipher"}, "tls-ciphers 'no-such-cipher': No cipher can be selected."
    if not hasattr(ssl.SSLContext, "set_ciphersuites"):
        yield {"tls_ciphersuites": "TLS_AES_128_GCM_SHA256"}, "tls-ciphersuites: this Python's ssl module cannot choose"


def test_no_start_with_what_is_no_good(
    start: Start, ca: Authority, mine: Certificate, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Neither the server nor --check-config."""
    for settings, reason in bad_settings(ca, mine, tmp_path):
        with pytest.raises(ConfigError) as caught:
            start(**settings)
        assert reason in caught.value.message, settings
        lines = {"tls_port": 1, "tls_cert_file": mine.cert, "tls_key_file": mine.key, "tls_auth_clients": "no"}
        conf = tmp_path / "recalld.conf"
        conf.write_text("".join(f'{n.replace("_", "-")} "{value}"\n' for n, value in (lines | settings).items()))
        assert cli.main(["--check-config", str(conf)]) == 1, settings
        assert reason in capsys.readouterr().err


def test_without_a_tls_port_no_file_is_read(running: Start, ca: Authority) -> None:
    over = running(tls_cert_file="/nowhere").wire()
    assert over("CONFIG", "SET", "tls-key-file", "/nowhere") == "OK"


@pytest.mark.parametrize("line", ["tls-session-caching no", "tls-dh-params-file x", "tls-cluster yes"])
def test_what_redis_has_beyond_is_refused_with_a_reason(tmp_path: Path, line: str) -> None:
    conf = tmp_path / "redis.conf"
    conf.write_text(line + "\n")
    with pytest.raises(ConfigError, match=r"Python's ssl module|remove the line"):
        Config.load(str(conf))


# Reloading


def test_config_set_of_the_same_name_reads_the_file_again(start: Start, ca: Authority, mine: Certificate) -> None:
    """New connections see the new certificate, those that are there go on."""
    server = start()
    before = wire(server, ca)
    with secure(server, ca) as sock:
        assert serial_of(sock) == mine.serial
    new = ca.issue("server")
    with secure(server, ca) as sock:
        assert serial_of(sock) == mine.serial
    assert before("CONFIG", "SET", "tls-cert-file", str(mine.cert)) == "OK"
    with secure(server, ca) as sock:
        assert serial_of(sock) == new.serial
    assert before("PING") == "PONG"


def test_config_set_of_new_names(start: Start, ca: Authority) -> None:
    """Certificate, key and its password at once: none of them would do alone."""
    server = start()
    over = wire(server, ca)
    new = ca.issue("new", password="sesame")
    words = {"tls-cert-file": new.cert, "tls-key-file": new.key, "tls-key-file-pass": "sesame"}
    assert over("CONFIG", "SET", *(str(word) for pair in words.items() for word in pair)) == "OK"
    with secure(server, ca) as sock:
        assert serial_of(sock) == new.serial
    assert "key values mismatch" in over.error("CONFIG", "SET", "tls-cert-file", str(ca.issue("third").cert))
    with secure(server, ca) as sock:
        assert serial_of(sock) == new.serial
    assert over("CONFIG", "GET", "tls-cert-file") == [b"tls-cert-file", str(new.cert).encode()]


def test_a_bad_file_keeps_the_old_one(start: Start, ca: Authority, mine: Certificate, tmp_path: Path) -> None:
    server = start()
    over = wire(server, ca)
    for settings, reason in bad_settings(ca, mine, tmp_path):
        words = [str(word) for name, value in settings.items() for word in (name.replace("_", "-"), value)]
        assert reason in over.error("CONFIG", "SET", *words), settings
        with secure(server, ca) as sock:
            assert serial_of(sock) == mine.serial
    # A file that is now broken, under the name in use.
    mine.cert.write_text("half a certifi")
    assert "CONFIG SET failed" in over.error("CONFIG", "SET", "tls-cert-file", str(mine.cert))
    with secure(server, ca) as sock:
        assert serial_of(sock) == mine.serial


def test_an_authority_that_is_taken_away(start: Start, ca: Authority, tmp_path: Path) -> None:
    """A new tls-ca-cert-file replaces the old one, it does not add to it; nor does a session outlive the change."""
    server = start(tls_auth_clients="yes")
    client = ca.issue("client")
    context = ssl.create_default_context(cafile=ca.path)
    context.load_cert_chain(client.cert, client.key)

    def connect(session: ssl.SSLSession | None) -> ssl.SSLSession | None:
        raw = socket.create_connection(("127.0.0.1", server.tls_port), timeout=PATIENCE_S)
        with context.wrap_socket(raw, server_hostname="localhost", session=session) as sock:
            sock.sendall(pack("PING"))
            assert sock.recv(100) == b"+PONG\r\n"
            return sock.session

    session = connect(None)
    (tmp_path / "next").mkdir()
    following = Authority(tmp_path / "next")
    over = wire(server, ca, client)
    assert over("CONFIG", "SET", "tls-ca-cert-file", str(following.path)) == "OK"
    assert is_refused(server, ca, client)
    with pytest.raises((ssl.SSLError, ConnectionError, AssertionError)):
        connect(session)
    assert not is_refused(server, ca, following.issue("client"))
    assert over("CONFIG", "SET", "tls-auth-clients", "no") == "OK"
    assert not is_refused(server, ca)


# Abuse


def eventually_closed(sock: socket.socket) -> bytes:
    """What the server says until it closes."""
    said = b""
    try:
        while data := sock.recv(1000):
            said += data
    except ConnectionError:
        pass
    return said


def test_a_handshake_has_a_time_limit(start: Start, ca: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of one who drips bytes; whoever is through the handshake may be silent as long as they like."""
    server = start()
    over = wire(server, ca)
    assert over("PING") == "PONG"
    monkeypatch.setattr(tls, "HANDSHAKE_S", 0.3)
    silent, half = (socket.create_connection(("127.0.0.1", server.tls_port), PATIENCE_S) for _ in range(2))
    half.sendall(b"\x16\x03\x01\x02\x00\x01")  # the head of a ClientHello
    assert eventually_closed(silent) == eventually_closed(half) == b""
    while server.server.tls.handshakes:
        assert over("PING") == "PONG"


def test_what_is_no_tls_is_closed(start: Start, ca: Authority) -> None:
    server = start()
    over = wire(server, ca)
    browser = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
    for said in (b"PING\r\n", pack("PING"), browser, b"\0" * 5000, b"\x16\x03\x03\xff\xff"):
        with socket.create_connection(("127.0.0.1", server.tls_port), PATIENCE_S) as sock:
            sock.sendall(said)
            sock.shutdown(socket.SHUT_WR)
            assert b"PONG" not in eventually_closed(sock), said
    while server.server.tls.handshakes:
        assert over("PING") == "PONG"


def test_a_flood_of_handshakes_is_bounded_by_maxclients(start: Start, ca: Authority) -> None:
    """Those who have not finished count: one more is closed before it costs a handshake. Nobody connected suffers."""
    server = start(maxclients="20")
    over, plain = wire(server, ca), server.wire()
    assert over("PING") == plain("PING") == "PONG"
    flood = [socket.create_connection(("127.0.0.1", server.tls_port), PATIENCE_S) for _ in range(18)]
    more = [socket.create_connection(("127.0.0.1", server.tls_port), PATIENCE_S) for _ in range(30)]
    assert [eventually_closed(sock) for sock in more] == [b""] * 30
    assert len(server.server.tls.handshakes) == 18
    assert is_refused(server, ca)
    assert over("PING") == plain("PING") == "PONG"
    for sock in (*flood, *more):
        sock.close()
    # The places are free again as soon as the server has seen the ends.
    while is_refused(server, ca):
        assert over("PING") == "PONG"


def test_a_flood_of_real_handshakes_starves_nobody(start: Start, ca: Authority) -> None:
    """Broken off right behind the ClientHello, again and again: each costs a signature, and leaves nothing."""
    server = start()
    plain = server.wire()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    half = ssl.create_default_context(cafile=ca.path).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        half.do_handshake()
    hello = outgoing.read()
    for _ in range(300):
        with socket.create_connection(("127.0.0.1", server.tls_port), PATIENCE_S) as sock:
            sock.sendall(hello)
        assert plain("PING") == "PONG"
    while server.server.tls.handshakes:
        assert plain("PING") == "PONG"
    assert len(server.server.clients) == 1


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="needs Linux's prlimit")
def test_no_file_descriptor_left(ca: Authority, mine: Certificate, tmp_path: Path) -> None:
    """The flood gets what there is, who is connected is served, and when it is over the door opens again."""
    port = free_port()
    words = ["--tls-port", port, "--tls-cert-file", mine.cert, "--tls-key-file", mine.key, "--tls-auth-clients", "no"]
    with Service(tmp_path, *map(str, words)) as service:
        service.tls_port = port
        over = Wire(secure(service, ca))
        assert over("PING") == "PONG"
        open_now = len(list(Path(f"/proc/{service.process.pid}/fd").iterdir()))
        resource.prlimit(service.process.pid, resource.RLIMIT_NOFILE, (open_now + 10, open_now + 10))
        flood = [socket.create_connection(("127.0.0.1", port), PATIENCE_S) for _ in range(30)]
        assert over("PING") == "PONG"
        for sock in flood:
            sock.close()
        with secure(service, ca) as sock:  # its turn comes, if only at the next try
            sock.sendall(pack("PING"))
            assert sock.recv(100) == b"+PONG\r\n"
        service.send(signal.SIGTERM)
        assert service.end() == 0
        assert "Accepting a TLS connection failed: Too many open files" in service.output


def test_a_slow_reader_is_cut_off(start: Start, ca: Authority) -> None:
    """client-output-buffer-limit holds over TLS."""
    server = start(client_output_buffer_limit="pubsub 2mb 0 0")
    slow, plain = wire(server, ca), server.wire()
    assert slow("SUBSCRIBE", "news") == [b"subscribe", b"news", 1]
    while plain("PUBLISH", "news", b"x" * 500_000):
        pass
    with pytest.raises((EOFError, OSError)):
        while True:
            slow.read()


def test_a_large_pipeline_without_reading(start: Start, ca: Authority) -> None:
    """A client that writes its whole pipeline before it reads gets all replies."""
    over = wire(start(), ca)
    over.sock.sendall(pack("ECHO", b"y" * 10_000) * 1000)
    assert [over.read() for _ in range(1000)] == [b"y" * 10_000] * 1000


def test_maxclients_over_tls(start: Start, ca: Authority) -> None:
    server = start(maxclients="1")
    over = wire(server, ca)
    assert over("PING") == "PONG"
    assert is_refused(server, ca)
    refused = server.wire().read()
    assert isinstance(refused, WireError) and str(refused) == "ERR max number of clients reached"
