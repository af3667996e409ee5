"""The cache's file: what it keeps and for how long, what forgetting leaves, and disks and files that are not well."""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from harness import PATIENCE_S
from recalld.server import embedding_cache
from recalld.server.embedder import Model
from recalld.server.embedding_cache import REFUSED, CacheFile, Front

MODEL = Model("local", "model", 48)
BIG = 1 << 40


def digest(text: int | str) -> bytes:
    return hashlib.sha256(str(text).encode()).digest()


def vector(text: int | str, dim: int = MODEL.dim) -> bytes:
    row = np.random.default_rng(list(digest(text))).standard_normal(dim)
    return np.asarray(row / np.linalg.norm(row), "<f4").tobytes()


def pairs(*texts: int | str) -> list[tuple[bytes, bytes]]:
    return [(digest(text), vector(text)) for text in texts]


def there(cache: CacheFile, *texts: int | str, minute: int = 0) -> list[int | str]:
    """Which of the texts the file has, each with its vector."""
    found = cache.get(MODEL, [digest(text) for text in texts], minute)
    assert all(found[digest(text)] == vector(text) for text in texts if digest(text) in found)
    return [text for text in texts if digest(text) in found]


def folder_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.iterdir())


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[CacheFile]:
    cache = CacheFile(str(tmp_path))
    yield cache
    cache.close()


# The front


def test_front_drops_what_was_used_least_recently() -> None:
    front = Front()
    size = 4 * MODEL.dim + 350
    for text in "abc":
        front.put(MODEL, digest(text), vector(text), False, 3 * size)
    assert front.bytes == 3 * size
    assert front.get(MODEL, digest("a")) == (vector("a"), False)
    front.put(MODEL, digest("d"), vector("d"), True, 3 * size)
    assert [front.get(MODEL, digest(text)) is not None for text in "abcd"] == [True, False, True, True]
    front.put(MODEL, digest("d"), REFUSED, False, 3 * size)
    assert front.bytes == 3 * size - 4 * MODEL.dim
    front.drop([(MODEL, digest("a")), (MODEL, digest("unknown")), (MODEL, digest("d"))])
    assert (len(front), front.bytes) == (1, size)
    front.trim(0)
    assert (len(front), front.bytes) == (0, 0)


# What is kept


def test_vectors_come_back_bit_for_bit(tmp_path: Path, cache: CacheFile) -> None:
    """By text and model, also after the file was opened anew; a text that is kept already stays as it is."""
    other = MODEL._replace(name="other")
    cache.put(MODEL, pairs("a", "b"), 0, BIG)
    cache.put(other, [(digest("a"), vector("c"))], 0, BIG)
    cache.put(MODEL, [(digest("a"), vector("x")), *pairs("c")], 0, BIG)
    for file in (cache, CacheFile(str(tmp_path))):
        assert there(file, "a", "b", "c", "d") == ["a", "b", "c"]
        assert file.get(other, [digest("a"), digest("b")], 0) == {digest("a"): vector("c")}
        assert file.get(MODEL._replace(dim=96), [digest("a")], 0) == {}
        assert file.entries == 4
        file.close()


def test_a_file_is_made_when_there_is_something_to_keep(tmp_path: Path, cache: CacheFile) -> None:
    assert there(cache, "a") == []
    assert cache.forget(list) == []
    cache.put(MODEL, pairs("a"), 0, 0)
    assert list(tmp_path.iterdir()) == []
    cache.put(MODEL, pairs("a"), 0, BIG)
    assert (tmp_path / "embeddings.sqlite").exists()


def test_more_texts_than_one_statement_takes(cache: CacheFile) -> None:
    texts = range(3 * embedding_cache._AT_ONCE + 1)
    cache.put(MODEL, pairs(*texts), 0, BIG)
    assert there(cache, *texts) == list(texts)


def test_the_least_recently_used_go_first(cache: CacheFile) -> None:
    """To the minute; those of the same minute by age. The file stays within the bound."""
    bound = 130_000
    cache.put(MODEL, pairs(*range(100)), 1, bound)
    assert there(cache, *range(100), minute=1) == list(range(100))
    assert there(cache, *range(50), minute=3) == list(range(50))
    cache.put(MODEL, pairs(*range(1000, 1400)), 2, bound)
    left = there(cache, *range(100), *range(1000, 1400), minute=2)
    gone = [text for text in (*range(50, 100), *range(1000, 1400)) if text not in left]
    assert set(range(50)) <= set(left)
    assert gone == [*range(50, 100), *range(1000, 1000 + len(gone) - 50)]
    assert len(gone) > 50
    assert cache.bytes <= bound
    assert cache.entries == len(left)
    # A sixteenth goes at once, and no more than needed.
    assert cache.bytes > bound * 0.8


