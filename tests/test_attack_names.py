"""Names made to cost much: long keys, channels and patterns, many bytes of them, patterns that are slow to match or to
compile. What is refused has changed nothing."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from durable import eventually
from harness import Running, Wire, WireError, Word, pack
from recalld.server import glob, names, pubsub_commands
from recalld.server.client import Client
from recalld.server.glob import compile_glob
from recalld.server.names import HELD_MAX, NAME_MAX, Names
from recalld.server.pubsub import NS_MAX, PubSub

Start = Callable[..., Running]

LONGEST = b"k" * NAME_MAX
TOO_LONG = b"k" * (NAME_MAX + 1)


def refusal(what: str, size: int = NAME_MAX + 1) -> str:
    return f"ERR a {what} of {size} bytes exceeds {NAME_MAX}"


@pytest.fixture
def admin(server: Running) -> Iterator[Wire]:
    wire = server.wire(3)
    yield wire
    wire.close()


# -- keys


def test_no_command_makes_a_key_that_is_too_long(wire: Wire) -> None:
    wire("MEM.CREATE", "a", "MODE", "SEARCH")
    wire("MEM.ADD", "a", "ID", "1", "TEXT", "x")
    payload = wire("DUMP", "a")
    for words in (
        ("MEM.CREATE", TOO_LONG, "MODE", "SEARCH"),
        ("RENAME", "a", TOO_LONG),
        ("RENAMENX", "a", TOO_LONG),
        ("COPY", "a", TOO_LONG),
        ("COPY", "a", TOO_LONG, "REPLACE"),
        ("RESTORE", TOO_LONG, 0, payload),
        ("RESTORE", TOO_LONG, 0, payload, "REPLACE"),
    ):
        assert wire.error(*words) == refusal("key"), words
        assert wire("KEYS", "*") == [b"a"]
        assert wire("DUMP", "a") == payload


def test_the_longest_key_there_may_be(wire: Wire) -> None:
    assert wire("MEM.CREATE", LONGEST, "MODE", "SEARCH") == "OK"
    payload = wire("DUMP", LONGEST)
    assert wire("RENAME", LONGEST, "a") == "OK"
    assert wire("RENAMENX", "a", LONGEST) == 1
    assert wire("COPY", LONGEST, b"l" * NAME_MAX) == 1
    assert wire("RESTORE", b"m" * NAME_MAX, 0, payload) == "OK"
    assert sorted(wire("KEYS", "*")) == [letter * NAME_MAX for letter in (b"k", b"l", b"m")]


def test_a_key_that_is_too_long_does_not_exist(wire: Wire) -> None:
    assert wire("EXISTS", TOO_LONG) == wire("DEL", TOO_LONG) == 0
    assert wire("TTL", TOO_LONG) == -2
    assert wire("WATCH", TOO_LONG) == "OK"
    assert wire("UNWATCH") == "OK"
    assert wire.error("MEM.ADD", TOO_LONG, "TEXT", "x") == "ERR no such memory index"


def test_longer_keys_of_an_older_log(tmp_path: Path, running: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are there, and may be used, renamed and deleted; what they had cannot be had again."""
    key, other = b"k" * 10_000, b"l" * 10_000
    with monkeypatch.context() as before:
        before.setattr(names, "NAME_MAX", 1 << 20)
        server = running(appendonly="yes", dir=str(tmp_path))
        wire = server.wire()
        assert wire("MEM.CREATE", key, "MODE", "SEARCH") == wire("MEM.CREATE", other, "MODE", "SEARCH") == "OK"
    server.restart()
    wire = server.wire()
    assert sorted(wire("KEYS", "*")) == sorted(wire("SCAN", 0, "MATCH", "*k*l?*", "COUNT", 10)[1] + [key, other])
    assert wire("SCAN", 0, "MATCH", "*k?k*")[1] == [key]
    assert wire("MEM.ADD", key, "ID", "1", "TEXT", "x") == b"1"
    assert wire.error("COPY", key, other, "REPLACE") == refusal("key", 10_000)
    assert wire("RENAME", key, "k") == "OK"
    assert wire("DEL", other) == 1
    assert wire.error("RENAME", "k", key) == refusal("key", 10_000)
    server.restart()
    assert server.wire()("KEYS", "*") == [b"k"]


