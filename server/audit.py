"""Who read what: the reads of memories that `mem-audit` asks for, in memory and as JSON lines in `mem-audit-file`.

Rule 1: off, it costs one test per command; on, it is bounded: `mem-audit-len` entries, a queue of lines before the
        file (what does not fit is counted as dropped), files that rotate.
Rule 2: an entry holds the words of the command, cut and without vectors; never anything of a record.
Rule 3: a read that was refused has read nothing and is not kept.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
from asyncio import Future
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from logging.handlers import QueueHandler, QueueListener, RotatingFileHandler
from queue import Full, Queue
from typing import TYPE_CHECKING, Any

from ..protocol.reply import ErrorReply
from .arguments import NAME_BYTES
from .log import reopen_file

if TYPE_CHECKING:
    from .client import Client
    from .commands import Command
    from .config import Config

log = logging.getLogger("recalld")

#: The commands that show what records hold.
READS = frozenset(
    "mem.get mem.mget mem.list mem.scan mem.search mem.vsearch mem.query mem.explain mem.facts mem.entities mem.paths"
    " mem.recall mem.consult dump".split()
)
#: Those that may cover further memories, whose owners are others.
_CASCADES = frozenset("mem.query mem.explain mem.recall".split())
# Of a command's words, of one word, and of the queue before the file.
_QUERY_CHARS = 512
_WORD_CHARS = 256
_QUEUE_LINES = 10_000
_VECTOR_OPTIONS = frozenset({b"VEC", b"FVEC"})


@dataclass(slots=True)
class Seen:
    """One read. The handler says what it found (`results`, `tier`, further `memories`) where the reply does not."""

    accessor: str
    client: str
    memory: bytes
    command: str
    query: str
    time: int
    results: int | None = None
    tier: str = ""
    members: list[bytes] = field(default_factory=list)


class Audit:
    """The reads of one server, the newest last."""

    def __init__(self, config: Config, owner_of: Callable[[bytes], str | None]) -> None:
        self._config = config
        self._owner_of = owner_of
        self.on = config["mem-audit"] != "no"
        self.dropped = 0
        self._kept: deque[Seen] = deque(maxlen=config["mem-audit-len"])
        self._lines: logging.Logger | None = None
        self._listener: QueueListener | None = None
        config.on_change("mem-audit", self._switched)
        config.on_change("mem-audit-len", self._resized)

    def open(self) -> None:
        """Open `mem-audit-file`, if there is one; raises OSError."""
        path = self._config["mem-audit-file"]
        if not path:
            return
        handler = _File(
            self,
            path,
            maxBytes=self._config["mem-audit-file-bytes"],
            backupCount=self._config["mem-audit-files"],
            encoding="utf-8",
        )
        queue: Queue[logging.LogRecord] = Queue(_QUEUE_LINES)
        self._listener = QueueListener(queue, handler)
        self._listener.start()
        self._lines = logging.Logger("recalld.audit")
        self._lines.addHandler(_Bounded(queue, self))

    def reopen(self) -> None:
        """Go on in the file that has the name of `mem-audit-file` now."""
        if self._listener is not None:
            for handler in self._listener.handlers:
                if isinstance(handler, RotatingFileHandler):
                    reopen_file(handler)

    def close(self) -> None:
        """Write what waits."""
        if self._listener is not None:
            self._listener.stop()
            for handler in self._listener.handlers:
                with contextlib.suppress(OSError):  # the line that did not get in was counted
                    handler.close()
            self._listener = self._lines = None

    def run(self, ctx: Client, entry: Command, args: list[bytes]) -> Any:
        """Run a handler of READS and keep that it was, if `mem-audit` asks for it."""
        assert entry.handler is not None
        others = self._config["mem-audit"] == "others"
        if others and entry.name.lower() not in _CASCADES and self._owner_of(args[0]) == ctx.user:
            return entry.handler(ctx, args)
        seen = ctx.seen = Seen(
            ctx.user, _client(ctx), args[0], entry.name.upper(), shown_words(args[1:]), ctx.now
        )
        try:
            reply = entry.handler(ctx, args)
        finally:
            ctx.seen = None
        if isinstance(reply, Future):
            reply.add_done_callback(
                lambda done: None if done.cancelled() or done.exception() else self._keep(seen, done.result(), others)
            )
        else:
            self._keep(seen, reply, others)
        return reply

    def entries(self, memory: bytes, accessor: str | None, since: int, limit: int) -> Iterator[Seen]:
        """The reads of a memory from a time on, the newest first."""
        for seen in reversed(self._kept):
            if limit <= 0:
                return
            if seen.memory == memory and seen.time >= since and accessor in (None, seen.accessor):
                limit -= 1
                yield seen

    def __len__(self) -> int:
        return len(self._kept)

    def _keep(self, seen: Seen, reply: Any, others: bool) -> None:
        if isinstance(reply, ErrorReply):
            return
        if seen.results is None:
            seen.results = _count(reply)
        for memory in seen.members or [seen.memory]:
            if others and self._owner_of(memory) == seen.accessor:
                continue
            one = Seen(
                seen.accessor, seen.client, memory, seen.command, seen.query, seen.time, seen.results, seen.tier
            )
            self._kept.append(one)
            if self._lines is not None:
                self._lines.info(json.dumps({name: _text(value) for name, value in as_map(one).items()}))

    def _switched(self, value: str) -> None:
        self.on = value != "no"

    def _resized(self, length: int) -> None:
        self._kept = deque(self._kept, maxlen=length)

    def drop(self, why: str) -> None:
        """A line does not get into the file; said once, and counted."""
        if not self.dropped:
            log.warning("%s: lines are dropped (INFO audit_dropped counts them)", why)
        self.dropped += 1


class _File(RotatingFileHandler):
    """The file. Where it cannot be written it is tried anew with the next line."""

    def __init__(self, audit: Audit, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._audit = audit

    def handleError(self, record: logging.LogRecord) -> None:
        self._audit.drop(f"The audit file cannot be written ({sys.exc_info()[1]})")


class _Bounded(QueueHandler):
    """Puts lines before the file's thread, never waiting for it."""

    def __init__(self, queue: Queue[logging.LogRecord], audit: Audit) -> None:
        super().__init__(queue)
        self._audit = audit

    def enqueue(self, record: logging.LogRecord) -> None:
        try:
            self.queue.put_nowait(record)
        except Full:
            self._audit.drop("The audit file is too slow")


