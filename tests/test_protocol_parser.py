"""Requests: every input whole, byte by byte and with a trailing command; then against the rules, then against Redis."""

from __future__ import annotations

import itertools
import random
import shutil
import socket
import subprocess
import time
import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import hiredis
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from recalld.protocol import parser as parser_module
from recalld.protocol.errors import ProtocolError
from recalld.protocol.parser import BIG, NARROW, WIDE, Parser, split_inline

Command = list[bytes]
PING = b"*1\r\n$4\r\nPING\r\n"
KIB = 1024
MIB = 1024 * 1024


def pack(*args: bytes | str) -> bytes:
    packed: bytes = hiredis.pack_command(args)  # type: ignore[arg-type]  # its stub knows tuples of one element
    return packed


def take(parser: Parser) -> list[Command]:
    return list(filter(None, iter(parser.next_command, None)))


def run(chunks: Iterable[bytes], parser: Parser | None = None) -> tuple[list[Command], str | None]:
    """Feed `chunks` one after the other; return the commands and the error, if there was one."""
    parser = parser or Parser()
    commands = []
    try:
        for chunk in chunks:
            parser.feed(chunk)
            while (command := parser.next_command()) is not None:
                if command:
                    commands.append(command)
    except ProtocolError as error:
        return commands, str(error)
    return commands, None


def each_byte(data: bytes) -> list[bytes]:
    return [data[i : i + 1] for i in range(len(data))]


def cut(data: bytes, places: Iterable[int]) -> list[bytes]:
    bounds = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[begin:end] for begin, end in itertools.pairwise(bounds)]


class Rules:
    """Redis's processMultibulkBuffer and processInlineBuffer over a whole input, line for line and without hurry.

    After `run`: `commands`, `error`, and `consumed`, the bytes of what was returned or skipped.
    """

    def __init__(self, *, bulk: int = 512 * MIB, inline: int = 64 * KIB, args: int = MIB, auth: bool = True) -> None:
        self.bulk, self.inline, self.args, self.auth = bulk, inline, args, auth
        self.commands: list[Command] = []
        self.error: str | None = None
        self.consumed = 0

    def run(self, data: bytes) -> Rules:
        try:
            while (found := self._frame(data, self.consumed)) is not None:
                command, self.consumed = found
                if command:
                    self.commands.append(command)
        except ProtocolError as error:
            self.error = str(error)
        return self

    def _line(self, data: bytes, pos: int, end: bytes, too_big: str) -> int | None:
        for place in range(pos, min(len(data), pos + self.inline + 1)):
            if data[place : place + 1] == end:
                return place
        if len(data) - pos > self.inline:
            raise ProtocolError(too_big)
        return None

    def _frame(self, data: bytes, pos: int) -> tuple[Command, int] | None:
        if pos == len(data):
            return None
        if data[pos : pos + 1] != b"*":
            end = self._line(data, pos, b"\n", "too big inline request")
            if end is None:
                return None
            line = data[pos:end]
            command = sdssplitargs(line[:-1] if line.endswith(b"\r") else line)
            if command is None:
                raise ProtocolError("unbalanced quotes in request")
            return command, end + 1
        end = self._line(data, pos, b"\r", "too big mbulk count string")
        if end is None or end + 2 > len(data):
            return None
        count = string2ll(data[pos + 1 : end])
        if count is None or count > self.args:
            raise ProtocolError("invalid multibulk length")
        if count > 10 and not self.auth:
            raise ProtocolError("unauthenticated multibulk length")
        command = []
        pos = end + 2
        for _ in range(count):
            end = self._line(data, pos, b"\r", "too big bulk count string")
            if end is None or end + 2 > len(data):
                return None
            if data[pos : pos + 1] != b"$":
                raise ProtocolError(f"expected '$', got '{data[pos : pos + 1].decode('utf-8', 'surrogateescape')}'")
            length = string2ll(data[pos + 1 : end])
            if length is None or length < 0 or length > self.bulk:
                raise ProtocolError("invalid bulk length")
            if length > 16384 and not self.auth:
                raise ProtocolError("unauthenticated bulk length")
            pos = end + 2
            if len(data) < pos + length + 2:
                return None
            command.append(data[pos : pos + length])
            pos += length + 2
        return command, pos


def string2ll(text: bytes) -> int | None:
    """A 64-bit number in its one proper spelling, as util.c reads it."""
    if text == b"0":
        return 0
    digits = text.removeprefix(b"-")
    if not digits or digits[0] not in b"123456789" or any(digit not in b"0123456789" for digit in digits):
        return None
    number = sum((digit - 48) * 10**place for place, digit in enumerate(reversed(digits[:25])))
    number = -number if text.startswith(b"-") else number
    return number if len(digits) < 25 and -(2**63) <= number < 2**63 else None


def sdssplitargs(line: bytes) -> Command | None:
    """The state machine of sds.c. None stands for its NUL at the end of the line, so that a NUL can be a byte."""
    space, hexadecimal = b" \t\n\v\f\r", b"0123456789abcdefABCDEF"
    chars: list[int | None] = [*line, None, None, None, None]
    args: Command = []
    p = 0
    while True:
        while (c := chars[p]) is not None and c in space:
            p += 1
        if chars[p] is None:
            return args
        current, quote, done = bytearray(), 0, False
        while not done:
            c, after = chars[p], chars[p + 1]
            if quote == ord('"'):
                digits = bytes(d for d in chars[p + 2 : p + 4] if d is not None and d in hexadecimal)
                if c == 92 and after == ord("x") and len(digits) == 2:
                    current.append(int(digits, 16))
                    p += 3
                elif c == 92 and after is not None:
                    p += 1
                    current += {110: b"\n", 114: b"\r", 116: b"\t", 98: b"\b", 97: b"\a"}.get(after, bytes((after,)))
                elif c == quote:
                    if after is not None and after not in space:
                        return None
                    done = True
                elif c is None:
                    return None
                else:
                    current.append(c)
            elif quote:
                if c == 92 and after == quote:
                    p += 1
                    current.append(quote)
                elif c == quote:
                    if after is not None and after not in space:
                        return None
                    done = True
                elif c is None:
                    return None
                else:
                    current.append(c)
            elif c is None or c in b" \n\r\t":
                done = True
            elif c in b"\"'":
                quote = c
            else:
                current.append(c)
            if chars[p] is not None:
                p += 1
        args.append(bytes(current))


