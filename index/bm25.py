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
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Int64s = npt.NDArray[np.int64]


@dataclass(slots=True, frozen=True)
class TermHits:
    """One query term: the rows that hold it (ascending, dead ones included), how often, and its live df."""

    term: str
    weight: float
    df: int
    slots: Int64s
    halves: npt.NDArray[np.integer]


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


def score(
    terms: list[TermHits], doc_len: npt.NDArray[np.integer], *, records: int, avgdl: float, k1: float, b: float
) -> Floats:
    """BM25 of every row: float64 of shape (len(doc_len),), 0.0 where no term occurs; dead rows score too."""
    scores = np.zeros(len(doc_len), np.float64)
    for term in terms:
        scores[term.slots] += parts(
            term.halves,
            doc_len[term.slots],
            scale=idf(records, term.df) * term.weight,
            avgdl=avgdl,
            k1=k1,
            b=b,
        )
    return scores
