"""Text -> terms: what a record can be found by, what a query looks for.

Records and queries go through the same steps, so that they meet:

    The cafés, user_id
    The | cafés | user_id         cut into words (segment.py)
          cafés | user_id         stop words go
          café  | user_id         the exact form of each: case folded, stemmed unless it holds a digit or joiner
          cafe  | user, id        its second forms: without accents, the parts of an identifier; stemmed too

Rule 1: a word with all its forms is one position; `doc_len` counts positions.
Rule 2: an exact form counts 1, a second form 1/2, in the record and in the query. So both spellings find each other,
        and of two records that differ in the spelling alone the one spelled as the query comes first: a record with
        the exact form has the second forms too, so the exact form is the rarer, with the greater idf.
Rule 3: no bytes are refused, and a query enters no term into the vocabulary.

Vocabulary and Analyzer belong to one thread.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice, pairwise, repeat
from sys import getsizeof
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import Stemmer  # type: ignore[import-not-found]

from . import kernels, segment
from .segment import Segment
from .word_table import WordTable

# Term freqs are in half units, so that they are integers.
EXACT = 2
SECOND_FORM = 1
MAX_TF = 65535
NOTHING = -1  # in place of a term id: a stop word, punctuation
_UNKNOWN = -2  # a stretch that is not one of these, or not seen before
_BETWEEN = b"\xff\xfe"  # between the texts of several records: no UTF-8, so hardly ever in one

# For all second forms of a query word. BM25 is concave in tf: a tf of 1/2 earns at least half of what 1 does. So a
# record with an identifier whole is behind one with its parts as words by half of their weight at most, and ahead by 1
# for the exact form: with a weight of 2 it comes first whatever k1 and b, with more (five parts at 1/2) it might not.
_MAX_SECOND_WEIGHT = 2.0
# Of one word, with repetitions: a path of 16 parts has 17; base64, cut at slashes and humps, would have 70.
_MAX_FORMS = 32

# Stretches between two spaces, as written: 12 000 distinct ones in 6000 turns of LoCoMo. 100 000 are about 10 MB.
_MAX_ENTRIES = 100_000
_MAX_QUERY_ENTRIES = 10_000
# Longer ones (addresses, base64, Chinese sentences) seldom come twice.
_MAX_CACHED_BYTES = 64
# Terms whose length is looked at when somebody asks how large all are, a millisecond or so; the others are as those.
_MEASURED = 10_000

NONE = "none"
LANGUAGES = frozenset({NONE, *Stemmer.algorithms()})
# A text is looked at up to so many bytes, or so many for each word that may count.
_LOOK_BYTES = 1 << 16
_LOOK_BYTES_PER_WORD = 256

STOP_WORDS = frozenset(
    """
    a an and are as at be but by did do does for from had has have he her his how in is it its of on or she that the
    their they this to was were what when which who will with
    """.split()
)

# What most stretches are: a word with the punctuation that touches it. Spares them segment.py.
_PLAIN = re.compile(rb"[\"'(\[{<*]*+([A-Z]?[a-z]{1,200}+|[A-Z])[\"')\]}>*.,:;!?]*+")
# Shapes: what has no parts, and (a digit or joiner) what is not stemmed.
_SIMPLE = re.compile(r"u?l++|u++|d++")
_WHOLE = re.compile(r"[^ulmnzv']")
_GROUPED = re.compile(r"([0-9]{1,3}(?:,[0-9]{3})++)(\.[0-9]++)?")
_SKIN_TONE = re.compile("(?<=.)[\U0001f3fb-\U0001f3ff]")

# What people leave out: accents of Latin, Greek and Cyrillic (but not the breve of й and ў, letters of their own),
# Hebrew points, Arabic vowels and tatweel, the nukta of Hindi and Bengali. Never the vowel signs of Indic scripts.
_OPTIONAL = re.compile(
    "[\u0300-\u0305\u0307-\u036f\u0591-\u05bd\u05bf\u05c1\u05c2\u05c4\u05c5\u05c7\u0610-\u061a\u0640\u064b-\u065f\u0670"
    "\u06d6-\u06dc\u06df-\u06e8\u06ea-\u06ed\u093c\u09bc]|(?<![\u0438\u0443])\u0306"
)
# Letters with a stroke or joined, which NFD leaves whole.
_STROKED = {ord(a): b for a, b in zip("\u0131łøđðħŧŋæœþ", [*"iloddhtn", "ae", "oe", "th"], strict=True)}
_FOREIGN_DIGIT = re.compile(r"[^\D0-9]")


class BadLanguage(ValueError):
    """Neither a Snowball stemmer nor "none" has this name."""


class Document(NamedTuple):
    """`terms`: distinct ids in order of first appearance; `tfs`: half units, beside them; `doc_len`: words."""

    terms: list[int]
    tfs: list[int]
    doc_len: int


class Documents(NamedTuple):
    """Those of several records, one's terms behind the other's, in any order: `counts` (m,) says how many are each
    one's, `doc_lens` (m,) how many words each has."""

    terms: npt.NDArray[np.uint32]
    tfs: npt.NDArray[np.uint16]
    counts: npt.NDArray[np.int64]
    doc_lens: npt.NDArray[np.int64]


