"""A power cut at any operation of the disk: what was acknowledged is there, and what is there is one past state, whole.

A server's keyspace and log work on a disk of FaultyFiles. Before each operation the power may go, on a copy: that copy
is what the disk could hold, and it must load to the state after some group, none of those acknowledged missing.
"""

from __future__ import annotations

import errno
from random import Random
from typing import Any

import pytest
from conftest import LONG
from durable import DIR, Camera, Store, reloaded
from faulty_files import FaultyFiles
from recalld.server import check_aof
from recalld.server.incr import Damaged

RUNS = 400 if LONG else 12
STEPS = 150 if LONG else 60
SHOTS = 60 if LONG else 14


class Cuts:
    """Power cuts of one run, each with what had been promised until then."""

    def __init__(
        self, store: Store, files: Camera, rng: Random, chance: float, *, sectors: bool = False, changing: bool = False
    ) -> None:
        self._store, self._files, self._rng = store, files, Random(rng.random())  # it is drawn from in threads
        self._chance, self._sectors, self._changing = chance, sectors, changing
        self.taken: list[tuple[FaultyFiles, int, str]] = []
        files.shot = self._shot

    def _shot(self, op: str) -> None:
        if len(self.taken) < SHOTS and self._rng.random() < self._chance:
            self.take(op)

    def take(self, op: str = "") -> None:
        log = self._store.log
        # With `always` what was released is promised, otherwise what a sync has covered. Read before the cut: it grows.
        always = log.policy == "always" and not self._changing
        promised = log.released if always else log.durable
        self.taken.append((self._files.crash(self._rng, sectors=self._sectors), promised, op))

    def check(self, *, mend: bool = False) -> None:
        """Each cut loads to the state after a group, as early as promised at least. With `mend` it may be refused as
        damaged, where check-aof comes to such a state: a failed sync can leave zeros at the end."""
        store = self._store
        store.settle()
        for files, promised, op in self.taken:
            least = store.upto(promised)
            try:
                found = reloaded(files)
            except Damaged:
                assert mend or self._sectors
                assert check_aof.check(files, DIR, fix=True) == check_aof.WHOLE
                found = reloaded(files)
            assert found in store.states[least:], (op, promised, self._missing(found))

    def _missing(self, found: list[Any]) -> str:
        states = self._store.states
        return f"state {states.index(found)} of {len(states)}" if found in states else "no state there ever was"


def random_steps(store: Store, rng: Random, files: Camera, *, faults: bool = False, policies: bool = False) -> None:
    """Writes, seconds, rewrites and, where wanted, faults that come and go and other policies."""
    for _ in range(STEPS):
        if faults and rng.random() < 0.12:
            random_fault(files, rng)
        if policies and rng.random() < 0.1:
            store.log.set_policy(rng.choice(("always", "everysec", "no")))
        chance = rng.random()
        if chance < 0.6:
            if store.log.failure is None:  # dispatch refuses them otherwise
                store.write(rng)
        elif chance < 0.75:
            store.turn(rng.randint(1, 4))
        elif chance < 0.83:
            store.settle()
        elif chance < 0.93:
            store.loop.now += 1.0
            store.log.every_second()
        else:
            store.rewriter.start()
            store.turn(rng.randint(0, 6))
    files.heal()
    for _ in range(2):
        store.second()


def random_fault(files: Camera, rng: Random) -> None:
    """Begin one, or end all."""
    chance = rng.random()
    if chance < 0.4:
        files.heal()
    elif chance < 0.6:
        files.capacity = sum(map(len, files.image().values())) + rng.randint(0, 300)
    else:
        op = rng.choice(("write", "sync", "sync", "sync", "rename", "open", "truncate", "sync_dir", "remove"))
        files.fail(op, errno.EIO, nth=rng.randint(0, 2))


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
@pytest.mark.parametrize("seed", range(RUNS))
def test_a_power_cut_anywhere_keeps_what_was_promised(policy: str, seed: int) -> None:
    """Also in the middle of a rewrite, between any two of its operations."""
    rng = Random(f"{policy}{seed}")
    files = Camera()
    store = Store(files, policy)
    cuts = Cuts(store, files, rng, 0.15)
    random_steps(store, rng, files)
    cuts.take("the end")
    cuts.check()
    files.shot = None
    last = store.state
    store.close()
    assert reloaded(files.crash(rng)) == last


