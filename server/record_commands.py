"""MEM.ADD, MADD, GET, MGET, DEL, SETMETA, DELMETA, EXPIRE, SCAN: records one by one.

A write goes in two steps: read the words and check them against the state, which may refuse and changes nothing; then
commit one settled entry per record (entries.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..index.errors import BadMemory
from ..index.filters import Clause, content_digest
from ..index.memory import NEVER, Memory
from ..index.retention import record_bytes
from ..index.side import EPISODE, FACT, NOTE, PIN, Extra
from ..index.texts import Contents, Wordings
from . import aside
from .arguments import TTL_MAX_S, Words
from .aside import change
from .commands import command
from .content_ids import read_with_texts, write_with_texts
from .dedup import with_near
from .embedded import Vectors, widened, write_with_vectors
from .entries import Entry, Put, PutNew, Remove, SetDeadline, SetMeta
from .errors import CommandError, shown_word, syntax_error
from .fact_maps import fact_map
from .filter_words import read_filter
from .memory_commands import find
from .new_notes import Alike, alike, importance_of, new_notes
from .record_maps import RecordFlags, record_map
from .record_vectors import check_vector, stored_vector
from .room import announce_evicted, evictions, make_room

if TYPE_CHECKING:
    from .client import Client
    from .config import Config

# What a page of MEM.SCAN looks at, at most; a filter looks at a record for about a microsecond.
_PAGE_RECORDS = 20_000

# A command of more words is read in a thread: each is some microseconds.
_READ_ON_LOOP = 20_000
# So many records of a large command are settled before they are written: of what is made of them no more is there.
_AT_ONCE = 128
_COPIED_PER_WRITTEN = 500

# What showing a record costs, as Plan.cost counts.
_SHOW_COST = 20_000

# So many ids MEM.DEL takes on the loop, in some milliseconds.
_DEL_ON_LOOP = 2000

_ADD_USAGE = (
    "TEXT text [VEC blob | FVEC n f1 .. fn] [META field value]* [TAGS n tag1 .. tagn] [IMPORTANCE x] [TTL seconds]"
    " [AT time] [VALIDAT time] [VALIDUNTIL time] [KIND note|episode] [PIN] [KEEPVEC] [NX|XX]"
)
_ADD_OPTIONS = (
    "ID id: the record's id; without one the server counts 1, 2, ..",
    "TEXT text: required; any bytes, at most mem-max-text-bytes (65536)",
    "VEC blob: the vector as little-endian float32 bytes; FVEC n f1 .. fn: the same as words",
    "META field value: a metadata field, repeatable; an existing record's fields are merged; with id and tags at most"
    " mem-max-meta-bytes (1mb)",
    "TAGS n tag1 .. tagn: replaces the tags; TAGS 0 clears them",
    "IMPORTANCE x: 0 to 1 (0.5)",
    "TTL seconds: the record is gone after that",
    "AT time: the time of writing, unix milliseconds or ISO 8601 (now)",
    "VALIDAT time, VALIDUNTIL time: queries find the record from then, and until then, only",
    "KIND note|episode: what it is (note); PIN: it is never evicted",
    "KEEPVEC: an existing record keeps its vector although its text changes",
    "NX, XX: only where the id is new, only where it exists",
)


@dataclass(slots=True)
class Draft:
    """MEM.ADD's words, read and not yet looked at in the light of the memory."""

    id: bytes | None = None
    text: bytes | None = None
    vector: npt.NDArray[np.float64] | None = None
    meta: list[bytes] = field(default_factory=list)
    tags: tuple[bytes, ...] | None = None
    importance: float | None = None
    ttl_s: int = 0
    at: int | None = None
    valid_at: int | None = None
    valid_until: int | None = None
    kind: int | None = None
    pin: bool = False
    keep_vector: bool = False
    condition: bytes = b""
    dedup: bool = False
    near: float | None = None


