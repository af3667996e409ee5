"""The log of a running server: when it releases replies, what a fault does to it, and what a start makes of its files.

No clients here: `Store` is a keyspace with its log, its loop and its disk in the test's hands.
"""

from __future__ import annotations

import errno
from random import Random

import pytest
from durable import DIR, FOLDER, PREFIX, Store, reloaded
from faulty_files import FaultyFiles
from harness import JUNE
from recalld.index.settings import Settings
from recalld.server import aof
from recalld.server.entries import Create, Entry, Put, Remove
from recalld.server.incr import LogDamaged, encode_group

INCR = f"{FOLDER}/{PREFIX}.1.incr.aof"
MANIFEST = f"{FOLDER}/{PREFIX}.manifest"


def create(key: bytes = b"k") -> Create:
    return Create(key, Settings(mode="SEARCH"), JUNE)


def put(number: int, text: bytes = b"the lake is cold", key: bytes = b"k") -> Put:
    return Put(key, b"%d" % number, text, b"", (b"f", b"v"), (b"t",), 0.25, JUNE, JUNE, 0, number + 1, 100, JUNE)


def begun(policy: str = "always") -> tuple[FaultyFiles, Store]:
    """A log with one memory, synced."""
    files = FaultyFiles()
    store = Store(files, policy)
    store.commit([create()])
    store.settle()
    if policy != "no":
        store.second()
    return files, store


def log_bytes(files: FaultyFiles) -> bytes:
    return b"".join(data for path, data in files.image().items() if path.endswith(".incr.aof"))


# -- policies


def test_always_releases_after_the_sync():
    """Not after the write: as long as the sync has not returned nothing may leave."""
    files, store = begun()
    before = store.log.released
    gate = files.stall("sync")
    store.commit([put(1)])
    store.turn(3)
    gate.reached.wait(60)
    store.turn(3)
    assert store.log.released == before < store.log.position
    gate.open()
    store.settle()
    assert store.log.released == store.log.durable == store.log.position
    store.close()


def test_always_writes_what_gathers_during_a_sync_at_once():
    """Concurrent writers share one fsync."""
    files, store = begun()
    gate = files.stall("sync")
    store.commit([put(0)])
    store.turn(2)
    gate.reached.wait(60)
    syncs = files.calls["sync"]
    for number in range(1, 50):
        store.commit([put(number)])
        store.turn(2)
    gate.open()
    store.settle()
    assert files.calls["sync"] == syncs + 1
    assert store.log.released == store.log.position
    store.close()


@pytest.mark.parametrize("policy", ["everysec", "no"])
def test_without_always_a_write_is_released_by_write_alone(policy):
    """No sync before the second is over, and with `no` none then."""
    files, store = begun(policy)
    syncs = files.calls["sync"]
    store.commit([put(1)])
    store.settle()
    assert store.log.released == store.log.position > store.log.durable
    assert files.calls["sync"] == syncs
    store.second()
    assert files.calls["sync"] == syncs + (policy == "everysec")
    assert (store.log.durable == store.log.position) == (policy == "everysec")
    store.close()


def test_everysec_syncs_only_what_is_new():
    """An idle server leaves the disk alone."""
    files, store = begun("everysec")
    syncs = files.calls["sync"]
    for _ in range(5):
        store.second()
    assert files.calls["sync"] == syncs
    store.close()


def test_a_stalled_sync_acknowledges_for_two_seconds():
    """Writers go on from memory while a sync runs, then wait; once it is over everything is written and released."""
    files, store = begun("everysec")
    store.commit([put(1)])
    store.settle()
    gate = files.stall("sync")
    store.log.every_second()
    gate.reached.wait(60)
    began = store.loop.now
    writes = files.calls["write"]
    for tenth in range(30):
        store.loop.now = began + tenth / 10
        store.commit([put(2 + tenth)])
        store.turn(2)
        waits = store.log.released < store.log.position
        assert waits == (tenth >= 20), tenth
    assert files.calls["write"] == writes  # nothing would be written to a file that is being synced
    gate.open()
    store.settle()
    assert store.log.released == store.log.position
    last = store.state
    store.close()
    assert reloaded(files) == last


