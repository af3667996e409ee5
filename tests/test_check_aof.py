"""`recalld check-aof`: what it says of whole, torn and damaged logs, and that --fix loses no byte of them."""

from __future__ import annotations

import contextlib
import errno
import random

import pytest
from faulty_files import FaultyFiles
from recalld.index.settings import Settings
from recalld.server import check_aof, incr
from recalld.server.base import freeze, write_base
from recalld.server.check_aof import check
from recalld.server.entries import Create, Entry, Flush, Put
from recalld.server.files import Files, Locked
from recalld.server.incr import EMPTY_BYTES, IncrReader
from recalld.server.keyspace import Keyspace
from recalld.server.manifest import Manifest, incr_name, survey, write

DIR = "/data"
FOLDER = "/data/appendonlydir"
PREFIX = "appendonly.aof"
BASE = f"{FOLDER}/{PREFIX}.3.base.rcl"
FIRST, SECOND = (f"{FOLDER}/{incr_name(PREFIX, seq)}" for seq in (7, 8))
MANIFEST = Manifest(PREFIX, 3, (7, 8))

Group = list[Entry]


def put(record_id: bytes) -> Put:
    return Put(b"k", record_id, b"the lake is cold", b"", (), (b"t",), 0.25, 5, 5, 0, 1, 100, 5)


FLUSHES: list[list[Group]] = [
    [[put(b"1")], [put(b"2"), put(b"3")]],
    [[put(b"4")]],
    [[put(b"5")], [Flush()]],
]


def build(files: Files, folder: str) -> list[int]:
    """Write a log of a base and two incr files, both of FLUSHES; where the flushes of each end."""
    keyspace = Keyspace()
    keyspace.apply(Create(b"k", Settings(mode="SEARCH"), 1))
    keyspace.apply(put(b"0"))
    files.makedirs(folder)
    file = files.create(f"{folder}/{PREFIX}.3.base.rcl")
    write_base(file, [freeze(b"k", keyspace.memories[b"k"], 0, 5)], keyspace.vocabulary)
    file.sync()
    file.close()
    for seq in MANIFEST.incrs:
        writer = incr.create(files, f"{folder}/{incr_name(PREFIX, seq)}", b"%016d" % seq)
        ends = [writer.size]
        for groups in FLUSHES:
            writer.write(map(incr.encode_group, groups))
            ends.append(writer.size)
        writer.sync()
        writer.close()
    write(files, folder, MANIFEST)
    return ends


@pytest.fixture
def files() -> FaultyFiles:
    files = FaultyFiles()
    build(files, FOLDER)
    return files


ENDS = build(FaultyFiles(), FOLDER)
SIZE = ENDS[-1]


def damage(files: FaultyFiles, path: str, at: int) -> None:
    data = bytearray(files.read(path)[:])
    data[at] ^= 4
    files.put(path, bytes(data))


def groups_of(files: Files, path: str) -> list[Group]:
    return [group for _, group in IncrReader(files.read(path), path, last=True)]


def flat(flushes: list[list[Group]]) -> list[Group]:
    return [group for groups in flushes for group in groups]


def test_a_whole_log(files, capsys):
    """One line per file; both names of the folder; nothing changes."""
    before = files.image()
    for path in (DIR, FOLDER):
        assert check(files, path, fix=False) == 0
        size = len(files.read(BASE))
        assert capsys.readouterr().out.splitlines() == [
            f"{FOLDER}/{PREFIX}.manifest: names 3 files",
            f"{BASE}: base, 1 memories, 1 records, {size} bytes, whole",
            f"{FIRST}: 5 groups, 6 entries, {SIZE} bytes, whole",
            f"{SECOND}: 5 groups, 6 entries, {SIZE} bytes, whole",
            "",
            "The log is whole.",
        ]
    assert files.image() == before
    assert check(files, DIR, fix=True) == 0
    assert {path: data for path, data in files.image().items() if not path.endswith("/lock")} == before