def test_a_lower_bound_shrinks_the_file(tmp_path: Path, cache: CacheFile) -> None:
    path = tmp_path / "embeddings.sqlite"
    cache.put(MODEL, pairs(*range(1000)), 0, BIG)
    cache.trim(BIG)
    assert there(cache, *range(1000)) == list(range(1000))
    cache.trim(100_000)
    assert 0 < cache.entries < 1000
    assert path.stat().st_size == cache.bytes <= 100_000
    cache.trim(0)
    assert list(tmp_path.iterdir()) == []
    assert (cache.bytes, cache.entries) == (0, 0)
    cache.put(MODEL, pairs("a"), 0, BIG)
    assert there(cache, "a") == ["a"]


# Forgetting


def test_what_is_forgotten_leaves_no_byte(tmp_path: Path, cache: CacheFile) -> None:
    """Not of the vector nor of the digest, in no file of the folder: nor of what was evicted before.

    In random order, so that pages of the index are split: what moves away from a page leaves copies there.
    """
    order = np.random.default_rng(7).permutation(2000).tolist()
    for at in range(0, 2000, 40):
        cache.put(MODEL, pairs(*order[at : at + 40]), at, 500_000)
    kept = set(there(cache, *range(2000)))
    live = {text for text in kept if int(text) % 3 == 0}
    evicted = set(range(2000)) - kept
    assert live and evicted
    gone = cache.forget(lambda: (digest(text) for text in live))
    assert sorted(gone) == sorted((MODEL, digest(text)) for text in kept - live)
    content = folder_bytes(tmp_path)
    for text in (*(kept - live), *evicted):
        assert digest(text)[:12] not in content
        assert vector(text)[-12:] not in content
    assert set(there(cache, *range(2000))) == live
    assert cache.entries == len(live)


