"""Channels and patterns to their subscribers.

Rule 1: each client's own sets (`channels`, `patterns`) and the maps here change together, in this module only.
Rule 2: a message goes to a client once per subscription that matches: for its channel, then for each pattern.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..protocol.reply import Push
from .glob import Glob, compile_glob

if TYPE_CHECKING:
    from .client import Client

# Subscribers in the order in which they came, which is the order in which they hear.
Subscribers = dict["Client", None]


class PubSub:
    """Who listens to what."""

    def __init__(self) -> None:
        self.channels: dict[bytes, Subscribers] = {}
        self.patterns: dict[bytes, Subscribers] = {}
        self._compiled: dict[bytes, Glob] = {}

    @property
    def active(self) -> bool:
        """Whether anybody listens at all."""
        return bool(self.channels or self.patterns)

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send `message` to all that listen to `channel`; how many times it was sent."""
        receivers = 0
        if channel in self.channels:
            receivers += _send(Push((b"message", channel, message)), self.channels[channel])
        for pattern, compiled in self._compiled.items():
            if compiled.fullmatch(channel) is not None:
                receivers += _send(Push((b"pmessage", pattern, channel, message)), self.patterns[pattern])
        return receivers

    def subscribe(self, client: Client, channel: bytes) -> None:
        client.channels.add(channel)
        self.channels.setdefault(channel, {})[client] = None

    def unsubscribe(self, client: Client, channel: bytes) -> None:
        if channel in client.channels:
            client.channels.remove(channel)
            _remove(self.channels, channel, client)

    def subscribe_pattern(self, client: Client, pattern: bytes) -> None:
        if pattern not in self._compiled:
            self._compiled[pattern] = compile_glob(pattern)  # raises before anything has changed
        client.patterns.add(pattern)
        self.patterns.setdefault(pattern, {})[client] = None

    def unsubscribe_pattern(self, client: Client, pattern: bytes) -> None:
        if pattern in client.patterns:
            client.patterns.remove(pattern)
            _remove(self.patterns, pattern, client)
            if pattern not in self.patterns:
                del self._compiled[pattern]

    def drop(self, client: Client) -> None:
        """End all subscriptions of `client`."""
        for channel in tuple(client.channels):
            self.unsubscribe(client, channel)
        for pattern in tuple(client.patterns):
            self.unsubscribe_pattern(client, pattern)


def _send(push: Push, subscribers: Subscribers) -> int:
    # A reader that is too slow is cut off by this, but leaves `subscribers` in a later turn of the loop.
    for client in subscribers:
        client.push(push)
    return len(subscribers)


def _remove(table: dict[bytes, Subscribers], name: bytes, client: Client) -> None:
    subscribers = table[name]
    del subscribers[client]
    if not subscribers:
        del table[name]
