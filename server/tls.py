"""TLS: the tls-* settings as an SSLContext, and the connections that come over it.

Rule 1: a context is made anew and whole, from all settings and files together, before it takes the last one's place.
        What is wrong with any of them refuses (start, CONFIG SET) or is logged (SIGHUP), and the last one stays in use.
Rule 2: each connection takes the context of the moment in which it is accepted: a reload needs no new listener, and
        what is connected stays so.
Rule 3: who has not shown by a handshake that they speak TLS counts towards maxclients, is one of MOST_HANDSHAKES, gets
        HANDSHAKE_S for it in all however the bytes drip, and costs no command, no session and no line of the log above
        `verbose`.

Python's ssl module decides what can be set: see REFUSED in config.py for what redis.conf has beyond that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import ssl
from typing import TYPE_CHECKING, cast

from .config import Config, ConfigError
from .connection import Connection
from .log import VERBOSE

if TYPE_CHECKING:
    from .server import Server

log = logging.getLogger("recalld")

#: A handshake is two round trips and a signature; a phone on a bad line needs a second or two.
HANDSHAKE_S = 10.0
#: How long a connection that we close may take for what it has not read and its own goodbye.
GOODBYE_S = 10.0

#: How many handshakes there may be at once; one more ends the oldest, which is most likely no client: those need
#: milliseconds. One that is half done takes about 60 KB (measured with 800 on Linux), which maxclients alone would let
#: strangers multiply by 10000.
MOST_HANDSHAKES = 1000

# Connections taken in one turn of the loop, so that a flood of them leaves turns for others.
_ACCEPTS = 16
_RETRY_S = 1.0

#: A change of any of these makes a new context.
SETTINGS = (
    "tls-cert-file",
    "tls-key-file",
    "tls-key-file-pass",
    "tls-ca-cert-file",
    "tls-ca-cert-dir",
    "tls-auth-clients",
    "tls-protocols",
    "tls-ciphers",
    "tls-ciphersuites",
    "tls-prefer-server-ciphers",
)

_VERSIONS = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
_VERIFY = {"no": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "yes": ssl.CERT_REQUIRED}


def make_context(config: Config) -> ssl.SSLContext:
    """The context that the settings describe. Raises ConfigError with what is wrong with which of them."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION  # costs the server more than who asks for it
    _set_protocols(context, config["tls-protocols"])
    _set_ciphers(context, config)
    _load_certificate(context, config)
    _load_authorities(context, config)
    context.verify_mode = _VERIFY[config["tls-auth-clients"]]
    return context


def _set_protocols(context: ssl.SSLContext, text: str) -> None:
    words = text.lower().split() or list(_VERSIONS)
    for word in words:
        if word not in _VERSIONS:
            raise ConfigError(
                f"tls-protocols: '{word}' is not offered; use a combination of 'TLSv1.2' and 'TLSv1.3', older ones are"
                " broken"
            )
    versions = [_VERSIONS[word] for word in words]
    context.minimum_version, context.maximum_version = min(versions), max(versions)


def _set_ciphers(context: ssl.SSLContext, config: Config) -> None:
    if config["tls-ciphers"]:
        try:
            context.set_ciphers(config["tls-ciphers"])
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"tls-ciphers '{config['tls-ciphers']}': {_reason(error)}") from None
    if config["tls-ciphersuites"]:
        set_ciphersuites = getattr(context, "set_ciphersuites", None)  # Python 3.15
        if set_ciphersuites is None:
            raise ConfigError(
                "tls-ciphersuites: this Python's ssl module cannot choose the ciphersuites of TLSv1.3; leave it empty"
                " for OpenSSL's own (all of them sound), or leave TLSv1.3 out of tls-protocols"
            )
        try:
            set_ciphersuites(config["tls-ciphersuites"])
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"tls-ciphersuites '{config['tls-ciphersuites']}': {_reason(error)}") from None
    if config["tls-prefer-server-ciphers"]:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE


def _load_certificate(context: ssl.SSLContext, config: Config) -> None:
    for name in ("tls-cert-file", "tls-key-file"):
        if not config[name]:
            raise ConfigError(f"No {name} configured! TLS needs a certificate and its key.")
        _check_readable(config, name)

    def password() -> str:
        # Without a function to ask, OpenSSL would ask the terminal, and wait.
        if not config["tls-key-file-pass"]:
            raise ConfigError(f"tls-key-file '{config['tls-key-file']}' is encrypted: set tls-key-file-pass")
        return cast(str, config["tls-key-file-pass"])

    try:
        context.load_cert_chain(config["tls-cert-file"], config["tls-key-file"], password)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(
            f"tls-cert-file '{config['tls-cert-file']}' with tls-key-file '{config['tls-key-file']}': {_reason(error)}"
        ) from None


