"""Where a sync is waited for, and for whom it waits itself."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from operator import attrgetter
from random import Random

import pytest
from durable import eventually, on_loop, reloaded
from harness import WireError, pack
from recalld.server import group_commit
from recalld.server.group_commit import Company, Patience
from test_durable_faults import KEPT, Disk


def test_the_loop_tries_a_disk_that_was_quick_and_leaves_a_slow_one() -> None:
    patience = Patience()
    for seconds in [0.004] * 15 + [0.006] + [0.004] * 15:
        patience.took_in_thread(seconds)
        assert not patience.waits_here
    patience.took_in_thread(0.004)
    assert patience.waits_here
    for _ in range(1000):
        patience.took_here(0.0009)
        assert patience.waits_here
    for seconds in [0.0002] * 100 + [0.01] + [0.0002] * 100:  # once is no habit
        patience.took_here(seconds)
        assert patience.waits_here
    for _ in range(10):
        patience.took_here(0.005)
    assert not patience.waits_here
    for _ in range(1000 + 15):
        patience.took_in_thread(0.0001)
        assert not patience.waits_here
    patience.took_in_thread(0.0001)
    assert patience.waits_here


def test_one_sync_that_hangs_is_enough_to_leave() -> None:
    patience = Patience()
    for _ in range(16):
        patience.took_in_thread(0.0)
    patience.took_here(0.2)
    assert not patience.waits_here


def test_a_failure_is_counted_as_slow() -> None:
    patience = Patience()
    for _ in range(16):
        patience.took_in_thread(0.0)
    patience.failed()
    assert not patience.waits_here
    for _ in range(15):
        patience.took_in_thread(0.0)
        assert not patience.waits_here


def test_who_is_waited_for_and_how_long() -> None:
    company = Company()
    assert company.leaves(3, 2, 0.004) == 0.004
    assert [company.is_awaited(count) for count in (2, 4, 5, 6)] == [True, True, False, False]
    assert company.leaves(0, 2, 0.008) == 0.0  # nobody who could come
    assert company.leaves(3, 2, 0.0009) == 0.0  # less than timers know
    assert company.leaves(3, 2, 0.1) == group_commit._WAIT_MOST_S


def test_nobody_is_waited_for_where_they_do_not_come() -> None:
    company = Company()
    for _ in range(4):
        assert company.leaves(1, 1, 0.008)
        company.missed()
    for _ in range(50):
        assert company.leaves(1, 1, 0.008) == 0.0
    assert company.leaves(1, 1, 0.008)
    for _ in range(3):
        company.missed()
    assert not company.is_awaited(2)  # they came
    company.missed()
    assert company.leaves(1, 1, 0.008)


@pytest.fixture
def always() -> Iterator[Disk]:
    disk = Disk("always")
    yield disk
    disk.stop()


def waits(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """A sync of whatever duration is worth waiting so long."""
    leaves = Company.leaves
    monkeypatch.setattr(group_commit, "_WAIT_MOST_S", seconds)
    monkeypatch.setattr(Company, "leaves", lambda self, left, waiting, took_s: leaves(self, left, waiting, 1e9))


def two_wait(disk: Disk) -> None:
    """`wire`'s write has been synced, and that of `other`, which came meanwhile, waits."""
    gate = disk.files.stall("sync")
    disk.wire.send("MEM.ADD", "k", "ID", "b", "TEXT", "second")
    assert gate.reached.wait(60)
    disk.other.send("MEM.ADD", "k", "ID", "c", "TEXT", "third")
    log = disk.server.server.log
    eventually(lambda: on_loop(disk.server, lambda: len(log.waiters) == 2))
    gate.open()
    assert disk.wire.read() == b"b"


