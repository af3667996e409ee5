"""What a payload says of facts, validity, history and entities, checked against what a memory can hold (payload.py)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..index.entities import TYPES, Entity, entity_name
from ..index.fact_index import Key, one_thing
from ..index.settings import Settings
from ..index.side import (
    CONFIDENCE,
    FACT,
    FLAGS,
    INVALID_AT,
    KIND,
    KNOWN_TO,
    NEVER,
    PIN,
    SINCE,
    VALID_AT,
    VALID_UNTIL,
    WRITTEN,
    Fact,
    Side,
)
from .base import PAST, PLAIN, Timed, side_of, timed_of
from .fact_words import characters, object_words, predicate_words
from .payload_sections import DAMAGED, TIME_MAX, UNIT_TOLERANCE, Array, PayloadDamaged, Sections, hold

_OBJECT_MAX = 500  # characters


def read_sides(sections: Sections, kinds: list[int], counts: list[int], history: int) -> list[Side | None]:
    """The side of each part, each row one that a record can have; `check_records` looks at what its fact says."""
    flat, words = sections.array("side", "<i8"), iter(sections.strings("facts"))
    hold(len(flat) == 8 * sum(n for kind, n in zip(kinds, counts, strict=True) if kind != PLAIN))
    sides: list[Side | None] = []
    at = 0
    for kind, n in zip(kinds, counts, strict=True):
        if kind == PLAIN:
            sides.append(None)
            continue
        rows = flat[at : at + 8 * n].reshape(8, n)
        at += 8 * n
        _check_rows(rows)
        # Versions that ended are held by a history, and in `past`.
        hold((kind == PAST and history != 0) or bool((rows[KNOWN_TO] == NEVER).all()))
        try:
            sides.append(side_of(rows, words))
        except (RuntimeError, StopIteration):
            raise PayloadDamaged(DAMAGED) from None
    hold(next(words, None) is None)
    return sides


def _check_rows(rows: Array) -> None:
    """Each column, int64 (8, n), holds what a row can have."""
    nones = {VALID_AT: -NEVER, KNOWN_TO: NEVER, VALID_UNTIL: NEVER, INVALID_AT: NEVER}
    for number in (WRITTEN, SINCE, KNOWN_TO, VALID_AT, VALID_UNTIL, INVALID_AT):
        times = rows[number]
        is_time = (times >= -2 * TIME_MAX) & (times <= 2 * TIME_MAX)
        hold(bool((is_time | (times == nones[number] if number in nones else False)).all()))
    hold(bool(((rows[KNOWN_TO] > rows[SINCE]) & (rows[SINCE] >= rows[WRITTEN])).all()))
    hold(bool((rows[VALID_UNTIL] > rows[VALID_AT]).all()))
    flags, confidence = rows[FLAGS], rows[CONFIDENCE].view(np.float64)
    hold(bool(((flags & ~(KIND | PIN)) == 0).all()) and bool(((flags & KIND) <= FACT).all()))
    hold(bool(((confidence >= 0) & (confidence <= 1)).all()))
    # A fact is valid from some time on; nothing else is invalidated, or more or less certain.
    is_fact = (flags & KIND) == FACT
    other = (rows[INVALID_AT] == NEVER) & (confidence == 0)
    hold(bool(np.where(is_fact, rows[VALID_AT] != -NEVER, other).all()))


def check_records(
    ids: list[bytes], texts: list[bytes], serials: list[int], counts: list[int], sides: list[Side | None]
) -> None:
    """One current record of an id, a serial of one id, versions of a record one after the other, facts whose text is
    what they say, and of those that say the same one that is not invalidated."""
    current_serials: set[int] = set()
    of_serial: dict[int, bytes] = {}
    begun: dict[bytes, int] = {}  # when the current version did
    ended: dict[bytes, int] = {}  # when the last one did, as of the rows so far
    said: dict[Key, list[bytes]] = {}  # -> types of the objects
    row = 0
    for n, side in zip(counts, sides, strict=True):
        times = None if side is None else side.cols[[SINCE, KNOWN_TO, VALID_UNTIL, INVALID_AT], :n].T.tolist()
        for slot in range(n):
            record_id, serial = ids[row], serials[row]
            since, known_to, until, invalid_at = (0, NEVER, NEVER, NEVER) if times is None else times[slot]
            hold(of_serial.setdefault(serial, record_id) == record_id)
            if known_to == NEVER:
                hold(record_id not in begun and serial not in current_serials)
                begun[record_id] = since
                current_serials.add(serial)
            else:
                hold(ended.get(record_id, -NEVER) <= since)
                ended[record_id] = known_to
            fact = None if side is None else side.facts[slot]
            if fact is not None:
                _check_fact(fact, texts[row])
                if known_to == NEVER and invalid_at == NEVER:
                    types = said.setdefault(Key(fact.subject, fact.predicate, fact.object, until), [])
                    hold(not any(one_thing(each, fact.entity_type) for each in types))
                    types.append(fact.entity_type)
            row += 1
    hold(all(ended.get(record_id, since) <= since for record_id, since in begun.items()))


def _check_fact(fact: Fact, text: bytes) -> None:
    hold(text == fact.text)
    hold(fact.subject != b"" and fact.subject == entity_name(fact.subject))
    hold(fact.predicate != b"" and fact.predicate == predicate_words(fact.predicate))
    hold(fact.object != b"" and characters(fact.object) <= _OBJECT_MAX)
    if fact.entity_type:
        hold(fact.entity_type in TYPES and fact.object == entity_name(fact.object))
    else:
        hold(fact.object == object_words(fact.object))


def read_timed(sections: Sections, settings: list[Settings]) -> Timed:
    """The floor, old settings and entities."""
    timed, old = sections.array("timed", "<i8"), sections.array("old", "<i8")
    entities = list(_entities(sections, settings[0].dim))
    if not len(timed):
        hold(not len(old) and not entities and len(settings) == 1)
        return Timed()
    hold(len(timed) == 4 and int(timed[0]) == 0 and int(timed[3]) == len(entities))
    hold(len(old) % 2 == 0 and int(timed[2]) * 2 == len(old))
    # HISTORY may be longer than any time.
    hold(-NEVER <= int(timed[1]) <= 2 * TIME_MAX)
    untils, numbers = old[::2].tolist(), old[1::2].tolist()
    hold(not untils or settings[0].history != 0)
    hold(all(0 <= number < len(settings) for number in numbers))
    hold(untils == sorted(untils) and all(-2 * TIME_MAX <= until <= 2 * TIME_MAX for until in untils))
    hold(len({(each.mode, each.dim, each.metric, each.lang) for each in settings}) == 1)
    return timed_of(timed, old, settings, entities)[0]


def _entities(sections: Sections, dim: int) -> Iterator[Entity]:
    names, types, vectors = (sections.strings(name) for name in ("entity_names", "entity_types", "entity_vectors"))
    aliases, created = sections.lists("entity_aliases"), sections.array("entity_created", "<i8").tolist()
    hold(len(names) == len(types) == len(vectors) == len(aliases) == len(created))
    known: set[tuple[bytes, bytes]] = set()
    for name, kind, vector, also, at in zip(names, types, vectors, aliases, created, strict=True):
        hold(kind in TYPES and -2 * TIME_MAX <= at <= 2 * TIME_MAX)
        for each in (name, *also):
            hold(each != b"" and each == entity_name(each) and (each, kind) not in known)
            known.add((each, kind))
        if vector:
            hold(len(vector) == 4 * dim)
            wide = np.frombuffer(vector, "<f4").astype(np.float64)
            hold(bool(abs(np.sqrt((wide * wide).sum()) - 1.0) <= UNIT_TOLERANCE))
        yield Entity(0, name, kind, also, at, vector)
