"""What facts, episodes, validity and history add to a table's rows; others have none of it.

    WRITTEN      when the text was written, for time travel: min(time of writing, time of the command)
    SINCE        when this version of the record began
    KNOWN_TO     when the version after it began, or the record was deleted; NEVER: this is the current one
    VALID_AT     from when on it is valid; -NEVER: it has no such time and always was
    VALID_UNTIL, INVALID_AT   from when on it is not any more; NEVER: none
    FLAGS        the kind (NOTE, EPISODE, FACT) and PIN
    CONFIDENCE   a float64's bits; facts alone have one

All times are unix milliseconds. Rows are append-only, as those of columns.py.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .shared import own_part

Int64s = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

NEVER = 1 << 62

NOTE, EPISODE, FACT = range(3)  # FLAGS & KIND
KIND = 3
PIN = 4
KINDS = (b"note", b"episode", b"fact")

WRITTEN, SINCE, KNOWN_TO, VALID_AT, VALID_UNTIL, INVALID_AT, FLAGS, CONFIDENCE = range(8)

_FIRST_CAPACITY = 8


class Fact(NamedTuple):
    """What a fact says and where it is from; b"" is none."""

    subject: bytes
    predicate: bytes
    object: bytes
    entity_type: bytes = b""
    quote: bytes = b""
    episode: bytes = b""
    supersedes: bytes = b""
    superseded_by: bytes = b""

    @property
    def text(self) -> bytes:
        """The record's text."""
        return b" ".join((self.subject, self.predicate, self.object))


class Extra(NamedTuple):
    """One row's side. The defaults are a plain note's; `written` and `since` are always given."""

    written: int
    since: int
    known_to: int = NEVER
    valid_at: int = -NEVER
    valid_until: int = NEVER
    invalid_at: int = NEVER
    flags: int = NOTE
    confidence: float = 0.0
    fact: Fact | None = None

    @property
    def times_and_flags(self) -> tuple[int, ...]:
        """The integers, in the order of the columns."""
        return self[:CONFIDENCE]  # type: ignore[return-value]

    @property
    def kind(self) -> int:
        return self.flags & KIND

    @property
    def until(self) -> int:
        """When it stops being valid."""
        return min(self.valid_until, self.invalid_at)

    def counts(self, now: int) -> bool:
        """Whether the record is valid at `now`."""
        return self.valid_at <= now < self.until

    def next_turn(self, now: int) -> int:
        """When `counts` changes next after `now`; NEVER: it stays as it is."""
        if now < self.valid_at:
            return self.valid_at if self.valid_at < self.until else NEVER
        return self.until if now < self.until else NEVER


class Side:
    """The side columns of one table, (8, capacity), and its facts."""

    __slots__ = ("_fact_bytes", "cols", "facts")

    def __init__(self) -> None:
        self.cols: Int64s = np.empty((8, _FIRST_CAPACITY), np.int64)
        self.facts: list[Fact | None] = []
        self._fact_bytes = 0

    @classmethod
    def plain(cls, since: Int64s) -> Side:
        """Of plain notes, written at these times (n,)."""
        side = cls()
        n = len(since)
        side.cols = np.empty((8, max(n, _FIRST_CAPACITY)), np.int64)
        rows = side.cols[:, :n]
        rows[WRITTEN] = rows[SINCE] = since
        rows[KNOWN_TO] = rows[VALID_UNTIL] = rows[INVALID_AT] = NEVER
        rows[VALID_AT] = -NEVER
        rows[FLAGS] = NOTE
        rows[CONFIDENCE] = 0
        side.facts = [None] * n
        return side

    def append(self, slot: int, extra: Extra) -> None:
        """Fill the row `slot`, the first that is not."""
        if slot >= self.cols.shape[1]:
            grown = np.empty((8, max(_FIRST_CAPACITY, 2 * self.cols.shape[1])), np.int64)
            grown[:, :slot] = self.cols[:, :slot]
            self.cols = grown
        self.cols[:CONFIDENCE, slot] = extra.times_and_flags
        self.cols[CONFIDENCE].view(np.float64)[slot] = extra.confidence
        self.facts.append(extra.fact)
        if extra.fact is not None:
            self._fact_bytes += _bytes_of(extra.fact)

    def hold(self, facts: list[Fact | None]) -> None:
        """The facts of all rows are these."""
        self.facts = facts
        self._fact_bytes = sum(_bytes_of(fact) for fact in facts if fact is not None)

    def taken(self, keep: Int64s) -> Side:
        """A new side of these rows."""
        side = Side()
        if len(keep):
            side.cols = self.cols[:, keep]
        side.hold([self.facts[slot] for slot in keep.tolist()])
        return side

    def copy(self) -> Side:
        """An independent twin, which shares the rows: the room behind them is not its own."""
        side = Side()
        side.cols, side.facts, side._fact_bytes = self.cols[:, : len(self.facts)], list(self.facts), self._fact_bytes
        return side

    def nbytes(self) -> int:
        """About how many bytes the facts take; the table counts the columns."""
        return 8 * len(self.facts) + int(self._fact_bytes * own_part(self.facts))


def _bytes_of(fact: Fact) -> int:
    return 112 + sum([48 + len(word) & -16 for word in fact if word])  # as columns.py counts words


def extra_at(cols: Int64s, facts: list[Fact | None], slot: int) -> Extra:
    """One row as a value."""
    written, since, known_to, valid_at, valid_until, invalid_at, flags = cols[:CONFIDENCE, slot].tolist()
    confidence = float(cols[CONFIDENCE].view(np.float64)[slot])
    return Extra(written, since, known_to, valid_at, valid_until, invalid_at, flags, confidence, facts[slot])