@contextmanager
def windows_of(wide: int, narrow: int, big: int) -> Iterator[None]:
    """Small windows, so that short inputs meet every way of being cut off by one."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parser_module, "WIDE", wide)
        patch.setattr(parser_module, "NARROW", narrow)
        patch.setattr(parser_module, "BIG", big)
        patch.setattr(parser_module, "MANY", 1)
        yield


# Whole frames and what they mean. Nothing may be left over, and nothing may be wrong.
FRAMES: dict[str, tuple[bytes, list[Command]]] = {
    "one argument": (PING, [[b"PING"]]),
    "two arguments": (b"*2\r\n$4\r\nECHO\r\n$5\r\nhello\r\n", [[b"ECHO", b"hello"]]),
    "empty argument": (b"*2\r\n$4\r\nECHO\r\n$0\r\n\r\n", [[b"ECHO", b""]]),
    "empty name": (b"*1\r\n$0\r\n\r\n", [[b""]]),
    "CRLF in an argument": (b"*2\r\n$4\r\nECHO\r\n$6\r\na\r\nb\r\n\r\n", [[b"ECHO", b"a\r\nb\r\n"]]),
    "CRLF as an argument": (b"*3\r\n$1\r\nx\r\n$2\r\n\r\n\r\n$1\r\ny\r\n", [[b"x", b"\r\n", b"y"]]),
    "argument like a frame": (b"*2\r\n$4\r\nECHO\r\n$14\r\n" + PING + b"\r\n", [[b"ECHO", PING]]),
    "argument like the next argument": (b"*2\r\n$10\r\nab\r\n$2\r\ncd\r\n$1\r\ne\r\n", [[b"ab\r\n$2\r\ncd", b"e"]]),
    "lone CR and LF": (b"*2\r\n$1\r\n\r\r\n$1\r\n\n\r\n", [[b"\r", b"\n"]]),
    "every byte": (b"*1\r\n$256\r\n" + bytes(range(256)) + b"\r\n", [[bytes(range(256))]]),
    "NUL": (b"*2\r\n$1\r\n\0\r\n$2\r\n\0\0\r\n", [[b"\0", b"\0\0"]]),
    "longer than a window": (pack(b"a", b"x" * 20_000, b"b"), [[b"a", b"x" * 20_000, b"b"]]),
    "more arguments than a window holds": (pack(*[b"%d" % n for n in range(3000)]), [[b"%d" % n for n in range(3000)]]),
    "three in a row": (PING + pack("GET", "a") + PING, [[b"PING"], [b"GET", b"a"], [b"PING"]]),
    "no elements": (b"*0\r\n", []),
    "null array": (b"*-1\r\n", []),
    "less than null": (b"*-9223372036854775808\r\n", []),
    "no elements, then some": (b"*0\r\n*-1\r\n" + PING + b"*0\r\n", [[b"PING"]]),
    "something else for LF": (b"*1\rx$4\ryPING\r\n", [[b"PING"]]),
    "something else for CRLF": (b"*2\r\n$4\r\nECHOxy$1\r\nazz", [[b"ECHO", b"a"]]),
    "something else for CRLF, then more": (b"*2\r\n$4\r\nECHO\r\n$1\r\naxx" + PING, [[b"ECHO", b"a"], [b"PING"]]),
    "inline": (b"PING\r\n", [[b"PING"]]),
    "inline, bare LF": (b"PING\n", [[b"PING"]]),
    "inline, CR CR LF": (b"PING a\r\r\n", [[b"PING", b"a"]]),
    "inline, CR inside": (b"PING\ra\r\n", [[b"PING", b"a"]]),
    "inline, spaces": (b"  ECHO \t  hello  \r\n", [[b"ECHO", b"hello"]]),
    "inline, tokens like frames": (b"$4 *1 +OK\r\n", [[b"$4", b"*1", b"+OK"]]),
    "inline, NUL": (b"ECHO a\0b\r\n", [[b"ECHO", b"a\0b"]]),
    "inline, not ASCII": ("ECHO ü\r\n".encode(), [[b"ECHO", "ü".encode()]]),
    "inline, quotes": (b"ECHO \"a b\" 'c d'\r\n", [[b"ECHO", b"a b", b"c d"]]),
    "blank lines": (b"\r\n\n \t \r\n\r\n", []),
    "blank lines, then a command": (b"\r\n\n" + PING, [[b"PING"]]),
    "inline and arrays": (
        b"PING\r\n" + PING + b"\r\nGET a\n*0\r\n" + PING,
        [[b"PING"], [b"PING"], [b"GET", b"a"], [b"PING"]],
    ),
}

LAXITIES = [name for name in FRAMES if name.startswith(("no elements", "null", "less than", "something else", "blank"))]

# A broken frame, as far as it takes to notice, and what Redis says after "Protocol error: ".
ERRORS: dict[str, tuple[bytes, str]] = {
    "array, no count": (b"*\r\n", "invalid multibulk length"),
    "array, letter": (b"*a\r\n", "invalid multibulk length"),
    "array, digits and a letter": (b"*1a\r\n", "invalid multibulk length"),
    "array, plus": (b"*+1\r\n", "invalid multibulk length"),
    "array, minus": (b"*-\r\n", "invalid multibulk length"),
    "array, minus nought": (b"*-0\r\n", "invalid multibulk length"),
    "array, leading zero": (b"*01\r\n", "invalid multibulk length"),
    "array, leading space": (b"* 1\r\n", "invalid multibulk length"),
    "array, trailing space": (b"*1 \r\n", "invalid multibulk length"),
    "array, underscore": (b"*1_0\r\n", "invalid multibulk length"),
    "array, LF": (b"*1\n\r\n", "invalid multibulk length"),
    "array, NUL": (b"*1\0\r\n", "invalid multibulk length"),
    "array, float": (b"*1.0\r\n", "invalid multibulk length"),
    "array, digits of another script": ("*\uff11\r\n".encode(), "invalid multibulk length"),
    "array, too many": (b"*2147483648\r\n", "invalid multibulk length"),
    "array, past 64 bits": (b"*9223372036854775808\r\n", "invalid multibulk length"),
    "array, below 64 bits": (b"*-9223372036854775809\r\n", "invalid multibulk length"),
    "array, endless count": (b"*" + b"1" * 5000 + b"\r\n", "invalid multibulk length"),
    "array, count never ends": (b"*" + b"1" * 64 * KIB, "too big mbulk count string"),
    "bulk, nothing": (b"*1\r\n\r\n", "expected '$', got '\r'"),
    "bulk, simple string": (b"*1\r\n+OK\r\n", "expected '$', got '+'"),
    "bulk, integer": (b"*1\r\n:1\r\n", "expected '$', got ':'"),
    "bulk, array": (b"*1\r\n*1\r\n", "expected '$', got '*'"),
    "bulk, letter": (b"*2\r\n$1\r\na\r\nb\r\n", "expected '$', got 'b'"),
    "bulk, one byte late": (b"*2\r\n$1\r\na\r\n\n$1\r\n", "expected '$', got '\n'"),
    "bulk, not ASCII": (b"*1\r\n\xff\r\n", "expected '$', got '\udcff'"),
    "bulk, null": (b"*1\r\n$-1\r\n", "invalid bulk length"),
    "bulk, no length": (b"*1\r\n$\r\n", "invalid bulk length"),
    "bulk, letter for a length": (b"*1\r\n$a\r\n", "invalid bulk length"),
    "bulk, plus": (b"*1\r\n$+4\r\n", "invalid bulk length"),
    "bulk, leading zero": (b"*1\r\n$04\r\n", "invalid bulk length"),
    "bulk, minus nought": (b"*1\r\n$-0\r\n", "invalid bulk length"),
    "bulk, space": (b"*1\r\n$4 \r\n", "invalid bulk length"),
    "bulk, one byte too long": (b"*1\r\n$536870913\r\n", "invalid bulk length"),
    "bulk, past 64 bits": (b"*1\r\n$18446744073709551617\r\n", "invalid bulk length"),
    "bulk, second argument": (b"*2\r\n$4\r\nECHO\r\n$x\r\n", "invalid bulk length"),
    "bulk, length never ends": (b"*1\r\n$" + b"1" * 64 * KIB, "too big bulk count string"),
    "bulk, header never ends": (b"*1\r\n" + b"x" * (64 * KIB + 1), "too big bulk count string"),
    "inline, never ends": (b"a" * (64 * KIB + 1), "too big inline request"),
    "inline, double quote": (b'ECHO "a\r\n', "unbalanced quotes in request"),
    "inline, single quote": (b"ECHO 'a\r\n", "unbalanced quotes in request"),
    "inline, text behind a quote": (b'ECHO "a"b\r\n', "unbalanced quotes in request"),
    "inline, text behind a single quote": (b"ECHO 'a'b\r\n", "unbalanced quotes in request"),
    "inline, two quoted": (b"ECHO \"a\"'b'\r\n", "unbalanced quotes in request"),
    "inline, escape at the end": (b'ECHO "a\\\r\n', "unbalanced quotes in request"),
    "inline, quote escaped": (b'ECHO "a\\"\r\n', "unbalanced quotes in request"),
    "inline, single quote escaped": (b"ECHO 'a\\'\r\n", "unbalanced quotes in request"),
    "inline, quote as a name": (b'"\r\n', "unbalanced quotes in request"),
}

# Lines and their arguments, as sdssplitargs splits them.
LINES: list[tuple[bytes, Command | None]] = [
    (b"", []),
    (b" \t\r\n\v\f", []),
    (b"a b  c", [b"a", b"b", b"c"]),
    (b'""', [b""]),
    (b"'' \"\" ''", [b"", b"", b""]),
    (b'"a b"', [b"a b"]),
    (b"'a \"b\" c'", [b'a "b" c']),
    (b'"it\'s"', [b"it's"]),
    (b'foo"bar"', [b"foobar"]),
    (b"foo'b r'", [b"foob r"]),
    (b'foo"bar"baz', None),
    (rb'"\n\r\t\b\a"', [b"\n\r\t\b\a"]),
    (rb'"\x00\x41\xfF"', [b"\0A\xff"]),
    (rb'"\x4"', [b"x4"]),
    (rb'"\xg1\x"', [b"xg1x"]),
    (rb'"\"\\\q\'"', [b"\"\\q'"]),
    (rb'"\\"', [b"\\"]),
    (rb'"\\" a', [b"\\", b"a"]),
    (rb'"\"', None),
    (rb"'\n\x41\\'", None),
    (rb"'\n\x41\\ '", [rb"\n\x41\\ "]),
    (rb"'it\'s'", [b"it's"]),
    (rb"'\'", None),
    (rb"\n \"", None),
    (rb"a\nb \x41", [rb"a\nb", rb"\x41"]),
    (b'"a"\vb', [b"a", b"b"]),
    (b"'a'\fb", [b"a", b"b"]),
    (b"a\vb\fc", [b"a\vb\fc"]),
    (b"a \v b", [b"a", b"b"]),
    (b"\va\v", [b"a\v"]),
    (b"a\rb\nc\td", [b"a", b"b", b"c", b"d"]),
    (b'"a\r\nb"', [b"a\r\nb"]),
    (b"a\0b \0", [b"a\0b", b"\0"]),
    (b'"\0" "\\\0"', [b"\0", b"\0"]),
    (b"\x85a\xa0b", [b"\x85a\xa0b"]),
    (b'"', None),
    (b"'", None),
    (b'a"b\'c"', [b"ab'c"]),
    (b'"a" "b', None),
]


class TestFrames:
    """Each of FRAMES, fed in every way."""

    @pytest.mark.parametrize(("data", "commands"), FRAMES.values(), ids=FRAMES)
    def test_whole(self, data: bytes, commands: list[Command]) -> None:
        """One chunk."""
        parser = Parser()
        assert run([data], parser) == (commands, None)
        assert parser.buffered_bytes == 0

    @pytest.mark.parametrize(("data", "commands"), FRAMES.values(), ids=FRAMES)
    def test_byte_by_byte(self, data: bytes, commands: list[Command]) -> None:
        """A chunk for each byte."""
        parser = Parser()
        assert run(each_byte(data), parser) == (commands, None)
        assert parser.buffered_bytes == 0

    @pytest.mark.parametrize(("data", "commands"), FRAMES.values(), ids=FRAMES)
    def test_in_two(self, data: bytes, commands: list[Command]) -> None:
        """Two chunks, cut at every place (of a long input, at some)."""
        for place in range(0, len(data) + 1, 1 + len(data) // 500):
            assert run([data[:place], data[place:]]) == (commands, None)

    @pytest.mark.parametrize(("data", "commands"), FRAMES.values(), ids=FRAMES)
    def test_with_a_trailing_command(self, data: bytes, commands: list[Command]) -> None:
        """A command behind it, in the same chunk, in the next, and not whole."""
        assert run([data + PING]) == ([*commands, [b"PING"]], None)
        assert run([data, PING]) == ([*commands, [b"PING"]], None)
        parser = Parser()
        assert run([data + PING[:-1]], parser) == (commands, None)
        assert parser.buffered_bytes == len(PING) - 1
        assert run([PING[-1:]], parser) == ([[b"PING"]], None)

    @pytest.mark.parametrize(("data", "commands"), FRAMES.values(), ids=FRAMES)
    def test_a_hundred_times(self, data: bytes, commands: list[Command]) -> None:
        """A hundred of them in one chunk: whatever is odd about it meets windows begun before."""
        assert run([data * 100]) == (commands * 100, None)

    @pytest.mark.parametrize(("data", "commands"), FRAMES.values(), ids=FRAMES)
    def test_small_windows(self, data: bytes, commands: list[Command]) -> None:
        """Windows that cut commands and headers off."""
        for wide in (5, 9, 16, 33):
            with windows_of(wide, wide // 2, 4):
                assert run([data + PING + data]) == ([*commands, [b"PING"], *commands], None)

    @pytest.mark.parametrize(("data", "commands"), FRAMES.values(), ids=FRAMES)
    def test_the_rules_say_the_same(self, data: bytes, commands: list[Command]) -> None:
        """The transcription that the random tests compare with."""
        rules = Rules().run(data)
        assert (rules.commands, rules.error, rules.consumed) == (commands, None, len(data))


class TestErrors:
    """Each of ERRORS, fed in every way."""

    @pytest.mark.parametrize(("data", "message"), ERRORS.values(), ids=ERRORS)
    def test_whole(self, data: bytes, message: str) -> None:
        """One chunk, alone, behind a command, before one and between both."""
        assert run([data]) == ([], message)
        assert run([PING + data]) == ([[b"PING"]], message)
        assert run([data + PING]) == ([], message)
        assert run([PING * 50 + data + PING]) == ([[b"PING"]] * 50, message)

    @pytest.mark.parametrize(("data", "message"), ERRORS.values(), ids=ERRORS)
    def test_byte_by_byte(self, data: bytes, message: str) -> None:
        """A chunk for each byte."""
        assert run(each_byte(data)) == ([], message)
        assert run([PING, *each_byte(data)]) == ([[b"PING"]], message)

    @pytest.mark.parametrize(("data", "message"), ERRORS.values(), ids=ERRORS)
    def test_not_before_it_is_seen(self, data: bytes, message: str) -> None:
        """A frame that may still become whole is no error: what misses its last byte is waited for."""
        parser = Parser()
        assert run([data[:-1]], parser) == ([], None)
        assert parser.buffered_bytes == len(data) - 1
        assert run([data[-1:]], parser) == ([], message)

    @pytest.mark.parametrize(("data", "message"), ERRORS.values(), ids=ERRORS)
    def test_stays_broken(self, data: bytes, message: str) -> None:
        """The same error on each call, whatever is fed; nothing is held any more."""
        parser = Parser()
        parser.feed(PING + data)
        assert parser.next_command() == [b"PING"]
        for _ in range(3):
            with pytest.raises(ProtocolError) as caught:
                parser.next_command()
            assert str(caught.value) == message
            parser.feed(PING)
            assert parser.buffered_bytes == 0

    @pytest.mark.parametrize(("data", "message"), ERRORS.values(), ids=ERRORS)
    def test_the_rules_say_the_same(self, data: bytes, message: str) -> None:
        """The transcription that the random tests compare with."""
        rules = Rules().run(PING + data)
        assert (rules.commands, rules.error) == ([[b"PING"]], message)


class TestInline:
    """Lines to arguments."""

    @pytest.mark.parametrize(("line", "args"), LINES)
    def test_split(self, line: bytes, args: Command | None) -> None:
        """By hand."""
        assert split_inline(line) == args
        assert sdssplitargs(line) == args

    @given(st.lists(st.sampled_from([*b"a\"'\\xnt4f \t\v\f\r\n\0\xff"]), max_size=30).map(bytes))
    def test_split_as_sds(self, line: bytes) -> None:
        """Any line, against the state machine."""
        assert split_inline(line) == sdssplitargs(line)

    def test_quotes_take_time_in_proportion(self) -> None:
        """A line of nothing but escapes or quotes does not make the splitter go back and forth."""
        for line in (b'"' + b"\\x41" * 16_000, b"'" + b"\\'" * 32_000, b'"" ' * 21_000, b'a"' * 2 + b"\\" * 64_000):
            assert split_inline(line) == sdssplitargs(line)


class TestLimits:
    """What is too big, to the byte."""

    def test_bulk(self) -> None:
        """max_bulk_bytes is the longest allowed."""
        assert run([pack(b"a", b"x" * 100)], Parser(max_bulk_bytes=100)) == ([[b"a", b"x" * 100]], None)
        assert run([pack(b"a", b"x" * 101)], Parser(max_bulk_bytes=100)) == ([], "invalid bulk length")
        assert run([b"*1\r\n$20000\r\n"], Parser(max_bulk_bytes=20000)) == ([], None)
        assert run([b"*1\r\n$20001\r\n"], Parser(max_bulk_bytes=20000)) == ([], "invalid bulk length")

    def test_bulk_may_be_raised_above_the_default(self) -> None:
        """The limit is the caller's, there is none behind it."""
        assert run([b"*1\r\n$4294967296\r\n"], Parser(max_bulk_bytes=2**32)) == ([], None)

    def test_bulk_set_at_run_time(self) -> None:
        """A new limit holds for the next command, also where that came before the limit did."""
        parser = Parser()
        parser.feed(pack(b"a", b"x" * 20) * 3)
        assert parser.next_command() == [b"a", b"x" * 20]
        parser.max_bulk_bytes = 10
        assert parser.max_bulk_bytes == 10
        with pytest.raises(ProtocolError, match="invalid bulk length"):
            parser.next_command()

        parser = Parser(max_bulk_bytes=10)
        parser.feed(PING + pack(b"a", b"x" * 20))
        assert parser.next_command() == [b"PING"]
        parser.max_bulk_bytes = 20
        assert parser.next_command() == [b"a", b"x" * 20]

    def test_args(self) -> None:
        """max_args is the most allowed."""
        assert run([pack(*[b"a"] * 5)], Parser(max_args=5)) == ([[b"a"] * 5], None)
        assert run([pack(*[b"a"] * 6)], Parser(max_args=5)) == ([], "invalid multibulk length")
        assert run([b"*1048576\r\n"]) == ([], None)
        assert run([b"*1048577\r\n"]) == ([], "invalid multibulk length")

    def test_inline(self) -> None:
        """A line may be max_inline_bytes long before its LF; the CR counts."""
        line = b"ECHO " + b"a" * (64 * KIB - 5)
        assert run([line + b"\n"]) == ([[b"ECHO", line[5:]]], None)
        assert run([line[:-1] + b"\r\n"]) == ([[b"ECHO", line[5:-1]]], None)
        assert run([line + b"\r\n"]) == ([], "too big inline request")
        assert run([b"PING a\n"], Parser(max_inline_bytes=6)) == ([[b"PING", b"a"]], None)
        assert run([b"PING ab\n"], Parser(max_inline_bytes=6)) == ([], "too big inline request")

    def test_headers(self) -> None:
        """The lines before an array and a bulk are held to the same, where windows would take them too."""
        assert run([b"*1\r\n$10\r\n0123456789\r\n"], Parser(max_inline_bytes=3)) == ([[b"0123456789"]], None)
        assert run([b"*1\r\n$10\r\n0123456789\r\n"], Parser(max_inline_bytes=2)) == ([], "too big bulk count string")
        assert run([b"*10\r\n"], Parser(max_inline_bytes=2)) == ([], "too big mbulk count string")

    def test_unauthenticated(self) -> None:
        """10 arguments of 16384 bytes."""

        def stranger(data: bytes) -> tuple[list[Command], str | None]:
            parser = Parser()
            parser.authenticated = False
            return run([data], parser)

        assert stranger(pack(*[b"a"] * 10)) == ([[b"a"] * 10], None)
        assert stranger(pack(*[b"a"] * 11)) == ([], "unauthenticated multibulk length")
        assert stranger(pack(b"x" * 16384)) == ([[b"x" * 16384]], None)
        assert stranger(b"*1\r\n$16385\r\n") == ([], "unauthenticated bulk length")
        # Limits that hold for everyone are named first.
        assert stranger(b"*1048577\r\n") == ([], "invalid multibulk length")
        assert stranger(b"*1\r\n$536870913\r\n") == ([], "invalid bulk length")
        assert stranger(b"a " * 11 + b"\r\n") == ([[b"a"] * 11], None)

    def test_auth_counts_for_the_next_command(self) -> None:
        """AUTH and what it allows may come in one chunk."""
        parser = Parser()
        assert parser.authenticated
        parser.authenticated = False
        parser.feed(pack("AUTH", "secret") + pack(*[b"a"] * 11) + pack(b"x" * 16385))
        assert parser.next_command() == [b"AUTH", b"secret"]
        parser.authenticated = True
        assert take(parser) == [[b"a"] * 11, [b"x" * 16385]]

    def test_reset_counts_for_the_next_command(self) -> None:
        """So does what takes the rights away, though the bytes may have been looked at before."""
        parser = Parser()
        parser.feed(pack(*[b"a"] * 11) + pack("RESET") + pack(*[b"a"] * 11))
        assert parser.next_command() == [b"a"] * 11
        assert parser.next_command() == [b"RESET"]
        parser.authenticated = False
        assert not parser.authenticated
        with pytest.raises(ProtocolError, match="unauthenticated multibulk length"):
            parser.next_command()


