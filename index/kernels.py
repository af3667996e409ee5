"""Whether compiled inner loops (compiled.py) are at hand: `loops` is that module, or None.

Without them numpy gives the same answers. Importing takes a third of a second, and where numba keeps nothing on disk,
or has not yet, some seconds of compiling: the server does it in a thread when a query is first worth it. `python -m
recalld.index.kernels` does it at installation, for the next start to find.
"""

from __future__ import annotations

import ctypes
import mmap
from importlib import import_module
from typing import Any

import numpy as np

loops: Any = None
#: Whether a compiled sum adds in the order that this numpy does, so that exact similarities may be compiled too.
sums_alike = False


class NotCompiled(Exception):
    """Why there are no compiled loops here."""


def load() -> None:
    """Use the compiled loops from now on. Raises NotCompiled where that cannot be."""
    global loops, sums_alike
    if not _may_make_code():
        raise NotCompiled("the system lets this process make no code (MemoryDenyWriteExecute)")
    try:
        compiled = import_module("recalld.index.compiled")
    except ModuleNotFoundError as error:
        raise NotCompiled("numba is not installed (pip install 'recalld[fast]')") from error
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal(size) * 10.0 ** rng.uniform(-8, 8, size) for size in (*range(1, 300), 384, 1000, 4096)]
    sums_alike = all(compiled.pairwise_sum(row, 0, len(row)) == row[None].sum(axis=1)[0] for row in rows)
    loops = compiled


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
