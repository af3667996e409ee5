"""Validity, HISTORY, ASOF and KNOWNAT as clients meet them."""

from __future__ import annotations

import pytest
from harness import DAY, JUNE, SECOND, Clock, Wire, Word, flat_pairs


@pytest.fixture
def ns(wire: Wire) -> Wire:
    wire("MEM.CREATE", "ns", "MODE", "SEARCH", "HISTORY", "ALL")
    return wire


def found(wire: Wire, *words: Word) -> list[bytes]:
    return [hit[0] for hit in wire("MEM.SEARCH", "ns", "alpha", "NOTEXT", *words)]


def test_a_record_with_validity_comes_and_goes_by_itself(ns: Wire, clock: Clock) -> None:
    """No read finds it before its day or after its end, but those that ignore validity; nothing is announced."""
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha", "VALIDAT", JUNE + 1_000, "VALIDUNTIL", JUNE + 2_000)
    ns("MEM.ADD", "ns", "ID", "b", "TEXT", "alpha beta")
    for passed, there in ((0, [b"b"]), (999, [b"b"]), (1, [b"a", b"b"]), (999, [b"a", b"b"]), (1, [b"b"])):
        clock.advance(passed)
        assert sorted(found(ns)) == there
        assert ns("MEM.CARD", "ns") == len(there)
        assert len(ns("MEM.LIST", "ns")) == len(there)
        assert sorted(ns("MEM.SCAN", "ns", 0)[1]) == [b"a", b"b"]
        held = flat_pairs(ns("MEM.GET", "ns", "a"))
        assert (held[b"valid_at"], held[b"valid_until"]) == (b"%d" % (JUNE + 1_000), b"%d" % (JUNE + 2_000))
        reason = flat_pairs(ns("MEM.EXPLAIN", "ns", "a", "TEXT", "alpha")).get(b"reason")
        assert reason == (None if b"a" in there else b"not valid then")
    assert sorted(found(ns, "ASOF", JUNE + 1_500)) == [b"a", b"b"]
    assert ns("MEM.DEL", "ns", "a", "b") == 2


def test_no_score_knows_of_what_is_not_valid(ns: Wire) -> None:
    """Scores are those of a memory without it."""
    ns("MEM.ADD", "ns", "ID", "b", "TEXT", "alpha beta")
    before = ns("MEM.SEARCH", "ns", "alpha", "WITHSCORES")
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha", "VALIDAT", JUNE + 1)
    assert ns("MEM.SEARCH", "ns", "alpha", "WITHSCORES") == before


def test_replaced_and_deleted_versions(ns: Wire, clock: Clock) -> None:
    """A note shows from its writing until it was replaced or deleted; MEM.GET never shows an old version."""
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha one")
    clock.advance(1_000)
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha two")
    clock.advance(1_000)
    ns("MEM.DEL", "ns", "a")
    clock.advance(1_000)
    assert ns("MEM.GET", "ns", "a") is None
    texts = [ns("MEM.SEARCH", "ns", "alpha", "ASOF", JUNE + at) for at in (-1, 0, 999, 1_000, 1_999, 2_000)]
    one, two = [[b"a", b"alpha one"]], [[b"a", b"alpha two"]]
    assert texts == [[], one, one, two, two, []]
    assert flat_pairs(ns("MEM.EXPLAIN", "ns", "a", "TEXT", "alpha", "ASOF", JUNE))[b"rank"] == 1
    assert flat_pairs(ns("MEM.EXPLAIN", "ns", "a", "TEXT", "alpha", "ASOF", JUNE - 1))[b"reason"] == b"absent"
    assert flat_pairs(ns("MEM.EXPLAIN", "ns", "a", "TEXT", "alpha"))[b"reason"] == b"absent"


def test_forgotten_is_forgotten_in_the_past_as_well(ns: Wire, clock: Clock) -> None:
    """MEM.FORGET takes every version of what it names, and those of records that were deleted before."""
    for record_id in ("gone", "kept"):
        ns("MEM.ADD", "ns", "ID", record_id, "TEXT", "alpha", "META", "who", record_id)
    clock.advance(1_000)
    ns("MEM.ADD", "ns", "ID", "kept", "TEXT", "alpha again")
    ns("MEM.DEL", "ns", "gone")
    assert found(ns, "ASOF", JUNE) == [b"gone", b"kept"]
    assert ns("MEM.FORGET", "ns", "FILTER", "who", "EQ", "gone", "DRYRUN") == [0, []]
    assert found(ns, "ASOF", JUNE) == [b"gone", b"kept"]
    assert ns("MEM.FORGET", "ns", "FILTER", "who", "EQ", "gone") == [0, []]
    assert found(ns, "ASOF", JUNE) == [b"kept"]
    assert ns("MEM.FORGET", "ns", "FILTER", "who", "EQ", "kept") == [1, [b"kept"]]
    assert found(ns, "ASOF", JUNE) == []