def as_map(seen: Seen) -> dict[str, Any]:
    """The entry as MEM.AUDIT shows it."""
    return {
        "accessor": seen.accessor,
        "client": seen.client,
        "memory": seen.memory,
        "command": seen.command,
        "query": seen.query,
        "results": seen.results,
        "tier": seen.tier or None,
        "time": seen.time,
    }


def shown_words(words: list[bytes]) -> str:
    """The words behind the key, on one line, cut, without vectors."""
    shown: list[str] = []
    at = room = 0
    while at < len(words) and room < _QUERY_CHARS:
        word = words[at]
        at += 1
        shown.append(_printable(word))
        room += len(shown[-1]) + 1
        option = word[:NAME_BYTES].upper()
        if option in _VECTOR_OPTIONS and at < len(words):
            count = words[at]
            at += 1
            if option == b"FVEC" and len(count) < 9 and count.isdigit():
                at += int(count)
            shown.append("..")
    return " ".join(shown)[:_QUERY_CHARS]


def _printable(word: bytes) -> str:
    text = word[: 4 * _WORD_CHARS].decode("utf-8", "replace")[:_WORD_CHARS]
    return "".join(char if char.isprintable() else " " for char in text)


def _client(ctx: Client) -> str:
    return f"{ctx.addr} {ctx.name.decode('utf-8', 'replace')}".rstrip()


def _count(reply: Any) -> int:
    """How many records a plain reply shows."""
    if isinstance(reply, list):
        return sum(1 for each in reply if each is not None)
    return 0 if reply is None else 1


def _text(value: Any) -> Any:
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else value
