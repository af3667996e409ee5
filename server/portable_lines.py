"""The lines of an export: memories and records as JSON, to the byte and the millisecond.

    file   := header (memory record*)* end              one JSON object per line, UTF-8
    header := {"recalld": 2}                            the format's version; 1 is the same without what 2 added
    memory := {"memory": word, "settings": {..}, "next_id": n, "created_at": ms, "deadline": ms,
               "entities": [entity, ..]}                2
    entity := {"name": word, "type": "ORG", "aliases": [word, ..], "created_at": ms, "vector": floats}
    record := {"id": word, "text": word, "vector": floats, "meta": {field: value, ..}, "tags": [word, ..],
               "importance": x, "created_at": ms, "updated_at": ms, "deadline": ms,
               "kind": "episode" | "fact", "valid_at": ms, "valid_until": ms, "pin": true, "fact": fact}     2
    fact   := {"subject": word, "predicate": word, "object": word, "entity_type": "ORG", "confidence": x,
               "quote": word, "episode": word, "invalid_at": ms, "supersedes": word, "superseded_by": word}
    end    := {"end": {"memories": n, "records": n}}    without it the file is torn
    word   := "UTF-8" | {"base64": ".."}                bytes that are no UTF-8
    floats := "base64 of float32, little-endian"

`settings` are as MEM.CONFIG shows them, times are unix milliseconds, and what something lacks is left out. Entities
stand in the order of coming. A fact's text is its subject, predicate and object; facts alone have a `fact`. `meta` is a
list of [field, value] where a word of it is no UTF-8; either form keeps its order.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..index.entities import TYPES, Entity, entity_name
from ..index.errors import BadMemory
from ..index.settings import ALL, Settings
from ..index.side import Fact
from .arguments import TTL_MAX_S
from .entity_commands import unit_vector
from .fact_words import object_words, predicate_words
from .payload import PayloadDamaged, settings_of

VERSION = 2
_TIME_MAX = TTL_MAX_S * 1000
_WEIGHTS = ("keyword", "vector", "recency", "importance")
_KINDS = ("note", "episode", "fact")
# What is called otherwise in Settings.
_RENAMED = {"half_life": "halflife", "max_records": "maxrecords", "max_bytes": "maxbytes"}


class BadLine(Exception):
    """Why a line is no line of this format."""


@dataclass(slots=True, frozen=True)
class About:
    """A memory without its records. `deadline` is the key's, None for none; entities are in the order of coming."""

    key: bytes
    settings: Settings
    next_id: int
    created_at: int
    deadline: int | None
    entities: tuple[Entity, ...] = ()


class Stated(NamedTuple):
    """What a fact has beside what all records have."""

    fact: Fact
    confidence: float
    invalid_at: int | None


@dataclass(slots=True, frozen=True)
class Record:
    """A record as it is stored. `vector` is float32 bytes, b"" for none; the names are those of the line."""

    id: bytes
    text: bytes
    vector: bytes
    meta: tuple[tuple[bytes, bytes], ...]
    tags: tuple[bytes, ...]
    importance: float
    created_at: int
    updated_at: int
    deadline: int | None
    kind: str = "note"
    valid_at: int | None = None
    valid_until: int | None = None
    pin: bool = False
    fact: Stated | None = None


# -- writing


