"""The text block that a recall is rendered into: deterministic, one line per fact and episode, within a budget."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .side import NEVER

#: Characters to a token, rounded up over the whole block.
_TOKEN = 4

# Categories Cc, Zl, Zp and Zs: whatever could end a line or widen it.
_BLANKS = re.compile("[\x00-\x20\x7f-\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+")


class Line(NamedTuple):
    """A fact to show. `anchor_type` is b"" where the anchor is no entity; times are unix ms, `until` NEVER is open."""

    id: bytes
    text: bytes
    subject: bytes
    anchor: bytes
    anchor_type: bytes
    valid_at: int
    until: int


class Episode(NamedTuple):
    id: bytes
    text: bytes
    created_at: int


class Block(NamedTuple):
    """`text` as UTF-8; `shown` and `omitted` are ids, facts before episodes, each in the order of the ranking."""

    text: bytes
    shown: list[bytes]
    omitted: list[bytes]


def render(lines: Sequence[Line], episodes: Sequence[Episode] = (), budget: int | None = None) -> Block:
    """The block of the longest prefix of `lines`, then `episodes` (best first), that has at most `budget` tokens."""
    ids = [line.id for line in lines] + [episode.id for episode in episodes]
    fits = len(ids)
    if budget is not None and not _within(_text(lines, episodes), budget):
        # A longer prefix makes a longer block, so bisection finds the longest that fits.
        too_many, fits = fits, 0
        while too_many - fits > 1:
            middle = (fits + too_many) // 2
            if _within(_text(lines[:middle], episodes[: max(0, middle - len(lines))]), budget):
                fits = middle
            else:
                too_many = middle
    text = _text(lines[:fits], episodes[: max(0, fits - len(lines))])
    return Block(text.encode(), ids[:fits], ids[fits:])


def clean(text: bytes) -> str:
    """The text on one line: blanks and control characters collapse to spaces, invalid UTF-8 becomes U+FFFD."""
    return _BLANKS.sub(" ", text.decode("utf-8", "replace")).strip(" ")


def _within(text: str, budget: int) -> bool:
    return -(-len(text) // _TOKEN) <= budget


def _text(lines: Sequence[Line], episodes: Sequence[Episode]) -> str:
    groups: dict[tuple[bytes, bytes], list[Line]] = {}  # by anchor, in the order of each one's best fact
    for line in lines:
        groups.setdefault((line.anchor, line.anchor_type), []).append(line)
    sections = []
    if lines:
        shown = [line for group in groups.values() for line in group]
        subjects = dict.fromkeys(clean(line.subject) for line in shown)
        sections.append([f"Known facts about {', '.join(subjects)}, most relevant first."])
        sections.append(["# FACTS  (format: fact (valid: from - to))", *map(_fact, shown)])
    entities = [f"- {clean(name)} ({clean(kind)})" for name, kind in groups if kind]
    if entities:
        sections.append(["# ENTITIES", *entities])
    if episodes:
        sections.append(["# EPISODES", *(f"- {clean(each.text)}  ({_day(each.created_at)})" for each in episodes)])
    return "\n\n".join("\n".join(section) for section in sections)


def _fact(line: Line) -> str:
    until = "present" if line.until == NEVER else _day(line.until)
    return f"- {clean(line.text)}  (valid: {_day(line.valid_at)} - {until})"


def _day(ms: int) -> str:
    """The day in UTC. numpy's calendar has no first or last year, unlike datetime's."""
    return str(np.datetime64(ms, "ms").astype("datetime64[D]"))