def test_a_folder_of_another_name(capsys):
    """appenddirname: found in DIR, or given itself; what else is in DIR does not matter."""
    files = FaultyFiles()
    folder = f"{DIR}/a log"
    build(files, folder)
    files.makedirs(f"{DIR}/appendonlydir")
    for name in ("empty", "notes/appendonly.aof.9.incr.aof.d", "site/site.manifest"):
        files.put(f"{DIR}/{name}", b"")
    for path in (DIR, folder):
        assert check(files, path, fix=False) == 0
        assert f"{folder}/{PREFIX}.manifest: names 3 files" in capsys.readouterr().out
    damage(files, f"{folder}/{incr_name(PREFIX, 8)}", ENDS[2])
    assert check(files, DIR, fix=False) == 1
    assert check(files, DIR, fix=True) == 0
    assert files.exists(f"{folder}/{incr_name(PREFIX, 8)}.before-fix-1")
    files.remove(f"{folder}/{PREFIX}.manifest")
    capsys.readouterr()
    assert check(files, DIR, fix=False) == 1
    assert f"{folder}: its manifest is missing" in capsys.readouterr().out


def test_several_folders_with_a_log(files, capsys):
    """The default name is meant, and the others are named; without it, none is, until one is given itself."""
    build(files, f"{DIR}/backup")
    before = files.image()
    assert check(files, DIR, fix=False) == 0
    said = capsys.readouterr()
    assert f"{FOLDER}/{PREFIX}.manifest: names 3 files" in said.out
    assert said.err == f"{DIR}/backup holds a log, too, and is not looked at\n"
    assert check(files, f"{DIR}/backup", fix=False) == 0
    assert capsys.readouterr().err == ""
    for path in before:
        if path.startswith(FOLDER):
            files.remove(path)
    build(files, f"{DIR}/new")
    before = files.image()
    assert check(files, DIR, fix=True) == 2
    said = capsys.readouterr()
    assert said.err == f"{DIR} holds several logs: say which of {DIR}/backup, {DIR}/new\n"
    assert said.out == ""
    assert files.image() == before


def test_cut_at_every_byte(files, capsys):
    """A torn tail: said with what it loses, then cut, the copy beside it."""
    whole = files.read(SECOND)[:]
    for size in range(SIZE):
        files.put(SECOND, whole[:size])
        flushes = sum(end <= size for end in ENDS) - 1
        keep = ENDS[flushes] if flushes >= 0 else 0
        code = check(files, DIR, fix=False)
        out = capsys.readouterr().out
        if size in ENDS:
            assert code == 0
            continue
        assert code == 1
        assert f"{SECOND}: torn at offset {keep}: it ends in the middle of a write" in out
        assert f"lost by cutting there: {size - keep} bytes" in out
        assert files.read(SECOND)[:] == whole[:size]

        assert check(files, DIR, fix=True) == 0
        assert f"{SECOND}: cut at offset {keep}, {size - keep} bytes lost" in capsys.readouterr().out
        assert groups_of(files, SECOND) == flat(FLUSHES[: max(flushes, 0)])
        copy = f"{SECOND}.before-fix-1"
        assert files.read(copy)[:] == whole[:size]
        files.remove(copy)
        assert check(files, DIR, fix=False) == 0
        capsys.readouterr()


def test_every_damaged_byte_of_the_first_incr_file(files, capsys):
    """Reported with its offset; --fix cuts before it, drops the file behind it, and keeps both byte for byte."""
    before = files.image()
    for at in range(SIZE):
        for path, data in before.items():
            files.put(path, data)
        damage(files, FIRST, at)
        damaged = files.image()
        assert check(files, DIR, fix=False) == 1
        out = capsys.readouterr().out
        keep = max((end for end in ENDS if end <= at), default=0)
        assert f"{FIRST}: damaged at offset " in out
        assert f"lost by cutting there: {SIZE - keep} bytes" in out
        assert "The files behind it go with the cut: 1 with 6 entries." in out
        assert {path: files.image()[path] for path in damaged} == damaged

        assert check(files, DIR, fix=True) == 0
        capsys.readouterr()
        assert groups_of(files, FIRST) == flat(FLUSHES[: ENDS.index(keep) if keep else 0])
        assert not files.exists(SECOND)
        for path in (FIRST, SECOND):
            assert files.read(f"{path}.before-fix-1")[:] == damaged[path]
            files.remove(f"{path}.before-fix-1")
        found = survey(files, DIR, FOLDER, PREFIX)
        assert (found.manifest, found.leftovers) == (Manifest(PREFIX, 3, (7,)), [])


@pytest.mark.parametrize(("at", "entries"), [(20, 6), (EMPTY_BYTES + 30, 3), (ENDS[1] - 3, 6), (ENDS[2] - 3, 3)])
def test_whole_entries_behind_the_damage_are_counted(files, capsys, at, entries):
    """Those of later flushes whose checksums hold, and those before the bad place that go with their flush."""
    damage(files, SECOND, at)
    assert check(files, DIR, fix=False) == 1
    assert f"among them {entries} whole entries" in capsys.readouterr().out


