"""The incr file, cut and corrupted: what a checksum covers loads, a prefix is torn, anything else is refused."""

from __future__ import annotations

import errno
import random
import re

import pytest
from crc32c import crc32c
from faulty_files import FaultyFiles
from hypothesis import given
from hypothesis import strategies as st
from recalld.index.settings import Settings
from recalld.server import incr
from recalld.server.entries import Copy, Create, Drop, Entry, ExpireKey, Flush, Put, Remove, SetMeta
from recalld.server.files import AppendFile, Files
from recalld.server.incr import EMPTY_BYTES, Damaged, IncrReader, IncrWriter, Tail

TAG = b"0123456789abcdef"
PATH = "/appendonlydir/a.1.incr.aof"

Group = list[Entry]


def put(record_id: bytes, text: bytes = b"the lake\r\n is \x00 cold") -> Put:
    return Put(b"k", record_id, text, b"", (b"f", b"v\r\n"), (b"t",), 0.25, 5, 5, 0, 1, 100, 5)


FLUSHES: list[list[Group]] = [
    [[Create(b"k", Settings(mode="SEARCH"), 1)], [put(b"1")]],
    [[put(b"2", b"*1\r\n$4\r\nEXEC\r\n"), put(b"3", b"#fedcba9876543210:00000000:1\r\n")]],
    [[Remove(b"k", (b"2",), 7)]],
    [[ExpireKey(b"k", 99_999), Copy(b"k", b"twin")], [SetMeta(b"k", b"1", (b"", b""), 8)], [Drop((b"k",))]],
]


def log(flushes: list[list[Group]], tag: bytes = TAG) -> tuple[bytes, list[int]]:
    """The file that these flushes make, and where it ends after the header and after each of them."""
    files = FaultyFiles()
    files.makedirs("/appendonlydir")
    writer = incr.create(files, PATH, tag)
    ends = [writer.size]
    for groups in flushes:
        writer.write(map(incr.encode_group, groups))
        ends.append(writer.size)
    return bytes(files.read(PATH)[:]), ends


def read(data: bytes, *, last: bool = True) -> tuple[list[Group], Tail]:
    reader = IncrReader(data, PATH, last=last)
    return [group for _, group in reader], reader.tail


def flat(flushes: list[list[Group]]) -> list[Group]:
    return [group for groups in flushes for group in groups]


DATA, ENDS = log(FLUSHES)


def test_the_format_byte_by_byte():
    """As drawn at the head of the module."""
    data, _ = log([[[Flush()]]])
    assert data == (
        b"*4\r\n$7\r\nRECALLD\r\n$3\r\nAOF\r\n$1\r\n2\r\n$16\r\n0123456789abcdef\r\n"
        b"#0123456789abcdef:ecaeaa36:56\r\n"
        b"*1\r\n$5\r\nFLUSH\r\n"
        b"#0123456789abcdef:6543791a:15\r\n"
    )
    assert data.index(b"0123") == 38
    assert data.index(b"#") == 56
    assert EMPTY_BYTES == 87
    assert data.rindex(b"#") == 102


def test_what_was_written_is_read():
    """All groups in order, and a tail that says where to go on."""
    groups, tail = read(DATA)
    assert groups == flat(FLUSHES)
    assert tail == Tail("whole", len(DATA), 0, 0, TAG, int(DATA.split(b":")[-2], 16))


def test_groups_come_with_the_offset_of_their_chunk():
    """What a message about an entry that does not apply names."""
    assert [at for at, _ in IncrReader(DATA, PATH, last=True)] == [
        at for at, groups in zip(ENDS, FLUSHES, strict=False) for _ in groups
    ]


def test_cut_at_every_byte():
    """Each true prefix has the groups of its whole flushes, says what is lost, and is damage in a file not the last."""
    for size in range(len(DATA)):
        whole = sum(end <= size for end in ENDS) - 1
        groups, tail = read(DATA[:size])
        assert groups == flat(FLUSHES[: max(whole, 0)]), size
        keep = ENDS[whole] if whole >= 0 else 0
        assert tail[:3] == ("whole" if size in ENDS else "torn", keep, size - keep), size
        if size not in ENDS:
            with pytest.raises(Damaged, match=rf"{PATH} is damaged at offset {size}: .*another file follows"):
                read(DATA[:size], last=False)


def test_a_torn_tail_counts_its_whole_entries():
    """What is cut although it could be read: said, not loaded, for nothing vouches for it."""
    body = b"".join(map(incr.encode_group, FLUSHES[3]))
    _, tail = read(DATA[: ENDS[3] + len(body)])
    assert tail.entries == 4
    assert "bytes from offset" in tail.refusal(PATH)


