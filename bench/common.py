"""What the benchmarks share: servers to measure, raw connections, seeded data, medians, tables.

Rule 1: a benchmark says what it ran on (machine()) and which sizes it used, beside each number.
Rule 2: a load generator parses replies no further than it must, and sends commands that were encoded before the clock
        started: a number of ours must never be the client's.
Rule 3: all data is seeded, so two runs, and two servers, get the same bytes.
"""

from __future__ import annotations

import json
import os
import platform
import re
import selectors
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import hiredis
import numpy as np
from numpy.typing import NDArray

REPO = Path(__file__).resolve().parent.parent
DIM = 384  # all-MiniLM-L6-v2, the width of the retrieval data
READY_S = 120.0
POLL_S = 0.002  # how exact Running.start's result is
READY = re.compile(rb"Ready to accept connections tcp on [^ ]*:(\d+)")
# Where they are set they steer numpy to older kernels than a user's would be.
STEERED = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")

Floats = NDArray[np.float32]


# -- servers


class Running:
    """A server process in a folder of its own, stopped and removed on exit. `port` is where it listens.

    In between it may be stopped and started again: the folder stays. `under` is where the folder is made, `environ`
    what its environment has beside this process's own.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        name: str,
        port: int = 0,
        under: str | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.argv = list(argv)
        self.port = port
        self.folder = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._fixed_port = port
        self._under = under
        self._environ = dict(environ or {})

    def __enter__(self) -> Running:
        self.folder = tempfile.mkdtemp(prefix="recalld-bench-", dir=self._under)
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)

    def start(self) -> float:
        """Start it; how many seconds until it answered PING."""
        self.port = self._fixed_port
        environ = {key: value for key, value in os.environ.items() if key not in STEERED} | self._environ
        argv = [word.replace("{dir}", self.folder) for word in self.argv]
        with open(self.log_path, "wb") as log:
            started = time.perf_counter()
            self.process = subprocess.Popen(argv, stdout=log, stderr=subprocess.STDOUT, env=environ)
        self._wait_until_ready(self.process)
        return time.perf_counter() - started

    def stop(self) -> None:
        """Stop it by SIGTERM, if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(30)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    @property
    def log_path(self) -> str:
        return os.path.join(self.folder, "log")

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline and process.poll() is None:
            if not self.port:  # recalld chose one and says which
                found = READY.search(Path(self.log_path).read_bytes())
                self.port = int(found[1]) if found else 0
            if self.port and answers(self.port):
                return
            time.sleep(POLL_S)
        log = Path(self.log_path).read_text("utf-8", "replace")
        raise SystemExit(f"{self.name} did not start: {' '.join(self.argv)}\n{log[-2000:]}")


def resident(running: Running) -> int:
    """Bytes of the process's own memory, without what it maps from files; 0 where there is no /proc."""
    try:
        lines = Path(f"/proc/{running.process.pid if running.process else 0}/status").read_text("utf-8").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), 0)


def recalld(*options: str, under: str | None = None) -> Running:
    """recalld of this interpreter's venv, else of the repository's, with the given `--name value` options."""
    beside = Path(sys.executable).parent / "recalld"
    program = next((path for path in (beside, REPO / ".venv/bin/recalld") if path.exists()), None)
    if program is None:
        raise SystemExit("recalld is not installed: run `make serve` once, or pip install -e .")
    return Running([str(program), "--port", "0", "--dir", "{dir}", *options], name="recalld", under=under)


def redis_server(*options: str, under: str | None = None) -> Running | None:
    """redis-server from PATH, without snapshots; None where there is none."""
    program = shutil.which("redis-server")
    if program is None:
        return None
    port = free_port()  # --port 0 would mean no TCP at all
    argv = [program, "--port", str(port), "--save", "", "--dir", "{dir}", *options]
    return Running(argv, name="redis-server", port=port, under=under)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def answers(port: int) -> bool:
    """Whether something that is done loading answers PING there."""
    try:
        with Link(port, timeout_s=5.0) as link:
            return bool(link.call(encode("PING")) == b"PONG")
    except (OSError, hiredis.HiredisError):
        return False


# -- raw connections


def encode(*words: bytes | str | int | float) -> bytes:
    """One RESP command."""
    out = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        out += (b"$%d\r\n" % len(data), data, b"\r\n")
    return b"".join(out)


class Link:
    """A blocking connection for pre-encoded commands. Error replies raise hiredis.ReplyError."""

    def __init__(self, port: int, timeout_s: float = 120.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout_s)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = hiredis.Reader()

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *why: object) -> None:
        self.socket.close()

    def call(self, command: bytes) -> Any:
        self.socket.sendall(command)
        return self.read()

    def read(self) -> Any:
        while (reply := self.poll()) is False:
            self.fill()
        return reply

    def poll(self) -> Any:
        """The next reply that has arrived whole, else False."""
        reply = self.reader.gets()
        if isinstance(reply, hiredis.ReplyError):
            raise reply
        return reply

    def fill(self) -> None:
        data = self.socket.recv(1 << 18)
        if not data:
            raise ConnectionError("the server closed the connection")
        self.reader.feed(data)


