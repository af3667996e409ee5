"""Time travel: both tables of a memory as one view of what counted at time t, as it was known at time k.

    held    KNOWN_TO is NEVER or beyond the horizon
    since   SINCE, or WRITTEN where that is not beyond the horizon: the version before it is not held any more
    plain   since <= m < KNOWN_TO, m = min(t, k)             rows without VALID_AT: from their writing to their end
    dated   since <= k < KNOWN_TO and VALID_AT <= t          facts, and records with VALIDAT
    ended   INVALID_AT <= t; or <= m where SINCE does not say since when that is known, and k is past
    shown   held and (dated where there is a VALID_AT, else plain) and t < VALID_UNTIL and not ended

A table without a side does not know when a text dated into the future was written: it counts from now, or from that
date once it has passed.

The rows of `table` come first, then those of `past`. Every statistic (N, df, avgdl, the vector sum) is an integer that
is counted from the mask, and every score is a function of such integers and of its row alone, so it has the very bits
that it had when these were the rows of the table.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .blocks import BLOCK, gather
from .columns import DOC_LEN, TERMS_END, UPDATED, VROW, Bools, Int32s, Int64s
from .estimates import Estimates
from .fact_columns import FactPart
from .filters import Columns
from .settings import Settings
from .side import INVALID_AT, KNOWN_TO, NEVER, SINCE, VALID_AT, VALID_UNTIL, WRITTEN
from .vectors import fixed_sum
from .view import View


class Moment(NamedTuple):
    """What `joined` needs; made on the loop in some microseconds. `now` is the time of the command; `horizon` that of
    the history, `settings` those in force at `k`. With `invalidated` the test of INVALID_AT is left out."""

    main: View
    past: View | None
    t: int
    k: int
    now: int
    horizon: int
    settings: Settings
    invalidated: bool = False

    @property
    def rows(self) -> int:
        return self.main.n + (0 if self.past is None else self.past.n)


class JoinedView(View):
    """A view of both tables' rows, of which some show: `alive()`."""

    __slots__ = ("_columns", "_known", "_parts", "_shown")

    masked = True

    def __init__(self, moment: Moment) -> None:
        main, past = moment.main, moment.past
        self.settings = moment.settings
        self.now, self.clock = moment.t, moment.k
        self._columns = Columns()
        self.sequence = 0
        self._parts = parts = [main] if past is None else [main, past]
        self.n = sum(part.n for part in parts)
        self.ids = _lists([part.ids for part in parts], parts)
        self.texts = _lists([part.texts for part in parts], parts)
        self.metas = _lists([part.metas for part in parts], parts)
        self.tags = _lists([part.tags for part in parts], parts)
        self.facts = _lists([part.facts for part in parts], parts)
        self._wide = np.concatenate([part._wide[:, : part.n] for part in parts], axis=1)
        self._narrow = np.concatenate([part._narrow[:, : part.n] for part in parts], axis=1)
        ends = [int(part.terms_end[-1]) if part.n else 0 for part in parts]
        self.fwd_terms = np.concatenate([part.fwd_terms[:end] for part, end in zip(parts, ends, strict=True)])
        self.fwd_halves = np.concatenate([part.fwd_halves[:end] for part, end in zip(parts, ends, strict=True)])
        # A block list that is appended to meanwhile keeps its beginning.
        blocks = [list(part.blocks) for part in parts]
        self.blocks = [block for some in blocks for block in some]
        self.vector_n = sum(part.vector_n for part in parts)
        self.side = None
        if main.side is not None:
            sides = [part.side[:, : part.n] for part in parts if part.side is not None]
            self.side = np.concatenate(sides, axis=1)
        if past is not None:
            self._narrow[TERMS_END, main.n :] += ends[0]
            rows = self._narrow[VROW, main.n :]
            rows[rows >= 0] += len(blocks[0]) * BLOCK
        if self.settings.has_vectors and self.settings.metric != "COSINE":
            self.norms = np.zeros(len(self.blocks) * BLOCK)
            at = 0
            for part, some in zip(parts, blocks, strict=True):
                self.norms[at : at + part.vector_n] = part.norms[: part.vector_n]
                at += len(some) * BLOCK
        alive = np.concatenate([np.full(part.n, True) if part.alive() is None else part.alive() for part in parts])
        self._show(moment, alive)
        self.live = int(np.count_nonzero(self._shown))
        self.total_len = int(self._narrow[DOC_LEN][self._shown].sum(dtype=np.int64))
        self.vector_live = int(np.count_nonzero(self._shown & (self.vrow >= 0)))
        self.vector_sum = np.zeros(0, np.int64)
        if self.settings.has_vectors and self.settings.metric == "COSINE":
            self.vector_sum = self._sum(main, alive)

    @property
    def columns(self) -> Columns:
        return self._columns

    @property
    def estimates(self) -> Estimates:
        return Estimates()

    def fact_parts(self) -> list[FactPart]:
        found: list[FactPart] = []
        for view in self._parts:
            found += [part._replace(start=sum(each.n for each in found)) for part in view.fact_parts()]
        return found

    def alive(self) -> Bools:
        shown: Bools = self._shown
        return shown

    def shown_slot(self, record_id: bytes) -> tuple[int, bool]:
        """The slot of the row of `record_id` that shows, -1 for none; and whether any was known then."""
        slot, known, ids = -1, False, self.ids[: self.n]
        for _ in range(ids.count(record_id)):
            slot = ids.index(record_id, slot + 1)
            if self._shown[slot]:
                return slot, True
            known = known or bool(self._known[slot])
        return -1, known

    def is_of(self, table: object) -> bool:
        return False

    def same_rows(self, other: View) -> bool:
        return self is other

    # -- which rows show

    def _show(self, moment: Moment, alive: Bools) -> None:
        t, k, horizon = moment.t, moment.k, moment.horizon
        m = min(t, k)
        if self.side is None:
            since = np.minimum(self._wide[UPDATED], moment.now)
            self._known = alive & (since <= k)
            self._shown = alive & (since <= m)
            return
        side = self.side
        known_to, valid_at = side[KNOWN_TO], side[VALID_AT]
        held = alive & ((known_to == NEVER) | (known_to > horizon))
        told = side[SINCE] > horizon
        since = np.where(told, side[SINCE], side[WRITTEN])
        self._known = held & (since <= k) & (k < known_to)
        dated = valid_at > -NEVER
        plain = (since <= m) & (m < known_to)
        shown: Bools = held & np.where(dated, self._known & (valid_at <= t), plain) & (t < side[VALID_UNTIL])
        if not moment.invalidated:
            shown &= side[INVALID_AT] > (t if k >= moment.now else np.where(told, t, m))
        self._shown = shown
        self._show_latest(dated)

    def _show_latest(self, dated: Bools) -> None:
        """Of a plain version that ended after t, and a dated one of the same id that was written after it, which only
        ASOF alone shows both, the later one."""
        assert self.side is not None
        if not (self._shown & dated).any():
            return
        ended = np.flatnonzero(self._shown & ~dated & (self.side[KNOWN_TO] != NEVER)).tolist()
        if not ended:
            return
        ids, since = self.ids, self.side[SINCE]
        plain = {ids[slot]: slot for slot in ended}
        for slot in np.flatnonzero(self._shown & dated).tolist():
            other = plain.get(ids[slot])
            if other is not None:
                self._shown[other if since[slot] >= since[other] else slot] = False

    # -- the vector sum

    def _sum(self, main: View, alive: Bools) -> Int64s:
        """The exact sum of the vectors shown: from the table's, or anew where that takes fewer."""
        shown, vrow = self._shown, self.vrow
        of_main = np.arange(self.n) < main.n
        gone = vrow[of_main & alive & ~shown & (vrow >= 0)]
        come = vrow[~of_main & shown & (vrow >= 0)]
        dim = self.settings.dim
        if len(gone) + len(come) < self.vector_live:
            return main.vector_sum - self._sum_of(gone, dim) + self._sum_of(come, dim)
        return self._sum_of(vrow[shown & (vrow >= 0)], dim)

    def _sum_of(self, rows: Int32s, dim: int) -> Int64s:
        total = np.zeros(dim, np.int64)
        for start in range(0, len(rows), BLOCK):
            total += fixed_sum(gather(self.blocks, rows[start : start + BLOCK]))
        return total


def joined(moment: Moment) -> JoinedView:
    """The view; milliseconds per hundred thousand rows, for a thread."""
    return JoinedView(moment)


def _lists(lists: list[list], parts: list[View]) -> list:  # type: ignore[type-arg]
    """Their first rows behind one another; the one list itself where there is one, as views have it."""
    if len(parts) == 1:
        return lists[0]
    return [value for values, part in zip(lists, parts, strict=True) for value in values[: part.n]]
