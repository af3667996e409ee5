"""The same records give the same replies, byte for byte: whatever the order of writes, and however they came there.

What is written in another order, through MEM.MADD, in a transaction, beside records that have gone again, copied,
renamed, or read back from the append-only file must not be told apart by any read.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import DAY, JUNE, Clock, Process, Running, Wire, Word, flat_pairs

READS: list[tuple[Word, ...]] = [
    ("MEM.CARD", "ns"),
    ("MEM.CONFIG", "ns"),
    ("MEM.LIST", "ns", "LIMIT", 1000, "WITHMETA", "WITHVEC"),
    ("MEM.LIST", "ns", "FILTER", "n", "GTE", 3, "TAGS", "ANY", 1, "red"),
    ("MEM.SEARCH", "ns", "alpha gamma", "TOPK", 100, "WITHSCORES", "EXPLAIN"),
    ("MEM.VSEARCH", "ns", "FVEC", 3, 2, 1, "-0.3", "TOPK", 100, "WITHSCORES", "EXPLAIN"),
    *(
        ("MEM.QUERY", "ns", *words, "TOPK", 100, "WITHSCORES", "WITHMETA", "WITHVEC", "WITHTAGS", "EXPLAIN")
        for words in (
            ("TEXT", "alpha gamma", "FVEC", 3, 1, "0.1", 1),
            ("TEXT", "beta", "FVEC", 3, 1, "0.1", 1, "FUSION", "RRF"),
            ("TEXT", "beta delta", "FVEC", 3, 1, "0.1", 1, "DIVERSITY", "0.4"),
            ("FVEC", 3, "0.1", "0.2", "0.3", "FILTER", "n", "LT", 7),
        )
    ),
]


def records(seed: int = 1, count: int = 80) -> dict[str, list[Word]]:
    """id -> MEM.ADD's words: everything fixed, the time too. Vectors whose sum depends on the order in floats."""
    chance = random.Random(seed)
    found: dict[str, list[Word]] = {}
    for i in range(count):
        text = " ".join(chance.choices(("alpha", "beta", "gamma", "delta", "the"), k=chance.randint(0, 5)))
        words: list[Word] = ["TEXT", text, "AT", JUNE - chance.choice((0, 1, DAY, 90 * DAY))]
        words += ["META", "n", i % 10, "IMPORTANCE", round(chance.random(), 2)]
        if chance.random() < 0.8:
            words += ["FVEC", 3, *(chance.gauss(0, 1) * 10.0 ** chance.randint(-9, 9) for _ in range(3))]
        if chance.random() < 0.4:
            words += ["TAGS", 1, chance.choice(("red", "blue"))]
        found[f"m{i}"] = words
    return found


def create(wire: Wire) -> None:
    wire("MEM.CREATE", "ns", "DIM", 3)


def add(wire: Wire, written: dict[str, list[Word]]) -> None:
    for name, words in written.items():
        wire("MEM.ADD", "ns", "ID", name, *words)


def replies(wire: Wire, key: str = "ns") -> list[bytes]:
    """What `key` shows of its records; not its size in memory, its counter, nor its own times."""
    info = flat_pairs(wire("MEM.INFO", key))
    about = [info[name] for name in (b"records", b"vectors", b"terms", b"avg_doc_len")]
    shown = [wire.raw("MEM.GET", key, name, "WITHMETA", "WITHVEC") for name in records()]
    return [repr(about).encode(), *shown, *(wire.raw(command, key, *words) for command, _, *words in READS)]


@pytest.fixture
def expected(wire: Wire) -> list[bytes]:
    """The replies where all were written in order, one by one."""
    create(wire)
    add(wire, records())
    found = replies(wire)
    wire("FLUSHALL")
    create(wire)
    return found


@pytest.mark.parametrize("seed", range(5))
def test_order_of_writes(wire: Wire, expected: list[bytes], seed: int) -> None:
    shuffled = list(records().items())
    random.Random(seed).shuffle(shuffled)
    add(wire, dict(shuffled))
    assert replies(wire) == expected


def test_one_batch(wire: Wire, expected: list[bytes]) -> None:
    words = (word for name, given in records().items() for word in ("RECORD", "ID", name, *given))
    wire("MEM.MADD", "ns", len(records()), *words)
    assert replies(wire) == expected


def test_one_transaction(wire: Wire, expected: list[bytes]) -> None:
    """Queries inside it see what it has written so far, and reply as any others."""
    wire("MULTI")
    add(wire, records())
    for command, key, *words in READS:
        wire(command, key, *words)
    answers = wire("EXEC")
    assert replies(wire) == expected
    assert answers[len(records()) :] == [wire(*read) for read in READS]


def test_pipelined(wire: Wire, expected: list[bytes]) -> None:
    wire.pipeline(*(["MEM.ADD", "ns", "ID", name, *words] for name, words in records().items()))
    assert replies(wire) == expected


