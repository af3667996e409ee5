"""MEM.SEARCH, VSEARCH, QUERY, EXPLAIN, LIST, FORGET: what looks at many records, on a view, in a thread if large."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import numpy as np

from ..index import cascade
from ..index.errors import BadMemory
from ..index.filters import Clause
from ..index.matches import Plan
from ..index.memory import NEVER, Memory
from ..index.query import Query, Result
from ..index.settings import FUSIONS
from ..index.side import KNOWN_TO
from ..index.view import View, matching
from ..protocol.encoder import encode
from ..protocol.reply import Encoded
from .arguments import Floats, Words
from .aside import ON_LOOP, change
from .cascade import CASCADE_OPTIONS, CASCADE_USAGE, Cascade, covered
from .commands import command
from .embedded import read_with_vector, widened
from .entries import Entry, Forget, Remove
from .errors import CommandError, syntax_error
from .filter_words import read_filter, read_tags
from .hits import HitFlags, hit_arrays, hit_maps, stats_map
from .memory_commands import find, half_life, weights
from .query_counts import count_query
from .record_commands import remove
from .record_maps import RecordFlags, record_map
from .record_vectors import check_vector
from .uses import use_counter

if TYPE_CHECKING:
    from .client import Client

_PAGE_USAGE = (
    "[TOPK k] [OFFSET n] [MINSCORE x] [FILTER field op value]* [TAGS ANY|ALL n tag1 .. tagn]* [ASOF time]"
    " [KNOWNAT time] [NOTEXT] [WITHMETA] [WITHTAGS] [WITHVEC [FLOATS]] [WITHSCORES] [EXPLAIN] [WITHSTATS]"
)
_PAGE_OPTIONS = (
    "TOPK k: how many hits, 1 to mem-max-topk (10)",
    "OFFSET n: leave out the first n (0)",
    "MINSCORE x: drop hits whose score is below x (MEM.QUERY: whose LINEAR score is, under either fusion)",
    "FILTER field op value: only records that pass; EQ NE GT GTE LT LTE IN NIN CONTAINS PREFIX EXISTS; repeatable",
    "TAGS ANY|ALL n tag1 .. tagn: only records with one, or all, of these tags; repeatable",
    "ASOF time: what was valid then, as of then; KNOWNAT time: as it was known then; both: what a query then replied."
    " Replaced and deleted records show where the memory holds HISTORY",
    "NOTEXT, WITHMETA, WITHTAGS, WITHVEC [FLOATS], WITHSCORES: which parts of a hit are shown",
    "EXPLAIN: with each hit's score taken apart",
    "WITHSTATS: [hits, map of counts] instead of hits",
)
_QUERY_USAGE = "[TEXT text] [VEC blob | FVEC n f1 .. fn] " + _PAGE_USAGE
_FUSED_USAGE = (
    " [WEIGHTS keyword vector recency importance] [FUSION LINEAR|RRF] [RRFK n] [HALFLIFE seconds] [MINSIM x]"
    " [DIVERSITY lambda] [NOEMBED] [FALLBACK LIKE] [TIER KEYWORD|LIKE]" + CASCADE_USAGE
)
_FUSED_OPTIONS = (
    "WEIGHTS, FUSION, HALFLIFE: instead of the memory's own, for this query",
    "RRFK n: RRF's constant (60)",
    "MINSIM x: drop records whose similarity is below x, or that have no vector",
    "NOEMBED: the memory's embedder makes no vector of the text",
    "FALLBACK LIKE: where no word matches, the records that hold the text literally, the newest first",
    "TIER KEYWORD|LIKE: by words alone, or by the literal text alone",
    "DIVERSITY lambda: reorder the 500 best by lambda*score - (1-lambda)*(largest similarity to one chosen before)",
    *CASCADE_OPTIONS,
)


@dataclass(slots=True)
class Request:
    """A retrieval command's words."""

    query: Query
    flags: HitFlags = field(default_factory=HitFlags)
    filters: list[Clause] = field(default_factory=list)
    cascade: Cascade = field(default_factory=Cascade)


