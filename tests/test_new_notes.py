"""MEM.MADD of records that are spelled alike, read by columns, is what it is of records read one by one: replies,
events, log, counters, state, and what the next start finds."""

from __future__ import annotations

import re
import struct
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from durable import eventually, on_loop
from harness import PATIENCE_S, SECOND, Clock, Running, Wire, WireError
from recalld.server import aside, record_commands
from recalld.server.entries import Drop, Flush, Put, PutNew, Switch
from recalld.server.incr import encode_entries, encode_group, framed
from test_attack_aside import held_by

# What a file has of its own: the tag that it draws, and with it each note's checksum.
_TAGGED = re.compile(rb"^#?[0-9a-f]{16}(:[0-9a-f]{8})?", re.MULTILINE)

Words = list[Any]
Step = Words | Callable[[Running], None]


def later(ms: int) -> Step:
    """Time passes, and what is due goes now: else the server would see to that in a moment of its own."""

    def step(server: Running) -> None:
        server.clock.advance(ms)
        held_by(server)

    return step


def restart(server: Running) -> None:
    server.restart()


def rewrite(server: Running) -> None:
    wire = server.wire()
    wire("BGREWRITEAOF")
    eventually(lambda: b"aof_rewrite_in_progress:0" in wire("INFO", "persistence"))
    wire.close()


def counters(wire: Wire) -> list[bytes]:
    """What INFO counts that clients cause, but for times."""
    names = (b"keyspace_", b"expired_", b"rdb_changes", b"total_error", b"errorstat", b"cmdstat_mem")
    lines = wire("INFO", "everything").split(b"\r\n")
    return [line.split(b",usec")[0] for line in lines if line.startswith(names)]


def run(folder: Path, steps: list[Step], options: dict[str, str]) -> list[Any]:
    """All that there is to see of a run."""
    seen: list[Any] = []
    with Running(
        clock=Clock(), dir=folder, appendfsync="always", notify_keyspace_events="KEA", **options
    ) as server:  # fmt: skip
        wire, ear = server.wire(), server.wire()
        ear("PSUBSCRIBE", "*")
        for step in steps:
            if not isinstance(step, list):
                step(server)
                if step is restart:
                    wire, ear = server.wire(), server.wire()
                    ear("PSUBSCRIBE", "*")
            else:
                seen.append(wire.raw(*step))
            ear.send("PING")
            said = list(iter(ear.read, [b"pong", b""]))
            seen.append(said if isinstance(step, list) else sorted(said))
        seen.append(counters(wire))
        memories = server.server.keyspace.memories.values()
        seen.append(on_loop(server, lambda: [(each.version, each.record_bytes) for each in memories]))
        seen += [_TAGGED.sub(rb"", path.read_bytes()) for path in sorted(folder.glob("appendonlydir/*.incr.aof"))]
        seen.append(held_by(server))
        server.restart()
        assert held_by(server) == seen[-1]
    return seen


