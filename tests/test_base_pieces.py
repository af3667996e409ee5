"""A base is the same, byte by byte, in however small pieces its strings are measured and joined."""

from __future__ import annotations

from pathlib import Path

import pytest
from recalld.index.settings import Settings
from recalld.server import base
from recalld.server.base import freeze, write_base
from recalld.server.entries import Create, Put
from recalld.server.files import Files
from recalld.server.keyspace import Keyspace


def written(path: Path, keyspace: Keyspace) -> bytes:
    file = Files().create(str(path))
    write_base(file, [freeze(key, memory, 0, 5) for key, memory in keyspace.memories.items()], keyspace.vocabulary)
    file.close()
    return path.read_bytes()


@pytest.mark.parametrize(("words", "joined"), [(1, 1), (7, 100), (10_000, 64), (3, 4 << 20)])
def test_pieces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: int, joined: int) -> None:
    """Empty ones too, and memories that have none."""
    keyspace = Keyspace()
    for key in (b"k", b"empty"):
        keyspace.apply(Create(key, Settings(mode="SEARCH"), 1))
    for n in range(40):
        tags = tuple(b"tag%d" % i for i in range(n % 5))
        meta = (b"field", b"x" * n) if n % 3 else ()
        keyspace.apply(Put(b"k", b"%d" % n, b"the lake is cold " * (n % 9), b"", meta, tags, 0.25, 5, 5, 0, n, 100, 5))
    whole = written(tmp_path / "whole", keyspace)
    pieces: list[int] = []
    section = base._Writer._section

    def counted(self: base._Writer, name: str, parts: list[bytes], dtype: str) -> None:
        pieces.append(len(parts))
        section(self, name, parts, dtype)

    monkeypatch.setattr(base._Writer, "_section", counted)
    monkeypatch.setattr(base, "_WORDS", words)
    monkeypatch.setattr(base, "_JOINED", joined)
    assert written(tmp_path / "pieces", keyspace) == whole
    assert max(pieces) > 3
