"""A local HTTP server in the place of OpenAI's and Gemini's embedding APIs, which also misbehaves.

    with StandIn() as provider:
        provider.openai_url, provider.gemini_url      what embedder-openai-url and embedder-gemini-url are set to
        provider.requests                             what it was asked so far
        provider.next(status(500), slow)              what it does with the next requests, instead of answering
        provider.always = status(503)                 and with all others; None: it answers
        provider.refuses = {"bad"}                    texts for which it answers 400, with all others of the request

The vector of a text is `vector(text, dim)`, whatever the model.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt

PATIENCE_S = 60.0


def vector(text: str, dim: int) -> npt.NDArray[np.float32]:
    """The stand-in's unit vector of a text."""
    row = np.random.default_rng(list(hashlib.sha256(text.encode()).digest())).standard_normal(dim)
    return np.asarray(row / np.linalg.norm(row), np.float32)


class Request(NamedTuple):
    path: str
    headers: dict[str, str]
    """By their names in lower case."""
    body: Any

    @property
    def texts(self) -> list[str]:
        if "requests" in self.body:
            return [part["content"]["parts"][0]["text"] for part in self.body["requests"]]
        return list(self.body["input"])


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        request = Request(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
        self.server.stand_in.handle(self, request)

    def reply(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    stand_in: StandIn

    def handle_error(self, request: Any, client_address: Any) -> None:
        """The peer has gone: it was told to give up."""


Act = Callable[["StandIn", Handler, Request], None]


# What it may do instead of answering.


def status(code: int, body: bytes = b"{}", **headers: str) -> Act:
    """Answer a status; `Retry_After="1"` is the header Retry-After."""
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return lambda stand_in, handler, request: handler.reply(code, body, named)


def slow(stand_in: StandIn, handler: Handler, request: Request) -> None:
    """Say nothing until the stand-in is closed."""
    stand_in.closing.wait(PATIENCE_S)
    handler.close_connection = True


def drip(stand_in: StandIn, handler: Handler, request: Request) -> None:
    """Send a byte now and then, without end."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000000")
    handler.end_headers()
    while not stand_in.closing.wait(0.01):
        handler.wfile.write(b" ")
        handler.wfile.flush()


def close(stand_in: StandIn, handler: Handler, request: Request) -> None:
    """Close the connection without an answer."""
    handler.close_connection = True
    handler.connection.close()


def cut(stand_in: StandIn, handler: Handler, request: Request) -> None:
    """Close the connection in the middle of the answer."""
    handler.send_response(200)
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"data": [')
    close(stand_in, handler, request)


def change(edit: Callable[[list[Any]], list[Any]]) -> Act:
    """Answer with the vectors as `edit` returns them; each is a list of numbers."""

    def act(stand_in: StandIn, handler: Handler, request: Request) -> None:
        vectors = edit([vector(text, stand_in.dim_of(request)).tolist() for text in request.texts])
        handler.reply(200, stand_in.answer(request, vectors))

    return act


class StandIn:
    """`dim`: the width of its models. `plain`: it sends lists of numbers whatever it is asked for."""

    def __init__(self, dim: int = 8) -> None:
        self.dim = dim
        self.plain = False
        self.requests: list[Request] = []
        self.refuses: set[str] = set()
        self.always: Act | None = None
        self.closing = threading.Event()
        self._next: deque[Act] = deque()
        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.stand_in = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def openai_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    @property
    def gemini_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1beta"

    @property
    def texts(self) -> list[list[str]]:
        """The texts of each request so far."""
        return [request.texts for request in self.requests]

    def next(self, *acts: Act) -> None:
        self._next.extend(acts)

    def handle(self, handler: Handler, request: Request) -> None:
        self.requests.append(request)
        act = self._next.popleft() if self._next else self.always
        if act is not None:
            act(self, handler, request)
        elif self.refuses & set(request.texts):
            # As providers do, quoting what they were sent.
            handler.reply(400, json.dumps({"error": {"message": f"bad input {request.texts}"}}).encode())
        else:
            vectors = [vector(text, self.dim_of(request)) for text in request.texts]
            base64_asked = request.body.get("encoding_format") == "base64" and not self.plain
            sent = [
                base64.b64encode(row.astype("<f4").tobytes()).decode() if base64_asked else row.tolist()
                for row in vectors
            ]
            handler.reply(200, self.answer(request, sent))

    def dim_of(self, request: Request) -> int:
        first = request.body["requests"][0] if "requests" in request.body else request.body
        dim: int = first.get("dimensions") or first.get("outputDimensionality") or self.dim
        return dim

    def answer(self, request: Request, vectors: list[Any]) -> bytes:
        """The body that carries these vectors; openai's in reverse, as `index` says where each belongs."""
        if "requests" in request.body:
            return json.dumps({"embeddings": [{"values": row} for row in vectors]}).encode()
        data = [{"object": "embedding", "index": at, "embedding": row} for at, row in enumerate(vectors)]
        return json.dumps({"object": "list", "data": data[::-1], "model": request.body["model"]}).encode()
