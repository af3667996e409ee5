"""The append-only file, first form: one file, RESP commands, replayed at start.

    file   := header group*
    header := *3 "RECALLD" "AOF" "1"                      the format's name and version
    group  := entry                                       one settled command, see entries.py
            | *1 "MULTI" entry+ *1 "EXEC"                 several that apply together or not at all

Every command is a RESP array of bulk strings, in the one canonical spelling. A group counts once its last byte is
there: a file that ends inside one is what a crash leaves, so that tail is cut (or refused, `aof-load-truncated no`)
and the log says how much. Bytes that are no RESP, or commands that are no entries, are damage: the server refuses to
start, names the offset and touches nothing.

`appendfsync always` releases replies after the fsync that covers them, which a thread does for all clients at once;
the entries of the meantime gather for the next one. `everysec` and `no` release them when write(2) returned.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import IO, TYPE_CHECKING

from hiredis import pack_command as _pack_command

from ..protocol.errors import ProtocolError
from ..protocol.parser import Parser
from .entries import Entry, decode

if TYPE_CHECKING:
    from asyncio import AbstractEventLoop

    from .connection import Connection

log = logging.getLogger("recalld")



def pack(words: Iterable[bytes]) -> bytes:
    """A command in RESP, the canonical spelling."""
    packed: bytes = _pack_command(tuple(words))  # type: ignore[arg-type]  # its stub wants a tuple of one
    return packed


HEADER = pack((b"RECALLD", b"AOF", b"1"))
_MULTI = pack((b"MULTI",))
_EXEC = pack((b"EXEC",))
_CHUNK = 1 << 20


class LogDamaged(Exception):
    """The file is not one this server wrote: where, and what to do."""


class Log:
    """A log that keeps nothing: `appendonly no`, and the base of the file.

    `position` counts the bytes appended, `released` those whose replies may leave; `waiters` are the connections to
    `drain` when `released` moves. `failure` is why writes are refused, None while they are not.
    """

    def __init__(self) -> None:
        self.position = 0
        self.released = 0
        self.waiters: set[Connection] = set()
        self.failure: str | None = None

    def append(self, group: list[Entry]) -> None:
        """Log entries that belong together."""

    def flush(self) -> None:
        """Hand what was appended to the system, at the end of a loop tick."""

    def every_second(self) -> None:
        """Fsync by policy, retry after a failure."""

    def close(self) -> None:
        """Write and sync what is left."""

    def set_policy(self, policy: str) -> None:
        """Follow CONFIG SET appendfsync."""


class FileLog(Log):
    """The append-only file at `path`, opened for appending; the caller has replayed it."""

    def __init__(self, path: str, policy: str, loop: AbstractEventLoop) -> None:
        super().__init__()
        self.path = path
        self.policy = policy
        self._loop = loop
        self._buffer: list[bytes] = []
        self._file = _open(path)
        self._size = self._file.seek(0, os.SEEK_END)
        self._thread = ThreadPoolExecutor(1, "aof")
        self._syncing: Future[None] | None = None
        self._scheduled = False
        self._unsynced = False
        self._waited_s = 0

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._size

    def append(self, group: list[Entry]) -> None:
        parts = [pack(entry.encode()) for entry in group]
        data: bytes = parts[0] if len(parts) == 1 else b"".join((_MULTI, *parts, _EXEC))
        self._buffer.append(data)
        self.position += len(data)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self.flush)

    def flush(self) -> None:
        self._scheduled = False
        if not self._buffer or self.failure is not None:
            return
        if self._syncing is not None:
            # write(2) on a file that is being synced blocks on most file systems, and the loop with it. With
            # `always` the next sync is due anyway; with `everysec` replies wait up to two seconds, as in Redis.
            if self.policy == "always" or self._waited_s < 2:
                return
            log.warning("Asynchronous AOF fsync is taking too long (disk is busy?). Writing without waiting.")
        data, self._buffer = self._buffer, []
        if self.policy == "always":
            position = self.position
            self._syncing = self._thread.submit(self._write_and_sync, data)
            self._syncing.add_done_callback(
                lambda done: self._loop.call_soon_threadsafe(self._synced, done, data, position)
            )
            return
        try:
            self._write(data)
        except OSError as error:
            self._fail(error, data)
            return
        self._unsynced = True
        self._release(self.position)

    def every_second(self) -> None:
        if self.failure is not None:
            self._recover()
        if self._syncing is not None:
            self._waited_s += 1
            self.flush()
        elif self._unsynced and self.policy == "everysec":
            self._unsynced = False
            self._waited_s = 0
            self._syncing = self._thread.submit(os.fsync, self._file.fileno())
            self._syncing.add_done_callback(
                lambda done: self._loop.call_soon_threadsafe(self._synced, done, [], self.released)
            )

    def set_policy(self, policy: str) -> None:
        self.policy = policy
        if policy != "always" and self._syncing is None:
            self.flush()

    def close(self) -> None:
        self._thread.shutdown(wait=True)
        if self.failure is None:
            self._write(self._buffer)
            os.fsync(self._file.fileno())
        self._file.close()

    # -- in the thread for `always`, on the loop otherwise

    def _write(self, data: list[bytes]) -> None:
        """Append all of `data` or, where that fails, nothing of it."""
        blob = memoryview(b"".join(data))
        written = 0
        try:
            while written < len(blob):
                written += os.write(self._file.fileno(), blob[written:])
        except OSError:
            os.ftruncate(self._file.fileno(), self._size)
            raise
        self._size += written

    def _write_and_sync(self, data: list[bytes]) -> None:
        before = self._size
        self._write(data)
        try:
            os.fsync(self._file.fileno())
        except OSError:
            os.ftruncate(self._file.fileno(), before)
            self._size = before
            raise

    # -- back on the loop

    def _synced(self, done: Future[None], data: list[bytes], position: int) -> None:
        self._syncing = None
        self._waited_s = 0
        error = done.exception()
        if isinstance(error, OSError):
            self._fail(error, data)
            return
        if error is not None:
            raise error
        if data:
            self._release(position)
        self.flush()

    def _release(self, position: int) -> None:
        self.released = position
        waiters, self.waiters = self.waiters, set()
        for connection in waiters:
            connection.drain()

    def _fail(self, error: OSError, data: list[bytes]) -> None:
        # What is in memory but not in the file stays here, in order, and goes first once the disk is back: the
        # replies that depend on it wait, so nothing is acknowledged that is not logged.
        self._buffer[:0] = data
        self.failure = (
            "Errors writing to the AOF file: "
            f"{error.strerror or error}. Writes are refused until it can be written again; reads go on."
        )
        log.error("Error writing to the AOF file %s: %s", self.path, error)

    def _recover(self) -> None:
        self.failure = None
        self.flush()
        if self.failure is None:
            log.warning("AOF write error looks solved, writes are accepted again.")


def _open(path: str) -> IO[bytes]:
    file = open(path, "ab", buffering=0)  # noqa: SIM115 - it lives as long as the log
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise LogDamaged(f"{path} is in use by another server") from error
    if file.seek(0, os.SEEK_END) == 0:
        file.write(HEADER)
        os.fsync(file.fileno())
    return file


def load(path: str, apply: Callable[[Entry], None], *, cut_tail: bool) -> int:
    """Replay the file at `path` through `apply`; how many entries. A torn tail is cut off, or raises LogDamaged."""
    if not os.path.exists(path) or os.path.getsize(path) == 0:
        return 0
    count = 0
    with open(path, "rb") as file:
        whole = 0
        for end, group in read_groups(file, path):
            try:
                for entry in group:
                    apply(entry)
            except KeyError as error:
                raise _damaged(path, whole, f"an entry is about a key or record that is not there: {error}") from error
            count += len(group)
            whole = end
        size = file.seek(0, os.SEEK_END)
    if whole < size:
        if not cut_tail:
            raise LogDamaged(
                f"{path} ends in the middle of an entry: {size - whole} bytes from offset {whole} on. With"
                " `aof-load-truncated yes` they are cut and the rest is loaded."
            )
        log.warning("%s: cut a torn tail of %d bytes at offset %d", path, size - whole, whole)
        with open(path, "r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())
    return count


def read_groups(file: IO[bytes], path: str) -> Iterator[tuple[int, list[Entry]]]:
    """Each whole group of the file with the offset where it ends; the header is an empty group."""
    parser = Parser(max_bulk_bytes=1 << 40)
    fed = offset = 0
    group: list[Entry] | None = None
    while chunk := file.read(_CHUNK):
        parser.feed(chunk)
        fed += len(chunk)
        try:
            while (words := parser.next_command()) is not None:
                start, offset = offset, offset + len(pack(words))
                if start == 0:
                    _check_header(words)
                    yield offset, []
                elif words == [b"MULTI"]:
                    group = []
                elif words == [b"EXEC"] and group is not None:
                    yield offset, group
                    group = None
                elif group is not None:
                    group.append(decode(words))
                else:
                    yield offset, [decode(words)]
        except (ProtocolError, ValueError) as error:
            raise _damaged(path, offset, str(error)) from error
        if offset + parser.buffered_bytes != fed:
            raise _damaged(path, offset, "an entry is not in the canonical spelling")


def _damaged(path: str, offset: int, why: str) -> LogDamaged:
    return LogDamaged(
        f"{path} is damaged at or after offset {offset}: {why}. Restore the file from a backup, or cut it there and"
        " lose what follows; nothing was changed."
    )


def _check_header(words: list[bytes]) -> None:
    if words[:2] != [b"RECALLD", b"AOF"]:
        raise ValueError("it does not begin as a recalld append-only file")
    if words[2:] != [b"1"]:
        raise ValueError(f"format version {words[2:]!r} is not one that this server reads (1)")
