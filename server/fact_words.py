"""A fact's words: how subject, predicate and object are written, and MEM.FACT's options.

Bytes that are no UTF-8 stay as they are: they count as one character each, and no rule here touches them.
"""

from __future__ import annotations

import string
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..index.entities import entity_name, type_named
from ..index.side import NEVER
from .arguments import Floats, Words, time_ms
from .errors import CommandError
from .record_commands import check_ttl

if TYPE_CHECKING:
    from .config import Config

_OBJECT_CHARS = 500
# With the spaces around it. One that is far too long is not looked at.
_OBJECT_BYTES = 16 * _OBJECT_CHARS
_ASCII_PUNCTUATION = frozenset(string.punctuation)


class Stood(NamedTuple):
    """What IMPORT says of a fact that stood elsewhere: `invalid_at` is NEVER, `superseded_by` b"" for none."""

    created_at: int
    invalid_at: int
    superseded_by: bytes


@dataclass(slots=True)
class FactDraft:
    """MEM.FACT's words, read and not yet looked at in the light of the memory. What the command left out is None, an
    empty list, or b"" for a type."""

    subject: bytes
    predicate: bytes
    object: bytes
    type: bytes = b""
    confidence: float | None = None
    quote: bytes | None = None
    episode: bytes | None = None
    valid_at: int | None = None
    valid_until: int | None = None
    at: int | None = None
    id: bytes | None = None
    supersedes: bytes | None = None
    vector: Floats | None = None
    entity_vector: Floats | None = None
    meta: list[bytes] = field(default_factory=list)
    tags: tuple[bytes, ...] | None = None
    ttl_s: int = 0
    stood: Stood | None = None
    is_restated: bool = False  # known once it is stated


def read_fact(words: Words, config: Config, now: int) -> FactDraft:
    """Read `subject predicate object` and MEM.FACT's options; raises CommandError."""
    subject, predicate, spoken = (words.next() for _ in range(3))
    limit = config["mem-max-text-bytes"]
    if len(subject) + len(predicate) > limit:  # before they are looked at
        raise CommandError(f"text exceeds mem-max-text-bytes ({limit})")
    told = object_words(spoken) if len(spoken) <= _OBJECT_BYTES else spoken
    draft = FactDraft(entity_name(subject), predicate_words(predicate), told)
    if not (draft.subject and draft.predicate and draft.object):
        raise CommandError("subject, predicate and object must not be empty")
    if config["mem-fact-subjects"] == "user" and draft.subject != b"user":
        raise CommandError("subject must be 'user' (mem-fact-subjects user)")
    if len(draft.object) > _OBJECT_BYTES or characters(draft.object) > _OBJECT_CHARS:
        raise CommandError(f"object exceeds {_OBJECT_CHARS} characters")
    if len(draft.subject) + len(draft.predicate) + len(draft.object) + 2 > limit:
        raise CommandError(f"text exceeds mem-max-text-bytes ({limit})")
    while words:
        _read_option(words, draft, limit)
    check_times(draft, now)
    # An entity's name is lower-cased, which may make it longer.
    if draft.type and characters(entity_name(draft.object)) > _OBJECT_CHARS:
        raise CommandError(f"object exceeds {_OBJECT_CHARS} characters")
    if draft.entity_vector is not None and not draft.type:
        raise CommandError("ENTITYVEC needs TYPE")
    if draft.stood is not None and draft.id is None:
        raise CommandError("IMPORT needs ID")
    return draft


def _read_option(words: Words, draft: FactDraft, max_bytes: int) -> None:
    option = words.option()
    if option == b"TYPE":
        draft.type = type_named(words.next())
    elif option == b"CONFIDENCE":
        draft.confidence = words.weight() + 0.0  # never -0
        if not 0 <= draft.confidence <= 1:
            raise CommandError("CONFIDENCE must be between 0 and 1")
    elif option == b"QUOTE":
        draft.quote = words.next()
        if len(draft.quote) > max_bytes:
            raise CommandError(f"QUOTE exceeds mem-max-text-bytes ({max_bytes})")
    elif option == b"VALIDAT":
        draft.valid_at = words.time()
    elif option == b"VALIDUNTIL":
        draft.valid_until = words.time()
    elif option == b"AT":
        draft.at = words.time()
    elif option == b"EPISODE":
        draft.episode = words.next()
    elif option == b"ID":
        draft.id = words.next()
    elif option == b"SUPERSEDES":
        draft.supersedes = words.next()
    elif option in (b"VEC", b"FVEC"):
        draft.vector = words.vector(option)
    elif option in (b"ENTITYVEC", b"ENTITYFVEC"):
        draft.entity_vector = words.vector(option.removeprefix(b"ENTITY"))
    elif option == b"META":
        draft.meta += words.several(2)
    elif option == b"TAGS":
        draft.tags = tuple(dict.fromkeys(words.counted()))
    elif option == b"TTL":
        draft.ttl_s = words.integer()
        if draft.ttl_s <= 0:
            raise CommandError("TTL must be positive")
        check_ttl(draft.ttl_s)
    elif option == b"IMPORT":
        created_at, invalid_at = words.time(), words.next()
        draft.stood = Stood(created_at, time_ms(invalid_at) if invalid_at else NEVER, words.next())
    else:
        raise words.unexpected()


def check_times(draft: FactDraft, now: int) -> None:
    """Refuse what is never valid."""
    written = now if draft.at is None else draft.at
    valid_at = written if draft.valid_at is None else draft.valid_at
    if draft.valid_until is not None and draft.valid_until <= valid_at:
        raise CommandError("VALIDUNTIL must be after VALIDAT")


def predicate_words(word: bytes) -> bytes:
    """Lower-cased, punctuation replaced by spaces, these collapsed."""
    lower = _text(word).lower()
    bare = "".join(" " if _is_punctuation(char) else char for char in lower)
    return _bytes(" ".join(bare.split()))


def object_words(word: bytes) -> bytes:
    """As written, but for spaces around it."""
    return _bytes(_text(word).strip())


def characters(word: bytes) -> int:
    """How many characters; a byte that is part of none is one."""
    return len(_text(word))


def _is_punctuation(char: str) -> bool:
    return char in _ASCII_PUNCTUATION or (not char.isascii() and unicodedata.category(char)[0] == "P")


def _text(word: bytes) -> str:
    return word.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
