"""`recalld export` and `recalld import`: memories as JSON lines, by a client of a running server.

portable_lines.py draws the file.

Rule 1: constant memory: one page of records at a time, in a few commands per round trip.
Rule 2: a line is checked before anything of it is sent. The first bad one stops the import; what stood above it is in.
Rule 3: importing twice changes nothing. A record of the file replaces the stored one with its id, unless that was
        updated later. Read, decision and write of a page are one transaction, so a busy server may be imported into.
"""

from __future__ import annotations

import argparse
import json
import os
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from typing import IO, Any, TextIO

import hiredis
import numpy as np

from ..index.analyzer import Vocabulary
from ..index.memory import Memory
from ..index.settings import Settings
from .base import freeze
from .link import DEFAULT_URL, Failed, Link, is_missing
from .payload import dump
from .portable_lines import (
    VERSION,
    About,
    BadLine,
    Record,
    about_line,
    fields_of,
    line_of,
    read_about,
    read_record,
    read_settings,
    record_line,
)

# Records per transaction, and the bytes of texts and vectors that end a page of an import before: the server does
# nothing else meanwhile.
_PAGE = 100
_PAGE_BYTES = 1 << 20
# Lost races against other writers, of a page that takes a round trip, after which something must be wrong.
_ATTEMPTS = 1000
# How far MEM.ADD may be from our own normalising of a COSINE vector that a file does not hold as a unit vector.
_SAME_VECTOR = 2.0**-22


def _now(reply: Sequence[bytes]) -> int:
    """Unix milliseconds of a reply to TIME."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


# -- export


@dataclass(slots=True)
class Counts:
    """What was done. `kept` were there already, `newer` too and updated later, `expired` past their deadline."""

    memories: int = 0
    records: int = 0
    kept: int = 0
    newer: int = 0
    expired: int = 0

    def __str__(self) -> str:
        rest = (
            (self.kept, "there already"),
            (self.newer, "newer on the server"),
            (self.expired, "expired meanwhile"),
        )
        more = ", ".join(f"{count} {what}" for count, what in rest if count)
        return f"{_some(self.memories, 'memory', 'memories')}, {_some(self.records, 'record', 'records')}" + (
            f" ({more})" if more else ""
        )


def _some(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def export_lines(link: Link, pattern: str, counts: Counts, progress: Progress) -> Iterator[bytes]:
    """All memories whose key matches, line by line. Records written meanwhile may be in it or not, each one whole."""
    yield line_of({"recalld": VERSION})
    for key in _keys(link, pattern):
        found = link.together([("MEM.CONFIG", key), ("MEM.INFO", key), ("PEXPIRETIME", key)])
        assert found is not None
        config, info, deadline = found
        if is_missing(config):
            continue
        about = _about_of(key, config, info, deadline)
        counts.memories += 1
        yield about_line(about)
        for done, record in enumerate(_records(link, key), 1):
            yield record_line(record)
            counts.records += 1
            progress.show(done / max(done, info[b"records"]), f"{counts}, {key.decode('utf-8', 'replace')}")
    yield line_of({"end": {"memories": counts.memories, "records": counts.records}})


def _keys(link: Link, pattern: str) -> Iterator[bytes]:
    cursor: bytes = b"0"
    while True:
        cursor, keys = link("SCAN", cursor, "MATCH", os.fsencode(pattern), "COUNT", "1000")
        yield from keys
        if cursor == b"0":
            return


def _about_of(key: bytes, config: dict[bytes, Any], info: dict[bytes, Any], deadline: int) -> About:
    try:
        settings = read_settings(_decoded(config))
    except BadLine as error:
        raise Failed(f"the server is of another version: {error}") from None
    return About(
        key, settings, int(info[b"next_id"]), int(info[b"created_at"]), deadline if deadline >= 0 else None
    )


def _decoded(value: Any) -> Any:
    """A reply in which all is text."""
    if isinstance(value, dict):
        return {_decoded(name): _decoded(held) for name, held in value.items()}
    return value.decode() if isinstance(value, bytes) else value


def _records(link: Link, key: bytes) -> Iterator[Record]:
    """The records of a memory, page by page; it ends where the memory is gone."""
    [page] = link.pipeline([("MEM.SCAN", key, "0", "COUNT", str(_PAGE))])
    while not isinstance(page, hiredis.ReplyError):
        cursor, ids = page
        commands: list[Sequence[bytes | str]] = [("TIME",), *(_get(key, record_id) for record_id in ids)]
        if cursor != b"0":
            commands.append(("MEM.SCAN", key, cursor, "COUNT", str(_PAGE)))
        found = link.together(commands)
        assert found is not None
        # TIME and MEM.GET have one time here, so deadlines are exact.
        now = _now(found[0])
        for reply in found[1 : 1 + len(ids)]:
            if isinstance(reply, dict):
                yield _record_of(reply, now)
        if cursor == b"0":
            return
        page = found[-1]
    if not is_missing(page):
        raise Failed(f"{link.address} refused: {page}")


def _get(key: bytes, record_id: bytes) -> tuple[bytes | str, ...]:
    return ("MEM.GET", key, record_id, "WITHMETA", "WITHVEC")


def _record_of(found: dict[bytes, Any], now: int) -> Record:
    """A record from MEM.GET's map, which the server made at `now`."""
    timed = any(found.get(name) is not None for name in (b"valid_at", b"valid_until"))
    if timed or found.get(b"kind", b"note") != b"note":
        name = found[b"id"].decode("utf-8", "replace")
        raise Failed(
            f"record '{name}' is a fact or an episode, or has a time of validity, which the lines cannot say yet; move"
            " its memory with DUMP and RESTORE, or choose others with --key"
        )
    pttl = int(found[b"pttl"])
    return Record(
        found[b"id"],
        found[b"text"],
        found[b"vector"] or b"",
        tuple(found[b"meta"].items()),
        tuple(found.get(b"tags", ())),
        float(found[b"importance"]),
        int(found[b"created_at"]),
        int(found[b"updated_at"]),
        now + pttl if pttl >= 0 else None,
    )


