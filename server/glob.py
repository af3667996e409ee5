"""Redis's glob patterns, for KEYS, SCAN, PSUBSCRIBE and CONFIG GET.

    *        any bytes, none included          [abc] [a-z]   one byte of the class; a range may stand backwards
    ?        one byte                          [^a-z]        one byte that is not in the class
    \\x       x itself, in a class too          [abc          an unclosed class ends with the pattern

Rules, as Redis's `stringmatchlen` has them:

1. The whole value must match. Everything but `*` takes exactly one byte; characters of several bytes have no meaning.
2. The first `]` closes a class: `[]` matches nothing, `[^]` any byte. A `-` is a range where two bytes stand around it,
   whatever they are: `[a-]` is an unclosed class with the range from `]` to `a`.
3. A backslash at the very end stands for itself.
4. `nocase` folds ASCII letters, except those behind a backslash in a class.

Three differences: bytes above 127 order as unsigned (Redis leaves that to the compiler), a pattern of stars alone
matches the empty value everywhere (in Redis only as `*` in KEYS and SCAN), and there is no limit of 1000 stars:
Redis needs one because it recurses at each.

What a client may cost: a pattern of bytes and stars alone is matched by searching for what is between the stars, in
20 ns per byte of the value at worst; it has MAX_STARRED bytes at most. One with `?` or classes becomes a regular
expression, which takes 2 microseconds a byte to compile: it has MAX_BYTES at most. What stands before the first star
and behind the last is tried at one place; what is between them must be searched for, in O(len(between) * len(value)) at
worst: 4 ms for the longest of patterns and names. `ns_per_byte` tells who matches many.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Protocol

from .errors import CommandError

# Longer than any that a person writes; 1024 bytes of classes compile in some 10 ms.
MAX_BYTES = 1024
# More pieces than would fit any name.
MAX_STARRED = 65_536
# Python searches for longer ones in linear time.
_LINEAR = 100

_STAR, _ANY, _OPEN, _CLOSE, _DASH, _ESCAPE = b"*?[]-\\"


class Glob(Protocol):
    """A compiled pattern."""

    def fullmatch(self, value: bytes, /) -> object | None:
        """None where it does not match the whole value."""


class _Pieces:
    """A pattern of bytes and stars: what stands before, between and behind the stars, of which there is one."""

    __slots__ = ("_head", "_least", "_middle", "_tail")

    def __init__(self, head: bytes, middle: list[bytes], tail: bytes) -> None:
        self._head, self._middle, self._tail = head, middle, tail
        self._least = len(head) + sum(map(len, middle)) + len(tail)

    def fullmatch(self, value: bytes, /) -> object | None:
        if len(value) < self._least or not (value.startswith(self._head) and value.endswith(self._tail)):
            return None
        at, end = len(self._head), len(value) - len(self._tail)
        for piece in self._middle:  # the leftmost place is never worse than a later one
            at = value.find(piece, at, end)
            if at < 0:
                return None
            at += len(piece)
        return self


class _Bytes:
    """A pattern that is one value."""

    __slots__ = ("_value",)

    def __init__(self, value: bytes) -> None:
        self._value = value

    def fullmatch(self, value: bytes, /) -> object | None:
        return self if value == self._value else None


def glob_match(pattern: bytes, value: bytes, nocase: bool = False) -> bool:
    """Tell whether `pattern` matches the whole `value`. Raises CommandError."""
    return compile_glob(pattern, nocase).fullmatch(value) is not None


def compile_glob(pattern: bytes, nocase: bool = False) -> Glob:
    """Compile `pattern` for many values: `compile_glob(p).fullmatch(value)`. Raises CommandError.

    A loop over keys or channels should do this once; what it remembers is short.
    """
    check_glob(pattern)
    if not nocase and not _is_special(pattern):
        head, *rest = pattern.split(b"*")
        return _Pieces(head, [piece for piece in rest[:-1] if piece], rest[-1]) if rest else _Bytes(head)
    if len(pattern) > MAX_BYTES:
        raise _too_long(pattern, "that ignores case", MAX_BYTES)
    return _compile(pattern, nocase)


def check_glob(pattern: bytes) -> None:
    """Raise what compile_glob would, in a fraction of its time."""
    if len(pattern) > MAX_BYTES and _is_special(pattern):
        raise _too_long(pattern, "with ? [ or \\", MAX_BYTES)
    if len(pattern) > MAX_STARRED and b"*" in pattern:
        raise _too_long(pattern, "with *", MAX_STARRED)


def bytes_to_compile(pattern: bytes) -> int:
    """How many bytes of a regular expression `pattern` is."""
    return len(pattern) if _is_special(pattern) else 0


def ns_per_byte(pattern: bytes) -> int:
    """How long matching takes at worst, nanoseconds per byte of the value; 0 where its length is no matter."""
    # What stands between the first star and the last, or more where one of them is none.
    between = pattern[pattern.find(b"*") + 1 : max(pattern.rfind(b"*"), 0)].strip(b"*")
    if not between:
        return 0
    if _is_special(pattern):
        return 10 + len(between)
    return 1 + min(len(between), _LINEAR) // 5


def _is_special(pattern: bytes) -> bool:
    return b"?" in pattern or b"[" in pattern or b"\\" in pattern


def _too_long(pattern: bytes, kind: str, most: int) -> CommandError:
    return CommandError(f"a pattern {kind} may have {most} bytes at most, this one has {len(pattern)}")


@lru_cache(maxsize=256)
def _compile(pattern: bytes, nocase: bool) -> re.Pattern[bytes]:
    segments = _segments(pattern, nocase)
    head, *rest = [b"".join(segment) for segment in segments]
    if not rest:
        return re.compile(head, re.DOTALL)
    # All bytes between two stars have a fixed width, so the leftmost place where a segment fits is never worse than a
    # later one, and once found it need not be tried again. The atomic groups say so; without them each star
    # would multiply the time by the length of the value. The last segment can only be at the end: the star before it
    # takes everything, as many bytes as that needs at least, and it is looked for behind.
    middle = b"".join(b"(?>.*?%s)" % segment for segment in rest[:-1])
    end = b".{%d,}+(?<=%s)" % (len(segments[-1]), rest[-1])
    return re.compile(head + middle + end, re.DOTALL)


def _segments(pattern: bytes, nocase: bool) -> list[list[bytes]]:
    """Return what stands before, between and behind the stars, each byte's test as a regular expression."""
    segments: list[list[bytes]] = [[]]
    at = 0
    while at < len(pattern):
        byte = pattern[at]
        at += 1
        if byte == _STAR:
            if len(segments) == 1 or segments[-1]:  # a run of stars is one star
                segments.append([])
        elif byte == _ANY:
            segments[-1].append(b".")
        elif byte == _OPEN:
            members, at = _class(pattern, at, nocase)
            segments[-1].append(_one_of(members))
        else:
            if byte == _ESCAPE and at < len(pattern):
                byte = pattern[at]
                at += 1
            segments[-1].append(_one_of(_both_cases(byte) if nocase else {byte}))
    return segments


