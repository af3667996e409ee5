"""`recalld export` and `recalld import`: what comes out goes in again as it was, and twice; else the line is named."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import HOUR, JUNE, SECOND, Clock, Process, Running, Wire, flat_pairs
from hypothesis import given
from hypothesis import strategies as st
from recalld.server import cli, portable, portable_export
from recalld.server.link import Failed, Link


def export(server: Running, path: Path, *words: str) -> int:
    return cli.main(["export", str(path), "--url", f"redis://127.0.0.1:{server.port}", *words])


def import_(server: Running, path: Path, *words: str) -> int:
    return cli.main(["import", str(path), "--url", f"redis://127.0.0.1:{server.port}", *words])


def maps(wire: Wire, key: bytes | str) -> list[dict[bytes, Any]]:
    """MEM.GET of every record, in SCAN's order."""
    cursor, ids = wire("MEM.SCAN", key, 0, "COUNT", 10_000)
    assert cursor == b"0"
    return [flat_pairs(wire("MEM.GET", key, record_id, "WITHMETA", "WITHVEC")) for record_id in ids]


def without_vectors(found: list[dict[bytes, Any]]) -> list[dict[bytes, Any]]:
    return [{name: value for name, value in record.items() if name != b"vector"} for record in found]


def vectors(found: list[dict[bytes, Any]]) -> Any:
    return [np.frombuffer(record[b"vector"] or b"", "<f4") for record in found]


def about(wire: Wire, key: bytes | str) -> list[Any]:
    """Settings, counter, time of creation and deadline."""
    info = flat_pairs(wire("MEM.INFO", key))
    return [wire("MEM.CONFIG", key), info[b"next_id"], info[b"created_at"], wire("PEXPIRETIME", key)]


# Round trips


words = st.one_of(st.text(max_size=12).map(lambda text: text.encode("utf-8", "replace")), st.binary(max_size=8))
metas = st.lists(st.tuples(words, words), max_size=3)
times = st.integers(-JUNE, 2 * JUNE)
numbers = st.floats(-100, 100, width=32)


@st.composite
def memories(draw: st.DrawFn) -> dict[str, Any]:
    mode = draw(st.sampled_from(["SEARCH", "VECTOR", "HYBRID"]))
    metric = draw(st.sampled_from(["COSINE", "L2", "IP"]))
    dim = draw(st.integers(1, 5))
    records = []
    for record_id in draw(st.lists(words, max_size=6, unique=True)):
        vector = np.array(draw(st.lists(numbers, min_size=dim, max_size=dim)), "<f4")
        if metric == "COSINE":
            vector[0] = abs(vector[0]) + 1
        has = mode == "VECTOR" or (mode == "HYBRID" and draw(st.booleans()))
        records.append(
            {
                "id": record_id,
                "text": draw(st.one_of(words, st.sampled_from([b"the wolf and user_id", b"wolves run", b"a door"]))),
                "vector": ["VEC", vector.tobytes()] if has else [],
                "meta": [word for pair in draw(metas) for word in ("META", *pair)],
                "tags": draw(st.lists(words, max_size=3)),
                "importance": draw(st.floats(0, 1)),
                "ttl": draw(st.one_of(st.none(), st.integers(1, 10**9))),
                "times": draw(st.lists(times, min_size=1, max_size=2)),
            }
        )
    options: list[Any] = ["MODE", mode, "METRIC", metric, "LANG", draw(st.sampled_from(["none", "english", "german"]))]
    options += [] if mode == "SEARCH" else ["DIM", dim]
    options += ["WEIGHTS", *draw(st.lists(st.floats(0, 1e9), min_size=4, max_size=4))]
    options += ["HALFLIFE", draw(st.integers(1, 10**12)), "FUSION", draw(st.sampled_from(["LINEAR", "RRF"]))]
    return {
        "key": draw(words),
        "options": options,
        "records": records,
        "dim": dim,
        "deadline": draw(st.one_of(st.none(), st.integers(JUNE + 1, 3 * JUNE))),
    }


