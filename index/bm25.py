"""BM25, Lucene's variant, over live statistics.

    idf   = ln(1 + (N - df + 0.5) / (df + 0.5))          (never negative: Kamphuis et al., ECIR 2020)
    part  = idf * tf * (k1 + 1) / (tf + k1 * (1 - b + b * dl / avgdl))
    score = sum over the query's terms of weight * part

N, df and avgdl count live records. tf counts an exact occurrence as 1, a second form (a part of an identifier, a folded
accent) as 1/2; dl counts words once. A term's weight is how often the query has it, a second form 1/2 each.

Bits: every score is the same elementwise float64 operations in the order of the query's terms, whichever path found
the postings, so it does not depend on the path.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]


class TermList(NamedTuple):
    """A posting list of a query's term (`slot << 16 | halves`, ascending, dead rows included); a term may have several,
    of different rows."""

    term: str
    number: int  # which of the terms it is
    idf: float
    scale: float  # idf * weight
    most: float  # that it adds to a row
    data: Int64s


def idf(records: int, df: int) -> float:
    """How much a term tells that `df` of `records` hold."""
    return math.log1p((records - df + 0.5) / (df + 0.5))


def parts(
    halves: npt.NDArray[np.integer],
    doc_len: npt.NDArray[np.integer],
    *,
    scale: float,
    avgdl: float,
    k1: float,
    b: float,
) -> Floats:
    """The part of one term for rows with these frequencies (half units) and lengths; `scale` is idf * weight."""
    tf = halves * 0.5
    norm = k1 * (1.0 - b) + (k1 * b / avgdl if avgdl else 0.0) * doc_len
    result: Floats = scale * (tf * (k1 + 1.0)) / (tf + norm)
    return result
