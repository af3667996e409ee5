"""What the log holds: settled commands, every choice made (ids, times, vectors), so that replay decides nothing.

An entry is written as a RESP command: its class's `verb`, then its fields. `encode` and `decode` are inverses to the
bit: floats as `repr`, times and counters as decimal integers, texts and vectors as they are.
Each entry that touches records carries `at`, unix milliseconds, the time of the command: what expires by then is gone
before the entry applies, in a replay as it was in life.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ..index.settings import Settings
from ..index.side import Extra, Fact

if TYPE_CHECKING:
    from ..index.memory import Memory

Words = list[bytes]


# What stands before a word in RESP; behind the word before it there is a line's end.
_HEADERS = [b"\r\n$%d\r\n" % length for length in range(8193)]


def _int(value: int) -> bytes:
    return b"%d" % value


def _packed(words: Iterable[bytes]) -> bytes:
    return b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])


def _header(word: bytes) -> bytes:
    length = len(word)
    return _HEADERS[length] if length < 8193 else b"\r\n$%d\r\n" % length


@dataclass(slots=True, frozen=True)
class Create:
    """A memory begins, empty, whatever the key held."""

    verb: ClassVar[bytes] = b"CREATE"
    key: bytes
    settings: Settings
    at: int

    def encode(self) -> Words:
        return [self.verb, self.key, *_settings_words(self.settings), _int(self.at)]

    @classmethod
    def decode(cls, words: Words) -> Create:
        return cls(words[1], _settings_from(words[2:-1]), int(words[-1]))


@dataclass(slots=True, frozen=True)
class Configure:
    """New settings; mode, dim, metric and lang are the old ones."""

    verb: ClassVar[bytes] = b"CONFIGURE"
    key: bytes
    settings: Settings
    at: int

    def encode(self) -> Words:
        return [self.verb, self.key, *_settings_words(self.settings), _int(self.at)]

    @classmethod
    def decode(cls, words: Words) -> Configure:
        return cls(words[1], _settings_from(words[2:-1]), int(words[-1]))


@dataclass(slots=True)  # frozen, it would take three times as long to make
class Put:
    """The record `id` becomes exactly this. `vector` is float32 bytes as stored, b"" for none; `deadline` 0 is none;
    `next_id` is the counter afterwards, `max_words` how many words of the text are indexed. With `extra` (None: a plain
    note) the verb is RECORD, and what `extra` holds stands before the tags."""

    verb: ClassVar[bytes] = b"PUT"
    record_verb: ClassVar[bytes] = b"RECORD"
    key: bytes
    id: bytes
    text: bytes
    vector: bytes
    meta: tuple[bytes, ...]  # field, value, field, value, ..
    tags: tuple[bytes, ...]
    importance: float
    created_at: int
    updated_at: int
    deadline: int
    next_id: int
    max_words: int
    at: int
    extra: Extra | None = None

    def encode(self) -> Words:
        return [
            self.verb if self.extra is None else self.record_verb,
            self.key,
            self.id,
            self.text,
            self.vector,
            repr(self.importance).encode(),
            _int(self.created_at),
            _int(self.updated_at),
            _int(self.deadline),
            _int(self.next_id),
            _int(self.max_words),
            _int(self.at),
            *([] if self.extra is None else _extra_words(self.extra)),
            _int(len(self.tags)),
            *self.tags,
            *self.meta,
        ]

    @classmethod
    def decode(cls, words: Words) -> Put:
        extra = None
        if words[0] == cls.record_verb:
            extra, rest = _extra_from(words[12:])
            words = words[:12] + rest
        tags_end = 13 + int(words[12])
        created_at, updated_at, deadline, next_id, max_words, at = (int(word) for word in words[6:12])
        return cls(
            words[1],
            words[2],
            words[3],
            words[4],
            tuple(words[tags_end:]),
            tuple(words[13:tags_end]),
            float(words[5]),
            created_at,
            updated_at,
            deadline,
            next_id,
            max_words,
            at,
            extra,
        )


class PutNew:
    """New plain notes of one memory, all of one moment, as columns. The log has a Put of each, packed as they come, so
    nothing decodes this."""

    __slots__ = (
        "_head",
        "_tail",
        "_tail_of",
        "at",
        "ids",
        "importance",
        "key",
        "max_words",
        "metas",
        "next_id",
        "packed",
        "tags",
        "texts",
        "vectors",
    )

    def __init__(self, key: bytes, next_id: int, max_words: int, at: int) -> None:
        self.key = key
        self.next_id = next_id
        self.max_words = max_words
        self.at = at
        self.ids: list[bytes] = []
        self.texts: list[bytes] = []
        self.vectors: list[bytes] = []
        self.metas: list[tuple[bytes, ...]] = []
        self.tags: list[tuple[bytes, ...]] = []
        self.importance: list[float] = []
        self.packed: list[bytes] = []
        self._head = _packed((Put.verb, key))[:-2]  # a header begins with the line's end
        self._tail_of = -1.0, -1  # the importance and the counter of which `_tail` is
        self._tail = b""

    def add(
        self,
        record_id: bytes,
        text: bytes,
        vector: bytes,
        meta: tuple[bytes, ...],
        tags: tuple[bytes, ...],
        importance: float,
        next_id: int,
    ) -> None:
        """One more, after which the counter is `next_id`."""
        self.ids.append(record_id)
        self.texts.append(text)
        self.vectors.append(vector)
        self.metas.append(meta)
        self.tags.append(tags)
        self.importance.append(importance)
        self.next_id = next_id
        if self._tail_of != (importance, next_id):
            self._tail_of = importance, next_id
            times = _int(self.at), _int(self.at), b"0"
            numbers = repr(importance).encode(), *times, _int(next_id), _int(self.max_words), _int(self.at)
            self._tail = b"\r\n" + _packed(numbers)
        count, rest = b"*13\r\n", b"$1\r\n0\r\n"
        if tags or meta:
            count = b"*%d\r\n" % (13 + len(tags) + len(meta))
            rest = _packed((_int(len(tags)), *tags, *meta))
        words = (_header(record_id), record_id, _header(text), text, _header(vector), vector)
        self.packed.append(b"".join((count, self._head, *words, self._tail, rest)))


@dataclass(slots=True, frozen=True)
class Remove:
    """Records go; each of `ids` is there. Where the memory holds history, their versions stay in it."""

    verb: ClassVar[bytes] = b"REMOVE"
    key: bytes
    ids: tuple[bytes, ...]
    at: int

    def encode(self) -> Words:
        return [self.verb, self.key, _int(self.at), *self.ids]

    @classmethod
    def decode(cls, words: Words) -> Remove:
        return cls(words[1], tuple(words[3:]), int(words[2]))


@dataclass(slots=True, frozen=True)
class Forget:
    """Records go with all their versions: those of `ids`, which are there, and what is left of those that have gone, by
    their `serials`."""

    verb: ClassVar[bytes] = b"FORGET"
    key: bytes
    ids: tuple[bytes, ...]
    serials: tuple[int, ...]
    at: int

    def encode(self) -> Words:
        return [self.verb, self.key, _int(self.at), _int(len(self.ids)), *self.ids, *map(_int, self.serials)]

    @classmethod
    def decode(cls, words: Words) -> Forget:
        ids_end = 4 + int(words[3])
        return cls(words[1], tuple(words[4:ids_end]), tuple(map(int, words[ids_end:])), int(words[2]))


@dataclass(slots=True, frozen=True)
class Invalidate:
    """A fact is invalid from `invalid_at` on (NEVER: not invalidated any more), superseded by a fact, b"" for none."""

    verb: ClassVar[bytes] = b"INVALIDATE"
    key: bytes
    id: bytes
    invalid_at: int
    superseded_by: bytes
    at: int

    def encode(self) -> Words:
        return [self.verb, self.key, self.id, _int(self.invalid_at), self.superseded_by, _int(self.at)]

    @classmethod
    def decode(cls, words: Words) -> Invalidate:
        return cls(words[1], words[2], int(words[3]), words[4], int(words[5]))


@dataclass(slots=True, frozen=True)
class Retell:
    """A fact says this now, its text made anew; vector and times stay."""

    verb: ClassVar[bytes] = b"RETELL"
    key: bytes
    id: bytes
    fact: Fact
    max_words: int
    at: int

    def encode(self) -> Words:
        return [self.verb, self.key, self.id, *self.fact, _int(self.max_words), _int(self.at)]

    @classmethod
    def decode(cls, words: Words) -> Retell:
        return cls(words[1], words[2], Fact(*words[3:11]), int(words[11]), int(words[12]))


@dataclass(slots=True, frozen=True)
class PutEntity:
    """The entity of this name and type becomes exactly this; `vector` is float32 bytes, b"" for none."""

    verb: ClassVar[bytes] = b"ENTITY"
    key: bytes
    name: bytes
    type: bytes
    created_at: int
    vector: bytes
    aliases: tuple[bytes, ...]
    at: int

    def encode(self) -> Words:
        return [
            self.verb,
            self.key,
            self.name,
            self.type,
            _int(self.created_at),
            _int(self.at),
            self.vector,
            *self.aliases,
        ]

    @classmethod
    def decode(cls, words: Words) -> PutEntity:
        return cls(words[1], words[2], words[3], int(words[4]), words[6], tuple(words[7:]), int(words[5]))


@dataclass(slots=True, frozen=True)
class DropEntity:
    """An entity, which is there, goes."""

    verb: ClassVar[bytes] = b"DROPENTITY"
    key: bytes
    name: bytes
    type: bytes
    at: int

    def encode(self) -> Words:
        return [self.verb, self.key, self.name, self.type, _int(self.at)]

    @classmethod
    def decode(cls, words: Words) -> DropEntity:
        return cls(words[1], words[2], words[3], int(words[4]))


@dataclass(slots=True, frozen=True)
class SetMeta:
    """A record's metadata becomes exactly this."""

    verb: ClassVar[bytes] = b"META"
    key: bytes
    id: bytes
    meta: tuple[bytes, ...]
    at: int

    def encode(self) -> Words:
        return [self.verb, self.key, self.id, _int(self.at), *self.meta]

    @classmethod
    def decode(cls, words: Words) -> SetMeta:
        return cls(words[1], words[2], tuple(words[4:]), int(words[3]))


