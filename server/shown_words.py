"""A command's words as SLOWLOG and MONITOR may show them: without secrets, without vectors, of bounded size.

Rule 1: what a password may be in is shown as Redis shows it, `(redacted)`.
Rule 2: a vector is shown by its size: its numbers say nothing to a person, and would crowd out all the rest.
"""

from __future__ import annotations

from collections.abc import Iterator

REDACTED = b"(redacted)"

#: Settings whose values are secrets. (Redis has the users of `masteruser` among them too; there are no replicas here.)
SECRET_SETTINGS = frozenset({b"requirepass", b"masterauth", b"tls-key-file-pass", b"tls-client-key-file-pass"})
# All that follows the name may say something about a user's password.
_ALL_SECRET = frozenset({"auth", "acl|setuser", "acl|deluser", "acl|getuser"})
# What follows their first three words are those of another command.
_QUOTES = frozenset({"acl|dryrun", "command|getkeys", "command|getkeysandflags"})

_BLOBS = frozenset({b"VEC", b"ENTITYVEC"})
_NUMBERS = frozenset({b"FVEC", b"ENTITYFVEC"})
# What follows a word VEC in a text is not a vector: only what is too long to be read anyway is taken for one.
_SHORT_BYTES = 32
_FEW_NUMBERS = 8

# As in Redis (SLOWLOG_ENTRY_MAX_ARGC, SLOWLOG_ENTRY_MAX_STRING).
SLOWLOG_WORDS = 32
_SLOWLOG_WORD_BYTES = 128


def shown(name: str, words: list[bytes], *, first: int | None = None) -> list[bytes]:
    """The words of a command, secrets and vectors taken out; `name` as in the command table. Where only so many `first`
    words will be seen, vectors behind them may stay."""
    if name in _ALL_SECRET:
        head = 1 + name.count("|")
        return words[:head] + [REDACTED] * (len(words) - head)
    if name == "hello":
        return list(_hello(words))
    if name == "config|set":
        # Behind the name wherever it stands: a word that was left out must not show a password.
        return words[:2] + [
            REDACTED if at and words[at + 1].lower() in SECRET_SETTINGS else word for at, word in enumerate(words[2:])
        ]
    if name in _QUOTES:
        return words[:3] + [REDACTED] * (len(words) - 3)
    return list(_without_vectors(words, len(words) if first is None else first)) if name.startswith("mem.") else words


def _hello(words: list[bytes]) -> Iterator[bytes]:
    secret = 0
    for word in words:
        yield REDACTED if secret else word
        # Wherever it stands: it may be a client's name, or stand in the place of the version that was left out.
        secret = 2 if word.upper() == b"AUTH" else max(0, secret - 1)


def _without_vectors(words: list[bytes], most: int) -> Iterator[bytes]:
    at = 0
    for _ in range(most):
        if at >= len(words):
            return
        word = words[at]
        yield word
        at += 1
        option = word.upper() if len(word) < 12 else b""
        if option in _BLOBS and at < len(words) and len(words[at]) > _SHORT_BYTES:
            yield b"(vector of %d bytes)" % len(words[at])
            at += 1
        elif option in _NUMBERS and at < len(words) and words[at].isdigit() and len(words[at]) < 9:
            count = int(words[at])
            if _FEW_NUMBERS < count < len(words) - at:
                yield words[at]
                yield b"(vector of %d numbers)" % count
                at += 1 + count
    yield from words[at:]


def cut(words: list[bytes]) -> list[bytes]:
    """As SLOWLOG cuts them: 32 words of 128 bytes, each cut saying how much is left out."""
    kept = words if len(words) <= SLOWLOG_WORDS else words[: SLOWLOG_WORDS - 1]
    found = [
        word
        if len(word) <= _SLOWLOG_WORD_BYTES
        else word[:_SLOWLOG_WORD_BYTES] + b"... (%d more bytes)" % (len(word) - _SLOWLOG_WORD_BYTES)
        for word in kept
    ]
    if len(kept) < len(words):
        found.append(b"... (%d more arguments)" % (len(words) - len(kept)))
    return found
