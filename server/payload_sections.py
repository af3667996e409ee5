"""The sections of the base in a payload (payload.py), read as what anybody may have written: `hold` refuses."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import numpy.typing as npt

from .arguments import TTL_MAX_S
from .base import MAGIC as BASE_MAGIC
from .base import MAGICS as BASE_MAGICS
from .base import MEMORY

DAMAGED = "DUMP payload version or checksum are wrong"
#: Times are within ten thousand years of 1970, deadlines within twice that: arguments.py lets no other in.
TIME_MAX = TTL_MAX_S * 1000
# A stored unit vector is float64 rounded to float32, so its length is 1 to within 2**-24. The bounds of the scan
# (index/vectors.py) rely on it: a longer one would be missed or found by chance.
UNIT_TOLERANCE = 2.0**-24 * 1.001
# Of a base: where its directory starts, how long it is, the directory's CRC and the end mark, which the CRC of the
# whole covers.
_TRAILER = struct.Struct("<QQ16x")

Array = npt.NDArray[Any]


class PayloadDamaged(ValueError):
    """No payload of this version, or one that no memory can be made of."""


def hold(condition: bool) -> None:
    """Refuse the payload unless this holds; raises PayloadDamaged."""
    if not condition:
        raise PayloadDamaged(DAMAGED)


class Sections:
    """The sections of the base in a payload, by name."""

    def __init__(self, base: memoryview) -> None:
        self._base = base
        hold(len(base) >= len(BASE_MAGIC) + _TRAILER.size and bytes(base[: len(BASE_MAGIC)]) in BASE_MAGICS)
        directory_end = len(base) - _TRAILER.size
        start, length = _TRAILER.unpack(base[directory_end:])
        hold(start + length == directory_end)
        try:
            directory = json.loads(bytes(base[start:directory_end]).decode())
        except (ValueError, RecursionError):
            directory = None
        hold(isinstance(directory, dict) and isinstance(directory.get("sections"), dict))
        self._directory: dict[str, Any] = directory["sections"]
        self._end = start
        several = directory.get("settings")
        hold(isinstance(several, list) and len(several) >= 1)
        self.settings: list[Any] = several

    def _bytes(self, name: str, kind: str) -> memoryview:
        """A section, empty where there is none; `kind` is what the directory must call it."""
        if name not in self._directory:
            return self._base[:0]
        entry = self._directory[name]
        hold(isinstance(entry, list) and len(entry) == 4)
        offset, size, _, written = entry
        hold(type(offset) is int and type(size) is int and written == kind)
        hold(0 <= offset <= self._end and 0 <= size <= self._end - offset)
        return self._base[offset : offset + size]

    def size(self, name: str) -> int:
        """Bytes of a section of float32."""
        return len(self._bytes(name, "<f4"))

    def array(self, name: str, kind: str) -> Array:
        """A column as numpy calls its `kind`, or "memory"; a copy."""
        data = self._bytes(name, kind)
        dtype = np.dtype(MEMORY if kind == "memory" else kind)
        hold(len(data) % dtype.itemsize == 0)
        return np.frombuffer(data, dtype).copy() if len(data) else np.zeros(0, dtype)

    def strings(self, name: str) -> list[bytes]:
        data = bytes(self._bytes(name, "S"))
        lengths = self.array(name + ".len", "<u4")
        ends = np.cumsum(lengths, dtype=np.int64)
        hold(len(data) == (int(ends[-1]) if len(ends) else 0))
        return [data[start:end] for start, end in zip((ends - lengths).tolist(), ends.tolist(), strict=True)]

    def lists(self, name: str) -> list[tuple[bytes, ...]]:
        words = self.strings(name)
        counts = self.array(name + ".n", "<u4")
        ends = np.cumsum(counts, dtype=np.int64)
        hold(len(words) == (int(ends[-1]) if len(ends) else 0))
        return [tuple(words[start:end]) for start, end in zip((ends - counts).tolist(), ends.tolist(), strict=True)]
