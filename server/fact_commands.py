"""MEM.FACT, MEM.INVALIDATE, MEM.FACTS: what is true about someone, since when, and what was said before.

A write decides everything first (the entity that an object is, whether the fact is a restatement, every time) and then
commits one group, so that a fact, its entity and the fact it supersedes are there whole or not at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ..index.entities import Resolved, entity_name
from ..index.errors import BadMemory
from ..index.fact_index import Key, Node, node_of
from ..index.memory import NEVER, Memory
from ..index.moment import joined
from ..index.query import Query
from ..index.side import FACT, NOTE, VALID_AT, Extra, Fact, Int64s
from ..index.view import View
from .arguments import Words
from .commands import command
from .embedded import Vectors, spoken, widened, write_with_vectors
from .entity_commands import Ends, embedding_name, put_entity, resolving, unit_vector
from .entries import Entry, Invalidate, Put
from .errors import CommandError, shown_word, syntax_error
from .fact_maps import FactRow, fact_at, fact_map, fact_slots, read_page
from .fact_words import FactDraft, check_times, read_fact
from .memory_commands import find
from .record_commands import check_meta, growth, merged
from .record_vectors import stored_vector
from .room import announce_evicted, evictions, make_room

if TYPE_CHECKING:
    from .client import Client


@command(
    "MEM.FACT",
    arity=-5,
    flags="write denyoom",
    keys=(1, 1, 1),
    key_flags=["RW access update"],  # the reply tells whether it was stated before
    group="facts",
    usage="MEM.FACT key subject predicate object [TYPE entity-type] [CONFIDENCE c] [QUOTE text] [VALIDAT time]"
    " [VALIDUNTIL time] [AT time] [EPISODE id] [ID id] [SUPERSEDES id] [VEC blob | FVEC n f1 .. fn]"
    " [ENTITYVEC blob | ENTITYFVEC n f1 .. fn] [META field value]* [TAGS n tag1 .. tagn] [TTL seconds]"
    " [IMPORT created_at invalid_at superseded_by]",
    complexity="O(words + dim), with ENTITYVEC O(entities of the type * dim)",
    options=(
        "TYPE entity-type: the object is an entity, found or created as MEM.ENTITY does: PERSON ORG PLACE PRODUCT SKILL"
        " TOPIC EVENT FOOD ROLE CONCEPT THING DATE; any other word is THING",
        "CONFIDENCE c: 0 to 1 (1)",
        "QUOTE text: the words it was taken from; EPISODE id: the record it was taken from",
        "VALIDAT time: since when it is true (the time of writing); VALIDUNTIL time: until when",
        "AT time: the time of writing (now)",
        "ID id: the fact's id; without one the server counts 1, 2, ..",
        "SUPERSEDES id: that fact is invalidated at this one's time of writing",
        "VEC, FVEC: the vector of the text; ENTITYVEC, ENTITYFVEC: that of the entity",
        "META field value, TAGS n tag1 .. tagn, TTL seconds: as in MEM.ADD",
        "IMPORT created_at invalid_at superseded_by: the fact as it stood elsewhere, each of the last two empty for"
        " none. It takes the place of the fact with its ID, which it needs, whole; SUPERSEDES is noted and invalidates"
        " nothing; where a fact with another id says the same and neither is invalidated, nothing changes",
    ),
)
def fact(ctx: Client, args: list[bytes]) -> Any:
    """State a fact; its id, the old one where it was stated before."""
    return state(ctx, args[0], read_fact(Words(args, 1), ctx.server.config, ctx.now))


def state(ctx: Client, key: bytes, draft: FactDraft) -> Any:
    """State what the draft says, which then knows whether it is a restatement: the fact's id, or a future of it."""
    memory = find(ctx, key)
    _check_ids(memory, draft, ctx.now)

    def state(memory: Memory, resolved: Resolved | None) -> Any:
        return _state(ctx, key, memory, draft, resolved)

    if not draft.type:
        return _embedding_text(ctx, key, memory, draft, draft.object, lambda memory: state(memory, None))
    name = entity_name(draft.object)

    def resolve(memory: Memory, vector: bytes, finish: Callable[[Memory, Resolved], Any]) -> Any:
        return resolving(ctx, key, name, draft.type, vector, finish)

    def of_entity(memory: Memory, vector: bytes) -> Any:
        if not needs_vector(memory, draft):
            return resolve(memory, vector, state)
        # The text has the entity's own name; what that is is asked again when the text's vector is there.
        return resolve(
            memory,
            vector,
            lambda memory, resolved: _embedding_text(
                ctx, key, memory, draft, resolved.entity.name, lambda memory: resolve(memory, vector, state)
            ),
        )

    if draft.entity_vector is not None:
        return of_entity(memory, unit_vector(draft.entity_vector, memory.settings))
    return embedding_name(ctx, key, memory, name, draft.type, of_entity)


