"""The base file: all memories at one moment, in columns, loaded by mapping.

    file      := magic section* directory trailer
    magic     := "RECALLD-BASE-2\\r\\n"                                      16 bytes; 1 is read too, and has no parts
    section   := padding to a multiple of 64, then the bytes of one array or of strings behind one another
    directory := JSON {"sections": {name: [offset, bytes, crc32c, dtype]}, "settings": [..]}
    trailer   := directory's offset (8, little-endian) its length (8) its crc32c (4) "RECALLD-END\\n" (12)

Numbers are little-endian. A section holds a column of all memories behind one another, in the order of `memories`,
whose rows say how much of each column is whose:

    memories      one row per memory, MEMORY below
    keys          strings; a string column `x` is two sections, `x` (bytes) and `x.len` (u4)
    ids texts     strings, one per record            created updated deadline serial (i8) importance (f8) doc_len (i4)
    metas tags    strings, `metas.n` and `tags.n` (u4) of them per record; metas are field, value, field, value, ..
    vectors       f4, each memory's (vectors, dim) at its `vector_at`, a multiple of 64; `has_vector` (u1) per record
    sums norms    the vector sum (i8, dim per COSINE memory) and squared lengths (f8, per vector of the others)
    terms         strings: the dictionary, only words that a live record holds
    entry_terms (u4, into the dictionary) entry_halves (u2), `entries` (u4) of them per record: the forward index
    post_terms (u4) post_lengths (i8) posts (i8): the posting lists of memories that have them, see postings.py

Where a memory has facts, episodes, validity, history or entities there are also

    part          u1 per row of `memories`: PLAIN, SIDED (a table with side columns), PAST (those rows of the memory in
                  the row before that do not count now: Memory.past)
    side          i8, (8, records) per part that is not PLAIN, see side.py; known_to says which rows are versions
    facts         strings, eight per record that is a fact, in the order of side.Fact
    timed         i8, four per memory that needs it: its row, its floor, how many old settings, how many entities
    old           i8, pairs: until when, which of the directory's settings
    entity_names entity_types entity_vectors (strings) entity_aliases (with `.n`) entity_created (i8): in their order

A section is whole if its CRC32C matches; the file counts once its trailer is there. Only live records are written, so
nothing that was deleted, replaced or expired is in the file, but for the versions that a memory's history holds.
"""

from __future__ import annotations

import json
import mmap
import struct
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from itertools import chain, islice
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from ..index.analyzer import Vocabulary
from ..index.blocks import BLOCK
from ..index.columns import NEVER, POSTINGS_MIN, Table
from ..index.entities import Entities, Entity
from ..index.memory import Memory
from ..index.postings import Packed, Postings, pack
from ..index.selection import distinct
from ..index.settings import Settings
from ..index.side import FACT, FLAGS, KIND, Fact, Side
from ..index.vectors import VectorTable
from ..index.view import View

MAGIC = b"RECALLD-BASE-2\r\n"
#: What is read.
MAGICS = (b"RECALLD-BASE-1\r\n", MAGIC)
PLAIN, SIDED, PAST = range(3)
_END = b"RECALLD-END\n"
_TRAILER = struct.Struct("<QQI12s")
_ALIGN = 64
# Records per step of the writer: the thread lets go of the interpreter between steps.
_STEP = 2048
# Strings of which the lengths are taken, and bytes that are joined, in one go: a millisecond or two.
_WORDS, _JOINED = 10_000, 4 << 20

MEMORY = np.dtype(
    [
        ("settings", "<i8"),
        ("records", "<i8"),
        ("vectors", "<i8"),
        ("vector_at", "<i8"),
        ("next_id", "<i8"),
        ("next_serial", "<i8"),
        ("created_at", "<i8"),
        ("updated_at", "<i8"),
        ("deadline", "<i8"),
        ("posting_lists", "<i8"),
    ]
)

Array = npt.NDArray[Any]


