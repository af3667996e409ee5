"""Whether compiled inner loops are at hand: `loops` is compiled.py, `words` compiled_words.py, or None.

Without them numpy gives the same answers. Who runs the process decides when to import them (server/compiled_loops.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

loops: Any = None
words: Any = None
#: Whether a compiled sum adds in the order that this numpy does, so that exact similarities may be compiled too.
sums_alike = False


def use(compiled: Any, compiled_words: Any) -> None:
    """Use the loops of these modules from now on."""
    global loops, words, sums_alike
    sums_alike = all(
        compiled.pairwise_sum(row, 0, size) == row[None].sum(axis=1)[0]
        for size in (*range(1, 300), 384, 1000, 4096)
        # Digits of all weights, so that another order would show in the last ones.
        for row in [np.sin(np.arange(size) * 1e4) * 10.0 ** (np.arange(size) % 13)]
    )
    loops, words = compiled, compiled_words
