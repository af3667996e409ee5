"""kill -9 under load: what was acknowledged is there after the next start, and nothing is there by halves.

Four clients write at once, each to a memory of its own, in pipelines of batches, transactions and single commands, and
start rewrites in between. When a drawn number of replies has come the server is killed, wherever it is then. The next
start must show, of each client's writes, those up to some one of them: the last promised or a later one. With `always`
each reply is a promise, otherwise that of WAITAOF is: while a sync runs, replies leave before write(2), as in Redis.
"""

from __future__ import annotations

import signal
import threading
from pathlib import Path
from random import Random
from typing import Any

import pytest
from conftest import LONG
from harness import Process, Wire, Word, pack, scan

CYCLES = 1_000 if LONG else 34
CLIENTS = 4
IDS = [b"%d" % number for number in range(25)]

#: id -> text, metadata, whether it has a deadline
Records = dict[bytes, tuple[bytes, dict[bytes, bytes], bool]]


class Killer:
    """Ends the server once so many replies have come."""

    def __init__(self, server: Process, replies: int, signum: signal.Signals) -> None:
        self._server, self._left, self._signum = server, replies, signum
        self._mutex = threading.Lock()

    def count(self, replies: int) -> None:
        with self._mutex:
            before, self._left = self._left, self._left - replies
            if before > 0 >= self._left:
                self._server.process.send_signal(self._signum)


class Writer:
    """One client and its memory. `states[n]` is what the memory holds after n writes; `promised` of them are kept."""

    def __init__(self, key: bytes, rng: Random, *, always: bool) -> None:
        self.key, self._rng, self._always = key, rng, always
        self.states: list[Records] = [{}]
        self.acknowledged = self.promised = 0
        self._number = 0

    def run(self, wire: Wire, killer: Killer) -> None:
        """Write until the connection ends."""
        rng = self._rng
        try:
            while True:
                commands: list[list[Word]] = []
                writes: list[int] = []  # how many writes each reply acknowledges
                for _ in range(rng.randint(1, 12)):
                    some, counts = self._write()
                    commands += some
                    writes += counts
                if rng.random() < 0.05:
                    commands.append(["BGREWRITEAOF"])
                    writes.append(0)
                if rng.random() < 0.2:
                    commands.append(["WAITAOF", 1, 0, 0])
                    writes.append(0)
                wire.sock.sendall(b"".join(pack(*command) for command in commands))
                for command, count in zip(commands, writes, strict=True):
                    reply = wire.read()
                    assert not isinstance(reply, Exception) or b"rewriting" in str(reply).encode(), reply
                    self.acknowledged += count
                    if self._always or command[0] == "WAITAOF":
                        self.promised = self.acknowledged
                    killer.count(count)
        except (EOFError, OSError):
            pass

    def _write(self) -> tuple[list[list[Word]], list[int]]:
        """The commands of one write, applied to the model, and how many writes each reply acknowledges."""
        rng, records = self._rng, dict(self.states[-1])
        kind = rng.choice(("add", "add", "add", "madd", "exec", "del", "meta", "expire"))
        chosen = rng.sample(IDS, 3)
        if kind == "add":
            commands = [["MEM.ADD", self.key, *self._record(records, chosen[0])]]
        elif kind == "madd":
            words = [word for each in chosen for word in ("RECORD", *self._record(records, each))]
            commands = [["MEM.MADD", self.key, 3, *words]]
        elif kind == "exec":
            added = [["MEM.ADD", self.key, *self._record(records, each)] for each in chosen[:2]]
            records.pop(chosen[2], None)
            commands = [["MULTI"], *added, ["MEM.DEL", self.key, chosen[2]], ["EXEC"]]
        elif kind == "del":
            for each in chosen:
                records.pop(each, None)
            commands = [["MEM.DEL", self.key, *chosen]]
        elif kind == "meta" and chosen[0] in records:
            text, meta, due = records[chosen[0]]
            self._number += 1
            value = b"%d" % self._number
            records[chosen[0]] = (text, {**meta, b"g": value}, due)
            commands = [["MEM.SETMETA", self.key, chosen[0], "g", value]]
        else:
            seconds = rng.choice((0, 10_000))
            if chosen[0] in records:
                text, meta, _ = records[chosen[0]]
                records[chosen[0]] = (text, meta, seconds > 0)
            commands = [["MEM.EXPIRE", self.key, chosen[0], seconds]]
        self.states.append(records)
        return commands, [0] * (len(commands) - 1) + [1]

    def _record(self, records: Records, record_id: bytes) -> list[Word]:
        self._number += 1
        text = b"number %d " % self._number + b"x" * self._rng.choice((0, 10, 3000))
        _, meta, due = records.get(record_id, (b"", {}, False))
        records[record_id] = (text, {**meta, b"f": b"%d" % self._number}, due)
        return ["ID", record_id, "TEXT", text, "META", "f", b"%d" % self._number]

    def check(self, wire: Wire) -> None:
        """What the server holds is one of the states from the last promised on; the model goes on from there."""
        found = held(wire, self.key)
        possible = self.states[self.promised :]
        assert found in possible, f"{self.promised} of {len(self.states) - 1} promised, {self._place(found)}"
        self.states, self.acknowledged, self.promised = [found], 0, 0

    def stopped(self) -> None:
        """The server has ended in good order: each reply was a promise."""
        self.promised = self.acknowledged

    def _place(self, found: Records) -> str:
        return f"lost from write {self.states.index(found)} on" if found in self.states else "a state that never was"