def test_a_torn_file_that_is_not_the_last_is_damage(files, capsys):
    """A hole in the log: what follows it goes as well."""
    data = files.read(FIRST)[:]
    files.put(FIRST, data[:-1])
    assert check(files, DIR, fix=False) == 1
    assert "in the middle of a write, and another file follows it" in capsys.readouterr().out
    assert check(files, DIR, fix=True) == 0
    assert groups_of(files, FIRST) == flat(FLUSHES[:2])
    assert survey(files, DIR, FOLDER, PREFIX).manifest == Manifest(PREFIX, 3, (7,))


@pytest.mark.parametrize(("path", "incrs"), [(FIRST, (7,)), (SECOND, (7, 8))])
def test_a_missing_incr_file(files, capsys, path, incrs):
    """The log ends there; an empty one takes its place."""
    files.remove(path)
    assert check(files, DIR, fix=False) == 1
    assert f"{path}: missing" in capsys.readouterr().out
    assert check(files, DIR, fix=True) == 0
    assert survey(files, DIR, FOLDER, PREFIX).manifest == Manifest(PREFIX, 3, incrs)
    assert groups_of(files, path) == []
    assert check(files, DIR, fix=False) == 0


def test_incr_files_that_the_manifest_does_not_name(files, capsys):
    """The server refuses them; --fix sets them aside."""
    data = files.read(SECOND)[:]
    write(files, FOLDER, Manifest(PREFIX, 3, (7,)))
    assert check(files, DIR, fix=False) == 1
    assert f"{SECOND}: not in the manifest, 6 entries, {SIZE} bytes" in capsys.readouterr().out
    assert check(files, DIR, fix=True) == 0
    assert files.read(f"{SECOND}.before-fix-1")[:] == data
    assert check(files, DIR, fix=False) == 0


@pytest.mark.parametrize("fix", [False, True])
def test_what_cutting_cannot_mend(files, capsys, fix):
    """Base or manifest damaged or missing: said, and no byte touched, whatever the incr files are."""
    damage(files, SECOND, 200)
    start = files.image()

    def refused(match: str) -> None:
        before = files.image()
        assert check(files, DIR, fix=fix) == 1
        out = capsys.readouterr().out
        assert match in out
        assert "Cutting cannot mend this. Nothing was changed: restore the folder from a backup." in out
        assert {path: files.image()[path] for path in before} == before
        for path, data in start.items():
            files.put(path, data)

    damage(files, BASE, 100)
    refused(f"{BASE} is damaged ")
    files.remove(BASE)
    refused(f"{BASE}: missing")
    files.remove(f"{FOLDER}/{PREFIX}.manifest")
    refused("its manifest is missing")
    damage(files, f"{FOLDER}/{PREFIX}.manifest", 3)
    refused("manifest is damaged in line 1")
    files.put(f"{FOLDER}/other.manifest", b"")
    refused("it holds the manifests of several logs")


def test_leftovers_are_no_damage(files, capsys):
    """The next start removes them."""
    files.put(f"{FOLDER}/temp-9.rcl", b"half a base")
    assert check(files, DIR, fix=False) == 0
    assert f"{FOLDER}/temp-9.rcl: left by a crash, the next start removes it" in capsys.readouterr().out


def test_copies_are_never_overwritten(files):
    """A second fix takes the next number."""
    for number, at in ((1, ENDS[2]), (2, ENDS[1]), (3, ENDS[0])):
        damage(files, SECOND, at)
        data = files.read(SECOND)[:]
        assert check(files, DIR, fix=True) == 0
        assert files.read(f"{SECOND}.before-fix-{number}")[:] == data
        assert files.size(SECOND) == at


