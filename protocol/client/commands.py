"""The MEM.* commands: each function builds one command and says how its reply is read. Nothing here sends anything.

    found = query("user:1", "where are the keys?", top_k=3)
    found.parse(client.execute_command(*found.words))

Rule 1: an option that is None is not sent, so that the server's default holds.
Rule 2: what an argument means is the server's to judge; only what cannot be put into words is an error here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Literal, NotRequired, TypedDict, TypeVar, Unpack

from . import replies, words
from .filters import Filters, filter_words
from .results import Added, Config, Embedded, Explanation, Hits, Info, QueryCounts, Read, Record, Retention, Verified
from .words import Meta, Span, Text, Time, Vector

T = TypeVar("T")
Words = tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Command(Generic[T]):
    """A command's words, none where there is nothing to ask, and how its reply is read.

    `settled_by`: the error that is an answer too, read as None.
    """

    words: tuple[bytes | str, ...]
    parse: Callable[[Any], T]
    settled_by: str | None = None


def opt(name: str, value: Any, read: Callable[[Any], bytes] = words.text) -> Words:
    return () if value is None else (name.encode(), read(value))


def flag(name: str, on: bool) -> Words:
    return (name.encode(),) if on else ()


def meta_words(meta: Meta | None) -> Words:
    return tuple(
        word for field, value in (meta or {}).items() for word in (b"META", words.text(field), _meta_value(value))
    )


def _meta_value(value: Any) -> bytes:
    return words.text(value) if isinstance(value, str | bytes) else words.number(value)


def tag_words(tags: Iterable[Text] | None) -> Words:
    return () if tags is None else (b"TAGS", *words.counted(tags))


# -- memories


class ConfigOptions(TypedDict, total=False):
    """What `configure` can change: weights are of keyword, vector, recency and importance, half_life in seconds.

    Another embedder, model or dim replaces all vectors. embedder "NONE" is none.
    """

    weights: Sequence[float] | None
    half_life: Span | None
    fusion: Literal["LINEAR", "RRF"] | None
    k1: float | None
    b: float | None
    embedder: str | None
    model: str | None
    dim: int | None
    tag_boost: float | None
    history: Span | Literal["ALL"] | None
    max_records: int | None
    max_bytes: int | None


def _settings(
    *,
    weights: Sequence[float] | None = None,
    half_life: Span | None = None,
    fusion: str | None = None,
    k1: float | None = None,
    b: float | None = None,
    embedder: str | None = None,
    model: str | None = None,
    dim: int | None = None,
    tag_boost: float | None = None,
    history: Span | str | None = None,
    max_records: int | None = None,
    max_bytes: int | None = None,
) -> Words:
    return (
        *_weights(weights),
        *opt("HALFLIFE", half_life, words.seconds),
        *opt("FUSION", fusion),
        *opt("K1", k1, words.number),
        *opt("B", b, words.number),
        *opt("EMBEDDER", embedder),
        *opt("MODEL", model),
        *opt("DIM", dim, words.number),
        *opt("TAGBOOST", tag_boost, words.number),
        *opt("HISTORY", history, lambda value: words.text(value) if isinstance(value, str) else words.seconds(value)),
        *opt("MAXRECORDS", max_records, words.number),
        *opt("MAXBYTES", max_bytes, words.number),
    )


def _weights(weights: Sequence[float] | None) -> Words:
    return () if weights is None else (b"WEIGHTS", *map(words.number, weights))


def create(
    key: Text,
    *,
    mode: Literal["SEARCH", "VECTOR", "HYBRID"] | None = None,
    metric: Literal["COSINE", "L2", "IP"] | None = None,
    lang: str | None = None,
    exists_ok: bool = False,
    **settings: Unpack[ConfigOptions],
) -> Command[bool]:
    """Make the memory; True. With exists_ok: False where there is one, which stays as it is."""
    options = (
        *opt("MODE", mode),
        *opt("METRIC", metric),
        *opt("LANG", lang),
        *_settings(**settings),
    )
    settled_by = "memory index already exists" if exists_ok else None
    return Command(("MEM.CREATE", words.text(key), *options), lambda reply: reply is not None, settled_by)


def config(key: Text) -> Command[Config]:
    """The memory's settings."""
    return Command(("MEM.CONFIG", words.text(key)), replies.config)


def configure(key: Text, **settings: Unpack[ConfigOptions]) -> Command[None]:
    """Change settings; records stay as they are."""
    options = _settings(**settings)
    return Command(("MEM.CONFIG", words.text(key), *options) if options else (), lambda _: None)


