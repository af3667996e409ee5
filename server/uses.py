"""How often queries return records, which counts for what they are worth keeping (index/retention.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING

from ..index.memory import Memory

if TYPE_CHECKING:
    from .client import Client

#: The records that a reply shows, by the keys of their memories; None: of the memory that was named.
Returned = Iterable[tuple[bytes | None, bytes]]


def use_counter(ctx: Client, members: dict[bytes, Memory]) -> Callable[[Returned], None] | None:
    """What counts the records of a reply, called by whatever thread makes it; None where nothing is to be counted.
    `members` are the memories that are asked, the one that was named first."""
    if ctx.no_touch or not any(memory.settings.has_limit for memory in members.values()):
        return None
    named, now, loop = next(iter(members)), ctx.now, ctx.server.loop

    def count(returned: list[tuple[bytes, bytes]]) -> None:
        for key, record_id in returned:
            members[key].returned((record_id,), now)

    def counter(returned: Returned) -> None:
        found = [(named if key is None else key, record_id) for key, record_id in returned]
        try:
            asyncio.get_running_loop()
        except RuntimeError:  # a thread; the loop owns the counts
            with suppress(RuntimeError):  # it is closed: the server has stopped
                loop.call_soon_threadsafe(count, found)
        else:
            count(found)

    return counter
