"""A command's usage line, `SCAN cursor [MATCH pattern] [COUNT count]`, as the arguments that COMMAND DOCS describes.

    usage := NAME [SUBCOMMAND] items
    items := item* (" | " item*)*                  one of several sequences
    item  := word ("|" word)*                      one of several words
           | "[" items "]" | "(" items ")"         what may be left out; what belongs together
           | item "*" | item "..."                 once or more, as is word1 ".." wordn

A word in capitals is literal (a token), any other names a value. The values behind a token belong to it. `[key ...]`
behind `key`, or `[field value ...]` behind `field value`, says that these may be repeated.

redis-cli shows its hints from this. Redis describes its own commands in the same form.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

_SYMBOLS = re.compile(r"[\[\]()*]|\.\.\.|[^\s\[\]()*]+")
_CLOSING = {"[": "]", "(": ")"}

_TYPES = {
    "double": "importance keyword recency score vector weight x",
    "integer": "client-id count cursor destination-db index k milliseconds n protover seconds timeout",
    "key": "destination key newkey source",
    "pattern": "pattern",
    "unix-time": "time unix-time-milliseconds unix-time-seconds",
}
_TYPE_OF = {name: type_ for type_, names in _TYPES.items() for name in names.split()}


class BadUsage(ValueError):
    """A usage line that the rules above do not allow."""


@dataclass(slots=True, frozen=True)
class Argument:
    """One argument. `type` is oneof or block where there are `arguments` in it, pure-token where there is no value;
    `repeats_token` says that the token comes again with each repetition."""

    name: str
    type: str
    token: str = ""
    optional: bool = False
    multiple: bool = False
    repeats_token: bool = False
    arguments: tuple[Argument, ...] = ()


@cache
def parse(usage: str, name_words: int) -> tuple[Argument, ...]:
    """The arguments behind the `name_words` words that name the command; raises BadUsage."""
    symbols = _SYMBOLS.findall(usage)[name_words:]
    arguments, end = _items(symbols, 0)
    if end < len(symbols):
        raise BadUsage(f"'{symbols[end]}' closes nothing in: {usage}")
    return arguments


def _items(symbols: Sequence[str], at: int) -> tuple[tuple[Argument, ...], int]:
    """The arguments from `at` up to a closing bracket or the end, and where that is."""
    sequences: list[list[Argument]] = [[]]
    while at < len(symbols) and symbols[at] not in _CLOSING.values():
        symbol, items = symbols[at], sequences[-1]
        at += 1
        if symbol == "|":
            sequences.append([])
        elif symbol in ("*", "..."):
            if not items:
                raise BadUsage(f"there is nothing before '{symbol}' to repeat")
            items[-1] = replace(items[-1], multiple=True, repeats_token=bool(items[-1].token))
        elif symbol == "..":
            if not items or at == len(symbols):
                raise BadUsage("'..' has a first and a last word around it")
            items[-1] = replace(items[-1], name=items[-1].name.removesuffix("1"), multiple=True)
            at += 1
        elif symbol in _CLOSING:
            inner, at = _items(symbols, at)
            if at == len(symbols) or symbols[at] != _CLOSING[symbol]:
                raise BadUsage(f"'{symbol}' is not closed")
            at += 1
            if symbol == "[" and _repeats(items, inner):
                _repeat(items, len(inner))
            else:
                group = _block(inner)
                items.append(replace(group, optional=True) if symbol == "[" else group)
        else:
            items.append(_word(symbol))
    alternatives = [_with_tokens(items) for items in sequences]
    if len(alternatives) == 1:
        return alternatives[0], at
    return (_one_of([_block(alternative) for alternative in alternatives]),), at


def _word(symbol: str) -> Argument:
    if "|" in symbol:
        return _one_of([_word(word) for word in symbol.split("|")])
    if not symbol:
        raise BadUsage("there is nothing beside a bar")
    if symbol == symbol.upper() != symbol.lower():
        return Argument(symbol.lower(), "pure-token", token=symbol)
    return Argument(symbol, _TYPE_OF.get(symbol, "string"))


def _one_of(arguments: Sequence[Argument]) -> Argument:
    return Argument("option", "oneof", arguments=tuple(arguments))


def _block(arguments: Sequence[Argument]) -> Argument:
    """Several arguments as one."""
    if not arguments:
        raise BadUsage("there is nothing between two brackets or bars")
    if len(arguments) == 1:
        return arguments[0]
    return Argument("_".join(argument.name for argument in arguments[:2]), "block", arguments=tuple(arguments))


def _with_tokens(items: Sequence[Argument]) -> tuple[Argument, ...]:
    """Let each token take the values behind it."""
    found: list[Argument] = []
    at = 0
    while at < len(items):
        item = items[at]
        at += 1
        if item.type == "pure-token":
            end = at
            while end < len(items) and not items[end].token and not items[end].optional:
                end += 1
            if end > at:
                value = _block(items[at:end])
                name = item.name if value.arguments else value.name
                item = replace(value, name=name, token=item.token)
                at = end
        found.append(item)
    return tuple(found)


def _repeats(items: Sequence[Argument], inner: Sequence[Argument]) -> bool:
    """Whether the bracket `inner` only says that the last of `items` may come again."""
    last = [(argument.name, argument.token) for argument in items[-len(inner) :]]
    return bool(inner) and inner[-1].multiple and last == [(argument.name, argument.token) for argument in inner]


def _repeat(items: list[Argument], count: int) -> None:
    items[-count:] = [replace(_block(items[-count:]), multiple=True)]
