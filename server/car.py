"""`recalld export --car`: the texts of memories as a CAR v1 archive, by a client of a running server.

    file     := varint(length) header section*
    header   := dag-cbor {"roots": [root's CID], "version": 1}
    section  := varint(length of what follows) CID block

    a text's block      its bytes (raw); the CID is the one that MEM.GET shows
    a page's block      dag-cbor [[id, text's CID], ..], up to 1000 records
    the root's block    dag-cbor {"memories": [{"key": key, "pages": [page's CID, ..], "records": count}, ..],
                        "recalld": 1}

Ids and keys are byte strings. Every block hangs below the root, so an importer keeps all of them. Blocks stand before
those that name them, the root last; a text of two records stands there twice.

Rule 1: constant memory: one page at a time, and 36 bytes a page for the root.
Rule 2: the root's CID is known last and stands first, so what is written can seek; it takes its name when it is whole.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import IO, Any

import hiredis

from ..index.filters import content_digest
from .link import DEFAULT_URL, Failed, Link, is_missing

_PAGE = 1000
# Records per round trip: so many of the longest texts are in memory.
_AT_ONCE = 100
_RAW, _DAG_CBOR = 0x55, 0x71

_ABOUT = """\
Write the texts of a running server's memories as a CAR v1 archive (docs/export.md), which anybody can check block by
block. FILE appears when it is whole; - is standard output.
"""


class Cid(bytes):
    """A CIDv1 in binary form."""


def cid_of(codec: int, block: bytes) -> Cid:
    """The block's CID, by its sha256."""
    return Cid(bytes((1, codec, 0x12, 0x20)) + hashlib.sha256(block).digest())


def dag_cbor(value: object) -> bytes:
    """A value of maps with text names, lists, text, byte strings, whole numbers and CIDs, as DAG-CBOR writes it."""
    if isinstance(value, Cid):
        return b"\xd8\x2a" + dag_cbor(b"\0" + value)  # tag 42
    if isinstance(value, int):
        return _head(0, value)
    if isinstance(value, bytes):
        return _head(2, len(value)) + value
    if isinstance(value, str):
        return _head(3, len(value.encode())) + value.encode()
    if isinstance(value, list):
        return _head(4, len(value)) + b"".join(map(dag_cbor, value))
    assert isinstance(value, dict)
    names = sorted(value, key=lambda name: (len(name.encode()), name.encode()))
    return _head(5, len(value)) + b"".join(dag_cbor(name) + dag_cbor(value[name]) for name in names)


def _head(major: int, number: int) -> bytes:
    if number < 24:
        return bytes((major << 5 | number,))
    size = next(size for size in (1, 2, 4, 8) if number < 1 << 8 * size)
    return bytes((major << 5 | 23 + size.bit_length(),)) + number.to_bytes(size, "big")


def varint(number: int) -> bytes:
    """LEB128, unsigned."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def write(link: Link, keys: Sequence[bytes], file: IO[bytes]) -> tuple[int, int]:
    """Write the memories `keys`, all of them for none, to a file that can seek: how many memories, how many records."""

    def put(codec: int, block: bytes) -> Cid:
        cid = cid_of(codec, block)
        file.write(varint(len(cid) + len(block)) + cid + block)
        return cid

    file.write(_header(cid_of(_DAG_CBOR, b"")))  # in the place of the one below
    memories: list[object] = []
    records = 0
    for key in keys or _keys(link):
        pages: list[object] = []
        count = 0
        page: list[object] = []
        try:
            for record_id, text in _records(link, key):
                page.append([record_id, put(_RAW, text)])
                count += 1
                if len(page) == _PAGE:
                    pages.append(put(_DAG_CBOR, dag_cbor(page)))
                    page = []
        except _Missing:
            if keys:
                raise Failed(f"there is no memory '{os.fsdecode(key)}'") from None
            if not count:
                continue  # it went while the others were read
        if page:
            pages.append(put(_DAG_CBOR, dag_cbor(page)))
        memories.append({"key": key, "pages": pages, "records": count})
        records += count
    root = put(_DAG_CBOR, dag_cbor({"memories": memories, "recalld": 1}))
    file.seek(0)
    file.write(_header(root))
    return len(memories), records


def _header(root: Cid) -> bytes:
    header = dag_cbor({"roots": [root], "version": 1})
    return varint(len(header)) + header


class _Missing(Exception):
    """There is no such memory, or not any more."""


def _keys(link: Link) -> Iterator[bytes]:
    cursor: bytes = b"0"
    while True:
        cursor, keys = link("SCAN", cursor, "COUNT", "1000")
        yield from keys
        if cursor == b"0":
            return


def _records(link: Link, key: bytes) -> Iterator[tuple[bytes, bytes]]:
    """The ids and texts of the memory's records, valid or not. Raises _Missing, Failed."""
    cursor: bytes = b"0"
    while True:
        cursor, ids = _ask(link, "MEM.SCAN", key, cursor, "COUNT", str(_AT_ONCE))
        for found in _ask(link, "MEM.MGET", key, *ids) if ids else ():
            if found is None:  # deleted in between
                continue
            text: bytes = found[b"text"]
            if content_digest(found[b"cid"]) != hashlib.sha256(text).digest():
                name = found[b"id"].decode("utf-8", "replace")
                raise Failed(f"the text of record '{name}' is not what its content id says: it came damaged")
            yield found[b"id"], text
        if cursor == b"0":
            return


def _ask(link: Link, *words: bytes | str) -> Any:
    [reply] = link.pipeline([words])
    if is_missing(reply):
        raise _Missing
    if isinstance(reply, hiredis.ReplyError):
        raise Failed(f"{link.address} refused: {reply}")
    return reply


def main(argv: Sequence[str]) -> int:
    """Run `export --car ..`; the exit code."""
    parser = argparse.ArgumentParser(prog="recalld export", description=_ABOUT)
    parser.add_argument("--car", metavar="FILE", required=True, dest="file", help="- for standard output")
    parser.add_argument("keys", metavar="KEY", nargs="*", help="the memories to write (default: all)")
    url_help = f"redis://[[user]:password@]host[:port] (default: {DEFAULT_URL})"
    parser.add_argument("--url", default=DEFAULT_URL, metavar="URL", help=url_help)
    options = parser.parse_args(argv)
    keys = list(dict.fromkeys(map(os.fsencode, options.keys)))
    try:
        link = Link(options.url)
        try:
            memories, records = _write_file(link, keys, options.file)
        finally:
            link.close()
    except (Failed, OSError, KeyboardInterrupt) as error:
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else error
        print(f"recalld export: {reason}", file=sys.stderr)
        return 1
    print(f"exported: {memories} memories, {records} records", file=sys.stderr)
    return 0


def _write_file(link: Link, keys: Sequence[bytes], path: str) -> tuple[int, int]:
    if path == "-" or (os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode)):
        with tempfile.TemporaryFile() as file:
            counts = write(link, keys, file)
            file.seek(0)
            if path == "-":
                shutil.copyfileobj(file, sys.stdout.buffer)
                sys.stdout.buffer.flush()
            else:
                with open(path, "wb") as device:
                    shutil.copyfileobj(file, device)
        return counts
    part = f"{path}.part"
    try:
        # What memories hold is nobody else's to read.
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            counts = write(link, keys, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part)
        raise
    return counts