class TestBufferedBytes:
    """Bytes held are those fed and not returned."""

    def test_counts_down(self) -> None:
        """Each command taken, each part of one that waits."""
        parser = Parser()
        assert parser.buffered_bytes == 0
        parser.feed(PING * 3 + b"*2\r\n$4\r\nECHO\r\n$100\r\n")
        for commands in (3, 2, 1):
            assert parser.buffered_bytes == 20 + commands * len(PING)
            assert parser.next_command() == [b"PING"]
        assert parser.next_command() is None
        assert parser.buffered_bytes == 20
        for chunk in range(10):
            parser.feed(b"0123456789")
            assert parser.next_command() is None
            assert parser.buffered_bytes == 30 + 10 * chunk
        parser.feed(b"\r\n")
        assert parser.next_command() == [b"ECHO", b"0123456789" * 10]
        assert parser.buffered_bytes == 0

    def test_counts_what_is_fed_ahead(self) -> None:
        """A client that is not read from for a while."""
        parser = Parser()
        for _ in range(5):
            parser.feed(PING)
        assert parser.buffered_bytes == 5 * len(PING)
        assert take(parser) == [[b"PING"]] * 5
        assert parser.buffered_bytes == 0

    def test_feeding_nothing(self) -> None:
        """An empty chunk changes nothing."""
        parser = Parser()
        for chunk in (b"", PING[:5], b"", PING[5:] + PING, b""):
            parser.feed(chunk)
        assert take(parser) == [[b"PING"]] * 2
        parser.feed(b"")
        assert parser.next_command() is None
        assert parser.buffered_bytes == 0