class Counted:
    """Counts the groups of new notes that are made."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._make = record_commands.new_notes
        self.made = 0
        patch.setattr(record_commands, "new_notes", self)

    def __call__(self, *args: Any) -> PutNew | None:
        put = self._make(*args)
        self.made += put is not None
        return put


def compare(tmp_path: Path, steps: list[Step], **options: str) -> int:
    """Run the steps with records read by columns and one by one; how many groups of new notes the first made."""
    with pytest.MonkeyPatch.context() as patch:
        counted = Counted(patch)
        columns = run(tmp_path / "columns", steps, options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(record_commands, "alike", lambda *args: None)
        apart = run(tmp_path / "apart", steps, options)
    for one, other in zip(columns, apart, strict=True):
        assert one == other
    return counted.made


def vec(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def madd(*records: Words, key: str = "m", count: int | None = None) -> Words:
    words: Words = ["MEM.MADD", key, len(records) if count is None else count]
    for record in records:
        words += ["RECORD", *record]
    return words


def notes(count: int, *more: Any, start: int = 0) -> Words:
    return madd(*[["TEXT", f"lake {number} reed", *more] for number in range(start, start + count)])


SEARCH: Step = ["MEM.CREATE", "m", "MODE", "SEARCH"]
HYBRID: Step = ["MEM.CREATE", "m", "DIM", 2]


@pytest.mark.parametrize("count", [1, 2, 127, 128, 129, 199, 200, 201, 1000])
def test_so_many(tmp_path: Path, count: int) -> None:
    made = compare(tmp_path, [SEARCH, notes(count), notes(count, "META", "n", "1", "TAGS", "1", "t")])
    assert made == 2 * (1 if count <= 200 else -(-count // 128))


def test_five_thousand_of_which_one_is_not_new(tmp_path: Path) -> None:
    """What stands before it is written in parts, what comes after it one by one."""
    records = [["ID", f"r{number}", "TEXT", f"lake {number}"] for number in range(5000)]
    records[3000][1] = "r1"
    assert compare(tmp_path, [SEARCH, madd(*records)]) == 3000 // 128


@pytest.mark.parametrize(
    "records",
    [
        # Values that look like options, or like nothing.
        [["TEXT", "RECORD"], ["TEXT", "TEXT"]],
        [["ID", "TEXT", "TEXT", "ID"], ["ID", "RECORD", "TEXT", "META"]],
        [["TEXT", "", "META", "TAGS", "RECORD"], ["TEXT", "a", "META", "", ""]],
        [["text", "a", "Id", "x"], ["text", "b", "Id", "y"]],
        [["text", "a"], ["TEXT", "b"]],
        [["TEXT", b"\xff\x00\r\n"], ["TEXT", b"$1\r\n"]],
        [["TEXT", "a" * 64], ["TEXT" + "x" * 64, "a"]],
        # Ids.
        [["ID", "a", "TEXT", "x"], ["ID", "a", "TEXT", "y"]],
        [["ID", "1", "TEXT", "x"], ["ID", "2", "TEXT", "y"]],
        [["ID", "old", "TEXT", "x"], ["ID", "new", "TEXT", "y"]],
        [["ID", "", "TEXT", "x"], ["ID", "0", "TEXT", "y"]],
        [["TEXT", "x", "ID", "2"], ["TEXT", "y"]],
        # Metadata and tags.
        [["TEXT", "a", "META", "f", "1", "META", "f", "2"], ["TEXT", "b", "META", "f", "1", "META", "g", "2"]],
        [["TEXT", "a", "META", "f", "1", "META", "g", "2", "META", "f", "3"]] * 2,
        [["TEXT", "a", "TAGS", "2", "t", "t"], ["TEXT", "b", "TAGS", "2", "u", ""]],
        [["TEXT", "a", "TAGS", "0"], ["TEXT", "b", "TAGS", "0"]],
        [["TEXT", "a", "TAGS", "1", "t"], ["TEXT", "b", "TAGS", "0"]],
        *[
            [["TAGS", count, "x", "TEXT", "a"]] * 2
            for count in ("01", "+1", "1 ", "001", "-1", "1.0", "\u0661", "1000")
        ],
        [["TAGS", "00", "TEXT", "a"]] * 2,
        [["TAGS", "9", "TEXT", "a"]] * 2,
        [["TEXT", "a", "TAGS", "1", "t", "TAGS", "1", "u"]] * 2,
        # Importance.
        *[
            [["TEXT", "a", "IMPORTANCE", "1"], ["TEXT", "b", "IMPORTANCE", x]]
            for x in (
                "-0",
                "0.0",
                "1e-400",
                "1e400",
                "nan",
                " 1",
                "1 ",
                "0x1",
                "inf",
                "-1e-9",
                "1_0",
                "",
                "1.0000001",
                ".5",
            )
        ],
        [["TEXT", "a", "IMPORTANCE", "-0"], ["TEXT", "b", "IMPORTANCE", "0"]],
        # What a plain note has not, or has twice.
        [["TEXT", "a", "TTL", "9"], ["TEXT", "b", "TTL", "9"]],
        [["TEXT", "a", "NX"], ["TEXT", "b", "NX"]],
        [["TEXT", "a", "TEXT", "b"]] * 2,
        [["ID", "a"], ["ID", "b"]],
        [["TEXT", "a", "WHAT", "x"]] * 2,
        [["TEXT", "a", "META", "f"]] * 2,
        [["TEXT"], ["TEXT"]],
        [["TEXT", "a", "VEC", vec(1, 0)]] * 2,
    ],
)
def test_spellings(tmp_path: Path, records: list[Words]) -> None:
    old: Step = madd(["ID", "old", "TEXT", "lake"])
    compare(tmp_path, [SEARCH, old, madd(*records), madd(*reversed(records))])


@pytest.mark.parametrize("count", [-1, 0, 1, 3, 4, 1 << 62, "x", "02"])
def test_counts_that_do_not_match(tmp_path: Path, count: Any) -> None:
    two = [["TEXT", "a"], ["TEXT", "b"]]
    compare(tmp_path, [SEARCH, madd(*two, count=count), [*madd(*two), "x"], [*madd(*two), "RECORD"], madd(*two)])


VECTORS = [
    *(vec(1, 0), vec(3, 4), vec(0, 0), vec(-0.0, 1), vec(float("nan"), 1), vec(float("inf"), 1), vec(3e38, 3e38)),
    *(vec(1e-45, 0), vec(0.6, 0.8), vec(1 + 2e-7, 0), vec(1 + 6e-7, 0), vec(1 - 6e-7, 0), vec(1, 2, 3), vec(1), b""),
    *(b"\x00" * 7, b"\x01\x00\xa0\x7f" + vec(1), b"\x00" * 8 * 40_000),
]


@pytest.mark.parametrize(
    "words",
    [
        *(
            ["DIM", 2, "METRIC", metric, "MODE", mode]
            for metric in ("COSINE", "L2", "IP")
            for mode in ("HYBRID", "VECTOR")
        ),
        ["MODE", "SEARCH"],
    ],
)
def test_vectors(tmp_path: Path, words: Words) -> None:
    steps: list[Step] = [["MEM.CREATE", "m", *words]]
    for vector in VECTORS:
        steps.append(madd(["TEXT", "a", "VEC", vec(0.8, 0.6)], ["TEXT", "b", "VEC", vector]))
        steps.append(madd(["TEXT", "a", "VEC", vector], ["TEXT", "b"]))
        steps.append(madd(["TEXT", "a", "VEC", vector], *[["TEXT", "b", "VEC", vec(0.6, 0.8)]] * 30))
    steps.append(notes(3))
    compare(tmp_path, steps)


def test_units_are_stored_as_one_by_one(tmp_path: Path) -> None:
    """Around the edge of what counts as a unit vector, where the order of a sum decides."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((180, 24))
    rows /= np.linalg.norm(rows, axis=1)[:, None]
    rows *= 1 + np.linspace(-4e-6, 4e-6, 180)[:, None]
    records = [["TEXT", "a", "VEC", row.astype("<f4").tobytes()] for row in rows]
    assert compare(tmp_path, [["MEM.CREATE", "m", "DIM", 24], madd(*records)]) == 1