def _read(ctx: Client, words: Words, query: Query) -> Request:
    """Read the options of MEM.SEARCH, VSEARCH or QUERY, by `query.kind`."""
    config = ctx.server.config
    request = Request(query, filters=query.filters)
    query.max_scan = config["mem-max-scan"]
    query.top_k = min(query.top_k, config["mem-max-topk"])
    query.max_terms = config["mem-max-query-terms"]
    while words:
        option = words.option()
        if option == b"TOPK":
            query.top_k = words.integer()
            if not 1 <= query.top_k <= config["mem-max-topk"]:
                raise CommandError(f"TOPK must be between 1 and mem-max-topk ({config['mem-max-topk']})")
        elif option == b"OFFSET":
            query.offset = words.integer()
            if query.offset < 0:
                raise CommandError("OFFSET must not be negative")
        elif option == b"MINSCORE":
            query.min_score = words.real()
        elif option == b"FILTER":
            read_filter(words, query.filters, config)
        elif option == b"TAGS":
            read_tags(words, query.filters, config)
        elif option == b"ASOF":
            query.as_of = words.time()
        elif option == b"KNOWNAT":
            query.known_at = words.time()
        elif option == b"EXPLAIN":
            query.explain = query.explain_id is None  # MEM.EXPLAIN does nothing else
        elif option in (b"VEC", b"FVEC") and query.kind != "keyword":
            query.vector = words.vector(option)
        elif not request.flags.read(option, words) and not (
            query.kind == "fused" and (_fused(option, words, query) or request.cascade.read(option, words))
        ):
            raise words.unexpected()
    if query.kind == "vector" and query.vector is None:
        raise CommandError("VEC or FVEC is required")
    if query.kind == "fused" and query.vector is None and query.text is None:
        raise CommandError("TEXT, VEC, or FVEC is required")
    if query.tier and query.text is None:
        raise CommandError(f"TIER {query.tier.upper()} needs TEXT")
    return request


def _fused(option: bytes, words: Words, query: Query) -> bool:
    """Read one of the options that MEM.QUERY has beyond the others; whether it was one."""
    if option == b"TEXT":
        query.text = words.next()
    elif option == b"WEIGHTS":
        query.weights = weights(words)
    elif option == b"FUSION":
        query.fusion = words.enum(*FUSIONS)
    elif option == b"RRFK":
        query.rrf_k = words.integer()
        if query.rrf_k < 1:
            raise CommandError("RRFK must be positive")
    elif option == b"HALFLIFE":
        query.half_life = half_life(words)
    elif option == b"MINSIM":
        query.min_sim = words.real()
    elif option == b"NOEMBED":
        query.no_embed = True
    elif option == b"FALLBACK":
        words.enum("LIKE")
        query.fallback_like = True
    elif option == b"TIER":
        query.tier = words.enum("KEYWORD", "LIKE").lower()
    elif option == b"DIVERSITY":
        query.diversity = words.real()
        if not 0 <= query.diversity <= 1:
            raise CommandError("DIVERSITY must be between 0 and 1")
    else:
        return False
    return True


def fit_to_memory(memory: Memory, text: bytes | None, vector: Floats | None) -> Floats | None:
    """The query's vector as the memory compares it; raises BadMemory where it compares no vectors, or no text."""
    settings = memory.settings
    if vector is not None:
        vector = check_vector(vector, settings)
    if text is not None and not settings.has_text:
        raise BadMemory("this memory index does not index text; create it with MODE SEARCH or MODE HYBRID")
    return vector


def _prepare(query: Query, memory: Memory) -> None:
    """Fit the query to the memory; raises BadMemory."""
    settings = memory.settings
    embeds = settings.embedder and not query.no_embed and not query.tier and not settings.has_text
    # Where words are not indexed, the embedder makes a vector of them, and LIKE reads the texts.
    text = None if embeds or query.tier == "like" else query.text
    query.vector = fit_to_memory(memory, text, query.vector)
    if query.tier:
        query.vector = None