# -- load


@dataclass
class Load:
    """What one run of a load generator saw: seconds each request took, and the whole."""

    latencies_s: list[float] = field(default_factory=list)
    elapsed_s: float = 0.0
    requests: int = 0

    @property
    def rate(self) -> float:
        return self.requests / self.elapsed_s if self.elapsed_s else 0.0

    def ms(self, percent: float) -> float:
        return percentile(self.latencies_s, percent) * 1000


def closed_loop(port: int, commands: Sequence[bytes], *, connections: int, count: int, limit_s: float) -> Load:
    """Each connection sends its next command when the reply to its last one is there, until `count` or `limit_s`.

    The commands are taken in turn, over and over. One process, one thread.
    """
    links = [Link(port) for _ in range(connections)]
    try:
        run = _one if connections == 1 else _many
        return run(links, commands, count, limit_s)
    finally:
        for link in links:
            link.socket.close()


def _one(links: Sequence[Link], commands: Sequence[bytes], count: int, limit_s: float) -> Load:
    # Apart from _many because a selector costs a few microseconds, which is a good part of a PING.
    load = Load()
    link = links[0]
    clock = time.perf_counter
    started = before = clock()
    while load.requests < count and before - started < limit_s:
        link.call(commands[load.requests % len(commands)])
        now = clock()
        load.latencies_s.append(now - before)
        load.requests += 1
        before = now
    load.elapsed_s = before - started
    return load


def _many(links: Sequence[Link], commands: Sequence[bytes], count: int, limit_s: float) -> Load:
    load = Load()
    clock = time.perf_counter
    sent_at: dict[Link, float] = {}
    sent = 0
    started = now = clock()
    with selectors.DefaultSelector() as selector:
        for link in links:
            selector.register(link.socket, selectors.EVENT_READ, link)

        def send(link: Link) -> None:
            nonlocal sent
            if sent < count and now - started < limit_s:
                sent_at[link] = clock()
                link.socket.sendall(commands[sent % len(commands)])
                sent += 1

        for link in links:
            send(link)
        while load.requests < sent:
            for key, _ in selector.select():
                link = key.data
                link.fill()
                if link.poll() is not False:
                    now = clock()
                    load.latencies_s.append(now - sent_at[link])
                    load.requests += 1
                    send(link)
    load.elapsed_s = now - started
    return load


def pipelined(port: int, commands: Sequence[bytes], depth: int) -> Load:
    """All commands once over one connection, in batches of `depth`, two under way; a latency is a batch's."""
    sizes = [min(depth, len(commands) - start) for start in range(0, len(commands), depth)]
    batches = [b"".join(commands[i * depth : i * depth + size]) for i, size in enumerate(sizes)]
    load = Load(requests=len(commands))
    clock = time.perf_counter
    with Link(port) as link:
        started = clock()
        sent_at = [started]
        link.socket.sendall(batches[0])
        for i, size in enumerate(sizes):
            if i + 1 < len(batches):
                sent_at.append(clock())
                link.socket.sendall(batches[i + 1])
            for _ in range(size):
                link.read()
            load.latencies_s.append(clock() - sent_at[i])
        load.elapsed_s = clock() - started
    return load


def percentile(values: Sequence[float], percent: float) -> float:
    return float(np.percentile(values, percent)) if values else 0.0


def median(values: Sequence[float]) -> float:
    return statistics.median(values) if values else 0.0


# -- data

# The stop list of SPEC section 8: in English these are the most frequent words, so they head the vocabulary here too.
_STOP_LIST = """
    a an and are as at be but by did do does for from had has have he her his how in is it its of on or she that the
    their they this to was were what when which who will with
"""
STOP_WORDS = _STOP_LIST.split()
VOCABULARY = 30_000
_SYLLABLES = {
    "onset": "b c d f g h j k l m n p r s t v w z br ch cl dr fl gr pl pr sh sk st str th tr",
    "vowel": "a e i o u ai ea ee oa ou",
    "coda": "b ck d g l m n nd nt p r rt s sh st t x",
}


