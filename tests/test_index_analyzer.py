"""Text analysis: SPEC section 8, one table for each kind of word.

In the tables `exact exact / second second` are the terms of a text: those that count 1, and those that count 1/2.
"""

# ruff: noqa: RUF001  (letters that look like others are what this is about)

from __future__ import annotations

import math
import random
import re
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recalld.index import analyzer as module
from recalld.index.analyzer import (
    LANGUAGES,
    MAX_TF,
    Analyzer,
    BadLanguage,
    QueryTerm,
    Vocabulary,
    analyzer_for,
)

MANY = 1_000_000


def make(lang: str = "english") -> Analyzer:
    return Analyzer(lang, Vocabulary())


def tfs_of(analyzer: Analyzer, text: bytes, max_words: int = MANY) -> dict[str, int]:
    document = analyzer.document(text, max_words)
    return {analyzer.vocabulary.word(term): tf for term, tf in zip(document.terms, document.tfs, strict=True)}


def forms(text: str | bytes, lang: str = "english") -> str:
    tfs = tfs_of(make(lang), text.encode() if isinstance(text, str) else text)
    exact = " ".join(term for term, tf in tfs.items() if tf >= 2)
    seconds = " ".join(term for term, tf in tfs.items() if tf == 1)
    return f"{exact} / {seconds}" if seconds else exact


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The cats were RUNNING", "cat run"),
        ("Oslo.", "oslo"),
        ("(\"Oslo\"), 'Bergen'!? *Voss* [Flam]; <Odda>", "oslo bergen voss flam odda"),
        ("well-\nknown -dash- under_ _score_ __init__", "well known dash under score init"),
        ("a I x 7 to", "i x 7"),
        ("42 3.5% $100 007", "42 3.5 100 007 / 3 5"),
        ("Wait...what?! yes--no a/ /b", "wait yes no b"),
        ("don't o'brien's rock'n'roll 'tis dogs'", "don't o'brien rock'n'rol tis dog"),
        ("it's what's she's That's", ""),
        ("don\u2019t don\u2018t don\uff07t", "don't"),
        ("", ""),
        (" \t\r\n\v\f ", ""),
        ("!!! ... -- ' _ # ++ @", ""),
    ],
)
def test_words(text: str, expected: str) -> None:
    """Case and punctuation go, stop words too (also with 's); digits and single letters stay."""
    assert forms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("mem_001", "mem_001 / mem 001"),
        ("user_id", "user_id / user id"),
        ("MAX_RETRIES", "max_retries / max retri"),
        ("max-retries", "max-retries / max retri"),
        ("E42", "e42 / 42"),
        ("python3", "python3 / python 3"),
        ("3f2504e0", "3f2504e0"),
        ("v2.10.1", "v2.10.1 / v2 2 10 1"),
        ("a@b.org", "a@b.org / b org"),
        ("src/app.py", "src/app.py / src app py"),
        ("10:30", "10:30 / 10 30"),
        ("2026-06-01", "2026-06-01 / 2026 06 01"),
        ("1,000", "1,000 / 1000"),
        ("1,234,567.89", "1,234,567.89 / 1234567.89"),
        ("1,2", "1,2 / 1 2"),
        ("one,two", "one two"),
        ("c++", "c++ / c"),
        ("C#", "c# / c"),
        ("item#5", "item#5 / item 5"),
        ("#5 #tag @ann .net", "5 tag ann net"),
        ("c## c+++", "c"),
        ("std::vector", "std::vector / std vector"),
        ("a__b", "a__b / b"),
        ("AT&T", "at&t / t"),
        ("https://x.org/a?b=c", "https x.org/a b c / x org"),
        ("ice-cream", "ice-cream / ice cream"),
        ("and/or", "and/or"),
        ("end.Next", "end.next / end next"),
        ("mother-in-law's", "mother-in-law / mother law"),
        ("getUserById", "getuserbyid / get user id"),
        ("HTTPServer", "httpserver / http server"),
        ("utf8Decoder", "utf8decoder / utf8 utf 8 decod"),
        ("PDFs", "pdfs"),
        ("iPhone", "iphon / phone"),
        ("src/getUserById.py", "src/getuserbyid.py / src getuserbyid get user id py"),
        ("étéÉté", "étéété / eteet été ete"),
    ],
)
def test_identifiers(text: str, expected: str) -> None:
    """An identifier is found whole and by its parts; the whole is not stemmed, the parts are."""
    assert forms(text) == expected