def test_users_of_some_keys_and_channels_have_no_long_ones(server: Running, admin: Wire) -> None:
    """What their patterns are matched against is short too."""
    admin("ACL", "SETUSER", "some", "on", "nopass", "+@all", "~k*", "resetchannels", "&k*")
    wire = server.wire()
    wire("AUTH", "some", "x")
    assert wire("EXISTS", LONGEST) == 0 and wire("PUBLISH", LONGEST, "x") == 0
    assert wire.error("EXISTS", TOO_LONG).startswith("NOPERM")
    assert wire.error("PUBLISH", TOO_LONG, "x").startswith("NOPERM")
    wire.close()
    admin("ACL", "DELUSER", "some")


# -- channels and patterns


def test_channels_and_patterns_that_are_too_long(admin: Wire, wire: Wire) -> None:
    assert admin.error("SUBSCRIBE", "a", TOO_LONG, "b") == refusal("channel")
    assert admin.error("PSUBSCRIBE", "a*", TOO_LONG, "b*") == refusal("pattern")
    assert wire.error("PUBLISH", TOO_LONG, "x") == refusal("channel")
    assert wire("PUBSUB", "CHANNELS") == [] and wire("PUBSUB", "NUMPAT") == 0
    assert wire("PUBSUB", "NUMSUB", TOO_LONG) == [TOO_LONG, 0]
    admin.send("UNSUBSCRIBE", TOO_LONG)
    assert admin.read() == [b"unsubscribe", TOO_LONG, 0]


def test_the_longest_channel_and_pattern(admin: Wire, wire: Wire) -> None:
    assert admin("SUBSCRIBE", LONGEST) == [b"subscribe", LONGEST, 1]
    assert admin("PSUBSCRIBE", LONGEST) == [b"psubscribe", LONGEST, 2]
    assert wire("PUBLISH", LONGEST, "x") == 2
    assert admin.read() == [b"message", LONGEST, b"x"]
    assert admin.read() == [b"pmessage", LONGEST, LONGEST, b"x"]


def test_notifications_of_the_longest_key(admin: Wire, wire: Wire) -> None:
    """Their channels are longer than one that a client names."""
    admin("PSUBSCRIBE", "__mem__:*")
    wire("MEM.CREATE", LONGEST, "MODE", "SEARCH")
    wire("MEM.ADD", LONGEST, "ID", "1", "TEXT", "x")
    assert admin.read() == [b"pmessage", b"__mem__:*", b"__mem__:" + LONGEST, b"add 1"]


# -- the bytes that a connection holds


def test_more_bytes_than_a_connection_may_hold(monkeypatch: pytest.MonkeyPatch, admin: Wire, wire: Wire) -> None:
    """Of all three kinds together, with 100 for each; those that it has already do not count again."""
    monkeypatch.setattr("recalld.server.client.HELD_MAX", 3000)
    kinds = {"WATCH": b"w", "SUBSCRIBE": b"c", "PSUBSCRIBE": b"p"}
    for command, letter in kinds.items():
        assert admin(command, letter * 900) is not None
    for command in kinds:
        error = "ERR 3101 bytes of watched keys, channels and patterns of one connection exceed 3000"
        assert admin.error(command, "x") == error
        assert admin.error(command, "x", "x") == error
    assert admin("SUBSCRIBE", b"c" * 900) == [b"subscribe", b"c" * 900, 2]
    assert wire("PUBSUB", "CHANNELS") == [b"c" * 900] and wire("PUBSUB", "NUMPAT") == 1
    admin("UNSUBSCRIBE", b"c" * 900)
    assert admin("SUBSCRIBE", b"d" * 900) == [b"subscribe", b"d" * 900, 2]
    admin("UNWATCH")
    assert admin("WATCH", b"v" * 900) == "OK"
    assert admin.error("WATCH", b"w" * 900).startswith("ERR 4000 bytes")
    admin("RESET")
    assert wire("PUBSUB", "CHANNELS") == [] and wire("WATCH", b"v" * 2900) == "OK"


