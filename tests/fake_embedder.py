"""An embedder that a test holds: what it was asked, when it answers, and how it fails.

fake = FakeEmbedder()
monkeypatch.setattr("recalld.server.embedding.make", fake.make)      every model is made by it from now on
"""

from __future__ import annotations

import hashlib
import threading

import numpy as np
import numpy.typing as npt
from recalld.server.config import Config
from recalld.server.embedding import EmbedderError, Model

PATIENCE_S = 60.0


class FakeEmbedder:
    """Vectors that depend on text and model alone."""

    batch_texts = 32
    batch_bytes = 16_384

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.fails: Exception | None = None
        self.refuses: set[str] = set()
        self.gate = threading.Event()  # while it is not set, embed waits in there
        self.holds: set[str] | None = None  # but only with one of these texts, if there are any
        self.gate.set()
        self.entered = threading.Semaphore(0)  # released by each call before it waits
        self.model = Model("local", "fake", 8)

    def make(self, model: Model, config: Config, closing: threading.Event) -> FakeEmbedder:
        self.model = model
        return self

    def embed(self, texts: list[str]) -> npt.NDArray[np.float32]:
        self.calls.append(texts)
        self.entered.release()
        if (self.holds is None or self.holds & set(texts)) and not self.gate.wait(PATIENCE_S):
            raise EmbedderError("the test forgot the gate")
        if self.fails is not None:
            raise self.fails
        rows = [np.full(self.model.dim, np.nan) if text in self.refuses else self.vector(text) for text in texts]
        return np.array(rows, np.float32)

    def vector(self, text: str) -> npt.NDArray[np.float32]:
        """The vector of a text."""
        seed = hashlib.sha256(f"{self.model}{text}".encode()).digest()
        row = np.random.default_rng(list(seed)).standard_normal(self.model.dim)
        return np.asarray(row / np.linalg.norm(row), np.float32)
