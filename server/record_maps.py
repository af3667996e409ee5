"""Records as clients see them: the map of MEM.GET, MEM.MGET and MEM.LIST."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..index.filters import content_id
from ..index.memory import NEVER
from ..index.side import KINDS, NOTE, Extra
from ..index.view import View
from .arguments import Words


@dataclass(slots=True)
class RecordFlags:
    """Which parts of a record a reply shows."""

    text: bool = True
    meta: bool = False
    vector: bool = False
    floats: bool = False

    def read(self, option: bytes, words: Words) -> bool:
        """Take `option` if it is one of these; whether it was."""
        if option == b"NOTEXT":
            self.text = False
        elif option == b"WITHMETA":
            self.meta = True
        elif option == b"WITHVEC":
            self.vector = True
            self.floats = words.accept(b"FLOATS")
        else:
            return False
        return True


def record_map(view: View, slot: int, flags: RecordFlags) -> dict[str, Any]:
    """The record at `slot`; numbers are doubles, as in the maps of hits."""
    text = view.texts[slot]
    found: dict[str, Any] = {"id": view.ids[slot]}
    if flags.text:
        found["text"] = text
    found["importance"] = float(view.importance[slot])
    found["created_at"] = float(view.created[slot])
    found["updated_at"] = float(view.updated[slot])
    found["pttl"] = pttl(view, slot)
    found["cid"] = content_id(text)
    if view.tags[slot]:
        found["tags"] = view.tags[slot]
    if view.side is not None:
        found.update(validity(view.extra(slot)))
    if flags.meta:
        found["meta"] = meta_map(view, slot)
    if flags.vector:
        found["vector"] = vector_value(view, slot, flags.floats)
    return found


def validity(extra: Extra) -> dict[str, Any]:
    """The kind, where it is not note, and the times of validity that there are."""
    found: dict[str, Any] = {}
    if extra.kind != NOTE:
        found["kind"] = KINDS[extra.kind]
    if extra.valid_at != -NEVER:
        found["valid_at"] = float(extra.valid_at)
    if extra.valid_until != NEVER:
        found["valid_until"] = float(extra.valid_until)
    return found


def pttl(view: View, slot: int) -> float:
    """Milliseconds to the record's deadline, -1 without one."""
    deadline = view.deadline(slot)
    return float(deadline - view.clock) if deadline < NEVER else -1.0


def meta_map(view: View, slot: int) -> dict[bytes, bytes]:
    meta = view.metas[slot]
    return dict(zip(meta[::2], meta[1::2], strict=True))


def vector_value(view: View, slot: int, floats: bool) -> Any:
    """The stored vector as float32 bytes or as numbers; None where there is none."""
    blob = view.vector(slot)
    if not blob:
        return None
    return np.frombuffer(blob, "<f4").tolist() if floats else blob
