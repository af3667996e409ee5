"""MULTI, EXEC and WATCH: replies, what a watch sees, and that a transaction is one moment and one group of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import hypothesis.strategies as st
import pytest
import redis
from harness import HOUR, JUNE, SECOND, Clock, Running, Wire, WireError, Word, pack
from hypothesis import given
from peer import MAKE, connect, for_redis, for_us, needs_redis, next_reply, redis_server
from recalld.server import transactions
from recalld.server.commands import TABLE, Command, command

Start = Callable[..., Running]


@pytest.fixture(autouse=True, params=["at once", "in turns"])
def turns(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests run twice: on transactions that are done at once, and with a turn of the loop for each command."""
    if request.param == "in turns":
        monkeypatch.setattr(transactions, "AT_ONCE_NS", -1)
        monkeypatch.setattr(transactions, "TURN_NS", -1)


@pytest.fixture
def other(server: Running) -> Iterator[Wire]:
    """A second connection."""
    wire = server.wire()
    yield wire
    wire.close()


def make(wire: Wire, *keys: str) -> None:
    for key in keys:
        assert wire("MEM.CREATE", key, "MODE", "SEARCH") == "OK"


def exec_(wire: Wire, *commands: tuple[Word, ...]) -> object:
    """The reply of EXEC for commands that can be queued."""
    *before, reply = wire.pipeline(("MULTI",), *commands, ("EXEC",))
    assert before == ["OK", *["QUEUED"] * len(commands)]
    return reply


# Queue and run


def test_exec_replies_with_all_replies(wire: Wire) -> None:
    assert exec_(wire) == []
    assert exec_(wire, ("MEM.CREATE", "a", "MODE", "SEARCH"), ("EXISTS", "a"), ("ECHO", "x")) == ["OK", 1, b"x"]


def test_nothing_runs_before_exec(wire: Wire, other: Wire) -> None:
    wire.pipeline(("MULTI",), ("MEM.CREATE", "a", "MODE", "SEARCH"))
    assert other("EXISTS", "a") == 0
    assert wire("DISCARD") == "OK"
    assert other("EXISTS", "a") == 0
    assert wire.error("EXEC") == "ERR EXEC without MULTI"
    assert wire.error("DISCARD") == "ERR DISCARD without MULTI"


@pytest.mark.parametrize("bad", [("NONSENSE",), ("EXISTS",), ("CLIENT",), ("CLIENT", "DANCE"), ("ECHO", "a", "b")])
def test_what_cannot_be_queued_aborts_exec(wire: Wire, bad: tuple[str, ...]) -> None:
    replies = wire.pipeline(("MULTI",), ("MEM.CREATE", "a", "MODE", "SEARCH"), bad, ("EXEC",), ("EXISTS", "a"))
    assert isinstance(replies[2], WireError)
    assert replies[3] == WireError("EXECABORT Transaction discarded because of previous errors.")
    assert replies[4] == 0
    assert exec_(wire, ("PING",)) == ["PONG"]  # and the next one is free of it


def test_an_error_while_running_is_one_of_the_replies(wire: Wire) -> None:
    make(wire, "a")
    assert exec_(wire, ("RENAME", "b", "c"), ("MEM.CREATE", "a", "DIM", 3), ("DEL", "a")) == [
        WireError("ERR no such key"),
        WireError("ERR memory index already exists"),
        1,
    ]


def test_what_is_refused_inside_but_does_not_abort(wire: Wire) -> None:
    """As in Redis: MULTI and WATCH answer at once, with an error, and leave the transaction as it is."""
    wire("MULTI")
    assert wire.error("MULTI") == "ERR MULTI calls can not be nested"
    assert wire.error("WATCH", "a") == "ERR WATCH inside MULTI is not allowed"
    assert wire("EXEC") == []


def test_an_exec_that_is_refused_ends_the_transaction(wire: Wire) -> None:
    wire("MULTI")
    assert wire.error("EXEC", "now") == (
        "EXECABORT Transaction discarded because of: wrong number of arguments for 'exec' command"
    )
    assert wire.error("EXEC") == "ERR EXEC without MULTI"


def test_quit_and_reset_are_not_queued(wire: Wire, other: Wire) -> None:
    wire("MULTI")
    assert wire("RESET") == "RESET"
    assert wire.error("EXEC") == "ERR EXEC without MULTI"
    other("MULTI")
    assert other("QUIT") == "OK"


