"""What a model must answer: JSON schemas, and whether an answer keeps to one.

The schema goes to the inference server as well, but whether that enforces it is its affair: every answer is checked
here. Of JSON Schema only what the schemas below use is known; bounds (how many, how long) are the commands' to check.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from ..index.entities import TYPES

Schema = dict[str, Any]


class Refused(Exception):
    """The answer is not what was asked for; the text says why, for clients."""


def _object(title: str, **properties: Schema) -> Schema:
    """Every field is required and no other is allowed, as OpenAI's strict mode wants it."""
    return {
        "title": title,
        "type": "object",
        "properties": properties,
        "required": [*properties],
        "additionalProperties": False,
    }


_TEXT = {"type": "string"}
_TEXT_OR_NULL = {"type": ["string", "null"]}

#: MEM.ANALYZE
FACTS = _object(
    "facts",
    facts={
        "type": "array",
        "items": _object(
            "fact",
            subject=_TEXT,
            predicate=_TEXT,
            object=_TEXT,
            type={"type": ["string", "null"], "enum": [*(each.decode() for each in TYPES), None]},
            confidence={"type": "number"},
            quote=_TEXT,
            valid_at=_TEXT_OR_NULL,
            supersedes=_TEXT_OR_NULL,
        ),
    },
)
#: MEM.CONSULT
ANSWER = _object(
    "answer",
    answer=_TEXT_OR_NULL,
    used={"type": "array", "items": {"title": "number", "type": "integer"}},
)
#: MEM.RECALL .. SYNTHESIS
SYNTHESIS = _object("synthesis", synthesis=_TEXT)


def read(text: str, schema: Schema) -> dict[str, Any]:
    """The answer as the schema has it; raises Refused."""
    try:
        value = json.loads(text, parse_constant=_no_number, object_pairs_hook=_fields)
    except (ValueError, RecursionError):
        raise Refused("it is not JSON") from None
    check(value, schema, "it")
    found: dict[str, Any] = value
    return found


def check(value: Any, schema: Schema, name: str) -> None:
    """Raise Refused where `value`, which clients know as `name`, is not as the schema has it."""
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    kind = _kind(value)
    if kind not in types and not (kind == "integer" and "number" in types):
        raise Refused(f"{name} must be of type {' or '.join(types)}")
    if "enum" in schema and value not in schema["enum"]:
        raise Refused(f"{name} must be one of {', '.join(each or 'null' for each in schema['enum'])}")
    if kind == "string" and not _is_text(value):
        raise Refused(f"{name} holds half a character")
    if kind == "object":
        for field in schema["required"]:
            if field not in value:
                raise Refused(f"{field} is missing")
        if len(value) > len(schema["properties"]):
            raise Refused("there are fields that were not asked for")
        for field, inner in schema["properties"].items():
            check(value[field], inner, field)
    elif kind == "array":
        for number, item in enumerate(value, 1):
            try:
                check(item, schema["items"], "it")
            except Refused as error:
                raise Refused(f"{schema['items']['title']} {number}: {error}") from None


def _kind(value: Any) -> str:
    """The value's type in JSON Schema's words."""
    if value is None:
        return "null"
    # bool first: to Python it is an int.
    kinds = ((bool, "boolean"), (int, "integer"), (float, "number"), (str, "string"), (list, "array"))
    return next((name for type_, name in kinds if isinstance(value, type_)), "object")


def _is_text(text: str) -> bool:
    # "\ud800" is JSON, and no text.
    return not any("\ud800" <= char <= "\udfff" for char in text)


def _no_number(word: str) -> NoReturn:
    raise ValueError(word)  # NaN, Infinity: Python reads them, JSON has none


def _fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields = dict(pairs)
    if len(fields) < len(pairs):
        raise ValueError("a field stands there twice")  # which of them is meant depends on who reads it
    return fields