@pytest.mark.parametrize("op", ["open", "write", "truncate", "sync", "rename", "sync_dir"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_fix_that_fails_or_loses_power_can_be_run_again(files, op, nth):
    """At any step: a log that is refused or the fixed one, every byte still there; then it goes on."""
    damage(files, FIRST, ENDS[1] + 5)
    original = {path: data for path, data in files.image().items() if path in (FIRST, SECOND)}
    files.fail(op, errno.EIO, nth=nth, within=FOLDER)
    with contextlib.suppress(OSError):
        assert check(files, DIR, fix=True) == 0
    for seed in range(10):
        after = files.crash(random.Random(seed))
        for path, data in original.items():
            kept = [found for name, found in after.image().items() if name.startswith(path)]
            assert data in kept
        if check(after, DIR, fix=False) == 0:
            assert groups_of(after, FIRST) == flat(FLUSHES[:1])
        assert check(after, DIR, fix=True) == 0
        assert check(after, DIR, fix=False) == 0
        assert groups_of(after, FIRST) == flat(FLUSHES[:1])
        assert survey(after, DIR, FOLDER, PREFIX).manifest == Manifest(PREFIX, 3, (7,))


def test_a_running_server_is_left_alone(files):
    """Its lock says so."""
    lock = files.lock(f"{FOLDER}/lock")
    for fix in (False, True):
        with pytest.raises(Locked):
            check(files, DIR, fix=fix)
    lock.release()
    assert check(files, DIR, fix=True) == 0


def test_format_1(capsys):
    """The one file of before: whole, torn, damaged, and cut."""
    files, path = FaultyFiles(), f"{DIR}/{PREFIX}"
    data = b"*3\r\n$7\r\nRECALLD\r\n$3\r\nAOF\r\n$1\r\n1\r\n" + b"".join(map(incr.encode_group, flat(FLUSHES)))
    last = len(incr.encode_group([Flush()]))
    files.put(path, data)
    assert check(files, DIR, fix=False) == 0
    assert f"{path}: 5 groups, 6 entries, {len(data)} bytes, whole (format 1" in capsys.readouterr().out
    for bad, fault in ((data[:-1], "torn"), (data[:-last] + b"x" * last, "damaged")):
        files = FaultyFiles()
        files.put(path, bad)
        assert check(files, DIR, fix=False) == 1
        assert f"{path}: {fault} at offset {len(data) - last}" in capsys.readouterr().out
        assert check(files, DIR, fix=True) == 0
        assert files.read(path)[:] == data[:-last]
        assert files.read(f"{path}.before-fix-1")[:] == bad
        assert check(files, DIR, fix=False) == 0
        capsys.readouterr()


# -- the command, on the real disk


def test_main(tmp_path, capsys):
    """Exit codes, what goes to stdout and what to stderr."""
    main, where = check_aof.main, str(tmp_path)
    folder = tmp_path / "appendonlydir"
    for wrong in ([], [where, where], ["--mend", where], ["--fix"]):
        assert main(wrong) == 2
        assert capsys.readouterr().err.startswith("usage: recalld check-aof [--fix] DIR")
    assert main(["--help"]) == 0
    assert capsys.readouterr().out.startswith("usage:")
    assert main([where]) == 2
    assert capsys.readouterr().err == f"{where} holds no log\n"
    assert main([str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err == f"{tmp_path / 'nowhere'} holds no log\n"

    files = Files()
    build(files, str(folder))
    assert main([where]) == 0
    assert not (folder / "lock").exists()
    path = folder / incr_name(PREFIX, 8)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1])
    assert main([where]) == 1
    assert path.read_bytes() == whole[:-1]

    lock = files.lock(str(folder / "lock"))
    capsys.readouterr()
    assert main(["--fix", where]) == 2
    assert "lock is held by another process (pid " in capsys.readouterr().err
    lock.release()
    assert main([str(folder), "--fix"]) == 0
    assert (folder / f"{path.name}.before-fix-1").read_bytes() == whole[:-1]
    assert main([where]) == 0


def test_what_may_not_be_looked_into(tmp_path, capsys, monkeypatch):
    """A lost+found in DIR, say: no log there as far as anybody knows."""
    build(Files(), str(tmp_path / "log"))
    (tmp_path / "lost+found").mkdir()
    listdir = Files.listdir

    def deny(files: Files, path: str) -> list[str]:
        if path.endswith("lost+found"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return listdir(files, path)

    monkeypatch.setattr(Files, "listdir", deny)
    assert check_aof.main([str(tmp_path)]) == 0
    assert f"{tmp_path}/log/{PREFIX}.manifest: names 3 files" in capsys.readouterr().out


def test_a_folder_that_may_only_be_read(files):
    """A backup, say: it is looked at without a lock file, and with --fix the reason is said."""
    files.fail("open", errno.EROFS, nth=0)
    assert check(files, DIR, fix=False) == 0
    damage(files, SECOND, 200)
    assert check(files, DIR, fix=False) == 1
    with pytest.raises(OSError, match="Read-only file system"):
        check(files, DIR, fix=True)
