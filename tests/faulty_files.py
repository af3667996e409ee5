"""A disk in memory that keeps no more than what was promised, and fails on request.

    files = FaultyFiles()
    files.fail("sync", errno.EIO, nth=2)      the second sync from now fails; `nth=0`: each one, until `heal`
    files.capacity = 4096                     the disk is full at 4096 bytes: a write is short, then ENOSPC
    gate = files.stall("sync")                the next sync waits: `gate.reached.wait()`, then `gate.open()`
    files = files.crash(random.Random(seed))  the power goes; a disk that this one could have left

What a crash may leave, file by file and folder by folder, independently:

- A file: what it was at its last sync, and a prefix of the changes since, the last one itself in part. With
  `sectors=True` any 512 bytes of an unsynced write may be zeros instead (a file system that grows a file before its
  data is there).
- A folder: the names it had at its last sync_dir, and a prefix of the creations, renames and removals since.
- A failed sync drops the file's changes for good: they stay readable, and no later sync writes them (Linux).

It is used from several threads at once, as the disk is.
"""

from __future__ import annotations

import errno as errors
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple

from recalld.server.files import Data, Files, Handle, Lock, Locked

SECTOR = 512
OPS = ("open", "write", "truncate", "sync", "rename", "remove", "mkdir", "sync_dir")


class Change(NamedTuple):
    """A write at `at`, or, without data, a cut to the size `at`."""

    at: int
    data: bytes | None

    def apply(self, to: bytearray) -> None:
        if self.data is None:
            del to[self.at :]
            to.extend(bytes(self.at - len(to)))
        else:
            to.extend(bytes(max(0, self.at + len(self.data) - len(to))))
            to[self.at : self.at + len(self.data)] = self.data


@dataclass(eq=False)
class Node:
    """A file: what a reader sees, what is on the disk, and the changes between them."""

    data: bytearray = field(default_factory=bytearray)
    disk: bytearray = field(default_factory=bytearray)
    unsynced: list[Change] = field(default_factory=list)

    def change(self, change: Change) -> None:
        change.apply(self.data)
        self.unsynced.append(change)

    def sync(self, changes: int) -> None:
        """Let the first `changes` be on the disk."""
        for change in self.unsynced[:changes]:
            change.apply(self.disk)
        del self.unsynced[:changes]

    def drop(self) -> None:
        """A failed sync: no later one writes what was written until now. Sizes are metadata, they may still arrive."""
        self.unsynced = [
            Change(change.at + len(change.data), b"") if change.data is not None else change for change in self.unsynced
        ]

    def crash(self, rng: Random, sectors: bool) -> bytes:
        disk = bytearray(self.disk)
        done = rng.randint(0, len(self.unsynced))
        changes = self.unsynced[:done]
        if done < len(self.unsynced) and (torn := self.unsynced[done].data) is not None:
            changes.append(Change(self.unsynced[done].at, torn[: rng.randint(0, len(torn))]))
        for change in changes:
            if sectors and change.data is not None:
                change = Change(change.at, _with_holes(change, rng))
            change.apply(disk)
        return bytes(disk)


def _with_holes(change: Change, rng: Random) -> bytes:
    data = bytearray(change.data or b"")
    start = -(change.at % SECTOR)
    for begin in range(start, len(data), SECTOR):
        if rng.random() < 0.3:
            part = slice(max(begin, 0), min(begin + SECTOR, len(data)))
            data[part] = bytes(part.stop - part.start)
    return bytes(data)


Names = dict[str, Node | None]  # None: a folder
Naming = Callable[[Names], None]


@dataclass(eq=False)
class Folder:
    """The names that a reader sees, those on the disk, and the changes between them."""

    names: Names = field(default_factory=dict)
    disk: Names = field(default_factory=dict)
    unsynced: list[Naming] = field(default_factory=list)

    def change(self, change: Naming) -> None:
        change(self.names)
        self.unsynced.append(change)

    def sync(self) -> None:
        self.disk = dict(self.names)
        self.unsynced.clear()


