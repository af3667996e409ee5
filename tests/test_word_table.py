"""What the table of known stretches counts is what the analyzer counts one text at a time."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import numpy as np
import pytest
from conftest import NOT_COMPILED
from hypothesis import given, settings
from hypothesis import strategies as st
from recalld.index import analyzer as module
from recalld.index import kernels
from recalld.index.analyzer import LANGUAGES, Analyzer, Document, Documents, Vocabulary
from recalld.index.word_table import WordTable

pytestmark = pytest.mark.skipif(bool(NOT_COMPILED), reason=NOT_COMPILED)

Counts = list[tuple[int, dict[str, int]]]

#: One term, none, several forms, several words, letters that one language folds its own way, and no UTF-8.
PIECES = [
    *(b"lake", b"Lake.", b"the", b"!", b"I", b"user_id", b"1,000.50", b"don't", b"AT&T", b"a/b/c-d.e_f", b"C++"),
    *(
        text.encode()
        for text in (
            "café",
            "cafe",
            "北京市",
            "北",
            "ISPARTA",
            "İstanbul",
            "\u0131\u015f\u0131k",
            "\U0001f600",
            "1\ufe0f\u20e3",
        )
    ),
    *(b"\xff\xfe", b"lake\xff", b"\x00", b"lake\x00reed", b"\xc2\x85", b"\xc2\xa0", b"\xe2\x80\xa8", b"\xed\xa0\x80"),
    *(b"x" * length for length in (63, 64, 65, 66)),
    *(b"a_" * (length // 2) for length in (62, 64, 66)),
]
GAPS = [b" ", b"  ", b"\n", b"\t", b"\r\n", b"\x0b", b"\x0c"]
texts = st.one_of(
    st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(GAPS)), max_size=15).map(
        lambda pairs: b"".join(piece + gap for piece, gap in pairs)
    ),
    st.text(max_size=20).map(str.encode),
    st.binary(max_size=30),
)


def words_of(vocabulary: Vocabulary, terms: Any, tfs: Any) -> dict[str, int]:
    found = {vocabulary.word(int(term)): int(tf) for term, tf in zip(terms, tfs, strict=True)}
    assert len(found) == len(terms)
    return found


def tabled(analyzer: Analyzer, some: list[bytes], max_words: int = 10_000) -> Counts:
    """What `documents` says of each, by compiled loops."""
    assert kernels.words is not None
    found: Documents = analyzer.documents(some, max_words)
    ends = np.cumsum(found.counts).tolist()
    assert len(found.counts) == len(found.doc_lens) == len(some)
    assert len(found.terms) == len(found.tfs) == (ends[-1] if ends else 0)
    assert (found.terms.dtype, found.tfs.dtype) == (np.uint32, np.uint16)
    return [
        (length, words_of(analyzer.vocabulary, found.terms[end - count : end], found.tfs[end - count : end]))
        for end, count, length in zip(ends, found.counts.tolist(), found.doc_lens.tolist(), strict=True)
    ]


def singly(some: list[bytes], max_words: int = 10_000, lang: str = "english") -> Counts:
    """What `document` says of each, of an analyzer that never had a table."""
    analyzer = Analyzer(lang, Vocabulary())
    found: list[Document] = [analyzer.document(text, max_words) for text in some]
    return [(each.doc_len, words_of(analyzer.vocabulary, each.terms, each.tfs)) for each in found]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """An analyzer that forgets early."""
    monkeypatch.setattr(module, "_MAX_ENTRIES", 7)
    yield


@given(
    st.lists(st.lists(texts, max_size=8), min_size=1, max_size=3),
    st.sampled_from([0, 1, 3, 100, 40_000]),
    st.sampled_from(["english", "none", "turkish"]),
)
def test_any_texts(groups: list[list[bytes]], max_words: int, lang: str) -> None:
    analyzer = Analyzer(lang, Vocabulary())
    for some in groups:  # the later ones find much of it known
        assert tabled(analyzer, some, max_words) == singly(some, max_words, lang)


@settings(max_examples=50)
@given(st.lists(st.lists(texts, max_size=8), min_size=1, max_size=3))
def test_any_texts_of_an_analyzer_that_forgets(groups: list[list[bytes]]) -> None:
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "_MAX_ENTRIES", 5)
    try:
        analyzer = Analyzer("english", Vocabulary())
        for some in groups:
            assert tabled(analyzer, some) == singly(some)
    finally:
        patch.undo()


@pytest.mark.parametrize("lang", sorted(LANGUAGES))
def test_every_language(lang: str) -> None:
    some = [b" ".join(PIECES), b"Running runners ran", *PIECES]
    analyzer = Analyzer(lang, Vocabulary())
    assert tabled(analyzer, some) == tabled(analyzer, some) == singly(some, lang=lang)


def test_every_byte_between_words_and_at_their_ends() -> None:
    analyzer = Analyzer("english", Vocabulary())
    some = [
        form % bytes([byte]) for byte in range(256) for form in (b"lake%breed", b"%blake", b"lake%b", b"%b", b"a %b b")
    ]
    assert tabled(analyzer, some) == tabled(analyzer, some) == singly(some)


def test_a_text_ends_where_it_ends() -> None:
    """The texts lie one behind the other."""
    some = [b"la", b"ke", b"", b"lake", b"", b"l", b"ake ", b" reed"]
    analyzer = Analyzer("english", Vocabulary())
    tabled(analyzer, [b"lake"])
    assert tabled(analyzer, some) == tabled(analyzer, some) == singly(some)


@pytest.mark.parametrize("some", [[], [b""], [b"", b" \n", b""]])
def test_nothing(some: list[bytes]) -> None:
    assert tabled(Analyzer("english", Vocabulary()), some) == [(0, {})] * len(some)


@pytest.mark.parametrize("distinct", [1, 300, 40_000])
def test_texts_of_many_words(distinct: int) -> None:
    """Around the number above which they are counted singly, and far above what a half unit's count holds."""
    analyzer = Analyzer("english", Vocabulary())
    words = [b"w%d" % (n % distinct) for n in range(100_000)]
    some = [b"reed", *(b" ".join(words[:count]) for count in (511, 512, 513, 514, 100_000)), b"reed lake"]
    assert tabled(analyzer, some, 1_000_000) == tabled(analyzer, some, 1_000_000) == singly(some, 1_000_000)
    assert tabled(analyzer, some, 512) == singly(some, 512)