def _answer(
    ctx: Client, members: dict[bytes, Memory], query: Query, flags: HitFlags, reply: Callable[[View, Result], Any]
) -> Any:
    """Run the query for this moment on these memories, the one that was named first, here or in a thread; where its
    text is to be embedded, as soon as that is done."""
    memory, text = next(iter(members.values())), query.text
    if text is not None and query.tier == "like":
        query = query.as_like(text)
    embeds = text is not None and query.kind == "fused" and query.vector is None and not query.tier
    by_words = memory.settings.has_text
    if embeds and not by_words:
        query.text = None
    plan = cascade.plan(members, query, ctx.now)
    for member in members.values():
        if member.wants_compaction:  # by what queries spent on segments of posting lists
            ctx.server.workers.compact(member)
    # A vector as words is some 0.4 microseconds a number.
    shown = query.top_k * memory.settings.dim * 2000 if flags.floats else 0
    proto = ctx.proto

    def ask(plan: Plan) -> Any:
        return ctx.server.workers.ask(
            memory, plan, shown, lambda result: reply(result.view or plan.view, result), proto
        )

    if not embeds or query.no_embed or text is None:
        return ask(plan)

    def run(vector: bytes | None) -> Any:
        # The plan's memory may have another model by now: its view has the vectors of the one that was asked.
        if vector is not None:
            return ask(replace(plan, query=replace(query, vector=check_vector(widened(vector), plan.view.settings))))
        return ask(plan if by_words else replace(plan, query=query.as_like(text)))

    return read_with_vector(ctx, memory, text, run)


def _retrieve(ctx: Client, key: bytes, words: Words, query: Query) -> Any:
    request = _read(ctx, words, query)
    memory = find(ctx, key)
    _prepare(query, memory)
    members = covered(ctx, "mem.query", key, memory, request.cascade)
    started = perf_counter_ns()
    # A RESP3 client sees maps; which of the two a RESP2 client sees is a setting. Decided now, not when it is ready.
    shown = hit_maps if ctx.proto == 3 or ctx.server.config["mem-hit-format"] == "map" else hit_arrays
    flags = request.flags
    flags.key = key if request.cascade.asked else None
    query.counts = flags.stats
    seen, count_uses, now = ctx.seen, use_counter(ctx, members), ctx.now
    linear = query.kind == "fused" and (query.fusion or memory.settings.fusion) == "LINEAR"

    def reply(view: View, result: Result) -> Any:
        if count_uses is not None:
            count_uses((view.key(hit.slot), view.ids[hit.slot]) for hit in result.hits)
        count = len(result.hits)
        hits = shown(view, result.hits, flags)
        if seen is not None:
            seen.results, seen.tier = count, result.tier
        took_ns = perf_counter_ns() - started
        best = result.hits[0].score if count and linear and result.tier != "like" else None
        count_query(memory, now, took_ns, count, best)
        return [hits, stats_map(result, took_ns / 1e9)] if flags.stats else hits

    return _answer(ctx, members, query, flags, reply)


@command(
    "MEM.SEARCH",
    arity=-3,
    flags="readonly",
    keys=(1, 1, 1),
    group="retrieval",
    usage="MEM.SEARCH key text " + _PAGE_USAGE,
    complexity="O(postings of the words)",
    options=_PAGE_OPTIONS,
)
def search(ctx: Client, args: list[bytes]) -> Any:
    """Rank records by their words alone (BM25)."""
    return _retrieve(ctx, args[0], Words(args, 2), Query(kind="keyword", text=args[1]))