class TestSize:
    """Much at once, and much in little pieces."""

    def test_a_hundred_thousand_commands(self) -> None:
        """One write, short and long commands mixed."""
        commands = [[b"ECHO", b"%d" % n] if n % 100 else [b"ECHO", b"x" * 5000] for n in range(100_000)]
        parser = Parser()
        parser.feed(b"".join(pack(*command) for command in commands))
        assert take(parser) == commands
        assert parser.buffered_bytes == 0

    @pytest.mark.parametrize("chunk", [64 * KIB, 100])
    def test_twenty_megabytes(self, chunk: int) -> None:
        """A value in chunks: 200 000 of them would take minutes if each one moved what came before."""
        value = random.Random(1).randbytes(20_000_000)
        data = PING + pack("ECHO", value) + PING
        parser = Parser()
        commands, error = run((data[i : i + chunk] for i in range(0, len(data), chunk)), parser)
        assert error is None
        assert commands == [[b"PING"], [b"ECHO", value], [b"PING"]]
        assert parser.buffered_bytes == 0

    def test_a_million_arguments(self) -> None:
        """One command, in chunks: the arguments that are there are not looked at again."""
        args = [b"%d" % n for n in range(MIB)]
        data = pack(*args)
        parser = Parser()
        taken = []
        for i in range(0, len(data), 16 * KIB):
            parser.feed(data[i : i + 16 * KIB])
            taken += take(parser)
            assert taken or parser.buffered_bytes == i + 16 * KIB
        assert taken == [args]

    @pytest.mark.parametrize("frame", [b"\r\n", b"a\r\n", b"\r\n" + PING, b"*1\r\n$2\r\n\r\n\r\n", b"*1\r\n$1\r\naxx"])
    def test_a_megabyte_of_oddities(self, frame: bytes) -> None:
        """What windows are no use for is not split again for each command: with windows this wide it takes hours."""
        count = MIB // len(frame)
        with windows_of(MIB, NARROW, BIG):
            commands, error = run([frame * count])
        assert error is None
        assert commands == Rules().run(frame).commands * count

    @pytest.mark.parametrize("header", [b"*1048576\r\n", b"*1\r\n$536870912\r\n", b"*1048576\r\n$536870912\r\n"])
    def test_nothing_is_reserved(self, header: bytes) -> None:
        """An announcement costs what it holds."""
        parser = Parser()
        tracemalloc.start()
        parser.feed(header)
        assert parser.next_command() is None
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 10_000

    def test_small_chunks_are_packed(self) -> None:
        """A value in two-byte chunks takes its own size, not an object for each chunk."""
        parser = Parser()
        parser.feed(b"*1\r\n$1000000\r\n")
        assert parser.next_command() is None
        tracemalloc.start()
        for _ in range(200_000):
            parser.feed(b"ab")
        held, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert held < 600_000
        assert parser.buffered_bytes == 400_000 + 14