def info(key: Text) -> Command[Info]:
    """The memory's settings, counts and size."""
    return Command(("MEM.INFO", words.text(key)), replies.info)


def count(key: Text) -> Command[int]:
    """How many records it has."""
    return Command(("MEM.CARD", words.text(key)), replies.integer)


def tier(key: Text) -> Command[str]:
    """What the next query with a text would use: hybrid, keyword, vector or like."""
    return Command(("MEM.TIER", words.text(key)), replies.text)


def embed(key: Text, *, count: int | None = None) -> Command[Embedded]:
    """Make the vectors that the memory lacks, now, `count` of them at most."""
    return Command(("MEM.EMBED", words.text(key), *opt("COUNT", count, words.number)), replies.embedded)


def stats(key: Text) -> Command[QueryCounts]:
    """What the memory was asked since the server started: how often, how long it took, how well hits scored."""
    return Command(("MEM.STATS", words.text(key)), replies.query_counts)


def evict(key: Text, *, count: int | None = None, dry_run: bool = False) -> Command[list[Retention]]:
    """Evict the `count` (1) records of least retention, as a full memory does by itself; which. dry_run: only say."""
    options = (*opt("COUNT", count, words.number), *flag("DRYRUN", dry_run))
    return Command(("MEM.EVICT", words.text(key), *options), lambda reply: list(map(replies.retention, reply)))


def audit(
    key: Text, *, limit: int | None = None, accessor: Text | None = None, since: Time | None = None
) -> Command[list[Read]]:
    """Who read the memory, the newest first, as far as the server's mem-audit has it; of a user, from a time on."""
    options = (*opt("LIMIT", limit, words.number), *opt("ACCESSOR", accessor), *opt("FROM", since, words.time))
    return Command(("MEM.AUDIT", words.text(key), *options), lambda reply: list(map(replies.read, reply)))


# -- records


class NewRecord(TypedDict):
    """A record for `add_many`: `add`'s arguments."""

    text: Text
    vector: NotRequired[Vector | None]
    meta: NotRequired[Meta | None]
    tags: NotRequired[Iterable[Text] | None]
    importance: NotRequired[float | None]
    ttl: NotRequired[Span | None]
    at: NotRequired[Time | None]
    id: NotRequired[Text | None]
    kind: NotRequired[Literal["note", "episode"] | None]
    valid_at: NotRequired[Time | None]
    valid_until: NotRequired[Time | None]
    pin: NotRequired[bool]
    keepvec: NotRequired[bool]
    nx: NotRequired[bool]
    xx: NotRequired[bool]


def add(
    key: Text,
    text: Text,
    *,
    vector: Vector | None = None,
    meta: Meta | None = None,
    tags: Iterable[Text] | None = None,
    importance: float | None = None,
    ttl: Span | None = None,
    at: Time | None = None,
    id: Text | None = None,
    kind: Literal["note", "episode"] | None = None,
    valid_at: Time | None = None,
    valid_until: Time | None = None,
    pin: bool = False,
    keepvec: bool = False,
    nx: bool = False,
    xx: bool = False,
    dedup: bool = False,
    near: float | None = None,
) -> Command[Added]:
    """Store a record, or write over the one with its id, keeping what is not named; its id.

    `at` is the time of writing. pin: it is never evicted. nx: only where the id is new, xx: only where it exists.
    keepvec: the vector stays although the text changes. dedup: where a record has this text already, case and spaces
    aside, nothing is stored and the id is that one's (`Added.stored`); `near`, which implies it: records of at least
    this similarity are named too (`Added.near`), and only that.
    """
    options = (
        *opt("ID", id),
        *opt("TEXT", text),
        *vector_words(vector),
        *meta_words(meta),
        *tag_words(tags),
        *opt("IMPORTANCE", importance, words.number),
        *opt("TTL", ttl, words.seconds),
        *opt("AT", at, words.time),
        *opt("VALIDAT", valid_at, words.time),
        *opt("VALIDUNTIL", valid_until, words.time),
        *opt("KIND", kind),
        *flag("PIN", pin),
        *flag("KEEPVEC", keepvec),
        *flag("NX", nx),
        *flag("XX", xx),
        *flag("DEDUP", dedup or near is not None),
        *opt("NEAR", near, words.number),
    )
    return Command(("MEM.ADD", words.text(key), *options), replies.added)


def vector_words(value: Vector | None) -> Words:
    return opt("VEC", value, words.vector)


