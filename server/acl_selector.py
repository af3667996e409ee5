"""Permissions: what the rules for commands, keys and channels that belong together allow.

The rules for commands are kept as they were written, those left out that later ones make void, so that what ACL LIST
shows and ACL SAVE writes is what was meant, for the commands of later versions too.
"""

from __future__ import annotations

import re
from collections.abc import Set
from functools import cache
from typing import NamedTuple

from .acl_patterns import Patterns
from .categories import CATEGORIES, categories, every_command
from .command_keys import Key, channels_of, has_channels
from .commands import TABLE, Command
from .names import NAME_MAX

READ, WRITE = 1, 2
_PREFIX = {READ: b"%R~", WRITE: b"%W~", READ | WRITE: b"~"}
_WRITES = ("insert", "delete", "update")

# C's isspace, and NUL.
_SPACES = re.compile(rb"[ \t\n\v\f\r\0]")

_UNKNOWN = "Unknown command or category name in ACL"
_SYNTAX = "Syntax error"
_AFTER_ALL = (
    "Adding a pattern after the * pattern (or the '{0}' flag) is not valid and does not have any effect. Try '{1}' to"
    " start with an empty list of {2}"
)


class RuleError(Exception):
    """A rule that cannot be. `unknown_name`: it names a command or category, so it may be shown; others may not."""

    @property
    def unknown_name(self) -> bool:
        return bool(self.args[0] == _UNKNOWN)


class Denial(NamedTuple):
    """Why a command may not run: `reason` is COMMAND, KEY or CHANNEL, `at` the place of that key or channel.

    Of several, Redis reports the greatest.
    """

    reason: int
    at: int = 0


COMMAND, KEY, CHANNEL = 1, 2, 4


def has_spaces(word: bytes) -> bool:
    return _SPACES.search(word) is not None


def look_up(name: bytes) -> Command | None:
    """The command of a rule's words: `get`, `client`, `client|kill`."""
    parts = name.lower().decode("latin-1").split("|")
    entry = TABLE.get(parts[0])
    if entry is None or len(parts) == 1:
        return entry
    return entry.subcommands.get(parts[1]) if len(parts) == 2 else None


