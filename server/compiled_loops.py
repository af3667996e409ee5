"""Imports the compiled loops (index/compiled.py, index/compiled_words.py).

That takes a third of a second and, where numba keeps nothing on disk, or has not yet, some seconds of compiling:
workers.py does it in a thread when a query, or what is written, is first worth it. `python -m
recalld.server.compiled_loops` does it at installation, for the next start to find.
"""

from __future__ import annotations

import ctypes
import mmap

from ..index import kernels


class NotCompiled(Exception):
    """Why there are no compiled loops here."""


def load() -> None:
    """Use the compiled loops from now on. Raises NotCompiled where that cannot be."""
    if not _may_make_code():
        raise NotCompiled("the system lets this process make no code (MemoryDenyWriteExecute)")
    try:
        from ..index import compiled, compiled_words
    except ModuleNotFoundError as error:
        raise NotCompiled("numba is not installed (pip install 'recalld[fast]')") from error
    kernels.use(compiled, compiled_words)


def _may_make_code() -> bool:
    """Whether a page that was written may be run: where not, LLVM ends the process when it tries."""
    try:
        change = ctypes.CDLL(None).mprotect
    except (AttributeError, OSError, TypeError):  # not a Unix
        return True
    with mmap.mmap(-1, mmap.PAGESIZE) as page:
        held = ctypes.c_char.from_buffer(page)
        start = ctypes.c_void_p(ctypes.addressof(held))
        size = ctypes.c_size_t(mmap.PAGESIZE)
        read, write, run = 1, 2, 4
        allowed = change(start, size, read | run) == 0
        change(start, size, read | write)
        del held
    return bool(allowed)


if __name__ == "__main__":
    try:
        load()
    except NotCompiled as reason:
        raise SystemExit(f"no compiled loops: {reason}") from reason
