"""mem-audit: who read what."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from harness import JUNE, Clock, Running, Wire, flat_pairs


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Running]:
    with Running(
        clock=Clock(), dir=tmp_path, mem_audit="all", mem_audit_file=str(tmp_path / "audit.jsonl")
    ) as running:
        yield running


@pytest.fixture
def wire(server: Running) -> Wire:
    wire = server.wire()
    wire("CLIENT", "SETNAME", "ann")
    wire("MEM.CREATE", "k", "DIM", 2)
    wire("MEM.ADD", "k", "ID", "a", "TEXT", "secret plans", "FVEC", 2, 1, 0)
    wire("MEM.ADD", "k", "ID", "b", "TEXT", "secret tea", "FVEC", 2, 0, 1)
    return wire


def audit(wire: Wire, *words: object, key: str = "k") -> list[dict[str, Any]]:
    return [
        {name.decode(): value for name, value in flat_pairs(each).items()} for each in wire("MEM.AUDIT", key, *words)
    ]


READS = [
    (("MEM.GET", "k", "a"), "a", 1, None),
    (("MEM.GET", "k", "zz"), "zz", 0, None),
    (("MEM.MGET", "k", "a", "zz", "b"), "a zz b", 2, None),
    (("MEM.LIST", "k", "LIMIT", 1), "LIMIT 1", 1, None),
    (("MEM.SCAN", "k", 0), "0", 2, None),
    (("MEM.SEARCH", "k", "secret"), "secret", 2, b"keyword"),
    (("MEM.VSEARCH", "k", "FVEC", 2, 1, 0, "TOPK", 1), "FVEC .. TOPK 1", 1, b"vector"),
    (("MEM.QUERY", "k", "TEXT", "tea", "VEC", b"\0\0\0A" * 2, "WITHSTATS"), "TEXT tea VEC .. WITHSTATS", 2, b"hybrid"),
    (("MEM.EXPLAIN", "k", "a", "TEXT", "plans"), "a TEXT plans", 1, b"keyword"),
    (("MEM.FACTS", "k"), "", 0, None),
    (("MEM.ENTITIES", "k"), "", 0, None),
    (("MEM.PATHS", "k", "ann"), "ann", 0, None),
    (("DUMP", "k"), "", 1, None),
]


@pytest.mark.parametrize("words, query, results, tier", READS, ids=[read[0][0] for read in READS])
def test_a_read_is_kept(wire: Wire, words: tuple[object, ...], query: str, results: int, tier: bytes | None) -> None:
    """Who, from where, when, which memory, which words and what came of it; also within EXEC."""
    before = len(audit(wire))
    wire(*words)
    wire("MULTI")
    wire(*words)
    wire("EXEC")
    kept = audit(wire)
    assert len(kept) == before + 2
    for each in kept[:2]:
        assert each["accessor"] == b"default" and each["client"].endswith(b" ann")
        assert (each["memory"], each["command"]) == (b"k", str(words[0]).encode())
        assert (each["query"], each["results"], each["tier"]) == (query.encode(), results, tier)
        assert each["time"] == JUNE


def test_nothing_of_a_record_is_kept(wire: Wire, server: Running, tmp_path: Path) -> None:
    """Neither in memory nor in the file, whose lines are the entries."""
    for words, *_ in READS:
        wire(*words)
    told = audit(wire, "LIMIT", 100)
    server.stop()
    text = (tmp_path / "audit.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    assert len(lines) == len(told)
    for line, entry in zip(lines, reversed(told), strict=True):
        assert {name: v.decode() if isinstance(v, bytes) else v for name, v in entry.items()} == line
    assert "plans" in text  # a query's word
    assert "secret plans" not in text and "secret tea" not in text


def test_refused_reads_and_other_commands_are_not(wire: Wire) -> None:
    """A read that was refused read nothing; writes and what shows no record is not kept."""
    wire.error("MEM.GET", "k", "a", "NONSENSE")
    wire.error("MEM.QUERY", "no", "TEXT", "x")
    wire.error("MEM.QUERY", "k", "FVEC", 3, 1, 2, 3)
    for words in (("MEM.ADD", "k", "TEXT", "t"), ("MEM.INFO", "k"), ("MEM.CARD", "k"), ("MEM.AUDIT", "k")):
        wire(*words)
    assert audit(wire) == audit(wire, key="no") == []


def test_which_entries(wire: Wire, clock: Clock) -> None:
    """LIMIT, ACCESSOR and FROM; the newest first; those of a memory that is gone too."""
    for record in ("a", "b", "c"):
        wire("MEM.GET", "k", record)
        clock.advance(1_000)
    assert [each["query"] for each in audit(wire)] == [b"c", b"b", b"a"]
    assert [each["query"] for each in audit(wire, "LIMIT", 1)] == [b"c"]
    assert [each["query"] for each in audit(wire, "FROM", JUNE + 1_000)] == [b"c", b"b"]
    assert audit(wire, "ACCESSOR", "eve") == [] and len(audit(wire, "ACCESSOR", "default")) == 3
    wire("DEL", "k")
    assert len(audit(wire)) == 3
    assert wire.error("MEM.AUDIT", "k", "LIMIT", 0) == "ERR LIMIT must be between 1 and 1000"


def test_settings(wire: Wire) -> None:
    """Off by CONFIG SET, bounded by mem-audit-len; `others` leaves out whoever created the memory."""
    wire("CONFIG", "SET", "mem-audit-len", 2)
    for record in ("a", "b", "c"):
        wire("MEM.GET", "k", record)
    assert [each["query"] for each in audit(wire)] == [b"c", b"b"]
    for value in ("no", "others"):
        wire("CONFIG", "SET", "mem-audit", value)
        wire("MEM.GET", "k", "d")
    assert [each["query"] for each in audit(wire)] == [b"c", b"b"]


def test_long_and_hostile_words(wire: Wire) -> None:
    """They are cut, and stay on one line."""
    wire("MEM.SEARCH", "k", b"one\r\ntwo\x00\xff" + b"x" * 5_000, "FILTER", "f", "EQ", "y" * 5_000)
    (entry,) = audit(wire)
    assert len(entry["query"].decode()) <= 512
    assert entry["query"].startswith("one  two �x".encode())
    wire("MEM.VSEARCH", "k", "FVEC", 2, 1, 0)
    wire("MEM.QUERY", "k", "TEXT", "FVEC", "TOPK", 1)
    assert [each["query"] for each in audit(wire)[:2]] == [b"TEXT FVEC .. 1", b"FVEC .."]


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    """The server says so and does not start."""
    with (
        pytest.raises(OSError, match="nowhere"),
        Running(dir=tmp_path, mem_audit_file=str(tmp_path / "nowhere" / "audit.jsonl")),
    ):
        pass


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_file_that_cannot_be_written(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    """It is said once, the lines are counted as dropped, and no read fails or lands in the server's log."""
    with Running(mem_audit="all", mem_audit_file="/dev/full") as server:
        wire = server.wire()
        wire("MEM.CREATE", "k", "MODE", "SEARCH")
        for _ in range(3):
            assert wire("MEM.SEARCH", "k", "plans") == []
        assert len(audit(wire)) == 3
        server.stop()  # writes what waits
        assert server.server.audit.dropped == 3
    assert "plans" not in capfd.readouterr().err
    assert [record.message for record in caplog.records if "audit file" in record.message] == [
        "The audit file cannot be written ([Errno 28] No space left on device): lines are dropped"
        " (INFO audit_dropped counts them)"
    ]


def test_others_are_asked_for_by_memory(wire: Wire, server: Running) -> None:
    """Whoever names a memory of their own and covers another's has read that one."""
    wire("CONFIG", "SET", "mem-audit", "others")
    wire("MEM.CREATE", "k:hers", "DIM", 2)
    wire("MEM.ADD", "k:hers", "ID", "c", "TEXT", "secret", "FVEC", 2, 1, 0)
    memory = server.server.keyspace.memories[b"k:hers"]
    memory.settings = replace(memory.settings, owner="eve")
    wire("MEM.QUERY", "k", "TEXT", "secret", "CASCADE", "DOWN")
    wire("MEM.RECALL", "k", "TEXT", "secret", "ACROSS", 1, "k:hers")
    assert audit(wire) == []
    assert [each["command"] for each in audit(wire, key="k:hers")] == [b"MEM.RECALL", b"MEM.QUERY"]
