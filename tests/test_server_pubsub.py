"""Pub/sub: the bytes of confirmations and messages on both protocols, their order, and readers that are too slow."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

import hypothesis.strategies as st
import pytest
from harness import PATIENCE_S, Push, Running, Wire, Word, pack
from hypothesis import given
from peer import connect, needs_redis, next_reply, redis_server
from recalld.server.client import Client
from recalld.server.pubsub import PubSub

Start = Callable[..., Running]


@pytest.fixture
def other(server: Running) -> Iterator[Wire]:
    """A second connection."""
    wire = server.wire()
    yield wire
    wire.close()


@pytest.fixture(params=[2, 3])
def sub(server: Running, request: pytest.FixtureRequest) -> Iterator[Wire]:
    """A connection to subscribe with, on RESP2 and on RESP3."""
    wire = server.wire(request.param)
    yield wire
    wire.close()


# Bytes


def test_bytes_of_resp2(wire: Wire, other: Wire) -> None:
    assert wire.raw("SUBSCRIBE", "news") == b"*3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n"
    assert wire.raw("PSUBSCRIBE", "n*") == b"*3\r\n$10\r\npsubscribe\r\n$2\r\nn*\r\n:2\r\n"
    assert other("PUBLISH", "news", b"\r\n") == 2
    assert next_reply(wire) == b"*3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$2\r\n\r\n\r\n"
    assert next_reply(wire) == b"*4\r\n$8\r\npmessage\r\n$2\r\nn*\r\n$4\r\nnews\r\n$2\r\n\r\n\r\n"
    assert wire.raw("PING") == b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"
    assert wire.raw("PING", "hi") == b"*2\r\n$4\r\npong\r\n$2\r\nhi\r\n"
    assert wire.raw("UNSUBSCRIBE") == b"*3\r\n$11\r\nunsubscribe\r\n$4\r\nnews\r\n:1\r\n"
    assert wire.raw("UNSUBSCRIBE") == b"*3\r\n$11\r\nunsubscribe\r\n$-1\r\n:1\r\n"
    assert wire.raw("PUNSUBSCRIBE", "n*") == b"*3\r\n$12\r\npunsubscribe\r\n$2\r\nn*\r\n:0\r\n"
    assert wire.raw("PING") == b"+PONG\r\n"


def test_bytes_of_resp3(wire3: Wire, other: Wire) -> None:
    """A confirmation is a push, and there is no reply beside it."""
    assert wire3.raw("SUBSCRIBE", "news") == b">3\r\n$9\r\nsubscribe\r\n$4\r\nnews\r\n:1\r\n"
    assert wire3.raw("PSUBSCRIBE", "n*") == b">3\r\n$10\r\npsubscribe\r\n$2\r\nn*\r\n:2\r\n"
    assert other("PUBLISH", "news", "x") == 2
    assert next_reply(wire3) == b">3\r\n$7\r\nmessage\r\n$4\r\nnews\r\n$1\r\nx\r\n"
    assert next_reply(wire3) == b">4\r\n$8\r\npmessage\r\n$2\r\nn*\r\n$4\r\nnews\r\n$1\r\nx\r\n"
    assert wire3.raw("PING") == b"+PONG\r\n"
    assert wire3.raw("PING", "hi") == b"$2\r\nhi\r\n"
    assert wire3.raw("UNSUBSCRIBE", "news") == b">3\r\n$11\r\nunsubscribe\r\n$4\r\nnews\r\n:1\r\n"
    assert wire3.raw("UNSUBSCRIBE") == b">3\r\n$11\r\nunsubscribe\r\n_\r\n:1\r\n"


def test_one_confirmation_per_name(sub: Wire) -> None:
    """In the order of the words, a name that is there already included."""
    sub.send("SUBSCRIBE", "a", "b", "a")
    assert [sub.read() for _ in range(3)] == [[b"subscribe", b"a", 1], [b"subscribe", b"b", 2], [b"subscribe", b"a", 2]]
    sub.send("UNSUBSCRIBE", "x", "b")
    assert [sub.read() for _ in range(2)] == [[b"unsubscribe", b"x", 2], [b"unsubscribe", b"b", 1]]
    sub.send("PSUBSCRIBE", "a*", "b*")
    assert [sub.read()[2], sub.read()[2]] == [2, 3]
    sub.send("PUNSUBSCRIBE")
    assert [sub.read(), sub.read()] == [[b"punsubscribe", b"a*", 2], [b"punsubscribe", b"b*", 1]]


def test_resp2_may_send_little_else(wire: Wire, wire3: Wire) -> None:
    wire("SUBSCRIBE", "news")
    assert wire.error("ECHO", "x") == (
        "ERR Can't execute 'echo': only (P|S)SUBSCRIBE / (P|S)UNSUBSCRIBE / PING / QUIT / RESET are allowed in this"
        " context"
    )
    assert wire.error("NONSENSE").startswith("ERR unknown command")
    wire("UNSUBSCRIBE")
    assert wire("ECHO", "x") == b"x"
    wire3("PSUBSCRIBE", "*")
    assert wire3("ECHO", "x") == b"x"


# Who hears what


@pytest.mark.parametrize(
    ("pattern", "hears"),
    [
        ("news", ["news"]),
        ("n*", ["news", "n"]),
        ("*", ["news", "n", "", "a\nb"]),
        ("?", ["n"]),
        ("a?b", ["a\nb"]),
        ("[mn]ews", ["news"]),
        ("[^n]*", ["a\nb"]),
        ("\\*", []),
    ],
)
def test_patterns(wire: Wire, wire3: Wire, pattern: str, hears: list[str]) -> None:
    wire3("PSUBSCRIBE", pattern)
    channels = ["news", "n", "", "a\nb"]
    assert [wire("PUBLISH", channel, "x") for channel in channels] == [int(channel in hears) for channel in channels]
    assert [wire3.read()[2] for _ in hears] == [channel.encode() for channel in channels if channel in hears]


def test_a_message_comes_once_per_subscription(wire: Wire, sub: Wire) -> None:
    sub.send("SUBSCRIBE", "news")
    sub.send("PSUBSCRIBE", "n*", "*s", "x")
    for _ in range(4):
        sub.read()
    assert wire("PUBLISH", "news", "x") == 3
    assert [sub.read()[:2] for _ in range(3)] == [
        [b"message", b"news"],
        [b"pmessage", b"n*"],
        [b"pmessage", b"*s"],
    ]


def test_names_are_bytes(wire: Wire, sub: Wire) -> None:
    name = b"\xff\0\r\n"
    sub("SUBSCRIBE", name)
    assert wire("PUBLISH", name, name) == 1
    assert sub.read() == [b"message", name, name]


def test_who_leaves_hears_no_more(server: Running, wire: Wire) -> None:
    for ending in ("UNSUBSCRIBE", "RESET", "QUIT"):
        sub = server.wire()
        sub("SUBSCRIBE", "news")
        assert wire("PUBLISH", "news", "x") == 1
        sub.read()
        sub(ending)
        assert wire("PUBLISH", "news", "x") == 0
    assert server.server.pubsub.active is False


def test_pubsub_looks(wire: Wire, sub: Wire, other: Wire) -> None:
    assert wire("PUBSUB", "CHANNELS") == []
    assert wire("PUBSUB", "NUMSUB") == []
    for client in (sub, other):
        client("SUBSCRIBE", "news")
        client("PSUBSCRIBE", "n*")
    sub("SUBSCRIBE", "sport")
    sub("PSUBSCRIBE", "s*")
    assert sorted(wire("PUBSUB", "CHANNELS")) == [b"news", b"sport"]
    assert wire("PUBSUB", "CHANNELS", "n*") == [b"news"]
    assert wire("PUBSUB", "NUMSUB", "news", "sport", "n*") == [b"news", 2, b"sport", 1, b"n*", 0]
    assert wire("PUBSUB", "NUMPAT") == 2  # patterns, not clients
    assert b"pubsub_channels:2\r\npubsub_patterns:2\r\n" in wire("INFO", "stats")
    assert wire.error("PUBSUB", "CHANNELS", "a", "b").startswith("ERR unknown subcommand or wrong number of arguments")
    assert wire.error("PUBSUB", "DANCE") == "ERR unknown subcommand 'DANCE'. Try PUBSUB HELP."


# Order


def test_own_messages_come_behind_the_reply(wire3: Wire) -> None:
    """Within one read too: confirmation, reply, message, each behind what was sent before it (as Redis since 7.2)."""
    wire3.sock.sendall(
        pack("PING")
        + pack("SUBSCRIBE", "news")
        + pack("PUBLISH", "news", "1")
        + pack("ECHO", "x")
        + pack("PUBLISH", "news", "2")
        + pack("PING")
    )
    assert [wire3.read() for _ in range(8)] == [
        "PONG",
        [b"subscribe", b"news", 1],
        1,
        [b"message", b"news", b"1"],
        b"x",
        1,
        [b"message", b"news", b"2"],
        "PONG",
    ]


def test_own_messages_come_behind_replies_of_threads(wire3: Wire) -> None:
    """KEYS over many keys is answered by a thread; what follows it has to wait."""
    wire3.pipeline(*(("MEM.CREATE", f"k{n}", "MODE", "SEARCH") for n in range(1200)))
    wire3("SUBSCRIBE", "news")
    wire3.sock.sendall(pack("KEYS", "k1199") + pack("PUBLISH", "news", "x") + pack("PING"))
    assert [wire3.read() for _ in range(4)] == [[b"k1199"], 1, [b"message", b"news", b"x"], "PONG"]


def test_messages_keep_their_order(wire: Wire, sub: Wire) -> None:
    sub("SUBSCRIBE", "news")
    assert wire.pipeline(*(("PUBLISH", "news", n) for n in range(1000))) == [1] * 1000
    assert [sub.read()[2] for _ in range(1000)] == [b"%d" % n for n in range(1000)]


def test_writes_are_announced_behind_their_reply(wire3: Wire) -> None:
    wire3("MEM.CREATE", "user:1", "MODE", "SEARCH")
    wire3("PSUBSCRIBE", "__mem__:user:*")
    wire3.send("MEM.ADD", "user:1", "TEXT", "one")
    assert wire3.read() == b"1"
    message = wire3.read()
    assert isinstance(message, Push)
    assert message == [b"pmessage", b"__mem__:user:*", b"__mem__:user:1", b"add 1"]


# Many, and slow ones


def test_thousands_of_channels_and_patterns(wire: Wire, sub: Wire) -> None:
    names = [f"c:{n}" for n in range(5000)]
    sub.send("SUBSCRIBE", *names)
    sub.send("PSUBSCRIBE", *(f"{name}?*" for name in names[:1000]))
    assert [sub.read()[2] for _ in range(6000)] == list(range(1, 6001))
    assert wire("PUBLISH", "c:4999", "x") == 4  # the channel, c:4?*, c:49?* and c:499?*
    assert wire("PUBLISH", "c:12", "x") == 2
    assert [sub.read()[-1] for _ in range(6)] == [b"x"] * 6
    assert wire("PUBSUB", "NUMPAT") == 1000
    sub.send("UNSUBSCRIBE")
    sub.send("PUNSUBSCRIBE")
    assert [sub.read()[2] for _ in range(6000)] == list(range(5999, -1, -1))
    assert wire("PUBSUB", "NUMPAT") == 0


def test_a_hostile_pattern_costs_nothing(wire: Wire, sub: Wire) -> None:
    """A matcher that goes back for each star would take years over these."""
    sub("PSUBSCRIBE", "a*" * 40 + "b")
    assert wire.pipeline(*[("PUBLISH", "a" * 200, "x")] * 20) == [0] * 20
    assert wire("PUBLISH", "a" * 200 + "b", "x") == 1


def test_a_reader_too_slow_is_cut_off(running: Start) -> None:
    """client-output-buffer-limit pubsub: the others go on hearing, the publisher waits for nobody."""
    server = running(client_output_buffer_limit="pubsub 1mb 0 0")
    slow, quick, wire = server.wire(), server.wire(), server.wire()
    slow("SUBSCRIBE", "news")
    quick("SUBSCRIBE", "news")
    text = "x" * 100_000
    sent = 0
    while wire("PUBLISH", "news", text) == 2:
        assert len(quick.read()[2]) == 100_000
        sent += 1
        assert sent < 1000, "the slow reader was never cut off"
    assert len(quick.read()[2]) == 100_000
    assert wire("PUBSUB", "NUMSUB", "news") == [b"news", 1]
    assert len(server.server.clients) == 2


def test_messages_held_behind_a_thread_count_as_unsent(running: Start) -> None:
    """A message that waits for a reply in front of it is memory too."""
    server = running(client_output_buffer_limit="pubsub 1mb 0 0")
    sub, wire = server.wire(3), server.wire()
    sub("SUBSCRIBE", "news")
    connection = next(client.connection for client in server.server.clients.values() if client.channels)

    async def hold() -> None:
        connection._wait_for(server.server.loop.create_future(), 3, False)

    asyncio.run_coroutine_threadsafe(hold(), server.server.loop).result(PATIENCE_S)
    published = 0
    while wire("PUBLISH", "news", "x" * 100_000):
        published += 1
        assert published < 100
    assert (published - 1) * 100_000 < 1 << 20 < published * 100_000


# Alone


class Ear:
    """What PubSub needs of a client."""

    def __init__(self) -> None:
        self.channels: set[bytes] = set()
        self.patterns: set[bytes] = set()
        self.heard: list[tuple[object, ...]] = []

    def push(self, message: tuple[object, ...]) -> None:
        self.heard.append(message)


def ear() -> Client:
    return Ear()  # type: ignore[return-value]


def test_drop_leaves_nothing_behind() -> None:
    pubsub, one, two = PubSub(), ear(), ear()
    for client in (one, two):
        pubsub.subscribe(client, b"a")
        pubsub.subscribe_pattern(client, b"a*")
    pubsub.drop(one)
    assert pubsub.publish(b"a", b"x") == 2
    assert (one.channels, one.patterns, one.heard) == (set(), set(), [])  # type: ignore[attr-defined]
    pubsub.drop(two)
    assert not pubsub.active
    assert (pubsub.channels, pubsub.patterns, pubsub._compiled) == ({}, {}, {})


# Against redis-server


NAMES = st.lists(st.sampled_from(["a", "b", "ab", "*", "a*", "?", "[ab]", "a\\*"]), max_size=3)
COMMANDS = st.one_of(
    st.builds(lambda command, names: (command, *names), st.sampled_from(["SUBSCRIBE", "PSUBSCRIBE"]), NAMES),
    st.builds(
        lambda command, names: (command, *names),
        st.sampled_from(["UNSUBSCRIBE", "PUNSUBSCRIBE"]),
        NAMES.filter(bool),  # all at once: in Redis in an order of its own
    ),
    st.sampled_from([("PING",), ("PING", "x"), ("EXISTS", "a"), ("RESET",)]),
)
STEPS = st.one_of(
    st.tuples(st.just(0), COMMANDS),
    st.tuples(
        st.just(1),
        st.one_of(
            st.tuples(st.just("PUBLISH"), st.sampled_from(["a", "b", "ab", "*"]), st.just("x")),
            st.sampled_from([("PUBSUB", "NUMSUB", "a", "b"), ("PUBSUB", "NUMPAT"), ("PUBSUB", "CHANNELS", "ab")]),
        ),
    ),
)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[list[Wire], list[Wire]]]:
    """A subscriber and a publisher of each server."""
    with Running() as ours, redis_server(tmp_path_factory.mktemp("redis")) as path:
        yield [ours.wire(), ours.wire()], [connect(path), connect(path)]


@needs_redis
@pytest.mark.parametrize("protocol", [2, 3])
@given(steps=st.lists(STEPS, max_size=25))
def test_as_redis_does(
    both: tuple[list[Wire], list[Wire]], protocol: int, steps: list[tuple[int, tuple[Word, ...]]]
) -> None:
    """All that the subscriber and the publisher are sent, byte by byte."""
    said = []
    for sub, publisher in both:
        sub("RESET")
        sub("HELLO", protocol)
        frames: list[bytes] = []
        for client, words in steps:
            if client == 1:
                frames.append(publisher.raw(*words))
            else:
                sub.send(*words)
                frames += until_answered(sub, words)
                if words[0] == "RESET":
                    sub("HELLO", protocol)
        sub.send("PING", "the end")
        frames += until_answered(sub, ("PING", "the end"))
        said.append(frames)
    assert said[0] == said[1]


def until_answered(sub: Wire, words: tuple[Word, ...]) -> list[bytes]:
    """The frames up to the last answer to `words`, messages before it included.

    Which of several patterns comes first is Redis's hash table's affair, so messages in a row are sorted.
    """
    left = max(1, len(words) - 1) if "SUBSCRIBE" in str(words[0]) else 1
    frames: list[bytes] = []
    messages: list[bytes] = []
    while left:
        frame = next_reply(sub)
        if b"message\r\n" in frame:
            messages.append(frame)
        else:
            frames += [*sorted(messages), frame]
            messages.clear()
            left -= 1
    return frames
