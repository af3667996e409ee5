"""Clients that mean harm, or behave as if they did: memory stays bounded, what is refused is refused in words, and
other clients are served throughout.

The server is a process. Its memory is the peak of its resident set (`Abused.growth_mb`), which the kernel keeps, so
nothing is missed between two looks. That others are served is counted, never timed: a client that asks PING all along
(`Abused.served`) has every one answered, and more than none of them while the abuse goes on.
"""

from __future__ import annotations

import random
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from conftest import NOT_COMPILED
from durable import eventually
from harness import Process, Wire, WireError, Word, pack
from recalld.server import (
    command_modules,  # noqa: F401
    filter_words,
)
from recalld.server.arguments import Words
from recalld.server.categories import every_command
from recalld.server.commands import TABLE
from recalld.server.config import Config
from recalld.server.dispatch import _TAKES_LONG
from recalld.server.errors import ERROR_CHARS, CommandError

MB = 1 << 20


class Abused(Process):
    """A server that keeps nothing, and what it costs."""

    def __init__(self, dir: Path, *words: str) -> None:
        super().__init__(dir, "--appendonly", "no", *words)

    def _kb(self, name: str) -> int:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(rf"^{name}:\s+(\d+) kB$", status, re.MULTILINE)
        assert found is not None
        return int(found[1])

    @contextmanager
    def growth_mb(self, most: int) -> Iterator[None]:
        """What happens inside takes no more than this at any moment."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")  # the peak begins anew
        before = self._kb("VmRSS")
        yield
        grown = (self._kb("VmHWM") - before) // 1024
        assert grown <= most, f"{grown} MB, {most} are allowed"

    @contextmanager
    def served(self) -> Iterator[None]:
        """Another client asks PING while this goes on, and has all of them answered."""
        wire = self.wire()
        over = threading.Event()
        answered = 0
        failed: list[BaseException] = []

        def ask() -> None:
            nonlocal answered
            try:
                while not over.is_set() or answered < 3:
                    assert wire("PING") == "PONG"
                    answered += 1
            except BaseException as error:
                failed.append(error)

        asker = threading.Thread(target=ask, daemon=True)
        asker.start()
        try:
            eventually(lambda: answered > 0 or bool(failed))
            before = answered
            yield
            eventually(lambda: answered > before or bool(failed))
        finally:
            over.set()
            asker.join()
            wire.close()
        assert not failed, failed

    def info(self, name: str) -> int:
        wire = self.wire()
        found = re.search(rb"^%s:(\d+)" % name.encode(), wire("INFO", "everything"), re.MULTILINE)
        wire.close()
        assert found is not None, name
        return int(found[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Abused]:
    """A server with small limits; its memory `k` has 5000 records of 20 words, `t` twelve texts of some 36 KB."""
    with Abused(
        tmp_path_factory.mktemp("abuse"),
        *("--client-query-buffer-limit", "16mb"),
        *("--client-output-buffer-limit", "normal 32mb 0 0 pubsub 8mb 2mb 1"),
        *("--proto-max-bulk-len", "4mb"),
    ) as server:
        wire, rng = server.wire(), random.Random(1)
        words = [f"word{n}" for n in range(2000)]
        wire("MEM.CREATE", "k", "MODE", "SEARCH")
        for begin in range(0, 5000, 500):
            for reply in wire.pipeline(
                *(
                    ["MEM.ADD", "k", "ID", f"i{n}", "TEXT", " ".join(rng.choices(words, k=20)), "META", "f", str(n)]
                    for n in range(begin, begin + 500)
                )
            ):
                assert not isinstance(reply, WireError), reply
        wire("MEM.CREATE", "t", "MODE", "SEARCH")
        for n in range(12):
            wire("MEM.ADD", "t", "ID", f"i{n}", "TEXT", f"w{n} " * 12_000)
        wire("MEM.QUERY", "k", "TEXT", "word1 word2", "FILTER", "f", "GT", "5")
        if not NOT_COMPILED:  # the loops that it wants: they weigh more than what any test may take
            eventually(lambda: any("compiled loops" in line for line in server.log))
        wire.close()
        yield server
        assert server.process.poll() is None


def closed(sock: socket.socket) -> bool:
    """Whether the server has hung up, once all it sent is read."""
    with suppress(OSError):
        while sock.recv(1 << 16):
            pass
    return True


# -- those who do not read


def test_large_replies_wait_for_their_reader_few_at_a_time(server: Abused) -> None:
    """Sixty-four replies of some 4 MB are asked for and not read: a few are made, the rest when there is room."""
    ask = pack("MEM.MGET", "t", *(f"i{n % 12}" for n in range(120)))
    with server.served(), server.growth_mb(60):
        sock = server.raw()
        sock.sendall(ask * 64)
        with server.served():  # it has come so far, and no farther
            pass
        wire = Wire(sock)
        for _ in range(64):
            assert len(wire.read()) == 120
        wire.close()


def test_a_pipeline_whose_replies_nobody_reads(server: Abused) -> None:
    """A hundred thousand queries, none of whose replies is read: they stop running once the socket takes no more."""
    ask = pack("MEM.GET", "t", "i1") * 100
    with server.served(), server.growth_mb(60):
        sock = server.raw()
        sock.settimeout(0.5)
        sent = 0
        with suppress(OSError):
            while sent < 64 * MB:
                sent += sock.send(ask)
        sock.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_subscriber_that_does_not_read_is_cut_off_at_the_hard_limit(server: Abused, protocol: int) -> None:
    """8 MB, however much is published."""
    slow, other = server.wire(protocol), server.wire()
    slow("SUBSCRIBE", "news")
    before = server.info("client_output_buffer_limit_disconnections")
    with server.served(), server.growth_mb(60):
        for _ in range(64):
            other("PUBLISH", "news", b"x" * MB)
        assert server.info("client_output_buffer_limit_disconnections") == before + 1
    assert other("PUBLISH", "news", "x") == 0
    assert closed(slow.sock)


def test_a_subscriber_over_the_soft_limit_is_cut_off_though_nothing_more_is_published(server: Abused) -> None:
    """Over 2 MB for a second: the periodic task sees it, no further message is needed."""
    slow, other = server.wire(), server.wire()
    slow.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    slow("SUBSCRIBE", "soft")
    for _ in range(7):
        other("PUBLISH", "soft", b"x" * MB)
    assert other("PUBSUB", "NUMSUB", "soft") == [b"soft", 1]
    with server.served():
        eventually(lambda: other("PUBSUB", "NUMSUB", "soft") == [b"soft", 0])


def test_a_reply_over_the_limit_of_normal_clients(server: Abused) -> None:
    """One reply of some 45 MB that is not read: the client goes, not the server."""
    sock = server.raw()
    before = server.info("client_output_buffer_limit_disconnections")
    with server.served(), server.growth_mb(220):
        sock.sendall(pack("MEM.MGET", "t", *(f"i{n % 12}" for n in range(1200))))
        eventually(lambda: server.info("client_output_buffer_limit_disconnections") == before + 1)
    sock.close()


def test_one_record_asked_for_again_and_again(server: Abused) -> None:
    """640 MB of reply for a request of 50 KB: the client may not have it, and the server does not make it."""
    wire = server.wire()
    wire("MEM.CREATE", "again", "MODE", "SEARCH")
    wire("MEM.ADD", "again", "ID", "x", "TEXT", "a " * 32_000)
    with server.growth_mb(150), pytest.raises(EOFError):
        wire("MEM.MGET", "again", *["x"] * 10_000)
    with server.growth_mb(60):
        assert len(server.wire()("MEM.MGET", "again", *["x"] * 100, "missing")) == 101


def test_the_queries_of_a_client_that_has_gone_are_not_run(server: Abused) -> None:
    """A long pipeline of dear queries and a close: what has not begun by then is dropped with its client."""
    words = " ".join(f"word{n}" for n in range(1000))
    wire = server.wire()
    with server.served():
        for _ in range(8):
            sock = server.raw()
            sock.sendall(pack("MEM.QUERY", "k", "TEXT", words, "TOPK", 1000, "EXPLAIN") * 32)
            sock.close()
        assert len(wire("MEM.QUERY", "k", "TEXT", "word1")) == 10


# -- those who only sit there


def test_idle_connections_are_closed_and_subscribers_are_not(tmp_path: Path) -> None:
    """`timeout 1`: a client that says nothing, and one that began a command and never ended it."""
    with Abused(tmp_path, "--timeout", "1") as server:
        silent, half, told, active = server.raw(), server.raw(), server.wire(), server.wire()
        half.sendall(b"*2\r\n$4\r\nECHO\r\n$100\r\nabc")
        told("SUBSCRIBE", "c")
        with server.served():
            assert closed(silent) and closed(half)
        assert told("PING") == [b"pong", b""]
        active.close()


def test_a_half_closed_connection_has_its_replies_and_ends(server: Abused) -> None:
    sock = server.raw()
    sock.sendall(pack("PING") * 1000)
    sock.shutdown(socket.SHUT_WR)
    got = b""
    while data := sock.recv(1 << 16):
        got += data
    assert got == b"+PONG\r\n" * 1000


def test_keepalive_is_on(server: Abused) -> None:
    """The kernel finds peers that are gone without a word: the timer runs on the server's side."""
    wire = server.wire()
    assert wire("CONFIG", "GET", "tcp-keepalive") == [b"tcp-keepalive", b"300"]
    mine, its = f":{wire.sock.getsockname()[1]:04X}", f":{server.port:04X}"  # others of this machine may have either
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    (row,) = [row for row in rows if row[2].endswith(mine) and row[1].endswith(its)]
    assert row[5].startswith("02:"), row  # the keepalive timer runs