def test_expired_is_gone_from_the_past_as_well(ns: Wire, clock: Clock) -> None:
    """Also where it was deleted before its deadline."""
    for record_id in "ab":
        ns("MEM.ADD", "ns", "ID", record_id, "TEXT", "alpha", "TTL", 10)
    clock.advance(1_000)
    ns("MEM.DEL", "ns", "a")
    assert found(ns, "ASOF", JUNE) == [b"a", b"b"]
    clock.advance(9_000)
    assert found(ns, "ASOF", JUNE) == []


def test_history_begins_when_it_is_asked_for(wire: Wire, clock: Clock) -> None:
    """Without HISTORY a note counts from its writing as it is now; what ended before is not there."""
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    wire("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha one")
    clock.advance(1_000)
    wire("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha two")
    assert found(wire, "ASOF", JUNE) == []
    assert found(wire, "ASOF", JUNE + 1_000) == [b"a"]
    clock.advance(1_000)
    wire("MEM.CONFIG", "ns", "HISTORY", 10)
    assert flat_pairs(wire("MEM.CONFIG", "ns"))[b"history"] == 10
    clock.advance(1_000)
    wire("MEM.DEL", "ns", "a")
    clock.advance(9_999)
    assert found(wire, "ASOF", JUNE + 2_999) == [b"a"]
    clock.advance(1)
    assert found(wire, "ASOF", JUNE + 2_999) == []
    wire("MEM.CONFIG", "ns", "HISTORY", "all")
    assert flat_pairs(wire("MEM.CONFIG", "ns"))[b"history"] == b"ALL"


def test_settings_of_then(ns: Wire, clock: Clock) -> None:
    """Under KNOWNAT the memory's settings are those of its time, under ASOF alone today's."""
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha beta beta")
    query = ("MEM.QUERY", "ns", "TEXT", "alpha", "WITHSCORES")
    then = ns.raw(*query)
    clock.advance(DAY)
    ns("MEM.CONFIG", "ns", "WEIGHTS", 1, 0, 0, 3, "HALFLIFE", 60)
    assert ns.raw(*query, "ASOF", JUNE, "KNOWNAT", JUNE) == then
    assert ns.raw(*query, "ASOF", JUNE) != then


def test_what_an_import_writes_lies_in_the_past(ns: Wire, clock: Clock) -> None:
    """AT is the time of writing, also for what was known when; one in the future is known from the command on."""
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha", "AT", JUNE - DAY)
    assert found(ns, "ASOF", JUNE - DAY, "KNOWNAT", JUNE - DAY) == [b"a"]
    ns("MEM.ADD", "ns", "ID", "b", "TEXT", "alpha", "AT", JUNE + DAY)
    assert sorted(found(ns, "ASOF", JUNE, "KNOWNAT", JUNE)) == [b"a", b"b"]
    clock.advance(SECOND)
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha first", "AT", JUNE - 2 * DAY)
    assert ns("MEM.SEARCH", "ns", "alpha", "ASOF", JUNE - DAY) == [[b"a", b"alpha first"]]


def test_kind_and_pin_are_kept(ns: Wire) -> None:
    """What a command does not name stays; filters see the kind."""
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha", "KIND", "episode", "PIN")
    ns("MEM.ADD", "ns", "ID", "b", "TEXT", "alpha")
    ns("MEM.ADD", "ns", "ID", "a", "TEXT", "alpha again")
    assert flat_pairs(ns("MEM.GET", "ns", "a"))[b"kind"] == b"episode"
    assert b"kind" not in flat_pairs(ns("MEM.GET", "ns", "b"))
    assert found(ns, "FILTER", "@kind", "EQ", "episode") == [b"a"]
    assert found(ns, "FILTER", "@kind", "EQ", "note") == [b"b"]