ARGUMENT = st.one_of(
    st.binary(max_size=12),
    st.sampled_from([b"", b"\r\n", b"\r", b"\n", b"$1\r\na", b"*1\r\n$4\r\nPING\r\n", b"x" * 600, b"\r\n" * 300]),
)
COMMAND = st.one_of(
    st.lists(ARGUMENT, min_size=1, max_size=8),
    st.lists(st.sampled_from([b"a", b"bc", b"", b"\r\n", b"x" * 9]), min_size=20, max_size=60),
)
FRAME = st.one_of(
    COMMAND.map(lambda args: pack(*args)),
    st.sampled_from([data for data, _ in FRAMES.values() if len(data) < 300]),
    st.sampled_from([data for data, _ in ERRORS.values() if len(data) < 300]),
)
PLACES = st.lists(st.integers(0, 2**16), max_size=12)


@st.composite
def mutated(draw: st.DrawFn) -> bytes:
    """Frames with bytes changed, put in and taken out."""
    data = bytearray(b"".join(draw(st.lists(FRAME, max_size=6))))
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(data)))
        size = draw(st.integers(0, 3))
        data[place : place + size] = draw(
            st.one_of(
                st.binary(max_size=3), st.sampled_from([b"\r\n", b"*1\r\n", b"$", b"-", b"0", b"'", b'"', b"*0\r\n"])
            )
        )
    return bytes(data)


