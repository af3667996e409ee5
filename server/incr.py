"""The incr file: entries in the order in which they were applied, with a checksum after each flush.

    file    := header note chunk*
    chunk   := group+ note                                what one flush wrote
    group   := entry                                      one settled command, see entries.py
             | "*1" "$5" "MULTI" entry entry+ "*1" "$4" "EXEC"      several that apply together or not at all
    entry   := "*" words CR LF ("$" bytes CR LF word CR LF)+
    header  := *4 "RECALLD" "AOF" "2" tag                 tag: 16 hex digits, random, this file's own
    note    := "#" tag ":" crc ":" length CR LF

Byte by byte, a file with one group:

      0  *4 CR LF  $7 CR LF RECALLD CR LF  $3 CR LF AOF CR LF  $1 CR LF 2 CR LF  $16 CR LF
     38  0123456789abcdef CR LF                           the tag
     56  #0123456789abcdef:ecaeaa36:56 CR LF              the note on the header
     87  *1 CR LF  $5 CR LF FLUSH CR LF                   a group of one entry
    102  #0123456789abcdef:6543791a:15 CR LF              its note

`length` is what lies between the note and the one before it (or the start), in bytes. `crc` is the CRC32C of those
bytes, 8 hex digits, begun with the CRC of the note before: so a chunk is whole, and the one written in this place.
Numbers are decimal without leading zeros, hex digits are lower case: each state has one spelling.

A record counts once a note covers it, and not before. Behind the last note that holds there may be

    nothing                                  whole
    a true prefix of a chunk                 torn: what a crash leaves. It is cut, to the last note
    anything else                            damaged: LogDamaged, and nothing is touched

A tail without its note is cut even where groups in it are whole: no checksum vouches for them, and none of them was
acknowledged, since a reply leaves after its flush. In particular these are damage: a byte that begins neither entry
nor note, or an entry that cannot be read, though the file goes on; a note that is not the one of the bytes before it;
an unfinished group with this file's tag behind its beginning (a flipped length has swallowed the note); a torn tail in
a file that is not the last. The tag is random, so no text of a client can be taken for a note even there.

A file shorter than its header and note is torn, too (`keep` 0); writing it goes on with a new header.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple, NoReturn

from crc32c import crc32c
from hiredis import HiredisError, Reader
from hiredis import pack_command as _pack_command

from .entries import Entry, PutNew, Restore, decode
from .files import AppendFile, Data, Files

Group = list[Entry]


class LogDamaged(Exception):
    """The log is not what this server wrote: which file, where, and what to do."""


class Damaged(LogDamaged):
    """A file is damaged at `offset`; what is before `keep` is whole."""

    def __init__(self, name: str, offset: int, why: str, keep: int) -> None:
        folder = shlex.quote(os.path.dirname(name) or "DIR")
        super().__init__(
            f"{name} is damaged at offset {offset}: {why}. Nothing was changed. Restore it from a backup, or `recalld"
            f" check-aof --fix {folder}` cuts it at offset {keep}, keeping a copy."
        )
        self.name = name
        self.offset = offset
        self.why = why
        self.keep = keep


class Tail(NamedTuple):
    """How a file ends: what is before `keep` stays, `lost` bytes behind it go, among them `entries` whole ones."""

    kind: Literal["whole", "torn"]
    keep: int
    lost: int
    entries: int
    tag: bytes
    crc: int  # of the last note

    def refusal(self, name: str) -> str:
        """What to say where a torn tail is not to be cut."""
        return (
            f"{name} ends in the middle of a write: {self.lost} bytes from offset {self.keep} on. With"
            " `aof-load-truncated yes` they are cut and the rest is loaded."
        )


def pack(words: Iterable[bytes]) -> bytes:
    """A command in RESP, the canonical spelling."""
    packed: bytes = _pack_command(tuple(words))  # type: ignore[arg-type]  # its stub wants a tuple of one
    return packed


_MULTI = pack((b"MULTI",))
_EXEC = pack((b"EXEC",))
_CRLF = b"\r\n"
_UNTAGGED = pack((b"RECALLD", b"AOF", b"2", bytes(16)))[:-18]
_FORMAT_1 = pack((b"RECALLD", b"AOF", b"1"))
FORMAT_1_BYTES = len(_FORMAT_1)
_VERSION = re.compile(rb"\*[34]\r\n\$7\r\nRECALLD\r\n\$3\r\nAOF\r\n\$\d\r\n(\d+)\r\n")
_NOTE = re.compile(rb"#[0-9a-f]{16}:([0-9a-f]{8}):([1-9]\d{0,17})\r\n")
_TAG = re.compile(rb"[0-9a-f]{16}")
# At most 18 digits: more than any file has bytes, less than an index may be.
_NUMBER = {
    b"*": (re.compile(rb"\*([1-9]\d{0,17})\r\n"), re.compile(rb"(?:\*(?:[1-9]\d{0,17}\r?)?)?")),
    b"$": (re.compile(rb"\$(0|[1-9]\d{0,17})\r\n"), re.compile(rb"(?:\$(?:(?:0|[1-9]\d{0,17})\r?)?)?")),
}
_NUMBER_BYTES = 21
_FED_BYTES = 1 << 14


def note(tag: bytes, crc: int, length: int) -> bytes:
    """The line behind `length` bytes."""
    return b"#%b:%08x:%d\r\n" % (tag, crc, length)


def _preamble(tag: bytes) -> tuple[bytes, int]:
    """Header and note, and the note's CRC."""
    header = _UNTAGGED + tag + _CRLF
    crc: int = crc32c(header)
    return header + note(tag, crc, len(header)), crc


