"""Filters: one clause is a field, an operator and a value; several are ANDed.

Two ways give the same answer, and tests hold them to it: `Clause.matches` looks at one record, `mask` at all rows of a
view. The second encodes a metadata field as a column of value codes (FieldColumn), so that a clause is decided once per
distinct value and then gathered; tags become sets of slots (tags.py). Both are built when a large
memory is first filtered by them and extended by the rows added since; they only append, like the rows.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from sys import getsizeof
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .blocks import used_bytes
from .errors import BadMemory
from .fact_columns import FactColumns
from .side import CONFIDENCE, FLAGS, INVALID_AT, KIND, KINDS, NEVER, VALID_AT, VALID_UNTIL, Extra, Fact
from .tags import HAS, TagSlots

Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]

OPERATORS = frozenset(("EQ", "NE", "GT", "GTE", "LT", "LTE", "IN", "NIN", "CONTAINS", "PREFIX", "EXISTS"))
#: What a record has beside its metadata. The last row is facts' alone.
RESERVED = frozenset(
    (
        "@id @text @cid @importance @created_at @updated_at @kind @tags"
        " @valid_at @valid_until @invalid_at"
        " @subject @predicate @object @confidence @quote @episode"
    ).split()
)
_SIDE_TIMES = {"@valid_at": VALID_AT, "@valid_until": VALID_UNTIL, "@invalid_at": INVALID_AT}
TIMES = frozenset(("@created_at", "@updated_at", "@valid_at", "@valid_until", "@invalid_at"))

_PLAIN = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?\Z")
_NUMBER = re.compile(rb"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?\Z")
_PLAIN_DIGITS = 15
_CID_LEN = 59
# More than any operator or reserved field has: of a longer word it is enough to look at so much.
_NAME_BYTES = 64
# More than is sent of an error.
_SHOWN_BYTES = 4096

# A column's slots are sorted anew once one in so many is behind those sorted.
_SORTED_SHARE = 8
# So many rows are encoded within a fraction of a millisecond.
_BEHIND_MAX = 512
# Below this many rows a clause looks at each record: an encoded column would not pay for itself.
COLUMNS_MIN = 512


class Record(NamedTuple):
    """One row, as a clause reads it."""

    id: bytes
    text: bytes
    meta: tuple[bytes, ...]
    tags: tuple[bytes, ...]
    importance: float
    created_at: int
    updated_at: int
    extra: Extra | None = None  # None: a plain note


class Rows(Protocol):
    """All rows, as a clause reads them: a view (view.py)."""

    n: int
    ids: list[bytes]
    texts: list[bytes]
    metas: list[tuple[bytes, ...]]
    tags: list[tuple[bytes, ...]]
    facts: list[Fact | None]

    @property
    def columns(self) -> Columns: ...
    @property
    def created(self) -> npt.NDArray[np.int64]: ...
    @property
    def updated(self) -> npt.NDArray[np.int64]: ...
    @property
    def importance(self) -> npt.NDArray[np.float64]: ...
    def row(self, slot: int) -> Record: ...
    def side_column(self, name: int) -> npt.NDArray[np.int64] | None: ...


@dataclass(slots=True, frozen=True)
class Clause:
    """`field op value`. `values` are the value, or the members of IN's list; times are decimal milliseconds."""

    reserved: str  # "@name", or "" for metadata
    name: bytes  # the metadata field
    op: str
    values: tuple[bytes, ...]
    # The members as a set, and those that compare as numbers: a list of ten thousand costs what one word does.
    _raw: frozenset[bytes] = field(init=False, repr=False, compare=False)
    _numbers: frozenset[float] | None = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_raw", frozenset(self.values))
        object.__setattr__(self, "_numbers", frozenset() if self.op == HAS else None)

    @property
    def _plain(self) -> frozenset[float]:
        # Made where it is first needed, which for a long list is a thread: a microsecond a member.
        if self._numbers is None:
            plain = frozenset(float(value) for value in self.values if _is_plain(value))
            object.__setattr__(self, "_numbers", plain)
            return plain
        return self._numbers

    def matches(self, row: Record) -> bool:
        """Whether one record passes."""
        if self.reserved == "@tags":
            return self._any(row.tags)
        value = self._value(row)
        return self._any(() if value is None else (value,))

    def _any(self, held: tuple[bytes, ...]) -> bool:
        op = self.op
        if op == "EXISTS":
            return bool(held) == (self.values == (b"1",))
        if op == "NE" or op == "NIN":
            return not any(map(self._equals, held))
        return any(self.test(value) for value in held)

    def test(self, value: bytes) -> bool:
        """Whether one value that is there passes an operator other than EXISTS."""
        op = self.op
        if op == "EQ" or op == "IN" or op == HAS:
            return self._equals(value)
        if op == "NE" or op == "NIN":
            return not self._equals(value)
        wanted = self.values[0]
        if op == "CONTAINS":
            return wanted in value
        if op == "PREFIX":
            return value.startswith(wanted)
        order = compare(value, wanted)
        return (order > 0 and op[0] == "G") or (order < 0 and op[0] == "L") or (order == 0 and op in ("GTE", "LTE"))

    def _equals(self, value: bytes) -> bool:
        """Whether `value` is one of the clause's: the same bytes, or the same number where both are plain decimals."""
        return value in self._raw or (_is_plain(value) and float(value) in self._plain)

    def _value(self, row: Record) -> bytes | None:
        field = self.reserved
        if not field:
            return meta_value(row.meta, self.name)
        if field == "@id":
            return row.id
        if field == "@text":
            return row.text
        if field == "@importance":
            return number_text(row.importance)
        if field == "@created_at":
            return b"%d" % row.created_at
        if field == "@updated_at":
            return b"%d" % row.updated_at
        if field == "@cid":
            return content_id(row.text)
        extra = row.extra
        if field == "@kind":
            return KINDS[0 if extra is None else extra.kind]
        if extra is None:
            return None
        if field in _SIDE_TIMES:
            value = extra.times_and_flags[_SIDE_TIMES[field]]
            return None if abs(value) == NEVER else b"%d" % value
        if extra.fact is None:
            return None
        if field == "@confidence":
            return number_text(extra.confidence)
        return fact_value(extra.fact, field)

    # -- all rows

    def mask(self, rows: Rows) -> Bools:
        """bool (n,): the rows that pass."""
        n = rows.n
        if n < COLUMNS_MIN:
            row = rows.row
            return np.fromiter((self.matches(row(slot)) for slot in range(n)), np.bool_, n)
        field = self.reserved
        if not field:
            return rows.columns.meta(self.name, rows).mask(self, n)
        if field == "@tags":
            return rows.columns.tag_slots(rows).mask(self, n)
        if field in ("@created_at", "@updated_at"):
            column = rows.created if field == "@created_at" else rows.updated
            return self._distinct(column, lambda value: b"%d" % value)
        if field == "@importance":
            return self._distinct(rows.importance, number_text)
        if field == "@id":
            return self._each(rows.ids, n)
        if field == "@text":
            return self._each(rows.texts, n)
        if field == "@cid":
            return self._each(map(content_id, rows.texts[:n]), n)
        return self._side_mask(rows, field, n)

    def _side_mask(self, rows: Rows, field: str, n: int) -> Bools:
        """The fields that a plain note has not, and the kind."""
        if field == "@kind":
            kinds = rows.side_column(FLAGS)
            passes = np.array([self._any((kind,)) for kind in KINDS])
            return np.full(n, passes[0]) if kinds is None else passes[kinds & KIND]
        column = rows.side_column(_SIDE_TIMES.get(field, CONFIDENCE))
        absent = self._any(())
        if column is None:
            return np.full(n, absent)
        if field in _SIDE_TIMES:
            there = np.abs(column) != NEVER
            values = self._distinct(column[there], lambda value: b"%d" % value)
        else:
            facts = rows.facts
            there = np.fromiter((facts[slot] is not None for slot in range(n)), np.bool_, n)
            if field == "@confidence":
                values = self._distinct(column.view(np.float64)[there], number_text)
            else:
                held = (facts[slot] for slot in np.flatnonzero(there).tolist())
                found = [fact_value(fact, field) for fact in held if fact is not None]
                values = np.fromiter((self._any(() if value is None else (value,)) for value in found), np.bool_)
        mask = np.full(n, absent)
        mask[there] = values
        return mask

    def slots(self, rows: Rows, most: int) -> Int64s | None:
        """The rows that pass, ascending, where an index tells them and they are `most` at most; else None."""
        if self.reserved or rows.n < COLUMNS_MIN:
            return None
        return rows.columns.meta(self.name, rows).slots(self, rows.n, most)

    def known_count(self, rows: Rows) -> int | None:
        """About how many rows pass, where the index of a metadata field tells that at once; else None."""
        if self.reserved or rows.n < COLUMNS_MIN or self.op not in ("EQ", "IN"):
            return None
        return rows.columns.known_count(self, rows.n)

    def _each(self, values: Iterable[bytes], n: int) -> Bools:
        if self.op == "EXISTS":
            return np.full(n, self.values == (b"1",))
        test = self.test
        return np.fromiter((test(value) for _, value in zip(range(n), values, strict=False)), np.bool_, n)

    def _distinct(self, column: npt.NDArray[np.generic], text: Callable[[Any], bytes]) -> Bools:
        if self.op == "EXISTS":
            return np.full(len(column), self.values == (b"1",))
        if self.op in ("GT", "GTE", "LT", "LTE") and _NUMBER.match(self.values[0]):
            wanted = number(self.values[0])
            compared = {"GT": np.greater, "GTE": np.greater_equal, "LT": np.less, "LTE": np.less_equal}[self.op]
            result: Bools = compared(column, wanted)
            return result
        values, codes = np.unique(column, return_inverse=True)
        passes = np.fromiter((self.test(text(value)) for value in values.tolist()), np.bool_, len(values))
        gathered: Bools = passes[codes]
        return gathered


