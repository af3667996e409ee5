"""One memory as bytes that may travel: what DUMP gives and RESTORE takes.

    payload := magic base crc
    magic   := "RECALLD-DUMP-2\\r\\n"       16 bytes; the number is the version; 1 is read too, see base.py
    base    := a base file (base.py) of one memory, under the key ""
    crc     := crc32c of all before it, 4 bytes, little-endian

Rule 1: a payload comes from anywhere and a checksum proves nothing about who made it, so each value is checked against
        what a memory can hold. One that does not fit refuses the whole, before anything has changed.
Rule 2: what follows from the records is computed again and not read: words, posting lists, vector sums, lengths. So a
        payload can be any memory, but never one whose answers contradict its records. Of the words only their number
        is taken, `doc_len`: up to there the text is analysed, as mem-max-terms-per-doc had it where it was written.
Rule 3: `load` may run in a thread, `Loaded.attach` belongs to the loop: it enters the words into the vocabulary.
"""

from __future__ import annotations

import json
import math
import struct
from array import array
from collections.abc import Callable, Iterator, Sized
from dataclasses import dataclass
from io import BytesIO
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from ..index.analyzer import LANGUAGES, Vocabulary, analyzer_for
from ..index.blocks import BLOCK
from ..index.columns import NEVER, POSTINGS_MIN, Table
from ..index.entities import TYPES, Entities, Entity, entity_name
from ..index.memory import Memory
from ..index.postings import Packed, Postings, pack
from ..index.settings import EMBEDDERS, FUSIONS, METRICS, MODEL_NAME_MAX, MODES, Settings
from ..index.side import (
    CONFIDENCE,
    FACT,
    FLAGS,
    INVALID_AT,
    KIND,
    KNOWN_TO,
    PIN,
    SINCE,
    VALID_AT,
    VALID_UNTIL,
    WRITTEN,
    Side,
)
from ..index.vectors import VectorTable
from .arguments import TTL_MAX_S
from .base import MAGICS as BASE_MAGICS
from .base import MEMORY, PAST, PLAIN, SIDED, Frozen, Timed, side_of, timed_of, write_base
from .fact_words import predicate_words

MAGIC = b"RECALLD-DUMP-2\r\n"
_MAGICS = (b"RECALLD-DUMP-1\r\n", MAGIC)
_CRC = struct.Struct("<I")
# Of a base: where its directory starts, how long it is, the directory's CRC and the end mark, which the CRC of the
# whole covers.
_TRAILER = struct.Struct("<QQ16x")

_DAMAGED = "DUMP payload version or checksum are wrong"
_OBJECT_MAX = 500  # characters
_INT64_MAX = (1 << 63) - 1
#: Times are within ten thousand years of 1970, deadlines within twice that: arguments.py lets no other in.
_TIME_MAX = TTL_MAX_S * 1000
_DIM_MAX = 65536  # the most that mem-max-dim can be
# A stored unit vector is float64 rounded to float32, so its length is 1 to within 2**-24. The bounds of the scan
# (index/vectors.py) rely on it: a longer one would be missed or found by chance.
_UNIT_TOLERANCE = 2.0**-24 * 1.001

Array = npt.NDArray[Any]


class PayloadDamaged(ValueError):
    """No payload of this version, or one that no memory can be made of."""


def dump(frozen: Frozen, vocabulary: Vocabulary) -> bytes:
    """The payload of a frozen memory; its key and the key's deadline are not in it."""
    file = BytesIO()
    file.write(MAGIC)
    write_base(file, [frozen._replace(key=b"", deadline=0)], vocabulary)
    file.write(_CRC.pack(crc32c(file.getvalue())))
    return file.getvalue()


