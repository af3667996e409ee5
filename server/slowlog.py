"""The slow log: the last commands that took `slowlog-log-slower-than` microseconds or more, at most `slowlog-max-len`.

The time is from the start of a command to its reply: where a thread works on it, waiting for that thread is part of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

from .shown_words import cut


class Slow(NamedTuple):
    """One command, its words already without secrets, and cut."""

    id: int
    time_s: int
    usec: int
    words: list[bytes]
    addr: str
    client_name: bytes


class SlowLog:
    """The newest first; ids are given once in the life of the server."""

    def __init__(self, length: int) -> None:
        self._kept: deque[Slow] = deque(maxlen=length)
        self._next_id = 0

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, time_s: int, usec: int, words: list[bytes], addr: str, client_name: bytes) -> None:
        self._kept.appendleft(Slow(self._next_id, time_s, usec, cut(words), addr, client_name))
        self._next_id += 1

    def newest(self, count: int) -> Iterator[Slow]:
        """The `count` newest, all where it is -1."""
        return islice(self._kept, None if count < 0 else count)

    def resize(self, length: int) -> None:
        self._kept = deque(islice(self._kept, length), maxlen=length)

    def clear(self) -> None:
        self._kept.clear()