def needs_vector(memory: Memory, draft: FactDraft) -> bool:
    """Whether the memory's embedder is to make the fact's vector."""
    return draft.vector is None and memory.settings.embeds


def _embedding_text(
    ctx: Client, key: bytes, memory: Memory, draft: FactDraft, spoken_object: bytes, state: Callable[[Memory], Any]
) -> Any:
    """`state(memory)`, the draft having the vector that the memory's embedder makes of its text, if it has one."""
    if not needs_vector(memory, draft):
        return state(memory)

    def settle(memory: Memory, vectors: Vectors) -> Any:
        draft.vector = None if vectors[0] is None else widened(vectors[0])
        return state(memory)

    said = Fact(draft.subject, draft.predicate, spoken_object, draft.type)
    return write_with_vectors(ctx, key, memory, [spoken(said)], settle)


def _check_ids(memory: Memory, draft: FactDraft, now: int) -> None:
    """Refuse an ID that is no fact's, and a SUPERSEDES that is none."""
    if draft.id is not None:
        found = memory.locate(draft.id, now)
        if found is not None:
            view, slot = found
            kind = view.kind(slot)
            if kind != FACT:
                held = "a note" if kind == NOTE else "an episode"
                raise CommandError(f"id '{shown_word(draft.id)}' is held by {held}")
    if draft.supersedes is not None and draft.stood is None:
        if fact_at(memory, draft.supersedes, now) is None:
            raise CommandError("no such fact")
        if draft.supersedes == draft.id:
            raise CommandError("a fact cannot supersede itself")


def _state(ctx: Client, key: bytes, memory: Memory, draft: FactDraft, resolved: Resolved | None) -> bytes:
    """Settle and commit; the fact's id."""
    now, server = ctx.now, ctx.server
    # Once more: a thread may have looked for the entity meanwhile.
    check_times(draft, now)
    _check_ids(memory, draft, now)
    group: list[Entry] = []
    events: list[bytes] = []
    spoken = draft.object
    if resolved is not None:
        spoken = resolved.entity.name
        entry = put_entity(key, memory, resolved, now)
        if entry is not None:
            group.append(entry)
            events.append(b"entity " + spoken)
    restated = _restated(memory, draft, spoken, now)
    draft.is_restated = restated is not None
    if restated is not None and draft.stood is not None:
        return restated.id
    if restated is not None:
        record_id = restated.id
        put = _restatement(ctx, key, memory, draft, restated, spoken)
    else:
        put = _statement(ctx, key, memory, draft, spoken)
        record_id = put.id
    if put is not None:
        group.append(put)
        events.append(b"fact " + record_id)
        if draft.ttl_s:
            events.append(b"ttl " + record_id)
    gone: tuple[bytes, ...] = ()
    if put is not None and memory.settings.has_limit:
        # What it supersedes is written to, so it stays.
        keep = (record_id, draft.supersedes) if draft.supersedes is not None else (record_id,)
        is_new = int(record_id not in memory)
        gone = make_room(memory, now, records=is_new, size=growth(memory, put), keep=keep)
    if draft.supersedes is not None and draft.stood is None:
        old = fact_at(memory, draft.supersedes, now)
        assert old is not None
        invalid_at = min(old.invalid_at, now if draft.at is None else draft.at)
        if (invalid_at, record_id) != (old.invalid_at, old.fact.superseded_by):
            group.append(Invalidate(key, old.id, invalid_at, record_id, now))
            events.append(b"invalidate " + old.id)
    server.commit_all([*evictions(key, memory, gone, now), *group])
    announce_evicted(server, key, gone)
    for event in events:
        server.announce(key, event)
    return record_id