class Existing(NamedTuple):
    """What a record being written over holds."""

    text: bytes
    vector: bytes
    meta: tuple[bytes, ...]
    tags: tuple[bytes, ...]
    importance: float
    created_at: int
    deadline: int  # 0 for none
    extra: Extra | None = None


def read_draft(words: Words, config: Config, stop: bytes = b"") -> Draft:
    """Read MEM.ADD's options up to the end; MEM.MADD's of one record, to the option `stop`, which is left unread."""
    draft = Draft()
    while words:
        option = words.option()
        if option == b"TEXT":
            draft.text = words.next()
            if len(draft.text) > config["mem-max-text-bytes"]:
                raise CommandError(f"text exceeds mem-max-text-bytes ({config['mem-max-text-bytes']})")
        elif option == b"ID":
            draft.id = words.next()
        elif option in (b"VEC", b"FVEC"):
            draft.vector = words.vector(option)
        elif option == b"META":
            draft.meta += words.several(2)
        elif option == b"TAGS":
            draft.tags = tuple(dict.fromkeys(words.counted()))
        elif option == b"IMPORTANCE":
            draft.importance = importance_of(words.next())
        elif option == b"TTL":
            draft.ttl_s = words.integer()
            if draft.ttl_s <= 0:
                raise CommandError("TTL must be positive")
            check_ttl(draft.ttl_s)
        elif option == b"AT":
            draft.at = words.time()
        elif option == b"VALIDAT":
            draft.valid_at = words.time()
        elif option == b"VALIDUNTIL":
            draft.valid_until = words.time()
        elif option == b"KIND":
            draft.kind = EPISODE if words.enum("NOTE", "EPISODE") == "EPISODE" else NOTE
        elif option == b"PIN":
            draft.pin = True
        elif option == b"KEEPVEC":
            draft.keep_vector = True
        elif option in (b"NX", b"XX"):
            if draft.condition not in (b"", option):
                raise CommandError("NX and XX are mutually exclusive")
            draft.condition = option
        elif option == b"DEDUP" and not stop:
            draft.dedup = True
            draft.near = words.real() if words.accept(b"NEAR") else None
        elif stop and option == stop:
            words.at -= 1
            break
        else:
            raise words.unexpected()
    if draft.text is None:
        raise CommandError("TEXT is required")
    if draft.valid_until is not None:
        check_validity(draft.at if draft.valid_at is None else draft.valid_at, draft.valid_until)
    return draft


def check_meta(config: Config, record_id: bytes, words: tuple[bytes, ...], had: tuple[bytes, ...] | None) -> None:
    """Refuse a record's words beside its text that are too long, unless it `had` as much; None: it is new."""
    limit = config["mem-max-meta-bytes"]
    size = sum(map(len, words))
    if len(record_id) + size > limit and (had is None or size > sum(map(len, had))):
        raise CommandError(f"id, metadata and tags together exceed mem-max-meta-bytes ({limit})")


def check_validity(valid_at: int | None, valid_until: int) -> None:
    """Refuse what is never valid; None: it is not known yet from when on."""
    if valid_at is not None and valid_until <= valid_at:
        raise CommandError("VALIDUNTIL must be after VALIDAT")


def check_ttl(seconds: int) -> None:
    """Refuse what no calendar holds."""
    if seconds > TTL_MAX_S:
        raise CommandError("TTL must be at most ten thousand years")


