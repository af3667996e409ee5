"""ACL: users and their rules, and what was refused. The rules themselves are in acl.py."""

from __future__ import annotations

import logging
import secrets
from typing import TYPE_CHECKING, Any

from ..protocol.reply import OK, SetReply, SimpleString
from .acl import encoded
from .acl_bounds import check_name, shown
from .acl_file import AclFile, AclFileError
from .acl_selector import COMMAND, KEY, RuleError, Selector, has_spaces
from .arguments import integer
from .categories import CATEGORIES, categories, every_command
from .commands import TABLE, command, container
from .dispatch import wrong_arity
from .errors import CommandError

if TYPE_CHECKING:
    from .client import Client

log = logging.getLogger("recalld")

_ADMIN = "admin noscript loading stale"
_OPEN = "noscript loading stale"
_GENPASS_MAX_BITS = 4096
_LOG_SHOWN = 10
# More than any command's name has.
_NAME_BYTES = 64

container("ACL", summary="Say who may run what: users, passwords, commands, keys, channels.", group="server")


def _too_many(sub: str) -> CommandError:
    return CommandError(f"unknown subcommand or wrong number of arguments for '{sub}'. Try ACL HELP.")  # Redis's words


@command(
    "ACL SETUSER",
    arity=-3,
    flags=_ADMIN,
    usage="ACL SETUSER username [rule [rule ...]]",
    complexity="O(rules)",
    group="server",
    options=[
        "on, off: whether one may log in as the user; off closes the user's connections",
        ">password, <password, #hash, !hash, nopass, resetpass: passwords, added and taken away; #: as SHA-256",
        "+command, -command, +command|sub, -command|sub, +@category, -@category, allcommands, nocommands",
        "~pattern, %R~pattern, %W~pattern, %RW~pattern, allkeys, resetkeys: keys, to read and write",
        "&pattern, allchannels, resetchannels: channels",
        "(rules), clearselectors: further sets of rules, each of which may allow a command by itself",
        "reset: as a new user is",
    ],
)
def acl_setuser(ctx: Client, args: list[bytes]) -> SimpleString:
    """Make a user, or change one by rules, all of them or none."""
    try:
        check_name(args[0])
        if has_spaces(args[0]) or not args[0]:
            raise CommandError("Usernames can't contain spaces or null characters")
        ctx.server.acl.set_user(args[0], args[1:], ctx)
    except RuleError as error:
        if len(error.args) == 1:
            raise CommandError(error.args[0]) from None
        reason, rule = error.args[0], shown(error.args[1])
        if reason.startswith("Unmatched"):
            raise CommandError(f"{reason} starting at '{rule}'.") from None
        raise CommandError(f"Error in ACL SETUSER modifier '{rule}': {reason}") from None
    return OK


@command(
    "ACL DELUSER",
    arity=-3,
    flags=_ADMIN,
    usage="ACL DELUSER username [username ...]",
    complexity="O(users + clients)",
    group="server",
)
def acl_deluser(ctx: Client, args: list[bytes]) -> int:
    """Delete users and close their connections; reply with how many there were."""
    if b"default" in args:
        raise CommandError("The 'default' user cannot be removed")
    return ctx.server.acl.delete(args, ctx)


@command("ACL GETUSER", arity=3, flags=_ADMIN, usage="ACL GETUSER username", complexity="O(rules)", group="server")
def acl_getuser(ctx: Client, args: list[bytes]) -> dict[str, Any] | None:
    """Show a user's flags, passwords as SHA-256, and rules; nil where there is none."""
    user = ctx.server.acl.find(args[0])
    if user is None:
        return None
    root, *others = map(_described, user.selectors)
    return {
        "flags": SetReply(user.flags()),
        "passwords": list(user.passwords),
        **root,
        "selectors": others,
    }


def _described(selector: Selector) -> dict[str, bytes]:
    return {
        "commands": selector.commands_text(),
        "keys": selector.keys_text(),
        "channels": selector.channels_text(),
    }


@command("ACL LIST", arity=2, flags=_ADMIN, usage="ACL LIST", complexity="O(users)", group="server")
def acl_list(ctx: Client, args: list[bytes]) -> list[bytes]:
    """List the users, each as a line of `aclfile`."""
    acl = ctx.server.acl
    return [acl.users[name].line() for name in acl.names()]


@command("ACL USERS", arity=2, flags=_ADMIN, usage="ACL USERS", complexity="O(users)", group="server")
def acl_users(ctx: Client, args: list[bytes]) -> list[bytes]:
    """List the names of the users."""
    return [encoded(name) for name in ctx.server.acl.names()]


@command("ACL WHOAMI", arity=2, flags=_OPEN, usage="ACL WHOAMI", group="server")
def acl_whoami(ctx: Client, args: list[bytes]) -> bytes:
    """Reply with the name of the connection's user."""
    return encoded(ctx.user)


