"""What is refused, with which words, in which order of precedence, and that a refused command changes nothing.

Every case runs against the same three memories: `h` (HYBRID, two dimensions), `s` (SEARCH) and `v` (VECTOR, two
dimensions), each with the record `a`. A case is a command as words and the exact error; `no` is a key that is absent.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Iterator
from typing import Any

import pytest
from harness import JUNE, Clock, Running, Wire, WireError, Word, to_bytes
from hypothesis import given
from hypothesis import strategies as st

Case = tuple[tuple[Word, ...], str]

NAN = struct.pack("<2f", float("nan"), 1)
NOT_AN_INTEGER = "ERR value is not an integer or out of range"
NOT_A_FLOAT = "ERR value is not a valid float"
NO_SUCH = "ERR no such memory index"
SYNTAX = "ERR syntax error"
NO_TEXT_INDEX = "ERR this memory index does not index text; create it with MODE SEARCH or MODE HYBRID"
NO_VECTORS = "ERR this memory index stores no vectors; create it with MODE VECTOR or MODE HYBRID"
NEEDS_VECTOR = "ERR a VECTOR-mode index needs a vector on every record"
UNMET = "ERR record existence condition not met"
ZERO = "ERR a zero vector has no direction to compare under COSINE"
NOT_FINITE = "ERR vector contains NaN or infinity"
DIM_REQUIRED = "ERR DIM is required for a VECTOR or HYBRID index"
DIM_RANGE = "ERR DIM must be between 1 and mem-max-dim (4096)"
DIM_SEARCH = "ERR a SEARCH index stores no vectors, so DIM does not apply; did you mean MODE HYBRID?"
WEIGHTS = "ERR WEIGHTS must be finite and non-negative"
HALFLIFE = "ERR HALFLIFE must be positive"
IMPORTANCE = "ERR IMPORTANCE must be between 0 and 1"
CREATE_OPTIONS = ("MODE", "METRIC", "WEIGHTS", "HALFLIFE", "FUSION", "LANG", "K1", "B")
ADD_OPTIONS = ("ID", "TEXT", "VEC", "META", "TAGS", "IMPORTANCE", "TTL", "AT")
TOPK = "ERR TOPK must be between 1 and mem-max-topk (1000)"


def words(line: str | tuple[Word, ...]) -> tuple[Word, ...]:
    return tuple(line.split()) if isinstance(line, str) else line


def arity(name: str) -> str:
    return f"ERR wrong number of arguments for '{name}' command"


def unexpected(word: str) -> str:
    return f"ERR unexpected argument '{word}'"


def not_a_time(word: str) -> str:
    return f"ERR '{word}' is not a time: unix milliseconds or ISO 8601"


CREATE: list[tuple[str | tuple[Word, ...], str]] = [
    ("MEM.CREATE h DIM 2", "ERR memory index already exists"),
    ("MEM.CREATE no", DIM_REQUIRED),
    ("MEM.CREATE no MODE HYBRID", DIM_REQUIRED),
    ("MEM.CREATE no MODE VECTOR", DIM_REQUIRED),
    ("MEM.CREATE no DIM 0", DIM_RANGE),
    ("MEM.CREATE no DIM -1", DIM_RANGE),
    ("MEM.CREATE no DIM 4097", DIM_RANGE),
    ("MEM.CREATE no DIM 99999 MODE VECTOR", DIM_RANGE),
    ("MEM.CREATE no DIM two", NOT_AN_INTEGER),
    ("MEM.CREATE no DIM 2.0", NOT_AN_INTEGER),
    ("MEM.CREATE no DIM 99999999999999999999", NOT_AN_INTEGER),
    ("MEM.CREATE no MODE SEARCH DIM 2", DIM_SEARCH),
    ("MEM.CREATE no DIM 2 MODE SEARCH", DIM_SEARCH),
    ("MEM.CREATE no DIM 2 WEIGHTS -1 0 0 0", WEIGHTS),
    ("MEM.CREATE no DIM 2 WEIGHTS 0 0 0 -0.1", WEIGHTS),
    ("MEM.CREATE no DIM 2 WEIGHTS inf 0 0 0", WEIGHTS),
    ("MEM.CREATE no DIM 2 WEIGHTS 0 nan 0 0", WEIGHTS),
    ("MEM.CREATE no DIM 2 WEIGHTS 0 one 0 0", NOT_A_FLOAT),
    ("MEM.CREATE no DIM 2 WEIGHTS 1 0 0", SYNTAX),
    ("MEM.CREATE no DIM 2 HALFLIFE 0", HALFLIFE),
    ("MEM.CREATE no DIM 2 HALFLIFE -5", HALFLIFE),
    ("MEM.CREATE no DIM 2 HALFLIFE 1.5", NOT_AN_INTEGER),
    ("MEM.CREATE no DIM 2 HALFLIFE week", NOT_AN_INTEGER),
    ("MEM.CREATE no DIM 2 K1 x", NOT_A_FLOAT),
    ("MEM.CREATE no DIM 2 B x", NOT_A_FLOAT),
    ("MEM.CREATE no DIM 2 MODE FUZZY", SYNTAX),
    ("MEM.CREATE no DIM 2 METRIC MANHATTAN", SYNTAX),
    ("MEM.CREATE no DIM 2 FUSION BEST", SYNTAX),
    *((f"MEM.CREATE no DIM 2 {option}", SYNTAX) for option in CREATE_OPTIONS),
    ("MEM.CREATE no DIM 2 HISTORY -1", "ERR HISTORY must not be negative"),
    ("MEM.CREATE no DIM 2 HISTORY some", NOT_AN_INTEGER),
    ("MEM.CREATE no DIM 2 EMBEDDER nobody", SYNTAX),
    ("MEM.CREATE no MODE SEARCH EMBEDDER local", DIM_SEARCH.replace("DIM", "EMBEDDER")),
    ("MEM.CREATE no MODE SEARCH MODEL m", DIM_SEARCH.replace("DIM", "MODEL")),
    ("MEM.CREATE no DIM 2 TAGBOOST -1", "ERR TAGBOOST must be finite and non-negative"),
    ("MEM.CREATE no DIM 2 TAGBOOST inf", "ERR TAGBOOST must be finite and non-negative"),
    ("MEM.CREATE no DIM 2 TAGBOOST x", NOT_A_FLOAT),
    (("MEM.CREATE", "no", "DIM", "2", "MODEL", ""), "ERR MODEL must be 1 to 256 printable characters"),
    ("MEM.CONFIG s EMBEDDER local", DIM_SEARCH.replace("DIM", "EMBEDDER")),
    ("MEM.CONFIG h EMBEDDER nobody", SYNTAX),
    ("MEM.CONFIG h HISTORY -1", "ERR HISTORY must not be negative"),
    ("MEM.CREATE no DIM", SYNTAX),
    ("MEM.CREATE no DIM 2 NONSENSE", unexpected("NONSENSE")),
    ("MEM.CREATE no DIM 2 nonsense", unexpected("nonsense")),
    ("MEM.CONFIG h MODE SEARCH", unexpected("MODE")),
    ("MEM.CONFIG h DIM 3", "ERR DIM changes only with MODEL"),
    ("MEM.CONFIG h METRIC L2", unexpected("METRIC")),
    ("MEM.CONFIG h LANG none", unexpected("LANG")),
    ("MEM.CONFIG h WEIGHTS -1 0 0 0", WEIGHTS),
    ("MEM.CONFIG h WEIGHTS 1 1 1", SYNTAX),
    ("MEM.CONFIG h HALFLIFE 0", HALFLIFE),
    ("MEM.CONFIG h HALFLIFE", SYNTAX),
    ("MEM.CONFIG h FUSION BEST", SYNTAX),
    ("MEM.CONFIG h K1 x", NOT_A_FLOAT),
    ("MEM.CONFIG h HALFLIFE 60 NONSENSE", unexpected("NONSENSE")),
    ("MEM.CONFIG h HALFLIFE 60 WEIGHTS 1 1 1 -1", WEIGHTS),
]

RECORDS: list[tuple[str | tuple[Word, ...], str]] = [
    ("MEM.ADD h ID x", "ERR TEXT is required"),
    ("MEM.ADD h FVEC 2 1 0", "ERR TEXT is required"),
    ("MEM.ADD h TEXT t KIND fact", SYNTAX),
    ("MEM.ADD h TEXT t VALIDAT soon", "ERR 'soon' is not a time: unix milliseconds or ISO 8601"),
    ("MEM.ADD h TEXT t VALIDAT 5 VALIDUNTIL 5", "ERR VALIDUNTIL must be after VALIDAT"),
    ("MEM.ADD h TEXT t AT 5 VALIDUNTIL 5", "ERR VALIDUNTIL must be after VALIDAT"),
    ("MEM.ADD h TEXT t VALIDUNTIL 5", "ERR VALIDUNTIL must be after VALIDAT"),
    ("MEM.SEARCH h alpha ASOF soon", "ERR 'soon' is not a time: unix milliseconds or ISO 8601"),
    ("MEM.ADD h TEXT t NX XX ID a", "ERR NX and XX are mutually exclusive"),
    ("MEM.ADD h ID x TEXT t XX", UNMET),
    ("MEM.ADD h TEXT t XX", UNMET),
    ("MEM.ADD h ID a TEXT t NX", UNMET),
    (
        ("MEM.ADD", "h", "TEXT", "t", "VEC", b"12345"),
        "ERR vector is not float32 bytes; its length must be a multiple of 4",
    ),
    (("MEM.ADD", "h", "TEXT", "t", "VEC", b"123456789012"), "ERR wrong vector dimension, expected 2 got 3"),
    ("MEM.ADD h TEXT t FVEC 3 1 2 3", "ERR wrong vector dimension, expected 2 got 3"),
    ("MEM.ADD h TEXT t FVEC 1 1", "ERR wrong vector dimension, expected 2 got 1"),
    ("MEM.ADD h ID a TEXT t FVEC 1 1", "ERR wrong vector dimension, expected 2 got 1"),
    ("MEM.ADD h TEXT t FVEC 2 nan 1", NOT_FINITE),
    ("MEM.ADD h TEXT t FVEC 2 -inf 1", NOT_FINITE),
    ("MEM.ADD h TEXT t FVEC 2 1e39 1", NOT_FINITE),
    (("MEM.ADD", "h", "TEXT", "t", "VEC", NAN), NOT_FINITE),
    ("MEM.ADD h TEXT t FVEC 2 0 0", ZERO),
    ("MEM.ADD h TEXT t FVEC 2 0 -0.0", ZERO),
    (("MEM.ADD", "h", "TEXT", "t", "VEC", bytes(8)), ZERO),
    ("MEM.ADD s TEXT t FVEC 2 1 0", NO_VECTORS),
    (("MEM.ADD", "s", "TEXT", "t", "VEC", struct.pack("<2f", 1, 0)), NO_VECTORS),
    ("MEM.ADD v TEXT t", NEEDS_VECTOR),
    ("MEM.ADD v ID a TEXT another", NEEDS_VECTOR),
    ("MEM.ADD h TEXT t FVEC 2 1", SYNTAX),
    ("MEM.ADD h TEXT t FVEC", SYNTAX),
    ("MEM.ADD h TEXT t FVEC two 1 0", NOT_AN_INTEGER),
    ("MEM.ADD h TEXT t FVEC 2 1 zero", NOT_A_FLOAT),
    ("MEM.ADD h TEXT t IMPORTANCE 1.5", IMPORTANCE),
    ("MEM.ADD h TEXT t IMPORTANCE -0.1", IMPORTANCE),
    ("MEM.ADD h TEXT t IMPORTANCE nan", IMPORTANCE),
    ("MEM.ADD h TEXT t IMPORTANCE inf", IMPORTANCE),
    ("MEM.ADD h TEXT t IMPORTANCE high", NOT_A_FLOAT),
    ("MEM.ADD h TEXT t TTL 0", "ERR TTL must be positive"),
    ("MEM.ADD h TEXT t TTL -3", "ERR TTL must be positive"),
    ("MEM.ADD h TEXT t TTL 1.5", NOT_AN_INTEGER),
    ("MEM.ADD h TEXT t TTL soon", NOT_AN_INTEGER),
    ("MEM.ADD h TEXT t AT soon", not_a_time("soon")),
    ("MEM.ADD h TEXT t AT 2026-13-01", not_a_time("2026-13-01")),
    ("MEM.ADD h TEXT t AT 2026-02-30", not_a_time("2026-02-30")),
    ("MEM.ADD h TEXT t AT 1.5", not_a_time("1.5")),
    *((f"MEM.ADD h TEXT t {option}", SYNTAX) for option in ADD_OPTIONS),
    ("MEM.ADD h TEXT t META field", SYNTAX),
    ("MEM.ADD h TEXT t TAGS 2 one", SYNTAX),
    ("MEM.ADD h TEXT t TAGS two a b", NOT_AN_INTEGER),
    ("MEM.ADD h TEXT t NONSENSE", unexpected("NONSENSE")),
    ("MEM.ADD h stray TEXT t", unexpected("stray")),
    ("MEM.MADD h 1 RECORD ID x", "ERR record 1: TEXT is required"),
    ("MEM.MADD h 3 RECORD TEXT t RECORD TEXT t RECORD ID x", "ERR record 3: TEXT is required"),
    ("MEM.MADD h 2 RECORD TEXT t RECORD TEXT t IMPORTANCE 2", "ERR record 2: IMPORTANCE must be between 0 and 1"),
    ("MEM.MADD h 2 RECORD TEXT t RECORD TEXT t NONSENSE", "ERR record 2: unexpected argument 'NONSENSE'"),
    ("MEM.MADD h 2 RECORD TEXT t RECORD TEXT t AT soon", "ERR record 2: " + not_a_time("soon").removeprefix("ERR ")),
    ("MEM.MADD h 2 RECORD TEXT t RECORD TEXT t FVEC 1 1", "ERR record 2: wrong vector dimension, expected 2 got 1"),
    ("MEM.MADD h 2 RECORD TEXT t RECORD TEXT t FVEC 2 0 0", "ERR record 2: " + ZERO.removeprefix("ERR ")),
    ("MEM.MADD h 2 RECORD TEXT t RECORD ID a TEXT t NX", "ERR record 2: record existence condition not met"),
    ("MEM.MADD h 2 RECORD ID x TEXT t RECORD ID x TEXT u NX", "ERR record 2: record existence condition not met"),
    ("MEM.MADD s 2 RECORD TEXT t RECORD TEXT t FVEC 1 1", "ERR record 2: " + NO_VECTORS.removeprefix("ERR ")),
    ("MEM.MADD v 2 RECORD TEXT t FVEC 2 1 0 RECORD TEXT t", "ERR record 2: " + NEEDS_VECTOR.removeprefix("ERR ")),
    ("MEM.MADD h many RECORD TEXT t", NOT_AN_INTEGER),
    ("MEM.GET h a NONSENSE", unexpected("NONSENSE")),
    ("MEM.SETMETA h none f v", "ERR no such record"),
    ("MEM.DELMETA h none f", "ERR no such record"),
    ("MEM.SETMETA h a f", arity("mem.setmeta")),
    ("MEM.SETMETA h a f v g", arity("mem.setmeta")),
    ("MEM.EXPIRE h a -1", "ERR TTL must not be negative"),
    ("MEM.EXPIRE h none -1", "ERR TTL must not be negative"),
    ("MEM.EXPIRE h a soon", NOT_AN_INTEGER),
    ("MEM.EXPIRE h a 1.5", NOT_AN_INTEGER),
    ("MEM.SCAN h -1", "ERR invalid cursor"),
    ("MEM.SCAN h start", "ERR invalid cursor"),
    ("MEM.SCAN h 0 COUNT 0", SYNTAX),
    ("MEM.SCAN h 0 COUNT -1", SYNTAX),
    ("MEM.SCAN h 0 COUNT", SYNTAX),
    ("MEM.SCAN h 0 COUNT ten", NOT_AN_INTEGER),
    ("MEM.SCAN h 0 FILTER f EQ", SYNTAX),
    ("MEM.SCAN h 0 FILTER @nonsense EQ x", "ERR bad filter clause '@nonsense EQ'"),
    ("MEM.SCAN h 0 NONSENSE", unexpected("NONSENSE")),
    ("MEM.LIST h LIMIT ten", NOT_AN_INTEGER),
    ("MEM.LIST h LIMIT", SYNTAX),
    ("MEM.LIST h OFFSET first", NOT_AN_INTEGER),
    ("MEM.LIST h TAGS SOME 1 x", SYNTAX),
    ("MEM.LIST h TAGS ANY 2 x", SYNTAX),
    ("MEM.LIST h FILTER f LIKE x", "ERR bad filter clause 'f LIKE'"),
    ("MEM.LIST h NONSENSE", unexpected("NONSENSE")),
    ("MEM.FORGET h FILTER f LIKE x", "ERR bad filter clause 'f LIKE'"),
    ("MEM.FORGET h FILTER @id EQ a NONSENSE", unexpected("NONSENSE")),
    ("MEM.FORGET h FILTER f EQ", SYNTAX),
]

QUERIES: list[tuple[str | tuple[Word, ...], str]] = []
for query in ("MEM.SEARCH h alpha", "MEM.VSEARCH h FVEC 2 1 0", "MEM.QUERY h TEXT alpha FVEC 2 1 0"):
    QUERIES += [
        (f"{query} TOPK 0", TOPK),
        (f"{query} TOPK -1", TOPK),
        (f"{query} TOPK 1001", TOPK),
        (f"{query} TOPK ten", NOT_AN_INTEGER),
        (f"{query} TOPK 1.5", NOT_AN_INTEGER),
        (f"{query} TOPK", SYNTAX),
        (f"{query} OFFSET", SYNTAX),
        (f"{query} OFFSET one", NOT_AN_INTEGER),
        (f"{query} MINSCORE high", NOT_A_FLOAT),
        (f"{query} MINSCORE", SYNTAX),
        (f"{query} FILTER", SYNTAX),
        (f"{query} FILTER f", SYNTAX),
        (f"{query} FILTER f EQ", SYNTAX),
        (f"{query} FILTER f LIKE x", "ERR bad filter clause 'f LIKE'"),
        (f"{query} FILTER @nonsense EQ x", "ERR bad filter clause '@nonsense EQ'"),
        (f"{query} TAGS", SYNTAX),
        (f"{query} TAGS SOME 1 x", SYNTAX),
        (f"{query} TAGS ANY x y", NOT_AN_INTEGER),
        (f"{query} TAGS ALL 2 x", SYNTAX),
        (f"{query} NONSENSE", unexpected("NONSENSE")),
        (f"{query} nonsense", unexpected("nonsense")),
        (query + " FILTER f EQ x" * 129, "ERR more than mem-max-filters (128) filters"),
    ]
QUERIES += [
    ("MEM.SEARCH v alpha", NO_TEXT_INDEX),
    ("MEM.QUERY v TEXT alpha", NO_TEXT_INDEX),
    ("MEM.QUERY v TEXT alpha FVEC 2 1 0", NO_TEXT_INDEX),
    ("MEM.VSEARCH s FVEC 2 1 0", NO_VECTORS),
    ("MEM.QUERY s FVEC 2 1 0", NO_VECTORS),
    ("MEM.QUERY s TEXT alpha FVEC 2 1 0", NO_VECTORS),
    ("MEM.QUERY h", "ERR TEXT, VEC, or FVEC is required"),
    ("MEM.QUERY h TOPK 5", "ERR TEXT, VEC, or FVEC is required"),
    ("MEM.VSEARCH h", "ERR VEC or FVEC is required"),
    ("MEM.VSEARCH h TOPK 5", "ERR VEC or FVEC is required"),
    ("MEM.VSEARCH h FVEC 3 1 2 3", "ERR wrong vector dimension, expected 2 got 3"),
    ("MEM.VSEARCH h FVEC 2 0 0", ZERO),
    ("MEM.VSEARCH h FVEC 2 1 nan", NOT_FINITE),
    ("MEM.VSEARCH h FVEC 2 1 1e300", NOT_FINITE),
    (("MEM.VSEARCH", "h", "VEC", b"123"), "ERR vector is not float32 bytes; its length must be a multiple of 4"),
    ("MEM.QUERY h FVEC 1 1", "ERR wrong vector dimension, expected 2 got 1"),
    ("MEM.QUERY h TEXT alpha FVEC 2 0 0", ZERO),
    ("MEM.QUERY h TEXT alpha FVEC 2 1", SYNTAX),
    ("MEM.QUERY h TEXT alpha FVEC 2 1 x", NOT_A_FLOAT),
    ("MEM.QUERY h TEXT", SYNTAX),
    ("MEM.QUERY h TEXT alpha WEIGHTS 1 1 1 -1", WEIGHTS),
    ("MEM.QUERY h TEXT alpha WEIGHTS 1 1 1", SYNTAX),
    ("MEM.QUERY h TEXT alpha WEIGHTS 1 1 1 x", NOT_A_FLOAT),
    ("MEM.QUERY h TEXT alpha HALFLIFE 0", HALFLIFE),
    ("MEM.QUERY h TEXT alpha HALFLIFE x", NOT_AN_INTEGER),
    ("MEM.QUERY h TEXT alpha FUSION BEST", SYNTAX),
    ("MEM.QUERY h TEXT alpha FUSION", SYNTAX),
    ("MEM.QUERY h TEXT alpha TIER HYBRID", SYNTAX),
    ("MEM.QUERY h TEXT alpha FALLBACK RECENT", SYNTAX),
    ("MEM.QUERY h FVEC 2 1 0 TIER LIKE", "ERR TIER LIKE needs TEXT"),
    ("MEM.QUERY h FVEC 2 1 0 TIER KEYWORD", "ERR TIER KEYWORD needs TEXT"),
    ("MEM.QUERY h TEXT alpha RRFK x", NOT_AN_INTEGER),
    ("MEM.QUERY h TEXT alpha RRFK", SYNTAX),
    ("MEM.QUERY h TEXT alpha MINSIM x", NOT_A_FLOAT),
    ("MEM.QUERY h TEXT alpha DIVERSITY x", NOT_A_FLOAT),
    ("MEM.EXPLAIN h a", "ERR TEXT, VEC, or FVEC is required"),
    ("MEM.EXPLAIN h a TEXT alpha NONSENSE", unexpected("NONSENSE")),
    ("MEM.EXPLAIN h a TEXT alpha TOPK 0", TOPK),
    ("MEM.EXPLAIN v a TEXT alpha", NO_TEXT_INDEX),
    *((f"MEM.SEARCH h alpha {option}", unexpected(option.split()[0])) for option in ("WEIGHTS 1 1 1 1", "FUSION RRF")),
    *((f"MEM.SEARCH h alpha {option}", unexpected(option.split()[0])) for option in ("FVEC 2 1 0", "MINSIM .5")),
    *((f"MEM.VSEARCH h FVEC 2 1 0 {option}", unexpected(option.split()[0])) for option in ("TEXT x", "DIVERSITY .5")),
]

LIMITS: list[tuple[str | tuple[Word, ...], str]] = [
    (f"{command} {option} {value}", error)
    for command in ("MEM.CREATE no DIM 2", "MEM.CONFIG h")
    for option in ("MAXRECORDS", "MAXBYTES")
    for value, error in (
        ("", SYNTAX),
        ("x", NOT_AN_INTEGER),
        ("1kb", NOT_AN_INTEGER),
        ("-1", f"ERR {option} must not be negative"),
    )
]

ARITY: list[tuple[str | tuple[Word, ...], str]] = [
    (line, arity(line.split()[0].lower()))
    for line in (
        "MEM.CREATE",
        "MEM.CONFIG",
        "MEM.INFO",
        "MEM.INFO h h",
        "MEM.CARD",
        "MEM.CARD h h",
        "MEM.ADD",
        "MEM.MADD h",
        "MEM.GET h",
        "MEM.MGET h",
        "MEM.DEL h",
        "MEM.SETMETA h a",
        "MEM.DELMETA h a",
        "MEM.EXPIRE h a",
        "MEM.EXPIRE h a 1 2",
        "MEM.SCAN h",
        "MEM.LIST",
        "MEM.FORGET",
        "MEM.SEARCH h",
        "MEM.VSEARCH",
        "MEM.QUERY",
        "MEM.EXPLAIN h",
    )
]

#: Each with nothing wrong but the key.
ABSENT: list[tuple[str | tuple[Word, ...], str]] = [
    (line, NO_SUCH)
    for line in (
        "MEM.CONFIG no",
        "MEM.CONFIG no HALFLIFE 60",
        "MEM.INFO no",
        "MEM.CARD no",
        "MEM.ADD no TEXT t",
        "MEM.ADD no ID a TEXT t NX",
        "MEM.MADD no 1 RECORD TEXT t",
        "MEM.GET no a",
        "MEM.MGET no a",
        "MEM.DEL no a",
        "MEM.SETMETA no a f v",
        "MEM.DELMETA no a f",
        "MEM.EXPIRE no a 0",
        "MEM.SCAN no 0",
        "MEM.LIST no",
        "MEM.FORGET no FILTER @id EQ a",
        "MEM.SEARCH no alpha",
        "MEM.VSEARCH no FVEC 2 1 0",
        "MEM.QUERY no TEXT alpha FVEC 7 1 2 3 4 5 6 7",
        "MEM.EXPLAIN no a TEXT alpha",
    )
]

#: Errors of arguments that must be seen although the key is not there.
BEFORE_THE_KEY: list[tuple[str | tuple[Word, ...], str]] = [
    ("MEM.CREATE h DIM 2 NONSENSE", unexpected("NONSENSE")),
    ("MEM.CREATE h DIM 2 HALFLIFE 0", HALFLIFE),
    ("MEM.CONFIG no HALFLIFE 0", HALFLIFE),
    ("MEM.CONFIG no MODE SEARCH", unexpected("MODE")),
    ("MEM.ADD no ID a", "ERR TEXT is required"),
    ("MEM.ADD no TEXT t NX XX", "ERR NX and XX are mutually exclusive"),
    ("MEM.ADD no TEXT t IMPORTANCE 2", IMPORTANCE),
    ("MEM.ADD no TEXT t TTL 0", "ERR TTL must be positive"),
    ("MEM.ADD no TEXT t NONSENSE", unexpected("NONSENSE")),
    (("MEM.ADD", "no", "TEXT", "x" * 65537), "ERR text exceeds mem-max-text-bytes (65536)"),
    ("MEM.MADD no 2 RECORD TEXT t RECORD ID a", "ERR record 2: TEXT is required"),
    ("MEM.GET no a NONSENSE", unexpected("NONSENSE")),
    ("MEM.SETMETA no a f v g", arity("mem.setmeta")),
    ("MEM.EXPIRE no a -1", "ERR TTL must not be negative"),
    ("MEM.EXPIRE no a soon", NOT_AN_INTEGER),
    ("MEM.SCAN no -1", "ERR invalid cursor"),
    ("MEM.SCAN no 0 COUNT 0", SYNTAX),
    ("MEM.LIST no NONSENSE", unexpected("NONSENSE")),
    ("MEM.FORGET no FILTER @nonsense EQ x", "ERR bad filter clause '@nonsense EQ'"),
    ("MEM.SEARCH no alpha TOPK 0", TOPK),
    ("MEM.VSEARCH no", "ERR VEC or FVEC is required"),
    ("MEM.VSEARCH no FVEC 2 1 0 TOPK 0", TOPK),
    ("MEM.QUERY no TOPK 5", "ERR TEXT, VEC, or FVEC is required"),
    ("MEM.QUERY no TEXT alpha FILTER @nonsense EQ x", "ERR bad filter clause '@nonsense EQ'"),
    # .. and before NX and XX, the limit of records, the vector, the mode
    ("MEM.ADD h ID a TEXT t NX IMPORTANCE 2", IMPORTANCE),
    ("MEM.ADD h TEXT t FVEC 1 1 TTL 0", "ERR TTL must be positive"),
    ("MEM.ADD v TEXT t TTL 0", "ERR TTL must be positive"),
    ("MEM.MADD h 2 RECORD TEXT t FVEC 1 1 RECORD ID x", "ERR record 2: TEXT is required"),
    ("MEM.SEARCH v alpha TOPK 0", TOPK),
    ("MEM.QUERY s FVEC 2 0 0 TOPK 0", TOPK),
    # NX and XX before the vector, the vector before the mode
    ("MEM.ADD h ID a TEXT t NX FVEC 1 1", UNMET),
    ("MEM.ADD h ID x TEXT t XX FVEC 2 0 0", UNMET),
    ("MEM.ADD s ID x TEXT t XX FVEC 2 1 0", UNMET),
    ("MEM.ADD v ID a TEXT another NX", UNMET),
    (("MEM.ADD", "s", "TEXT", "t", "VEC", NAN), NOT_FINITE),
    (
        ("MEM.ADD", "s", "TEXT", "t", "VEC", b"12345"),
        "ERR vector is not float32 bytes; its length must be a multiple of 4",
    ),
]

CASES = [(words(line), text) for line, text in CREATE + RECORDS + QUERIES + LIMITS + ARITY + ABSENT + BEFORE_THE_KEY]


def name_of(case: Case) -> str:
    return b" ".join(map(to_bytes, case[0]))[:60].decode("ascii", "replace").replace("\0", ".")


@pytest.fixture
def memories(wire: Wire) -> Wire:
    fill(wire)
    return wire


def fill(wire: Wire) -> None:
    wire("MEM.CREATE", "h", "DIM", 2)
    wire("MEM.CREATE", "s", "MODE", "SEARCH")
    wire("MEM.CREATE", "v", "MODE", "VECTOR", "DIM", 2)
    for key, vector in (("h", ("FVEC", 2, 1, 0)), ("s", ()), ("v", ("FVEC", 2, 1, 0))):
        wire("MEM.ADD", key, "ID", "a", "TEXT", "alpha", *vector, "META", "f", "x", "TAGS", 1, "t", "TTL", 1000)


def fingerprint(wire: Wire) -> list[bytes]:
    """All that a client can see of the server's memories, as bytes."""
    state = [wire.raw("DBSIZE")]
    for key in sorted(wire("KEYS", "*")):
        state += [
            wire.raw("MEM.INFO", key),
            wire.raw("MEM.CONFIG", key),
            wire.raw("MEM.LIST", key, "LIMIT", 1000, "WITHMETA", "WITHVEC"),
            wire.raw("MEM.SCAN", key, 0, "COUNT", 1000),
            wire.raw("PEXPIRETIME", key),
        ]
    return state


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_the_error_and_nothing_else(memories: Wire, clock: Clock, case: Case) -> None:
    """The exact text, and a refused command changes nothing at all: no record, counter, time or setting."""
    before = fingerprint(memories)
    clock.advance(1)
    command, expected = case
    assert memories.error(*command) == expected
    clock.advance(-1)
    assert fingerprint(memories) == before


