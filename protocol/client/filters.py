"""Filters: which records a command looks at.

    F("price") < 10                 a metadata field; @id, @text, @kind, @created_at, .. are the record's own
    F("lang").isin("en", "de")
    F.tags.any("work", "travel")
    ("price", "LT", 10)             the same as the first: field, operator, value as the server has them

Several are ANDed; there is no OR but `isin` and `tags.any`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import ClassVar, TypeGuard

import numpy as np

from . import words

Value = str | bytes | int | float | datetime


@dataclass(frozen=True, slots=True)
class Filter:
    """One clause; `words` is how it stands in a command."""

    words: tuple[bytes, ...]


Clause = tuple[str, str, Value]
Filters = Filter | Clause | Iterable[Filter | Clause]


class _Tags:
    """Clauses on a record's tags."""

    def any(self, *tags: words.Text) -> Filter:
        """It has at least one of them."""
        return Filter((b"TAGS", b"ANY", *words.counted(tags)))

    def all(self, *tags: words.Text) -> Filter:
        """It has all of them."""
        return Filter((b"TAGS", b"ALL", *words.counted(tags)))


class F:
    """A field to compare: of the metadata, or with a leading `@` the record's own."""

    tags: ClassVar[_Tags] = _Tags()
    __hash__: ClassVar[None]  # type: ignore[assignment]  # `==` makes a clause, so a field is no key of a dict

    def __init__(self, field: words.Text) -> None:
        self._field = words.text(field)

    def _is(self, operator: str, value: Value) -> Filter:
        return Filter((b"FILTER", self._field, operator.encode(), _value(value)))

    def __eq__(self, value: Value) -> Filter:  # type: ignore[override]
        return self._is("EQ", value)

    def __ne__(self, value: Value) -> Filter:  # type: ignore[override]
        return self._is("NE", value)

    def __gt__(self, value: Value) -> Filter:
        return self._is("GT", value)

    def __ge__(self, value: Value) -> Filter:
        return self._is("GTE", value)

    def __lt__(self, value: Value) -> Filter:
        return self._is("LT", value)

    def __le__(self, value: Value) -> Filter:
        return self._is("LTE", value)

    def isin(self, *values: Value) -> Filter:
        """It equals one of them."""
        return self._is("IN", _joined(values))

    def notin(self, *values: Value) -> Filter:
        """It equals none of them; a record without the field passes."""
        return self._is("NIN", _joined(values))

    def contains(self, part: words.Text) -> Filter:
        return self._is("CONTAINS", part)

    def startswith(self, prefix: words.Text) -> Filter:
        return self._is("PREFIX", prefix)

    def exists(self, there: bool = True) -> Filter:
        """It is there, or it is not."""
        return self._is("EXISTS", int(there))


def filter_words(filters: Filters) -> tuple[bytes, ...]:
    """All clauses as words. Raises TypeError for what is none."""
    if isinstance(filters, Filter) or _is_clause(filters):
        return filter_words([filters])
    found: list[bytes] = []
    for each in filters:
        if _is_clause(each):
            found += F(each[0])._is(each[1], each[2]).words
        elif isinstance(each, Filter):
            found += each.words
        else:
            raise TypeError(f'a filter is F("field") < value or ("field", "LT", value), not {each!r}')
    return tuple(found)


def _is_clause(value: object) -> TypeGuard[Clause]:
    return isinstance(value, tuple) and len(value) == 3 and all(isinstance(each, str) for each in value[:2])


def _value(value: Value) -> bytes:
    if isinstance(value, datetime):
        return words.time(value)
    if isinstance(value, str | bytes):
        return words.text(value)
    if isinstance(value, int | float | np.integer | np.floating):
        return words.number(value)
    raise TypeError(f"a filter's value is a text, a number or a datetime, not {value!r}")


def _joined(values: tuple[Value, ...]) -> bytes:
    r"""A comma-separated list, `\,` for a comma inside a value."""
    found = [_value(value).replace(b",", rb"\,") for value in values]
    if any(value.endswith(b"\\") for value in found[:-1]):
        raise ValueError("a value that ends with a backslash can only be the last of a list")
    return b",".join(found)
