"""`openai` and `gemini`: vectors from an HTTP API, the provider's own or a server that speaks the same.

    openai   POST {embedder-openai-url}/embeddings                        {"model", "input", "encoding_format"}
    gemini   POST {embedder-gemini-url}/models/NAME:batchEmbedContents    {"requests": [{"model", "content"}]}

Rule 1: the key comes from the environment, goes into one header, and nowhere else; redirects are not followed.
Rule 2: what an answer says beyond its status is not repeated: it may quote the key or a text.
Rule 3: a request is tried again within `embedder-timeout-ms` where that may help: no connection, 408, 429, 5xx.
Rule 4: where a request is refused (400, 413, 422) and a harmless text is not, it is halved until what is left is the
        text that the provider refuses.
"""

from __future__ import annotations

import base64
import json
import math
import os
import threading
import time
from typing import Any, Protocol
from urllib.parse import quote

import numpy as np
import numpy.typing as npt
import urllib3

from .config import OPTIONS, Config
from .embedder import KEYS, EmbedderError, Floats, Model, shortened, unit_rows

_FIRST_PAUSE_S = 0.1
_HARMLESS = "text"
_PASSING = {408, 425, 429, 500, 502, 503, 504, 529}
_REFUSED = {400, 413, 422}
_CHUNK = 65_536


class _Refused(Exception):
    """The provider will not have this request."""


