"""How long each command takes: calls, sum and a histogram per command, for INFO, LATENCY HISTOGRAM and Prometheus.

A command appends its nanoseconds to a list; the server's cron and every reader count what has gathered (`fold`), with
numpy. (Measured on this path: an append to a list takes 21 ns, to an array 113, one clock reading 80.)

The histogram is log-linear: every power of two is cut into 16 buckets, so a percentile is too high by a sixteenth at
most. Nothing is kept of a command that was never called; 5 KB of one that was.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from math import ceil

import numpy as np
import numpy.typing as npt

from .stats import Stats

# 16 buckets per power of two, up to 2**40 ns, 18 minutes: what took longer counts as that.
_SUB_BITS = 4
_SUB = 1 << _SUB_BITS
_MOST_NS = (1 << 40) - 1


def _bucket_of(ns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    ns = np.minimum(ns, _MOST_NS)
    # frexp's exponent is the bit length: floats hold these integers exactly.
    shift = np.maximum(np.frexp(ns.astype(np.float64))[1].astype(np.int64) - (_SUB_BITS + 1), 0)
    bucket: npt.NDArray[np.int64] = (shift << _SUB_BITS) + (ns >> shift)
    return bucket


def _upper_bounds() -> npt.NDArray[np.int64]:
    index = np.arange(_BUCKETS, dtype=np.int64)
    shift = np.maximum((index >> _SUB_BITS) - 1, 0)
    bounds: npt.NDArray[np.int64] = ((index - (shift << _SUB_BITS) + 1) << shift) - 1
    return bounds


_BUCKETS = int(_bucket_of(np.array([_MOST_NS]))[0]) + 1
#: The largest value that each bucket counts.
UPPER_NS = _upper_bounds()
# LATENCY HISTOGRAM's buckets, as Redis cuts and names them: 1, 2, 4, 8, 16, 33, 66, .. microseconds.
_POWERS_NS = [1024 << power for power in range(31)]
_LABELS_US = [(bound + (8 << power) - 1) // 1000 for power, bound in enumerate(_POWERS_NS)]


class Times:
    """The calls of one command."""

    __slots__ = ("_buckets", "calls", "total_ns", "tracked", "tracked_ns")

    def __init__(self) -> None:
        self.calls = 0
        self.total_ns = 0
        self.tracked = 0  # those that the histogram counts, made while latency-tracking was on
        self.tracked_ns = 0
        self._buckets: npt.NDArray[np.int64] | None = None

    def add(self, ns: npt.NDArray[np.int64], *, tracked: bool) -> None:
        total_ns = int(ns.sum())
        self.calls += len(ns)
        self.total_ns += total_ns
        if tracked:
            self.tracked += len(ns)
            self.tracked_ns += total_ns
            counts = np.bincount(_bucket_of(ns), minlength=_BUCKETS)
            self._buckets = counts if self._buckets is None else self._buckets + counts

    def percentiles_ns(self, percents: Sequence[float]) -> list[int]:
        """The least duration that so many percent of the calls did not exceed; 0 without calls."""
        if self._buckets is None:
            return [0] * len(percents)
        ranks = [max(1, ceil(self.tracked * percent / 100)) for percent in percents]
        found: list[int] = UPPER_NS[np.searchsorted(np.cumsum(self._buckets), ranks)].tolist()
        return found

    def below(self, bounds_ns: Sequence[int]) -> list[int]:
        """How many calls took less than each of these, which are powers of two."""
        if self._buckets is None:
            return [0] * len(bounds_ns)
        upto = np.concatenate(([0], np.cumsum(self._buckets)))
        counts: list[int] = upto[np.searchsorted(UPPER_NS, bounds_ns)].tolist()
        return counts

    def histogram(self) -> dict[int, int]:
        """Microseconds -> how many calls took no longer, only where that grows."""
        shown, before = {}, 0
        for label, count in zip(_LABELS_US, self.below(_POWERS_NS), strict=True):
            if count > before:
                shown[label] = before = count
        return shown


class CommandTimes:
    """The commands of one server, by their names in small letters (`client|list`)."""

    def __init__(self, stats: Stats) -> None:
        self._stats = stats  # its `commands` are the sum of all calls
        self.tracking = True
        self.samples: defaultdict[str, list[int]] = defaultdict(list)  # ns since they were last counted
        self.rejected: Counter[str] = Counter()  # refused before they ran
        self.failed: Counter[str] = Counter()  # ran, and answered with an error
        self._times: dict[str, Times] = {}

    def fold(self) -> None:
        """Count what has gathered."""
        for name, gathered in self.samples.items():
            if gathered:
                times = self._times.get(name)
                if times is None:
                    times = self._times[name] = Times()
                times.add(np.array(gathered, np.int64), tracked=self.tracking)
                self._stats.commands += len(gathered)
                gathered.clear()

    def all(self) -> Iterator[tuple[str, Times]]:
        """Every command that was called, in the order of the first calls."""
        self.fold()
        return iter(self._times.items())

    def stats(self) -> Iterator[tuple[str, Times]]:
        """As `all`, and those that were only refused, without calls."""
        yield from self.all()
        for name in self.rejected:
            if name not in self._times:
                yield name, Times()

    def reset(self) -> None:
        """Start anew, as CONFIG RESETSTAT does."""
        self.samples.clear()
        self._times.clear()
        self.rejected.clear()
        self.failed.clear()