@pytest.mark.parametrize("limit", [1, 2, 5, 6, 7, 20])
@pytest.mark.parametrize("on_loop", [0, 200])
def test_a_memory_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int, on_loop: int) -> None:
    """Also one that holds more than the limit, which came later."""
    monkeypatch.setattr(aside, "ON_LOOP", on_loop)
    monkeypatch.setattr(record_commands, "_AT_ONCE", 2)
    steps: list[Step] = [SEARCH, notes(4), ["CONFIG", "SET", "mem-max-records", limit], notes(3), notes(2), notes(1)]
    steps += [madd(["ID", "1", "TEXT", "over"], ["ID", "2", "TEXT", "over"])]
    compare(tmp_path, steps)


@pytest.mark.parametrize("on_loop", [0, 200])
def test_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_loop: int) -> None:
    monkeypatch.setattr(aside, "ON_LOOP", on_loop)
    monkeypatch.setattr(record_commands, "_AT_ONCE", 2)
    options = {"mem_max_text_bytes": "8", "mem_max_meta_bytes": "10", "mem_max_terms_per_doc": "2"}
    plain = ["TEXT", "a b c", "ID"]
    steps: list[Step] = [SEARCH]
    for place in range(5):
        for words in (
            ["TEXT", "a b c d e", "ID", f"t{place}"],
            [*plain, "i" * 11],
            [*plain, f"{place}" * 10],
        ):
            records = [[*plain, f"{place}{n}{len(words[-1])}"] for n in range(5)]
            records[place] = words
            steps.append(madd(*records))
    for size in range(5, 9):
        steps.append(madd([*plain, f"m{size}", "META", "f", "v" * size], [*plain, f"n{size}", "META", "f", "v"]))
        steps.append(
            madd([*plain, f"u{size}", "TAGS", "2", "t", "v" * size], [*plain, f"v{size}", "TAGS", "2", "t", "t"])
        )
    # What is no record at all is said first, whichever comes first.
    steps.append(
        madd([*plain, "i" * 11], *[[*plain, f"w{n}"] for n in range(5)], ["TEXT", "too long a text", "ID", "y"])
    )
    compare(tmp_path, steps, **options)