def _restated(memory: Memory, draft: FactDraft, spoken: bytes, now: int) -> FactRow | None:
    """The fact that the draft states again."""
    if memory.facts is None:
        return None
    until = NEVER if draft.valid_until is None else draft.valid_until
    key = Key(draft.subject, draft.predicate, spoken, until)
    since, besides = now, draft.supersedes
    if draft.stood is not None:
        if draft.stood.invalid_at < NEVER:
            return None
        # Of those without an invalid_at, be it to come, one says so; it may be the one that this is.
        since, besides = NEVER - 1, draft.id
    found = memory.facts.same(key, draft.type, since, besides)
    if found is None and spoken != draft.object:
        # Said before it had a type, as it was written then.
        found = memory.facts.same(key._replace(object=draft.object), draft.type, since, besides)
    return None if found is None else fact_at(memory, found, now)


def _restatement(ctx: Client, key: bytes, memory: Memory, draft: FactDraft, old: FactRow, spoken: bytes) -> Put | None:
    """What stating a fact again changes of it; None for nothing."""
    now, was = ctx.now, old.fact
    fact = was._replace(
        object=spoken if draft.type else was.object,
        entity_type=draft.type or was.entity_type,
        quote=was.quote if draft.quote is None else draft.quote,
        episode=was.episode if draft.episode is None else draft.episode,
        supersedes=draft.supersedes or was.supersedes,
    )
    if fact.text != was.text:
        _check_length(ctx, fact)
    as_it_is = old.put(
        key,
        memory,
        fact,
        max(old.confidence, 1.0 if draft.confidence is None else draft.confidence),
        since=min(now if draft.at is None else draft.at, now),
        max_words=ctx.server.config["mem-max-terms-per-doc"],
        at=now,
    )
    put = replace(
        as_it_is,
        vector=as_it_is.vector if draft.vector is None else stored_vector(draft.vector, memory.settings),
        meta=merged(as_it_is.meta, draft.meta),
        tags=as_it_is.tags if draft.tags is None else draft.tags,
        deadline=now + draft.ttl_s * 1000 if draft.ttl_s else old.deadline,
    )
    check_meta(ctx.server.config, put.id, put.meta + put.tags, as_it_is.meta + as_it_is.tags)
    assert put.extra is not None
    same = put == as_it_is and (fact, put.extra.confidence) == (was, old.confidence)
    return None if same else put


def _check_length(ctx: Client, fact: Fact) -> None:
    """Refuse a text that is too long, be it by its object's name as an entity."""
    limit = ctx.server.config["mem-max-text-bytes"]
    if len(fact.text) > limit:
        raise CommandError(f"text exceeds mem-max-text-bytes ({limit})")


def _statement(ctx: Client, key: bytes, memory: Memory, draft: FactDraft, spoken: bytes) -> Put:
    """A new fact, or one written over by its id."""
    now, config, settings, stood = ctx.now, ctx.server.config, memory.settings, draft.stood
    record_id, next_id = draft.id, memory.next_id
    if record_id is None:
        number = memory.free_id(next_id)
        record_id, next_id = b"%d" % number, number + 1
    old = fact_at(memory, record_id, now)
    limit = config["mem-max-records"]
    if old is None and limit and memory.held >= limit:
        raise CommandError(f"memory index is full at mem-max-records ({limit})")
    if stood is not None:
        old = None  # nothing of it stays
    said = Fact(
        draft.subject,
        draft.predicate,
        spoken,
        draft.type,
        draft.quote or b"",
        draft.episode or b"",
        draft.supersedes or b"",
        stood.superseded_by if stood is not None else b"",
    )
    text = said.text
    _check_length(ctx, said)
    vector = b""
    if draft.vector is not None:
        vector = stored_vector(draft.vector, settings)
    elif old is not None and old.view.texts[old.slot] == text:
        vector = old.view.vector(old.slot)
    if not vector and settings.mode == "VECTOR" and not settings.embedder:
        raise CommandError("a VECTOR-mode index needs a vector on every record")
    written = now if draft.at is None else draft.at
    meta: tuple[bytes, ...] = ()
    tags: tuple[bytes, ...] = ()
    importance, created, deadline = 0.5, written if stood is None else stood.created_at, 0
    if old is not None:
        view, slot = old.view, old.slot
        meta, tags = view.metas[slot], view.tags[slot]
        importance, created, deadline = float(view.importance[slot]), int(view.created[slot]), old.deadline
    had = None if old is None else meta + tags
    meta = merged(meta, draft.meta)
    tags = tags if draft.tags is None else draft.tags
    check_meta(config, record_id, (*meta, *tags, said.episode, said.supersedes), had)
    known = min(written, now)
    return Put(
        key=key,
        id=record_id,
        text=text,
        vector=vector,
        meta=meta,
        tags=tags,
        importance=importance,
        created_at=created,
        updated_at=written,
        deadline=now + draft.ttl_s * 1000 if draft.ttl_s else deadline,
        next_id=next_id,
        max_words=config["mem-max-terms-per-doc"],
        at=now,
        extra=Extra(
            written=known,
            since=known,
            known_to=NEVER,
            valid_at=written if draft.valid_at is None else draft.valid_at,
            valid_until=NEVER if draft.valid_until is None else draft.valid_until,
            invalid_at=NEVER if stood is None else stood.invalid_at,
            flags=FACT,
            confidence=1.0 if draft.confidence is None else draft.confidence,
            fact=said,
        ),
    )


