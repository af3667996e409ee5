"""What the tests hold a server with: a server in a thread, one in a process, a clock that stands still, and clients.

    with Running(clock=Clock(), mem_max_topk="3") as server:
        server.client(protocol=3)      redis-py
        server.wire(3)                 every reply as it was on the wire: which type, which bytes
        server.agent("map")            hits and maps, whatever the reply format

Rule 1: time passes where a test says so (`Clock.advance`); no test sleeps.
Rule 2: the port is the server's choice, another one after each start: clients are made anew after `restart`.
"""

from __future__ import annotations

import asyncio
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis
import uvloop
from redis.backoff import NoBackoff
from redis.retry import Retry

Word = bytes | str | int | float

#: 2026-06-01T00:00:00Z
JUNE = 1_780_272_000_000
SECOND = 1_000
HOUR = 3_600 * SECOND
DAY = 24 * HOUR
#: So long that only a server which hangs meets it.
PATIENCE_S = 60.0


#: redis-py tries a refused login again and again, for ten seconds.
AT_ONCE = Retry(NoBackoff(), 0)


class Clock:
    """A clock that a test sets: calling it gives unix milliseconds."""

    def __init__(self, now_ms: int = JUNE) -> None:
        self.now_ms = now_ms

    def __call__(self) -> int:
        return self.now_ms

    def advance(self, ms: int) -> None:
        self.now_ms += ms


def free_port() -> int:
    """A port that nobody has just now, where 0 means something else than any; whoever takes it may come too late."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])


class Reachable:
    """Something that listens on `port` of this machine."""

    port: int
    tls_port: int

    def client(self, protocol: int = 2, decode_responses: bool = False, **kw: Any) -> redis.Redis:
        """A redis-py client."""
        return redis.Redis(
            host="127.0.0.1",
            port=self.port,
            protocol=protocol,
            decode_responses=decode_responses,
            socket_timeout=kw.pop("socket_timeout", PATIENCE_S),
            **kw,
        )

    def raw(self) -> socket.socket:
        """A connected socket."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE_S)

    def wire(self, protocol: int = 2) -> Wire:
        return Wire(self.raw(), protocol)

    def agent(self, form: str) -> Agent:
        """A client in one of the FORMS; `map` changes the server's setting for all RESP2 clients."""
        wire = self.wire(3 if form == "resp3" else 2)
        wire("CONFIG", "SET", "mem-hit-format", "map" if form == "map" else "array")
        return Agent(wire, form)


class Running(Reachable):
    """A server in a thread of this process, with a loop of its own. Options are settings, `_` for `-`.

    Without `dir` it keeps nothing (`appendonly no`). Without `clock` it reads the clock of the machine, without `files`
    it uses its disk.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], int] | None = None,
        files: Any = None,
        dir: str | Path | None = None,
        **options: str,
    ) -> None:
        self.clock = clock
        self.files = files
        self.dir = dir
        settings = {"bind": "127.0.0.1", "port": "0", "appendonly": "no" if dir is None else "yes"}
        if dir is not None:
            settings["dir"] = str(dir)
        settings |= {name.replace("_", "-"): value for name, value in options.items()}
        self.overrides = [(name, [value]) for name, value in settings.items()]
        self.server: Any = None
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop
        self._quit: asyncio.Event

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Listen; raises what Server.start raises."""
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._main, args=(ready,), name="recalld", daemon=True)
        self._thread.start()
        try:
            ready.result(PATIENCE_S)
        except BaseException:
            self._thread.join(PATIENCE_S)
            self._thread = None
            raise
        self.port, self.tls_port = (ports[0][1] if ports else 0 for ports in (self.server.ports, self.server.tls_ports))

    def stop(self) -> None:
        """Stop in good order, as SIGTERM does."""
        if self._thread is None:
            return
        self._loop.call_soon_threadsafe(self._quit.set)
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive(), "the server did not stop"
        self._thread = None

    def restart(self) -> None:
        """Stop, and start again on the same folder and clock."""
        self.stop()
        self.start()

    def _main(self, ready: Future[None]) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(self._serve(ready))

    async def _serve(self, ready: Future[None]) -> None:
        try:
            # Here, so that a test of the harness's other half needs no whole product.
            from recalld.server import command_modules  # noqa: F401 - fills the command table
            from recalld.server.config import Config
            from recalld.server.server import Server, wall_clock

            config = Config.load(None, self.overrides)
            self.server = Server(config, self.clock or wall_clock, self.files)
            self._loop = asyncio.get_running_loop()
            self._quit = asyncio.Event()
            await self.server.start()
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result(None)
        await self._quit.wait()
        await self.server.stop()