def test_stricter_policies_sync_what_the_looser_left():
    """What was acknowledged under `no` is on the disk a second after CONFIG SET appendfsync, without a write."""
    for policy in ("everysec", "always"):
        files, store = begun("no")
        assert store.log.durable == 0
        store.log.set_policy(policy)
        store.second()
        assert store.log.durable == store.log.position
        assert reloaded(files.crash(Random(1))) == store.state
        store.close()


def test_no_keeps_a_bounded_part_in_memory(monkeypatch):
    """What is not synced is kept to mend a failed sync, so there is a sync before it grows without end."""
    monkeypatch.setattr(aof, "_UNSYNCED_BYTES", 10_000)
    files, store = begun("no")
    syncs = files.calls["sync"]
    for number in range(1000):
        store.commit([put(number)])
        store.settle()
        assert sum(map(len, store.log._unsynced)) < 20_000
    assert 5 < files.calls["sync"] - syncs < 50
    store.close()


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
def test_wait_durable_ends_for_each_of_several(policy):
    """WAITAOF of a client whose write came while another's sync was running."""
    files, store = begun(policy)
    store.commit([put(1)])
    gate = files.stall("sync")
    first = store.loop.create_task(store.log.wait_durable(store.log.position))
    store.turn(2)
    gate.reached.wait(60)
    store.commit([put(2)])
    second = store.loop.create_task(store.log.wait_durable(store.log.position))
    store.turn(2)
    assert not first.done()
    gate.open()
    store.until(lambda: first.done() and second.done())
    assert store.log.durable == store.log.position
    store.settle()
    store.close()


# -- faults


@pytest.mark.parametrize("policy", ["always", "everysec", "no"])
@pytest.mark.parametrize("fault", ["ENOSPC", "EIO on write", "EIO on sync", "a short write"])
def test_a_fault_refuses_writes_and_mends(policy, fault):
    """`failure` until it works again, nothing twice, nothing lost, nothing half; whatever the order of events."""
    files, store = begun(policy)
    store.commit([put(1)])
    store.settle()
    acknowledged = store.log.released
    if fault == "ENOSPC":
        files.capacity = sum(map(len, files.image().values()))
    elif fault == "a short write":
        files.capacity = sum(map(len, files.image().values())) + 30
    else:
        files.fail(fault.split()[-1], errno.EIO, nth=0)
    store.commit([put(2)])
    store.settle()
    store.second()
    if (policy, fault) == ("no", "EIO on sync"):
        assert store.log.failure is None  # it does not sync
    else:
        assert store.log.failure is not None
        assert "Writes are refused until it works again" in store.log.failure
        if fault != "EIO on sync":  # which can leave zeros at the end, for check-aof
            assert reloaded(files.crash(Random(1))) in store.states[2 if policy == "always" else 0 :]
    for _ in range(3):
        store.second()
        assert store.log.released == acknowledged or policy != "always"
    files.heal()
    store.second()
    assert store.log.failure is None
    assert store.log.released == store.log.position
    store.commit([put(3), Remove(b"k", (b"1",), JUNE)])
    store.settle()
    store.second()
    data = log_bytes(files)
    for group in ([put(1)], [put(2)], [put(3), Remove(b"k", (b"1",), JUNE)]):
        assert data.count(encode_group(group)) == 1
    if policy != "no":
        for seed in range(5):
            assert reloaded(files.crash(Random(seed))) == store.state
    last = store.state
    store.close()
    assert reloaded(files) == last


@pytest.mark.parametrize("policy", ["everysec", "no"])
def test_a_full_disk_takes_nothing_back(policy):
    """What was acknowledged stays in the file when a later write fails, and is synced: the process may be killed."""
    files, store = begun(policy)
    store.commit([put(1)])
    store.settle()
    files.capacity = sum(map(len, files.image().values()))
    store.commit([put(2)])
    store.settle()
    assert store.log.failure is not None
    assert encode_group([put(1)]) in log_bytes(files)
    store.second()
    assert encode_group([put(1)]) in log_bytes(files)
    assert reloaded(files.crash(Random(2))) == store.states[2]
    files.heal()
    store.second()
    store.close()