@command(
    "MEM.INVALIDATE",
    arity=-3,
    flags="write fast",
    keys=(1, 1, 1),
    key_flags=["RW access update"],  # an error names the fact that says the same
    group="facts",
    usage="MEM.INVALIDATE key id [AT time | CLEAR]",
    options=(
        "AT time: since when it is no longer true (now)",
        "CLEAR: it was not wrong after all; what superseded it stays as it is",
    ),
)
def invalidate(ctx: Client, args: list[bytes]) -> int:
    """Say that a fact is no longer true, its history kept; 1 where that changes anything."""
    words, at, clear = Words(args, 2), None, False
    while words:
        option = words.option()
        if option == b"AT":
            at = words.time()
        elif option == b"CLEAR":
            clear = True
        else:
            raise words.unexpected()
    if clear and at is not None:
        raise syntax_error()
    memory = find(ctx, args[0])
    old = fact_at(memory, args[1], ctx.now)
    if old is None:
        return 0
    superseded_by = b"" if clear else old.fact.superseded_by
    invalid_at = NEVER if clear else at
    if invalid_at is None:
        invalid_at = min(old.invalid_at, ctx.now)
    if (invalid_at, superseded_by) == (old.invalid_at, old.fact.superseded_by):
        return 0
    if invalid_at > max(ctx.now, old.invalid_at):
        assert memory.facts is not None
        key = Key(old.fact.subject, old.fact.predicate, old.fact.object, old.valid_until)
        same = memory.facts.same(key, old.fact.entity_type, ctx.now, old.id)
        if same is not None:
            raise CommandError(f"fact '{shown_word(same)}' says the same")
    ctx.server.commit(Invalidate(args[0], old.id, invalid_at, superseded_by, ctx.now))
    ctx.server.announce(args[0], b"invalidate " + old.id)
    return 1


