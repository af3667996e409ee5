"""openai and gemini against a stand-in: what is sent, what is made of the answers, and providers that misbehave.

A server that never answers is met with a time limit of a few milliseconds; no other test comes near its own.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from harness import Clock
from recalld.server import embedder_http
from recalld.server.config import Config
from recalld.server.embedder import EmbedderError, Floats, Model, make
from recalld.server.embedding import Embedding
from stand_in import Act, StandIn, change, close, cut, drip, slow, status, vector

KEY = "sk-very-secret-0123456789"
TEXT = "the text of a client"
PROVIDERS = ("openai", "gemini")
KEYS = {"openai": "OPENAI_API_KEY", "gemini": "GEMINI_API_KEY"}


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in KEYS.values():
        monkeypatch.setenv(name, KEY)


@pytest.fixture
def provider() -> Iterator[StandIn]:
    with StandIn() as provider:
        yield provider


def embedder(
    provider: StandIn, name: str = "openai", model: str = "a-model", dim: int = 8, timeout_ms: int = 60_000
) -> embedder_http.Http:
    options = [
        ("embedder-openai-url", [provider.openai_url]),
        ("embedder-gemini-url", [provider.gemini_url + "/"]),
        ("embedder-timeout-ms", [str(timeout_ms)]),
    ]
    made = make(Model(name, model, dim), Config.load(None, options), threading.Event())
    assert isinstance(made, embedder_http.Http)
    return made


def expected(*texts: str, dim: int = 8) -> Floats:
    return np.array([vector(text, dim) for text in texts])


def fails(embedder: embedder_http.Http, *texts: str) -> str:
    """The message of the failure; it never holds the key or a text."""
    with pytest.raises(EmbedderError) as caught:
        embedder.embed([*texts] or [TEXT])
    message = str(caught.value)
    for secret in (KEY, TEXT, "secret"):
        assert secret not in message
        assert secret not in repr(caught.value)
    assert caught.value.__cause__ is None
    return message


# What is asked


def test_openai_is_asked_as_its_api_says(provider: StandIn) -> None:
    assert np.allclose(embedder(provider).embed(["a", "b"]), expected("a", "b"), atol=1e-7)
    [request] = provider.requests
    assert request.path == "/v1/embeddings"
    assert request.body == {"model": "a-model", "input": ["a", "b"], "encoding_format": "base64"}
    assert request.headers["authorization"] == f"Bearer {KEY}"
    assert request.headers["content-type"] == "application/json"


def test_gemini_is_asked_as_its_api_says(provider: StandIn) -> None:
    """A model's name is no way to another path."""
    assert np.allclose(embedder(provider, "gemini", "a/../m?x").embed(["a", "b"]), expected("a", "b"), atol=1e-7)
    [request] = provider.requests
    assert request.path == "/v1beta/models/a%2F..%2Fm%3Fx:batchEmbedContents"
    assert request.body == {
        "requests": [{"model": "models/a/../m?x", "content": {"parts": [{"text": text}]}} for text in "ab"]
    }
    assert request.headers["x-goog-api-key"] == KEY
    assert "authorization" not in request.headers


@pytest.mark.parametrize(
    ("name", "model", "dim", "parameter", "sent"),
    [
        ("openai", "text-embedding-3-small", 256, "dimensions", 256),
        ("openai", "text-embedding-3-small", 1536, "dimensions", None),
        ("openai", "a-model", 256, "dimensions", None),
        ("gemini", "gemini-embedding-001", 768, "outputDimensionality", 768),
        ("gemini", "gemini-embedding-001", 3072, "outputDimensionality", None),
    ],
)
def test_fewer_dimensions_are_asked_for(name: str, model: str, dim: int, parameter: str, sent: int | None) -> None:
    """Only of a model that is known to have more."""
    with StandIn(dim) as provider:
        rows = embedder(provider, name, model, dim).embed(["a"])
        body = provider.requests[0].body
        assert body.get("requests", [body])[0].get(parameter) == sent
        assert rows.shape == (1, dim)


