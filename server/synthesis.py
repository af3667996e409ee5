"""MEM.RECALL .. SYNTHESIS: the prose that a model makes of what a recall shows. A recall never fails for it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from ..index.block import clean
from .fact_maps import FactRow
from .inference import InferenceError, refused
from .inference_prompts import SYNTHESIS, messages, numbered, shortened
from .inference_schema import SYNTHESIS as SCHEMA

if TYPE_CHECKING:
    from .client import Client

_MOST_CHARS = 10_000


class Synthesis(NamedTuple):
    """`prose` on one line, None where there is none, and then why, if that is anyone's fault."""

    prose: str | None
    error: str | None = None


async def synthesise(ctx: Client, text: bytes | None, rows: list[FactRow], episodes: list[bytes]) -> Synthesis:
    """What these facts and episodes say about the text; nobody is asked where there are none."""
    if not (rows or episodes):
        return Synthesis(None)
    data = {
        "question": None if text is None else text.decode("utf-8", "replace"),
        "facts": numbered(rows),
        "episodes": [shortened(each) for each in episodes],
    }
    try:
        answer = await ctx.server.inference.chat(messages(SYNTHESIS, data), SCHEMA)
        prose = clean(answer["synthesis"].encode())
        if len(prose) > _MOST_CHARS:
            raise refused(f"it has more than {_MOST_CHARS} characters")
    except InferenceError as error:
        return Synthesis(None, error.message)
    return Synthesis(prose or None)
