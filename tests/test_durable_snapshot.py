"""A base is the state of one moment, whatever is written while it is made: base and new incr file give the live state.

`BEFORE` the walk the moment is over and no memory is frozen, `WITHIN` it some are, `BEHIND` it a thread writes them.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from durable import FOLDER, PREFIX, Store, random_put, reloaded
from faulty_files import FaultyFiles
from harness import DAY, JUNE
from recalld.index.analyzer import Vocabulary
from recalld.index.settings import Settings
from recalld.server import rewrite
from recalld.server.base import freeze, read_base
from recalld.server.entries import (
    Configure,
    Copy,
    Create,
    Drop,
    Entry,
    ExpireKey,
    Flush,
    Put,
    Remove,
    Rename,
    Restore,
    SetDeadline,
    SetMeta,
)
from recalld.server.payload import dump

SEARCH = Settings(mode="SEARCH")
KEYS = [b"k%d" % number for number in range(6)]


def put(key: bytes, record_id: bytes, text: bytes = b"the lake is cold", deadline: int = 0) -> Put:
    return Put(key, record_id, text, b"", (b"f", b"v"), (b"t",), 0.25, JUNE, JUNE, deadline, 7, 100, JUNE)


def filled() -> tuple[FaultyFiles, Store]:
    """Six memories of two records, the second with a deadline."""
    files = FaultyFiles()
    store = Store(files)
    for key in KEYS:
        store.commit([Create(key, SEARCH, JUNE)])
        store.commit([put(key, b"a", b"running " + key), put(key, b"b", b"lakes", JUNE + DAY)])
    store.settle()
    return files, store


def restored(store: Store, key: bytes) -> Restore:
    memory = store.keyspace.memories[KEYS[1]]
    return Restore(key, dump(freeze(b"", memory, 0, JUNE), store.keyspace.vocabulary), JUNE + DAY, JUNE)


#: One or more entries of each kind, about the last memory (which is frozen last) and others.
CHANGES: dict[str, Callable[[Store], list[Entry]]] = {
    "CREATE": lambda store: [Create(b"new", SEARCH, JUNE), put(b"new", b"n")],
    "CREATE over": lambda store: [Create(KEYS[5], Settings(mode="SEARCH", lang="none"), JUNE)],
    "CONFIGURE": lambda store: [Configure(KEYS[5], Settings(mode="SEARCH", half_life=3), JUNE + 1)],
    "PUT": lambda store: [put(KEYS[5], b"new", b"birds"), put(KEYS[0], b"a", b"replaced")],
    "REMOVE": lambda store: [Remove(KEYS[5], (b"a", b"b"), JUNE), Remove(KEYS[0], (b"b",), JUNE)],
    "META": lambda store: [SetMeta(KEYS[5], b"a", (b"g", b"w"), JUNE)],
    "DEADLINE": lambda store: [SetDeadline(KEYS[5], b"a", JUNE + 5, JUNE), SetDeadline(KEYS[5], b"b", 0, JUNE)],
    "DROP": lambda store: [Drop((KEYS[5], KEYS[0]))],
    "DROP and CREATE": lambda store: [Drop((KEYS[5],)), Create(KEYS[5], SEARCH, JUNE + 9)],
    "EXPIREKEY": lambda store: [ExpireKey(KEYS[5], JUNE + 99), ExpireKey(KEYS[0], JUNE + 98)],
    "RENAME": lambda store: [Rename(KEYS[5], b"moved"), Rename(KEYS[0], KEYS[4])],
    "COPY": lambda store: [Copy(KEYS[5], b"twin"), Copy(KEYS[5], KEYS[0]), put(b"twin", b"x")],
    "RESTORE": lambda store: [restored(store, KEYS[5]), restored(store, b"new")],
    "FLUSH": lambda store: [Flush()],
    "FLUSH and more": lambda store: [Flush(), Create(KEYS[5], SEARCH, JUNE), put(KEYS[5], b"a", b"other words runs")],
}


def at_moment(store: Store, files: FaultyFiles, moment: str, change: Callable[[], None]) -> None:
    """Rewrite, and call `change` at that moment of it."""
    gate = files.stall("open")
    rewriting = store.rewriter.start()
    for name in ("BEFORE", "manifest", "BEHIND"):  # the opened files: incr, manifest, base
        while not gate.reached.is_set():
            assert not rewriting.done(), "it failed"
            store.turn()
            watching = store.keyspace.before_change
            if moment == "WITHIN" and watching is not None and len(watching.__self__._left) == 3:  # type: ignore[attr-defined]
                change()
                moment = "over"
        if name == moment:
            change()
            moment = "over"
        before, gate = gate, files.stall("open")
        if name == "BEHIND":
            files._gates.clear()
        before.open()
    store.until(rewriting.done)
    assert rewriting.result()
    assert moment == "over"


@pytest.mark.parametrize("moment", ["BEFORE", "WITHIN", "BEHIND"])
@pytest.mark.parametrize("kind", CHANGES)
def test_each_kind_of_entry_at_each_moment(kind: str, moment: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The base is the state before the change, and with the entry behind it the one after."""
    monkeypatch.setattr(rewrite, "_KEYS_PER_TURN", 1)
    files, store = filled()
    before = store.state

    def change() -> None:
        for entry in CHANGES[kind](store):
            store.commit([entry])
        store.turn()

    at_moment(store, files, moment, change)
    store.settle()
    assert store.keyspace.before_change is None
    assert reloaded(files.crash(Random(1))) == store.state
    alone = FaultyFiles()
    for path, data in files.image().items():
        # Base and an incr file that ends where it begins.
        alone.put(path, data[:87] if path.endswith("incr.aof") else data)
    assert reloaded(alone) == before
    store.close()