@pytest.mark.parametrize("on_loop", [0, 200])
@pytest.mark.parametrize(
    "before",
    [
        [["MEM.CREATE", "m", "MODE", "SEARCH", "HISTORY", "ALL"], notes(2), ["MEM.DEL", "m", "1"]],
        [["MEM.CREATE", "m", "MODE", "SEARCH", "MAXRECORDS", 4], notes(2)],
        [["MEM.CREATE", "m", "MODE", "SEARCH", "MAXBYTES", 900], notes(2)],
        [["MEM.CREATE", "m", "MODE", "VECTOR", "DIM", 2]],
        [["MEM.CREATE", "m", "MODE", "SEARCH", "LANG", "none"]],
        [SEARCH, ["MEM.FACT", "m", "ann", "likes", "tea"]],
        [SEARCH, ["MEM.ADD", "m", "ID", "2", "TEXT", "x", "PIN"]],
        [SEARCH, ["MEM.ADD", "m", "ID", "2", "TEXT", "x", "TTL", 5], later(9 * SECOND)],
        [SEARCH, ["MEM.ADD", "m", "ID", "2", "TEXT", "x", "TTL", 5], later(9 * SECOND), ["MEM.CARD", "m"]],
        [SEARCH, notes(4), ["EXPIRE", "m", 5], later(9 * SECOND)],
        [SEARCH, notes(9), ["MEM.DEL", "m", "3", "9"], ["COPY", "m", "c"], ["MEM.ADD", "c", "TEXT", "mine"]],
        [SEARCH, madd(["TEXT", ""], ["TEXT", "!"]), rewrite, restart, madd(["TEXT", ""], ["TEXT", "the"])],
        [HYBRID, notes(3, "VEC", vec(1, 0)), rewrite, restart],
        [SEARCH, notes(3), rewrite, restart, ["MEM.QUERY", "m", "TEXT", "lake", "DEDUP"]],
        [SEARCH, ["MEM.ADD", "m", "ID", "7", "TEXT", "x"], ["MEM.ADD", "m", "TEXT", "x", "DEDUP"]],
        [],
    ],
)
def test_memories(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, before: list[Step], on_loop: int) -> None:
    monkeypatch.setattr(aside, "ON_LOOP", on_loop)
    monkeypatch.setattr(record_commands, "_AT_ONCE", 3)
    steps: list[Step] = [*before, notes(7), notes(2), madd(["ID", "7", "TEXT", "x"], ["ID", "70", "TEXT", "y"])]
    steps += [
        notes(4, "IMPORTANCE", "0.25"),
        ["MEM.ADD", "m", "TEXT", "last"],
        ["MEM.ADD", "m", "TEXT", "Last", "DEDUP"],
    ]
    steps += [["MEM.SCAN", "m", 0, "COUNT", 99], ["MEM.QUERY", "m", "TEXT", "lake last"], rewrite, notes(4), restart]
    steps += [notes(3), ["MEM.GET", "m", "3", "WITHMETA"]]
    compare(tmp_path, steps)


@pytest.mark.parametrize("on_loop", [0, 200])
def test_in_a_transaction(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_loop: int) -> None:
    monkeypatch.setattr(aside, "ON_LOOP", on_loop)
    inside: list[Step] = [
        notes(3),
        madd(["ID", "2", "TEXT", "x"], ["ID", "3", "TEXT", "y"]),
        ["MEM.CARD", "m"],
        notes(1),
    ]
    steps: list[Step] = [SEARCH, ["MULTI"], *inside, ["EXEC"], ["WATCH", "m"], notes(2), ["MULTI"], *inside, ["EXEC"]]
    compare(tmp_path, [*steps, ["MULTI"], *inside, ["DEL", "m"], notes(2), ["EXEC"], notes(2)])


