"""How many users and rules there may be, and how long. All of it is held in memory, and checked on the loop.

Rule: what is too long is refused by its length alone, before it is decoded, split or shown.
"""

from __future__ import annotations

from .acl import User
from .acl_selector import RuleError
from .glob import bytes_to_compile

NAME_BYTES_MAX = 256
RULE_BYTES_MAX = 1024
# Of a user, as ACL LIST shows it, and of one ACL SETUSER: so a line of ACL LIST can always be given back.
RULES_MAX = 1000
# Of all patterns of a user that become regular expressions, which take up to 10 ms per kilobyte to compile.
WILDCARD_BYTES_MAX = 8192
USERS_MAX = 10_000
# Of a client's word, in an error.
_SHOWN = 128


def shown(word: bytes) -> str:
    """A word for an error."""
    return word[:_SHOWN].decode("utf-8", "replace")


def check_name(name: bytes) -> None:
    """Raise RuleError if a user may not have this name, for its length."""
    if len(name) > NAME_BYTES_MAX:
        raise RuleError(f"a username may have {NAME_BYTES_MAX} bytes at most, this one has {len(name)}")


def is_full(users: int) -> bool:
    """Whether there can be no user more than so many."""
    return users >= USERS_MAX


def check_rules(rules: list[bytes]) -> None:
    """Raise RuleError if these are too many, or one is too long: that one is then the second argument."""
    count = 0
    for rule in rules:
        parts = [rule]
        if rule[:1] == b"(" and rule[-1:] == b")":
            if len(rule) > RULES_MAX * RULE_BYTES_MAX:
                most = RULES_MAX * RULE_BYTES_MAX
                raise RuleError(f"a selector may have {most} bytes at most, this one has {len(rule)}", rule)
            parts = rule[1:-1].split() or [b""]
        for part in parts:
            if len(part) > RULE_BYTES_MAX:
                raise RuleError(f"a rule may have {RULE_BYTES_MAX} bytes at most, this one has {len(part)}", part)
        count += len(parts)
        _check_count(count)


def check_user(user: User) -> None:
    """Raise RuleError if a user has too many rules, or too much to compile."""
    _check_count(user.size)
    size = sum(bytes_to_compile(pattern) for each in user.selectors for pattern in (*each.keys, *each.channels))
    if size > WILDCARD_BYTES_MAX:
        raise RuleError(
            f"the patterns with ? [ or \\ of a user may have {WILDCARD_BYTES_MAX} bytes at most together, these would"
            f" have {size}"
        )


def _check_count(count: int) -> None:
    if count > RULES_MAX:
        raise RuleError(
            f"more than {RULES_MAX} rules, each of those in parentheses counted: a user has no more, as ACL LIST shows"
            " it, and ACL SETUSER takes no more at once"
        )
