"""New plain notes, of which many come: read by columns, settled and written together (entries.PutNew).

What is anything else (it changes a record, has a time of its own, is wrong) is refused here without a word, and goes
the way of all records, which says what is to be said.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple

from .arguments import NAME_BYTES, vector_number
from .entries import PutNew
from .errors import CommandError
from .record_vectors import fit_vectors

if TYPE_CHECKING:
    from ..index.memory import Memory
    from .config import Config


class NewNotes:
    """New records of one memory, one after another. `put` is what there is of them."""

    def __init__(self, config: Config, key: bytes, memory: Memory, now: int) -> None:
        self._memory = memory
        self._by_id = memory.table.by_id
        self._ids: set[bytes] = set()
        self._most_text, self._most_meta = config["mem-max-text-bytes"], config["mem-max-meta-bytes"]
        self._needs_vector = memory.settings.mode == "VECTOR"
        limit = config["mem-max-records"]
        self._left = max(0, limit - memory.held) if limit else -1
        self.put = PutNew(key, memory.next_id, config["mem-max-terms-per-doc"], now)

    def add(
        self,
        record_id: bytes | None,
        text: bytes,
        vector: bytes,
        meta: tuple[bytes, ...] = (),
        tags: tuple[bytes, ...] = (),
        importance: float = 0.5,
    ) -> bool:
        """One more, if it is one: whether it is. `vector` is as it is to be stored, b"" for none."""
        put, ids = self.put, self._ids
        if len(text) > self._most_text or not self._left or (self._needs_vector and not vector):
            return False
        next_id = put.next_id
        if record_id is None:
            number = self._memory.free_id(next_id)
            while b"%d" % number in ids:
                number = self._memory.free_id(number + 1)
            record_id, next_id = b"%d" % number, number + 1
        elif record_id in ids or record_id in self._by_id:
            return False
        if len(record_id) + (sum(map(len, meta + tags)) if meta or tags else 0) > self._most_meta:
            return False
        self._left -= 1
        ids.add(record_id)
        put.add(record_id, text, vector, meta, tags, importance, next_id)
        return True


class Alike(NamedTuple):
    """Records by columns; an option that they do not have is an empty list."""

    ids: list[bytes]
    texts: list[bytes]
    vectors: list[bytes]
    metas: list[tuple[bytes, ...]]
    tags: list[tuple[bytes, ...]]
    importance: list[float]

    def some(self, where: slice) -> Alike:
        """Some of them."""
        return Alike(*[column[where] for column in self])  # type: ignore[arg-type]  # as it has them


def alike(words: list[bytes], at: int, count: int) -> Alike | None:
    """The `count` records that all words from `at` on are, if each is spelled as the first one: the same options in the
    same order, of those that a plain note has."""
    size, rest = divmod(len(words) - at, count)
    if rest or size < 3 or words[at].upper() != b"RECORD":
        return None
    first = words[at : at + size]
    marks = [0]  # where the first one's own words are, which the others are to have as well
    values: dict[bytes, range] = {}
    metas: list[int] = []
    place = 1
    while place < size - 1:
        name = first[place][:NAME_BYTES].upper()
        marks.append(place)
        value = range(place + 1, place + 2)
        if name == b"META":
            metas += (place + 1, place + 2)
            value = range(place + 1, place + 3)
        elif name in values or name not in (b"ID", b"TEXT", b"VEC", b"IMPORTANCE", b"TAGS"):
            return None
        elif name == b"TAGS":
            number = first[place + 1]
            if not number.isdigit() or len(number) > 3 or b"%d" % int(number) != number:
                return None
            marks.append(place + 1)
            value = range(place + 2, place + 2 + int(number))
        values[name] = value
        place = value.stop
    if place != size or b"TEXT" not in values:
        return None

    def column(place: int) -> list[bytes]:
        return words[at + place :: size]

    def columns(name: bytes) -> list[list[bytes]]:
        return [column(place) for place in values.get(name, ())]

    def only(name: bytes) -> list[bytes]:
        return next(iter(columns(name)), [])

    if any(column(place).count(first[place]) != count for place in marks):
        return None
    try:
        importance = [vector_number(word) + 0.0 for word in only(b"IMPORTANCE")]  # never -0
    except CommandError:
        return None
    if not all(0.0 <= value <= 1.0 for value in importance):
        return None
    return Alike(
        only(b"ID"),
        only(b"TEXT"),
        only(b"VEC"),
        [_fields(each) for each in zip(*map(column, metas), strict=True)],
        [tuple(dict.fromkeys(each)) for each in zip(*columns(b"TAGS"), strict=True)],
        importance,
    )


def _fields(pairs: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """Fields and values, each field once, in its first place with its last value."""
    if len(pairs) == 2:
        return pairs
    return tuple(chain.from_iterable(dict(zip(pairs[::2], pairs[1::2], strict=True)).items()))


def new_notes(config: Config, key: bytes, memory: Memory, now: int, read: Alike) -> PutNew | None:
    """These records, if all are new and plain."""
    count = len(read.texts)
    vectors: Sequence[bytes | None] = fit_vectors(read.vectors, memory.settings) if read.vectors else [b""] * count
    ids: Sequence[bytes | None] = read.ids or [None] * count
    nothing: list[tuple[bytes, ...]] = [()] * count
    notes = NewNotes(config, key, memory, now)
    records = zip(
        *(ids, read.texts, vectors, read.metas or nothing, read.tags or nothing, read.importance or [0.5] * count),
        strict=True,
    )
    for record_id, text, vector, meta, tags, importance in records:
        if vector is None or not notes.add(record_id, text, vector, meta, tags, importance):
            return None
    return notes.put
