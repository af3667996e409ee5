"""Words that are far too long to be what they should be: they are refused without being looked at."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from recalld.index import like
from recalld.index.errors import BadMemory
from recalld.index.filters import clause, is_time
from recalld.server.arguments import Words, real, time_ms, vector_number
from recalld.server.errors import CommandError, shown_word


class Long(bytes):
    """A word that nobody may look at as a whole."""

    def _looked_at(self, *args: object) -> Any:
        raise AssertionError("the whole word was looked at")

    decode = upper = lower = strip = isspace = isdigit = __contains__ = _looked_at


WORD = Long(b"\xff" * 100_000)


def test_an_error_shows_the_beginning() -> None:
    words = Words([WORD])
    assert words.option() != b"TEXT"
    assert words.unexpected().message == "unexpected argument '" + "\udcff" * 16_384 + "'"
    with pytest.raises(CommandError, match="is not a time") as told:
        time_ms(WORD)
    assert len(told.value.message) < 17_000


@pytest.mark.parametrize("word", [b"", b"x", b"y" * 1024, "\u20ac".encode() * 1000, b"\xff" * 1024])
def test_what_dispatch_shows_is_shown_as_it_is(word: bytes) -> None:
    assert shown_word(word) == word.decode("utf-8", "surrogateescape")
    assert shown_word(word, "replace") == word.decode("utf-8", "replace")


@pytest.mark.parametrize("char", ["a", "\u00e9", "\u20ac", "\U0001f600", "\udcff", "\U0001f600\udcff"])
@pytest.mark.parametrize("shift", range(4))
def test_all_that_an_error_shows_of_a_long_word_is_there(char: str, shift: int) -> None:
    """The 4096 characters to which dispatch cuts an error are those of the whole word."""
    word = b"a" * shift + (char * 5000).encode("utf-8", "surrogateescape")
    for errors in ("surrogateescape", "replace"):
        assert shown_word(word, errors)[:4096] == word.decode("utf-8", errors)[:4096]


def test_no_name_is_so_long() -> None:
    assert not Words([WORD]).accept(b"TEXT")
    assert Words([b"text"]).accept(b"TEXT") and Words([b"text"]).option() == b"TEXT"
    with pytest.raises(CommandError, match=r"^syntax error$"):
        Words([WORD]).enum("ANY", "ALL")
    assert Words([b"any"]).enum("ANY", "ALL") == "ANY"


def test_no_number_is_so_long() -> None:
    assert vector_number(b"0." + b"1" * 1022) == 1 / 9 == real(b"0." + b"1" * 1022)
    for read in (vector_number, real):
        for word in (WORD, b"0." + b"1" * 1023):
            with pytest.raises(CommandError, match=r"^value is not a valid float$"):
                read(word)


def test_no_filter_is_so_long() -> None:
    """But for its value, and the name of a metadata field, which are bounded as metadata is."""
    for field, op in ((b"a", WORD), (Long(b"@" + WORD), b"EQ")):
        with pytest.raises(BadMemory, match=r"^bad filter clause '") as told:
            clause(field, op, b"1")
        assert len(str(told.value)) < 5000
    found = clause(WORD, b"eq", b"1")
    assert (found.reserved, found.name, found.op) == ("", WORD, "EQ")
    assert not is_time(WORD, b"EQ") and is_time(b"@created_at", b"eq") and not is_time(b"@created_at", b"prefix")


# A literal text. Some letters become longer when their case is folded: U+0130 and U+0390 two bytes, six at last.
TEXTS = ["x", "\u0390" * 40, "\u0130" * 30, "Stra\u00dfe" * 20, "\ufb03" * 30, ""]


def _held(texts: list[bytes], wanted: bytes) -> list[bool]:
    view: Any = SimpleNamespace(texts=texts, n=len(texts))
    return like.like_mask(view, wanted, None).tolist()


@pytest.mark.parametrize("wanted", [*TEXTS, *(text.casefold() for text in TEXTS), "\u0399\u0308\u0301" * 40])
def test_literal_texts_of_any_length(wanted: str) -> None:
    texts = [text.encode() for text in TEXTS]
    assert _held(texts, wanted.encode()) == [wanted.casefold() in text.casefold() for text in TEXTS]


def test_a_literal_text_that_is_longer_than_any_is_not_looked_at() -> None:
    assert _held([b"some", b"texts"], WORD) == [False, False]
    view: Any = SimpleNamespace(texts=[b"one", WORD], n=2)
    assert like.like_mask(view, b"ONE", np.array([True, False])).tolist() == [True, False]
    assert _held([], WORD) == []
