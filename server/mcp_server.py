"""`recalld mcp`: one memory of a running server for agents, over the Model Context Protocol."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from .link import DEFAULT_URL

if TYPE_CHECKING:
    from mcp.server.mcpserver import MCPServer

    from ..client import AsyncMemory

_TEXT = """\
Offer one memory of a running server to agents, as tools over the Model Context Protocol: remember, recall, search,
forget, facts, explain. On standard input and output, for an agent that starts this command itself, or with --http over
HTTP. The memory is created where there is none.
"""
# A tool call that takes longer has met a server that hangs.
_TIMEOUT_S = 60
_URL_VARIABLE = "RECALLD_URL"


def main(argv: Sequence[str]) -> int:
    """Run until the agent leaves or a signal comes; the exit code."""
    options = _parser().parse_args(argv)
    address = _address(options.url)
    if address is None:
        print("recalld mcp: --url must be redis://[[user]:password@]host[:port]", file=sys.stderr)
        return 1
    try:
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff
        from redis.exceptions import RedisError

        from ..client import AsyncMemory
        from .mcp_tools import explained, serve
    except ModuleNotFoundError as error:
        print(f"recalld mcp: needs {error.name}: pip install 'recalld[mcp]'", file=sys.stderr)
        return 1
    from .cli import version

    async def run() -> None:
        # No second try: a note whose answer was lost would be kept twice, and an agent can try again itself.
        once = Retry(NoBackoff(), 0)
        async with AsyncMemory(options.url, options.key, retry=once, socket_timeout=_TIMEOUT_S) as memory:
            await _open(memory, options.embedder)
            server = serve(memory, address, version(), options.cascade)
            if options.http is None:
                # The read of standard input cannot be cancelled, so Ctrl-C would wait for one more line.
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                await server.run_stdio_async()
            else:
                await _serve_http(server, options.bind, options.http)

    try:
        asyncio.run(run())
    except (RedisError, OSError) as error:
        print(f"recalld mcp: {explained(error, address)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        pass
    return 0


async def _serve_http(server: MCPServer, host: str, port: int) -> None:
    """Until a signal comes. Raises OSError where it cannot listen."""
    import uvicorn

    class Http(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            # uvicorn's own would raise them again when all is over, into what is still being closed.
            for signum in (signal.SIGINT, signal.SIGTERM):
                asyncio.get_running_loop().add_signal_handler(signum, self.handle_exit, signum, None)
            yield

    # A tool call needs no session: without, a restart costs the agent nothing.
    app = server.streamable_http_app(host=host, stateless_http=True)
    with socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        name = f"[{host}]" if ":" in host else host
        print(f"recalld mcp: http://{name}:{listener.getsockname()[1]}/mcp", file=sys.stderr, flush=True)
        # An agent may keep a connection open for ever: at the end it gets so many seconds.
        await Http(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=3)).serve([listener])


async def _open(memory: AsyncMemory, embedder: str) -> None:
    """Create the memory unless it is there: with meaning where the server has the embedder, else of words alone."""
    from redis.exceptions import ResponseError

    if embedder.upper() != "NONE":
        try:
            await memory.create(mode="HYBRID", embedder=embedder, exists_ok=True)
            return
        except ResponseError as error:
            print(f"recalld mcp: no embedder '{embedder}' ({error}), so words alone are compared", file=sys.stderr)
    await memory.create(mode="SEARCH", exists_ok=True)


def _address(url: str) -> str | None:
    """The server as errors name it, without user and password; None for what is no URL of a server."""
    try:
        parts = urlsplit(url)
        port = parts.port or 7171
    except ValueError:
        return None
    if parts.scheme == "unix" and parts.path:
        return parts.path
    return f"{parts.hostname}:{port}" if parts.scheme in ("redis", "rediss") and parts.hostname else None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="recalld mcp", description=_TEXT)
    parser.add_argument(
        "--url",
        default=os.environ.get(_URL_VARIABLE, DEFAULT_URL),
        metavar="URL",
        help=f"redis://[[user]:password@]host[:port] (default: ${_URL_VARIABLE}, which no list of processes shows, else"
        f" {DEFAULT_URL})",
    )
    parser.add_argument("--key", required=True, metavar="KEY", help="the memory's key; agents reach no other")
    parser.add_argument("--http", type=int, metavar="PORT", help="serve http://127.0.0.1:PORT/mcp (0: any free port)")
    parser.add_argument(
        "--bind",
        default="127.0.0.1",
        metavar="ADDRESS",
        help="with --http: listen there (127.0.0.1). There is no password: whoever reaches it reads and writes",
    )
    parser.add_argument(
        "--cascade",
        choices=("UP", "DOWN"),
        type=str.upper,
        help="recall and search read the memories above the key too (a is above a:b), or those below it; nothing"
        " writes there",
    )
    parser.add_argument(
        "--embedder",
        default="local",
        metavar="NAME",
        help="of a memory that is created: local (the default; texts stay on the server), another of the server's, or"
        " NONE. Where the server has none, words alone are compared",
    )
    return parser
