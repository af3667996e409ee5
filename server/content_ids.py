"""Records by their content ids, MEM.VERIFY, and the wait for an index of texts (index/texts.py).

An index is made the first time that a memory needs it, a step at each turn of the loop: whoever needs it waits for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ..index.filters import content_digest
from ..index.memory import Memory
from ..index.texts import STEP_BYTES, STEP_RECORDS, Contents, TextIndex
from .commands import command
from .errors import CommandError
from .memory_commands import find

if TYPE_CHECKING:
    from .client import Client
    from .transactions import Transaction


def read_with_texts(ctx: Client, key: bytes, kind: type[TextIndex], use: Callable[[Memory], Any]) -> Any:
    """`use(memory)`, the reply of a read that needs this index: now, or once it is there."""
    memory = find(ctx, key)
    if _is_indexed(ctx, memory, kind):
        return use(memory)
    return ctx.server.spawn(_indexed(ctx, key, kind, use, ctx.transaction))


def write_with_texts(ctx: Client, key: bytes, kind: type[TextIndex], use: Callable[[Memory], Any]) -> Any:
    """The same of a write."""
    memory = find(ctx, key)
    if _is_indexed(ctx, memory, kind):
        return use(memory)
    indexed = ctx.server.spawn(_indexed(ctx, key, kind, lambda memory: None, ctx.transaction))
    # Once more: another memory may have come to the key in between.
    return ctx.write_after(indexed, lambda _: write_with_texts(ctx, key, kind, use))


def _is_indexed(ctx: Client, memory: Memory, kind: type[TextIndex]) -> bool:
    """Go one step on with the index; whether it is there."""
    index = memory.text_index(kind)
    while not memory.extend_texts(index):
        if not ctx.must_finish:
            return False
    return True


async def _others_turn(ctx: Client, key: bytes, begun_in: Transaction | None) -> None:
    await asyncio.sleep(0)
    if begun_in is None:  # else the transaction is ours
        await ctx.server.transactions.free(key)


async def _indexed(
    ctx: Client, key: bytes, kind: type[TextIndex], use: Callable[[Memory], Any], begun_in: Transaction | None
) -> Any:
    while not _is_indexed(ctx, memory := find(ctx, key), kind):
        await _others_turn(ctx, key, begun_in)
    reply = use(memory)
    return await reply if isinstance(reply, asyncio.Future) else reply


@command(
    "MEM.VERIFY",
    arity=-2,
    flags="readonly",
    keys=(1, 1, 1),
    group="memory",
    usage="MEM.VERIFY key [id|cid]",
    complexity="O(bytes of the texts)",
    options=(
        "id|cid: this record, or those of this content id, alone; an id wins. checked 0 where there is none",
    ),
)
def verify(ctx: Client, args: list[bytes]) -> Any:
    """Hash texts again: how many were checked, and how many are not what they were."""
    if len(args) > 2:
        raise CommandError("wrong number of arguments for 'mem.verify' command")
    key = args[0]

    def check(memory: Memory) -> Any:
        ids = memory.current_ids() if len(args) == 1 else _named(memory, args[1])
        checked, bad = _check(memory, ids)
        while ids:
            if not ctx.must_finish:
                return ctx.server.spawn(_check_rest(ctx, key, memory, ids, checked, bad, ctx.transaction))
            more, worse = _check(memory, ids)
            checked, bad = checked + more, bad + worse
        return _shown(checked, bad)

    return read_with_texts(ctx, key, Contents, check)


def _named(memory: Memory, name: bytes) -> list[bytes]:
    """The records that an id or a content id names, by the texts they had when they were written."""
    if name in memory:
        return [name]
    digest = content_digest(name)
    return [] if digest is None else memory.text_index(Contents).ids(Contents.key(digest))


async def _check_rest(
    ctx: Client,
    key: bytes,
    memory: Memory,
    ids: list[bytes],
    checked: int,
    bad: int,
    begun_in: Transaction | None,
) -> dict[str, int]:
    while ids:
        await _others_turn(ctx, key, begun_in)
        if find(ctx, key) is not memory:
            raise CommandError("the key was replaced while its records were being looked at")
        if not _is_indexed(ctx, memory, Contents):  # a large change begins another index
            continue
        more, worse = _check(memory, ids)
        checked, bad = checked + more, bad + worse
    return _shown(checked, bad)


def _check(memory: Memory, ids: list[bytes]) -> tuple[int, int]:
    """Look at one step of these records, which are taken from the list: how many are still there, how many are bad."""
    index = memory.text_index(Contents)
    checked = bad = 0
    left = STEP_BYTES
    while ids and checked < STEP_RECORDS and left > 0:
        record_id = ids.pop()
        text = memory.text(record_id)
        if text is not None:
            checked += 1
            bad += not index.holds(record_id, text)
            left -= len(text)
    return checked, bad


def _shown(checked: int, bad: int) -> dict[str, int]:
    return {"checked": checked, "bad": bad}