EMPTY_BYTES = len(_preamble(bytes(16))[0])
"""The size of a file without a group."""


# -- writing


def encode_group(group: Group) -> bytes:
    """What stands in the file for entries that apply together."""
    parts = [pack(entry.encode()) for entry in group]
    return parts[0] if len(parts) == 1 else b"".join((_MULTI, *parts, _EXEC))


def encode_pieces(group: Group) -> list[bytes]:
    """The same in pieces: a payload of hundreds of megabytes is not copied."""
    if len(group) == 1 and isinstance(group[0], Restore):
        return encode_entries(group)
    return [encode_group(group)]


def encode_entries(group: Sequence[Entry | PutNew]) -> list[bytes]:
    """Some entries of a group in pieces; `framed` makes a group of them."""
    pieces: list[bytes] = []
    packed: list[bytes] = []
    for entry in group:
        if isinstance(entry, Restore):
            *words, payload = entry.encode()
            head = pack(words).removeprefix(b"*%d" % len(words))
            packed.append(b"*%d%b$%d\r\n" % (len(words) + 1, head, len(payload)))
            pieces += [b"".join(packed), payload, _CRLF]
            packed.clear()
        elif isinstance(entry, PutNew):
            packed += entry.packed
        else:
            packed.append(pack(entry.encode()))
    return [*pieces, b"".join(packed)] if packed else pieces


def framed(pieces: list[bytes], count: int) -> list[bytes]:
    """The pieces of `count` entries as a group."""
    return pieces if count == 1 else [_MULTI, *pieces, _EXEC]


class Mark(NamedTuple):
    """A moment of a file, to come back to."""

    size: int
    crc: int


class IncrWriter:
    """Appends to an incr file whose last note has this `crc`."""

    def __init__(self, file: AppendFile, tag: bytes, crc: int) -> None:
        self._file = file
        self._tag = tag
        self._crc = crc

    @property
    def size(self) -> int:
        """Bytes in the file."""
        return self._file.size

    @property
    def mark(self) -> Mark:
        """Where the file ends, for `rewind`."""
        return Mark(self._file.size, self._crc)

    def encode(self, groups: Iterable[bytes]) -> bytes:
        """The chunk that `write` would append for these encoded groups, at least one."""
        return self._chunk(groups)[0]

    def write(self, groups: Iterable[bytes]) -> int:
        """Append the groups and their note in one write; how many bytes. OSError: none of them."""
        chunk, crc = self._chunk(groups)
        self._file.write(chunk)
        self._crc = crc
        return len(chunk)

    def sync(self) -> None:
        self._file.sync()

    def rewind(self, mark: Mark) -> None:
        """Cut what was written since `mark`."""
        self._crc = mark.crc
        self._file.truncate(mark.size)

    def close(self) -> None:
        self._file.close()

    def _chunk(self, groups: Iterable[bytes]) -> tuple[bytes, int]:
        body = b"".join(groups)
        crc: int = crc32c(body, self._crc)
        # join, which lets others run where there is much to copy; + does not.
        return b"".join((body, note(self._tag, crc, len(body)))), crc


def create(files: Files, path: str, tag: bytes | None = None) -> IncrWriter:
    """Begin the file at `path`: header and note, synced. Its name is not: that is the folder's `sync_dir`."""
    tag = tag or secrets.token_hex(8).encode()
    preamble, crc = _preamble(tag)
    file = files.open_append(path)
    try:
        file.truncate(0)
        file.write(preamble)
        file.sync()
    except OSError:
        file.close()
        raise
    return IncrWriter(file, tag, crc)


