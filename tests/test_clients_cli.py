"""redis-cli and redis-benchmark from PATH, each as a person or a script would run it."""

from __future__ import annotations

import csv
import json
import os
import pty
import re
import select
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from harness import JUNE, PATIENCE_S, Running, pack

CLI = shutil.which("redis-cli") or ""
BENCHMARK = shutil.which("redis-benchmark")


def _version(program: str) -> int:
    """The major version; 0 where there is no such program."""
    if not program:
        return 0
    said = subprocess.run([program, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"redis-cli (\d+)", said)
    return int(found[1]) if found else 0


# Before 7 it had neither --json nor COMMAND DOCS.
pytestmark = pytest.mark.skipif(_version(CLI) < 7, reason="needs redis-cli 7 or newer on PATH (Debian: redis-tools)")

KEY = "user:123"

Cli = Callable[..., str]


def run(port: int, *words: str | int, stdin: bytes = b"", fails: bool = False) -> str:
    """What redis-cli prints; it must exit with 0, or with `fails` otherwise."""
    argv = [CLI, "-h", "127.0.0.1", "-p", str(port), *map(str, words)]
    done = subprocess.run(argv, input=stdin, capture_output=True, timeout=PATIENCE_S, env=_environ())
    said = (done.stdout + done.stderr).decode("utf-8", "replace")
    assert (done.returncode != 0) == fails, f"{argv} exited with {done.returncode}: {said}"
    return said


def _environ() -> dict[str, str]:
    """The environment without what would change redis-cli: history, preferences, a password."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("REDISCLI_", "FAKETTY"))}
    return kept | {"HOME": "/nonexistent", "TERM": "dumb", "LC_ALL": "C.UTF-8"}


@pytest.fixture
def cli(server: Running) -> Cli:
    """Run redis-cli against the server."""

    def call(*words: str | int, stdin: bytes = b"", fails: bool = False) -> str:
        return run(server.port, *words, stdin=stdin, fails=fails)

    return call


@pytest.fixture
def filled(cli: Cli) -> Cli:
    """The same, with two records in the memory KEY."""
    cli("MEM.CREATE", KEY, "DIM", 3)
    cli("MEM.ADD", KEY, "ID", "m1", "TEXT", "User prefers Lisbon.", "FVEC", 3, 1, 0, 0, "META", "type", "preference")
    cli("MEM.ADD", KEY, "ID", "m2", "TEXT", "User likes quiet beach resorts.", "FVEC", 3, 0, 1, 0)
    return cli


@pytest.fixture(params=([], ["-3"]), ids=["resp2", "resp3"])
def protocol(request: pytest.FixtureRequest) -> list[str]:
    words: list[str] = request.param
    return words


# One command per call.


def test_a_first_session(cli: Cli, protocol: list[str]) -> None:
    assert cli(*protocol, "PING") == "PONG\n"
    assert cli(*protocol, "MEM.CREATE", KEY, "DIM", 3) == "OK\n"
    assert cli(*protocol, "MEM.ADD", KEY, "TEXT", "the keys hang by the door", "FVEC", 3, 0.9, 0.4, 0.1) == "1\n"
    assert cli(*protocol, "MEM.CARD", KEY) == "1\n"
    assert "the keys hang by the door" in cli(*protocol, "MEM.SEARCH", KEY, "keys")
    assert "the keys hang by the door" in cli(*protocol, "MEM.QUERY", KEY, "TEXT", "door", "FVEC", 3, 1, 0, 0)
    assert cli(*protocol, "MEM.DEL", KEY, 1) == "1\n"


def test_typed_output(filled: Cli) -> None:
    """--no-raw shows what a terminal shows: the types of the replies."""
    assert filled("--no-raw", "MEM.CARD", KEY) == "(integer) 2\n"
    assert filled("--no-raw", "TYPE", KEY) == "memory\n"
    assert filled("--no-raw", "MEM.SEARCH", KEY, "lisbon") == '1) 1) "m1"\n   2) "User prefers Lisbon."\n'
    assert filled("--no-raw", "MEM.GET", KEY, "absent") == "(nil)\n"
    lines = filled("--no-raw", "-3", "MEM.GET", KEY, "m1").splitlines()
    assert lines[:3] == ['1# "id" => "m1"', '2# "text" => "User prefers Lisbon."', '3# "importance" => (double) 0.5']


def test_json(filled: Cli) -> None:
    record = json.loads(filled("--json", "MEM.GET", KEY, "m1", "WITHMETA", "WITHVEC", "FLOATS"))
    assert record["text"] == "User prefers Lisbon."
    assert record["created_at"] == JUNE
    assert record["pttl"] == -1
    assert record["meta"] == {"type": "preference"}
    assert record["vector"] == [1, 0, 0]
    hits = json.loads(filled("--json", "MEM.VSEARCH", KEY, "FVEC", 3, 1, 0, 0, "WITHSCORES"))
    assert [(hit["id"], hit["score"]) for hit in hits] == [("m1", 1), ("m2", 0)]
    assert json.loads(filled("--json", "MEM.INFO", KEY))["weights"]["keyword"] == 0.35


def test_errors(cli: Cli) -> None:
    assert cli("MEM.CARD", "absent") == "ERR no such memory index\n\n"
    assert cli("-e", "MEM.CARD", "absent", fails=True).startswith("ERR no such memory index")
    said = cli("GET", "a")
    assert said.startswith("ERR unknown command 'GET', with args beginning with: 'a'")


def test_last_word_from_stdin(cli: Cli) -> None:
    """-x: a text of any bytes, as a file has it."""
    cli("MEM.CREATE", KEY, "MODE", "SEARCH")
    assert cli("-x", "MEM.ADD", KEY, "ID", "note", "TEXT", stdin="Grüße,\n日本語 \0 and so on".encode()) == "note\n"
    assert "Grüße,\n日本語 \0 and so on" in cli("MEM.GET", KEY, "note")


def test_password(running: Any) -> None:
    port = running(requirepass="open sesame").port
    assert "NOAUTH" in run(port, "PING")
    for login in (["-a", "open sesame"], ["--user", "default", "--pass", "open sesame"]):
        for protocol in ([], ["-3"]):
            assert run(port, "--no-auth-warning", *login, *protocol, "PING") == "PONG\n"
    assert run(port, "-u", f"redis://default:open%20sesame@127.0.0.1:{port}", "--no-auth-warning", "PING") == "PONG\n"


# Commands on standard input.


def test_commands_on_stdin(cli: Cli, protocol: list[str]) -> None:
    script = f"""
        ping
        MEM.CREATE {KEY} MODE SEARCH
        MEM.ADD {KEY} ID a TEXT "the keys \\"hang\\"\\nby the \\x64oor"
        MEM.CARD {KEY}
        mem.card absent
    """
    said = cli(*protocol, stdin=script.encode()).split("\n")
    assert said[:4] == ["PONG", "OK", "a", "1"]
    assert said[4] == "ERR no such memory index"
    assert json.loads(cli("--json", "MEM.GET", KEY, "a"))["text"] == 'the keys "hang"\nby the door'


def test_transaction_on_stdin(filled: Cli) -> None:
    script = f"MULTI\nMEM.CARD {KEY}\nMEM.DEL {KEY} m1\nMEM.CARD {KEY}\nEXEC\n"
    assert filled(stdin=script.encode()).split() == ["OK", "QUEUED", "QUEUED", "QUEUED", "2", "1", "1"]
    script = "MULTI\nMEM.NONSENSE\nEXEC\n"
    said = filled(stdin=script.encode())
    assert "ERR unknown command 'MEM.NONSENSE'" in said
    assert "EXECABORT Transaction discarded because of previous errors." in said


def test_help_knows_our_commands(cli: Cli) -> None:
    """redis-cli 7 asks COMMAND DOCS when it starts without a command."""
    said = cli(stdin=b"help MEM.ADD\nhelp MEM.QUERY\n")
    assert "MEM.ADD" in said
    assert "MEM.QUERY" in said
    assert said.count("summary:") == 2
    assert said.count("group:") == 2


def test_pipe(cli: Cli) -> None:
    """--pipe is Redis's mass insertion: raw protocol in, counts out."""
    cli("MEM.CREATE", KEY, "MODE", "SEARCH")
    commands = [pack("MEM.ADD", KEY, "ID", number, "TEXT", f"fact number {number}") for number in range(2_000)]
    said = cli("--pipe", stdin=b"".join(commands))
    assert "errors: 0, replies: 2000" in said
    assert cli("MEM.CARD", KEY) == "2000\n"
    said = cli("--pipe", stdin=pack("MEM.CARD", KEY) + pack("MEM.CARD", "absent"), fails=True)
    assert "errors: 1, replies: 2" in said


# Its modes.


def test_scan(filled: Cli) -> None:
    filled("COPY", KEY, "team:7")
    assert sorted(filled("--scan").split()) == ["team:7", KEY]
    assert filled("--scan", "--pattern", "user:*").split() == [KEY]


@pytest.mark.parametrize("mode", ("--bigkeys", "--memkeys"))
def test_samples_the_keyspace(filled: Cli, mode: str) -> None:
    said = filled(mode)
    assert "Sampled 1 keys in the keyspace!" in said
    assert "1 memorys" in said  # it makes the plural itself


def test_stat(server: Running, filled: Cli) -> None:
    """--stat reads INFO every second: keys, memory, clients, blocked, requests, connections."""
    with terminal(server.port, "--stat") as session:
        line = session.until(rb"\r\n *1 +\d[^\r]*\r\n").split()
    keys, memory, clients, blocked, requests, connections = line[0], line[1], line[2], line[3], line[4], line[-1]
    assert keys == b"1"
    assert re.fullmatch(rb"[\d.]+[BKMG]", memory)
    assert int(clients) >= 1
    assert blocked == b"0"
    assert int(requests) > 0
    assert int(connections) > 0


def test_subscribe(server: Running, protocol: list[str]) -> None:
    argv = [CLI, "-h", "127.0.0.1", "-p", str(server.port), *protocol, "PSUBSCRIBE", "__mem__:*"]
    with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=_environ()) as process:
        try:
            assert process.stdout is not None
            next_line = process.stdout.readline
            assert [next_line() for _ in range(3)] == [b"psubscribe\n", b"__mem__:*\n", b"1\n"]
            with server.client() as client:
                client.execute_command("MEM.CREATE", KEY, "MODE", "SEARCH")
                client.execute_command("MEM.ADD", KEY, "ID", "a", "TEXT", "hello")
            assert [next_line() for _ in range(4)] == [b"pmessage\n", b"__mem__:*\n", b"__mem__:user:123\n", b"add a\n"]
        finally:
            process.kill()


