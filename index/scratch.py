"""Arrays that a thread keeps from one query to the next: new memory is a page fault for each thousand numbers."""

from __future__ import annotations

import threading

#: Each thread's own. Asked for by the module, as it is another after `release`.
kept = threading.local()


def release() -> None:
    """Let go of what all threads keep; those that work with some have it until they are done."""
    global kept
    kept = threading.local()
