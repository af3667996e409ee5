"""DUMP and RESTORE: the same memory elsewhere, to the byte; whatever else comes as a payload is refused."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import redis
from crc32c import crc32c
from harness import DAY, HOUR, JUNE, SECOND, Clock, Running, Wire
from hypothesis import given
from hypothesis import strategies as st
from recalld.index.analyzer import Vocabulary
from recalld.index.columns import DOC_LEN, NEVER
from recalld.index.memory import Memory, run
from recalld.index.query import Query
from recalld.index.settings import Settings
from recalld.server import dump_commands, entries
from recalld.server.base import MEMORY, freeze
from recalld.server.keyspace import Keyspace
from recalld.server.payload import CHECKS, MAGIC, PayloadDamaged, dump, load

WRONG = "ERR DUMP payload version or checksum are wrong"
WORDS = "the keys hang by the door café user_id 42 wolf running in 東京 every night".split()


def fill(wire: Wire, key: str, records: int, *, mode: str = "HYBRID", metric: str = "COSINE") -> None:
    """A memory with a bit of everything, written over and deleted from."""
    random = np.random.default_rng(7)
    options = ["MODE", mode] if mode == "SEARCH" else ["MODE", mode, "DIM", 5, "METRIC", metric]
    wire("MEM.CREATE", key, *options, "HALFLIFE", 3600, "FUSION", "RRF", "K1", 1.3)
    commands: list[list[Any]] = []
    for number in range(records):
        text = " ".join(random.choice(WORDS, 6)).encode() + b" \xff\x00"
        words = ["MEM.ADD", key, "TEXT", text, "AT", JUNE - number * HOUR, "IMPORTANCE", random.random()]
        if mode == "VECTOR" or (mode == "HYBRID" and number % 3):
            words += ["VEC", random.normal(size=5).astype("<f4").tobytes()]
        if number % 2:
            words += ["META", "color", random.choice(["red", "blue"]), "META", b"\xfe", b"", "TAGS", 2, "a", b"\xfd"]
        if number % 5 == 0:
            words += ["TTL", 60 + number]
        commands.append(words)
    commands += [["MEM.ADD", key, "ID", n, "TEXT", "wolf again", "KEEPVEC"] for n in range(1, records, 4)]
    commands += [["MEM.DEL", key, n] for n in range(2, records, 7)]
    assert not [reply for reply in wire.pipeline(*commands) if isinstance(reply, Exception)]


def replies(wire: Wire, key: str, mode: str) -> list[bytes]:
    """What can be asked, as bytes; not how long it took."""
    flags = ["WITHSCORES", "WITHMETA", "WITHTAGS", "WITHVEC", "EXPLAIN", "TOPK", 50]
    vector = ["FVEC", 5, 0.3, -1, 2, 0.5, 0]
    asked: list[list[Any]] = [["MEM.CONFIG", key], ["MEM.SCAN", key, 0, "COUNT", 5000]]
    if mode != "VECTOR":
        asked += [["MEM.SEARCH", key, text, *flags] for text in ("wolf door", "user cafe", "東京 42")]
    if mode != "SEARCH":
        asked += [["MEM.VSEARCH", key, *vector, *flags]]
    if mode == "HYBRID":
        both = ["MEM.QUERY", key, "TEXT", "wolf user", *vector, *flags]
        asked += [[*both, "FUSION", name] for name in ("RRF", "LINEAR")]
        asked += [["MEM.QUERY", key, "TEXT", "wolf", "FILTER", "color", "EQ", "red", "TAGS", "ANY", 1, "a", *flags]]
    asked += [["MEM.GET", key, number, "WITHMETA", "WITHVEC"] for number in range(20)]
    return [wire.raw(*words) for words in asked]


# The round trip


@pytest.mark.parametrize("records", [0, 1, 60, 1500])
@pytest.mark.parametrize(
    ("mode", "metric"), [("HYBRID", "COSINE"), ("HYBRID", "L2"), ("SEARCH", "COSINE"), ("VECTOR", "IP")]
)
def test_restored_elsewhere_it_answers_the_same(server: Running, mode: str, metric: str, records: int) -> None:
    """Every reply is the same to the byte, EXPLAIN and the order of SCAN included, there and back again."""
    with Running(clock=Clock()) as other:
        here, there = server.wire(), other.wire()
        there("MEM.CREATE", "before", "MODE", "SEARCH")  # so that words have other numbers there
        there("MEM.ADD", "before", "TEXT", "wolf door running elsewhere 42")
        fill(here, "k", records, mode=mode, metric=metric)
        payload = here("DUMP", "k")
        assert there("RESTORE", "moved", 0, payload) == "OK"
        assert replies(there, "moved", mode) == replies(here, "k", mode)
        assert here("RESTORE", "back", 0, there("DUMP", "moved")) == "OK"
        assert replies(here, "back", mode) == replies(here, "k", mode)
        if mode != "VECTOR":
            assert here("MEM.ADD", "k", "TEXT", "one more wolf") == there("MEM.ADD", "moved", "TEXT", "one more wolf")
            assert replies(there, "moved", mode) == replies(here, "k", mode)
        assert there("MEM.INFO", "moved")[-6:] == here("MEM.INFO", "k")[-6:]  # next_id, created_at, updated_at
        assert there("PTTL", "moved") == -1


def test_records_keep_their_deadlines(server: Running, clock: Clock) -> None:
    """A record's deadline is a time, wherever it is restored and however late; what is past it is not announced."""
    wire = server.wire()
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    wire("MEM.ADD", "k", "ID", "short", "TEXT", "a", "TTL", 10)
    wire("MEM.ADD", "k", "ID", "long", "TEXT", "b", "TTL", 100)
    payload = wire("DUMP", "k")
    listener = server.wire()
    listener("SUBSCRIBE", "__mem__:twin")
    listener("SUBSCRIBE", "end")
    clock.advance(10 * SECOND)
    wire("RESTORE", "twin", 0, payload)
    assert wire("MEM.SCAN", "twin", 0) == [b"0", [b"long"]]
    clock.advance(89_999)
    assert wire("MEM.CARD", "twin") == 1
    clock.advance(1)
    assert wire("MEM.CARD", "twin") == 0
    wire("PUBLISH", "end", "")
    assert [listener.read()[-1] for _ in range(2)] == [b"expire long", b""]