def test_a_refused_write_takes_no_id(memories: Wire) -> None:
    for command, _ in CASES:
        if command[0] in ("MEM.ADD", "MEM.MADD"):
            memories.error(*command)
    assert memories("MEM.ADD", "h", "TEXT", "t") == b"1"


def test_a_refused_write_wakes_no_watch(memories: Wire, server: Running) -> None:
    watcher = server.wire()
    watcher("WATCH", "h", "s", "v", "no")
    for command, _ in CASES:
        memories.error(*command)
    watcher("MULTI")
    watcher("PING")
    assert watcher("EXEC") == ["PONG"]
    watcher.close()


@pytest.mark.parametrize("table", [CREATE, RECORDS, QUERIES], ids=["create", "records", "queries"])
def test_the_same_errors_inside_exec(memories: Wire, table: list[tuple[str | tuple[Word, ...], str]]) -> None:
    """A command that fails when it runs is an error in EXEC's array; one with too few words is never queued."""
    cases = [(words(line), text) for line, text in table if not text.startswith("ERR wrong number")]
    cases = [case for case in cases if len(case[0]) > 2]
    before = fingerprint(memories)
    memories.pipeline(("MULTI",), *(command for command, _ in cases))
    assert [str(reply) for reply in memories("EXEC")] == [text for _, text in cases]
    assert fingerprint(memories) == before