def test_every_flipped_bit_is_refused():
    """Header, notes, lengths, texts: no flip of a file written completely loads, and the message says what to do."""
    for at in range(len(DATA)):
        for bit in range(8):
            flipped = bytearray(DATA)
            flipped[at] ^= 1 << bit
            with pytest.raises(
                Damaged, match=r"a\.1\.incr\.aof is damaged at offset \d+: .*check-aof --fix /append"
            ) as e:
                read(bytes(flipped))
            assert e.value.offset <= len(DATA)
            assert e.value.keep <= at


def test_every_flipped_bit_of_an_empty_log_is_refused():
    """The note on the header vouches for the tag, too."""
    for at in range(EMPTY_BYTES):
        for bit in range(8):
            flipped = bytearray(DATA[:EMPTY_BYTES])
            flipped[at] ^= 1 << bit
            with pytest.raises(Damaged):
                read(bytes(flipped))


def test_cut_and_flipped_is_never_loaded_wrong():
    """Both at once: refused, or exactly the flushes whose notes are there and hold."""
    rng = random.Random(1)
    for _ in range(3_000):
        size = rng.randrange(1, len(DATA))
        flipped = bytearray(DATA[:size])
        at = rng.randrange(size)
        flipped[at] ^= 1 << rng.randrange(8)
        try:
            groups, tail = read(bytes(flipped))
        except Damaged:
            continue
        # What loads lies before the flip; behind it there is no note that is whole.
        assert tail.kind == "torn"
        assert tail.keep == max([end for end in [0, *ENDS] if end <= size])
        assert tail.keep <= at
        assert groups == flat(FLUSHES[: max(ENDS.index(tail.keep) if tail.keep else 0, 0)])


def test_zeros_are_damage():
    """A tail of zeros, behind the last note or in place of what was there, is no true prefix."""
    for zeros in (1, 2, 40, 512, 4096):
        with pytest.raises(Damaged):
            read(DATA + bytes(zeros))
    for size in range(1, len(DATA)):
        with pytest.raises(Damaged):
            read(DATA[:-size] + bytes(size))


@pytest.mark.parametrize("gone", range(len(FLUSHES) - 1))
def test_a_flush_taken_out_or_swapped_is_refused(gone):
    """The checksum goes on from the one before: whole chunks in another order are damage, too."""
    a, b, c = ENDS[gone], ENDS[gone + 1], ENDS[gone + 2]
    for wrong in (DATA[:a] + DATA[b:], DATA[:a] + DATA[b:c] + DATA[a:b] + DATA[c:], DATA[:b] + DATA[a:]):
        with pytest.raises(Damaged, match=rf"offset {b if wrong[:b] == DATA[:b] else a}: .* do not match the checksum"):
            read(wrong)


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"*1\r\n$5\r\nMULTI\r\n*1\r\n$4\r\nEXEC\r\n", "not a log entry: b'EXEC'"),
        (b"*1\r\n$5\r\nMULTI\r\n*1\r\n$5\r\nMULTI\r\n", "not a log entry: b'MULTI'"),
        (b"*1\r\n$4\r\nEXEC\r\n", "not a log entry: b'EXEC'"),
        (b"*1\r\n$5\r\nFLUSX\r\n", "not a log entry: b'FLUSX'"),
        (b"*01\r\n$5\r\nFLUSH\r\n", "should be there"),
        (b"*1\r\n$+5\r\nFLUSH\r\n", "should be there"),
        (b"*0\r\n", "should be there"),
        (b"*1\r\n$5\r\nFLUSH\n\n", "does not end where it should"),
        (b"FLUSH\r\n", "neither an entry nor a note begins there"),
        (b"#0123456789abcdef:00000000:0\r\n", "neither an entry nor a note begins there"),
        (b"*1\r\n$5\r\nFLUSH\r\n#0123456789abcdef:6543791b:15\r\n", "do not match the checksum"),
        (b"*1\r\n$5\r\nFLUSH\r\n#0123456789abcdeX", "do not match the checksum"),
        (b"*1\r\n$99\r\nFLUSH\r\n#0123456789abcdef:6543791a:15\r\n", "reach over a note"),
    ],
)
def test_what_is_no_prefix_of_a_flush_is_damage(body, why):
    """Though the file ends behind it: refused, not cut."""
    with pytest.raises(Damaged, match=re.escape(why)):
        read(DATA + body)


def test_other_formats_are_named():
    """A log of format 1, one of the future, one of Redis."""
    with pytest.raises(Damaged, match="its format version 1 is not the one that belongs here"):
        read(b"*3\r\n$7\r\nRECALLD\r\n$3\r\nAOF\r\n$1\r\n1\r\n")
    with pytest.raises(Damaged, match="its format version 3 is not the one that belongs here"):
        read(DATA.replace(b"$1\r\n2\r\n", b"$1\r\n3\r\n", 1))
    with pytest.raises(Damaged, match="it does not begin as an incr file"):
        read(b"*2\r\n$6\r\nSELECT\r\n$1\r\n0\r\n")


