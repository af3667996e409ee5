"""Records that are written together are what they would be written one by one: terms, rows, postings, vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from recalld.index.analyzer import Analyzer, Vocabulary
from recalld.index.columns import DOC_LEN, POSTINGS_MIN, VROW
from recalld.index.memory import Memory
from recalld.index.settings import Settings
from recalld.index.side import Extra
from recalld.server import keyspace as module
from recalld.server.entries import Create, Entry, Put, Remove
from recalld.server.keyspace import Keyspace
from recalld.server.snapshot import Snapshot

WORDS = ["lake", "The", "user_id", "1,000", "café", "don't", "北京市", "\U0001f600", "!", "reed,", "x" * 70, "a/b/c"]
texts = st.one_of(
    st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join).map(str.encode),
    st.binary(max_size=20),
    st.sampled_from([b"", b"\xff\xfe", b"lake \xff\xfe reed", b" \n ", b"lake\x00reed"]),
)


def counted(analyzer: Analyzer, terms: Any, tfs: Any) -> dict[str, int]:
    pairs = list(zip(terms, tfs, strict=True))
    assert len({term for term, _ in pairs}) == len(pairs)
    return {analyzer.vocabulary.word(int(term)): int(tf) for term, tf in pairs}


@given(
    st.lists(texts, min_size=1, max_size=12),
    st.sampled_from([0, 1, 3, 100, 40_000]),
    st.sampled_from(["english", "none"]),
)
def test_documents_are_each_document(some: list[bytes], max_words: int, lang: str) -> None:
    analyzer = Analyzer(lang, Vocabulary())
    found = analyzer.documents(some, max_words)
    ends = np.cumsum(found.counts).tolist()
    for number, text in enumerate(some):
        alone = analyzer.document(text, max_words)
        where = slice(ends[number] - int(found.counts[number]), ends[number])
        assert counted(analyzer, found.terms[where], found.tfs[where]) == counted(analyzer, alone.terms, alone.tfs)
        assert int(found.doc_lens[number]) == alone.doc_len


def test_a_text_of_very_many_words_among_others() -> None:
    analyzer = Analyzer("english", Vocabulary())
    some = [b"lake", b"reed " * 40_000, b"moon reed"]
    found = analyzer.documents(some, 1_000_000)
    alone = [analyzer.document(text, 1_000_000) for text in some]
    assert found.tfs.tolist() == [tf for each in alone for tf in each.tfs]
    assert found.doc_lens.tolist() == [each.doc_len for each in alone] == [1, 40_000, 2]


def test_the_analyzer_forgets_in_the_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("recalld.index.analyzer._MAX_ENTRIES", 3)
    analyzer = Analyzer("english", Vocabulary())
    some = [b"lake user_id", b"reed moon a/b", b"lake user_id reed salt", b"iron wolf"]
    found = analyzer.documents(some, 100)
    assert found.doc_lens.tolist() == [analyzer.document(text, 100).doc_len for text in some]


def state(keyspace: Keyspace) -> dict[str, Any]:
    """All that can be told of the memory at `k`, in no particular order of a row's words."""
    memory = keyspace.memories[b"k"]
    table = memory.table
    rows = []
    for slot in range(table.n):
        words = table.words(slot)
        held = table.ids[slot], table.texts[slot], table.metas[slot], table.tags[slot], table.vector(slot)
        times = table.wide[:, slot].tolist(), int(table.narrow[DOC_LEN, slot]), int(table.narrow[VROW, slot])
        rows.append((held, times, sorted(zip(words.terms, words.tfs, strict=True)), table.extra(slot)))
    lists = {}
    if table.postings is not None:
        table.post()
        for term, held in enumerate(table.posting_lists(list(range(len(keyspace.vocabulary))))):
            if held is not None:
                lists[term] = np.concatenate(held.lists).tolist(), held.df, held.most
    vectors = table.vectors
    return {
        "rows": rows,
        "lists": lists,
        "ids": dict(table.by_id),
        "counts": (table.n, table.live, table.total_len, table.sequence, table.held_bytes, memory.record_bytes),
        "vectors": vectors and (vectors.n, vectors.live, vectors.sum.tolist(), vectors.norms[: vectors.n].tolist()),
        "order": table.order.page(0, 1_000_000),
        "memory": (memory.next_id, memory.version, memory.updated_at, memory.next_deadline, len(memory)),
        "past": None if memory.past is None else list(memory.past.ids),
    }


