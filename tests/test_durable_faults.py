"""A disk that fails under a server, as its clients see it: writes are refused, reads go on, then all is well."""

from __future__ import annotations

import errno
import os
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from durable import DIR, eventually, on_loop, reloaded, state
from faulty_files import FaultyFiles
from harness import Process, Running, Wire, WireError

KEPT = "This write may or may not be kept."


class Disk:
    """A server on a disk of FaultyFiles, and a few clients."""

    def __init__(self, policy: str) -> None:
        self.files = FaultyFiles()
        self.server = Running(files=self.files, dir=DIR, appendfsync=policy)
        self.server.start()
        self.wire, self.other = self.server.wire(), self.server.wire()
        assert self.wire("MEM.CREATE", "k", "MODE", "SEARCH") == "OK"
        assert self.wire("MEM.ADD", "k", "ID", "a", "TEXT", "the first") == b"a"
        assert self.wire("WAITAOF", 1, 0, 0) == [1, 0]

    @property
    def status(self) -> bytes:
        info = self.other("INFO", "persistence")
        return dict(line.split(b":", 1) for line in info.split(b"\r\n") if b":" in line)[b"aof_last_write_status"]

    def second(self) -> None:
        """What the server does once a second, now, to its end."""
        on_loop(self.server, self.server.server.log.every_second)
        eventually(lambda: on_loop(self.server, lambda: self.server.server.log._job is None))

    def state(self) -> object:
        return on_loop(self.server, lambda: state(self.server.server.keyspace))

    def stop(self) -> None:
        self.files.heal()
        self.wire.close()
        self.other.close()
        self.server.stop()


@pytest.fixture(params=["always", "everysec", "no"])
def disk(request: pytest.FixtureRequest) -> Iterator[Disk]:
    disk = Disk(request.param)
    yield disk
    disk.stop()


@pytest.fixture
def always() -> Iterator[Disk]:
    disk = Disk("always")
    yield disk
    disk.stop()


@pytest.fixture
def everysec() -> Iterator[Disk]:
    disk = Disk("everysec")
    yield disk
    disk.stop()


def reads_go_on(wire: Wire) -> None:
    assert wire("PING") == "PONG"
    assert wire("MEM.GET", "k", "a")[3] == b"the first"
    assert wire("MEM.CARD", "k") >= 1
    assert [hit[0] for hit in wire("MEM.QUERY", "k", "TEXT", "first")] == [b"a"]
    assert wire("EXISTS", "k") == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO])
def test_a_failing_write(disk: Disk, number: int) -> None:
    """The client whose write failed hears that it may or may not be kept, later ones that writes are refused."""
    disk.files.fail("write", number, nth=0)
    error = disk.wire.error("MEM.ADD", "k", "ID", "b", "TEXT", "second")
    assert error.startswith(f"MISCONF Errors writing to the AOF file: {os.strerror(number)}.")
    assert error.endswith(KEPT)
    for _ in range(3):
        for wire in (disk.wire, disk.other):
            refusal = wire.error("MEM.ADD", "k", "ID", "c", "TEXT", "third")
            assert refusal.startswith("MISCONF")
            assert KEPT not in refusal
            reads_go_on(wire)
        assert disk.status == b"err"
        disk.second()
    # One that was refused has changed nothing.
    assert disk.other("MEM.GET", "k", "c") is None
    disk.files.heal()
    disk.second()
    assert disk.status == b"ok"
    assert disk.wire("MEM.ADD", "k", "ID", "d", "TEXT", "fourth") == b"d"
    assert disk.wire("WAITAOF", 1, 0, 0) == [1, 0]
    for seed in range(5):
        assert reloaded(disk.files.crash(Random(seed))) == disk.state()
    data = b"".join(disk.files.image().values())
    assert data.count(b"second") == data.count(b"fourth") == 1
    assert b"third" not in data