def test_redis_py_takes_its_own_dump(r2: redis.Redis, r3: redis.Redis) -> None:
    """dump() gives bytes that restore() takes, on both protocols."""
    for client in (r2, r3):
        client.execute_command("MEM.CREATE", "k", "MODE", "SEARCH")
        client.execute_command("MEM.ADD", "k", "TEXT", "the wolf")
        payload = client.dump("k")
        assert isinstance(payload, bytes)
        assert client.restore("twin", 5000, payload) in (True, b"OK")
        assert client.pttl("twin") == 5000
        assert client.restore("twin", 0, payload, replace=True, idletime=3) in (True, b"OK")
        assert client.ttl("twin") == -1
        with pytest.raises(redis.ResponseError, match="Target key name already exists"):
            client.restore("twin", 0, payload)
        assert client.dump("nothing") is None
        client.flushall()


# The words of RESTORE


@pytest.fixture
def wire(server: Running) -> Wire:
    """A connection, with an empty memory at `k`."""
    wire = server.wire()
    wire("MEM.CREATE", "k", "MODE", "SEARCH")
    return wire


def test_errors_are_those_of_redis(wire: Wire) -> None:
    """Options first, then whether the key is free, then the ttl, then the payload."""
    payload = wire("DUMP", "k")
    assert wire.error("RESTORE", "k", 0, payload) == "BUSYKEY Target key name already exists."
    assert wire.error("RESTORE", "k", -1, b"") == "BUSYKEY Target key name already exists."
    assert wire.error("RESTORE", "k", -1, b"", "NONSENSE") == "ERR syntax error"
    assert wire.error("RESTORE", "k", -1, b"", "REPLACE") == "ERR Invalid TTL value, must be >= 0"
    assert wire.error("RESTORE", "new", "soon", payload) == "ERR value is not an integer or out of range"
    assert wire.error("RESTORE", "new", (1 << 63) - 1, payload) == "ERR invalid expire time in 'restore' command"
    assert wire.error("RESTORE", "new", 0, b"") == WRONG
    assert wire.error("RESTORE", "k", 0, payload + b"x", "REPLACE") == WRONG
    assert wire.error("RESTORE", "new", 0, payload, "IDLETIME", -1) == "ERR Invalid IDLETIME value, must be >= 0"
    assert wire.error("RESTORE", "new", 0, payload, "FREQ", 256) == "ERR Invalid FREQ value, must be >= 0 and <= 255"
    assert wire.error("RESTORE", "new", 0, payload, "FREQ", 1, "IDLETIME", 1) == "ERR syntax error"
    assert wire.error("RESTORE", "new", 0, payload, "FREQ") == "ERR syntax error"
    assert wire.error("RESTORE", "new", 0) == "ERR wrong number of arguments for 'restore' command"
    assert wire("DUMP", "k") == payload
    assert wire("DBSIZE") == 1


