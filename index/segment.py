"""Where the words of a text lie: Unicode text -> segments.

A text is normalised (NFKC) and drawn as its *shape*: one ASCII character for the class of each of its characters. On
the shape the rules are one regular expression, whatever the script, and linear in time, whatever the input (all its
repeats are bounded or possessive).

    u  upper-case letter     m  mark, or a character that shows nothing      e  emoji
    l  any other letter      n  ZWNJ       z  ZWJ                            o  other symbol: an emoji where v follows
    d  digit                 v  text or emoji style (U+FE0E, U+FE0F)         s  skin tone      t  tag (Scotland's flag)
    h  letter of a script    k  keycap (U+20E3)                              r  regional indicator: two are a flag
       without spaces        '-.@/:#+&_,*  stand for themselves              space  all the rest

Rule 1: a word begins with a letter or digit. Marks never cut it, punctuation around it is no part of it.
Rule 2: one joiner between two letters or digits joins them (a@b.org, v2.10.1, src/app.py, std::vector); underscores
        do in any number, a comma between digits only. `c++` and `c#` keep their tails.
Rule 3: letters of scripts without spaces form runs, apart from other letters.
Rule 4: an emoji and all that modifies it (style, skin tone, tags, ZWJ sequence) is one segment; so is a flag, a keycap.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

# 255: Lucene's StandardTokenizer cuts longer words too. 16 parts hold a long path; longer ones fall into several.
_MAX_WORD = 255
_MAX_PARTS = 16
# A couple kissing, the longest emoji in use, has three links.
_MAX_LINKS = 8
# Python normalises a run of marks by insertion sort (16000 of them: 0.2 s, measured), so runs are cut. No language
# needs more than 30 (UAX #15, Stream-Safe Text Format).
_MAX_MARKS = 30

# Default_Ignorable_Code_Point without the Hangul fillers: it does not show, so nobody searches for it.
_IGNORABLE = re.compile(
    "[\u00ad\u034f\u061c\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff"
    "\U000e0000-\U000e0fff]+"
)

# Hangul has spaces, but its particles stick to the noun ("in Seoul" is one word), and search engines without a
# dictionary cut it into bigrams as well (Lucene's CJKAnalyzer), so that the bare noun finds them all.
_UNSPACED = re.compile(
    "[\u1100-\u11ff\u2e80-\u31ff\u3400-\u9fff\ua000-\ua48f\ua960-\ua97f\uac00-\ud7ff\uf900-\ufaff\uff66-\uffdc"
    "\U0001aff0-\U0001b16f\U00020000-\U0003ffff"  # Chinese, Japanese, Korean, Yi
    "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u1950-\u19df\u1a20-\u1aaf\u1b00-\u1b7f\ua980-\ua9ff\uaa60-\uaadf"
    "\U00011700-\U0001174f]"  # Thai, Lao, Myanmar, Khmer, Tai, Ahom (UAX #14, class SA), Javanese, Balinese
)
# By block, not by name: emoji of a later Unicode than Python's are to be tokens too.
_EMOJI = re.compile(
    "[\u231a\u231b\u2328\u23cf\u23e9-\u23fa\u25b6\u25c0\u2600-\u27bf\u2b1b\u2b1c\u2b50\u2b55"
    "\U0001f000-\U0001f0ff\U0001f18e-\U0001f19a\U0001f300-\U0001faff]"
)
_LITERAL = frozenset("'-.@/:#+&_,*")

# Before NFKC, which would write 6½ with the numerator 61, and Brand™ as BrandTM.
_RESPELL = {
    **{c: f" {unicodedata.normalize('NFKC', c).replace(chr(0x2044), '/')} " for c in "¼½¾⅐⅑⅒⅓⅔⅕⅖⅗⅘⅙⅚⅛⅜⅝⅞↉"},
    **dict.fromkeys("™℠", " "),
    **dict.fromkeys("\u2018\u2019\u02bb\u02bc\u05f3", "'"),  # typographic, Hawaiian, Ukrainian, Hebrew
    **dict.fromkeys("\u2010\u2011", "-"),
    "\u00b7": ".",  # col·lecció, 3·14
    "\u2044": "/",
}
_RESPELLED = re.compile(f"[{''.join(_RESPELL)}]")


class Segment(NamedTuple):
    """`kind` is "word", "run", "emoji" or "keycap"; `shape` is as long as `text`."""

    kind: str
    text: str
    shape: str


def _classify(char: str) -> str:
    if char in _LITERAL:
        return char
    if _IGNORABLE.match(char):
        special = {"\u200b": " ", "\u200c": "n", "\u200d": "z", "\ufe0e": "v", "\ufe0f": "v"}
        return "t" if "\U000e0020" <= char <= "\U000e007f" else special.get(char, "m")
    category = unicodedata.category(char)
    if category[0] == "M":
        return "k" if char == "\u20e3" else "m"
    if _UNSPACED.match(char) and (category[0] == "L" or category == "Nl" or char >= "\U00020000"):
        return "h"
    if char.isalpha():
        return "u" if char.isupper() else "l"
    if char.isalnum():
        return "d"
    if "\U0001f1e6" <= char <= "\U0001f1ff":
        return "r"
    if _EMOJI.match(char):
        return "s" if "\U0001f3fb" <= char <= "\U0001f3ff" else "e"
    return "o" if category[0] in "SP" else " "


class _Classes(dict[int, str]):
    """Code point -> class, for str.translate; fills itself."""

    def __missing__(self, code: int) -> str:
        found = _classify(chr(code))
        if len(self) < 1 << 16:  # some 6 MiB, even after texts that walk through all of Unicode
            self[code] = found
        return found


_CLASSES = _Classes()

_LETTERS = rf"[uld][uldmnzv]{{0,{_MAX_WORD - 1}}}+"
_TOUCH_UP = r"[vs]{0,2}+t{0,15}+"
_SEGMENT = re.compile(
    rf"""
      (?P<keycap> [d#*] v? k )
    | (?P<word>   {_LETTERS} (?: (?: [-.@/:#+&'] | :: | _++ | (?<=d),(?=d) ) {_LETTERS} ){{0,{_MAX_PARTS - 1}}}+
                  (?: (?: \+\+ | \# ) (?![#+]) )? )
    | (?P<run>    h [hmnzv]*+ )
    | (?P<emoji>  rr | (?: [es] | o(?=v) ) {_TOUCH_UP} (?: z [eo] {_TOUCH_UP} ){{0,{_MAX_LINKS}}}+ )
    """,
    re.VERBOSE,
)
_FLOOD = "m" * (_MAX_MARKS + 1)
_FLOODS = re.compile(rf"(m{{{_MAX_MARKS}}})m++")

_JOINERS = re.compile(r"[-.@/:#+&_,]+")
_APOSTROPHE = re.compile("'")
_ZWNJ = re.compile("n")
_HUMP = re.compile(r"(?<=l)(?=u)|(?<=[ud])(?=ull)")  # get|User|By|Id, HTTP|Server, utf8|Decoder; but PDFs
_NUMBER = re.compile(r"(?<=[ul])(?=d)|(?<=d)(?=[ul])")
_CUTS = (_JOINERS, _APOSTROPHE, _ZWNJ, _HUMP, _NUMBER)
_LETTER = re.compile(r"h[^h]*+")


def segments(text: str) -> Iterator[Segment]:
    """Find the words, runs and emoji of `text`, in order, in NFKC."""
    shape = text.translate(_CLASSES)
    if not text.isascii():
        text, shape = _normalize(text, shape)
    for match in _SEGMENT.finditer(shape):
        start, end = match.span()
        yield Segment(match.lastgroup or "", text[start:end], match[0])


def _normalize(text: str, shape: str) -> tuple[str, str]:
    original = text
    if _FLOOD in shape:
        kept = []
        start = 0
        for match in _FLOODS.finditer(shape):
            kept.append(text[start : match.end(1)])
            start = match.end()
        text = "".join(kept) + text[start:]
    text = _RESPELLED.sub(lambda match: _RESPELL[match[0]], text)
    text = unicodedata.normalize("NFKC", text)
    return (text, shape) if text == original else (text, text.translate(_CLASSES))


def parts(word: Segment, *, apostrophes: bool) -> list[Segment]:
    """Cut `word` one level down, [] if there is nothing to cut.

    At the first of these that it has: joiners; apostrophes, where asked; ZWNJ; camelCase humps, unless there are more
    than a name has (base64); the one place where letters meet a number (E42, python3, 10km; a hash has several).
    A single letter is a part only between joiners: not the i of iPhone, nor the l of l'homme.
    """
    for at in _CUTS:
        if at is _APOSTROPHE and not apostrophes:
            continue
        found = []
        start = 0
        for match in at.finditer(word.shape):
            found.append(Segment(word.kind, word.text[start : match.start()], word.shape[start : match.start()]))
            start = match.end()
        if found:
            found.append(Segment(word.kind, word.text[start:], word.shape[start:]))
            if at is _JOINERS:
                return [part for part in found if part.text]
            if len(found) > (2 if at is _NUMBER else _MAX_PARTS):
                return []
            return [part for part in found if len(part.text) > 1 or part.shape == "d"]
    return []


def letters(run: Segment) -> list[str]:
    """The letters of a run, each with its marks."""
    if run.shape.count("h") == len(run.shape):
        return list(run.text)
    return [visible(run.text[match.start() : match.end()]) for match in _LETTER.finditer(run.shape)]


def visible(text: str) -> str:
    """`text` without the characters that show nothing."""
    return _IGNORABLE.sub("", text)
