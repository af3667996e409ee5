"""MEM.RECALL: what an agent should be told before it answers, as one block of text or as its parts."""

from __future__ import annotations

from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

from ..index import recall as recalling
from ..index.block import Block, Episode, Line, render
from ..index.recall import Recall, Recalled, RecallPlan
from .arguments import Words
from .commands import command
from .embedded import read_with_vector, widened
from .entity_commands import entity_shown
from .errors import CommandError
from .fact_maps import fact_map, fact_row
from .memory_commands import find
from .query_commands import fit_to_memory
from .query_counts import count_query
from .record_commands import check_vector
from .record_maps import RecordFlags, record_map
from .uses import use_counter

if TYPE_CHECKING:
    from .client import Client
    from .config import Config

_MOST = 1000


def _read(words: Words, config: Config) -> tuple[Recall, int | None, bool]:
    """What is asked, the budget (None: none), and whether as a map."""
    asked = Recall(
        facts=config["mem-recall-facts"],
        min_confidence=config["mem-recall-minconf"],
        anchor_top_k=config["mem-anchor-topk"],
        anchor_min=config["mem-anchor-min"],
        max_scan=config["mem-max-scan"],
        max_terms=config["mem-max-query-terms"],
    )
    budget, as_map = None, False
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
        else:
            raise words.unexpected()
    return asked, budget, as_map


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
    " [ANCHORMIN x] [ASOF time] [BUDGET tokens] [FALLBACK RECENT] [FORMAT TEXT|MAP]",
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
        "FORMAT TEXT|MAP: the block (TEXT), or it and what it is made of",
    ),
)
def recall(ctx: Client, args: list[bytes]) -> Any:
    """Find the facts that a query needs, by vector, named entities and words, and render them as one text block."""
    asked, budget, as_map = _read(Words(args, 1), ctx.server.config)
    memory = find(ctx, args[0])
    settings = memory.settings
    text = None if settings.embedder and not settings.has_text else asked.text  # the embedder makes a vector of it
    asked.vector = fit_to_memory(memory, text, asked.vector)
    plan, proto, seen = recalling.plan(memory, asked, ctx.now), ctx.proto, ctx.seen
    count_uses = use_counter(ctx, {args[0]: memory})
    started, now = perf_counter_ns(), ctx.now

    def run(plan: RecallPlan) -> Any:
        found = recalling.run(plan)
        block = render(_lines(found), _episodes(found), budget)
        if seen is not None:
            seen.results = len(block.shown)
        if count_uses is not None:
            count_uses((None, record_id) for record_id in block.shown)
        count_query(memory, now, perf_counter_ns() - started, len(block.shown))
        return _map(found, block) if as_map else block.text

    def ask(vector: bytes | None) -> Any:
        final = plan
        if vector is not None:
            final = recalling.with_vector(plan, check_vector(widened(vector), plan.plan.view.settings))
        return ctx.server.workers.submit(memory, final.cost, lambda: run(final), proto)

    if asked.text is None or asked.vector is not None:
        return ask(None)
    return read_with_vector(ctx, memory, asked.text, ask)


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


def _map(found: Recalled, block: Block) -> dict[str, Any]:
    """The block and what it shows, each in the order of the ranking."""
    facts = found.facts[: len(block.shown)]
    episodes = found.episodes[: max(0, len(block.shown) - len(found.facts))]
    anchors = {hit.anchor.number: hit.anchor for hit in facts if hit.anchor is not None}
    return {
        "context": block.text,
        "facts": [
            {
                **fact_map(found.view, hit.slot),
                "score": hit.score,
                "vector_rank": hit.vector_rank,
                "anchor_rank": hit.anchor_rank,
                "keyword_rank": hit.keyword_rank,
            }
            for hit in facts
        ],
        "entities": [entity_shown(anchor, found.graph.count(anchor)) for anchor in anchors.values()],
        "episodes": [record_map(found.view, slot, RecordFlags()) for slot in episodes],
        "omitted": block.omitted,
    }
