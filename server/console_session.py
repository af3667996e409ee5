"""Who is logged in to the console: sessions, the rate of attempts, and the two questions to the users' list.

Rule 1: a session is a random token in a cookie; here only its hash is kept.
Rule 2: who is deleted, switched off or has other passwords now is logged out.
Rule 3: everything is bounded: sessions (the one idle the longest goes), addresses whose failures are remembered.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from contextlib import closing
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING

from .console_client import Insider
from .dispatch import find

if TYPE_CHECKING:
    from .acl import User
    from .server import Server

_MOST_SESSIONS = 256
_LONGEST_MS = 12 * 3600 * 1000
_MOST_ADDRESSES = 1024
# So many wrong passwords from one address, then one more per so many milliseconds.
_FAILURES = 5
_FORGIVEN_MS = 20_000


def authenticate(server: Server, user: str, password: str, addr: str) -> User | None:
    """The user whose name and password these are; None where there is none, which ACL LOG then says."""
    with closing(Insider(server, addr)) as visitor:
        good = visitor.log_in(*(word.encode("utf-8", "surrogateescape") for word in (user, password)))
        return visitor.account if good else None


def may(account: User, words: list[bytes]) -> bool:
    """Whether the user may run this command."""
    return account.check(find(words), words) is None


@dataclass(slots=True)
class Session:
    """One login. `csrf` is in every form, as proof that the form is ours; `proof` is what the user had to know then."""

    account: User
    proof: tuple[bool, tuple[str, ...]]
    since: int
    last: int
    streams: int = 0
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def user(self) -> str:
        return self.account.name


class Sessions:
    """All of them, by the hash of their token; the one used last is the last."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._sessions: OrderedDict[bytes, Session] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def open(self, account: User) -> str:
        """Begin one; its token."""
        token, now = secrets.token_urlsafe(32), self._server.clock()
        self._sessions[_digest(token)] = Session(account, _proof(account), now, now)
        while len(self._sessions) > _MOST_SESSIONS:
            self._sessions.popitem(last=False)
        return token

    def find(self, token: str, *, touch: bool = True) -> Session | None:
        """The session of a token, which is used by that (`touch`); None where it has ended."""
        digest, now = _digest(token), self._server.clock()
        session = self._sessions.get(digest)
        if session is None:
            return None
        idle_ms = self._server.config["console-timeout"] * 1000
        ended = now - session.since > _LONGEST_MS or now - session.last > idle_ms
        account = session.account
        known = self._server.acl.users.get(account.name) is account and account.enabled
        if ended or not known or _proof(account) != session.proof:
            del self._sessions[digest]
            return None
        if touch:
            session.last = now
            self._sessions.move_to_end(digest)
        return session

    def end(self, token: str) -> None:
        self._sessions.pop(_digest(token), None)


class Attempts:
    """Wrong passwords, by address: a bucket of `_FAILURES` that fills by one every `_FORGIVEN_MS`."""

    def __init__(self) -> None:
        self._failed: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def wait_s(self, address: str, now: int) -> int:
        """How many seconds the address must wait before it may try again; 0: none."""
        count = self._count(address, now)
        return 0 if count <= _FAILURES - 1 else max(1, int((count - _FAILURES + 1) * _FORGIVEN_MS / 1000))

    def failed(self, address: str, now: int) -> None:
        self._failed[address] = (self._count(address, now) + 1, now)
        self._failed.move_to_end(address)
        while len(self._failed) > _MOST_ADDRESSES:
            self._failed.popitem(last=False)

    def _count(self, address: str, now: int) -> float:
        count, then = self._failed.get(address, (0.0, now))
        return max(0.0, count - (now - then) / _FORGIVEN_MS)


def _proof(account: User) -> tuple[bool, tuple[str, ...]]:
    return account.nopass, tuple(account.passwords)


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
