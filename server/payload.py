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
Rule 3: `load` and `Loaded.attach` may run in a thread.
"""

from __future__ import annotations

import json
import math
import struct
from array import array
from collections.abc import Callable, Sized
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c

from ..index.analyzer import LANGUAGES, Vocabulary, analyzer_for
from ..index.blocks import BLOCK
from ..index.columns import NEVER, POSTINGS_MIN, Table
from ..index.entities import Entities
from ..index.memory import Memory
from ..index.postings import Packed, Postings, pack
from ..index.settings import DIM_MAX, EMBEDDERS, FUSIONS, METRICS, MODEL_NAME_MAX, MODES, Settings
from ..index.vectors import VectorTable
from .base import PAST, PLAIN, SIDED, Frozen, Timed, write_base
from .payload_facts import check_records, read_sides, read_timed
from .payload_sections import TIME_MAX, UNIT_TOLERANCE, Array, PayloadDamaged, Sections, hold

__all__ = ["CHECKS", "MAGIC", "Loaded", "PayloadDamaged", "dump", "load", "settings_of"]

MAGIC = b"RECALLD-DUMP-2\r\n"
_MAGICS = (b"RECALLD-DUMP-1\r\n", MAGIC)
_CRC = struct.Struct("<I")
_INT64_MAX = (1 << 63) - 1


class _Pieces:
    """What is written, piece by piece: joining many of them lets go of the interpreter, which a growing buffer holds
    while it copies hundreds of megabytes."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.crc = 0

    def write(self, data: bytes | memoryview) -> int:
        self.pieces.append(bytes(data))
        self.crc = crc32c(data, self.crc)
        return len(data)


def dump(frozen: Frozen, vocabulary: Vocabulary) -> bytes:
    """The payload of a frozen memory; its key and the key's deadline are not in it."""
    return b"".join(pieces(frozen, vocabulary))


def pieces(frozen: Frozen, vocabulary: Vocabulary) -> list[bytes]:
    """The same in pieces."""
    file = _Pieces()
    file.write(MAGIC)
    write_base(file, [frozen._replace(key=b"", deadline=0)], vocabulary)
    return [*file.pieces, _CRC.pack(file.crc)]


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
        """The memory, its words entered into `vocabulary`. Once only: the memory takes the tables over. In which of
        them a record belongs by now, `Memory.expire` and then `settle` see to."""
        for table, words in self._tables:
            ids = np.fromiter(map(vocabulary.id_of, words.words), np.uint32, len(words.words))
            if table.n:
                table.fwd_terms = ids[table.fwd_terms]
            if words.packed is not None:
                table.adopt(Postings.restored(words.packed._replace(terms=ids[words.packed.terms])))
        floor, old_settings, entities = self._timed
        return Memory.restored(
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


class _Part(NamedTuple):
    """Rows that count, or do not, and the words of them."""

    table: Table
    words: _Words


def load(payload: bytes) -> Loaded:
    """Check a payload and compute what follows from it. Raises PayloadDamaged."""
    end = len(payload) - _CRC.size
    hold(payload[: len(MAGIC)] in _MAGICS and end >= len(MAGIC))
    whole = memoryview(payload)
    hold(_CRC.unpack(whole[end:])[0] == crc32c(whole[:end]))
    sections = Sections(whole[len(MAGIC) : end])
    all_settings = [settings_of(each) for each in sections.settings]
    settings = all_settings[0]

    about = sections.array("memories", "memory").tolist()
    hold(1 <= len(about) <= 2)
    (settings_at, _, _, vector_at, next_id, next_serial, created_at, updated_at, _, _) = about[0]
    hold(settings_at == 0 and vector_at == 0 and 1 <= next_id < NEVER and 1 <= next_serial < NEVER)
    hold(abs(created_at) <= TIME_MAX and abs(updated_at) <= TIME_MAX)
    counts = [each[1] for each in about]
    hold(min(counts) >= 0)
    kinds = sections.array("part", "|u1").tolist() or [PLAIN]
    hold(kinds in ([PLAIN], [SIDED], [SIDED, PAST]) and len(kinds) == len(about))

    columns = _Columns(sections, sum(counts), next_serial)
    sides = read_sides(sections, kinds, counts, settings.history)
    check_records(columns.ids, columns.texts, columns.wide[3].tolist(), counts, sides)
    parts: list[_Part] = []
    start = 0
    for number, (_, n, vectors, vector_at, *_) in enumerate(about):
        rows = slice(start, start + n)
        has_vector = columns.has_vector[rows]
        hold(int(has_vector.sum()) == vectors)
        hold(vectors == 0 or settings.has_vectors)
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
    hold(last_at + 4 * settings.dim * last_vectors == sections.size("vectors"))
    return Loaded(settings, next_id, created_at, updated_at, parts, read_timed(sections, all_settings))


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
    "dim": _integer(0, DIM_MAX),
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
    "next_dim": _integer(0, DIM_MAX),
    "owner": lambda value: isinstance(value, str) and len(value) <= MODEL_NAME_MAX,
    "max_records": _integer(0, _INT64_MAX),
    "max_bytes": _integer(0, _INT64_MAX),
}
#: What payloads of earlier versions lack.
_LATER = {"history", "embedder", "model", "tagboost", "next_embedder", "next_model", "next_dim", "owner"}
_LATER |= {"max_records", "max_bytes"}


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


