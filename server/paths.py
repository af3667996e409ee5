"""Which keys are above and below which: a key's path is its parts between `:`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

# Deeper paths, which nobody writes by hand, are told by looking at all keys: going up one part at a time costs the
# square of their length.
_DEEP = 64


def ancestors(key: bytes, keys: Iterable[bytes]) -> Iterator[bytes]:
    """The paths above `key`, the nearest first; of a deep one, those that are among `keys`, in their order."""
    if key.count(b":") > _DEEP:
        yield from (other for other in keys if key.startswith(other + b":"))
        return
    cut = key.rfind(b":")
    while cut >= 0:
        key = key[:cut]
        yield key
        cut = key.rfind(b":")


class KeyPaths:
    """What is below each path: the paths one part longer that are keys or lead to some.

    `keys` are all keys, kept by somebody else, who says what comes and goes.
    """

    __slots__ = ("_below", "_keys")

    def __init__(self, keys: Mapping[bytes, object]) -> None:
        self._keys = keys
        self._below: dict[bytes, set[bytes]] = {}
        for key in keys:
            self.add(key)

    def add(self, key: bytes) -> None:
        """A key came."""
        path, below = key, self._below
        while (parent := _parent(path)) is not None:
            if parent in below:  # whatever is above it leads here already
                below[parent].add(path)
                return
            below[parent] = {path}
            path = parent

    def remove(self, key: bytes) -> None:
        """A key went: it is not among the keys any more."""
        path, below = key, self._below
        while path not in self._keys and path not in below and (parent := _parent(path)) is not None:
            below[parent].discard(path)
            if below[parent]:
                return
            del below[parent]
            path = parent

    def descendants(self, key: bytes) -> Iterator[bytes]:
        """The keys below `key`, in no order."""
        start = key
        if key.count(b":") > _DEEP:
            start = _cut(key)
        left = [start]
        while left:
            for path in self._below.get(left.pop(), ()):
                if path in self._keys and (start is key or path.startswith(key + b":")):
                    yield path
                if path in self._below:
                    left.append(path)


def _parent(path: bytes) -> bytes | None:
    """The path above; all deep ones are right below one that is not."""
    if path.count(b":") > _DEEP:
        return _cut(path)
    cut = path.rfind(b":")
    return path[:cut] if cut >= 0 else None


def _cut(path: bytes) -> bytes:
    return b":".join(path.split(b":", _DEEP + 1)[: _DEEP + 1])
