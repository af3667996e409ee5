"""MAXRECORDS, MAXBYTES and MEM.EVICT: who goes when a memory is full, what is said of it, and that it is durable."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
from durable import FOLDER, PREFIX, Store, on_loop, reloaded, state
from faulty_files import FaultyFiles
from harness import DAY, JUNE, SECOND, Clock, Running, Wire
from recalld.index.settings import Settings
from recalld.server.entries import Create, Entry, decode
from recalld.server.portable_lines import About, about_line, fields_of, read_about

WEEK = 7 * DAY


def create(wire: Wire, *options: Any, key: str = "k") -> None:
    wire("MEM.CREATE", key, "MODE", "SEARCH", *options)


def add(wire: Wire, record_id: str, *options: Any, text: str = "text", key: str = "k") -> None:
    wire("MEM.ADD", key, "ID", record_id, "TEXT", text, *options)


def ids(wire: Wire, key: str = "k") -> str:
    """The ids there are, one letter each, in the order of first writing."""
    return b"".join(wire("MEM.SCAN", key, 0, "COUNT", 1000)[1]).decode()


def who(wire: Wire, *options: Any) -> str:
    """Whom MEM.EVICT names."""
    return b"".join(each[b"id"] for each in wire("MEM.EVICT", "k", *options)).decode()


FULL = "ERR memory index is full at MAXRECORDS ({})"


# Who goes


def test_the_oldest_goes_where_all_else_is_equal(wire3: Wire, clock: Clock) -> None:
    create(wire3, "MAXRECORDS", 3)
    for letter in "abcd":
        add(wire3, letter)
        clock.advance(SECOND)
    assert ids(wire3) == "bcd"


def test_importance_against_age(wire3: Wire, clock: Clock) -> None:
    """A week old and 1.0 is (1 + 0.5) / 3, new and 0.4 is (0.4 + 1) / 3, new and 0.6 is (0.6 + 1) / 3."""
    create(wire3, "MAXRECORDS", 3)
    add(wire3, "a", "IMPORTANCE", 1)
    clock.advance(WEEK)
    add(wire3, "b", "IMPORTANCE", 0.4)
    add(wire3, "c", "IMPORTANCE", 0.6)
    found = wire3("MEM.EVICT", "k", "COUNT", 9, "DRYRUN")
    assert [each[b"id"] for each in found] == [b"b", b"a", b"c"]
    assert [each[b"retention"] for each in found] == pytest.approx([1.4 / 3, 1.5 / 3, 1.6 / 3], abs=1e-12)
    add(wire3, "d")
    assert ids(wire3) == "acd"


@pytest.mark.parametrize(
    "query",
    [
        ("MEM.SEARCH", "k", "apple", "TOPK", 1),
        ("MEM.QUERY", "k", "TEXT", "apple", "TOPK", 1),
        ("MEM.QUERY", "other", "TEXT", "apple", "TOPK", 1, "ACROSS", 1, "k"),
    ],
)
def test_what_queries_return_is_worth_more(wire3: Wire, clock: Clock, query: tuple[Any, ...]) -> None:
    """One use is (0.5 + 1 + 0.5) / 3. What is not on the page was not returned."""
    create(wire3, "MAXRECORDS", 3)
    create(wire3, key="other")
    add(wire3, "a", text="apple apple")
    for letter in "bc":
        clock.advance(SECOND)
        add(wire3, letter, text="an apple among many other things")
    assert who(wire3, "DRYRUN", "COUNT", 3) == "abc"
    wire3(*query)
    assert who(wire3, "DRYRUN", "COUNT", 3) == "bca"
    (found,) = [each for each in wire3("MEM.EVICT", "k", "COUNT", 3, "DRYRUN") if each[b"id"] == b"a"]
    assert found[b"use"] == 0.5


def test_what_a_recall_returns_is_worth_more(wire3: Wire, clock: Clock) -> None:
    create(wire3, "MAXRECORDS", 3)
    wire3("MEM.FACT", "k", "ann", "likes", "tea", "ID", "a")
    clock.advance(SECOND)
    wire3("MEM.FACT", "k", "bob", "likes", "milk", "ID", "b")
    wire3("MEM.RECALL", "k", "TEXT", "ann", "FACTS", 1)
    assert who(wire3, "DRYRUN", "COUNT", 3) == "ba"


@pytest.mark.parametrize(
    "command", [("MEM.GET", "k", "a"), ("MEM.LIST", "k"), ("MEM.EXPLAIN", "k", "a", "TEXT", "text")]
)
def test_looking_at_a_record_is_no_use(wire3: Wire, clock: Clock, command: tuple[Any, ...]) -> None:
    create(wire3, "MAXRECORDS", 3)
    add(wire3, "a")
    clock.advance(SECOND)
    add(wire3, "b")
    wire3(*command)
    assert who(wire3, "DRYRUN", "COUNT", 3) == "ab"


def test_a_client_may_query_without_leaving_a_trace(wire3: Wire, clock: Clock) -> None:
    create(wire3, "MAXRECORDS", 3)
    add(wire3, "a", text="apple")
    clock.advance(SECOND)
    add(wire3, "b", text="pear")
    wire3("CLIENT", "NO-TOUCH", "ON")
    wire3("MEM.SEARCH", "k", "apple")
    assert who(wire3, "DRYRUN", "COUNT", 3) == "ab"
    wire3("CLIENT", "NO-TOUCH", "OFF")
    wire3("MEM.SEARCH", "k", "apple")
    assert who(wire3, "DRYRUN", "COUNT", 3) == "ba"


def test_uses_that_a_thread_finds_are_counted(running: Any) -> None:
    """Before the reply is there."""
    server = running(clock=Clock())
    wire = server.wire(3)
    wire("MEM.CREATE", "k", "DIM", 512, "MAXRECORDS", 5000)
    for start in range(0, 4000, 500):
        records: list[Any] = []
        for number in range(start, start + 500):
            vector = b"\0\0\x80\x3f" * (1 + number % 511) + b"\0\0\0\0" * (511 - number % 511)
            records += ["RECORD", "TEXT", "t", "VEC", vector]
        wire("MEM.MADD", "k", 500, *records)
    (hit,) = wire("MEM.VSEARCH", "k", "VEC", b"\0\0\x80\x3f" * 512, "TOPK", 1)
    memory = server.server.keyspace.memories[b"k"]
    slot = memory.slot(hit[b"id"])
    assert on_loop(server, lambda: memory.table.uses.last(slot)) == JUNE


def test_pinned_records_stay(wire3: Wire, clock: Clock) -> None:
    create(wire3, "MAXRECORDS", 3)
    add(wire3, "a", "PIN", "IMPORTANCE", 0)
    for letter in "bcde":
        clock.advance(SECOND)
        add(wire3, letter)
    assert ids(wire3) == "ade"
    add(wire3, "d", "PIN")
    add(wire3, "e", "PIN")
    assert wire3.error("MEM.ADD", "k", "TEXT", "t") == FULL.format(3)
    assert who(wire3, "COUNT", 3) == ""
    assert ids(wire3) == "ade"
    add(wire3, "e", text="replaced all the same")
    wire3("MEM.DEL", "k", "a")
    add(wire3, "f")
    assert ids(wire3) == "def"


def test_facts_and_episodes_are_records(wire3: Wire, clock: Clock) -> None:
    create(wire3, "MAXRECORDS", 3)
    wire3("MEM.FACT", "k", "ann", "likes", "tea", "ID", "a")
    clock.advance(SECOND)
    add(wire3, "b", "KIND", "EPISODE")
    clock.advance(SECOND)
    wire3("MEM.FACT", "k", "ann", "likes", "milk", "ID", "c")
    clock.advance(SECOND)
    wire3("MEM.FACT", "k", "ann", "likes", "bread", "ID", "d")
    assert ids(wire3) == "bcd"
    wire3("MEM.FACT", "k", "ann", "likes", "honey", "ID", "e")
    assert ids(wire3) == "cde"
    assert wire3("MEM.FACTS", "k")[0] == 3


def test_the_fact_that_is_superseded_stays(wire3: Wire, clock: Clock) -> None:
    create(wire3, "MAXRECORDS", 2)
    wire3("MEM.FACT", "k", "ann", "lives in", "rome", "ID", "a")
    clock.advance(SECOND)
    wire3("MEM.FACT", "k", "ann", "likes", "tea", "ID", "b")
    wire3("MEM.FACT", "k", "ann", "lives in", "oslo", "ID", "c", "SUPERSEDES", "a")
    assert ids(wire3) == "ac"
    assert wire3("MEM.GET", "k", "a", "WITHFACT")[b"fact"][b"superseded_by"] == b"c"
    wire3("MEM.CONFIG", "k", "MAXRECORDS", 1)
    wire3("MEM.DEL", "k", "c")
    assert wire3.error("MEM.FACT", "k", "ann", "lives in", "bonn", "SUPERSEDES", "a") == FULL.format(1)


def test_restating_a_fact_needs_no_room(wire3: Wire) -> None:
    create(wire3, "MAXRECORDS", 1)
    wire3("MEM.FACT", "k", "ann", "likes", "tea", "ID", "a", "CONFIDENCE", 0.5)
    assert wire3("MEM.FACT", "k", "ann", "likes", "tea", "CONFIDENCE", 0.9) == b"a"
    assert ids(wire3) == "a"


def test_records_that_are_not_valid_now_count_and_go(wire3: Wire, clock: Clock) -> None:
    create(wire3, "MAXRECORDS", 2)
    add(wire3, "a", "VALIDAT", JUNE + DAY)
    clock.advance(SECOND)
    add(wire3, "b")
    clock.advance(SECOND)
    add(wire3, "c")
    assert ids(wire3) == "bc"


def test_expired_records_make_room(wire3: Wire, clock: Clock) -> None:
    create(wire3, "MAXRECORDS", 2)
    add(wire3, "a")
    add(wire3, "b", "TTL", 1)
    clock.advance(SECOND)
    add(wire3, "c")
    assert ids(wire3) == "ac"


# Batches


def test_a_batch_evicts_what_it_needs_and_nothing_of_its_own(wire3: Wire, clock: Clock) -> None:
    create(wire3, "MAXRECORDS", 4)
    for letter in "abcd":
        add(wire3, letter)
        clock.advance(SECOND)
    batch = ("RECORD", "ID", "e", "TEXT", "t", "IMPORTANCE", 0, "RECORD", "ID", "f", "TEXT", "t", "IMPORTANCE", 0)
    wire3("MEM.MADD", "k", 2, *batch)
    assert ids(wire3) == "cdef"


def test_a_batch_that_replaces_keeps_what_it_replaces(wire3: Wire, clock: Clock) -> None:
    create(wire3, "MAXRECORDS", 3)
    for letter in "abc":
        add(wire3, letter)
        clock.advance(SECOND)
    wire3("MEM.MADD", "k", 2, "RECORD", "ID", "a", "TEXT", "again", "RECORD", "ID", "d", "TEXT", "t")
    assert ids(wire3) == "acd"


def test_a_batch_beyond_the_limit_is_refused_whole(wire3: Wire) -> None:
    create(wire3, "MAXRECORDS", 2)
    add(wire3, "a")
    batch = [word for number in range(3) for word in ("RECORD", "TEXT", str(number))]
    assert wire3.error("MEM.MADD", "k", 3, *batch) == FULL.format(2)
    assert ids(wire3) == "a"
    assert wire3("MEM.INFO", "k")[b"next_id"] == 1
    # The same id thrice is one record.
    wire3("MEM.MADD", "k", 3, *(["RECORD", "ID", "b", "TEXT", "t"] * 3))
    assert ids(wire3) == "ab"


def test_exec_is_one_command_after_another(wire3: Wire) -> None:
    create(wire3, "MAXRECORDS", 2)
    replies = wire3.pipeline(
        ("MULTI",), *(("MEM.ADD", "k", "ID", letter, "TEXT", "t") for letter in "abc"), ("MEM.CARD", "k"), ("EXEC",)
    )
    assert replies[-1] == [b"a", b"b", b"c", 2]
    assert ids(wire3) == "bc"


def test_mem_max_records_refuses_as_ever(wire3: Wire) -> None:
    create(wire3, "MAXRECORDS", 2)
    wire3("CONFIG", "SET", "mem-max-records", 2)
    add(wire3, "a")
    add(wire3, "b")
    assert wire3.error("MEM.ADD", "k", "TEXT", "t") == "ERR memory index is full at mem-max-records (2)"
    assert ids(wire3) == "ab"


# Bytes


def test_bytes_are_those_of_what_was_written(wire3: Wire) -> None:
    """Id, text, vector, fields and values, tags; of a fact its text and its quote."""
    wire3("MEM.CREATE", "k", "DIM", 2, "MAXBYTES", 10_000)
    options = ("FVEC", 2, 1, 0, "META", "field", "value", "TAGS", 2, "a", "bc")
    wire3("MEM.ADD", "k", "ID", "id", "TEXT", "12345", *options)
    first = 2 + 5 + 8 + 10 + 3
    assert wire3("MEM.INFO", "k")[b"record_bytes"] == first
    wire3("MEM.FACT", "k", "ann", "likes", "tea", "ID", "f", "QUOTE", "she said", "EPISODE", "id")
    assert wire3("MEM.INFO", "k")[b"record_bytes"] == first + 1 + len("ann likes tea") + len("she said")
    wire3("MEM.DEL", "k", "id")
    assert wire3("MEM.INFO", "k")[b"record_bytes"] == 1 + len("ann likes tea") + len("she said")


def test_as_many_go_as_the_bytes_need(wire3: Wire, clock: Clock) -> None:
    create(wire3, "MAXBYTES", 40)
    for letter in "abcd":
        add(wire3, letter, text="x" * 9)
        clock.advance(SECOND)
    add(wire3, "e", text="x" * 10)
    assert ids(wire3) == "cde"
    add(wire3, "f", text="x" * 39)
    assert ids(wire3) == "f"
    assert wire3.error("MEM.ADD", "k", "ID", "g", "TEXT", "x" * 40) == "ERR memory index is full at MAXBYTES (40)"
    assert wire3.error("MEM.ADD", "k", "ID", "f", "TEXT", "x" * 40) == "ERR memory index is full at MAXBYTES (40)"
    assert ids(wire3) == "f"


def test_replacing_by_more_and_metadata_need_room_too(wire3: Wire, clock: Clock) -> None:
    create(wire3, "MAXBYTES", 30)
    for letter in "abc":
        add(wire3, letter, text="x" * 9)
        clock.advance(SECOND)
    add(wire3, "a", text="x" * 9)
    assert ids(wire3) == "abc"
    add(wire3, "a", text="x" * 10)
    assert ids(wire3) == "ac"
    wire3("MEM.SETMETA", "k", "a", "field", "value")
    assert ids(wire3) == "a"
    assert wire3.error("MEM.SETMETA", "k", "a", "field", "v" * 20) == "ERR memory index is full at MAXBYTES (30)"
    assert wire3("MEM.GET", "k", "a", "WITHMETA")[b"meta"] == {b"field": b"value"}
    wire3("MEM.DELMETA", "k", "a", "field")
    assert wire3("MEM.INFO", "k")[b"record_bytes"] == 11


def test_history_counts_for_nothing_and_goes_with_the_record(wire3: Wire, clock: Clock) -> None:
    create(wire3, "MAXBYTES", 25, "HISTORY", "ALL")
    for text in ("first 1", "first 2", "first 3"):
        add(wire3, "a", text=text)
        clock.advance(SECOND)
    assert wire3("MEM.INFO", "k")[b"record_bytes"] == 8
    add(wire3, "b", text="x" * 20)
    assert ids(wire3) == "b"
    assert wire3("MEM.SEARCH", "k", "first", "ASOF", JUNE) == []


def test_both_limits_hold(wire3: Wire, clock: Clock) -> None:
    create(wire3, "MAXBYTES", 20, "MAXRECORDS", 3)
    for letter in "abcd":
        add(wire3, letter, text="x")
        clock.advance(SECOND)
    assert ids(wire3) == "bcd"
    add(wire3, "e", text="x" * 16)
    assert ids(wire3) == "de"


# Settings


def test_options_and_map(wire3: Wire) -> None:
    create(wire3, "MAXRECORDS", 3, "MAXBYTES", 2**40)
    found = wire3("MEM.CONFIG", "k")
    assert (found[b"maxrecords"], found[b"maxbytes"]) == (3, 2**40)
    assert wire3("MEM.CONFIG", "k", "MAXBYTES", 0) == "OK"
    found = wire3("MEM.CONFIG", "k")
    assert (found[b"maxrecords"], found[b"maxbytes"]) == (3, 0)
    create(wire3, key="free")
    found = wire3("MEM.CONFIG", "free")
    assert (found[b"maxrecords"], found[b"maxbytes"]) == (0, 0)


def test_a_lower_limit_leaves_the_records_until_the_next_write(wire3: Wire, clock: Clock) -> None:
    create(wire3)
    for letter in "abcdef":
        add(wire3, letter)
        clock.advance(SECOND)
    wire3("MEM.CONFIG", "k", "MAXRECORDS", 3)
    assert ids(wire3) == "abcdef"
    add(wire3, "a")
    assert ids(wire3) == "abcdef"
    add(wire3, "g")
    assert ids(wire3) == "afg"


def test_a_much_lower_limit_is_come_down_to_by_a_thousand_a_write(wire3: Wire) -> None:
    create(wire3)
    for _ in range(5):
        wire3("MEM.MADD", "k", 500, *(["RECORD", "TEXT", "t"] * 500))
    wire3("MEM.CONFIG", "k", "MAXRECORDS", 10)
    sizes = []
    for _ in range(4):
        wire3("MEM.ADD", "k", "TEXT", "t")
        sizes.append(wire3("MEM.CARD", "k"))
    assert sizes == [1501, 502, 10, 10]


def test_the_settings_travel(wire3: Wire) -> None:
    create(wire3, "MAXRECORDS", 2, "MAXBYTES", 1000)
    add(wire3, "a")
    payload = wire3("DUMP", "k")
    wire3("RESTORE", "twin", 0, payload)
    assert wire3("DUMP", "twin") == payload
    wire3("COPY", "k", "copy")
    for key in ("twin", "copy"):
        assert wire3("MEM.CONFIG", key) == wire3("MEM.CONFIG", "k")
        add(wire3, "b", key=key)
        add(wire3, "c", key=key)
        assert ids(wire3, key) == "bc"
        assert wire3("MEM.INFO", key)[b"record_bytes"] == 10
    assert ids(wire3) == "a"


# MEM.EVICT


def test_evict(wire3: Wire, clock: Clock) -> None:
    """Also in a memory without a limit."""
    create(wire3)
    for letter in "abc":
        add(wire3, letter)
        clock.advance(SECOND)
    assert who(wire3, "DRYRUN") == "a"
    assert who(wire3, "COUNT", 2, "DRYRUN") == "ab"
    assert ids(wire3) == "abc"
    assert who(wire3) == "a"
    assert ids(wire3) == "bc"
    assert who(wire3, "COUNT", 1000) == "bc"
    assert wire3("MEM.EVICT", "k") == []
    assert b"evicted_records:" in wire3("INFO", "stats")


def test_evict_shows_what_it_goes_by(server: Running, wire: Wire, wire3: Wire) -> None:
    create(wire)
    add(wire, "a", "IMPORTANCE", 0.75)
    parts = {b"id": b"a", b"retention": 1.75 / 3, b"importance": 0.75, b"recency": 1.0, b"use": 0.0}
    assert wire3("MEM.EVICT", "k", "DRYRUN") == [parts]
    (flat,) = wire("MEM.EVICT", "k", "DRYRUN")
    assert flat[::2] == list(parts)


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("k", "COUNT", 0), "ERR COUNT must be between 1 and 1000"),
        (("k", "COUNT", 1001), "ERR COUNT must be between 1 and 1000"),
        (("k", "COUNT"), "ERR syntax error"),
        (("k", "COUNT", "x"), "ERR value is not an integer or out of range"),
        (("k", "DRY"), "ERR unexpected argument 'DRY'"),
        (("nobody",), "ERR no such memory index"),
        (("nobody", "DRY"), "ERR unexpected argument 'DRY'"),
        ((), "ERR wrong number of arguments for 'mem.evict' command"),
    ],
)
def test_evict_errors(wire: Wire, words: tuple[Any, ...], error: str) -> None:
    create(wire)
    assert wire.error("MEM.EVICT", *words) == error


# What others see of it


def test_evictions_are_announced_and_counted(server: Running, wire3: Wire, clock: Clock) -> None:
    before = server.server.stats.evicted_records
    reader = server.wire()
    reader("SUBSCRIBE", "__mem__:k")
    create(wire3, "MAXRECORDS", 2)
    for letter in "abc":
        add(wire3, letter)
        clock.advance(SECOND)
    wire3("MEM.EVICT", "k", "DRYRUN")
    wire3("MEM.EVICT", "k")
    wire3("PUBLISH", "__mem__:k", "the end")
    seen = []
    while (message := reader.read()[2]) != b"the end":
        seen.append(message)
    assert seen == [b"add a", b"add b", b"evict a", b"add c", b"evict b"]
    assert server.server.stats.evicted_records - before == 2
    reader.close()


def test_who_watches_the_key_sees_it_change(server: Running, wire3: Wire) -> None:
    create(wire3)
    add(wire3, "a")
    other = server.wire()
    other("WATCH", "k")
    wire3("MEM.EVICT", "k")
    other("MULTI")
    other("PING")
    assert other("EXEC") is None
    other.close()


# Durability


def scenario(wire: Wire, clock: Clock) -> None:
    wire("MEM.CREATE", "k", "MODE", "SEARCH", "MAXRECORDS", 3, "HISTORY", 3600)
    wire("MEM.CREATE", "b", "MODE", "SEARCH", "MAXBYTES", 60)
    for number in range(6):
        clock.advance(SECOND)
        wire("MEM.ADD", "k", "TEXT", f"number {number}", "IMPORTANCE", number % 3 / 2)
        wire("MEM.ADD", "b", "TEXT", f"number {number}", "META", "f", "v" * number)
    wire("MEM.SEARCH", "k", "number 3")
    wire("MEM.MADD", "k", 2, "RECORD", "TEXT", "one", "RECORD", "TEXT", "two")
    wire("MEM.FACT", "k", "ann", "likes", "tea", "TYPE", "FOOD")
    wire("MEM.SETMETA", "b", "6", "g", "w" * 20)
    wire("MEM.EVICT", "k")


def test_a_restart_decides_nothing(tmp_path: Path) -> None:
    clock = Clock()
    with Running(clock=clock, dir=tmp_path) as server:
        wire = server.wire(3)
        scenario(wire, clock)
        before = on_loop(server, lambda: state(server.server.keyspace))
        server.restart()
        assert on_loop(server, lambda: state(server.server.keyspace)) == before
        wire = server.wire(3)
        assert wire("MEM.CONFIG", "k")[b"maxrecords"] == 3
        wire("SAVE")
        server.restart()
        assert on_loop(server, lambda: state(server.server.keyspace)) == before
        wire = server.wire(3)
        assert wire("MEM.CONFIG", "b")[b"maxbytes"] == 60


def test_a_write_and_what_went_for_it_are_whole_or_absent() -> None:
    """The log cut at any byte of a group, and at some of the others."""
    clock = Clock()
    groups: list[list[Entry]] = []
    with Running(clock=clock) as server:
        server.server.log.append = groups.append
        scenario(server.wire(3), clock)
    assert sum(len(group) > 1 for group in groups) >= 6
    files = FaultyFiles()
    store = Store(files)
    tail = f"{FOLDER}/{PREFIX}.1.incr.aof"
    ends = [len(files.image()[tail])]
    for group in groups:
        store.commit(group)
        store.settle()
        ends.append(len(files.image()[tail]))
    store.close()
    image = files.image()
    data, rng = image[tail], Random(1)
    inside = {size for at, group in enumerate(groups) if len(group) > 1 for size in range(ends[at], ends[at + 1])}
    for size in range(ends[0], len(data)):
        if rng.random() < (0.3 if size in inside else 0.05):
            disk = FaultyFiles()
            for path, content in image.items():
                disk.put(path, content[:size] if path == tail else content)
            assert reloaded(disk) in store.states


@pytest.mark.parametrize("limits", [{}, {"max_records": 3}, {"max_bytes": 2**40}, {"max_records": 1, "max_bytes": 1}])
def test_an_export_has_the_limits(limits: dict[str, int]) -> None:
    about = About(b"k", Settings(mode="SEARCH", **limits), 1, JUNE, None)
    line = about_line(about)
    assert read_about(fields_of(line)) == about
    assert [name for name in ("maxrecords", "maxbytes") if name.encode() in line] == [
        name.replace("_", "") for name in limits
    ]


def test_a_log_of_before_there_were_limits() -> None:
    """Its settings have fewer words at the end."""
    settings = Settings(mode="SEARCH", owner="ann")
    words = Create(b"k", settings, JUNE).encode()
    assert decode([*words[:-3], words[-1]]) == Create(b"k", settings, JUNE)
    limited = Create(b"k", Settings(mode="SEARCH", max_records=3, max_bytes=4), JUNE)
    assert decode(limited.encode()) == limited


def random_write(rng: Random) -> tuple[Any, ...]:
    """Any command that writes records, on few ids."""
    record_id = f"r{rng.randrange(12)}"
    some = [word for _ in range(rng.randrange(1, 9)) for word in ("RECORD", "ID", f"r{rng.randrange(12)}", "TEXT", "t")]
    fact_id, subject, thing = f"f{rng.randrange(6)}", rng.choice(("ann", "bob")), f"thing {rng.randrange(4)}"
    options: list[Any] = rng.choice(
        ([], ["PIN"], ["PIN"], ["TTL", 3], ["VALIDAT", JUNE + DAY], ["IMPORTANCE", rng.random()])
    )
    writes: list[tuple[Any, ...]] = [
        ("MEM.ADD", "k", "ID", record_id, "TEXT", "word " * rng.randrange(1, 9), *options),
        ("MEM.ADD", "k", "TEXT", "word " * rng.randrange(1, 9)),
        ("MEM.MADD", "k", len(some) // 5, *some),
        ("MEM.DEL", "k", record_id, fact_id),
        ("MEM.SETMETA", "k", record_id, "field", "v" * rng.randrange(30)),
        ("MEM.EXPIRE", "k", record_id, 2),
        ("MEM.FACT", "k", subject, "likes", thing, "ID", fact_id, "QUOTE", "q" * rng.randrange(9)),
        ("MEM.FACT", "k", subject, "likes", thing, "TYPE", "FOOD", "SUPERSEDES", fact_id),
        ("MEM.INVALIDATE", "k", fact_id),
        ("MEM.ENTITY", "k", thing, "TYPE", "FOOD", "MERGE", f"thing {rng.randrange(4)}"),
        ("MEM.EVICT", "k", "COUNT", rng.randrange(1, 3)),
        ("MEM.FORGET", "k", "FILTER", "@id", "EQ", record_id),
        ("MEM.SEARCH", "k", "word"),
        ("MEM.RECALL", "k", "TEXT", subject),
    ]
    return rng.choice(writes)


@pytest.mark.parametrize("history", [0, 5, "ALL"])
@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_written_the_limits_hold(seed: int, history: object) -> None:
    """And what is counted is what there is, and a replay gives the same."""
    clock, rng = Clock(), Random(seed)
    groups: list[list[Entry]] = []
    refused = evicted = 0
    with Running(clock=clock) as server:
        server.server.log.append = groups.append
        wire = server.wire(3)
        wire("MEM.CREATE", "k", "MODE", "SEARCH", "MAXRECORDS", 5, "MAXBYTES", 200, "HISTORY", history)
        memory = server.server.keyspace.memories[b"k"]
        for _ in range(400):
            (reply,) = wire.pipeline(random_write(rng))
            assert "internal" not in str(reply)
            refused += str(reply).startswith("ERR memory index is full")
            wire("MEM.CARD", "k")
            held, size = on_loop(server, lambda: (memory.held, memory.record_bytes))
            # Facts that are reworded, by a merge or because another supersedes them, count from the next write on.
            assert held <= 5 and size <= 200 + 30
            counted = on_loop(server, lambda: sum(memory.bytes_of(each) for each in memory.current_ids()))
            assert size == counted
            clock.advance(rng.choice((0, 0, 300, SECOND)))
            if rng.random() < 0.01:
                wire("MEM.FORGET", "k", "FILTER", "@id", "PREFIX", "r")  # the pinned ones too
        evicted = server.server.stats.evicted_records
        wire("MEM.CARD", "k")
        wanted = on_loop(server, lambda: state(server.server.keyspace))
    assert (refused > 0, evicted > 30) == (True, True), (refused, evicted)
    store = Store(FaultyFiles())
    for group in groups:
        store.commit(group)
    store.keyspace.get(b"k", clock.now_ms)
    assert store.state == wanted
    store.close()