def test_deadline_of_the_key(wire: Wire, clock: Clock) -> None:
    """A ttl counts from now, ABSTTL is a time, and one that has passed leaves no key."""
    wire("PEXPIRE", "k", 77)
    payload = wire("DUMP", "k")
    wire("RESTORE", "a", 1500, payload)
    wire("RESTORE", "b", JUNE + DAY, payload, "absttl", "FREQ", 3)
    assert (wire("PEXPIRETIME", "a"), wire("PEXPIRETIME", "b")) == (JUNE + 1500, JUNE + DAY)
    assert wire("RESTORE", "c", JUNE, payload, "ABSTTL") == "OK"
    assert wire("RESTORE", "b", JUNE - 1, payload, "ABSTTL", "REPLACE") == "OK"
    assert wire("EXISTS", "b", "c") == 0
    clock.advance(1500)
    assert wire("EXISTS", "a") == 0


def test_wider_than_mem_max_dim_is_refused(wire: Wire) -> None:
    """A memory that MEM.CREATE would refuse does not come in by RESTORE."""
    wire("MEM.CREATE", "wide", "DIM", 5)
    payload = wire("DUMP", "wide")
    wire("CONFIG", "SET", "mem-max-dim", 4)
    assert wire.error("RESTORE", "new", 0, payload) == "ERR DIM must be between 1 and mem-max-dim (4)"


@pytest.fixture
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """However small, in a thread."""
    monkeypatch.setattr(dump_commands, "_DUMP_INLINE", -1)
    monkeypatch.setattr(dump_commands, "_RESTORE_INLINE", -1)


@pytest.mark.usefixtures("in_threads")
def test_in_a_thread_too_order_is_kept(wire: Wire) -> None:
    """DUMP gives its own moment though writes follow at once; what follows RESTORE sees it."""
    wire("MEM.ADD", "k", "TEXT", "first")
    payload, _ = wire.pipeline(("DUMP", "k"), ("MEM.ADD", "k", "TEXT", "second"))
    got = wire.pipeline(
        ("RESTORE", "twin", 0, payload), ("MEM.CARD", "twin"), ("RESTORE", "twin", 0, payload), ("MEM.CARD", "k")
    )
    assert [str(reply) for reply in got] == ["OK", "1", "BUSYKEY Target key name already exists.", "2"]
    assert wire.error("RESTORE", "new", 0, payload[:-1]) == WRONG
    assert wire("DUMP", "twin") == payload


@pytest.mark.usefixtures("in_threads")
def test_two_at_once_for_one_key(server: Running, wire: Wire) -> None:
    """Of several clients that restore one free key, one gets it."""
    payload = wire("DUMP", "k")
    clients = [server.wire() for _ in range(8)]
    for client in clients:
        client.send("RESTORE", "new", 0, payload)
    assert sorted(str(client.read())[:7] for client in clients) == ["BUSYKEY"] * 7 + ["OK"]


