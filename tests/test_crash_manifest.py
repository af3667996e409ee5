"""The manifest, and what a folder holds at start: loaded, cleared up or refused, never half of a state."""

from __future__ import annotations

import errno
import os
import random

import pytest
from faulty_files import FaultyFiles
from hypothesis import given
from hypothesis import strategies as st
from recalld.server import incr
from recalld.server.entries import Flush
from recalld.server.files import Files, Locked
from recalld.server.incr import EMPTY_BYTES, LogDamaged
from recalld.server.manifest import Manifest, Survey, parse, survey, unnamed, write

DIR = "/data"
FOLDER = "/data/appendonlydir"
PREFIX = "appendonly.aof"
NAME = f"{FOLDER}/{PREFIX}.manifest"
MANIFEST = Manifest(PREFIX, 3, (7, 12))
TEXT = b"""\
file appendonly.aof.3.base.rcl seq 3 type b
file appendonly.aof.7.incr.aof seq 7 type i
file appendonly.aof.12.incr.aof seq 12 type i
"""


def put(files: FaultyFiles, name: str, data: bytes = b"x" * 1000) -> None:
    files.put(f"{FOLDER}/{name}", data)


def folder(*others: str, without: str = "") -> FaultyFiles:
    """A disk with the files of MANIFEST and `others`, none of them empty."""
    files = FaultyFiles()
    files.makedirs(FOLDER)
    files.put(NAME, TEXT)
    for name in (*MANIFEST.names, *others):
        put(files, name)
    if without:
        files.remove(f"{FOLDER}/{without}")
    return files


def look(files: Files, prefix: str = PREFIX) -> Survey:
    return survey(files, DIR, FOLDER, prefix)


def refused(files: FaultyFiles, match: str, prefix: str = PREFIX) -> None:
    before = files.image()
    with pytest.raises(LogDamaged, match=match):
        look(files, prefix)
    assert files.image() == before


# -- the text


def test_format_and_parse():
    """Redis's lines, base first; parse is the inverse."""
    assert MANIFEST.format() == TEXT
    assert parse(TEXT, NAME, PREFIX) == MANIFEST
    assert MANIFEST.names == [f"{PREFIX}.3.base.rcl", f"{PREFIX}.7.incr.aof", f"{PREFIX}.12.incr.aof"]


def test_a_rewrite_step_by_step():
    """A new incr file, then a base in place of all before it."""
    assert MANIFEST.with_incr(13) == Manifest(PREFIX, 3, (7, 12, 13))
    assert MANIFEST.with_incr(13).with_base(4, since=13) == Manifest(PREFIX, 4, (13,))


@given(
    st.text(st.characters(codec="utf-8", exclude_characters="\n/\\"), min_size=1, max_size=20),
    st.none() | st.integers(1, 10**17),
    st.sets(st.integers(1, 10**17), min_size=1, max_size=5),
)
def test_any_prefix_and_numbers(prefix, base, incrs):
    """Spaces and quotes in `appendfilename`, too."""
    manifest = Manifest(prefix, base, tuple(sorted(incrs)))
    assert parse(manifest.format(), "m", prefix) == manifest


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "line 1: it names no incr file"),
        (TEXT[:-1], "line 3: it has no end"),
        (TEXT.splitlines(True)[0], "line 2: it names no incr file"),
        (TEXT + b"\n", "line 4: '' is not `file NAME seq N type b|i`"),
        (TEXT + b"# a comment\n", "line 4: '# a comment' is not"),
        (TEXT + TEXT.splitlines(True)[0], "line 4: a second base, or one behind incr files"),
        (TEXT.splitlines(True)[0] + TEXT, "line 2: a second base"),
        (TEXT + TEXT.splitlines(True)[1], "line 4: the numbers of the incr files do not rise"),
        (TEXT + TEXT.splitlines(True)[2], "line 4: the numbers of the incr files do not rise"),
        (TEXT.replace(b"type b", b"type h"), r"line 1: a history file \(type h\)"),
        (TEXT.replace(b"file appendonly.aof.3", b"file ../appendonly.aof.3"), "line 1: the file of this number"),
        (TEXT.replace(b"base.rcl", b"base.rdb"), "line 1: the file of this number and type is called"),
        (TEXT.replace(b"seq 7", b"seq 8"), "line 2: the file of this number and type is called"),
        (TEXT.replace(b"seq 7", b"seq 07"), "line 2: .* is not `file"),
        (TEXT.replace(b"type i", b"type b", 1), "line 2: the file of this number and type is called"),
        (TEXT.replace(b"\n", b"\r\n"), "line 1: .* is not `file"),
        (TEXT.replace(b"7.incr", b"\xff.incr"), "line 2: the file of this number"),
    ],
)
def test_what_is_no_manifest_names_its_line(text, message):
    """Nothing is skipped, guessed or put in order."""
    with pytest.raises(LogDamaged, match=rf"{NAME} is damaged in {message}.*from a backup"):
        parse(text, NAME, PREFIX)