class Selector:
    """One set of permissions."""

    __slots__ = (
        "_base",
        "_kept",
        "_matching_channels",
        "_matching_keys",
        "_parts",
        "allchannels",
        "allcommands",
        "allkeys",
        "allowed",
        "channels",
        "first_args",
        "keys",
    )

    def __init__(self, *, allchannels: bool = False) -> None:
        self.allcommands = False  # those to come, too
        self.allkeys = False
        self.allchannels = allchannels
        self.allowed: set[str] = set()  # full names
        self.first_args: dict[str, set[bytes]] = {}  # of commands not allowed otherwise, lower-cased
        self._base = b"-@all"  # the rule for commands that the others come after
        self._kept: dict[bytes, bytes] = {}  # what a rule for commands names -> the rule
        self._parts: dict[bytes, set[bytes]] = {}  # command -> what `_kept` names of it: subcommands, first arguments
        self.keys: dict[bytes, int] = {}  # pattern -> READ | WRITE
        self.channels: dict[bytes, None] = {}
        self._matching_keys: dict[int, Patterns] = {}  # those of `keys` with these permissions, made when needed
        self._matching_channels: Patterns | None = None

    def copy(self) -> Selector:
        other = Selector(allchannels=self.allchannels)
        other.allcommands, other.allkeys = self.allcommands, self.allkeys
        other.allowed = set(self.allowed)
        other._base, other._kept = self._base, dict(self._kept)
        other._parts = {name: set(parts) for name, parts in self._parts.items()}
        other.first_args = {name: set(words) for name, words in self.first_args.items()}
        other.keys, other.channels = dict(self.keys), dict(self.channels)
        return other

    # -- rules

    def apply(self, rule: bytes) -> None:
        """Change it by one rule; raises RuleError, and has changed nothing then."""
        self._matching_keys.clear()
        self._matching_channels = None
        word = rule.lower()
        match word:
            case b"allkeys" | b"~*":
                self.allkeys = True
                self.keys.clear()
            case b"resetkeys":
                self.allkeys = False
                self.keys.clear()
            case b"allchannels" | b"&*":
                self.allchannels = True
                self.channels.clear()
            case b"resetchannels":
                self.allchannels = False
                self.channels.clear()
            case b"allcommands" | b"+@all":
                self._set_all(True)
            case b"nocommands" | b"-@all":
                self._set_all(False)
            case _ if word[:1] in (b"~", b"%"):
                self._add_keys(rule)
            case _ if word[:1] == b"&":
                self._add_channels(rule[1:])
            case _ if word[:2] in (b"+@", b"-@"):
                self._set_category(word)
            case _ if word[:1] == b"+":
                self._allow(word)
            case _ if word[:1] == b"-":
                entry = look_up(word[1:])
                if entry is None:
                    raise RuleError(_UNKNOWN)
                self._set(_names_of(entry), allow=False)
                self._keep(word)
            case _:
                raise RuleError(_SYNTAX)

    def _set_all(self, allow: bool) -> None:
        self.allcommands = allow
        self.allowed = set(_kinds().every) if allow else set()
        self.first_args.clear()
        self._base = b"+@all" if allow else b"-@all"
        self._kept.clear()
        self._parts.clear()

    def _add_keys(self, rule: bytes) -> None:
        if self.allkeys:
            raise RuleError(_AFTER_ALL.format("allkeys", "resetkeys", "patterns"))
        permissions, pattern = READ | WRITE, rule[1:]
        if rule[:1] == b"%":
            letters, tilde, pattern = rule[1:].partition(b"~")
            given = letters.upper()
            if not tilde or given not in (b"R", b"W", b"RW", b"WR", b""):
                raise RuleError(_SYNTAX)
            permissions = READ * (b"R" in given) | WRITE * (b"W" in given)
            if not permissions:
                raise RuleError(_SYNTAX)
        _check_pattern(pattern)
        self.keys[pattern] = self.keys.get(pattern, 0) | permissions

    def _add_channels(self, pattern: bytes) -> None:
        if self.allchannels:
            raise RuleError(_AFTER_ALL.format("allchannels", "resetchannels", "channels"))
        _check_pattern(pattern)
        self.channels[pattern] = None

    def _set_category(self, word: bytes) -> None:
        category = word[1:].decode("latin-1")
        if category[1:] not in CATEGORIES:
            raise RuleError(_UNKNOWN)
        self._set(_names_in(category), allow=word[:1] == b"+")
        self._keep(word)

    def _allow(self, word: bytes) -> None:
        name, bar, argument = word[1:].rpartition(b"|")
        if not bar:
            name = argument
        entry = look_up(name)
        if entry is None:
            raise RuleError(_UNKNOWN)
        if bar:
            if "|" in entry.name:
                raise RuleError("Allowing first-arg of a subcommand is not supported")
            if not argument or has_spaces(argument):  # which would be two rules, or two users, in a file
                raise RuleError(_SYNTAX)
            if not entry.subcommands:
                self.first_args.setdefault(entry.name, set()).add(argument)
                self._keep(word)
                return
            entry = look_up(word[1:])
            if entry is None:
                raise RuleError(_UNKNOWN)
        self._set(_names_of(entry), allow=True)
        self._keep(word)

    def _set(self, names: Set[str], *, allow: bool) -> None:
        if allow:
            self.allowed |= names
        else:
            self.allowed -= names
            self.allcommands = self.allcommands and not names
        for name in self.first_args.keys() & names:
            del self.first_args[name]

    def _keep(self, word: bytes) -> None:
        """Remember a rule for commands. What an earlier one said of the same name, or of a part of it, is void."""
        name = word[1:]
        whole, bar, _ = name.partition(b"|")
        if bar:
            self._parts.setdefault(whole, set()).add(name)
        else:
            for part in self._parts.pop(name, ()):
                del self._kept[part]
        self._kept.pop(name, None)  # so that it comes last
        self._kept[name] = word

    # -- questions

    def allows_command(self, entry: Command, words: list[bytes]) -> bool:
        """Whether the command itself may run, with this first argument."""
        if self.allcommands or entry.name in self.allowed or "no_auth" in entry.flags:
            return True
        first = self.first_args.get(entry.name)
        return first is not None and len(words) > 1 and words[1].lower() in first

    def allows_key(self, key: bytes, permissions: int) -> bool:
        if self.allkeys:
            return True
        if len(key) > NAME_MAX:
            return False  # patterns would take too long to match
        return self._key_patterns(permissions).match(key)

    def _key_patterns(self, permissions: int) -> Patterns:
        patterns = self._matching_keys.get(permissions)
        if patterns is None:
            patterns = Patterns(pattern for pattern, given in self.keys.items() if given & permissions == permissions)
            self._matching_keys[permissions] = patterns
        return patterns

    def allows_channel(self, channel: bytes, *, is_pattern: bool) -> bool:
        """A pattern of PSUBSCRIBE must stand among the rules as it is: whether it matches no more than they do is not
        for anybody to find out."""
        if self.allchannels:
            return True
        if is_pattern:
            return channel in self.channels
        if len(channel) > NAME_MAX:
            return False
        return self._channel_patterns().match(channel)

    def _channel_patterns(self) -> Patterns:
        if self._matching_channels is None:
            self._matching_channels = Patterns(self.channels)
        return self._matching_channels

    def asked(self, entry: Command, words: list[bytes], permissions: Set[int]) -> list[Patterns]:
        """The patterns that `check` matches: of keys with these permissions, of channels where there are none."""
        if not self.allows_command(entry, words):
            return []
        if permissions:
            return [] if self.allkeys else [self._key_patterns(each) for each in permissions]
        return [] if self.allchannels or entry.name == "psubscribe" else [self._channel_patterns()]

    def check(self, entry: Command, words: list[bytes], keys: list[Key]) -> Denial | None:
        """Why the selector does not allow a whole command, None where it does."""
        if not self.allows_command(entry, words):
            return Denial(COMMAND)
        if not self.allkeys:
            for key in keys:
                if key.required and not self.allows_key(words[key.at], permissions_of(key.flags)):
                    return Denial(KEY, key.at)
        if not self.allchannels:
            for at in channels_of(entry, words):
                if not self.allows_channel(words[at], is_pattern=entry.name == "psubscribe"):
                    return Denial(CHANNEL, at)
        return None

    def granted(self) -> Set[str]:
        """The names of the commands that may run whatever their words are."""
        kinds = _kinds()
        names = kinds.every if self.allcommands else self.allowed | kinds.no_auth
        if not self.allkeys:
            names = names - kinds.with_keys
        return names if self.allchannels else names - kinds.with_channels

    # -- as words

    def keys_text(self) -> bytes:
        if self.allkeys:
            return b"~*"
        # `~*` last, where `%R~*` and `%W~*` came to it: no pattern may follow it when the line is read again.
        words = [_PREFIX[permissions] + pattern for pattern, permissions in self.keys.items()]
        return b" ".join(sorted(words, key=b"~*".__eq__))

    def channels_text(self) -> bytes:
        return b"&*" if self.allchannels else b" ".join(b"&" + pattern for pattern in self.channels)

    def commands_text(self) -> bytes:
        return b" ".join([self._base, *self._kept.values()])

    @property
    def size(self) -> int:
        """How many words `text` has."""
        return len(self.keys) + self.allkeys + 1 + len(self.channels) + 1 + len(self._kept)

    def text(self) -> bytes:
        """The rules that make it."""
        reset = [] if self.allchannels else [b"resetchannels"]
        parts = [self.keys_text(), *reset, self.channels_text(), self.commands_text()]
        return b" ".join(part for part in parts if part)


