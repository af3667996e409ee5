"""A real redis-server to compare with, byte by byte, where there is one on PATH.

Where Redis has strings we have memories: `MAKE key` makes a key, which must not be there, on either side.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from harness import PATIENCE_S, Wire, Word, pack

REDIS_SERVER = shutil.which("redis-server")

needs_redis = pytest.mark.skipif(REDIS_SERVER is None, reason="needs redis-server on PATH")

MAKE = "MAKE"


@contextmanager
def redis_server(folder: Path) -> Iterator[Path]:
    """Run redis-server on a unix socket in `folder`, which is yielded: no port to be taken."""
    path = folder / "redis.sock"
    assert REDIS_SERVER is not None
    options = ["--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)]
    with subprocess.Popen([REDIS_SERVER, *options], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if "ready to accept connections" in line.lower():
                    break
            else:
                raise RuntimeError(f"redis-server did not start (exit code {process.wait(PATIENCE_S)})")
            # It stops where nobody reads its log: a rule like +select|0 is a line each time.
            reader = threading.Thread(target=process.stdout.read, daemon=True)
            reader.start()
            yield path
            process.kill()
            reader.join(PATIENCE_S)
        finally:
            process.kill()


def connect(path: Path, protocol: int = 2) -> Wire:
    sock = socket.socket(socket.AF_UNIX)
    sock.settimeout(PATIENCE_S)
    sock.connect(str(path))
    return Wire(sock, protocol)


def for_redis(words: tuple[Word, ...]) -> tuple[Word, ...]:
    return ("SET", words[1], "x") if words[0] == MAKE else words


def for_us(words: tuple[Word, ...]) -> tuple[Word, ...]:
    return ("MEM.CREATE", words[1], "MODE", "SEARCH") if words[0] == MAKE else words


def replies(wire: Wire, commands: list[tuple[Word, ...]]) -> list[bytes]:
    """The bytes of each reply to commands sent in one go."""
    wire.sock.sendall(b"".join(pack(*words) for words in commands))
    return [next_reply(wire) for _ in commands]


def next_reply(wire: Wire) -> bytes:
    """The bytes of the next reply."""
    wire.read()
    return b"".join(wire._seen).replace(b"+string\r\n", b"+memory\r\n")