def test_replies_of_threads_keep_their_places(wire: Wire, wire3: Wire) -> None:
    """KEYS over many keys is matched in a thread; what changes meanwhile does not change its reply."""
    wire.pipeline(*(("MEM.CREATE", f"k{n}", "MODE", "SEARCH") for n in range(1200)))
    for client in (wire, wire3):
        make(client, "k")
        words = ("KEYS", "k119?")
        reply = exec_(client, ("ECHO", "a"), words, ("DEL", "k"), words, ("ECHO", "b"))
        found = [b"k119%d" % n for n in range(10)]
        assert reply == [b"a", found, 1, found, b"b"]


# One moment


def test_one_time_for_all(running: Start) -> None:
    """Each look at this clock is a millisecond later; EXEC looks once."""
    ticks = count(JUNE)
    wire = running(clock=lambda: next(ticks)).wire()
    one, two, three = exec_(wire, ("TIME",), ("TIME",), ("TIME",))  # type: ignore[misc]
    assert one == two == three
    assert wire("TIME") != wire("TIME")


def test_one_group_of_the_log(tmp_path: Path, running: Start) -> None:
    """What EXEC wrote stands between MULTI and EXEC; single commands and transactions without writes do not."""
    server = running(dir=tmp_path)
    wire = server.wire()
    make(wire, "a")
    exec_(wire, ("DEL", "a"), ("PING",), ("MEM.CREATE", "b", "MODE", "SEARCH"), ("COPY", "b", "c"))
    exec_(wire, ("PING",))
    server.stop()
    verbs = b"CREATE MULTI DROP COPY EXEC".split()
    words = b"".join(path.read_bytes() for path in sorted(tmp_path.rglob("*")) if path.is_file()).split(b"\r\n")
    assert [word for word in words if word in verbs] == [b"CREATE", b"MULTI", b"DROP", b"CREATE", b"COPY", b"EXEC"]


@pytest.fixture
def boom() -> Iterator[Command]:
    """A command with a bug in it."""

    @command("TEST.BOOM", arity=1, flags="", usage="TEST.BOOM", group="server")
    def handler(ctx: object, args: list[bytes]) -> None:
        """Fail in a way that nobody foresaw."""
        raise RuntimeError("boom")

    yield TABLE["test.boom"]
    del TABLE["test.boom"]


def test_a_bug_in_one_command_loses_no_write(tmp_path: Path, running: Start, boom: Command) -> None:
    server = running(dir=tmp_path)
    creates = [("MEM.CREATE", key, "MODE", "SEARCH") for key in "ab"]
    reply = exec_(server.wire(), creates[0], ("TEST.BOOM",), creates[1])
    assert reply == ["OK", WireError("ERR internal error; the server's log has the details"), "OK"]
    server.restart()
    assert server.wire()("EXISTS", "a", "b") == 2


def test_while_the_log_cannot_be_written(running: Start) -> None:
    """Writes are refused, queued or not, and an EXEC that would write; reads go on."""
    server = running()
    wire = server.wire()
    make(wire, "a")
    wire.pipeline(("MULTI",), ("DEL", "a"))
    server.server.log.failure = "Errors writing to the AOF file: No space left on device"
    assert wire.error("EXEC") == (
        "EXECABORT Transaction discarded because of: MISCONF Errors writing to the AOF file: No space left on device"
    )
    assert wire.error("DEL", "a") == "MISCONF Errors writing to the AOF file: No space left on device"
    assert exec_(wire, ("EXISTS", "a")) == [1]
    wire("MULTI")
    assert wire.error("DEL", "a").startswith("MISCONF")
    assert wire.error("EXEC") == "EXECABORT Transaction discarded because of previous errors."
    assert b"aof_last_write_status:err\r\n" in wire("INFO", "persistence")
    server.server.log.failure = None
    assert wire("DEL", "a") == 1


# WATCH


def is_dirty(wire: Wire) -> bool:
    """Whether the watch has seen a change: EXEC then answers nothing."""
    reply = exec_(wire, ("PING",))
    assert reply in (None, ["PONG"])
    return reply is None