def test_a_failing_sync(always: Disk) -> None:
    """The same for EIO of fsync."""
    always.files.fail("sync", errno.EIO, nth=0)
    assert always.wire.error("MEM.ADD", "k", "ID", "b", "TEXT", "second").endswith(KEPT)
    assert always.other.error("DEL", "k").startswith("MISCONF")
    reads_go_on(always.wire)
    reads_go_on(always.other)
    assert always.status == b"err"
    always.files.heal()
    always.second()
    assert always.status == b"ok"
    assert always.wire("DEL", "k") == 1
    assert reloaded(always.files.crash(Random(1))) == []


def test_a_failing_sync_in_the_background(everysec: Disk) -> None:
    """With everysec the write was acknowledged; it is not lost when the disk comes back, and later ones are refused."""
    assert everysec.wire("MEM.ADD", "k", "ID", "b", "TEXT", "second") == b"b"
    everysec.files.fail("sync", errno.EIO, nth=0)
    everysec.second()
    assert everysec.status == b"err"
    assert everysec.wire.error("MEM.DEL", "k", "b").startswith("MISCONF")
    reads_go_on(everysec.wire)
    everysec.files.heal()
    everysec.second()
    assert everysec.status == b"ok"
    assert reloaded(everysec.files.crash(Random(1))) == everysec.state()


def test_transactions_are_refused_whole(disk: Disk) -> None:
    """Queued before the fault: EXECABORT or MISCONF; queued during it: refused at once. Neither does anything."""
    assert disk.other.pipeline(["MULTI"], ["MEM.ADD", "k", "ID", "x", "TEXT", "t"]) == ["OK", "QUEUED"]
    disk.files.fail("write", errno.ENOSPC, nth=0)
    disk.wire.error("MEM.ADD", "k", "ID", "b", "TEXT", "second")
    assert disk.other.error("EXEC").startswith("EXECABORT Transaction discarded because of: MISCONF")
    replies = disk.other.pipeline(["MULTI"], ["MEM.ADD", "k", "ID", "x", "TEXT", "t"], ["EXEC"])
    assert [str(reply)[:9] for reply in replies] == ["OK", "MISCONF E", "EXECABORT"]
    assert disk.other.pipeline(["MULTI"], ["MEM.CARD", "k"], ["EXEC"])[2] == [2]
    assert disk.wire("MEM.GET", "k", "x") is None
    with pytest.raises(WireError, match="MISCONF"):
        disk.wire("MEM.MADD", "k", 2, "RECORD", "TEXT", "one", "RECORD", "TEXT", "two")


def test_a_pipeline_across_the_fault_answers_each_command(always: Disk) -> None:
    """Writes and reads mixed: every command has its reply, in order."""
    always.files.fail("write", errno.ENOSPC, nth=0)
    commands: list[list[str]] = []
    for number in range(50):
        commands += [["MEM.ADD", "k", "ID", f"n{number}", "TEXT", "text"], ["PING"], ["MEM.GET", "k", "a", "NOTEXT"]]
    replies = always.wire.pipeline(*commands)
    assert all(isinstance(reply, WireError) and "MISCONF" in str(reply) for reply in replies[::3])
    assert replies[1::3] == ["PONG"] * 50
    assert all(isinstance(reply, list) and reply[1] == b"a" for reply in replies[2::3])


def test_readers_with_always_wait_for_the_disk_and_not_for_a_broken_one(always: Disk) -> None:
    """A read that shows a write waits for its sync; when that fails, the read leaves and the write is refused."""
    gate = always.files.stall("sync")
    always.wire.send("MEM.ADD", "k", "ID", "b", "TEXT", "second")
    assert gate.reached.wait(60)
    always.other.send("MEM.CARD", "k")
    always.files.fail("sync", errno.EIO, nth=0)
    clients = always.server.server.clients
    eventually(lambda: on_loop(always.server, lambda: all(each.connection.waiting for each in clients.values())))
    gate.open()
    assert always.other.read() == 2
    assert str(always.wire.read()).endswith(KEPT)
    third = always.server.wire()
    assert third("MEM.CARD", "k") == 2
    third.close()


