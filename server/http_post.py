"""One POST of JSON to another server, in a thread: bounded in time and size, its answer's status the caller's to judge.

Redirects are not followed: the key would go with them. No message holds the URL, which may hold a password.
"""

from __future__ import annotations

import math
import time
from typing import NamedTuple

import urllib3

#: Statuses after which the same request may work in a moment.
PASSING = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
_CHUNK = 65_536


class Answer(NamedTuple):
    """`body` is that of a 200, else empty: what a server says of a failure may quote the key or a text."""

    status: int
    body: bytes
    retry_after_s: float


class TooLate(Exception):
    """There was no whole answer by the deadline."""


class TooLong(Exception):
    """The answer has more bytes than it may."""


class Unreachable(Exception):
    """No connection, or one that broke; the text is the kind of error alone."""


def post(
    pool: urllib3.PoolManager, url: str, body: bytes, headers: dict[str, str], *, deadline: float, most: int
) -> Answer:
    """The answer, of at most `most` bytes, before time.monotonic() is `deadline`; raises the above."""
    try:
        response = pool.request(
            "POST",
            url,
            body=body,
            headers={"Content-Type": "application/json", "User-Agent": "recalld"} | headers,
            timeout=urllib3.Timeout(total=max(0.001, deadline - time.monotonic())),
            redirect=False,
            retries=False,
            preload_content=False,
        )
        try:
            retry_after_s = _seconds(response.headers.get("Retry-After", ""))
            if response.status != 200:
                return Answer(response.status, b"", retry_after_s)
            answer = bytearray()
            # In chunks: urllib3 bounds the wait for each, and we the sum.
            while chunk := response.read1(_CHUNK):
                answer += chunk
                if time.monotonic() > deadline:
                    raise TooLate
                if len(answer) > most:
                    raise TooLong
            response.release_conn()
            return Answer(200, bytes(answer), retry_after_s)
        finally:
            response.close()  # nothing, once it was released
    except urllib3.exceptions.TimeoutError as error:
        # A refused connection is one, too, to urllib3.
        if isinstance(error, urllib3.exceptions.NewConnectionError):
            raise Unreachable(type(error).__name__) from None
        raise TooLate from None
    except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
        raise Unreachable(type(error).__name__) from None


def usable_key(key: str) -> bool:
    """Whether the text can be sent as a key: nothing that would end or split a header."""
    return bool(key) and key.isascii() and key.isprintable() and " " not in key


def _seconds(text: str) -> float:
    """Retry-After in seconds; 0 for none, and for a date, which no clock but the server's can judge."""
    try:
        seconds = float(text)
    except ValueError:
        return 0.0
    return seconds if math.isfinite(seconds) and seconds > 0 else 0.0
