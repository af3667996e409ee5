"""One moment of a table, for readers: nothing that is written afterwards shows in it.

Rows are append-only and removals carry a sequence number (columns.py), so a view is a few references and counts: it
costs a microsecond, holds no lock, and any thread may read it while the loop writes on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .blocks import BLOCK, gather
from .codes import Codes
from .columns import (
    CREATED,
    DEAD_AT,
    DEADLINE,
    DOC_LEN,
    IMPORTANCE,
    SERIAL,
    TERMS_END,
    UPDATED,
    VROW,
    Bools,
    Floats,
    Int32s,
    Int64s,
    Table,
)
from .estimates import Estimates
from .fact_columns import FactPart
from .filters import Columns, Record
from .settings import Settings
from .side import FLAGS, KIND, NOTE, Extra, Fact, extra_at

NO_SUM: Int64s = np.zeros(0, np.int64)


class Counts(NamedTuple):
    """What it takes to have a view of a table's moment later: less than half a microsecond."""

    table: Table
    n: int
    sequence: int
    live: int
    total_len: int
    vectors: tuple[int, int, Int64s] | None  # how many rows, how many of them live, the sum of these

    @classmethod
    def of(cls, table: Table) -> Counts:
        vectors = table.vectors
        held = None if vectors is None else (vectors.n, vectors.live, vectors.sum)
        return cls(table, table.n, table.sequence, table.live, table.total_len, held)