@pytest.mark.parametrize("policy", ["always", "everysec", "changing"])
@pytest.mark.parametrize("seed", range(RUNS))
def test_faults_and_power_cuts_together(policy: str, seed: int) -> None:
    """Writes, syncs and renames fail for a while, and the power goes in between: still a state there was."""
    rng = Random(f"faults{policy}{seed}")
    files = Camera()
    store = Store(files, "always" if policy == "changing" else policy)
    cuts = Cuts(store, files, rng, 0.1, changing=policy == "changing")
    random_steps(store, rng, files, faults=True, policies=policy == "changing")
    assert store.log.failure is None
    if store.log.policy == "no":
        store.log.set_policy("everysec")
        store.second()
    cuts.take("the end")
    assert store.log.released == store.log.durable == store.log.position
    cuts.check(mend=True)
    files.shot = None
    last = store.state
    store.close()
    assert reloaded(files) == last


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_disk_that_loses_sectors_is_refused_or_whole(seed: int) -> None:
    """Zeros where unsynced data should be: the start says so, and check-aof mends it, or loads a state there was."""
    rng = Random(f"sectors{seed}")
    files = Camera()
    store = Store(files)
    cuts = Cuts(store, files, rng, 0.2, sectors=True)
    random_steps(store, rng, files)
    cuts.check()
    files.shot = None
    store.close()


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
@pytest.mark.parametrize("seed", range(RUNS // 2))
def test_a_killed_process_loses_nothing_it_was_told(policy: str, seed: int) -> None:
    """What write(2) took is there after kill -9 whatever the policy, also while the disk is full."""
    rng = Random(f"kill{policy}{seed}")
    files = Camera()
    store = Store(files, policy)
    for number in range(STEPS):
        if store.log.failure is None:
            store.write(rng)
        store.turn(2)
        if number % 9 == 0:
            files.capacity = None if number % 2 else sum(map(len, files.image().values())) + rng.randint(0, 400)
        if number % 5 == 0:
            store.loop.now += 1.0
            store.log.every_second()
        store.settle()
        killed = FaultyFiles()
        for path, data in files.image().items():
            killed.put(path, data)
        assert reloaded(killed) in store.states[store.upto(store.log.released) :]
    files.heal()
    store.second()
    store.close()


@pytest.mark.parametrize("seed", range(RUNS))
def test_a_start_that_loses_power_can_be_repeated(seed: int) -> None:
    """Cutting a torn tail, removing leftovers, the first manifest: a cut in the middle of it changes no outcome."""
    rng = Random(f"start{seed}")
    files = Camera()
    store = Store(files)
    cuts = Cuts(store, files, rng, 0.1)
    random_steps(store, rng, files)
    store.settle()
    states = list(store.states)
    files.shot = None
    store.close()
    for cut, _, _ in cuts.taken:
        again = Camera()
        for path, data in cut.image().items():
            again.put(path, data)
        shots: list[FaultyFiles] = []
        again.shot = lambda op, shots=shots, again=again: shots.append(again.crash(rng))  # type: ignore[misc]
        first = reloaded(again)
        assert first in states
        assert all(reloaded(shot) == first for shot in shots[:8])


def test_a_group_is_whole_or_absent() -> None:
    """One EXEC of many entries, cut at every byte of its write."""
    rng = Random(3)
    store = Store(FaultyFiles())
    store.write(rng)
    store.settle()
    assert isinstance(store.files, FaultyFiles)
    path = next(path for path in store.files.image() if path.endswith(".incr.aof"))
    before = len(store.files.image()[path])
    store.write(rng, most=12)
    store.settle()
    image = store.files.image()
    store.drop()
    for size in range(before, len(image[path])):
        files = FaultyFiles()
        for name, data in image.items():
            files.put(name, data[:size] if name == path else data)
        assert reloaded(files) == store.states[1], size
