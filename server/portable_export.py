"""What `recalld export` does: the memories of a running server, line by line.

Rule 1: constant memory but for the entities of one memory, which its line holds: of records one page at a time, in a
        few commands per round trip.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import hiredis

from ..index.entities import Entity
from ..index.side import Fact
from .link import Failed, Link, is_missing
from .portable_lines import (
    VERSION,
    About,
    BadLine,
    Record,
    Stated,
    about_line,
    line_of,
    read_settings,
    record_line,
)

if TYPE_CHECKING:
    from .portable import Progress

# Records, or entities, per round trip.
_PAGE = 100


def now_of(reply: Sequence[bytes]) -> int:
    """Unix milliseconds of a reply to TIME."""
    return int(reply[0]) * 1000 + int(reply[1]) // 1000


@dataclass(slots=True)
class Counts:
    """What was done. `kept` were there already, `newer` too and updated later, `expired` past their deadline."""

    memories: int = 0
    records: int = 0
    kept: int = 0
    newer: int = 0
    expired: int = 0

    def __str__(self) -> str:
        rest = (
            (self.kept, "there already"),
            (self.newer, "newer on the server"),
            (self.expired, "expired meanwhile"),
        )
        more = ", ".join(f"{count} {what}" for count, what in rest if count)
        return f"{_some(self.memories, 'memory', 'memories')}, {_some(self.records, 'record', 'records')}" + (
            f" ({more})" if more else ""
        )


def _some(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def export_lines(link: Link, pattern: str, counts: Counts, progress: Progress) -> Iterator[bytes]:
    """All memories whose key matches, line by line. Records written meanwhile may be in it or not, each one whole."""
    yield line_of({"recalld": VERSION})
    for key in _keys(link, pattern):
        found = link.together([("MEM.CONFIG", key), ("MEM.INFO", key), ("PEXPIRETIME", key)])
        assert found is not None
        config, info, deadline = found
        if is_missing(config):
            continue
        about = _about_of(key, config, info, deadline, _entities(link, key))
        counts.memories += 1
        yield about_line(about)
        for done, record in enumerate(_records(link, key), 1):
            yield record_line(record)
            counts.records += 1
            progress.show(done / max(done, info[b"records"]), f"{counts}, {key.decode('utf-8', 'replace')}")
    yield line_of({"end": {"memories": counts.memories, "records": counts.records}})


def _keys(link: Link, pattern: str) -> Iterator[bytes]:
    cursor: bytes = b"0"
    while True:
        cursor, keys = link("SCAN", cursor, "MATCH", os.fsencode(pattern), "COUNT", "1000")
        yield from keys
        if cursor == b"0":
            return


def _about_of(
    key: bytes, config: dict[bytes, Any], info: dict[bytes, Any], deadline: int, entities: Sequence[Entity]
) -> About:
    try:
        settings = read_settings(_decoded(config))
    except BadLine as error:
        raise Failed(f"the server is of another version: {error}") from None
    return About(
        key,
        settings,
        int(info[b"next_id"]),
        int(info[b"created_at"]),
        deadline if deadline >= 0 else None,
        tuple(entities),
    )


def _decoded(value: Any) -> Any:
    """A reply in which all is text."""
    if isinstance(value, dict):
        return {_decoded(name): _decoded(held) for name, held in value.items()}
    return value.decode() if isinstance(value, bytes) else value


def _entities(link: Link, key: bytes) -> list[Entity]:
    """The entities of a memory in the order of coming; each that is there throughout is among them, once."""
    found: list[Entity] = []
    offset = 0
    while True:
        [page] = link.pipeline([("MEM.ENTITIES", key, "LIMIT", str(_PAGE), "OFFSET", str(offset), "WITHVEC")])
        if is_missing(page):
            return []
        if isinstance(page, hiredis.ReplyError):
            raise Failed(f"{link.address} refused: {page}")
        total, maps = page
        entities = [_entity_of(each) for each in maps]
        # They come by name. A page begins with the last one of the page before; where it does not, some were merged
        # away meanwhile and the rest moved up.
        if found and offset and (not entities or _place(entities[0]) > _place(found[-1])):
            offset = max(0, offset - _PAGE)
            continue
        found += [each for each in entities if not found or _place(each) > _place(found[-1])]
        if offset + len(entities) >= total:
            return sorted(found, key=lambda entity: entity.created_at)
        offset += len(entities) - 1


def _place(entity: Entity) -> tuple[bytes, bytes]:
    return entity.name, entity.type


def _entity_of(found: dict[bytes, Any]) -> Entity:
    return Entity(
        0,
        found[b"name"],
        found[b"type"],
        tuple(found[b"aliases"]),
        int(found[b"created_at"]),
        found[b"vector"] or b"",
    )


def _records(link: Link, key: bytes) -> Iterator[Record]:
    """The records of a memory, page by page; it ends where the memory is gone."""
    [page] = link.pipeline([("MEM.SCAN", key, "0", "COUNT", str(_PAGE))])
    while not isinstance(page, hiredis.ReplyError):
        cursor, ids = page
        commands: list[Sequence[bytes | str]] = [("TIME",), *(get_words(key, record_id) for record_id in ids)]
        if cursor != b"0":
            commands.append(("MEM.SCAN", key, cursor, "COUNT", str(_PAGE)))
        found = link.together(commands)
        assert found is not None
        # TIME and MEM.GET have one time here, so deadlines are exact.
        now = now_of(found[0])
        for reply in found[1 : 1 + len(ids)]:
            if isinstance(reply, dict):
                yield record_of(reply, now)
        if cursor == b"0":
            return
        page = found[-1]
    if not is_missing(page):
        raise Failed(f"{link.address} refused: {page}")


def get_words(key: bytes, record_id: bytes) -> tuple[bytes | str, ...]:
    """The command whose reply `record_of` takes."""
    return ("MEM.GET", key, record_id, "WITHMETA", "WITHVEC", "WITHFACT")


def record_of(found: dict[bytes, Any], now: int) -> Record:
    """A record from MEM.GET's map, which the server made at `now`."""
    pttl = int(found[b"pttl"])
    return Record(
        found[b"id"],
        found[b"text"],
        found[b"vector"] or b"",
        tuple(found[b"meta"].items()),
        tuple(found.get(b"tags", ())),
        float(found[b"importance"]),
        int(found[b"created_at"]),
        int(found[b"updated_at"]),
        now + pttl if pttl >= 0 else None,
        found.get(b"kind", b"note").decode(),
        _time(found, b"valid_at"),
        _time(found, b"valid_until"),
        b"pin" in found,
        _stated_of(found[b"fact"]) if b"fact" in found else None,
    )


def _stated_of(found: dict[bytes, Any]) -> Stated:
    """From MEM.FACTS' map."""
    fact = Fact(**{name: found[name.encode()] or b"" for name in Fact._fields})
    return Stated(fact, float(found[b"confidence"]), _time(found, b"invalid_at"))


def _time(found: dict[bytes, Any], name: bytes) -> int | None:
    value = found.get(name)
    return None if value is None else int(value)
