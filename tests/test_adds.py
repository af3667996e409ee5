"""MEM.ADDs that are written together at the end of a turn of the loop: nobody can tell them from those that are done
one by one.

Two servers have one clock. `live` takes such commands (server/adds.py), `plain` runs each by itself. What came to
`live` in a turn is done on `plain` in the order in which `live` did it, and then everything is the same: replies byte
by byte, events, log, records, counts.
"""

from __future__ import annotations

import errno
import math
import re
import socket
import ssl
import struct
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from certificates import Authority
from durable import eventually, on_loop
from fake_embedder import FakeEmbedder
from faulty_files import FaultyFiles
from harness import JUNE, PATIENCE_S, SECOND, Clock, Running, Word, pack
from hypothesis import given, settings
from hypothesis import strategies as st
from recalld.server import adds, connection, incr, transactions
from recalld.server.entries import Put
from test_attack_aside import Gate, gate, held_by, same_after_restart  # noqa: F401 - gate is a fixture
from test_attack_tls import Start, ca, over_tls  # noqa: F401 - fixtures

Command = Sequence[Word]
ADMIN = 0
#: What may differ: a client's port, and how far arrays have grown.
OTHERWISE = re.compile(rb"127\.0\.0\.1:\d+|\$5\r\nbytes\r\n:\d+")
#: The memories: of each kind that decides what becomes of a command.
MEMORIES: dict[str, list[Word]] = {
    "s": ["MODE", "SEARCH"],
    "c": ["MODE", "HYBRID", "DIM", 2],
    "l": ["MODE", "HYBRID", "DIM", 2, "METRIC", "L2"],
    "i": ["MODE", "VECTOR", "DIM", 2, "METRIC", "IP"],
    "most": ["MODE", "SEARCH", "MAXRECORDS", 3],
    "bytes": ["MODE", "SEARCH", "MAXBYTES", 400],
    "past": ["MODE", "SEARCH", "HISTORY", 60],
}