def line_of(fields: dict[str, Any]) -> bytes:
    """One line; None and what is empty are left out, but for the text."""
    return json.dumps(_held(fields), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode() + b"\n"


def _held(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None and value != [] and value != {}}


def about_line(about: About) -> bytes:
    settings = about.settings
    shown = {
        "mode": settings.mode,
        "dim": settings.dim,
        "metric": settings.metric,
        "weights": dict(zip(_WEIGHTS, settings.weights, strict=True)),
        "halflife": settings.half_life,
        "fusion": settings.fusion,
        "lang": settings.lang,
        "k1": settings.k1,
        "b": settings.b,
    }
    shown |= {"embedder": settings.embedder, "model": settings.model} if settings.model or settings.embedder else {}
    if settings.tagboost:
        shown["tagboost"] = settings.tagboost
    if settings.history:
        shown["history"] = "ALL" if settings.history == ALL else settings.history
    for name, limit in (("maxrecords", settings.max_records), ("maxbytes", settings.max_bytes)):
        if limit:
            shown[name] = limit
    return line_of(
        {
            "memory": _word(about.key),
            "settings": shown,
            "next_id": about.next_id,
            "created_at": about.created_at,
            "deadline": about.deadline,
            "entities": [
                _held(
                    {
                        "name": _word(entity.name),
                        "type": entity.type.decode(),
                        "aliases": [_word(alias) for alias in entity.aliases],
                        "created_at": entity.created_at,
                        "vector": _floats(entity.vector),
                    }
                )
                for entity in about.entities
            ],
        }
    )


def record_line(record: Record) -> bytes:
    pairs = [(_word(field), _word(value)) for field, value in record.meta]
    meta: Any = pairs
    if all(isinstance(word, str) for pair in pairs for word in pair):
        meta = dict(pairs)
    return line_of(
        {
            "id": _word(record.id),
            "text": _word(record.text),
            "vector": _floats(record.vector),
            "meta": meta,
            "tags": [_word(tag) for tag in record.tags],
            "importance": record.importance,
            "created_at": record.created_at,
            "updated_at": record.updated_at,
            "deadline": record.deadline,
            "kind": None if record.kind == "note" else record.kind,
            "valid_at": record.valid_at,
            "valid_until": record.valid_until,
            "pin": record.pin or None,
            "fact": None if record.fact is None else _shown(record.fact),
        }
    )


def _shown(stated: Stated) -> dict[str, Any]:
    words = {name: _word(word) for name, word in stated.fact._asdict().items() if word}
    return _held({**words, "confidence": stated.confidence, "invalid_at": stated.invalid_at})


def _floats(vector: bytes) -> str | None:
    return base64.b64encode(vector).decode() if vector else None


def _word(word: bytes) -> str | dict[str, str]:
    try:
        return word.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(word).decode()}


# -- reading