class FieldColumn:
    """One metadata field, dictionary-encoded: `codes[slot]` numbers a value, 0 where the record lacks the field.

    The slots of each value stand together in `_slots`, from `_starts[code]` on, for the first rows; they are sorted
    anew when many have come behind them.
    """

    __slots__ = ("_codes", "_known", "_n", "_name", "_numbers", "_slots", "_starts", "_values")

    def __init__(self, name: bytes) -> None:
        self._name = name
        self._n = 0
        self._numbers: dict[float, list[int]] = {}  # of the values that compare as numbers
        self._slots: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self._starts: Int64s = np.zeros(2, np.int64)
        self._codes: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self._known: dict[bytes, int] = {}
        self._values: list[bytes] = []

    def extend(self, metas: list[tuple[bytes, ...]], n: int) -> None:
        """Cover the first `n` rows."""
        if n <= self._n:
            return
        if n > len(self._codes):
            codes = np.zeros(n + (n >> 1), np.int32)
            codes[: self._n] = self._codes[: self._n]
            self._codes = codes
        name, known, values = self._name, self._known, self._values
        added: list[int] = []
        for meta in metas[self._n : n]:
            value = meta_value(meta, name) if meta else None
            if value is None:
                added.append(0)
                continue
            code = known.get(value)
            if code is None:
                values.append(value)
                code = known[value] = len(values)
                if _is_plain(value):
                    self._numbers.setdefault(float(value), []).append(code)
            added.append(code)
        self._codes[self._n : n] = added
        self._n = n

    def nbytes(self) -> int:
        """About how many bytes this takes; the values are the records'."""
        arrays = used_bytes(self._codes, 4 * self._n) + used_bytes(self._slots, 4 * self._n) + self._starts.nbytes
        values = getsizeof(self._values) + getsizeof(self._known) + 32 * len(self._values)
        return 200 + arrays + values + getsizeof(self._numbers) + 112 * len(self._numbers)

    def mask(self, clause: Clause, n: int) -> Bools:
        """bool (n,): the rows whose value passes."""
        absent = clause._any(())
        codes = self._codes[:n]
        if clause.op == "EXISTS":
            there: Bools = (codes > 0) != absent
            return there
        result: Bools = self._passing(clause)[codes]
        return result

    def _passing(self, clause: Clause) -> Bools:
        """bool (values + 1,): which codes pass."""
        passes = np.zeros(len(self._values) + 1, np.bool_)
        if clause.op in ("EQ", "IN", "NE", "NIN"):
            passes[self._equal(clause)] = True
            return passes if clause.op in ("EQ", "IN") else ~passes
        test = clause.test
        passes[1:] = [test(value) for value in self._values]
        passes[0] = clause._any(())
        return passes

    def _equal(self, clause: Clause) -> list[int]:
        """The codes of the values that equal one of the clause's, ascending."""
        known, numbers = self._known, self._numbers
        found = {known[value] for value in clause._raw if value in known}
        for number in clause._plain:
            found.update(numbers.get(number, ()))
        return sorted(found)

    def _codes_passing(self, clause: Clause) -> list[int]:
        """The codes that pass, ascending; 0 is that of records without the field."""
        if clause.op in ("EQ", "IN"):
            return self._equal(clause)
        codes: list[int] = np.flatnonzero(self._passing(clause)).tolist()
        return codes

    def known_count(self, clause: Clause, n: int) -> int | None:
        """About how many of the first `n` rows pass; None where that is not known at once."""
        sorted_n = int(self._starts[-1])
        if n - self._n > _BEHIND_MAX or (n - sorted_n) * _SORTED_SHARE > n:
            return None
        return sum(end - start for start, end in self._spans(self._codes_passing(clause))) + n - sorted_n

    def _spans(self, codes: list[int]) -> list[tuple[int, int]]:
        """Where the sorted slots of each of these codes stand, of those that have any."""
        starts = self._starts
        return [(int(starts[code]), int(starts[code + 1])) for code in codes if code < len(starts) - 1]

    def slots(self, clause: Clause, n: int, most: int) -> Int64s | None:
        """The slots below `n` that pass, ascending, if they are `most` at most."""
        if clause.op == "EXISTS":
            return None
        codes = self._codes_passing(clause)
        if codes and codes[0] == 0:
            return None  # records without the field pass too
        sorted_n = int(self._starts[-1])
        if (n - sorted_n) * _SORTED_SHARE > n:
            self._slots = np.argsort(self._codes[:n], kind="stable").astype(np.int32)
            counts = np.bincount(self._codes[:n], minlength=len(self._values) + 1)
            self._starts = np.concatenate(([0], np.cumsum(counts)))
            sorted_n = n
        spans = self._spans(codes)
        if sum(end - start for start, end in spans) > most:
            return None
        found = [self._slots[start:end] for start, end in spans]
        if sorted_n < n:
            behind = self._codes[sorted_n:n]
            found.append(sorted_n + np.flatnonzero(np.isin(behind, codes)).astype(np.int32))
        slots = np.concatenate(found).astype(np.int64) if found else np.zeros(0, np.int64)
        if sorted_n > n:
            slots = slots[slots < n]  # an older view has fewer rows
        if len(found) > 1:
            slots.sort()
        return slots if len(slots) <= most else None


