"""New plain notes, of which many come: read by columns, settled and written together (entries.PutNew).

What is anything else (it changes a record, has a time of its own, is wrong) is refused here without a word, and goes
the way of all records, which says what is to be said.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

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


class Form(NamedTuple):
    """How a plain note is spelled: where its options' names, and TAGS's count, are in a list of words (`marks`; `names`
    takes them out of one, and are `said` there), and where the values; 0 for an option that there is not."""

    size: int
    marks: tuple[int, ...]
    names: itemgetter[Any]
    said: Any
    id: int
    text: int
    vector: int
    importance: int
    metas: tuple[int, ...]  # of each pair, field and value
    tags: range

    def fits(self, words: Sequence[bytes]) -> bool:
        """Whether these are spelled so too."""
        return len(words) == self.size and bool(self.names(words) == self.said)


def form_of(words: Sequence[bytes], place: int) -> Form | None:
    """That of a note whose options begin at `place`; None where it asks for more than a plain one, or for less."""
    size = len(words)
    marks: list[int] = []
    values: dict[bytes, int] = {}
    metas: list[int] = []
    tags = range(0)
    while place < size - 1:
        name = words[place][:NAME_BYTES].upper()
        marks.append(place)
        behind = place + 2
        if name == b"META":
            metas += (place + 1, place + 2)
            behind = place + 3
        elif name in values or name not in (b"ID", b"TEXT", b"VEC", b"IMPORTANCE", b"TAGS"):
            return None
        elif name == b"TAGS":
            number = words[place + 1]
            if not number.isdigit() or len(number) > 3 or b"%d" % int(number) != number:
                return None
            marks.append(place + 1)
            behind = place + 2 + int(number)
            tags = range(place + 2, behind)
        values[name] = place + 1
        place = behind
    if place != size or b"TEXT" not in values:
        return None
    names = itemgetter(*marks)
    at = [values.get(name, 0) for name in (b"ID", b"TEXT", b"VEC", b"IMPORTANCE")]
    return Form(size, tuple(marks), names, names(words), at[0], at[1], at[2], at[3], tuple(metas), tags)


def importance_of(word: bytes) -> float:
    """Raises CommandError where it is none."""
    value = vector_number(word) + 0.0  # never -0
    if not 0.0 <= value <= 1.0:
        raise CommandError("IMPORTANCE must be between 0 and 1")
    return value


def fields_of(pairs: Sequence[bytes]) -> tuple[bytes, ...]:
    """Fields and values, each field once, in its first place with its last value."""
    if len(pairs) == 2:
        return tuple(pairs)
    return tuple(chain.from_iterable(dict(zip(pairs[::2], pairs[1::2], strict=True)).items()))


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
    form = form_of(first, 1)
    if form is None:
        return None

    def column(place: int) -> list[bytes]:
        return words[at + place :: size]

    if any(column(place).count(first[place]) != count for place in (0, *form.marks)):
        return None
    try:
        importance = list(map(importance_of, column(form.importance))) if form.importance else []
    except CommandError:
        return None
    return Alike(
        column(form.id) if form.id else [],
        column(form.text),
        column(form.vector) if form.vector else [],
        [fields_of(each) for each in zip(*map(column, form.metas), strict=True)],
        [tuple(dict.fromkeys(each)) for each in zip(*map(column, form.tags), strict=True)],
        importance,
    )


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