def fields_of(line: bytes) -> dict[str, Any]:
    """The object of a line. Raises BadLine."""
    try:
        value = json.loads(line.decode(), object_pairs_hook=_pairs, parse_constant=_no_number)
    except UnicodeDecodeError as error:
        raise BadLine(f"byte {error.start + 1} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise BadLine(f"not JSON at column {error.colno}: {error.msg}") from None
    except (ValueError, RecursionError):  # a number of thousands of digits, a thousand brackets
        raise BadLine("not JSON that anybody exported") from None
    if not isinstance(value, dict):
        raise BadLine("not a JSON object")
    return value


def _pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise BadLine("an object names a field twice")
    return found


def _no_number(name: str) -> None:
    raise BadLine(f"{name} is no JSON number")


def read_about(fields: dict[str, Any]) -> About:
    """A `memory` line. Raises BadLine."""
    _only(fields, {"memory", "settings", "next_id", "created_at", "deadline", "entities"})
    shown = _needed(fields, "settings")
    if not isinstance(shown, dict):
        raise BadLine("settings is no object")
    settings = read_settings(shown)
    return About(
        _bytes(fields["memory"], "memory"),
        settings,
        _integer(fields, "next_id", 1, (1 << 62) - 1),
        _integer(fields, "created_at", -_TIME_MAX, _TIME_MAX),
        _integer(fields, "deadline", 1, (1 << 63) - 1) if "deadline" in fields else None,
        _entities(fields.get("entities", []), settings),
    )


def _entities(value: Any, settings: Settings) -> tuple[Entity, ...]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise BadLine("entities is no list of objects")
    found: list[Entity] = []
    known: set[tuple[bytes, bytes]] = set()
    for number, fields in enumerate(value, 1):
        try:
            entity = _entity(fields, settings)
            for name in (entity.name, *entity.aliases):
                if (name, entity.type) in known:
                    raise BadLine(f"'{name.decode('utf-8', 'replace')}' names another {fields['type']}")
                known.add((name, entity.type))
        except BadLine as error:
            raise BadLine(f"entity {number}: {error}") from None
        found.append(entity)
    return tuple(found)


def _entity(fields: dict[str, Any], settings: Settings) -> Entity:
    _only(fields, {"name", "type", "aliases", "created_at", "vector"})
    aliases = fields.get("aliases", [])
    if not isinstance(aliases, list):
        raise BadLine("aliases is no list")
    names = [entity_name(_bytes(_needed(fields, "name"), "name"))]
    names += [entity_name(_bytes(alias, "an alias")) for alias in aliases]
    if not all(names):
        raise BadLine("a name is empty")
    vector = b""
    if "vector" in fields:
        blob = _unbase64(fields["vector"], "vector")
        if len(blob) % 4:
            raise BadLine(f"the vector has {len(blob)} bytes, which is no float32s")
        try:
            vector = unit_vector(np.frombuffer(blob, "<f4").astype(np.float64), settings)
        except BadMemory as error:
            raise BadLine(str(error)) from None
    created_at = _integer(fields, "created_at", -_TIME_MAX, _TIME_MAX)
    return Entity(0, names[0], _type(_needed(fields, "type"), "type"), tuple(names[1:]), created_at, vector)


def _type(value: Any, name: str) -> bytes:
    if not isinstance(value, str) or value.encode("utf-8", "replace") not in TYPES:
        raise BadLine(f"{name} is none of {b' '.join(TYPES).decode()}")
    return value.encode()


def read_settings(shown: dict[str, Any]) -> Settings:
    """Settings as MEM.CONFIG shows them. Raises BadLine."""
    fields = dict(shown)
    weights = fields.get("weights")
    if isinstance(weights, dict) and weights.keys() == set(_WEIGHTS):
        fields["weights"] = [weights[name] for name in _WEIGHTS]
    for name, shown_as in _RENAMED.items():
        if shown_as in fields:
            fields[name] = fields.pop(shown_as)
    if fields.get("history") == "ALL":
        fields["history"] = ALL
    if fields.get("embedder") == "NONE":
        fields["embedder"] = ""
    fields.pop("next", None)  # a change of model that is under way is the server's
    try:
        return settings_of(fields)
    except PayloadDamaged as error:
        raise BadLine(str(error)) from None


def read_record(fields: dict[str, Any], settings: Settings) -> Record:
    """A `record` line of a memory with these settings. Raises BadLine."""
    _only(fields, set(Record.__slots__))
    importance = fields.get("importance", 0.5)
    if type(importance) not in (int, float) or not 0 <= importance <= 1:
        raise BadLine("importance is no number from 0 to 1")
    tags = fields.get("tags", [])
    if not isinstance(tags, list):
        raise BadLine("tags is no list")
    kind, pin = fields.get("kind", "note"), fields.get("pin", False)
    if kind not in _KINDS:
        raise BadLine("kind is neither note, episode nor fact")
    if (kind == "fact") != ("fact" in fields):
        raise BadLine("kind fact without a fact" if kind == "fact" else "a fact whose kind is not fact")
    if type(pin) is not bool:
        raise BadLine("pin is neither true nor false")
    valid_at, valid_until = (_time(fields, name) for name in ("valid_at", "valid_until"))
    if valid_at is not None and valid_until is not None and valid_until <= valid_at:
        raise BadLine("valid_until is not after valid_at")
    stated, text = None, b""
    if kind == "fact":
        _needed(fields, "valid_at")
        if pin or importance != 0.5:
            raise BadLine("a fact has no pin, and no importance but 0.5")
        stated = _stated(fields["fact"])
        text = stated.fact.text
        if "text" in fields and _bytes(fields["text"], "text") != text:
            raise BadLine("the text of a fact is its subject, predicate and object")
    else:
        text = _bytes(_needed(fields, "text"), "text")
    return Record(
        _bytes(_needed(fields, "id"), "id"),
        text,
        _vector(fields.get("vector"), settings),
        _meta(fields.get("meta", {})),
        tuple(dict.fromkeys(_bytes(tag, "a tag") for tag in tags)),
        float(importance),
        _integer(fields, "created_at", -_TIME_MAX, _TIME_MAX),
        _integer(fields, "updated_at", -_TIME_MAX, _TIME_MAX),
        _integer(fields, "deadline", 1, 2 * _TIME_MAX) if "deadline" in fields else None,
        kind,
        valid_at,
        valid_until,
        pin,
        stated,
    )


def _stated(fields: Any) -> Stated:
    """The `fact` of a record, its words as MEM.FACT would write them."""
    if not isinstance(fields, dict):
        raise BadLine("fact is no object")
    _only(fields, {*Fact._fields, "confidence", "invalid_at"})
    for name in ("subject", "predicate", "object"):
        _needed(fields, name)
    words = {name: _bytes(fields.get(name, ""), name) for name in Fact._fields}
    if "entity_type" in fields:
        words["entity_type"] = _type(fields["entity_type"], "entity_type")
    words["subject"] = entity_name(words["subject"])
    words["predicate"] = predicate_words(words["predicate"])
    words["object"] = (entity_name if words["entity_type"] else object_words)(words["object"])
    if not (words["subject"] and words["predicate"] and words["object"]):
        raise BadLine("subject, predicate and object must not be empty")
    confidence = fields.get("confidence", 1.0)
    if type(confidence) not in (int, float) or not 0 <= confidence <= 1:
        raise BadLine("confidence is no number from 0 to 1")
    return Stated(Fact(**words), float(confidence), _time(fields, "invalid_at"))


def _time(fields: dict[str, Any], name: str) -> int | None:
    return _integer(fields, name, -_TIME_MAX, _TIME_MAX) if name in fields else None


def _only(fields: dict[str, Any], known: set[str]) -> None:
    if unknown := sorted(fields.keys() - known):
        raise BadLine(f"a field that this version does not know: {unknown[0]}")


def _needed(fields: dict[str, Any], name: str) -> Any:
    if name not in fields:
        raise BadLine(f"no {name}")
    return fields[name]


def _integer(fields: dict[str, Any], name: str, low: int, high: int) -> int:
    value = _needed(fields, name)
    if type(value) is not int or not low <= value <= high:
        raise BadLine(f"{name} is no integer from {low} to {high}")
    return value


def _bytes(value: Any, name: str) -> bytes:
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return _unbase64(value["base64"], name)
    if not isinstance(value, str):
        raise BadLine(f"{name} is neither a string nor base64")
    try:
        return value.encode()
    except UnicodeEncodeError:
        raise BadLine(f"{name} holds half a surrogate pair") from None


def _unbase64(value: Any, name: str) -> bytes:
    try:
        if not isinstance(value, str):
            raise ValueError
        return base64.b64decode(value, validate=True)
    except ValueError:
        raise BadLine(f"{name} is no base64") from None


def _meta(value: Any) -> tuple[tuple[bytes, bytes], ...]:
    pairs = list(value.items()) if isinstance(value, dict) else value
    if not isinstance(pairs, list) or not all(isinstance(pair, list | tuple) and len(pair) == 2 for pair in pairs):
        raise BadLine("meta is neither an object nor a list of [field, value]")
    found = tuple((_bytes(field, "a field of meta"), _bytes(word, "a value of meta")) for field, word in pairs)
    if len(dict(found)) < len(found):
        raise BadLine("meta names a field twice")
    return found


def _vector(value: Any, settings: Settings) -> bytes:
    if value is None:
        if settings.mode == "VECTOR" and not settings.model:
            raise BadLine("no vector, which a memory of mode VECTOR needs")
        return b""
    if not settings.has_vectors:
        raise BadLine("a vector, which a memory of mode SEARCH does not store")
    blob = _unbase64(value, "vector")
    if len(blob) != 4 * settings.dim:
        raise BadLine(f"the vector has {len(blob)} bytes, a dim of {settings.dim} makes {4 * settings.dim}")
    numbers = np.frombuffer(blob, "<f4")
    if not np.isfinite(numbers).all():
        raise BadLine("the vector contains NaN or infinity")
    if settings.metric == "COSINE" and not numbers.any():
        raise BadLine("a zero vector has no direction to compare under COSINE")
    return blob