def test_one_long_key_to_watch(wire: Wire) -> None:
    """Longer than any there may be, but an older log may have brought it."""
    assert wire("WATCH", bytes(HELD_MAX - 2000)) == "OK"
    assert wire.error("WATCH", bytes(2000)).endswith(f"exceed {HELD_MAX}")


def test_names_know_what_they_take() -> None:
    held, rng = Names(), random.Random(7)
    for step in range(2000):
        name = b"*" + b"?" * rng.randrange(12) + b"*" * rng.randrange(2)
        if rng.random() < 0.6:
            held.add(name)
        elif name in held:
            held.remove(name)
        elif step % 50 == 0:
            held.clear()
        assert names.most_size_of(held) >= held.size == sum(map(names.size_of, held))


# -- slow patterns


def slow(number: int) -> bytes:
    """A pattern that takes 520 ns per byte."""
    return b"*" + b"%03d" % number + b"?" * 507 + b"*"


def plain(number: int) -> bytes:
    """One that takes 2."""
    return b"*n%05d*q*" % number


@pytest.mark.parametrize(("pattern", "each"), [(slow, 520), (plain, 2)])
def test_more_slow_patterns_than_there_may_be(
    admin: Wire, wire: Wire, pattern: Callable[[int], bytes], each: int
) -> None:
    """However they come; of those with one star there may be as many as one likes."""
    many = NS_MAX // each
    eventually(lambda: wire("PUBSUB", "NUMPAT") == 0)
    error = (
        f"ERR the patterns of all connections would take {(many + 1) * each * NAME_MAX // 1_000_000 + 1} ms to match at"
        " worst, which exceeds 50; those with one * or none count for nothing"
    )
    assert admin.error("PSUBSCRIBE", *map(pattern, range(many + 1))) == error
    assert wire("PUBSUB", "NUMPAT") == 0
    admin.send("PSUBSCRIBE", *map(pattern, range(many)))
    assert [admin.read() for _ in range(many)] == [[b"psubscribe", pattern(at), at + 1] for at in range(many)]
    assert admin.error("PSUBSCRIBE", "good", pattern(many)) == error
    assert admin("PSUBSCRIBE", pattern(0)) == [b"psubscribe", pattern(0), many]
    one_star = pattern(many).rstrip(b"*q")
    assert admin("PSUBSCRIBE", one_star) == [b"psubscribe", one_star, many + 1]
    admin("PUNSUBSCRIBE", pattern(0))
    assert admin("PSUBSCRIBE", pattern(many)) == [b"psubscribe", pattern(many), many + 1]
    assert wire("PUBSUB", "NUMPAT") == many + 1


def test_slow_patterns_of_several_connections(server: Running, wire: Wire) -> None:
    """A message pays for all of them, for one that two have only once; who leaves makes room."""
    eventually(lambda: not server.server.pubsub.active)
    many = NS_MAX // 520
    one, other = server.wire(3), server.wire(3)
    one.send("PSUBSCRIBE", *map(slow, range(many - 1)))
    for _ in range(many - 1):
        one.read()
    assert other("PSUBSCRIBE", slow(0)) == [b"psubscribe", slow(0), 1]
    assert other.error("PSUBSCRIBE", slow(many), "good", slow(many + 1)).startswith(
        "ERR the patterns of all connections"
    )
    assert wire("PUBSUB", "NUMPAT") == many - 1
    assert other("PSUBSCRIBE", slow(many)) == [b"psubscribe", slow(many), 2]
    assert other("PSUBSCRIBE", slow(1)) == [b"psubscribe", slow(1), 3]
    assert other.error("PSUBSCRIBE", slow(many + 1)).startswith("ERR the patterns of all connections")
    one("RESET")
    assert other("PSUBSCRIBE", slow(many + 1)) == [b"psubscribe", slow(many + 1), 4]
    assert wire("PUBSUB", "NUMPAT") == 4 and server.server.pubsub.ns == 4 * 520
    other("RESET")
    assert server.server.pubsub.ns == 0


