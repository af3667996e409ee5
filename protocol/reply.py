"""Reply values that Python has no type for.

A handler answers with plain Python values and `encoder.encode` knows what they become:

    bytes, str      bulk string                 int             integer
    float           RESP3 double, RESP2 bulk    bool            RESP3 boolean, RESP2 integer
    None            null (RESP2 `$-1`)          list, tuple     array
    dict            RESP3 map, RESP2 flat array of pairs

and the types here say the rest.
"""

from __future__ import annotations

from typing import Any


class SimpleString(str):
    """`+OK`: a status line, without CR or LF."""

    __slots__ = ()


class ErrorReply:
    """`-ERR message`: an error as a value, as EXEC's array may hold one. Line breaks become spaces."""

    __slots__ = ("message",)

    def __init__(self, message: str) -> None:
        self.message = message

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ErrorReply) and other.message == self.message

    def __hash__(self) -> int:
        return hash(self.message)

    def __repr__(self) -> str:
        return f"ErrorReply({self.message!r})"


class Push(tuple[Any, ...]):
    """Out-of-band data (a pub/sub message): RESP3 `>`, RESP2 an ordinary array."""

    __slots__ = ()


class SetReply(tuple[Any, ...]):
    """Unordered members: RESP3 `~`, RESP2 an array."""

    __slots__ = ()


class Verbatim(str):
    """Text for people (INFO): RESP3 `=..txt:`, RESP2 a bulk string."""

    __slots__ = ()


class Replies(tuple[Any, ...]):
    """Several replies to one command, one behind the other (SUBSCRIBE to three channels), or none at all.

    Inside an array it takes one place, whatever it holds: that is how Redis counts SUBSCRIBE in EXEC's reply.
    """

    __slots__ = ()


class Ready:
    """The bytes of a reply that is too large to be copied once more; the same in both protocols."""

    __slots__ = ("data",)

    def __init__(self, data: bytes) -> None:
        self.data = data


class Encoded(bytes):
    """A reply, or a part of one, that is in the client's protocol already."""

    __slots__ = ()


class NullArrayType:
    """An array that is not there (EXEC aborted by WATCH): RESP2 `*-1`, RESP3 `_`."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "NULL_ARRAY"


OK = SimpleString("OK")
QUEUED = SimpleString("QUEUED")
PONG = SimpleString("PONG")
NULL_ARRAY = NullArrayType()