def test_a_failed_sync_is_not_trusted():
    """Linux drops the pages and says nothing the next time: what was written since is cut and written again."""
    files, store = begun("everysec")
    for number in range(1, 4):
        store.commit([put(number)])
        store.settle()
    files.fail("sync", errno.EIO)
    store.second()
    assert store.log.failure is not None
    assert encode_group([put(1)]) not in log_bytes(files)
    store.second()
    assert store.log.failure is None
    for seed in range(20):
        assert reloaded(files.crash(Random(seed))) == store.state
    store.close()


def test_a_cut_that_fails_is_made_up_for():
    """The rewind after a failed sync fails as well."""
    files, store = begun()
    files.fail("sync", errno.EIO)
    files.fail("truncate", errno.EIO, nth=0)
    store.commit([put(1)])
    store.settle()
    store.second()
    assert store.log.failure is not None
    files.heal()
    store.second()
    assert store.log.failure is None
    assert log_bytes(files).count(encode_group([put(1)])) == 1
    last = store.state
    store.close()
    assert reloaded(files) == last


def test_wait_durable_waits_out_a_fault():
    """Until what it waits for is on the disk, and not only until the fault."""
    files, store = begun("everysec")
    files.fail("sync", errno.EIO, nth=0)
    store.commit([put(1)])
    waiting = store.loop.create_task(store.log.wait_durable(store.log.position))
    store.settle()
    assert store.log.failure is not None
    for _ in range(3):
        store.second()
    assert not waiting.done()
    files.heal()
    store.second()
    store.until(waiting.done)
    assert reloaded(files.crash(Random(1))) == store.state
    store.close()


def test_closing_with_a_fault_ends():
    """SIGTERM while the disk is full: it tries once, says so, and ends; what was acknowledged is there."""
    files, store = begun()
    store.commit([put(1)])
    store.settle()
    files.fail("write", errno.ENOSPC, nth=0)
    store.commit([put(2)])
    store.settle()
    store.close()
    files.heal()
    assert reloaded(files) == store.states[2]


# -- rewriting


def test_a_rewrite_gets_its_turn_under_load():
    """With `always` and several clients one batch follows another without a pause; the switch comes in between."""
    files, store = begun()
    gate = files.stall("sync")
    store.commit([put(0)])
    rewriting = store.rewriter.start()
    for number in range(1, 50):
        # Whenever a batch is on the disk the next one waits.
        store.commit([put(number)])
        while not gate.reached.is_set() and not rewriting.done():
            store.turn()
        before, gate = gate, files.stall("sync")
        before.open()
    gate.open()
    assert rewriting.done()
    assert store.rewriter.last_ok
    last = store.state
    store.settle()
    store.close()
    assert reloaded(files) == last


@pytest.mark.parametrize("op", ["open", "write", "sync", "rename", "sync_dir"])
@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_a_rewrite_that_fails_anywhere_changes_nothing(policy, op, nth):
    """The old files stay, the log goes on, nothing watches the keyspace any longer, and the next rewrite clears up."""
    files, store = begun(policy)
    store.commit([put(1, b"forgotten")])
    store.commit([Remove(b"k", (b"1",), JUNE)])
    store.settle()
    files.fail(op, errno.EIO, nth=nth)
    done = store.rewrite()
    assert store.keyspace.before_change is None
    if not done:
        assert not store.rewriter.last_ok
        assert not any("temp-" in path and path.endswith(".rcl") for path in files.image())
    store.second()
    store.commit([put(2)])
    store.settle()
    files.heal()
    store.second()
    store.second()
    assert store.log.failure is None
    assert reloaded(files.crash(Random(nth))) == store.state
    assert store.rewrite()
    assert len(files.image()) == 4  # lock, manifest, base, incr
    assert not any(b"forgotten" in data for data in files.image().values())
    last = store.state
    store.close()
    assert reloaded(files) == last