def test_every_flipped_bit_is_refused():
    """Each number stands there twice and everything else is fixed."""
    for at in range(len(TEXT)):
        for bit in range(8):
            flipped = bytearray(TEXT)
            flipped[at] ^= 1 << bit
            with pytest.raises(LogDamaged, match=NAME):
                parse(bytes(flipped), NAME, PREFIX)


# -- writing it


def test_a_power_cut_leaves_the_old_or_the_new_manifest():
    """Wherever it comes; and the new one once write returned."""
    new = MANIFEST.with_incr(13)
    seen = set()
    for op in ("open", "write", "sync", "rename", "sync_dir", None):
        for seed in range(20):
            files = folder()
            if op is not None:
                files.fail(op, errno.EIO)
                with pytest.raises(OSError):
                    write(files, FOLDER, new)
            else:
                write(files, FOLDER, new)
            after = parse(files.crash(random.Random(seed)).read(NAME)[:], NAME, PREFIX)
            assert after == new if op is None else after in (MANIFEST, new)
            seen.add((op, after == new))
    assert ("sync_dir", True) in seen
    assert ("sync_dir", False) in seen
    assert ("rename", True) not in seen


# -- at start


def test_nothing_is_fresh():
    """No folder, an empty one, one with a lock and files that are none of ours."""
    files = FaultyFiles()
    assert look(files) == Survey("fresh", Manifest(PREFIX))
    files.makedirs(FOLDER)
    assert look(files).kind == "fresh"
    put(files, "lock", b"77\n")
    put(files, "README")
    assert look(files) == Survey("fresh", Manifest(PREFIX))


def test_all_parts_there():
    """The manifest, no leftovers; files of others are let be."""
    files = folder("lock", "notes.txt", f"{PREFIX}.7.incr.aof.before-fix-1", "other.aof.1.incr.aof")
    assert look(files) == Survey("parts", MANIFEST)


@pytest.mark.parametrize("name", [f"temp-{PREFIX}.manifest", "temp-77.rcl"])
def test_temp_files_are_leftovers(name):
    """With or without a manifest."""
    assert look(folder(name)).leftovers == [f"{FOLDER}/{name}"]
    files = FaultyFiles()
    put(files, name)
    assert look(files) == Survey("fresh", Manifest(PREFIX), None, [f"{FOLDER}/{name}"])


def test_what_a_crash_in_a_rewrite_leaves():
    """A base of before or of next, an incr file of before, a next one without a group."""
    names = [f"{PREFIX}.2.base.rcl", f"{PREFIX}.4.base.rcl", f"{PREFIX}.6.incr.aof"]
    files = folder(*names)
    put(files, f"{PREFIX}.13.incr.aof", b"x" * EMPTY_BYTES)
    found = look(files)
    assert found.kind == "parts"
    assert sorted(found.leftovers) == sorted(f"{FOLDER}/{name}" for name in [*names, f"{PREFIX}.13.incr.aof"])


