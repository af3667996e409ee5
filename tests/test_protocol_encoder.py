"""Replies: each kind of value in RESP2 and RESP3 byte for byte, then read back by hiredis."""

from __future__ import annotations

import collections
import enum
import math
import struct
from typing import Any, NamedTuple

import hiredis
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recalld.protocol.encoder import MANY, encode, encode_within
from recalld.protocol.parser import Parser
from recalld.protocol.reply import (
    NULL_ARRAY,
    OK,
    PONG,
    QUEUED,
    ErrorReply,
    Push,
    Replies,
    SetReply,
    SimpleString,
    Verbatim,
)


def read(data: bytes, **options: Any) -> Any:
    """Read one reply with hiredis; nothing may be left over."""
    reader = hiredis.Reader(**options)
    reader.feed(data)
    reply = reader.gets()
    assert not reader.has_data()
    return reply


# What a handler returns, and what a client gets on RESP2 and on RESP3.
REPLIES: dict[str, tuple[object, bytes, bytes]] = {
    "OK": (OK, b"+OK\r\n", b"+OK\r\n"),
    "PONG": (PONG, b"+PONG\r\n", b"+PONG\r\n"),
    "QUEUED": (QUEUED, b"+QUEUED\r\n", b"+QUEUED\r\n"),
    "simple string": (SimpleString("memory"), b"+memory\r\n", b"+memory\r\n"),
    "simple string, empty": (SimpleString(""), b"+\r\n", b"+\r\n"),
    "simple string, line breaks": (SimpleString("a\r\n+b"), b"+a  +b\r\n", b"+a  +b\r\n"),
    "error": (ErrorReply("ERR no"), b"-ERR no\r\n", b"-ERR no\r\n"),
    "error, line breaks": (ErrorReply("ERR a\r\nb\nc\r"), b"-ERR a  b c \r\n", b"-ERR a  b c \r\n"),
    "error, not ASCII": (ErrorReply("ERR ü"), "-ERR ü\r\n".encode(), "-ERR ü\r\n".encode()),
    "error, client's bytes": (ErrorReply("ERR '\udcff'"), b"-ERR '\xff'\r\n", b"-ERR '\xff'\r\n"),
    "bytes": (b"abc", b"$3\r\nabc\r\n", b"$3\r\nabc\r\n"),
    "bytes, empty": (b"", b"$0\r\n\r\n", b"$0\r\n\r\n"),
    "bytes, binary": (b"\r\n\0\xff", b"$4\r\n\r\n\0\xff\r\n", b"$4\r\n\r\n\0\xff\r\n"),
    "bytes, 1023": (b"x" * 1023, b"$1023\r\n" + b"x" * 1023 + b"\r\n", b"$1023\r\n" + b"x" * 1023 + b"\r\n"),
    "bytes, 1024": (b"x" * 1024, b"$1024\r\n" + b"x" * 1024 + b"\r\n", b"$1024\r\n" + b"x" * 1024 + b"\r\n"),
    "bytearray": (bytearray(b"abc"), b"$3\r\nabc\r\n", b"$3\r\nabc\r\n"),
    "memoryview": (memoryview(b"abc"), b"$3\r\nabc\r\n", b"$3\r\nabc\r\n"),
    "memoryview, every other": (memoryview(b"abcde")[::2], b"$3\r\nace\r\n", b"$3\r\nace\r\n"),
    "memoryview, of float32": (
        memoryview(struct.pack("f", 1)).cast("f"),
        b"$4\r\n\0\0\x80?\r\n",
        b"$4\r\n\0\0\x80?\r\n",
    ),
    "str": ("abc", b"$3\r\nabc\r\n", b"$3\r\nabc\r\n"),
    "str, length in bytes": ("ü€", b"$5\r\n\xc3\xbc\xe2\x82\xac\r\n", b"$5\r\n\xc3\xbc\xe2\x82\xac\r\n"),
    "str, client's bytes": ("a\udc80\udcff", b"$3\r\na\x80\xff\r\n", b"$3\r\na\x80\xff\r\n"),
    "verbatim": (Verbatim("# Server\r\n"), b"$10\r\n# Server\r\n\r\n", b"=14\r\ntxt:# Server\r\n\r\n"),
    "verbatim, length in bytes": (Verbatim("ü"), b"$2\r\n\xc3\xbc\r\n", b"=6\r\ntxt:\xc3\xbc\r\n"),
    "integer": (12, b":12\r\n", b":12\r\n"),
    "integer, negative": (-1, b":-1\r\n", b":-1\r\n"),
    "integer, largest": (2**63 - 1, b":9223372036854775807\r\n", b":9223372036854775807\r\n"),
    "integer, least": (-(2**63), b":-9223372036854775808\r\n", b":-9223372036854775808\r\n"),
    "integer, larger": (2**63, b"$19\r\n9223372036854775808\r\n", b"(9223372036854775808\r\n"),
    "integer, less": (-(2**63) - 1, b"$20\r\n-9223372036854775809\r\n", b"(-9223372036854775809\r\n"),
    "true": (True, b":1\r\n", b"#t\r\n"),
    "false": (False, b":0\r\n", b"#f\r\n"),
    "float": (0.85, b"$4\r\n0.85\r\n", b",0.85\r\n"),
    "float, whole": (1.0, b"$1\r\n1\r\n", b",1\r\n"),
    "float, nought": (0.0, b"$1\r\n0\r\n", b",0\r\n"),
    "float, minus nought": (-0.0, b"$2\r\n-0\r\n", b",-0\r\n"),
    "float, tiny": (1e-7, b"$5\r\n1e-07\r\n", b",1e-07\r\n"),
    "float, huge": (1e300, b"$6\r\n1e+300\r\n", b",1e+300\r\n"),
    "float, all digits": (0.1 + 0.2, b"$19\r\n0.30000000000000004\r\n", b",0.30000000000000004\r\n"),
    "infinity": (math.inf, b"$3\r\ninf\r\n", b",inf\r\n"),
    "minus infinity": (-math.inf, b"$4\r\n-inf\r\n", b",-inf\r\n"),
    "not a number": (math.nan, b"$3\r\nnan\r\n", b",nan\r\n"),
    "null": (None, b"$-1\r\n", b"_\r\n"),
    "null array": (NULL_ARRAY, b"*-1\r\n", b"_\r\n"),
    "list": ([b"a", 1], b"*2\r\n$1\r\na\r\n:1\r\n", b"*2\r\n$1\r\na\r\n:1\r\n"),
    "list, empty": ([], b"*0\r\n", b"*0\r\n"),
    "tuple": ((b"a", 1), b"*2\r\n$1\r\na\r\n:1\r\n", b"*2\r\n$1\r\na\r\n:1\r\n"),
    "set": (SetReply((b"a", b"b")), b"*2\r\n$1\r\na\r\n$1\r\nb\r\n", b"~2\r\n$1\r\na\r\n$1\r\nb\r\n"),
    "push": (Push((b"message", 1)), b"*2\r\n$7\r\nmessage\r\n:1\r\n", b">2\r\n$7\r\nmessage\r\n:1\r\n"),
    "map": (
        {"a": 1, "b": 0.5},
        b"*4\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n$3\r\n0.5\r\n",
        b"%2\r\n$1\r\na\r\n:1\r\n$1\r\nb\r\n,0.5\r\n",
    ),
    "replies": (Replies((Push((b"a",)), 1)), b"*1\r\n$1\r\na\r\n:1\r\n", b">1\r\n$1\r\na\r\n:1\r\n"),
    "replies, none": (Replies(()), b"", b""),
    "map, empty": ({}, b"*0\r\n", b"%0\r\n"),
    "map, keys of other types": (
        {b"a": None, 1: True, 0.5: [], SimpleString("s"): {}},
        b"*8\r\n$1\r\na\r\n$-1\r\n:1\r\n:1\r\n$3\r\n0.5\r\n*0\r\n+s\r\n*0\r\n",
        b"%4\r\n$1\r\na\r\n_\r\n:1\r\n#t\r\n,0.5\r\n*0\r\n+s\r\n%0\r\n",
    ),
    "same key as str and status": (
        [{"OK": 1}, {OK: 2}, {"OK": 3}],
        b"*3\r\n*2\r\n$2\r\nOK\r\n:1\r\n*2\r\n+OK\r\n:2\r\n*2\r\n$2\r\nOK\r\n:3\r\n",
        b"*3\r\n%1\r\n$2\r\nOK\r\n:1\r\n%1\r\n+OK\r\n:2\r\n%1\r\n$2\r\nOK\r\n:3\r\n",
    ),
    "nested": (
        [[1, [2, (3, {"a": {"b": SetReply((None,))}})]], ErrorReply("ERR x"), NULL_ARRAY],
        b"*3\r\n*2\r\n:1\r\n*2\r\n:2\r\n*2\r\n:3\r\n*2\r\n$1\r\na\r\n*2\r\n$1\r\nb\r\n*1\r\n$-1\r\n-ERR x\r\n*-1\r\n",
        b"*3\r\n*2\r\n:1\r\n*2\r\n:2\r\n*2\r\n:3\r\n%1\r\n$1\r\na\r\n%1\r\n$1\r\nb\r\n~1\r\n_\r\n-ERR x\r\n_\r\n",
    ),
}


