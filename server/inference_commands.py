"""MEM.ANALYZE, MEM.CONSULT: what a model makes of a message, and of what a memory knows.

Rule 1: a model proposes; what it may do is decided here. It names facts to state, by words that stand in the message,
        and facts it was shown; nothing else that it answers has any effect.
Rule 2: all of an answer is checked before any of it is stored.
"""

from __future__ import annotations

import re
from asyncio import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..index.entities import entity_name
from ..index.errors import BadMemory
from ..index.memory import Memory
from ..index.recall import Recalled
from .arguments import Words
from .commands import command
from .errors import CommandError
from .fact_commands import state
from .fact_maps import FactRow, fact_at, fact_row
from .fact_words import FactDraft, read_fact
from .inference import refused
from .inference_prompts import ANALYZE, CONSULT, ONLY_USER, iso, messages, numbered, shortened
from .inference_schema import ANSWER, FACTS
from .memory_commands import find
from .recall_commands import defaults, recalled

if TYPE_CHECKING:
    from .client import Client
    from .config import Config

_MOST_FACTS = 32
_MOST_KNOWN = 16
_MOST_ANSWER_CHARS = 10_000
_DATE = re.compile(r"\d{4}-\d\d-\d\d")


@command(
    "MEM.ANALYZE",
    arity=-4,
    flags="write denyoom no_multi",
    keys=(1, 1, 1),
    key_flags=["RW access update"],
    group="facts",
    usage="MEM.ANALYZE key TEXT message [AT time]",
    complexity="that of the model, then of MEM.FACT for each fact",
    options=(
        "TEXT message: what to take facts from",
        "AT time: when it was written (now)",
    ),
)
def analyze(ctx: Client, args: list[bytes]) -> Any:
    """Let the model of inference-url take facts from a message, and state them as MEM.FACT does."""
    config = ctx.server.config
    message, at = _read(Words(args, 1), config, with_time=True)
    ctx.server.inference.check_on()
    key = args[0]
    memory = find(ctx, key)
    as_of = at if at is not None and at < ctx.now else None
    known = _found(ctx, {key: memory}, message, facts=_MOST_KNOWN, min_confidence=0.0, as_of=as_of)
    work = _analyze(ctx, key, memory, message.decode("utf-8", "replace"), at, known)
    return ctx.write_after(ctx.server.inference.start(work), lambda reply: reply)


@command(
    "MEM.CONSULT",
    arity=4,
    flags="readonly no_multi",
    keys=(1, 1, 1),
    group="facts",
    usage="MEM.CONSULT key TEXT question",
    complexity="that of MEM.RECALL, then of the model",
    options=("TEXT question: what to answer from the facts that MEM.RECALL finds for it",),
)
def consult(ctx: Client, args: list[bytes]) -> Any:
    """Let the model of inference-url answer a question from what MEM.RECALL finds, with the facts it used."""
    config = ctx.server.config
    question, _ = _read(Words(args, 1), config, with_time=False)
    ctx.server.inference.check_on()
    found = _found(ctx, {args[0]: find(ctx, args[0])}, question)
    return ctx.server.inference.start(_consult(ctx, question.decode("utf-8", "replace"), found))


def _read(words: Words, config: Config, *, with_time: bool) -> tuple[bytes, int | None]:
    text: bytes | None = None
    at: int | None = None
    while words:
        option = words.option()
        if option == b"TEXT":
            text = words.next()
        elif option == b"AT" and with_time:
            at = words.time()
        else:
            raise words.unexpected()
    if text is None:
        raise CommandError("TEXT is required")
    if not text.strip():
        raise CommandError("TEXT must not be empty")
    limit = config["mem-max-text-bytes"]
    if len(text) > limit:
        raise CommandError(f"text exceeds mem-max-text-bytes ({limit})")
    return text, at


def _found(ctx: Client, members: dict[bytes, Memory], text: bytes, **differs: Any) -> Any:
    """The facts that MEM.RECALL finds for the text, best first: a list of FactRow, or a future of it."""
    seen = ctx.seen

    def rows(found: Recalled) -> list[FactRow]:
        if seen is not None:
            seen.results = len(found.facts)
        return [fact_row(found.view, hit.slot) for hit in found.facts]

    return recalled(ctx, members, replace(defaults(ctx.server.config), text=text, **differs), rows)


# -- MEM.CONSULT


async def _consult(ctx: Client, question: str, found: Any) -> dict[str, Any]:
    rows: list[FactRow] = await found if isinstance(found, Future) else found
    if not rows:
        return {"answer": None, "ids": []}
    data = {"question": question, "facts": numbered(rows)}
    reply = await ctx.server.inference.chat(messages(CONSULT, data), ANSWER)
    answer: str = (reply["answer"] or "").strip()
    if not answer:
        return {"answer": None, "ids": []}
    if len(answer) > _MOST_ANSWER_CHARS:
        raise refused(f"it has more than {_MOST_ANSWER_CHARS} characters")
    # Numbers that were not shown name nothing, whoever talked the model into them.
    used = dict.fromkeys(number for number in reply["used"] if 1 <= number <= len(rows))
    return {"answer": answer, "ids": [rows[number - 1].id for number in used]}