# -- words are read left to right, the first bad one decides


BAD_ADD: list[tuple[tuple[Word, ...], str]] = [
    (("IMPORTANCE", "2"), IMPORTANCE),
    (("IMPORTANCE", "x"), NOT_A_FLOAT),
    (("TTL", "0"), "ERR TTL must be positive"),
    (("TTL", "x"), NOT_AN_INTEGER),
    (("AT", "soon"), not_a_time("soon")),
    (("TAGS", "x"), NOT_AN_INTEGER),
    (("NONSENSE",), unexpected("NONSENSE")),
]
BAD_QUERY: list[tuple[tuple[Word, ...], str]] = [
    (("TOPK", "0"), TOPK),
    (("TOPK", "x"), NOT_AN_INTEGER),
    (("FUSION", "BEST"), SYNTAX),
    (("WEIGHTS", "1", "1", "1", "-1"), WEIGHTS),
    (("HALFLIFE", "0"), HALFLIFE),
    (("MINSCORE", "x"), NOT_A_FLOAT),
    (("FILTER", "@nonsense", "EQ", "x"), "ERR bad filter clause '@nonsense EQ'"),
    (("NONSENSE",), unexpected("NONSENSE")),
]
BAD_CREATE: list[tuple[tuple[Word, ...], str]] = [
    (("MODE", "FUZZY"), SYNTAX),
    (("WEIGHTS", "1", "1", "1", "-1"), WEIGHTS),
    (("WEIGHTS", "1", "1", "1", "x"), NOT_A_FLOAT),
    (("HALFLIFE", "0"), HALFLIFE),
    (("HALFLIFE", "x"), NOT_AN_INTEGER),
    (("NONSENSE",), unexpected("NONSENSE")),
]


