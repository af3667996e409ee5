"""Users in a file: `aclfile`, one per line as ACL LIST shows them, and the `user` lines of the config file.

Rule 1: a file with an error is not loaded at all; the first errors are said, with their lines, and how many there are.
Rule 2: ACL SAVE replaces the file at once, or leaves it: whole in a new file, synced, renamed over the old one. The new
        one is as readable as the old one was; one that was not there only for the server's user.
Rule 3: what an error says goes to the log, so it shows no rule but the name of an unknown command.
"""

from __future__ import annotations

import logging
import os

from .acl import User, decoded, default_user, encoded
from .acl_bounds import check_name, is_full, shown
from .acl_selector import RuleError, has_spaces
from .acl_users import Acl, apply_rules
from .config import Config, ConfigError
from .config_rewrite import Users, replace_file

log = logging.getLogger("recalld")

# So many errors of a file fit into a reply.
_SHOWN = 10
_NOTHING_CHANGED = "WARNING: ACL errors detected, no change to the previously active ACL rules was performed"


class AclFileError(Exception):
    """The file cannot be used; the text, which names file and lines, may be shown."""


class TooManyUsers(AclFileError):
    """No line after this one can be better."""


class AclFile:
    """The file of `aclfile`."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)

    def read(self, *, allchannels: bool) -> dict[str, User]:
        """The users in the file by name; raises AclFileError."""
        try:
            with open(self.path, "rb") as file:
                lines = file.read().split(b"\n")
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
            reason = error.strerror if isinstance(error, OSError) else error
            raise AclFileError(f"Error loading ACLs, opening file '{self.path}': {reason}") from None
        users: dict[str, User] = {}
        errors = []
        for number, line in enumerate(lines, 1):
            words = line.strip(b" \t\r\n").split(b" ")
            if words == [b""]:
                continue
            try:
                user = _user_of(words, allchannels=allchannels)
                _check_new(user, users)
                users[user.name] = user
            except AclFileError as error:
                errors.append(f"{self.path}:{number}: {error}.")
                if isinstance(error, TooManyUsers):
                    break
        if errors:
            if len(errors) > _SHOWN:
                errors[_SHOWN:] = [f"And {len(errors) - _SHOWN} more."]
            raise AclFileError(" ".join([*errors, _NOTHING_CHANGED]))
        return users

    def write(self, acl: Acl) -> None:
        """Replace the file by the users as they are; raises OSError."""
        text = b"".join(acl.users[name].line() + b"\n" for name in acl.names())
        path = os.path.realpath(self.path)  # a link stays one
        try:
            old = os.stat(path)
        except FileNotFoundError:
            old = None
        replace_file(path, text, old)


def _user_of(words: list[bytes], *, allchannels: bool) -> User:
    """The user of a line, split into words; raises AclFileError."""
    if words[0] != b"user" or len(words) < 2:
        raise AclFileError("should start with user keyword followed by the username")
    if not words[1] or has_spaces(words[1]):
        raise AclFileError("the username contains invalid characters")
    rules = [rule for word in words[2:] if (rule := word.strip(b"\t\r\n"))]
    try:
        check_name(words[1])
        user = User(decoded(words[1]), allchannels=allchannels)
        apply_rules(user, rules, allchannels=allchannels)
    except RuleError as error:
        reason = error.args[0]
        if error.unknown_name:
            reason = f"Error in applying operation '{shown(error.args[1])}': {reason}"
        raise AclFileError(reason) from None
    return user


def _check_new(user: User, users: dict[str, User]) -> None:
    """Raise AclFileError if a line's user cannot stand beside those of the lines before."""
    if user.name in users:
        raise AclFileError(f"duplicate user '{shown(encoded(user.name))}'")
    count = len(users) + ("default" not in users and user.name != "default")  # who is there in any case
    if is_full(count):
        raise TooManyUsers(f"there are {count} users already, and there may be no more")


def users_to_rewrite(acl: Acl, password: str) -> Users:
    """The users as CONFIG REWRITE is to write them; `password` is requirepass."""
    allchannels = acl.allchannels

    def read(words: list[bytes]) -> tuple[str, bytes] | None:
        try:
            user = _user_of(words, allchannels=allchannels)
        except AclFileError:
            return None
        return user.name, user.line()

    return Users({name: acl.users[name].line() for name in acl.names()}, default_user(password).line(), read)


def load_users(config: Config, acl: Acl) -> AclFile | None:
    """At start: the users of `aclfile`, or of the config file; raises ConfigError."""
    users: dict[str, User] = {}
    for number, words in config.users:
        where = f"{config.path}:{number}: "
        try:
            user = _user_of([word.encode("utf-8", "surrogateescape") for word in words], allchannels=acl.allchannels)
            _check_new(user, users)
        except AclFileError as error:
            raise ConfigError(f"{where}{error}") from None
        users[user.name] = user
    if not config["aclfile"]:
        acl.replace_all(users)
        _warn_of_disabled(users)
        return None
    if users:
        raise ConfigError("users stand either in aclfile or in lines of the config file, not in both")
    file = AclFile(config["aclfile"])
    try:
        users = file.read(allchannels=acl.allchannels)
    except AclFileError as error:
        raise ConfigError(f"Aborting startup because of ACL errors: {error}") from None
    acl.replace_all(users)
    _warn_of_disabled(users)
    return file


def _warn_of_disabled(users: dict[str, User]) -> None:
    for user in users.values():
        if not user.enabled:
            log.info(
                "The user '%s' is disabled (there is no 'on' modifier in the user description). Make sure this is not a"
                " configuration error.",
                user.name,
            )