@dataclass(slots=True, frozen=True)
class Loaded:
    """A payload, checked and computed, whose words have numbers of their own still."""

    settings: Settings
    next_id: int
    created_at: int
    updated_at: int
    _tables: list[_Part]
    _timed: Timed

    def attach(self, vocabulary: Vocabulary) -> Memory:
        """The memory, its words entered into `vocabulary`. Once only: the memory takes the table over."""
        for table, words in self._tables:
            ids = np.fromiter(map(vocabulary.id_of, words.words), np.uint32, len(words.words))
            if table.n:
                table.fwd_terms = ids[table.fwd_terms]
            if words.packed is not None:
                table.adopt(Postings.restored(words.packed._replace(terms=ids[words.packed.terms])))
        floor, old_settings, entities = self._timed
        memory = Memory.restored(
            self.settings,
            vocabulary,
            self._tables[0].table,
            self.next_id,
            self.created_at,
            self.updated_at,
            self._tables[1].table if len(self._tables) > 1 else None,
            Entities.of(entities) if entities else None,
            floor,
            old_settings,
        )
        memory.settle(self.updated_at)
        return memory


class _Part(NamedTuple):
    """Rows that count, or do not, and the words of them."""

    table: Table
    words: _Words


def load(payload: bytes) -> Loaded:
    """Check a payload and compute what follows from it. Raises PayloadDamaged."""
    end = len(payload) - _CRC.size
    _hold(payload[: len(MAGIC)] in _MAGICS and end >= len(MAGIC))
    whole = memoryview(payload)
    _hold(_CRC.unpack(whole[end:])[0] == crc32c(whole[:end]))
    sections = _Sections(whole[len(MAGIC) : end])
    all_settings = [settings_of(each) for each in sections.settings]
    settings = all_settings[0]

    about = sections.array("memories", "memory").tolist()
    _hold(1 <= len(about) <= 2)
    (settings_at, _, _, vector_at, next_id, next_serial, created_at, updated_at, _, _) = about[0]
    _hold(settings_at == 0 and vector_at == 0 and 1 <= next_id < NEVER and 1 <= next_serial < NEVER)
    _hold(abs(created_at) <= _TIME_MAX and abs(updated_at) <= _TIME_MAX)
    counts = [each[1] for each in about]
    _hold(min(counts) >= 0)
    kinds = sections.array("part", "|u1").tolist() or [PLAIN]
    _hold(len(kinds) == len(about) and kinds[0] in (PLAIN, SIDED) and kinds[1:] in ([], [PAST]))

    columns = _Columns(sections, sum(counts), next_serial)
    sides = _sides(sections, kinds, counts)
    _check_current(columns, counts, sides)
    parts: list[_Part] = []
    start = 0
    for number, (_, n, vectors, vector_at, *_) in enumerate(about):
        rows = slice(start, start + n)
        has_vector = columns.has_vector[rows]
        _hold(int(has_vector.sum()) == vectors)
        # Where somebody makes the vectors they may still be to come.
        needed = {"SEARCH": 0, "VECTOR": vectors if settings.model else n}
        _hold(vectors == needed.get(settings.mode, vectors))
        table_of_vectors = _vectors(sections, settings, vector_at, vectors) if settings.has_vectors else None
        words = _Words(settings, columns.texts[rows], columns.doc_len[rows], kinds[number] != PAST)
        table = Table.restored(
            settings,
            columns.ids[rows],
            columns.texts[rows],
            columns.metas[rows],
            columns.tags[rows],
            [column[rows] for column in columns.wide],
            words.doc_len,
            has_vector,
            words.counts,
            words.terms,
            words.halves,
            None,
            table_of_vectors,
            next_serial,
            sides[number],
            kinds[number] != PAST,
        )
        parts.append(_Part(table, words))
        start += n
    _, _, last_vectors, last_at, *_ = about[-1]
    _hold(last_at + 4 * settings.dim * last_vectors == sections.size("vectors"))
    return Loaded(settings, next_id, created_at, updated_at, parts, _timed(sections, all_settings))


def _hold(condition: bool) -> None:
    if not condition:
        raise PayloadDamaged(_DAMAGED)


# -- settings


def _real(low: float, high: float) -> Callable[[Any], bool]:
    return lambda value: type(value) in (int, float) and low <= value <= high