@command(
    "ACL CAT",
    arity=-2,
    flags=_OPEN,
    usage="ACL CAT [category]",
    complexity="O(commands)",
    group="server",
)
def acl_cat(ctx: Client, args: list[bytes]) -> list[str]:
    """List the categories, or the commands of one."""
    if len(args) > 1:
        raise _too_many("CAT")
    if not args:
        return list(CATEGORIES)
    name = shown(args[0])
    if name.lower() not in CATEGORIES:
        raise CommandError(f"Unknown category '{name}'")
    return [entry.name for entry in every_command() if f"@{name.lower()}" in categories(entry)]


@command(
    "ACL LOG",
    arity=-2,
    flags=_ADMIN,
    usage="ACL LOG [count | RESET]",
    complexity="O(count)",
    group="server",
    options=["count: how many entries, the newest (10)", "RESET: forget all"],
)
def acl_log(ctx: Client, args: list[bytes]) -> Any:
    """Show what was refused, and to whom, or forget it."""
    if len(args) > 1:
        raise _too_many("LOG")
    refused = ctx.server.acl.log
    if args and args[0][:6].lower() == b"reset":
        refused.clear()
        return OK
    count = integer(args[0]) if args else _LOG_SHOWN
    return [
        {
            "count": entry.count,
            "reason": entry.reason,
            "context": entry.context,
            "object": entry.object,
            "username": entry.username,
            "age-seconds": (ctx.now - entry.updated) / 1000,
            "client-info": entry.client,
            "entry-id": entry.id,
            "timestamp-created": entry.created,
            "timestamp-last-updated": entry.updated,
        }
        for entry in refused.entries[: max(0, count)]
    ]


@command(
    "ACL GENPASS",
    arity=-2,
    flags=_OPEN,
    usage="ACL GENPASS [bits]",
    group="server",
    options=["bits: how many, 1 to 4096 (256)"],
)
def acl_genpass(ctx: Client, args: list[bytes]) -> str:
    """Reply with a random password, hexadecimal."""
    if len(args) > 1:
        raise _too_many("GENPASS")
    bits = integer(args[0]) if args else 256
    if not 0 < bits <= _GENPASS_MAX_BITS:
        raise CommandError(
            "ACL GENPASS argument must be the number of bits for the output password, a positive number up to"
            f" {_GENPASS_MAX_BITS}"
        )
    digits = (bits + 3) // 4
    return secrets.token_hex((digits + 1) // 2)[:digits]


@command(
    "ACL DRYRUN",
    arity=-4,
    flags=_ADMIN,
    usage="ACL DRYRUN username command [arg [arg ...]]",
    complexity="O(rules)",
    group="server",
)
def acl_dryrun(ctx: Client, args: list[bytes]) -> Any:
    """Say whether a user may run a command, without running it."""
    name, words = args[0], args[1:]
    user = ctx.server.acl.find(name)
    if user is None:
        raise CommandError(f"User '{shown(name)}' not found")
    entry = TABLE.get(words[0][:_NAME_BYTES].lower().decode("latin-1"))
    if entry is not None and entry.subcommands and len(words) > 1:
        entry = entry.subcommands.get(words[1][:_NAME_BYTES].lower().decode("latin-1"))
    if entry is None:
        raise CommandError(f"Command '{shown(words[0])}' not found")
    if not entry.arity_ok(len(words)):
        raise wrong_arity(entry)
    denial = user.check(entry, words)
    if denial is None:
        return OK
    if denial.reason == COMMAND:
        return f"This user has no permissions to run the '{entry.name}' command"
    kind = b"key" if denial.reason == KEY else b"channel"
    return b"This user has no permissions to access the '%s' %s" % (words[denial.at], kind)


@command("ACL LOAD", arity=2, flags=_ADMIN, usage="ACL LOAD", complexity="O(users + clients)", group="server")
def acl_load(ctx: Client, args: list[bytes]) -> SimpleString:
    """Take the users from `aclfile`: all of it, or nothing where a line is wrong."""
    acl = ctx.server.acl
    try:
        users = _file(ctx).read(allchannels=acl.allchannels)
    except AclFileError as error:
        raise CommandError(str(error)) from None
    acl.replace_all(users, ctx)
    return OK


@command("ACL SAVE", arity=2, flags=_ADMIN, usage="ACL SAVE", complexity="O(users)", group="server")
def acl_save(ctx: Client, args: list[bytes]) -> SimpleString:
    """Write the users to `aclfile`."""
    file = _file(ctx)
    try:
        file.write(ctx.server.acl)
    except OSError as error:
        log.warning("ACL SAVE to %s: %s", file.path, error)
        raise CommandError(
            "There was an error trying to save the ACLs. Please check the server logs for more information"
        ) from None
    return OK


def _file(ctx: Client) -> AclFile:
    file = ctx.server.acl_file
    if file is None:
        raise CommandError(
            "This Redis instance is not configured to use an ACL file. You may want to specify users via the ACL"
            " SETUSER command and then issue a CONFIG REWRITE (assuming you have a Redis configuration file set) in"
            " order to store users in the Redis configuration."
        )
    return file
