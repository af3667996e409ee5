"""Channels and patterns to their subscribers.

Rule 1: each client's own sets (`channels`, `patterns`) and the maps here change together, in this module only.
Rule 2: a message goes to a client once per subscription that matches: for its channel, then for each pattern.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

from ..protocol.reply import Push
from .acl_patterns import head_of
from .glob import Glob, compile_glob, ns_per_byte

if TYPE_CHECKING:
    from .client import Client

# Subscribers in the order in which they came, which is the order in which they hear.
Subscribers = dict["Client", None]

# What the patterns of all clients may take per byte of a channel: for a message to the longest 50 ms at worst.
NS_MAX = 12_288
# As many names as take two milliseconds or three.
AT_ONCE = 500


class PubSub:
    """Who listens to what."""

    def __init__(self) -> None:
        self.channels: dict[bytes, Subscribers] = {}
        self.patterns: dict[bytes, Subscribers] = {}
        self.ns = 0
        """How long all patterns take to match at worst, per byte of a channel."""
        self.leaving: set[Client] = set()
        """Those who are gone, but not yet from all maps: they hear nothing."""
        # By their heads, and these by their length: a channel is asked only of the patterns whose head it begins with.
        # The number says which pattern came first.
        self._compiled: dict[int, dict[bytes, dict[bytes, tuple[int, Glob]]]] = {}
        self._next_number = 0

    @property
    def active(self) -> bool:
        """Whether anybody listens at all."""
        return bool(self.channels or self.patterns)

    def publish(self, channel: bytes, message: bytes) -> int:
        """Send `message` to all that listen to `channel`; how many times it was sent."""
        receivers = 0
        if channel in self.channels:
            receivers += self._send(Push((b"message", channel, message)), self.channels[channel])
        found: list[tuple[int, bytes]] = []
        for length, heads in self._compiled.items():
            if length <= len(channel) and (compiled := heads.get(channel[:length])) is not None:
                found += [
                    (number, pattern)
                    for pattern, (number, glob) in compiled.items()
                    if glob.fullmatch(channel) is not None
                ]
        for _, pattern in sorted(found):
            receivers += self._send(Push((b"pmessage", pattern, channel, message)), self.patterns[pattern])
        return receivers

    def _send(self, push: Push, subscribers: Subscribers) -> int:
        # A reader that is too slow is cut off by this, but leaves `subscribers` in a later turn of the loop.
        told = [client for client in subscribers if client not in self.leaving] if self.leaving else subscribers
        for client in told:
            client.push(push)
        return len(told)

    def subscribe(self, client: Client, channel: bytes) -> None:
        client.channels.add(channel)
        self.channels.setdefault(channel, {})[client] = None

    def unsubscribe(self, client: Client, channel: bytes) -> None:
        if channel in client.channels:
            client.channels.remove(channel)
            _remove(self.channels, channel, client)

    def subscribe_pattern(self, client: Client, pattern: bytes) -> None:
        if pattern not in self.patterns:
            compiled = compile_glob(pattern)  # raises before anything has changed
            head = head_of(pattern)
            self._compiled.setdefault(len(head), {}).setdefault(head, {})[pattern] = (self._next_number, compiled)
            self._next_number += 1
            self.ns += ns_per_byte(pattern)
        client.patterns.add(pattern)
        self.patterns.setdefault(pattern, {})[client] = None

    def unsubscribe_pattern(self, client: Client, pattern: bytes) -> None:
        if pattern in client.patterns:
            client.patterns.remove(pattern)
            _remove(self.patterns, pattern, client)
            if pattern not in self.patterns:
                self._forget(pattern)

    def _forget(self, pattern: bytes) -> None:
        head = head_of(pattern)
        heads = self._compiled[len(head)]
        del heads[head][pattern]
        if not heads[head]:
            del heads[head]
            if not heads:
                del self._compiled[len(head)]
        self.ns -= ns_per_byte(pattern)

    def drop(self, client: Client) -> None:
        """End all subscriptions of `client`."""
        while not self.drop_some(client):
            pass

    def drop_some(self, client: Client) -> bool:
        """End as many subscriptions of `client` as there is time for in a turn of the loop; whether none is left."""
        channels = tuple(islice(client.channels, AT_ONCE))
        for channel in channels:
            self.unsubscribe(client, channel)
        for pattern in tuple(islice(client.patterns, AT_ONCE - len(channels))):
            self.unsubscribe_pattern(client, pattern)
        return not (client.channels or client.patterns)


def _remove(table: dict[bytes, Subscribers], name: bytes, client: Client) -> None:
    subscribers = table[name]
    del subscribers[client]
    if not subscribers:
        del table[name]
