"""MEM.CREATE, MEM.CONFIG, MEM.INFO, MEM.CARD: memories as wholes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..index.analyzer import LANGUAGES
from ..index.memory import Memory
from ..index.settings import ALL, EMBEDDERS, FUSIONS, METRICS, MODEL_NAME_MAX, MODES, Settings, Weights
from ..protocol.reply import OK, SimpleString
from .arguments import Words
from .aside import change
from .commands import command
from .embedding import EmbedderError, Model, model_of
from .entries import Configure, Create, Entry, Switch
from .errors import CommandError, syntax_error
from .names import check_name

if TYPE_CHECKING:
    from .client import Client
    from .config import Config

# Of EMBEDDER auto while there is none: the local model's width.
_AUTO_DIM = 384
_EMBEDDERS = "local|static|openai|gemini|auto|NONE"
_SETTING_OPTIONS = (
    "WEIGHTS keyword vector recency importance: the four weights of a query (mem-default-weights: 0.35 0.5 0.1 0.05)",
    "HALFLIFE seconds: the age at which recency has halved (mem-recency-halflife: 604800)",
    "FUSION LINEAR|RRF: weighted sum of scaled signals, or of reciprocal ranks (LINEAR)",
    "K1 x, B x: BM25's term frequency saturation and length normalisation (0.9, 0.4)",
    "EMBEDDER local|static|openai|gemini|auto|NONE: who makes vectors of texts that come without one"
    " (mem-default-embedder: NONE)",
    "MODEL name: whose vectors the memory holds (the embedder's default); another one replaces them all",
    "TAGBOOST x: what each tag that a query names adds to a record's BM25 (0)",
    "HISTORY seconds|ALL|0: how long replaced and deleted versions can be asked for with ASOF and KNOWNAT (0)",
    "MAXRECORDS n, MAXBYTES n: the records of least retention are evicted where a write would make it more than n, or"
    " more than n bytes of texts, vectors, metadata and tags (0: no limit)",
)


def model_of_memory(settings: Settings) -> Model | None:
    """Who makes vectors for a memory, None for nobody."""
    if not (settings.embedder and settings.model and settings.has_vectors):
        return None
    return Model(settings.embedder, settings.model, settings.dim)


def next_model(settings: Settings) -> Model | None:
    """Who will, once a change of model that is under way is done."""
    if not settings.is_switching:
        return None
    return Model(settings.next_embedder, settings.next_model, settings.next_dim)


def find(ctx: Client, key: bytes) -> Memory:
    """The memory at `key`; raises CommandError where there is none."""
    memory = ctx.look_up(key)
    if memory is None:
        raise CommandError("no such memory index")
    if ctx.server.eviction.tracks:
        ctx.server.eviction.use(ctx, memory)
    return memory


def weights(words: Words) -> Weights:
    """`keyword vector recency importance`, each finite and >= 0."""
    values = [words.weight() for _ in range(4)]
    if not all(math.isfinite(value) and value >= 0 for value in values):
        raise CommandError("WEIGHTS must be finite and non-negative")
    return (values[0], values[1], values[2], values[3])


def half_life(words: Words) -> int:
    """A positive number of seconds."""
    value = words.integer()
    if value <= 0:
        raise CommandError("HALFLIFE must be positive")
    return value


def _setting(option: bytes, words: Words, config: Config) -> dict[str, Any] | None:
    """One of the settings that MEM.CONFIG can change too; None where `option` is none of them."""
    if option == b"WEIGHTS":
        return {"weights": weights(words)}
    if option == b"HALFLIFE":
        return {"half_life": half_life(words)}
    if option == b"FUSION":
        return {"fusion": words.enum(*FUSIONS)}
    if option == b"K1":
        k1 = words.real()
        if not (math.isfinite(k1) and k1 >= 0):
            raise CommandError("K1 must be finite and non-negative")
        return {"k1": k1}
    if option == b"B":
        b = words.real()
        if not 0 <= b <= 1:
            raise CommandError("B must be between 0 and 1")
        return {"b": b}
    if option == b"EMBEDDER":
        name = words.enum("NONE", *(name.upper() for name in EMBEDDERS)).lower()
        return {"embedder": "" if name == "none" else name}
    if option == b"MODEL":
        model = words.next().decode("utf-8", "surrogateescape")
        if not (model.isprintable() and 0 < len(model) <= MODEL_NAME_MAX):
            raise CommandError(f"MODEL must be 1 to {MODEL_NAME_MAX} printable characters")
        return {"model": model}
    if option == b"DIM":
        dim = words.integer()
        if not 1 <= dim <= config["mem-max-dim"]:
            raise CommandError(f"DIM must be between 1 and mem-max-dim ({config['mem-max-dim']})")
        return {"dim": dim}
    if option == b"TAGBOOST":
        boost = words.real()
        if not (math.isfinite(boost) and boost >= 0):
            raise CommandError("TAGBOOST must be finite and non-negative")
        return {"tagboost": boost}
    if option == b"HISTORY":
        if words.accept(b"ALL"):
            return {"history": ALL}
        seconds = words.integer()
        if seconds < 0:
            raise CommandError("HISTORY must not be negative")
        return {"history": seconds}
    if option in (b"MAXRECORDS", b"MAXBYTES"):
        limit = words.integer()
        if limit < 0:
            raise CommandError(f"{option.decode()} must not be negative")
        return {"max_records" if option == b"MAXRECORDS" else "max_bytes": limit}
    return None


def _embedded(settings: Settings, config: Config) -> Settings:
    """A new memory's settings with the embedder's model and width. Raises CommandError."""
    if not settings.has_vectors:
        for option, value in (("DIM", settings.dim), ("EMBEDDER", settings.embedder), ("MODEL", settings.model)):
            if value:
                raise CommandError(
                    f"a SEARCH index stores no vectors, so {option} does not apply; did you mean MODE HYBRID?"
                )
    return _of_model(settings, config) if settings.embedder else settings


def _of_model(settings: Settings, config: Config) -> Settings:
    """The settings with the model and width that their embedder comes to; `model` "" and `dim` 0 are its own."""
    try:
        model = model_of(settings.embedder, settings.model, settings.dim, config)
    except EmbedderError as error:
        if settings.embedder != "auto":
            raise CommandError(str(error)) from error
        # A memory of words until one is found (backfill.py); no vector tells how wide it is.
        return replace(settings, model="", dim=settings.dim or _AUTO_DIM)
    if not 1 <= model.dim <= config["mem-max-dim"]:
        raise CommandError(f"DIM must be between 1 and mem-max-dim ({config['mem-max-dim']})")
    return replace(settings, embedder=model.embedder, model=model.name, dim=model.dim)


@command(
    "MEM.CREATE",
    arity=-2,
    flags="write denyoom fast",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.CREATE key [MODE SEARCH|VECTOR|HYBRID] [DIM n] [METRIC COSINE|L2|IP]"
    " [WEIGHTS keyword vector recency importance] [HALFLIFE seconds] [FUSION LINEAR|RRF] [LANG name|NONE] [K1 x] [B x]"
    f" [EMBEDDER {_EMBEDDERS}] [MODEL name] [TAGBOOST x] [HISTORY seconds|ALL|0] [MAXRECORDS n] [MAXBYTES n]",
    options=(
        "MODE SEARCH|VECTOR|HYBRID: index words, vectors, or both (HYBRID)",
        "DIM n: the vectors' width; required for VECTOR and HYBRID unless EMBEDDER says it, refused for SEARCH",
        "METRIC COSINE|L2|IP: cosine of vectors normalised on arrival, 1/(1 + distance), or inner product (COSINE)",
        "LANG name|NONE: the Snowball stemmer, english with a stop list (english)",
        *_SETTING_OPTIONS,
    ),
)
def create(ctx: Client, args: list[bytes]) -> Any:
    """Create an empty memory."""
    config = ctx.server.config
    given: dict[str, Any] = {}
    words = Words(args, 1)
    while words:
        option = words.option()
        setting = _setting(option, words, config)
        if setting is not None:
            given.update(setting)
        elif option == b"MODE":
            given["mode"] = words.enum(*MODES)
        elif option == b"METRIC":
            given["metric"] = words.enum(*METRICS)
        elif option == b"LANG":
            given["lang"] = words.next().lower().decode("latin-1")
            if given["lang"] not in LANGUAGES:
                raise syntax_error()
        else:
            raise words.unexpected()
    given.setdefault("weights", config["mem-default-weights"])
    given.setdefault("half_life", config["mem-recency-halflife"])
    if "dim" not in given and given.get("mode") != "SEARCH" and config["mem-default-embedder"] != "none":
        given.setdefault("embedder", config["mem-default-embedder"])
    settings = _embedded(Settings(**given, owner=ctx.user), config)
    if settings.has_vectors and not settings.dim:
        raise CommandError("DIM is required for a VECTOR or HYBRID index")
    if ctx.server.keyspace.get(args[0], ctx.now) is not None:
        raise CommandError("memory index already exists")
    check_name(args[0], "key")
    ctx.server.commit(Create(args[0], settings, ctx.now))
    return OK


@command(
    "MEM.CONFIG",
    arity=-2,
    flags="write fast",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.CONFIG key [WEIGHTS keyword vector recency importance] [HALFLIFE seconds] [FUSION LINEAR|RRF] [K1 x]"
    f" [B x] [EMBEDDER {_EMBEDDERS}] [MODEL name] [DIM n] [TAGBOOST x] [HISTORY seconds|ALL|0]"
    " [MAXRECORDS n] [MAXBYTES n]",
    options=(*_SETTING_OPTIONS, "DIM n: the width of the MODEL's vectors"),
)
def config(ctx: Client, args: list[bytes]) -> Any:
    """Change a memory's settings, or show them where none is given."""
    given: dict[str, Any] = {}
    words = Words(args, 1)
    server, key = ctx.server, args[0]
    while words:
        setting = _setting(words.option(), words, server.config)
        if setting is None:
            raise words.unexpected()
        given.update(setting)
    memory = find(ctx, key)
    if not given:
        return _options_map(memory.settings)
    modelled: dict[str, Any] = {name: given.pop(name) for name in ("embedder", "model", "dim") if name in given}
    plain = replace(memory.settings, **given)
    wanted = _remodelled(plain, modelled, server.config) if modelled else plain
    # Who brings vectors and had not said of which model says so now.
    named = not plain.model and not wanted.embedder and wanted.dim == plain.dim
    rows = 0
    entry: Entry
    if named or (wanted.model, wanted.dim) == (plain.model, plain.dim):
        # Back to the model that it has ends a change that is under way.
        rest: dict[str, Any] = {"next_embedder": "", "next_model": "", "next_dim": 0} if modelled else {}
        entry = Configure(key, replace(wanted, **rest), ctx.now)
        rows = memory.past.n if memory.past is not None else 0
    elif memory.holds_vectors and wanted.embedder and server.config["mem-switch-serves"] == "vectors":
        following = replace(plain, next_embedder=wanted.embedder, next_model=wanted.model, next_dim=wanted.dim)
        entry = Configure(key, following, ctx.now)
    else:
        entry = Switch(key, replace(wanted, next_embedder="", next_model="", next_dim=0), ctx.now)
        rows = memory.table.n

    def finish(_: list[Entry]) -> SimpleString:
        if wanted.embedder:
            server.backfill.add(key)
        return OK

    return change(ctx, key, memory, rows, lambda _: [replace(entry, at=ctx.now)], finish)