@pytest.mark.parametrize("seed", range(3))
def test_what_has_gone_leaves_no_trace(wire: Wire, clock: Clock, expected: list[bytes], seed: int) -> None:
    """Others added before, between and after, then deleted, forgotten or expired; each record overwritten first."""
    chance = random.Random(seed)
    others = {f"x{i}": words for i, words in enumerate(records(seed + 100, 300).values())}
    writes = [(name, words) for name, words in [*records().items(), *others.items()]]
    writes += [
        (name, ["TEXT", "alpha before", "FVEC", 3, 7, i, 1, "META", "old", 1]) for i, name in enumerate(records())
    ]
    chance.shuffle(writes)
    for name, words in writes:
        brief = ("TTL", 1) if name in others and int(name[1:]) % 3 == 0 else ()
        wire("MEM.ADD", "ns", "ID", name, *words, *brief)
    for name in others:
        if int(name[1:]) % 3 == 1:
            wire("MEM.DEL", "ns", name)
    clock.advance(1_000)
    wire("MEM.FORGET", "ns", "FILTER", "@id", "PREFIX", "x")
    wire("MEM.DEL", "ns", *records())
    add(wire, records())
    clock.advance(-1_000)
    assert replies(wire) == expected


def test_replacing_by_the_same_changes_nothing(wire: Wire, expected: list[bytes]) -> None:
    for _ in range(3):
        add(wire, records())
    assert replies(wire) == expected


def test_metadata_and_deadlines_that_come_and_go(wire: Wire, expected: list[bytes]) -> None:
    add(wire, records())
    for name in records():
        wire("MEM.SETMETA", "ns", name, "extra", "value")
        wire("MEM.EXPIRE", "ns", name, 1000)
    for name in records():
        wire("MEM.DELMETA", "ns", name, "extra")
        wire("MEM.EXPIRE", "ns", name, 0)
    assert replies(wire) == expected


def test_copies_and_new_names(wire: Wire, expected: list[bytes]) -> None:
    add(wire, records())
    wire("COPY", "ns", "twin")
    wire("MEM.CREATE", "other", "DIM", 3)
    wire("COPY", "ns", "other", "REPLACE")
    wire("RENAME", "ns", "new")
    assert [replies(wire, key) for key in ("twin", "other", "new")] == [expected] * 3


def test_dump_and_restore(wire: Wire, expected: list[bytes]) -> None:
    add(wire, records())
    payload = wire("DUMP", "ns")
    assert wire("RESTORE", "restored", 0, payload) == "OK"
    wire("FLUSHALL")
    wire("RESTORE", "again", 0, payload)
    assert replies(wire, "again") == expected
    assert wire("DUMP", "again") == payload


def test_a_copy_goes_its_own_way(wire: Wire, expected: list[bytes]) -> None:
    """Neither sees what is written to the other, to texts, vectors or statistics."""
    add(wire, records())
    wire("COPY", "ns", "twin")
    for name in records():
        wire("MEM.ADD", "twin", "ID", name, "TEXT", "alpha changed", "FVEC", 3, 1, 1, 1, "META", "n", 0)
    wire("MEM.FORGET", "twin", "FILTER", "n", "EQ", 0)
    wire("MEM.CONFIG", "twin", "K1", 2, "WEIGHTS", 1, 1, 1, 1)
    assert replies(wire) == expected
    assert wire("MEM.CARD", "twin") == 0


def test_other_memories_do_not_matter(wire: Wire, expected: list[bytes]) -> None:
    """They share a vocabulary with ours, perhaps, and nothing else."""
    for i in range(10):
        wire("MEM.CREATE", f"other{i}", "DIM", 3)
        wire("MEM.ADD", f"other{i}", "TEXT", "delta gamma beta alpha zeta", "FVEC", 3, 1, 2, 3)
    add(wire, records())
    wire("DEL", *(f"other{i}" for i in range(10)))
    assert replies(wire) == expected


# -- restarts


@pytest.fixture
def kept(running: Callable[..., Running], tmp_path: Path) -> Running:
    """A server with an append-only file."""
    server = running(clock=Clock(), dir=tmp_path, appendfsync="everysec")
    create(server.wire())
    return server


def everything(wire: Wire) -> list[bytes]:
    """All that a client can see, times, counters and cursors too."""
    found = [wire.raw("DBSIZE")]
    for key in sorted(wire("KEYS", "*")):
        info = flat_pairs(wire("MEM.INFO", key))
        found += [repr([pair for pair in info.items() if pair[0] != b"bytes"]).encode()]
        found += [wire.raw(command, key, *words) for command, _, *words in READS]
        found += [wire.raw("MEM.SCAN", key, 0, "COUNT", 1000), wire.raw("PEXPIRETIME", key)]
    return found


