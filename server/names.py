"""Names that clients give, of keys and of channels, and patterns: how long one may be, how much a connection may hold
of them, which of many match.

Bounded here, they need no care elsewhere: matching one against a pattern takes some milliseconds at worst (glob.py).
A key that an older log brings may be longer, and can be read, written and deleted like any other.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from ..protocol.encoder import encode
from ..protocol.reply import Encoded
from .errors import CommandError
from .glob import bytes_to_compile, compile_glob, ns_per_byte

if TYPE_CHECKING:
    from .client import Client

# As long as a path may be.
NAME_MAX = 4096
# What one connection's watched keys, channels and patterns may take: each its bytes and some more, a pattern that
# becomes a regular expression this too.
HELD_MAX = 32 << 20
_EACH = 100
_COMPILED = 15
# So many names are looked at on the loop, in about 200 microseconds; with more a thread does, and encodes the reply.
_INLINE = 1000
# The most that patterns which must be searched for may take there.
_INLINE_NS = 3_000_000


def check_name(name: bytes, what: str) -> None:
    """Raises CommandError where a key, channel or pattern that comes into being is too long."""
    if len(name) > NAME_MAX:
        raise CommandError(f"a {what} of {len(name)} bytes exceeds {NAME_MAX}")


def size_of(name: bytes) -> int:
    """What it takes, about, in bytes."""
    return len(name) + _EACH + _COMPILED * bytes_to_compile(name)


def most_size_of(names: Collection[bytes]) -> int:
    """What they take at most, found sooner."""
    return (1 + _COMPILED) * sum(map(len, names)) + _EACH * len(names)


class Names(set[bytes]):
    """Those that a connection holds, and what they take. They change by `add`, `remove` and `clear` alone."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        super().__init__()
        self.size = 0

    def add(self, name: bytes) -> None:
        if name not in self:
            super().add(name)
            self.size += size_of(name)

    def remove(self, name: bytes) -> None:
        super().remove(name)
        self.size -= size_of(name)

    def clear(self) -> None:
        super().clear()
        self.size = 0


def matching(ctx: Client, names: list[bytes], pattern: bytes) -> Any:
    """The reply with those of `names` that match; a thread makes it where that takes long. Raises CommandError."""
    matches = None if pattern == b"*" else compile_glob(pattern).fullmatch

    def those() -> list[bytes]:
        return names if matches is None else [name for name in names if matches(name)]

    if len(names) <= _INLINE and affordable(names, pattern) == len(names):
        return those()
    proto = ctx.proto
    return ctx.background(lambda: Encoded(encode(those(), proto)))


def affordable(names: list[bytes], pattern: bytes) -> int:
    """How many of `names` may be matched on the loop: the first of them always."""
    each = ns_per_byte(pattern)
    if not each or sum(map(len, names)) * each <= _INLINE_NS:
        return len(names)
    left = _INLINE_NS
    for at, name in enumerate(names):
        left -= len(name) * each
        if left < 0:
            return max(at, 1)
    return len(names)
