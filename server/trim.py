"""Memory that was freed and that the C library keeps, given back to the system.

glibc gives back what is above the last thing in use, and keeps what lies between: after a load of records, or queries
of many connections, 20 to 50 MB. To give that back (malloc_trim) takes 20 milliseconds or so, in which allocations wait
now and then, so it is done in a thread, and when the clients are quiet.
"""

from __future__ import annotations

import ctypes
from contextlib import suppress

from ..index import scratch

# Commands a second from which on clients are not quiet: pings and scrapes of INFO are fewer. Nor are they where the
# process has grown or shrunk by so many bytes: one MEM.MADD or DEL may be a large one.
_QUIET = 20
_QUIET_BYTES = 1 << 20
# After so many seconds without one that is quiet it is done all the same.
_BUSY_S = 60


# mallopt(3), glibc
_M_ARENA_MAX = -8


def share_heap() -> None:
    """Let all threads of the process, once more begin, allocate from the heap that the first has. Each would have one
    of its own, of which malloc_trim does not give back the end: 100 000 records read by threads left 25 MB there. They
    hold the interpreter while they allocate, so they do not wait for each other."""
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def trim() -> None:
    """Give it back, where the C library can, with what threads keep for queries. ctypes lets others run meanwhile."""
    scratch.release()
    with suppress(OSError, AttributeError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


class Trimmer:
    """When to do it: once in the first quiet second after some that were not, or once a minute."""

    def __init__(self) -> None:
        self._commands = self._resident_bytes = 0
        self._busy_s = 0
        self._trimmed = False  # since the last look

    def is_due(self, commands: int, resident_bytes: int) -> bool:
        """Asked each second, with how many commands there have been in all, and what the process holds."""
        busy = not 0 <= commands - self._commands < _QUIET  # below 0: they are counted anew
        if not self._trimmed:
            busy |= abs(resident_bytes - self._resident_bytes) >= _QUIET_BYTES
        self._commands, self._resident_bytes = commands, resident_bytes
        if busy:
            self._busy_s += 1
        due = self._busy_s >= _BUSY_S or (self._busy_s > 0 and not busy)
        if due:
            self._busy_s = 0
        self._trimmed = due
        return due
