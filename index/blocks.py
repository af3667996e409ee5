"""Rows of one length kept in blocks, so that growth copies one block at most and readers keep what they counted on."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Floats32 = npt.NDArray[np.float32]
T = TypeVar("T", bound=np.generic)

#: Rows per block.
BLOCK = 4096


def gather(blocks: list[npt.NDArray[T]], rows: npt.NDArray[np.integer]) -> npt.NDArray[T]:
    """The rows (m, dim) by their number."""
    if len(blocks) == 1:
        only: npt.NDArray[T] = blocks[0][rows]
        return only
    out = np.empty((len(rows), blocks[0].shape[1]), blocks[0].dtype)
    block_of = rows // BLOCK
    within = rows % BLOCK
    for number in np.unique(block_of).tolist():
        here = block_of == number
        out[here] = blocks[number][within[here]]
    return out