class Batch:
    """Settles drafts one after another against a memory and the drafts before, changing nothing."""

    def __init__(self, ctx: Client, key: bytes, memory: Memory) -> None:
        self._ctx = ctx
        self._now = ctx.now
        self._key = key
        self._memory = memory
        self._gone: tuple[bytes, ...] = ()
        self._written: dict[bytes, Put] = {}
        self._new = 0
        self._next_id = memory.next_id
        self.entries: list[Put] = []
        self.have_ttl: list[bool] = []  # whether the draft of each entry named a TTL

    def settle(self, draft: Draft) -> bytes:
        """Decide everything a draft leaves open; its id. Raises CommandError, BadMemory."""
        now, config, settings = self._now, self._ctx.server.config, self._memory.settings
        assert draft.text is not None
        record_id = draft.id
        next_id = self._next_id
        if record_id is None:
            number = self._memory.free_id(next_id)
            while b"%d" % number in self._written:
                number = self._memory.free_id(number + 1)
            record_id, next_id = b"%d" % number, number + 1
        old = self._existing(record_id)
        if old is not None and old.extra is not None and old.extra.kind == FACT:
            raise CommandError(f"id '{shown_word(record_id)}' is held by a fact; MEM.FACT writes it")
        if draft.condition and (draft.condition == b"XX") == (old is None):
            raise CommandError("record existence condition not met")
        limit = config["mem-max-records"]
        if old is None and limit and self._memory.held + self._new >= limit:
            raise CommandError(f"memory index is full at mem-max-records ({limit})")
        vector = b""
        if draft.vector is not None:
            vector = stored_vector(draft.vector, settings)
        elif old is not None and (draft.keep_vector or old.text == draft.text):
            vector = old.vector
        if not vector and settings.mode == "VECTOR" and not settings.embedder:
            raise CommandError("a VECTOR-mode index needs a vector on every record")
        written = now if draft.at is None else draft.at
        meta = merged(old.meta if old is not None else (), draft.meta)
        is_new = old is None
        if old is None:
            old = Existing(b"", b"", (), (), 0.5, written, 0)
        tags = old.tags if draft.tags is None else draft.tags
        check_meta(config, record_id, meta + tags, None if is_new else old.meta + old.tags)
        entry = Put(
            key=self._key,
            id=record_id,
            text=draft.text,
            vector=vector,
            meta=meta,
            tags=tags,
            importance=old.importance if draft.importance is None else draft.importance,
            created_at=old.created_at,
            updated_at=written,
            deadline=now + draft.ttl_s * 1000 if draft.ttl_s else old.deadline,
            next_id=next_id,
            max_words=config["mem-max-terms-per-doc"],
            at=now,
            extra=_extra(draft, old.extra, written, now),
        )
        self._new += is_new
        self._next_id = next_id
        self._written[record_id] = entry
        self.entries.append(entry)
        self.have_ttl.append(draft.ttl_s > 0)
        return record_id

    def _existing(self, record_id: bytes) -> Existing | None:
        put = self._written.get(record_id)
        if put is not None:
            held = (put.text, put.vector, put.meta, put.tags, put.importance, put.created_at, put.deadline)
            return Existing(*held, put.extra)
        found = self._memory.locate(record_id, self._now)
        if found is None:
            return None
        view, slot = found
        deadline = view.deadline(slot)
        return Existing(
            view.texts[slot],
            view.vector(slot),
            view.metas[slot],
            view.tags[slot],
            float(view.importance[slot]),
            int(view.created[slot]),
            deadline if deadline < NEVER else 0,
            None if view.side is None else view.extra(slot),
        )

    def group(self) -> list[Entry]:
        """All that is to be committed, or nothing: what makes room too. Raises CommandError where there is none."""
        memory, now = self._memory, self._now
        size = sum(growth(memory, put) for put in self._written.values()) if memory.settings.max_bytes else 0
        self._gone = make_room(memory, now, records=self._new, size=size, keep=self._written)
        return [*evictions(self._key, memory, self._gone, now), *self.entries]

    def announce(self) -> list[bytes]:
        """Tell who listens what was committed; the records' ids."""
        ids = [entry.id for entry in self.entries]
        announce_evicted(self._ctx.server, self._key, self._gone)
        _announce_written(self._ctx, self._key, ids, self.have_ttl)
        return ids


def _announce_written(ctx: Client, key: bytes, ids: list[bytes], have_ttl: list[bool]) -> None:
    if ctx.server.pubsub.active:
        for record_id, has_ttl in zip(ids, have_ttl, strict=True):
            ctx.server.announce(key, b"add " + record_id)
            if has_ttl:
                ctx.server.announce(key, b"ttl " + record_id)