def test_a_message_is_matched_only_where_it_begins_alike(
    server: Running, wire: Wire, admin: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bytes] = []

    def noted(pattern: bytes) -> Any:
        compiled = compile_glob(pattern)

        class Noted:
            def fullmatch(self, value: bytes, /) -> object | None:
                asked.append(pattern)
                return compiled.fullmatch(value)

        return Noted()

    monkeypatch.setattr("recalld.server.pubsub.compile_glob", noted)
    patterns = [b"tenant:%d:*" % number for number in range(400)] + [b"tenant:%d" % number for number in range(400)]
    admin.send("PSUBSCRIBE", "*:7:x", *patterns, "tenant:7:?")
    for _ in range(802):
        admin.read()
    assert wire("PUBLISH", "tenant:7:x", "m") == 3
    assert [admin.read()[1] for _ in range(3)] == [b"*:7:x", b"tenant:7:*", b"tenant:7:?"]
    assert sorted(asked) == [b"*:7:x", b"tenant:7", b"tenant:7:*", b"tenant:7:?"]


def test_who_hears_what_in_which_order() -> None:
    """As if each pattern were asked, in the order in which they came; what nobody has any more leaves nothing."""
    rng = random.Random(5)
    pubsub, heard, listening = PubSub(), Ear(), dict[bytes, None]()
    told = 0
    for _ in range(3000):
        pattern = b"".join(rng.choices([b"*", b"?", b"a", b"b", b"[ab]", b"\\a"], k=rng.randrange(5)))
        if pattern in listening:
            pubsub.unsubscribe_pattern(heard.client, pattern)
            del listening[pattern]
        else:
            pubsub.subscribe_pattern(heard.client, pattern)
            listening[pattern] = None
        channel = bytes(rng.choices(b"ab", k=rng.randrange(5)))
        expected = [other for other in listening if compile_glob(other).fullmatch(channel) is not None]
        told += len(expected)
        heard.messages.clear()
        assert pubsub.publish(channel, b"x") == len(expected)
        assert [message[1] for message in heard.messages] == expected
        assert pubsub.ns == sum(map(glob.ns_per_byte, listening))
    assert told > 3000
    pubsub.drop(heard.client)
    assert (pubsub.active, pubsub.ns, pubsub._compiled) == (False, 0, {})


class Ear:
    """A client as far as PubSub knows one."""

    def __init__(self) -> None:
        self.channels, self.patterns = Names(), Names()
        self.messages: list[Any] = []

    def push(self, message: Any) -> None:
        self.messages.append(message)

    @property
    def client(self) -> Client:
        return self  # type: ignore[return-value]


# -- subscriptions in a transaction

IN_EXEC = (
    "ERR subscriptions of a transaction may name 4096 channels and patterns, fewer where PSUBSCRIBE names any with"
    " ? [ or \\ (8192 bytes of these); send the rest outside of it"
)