def test_a_flood_of_connections(tmp_path: Path) -> None:
    """Over maxclients each is told so; those inside are served, and a place that is free is given away again."""
    with Abused(tmp_path, "--maxclients", "50") as server:
        inside = [server.wire() for _ in range(49)]
        with server.served(), server.growth_mb(20):
            for _ in range(500):
                sock = server.raw()
                assert sock.recv(100) == b"-ERR max number of clients reached\r\n"
                assert sock.recv(1) == b""
                sock.close()
        assert [wire("PING") for wire in inside] == ["PONG"] * 49
        inside.pop().close()

        def again() -> bool:
            with server.raw() as sock:
                sock.sendall(b"PING\r\n")
                return sock.recv(100) == b"+PONG\r\n"

        eventually(again)


def test_connections_that_come_and_go(server: Abused) -> None:
    """They take what so many take that are open at once, some 60 KB each, and leave nothing."""
    before = server.info("connected_clients")
    with server.served(), server.growth_mb(100):
        for _ in range(1000):
            server.raw().close()
    eventually(lambda: server.info("connected_clients") == before)


# -- those who send too much


def test_a_giant_pipeline_is_answered_while_others_are(server: Abused) -> None:
    count = 200_000
    with server.served(), server.growth_mb(80):
        sock = server.raw()
        sender = threading.Thread(target=sock.sendall, args=(pack("PING") * count,))
        sender.start()
        with sock.makefile("rb") as file:
            for _ in range(count):
                assert file.readline() == b"+PONG\r\n"
        sender.join()
        sock.close()