def growth(memory: Memory, put: Put) -> int:
    """How many bytes more the memory counts for MAXBYTES with this record."""
    fact = None if put.extra is None else put.extra.fact
    return record_bytes(put.id, put.text, len(put.vector), put.meta, put.tags, fact) - memory.bytes_of(put.id)


def _extra(draft: Draft, old: Extra | None, written: int, now: int) -> Extra | None:
    """The record's side: what the draft does not name is as it was; None for a plain note. Raises CommandError."""
    if old is None and not (draft.pin or draft.kind) and draft.valid_at is None and draft.valid_until is None:
        return None  # as most are
    known = min(written, now)
    if old is None:
        old = Extra(known, known)
    kind = old.kind if draft.kind is None else draft.kind
    extra = Extra(
        known,
        known,
        valid_at=old.valid_at if draft.valid_at is None else draft.valid_at,
        valid_until=old.valid_until if draft.valid_until is None else draft.valid_until,
        flags=kind | (old.flags & PIN) | (PIN if draft.pin else 0),
    )
    if draft.valid_at is not None or draft.valid_until is not None:
        check_validity(written if extra.valid_at == -NEVER else extra.valid_at, extra.valid_until)
    return None if extra == Extra(known, known) else extra


def merged(old: tuple[bytes, ...], new: list[bytes]) -> tuple[bytes, ...]:
    """Metadata with fields set: known ones keep their place, the others follow."""
    if not new:
        return old
    if len(new) == 2 and not old:
        return tuple(new)
    fields = dict(zip(old[::2], old[1::2], strict=True))
    fields.update(zip(new[::2], new[1::2], strict=True))
    return tuple(chain.from_iterable(fields.items()))


@command(
    "MEM.ADD",
    arity=-4,
    flags="write denyoom fast",
    keys=(1, 1, 1),
    group="memory",
    usage=f"MEM.ADD key [ID id] {_ADD_USAGE} [DEDUP [NEAR x]]",
    complexity="O(words + dim), with NEAR O(vectors * dim)",
    options=(
        *_ADD_OPTIONS,
        "DEDUP: nothing is stored where a record has this text, case and spaces aside; the reply is [id, 1 where it is"
        " new else 0, []]",
        "NEAR x: with the ids of up to 10 records whose similarity is at least x, the most similar first",
    ),
)
def add(ctx: Client, args: list[bytes]) -> Any:
    """Store a record, or write over the one with its id; its id."""
    key, draft = args[0], read_draft(Words(args, 1), ctx.server.config)

    def store(memory: Memory) -> bytes:
        batch = Batch(ctx, key, memory)
        record_id = batch.settle(draft)
        ctx.server.commit_all(batch.group())
        batch.announce()
        return record_id

    if draft.dedup:
        return _add_new(ctx, key, draft, store)
    return _with_vectors(ctx, key, [draft], store)


def _add_new(ctx: Client, key: bytes, draft: Draft, store: Callable[[Memory], bytes]) -> Any:
    """MEM.ADD with DEDUP: whether the text is there is decided when the record is written."""
    text = draft.text
    assert text is not None

    def decide(memory: Memory) -> Any:
        if ctx.server.log.failure is not None:  # since the command began
            raise CommandError(ctx.server.log.failure, "MISCONF")
        there = memory.with_wording(text)
        vector = draft.vector
        if vector is None and there is not None:
            found = memory.locate(there, ctx.now)
            stored = b"" if found is None else found[0].vector(found[1])
            vector = widened(stored) if stored else None
        if vector is not None and draft.near is not None:
            vector = check_vector(vector, memory.settings)
        settle = partial(store, memory) if there is None else lambda: there
        return with_near(ctx, memory, vector, draft.near, settle, is_new=there is None)

    def look(memory: Memory) -> Any:
        if memory.with_wording(text) is not None:  # nothing is stored, so no vector is needed
            return decide(memory)
        return _with_vectors(ctx, key, [draft], lambda _: write_with_texts(ctx, key, Wordings, decide))

    return write_with_texts(ctx, key, Wordings, look)


