"""Python values as the words of a command."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import numpy.typing as npt

Text = str | bytes
#: Unix milliseconds, a datetime (without a zone: UTC, as the server reads one), or ISO 8601.
Time = int | str | datetime
#: Seconds.
Span = int | float | timedelta
#: Numbers, or the bytes of little-endian float32 ones.
Vector = npt.ArrayLike
#: Fields and values, a number as its decimals. (A mapping of str is no mapping of str or bytes: hence three.)
Meta = Mapping[str, Any] | Mapping[bytes, Any] | Mapping[Text, Any]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)


def text(value: Text) -> bytes:
    """Bytes as they are; of a str UTF-8, where lone surrogates are the bytes that were no UTF-8 in a reply."""
    return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")


def number(value: float) -> bytes:
    """A number, numpy's too, so that the server reads the same one."""
    return b"%d" % value if isinstance(value, int | np.integer) else repr(float(value)).encode()


def time(value: Time) -> bytes:
    """A time; what is below a millisecond is cut off."""
    if isinstance(value, datetime):
        zoned = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        return b"%d" % ((zoned - _EPOCH) // _MILLISECOND)
    return text(value) if isinstance(value, str) else b"%d" % value


def seconds(value: Span) -> bytes:
    """Whole seconds; a part of one counts as one, so that nothing goes earlier than was said."""
    return b"%d" % math.ceil(value.total_seconds() if isinstance(value, timedelta) else value)


def vector(value: Vector) -> bytes:
    """Little-endian float32 bytes. Raises ValueError for what is no one-dimensional array of numbers."""
    if isinstance(value, bytes):
        return value
    with np.errstate(over="ignore"):  # beyond float32 is infinity, which the server refuses with a reason
        array = np.asarray(value, "<f4")
    if array.ndim != 1:
        raise ValueError(f"a vector has one dimension, this has shape {array.shape}")
    return array.tobytes()


def counted(values: Iterable[Text]) -> tuple[bytes, ...]:
    """`n value1 .. valuen`. Raises TypeError for a lone text, which is an iterable of its letters too."""
    if isinstance(values, str | bytes):
        raise TypeError(f"a list of texts is needed, not {values!r}")
    found = tuple(text(value) for value in values)
    return (b"%d" % len(found), *found)
