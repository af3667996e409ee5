"""The console: web pages for people on `console-port`, in the server's process and on its loop.

    console.py            this: the HTTP server, who may come in, what every answer has
    console_client.py     commands, as a client gives them
    console_session.py    logins
    console_memories.py   memories, records, queries        console_facts.py    facts, entities
    console_status.py     charts, slow log, audit, events   console_page.py     templates and what they need
    console_svg.py        drawings                          console_samples.py  numbers over time

Rule 1: a page is made by commands of the user who is logged in (`Insider`); it sees and does what they may.
Rule 2: GET changes nothing. POST needs the session's own token in the form, and comes from our own pages.
Rule 3: everything is served from here, nothing from elsewhere, and no script is in a page.
Rule 4: templates are filled in a thread: a long page holds up nobody.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.flow_control import CLOSE_HEADER, FlowControl
from uvicorn.protocols.http.h11_impl import H11Protocol

from . import console_facts, console_memories, console_status
from .config import host_of
from .console_client import Insider, Refused
from .console_page import Form, Page, TooLarge, address, asset, page, query_of
from .console_samples import Samples
from .console_session import Attempts, Sessions, authenticate

if TYPE_CHECKING:
    from .server import Server

log = logging.getLogger("recalld")

_MOST_CONNECTIONS = 128
_PATIENCE_S = 20
# Who sends a body for longer than this, and more slowly than so many bytes a second, or takes nothing of an answer for
# so long, does not hold the place against one who comes anew.
_BODY_S, _BODY_RATE = 1, 4096
# Of a form that a stranger may send.
_LOGIN_BYTES = 16 << 10
# So much is taken of a connection in a turn of the loop: of a body in one-byte chunks that is a millisecond.
_TURN_BYTES = 1 << 10
# So much may come behind an answer that did not wait for all of the body.
_BEHIND_BYTES = 8 << 20
# In a request's scope: uvicorn's side of it, which knows how much has come.
_CYCLE = "recalld.cycle"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_SECURITY = (
    (
        b"content-security-policy",
        b"default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    # Not no-referrer: with that a browser says `Origin: null` of our own forms.
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
)
_Handler = Callable[[Page], Awaitable[Response]]


class _Http(uvicorn.Server):
    """uvicorn, which here is a part of a server and leaves its signals alone."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Connection(H11Protocol):
    """One connection, which asks something and takes of the answer within _PATIENCE_S or is closed; at most
    _MOST_CONNECTIONS. One more takes the place of that which for longest has asked nothing, or has sent the body of
    what it asks, or taken the answer, too slowly.

    What it sends is taken by and by, for h11 makes an event of every chunk. An answer that did not wait for the whole
    body is the last one, and says so: what still comes is dropped, since who is still sending would not read of a
    connection reset.
    """

    _done: object = None  # the request that was answered last
    _left = 0  # bytes that the browser did not take
    # When it came, was last answered, began to ask, or stopped to take the answer. Not the loop's time: that is one for
    # a whole turn.
    _since = 0.0
    _body_bytes = 0  # of what is asked, its head not counted
    _may_drop = 0  # bytes, once what comes is dropped

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._sent = bytearray()  # and not yet taken
        self._takes = False  # in the next turn
        self.flow = FlowControl(self)  # type: ignore[arg-type]  # for its two methods below
        self._of_cycle = SimpleNamespace(
            write=transport.write, is_closing=transport.is_closing, close=self._close_after_answer
        )
        if len(self.connections) > _MOST_CONNECTIONS:
            others = [each for each in self.connections if isinstance(each, _Connection) and each is not self]
            idle = [each for each in others if each.is_idle or each.is_stalled]
            if not idle:
                transport.abort()
                return
            longest = min(idle, key=lambda each: each._since)
            self.connections.discard(longest)  # now: its end is told in a later turn of the loop
            longest.transport.abort()
        self._since = time.monotonic()
        self.loop.call_later(_PATIENCE_S, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        self._sent.clear()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._may_drop:
            self._may_drop -= len(data)
            if self._may_drop <= 0:
                self.transport.abort()
            return
        self._sent += data
        self._go_on()

    def pause_reading(self) -> None:
        """For h11: it has a request, or a part of a body, that is to be looked at first."""

    def resume_reading(self) -> None:
        self._go_on()

    def pause_writing(self) -> None:
        self._since = time.monotonic()
        super().pause_writing()

    def handle_events(self) -> None:
        before = self.cycle
        super().handle_events()
        if self.cycle is not None and self.cycle is not before:  # it begins in the next turn
            self._since, self._body_bytes = time.monotonic(), 0
            self.cycle.transport = self._of_cycle  # type: ignore[assignment]
            self.cycle.scope[_CYCLE] = self.cycle  # type: ignore[literal-required]

    def _close_after_answer(self) -> None:
        """What uvicorn does behind an answer that is the last one: not yet, where more of a body may come."""
        if not (self.cycle.response_complete and self.cycle.more_body):
            self.transport.close()

    def _go_on(self) -> None:
        """Take what was sent, in turns of the loop, or read more."""
        if self.transport.is_closing():
            return
        if self._sent or self.flow.read_paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()
        if self._sent and not self._takes:
            self._takes = True
            self.loop.call_soon(self._take)

    def _take(self) -> None:
        self._takes = False
        if not self.flow.read_paused and not self.transport.is_closing():
            piece = bytes(self._sent[:_TURN_BYTES])
            del self._sent[:_TURN_BYTES]
            if piece:
                self._body_bytes += len(piece)
                super().data_received(piece)
            self._go_on()

    @property
    def is_idle(self) -> bool:
        """Whether it has no request that waits for its answer."""
        return self.cycle is None or self.cycle.response_complete

    @property
    def is_stalled(self) -> bool:
        """Whether its request waits for a body that comes slowly, or its answer for somebody who takes it.

        All that we take a body of is a POST, and it is not looked at before all of the body is there.
        """
        seconds = time.monotonic() - self._since
        if self.is_idle or seconds < _BODY_S:
            return False
        if self.flow.write_paused:
            return True
        if self.cycle.response_started or not self.cycle.more_body or self.cycle.scope["method"] != "POST":
            return False
        return not (self._sent or self.flow.read_paused) and self._body_bytes <= _BODY_RATE * seconds

    def on_response_complete(self) -> None:
        self._since = time.monotonic()
        if self.cycle is not None and self.cycle.more_body and not self.transport.is_closing():
            self._may_drop = _BEHIND_BYTES
            self._sent.clear()
            self.transport.write_eof()
        super().on_response_complete()
        self._go_on()

    def _look(self) -> None:
        if self.transport.is_closing():
            return
        left = self.transport.get_write_buffer_size()
        # Since the last look, at the first ever: it took nothing, or had all and asked nothing.
        if left == self._left if left else self.is_idle and self.cycle is self._done:
            self.transport.abort()
            return
        self._done, self._left = self.cycle if self.is_idle else None, left
        self.loop.call_later(_PATIENCE_S, self._look)


class Console:
    """The console of one server."""

    def __init__(self, server: Server) -> None:
        self.server = server
        # Browsers keep one cookie of a name for all ports of a host.
        self.cookie = f"recalld_{server.config['console-port']}"
        self.sessions = Sessions(server)
        self.attempts = Attempts()
        self.samples = Samples(server)
        self.closing = False
        self.streams: set[Insider] = set()
        self.ports: list[tuple[str, int]] = []
        self._tasks: list[asyncio.Task[None]] = []
        routes = [
            Route("/login", self._login, methods=["GET", "POST"]),
            Route("/console.css", asset("console.css", "text/css; charset=utf-8")),
            Route("/console.js", asset("console.js", "text/javascript; charset=utf-8")),
            Route("/favicon.ico", asset("console.svg", "image/svg+xml")),
            self._route("/logout", self._logout, "POST"),
        ]
        for module in (console_memories, console_facts, console_status):
            routes += [self._route(path, handler, *methods) for path, handler, methods in module.ROUTES]
        handlers = {404: _missing, 405: _wrong_method, 500: _failed}
        self.app = _Guarded(self, Starlette(routes=routes, exception_handlers=handlers))
        self._http = _Http(
            uvicorn.Config(
                self.app,
                http=_Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=15,
                timeout_graceful_shutdown=2,
            )
        )
        logging.getLogger("uvicorn.error").setLevel(logging.ERROR)

    # -- life

    async def start(self) -> None:
        """Listen; raises OSError."""
        config = self.server.config
        port, sockets = config["console-port"], []
        for host in config["console-bind"]:
            optional = host.startswith("-")
            try:
                sockets.append(_listen(host_of(host), port))
            except OSError as error:
                if not optional:
                    for listener in sockets:
                        listener.close()
                    raise
                log.info("No console on %s: %s", host[optional:], error)
        self.ports = [listener.getsockname()[:2] for listener in sockets]
        create = self.server.loop.create_task
        self._tasks = [
            create(self._http.serve(sockets)),
            create(self.samples.run()),
            create(self.samples.measure()),
        ]
        for host, port in self.ports:
            shown = f"[{host}]" if ":" in host else host
            log.warning("Ready to serve the console on http://%s:%d/", shown, port)

    async def close(self) -> None:
        """End all streams, let answers leave, and stop."""
        self.closing = True
        for stream in self.streams:
            stream.wake()
        self._http.should_exit = True
        if self._tasks:
            for task in self._tasks[1:]:
                task.cancel()
            await asyncio.wait(self._tasks, timeout=4)

    # -- who may come in

    def refusal(self, request: Request) -> str | None:
        """Why the request is not looked at: it is not for us, or from a page that is not ours, or from afar."""
        host = request.headers.get("host", "")
        peer = address(request)
        near = peer in _LOOPBACK or peer.startswith(("127.", "::ffff:127."))
        names = (*_LOOPBACK, self.server.config["console-host"].lower())
        if (near or self._is_local) and (not host or _name_of(host) not in names):
            # A page whose name was made to point here would otherwise be able to talk to us, from a browser that
            # protected-mode takes for this machine.
            return (
                "From this machine the console answers only under the names localhost, 127.0.0.1, [::1] and that of"
                " console-host."
            )
        if request.method == "POST":
            origin = request.headers.get("origin")
            foreign = request.headers.get("sec-fetch-site", "same-origin") != "same-origin"
            if foreign or (origin is not None and origin.partition("://")[2] != host):
                return "The form came from another page."
        if self.server.config["protected-mode"] and self.server.acl.default.nopass and not near:
            return "recalld is in protected mode: set a password (requirepass) or turn protected-mode off."
        return None

    @property
    def _is_local(self) -> bool:
        return all(host in _LOOPBACK or host.startswith("127.") for host, _ in self.ports)

    def _route(self, path: str, handler: _Handler, *methods: str) -> Route:
        """A page for those who are logged in."""

        async def answer(request: Request) -> Response:
            token = request.cookies.get(self.cookie, "")
            session = self.sessions.find(token)
            if session is None:
                if request.method == "POST":
                    return await page(request, "message.html", 403, title="Logged out", text="Log in and try again.")
                return RedirectResponse("/login?next=" + _quoted_path(request), 303)
            try:
                form = await Form.read(request) if request.method == "POST" else Form.of_query(request)
            except TooLarge:
                return await page(request, "message.html", 413, title="Too large", text="The form is too large.")
            if request.method == "POST" and not form.has_token(session.csrf):
                text = "The form is out of date. Go back, reload the page, and send it again."
                return await page(request, "message.html", 403, title="Not done", text=text)
            insider = Insider(self.server, f"{address(request)}:0", session.account)
            try:
                return await handler(Page(self, request, session, token, form, insider))
            except Refused as error:
                status = 403 if error.code == "NOPERM" else 503 if error.code in ("OOM", "MISCONF", "LOADING") else 400
                title = "Not allowed" if status == 403 else "The server refused"
                return await page(request, "message.html", status, session, title=title, text=str(error))
            finally:
                insider.close()

        return Route(path, answer, methods=list(methods))

    async def _login(self, request: Request) -> Response:
        try:
            form = await Form.read(request, _LOGIN_BYTES) if request.method == "POST" else Form.of_query(request)
        except TooLarge:
            return PlainTextResponse("The form is too large.\n", 413)
        if request.method != "POST":
            if self.sessions.find(request.cookies.get(self.cookie, "")) is not None:
                return RedirectResponse("/", 303)
            return await page(request, "login.html", next=_local(form.text("next")), user="default", error="")
        peer, now = address(request), self.server.clock()
        user, target = form.text("user"), _local(form.text("next"))
        wait_s = self.attempts.wait_s(peer, now)
        if wait_s:
            error = f"Too many wrong passwords. Try again in {wait_s} seconds."
            answer = await page(request, "login.html", 429, next=target, user=user, error=error)
            answer.headers["retry-after"] = str(wait_s)
            return answer
        known = authenticate(self.server, user, form.text("password"), f"{peer}:0")
        if known is None:
            self.attempts.failed(peer, now)
            log.warning("Console: a login from %s failed", peer)
            error = "Wrong user or password."
            return await page(request, "login.html", 403, next=target, user=user, error=error)
        self.sessions.end(request.cookies.get(self.cookie, ""))
        forward = RedirectResponse(target, 303)
        # Behind a proxy with HTTPS the cookie is for HTTPS alone.
        secure = request.headers.get("origin", "").startswith("https://")
        token = self.sessions.open(known)
        forward.set_cookie(self.cookie, token, httponly=True, samesite="strict", path="/", secure=secure)
        return forward

    async def _logout(self, page: Page) -> Response:
        self.sessions.end(page.token)
        answer = RedirectResponse("/login", 303)
        answer.delete_cookie(self.cookie, path="/")
        return answer


class _Guarded:
    """What stands before all pages: the checks that need no session, and the headers of every answer."""

    def __init__(self, console: Console, app: ASGIApp) -> None:
        self._console = console
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return

        async def with_headers(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                headers = message["headers"]
                assert isinstance(headers, list)
                headers += _SECURITY
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                if _CYCLE in scope and scope[_CYCLE].more_body:
                    headers.append(CLOSE_HEADER)
            await send(message)

        reason = self._console.refusal(Request(scope))
        app: ASGIApp = self._app if reason is None else PlainTextResponse(reason + "\n", 403)
        try:
            await app(scope, receive, with_headers)  # type: ignore[arg-type]
        except Exception:  # Starlette has answered with 500 already
            log.exception("the console failed at %s", scope["path"])


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return socket.create_server((host, port), family=family)


def _name_of(host: str) -> str:
    """The name in a Host header, without its port and brackets."""
    name, _, port = host.rpartition(":")
    return (name if name and port.isdigit() else host).strip("[]").lower()


def _quoted_path(request: Request) -> str:
    query = query_of(request)
    return quote(request.scope["path"] + (f"?{query}" if query else ""), safe="")


def _local(target: str) -> str:
    """Where to go after the login: a page of ours, nowhere else."""
    good = target.startswith("/") and not target.startswith(("//", "/\\")) and target.isprintable()
    return target if good and "\\" not in target else "/"


async def _missing(request: Request, error: Exception) -> Response:
    return await page(request, "message.html", 404, title="Not found", text="There is no such page.")


async def _wrong_method(request: Request, error: Exception) -> Response:
    return PlainTextResponse("Method not allowed.\n", 405)


async def _failed(request: Request, error: Exception) -> Response:
    return PlainTextResponse("Something went wrong; the server's log has the details.\n", 500)