# At a terminal.


class Terminal:
    """redis-cli with a terminal of its own."""

    def __init__(self, port: int, *words: str) -> None:
        self.master, slave = pty.openpty()
        argv = [CLI, "-h", "127.0.0.1", "-p", str(port), *words]
        self.process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=_environ())
        os.close(slave)
        self.seen = b""

    def type(self, line: str) -> None:
        os.write(self.master, line.encode() + b"\r")

    def until(self, pattern: bytes) -> bytes:
        """Read on until `pattern` has come; what matched. What came before is passed over."""
        deadline = time.monotonic() + PATIENCE_S
        while (found := re.search(pattern, self.seen)) is None:
            ready, _, _ = select.select([self.master], [], [], deadline - time.monotonic())
            assert ready, f"{pattern!r} did not come, but {self.seen!r}"
            self.seen += os.read(self.master, 65536)
        self.seen = self.seen[found.end() :]
        return found[0]

    def close(self) -> None:
        self.process.kill()
        self.process.wait(PATIENCE_S)
        os.close(self.master)


@contextmanager
def terminal(port: int, *words: str) -> Iterator[Terminal]:
    session = Terminal(port, *words)
    try:
        yield session
    finally:
        session.close()


def test_interactive(server: Running, protocol: list[str]) -> None:
    prompt = rb"127\.0\.0\.1:%d> " % server.port
    with terminal(server.port, *protocol) as session:
        session.until(prompt)
        session.type("ping")
        session.until(rb"PONG\r\n")
        session.type(f"MEM.CREATE {KEY} MODE SEARCH")
        session.until(rb"OK\r\n")
        session.type(f'MEM.ADD {KEY} ID a TEXT "the keys"')
        session.until(rb'"a"\r\n')
        session.type(f"MEM.CARD {KEY}")
        session.until(rb"\(integer\) 1\r\n")
        session.type("multi")
        session.until(rb"127\.0\.0\.1:%d\(TX\)> " % server.port)
        session.type("discard")
        session.until(rb"OK\r\n")
        session.type("quit")
        assert session.process.wait(PATIENCE_S) == 0


# redis-benchmark.


@pytest.mark.skipif(BENCHMARK is None, reason="needs redis-benchmark on PATH")
def test_benchmark(server: Running, filled: Cli) -> None:
    """It asks CONFIG GET first, then floods: -P is pipelining, words at the end are a command of one's own."""
    argv = [str(BENCHMARK), "-h", "127.0.0.1", "-p", str(server.port), "--csv"]

    def rows(*words: str) -> list[dict[str, str]]:
        done = subprocess.run([*argv, *words], capture_output=True, text=True, timeout=PATIENCE_S, env=_environ())
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return list(csv.DictReader(done.stdout.splitlines()))

    pings = rows("-n", "2000", "-c", "20", "-P", "10", "-t", "ping")
    assert [row["test"] for row in pings] == ["PING_INLINE", "PING_MBULK"]
    assert all(float(row["rps"]) > 0 for row in pings)
    rows("-n", "300", "-c", "5", "MEM.ADD", KEY, "TEXT", "another fact")
    assert filled("MEM.CARD", KEY) == "302\n"
    rows("-n", "100", "-c", "5", "-3", "MEM.SEARCH", KEY, "fact")
