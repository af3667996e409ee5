"""The same replies after a restart: a thousand recorded queries, byte by byte, and everything else a client can ask.

The records were written at a far date, so that recency does not move, and the clock stands still.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from durable import on_loop, state
from harness import JUNE, Clock, Running, Wire, Word, pack, scan
from oracle import blob

STEMS = ("run", "walk", "lake", "stone", "bird", "café", "東京")
WORDS = [stem + ending for stem in STEMS for ending in ("", "s", "ing")]
MEMORIES: dict[str, list[Word]] = {
    "cosine": ["MODE", "HYBRID", "DIM", 8, "METRIC", "COSINE"],
    "l2": ["MODE", "HYBRID", "DIM", 8, "METRIC", "L2", "FUSION", "RRF", "LANG", "german"],
    "ip": ["MODE", "HYBRID", "DIM", 3, "METRIC", "IP", "WEIGHTS", 1, 1, 0.5, 0.25, "LANG", "NONE"],
    "search": ["MODE", "SEARCH", "K1", 1.2, "B", 0.75],
    "vector": ["MODE", "VECTOR", "DIM", 5, "METRIC", "COSINE"],
}
#: More than POSTINGS_MIN in one of them: its posting lists are restored from the base.
RECORDS = {"cosine": 1_600, "l2": 200, "ip": 200, "search": 300, "vector": 150}
QUERIES = 1_000


def sentence(rng: Random) -> str:
    return " ".join(rng.choices(WORDS, weights=range(1, len(WORDS) + 1), k=rng.randint(1, 9)))


def vector(rng: Random, key: str) -> bytes:
    dim = MEMORIES[key][MEMORIES[key].index("DIM") + 1]
    return blob([rng.uniform(-1, 1) for _ in range(int(dim))])


def fill(wire: Wire, rng: Random) -> None:
    for key, options in MEMORIES.items():
        assert wire("MEM.CREATE", key, *options) == "OK"
        for start in range(0, RECORDS[key], 100):
            words: list[Word] = []
            for number in range(start, start + 100):
                words += ["RECORD", "TEXT", sentence(rng), "AT", JUNE // 2 + rng.randint(0, 10**6)]
                words += ["ID", f"r{number}"] if number % 3 else []
                words += ["IMPORTANCE", rng.random(), "META", "n", number % 7, "TAGS", 1, f"t{number % 4}"]
                words += ["TTL", rng.randint(10**6, 10**7)] if number % 11 == 0 else []
                if key != "search" and (key == "vector" or number % 9):
                    words += ["VEC", vector(rng, key)]
            assert len(wire("MEM.MADD", key, min(100, RECORDS[key] - start), *cut(words, RECORDS[key] - start))) > 0
    # Replaced, removed, changed: rows that are dead, ids that are not in the order of rows.
    for key in MEMORIES:
        for _ in range(60):
            record = f"r{rng.randrange(RECORDS[key])}"
            extra: list[Word] = ["VEC", vector(rng, key)] if key != "search" else []
            wire("MEM.ADD", key, "ID", record, "TEXT", sentence(rng), "AT", JUNE // 2, *extra)
            wire("MEM.DEL", key, f"r{rng.randrange(RECORDS[key])}")
            if wire("MEM.GET", key, record) is not None:
                wire("MEM.SETMETA", key, record, "m", rng.randint(0, 99))
                wire("MEM.EXPIRE", key, record, rng.choice((0, 10**6)))
    wire("MEM.CONFIG", "l2", "HALFLIFE", 99, "WEIGHTS", 0.2, 0.3, 0.4, 0.1)
    wire("PEXPIREAT", "ip", JUNE + 10**9)


def cut(words: list[Word], records: int) -> list[Word]:
    """The words of the first `records` records."""
    places = [at for at, word in enumerate(words) if word == "RECORD"]
    return words if records >= len(places) else words[: places[records]]


def queries(rng: Random, count: int) -> list[list[Word]]:
    """Of every kind, over every memory."""
    made: list[list[Word]] = []
    for _ in range(count):
        key = rng.choice(list(MEMORIES))
        chance = rng.random()
        if chance < 0.1:
            made.append(["MEM.LIST", key, "LIMIT", 20, "OFFSET", rng.randint(0, 99), "WITHMETA", "WITHVEC"])
            continue
        if chance < 0.15:
            made.append(["MEM.GET", key, f"r{rng.randrange(RECORDS[key])}", "WITHMETA", "WITHVEC"])
            continue
        words: list[Word]
        text, near = ["TEXT", sentence(rng)], [] if key == "search" else ["VEC", vector(rng, key)]
        if key == "search":
            words = ["MEM.SEARCH", key, text[1]] if chance < 0.5 else ["MEM.QUERY", key, *text]
        elif key == "vector" or chance < 0.4:
            words = ["MEM.VSEARCH", key, *near]
        else:
            words = ["MEM.QUERY", key, *rng.choice((text, near, [*text, *near]))]
        words += ["TOPK", rng.choice((1, 5, 5, 30)), "WITHSCORES", "EXPLAIN", "WITHMETA", "WITHTAGS"]
        words += rng.choice(([], [], ["FILTER", "n", "GTE", 3], ["TAGS", "ANY", 2, "t1", "t3"], ["MINSCORE", 0.2]))
        if words[0] == "MEM.QUERY":
            words += rng.choice(([], [], ["DIVERSITY", 0.5], ["FUSION", "RRF"], ["WEIGHTS", 1, 1, 1, 1]))
        made.append(words)
    return made


def batched(commands: list[list[Word]]) -> list[list[list[Word]]]:
    return [commands[start : start + 10] for start in range(0, len(commands), 10)]


def talk(wire: Wire, commands: list[list[Word]]) -> bytes:
    """The bytes of the replies to a pipeline."""
    end = b"$3\r\nend\r\n"
    wire.sock.sendall(b"".join(pack(*words) for words in [*commands, ["ECHO", "end"]]))
    said = bytearray()
    while not said.endswith(end):
        said += wire.sock.recv(1 << 20)
    return bytes(said)


class Recorded:
    """What a server said, to be compared with what it says later."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._queries = queries(Random(2), QUERIES)
        self.replies = self._ask({})
        self.state = on_loop(server, lambda: state(server.server.keyspace))

    def _ask(self, names: dict[str, str], every: int = 1) -> list[bytes]:
        """All queries, or one of so many batches."""
        wire = self._server.wire()
        said = [
            talk(wire, [[words[0], names.get(str(words[1]), words[1]), *words[2:]] for words in some])
            for some in batched(self._queries)[::every]
        ]
        for key in MEMORIES:
            name = names.get(key, key)
            info: list[Any] = wire("MEM.INFO", name)
            pairs = dict(zip(info[::2], info[1::2], strict=True))
            pairs.pop(b"bytes", None)  # what it takes in memory is no part of the state
            scanned = list(scan(wire, name, "COUNT", 17))
            said.append(repr((sorted(pairs), pairs, scanned, wire("MEM.CONFIG", name))).encode())
        wire.close()
        return said

    def compare(self, names: dict[str, str] | None = None, every: int = 1) -> None:
        said = self._ask(names or {}, every)
        batches = batched(self._queries)
        asked = [*batches[::every], *MEMORIES]
        replies = [*self.replies[: len(batches) : every], *self.replies[len(batches) :]]
        for words, before, after in zip(asked, replies, said, strict=True):
            assert after == before, words
        if names is None:
            assert on_loop(self._server, lambda: state(self._server.server.keyspace)) == self.state


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder: Path = tmp_path_factory.mktemp("state")
    with Running(clock=Clock(JUNE), dir=folder, appendfsync="no") as server:
        wire = server.wire()
        fill(wire, Random(1))
        wire.close()
        said = Recorded(server)
        assert not any(b"-ERR" in reply for reply in said.replies)
        yield server, said


