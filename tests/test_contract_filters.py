"""Filters, SPEC section 5: every operator on every kind of field, and every command that filters agrees.

The table says which of the records pass. It is read twice: over the few records alone, and among a thousand others,
where a server may keep columns and sets in place of looking at each record.
"""

from __future__ import annotations

import pytest
from harness import DAY, JUNE, Running, Wire, flat_pairs
from hypothesis import example, given
from hypothesis import strategies as st
from oracle import Record, cid, passes, shortest

#: id -> META n, TAGS, IMPORTANCE, AT
RECORDS: dict[str, tuple[str | None, tuple[str, ...], str, int]] = {
    "seven": ("7", ("red", "blue"), "0.7", JUNE),
    "seven0": ("7.0", ("red",), "0.5", JUNE + 1),
    "bond": ("007", ("blue",), "0.5", JUNE + DAY),
    "minus": ("-3.5", (), "0", JUNE - DAY),
    "ten": ("10", ("7",), "1", JUNE + 2 * DAY),
    "exp": ("1e3", ("red", "green"), "0.25", JUNE),
    "word": ("seven", ("Red",), "0.5", JUNE),
    "upper": ("Seven", (), "0.5", JUNE),
    "comma": ("a,b", ("a,b",), "0.5", JUNE),
    "empty": ("", ("",), "0.5", JUNE),
    "long": ("1234567890123456", (), "0.5", JUNE),
    "none": (None, (), "0.5", JUNE),
}
ALL = frozenset(RECORDS)
HAVE_N = ALL - {"none"}
UNTAGGED = {"minus", "upper", "long", "none"}

