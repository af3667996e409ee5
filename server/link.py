"""A client of a running server, for what the command line does to one: RESP3 over a plain socket."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Sequence
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import hiredis

DEFAULT_URL = "redis://127.0.0.1:7171"


class Failed(Exception):
    """What was asked for cannot be done; the message says where and why."""


class Refused(Failed):
    """The server answered with an error; `reply` is its text."""

    def __init__(self, address: str, reply: str) -> None:
        super().__init__(f"{address} refused: {reply}")
        self.reply = reply


class Link:
    """A connection to a server, on RESP3: maps are dicts, strings bytes, error replies hiredis.ReplyError."""

    def __init__(self, url: str, timeout_s: float | None = None) -> None:
        """Raises Failed."""
        try:
            parts = urlsplit(url)
            port = parts.port or 7171
        except ValueError:
            raise _no_address() from None
        if parts.scheme not in ("redis", "rediss") or not parts.hostname or parts.path.strip("/") not in ("", "0"):
            raise _no_address()
        self.address = f"{parts.hostname}:{port}"
        self._more = object()
        self._reader = hiredis.Reader(notEnoughData=self._more)
        try:
            self._socket = socket.create_connection((parts.hostname, port), timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if parts.scheme == "rediss":
                self._socket = _context(parts.query).wrap_socket(self._socket, server_hostname=parts.hostname)
        except ssl.SSLError as error:
            raise Failed(f"cannot speak TLS with {self.address}: {error.args[-1]}") from None
        except OSError as error:
            raise Failed(f"cannot reach {self.address}: {error.strerror or error}") from None
        hello: list[bytes | str] = ["HELLO", "3"]
        if parts.password is not None:
            hello += ["AUTH", unquote(parts.username or "default"), unquote(parts.password)]
        self(*hello)

    def __call__(self, *words: bytes | str) -> Any:
        """The reply to one command. Raises Failed for an error."""
        [reply] = self.pipeline([words])
        if isinstance(reply, hiredis.ReplyError):
            raise Refused(self.address, str(reply))
        return reply

    def pipeline(self, commands: Sequence[Sequence[bytes | str]]) -> list[Any]:
        """The replies to commands sent in one go, errors as values."""
        self._socket.sendall(b"".join(hiredis.pack_command(tuple(words)) for words in commands))  # type: ignore[arg-type]
        return [self._read() for _ in commands]

    def together(self, commands: Sequence[Sequence[bytes | str]]) -> list[Any] | None:
        """The replies to commands run at one moment, errors as values; None where a watched key has changed."""
        replies = self.pipeline([("MULTI",), *commands, ("EXEC",)])
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise Failed(f"{self.address} refused: {reply}")
        results: list[Any] | None = replies[-1]
        return results

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> Any:
        while (reply := self._reader.gets()) is self._more:
            data = self._socket.recv(1 << 16)
            if not data:
                raise Failed(f"{self.address} closed the connection")
            self._reader.feed(data)
        return reply


def is_missing(reply: Any) -> bool:
    """Whether a reply says that there is no such memory."""
    return isinstance(reply, hiredis.ReplyError) and str(reply) == "ERR no such memory index"


def _context(query: str) -> ssl.SSLContext:
    """TLS as a rediss:// address asks for it, in redis-py's words: ssl_ca_certs, ssl_certfile, ssl_keyfile,
    ssl_cert_reqs=none (any certificate will do)."""
    words = {name: values[-1] for name, values in parse_qs(query).items()}
    unknown = words.keys() - {"ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_cert_reqs"}
    if unknown or words.get("ssl_cert_reqs", "required") not in ("none", "required"):
        raise _no_address()
    files = {name: path for name, path in words.items() if name != "ssl_cert_reqs"}
    for name, path in files.items():
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise Failed(f"{name} '{path}': {error.strerror}") from None
    context = ssl.create_default_context(cafile=files.get("ssl_ca_certs"))
    if words.get("ssl_cert_reqs") == "none":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if "ssl_certfile" in files:
        context.load_cert_chain(files["ssl_certfile"], files.get("ssl_keyfile"))
    return context


def _no_address() -> Failed:
    # Without the address: there may be a password in it.
    return Failed(
        "not an address of a server, which is redis://[[user]:password@]host[:port], or rediss://... over TLS with"
        " ?ssl_ca_certs=FILE, &ssl_certfile=FILE&ssl_keyfile=FILE or &ssl_cert_reqs=none behind it"
    )
