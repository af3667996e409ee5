"""Replies: values in, bytes out.

`reply.py` says which value becomes what. Here is how, where that is not obvious:

    float         the shortest digits that read back as the same number (0.85, 1, 1e-07); inf, -inf, nan
    int           past 64 bits no client reads `:`, so RESP3 gets a big number `(` and RESP2 a bulk string, as in Redis
    str           UTF-8; bytes that were decoded with surrogateescape leave as they came
    line breaks   would end a simple string or an error early, so there they become spaces
    a subclass    is encoded as its nearest base that has an encoding
    any other     raises TypeError with the type's name, and nothing is sent

Microseconds (CPython 3.11, AMD EPYC, best of 25): OK 0.13, an integer 0.2, a short bulk 0.2, a float 0.5, a hit of 10
fields 8, 1000 such hits (half of the fields floats, one a list) 5200, 1000 maps of 10 short bulks 2700, a bulk of 20 MB
1100.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from .reply import (
    OK,
    PONG,
    QUEUED,
    Encoded,
    ErrorReply,
    NullArrayType,
    Push,
    Ready,
    Replies,
    SetReply,
    SimpleString,
    Verbatim,
)

Scalar = Callable[[Any], bytes]

MANY: Final = 64
CRLF: Final = b"\r\n"
# Not a range(): `in` walks through it number by number for a subclass of int.
_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1
_LINE_BREAKS: Final = str.maketrans("\r\n", "  ")
_STATUS: Final = {status: f"+{status}\r\n".encode() for status in (OK, PONG, QUEUED)}
# Made once, as adding three pieces takes 0.1 us and formatting them 0.13.
_SHORT: Final = 1024
_BULK_HEADERS: Final = [b"$%d\r\n" % length for length in range(_SHORT)]
_ARRAY_HEADERS: Final = [b"*%d\r\n" % length for length in range(MANY)]
_float_repr: Final = float.__repr__  # not repr(): a subclass may have its own


def encode(reply: object, proto: int) -> bytes:
    """Return `reply` as RESP2 or RESP3 bytes; `proto` is 2 or 3.

    Raises TypeError if `reply`, or anything in it, has no encoding.
    """
    scalar = _SCALARS[proto].get(type(reply))
    if scalar is not None:
        return scalar(reply)
    parts: list[bytes] = []
    _append(parts, reply, proto, {})
    return b"".join(parts)


def encode_within(reply: object, proto: int, most: int) -> bytes | None:
    """As `encode`; None where that is more than `most` bytes (0: any number), found out before it takes much more.

    A short request can name one large value again and again, which then is one in memory and many in the reply. So a
    list of MANY items or more is added up while it is encoded; what is shorter is not worth that.
    """
    if not most or type(reply) is not list or len(reply) < MANY:
        return encode(reply, proto)
    parts = [b"*%d\r\n" % len(reply)]
    keys: dict[str, bytes] = {}
    size = counted = 0
    scalars = _SCALARS[proto]
    for item in reply:
        scalar = scalars.get(type(item))
        if scalar is not None:
            parts.append(scalar(item))
        else:
            _append(parts, item, proto, keys)
        size += sum(map(len, parts[counted:]))
        counted = len(parts)
        if size > most:
            return None
    return b"".join(parts)


def _append(parts: list[bytes], reply: Any, proto: int, keys: dict[str, bytes]) -> None:
    """Append a reply of any type. `keys` holds the map keys encoded so far: a list of hits repeats them."""
    scalars, prefixes = _SCALARS[proto], _PREFIXES[proto]
    kind = type(reply)
    if kind is list or kind is tuple:
        count = len(reply)
        parts.append(_ARRAY_HEADERS[count] if count < MANY else b"*%d\r\n" % count)
        _append_all(parts, reply, proto, keys)
        return
    if kind not in prefixes:
        kind = _base(kind)
        if kind in scalars:
            parts.append(scalars[kind](reply))
            return

    if kind is dict:
        parts.append(b"%b%d\r\n" % (prefixes[dict], len(reply) if proto == 3 else 2 * len(reply)))
        for key, value in reply.items():
            if type(key) is str:
                encoded = keys.get(key)
                if encoded is None:
                    encoded = keys[key] = _string(key)
                parts.append(encoded)
            else:
                _append(parts, key, proto, keys)
            scalar = scalars.get(type(value))
            if scalar is not None:
                parts.append(scalar(value))
            else:
                _append(parts, value, proto, keys)
        return

    if kind is not Replies:
        parts.append(b"%b%d\r\n" % (prefixes[kind], len(reply)))
    _append_all(parts, reply, proto, keys)


def _append_all(parts: list[bytes], items: Iterable[Any], proto: int, keys: dict[str, bytes]) -> None:
    scalars = _SCALARS[proto]
    for item in items:
        kind = type(item)
        if kind is bytes and len(item) < _SHORT:
            parts += _BULK_HEADERS[len(item)], item, CRLF  # _bulk, without a call
            continue
        scalar = scalars.get(kind)
        if scalar is not None:
            parts.append(scalar(item))
        else:
            _append(parts, item, proto, keys)


def _base(kind: type) -> type:
    for base in kind.__mro__:
        if base in _SCALARS[3] or base in _PREFIXES[3]:
            return base
    raise TypeError(f"no encoding for a reply of type {kind.__name__}")


def _bulk(data: bytes) -> bytes:
    length = len(data)
    if length < _SHORT:
        return _BULK_HEADERS[length] + data + CRLF
    return b"".join((b"$%d\r\n" % length, data, CRLF))


def _string(text: str) -> bytes:
    return _bulk(text.encode(errors="surrogateescape"))


def _verbatim(text: str) -> bytes:
    data = text.encode(errors="surrogateescape")
    return b"=%d\r\ntxt:%b\r\n" % (len(data) + 4, data)


def _status(status: SimpleString) -> bytes:
    return _STATUS.get(status) or b"+%b\r\n" % _line(status)


def _error(error: ErrorReply) -> bytes:
    return b"-%b\r\n" % _line(error.message)


def _line(text: str) -> bytes:
    return text.translate(_LINE_BREAKS).encode(errors="surrogateescape")


def _integer(number: int) -> bytes:
    return b":%d\r\n" % number if _INT64_MIN <= number <= _INT64_MAX else b"(%d\r\n" % number


def _integer2(number: int) -> bytes:
    return b":%d\r\n" % number if _INT64_MIN <= number <= _INT64_MAX else _bulk(b"%d" % number)


def _double(number: float) -> bytes:
    return f",{_float_repr(number).removesuffix('.0')}\r\n".encode()


def _double2(number: float) -> bytes:
    return _bulk(_float_repr(number).removesuffix(".0").encode())


def _boolean(flag: bool) -> bytes:
    return b"#t\r\n" if flag else b"#f\r\n"


def _boolean2(flag: bool) -> bytes:
    return b":1\r\n" if flag else b":0\r\n"


_COMMON: Final[dict[type, Scalar]] = {
    bytes: _bulk,
    bytearray: _bulk,
    memoryview: lambda view: _bulk(view.tobytes()),
    str: _string,
    SimpleString: _status,
    ErrorReply: _error,
    Encoded: lambda data: data,
    Ready: lambda reply: reply.data,
}
_SCALARS: Final[dict[int, dict[type, Scalar]]] = {
    2: _COMMON
    | {
        int: _integer2,
        float: _double2,
        bool: _boolean2,
        Verbatim: _string,
        type(None): lambda _: b"$-1\r\n",
        NullArrayType: lambda _: b"*-1\r\n",
    },
    3: _COMMON
    | {
        int: _integer,
        float: _double,
        bool: _boolean,
        Verbatim: _verbatim,
        type(None): lambda _: b"_\r\n",
        NullArrayType: lambda _: b"_\r\n",
    },
}
_PREFIXES: Final[dict[int, dict[type, bytes]]] = {
    2: dict.fromkeys((list, tuple, dict, Push, Replies, SetReply), b"*"),
    3: {list: b"*", tuple: b"*", dict: b"%", Push: b">", Replies: b"", SetReply: b"~"},
}