@command(
    "MEM.MADD",
    arity=-6,
    flags="write denyoom",
    keys=(1, 1, 1),
    group="memory",
    usage=f"MEM.MADD key n (RECORD [ID id] {_ADD_USAGE})*",
    complexity="O(n * (words + dim))",
    options=("n: how many records follow, each begun by the word RECORD", *_ADD_OPTIONS),
)
def madd(ctx: Client, args: list[bytes]) -> Any:
    """Store several records, all or none; their ids."""
    words = Words(args, 1)
    count = words.integer()
    if count < 1:
        raise syntax_error()
    def read() -> Iterator[Draft]:
        return _drafts(Words(words.words, words.at), count, ctx.server.config)

    key, is_long = args[0], len(args) > _READ_ON_LOOP and not ctx.must_finish
    if count <= aside.ON_LOOP and len(args) <= _READ_ON_LOOP and not ctx.in_exec:
        put = _alike(ctx, key, ctx.server.keyspace.get(key, ctx.now), alike(words.words, words.at, count))
        if put is not None:
            find(ctx, key)  # which counts it
            ctx.server.commit_new(put, together=True)
            _announce_written(ctx, key, put.ids, [False] * count)
            return put.ids
    if not ctx.must_finish:
        memory = ctx.server.keyspace.get(key, ctx.now)
        if memory is not None and _is_written_in_parts(memory, count):
            return _add_all(ctx, key, find(ctx, key), count, read, words)
    if not is_long:
        drafts = list(read())
        return _with_vectors(ctx, key, drafts, lambda memory: _add_all(ctx, key, memory, count, drafts.__iter__))

    def then(drafts: list[Draft]) -> Any:
        if ctx.server.log.failure is not None:  # since the command began
            raise CommandError(ctx.server.log.failure, "MISCONF")
        return _with_vectors(ctx, key, drafts, lambda memory: _add_all(ctx, key, memory, count, drafts.__iter__))

    return ctx.write_after(ctx.background(lambda: list(read())), then)


def _alike(ctx: Client, key: bytes, memory: Memory | None, read: Alike | None) -> PutNew | None:
    """Records that are alike, if they are new and plain, in a memory that has nothing to make for them, or of them."""
    if read is None or memory is None or not memory.is_plain or memory.settings.embeds or memory.settings.has_limit:
        return None
    return new_notes(ctx.server.config, key, memory, ctx.now, read)


def _drafts(words: Words, count: int, config: Config) -> Iterator[Draft]:
    """MEM.MADD's records, read one by one."""
    for number in range(1, count + 1):
        if words.next().upper() != b"RECORD":
            raise words.unexpected()
        try:
            draft = read_draft(words, config, stop=b"RECORD")
        except (CommandError, BadMemory) as error:
            raise _of_record(number, error) from error
        yield draft
    if words:
        words.option()
        raise words.unexpected()


def _is_written_in_parts(memory: Memory, count: int) -> bool:
    """Whether so many records of a long command are read where they are written, aside."""
    settings = memory.settings
    return count > aside.ON_LOOP and _is_aside(memory, count) and not (settings.embeds or settings.has_limit)


def _is_aside(memory: Memory, count: int) -> bool:
    """Whether so many records are worth a copy of the memory: it takes as long as to write one record for some hundred
    that it holds."""
    return count * _COPIED_PER_WRITTEN > memory.held