class Process(Reachable):
    """A server in a process of its own, `python -m recalld.server`, on the machine's clock; `words` are its options,
    `prefix` is a command that runs it.

    `log` gathers its output by lines.
    """

    def __init__(self, dir: str | Path, *words: str, config: Path | None = None, prefix: Sequence[str] = ()) -> None:
        file = [] if config is None else [str(config)]
        command = [*prefix, sys.executable, "-u", "-m", "recalld.server", *file, "--port", "0", "--bind", "127.0.0.1"]
        self.log: list[str] = []
        self.process = subprocess.Popen(
            [*command, "--dir", str(dir), *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        ready: Future[int] = Future()
        self._reader = threading.Thread(target=self._read_log, args=(ready,), daemon=True)
        self._reader.start()
        try:
            self.port = ready.result(PATIENCE_S)
        except BaseException:
            self.kill()
            raise

    def _read_log(self, ready: Future[int]) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line.rstrip("\n"))
            found = re.search(r"Ready to accept connections tcp on 127\.0\.0\.1:(\d+)", line)
            if found and not ready.done():
                ready.set_result(int(found[1]))
        if not ready.done():
            ready.set_exception(RuntimeError("the server did not start:\n" + "\n".join(self.log)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> int:
        """SIGKILL; its exit code."""
        return self._end(signal.SIGKILL)

    def terminate(self) -> int:
        """SIGTERM, in good order; its exit code."""
        return self._end(signal.SIGTERM)

    def _end(self, signum: signal.Signals) -> int:
        if self.process.poll() is None:
            self.process.send_signal(signum)
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        return code


# Replies as they are on the wire.


class Simple(str):
    """A status line, `+OK`."""


class Double(float):
    """A RESP3 double; `raw` is its spelling."""

    raw: bytes


class Push(list[Any]):
    """A RESP3 push."""


class WireError(Exception):
    """An error reply; its text is what follows the `-`."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, WireError) and str(other) == str(self)

    __hash__ = Exception.__hash__


class Wire:
    """One connection. Bulk strings are bytes, maps dicts in their order, errors raise WireError (inside an array they
    are values), and the rest is in the types above."""

    def __init__(self, sock: socket.socket, protocol: int = 2) -> None:
        self.sock = sock
        self._file = sock.makefile("rb")
        self._seen: list[bytes] = []
        if protocol == 3:
            self("HELLO", 3)

    def __call__(self, *words: Word) -> Any:
        """The reply to one command; raises WireError."""
        self.send(*words)
        reply = self.read()
        if isinstance(reply, WireError):
            raise reply
        return reply

    def error(self, *words: Word) -> str:
        """The text of the error that the command must give."""
        self.send(*words)
        reply = self.read()
        assert isinstance(reply, WireError), f"no error but {reply!r}"
        return str(reply)

    def raw(self, *words: Word) -> bytes:
        """The bytes of the reply."""
        self.send(*words)
        self.read()
        return b"".join(self._seen)

    def raws(self, *commands: Sequence[Word]) -> list[bytes]:
        """The bytes of each reply to commands sent in one go; whatever they are."""
        if not commands:
            return []
        end = b"$25\r\n-- here a reply has ended\r\n"
        echo = pack("ECHO", end[5:-2])
        self.sock.sendall(b"".join(pack(*words) + echo for words in commands))
        said = bytearray()
        while not said.endswith(end) or said.count(end) < len(commands):
            some = self._file.read1()
            if not some:
                raise EOFError("the server closed the connection")
            said += some
        return bytes(said).split(end)[:-1]

    def pipeline(self, *commands: tuple[Word, ...] | list[Word]) -> list[Any]:
        """The replies to commands sent in one go, errors as values."""
        self.sock.sendall(b"".join(pack(*words) for words in commands))
        return [self.read() for _ in commands]

    def send(self, *words: Word) -> None:
        self.sock.sendall(pack(*words))

    def read(self) -> Any:
        """The next reply, errors as values."""
        self._seen = []
        return self._value()

    def close(self) -> None:
        self._file.close()
        self.sock.close()

    def _value(self) -> Any:
        line = self._file.readline()
        if line[-2:] != b"\r\n":
            raise EOFError("the server closed the connection")
        self._seen.append(line)
        kind, rest = line[:1], line[1:-2]
        # The commonest first: replies of the oracles' tests have millions of them.
        if kind == b"$" and rest != b"-1":
            data = self._file.read(int(rest) + 2)
            self._seen.append(data)
            return data[:-2]
        if kind == b"+":
            return Simple(rest.decode())
        if kind == b"-":
            return WireError(rest.decode("utf-8", "surrogateescape"))
        if kind == b":":
            return int(rest)
        if kind == b",":
            double = Double(rest)
            double.raw = rest
            return double
        if kind == b"#":
            return rest == b"t"
        if kind == b"_" or rest == b"-1":
            return None
        if kind == b"=":
            data = self._file.read(int(rest) + 2)
            self._seen.append(data)
            return data[4:-2]
        if kind in b"*~":
            return [self._value() for _ in range(int(rest))]
        if kind == b">":
            return Push(self._value() for _ in range(int(rest)))
        if kind == b"%":
            pairs = [(self._value(), self._value()) for _ in range(int(rest))]
            assert len({key for key, _ in pairs}) == len(pairs), f"a map with a key twice: {pairs}"
            return dict(pairs)
        raise AssertionError(f"no RESP: {line!r}")


def to_bytes(word: Word) -> bytes:
    if isinstance(word, bytes):
        return word
    return (word if isinstance(word, str) else repr(word)).encode()


def pack(*words: Word) -> bytes:
    """A command as clients send it."""
    parts = [b"*%d\r\n" % len(words)]
    for word in map(to_bytes, words):
        parts.append(b"$%d\r\n%s\r\n" % (len(word), word))
    return b"".join(parts)


# Hits and maps, whatever the format.

#: RESP2 with hits as arrays, RESP2 with hits as maps, RESP3.
FORMS = ("array", "map", "resp3")


@dataclass
class Hit:
    """One hit; None is what the reply leaves out. `pairs` is the map it came as, None in the array form."""

    id: bytes
    text: bytes | None = None
    meta: dict[bytes, bytes] | None = None
    tags: list[bytes] | None = None
    vector: Any = None
    score: float | None = None
    keyword: float | None = None
    similarity: float | None = None
    recency: float | None = None
    explain: dict[bytes, Any] | None = None
    pairs: dict[bytes, Any] | None = field(default=None, repr=False)


class Agent:
    """A client that reads hits and maps in its form."""

    def __init__(self, wire: Wire, form: str) -> None:
        assert form in FORMS
        self.wire = wire
        self.form = form

    def __call__(self, *words: Word) -> Any:
        return self.wire(*words)

    def error(self, *words: Word) -> str:
        return self.wire.error(*words)

    def map(self, *words: Word) -> dict[bytes, Any]:
        """The reply to a command that answers a map; what is a map within it is one here."""
        return self.as_map(self.wire(*words))

    def as_map(self, reply: Any) -> dict[bytes, Any]:
        if self.form == "resp3":
            assert isinstance(reply, dict), f"no map: {reply!r}"
            return reply
        pairs = flat_pairs(reply)
        return {
            name: flat_pairs(value) if name in (b"weights", b"meta", b"explain") and isinstance(value, list) else value
            for name, value in pairs.items()
        }

    def hits(self, *words: Word) -> list[Hit]:
        """The hits of MEM.SEARCH, MEM.VSEARCH or MEM.QUERY, without WITHSTATS."""
        return self.as_hits(self.wire(*words), *words)

    def as_hits(self, reply: Any, *words: Word) -> list[Hit]:
        """Read a reply as the hits that `words` asked for."""
        assert isinstance(reply, list), f"no array of hits: {reply!r}"
        if self.form == "array":
            asked = {to_bytes(word).upper() for word in words}
            return [_hit_of_array(hit, asked) for hit in reply]
        return [_hit_of_map(self.as_map(hit)) for hit in reply]

    def ids(self, *words: Word) -> list[bytes]:
        return [hit.id for hit in self.hits(*words)]


def flat_pairs(reply: Any) -> dict[bytes, Any]:
    """A map as RESP2 has it: an array of field, value, field, value."""
    assert isinstance(reply, list) and len(reply) % 2 == 0, f"no flat map: {reply!r}"
    pairs = dict(zip(reply[::2], reply[1::2], strict=True))
    assert len(pairs) * 2 == len(reply), f"a map with a key twice: {reply!r}"
    return pairs


def number(value: Any) -> float:
    """A number of a reply: an integer, a double, or the decimal string that RESP2 has for one."""
    assert isinstance(value, int | float | bytes), f"no number: {value!r}"
    return float(value)


def _optional(value: Any) -> float | None:
    return None if value is None else number(value)


def _hit_of_array(reply: Any, asked: set[bytes]) -> Hit:
    assert isinstance(reply, list), f"no array: {reply!r}"
    fields = iter(reply)
    hit = Hit(next(fields))
    if b"NOTEXT" not in asked:
        hit.text = next(fields)
    if b"WITHMETA" in asked:
        hit.meta = flat_pairs(next(fields))
    if b"WITHTAGS" in asked:
        hit.tags = next(fields)
    if b"WITHVEC" in asked:
        hit.vector = next(fields)
    if b"WITHSCORES" in asked:
        scores = flat_pairs(next(fields))
        hit.score = number(scores[b"score"])
        hit.keyword = _optional(scores.get(b"keyword"))
        hit.similarity = _optional(scores.get(b"vector"))
        hit.recency = _optional(scores.get(b"recency"))
    if b"EXPLAIN" in asked:
        hit.explain = flat_pairs(next(fields))
    rest = list(fields)
    assert not rest, f"more than was asked for: {rest!r}"
    return hit


def _hit_of_map(pairs: dict[bytes, Any]) -> Hit:
    return Hit(
        pairs[b"id"],
        pairs.get(b"text"),
        pairs.get(b"meta"),
        pairs.get(b"tags"),
        pairs.get(b"vector"),
        number(pairs[b"score"]),
        _optional(pairs.get(b"keyword_score")),
        _optional(pairs.get(b"vector_score")),
        _optional(pairs.get(b"recency_score")),
        pairs.get(b"explain"),
        pairs,
    )


def scan(wire: Callable[..., Any], key: Word, *words: Word) -> Iterator[bytes]:
    """The ids that MEM.SCAN gives from start to end, page by page as the caller takes them."""
    cursor: Word = 0
    while True:
        cursor, ids = wire("MEM.SCAN", key, cursor, *words)
        yield from ids
        if cursor == b"0":
            return