class QueryTerm(NamedTuple):
    """`term_id` is -1 where the vocabulary lacks the term; `weight` is how often the query has it."""

    term: str
    term_id: int
    weight: float


class Word(NamedTuple):
    """One position. `singles` are second forms of records only: letters of a bigram, which a query may ask alone."""

    exact: str
    seconds: tuple[str, ...] = ()
    singles: tuple[str, ...] = ()


_Entry = tuple[tuple[int, tuple[int, ...]], ...]  # (exact id, ids of second forms) of each word


class Vocabulary:
    """Term <-> dense id. One for all memories of a server, since most share their words."""

    __slots__ = ("_ids", "_lock", "_measured", "_term_bytes", "_terms", "analyzers")

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self._terms: list[str] = []
        self._lock = Lock()  # texts are analysed in several threads
        self._measured = self._term_bytes = 0  # how many terms were, and what they take
        self.analyzers: dict[str, Analyzer] = {}

    def __len__(self) -> int:
        return len(self._terms)

    def nbytes(self) -> int:
        """About how many bytes this takes, with what the analyzers remember: of a term its string and its number (32),
        of a stretch its bytes (48)."""
        count = len(self._terms)
        new = self._terms[self._measured : min(count, self._measured + _MEASURED)]
        self._measured += len(new)
        self._term_bytes += sum([15 + getsizeof(term) & -16 for term in new]) + 32 * len(new)
        total = getsizeof(self._ids) + getsizeof(self._terms) + self._term_bytes * count // max(1, self._measured)
        return total + sum(analyzer.nbytes() for analyzer in list(self.analyzers.values()))

    def id_of(self, term: str) -> int:
        """The id of `term`, which is entered if need be."""
        term_id = self._ids.get(term)
        if term_id is None:
            with self._lock:
                term_id = self._ids.get(term)
                if term_id is None:
                    term_id = len(self._terms)
                    self._terms.append(term)
                    self._ids[term] = term_id
        return term_id

    def find(self, term: str) -> int:
        """The id of `term`, -1 if it has none."""
        return self._ids.get(term, -1)

    def word(self, term_id: int) -> str:
        """The term of an id. Raises IndexError for one that was never given out."""
        return self._terms[term_id]


def analyzer_for(lang: bytes | str, vocabulary: Vocabulary) -> Analyzer:
    """The vocabulary's analyzer for `lang` (in any case), made on first use. Raises BadLanguage."""
    name = _language(lang)
    analyzer = vocabulary.analyzers.get(name)
    if analyzer is None:
        analyzer = vocabulary.analyzers[name] = Analyzer(name, vocabulary)
    return analyzer


def _language(lang: bytes | str) -> str:
    name = (lang.decode("utf-8", "replace") if isinstance(lang, bytes) else lang).lower()
    if name not in LANGUAGES:
        raise BadLanguage(f"unknown language '{name}', expected one of {' '.join(sorted(LANGUAGES))}")
    return name