@pytest.mark.usefixtures("in_threads")
def test_within_exec_it_is_one_moment(wire: Wire) -> None:
    """In EXEC both run at once, and a refused payload leaves the other commands standing."""
    payload = wire("DUMP", "k")
    *_, got = wire.pipeline(
        ("MULTI",),
        ("RESTORE", "twin", 0, payload),
        ("MEM.ADD", "twin", "TEXT", "in it"),
        ("RESTORE", "bad", 0, b"nonsense"),
        ("DUMP", "twin"),
        ("EXEC",),
    )
    assert got[:2] == ["OK", b"1"]
    assert str(got[2]) == WRONG
    assert len(got[3]) > len(payload)


# The log


def test_entry_is_its_own_inverse() -> None:
    """decode(encode(entry)) == entry; what the command has read is not written."""
    entry = entries.Restore(b"k", b"\x00payload", 5, 7)
    assert entries.decode(entry.encode()) == entry


def test_replay_gives_the_same_state() -> None:
    """An entry that was read by the command and one from the log end in the same memory, expired records gone."""
    payload = small()
    states = []
    for is_read in (True, False):
        keyspace = Keyspace()
        read = load(payload).attach(keyspace.vocabulary) if is_read else None
        keyspace.apply(entries.Restore(b"k", payload, JUNE + DAY, JUNE + 30 * SECOND, read))
        memory = keyspace.get(b"k", JUNE + 30 * SECOND)
        assert memory is not None
        assert keyspace.deadlines == {b"k": JUNE + DAY}
        assert b"2" not in memory
        states.append(dump(freeze(b"k", memory, 0, JUNE), keyspace.vocabulary))
    assert states[0] == states[1]


def test_restored_key_survives_a_restart(tmp_path: Any) -> None:
    """RESTORE is in the log, with the key's deadline."""
    with Running(clock=Clock(), dir=tmp_path) as server:
        wire = server.wire()
        fill(wire, "k", 40)
        wire("RESTORE", "twin", 90_000, wire("DUMP", "k"))
        wire("DEL", "k")
        before = replies(wire, "twin", "HYBRID")
        server.restart()
        wire = server.wire()
        assert replies(wire, "twin", "HYBRID") == before
        assert (wire("PTTL", "twin"), wire("DBSIZE")) == (90_000, 1)


# Payloads that are none


def build(settings: Settings, records: int) -> tuple[Memory, Vocabulary]:
    vocabulary = Vocabulary()
    memory = Memory(settings, vocabulary, JUNE)
    vectors = [b"", *(np.roll(np.array([0.6, 0.8, 0], "<f4"), n).tobytes() for n in range(2))]
    for number in range(1, records + 1):
        memory.put(
            b"%d" % number,
            b"user_id %d and the wolf " % number + b"again " * number,
            vectors[number % 3] if settings.has_vectors else b"",
            (b"f", b"v", b"g", b"w"),
            (b"a", b"b"),
            importance=0.25,
            created_at=JUNE,
            updated_at=JUNE + number,
            deadline=JUNE + 10 * SECOND if number == 2 else NEVER,
            max_words=6,
            at=JUNE,
        )
    return memory, vocabulary


def small(settings: Settings = Settings(dim=3), records: int = 3) -> bytes:  # noqa: B008 - it is frozen
    memory, vocabulary = build(settings, records)
    return dump(freeze(b"k", memory, 0, JUNE), vocabulary)


SMALL = small()


def test_every_flipped_bit_is_seen() -> None:
    """A payload with any one bit flipped is refused."""
    for at in range(len(SMALL)):
        for bit in range(8):
            flipped = bytearray(SMALL)
            flipped[at] ^= 1 << bit
            with pytest.raises(PayloadDamaged):
                load(bytes(flipped))


def test_every_cut_is_seen() -> None:
    """A payload cut anywhere, in front or behind, or one with a byte more, is refused."""
    for at in range(len(SMALL)):
        for cut in (SMALL[:at], SMALL[at + 1 :], SMALL + SMALL[: at + 1]):
            with pytest.raises(PayloadDamaged):
                load(cut)