@pytest.mark.parametrize("name", PROVIDERS)
def test_vectors_get_unit_length(provider: StandIn, name: str) -> None:
    """Gemini shortens without scaling; and zeros point nowhere."""
    provider.next(change(lambda rows: [[3 * x for x in rows[0]], [0.0] * 8]))
    rows = embedder(provider, name).embed(["a", "b"])
    assert np.allclose(rows[0], vector("a", 8), atol=1e-7)
    assert np.isnan(rows[1]).all()


@pytest.mark.parametrize("name", PROVIDERS)
def test_blank_texts_are_not_sent(provider: StandIn, name: str) -> None:
    rows = embedder(provider, name).embed(["", "a", " \n\t"])
    assert np.isnan(rows[[0, 2]]).all()
    assert np.allclose(rows[1], vector("a", 8), atol=1e-7)
    assert np.isnan(embedder(provider, name).embed([""])).all()
    assert provider.texts == [["a"]]


def test_lists_of_numbers_will_do(provider: StandIn) -> None:
    """Servers that do not know base64 send them whatever they are asked for."""
    provider.plain = True
    assert np.allclose(embedder(provider).embed(["a", "b"]), expected("a", "b"), atol=1e-7)


# The key


def test_another_server_may_need_no_key(provider: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY")
    embedder(provider).embed(["a"])
    assert "authorization" not in provider.requests[0].headers


@pytest.mark.parametrize("name", PROVIDERS)
def test_the_provider_itself_needs_one(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Nothing is sent without."""
    monkeypatch.setenv(KEYS[name], " ")
    bare = make(Model(name, "a-model", 8), Config.defaults(), threading.Event())
    with pytest.raises(EmbedderError, match=f"^{KEYS[name]} is not set in the server's environment$"):
        bare.embed(["a"])


@pytest.mark.parametrize("key", [f"{KEY}\nX-Evil: 1", f"{KEY} {KEY}", f"{KEY}ü", f"{KEY}\x00x"])
def test_a_key_that_is_none(provider: StandIn, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """http.client would quote it in its error."""
    if "\x00" in key:
        monkeypatch.setattr("os.environ", {"OPENAI_API_KEY": key})
    else:
        monkeypatch.setenv("OPENAI_API_KEY", key)
    assert fails(embedder(provider)) == "OPENAI_API_KEY in the server's environment holds a character that no key has"
    assert provider.requests == []


@pytest.mark.parametrize("name", PROVIDERS)
def test_key_and_text_stay_out_of_log_and_repr(provider: StandIn, caplog: pytest.LogCaptureFixture, name: str) -> None:
    """At every level, of every logger."""
    caplog.set_level(logging.DEBUG)
    made = embedder(provider, name)
    made.embed([TEXT])
    provider.always = status(401, f"bad key {KEY} for {TEXT}".encode())
    fails(made)
    assert KEY not in caplog.text + repr(made) + str(vars(made))
    assert TEXT not in caplog.text


# Refused texts


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_refused_text_takes_no_other_down(provider: StandIn, name: str) -> None:
    """The request is halved until only it is left; first a harmless text shows that it is not the request itself."""
    texts = [str(number) for number in range(9)]
    provider.refuses = {"2", "3"}
    rows = embedder(provider, name).embed(texts)
    assert np.isnan(rows[[2, 3]]).all()
    good = [0, 1, 4, 5, 6, 7, 8]
    assert np.allclose(rows[good], expected(*(texts[at] for at in good)), atol=1e-7)
    assert provider.texts == [
        texts,
        ["text"],
        ["0", "1", "2", "3"],
        ["0", "1"],
        ["2", "3"],
        ["2"],
        ["3"],
        ["4", "5", "6", "7", "8"],
    ]


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_provider_that_refuses_everything_has_failed(provider: StandIn, name: str) -> None:
    """A wrong model or width is no text's fault: found by one more request, not by one per text."""
    provider.always = status(400)
    assert fails(embedder(provider, name), *"abcdefgh").startswith(
        f"{name} refuses every request: check {KEYS[name]}, MODEL, DIM and embedder-{name}-url"
    )
    assert len(provider.requests) == 2


# Tries


@pytest.mark.parametrize("act", [status(429), status(500), status(502), status(503), status(529), close, cut])
@pytest.mark.parametrize("name", PROVIDERS)
def test_what_may_pass_is_tried_again(provider: StandIn, monkeypatch: pytest.MonkeyPatch, name: str, act: Act) -> None:
    monkeypatch.setattr(embedder_http, "_FIRST_PAUSE_S", 0.001)
    provider.next(act, act)
    assert np.allclose(embedder(provider, name).embed(["a"]), expected("a"), atol=1e-7)
    assert provider.texts == [["a"]] * 3


class Pauses(threading.Event):
    """Notes how long it is waited for, and does not wait."""

    def __init__(self) -> None:
        super().__init__()
        self.pauses_s: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        assert timeout is not None
        self.pauses_s.append(timeout)
        return False


def test_pauses_grow_and_heed_the_provider(provider: StandIn) -> None:
    made = embedder(provider)
    made._closing = pauses = Pauses()
    provider.next(status(500), status(429, Retry_After="7"), status(429, Retry_After="soon"), status(503))
    made.embed(["a"])
    assert pauses.pauses_s == [0.1, 7.0, 0.4, 0.8]


def test_a_pause_longer_than_the_limit_is_left_to_the_caller(provider: StandIn) -> None:
    """At once: the queue tries again when the provider says so."""
    provider.next(status(429, Retry_After="61"))
    with pytest.raises(EmbedderError) as caught:
        embedder(provider).embed(["a"])
    assert str(caught.value) == "openai answered 429: too many requests, or the quota is used up"
    assert caught.value.retry_ms == 61_000
    assert len(provider.requests) == 1


def test_a_server_that_stops_does_not_wait(provider: StandIn) -> None:
    made = embedder(provider)
    made._closing.set()
    provider.always = status(500)
    assert fails(made) == "openai answered 500"


@pytest.mark.parametrize("act", [slow, drip])
@pytest.mark.parametrize("name", PROVIDERS)
def test_a_provider_that_is_slow_has_failed(provider: StandIn, name: str, act: Act) -> None:
    provider.always = act
    message = fails(embedder(provider, name, timeout_ms=50))
    assert message == f"{name} did not answer within embedder-timeout-ms"


@pytest.mark.parametrize("name", PROVIDERS)
def test_a_provider_that_is_not_there(provider: StandIn, name: str) -> None:
    with StandIn() as gone:
        made = embedder(gone, name, timeout_ms=50)
    assert fails(made).startswith(f"{name} cannot be reached at embedder-{name}-url (")


@pytest.mark.parametrize("url", ["http://", "ftp://127.0.0.1", "http://user:secret@[", "http://127.0.0.1:99999"])
def test_a_url_that_is_none(url: str) -> None:
    """It may hold a password, so it is not repeated."""
    options = [("embedder-openai-url", [url]), ("embedder-timeout-ms", ["50"])]
    made = embedder_http.make(Model("openai", "m", 8), Config.load(None, options), threading.Event())
    assert fails(made).startswith("openai cannot be reached at embedder-openai-url (")


# Answers that are none


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (401, "answered 401: check KEY"),
        (403, "answered 403: check KEY"),
        (404, "answered 404: check MODEL and URL"),
        (302, "answered 302, a redirect, which is not followed: check URL"),
        (418, "answered 418"),
        (204, "answered 204"),
    ],
)
@pytest.mark.parametrize("name", PROVIDERS)
def test_what_will_not_pass_is_not_tried_again(provider: StandIn, name: str, code: int, message: str) -> None:
    location = provider.openai_url + "/elsewhere"
    provider.always = status(code, f"{KEY} {TEXT}".encode() if code != 204 else b"", Location=location)
    wanted = message.replace("KEY", KEYS[name]).replace("URL", f"embedder-{name}-url")
    assert fails(embedder(provider, name)) == f"{name} {wanted}"
    assert len(provider.requests) == 1


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"null",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b'{"data": 1, "embeddings": 1}',
        b'{"data": [1], "embeddings": [1]}',
        b'{"data": [{"index": 7, "embedding": [1]}], "embeddings": [{"value": [1]}]}',
        b'{"data": [{"embedding": "no base64!"}], "embeddings": [{"values": "no base64!"}]}',
        b'{"data": [{"embedding": ["a"]}], "embeddings": [{"values": ["a"]}]}',
        b'{"data": [{"embedding": [[1], [1, 2]]}], "embeddings": [{"values": [[1], [1, 2]]}]}',
        b'{"data": [{"embedding": {}}], "embeddings": [{"values": {}}]}',
        b'{"data": [{"embedding": [1' + b"0" * 400 + b']}], "embeddings": [{"values": [1' + b"0" * 400 + b"]}]}",
    ],
)
@pytest.mark.parametrize("name", PROVIDERS)
def test_an_answer_that_is_not_understood(provider: StandIn, name: str, body: bytes) -> None:
    provider.always = status(200, body)
    assert fails(embedder(provider, name)) == f"{name} sent an answer that is not understood"
    assert len(provider.requests) == 1


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda rows: rows[:1], "sent 1 vectors for 2 texts"),
        (lambda rows: [*rows, rows[0]], "sent 3 vectors for 2 texts"),
        (lambda rows: [], "sent 0 vectors for 2 texts"),
        (lambda rows: [rows[0], rows[1][:7]], "sent a vector of 7 dimensions, expected 8"),
        (lambda rows: [rows[0], [*rows[1], 0.5]], "sent a vector of 9 dimensions, expected 8"),
        (lambda rows: [[rows[0]], rows[1]], "sent an answer that is not understood"),
        (lambda rows: [rows[0], [float("nan"), *rows[1][1:]]], "sent a vector with a number that is not finite"),
        (lambda rows: [rows[0], [float("inf"), *rows[1][1:]]], "sent a vector with a number that is not finite"),
        (lambda rows: [rows[0], [None, *rows[1][1:]]], "sent a vector with a number that is not finite"),
    ],
)
@pytest.mark.parametrize("name", PROVIDERS)
def test_vectors_that_are_none(
    provider: StandIn, name: str, edit: Callable[[list[Any]], list[Any]], message: str
) -> None:
    """One is enough to take none of them: who mixes one up may have mixed up all."""
    provider.always = change(edit)
    assert fails(embedder(provider, name), "a", "b") == f"{name} {message}"