def test_a_stalled_disk_makes_no_reader_wait(everysec: Disk) -> None:
    """With everysec, as long as it lasts; writers go on at first."""
    assert everysec.wire("MEM.ADD", "k", "ID", "b", "TEXT", "second") == b"b"
    gate = everysec.files.stall("sync")
    on_loop(everysec.server, everysec.server.server.log.every_second)
    assert gate.reached.wait(60)
    assert everysec.wire("MEM.ADD", "k", "ID", "c", "TEXT", "third") == b"c"
    reads_go_on(everysec.wire)
    # As if it had lasted for longer than two seconds.
    on_loop(everysec.server, lambda: setattr(everysec.server.server.log, "_job_began", -100.0))
    everysec.wire.send("MEM.ADD", "k", "ID", "d", "TEXT", "fourth")
    reads_go_on(everysec.other)
    assert everysec.other("MEM.CARD", "k") == 4
    gate.open()
    assert everysec.wire.read() == b"d"
    assert everysec.status == b"ok"
    everysec.second()
    assert reloaded(everysec.files.crash(Random(1))) == everysec.state()


def test_a_failing_rewrite(disk: Disk) -> None:
    """BGREWRITEAOF and SAVE on a disk that fails: an error or a status, the old files stay, writes go on."""
    disk.files.fail("write", errno.ENOSPC, nth=0, within=".base.rcl")
    assert disk.wire.error("SAVE") == "ERR the rewrite failed; the server's log says why"
    info = disk.other("INFO", "persistence")
    assert b"aof_last_bgrewrite_status:err" in info
    assert b"aof_last_write_status:ok" in info
    assert disk.wire("MEM.ADD", "k", "ID", "b", "TEXT", "second") == b"b"
    disk.files.heal()
    assert disk.wire("SAVE") == "OK"
    assert b"aof_last_bgrewrite_status:ok" in disk.other("INFO", "persistence")


# -- on a real disk


def test_a_full_file_system(tmp_path: Path) -> None:
    """A tmpfs of one megabyte: MISCONF, reads go on, and once there is room the server goes on by itself."""
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "recalld", str(tmp_path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no tmpfs can be mounted: {mounted.stderr.strip()}")
    try:
        filler = tmp_path / "filler"
        with Process(tmp_path, "--appendfsync", "always") as server:
            wire = server.wire()
            wire("MEM.CREATE", "k", "MODE", "SEARCH")
            filler.write_bytes(bytes(600_000))
            acknowledged = 0
            while True:
                wire.send("MEM.ADD", "k", "TEXT", b"y" * 20_000)
                reply = wire.read()
                if isinstance(reply, WireError):
                    break
                acknowledged += 1
            assert "MISCONF Errors writing to the AOF file: No space left on device" in str(reply)
            assert acknowledged > 5
            assert wire("MEM.CARD", "k") in (acknowledged, acknowledged + 1)
            assert b"aof_last_write_status:err" in wire("INFO", "persistence")
            filler.unlink()
            eventually(lambda: b"aof_last_write_status:ok" in wire("INFO", "persistence"))
            assert wire("MEM.ADD", "k", "TEXT", "small") == b"%d" % (acknowledged + 2)
            wire.close()
            server.kill()
        with Process(tmp_path) as server:
            assert server.wire()("MEM.CARD", "k") == acknowledged + 2
    finally:
        subprocess.run(["umount", str(tmp_path)], check=False)


def test_a_limit_on_the_size_of_files(tmp_path: Path) -> None:
    """RLIMIT_FSIZE gives EFBIG in the middle of a write: refused, and every acknowledged write is there."""
    with Process(tmp_path) as server:
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (100_000, 100_000))
        wire = server.wire()
        wire("MEM.CREATE", "k", "MODE", "SEARCH")
        replies = [wire.pipeline(["MEM.ADD", "k", "TEXT", b"y" * 3_000])[0] for _ in range(50)]
        kept = sum(not isinstance(reply, WireError) for reply in replies)
        assert 20 < kept < 34
        assert "MISCONF Errors writing to the AOF file: File too large" in str(replies[-1])
        assert wire("PING") == "PONG"
        server.kill()
    with Process(tmp_path) as server:
        assert server.wire()("MEM.CARD", "k") == kept