class Gate:
    """An operation that waits: `reached` is set once it does, `open` lets it go on."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def open(self) -> None:
        self._open.set()

    def pass_through(self) -> None:
        self.reached.set()
        self._open.wait()


@dataclass
class _Fault:
    op: str
    number: int
    nth: int  # how many more calls until it fails; 0: all of them
    within: str


class FaultyFiles(Files):
    """See the head of this module. Paths are absolute; `/` is there, durable."""

    def __init__(self) -> None:
        self.capacity: int | None = None
        self.calls = dict.fromkeys(OPS, 0)
        self._folders: dict[str, Folder] = {"/": Folder()}
        self._faults: list[_Fault] = []
        self._gates: list[tuple[str, Gate]] = []
        self._held: set[str] = set()
        self._mutex = threading.RLock()

    # -- what a test does to it

    def fail(self, op: str, number: int, *, nth: int = 1, within: str = "") -> None:
        """Let the `nth` call of `op` from now, of those whose path has `within`, fail with errno `number`."""
        assert op in OPS
        self._faults.append(_Fault(op, number, nth, within))

    def heal(self) -> None:
        """No more faults, and room enough."""
        self._faults.clear()
        self.capacity = None

    def stall(self, op: str) -> Gate:
        """Let the next call of `op` wait."""
        assert op in OPS
        gate = Gate()
        self._gates.append((op, gate))
        return gate

    def crash(self, rng: Random, *, sectors: bool = False) -> FaultyFiles:
        """The disk after a power cut now, of one that `rng` chooses. This one lives on."""
        with self._mutex:
            after = FaultyFiles()
            survivors: dict[Node, Node] = {}
            todo = ["/"]
            while todo:
                path = todo.pop()
                folder = self._folders[path]
                names = dict(folder.disk)
                for change in folder.unsynced[: rng.randint(0, len(folder.unsynced))]:
                    change(names)
                kept: Names = {}
                for name, node in names.items():
                    if node is None:
                        kept[name] = None
                        todo.append(os.path.join(path, name))
                        continue
                    if node not in survivors:
                        data = node.crash(rng, sectors)
                        survivors[node] = Node(bytearray(data), bytearray(data))
                    kept[name] = survivors[node]
                after._folders[path] = Folder(kept, dict(kept))
            return after

    def image(self) -> dict[str, bytes]:
        """Each file's path and bytes, as a reader sees them."""
        with self._mutex:
            return {
                os.path.join(path, name): bytes(node.data)
                for path, folder in self._folders.items()
                for name, node in folder.names.items()
                if node is not None
            }

    def put(self, path: str, data: bytes) -> None:
        """Let `path` be a durable file of these bytes, in a durable folder."""
        with self._mutex:
            self.makedirs(os.path.dirname(path))
            folder, name = self._parent(path)
            folder.names[name] = Node(bytearray(data), bytearray(data))
            folder.sync()

    # -- what Files does

    def read(self, path: str) -> Data:
        with self._mutex:
            return bytes(self._node(path).data)

    def rename(self, old: str, new: str) -> None:
        self._step("rename", new)
        with self._mutex:
            folder, name = self._parent(old)
            target, new_name = self._parent(new)
            assert folder is target, "a rename stays in its folder"
            self._node(old)

            def change(names: Names) -> None:
                names[new_name] = names.pop(name)

            folder.change(change)

    def remove(self, path: str) -> None:
        self._step("remove", path)
        with self._mutex:
            self._node(path)
            folder, name = self._parent(path)
            folder.change(lambda names: names.pop(name) and None)

    def listdir(self, path: str) -> list[str]:
        with self._mutex:
            return sorted(self._folders[path].names) if path in self._folders else []

    def exists(self, path: str) -> bool:
        with self._mutex:
            folder = self._folders.get(os.path.dirname(path))
            return path in self._folders or (folder is not None and os.path.basename(path) in folder.names)

    def size(self, path: str) -> int:
        with self._mutex:
            return len(self._node(path).data)

    def sync_dir(self, path: str) -> None:
        self._step("sync_dir", path)
        with self._mutex:
            self._folders[path].sync()

    def lock(self, path: str, *, write_pid: bool = True) -> Lock:
        with self._mutex:
            if path in self._held:
                raise Locked(path, "1")
            if write_pid and not self.exists(path):
                self._open(path, new=True)
            self._held.add(path)
            return _FaultyLock(self._held, path)

    def _open(self, path: str, *, new: bool) -> Handle:
        self._step("open", path)
        with self._mutex:
            folder, name = self._parent(path)
            node = folder.names.get(name)
            if node is None:
                node = made = Node()
                folder.change(lambda names: names.update({name: made}))
            elif new:
                node.change(Change(0, None))
            return _FaultyHandle(self, node, path)

    def _mkdir(self, path: str) -> None:
        self._step("mkdir", path)
        with self._mutex:
            parent, name = self._parent(path)
            parent.change(lambda names: names.update({name: None}))
            self._folders[path] = Folder()

    def _parent(self, path: str) -> tuple[Folder, str]:
        directory, name = os.path.split(path)
        if directory not in self._folders:
            raise FileNotFoundError(errors.ENOENT, os.strerror(errors.ENOENT), path)
        return self._folders[directory], name

    def _node(self, path: str) -> Node:
        folder, name = self._parent(path)
        node = folder.names.get(name)
        if node is None:
            raise FileNotFoundError(errors.ENOENT, os.strerror(errors.ENOENT), path)
        return node

    def _step(self, op: str, path: str) -> None:
        """Count a call; wait or fail where a test wants that."""
        with self._mutex:
            self.calls[op] += 1
            gate = next((entry for entry in self._gates if entry[0] == op), None)
            if gate is not None:
                self._gates.remove(gate)
        if gate is not None:
            gate[1].pass_through()
        with self._mutex:
            for fault in [fault for fault in self._faults if fault.op == op and fault.within in path]:
                if fault.nth > 1:
                    fault.nth -= 1
                    continue
                if fault.nth == 1:
                    self._faults.remove(fault)
                raise OSError(fault.number, os.strerror(fault.number), path)

    def _room(self) -> int:
        if self.capacity is None:
            return 1 << 60
        return self.capacity - sum(len(data) for data in self.image().values())