class Colour(enum.IntEnum):
    RED = 7


class Mode(enum.StrEnum):
    HYBRID = "hybrid"


class Pair(NamedTuple):
    a: int
    b: bytes


# Subclasses go by their nearest base, whatever their own repr is.
SUBCLASSES: dict[str, tuple[object, object]] = {
    "IntEnum": (Colour.RED, 7),
    "StrEnum": (Mode.HYBRID, "hybrid"),
    "NamedTuple": (Pair(1, b"x"), (1, b"x")),
    "OrderedDict": (collections.OrderedDict(a=1), {"a": 1}),
    "defaultdict": (collections.defaultdict(int, a=1), {"a": 1}),
    "numpy.float64": (np.float64(0.85), 0.85),
}

UNKNOWN: dict[str, object] = {
    "object": object(),
    "set": {1},
    "frozenset": frozenset(),
    "complex": 1j,
    "type": int,
    "generator": (n for n in ""),
    "range": range(2),
    "float32": np.float32(0.5),
    "int64": np.int64(1),
    "ndarray": np.zeros(2),
}


@pytest.mark.parametrize("proto", [2, 3])
class TestEncode:
    """encode on both protocols."""

    @pytest.mark.parametrize("name", REPLIES)
    def test_bytes(self, name: str, proto: int) -> None:
        """Alone and among others."""
        reply, *expected = REPLIES[name]
        wire = expected[proto - 2]
        assert encode(reply, proto) == wire
        assert type(encode(reply, proto)) is bytes
        assert encode([1, reply, reply], proto) == b"*3\r\n:1\r\n" + wire + wire
        head = b"*2\r\n$1\r\nk\r\n" if proto == 2 else b"%1\r\n$1\r\nk\r\n"
        assert encode({"k": reply}, proto) == head + wire

    @pytest.mark.parametrize("name", SUBCLASSES)
    def test_subclasses(self, name: str, proto: int) -> None:
        """As the base they come from."""
        reply, same = SUBCLASSES[name]
        assert encode(reply, proto) == encode(same, proto)
        assert encode([reply], proto) == encode([same], proto)
        assert encode({"a": reply}, proto) == encode({"a": same}, proto)

    @pytest.mark.parametrize("name", UNKNOWN)
    def test_unknown(self, name: str, proto: int) -> None:
        """TypeError with the type's name, wherever in the reply it is."""
        reply = UNKNOWN[name]
        for broken in (reply, [1, reply], {"a": [reply]}, SetReply((reply,))):
            with pytest.raises(TypeError, match=f"no encoding for a reply of type {name}$"):
                encode(broken, proto)

    def test_big_value(self, proto: int) -> None:
        """20 MB out and back, by hiredis as a client and by our parser as a server."""
        value = bytes(range(256)) * 78_125
        wire = encode([b"ECHO", value], proto)
        assert read(wire) == [b"ECHO", value]
        parser = Parser()
        for begin in range(0, len(wire), 65536):
            parser.feed(wire[begin : begin + 65536])
            command = parser.next_command()
        assert command == [b"ECHO", value]

    def test_many_hits(self, proto: int) -> None:
        """1000 maps of 10 fields."""
        hits = [
            {"id": b"%d" % n, "score": n / 7, "text": f"hit {n}", "tags": [b"a", b"b"], "created_at": n, "meta": None}
            | {f"field{i}": b"x" * i for i in range(4)}
            for n in range(1000)
        ]
        reply = read(encode(hits, proto))
        if proto == 2:
            reply = [dict(zip(hit[::2], hit[1::2], strict=True)) for hit in reply]
        assert len(reply) == 1000
        for n, hit in enumerate(reply):
            assert hit[b"id"] == b"%d" % n
            assert float(hit[b"score"]) == n / 7
            assert hit[b"text"] == b"hit %d" % n
            assert hit[b"tags"] == [b"a", b"b"]
            assert hit[b"created_at"] == n
            assert hit[b"meta"] is None
            assert [hit[b"field%d" % i] for i in range(4)] == [b"x" * i for i in range(4)]

    @given(number=st.floats())
    def test_floats_read_back(self, number: float, proto: int) -> None:
        """The same number, to the bit (but for nan's payload)."""
        digits = read(encode(number, proto)) if proto == 2 else encode(number, proto)[1:-2]
        assert (
            math.isnan(float(digits))
            if math.isnan(number)
            else struct.pack("d", float(digits)) == struct.pack("d", number)
        )
        assert not digits.endswith(b".0")

    @given(raw=st.binary())
    def test_client_bytes_survive(self, raw: bytes, proto: int) -> None:
        """Bytes decoded for a message are the same bytes in it."""
        text = raw.decode(errors="surrogateescape")
        assert read(encode(text, proto)) == raw
        assert read(encode([text], proto)) == [raw]
        line = raw.replace(b"\r", b" ").replace(b"\n", b" ")
        assert encode(ErrorReply(text), proto) == b"-" + line + b"\r\n"
        assert encode(SimpleString(text), proto) == b"+" + line + b"\r\n"


