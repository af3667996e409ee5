"""MEM.RECALL: what an agent should be told before it answers, as one block of text or as its parts."""

from __future__ import annotations

from asyncio import Future
from collections.abc import Callable, Mapping
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any, NamedTuple

from ..index import recall as recalling
from ..index.block import Block, Episode, Line, render
from ..index.memory import Memory
from ..index.recall import Recall, Recalled, RecallHit
from .arguments import Words
from .cascade import CASCADE_OPTIONS, CASCADE_USAGE, Cascade, covered
from .commands import command
from .embedded import read_with_vector, widened
from .entity_commands import entity_shown
from .errors import CommandError
from .fact_maps import FactRow, fact_map, fact_row
from .hits import key_of
from .memory_commands import find
from .query_commands import fit_to_memory
from .query_counts import count_query
from .record_maps import RecordFlags, record_map
from .record_vectors import check_vector
from .synthesis import synthesise
from .uses import use_counter

if TYPE_CHECKING:
    from .client import Client
    from .config import Config

_MOST = 1000


class _Asked(NamedTuple):
    """MEM.RECALL's words; `budget` is None for none."""

    recall: Recall
    budget: int | None
    as_map: bool
    with_prose: bool
    cascade: Cascade


class _Shown(NamedTuple):
    """A reply, and the facts and the texts of the episodes that it shows."""

    reply: Any
    facts: list[FactRow]
    episodes: list[bytes]


def defaults(config: Config) -> Recall:
    """What is asked where nothing is said."""
    return Recall(
        facts=config["mem-recall-facts"],
        min_confidence=config["mem-recall-minconf"],
        anchor_top_k=config["mem-anchor-topk"],
        anchor_min=config["mem-anchor-min"],
        max_scan=config["mem-max-scan"],
        max_terms=config["mem-max-query-terms"],
    )


def recalled(
    ctx: Client, members: Mapping[bytes, Memory], asked: Recall, finish: Callable[[Recalled], Any], proto: int = 0
) -> Any:
    """`finish(what is found as of now in these memories)`, or a future of it; the first of them is the one that was
    named. With `proto` that is a reply, and a thread encodes it."""
    memory = next(iter(members.values()))
    settings = memory.settings
    text = None if settings.embedder and not settings.has_text else asked.text  # the embedder makes a vector of it
    asked.vector = fit_to_memory(memory, text, asked.vector)
    plan = recalling.plan(members, asked, ctx.now)

    def ask(vector: bytes | None) -> Any:
        final = plan
        if vector is not None:
            final = recalling.with_vector(plan, check_vector(widened(vector), plan.plan.view.settings))
        return ctx.server.workers.submit(memory, final.cost, lambda: finish(recalling.run(final)), proto)

    if asked.text is None or asked.vector is not None:
        return ask(None)
    return read_with_vector(ctx, memory, asked.text, ask)


def _read(words: Words, config: Config) -> _Asked:
    asked = defaults(config)
    budget, as_map, with_prose, cascade = None, False, False, Cascade()
    while words:
        option = words.option()
        if option == b"TEXT":
            asked.text = words.next()
        elif option in (b"VEC", b"FVEC"):
            asked.vector = words.vector(option)
        elif option == b"FACTS":
            asked.facts = _count(words, "FACTS")
        elif option == b"EPISODES":
            asked.episodes = _count(words, "EPISODES")
        elif option == b"ANCHORTOPK":
            asked.anchor_top_k = _count(words, "ANCHORTOPK")
        elif option == b"MINCONF":
            asked.min_confidence = words.weight()
            if not 0 <= asked.min_confidence <= 1:
                raise CommandError("MINCONF must be between 0 and 1")
        elif option == b"ANCHORMIN":
            asked.anchor_min = words.weight()
            if not -1 <= asked.anchor_min <= 1:
                raise CommandError("ANCHORMIN must be between -1 and 1")
        elif option == b"ASOF":
            asked.as_of = words.time()
        elif option == b"BUDGET":
            budget = words.integer()
            if budget < 1:
                raise CommandError("BUDGET must be positive")
        elif option == b"FALLBACK":
            words.enum("RECENT")
            asked.recent = True
        elif option == b"FORMAT":
            as_map = words.enum("TEXT", "MAP") == "MAP"
        elif option == b"SYNTHESIS":
            with_prose = True
        elif not cascade.read(option, words):
            raise words.unexpected()
    return _Asked(asked, budget, as_map, with_prose, cascade)


def _count(words: Words, name: str) -> int:
    value = words.integer()
    if not 0 <= value <= _MOST:
        raise CommandError(f"{name} must be between 0 and {_MOST}")
    return value