class Columns:
    """The encoded columns of one table, built on demand. Not to be used by two threads at once."""

    __slots__ = ("_facts", "_meta", "_tags")

    # More fields than this are filtered by looking at each value anew: an unbounded cache would be a leak.
    MAX_FIELDS = 64

    def __init__(self) -> None:
        self._meta: dict[bytes, FieldColumn] = {}
        self._tags = TagSlots()
        self._facts = FactColumns()

    def nbytes(self) -> int:
        """About how many bytes all of them take."""
        return self._tags.nbytes() + self._facts.nbytes() + sum([column.nbytes() for column in [*self._meta.values()]])

    def known_count(self, clause: Clause, n: int) -> int | None:
        """About how many rows pass the clause; None where its field is not encoded yet, or many rows are not."""
        column = self._meta.get(clause.name)
        return None if column is None else column.known_count(clause, n)

    def meta(self, name: bytes, rows: Rows) -> FieldColumn:
        column = self._meta.get(name)
        if column is None:
            if len(self._meta) >= self.MAX_FIELDS:
                self._meta.pop(next(iter(self._meta)))
            column = self._meta[name] = FieldColumn(name)
        column.extend(rows.metas, rows.n)
        return column

    def tag_slots(self, rows: Rows) -> TagSlots:
        self._tags.extend(rows.tags, rows.n)
        return self._tags

    def facts(self, rows: Rows) -> FactColumns:
        self._facts.extend(rows.facts, rows.n)
        return self._facts