@dataclass(slots=True, frozen=True)
class SetDeadline:
    """A record's deadline becomes `deadline`, unix milliseconds; 0 is none."""

    verb: ClassVar[bytes] = b"DEADLINE"
    key: bytes
    id: bytes
    deadline: int
    at: int

    def encode(self) -> Words:
        return [self.verb, self.key, self.id, _int(self.deadline), _int(self.at)]

    @classmethod
    def decode(cls, words: Words) -> SetDeadline:
        return cls(words[1], words[2], int(words[3]), int(words[4]))


@dataclass(slots=True, frozen=True)
class SetVectors:
    """Records get vectors, float32 bytes as stored: (id, serial, vector) each. Those that are not the same record any
    more are skipped, and so are those that have this very vector. `fills`: as part of the Switch before it, in the same
    turn of the loop."""

    verb: ClassVar[bytes] = b"VECTORS"
    fill_verb: ClassVar[bytes] = b"FILL"
    key: bytes
    items: tuple[tuple[bytes, int, bytes], ...]
    at: int
    fills: bool = False

    def encode(self) -> Words:
        words = [self.fill_verb if self.fills else self.verb, self.key, _int(self.at)]
        for record_id, serial, vector in self.items:
            words += (record_id, _int(serial), vector)
        return words

    @classmethod
    def decode(cls, words: Words) -> SetVectors:
        items = zip(words[3::3], map(int, words[4::3]), words[5::3], strict=True)
        return cls(words[1], tuple(items), int(words[2]), words[0] == cls.fill_verb)


