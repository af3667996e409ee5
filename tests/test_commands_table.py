"""The command table against itself, its page, and redis-server's own: names, arity, flags, keys, usage."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from harness import Running
from peer import connect, needs_redis, redis_server
from recalld.server import command_docs, command_modules, introspection_commands  # noqa: F401 - fills the table
from recalld.server.commands import FLAGS, TABLE, Command, command
from recalld.server.usage import Argument, BadUsage, parse

ROOT = Path(__file__).resolve().parents[1]


def every_entry() -> list[Command]:
    return [entry for top in TABLE.values() for entry in (top, *top.subcommands.values())]


def arguments(entry: Command) -> tuple[Argument, ...]:
    return parse(entry.usage, entry.name.count("|") + 1)


EVERY = pytest.mark.parametrize("entry", every_entry(), ids=lambda entry: entry.name)


# The page


def test_the_page_is_the_table() -> None:
    """Out of date? `python -m recalld.server.command_docs > docs/commands.md`."""
    assert (ROOT / "docs" / "commands.md").read_text(encoding="utf-8") == command_docs.page()


def test_the_page_has_every_command() -> None:
    page = command_docs.page()
    missing = [
        entry.name
        for entry in every_entry()
        if entry.handler is not None and f"\n### {entry.name.replace('|', ' ').upper()}\n" not in page
    ]
    assert missing == []


# Each entry


@EVERY
def test_usage_begins_with_the_name(entry: Command) -> None:
    words = entry.usage.split()
    assert words[: entry.name.count("|") + 1] == entry.name.upper().split("|")


@EVERY
def test_summary_is_a_sentence(entry: Command) -> None:
    assert entry.summary[:1].isupper()
    assert entry.summary.endswith(".")


@EVERY
def test_key_specs_fit_the_usage(entry: Command) -> None:
    """A command that says it has keys shows them in its usage, and the other way round."""
    names = [argument for argument in arguments(entry) if argument.type == "key"]
    first, last, step = entry.keys
    if not names:
        assert (first, last, step, entry.key_flags) == (0, 0, 0, ())
        return
    assert (first, step) == (1 + entry.name.count("|"), 1)
    assert last == (-1 if names[-1].multiple else first + len(names) - 1)
    assert len(entry.key_flags) in (1, len(names))


@EVERY
def test_what_writes_says_so(entry: Command) -> None:
    assert not entry.flags >= {"write", "readonly"}
    assert entry.flags <= FLAGS
    if "denyoom" in entry.flags:
        assert entry.is_write
    if entry.key_flags and not entry.is_write:
        assert not {"RW", "OW", "RM"} & set(" ".join(entry.key_flags).split())


def least_words(found: Sequence[Argument]) -> int:
    """The words that a command line must have for these arguments."""
    words = 0
    for argument in found:
        if argument.optional:
            continue
        if argument.type == "oneof":
            words += bool(argument.token) + min(least_words([inner]) for inner in argument.arguments)
        elif argument.type == "block":
            words += bool(argument.token) + least_words(argument.arguments)
        else:
            words += 1 + bool(argument.token and argument.type != "pure-token")
    return words


def is_open(found: Sequence[Argument]) -> bool:
    """Whether there may be more words than that."""
    return any(argument.optional or argument.multiple or is_open(argument.arguments) for argument in found)


# Whose arity says less than their usage, as Redis's does, because the handler has the better error.
ARITY_SAYS_LESS = {
    "command": "a container that is a command itself",
    "client|kill": "of both forms nothing is required by the usage",
    "quit": "words behind it are ignored, as in Redis",
    "mem.forget": "without a filter it is a syntax error",
    "mem.vsearch": "VEC or FVEC is required is an error of its own",
}


@EVERY
def test_arity_is_that_of_the_usage(entry: Command) -> None:
    if entry.handler is None:
        return
    found = arguments(entry)
    words = 1 + entry.name.count("|") + least_words(found)
    is_same = entry.arity == (-words if is_open(found) else words)
    assert is_same != (entry.name in ARITY_SAYS_LESS)


# Usage lines


def test_usage_of_every_form() -> None:
    assert parse("X key [key ...]", 1) == (Argument("key", "key", multiple=True),)
    assert parse("X [channel [channel ...]]", 1) == (Argument("channel", "string", optional=True, multiple=True),)
    assert parse("X field value [field value ...]", 1) == (
        Argument(
            "field_value",
            "block",
            multiple=True,
            arguments=(Argument("field", "string"), Argument("value", "string")),
        ),
    )
    assert parse("X tag1 .. tagn", 1) == (Argument("tag", "string", multiple=True),)
    assert parse("X [COUNT count]", 1) == (Argument("count", "integer", token="COUNT", optional=True),)
    assert parse("X [FILTER field op]*", 1) == (
        Argument(
            "filter",
            "block",
            token="FILTER",
            optional=True,
            multiple=True,
            repeats_token=True,
            arguments=(Argument("field", "string"), Argument("op", "string")),
        ),
    )
    assert parse("X [ID id [id ...]]", 1) == (
        Argument("id", "string", token="ID", optional=True, multiple=True),
    )
    nx, xx = Argument("nx", "pure-token", token="NX"), Argument("xx", "pure-token", token="XX")
    assert parse("X [NX|XX]", 1) == (Argument("option", "oneof", optional=True, arguments=(nx, xx)),)
    assert parse("X [NX | XX]", 1) == parse("X [NX|XX]", 1)
    assert parse("X MODE NX|XX", 1) == (Argument("mode", "oneof", token="MODE", arguments=(nx, xx)),)
    assert parse("CLIENT ID", 2) == ()


@pytest.mark.parametrize("usage", ["X [a", "X a]", "X (a", "X a)", "X [a)", "X [] b", "X *", "X [|a]", "X a .."])
def test_bad_usage(usage: str) -> None:
    with pytest.raises(BadUsage):
        parse(usage, 1)


# Registration


def test_a_bad_entry_is_refused() -> None:
    def handler(ctx: object, args: list[bytes]) -> None:
        """Do nothing."""

    def silent(ctx: object, args: list[bytes]) -> None: ...

    with pytest.raises(ValueError, match="unknown flags"):
        command("TEST.X", arity=1, flags="quick", usage="TEST.X", group="server")
    with pytest.raises(ValueError, match="unknown key flags"):
        command("TEST.X", arity=2, flags="", usage="TEST.X", group="server", keys=(1, 1, 1), key_flags=["RX"])
    with pytest.raises(ValueError, match="docstring"):
        command("TEST.X", arity=1, flags="", usage="TEST.X", group="server")(silent)
    with pytest.raises(ValueError, match="twice"):
        command("PING", arity=1, flags="", usage="PING", group="server")(handler)
    assert "test.x" not in TABLE


# COMMAND INFO against redis-server's, for the commands that both have

# Subcommands of later versions, commands of other scope.
Info = dict[str, tuple[Any, ...]]


# Flags about states that this server does not have: a busy script, loading while it serves.
NOT_HERE = {"allow_busy", "no_async_loading"}


def flatten(rows: list[Any]) -> Iterator[list[Any]]:
    for row in rows:
        yield row
        yield from flatten(row[9])


def comparable(rows: list[Any]) -> Info:
    """name -> what is the same whoever tells it: sets sorted, tips and subcommands left out."""
    return {
        row[0].decode(): (row[1], sorted(set(row[2]) - NOT_HERE), *row[3:6], sorted(row[6]), row[8])
        for row in flatten([row for row in rows if row is not None])
    }


#: Where ours is meant to differ from Redis 7.0's.
DIFFERENT = {
    "command|getkeys": "arity -3 since Redis 7.2: a command without arguments is asked about too",
    "command|getkeysandflags": "likewise",
}


@needs_redis
def test_entries_are_redis_own(server: Running, tmp_path: Path) -> None:
    """Arity, flags, keys, ACL categories and key specifications of each command that Redis has too."""
    with redis_server(tmp_path) as path:
        theirs = comparable(connect(path, 3)("COMMAND"))
    ours = comparable(server.wire(3)("COMMAND"))
    shared = (ours.keys() & theirs.keys()) - DIFFERENT.keys()
    assert len(shared) > 60
    different = {name: (ours[name], theirs[name]) for name in shared if ours[name] != theirs[name]}
    assert different == {}
