"""Key commands: by hand where the answer is ours alone, against redis-server and a model where it is Redis's."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import fakeredis
import hypothesis.strategies as st
import pytest
import redis
from harness import DAY, HOUR, JUNE, SECOND, Clock, Running, Wire, Word
from hypothesis import example, given, settings
from peer import MAKE, connect, for_redis, for_us, needs_redis, redis_server, replies
from recalld.index.scan_order import ScanOrder

Start = Callable[..., Running]

#: 2100-01-01T00:00:00Z: later than the clock of any machine that runs this.
LATER = 4_102_444_800_000


def make(wire: Wire, *keys: str) -> None:
    assert set(wire.pipeline(*(("MEM.CREATE", key, "MODE", "SEARCH") for key in keys))) <= {"OK"}


# Presence


def test_del_counts_each_key_once(wire: Wire) -> None:
    make(wire, "a", "b", "c")
    assert wire("EXISTS", "a", "a", "nothing") == 2
    assert wire("TOUCH", "a", "a", "nothing") == 2
    assert wire("DEL", "a", "a", "nothing") == 1
    assert wire("UNLINK", "b", "a", "c") == 2
    assert wire("DBSIZE") == 0


def test_type(wire: Wire) -> None:
    make(wire, "a")
    assert wire.raw("TYPE", "a") == b"+memory\r\n"
    assert wire.raw("TYPE", "b") == b"+none\r\n"


@pytest.mark.parametrize("command", ["FLUSHDB", "FLUSHALL"])
def test_flush(wire: Wire, command: str) -> None:
    for words in ((), ("ASYNC",), ("sync",)):
        make(wire, "a", "b")
        assert wire(command, *words) == "OK"
        assert wire("DBSIZE") == 0
        assert wire(command, *words) == "OK"
    assert wire.error(command, "NOW") == "ERR syntax error"
    assert wire.error(command, "SYNC", "ASYNC") == "ERR syntax error"


def test_keys_are_any_bytes(wire: Wire) -> None:
    for key in (b"", b"\r\n\0\xff", b"*"):
        wire("MEM.CREATE", key, "MODE", "SEARCH")
        assert wire("KEYS", "*") == [key]
        assert wire("SCAN", 0) == [b"0", [key]]
        assert wire("DEL", key) == 1


# Deadlines, by the clock


def test_a_key_is_gone_at_its_deadline_exactly(clock: Clock, wire: Wire) -> None:
    make(wire, "a")
    assert wire("PEXPIRE", "a", 1000) == 1
    clock.advance(999)
    assert wire("PTTL", "a") == 1
    assert wire.pipeline(("EXISTS", "a"), ("DBSIZE",), ("KEYS", "*"), ("RANDOMKEY",)) == [1, 1, [b"a"], b"a"]
    clock.advance(1)
    for words, gone in [
        (("DBSIZE",), 0),
        (("EXISTS", "a"), 0),
        (("TYPE", "a"), "none"),
        (("TTL", "a"), -2),
        (("PTTL", "a"), -2),
        (("EXPIRETIME", "a"), -2),
        (("PEXPIRETIME", "a"), -2),
        (("TOUCH", "a"), 0),
        (("PERSIST", "a"), 0),
        (("EXPIRE", "a", "1"), 0),
        (("COPY", "a", "b"), 0),
        (("DEL", "a"), 0),
        (("KEYS", "*"), []),
        (("SCAN", "0"), [b"0", []]),
        (("RANDOMKEY",), None),
    ]:
        assert wire(*words) == gone, words
    assert wire.error("RENAME", "a", "b") == "ERR no such key"


@pytest.mark.parametrize(
    ("words", "reply"),
    [
        (["DBSIZE"], 1),
        (["KEYS", "*"], [b"b"]),
        (["SCAN", "0"], [b"0", [b"b"]]),
        (["RANDOMKEY"], b"b"),
        (["EXISTS", "a"], 0),
        (["RENAMENX", "b", "a"], 1),
        (["COPY", "b", "a"], 1),
    ],
)
def test_whichever_command_comes_first_sees_it_gone(
    clock: Clock, wire: Wire, words: list[str], reply: object
) -> None:
    """Each is the first to look after the deadline: none may find what the one before it would have dropped."""
    make(wire, "a", "b")
    wire("EXPIRE", "a", 10)
    clock.advance(10 * SECOND)
    assert wire(*words) == reply


def test_seconds_are_rounded_as_in_redis(wire: Wire) -> None:
    make(wire, "a")
    for ms, seconds in ((1, 0), (499, 0), (500, 1), (1499, 1), (1500, 2)):
        wire("PEXPIRE", "a", ms)
        assert (wire("TTL", "a"), wire("PTTL", "a")) == (seconds, ms)
        assert wire("EXPIRETIME", "a") == JUNE // 1000 + seconds
        assert wire("PEXPIRETIME", "a") == JUNE + ms


def test_a_time_that_has_passed_deletes(wire: Wire) -> None:
    for words in (("EXPIRE", "a", 0), ("PEXPIRE", "a", -1), ("EXPIREAT", "a", JUNE // 1000), ("PEXPIREAT", "a", 1)):
        make(wire, "a")
        assert wire(*words) == 1
        assert wire("EXISTS", "a") == 0


def test_a_new_key_has_no_deadline(clock: Clock, wire: Wire) -> None:
    make(wire, "a")
    wire("EXPIRE", "a", 10)
    wire("DEL", "a")
    make(wire, "a")
    assert wire("TTL", "a") == -1
    wire("EXPIRE", "a", 10)
    clock.advance(DAY)
    make(wire, "a")
    assert wire("TTL", "a") == -1


def test_deadlines_move_along_and_are_overwritten(wire: Wire) -> None:
    make(wire, "a", "b")
    wire("EXPIRE", "a", 10)
    wire("EXPIRE", "b", 20)
    assert wire("COPY", "a", "c") == 1
    assert wire("TTL", "c") == 10
    assert wire("COPY", "b", "c") == 0
    assert wire("COPY", "b", "c", "REPLACE", "DB", 0) == 1
    assert wire("TTL", "c") == 20
    wire("PERSIST", "c")
    assert wire("RENAME", "c", "a") == "OK"
    assert wire("TTL", "a") == -1
    assert wire("RENAME", "b", "a") == "OK"
    assert wire("TTL", "a") == 20
    assert wire("EXISTS", "b", "c") == 0


def test_deadlines_survive_a_restart(tmp_path: Path, running: Start) -> None:
    """What expired while the server was down is gone; what was set, taken away, renamed and copied is as it was."""
    clock = Clock()
    server = running(clock=clock, dir=tmp_path)
    wire = server.wire()
    make(wire, "gone", "stays", "cleared", "old", "deleted", "due")
    wire.pipeline(
        ("EXPIRE", "gone", 10),
        ("EXPIRE", "stays", 100),
        ("EXPIRE", "cleared", 10),
        ("PERSIST", "cleared"),
        ("EXPIRE", "old", 200),
        ("RENAME", "old", "new"),
        ("COPY", "new", "copy"),
        ("DEL", "deleted"),
        ("EXPIRE", "due", 0),
    )
    server.stop()
    clock.advance(50 * SECOND)
    server.start()
    wire = server.wire()
    assert sorted(wire("KEYS", "*")) == [b"cleared", b"copy", b"new", b"stays"]
    assert [wire("TTL", key) for key in ("cleared", "copy", "new", "stays")] == [-1, 150, 150, 50]
    wire("FLUSHALL")
    server.restart()
    assert server.wire()("DBSIZE") == 0


# Names


def test_copies_diverge(wire: Wire) -> None:
    make(wire, "a")
    wire("MEM.ADD", "a", "TEXT", "one")
    assert wire("COPY", "a", "b") == 1
    assert wire("MEM.ADD", "b", "TEXT", "two") == b"2"  # the counter of ids came along
    assert [wire("MEM.CARD", key) for key in "ab"] == [1, 2]
    wire("MEM.DEL", "a", 1)
    assert [wire("MEM.CARD", key) for key in "ab"] == [0, 2]


def test_rename_keeps_the_records(wire: Wire) -> None:
    make(wire, "a")
    wire("MEM.ADD", "a", "TEXT", "the keys", "TTL", 100)
    assert wire("RENAME", "a", "a") == "OK"
    assert wire("RENAMENX", "a", "a") == 0
    assert wire("RENAMENX", "a", "b") == 1
    assert wire("MEM.SEARCH", "b", "keys") == [[b"1", b"the keys"]]


def test_renamed_records_still_expire(clock: Clock, wire: Wire) -> None:
    make(wire, "a")
    wire("MEM.ADD", "a", "TEXT", "the keys", "TTL", 100)
    wire("RENAME", "a", "b")
    wire("COPY", "b", "c")
    clock.advance(100 * SECOND)
    assert [wire("MEM.CARD", key) for key in "bc"] == [0, 0]


# All of them


@pytest.mark.parametrize("pattern", ["*", "k1*", "k?0", "k[12]?", "nothing", "k\\10"])
def test_keys_matches_globs(wire: Wire, pattern: str) -> None:
    names = [f"k{n}" for n in range(30)]
    make(wire, *names)
    fake = fakeredis.FakeRedis()
    fake.mset(dict.fromkeys(names, "x"))
    assert sorted(wire("KEYS", pattern)) == sorted(fake.keys(pattern))
    assert sorted(wire("SCAN", 0, "MATCH", pattern, "COUNT", 1000)[1]) == sorted(fake.keys(pattern))


def test_keys_of_many_keys_are_matched_in_a_thread(wire: Wire) -> None:
    names = [f"k{n}" for n in range(3000)]
    make(wire, *names)
    assert wire.pipeline(("KEYS", "k*9"), ("PING",), ("KEYS", "*")) == [
        [name.encode() for name in names if name.endswith("9")],
        "PONG",
        [name.encode() for name in names],
    ]


def walk(wire: Wire, *options: Word) -> list[bytes]:
    found: list[bytes] = []
    cursor = b"0"
    while True:
        cursor, page = wire("SCAN", cursor, *options)
        found += page
        if cursor == b"0":
            return found


@pytest.mark.parametrize("count", [1, 3, 10, 1000, 10**15])
def test_scan_meets_each_key_once(wire: Wire, count: int) -> None:
    names = [f"k{n}" for n in range(137)]
    make(wire, *names)
    wire("DEL", *names[::3])
    assert walk(wire, "COUNT", count) == [name.encode() for n, name in enumerate(names) if n % 3]


def test_scan_while_keys_come_and_go(wire: Wire) -> None:
    """What is there from start to end is met exactly once, deletions and additions in between notwithstanding."""
    stay, go = [f"s{n}" for n in range(200)], [f"g{n}" for n in range(200)]
    make(wire, *(name for pair in zip(stay, go, strict=True) for name in pair))
    chance = random.Random(7)
    chance.shuffle(go)
    met, cursor, new = [], b"0", 0
    while True:
        cursor, page = wire("SCAN", cursor, "COUNT", 7)
        met += page
        if cursor == b"0":
            break
        for _ in range(3):
            if go:
                wire("DEL", go.pop())
            if new < 100:
                make(wire, f"n{new}")
                new += 1
    assert sorted(key for key in met if key.startswith(b"s")) == sorted(map(str.encode, stay))
    assert len(set(met)) == len(met)


def test_scan_type(wire: Wire) -> None:
    make(wire, "a")
    assert wire("SCAN", 0, "TYPE", "MEMORY") == [b"0", [b"a"]]
    assert wire("SCAN", 0, "TYPE", "string") == [b"0", []]


@pytest.mark.parametrize("cursor", ["x", "-1", "+0", "", " 0", "0x10", "18446744073709551616", "1" * 50])
def test_bad_cursors(wire: Wire, cursor: str) -> None:
    assert wire.error("SCAN", cursor) == "ERR invalid cursor"


def test_cursors_past_the_end(wire: Wire) -> None:
    make(wire, "a")
    assert wire("SCAN", 1 << 62) == [b"0", []]
    assert wire("SCAN", (1 << 64) - 1) == [b"0", []]


def test_randomkey_reaches_every_key(wire: Wire) -> None:
    """Whatever was deleted around them: the older and the newer are drawn alike."""
    make(wire, *(f"k{n}" for n in range(300)))
    wire("DEL", *(f"k{n}" for n in range(1, 299)))
    drawn = wire.pipeline(*[("RANDOMKEY",)] * 100)
    assert set(drawn) == {b"k0", b"k299"}  # one of them missing in a hundred fair draws: once in 2 ** 99


def test_choose_draws_evenly() -> None:
    """Holes are drawn again, so the items that are left keep equal chances."""
    order: ScanOrder[str] = ScanOrder()
    serials = {name: order.add(name) for name in "abcdef"}
    for name in "ace":
        order.remove(serials[name])
    draws = iter([0, 1, 2, 4, 3, 5])
    assert [order.choose(lambda below: next(draws)) for _ in range(3)] == ["b", "d", "f"]
    for name in "bdf":
        order.remove(serials[name])
    assert order.choose(lambda below: 0) is None


# Against redis-server, byte by byte

KEYS = st.sampled_from(["a", "b", "c"])
TIMES = st.sampled_from([-1, 0, 1000, LATER, LATER + 1, LATER + 499, LATER + 500, LATER + 1501, (1 << 63) - 1])
CONDITIONS = st.lists(st.sampled_from(["NX", "XX", "GT", "lt", "BAD"]), max_size=2)
INTEGERS = st.sampled_from(["1", "01", "+1", " 1", "-0", "1.5", "", "x", "9223372036854775807", "-9223372036854775808"])
COMMANDS = st.one_of(
    st.tuples(st.just(MAKE), KEYS),
    st.tuples(st.just(MAKE), KEYS),
    st.tuples(st.sampled_from(["DEL", "UNLINK", "EXISTS", "TOUCH"]), KEYS, KEYS, KEYS),
    st.tuples(st.sampled_from(["TYPE", "PEXPIRETIME", "EXPIRETIME", "PERSIST"]), KEYS),
    st.builds(lambda key, at, more: ("PEXPIREAT", key, at, *more), KEYS, TIMES, CONDITIONS),
    st.builds(lambda key, at, more: ("EXPIREAT", key, at // 1000, *more), KEYS, TIMES, CONDITIONS),
    st.tuples(st.sampled_from(["EXPIRE", "PEXPIRE", "EXPIREAT", "PEXPIREAT"]), st.just("none"), INTEGERS),
    st.tuples(st.sampled_from(["RENAME", "RENAMENX"]), KEYS, KEYS),
    st.builds(
        lambda a, b, more: ("COPY", a, b, *more),
        KEYS,
        KEYS,
        st.lists(st.sampled_from(["REPLACE", "DB", "0", "99", "x"]), max_size=3),
    ),
    st.sampled_from([("DBSIZE",), ("FLUSHDB",), ("FLUSHALL", "ASYNC"), ("FLUSHALL", "x"), ("KEYS",), ("DEL",)]),
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Wire, Wire]]:
    """A server of ours and redis-server."""
    with Running() as ours, redis_server(tmp_path_factory.mktemp("redis")) as path:
        yield ours.wire(), connect(path)


@needs_redis
@given(st.lists(COMMANDS, max_size=30))
@example([(MAKE, "a"), ("PEXPIREAT", "a", LATER), ("PEXPIREAT", "a", LATER, "GT"), ("PEXPIRETIME", "a")])
@example([(MAKE, "a"), ("PEXPIREAT", "a", LATER, "GT"), ("PEXPIREAT", "a", LATER, "lt"), ("PEXPIRETIME", "a")])
def test_as_redis_does(both: tuple[Wire, Wire], commands: list[tuple[Word, ...]]) -> None:
    """The same commands, the same bytes: replies, errors, and which of two errors comes first."""
    ours, theirs = both
    script: list[tuple[Word, ...]] = [("FLUSHALL",)]
    for words in commands:
        script += [("DEL", words[1]), words] if words[0] == MAKE else [words]
    script += [(command, key) for key in "abc" for command in ("EXISTS", "PEXPIRETIME")]
    got = replies(ours, [for_us(words) for words in script])
    want = replies(theirs, [for_redis(words) for words in script])
    assert list(zip(script, got, strict=True)) == list(zip(script, want, strict=True))


# Against a model, by the clock


class Model:
    """Key -> deadline in unix milliseconds, None for none."""

    def __init__(self) -> None:
        self.now = JUNE
        self.keys: dict[str, int | None] = {}

    def advance(self, ms: int) -> None:
        self.now += ms
        self.keys = {key: at for key, at in self.keys.items() if at is None or at > self.now}

    def expire(self, key: str, at: int, *conditions: str) -> int:
        if key not in self.keys:
            return 0
        old = self.keys[key]
        if "NX" in conditions and old is not None:
            return 0
        if "XX" in conditions and old is None:
            return 0
        if "GT" in conditions and (old is None or at <= old):
            return 0
        if "LT" in conditions and old is not None and at >= old:
            return 0
        self.keys[key] = at
        self.advance(0)
        return 1

    def pttl(self, key: str) -> int:
        if key not in self.keys:
            return -2
        at = self.keys[key]
        return -1 if at is None else at - self.now

    def rename(self, key: str, to: str) -> str:
        if key not in self.keys:
            return "ERR no such key"
        self.keys[to] = self.keys.pop(key)
        return "OK"

    def copy(self, key: str, to: str) -> int:
        if key not in self.keys:
            return 0
        self.keys[to] = self.keys[key]
        return 1


@pytest.fixture(scope="module")
def timed() -> Iterator[tuple[Wire, Clock]]:
    """A server whose clock the test may turn back between two examples."""
    clock = Clock()
    with Running(clock=clock) as ours:
        yield ours.wire(), clock


@settings(max_examples=60)
@given(st.data())
def test_as_the_model_does(timed: tuple[Wire, Clock], data: st.DataObject) -> None:
    """Relative deadlines while the clock moves, with what expires unasked in between."""
    wire, clock = timed
    model = Model()
    wire("FLUSHALL")
    clock.now_ms = JUNE
    spans = st.sampled_from([-1, 0, 1, 999, 1000, 1001, 1499, 1500, HOUR])
    for _ in range(data.draw(st.integers(0, 25))):
        step = data.draw(st.sampled_from(["make", "pexpire", "expire", "persist", "rename", "copy", "del", "advance"]))
        key = data.draw(KEYS)
        match step:
            case "make":
                made = wire.pipeline(("MEM.CREATE", key, "MODE", "SEARCH"))[0]
                assert (made == "OK") == (key not in model.keys)
                model.keys.setdefault(key, None)
            case "pexpire" | "expire":
                span = data.draw(spans)
                conditions = data.draw(st.sampled_from(["", "NX", "XX", "GT", "LT", "XX GT", "XX LT"])).split()
                unit = 1000 if step == "expire" else 1
                got = wire(step, key, span, *conditions)
                assert got == model.expire(key, model.now + span * unit, *conditions)
            case "persist":
                had = model.keys.get(key) is not None
                assert wire("PERSIST", key) == int(had)
                if had:
                    model.keys[key] = None
            case "rename" | "copy":
                to = data.draw(KEYS.filter(lambda to, key=key: to != key))
                if step == "rename":
                    assert str(wire.pipeline(("RENAME", key, to))[0]) == model.rename(key, to)
                else:
                    assert wire("COPY", key, to, "REPLACE") == model.copy(key, to)
            case "del":
                assert wire("DEL", key) == int(key in model.keys)
                model.keys.pop(key, None)
            case "advance":
                span = max(0, data.draw(spans))
                clock.advance(span)
                model.advance(span)
        # Two of the views are asked first in turn: the first one is the one that has to notice what expired.
        look = data.draw(st.sampled_from(["KEYS", "DBSIZE", "PTTL"]))
        if look == "KEYS":
            assert sorted(wire("KEYS", "*")) == sorted(key.encode() for key in model.keys)
        elif look == "DBSIZE":
            assert wire("DBSIZE") == len(model.keys)
        else:
            assert [wire("PTTL", key) for key in "abc"] == [model.pttl(key) for key in "abc"]


# By redis-py


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py(server: Running, clock: Clock, protocol: int) -> None:
    with server.client(protocol, decode_responses=True) as client:
        client.execute_command("MEM.CREATE", "user:1", "MODE", "SEARCH")
        assert client.type("user:1") == "memory"
        assert client.exists("user:1", "user:2") == 1
        assert client.expire("user:1", 100, nx=True)
        assert not client.expire("user:1", 50, gt=True)
        assert client.ttl("user:1") == 100
        assert client.expiretime("user:1") == JUNE // 1000 + 100
        assert client.persist("user:1")
        assert client.copy("user:1", "user:2")
        assert client.rename("user:2", "user:3")
        assert sorted(client.scan_iter("user:*", count=1)) == ["user:1", "user:3"]
        assert client.randomkey() in ("user:1", "user:3")
        assert client.keys("*:3") == ["user:3"]
        assert client.dbsize() == 2
        assert client.unlink("user:1", "user:3", "user:4") == 2
        with pytest.raises(redis.ResponseError, match="no such key"):
            client.rename("user:1", "user:2")
        assert client.flushdb(asynchronous=True)