@pytest.mark.parametrize("name", MANIFEST.names)
def test_a_missing_part_is_refused(name):
    """Base or incr: named, with what to do."""
    refused(folder(without=name), f"{name} is missing, which .*manifest names.*backup")


def test_a_missing_manifest_is_refused():
    """Beside any file of the log, also where only one is left, or the base of Redis."""
    refused(folder(without=f"{PREFIX}.manifest"), "manifest is missing, though .*base.rcl is there|incr.aof is there")
    for name in (*MANIFEST.names, f"{PREFIX}.1.base.rdb", f"{PREFIX}.1.base.aof"):
        files = FaultyFiles()
        put(files, name)
        refused(files, "manifest is missing, though")


def test_another_appendfilename_is_refused():
    """Not taken for an empty folder."""
    refused(folder(), "Was appendfilename another one", prefix="memory.aof")


def test_a_folder_of_redis_is_refused():
    """Its manifest names a base that is none."""
    files = FaultyFiles()
    put(files, f"{PREFIX}.manifest", b"file appendonly.aof.1.base.rdb seq 1 type b\n")
    refused(files, "line 1: the file of this number and type is called")


@pytest.mark.parametrize("seq", [8, 13])
def test_a_manifest_of_other_files_is_refused(seq):
    """An incr file with groups that it does not name, later than its first: no crash leaves that."""
    refused(folder(f"{PREFIX}.{seq}.incr.aof"), f"does not name {PREFIX}.{seq}.incr.aof beside it")


def test_a_truncated_manifest_is_refused():
    """At any byte, line ends included: what it no longer names is there."""
    for size in range(len(TEXT)):
        files = folder()
        files.put(NAME, TEXT[:size])
        refused(files, "damaged in line|does not name")


def test_a_crash_at_the_first_start():
    """The first incr file without a group, or a part of its header, and no manifest: begin again."""
    for size in (0, 20, EMPTY_BYTES):
        files = FaultyFiles()
        put(files, f"{PREFIX}.1.incr.aof", b"x" * size)
        # No leftover: the next try gives this name to its own file.
        assert look(files) == Survey("fresh", Manifest(PREFIX))
    put(files, f"{PREFIX}.1.incr.aof", b"x" * (EMPTY_BYTES + 1))
    refused(files, "manifest is missing")


def test_a_first_start_survives_a_power_cut_anywhere():
    """Whatever is left, the next start has nothing or the parts, and refuses nothing."""
    kinds = set()
    for seed in range(60):
        rng = random.Random(seed)
        files = FaultyFiles()
        steps = [
            lambda files=files: files.makedirs(FOLDER),
            lambda files=files: incr.create(files, f"{FOLDER}/{PREFIX}.1.incr.aof"),
            lambda files=files: files.sync_dir(FOLDER),
            lambda files=files: write(files, FOLDER, Manifest(PREFIX, None, (1,))),
        ]
        for step in steps[: rng.randrange(5)]:
            step()
        kinds.add(look(files.crash(rng)).kind)
    assert kinds == {"fresh", "parts"}


def test_format_1():
    """The one file; what a crash in the migration leaves; and beside a manifest, which wins."""
    files = FaultyFiles()
    files.put(f"{DIR}/{PREFIX}", b"old")
    assert look(files) == Survey("format 1", Manifest(PREFIX), f"{DIR}/{PREFIX}")
    put(files, f"{PREFIX}.1.base.rcl")
    put(files, f"{PREFIX}.1.incr.aof", b"x" * EMPTY_BYTES)
    assert look(files) == Survey("format 1", Manifest(PREFIX), f"{DIR}/{PREFIX}")
    put(files, f"{PREFIX}.manifest", Manifest(PREFIX, 1, (1,)).format())
    assert look(files) == Survey("parts", Manifest(PREFIX, 1, (1,)), f"{DIR}/{PREFIX}")
    files.remove(NAME)
    put(files, f"{PREFIX}.1.incr.aof", b"x" * 1000)
    refused(files, "manifest is missing")


