"""Reading a command's words, left to right: the first bad one decides the error."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime

import numpy as np
import numpy.typing as npt

from ..index.settings import DIM_MAX
from .errors import CommandError, not_a_float, not_an_integer, shown_word, syntax_error

_INTEGER = re.compile(rb"-?(?:0|[1-9][0-9]*)\Z")
_INT64_MAX = (1 << 63) - 1
#: Times are kept within these, unix milliseconds: years -10 000 to 12 000 or so, far inside 64 bits.
_TIME_MAX = 315_576_000_000_000
#: Ten thousand years, the longest TTL, in seconds.
TTL_MAX_S = 315_576_000_000
#: More than the name of any command or option has: of a longer word it is enough to look at so much.
NAME_BYTES = 64
# A float64 written out has fewer digits.
_NUMBER_BYTES = 1024

Floats = npt.NDArray[np.float64]


class Words:
    """A cursor over a command's words."""

    __slots__ = ("at", "words")

    def __init__(self, words: list[bytes], at: int = 0) -> None:
        self.words = words
        self.at = at

    def __bool__(self) -> bool:
        return self.at < len(self.words)

    def option(self) -> bytes:
        """The next word, upper-cased, as an option's name."""
        word = self.words[self.at]
        self.at += 1
        return word[:NAME_BYTES].upper()

    def unexpected(self) -> CommandError:
        """The error for the word just read."""
        return CommandError(f"unexpected argument '{shown_word(self.words[self.at - 1])}'")

    def next(self) -> bytes:
        """The next word; a syntax error where there is none."""
        if self.at >= len(self.words):
            raise syntax_error()
        word = self.words[self.at]
        self.at += 1
        return word

    def accept(self, name: bytes) -> bool:
        """Whether the next word is `name` (any case), which is then consumed."""
        if self.at < len(self.words) and self.words[self.at][:NAME_BYTES].upper() == name:
            self.at += 1
            return True
        return False

    def several(self, count: int) -> list[bytes]:
        """The next `count` words; a syntax error where there are fewer."""
        if count > len(self.words) - self.at:
            raise syntax_error()
        self.at += count
        return self.words[self.at - count : self.at]

    def integer(self) -> int:
        return integer(self.next())

    def counted(self) -> list[bytes]:
        """`n word1 .. wordn`."""
        count = self.integer()
        if count < 0:
            raise not_an_integer()
        return self.several(count)

    def real(self) -> float:
        return real(self.next())

    def weight(self) -> float:
        """A float that may be NaN: its range is the caller's to check."""
        return vector_number(self.next())

    def enum(self, *allowed: str) -> str:
        word = self.next()[:NAME_BYTES].upper().decode("latin-1")
        if word not in allowed:
            raise syntax_error()
        return word

    def time(self) -> int:
        return time_ms(self.next())

    def vector(self, option: bytes) -> Floats:
        """The value of VEC or FVEC: float64 (n,), not yet checked against a memory."""
        if option == b"VEC":
            blob = self.next()
            if len(blob) % 4:
                raise CommandError("vector is not float32 bytes; its length must be a multiple of 4")
            _check_dimensions(len(blob) // 4)
            with np.errstate(invalid="ignore"):  # of a signalling NaN
                return np.frombuffer(blob, "<f4").astype(np.float64)
        with np.errstate(over="ignore"):
            # Rounded to float32 as VEC's bytes are, so that both spellings of a vector are one vector.
            numbers = self.counted()
            _check_dimensions(len(numbers))
            return np.array([vector_number(word) for word in numbers], np.float32).astype(np.float64)


def _check_dimensions(count: int) -> None:
    if count > DIM_MAX:  # where a memory is asked, it knows what it takes
        raise CommandError(f"vector has {count} dimensions; a memory index takes at most {DIM_MAX}")


def integer(word: bytes) -> int:
    """A signed 64-bit decimal, as Redis reads one."""
    if len(word) <= 20 and _INTEGER.match(word):
        value = int(word)
        if -_INT64_MAX - 1 <= value <= _INT64_MAX and word != b"-0":
            return value
    raise not_an_integer()


def real(word: bytes) -> float:
    """A decimal or inf; NaN is refused."""
    value = vector_number(word)
    if math.isnan(value):
        raise not_a_float()
    return value


def vector_number(word: bytes) -> float:
    """A decimal, inf or nan."""
    try:
        if not 0 < len(word) <= _NUMBER_BYTES or word[:1].isspace() or word[-1:].isspace() or b"_" in word:
            raise not_a_float()
        return float(word)
    except ValueError:
        raise not_a_float() from None


def time_ms(word: bytes) -> int:
    """Unix milliseconds, or ISO 8601 where no zone means UTC."""
    try:
        if len(word) <= 20 and _INTEGER.match(word):
            value = int(word)
        elif len(word) > _NUMBER_BYTES:
            value = _TIME_MAX + 1
        else:
            moment = datetime.fromisoformat(word.decode("ascii"))
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=UTC)
            since = moment - datetime(1970, 1, 1, tzinfo=UTC)
            value = (since.days * 86_400 + since.seconds) * 1000 + since.microseconds // 1000
    except (ValueError, OverflowError):
        value = _TIME_MAX + 1
    if abs(value) > _TIME_MAX:
        raise CommandError(f"'{shown_word(word)}' is not a time: unix milliseconds or ISO 8601")
    return value