class Analyzer:
    """Texts -> terms in one language: a Snowball algorithm, or "none" for words as they are."""

    def __init__(self, lang: bytes | str, vocabulary: Vocabulary) -> None:
        """Raises BadLanguage."""
        self.lang = _language(lang)
        self.vocabulary = vocabulary
        # Without PyStemmer's own cache (size 0): the ones below remember more than the stem.
        self._stem: Callable[[str], str] = str if self.lang == NONE else Stemmer.Stemmer(self.lang, 0).stemWord
        # A stretch between spaces -> the id of its only term, or NOTHING; the few that hold more are in _entries.
        self._ids: dict[bytes, int] = {}
        self._entries: dict[bytes, _Entry] = {}
        self._table: WordTable | None = None  # both, where compiled loops count
        self._forgotten = 0  # how many entries there were at most before
        self._query_words = lru_cache(_MAX_QUERY_ENTRIES)(lambda stretch: tuple(self._words(stretch)))

    def document(self, text: bytes, max_words: int) -> Document:
        """The terms of a record, entered into the vocabulary; words beyond `max_words` count for nothing."""
        id_of = self._ids.get
        # ASCII spaces are no part of any other UTF-8 character, so a known stretch need not even be decoded.
        stretches = looked_at(text, max_words).split()
        if len(stretches) <= min(max_words, MAX_TF // EXACT):
            ids = list(map(id_of, stretches))
            if None in ids:
                for stretch, term_id in zip(stretches, ids, strict=True):
                    if term_id is None and stretch not in self._entries:
                        self._learn(stretch, max_words)
                ids = list(map(id_of, stretches))
            if None not in ids:
                # The common case, a term each: counted without a step of the interpreter per word.
                counts_of: dict[Any, int] = Counter(ids)
                words = len(ids) - counts_of.pop(NOTHING, 0)
                return Document(list(counts_of), [EXACT * count for count in counts_of.values()], words)
        tfs: dict[int, int] = {}
        room = max_words
        for stretch in stretches:
            term_id = id_of(stretch)
            if term_id == NOTHING:
                continue
            if room <= 0:
                break
            if term_id is not None:
                tfs[term_id] = tfs[term_id] + EXACT if term_id in tfs else EXACT
                room -= 1
                continue
            for exact, seconds in self._entries.get(stretch) or self._learn(stretch, room):
                if not room:
                    break
                tfs[exact] = tfs.get(exact, 0) + EXACT
                for second in seconds:
                    tfs[second] = tfs.get(second, 0) + SECOND_FORM
                room -= 1
        doc_len = max_words - room
        counts = list(tfs.values())
        if doc_len > MAX_TF // EXACT:
            counts = [min(count, MAX_TF) for count in counts]
        return Document(list(tfs), counts, doc_len)

    def documents(self, texts: Sequence[bytes], max_words: int) -> Documents:
        """The same of several records, all their words counted together: in three fifths of the time, or a fifth where
        compiled loops count."""
        looked = [looked_at(text, max_words) for text in texts]
        if kernels.words is not None:
            return self._counted(texts, looked, max_words)
        stretches = (b" %b " % _BETWEEN).join(looked).split()
        ids = np.fromiter(map(self._ids.get, stretches, repeat(_UNKNOWN)), np.int64, len(stretches))
        unknown = np.flatnonzero(ids == _UNKNOWN).tolist()
        ends = [at for at in unknown if stretches[at] == _BETWEEN]
        if len(ends) != len(texts) - 1:  # a text has it
            return _put_together([self.document(text, max_words) for text in texts])
        ids[ends] = NOTHING
        of = np.zeros(len(ids), np.int64)
        of[ends] = 1
        np.cumsum(of, out=of)
        # What the other stretches add: the record, a term and its half units.
        more: list[tuple[int, int, int]] = []
        doc_lens = np.bincount(of[ids >= 0], minlength=len(texts))
        for at in unknown:
            stretch, number = stretches[at], int(of[at])
            if ids[at] == NOTHING:
                continue
            entry = self._entries.get(stretch) or self._learn(stretch, max_words)
            doc_lens[number] += len(entry)
            for exact, seconds in entry:
                more.append((number, exact, EXACT))
                more += [(number, second, SECOND_FORM) for second in seconds]
        if doc_lens.max() > min(max_words, MAX_TF // EXACT):
            return _put_together([self.document(text, max_words) for text in texts])
        keys, tfs = np.unique((of << 32 | ids)[ids >= 0], return_counts=True)
        tfs *= EXACT
        if more:
            others = np.array(more, np.int64)
            keys = np.concatenate((keys, others[:, 0] << 32 | others[:, 1]))
            order = np.argsort(keys, kind="stable")
            keys, tfs = keys[order], np.concatenate((tfs, others[:, 2]))[order]
            starts = np.flatnonzero(np.diff(keys, prepend=-1))
            keys, tfs = keys[starts], np.add.reduceat(tfs, starts)
        counts = np.bincount(keys >> 32, minlength=len(texts))
        return Documents(keys.astype(np.uint32), tfs.astype(np.uint16), counts, doc_lens)

    def _counted(self, texts: Sequence[bytes], looked: list[bytes], max_words: int) -> Documents:
        """`documents` by the table of known stretches."""
        counted = self._tabled().count(looked)
        if counted.unknown:
            joined = b"".join(looked)
            bounds = iter(counted.unknown)
            for stretch in dict.fromkeys([joined[start:end] for start, end in zip(bounds, bounds, strict=True)]):
                known = stretch in self._ids or stretch in self._entries
                if not known and len(stretch) <= _MAX_CACHED_BYTES:
                    self._learn(stretch, max_words)
            counted = self._tabled().count(looked)
        most = min(max_words, MAX_TF // EXACT)
        singly = np.flatnonzero((counted.counts < 0) | (counted.doc_lens > most)).tolist()
        if not singly:
            return Documents(counted.terms, counted.tfs, counted.counts, counted.doc_lens)
        ends = np.maximum(counted.counts, 0).cumsum().tolist()
        parts: list[Documents] = []
        done = 0
        for number in [*singly, len(texts)]:
            if number > done:
                where = slice(ends[done - 1] if done else 0, ends[number - 1])
                mine = slice(done, number)
                parts.append(
                    Documents(counted.terms[where], counted.tfs[where], counted.counts[mine], counted.doc_lens[mine])
                )
            if number < len(texts):
                parts.append(_put_together([self.document(texts[number], max_words)]))
            done = number + 1
        return Documents(*map(np.concatenate, zip(*parts, strict=True)))

    def _tabled(self) -> WordTable:
        """The table of what is known."""
        table = self._table  # which another thread may forget at any time
        if table is None:
            table = self._table = WordTable()  # before it is filled: what others learn meanwhile is entered too
            ids = dict(self._ids)
            table.add(list(ids), list(ids.values()))
            for stretch, entry in dict(self._entries).items():
                table.add_entry(stretch, len(entry), _forms_of(entry))
        return table

    def query(self, text: bytes, max_words: int) -> list[QueryTerm]:
        """The distinct terms of a query, in order of first appearance; words beyond `max_words` count for nothing."""
        weights: dict[str, float] = {}
        room = max_words
        for stretch in looked_at(text, max_words).split():
            if room <= 0:
                break
            known = self._query_words if len(stretch) <= _MAX_CACHED_BYTES else self._words
            for exact, seconds, _ in islice(known(stretch), room):
                weights[exact] = weights.get(exact, 0.0) + 1.0
                if seconds:
                    weight = min(SECOND_FORM / EXACT, _MAX_SECOND_WEIGHT / len(seconds))
                    for second in seconds:
                        weights[second] = weights.get(second, 0.0) + weight
                room -= 1
        find = self.vocabulary.find
        return [QueryTerm(term, find(term), weight) for term, weight in weights.items()]

    def nbytes(self) -> int:
        """About how many bytes are taken by what is remembered of stretches. The tuples of those that are forgotten lie
        among terms that stay, where only others like them take their place."""
        entries = max(self._forgotten, len(self._entries))
        table = self._table
        tabled = 0 if table is None else table.nbytes()
        return tabled + getsizeof(self._ids) + 48 * len(self._ids) + getsizeof(self._entries) + 300 * entries

    def _learn(self, stretch: bytes, max_words: int) -> _Entry:
        """Enter the terms of `stretch` into the vocabulary, and remember them if it is short."""
        id_of = self.vocabulary.id_of
        short = len(stretch) <= _MAX_CACHED_BYTES
        entry = tuple(
            (id_of(exact), tuple(map(id_of, seconds + singles)))
            for exact, seconds, singles in islice(self._words(stretch), None if short else max_words)
        )
        if short:
            if len(self._ids) + len(self._entries) >= _MAX_ENTRIES:
                self._forgotten = max(self._forgotten, len(self._entries))
                self._ids.clear()
                self._entries.clear()
                self._table = None
            if not entry or (len(entry) == 1 and not entry[0][1]):
                self._ids[stretch] = value = entry[0][0] if entry else NOTHING
                if (table := self._table) is not None:
                    table.add([stretch], [value])
            else:
                self._entries[stretch] = entry
                if (table := self._table) is not None:
                    table.add_entry(stretch, len(entry), _forms_of(entry))
        return entry

    def _words(self, stretch: bytes) -> Iterator[Word]:
        plain = _PLAIN.fullmatch(stretch)
        if plain and self.lang != "turkish":
            if term := self._term(plain[1].decode().lower()):
                yield Word(term)
            return
        for piece in segment.segments(stretch.decode("utf-8", "replace")):
            if piece.kind == "run":
                yield from _bigrams(segment.letters(piece))
                continue
            forms = self._forms(piece) if piece.kind == "word" else _emoji_forms(piece)
            exact, *seconds = dict.fromkeys(islice(forms, _MAX_FORMS))
            if exact:
                yield Word(exact, tuple(filter(None, seconds)))

    def _forms(self, word: Segment) -> Iterator[str]:
        """The exact form, then the second forms, with repetitions; "" stands for a stop word."""
        folded = self._fold_case(word.text)
        whole = _WHOLE.search(word.shape) is not None
        yield self._term(folded, whole)
        if not folded.isascii():
            yield self._term(_fold_accents(folded), whole)
        if _SIMPLE.fullmatch(word.shape):
            return
        if grouped := _GROUPED.fullmatch(folded):  # 1,000 is 1000, not 1 and 000
            yield grouped[1].replace(",", "") + (grouped[2] or "")
            return
        # The English stemmer knows what to do with an apostrophe; elsewhere it parts words: l'homme, İstanbul'da.
        for part in segment.parts(word, apostrophes=self.lang != "english"):
            yield from self._forms(part)

    def _fold_case(self, text: str) -> str:
        if self.lang == "turkish":
            text = text.replace("I", "\u0131").replace("İ", "i")  # its I is the capital of a dotless letter
        if text.isascii():
            return text.lower()
        return unicodedata.normalize("NFKC", segment.visible(text).casefold())

    def _term(self, word: str, whole: bool = False) -> str:
        if self.lang == "english":
            # Snowball drops the possessive, after which "it's" would be a stop word that came through.
            bare = word.removesuffix("'s")
            if bare in STOP_WORDS:
                return ""
            return bare if whole else self._stem(word)
        # Some stemmers leave nothing of a short word (porter: "s").
        return word if whole else self._stem(word) or word


def looked_at(text: bytes, max_words: int) -> bytes:
    """What of a text can hold its first `max_words` words, all but the oddest: 20 MB without a space are not read."""
    return text[: max(_LOOK_BYTES, max_words * _LOOK_BYTES_PER_WORD)]


def _put_together(documents: list[Document]) -> Documents:
    terms = list(chain.from_iterable(each.terms for each in documents))
    tfs = list(chain.from_iterable(each.tfs for each in documents))
    counts = np.array([len(each.terms) for each in documents], np.int64)
    doc_lens = np.array([each.doc_len for each in documents], np.int64)
    return Documents(np.array(terms, np.uint32), np.array(tfs, np.uint16), counts, doc_lens)


def no_words(records: int) -> Documents:
    """Of so many records without a word."""
    return _put_together([Document([], [], 0)] * records)


def _forms_of(entry: _Entry) -> list[tuple[int, int]]:
    """The terms of an entry with their half units."""
    return [
        form for exact, seconds in entry for form in ((exact, EXACT), *((second, SECOND_FORM) for second in seconds))
    ]


def _fold_accents(word: str) -> str:
    bare = unicodedata.normalize("NFC", _OPTIONAL.sub("", unicodedata.normalize("NFD", word))).translate(_STROKED)
    return _FOREIGN_DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), bare)


def _bigrams(letters: list[str]) -> Iterator[Word]:
    """Overlapping pairs, or the only letter. Each letter is a single of the pair it begins, the last of the last."""
    if len(letters) == 1:
        yield Word(letters[0])
    for i, (first, second) in enumerate(pairwise(letters), 2):
        yield Word(first + second, (), (first, second) if i == len(letters) and first != second else (first,))


def _emoji_forms(emoji: Segment) -> Iterator[str]:
    """The whole without style selectors; then without skin tones, and its links; of a keycap, its digit."""
    whole = emoji.text.replace("\ufe0e", "").replace("\ufe0f", "")
    yield whole
    if emoji.kind == "keycap":
        yield whole[0] if whole[0].isdecimal() else ""
        return
    bare = _SKIN_TONE.sub("", whole)
    yield bare
    yield from bare.split("\u200d")
