"""The one door to the disk for everything durable: what a crash may undo, and when it no longer can.

Rule 1: what was written is safe once `sync` of that file returned.
Rule 2: that a name exists, is gone or means another file is safe once `sync_dir` of its folder returned.
Rule 3: an append is whole or was not: what a failed write left is cut off before anything else is written.
Rule 4: a failed `sync` says nothing about what is on the disk, and the next one may pass without having written it
        (Linux drops the pages): what was not synced before must be cut and written again.

`tests/faulty_files.py` stands in for this module: it forgets what these rules do not promise, and fails on request.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
from typing import Protocol

Data = bytes | mmap.mmap

# What NewFile gathers before it writes: a base of many small memories would otherwise be a write(2) per column.
_GATHERED_BYTES = 1 << 20
# macOS: fsync leaves the data in the drive's cache.
_FULL_FSYNC: int | None = getattr(fcntl, "F_FULLFSYNC", None)


class Locked(Exception):
    """Another process holds the lock: `path`, and its `pid` as it stands in the file."""

    def __init__(self, path: str, pid: str) -> None:
        super().__init__(f"{path} is held by another process (pid {pid or 'unknown'})")
        self.path = path
        self.pid = pid


class Handle(Protocol):
    """An open file, as the system has it: a write may be short, and whatever fails raises OSError."""

    def write(self, data: memoryview, at: int) -> int: ...
    def truncate(self, size: int) -> None: ...
    def sync(self) -> None: ...
    def size(self) -> int: ...
    def close(self) -> None: ...


class AppendFile:
    """A file that grows at its end by whole writes. `size` is the end of the last one."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._size = handle.size()
        self._dirty = False  # there may be bytes behind `size`

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._size

    def write(self, data: bytes) -> None:
        """Append all of `data`; where that fails, nothing of it, and OSError."""
        if self._dirty:
            self.truncate(self._size)
        rest, at = memoryview(data), self._size
        self._dirty = True
        try:
            while rest:
                written = self._handle.write(rest, at)
                rest, at = rest[written:], at + written
        except OSError:
            self._undo()
            raise
        self._size = at
        self._dirty = False

    def truncate(self, size: int) -> None:
        """Cut the file to its first `size` bytes."""
        self._size = size
        self._dirty = True
        self._handle.truncate(size)
        self._dirty = False

    def sync(self) -> None:
        """Return once all that was written is on the disk."""
        self._handle.sync()

    def close(self) -> None:
        self._handle.close()

    def _undo(self) -> None:
        # Where that fails, too, the next write tries again; a crash before it leaves a torn tail.
        with contextlib.suppress(OSError):
            self.truncate(self._size)


class NewFile:
    """A file written from its beginning, once. An OSError leaves it of no use."""

    def __init__(self, handle: Handle) -> None:
        self._handle = handle
        self._at = 0
        self._gathered = bytearray()

    def write(self, data: bytes | memoryview) -> int:
        """Add `data`, all of it; it may wait in memory until `sync` or `close`."""
        if len(self._gathered) + len(data) < _GATHERED_BYTES:
            self._gathered += data
        else:
            self._flush()
            self._put(memoryview(data))
        return len(data)

    def sync(self) -> None:
        """Return once all that was written is on the disk."""
        self._flush()
        self._handle.sync()

    def close(self) -> None:
        try:
            self._flush()
        finally:
            self._handle.close()

    def _flush(self) -> None:
        gathered, self._gathered = self._gathered, bytearray()
        self._put(memoryview(gathered))

    def _put(self, rest: memoryview) -> None:
        while rest:
            written = self._handle.write(rest, self._at)
            rest, self._at = rest[written:], self._at + written


class Lock(Protocol):
    """Held until `release`, or the end of the process."""

    def release(self) -> None: ...


class Files:
    """The disk. Paths are those of the system; everything raises OSError as `os` does."""

    def open_append(self, path: str) -> AppendFile:
        """Open `path` to append to; it is created, empty, where it is not there."""
        return AppendFile(self._open(path, new=False))

    def create(self, path: str) -> NewFile:
        """Open `path` to write it anew."""
        return NewFile(self._open(path, new=True))

    def copy(self, path: str, to: str) -> None:
        """Write a synced copy of `path` to the new name `to`."""
        if self.exists(to):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), to)
        file = self.create(to)
        try:
            with memoryview(self.read(path)) as view:
                file.write(view)
            file.sync()
        finally:
            file.close()

    def read(self, path: str) -> Data:
        """The file's bytes, mapped where it has any; the mapping lives as long as what refers to it."""
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size == 0:
                return b""
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)

    def rename(self, old: str, new: str) -> None:
        """Let `new` mean what `old` meant, in one step; a file of that name goes."""
        os.rename(old, new)

    def remove(self, path: str) -> None:
        os.remove(path)

    def listdir(self, path: str) -> list[str]:
        """The names in the folder, sorted; none where it is not there."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def size(self, path: str) -> int:
        return os.path.getsize(path)

    def makedirs(self, path: str) -> None:
        """Create the folder and those above it, durably."""
        path = os.path.abspath(path)
        if self.exists(path):
            return
        parent = os.path.dirname(path)
        self.makedirs(parent)
        self._mkdir(path)
        self.sync_dir(parent)

    def sync_dir(self, path: str) -> None:
        """Return once the names of the folder are on the disk."""
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def lock(self, path: str, *, write_pid: bool = True) -> Lock:
        """Hold `path` for this process, its pid written into it unless it is to stay as it is. Raises Locked."""
        flags = os.O_RDWR | os.O_CREAT if write_pid else os.O_RDONLY
        fd = os.open(path, flags | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if write_pid:
                os.ftruncate(fd, 0)
                os.pwrite(fd, b"%d\n" % os.getpid(), 0)
        except BlockingIOError:
            pid = os.pread(fd, 32, 0).strip()
            os.close(fd)
            raise Locked(path, pid.decode() if pid.isdigit() else "") from None
        except OSError:
            os.close(fd)
            raise
        return _Lock(fd)

    def _open(self, path: str, *, new: bool) -> Handle:
        truncate = os.O_TRUNC if new else 0
        return _Handle(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | truncate, 0o644))

    def _mkdir(self, path: str) -> None:
        os.mkdir(path)


class _Handle:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, data: memoryview, at: int) -> int:
        return os.pwrite(self._fd, data, at)

    def truncate(self, size: int) -> None:
        os.ftruncate(self._fd, size)

    def sync(self) -> None:
        if _FULL_FSYNC is not None:
            fcntl.fcntl(self._fd, _FULL_FSYNC)
        else:
            os.fdatasync(self._fd)

    def size(self) -> int:
        return os.fstat(self._fd).st_size

    def close(self) -> None:
        os.close(self._fd)


class _Lock:
    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        # The file stays: a third process that opened it a moment ago would hold the lock of a file without a name.
        os.close(self._fd)
