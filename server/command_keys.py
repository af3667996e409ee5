"""The keys and the channels in a command's words: one answer for COMMAND GETKEYS and for the ACL."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from .arguments import NAME_BYTES
from .commands import Command


class Key(NamedTuple):
    """A key, its place among the words, and what the command does to it: words of KEY_FLAGS.

    One that is not `required` is left out by the command where its user may not read it, which refuses nothing.
    """

    at: int
    flags: str
    required: bool = True


# The words behind each option whose number is not 0. A text may be the name of an option, so they must be counted;
# "n" words follow their number.
_OPERANDS: dict[bytes, int | str] = {
    **dict.fromkeys(b"TEXT VEC ID IMPORTANCE TTL AT VALIDAT VALIDUNTIL KIND NEAR TOPK OFFSET MINSCORE ASOF".split(), 1),
    **dict.fromkeys(b"KNOWNAT FUSION RRFK HALFLIFE MINSIM DIVERSITY FALLBACK TIER CASCADE".split(), 1),
    **dict.fromkeys(b"FACTS EPISODES MINCONF ANCHORTOPK ANCHORMIN BUDGET FORMAT".split(), 1),
    b"META": 2,
    b"FILTER": 3,
    b"WEIGHTS": 4,
    b"FVEC": "n",
    b"TAGS": "n",
    b"ACROSS": "n",
}
# Where the options of the commands begin that have ACROSS.
_ACROSS = {"mem.query": 2, "mem.recall": 2, "mem.explain": 3}
# The flags of what is about keys.
_ABOUT_DATA = frozenset({"readonly", "write"})
# Which words are channels: from the first on, or the first alone.
_SUBSCRIBES = frozenset({"subscribe", "psubscribe"})


# The keys of commands that have one, at one place: a user with key patterns asks for them each time.
_single: dict[str, list[Key]] = {}


def keys_of(entry: Command, words: list[bytes]) -> list[Key]:
    """The keys in a whole command. The list is not to be changed."""
    known = _single.get(entry.name)
    if known is not None:
        return known
    first, last, step = entry.keys
    if not step:
        return []
    places = range(first, (last if last >= 0 else len(words) + last) + 1, step)
    flags = entry.key_flags * len(places) if len(entry.key_flags) == 1 else entry.key_flags
    found = [Key(at, each) for at, each in zip(places, flags, strict=False)]
    if entry.name in _ACROSS:
        across = range(0)
        for option, behind in _options(words, _ACROSS[entry.name]):
            if option == b"ACROSS":
                across = behind  # the last one counts
        found += [Key(at, "RO access", required=False) for at in across]
    elif entry.name == "mem.add":
        if any(option == b"DEDUP" for option, _ in _options(words, 2)):
            found = [Key(first, "RW access update")]  # the reply tells what is there already
    elif entry.name == "mem.config":
        if len(words) == 2:
            found = [Key(first, "RO access")]  # the settings are shown
    elif entry.name == "mem.forget":
        found = [Key(first, "RW access update")]  # the reply tells which there were
    elif first == last:
        _single[entry.name] = found
    return found


def reach(entry: Command, words: list[bytes]) -> tuple[Collection[bytes], bool]:
    """The keys that a command reads or writes, and whether it is about all, or about some that show when it runs."""
    if not entry.keys[2]:
        return (), not entry.flags.isdisjoint(_ABOUT_DATA)
    if entry.name not in _ACROSS:
        return entry.keys_in(words), False
    names = {option for option, _ in _options(words, _ACROSS[entry.name])}
    return [words[key.at] for key in keys_of(entry, words)], b"CASCADE" in names


def channels_of(entry: Command, words: list[bytes]) -> range:
    """The places of the channels, or patterns of channels, that a command would listen to or send to."""
    if entry.name in _SUBSCRIBES:
        return range(1, len(words))
    return range(1, 2) if entry.name == "publish" else range(0)


def has_channels(entry: Command) -> bool:
    return entry.name in _SUBSCRIBES or entry.name == "publish"


def _options(words: list[bytes], at: int) -> Iterator[tuple[bytes, range]]:
    """Each option from `at` on, upper-cased, and the places of its words, the number of them left out."""
    while at < len(words):
        option = words[at][:NAME_BYTES].upper()
        operands = _OPERANDS.get(option, 0)
        at += 1
        if operands == "n":
            at += option == b"TAGS" and words[at : at + 1] != [] and not words[at].isdigit()  # ANY or ALL
            number = words[at] if at < len(words) else b""
            operands = int(number) if len(number) < 10 and number.isdigit() else 0
            at += 1
        assert isinstance(operands, int)
        yield option, range(at, min(at + operands, len(words)))
        at += operands
