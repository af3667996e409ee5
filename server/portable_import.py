"""What `recalld import` does with the lines of a file.

Rule 1: constant memory but for the entities of one memory: of records one page at a time, in a few commands per round
        trip.
Rule 2: a line is checked before anything of it is sent. The first bad one stops the import; what stood above it is in.
Rule 3: importing twice changes nothing. A record of the file replaces the stored one with its id, unless that was
        updated later. Read, decision and write of a page are one transaction, so a busy server may be imported into.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

import hiredis
import numpy as np

from ..index.analyzer import Vocabulary
from ..index.memory import Memory
from ..index.settings import Settings
from .base import freeze
from .link import Failed, Link, is_missing
from .payload import dump
from .portable_export import Counts, get_words, now_of, record_of
from .portable_lines import VERSION, About, BadLine, Record, Stated, fields_of, read_about, read_record

# Records per transaction, and the bytes of texts and vectors that end a page before: the server does nothing else
# meanwhile.
_PAGE = 100
_PAGE_BYTES = 1 << 20
# Lost races against other writers, of a page that takes a round trip, after which something must be wrong.
_ATTEMPTS = 1000
# How far MEM.ADD may be from our own normalising of a COSINE vector that a file does not hold as a unit vector.
_SAME_VECTOR = 2.0**-22


class Importer:
    """Takes the lines of a file one by one, then `finish`."""

    def __init__(self, link: Link, *, replace: bool) -> None:
        self._link = link
        self._replace = replace
        self._about: About | None = None
        self._skipped = False  # the memory's own deadline has passed
        self._limits: list[str] = []  # the words of MEM.CONFIG that it gets when its records are in
        # What (name, type) is called here, where that is another name than the file's.
        self._called: dict[tuple[bytes, bytes], bytes] = {}
        self._page: list[tuple[int, Record]] = []
        self._page_bytes = 0
        self._seen = Counts()
        self._state: Callable[[dict[str, Any]], None] = self._header
        self._number = 0
        self.counts = Counts()

    def line(self, line: bytes) -> None:
        """Take the next line. Raises Failed; what stood above is imported then."""
        self._number += 1
        try:
            self._state(fields_of(line.rstrip(b"\r\n")))
        except BadLine as error:
            self._settle()
            raise Failed(f"line {self._number}: {error}") from None

    def finish(self) -> None:
        """The file is at its end. Raises Failed where it is not."""
        self._settle()
        if self._state != self._after_end:
            raise Failed(f"the file ends after line {self._number} without its last line, so a part of it is missing")

    def _header(self, fields: dict[str, Any]) -> None:
        version = fields.get("recalld")
        if type(version) is not int:
            raise BadLine("not a recalld export: the first line is {" + f'"recalld": {VERSION}' + "}")
        # Format 1 is this one without facts, episodes, entities and times of validity.
        if not 1 <= version <= VERSION:
            raise BadLine(f"an export of format {version}; this recalld reads formats 1 to {VERSION}")
        self._state = self._body

    def _body(self, fields: dict[str, Any]) -> None:
        if "memory" in fields:
            self._begin(read_about(fields))
        elif "end" in fields:
            self._end(fields["end"])
        elif self._about is None:
            raise BadLine("a record before the first memory")
        else:
            record = read_record(fields, self._about.settings)
            self._seen.records += 1
            if self._skipped:
                self.counts.expired += 1
                return
            self._page.append((self._number, self._told(record)))
            self._page_bytes += len(record.text) + len(record.vector)
            if record.fact is not None:
                self._page_bytes += len(record.fact.fact.quote)
            if len(self._page) >= _PAGE or self._page_bytes >= _PAGE_BYTES:
                self._flush()

    def _end(self, promised: Any) -> None:
        here = {"memories": self._seen.memories, "records": self._seen.records}
        if promised != here:
            raise BadLine(f"the file had {json.dumps(promised)} when it was written, and has {json.dumps(here)}")
        self._settle()
        self._state = self._after_end

    def _after_end(self, fields: dict[str, Any]) -> None:
        raise BadLine("more behind the last line")

    def _begin(self, about: About) -> None:
        """Make the memory, or find the one that is there fit."""
        self._settle()
        self._about = about
        self._called = {}
        self._seen.memories += 1
        moment, config, info = self._link.pipeline([("TIME",), ("MEM.CONFIG", about.key), ("MEM.INFO", about.key)])
        self._skipped = about.deadline is not None and about.deadline <= now_of(moment)
        if self._skipped:
            return
        made = is_missing(config) or self._replace
        if made:
            # A memory without records as DUMP would have it: its settings, counter and entities, and its times, which
            # no MEM.CREATE sets.
            options = ("ABSTTL", "REPLACE") if self._replace else ("ABSTTL",)
            payload = _empty(about, now_of(moment))
            [reply] = self._link.pipeline([("RESTORE", about.key, str(about.deadline or 0), payload, *options)])
            self._accept(self._number, [reply])
            for entity in about.entities:
                self._called.update({(alias, entity.type): entity.name for alias in entity.aliases})
        elif isinstance(config, hiredis.ReplyError):
            self._accept(self._number, [config])
        else:
            for name, want in (
                ("mode", about.settings.mode),
                ("dim", about.settings.dim),
                ("metric", about.settings.metric),
                ("lang", about.settings.lang),
            ):
                got = config[name.encode()]
                got = got.decode() if isinstance(got, bytes) else got
                if got != want:
                    raise BadLine(f"this memory is there with {name} {got}, not {want}; --replace replaces it")
            self._meet(about)
        limits = (about.settings.max_records, about.settings.max_bytes)
        # One of ours that was cut off has the file's time of creation, and no limits yet.
        cut_off = not is_missing(config) and info[b"created_at"] == about.created_at
        if any(limits) and (made or (cut_off and not (config[b"maxrecords"] or config[b"maxbytes"]))):
            self._limits = ["MAXRECORDS", str(limits[0]), "MAXBYTES", str(limits[1])]
        self.counts.memories += 1

    def _meet(self, about: About) -> None:
        """Find or make the entities in a memory that is there, by their names: vectors would find others."""
        for start in range(0, len(about.entities), _PAGE):
            page = about.entities[start : start + _PAGE]
            commands: list[list[bytes | str]] = []
            for entity in page:
                words: list[bytes | str] = ["MEM.ENTITY", about.key, entity.name, "TYPE", entity.type]
                commands.append(words + [word for alias in entity.aliases for word in ("ALIAS", alias)])
                commands.append([*words, "VEC", entity.vector] if entity.vector else words)
            replies = self._link.pipeline(commands)
            self._accept(self._number, replies)
            for entity, reply in zip(page, replies[::2], strict=True):
                for name in (entity.name, *entity.aliases):
                    if name != reply[b"name"]:
                        self._called[name, entity.type] = reply[b"name"]

    def _told(self, record: Record) -> Record:
        """The record with its object called as it is here."""
        if record.fact is None:
            return record
        fact = record.fact.fact
        name = self._called.get((fact.object, fact.entity_type))
        if name is None:
            return record
        fact = fact._replace(object=name)
        return replace(record, text=fact.text, fact=record.fact._replace(fact=fact))

    def _settle(self) -> None:
        """The memory has its records, so it gets its limits: these would have evicted some on their way."""
        self._flush()
        if self._limits and self._about is not None:
            words, self._limits = self._limits, []
            self._accept(self._number, self._link.pipeline([("MEM.CONFIG", self._about.key, *words)]))

    def _flush(self) -> None:
        """Bring the page in."""
        page, self._page, self._page_bytes = self._page, [], 0
        if not page:
            return
        for _ in range(_ATTEMPTS):
            if self._try(page):
                return
        raise Failed(f"line {page[0][0]}: others write to this memory without a pause")

    def _try(self, page: list[tuple[int, Record]]) -> bool:
        """Bring the page in, unless somebody writes to the memory between the look and the write."""
        assert self._about is not None
        key = self._about.key
        self._link("WATCH", key)
        moment, *replies = self._link.pipeline([("TIME",), *(get_words(key, record.id) for _, record in page)])
        now = now_of(moment)
        held: dict[bytes, Record | None] = {}
        steps: list[_Step] = []
        for (number, record), reply in zip(page, replies, strict=True):
            self._accept(number, [reply])
            # An id that was deleted and written again while the export ran is in the file twice.
            stored = held[record.id] if record.id in held else record_of(reply, now) if reply else None
            if record.deadline is not None and record.deadline <= now:
                steps.append(_Step(number, record, stored, "expired", []))
            elif stored is not None and _updated(stored) > _updated(record):
                steps.append(_Step(number, record, stored, "newer", []))
            elif stored is not None and _same(stored, record, self._about.settings):
                steps.append(_Step(number, record, stored, "kept", []))
            else:
                steps.append(_Step(number, record, stored, "records", list(_writes(key, record, now, stored))))
                held[record.id] = record
        commands = [command for step in steps for command in step.commands]
        if not commands:
            self._link("UNWATCH")
        results = self._link.together(commands) if commands else []
        if results is None:
            return False
        left = iter(results)
        for step in steps:
            mine = list(islice(left, len(step.commands)))
            if step.stored is not None and any(isinstance(each, hiredis.ReplyError) for each in mine):
                # Refused when the stored one was deleted already.
                self._link.pipeline(list(_writes(key, step.stored, now, None)))
            self._accept(step.number, mine)
            what = step.what
            if mine and step.record.fact is not None and mine[-1] != step.record.id:
                what = "kept"  # another fact says so
            setattr(self.counts, what, getattr(self.counts, what) + 1)
        return True

    def _accept(self, number: int, replies: Iterable[Any]) -> None:
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise Failed(f"line {number}: the server refused it: {reply}")


class _Step(NamedTuple):
    """What is to become of one line; `what` is the field of Counts that counts it."""

    number: int
    record: Record
    stored: Record | None
    what: str
    commands: list[Sequence[bytes | str]]


def _empty(about: About, now: int) -> bytes:
    vocabulary = Vocabulary()
    settings = replace(about.settings, max_records=0, max_bytes=0)
    memory = Memory(settings, vocabulary, about.created_at)
    memory.next_id = about.next_id
    for entity in about.entities:
        memory.put_entity(entity, about.created_at)
    if about.settings.history:
        memory.floor = now  # what was before is not in the file
    return dump(freeze(b"", memory, 0, about.created_at), vocabulary)


def _writes(key: bytes, record: Record, now: int, stored: Record | None) -> Iterator[Sequence[bytes | str]]:
    """The commands after which the record stands there as it is in the file, nothing of the old one left."""
    if record.fact is not None:
        if stored is not None and stored.fact is None:
            yield ("MEM.DEL", key, record.id)
        yield [*_fact_words(key, record, record.fact), *_common_words(record, now), *_import_words(record, record.fact)]
        return
    if stored is not None:
        yield ("MEM.DEL", key, record.id)
    words: list[bytes | str] = ["MEM.ADD", key, "ID", record.id, "TEXT", record.text]
    first = [*words, "IMPORTANCE", repr(record.importance), *_common_words(record, now)]
    if record.kind != "note":
        first += ["KIND", record.kind]
    if record.pin:
        first.append("PIN")
    at, until = record.created_at, record.valid_until
    if record.valid_at is not None:
        first += ["VALIDAT", str(record.valid_at)]
    elif until is not None and until <= at:
        # It was to end before it began to be, which is no time to write it: it was written again in between.
        yield [*first, "AT", str(at)]
        first, at = words, until - 1
    if until is not None:
        first = [*first, "VALIDUNTIL", str(until)]
    yield [*first, "AT", str(at)]
    if record.updated_at != at:
        yield [*words, "AT", str(record.updated_at)]  # the same text: everything else stays


def _common_words(record: Record, now: int) -> Iterator[bytes | str]:
    """The options that MEM.ADD and MEM.FACT share."""
    if record.vector:
        yield from ("VEC", record.vector)
    for field, value in record.meta:
        yield from ("META", field, value)
    if record.tags:
        yield from ("TAGS", str(len(record.tags)))
        yield from record.tags
    if record.deadline is not None:
        yield from ("TTL", str(-((now - record.deadline) // 1000)))  # seconds, rounded up


def _fact_words(key: bytes, record: Record, stated: Stated) -> Iterator[bytes | str]:
    fact = stated.fact
    yield from ("MEM.FACT", key, fact.subject, fact.predicate, fact.object, "ID", record.id)
    yield from ("AT", str(record.updated_at), "VALIDAT", str(record.valid_at), "CONFIDENCE", repr(stated.confidence))
    if record.valid_until is not None:
        yield from ("VALIDUNTIL", str(record.valid_until))
    for option, word in (
        ("TYPE", fact.entity_type),
        ("QUOTE", fact.quote),
        ("EPISODE", fact.episode),
        ("SUPERSEDES", fact.supersedes),
    ):
        if word:
            yield from (option, word)


def _import_words(record: Record, stated: Stated) -> Iterator[bytes | str]:
    invalid_at = "" if stated.invalid_at is None else str(stated.invalid_at)
    yield from ("IMPORT", str(record.created_at), invalid_at, stated.fact.superseded_by)


def _updated(record: Record) -> int:
    """When it was updated last. That a fact was invalidated since is not for an older file to undo."""
    invalid_at = None if record.fact is None else record.fact.invalid_at
    return record.updated_at if invalid_at is None else max(record.updated_at, invalid_at)


def _same(stored: Record, record: Record, settings: Settings) -> bool:
    """Whether the record stands there as an import of it would leave it."""
    if (stored.deadline is None) != (record.deadline is None):
        return False
    if stored.deadline is not None and record.deadline is not None and abs(stored.deadline - record.deadline) > 1000:
        return False
    if replace(stored, vector=b"", deadline=None) != replace(record, vector=b"", deadline=None):
        return False
    if stored.vector == record.vector or settings.metric != "COSINE" or not stored.vector or not record.vector:
        return stored.vector == record.vector
    mine, theirs = (np.frombuffer(blob, "<f4").astype(np.float64) for blob in (stored.vector, record.vector))
    theirs /= np.abs(theirs).max()
    theirs /= np.sqrt((theirs * theirs).sum())
    return bool((np.abs(mine - theirs) <= _SAME_VECTOR).all())