# -- clauses from words


def clause(field: bytes, op: bytes, value: bytes) -> Clause:
    """Compile `FILTER field op value`; raises BadMemory. Times must already be milliseconds (`is_time`)."""
    operator = op[:_NAME_BYTES].upper().decode("latin-1")
    name = field[:_NAME_BYTES].decode("latin-1")
    reserved = name.startswith("@")
    bad = operator not in OPERATORS or (reserved and name not in RESERVED)
    if bad or (operator == "EXISTS" and value not in (b"0", b"1")):
        shown = " ".join(word[:_SHOWN_BYTES].decode("utf-8", "surrogateescape") for word in (field, op))
        raise BadMemory(f"bad filter clause '{shown}'")
    values = split_list(value) if operator in ("IN", "NIN") else (value,)
    return Clause(name if reserved else "", b"" if reserved else field, operator, values)


def tag_clauses(mode: str, tags: Iterable[bytes]) -> list[Clause]:
    """`TAGS ANY|ALL`: one clause that any of the tags is there, or one for each."""
    if mode == "ANY":
        return [Clause("@tags", b"", HAS, tuple(tags))]
    return [Clause("@tags", b"", HAS, (tag,)) for tag in tags]


def is_time(field: bytes, op: bytes) -> bool:
    """Whether the clause's value may be a time."""
    if field[:_NAME_BYTES].decode("latin-1") not in TIMES:
        return False
    return op[:_NAME_BYTES].upper() not in (b"CONTAINS", b"PREFIX", b"EXISTS")