@pytest.mark.parametrize("seed", range(60))
def test_any_writes_during_rewrites(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Random ones, one rewrite after another."""
    monkeypatch.setattr(rewrite, "_KEYS_PER_TURN", 1)
    rng = Random(seed)
    files = FaultyFiles()
    store = Store(files, rng.choice(("always", "everysec", "no")))
    for _ in range(20):
        store.write(rng)
    for _ in range(4):
        rewriting = store.rewriter.start()
        while not rewriting.done():
            for _ in range(rng.choice((0, 0, 1, 3))):
                store.write(rng)
            store.turn()
        assert rewriting.result()
    store.settle()
    last = store.state
    store.close()
    assert reloaded(files) == last


def test_the_words_of_a_base_are_those_of_its_moment() -> None:
    """FLUSHALL begins another vocabulary while the thread reads the old one."""
    files, store = filled()
    old = store.keyspace.vocabulary

    def change() -> None:
        store.commit([Flush()])
        store.commit([Create(b"k", SEARCH, JUNE)])
        store.commit([put(b"k", b"a", b"entirely different vocabulary")])

    at_moment(store, files, "BEHIND", change)
    assert store.keyspace.vocabulary is not old
    base = files.image()[f"{FOLDER}/{PREFIX}.1.base.rcl"]
    vocabulary = Vocabulary()
    found = {key: memory for key, memory, _ in read_base(base, "base", vocabulary)}
    assert list(found) == KEYS
    assert vocabulary.id_of("lake") < 4
    assert b"vocabulary" not in base
    store.settle()
    store.close()


def test_what_has_expired_is_in_no_base() -> None:
    """Though nobody has looked since: records, and a key with all it held."""
    files, store = filled()
    store.commit([put(KEYS[0], b"c", b"evanescent", JUNE + 10), ExpireKey(KEYS[1], JUNE + 10)])
    store.commit([put(KEYS[1], b"c", b"ephemeral")])
    store.now += 10
    assert store.rewrite()
    for data in files.image().values():
        assert b"evanescent" not in data
        assert b"ephemer" not in data
    store.close()


def test_a_memory_of_many_records_while_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Posting lists, vectors and dead rows of a table that grows, compacts and loses records meanwhile."""
    rng = Random(5)
    files = FaultyFiles()
    store = Store(files)
    settings = Settings(mode="HYBRID", dim=3)
    store.commit([Create(b"k", settings, JUNE)])
    memory = store.keyspace.memories[b"k"]

    def many(count: int) -> None:
        group: list[Entry] = []
        for _ in range(count):
            group.append(random_put(b"k", memory, rng, JUNE))
            store.keyspace.apply(group[-1])
        store.commit(group, applied=True)

    def change() -> None:
        many(700)
        ids = rng.sample(sorted(memory.table.by_id), 1_500)
        store.commit([Remove(b"k", tuple(ids), JUNE)])
        store.turn()

    many(2_500)
    at_moment(store, files, "BEHIND", change)
    store.settle()
    assert reloaded(files.crash(rng)) == store.state
    at_moment(store, files, "BEFORE", lambda: many(300))
    store.settle()
    last = store.state
    store.close()
    assert reloaded(files) == last