def _integer(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _one_of(*names: str) -> Callable[[Any], bool]:
    return lambda value: value in names


def _is_model(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MODEL_NAME_MAX and value.isprintable()


_LARGEST = math.nextafter(math.inf, 0)
_is_weight = _real(0, _LARGEST)

#: What each field of Settings may be, as MEM.CREATE has it.
CHECKS: dict[str, Callable[[Any], bool]] = {
    "mode": _one_of(*MODES),
    "dim": _integer(0, _DIM_MAX),
    "metric": _one_of(*METRICS),
    "weights": lambda value: isinstance(value, list) and len(value) == 4 and all(map(_is_weight, value)),
    "half_life": _integer(1, _INT64_MAX),
    "fusion": _one_of(*FUSIONS),
    "lang": _one_of(*LANGUAGES),
    "k1": _real(0, _LARGEST),
    "b": _real(0, 1),
    "history": _integer(-1, _INT64_MAX),
    "embedder": _one_of("", *EMBEDDERS),
    "model": _is_model,
    "tagboost": _real(0, _LARGEST),
    "next_embedder": _one_of("", *EMBEDDERS),
    "next_model": _is_model,
    "next_dim": _integer(0, _DIM_MAX),
    "owner": lambda value: isinstance(value, str) and len(value) <= MODEL_NAME_MAX,
}
#: What payloads of earlier versions lack.
_LATER = {"history", "embedder", "model", "tagboost", "next_embedder", "next_model", "next_dim", "owner"}


def settings_of(fields: Any) -> Settings:
    """Settings from a JSON object that somebody else wrote. Raises PayloadDamaged, which names the bad one."""
    if not isinstance(fields, dict):
        raise PayloadDamaged("settings are an object")
    for name, value in fields.items():
        if name not in CHECKS or not CHECKS[name](value):
            raise PayloadDamaged(f"the setting {name} cannot be {json.dumps(value)[:100]}")
    missing = CHECKS.keys() - fields - _LATER
    if missing:
        raise PayloadDamaged(f"no setting {min(missing)}")
    weights = [float(weight) for weight in fields["weights"]]
    settings = Settings(**{**fields, "weights": tuple(weights), "k1": float(fields["k1"]), "b": float(fields["b"])})
    if settings.has_vectors != (settings.dim > 0):
        raise PayloadDamaged(f"the setting dim cannot be {settings.dim} with mode {settings.mode}")
    return settings


# -- columns


class _Sections:
    """The sections of the base in a payload, by name."""

    def __init__(self, base: memoryview) -> None:
        self._base = base
        _hold(len(base) >= len(MAGIC) + _TRAILER.size and bytes(base[: len(MAGIC)]) in BASE_MAGICS)
        directory_end = len(base) - _TRAILER.size
        start, length = _TRAILER.unpack(base[directory_end:])
        _hold(start + length == directory_end)
        try:
            directory = json.loads(bytes(base[start:directory_end]).decode())
        except (ValueError, RecursionError):
            directory = None
        _hold(isinstance(directory, dict) and isinstance(directory.get("sections"), dict))
        self._directory: dict[str, Any] = directory["sections"]
        self._end = start
        several = directory.get("settings")
        _hold(isinstance(several, list) and len(several) >= 1)
        self.settings: list[Any] = several

    def _bytes(self, name: str, kind: str) -> memoryview:
        """A section, empty where there is none; `kind` is what the directory must call it."""
        if name not in self._directory:
            return self._base[:0]
        entry = self._directory[name]
        _hold(isinstance(entry, list) and len(entry) == 4)
        offset, size, _, written = entry
        _hold(type(offset) is int and type(size) is int and written == kind)
        _hold(0 <= offset <= self._end and 0 <= size <= self._end - offset)
        return self._base[offset : offset + size]

    def size(self, name: str) -> int:
        """Bytes of a section of float32."""
        return len(self._bytes(name, "<f4"))

    def array(self, name: str, kind: str) -> Array:
        """A column as numpy calls its `kind`, or "memory"; a copy."""
        data = self._bytes(name, kind)
        dtype = np.dtype(MEMORY if kind == "memory" else kind)
        _hold(len(data) % dtype.itemsize == 0)
        return np.frombuffer(data, dtype).copy() if len(data) else np.zeros(0, dtype)

    def strings(self, name: str) -> list[bytes]:
        data = bytes(self._bytes(name, "S"))
        lengths = self.array(name + ".len", "<u4")
        ends = np.cumsum(lengths, dtype=np.int64)
        _hold(len(data) == (int(ends[-1]) if len(ends) else 0))
        return [data[start:end] for start, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]

    def lists(self, name: str) -> list[tuple[bytes, ...]]:
        words = self.strings(name)
        counts = self.array(name + ".n", "<u4")
        ends = np.cumsum(counts, dtype=np.int64)
        _hold(len(words) == (int(ends[-1]) if len(ends) else 0))
        return [tuple(words[start:end]) for start, end in zip((ends - counts).tolist(), ends.tolist(), strict=True)]


class _Columns:
    """The columns of `n` records, each value one that a record can have."""

    def __init__(self, sections: _Sections, n: int, next_serial: int) -> None:
        self.ids, self.texts = sections.strings("ids"), sections.strings("texts")
        self.metas, self.tags = sections.lists("metas"), sections.lists("tags")
        self.doc_len, self.has_vector = sections.array("doc_len", "<i4"), sections.array("has_vector", "|u1")
        created, updated, deadline, serial = (
            sections.array(name, "<i8") for name in ("created", "updated", "deadline", "serial")
        )
        importance = sections.array("importance", "<f8")
        self.wide: list[Array] = [created, updated, deadline, serial, importance]
        columns: list[Sized] = [self.ids, self.texts, self.metas, self.tags, self.doc_len, self.has_vector, *self.wide]
        _hold(all(len(column) == n for column in columns))
        _hold(all(len(meta) % 2 == 0 and len(set(meta[::2])) * 2 == len(meta) for meta in self.metas))
        _hold(all(len(set(tags)) == len(tags) for tags in self.tags))
        # Not abs(): the smallest int64 has none.
        for times in (created, updated):
            _hold(bool(((times >= -_TIME_MAX) & (times <= _TIME_MAX)).all()))
        _hold(bool(((deadline == NEVER) | ((deadline > 0) & (deadline <= 2 * _TIME_MAX))).all()))
        _hold(bool(((serial > 0) & (serial < next_serial)).all()))
        _hold(bool(((importance >= 0) & (importance <= 1)).all()))
        _hold(bool((self.doc_len >= 0).all()) and bool((self.has_vector <= 1).all()))


def _sides(sections: _Sections, kinds: list[int], counts: list[int]) -> list[Side | None]:
    """The side of each part, each row one that a record can have, but for what its text must be."""
    flat, words = sections.array("side", "<i8"), iter(sections.strings("facts"))
    _hold(len(flat) == 8 * sum(n for kind, n in zip(kinds, counts, strict=True) if kind != PLAIN))
    sides: list[Side | None] = []
    at = 0
    for kind, n in zip(kinds, counts, strict=True):
        if kind == PLAIN:
            sides.append(None)
            continue
        rows = flat[at : at + 8 * n].reshape(8, n)
        at += 8 * n
        for number in (WRITTEN, SINCE, KNOWN_TO, VALID_AT, VALID_UNTIL, INVALID_AT):
            none = {WRITTEN: False, SINCE: False, VALID_AT: rows[number] == -NEVER}.get(number, rows[number] == NEVER)
            in_range = (rows[number] >= -2 * _TIME_MAX) & (rows[number] <= 2 * _TIME_MAX)
            _hold(bool((none | in_range).all()))
        _hold(bool(((rows[KNOWN_TO] > rows[SINCE]) & (rows[SINCE] >= rows[WRITTEN])).all()))
        _hold(bool((rows[VALID_UNTIL] > rows[VALID_AT]).all()))
        _hold(kind == PAST or bool((rows[KNOWN_TO] == NEVER).all()))
        flags, confidence = rows[FLAGS], rows[CONFIDENCE].view(np.float64)
        _hold(bool(((flags & ~(KIND | PIN)) == 0).all()) and bool(((flags & KIND) <= FACT).all()))
        _hold(bool(((confidence >= 0) & (confidence <= 1)).all()))
        try:
            sides.append(side_of(rows, words))
        except (RuntimeError, StopIteration):
            raise PayloadDamaged(_DAMAGED) from None
    _hold(next(words, None) is None)
    return sides


def _check_current(columns: _Columns, counts: list[int], sides: list[Side | None]) -> None:
    """One current record of an id, a serial of one id, versions of a record one after the other, facts whose text is
    what they say, and of what agrees in a FactIndex key one that is not invalidated."""
    current: set[bytes] = set()
    of_serial: dict[int, bytes] = {}
    spans: dict[bytes, list[tuple[int, int]]] = {}
    serials = columns.wide[3].tolist()
    said: set[tuple[bytes, bytes, bytes, bytes, int]] = set()
    row = 0
    for n, side in zip(counts, sides, strict=True):
        times = None if side is None else side.cols[[SINCE, KNOWN_TO, VALID_UNTIL, INVALID_AT], :n].T.tolist()
        for at in range(n):
            record_id, serial = columns.ids[row], serials[row]
            since, known_to, until, invalid_at = (0, NEVER, NEVER, NEVER) if times is None else times[at]
            if known_to == NEVER:
                _hold(record_id not in current)
                current.add(record_id)
            _hold(of_serial.setdefault(serial, record_id) == record_id)
            if times is not None:
                spans.setdefault(record_id, []).append((since, known_to))
            fact = None if side is None else side.facts[at]
            if fact is not None:
                _hold(columns.texts[row] == fact.text)
                _hold(fact.subject != b"" and fact.subject == entity_name(fact.subject))
                _hold(fact.predicate != b"" and fact.predicate == predicate_words(fact.predicate))
                _hold(fact.object != b"" and len(fact.object.decode("utf-8", "surrogateescape")) <= _OBJECT_MAX)
                _hold(fact.entity_type == b"" or fact.entity_type in TYPES)
                if known_to == NEVER and invalid_at == NEVER:
                    key = (fact.subject, fact.predicate, fact.object, fact.entity_type, until)
                    _hold(key not in said)
                    said.add(key)
            row += 1
    by_serial = [serials[at] for at in range(row)]
    first = counts[0]
    # Two current records never share a serial, which the ids above do not say.
    live = [serial for at, serial in enumerate(by_serial) if at < first or _is_current(sides[1], at - first)]
    _hold(len(set(live)) == len(live))
    for several in spans.values():
        several.sort()
        _hold(all(before[1] <= after[0] for before, after in pairwise(several)))


def _is_current(side: Side | None, slot: int) -> bool:
    return side is None or int(side.cols[KNOWN_TO, slot]) == NEVER


def _timed(sections: _Sections, settings: list[Settings]) -> Timed:
    """The floor, old settings and entities."""
    timed, old = sections.array("timed", "<i8"), sections.array("old", "<i8")
    entities = list(_entities(sections, settings[0].dim))
    if not len(timed):
        _hold(not len(old) and not entities and len(settings) == 1)
        return Timed()
    _hold(len(timed) == 4 and int(timed[0]) == 0 and int(timed[3]) == len(entities))
    _hold(len(old) % 2 == 0 and int(timed[2]) * 2 == len(old))
    floor = int(timed[1])
    _hold(floor == -NEVER or abs(floor) <= 2 * _TIME_MAX)
    untils, numbers = old[::2].tolist(), old[1::2].tolist()
    _hold(all(0 <= number < len(settings) for number in numbers))
    _hold(untils == sorted(untils) and all(-2 * _TIME_MAX <= until <= 2 * _TIME_MAX for until in untils))
    fixed = settings[0]
    _hold(
        all(
            (each.mode, each.dim, each.metric, each.lang) == (fixed.mode, fixed.dim, fixed.metric, fixed.lang)
            for each in settings
        )
    )
    return timed_of(timed, old, settings, entities)[0]


def _entities(sections: _Sections, dim: int) -> Iterator[Entity]:
    names, types, vectors = (sections.strings(name) for name in ("entity_names", "entity_types", "entity_vectors"))
    aliases, created = sections.lists("entity_aliases"), sections.array("entity_created", "<i8").tolist()
    _hold(len(names) == len(types) == len(vectors) == len(aliases) == len(created))
    known: set[tuple[bytes, bytes]] = set()
    for name, kind, vector, also, at in zip(names, types, vectors, aliases, created, strict=True):
        _hold(kind in TYPES and -2 * _TIME_MAX <= at <= 2 * _TIME_MAX)
        for each in (name, *also):
            _hold(each != b"" and each == entity_name(each) and (each, kind) not in known)
            known.add((each, kind))
        if vector:
            _hold(len(vector) == 4 * dim)
            wide = np.frombuffer(vector, "<f4").astype(np.float64)
            _hold(bool(abs(np.sqrt((wide * wide).sum()) - 1.0) <= _UNIT_TOLERANCE))
        yield Entity(0, name, kind, also, at, vector)


def _vectors(sections: _Sections, settings: Settings, at: int, count: int) -> VectorTable:
    """The `count` vectors from byte `at` on, in order of their records."""
    flat = sections.array("vectors", "<f4")
    _hold(at >= 0 and at % 4 == 0 and count >= 0 and at // 4 + count * settings.dim <= len(flat))
    rows = flat[at // 4 : at // 4 + count * settings.dim].reshape(count, settings.dim)
    cosine = settings.metric == "COSINE"
    norms = np.empty(len(rows), np.float64)
    for start in range(0, len(rows), BLOCK):
        wide = rows[start : start + BLOCK].astype(np.float64)
        norms[start : start + BLOCK] = (wide * wide).sum(axis=1)
    _hold(bool(np.isfinite(norms).all()))
    if cosine:
        _hold(bool((np.abs(np.sqrt(norms) - 1.0) <= _UNIT_TOLERANCE).all()))
    derived = np.zeros(settings.dim, np.int64) if cosine else norms
    table = VectorTable.restored(rows, settings.metric, derived)
    return table.taken(np.arange(count, dtype=np.int32))  # which adds the sum up


class _Words:
    """The forward index and posting lists of texts, under a vocabulary of their own: `words`, by term id."""

    def __init__(self, settings: Settings, texts: list[bytes], limits: Array, indexed: bool) -> None:
        vocabulary = Vocabulary()
        terms, halves, counts, doc_len = array("I"), array("H"), array("I"), array("i")
        if settings.has_text:
            document = analyzer_for(settings.lang, vocabulary).document
            for text, limit in zip(texts, limits.tolist(), strict=True):
                found = document(text, limit)
                terms.extend(found.terms)
                halves.extend(found.tfs)
                counts.append(len(found.terms))
                doc_len.append(found.doc_len)
        else:
            counts.extend([0] * len(texts))
            doc_len.extend([0] * len(texts))
        self.words = [vocabulary.word(term) for term in range(len(vocabulary))]
        self.terms = np.array(terms, np.uint32)
        self.halves = np.array(halves, np.uint16)
        self.counts = np.array(counts, np.uint32)
        self.doc_len = np.array(doc_len, np.int32)
        self.packed: Packed | None = None
        if indexed and len(texts) >= POSTINGS_MIN and len(self.terms):
            slots = np.repeat(np.arange(len(texts), dtype=np.int64), self.counts)
            self.packed = pack(slots, self.terms, self.halves)