def _remodelled(settings: Settings, given: dict[str, Any], config: Config) -> Settings:
    """The settings that EMBEDDER, MODEL and DIM ask for. Raises CommandError."""
    if not settings.has_vectors:
        option = next(iter(given)).upper()
        raise CommandError(f"a SEARCH index stores no vectors, so {option} does not apply; did you mean MODE HYBRID?")
    embedder = given.get("embedder", settings.embedder)
    if not embedder:
        if "dim" in given and "model" not in given and given["dim"] != settings.dim:
            raise CommandError("DIM changes only with MODEL")
        return replace(settings, **{**given, "embedder": ""})
    same = embedder == settings.embedder
    model = given.get("model", settings.model if same else "")
    dim = given.get("dim", settings.dim if same and model == settings.model else 0)
    return _of_model(replace(settings, embedder=embedder, model=model, dim=dim), config)


def _options_map(settings: Settings) -> dict[str, Any]:
    """All options of MEM.CREATE, lower-case, as they stand."""
    history = settings.history
    found = {
        **settings_map(settings),
        "embedder": settings.embedder or "NONE",
        "model": settings.model,
        "tagboost": settings.tagboost,
        "history": "ALL" if history == ALL else history,
        "maxrecords": settings.max_records,
        "maxbytes": settings.max_bytes,
    }
    if settings.is_switching:
        found["next"] = {
            "embedder": settings.next_embedder,
            "model": settings.next_model,
            "dim": settings.next_dim,
        }
    return found


