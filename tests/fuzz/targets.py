"""What is fuzzed: each target takes any bytes and raises only where the product is wrong.

A target knows the refusals that bytes may earn (a ProtocolError, a LogDamaged, ...); every other exception, and every
reply that says `internal error`, is a finding. Checksums hold whatever the bytes are: where they guard a format they
are computed anew (`aof_entries`), or a constant in this process (`aof_base`, `restore`), so that the fuzzer gets
behind them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any, cast

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

import hiredis
from faulty_files import FaultyFiles
from harness import pack
from recalld.protocol.errors import ProtocolError
from recalld.protocol.parser import Parser
from recalld.server import base, command_modules, incr, manifest, payload  # noqa: F401 - fills the table
from recalld.server.acl import RuleError, User, merged
from recalld.server.acl_selector import READ, WRITE
from recalld.server.config import Config, ConfigError
from recalld.server.connection import Connection
from recalld.server.incr import LogDamaged
from recalld.server.keyspace import Keyspace
from recalld.server.log_load import open_log
from recalld.server.portable_lines import BadLine, fields_of, read_about, read_record
from recalld.server.server import Server

Target = Callable[[bytes], None]
TARGETS: dict[str, Target] = {}

#: 2026-06-01T00:00:00Z
NOW = 1_780_272_000_000


def target(work: Target) -> Target:
    TARGETS[work.__name__] = work
    return work


# -- the wire


def commands_of(chunks: list[bytes]) -> tuple[list[list[bytes]], str]:
    """The commands in a stream that came in these pieces, and the error at its end."""
    parser = Parser(max_bulk_bytes=1 << 20)
    found = []
    try:
        for chunk in chunks:
            parser.feed(chunk)
            while (words := parser.next_command()) is not None:
                if words:
                    found.append(words)
    except ProtocolError as error:
        return found, str(error)
    return found, ""


@target
def parser(data: bytes) -> None:
    """Any split gives the same commands and the same error."""
    whole = commands_of([data])
    step = 1 + len(data) % 7
    assert commands_of([data[at : at + step] for at in range(0, len(data), step)]) == whole


class Pipe:
    """A transport to nowhere that reads at once."""

    def __init__(self) -> None:
        self.out = bytearray()
        self.closed = False

    def write(self, data: bytes) -> None:
        self.out += data

    def close(self) -> None:
        self.closed = True

    abort = close

    def is_closing(self) -> bool:
        return self.closed

    def get_write_buffer_size(self) -> int:
        return 0

    def get_extra_info(self, name: str) -> Any:
        return ("127.0.0.1", 1) if name != "socket" else None

    def set_write_buffer_limits(self, high: int) -> None: ...

    def pause_reading(self) -> None: ...


#: Left out: what ends the server, waits for a moment of the clock, or would put a file where the fuzzer runs.
LEFT_OUT = {"shutdown", "client|pause", "config|set", "config|rewrite", "monitor", "mem.analyze", "mem.consult"}
_SETUP = [
    ["MEM.CREATE", "k", "DIM", "2", "HISTORY", "ALL"],
    ["MEM.ADD", "k", "ID", "a", "TEXT", "one two", "FVEC", "2", "1", "0", "TAGS", "1", "t", "META", "f", "1"],
    ["MEM.ADD", "k", "ID", "b", "TEXT", "two three", "TTL", "100"],
    ["MEM.FACT", "k", "ann", "likes", "bread", "ID", "f", "CONFIDENCE", "0.5"],
    ["MEM.CREATE", "s", "MODE", "SEARCH"],
]
_loop = asyncio.new_event_loop()


async def _serve(stream: list[bytes]) -> None:
    config = Config.load(None, [("appendonly", ["no"]), ("mem-threads", ["1"])])
    now = NOW
    server = Server(config, lambda: now)
    pipe = Pipe()
    connection = Connection(server)
    try:
        connection.connection_made(cast(asyncio.Transport, pipe))
        for words in _SETUP:
            connection.data_received(pack(*words))
        assert b"-" not in pipe.out, bytes(pipe.out)
        for data in stream:
            connection.data_received(data)
            while connection.waiting and not pipe.closed:
                await asyncio.sleep(0)
            assert b"internal error" not in pipe.out, bytes(pipe.out)
        reader = hiredis.Reader(replyError=str)
        reader.feed(bytes(pipe.out))
        while reader.gets() is not False:  # each reply is RESP
            pass
        server.keyspace.expire(NOW)
    finally:
        connection.connection_lost(None)
        assert not server.clients and not server.watchers and not server.pubsub.active
        server.executor.shutdown(cancel_futures=True)


def _left_out(words: list[bytes]) -> bool:
    names = [b"|".join(words[:n]).lower().decode("latin-1") for n in (1, 2)]
    return bool(LEFT_OUT & set(names)) or b"internal error" in b" ".join(words)


@target
def command(data: bytes) -> None:
    """Lines of words, as a client types them: through parser, dispatch, handlers and encoder."""
    stream = []
    for line in data.split(b"\n")[:8]:
        words = line.split(b" ")
        if words[0] and not _left_out(words):
            stream.append(pack(*words))
    if stream:
        _loop.run_until_complete(_serve(stream))


# -- files


def _load(files: dict[str, bytes], keyspace: Keyspace | None = None) -> None:
    disk = FaultyFiles()
    disk.makedirs("/data/log")
    for name, data in files.items():
        disk.put(f"/data/log/{name}", data)
    try:
        log = open_log(disk, "/data", "/data/log", "log", keyspace or Keyspace(), _loop, policy="no", cut_tail=True)
    except LogDamaged:
        return
    _loop.run_until_complete(log.close())


_MANIFEST = manifest.Manifest("log", None, (1,)).format()


@target
def aof_file(data: bytes) -> None:
    """An incr file of any bytes."""
    _load({"log.manifest": _MANIFEST, "log.1.incr.aof": data})


@target
def aof_manifest(data: bytes) -> None:
    """A manifest of any bytes."""
    empty = incr._preamble(b"0" * 16)[0]
    _load({"log.manifest": data, "log.1.incr.aof": empty, "log.2.incr.aof": empty})


@target
def aof_entries(data: bytes) -> None:
    """Entries of any words, in a file whose checksums hold: each is refused or applied."""
    keyspace, disk = Keyspace(), FaultyFiles()
    disk.makedirs("/data")
    writer = incr.create(disk, "/data/incr", b"0" * 16)
    writer.write([incr.pack(line.split(b" ")) for line in data.split(b"\n")[:16]])
    writer.close()
    _load({"log.manifest": _MANIFEST, "log.1.incr.aof": bytes(disk.read("/data/incr"))}, keyspace)
    for key in list(keyspace.keys(NOW)):
        if (memory := keyspace.get(key, NOW)) is not None:
            memory.view(NOW)


def without_checksums() -> None:
    """From now on every checksum of bases and payloads is 0, in what is written, too."""
    for module in (base, payload):
        module.crc32c = lambda data, crc=0: 0  # type: ignore[attr-defined]


@target
def aof_base(data: bytes) -> None:
    """A base file of any bytes, its checksums right."""
    without_checksums()
    named = manifest.Manifest("log", 1, (1,)).format()
    _load({"log.manifest": named, "log.1.base.rcl": data, "log.1.incr.aof": incr._preamble(b"0" * 16)[0]})


@target
def restore(data: bytes) -> None:
    """A payload of any bytes, its checksums right: refused, or a memory that answers and can be dumped again."""
    without_checksums()
    _loop.run_until_complete(
        _serve(
            [
                pack("RESTORE", "r", "0", data),
                pack("MEM.QUERY", "r", "TEXT", "one two"),
                pack("MEM.LIST", "r", "WITHMETA", "WITHVEC"),
                pack("MEM.INFO", "r"),
                pack("MEM.FACTS", "r"),
                pack("MEM.ENTITIES", "r"),
                pack("DUMP", "r"),
            ]
        )
    )


# -- text


@target
def import_lines(data: bytes) -> None:
    """Lines of an export."""
    about = None
    for line in data.split(b"\n"):
        try:
            fields = fields_of(line)
            if "memory" in fields:
                about = read_about(fields)
            elif about is not None:
                read_record(fields, about.settings)
        except BadLine:
            pass


@target
def config_file(data: bytes) -> None:
    """A configuration file; what it reads, it can write."""
    with tempfile.NamedTemporaryFile(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as file:
        file.write(data)
        file.flush()
        try:
            config = Config.load(file.name)
        except ConfigError:
            return
        config.get([b"*"])


@target
def acl_rules(data: bytes) -> None:
    """ACL SETUSER with any rules, and the line that says them again makes the same user."""
    words = [word for word in data.split(b" ") if word]
    user = User("u")
    try:
        for rule in merged(words):
            user.apply(rule, allchannels=False)
    except RuleError:
        return
    user.settle()
    again = User("u")
    for rule in merged(user.line().split(b" ")[2:]):
        again.apply(rule, allchannels=False)
    # `~*` stands last among the patterns, as in Redis, and lets go of those before it when it is read.
    for selector in user.selectors:
        if selector.keys.get(b"*") == READ | WRITE:
            selector.keys = {b"*": READ | WRITE}
    assert again.line() == user.line(), (again.line(), user.line())


logging.disable(logging.CRITICAL)
