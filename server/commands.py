"""The command table: one entry per command feeds dispatch, arity errors, COMMAND and docs/commands.md.

A handler is registered with `@command` and gets `(ctx, args)`: the client's session and the words after the
command's name (after the subcommand's, for one). It returns a plain reply value (see protocol/reply.py), or an
`asyncio.Future` of one where the work goes on in a thread; its first docstring line is the summary.

`usage` is read by machines too (usage.py): capital words are literal, the others values, `[ ]` is optional, `|` a
choice, `[key ...]` behind `key` a repetition.
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ..protocol.reply import SimpleString

if TYPE_CHECKING:
    from .client import Client

Reply = Any
Handler = Callable[["Client", list[bytes]], "Reply | Future[Reply]"]
H = TypeVar("H", bound=Handler)


class PendingWrite(Future[Any]):
    """The reply of a write that goes on after its handler returned: its connection runs nothing else meanwhile."""


#: Every flag that COMMAND INFO may show, as Redis names them.
FLAGS = frozenset(
    "write readonly denyoom admin pubsub noscript loading stale fast no_auth no_multi allow_busy movablekeys"
    " skip_slowlog".split()
)
#: What COMMAND INFO may say a command does to a key: to the key itself in capitals, to what the client sees of it in
#: small letters, as Redis names them.
KEY_FLAGS = frozenset("RO RW OW RM access update insert delete".split())


@dataclass(slots=True, frozen=True)
class Command:
    """One command or subcommand.

    `arity` counts the words with the name, negative for "at least". `keys` is (first, last, step) as in COMMAND
    INFO, (0, 0, 0) where there are none; `key_flags` is what it does to them, one text for all or one per key. `name`
    is lower-case; a subcommand's is `container|sub`.
    """

    name: str
    arity: int
    flags: frozenset[str]
    keys: tuple[int, int, int]
    handler: Handler | None
    summary: str
    usage: str
    complexity: str
    group: str
    since: str
    options: tuple[str, ...]
    key_flags: tuple[str, ...] = ()
    subcommands: dict[str, Command] = field(default_factory=dict, compare=False)
    words: int = field(init=False)
    """How many words name it: 2 for a subcommand."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "words", 1 + self.name.count("|"))

    @property
    def is_write(self) -> bool:
        return "write" in self.flags

    def keys_in(self, words: list[bytes]) -> list[bytes]:
        """The keys at their places in a whole command; not those behind an option, as ACROSS has them."""
        first, last, step = self.keys
        return words[first : (last + 1 if last >= 0 else len(words) + last + 1) : step] if step else []

    def arity_ok(self, words: int) -> bool:
        return words == self.arity if self.arity >= 0 else words >= -self.arity


#: lower-case name -> entry; subcommands hang below their container.
TABLE: dict[str, Command] = {}


def command(
    name: str,
    *,
    arity: int,
    flags: str,
    usage: str,
    complexity: str = "O(1)",
    group: str,
    keys: tuple[int, int, int] = (0, 0, 0),
    since: str = "0.1.0",
    options: Sequence[str] = (),
    key_flags: Sequence[str] = (),
) -> Callable[[H], H]:
    """Register a handler under `NAME` or `CONTAINER SUB`.

    `options` are further lines for docs/commands.md, one per option: "TOPK k: how many hits, 10". `key_flags` are of
    KEY_FLAGS, "RM delete"; without them a write is taken to update its keys and a read to read them.
    """
    flag_set = frozenset(flags.split())
    if not flag_set <= FLAGS:
        raise ValueError(f"{name}: unknown flags {sorted(flag_set - FLAGS)}")
    if keys != (0, 0, 0) and not key_flags:
        key_flags = ("RW update",) if "write" in flag_set else ("RO access",)
    if not KEY_FLAGS.issuperset(" ".join(key_flags).split()):
        raise ValueError(f"{name}: unknown key flags {list(key_flags)}")

    def register(handler: H) -> H:
        summary = (handler.__doc__ or "").strip().splitlines()
        if not summary:
            raise ValueError(f"{name}: a command needs a docstring")
        container, _, sub = name.lower().partition(" ")
        full_name = f"{container}|{sub}" if sub else container
        entry = Command(
            full_name,
            arity,
            flag_set,
            keys,
            handler,
            summary[0],
            usage,
            complexity,
            group,
            since,
            tuple(options),
            tuple(key_flags),
        )
        siblings = TABLE[container].subcommands if sub else TABLE
        if full_name in siblings:
            raise ValueError(f"{name}: registered twice")
        siblings[sub or container] = entry
        return handler

    return register


def container(name: str, *, summary: str, group: str, since: str = "0.1.0") -> None:
    """Register a command that only has subcommands (CLIENT, CONFIG, PUBSUB), and its HELP."""
    TABLE[name.lower()] = Command(
        name.lower(),
        -2,
        frozenset(),
        (0, 0, 0),
        None,
        summary,
        name.upper(),
        "that of the subcommand",
        group,
        since,
        (),
    )
    help_subcommand(name, group=group, since=since)


def help_subcommand(name: str, *, group: str, since: str = "0.1.0") -> None:
    """Register `NAME HELP`, which lists the subcommands of `NAME`."""

    @command(
        f"{name} HELP",
        arity=2,
        flags="loading stale",
        usage=f"{name} HELP",
        group=group,
        since=since,
    )
    def show(ctx: Client, args: list[bytes]) -> Reply:
        """List the subcommands."""
        lines = [f"{name} <subcommand> [<arg> [value] [opt] ...]. Subcommands are:"]
        subcommands = TABLE[name.lower()].subcommands.values()
        for entry in sorted(subcommands, key=lambda entry: entry.handler is show):
            lines += [entry.usage.removeprefix(f"{name} "), f"    {entry.summary}"]
            lines += [f"    * {option}" for option in entry.options]
        return [SimpleString(line) for line in lines]