def test_damage_changes_nothing(wire: Wire) -> None:
    """By the command too: the error of Redis, and the memory that was to be replaced stands."""
    payload = wire("DUMP", "k")
    broken = [bytearray(payload) for _ in range(0, len(payload), 97)]
    for number, each in enumerate(broken):
        each[number * 97] ^= 16
        assert wire.error("RESTORE", "k", 0, bytes(each), "REPLACE") == WRONG
    assert wire("DUMP", "k") == payload


def sealed(body: bytes) -> bytes:
    """A payload of this body with a checksum that holds."""
    return body + struct.pack("<I", crc32c(body))


class Parts:
    """A payload taken apart, to be put together again with other sections."""

    def __init__(self, payload: bytes) -> None:
        base = payload[len(MAGIC) : -4]
        start, length = struct.unpack("<QQ", base[-32:-16])
        directory = json.loads(base[start : start + length])
        self.base = base
        self.settings: list[dict[str, Any]] = directory["settings"]
        self.kinds = {name: entry[3] for name, entry in directory["sections"].items()}
        self.data = {name: base[at : at + size] for name, (at, size, *_) in directory["sections"].items()}
        self.directory: Callable[[dict[str, Any]], Any] = lambda directory: directory

    def numbers(self, name: str) -> np.ndarray[Any, Any]:
        """A section to change in place."""
        dtype = MEMORY if self.kinds[name] == "memory" else np.dtype(self.kinds[name])
        data = bytearray(self.data[name])
        self.data[name] = data  # type: ignore[assignment]
        return np.frombuffer(data, dtype)

    def payload(self) -> bytes:
        out = bytearray(self.base[:16])
        sections = {}
        for name, data in self.data.items():
            sections[name] = [len(out), len(data), crc32c(bytes(data)), self.kinds[name]]
            out += data
        directory = json.dumps(self.directory({"sections": sections, "settings": self.settings})).encode()
        start = len(out)
        out += directory + struct.pack("<QQI12s", start, len(directory), crc32c(directory), self.base[-12:])
        return sealed(MAGIC + bytes(out))


def test_parts_make_a_payload() -> None:
    """What the tests below change is all that is wrong with their payloads."""
    parts = Parts(SMALL)
    assert contents(load(parts.payload())) == contents(load(SMALL))


def contents(loaded: Any) -> list[Any]:
    vocabulary = Vocabulary()
    memory = loaded.attach(vocabulary)
    return [dump(freeze(b"", memory, 0, JUNE), vocabulary)]


def section(name: str, data: bytes) -> Callable[[Parts], None]:
    return lambda parts: parts.data.__setitem__(name, data)


def number(name: str, at: int, value: Any, field: str = "") -> Callable[[Parts], None]:
    def edit(parts: Parts) -> None:
        array = parts.numbers(name)
        (array[field] if field else array)[at] = value

    return edit


def setting(name: str, value: Any) -> Callable[[Parts], None]:
    return lambda parts: parts.settings[0].__setitem__(name, value)


def entry(name: str, at: int, value: Any) -> Callable[[Parts], None]:
    """Another number in the directory."""

    def change(directory: dict[str, Any]) -> Any:
        directory["sections"][name][at] = value
        return directory

    return lambda parts: setattr(parts, "directory", change)


def directory(value: Any) -> Callable[[Parts], None]:
    return lambda parts: setattr(parts, "directory", lambda _: value)