@dataclass(slots=True, frozen=True)
class Switch:
    """Another model, and with it perhaps another width: all vectors of records and entities go."""

    verb: ClassVar[bytes] = b"SWITCH"
    key: bytes
    settings: Settings
    at: int

    def encode(self) -> Words:
        return [self.verb, self.key, *_settings_words(self.settings), _int(self.at)]

    @classmethod
    def decode(cls, words: Words) -> Switch:
        return cls(words[1], _settings_from(words[2:-1]), int(words[-1]))


@dataclass(slots=True, frozen=True)
class Drop:
    """Keys go."""

    verb: ClassVar[bytes] = b"DROP"
    keys: tuple[bytes, ...]

    def encode(self) -> Words:
        return [self.verb, *self.keys]

    @classmethod
    def decode(cls, words: Words) -> Drop:
        return cls(tuple(words[1:]))


@dataclass(slots=True, frozen=True)
class ExpireKey:
    """A key's deadline becomes `deadline`, unix milliseconds; 0 is none."""

    verb: ClassVar[bytes] = b"EXPIREKEY"
    key: bytes
    deadline: int

    def encode(self) -> Words:
        return [self.verb, self.key, _int(self.deadline)]

    @classmethod
    def decode(cls, words: Words) -> ExpireKey:
        return cls(words[1], int(words[2]))


@dataclass(slots=True, frozen=True)
class Rename:
    """`key` becomes `to`, which is overwritten; the deadline moves along."""

    verb: ClassVar[bytes] = b"RENAME"
    key: bytes
    to: bytes

    def encode(self) -> Words:
        return [self.verb, self.key, self.to]

    @classmethod
    def decode(cls, words: Words) -> Rename:
        return cls(words[1], words[2])


@dataclass(slots=True, frozen=True)
class Copy:
    """`to` becomes a copy of `key` with its deadline and counter; it is overwritten."""

    verb: ClassVar[bytes] = b"COPY"
    key: bytes
    to: bytes

    def encode(self) -> Words:
        return [self.verb, self.key, self.to]

    @classmethod
    def decode(cls, words: Words) -> Copy:
        return cls(words[1], words[2])