#: field, operator, value, who passes
TABLE: list[tuple[str, str, str, set[str] | frozenset[str]]] = [
    # plain decimals compare as numbers, all else as bytes
    ("n", "EQ", "7", {"seven", "seven0"}),
    ("n", "EQ", "7.00", {"seven", "seven0"}),
    ("n", "EQ", "007", {"bond"}),
    ("n", "EQ", "+7", set()),
    ("n", "EQ", "7.", set()),
    ("n", "EQ", "1000", set()),
    ("n", "EQ", "1e3", {"exp"}),
    ("n", "EQ", "-3.50", {"minus"}),
    ("n", "EQ", "seven", {"word"}),
    ("n", "EQ", "", {"empty"}),
    ("n", "EQ", "1234567890123456", {"long"}),
    ("n", "EQ", "1234567890123456.0", set()),
    ("n", "NE", "7", ALL - {"seven", "seven0"}),
    ("n", "NE", "seven", ALL - {"word"}),
    ("n", "NE", "nothing", ALL),
    # lists
    ("n", "IN", "7,seven", {"seven", "seven0", "word"}),
    ("n", "IN", "007", {"bond"}),
    ("n", "IN", r"a\,b", {"comma"}),
    ("n", "IN", "a,b", set()),
    ("n", "IN", r"x,a\,b,10", {"comma", "ten"}),
    ("n", "NIN", "7,seven", ALL - {"seven", "seven0", "word"}),
    ("n", "NIN", r"a\,b", ALL - {"comma"}),
    ("absent", "IN", "a,b", set()),
    ("absent", "NIN", "a,b", ALL),
    # order: numbers where both sides are, exponents included; else bytes
    ("n", "GT", "7", {"ten", "exp", "word", "upper", "comma"} | {"long"}),
    ("n", "GTE", "7", {"seven", "seven0", "ten", "exp", "word", "upper", "comma", "long"}),
    ("n", "LT", "7", {"minus", "bond", "empty"}),
    ("n", "LTE", "7", {"seven", "seven0", "minus", "bond", "empty"}),
    ("n", "GTE", "1e1", {"ten", "exp", "word", "upper", "comma", "long"}),
    ("n", "LT", "-1E-1", {"minus", "empty"}),
    ("n", "GT", "b", {"word"}),
    ("n", "LT", "a", {"seven", "seven0", "bond", "minus", "ten", "exp", "upper", "empty", "long"}),
    ("absent", "GT", "", set()),
    ("absent", "LT", "z", set()),
    # parts of a text
    ("n", "CONTAINS", "eve", {"word", "upper"}),
    ("n", "CONTAINS", "", HAVE_N),
    ("n", "CONTAINS", "EVE", set()),
    ("n", "PREFIX", "7", {"seven", "seven0"}),
    ("n", "PREFIX", "sev", {"word"}),
    ("n", "PREFIX", "", HAVE_N),
    ("absent", "CONTAINS", "", set()),
    ("absent", "PREFIX", "", set()),
    # presence
    ("n", "EXISTS", "1", HAVE_N),
    ("n", "EXISTS", "0", {"none"}),
    ("absent", "EXISTS", "0", ALL),
    ("absent", "EXISTS", "1", set()),
    ("N", "EXISTS", "1", set()),
    # reserved fields
    ("@id", "EQ", "seven", {"seven"}),
    ("@id", "IN", "ten,exp,nobody", {"ten", "exp"}),
    ("@id", "NIN", "ten,exp", ALL - {"ten", "exp"}),
    ("@id", "PREFIX", "seven", {"seven", "seven0"}),
    ("@id", "EXISTS", "1", ALL),
    ("@text", "EQ", "text of ten", {"ten"}),
    ("@text", "CONTAINS", "of se", {"seven", "seven0"}),
    ("@text", "PREFIX", "text", ALL),
    ("@cid", "EQ", cid(b"text of ten").decode(), {"ten"}),
    ("@cid", "PREFIX", "bafkrei", ALL),
    ("@importance", "EQ", "0.5", ALL - {"seven", "minus", "ten", "exp"}),
    ("@importance", "EQ", "0.50", ALL - {"seven", "minus", "ten", "exp"}),
    ("@importance", "GT", "0.5", {"seven", "ten"}),
    ("@importance", "LTE", "2.5e-1", {"minus", "exp"}),
    ("@importance", "IN", "0,1", {"minus", "ten"}),
    ("@created_at", "LT", "2026-06-01", {"minus"}),
    ("@created_at", "GTE", "2026-06-02", {"bond", "ten"}),
    ("@created_at", "GT", "2026-06-02T00:00:00Z", {"ten"}),
    ("@updated_at", "EQ", str(JUNE + 1), {"seven0"}),
    ("@updated_at", "EQ", "2026-05-31", {"minus"}),
    ("@updated_at", "IN", "2026-05-31,2026-06-03T00:00:00", {"minus", "ten"}),
    ("@updated_at", "NE", "2026-06-01", {"seven0", "bond", "minus", "ten"}),
    ("@updated_at", "LTE", "2026-06-01T02:00:00.001+02:00", ALL - {"bond", "ten"}),
    ("@kind", "EQ", "note", ALL),
    ("@kind", "EQ", "fact", set()),
    ("@kind", "NE", "fact", ALL),
    ("@valid_at", "EXISTS", "1", set()),
    ("@valid_until", "EXISTS", "0", ALL),
    # tags: any that passes; NE and NIN where none equals
    ("@tags", "EQ", "red", {"seven", "seven0", "exp"}),
    ("@tags", "EQ", "7.0", {"ten"}),
    ("@tags", "EQ", "", {"empty"}),
    ("@tags", "NE", "red", ALL - {"seven", "seven0", "exp"}),
    ("@tags", "IN", "blue,green", {"seven", "bond", "exp"}),
    ("@tags", "IN", r"a\,b", {"comma"}),
    ("@tags", "NIN", "blue,green", ALL - {"seven", "bond", "exp"}),
    ("@tags", "CONTAINS", "re", {"seven", "seven0", "exp"}),
    ("@tags", "PREFIX", "b", {"seven", "bond"}),
    ("@tags", "GT", "green", {"seven", "seven0", "exp"}),
    ("@tags", "EXISTS", "1", ALL - UNTAGGED),
    ("@tags", "EXISTS", "0", UNTAGGED),
]


def fill(wire: Wire) -> None:
    wire("MEM.CREATE", "ns", "DIM", 1)
    for name, (n, tags, importance, at) in RECORDS.items():
        meta = () if n is None else ("META", "n", n)
        words = ("FVEC", 1, 1, *meta, "TAGS", len(tags), *tags, "IMPORTANCE", importance, "AT", at)
        wire("MEM.ADD", "ns", "ID", name, "TEXT", f"text of {name}", *words)


def crowd(wire: Wire, count: int) -> None:
    """Records `~0`, `~1` .. without metadata and tags; their text is not looked for."""
    wire("MEM.MADD", "ns", count, *(w for i in range(count) for w in ("RECORD", "ID", f"~{i}", "TEXT", "crowd")))


@pytest.fixture
def filled(wire: Wire) -> Wire:
    fill(wire)
    return wire


def ids_of(wire: Wire, *clause: str) -> set[str]:
    _, ids = wire("MEM.SCAN", "ns", 0, "COUNT", 10_000, "FILTER", *clause)
    assert len(set(ids)) == len(ids)
    return {record_id.decode() for record_id in ids if not record_id.startswith(b"~")}