def resume(files: Files, path: str, tail: Tail) -> IncrWriter:
    """Go on behind what was read: cut what `tail` says is lost, for good, and open the file for appending.

    What was read is on the disk then, and so are the names of its folder: a process that was killed may have left
    them to the system, and a power cut later could still take them back.
    """
    if not tail.keep:
        writer = create(files, path)
        files.sync_dir(os.path.dirname(path))
        return writer
    file = files.open_append(path)
    try:
        if file.size != tail.keep:
            file.truncate(tail.keep)
        file.sync()
        files.sync_dir(os.path.dirname(path))
    except OSError:
        file.close()
        raise
    return IncrWriter(file, tail.tag, tail.crc)


# -- reading


class IncrReader:
    """The groups of a file, each with the offset of its chunk; then `tail`.

    Damaged is raised before anything of the damaged chunk is yielded. Only the `last` file may be torn.
    """

    def __init__(self, data: Data, name: str, *, last: bool) -> None:
        self._data = data
        self._name = name
        self._last = last
        self._view = memoryview(data)
        self._keep = 0
        self._crc = 0
        self._tag = b""
        self.tail: Tail

    def __iter__(self) -> Iterator[tuple[int, Group]]:
        with self._view:
            if not self._read_header():
                return
            while self._keep < len(self._data):
                at = self._keep
                groups = self._checked_chunk() or self._any_chunk()
                if not groups:
                    return
                for group in groups:
                    yield at, group
            self._end("whole", [])

    def _read_header(self) -> bool:
        start = self._data[:EMPTY_BYTES]
        known = min(len(start), len(_UNTAGGED))
        if start[:known] != _UNTAGGED[:known]:
            self._refuse(0, _no_header(start))
        tag = start[known : known + 16].ljust(16, b"0")
        if not _TAG.fullmatch(tag):
            self._refuse(known, "its header holds no tag")
        preamble, crc = _preamble(tag)
        if start != preamble:
            if preamble.startswith(start):
                self._end("torn", [])
                return False
            self._refuse(0, "the note on its header does not match")
        self._keep, self._crc, self._tag = len(preamble), crc, tag
        return True

    def _checked_chunk(self) -> list[Group]:
        """The next chunk if what next looks like a note is its note, and nothing if not: the fast way.

        It looks for the note before it looks at entries; so what it finds may stand in a text, whose chunk is then
        for `_any_chunk` to read.
        """
        start, crc = self._keep, self._crc
        at = self._data.find(b"#" + self._tag + b":", start)
        if at < 0 or not self._passes(at):
            return []
        try:
            return _parse(self._data[start:at])
        except (HiredisError, ValueError, TypeError):
            self._keep, self._crc = start, crc
            return []

    def _any_chunk(self) -> list[Group]:
        """The next chunk by the grammar, nothing if it is torn."""
        data, start = self._data, self._keep
        groups: list[Group] = []
        at = start
        try:
            for end, group in _scan(data, start):
                at = end
                groups.append(group)
        except _Unfinished as unfinished:
            if data.find(b"#" + self._tag, start) >= 0:
                self._refuse(unfinished.offset, "an entry begins there that would reach over a note")
            self._end("torn", groups)
            return []
        except _Unreadable as unreadable:
            self._refuse(unreadable.offset, unreadable.why)
        if groups and self._passes(at):
            return groups
        expected = self._note(at)[0]
        rest = data[at : at + len(expected)]
        if groups and expected.startswith(rest):
            self._end("torn", groups)
            return []
        if not groups or rest[:1] != b"#":
            self._refuse(at, "neither an entry nor a note begins there")
        self._refuse(start, f"the {at - start} bytes from there on do not match the checksum behind them")

    def _note(self, at: int) -> tuple[bytes, int]:
        """The note that belongs at `at`, and its CRC."""
        crc: int = crc32c(self._view[self._keep : at], self._crc)
        return note(self._tag, crc, at - self._keep), crc

    def _passes(self, at: int) -> bool:
        """Step over the note at `at` if it is the one that belongs there."""
        expected, crc = self._note(at)
        end = at + len(expected)
        if self._data[at:end] != expected:
            return False
        self._keep, self._crc = end, crc
        return True

    def _end(self, kind: Literal["whole", "torn"], lost: list[Group]) -> None:
        size = len(self._data)
        if kind == "torn" and not self._last:
            self._refuse(size, "it ends in the middle of a write, and another file follows it")
        self.tail = Tail(kind, self._keep, size - self._keep, sum(map(len, lost)), self._tag, self._crc)

    def _refuse(self, offset: int, why: str) -> NoReturn:
        raise Damaged(self._name, offset, why, self._keep)


def _no_header(start: bytes) -> str:
    version = _VERSION.match(start)
    if version:
        return f"its format version {version[1].decode()} is not the one that belongs here (2)"
    return "it does not begin as an incr file"