class _FaultyHandle:
    def __init__(self, files: FaultyFiles, node: Node, path: str) -> None:
        self._files = files
        self._node = node
        self._path = path

    def write(self, data: memoryview, at: int) -> int:
        self._files._step("write", self._path)
        with self._files._mutex:
            end = min(at + len(data), max(len(self._node.data), at) + max(0, self._files._room()))
            if end <= at:
                raise OSError(errors.ENOSPC, os.strerror(errors.ENOSPC), self._path)
            self._node.change(Change(at, bytes(data[: end - at])))
            return end - at

    def truncate(self, size: int) -> None:
        self._files._step("truncate", self._path)
        with self._files._mutex:
            self._node.change(Change(size, None))

    def sync(self) -> None:
        # What comes while it waits is not covered.
        with self._files._mutex:
            covered = len(self._node.unsynced)
        try:
            self._files._step("sync", self._path)
        except OSError:
            with self._files._mutex:
                self._node.drop()
            raise
        with self._files._mutex:
            self._node.sync(covered)

    def size(self) -> int:
        with self._files._mutex:
            return len(self._node.data)

    def close(self) -> None:
        pass


class _FaultyLock:
    def __init__(self, held: set[str], path: str) -> None:
        self._held = held
        self._path = path

    def release(self) -> None:
        self._held.discard(self._path)