@pytest.mark.parametrize(("field", "op", "value", "expected"), TABLE, ids=lambda value: None)
def test_the_table_among_few(filled: Wire, field: str, op: str, value: str, expected: set[str]) -> None:
    assert ids_of(filled, field, op, value) == expected


def test_the_table_by_every_command(filled: Wire) -> None:
    for *clause, expected in TABLE:
        words = ("FILTER", *clause)
        got = {
            "LIST": [flat_pairs(r)[b"id"] for r in filled("MEM.LIST", "ns", *words)],
            "FORGET": filled("MEM.FORGET", "ns", *words, "DRYRUN")[1],
            "SEARCH": [hit[0] for hit in filled("MEM.SEARCH", "ns", "text", "TOPK", 100, *words)],
            "VSEARCH": [hit[0] for hit in filled("MEM.VSEARCH", "ns", "FVEC", 1, 1, "TOPK", 100, *words)],
            "QUERY": [hit[0] for hit in filled("MEM.QUERY", "ns", "TEXT", "text", "TOPK", 100, *words)],
        }
        for command, ids in got.items():
            assert {record_id.decode() for record_id in ids} == expected, (command, clause)
    assert filled("MEM.CARD", "ns") == len(RECORDS), "a dry run forgets nothing"


def test_the_table_among_many(filled: Wire) -> None:
    """As above where a memory is large; also by queries, which filter all records at once."""
    crowd(filled, 1000)
    for *clause, expected in TABLE:
        assert ids_of(filled, *clause) == expected, clause
        hits = filled("MEM.SEARCH", "ns", "text", "TOPK", 100, "NOTEXT", "FILTER", *clause)
        assert {record_id.decode() for (record_id,) in hits} == expected, clause


def test_filters_are_anded(filled: Wire) -> None:
    _, ids = filled(
        "MEM.SCAN", "ns", 0, "FILTER", "n", "GTE", "7", "FILTER", "n", "LT", "100", "FILTER", "@tags", "EQ", "red"
    )
    assert set(ids) == {b"seven", b"seven0"}


def test_operators_in_any_case(filled: Wire) -> None:
    assert ids_of(filled, "n", "gte", "7") == ids_of(filled, "n", "GTE", "7")


def test_a_field_may_be_called_like_an_operator(filled: Wire) -> None:
    filled("MEM.SETMETA", "ns", "none", "EQ", "FILTER", "TAGS", "x")
    assert ids_of(filled, "EQ", "EQ", "FILTER") == {"none"}
    assert ids_of(filled, "TAGS", "EQ", "x") == {"none"}


def test_filters_follow_writes(filled: Wire) -> None:
    """What is added, changed and deleted after a filter has been used is seen by the next."""
    crowd(filled, 1000)
    query = ("MEM.SEARCH", "ns", "text", "TOPK", 100, "NOTEXT", "FILTER", "n", "EQ", "7")
    assert {hit[0] for hit in filled(*query)} == {b"seven", b"seven0"}
    filled("MEM.SETMETA", "ns", "none", "n", "7")
    filled("MEM.SETMETA", "ns", "seven", "n", "8")
    filled("MEM.DEL", "ns", "seven0")
    filled("MEM.ADD", "ns", "ID", "new", "TEXT", "text", "META", "n", "7.0")
    assert {hit[0] for hit in filled(*query)} == {b"none", b"new"}
    filled("MEM.DELMETA", "ns", "none", "n")
    assert {hit[0] for hit in filled(*query)} == {b"new"}


# -- TAGS


@pytest.mark.parametrize(
    ("tests", "expected"),
    [
        ("ANY 1 red", {"seven", "seven0", "exp"}),
        ("ALL 1 red", {"seven", "seven0", "exp"}),
        ("ANY 2 blue green", {"seven", "bond", "exp"}),
        ("ALL 2 red blue", {"seven"}),
        ("ALL 2 blue red", {"seven"}),
        ("ALL 2 red nothing", set()),
        ("ANY 2 red nothing", {"seven", "seven0", "exp"}),
        ("ANY 1 7", {"ten"}),
        ("ANY 1 7.0", set()),
        ("any 1 red TAGS any 2 blue green", {"seven", "exp"}),
        ("ALL 1 red TAGS ALL 1 blue FILTER n EQ 7", {"seven"}),
    ],
)
def test_tags(filled: Wire, tests: str, expected: set[str]) -> None:
    """Tags are names, equal byte for byte; a repeated TAGS is ANDed."""
    words = ("TAGS", *tests.split())
    listed = [flat_pairs(r)[b"id"].decode() for r in filled("MEM.LIST", "ns", *words)]
    assert set(listed) == expected
    assert {hit[0].decode() for hit in filled("MEM.SEARCH", "ns", "text", "TOPK", 100, *words)} == expected
    assert {hit[0].decode() for hit in filled("MEM.VSEARCH", "ns", "FVEC", 1, 1, "TOPK", 100, *words)} == expected
    assert {name.decode() for name in filled("MEM.FORGET", "ns", *words, "DRYRUN")[1]} == expected