def test_many_forms_are_not_compared_with_all() -> None:
    """A text of few words may have very many terms, each of which a compiled loop would look for among the others."""
    parts = ["".join(chr(97 + number // 26**place % 26) for place in range(3)) for number in range(16 * 500)]
    text = " ".join("_".join(parts[at : at + 16]) for at in range(0, len(parts), 16)).encode()
    analyzer = Analyzer("english", Vocabulary())
    assert tabled(analyzer, [text, b"reed"]) == singly([text, b"reed"])
    table = analyzer._tabled()
    assert table.count([text]).counts.tolist() == [-1] and table.count([b"reed"]).counts.tolist() == [1]


def test_forms_that_take_more_room_than_their_text() -> None:
    """Pairs of letters, each with the letters alone."""
    analyzer = Analyzer("none", Vocabulary())
    letters = [chr(0x4E00 + n) for n in range(400)]
    some = ["".join(letters[at : at + 21]).encode() for at in range(0, 378, 7)] + [b"a_b_c_d_e_f_g"] * 40
    assert tabled(analyzer, some) == tabled(analyzer, some) == singly(some, lang="none")


def test_a_table_that_grows() -> None:
    rng = Random(1)
    analyzer = Analyzer("english", Vocabulary())
    known = [b"w%d" % number if number % 9 else b"part_%d" % number for number in range(20_000)]
    sizes = []
    for start in range(0, 20_000, 500):
        some = [b" ".join(known[at : at + 10]) for at in range(start, start + 500, 10)]
        some += [b" ".join(rng.choices(known[: start + 500], k=20)) for _ in range(20)]
        assert tabled(analyzer, some) == singly(some)
        sizes.append(analyzer.nbytes())
    table = analyzer._tabled()
    assert len(table) == 20_000
    assert -1 not in table.count(known).counts
    assert sizes == sorted(sizes) and sizes[-1] - sizes[0] > 16 * 20_000 + sum(map(len, known))


def hashes(words: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """FNV-1a of rows of bytes."""
    found = np.full(len(words), 0xCBF29CE484222325, np.uint64)
    for column in words.T:
        found = (found ^ column) * np.uint64(0x100000001B3)
    return found


def test_stretches_whose_hashes_meet() -> None:
    """So many that not all get a place: those are counted by the dictionaries."""
    numbers = np.arange(1 << 20)
    rows = np.stack([97 + (numbers >> shift & 15) for shift in range(0, 20, 4)], axis=1).astype(np.uint64)
    found = hashes(rows)
    assert int(found[0]) == hash_of(b"aaaaa")
    low = (found & np.uint64(0x1FFF)).astype(np.int64)
    worst = int(np.bincount(low).argmax())
    chosen = rows[low == worst].astype(np.uint8)
    meeting = [bytes(row.tolist()) for row in chosen]
    assert len(meeting) > 100
    analyzer = Analyzer("none", Vocabulary())
    some = [b"reed " + word for word in meeting]
    for _ in range(2):
        assert tabled(analyzer, some) == singly(some, lang="none")
    left_out = [word for word in meeting if analyzer._tabled().count([word]).counts.tolist() == [-1]]
    assert len(left_out) == len(meeting) - 64
    # A larger table is one more try, and none of those that had a place loses it.
    tabled(analyzer, [b"w%d" % number for number in range(2000)])
    assert tabled(analyzer, some) == singly(some, lang="none")


def hash_of(word: bytes) -> int:
    found = 0xCBF29CE484222325
    for byte in word:
        found = (found ^ byte) * 0x100000001B3 % (1 << 64)
    return found


def test_it_is_entered_once() -> None:
    table = WordTable()
    table.add([b"lake", b"", b"reed"], [5, 6, -1])
    table.add([b"lake"], [5])
    table.add_entry(b"a_b", 1, [(7, 2), (8, 1), (9, 1)])
    table.add_entry(b"a_b", 1, [(7, 2), (8, 1), (9, 1)])
    found = table.count([b"lake reed lake a_b", b"a_b", b"moon"])
    assert found.counts.tolist() == [4, 3, -1] and found.doc_lens.tolist() == [3, 1, 0]
    assert found.terms.tolist() == [5, 7, 8, 9, 7, 8, 9] and found.tfs.tolist() == [4, 2, 1, 1, 2, 1, 1]
    assert found.unknown == [21, 25]


def test_very_many_unknown_stretches_of_one_text() -> None:
    analyzer = Analyzer("english", Vocabulary())
    some = [b" ".join(b"w%d" % n for n in range(500)), b"x" * 70, b"reed"]
    for _ in range(9):  # each time some of them are learned
        assert tabled(analyzer, some) == singly(some)


@pytest.mark.parametrize("most", [40, 100_000])
def test_several_threads(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """They learn, grow the table and forget it under each other."""
    monkeypatch.setattr(module, "_MAX_ENTRIES", most)
    vocabulary = Vocabulary()
    analyzer = Analyzer("english", vocabulary)
    failed: list[BaseException] = []
    rng = Random(2)
    words = [*PIECES, *(b"w%d" % number for number in range(3000)), *(b"a_%d" % number for number in range(300))]
    work = [[[b" ".join(rng.choices(words, k=30)) for _ in range(6)] for _ in range(60)] for _ in range(3)]
    expected = [[singly(some) for some in mine] for mine in work]
    start = threading.Barrier(3)

    def run(mine: list[list[bytes]], says: list[Counts]) -> None:
        try:
            start.wait()
            for some, said in zip(mine, says, strict=True):
                assert tabled(analyzer, some) == said
                analyzer.nbytes()
        except BaseException as error:
            failed.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=run, args=each) for each in zip(work, expected, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert not failed
    if most == 100_000:  # nothing that was learned while the table was made is missing in it
        missing = [
            word for word in [*analyzer._ids, *analyzer._entries] if -1 in analyzer._tabled().count([word]).counts
        ]
        assert not missing


def test_what_is_forgotten_takes_no_room(small: None) -> None:
    analyzer = Analyzer("english", Vocabulary())
    for number in range(3000):
        tabled(analyzer, [b"w%d" % number])
    assert analyzer.nbytes() < 200_000