@pytest.mark.parametrize(
    ("command", "bad"),
    [
        (("MEM.ADD", "h", "TEXT", "t"), BAD_ADD),
        (("MEM.ADD", "no", "TEXT", "t"), BAD_ADD),
        (("MEM.QUERY", "h", "TEXT", "alpha"), BAD_QUERY),
        (("MEM.QUERY", "no", "TEXT", "alpha"), BAD_QUERY),
        (("MEM.CREATE", "no", "DIM", "2"), BAD_CREATE),
        (("MEM.CREATE", "h", "DIM", "2"), BAD_CREATE),
    ],
    ids=lambda value: " ".join(value[:2]) if isinstance(value, tuple) else "",
)
def test_the_first_bad_word_decides(
    memories: Wire, command: tuple[Word, ...], bad: list[tuple[tuple[Word, ...], str]]
) -> None:
    for (one, expected), (two, _) in itertools.permutations(bad, 2):
        assert memories.error(*command, *one, *two) == expected, (one, two)


def test_a_bad_record_before_a_worse_one_decides(memories: Wire) -> None:
    command = ("MEM.MADD", "h", 3, "RECORD", "TEXT", "t")
    one, two = ("RECORD", "TEXT", "t", "TTL", 0), ("RECORD", "TEXT", "t", "IMPORTANCE", 2)
    assert memories.error(*command, *one, *two) == "ERR record 2: TTL must be positive"
    assert memories.error(*command, *two, *one) == "ERR record 2: IMPORTANCE must be between 0 and 1"


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("MEM.ADD h ID b TEXT t IMPORTANCE .9 IMPORTANCE .2", b"0.2"),
        ("MEM.ADD h ID c TEXT t TEXT u ID b", b"0.5"),
    ],
)
def test_the_last_of_a_repeated_option_wins(memories: Wire, command: str, expected: bytes) -> None:
    assert memories(*command.split()) == b"b"
    record = memories("MEM.GET", "h", "b")
    assert dict(zip(record[::2], record[1::2], strict=True))[b"importance"] == expected
    assert memories("MEM.GET", "h", "c") is None