HALF = np.float32(0.5)
NONSENSE: dict[str, Callable[[Parts], None]] = {
    "the same id twice": section("ids", b"112"),
    "ids of other lengths": number("ids.len", 0, 2),
    "a length of 4 GB": number("texts.len", 0, 0xFFFFFFFF),
    "fewer texts": section("texts.len", b""),
    "a section that is no whole number of its items": section("created", b"123"),
    "no records": number("memories", 0, 0, "records"),
    "fewer than no records": number("memories", 0, -3, "records"),
    "records without end": number("memories", 0, 1 << 62, "records"),
    "two memories": lambda parts: parts.data.__setitem__("memories", parts.data["memories"] * 2),
    "no memory": section("memories", b""),
    "settings of another": number("memories", 0, 1, "settings"),
    "vectors elsewhere": number("memories", 0, 64, "vector_at"),
    "more vectors": number("memories", 0, 3, "vectors"),
    "a counter of 0": number("memories", 0, 0, "next_id"),
    "a counter beyond all": number("memories", 0, (1 << 63) - 1, "next_id"),
    "a time beyond all": number("memories", 0, -(1 << 63), "created_at"),
    "an update beyond all": number("memories", 0, 1 << 60, "updated_at"),
    "a serial to come": number("memories", 0, 2, "next_serial"),
    "a serial twice": number("serial", 0, 2),
    "a serial of 0": number("serial", 0, 0),
    "an odd meta": number("metas.n", 0, 3),
    "a field twice": section("metas", b"fvfw" * 3),
    "a tag twice": section("tags", b"aa" * 3),
    "tags without end": number("tags.n", 2, 0xFFFFFFFF),
    "a record before time": number("created", 1, -(1 << 63)),
    "a record after time": number("updated", 1, (1 << 63) - 1),
    "a deadline of 0": number("deadline", 0, 0),
    "a deadline beyond NEVER": number("deadline", 0, NEVER + 1),
    "importance 2": number("importance", 0, 2.0),
    "importance NaN": number("importance", 0, np.nan),
    "fewer words than none": number("doc_len", 0, -1),
    "two vectors for a record": number("has_vector", 0, 2),
    "a vector more": lambda parts: parts.numbers("has_vector").fill(0),
    "a vector of length 1 + 1e-6": number("vectors", 0, np.float32(0.800001)),
    "a vector of zeros": lambda parts: parts.numbers("vectors").fill(0),
    "a vector with NaN": number("vectors", 0, np.nan),
    "a vector with infinity": number("vectors", 0, np.inf),
    "half a vector": lambda parts: parts.data.__setitem__("vectors", parts.data["vectors"][:-4]),
    "another dim": setting("dim", 2),
    "a dim of 0": setting("dim", 0),
    "a dim below 0": setting("dim", -3),
    "a dim without end": setting("dim", 1 << 80),
    "a dim of true": setting("dim", True),
    "SEARCH with vectors": setting("mode", "SEARCH"),
    "another mode": setting("mode", "ALL"),
    "a mode that is a list": setting("mode", ["HYBRID"]),
    "another metric": setting("metric", "HAMMING"),
    "another fusion": setting("fusion", None),
    "another language": setting("lang", "klingon"),
    "a weight below 0": setting("weights", [0.1, -0.1, 0, 0]),
    "a weight of infinity": setting("weights", [0.1, float("inf"), 0, 0]),
    "a weight of NaN": setting("weights", [0.1, float("nan"), 0, 0]),
    "a weight of 400 digits": setting("weights", [10**400, 0, 0, 0]),
    "five weights": setting("weights", [0, 0, 0, 0, 0]),
    "a half-life of 0": setting("half_life", 0),
    "a half-life of 2.5": setting("half_life", 2.5),
    "b of 2": setting("b", 2),
    "k1 below 0": setting("k1", -1),
    "an unknown setting": setting("__class__", 1),
    "no lang": lambda parts: parts.settings[0].pop("lang") and None,
    "no settings": lambda parts: parts.settings.clear(),
    "settings that are a list": lambda parts: parts.settings.__setitem__(0, []),  # type: ignore[call-overload]
    "two settings": lambda parts: parts.settings.append({}),
    "an offset below 0": entry("texts", 0, -64),
    "an offset beyond the end": entry("texts", 0, 1 << 70),
    "a size beyond the end": entry("vectors", 1, 1 << 62),
    "a size below 0": entry("texts", 1, -1),
    "an offset that is a float": entry("texts", 0, 64.0),
    "a column of objects": entry("created", 3, "|O"),
    "a column of other numbers": entry("created", 3, "<f8"),
    "a column of nothing": entry("created", 3, ["<i8"]),
    "no directory": directory(None),
    "a directory that is a list": directory([]),
    "no sections": directory({"settings": []}),
    "sections that are numbers": directory({"sections": {"memories": 5}, "settings": [{}]}),
    "a directory of brackets": directory({"sections": json.loads("[" * 500 + "]" * 500), "settings": [{}]}),
}