@cache
def permissions_of(key_flags: str) -> int:
    """What must be allowed for these words of KEY_FLAGS. For a key that is only looked for: nothing but its name."""
    flags = key_flags.split()
    return READ * ("access" in flags) | WRITE * any(flag in flags for flag in _WRITES)


def _check_pattern(pattern: bytes) -> None:
    if has_spaces(pattern):
        raise RuleError(_SYNTAX)


class _Kinds(NamedTuple):
    """Names of commands, their subcommands too."""

    every: frozenset[str]
    no_auth: frozenset[str]
    with_keys: frozenset[str]
    with_channels: frozenset[str]


@cache
def _kinds() -> _Kinds:
    commands = list(every_command())
    return _Kinds(
        frozenset(entry.name for entry in commands),
        frozenset(entry.name for entry in commands if "no_auth" in entry.flags),
        frozenset(entry.name for entry in commands if entry.keys != (0, 0, 0)),
        frozenset(entry.name for entry in commands if has_channels(entry)),
    )


def _names_of(entry: Command) -> set[str]:
    """Of a command and its subcommands."""
    return {entry.name, *(each.name for each in entry.subcommands.values())}


@cache
def _names_in(category: str) -> frozenset[str]:
    """Of the commands in a category, with their subcommands."""
    return frozenset(name for entry in every_command() if category in categories(entry) for name in _names_of(entry))