def test_protocol_must_be_known() -> None:
    """There is no RESP1."""
    with pytest.raises(KeyError):
        encode(OK, 1)


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.binary(max_size=40),
    st.text(max_size=20),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=5), inner, max_size=5),
    max_leaves=20,
)


def as_read(value: object, proto: int) -> object:
    """What hiredis makes of a value's encoding."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, list):
        return [as_read(item, proto) for item in value]
    if isinstance(value, dict):
        pairs = [(key.encode(), as_read(item, proto)) for key, item in value.items()]
        return dict(pairs) if proto == 3 else [word for pair in pairs for word in pair]
    if proto == 2 and isinstance(value, bool):
        return int(value)
    if proto == 2 and isinstance(value, float):
        return repr(value).removesuffix(".0").encode()
    return value


@given(VALUES, st.sampled_from([2, 3]))
def test_hiredis_reads_it_back(value: object, proto: int) -> None:
    """Any nesting of any values (up to hiredis's depth)."""
    wire = encode(value, proto)
    reader = hiredis.Reader()
    reader.feed(wire + encode(PONG, proto))
    reply = reader.gets()
    assert reply == as_read(value, proto)
    assert type(reply) is type(as_read(value, proto))
    assert reader.gets() == b"PONG"


@pytest.mark.parametrize("proto", [2, 3])
def test_a_reply_with_a_limit(proto: int) -> None:
    """As without one up to the limit to the byte, None beyond it; a list is given up before all of it is made."""
    made = 0

    class Counted(str):
        def encode(self, *args: Any, **options: Any) -> bytes:
            nonlocal made
            made += 1
            return super().encode(*args, **options)

    items: list[Any] = [{"id": b"x" * 100, "meta": {"a": 1.5}}, [1, None, b"y"], b"z" * 50, "text"] * MANY
    whole = encode(items, proto)
    assert encode_within(items, proto, 0) == encode_within(items, proto, len(whole)) == whole
    assert encode_within(items, proto, len(whole) - 1) is None
    assert encode_within(b"x" * 100, proto, 1) == encode(b"x" * 100, proto)  # one value is as large as it is stored
    assert encode_within([Counted("x" * 100)] * 1_000, proto, 1_000) is None
    assert 0 < made < 20
