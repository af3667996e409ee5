"""With `appendfsync always`: where a sync is waited for, and who else it had better be for.

Clients that write one after another come again some time after their replies have left. A sync that begins at once is
for those who came while the last one ran, half of them, and the others wait for the next: each client waits for two.
One that begins a little later is for all. (As in PostgreSQL, whose commit_delay is this wait.)
"""

from __future__ import annotations

# A disk is waited for on the loop where a sync takes less than this: handing over costs some 0.15 ms (2 cores, CPython
# 3.11), and the interpreter's lock changes hands twice. For that a thread waits as well, so of a sync in the thread it
# is only known that it took no longer: if so many in a row took less than that, the loop tries.
_QUICK_S, _QUICK_IN_THREAD_S, _QUICK_SYNCS = 0.001, 0.005, 16
# What it takes there is a mean of which the last one is such a part; a disk that is slow after all is left to the
# thread for so many syncs at least.
_LAST_SHARE, _SLOW_SYNCS = 1 / 32, 1000
# Others are waited for as long as a sync takes, if that is a millisecond at least (the loop's timers know no less), and
# at most so long: who takes longer to come again is sooner done in two turns. Where they do not come a few times in a
# row, none is waited for for a while.
_WAIT_LEAST_S, _WAIT_MOST_S = 0.001, 0.005
_MISSED, _PAUSE = 4, 50


class Patience:
    """Whether the loop itself waits for the disk, by how long that took lately."""

    def __init__(self) -> None:
        self.waits_here = False
        self._quick = 0  # in a row, in the thread; negative: so many more until they count
        self._usual_s = 0.0  # on the loop

    def took_in_thread(self, seconds: float) -> None:
        self._quick = self._quick + 1 if seconds < _QUICK_IN_THREAD_S else min(self._quick, 0)
        self.waits_here = self._quick >= _QUICK_SYNCS

    def took_here(self, seconds: float) -> None:
        self._usual_s += (seconds - self._usual_s) * _LAST_SHARE
        if self._usual_s > _QUICK_S:
            self.failed()
            self._quick = -_SLOW_SYNCS

    def failed(self) -> None:
        self.waits_here, self._quick, self._usual_s = False, 0, 0.0


class Company:
    """Whether the next sync waits for connections whose replies have just left."""

    def __init__(self) -> None:
        self._expected = 0
        self._missed = 0  # in a row; negative: so many syncs more that wait for nobody

    def leaves(self, left: int, waiting: int, took_s: float) -> float:
        """Replies to so many connections leave, others wait for the next sync already: how many seconds that waits."""
        if self._missed < 0:
            self._missed += 1
            return 0.0
        wait_s = min(took_s, _WAIT_MOST_S)
        self._expected = left + waiting
        return wait_s if left and wait_s >= _WAIT_LEAST_S else 0.0

    def is_awaited(self, waiting: int) -> bool:
        """Whether any of those who left are still to come."""
        if waiting < self._expected:
            return True
        self._missed = 0
        return False

    def missed(self) -> None:
        """The time was over before all had come."""
        self._missed += 1
        if self._missed >= _MISSED:
            self._missed = -_PAUSE