@command(
    "MEM.VSEARCH",
    arity=-2,
    flags="readonly",
    keys=(1, 1, 1),
    group="retrieval",
    usage="MEM.VSEARCH key (VEC blob | FVEC n f1 .. fn) " + _PAGE_USAGE,
    complexity="O(vectors * dim)",
    options=_PAGE_OPTIONS,
)
def vsearch(ctx: Client, args: list[bytes]) -> Any:
    """Rank records by exact vector similarity alone."""
    return _retrieve(ctx, args[0], Words(args, 1), Query(kind="vector"))


@command(
    "MEM.QUERY",
    arity=-2,
    flags="readonly",
    keys=(1, 1, 1),
    group="retrieval",
    usage="MEM.QUERY key " + _QUERY_USAGE + _FUSED_USAGE,
    complexity="O(records + vectors * dim)",
    options=(
        "TEXT text: the words to look for; VEC blob, FVEC n f1 .. fn: the vector to compare with; one of them at least",
        *_PAGE_OPTIONS,
        *_FUSED_OPTIONS,
    ),
)
def query(ctx: Client, args: list[bytes]) -> Any:
    """Rank records by words, vector, recency and importance, fused."""
    return _retrieve(ctx, args[0], Words(args, 1), Query())


@command(
    "MEM.EXPLAIN",
    arity=-3,
    flags="readonly",
    keys=(1, 1, 1),
    group="retrieval",
    usage="MEM.EXPLAIN key id " + _QUERY_USAGE + _FUSED_USAGE,
    complexity="O(records + vectors * dim)",
    options=("Every option of MEM.QUERY: the query whose ranking of the record is explained",),
)
def explain(ctx: Client, args: list[bytes]) -> Any:
    """Say where a query ranks one record and why, or why not."""
    record_id = args[1]
    asked = Query(explain_id=record_id)
    request = _read(ctx, Words(args, 2), asked)
    memory = find(ctx, args[0])
    _prepare(asked, memory)
    travels = asked.as_of is not None or asked.known_at is not None
    if record_id not in memory and not (travels and memory.has_version(record_id, ctx.now)):
        return {"id": record_id, "reason": "expired" if memory.has_expired(record_id) else "absent"}
    if not travels and memory.slot(record_id) is None:
        return {"id": record_id, "reason": "not valid then"}
    flags, seen = request.flags, ctx.seen

    def reply(view: View, result: Result) -> Any:
        if seen is not None:
            seen.results, seen.tier = len(result.hits), result.tier
        found: dict[str, Any] = {"id": record_id}
        if result.reason is not None:
            found["reason"] = result.reason
        if result.rank is not None:
            found["rank"] = result.rank
        if result.hits:
            hit = result.hits[0]
            found["score"] = hit.score
            found.update(hit.explain or {})
        if flags.stats and result.reason not in ("absent", "not valid then"):
            found["stats"] = stats_map(result, 0.0)
        return found

    return _answer(ctx, covered(ctx, "mem.explain", args[0], memory, request.cascade), asked, flags, reply)


@command(
    "MEM.LIST",
    arity=-2,
    flags="readonly",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.LIST key [LIMIT n] [OFFSET n] [TAGS ANY|ALL n tag1 .. tagn]* [FILTER field op value]* [NOTEXT]"
    " [WITHMETA] [WITHVEC [FLOATS]]",
    complexity="O(records)",
    options=("LIMIT n: how many, 1 to 1000 (20)", "OFFSET n: leave out the first n (0)", *_PAGE_OPTIONS[3:5]),
)
def list_records(ctx: Client, args: list[bytes]) -> Any:
    """Show records, the newest updated_at first."""
    words, limit, offset = Words(args, 1), 20, 0
    flags, clauses = RecordFlags(), list[Clause]()
    while words:
        option = words.option()
        if option == b"LIMIT":
            limit = words.integer()
            if not 1 <= limit <= 1000:
                raise CommandError("LIMIT must be between 1 and 1000")
        elif option == b"OFFSET":
            offset = words.integer()
            if offset < 0:
                raise CommandError("OFFSET must not be negative")
        elif option == b"TAGS":
            read_tags(words, clauses, ctx.server.config)
        elif option == b"FILTER":
            read_filter(words, clauses, ctx.server.config)
        elif not flags.read(option, words):
            raise words.unexpected()
    memory = find(ctx, args[0])
    view, seen = memory.view(ctx.now), ctx.seen

    def page() -> list[Any]:
        slots = _newest(view, _passing(view, clauses), offset + limit)
        if seen is not None:
            seen.results = len(slots[offset:])
        return [record_map(view, slot, flags) for slot in slots[offset:]]

    return ctx.server.workers.submit(memory, _walk_cost(view), page, ctx.proto)


