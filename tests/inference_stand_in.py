"""A chat server on this machine that answers as a test tells it, well or badly, and keeps what it was asked.

    with StandIn() as model:
        model.will(says({"facts": []}))                   what it does from now on
        model.will(fails(500), hangs(), says(..))         one after the other, the last again and again
        model.asked[0].data                               what the first request's user message held
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, NamedTuple, Self

PATIENCE_S = 60.0
#: How an error begins where the model's answer is not what was asked for.
REFUSED = "ERR the model's answer was refused: "
#: What `fact` takes its quote from.
MESSAGE = "We moved to Berlin  in May,\nand Anna works at Siemens now."
QUESTION = "where does the user live?"


class Asked(NamedTuple):
    """One request."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def data(self) -> dict[str, Any]:
        """The JSON in the user's message."""
        system, user = self.body["messages"]
        assert (system["role"], user["role"]) == ("system", "user")
        found: dict[str, Any] = json.loads(user["content"])
        return found


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer leaves in one piece, or it would wait for acknowledgements
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        asked = Asked(self.path, {name.lower(): value for name, value in self.headers.items()}, json.loads(body))
        self.server.stand_in.take(asked)(self, asked)

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64
    stand_in: StandIn

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # the other side has gone, as it should


Act = Callable[[_Handler, Asked], None]


class StandIn:
    """The chat server; `url` is its base."""

    def __init__(self) -> None:
        self.asked: list[Asked] = []
        self.entered = threading.Semaphore(0)  # released by each request
        self.gate = threading.Event()  # hangs() ends with it
        self._acts: list[Act] = []
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.stand_in = self
        self.url = f"http://127.0.0.1:{self._server.server_port}/v1"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.gate.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE_S)

    def will(self, *acts: Act) -> None:
        with self._lock:
            self._acts = list(acts)

    def take(self, asked: Asked) -> Act:
        with self._lock:
            self.asked.append(asked)
            act = self._acts.pop(0) if len(self._acts) > 1 else self._acts[0]
        self.entered.release()
        return act

    def wait(self, requests: int = 1) -> None:
        """Return once so many more requests have arrived."""
        for _ in range(requests):
            assert self.entered.acquire(timeout=PATIENCE_S), "nobody asked"


# What it may do


def says(answer: Any, **message: Any) -> Act:
    """The model's answer: a string as it is, anything else as JSON."""
    return thinks(lambda asked: answer, **message)


def thinks(answer: Callable[[Asked], Any], **message: Any) -> Act:
    """The model's answer as a function of what it is asked."""

    def act(handler: _Handler, asked: Asked) -> None:
        found = answer(asked)
        content = found if isinstance(found, str) or found is None else json.dumps(found)
        handler.reply(200, completion(content, **message))

    return act


def completion(content: str | None, finish_reason: str = "stop", **message: Any) -> bytes:
    said = {"role": "assistant", "content": content} | message
    return json.dumps({"choices": [{"index": 0, "message": said, "finish_reason": finish_reason}]}).encode()


def fails(status: int, body: bytes = b"", **headers: str) -> Act:
    return lambda handler, asked: handler.reply(status, body, **headers)


def sends(body: bytes) -> Act:
    """A 200 with this body."""
    return fails(200, body)


def closes() -> Act:
    """No answer: the connection ends."""

    def act(handler: _Handler, asked: Asked) -> None:
        handler.close_connection = True

    return act


def breaks_off() -> Act:
    """Half an answer, then the connection ends."""

    def act(handler: _Handler, asked: Asked) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"choices": [')
        handler.close_connection = True

    return act


def hangs(then: Act | None = None) -> Act:
    """Nothing until the gate opens."""

    def act(handler: _Handler, asked: Asked) -> None:
        assert handler.server.stand_in.gate.wait(PATIENCE_S)
        if then is not None:
            then(handler, asked)
        handler.close_connection = then is None

    return act


def stalls() -> Act:
    """Half an answer, and nothing more until the gate opens."""

    def act(handler: _Handler, asked: Asked) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "1000")
        handler.end_headers()
        handler.wfile.write(b'{"choices": [')
        handler.wfile.flush()
        assert handler.server.stand_in.gate.wait(PATIENCE_S)
        handler.close_connection = True

    return act


def never_ends() -> Act:
    """A 200 whose body goes on for as long as the other side reads."""

    def act(handler: _Handler, asked: Asked) -> None:
        handler.close_connection = True
        handler.send_response(200)
        handler.send_header("Connection", "close")
        handler.end_headers()
        while True:
            handler.wfile.write(b"x" * 65_536)

    return act


# Facts


def fact(
    subject: str = "user",
    predicate: str = "lives in",
    object: str = "berlin",
    type: str | None = None,
    confidence: Any = 0.9,
    quote: str = "moved to Berlin in May",
    valid_at: str | None = None,
    supersedes: str | None = None,
) -> dict[str, Any]:
    """A fact as a model says it."""
    return dict(locals())


def analysed(*ids: str, restated: int = 0) -> dict[bytes, Any]:
    return {b"facts": [each.encode() for each in ids], b"stored": len(ids) - restated, b"restated": restated}


def fill(wire: Any) -> None:
    """State two facts about where somebody lives, p and b, and one about cats, c, in the memory `k`."""
    wire("MEM.FACT", "k", "user", "lived in", "paris", "ID", "p", "VALIDAT", "2020-02-02", "VALIDUNTIL", "2027-01-01")
    wire("MEM.FACT", "k", "user", "lives in", "berlin", "ID", "b", "QUOTE", "I live\nin Berlin", "CONFIDENCE", 0.9)
    wire("MEM.FACT", "k", "cats", "like", "boxes", "ID", "c")
