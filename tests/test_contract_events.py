"""What is published on `__mem__:<key>`: one event per record, for those who may see the change by then."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from harness import Clock, Running, Wire, Word


class Listener:
    """A subscriber to the events of `ns`, and the writer that causes them."""

    def __init__(self, server: Running) -> None:
        self.writer = server.wire()
        self.reader = server.wire()
        self.reader("SUBSCRIBE", "__mem__:ns")

    def events(self, *commands: tuple[Word, ...] | list[Word]) -> list[bytes]:
        """What the commands cause. A message of ours marks the end: a channel keeps its order."""
        for words in commands:
            self.writer(*words)
        self.writer("PUBLISH", "__mem__:ns", "the end")
        seen: list[bytes] = []
        while True:
            kind, channel, message = self.reader.read()
            assert (kind, channel) == (b"message", b"__mem__:ns")
            if message == b"the end":
                return seen
            seen.append(message)


@pytest.fixture
def ns(server: Running) -> Iterator[Listener]:
    listener = Listener(server)
    listener.writer("MEM.CREATE", "ns", "MODE", "SEARCH")
    listener.events()
    yield listener
    listener.reader.close()
    listener.writer.close()


def test_add_and_replace(ns: Listener) -> None:
    assert ns.events(("MEM.ADD", "ns", "TEXT", "t")) == [b"add 1"]
    assert ns.events(("MEM.ADD", "ns", "ID", "x", "TEXT", "t")) == [b"add x"]
    assert ns.events(("MEM.ADD", "ns", "ID", "x", "TEXT", "u")) == [b"add x"]


def test_one_per_record(ns: Listener) -> None:
    batch = ("MEM.MADD", "ns", 3, "RECORD", "TEXT", "t", "RECORD", "ID", "x", "TEXT", "t", "RECORD", "TEXT", "t")
    assert ns.events(batch) == [b"add 1", b"add x", b"add 2"]
    assert ns.events(("MEM.DEL", "ns", "1", "nobody", "2")) == [b"del 1", b"del 2"]


def test_delete(ns: Listener) -> None:
    ns.events(("MEM.ADD", "ns", "ID", "x", "TEXT", "t"))
    assert ns.events(("MEM.DEL", "ns", "nobody")) == []
    assert ns.events(("MEM.DEL", "ns", "x")) == [b"del x"]


def test_forget(ns: Listener) -> None:
    ns.events(*(("MEM.ADD", "ns", "ID", name, "TEXT", "t") for name in "abc"))
    assert ns.events(("MEM.FORGET", "ns", "FILTER", "@id", "NE", "b", "DRYRUN")) == []
    assert sorted(ns.events(("MEM.FORGET", "ns", "FILTER", "@id", "NE", "b"))) == [b"del a", b"del c"]


def test_meta(ns: Listener) -> None:
    ns.events(("MEM.ADD", "ns", "ID", "x", "TEXT", "t"))
    assert ns.events(("MEM.SETMETA", "ns", "x", "f", 1, "g", 2)) == [b"meta x"]
    assert ns.events(("MEM.DELMETA", "ns", "x", "f", "g")) == [b"meta x"]


def test_ttl_when_a_deadline_is_set(ns: Listener) -> None:
    ns.events(("MEM.ADD", "ns", "ID", "x", "TEXT", "t"))
    assert ns.events(("MEM.EXPIRE", "ns", "x", 10)) == [b"ttl x"]
    assert ns.events(("MEM.EXPIRE", "ns", "nobody", 10)) == []
    assert ns.events(("MEM.ADD", "ns", "ID", "y", "TEXT", "t", "TTL", 10)) == [b"add y", b"ttl y"]


def test_expire_when_it_passes(ns: Listener, clock: Clock) -> None:
    ns.events(
        ("MEM.ADD", "ns", "ID", "x", "TEXT", "t", "TTL", 10), ("MEM.ADD", "ns", "ID", "y", "TEXT", "t", "TTL", 20)
    )
    clock.advance(9_999)
    assert ns.events(("MEM.CARD", "ns")) == []
    clock.advance(1)
    assert ns.events(("MEM.CARD", "ns")) == [b"expire x"]
    assert ns.events(("MEM.CARD", "ns")) == []


def test_expire_by_itself(ns: Listener, clock: Clock) -> None:
    """Nobody asks for the memory; the event comes all the same."""
    ns.events(("MEM.ADD", "ns", "ID", "x", "TEXT", "t", "TTL", 10))
    clock.advance(10_000)
    assert ns.reader.read() == [b"message", b"__mem__:ns", b"expire x"]


def test_reads_and_refused_commands_say_nothing(ns: Listener) -> None:
    ns.events(("MEM.ADD", "ns", "ID", "x", "TEXT", "t"))
    assert ns.events(("MEM.SEARCH", "ns", "t"), ("MEM.GET", "ns", "x"), ("MEM.SCAN", "ns", 0)) == []
    ns.writer.error("MEM.ADD", "ns", "ID", "x", "TEXT", "t", "NX")
    ns.writer.error("MEM.MADD", "ns", 2, "RECORD", "TEXT", "t", "RECORD", "TEXT", "t", "TTL", 0)
    ns.writer.error("MEM.SETMETA", "ns", "nobody", "f", "v")
    assert ns.events() == []


def test_exec_announces_what_it_wrote(ns: Listener) -> None:
    transaction: list[tuple[Word, ...]] = [
        ("MULTI",),
        ("MEM.ADD", "ns", "ID", "x", "TEXT", "t"),
        ("MEM.SETMETA", "ns", "x", "f", "v"),
        ("MEM.DEL", "ns", "x"),
        ("EXEC",),
    ]
    assert ns.events(*transaction) == [b"add x", b"meta x", b"del x"]


def test_names_may_be_any_bytes(server: Running) -> None:
    key, name = b"\x00 \r\n\xff", b"a\x00\n\xfe"
    reader, writer = server.wire(), server.wire()
    reader("PSUBSCRIBE", b"__mem__:*")
    writer("MEM.CREATE", key, "MODE", "SEARCH")
    writer("MEM.ADD", key, "ID", name, "TEXT", "t")
    assert reader.read() == [b"pmessage", b"__mem__:*", b"__mem__:" + key, b"add " + name]
    reader.close()
    writer.close()


def test_resp3_subscribers_get_pushes_beside_replies(server: Running) -> None:
    wire: Wire = server.wire(3)
    wire("SUBSCRIBE", "__mem__:ns")
    wire.send("MEM.CREATE", "ns", "MODE", "SEARCH")
    assert wire.read() == "OK"
    wire.send("MEM.ADD", "ns", "ID", "x", "TEXT", "t")
    replies = [wire.read(), wire.read()]
    assert b"x" in replies
    assert [b"message", b"__mem__:ns", b"add x"] in replies
    wire.close()