def test_an_answer_without_end(provider: StandIn) -> None:
    provider.always = status(200, b" " * 2_000_000)
    assert fails(embedder(provider)) == "openai sent an answer that is too long"


def test_after_a_failure_the_next_text_is_embedded(provider: StandIn) -> None:
    """Whatever state a connection was left in."""
    made = embedder(provider)
    for act in (status(401), status(200, b"{"), status(200, b" " * 2_000_000), status(400)):
        provider.always = act
        fails(made)
        provider.always = None
        assert np.allclose(made.embed(["a"]), expected("a"), atol=1e-7)


def test_a_provider_goes_and_comes_back(provider: StandIn) -> None:
    """Through the queue: nobody fails, nobody waits while it is away, and it is asked again by itself."""
    model, clock = Model("openai", "a-model", 8), Clock()
    config = Config.load(None, [("embedder-openai-url", [provider.openai_url])])

    async def test() -> None:
        embedding = Embedding(config, asyncio.get_running_loop(), None, clock)

        async def ask(*texts: str) -> list[bytes | None]:
            asked = embedding.ask(model, [text.encode() for text in texts], keep=True)
            return asked if isinstance(asked, list) else await asked

        # The vector arrives with the bits that were sent, or one bit beside them: it is made of unit length again.
        [first] = await ask("first")
        assert first is not None
        assert np.allclose(np.frombuffer(first, "<f4"), vector("first", 8), atol=1e-7)
        provider.always = status(403)
        assert await ask("first", "second") == [first, None]
        assert not embedding.is_up(model)
        assert embedding.last_error(model) == "openai answered 403: check OPENAI_API_KEY"
        asked = len(provider.requests)
        assert await ask("third") == [None]
        assert len(provider.requests) == asked
        provider.always = None
        clock.advance(5_000)
        assert embedding.is_up(model)
        [second, third] = await ask("second", "third")
        assert second is not None and third is not None
        assert provider.texts[-1] == ["second", "third"]
        await embedding.close()

    asyncio.run(test())