def test_an_identifier_is_one_word() -> None:
    """Second forms do not count in doc_len."""
    assert make().document(b"src/app.py getUserById caf\xc3\xa9", MANY).doc_len == 3


def test_long_words_are_cut() -> None:
    """Letters without end fall into words of 255, parts without end into wholes of 16; a hundred humps are none."""
    assert [len(term) for term in tfs_of(make("none"), b"x" * 256)] == [255, 1]
    assert make().document(b"x" * 600, MANY).doc_len == 3
    assert make("none").document(b"-".join([b"x"] * 40), MANY).doc_len == 3
    assert make("none").document(b"Ab" * 100, MANY).terms == [0]
    assert len(make().document(b"/".join(b"Red%cBlue" % letter for letter in b"abcdefghijklmnop"), MANY).terms) < 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("café", "café / cafe"),
        ("cafe\u0301", "café / cafe"),
        ("cafés", "café / cafe"),
        ("Łódź", "łódź / lodz"),
        ("Søren Ærø", "søren ærø / soren aero"),
        ("Straße STRASSE", "strass"),
        ("Đặng", "đặng / dang"),
        ("café-bar", "café-bar / cafe-bar café cafe bar"),
        ("άλφα ΑΛΦΑ", "άλφα αλφα"),
        ("ёлка", "ёлка / елка"),
        ("мой", "мой"),
        ("كِتَابٌ", "كِتَابٌ / كتاب"),
        ("של\u05d5\u05b9ם", "של\u05d5\u05b9ם / שלום"),
        ("٢٠٢٤", "٢٠٢٤ / 2024"),
    ],
)
def test_accents(text: str, expected: str) -> None:
    """What people leave out is left out in a second form; the breve of й is no accent."""
    assert forms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("東京タワー", "東京 京タ タワ ワー / 東 京 タ ワ ー"),
        ("東", "東"),
        ("哈哈", "哈哈 / 哈"),
        ("東京，北海。", "東京 北海 / 東 京 北 海"),
        ("3月Tシャツabc", "3 月 t シャ ャツ abc / シ ャ ツ"),
        ("ｶﾞｷ", "ガキ / ガ キ"),
        ("서울에", "서울 울에 / 서 울 에"),
        ("\u1112\u1161\u11ab\u1100\u1173\u11af", "한글 / 한 글"),
        ("กินข้าว", "กิน นข้ ข้า าว / กิ น ข้ า ว"),
        ("हिन्दी में", "हिन्दी में"),
        ("می\u200cخواهم", "میخواهم / می خواهم"),
        ("ＡＢＣ\u3000１２", "abc 12"),
    ],
)
def test_scripts(text: str, expected: str) -> None:
    """Scripts without spaces, and Hangul with its particles, are bigrams; marks do not cut the words of others."""
    assert forms(text) == expected


