"""The rows of one memory: slot -> everything a record is, in arrays that only grow.

Rule 1: a row never changes. Whatever changes a record writes a new row and marks the old one dead, so a reader that
        knows how many rows there were and at which `sequence` sees its moment for ever (see view.py).
Rule 2: `DEAD_AT` is the one field written twice: from NEVER to the sequence number of the removal. A reader of an
        earlier sequence takes both values for "alive".
Rule 3: growing makes a new array; readers keep the old one.
Rule 4: compaction makes a new Table; readers keep the old one.

Slots are dense row numbers, never shown to a client. Arrays of one kind share one allocation, because there may be a
hundred thousand memories of ten records.
"""

from __future__ import annotations

from copy import copy
from sys import getsizeof
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .analyzer import Document, Documents
from .blocks import room, used_bytes
from .common import Common
from .estimates import Estimates
from .filters import Columns
from .postings import PostingLists, Postings
from .scan_order import ScanOrder
from .selection import distinct
from .settings import Settings
from .shared import Arrays, Family, own_part, whole
from .side import KNOWN_TO, Extra, Fact, Side, extra_at
from .side import NEVER as NEVER
from .vectors import VectorTable

if TYPE_CHECKING:
    from .retention import Uses

Int64s = npt.NDArray[np.int64]
Int32s = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

# Rows of `wide` (int64) and `narrow` (int32).
CREATED, UPDATED, DEADLINE, DEAD_AT, SERIAL, IMPORTANCE = range(6)  # IMPORTANCE holds a float64's bits
DOC_LEN, VROW, TERMS_END = range(3)

_FIRST_CAPACITY = 8
# A table below this capacity opens its cells for each append: they are a kilobyte of objects.
_CELLS_MIN = 64
# Below this many rows a query scans the forward index; a posting list per term would cost more than it saves
# (200 records: 0.02 ms a query either way, 90 KB of lists).
POSTINGS_MIN = 1024
# New rows stay in the forward index until so many have come, and then go to the posting lists together: sorted by term,
# a list is touched once for all of them. 7 microseconds a row instead of 20, 2 to 4 milliseconds at a time.
_UNPOSTED_MAX = 512
# Of so many rows it is looked at whether others have them too, where that is not known.
_SAMPLED_MIN = 1000