def rewritten(server: Running) -> None:
    wire = server.wire()
    assert wire("SAVE") == "OK"
    wire.close()


def test_after_a_restart_from_entries(recorded: tuple[Running, Recorded]) -> None:
    """The incr file alone."""
    server, said = recorded
    server.restart()
    said.compare()


def test_after_a_rewrite_and_a_restart_from_the_base(recorded: tuple[Running, Recorded]) -> None:
    """The base alone, posting lists, vector sums and all; twice, since the second base is written from the first."""
    server, said = recorded
    for every in (3, 1):
        rewritten(server)
        server.restart()
        said.compare(every=every)
    memories = server.server.keyspace.memories
    postings = {key: memory.table.postings is not None for key, memory in memories.items()}
    assert postings == {key.encode(): RECORDS[key] > 1_024 for key in MEMORIES}


def test_after_a_base_with_entries_behind_it(recorded: tuple[Running, Recorded]) -> None:
    """Writes that cancel out: what they leave behind in tables must not show."""
    server, said = recorded
    rewritten(server)
    wire = server.wire()
    for key in MEMORIES:
        extra: list[Word] = ["VEC", vector(Random(3), key)] if key != "search" else []
        assert wire("COPY", key, "twin") == 1
        for number in range(80):
            wire("MEM.ADD", "twin", "ID", f"new{number}", "TEXT", "birds walking", *extra)
        wire("MEM.DEL", "twin", *(f"new{number}" for number in range(80)))
        assert wire("DEL", "twin") == 1
    wire.close()
    server.restart()
    said.compare()


def test_copies_and_renamed_memories_say_the_same(recorded: tuple[Running, Recorded]) -> None:
    """COPY, RENAME, and both after a restart and after a rewrite."""
    server, said = recorded
    copies = {key: f"{key}-copy" for key in MEMORIES}
    moved = {key: f"{key}-moved" for key in MEMORIES}
    wire = server.wire()
    for key in MEMORIES:
        assert wire("COPY", key, copies[key]) == 1
    said.compare(copies, every=3)
    rewritten(server)
    server.restart()
    said.compare(copies)
    wire = server.wire()
    for key in MEMORIES:
        assert wire("RENAME", copies[key], moved[key]) == "OK"
    server.restart()
    said.compare(moved, every=3)
    wire = server.wire()
    assert wire("DEL", *moved.values()) == len(moved)
    wire.close()