@command(
    "MEM.FACTS",
    arity=-2,
    flags="readonly",
    keys=(1, 1, 1),
    group="facts",
    usage="MEM.FACTS key [TEXT words] [ENTITY name] [ASOF time] [KNOWNAT time] [INVALIDATED] [LIMIT n] [OFFSET n]",
    complexity="O(records)",
    options=(
        "TEXT words: only facts with one of these words",
        "ENTITY name: only facts whose subject or object is that entity",
        "ASOF time: the facts that were valid then (now)",
        "KNOWNAT time: as known then (now)",
        "INVALIDATED: with those that were invalidated",
        "LIMIT n: how many, 1 to 1000 (50)",
        "OFFSET n: leave out the first n (0)",
    ),
)
def facts(ctx: Client, args: list[bytes]) -> Any:
    """List the valid facts, the oldest valid_at first: how many there are, and a page of them."""
    words, page = Words(args, 1), [50, 0]
    text: bytes | None = None
    name: bytes | None = None
    as_of: int | None = None
    known_at: int | None = None
    invalidated = False
    while words:
        option = words.option()
        if option == b"TEXT":
            text = words.next()
        elif option == b"ENTITY":
            name, most = words.next(), ctx.server.config["mem-max-text-bytes"]
            if len(name) > most:
                raise CommandError(f"ENTITY exceeds mem-max-text-bytes ({most})")
        elif option == b"ASOF":
            as_of = words.time()
        elif option == b"KNOWNAT":
            known_at = words.time()
        elif option == b"INVALIDATED":
            invalidated = True
        elif not read_page(option, words, page):
            raise words.unexpected()
    memory = find(ctx, args[0])
    if text is not None and not memory.settings.has_text:
        raise BadMemory("this memory index does not index text; create it with MODE SEARCH or MODE HYBRID")
    limit, offset = page
    terms = None if text is None else _term_ids(memory, text, ctx.server.config["mem-max-query-terms"])
    moment = None
    if as_of is not None or known_at is not None or invalidated:
        moment = memory.moment(as_of, known_at, ctx.now, invalidated=invalidated)
    now = memory.view(ctx.now)
    node: Node = b""
    ids: list[bytes] | None = None
    if name is not None:
        node = node_of(memory.entities, memory.facts, name)
        if known_at is None and memory.facts is not None:
            ids = memory.facts.touching(node, memory.entities)  # of what is known now, the index knows all
    by_id = memory.table.by_id
    present = [by_id[each] for each in ids or () if each in by_id]  # now: a thread sees the table of later
    named = None if name is None or ids is not None or memory.entities is None else memory.entities.still()
    ends = Ends(named, memory.facts)

    def those(view: View) -> Int64s:
        if name is None:
            return fact_slots(view)
        if ids is None:
            slots = [slot for slot in fact_slots(view).tolist() if node in ends.of(view.facts[slot])]
        elif view is now:
            slots = present
        else:
            held = set(ids)
            slots = [slot for slot in fact_slots(view).tolist() if view.ids[slot] in held]
        return np.array(slots, np.int64)

    seen = ctx.seen

    def reply() -> list[Any]:
        view = now if moment is None else joined(moment)
        total, shown = _facts_page(view, those(view), terms, limit, offset)
        if seen is not None:
            seen.results = len(shown)
        return [total, shown]

    rows, each = now.n if moment is None else moment.rows, 50 if name is None else 1000
    if moment is None and ids is not None and terms is None:
        rows, each = len(present), 100
    return ctx.server.workers.submit(memory, rows * each + min(rows, limit) * 10_000, reply, ctx.proto)


def _facts_page(view: View, slots: Int64s, terms: npt.NDArray[np.uint32] | None, limit: int, offset: int) -> list[Any]:
    """How many of these facts have one of the words, None: all; and a page of them."""
    if terms is not None and len(slots):
        slots = slots[_holding(view, terms)[slots]]
    return [len(slots), [fact_map(view, slot) for slot in _oldest(view, slots, offset + limit)[offset:]]]


def _term_ids(memory: Memory, text: bytes, max_terms: int) -> npt.NDArray[np.uint32]:
    """The terms of the words, as far as any record has them."""
    plan = memory.plan(Query(kind="keyword", text=text, max_terms=max_terms), memory.updated_at)
    return np.array([term.term_id for term, _ in plan.terms if term.term_id >= 0], np.uint32)


def _holding(view: View, terms: npt.NDArray[np.uint32]) -> npt.NDArray[np.bool_]:
    """bool (n,): the rows with any of the terms, which is those with a keyword score."""
    ends = view.terms_end.astype(np.int64)
    end = int(ends[-1]) if view.n else 0
    before = np.concatenate(([0], np.cumsum(np.isin(view.fwd_terms[:end], terms))))
    held: npt.NDArray[np.bool_] = np.diff(before[ends], prepend=0) > 0
    return held


def _oldest(view: View, slots: Int64s, count: int) -> list[int]:
    """The first `count` by oldest valid_at, then smaller id."""
    times = view.side_column(VALID_AT)
    if times is None:
        return []
    chosen = times[slots]
    if count < len(slots):
        # Those as old as the last one that fits stay in: their ids decide.
        slots = slots[chosen <= np.partition(chosen, count - 1)[count - 1]]
    ids = view.ids
    return sorted(slots.tolist(), key=lambda slot: (int(times[slot]), ids[slot]))[:count]