def _class(pattern: bytes, at: int, nocase: bool) -> tuple[set[int], int]:
    """Read the class whose first byte is at `at`; return its members and the place behind it."""
    negated = pattern[at : at + 1] == b"^"
    at += negated
    members: set[int] = set()
    while (left := len(pattern) - at) > 0:
        byte = pattern[at]
        at += 1
        if byte == _ESCAPE and left >= 2:
            members.add(pattern[at])
            at += 1
        elif byte == _CLOSE:
            break
        elif left >= 3 and pattern[at] == _DASH:
            first, last = sorted((byte, pattern[at + 1]))
            at += 2
            if nocase:  # folded after the ends were put in order: `[Z-a]` folds to z-a, which is empty
                first, last = _lower(first), _lower(last)
                members.update(other for other in range(256) if first <= _lower(other) <= last)
            else:
                members.update(range(first, last + 1))
        else:
            members.update(_both_cases(byte) if nocase else {byte})
    return (set(range(256)) - members if negated else members), at


def _one_of(members: set[int]) -> bytes:
    if len(members) == 256:
        return b"."
    if not members:
        return b"(?!)"
    if len(members) == 1:
        return re.escape(bytes(members))
    # In ranges: a class of 255 bytes, one by one, would be a kilobyte of expression for four of pattern.
    ordered = sorted(members)
    starts = [byte for byte in ordered if byte - 1 not in members]
    ends = [byte for byte in ordered if byte + 1 not in members]
    return b"[%s]" % b"".join(b"\\x%02x-\\x%02x" % ends_of for ends_of in zip(starts, ends, strict=True))


def _both_cases(byte: int) -> set[int]:
    return {byte, bytes([byte]).lower()[0], bytes([byte]).upper()[0]}


def _lower(byte: int) -> int:
    return bytes([byte]).lower()[0]