def test_a_single_letter_finds_a_run() -> None:
    """A bigram's letters are terms of records; in a query only a letter that stands alone is one."""
    analyzer = make()
    terms = analyzer.document("東京都".encode(), MANY).terms
    assert [term.term_id in terms for term in analyzer.query("京".encode(), MANY)] == [True]
    assert [term.term for term in analyzer.query("東京都".encode(), MANY)] == ["東京", "京都"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("nice😀😀!", "nice 😀"),
        ("❤\ufe0f", "❤"),
        ("❤", "❤"),
        ("↔\ufe0f →", "↔"),
        ("👍\U0001f3fd", "👍\U0001f3fd / 👍"),
        ("☝\ufe0f\U0001f3fd", "☝\U0001f3fd / ☝"),
        ("👩\u200d💻", "👩\u200d💻 / 👩 💻"),
        ("👩\u200d❤\ufe0f\u200d💋\u200d👨", "👩\u200d❤\u200d💋\u200d👨 / 👩 ❤ 💋 👨"),
        (
            "👩\U0001f3fd\u200d💻",
            "👩\U0001f3fd\u200d💻 / 👩\u200d💻 👩 💻",
        ),
        ("🏳\ufe0f\u200d🌈", "🏳\u200d🌈 / 🏳 🌈"),
        ("\U0001f1f3\U0001f1f4\U0001f1f8\U0001f1ea\U0001f1ea", "\U0001f1f3\U0001f1f4 \U0001f1f8\U0001f1ea"),
        ("1\ufe0f\u20e3#\u20e3", "1\u20e3 #\u20e3 / 1"),
        (
            "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
            "🏴\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",
        ),
    ],
)
def test_emoji(text: str, expected: str) -> None:
    """An emoji with all that modifies it is a word; without skin tone, and link by link, it is a second form."""
    assert forms(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ﬁle x² H₂O Ⅳ", "file x2 h2o iv / 2"),
        ("6½ cups of Brand™", "6 1/2 cup brand / 1 2"),
        ("so\u00adft\u2060ware zero\u200bwidth", "softwar zero width"),
        ("e\u2011mail", "e-mail / e mail"),
        ("e\u2010mail", "e-mail / e mail"),
        ("1990\u20132000\u2014now\u2026then", "1990 2000 now then"),
        ("no\u00a0break\u2028line\x00nul", "no break line nul"),
        (b"\xff\xfeabc\xffdef \xe2\x82 \xc3", "abc def"),
        ("\ufffd \ufffd", ""),
    ],
)
def test_unicode(text: str | bytes, expected: str) -> None:
    """NFKC, except where it would join words; what does not show is not there; invalid bytes separate."""
    assert forms(text) == expected


@pytest.mark.parametrize(
    ("lang", "text", "expected"),
    [
        ("none", "The Running it's c'est", "the running it's c'est / it est"),
        ("french", "l'homme aujourd\u2019hui", "homm aujourd'hui / aujourd hui"),
        ("italian", "dell'arte", "arte / dell"),
        ("german", "die Häuser der Stadt", "die haus der stadt"),
        ("russian", "новый новое", "нов"),
        ("turkish", "IŞIK", "ışık / isik"),
        ("turkish", "Ilik", "ılik / ilik"),
        ("turkish", "İstanbul'da", "istanbul / da"),
        ("porter", "s the", "s the"),
    ],
)
def test_languages(lang: str, text: str, expected: str) -> None:
    """Other languages have no stop words, and an apostrophe parts their words as a second form."""
    assert forms(text, lang) == expected


@pytest.mark.parametrize("lang", sorted(LANGUAGES))
def test_every_language(lang: str) -> None:
    """Any case, text or bytes; no stemmer leaves an empty term."""
    analyzer = analyzer_for(lang.upper().encode(), Vocabulary())
    assert analyzer.lang == lang
    alone = [forms(letter, lang) for letter in "abcdefghijklmnopqrstuvwxyz" if letter != "a" or lang != "english"]
    assert all(alone)


def test_unknown_language() -> None:
    """BadLanguage names the word and the choices."""
    with pytest.raises(BadLanguage, match="unknown language 'klingon', expected one of arabic "):
        analyzer_for(b"KLINGON", Vocabulary())
    with pytest.raises(BadLanguage):
        Analyzer(b"\xff", Vocabulary())