class TestAnySplit:
    """Hypothesis: the bytes decide, not how they were cut."""

    @given(st.lists(COMMAND, max_size=20), PLACES)
    def test_round_trip(self, commands: list[Command], places: list[int]) -> None:
        """What hiredis packs comes out again."""
        data = b"".join(pack(*command) for command in commands)
        parser = Parser()
        assert run(cut(data, places), parser) == (commands, None)
        assert parser.buffered_bytes == 0

    @given(
        mutated(),
        PLACES,
        st.sampled_from([(WIDE, NARROW, BIG), (40, 20, 8), (16, 8, 4), (6, 3, 1)]),
        st.sampled_from([{}, {"bulk": 5}, {"args": 2}, {"inline": 5}, {"inline": 40}, {"auth": False}]),
    )
    @example(b"*2\r\n$1\r\na\r\n", [4], (WIDE, NARROW, BIG), {})
    def test_as_the_rules_say(
        self, data: bytes, places: list[int], windows: tuple[int, int, int], limits: dict[str, int]
    ) -> None:
        """Commands, error and bytes held are those of the transcription, whatever the input, cuts and limits."""
        rules = Rules(**limits).run(data)  # type: ignore[arg-type]
        names = {"bulk": "max_bulk_bytes", "args": "max_args", "inline": "max_inline_bytes"}
        with windows_of(*windows):
            parser = Parser(**{names[name]: limit for name, limit in limits.items() if name in names})
            parser.authenticated = limits.get("auth", True) is True
            commands, error = run(cut(data, places), parser)
        assert (commands, error) == (rules.commands, rules.error)
        assert parser.buffered_bytes == (0 if error else len(data) - rules.consumed)

    @given(mutated(), PLACES, st.lists(st.booleans(), min_size=1), st.integers(2, 30))
    def test_put_together_elsewhere(self, data: bytes, places: list[int], turns: list[bool], least: int) -> None:
        """Arguments of which `least` bytes were missing come in pieces, and are put later: it is all the same."""
        rules = Rules().run(data)
        parser = Parser(apart_bytes=least)
        commands: list[Command] = []
        error = None
        turn = itertools.cycle(turns)

        def take_all() -> None:
            while (command := parser.next_command()) is not None or parser.pieces:
                if command:
                    commands.append(command)
                elif command is None and next(turn):
                    assert parser.next_command() is None
                    parser.put(b"".join(parser.pieces))
                elif command is None:
                    return

        try:
            for chunk in cut(data, places):
                parser.feed(chunk)
                take_all()
            turn = itertools.repeat(True)  # type: ignore[assignment]
            take_all()
        except ProtocolError as caught:
            error = str(caught)
        assert (commands, error) == (rules.commands, rules.error)
        assert parser.buffered_bytes == (0 if error else len(data) - rules.consumed)

    def test_pieces_hold_the_argument_alone(self) -> None:
        """What is behind it stays; all of it is counted until the command is taken."""
        parser = Parser(apart_bytes=1000)
        value = bytes(range(256)) * 40
        data = pack(b"a", value, b"b") + PING
        for at in range(0, len(data), 700):
            parser.feed(data[at : at + 700])
        assert parser.next_command() is None and parser.next_command() is None
        assert len(parser.pieces) > 1 and {type(piece) for piece in parser.pieces} == {bytes}
        assert b"".join(parser.pieces) == value
        assert parser.buffered_bytes == len(data)
        parser.put(value)
        assert parser.buffered_bytes == len(data)
        assert take(parser) == [[b"a", value, b"b"], [b"PING"]]
        assert parser.buffered_bytes == 0

    @given(mutated(), PLACES, st.integers(1, 5), st.booleans())
    def test_in_steps(self, data: bytes, places: list[int], steps: int, ahead: bool) -> None:
        """However little a call does, the calls do the same."""
        rules = Rules().run(data)
        parser = Parser()
        commands: list[Command] = []
        error = None
        chunks = cut(data, places)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(parser_module, "STEPS", steps)
            try:
                for at, chunk in enumerate(chunks):
                    parser.feed(chunk)
                    if not ahead or at == len(chunks) - 1:
                        commands.extend(filter(None, iter(parser.next_command, None)))
            except ProtocolError as caught:
                error = str(caught)
        assert (commands, error) == (rules.commands, rules.error)

    def test_long_ones_are_read_in_several_calls(self) -> None:
        """Frames that are no command, and an array whose words have all come."""
        for data, command in (
            (b"*0\r\n" * 100_000 + PING, [b"PING"]),
            (b" \n" * 100_000 + PING, [b"PING"]),
            (pack(*[b"ab"] * 300_000), [b"ab"] * 300_000),
        ):
            parser = Parser()
            parser.feed(b"*")  # begun, so that what follows gathers
            rest = data[1:] if data[:1] == b"*" else b"0\r\n" + data
            for at in range(0, len(rest), 65536):
                parser.feed(rest[at : at + 65536])
            taken = list(iter(parser.next_command, None))
            assert taken.count([]) > 3 and [each for each in taken if each] == [command]
        parser.feed(b"\r\n\n" * 200_000 + PING)
        assert parser.next_command() == [b"PING"]

    @given(mutated(), PLACES, st.lists(st.booleans(), min_size=1))
    def test_fed_ahead(self, data: bytes, places: list[int], turns: list[bool]) -> None:
        """Commands may be taken late: then several chunks wait."""
        rules = Rules().run(data)
        parser = Parser()
        commands: list[Command] = []
        error = None
        try:
            for chunk, turn in zip(cut(data, places), itertools.cycle(turns), strict=False):
                parser.feed(chunk)
                if turn and (command := parser.next_command()):
                    commands.append(command)
            while (command := parser.next_command()) is not None:
                if command:
                    commands.append(command)
        except ProtocolError as caught:
            error = str(caught)
        assert (commands, error) == (rules.commands, rules.error)