def churn(wire: Wire, clock: Clock, seed: int, count: int) -> None:
    """Every kind of write, over two keys."""
    chance = random.Random(seed)
    for name, words in records(seed, count).items():
        wire("MEM.ADD", "ns", "ID", name, *words)
        what = chance.randrange(10)
        if what == 0:
            wire("MEM.DEL", "ns", f"m{chance.randrange(count)}")
        elif what == 1:
            wire("MEM.SETMETA", "ns", name, "f", b"\r\n\x00\xff", "n", 99)
        elif what == 2:
            wire("MEM.EXPIRE", "ns", name, chance.choice((1, 1000)))
        elif what == 3:
            wire("MEM.ADD", "ns", "TEXT", "counted", "TTL", 5)
        elif what == 4:
            clock.advance(700)
        elif what == 5:
            wire("MEM.MADD", "ns", 2, "RECORD", *words, "RECORD", "ID", name, "TEXT", "again", "KEEPVEC")
        elif what == 6:
            wire("COPY", "ns", "twin", "REPLACE")
        elif what == 7:
            wire("MULTI")
            wire("MEM.ADD", "ns", "TEXT", "in a transaction")
            wire("MEM.FORGET", "ns", "FILTER", "n", "EQ", 3)
            wire("EXEC")
        elif what == 8:
            wire(
                "MEM.CONFIG", "ns", "HALFLIFE", chance.randrange(1, 10_000), "FUSION", chance.choice(("RRF", "LINEAR"))
            )
    wire("PEXPIRE", "ns", 123_456)
    wire("MEM.CREATE", "short", "MODE", "SEARCH", "LANG", "NONE", "K1", "1.5", "B", "0.1")
    wire("RENAME", "short", "renamed")


@pytest.mark.parametrize(("seed", "count"), [(0, 60), (1, 60), (2, 60), (3, 700)])
def test_a_restart_changes_no_reply(kept: Running, seed: int, count: int) -> None:
    clock = kept.clock
    assert isinstance(clock, Clock)
    wire = kept.wire()
    churn(wire, clock, seed, count)
    before = everything(wire)
    for _ in range(2):
        kept.restart()
        wire = kept.wire()
        assert everything(wire) == before
    ids = wire("MEM.ADD", "ns", "TEXT", "t"), wire("MEM.ADD", "ns", "TEXT", "t")
    assert int(ids[0]) + 1 == int(ids[1]), "the counter goes on"


def test_a_rewrite_changes_no_reply(kept: Running) -> None:
    """Neither at once nor after a restart; writes go on beside it."""
    clock = kept.clock
    assert isinstance(clock, Clock)
    wire = kept.wire()
    for seed in range(3):
        churn(wire, clock, seed, 100)
        wire("BGREWRITEAOF")
        add(wire, records(seed + 50, 40))
        before = everything(wire)
        while b"aof_rewrite_in_progress:1" in wire("INFO", "persistence"):
            pass
        assert everything(wire) == before
        kept.restart()
        wire = kept.wire()
        assert everything(wire) == before
        wire("DEL", "renamed")


def test_a_restart_keeps_exec_whole(kept: Running) -> None:
    wire = kept.wire()
    wire("MULTI")
    wire("MEM.CREATE", "new", "MODE", "SEARCH")
    wire("MEM.ADD", "new", "ID", "a", "TEXT", "t")
    wire("MEM.ADD", "absent", "ID", "a", "TEXT", "t")
    wire("RENAME", "new", "renamed")
    wire("EXEC")
    before = everything(wire)
    kept.restart()
    assert everything(kept.wire()) == before


def test_flushing_is_kept(kept: Running) -> None:
    wire = kept.wire()
    add(wire, records())
    wire("FLUSHALL")
    kept.restart()
    wire = kept.wire()
    assert wire("DBSIZE") == 0
    create(wire)
    assert wire("MEM.ADD", "ns", "TEXT", "t") == b"1"


def test_settings_that_changed_since_do_not_matter(kept: Running) -> None:
    """What a write meant when it was made is what it means when it is read back."""
    wire = kept.wire()
    wire("CONFIG", "SET", "mem-max-terms-per-doc", 2, "mem-default-weights", "4 3 2 1", "mem-max-text-bytes", 100_000)
    wire("MEM.CREATE", "new", "DIM", 3)
    wire("MEM.ADD", "new", "ID", "a", "TEXT", "alpha beta gamma delta")
    wire("MEM.ADD", "new", "ID", "b", "TEXT", "x" * 90_000)
    wire("CONFIG", "SET", "mem-max-terms-per-doc", 1024, "mem-default-weights", "1 1 1 1", "mem-max-text-bytes", 65_536)
    wire("MEM.SETMETA", "new", "a", "f", "v")
    before = everything(wire)
    assert wire("MEM.SEARCH", "new", "gamma") == []
    kept.restart()
    assert everything(kept.wire()) == before


@pytest.mark.parametrize("end", ["terminate", "kill"])
def test_a_process_keeps_what_it_answered(tmp_path: Path, end: str) -> None:
    """With `appendfsync always`, however it ends."""
    reads: list[tuple[Word, ...]] = [read for read in READS if read[0] != "MEM.QUERY"]
    with Process(tmp_path, "--appendonly", "yes", "--appendfsync", "always") as process:
        wire = process.wire()
        create(wire)
        add(wire, records())
        before = [wire.raw(*read) for read in reads]
        code = process.terminate() if end == "terminate" else process.kill()
        assert code == (0 if end == "terminate" else -9)
    with Process(tmp_path, "--appendonly", "yes") as process:
        wire = process.wire()
        assert [wire.raw(*read) for read in reads] == before
        assert process.terminate() == 0
