"""Who may run what: users, and the rules they are made of. Redis 7's, word for word (ACL SETUSER).

A user has passwords and selectors (acl_selector.py). The first selector, the root, is what the rules outside of
parentheses say; each `( .. )` is one more. A command may run if one selector alone allows it: the command, all its keys
and all its channels.

Rule 1: nothing is allowed that no rule allows; a new user may do nothing, and is off.
Rule 2: of a password only its SHA-256 is kept, as 64 hexadecimal digits.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from hashlib import sha256
from hmac import compare_digest

from .acl_selector import READ, Denial, RuleError, Selector, permissions_of
from .command_keys import Key, channels_of, has_channels, keys_of
from .commands import Command
from .errors import CommandError

_HASH = re.compile(rb"[0-9a-f]{64}")
# What matching the names in one command may take on the loop; so few keys take less in any case.
_MATCHING_NS = 50_000_000
_FEW = 2


def hash_of(password: bytes) -> str:
    return sha256(password).hexdigest()


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
        self.granted.clear()
        self.granted.update(other.granted)

    def settle(self) -> None:
        """Bring `granted` in step with the rules."""
        self.granted.clear()
        self.granted.update(*(selector.granted() for selector in self.selectors))

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
        """Why the user may not run a whole command, None where it may.

        Raises CommandError where that would take long to find out.
        """
        keys = keys_of(entry, words)
        if len(keys) > _FEW or has_channels(entry):
            self._check_time(entry, words, keys)
        worst = Denial(0)
        for selector in self.selectors:
            denial = selector.check(entry, words, keys)
            if denial is None:
                return None
            worst = max(worst, denial)
        return worst

    def _check_time(self, entry: Command, words: list[bytes], keys: list[Key]) -> None:
        permissions = {permissions_of(key.flags) for key in keys}
        names = [words[at] for at in ([key.at for key in keys] or channels_of(entry, words))]
        size = sum(map(len, names))
        asked = (patterns for selector in self.selectors for patterns in selector.asked(entry, words, permissions))
        if names and sum(patterns.ns(len(names), size) for patterns in asked) > _MATCHING_NS:
            raise CommandError(
                f"{len(names)} keys or channels are too many for one command of this user, against whose patterns they"
                " would take too long to match; send several"
            )

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

    @property
    def size(self) -> int:
        """How many rules `line` has."""
        return len(self.flags()) + len(self.passwords) + sum(selector.size for selector in self.selectors)

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
