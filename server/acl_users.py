"""The users of a server, and what their rules mean for its clients: checks, refusals, connections that are cut.

Rule 1: a change of a user is whole or not at all: it is made on a copy, which then takes the user's place.
Rule 2: who is deleted or switched off is out at once: connections are closed, and what they have under way writes no
        more (Client.check_user). So is who listens to a channel, or monitors, and may not any more.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .acl import User, decoded, default_user, encoded, hash_of, merged
from .acl_bounds import NAME_BYTES_MAX, check_rules, check_user, is_full
from .acl_log import AclLog
from .acl_selector import COMMAND, KEY, Denial, RuleError
from .client_line import client_line
from .commands import TABLE
from .errors import CommandError

if TYPE_CHECKING:
    from .client import Client
    from .commands import Command
    from .config import Config

_WRONGPASS = "invalid username-password pair or user is disabled."
_LISTENS = (
    "this user has no permissions to listen to what this connection listens to (SUBSCRIBE, PSUBSCRIBE or MONITOR);"
    " RESET it first"
)
_CHANGED = (
    "ACLs rules changed between the moment the transaction was accumulated and the EXEC call. This command is no longer"
    " allowed for the following reason: "
)


class Acl:
    """Users by name. `clients` are the server's, by id."""

    def __init__(self, config: Config, clients: dict[int, Client]) -> None:
        self.default = default_user(config["requirepass"])
        self.users = {"default": self.default}
        self.log = AclLog(config["acllog-max-len"])
        self._clients = clients
        self._config = config
        config.on_change("acllog-max-len", self.log.resize)
        config.on_change("requirepass", self._set_default_password)

    @property
    def allchannels(self) -> bool:
        """Whether a new user may listen everywhere."""
        return bool(self._config["acl-pubsub-default"] == "allchannels")

    def names(self) -> list[str]:
        return sorted(self.users, key=encoded)

    def find(self, name: bytes) -> User | None:
        return self.users.get(decoded(name)) if len(name) <= NAME_BYTES_MAX else None

    # -- who it is

    @property
    def is_open(self) -> bool:
        """Whether a client that has not logged in counts as the default user."""
        return self.default.nopass and self.default.enabled

    def authenticate(self, name: bytes, password: bytes) -> User | None:
        """The user, if there is one of that name with that password who is on."""
        user = self.find(name)
        if user is None:
            hash_of(password)  # the time it takes shall not tell who exists
            return None
        return user if user.has_password(password) and user.enabled else None

    def log_in(self, ctx: Client, name: bytes, password: bytes, command: bytes) -> None:
        """Make it that user's connection; raises CommandError."""
        user = self.authenticate(name, password)
        if user is None:
            self._refused(ctx, "auth", command, name)
            raise CommandError(_WRONGPASS, "WRONGPASS")
        if _overhears(ctx, user):
            raise CommandError(_LISTENS, "NOPERM")
        ctx.log_in(user)

    # -- what it may do

    def check(self, ctx: Client, entry: Command, words: list[bytes]) -> None:
        """Raise CommandError if the client may not run this command."""
        if not ctx.authenticated:
            if "no_auth" in entry.flags:
                return
            if not self.is_open:
                raise CommandError("Authentication required.", "NOAUTH")
        denial = self._denial(ctx, entry, words, in_multi=ctx.multi is not None)
        if denial is None:
            return
        if denial.reason == COMMAND:
            message = f"this user has no permissions to run the '{entry.name}' command"
        else:
            kind = "keys" if denial.reason == KEY else "channels"
            message = f"this user has no permissions to access one of the {kind} used as arguments"
        raise CommandError(message, "NOPERM")

    def check_queued(self, ctx: Client, entry: Command, words: list[bytes]) -> None:
        """The same for a command that EXEC is about to run, whose user's rules may have changed since it was queued."""
        if not ctx.authenticated and not self.is_open:
            raise CommandError("Authentication required.", "NOAUTH")
        denial = self._denial(ctx, entry, words, in_multi=True)
        if denial is None:
            return
        if denial.reason == COMMAND:
            reason = "no permission to execute the command or subcommand"
        elif denial.reason == KEY:
            reason = "no permission to touch the specified keys"
        else:
            reason = "no permission to access one of the channels used as arguments"
        raise CommandError(_CHANGED + reason, "NOPERM")

    def _denial(self, ctx: Client, entry: Command, words: list[bytes], *, in_multi: bool) -> Denial | None:
        denial = ctx.account.check(entry, words)
        if denial is not None:
            ctx.last_command = entry.name
            name = encoded(entry.name) if denial.reason == COMMAND else words[denial.at]
            reason = {COMMAND: "command", KEY: "key"}.get(denial.reason, "channel")
            self._refused(ctx, reason, name, encoded(ctx.user), in_multi=in_multi)
        return denial

    def _refused(self, ctx: Client, reason: str, name: bytes, username: bytes, *, in_multi: bool = False) -> None:
        context = "multi" if in_multi or ctx.multi is not None or ctx.in_exec else "toplevel"
        ctx.server.stats.denied[reason] += 1
        self.log.add(reason, context, name, username, client_line(ctx, ctx.now).rstrip("\n"), ctx.now)

    # -- changes

    def set_user(self, name: bytes, rules: Iterable[bytes], ctx: Client | None = None) -> None:
        """Make a user, or change the one there is; raises RuleError as apply_rules does."""
        user = self.find(name)
        if user is None and is_full(len(self.users)):
            raise RuleError(
                f"there are {len(self.users)} users already, and there may be no more; delete some first (ACL DELUSER)"
            )
        staged = user.copy() if user is not None else User(decoded(name), allchannels=self.allchannels)
        apply_rules(staged, rules, allchannels=self.allchannels)
        self._replace([staged], ctx)

    def delete(self, names: Iterable[bytes], ctx: Client | None = None) -> int:
        """Delete users and cut their clients; how many there were."""
        found = {user for name in names if (user := self.find(name)) is not None}
        for user in found:
            del self.users[user.name]
        self._cut((client for client in self._clients.values() if client.account in found), ctx)
        return len(found)

    def replace_all(self, users: dict[str, User], ctx: Client | None = None) -> None:
        """Let there be these users and no others. Without a default one among them, it is as `requirepass` has it."""
        self.delete((encoded(name) for name in list(self.users) if name not in users and name != "default"), ctx)
        self._replace({"default": default_user(self._config["requirepass"]), **users}.values(), ctx)

    def _replace(self, users: Iterable[User], ctx: Client | None) -> None:
        changed = set()
        for new in users:
            user = self.users.setdefault(new.name, new)
            if user is not new:
                user.become(new)
            changed.add(user)
        mine = [client for client in self._clients.values() if client.account in changed]
        self._cut((client for client in mine if self._must_go(client)), ctx)
        if self.default in changed:
            for client in self._clients.values():
                if not client.authenticated:
                    client.connection.parser.authenticated = self.is_open

    def _must_go(self, client: Client) -> bool:
        """Whether the rules of its user, as they are now, leave no place for a connection."""
        if client.authenticated:
            return not client.account.enabled or _overhears(client, client.account)
        # It has not logged in, and may go on waiting for that; with what the default user had let it listen to, not.
        return _overhears(client, client.account if self.is_open else _NOBODY)

    def _set_default_password(self, password: str) -> None:
        new = self.default.copy()
        for rule in (b"resetpass", b">" + encoded(password) if password else b"nopass"):
            new.apply(rule, allchannels=self.allchannels)
        new.settle()
        self._replace([new], None)

    def _cut(self, clients: Iterable[Client], ctx: Client | None) -> None:
        for client in list(clients):
            if client is ctx:
                client.close_after_reply = True
                client.log_out()  # what EXEC has still to run is nobody's
            else:
                client.connection.abort()


_NOBODY = User("")


def _overhears(client: Client, user: User) -> bool:
    """Whether the client listens to what the user may not."""
    return user.channels_denied(client.channels, client.patterns) or (
        client.monitoring and not user.may_run(TABLE["monitor"])
    )


def apply_rules(user: User, rules: Iterable[bytes], *, allchannels: bool) -> None:
    """Change `user` by all of them; raises RuleError, with the rule as its second argument where it is one alone."""
    whole = merged(rules)
    check_rules(whole)
    for rule in whole:
        try:
            user.apply(rule, allchannels=allchannels)
        except RuleError as error:
            raise RuleError(error.args[0], rule) from None
    check_user(user)
    user.settle()
