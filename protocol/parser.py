"""Requests: bytes in, commands out.

Feed whatever the socket gave, then take commands until there are none:

    parser.feed(data)
    while (command := parser.next_command()) is not None:
        if command: ...

A request is an array of bulk strings, or a line (an inline command) where its first byte is not `*`:

    *2\\r\\n$4\\r\\nECHO\\r\\n$2\\r\\nhi\\r\\n        or        ECHO "hi"\\r\\n

Rule 1: the bytes decide, not how they were cut. Any split of a stream gives the same commands and the same error.
Rule 2: a broken frame raises after every command before it was returned, and from then on always.
Rule 3: a chunk costs what it holds, not what is held. A 20 MB value in small chunks is collected, then cut out once;
        of what gathers while no command is taken, each step joins as much as it needs, or JOINED.
Rule 4: nothing is reserved because a client announced it. Memory follows the bytes that came.
Rule 5: putting a long argument together copies it, on which others would wait. One that lacks `apart_bytes`, at
        least 2, or more is left to the caller, in `pieces`; no command comes before `put`.
Rule 6: a call takes some milliseconds at most. Where that is not enough for a command, as many blank lines have come,
        or the words of a long array while others were done, it returns [], and the next call goes on.
Rule 7: a limit holds for the frames read after it was set, and frames are read one command at a time. So an AUTH in
        a pipeline counts for the command right behind it.

The rest is Redis 7.0 (networking.c: processMultibulkBuffer, processInlineBuffer), laxities included: the byte after
the CR of a header and the two after a bulk are skipped unseen; `*0`, `*-1` and a blank line are no command. It differs
in three things. Redis looks for the end of a line with strchr, so a NUL hides it; here a NUL is a byte like any other.
Redis takes a line over the limit if its end comes with the same read; here it never does (rule 1). Redis allows
2**31 - 1 arguments; here `max_args`.

There are two ways through, equal in result (the tests hold both against a plain transcription of the rules):

    window   The next bytes are split at CRLF in one go, and a command is a slice of the parts. It is taken only if
             each header equals, byte for byte, the one its argument would be sent with. A value that holds CRLF, a
             laxity, an error: all fail that comparison.
    strict   Header by header, argument by argument, wherever a window was of no use.

Microseconds per command through feed() and next_command(), with the None at the end of each chunk, beside the ways not
taken: splitting the whole chunk, walking from header to header, and hiredis.Reader, believed where
hiredis.pack_command makes the same bytes of what it read. CPython 3.11, hiredis 3.5, AMD EPYC, best of 25 in turns.

                                                       here    split   walk    hiredis
    PING, alone in its chunk                            0.81    1.03    1.11    0.82
    100 PING in a chunk                                 0.35    0.58    0.90    0.37
    MEM.QUERY, 6 short arguments, alone                 1.20    1.38    2.50    1.36
    100 MEM.ADD in a chunk, 6 short arguments           0.90    1.02    2.51    0.89
    MEM.ADD with a vector of 1536 bytes, alone          2.93    2.82    2.69    1.65
    the same, a stream in chunks of 64 KiB              2.71    2.81    2.72    1.80
    the same with 6144 bytes                            3.42    8.14    3.49    3.15
    MEM.DEL with 300 arguments, alone                     38      26      95      37

hiredis breaks rule 4: `*1\\r\\n>100000000\\r\\n` kept Reader busy for 2 s and took 780 MB, for a list that never came.
A regular expression that keeps such counts from it costs as much as it saves (1.02 for the 100 MEM.ADD, 2.53 for the
stream).
"""

from __future__ import annotations

import re
from typing import Final, NoReturn

from .errors import ProtocolError

MAX_BULK_BYTES: Final = 512 * 1024 * 1024
# 64 KiB: an inline command longer than this is no human at a telnet prompt (Redis: PROTO_INLINE_MAX_SIZE).
# The line that announces an array or a bulk is held to the same.
MAX_INLINE_BYTES: Final = 64 * 1024
MAX_ARGS: Final = 1024 * 1024
# Before a client has said who it is: enough for HELLO with AUTH, too little to fill the memory with.
UNAUTHENTICATED_ARGS: Final = 10
UNAUTHENTICATED_BULK_BYTES: Final = 16384

