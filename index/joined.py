"""Several tables as one view, of which some rows show: both tables of a memory (moment.py), many memories (cascade.py).

Every statistic (N, df, avgdl, the vector sum) is an integer that is counted from the mask, and every score is a
function of such integers and of its row alone, so it has the very bits that it had if these were the rows of one table.

Rule 1: a joined view only reads its parts, and what readers keep of it (`columns`, `estimates`) is its own: any number
        of threads may join the same tables while the loop writes on.
Rule 2: its vectors leave no hole: the whole blocks of all parts come first, and the rows behind them are put together.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np

from .blocks import BLOCK, Floats32, gather
from .columns import DOC_LEN, TERMS_END, VROW, Bools, Int32s, Int64s
from .estimates import Estimates
from .fact_columns import FactColumns, FactPart
from .filters import Columns
from .settings import Settings
from .side import Side
from .vectors import fixed_sum
from .view import View


class Part(NamedTuple):
    """A table's rows: which of them show, and which were known. Without `vectors` none of them has one."""

    view: View
    shown: Bools
    known: Bools
    vectors: bool = True
    key: bytes | None = None  # of which memory, where there are several


class JoinedView(View):
    """A view of the parts' rows, of which some show: `alive()`. `now` is what ages are as of, `clock` what deadlines
    are; `named` the key of the memory that was asked."""

    __slots__ = ("_columns", "_ends", "_keys", "_known", "_named", "_rests", "_shown", "_views", "_whole")

    masked = True

    def __init__(
        self, settings: Settings, now: int, clock: int, parts: Sequence[Part], named: bytes | None = None
    ) -> None:
        self.settings = settings
        self.now, self.clock = now, clock
        self._columns = Columns()
        self.sequence = 0
        self._whole: list[Floats32] = []  # blocks
        self._rests: list[Floats32] = []  # rows that belong behind them
        self._views = views = [part.view for part in parts]
        self.n = sum(view.n for view in views)
        self._named = named
        self._keys = [part.key for part in parts]
        self._ends = list(accumulate(view.n for view in views))
        self.ids = _lists([view.ids for view in views], views)
        self.texts = _lists([view.texts for view in views], views)
        self.metas = _lists([view.metas for view in views], views)
        self.tags = _lists([view.tags for view in views], views)
        self._wide = np.concatenate([view._wide[:, : view.n] for view in views], axis=1)
        self._narrow = np.concatenate([view._narrow[:, : view.n] for view in views], axis=1)
        self._shown = np.concatenate([part.shown for part in parts])
        self._known = np.concatenate([part.known for part in parts])
        self._join_words(views)
        self._join_sides(views)
        self._join_vectors(parts)
        self.live = int(np.count_nonzero(self._shown))
        self.total_len = int(self._narrow[DOC_LEN][self._shown].sum(dtype=np.int64))
        self.vector_live = int(np.count_nonzero(self._shown & (self.vrow >= 0)))
        self.vector_sum = np.zeros(0, np.int64)
        if settings.has_vectors and settings.metric == "COSINE":
            self.vector_sum = np.zeros(settings.dim, np.int64)
            for part in parts:
                if part.vectors:
                    self.vector_sum += _sum(part)

    @property
    def blocks(self) -> list[Floats32]:  # type: ignore[override]
        """Put together when a vector is first looked at: it is the one thing here that costs more than rows."""
        if self._rests:
            together = self._rests[0] if len(self._rests) == 1 else np.concatenate(self._rests)
            self._whole += [together[at : at + BLOCK] for at in range(0, len(together), BLOCK)]
            self._rests = []
        return self._whole

    @property
    def columns(self) -> Columns:
        return self._columns

    @property
    def estimates(self) -> Estimates:
        return Estimates()

    def fact_parts(self) -> list[FactPart]:
        if self._named is not None:  # readers of the other memories may be at what these keep, in other threads
            columns = FactColumns()
            columns.extend(self.facts, self.n)
            return [FactPart(columns, 0, self.n)]
        found: list[FactPart] = []
        start = 0
        for view in self._views:
            found += [part._replace(start=start) for part in view.fact_parts()]
            start += view.n
        return found

    def alive(self) -> Bools:
        shown: Bools = self._shown
        return shown

    def key(self, slot: int) -> bytes | None:
        return self._keys[bisect_right(self._ends, slot)]

    def shown_slot(self, record_id: bytes) -> tuple[int, bool]:
        """The slot of the row of `record_id` in the memory that was asked that shows, -1 for none; and whether any was
        known then."""
        slot, known, ids = -1, False, self.ids[: self.n]
        for _ in range(ids.count(record_id)):
            slot = ids.index(record_id, slot + 1)
            if self.key(slot) != self._named:
                continue
            if self._shown[slot]:
                return slot, True
            known = known or bool(self._known[slot])
        return -1, known

    def is_of(self, table: object) -> bool:
        return False

    def same_rows(self, other: View) -> bool:
        return self is other

    # -- putting the parts together

    def _join_words(self, views: list[View]) -> None:
        ends = [int(view.terms_end[-1]) if view.n else 0 for view in views]
        self.fwd_terms = np.concatenate([view.fwd_terms[:end] for view, end in zip(views, ends, strict=True)])
        self.fwd_halves = np.concatenate([view.fwd_halves[:end] for view, end in zip(views, ends, strict=True)])
        before = np.array([0, *accumulate(ends[:-1])], np.int32)
        self._narrow[TERMS_END] += np.repeat(before, [view.n for view in views])

    def _join_sides(self, views: list[View]) -> None:
        """One that has none holds plain notes."""
        self.side, self.facts = None, []
        if all(view.side is None for view in views):
            return
        sides = [view.side if view.side is not None else Side.plain(view.updated).cols for view in views]
        self.side = np.concatenate([side[:, : view.n] for side, view in zip(sides, views, strict=True)], axis=1)
        self.facts = _lists([view.facts if view.side is not None else [None] * view.n for view in views], views)

    def _join_vectors(self, parts: Sequence[Part]) -> None:
        counts = [part.view.vector_n if part.vectors else 0 for part in parts]
        wholes = [count // BLOCK for count in counts]
        starts, before = [], 0  # where the rows of a part begin, and those behind its whole blocks
        rest_before = sum(wholes) * BLOCK
        for part, count, whole in zip(parts, counts, wholes, strict=True):
            starts.append((before, rest_before))
            self._whole += part.view.blocks[:whole] if whole else []
            before += whole * BLOCK
            rest = count - whole * BLOCK
            rest_before += rest
            if rest:
                self._rests.append(part.view.blocks[whole][:rest])
        self.vector_n = sum(counts)
        column, end = self._narrow[VROW], 0
        for part, count, whole, (start, rest_start) in zip(parts, counts, wholes, starts, strict=True):
            rows = column[end : end + part.view.n]
            end += part.view.n
            if not count:
                rows[:] = -1
            elif not whole:
                rows[rows >= 0] += rest_start
            else:
                behind = rows >= whole * BLOCK
                rows[rows >= 0] += start
                rows[behind] += rest_start - whole * BLOCK - start
        if self.settings.has_vectors and self.settings.metric != "COSINE":
            held = [part.view.norms for part, count in zip(parts, counts, strict=True) if count]
            cuts = [(whole * BLOCK, count) for whole, count in zip(wholes, counts, strict=True) if count]
            norms = [each[:cut] for each, (cut, _) in zip(held, cuts, strict=True)]
            norms += [each[cut:count] for each, (cut, count) in zip(held, cuts, strict=True)]
            self.norms = np.concatenate(norms) if norms else np.zeros(0)


def _sum(part: Part) -> Int64s:
    """The exact sum of the vectors shown: from the table's, or anew where that takes fewer."""
    view, shown = part.view, part.shown
    vrow, alive = view.vrow, view.alive()
    has = vrow >= 0
    gone = vrow[has & ~shown if alive is None else has & alive & ~shown]
    if not len(gone):
        return view.vector_sum
    rows = vrow[has & shown]
    if len(gone) < len(rows):
        return view.vector_sum - _sum_of(view, gone)
    return _sum_of(view, rows)


def _sum_of(view: View, rows: Int32s) -> Int64s:
    total = np.zeros(len(view.vector_sum), np.int64)
    for start in range(0, len(rows), BLOCK):
        total += fixed_sum(gather(view.blocks, rows[start : start + BLOCK]))
    return total


def _lists(lists: list[list], views: list[View]) -> list:  # type: ignore[type-arg]
    """Their first rows behind one another; the one list itself where there is one, as views have it."""
    if len(views) == 1:
        return lists[0]
    found = []
    for values, view in zip(lists, views, strict=True):
        # A list that is appended to meanwhile keeps its beginning.
        found += values[: view.n]
    return found
