"""Keyspace notifications: what happens to keys, on `__keyspace@0__:<key>` and `__keyevent@0__:<event>`, as in Redis.

`notify-keyspace-events` says which: K and E choose the channels, the other letters the classes.

    g  del expire persist rename_from rename_to copy_to restore
    x  expired            a key passed its deadline
    e  evicted            a key went because of maxmemory
    n  new                a key came into being
    m  keymiss            a command looked for a key that is not there
    d  mem.create mem.config, and per record what `__mem__:<key>` says, under mem.: mem.add, mem.del, mem.expire, ..

d is Redis's class for the types of modules. A holds all of Redis's classes but n and m; of strings, lists, sets,
hashes, sorted sets and streams (`$lshzt`) nothing happens here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from . import entries
from .config import Config
from .pubsub import PubSub

if TYPE_CHECKING:
    from .entries import Entry, PutNew


class Notifications:
    """Of one server. `on` is what asks at the least cost whether anything at all is to be told."""

    def __init__(self, config: Config, pubsub: PubSub) -> None:
        self.on = False
        self._classes = ""
        self._pubsub = pubsub
        config.on_change("notify-keyspace-events", self._choose)
        self._choose(config["notify-keyspace-events"])

    def _choose(self, classes: str) -> None:
        self._classes = classes
        self.on = bool(classes)

    def notify(self, class_: str, event: bytes, key: bytes) -> None:
        """Tell that `event`, of the class `class_`, happened to `key`."""
        classes = self._classes
        if class_ not in classes or not self._pubsub.active:
            return
        if "K" in classes:
            self._pubsub.publish(b"__keyspace@0__:" + key, event)
        if "E" in classes:
            self._pubsub.publish(b"__keyevent@0__:" + event, key)

    def record(self, key: bytes, event: bytes) -> None:
        """A record's event, as `__mem__:<key>` tells it: `add 7`."""
        self.notify("d", b"mem." + event.partition(b" ")[0], key)

    def applied(self, entry: Entry | PutNew) -> None:
        """Tell what `entry` was to the keys."""
        events = _EVENTS.get(type(entry))
        if events is not None:
            for class_, event, key in events(entry):
                self.notify(class_, event, key)


# Entry -> the events of it, in Redis's order. There, a key that another one overwrites is new as well.
_EVENTS: dict[type, Callable[[Any], list[tuple[str, bytes, bytes]]]] = {
    entries.Create: lambda entry: [("n", b"new", entry.key), ("d", b"mem.create", entry.key)],
    entries.Configure: lambda entry: [("d", b"mem.config", entry.key)],
    entries.Switch: lambda entry: [("d", b"mem.config", entry.key)],
    entries.Drop: lambda entry: [("g", b"del", key) for key in entry.keys],
    entries.ExpireKey: lambda entry: [("g", b"expire" if entry.deadline else b"persist", entry.key)],
    entries.Rename: lambda entry: [
        ("n", b"new", entry.to),
        ("g", b"rename_from", entry.key),
        ("g", b"rename_to", entry.to),
    ],
    entries.Copy: lambda entry: [("n", b"new", entry.to), ("g", b"copy_to", entry.to)],
    entries.Restore: lambda entry: [("n", b"new", entry.key), ("g", b"restore", entry.key)],
}