def test_options_are_read_in_any_case(memories: Wire) -> None:
    assert memories("mem.create", "k", "mode", "hybrid", "dim", 2, "metric", "cosine", "fusion", "linear") == "OK"
    assert memories("Mem.Add", "k", "text", "t", "fVec", 2, 1, 0, "meta", "F", "v", "tags", 1, "T") == b"1"
    assert memories("MEM.SCAN", "k", 0, "filter", "F", "eq", "v") == [b"0", [b"1"]]
    assert memories("MEM.SCAN", "k", 0, "filter", "f", "eq", "v") == [b"0", []]


# -- limits that settings move


def test_the_limit_of_dimensions_is_a_setting(memories: Wire) -> None:
    memories("CONFIG", "SET", "mem-max-dim", 8)
    assert memories.error("MEM.CREATE", "k", "DIM", 9) == "ERR DIM must be between 1 and mem-max-dim (8)"
    assert memories("MEM.CREATE", "k", "DIM", 8) == "OK"


def test_the_limit_of_records(memories: Wire) -> None:
    """After NX and XX, before the vector; it stops new records only."""
    memories("CONFIG", "SET", "mem-max-records", 1)
    full = "ERR memory index is full at mem-max-records (1)"
    assert memories.error("MEM.ADD", "h", "TEXT", "t") == full
    assert memories.error("MEM.ADD", "h", "TEXT", "t", "FVEC", 1, 1) == full
    assert memories.error("MEM.ADD", "s", "TEXT", "t", "FVEC", 2, 1, 0) == full
    assert memories.error("MEM.ADD", "h", "ID", "x", "TEXT", "t", "XX") == UNMET
    assert memories("MEM.ADD", "h", "ID", "a", "TEXT", "replaced") == b"a"
    assert memories("MEM.DEL", "h", "a") == 1
    batch_full = "ERR record 2: memory index is full at mem-max-records (1)"
    assert memories.error("MEM.MADD", "h", 2, "RECORD", "TEXT", "t", "RECORD", "TEXT", "t") == batch_full
    assert memories("MEM.CARD", "h") == 0
    assert memories("MEM.MADD", "h", 2, "RECORD", "ID", "a", "TEXT", "t", "RECORD", "ID", "a", "TEXT", "u") == [
        b"a",
        b"a",
    ]
    assert memories("MEM.ADD", "s", "ID", "a", "TEXT", "t") == b"a"