def test_what_a_transaction_may_subscribe_to(wire: Wire) -> None:
    """All its commands together; what is refused takes nothing of it, and the next transaction has it all again."""
    patterns = [b"%02d" % number + b"[a-z]" * 100 for number in range(32)]  # 504 bytes with what a name takes
    for at in (0, 16):
        commands: list[list[Word]] = [
            ["PSUBSCRIBE", *patterns[at : at + 10]],
            ["PSUBSCRIBE", *patterns[at + 9 : at + 16]],
            ["PSUBSCRIBE", *patterns[at + 10 : at + 16]],
            ["SUBSCRIBE", *range(65)],
            ["SUBSCRIBE", *range(64)],
            ["PUNSUBSCRIBE", "x"],
        ]
        said = wire.pipeline(["MULTI"], *commands, ["EXEC"])[-1]  # the first six of what is in it
        said += [wire.read() for _ in range(10 + 1 + 6 + 1 + 64 + 1 - 6)]
        assert [at for at, frame in enumerate(said) if frame == WireError(IN_EXEC)] == [10, 17, 82]
        assert [frame[2] for frame in said if isinstance(frame, list)] == list(range(1, 81))
        assert wire("PING") == [b"pong", b""]
        wire("RESET")


def test_names_that_a_transaction_may_leave(server: Running, wire: Wire) -> None:
    told = server.wire(3)
    told.send("SUBSCRIBE", *range(4097))
    for _ in range(4097):
        told.read()
    assert told.pipeline(["MULTI"], ["UNSUBSCRIBE"], ["EXEC"])[-1] == [WireError(IN_EXEC)]
    assert len(wire("PUBSUB", "CHANNELS")) == 4097
    assert told("UNSUBSCRIBE", 0) == [b"unsubscribe", b"0", 4096]
    told.send("MULTI")
    told.send("UNSUBSCRIBE")
    told.send("EXEC")
    assert told.read() == "OK" and told.read() == "QUEUED"
    told.read()
    assert wire("PUBSUB", "CHANNELS") == []
    told.close()


# -- leaving with many


