"""MEM.CREATE, MEM.CONFIG, MEM.INFO, MEM.CARD: memories as wholes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..index.analyzer import LANGUAGES
from ..index.memory import Memory
from ..index.settings import ALL, FUSIONS, METRICS, MODES, Settings, Weights
from ..protocol.reply import OK
from .arguments import Words
from .commands import command
from .entries import Configure, Create
from .errors import CommandError, syntax_error

if TYPE_CHECKING:
    from .client import Client

_SETTING_OPTIONS = (
    "WEIGHTS keyword vector recency importance: the four weights of a query (mem-default-weights: 0.35 0.5 0.1 0.05)",
    "HALFLIFE seconds: the age at which recency has halved (mem-recency-halflife: 604800)",
    "FUSION LINEAR|RRF: weighted sum of scaled signals, or of reciprocal ranks (LINEAR)",
    "K1 x, B x: BM25's term frequency saturation and length normalisation (0.9, 0.4)",
    "HISTORY seconds|ALL|0: how long replaced and deleted versions can be asked for with ASOF and KNOWNAT (0)",
)


def find(ctx: Client, key: bytes) -> Memory:
    """The memory at `key`; raises CommandError where there is none."""
    memory = ctx.server.keyspace.get(key, ctx.now)
    if memory is None:
        raise CommandError("no such memory index")
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


def _setting(option: bytes, words: Words) -> dict[str, Any] | None:
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
    if option == b"HISTORY":
        if words.accept(b"ALL"):
            return {"history": ALL}
        seconds = words.integer()
        if seconds < 0:
            raise CommandError("HISTORY must not be negative")
        return {"history": seconds}
    return None


@command(
    "MEM.CREATE",
    arity=-2,
    flags="write denyoom fast",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.CREATE key [MODE SEARCH|VECTOR|HYBRID] [DIM n] [METRIC COSINE|L2|IP]"
    " [WEIGHTS keyword vector recency importance] [HALFLIFE seconds] [FUSION LINEAR|RRF] [LANG name|NONE] [K1 x] [B x]"
    " [HISTORY seconds|ALL|0]",
    options=(
        "MODE SEARCH|VECTOR|HYBRID: index words, vectors, or both (HYBRID)",
        "DIM n: the vectors' width; required for VECTOR and HYBRID, refused for SEARCH",
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
        setting = _setting(option, words)
        if setting is not None:
            given.update(setting)
        elif option == b"MODE":
            given["mode"] = words.enum(*MODES)
        elif option == b"METRIC":
            given["metric"] = words.enum(*METRICS)
        elif option == b"DIM":
            given["dim"] = words.integer()
            if not 1 <= given["dim"] <= config["mem-max-dim"]:
                raise CommandError(f"DIM must be between 1 and mem-max-dim ({config['mem-max-dim']})")
        elif option == b"LANG":
            given["lang"] = words.next().lower().decode("latin-1")
            if given["lang"] not in LANGUAGES:
                raise syntax_error()
        else:
            raise words.unexpected()
    given.setdefault("weights", config["mem-default-weights"])
    given.setdefault("half_life", config["mem-recency-halflife"])
    settings = Settings(**given)
    if settings.has_vectors and not settings.dim:
        raise CommandError("DIM is required for a VECTOR or HYBRID index")
    if not settings.has_vectors and settings.dim:
        raise CommandError("a SEARCH index stores no vectors, so DIM does not apply; did you mean MODE HYBRID?")
    if ctx.server.keyspace.get(args[0], ctx.now) is not None:
        raise CommandError("memory index already exists")
    ctx.server.commit(Create(args[0], settings, ctx.now))
    return OK


@command(
    "MEM.CONFIG",
    arity=-2,
    flags="write fast",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.CONFIG key [WEIGHTS keyword vector recency importance] [HALFLIFE seconds] [FUSION LINEAR|RRF] [K1 x]"
    " [B x] [HISTORY seconds|ALL|0]",
    options=_SETTING_OPTIONS,
)
def config(ctx: Client, args: list[bytes]) -> Any:
    """Change a memory's settings, or show them where none is given."""
    given: dict[str, Any] = {}
    words = Words(args, 1)
    while words:
        setting = _setting(words.option(), words)
        if setting is None:
            raise words.unexpected()
        given.update(setting)
    memory = find(ctx, args[0])
    if not given:
        history = memory.settings.history
        return {**settings_map(memory.settings), "history": "ALL" if history == ALL else history}
    ctx.server.commit(Configure(args[0], replace(memory.settings, **given), ctx.now))
    return OK


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
        "bytes": ctx.server.keyspace.nbytes(args[0]),
        "tier": "keyword" if memory.settings.has_text else "vector",
        "pending": 0,
        "next_id": memory.next_id,
        "created_at": memory.created_at,
        "updated_at": memory.updated_at,
    }


@command("MEM.CARD", arity=2, flags="readonly fast", keys=(1, 1, 1), group="memory", usage="MEM.CARD key")
def card(ctx: Client, args: list[bytes]) -> int:
    """Count a memory's records."""
    return len(find(ctx, args[0]))
