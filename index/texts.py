"""Which current records have a text: by its content id (MEM.GET, MEM.VERIFY), or with case and spaces aside (DEDUP).

Each index is a dictionary from 64 bits of the text to ids, which a memory has from the first time on that somebody asks
(about 100 bytes a record, 3 microseconds to make), which is then told of every text that comes and goes. It is begun
with all records waiting and extended in steps, so that the loop can do other things between them; what comes and goes
meanwhile needs no order, since adding an id twice changes nothing.

The key is taken when a record is written, or when the index is made: where the text gives another one later, the memory
of this process was damaged, and that is what MEM.VERIFY looks for.
"""

from __future__ import annotations

import hashlib
import unicodedata
from sys import getsizeof

# A step takes a millisecond or two.
STEP_RECORDS = 1000
STEP_BYTES = 1 << 20


class TextIndex:
    """Key of a text -> ids of the records that have it. `waiting` records are not in it yet."""

    __slots__ = ("_ids", "waiting")

    #: Whether facts are in it.
    facts = True

    def __init__(self, waiting: list[bytes]) -> None:
        self.waiting = waiting
        self._ids: dict[int, bytes | set[bytes]] = {}  # most texts are one record's

    @staticmethod
    def form(text: bytes) -> bytes | str:
        """What two texts must have in common."""
        raise NotImplementedError

    @staticmethod
    def key(form: bytes | str) -> int:
        return hash(form)

    def key_of(self, text: bytes) -> int:
        return self.key(self.form(text))

    def ids(self, key: int) -> list[bytes]:
        """The ids under a key, the smallest first."""
        found = self._ids.get(key)
        if found is None:
            return []
        return sorted(found) if isinstance(found, set) else [found]

    def holds(self, record_id: bytes, text: bytes) -> bool:
        """Whether the record was put under the key that its text has now."""
        found = self._ids.get(self.key_of(text))
        return record_id in found if isinstance(found, set) else record_id == found

    def add(self, record_id: bytes, text: bytes) -> None:
        key = self.key_of(text)
        found = self._ids.get(key)
        if found is None:
            self._ids[key] = record_id
        elif isinstance(found, set):
            found.add(record_id)
        elif found != record_id:
            self._ids[key] = {found, record_id}

    def discard(self, record_id: bytes, text: bytes) -> None:
        """The record goes, or has another text from now on."""
        if not self._drop(self.key_of(text), record_id) and not self.waiting:
            # Its text is not what it was: the record stands wherever it stands.
            for key in list(self._ids):
                self._drop(key, record_id)

    def _drop(self, key: int, record_id: bytes) -> bool:
        found = self._ids.get(key)
        if isinstance(found, set):
            if record_id not in found:
                return False
            found.discard(record_id)
            if len(found) == 1:
                self._ids[key] = found.pop()
            return True
        if found != record_id:
            return False
        del self._ids[key]
        return True

    def nbytes(self) -> int:
        """About how many bytes this takes."""
        # A key is a number of 36 bytes, rounded up; few records share a text.
        return getsizeof(self.waiting) + getsizeof(self._ids) + 48 * len(self._ids)


class Contents(TextIndex):
    """By the sha256 of the bytes."""

    __slots__ = ()

    @staticmethod
    def form(text: bytes) -> bytes:
        return hashlib.sha256(text).digest()

    @staticmethod
    def key(form: bytes | str) -> int:
        assert isinstance(form, bytes)
        return int.from_bytes(form[:8])


class Wordings(TextIndex):
    """With case and spaces aside, notes and episodes only: a fact says what it says, whoever noted the same words."""

    __slots__ = ()

    facts = False

    @staticmethod
    def form(text: bytes) -> str:
        """Canonically decomposed and case folded (Unicode's caseless match, D145), runs of white space one space, none
        at the ends. What is no UTF-8 stays as it is."""
        shown = text.decode("utf-8", "surrogateescape")
        if shown.isascii():
            shown = shown.lower()
        else:
            shown = unicodedata.normalize("NFD", unicodedata.normalize("NFD", shown).casefold())
        return " ".join(shown.split())