def test_a_long_command_is_read_in_a_thread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few records it has: a record may have very many fields."""
    monkeypatch.setattr(record_commands, "_READ_ON_LOOP", 20)
    fields = [word for number in range(9) for word in ("META", f"f{number}", "v")]
    assert compare(tmp_path, [SEARCH, notes(2, *fields), notes(2), notes(2, *fields, "TTL", "x")]) == 1


def random_records(rng: Random) -> list[Words]:
    """Mostly alike, mostly new."""
    options = [name for name in ("ID", "VEC", "META", "META", "TAGS", "IMPORTANCE") if rng.random() < 0.35]
    options.insert(rng.randint(0, len(options)), "TEXT")
    tags = rng.choice(["0", "1", "2", "2", "3"])
    fields = rng.choice([["f", "f"], ["f", "g"], ["TAGS", ""]])
    odd = rng.random() < 0.2

    def value(name: str, at: int) -> Words:
        if name == "ID":
            return [rng.choice(["1", "2", "old", "a"]) if rng.random() < 0.05 else f"i{rng.randint(0, 1 << 30)}"]
        if name == "VEC":
            return [rng.choice(VECTORS[:12]) if odd and rng.random() < 0.2 else vec(rng.random(), 1)]
        if name == "META":
            return [fields[at % 2], rng.choice(["1", "v", "RECORD"])]
        if name == "TAGS":
            return [tags, *(rng.choice(["t", "u", "TEXT"]) for _ in range(int(tags)))]
        if name == "IMPORTANCE":
            return [rng.choice(["0", "1", "0.3", "-0", "1e-3", "2"] if odd else ["0", "1", "0.3", "0.3"])]
        return [
            " ".join(
                rng.choices(["lake", "The", "reed", "user_id", "!", "caf\u00e9", "RECORD", ""], k=rng.randint(0, 6))
            )
        ]

    records = [
        [word for at, name in enumerate(options) for word in (name, *value(name, at))]
        for _ in range(rng.randint(1, 20))
    ]
    if odd and rng.random() < 0.5:
        rng.choice(records)[rng.choice([0, 1, -1])] = rng.choice(["TEXT", "RECORD", "text", "PIN"])
    return records


@pytest.mark.parametrize("seed", range(12))
def test_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    rng = Random(seed)
    monkeypatch.setattr(aside, "ON_LOOP", 9)
    monkeypatch.setattr(record_commands, "_AT_ONCE", 4)
    mode = [["MODE", "SEARCH"], ["DIM", 2], ["DIM", 2, "METRIC", "L2"], ["DIM", 2, "METRIC", "IP"]][seed % 4]
    steps: list[Step] = [["MEM.CREATE", "m", *mode]]
    for _ in range(50):
        others: list[Step] = [
            ["MEM.DEL", "m", str(rng.randint(1, 30))], ["MEM.EXPIRE", "m", str(rng.randint(1, 30)), 2], later(SECOND),
            ["MEM.ADD", "m", "ID", rng.choice(["old", "a", "9"]), "TEXT", "x"], ["MEM.QUERY", "m", "TEXT", "lake"],
            ["COPY", "m", f"c{rng.randint(0, 9)}"], rewrite, restart,
        ]  # fmt: skip
        steps.append(rng.choice(others) if rng.random() < 0.25 else madd(*random_records(rng)))
    assert compare(tmp_path, steps) > 10


def test_what_is_packed_is_what_the_puts_are() -> None:
    rng = Random(3)
    for _ in range(50):
        puts, put = [], PutNew(b"k\r\n", 5, rng.choice([1, 10_000]), 1_780_272_000_123)
        for number in range(rng.randint(1, 9)):
            meta = (b"f", b"v", b"", b"*3\r\n") * rng.randint(0, 1)
            tags = (b"t", b"")[: rng.randint(0, 2)]
            importance, counter = rng.choice([0.0, 0.5, 1.0, 5e-324, 1 / 3]), rng.choice([5, 5, 6 + number])
            record = (b"%d" % number, rng.randbytes(5), rng.choice([b"", vec(1, 0)]), meta, tags, importance)
            put.add(*record, counter)
            puts.append(Put(put.key, *record, put.at, put.at, 0, counter, put.max_words, put.at))
        assert b"".join(framed(encode_entries([put]), len(puts))) == encode_group(puts)


class Gate:
    """Holds up what is made aside once it is made, while it is closed."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self._open = threading.Event()
        self._made = threading.Semaphore(0)
        self.made = 0
        patch.setattr(aside, "joined", self)
        patch.setattr(aside, "ON_LOOP", 9)
        patch.setattr(record_commands, "_AT_ONCE", 4)

    def __call__(self, pieces: list[bytes]) -> bytes:
        self.made += 1
        self._made.release()
        assert self._open.wait(PATIENCE_S)
        return b"".join(pieces)

    def open(self) -> None:
        self._open.set()

    def wait(self) -> None:
        assert self._made.acquire(timeout=PATIENCE_S)


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Running]:
    with Running(clock=Clock(), dir=tmp_path, appendfsync="always") as server:
        yield server