def test_analyzer_for_shares() -> None:
    """One analyzer for a language and vocabulary."""
    one, other = Vocabulary(), Vocabulary()
    assert analyzer_for("english", one) is analyzer_for(b"English", one)
    assert analyzer_for("english", one) is not analyzer_for("none", one)
    assert analyzer_for("english", one) is not analyzer_for("english", other)


def test_vocabulary() -> None:
    """Ids count from 0; finding does not enter."""
    vocabulary = Vocabulary()
    assert (vocabulary.find("oslo"), len(vocabulary)) == (-1, 0)
    assert [vocabulary.id_of(term) for term in ("oslo", "bergen", "oslo")] == [0, 1, 0]
    assert (vocabulary.find("bergen"), vocabulary.word(1), len(vocabulary)) == (1, "bergen", 2)


def test_term_freqs() -> None:
    """user: 2 as a word + 1 in user_id + 1 in user.name = 4 half units; order is that of first appearance."""
    analyzer = make()
    document = analyzer.document(b"The user has user_id and user.name", MANY)
    words = [analyzer.vocabulary.word(term) for term in document.terms]
    assert words == ["user", "user_id", "id", "user.name", "name"]
    assert (document.tfs, document.doc_len) == ([4, 2, 1, 2, 1], 3)


def test_term_freqs_are_capped() -> None:
    """40 000 times is 80 000 half units; a posting has 16 bits."""
    document = make().document(b"far " * 40_000, MANY)
    assert (document.tfs, document.doc_len) == ([MAX_TF], 40_000)


@pytest.mark.parametrize(
    "text",
    [
        "the one and two of three four",
        "one.two.x the 1/2 four five",
        "東京都で一二三四五六七",
        "one \U0001f600\U0001f600two three",
        "of the",
    ],
)
def test_max_words(text: str) -> None:
    """The first words count, stop words not among them; a cut inside a stretch is the same, cached or not."""
    raw = text.encode()
    whole = make().document(raw, MANY).doc_len
    for room in range(-1, whole + 2):
        analyzer = make()
        document = analyzer.document(raw, room)
        assert document.doc_len == max(0, min(room, whole))
        assert analyzer.document(raw, room) == document
        assert analyzer.document(raw, MANY).doc_len == whole
        assert analyzer.document(raw, room) == document
        exact = sum(term.weight >= 1 for term in analyzer.query(raw, room))
        assert exact <= document.doc_len
        assert all(term.term_id in document.terms for term in analyzer.query(raw, room))


def test_query() -> None:
    """A word twice counts twice, a second form half each time; nothing enters the vocabulary."""
    analyzer = make()
    analyzer.document(b"user", MANY)
    expected = [
        QueryTerm("user", 0, 2 * 1 + 0.5),
        QueryTerm("user_id", -1, 1),
        QueryTerm("id", -1, 0.5),
        QueryTerm("café", -1, 1),
        QueryTerm("cafe", -1, 0.5 + 1),
    ]
    for _ in range(2):
        assert analyzer.query("user, the users: user_id? cafés cafe".encode(), MANY) == expected
    assert analyzer.query(b"user_id users", 1) == [QueryTerm("user_id", -1, 1), QueryTerm("user", 0, 0.5), expected[2]]
    assert analyzer.query(b"what is the", MANY) == []
    assert len(analyzer.vocabulary) == 1


def test_a_query_enters_no_term() -> None:
    """Not even of a long stretch, nor of one that the cache knows."""
    analyzer = make()
    for text in (b"one two_three", b"a-b" * 100, "東京都".encode() * 50):
        analyzer.query(text, MANY)
        analyzer.query(text, MANY)
    assert len(analyzer.vocabulary) == 0


def test_second_forms_weigh_two_at_most() -> None:
    """The parts of c/d/e/f/g/h/i/j: eight times 1/4, not 1/2."""
    terms = make().query(b"c/d/e/f/g/h/i/j", MANY)
    assert [term.weight for term in terms] == [1.0] + [0.25] * 8


