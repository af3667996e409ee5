"""Which names a text holds, as whole words: one pass over its words, however many names there are.

    add(b"new york times", 7)      "new", "new york" -> some name goes on; "new york times" -> 7
    find(b"the New York Times")    from "the": nothing; from "new": goes on, goes on, found

Whole words match at word starts only, so a dictionary of word prefixes does what an Aho-Corasick automaton would: a
walk begins at each word and goes on while some name continues. One more name costs microseconds, where an automaton
is built anew.

Rule 1: name and text are cut by the same rules (`words`), so `c++`, `netflix's`, 北京 and `state-of-the-art` meet.
Rule 2: names are numbered by `version` as they come and go, and one that went is kept until half of all have gone; the
        dictionaries are then made anew. So a NamesView, which any thread may walk, sees its moment for ever.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from sys import getsizeof
from typing import NamedTuple

from . import segment
from .analyzer import looked_at

#: A name of more words is never found in a text: the bound of a walk.
MAX_NAME_WORDS = 32

_FOREVER = 1 << 62
_CUT = re.compile(r"[-.@/:#+&_,']+")
# What segment.py keeps at a word's end: c++, c#.
_TAIL = re.compile(r"(?:\+\+|#)\Z")
# Names that went before the dictionaries are made anew, beside "more than there are".
_STALE_MIN = 1024


class _Holder(NamedTuple):
    entity: int
    since: int
    until: int


def words(text: bytes) -> Iterator[str]:
    """The words of a name or text, case folded: cut at joiners and apostrophes, a last `'s` dropped, each letter of a
    script without spaces and each emoji a word of its own."""
    for piece in segment.segments(text.decode("utf-8", "replace")):
        if piece.kind == "word":
            yield from _parts(piece)
        elif piece.kind == "run":
            for letter in segment.letters(piece):
                yield _folded(letter)
        else:
            yield piece.text.replace("\ufe0e", "").replace("\ufe0f", "")


def first_words(text: bytes, most: int) -> Iterator[str]:
    """The first `most` words of a text, which is looked at as far as the analyzer does."""
    return islice(words(looked_at(text, most)), most)


def _parts(word: segment.Segment) -> Iterator[str]:
    text, shape = word.text, word.shape
    if _SIMPLE(shape):
        yield _folded(text)
        return
    tail = _TAIL.search(shape)
    end = tail.start() if tail else len(shape)
    found: list[str] = []
    start = 0
    apostrophe = False  # whether one stands before the last part
    for cut in _CUT.finditer(shape, 0, end):
        found.append(_folded(text[start : cut.start()]))
        start = cut.end()
        apostrophe = cut[0] == "'"
    last = _folded(text[start:end]) + text[end:]
    if not (apostrophe and last == "s"):
        found.append(last)
    yield from filter(None, found)


_SIMPLE = re.compile(r"[uldm]++").fullmatch


def _folded(text: str) -> str:
    if text.isascii():
        return text.lower()
    return unicodedata.normalize("NFKC", segment.visible(text).casefold())


class NamesView(NamedTuple):
    """The names there were at one moment; any thread may read it."""

    named: dict[str, tuple[_Holder, ...]]
    prefixes: set[str]
    version: int

    def find(self, text: bytes, max_words: int) -> list[int]:
        """The entities that the first `max_words` words of `text` name, each once: by the place of the first name, the
        longest name of a place first, then by number."""
        return self.find_in(list(first_words(text, max_words))) if self.named else []

    def find_in(self, text_words: Sequence[str]) -> list[int]:
        """The same of a text's words."""
        named, prefixes, version = self.named, self.prefixes, self.version
        found: dict[int, None] = {}
        seen: set[str] = set()  # a name may have thousands of holders, and stand there a thousand times
        count = len(text_words)
        for start, phrase in enumerate(text_words):
            here: list[tuple[_Holder, ...]] = []
            end = start + 1
            while True:
                holders = named.get(phrase)
                if holders is not None and phrase not in seen:
                    seen.add(phrase)
                    here.append(holders)
                if end == count or phrase not in prefixes:
                    break
                phrase = f"{phrase} {text_words[end]}"
                end += 1
            for holders in reversed(here):
                for entity in sorted(each.entity for each in holders if each.since <= version < each.until):
                    found[entity] = None
        return list(found)