def test_the_next_sync_is_for_those_who_come_again_too(always: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    waits(monkeypatch, 1000.0)
    before = always.files.calls["sync"]
    two_wait(always)
    assert always.files.calls["sync"] == before + 1
    assert always.wire("MEM.ADD", "k", "ID", "d", "TEXT", "fourth") == b"d"
    assert always.other.read() == b"c"
    assert always.files.calls["sync"] == before + 2


def test_it_begins_without_them_where_they_do_not(always: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    waits(monkeypatch, 0.01)
    before = always.files.calls["sync"]
    two_wait(always)
    assert always.other.read() == b"c"
    assert always.files.calls["sync"] == before + 2


@pytest.mark.parametrize("policy", ["everysec", "no"])
def test_another_policy_ends_the_wait(always: Disk, monkeypatch: pytest.MonkeyPatch, policy: str) -> None:
    waits(monkeypatch, 1000.0)
    two_wait(always)
    assert always.wire("CONFIG", "SET", "appendfsync", policy) == "OK"
    assert always.other.read() == b"c"


def test_who_waits_for_the_disk_itself_waits_for_nobody(always: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    waits(monkeypatch, 1000.0)
    before = always.files.calls["sync"]
    two_wait(always)
    assert always.wire("WAITAOF", 1, 0, 0) == [1, 0]
    assert always.other.read() == b"c"
    assert always.files.calls["sync"] == before + 2


def test_nobody_is_awaited_while_somebody_waits_for_the_disk(always: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    waits(monkeypatch, 1000.0)
    before = always.files.calls["sync"]
    gate = always.files.stall("sync")
    always.wire.send("MEM.ADD", "k", "ID", "b", "TEXT", "second")
    assert gate.reached.wait(60)
    always.other.send("MEM.ADD", "k", "ID", "c", "TEXT", "third")
    always.other.send("WAITAOF", 1, 0, 0)
    log = always.server.server.log
    eventually(lambda: on_loop(always.server, lambda: len(log._durable_waits) == 1))
    gate.open()
    assert [always.other.read(), always.other.read()] == [b"c", [1, 0]]
    assert always.files.calls["sync"] == before + 2


def test_a_job_ends_the_wait(always: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    waits(monkeypatch, 1000.0)
    two_wait(always)
    log = always.server.server.log

    def start() -> tuple[bool, bool]:
        was_waiting = log._late is not None
        log._start(lambda: None, log.durable, [])
        return was_waiting, log._late is not None

    assert on_loop(always.server, start) == (True, False)
    assert always.wire("SAVE") == "OK"
    assert always.other.read() == b"c"


def test_who_comes_in_the_next_turn_is_synced_by_the_same_sync(always: Disk) -> None:
    log = always.server.server.log
    clients = on_loop(always.server, lambda: [each.connection for each in always.server.server.clients.values()])

    def come() -> None:
        log._patience.waits_here = True
        for number, client in enumerate(clients):
            client.data_received(pack("MEM.ADD", "k", "ID", f"now-{number}", "TEXT", "second"))
        always.server.server.loop.call_soon(come_later)

    def come_later() -> None:
        for number, client in enumerate(clients):
            client.data_received(pack("MEM.ADD", "k", "ID", f"later-{number}", "TEXT", "third"))

    assert len(clients) == 2
    before = always.files.calls["sync"]
    on_loop(always.server, come)
    for number, wire in enumerate((always.wire, always.other)):
        assert [wire.read(), wire.read()] == [b"now-%d" % number, b"later-%d" % number]
    assert always.files.calls["sync"] == before + 1


@pytest.mark.parametrize("ends", ["quit", "half-closed"])
def test_a_connection_that_has_its_refusals_is_closed(always: Disk, ends: str) -> None:
    """Where it said before that it wants no more, and its replies waited for the disk."""
    gate = always.files.stall("sync")
    always.files.fail("sync", errno.EIO)
    always.wire.send("MEM.ADD", "k", "ID", "b", "TEXT", "second")
    if ends == "quit":
        always.wire.send("QUIT")
    else:
        always.wire.sock.shutdown(socket.SHUT_WR)
    assert gate.reached.wait(60)
    done = "closing_after_input" if ends == "half-closed" else "client.close_after_reply"
    clients = always.server.server.clients
    is_done = attrgetter(done)
    eventually(lambda: on_loop(always.server, lambda: any(is_done(each.connection) for each in clients.values())))
    gate.open()
    assert isinstance(always.wire.read(), WireError)
    if ends == "quit":
        assert always.wire.read() == "OK"
    assert always.wire.sock.recv(1) == b""


def test_whatever_fails_on_the_loop_loses_nothing(always: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was to be written is written again, first."""
    log = always.server.server.log

    def fail(groups: object) -> None:
        raise MemoryError

    log._patience.waits_here = True
    with monkeypatch.context() as patch:
        patch.setattr(log._writer, "write", fail)
        assert always.wire.error("MEM.ADD", "k", "ID", "b", "TEXT", "second").endswith(KEPT)
    always.second()
    assert always.wire("MEM.ADD", "k", "ID", "c", "TEXT", "third") == b"c"
    assert reloaded(always.files.crash(Random(1))) == always.state()
    assert always.wire("MEM.CARD", "k") == 3
