"""What one thread and two read of this machine's memory: the bound of a scan that no cache holds.

Rows of 384 int8 codes, as index/codes.py has them, in blocks of 16 384. "read" adds the numbers up (numpy, int64),
"NumKong" is its product with one query, "compiled" index/compiled.py's, which asks for memory ahead. 38 MB may stay in
a cache, 384 MB do not.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numkong
import numpy as np
from common import machine, print_machine, print_records
from numpy.typing import NDArray
from recalld.index import compiled

DIM = 384
BLOCK = 16_384
ROUNDS = 15

Codes = NDArray[np.int8]


def read(blocks: list[Codes]) -> None:
    for block in blocks:
        block.reshape(-1).view(np.int64).sum()


def scan(blocks: list[Codes], query: Any) -> None:
    for block in blocks:
        numkong.dots_packed(block, query)


def scan_ahead(blocks: list[Codes], query: NDArray[np.int16], scales: NDArray[np.float32]) -> None:
    out = np.empty(BLOCK, np.float32)
    for block in blocks:
        compiled.code_products(block, query, 1.0, scales, 0, out)


def gigabytes_per_s(work: Callable[[list[Codes]], None], blocks: list[Codes], threads: int) -> float:
    """The fastest of the rounds."""
    parts = [blocks[start::threads] for start in range(threads)]
    best = float("inf")
    with ThreadPoolExecutor(threads) as pool:
        for _ in range(ROUNDS):
            began = time.perf_counter()
            list(pool.map(work, parts))
            best = min(best, time.perf_counter() - began)
    return sum(block.nbytes for block in blocks) / best / 1e9


def main() -> int:
    print_machine(machine())
    rng = np.random.default_rng(1)
    code, scales = rng.integers(-127, 128, (1, DIM), np.int8), np.ones(BLOCK, np.float32)
    query, wide = numkong.dots_pack(code), code[0].astype(np.int16)
    rows = []
    for count in (6, 61):
        blocks = [rng.integers(-127, 128, (BLOCK, DIM), np.int8) for _ in range(count)]
        for threads in (1, 2):
            row: dict[str, object] = {"MB": count * BLOCK * DIM // 10**6, "threads": threads}
            row["read"] = gigabytes_per_s(read, blocks, threads)
            row["NumKong"] = gigabytes_per_s(lambda part: scan(part, query), blocks, threads)
            row["compiled"] = gigabytes_per_s(lambda part: scan_ahead(part, wide, scales), blocks, threads)
            rows.append(row)
    print_records("GB per second, the fastest of the rounds", rows)
    return 0


if __name__ == "__main__":
    sys.exit(main())