def test_an_announced_argument_over_the_limit(server: Abused) -> None:
    """proto-max-bulk-len: refused at the announcement, before a byte of it has come."""
    with server.growth_mb(10):
        sock = server.raw()
        sock.sendall(b"*2\r\n$4\r\nECHO\r\n$%d\r\n" % (4 * MB + 1))
        assert sock.recv(100) == b"-ERR Protocol error: invalid bulk length\r\n"
        assert closed(sock)


def test_announced_and_never_sent(server: Abused) -> None:
    """Two hundred connections announce a million arguments, or 4 MB, and send nothing of it: that costs nothing."""
    with server.served(), server.growth_mb(20):
        socks = [server.raw() for _ in range(200)]
        for n, sock in enumerate(socks):
            sock.sendall(b"*1048576\r\n" if n % 2 else b"*2\r\n$4\r\nECHO\r\n$%d\r\nabc" % (4 * MB))
        assert server.info("connected_clients") >= 200
        for sock in socks:
            sock.close()


@pytest.mark.parametrize("size", [1, 100, 3 * MB])
def test_a_command_over_the_query_buffer_limit(server: Abused, size: int) -> None:
    """client-query-buffer-limit counts what a command that is not whole yet takes, whatever its arguments' size.

    Thirty-six times the limit are sent at the most; ten times it are what an argument of one byte takes in memory.
    """
    sock = server.raw()
    before = server.info("client_query_buffer_limit_disconnections")
    with server.served(), server.growth_mb(16 * 12):
        sock.sendall(b"*1048576\r\n")
        word = b"$%d\r\n%s\r\n" % (size, b"x" * size)
        block = word * max(1, 65536 // len(word))
        with pytest.raises(OSError):
            for _ in range(36 * 16 * MB // len(block)):
                sock.sendall(block)
        assert server.info("client_query_buffer_limit_disconnections") == before + 1


def test_long_texts(server: Abused) -> None:
    """A text to store is limited; of a query's, no more is read than the words that count."""
    text = b"word1 " * (4 * MB // 6)
    with server.served(), server.growth_mb(60):
        wire = server.wire()
        assert wire.error("MEM.ADD", "k", "TEXT", text) == "ERR text exceeds mem-max-text-bytes (65536)"
        for words in (["MEM.QUERY", "k", "TEXT", text], ["MEM.SEARCH", "k", text], ["MEM.SEARCH", "k", b"x" * 4 * MB]):
            assert len(wire(*words)) <= 10
        wire.close()


# -- those who ask too much


@pytest.mark.parametrize("before", [0, 1])
def test_too_many_tags_are_refused_before_they_are_clauses(monkeypatch: pytest.MonkeyPatch, before: int) -> None:
    config = Config.defaults()
    most = config["mem-max-filters"]
    made: list[int] = []
    tag_clauses = filter_words.filters.tag_clauses
    monkeypatch.setattr(
        filter_words.filters, "tag_clauses", lambda mode, tags: made.append(len(tags)) or tag_clauses(mode, tags)
    )

    def read(mode: bytes, count: int) -> int:
        clauses = filter_words.filters.tag_clauses("ALL", [b"t"] * before)
        made.clear()
        filter_words.read_tags(Words([mode, b"%d" % count, *[b"t"] * count]), clauses, config)
        return len(clauses)

    assert read(b"ALL", most - before) == most
    assert read(b"ANY", 30_000) == before + 1
    with pytest.raises(CommandError, match="mem-max-filters"):
        read(b"ALL", most - before + 1)
    assert not made


def test_settings_of_a_thousand_patterns(server: Abused) -> None:
    with server.served():
        wire = server.wire()
        patterns = [b"%03d" % n + b"[a-z]" * 200 for n in range(1000)]
        assert wire.error("CONFIG", "GET", *patterns).startswith("ERR more than 200 names or patterns")
        assert wire.error("CONFIG", "GET", *patterns[:100]).startswith("ERR patterns of more than 4096 bytes")
        wire.close()


def filters(count: int) -> list[Word]:
    return [word for n in range(count) for word in ("FILTER", "f", "NE", str(n))]


QUERY: list[Word] = ["MEM.QUERY", "k", "TEXT", " ".join(f"word{n}" for n in range(5000))]
DEEP: list[tuple[list[Word], str]] = [
    ([*QUERY, *filters(128)], ""),
    (["MEM.EXPLAIN", "k", "i1", *QUERY[2:], *filters(128)], ""),
    ([*QUERY, *filters(5000)], "ERR more than mem-max-filters (128) filters"),
    (["MEM.EXPLAIN", "k", "i1", *QUERY[2:], *filters(5000)], "ERR more than mem-max-filters (128) filters"),
    ([*QUERY, "TAGS", "ANY", 20_000, *range(20_000)], ""),
    ([*QUERY, "TAGS", "ALL", 20_000, *range(20_000)], "ERR more than mem-max-filters (128) filters"),
    ([*QUERY, "FILTER", "f", "IN", ",".join(map(str, range(100_000)))], ""),
    ([*QUERY, "ACROSS", 20_000, *(f"none{n}" for n in range(20_000))], ""),
    ([*QUERY, "TOPK", 1000, "EXPLAIN", "WITHMETA", "WITHSCORES"], ""),
    (["MEM.QUERY", "k", "FVEC", 2_000_000_000, 1, 2], "ERR "),
    (["MEM.MGET", "k", *(f"i{n % 6000}" for n in range(20_000))], ""),
    (["MEM.DEL", "none", *range(20_000)], "ERR no such memory index"),
    (["EXISTS", *range(32_000)], ""),
]


@pytest.mark.parametrize("number", range(len(DEEP)))
def test_deep_queries(server: Abused, number: int) -> None:
    words, error = DEEP[number]
    with server.served(), server.growth_mb(100):
        wire = server.wire()
        wire.send(*words)
        reply = wire.read()
        assert str(reply).startswith(error) if error else not isinstance(reply, WireError), reply
        wire.close()


def test_transactions(server: Abused) -> None:
    """MULTI within MULTI is refused each time and fails the transaction; one of 50 000 commands runs."""
    with server.served(), server.growth_mb(100):
        wire = server.wire()
        replies = wire.pipeline(["MULTI"], *[["MULTI"]] * 5000, ["EXEC"])
        assert set(map(str, replies[1:-1])) == {"ERR MULTI calls can not be nested"}
        assert replies[-1] in ([], WireError("EXECABORT Transaction discarded because of previous errors."))
        replies = wire.pipeline(["MULTI"], *[["PING"]] * 50_000, ["EXEC"])
        assert replies[-1] == ["PONG"] * 50_000
        wire.close()


@pytest.mark.parametrize("word, count", [(b"", 50_000), (bytes(20_000), 1000)])
def test_a_transaction_that_is_too_large_to_keep(server: Abused, word: bytes, count: int) -> None:
    """What it held goes at once, EXEC refuses it, and the next one is as ever."""
    wire, other = server.wire(), server.wire()
    wire("CONFIG", "SET", "client-query-buffer-limit", "8mb")
    with server.served(), server.growth_mb(60):
        replies = wire.pipeline(["MULTI"], *[["ECHO", word]] * count)
        refusals = [n for n, reply in enumerate(replies) if isinstance(reply, WireError)]
        assert refusals == [(8 << 20) // (len(word) + 4 + 6 * 48) + 1]
        refusal = "ERR the commands of the transaction exceed client-query-buffer-limit (8388608 bytes)"
        assert str(replies[refusals[0]]) == refusal
        assert b" multi-mem=0 " in next(line for line in other("CLIENT", "LIST").splitlines() if b" multi=0 " in line)
    assert wire.error("EXEC").startswith("EXECABORT")
    assert wire.pipeline(["MULTI"], ["ECHO", "x"], ["EXEC"])[-1] == [b"x"]
    wire("CONFIG", "SET", "client-query-buffer-limit", "1gb")
    wire.close()
    other.close()


@pytest.mark.parametrize(
    "command",
    [("MEM.GET", "t", "i0"), ("MEM.LIST", "t", "LIMIT", "12"), ("MEM.QUERY", "t", "TEXT", "w1 w2 w3", "TOPK", "12")],
    ids=" ".join,
)
def test_a_transaction_whose_reply_is_too_large(server: Abused, command: tuple[Word, ...]) -> None:
    """The same texts again and again, 400 MB of reply to a request of 400 KB: the client is cut off, as by any reply
    over client-output-buffer-limit, before that is made."""
    times = 12_000 // (1 if command[0] == "MEM.GET" else 12)
    before = server.info("client_output_buffer_limit_disconnections")
    with server.served(), server.growth_mb(150):
        sock = server.raw()
        sock.sendall(pack("MULTI") + pack(*command) * times + pack("EXEC"))
        assert closed(sock)
        assert server.info("client_output_buffer_limit_disconnections") == before + 1


def test_a_transaction_that_writes_is_done_whatever_it_replies(server: Abused) -> None:
    """What it has read is dropped with its client, what it has written stays, behind the reads as well."""
    wire = server.wire()
    wire("MEM.CREATE", "w", "MODE", "SEARCH")
    sock = server.raw()
    add = pack("MEM.ADD", "w", "TEXT", "kept")
    sock.sendall(pack("MULTI") + add + pack("MEM.GET", "t", "i0") * 2_000 + add + pack("EXEC"))
    assert closed(sock)
    eventually(lambda: wire("MEM.CARD", "w") == 2)
    wire("DEL", "w")
    wire.close()


# -- patterns


HOSTILE = [
    b"*a" * 5000 + b"b",
    b"*" * 60_000 + b"b",
    b"*" + b"a" * 20_000 + b"b*",
    b"*a?" * 340 + b"b",
    b"*[a]" * 250 + b"b",
    b"[^b]" * 256,
    b"[" * 1024,
    b"*" + b"?" * 1000 + b"b*",
]


@pytest.mark.parametrize("pattern", HOSTILE, ids=range(len(HOSTILE)))
def test_patterns_made_to_take_forever(server: Abused, pattern: bytes) -> None:
    """They match a key, and a channel, of 4 KB of `a` in no remarkable time, and take little to remember."""
    key = b"a" * 4096
    with server.served(), server.growth_mb(60):
        wire, told = server.wire(), server.wire(3)
        wire("MEM.CREATE", key, "MODE", "SEARCH")
        assert wire("KEYS", pattern) == []
        assert wire("SCAN", 0, "MATCH", pattern, "COUNT", 100)[1] == []
        assert wire("PUBSUB", "CHANNELS", pattern) == []
        if len(pattern) > 4096:
            assert told.error("PSUBSCRIBE", pattern) == f"ERR a pattern of {len(pattern)} bytes exceeds 4096"
        else:
            told("PSUBSCRIBE", pattern)
        assert wire("PUBLISH", key, "x") == 0
        wire("DEL", key)
        told.close()
        wire.close()


def test_a_pattern_that_would_take_long_to_compile(server: Abused) -> None:
    wire = server.wire()
    refusal = "ERR a pattern with ? [ or \\ may have 1024 bytes at most, this one has 64000"
    with server.served(), server.growth_mb(10):
        for words in (["KEYS"], ["PSUBSCRIBE"], ["SCAN", 0, "MATCH"], ["PUBSUB", "CHANNELS"]):
            assert wire.error(*words, b"[^a]" * 16_000) == (
                "ERR a pattern of 64000 bytes exceeds 4096" if words == ["PSUBSCRIBE"] else refusal
            )
    assert wire.error("PSUBSCRIBE", "good*", b"?" * 1025).startswith("ERR a pattern")
    assert wire("PING") == "PONG"  # no subscriber, not even of the good one
    wire.close()


def test_very_many_subscriptions(server: Abused) -> None:
    """Twenty thousand channels and as many patterns of one client, some of them slow."""
    count = 20_000
    with server.served(), server.growth_mb(80):
        told, other = server.wire(3), server.wire()
        told.send("SUBSCRIBE", *(f"c{n}" for n in range(count)))
        told.send("PSUBSCRIBE", *(f"*p{n}*q*" if n < 5000 else f"p{n}*q" for n in range(count)))
        assert [told.read()[2] for _ in range(2 * count)] == list(range(1, 2 * count + 1))
        assert other("PUBLISH", "p7q", "x") == 1
        assert other("PUBLISH", "c7", "x") == 1
        told.close()
        eventually(lambda: other("PUBSUB", "NUMPAT") == 0)
        other.close()


WORDY: list[tuple[Word, ...]] = [
    ("EXISTS",),
    ("DEL",),
    ("WATCH",),
    ("SUBSCRIBE",),
    ("PSUBSCRIBE",),
    ("MEM.MGET", "k"),
    ("MEM.ADD", "k", "TEXT", "x", "TAGS", 32_768),
    ("MEM.ENTITY", "k", "name"),
    ("MEM.QUERY", "k", "TEXT", "x", "ACROSS", 32_768),
    ("ACL", "SETUSER", "someone"),
    ("NOTHING",),
]


@pytest.mark.parametrize("command", WORDY, ids=lambda command: str(command[0]))
def test_more_words_than_a_command_may_have(server: Abused, command: tuple[Word, ...]) -> None:
    """One too many is refused in words, changes nothing, and the connection goes on."""
    with server.served():
        wire = server.wire(3)
        error = wire.error(*command, *[f"w{n}" for n in range(32_769 - len(command))])
        known = "ERR a command of 32769 words exceeds max-command-words (32768); send it as several"
        assert error.startswith("ERR unknown command 'NOTHING'") if command[0] == "NOTHING" else error == known
        assert wire("PUBSUB", "NUMPAT") == 0 and wire("PING") == "PONG"
        wire.close()


def test_as_many_words_as_a_command_may_have(server: Abused) -> None:
    wire = server.wire()
    assert wire("EXISTS", "k", *["t"] * 32_766) == 32_767
    wire("CONFIG", "SET", "max-command-words", 2000)
    assert "2001 words exceeds max-command-words (2000)" in wire.error("EXISTS", *["t"] * 2000)
    wire("CONFIG", "SET", "max-command-words", 32_768)
    words = [word for n in range(12_000) for word in ("RECORD", "TEXT", f"w{n}")]
    wire("MEM.CREATE", "many", "MODE", "SEARCH")
    assert len(wire("MEM.MADD", "many", 12_000, *words)) == 12_000  # 36 003: a thread reads them
    wire("DEL", "many")
    wire.close()


def test_more_names_than_a_connection_may_hold(server: Abused) -> None:
    """However they come; those that it has already do not count again, and what is refused adds none."""
    wire = server.wire(3)
    wire("CONFIG", "SET", "max-client-names", 10)
    names = [f"n{n}" for n in range(11)]
    for command, what in (("WATCH", "watched keys"), ("SUBSCRIBE", "channels"), ("PSUBSCRIBE", "patterns")):
        refusal = f"ERR 11 {what} of one connection exceed max-client-names (10)"
        assert wire.error(command, *names) == refusal
        for part in (names[:6], names[:10]):
            wire.send(command, *part)
            for _ in part if command != "WATCH" else part[:1]:
                wire.read()
        assert wire.error(command, names[10]) == refusal
    assert len(wire("PUBSUB", "CHANNELS")) == wire("PUBSUB", "NUMPAT") == 10
    assert server.info("total_watched_keys") == 10
    wire("CONFIG", "SET", "max-client-names", 65_536)
    wire.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_very_many_subscriptions_are_made_by_and_by(server: Abused, protocol: int) -> None:
    """What stands behind the command waits for the last."""
    names = [f"n{n}" for n in range(3000)]
    wire = server.wire(protocol)
    for kind in ("subscribe", "psubscribe", "unsubscribe", "punsubscribe"):
        wire.send(kind, *(() if kind.startswith(("u", "pu")) else names))
        wire.send("PING")
        told = [wire.read() for _ in names]
        assert {bytes(each[0]) for each in told} == {kind.encode()}
        assert sorted(each[1] for each in told) == sorted(name.encode() for name in names)
        assert wire.read() in ("PONG", [b"pong", b""])
    wire.close()


def test_very_many_subscriptions_in_a_transaction(server: Abused) -> None:
    """They are made at once, in its reply."""
    wire = server.wire(3)
    commands: list[list[Word]] = [["MULTI"], ["SUBSCRIBE", *range(3000)], ["PING"], ["EXEC"]]
    for command in commands:
        wire.send(*command)
    assert [wire.read() for _ in range(3)] == ["OK", "QUEUED", "QUEUED"]
    assert server.info("pubsub_channels") == 3000
    wire.close()


@pytest.fixture(scope="module")
def roomy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Abused]:
    """A server that takes words of any length."""
    with Abused(tmp_path_factory.mktemp("roomy")) as server:
        server.wire()("MEM.CREATE", "k", "MODE", "SEARCH")
        yield server


LONG: list[tuple[Word, ...]] = [
    ("ECHO",),
    ("MEM.QUERY", "k", "TEXT"),
    ("MEM.ADD", "k", "TEXT", "x", "ID"),
    ("MEM.FACT", "k", "ann", "likes"),
    ("PSUBSCRIBE",),
    (),
]


@pytest.mark.parametrize("command", LONG, ids=lambda command: str(command[0]) if command else "a name")
def test_a_word_that_is_far_too_long(roomy: Abused, command: tuple[Word, ...]) -> None:
    """It is refused in words, held once and let go; what follows is as ever."""
    size = 60 << 20
    with roomy.served(), roomy.growth_mb(150):
        wire = roomy.wire()
        behind = (b"tea",) if command[:1] == ("MEM.FACT",) else ()
        wire.send(*command, b"x" * size, *behind)
        wire.send("PING")
        error, pong = wire.read(), wire.read()
        if command:
            name = str(command[0]).lower()
            words = size + sum(len(str(word)) for word in command) + sum(map(len, behind))
            refusal = f"ERR a command of {words} bytes exceeds the {32 << 20} that '{name}' takes"
            assert error == WireError(refusal)
        else:
            assert str(error).startswith("ERR unknown command 'xxx")
        assert pong == "PONG"
        wire.close()


# Commands that have no use for long words.
SHORT: list[tuple[Word, ...]] = [
    ("AUTH", "default"),
    ("HELLO", 3),
    ("CLIENT", "KILL"),
    ("ACL", "CAT"),
    ("ACL", "SETUSER", "someone"),
    ("ACL", "DRYRUN", "default"),
    ("INFO",),
    ("CONFIG", "SET", "requirepass"),
    ("COMMAND", "LIST", "FILTERBY", "ACLCAT"),
    ("COMMAND", "GETKEYS", "MEM.ADD", "k", "TEXT"),
    ("LATENCY", "HISTOGRAM"),
    ("EXPIRE", "k", 1000),
    ("RENAME", "k"),
    ("KEYS",),
    ("MEM.CREATE", "new", "MODEL"),
    ("MEM.CONFIG", "k", "LANG"),
    ("MEM.ENTITIES", "k", "TYPE"),
    ("MEM.AUDIT", "k", "ACCESSOR"),
]


@pytest.mark.parametrize("command", SHORT, ids=lambda command: "_".join(map(str, command)))
def test_a_long_word_where_none_is_of_use(roomy: Abused, command: tuple[Word, ...]) -> None:
    """One, or several that are put together at once: refused in words before any is looked at."""
    with roomy.served():
        wire = roomy.wire(3)
        known = TABLE[str(command[0]).lower()]
        name = known.subcommands[str(command[1]).lower()].name if known.subcommands else known.name
        head = sum(len(str(word)) for word in command)
        for behind in ((b"\xff" * (31 << 20),), (b"\xff" * 900_000,) * 25):
            if known.arity > 0 and len(command) + len(behind) != known.arity:
                continue
            size = head + sum(map(len, behind))
            error = wire.error(*command, *behind)
            assert error == f"ERR a command of {size} bytes exceeds the {1 << 20} that '{name}' takes"
        assert wire("EXISTS", "k", "new") == 1 and wire("TTL", "k") == -1 and wire("PING") == "PONG"
        wire.close()


def test_words_that_are_taken_where_long_ones_are_not(roomy: Abused) -> None:
    wire = roomy.wire()
    half = b"x" * (1 << 19)
    assert wire.error("CLIENT", "KILL", half) == "ERR No such client"
    assert wire.error("EXPIRE", "k", 1, half).startswith("ERR Unsupported option xxx")
    wire.close()


def test_the_commands_that_take_long_words_are_commands() -> None:
    assert {entry.name for entry in every_command()} >= _TAKES_LONG


FF = b"\xff" * (31 << 20)
NO_FLOAT = "ERR value is not a valid float"
# Where one long word of bytes that are no UTF-8 stands, and how the error begins.
SHOWN: list[tuple[tuple[Word, ...], str]] = [
    (("MEM.ADD", "k", "TEXT", "x", FF), "ERR unexpected argument '"),
    (("MEM.ADD", "k", "TEXT", "x", "AT", FF), "ERR '"),
    (("MEM.ADD", "k", "TEXT", "x", "IMPORTANCE", FF), NO_FLOAT),
    (("MEM.ADD", "k", "TEXT", "x", "KIND", FF), "ERR syntax error"),
    (("MEM.QUERY", "k", "TEXT", "x", "WEIGHTS", FF, 1, 1, 1), NO_FLOAT),
    (("MEM.QUERY", "k", "FVEC", 1, FF), NO_FLOAT),
    (("MEM.QUERY", "k", "TEXT", "x", "TIER", FF), "ERR syntax error"),
    (("MEM.FACTS", "k", FF), "ERR unexpected argument '"),
    (("MEM.FACTS", "k", "ENTITY", FF), "ERR ENTITY exceeds mem-max-text-bytes (65536)"),
    (("MEM.FACT", "k", "ann", "likes", FF), "ERR object exceeds 500 characters"),
    (("MEM.INVALIDATE", "k", "1", "AT", FF), "ERR '"),
    (("MEM.LIST", "k", "FILTER", "a", FF, 1), "ERR bad filter clause 'a "),
    (("MEM.LIST", "k", "FILTER", "@" + "a" * 1_000_000, "EQ", 1), "ERR bad filter clause '@aaa"),
]


@pytest.mark.parametrize(("command", "refusal"), SHOWN, ids=[f"{words[0]}-{n}" for n, (words, _) in enumerate(SHOWN)])
def test_of_a_long_word_an_error_reads_what_it_shows(roomy: Abused, command: tuple[Word, ...], refusal: str) -> None:
    with roomy.served(), roomy.growth_mb(80):  # the word itself, held once while it comes and once when it is whole
        wire = roomy.wire()
        error = wire.error(*command)
        assert error.startswith(refusal)
        assert error == refusal or len(error) == len("ERR ") + ERROR_CHARS + len("...")
        assert wire("MEM.CARD", "k") == 0 and wire("PING") == "PONG"
        wire.close()


def test_a_literal_text_that_no_record_can_hold(roomy: Abused) -> None:
    with roomy.served(), roomy.growth_mb(80):
        wire = roomy.wire()
        assert wire("MEM.QUERY", "k", "TEXT", FF, "TIER", "LIKE") == []
        wire.close()


@pytest.mark.parametrize("command", ["GETKEYS", "GETKEYSANDFLAGS"])
def test_very_many_keys_to_be_listed(server: Abused, command: str) -> None:
    """Not words: a vector may have more."""
    wire = server.wire()
    keys = [f"w{n}" for n in range(1001)]
    assert len(wire("COMMAND", command, "DEL", *keys[:1000])) == 1000
    assert wire.error("COMMAND", command, "DEL", *keys) == "ERR more than 1000 keys; ask with fewer at a time"
    assert len(wire("COMMAND", command, "MEM.QUERY", "k", "FVEC", 1536, *[1] * 1536)) == 1
    wire.close()


def test_long_words_that_are_taken(roomy: Abused) -> None:
    """Those up to the limit, a payload, and a record whose text and metadata may be so long; within MULTI one that is
    too long fails it."""
    wire, size = roomy.wire(), 33 << 20
    assert len(wire("ECHO", b"x" * (30 << 20))) == 30 << 20
    assert wire.error("RESTORE", "new", 0, b"x" * size).startswith("ERR DUMP payload")
    more = f"exceeds the {32 << 20} that"
    for command in (("RESTORE", b"x" * size, 0, "x"), ("RESTORE", "new", 0, "x", b"x" * size)):
        assert f" bytes {more} 'restore' takes" in wire.error(*command)
    for key, value in ((b"x" * size, "x"), ("k", b"x" * size)):
        refusal = f"ERR a word of {size} bytes {more} 'mem.madd' takes"
        assert wire.error("MEM.MADD", key, 1, "RECORD", "TEXT", value) == refusal
    for vector in (("VEC", bytes(4 * 65_537)), ("FVEC", 65_537, *[1] * 65_537)):
        error = wire.error("MEM.MADD", "k", 1, "RECORD", "TEXT", "x", *vector)
        assert error == "ERR record 1: vector has 65537 dimensions; a memory index takes at most 65536"
    wire("CONFIG", "SET", "mem-max-text-bytes", "40mb")
    meta = ("META", "more", b"x" * (1_000_000))
    assert wire("MEM.ADD", "k", "ID", "long", "TEXT", b"x" * (40 << 20), *meta) == b"long"
    wire("MEM.DEL", "k", "long")
    wire("CONFIG", "SET", "mem-max-text-bytes", "65536")
    wire("MULTI")
    assert wire.error("ECHO", b"x" * size).startswith("ERR a command of")
    assert wire.error("EXEC").startswith("EXECABORT")
    wire.close()


@pytest.mark.parametrize("count, size", [(2, 31 << 20), (33, 1 << 20), (40, 900_000), (3000, 12_000)])
def test_words_that_are_too_many_bytes_together(roomy: Abused, count: int, size: int) -> None:
    """Each of them may be as long, and the same may be said in several commands."""
    with roomy.served():
        wire = roomy.wire(3)
        keys = [b"%04d" % n + bytes(size - 4) for n in range(count)]
        for command in ("DEL", "WATCH", "PSUBSCRIBE", "NOTHING"):
            error = wire.error(command, *keys)
            name = command.lower()
            words = f"ERR a command of {count * size + len(name)} bytes exceeds the {32 << 20} that '{name}' takes"
            assert error.startswith(words if command != "NOTHING" else "ERR unknown command 'NOTHING'")
        assert wire("PUBSUB", "NUMPAT") == 0 and wire("EXISTS", keys[0]) == 0
        wire.close()


def test_an_error_shows_no_more_of_a_word_than_is_read(roomy: Abused) -> None:
    wire = roomy.wire()
    word = b"w" * (2 << 20)
    for behind in ((word, "x"), ("AT", word)):
        error = wire.error("MEM.ADD", "k", "TEXT", "x", *behind)
        assert "wwwww" in error and error.endswith("...") and len(error) < 4200


def test_who_hangs_up_behind_a_long_word_is_answered(roomy: Abused) -> None:
    sock = roomy.raw()
    sock.sendall(pack("ECHO", b"x" * (8 << 20)) + pack("PING"))
    sock.shutdown(socket.SHUT_WR)
    answer = b""
    while data := sock.recv(1 << 20):
        answer += data
    assert answer.endswith(b"xxx\r\n+PONG\r\n") and len(answer) > 8 << 20
    sock.close()


def test_metadata_is_bounded(server: Abused) -> None:
    """Id, metadata and tags together, by whichever command; what is refused changes nothing."""
    wire = server.wire()
    wire("CONFIG", "SET", "mem-max-meta-bytes", 1000)
    refusal = "ERR id, metadata and tags together exceed mem-max-meta-bytes (1000)"
    wire("MEM.CREATE", "meta", "MODE", "SEARCH")
    wire("MEM.ADD", "meta", "ID", "r", "TEXT", "x", "META", "f", "v" * 900, "TAGS", 1, "t" * 98)
    wire("MEM.FACT", "meta", "ann", "likes", "tea", "ID", "f", "META", "f", "v" * 998)
    refused: list[tuple[Word, ...]] = [
        ("MEM.SETMETA", "meta", "r", "g", ""),
        ("MEM.ADD", "meta", "ID", "r", "TEXT", "y", "META", "g", ""),
        ("MEM.ADD", "meta", "ID", "i" * 1001, "TEXT", "y"),
        ("MEM.MADD", "meta", 2, "RECORD", "TEXT", "y", "RECORD", "TEXT", "y", "META", "g", "v" * 1000),
        ("MEM.FACT", "meta", "ann", "likes", "tea", "META", "g", "v"),
        ("MEM.FACT", "meta", "ann", "likes", "rice", "TAGS", 1, "t" * 1001),
    ]
    before = [wire("MEM.CARD", "meta"), wire("MEM.GET", "meta", "r", "WITHMETA"), wire("MEM.GET", "meta", "f")]
    for command in refused:
        assert wire.error(*command).replace("ERR record 2: ", "ERR ") == refusal, command
    assert before == [wire("MEM.CARD", "meta"), wire("MEM.GET", "meta", "r", "WITHMETA"), wire("MEM.GET", "meta", "f")]
    assert wire("MEM.SETMETA", "meta", "r", "f", "v" * 899) == 0
    wire("CONFIG", "SET", "mem-max-meta-bytes", 500)
    assert wire("MEM.SETMETA", "meta", "r", "f", "v" * 898) == 0, "what is there may shrink"
    assert wire("MEM.ADD", "meta", "ID", "r", "TEXT", "another") == b"r", "and stay"
    assert wire.error("MEM.SETMETA", "meta", "r", "f", "v" * 899) == refusal.replace("1000", "500")
    assert wire("MEM.FACT", "meta", "ann", "likes", "tea", "CONFIDENCE", 0.5) == b"f"
    assert wire("MEM.DELMETA", "meta", "r", "g") == 0 and wire("MEM.DELMETA", "meta", "r", "f") == 1
    wire("CONFIG", "SET", "mem-max-meta-bytes", "1mb")
    wire("DEL", "meta")
    wire.close()


# -- bytes that are no commands


NO_COMMANDS: list[tuple[bytes, str]] = [
    (b"GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: y\r\n\r\n", ""),
    (b"POST / HTTP/1.1\r\nContent-Length: 20\r\n\r\nFLUSHALL\r\n", ""),
    (b"*-1\r\n*0\r\n\r\n\r\nPING\r\n", r"\+PONG\r\n$"),
    (b"*1\r\n$-1\r\n", r"-ERR Protocol error: invalid bulk length\r\n$"),
    (b"*1\r\n$-9223372036854775809\r\n", r"-ERR Protocol error: invalid bulk length\r\n$"),
    (b"*2147483648\r\n", r"-ERR Protocol error: invalid multibulk length\r\n$"),
    (b"*99999999999999999999999\r\n", r"-ERR Protocol error: invalid multibulk length\r\n$"),
    (b"*1\r\n:5\r\n", r"-ERR Protocol error: expected '\$', got ':'\r\n$"),
    (b'SET "a', ""),
    (b'ECHO "a"b\r\n', r"-ERR Protocol error: unbalanced quotes in request\r\n$"),
    (b"x" * 70_000, r"-ERR Protocol error: too big inline request\r\n$"),
    (b"*" + b"1" * 70_000, r"-ERR Protocol error: too big mbulk count string\r\n$"),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)) * 2, ""),
    (b"\x00" * 1000, ""),
]