@pytest.mark.parametrize("what", NONSENSE)
def test_nonsense_with_a_good_checksum_is_refused(server: Running, what: str) -> None:
    """Each value that no memory can have, checksums put right: the error of Redis, and no key."""
    parts = Parts(SMALL)
    NONSENSE[what](parts)
    wire = server.wire()
    assert wire.error("RESTORE", "new", 0, parts.payload()) == WRONG
    assert wire("DBSIZE") == 0


def test_nested_without_end_is_refused() -> None:
    """A directory of a hundred thousand brackets is no directory, and no crash."""
    deep = b"[" * 100_000
    base = Parts(SMALL).base[:16] + deep + struct.pack("<QQI12s", 16, len(deep), crc32c(deep), b"RECALLD-END\n")
    with pytest.raises(PayloadDamaged):
        load(sealed(MAGIC + base))


@pytest.mark.parametrize("records", [3, 1100])
def test_what_follows_from_the_records_is_not_believed(records: int) -> None:
    """Sums, words and posting lists of a payload may say what they like: the memory is that of its records."""
    whole = small(records=records)
    parts = Parts(whole)
    for name in ("sums", "entries", "entry_terms", "entry_halves", "terms", "terms.len", "post_terms", "posts"):
        if name in parts.data:
            parts.data[name] = b"\x01" * len(parts.data[name])
    assert contents(load(parts.payload())) == contents(load(whole)) == [whole]


def test_as_many_words_count_as_did(wire: Wire) -> None:
    """A record indexed up to mem-max-terms-per-doc is, elsewhere, whatever the setting says there."""
    wire("CONFIG", "SET", "mem-max-terms-per-doc", 2)
    wire("MEM.ADD", "k", "TEXT", "one two wolf wolf")
    payload = wire("DUMP", "k")
    wire("CONFIG", "SET", "mem-max-terms-per-doc", 1024)
    wire("RESTORE", "twin", 0, payload)
    assert wire("MEM.SEARCH", "twin", "wolf") == []
    assert wire("DUMP", "twin") == payload


SEARCH_SMALL = small(Settings(mode="SEARCH"))


@given(st.data())
def test_whatever_comes_is_refused_or_a_memory(data: st.DataObject) -> None:
    """Any bytes overwritten, checksum put right: refused, or a memory that answers as one written record by record."""
    body = bytearray(data.draw(st.sampled_from([SMALL, SEARCH_SMALL]))[:-4])
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(len(MAGIC), len(body) - 1))
        new = data.draw(st.sampled_from([b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"0", b"9", b"[", b'"', b"-"]))
        width = data.draw(st.sampled_from([1, 1, 4, 8]))
        body[at : at + width] = (new * width)[: len(body) - at]
    try:
        loaded = load(sealed(bytes(body)))
    except PayloadDamaged:
        return
    vocabulary = Vocabulary()
    memory = loaded.attach(vocabulary)
    written = Memory(memory.settings, vocabulary, JUNE)
    table = memory.table
    for slot in sorted(table.by_id.values()):
        written.put(
            table.ids[slot],
            table.texts[slot],
            table.vector(slot),
            table.metas[slot],
            table.tags[slot],
            importance=table.importance(slot),
            created_at=table.created(slot),
            updated_at=table.updated(slot),
            deadline=table.deadline(slot),
            max_words=int(table.narrow[DOC_LEN, slot]),
            at=JUNE,
        )
    text = b"wolf user" if memory.settings.has_text else None
    vector = np.array([0.0, 0.6, 0.8]) if memory.settings.has_vectors else None
    query = Query(text=text, vector=vector, explain=True)
    assert run(memory.plan(query, JUNE)) == run(written.plan(query, JUNE))


def test_every_setting_is_checked() -> None:
    """Whoever adds a setting says what it may be in a payload."""
    assert CHECKS.keys() == {field.name for field in dataclasses.fields(Settings)}
