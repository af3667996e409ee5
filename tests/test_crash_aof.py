"""The append-only file, cut and corrupted: a prefix loads, damage refuses, nothing half is ever served."""

from __future__ import annotations

import asyncio
import os

import pytest
from recalld.index.settings import Settings
from recalld.server import aof
from recalld.server.aof import FileLog, LogDamaged, load, pack
from recalld.server.entries import Copy, Create, Drop, Entry, ExpireKey, Put, Remove
from recalld.server.keyspace import Keyspace


def put(record_id: bytes, text: bytes = b"the lake\r\n is \x00 cold", at: int = 5, deadline: int = 0) -> Put:
    return Put(b"k", record_id, text, b"", (b"f", b"v\r\n"), (b"t",), 0.25, at, at, deadline, 1, 100, at)


GROUPS: list[list[Entry]] = [
    [Create(b"k", Settings(mode="SEARCH"), 1)],
    [put(b"1")],
    [put(b"2", b"wolf"), put(b"3", b"moon")],
    [Remove(b"k", (b"2",), 7)],
    [ExpireKey(b"k", 99_999), Copy(b"k", b"twin")],
    [Drop((b"k",))],
]


def state(groups: list[list[Entry]]) -> list[object]:
    keyspace = Keyspace()
    for group in groups:
        for entry in group:
            keyspace.apply(entry)
    return fingerprint(keyspace)


def fingerprint(keyspace: Keyspace) -> list[object]:
    return [
        (key, memory.settings, memory.next_id, memory.updated_at, keyspace.deadlines.get(key), contents(memory))
        for key, memory in keyspace.memories.items()
    ]


def contents(memory) -> list[object]:
    table = memory.table
    return [
        (record_id, table.texts[slot], table.metas[slot], table.tags[slot], table.created(slot), table.deadline(slot))
        for record_id, slot in sorted(table.by_id.items())
    ]


def write(path: str, groups: list[list[Entry]], policy: str = "always") -> bytes:
    async def run() -> None:
        log = FileLog(path, policy, asyncio.get_running_loop())
        for group in groups:
            log.append(group)
        log.flush()
        log.close()

    asyncio.run(run())
    with open(path, "rb") as file:
        return file.read()


def ends(data: bytes) -> list[int]:
    """Where each group of GROUPS ends in the file."""
    import io

    return [end for end, _ in aof.read_groups(io.BytesIO(data), "x")]


def reload(path: str, data: bytes, *, cut_tail: bool = True) -> list[object]:
    with open(path, "wb") as file:
        file.write(data)
    keyspace = Keyspace()
    load(path, keyspace.apply, cut_tail=cut_tail)
    return fingerprint(keyspace)


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
def test_what_was_written_loads(tmp_path, policy):
    """Every policy writes the same bytes, and they load to the same state."""
    path = str(tmp_path / "a.aof")
    data = write(path, GROUPS, policy)
    assert data == write(str(tmp_path / "b.aof"), GROUPS, "always")
    assert reload(path, data) == state(GROUPS)


def test_cut_at_every_byte(tmp_path):
    """A file that ends anywhere loads as the groups that are whole, and is cut to them."""
    path = str(tmp_path / "a.aof")
    data = write(path, GROUPS)
    boundaries = ends(data)
    assert len(boundaries) == len(GROUPS) + 1
    assert boundaries[-1] == len(data)
    for size in range(len(data)):
        whole = [end for end in boundaries if end <= size]
        assert reload(path, data[:size]) == state(GROUPS[: max(0, len(whole) - 1)]), size
        assert os.path.getsize(path) == (whole[-1] if whole else 0), size


def test_a_torn_tail_is_refused_on_request(tmp_path):
    """aof-load-truncated no: says how many bytes and from where, and cuts nothing."""
    path = str(tmp_path / "a.aof")
    data = write(path, GROUPS)
    last = ends(data)[-2]
    with pytest.raises(LogDamaged, match=f"{len(data) - 1 - last} bytes from offset {last} on"):
        reload(path, data[:-1], cut_tail=False)
    assert os.path.getsize(path) == len(data) - 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"$5\r\nRENAM", b"$5\r\nRENAM"),
        (b"\r\nPUT\r\n", b"\r\nPAT\r\n"),
        (b"*4\r\n$6\r\nREMOVE", b"+4\r\n$6\r\nREMOVE"),
        (b"REMOVE\r\n$1\r\nk", b"REMOVE\r\n$1\r\nj"),
        (b"RECALLD", b"RECALLE"),
        (b"$3\r\nAOF\r\n$1\r\n1", b"$3\r\nAOF\r\n$1\r\n9"),
    ],
)
def test_damage_in_the_middle_refuses_and_touches_nothing(tmp_path, old, new):
    """What is no entry, or an entry that cannot apply, names file and offset; the file stays as it was."""
    path = str(tmp_path / "a.aof")
    data = write(path, GROUPS)
    damaged = data.replace(old, new, 1)
    if damaged == data:
        assert reload(path, data) == state(GROUPS)
        return
    with pytest.raises(LogDamaged, match=r"a\.aof.*offset \d+"):
        reload(path, damaged)
    with open(path, "rb") as file:
        assert file.read() == damaged


def test_an_unfinished_group_is_dropped_whole(tmp_path):
    """MULTI and one entry of two without EXEC: neither applies."""
    path = str(tmp_path / "a.aof")
    data = aof.HEADER + pack(GROUPS[0][0].encode()) + pack([b"MULTI"]) + pack(put(b"1").encode())
    assert reload(path, data) == state(GROUPS[:1])


def test_two_servers_cannot_share_a_file(tmp_path):
    """The second to open the file is refused."""
    path = str(tmp_path / "a.aof")

    async def run() -> None:
        log = FileLog(path, "no", asyncio.get_running_loop())
        with pytest.raises(LogDamaged, match="in use by another server"):
            FileLog(path, "no", asyncio.get_running_loop())
        log.close()

    asyncio.run(run())


def test_a_failed_write_is_kept_and_goes_first_afterwards(tmp_path, monkeypatch):
    """ENOSPC: writes are refused with a reason, replies wait, and once the disk is back the file is whole."""
    path = str(tmp_path / "a.aof")
    real_write = os.write
    full = True

    def write_or_fail(fd: int, data: bytes) -> int:
        if full:
            real_write(fd, bytes(data)[:3])
            raise OSError(28, "No space left on device")
        return real_write(fd, data)

    async def run() -> None:
        nonlocal full
        log = FileLog(path, "no", asyncio.get_running_loop())
        log.append(GROUPS[0])
        log.flush()
        before = log.released
        monkeypatch.setattr(os, "write", write_or_fail)
        log.append(GROUPS[1])
        log.flush()
        assert log.failure is not None
        assert "No space left" in log.failure
        assert log.released == before < log.position
        log.every_second()
        assert log.failure is not None
        full = False
        log.every_second()
        assert log.failure is None
        assert log.released == log.position
        log.append(GROUPS[2])
        log.flush()
        log.close()

    asyncio.run(run())
    keyspace = Keyspace()
    load(path, keyspace.apply, cut_tail=False)
    assert fingerprint(keyspace) == state(GROUPS[:3])
