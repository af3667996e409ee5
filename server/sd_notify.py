"""What systemd is told of the service (Type=notify): a few words in a datagram to the socket that it names.

Everything here does nothing where there is no NOTIFY_SOCKET, and never fails: a server that cannot talk to its manager
still serves. See sd_notify(3).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time

log = logging.getLogger("recalld")


class Notifier:
    """The socket of NOTIFY_SOCKET. Taken out of the environment: no child process is to speak for this one."""

    def __init__(self) -> None:
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        self._watchdog_s = _watchdog_s()
        self._socket: socket.socket | None = None
        self._timer: asyncio.TimerHandle | None = None
        if self._address:
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
            self._socket.setblocking(False)
        if self._address.startswith("@"):
            self._address = "\0" + self._address[1:]  # the abstract namespace

    def ready(self, status: str) -> None:
        self._send(f"READY=1\nSTATUS={status}")

    def reloading(self) -> None:
        # The time tells systemd which READY=1 ends this reload.
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_us}\nSTATUS=Reloading")

    def stopping(self) -> None:
        self._send("STOPPING=1\nSTATUS=Shutting down")

    def status(self, text: str) -> None:
        self._send(f"STATUS={text}")

    def start_watchdog(self, loop: asyncio.AbstractEventLoop) -> None:
        """Say twice per WatchdogSec that the loop turns; a loop that hangs says nothing, and systemd restarts it."""
        if self._socket is not None and self._watchdog_s:
            self._send("WATCHDOG=1")
            self._timer = loop.call_later(self._watchdog_s / 2, self.start_watchdog, loop)

    def stop_watchdog(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _send(self, text: str) -> None:
        if self._socket is None:
            return
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError as error:
            log.debug("systemd does not listen: %s", error)


def _watchdog_s() -> float:
    """WatchdogSec, 0 where there is none or it is not meant for this process."""
    interval, pid = os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
    if not interval.isdigit() or (pid and pid != str(os.getpid())):
        return 0
    return int(interval) / 1e6