def both(settings: Settings, groups: list[list[Entry]], together: int = 2) -> Memory:
    """Apply the groups one entry at a time and together: the states are equal after each group."""
    apart, joined = Keyspace(), Keyspace()
    for keyspace in (apart, joined):
        keyspace.apply(Create(b"k", settings, 1))
        keyspace.apply(Create(b"other", settings, 1))
        assert keyspace.memories[b"k"].record_bytes == 0  # counted from now on
    patch = pytest.MonkeyPatch()
    patch.setattr(module, "_TOGETHER", together)
    patch.setattr(module, "_TOGETHER_MOST", 5 if together == 2 else 1000)
    try:
        for group in groups:
            for entry in group:
                apart.apply(entry)
            joined.apply_all(group)
            assert state(joined) == state(apart)
    finally:
        patch.undo()
    return joined.memories[b"k"]


def put(number: int, text: bytes = b"lake reed", key: bytes = b"k", vector: bytes = b"", **more: Any) -> Put:
    fields: dict[str, Any] = {"deadline": 0, "at": 10, "max_words": 9, "extra": None} | more
    record_id = more.pop("id", b"%d" % number)
    fields.pop("id", None)
    return Put(
        key=key,
        id=record_id,
        text=text,
        vector=vector,
        meta=(b"n", b"%d" % (number % 3)) * (number % 2),
        tags=(b"t",) * (number % 3 == 0),
        importance=number / 1000,
        created_at=5 + number,
        updated_at=7 + number,
        next_id=number + 1,
        **fields,
    )


numbers = st.integers(0, 12)
puts = st.builds(
    lambda number, text, vector, deadline, at, words, plain, key: put(
        number,
        text,
        key,
        np.array([number + 1, vector], "<f4").tobytes() if vector else b"",
        deadline=deadline,
        at=at,
        max_words=words,
        extra=None if plain else Extra(at, at, valid_until=at + 100),
    ),
    numbers,
    texts,
    st.integers(0, 2),
    st.sampled_from([0, 0, 0, 0, 0, 30]),
    st.sampled_from([10, 10, 10, 10, 40]),
    st.sampled_from([9, 9, 9, 3]),
    st.sampled_from([True] * 9 + [False]),
    st.sampled_from([b"k"] * 9 + [b"other"]),
)


@given(
    st.lists(st.lists(puts, min_size=1, max_size=12), min_size=1, max_size=4),
    st.sampled_from(
        [
            Settings(mode="SEARCH"),
            Settings(dim=2),
            Settings(dim=2, metric="L2"),
            Settings(mode="VECTOR", dim=2, metric="IP"),
            Settings(mode="SEARCH", history=60),
        ]
    ),
)
def test_any_groups(groups: list[list[Put]], settings: Settings) -> None:
    both(settings, groups)


@pytest.mark.parametrize("metric", ["COSINE", "L2"])
def test_large_groups_of_new_records(metric: str) -> None:
    """Over the edges of blocks, of growing arrays, of posting lists; after records that went."""
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((9500, 7))
    vectors /= np.sqrt((vectors * vectors).sum(axis=1))[:, None]
    words = [b"w%d" % n for n in range(300)]

    def some(start: int, end: int) -> list[Put]:
        return [
            put(
                number,
                b" ".join(words[at] for at in rng.integers(0, 300, int(rng.integers(0, 9))).tolist()),
                vector=b"" if number % 50 == 7 else vectors[number].astype("<f4").tobytes(),
            )
            for number in range(start, end)
        ]

    gone = tuple(b"%d" % number for number in range(3, 900, 3))
    groups: list[list[Entry]] = [some(0, 1000), [Remove(b"k", gone, 10)], some(1000, 1010), some(1010, 9400)]
    groups += [[Remove(b"k", gone_again, 10) for gone_again in [(b"5000",)]] + some(9400, 9500)]
    memory = both(Settings(dim=7, metric=metric), groups, together=8)
    assert memory.table.postings is not None and memory.table.n > 2 * POSTINGS_MIN


def test_what_is_to_be_written_over_is() -> None:
    memory = both(Settings(mode="SEARCH"), [[put(n) for n in range(9)], [put(n, b"moon") for n in range(4, 14)]])
    assert memory.text(b"3") == b"lake reed" and memory.text(b"4") == b"moon"


def test_an_id_twice_in_a_group() -> None:
    memory = both(Settings(mode="SEARCH"), [[*(put(n) for n in range(9)), put(9, b"moon", id=b"4")]])
    assert memory.text(b"4") == b"moon" and len(memory) == 9


def test_what_is_due_goes_first() -> None:
    memory = both(Settings(mode="SEARCH"), [[put(n, deadline=20) for n in range(3)], [put(n, at=30) for n in range(9)]])
    assert len(memory) == 9


def test_a_snapshot_has_none_of_them() -> None:
    keyspace = Keyspace()
    keyspace.apply(Create(b"k", Settings(mode="SEARCH"), 1))
    keyspace.apply_all([put(n) for n in range(20)])
    snapshot = Snapshot(keyspace, 10)
    keyspace.apply_all([put(n) for n in range(20, 60)])
    assert snapshot.walk(100)
    (frozen,) = snapshot.take()
    assert frozen.view.live == 20
