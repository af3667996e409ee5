"""A record's vector, and a query's: checked against the memory, and as it keeps or compares them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..index.errors import BadMemory, DimensionMismatch
from ..index.vectors import UNIT, is_unit, normalised

if TYPE_CHECKING:
    from ..index.settings import Settings

# So many vectors are looked at together sooner than one by one.
_FEW = 4


def stored_vector(vector: npt.NDArray[np.float64], settings: Settings) -> bytes:
    """The float32 bytes that this memory keeps of a vector of float32 numbers; raises BadMemory."""
    squared = _squared_length(vector, settings)
    if settings.metric == "COSINE" and not is_unit(squared):
        # One that is a unit vector already stays as it is: normalising what MEM.GET showed, or a model made, once more
        # would turn a last bit here and there.
        vector = _unit(vector)
    return vector.astype("<f4").tobytes()


def check_vector(vector: npt.NDArray[np.float64], settings: Settings) -> npt.NDArray[np.float64]:
    """A query's vector as the memory compares it, a unit vector under COSINE; raises BadMemory."""
    _squared_length(vector, settings)
    return _unit(vector) if settings.metric == "COSINE" else vector


def _squared_length(vector: npt.NDArray[np.float64], settings: Settings) -> float:
    if settings.has_vectors and len(vector) != settings.dim:
        raise DimensionMismatch(settings.dim, len(vector))
    # The squares of float32 numbers are far inside float64: their sum is finite unless one of them is not.
    squared = float(vector.dot(vector))
    if not math.isfinite(squared):
        raise BadMemory("vector contains NaN or infinity")
    if not settings.has_vectors:
        raise BadMemory("this memory index stores no vectors; create it with MODE VECTOR or MODE HYBRID")
    return squared


def _unit(vector: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    unit = normalised(vector)
    if unit is None:
        raise BadMemory("a zero vector has no direction to compare under COSINE")
    return unit


def fit_vectors(blobs: Sequence[bytes], settings: Settings) -> list[bytes | None]:
    """What `stored_vector` makes of each, float32 bytes as they came; None where it raises, or there is none."""
    found: list[bytes | None] = [None] * len(blobs)
    size = 4 * settings.dim
    places = [place for place, blob in enumerate(blobs) if len(blob) == size and size] if settings.has_vectors else []
    if not places:
        return found
    rows = np.frombuffer(b"".join([blobs[place] for place in places]), "<f4").reshape(-1, settings.dim)
    with np.errstate(invalid="ignore"):  # of a signalling NaN
        wide = rows.astype(np.float64)
    as_it_is = [False] * len(places)
    if len(places) >= _FEW:
        squared: npt.NDArray[np.float64] = np.einsum("ij,ij->i", wide, wide)
        # Well within what `is_unit` takes, or the sum's last bit would decide which way it is stored.
        fit = np.abs(np.sqrt(squared) - 1.0) <= UNIT if settings.metric == "COSINE" else np.isfinite(squared)
        as_it_is = fit.tolist()
    for place, row, is_it in zip(places, wide, as_it_is, strict=True):
        try:
            found[place] = blobs[place] if is_it else stored_vector(row, settings)
        except BadMemory:
            continue
    return found
