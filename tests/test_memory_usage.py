"""MEMORY USAGE tells the truth: a real server is filled, and what it says is compared with what the process grew by.

Anonymous memory (RssAnon) is compared: a base file's arrays are mapped, so those are the page cache's.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
from harness import Process, Running, Wire, WireError

_WORDS = [f"{a}{b}{c}" for a in ("ba", "ke", "lo", "mu", "ti") for b in ("ran", "sol", "ven") for c in range(200)]
#: What a server keeps of what it freed: requests, arrays that were grown. It weighs in small memories only.
_SLACK = 1 << 20

@pytest.fixture
def wire() -> Iterator[Wire]:
    with Running() as server:
        yield server.wire()


def test_of_a_key(wire: Wire) -> None:
    assert wire("MEMORY", "USAGE", "k") is None
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    empty = wire("MEMORY", "USAGE", "k")
    wire("MEM.ADD", "k", "TEXT", "x" * 10_000)
    assert 500 < empty < empty + 10_000 < wire("MEMORY", "USAGE", "k") < empty + 11_000
    assert wire("MEMORY", "usage", "k", "samples", 5) == wire("MEMORY", "USAGE", "k")
    info = wire("MEM.INFO", "k")
    assert dict(zip(info[::2], info[1::2], strict=True))[b"bytes"] == wire("MEMORY", "USAGE", "k")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("USAGE",), "ERR wrong number of arguments for 'memory|usage' command"),
        (("USAGE", "k", "SAMPLES"), "ERR syntax error"),
        (("USAGE", "k", "SAMPLES", "-1"), "ERR syntax error"),
        (("USAGE", "k", "SAMPLES", "many"), "ERR value is not an integer or out of range"),
        (("USAGE", "k", "EXAMPLES", "1"), "ERR syntax error"),
        (("PURR",), "ERR unknown subcommand 'PURR'. Try MEMORY HELP."),
    ],
)
def test_errors(wire: Wire, words: tuple[str, ...], error: str) -> None:
    with pytest.raises(WireError) as raised:
        wire("MEMORY", *words)
    assert str(raised.value) == error


def test_of_the_server() -> None:
    with Running() as server:
        client = server.client()
        client.execute_command("MEM.CREATE", "k", "MODE", "SEARCH")
        stats: dict[str, Any] = client.memory_stats()
        assert stats["keys.count"] == 1
        assert stats["dataset.bytes"] <= stats["total.allocated"] <= stats["peak.allocated"]
        fields = client.info("memory")
        assert fields["used_memory_startup"] == stats["startup.allocated"] > 10 << 20
        assert client.execute_command("MEMORY", "DOCTOR")
        assert b"USAGE key [SAMPLES count]" in client.execute_command("MEMORY", "HELP")


@pytest.mark.parametrize(
    ("memories", "records", "dim"),
    [(1, 20_000, 0), (1, 20_000, 384), (3_000, 10, 0), (3_000, 10, 16)],
)
def test_is_what_the_process_grows_by(tmp_path: Path, memories: int, records: int, dim: int) -> None:
    """Within 12 % and a megabyte, in one of three servers: what the allocator keeps of freed requests depends on how
    they happened to arrive."""
    seen = []
    for attempt in range(3):
        grown, told = _grown_and_told(tmp_path / str(attempt), memories, records, dim)
        if abs(told - grown) < 0.12 * grown + _SLACK:
            return
        seen.append((grown, told))
    pytest.fail(f"(grown by, told): {seen}")


def _grown_and_told(folder: Path, memories: int, records: int, dim: int) -> tuple[int, int]:
    """Fill a server: by how many bytes its anonymous memory grew, and what MEMORY USAGE says in all."""
    folder.mkdir()
    rng = random.Random(1)
    with Process(folder, "--appendonly", "no") as server:
        before = _anonymous_bytes(server)
        if before is None:
            pytest.skip("this system has no RssAnon in /proc")
        client = server.client(socket_timeout=60)
        _learn_words(client)
        before = _anonymous_bytes(server)
        with client.pipeline(transaction=False) as pipe:
            for number in range(memories):
                pipe.execute_command("MEM.CREATE", f"m{number}", *(("DIM", dim) if dim else ("MODE", "SEARCH")))
                for start in range(0, records, 50):
                    batch = [_record(rng, dim) for _ in range(min(50, records - start))]
                    pipe.execute_command(
                        "MEM.MADD", f"m{number}", len(batch), *[word for each in batch for word in each]
                    )
                    # A busy server would gather many requests, and the allocator keep some of what they took.
                    if len(pipe) >= 10:
                        pipe.execute()
            pipe.execute()
        after = _anonymous_bytes(server)
        assert before is not None
        assert after is not None
        return after - before, sum(client.memory_usage(f"m{number}") or 0 for number in range(memories))


def _record(rng: random.Random, dim: int) -> list[bytes | str | int]:
    words: list[bytes | str | int] = ["RECORD", "TEXT", " ".join(rng.choices(_WORDS, k=12)), "META", "topic"]
    words += [f"topic{rng.randrange(50)}", "TAGS", 1, f"tag{rng.randrange(100)}"]
    if dim:
        words += ["VEC", struct.pack(f"<{dim}f", *[rng.random() for _ in range(dim)])]
    return words


def _learn_words(client: redis.Redis) -> None:
    """The words that memories have in common are the server's, no key's."""
    client.execute_command("MEM.CREATE", "words", "MODE", "SEARCH")
    for start in range(0, len(_WORDS), 50):
        client.execute_command("MEM.ADD", "words", "ID", "same", "TEXT", " ".join(_WORDS[start : start + 50]))
    client.delete("words")


def _anonymous_bytes(server: Process) -> int | None:
    try:
        lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:")), None)
