"""Who may run what: users, and the rules they are made of. Redis 7's, word for word (ACL SETUSER).

A user has passwords and selectors. The first selector, the root, is what the rules outside of parentheses say; each
`( .. )` is one more. A command may run if one selector alone allows it: the command, all its keys and all its channels.

Rule 1: nothing is allowed that no rule allows; a new user may do nothing, and is off.
Rule 2: of a password only its SHA-256 is kept, as 64 hexadecimal digits.
Rule 3: the rules for commands are kept as they were written, those left out that later ones make void, so that what
        ACL LIST shows and ACL SAVE writes is what was meant, for the commands of later versions too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable
from functools import cache
from hashlib import sha256
from hmac import compare_digest
from typing import NamedTuple

from .categories import CATEGORIES, categories, every_command
from .command_keys import Key, channels_of, has_channels, keys_of
from .commands import TABLE, Command
from .errors import CommandError
from .glob import compile_glob

READ, WRITE = 1, 2
_PREFIX = {READ: b"%R~", WRITE: b"%W~", READ | WRITE: b"~"}
_WRITES = ("insert", "delete", "update")

# C's isspace, and NUL.
_SPACES = re.compile(rb"[ \t\n\v\f\r\0]")
_HASH = re.compile(rb"[0-9a-f]{64}")

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


def hash_of(password: bytes) -> str:
    return sha256(password).hexdigest()


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
        "_matchers",
        "allchannels",
        "allcommands",
        "allkeys",
        "allowed",
        "channels",
        "first_args",
        "keys",
        "rules",
    )

    def __init__(self, *, allchannels: bool = False) -> None:
        self.allcommands = False  # those to come, too
        self.allkeys = False
        self.allchannels = allchannels
        self.allowed: set[str] = set()  # full names
        self.first_args: dict[str, set[bytes]] = {}  # of commands not allowed otherwise, lower-cased
        self.rules: list[bytes] = [b"-@all"]
        self.keys: dict[bytes, int] = {}  # pattern -> READ | WRITE
        self.channels: dict[bytes, None] = {}
        self._matchers: list[tuple[int, Callable[[bytes], object]]] | None = None  # of `keys`, made when needed

    def copy(self) -> Selector:
        other = Selector(allchannels=self.allchannels)
        other.allcommands, other.allkeys = self.allcommands, self.allkeys
        other.allowed, other.rules = set(self.allowed), list(self.rules)
        other.first_args = {name: set(words) for name, words in self.first_args.items()}
        other.keys, other.channels = dict(self.keys), dict(self.channels)
        return other

    # -- rules

    def apply(self, rule: bytes) -> None:
        """Change it by one rule; raises RuleError, and has changed nothing then."""
        self._matchers = None
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
                self._set(entry, allow=False)
                self._keep(word)
            case _:
                raise RuleError(_SYNTAX)

    def _set_all(self, allow: bool) -> None:
        self.allcommands = allow
        self.allowed = {entry.name for entry in every_command()} if allow else set()
        self.first_args.clear()
        self.rules = [b"+@all" if allow else b"-@all"]

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
        for entry in every_command():
            if category in categories(entry):
                self._set(entry, allow=word[:1] == b"+")
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
        self._set(entry, allow=True)
        self._keep(word)

    def _set(self, entry: Command, *, allow: bool) -> None:
        for each in (entry, *entry.subcommands.values()):
            if allow:
                self.allowed.add(each.name)
            else:
                self.allowed.discard(each.name)
                self.allcommands = False
            self.first_args.pop(each.name, None)

    def _keep(self, word: bytes) -> None:
        """Remember a rule for commands. What an earlier one said of the same name, or of a part of it, is void."""
        name = word[1:]
        self.rules = [
            rule for at, rule in enumerate(self.rules) if not at or (rule[1:] != name and not _is_part(rule[1:], name))
        ]
        self.rules.append(word)

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
        if self._matchers is None:
            self._matchers = [(given, compile_glob(pattern).fullmatch) for pattern, given in self.keys.items()]
        return any(given & permissions == permissions and matches(key) is not None for given, matches in self._matchers)

    def allows_channel(self, channel: bytes, *, is_pattern: bool) -> bool:
        """A pattern of PSUBSCRIBE must stand among the rules as it is: whether it matches no more than they do is not
        for anybody to find out."""
        if self.allchannels:
            return True
        if is_pattern:
            return channel in self.channels
        return any(compile_glob(pattern).fullmatch(channel) is not None for pattern in self.channels)

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

    def grants(self, entry: Command) -> bool:
        """Whether the command may run whatever its words are."""
        return (
            (self.allcommands or entry.name in self.allowed or "no_auth" in entry.flags)
            and (self.allkeys or entry.keys == (0, 0, 0))
            and (self.allchannels or not has_channels(entry))
        )

    # -- as words

    def keys_text(self) -> bytes:
        if self.allkeys:
            return b"~*"
        return b" ".join(_PREFIX[permissions] + pattern for pattern, permissions in self.keys.items())

    def channels_text(self) -> bytes:
        return b"&*" if self.allchannels else b" ".join(b"&" + pattern for pattern in self.channels)

    def commands_text(self) -> bytes:
        return b" ".join(self.rules)

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
    try:
        compile_glob(pattern)
    except CommandError as error:
        raise RuleError(error.message) from None


def _is_part(name: bytes, whole: bytes) -> bool:
    return name.startswith(whole + b"|")


class User:
    """A user. `granted` has the names of the commands that may run whatever their words are: for most commands of most
    users that is all there is to check. The set stays the same object, so that clients may hold it."""

    __slots__ = ("enabled", "granted", "name", "nopass", "passwords", "sanitize", "selectors")

    def __init__(self, name: str, *, allchannels: bool = False) -> None:
        self.name = name
        self.enabled = False
        self.nopass = False
        self.passwords: dict[str, None] = {}
        self.sanitize: bytes | None = None  # Redis's flag for RESTORE, which checks every payload here
        self.selectors = [Selector(allchannels=allchannels)]
        self.granted: set[str] = set()

    def copy(self) -> User:
        other = User(self.name)
        other.become(self)
        return other

    def become(self, other: User) -> None:
        """Take over all but the name."""
        self.enabled, self.nopass, self.sanitize = other.enabled, other.nopass, other.sanitize
        self.passwords = dict(other.passwords)
        self.selectors = [selector.copy() for selector in other.selectors]
        self.settle()

    def settle(self) -> None:
        """Bring `granted` in step with the rules."""
        self.granted.clear()
        self.granted.update(
            entry.name
            for entry in every_command()
            if any(selector.grants(entry) for selector in self.selectors)
        )

    # -- rules

    def apply(self, rule: bytes, *, allchannels: bool) -> None:
        """Change it by one rule; raises RuleError. `allchannels` is what `reset` leaves of the channels.

        `settle` must follow the last rule.
        """
        match rule.lower():
            case b"":
                pass
            case b"on":
                self.enabled = True
            case b"off":
                self.enabled = False
            case b"nopass":
                self.nopass = True
                self.passwords.clear()
            case b"resetpass":
                self.nopass = False
                self.passwords.clear()
            case b"skip-sanitize-payload" | b"sanitize-payload" as flag:
                self.sanitize = flag
            case b"clearselectors":
                del self.selectors[1:]
            case b"reset":
                self.enabled = self.nopass = False
                self.passwords.clear()
                self.sanitize = b"sanitize-payload"
                self.selectors = [Selector(allchannels=allchannels)]
            case _ if rule[:1] in (b">", b"#"):
                self.passwords[_hash_in(rule)] = None
                self.nopass = False
            case _ if rule[:1] in (b"<", b"!"):
                if self.passwords.pop(_hash_in(rule), False) is False:
                    raise RuleError("The password you are trying to remove from the user does not exist")
            case _ if rule[:1] == b"(" and rule[-1:] == b")":
                selector = Selector(allchannels=allchannels)
                for inner in rule[1:-1].split():
                    if inner.endswith(b")"):  # the user's line would end the selector there, and not be read again
                        raise RuleError("Syntax error")
                    selector.apply(inner)
                self.selectors.append(selector)
            case _:
                self.selectors[0].apply(rule)

    # -- questions

    def has_password(self, password: bytes) -> bool:
        digest = hash_of(password)
        return self.nopass or any(compare_digest(digest, each) for each in self.passwords)

    def check(self, entry: Command, words: list[bytes]) -> Denial | None:
        """Why the user may not run a whole command, None where it may."""
        keys = keys_of(entry, words)
        worst = Denial(0)
        for selector in self.selectors:
            denial = selector.check(entry, words, keys)
            if denial is None:
                return None
            worst = max(worst, denial)
        return worst

    def may_read_with(self, entry: Command, words: list[bytes], key: bytes) -> bool:
        """Whether the command may read this key beside those that its words require."""
        return any(
            selector.allows_command(entry, words) and selector.allows_key(key, READ) for selector in self.selectors
        )

    def may_run(self, entry: Command) -> bool:
        """Whether the user may run the command, with some words."""
        return any(selector.allows_command(entry, []) for selector in self.selectors)

    def channels_denied(self, channels: Collection[bytes], patterns: Collection[bytes]) -> bool:
        """Whether the user may not listen to one of these."""
        return not all(
            any(selector.allows_channel(name, is_pattern=is_pattern) for selector in self.selectors)
            for names, is_pattern in ((channels, False), (patterns, True))
            for name in names
        )

    # -- as words

    def flags(self) -> list[bytes]:
        words = [b"on" if self.enabled else b"off"]
        words += [b"nopass"] * self.nopass
        return words if self.sanitize is None else [*words, self.sanitize]

    def line(self) -> bytes:
        """As ACL LIST shows the user, and a file holds it."""
        root, *others = (selector.text() for selector in self.selectors)
        passwords = (b"#" + password.encode() for password in self.passwords)
        words = [b"user", encoded(self.name), *self.flags(), *passwords, root]
        return b" ".join([*words, *(b"(" + other + b")" for other in others)])


def _hash_in(rule: bytes) -> str:
    if rule[:1] in (b">", b"<"):
        return hash_of(rule[1:])
    if _HASH.fullmatch(rule[1:]) is None:
        raise RuleError(
            "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"
        )
    return rule[1:].decode()


def encoded(name: str) -> bytes:
    return name.encode("utf-8", "surrogateescape")


def decoded(name: bytes) -> str:
    return name.decode("utf-8", "surrogateescape")


def merged(words: Iterable[bytes]) -> list[bytes]:
    """The rules in these words: a selector may come in several, `(+get` and `~a)`.

    Raises RuleError where one is not closed, with its first word as the second argument.
    """
    rules: list[bytes] = []
    opened: list[bytes] = []
    for word in words:
        if word[:1] == b"(" and word[-1:] != b")":
            opened = [word]
        elif opened:
            opened.append(word)
            if word[-1:] == b")":
                rules.append(b" ".join(opened))
                opened = []
        else:
            rules.append(word)
    if opened:
        raise RuleError("Unmatched parenthesis in acl selector", opened[0])
    return rules


def default_user(password: str = "") -> User:
    """The user that a connection has before AUTH: it may do everything, with `password` if there is one."""
    user = User("default")
    for rule in (b"on", b"+@all", b"~*", b"&*", b">" + encoded(password) if password else b"nopass"):
        user.apply(rule, allchannels=True)
    user.settle()
    return user