def write(wire: Wire, memory: dict[str, Any]) -> None:
    key = memory["key"]
    wire("MEM.CREATE", key, *memory["options"])
    for record in memory["records"]:
        first: list[Any] = ["MEM.ADD", key, "ID", record["id"], "TEXT", record["text"]]
        first += [*record["vector"], *record["meta"]]
        first += ["TAGS", len(record["tags"]), *record["tags"], "IMPORTANCE", record["importance"]]
        first += ["TTL", record["ttl"]] if record["ttl"] else []
        wire(*first, "AT", record["times"][0])
        wire("MEM.ADD", key, "ID", record["id"], "TEXT", record["text"], "AT", record["times"][-1])
    ones = ["FVEC", memory["dim"], *[1] * memory["dim"]] if "DIM" in memory["options"] else []
    wire("MEM.ADD", key, "TEXT", "counted", *ones)
    if memory["deadline"]:
        wire("PEXPIREAT", key, memory["deadline"])


def replies(wire: Wire, memory: dict[str, Any]) -> list[bytes]:
    key, flags = memory["key"], ["WITHSCORES", "WITHMETA", "WITHTAGS", "WITHVEC", "EXPLAIN"]
    vector = ["FVEC", memory["dim"], *range(1, memory["dim"] + 1)]
    found = []
    if "VECTOR" not in memory["options"]:
        found += [wire.raw("MEM.SEARCH", key, text, *flags) for text in ("wolf", "user doors")]
    if "SEARCH" not in memory["options"]:
        found += [wire.raw("MEM.VSEARCH", key, *vector, *flags)]
    if "HYBRID" in memory["options"]:
        found += [wire.raw("MEM.QUERY", key, "TEXT", "wolf", *vector, *flags)]
    return found


@given(st.lists(memories(), max_size=3, unique_by=lambda memory: memory["key"]))
def test_what_goes_out_comes_in(server: Running, tmp_path_factory: pytest.TempPathFactory, found: list[Any]) -> None:
    """Any memories, exported, flushed, imported: the same records, settings, counters and replies. Again: no change."""
    wire = server.wire()
    wire("FLUSHALL")
    for memory in found:
        write(wire, memory)
    before = [(about(wire, memory["key"]), maps(wire, memory["key"]), replies(wire, memory)) for memory in found]
    folder = tmp_path_factory.mktemp("export")
    assert export(server, folder / "first") == 0
    wire("FLUSHALL")
    for again in (False, True):
        assert import_(server, folder / "first") == 0
        assert wire("DBSIZE") == len(found)
        for memory, (settings, records, answers) in zip(found, before, strict=True):
            assert about(wire, memory["key"]) == settings
            now = maps(wire, memory["key"])
            assert without_vectors(now) == without_vectors(records)
            assert now == records
            assert replies(wire, memory) == answers, f"imported {'twice' if again else 'once'}"
            for mine, theirs in zip(vectors(now), vectors(records), strict=True):
                assert (mine == theirs).all()
    wire.close()


