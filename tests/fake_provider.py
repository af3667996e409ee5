"""An embedder for tests: unit vectors that depend on the text and the model alone, and that can be taken down."""

from __future__ import annotations

import hashlib
import threading
from typing import Any

import numpy as np
import pytest
from recalld.server import embedding
from recalld.server.embedder import EmbedderError, Floats, Model


class Provider:
    """What stands behind every model of EMBEDDER openai while it is installed.

    `down`: every batch fails. `refuses`: texts it has no vector for. `gate`: cleared, batches wait for it.
    """

    batch_texts = 64
    batch_bytes = 1 << 20

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.down = False
        self.refuses: set[str] = set()
        self.gate = threading.Event()
        self.gate.set()
        self.texts: list[str] = []
        monkeypatch.setattr(embedding, "make", self._make)

    def _make(self, model: Model, config: Any, closing: threading.Event) -> _Fake:
        return _Fake(self, model)


class _Fake:
    batch_texts = Provider.batch_texts
    batch_bytes = Provider.batch_bytes

    def __init__(self, provider: Provider, model: Model) -> None:
        self._provider = provider
        self._model = model

    def embed(self, texts: list[str]) -> Floats:
        provider = self._provider
        provider.gate.wait(10)
        if provider.down:
            raise EmbedderError("openai: connection refused")
        provider.texts += texts
        rows = np.stack([vector_of(self._model.name, self._model.dim, text) for text in texts])
        rows[[text in provider.refuses for text in texts]] = np.nan
        return rows


def vector_of(model: str, dim: int, text: str) -> Floats:
    """The float32 unit vector (dim,) that the model makes of a text."""
    seed = int.from_bytes(hashlib.sha256(f"{model}\0{text}".encode("utf-8", "replace")).digest()[:8], "little")
    row = np.random.default_rng(seed).standard_normal(dim)
    return np.asarray(row / np.linalg.norm(row), np.float32)