# -- import


class Importer:
    """Takes the lines of a file one by one, then `finish`."""

    def __init__(self, link: Link, *, replace: bool) -> None:
        self._link = link
        self._replace = replace
        self._about: About | None = None
        self._skipped = False  # the memory's own deadline has passed
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
            self._flush()
            raise Failed(f"line {self._number}: {error}") from None

    def finish(self) -> None:
        """The file is at its end. Raises Failed where it is not."""
        self._flush()
        if self._state != self._after_end:
            raise Failed(f"the file ends after line {self._number} without its last line, so a part of it is missing")

    def _header(self, fields: dict[str, Any]) -> None:
        version = fields.get("recalld")
        if type(version) is not int:
            raise BadLine("not a recalld export: the first line is {" + f'"recalld": {VERSION}' + "}")
        if version != VERSION:
            raise BadLine(f"an export of format {version}; this recalld reads format {VERSION}")
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
            self._page.append((self._number, record))
            self._page_bytes += len(record.text) + len(record.vector)
            if len(self._page) >= _PAGE or self._page_bytes >= _PAGE_BYTES:
                self._flush()

    def _end(self, promised: Any) -> None:
        here = {"memories": self._seen.memories, "records": self._seen.records}
        if promised != here:
            raise BadLine(f"the file had {json.dumps(promised)} when it was written, and has {json.dumps(here)}")
        self._flush()
        self._state = self._after_end

    def _after_end(self, fields: dict[str, Any]) -> None:
        raise BadLine("more behind the last line")

    def _begin(self, about: About) -> None:
        """Make the memory, or find the one that is there fit."""
        self._flush()
        self._about = about
        self._seen.memories += 1
        moment, config = self._link.pipeline([("TIME",), ("MEM.CONFIG", about.key)])
        self._skipped = about.deadline is not None and about.deadline <= _now(moment)
        if self._skipped:
            return
        if is_missing(config) or self._replace:
            # An empty memory as DUMP would have it: its settings, its counter and its times, which no MEM.CREATE sets.
            options = ("ABSTTL", "REPLACE") if self._replace else ("ABSTTL",)
            payload = _empty(about)
            [reply] = self._link.pipeline([("RESTORE", about.key, str(about.deadline or 0), payload, *options)])
            self._accept(self._number, [reply])
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
        self.counts.memories += 1

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
        moment, *replies = self._link.pipeline([("TIME",), *(_get(key, record.id) for _, record in page)])
        now = _now(moment)
        counts = replace(self.counts)
        held: dict[bytes, Record | None] = {}
        commands: list[Sequence[bytes | str]] = []
        numbers: list[int] = []  # of the line that each command is for
        for (number, record), reply in zip(page, replies, strict=True):
            self._accept(number, [reply])
            # An id that was deleted and written again while the export ran is in the file twice.
            stored = held[record.id] if record.id in held else _record_of(reply, now) if reply else None
            if record.deadline is not None and record.deadline <= now:
                counts.expired += 1
            elif stored is not None and stored.updated_at > record.updated_at:
                counts.newer += 1
            elif stored is not None and _same(stored, record, self._about.settings):
                counts.kept += 1
            else:
                writes = list(_writes(key, record, now, there=stored is not None))
                commands += writes
                numbers += [number] * len(writes)
                held[record.id] = record
                counts.records += 1
        if commands:
            results = self._link.together(commands)
            if results is None:
                return False
            for number, reply in zip(numbers, results, strict=True):
                self._accept(number, [reply])
        else:
            self._link("UNWATCH")
        self.counts = counts
        return True

    def _accept(self, number: int, replies: Iterable[Any]) -> None:
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise Failed(f"line {number}: the server refused it: {reply}")