def test_the_null_is_an_array(wire: Wire, wire3: Wire, other: Wire) -> None:
    for client, null in ((wire, b"*-1\r\n"), (wire3, b"_\r\n")):
        client("WATCH", "a")
        make(other, "a")
        client("MULTI")
        assert client.raw("EXEC") == null
        other("DEL", "a")


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        (("MEM.ADD", "a", "ID", "1", "TEXT", "one"), True),
        (("MEM.DEL", "a", "0"), True),
        (("MEM.DEL", "a", "nothing"), False),
        (("MEM.SETMETA", "a", "0", "f", "v"), True),
        (("MEM.CONFIG", "a", "HALFLIFE", "1"), True),
        (("MEM.SEARCH", "a", "zero"), False),
        (("DEL", "a"), True),
        (("DEL", "b"), False),
        (("EXPIRE", "a", "100"), True),
        (("EXPIRE", "a", "100", "XX"), False),
        (("PERSIST", "a"), False),
        (("RENAME", "a", "b"), True),
        (("COPY", "a", "b"), False),
        (("TOUCH", "a"), False),
        (("FLUSHALL",), True),
    ],
)
def test_what_changes_a_key(wire: Wire, other: Wire, words: tuple[str, ...], changes: bool) -> None:
    """Whoever makes the change, the watching connection too."""
    for writer in (wire, other):
        wire("FLUSHALL")
        make(wire, "a")
        wire("MEM.ADD", "a", "ID", 0, "TEXT", "zero")
        wire("WATCH", "a", "b")
        writer(*words)
        if words[0] in ("RENAME", "COPY"):
            changes = True  # of b
        assert is_dirty(wire) is changes


def test_a_key_that_comes_into_being(wire: Wire, other: Wire) -> None:
    for words in (("MEM.CREATE", "b", "DIM", "3"), ("COPY", "a", "b"), ("RENAME", "a", "b")):
        wire("FLUSHALL")
        make(wire, "a")
        wire("WATCH", "b")
        other(*words)
        assert is_dirty(wire)


def test_expiry_is_a_change(clock: Clock, wire: Wire) -> None:
    """Even where nobody has looked at the key since, so that it still stands in memory."""
    make(wire, "a")
    wire("EXPIRE", "a", 10)
    wire("WATCH", "a")
    clock.advance(9 * SECOND)
    assert not is_dirty(wire)
    wire("WATCH", "a")
    clock.advance(SECOND)
    assert is_dirty(wire)


def test_expiry_before_the_watch_is_none(clock: Clock, wire: Wire) -> None:
    make(wire, "a")
    wire("EXPIRE", "a", 10)
    clock.advance(10 * SECOND)
    wire("WATCH", "a")
    assert not is_dirty(wire)


def test_an_expiring_record_is_a_change(clock: Clock, wire: Wire) -> None:
    make(wire, "a")
    wire("MEM.ADD", "a", "TEXT", "one", "TTL", 10)
    wire("WATCH", "a")
    clock.advance(10 * SECOND)
    assert is_dirty(wire)


@pytest.mark.parametrize("ending", ["EXEC", "DISCARD", "UNWATCH", "RESET"])
def test_what_ends_a_watch(wire: Wire, other: Wire, ending: str) -> None:
    make(wire, "a")
    wire("WATCH", "a")
    if ending in ("EXEC", "DISCARD"):
        wire("MULTI")
    wire(ending)
    other("DEL", "a")
    assert not is_dirty(wire)


def test_unwatch_inside_is_queued(wire: Wire, other: Wire) -> None:
    make(wire, "a")
    wire("WATCH", "a")
    wire.pipeline(("MULTI",), ("UNWATCH",))
    other("DEL", "a")
    assert wire("EXEC") is None


def test_a_client_that_leaves_is_forgotten(server: Running, wire: Wire, other: Wire) -> None:
    other("WATCH", "a", "b")
    wire("WATCH", "b")
    other.close()
    wire("CLIENT", "LIST")
    while len(server.server.clients) > 1:
        wire("PING")
    assert set(server.server.watchers) == {b"b"}
    wire("UNWATCH")
    assert server.server.watchers == {}


# Messages from inside