# The window. Splitting costs about a nanosecond a byte, so a window must be long enough for many small commands and
# short where a large value comes, on which it is wasted. So behind a command with an argument above BIG, the next
# window takes in what usually stands before such an argument, and the argument itself is cut out by its length.
# Measured as above: 100 MEM.ADD with WIDE = 1024 / 2048 / 8192 / 16384: 1.04 / 0.93 / 0.91 / 0.92 us; the stream of
# 1536-byte vectors with NARROW = 128 / 256 / without: 2.55 / 2.70 / 4.36 us (texts differ in length, hence 256).
WIDE: Final = 8192
NARROW: Final = 256
BIG: Final = 512
# A command that still wants more arguments than this takes them window by window, as long as each window gives as
# many: 65 536 words of 8 bytes in 20 ms instead of 42.
MANY: Final = 32

# Of one call: a frame that is no command is a step, of 1 to 2 microseconds; a joined chunk, with up to 30 000 words in
# it, of 10 milliseconds at most, is so many.
STEPS: Final = 256
JOIN_STEPS: Final = 128

# Chunks below this share a bytearray: a list of two-byte chunks would take twenty times what was sent.
SMALL_CHUNK: Final = 4096
PACKED_CHUNK: Final = 65536
JOINED: Final = 1 << 18

CRLF: Final = b"\r\n"
_HEADERS: Final = [b"$%d" % n for n in range(WIDE + 1)]
_LENGTHS: Final = {header: n for n, header in enumerate(_HEADERS)}
_UNUSUAL: Final = 2**63  # longer than any
_COUNTS: Final = {b"*%d" % n: n for n in range(1, 1025)}
_NO_WINDOW: Final = [b""]
# Words that a long command says again and again, each kept once: those that are let go of in the end leave holes among
# the others, which stay.
_OPTIONS: Final = {word: word for word in b"RECORD ID TEXT VEC META TAGS IMPORTANCE TTL AT KIND PIN 1 2".split()}

_INT64_MIN: Final = -(2**63)
_INT64_MAX: Final = 2**63 - 1

# Redis's sdssplitargs, one token: plain bytes, then perhaps a quoted piece, which must end the token. Vertical tab and
# form feed stand between tokens, yet do not end a plain one.
_TOKEN: Final = re.compile(
    rb"""([^\t\n\r "']*+)
         (?: "((?: [^"\\] | \\. )*+)" (?= [\t-\r ] | \Z )
           | '((?: \\' | [^'] )*+)' (?= [\t-\r ] | \Z ) )?+
         (?! ["'] ) [\t-\r ]*+""",
    re.VERBOSE | re.DOTALL,
)
_BLANK_LINES: Final = re.compile(rb"(?:\r?\n)++")
_ESCAPE: Final = re.compile(rb"\\(?:x([0-9a-fA-F]{2})|(.))", re.DOTALL)
_ESCAPED: Final = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def _integer(digits: bytes) -> int | None:
    """Return the 64-bit number that `digits` are the only proper spelling of, else None (Redis: string2ll)."""
    if len(digits) > 20:  # the longest is -2**63
        return None
    try:
        number = int(digits)
    except ValueError:
        return None
    # int() takes +1, 01, 1_0 and more.
    return number if b"%d" % number == digits and _INT64_MIN <= number <= _INT64_MAX else None


def _unescape(match: re.Match[bytes]) -> bytes:
    digits, char = match.groups()
    return bytes.fromhex(digits.decode()) if digits is not None else _ESCAPED.get(char, char)