def test_a_folder_with_the_name_of_the_file_of_format_1():
    """appenddirname and appendfilename may be the same word; the folder is not set aside for the old file."""
    files = FaultyFiles()
    place = f"{DIR}/{PREFIX}"
    files.makedirs(place)
    assert survey(files, DIR, place, PREFIX) == Survey("fresh", Manifest(PREFIX))
    files.put(f"{place}/{PREFIX}.manifest", Manifest(PREFIX, None, (1,)).format())
    files.put(f"{place}/{PREFIX}.1.incr.aof", b"")
    assert survey(files, DIR, place, PREFIX) == Survey("parts", Manifest(PREFIX, None, (1,)))


def test_a_prefix_that_looks_like_a_temp_file():
    """appendfilename temp-x: its files are no leftovers."""
    files = FaultyFiles()
    manifest = Manifest("temp-x", None, (1,))
    put(files, "temp-x.manifest", manifest.format())
    put(files, "temp-x.1.incr.aof")
    assert look(files, "temp-x") == Survey("parts", manifest)
    files.remove(f"{FOLDER}/temp-x.manifest")
    refused(files, "manifest is missing", prefix="temp-x")


def test_unnamed():
    """Paths that may go, names that may not."""
    files = folder(f"{PREFIX}.1.incr.aof", f"{PREFIX}.9.incr.aof")
    assert unnamed(files, FOLDER, MANIFEST) == ([f"{FOLDER}/{PREFIX}.1.incr.aof"], [f"{PREFIX}.9.incr.aof"])


# -- the real disk


def test_the_lock_names_its_holder(tmp_path):
    """A second one is refused until the first lets go."""
    files, path = Files(), str(tmp_path / "lock")
    lock = files.lock(path)
    with pytest.raises(Locked, match=rf"lock is held by another process \(pid {os.getpid()}\)"):
        files.lock(path)
    with pytest.raises(Locked):
        files.lock(path, write_pid=False)
    lock.release()
    files.lock(path).release()


def test_a_survey_of_real_files(tmp_path):
    """The same on the system's disk."""
    files, place = Files(), tmp_path / "deep" / "er" / "appendonlydir"
    files.makedirs(str(place))
    writer = incr.create(files, str(place / f"{PREFIX}.1.incr.aof"))
    write(files, str(place), Manifest(PREFIX, None, (1,)))
    writer.write([incr.encode_group([Flush()])])
    writer.sync()
    writer.close()
    (place / "temp-1.rcl").write_bytes(b"half a base")
    found = survey(files, str(place.parent), str(place), PREFIX)
    assert found == Survey("parts", Manifest(PREFIX, None, (1,)), None, [str(place / "temp-1.rcl")])
    files.remove(found.leftovers[0])
    files.sync_dir(str(place))
    assert files.listdir(str(place)) == [f"{PREFIX}.1.incr.aof", f"{PREFIX}.manifest"]
    files.copy(str(place / f"{PREFIX}.1.incr.aof"), str(place / "copy"))
    assert files.read(str(place / "copy"))[:] == files.read(str(place / f"{PREFIX}.1.incr.aof"))[:]
    with pytest.raises(FileExistsError):
        files.copy(str(place / "copy"), str(place / "copy"))
    new = files.create(str(place / "copy"))
    new.write(b"a" * 10)
    new.write(memoryview(b"b" * (1 << 20)))
    new.write(b"c")
    new.sync()
    new.close()
    assert files.read(str(place / "copy"))[:] == b"a" * 10 + b"b" * (1 << 20) + b"c"
