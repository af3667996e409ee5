"""A fact with its entity and the one it supersedes, a merge with all that it moves: whole after a crash, or absent."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from durable import FOLDER, PREFIX, Store, on_loop, reloaded, state
from faulty_files import FaultyFiles
from harness import DAY, Clock, Running
from recalld.server.entries import Entry

COMMANDS: list[tuple[Any, ...]] = [
    ("MEM.CREATE", "k", "DIM", 2, "HISTORY", "ALL"),
    ("MEM.FACT", "k", "ann", "works at", "Acme", "TYPE", "ORG", "ID", "1", "ENTITYFVEC", 2, 1, 0, "QUOTE", "q"),
    ("MEM.FACT", "k", "ann", "works at", "Umbrella", "TYPE", "ORG", "SUPERSEDES", "1", "ID", "2", "TTL", 9_000_000),
    ("MEM.FACT", "k", "bob", "works at", "Acme", "TYPE", "ORG", "CONFIDENCE", 0.5, "ID", "3"),
    ("MEM.FACT", "k", "bob", "works at", "acme inc", "TYPE", "ORG", "ID", "4"),
    ("MEM.FACT", "k", "cat", "sees", "acme inc", "VALIDAT", "2027-01-01", "ID", "5"),
    ("MEM.INVALIDATE", "k", "2"),
    ("MEM.ENTITY", "k", "Acme", "TYPE", "ORG", "ALIAS", "a", "MERGE", "acme inc"),
    ("MEM.INVALIDATE", "k", "2", "CLEAR"),
]


@pytest.fixture(scope="module")
def groups() -> Iterator[tuple[list[list[Entry]], list[Any]]]:
    """What these commands log, and the state they leave."""
    clock = Clock()
    found: list[list[Entry]] = []
    with Running(clock=clock) as server:
        wire = server.wire(3)
        server.server.log.append = found.append  # one group at a time
        for words in COMMANDS:
            wire(*words)
            clock.advance(DAY)
        yield found, on_loop(server, lambda: state(server.server.keyspace))


def test_replay_gives_the_state_there_was(groups: tuple[list[list[Entry]], list[Any]]) -> None:
    logged, wanted = groups
    assert [len(group) for group in logged] == [1, 2, 3, 1, 2, 1, 1, 5, 1]
    files = FaultyFiles()
    store = Store(files)
    for group in logged:
        store.commit(group)
    assert store.state == wanted
    store.settle()
    store.close()
    assert reloaded(files) == wanted


def test_cut_at_every_byte(groups: tuple[list[list[Entry]], list[Any]]) -> None:
    """The state after a number of whole commands, never of half a one: at each byte of the groups that several entries
    make (the fact with its entity, the one that supersedes, the merge), and at some of the others."""
    logged, _ = groups
    files = FaultyFiles()
    store = Store(files)
    tail = f"{FOLDER}/{PREFIX}.1.incr.aof"
    ends = [len(files.image()[tail])]
    for group in logged:
        store.commit(group)
        store.settle()
        ends.append(len(files.image()[tail]))
    store.close()
    image = files.image()
    data = image[tail]
    seen = []
    rng = Random(1)
    several = [range(*pair) for pair, group in zip(pairwise(ends), logged, strict=True) if len(group) > 1]
    assert len(several) == 4
    sizes = [size for size in range(ends[0], len(data)) if any(size in one for one in several) or rng.random() < 0.1]
    for size in sizes:
        disk = FaultyFiles()
        for path, content in image.items():
            disk.put(path, content[:size] if path == tail else content)
        found = reloaded(disk)
        if not seen or found != seen[-1]:
            seen.append(found)
    assert all(found in store.states for found in seen)
    assert len(seen) == len(store.states) - 1, "each prefix was met but the whole"
