"""An OpenAI-compatible chat server: POST {inference-url}/chat/completions, answered by one JSON object. In threads.

    {"model", "messages", "response_format": {"type": "json_schema", "json_schema": {"name", "strict", "schema"}}}

Nothing else is sent, since servers differ in what else they take.

Rule 1: the key comes from the environment (INFERENCE_API_KEY, else OPENAI_API_KEY), goes into one header, and nowhere
        else; redirects are not followed.
Rule 2: what the server says beyond its status is not repeated; of the model's answer, what is wrong with it.
Rule 3: a request is tried again, twice at most, where that may help: no connection, 408, 429, 5xx.
"""

from __future__ import annotations

import json
import os
import threading
import time
from typing import Any

import urllib3

from . import http_post
from .config import Config
from .inference import TOO_LATE, InferenceError, refused
from .inference_schema import Refused, Schema, read

_TRIES = 3
_FIRST_PAUSE_S = 0.2
_MOST_BYTES = 1_000_000
_KEYS = ("INFERENCE_API_KEY", "OPENAI_API_KEY")


class _Passing(Exception):
    """It may work in a moment; `wait_s`: not before so many seconds."""

    def __init__(self, message: str, wait_s: float = 0.0) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Http:
    """The chat server of the settings; connects at the first question. `closing` ends the pauses between tries."""

    def __init__(self, config: Config, closing: threading.Event, connections: int) -> None:
        self._config = config
        self._closing = closing
        self._pool = urllib3.PoolManager(maxsize=connections)

    def ask(self, messages: list[dict[str, str]], schema: Schema, deadline: float) -> dict[str, Any]:
        """The model's answer, which is as the schema has it, before time.monotonic() is `deadline`; raises
        InferenceError."""
        request = {
            "model": self._config["inference-model"],
            "messages": messages,
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": schema["title"], "strict": True, "schema": schema},
            },
        }
        body, headers = json.dumps(request).encode(), _key_header()
        pause_s = _FIRST_PAUSE_S
        tries = 1
        while True:
            try:
                return _content(self._try(body, headers, deadline), schema)
            except _Passing as failed:
                wait_s = max(failed.wait_s, pause_s)
                if tries == _TRIES or time.monotonic() + wait_s >= deadline or self._closing.wait(wait_s):
                    raise InferenceError(str(failed)) from None
                pause_s *= 2
                tries += 1

    def _try(self, body: bytes, headers: dict[str, str], deadline: float) -> bytes:
        """The body of a 200."""
        url = self._config["inference-url"].rstrip("/") + "/chat/completions"
        try:
            answer = http_post.post(self._pool, url, body, headers, deadline=deadline, most=_MOST_BYTES)
        except http_post.TooLate:
            raise InferenceError(TOO_LATE) from None
        except http_post.TooLong:
            raise InferenceError(f"the inference server sent an answer of more than {_MOST_BYTES} bytes") from None
        except http_post.Unreachable as error:
            raise _Passing(f"the inference server cannot be reached at inference-url ({error})") from None
        if answer.status == 200:
            return answer.body
        message = f"the inference server answered {answer.status}{_advice(answer.status)}"
        if answer.status in http_post.PASSING:
            raise _Passing(message, answer.retry_after_s)
        raise InferenceError(message)


def _advice(status: int) -> str:
    if status == 429:
        return ": too many requests, or the quota is used up"
    if status in (401, 403):
        return f": check {_KEYS[0]} or {_KEYS[1]} in the server's environment"
    if status == 404:
        return ": check inference-url and inference-model"
    if status in (400, 413, 422):
        return ": the model may not take a json_schema, or so much text; check inference-model"
    if 300 <= status < 400:
        return ", a redirect, which is not followed: check inference-url"
    return ""


def _key_header() -> dict[str, str]:
    for name in _KEYS:
        key = os.environ.get(name, "").strip()
        if http_post.usable_key(key):
            return {"Authorization": f"Bearer {key}"}
        if key:
            raise InferenceError(f"{name} in the server's environment holds a character that no key has")
    return {}


def _content(body: bytes, schema: Schema) -> dict[str, Any]:
    """What the model said in this chat completion."""
    try:
        choice = json.loads(body)["choices"][0]
        reason, message = choice.get("finish_reason"), choice["message"]
        content, refusal = message.get("content"), message.get("refusal")
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        raise InferenceError("the inference server sent an answer that is no chat completion") from None
    if refusal:
        raise InferenceError("the model declined to answer")
    if reason == "length":
        raise refused("it was cut off at the model's limit of length")
    if not isinstance(content, str):
        raise InferenceError("the inference server sent an answer that is no chat completion")
    try:
        return read(content, schema)
    except Refused as error:
        raise refused(str(error)) from None
