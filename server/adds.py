"""MEM.ADDs that come in one turn of the loop are written together, from whichever connections they come.

One by one, such a command costs five times what its record costs among others (`Memory.put_new`, one piece of log). So
a connection hands it over (`take`) and goes on; at the end of the turn, or before any other command of a connection
runs, those that gathered are done (`run`): as if in that order, one after another, and each is whole by itself in the
log. Nobody can tell but by the time on the clock, which they share.

Rule 1: what is taken is a note of the plain form (new_notes.py), what is written together is one that surely can be:
        new, in a plain memory. Whatever else there is to it `dispatch.execute` does or says, in its place.
Rule 2: replies stand where they belong among the connection's others: `out[place]` is empty until then.
Rule 3: where commands may be held back (dispatch.Paused) nothing is taken; where that has come since, what was taken
        is given back.
"""

from __future__ import annotations

from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

from ..protocol.encoder import encode
from .commands import TABLE
from .dispatch import error_reply, execute
from .errors import CommandError
from .new_notes import Form, NewNotes, fields_of, form_of, importance_of
from .record_vectors import fit_vectors

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..index.memory import Memory
    from ..index.settings import Settings
    from .connection import Connection
    from .server import Server

#: The spellings that are looked for.
SPELLINGS = frozenset((b"MEM.ADD", b"mem.add", b"Mem.Add"))
_NAME = "mem.add"
# So many, or so many bytes of words, are done at once: a millisecond or two.
_MOST, _MOST_BYTES = 64, 1 << 18
# So many more turns the log waits for those who come, where the loop waits for the disk.
_TURNS = 1
# One of more words is not taken: the turn is not to become long.
_MOST_WORDS = 64
_OPTIONS_AT = 2  # behind the command's name and the key


class _Taken(NamedTuple):
    """A command, and where its reply belongs."""

    connection: Connection
    args: list[bytes]
    form: Form
    out: list[bytes]
    writes: list[int]
    place: int


