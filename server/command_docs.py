"""docs/commands.md, made from the command table: `python -m recalld.server.command_docs > docs/commands.md`.

Rule 1: what stands there stands in the table; tests/test_commands_table.py compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from textwrap import wrap

from .commands import TABLE, Command

#: In the order of the page. A group of the table that is missing here is an error, not left out.
GROUPS = {
    "memory": "Memories and records",
    "retrieval": "Retrieval",
    "facts": "Facts and entities",
    "generic": "Keys",
    "transactions": "Transactions",
    "pubsub": "Pub/sub",
    "persistence": "Persistence",
    "connection": "Connection",
    "server": "Server",
}

_HEAD = """\
# Commands

Made from the command table by `python -m recalld.server.command_docs`. Words in capitals are literal, in any case,
others are values, `[ ]` may be left out, `|` is a choice. In an option's text the default stands in brackets.
`COMMAND DOCS` says the same to clients; redis-cli shows it while you type. What the MEM.* commands answer, field by
field, stands in [replies.md](replies.md).
"""


_FIRST_MODULES = ("memory_commands", "record_commands", "query_commands", "fact_commands", "recall_commands")


def page() -> str:
    """The whole page."""
    by_group: dict[str, list[Command]] = {group: [] for group in GROUPS}
    # As they stand in the modules, whichever was imported first.
    for entry in sorted(_documented(TABLE.values()), key=_place):
        by_group[entry.group].append(entry)
    parts = [_HEAD, "".join(f"- [{title}](#{_anchor(title)})\n" for group, title in GROUPS.items() if by_group[group])]
    for group, title in GROUPS.items():
        if by_group[group]:
            parts.append(f"## {title}\n")
            parts += [_section(entry) for entry in by_group[group]]
    return "\n".join(parts)


def _documented(entries: Iterable[Command]) -> Iterator[Command]:
    """Commands and subcommands; a container that does nothing by itself is not shown."""
    for entry in entries:
        if entry.handler is not None:
            yield entry
        yield from entry.subcommands.values()


def _place(entry: Command) -> tuple[int, str, int, str]:
    """Memories, then records, come before what else there is; the rest by module and line."""
    handler = entry.handler
    module = "" if handler is None else handler.__module__.rpartition(".")[2]
    first = _FIRST_MODULES.index(module) if module in _FIRST_MODULES else len(_FIRST_MODULES)
    return first, module, 0 if handler is None else handler.__code__.co_firstlineno, entry.name


def _anchor(title: str) -> str:
    """The fragment that GitHub gives a heading."""
    return "".join(letter for letter in title.lower().replace(" ", "-") if letter.isalnum() or letter == "-")


def _section(entry: Command) -> str:
    lines = [
        f"### {entry.name.replace('|', ' ').upper()}",
        "",
        "```",
        _wrapped(entry.usage),
        "```",
        "",
        entry.summary,
        "",
        f"Complexity {entry.complexity}, since {entry.since}.",
    ]
    if entry.options:
        lines += ["", *(f"- {_option(option)}" for option in entry.options)]
    return "\n".join(lines) + "\n"


def _wrapped(usage: str) -> str:
    """A usage line as several, broken where no bracket is open."""
    depth = 0
    letters = []
    for letter in usage:
        depth += (letter == "[") - (letter == "]")
        letters.append("\0" if letter == " " and depth else letter)
    lines = wrap("".join(letters), 100, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
    return "\n".join(lines).replace("\0", " ")


def _option(option: str) -> str:
    """`WORDS: what they do`, the words set as code."""
    words, colon, text = option.partition(": ")
    return f"`{words}`: {text}" if colon else option


def main() -> None:
    from . import command_modules  # noqa: F401 - fills the command table

    print(page(), end="")


if __name__ == "__main__":
    main()