def test_a_full_disk_is_given_back_what_a_rewrite_took():
    """ENOSPC in the base: the temporary file goes, and the log can use the room."""
    files, store = begun()
    store.commit([put(number, b"long" * 500) for number in range(100)])
    store.settle()
    files.capacity = sum(map(len, files.image().values())) + 2000
    assert not store.rewrite()
    store.commit([put(101)])
    store.settle()
    assert store.log.failure is None
    files.heal()
    assert store.rewrite()
    store.close()


def test_an_automatic_rewrite_that_failed_is_not_repeated_at_once():
    """Each try leaves another incr file, so the next one waits; BGREWRITEAOF need not."""
    files, store = begun()
    files.fail("write", errno.EIO, nth=0, within=".base.rcl")
    store.rewriter.start_if_grown()
    assert store.rewriter.running
    store.until(lambda: not store.rewriter.running)
    names = sorted(files.image())
    for _ in range(5):
        store.second()
        store.rewriter.start_if_grown()
        assert not store.rewriter.running
    assert sorted(files.image()) == names
    files.heal()
    assert store.rewrite()
    store.commit([put(number, b"long" * 100) for number in range(20)])
    store.settle()
    store.rewriter.start_if_grown()
    assert store.rewriter.running
    store.until(lambda: not store.rewriter.running)
    assert store.rewriter.last_ok
    store.close()


def test_closing_stops_a_rewrite():
    """SIGTERM does not wait for a large base, and the lock is held until nobody writes in the folder any more."""
    files, store = begun()
    store.commit([put(number) for number in range(50)])
    store.settle()
    gate = files.stall("open")
    rewriting = store.rewriter.start()
    for name in ("the incr file", "the manifest", "the base"):
        while not gate.reached.is_set():
            store.turn()
        if name != "the base":
            before, gate = gate, files.stall("open")
            before.open()
    closing = store.loop.create_task(store.log.close())
    store.turn(5)
    assert not closing.done()
    with pytest.raises(LogDamaged, match="is held by another process"):
        Store(files)
    gate.open()
    store.until(lambda: closing.done() and rewriting.done())
    assert not rewriting.result()
    assert reloaded(files) == store.state
    assert len(files.image()) == 4  # lock, manifest, two incr files: no base
    store.loop.run_until_complete(store.loop.shutdown_default_executor())
    store.loop.close()


def test_a_switch_whose_manifest_is_in_doubt_writes_nothing_before_it_is_there():
    """The rename may have reached the disk or not: the new incr file is used once the manifest surely names it."""
    files, store = begun()
    files.fail("sync_dir", errno.EIO, nth=0)
    assert not store.rewrite()
    assert store.log.failure is not None
    store.commit([put(1)])  # one that had passed the check before
    store.second()
    for seed in range(10):
        assert reloaded(files.crash(Random(seed))) == store.states[1]
    files.heal()
    store.second()
    for seed in range(10):
        assert reloaded(files.crash(Random(seed))) == store.states[2]
    store.close()


# -- at start


def image_of_a_log() -> tuple[dict[str, bytes], Store]:
    files, store = begun()
    store.commit([put(1)])
    store.settle()
    assert store.rewrite()
    store.commit([put(2), put(3)])
    store.settle()
    store.commit([Remove(b"k", (b"2",), JUNE), put(4, b"#0123\r\n*1\r\n")])
    store.settle()
    store.close()
    return files.image(), store


IMAGE, WRITER = image_of_a_log()
TAIL = f"{FOLDER}/{PREFIX}.2.incr.aof"


def disk(image: dict[str, bytes]) -> FaultyFiles:
    files = FaultyFiles()
    for path, data in image.items():
        files.put(path, data)
    return files


def untouched(files: FaultyFiles, image: dict[str, bytes]) -> bool:
    lock = f"{FOLDER}/lock"
    return {**files.image(), lock: b""} == {**image, lock: b""}


