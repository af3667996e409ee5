"""The commands about facts and entities, and what a model makes of them, as commands.py has those about records."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Literal

from . import replies, words
from .commands import Command, cascade_words, flag, meta_words, opt, tag_words, vector_words
from .results import Analyzed, Answer, Entity, Fact, Page, Recall
from .words import Meta, Span, Text, Time, Vector


def fact(
    key: Text,
    subject: Text,
    predicate: Text,
    object: Text,
    *,
    type: str | None = None,
    confidence: float | None = None,
    quote: Text | None = None,
    valid_at: Time | None = None,
    valid_until: Time | None = None,
    at: Time | None = None,
    episode: Text | None = None,
    id: Text | None = None,
    supersedes: Text | None = None,
    vector: Vector | None = None,
    entity_vector: Vector | None = None,
    meta: Meta | None = None,
    tags: Iterable[Text] | None = None,
    ttl: Span | None = None,
) -> Command[str]:
    """State a fact; its id, the old one where it was stated before.

    `type` makes the object an entity of that type (PERSON, ORG, PLACE, ..); `supersedes` invalidates the fact it names.
    """
    options = (
        *opt("TYPE", type),
        *opt("CONFIDENCE", confidence, words.number),
        *opt("QUOTE", quote),
        *opt("VALIDAT", valid_at, words.time),
        *opt("VALIDUNTIL", valid_until, words.time),
        *opt("AT", at, words.time),
        *opt("EPISODE", episode),
        *opt("ID", id),
        *opt("SUPERSEDES", supersedes),
        *vector_words(vector),
        *opt("ENTITYVEC", entity_vector, words.vector),
        *meta_words(meta),
        *tag_words(tags),
        *opt("TTL", ttl, words.seconds),
    )
    return Command(
        ("MEM.FACT", words.text(key), words.text(subject), words.text(predicate), words.text(object), *options),
        replies.text,
    )


def facts(
    key: Text,
    text: Text | None = None,
    *,
    entity: Text | None = None,
    as_of: Time | None = None,
    known_at: Time | None = None,
    invalidated: bool = False,
    limit: int | None = None,
    offset: int | None = None,
) -> Command[Page[Fact]]:
    """The valid facts, the oldest valid_at first: with one of the words of `text`, about `entity`."""
    options = (
        *opt("TEXT", text),
        *opt("ENTITY", entity),
        *opt("ASOF", as_of, words.time),
        *opt("KNOWNAT", known_at, words.time),
        *flag("INVALIDATED", invalidated),
        *opt("LIMIT", limit, words.number),
        *opt("OFFSET", offset, words.number),
    )
    return Command(("MEM.FACTS", words.text(key), *options), partial(replies.page, read=replies.fact))


def invalidate(key: Text, id: Text, *, at: Time | None = None, clear: bool = False) -> Command[bool]:
    """Say that a fact is no longer true, since `at` (now), or with clear that it is after all; whether that is new."""
    return Command(
        ("MEM.INVALIDATE", words.text(key), words.text(id), *opt("AT", at, words.time), *flag("CLEAR", clear)), bool
    )


def entity(
    key: Text,
    name: Text,
    *,
    type: str | None = None,
    aliases: Iterable[Text] = (),
    vector: Vector | None = None,
    merge: Text | None = None,
) -> Command[Entity]:
    """The entity of this name, made where there is none; `merge`: the other one becomes part of it."""
    options = (
        *opt("TYPE", type),
        *(word for alias in words.counted(aliases)[1:] for word in (b"ALIAS", alias)),
        *vector_words(vector),
        *opt("MERGE", merge),
    )
    return Command(("MEM.ENTITY", words.text(key), words.text(name), *options), replies.entity)


def entities(
    key: Text, *, type: str | None = None, limit: int | None = None, offset: int | None = None
) -> Command[Page[Entity]]:
    """Entities by name, then type."""
    options = (*opt("TYPE", type), *opt("LIMIT", limit, words.number), *opt("OFFSET", offset, words.number))
    return Command(("MEM.ENTITIES", words.text(key), *options), partial(replies.page, read=replies.entity))


def paths(
    key: Text, entity: Text, *, depth: int | None = None, as_of: Time | None = None, limit: int | None = None
) -> Command[list[Fact]]:
    """Facts around an entity, breadth first, up to `depth` (1) facts away."""
    options = (*opt("DEPTH", depth, words.number), *opt("ASOF", as_of, words.time), *opt("LIMIT", limit, words.number))
    return Command(
        ("MEM.PATHS", words.text(key), words.text(entity), *options), lambda reply: list(map(replies.fact, reply))
    )


def recall(
    key: Text,
    text: Text | None = None,
    vector: Vector | None = None,
    *,
    facts: int | None = None,
    episodes: int | None = None,
    min_confidence: float | None = None,
    anchor_top_k: int | None = None,
    anchor_min: float | None = None,
    as_of: Time | None = None,
    budget: int | None = None,
    fallback: Literal["RECENT"] | None = None,
    synthesis: bool = False,
    cascade: Literal["UP", "DOWN"] | None = None,
    across: Iterable[Text] | None = None,
) -> Command[Recall]:
    """The facts that bear on a question and the block of context made of them; without a question the latest facts.

    `facts` (8) and `episodes` (0) are how many, `budget` is in tokens; fallback RECENT: the latest facts where nothing
    matches; synthesis: with prose that the server's model makes of it. `cascade` covers the memories above or below
    this one as well, `across` those of these keys; each fact and episode then has its `key`.
    """
    options = (
        *opt("TEXT", text),
        *vector_words(vector),
        *opt("FACTS", facts, words.number),
        *opt("EPISODES", episodes, words.number),
        *opt("MINCONF", min_confidence, words.number),
        *opt("ANCHORTOPK", anchor_top_k, words.number),
        *opt("ANCHORMIN", anchor_min, words.number),
        *opt("ASOF", as_of, words.time),
        *opt("BUDGET", budget, words.number),
        *opt("FALLBACK", fallback),
        *flag("SYNTHESIS", synthesis),
        *cascade_words(cascade, across),
    )
    return Command(("MEM.RECALL", words.text(key), *options, b"FORMAT", b"MAP"), replies.recall)


def analyze(key: Text, text: Text, *, at: Time | None = None) -> Command[Analyzed]:
    """Let the server's model (inference-url) take facts from a message, written `at` (now), and state them."""
    return Command(("MEM.ANALYZE", words.text(key), *opt("TEXT", text), *opt("AT", at, words.time)), replies.analyzed)


def consult(key: Text, question: Text) -> Command[Answer]:
    """Let the server's model answer a question from the facts that `recall` finds for it."""
    return Command(("MEM.CONSULT", words.text(key), *opt("TEXT", question)), replies.answer)