def _add_all(
    ctx: Client,
    key: bytes,
    memory: Memory,
    count: int,
    drafts: Callable[[], Iterator[Draft]],
    words: Words | None = None,
) -> Any:
    """Store these records, on the loop or, where they are many, aside; their ids. `words` is what `drafts` reads, where
    nothing has to be made for them."""
    model = memory.settings.model, memory.settings.dim
    batches: list[Batch] = []
    ids: list[bytes] = []
    have_ttl: list[bool] = []

    def is_another(memory: Memory) -> bool:
        return (memory.settings.model, memory.settings.dim) != model

    def settled(memory: Memory, at_once: int, start: int = 0) -> Iterator[Batch]:
        every = islice(enumerate(drafts(), 1), start, None)
        while True:
            batch = Batch(ctx, key, memory)
            for number, draft in islice(every, at_once):
                if draft.vector is not None and is_another(memory):
                    raise CommandError(
                        "the memory got another model while it was being written to; nothing was written"
                    )
                try:
                    batch.settle(draft)
                except (CommandError, BadMemory) as error:
                    for _ in every:  # what is no record at all is said first, whoever reads when
                        pass
                    raise _of_record(number, error) from error
            if not batch.entries:
                return
            yield batch

    def settle(memory: Memory) -> list[Entry]:
        batches[:] = settled(memory, count)
        return batches[0].group()

    def parts(memory: Memory) -> Iterator[aside.Part]:
        ids.clear()
        have_ttl.clear()
        read = None if words is None or is_another(memory) else alike(words.words, words.at, count)
        start = 0
        while read is not None and start < count:
            put = _alike(ctx, key, memory, read.some(slice(start, start + _AT_ONCE)))
            if put is None:
                break
            ids.extend(put.ids)
            have_ttl.extend([False] * len(put.ids))
            start += len(put.ids)
            yield [put]
        for batch in settled(memory, _AT_ONCE, start) if start < count else ():
            ids.extend([entry.id for entry in batch.entries])
            have_ttl.extend(batch.have_ttl)
            yield batch.group()

    def finish(_: aside.Part) -> list[bytes]:
        if batches:
            return batches[0].announce()
        _announce_written(ctx, key, ids, have_ttl)
        return ids

    rows = count if _is_aside(memory, count) else 0
    # What makes room, and for whom, is decided for all of them.
    return aside.change(ctx, key, memory, rows, settle, finish, None if memory.settings.has_limit else parts)


def _with_vectors(ctx: Client, key: bytes, drafts: list[Draft], store: Callable[[Memory], Any]) -> Any:
    """`store(memory)`, the drafts having the vectors that the memory's embedder makes of their texts, if it has one."""
    memory = find(ctx, key)
    if not memory.settings.embeds:
        return store(memory)
    wanting: list[Draft] = []
    texts: list[bytes] = []
    others: list[bytes] = []
    for draft in drafts:
        assert draft.text is not None
        if draft.vector is not None or _keeps_vector(ctx, memory, draft):
            others.append(draft.text)
        else:
            wanting.append(draft)
            texts.append(draft.text)

    def settle(memory: Memory, vectors: Vectors) -> Any:
        for draft, vector in zip(wanting, vectors, strict=True):
            draft.vector = None if vector is None else widened(vector)
        return store(memory)

    return write_with_vectors(ctx, key, memory, texts, settle, others)


def _keeps_vector(ctx: Client, memory: Memory, draft: Draft) -> bool:
    """Whether the record that the draft writes over has a vector that stays."""
    found = None if draft.id is None else memory.locate(draft.id, ctx.now)
    if found is None:
        return False
    view, slot = found
    return bool(view.vector(slot)) and (draft.keep_vector or view.texts[slot] == draft.text)


def _of_record(number: int, error: CommandError | BadMemory) -> CommandError:
    """The error, naming the record."""
    if isinstance(error, CommandError):
        return CommandError(f"record {number}: {error.message}", error.code)
    return CommandError(f"record {number}: {error}")