def one_put(server: Running, record_id: bytes) -> Put:
    """As a write that had begun before: it does not wait."""
    memory, now = server.server.keyspace.memories[b"m"], server.clock()
    return Put(b"m", record_id, b"mine", b"", (), (), 0.5, now, now, 0, memory.next_id, 100, now)


@pytest.mark.parametrize("record_id", [b"other", b"6"])
@pytest.mark.parametrize("times", [1, 9])
def test_it_begins_again(kept: Running, monkeypatch: pytest.MonkeyPatch, record_id: bytes, times: int) -> None:
    """Of what there is then; the numbers go round the id that is there now. After some times the loop does it."""
    gate, wire = Gate(monkeypatch), kept.wire()
    counted = Counted(monkeypatch)
    wire("MEM.CREATE", "m", "MODE", "SEARCH")
    wire.send(*notes(20))
    gate.wait()
    made = counted.made
    assert made == 5
    left = [times]

    def again(pieces: list[bytes]) -> bytes:
        if left[0] > 1:
            left[0] -= 1
            on_loop(kept, lambda: kept.server.commit(one_put(kept, record_id)))
        return b"".join(pieces)

    monkeypatch.setattr(aside, "joined", again)
    on_loop(kept, lambda: kept.server.commit(one_put(kept, record_id)))
    gate.open()
    numbers = [number for number in range(1, 22) if b"%d" % number != record_id][:20]
    assert wire.read() == [b"%d" % number for number in numbers]
    assert counted.made == made + 5 * min(times, aside._TRIES)
    assert wire("MEM.CARD", "m") == 21
    before = held_by(kept)
    kept.restart()
    assert held_by(kept) == before


def test_a_rewrite_between(kept: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, wire, other = Gate(monkeypatch), kept.wire(), kept.wire()
    wire("MEM.CREATE", "m", "MODE", "SEARCH")
    wire("MEM.ADD", "m", "ID", "short", "TEXT", "x", "TTL", 1)
    wire.send(*notes(20))
    gate.wait()
    kept.clock.advance(2 * SECOND)
    rewrite(kept)
    assert other("MEM.QUERY", "m", "TEXT", "lake") == []
    gate.open()
    assert len(wire.read()) == 20
    assert wire("MEM.CARD", "m") == 20
    before = held_by(kept)
    kept.restart()
    assert held_by(kept) == before


def test_another_model_meanwhile(kept: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors that are as wide as the new one's are no vectors of it."""
    gate, wire = Gate(monkeypatch), kept.wire()
    wire("MEM.CREATE", "m", "DIM", 2)
    wire.send(*notes(20, "VEC", vec(1, 0)))
    gate.wait()
    memory = kept.server.keyspace.memories[b"m"]
    settings = replace(memory.settings, embedder="local", model="another")
    on_loop(kept, lambda: kept.server.commit(Switch(b"m", settings, kept.clock())))
    gate.open()
    assert "record" not in str(said := wire.read()) and "another model" in str(said)
    assert wire("MEM.CARD", "m") == 0


@pytest.mark.parametrize("how", ["DEL", "FLUSHALL"])
def test_the_key_goes_meanwhile(kept: Running, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    gate, wire = Gate(monkeypatch), kept.wire()
    wire("MEM.CREATE", "m", "MODE", "SEARCH")
    wire.send(*notes(20))
    gate.wait()
    on_loop(kept, lambda: kept.server.commit(Drop((b"m",)) if how == "DEL" else Flush()))
    gate.open()
    assert isinstance(wire.read(), WireError)
    assert wire("EXISTS", "m") == 0