def _walk_cost(view: View) -> int:
    # A filter looks at a record in about a microsecond.
    return view.n * 1000


def _passing(view: View, clauses: list[Clause]) -> Any:
    """The slots of the live records that pass, ascending."""
    masks = [clause.mask(view) for clause in clauses]
    alive = view.alive()
    mask = matching(masks if alive is None else [alive, *masks])
    return np.arange(view.n) if mask is None else np.flatnonzero(mask)


def _newest(view: View, slots: Any, count: int) -> list[int]:
    """The first `count` by newest updated_at, then smaller id."""
    updated = view.updated[slots]
    if count < len(slots):
        # Those as new as the last one that fits stay in: their ids decide.
        slots = slots[updated >= np.partition(updated, len(updated) - count)[len(updated) - count]]
    ids = view.ids
    times = view.updated
    return sorted(slots.tolist(), key=lambda slot: (-int(times[slot]), ids[slot]))[:count]


@command(
    "MEM.FORGET",
    arity=-4,
    flags="write",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.FORGET key (FILTER field op value | TAGS ANY|ALL n tag1 .. tagn)* [DRYRUN]",
    complexity="O(records)",
    options=("DRYRUN: only say which", *_PAGE_OPTIONS[3:5]),
)
def forget(ctx: Client, args: list[bytes]) -> Any:
    """Delete all records that pass; how many and which."""
    words, clauses, dry_run = Words(args, 1), list[Clause](), False
    while words:
        option = words.option()
        if option == b"DRYRUN":
            dry_run = True
        elif option == b"FILTER":
            read_filter(words, clauses, ctx.server.config)
        elif option == b"TAGS":
            read_tags(words, clauses, ctx.server.config)
        else:
            raise words.unexpected()
    if not clauses:
        raise syntax_error()
    key = args[0]
    memory = find(ctx, key)
    views = memory.views(ctx.now)
    if ctx.must_finish:
        return _forget_all(ctx, key, memory, 0, clauses, dry_run)
    cost = sum(map(_walk_cost, views))
    found = ctx.server.workers.submit(memory, cost, lambda: [_passing(view, clauses).tolist() for view in views])
    if not isinstance(found, Future):
        return _forget(ctx, key, memory, _named(memory, views, found), dry_run)
    return ctx.write_after(found, lambda slots: _forget_late(ctx, key, memory, views, slots, clauses, dry_run))


#: Of a record: its id and, where it has gone and history holds a version of it, its serial, else 0.
_Name = tuple[bytes, int]


def _named(memory: Memory, views: list[View], slots: list[list[int]]) -> set[_Name]:
    """The records of which these rows are: current ones, and those gone ones of which history holds a version."""
    names: set[_Name] = set()
    for view, some in zip(views, slots, strict=True):
        known_to = view.side_column(KNOWN_TO)
        horizon = memory.horizon(view.now)
        for slot in some:
            if known_to is None or known_to[slot] == NEVER:
                names.add((view.ids[slot], 0))
            elif known_to[slot] > horizon:
                names.add((view.ids[slot], int(view.serials[slot])))
    return names


