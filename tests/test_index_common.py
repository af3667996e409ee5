"""Words that come again are kept once, and what is kept is counted."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st
from recalld.index.analyzer import Vocabulary
from recalld.index.columns import Table
from recalld.index.common import _LONGEST, _MOST, Common
from recalld.index.memory import NEVER, Memory
from recalld.index.settings import Settings


def fresh(words: tuple[bytes, ...]) -> tuple[bytes, ...]:
    """The same in objects of its own."""
    return tuple(bytes(bytearray(word)) for word in words)


def size_of(kept: list[tuple[bytes, ...]]) -> int:
    """What these take, each object once."""
    lists = {id(each): 48 + 8 * len(each) & -16 for each in kept}
    words = {id(word): 48 + len(word) & -16 for each in kept for word in each}
    return sum(lists.values()) + sum(words.values())


words = st.sampled_from([b"source", b"chat", b"mail", b"user", b"w" * 90, b"kind"])
lists = st.lists(st.lists(words, min_size=1, max_size=4).map(tuple), max_size=30)


@given(lists)
def test_what_is_kept_is_the_same_and_counted(some: list[tuple[bytes, ...]]) -> None:
    common, kept, size = Common(), [], 0
    for each in some:
        found, more = common.kept(fresh(each))
        assert found == each
        kept.append(found)
        size += more
    # Words of one byte are everybody's, and of a list the same word may be twice before it is known.
    assert size_of(kept) <= size
    if all(len(set(each)) == len(each) and b"w" * 90 not in each for each in some):
        assert size_of(kept) == size


def test_what_comes_often_is_one_object() -> None:
    common = Common()
    kept = [common.kept(fresh((b"source", b"chat", b"user", b"%d" % (n % 50))))[0] for n in range(1000)]
    assert len({id(word) for each in kept for word in each}) == 53
    assert len({id(each) for each in kept}) == 100  # the first of each had a word that was new


def test_values_that_never_come_again_are_not_remembered_for_ever() -> None:
    common = Common()
    for n in range(5000):
        common.kept(fresh((b"source", b"chat", b"at", b"%d" % n)))
    assert len(common._known) <= _MOST + 4
    assert common.kept(fresh((b"source", b"chat")))[0][0] is common.kept(fresh((b"source",)))[0][0]
    long = fresh((b"text", b"x" * (_LONGEST + 1)))
    assert common.kept(long)[0][1] is not common.kept(fresh(long))[0][1]


def test_a_table_counts_them_once_also_after_a_compaction() -> None:
    memory = Memory(replace(Settings(mode="SEARCH")), Vocabulary(), 0)
    fields = {"importance": 0.5, "created_at": 1, "updated_at": 1, "deadline": NEVER, "max_words": 9, "at": 1}
    for n in range(300):
        meta, tags = fresh((b"source", b"chat", b"n", b"%d" % (n % 3))), fresh((b"a tag",))
        memory.put(b"id%d" % n, b"text %d" % n, b"", meta, tags, **fields)
    assert counted(memory.table) == memory.table.held_bytes
    memory.remove_all([b"id%d" % n for n in range(200)], 2)
    memory.compact()
    assert memory.table.n == 100 and counted(memory.table) == memory.table.held_bytes
    assert memory.table.metas[7] == (b"source", b"chat", b"n", b"0")


def counted(table: Table) -> int:
    texts = sum(48 + len(word) & -16 for words in (table.ids, table.texts) for word in words)
    return texts + size_of([*table.metas, *table.tags])