def add_many(key: Text, records: Iterable[NewRecord | Text]) -> Command[list[str]]:
    """Store records, all or none; their ids. A record is a dict of `add`'s arguments, or its text alone."""
    adds = [add(key, each) if isinstance(each, str | bytes) else add(key, **each) for each in records]
    batch = [word for one in adds for word in ("RECORD", *one.words[2:])]
    return Command(("MEM.MADD", words.text(key), words.number(len(adds)), *batch) if adds else (), _ids)


def _ids(reply: list[bytes] | None) -> list[str]:
    return list(map(replies.text, reply or ()))


def get(
    key: Text,
    id: Text,
    *,
    with_text: bool = True,
    with_meta: bool = True,
    with_vector: bool = False,
    with_fact: bool = False,
) -> Command[Record | None]:
    """The record with this id, or content id (`Record.cid`), None where there is none; with_fact: with its `fact` where
    it is one."""
    flags = (*_record_flags(with_text, with_meta, with_vector), *flag("WITHFACT", with_fact))
    return Command(("MEM.GET", words.text(key), words.text(id), *flags), replies.record)


def _record_flags(with_text: bool, with_meta: bool, with_vector: bool) -> Words:
    return (*flag("NOTEXT", not with_text), *flag("WITHMETA", with_meta), *flag("WITHVEC", with_vector))


def verify(key: Text, id: Text | None = None) -> Command[Verified]:
    """Hash the texts again, or that of one id or content id: whether they are what they were."""
    return Command(("MEM.VERIFY", words.text(key), *(() if id is None else (words.text(id),))), replies.verified)


def mget(key: Text, ids: Iterable[Text]) -> Command[list[Record | None]]:
    """The records with these ids, None for each that is not there; without metadata and vectors."""
    some = words.counted(ids)[1:]
    return Command(
        ("MEM.MGET", words.text(key), *some) if some else (),
        lambda reply: [replies.record(each) for each in reply or ()],
    )


def delete(key: Text, *ids: Text) -> Command[int]:
    """Remove records; how many there were."""
    return Command(
        ("MEM.DEL", words.text(key), *map(words.text, ids)) if ids else (),
        lambda reply: 0 if reply is None else int(reply),
    )


def set_meta(key: Text, id: Text, meta: Meta) -> Command[int]:
    """Set metadata fields, the others stay; how many were new."""
    return Command(("MEM.SETMETA", words.text(key), words.text(id), *_pairs(meta)), replies.integer)


def _pairs(meta: Meta) -> Words:
    return tuple(word for field, value in meta.items() for word in (words.text(field), _meta_value(value)))


def delete_meta(key: Text, id: Text, *fields: Text) -> Command[int]:
    """Remove metadata fields; how many there were."""
    return Command(("MEM.DELMETA", words.text(key), words.text(id), *map(words.text, fields)), replies.integer)


def expire(key: Text, id: Text, ttl: Span | None) -> Command[bool]:
    """Let a record go in `ttl`, None: never; False where there is none."""
    return Command(("MEM.EXPIRE", words.text(key), words.text(id), b"0" if ttl is None else words.seconds(ttl)), bool)


def scan_page(
    key: Text, cursor: int = 0, *, count: int | None = None, filters: Filters = ()
) -> Command[tuple[int, list[str]]]:
    """One step of a walk over all ids: the next cursor, 0 at the end, and ids."""
    options = (*opt("COUNT", count, words.number), *filter_words(filters))
    return Command(
        ("MEM.SCAN", words.text(key), words.number(cursor), *options),
        lambda reply: (replies.integer(reply[0]), _ids(reply[1])),
    )


def list_records(
    key: Text,
    *,
    limit: int | None = None,
    offset: int | None = None,
    filters: Filters = (),
    with_text: bool = True,
    with_meta: bool = True,
    with_vector: bool = False,
) -> Command[list[Record]]:
    """Records, the newest updated_at first."""
    options = (
        *opt("LIMIT", limit, words.number),
        *opt("OFFSET", offset, words.number),
        *filter_words(filters),
        *_record_flags(with_text, with_meta, with_vector),
    )
    return Command(("MEM.LIST", words.text(key), *options), replies.records)


def forget(key: Text, filters: Filters, *, dry_run: bool = False) -> Command[list[str]]:
    """Delete all records that pass, every version of them; their ids. dry_run: only say which."""
    return Command(
        ("MEM.FORGET", words.text(key), *filter_words(filters), *flag("DRYRUN", dry_run)), lambda reply: _ids(reply[1])
    )