class Adds:
    """Of one server."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._taken: list[_Taken] = []
        self._bytes = 0
        self._connections: dict[Connection, None] = {}  # that commands were taken from, and not settled with since
        self._is_scheduled = False
        self._turns = 0  # that the log has been waiting for more
        self._form: Form | None = None  # of the last one
        self._settings: Settings | None = None  # that were looked at last, and whether a memory with them takes such
        self._is_plain = False

    def take(self, connection: Connection, args: list[bytes], out: list[bytes], writes: list[int]) -> bool:
        """Take a MEM.ADD over, if it can wait for the end of the turn: its reply will be in `out`, behind what is
        there, and its place in `writes`."""
        client, server = connection.client, self._server
        if not _OPTIONS_AT < len(args) <= _MOST_WORDS or not (self._taken or self._is_clear()):
            return False
        if client.multi is not None or _NAME not in client.granted or client.reply_mode != "on":
            return False
        memory = server.keyspace.memories.get(args[1])
        if memory is None or client.has_long_words or client.channels or client.patterns or client.monitoring:
            return False
        form = self._form_of(args)
        if form is None or not self._suits(memory.settings):
            return False
        size = sum(map(len, args))
        if size > _MOST_BYTES:
            return False
        client.now = server.clock()
        client.last_command = _NAME
        self._taken.append(_Taken(connection, args, form, out, writes, len(out)))
        writes.append(len(out))
        out.append(b"")
        connection.taken += 1
        self._connections[connection] = None
        self._bytes += size
        if len(self._taken) >= _MOST or self._bytes > _MOST_BYTES:
            self.run()
        else:
            self._schedule()
        return True

    def _form_of(self, args: list[bytes]) -> Form | None:
        form = self._form
        if form is None or not form.fits(args):  # most are spelled as the one before
            form = form_of(args, _OPTIONS_AT)
            self._form = form or self._form
        return form

    def _suits(self, settings: Settings) -> bool:
        """Whether a memory of these writes a note without a thread, and makes no room for it."""
        if settings is not self._settings:
            self._settings = settings
            self._is_plain = not (settings.embeds or settings.has_limit)
        return self._is_plain

    def _is_clear(self) -> bool:
        """Whether no command may be held back, and nobody looks at each."""
        server = self._server
        held_back = server.pause_until or server.changing or server.transactions.matters
        seen = server.eviction.limit or server.eviction.tracks or server.observer.monitors
        return not (held_back or seen or server.log.failure)

    def _schedule(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._server.loop.call_soon(self._end_of_turn)

    def _end_of_turn(self) -> None:
        self._is_scheduled = False
        log = self._server.log
        if self._taken and len(self._connections) > 1 and self._turns < _TURNS and log.waits_here:
            # Whoever comes in the next turn is synced by the same wait for the disk.
            self._turns += 1
            self._schedule()  # first: what is done has the log flush in the next turn, behind this
            self._do()
            return
        self._do()
        log.flush()  # before replies are held
        self._settle()

    def run(self) -> None:
        """Do what gathered, and let the replies leave."""
        self._do()
        self._settle()

    def _settle(self) -> None:
        connections, self._connections, self._turns = self._connections, {}, 0
        for connection in connections:
            connection.taken = 0
        for connection in connections:
            connection.settle()

    def _do(self) -> None:
        taken, self._taken, self._bytes = self._taken, [], 0
        if not taken:
            return
        if not (self._is_clear() and self._are_as_they_were(taken)):
            _give_back(taken)
            self._settle()
            return
        start = 0
        for end in range(1, len(taken) + 1):
            if end == len(taken) or taken[end].args[1] != taken[start].args[1]:
                some, start = taken[start:end], end
                try:
                    self._store(some)
                except Exception as error:  # nobody is to wait for ever for what it cut short
                    for each in some:
                        each.out[each.place] = each.out[each.place] or _failed(each, error)

    def _are_as_they_were(self, taken: Sequence[_Taken]) -> bool:
        """Whether the memories are none that do not take such, and whoever sent them still may."""
        if self._server.transaction is not None:
            return False
        for connection in {each.connection for each in taken}:
            if connection.closing or _NAME not in connection.client.granted:
                return False
        found = map(self._server.keyspace.memories.get, {each.args[1] for each in taken})
        return all(memory is None or self._suits(memory.settings) for memory in found)

    def _store(self, taken: Sequence[_Taken]) -> None:
        """Do commands about one memory."""
        key = taken[0].args[1]
        batch = self._batch(key)
        vectors: list[bytes | None] = []
        if batch is not None and batch.memory.settings.has_vectors:
            blobs = [each.args[each.form.vector] if each.form.vector else b"" for each in taken]
            vectors = fit_vectors(blobs, batch.memory.settings)
        for each, vector in zip(taken, vectors or repeat(None), strict=False):
            if batch is not None:
                if batch.add(each, vector):
                    continue
                batch.write()
            _execute(each)
            batch = self._batch(key)  # now, and of a memory that may have a side by now
        if batch is not None:
            batch.write()

    def _batch(self, key: bytes) -> _Batch | None:
        """Of the memory, if it takes records together."""
        now = self._server.clock()
        memory = self._server.keyspace.get(key, now)
        return None if memory is None or not memory.is_plain else _Batch(self._server, key, memory, now)


class _Batch:
    """New records of one memory, and who wants to hear of them."""

    def __init__(self, server: Server, key: bytes, memory: Memory, now: int) -> None:
        self._server = server
        self.memory = memory
        self._taken: list[_Taken] = []
        self._notes = NewNotes(server.config, key, memory, now)
        self._began = perf_counter_ns()

    def add(self, taken: _Taken, vector: bytes | None) -> bool:
        """Add the record of a command, unless something is unusual about it. `vector` is what is to be stored of one
        that was found fit."""
        args, form = taken.args, taken.form
        if form.vector and vector is None:
            return False
        try:
            importance = importance_of(args[form.importance]) if form.importance else 0.5
        except CommandError:
            return False
        added = self._notes.add(
            args[form.id] if form.id else None,
            args[form.text],
            vector or b"",
            fields_of([args[place] for place in form.metas]) if form.metas else (),
            tuple(dict.fromkeys([args[place] for place in form.tags])) if form.tags else (),
            importance,
        )
        if added:
            self._taken.append(taken)
        return added

    def write(self) -> None:
        """Commit them, and say so."""
        taken, server, put = self._taken, self._server, self._notes.put
        if not taken:
            return
        server.commit_new(put)
        server.stats.hits += len(taken)
        for each, record_id in zip(taken, put.ids, strict=True):
            each.out[each.place] = b"$%d\r\n%b\r\n" % (len(record_id), record_id)
        if server.pubsub.active:
            for record_id in put.ids:
                server.announce(put.key, b"add " + record_id)
        observer = server.observer
        took = (perf_counter_ns() - self._began) // len(taken)
        observer.samples[_NAME] += [took] * len(taken)
        if took >= observer.notable_ns:
            for each in taken:
                observer.note(each.connection.client, TABLE[_NAME], each.args, took)


def _execute(taken: _Taken) -> None:
    """Do one the way of all commands."""
    client = taken.connection.client
    before = client.server.log.position
    taken.out[taken.place] = encode(execute(client, taken.args), client.proto)
    if client.server.log.position == before:
        taken.writes.remove(taken.place)


def _failed(taken: _Taken, error: Exception) -> bytes:
    client = taken.connection.client
    return encode(error_reply(client, _NAME, error), client.proto)


def _give_back(taken: Sequence[_Taken]) -> None:
    """Let their connections run them after all, before whatever they have in hand."""
    for each in reversed(taken):
        connection = each.connection
        del each.out[each.place :]
        while each.writes and each.writes[-1] >= each.place:
            each.writes.pop()
        connection.rest.append(each.args)
