"""One line about a client, as CLIENT LIST and ACL LOG show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .client import Client


def client_line(client: Client, now: int) -> str:
    """Describe a connection."""
    connection = client.connection
    queue = client.multi
    input_bytes, unsent_bytes = connection.parser.buffered_bytes, connection.unsent_bytes()
    queued_bytes = 0 if queue is None else queue.size
    # All of it up to tot-mem, because redis-py 5 reads these as numbers that are there.
    fields = {
        "id": client.id,
        "addr": client.addr,
        "laddr": client.laddr,
        "fd": connection.fileno(),
        "name": client.name.decode(),
        "age": max(0, now - client.created_ms) // 1000,
        "idle": max(0, now - client.last_ms) // 1000,
        "flags": _client_flags(client),
        "db": 0,
        "sub": len(client.channels),
        "psub": len(client.patterns),
        "ssub": 0,
        "multi": -1 if queue is None else len(queue.commands),
        "watch": len(client.watched),
        "qbuf": input_bytes,
        "qbuf-free": 0,  # nothing is reserved ahead,
        "argv-mem": 0,  # a command begun counts in qbuf,
        "multi-mem": queued_bytes,
        "rbs": 0,  # and replies have no buffer of a fixed size
        "rbp": 0,
        "obl": 0,
        "oll": len(connection.waiting),
        "omem": unsent_bytes,
        "tot-mem": input_bytes + queued_bytes + unsent_bytes,
        "events": "rw" if unsent_bytes else "r",
        "cmd": client.last_command,
        "user": client.user.encode("utf-8", "surrogateescape").decode("utf-8", "replace"),
        "redir": -1,
        "resp": client.proto,
        "lib-name": client.lib_name.decode(),
        "lib-ver": client.lib_ver.decode(),
    }
    return " ".join(f"{name}={value}" for name, value in fields.items()) + "\n"


def _client_flags(client: Client) -> str:
    flags = [
        ("O", client.monitoring),
        ("P", bool(client.channels or client.patterns)),
        ("x", client.multi is not None),
        ("b", client.connection.held is not None),
        ("d", client.dirty),
        ("c", client.close_after_reply),
        ("e", client.no_evict),
        ("T", client.no_touch),
    ]
    return "".join(letter for letter, holds in flags if holds) or "N"