def test_cut_at_every_byte_of_the_last_two_entries():
    """Whole flushes load and the rest is cut, or with aof-load-truncated no refused and left as it was."""
    data = IMAGE[TAIL]
    note = data.index(b"\r\n", data.index(b"\r\n#", 87) + 2) + 2  # where the first flush ends
    for size in range(87, len(data)):
        image = {**IMAGE, TAIL: data[:size]}
        files = disk(image)
        expected = WRITER.states[3 if size >= note else 2]
        torn = size not in (87, note)
        if torn:
            with pytest.raises(LogDamaged, match=r"\.2\.incr\.aof ends in the middle of a write: \d+ bytes from"):
                reloaded(files, cut_tail=False)
            assert untouched(files, image)
        assert reloaded(files, cut_tail=True) == expected, size
        assert len(files.image()[TAIL]) == (note if size >= note else 87)
        assert reloaded(files, cut_tail=False) == expected


@pytest.mark.parametrize("name", [TAIL, MANIFEST, f"{FOLDER}/{PREFIX}.1.base.rcl"])
def test_each_flipped_byte_is_refused(name):
    """Incr file, manifest, base: the start names the file and touches nothing."""
    data = IMAGE[name]
    for at in range(0, len(data), 1 if len(data) < 1000 else 3):
        for bit in (1 << at % 8, 0xFF):
            flipped = bytearray(data)
            flipped[at] ^= bit
            image = {**IMAGE, name: bytes(flipped)}
            files = disk(image)
            with pytest.raises(LogDamaged, match=name.rpartition("/")[2].replace(".", r"\.")):
                reloaded(files)
            assert untouched(files, image), at


@pytest.mark.parametrize("name", [name for name in IMAGE if not name.endswith("lock")])
def test_a_missing_file_is_refused(name):
    """Manifest, base or incr: named, and nothing is removed or begun."""
    image = {path: data for path, data in IMAGE.items() if path != name}
    files = disk(image)
    with pytest.raises(LogDamaged, match="is missing"):
        reloaded(files)
    assert untouched(files, image)


def test_an_entry_that_does_not_apply_is_refused():
    """Whole by its checksum, but of another state: as if the wrong base stood in the folder."""
    files, store = begun()
    store.log.append([Remove(b"k", (b"nobody",), JUNE)])
    store.settle()
    store.drop()
    image = files.image()
    with pytest.raises(LogDamaged, match=r"1\.incr\.aof holds an entry at or behind offset \d+ that does not apply"):
        reloaded(files)
    assert untouched(files, image)


def test_format_1_is_loaded_and_set_aside():
    """One file of the first format: its state, in new files; a crash on the way repeats it or has finished it."""
    head = b"*3\r\n$7\r\nRECALLD\r\n$3\r\nAOF\r\n$1\r\n1\r\n"
    groups: list[list[Entry]] = [[create()], [put(1)], [put(2), put(3)], [Remove(b"k", (b"2",), JUNE)]]
    old = head + b"".join(map(encode_group, groups))
    expected = Store(FaultyFiles())
    for group in groups:
        expected.commit(group)
    files = disk({f"{DIR}/{PREFIX}": old + b"*7\r\n$3\r\nPU"})
    assert reloaded(files) == expected.state
    assert files.image()[f"{DIR}/{PREFIX}.migrated-1"].startswith(old)
    assert f"{DIR}/{PREFIX}" not in files.image()
    for seed in range(20):
        assert reloaded(files.crash(Random(seed))) == expected.state
    expected.settle()
    expected.close()


@pytest.mark.parametrize("op", ["open", "write", "sync", "rename", "sync_dir", "mkdir"])
@pytest.mark.parametrize("nth", [1, 2, 3])
def test_a_start_that_fails_is_repeated_without_loss(op, nth):
    """EIO anywhere while a log of format 1 is taken over: an error, and the next start has it all."""
    head = b"*3\r\n$7\r\nRECALLD\r\n$3\r\nAOF\r\n$1\r\n1\r\n"
    old = head + encode_group([create()]) + encode_group([put(1)])
    expected = Store(FaultyFiles())
    expected.commit([create()])
    expected.commit([put(1)])
    files = disk({f"{DIR}/{PREFIX}": old})
    files.fail(op, errno.EIO, nth=nth)
    try:
        reloaded(files)
    except OSError as error:
        assert error.errno == errno.EIO
    for seed in range(5):
        assert reloaded(files.crash(Random(seed))) == expected.state
    files.heal()
    assert reloaded(files) == expected.state
    expected.settle()
    expected.close()