def rank(texts: list[str], query: str, k1: float, b: float) -> list[str]:
    """BM25 as in SPEC section 4, tf in half units / 2; the best first, equal ones in the order given."""
    analyzer = make()
    documents = [analyzer.document(text.encode(), MANY) for text in texts]
    avgdl = sum(document.doc_len for document in documents) / len(documents)
    df = Counter(term for document in documents for term in document.terms)
    scores = []
    for document in documents:
        norm = k1 * (1 - b + b * document.doc_len / avgdl)
        tfs = dict(zip(document.terms, document.tfs, strict=True))
        score = 0.0
        for _, term, weight in analyzer.query(query.encode(), MANY):
            if tf := tfs.get(term, 0) / 2:
                idf = math.log(1 + (len(texts) - df[term] + 0.5) / (df[term] + 0.5))
                score += weight * idf * tf * (k1 + 1) / (tf + norm)
        scores.append(score)
    found = sorted((-score, i) for i, score in enumerate(scores) if score > 0)
    return [texts[i] for _, i in found]


SPELLINGS = [
    ("café", "cafe"),
    ("Łódź", "Lodz"),
    ("user_id", "user id"),
    ("ice-cream", "ice cream"),
    ("getUserById", "get user by id"),
    ("1,000", "1000"),
    ("python3", "python 3"),
    ("\U0001f44d\U0001f3fd", "\U0001f44d"),
    ("کتاب\u200cها", "کتاب ها"),
]


@pytest.mark.parametrize(("one", "other"), SPELLINGS)
def test_a_spelling_finds_both_and_its_own_first(one: str, other: str) -> None:
    """With the default k1 and b, also where the identifier makes the shorter text."""
    for texts in ([one, other, "cats", "dogs"], [other, one, "cats", "dogs"]):
        assert rank(texts, one, 0.9, 0.4) == [one, other]
        assert rank(texts, other, 0.9, 0.4) == [other, one]


@pytest.mark.parametrize(("k1", "b"), [(0.9, 0.4), (1.2, 0.75), (3.0, 0.0), (0.1, 1.0)])
@pytest.mark.parametrize(("one", "other"), [*SPELLINGS, ("u/v/w/x/y/z/q/r/s/t", "u v w x y z q r s t")])
def test_at_equal_length_its_own_is_first_whatever_k1_and_b(one: str, other: str, k1: float, b: float) -> None:
    """Ten parts at 1/2 each would let the record with ten words win: hence the limit on their weight."""
    longer = make().document(other.encode(), MANY).doc_len - 1
    one_text, other_text = f"we met {one}" + " more" * longer, f"we met {other}"
    for texts in ([one_text, other_text, "met dogs", "cats"], [other_text, one_text, "met dogs", "cats"]):
        assert rank(texts, one, k1, b) == [one_text, other_text]
        assert rank(texts, other, k1, b) == [other_text, one_text]


ANY_TEXT = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=40).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.text(
        "aAzZ09é ß-_.,'@/:#+&*\u0301\u200d\u200c\ufe0f\u20e3\U0001f44d\U0001f3fd\U0001f1f3東がกำ한½™’ \n", max_size=40
    ).map(str.encode),
)


@given(ANY_TEXT, st.sampled_from(["english", "french", "turkish", "none"]), st.integers(0, 30))
def test_any_bytes(text: bytes, lang: str, room: int) -> None:
    """Nothing fails; the record of a text has every term that a query of the same text looks for."""
    analyzer = make(lang)
    assert analyzer.query(text, room) == [QueryTerm(term, -1, weight) for term, _, weight in analyzer.query(text, room)]
    document = analyzer.document(text, room)
    assert analyzer.document(text, room) == document
    assert len(set(document.terms)) == len(document.terms) == len(document.tfs)
    assert all(tf > 0 for tf in document.tfs)
    assert sum(tf >= 2 for tf in document.tfs) <= 2 * document.doc_len <= 2 * room
    assert "" not in {analyzer.vocabulary.word(term) for term in document.terms}
    query = analyzer.query(text, room)
    assert {term.term_id for term in query} <= set(document.terms)
    assert sum(term.weight for term in query) <= 3 * document.doc_len