def leaving(server: Running, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is seen each time that names are taken off: how many, how often one of those left hears of a message."""
    seen: list[Any] = []
    pubsub = server.server.pubsub
    drop_some = pubsub.drop_some

    def noted(client: Client) -> bool:
        before = len(client.channels) + len(client.patterns)
        done = drop_some(client)
        heard = pubsub.publish(next(iter(client.channels)), b"x") if client.channels else 0
        seen.append((before - len(client.channels) - len(client.patterns), heard))
        server.server.loop.call_soon(seen.append, "turn")
        return done

    monkeypatch.setattr(pubsub, "drop_some", noted)
    return seen


def with_many(server: Running) -> Wire:
    wire = server.wire(3)
    wire.send("SUBSCRIBE", *range(1200))
    wire.send("PSUBSCRIBE", *[f"*{number}" for number in range(600)])
    for _ in range(1800):
        wire.read()
    return wire


def test_hanging_up_takes_turns(server: Running, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is gone hears nothing from the first turn on."""
    gone = with_many(server)
    seen = leaving(server, monkeypatch)
    gone.close()
    eventually(lambda: wire("PUBSUB", "NUMPAT") == 0)
    assert seen[:7] == [(500, 0), "turn", (500, 0), "turn", (500, 0), "turn", (300, 0)]
    pubsub = server.server.pubsub
    assert (pubsub.active, pubsub.leaving, pubsub._compiled) == (False, set(), {})


def test_resetting_takes_turns(server: Running, wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """What stands behind it waits for the last, after which there is one reply."""
    many = with_many(server)
    seen = leaving(server, monkeypatch)
    many.send("CLIENT", "REPLY", "SKIP")
    many.sock.sendall(pack("RESET") + pack("SUBSCRIBE", "a") + pack("PING"))
    said = [many.read()]
    while said[-1] != [b"pong", b""]:
        said.append(many.read())
    assert [frame for frame in said if frame[:1] != [b"message"] and frame[:1] != [b"pmessage"]] == [
        "RESET",
        [b"subscribe", b"a", 1],
        [b"pong", b""],
    ]
    assert [each[0] for each in seen if each != "turn"] == [500, 500, 500, 300]
    assert wire("PUBSUB", "CHANNELS") == [b"a"] and wire("PUBSUB", "NUMPAT") == 0
    many.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_what_takes_long_to_compile_is_compiled_by_and_by(
    server: Running, monkeypatch: pytest.MonkeyPatch, protocol: int
) -> None:
    """In the order in which it was asked for, and what stands behind the command waits."""
    turns: list[list[bytes]] = []
    handled = pubsub_commands._turns

    def noted(names: list[bytes]) -> list[list[bytes]]:
        found = handled(names)
        turns.append(found[0])
        return found

    monkeypatch.setattr(pubsub_commands, "_turns", noted)
    wire = server.wire(protocol)
    patterns = [b"%02d" % number + b"[a-z]" * 180 for number in range(30)]
    patterns[10:10] = [b"plain%d" % number for number in range(30)]
    wire.send("PSUBSCRIBE", *patterns)
    wire.send("PING")
    assert [wire.read() for _ in patterns] == [[b"psubscribe", name, at + 1] for at, name in enumerate(patterns)]
    assert wire.read() in ("PONG", [b"pong", b""])
    assert [name for turn in turns for name in turn] == patterns
    assert len(turns) == 4 and all(sum(map(glob.bytes_to_compile, turn)) <= 8192 for turn in turns)
    wire.close()


def test_turns() -> None:
    """None is empty, and none is left out, whatever the sizes."""
    rng = random.Random(3)
    for _ in range(300):
        many = [b"?" * rng.choice([1, 10, 1024, 9000]) + b"x" * (at % 2) for at in range(rng.randrange(1, 40))]
        turns = pubsub_commands._turns(many)
        assert [name for turn in turns for name in turn] == many and all(turns)
        assert all(len(turn) == 1 or sum(map(len, turn)) <= 8192 for turn in turns)
    assert pubsub_commands._turns([]) == [[]]
    assert list(map(len, pubsub_commands._turns([b"x"] * 1200))) == [500, 500, 200]


# -- many names, slow patterns


def test_slow_patterns_are_matched_by_a_thread(
    server: Running, wire: Wire, admin: Wire, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However few the keys are, and the channels."""
    keys = [b"%02d" % number + b"a" * 1000 for number in range(40)]
    wire.pipeline(*[("MEM.CREATE", key, "MODE", "SEARCH") for key in keys])
    admin.send("SUBSCRIBE", *keys)
    for _ in keys:
        admin.read()
    threads = 0
    background = server.server.background

    def counted(work: Callable[[], Any]) -> Any:
        nonlocal threads
        threads += 1
        return background(work)

    monkeypatch.setattr(server.server, "background", counted)
    pattern = b"1*?" + b"a" * 500 + b"*"
    expected = [key for key in keys if key.startswith(b"1")]
    for words in (["KEYS"], ["PUBSUB", "CHANNELS"]):
        assert wire(*words, "1*") == expected and threads == 0
        assert wire(*words, pattern) == expected and threads == 1
        assert wire.pipeline(("MULTI",), (*words, pattern), ("EXEC",))[-1] == [expected]
        threads = 0


def test_scan_with_a_slow_pattern_has_short_pages(wire: Wire) -> None:
    """Each looks at one key at least; together they meet every key once."""
    keys = [b"%03d" % number + b"a" * 2000 for number in range(60)]
    wire.pipeline(*[("MEM.CREATE", key, "MODE", "SEARCH") for key in keys])
    assert wire("SCAN", 0, "COUNT", 1000, "MATCH", "*0*a") == [b"0", [key for key in keys if b"0" in key]]
    pattern = b"*0*?" + b"a" * 900 + b"*"
    found: list[bytes] = []
    cursor, pages = b"0", 0
    while pages == 0 or cursor != b"0":
        cursor, page = wire("SCAN", cursor, "COUNT", 1000, "MATCH", pattern)
        found += page
        pages += 1
    assert found == [key for key in keys if b"0" in key]
    assert 1 < pages <= len(keys)


def test_scan_gets_on_though_each_key_takes_longer_than_a_page(wire: Wire) -> None:
    keys = [letter * NAME_MAX for letter in (b"a", b"b", b"c")]
    wire.pipeline(*[("MEM.CREATE", key, "MODE", "SEARCH") for key in keys])
    found, cursor = [], b"0"
    for _ in keys:
        cursor, [key] = wire("SCAN", cursor, "MATCH", b"*" + b"?" * 1000 + b"*")
        found.append(key)
    assert (found, cursor) == (keys, b"0")


@pytest.mark.parametrize(("sizes", "many"), [([1000] * 9, 3), ([5000, 1], 1), ([1000, 1900, 101], 2), ([2999, 0], 2)])
def test_how_many_are_matched_at_once(sizes: list[int], many: int) -> None:
    """Within 3 ms, at 1 microsecond per byte."""
    assert names.affordable([bytes(size) for size in sizes], b"*" + b"?" * 990 + b"*") == many
    assert names.affordable([bytes(size) for size in sizes], b"*" + b"?" * 990) == len(sizes)


# -- the matcher


def slow_match(pattern: bytes, value: bytes) -> bool:
    """By dynamic programming; of specials only `*`, `?`, and classes of bytes that stand for themselves."""
    tests: list[bytes | None] = []  # None is a star
    at = 0
    while at < len(pattern):
        byte = pattern[at : at + 1]
        end = pattern.index(b"]", at) if byte == b"[" else at
        tests.append({b"*": None, b"?": bytes(range(256)), b"[": pattern[at + 1 : end]}.get(byte, byte))
        at = end + 1
    reached = [True] + [False] * len(value)
    for test in tests:
        if test is None:
            first = reached.index(True) if True in reached else len(reached)
            reached = [place >= first for place in range(len(reached))]
        else:
            reached = [False, *(was and value[at] in test for at, was in enumerate(reached[:-1]))]
    return reached[-1]


def test_random_globs() -> None:
    rng = random.Random(11)
    matched = 0
    for _ in range(20_000):
        pattern = b"".join(rng.choices([b"*", b"?", b"a", b"b", b"[ab]", b"[a]", b"aa"], k=rng.randrange(9)))
        value = bytes(rng.choices(b"aaab\n", k=rng.randrange(12)))
        expected = slow_match(pattern, value)
        matched += expected
        assert (compile_glob(pattern).fullmatch(value) is not None) == expected, (pattern, value)
    assert 1000 < matched < 19_000


@pytest.mark.parametrize("pattern", [b"*" * 65_537, b"a*" * 40_000, b"x" * 65_536 + b"*"])
def test_more_stars_than_any_name_has_place_for(wire: Wire, pattern: bytes) -> None:
    error = f"ERR a pattern with * may have 65536 bytes at most, this one has {len(pattern)}"
    for words in (["KEYS"], ["SCAN", 0, "MATCH"], ["PUBSUB", "CHANNELS"]):
        assert wire.error(*words, pattern) == error
    assert wire("KEYS", b"x" * 100_000) == []  # a name, and none that is there


@pytest.mark.parametrize(
    ("pattern", "ns"),
    [
        (b"", 0),
        (b"**", 0),
        (b"?*", 0),
        (b"[a]*[b]", 0),
        (b"*?", 0),
        (b"aaaa*aaaa", 0),
        (b"*?*", 11),
        (b"a?*[bc]**d*e", 17),
        (b"*a*", 1),
        (b"a*aaaa*aaaaaa*aaaaaaaaaaaaa", 3),
        (b"*" + b"a" * 50 + b"*", 11),
        (b"*" + b"a" * 1000 + b"*", 21),
        (b"\\*a\\*", 12),  # one byte, but nobody looks so closely
    ],
)
def test_what_a_pattern_takes_at_worst(pattern: bytes, ns: int) -> None:
    assert glob.ns_per_byte(pattern) == ns
