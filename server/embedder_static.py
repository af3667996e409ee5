"""`static`: the mean of fixed token vectors, a hundred times as fast as `local`; no attention, so no word order.

The weights are those that the wordllama package ships (256 dimensions), read without importing it: that would load
requests and pydantic. Or a folder in model2vec's format: model.safetensors with `embeddings` (tokens, dim), perhaps
`weights` (tokens,) and `mapping` (token -> row), and tokenizer.json. All tokens of a text count.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import threading
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from .embedder import EmbedderError, Floats, need, unit_rows

_WORDLLAMA = "l2_supercat_256"
_WORDLLAMA_TOKENIZER = "l2_supercat_tokenizer_config.json"
NAME = "wordllama-l2-supercat"

_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "I64": "<i8", "I32": "<i4"}


def model(path: str) -> tuple[str, int]:
    """Name and width of the model in the folder `path`, "" for wordllama's; only the head of its file is read.

    Raises EmbedderError where it, or what it needs, is missing.
    """
    weights, _ = _files(path)
    return NAME if not path else os.path.basename(os.path.abspath(path)), _dim(weights)


@functools.cache
def _dim(weights: str) -> int:
    try:
        return int(_table(Safetensors(weights)).shape[1])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise EmbedderError(f"the model of EMBEDDER static cannot be read: {error}") from error


def _files(path: str) -> tuple[str, str]:
    """Weights and tokenizer."""
    if path:
        need("static", "tokenizers")
        return os.path.join(path, "model.safetensors"), os.path.join(path, "tokenizer.json")
    need("static", "tokenizers", "wordllama")
    found = find_spec("wordllama")
    assert found is not None and found.origin is not None
    home = os.path.dirname(found.origin)
    weights = os.path.join(home, "weights", f"{_WORDLLAMA}.safetensors")
    return weights, os.path.join(home, "tokenizers", _WORDLLAMA_TOKENIZER)


class Safetensors:
    """A file of arrays, mapped: the length of a JSON head (8 bytes, little-endian), the head, then the arrays."""

    def __init__(self, path: str) -> None:
        with open(path, "rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        length = int.from_bytes(self._map[:8], "little")
        if length > len(self._map) - 8:
            raise ValueError(f"{path} is no safetensors file")
        self._head: dict[str, Any] = json.loads(self._map[8 : 8 + length])
        self._start = 8 + length

    def get(self, name: str) -> npt.NDArray[Any] | None:
        """The array of that name, read-only; None if there is none."""
        about = self._head.get(name)
        if about is None:
            return None
        begin, end = about["data_offsets"]
        type_ = np.dtype(_TYPES[about["dtype"]])
        array = np.frombuffer(self._map, type_, (end - begin) // type_.itemsize, self._start + begin)
        return array.reshape(about["shape"])


def _table(tensors: Safetensors) -> npt.NDArray[Any]:
    for name in ("embeddings", "embedding.weight"):  # model2vec's name, wordllama's
        table = tensors.get(name)
        if table is not None and table.ndim == 2:
            return table
    raise ValueError("model.safetensors holds no embeddings")


_loading = threading.Lock()


def load(path: str) -> Static:
    """The embedder of the folder `path`, "" for wordllama's weights. Blocks, about 0.1 s, the first time."""
    with _loading:
        return _load(path)


@functools.cache
def _load(path: str) -> Static:
    weights, tokenizer = _files(path)
    from tokenizers import Tokenizer

    try:
        return Static(Tokenizer.from_file(tokenizer), Safetensors(weights))
    except Exception as error:  # tokenizers raises the bare Exception
        raise EmbedderError(f"the model of EMBEDDER static cannot be loaded: {error}") from error


class Static:
    """An embedder as embedder.py has it."""

    batch_texts = 64
    batch_bytes = 16_384

    def __init__(self, tokenizer: Any, tensors: Safetensors) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self._rows = _table(tensors)
        self._weights = tensors.get("weights")
        self._mapping = tensors.get("mapping")
        unknown = json.loads(tokenizer.to_str())["model"].get("unk_token")
        # As model2vec does: a token for all that is unknown says nothing. wordllama's tokenizer spells bytes instead.
        self._unknown = -1 if unknown is None else tokenizer.token_to_id(unknown)

    def embed(self, texts: list[str]) -> Floats:
        encoded = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return unit_rows(np.array([self._mean(np.array(one.ids, np.int64)) for one in encoded]))

    def _mean(self, ids: npt.NDArray[np.int64]) -> Floats:
        """The weighted mean of the tokens' rows, zeros where there is none."""
        ids = ids[ids != self._unknown]
        if not len(ids):
            return np.zeros(self._rows.shape[1], np.float32)
        rows = self._rows[ids if self._mapping is None else self._mapping[ids]].astype(np.float32)
        if self._weights is not None:
            rows *= self._weights[ids].astype(np.float32)[:, None]
        mean: Floats = rows.mean(axis=0)
        return mean