@pytest.mark.parametrize("number", range(len(NO_COMMANDS)))
def test_bytes_that_are_no_commands(server: Abused, number: int) -> None:
    """Whole, and with pauses between any two pieces."""
    data, expected = NO_COMMANDS[number]
    with server.served(), server.growth_mb(10):
        for piece in (len(data), 1 + len(data) // 20):
            sock = server.raw()
            with suppress(OSError):  # it may have hung up in the middle
                for at in range(0, len(data), piece):
                    sock.sendall(data[at : at + piece])
                sock.shutdown(socket.SHUT_WR)
            got = b""
            with suppress(ConnectionError):
                while more := sock.recv(1 << 16):
                    got += more
            if piece == len(data) or got:
                assert re.search(expected.encode(), got), got
            sock.close()


def test_random_bytes(server: Abused) -> None:
    """And commands that were cut or changed: the connection ends or goes on, the server does."""
    rng = random.Random(7)
    whole = pack("MEM.QUERY", "k", "TEXT", "word1 word2", "FILTER", "f", "GT", "5") + pack("MULTI") + pack("EXEC")
    with server.served(), server.growth_mb(20):
        for _ in range(300):
            data = bytearray(whole if rng.random() < 0.7 else rng.randbytes(rng.randint(1, 2000)))
            for _ in range(rng.randint(0, 4)):
                data[rng.randrange(len(data))] = rng.choice(b"\r\n*$0123456789-\x00\xff")
            sock = server.raw()
            sock.sendall(data[: rng.randint(1, len(data))])
            sock.shutdown(socket.SHUT_WR)
            assert closed(sock)
            sock.close()