def _load_authorities(context: ssl.SSLContext, config: Config) -> None:
    file, folder = config["tls-ca-cert-file"], config["tls-ca-cert-dir"]
    if not file and not folder:
        if config["tls-auth-clients"] != "no":
            raise ConfigError(
                "Either tls-ca-cert-file or tls-ca-cert-dir must be specified when tls-auth-clients is enabled!"
                " (tls-auth-clients no asks for no client certificates)"
            )
        return
    if file:
        _check_readable(config, "tls-ca-cert-file")
    if folder and not os.path.isdir(folder):
        raise ConfigError(f"tls-ca-cert-dir '{folder}': there is no such folder")
    try:
        context.load_verify_locations(file or None, folder or None)
    except (ssl.SSLError, OSError, ValueError) as error:
        raise ConfigError(f"tls-ca-cert-file '{file}': {_reason(error)}") from None


def _check_readable(config: Config, name: str) -> None:
    """Name the file that cannot be read: OpenSSL's own error does not."""
    try:
        with open(config[name], "rb"):
            pass
    except (OSError, ValueError) as error:
        raise ConfigError(f"{name} '{config[name]}': {_reason(error)}") from None


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        reason = getattr(error, "reason", None)
        if reason == "NO_CERTIFICATE_ASSIGNED":  # an RSA certificate with the key of an EC one, or the other way round
            return "the key is of another kind than the certificate's"
        if reason:
            return str(reason).lower().replace("_", " ")
        said = str(error.args[-1])
        return "no PEM file, or the wrong tls-key-file-pass" if "PEM lib" in said else said
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


class Tls:
    """The context in use, and who knocks. Raises ConfigError where the settings are no good."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self.context = make_context(server.config)
        self.handshakes: dict[asyncio.Task[None], None] = {}  # the oldest first
        self._listeners: list[socket.socket] = []
        for name in SETTINGS:
            server.config.on_change(name, lambda _: self.load())

    def load(self) -> None:
        """Read settings and files again. Raises ConfigError, and nothing has changed."""
        self.context = make_context(self._server.config)

    def reload(self) -> None:
        """The same where nobody waits for an answer: what is wrong is logged."""
        try:
            self.load()
        except ConfigError as error:
            log.error("TLS files not reloaded, the ones in use stay: %s", error.message)
        else:
            log.info("TLS files reloaded")

    async def listen(self, host: str, port: int) -> list[tuple[str, int]]:
        """Listen there; where that is in numbers. Raises OSError.

        Not by loop.create_server: that would keep one context for good, and not say who is in a handshake.
        """
        loop, where = self._server.loop, []
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, address in dict.fromkeys((family, address) for family, _, _, _, address in found):
            listener = socket.create_server(address[:2], family=family, backlog=self._server.config["tcp-backlog"])
            listener.setblocking(False)
            self._listeners.append(listener)
            loop.add_reader(listener, self._accept, listener)
            where.append(listener.getsockname()[:2])
        return where

    def close(self) -> None:
        """Stop listening, and end the handshakes that go on."""
        for listener in self._listeners:
            self._server.loop.remove_reader(listener)
            listener.close()
        self._listeners.clear()
        for handshake in self.handshakes:
            handshake.cancel()

    def _accept(self, listener: socket.socket) -> None:
        server = self._server
        for _ in range(_ACCEPTS):
            try:
                sock, peer = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:  # no file descriptor is left: asking again at once would ask for ever
                log.error("Accepting a TLS connection failed: %s", error.strerror)
                server.loop.remove_reader(listener)
                server.loop.call_later(_RETRY_S, self._accept_again, listener)
                return
            if len(server.clients) + len(self.handshakes) >= server.config["maxclients"]:
                # No error line: it could be read only after the handshake that this is to save.
                server.stats.connections += 1
                server.stats.rejected_connections += 1
                sock.close()
                continue
            sock.setblocking(False)
            if len(self.handshakes) >= MOST_HANDSHAKES:
                oldest = next(iter(self.handshakes))
                del self.handshakes[oldest]
                oldest.cancel()
            handshake = server.spawn(self._shake_hands(sock, peer))
            self.handshakes[handshake] = None
            handshake.add_done_callback(lambda done: self.handshakes.pop(done, None))

    def _accept_again(self, listener: socket.socket) -> None:
        if listener in self._listeners:
            self._server.loop.add_reader(listener, self._accept, listener)

    async def _shake_hands(self, sock: socket.socket, peer: tuple[str, int]) -> None:
        connection = Connection(self._server, over_tls=True)
        try:
            await self._server.loop.connect_accepted_socket(
                lambda: connection,
                sock,
                ssl=self.context,
                ssl_handshake_timeout=HANDSHAKE_S,
                ssl_shutdown_timeout=GOODBYE_S,
            )
        except OSError as error:  # ssl.SSLError is one
            log.log(VERBOSE, "TLS handshake with %s:%s failed: %s", peer[0], peer[1], error)
            return
        if connection.refused is not None:  # protected-mode: it counts until its goodbye has come
            try:
                await connection.refused
            finally:
                connection.transport.abort()