# -- MEM.ANALYZE


async def _analyze(
    ctx: Client, key: bytes, memory: Memory, message: str, at: int | None, known: Any
) -> dict[str, Any]:
    server = ctx.server
    rows: list[FactRow] = await known if isinstance(known, Future) else known
    shown = {name: row for row in rows if (name := _name(row.id)) is not None and row.invalid_at > ctx.now}
    data = {
        "time": iso(ctx.now if at is None else at),
        "message": message,
        "known": [{"id": name, "fact": shortened(row.fact.text)} for name, row in shown.items()],
    }
    only_user = server.config["mem-fact-subjects"] == "user"
    answer = await server.inference.chat(messages(ANALYZE + ONLY_USER * only_user, data), FACTS)
    await server.transactions.free(key)
    _go_on(ctx, key, memory)
    drafts = _drafts(ctx, memory, answer["facts"], " ".join(message.split()), at, set(shown))
    ids: list[bytes] = []
    restated = 0
    for number, draft in enumerate(drafts, 1):
        try:
            await server.transactions.free(key)
            _go_on(ctx, key, memory)
            reply = state(ctx, key, draft)
            ids.append(await reply if isinstance(reply, Future) else reply)
        except (CommandError, BadMemory) as error:
            raise _broken_off(number, ids, error) from None
        restated += draft.is_restated
    return {"facts": ids, "stored": len(ids) - restated, "restated": restated}


def _go_on(ctx: Client, key: bytes, memory: Memory) -> None:
    """The time is now; raises CommandError where nothing may be written any more."""
    ctx.now = ctx.server.clock()
    ctx.check_user()
    if ctx.server.log.failure is not None:
        raise CommandError(ctx.server.log.failure, "MISCONF")
    if find(ctx, key) is not memory:
        raise CommandError("the key was replaced while the model was asked")


def _drafts(
    ctx: Client, memory: Memory, facts: list[dict[str, Any]], message: str, at: int | None, shown: set[str]
) -> list[FactDraft]:
    """The model's facts as MEM.FACT reads them; raises InferenceError where any of them is not to be stored.

    `message` has single spaces between its words.
    """
    if len(facts) > _MOST_FACTS:
        raise refused(f"more than {_MOST_FACTS} facts")
    drafts = []
    for number, fact in enumerate(facts, 1):
        try:
            drafts.append(_draft(ctx, memory, fact, message, at, shown))
        except CommandError as error:
            raise refused(f"fact {number}: {error.message[:300]}") from None
    return drafts


def _draft(
    ctx: Client, memory: Memory, fact: dict[str, Any], message: str, at: int | None, shown: set[str]
) -> FactDraft:
    quote = " ".join(fact["quote"].split())
    if not quote:
        raise CommandError("its quote is empty")
    if quote not in message:
        raise CommandError("its quote does not stand in the message")
    words = [fact["subject"], fact["predicate"], fact["object"], "CONFIDENCE", repr(fact["confidence"])]
    words += ["QUOTE", quote]
    if fact["type"] is not None:
        words += ["TYPE", fact["type"]]
    if fact["valid_at"] is not None:
        # A year alone would be read as unix milliseconds.
        if not _DATE.match(fact["valid_at"]):
            raise CommandError("valid_at must be YYYY-MM-DD or YYYY-MM-DDTHH:MM:SSZ")
        words += ["VALIDAT", fact["valid_at"]]
    if at is not None:
        words += ["AT", str(at)]
    draft = read_fact(Words([word.encode() for word in words]), ctx.server.config, ctx.now)
    if fact["supersedes"] is not None:
        draft.supersedes = _superseded(ctx, memory, draft, fact["supersedes"], shown)
    return draft


def _superseded(ctx: Client, memory: Memory, draft: FactDraft, name: str, shown: set[str]) -> bytes | None:
    """The id of the fact that the draft supersedes; None where that says the same."""
    if name not in shown:
        raise CommandError("it supersedes an id that the model was not shown")
    old = fact_at(memory, name.encode(), ctx.now)
    if old is None or old.invalid_at <= ctx.now:
        raise CommandError(f"it supersedes '{name}', which is no longer open")
    said = (draft.subject, draft.predicate, entity_name(draft.object))
    if said == (old.fact.subject, old.fact.predicate, entity_name(old.fact.object)):
        return None
    return old.id


def _name(record_id: bytes) -> str | None:
    """The id as JSON can say it."""
    try:
        return record_id.decode()
    except UnicodeDecodeError:
        return None


def _broken_off(number: int, ids: list[bytes], error: CommandError | BadMemory) -> CommandError:
    """What to say where a fact is refused although its words are good: the memory is full, say."""
    code, reason = (error.code, error.message) if isinstance(error, CommandError) else ("ERR", str(error))
    stored = ", ".join(f"'{each.decode('utf-8', 'surrogateescape')}'" for each in ids) or "nothing"
    return CommandError(f"fact {number} was refused: {reason}; stored before it: {stored}", code)