def joined(views: Sequence[NamesView], number: Callable[[int, int], int]) -> NamesView:
    """The names of several memories as one view; `number(place, entity)` is that of the entity of `views[place]`."""
    named: dict[str, set[int]] = {}
    prefixes: set[str] = set()
    for place, view in enumerate(views):
        prefixes.update(view.prefixes)
        for phrase, holders in view.named.copy().items():  # names come meanwhile: a copy is one step, a walk is not
            bearers = [number(place, each.entity) for each in holders if each.since <= view.version < each.until]
            if bearers:
                named.setdefault(phrase, set()).update(bearers)
    held = {phrase: tuple(_Holder(each, 0, _FOREVER) for each in bearers) for phrase, bearers in named.items()}
    return NamesView(held, prefixes, 0)


class Names:
    """Names and who bears them; `version` counts the changes."""

    __slots__ = ("_live", "_named", "_prefixes", "_stale", "version")

    def __init__(self) -> None:
        self.version = 0
        self._live = 0
        self._stale = 0
        # A name's words, one space between them -> who bears or bore it.
        self._named: dict[str, tuple[_Holder, ...]] = {}
        self._prefixes: set[str] = set()  # what some name goes on from

    def view(self) -> NamesView:
        """This moment, for readers."""
        return NamesView(self._named, self._prefixes, self.version)

    def find(self, text: bytes, max_words: int) -> list[int]:
        """As NamesView.find, now."""
        return self.view().find(text, max_words)

    def add(self, name: bytes, entity: int) -> None:
        """`entity` bears this name too. One that bears two names of the same words is added twice and removed twice."""
        name_words = _name_words(name)
        if not name_words:
            return
        self.version += 1
        self._live += 1
        phrase = name_words[0]
        for word in name_words[1:]:
            self._prefixes.add(phrase)
            phrase = f"{phrase} {word}"
        self._named[phrase] = (*self._named.get(phrase, ()), _Holder(entity, self.version, _FOREVER))

    def remove(self, name: bytes, entity: int) -> None:
        """`entity`, which bears this name, does no more."""
        phrase = " ".join(_name_words(name))
        if not phrase:
            return
        self.version += 1
        holders = list(self._named[phrase])
        at = next(i for i, each in enumerate(holders) if each.entity == entity and each.until == _FOREVER)
        holders[at] = holders[at]._replace(until=self.version)
        self._named[phrase] = tuple(holders)
        self._live -= 1
        self._stale += 1
        if self._stale > max(_STALE_MIN, self._live):
            self._renew()

    def _renew(self) -> None:
        """Leave out the names that went; views keep the old dictionaries."""
        self._stale = 0
        named: dict[str, tuple[_Holder, ...]] = {}
        prefixes: set[str] = set()
        for phrase, holders in self._named.items():
            held = tuple(each for each in holders if each.until == _FOREVER)
            if held:
                named[phrase] = held
                at = phrase.find(" ")
                while at >= 0:
                    prefixes.add(phrase[:at])
                    at = phrase.find(" ", at + 1)
        self._named, self._prefixes = named, prefixes

    def copy(self) -> Names:
        """An independent twin."""
        twin = Names()
        twin.version, twin._live, twin._stale = self.version, self._live, self._stale
        twin._named, twin._prefixes = dict(self._named), set(self._prefixes)
        return twin

    def nbytes(self, part: float) -> int:
        """About how many bytes this takes, `part` of its strings and tuples being its own: a copy has the same."""
        objects = 190 * len(self._named) + 80 * len(self._prefixes)
        return int(objects * part) + getsizeof(self._named) + getsizeof(self._prefixes)


def _name_words(name: bytes) -> list[str]:
    found = list(islice(words(name), MAX_NAME_WORDS + 1))
    return found if len(found) <= MAX_NAME_WORDS else []
