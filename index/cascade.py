"""CASCADE and ACROSS: several memories as one, under the settings of the one that was named.

N, df, avgdl and the vector sum are those of all rows that show, so a score means the same in whichever memory its
record is, and the ranking is that of one memory which holds them all. Term ids are common to all memories of a server,
whatever their languages: a query is cut into words by the named memory's rules, and finds records by the words that
they have by their own.

`plan` fixes the moment of every member on the loop, some microseconds each; joining them is for the thread that runs
the plan. Those rows come first that are in posting lists; what is behind them is in the forward index alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from .analyzer import QueryTerm
from .joined import JoinedView, Part
from .moment import Moment, parts
from .postings import PostingLists
from .settings import Settings
from .view import Counts, View

if TYPE_CHECKING:
    from .matches import Plan
    from .memory import Memory
    from .query import Query

_Terms = list[tuple[QueryTerm, PostingLists | None]]


class Member(NamedTuple):
    """One memory, and its list for each of the query's terms; None where its rows are in the forward index only."""

    key: bytes
    moment: Moment | Counts  # to look back; where only what is now is asked, of which there may be thousands
    vectors: bool  # whether its vectors can be compared with the named memory's
    lists: list[PostingLists | None] | None


class Scope(NamedTuple):
    """The memories that a query covers, the one that was named first."""

    members: tuple[Member, ...]
    settings: Settings  # in force at `known_at`
    as_of: int
    known_at: int
    rows: int

    def joined(self, terms: _Terms) -> tuple[JoinedView, _Terms, int]:
        """The view, the query's terms with the lists of all memories, and how many rows are in these lists."""
        listed: list[Part] = []
        others: list[Part] = []
        held: list[tuple[int, list[PostingLists | None]]] = []  # where a memory's rows begin, and its lists
        posted = 0
        for member in self.members:
            main, *past = self._parts(member)
            others += past
            if member.lists is None:
                others.append(main)
                continue
            listed.append(main)
            held.append((posted, member.lists))
            posted += main.view.n
        view = JoinedView(self.settings, self.as_of, self.known_at, listed + others, self.members[0].key)
        merged = [(term, _merged([(start, lists[at]) for start, lists in held])) for at, (term, _) in enumerate(terms)]
        return view, merged, posted

    def _parts(self, member: Member) -> list[Part]:
        moment = member.moment
        if isinstance(moment, Moment):
            return parts(moment, member.vectors, member.key)
        # What counts now is what `table` holds.
        view = View(moment.table, self.settings, self.as_of, moment)
        alive = view.alive()
        shown = np.full(view.n, True) if alive is None else alive
        return [Part(view, shown, shown, member.vectors, member.key)]


def plan(members: Mapping[bytes, Memory], query: Query, now: int) -> Plan:
    """Fix what `query` sees of these memories, by their keys; the first is the one that was named."""
    named = next(iter(members.values()))
    own = named.plan(query, now)
    if len(members) == 1:
        return own
    travels = query.as_of is not None or query.known_at is not None
    moment: Moment | Counts
    last, vectors, rows = None, False, 0
    found = []
    for key, memory in members.items():
        if travels:
            moment = memory.moment(query.as_of, query.known_at, now)
            rows += moment.rows
        else:
            moment = Counts.of(memory.table)
            rows += moment.n
        lists = None
        table = memory.table
        if table.postings is not None and query.text is not None:
            table.post()
            lists = table.posting_lists([term.term_id for term, _ in own.terms])
        if memory.settings is not last:
            last = memory.settings
            vectors = comparable(last, named.settings)
        found.append(Member(key, moment, vectors, lists))
    first = found[0].moment
    if isinstance(first, Moment):
        scope = Scope(tuple(found), first.settings, first.t, first.k, rows)
    else:
        scope = Scope(tuple(found), named.settings, now, now, rows)
    return replace(own, moment=scope)


def comparable(settings: Settings, with_those: Settings) -> bool:
    """Whether the vectors of two memories may be compared."""
    return settings.has_vectors and (settings.dim, settings.metric, settings.model) == (
        with_those.dim,
        with_those.metric,
        with_those.model,
    )


def _merged(lists: list[tuple[int, PostingLists | None]]) -> PostingLists | None:
    """One term's lists behind one another, each moved to where its memory's rows begin."""
    held = [(start, each) for start, each in lists if each is not None]
    if not held:
        return None
    data = np.concatenate([data + (start << 16) for start, each in held for data in each.lists])
    return PostingLists([data], sum(each.df for _, each in held), max(each.most for _, each in held))
