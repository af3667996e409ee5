"""A start that must not be: another server's folder, a folder that cannot be written, a log with a part missing.

The real thing: a process, its exit code, what it says, and that it leaves every file as it was.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import PATIENCE_S, Process
from recalld.index.settings import Settings
from recalld.server.entries import Create, Put, Remove
from recalld.server.incr import encode_group

PREFIX = "appendonly.aof"


def refused(folder: Path, *words: str) -> str:
    """What a server says that does not start; its exit code must be 1."""
    command = [sys.executable, "-m", "recalld.server", "--port", "0", "--bind", "127.0.0.1", "--dir", str(folder)]
    ended = subprocess.run(
        [*command, *words], capture_output=True, text=True, timeout=PATIENCE_S, stdin=subprocess.DEVNULL, check=False
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode == 1, said
    assert "Traceback" not in said, said
    return said


def contents(folder: Path) -> dict[str, bytes]:
    """All files but the lock, whose pid is the last server's."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock"
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a server leaves: a base, and an incr file with two entries behind it."""
    with Process(tmp_path) as server:
        wire = server.wire()
        assert wire("MEM.CREATE", "k", "MODE", "SEARCH") == "OK"
        assert wire("MEM.ADD", "k", "TEXT", "one") == b"1"
        assert wire("SAVE") == "OK"
        assert wire("MEM.ADD", "k", "TEXT", "two") == b"2"
        assert wire("MEM.ADD", "k", "TEXT", "three") == b"3"
        wire.close()
        assert server.terminate() == 0
    names = {f"appendonlydir/{PREFIX}.{part}" for part in ("manifest", "1.base.rcl", "2.incr.aof")}
    assert set(contents(tmp_path)) == names
    return tmp_path


def card(folder: Path, *words: str) -> int:
    with Process(folder, *words) as server:
        wire = server.wire()
        count: int = wire("MEM.CARD", "k")
        wire.close()
        assert server.terminate() == 0
    return count


def test_a_second_server_is_refused(tmp_path: Path) -> None:
    """It names the lock and who holds it; the first one goes on, and its end, even kill -9, frees the folder."""
    with Process(tmp_path) as server:
        before = contents(tmp_path)
        said = refused(tmp_path)
        assert f"{tmp_path}/appendonlydir/lock is held by another process (pid {server.process.pid})" in said
        assert "Give each its own `dir`" in said
        assert contents(tmp_path) == before
        assert server.wire()("PING") == "PONG"
        server.kill()
    with Process(tmp_path) as server:
        assert server.wire()("PING") == "PONG"


def remove(name: str) -> Callable[[Path], None]:
    return lambda log: (log / f"{PREFIX}.{name}").unlink()


def flip(name: str, at: int) -> Callable[[Path], None]:
    def change(log: Path) -> None:
        path = log / f"{PREFIX}.{name}"
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)

    return change


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (remove("manifest"), f"{PREFIX}.manifest is missing, though"),
        (remove("1.base.rcl"), f"{PREFIX}.1.base.rcl is missing, which"),
        (remove("2.incr.aof"), f"{PREFIX}.2.incr.aof is missing, which"),
        (flip("manifest", 30), f"{PREFIX}.manifest is damaged in line 1"),
        (flip("1.base.rcl", 70), f"{PREFIX}.1.base.rcl is damaged "),
        (flip("1.base.rcl", -1), f"{PREFIX}.1.base.rcl is damaged at offset "),
        (flip("2.incr.aof", 0), f"{PREFIX}.2.incr.aof is damaged at offset 0"),
        (flip("2.incr.aof", 120), f"{PREFIX}.2.incr.aof is damaged at offset "),
        (flip("2.incr.aof", -5), f"{PREFIX}.2.incr.aof is damaged at offset "),
    ],
)
def test_damage_is_refused(folder: Path, damage: Callable[[Path], None], message: str) -> None:
    """Exit code 1, the file and what to do, and every file as it was."""
    damage(folder / "appendonlydir")
    before = contents(folder)
    said = refused(folder)
    assert message in said
    assert "Nothing was changed." in said
    assert contents(folder) == before


def test_a_torn_tail_is_cut_or_refused(folder: Path) -> None:
    """By aof-load-truncated, with how many bytes."""
    path = folder / "appendonlydir" / f"{PREFIX}.2.incr.aof"
    data = path.read_bytes()
    path.write_bytes(data[:-3])
    before = contents(folder)
    assert "ends in the middle of a write" in refused(folder, "--aof-load-truncated", "no")
    assert contents(folder) == before
    with Process(folder) as server:
        assert any("a torn tail of" in line and "bytes is cut at offset" in line for line in server.log)
        assert server.wire()("MEM.CARD", "k") == 2
        server.kill()
    assert data.startswith(path.read_bytes())
    assert card(folder, "--aof-load-truncated", "no") == 2


def test_leftovers_of_a_crash_are_removed(folder: Path) -> None:
    """Temporary files, a base that was never named, an incr file without an entry; each is said."""
    log = folder / "appendonlydir"
    before = contents(folder)
    for name in ("temp-{}.2.base.rcl", "{}.2.base.rcl", "temp-{}.manifest", "{}.1.incr.aof"):
        (log / name.format(PREFIX)).write_bytes(b"half of it")
    (log / f"{PREFIX}.3.incr.aof").write_bytes((log / f"{PREFIX}.2.incr.aof").read_bytes()[:87])
    assert card(folder) == 3
    assert set(contents(folder)) == set(before)


def test_an_entry_in_a_file_that_is_not_named_is_refused(folder: Path) -> None:
    """It is the manifest of other files, so nothing is removed."""
    log = folder / "appendonlydir"
    (log / f"{PREFIX}.3.incr.aof").write_bytes((log / f"{PREFIX}.2.incr.aof").read_bytes())
    before = contents(folder)
    assert f"does not name {PREFIX}.3.incr.aof" in refused(folder)
    assert contents(folder) == before


def test_a_read_only_folder_says_so(folder: Path) -> None:
    """On a file system that is mounted read-only: which file, and why."""
    bound = subprocess.run(
        ["mount", "--bind", str(folder), str(folder)], capture_output=True, text=True, check=False
    )
    if bound.returncode:
        pytest.skip(f"nothing can be mounted: {bound.stderr.strip()}")
    try:
        made = subprocess.run(["mount", "-o", "remount,ro,bind", str(folder)], capture_output=True, check=False)
        if made.returncode:
            pytest.skip("nothing can be mounted read-only")
        before = contents(folder)
        said = refused(folder)
        assert "Read-only file system" in said
        assert f"{folder}/appendonlydir" in said
        assert contents(folder) == before
    finally:
        subprocess.run(["umount", str(folder)], check=False)
    assert card(folder) == 3


def test_a_folder_of_format_1_is_taken_over(tmp_path: Path) -> None:
    """The old file is kept under another name, the state is the same, and the next start is an ordinary one."""

    def put(number: int) -> Put:
        return Put(b"k", b"%d" % number, b"text", b"", (b"f", b"v"), (), 0.5, 5, 5, 0, number + 1, 100, 5)

    groups = [[Create(b"k", Settings(mode="SEARCH"), 5)], [put(1)], [put(2), put(3)], [Remove(b"k", (b"2",), 6)]]
    old = b"*3\r\n$7\r\nRECALLD\r\n$3\r\nAOF\r\n$1\r\n1\r\n" + b"".join(map(encode_group, groups))
    (tmp_path / PREFIX).write_bytes(old)
    with Process(tmp_path) as server:
        wire = server.wire()
        assert wire("MEM.SCAN", "k", 0) == [b"0", [b"1", b"3"]]
        assert wire("MEM.ADD", "k", "TEXT", "new") == b"4"
        assert any("older format" in line for line in server.log)
        server.kill()
    assert (tmp_path / f"{PREFIX}.migrated-1").read_bytes() == old
    assert not (tmp_path / PREFIX).exists()
    assert card(tmp_path) == 3


def test_damage_in_format_1_is_refused(tmp_path: Path) -> None:
    """Nothing is begun beside it."""
    (tmp_path / PREFIX).write_bytes(b"*3\r\n$7\r\nRECALLD\r\n$3\r\nAOF\r\n$1\r\n1\r\n*1\r\n$5\r\nFLUSX\r\n")
    before = contents(tmp_path)
    assert f"{PREFIX} is damaged at offset 33" in refused(tmp_path)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", ["a log", PREFIX])
def test_a_folder_of_another_name(tmp_path: Path, name: str) -> None:
    """appenddirname: all of the log is there, also after a rewrite, and what the next start reads."""
    words = ("--appenddirname", name)
    with Process(tmp_path, *words) as server:
        wire = server.wire()
        assert wire("CONFIG", "GET", "appenddirname") == [b"appenddirname", name.encode()]
        assert wire("MEM.CREATE", "k", "MODE", "SEARCH") == "OK"
        assert wire("MEM.ADD", "k", "TEXT", "one") == b"1"
        assert wire("SAVE") == "OK"
        assert wire("MEM.ADD", "k", "TEXT", "two") == b"2"
        assert f"{tmp_path}/{name}/lock is held by another process" in refused(tmp_path, *words)
        server.kill()
    names = {f"{name}/{PREFIX}.{part}" for part in ("manifest", "1.base.rcl", "2.incr.aof")}
    assert set(contents(tmp_path)) == names
    assert card(tmp_path, *words) == 2
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_both_names_of_the_log(tmp_path: Path) -> None:
    """appenddirname and appendfilename, the one's folder with the other's files."""
    words = ("--appenddirname", "log", "--appendfilename", "memory")
    with Process(tmp_path, *words) as server:
        assert server.wire()("MEM.CREATE", "k", "MODE", "SEARCH") == "OK"
        assert server.terminate() == 0
    assert set(contents(tmp_path)) == {"log/memory.manifest", "log/memory.1.incr.aof"}


def test_another_appenddirname_begins_anew_and_says_so(folder: Path) -> None:
    """As another `dir` does; the log that is not loaded is named once, and stays as it is."""
    before = contents(folder)
    said = f"Beginning with nothing, though {folder}/appendonlydir holds a log. (Was appenddirname another one?)"
    for known in (False, True):
        with Process(folder, "--appenddirname", "new") as server:
            assert server.wire()("DBSIZE") == 0
            assert any(line.endswith(said) for line in server.log) is not known
            assert server.terminate() == 0
    assert {name: data for name, data in contents(folder).items() if not name.startswith("new/")} == before
    assert card(folder) == 3
