"""MEM.ADDs that come in one turn of the loop are written together, from whichever connections they come.

One by one, such a command costs five times what its record costs among others (`Memory.put_new`, one piece of log). So
a connection hands it over (`take`) and goes on; at the end of the turn, or before any other command of a connection
runs, those that gathered are done (`run`): as if in that order, one after another, and each is whole by itself in the
log. Nobody can tell but by the time on the clock, which they share.

Rule 1: what is written together is what surely can be: a new plain note in a plain memory. Whatever else a command
        asks for, or has wrong with it, `dispatch.execute` does or says, in its place among the others.
Rule 2: replies stand where they belong among the connection's others: `out[place]` is empty until then.
Rule 3: where commands may be held back (dispatch.Paused) nothing is taken; where that has come since, what was taken
        is given back.
"""

from __future__ import annotations

from itertools import repeat
from time import perf_counter_ns
from typing import TYPE_CHECKING, NamedTuple

from ..index.errors import BadMemory
from ..protocol.encoder import encode
from .arguments import Words
from .commands import TABLE
from .dispatch import error_reply, execute
from .errors import CommandError
from .new_notes import NewNotes
from .record_commands import merged, read_draft
from .record_vectors import fit_vectors, stored_vector

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
# So many more turns the log waits for those who come, where the loop waits for the disk: as long as somebody does.
_TURNS = 1
# One of more words is not taken: the turn is not to become long.
_MOST_WORDS = 64
_OPTIONS_AT = 2  # behind the command's name and the key
# Where each option's value stands, by the options as they are spelled.
_Form = tuple[int, int, int]  # of ID, TEXT and VEC; 0: without
_forms: dict[tuple[bytes, ...], _Form] = {}
_FORMS_MAX = 512


class _Taken(NamedTuple):
    """A command, and where its reply belongs."""

    connection: Connection
    args: list[bytes]
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
        if not self._suits(memory.settings) or (_form(args) is None and _asks_for_dedup(args)):
            return False
        size = sum(map(len, args))
        if size > _MOST_BYTES:
            return False
        client.now = server.clock()
        client.last_command = _NAME
        self._taken.append(_Taken(connection, args, out, writes, len(out)))
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
                self._store(taken[start:end])
                start = end

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
            vectors = fit_vectors([_vector(each.args) for each in taken], batch.memory.settings)
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
        of the usual form that was found fit."""
        args = taken.args
        form = _form(args)
        if form is None:
            added = self._add_draft(args)
        elif form[2] and vector is None:
            added = False
        else:
            added = self._notes.add(args[form[0]] if form[0] else None, args[form[1]], vector or b"")
        if added:
            self._taken.append(taken)
        return added

    def _add_draft(self, args: list[bytes]) -> bool:
        try:
            draft = read_draft(Words(args, _OPTIONS_AT), self._server.config)
            vector = b"" if draft.vector is None else stored_vector(draft.vector, self.memory.settings)
        except (CommandError, BadMemory):
            return False
        if not draft.is_plain or draft.text is None:
            return False
        importance = 0.5 if draft.importance is None else draft.importance
        return self._notes.add(draft.id, draft.text, vector, merged((), draft.meta), draft.tags or (), importance)

    def write(self) -> None:
        """Commit them, and say so."""
        taken, server, put = self._taken, self._server, self._notes.put
        if not taken:
            return
        try:
            server.commit_new(put)
        except Exception as error:
            for each in taken:
                client = each.connection.client
                each.out[each.place] = encode(error_reply(client, _NAME, error), client.proto)
            return
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


def _give_back(taken: Sequence[_Taken]) -> None:
    """Let their connections run them after all, before whatever they have in hand."""
    for each in reversed(taken):
        connection = each.connection
        del each.out[each.place :]
        while each.writes and each.writes[-1] >= each.place:
            each.writes.pop()
        connection.rest.append(each.args)


def _form(args: Sequence[bytes]) -> _Form | None:
    """Where the values are, where there is nothing but ID, TEXT and VEC."""
    if len(args) % 2:
        return None
    options = tuple(args[_OPTIONS_AT::2])
    form = _forms.get(options)
    if form is not None or len(options) > 3:
        return form
    names = [option.upper() for option in options]
    places = [names.index(name) * 2 + _OPTIONS_AT + 1 if name in names else 0 for name in (b"ID", b"TEXT", b"VEC")]
    if not places[1] or sum(map(bool, places)) < len(names):
        return None
    form = places[0], places[1], places[2]
    if len(_forms) < _FORMS_MAX:
        _forms[options] = form
    return form


def _asks_for_dedup(args: Sequence[bytes]) -> bool:
    return any(len(word) == 5 and word.upper() == b"DEDUP" for word in args)


def _vector(args: Sequence[bytes]) -> bytes:
    """The value of VEC in a command of the usual form; b"" where there is none."""
    form = _form(args)
    return args[form[2]] if form is not None and form[2] else b""
