"""History ends: versions beyond the horizon are dropped by themselves, and the memory they took comes back."""

from __future__ import annotations

import pytest
from harness import JUNE, SECOND
from recalld.index.analyzer import Vocabulary
from recalld.index.memory import COMPACT_ON_LOOP, NEVER, Memory
from recalld.index.settings import ALL, Settings
from recalld.index.side import FACT, Extra, Fact
from recalld.server.entries import Create, Put
from recalld.server.keyspace import Keyspace

WINDOW_S = 60
#: A version is dropped at the latest so long after the window: a sixteenth of it.
LATE_MS = WINDOW_S * SECOND // 16


def memory_with(history: int) -> Memory:
    return Memory(Settings(mode="SEARCH", history=history), Vocabulary(), JUNE)


def write(memory: Memory, at: int, record_id: bytes = b"a") -> None:
    memory.expire(at)
    text = b"written at %d" % at
    memory.put(
        record_id, text, b"", (), (), importance=0.5, created_at=at, updated_at=at, deadline=NEVER, max_words=9, at=at
    )


def write_fact(memory: Memory, at: int, since: int) -> None:
    """Another quote of one fact, said to have come at `since`."""
    fact = Fact(b"ann", b"likes", b"bread", quote=b"%d" % at)
    extra = Extra(JUNE - 9 * SECOND, since, valid_at=JUNE, flags=FACT, confidence=1.0, fact=fact)
    memory.put(
        b"f", fact.text, b"", (), (), importance=0.5, created_at=JUNE, updated_at=JUNE, deadline=NEVER, max_words=9,
        at=at, extra=extra,
    )  # fmt: skip


def rows(memory: Memory) -> tuple[int, int]:
    """Versions held, and rows of `past` with those that are dead."""
    assert memory.past is not None
    return memory.past.live, memory.past.n


def test_what_is_beyond_the_horizon_goes() -> None:
    """At a sixteenth of the window after its end at the latest, and its rows with it."""
    memory = memory_with(WINDOW_S)
    write(memory, JUNE)
    fresh = memory.nbytes()
    for number in range(1, 3001):
        write(memory, JUNE + number)
    assert rows(memory) == (3000, 3000)
    held = memory.nbytes()
    assert memory.next_deadline <= JUNE + WINDOW_S * SECOND + LATE_MS + 3000
    memory.expire(JUNE + WINDOW_S * SECOND)
    assert rows(memory)[0] == 3000
    memory.expire(JUNE + WINDOW_S * SECOND + 3000 + LATE_MS)
    assert rows(memory) == (0, 0)
    assert memory.nbytes() < fresh + (held - fresh) // 100 + 2000
    assert memory.next_deadline == NEVER


def test_a_record_written_for_ever_takes_what_a_window_takes() -> None:
    """One write a second for an hour: the versions of a minute or little more, dead rows as many at most."""
    memory = memory_with(WINDOW_S)
    most = (0, 0)
    for second in range(3600):
        write(memory, JUNE + second * SECOND)
        if memory.past is not None:
            most = max(most[0], rows(memory)[0]), max(most[1], rows(memory)[1])
    assert WINDOW_S <= most[0] <= WINDOW_S + LATE_MS // SECOND + 2
    assert most[1] <= 2 * most[0] + 70  # _COMPACT_MIN


def test_no_rows_with_history_0() -> None:
    """However often it is written; and switching history off frees what there was."""
    memory = memory_with(0)
    for number in range(100):
        write(memory, JUNE + number)
    assert memory.past is None
    memory = memory_with(ALL)
    for number in range(100):
        write(memory, JUNE + number)
    assert rows(memory) == (99, 99)
    memory.configure(Settings(mode="SEARCH"), JUNE + 100)
    assert rows(memory) == (0, 0)
    for number in range(101, 200):
        write(memory, JUNE + number)
    assert rows(memory) == (0, 0)


def test_a_version_that_ends_earlier_goes_earlier() -> None:
    """What is said later to have ended before is dropped by that time."""
    memory = memory_with(WINDOW_S)
    write_fact(memory, JUNE, JUNE - 5 * SECOND)
    write_fact(memory, JUNE + 50 * SECOND, JUNE + 50 * SECOND)
    write_fact(memory, JUNE + 51 * SECOND, JUNE - 4 * SECOND)
    assert rows(memory)[0] == 1
    memory.expire(JUNE - 4 * SECOND + WINDOW_S * SECOND + LATE_MS)
    assert rows(memory)[0] == 0


def test_settings_of_before_go_too() -> None:
    """A memory whose settings change all the time holds those of the window."""
    memory = memory_with(WINDOW_S)
    for second in range(600):
        settings = Settings(mode="SEARCH", history=WINDOW_S, half_life=second + 1)
        memory.configure(settings, JUNE + second * SECOND)
    assert len(memory.old_settings) <= WINDOW_S + 1


@pytest.mark.parametrize("write_after", [False, True])
def test_a_large_history_is_compacted_when_it_ends(write_after: bool) -> None:
    """By the thread that does so, though nobody writes any more."""
    keyspace = Keyspace()
    asked: list[Memory] = []
    keyspace.compactable = asked.append
    keyspace.apply(Create(b"k", Settings(mode="SEARCH", history=WINDOW_S), JUNE))

    def put(at: int) -> None:
        keyspace.apply(Put(b"k", b"a", b"t", b"", (), (), 0.5, at, at, 0, 1, 9, at))

    for number in range(COMPACT_ON_LOOP + 10):
        put(JUNE + number)
    later = JUNE + 10 * WINDOW_S * SECOND
    if write_after:
        put(later)
    else:
        keyspace.expire(later)
    memory = keyspace.memories[b"k"]
    assert rows(memory)[1] > COMPACT_ON_LOOP
    assert asked[-1:] == [memory]
    compaction = memory.compaction()
    compaction.build()
    put(later + 1)
    compaction.install()
    assert rows(memory) == (2 if write_after else 1,) * 2