@dataclass(slots=True, frozen=True)
class Restore:
    """`key` becomes the memory of a payload (payload.py), whatever it held; `deadline` is the key's, 0 is none.

    `memory` is the payload as the command has read it, so that `apply` need not; it is used up then, and never written.
    """

    verb: ClassVar[bytes] = b"RESTORE"
    key: bytes
    payload: bytes
    deadline: int
    at: int
    memory: Memory | None = field(default=None, compare=False, repr=False)

    def encode(self) -> Words:
        return [self.verb, self.key, _int(self.deadline), _int(self.at), self.payload]

    @classmethod
    def decode(cls, words: Words) -> Restore:
        return cls(words[1], words[4], int(words[2]), int(words[3]))


@dataclass(slots=True, frozen=True)
class Flush:
    """Every key goes."""

    verb: ClassVar[bytes] = b"FLUSH"

    def encode(self) -> Words:
        return [self.verb]

    @classmethod
    def decode(cls, words: Words) -> Flush:
        return cls()


Entry = (
    Create
    | Configure
    | Put
    | Remove
    | Forget
    | Invalidate
    | Retell
    | PutEntity
    | DropEntity
    | SetMeta
    | SetDeadline
    | SetVectors
    | Switch
    | Drop
    | ExpireKey
    | Rename
    | Copy
    | Restore
    | Flush
)

_KINDS = (
    *(Create, Configure, Put, Remove, Forget, Invalidate, Retell, PutEntity, DropEntity, SetMeta, SetDeadline),
    *(SetVectors, Switch, Drop, ExpireKey, Rename, Copy, Restore, Flush),
)
_DECODERS = {
    **{kind.verb: kind.decode for kind in _KINDS},
    Put.record_verb: Put.decode,
    SetVectors.fill_verb: SetVectors.decode,
}


def decode(words: Words) -> Entry:
    """The entry that `words` encode; raises ValueError where they encode none."""
    try:
        return _DECODERS[words[0]](words)
    except (KeyError, IndexError, TypeError, ValueError) as error:  # TypeError: a fact of too few words
        raise ValueError(f"not a log entry: {words[0][:64]!r}") from error


# What the words of earlier versions lack at the end: history, embedder, model, tagboost, the next model, owner,
# max_records, max_bytes.
_LATER_SETTINGS: Words = [b"0", b"", b"", b"0.0", b"", b"", b"0", b"", b"0", b"0"]


def _settings_words(settings: Settings) -> Words:
    return [
        settings.mode.encode(),
        _int(settings.dim),
        settings.metric.encode(),
        *(repr(weight).encode() for weight in settings.weights),
        _int(settings.half_life),
        settings.fusion.encode(),
        settings.lang.encode(),
        repr(settings.k1).encode(),
        repr(settings.b).encode(),
        _int(settings.history),
        settings.embedder.encode(),
        settings.model.encode(),
        repr(settings.tagboost).encode(),
        settings.next_embedder.encode(),
        settings.next_model.encode(),
        _int(settings.next_dim),
        settings.owner.encode("utf-8", "surrogateescape"),
        _int(settings.max_records),
        _int(settings.max_bytes),
    ]


def _settings_from(words: Words) -> Settings:
    keyword, vector, recency, importance = (float(word) for word in words[3:7])
    words = words + _LATER_SETTINGS[len(words) - 12 :]
    return Settings(
        mode=words[0].decode(),
        dim=int(words[1]),
        metric=words[2].decode(),
        weights=(keyword, vector, recency, importance),
        half_life=int(words[7]),
        fusion=words[8].decode(),
        lang=words[9].decode(),
        k1=float(words[10]),
        b=float(words[11]),
        history=int(words[12]),
        embedder=words[13].decode(),
        model=words[14].decode(),
        tagboost=float(words[15]),
        next_embedder=words[16].decode(),
        next_model=words[17].decode(),
        next_dim=int(words[18]),
        owner=words[19].decode("utf-8", "surrogateescape"),
        max_records=int(words[20]),
        max_bytes=int(words[21]),
    )


def _extra_words(extra: Extra) -> Words:
    fact = [b"0"] if extra.fact is None else [b"1", *extra.fact]
    return [*map(_int, extra.times_and_flags), repr(extra.confidence).encode(), *fact]


def _extra_from(words: Words) -> tuple[Extra, Words]:
    """What `_extra_words` made of it, and the words behind."""
    fact = Fact(*words[9:17]) if words[8] == b"1" else None
    written, since, known_to, valid_at, valid_until, invalid_at, flags = map(int, words[:7])
    extra = Extra(written, since, known_to, valid_at, valid_until, invalid_at, flags, float(words[7]), fact)
    return extra, words[9:] if fact is None else words[17:]
