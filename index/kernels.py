"""Whether compiled inner loops (compiled.py) are at hand: `loops` is that module, or None.

Without them numpy gives the same answers. Importing takes a third of a second, and where numba keeps nothing on disk,
or has not yet, some seconds of compiling: the server does it in a thread once it listens. `python -m
recalld.index.kernels` does it at installation, for the next start to find.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

loops: Any = None
#: Whether a compiled sum adds in the order that this numpy does, so that exact similarities may be compiled too.
sums_alike = False


def load() -> bool:
    """Use the compiled loops from now on; False where numba is not installed."""
    global loops, sums_alike
    try:
        compiled = import_module("recalld.index.compiled")
    except ImportError:
        return False
    rng = np.random.default_rng(0)
    rows = [rng.standard_normal(size) * 10.0 ** rng.uniform(-8, 8, size) for size in (*range(1, 300), 384, 1000, 4096)]
    sums_alike = all(compiled.pairwise_sum(row, 0, len(row)) == row[None].sum(axis=1)[0] for row in rows)
    loops = compiled
    return True


def unload() -> None:
    """Use numpy again."""
    global loops
    loops = None


if __name__ == "__main__":
    if not load():
        raise SystemExit("numba is not installed; pip install recalld[fast]")