class BaseDamaged(Exception):
    """The file is not what was written: where."""


class Sink(Protocol):
    """What a base is written to: all of what it is given, or an error."""

    def write(self, data: bytes | memoryview, /) -> int: ...


class Timed(NamedTuple):
    """What a memory has beside its rows."""

    floor: int = -NEVER
    old_settings: tuple[tuple[int, Settings], ...] = ()
    entities: Entities | tuple[Entity, ...] = ()


class Frozen(NamedTuple):
    """One memory at the moment of the base; immutable, so a thread may write it."""

    key: bytes
    view: View
    next_id: int
    next_serial: int
    created_at: int
    updated_at: int
    deadline: int  # of the key, 0 for none
    past: View | None = None
    timed: Timed = Timed()


def freeze(key: bytes, memory: Memory, deadline: int, now: int) -> Frozen:
    """What a base needs of a memory, as it stands; `Keyspace.prune` first."""
    views = memory.views(now)
    return Frozen(
        key,
        views[0],
        memory.next_id,
        memory.table.order.next_serial,
        memory.created_at,
        memory.updated_at,
        deadline,
        views[1] if len(views) > 1 else None,
        Timed(memory.floor, tuple(memory.old_settings), () if memory.entities is None else memory.entities.still()),
    )


# -- writing