def settings_map(settings: Settings) -> dict[str, Any]:
    """The options of MEM.CREATE that queries depend on, lower-case, as they stand."""
    keyword, vector, recency, importance = settings.weights
    return {
        "mode": settings.mode,
        "dim": settings.dim,
        "metric": settings.metric,
        "weights": {"keyword": keyword, "vector": vector, "recency": recency, "importance": importance},
        "halflife": settings.half_life,
        "fusion": settings.fusion,
        "lang": settings.lang,
        "k1": settings.k1,
        "b": settings.b,
    }


@command(
    "MEM.INFO", arity=2, flags="readonly", keys=(1, 1, 1), group="memory", usage="MEM.INFO key", complexity="O(records)"
)
def info(ctx: Client, args: list[bytes]) -> Any:
    """Show a memory's settings, counts and size."""
    memory = find(ctx, args[0])
    return {
        **settings_map(memory.settings),
        "records": len(memory),
        "vectors": memory.vector_count,
        "terms": memory.term_count(),
        "avg_doc_len": memory.avg_doc_len,
        "bytes": ctx.server.keyspace.own_bytes(args[0]),
        **({"record_bytes": memory.record_bytes} if memory.settings.max_bytes else {}),
        "tier": tier(ctx, memory.settings),
        "pending": memory.pending,
        **_switching(ctx, args[0], memory),
        "next_id": memory.next_id,
        "created_at": memory.created_at,
        "updated_at": memory.updated_at,
    }


def _switching(ctx: Client, key: bytes, memory: Memory) -> dict[str, Any]:
    """How far a change of model is, where one is under way."""
    if not memory.settings.is_switching:
        return {}
    done = ctx.server.backfill.progress(key, memory)
    return {"switching": {"model": memory.settings.next_model, "done": done, "left": memory.held - done}}


def tier(ctx: Client, settings: Settings) -> str:
    """What the next query with a text and no vector would use."""
    model = model_of_memory(settings)
    if model is not None and ctx.server.embedding.is_up(model):
        return "hybrid" if settings.has_text else "vector"
    if settings.has_text:
        return "keyword"
    return "like" if settings.embedder else "vector"


@command("MEM.CARD", arity=2, flags="readonly fast", keys=(1, 1, 1), group="memory", usage="MEM.CARD key")
def card(ctx: Client, args: list[bytes]) -> int:
    """Count a memory's records."""
    return len(find(ctx, args[0]))