@command(
    "MEM.GET",
    arity=-3,
    flags="readonly fast",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.GET key id|cid [NOTEXT] [WITHMETA] [WITHVEC [FLOATS]] [WITHFACT]",
    options=(
        "id|cid: the record's id, or a content id: the record with the smallest id that has this text; an id wins",
        "NOTEXT: leave the text out",
        "WITHMETA: with the metadata",
        "WITHVEC [FLOATS]: with the stored vector, as float32 bytes or as numbers",
        "WITHFACT: of a fact, with the map that MEM.FACTS shows, whether or not it is valid; pin, 1, of what has a PIN",
    ),
)
def get(ctx: Client, args: list[bytes]) -> Any:
    """Show a record, nil where there is none."""
    words, flags, with_fact = Words(args, 2), RecordFlags(), False
    while words:
        option = words.option()
        if option == b"WITHFACT":
            with_fact = True
        elif not flags.read(option, words):
            raise words.unexpected()

    def show(memory: Memory, record_id: bytes | None) -> dict[str, Any] | None:
        found = None if record_id is None else memory.locate(record_id, ctx.now)
        if found is None:
            return None
        view, slot = found
        shown = record_map(view, slot, flags)
        if with_fact and view.kind(slot) == FACT:
            shown["fact"] = fact_map(view, slot)
        if with_fact and view.side is not None and view.extra(slot).flags & PIN:
            shown["pin"] = 1
        return shown

    key, name = args[0], args[1]
    memory = find(ctx, key)
    digest = None if name in memory else content_digest(name)
    if digest is None:
        return show(memory, name)

    def of_content(memory: Memory) -> dict[str, Any] | None:
        return show(memory, name if name in memory else memory.with_digest(digest))

    return read_with_texts(ctx, key, Contents, of_content)


@command(
    "MEM.MGET",
    arity=-3,
    flags="readonly fast",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.MGET key id [id ...]",
    complexity="O(ids)",
)
def mget(ctx: Client, args: list[bytes]) -> Any:
    """Show several records, nil for each that is not there."""
    memory, flags, ids = find(ctx, args[0]), RecordFlags(), args[1:]
    # One that is named again and again is one value.
    places = memory.locate_all(ids, ctx.now)

    def show() -> list[Any]:
        shown = {name: None if found is None else record_map(*found, flags) for name, found in places.items()}
        return [shown[record_id] for record_id in ids]

    # Some 10 microseconds each, with its share of the encoding.
    return ctx.server.workers.submit(memory, len(ids) * _SHOW_COST, show, ctx.proto)


@command(
    "MEM.DEL",
    arity=-3,
    flags="write fast",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.DEL key id [id ...]",
    complexity="O(ids)",
)
def delete(ctx: Client, args: list[bytes]) -> Any:
    """Delete records; how many there were."""
    key, memory = args[0], find(ctx, args[0])

    def settle(memory: Memory) -> list[Entry]:
        there = tuple(dict.fromkeys(record_id for record_id in args[1:] if record_id in memory))
        return [Remove(key, there, ctx.now)] if there else []

    def finish(group: list[Entry]) -> int:
        gone = [record_id for entry in group if isinstance(entry, Remove) for record_id in entry.ids]
        for record_id in gone if ctx.server.pubsub.active else ():
            ctx.server.announce(key, b"del " + record_id)
        return len(gone)

    # What ends of a record that history keeps is written as a row of its own; else they go by arrays.
    rows = len(args) - 1
    return change(ctx, key, memory, rows if memory.settings.history or rows > _DEL_ON_LOOP else 0, settle, finish)


def remove(ctx: Client, key: bytes, ids: tuple[bytes, ...]) -> None:
    """Delete records that are there, and announce it."""
    if ids:
        ctx.server.commit(Remove(key, ids, ctx.now))
        for record_id in ids:
            ctx.server.announce(key, b"del " + record_id)


@command(
    "MEM.SETMETA",
    arity=-5,
    flags="write denyoom fast",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.SETMETA key id field value [field value ...]",
    complexity="O(fields)",
)
def set_meta(ctx: Client, args: list[bytes]) -> int:
    """Set metadata fields of a record; how many were new."""
    if len(args) % 2:
        raise CommandError("wrong number of arguments for 'mem.setmeta' command")
    memory = find(ctx, args[0])
    old, tags = _meta_and_tags(ctx, memory, args[1])
    new = merged(old, args[2:])
    check_meta(ctx.server.config, args[1], new + tags, old + tags)
    _commit_meta(ctx, memory, args, old, new)
    return (len(new) - len(old)) // 2