class _Writer:
    """Sections of one file, gathered column by column; vectors go to the file at once."""

    def __init__(self, file: Sink) -> None:
        self._file = file
        self._at = 0
        self._arrays: dict[str, list[Array]] = {}
        self._strings: dict[str, list[bytes]] = {}
        self._directory: dict[str, tuple[int, int, int, str]] = {}
        self._vectors_at = 0
        self._vectors_crc = 0
        self.raw(MAGIC)
        self.pad()
        self._vectors_at = self._at

    def raw(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._at += len(data)

    def pad(self) -> None:
        self.raw(bytes(-self._at % _ALIGN))

    def array(self, name: str, values: Array) -> None:
        self._arrays.setdefault(name, []).append(values)

    def strings(self, name: str, values: Iterable[bytes]) -> None:
        """A part at a time: neither measuring nor joining them lets other threads run meanwhile, nor does the garbage
        collector while it looks through a long new list."""
        parts = self._strings.setdefault(name, [])
        self.array(name + ".len", np.zeros(0, "<u4"))
        left = iter(values)
        while some := list(islice(left, _WORDS)):
            lengths = np.fromiter(map(len, some), "<u4", len(some))
            self.array(name + ".len", lengths)
            step = max(1, len(some) * _JOINED // max(1, int(lengths.sum(dtype=np.int64))))
            parts += [b"".join(some[at : at + step]) for at in range(0, len(some), step)]

    def begin_vectors(self) -> int:
        """Where the next memory's vectors begin, from the start of the section."""
        self._vector_bytes(bytes(-(self._at - self._vectors_at) % _ALIGN))
        return self._at - self._vectors_at

    def vectors(self, rows: Array) -> None:
        self._vector_bytes(_bytes(rows))

    def _vector_bytes(self, data: bytes | memoryview) -> None:
        self._vectors_crc = crc32c(data, self._vectors_crc)
        self.raw(data)

    def finish(self, settings: list[dict[str, Any]]) -> None:
        self._directory["vectors"] = (self._vectors_at, self._at - self._vectors_at, self._vectors_crc, "<f4")
        for name, parts in self._strings.items():
            self._section(name, parts, "S")
        for name, arrays in self._arrays.items():
            dtype = arrays[0].dtype
            blobs = [_bytes(array) for array in arrays if array.size]
            self._section(name, blobs, "memory" if dtype == MEMORY else dtype.newbyteorder("<").str)
        directory = json.dumps({"sections": self._directory, "settings": settings}).encode()
        start = self._at
        self.raw(directory)
        self.raw(_TRAILER.pack(start, len(directory), crc32c(directory), _END))

    def _section(self, name: str, parts: Iterable[bytes | memoryview], dtype: str) -> None:
        self.pad()
        start, crc = self._at, 0
        for part in parts:
            crc = crc32c(part, crc)
            self.raw(part)
        self._directory[name] = (start, self._at - start, crc, dtype)


def _bytes(array: Array) -> memoryview:
    flat: Any = np.ascontiguousarray(array).reshape(-1)
    return memoryview(flat).cast("B")


def write_base(file: Sink, memories: Iterable[Frozen], vocabulary: Vocabulary) -> int:
    """Write a base of these memories; how many records."""
    writer = _Writer(file)
    rows: list[tuple[int, ...]] = []
    settings_of: dict[Settings, int] = {}
    entry_terms: list[Array] = []
    post_terms: list[Array] = []
    keys: list[bytes] = []
    parts: list[int] = []
    timed: list[tuple[int, Timed]] = []
    total = 0
    for frozen, view, part in _parts(memories):
        settings = view.settings
        if part != PAST and frozen.timed != Timed():
            timed.append((len(rows), frozen.timed))
        parts.append(part)
        alive = view.alive()
        slots = np.arange(view.n) if alive is None else np.flatnonzero(alive)
        total += len(slots)
        keys.append(frozen.key if part != PAST else b"")
        _write_records(writer, view, slots)
        vector_at, vector_count = writer.begin_vectors(), 0
        if settings.has_vectors:
            vector_count = _write_vectors(writer, view, slots)
        if part != PLAIN:
            _write_side(writer, view, slots)
        entries, lists = _write_words(writer, view, slots, part != PAST)
        entry_terms.append(entries)
        post_terms.append(lists)
        rows.append(
            (
                settings_of.setdefault(settings, len(settings_of)),
                len(slots),
                vector_count,
                vector_at,
                frozen.next_id,
                frozen.next_serial,
                frozen.created_at,
                frozen.updated_at,
                frozen.deadline,
                len(lists),
            )
        )
    # The dictionary of this file: the server's own also holds words that nobody uses any more.
    used = distinct(np.concatenate(entry_terms)) if entry_terms else np.zeros(0, np.uint32)
    for name, columns in (("entry_terms", entry_terms), ("post_terms", post_terms)):
        for terms in columns:
            writer.array(name, np.searchsorted(used, terms).astype("<u4"))
    writer.strings("terms", [vocabulary.word(term).encode("utf-8", "surrogatepass") for term in used.tolist()])
    writer.strings("keys", keys)
    writer.array("memories", np.array(rows, MEMORY))
    if any(parts):
        writer.array("part", np.array(parts, "u1"))
    for row, about in timed:
        _write_timed(writer, row, about, settings_of)
    writer.finish([asdict(settings) for settings in settings_of])
    return total


def _parts(memories: Iterable[Frozen]) -> Iterator[tuple[Frozen, View, int]]:
    for frozen in memories:
        yield frozen, frozen.view, PLAIN if frozen.view.side is None else SIDED
        if frozen.past is not None:
            yield frozen, frozen.past, PAST


def _write_side(writer: _Writer, view: View, slots: Array) -> None:
    assert view.side is not None
    writer.array("side", view.side[:, slots])
    facts = [fact for slot in slots.tolist() if (fact := view.facts[slot]) is not None]
    writer.strings("facts", chain.from_iterable(facts))


def _write_timed(writer: _Writer, row: int, timed: Timed, settings_of: dict[Settings, int]) -> None:
    old, entities = timed.old_settings, tuple(timed.entities)
    writer.array("timed", np.array([row, timed.floor, len(old), len(entities)], "<i8"))
    numbers = [(until, settings_of.setdefault(settings, len(settings_of))) for until, settings in old]
    writer.array("old", np.array(numbers, "<i8"))
    writer.strings("entity_names", [each.name for each in entities])
    writer.strings("entity_types", [each.type for each in entities])
    writer.strings("entity_vectors", [each.vector for each in entities])
    writer.strings("entity_aliases", (alias for each in entities for alias in each.aliases))
    writer.array("entity_aliases.n", np.array([len(each.aliases) for each in entities], "<u4"))
    writer.array("entity_created", np.array([each.created_at for each in entities], "<i8"))


def _write_records(writer: _Writer, view: View, slots: Array) -> None:
    for start in range(0, len(slots), _STEP):
        some = slots[start : start + _STEP].tolist()
        writer.strings("ids", [view.ids[slot] for slot in some])
        writer.strings("texts", [view.texts[slot] for slot in some])
        for name, column in (("metas", view.metas), ("tags", view.tags)):
            held = [column[slot] for slot in some]
            writer.strings(name, chain.from_iterable(held))
            writer.array(name + ".n", np.fromiter(map(len, held), "<u4", len(held)))
    writer.array("created", view.created[slots])
    writer.array("updated", view.updated[slots])
    writer.array("deadline", view.deadlines[slots])
    writer.array("serial", view.serials[slots])
    writer.array("importance", view.importance[slots])
    writer.array("doc_len", view.doc_len[slots])
    writer.array("has_vector", (view.vrow[slots] >= 0).astype("u1"))


def _write_vectors(writer: _Writer, view: View, slots: Array) -> int:
    rows = view.vrow[slots]
    rows = rows[rows >= 0]
    for start in range(0, len(rows), BLOCK):
        writer.vectors(view.gather(rows[start : start + BLOCK]))
    if view.settings.metric == "COSINE":
        writer.array("sums", view.vector_sum)
    else:
        writer.array("norms", view.norms[rows])
    return len(rows)


def _write_words(writer: _Writer, view: View, slots: Array, indexed: bool) -> tuple[Array, Array]:
    """The forward index and posting lists; the term ids of both, which the file's dictionary is to number."""
    ends = view.terms_end
    counts = np.diff(ends, prepend=np.int32(0))
    held = int(ends[-1]) if view.n else 0
    terms, halves = view.fwd_terms[:held], view.fwd_halves[:held]
    if len(slots) < view.n:
        kept = np.zeros(view.n, np.bool_)
        kept[slots] = True
        chosen = np.repeat(kept, counts)
        terms, halves = terms[chosen], halves[chosen]
        counts = counts[slots]
    writer.array("entries", counts.astype("<u4"))
    writer.array("entry_halves", halves)
    if len(slots) < POSTINGS_MIN or not view.settings.has_text or not indexed:
        return terms, np.zeros(0, np.uint32)
    packed = pack(np.repeat(np.arange(len(slots), dtype=np.int64), counts), terms, halves)
    writer.array("post_lengths", packed.lengths)
    writer.array("posts", packed.data)
    return terms, packed.terms


# -- reading


class _Reader:
    """The sections of a mapped file, each checked once."""

    def __init__(self, data: mmap.mmap | bytes, name: str) -> None:
        self._data = data
        self._name = name
        view = memoryview(data)
        if len(data) < len(MAGIC) + _TRAILER.size or data[: len(MAGIC)] not in MAGICS:
            raise BaseDamaged(f"{name} is damaged at offset 0: it does not begin as a base file of this version")
        start, length, crc, end = _TRAILER.unpack(data[-_TRAILER.size :])
        where = len(data) - _TRAILER.size
        if end != _END or start + length != where or crc32c(view[start:where]) != crc:
            raise BaseDamaged(f"{name} is damaged at offset {where}: its directory or trailer is not what was written")
        directory = json.loads(data[start:where])
        self.settings = [_settings(each) for each in directory["settings"]]
        self._sections: dict[str, tuple[int, int, int, str]] = directory["sections"]
        covered = len(MAGIC)
        for section, (offset, size, crc, _) in sorted(self._sections.items(), key=lambda item: item[1][0]):
            if any(view[covered:offset]):
                raise BaseDamaged(f"{name} is damaged at offset {covered}: padding that is not zero")
            if crc32c(view[offset : offset + size]) != crc:
                raise BaseDamaged(f"{name} is damaged in section {section}, {size} bytes from offset {offset} on")
            covered = offset + size
        if covered != start:
            raise BaseDamaged(f"{name} is damaged at offset {covered}: bytes that belong to no section")

    def array(self, name: str, dtype: Any = None) -> Array:
        """A column, mapped and read-only; empty where no memory has any."""
        if name not in self._sections:
            return np.zeros(0, dtype or np.int64)
        offset, size, _, written = self._sections[name]
        kind = np.dtype(MEMORY if written == "memory" else written)
        return np.frombuffer(self._data, kind, size // kind.itemsize, offset)

    def strings(self, name: str) -> list[bytes]:
        if name not in self._sections:
            return []
        lengths = self.array(name + ".len")
        ends = np.cumsum(lengths, dtype=np.int64) + self._sections[name][0]
        data = self._data
        return [data[start:end] for start, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]

    def vectors(self, at: int, count: int, dim: int) -> Array:
        offset = self._sections["vectors"][0] + at
        if dim < 1:  # of these any number fits
            raise BaseDamaged(f"{self._name} is damaged: vectors of {dim} dimensions")
        return np.frombuffer(self._data, "<f4", count * dim, offset).reshape(count, dim)


def read_base(data: mmap.mmap | bytes, name: str, vocabulary: Vocabulary) -> Iterator[tuple[bytes, Memory, int]]:
    """Each memory with its key and the key's deadline (0 for none). Raises BaseDamaged before the first."""
    reader = _Reader(data, name)
    words = [word.decode("utf-8", "surrogatepass") for word in reader.strings("terms")]
    ids = np.fromiter(map(vocabulary.id_of, words), np.uint32, len(words))
    renumbered = not np.array_equal(ids, np.arange(len(ids)))

    def terms_of(column: str) -> Array:
        terms = reader.array(column, np.uint32)
        return ids[terms] if renumbered else terms

    memories = reader.array("memories", MEMORY)
    keys, record_ids, texts = reader.strings("keys"), reader.strings("ids"), reader.strings("texts")
    metas, tags = _lists(reader, "metas"), _lists(reader, "tags")
    wide = [reader.array(column) for column in ("created", "updated", "deadline", "serial", "importance")]
    doc_len, has_vector = reader.array("doc_len"), reader.array("has_vector")
    entries, entry_terms, entry_halves = reader.array("entries"), terms_of("entry_terms"), reader.array("entry_halves")
    post_terms, post_lengths, posts = terms_of("post_terms"), reader.array("post_lengths"), reader.array("posts")
    sums, norms = reader.array("sums"), reader.array("norms", np.float64)
    part = reader.array("part", np.uint8).tolist() or [PLAIN] * len(memories)
    side, facts = reader.array("side"), iter(reader.strings("facts"))
    timed = timed_of(reader.array("timed"), reader.array("old"), reader.settings, _entities(reader))
    held: tuple[bytes, Table, tuple[Any, ...]] | None = None

    def memory_of(past: Table | None) -> tuple[bytes, Memory, int]:
        assert held is not None
        key, table, (settings, number, next_id, created_at, updated_at, deadline) = held
        floor, old_settings, entities = timed.get(number, Timed())
        memory = Memory.restored(
            settings,
            vocabulary,
            table,
            next_id,
            created_at,
            updated_at,
            past,
            Entities.of(entities) if entities else None,
            floor,
            old_settings,
        )
        return key, memory, deadline

    row = entry = post_list = post = sum_at = norm_at = side_at = 0
    for number, about in enumerate(memories.tolist()):
        (settings_at, n, vector_n, vector_at, next_id, next_serial, created_at, updated_at, deadline, lists) = about
        settings = reader.settings[settings_at]
        these = slice(row, row + n)
        counts = entries[these]
        entry_end = entry + int(counts.sum(dtype=np.int64))
        postings = None
        if lists:
            lengths = post_lengths[post_list : post_list + lists]
            post_end = post + int(lengths.sum())
            postings = Postings.restored(
                Packed(post_terms[post_list : post_list + lists], lengths, posts[post:post_end])
            )
            post_list, post = post_list + lists, post_end
        vectors = None
        if settings.has_vectors:
            dim = settings.dim
            cosine = settings.metric == "COSINE"
            vectors = VectorTable.restored(
                reader.vectors(vector_at, vector_n, dim),
                settings.metric,
                sums[sum_at : sum_at + dim] if cosine else norms[norm_at : norm_at + vector_n],
            )
            sum_at += dim if cosine else 0
            norm_at += 0 if cosine else vector_n
        sided = None
        if part[number] != PLAIN:
            sided = side_of(side[side_at : side_at + 8 * n].reshape(8, n), facts)
            side_at += 8 * n
        table = Table.restored(
            settings,
            record_ids[these],
            texts[these],
            metas[these],
            tags[these],
            [column[these] for column in wide],
            doc_len[these],
            has_vector[these],
            counts,
            entry_terms[entry:entry_end],
            entry_halves[entry:entry_end],
            postings,
            vectors,
            next_serial,
            sided,
            part[number] != PAST,
        )
        row, entry = row + n, entry_end
        if part[number] == PAST:
            yield memory_of(table)
            held = None
            continue
        if held is not None:
            yield memory_of(None)
        held = keys[number], table, (settings, number, next_id, created_at, updated_at, deadline)
    if held is not None:
        yield memory_of(None)


def side_of(columns: Array, facts: Iterator[bytes]) -> Side:
    """The side of rows, int64 (8, n); the words of its facts are taken from `facts`."""
    n = columns.shape[1]
    side = Side.plain(np.zeros(n, np.int64))
    side.cols[:, :n] = columns
    is_fact = (columns[FLAGS] & KIND == FACT).tolist()
    side.hold([Fact(*(next(facts) for _ in Fact._fields)) if each else None for each in is_fact])
    return side


def timed_of(timed: Array, old: Array, settings: list[Settings], entities: list[Entity]) -> dict[int, Timed]:
    """By row of `memories`."""
    found: dict[int, Timed] = {}
    old_at = entity_at = 0
    pairs = old.reshape(-1, 2).tolist()
    for row, floor, olds, count in timed.reshape(-1, 4).tolist():
        before = tuple((until, settings[number]) for until, number in pairs[old_at : old_at + olds])
        found[row] = Timed(floor, before, tuple(entities[entity_at : entity_at + count]))
        old_at, entity_at = old_at + olds, entity_at + count
    return found


def _entities(reader: _Reader) -> list[Entity]:
    columns = [reader.strings(name) for name in ("entity_names", "entity_types", "entity_vectors")]
    aliases, created = _lists(reader, "entity_aliases"), reader.array("entity_created").tolist()
    return [
        Entity(0, name, kind, also, at, vector)
        for name, kind, vector, also, at in zip(*columns, aliases, created, strict=True)
    ]


def _lists(reader: _Reader, name: str) -> list[tuple[bytes, ...]]:
    words = reader.strings(name)
    counts = reader.array(name + ".n")
    if not words:
        return [()] * len(counts)
    ends = np.cumsum(counts, dtype=np.int64)
    return [tuple(words[start:end]) for start, end in zip((ends - counts).tolist(), ends.tolist(), strict=True)]


def _settings(fields: dict[str, Any]) -> Settings:
    return Settings(**{**fields, "weights": tuple(fields["weights"])})


__all__ = ["NEVER", "BaseDamaged", "Frozen", "freeze", "read_base", "write_base"]