def read_format_1(data: Data, name: str) -> Iterator[tuple[int, Group]]:
    """The groups of a log of format 1, each with the offset behind it; a torn tail ends them. Raises Damaged.

    file   := header group*
    header := *3 "RECALLD" "AOF" "1"
    """
    if data[:FORMAT_1_BYTES] != _FORMAT_1:
        if _FORMAT_1.startswith(data[:]):
            return  # what a crash at its first start left
        raise Damaged(name, 0, "it does not begin as a log of format 1", 0)
    keep = FORMAT_1_BYTES
    try:
        for end, group in _scan(data, keep):
            keep = end
            yield end, group
    except _Unfinished:
        return
    except _Unreadable as unreadable:
        raise Damaged(name, unreadable.offset, unreadable.why, keep) from unreadable
    if keep < len(data):
        raise Damaged(name, keep, "no entry begins there", keep)


def is_format_1(data: Data) -> bool:
    """Whether a file begins as a log of format 1."""
    return data[:FORMAT_1_BYTES] == _FORMAT_1


def count_behind(data: Data, keep: int) -> int:
    """How many whole entries there are in a damaged file behind `keep`, that is: what cutting it loses.

    These are the ones of chunks whose checksum holds, and the first ones of the chunk at `keep`.
    """
    entries = 0
    if keep:
        with contextlib.suppress(_Unfinished, _Unreadable):
            for _, group in _scan(data, keep):
                entries += len(group)
    before: re.Match[bytes] | None = None
    with memoryview(data) as view:
        for line in _NOTE.finditer(data, keep):
            if before is not None:
                start, end = before.end(), line.start()
                crc = crc32c(view[start:end], int(before[1], 16))
                if end - start == int(line[2]) and crc == int(line[1], 16):
                    entries += sum(map(len, _parse(data[start:end])))
            before = line
    return entries


# -- the grammar of groups, twice: fast for bytes that a checksum vouches for, and byte by byte for all others


def _parse(chunk: bytes) -> list[Group]:
    """The groups that `chunk` is made of. Raises ValueError, HiredisError or TypeError if it is made of no such."""
    reader = Reader()
    groups: list[Group] = []
    group: Group | None = None
    # The reader moves what it has not used yet to the front every 1024 bytes, so it gets no more than it needs.
    for start in range(0, len(chunk), _FED_BYTES):
        reader.feed(chunk[start : start + _FED_BYTES])
        while (words := reader.gets()) is not False:
            if len(words) == 1 and words == [b"MULTI"]:
                group = []
            elif group is None:
                groups.append([decode(words)])
            elif words == [b"EXEC"]:
                groups.append(group)
                group = None
            else:
                group.append(decode(words))
    # Where the chunk ends within an entry, this is taken for a part of it.
    reader.feed(b":1\r\n")
    if group is not None or reader.gets() != 1:
        raise ValueError("a group has no end")
    return groups


class _Unfinished(Exception):
    """The file ends within the group that begins at `offset`."""

    def __init__(self, offset: int) -> None:
        self.offset = offset


class _Unreadable(Exception):
    """What is at `offset` is no part of a group."""

    def __init__(self, offset: int, why: str) -> None:
        super().__init__(why)
        self.offset = offset
        self.why = why


def _scan(data: Data, offset: int) -> Iterator[tuple[int, Group]]:
    """Groups up to the end, or to what does not begin as one. Raises _Unfinished and _Unreadable."""
    group: Group | None = None
    while group is not None or data[offset : offset + 1] == b"*":
        start = offset
        words, offset = _command(data, offset)
        if words == [b"MULTI"] and group is None:
            group = []
        elif words == [b"EXEC"] and group is not None and len(group) > 1:
            yield offset, group
            group = None
        else:
            try:
                entry = decode(words)
            except ValueError as error:
                raise _Unreadable(start, str(error)) from error
            if group is None:
                yield offset, [entry]
            else:
                group.append(entry)


def _command(data: Data, start: int) -> tuple[list[bytes], int]:
    count, at = _number(data, start, b"*", start)
    words: list[bytes] = []
    while len(words) < count:
        length, at = _number(data, at, b"$", start)
        end = at + length
        behind = data[end : end + 2]
        if behind != _CRLF:
            if end + len(behind) >= len(data) and _CRLF.startswith(behind):
                raise _Unfinished(start)
            raise _Unreadable(at, f"a word of {length} bytes does not end where it should")
        words.append(data[at:end])
        at = end + 2
    return words, at


def _number(data: Data, at: int, mark: bytes, start: int) -> tuple[int, int]:
    line, begun = _NUMBER[mark]
    match = line.match(data, at)
    if match:
        return int(match[1]), match.end()
    rest = data[at : at + _NUMBER_BYTES]
    if at + len(rest) == len(data) and begun.fullmatch(rest):
        raise _Unfinished(start)
    raise _Unreadable(at, f"a line that begins with {mark.decode()!r} and a number should be there")