def test_while_the_file_is_copied_nobody_waits_for_it(cache: CacheFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """`get` finds nothing; what is put meanwhile comes behind, and is kept."""
    cache.put(MODEL, pairs("a"), 0, BIG)
    copying, go_on = threading.Event(), threading.Event()
    sync = embedding_cache._sync

    def slow(path: str) -> None:
        copying.set()
        assert go_on.wait(PATIENCE_S)
        sync(path)

    monkeypatch.setattr(embedding_cache, "_sync", slow)
    forgetting = threading.Thread(target=cache.forget, args=(lambda: [digest("a")],))
    forgetting.start()
    assert copying.wait(PATIENCE_S)
    assert there(cache, "a") == []
    putting = threading.Thread(target=cache.put, args=(MODEL, pairs("b"), 0, BIG))
    putting.start()
    go_on.set()
    forgetting.join(PATIENCE_S)
    putting.join(PATIENCE_S)
    assert there(cache, "a", "b") == ["a", "b"]


def test_a_text_that_comes_while_the_dead_are_sought_stays(cache: CacheFile) -> None:
    cache.put(MODEL, pairs("a"), 0, BIG)

    def live() -> list[bytes]:
        cache.put(MODEL, pairs("b"), 0, BIG)
        return []

    assert cache.forget(live) == [(MODEL, digest("a"))]
    assert there(cache, "a", "b") == ["b"]


# What is not well


def damage_head(path: Path) -> None:
    path.write_bytes(b"no database at all " * 500)


def damage_pages(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[8192:] = b"\x5a" * (len(content) - 8192)
    path.write_bytes(content)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


@pytest.mark.parametrize("harm", [damage_head, damage_pages, cut])
def test_a_damaged_file_is_set_aside(
    tmp_path: Path, harm: object, cache: CacheFile, caplog: pytest.LogCaptureFixture
) -> None:
    """And a new one begun; what was set aside goes with the next forgetting, as nobody knows what is in there."""
    cache.put(MODEL, pairs(*range(300)), 0, BIG)
    cache.close()
    assert callable(harm)
    harm(tmp_path / "embeddings.sqlite")
    again = CacheFile(str(tmp_path))
    there(again, *range(300))
    again.put(MODEL, pairs("a"), 0, BIG)
    again.put(MODEL, pairs("a"), 0, BIG)
    assert there(again, "a") == ["a"]
    assert "is damaged" in caplog.text
    assert (tmp_path / "embeddings.sqlite.damaged").exists()
    again.forget(lambda: [digest("a")])
    assert not (tmp_path / "embeddings.sqlite.damaged").exists()
    assert there(again, "a") == ["a"]
    again.close()


@pytest.mark.parametrize("statement", ["CREATE TABLE theirs (a)", "PRAGMA user_version = 2"])
def test_a_foreign_file_is_set_aside_and_left_alone(
    tmp_path: Path, cache: CacheFile, caplog: pytest.LogCaptureFixture, statement: str
) -> None:
    """Another program's database, or another version's; not even forgetting touches it."""
    path = tmp_path / "embeddings.sqlite"
    if "version" in statement:
        cache.put(MODEL, pairs("old"), 0, BIG)
        cache.close()
    db = sqlite3.connect(path)
    db.execute(statement)
    db.commit()
    db.close()
    again = CacheFile(str(tmp_path))
    assert there(again, "old") == []
    again.put(MODEL, pairs("a"), 0, BIG)
    assert there(again, "a") == ["a"]
    assert "is no cache of this version" in caplog.text
    again.forget(list)
    again.trim(0)
    assert [path.name for path in tmp_path.iterdir()] == ["embeddings.sqlite.foreign"]
    again.close()


@pytest.mark.parametrize("change", ["zeroblob(192)", "substr(vector, 5)", "'text'", "randomblob(192)", "NULL"])
def test_a_vector_that_is_none_is_dropped(tmp_path: Path, cache: CacheFile, change: str) -> None:
    cache.put(MODEL, pairs("a", "b"), 0, BIG)
    cache.close()
    db = sqlite3.connect(tmp_path / "embeddings.sqlite")
    db.execute(f"UPDATE vectors SET vector = {change} WHERE id = 1")
    db.commit()
    db.close()
    again = CacheFile(str(tmp_path))
    assert there(again, "a", "b") == ["b"]
    assert again.entries == 1
    again.put(MODEL, pairs("a"), 0, BIG)
    assert there(again, "a", "b") == ["a", "b"]
    again.close()


def test_a_file_in_use_by_another_process_turns_the_cache_off(
    tmp_path: Path, cache: CacheFile, caplog: pytest.LogCaptureFixture
) -> None:
    """As does whatever else keeps it from being read or written: one warning, and no error."""
    cache.put(MODEL, pairs("a"), 0, BIG)
    other = CacheFile(str(tmp_path))
    other.put(MODEL, pairs("b"), 0, BIG)
    assert there(other, "a", "b") == []
    other.put(MODEL, pairs("b"), 0, BIG)
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "The cache of embeddings is off" in caplog.text and "locked" in caplog.text
    assert there(cache, "a") == ["a"]
    other.close()


class Full:
    """A connection whose disk is full whenever one of `words` is to be written."""

    def __init__(self, db: sqlite3.Connection, *words: str) -> None:
        self._db = db
        self._words = words

    def _check(self, statement: str) -> None:
        if statement.startswith(self._words):
            raise sqlite3.OperationalError("database or disk is full")

    def execute(self, statement: str, *given: object) -> sqlite3.Cursor:
        self._check(statement)
        return self._db.execute(statement, *given)  # type: ignore[arg-type]

    def executemany(self, statement: str, *given: object) -> sqlite3.Cursor:
        self._check(statement)
        return self._db.executemany(statement, *given)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> object:
        return getattr(self._db, name)


@pytest.mark.parametrize("words", ["BEGIN", "INSERT", "COMMIT"])
def test_a_full_disk_turns_the_file_off(
    tmp_path: Path, cache: CacheFile, caplog: pytest.LogCaptureFixture, words: str
) -> None:
    """Until something is forgotten: then the file goes, and may begin anew."""
    cache.put(MODEL, pairs("a"), 0, BIG)
    cache._db = Full(cache._db, words)  # type: ignore[assignment, arg-type]
    cache.put(MODEL, pairs("b"), 0, BIG)
    cache.put(MODEL, pairs("b"), 0, BIG)
    assert there(cache, "a", "b") == []
    assert len(caplog.records) == 1
    cache.forget(lambda: [digest("a")])
    assert list(tmp_path.iterdir()) == []
    cache.put(MODEL, pairs("b"), 0, BIG)
    assert there(cache, "a", "b") == ["b"]


@pytest.mark.parametrize("words", ["DELETE", "VACUUM", "COMMIT"])
def test_what_cannot_be_forgotten_goes_with_the_file(
    tmp_path: Path, cache: CacheFile, caplog: pytest.LogCaptureFixture, words: str
) -> None:
    cache.put(MODEL, pairs("a", "b"), 0, BIG)
    cache._db = Full(cache._db, words)  # type: ignore[assignment, arg-type]
    cache.forget(lambda: [digest("a")])
    assert list(tmp_path.iterdir()) == []
    assert "The cache of embeddings is off" in caplog.text


def test_a_folder_that_is_not_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    cache = CacheFile(str(tmp_path / "none"))
    cache.put(MODEL, pairs("a"), 0, BIG)
    assert there(cache, "a") == []
    assert "The cache of embeddings is off" in caplog.text
    assert cache.forget(list) == []