def test_messages_come_behind_the_whole_reply(wire3: Wire) -> None:
    """As in Redis since 7.2: an array with pushes in its middle is more than most clients can read."""
    wire3("SUBSCRIBE", "news", "__mem__:a")
    wire3.sock.sendall(
        pack("MULTI")
        + pack("PUBLISH", "news", "x")
        + pack("MEM.CREATE", "a", "MODE", "SEARCH")
        + pack("MEM.ADD", "a", "TEXT", "one")
        + pack("EXEC")
        + pack("PING")
    )
    wire3.read()  # the confirmation of the second channel
    assert [wire3.read() for _ in range(4)] == ["OK", "QUEUED", "QUEUED", "QUEUED"]
    assert wire3.read() == [1, "OK", b"1"]
    assert wire3.read() == [b"message", b"news", b"x"]
    assert wire3.read() == [b"message", b"__mem__:a", b"add 1"]
    assert wire3.read() == "PONG"


def test_subscribing_inside_has_redis_bytes(wire: Wire) -> None:
    """An element per channel, though EXEC's array counts an element per command: Redis's own bytes."""
    commands = [("MULTI",), ("SUBSCRIBE", "a", "b"), ("UNSUBSCRIBE",), ("PING",)]
    wire.pipeline(*commands)
    wire.sock.sendall(pack("EXEC"))
    want = b"*3\r\n"
    for kind, length, channel, left in (
        (b"subscribe", 9, b"a", 1),
        (b"subscribe", 9, b"b", 2),
        (b"unsubscribe", 11, b"a", 1),
        (b"unsubscribe", 11, b"b", 0),
    ):
        want += b"*3\r\n$%d\r\n%s\r\n$1\r\n%s\r\n:%d\r\n" % (length, kind, channel, left)
    want += b"+PONG\r\n"
    got = b""
    while len(got) < len(want):
        got += wire.sock.recv(len(want) - len(got))
    assert got == want


# Against redis-server: two connections, in one order


KEYS = st.sampled_from(["a", "b"])
STEPS = st.tuples(
    st.integers(0, 1),
    st.one_of(
        st.sampled_from([("MULTI",), ("EXEC",), ("EXEC",), ("DISCARD",), ("UNWATCH",), ("PING",), ("NONSENSE",)]),
        st.sampled_from([("EXISTS",), ("EXEC", "x"), ("FLUSHALL",), ("RENAME", "a", "b"), ("PEXPIREAT", "a", "1")]),
        st.tuples(st.just("WATCH"), KEYS),
        st.tuples(st.sampled_from(["DEL", "PERSIST", "EXISTS", "TYPE", "TOUCH"]), KEYS),
        st.tuples(st.just(MAKE), KEYS),
    ),
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Wire], list[Wire]]]:
    """Two connections to a server of ours and two to redis-server."""
    with Running() as ours, redis_server(tmp_path_factory.mktemp("redis")) as path:
        yield [ours.wire(), ours.wire()], [connect(path), connect(path)]


@needs_redis
@given(st.lists(STEPS, max_size=40))
def test_as_redis_does(both: tuple[list[Wire], list[Wire]], steps: list[tuple[int, tuple[Word, ...]]]) -> None:
    script: list[tuple[int, tuple[Word, ...]]] = [(0, ("RESET",)), (1, ("RESET",)), (0, ("FLUSHALL",))]
    for client, words in steps:
        if words[0] == MAKE:
            # Ours refuses a key that is there, Redis's SET does not.
            script.append((client, ("DEL", words[1])))
        script.append((client, words))
    for client, words in script:
        got, want = [], []
        for wires, translate, replies in ((both[0], for_us, got), (both[1], for_redis, want)):
            wires[client].send(*translate(words))
            replies.append(next_reply(wires[client]))
        assert got == want, words


# By redis-py


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py(server: Running, protocol: int) -> None:
    with server.client(protocol, decode_responses=True) as client:
        pipe = client.pipeline(transaction=True)
        pipe.execute_command("MEM.CREATE", "a", "MODE", "SEARCH")
        pipe.execute_command("MEM.ADD", "a", "TEXT", "one")
        pipe.expire("a", HOUR // 1000)
        created, added, expires = pipe.execute()
        assert (created in ("OK", True), added, expires) == (True, "1", True)

        with client.pipeline() as pipe:
            pipe.watch("a")
            client.execute_command("MEM.ADD", "a", "TEXT", "two")
            pipe.multi()
            pipe.execute_command("MEM.ADD", "a", "TEXT", "three")
            with pytest.raises(redis.WatchError):
                pipe.execute()
        assert client.execute_command("MEM.CARD", "a") == 2