def test_an_expired_record_leaves_room(memories: Wire, clock: Clock) -> None:
    memories("CONFIG", "SET", "mem-max-records", 1)
    clock.advance(1000_000)
    assert memories("MEM.ADD", "h", "TEXT", "t") == b"1"


def test_the_limit_of_a_text(memories: Wire) -> None:
    memories("CONFIG", "SET", "mem-max-text-bytes", 4)
    assert memories("MEM.ADD", "h", "TEXT", b"\xff\xfe\xfd\xfc") == b"1"
    assert memories.error("MEM.ADD", "h", "TEXT", "12345") == "ERR text exceeds mem-max-text-bytes (4)"
    assert memories.error("MEM.ADD", "no", "TEXT", "12345") == "ERR text exceeds mem-max-text-bytes (4)"
    expected = "ERR record 1: text exceeds mem-max-text-bytes (4)"
    assert memories.error("MEM.MADD", "h", 1, "RECORD", "TEXT", "12345") == expected


def test_the_limit_of_hits_is_a_setting(memories: Wire) -> None:
    memories("CONFIG", "SET", "mem-max-topk", 3)
    expected = "ERR TOPK must be between 1 and mem-max-topk (3)"
    assert memories.error("MEM.SEARCH", "h", "alpha", "TOPK", 4) == expected
    assert memories.error("MEM.SEARCH", "no", "alpha", "TOPK", 4) == expected