class Server:
    """A redis-server of our own, with a password, spoken to in raw bytes."""

    def __init__(self, path: Path, port: int) -> None:
        self.port = port
        self.process = subprocess.Popen(
            ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--requirepass", "secret"],
            cwd=path,
            stdout=subprocess.DEVNULL,
        )

    def connect(self) -> socket.socket:
        for _ in range(200):
            try:
                return socket.create_connection(("127.0.0.1", self.port), timeout=10)
            except ConnectionRefusedError:
                time.sleep(0.05)  # it is starting
        raise TimeoutError("redis-server did not start")

    def ask(self, data: bytes, *, auth: bool, until: bytes) -> bytes:
        """Send `data`; return what comes back up to `until`, or all of it and `<closed>`."""
        with self.connect() as sock:
            if auth:
                sock.sendall(pack("AUTH", "secret"))
                assert sock.recv(5) == b"+OK\r\n"
            sock.sendall(data)
            received = b""
            while not received.endswith(until):
                chunk = sock.recv(64 * KIB)
                if not chunk:
                    return received + b"<closed>"
                received += chunk
            return received


def answer(data: bytes, *, auth: bool) -> bytes:
    """What Redis should reply to `data`, by our parser. It knows ECHO, PING and EVAL "return ARGV"."""
    parser = Parser()
    parser.authenticated = auth
    commands, error = run([data], parser)
    replies = []
    for command in commands:
        name = command[0].upper()
        if not auth:
            replies.append(b"-NOAUTH Authentication required.\r\n")
        elif name == b"EVAL":
            replies.append(pack(*command[3:]) if command[3:] else b"*0\r\n")
        elif name == b"ECHO":
            replies.append(b"$%d\r\n%b\r\n" % (len(command[1]), command[1]))
        elif name == b"PING":
            replies.append(b"+PONG\r\n")
    if error is not None:
        line = error.replace("\r", " ").replace("\n", " ").encode("utf-8", "surrogateescape")
        replies.append(b"-ERR Protocol error: " + line + b"\r\n<closed>")
    return b"".join(replies)


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="needs redis-server on PATH")
class TestAgainstRedis:
    """The same odd bytes to a real redis-server: same commands, same error line, closed or not."""

    END = pack("ECHO", "the end")

    @pytest.fixture(scope="class")
    @classmethod
    def redis_server(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        """Started on a free port; stopped at the end."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        server = Server(tmp_path_factory.mktemp("redis"), port)
        yield server
        server.process.terminate()
        server.process.wait()

    def check(self, server: Server, data: bytes, *, auth: bool = True) -> None:
        # Behind a line that is too big nothing may follow: what Redis has not read makes it reset the connection.
        if len(data) < 16 * KIB:
            data += self.END
        expected = answer(data, auth=auth)
        assert server.ask(data, auth=auth, until=expected) == expected

    @pytest.mark.parametrize("name", [name for name in ERRORS if "NUL" not in name])
    def test_errors(self, redis_server: Server, name: str) -> None:
        """Each of ERRORS, alone and behind a command; but Redis does not see the end of a line that holds a NUL."""
        self.check(redis_server, ERRORS[name][0])
        self.check(redis_server, PING + ERRORS[name][0])

    @pytest.mark.parametrize("name", LAXITIES)
    def test_laxities(self, redis_server: Server, name: str) -> None:
        """What is skipped, seen or unseen."""
        self.check(redis_server, FRAMES[name][0])

    @pytest.mark.parametrize("line", [line for line, _ in LINES if b"\0" not in line and b"\n" not in line])
    def test_lines(self, redis_server: Server, line: bytes) -> None:
        """Each of LINES that is one line for Redis, as arguments of a script that returns them."""
        self.check(redis_server, b'EVAL "return ARGV" 0 ' + line + b"\r\n")
        self.check(redis_server, b'EVAL "return ARGV" 0 ' + line + b"\n")

    @pytest.mark.parametrize(
        "data",
        [
            pack("MGET", *[b"a"] * 9),
            pack("MGET", *[b"a"] * 10),
            pack("ECHO", b"x" * 16384),
            b"*1\r\n$16385\r\n",
            b"*2147483648\r\n",
            b"*1\r\n$536870913\r\n",
            b"*1\r\n+\r\n",
        ],
        ids=["10 args", "11 args", "16384 bytes", "16385 bytes", "too many", "too long", "no bulk"],
    )
    def test_unauthenticated(self, redis_server: Server, data: bytes) -> None:
        """Before AUTH."""
        self.check(redis_server, data, auth=False)

    def test_auth_in_a_pipeline(self, redis_server: Server) -> None:
        """AUTH and what it allows in one write."""
        data = pack("AUTH", "secret") + pack("EVAL", "return ARGV", "0", *[b"a"] * 20) + self.END
        expected = b"+OK\r\n" + pack(*[b"a"] * 20) + b"$7\r\nthe end\r\n"
        assert redis_server.ask(data, auth=False, until=b"the end\r\n") == expected

    def test_random_mutations(self, redis_server: Server) -> None:
        """Frames of ECHO and PING with a byte changed, where the change leaves them ECHO, PING or an error."""
        rng = random.Random(7)
        frames = [
            PING,
            pack("ECHO", "hello"),
            pack("ECHO", "a\r\nb"),
            b"PING\r\n",
            b"ECHO 'a b'\r\n",
            b"\r\n",
            b"*0\r\n",
        ]
        compared = 0
        while compared < 300:
            data = bytearray(b"".join(rng.choices(frames, k=3)))
            for _ in range(rng.randint(1, 2)):
                data[rng.randrange(len(data))] = rng.choice(b"*$\r\n019-+ '\"aE")
            rules = Rules().run(bytes(data) + self.END)
            known = all(
                (command[0].upper(), len(command)) in {(b"ECHO", 2), (b"PING", 1)} for command in rules.commands
            )
            if known and (rules.error is not None or rules.commands[-1:] == [[b"ECHO", b"the end"]]):
                self.check(redis_server, bytes(data))
                compared += 1