def _empty(about: About) -> bytes:
    vocabulary = Vocabulary()
    memory = Memory(about.settings, vocabulary, about.created_at)
    memory.next_id = about.next_id
    return dump(freeze(b"", memory, 0, about.created_at), vocabulary)


def _writes(key: bytes, record: Record, now: int, *, there: bool) -> Iterator[Sequence[bytes | str]]:
    """The commands after which the record stands there as it is in the file, nothing of the old one left."""
    if there:
        yield ("MEM.DEL", key, record.id)
    words: list[bytes | str] = ["MEM.ADD", key, "ID", record.id, "TEXT", record.text]
    first = [*words, "AT", str(record.created_at), "IMPORTANCE", repr(record.importance)]
    if record.vector:
        first += ["VEC", record.vector]
    for field, value in record.meta:
        first += ["META", field, value]
    if record.tags:
        first += ["TAGS", str(len(record.tags)), *record.tags]
    if record.deadline is not None:
        first += ["TTL", str(-((now - record.deadline) // 1000))]  # seconds, rounded up
    yield first
    if record.updated_at != record.created_at:
        yield [*words, "AT", str(record.updated_at)]  # the same text: everything else stays


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


# -- the command line


class Progress:
    """A bar on a terminal, nothing elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._active = stream.isatty()
        self._next = 0.0

    def show(self, fraction: float | None, what: str) -> None:
        """Draw the bar anew, ten times a second at most; `fraction` None where nobody knows."""
        if not self._active or (now := time.monotonic()) < self._next:
            return
        self._next = now + 0.1
        bar = "" if fraction is None else f"[{'#' * int(30 * fraction):<30}] {100 * fraction:3.0f} %  "
        shown = "".join(char if char.isprintable() else "?" for char in f"{bar}{what}")
        width = os.get_terminal_size(self._stream.fileno()).columns or 80
        self._stream.write(f"\r\x1b[K{shown[: width - 1]}")
        self._stream.flush()

    def clear(self) -> None:
        if self._active:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


_EXPORT = """\
Write the memories of a running server to a file, as JSON lines. The server goes on; a record that is written meanwhile
is in the file or not, never in part. FILE appears when it is whole.
"""
_IMPORT = """\
Read such a file into a running server. A memory that is not there is made, with its settings, counter of ids, times
and deadline. One that is there keeps those and takes the records: a record of the file replaces the stored record with
its id, unless that was updated later. So importing twice changes nothing, and an import that was cut off is begun
again. Deadlines of records are kept to the second, rounded up; what has expired is left out.
"""


def main(argv: Sequence[str]) -> int:
    """Run `export ..` or `import ..`; the exit code."""
    options = _parser().parse_args(argv)
    counts, progress = Counts(), Progress(sys.stderr)
    done = f"{options.command}ed"
    try:
        link = Link(options.url)
        try:
            if options.command == "export":
                with _output(options.file) as file:
                    for line in export_lines(link, options.key, counts, progress):
                        file.write(line)
            else:
                importer = Importer(link, replace=options.replace)
                try:
                    _import(importer, options.file, progress)
                finally:
                    counts = importer.counts
        finally:
            link.close()
    except (Failed, OSError, KeyboardInterrupt) as error:
        progress.clear()
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else error
        print(f"recalld {options.command}: {reason}", file=sys.stderr)
        if options.command == "import":
            print(f"imported before that: {counts}", file=sys.stderr)
        return 1
    progress.clear()
    print(f"{done}: {counts}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="recalld")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("export", _EXPORT), ("import", _IMPORT)):
        sub = commands.add_parser(name, description=text)
        sub.add_argument("file", metavar="FILE", help="- for standard " + ("output" if name == "export" else "input"))
        url_help = f"redis://[[user]:password@]host[:port] (default: {DEFAULT_URL})"
        sub.add_argument("--url", default=DEFAULT_URL, metavar="URL", help=url_help)
        if name == "export":
            sub.add_argument("--key", default="*", metavar="PATTERN", help="only keys that match, as KEYS has it")
        else:
            sub.add_argument(
                "--replace", action="store_true", help="a memory that is there is dropped and made as in the file"
            )
    return parser


@contextmanager
def _output(path: str) -> Iterator[IO[bytes]]:
    """The file to write. A regular one takes its name when it is whole, so that half a file replaces no good one."""
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        with open(path, "wb") as device:
            yield device
        return
    part = f"{path}.part"
    try:
        # What memories hold is nobody else's to read.
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part)
        raise


def _import(importer: Importer, path: str, progress: Progress) -> None:
    with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as file:
        about = os.fstat(file.fileno())
        size = about.st_size if stat.S_ISREG(about.st_mode) else 0
        done = 0
        for line in file:
            importer.line(line)
            done += len(line)
            progress.show(min(1.0, done / size) if size else None, str(importer.counts))
        importer.finish()