def test_pages_and_a_terminal_less_run(server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """More records than a page holds, long texts among them; the counts are the last word, and no bar in a file."""
    wire = server.wire()
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    wire.pipeline(*[("MEM.ADD", "k", "TEXT", f"number {n} " * (4000 if n % 50 == 0 else 1)) for n in range(1234)])
    before = maps(wire, "k")
    assert export(server, tmp_path / "out") == 0
    assert capsys.readouterr().err == "exported: 1 memory, 1234 records\n"
    wire("DEL", "k")
    assert import_(server, tmp_path / "out") == 0
    assert maps(wire, "k") == before
    assert import_(server, tmp_path / "out") == 0
    assert capsys.readouterr().err == (
        "imported: 1 memory, 1234 records\nimported: 1 memory, 0 records (1234 there already)\n"
    )
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600


def test_only_keys_that_match(server: Running, tmp_path: Path) -> None:
    """--key takes a glob pattern."""
    wire = server.wire()
    for key in ("user:1", "user:2", "team:1"):
        wire("MEM.CREATE", key, "MODE", "SEARCH")
    assert export(server, tmp_path / "out", "--key", "user:*") == 0
    keys = [json.loads(line).get("memory") for line in (tmp_path / "out").read_text().splitlines()]
    assert keys == [None, "user:1", "user:2", None]


def test_the_lines_are_as_documented(server: Running, tmp_path: Path) -> None:
    """One JSON object per line; what is no UTF-8 is base64, and what a record lacks is left out."""
    wire = server.wire()
    wire("MEM.CREATE", "kö", "DIM", 2, "METRIC", "IP", "HALFLIFE", 60)
    wire("PEXPIREAT", "kö", JUNE + HOUR)
    wire("MEM.ADD", "kö", "TEXT", "a\nb", "FVEC", 2, 1, -2, "META", "b", 1, "META", "a", "ö", "TAGS", 1, "t", "TTL", 60)
    wire("MEM.ADD", "kö", "ID", b"\xff", "TEXT", b"\xfe", "META", b"\xfd", "x", "AT", 5)
    assert export(server, tmp_path / "out") == 0
    lines = [json.loads(line) for line in (tmp_path / "out").read_bytes().splitlines()]
    assert lines == [
        {"recalld": 2},
        {
            "memory": "kö",
            "settings": {
                "mode": "HYBRID",
                "dim": 2,
                "metric": "IP",
                "weights": {"keyword": 0.35, "vector": 0.5, "recency": 0.1, "importance": 0.05},
                "halflife": 60,
                "fusion": "LINEAR",
                "lang": "english",
                "k1": 0.9,
                "b": 0.4,
            },
            "next_id": 2,
            "created_at": JUNE,
            "deadline": JUNE + HOUR,
        },
        {
            "id": "1",
            "text": "a\nb",
            "vector": base64.b64encode(np.array([1, -2], "<f4").tobytes()).decode(),
            "meta": {"b": "1", "a": "ö"},
            "tags": ["t"],
            "importance": 0.5,
            "created_at": JUNE,
            "updated_at": JUNE,
            "deadline": JUNE + 60 * SECOND,
        },
        {
            "id": {"base64": "/w=="},
            "text": {"base64": "/g=="},
            "meta": [[{"base64": "/Q=="}, "x"]],
            "importance": 0.5,
            "created_at": 5,
            "updated_at": 5,
        },
        {"end": {"memories": 1, "records": 2}},
    ]


# Importing into what is there


@pytest.fixture
def exported(server: Running, tmp_path: Path) -> Path:
    """A file of the memory `k` with the records 1 (meta, tags) and 2, both of JUNE."""
    wire = server.wire()
    wire("MEM.CREATE", "k", "DIM", 2)
    wire("MEM.ADD", "k", "TEXT", "one", "META", "f", "old", "TAGS", 1, "t", "AT", JUNE, "FVEC", 2, 1, 3)
    wire("MEM.ADD", "k", "TEXT", "two", "AT", JUNE, "TTL", 100)
    assert export(server, tmp_path / "out") == 0
    return tmp_path / "out"


def test_the_later_update_wins(server: Running, exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record of the file replaces the whole of an older one; one that was updated later stands, others are left."""
    wire = server.wire()
    wire("MEM.ADD", "k", "ID", 1, "TEXT", "older", "META", "g", "new", "AT", JUNE - 1)
    wire("MEM.ADD", "k", "ID", 2, "TEXT", "newer", "AT", JUNE + 1)
    wire("MEM.ADD", "k", "ID", "other", "TEXT", "another")
    assert import_(server, exported) == 0
    assert capsys.readouterr().err.endswith("imported: 1 memory, 1 record (1 newer on the server)\n")
    by_id = {record[b"id"]: record for record in maps(wire, "k")}
    assert {record_id: record[b"text"] for record_id, record in by_id.items()} == {
        b"1": b"one",
        b"2": b"newer",
        b"other": b"another",
    }
    assert (by_id[b"1"][b"meta"], by_id[b"1"][b"tags"]) == ([b"f", b"old"], [b"t"])


def test_what_has_expired_stays_out(
    server: Running, clock: Clock, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record past its deadline is not brought back; before it, the deadline is kept to the second, rounded up."""
    wire = server.wire()
    wire("FLUSHALL")
    clock.advance(99_500)
    assert import_(server, exported) == 0
    assert maps(wire, "k")[1][b"pttl"] == b"1000"
    assert import_(server, exported) == 0
    assert capsys.readouterr().err.endswith("imported: 1 memory, 0 records (2 there already)\n")
    clock.advance(SECOND)
    assert import_(server, exported) == 0
    assert capsys.readouterr().err.endswith("imported: 1 memory, 0 records (1 there already, 1 expired meanwhile)\n")
    assert wire("MEM.CARD", "k") == 1


def test_a_memory_past_its_deadline_stays_out(server: Running, clock: Clock, exported: Path) -> None:
    """The key's deadline is a time: with it gone, nothing is made."""
    wire = server.wire()
    wire("EXPIRE", "k", 50)
    assert export(server, exported) == 0
    clock.advance(50 * SECOND)
    assert import_(server, exported) == 0
    assert wire("DBSIZE") == 0


def test_a_memory_that_is_there_keeps_its_settings(server: Running, exported: Path) -> None:
    """Without --replace it takes the records alone; with it, it becomes that of the file."""
    wire = server.wire()
    wire("MEM.CONFIG", "k", "HALFLIFE", 5)
    wire("MEM.ADD", "k", "ID", "other", "TEXT", "another")
    assert import_(server, exported) == 0
    assert flat_pairs(wire("MEM.CONFIG", "k"))[b"halflife"] == 5
    assert wire("MEM.CARD", "k") == 3
    assert import_(server, exported, "--replace") == 0
    assert flat_pairs(wire("MEM.CONFIG", "k"))[b"halflife"] == 604800
    assert wire("MEM.CARD", "k") == 2


def test_another_kind_of_memory_is_refused(
    server: Running, exported: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Mode, dim, metric and language must be those of the file."""
    wire = server.wire()
    wire("DEL", "k")
    wire("MEM.CREATE", "k", "DIM", 3)
    capsys.readouterr()
    assert import_(server, exported) == 1
    assert capsys.readouterr().err == (
        "recalld import: line 2: this memory is there with dim 3, not 2; --replace replaces it\n"
        "imported before that: 0 memories, 0 records\n"
    )


def test_an_id_twice_in_a_file(server: Running, exported: Path) -> None:
    """As an export has it whose record was deleted and written again meanwhile: nothing of the first is left."""
    lines = exported.read_text().splitlines()
    again = json.loads(lines[2]) | {"text": "again", "updated_at": JUNE + 5}
    del again["meta"]
    lines[3:] = [lines[3], json.dumps(again), '{"end":{"memories":1,"records":3}}', ""]
    exported.write_text("\n".join(lines))
    wire = server.wire()
    wire("FLUSHALL")
    assert import_(server, exported) == 0
    assert [(record[b"text"], record[b"meta"]) for record in maps(wire, "k")] == [(b"two", []), (b"again", [])]


def test_a_race_is_run_again(server: Running, exported: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record written between the look and the write is seen by a second look."""
    wire = server.wire()
    wire("MEM.DEL", "k", 1, 2)
    together, races = Link.together, iter([True, True])

    def raced(link: Link, commands: Any) -> Any:
        if next(races, False):
            wire("MEM.ADD", "k", "ID", 1, "TEXT", "newer", "AT", JUNE + 9)
        return together(link, commands)

    monkeypatch.setattr(Link, "together", raced)
    assert import_(server, exported) == 0
    assert {record[b"id"]: record[b"text"] for record in maps(wire, "k")} == {b"1": b"newer", b"2": b"two"}


# Files that are none


GOOD = {"id": "3", "text": "three", "created_at": 1, "updated_at": 2}
BAD: dict[str, tuple[str | bytes | dict[str, Any], str]] = {
    "no JSON": ('{"id": "3", "te', "not JSON at column 13: Unterminated string starting at"),
    "no UTF-8": (b'{"id": "\xff"}', "byte 9 is not UTF-8"),
    "an empty line": ("", "not JSON at column 1: Expecting value"),
    "no object": ("[1]", "not a JSON object"),
    "a field twice": ('{"id": "3", "id": "4"}', "an object names a field twice"),
    "NaN": ('{"importance": NaN}', "NaN is no JSON number"),
    "brackets": ("[" * 100_000, "not JSON that anybody exported"),
    "an unknown field": (GOOD | {"mood": "fact"}, "a field that this version does not know: mood"),
    "no id": ({"text": "x"}, "no id"),
    "no text": ({"id": "x"}, "no text"),
    "no time": ({"id": "3", "text": "three"}, "no created_at"),
    "a time that is a float": (GOOD | {"created_at": 1.5}, "created_at is no integer from -315576000000000 to .*"),
    "a time beyond all": (GOOD | {"updated_at": 10**15}, "updated_at is no integer from .*"),
    "a deadline of 0": (GOOD | {"deadline": 0}, "deadline is no integer from 1 to .*"),
    "an id that is a number": (GOOD | {"id": 3}, "id is neither a string nor base64"),
    "bad base64": (GOOD | {"text": {"base64": "a"}}, "text is no base64"),
    "half a pair": ('{"id": "\\ud800", "text": ""}', "id holds half a surrogate pair"),
    "importance 2": (GOOD | {"importance": 2}, "importance is no number from 0 to 1"),
    "importance true": (GOOD | {"importance": True}, "importance is no number from 0 to 1"),
    "a short vector": (GOOD | {"vector": "AACAPw=="}, "the vector has 4 bytes, a dim of 2 makes 8"),
    "a vector of zeros": (GOOD | {"vector": "AAAAAAAAAAA="}, "a zero vector has no direction to compare under COSINE"),
    "a vector with NaN": (GOOD | {"vector": "AADAfwAAgD8="}, "the vector contains NaN or infinity"),
    "meta that is a list": (GOOD | {"meta": ["a", "b"]}, r"meta is neither an object nor a list of \[field, value\]"),
    "meta with a number": (GOOD | {"meta": {"a": 1}}, "a value of meta is neither a string nor base64"),
    "a field of meta twice": (GOOD | {"meta": [["a", "b"], ["a", "c"]]}, "meta names a field twice"),
    "tags that are a word": (GOOD | {"tags": "a"}, "tags is no list"),
    "a memory without settings": ({"memory": "z"}, "no settings"),
    "a memory of klingon": ({"memory": "z", "settings": {"lang": "klingon"}}, 'the setting lang cannot be "klingon"'),
    "a wrong end": ({"end": {"memories": 1, "records": 7}}, "the file had .*7.* when it was written, .*2.*"),
    "a second header": ({"recalld": 1}, "a field that this version does not know: recalld"),
    "too long a text": (GOOD | {"text": "x" * 70_000}, "the server refused it: ERR text exceeds mem-max-text.*"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_line_is_named(
    server: Running, exported: Path, capsys: pytest.CaptureFixture[str], what: str
) -> None:
    """It stops there, says which line and why, and what stood above it is in."""
    bad, reason = BAD[what]
    line = bad if isinstance(bad, bytes) else (bad if isinstance(bad, str) else json.dumps(bad)).encode()
    lines = exported.read_bytes().splitlines()
    exported.write_bytes(b"\n".join([*lines[:4], line, *lines[4:], b""]))
    wire = server.wire()
    wire("FLUSHALL")
    capsys.readouterr()
    assert import_(server, exported) == 1
    said = capsys.readouterr().err
    assert re.fullmatch(f"recalld import: line 5: {reason}\nimported before that: 1 memory, 2 records\n", said), said
    assert wire("MEM.CARD", "k") == 2


def test_a_torn_file_is_named(server: Running, exported: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cut anywhere, it ends with 1 and says so; whole records above the cut are in."""
    whole = exported.read_bytes()
    wire = server.wire()
    for cut in [*range(0, len(whole) - 1, 23), *(at + 1 for at, byte in enumerate(whole[:-1]) if byte == 10)]:
        exported.write_bytes(whole[:cut])
        wire("FLUSHALL")
        capsys.readouterr()
        assert import_(server, exported) == 1
        said = capsys.readouterr().err
        assert re.match(r"recalld import: (line \d+: |the file ends after line \d+ without its last line)", said), said
        records = max(0, min(2, whole[:cut].count(b"\n") - 2))
        assert sum(wire("MEM.CARD", "k") for _ in range(wire("EXISTS", "k"))) in (records, records + 1)


@pytest.mark.parametrize(
    ("first", "reason"),
    [
        (b'{"recalld": 3}', "line 1: an export of format 3; this recalld reads formats 1 to 2"),
        (b'{"recalld": 0}', "line 1: an export of format 0; this recalld reads formats 1 to 2"),
        (b'{"memory": "k"}', 'line 1: not a recalld export: the first line is {"recalld": 2}'),
        (b'{"recalld": 1}\n{"id": "1", "text": ""}', "line 2: a record before the first memory"),
        (b'{"recalld": 1}\n{"end": {"memories": 0, "records": 0}}\n{}', "line 3: more behind the last line"),
    ],
)
def test_what_is_no_export_is_refused(
    server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str], first: bytes, reason: str
) -> None:
    """Of another format, or not in its order."""
    (tmp_path / "in").write_bytes(first)
    assert import_(server, tmp_path / "in") == 1
    assert capsys.readouterr().err.splitlines()[0] == f"recalld import: {reason}"


# The command line


def test_addresses(server: Running, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is no address is refused without showing it; a server that is not there is named; a password is sent."""
    for url in ("http://:secret@x", "redis://:secret@:1", "redis://x:secret", "redis://x/3"):
        assert cli.main(["export", str(tmp_path / "out"), "--url", url]) == 1
        said = capsys.readouterr().err
        assert "not an address" in said
        assert "secret" not in said
    with Running(clock=Clock(), requirepass="pa:ss") as locked:
        gone = locked.port
        url = f"redis://:pa%3Ass@127.0.0.1:{gone}"
        assert cli.main(["export", str(tmp_path / "out"), "--url", url]) == 0
        assert export(locked, tmp_path / "no") == 1
        assert "NOAUTH" in capsys.readouterr().err
    assert cli.main(["export", str(tmp_path / "no"), "--url", f"redis://127.0.0.1:{gone}"]) == 1
    assert f"cannot reach 127.0.0.1:{gone}: Connection refused" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [tmp_path / "out"]
    assert cli.main(["import", str(tmp_path / "no")]) == 1


def test_a_failed_export_leaves_the_old_file(server: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A good export is replaced by a whole one or not at all."""
    server.wire()("MEM.CREATE", "k", "MODE", "SEARCH")
    (tmp_path / "out").write_bytes(b"old")

    def fails(link: Link, key: bytes) -> Any:
        raise Failed("pulled the plug")

    monkeypatch.setattr(portable_export, "_records", fails)
    assert export(server, tmp_path / "out") == 1
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out", b"old")]


def test_through_pipes_of_real_processes(tmp_path: Path) -> None:
    """`export - | import -` from one server to another."""
    command = [sys.executable, "-m", "recalld.server"]
    with Process(tmp_path, "--appendonly", "no") as one, Process(tmp_path, "--appendonly", "no") as two:
        here, there = Wire(one.raw()), Wire(two.raw())
        here("MEM.CREATE", "k", "MODE", "SEARCH")
        here.pipeline(*[("MEM.ADD", "k", "TEXT", f"wolf {n}", "AT", JUNE) for n in range(300)])
        out = subprocess.Popen(
            [*command, "export", "-", "--url", f"redis://127.0.0.1:{one.port}"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        into = subprocess.run(
            [*command, "import", "-", "--url", f"redis://127.0.0.1:{two.port}"],
            stdin=out.stdout,
            stderr=subprocess.PIPE,
            check=False,
        )
        assert (out.wait(), into.returncode) == (0, 0)
        assert into.stderr == b"imported: 1 memory, 300 records\n"
        assert maps(there, "k") == maps(here, "k")


def test_help_says_what_import_does(capsys: pytest.CaptureFixture[str]) -> None:
    """The rule for records that are there is in --help."""
    with pytest.raises(SystemExit) as end:
        cli.main(["import", "--help"])
    assert end.value.code == 0
    assert "unless that was updated later" in " ".join(capsys.readouterr().out.split())


def test_a_bar_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a terminal a bar, cut to its width, is drawn and cleared; control characters of a key do not get there."""
    master, slave = os.openpty()
    stream = io.TextIOWrapper(os.fdopen(slave, "wb", 0), write_through=True)
    progress = portable.Progress(stream)
    progress.show(0.5, "evil \x1b]0;key")
    progress.clear()
    stream.close()
    drawn = b""
    with contextlib.suppress(OSError):  # EIO: all that was drawn has been read
        while some := os.read(master, 4096):
            drawn += some
    assert b"[###############               ]  50 %  evil ?]0;key" in drawn
    assert drawn.endswith(b"\r\x1b[K")
    os.close(master)


def test_an_export_among_writes(server: Running, tmp_path: Path) -> None:
    """While others add and delete, each record that is there throughout is in the file once."""
    wire, writer = server.wire(), server.wire()
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    wire.pipeline(*[("MEM.ADD", "k", "ID", f"stays {n}", "TEXT", "x") for n in range(500)])
    stop = threading.Event()

    def churn() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            writer.pipeline(("MEM.ADD", "k", "ID", "comes", "TEXT", "y"), ("MEM.DEL", "k", "comes", f"goes {number}"))

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert export(server, tmp_path / "out") == 0
    finally:
        stop.set()
        thread.join()
    ids = [json.loads(line).get("id") for line in (tmp_path / "out").read_text().splitlines()]
    assert sorted(each for each in ids if each and each != "comes") == sorted(f"stays {n}" for n in range(500))
    assert import_(server, tmp_path / "out") == 0
