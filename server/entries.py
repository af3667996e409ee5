"""What the log holds: settled commands, every choice made (ids, times, vectors), so that replay decides nothing.

An entry is written as a RESP command: its class's `verb`, then its fields. `encode` and `decode` are inverses to the
bit: floats as `repr`, times and counters as decimal integers, texts and vectors as they are.
Each entry that touches records carries `at`, unix milliseconds, the time of the command: what expires by then is gone
before the entry applies, in a replay as it was in life.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

from ..index.settings import Settings

if TYPE_CHECKING:
    from .payload import Loaded

Words = list[bytes]


def _int(value: int) -> bytes:
    return b"%d" % value


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
        return cls(words[1], _settings_from(words[2:14]), int(words[14]))


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
        return cls(words[1], _settings_from(words[2:14]), int(words[14]))


@dataclass(slots=True, frozen=True)
class Put:
    """The record `id` becomes exactly this. `vector` is float32 bytes as stored, b"" for none; `deadline` 0 is none;
    `next_id` is the counter afterwards, `max_words` how many words of the text are indexed."""

    verb: ClassVar[bytes] = b"PUT"
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

    def encode(self) -> Words:
        return [
            self.verb,
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
            _int(len(self.tags)),
            *self.tags,
            *self.meta,
        ]

    @classmethod
    def decode(cls, words: Words) -> Put:
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
        )


@dataclass(slots=True, frozen=True)
class Remove:
    """Records go; each of `ids` is there."""

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

    `loaded` is the payload as the command has read it, so that `apply` need not; it is used up then, and never written.
    """

    verb: ClassVar[bytes] = b"RESTORE"
    key: bytes
    payload: bytes
    deadline: int
    at: int
    loaded: Loaded | None = field(default=None, compare=False, repr=False)

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


Entry = Create | Configure | Put | Remove | SetMeta | SetDeadline | Drop | ExpireKey | Rename | Copy | Restore | Flush

_DECODERS = {
    kind.verb: kind.decode
    for kind in (Create, Configure, Put, Remove, SetMeta, SetDeadline, Drop, ExpireKey, Rename, Copy, Restore, Flush)
}


def decode(words: Words) -> Entry:
    """The entry that `words` encode; raises ValueError where they encode none."""
    try:
        return _DECODERS[words[0]](words)
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"not a log entry: {words[0][:64]!r}") from error


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
    ]


def _settings_from(words: Words) -> Settings:
    keyword, vector, recency, importance = (float(word) for word in words[3:7])
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
    )