def _forget(ctx: Client, key: bytes, memory: Memory, names: set[_Name], dry_run: bool) -> list[Any]:
    """Delete these records as far as they are there, with every version, and announce it; the reply."""
    ids = sorted((each for each, serial in names if not serial and each in memory), key=memory.serial)
    if not dry_run and memory.past is None:
        remove(ctx, key, tuple(ids))
    elif not dry_run:
        current = {each: memory.serial(each) for each, serial in names if serial and each in memory}
        gone = sorted({serial for each, serial in names if serial and current.get(each) != serial})
        if ids or gone:
            ctx.server.commit(Forget(key, tuple(ids), tuple(gone), ctx.now))
        for record_id in ids:
            ctx.server.announce(key, b"del " + record_id)
    return [len(ids), ids]


def _forget_late(
    ctx: Client,
    key: bytes,
    memory: Memory,
    views: list[View],
    slots: list[list[int]],
    clauses: list[Clause],
    dry_run: bool,
) -> Any:
    """Delete what a thread found, as things stand now: rows that died stay out, rows written since are looked at."""
    if find(ctx, key) is not memory:
        raise CommandError("the key was replaced while its records were being looked at; nothing was deleted")
    found = sum(map(len, slots))
    if found > ON_LOOP:
        return _forget_all(ctx, key, memory, found, clauses, dry_run)
    names = _named(memory, views, slots)
    now = memory.views(ctx.now)
    written = [memory.written_since(next((old for old in views if old.same_rows(view)), None), view) for view in now]
    late = _named(memory, now, [_by_record(view, some, clauses) for view, some in zip(now, written, strict=True)])
    rewritten = _named(memory, now, written)
    if not dry_run and ctx.server.log.failure is not None:
        raise CommandError(ctx.server.log.failure, "MISCONF")
    return _forget(ctx, key, memory, (names - rewritten) | late, dry_run)


def _forget_all(ctx: Client, key: bytes, memory: Memory, rows: int, clauses: list[Clause], dry_run: bool) -> Any:
    """Delete what passes, some `rows` records; where they are many, aside. The reply, or a future of it."""
    proto = ctx.proto
    ids: list[bytes] = []
    encoded: list[Encoded] = []

    def settle(memory: Memory) -> list[Entry]:
        now = ctx.now
        # The encoded columns of a copy are nobody else's.
        views = (memory if rows > ON_LOOP else memory.copy()).views(now)
        ids[:], serials = _passing_records(memory, views, clauses)
        if rows > ON_LOOP:
            encoded[:] = [Encoded(encode([len(ids), ids], proto))]
        if dry_run or not (ids or serials):
            return []
        if memory.past is None:
            return [Remove(key, tuple(ids), now)]
        return [Forget(key, tuple(ids), tuple(serials), now)]

    def finish(group: list[Entry]) -> Any:
        for record_id in ids if group and ctx.server.pubsub.active else ():
            ctx.server.announce(key, b"del " + record_id)
        return encoded[0] if encoded else [len(ids), ids]

    return change(ctx, key, memory, rows, settle, finish)


def _passing_records(memory: Memory, views: list[View], clauses: list[Clause]) -> tuple[list[bytes], list[int]]:
    """The records that pass: the ids of the current ones, in the order of their writing, and the serials of those that
    have gone and of which history holds a version."""
    ids: list[bytes] = []
    serials: list[int] = []
    gone: set[int] = set()
    for view in views:
        slots = _passing(view, clauses)
        known_to = view.side_column(KNOWN_TO)
        if known_to is not None:
            until = known_to[slots]
            for slot in slots[(until != NEVER) & (until > memory.horizon(view.now))].tolist():
                record_id, serial = view.ids[slot], int(view.serials[slot])
                if record_id not in memory or memory.serial(record_id) != serial:
                    gone.add(serial)
            slots = slots[until == NEVER]
        ids += [view.ids[slot] for slot in slots.tolist()]
        serials += view.serials[slots].tolist()
    order = np.argsort(np.array(serials, np.int64)).tolist()
    return [ids[place] for place in order], sorted(gone)


def _by_record(view: View, slots: list[int], clauses: list[Clause]) -> list[int]:
    return [slot for slot in slots if all(clause.matches(view.row(slot)) for clause in clauses)]