# -- retrieval


class SearchOptions(TypedDict, total=False):
    """What `search`, `vsearch` and `query` have in common."""

    top_k: int | None
    offset: int | None
    min_score: float | None
    filters: Filters
    as_of: Time | None
    known_at: Time | None
    with_text: bool
    with_meta: bool
    with_vector: bool
    explain: bool
    stats: bool


class QueryOptions(SearchOptions, total=False):
    """What `query` and `explain` have beyond the others."""

    weights: Sequence[float] | None
    fusion: Literal["LINEAR", "RRF"] | None
    rrf_k: int | None
    half_life: Span | None
    min_sim: float | None
    diversity: float | None
    embed: bool
    fallback: Literal["LIKE"] | None
    tier: Literal["KEYWORD", "LIKE"] | None
    cascade: Literal["UP", "DOWN"] | None
    across: Iterable[Text] | None


def _retrieve(
    command: tuple[bytes | str, ...],
    *,
    top_k: int | None = None,
    offset: int | None = None,
    min_score: float | None = None,
    filters: Filters = (),
    as_of: Time | None = None,
    known_at: Time | None = None,
    with_text: bool = True,
    with_meta: bool = True,
    with_vector: bool = False,
    explain: bool = False,
    stats: bool = False,
    weights: Sequence[float] | None = None,
    fusion: str | None = None,
    rrf_k: int | None = None,
    half_life: Span | None = None,
    min_sim: float | None = None,
    diversity: float | None = None,
    embed: bool = True,
    fallback: str | None = None,
    tier: str | None = None,
    cascade: str | None = None,
    across: Iterable[Text] | None = None,
) -> Command[Hits]:
    options = (
        *opt("TOPK", top_k, words.number),
        *opt("OFFSET", offset, words.number),
        *opt("MINSCORE", min_score, words.number),
        *filter_words(filters),
        *opt("ASOF", as_of, words.time),
        *opt("KNOWNAT", known_at, words.time),
        *_weights(weights),
        *opt("FUSION", fusion),
        *opt("RRFK", rrf_k, words.number),
        *opt("HALFLIFE", half_life, words.seconds),
        *opt("MINSIM", min_sim, words.number),
        *opt("DIVERSITY", diversity, words.number),
        *flag("NOEMBED", not embed),
        *opt("FALLBACK", fallback),
        *opt("TIER", tier),
        *cascade_words(cascade, across),
        *_record_flags(with_text, with_meta, with_vector),
        *(b"WITHTAGS", b"WITHSCORES"),
        *flag("EXPLAIN", explain),
        *flag("WITHSTATS", stats),
    )
    form = replies.HitForm(
        key=cascade is not None or across is not None,
        text=with_text,
        meta=with_meta,
        vector=with_vector,
        explain=explain,
        stats=stats,
    )
    return Command((*command, *options), partial(replies.hits, form=form))


def cascade_words(direction: str | None, across: Iterable[Text] | None) -> Words:
    return (*opt("CASCADE", direction), *(() if across is None else (b"ACROSS", *words.counted(across))))


def search(key: Text, text: Text, **options: Unpack[SearchOptions]) -> Command[Hits]:
    """Rank records by their words alone (BM25)."""
    return _retrieve(("MEM.SEARCH", words.text(key), words.text(text)), **options)


def vsearch(key: Text, vector: Vector, **options: Unpack[SearchOptions]) -> Command[Hits]:
    """Rank records by exact vector similarity alone."""
    return _retrieve(("MEM.VSEARCH", words.text(key), *vector_words(vector)), **options)


def query(
    key: Text, text: Text | None = None, vector: Vector | None = None, **options: Unpack[QueryOptions]
) -> Command[Hits]:
    """Rank records by words, vector, recency and importance, fused; the text or the vector may be left out."""
    return _retrieve(("MEM.QUERY", words.text(key), *opt("TEXT", text), *vector_words(vector)), **options)


def explain(
    key: Text, id: Text, text: Text | None = None, vector: Vector | None = None, **options: Unpack[QueryOptions]
) -> Command[Explanation]:
    """Say where `query` with these arguments ranks one record and why, or why not."""
    return Command(
        _retrieve(
            ("MEM.EXPLAIN", words.text(key), words.text(id), *opt("TEXT", text), *vector_words(vector)), **options
        ).words,
        replies.explanation,
    )


def channel(key: Text) -> bytes:
    """Where writes to the memory are announced."""
    return b"__mem__:" + words.text(key)