def split_list(value: bytes) -> tuple[bytes, ...]:
    r"""The members of a comma-separated list; `\,` is a comma inside one."""
    members = re.split(rb"(?<!\\),", value)
    return tuple(member.replace(rb"\,", b",") for member in members)


# -- values


def meta_value(meta: tuple[bytes, ...], name: bytes) -> bytes | None:
    """The value of a field in (field, value, field, value, ..)."""
    for at in range(0, len(meta), 2):
        if meta[at] == name:
            return meta[at + 1]
    return None


def fact_value(fact: Fact, field: str) -> bytes | None:
    """One of a fact's fields of bytes, by its reserved name; None where it has none."""
    value: bytes = getattr(fact, field[1:])
    return value or None


def _is_plain(text: bytes) -> bool:
    """A decimal of at most 15 digits: those that a float64 tells apart."""
    return _PLAIN.match(text) is not None and len(text) - text.count(b".") - text.count(b"-") <= _PLAIN_DIGITS


def compare(left: bytes, right: bytes) -> int:
    """-1, 0, 1: as numbers where both are numbers, else as bytes."""
    if _NUMBER.match(left) and _NUMBER.match(right):
        a, b = number(left), number(right)
        return (a > b) - (a < b)
    return (left > right) - (left < right)


def number(text: bytes) -> int | float:
    """The value of a decimal; integers exact (up to 300 digits)."""
    return int(text) if text.lstrip(b"-").isdigit() and len(text) < 300 else float(text)


def number_text(value: float) -> bytes:
    """The shortest decimal that reads back as `value`, without a trailing `.0`."""
    text = repr(float(value))
    return (text[:-2] if text.endswith(".0") else text).encode()


def content_id(text: bytes) -> bytes:
    """The text's CIDv1 (raw codec, sha2-256, base32), as `ipfs add --cid-version 1 --raw-leaves` names these bytes."""
    return _cid(hashlib.sha256(text).digest())


def _cid(digest: bytes) -> bytes:
    return b"b" + base64.b32encode(b"\x01\x55\x12\x20" + digest).rstrip(b"=").lower()


def content_digest(cid: bytes) -> bytes | None:
    """The sha256 of the texts that have this content id; None where the word is none as `content_id` writes them."""
    if len(cid) != _CID_LEN or not cid.startswith(b"bafkrei"):
        return None
    try:
        multihash = base64.b32decode(cid[1:].upper() + b"======")
    except ValueError:
        return None
    return multihash[4:] if _cid(multihash[4:]) == cid else None