def test_the_limit_of_filters_is_a_setting(memories: Wire) -> None:
    memories("CONFIG", "SET", "mem-max-filters", 2)
    clause = ("FILTER", "f", "EQ", "x")
    expected = "ERR more than mem-max-filters (2) filters"
    for command in (
        ("MEM.SEARCH", "h", "alpha"),
        ("MEM.QUERY", "no", "TEXT", "alpha"),
        ("MEM.SCAN", "h", 0),
        ("MEM.LIST", "h"),
        ("MEM.FORGET", "h"),
    ):
        assert memories.error(*command, *clause, *clause, *clause) == expected
    assert memories("MEM.SCAN", "h", 0, *clause, *clause) == [b"0", [b"a"]]


@pytest.mark.parametrize(
    "query", ["MEM.VSEARCH h FVEC 2 1 0", "MEM.QUERY h FVEC 2 1 0", "MEM.QUERY h TEXT t FVEC 2 1 0"]
)
def test_the_limit_of_a_scan_counts_what_survives_the_filters(memories: Wire, query: str) -> None:
    memories("MEM.DEL", "h", "a")
    for name in ("x", "y", "z"):
        memories("MEM.ADD", "h", "ID", name, "TEXT", "t", "FVEC", 2, 1, 1)
    memories("MEM.ADD", "h", "ID", "bare", "TEXT", "t")
    memories("CONFIG", "SET", "mem-max-scan", 2)
    expected = "ERR a scan of 3 vectors exceeds mem-max-scan (2); raise it or narrow the query with FILTER"
    assert memories.error(*query.split()) == expected
    narrowed = memories(*query.split(), "FILTER", "@id", "IN", "x,z", "NOTEXT")
    assert sorted(hit[0] for hit in narrowed) == [b"x", b"z"]
    memories("CONFIG", "SET", "mem-max-scan", 3)
    assert len(memories(*query.split(), "FILTER", "@id", "NE", "bare")) == 3


# -- what has no exact text in the contract, but must be refused all the same