class View:
    """A table at one moment. `live`, `total_len`, `vector_live` and `vector_sum` count what was alive then."""

    __slots__ = (
        "_narrow",
        "_table",
        "_wide",
        "blocks",
        "clock",
        "facts",
        "fwd_halves",
        "fwd_terms",
        "ids",
        "live",
        "metas",
        "n",
        "norms",
        "now",
        "sequence",
        "settings",
        "side",
        "tags",
        "texts",
        "total_len",
        "vector_live",
        "vector_n",
        "vector_sum",
    )

    #: Whether some live rows do not show (moment.py): a posting list's df is then not what counts.
    masked = False

    def __init__(self, table: Table, settings: Settings, now: int, counts: Counts | None = None) -> None:
        """This moment of `table`, on the loop; in any thread one that has been, whose `counts` were taken then: what
        has been written since lies behind the rows that it counts."""
        self._table = table  # for `columns` only: the rest of it goes on changing
        self.settings = settings
        self.now = now  # ages are as of it
        self.clock = now  # and what is left until a deadline, as of this
        self.n = table.n
        self.sequence = table.sequence
        self.live = table.live
        self.total_len = table.total_len
        self._wide = table.wide
        self._narrow = table.narrow
        self.ids = table.ids
        self.texts = table.texts
        self.metas = table.metas
        self.tags = table.tags
        self.fwd_terms = table.fwd_terms
        self.fwd_halves = table.fwd_halves
        side = table.side
        self.side: Int64s | None = None if side is None else side.cols
        self.facts: list[Fact | None] = [] if side is None else side.facts
        vectors = table.vectors
        if vectors is not None:
            self.blocks = vectors.blocks
            self.vector_n = vectors.n
            self.vector_live = vectors.live
            self.vector_sum: Int64s = vectors.sum if counts is None else NO_SUM
            self.norms = vectors.norms
        else:
            self.blocks = []
            self.vector_n = self.vector_live = 0
        if counts is not None:
            _, self.n, self.sequence, self.live, self.total_len, of_vectors = counts
            if of_vectors is not None:
                self.vector_n, self.vector_live, self.vector_sum = of_vectors

    @property
    def columns(self) -> Columns:
        """The table's encoded metadata; for one thread at a time (workers.py sees to it)."""
        return self._table.columns

    def fact_parts(self) -> list[FactPart]:
        """What readers keep of the facts, by table; for one thread at a time, as `columns`."""
        return [FactPart(self.columns.facts(self), 0, self.n)]

    @property
    def estimates(self) -> Estimates:
        """What readers keep of the table in float32."""
        return self._table.estimates

    def recency_estimate(self, half_life_ms: float) -> npt.NDArray[np.float32]:
        """Each row's recency (estimates.py), a new array."""
        return self.estimates.recency(self.updated, self.now, half_life_ms)

    def importance_estimate(self) -> npt.NDArray[np.float32]:
        """Each row's importance (estimates.py)."""
        return self.estimates.importance(self.importance)

    def fixed_estimate(
        self, half_life_ms: float, weights: tuple[float, float]
    ) -> tuple[npt.NDArray[np.float32], float]:
        """What recency and importance add to each row's LINEAR score, and by how much that may be too large."""
        return self.estimates.fixed(self.updated, self.importance, self.now, half_life_ms, weights)

    @property
    def codes(self) -> Codes:
        """The table's int8 codes; for one thread at a time, as `columns`."""
        assert self._table.vectors is not None
        return self._table.vectors.codes

    @property
    def created(self) -> Int64s:
        return self._wide[CREATED, : self.n]

    @property
    def updated(self) -> Int64s:
        return self._wide[UPDATED, : self.n]

    @property
    def importance(self) -> Floats:
        column: Floats = self._wide[IMPORTANCE, : self.n].view(np.float64)
        return column

    @property
    def doc_len(self) -> Int32s:
        return self._narrow[DOC_LEN, : self.n]

    @property
    def vrow(self) -> Int32s:
        """The row of each slot's vector, -1 where it has none."""
        return self._narrow[VROW, : self.n]

    @property
    def terms_end(self) -> Int32s:
        return self._narrow[TERMS_END, : self.n]

    def alive(self) -> Bools | None:
        """bool (n,): the rows alive at this moment; None where all are."""
        if self.live == self.n:
            return None
        return self._wide[DEAD_AT, : self.n] > self.sequence

    def row(self, slot: int) -> Record:
        return Record(
            self.ids[slot],
            self.texts[slot],
            self.metas[slot],
            self.tags[slot],
            float(self.importance[slot]),
            int(self._wide[CREATED, slot]),
            int(self._wide[UPDATED, slot]),
            None if self.side is None else self.extra(slot),
        )

    def extra(self, slot: int) -> Extra:
        """The row's side, a plain note's where the table has none."""
        if self.side is None:
            updated = int(self._wide[UPDATED, slot])
            return Extra(updated, updated)
        return extra_at(self.side, self.facts, slot)

    def kind(self, slot: int) -> int:
        """NOTE, EPISODE or FACT."""
        return NOTE if self.side is None else int(self.side[FLAGS, slot]) & KIND

    def side_column(self, name: int) -> Int64s | None:
        """A column of side.py, int64 (n,); None where the table has no side."""
        return None if self.side is None else self.side[name, : self.n]

    @property
    def deadlines(self) -> Int64s:
        return self._wide[DEADLINE, : self.n]

    @property
    def serials(self) -> Int64s:
        return self._wide[SERIAL, : self.n]

    def gather(self, rows: npt.NDArray[np.integer]) -> npt.NDArray[np.float32]:
        """Vectors (m, dim) by their row."""
        return gather(self.blocks, rows)

    def key(self, slot: int) -> bytes | None:
        """The key of the row's memory in a view of several, else None."""
        return None

    def is_of(self, table: Table) -> bool:
        """Whether slots mean the same here and in `table`."""
        return self._table is table

    def same_rows(self, other: View) -> bool:
        """Whether slots and vector rows mean the same in both, as far as both have them."""
        return self._table is other._table

    def deadline(self, slot: int) -> int:
        return int(self._wide[DEADLINE, slot])

    def vector(self, slot: int) -> bytes:
        """The stored float32 bytes, b"" where there is none."""
        row = int(self._narrow[VROW, slot])
        return self.blocks[row // BLOCK][row % BLOCK].tobytes() if row >= 0 else b""


def matching(masks: list[npt.NDArray[np.bool_]]) -> npt.NDArray[np.bool_] | None:
    """The rows in every mask; None where there is no mask."""
    if not masks:
        return None
    result = masks[0]
    for mask in masks[1:]:
        result = result & mask
    return result