@given(ANY_TEXT, ANY_TEXT)
def test_words_do_not_depend_on_their_neighbours(one: bytes, other: bytes) -> None:
    """The terms of two texts with a space between are those of each."""
    analyzer = make()
    both = tfs_of(analyzer, one + b" " + other)
    assert both == Counter(tfs_of(analyzer, one)) + Counter(tfs_of(analyzer, other))


ASCII_TEXT = st.one_of(
    st.text([chr(code) for code in range(128)], max_size=30),
    st.text("aTheS'\".,(*)#+-_ ", max_size=30),
    st.sampled_from(["a", "A", "Ab"]).flatmap(lambda word: st.integers(190, 260).map(lambda n: word * n)),
)


@given(ASCII_TEXT.map(str.encode), st.sampled_from(["english", "turkish", "none"]))
def test_the_short_way_agrees(text: bytes, lang: str) -> None:
    """What _PLAIN recognises has the same terms without it."""
    short = [tfs_of(make(lang), text), make(lang).query(text, MANY)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_PLAIN", re.compile(rb"(?!)"))
        assert [tfs_of(make(lang), text), make(lang).query(text, MANY)] == short


@given(st.lists(ANY_TEXT, max_size=8))
def test_caches_change_nothing(texts: list[bytes]) -> None:
    """Nor does it when they overflow, or when nothing is short enough for them."""
    expected = [(tfs_of(make(), text), make().query(text, MANY)) for text in texts]
    for name in ("_MAX_ENTRIES", "_MAX_CACHED_BYTES"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, name, 2)
            analyzer = make()
            for text, (tfs, query) in zip(texts, expected, strict=True):
                assert tfs_of(analyzer, text) == tfs
                assert len(analyzer._ids) + len(analyzer._entries) <= 2 or name != "_MAX_ENTRIES"
                assert [(term, weight) for term, _, weight in analyzer.query(text, MANY)] == [
                    (term, weight) for term, _, weight in query
                ]


FLOODS = [
    "a-",
    "'",
    "a'",
    "_",
    "a_" + "_" * 50,
    "1,",
    "aB",
    "a,",
    '"a',
    "c++",
    "\u0301",
    "e\u0301\u0323",
    "\u0301\u0323",
    "👩\u200d",
    "\u200d",
]
FLOODS += [
    "\U0001f44d\U0001f3fd",
    "\U0001f1f3",
    "🏴\U000e0067",
    "1\ufe0f\u20e3",
    "東",
    "กำ",
    "\ufdfa",
    "½",
    "a\xad",
    "م\u200c",
    "ß",
    "a ",
    "! ",
]


@pytest.mark.parametrize("flood", FLOODS)
def test_floods(flood: str) -> None:
    """64 KiB of anything take tens of milliseconds; what is not linear would take seconds."""
    raw = flood.encode()
    text = b"a" + raw * (65536 // len(raw))
    start = time.perf_counter()
    analyzer = make()
    analyzer.document(text, 1024)
    analyzer.query(text, 1024)
    assert time.perf_counter() - start < 2


def test_random_floods() -> None:
    """Bytes, printable ASCII and base64 at random."""
    chance = random.Random(7)
    start = time.perf_counter()
    for alphabet in (range(256), range(32, 127), b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"):
        text = bytes(chance.choices(alphabet, k=65536))
        analyzer = make()
        assert analyzer.document(text, 1024).doc_len <= 1024
        analyzer.query(text, 1024)
    assert time.perf_counter() - start < 5


def test_a_flood_of_marks_keeps_the_word() -> None:
    """Thirty of them are normalised, the word under them is found."""
    assert forms("x" + "\u0301" * 5000 + "y").endswith(" / xy")
