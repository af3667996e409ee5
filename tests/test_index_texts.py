"""The indexes of texts against a look at every record, after any writes, begun and extended at any time."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recalld.index import memory as memory_module
from recalld.index.analyzer import Vocabulary
from recalld.index.memory import Memory
from recalld.index.settings import ALL, Settings
from recalld.index.side import FACT, NEVER, Extra, Fact
from recalld.index.texts import Contents, TextIndex, Wordings

IDS = (b"a", b"b", b"c")
TEXTS = (b"one", b"ONE ", b"two", b"", b"\xff")
PLAIN = ("put", "put", "put", "remove", "meta", "deadline", "forget", "pass", "compact", "ask")
WHATS = (PLAIN, (*PLAIN, "later", "fact"))
REST = (st.sampled_from(IDS), st.sampled_from(TEXTS), st.sampled_from((Contents, Wordings)))


def write(memory: Memory, what: str, record_id: bytes, text: bytes, now: int) -> None:
    there = record_id in memory
    extra = None
    if what == "later":
        extra = Extra(now, now, valid_at=now + 3)
    if what == "fact":
        extra = Extra(now, now, flags=FACT, fact=Fact(text, b"s", b"p", text, b"", b"", b"", b""))
    if what in ("put", "later", "fact"):
        fields = {"importance": 0.5, "created_at": now, "updated_at": now, "deadline": NEVER, "max_words": 9, "at": now}
        memory.put(record_id, text, b"", (), (), extra=extra, **fields)
    elif what == "remove" and there:
        memory.remove(record_id, now)
    elif what == "meta" and there:
        memory.set_meta(record_id, (b"f", text), now)
    elif what == "deadline" and there:
        memory.set_deadline(record_id, now + 4, now)
    elif what == "forget" and there:
        memory.forget([record_id], [], now)
    elif what == "compact":
        memory.compact()


def records(memory: Memory, kind: type[TextIndex]) -> dict[bytes, bytes]:
    found = {}
    for record_id in IDS:
        place = memory.locate(record_id, 0)
        if place is not None and (kind.facts or place[0].kind(place[1]) != FACT):
            found[record_id] = place[0].texts[place[1]]
    return found


def check(memory: Memory, kind: type[TextIndex]) -> None:
    held = records(memory, kind)
    for text in TEXTS:
        same = sorted(record_id for record_id, other in held.items() if kind.form(other) == kind.form(text))
        found = memory.with_digest(kind.form(text)) if kind is Contents else memory.with_wording(text)  # type: ignore
        assert found == (same[0] if same else None)
        index = memory.text_index(kind)
        assert index.ids(index.key_of(text)) == same
        assert all(index.holds(record_id, text) == (record_id in same) for record_id in held)


@settings(max_examples=300)
@given(
    st.booleans(),
    st.sampled_from((0, 0, ALL)),
    st.one_of(*(st.lists(st.tuples(st.sampled_from(whats), *REST), min_size=3, max_size=25) for whats in WHATS)),
)
def test_any_writes(asked: bool, history: int, writes: list[tuple[Any, ...]]) -> None:
    """A memory of plain records alone is written to in another way than one with facts or times of validity."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory_module, "STEP_RECORDS", 1)
        memory = Memory(Settings(mode="SEARCH", history=history), Vocabulary(), 0)
        for kind in (Contents, Wordings) if asked else ():
            assert memory.extend_texts(memory.text_index(kind))
        for now, (what, record_id, text, kind) in enumerate(writes, 1):
            memory.expire(now)
            write(memory, what, record_id, text, now)
            if what == "ask":
                memory.extend_texts(memory.text_index(kind))
            for index in memory.texts:
                if not index.waiting:
                    check(memory, type(index))
        twin = memory.copy()
        for each in (memory, twin):
            for kind in (Contents, Wordings):
                while not each.extend_texts(each.text_index(kind)):
                    pass
                check(each, kind)


def test_a_step_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "STEP_BYTES", 25)
    memory = Memory(Settings(mode="SEARCH"), Vocabulary(), 0)
    for record_id in (*IDS, b"d"):
        write(memory, "put", record_id, b"0123456789", 1)
    index = memory.text_index(Contents)
    assert (memory.extend_texts(index), len(index.waiting)) == (False, 1)
    assert memory.extend_texts(index)