class Table:
    """Rows, their words and vectors, and the counts of those alive."""

    __slots__ = (
        "__weakref__",
        "_cells",
        "_columns",
        "_common",
        "_estimates",
        "_family",
        "by_id",
        "fwd_halves",
        "fwd_terms",
        "held_bytes",
        "ids",
        "indexed",
        "live",
        "metas",
        "n",
        "narrow",
        "order",
        "posted",
        "postings",
        "sequence",
        "side",
        "tags",
        "texts",
        "total_len",
        "uses",
        "vectors",
        "versions",
        "wide",
    )

    def __init__(self, settings: Settings, indexed: bool = True) -> None:
        self.n = 0
        self.live = 0
        self.total_len = 0  # words of the live rows
        self.sequence = 0  # removals so far
        self.held_bytes = 0  # of ids, texts, metadata and tags, and their objects; dead rows included
        self.wide: Int64s = np.empty((6, _FIRST_CAPACITY), np.int64)
        self.narrow: Int32s = np.empty((3, _FIRST_CAPACITY), np.int32)
        self.ids: list[bytes] = []
        self.texts: list[bytes] = []
        self.metas: list[tuple[bytes, ...]] = []  # field, value, field, value, ..
        self.tags: list[tuple[bytes, ...]] = []
        self.by_id: dict[bytes, int] = {}  # the current rows
        self.uses: Uses | None = None  # how often queries returned the rows, where that is counted
        self.side: Side | None = None  # of all rows, once one has anything to put there (`need_side`)
        # By id, the live rows that are current no more, by KNOWN_TO ascending: they are appended so (memory.py).
        self.versions: dict[bytes, dict[int, None]] = {}
        self.indexed = indexed  # whether a large table has posting lists
        self.order: ScanOrder[bytes] = ScanOrder()
        # The forward index: each row's terms and how often, in half units, one row's behind the other's.
        self.fwd_terms: npt.NDArray[np.uint32] = np.empty(64 if settings.has_text else 0, np.uint32)
        self.fwd_halves: npt.NDArray[np.uint16] = np.empty(64 if settings.has_text else 0, np.uint16)
        self.postings: Postings | None = None
        self.posted = 0  # rows below are in the postings, those above in the forward index only
        self.vectors = VectorTable(settings.dim, settings.metric) if settings.has_vectors else None
        # `wide`, its bits as float64, and `narrow`, for `append`.
        self._cells: tuple[Any, Any, Any] | None = None
        self._columns: Columns | None = None
        self._common: Common | None = None  # from the first metadata or tags on
        self._estimates: Estimates | None = None
        self._family: Family | None = None

    @property
    def columns(self) -> Columns:
        """The encoded columns that filters use, empty at first."""
        if self._columns is None:
            self._columns = Columns()
        return self._columns

    @property
    def estimates(self) -> Estimates:
        """float32 copies of columns, for the readers; empty at first."""
        if self._estimates is None:
            self._estimates = Estimates()
        return self._estimates

    # -- reading one row

    def created(self, slot: int) -> int:
        return int(self.wide[CREATED, slot])

    def updated(self, slot: int) -> int:
        return int(self.wide[UPDATED, slot])

    def deadline(self, slot: int) -> int:
        return int(self.wide[DEADLINE, slot])

    def importance(self, slot: int) -> float:
        return float(self.wide[IMPORTANCE].view(np.float64)[slot])

    def serial(self, slot: int) -> int:
        return int(self.wide[SERIAL, slot])

    def extra(self, slot: int) -> Extra | None:
        """The row's side, None where the table has none."""
        return None if self.side is None else extra_at(self.side.cols, self.side.facts, slot)

    def fact(self, slot: int) -> Fact | None:
        return None if self.side is None else self.side.facts[slot]

    def words(self, slot: int) -> Document:
        """The row's words, as they were indexed."""
        where = self.terms_of(slot)
        return Document(
            self.fwd_terms[where].tolist(), self.fwd_halves[where].tolist(), int(self.narrow[DOC_LEN, slot])
        )

    def vector(self, slot: int) -> bytes:
        """The stored float32 bytes, b"" where there is none."""
        row = int(self.narrow[VROW, slot])
        return self.vectors.row(row).tobytes() if row >= 0 and self.vectors is not None else b""

    def terms_of(self, slot: int) -> slice:
        """Where the row's words are in the forward index."""
        start = int(self.narrow[TERMS_END, slot - 1]) if slot else 0
        return slice(start, int(self.narrow[TERMS_END, slot]))

    # -- changing

    def need_side(self, now: int) -> None:
        """Have a side: the rows there are are notes, of the time of their writing."""
        if self.side is None:
            self.side = Side.plain(np.minimum(self.wide[UPDATED, : self.n], now))

    def append(
        self,
        record_id: bytes,
        text: bytes,
        vector: bytes,
        meta: tuple[bytes, ...],
        tags: tuple[bytes, ...],
        words: Document,
        *,
        importance: float,
        created_at: int,
        updated_at: int,
        deadline: int,
        serial: int,
        extra: Extra | None = None,
    ) -> int:
        """Add a live row; its slot. `serial` 0 gives the record a new place in SCAN's order; `extra` is needed where
        there is a side, and only there."""
        slot = self.n
        if slot == self.wide.shape[1]:
            self.wide = _grown(self.wide)
            self.narrow = _grown(self.narrow)
            self._cells = None
        # Through memoryviews, one by one: numpy takes twice as long for a number, four times for a tuple.
        wide, floats, narrow = self._cells or self._open_cells()
        wide[CREATED, slot] = created_at
        wide[UPDATED, slot] = updated_at
        wide[DEADLINE, slot] = deadline
        wide[DEAD_AT, slot] = NEVER
        wide[SERIAL, slot] = serial or self.order.add(record_id)
        floats[IMPORTANCE, slot] = importance
        row = -1
        if vector and self.vectors is not None:
            row = self.vectors.append(np.frombuffer(vector, "<f4"))
        start = int(self.narrow[TERMS_END, slot - 1]) if slot else 0
        end = start + len(words.terms)
        if end > len(self.fwd_terms):
            self.fwd_terms = _grown_to(self.fwd_terms, end)
            self.fwd_halves = _grown_to(self.fwd_halves, end)
        if end > start:
            self.fwd_terms[start:end] = words.terms
            self.fwd_halves[start:end] = words.tfs
        narrow[DOC_LEN, slot] = words.doc_len
        narrow[VROW, slot] = row
        narrow[TERMS_END, slot] = end
        self.ids.append(record_id)
        self.texts.append(text)
        self.metas.append(self._kept(meta) if meta else meta)
        self.tags.append(self._kept(tags) if tags else tags)
        if self.side is not None:
            assert extra is not None
            self.side.append(slot, extra)
        if extra is None or extra.known_to == NEVER:
            self.by_id[record_id] = slot
        else:
            self.versions.setdefault(record_id, {})[slot] = None
        self.held_bytes += _object_bytes(record_id, text)
        self.live += 1
        self.total_len += words.doc_len
        self.n = slot + 1
        self._post_if_many()
        return slot

    def append_all(
        self,
        ids: list[bytes],
        texts: list[bytes],
        vectors: list[bytes],
        metas: list[tuple[bytes, ...]],
        tags: list[tuple[bytes, ...]],
        words: Documents,
        *,
        importance: list[float],
        created_at: list[int] | int,
        updated_at: list[int] | int,
    ) -> None:
        """Add live rows of new records, without a deadline, to a table without a side."""
        slot, n = self.n, self.n + len(ids)
        while n > self.wide.shape[1]:
            self.wide = _grown(self.wide)
            self.narrow = _grown(self.narrow)
            self._cells = None
        wide, narrow = self.wide[:, slot:n], self.narrow[:, slot:n]
        wide[CREATED], wide[UPDATED] = created_at, updated_at
        wide[IMPORTANCE] = np.array(importance, np.float64).view(np.int64)
        wide[DEADLINE] = wide[DEAD_AT] = NEVER
        wide[SERIAL] = self.order.add_all(ids)
        start = int(self.narrow[TERMS_END, slot - 1]) if slot else 0
        end = start + len(words.terms)
        if end > len(self.fwd_terms):
            self.fwd_terms = _grown_to(self.fwd_terms, end)
            self.fwd_halves = _grown_to(self.fwd_halves, end)
        if end > start:  # else they may be mapped, and then not even nothing may be written
            self.fwd_terms[start:end] = words.terms
            self.fwd_halves[start:end] = words.tfs
        narrow[DOC_LEN], narrow[TERMS_END] = words.doc_lens, start + np.cumsum(words.counts)
        narrow[VROW] = -1
        if self.vectors is not None and (joined := b"".join(vectors)):
            has = np.array(list(map(len, vectors))) > 0
            rows = np.frombuffer(joined, "<f4").reshape(-1, self.vectors.dim)
            narrow[VROW, has] = self.vectors.append_all(rows) + np.arange(len(rows))
        self.ids += ids
        self.texts += texts
        self.metas += [self._kept(meta) if meta else meta for meta in metas]
        self.tags += [self._kept(each) if each else each for each in tags]
        self.by_id.update(zip(ids, range(slot, n), strict=True))
        # `_object_bytes` of each.
        self.held_bytes += sum([(48 + len(word) & -16) for column in (ids, texts) for word in column])
        self.live += len(ids)
        self.total_len += int(words.doc_lens.sum())
        self.n = n
        self._post_if_many()

    def _post_if_many(self) -> None:
        """Have posting lists if this is a large table, and bring them up to date from time to time."""
        if self.postings is not None:
            if self.n - self.posted >= _UNPOSTED_MAX:
                self.post()
        elif self.indexed and self.n >= POSTINGS_MIN and len(self.fwd_terms):
            self.postings = Postings()
            self.post()

    def fill(self, slot: int, vector: bytes) -> None:
        """Give a row that has none its vector, in place: for a table that nobody has had a view of."""
        assert self.vectors is not None
        self.narrow[VROW, slot] = self.vectors.append(np.frombuffer(vector, "<f4"))

    def sort_vectors(self) -> None:
        """After the last `fill`, in whatever order: where every row has a vector, its row is the slot (matches.py)."""
        vectors, rows = self.vectors, self.narrow[VROW, : self.n]
        if vectors is not None and vectors.n == self.n and (rows[1:] < rows[:-1]).any():
            self.vectors = vectors.taken(rows)
            rows[:] = np.arange(self.n, dtype=np.int32)
            self.vectors.remove_all(rows[~self.alive()])

    def _open_cells(self) -> tuple[Any, Any, Any]:
        cells = self.wide.data, self.wide.view(np.float64).data, self.narrow.data
        if self.wide.shape[1] >= _CELLS_MIN:
            self._cells = cells
        return cells

    def kill(self, slot: int) -> None:
        """Mark a row dead: its counts, words and vector no longer weigh from the next sequence on."""
        self.sequence += 1
        self.wide[DEAD_AT, slot] = self.sequence
        self.live -= 1
        self.total_len -= int(self.narrow[DOC_LEN, slot])
        row = int(self.narrow[VROW, slot])
        if row >= 0 and self.vectors is not None:
            self.vectors.remove(row)
        if self.postings is not None and slot < self.posted:
            self.postings.remove(slot, self.fwd_terms[self.terms_of(slot)])
        if self.side is not None and self.side.cols[KNOWN_TO, slot] != NEVER:
            record_id = self.ids[slot]
            left = self.versions[record_id]
            del left[slot]
            if not left:
                del self.versions[record_id]

    def kill_all(self, slots: Int64s) -> None:
        """The same for many live rows, ascending."""
        if not len(slots):
            return
        ended = self.live - len(self.by_id)  # where all of `slots` are versions that ended
        self.sequence += 1
        self.wide[DEAD_AT, slots] = self.sequence
        self.live -= len(slots)
        self.total_len -= int(self.narrow[DOC_LEN, slots].sum(dtype=np.int64))
        if self.vectors is not None:
            rows = self.narrow[VROW, slots]
            self.vectors.remove_all(rows[rows >= 0])
        if self.postings is not None:
            dead = np.zeros(self.posted, np.bool_)
            listed = slots[: int(np.searchsorted(slots, self.posted))]
            dead[listed] = True
            counts = np.diff(self.narrow[TERMS_END, : self.posted], prepend=np.int32(0))
            end = int(self.narrow[TERMS_END, self.posted - 1]) if self.posted else 0
            terms = self.fwd_terms[:end][np.repeat(dead, counts)]
            self.postings.remove_all(np.repeat(listed, counts[listed]), terms)
        if self.side is not None and self.versions:
            slots = slots[self.side.cols[KNOWN_TO, slots] != NEVER]
            if len(slots) == ended:
                self.versions = {}
                return
            for slot in slots.tolist():
                record_id = self.ids[slot]
                left = self.versions[record_id]
                del left[slot]
                if not left:
                    del self.versions[record_id]

    def forget(self, record_id: bytes) -> None:
        """Remove the live record `record_id`."""
        slot = self.by_id.pop(record_id)
        self.order.remove(int(self.wide[SERIAL, slot]))
        self.kill(slot)

    def alive(self) -> Bools:
        """bool (n,): the rows alive now."""
        living: Bools = self.wide[DEAD_AT, : self.n] == NEVER
        return living

    def term_count(self) -> int:
        """How many distinct terms the live records hold."""
        if self.postings is not None:
            self.post()
            return self.postings.live_terms
        end = int(self.narrow[TERMS_END, self.n - 1]) if self.n else 0
        terms = self.fwd_terms[:end]
        if self.live < self.n:
            terms = terms[np.repeat(self.alive(), self._term_counts())]
        return len(distinct(terms))

    def _term_counts(self) -> Int32s:
        return np.diff(self.narrow[TERMS_END, : self.n], prepend=np.int32(0))

    def adopt(self, postings: Postings) -> None:
        """Take these as the posting lists of all rows, which have none yet."""
        self.postings = postings
        self.posted = self.n

    def post(self) -> None:
        """Move the rows that are in the forward index only to the postings, if there are any; on the loop."""
        if self.postings is None:
            return
        start, n = self.posted, self.n
        if start == n:
            return
        first = int(self.narrow[TERMS_END, start - 1]) if start else 0
        counts = np.diff(self.narrow[TERMS_END, start:n], prepend=np.int32(first))
        words = slice(first, int(self.narrow[TERMS_END, n - 1]))
        slots = np.repeat(np.arange(start, n, dtype=np.int64), counts)
        alive = np.repeat(self.wide[DEAD_AT, start:n] == NEVER, counts)
        self.postings.extend(slots, self.fwd_terms[words], self.fwd_halves[words], alive)
        self.posted = n

    def posting_lists(self, term_ids: list[int]) -> list[PostingLists | None]:
        """What the posting lists hold of these terms as of now."""
        if self.postings is None or not term_ids:
            return [None] * len(term_ids)
        return self.postings.find(term_ids)

    # -- whole tables

    def compacted(self, n: int, sequence: int) -> tuple[Table, Int64s]:
        """A table of the rows below `n` that were alive at `sequence`, and which they are: old slots, ascending.

        Reads only what is immutable, so a thread may run it while rows are added and removed here.
        """
        keep: Int64s = np.flatnonzero(self.wide[DEAD_AT, :n] > sequence)
        slots = keep.tolist()
        twin = Table.__new__(Table)
        side = self.side
        twin.side = None if side is None else side.taken(keep)
        twin.uses = None if self.uses is None else self.uses.taken(keep)
        twin.indexed = self.indexed
        twin.n = twin.live = len(slots)
        twin.sequence = 0
        twin.wide = np.ascontiguousarray(self.wide[:, keep])
        twin.wide[DEAD_AT] = NEVER
        counts = np.diff(self.narrow[TERMS_END, :n], prepend=np.int32(0))
        kept_terms = np.repeat(self.wide[DEAD_AT, :n] > sequence, counts)
        twin.narrow = np.ascontiguousarray(self.narrow[:, keep])
        twin.narrow[TERMS_END] = np.cumsum(counts[keep], dtype=np.int32)
        end = len(kept_terms)
        twin.fwd_terms = self.fwd_terms[:end][kept_terms]
        twin.fwd_halves = self.fwd_halves[:end][kept_terms]
        twin.total_len = int(twin.narrow[DOC_LEN].sum(dtype=np.int64))
        twin.ids = [self.ids[slot] for slot in slots]
        twin.texts = [self.texts[slot] for slot in slots]
        twin._number()
        twin._hold([self.metas[slot] for slot in slots], [self.tags[slot] for slot in slots])
        twin.order = self.order
        twin.postings = None
        twin.posted = 0
        twin._cells = None
        twin._columns = None
        twin._estimates = None
        twin._family = None
        if twin.indexed and twin.n >= POSTINGS_MIN and len(twin.fwd_terms):
            twin.postings = Postings()
            twin.post()
        twin.vectors = None
        if self.vectors is not None:
            rows = twin.narrow[VROW]
            has = np.flatnonzero(rows >= 0)
            twin.vectors = self.vectors.taken(rows[has])
            rows[has] = np.arange(len(has), dtype=np.int32)
        if twin.wide.shape[1] == 0:
            twin.wide = np.empty((6, _FIRST_CAPACITY), np.int64)
            twin.narrow = np.empty((3, _FIRST_CAPACITY), np.int32)
        return twin, keep

    def without_vectors(self, settings: Settings) -> Table:
        """The live rows as a table of these settings, all without a vector."""
        bare = copy(self)
        bare.vectors = None
        twin, _ = bare.compacted(self.n, self.sequence)
        twin.vectors = VectorTable(settings.dim, settings.metric)
        twin.narrow[VROW] = -1
        return twin

    def _kept(self, words: tuple[bytes, ...]) -> tuple[bytes, ...]:
        """A row's metadata or tags, as they are kept."""
        if self._common is None:
            self._common = Common()
        found, size = self._common.kept(words)
        self.held_bytes += size
        return found

    def _hold(self, metas: list[tuple[bytes, ...]], tags: list[tuple[bytes, ...]]) -> None:
        """Keep these of all rows, and count the rows' values."""
        self._common = None
        self.held_bytes = sum(map(_object_bytes, self.ids, self.texts))
        self.metas = [self._kept(each) if each else each for each in metas]
        self.tags = [self._kept(each) if each else each for each in tags]

    def _number(self) -> None:
        """Make `by_id` and `versions` of all rows, which are live."""
        self.versions = {}
        if self.side is None:
            self.by_id = {record_id: slot for slot, record_id in enumerate(self.ids)}
            return
        current = self.side.cols[KNOWN_TO, : self.n] == NEVER
        ids = self.ids
        self.by_id = {ids[slot]: slot for slot in np.flatnonzero(current).tolist()}
        for slot in np.flatnonzero(~current).tolist():
            self.versions.setdefault(ids[slot], {})[slot] = None

    @classmethod
    def restored(
        cls,
        settings: Settings,
        ids: list[bytes],
        texts: list[bytes],
        metas: list[tuple[bytes, ...]],
        tags: list[tuple[bytes, ...]],
        wide: list[npt.NDArray[Any]],
        doc_len: Int32s,
        has_vector: npt.NDArray[np.uint8],
        term_counts: npt.NDArray[np.uint32],
        fwd_terms: npt.NDArray[np.uint32],
        fwd_halves: npt.NDArray[np.uint16],
        postings: Postings | None,
        vectors: VectorTable | None,
        next_serial: int,
        side: Side | None = None,
        indexed: bool = True,
    ) -> Table:
        """A table of live rows; `wide` is created, updated, deadline, serial (int64) and importance (float64).

        The forward index may be read-only: it is replaced when it grows.
        """
        table = cls(settings, indexed)
        n = table.n = table.live = len(ids)
        table.ids, table.texts = ids, texts
        table.side = side
        table._number()
        table._hold(metas, tags)
        if n:
            created, updated, deadline, serial, importance = wide
            table.wide = np.empty((6, n), np.int64)
            table.wide[CREATED], table.wide[UPDATED], table.wide[DEADLINE] = created, updated, deadline
            table.wide[SERIAL], table.wide[IMPORTANCE] = serial, importance.view(np.int64)
            table.wide[DEAD_AT] = NEVER
            table.narrow = np.empty((3, n), np.int32)
            table.narrow[DOC_LEN] = doc_len
            table.narrow[VROW] = np.where(has_vector, np.cumsum(has_vector, dtype=np.int32) - 1, -1)
            table.narrow[TERMS_END] = np.cumsum(term_counts, dtype=np.int32)
            table.total_len = int(doc_len.sum(dtype=np.int64))
            current = np.fromiter(table.by_id.values(), np.int64, len(table.by_id))
            by_serial = current[np.argsort(table.wide[SERIAL][current])]
            table.order = ScanOrder.restored(
                table.wide[SERIAL][by_serial].tolist(), [ids[slot] for slot in by_serial.tolist()], next_serial
            )
            table.fwd_terms, table.fwd_halves = fwd_terms, fwd_halves
        table.order.next_serial = next_serial
        if postings is not None:
            table.adopt(postings)
        table.vectors = vectors
        return table

    def copy(self) -> Table:
        """An independent twin, in some milliseconds for a hundred thousand rows. Rows never change, so both have them
        in common, dead ones too; the room behind them is not the twin's: it has arrays of its own once it grows."""
        n = self.n
        end = int(self.narrow[TERMS_END, n - 1]) if n else 0
        twin = copy(self)
        if self._family is None:
            self._family = Family()
            self._family.tables.add(self)
        twin._family = self._family
        twin._family.tables.add(twin)
        twin.wide = self.wide[:, :n].copy()  # DEAD_AT is written to
        twin.narrow = self.narrow[:, :n]
        twin.fwd_terms, twin.fwd_halves = self.fwd_terms[:end], self.fwd_halves[:end]
        twin.ids, twin.texts = self.ids.copy(), self.texts.copy()
        twin.metas, twin.tags = self.metas.copy(), self.tags.copy()
        twin.by_id = self.by_id.copy()
        twin.versions = {record_id: slots.copy() for record_id, slots in self.versions.items()}
        twin.order = self.order.copy()
        twin.uses = None if self.uses is None else self.uses.copy()
        twin.side = None if self.side is None else self.side.copy()
        twin.postings = None if self.postings is None else self.postings.copy()
        twin.vectors = None if self.vectors is None else self.vectors.copy()
        twin._cells = twin._columns = twin._estimates = None
        return twin

    @property
    def word_count(self) -> int:
        """How many different words the rows have, or without posting lists how many."""
        if self.postings is not None:
            return self.postings.terms
        return int(self.narrow[TERMS_END, self.n - 1]) if self.n else 0

    def arrays(self) -> Arrays:
        """The arrays and the like that a copy has in common with this until one of them changes."""
        n = self.n
        words = int(self.narrow[TERMS_END, n - 1]) if n else 0
        found: Arrays = {("narrow", whole(self.narrow)): used_bytes(self.narrow, n * 12)}
        if len(self.fwd_terms):
            found["terms", whole(self.fwd_terms)] = used_bytes(self.fwd_terms, words * 4)
            found["halves", whole(self.fwd_halves)] = used_bytes(self.fwd_halves, words * 2)
        if self.side is not None:
            found["side", whole(self.side.cols)] = used_bytes(self.side.cols, n * 64)
        for part in (self.vectors, self.postings):
            if part is not None:
                found |= part.arrays()
        return found

    def nbytes(self) -> int:
        """Bytes of the arrays and of the Python objects they refer to, estimated; of what other tables have too, its
        part."""
        held = (self.vectors, self.postings, self._estimates, self._columns, self.side, self.uses)
        total = sum(part.nbytes() for part in held if part is not None)
        arrays = self.arrays()
        total += sum(arrays.values()) if self._family is None else self._family.own_bytes(arrays)
        # Beyond 256 the number of a slot is an object of its own.
        objects = self.held_bytes + 32 * max(0, len(self.by_id) - 256)
        if self._family is not None or self.n >= _SAMPLED_MIN:  # of few, one that somebody just looks at would tell
            objects = int(objects * own_part(self.texts))
        total += objects + used_bytes(self.wide, self.n * 48)
        total += 0 if self._common is None else self._common.nbytes()
        containers = (self, self.ids, self.texts, self.metas, self.tags, self.by_id, self.versions)
        # A dictionary with one slot or a few; ended versions are all rows but the current ones.
        total += 224 * len(self.versions) + 40 * (self.live - len(self.by_id))
        return total + sum(map(getsizeof, containers)) + self.order.nbytes()


def _object_bytes(record_id: bytes, text: bytes) -> int:
    """What two of a row's values take: a bytes object is 33 and its length, rounded up to 16."""
    return (48 + len(record_id) & -16) + (48 + len(text) & -16)


def _grown(array: Any) -> Any:
    """`array` (rows, capacity) with at least twice the capacity."""
    new = room((array.shape[0], max(_FIRST_CAPACITY, 2 * array.shape[1])), array.dtype)
    new[:, : array.shape[1]] = array
    return new


def _grown_to(array: Any, size: int) -> Any:
    """`array` with room for `size`, half as much again as it had or more."""
    new = room((max(size, len(array) + (len(array) >> 1)),), array.dtype)
    new[: len(array)] = array
    return new
