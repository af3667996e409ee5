"""The ACL categories of the commands, as Redis has them, and `@memory`."""

from __future__ import annotations

from collections.abc import Iterator

from .commands import TABLE, Command

#: In the order of ACL CAT. Redis's are all there, those of commands that this server has not, too: rules written for
#: Redis name them (`-@scripting`), and keep their meaning.
CATEGORIES = tuple(
    "keyspace read write set sortedset list hash string bitmap hyperloglog geo stream pubsub admin fast slow blocking"
    " dangerous connection transaction scripting memory".split()
)

# What Redis has for administrators without the flag that says so.
_ADMIN_ONLY = frozenset({"lastsave", "role"})
# What is dangerous without being for administrators only: to the data, to the other clients, to secrets.
_DANGEROUS = frozenset({"flushall", "flushdb", "info", "keys", "restore"})
_CATEGORY_OF_GROUP = {
    "connection": "@connection",
    "generic": "@keyspace",
    "memory": "@memory",
    "retrieval": "@memory",
    "facts": "@memory",
    "transactions": "@transaction",
}


def every_command() -> Iterator[Command]:
    """All commands, each followed by its subcommands."""
    for entry in TABLE.values():
        yield entry
        yield from entry.subcommands.values()


def categories(entry: Command) -> list[str]:
    """The ACL categories that a command is in."""
    flags, name = entry.flags, entry.name
    admin = "admin" in flags or name in _ADMIN_ONLY
    found = {
        "@write": "write" in flags,
        "@read": "readonly" in flags,
        "@admin": admin,
        "@dangerous": admin or name in _DANGEROUS,
        "@pubsub": "pubsub" in flags,
        "@keyspace": name in ("flushall", "flushdb", "dbsize"),
        "@connection": name.partition("|")[0] == "command",
        "@fast": "fast" in flags,
        "@slow": "fast" not in flags,
    }
    # A container does nothing itself, so Redis puts it in no other category than slow.
    if entry.handler is not None and entry.group in _CATEGORY_OF_GROUP:
        found[_CATEGORY_OF_GROUP[entry.group]] = True
    return [category for category, holds in found.items() if holds]