def _take(data: bytes, pos: int, want: int, args: list[bytes]) -> tuple[int, int]:
    """Append what the next window has of `want` arguments, as far as each is sent the usual way; how many, and the
    offset behind them."""
    parts = data[pos : pos + WIDE].split(CRLF)
    values = parts[1 : min(2 * want, len(parts) - 1) : 2]
    i = 0
    for value in values:
        if _HEADERS[len(value)] != parts[i]:
            del values[i // 2 :]
            break
        i += 2
    if values:
        pos += len(CRLF.join(parts[:i])) + len(CRLF)
        args += map(_OPTIONS.get, values, values)
    return len(values), pos


def split_inline(line: bytes) -> list[bytes] | None:
    """Split a line into arguments; None if a quote is not closed, or closed within a token."""
    if b'"' not in line and b"'" not in line and b"\v" not in line and b"\f" not in line:
        return line.split()
    args = []
    line = line.lstrip()
    pos = 0
    while pos < len(line):
        token = _TOKEN.match(line, pos)
        if token is None:
            return None
        plain, double, single = token.groups(b"")
        args.append(plain + _ESCAPE.sub(_unescape, double) + single.replace(b"\\'", b"'"))
        pos = token.end()
    return args


class Parser:
    """Turns the bytes of one client into commands, by the rules at the head of this module."""

    __slots__ = (
        "_apart_bytes",
        "_args",
        "_authenticated",
        "_chunk_bytes",
        "_chunks",
        "_counted",
        "_counts",
        "_data",
        "_error",
        "_i",
        "_idle",
        "_last",
        "_max_args",
        "_max_bulk",
        "_max_bulk_bytes",
        "_max_inline",
        "_missing",
        "_partial",
        "_parts",
        "_pos",
        "_strict_until",
        "_want",
        "_window",
        "pieces",
    )

    def __init__(
        self,
        *,
        max_bulk_bytes: int = MAX_BULK_BYTES,
        max_inline_bytes: int = MAX_INLINE_BYTES,
        max_args: int = MAX_ARGS,
        apart_bytes: int = _UNUSUAL,
    ) -> None:
        #: What the argument that the command wants next is to be put together from, in order; empty: nothing waits.
        self.pieces: list[bytes] = []
        self._apart_bytes = apart_bytes
        self._max_bulk_bytes = max_bulk_bytes
        self._max_inline = max_inline_bytes
        self._max_args = max_args
        self._authenticated = True
        self._error: str | None = None
        self._idle = True  # not a byte is held

        # `_data` is used up to `_pos`, but for an open window: `_parts`, of which those before `_i` are used. The
        # last part is what came behind the last CRLF and `_pos` is where the window ends.
        self._data = b""
        self._pos = 0
        self._parts = _NO_WINDOW
        self._i = self._last = 0
        self._window = WIDE  # bytes the next window takes in
        self._strict_until = 0  # up to this offset in `_data` a window has been tried

        # What came after `_data`, and how many bytes of it the next step needs.
        self._chunks: list[bytes | bytearray] = []
        self._chunk_bytes = 0
        self._missing = 0

        # A command begun: its arguments so far and how many are to come. `_partial` is the size of what is gone from
        # `_data`, with the first `_counted` arguments in it.
        self._args: list[bytes] = []
        self._want = 0
        self._partial = 0
        self._counted = 0

        self._apply_limits()

    @property
    def max_bulk_bytes(self) -> int:
        """Longest argument in bytes (`proto-max-bulk-len`); may be set at any time."""
        return self._max_bulk_bytes

    @max_bulk_bytes.setter
    def max_bulk_bytes(self, limit: int) -> None:
        self._max_bulk_bytes = limit
        self._apply_limits()

    @property
    def authenticated(self) -> bool:
        """Whether the client may send more than 10 arguments of 16384 bytes; may be set at any time."""
        return self._authenticated

    @authenticated.setter
    def authenticated(self, authenticated: bool) -> None:
        self._authenticated = authenticated
        self._apply_limits()

    @property
    def buffered_bytes(self) -> int:
        """Bytes fed that belong to no command returned (or skipped) so far, the one begun included."""
        unused = self._parts[self._i :]
        window = sum(map(len, unused)) + len(CRLF) * (len(unused) - 1)
        return self._partial + window + len(self._data) - self._pos + self._chunk_bytes

    def feed(self, data: bytes) -> None:
        """Take the bytes of one read. What is wrong with them shows in next_command."""
        if self._idle:
            self._idle = False
            self._data = data
            if len(data) <= BIG:
                self._parts = parts = data.split(CRLF)
                self._last = len(parts) - 1
                self._pos = len(data)
        elif self._error is None:
            chunks = self._chunks
            if len(data) >= SMALL_CHUNK:
                chunks.append(data)
            elif chunks and isinstance(chunks[-1], bytearray):
                chunks[-1] += data
                if len(chunks[-1]) >= PACKED_CHUNK:
                    chunks[-1] = bytes(chunks[-1])
            else:
                chunks.append(bytearray(data))
            self._chunk_bytes += len(data)

    def next_command(self) -> list[bytes] | None:
        """Return the next command, or None if that needs more bytes; [] if it has not come to the end of what is here.

        Raises ProtocolError if the frame at the front is broken, and on every call after that.
        """
        i = self._i
        if i < self._last:
            parts = self._parts
            count = self._counts.get(parts[i])
            if count is not None:
                end = i + 2 * count + 1
                if end <= self._last:
                    args = parts[i + 2 : end : 2]
                    # A plain loop: for six arguments it takes 0.47 us where comparing map()s takes 0.63.
                    for arg in args:
                        if _HEADERS[len(arg)] != parts[i + 1]:
                            break
                        i += 2
                    else:
                        self._i = end
                        return args
        return self._next()

    def _next(self) -> list[bytes] | None:
        """next_command where the window is used up, is of no use, or is not there."""
        if self._chunk_bytes < self._missing or self.pieces:
            return None
        if self._error is not None:
            raise ProtocolError(self._error)
        args = self._args
        if args and not self._want:  # `put` brought the last
            self._args = []
            self._partial = self._counted = 0
            return args
        if self._is_empty():
            return None
        self._close_window()
        left = STEPS
        while left > 0:
            if self._apart_bytes <= self._missing <= self._chunk_bytes:
                self._set_apart()
                return None
            left -= 1
            if self._missing or self._pos == len(self._data):
                if not self._join_chunks():
                    return None
                left -= JOIN_STEPS
            if not self._want:
                self._open_window()
                if not (self._want or self._args):
                    self._read_start()
            if self._want:
                self._read_args()
            args = self._args
            if args and not self._want:
                self._args = []
                self._partial = self._counted = 0
                return args
        return []

    def _is_empty(self) -> bool:
        """Tell whether nothing is held, and if so be as new for the next chunk."""
        if self._parts[-1] or self._i < self._last or self._pos < len(self._data) or self._chunk_bytes or self._want:
            return False
        self._data = b""
        self._pos = self._strict_until = 0
        self._parts = _NO_WINDOW
        self._i = self._last = 0
        self._idle = True
        return True

    def _open_window(self) -> None:
        """Split what comes next and take a command from it; of one that the window cuts off, the whole arguments."""
        data, begin = self._data, self._pos
        if begin < self._strict_until or data[begin : begin + 1] != b"*":
            return
        window = data[begin : begin + self._window]
        self._strict_until = begin + len(window)
        self._window = WIDE
        parts = window.split(CRLF)
        last = len(parts) - 1
        count = self._counts.get(parts[0]) if last else None
        if count is None:
            return
        end = 2 * count + 1
        self._args = args = parts[2 : min(end, last) : 2]
        i = 0
        for arg in args:
            if _HEADERS[len(arg)] != parts[i + 1]:
                del args[i // 2 :]
                break
            i += 2
        self._want = count - len(args)
        if self._want:
            self._pos = self._strict_until - len(CRLF.join(parts[i + 1 :]))
            return
        self._parts, self._i, self._last = parts, end, last
        self._pos = self._strict_until
        if max(map(len, args)) > BIG:
            self._window = NARROW

    def _close_window(self) -> None:
        """Let `_pos` be where the window was used up to."""
        parts, i, last = self._parts, self._i, self._last
        if parts is _NO_WINDOW:
            return
        end = self._pos
        self._pos = self._strict_until = end - len(CRLF.join(parts[i:]))
        if i < last:
            count = self._counts.get(parts[i])
            if count is None or i + 2 * count + 1 <= last:
                self._strict_until = end  # whole but odd: another window would see the same
        self._parts = _NO_WINDOW
        self._i = self._last = 0

    def _read_start(self) -> None:
        """Read the header of an array, or a whole inline command."""
        data, pos = self._data, self._pos
        if data[pos] in CRLF and (blank := _BLANK_LINES.match(data, pos)) is not None:
            self._pos = blank.end()
            return
        inline = data[pos] != ord("*")
        eol = data.find(b"\n" if inline else b"\r", pos, pos + self._max_inline + 1)
        if eol < 0 and len(data) - pos > self._max_inline:
            self._fail("too big inline request" if inline else "too big mbulk count string")
        if inline and eol >= 0:
            args = split_inline(data[pos:eol])  # its CR is a blank
            if args is None:
                self._fail("unbalanced quotes in request")
            self._args = args
            self._pos = eol + 1
        elif not inline and 0 <= eol < len(data) - 1:
            count = _integer(data[pos + 1 : eol])
            if count is None or count > self._max_args:
                self._fail("invalid multibulk length")
            if count > UNAUTHENTICATED_ARGS and not self._authenticated:
                self._fail("unauthenticated multibulk length")
            self._want = max(count, 0)
            self._pos = eol + 2
        else:
            self._missing = 1

    def _read_args(self) -> None:
        """Read the arguments that are still to come, as far as the data goes."""
        data, pos = self._data, self._pos
        size = len(data)
        args, want = self._args, self._want
        many = MANY if self._counts else _UNUSUAL  # a window does not look at single lengths
        while want:
            if want > many:
                taken, pos = _take(data, pos, want, args)
                want -= taken
                if taken > MANY:
                    continue
                many = _UNUSUAL  # long or odd ones: no more windows until the next read
            eol = data.find(b"\r", pos, pos + self._max_inline + 1)
            if not 0 <= eol < size - 1:
                if eol < 0 and size - pos > self._max_inline:
                    self._fail("too big bulk count string")
                self._missing = 1
                break
            length = _LENGTHS.get(data[pos:eol], _UNUSUAL)
            if length > self._max_bulk:
                length = self._check_length(data[pos : eol + 1])
            begin = eol + 2
            end = begin + length
            if end + 2 > size:
                self._missing = end + 2 - size
                break
            args.append(data[begin:end])
            pos = end + 2
            want -= 1
            if length > BIG:
                self._window = NARROW
        self._pos, self._want = pos, want

    def _check_length(self, line: bytes) -> int:
        """Return the length that `line`, a bulk's header with its CR, announces."""
        if line[0] != ord("$"):
            self._fail(f"expected '$', got '{line[:1].decode(errors='surrogateescape')}'")
        length = _integer(line[1:-1])
        if length is None or not 0 <= length <= self._max_bulk_bytes:
            self._fail("invalid bulk length")
        if length > self._max_bulk:
            self._fail("unauthenticated bulk length")
        return length

    def _join_chunks(self) -> bool:
        """Move some chunks behind what is left of the data; False if the next step needs more than they hold."""
        rest = self._data[self._pos :]
        self._pos = self._strict_until = 0
        if 0 < self._chunk_bytes >= self._missing:
            least, at, size = max(self._missing, JOINED), 0, 0
            while size < least and at < len(self._chunks):
                size += len(self._chunks[at])
                at += 1
            self._data = b"".join((rest, *self._chunks[:at]))
            del self._chunks[:at]
            self._chunk_bytes -= size
            self._missing = 0
            return True
        self._data = rest
        if self._want:
            self._count_taken()
        elif not rest:
            self._idle = True
            self._missing = 0
        return False

    def _set_apart(self) -> None:
        """Let `pieces` be the argument whose header is at `_pos`, and the data and chunks what follows it."""
        eol = self._data.find(b"\r", self._pos)
        begin = eol + 2
        length = int(self._data[self._pos + 1 : eol])
        self._count_taken()
        self._partial += begin - self._pos + length + len(CRLF)
        self._counted += 1  # with the one that `put` brings
        held: list[bytes | bytearray] = [self._data[begin:], *self._chunks]
        missing, at = length, 0
        while missing > len(held[at]):
            missing -= len(held[at])
            at += 1
        # All of them bytes: only then lets bytes.join others run meanwhile.
        self.pieces = [bytes(piece) for piece in (*held[:at], held[at][:missing])]
        data, at = bytes(held[at][missing:]), at + 1
        while len(data) < len(CRLF):  # skipped unseen, as behind any argument
            data += held[at]
            at += 1
        self._data = data[len(CRLF) :]
        self._chunks = held[at:]
        self._chunk_bytes = sum(map(len, self._chunks))
        self._pos = self._strict_until = self._missing = 0
        self._want -= 1

    def put(self, argument: bytes) -> None:
        """Go on with `pieces` put together."""
        self.pieces = []
        self._args.append(argument)

    def _count_taken(self) -> None:
        """Let `_partial` say how large the arguments are that the command has so far, with its header."""
        if not self._partial:
            self._partial = len(b"*%d\r\n" % (len(self._args) + self._want))
        self._partial += sum(len(b"$%d\r\n\r\n" % len(arg)) + len(arg) for arg in self._args[self._counted :])
        self._counted = len(self._args)

    def _apply_limits(self) -> None:
        """Let windows take only what the limits allow."""
        args, self._max_bulk = self._max_args, self._max_bulk_bytes
        if not self._authenticated:
            args = min(args, UNAUTHENTICATED_ARGS)
            self._max_bulk = min(self._max_bulk, UNAUTHENTICATED_BULK_BYTES)
        if self._max_bulk < WIDE or self._max_inline < len(_HEADERS[-1]):
            args = 0  # a window does not look at single lengths
        self._counts = _COUNTS
        if args < len(_COUNTS):
            self._counts = {header: count for header, count in _COUNTS.items() if count <= args}

    def _fail(self, message: str) -> NoReturn:
        """Drop everything: what follows a broken frame has no meaning."""
        self._error = message
        self._data = b""
        self._pos = self._missing = self._chunk_bytes = self._want = self._partial = 0
        self._chunks.clear()
        self._args = []
        raise ProtocolError(message)
