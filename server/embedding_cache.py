"""Vectors of texts that were embedded before: the newest in memory, those of records in a file.

The file, `embeddings.sqlite`, is a cache and no more: whatever is wrong with it costs time, never an answer.

    models    id, embedder, name, dim
    vectors   id, model, text (sha256 of the text's bytes), vector (float32, little-endian), used (unix minutes)

Rule 1: a damaged or foreign file is set aside, a disk that is full or read-only only turns the file off; either is
        logged once.
Rule 2: what is forgotten leaves no byte behind: what lives is copied to a new file, which takes the old one's place.
        (secure_delete does not do: a page that was split keeps copies of the rows that moved.) Where that fails, the
        file goes as a whole.
Rule 3: a vector is checked when it is read: its size, and that it is of unit length.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sqlite3
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from .embedder import Model

log = logging.getLogger("recalld")

FILE_NAME = "embeddings.sqlite"
NEW = ".new"
DAMAGED = ".damaged"
FOREIGN = ".foreign"

_APPLICATION_ID = 0x7265634C  # recL
_VERSION = 1
_SCHEMA = """
CREATE TABLE models (id INTEGER PRIMARY KEY, embedder TEXT, name TEXT, dim INTEGER, UNIQUE (embedder, name, dim));
CREATE TABLE vectors (id INTEGER PRIMARY KEY, model INTEGER, text BLOB, vector BLOB, used INTEGER);
CREATE UNIQUE INDEX by_text ON vectors (text, model);
CREATE INDEX by_use ON vectors (used);
"""
# Vectors of 384 to 1536 dimensions fill pages of 8 KiB better (.75 to .96) than those of 4 KiB.
_PAGE_BYTES = 8192
# What an entry of the front takes besides its vector: two bytes objects, two tuples and the dictionary's node.
_ENTRY_BYTES = 350
_AT_ONCE = 500  # rows per statement
# A database, and what SQLite may have put beside it.
_BESIDE = ("", "-wal", "-shm", "-journal")

_T = TypeVar("_T")

#: What the front holds for a text that the model has no vector for.
REFUSED = b""


class Front:
    """The vectors used last, in memory. Used on the loop alone.

    `kept`: the vector is in the file as well, or on its way there.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._entries: OrderedDict[tuple[Model, bytes], tuple[bytes, bool]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def get(self, model: Model, text: bytes) -> tuple[bytes, bool] | None:
        """(vector or REFUSED, kept) of a text by its sha256."""
        entry = self._entries.get((model, text))
        if entry is not None:
            self._entries.move_to_end((model, text))
        return entry

    def put(self, model: Model, text: bytes, vector: bytes, kept: bool, bound: int) -> None:
        old = self._entries.pop((model, text), None)
        if old is not None:
            self.bytes -= len(old[0]) + _ENTRY_BYTES
        self._entries[model, text] = (vector, kept)
        self.bytes += len(vector) + _ENTRY_BYTES
        self.trim(bound)

    def trim(self, bound: int) -> None:
        while self.bytes > bound:
            _, (vector, _) = self._entries.popitem(last=False)
            self.bytes -= len(vector) + _ENTRY_BYTES

    def drop(self, forgotten: Iterable[tuple[Model, bytes]]) -> None:
        for key in forgotten:
            entry = self._entries.pop(key, None)
            if entry is not None:
                self.bytes -= len(entry[0]) + _ENTRY_BYTES


class CacheFile:
    """The file in `directory`. Every method blocks and may be called from any thread; none raises.

    Of a file that is being copied `get` finds nothing, rather than have its caller wait.
    """

    def __init__(self, directory: str) -> None:
        self.path = os.path.join(directory, FILE_NAME)
        self.bytes = 0
        self.entries = 0
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        self._off = False
        self._copying = False
        self._models: dict[Model, int] = {}

    def get(self, model: Model, texts: Sequence[bytes], minute: int) -> dict[bytes, bytes]:
        """The vectors that are there, by the sha256 of the text; they count as used at `minute`."""
        found: dict[bytes, bytes] = {}
        if self._copying:
            return found
        with self._lock, self._guarded():
            db = self._open(make=False)
            if db is None:
                return found
            bad: list[int] = []
            stale: list[int] = []
            for part in _parts(texts):
                marks = ",".join("?" * len(part))
                rows = db.execute(
                    f"SELECT id, text, vector, used FROM vectors WHERE text IN ({marks}) AND model = ?",
                    (*part, self._models.get(model, 0)),
                )
                for row, text, vector, used in rows:
                    if not _is_vector(vector, model.dim):
                        bad.append(row)
                        continue
                    found[text] = vector
                    if used != minute:
                        stale.append(row)
            if bad or stale:
                with _transaction(db):
                    db.executemany("DELETE FROM vectors WHERE id = ?", [(row,) for row in bad])
                    db.executemany("UPDATE vectors SET used = ? WHERE id = ?", [(minute, row) for row in stale])
                self.entries -= len(bad)
        return found

    def put(self, model: Model, vectors: Sequence[tuple[bytes, bytes]], minute: int, bound: int) -> None:
        """Keep (sha256 of the text, vector) of each; then evict the least recently used beyond `bound` bytes."""
        with self._lock, self._guarded():
            db = self._open(make=bound > 0)
            if db is None:
                return
            with _transaction(db):
                number = self._models.get(model)
                if number is None:
                    number = db.execute("INSERT INTO models (embedder, name, dim) VALUES (?, ?, ?)", model).lastrowid
                    assert number is not None
                added = db.executemany(
                    "INSERT OR IGNORE INTO vectors (model, text, vector, used) VALUES (?, ?, ?, ?)",
                    [(number, text, vector, minute) for text, vector in vectors],
                ).rowcount
            self._models[model] = number
            self.entries += added
            self._evict(db, bound)

    def trim(self, bound: int) -> None:
        """Make the file no larger than `bound`; 0 deletes it."""
        with self._lock, self._guarded():
            db = self._open(make=False)
            if db is not None and bound == 0:
                self._remove()
            elif db is not None and self._evict(db, bound):
                self._copy(db)

    def forget(self, live: Callable[[], Iterable[bytes]]) -> list[tuple[Model, bytes]]:
        """Delete every vector whose text is not among `live()`; return what was deleted.

        The copy takes as long as writing the file does. It is made even if nothing is dead now: what eviction deleted
        before still stands in the file.
        """
        rows: list[Any] = []
        with self._lock, self._guarded(or_remove=True):
            _unlink_all(self.path + NEW)
            _unlink_all(self.path + DAMAGED)
            if self._off:
                # What is in there cannot be told any more; the next vector starts it anew.
                self._remove()
            db = self._open(make=False)
            if db is None:
                return []
            # Before `live` looks, so that a text that comes in between is not taken for a dead one.
            rows = db.execute(
                "SELECT v.id, v.text, m.embedder, m.name, m.dim FROM vectors v JOIN models m ON m.id = v.model"
            ).fetchall()
        kept = set(live())
        dead = [row for row in rows if row[1] not in kept]
        self._copying = True
        try:
            with self._lock, self._guarded(or_remove=True):
                db = self._open(make=False)
                if db is not None:
                    with _transaction(db):
                        db.executemany("DELETE FROM vectors WHERE id = ?", [(row[0],) for row in dead])
                    self._copy(db)
        finally:
            self._copying = False
        return [(Model(*model), text) for _, text, *model in dead]

    def close(self) -> None:
        with self._lock, self._guarded():
            if self._db is not None:
                self._db.close()
            self._db = None

    # -- the rest runs under the lock

    def _open(self, make: bool) -> sqlite3.Connection | None:
        """The connection; None where the file is off, or missing and not to be made."""
        if self._db is None and not self._off and (make or os.path.exists(self.path)):
            self._db = self._connect()
            if self._db is None:
                _set_aside(self.path, FOREIGN, "is no cache of this version")
                self._db = self._connect()
        return self._db

    def _connect(self) -> sqlite3.Connection | None:
        """None where the file is another program's, or another version's."""
        db = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, timeout=0)
        try:
            # No file of shared memory beside it, and no other process in it.
            db.execute("PRAGMA locking_mode = EXCLUSIVE")
            tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if not tables:
                db.execute(f"PRAGMA page_size = {_PAGE_BYTES}")
            elif (_pragma(db, "application_id"), _pragma(db, "user_version")) != (_APPLICATION_ID, _VERSION):
                db.close()
                return None
            db.execute("PRAGMA journal_mode = WAL")
            db.execute("PRAGMA synchronous = NORMAL")
            if not tables:
                marks = f"PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {_VERSION};"
                db.executescript(f"BEGIN; {_SCHEMA} {marks} COMMIT;")
            self._models = {Model(*row): number for number, *row in db.execute("SELECT * FROM models")}
            self.entries = db.execute("SELECT count(*) FROM vectors").fetchone()[0]
            self.bytes = _used_bytes(db)
        except BaseException:
            db.close()
            raise
        return db

    def _evict(self, db: sqlite3.Connection, bound: int) -> bool:
        """Whether anything was deleted."""
        self.bytes = _used_bytes(db)
        evicts = self.bytes > bound and self.entries > 0
        while self.bytes > bound and self.entries > 0:
            # A sixteenth at once: finding the oldest is not for every write.
            with _transaction(db):
                deleted = db.execute(
                    "DELETE FROM vectors WHERE id IN (SELECT id FROM vectors ORDER BY used, id LIMIT ?)",
                    (max(1, self.entries // 16),),
                ).rowcount
            # 0: the count was wrong, as after a write that failed half-way.
            self.entries = self.entries - deleted if deleted else 0
            self.bytes = _used_bytes(db)
        return evicts

    def _copy(self, db: sqlite3.Connection) -> None:
        """Put a copy without anything deleted in the file's place."""
        new = self.path + NEW
        _unlink(new)
        db.execute("VACUUM INTO ?", (new,))
        self._disconnect()
        _sync(new)
        _unlink(self.path + "-wal")  # in case it could not be closed: it is not the new file's
        os.replace(new, self.path)
        _sync(os.path.dirname(self.path))
        self._open(make=False)

    @contextlib.contextmanager
    def _guarded(self, or_remove: bool = False) -> Iterator[None]:
        """Rule 1. `or_remove`: nothing may be left of what was to be deleted."""
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            self._disconnect()
            try:
                if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                    _set_aside(self.path, DAMAGED, f"is damaged ({error})")
                    if or_remove:
                        _unlink_all(self.path + DAMAGED)
                    return
                if or_remove:
                    self._remove()
            except OSError as worse:
                error = worse
            self._off = True
            log.warning("The cache of embeddings is off: %s: %s", self.path, error)

    def _disconnect(self) -> None:
        if self._db is not None:
            with contextlib.suppress(sqlite3.Error):
                self._db.close()
        self._db = None
        self._models = {}
        self.bytes = self.entries = 0

    def _remove(self) -> None:
        """Delete the file and its log; the next vector makes it anew."""
        self._disconnect()
        _unlink_all(self.path)
        _unlink_all(self.path + NEW)
        self._off = False


def _parts(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    return (items[at : at + _AT_ONCE] for at in range(0, len(items), _AT_ONCE))


@contextlib.contextmanager
def _transaction(db: sqlite3.Connection) -> Iterator[None]:
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # A full disk ends the transaction by itself.
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


def _pragma(db: sqlite3.Connection, name: str) -> int:
    value: int = db.execute(f"PRAGMA {name}").fetchone()[0]
    return value


def _used_bytes(db: sqlite3.Connection) -> int:
    return (_pragma(db, "page_count") - _pragma(db, "freelist_count")) * _pragma(db, "page_size")


def _is_vector(vector: object, dim: int) -> bool:
    if not isinstance(vector, bytes) or len(vector) != 4 * dim:
        return False
    with np.errstate(all="ignore"):
        row = np.frombuffer(vector, "<f4").astype(np.float64)
        return abs(float(row @ row) - 1.0) < 1e-3  # False for NaN too


def _set_aside(path: str, suffix: str, why: str) -> None:
    log.warning("%s %s: set aside as %s, and started anew", path, why, path + suffix)
    for beside in _BESIDE:
        with contextlib.suppress(FileNotFoundError):
            os.replace(path + beside, path + suffix + beside)


def _unlink_all(path: str) -> None:
    for beside in _BESIDE:
        _unlink(path + beside)


def _sync(path: str) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def _unlink(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
