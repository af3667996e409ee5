"""A stand-in for systemd: the socket of NOTIFY_SOCKET, and a server started under it.

    with Service(tmp_path, "--logfile", path) as service:      waits for READY=1
        service.manager.wait_for("RELOADING")                  the next message with that word; all so far in `seen`
        service.send(signal.SIGHUP)
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

from harness import PATIENCE_S, Reachable, free_port


class Manager:
    """Receives what a service says of itself."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(self.path))
        self._socket.settimeout(PATIENCE_S)
        self.seen: list[dict[str, str]] = []

    def next(self) -> dict[str, str]:
        """The next message, NAME=value by lines."""
        lines = self._socket.recv(65536).decode().split("\n")
        self.seen.append(dict(line.split("=", 1) for line in lines))
        return self.seen[-1]

    def wait_for(self, name: str) -> dict[str, str]:
        while name not in (message := self.next()):
            pass
        return message

    def close(self) -> None:
        self._socket.close()


class Service(Reachable):
    """A server in a process of its own, whose port is `port`; `words` are its options.

    `environ` adds to the environment. What it prints is in `output` after `end`.
    """

    def __init__(self, folder: Path, *words: str, environ: dict[str, str] | None = None) -> None:
        self.manager = Manager(folder)
        self.port = free_port()
        self.output = ""
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(folder), *words]
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-m", "recalld.server", *options],
            env=os.environ | {"NOTIFY_SOCKET": str(self.manager.path)} | (environ or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            self.manager.wait_for("READY")
        except BaseException:
            self.process.kill()
            print(self.process.communicate()[0])
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.end()
        self.manager.close()

    def send(self, signum: signal.Signals) -> None:
        self.process.send_signal(signum)

    def end(self) -> int:
        """Wait until it has ended; its exit code."""
        if not self.output:
            self.output = self.process.communicate(timeout=PATIENCE_S)[0]
        return int(self.process.returncode)
