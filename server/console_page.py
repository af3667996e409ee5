"""What the console's pages have in common: forms, links, and templates with their filters.

Rule 1: keys, ids and whatever a record holds are bytes. In links each byte is percent-encoded, in hidden fields each
        that a browser would change (`field`), in forms they are UTF-8, on a page what is not is shown as \\xHH; Jinja
        escapes all of it.
Rule 2: `|safe` is for the drawings of console_svg, which escapes what it is given, and for nothing else.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from math import isfinite
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response

from .console_client import Insider, Refused, Word
from .console_svg import cut

if TYPE_CHECKING:
    from .console import Console
    from .console_session import Session

# A form holds a text of mem-max-text-bytes, three bytes for each in the worst case, and metadata.
FORM_BYTES = 4 << 20
_FORM_FIELDS = 1000
_FORM_S = 20
_FOLDER = "console_pages"
#: What stands where there is no value, an en dash.
NOTHING = "\u2013"


class TooLarge(Exception):
    """A form that is not read."""


def field(name: str, value: bytes) -> tuple[str, str]:
    """Name and value of a hidden field that brings these bytes back. Where a browser would change them, as it does NUL,
    line ends and what is no UTF-8, they are percent-encoded and the name says so."""
    if survives(value) and min(value, default=32) >= 32:
        return name, value.decode()
    return f"{name}~", quote(value, safe="")


def _whole(name: str, value: str) -> tuple[str, str]:
    return (name[:-1], unquote(value, errors="surrogateescape")) if name.endswith("~") else (name, value)


def survives(value: bytes) -> bool:
    """Whether a text comes back from a browser's form as it was, but for its line ends."""
    try:
        return "\0" not in value.decode()
    except UnicodeDecodeError:
        return False


class Form:
    """The fields of a form or of a link, each as its last value."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        self._pairs = pairs
        self._last = dict(pairs)

    @classmethod
    def of_query(cls, request: Request) -> Form:
        """Raises TooLarge."""
        return cls.parse(query_of(request))

    @classmethod
    async def read(cls, request: Request, most: int = FORM_BYTES) -> Form:
        """The body of a POST, of so many bytes at most. Raises TooLarge."""
        parts, size = [], 0
        try:
            async with asyncio.timeout(_FORM_S):
                async for chunk in request.stream():
                    size += len(chunk)
                    if size > most:
                        raise TooLarge
                    parts.append(chunk)
        except TimeoutError:
            raise TooLarge from None
        # In a thread: a large one takes a tenth of a second and more.
        return await asyncio.to_thread(cls.parse, b"".join(parts).decode("latin-1"))

    @classmethod
    def parse(cls, text: str) -> Form:
        try:
            pairs = parse_qsl(
                text, keep_blank_values=True, errors="surrogateescape", max_num_fields=_FORM_FIELDS, encoding="utf-8"
            )
        except ValueError:
            raise TooLarge from None
        return cls([_whole(name, value) for name, value in pairs])

    def text(self, name: str, default: str = "") -> str:
        return self._last.get(name, default)

    def bytes(self, name: str) -> bytes:
        return self.text(name).encode("utf-8", "surrogateescape")

    def all(self, name: str) -> list[str]:
        return [value for key, value in self._pairs if key == name]

    def number(self, name: str, default: int, low: int, high: int) -> int:
        """A number within bounds; the default where it is none."""
        text = self.text(name)
        return min(high, max(low, int(text))) if text.isascii() and text.isdigit() and len(text) < 12 else default

    def has_token(self, token: str) -> bool:
        return hmac.compare_digest(self.bytes("csrf"), token.encode())


@dataclass(slots=True)
class Page:
    """One request of a user who is logged in; call it to run a command as that user."""

    console: Console
    request: Request
    session: Session
    token: str
    form: Form
    run: Insider

    @property
    def key(self) -> bytes:
        return self.form.bytes("key")

    async def show(self, template: str, status: int = 200, **values: Any) -> Response:
        return await page(self.request, template, status, self.session, **values)

    def to(self, path: str, **query: Word) -> Response:
        """Go on there, after a change."""
        return RedirectResponse(link(path, **query), 303)

    async def attempt(self, *words: Word) -> tuple[Any, str]:
        """A reply and "", or None and the error: where a page shows the rest of it all the same."""
        try:
            return await self.run(*words), ""
        except Refused as error:
            return None, str(error)


async def page(
    request: Request, template: str, status: int = 200, session: Session | None = None, **values: Any
) -> Response:
    """Fill a template."""
    values = {"session": session, "path": request.scope["path"], "memory": None} | values

    def fill() -> bytes:
        # What a link brought may hold bytes that are no UTF-8.
        return _environment().get_template(template).render(values).encode("utf-8", "backslashreplace")

    return HTMLResponse(await asyncio.to_thread(fill), status)


def link(path: str, **query: Word) -> str:
    """A link to a page of ours; None and empty texts are left out."""
    pairs = [
        f"{name}={quote(value if isinstance(value, bytes) else str(value).encode('utf-8', 'surrogateescape'), safe='')}"
        for name, value in query.items()
        if value is not None and (value != "" or name == "key")
    ]
    return path + ("?" + "&".join(pairs) if pairs else "")


def query_of(request: Request) -> str:
    """What stands behind the `?`. Not by `request.url`, which is made of the Host header, be that what it may."""
    query: bytes = request.scope["query_string"]
    return query.decode("latin-1")


def address(request: Request) -> str:
    return request.client.host if request.client is not None else "?"


def asset(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    """A file that every page needs."""
    content = (resources.files(__package__) / _FOLDER / name).read_bytes()

    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind, headers={"cache-control": "no-cache"})

    return answer


# What templates say values with.


def text(value: Any) -> str:
    """Bytes as people read them."""
    shown = value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)
    return shown.replace("\0", "\\x00")


def short(value: Any, length: int = 120) -> str:
    """The beginning of it, on one line."""
    # A character has four bytes at most. Of long texts, all of them would take seconds.
    return cut(text(value[: 4 * length + 4] if isinstance(value, bytes) else value), length)


def when(ms: Any) -> str:
    """Unix milliseconds as a time, in UTC."""
    if ms is None or ms == "":
        return NOTHING
    try:
        return datetime.fromtimestamp(float(ms) / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return str(ms)


def iso(ms: Any) -> str:
    """Unix milliseconds for an <input type=datetime-local>."""
    if ms is None or ms == "":
        return ""
    try:
        return datetime.fromtimestamp(float(ms) / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    except (OverflowError, ValueError, OSError):
        return ""


def size(count: Any) -> str:
    """Bytes for people."""
    count = float(count or 0)
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000 or unit == "GB":
            return f"{count:.0f} {unit}" if unit == "B" or abs(count) >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    raise AssertionError


def number(value: Any, places: int = 4) -> str:
    """A number as short as it can be."""
    if value is None:
        return NOTHING
    if isinstance(value, int):
        return f"{value:,}"
    value = float(value)
    return f"{value:.{places}f}" if isfinite(value) else str(value)


def signed(value: int) -> str:
    return f"+{value:,}" if value > 0 else f"{value:,}"


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader(__package__ or "recalld.server", _FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    filters: Mapping[str, Callable[..., Any]] = {
        "text": text,
        "when": when,
        "iso": iso,
        "bytes": size,
        "number": number,
        "signed": signed,
        "short": short,
        "survives": survives,
    }
    environment.filters.update(filters)
    environment.globals |= {"link": link, "field": field}
    return environment