def test_format_1_is_read():
    """The one file without checksums: its groups, up to a torn tail."""
    head = b"*3\r\n$7\r\nRECALLD\r\n$3\r\nAOF\r\n$1\r\n1\r\n"
    groups = flat(FLUSHES)
    data = head + b"".join(map(incr.encode_group, groups))
    assert [group for _, group in incr.read_format_1(data, "x")] == groups
    ends = [len(head)] + [end for end, _ in incr.read_format_1(data, "x")]
    assert ends[-1] == len(data)
    for size in range(len(data)):
        whole = max(0, sum(end <= size for end in ends) - 1)
        assert [group for _, group in incr.read_format_1(data[:size], "x")] == groups[:whole], size
    for wrong in (head + b"x", b"*3\r\n$7\r\nRECALLD\r\n$3\r\nAOF\r\n$1\r\n2\r\n", data.replace(b"PUT", b"POT", 1)):
        with pytest.raises(Damaged):
            list(incr.read_format_1(wrong, "x"))


nasty = st.one_of(
    st.binary(max_size=30),
    st.sampled_from(
        [
            DATA,
            DATA[ENDS[0] :],
            b"\r\n" + incr.note(TAG, 0, 10),
            b"#" + TAG,
            b"*1\r\n$5\r\nMULTI\r\n",
            b"*1\r\n$4\r\nEXEC\r\n",
            b"\r\n",
            bytes(600),
        ]
    ),
)
groups_of = st.lists(st.lists(st.builds(put, nasty, nasty), min_size=1, max_size=3), min_size=1, max_size=3)


@given(st.lists(groups_of, max_size=4))
def test_any_text_is_read_as_written(flushes):
    """Texts that look like entries and notes, this file's own tag included, are texts."""
    data, _ = log(flushes)
    groups, tail = read(data)
    assert groups == flat(flushes)
    assert tail.kind == "whole"


def test_a_note_that_holds_within_a_text_is_text():
    """Of one who can read the file while it is written, and knows what stands before his text in it."""
    _, ends = log([])
    crc = int(DATA[: ends[0]].split(b":")[-2], 16)
    start = incr.encode_group([put(b"1", b"." * 300)]).partition(b"...")[0]
    text = incr.note(TAG, crc32c(start, crc), len(start)).ljust(300, b".")
    data, _ = log([[[put(b"1", text)], [put(b"2")]]])
    assert incr.note(TAG, crc32c(data[ends[0] : ends[0] + len(start)], crc), len(start)) in data
    groups, tail = read(data)
    assert groups == [[put(b"1", text)], [put(b"2")]]
    assert tail.kind == "whole"


@given(st.lists(groups_of, min_size=1, max_size=4), st.data())
def test_any_cut_keeps_whole_flushes(flushes, data):
    """As long as no text holds this file's own tag, which is random."""
    whole, ends = log(flushes, b"a0" * 8)
    size = data.draw(st.integers(0, len(whole)))
    groups, tail = read(whole[:size])
    kept = max(0, sum(end <= size for end in ends) - 1)
    assert groups == flat(flushes[:kept])
    assert tail.keep == (ends[kept] if size >= ends[0] else 0)


@given(st.lists(groups_of, min_size=1, max_size=3), st.data())
def test_any_flip_is_refused(flushes, data):
    """Whatever the texts are."""
    whole, _ = log(flushes)
    at = data.draw(st.integers(0, len(whole) - 1))
    flipped = bytearray(whole)
    flipped[at] ^= 1 << data.draw(st.integers(0, 7))
    with pytest.raises(Damaged):
        read(bytes(flipped))


@pytest.mark.parametrize("size", range(0, len(DATA) + 1, 7))
def test_writing_goes_on_behind_a_cut(size):
    """resume cuts what is lost, for good, and what is written next is read behind what was kept."""
    files = FaultyFiles()
    files.put(PATH, DATA[:size])
    groups, tail = read(DATA[:size])
    writer = incr.resume(files, PATH, tail)
    assert writer.size == max(tail.keep, EMPTY_BYTES)
    writer.write([incr.encode_group([put(b"new")])])
    writer.sync()
    assert read(files.read(PATH)[:])[0] == [*groups, [put(b"new")]]


