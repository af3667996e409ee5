"""Views: a moment of a memory stays that moment, whatever is written, removed or compacted afterwards."""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from recalld.index.analyzer import Vocabulary
from recalld.index.memory import NEVER, Memory, run
from recalld.index.query import Query
from recalld.index.settings import Settings
from recalld.index.vectors import normalised

WORDS = ["lake", "iron", "salt", "wolf", "moon", "reed"]


def make(**settings: object) -> Memory:
    return Memory(replace(Settings(dim=2), **settings), Vocabulary(), 0)


def put(memory: Memory, record_id: bytes, text: str, vector: list[float] | None, at: int, **more: object) -> None:
    blob = b""
    if vector is not None:
        unit = normalised(np.array(vector, np.float64))
        assert unit is not None
        blob = unit.astype("<f4").tobytes()
    fields = {"importance": 0.5, "created_at": at, "updated_at": at, "deadline": NEVER, "max_words": 100, "at": at}
    memory.put(record_id, text.encode(), blob, (), (), **{**fields, **more})


def answers(plan) -> list[tuple[bytes, float]]:
    return [(plan.view.ids[hit.slot], hit.score) for hit in run(plan).hits]


records = st.tuples(
    st.sampled_from([b"a", b"b", b"c", b"d"]),
    st.lists(st.sampled_from(WORDS), max_size=4).map(" ".join),
    st.one_of(st.none(), st.tuples(st.integers(-2, 2), st.integers(1, 2)).map(list)),
)


@given(
    st.lists(records, max_size=12), st.lists(st.one_of(records, st.sampled_from([b"a", b"b", b"c", b"d"])), max_size=12)
)
def test_a_plan_answers_for_its_moment(before, after):
    """A plan made before some writes gives afterwards what it gave at once."""
    memory = make()
    for record_id, text, vector in before:
        put(memory, record_id, text, vector, 1)
    query = Query(text=b"lake wolf reed", vector=np.array([0.6, 0.8]), top_k=100)
    plan = memory.plan(query, 5)
    expected = answers(plan)
    for step in after:
        if isinstance(step, tuple):
            put(memory, step[0], step[1], step[2], 2)
        elif step in memory:
            memory.remove(step, 2)
    assert answers(plan) == expected


def test_compaction_keeps_answers_and_views():
    """Deleting most of a memory compacts it: old views and new answers are the same as without."""
    memory, plain = make(), make()
    for number in range(300):
        put(memory, b"%d" % number, f"{WORDS[number % 6]} note {number}", [number % 7 - 3, 1], number)
    query = Query(text=b"lake note", vector=np.array([1.0, 0.0]), top_k=300)
    plan = memory.plan(query, 1000)
    expected = answers(plan)
    rows = memory.table.n
    for number in range(300):
        if number % 10:
            memory.remove(b"%d" % number, 400)
    assert memory.table.n < rows
    assert answers(plan) == expected
    for number in range(0, 300, 10):
        put(plain, b"%d" % number, f"{WORDS[number % 6]} note {number}", [number % 7 - 3, 1], number)
    assert answers(memory.plan(query, 1000)) == answers(plain.plan(query, 1000))
    assert memory.term_count() == plain.term_count()


def test_background_compaction_brings_over_what_changed_meanwhile():
    """Writes and removals between the three steps are in the new table."""
    memory, plain = make(), make()
    for number in range(200):
        put(memory, b"%d" % number, WORDS[number % 6], [1, number % 5], number)
    compaction = memory.compaction()
    compaction.build()
    changes = [(b"3", "lake lake"), (b"500", "moon"), (b"7", "salt")]
    for record_id, text in changes:
        put(memory, record_id, text, [0, 1], 300)
    memory.remove(b"9", 300)
    memory.remove(b"500", 300)
    put(memory, b"501", "iron", None, 301)
    compaction.install()
    for number in range(200):
        put(plain, b"%d" % number, WORDS[number % 6], [1, number % 5], number)
    for record_id, text in changes:
        put(plain, record_id, text, [0, 1], 300)
    plain.remove(b"9", 300)
    plain.remove(b"500", 300)
    put(plain, b"501", "iron", None, 301)
    query = Query(text=b"lake moon iron", vector=np.array([0.0, 1.0]), top_k=300)
    assert answers(memory.plan(query, 400)) == answers(plain.plan(query, 400))
    assert memory.table.order.page(0, 1000) == plain.table.order.page(0, 1000)
    assert sorted(memory.table.by_id) == sorted(plain.table.by_id)


def test_threads_read_while_the_loop_writes():
    """Plans run in a thread during thousands of writes give what they give when run alone."""
    memory = make()
    for number in range(2000):
        put(memory, b"%d" % number, f"{WORDS[number % 6]} {WORDS[number % 5]}", [number % 11 - 5, 1], number)
    query = Query(text=b"lake wolf", vector=np.array([0.0, 1.0]), top_k=50)
    plans = []
    stop = threading.Event()
    seen: list[tuple[int, list[tuple[bytes, float]]]] = []

    def read() -> None:
        done = 0
        while not stop.is_set() or done < len(plans):
            if done < len(plans):
                seen.append((done, answers(plans[done])))
                done += 1

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(1500):
        if number % 10 == 0:
            plans.append(memory.plan(query, 5000))
        put(memory, b"%d" % (number * 7 % 2500), f"{WORDS[number % 4]} new", [number % 3 - 1, 1], 3000 + number)
        memory.remove(b"%d" % (number * 7 % 2500), 4000 + number) if number % 3 == 0 else None
    stop.set()
    reader.join()
    assert [number for number, _ in seen] == list(range(150))
    assert all(answers(plans[number]) == found for number, found in seen)