class _Columns:
    """The columns of `n` records, each value one that a record can have."""

    def __init__(self, sections: Sections, n: int, next_serial: int) -> None:
        self.ids, self.texts = sections.strings("ids"), sections.strings("texts")
        self.metas, self.tags = sections.lists("metas"), sections.lists("tags")
        self.doc_len, self.has_vector = sections.array("doc_len", "<i4"), sections.array("has_vector", "|u1")
        created, updated, deadline, serial = (
            sections.array(name, "<i8") for name in ("created", "updated", "deadline", "serial")
        )
        importance = sections.array("importance", "<f8")
        self.wide: list[Array] = [created, updated, deadline, serial, importance]
        columns: list[Sized] = [self.ids, self.texts, self.metas, self.tags, self.doc_len, self.has_vector, *self.wide]
        hold(all(len(column) == n for column in columns))
        hold(all(len(meta) % 2 == 0 and len(set(meta[::2])) * 2 == len(meta) for meta in self.metas))
        hold(all(len(set(tags)) == len(tags) for tags in self.tags))
        # Not abs(): the smallest int64 has none.
        for times in (created, updated):
            hold(bool(((times >= -TIME_MAX) & (times <= TIME_MAX)).all()))
        hold(bool(((deadline == NEVER) | ((deadline > 0) & (deadline <= 2 * TIME_MAX))).all()))
        hold(bool(((serial > 0) & (serial < next_serial)).all()))
        hold(bool(((importance >= 0) & (importance <= 1)).all()))
        hold(bool((self.doc_len >= 0).all()) and bool((self.has_vector <= 1).all()))


def _vectors(sections: Sections, settings: Settings, at: int, count: int) -> VectorTable:
    """The `count` vectors from byte `at` on, in order of their records."""
    flat = sections.array("vectors", "<f4")
    hold(at >= 0 and at % 4 == 0 and count >= 0 and at // 4 + count * settings.dim <= len(flat))
    rows = flat[at // 4 : at // 4 + count * settings.dim].reshape(count, settings.dim)
    cosine = settings.metric == "COSINE"
    norms = np.empty(len(rows), np.float64)
    for start in range(0, len(rows), BLOCK):
        wide = rows[start : start + BLOCK].astype(np.float64)
        norms[start : start + BLOCK] = (wide * wide).sum(axis=1)
    hold(bool(np.isfinite(norms).all()))
    if cosine:
        hold(bool((np.abs(np.sqrt(norms) - 1.0) <= UNIT_TOLERANCE).all()))
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