@pytest.mark.parametrize("size", [*ENDS, ENDS[2] + 9])
def test_what_was_read_survives_a_power_cut(size):
    """A killed process left its last flushes to the system: once resumed, they are on the disk, name and cut too."""
    files = FaultyFiles()
    files.makedirs("/appendonlydir")
    file = files.open_append(PATH)
    file.write(DATA[:size])
    groups, tail = read(files.read(PATH)[:])
    incr.resume(files, PATH, tail)
    for seed in range(10):
        assert read(files.crash(random.Random(seed)).read(PATH)[:]) == (groups, tail._replace(kind="whole", lost=0))


def test_a_mapped_file_of_several_megabytes(tmp_path):
    """One chunk larger than what the parser is fed at a time, in a real file."""
    files, path = Files(), str(tmp_path / "a.1.incr.aof")
    writer = incr.create(files, path)
    groups: list[Group] = [[put(b"%d" % number, bytes(1 << 16) + b"\r\n#*$")] for number in range(50)]
    writer.write(map(incr.encode_group, groups))
    writer.write([incr.encode_group([put(b"big", b"x" * 3_000_000)])])
    writer.close()
    reader = IncrReader(files.read(path), path, last=True)
    assert [group for _, group in reader] == [*groups, [put(b"big", b"x" * 3_000_000)]]
    assert reader.tail.kind == "whole"


# -- faults


def faulty() -> tuple[FaultyFiles, IncrWriter]:
    files = FaultyFiles()
    files.makedirs("/appendonlydir")
    writer = incr.create(files, PATH, TAG)
    files.sync_dir("/appendonlydir")
    return files, writer


def test_a_full_disk_leaves_no_part_of_a_write():
    """ENOSPC after some bytes: they are cut off, and the same flush goes in once there is room."""
    files, writer = faulty()
    files.capacity = EMPTY_BYTES + 20
    with pytest.raises(OSError, match="No space left"):
        writer.write([incr.encode_group([put(b"1")])])
    assert files.size(PATH) == writer.size == EMPTY_BYTES
    files.heal()
    writer.write([incr.encode_group([put(b"1")])])
    assert read(files.read(PATH)[:])[0] == [[put(b"1")]]


def test_a_failed_undo_is_made_up_for_before_the_next_write():
    """The cut fails as well: until it succeeds the file is torn, never damaged."""
    files, writer = faulty()
    files.capacity = EMPTY_BYTES + 20
    files.fail("truncate", errno.EIO, nth=0)
    for _ in range(2):
        with pytest.raises(OSError):
            writer.write([incr.encode_group([put(b"1", b"long" * 50)])])
    assert read(files.read(PATH)[:])[1].lost == 20
    files.heal()
    writer.write([incr.encode_group([Flush()])])
    assert read(files.read(PATH)[:])[0] == [[Flush()]]


def test_rewind_after_a_failed_sync():
    """What may not be on the disk is cut and written again, and the checksum goes on from where it was."""
    files, writer = faulty()
    writer.write([incr.encode_group([put(b"1")])])
    writer.sync()
    mark = writer.mark
    writer.write([incr.encode_group([put(b"2")])])
    files.fail("sync", errno.EIO)
    with pytest.raises(OSError):
        writer.sync()
    writer.rewind(mark)
    writer.write([incr.encode_group([put(b"2")])])
    writer.sync()
    for seed in range(20):
        assert read(files.crash(random.Random(seed)).read(PATH)[:])[0] == [[put(b"1")], [put(b"2")]]


@pytest.mark.parametrize("sectors", [False, True])
def test_a_power_cut_keeps_what_was_synced(sectors):
    """Synced flushes are there; later ones whole or not at all; with sectors lost the file may also be refused."""
    refused = 0
    for seed in range(300):
        rng = random.Random(seed)
        files, writer = faulty()
        groups: list[Group] = [[put(b"%d" % number, rng.randbytes(rng.randrange(900)))] for number in range(6)]
        synced = rng.randrange(7)
        for number, group in enumerate(groups):
            if number == synced:
                writer.sync()
            writer.write([incr.encode_group(group)])
        if synced == 6:
            writer.sync()
        try:
            kept, _ = read(files.crash(rng, sectors=sectors).read(PATH)[:])
        except Damaged:
            refused += 1
            continue
        assert synced <= len(kept)
        assert kept == groups[: len(kept)]
    assert (refused > 0) == sectors


def test_short_writes_are_continued():
    """write(2) may take less than it was given."""

    class Short:
        data = b""

        def write(self, data: memoryview, at: int) -> int:
            assert at == len(self.data)
            self.data += bytes(data[:3])
            return min(3, len(data))

        def size(self) -> int:
            return 0

    handle = Short()
    file = AppendFile(handle)  # type: ignore[arg-type]
    file.write(b"0123456789")
    assert handle.data == b"0123456789"
    assert file.size == 10