class _Passing(Exception):
    """It may work in a moment; `wait_s`: not before so many seconds, as the provider says."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class _Api(Protocol):
    """How one provider is asked and what its answer means. `batch_texts`: per request."""

    batch_texts: int

    def path(self, model: Model) -> str: ...
    def headers(self, key: str) -> dict[str, str]: ...
    def body(self, model: Model, texts: list[str]) -> dict[str, Any]: ...
    def vectors(self, answer: Any) -> list[Any]:
        """The vectors in the order of the texts, each base64 of float32 or a list of numbers."""


class _OpenAI:
    batch_texts = 64

    def path(self, model: Model) -> str:
        return "/embeddings"

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def body(self, model: Model, texts: list[str]) -> dict[str, Any]:
        # base64 is what OpenAI's own client asks for. Lists of numbers, which some servers send all the same, are
        # parsed ten times slower, and while json parses no other thread of the process runs.
        body = {"model": model.name, "input": texts, "encoding_format": "base64"}
        return body | ({"dimensions": model.dim} if shortened(model) else {})

    def vectors(self, answer: Any) -> list[Any]:
        data = answer["data"]
        in_order = {item.get("index", at): item["embedding"] for at, item in enumerate(data)}
        return [in_order[at] for at in range(len(data))]


class _Gemini:
    batch_texts = 32  # of at most 100: its vectors are lists of numbers, see above

    def path(self, model: Model) -> str:
        return f"/models/{quote(model.name, safe='')}:batchEmbedContents"

    def headers(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key}

    def body(self, model: Model, texts: list[str]) -> dict[str, Any]:
        # No taskType: queries and records share the cache, so the same text must have one vector.
        each: dict[str, Any] = {"model": f"models/{model.name}"}
        if shortened(model):
            each["outputDimensionality"] = model.dim
        return {"requests": [each | {"content": {"parts": [{"text": text}]}} for text in texts]}

    def vectors(self, answer: Any) -> list[Any]:
        return [item["values"] for item in answer["embeddings"]]


_APIS: dict[str, _Api] = {"openai": _OpenAI(), "gemini": _Gemini()}


def make(model: Model, config: Config, closing: threading.Event) -> Http:
    """The embedder of a model of openai or gemini; connects at the first text."""
    return Http(model, _APIS[model.embedder], config, closing)


class Http:
    """An embedder as embedder.py has it."""

    batch_bytes = 262_144  # openai takes 300,000 tokens at once

    def __init__(self, model: Model, api: _Api, config: Config, closing: threading.Event) -> None:
        self.batch_texts = api.batch_texts
        self._model = model
        self._api = api
        self._config = config
        self._closing = closing
        self._option = f"embedder-{model.embedder}-url"
        self._pool = urllib3.PoolManager(retries=False)

    def embed(self, texts: list[str]) -> Floats:
        rows = np.full((len(texts), self._model.dim), np.nan)
        # The APIs refuse blank texts, and with them all others of the request.
        self._fill(rows, texts, [at for at, text in enumerate(texts) if text.strip()], tried=False)
        return unit_rows(rows)

    def _fill(self, rows: npt.NDArray[np.float64], texts: list[str], places: list[int], tried: bool) -> None:
        """`tried`: the provider has taken a harmless text, so a refusal is a text's fault."""
        if not places:
            return
        try:
            rows[places] = self._post([texts[at] for at in places])
        except _Refused:
            if not tried:
                self._try_harmless()
            if len(places) > 1:
                middle = len(places) // 2
                self._fill(rows, texts, places[:middle], tried=True)
                self._fill(rows, texts, places[middle:], tried=True)

    def _try_harmless(self) -> None:
        try:
            self._post([_HARMLESS])
        except _Refused:
            key = KEYS[self._model.embedder]
            raise EmbedderError(
                f"{self._model.embedder} refuses every request: check {key}, MODEL, DIM and {self._option}"
            ) from None

    def _post(self, texts: list[str]) -> npt.NDArray[np.float64]:
        """Vectors of the texts, after as many tries as fit into the time. Raises _Refused, EmbedderError."""
        timeout_s = self._config["embedder-timeout-ms"] / 1000
        deadline = time.monotonic() + timeout_s
        pause_s = _FIRST_PAUSE_S
        while True:
            try:
                answer = self._request(texts, deadline)
                break
            except _Passing as failed:
                wait_s = max(failed.wait_s, pause_s)
                if time.monotonic() + wait_s >= deadline or self._closing.wait(wait_s):
                    raise EmbedderError(str(failed), int(failed.wait_s * 1000)) from None
                pause_s *= 2
        return self._parse(answer, len(texts))

    def _request(self, texts: list[str], deadline: float) -> bytes:
        """The body of a 200. Raises _Passing, _Refused, EmbedderError."""
        url = self._config[self._option].rstrip("/") + self._api.path(self._model)
        body = json.dumps(self._api.body(self._model, texts)).encode()
        # A number takes 25 characters at most; what a server sends beyond is no answer to this.
        most = 1_000_000 + len(texts) * self._model.dim * 32
        try:
            response = self._pool.request(
                "POST",
                url,
                body=body,
                headers={"Content-Type": "application/json", "User-Agent": "recalld"} | self._key_header(),
                timeout=urllib3.Timeout(total=max(0.001, deadline - time.monotonic())),
                redirect=False,
                preload_content=False,
            )
            try:
                self._check(response)
                answer = bytearray()
                # In chunks: urllib3 bounds the wait for each, and we the sum.
                while chunk := response.read1(_CHUNK):
                    answer += chunk
                    if time.monotonic() > deadline:
                        raise _Passing(self._too_late())
                    if len(answer) > most:
                        raise EmbedderError(f"{self._model.embedder} sent an answer that is too long")
                response.release_conn()
                return bytes(answer)
            finally:
                response.close()  # nothing, once it was released
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            refused = isinstance(error, urllib3.exceptions.NewConnectionError)  # urllib3 counts it as a time-out
            if isinstance(error, urllib3.exceptions.TimeoutError) and not refused:
                raise _Passing(self._too_late()) from None
            # Not the error's own words: they hold the URL, which may hold a password.
            raise _Passing(
                f"{self._model.embedder} cannot be reached at {self._option} ({type(error).__name__})"
            ) from None

    def _too_late(self) -> str:
        return f"{self._model.embedder} did not answer within embedder-timeout-ms"

    def _key_header(self) -> dict[str, str]:
        name = KEYS[self._model.embedder]
        key = os.environ.get(name, "").strip()
        if key.isascii() and key.isprintable() and " " not in key and key:
            return self._api.headers(key)
        if key:
            raise EmbedderError(f"{name} in the server's environment holds a character that no key has")
        if self._config[self._option] == OPTIONS[self._option].default:
            raise EmbedderError(f"{name} is not set in the server's environment")
        return {}

    def _check(self, response: urllib3.BaseHTTPResponse) -> None:
        status, who = response.status, self._model.embedder
        if status == 200:
            return
        if status in _REFUSED:
            raise _Refused
        message = f"{who} answered {status}"
        if status == 429:
            message += ": too many requests, or the quota is used up"
        if status in _PASSING:
            raise _Passing(message, _retry_after_s(response.headers.get("Retry-After", "")))
        if status in (401, 403):
            message += f": check {KEYS[who]}"
        elif status == 404:
            message += f": check MODEL and {self._option}"
        elif 300 <= status < 400:
            message += f", a redirect, which is not followed: check {self._option}"
        raise EmbedderError(message)

    def _parse(self, answer: bytes, count: int) -> npt.NDArray[np.float64]:
        who = self._model.embedder
        try:
            vectors = [_vector(vector) for vector in self._api.vectors(json.loads(answer))]
        except (ValueError, TypeError, LookupError, AttributeError, OverflowError, RecursionError):
            raise EmbedderError(f"{who} sent an answer that is not understood") from None
        if len(vectors) != count:
            raise EmbedderError(f"{who} sent {len(vectors)} vectors for {count} texts")
        for vector in vectors:
            if vector.shape != (self._model.dim,):
                raise EmbedderError(f"{who} sent a vector of {vector.size} dimensions, expected {self._model.dim}")
            if not np.isfinite(vector).all():
                raise EmbedderError(f"{who} sent a vector with a number that is not finite")
        return np.array(vectors)


def _vector(sent: Any) -> npt.NDArray[np.float64]:
    if isinstance(sent, str):
        return np.frombuffer(base64.b64decode(sent, validate=True), "<f4").astype(np.float64)
    numbers = np.asarray(sent, np.float64)
    if numbers.ndim != 1:
        raise ValueError("not a list of numbers")
    return numbers


def _retry_after_s(text: str) -> float:
    """Retry-After in seconds; 0 for none, and for a date, which no clock but the provider's can judge."""
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0