def blob(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def lines(*commands: Command) -> bytes:
    return b"".join(pack(*words) for words in commands)


def add(key: str, text: str = "lake reed", *more: Word) -> list[Word]:
    return ["MEM.ADD", key, *more, "TEXT", text]


class Side:
    """One of the two servers, and the connections to it by number."""

    def __init__(self, running: Running) -> None:
        self.running = running
        self.server = running.server
        self.sent: dict[int, bytes] = defaultdict(bytes)
        self.order: list[tuple[int, list[bytes]]] = []  # what was done, by whom
        self.together: list[int] = []  # how many records were written at once
        self.logged = b""
        self.socks: list[Any] = []
        self.connections: list[connection.Connection] = []
        on_loop(running, self._begin)

    def _begin(self) -> None:
        """No task of its own time is to come between; and what is logged is kept."""
        self.server._cron.cancel()
        append = self.server.log.append

        def kept(group: list[Any], encoded: list[bytes] | None = None) -> None:
            self.logged += b"".join(incr.encode_pieces(group) if encoded is None else encoded)
            append(group, encoded)

        self.server.log.append = kept

    def connect(self) -> int:
        number = self.server.next_client_id
        self.socks.append(self.running.raw())
        eventually(lambda: number in self.server.clients)
        self.connections.append(self.server.clients[number].connection)
        return len(self.connections) - 1

    def feed(self, number: int, data: bytes | None) -> None:
        """On the loop: bytes have come, None: no more will."""
        each = self.connections[number]
        if each.gone:
            return
        if data is None:
            each.eof_received()
        else:
            each.data_received(data)

    def settle(self) -> None:
        """Until nothing goes on; who is held back stays so."""

        def is_calm() -> bool:
            busy = [
                each
                for each in self.connections
                if not each.gone
                and (each.taken or each.scheduled or each.waiting or (each.rest and each.held is None) or each.closing)
            ]
            server = self.server
            return not (busy or server.adds._connections or server.changing or server.transactions.under_way)

        eventually(lambda: bool(on_loop(self.running, is_calm)))

    def counts(self) -> Any:
        def look() -> Any:
            observer, stats = self.server.observer, self.server.stats
            observer.times.fold()
            calls = {name: each.calls for name, each in observer.times._times.items()}
            failed = dict(observer.times.rejected), dict(observer.times.failed), dict(stats.error_codes)
            return calls, failed, stats.hits, stats.misses, stats.changes, stats.output_bytes

        return on_loop(self.running, look)

    def close(self) -> None:
        for sock in self.socks:
            sock.close()


class Pair:
    """Both servers."""

    def __init__(self, live: Running, plain: Running, patch: pytest.MonkeyPatch) -> None:
        self.clock = live.clock
        self.live, self.plain = Side(live), Side(plain)
        self.plain.server.adds.take = lambda *_: False
        self.ends: list[int] = []  # who sends no more, and is not gone yet
        sides = {id(side.server): side for side in (self.live, self.plain)}
        execute, store, write = connection.execute, adds._Batch.add, connection.Connection._write

        def executed(ctx: Any, args: list[bytes]) -> Any:
            number = ctx.id
            reply = execute(ctx, args)
            sides[id(ctx.server)].order.append((number, args))
            return reply

        def stored(batch: Any, taken: Any, vector: bytes | None) -> bool:
            number = taken.connection.client.id
            if is_taken := store(batch, taken, vector):
                sides[id(batch._server)].order.append((number, taken.args))
            return is_taken

        def written(each: connection.Connection, data: bytes) -> None:
            if each.client is not None:
                sides[id(each.server)].sent[each.client.id] += data
            write(each, data)

        patch.setattr(connection, "execute", executed)
        patch.setattr(adds, "execute", executed)
        patch.setattr(adds._Batch, "add", stored)
        patch.setattr(connection.Connection, "_write", written)
        commit_new = self.live.server.commit_new

        def committed(put: Any) -> None:
            self.live.together.append(len(put.ids))
            commit_new(put)

        self.live.server.commit_new = committed
        assert self.connect() == ADMIN

    def connect(self) -> int:
        number = self.live.connect()
        assert self.plain.connect() == number
        return number

    def hang_up(self, *numbers: int) -> None:
        for side in (self.live, self.plain):
            for number in numbers:
                side.socks[number].close()
            eventually(lambda side=side: all(side.connections[number].gone for number in numbers))

    def turn(self, *came: tuple[int, bytes | None]) -> None:
        """All this comes in one turn of the loop, by connection."""
        live, plain = self.live, self.plain
        names = {each.client.id: number for number, each in enumerate(live.connections) if not each.gone}
        live.order.clear()

        def feed() -> None:
            for number, data in came:
                live.feed(number, data)

        on_loop(live.running, feed)
        live.settle()

        def again() -> None:
            done = iter(list(live.order))
            for name, args in done:
                plain.feed(names[name], pack(*args))

        on_loop(plain.running, again)
        self.ends += [number for number, data in came if data is None]
        for number in [number for number in self.ends if live.connections[number].gone]:
            self.ends.remove(number)
            on_loop(plain.running, lambda number=number: plain.feed(number, None))
        plain.settle()
        self.check()

    def run(self, *commands: Command, by: int = ADMIN) -> None:
        self.turn((by, lines(*commands)))

    def said(self, number: int) -> bytes:
        """All that `live` has sent on a connection."""
        return self.live.sent[number + 1]

    def check(self) -> None:
        live, plain = self.live, self.plain
        for name in live.sent.keys() | plain.sent.keys():
            said, again = (OTHERWISE.sub(b"", side.sent[name]) for side in (live, plain))
            at = next((at for at, pair in enumerate(zip(said, again, strict=False)) if pair[0] != pair[1]), len(said))
            assert said[max(0, at - 80) :] == again[max(0, at - 80) :]
        assert live.logged == plain.logged
        assert held_by(live.running) == held_by(plain.running)
        assert live.counts() == plain.counts()
        assert live.server.clients.keys() == plain.server.clients.keys()


@contextmanager
def pair(**options: str) -> Iterator[Pair]:
    patch, clock = pytest.MonkeyPatch(), Clock()
    with (
        Running(clock=clock, dir="/data", files=FaultyFiles(), **options) as live,
        Running(clock=clock, dir="/data", files=FaultyFiles(), **options) as plain,
    ):
        try:
            both = Pair(live, plain, patch)
            both.run(*(["MEM.CREATE", key, *words] for key, words in MEMORIES.items()))
            yield both
            same_after_restart(live)
            both.live.close()
            both.plain.close()
        finally:
            patch.undo()


@pytest.fixture
def both() -> Iterator[Pair]:
    with pair(appendfsync="always") as made:
        yield made


# What is written together


def test_it_is_written_together(both: Pair) -> None:
    """In one turn, from three connections, one of them with a pipeline."""
    a, b, c = (both.connect() for _ in range(3))
    both.turn((a, lines(add("s", "one", "ID", "x"))), (b, lines(*[add("s", "two")] * 5)), (c, lines(add("s"))))
    assert both.live.together == [7]
    assert both.said(a) == b"$1\r\nx\r\n" and both.said(b) == b"".join(b"$1\r\n%d\r\n" % n for n in range(1, 6))
    assert both.said(c) == b"$1\r\n6\r\n"


def test_the_log_has_a_put_of_each(both: Pair) -> None:
    before = len(both.live.logged)
    both.run(
        ["MEM.ADD", "c", "TEXT", "one", "VEC", blob(1, 0)],
        ["mem.add", "c", "id", "x", "Text", b"a\r\nb", "TAGS", 2, "t", "u", "META", "f", "v", "IMPORTANCE", "0.25"],
    )
    assert both.live.together == [2]
    rest = {"created_at": JUNE, "updated_at": JUNE, "deadline": 0, "next_id": 2, "max_words": 1_000_000, "at": JUNE}
    rest["max_words"] = both.live.server.config["mem-max-terms-per-doc"]
    puts = [
        Put(b"c", b"1", b"one", blob(1, 0), (), (), 0.5, **rest),
        Put(b"c", b"x", b"a\r\nb", b"", (b"f", b"v"), (b"t", b"u"), 0.25, **rest),
    ]
    assert both.live.logged[before:] == b"".join(incr.encode_group([put]) for put in puts)


def test_a_thousand_with_others_between_cut_anywhere(both: Pair) -> None:
    a = both.connect()
    commands: list[Command] = []
    for number in range(1000):
        commands.append(add("s", f"text {number}"))
        if number % 300 == 5:
            commands.append(["MEM.GET", "s", number])
    data = lines(*commands)
    cuts = [0, 1, 33, 4_000, 4_001, 20_000, 20_013, len(data)]
    both.turn(*((a, data[start:end]) for start, end in pairwise(cuts)))
    assert max(both.live.together) == adds._MOST
    both.run(["MEM.CARD", "s"], by=a)
    assert both.said(a).endswith(b":1000\r\n")


def test_ids_that_the_server_counts_beside_ids_that_are_given(both: Pair) -> None:
    given_ids = ["1", "3", "2", "x", "4"]
    both.run(*(words for name in given_ids for words in (add("s", "a", "ID", name), add("s", "b"))))
    assert both.said(ADMIN).count(b"$") == 10


@pytest.mark.parametrize(
    "words",
    [
        ["MEM.ADD", "s", "TEXT"],
        ["MEM.ADD", "s", "TEXT", "a", "ID"],
        ["MEM.ADD", "s", "ID", "a", "TEXT", "b", "VEC"],
        ["MEM.ADD", "s", "ID"],
        ["MEM.ADD", "s", "ID", "a"],
        ["MEM.ADD", "s", "TEXT", "a", "TEXT", "b"],
        ["MEM.ADD", "s", "ID", "a", "ID", "b", "TEXT", "c"],
        ["MEM.ADD", "s"],
        ["MEM.ADD"],
        ["MEM.ADD", "none", "TEXT", "a"],
        ["MEM.ADD", "s", "TEXT", "a", "VEC", blob(1, 0)],
        ["MEM.ADD", "s", "TEXT", "a", "WHAT", "b"],
    ],
    ids=lambda words: " ".join(map(str, words)),
)
def test_what_is_wrong_is_said_in_its_place(both: Pair, words: list[Word]) -> None:
    """What is known of the spelling of good ones does not make it one."""
    good = [add("s"), ["MEM.ADD", "s", "TEXT", "a", "ID", "first"], ["MEM.ADD", "s", "ID", "i", "TEXT", "a"]]
    good.append(["MEM.ADD", "c", "ID", "i", "TEXT", "a", "VEC", blob(1, 0)])
    both.run(*good, words, add("s"), words)
    both.run(words)


@pytest.mark.parametrize(
    "words",
    [
        ["PIN"],
        ["KIND", "episode"],
        ["VALIDAT", JUNE],
        ["TTL", 5],
        ["AT", 1000],
        ["NX"],
        ["XX"],
        ["DEDUP"],
        ["KEEPVEC"],
    ],
    ids=lambda words: str(words[0]),
)
def test_one_that_is_more_than_a_plain_note_among_others(both: Pair, words: list[Word]) -> None:
    """With it the memory may be one that takes nothing together any more."""
    a = both.connect()
    both.turn((a, lines(add("s"), add("s"), [*add("s", "more"), *words], add("s"), add("s"))))
    both.turn((a, lines(add("s"), [*add("s", "more", "ID", 2), *words], add("s"))))
    both.clock.advance(6 * SECOND)
    both.run(add("s"), ["MEM.CARD", "s"], by=a)


@pytest.mark.parametrize("limit", [1, 3, 4, 6])
def test_the_most_records_are_reached_in_the_middle(both: Pair, limit: int) -> None:
    """Or were before, by a limit that has become less."""
    a = both.connect()
    both.run(*[add("s")] * 3)
    both.run(["CONFIG", "SET", "mem-max-records", limit])
    both.turn((a, lines(*[add("s")] * 5, add("s", "over", "ID", "2"), add("c"))))
    assert both.said(a).count(b"is full") == 5 - max(0, limit - 3)


VECTORS = [(1, 0), (0.6, 0.8), (3, 4), (0, 0), (math.nan, 0), (math.inf, 0), (1e-40, 0), (1,), (1, 0, 0), ()]


def test_vectors(both: Pair) -> None:
    """Fit or not, of every metric, and random ones, of which the last bit counts."""
    rng = np.random.default_rng(1)
    some = [blob(*numbers) for numbers in VECTORS]
    some += [row.astype("<f4").tobytes() for row in rng.standard_normal((40, 2))]
    unit = rng.standard_normal((40, 2))
    unit /= np.sqrt((unit * unit).sum(axis=1))[:, None]
    some += [(row * (1 + (number % 5 - 2) * 2.0**-24)).astype("<f4").tobytes() for number, row in enumerate(unit)]
    some += [b"abc"]
    for key in "clis":
        both.run(*([*add(key, f"text {number}"), "VEC", each] for number, each in enumerate(some)))
        both.run([*add(key), "FVEC", 2, 3, 4], add(key), [*add(key), "VEC", blob(1, 0), "VEC", blob(0, 1)])
    assert max(both.live.together) > 10


def test_the_limits_of_a_record(both: Pair) -> None:
    both.run(["CONFIG", "SET", "mem-max-text-bytes", 20], ["CONFIG", "SET", "mem-max-meta-bytes", 12])
    texts = [add("s", "x" * size) for size in (19, 20, 21)]
    both.run(*texts, *(add("s", "y", "ID", "i" * size) for size in (11, 12, 13)))
    both.run(*(add("s", "y", "META", "f", "v" * size, "TAGS", 1, "t") for size in (8, 9, 10)))
    both.run(add("s", "y" * 21, "ID", "1"), add("s"))


# What else happens in the turn


def test_a_user_who_may_no_longer(both: Pair) -> None:
    """Whoever took it away has the reply that it is."""
    a = both.connect()
    both.run(["ACL", "SETUSER", "u", "on", "nopass", "~*", "+@all"])
    both.run(["AUTH", "u", "x"], by=a)
    both.turn(
        (a, lines(add("s"))),
        (ADMIN, lines(["ACL", "SETUSER", "u", "-mem.add"], ["MEM.CARD", "s"])),
        (a, lines(add("s"))),
    )
    both.run(["MEM.CARD", "s"])
    assert both.said(a).count(b"NOPERM") == 2


@pytest.mark.parametrize("words", [["CLIENT", "KILL", "ID", 2], ["ACL", "DELUSER", "u"]], ids=lambda words: words[0])
def test_who_is_killed_writes_no_more(both: Pair, words: list[Word]) -> None:
    a = both.connect()
    both.run(["ACL", "SETUSER", "u", "on", "nopass", "~*", "+@all"])
    both.run(["AUTH", "u", "x"], by=a)
    both.turn((a, lines(add("s"))), (ADMIN, lines(words, ["MEM.CARD", "s"])))
    both.run(["MEM.CARD", "s"])
    assert both.said(ADMIN).endswith(b":1\r\n:0\r\n:0\r\n")


@pytest.mark.parametrize(
    "commands",
    [
        [["DEL", "s"]],
        [["RENAME", "s", "t"]],
        [["RENAME", "c", "s"]],
        [["FLUSHALL"]],
        [["DEL", "s"], ["MEM.CREATE", "s", "MODE", "SEARCH", "MAXRECORDS", 2]],
        [["DEL", "s"], ["MEM.CREATE", "s", "MODE", "SEARCH", "HISTORY", 60]],
        [["DEL", "s"], ["MEM.CREATE", "s", "MODE", "VECTOR", "DIM", 3]],
        [["MEM.CONFIG", "s", "MAXRECORDS", 2]],
        [["EXPIRE", "s", 0]],
        [["MEM.ADD", "s", "TEXT", "pinned", "PIN"]],
        [["CONFIG", "SET", "mem-max-records", 2]],
        [["CONFIG", "SET", "maxmemory", "1gb"], ["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]],
        [["CONFIG", "SET", "notify-keyspace-events", "KEA"], ["SUBSCRIBE", "__keyspace@0__:s"]],
        [["MULTI"], ["MEM.DEL", "s", "1"], ["MEM.ADD", "s", "TEXT", "in a transaction"], ["EXEC"]],
        [["WATCH", "s"], ["MULTI"], ["MEM.CARD", "s"]],
        [["CLIENT", "PAUSE", 10_000, "WRITE"]],
        [["SUBSCRIBE", "__mem__:s"]],
        [["PSUBSCRIBE", "__mem__:*"]],
    ],
    ids=lambda commands: " ".join(map(str, commands[-1])),
)
def test_another_client_between(both: Pair, commands: list[Command]) -> None:
    a, b, c = (both.connect() for _ in range(3))
    both.run(*[add("s")] * 2)
    plain = lines(*[add("s")] * 3, [*add("c"), "VEC", blob(0, 2)])
    both.turn((a, plain), (b, lines(*commands)), (c, plain), (a, plain + lines(["MEM.CARD", "s"], add("s"))))
    both.run(["CLIENT", "UNPAUSE"])
    both.run(["EXEC"], by=b)
    both.turn((a, plain), (c, plain))


@pytest.mark.parametrize("words", [["MODE", "SEARCH", "MAXRECORDS", 2], ["EMBEDDER", "openai", "MODEL", "m", "DIM", 8]])
def test_the_memory_is_another_that_embeds_or_evicts(
    both: Pair, monkeypatch: pytest.MonkeyPatch, words: list[Word]
) -> None:
    monkeypatch.setattr("recalld.server.embedding.make", FakeEmbedder().make)
    a = both.connect()
    commands = [add("s"), add("s", "b", "ID", "b"), ["MEM.CARD", "s"]]
    both.turn((a, lines(*commands)), (ADMIN, lines(["DEL", "s"], ["MEM.CREATE", "s", *words])), (a, lines(*commands)))
    # Once more, with nothing between that has them done first.
    both.turn((a, lines(["DEL", "s"], ["MEM.CREATE", "s", "MODE", "SEARCH"])))
    both.turn((a, lines(*commands[:2])), (ADMIN, lines(["DEL", "s"], ["MEM.CREATE", "s", *words])))
    both.run(["MEM.GET", "s", "b", "WITHVEC"], ["MEM.CARD", "s"], ["DEL", "s"], by=a)


@pytest.mark.parametrize("end", ["QUIT", "eof", "reset", "off", "skip", "hello", "multi", "sub"])
@pytest.mark.parametrize("paused", [False, True])
def test_what_comes_behind_on_the_same_connection(both: Pair, end: str, paused: bool) -> None:
    """Also where they are held back after all."""
    a = both.connect()
    commands: dict[str, list[Command]] = {
        "QUIT": [["QUIT"], add("s", "never")],
        "reset": [["HELLO", 3], add("s"), ["RESET"], add("s")],
        "off": [["CLIENT", "REPLY", "OFF"], add("s"), ["CLIENT", "REPLY", "ON"], add("s")],
        "skip": [["CLIENT", "REPLY", "SKIP"], add("s"), add("s")],
        "hello": [["HELLO", 3], add("s"), add("s", "x", "ID"), ["HELLO", 2], add("s")],
        "multi": [["MULTI"], add("s"), add("s"), ["EXEC"], add("s")],
        "sub": [add("s"), ["SUBSCRIBE", "__mem__:s"], add("s"), ["UNSUBSCRIBE", "__mem__:s"], add("s")],
    }
    data = lines(add("s"), add("s", "x", "ID", "i"), *commands.get(end, []))
    came: list[tuple[int, bytes | None]] = [(a, data)]
    if paused:
        came.append((ADMIN, lines(["CLIENT", "PAUSE", 10_000, "WRITE"])))
    if end == "eof":
        came.append((a, None))
    both.turn(*came)
    both.run(["CLIENT", "UNPAUSE"])
    both.run(["MEM.CARD", "s"])
    assert both.said(a).count(b"$1\r\ni\r\n") == 1


@pytest.mark.parametrize("is_given_back", [False, True])
def test_a_protocol_error_behind(both: Pair, is_given_back: bool) -> None:
    """What came before it is done before the connection ends."""
    a, live = both.connect(), both.live

    def feed() -> None:
        live.feed(a, lines(add("s", "x", "ID", "i")))
        if is_given_back:
            live.feed(ADMIN, lines(["MONITOR"]))
        live.feed(a, b"*x\r\n")

    on_loop(live.running, feed)
    eventually(lambda: live.connections[a].gone)
    assert both.said(a).startswith(b"$1\r\ni\r\n-ERR Protocol error")
    assert both.said(a).count(b"\r\n") == 3
    assert bool(live.together) != is_given_back


def test_a_client_that_goes_in_the_same_turn(both: Pair) -> None:
    """What it sent was whole."""
    a = both.connect()

    def feed() -> None:
        both.live.feed(a, lines(add("s")))
        both.live.connections[a].connection_lost(None)

    on_loop(both.live.running, feed)
    assert len(both.live.server.keyspace.memories[b"s"]) == 1
    on_loop(both.plain.running, lambda: both.plain.feed(a, lines(add("s"))))
    on_loop(both.plain.running, lambda: both.plain.connections[a].connection_lost(None))
    both.plain.sent.clear()  # to nobody


def test_while_a_transaction_is_under_way(both: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """It began between: what was taken waits for it, in its place."""
    monkeypatch.setattr(transactions, "AT_ONCE_NS", -1)
    monkeypatch.setattr(transactions, "TURN_NS", -1)
    a, b = both.connect(), both.connect()
    both.run(["MULTI"], *[add("s", "in a transaction")] * 5, by=b)
    both.turn((a, lines(*[add("s")] * 3, ["MEM.CARD", "s"])), (b, lines(["EXEC"])), (a, lines(add("s"))))
    both.turn((a, lines(*[add("s")] * 3)), (b, lines(["MULTI"], add("s"), add("s"), ["EXEC"])), (a, lines(add("c"))))


def test_while_a_large_change_is_made(gate: Gate) -> None:  # noqa: F811
    """It began between: what was taken waits for it."""
    with pair(appendfsync="everysec") as both:
        a, b = both.connect(), both.connect()
        record = ["RECORD", "TEXT", "large"]
        madd = ["MEM.MADD", "s", 3, *record * 3]
        gate.close()

        def feed() -> None:
            both.live.feed(a, lines(*[add("s")] * 3, ["MEM.CARD", "s"], add("s", "behind", "ID", "x")))
            both.live.feed(b, lines(madd, add("s")))

        both.live.order.clear()
        on_loop(both.live.running, feed)
        gate.wait()
        eventually(lambda: on_loop(both.live.running, both.live.server.blocked_clients) == 1)
        gate.open()
        both.live.settle()
        assert both.said(b).startswith(b"*3\r\n")
        names = {2: a, 3: b}
        for name, args in list(both.live.order):
            on_loop(both.plain.running, lambda name=name, args=args: both.plain.feed(names[name], pack(*args)))
            both.plain.settle()
        both.check()


def test_monitors_see_each(both: Pair) -> None:
    a = both.connect()
    both.turn((a, lines(add("s"))), (ADMIN, lines(["MONITOR"])), (a, lines(add("s", "seen"), add("s", "seen"))))
    assert both.said(ADMIN).count(b'"seen"') == 2


def test_a_monitor_that_writes_itself(both: Pair) -> None:
    """It hears of what others did in the turn."""
    a, b, c = (both.connect() for _ in range(3))
    both.turn((b, lines(add("s"))), (a, lines(["MONITOR"], add("s", "own"))), (c, lines(["PING", "heard"])))
    assert both.said(a).count(b'"heard"') == 1


def test_slow_ones_are_noted(both: Pair) -> None:
    a = both.connect()
    both.run(["CONFIG", "SET", "slowlog-log-slower-than", 0], ["SLOWLOG", "RESET"])
    both.turn((a, lines(*[add("s")] * 3)))
    logs = [[entry.words for entry in side.server.observer.slowlog.newest(3)] for side in (both.live, both.plain)]
    assert logs[0] == logs[1] and len(logs[0]) == 3


def test_a_rewrite_begins_between(both: Pair) -> None:
    a = both.connect()
    plain = lines(*[add("s")] * 3)
    both.turn((a, plain))

    def feed() -> None:
        both.live.feed(a, plain)
        both.live.feed(ADMIN, lines(["BGREWRITEAOF"]))
        both.live.feed(a, plain)

    on_loop(both.live.running, feed)
    eventually(lambda: not both.live.server.rewriter.running)
    same_after_restart(both.live.running)
    assert len(both.live.running.server.keyspace.memories[b"s"]) == 9


def test_a_user_of_some_keys(both: Pair) -> None:
    """What is looked at word by word is not taken."""
    a = both.connect()
    both.run(["ACL", "SETUSER", "u", "on", "nopass", "~s", "+@all"])
    both.turn((a, lines(add("s"), ["AUTH", "u", "x"], add("s"), add("c"), add("s"), ["RESET"], add("c"), add("c"))))
    assert both.live.together[0] == 1 and both.live.together[-1] == 2
    assert both.said(a).count(b"-NOPERM") == 1


def test_the_server_stops_in_the_turn(both: Pair) -> None:
    a = both.connect()
    live = both.live

    def feed() -> None:
        live.feed(a, lines(*[add("s")] * 3))
        live.running._quit.set()

    on_loop(live.running, feed)
    live.running.stop()
    assert both.said(a) == b"$1\r\n1\r\n$1\r\n2\r\n$1\r\n3\r\n"
    live.running.start()
    assert len(live.running.server.keyspace.memories[b"s"]) == 3


def test_tls_ends_behind_them(over_tls: Start, ca: Authority) -> None:  # noqa: F811
    """The client has said goodbye in the turn in which it sent them."""
    server = over_tls()
    server.wire(2)("MEM.CREATE", "s", "MODE", "SEARCH")
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    made = ssl.create_default_context(cafile=ca.path).wrap_bio(incoming, outgoing, server_hostname="localhost")
    with socket.create_connection(("127.0.0.1", server.tls_port), timeout=PATIENCE_S) as sock:
        while True:
            try:
                made.do_handshake()
                break
            except ssl.SSLWantReadError:
                sock.sendall(outgoing.read())
                incoming.write(sock.recv(1 << 16))
        made.write(lines(add("s"), add("s")))
        with pytest.raises(ssl.SSLWantReadError):
            made.unwrap()
        sock.sendall(outgoing.read())
        while data := sock.recv(1 << 16):
            incoming.write(data)
        assert made.read() == b"$1\r\n1\r\n$1\r\n2\r\n"


# A disk that fails


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
@pytest.mark.parametrize("op", ["write", "sync"])
def test_a_failing_disk(policy: str, op: str) -> None:
    """A write is refused, or may be kept; whatever was said to be is."""
    files = FaultyFiles()
    with Running(clock=Clock(), dir="/data", files=files, appendfsync=policy) as server:
        side = Side(server)
        a, b, admin = side.connect(), side.connect(), side.connect()
        on_loop(server, lambda: side.feed(admin, lines(["MEM.CREATE", "s", "MODE", "SEARCH"])))
        side.settle()
        patch = pytest.MonkeyPatch()
        write = connection.Connection._write

        def written(each: connection.Connection, data: bytes) -> None:
            side.sent[each.client.id] += data
            write(each, data)

        patch.setattr(connection.Connection, "_write", written)
        try:
            files.fail(op, errno.EIO, nth=0)
            wrong = add("s", "x", "ID")

            def feed() -> None:
                for number in (a, b):
                    side.feed(number, lines(add("s"), wrong, add("s"), ["PING"], add("s")))

            on_loop(server, feed)
            side.settle()
            on_loop(server, server.server.log.every_second)
            eventually(lambda: bool(on_loop(server, lambda: server.server.log._job is None)))
            on_loop(server, feed)
            side.settle()
            said = side.sent[1], side.sent[2]
            for each in said:
                replies = each.split(b"\r\n")
                assert replies.count(b"+PONG") == 2
                assert len([one for one in replies if one.startswith((b"$", b"-", b"+"))]) == 10
                assert b"-MISCONF" in each or (policy, op) == ("no", "sync")
            files.heal()
            on_loop(server, server.server.log.every_second)
            eventually(lambda: server.server.log.failure is None)
            on_loop(server, feed)
            side.settle()
            assert side.sent[1][len(said[0]) :].count(b"$") == 3
        finally:
            patch.undo()
            side.close()
        same_after_restart(server)


def test_the_log_fails_between() -> None:
    """By what another client wrote: nothing of what was taken is done."""
    files = FaultyFiles()
    with Running(clock=Clock(), dir="/data", files=files, appendfsync="everysec") as server:
        a, b = server.wire(2), server.wire(2)
        a("MEM.CREATE", "s", "MODE", "SEARCH")
        b("PING")
        first, second = (client.connection for client in server.server.clients.values())
        files.fail("write", errno.EIO, nth=0)

        def feed() -> None:
            first.data_received(lines(add("s"), ["MEM.CARD", "s"], add("s")))
            first.data_received(lines(add("s"), add("s")))
            second.data_received(lines(["MEM.CREATE", "t", "MODE", "SEARCH"]))

        on_loop(server, feed)
        assert "MISCONF" in str(b.read())
        said = [str(a.read()) for _ in range(5)]
        assert ["MISCONF" in each for each in said] == [True, False, True, True, True]
        files.heal()
        on_loop(server, server.server.log.every_second)
        eventually(lambda: server.server.log.failure is None)
        assert a("MEM.CARD", "s") == 1  # what came before the MEM.CARD
        same_after_restart(server)


@pytest.mark.parametrize("what", ["key", "record"])
def test_something_expires_between(both: Pair, what: str) -> None:
    """The time of all is that of the end of the turn."""
    a = both.connect()
    both.run(add("s", "short", "ID", "x", "TTL", 1), ["PEXPIRE", "s", 1_000 if what == "key" else 9_000])
    data = lines(add("s", "new", "ID", "x"), add("s"), add("s", "new", "ID", "x"))

    def feed() -> None:
        both.live.feed(a, data)
        both.clock.advance(2 * SECOND)

    on_loop(both.live.running, feed)
    both.live.settle()
    on_loop(both.plain.running, lambda: both.plain.feed(a, data))
    both.plain.settle()
    both.check()
    assert (b"-" in both.said(a)) == (what == "key")
    both.run(["MEM.GET", "s", "x"])


# Anything


OPTIONS = st.one_of(
    st.sampled_from(["1", "2", "3", "a", "b", ""]).map(lambda name: ["ID", name]),
    st.sampled_from(["lake", "reed lake", "", "The running"]).map(lambda text: ["TEXT", text]),
    st.sampled_from(VECTORS).map(lambda numbers: ["VEC", blob(*numbers)]),
    st.sampled_from(
        [
            ["FVEC", 2, 0.6, 0.8],
            ["FVEC", 2, 0.6],
            ["META", "f", "v"],
            ["META", "g", "w"],
            ["TAGS", 2, "t", "u"],
            ["TAGS", 0],
            ["TAGS", 9, "t"],
            ["IMPORTANCE", "0.7"],
            ["IMPORTANCE", "-0"],
            ["IMPORTANCE", "nan"],
            ["IMPORTANCE", 2],
            ["TTL", 5],
            ["TTL", 0],
            ["AT", 1000],
            ["KIND", "note"],
            ["KIND", "episode"],
            ["PIN"],
            ["NX"],
            ["XX"],
            ["KEEPVEC"],
            ["DEDUP"],
            ["VALIDUNTIL", JUNE + 5],
            ["WHAT"],
            ["ID"],
            ["TEXT"],
        ]
    ),
)
KEYS = st.sampled_from(["s", "s", "s", "s", "c", "c", "c", "l", "i", "most", "bytes", "past", "none"])


@st.composite
def adding(draw: st.DrawFn) -> Command:
    words: list[Word] = ["MEM.ADD", draw(KEYS)]
    kind = draw(st.integers(0, 3))
    options = [["TEXT", draw(st.sampled_from(["lake", "reed moon"]))]] if kind else []
    if kind == 2:
        options.insert(0, ["ID", draw(st.sampled_from("12345678abcdef"))])
    if kind == 3:
        options += draw(st.lists(OPTIONS, max_size=3))
    if kind == 0:
        options += draw(st.lists(OPTIONS, max_size=5))
    for option in options:
        words += [draw(st.sampled_from([str, str.lower, str.title]))(str(option[0])), *option[1:]]
    words[0] = draw(st.sampled_from(["MEM.ADD", "MEM.ADD", "MEM.ADD", "mem.add", "Mem.Add", "mEM.aDD"]))
    return words


OTHERS = st.sampled_from(
    [
        ["PING"],
        ["MEM.GET", "s", "1", "WITHMETA"],
        ["MEM.GET", "c", "1", "WITHVEC"],
        ["MEM.CARD", "s"],
        ["MEM.SEARCH", "s", "lake"],
        ["MEM.DEL", "s", "1", "a"],
        ["MEM.MADD", "s", 2, "RECORD", "TEXT", "x", "RECORD", "ID", "a", "TEXT", "y"],
        ["MEM.CONFIG", "s", "MAXRECORDS", 4],
        ["MEM.CONFIG", "c", "MAXRECORDS", 0],
        ["DEL", "s"],
        ["MEM.CREATE", "s", "MODE", "SEARCH"],
        ["RENAME", "c", "s"],
        ["PEXPIRE", "s", 1],
        ["MULTI"],
        ["EXEC"],
        ["DISCARD"],
        ["WATCH", "s"],
        ["CLIENT", "REPLY", "OFF"],
        ["CLIENT", "REPLY", "SKIP"],
        ["CLIENT", "REPLY", "ON"],
        ["CLIENT", "PAUSE", 10_000, "WRITE"],
        ["CLIENT", "UNPAUSE"],
        ["SUBSCRIBE", "__mem__:s"],
        ["UNSUBSCRIBE"],
        ["HELLO", 2],
        ["HELLO", 3],
        ["RESET"],
        ["AUTH", "nobody", "x"],
        ["CONFIG", "SET", "mem-max-records", 5],
        ["CONFIG", "SET", "mem-max-records", 0],
        ["QUIT"],
        ["WHAT"],
    ]
)
COMMANDS = st.one_of(adding(), adding(), adding(), OTHERS)
TURNS = st.lists(
    st.tuples(
        st.lists(st.tuples(st.integers(0, 2), st.lists(COMMANDS, min_size=1, max_size=5)), min_size=1, max_size=5),
        st.sampled_from([0, 0, 1, 6 * SECOND]),
    ),
    min_size=1,
    max_size=4,
)


def test_what_fails_by_a_mistake_of_ours_is_answered(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command of the turn, and the next ones as ever."""
    wire = server.wire()
    wire("MEM.CREATE", "s", "MODE", "SEARCH")
    with monkeypatch.context() as patch:
        patch.setattr(adds._Batch, "add", lambda *_: 1 / 0)
        for reply in wire.pipeline(*[add("s")] * 3):
            assert str(reply) == "ERR internal error; the server's log has the details"
    assert wire("MEM.CARD", "s") == 0
    assert wire(*add("s")) == b"1"


@pytest.fixture(scope="module", params=["always", "everysec"])
def lasting(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with pair(appendfsync=request.param) as made:
        yield made


@settings(max_examples=60)
@given(turns=TURNS, cut=st.integers(0, 500))
def test_any_turns(lasting: Pair, turns: Any, cut: int) -> None:
    """From three clients, and somebody listens to what they write. What is cut off comes later in the turn."""
    both = lasting
    for side in (both.live, both.plain):
        side.sent.clear()
        side.logged = b""
    both.run(["CLIENT", "UNPAUSE"], ["FLUSHALL"], ["CONFIG", "SET", "mem-max-records", 0])
    both.run(*(["MEM.CREATE", key, *words] for key, words in MEMORIES.items()))
    numbers = [both.connect() for _ in range(3)]
    listener = both.connect()
    both.run(["PSUBSCRIBE", "__mem__:*"], by=listener)
    for came, ms in turns:
        parts: list[tuple[int, bytes | None]] = []
        rest: list[tuple[int, bytes | None]] = []
        for number, commands in came:
            data = lines(*commands)
            if any(each == numbers[number] for each, _ in rest):
                rest.append((numbers[number], data))
                continue
            parts.append((numbers[number], data[:cut] if cut else data))
            if cut and data[cut:]:
                rest.append((numbers[number], data[cut:]))
        both.turn(*parts, *rest)
        both.clock.advance(ms)
    both.run(["CLIENT", "UNPAUSE"])
    while on_loop(both.live.running, both.live.server.blocked_clients):  # the next one has said CLIENT PAUSE again
        both.run(["CLIENT", "UNPAUSE"])
    both.run(*(["MEM.INFO", key] for key in MEMORIES), ["MEM.SEARCH", "s", "lake"])
    both.hang_up(*numbers, listener)
