"""FILTER and TAGS, as words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..index import filters
from ..index.filters import Clause
from .arguments import Words, time_ms
from .errors import CommandError, syntax_error

if TYPE_CHECKING:
    from .config import Config


def read_filter(words: Words, clauses: list[Clause], config: Config) -> None:
    """`field op value` behind FILTER; raises CommandError, BadMemory."""
    field, op, value = words.several(3)
    limit = config["mem-max-meta-bytes"]
    if len(field) + len(value) > limit:  # no record has it
        raise CommandError(f"a filter's field and value exceed mem-max-meta-bytes ({limit})")
    clause = filters.clause(field, op, value)
    if filters.is_time(field, op):
        times = tuple(b"%d" % time_ms(word) for word in clause.values)
        clause = Clause(clause.reserved, clause.name, clause.op, times)
    _check_count(len(clauses) + 1, config)
    clauses.append(clause)


def read_tags(words: Words, clauses: list[Clause], config: Config) -> None:
    """`ANY|ALL n tag1 .. tagn` behind TAGS."""
    mode = words.enum("ANY", "ALL")
    tags = words.counted()
    if not tags:
        raise syntax_error()
    _check_count(len(clauses) + (1 if mode == "ANY" else len(tags)), config)
    clauses.extend(filters.tag_clauses(mode, tags))


def _check_count(count: int, config: Config) -> None:
    if count > config["mem-max-filters"]:
        raise CommandError(f"more than mem-max-filters ({config['mem-max-filters']}) filters")
