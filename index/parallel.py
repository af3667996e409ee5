"""Ranges of rows on several cores: for scans so long that memory, not arithmetic, is what one thread waits for.

Whoever waits does what nobody has begun yet: a part may have parts itself, and all threads would wait for a free one.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

# Less per thread is not worth waking it.
_ROWS_MIN = 16 * 1024
# Passes over so many rows take longer than the interpreter between them, which one thread has at a time.
_EACH_ROWS_MIN = 32 * 1024
# Memory has no more to give beyond a few threads, and other queries want the cores too.
_THREADS_MAX = 4

_threads = 1
_pool: ThreadPoolExecutor | None = None


def use(cores: int) -> None:
    """Let long scans use so many cores. At first it is one."""
    global _threads, _pool
    _threads = max(1, min(_THREADS_MAX, cores))
    if _pool is not None:
        _pool.shutdown(wait=False)
    # Its threads begin when they are first needed.
    _pool = ThreadPoolExecutor(_threads - 1, thread_name_prefix="scan-part") if _threads > 1 else None


def split(rows: int, step: int, work: Callable[[int, int], None], *, least: int = _ROWS_MIN) -> None:
    """Call `work(start, end)` at once for ranges that cover `rows`, whose ends are multiples of `step` or `rows`; a
    range has `least` rows at least."""
    parts, pool = min(_threads, rows // least), _pool
    if parts < 2 or pool is None:
        work(0, rows)
        return
    each = -(-rows // (parts * step)) * step
    others = [(pool.submit(work, start, min(start + each, rows)), start) for start in range(each, rows, each)]
    try:
        work(0, min(each, rows))
        for other, start in others:
            if other.cancel():
                work(start, min(start + each, rows))
    finally:
        for other, _ in others:
            if not other.cancel():
                other.result()


def each(count: int, work: Callable[[int], None], *, rows: int) -> None:
    """Call `work(0)` to `work(count - 1)`, each of which makes some passes over `rows` rows; in any order, at once."""
    parts, pool = min(_threads, count), _pool
    if parts < 2 or pool is None or rows < _EACH_ROWS_MIN:
        for number in range(count):
            work(number)
        return
    waiting = iter(range(count))  # next() of it is one step of the interpreter: no two threads get the same

    def some() -> None:
        for number in waiting:
            work(number)

    others = [pool.submit(some) for _ in range(parts - 1)]
    try:
        some()
    finally:
        for other in others:
            if not other.cancel():
                other.result()
