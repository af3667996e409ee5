"""The settings of one memory, as MEM.CREATE fixes and MEM.CONFIG changes them."""

from __future__ import annotations

from dataclasses import dataclass

MODES = ("SEARCH", "VECTOR", "HYBRID")
METRICS = ("COSINE", "L2", "IP")
FUSIONS = ("LINEAR", "RRF")
EMBEDDERS = ("local", "static", "openai", "gemini", "auto")
MODEL_NAME_MAX = 256
#: The most dimensions that `mem-max-dim` can allow.
DIM_MAX = 65536

#: `Settings.history`: nothing is ever dropped.
ALL = -1
_SHARED_MAX = 1024
_SHARED: dict[str, Settings] = {}

#: keyword, vector, recency, importance
Weights = tuple[float, float, float, float]


@dataclass(slots=True, frozen=True)
class Settings:
    """One memory's settings. `half_life` in seconds; `dim` is 0 in SEARCH mode; `lang` is lower-case."""

    mode: str = "HYBRID"
    dim: int = 0
    metric: str = "COSINE"
    weights: Weights = (0.35, 0.50, 0.10, 0.05)
    half_life: int = 604800
    fusion: str = "LINEAR"
    lang: str = "english"
    k1: float = 0.9
    b: float = 0.4
    history: int = 0  # how many seconds replaced and deleted versions are held; ALL: for ever
    embedder: str = ""  # who makes vectors of texts, "" for nobody
    model: str = ""  # whose vectors the memory holds, "" where nobody said
    tagboost: float = 0.0  # what each tag that a query names adds to a record's BM25
    next_embedder: str = ""  # a change of model is under way: whose vectors come next, and how wide they are
    next_model: str = ""
    next_dim: int = 0
    owner: str = ""  # the user who created the memory
    max_records: int = 0  # how many records it holds at most, and how many bytes of them (retention.py); 0: any
    max_bytes: int = 0

    def __post_init__(self) -> None:
        # Never -0.0: it equals 0.0 and is written otherwise.
        object.__setattr__(self, "weights", tuple(weight + 0.0 for weight in self.weights))
        for name in ("k1", "b"):
            object.__setattr__(self, name, getattr(self, name) + 0.0)

    def shared(self) -> Settings:
        """These settings, as one object for all memories that have them."""
        name = repr(self)
        found = _SHARED.get(name)
        if found is None:
            if len(_SHARED) >= _SHARED_MAX:
                _SHARED.clear()
            found = _SHARED[name] = self
        return found

    @property
    def embeds(self) -> bool:
        """Whether somebody makes vectors of texts that come without one, or will."""
        return bool(self.embedder) or self.is_switching

    @property
    def is_switching(self) -> bool:
        """Whether a change of model is under way."""
        return self.next_dim > 0

    @property
    def has_limit(self) -> bool:
        """Whether records are evicted."""
        return self.max_records > 0 or self.max_bytes > 0

    @property
    def has_text(self) -> bool:
        """Whether texts are indexed by their words."""
        return self.mode != "VECTOR"

    @property
    def has_vectors(self) -> bool:
        return self.mode != "SEARCH"