@pytest.mark.parametrize(
    "line",
    [
        "MEM.ADD h TEXT t TTL 400000000000",
        "MEM.ADD h TEXT t TTL 9223372036854775807",
        "MEM.EXPIRE h a 400000000000",
        "MEM.ADD h TEXT t TAGS -1",
        "MEM.ADD h TEXT t FVEC -1",
        "MEM.CREATE no DIM 2 LANG klingon",
        "MEM.MADD h 2 RECORD TEXT t",
        "MEM.MADD h 1 RECORD TEXT t RECORD TEXT u",
        "MEM.LIST h LIMIT 0",
        "MEM.LIST h LIMIT 1001",
        "MEM.LIST h OFFSET -1",
        "MEM.FORGET h",
        "MEM.FORGET h DRYRUN",
        "MEM.SEARCH h alpha OFFSET -1",
    ],
)
def test_refused_in_whatever_words(memories: Wire, line: str) -> None:
    before = fingerprint(memories)
    assert memories.error(*line.split()).startswith("ERR ")
    assert fingerprint(memories) == before


def test_times_as_a_client_may_write_them(memories: Wire) -> None:
    """Unix milliseconds or ISO 8601; no zone means UTC."""
    expected = {
        "2026-06-01": JUNE,
        "2026-06-01T00:00:00Z": JUNE,
        "2026-06-01T00:00:00": JUNE,
        "2026-06-01T02:00:00+02:00": JUNE,
        "2026-06-01T00:00:00.250Z": JUNE + 250,
        str(JUNE + 7): JUNE + 7,
    }
    for written, at in expected.items():
        memories("MEM.ADD", "h", "ID", "t", "TEXT", "t", "AT", written)
        record = memories("MEM.GET", "h", "t")
        assert int(dict(zip(record[::2], record[1::2], strict=True))[b"updated_at"]) == at, written


# -- any words at all


OPTIONS = (
    *("MODE", "SEARCH", "VECTOR", "HYBRID", "DIM", "METRIC", "COSINE", "L2", "IP", "WEIGHTS", "HALFLIFE", "FUSION"),
    *("LINEAR", "RRF", "LANG", "NONE", "K1", "B", "ID", "TEXT", "VEC", "FVEC", "META", "TAGS", "ANY", "ALL", "AT"),
    *("IMPORTANCE", "TTL", "KEEPVEC", "NX", "XX", "RECORD", "NOTEXT", "WITHMETA", "WITHVEC", "FLOATS", "COUNT"),
    *("LIMIT", "OFFSET", "FILTER", "DRYRUN", "TOPK", "MINSCORE", "WITHTAGS", "WITHSCORES", "EXPLAIN", "WITHSTATS"),
    *("RRFK", "MINSIM", "DIVERSITY", "EQ", "NE", "GT", "LTE", "IN", "NIN", "CONTAINS", "PREFIX", "EXISTS"),
)
VALUES = (
    *(
        "",
        "0",
        "1",
        "2",
        "-1",
        "0.5",
        "1e308",
        "-1e308",
        "1e-320",
        "inf",
        "nan",
        "9223372036854775807",
        "99999999999999",
    ),
    *("a", "alpha", "h", "2026-06-01", "@id", "@tags", "@created_at", "@importance", "@text", "a,b", "\\,", "é"),
    *(
        b"\xff\x00",
        struct.pack("<2f", 1, 2),
        struct.pack("<2f", 3e38, -3e38),
        struct.pack("<2f", 1e-45, 0),
        NAN,
        b"123",
    ),
)
COMMANDS = (
    *("CREATE", "CONFIG", "INFO", "CARD", "ADD", "MADD", "GET", "MGET", "DEL", "SETMETA", "DELMETA", "EXPIRE", "SCAN"),
    *("LIST", "FORGET", "SEARCH", "VSEARCH", "QUERY", "EXPLAIN"),
)
#: Whole options, so that more than the first word is read.
PHRASES: tuple[tuple[Word, ...], ...] = (
    *(("TEXT", text) for text in ("alpha", "", b"\xff", "alpha beta")),
    *(("FVEC", 2, x, y) for x, y in itertools.product(("0", "1", "3e38", "-1e-45"), repeat=2)),
    *(("WEIGHTS", *[w] * 4) for w in ("0", "1e308", "1e-308")),
    *(
        ("FILTER", f, op, v)
        for f, op, v in itertools.product(("f", "@tags", "@updated_at"), ("EQ", "GT", "IN"), ("1", ""))
    ),
    *(
        (name, value)
        for name in ("K1", "B", "MINSCORE", "MINSIM", "DIVERSITY")
        for value in ("0", "1", "1e308", "-inf")
    ),
    *((name, n) for name in ("TOPK", "OFFSET", "HALFLIFE", "RRFK", "COUNT") for n in (1, 1000, 2**63 - 1)),
    *(("AT", at) for at in (0, -(2**62), 2**62, "1970-01-01", "9999-12-31T23:59:59.999Z", "0001-01-01")),
    *(("TTL", n) for n in (1, 2**62, 315_576_000_000)),
)
anything = st.one_of(
    st.sampled_from(OPTIONS).map(lambda word: (word,)),
    st.sampled_from(VALUES).map(lambda word: (word,)),
    st.sampled_from(PHRASES),
)
lines = st.tuples(st.sampled_from(COMMANDS), st.sampled_from(["h", "s", "v", "no"]), st.lists(anything, max_size=8))


def numbers(reply: Any) -> Iterator[float]:
    """Every double in a reply."""
    if isinstance(reply, float):
        yield reply
    elif isinstance(reply, list | dict):
        for part in reply.values() if isinstance(reply, dict) else reply:
            yield from numbers(part)


@given(st.lists(lines, min_size=1, max_size=12))
def test_no_words_are_too_much(server: Running, commands: list[tuple[str, str, list[tuple[Word, ...]]]]) -> None:
    """Every line is answered: by a reply whose numbers are numbers, or by an error that is not the server's fault."""
    wire = server.wire(3)
    wire("FLUSHALL")
    fill(wire)
    sent = [(f"MEM.{name}", key, *itertools.chain.from_iterable(rest)) for name, key, rest in commands]
    for command, reply in zip(sent, wire.pipeline(*sent), strict=True):
        assert not (isinstance(reply, WireError) and "internal" in str(reply)), f"{command}: {reply}"
        assert not isinstance(reply, WireError) or str(reply).startswith("ERR "), f"{command}: {reply}"
        assert all(x == x for x in numbers(reply)), f"{command}: {reply}"
    assert wire("PING") == "PONG"
    wire.close()
