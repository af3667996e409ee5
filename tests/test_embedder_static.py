"""EMBEDDER static: means of token vectors, from a folder in model2vec's format and from wordllama's weights."""

from __future__ import annotations

import json
import struct
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from recalld.server import embedder_static
from recalld.server.config import Config
from recalld.server.embedder import EmbedderError, Floats, Model, make, model_of

tokenizers = pytest.importorskip("tokenizers", reason="needs recalld[static]")

VOCAB = {"[UNK]": 0, "[CLS]": 1, "red": 2, "door": 3, "key": 4}
TABLE = np.array([[9, 9, 9], [7, 7, 7], [1, 0, 0], [0, 2, 0], [0, 0, 4]], np.float32)


def write(folder: Path, **tensors: npt.NDArray[Any]) -> Path:
    """A model of these arrays and five words; its tokenizer pads, truncates and adds [CLS]."""
    folder.mkdir()
    names = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32"}
    head: dict[str, Any] = {"__metadata__": {"format": "np"}}
    body = b""
    for name, array in tensors.items():
        end = len(body) + array.nbytes
        head[name] = {"dtype": names[array.dtype.name], "shape": array.shape, "data_offsets": [len(body), end]}
        body += array.tobytes()
    written = json.dumps(head).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(written)) + written + body)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(VOCAB, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 1)]
    )
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=16)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def config_of(path: Path | str) -> Config:
    return Config.load(None, [("embedder-static-path", [str(path)])])


def embed(folder: Path, *texts: str) -> Floats:
    config = config_of(folder)
    return make(model_of("static", "", 0, config), config, threading.Event()).embed([*texts])


def unit(*row: float) -> npt.NDArray[np.float64]:
    return np.array(row) / np.linalg.norm(row)


@pytest.mark.parametrize("kind", [np.float64, np.float32, np.float16])
def test_the_mean_of_all_tokens(tmp_path: Path, kind: Any) -> None:
    """Without special and unknown ones, whatever the tokenizer says of truncation and padding."""
    rows = embed(write(tmp_path / "words", embeddings=TABLE.astype(kind)), "red door", "red blue red key", "blue", "")
    assert rows.dtype == np.float32
    assert np.allclose(rows[0], unit(1, 2, 0), atol=1e-7)
    assert np.allclose(rows[1], unit(2, 0, 4), atol=1e-7)
    assert np.isnan(rows[2:]).all()


def test_weights_and_mapping(tmp_path: Path) -> None:
    """As newer model2vec writes: a weight per token, and a table that several tokens share."""
    folder = write(
        tmp_path / "words",
        embeddings=TABLE[2:],
        weights=np.array([1, 1, 0.5, 1, 2], np.float64),
        mapping=np.array([0, 0, 0, 1, 1], np.int64),
    )
    rows = embed(folder, "red door", "red key")
    assert np.allclose(rows, [unit(0.5, 2, 0), unit(0.5, 4, 0)], atol=1e-7)


def test_a_text_has_one_vector_whatever_it_runs_with(tmp_path: Path) -> None:
    dice = np.random.default_rng(7171)
    folder = write(tmp_path / "words", embeddings=dice.standard_normal((5, 300)).astype(np.float32))
    texts = [" ".join(dice.choice(["red", "door", "key"], dice.integers(1, 50))) for _ in range(50)]
    alone = np.concatenate([embed(folder, text) for text in texts])
    assert (embed(folder, *texts) == alone).all()


def test_model_of_a_folder(tmp_path: Path) -> None:
    """Its name is the folder's."""
    folder = write(tmp_path / "words", embeddings=TABLE)
    assert model_of("static", "", 0, config_of(f"{folder}/")) == Model("static", "words", 3)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("model.safetensors", b""),
        ("model.safetensors", b"\xff" * 100),
        ("model.safetensors", struct.pack("<Q", 2) + b"{}"),
        ("model.safetensors", struct.pack("<Q", 2) + b"[]"),
        ("model.safetensors", struct.pack("<Q", 19) + b'{"embeddings": [1]}'),
        (
            "model.safetensors",
            struct.pack("<Q", 66) + b'{"embeddings":{"dtype":"F8","shape":[1,1],"data_offsets":[0,1]}}   ',
        ),
        ("tokenizer.json", b"{}"),
        ("model.safetensors", None),
        ("tokenizer.json", None),
    ],
)
def test_a_folder_that_is_none(tmp_path: Path, name: str, content: bytes | None) -> None:
    folder = write(tmp_path / "words", embeddings=TABLE)
    if content is None:
        (folder / name).unlink()
    else:
        (folder / name).write_bytes(content)
    with pytest.raises(EmbedderError, match=r"^the model of EMBEDDER static cannot be (read|loaded): "):
        embed(folder, "red")


def test_wordllama_s_own_weights() -> None:
    """The mean of its rows for every token, as wordllama itself averages them."""
    if find_spec("wordllama") is None:  # to import it would set up logging, and take seconds
        pytest.skip("needs recalld[static]")
    config = Config.defaults()
    model = model_of("static", "", 0, config)
    assert model == Model("static", "wordllama-l2-supercat", 256)
    texts = ["the keys hang by the door", "a dog barks", "a puppy howls", "東京 🙂", "x" * 3000]
    rows = make(model, config, threading.Event()).embed(texts)
    weights, tokenizer = embedder_static._files("")
    table = embedder_static._table(embedder_static.Safetensors(weights)).astype(np.float64)
    spell = tokenizers.Tokenizer.from_file(tokenizer)
    means = [table[spell.encode(text, add_special_tokens=False).ids].mean(axis=0) for text in texts]
    assert np.allclose(rows, [unit(*mean) for mean in means], atol=1e-6)
    alike = rows @ rows.T
    assert alike[1, 2] > alike[0, 1]
