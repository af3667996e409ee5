"""CASCADE UP|DOWN and ACROSS n key*: which memories a command covers beside the one it names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..index.memory import Memory
from .arguments import Words
from .commands import TABLE
from .paths import ancestors

if TYPE_CHECKING:
    from .client import Client

CASCADE_USAGE = " [CASCADE UP|DOWN] [ACROSS n key1 .. keyn]"
CASCADE_OPTIONS = (
    "CASCADE UP|DOWN: cover the memories above or below the key as well (a:b is below a), as one ranking with common"
    " statistics; each hit says its key",
    "ACROSS n key1 .. keyn: cover these memories as well, as far as they are there",
)


@dataclass(slots=True)
class Cascade:
    """What was asked; the last of each option counts."""

    direction: str = ""
    across: list[bytes] = field(default_factory=list)
    asked: bool = False

    def read(self, option: bytes, words: Words) -> bool:
        """Take `option` if it is one of these; whether it was."""
        if option == b"CASCADE":
            self.direction = words.enum("UP", "DOWN")
        elif option == b"ACROSS":
            self.across = words.counted()
        else:
            return False
        self.asked = True
        return True


def covered(ctx: Client, name: str, key: bytes, memory: Memory, cascade: Cascade) -> dict[bytes, Memory]:
    """The memories that the command `name` on `memory` at `key` covers, by their keys, itself first.

    Those that the client may not read with it are left out, as if they were not there.
    """
    found = {key: memory}
    if not cascade.asked:
        return found
    for other in _related(ctx, key, cascade):
        if other not in found and (name in ctx.granted or ctx.account.may_read_with(TABLE[name], [b"", key], other)):
            held = ctx.server.keyspace.get(other, ctx.now)
            if held is not None:
                found[other] = held
                if ctx.server.eviction.tracks:
                    ctx.server.eviction.use(ctx, held)
    if ctx.seen is not None:
        ctx.seen.members = list(found)
    return found


def _related(ctx: Client, key: bytes, cascade: Cascade) -> Iterator[bytes]:
    keyspace = ctx.server.keyspace
    related: Iterable[bytes] = ()
    if cascade.direction == "UP":
        related = ancestors(key, keyspace.memories)
    elif cascade.direction == "DOWN":
        related = keyspace.descendants(key)
    # What expires while they are looked at changes the tables they come from.
    yield from list(related)
    yield from cascade.across