class Corpus:
    """Seeded records, the same for a given seed whatever is asked of it, and however often.

    Texts: 8 to 40 words, drawn by Zipf's law (exponent 1.07) from the English stop words and pronounceable others.
    Vectors: unit, `DIM` wide, around one of 256 centres; two of one centre have a cosine of about 0.6.
    """

    def __init__(self, seed: int = 1) -> None:
        self.seed = seed
        rng = np.random.default_rng([seed, 0])
        self.words = [*STOP_WORDS, *_invent(rng, VOCABULARY - len(STOP_WORDS))]
        weights = 1.0 / np.arange(1, VOCABULARY + 1) ** 1.07
        self._cumulated = np.cumsum(weights / weights.sum())
        self._centres = _unit(rng.standard_normal((256, DIM)))

    def texts(self, count: int) -> list[str]:
        return self._texts(np.random.default_rng([self.seed, 1]), count)

    def vectors(self, count: int) -> Floats:
        return self._vectors(np.random.default_rng([self.seed, 2]), count)

    def chunk(self, number: int, count: int) -> tuple[list[str], Floats]:
        """Texts and vectors of the `number`-th piece of a set that is too large to be made at once."""
        rng = np.random.default_rng([self.seed, 6, number])
        return self._texts(rng, count), self._vectors(rng, count)

    def _texts(self, rng: np.random.Generator, count: int) -> list[str]:
        lengths = rng.integers(8, 41, count)
        ranks = np.minimum(np.searchsorted(self._cumulated, rng.random(int(lengths.sum()))), VOCABULARY - 1)
        ends = np.cumsum(lengths)
        words = self.words
        spans = zip(ends - lengths, ends, strict=True)
        return [" ".join([words[rank] for rank in ranks[start:end].tolist()]) for start, end in spans]

    def _vectors(self, rng: np.random.Generator, count: int) -> Floats:
        out = np.empty((count, DIM), np.float32)
        for start in range(0, count, 10_000):  # float64 noise for all rows at once would be 300 MB
            rows = min(10_000, count - start)
            noise = _unit(rng.standard_normal((rows, DIM)))
            out[start : start + rows] = _unit(self._centres[rng.integers(0, 256, rows)] + 0.8 * noise)
        return out

    def query_texts(self, texts: Sequence[str], count: int) -> list[str]:
        """2 to 5 words of one record, stop words left out: each query has something to find."""
        rng = np.random.default_rng([self.seed, 3])
        stop = set(STOP_WORDS)
        out: list[str] = []
        while len(out) < count:
            words = [word for word in texts[int(rng.integers(len(texts)))].split() if word not in stop]
            wanted = int(rng.integers(2, 6))
            if len(words) >= wanted:
                out.append(" ".join(rng.permutation(words)[:wanted].tolist()))
        return out

    def query_vectors(self, vectors: Floats, count: int) -> Floats:
        """Vectors near those of records, cosine about 0.8."""
        rng = np.random.default_rng([self.seed, 4])
        near = vectors[rng.integers(0, len(vectors), count)].astype(np.float64)
        return _unit(near + 0.75 * _unit(rng.standard_normal((count, DIM)))).astype(np.float32)


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    unit: NDArray[np.float64] = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    return unit


def _invent(rng: np.random.Generator, count: int) -> Iterator[str]:
    """`count` different words of two or three syllables, none a stop word."""
    onsets, vowels, codas = (letters.split() for letters in _SYLLABLES.values())
    codas.append("")

    def pick(letters: list[str]) -> str:
        return letters[int(rng.integers(len(letters)))]

    seen = set(STOP_WORDS)
    while len(seen) < count + len(STOP_WORDS):
        word = "".join(pick(onsets) + pick(vowels) for _ in range(int(rng.integers(2, 4)))) + pick(codas)
        if word not in seen:
            seen.add(word)
            yield word


# -- output


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cpu = platform.processor() or platform.machine()
    try:
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text("utf-8"), re.MULTILINE)
        cpu = found[1] if found else cpu
    except OSError:
        pass  # not Linux
    return {
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cpu": cpu,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load_before": round(os.getloadavg()[0], 2),
    }


def print_machine(facts: dict[str, Any]) -> None:
    print(
        f"machine: {facts['cores']} cores, {facts['cpu']}, {facts['system']}; Python {facts['python']}, numpy"
        f" {facts['numpy']}; load average {facts['load_before']} before the start"
    )


def print_table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """An aligned text table: the first column to the left, numbers to the right."""
    cells = [[_cell(value) for value in row] for row in (head, *rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    print(f"\n{title}")
    for i, row in enumerate(cells):
        first, *rest = row
        print("  ".join([first.ljust(widths[0]), *(word.rjust(w) for word, w in zip(rest, widths[1:], strict=True))]))
        if i == 0:
            print("  ".join("-" * width for width in widths))


def print_records(title: str, records: Sequence[Mapping[str, object]]) -> None:
    """A table of dicts: their keys in order of appearance are its head, `p50_ms` written `p50 ms`."""
    keys = list(dict.fromkeys(key for record in records for key in record))
    print_table(title, [key.replace("_", " ") for key in keys], [[r.get(key, "") for key in keys] for r in records])


def _cell(value: object) -> str:
    if isinstance(value, float):
        if value == 0:
            return "0"
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 100 else f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def write_json(path: str | None, results: dict[str, Any]) -> None:
    if path:
        Path(path).write_text(json.dumps(results, indent=2) + "\n", "utf-8")