@command(
    "MEM.DELMETA",
    arity=-4,
    flags="write fast",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.DELMETA key id field [field ...]",
    complexity="O(fields)",
)
def del_meta(ctx: Client, args: list[bytes]) -> int:
    """Remove metadata fields of a record; how many there were."""
    memory = find(ctx, args[0])
    old, _ = _meta_and_tags(ctx, memory, args[1])
    gone = set(args[2:])
    new = tuple(word for at in range(0, len(old), 2) if old[at] not in gone for word in old[at : at + 2])
    _commit_meta(ctx, memory, args, old, new)
    return (len(old) - len(new)) // 2


def _meta_and_tags(ctx: Client, memory: Memory, record_id: bytes) -> tuple[tuple[bytes, ...], tuple[bytes, ...]]:
    found = memory.locate(record_id, ctx.now)
    if found is None:
        raise CommandError("no such record")
    view, slot = found
    return view.metas[slot], view.tags[slot]


def _commit_meta(
    ctx: Client, memory: Memory, args: list[bytes], old: tuple[bytes, ...], new: tuple[bytes, ...]
) -> None:
    if new == old:
        return
    key, record_id, now = args[0], args[1], ctx.now
    size = sum(map(len, new)) - sum(map(len, old))
    gone = make_room(memory, now, records=0, size=size, keep=(record_id,)) if memory.settings.max_bytes else ()
    ctx.server.commit_all([*evictions(key, memory, gone, now), SetMeta(key, record_id, new, now)])
    announce_evicted(ctx.server, key, gone)
    ctx.server.announce(key, b"meta " + record_id)


@command(
    "MEM.EXPIRE",
    arity=4,
    flags="write fast",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.EXPIRE key id seconds",
    options=("seconds: 0 clears the deadline",),
)
def expire(ctx: Client, args: list[bytes]) -> int:
    """Give a record a deadline, or clear it; 0 where there is no such record."""
    seconds = Words(args, 2).integer()
    if seconds < 0:
        raise CommandError("TTL must not be negative")
    check_ttl(seconds)
    memory = find(ctx, args[0])
    if args[1] not in memory:
        return 0
    ctx.server.commit(SetDeadline(args[0], args[1], ctx.now + seconds * 1000 if seconds else 0, ctx.now))
    if seconds:
        ctx.server.announce(args[0], b"ttl " + args[1])
    return 1


@command(
    "MEM.SCAN",
    arity=-3,
    flags="readonly",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.SCAN key cursor [COUNT n] [FILTER field op value]*",
    complexity="O(count)",
    options=(
        "COUNT n: how many records a page looks at (10)",
        "FILTER field op value: only those that pass; a page may be empty before the end",
    ),
)
def scan(ctx: Client, args: list[bytes]) -> list[Any]:
    """Walk all records, page by page: the next cursor (0 at the end) and ids."""
    cursor = scan_cursor(args[1])
    words, count, filters = Words(args, 2), 10, list[Clause]()
    while words:
        option = words.option()
        if option == b"COUNT":
            count = words.integer()
            if count < 1:
                raise syntax_error()
        elif option == b"FILTER":
            read_filter(words, filters, ctx.server.config)
        else:
            raise words.unexpected()
    memory, seen = find(ctx, args[0]), ctx.seen
    # COUNT is a hint: a page takes a few milliseconds at most, and the walk is none the longer for it.
    following, ids = memory.table.order.page(cursor, min(count, _PAGE_RECORDS // (1 + 20 * len(filters)) + 1))
    if filters:
        places = memory.locate_all(ids, ctx.now)
        ids = [
            record_id
            for record_id, place in places.items()
            if place is not None and all(clause.matches(place[0].row(place[1])) for clause in filters)
        ]
    if seen is not None:
        seen.results = len(ids)
    return [b"%d" % following, ids]


def scan_cursor(word: bytes) -> int:
    """A cursor as SCAN and MEM.SCAN take it."""
    if not word.isdigit() or len(word) > 20 or int(word) >= 1 << 64:
        raise CommandError("invalid cursor")
    return min(int(word), (1 << 63) - 1)
