"""What was refused, for ACL LOG. Of a client's words it holds a name: of a command, a key, a channel or a user; never a
password, nor anything else that was sent."""

from __future__ import annotations

from dataclasses import dataclass

# As in Redis: what is refused again within a minute raises the count of an entry, of the newest ten.
_GROUPED_MS = 60_000
_GROUPED_AMONG = 10
# Keys may be as large as a client likes; the log's size must not be.
_NAME_BYTES = 1024


@dataclass(slots=True)
class Refused:
    """`reason` is auth, command, key or channel; times are unix milliseconds."""

    reason: str
    context: str
    object: bytes
    username: bytes
    client: str
    id: int
    created: int
    updated: int
    count: int = 1


class AclLog:
    """The newest first, `length` of them at most."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.entries: list[Refused] = []
        self._next_id = 0

    def add(self, reason: str, context: str, object: bytes, username: bytes, client: str, now: int) -> None:
        object, username = object[:_NAME_BYTES], username[:_NAME_BYTES]
        what = (reason, context, object, username)
        for at, entry in enumerate(self.entries[:_GROUPED_AMONG]):
            same = (entry.reason, entry.context, entry.object, entry.username) == what
            if same and abs(now - entry.updated) <= _GROUPED_MS:
                del self.entries[at]
                entry.count += 1
                entry.updated, entry.client = now, client
                break
        else:
            entry = Refused(*what, client, self._next_id, now, now)
            self._next_id += 1
        self.entries.insert(0, entry)
        self.resize(self.length)

    def resize(self, length: int) -> None:
        self.length = length
        del self.entries[length:]

    def clear(self) -> None:
        self.entries.clear()