@command(
    "MEM.RECALL",
    arity=-2,
    flags="readonly",
    keys=(1, 1, 1),
    group="facts",
    usage="MEM.RECALL key [TEXT text] [VEC blob | FVEC n f1 .. fn] [FACTS n] [EPISODES n] [MINCONF c] [ANCHORTOPK n]"
    " [ANCHORMIN x] [ASOF time] [BUDGET tokens] [FALLBACK RECENT] [SYNTHESIS] [FORMAT TEXT|MAP]"
    + CASCADE_USAGE,
    complexity="O(records + vectors * dim + facts about the entities named)",
    options=(
        "TEXT text, VEC blob, FVEC n f1 .. fn: what it is about; without any, the facts of the latest valid_at",
        "FACTS n: how many facts, 0 to 1000 (mem-recall-facts)",
        "EPISODES n: with the n nearest episodes, 0 to 1000 (0)",
        "MINCONF c: only facts of this confidence or more (mem-recall-minconf)",
        "ANCHORTOPK n: how many entities near the vector count as named, 0 to 1000 (mem-anchor-topk); ANCHORMIN x: if"
        " their similarity is at least x (mem-anchor-min)",
        "ASOF time: the facts that were valid then",
        "BUDGET tokens: leave out the last facts until the block has at most so many times 4 characters",
        "FALLBACK RECENT: where nothing matches, the facts of the latest valid_at",
        "SYNTHESIS: with a paragraph of prose that the model of inference-url makes of it",
        "FORMAT TEXT|MAP: the block (TEXT), or it and what it is made of",
        *CASCADE_OPTIONS,
    ),
)
def recall(ctx: Client, args: list[bytes]) -> Any:
    """Find the facts that a query needs, by vector, named entities and words, and render them as one text block."""
    asked = _read(Words(args, 1), ctx.server.config)
    if asked.with_prose:
        ctx.server.inference.check_on()
        if ctx.in_exec:
            raise CommandError("SYNTHESIS is not possible in a transaction: it waits for another server")
    key, seen = args[0], ctx.seen
    memory = find(ctx, key)
    members = covered(ctx, "mem.recall", key, memory, asked.cascade)
    named = key if asked.cascade.asked else None
    count_uses = use_counter(ctx, members)
    started, now = perf_counter_ns(), ctx.now

    def rendered(found: Recalled) -> tuple[Any, Block]:
        block = render(_lines(found), _episodes(found), asked.budget)
        if seen is not None:
            seen.results = len(block.shown)
        if count_uses is not None:
            facts, episodes = _within(found, block)
            slots = [*(hit.slot for hit in facts), *episodes]
            count_uses((found.view.key(slot), found.view.ids[slot]) for slot in slots)
        count_query(memory, now, perf_counter_ns() - started, len(block.shown))
        return _map(found, block, named) if asked.as_map else block.text, block

    def shown(found: Recalled) -> _Shown:
        reply, block = rendered(found)
        facts, episodes = _within(found, block)
        rows = [fact_row(found.view, hit.slot) for hit in facts]
        return _Shown(reply, rows, [found.view.texts[slot] for slot in episodes])

    if not asked.with_prose:
        return recalled(ctx, members, asked.recall, lambda found: rendered(found)[0], ctx.proto)
    found = recalled(ctx, members, asked.recall, shown)
    return ctx.server.inference.start(_with_prose(ctx, asked, found))


async def _with_prose(ctx: Client, asked: _Asked, found: Any) -> Any:
    shown: _Shown = await found if isinstance(found, Future) else found
    prose, error = await synthesise(ctx, asked.recall.text, shown.facts, shown.episodes)
    if asked.as_map:
        return {**shown.reply, "synthesis": prose, "synthesis_error": error}
    return shown.reply if prose is None else b"%b\n\n# SYNTHESIS\n%b" % (shown.reply, prose.encode())


def _lines(found: Recalled) -> list[Line]:
    lines = []
    for hit in found.facts:
        row = fact_row(found.view, hit.slot)
        name, entity_type = row.fact.object if row.fact.entity_type else row.fact.subject, b""
        if hit.anchor is not None:
            name, entity_type = hit.anchor.name, hit.anchor.type
        text = found.view.texts[hit.slot]
        until = min(row.valid_until, row.invalid_at)
        lines.append(Line(row.id, text, row.fact.subject, name, entity_type, row.valid_at, until))
    return lines


def _episodes(found: Recalled) -> list[Episode]:
    view = found.view
    return [Episode(view.ids[slot], view.texts[slot], int(view.created[slot])) for slot in found.episodes]


def _within(found: Recalled, block: Block) -> tuple[list[RecallHit], list[int]]:
    """The facts and episodes that the block shows."""
    return found.facts[: len(block.shown)], found.episodes[: max(0, len(block.shown) - len(found.facts))]


def _map(found: Recalled, block: Block, named: bytes | None) -> dict[str, Any]:
    """The block and what it shows, each in the order of the ranking. With `named`, the key of the memory that was
    named, facts and episodes say theirs."""

    def with_key(shown: dict[str, Any], slot: int) -> dict[str, Any]:
        if named is None:
            return shown
        return {"id": shown["id"], "key": key_of(found.view, slot, named), **shown}

    facts, episodes = _within(found, block)
    anchors = {hit.anchor.number: hit.anchor for hit in facts if hit.anchor is not None}
    return {
        "context": block.text,
        "facts": [
            {
                **with_key(fact_map(found.view, hit.slot), hit.slot),
                "score": hit.score,
                "vector_rank": hit.vector_rank,
                "anchor_rank": hit.anchor_rank,
                "keyword_rank": hit.keyword_rank,
            }
            for hit in facts
        ],
        "entities": [entity_shown(anchor, found.graph.count(anchor)) for anchor in anchors.values()],
        "episodes": [with_key(record_map(found.view, slot, RecordFlags()), slot) for slot in episodes],
        "omitted": block.omitted,
    }