# -- MEM.FORGET, MEM.LIST


def test_forget_deletes_all_that_match(wire: Wire) -> None:
    """Never capped: not by MEM.LIST's limit, nor by TOPK's."""
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    wire("MEM.MADD", "ns", 3000, *(w for i in range(3000) for w in ("RECORD", "TEXT", "t", "META", "odd", i % 2)))
    dry = wire("MEM.FORGET", "ns", "FILTER", "odd", "EQ", 1, "DRYRUN")
    assert (dry[0], len(dry[1])) == (1500, 1500)
    assert wire("MEM.CARD", "ns") == 3000
    forgotten = wire("MEM.FORGET", "ns", "FILTER", "odd", "EQ", 1)
    assert (forgotten[0], set(forgotten[1])) == (1500, set(dry[1]))
    assert wire("MEM.CARD", "ns") == 1500
    assert wire("MEM.FORGET", "ns", "FILTER", "odd", "EQ", 1) == [0, []]


def test_list_pages(wire: Wire) -> None:
    """Newest updated_at first, then the smaller id; 20 at a time."""
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    for i in range(50):
        wire("MEM.ADD", "ns", "ID", f"m{i:02}", "TEXT", "t", "AT", JUNE - i % 7)
    expected = [b"m%02d" % i for i in sorted(range(50), key=lambda i: (i % 7, i))]

    def ids(*words: int | str) -> list[bytes]:
        return [record[1] for record in wire("MEM.LIST", "ns", *words)]

    assert ids() == expected[:20]
    assert ids("LIMIT", 1000) == expected
    assert ids("LIMIT", 7, "OFFSET", 21) == expected[21:28]
    assert ids("OFFSET", 45) == expected[45:]
    assert ids("OFFSET", 50) == []
    assert ids("LIMIT", 3, "FILTER", "@id", "GTE", "m25") == [i for i in expected if i >= b"m25"][:3]


# -- against the oracle


VALUES = st.one_of(
    st.sampled_from(
        [b"7", b"7.0", b"007", b"-0", b"0", b"1e3", b"1000", b"-3.5", b"", b"a,b", b"a", b"\xff", b"10", b"9"]
    ),
    st.from_regex(rb"-?[0-9]{1,4}(\.[0-9]{1,3})?([eE][0-9])?", fullmatch=True),
    st.binary(max_size=4),
)
OPERATORS = ("EQ", "NE", "GT", "GTE", "LT", "LTE", "IN", "NIN", "CONTAINS", "PREFIX")


def record_with(value: bytes) -> Record:
    return Record(b"a", value, None, {b"f": value}, (value,), 0.5, JUNE, JUNE, None, {}, 0)


@given(held=VALUES, op=st.sampled_from(OPERATORS), wanted=VALUES)
@example(held=b"9", op="GT", wanted=b"10")
@example(held=b"9x", op="GT", wanted=b"10")
@example(held=b"0", op="EQ", wanted=b"-0")
def test_any_two_values(server: Running, held: bytes, op: str, wanted: bytes) -> None:
    wire = server.wire()
    wire("FLUSHALL")
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    wire("MEM.ADD", "ns", "ID", "a", "TEXT", held, "META", "f", held, "TAGS", 1, held)
    for field in (b"f", b"@tags", b"@text"):
        expected = passes(record_with(held), field, op, wanted)
        assert bool(wire("MEM.SCAN", "ns", 0, "FILTER", field, op, wanted)[1]) == expected, field
    wire.close()


@given(st.floats(0, 1))
def test_importance_is_equal_to_itself(server: Running, importance: float) -> None:
    """However it is written: by EQ as a number or as the text that MEM.GET shows."""
    wire = server.wire()
    wire("FLUSHALL")
    wire("MEM.CREATE", "ns", "MODE", "SEARCH")
    wire("MEM.ADD", "ns", "ID", "a", "TEXT", "t", "IMPORTANCE", importance)
    shown = flat_pairs(wire("MEM.GET", "ns", "a"))[b"importance"]
    assert float(shown) == importance
    assert wire("MEM.SCAN", "ns", 0, "FILTER", "@importance", "EQ", shown)[1] == [b"a"]
    assert wire("MEM.SCAN", "ns", 0, "FILTER", "@importance", "GTE", repr(importance))[1] == [b"a"]
    assert float(shortest(importance)) == importance
    wire.close()