def held(wire: Wire, key: bytes) -> Records:
    """The records of a memory as a client sees them."""
    ids = list(scan(wire, key, "COUNT", 100))
    maps: list[dict[bytes, Any]] = [wire("MEM.GET", key, each, "WITHMETA") for each in ids]
    return {each[b"id"]: (each[b"text"], each[b"meta"], each[b"pttl"] != -1) for each in maps}


def life(server: Process, writers: list[Writer], killer: Killer) -> int:
    """Let all write until the server has ended; its exit code."""
    wires = [server.wire() for _ in writers]
    threads = [
        threading.Thread(target=writer.run, args=(wire, killer), daemon=True)
        for writer, wire in zip(writers, wires, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive(), "the server answers no more and lives"
    for wire in wires:
        wire.close()
    return server.process.wait(60)


def begin(tmp_path: Path, policy: str, rng: Random) -> tuple[Process, list[Writer]]:
    server = Process(tmp_path, "--appendfsync", policy)
    wire = server.wire()
    always = policy == "always"
    writers = [Writer(b"client%d" % number, Random(rng.random()), always=always) for number in range(CLIENTS)]
    for writer in writers:
        assert wire("MEM.CREATE", writer.key, "MODE", "SEARCH") == "OK"
    # So much that a rewrite takes a while.
    assert wire("MEM.CREATE", "bulk", "DIM", 64) == "OK"
    for start in range(0, 2_000, 500):
        records: list[Word] = []
        for number in range(start, start + 500):
            records += ["RECORD", "TEXT", f"word{number} " * 20, "VEC", rng.randbytes(252) + b"\x00\x00\x80?"]
        wire.pipeline(["MEM.MADD", "bulk", 500, *_finite(records)])
    wire.close()
    return server, writers


def _finite(records: list[Word]) -> list[Word]:
    """Vectors of random bytes made numbers: no exponent of all ones."""
    return [
        bytes(byte & 0x7F & ~(0x40 if at % 4 == 3 else 0) for at, byte in enumerate(word))
        if isinstance(word, bytes)
        else word
        for word in records
    ]


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
def test_killed_at_any_moment(tmp_path: Path, policy: str) -> None:
    """Also within a rewrite; what is there is whole."""
    rng = Random(policy)
    server, writers = begin(tmp_path, policy, rng)
    for _ in range(CYCLES):
        code = life(server, writers, Killer(server, rng.randint(1, 600), signal.SIGKILL))
        assert code == -signal.SIGKILL
        server = Process(tmp_path, "--appendfsync", policy)
        wire = server.wire(3)
        for writer in writers:
            writer.check(wire)
        assert wire("MEM.CARD", "bulk") == 2_000
        wire.close()
    server.kill()


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
def test_terminated_under_load(tmp_path: Path, policy: str) -> None:
    """SIGTERM: exit code 0, nothing acknowledged lost, and the next start finds nothing to cut or clear up."""
    rng = Random(policy)
    server, writers = begin(tmp_path, policy, rng)
    for _ in range(CYCLES // 10):
        assert life(server, writers, Killer(server, rng.randint(1, 600), signal.SIGTERM)) == 0
        server = Process(tmp_path, "--appendfsync", policy, "--aof-load-truncated", "no")
        wire = server.wire(3)
        for writer in writers:
            writer.stopped()
            writer.check(wire)
        wire.close()
    server.kill()
