"""MONITOR: every command, as it runs, to the clients that ask for it.

A line is Redis's: `1339518083.107412 [0 127.0.0.1:60866] "mem.get" "user:1" "7"`. As there, commands for administrators
are not shown. A monitor that reads too slowly is cut off by client-output-buffer-limit like any client.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.reply import SimpleString
from .shown_words import shown

if TYPE_CHECKING:
    from .client import Client
    from .commands import Command

# One line must not be larger than what a client may leave unread: Redis shows words whole, here they are cut.
_WORD_BYTES = 16 << 10
_LINE_BYTES = 256 << 10

_QUOTED = {byte: f"\\x{byte:02x}" for byte in (*range(0x20), *range(0x7F, 0x100))}
_QUOTED |= {ord(char): "\\" + letter for char, letter in zip('\\"\n\r\t\a\b', '\\"nrtab', strict=True)}


class Monitors:
    """The clients that watch."""

    def __init__(self) -> None:
        self._clients: dict[Client, None] = {}

    def __len__(self) -> int:
        return len(self._clients)

    def add(self, client: Client) -> None:
        self._clients[client] = None
        client.monitoring = True

    def drop(self, client: Client) -> None:
        self._clients.pop(client, None)
        client.monitoring = False

    def feed(self, client: Client, entry: Command, words: list[bytes]) -> None:
        """Show what `client` has run."""
        if "admin" in entry.flags:
            return
        text = SimpleString(line(client.now, client.addr, shown(entry.name, words)))
        for monitor in list(self._clients):
            monitor.push(text)


def line(now: int, addr: str, words: list[bytes]) -> str:
    """One line; `now` in unix milliseconds."""
    parts, room = [], _LINE_BYTES
    for at, word in enumerate(words):
        if room <= 0:
            parts.append(f'"... ({len(words) - at} more arguments)"')
            break
        parts.append(quoted(word))
        room -= len(parts[-1])
    return f"{now // 1000}.{now % 1000:03d}000 [0 {addr}] {' '.join(parts)}"


def quoted(word: bytes) -> str:
    """In double quotes, what is not printable ASCII escaped, as redis-cli writes and reads it."""
    left = len(word) - _WORD_BYTES
    text = word[:_WORD_BYTES].decode("latin-1").translate(_QUOTED)
    return f'"{text}... ({left} more bytes)"' if left > 0 else f'"{text}"'
