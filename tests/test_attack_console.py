"""The console attacked: what browsers make of hostile bytes, two who write at once, sessions, streams, names of this
machine, and memories that are large."""

from __future__ import annotations

import asyncio
import http.client
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import h11
import pytest
from console_demo import CHROMIUM, DRIVER, PASSWORD, as_device, browser, console, fill, wire_to
from durable import eventually
from harness import PATIENCE_S, Running, Wire
from recalld.server import console as console_module
from recalld.server import console_facts, console_svg
from recalld.server.console_page import Form, field, short
from recalld.server.console_session import Attempts
from test_console import PAGES, Answer, Visitor, at, elements_of, form_of

KEY = "user:ann"
#: Keys and ids that a browser does not send back as they were; with what it would make of them.
CHANGED = [
    (b"\xff", b"\\xff"),
    (b"a\nb", b"a\r\nb"),
    (b"a\r\nb", b"a\nb"),
    (b"nul\x00", "nul\ufffd".encode()),
    (b"\xed\xa0\x80", b"\\xed\\xa0\\x80"),
    (b"tab\t~", b"tab "),
]
#: And those that it does.
KEPT = ["a%2Fb", "a/b?c#d&e=f;g", "\u202egnp", " ", "", "~", "%", "+", "'\"<>", "\u2028", "é", "a~"]


@pytest.fixture(scope="module")
def _shared() -> Iterator[tuple[Running, int]]:
    with console() as (server, address):
        fill(wire_to(server))
        yield server, int(address.rpartition(":")[2])


@pytest.fixture
def server(_shared: tuple[Running, int]) -> Running:
    return _shared[0]


@pytest.fixture
def wire(server: Running) -> Iterator[Wire]:
    wire = wire_to(server)
    yield wire
    wire.close()


@pytest.fixture
def stranger(_shared: tuple[Running, int]) -> Visitor:
    _shared[0].server.console.attempts = Attempts()
    return Visitor(_shared[1])


@pytest.fixture
def visitor(stranger: Visitor) -> Visitor:
    assert stranger.log_in().status == 303
    return stranger


# Hostile bytes


def as_browser(name: str, value: str) -> str:
    """One field as a browser sends it: what HTML makes of NUL, what forms make of line ends."""
    value = value.replace("\0", "\ufffd")
    value = re.sub("\r\n|\r|\n", "\r\n", value)
    return f"{quote(name)}={quote(value, safe='')}"


def send(visitor: Visitor, path: str, body: str, **changes: str) -> Answer:
    """Post the form with that action."""
    fields: dict[str, str] = {}
    inside = False
    for tag, named in elements_of(body):
        if tag == "form":
            inside = named.get("action", "").startswith(path) and named.get("method") == "post"
        if inside and tag == "input" and named.get("type") != "checkbox" and named.get("name"):
            fields[named["name"]] = named.get("value", "")
    assert fields, "no such form"
    return visitor(path, "&".join(as_browser(*pair) for pair in (fields | changes).items()).encode())


@pytest.mark.parametrize(("key", "decoy"), CHANGED + [(key.encode(), b"another") for key in KEPT])
def test_a_form_is_about_the_memory_and_record_that_it_shows(
    visitor: Visitor, wire: Wire, key: bytes, decoy: bytes
) -> None:
    for name in (key, decoy):
        wire("MEM.CREATE", name, "MODE", "SEARCH")
        for record_id in {key or b"-", decoy}:
            wire("MEM.ADD", name, "ID", record_id, "TEXT", "here to stay", "META", "a", "1")
    record_id = key or b"-"
    page = visitor(at("/memory/record", key=key, id=record_id))
    assert send(visitor, "/memory/record", page.body, value0="2", text="here to stay").status == 303
    assert wire("MEM.GET", key, record_id, "WITHMETA")[b"meta"] == {b"a": b"2"}
    page = visitor(at("/memory/settings", key=key))
    assert send(visitor, "/memory/settings", page.body, halflife="77", fusion="LINEAR").status == 303
    assert wire("MEM.CONFIG", key)[b"halflife"] == 77
    page = visitor(at("/memory/delete", key=key, id=record_id))
    assert send(visitor, "/memory/delete", page.body).status == 303
    assert wire("MEM.GET", key, record_id) is None
    assert wire("MEM.CARD", key) == 1 and wire("MEM.CARD", decoy) == 2
    assert wire("MEM.CONFIG", decoy)[b"halflife"] != 77
    wire("DEL", key, decoy)


@pytest.mark.parametrize("value", [key for key, _ in CHANGED] + [key.encode() for key in KEPT] + [bytes(range(256))])
def test_hidden_fields_bring_all_bytes_back(value: bytes) -> None:
    assert Form.parse(as_browser(*field("key", value))).bytes("key") == value


def test_the_facts_of_any_entity_can_be_asked_again(visitor: Visitor, wire: Wire) -> None:
    wire("MEM.CREATE", "m", "MODE", "SEARCH")
    wire("MEM.FACT", "m", "ann", "knows", b"bob\xff", "TYPE", "PERSON")
    page = visitor(at("/memory/entity", key="m", name=b"bob\xff"))
    assert "ann" in page.text
    names = {named["name"]: named["value"] for tag, named in elements_of(page.body) if named.get("type") == "hidden"}
    names.pop("csrf")
    again = visitor("/memory/entity?" + "&".join(as_browser(*pair) for pair in names.items()) + "&depth=2")
    assert "knows" in again.text
    wire("DEL", "m")


def test_what_no_form_can_carry_is_left_alone(visitor: Visitor, wire: Wire) -> None:
    tags = [b"\xff", b"two\nlines", b" both ", "par\u2028agraph".encode(), b"plain"]
    meta = [b"nul", b"a\x00b", b"raw", b"\xe8", b"z", b"1"]
    pairs = [word for at_ in range(0, 6, 2) for word in (b"META", *meta[at_ : at_ + 2])]
    wire("MEM.ADD", KEY, "ID", "h", "TEXT", "text", "TAGS", len(tags), *tags, *pairs)
    before = wire("MEM.GET", KEY, "h", "WITHMETA")
    form = form_of(visitor(at("/memory/record", key=KEY, id="h")).body)
    sent = "&".join(as_browser(*pair) for pair in form.items())
    assert visitor("/memory/record", sent.encode()).headers["Location"].endswith("saved=0")
    assert wire("MEM.GET", KEY, "h", "WITHMETA") == before
    form |= {"tags": form["tags"] + "\r\nnew", "importance": "0.25"}
    sent = "&".join(as_browser(*pair) for pair in form.items())
    assert visitor("/memory/record", sent.encode()).headers["Location"].endswith("saved=1")
    after = wire("MEM.GET", KEY, "h", "WITHMETA")
    assert after[b"meta"] == before[b"meta"]
    assert after[b"tags"] == [*before[b"tags"], b"new"]
    wire("MEM.DEL", KEY, "h")


def test_a_live_event_leads_to_its_record_whatever_its_id(visitor: Visitor, wire: Wire) -> None:
    stream = open_stream(visitor)
    eventually(lambda: wire("PUBSUB", "NUMSUB", f"__mem__:{KEY}")[1] == 1)
    wire("MEM.ADD", KEY, "ID", b"\xfe \n", "TEXT", "x")
    assert stream.readline() + stream.readline() == b"retry: 3000\n\n"
    assert b'"to": "%FE%20%0A"' in stream.readline()
    wire("MEM.DEL", KEY, b"\xfe \n")
    stream.close()


def test_memories_are_found_by_a_part_with_a_backslash(visitor: Visitor, wire: Wire) -> None:
    wire("MEM.CREATE", "back\\slash", "MODE", "SEARCH")
    assert "1 memory." in visitor(at("/", search="k\\s")).text
    wire("DEL", "back\\slash")


# Two who write at once


def test_of_two_who_save_at_once_one_is_told(visitor: Visitor, wire: Wire) -> None:
    for round_ in range(10):
        wire("MEM.ADD", KEY, "ID", "both", "TEXT", f"before {round_}")
        form = form_of(visitor(at("/memory/record", key=KEY, id="both")).body)
        answers: list[tuple[int, str]] = []
        barrier = threading.Barrier(4)

        def save(text: str, form: dict[str, str], barrier: threading.Barrier, into: list[tuple[int, str]]) -> None:
            barrier.wait(PATIENCE_S)
            other = Visitor(visitor.port)
            other.cookie = visitor.cookie
            into.append((other("/memory/record", form | {"text": text}).status, text))

        threads = [threading.Thread(target=save, args=(f"t{n}", form, barrier, answers)) for n in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert sorted(status for status, _ in answers) == [303, 409, 409, 409]
        [won] = [text for status, text in answers if status == 303]
        assert wire("MEM.GET", KEY, "both")[b"text"] == won.encode()
    wire("MEM.DEL", KEY, "both")


def test_a_record_that_has_changed_is_not_deleted_unseen(visitor: Visitor, wire: Wire) -> None:
    wire("MEM.ADD", KEY, "ID", "d", "TEXT", "of no use")
    page = visitor(at("/memory/delete", key=KEY, id="d"))
    wire("MEM.ADD", KEY, "ID", "d", "TEXT", "all that we know")
    answer = send(visitor, "/memory/delete", page.body)
    assert answer.status == 409 and "all that we know" in answer.text
    assert wire("MEM.GET", KEY, "d") is not None
    assert send(visitor, "/memory/delete", answer.body).status == 303
    assert wire("MEM.GET", KEY, "d") is None
    assert send(visitor, "/memory/delete", answer.body).status == 303  # twice is once


def test_settings_that_have_changed_are_not_written_over_unseen(visitor: Visitor, wire: Wire) -> None:
    wire("MEM.CREATE", "s", "MODE", "SEARCH")
    body = visitor(at("/memory/settings", key="s")).body
    wire("MEM.CONFIG", "s", "HALFLIFE", 60)
    answer = send(visitor, "/memory/settings", body, b="0.5", fusion="LINEAR")
    assert answer.status == 400 and "have changed" in answer.text
    config = wire("MEM.CONFIG", "s")
    assert config[b"halflife"] == 60 and config[b"b"] == 0.4
    assert any(named.get("name") == "b" and named["value"] == "0.5" for _, named in elements_of(answer.body))
    wire("DEL", "s")


@pytest.mark.parametrize(
    ("name", "value"),
    [("halflife", 33), ("k1", 1.5), ("b", 0.25), ("history", 60), ("maxrecords", 9), ("maxbytes", 99)],
)
def test_every_setting_of_the_form_is_set(visitor: Visitor, wire: Wire, name: str, value: float) -> None:
    wire("MEM.CREATE", "s", "MODE", "SEARCH")
    page = visitor(at("/memory/settings", key="s"))
    assert send(visitor, "/memory/settings", page.body, **{name: str(value)}, fusion="LINEAR").status == 303
    assert float(wire("MEM.CONFIG", "s")[name.encode()]) == value
    wire("DEL", "s")


def test_what_was_saved_of_an_edit_is_not_in_the_way_of_the_rest(visitor: Visitor, wire: Wire) -> None:
    wire("MEM.ADD", KEY, "ID", "e", "TEXT", "one", "META", "a", "1")
    form = form_of(visitor(at("/memory/record", key=KEY, id="e")).body)
    answer = visitor("/memory/record", form | {"text": "two", "ttl": "soon"})
    assert answer.status == 400 and "Part of it is saved; the rest was refused: ERR" in answer.text
    form = form_of(answer.body)
    assert form["ttl"] == "soon"
    assert visitor("/memory/record", form | {"ttl": "60"}).status == 303
    record = wire("MEM.GET", KEY, "e")
    assert record[b"text"] == b"two" and record[b"pttl"] > 0
    wire("MEM.DEL", KEY, "e")


def test_nothing_of_a_refused_edit_is_lost(visitor: Visitor, wire: Wire) -> None:
    wire("MEM.ADD", KEY, "ID", "e", "TEXT", "one", "META", "a", "1")
    form = form_of(visitor(at("/memory/record", key=KEY, id="e")).body)
    given = {"text": "two", "value0": "long words", "new_field": "b", "new_value": "more", "tags": "x\r\ny", "ttl": "9"}
    answer = visitor("/memory/record", form | given | {"importance": "lots"})
    assert answer.status == 400
    form = form_of(answer.body)
    assert {name: form[name] for name in given} == given
    assert visitor("/memory/record", form | {"importance": "0.5"}).status == 303
    assert wire("MEM.GET", KEY, "e", "WITHMETA")[b"meta"] == {b"a": b"long words", b"b": b"more"}
    wire("MEM.DEL", KEY, "e")


# Who gets in


def test_a_page_elsewhere_gets_no_way_in_by_a_name_that_leads_here() -> None:
    """protected-mode lets this machine in without a password; so a browser on it must not be led here."""
    with console(requirepass="", protected_mode="yes", console_bind="0.0.0.0") as (_, address):
        port = int(address.rpartition(":")[2])
        foreign = f"evil.example:{port}"
        form = {"user": "default", "password": ""}
        assert Visitor(port)("/login", form, Host=foreign, Origin=f"http://{foreign}").status == 403
        assert Visitor(port)("/login", form).status == 303
        assert Visitor(port)("/login", Host=foreign).status == 403


@pytest.mark.parametrize("path", ["/login", "/", "/memory"])
def test_links_with_too_many_fields_are_refused(visitor: Visitor, path: str) -> None:
    for asking in (Visitor(visitor.port), visitor):
        answer = asking(path + "?" + "a=1&" * 2000)
        assert answer.status == (413 if asking is visitor or path == "/login" else 303), path


def test_a_stranger_sends_no_large_form(stranger: Visitor) -> None:
    assert stranger("/login", {"user": "default", "password": PASSWORD, "next": "x" * 20_000}).status == 413
    assert stranger.log_in().status == 303


def test_looking_at_the_login_is_no_wrong_password(stranger: Visitor) -> None:
    for _ in range(10):
        assert stranger("/login", method="HEAD").status == 200
    assert stranger.log_in().status == 303


@pytest.mark.parametrize(
    "host", ["[localhost", "localhost]", "[127.0.0.1]", "[::1", "[", "]", "@", "?", "#", "/", "::::"]
)
def test_a_broken_name_breaks_nothing(visitor: Visitor, host: str) -> None:
    for path in ("/", at("/memory", key=KEY), "/login?next=a"):
        assert visitor(path, Host=host).status in (200, 303, 403)


def test_what_is_asked_is_told_by_the_line_not_by_the_name() -> None:
    """Where any name is taken, one with a `?` in it does not bring a query of its own."""
    with console(console_bind="0.0.0.0") as (server, address):
        wire_to(server)("MEM.CREATE", "right", "MODE", "SEARCH")
        server.server.console.refusal = lambda request: None
        visitor = Visitor(int(address.rpartition(":")[2]))
        visitor.log_in()
        for host in ("a?key=wrong&b=", "a#", "a/memory?", "[", "a@b"):
            answer = visitor("/memory?key=right", Host=host)
            assert answer.status == 200 and "right" in answer.text


def test_behind_https_the_cookie_is_for_https(stranger: Visitor, wire: Wire) -> None:
    wire("CONFIG", "SET", "console-host", "memory.example.org")
    form = {"user": "default", "password": PASSWORD}
    headers = {"Host": "memory.example.org", "Origin": "https://memory.example.org"}
    assert "secure" in stranger("/login", form, **headers).headers["Set-Cookie"].lower()
    assert "secure" not in Visitor(stranger.port)("/login", form).headers["Set-Cookie"].lower()
    wire("CONFIG", "SET", "console-host", "")


def test_a_login_makes_a_session_of_its_own(stranger: Visitor, server: Running) -> None:
    """One that somebody else has planted does not become one's own."""
    sessions = server.server.console.sessions
    stranger.cookie = f"{server.server.console.cookie}=planted"
    assert stranger.log_in().status == 303
    assert "planted" not in stranger.cookie and sessions.find("planted") is None
    first = stranger.cookie
    assert stranger.log_in().status == 303
    assert stranger.cookie != first and sessions.find(first.partition("=")[2]) is None


@pytest.mark.parametrize("change", [("-mem.get",), ("resetkeys",), ("resetkeys", "~other:*"), ("resetkeys", "%W~*")])
def test_a_right_that_is_taken_away_is_gone_at_once(stranger: Visitor, wire: Wire, change: tuple[str, ...]) -> None:
    wire("ACL", "SETUSER", "eve", "on", ">pw", "allkeys", "+@all")
    stranger.log_in("pw", "eve")
    page = stranger(at("/memory/delete", key=KEY, id="keys"))
    assert "spare keys" in page.text
    wire("ACL", "SETUSER", "eve", *change)
    for path in ("/memory/record", "/memory/delete"):
        answer = stranger(at(path, key=KEY, id="keys"))
        assert answer.status == 403 and "spare keys" not in answer.text
    assert send(stranger, "/memory/delete", page.body).status == 403  # it would show what is there now
    assert wire("MEM.GET", KEY, "keys") is not None
    wire("ACL", "DELUSER", "eve")


def test_a_writer_who_may_not_read_is_shown_nothing(stranger: Visitor, wire: Wire) -> None:
    wire("ACL", "SETUSER", "eve", "on", ">pw", "~agent:*", "%W~*", "+@all")
    stranger.log_in("pw", "eve")
    assert KEY not in stranger("/").text and "agent:planner" in stranger("/").text
    for path in PAGES:
        if path.startswith("/memory") and not path.endswith(("/watch", "/events")):
            assert "spare keys" not in stranger(at(path, key=KEY, id="keys", q="keys")).text
    wire("ACL", "DELUSER", "eve")


# Streams and slow readers


def open_stream(visitor: Visitor) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", visitor.port, timeout=PATIENCE_S)
    connection.request("GET", at("/memory/events", key=KEY), headers={"Cookie": visitor.cookie})
    return connection.getresponse()


def test_streams_asked_for_at_once_are_bounded(visitor: Visitor, server: Running) -> None:
    asking = [socket.create_connection(("127.0.0.1", visitor.port), timeout=PATIENCE_S) for _ in range(24)]
    line = f"GET {at('/memory/events', key=KEY)} HTTP/1.1\r\nHost: localhost\r\nCookie: {visitor.cookie}\r\n\r\n"
    for each in asking:
        each.sendall(line.encode())
    found = sorted(each.recv(12)[9:] for each in asking)
    assert found == [b"200"] * 4 + [b"429"] * 20
    for each in asking:
        each.close()
    eventually(lambda: not server.server.console.streams)


def test_a_stream_that_is_left_before_it_begins_is_ended(visitor: Visitor, server: Running, wire: Wire) -> None:
    console = server.server.console
    scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/memory/events", "root_path": ""}
    scope["scheme"] = "http"
    scope |= {"query_string": b"key=user:ann", "client": ("127.0.0.1", 1), "server": ("127.0.0.1", visitor.port)}
    scope |= {"headers": [(b"host", b"localhost"), (b"cookie", visitor.cookie.encode())], "http_version": "1.1"}

    async def leave() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def nowhere(message: object) -> None:
        return None

    for _ in range(8):
        asyncio.run_coroutine_threadsafe(console.app(scope, leave, nowhere), server._loop).result(PATIENCE_S)
    assert not console.streams
    assert console.sessions.find(visitor.cookie.partition("=")[2]).streams == 0
    assert wire("PUBSUB", "NUMSUB", f"__mem__:{KEY}")[1] == 0


def test_who_takes_nothing_of_an_answer_is_cut_off(
    monkeypatch: pytest.MonkeyPatch, visitor: Visitor, server: Running, wire: Wire
) -> None:
    monkeypatch.setattr(console_module, "_PATIENCE_S", 0.05)
    wire("CONFIG", "SET", "mem-max-text-bytes", 1_000_000)
    wire("MEM.ADD", KEY, "ID", "long", "TEXT", "long " * 190_000)
    asking = socket.socket()
    asking.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    asking.connect(("127.0.0.1", visitor.port))
    path = at("/memory/record", key=KEY, id="long")
    line = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nCookie: {visitor.cookie}\r\n\r\n"
    for _ in range(8):  # more than the buffers of both ends hold
        asking.sendall(line.encode())
    connections = server.server.console._http.server_state.connections
    eventually(lambda: any(each.transport.get_write_buffer_size() for each in list(connections)) or not connections)
    eventually(lambda: not connections)
    asking.close()
    wire("MEM.DEL", KEY, "long")


def test_one_more_connection_takes_the_place_of_an_idle_one(
    monkeypatch: pytest.MonkeyPatch, visitor: Visitor, server: Running
) -> None:
    """Of the one that has been idle for longest; one with a request that is not answered stays."""
    monkeypatch.setattr(console_module, "_MOST_CONNECTIONS", 4)
    connections = server.server.console._http.server_state.connections
    eventually(lambda: not connections)
    stream = open_stream(visitor)
    idle = [socket.create_connection(("127.0.0.1", visitor.port), timeout=PATIENCE_S) for _ in range(3)]
    eventually(lambda: len(connections) == 4)
    for _ in range(5):
        assert visitor("/").status == 200
    assert idle[0].recv(1) == b""
    for each in idle:
        each.close()
    eventually(lambda: len(connections) == 1)
    monkeypatch.setattr(console_module, "_MOST_CONNECTIONS", 1)
    with pytest.raises(OSError):
        visitor("/")  # nobody else's answer is broken off for it
    assert stream.readline() == b"retry: 3000\n"
    stream.close()


@pytest.mark.parametrize(("patience_s", "gets_in"), [(0.0, True), (PATIENCE_S, False)])
def test_who_sends_a_body_by_drops_keeps_nobody_away(
    monkeypatch: pytest.MonkeyPatch, visitor: Visitor, server: Running, patience_s: float, gets_in: bool
) -> None:
    """One that asked just now stays, and so does one that is being answered."""
    monkeypatch.setattr(console_module, "_MOST_CONNECTIONS", 4)
    monkeypatch.setattr(console_module, "_BODY_S", patience_s)
    connections = server.server.console._http.server_state.connections
    eventually(lambda: not connections)
    stream = open_stream(visitor)
    head = f"POST /login HTTP/1.1\r\nHost: localhost:{visitor.port}\r\nContent-Length: 100\r\n\r\nuser="
    stalled = [socket.create_connection(("127.0.0.1", visitor.port), timeout=PATIENCE_S) for _ in range(3)]
    eventually(lambda: len(connections) == 4)
    for left in (2, 1, 0):
        stalled[2 - left].sendall(head.encode())
        eventually(lambda left=left: sum(each.is_idle for each in list(connections)) == left)
    if gets_in:
        for number in range(5):
            for each in stalled[bool(number) :]:
                each.sendall(b"x")
            assert visitor("/").status == 200
        assert stalled[0].recv(1) == b""
    else:
        with pytest.raises(OSError):
            visitor("/")
    assert stream.readline() == b"retry: 3000\n"
    for each in stalled:
        each.close()
    stream.close()


@pytest.mark.parametrize(
    ("change", "stalled"),
    [
        ({}, True),
        ({"method": "GET"}, False),  # no page waits for the body of one
        ({"more_body": False}, False),
        ({"response_started": True}, False),
        ({"response_complete": True}, False),  # idle, in another way
        ({"sent": b"x"}, False),
        ({"read_paused": True}, False),
        ({"seconds": 0.5}, False),
        ({"body_bytes": 60 << 12}, True),
        ({"body_bytes": 61 << 12}, False),
        ({"body_bytes": 61 << 12, "write_paused": True}, True),
        ({"response_started": True, "write_paused": True}, True),
        ({"method": "GET", "write_paused": True, "seconds": 0.5}, False),
    ],
)
def test_who_stalls_what_is_asked(change: dict[str, Any], stalled: bool) -> None:
    state: dict[str, Any] = {"method": "POST", "more_body": True, "response_started": False, "response_complete": False}
    state |= {"sent": b"", "read_paused": False, "write_paused": False, "seconds": 60.0, "body_bytes": 0} | change
    connection = object.__new__(console_module._Connection)
    names = ("more_body", "response_started", "response_complete")
    connection.cycle = SimpleNamespace(scope={"method": state["method"]}, **{name: state[name] for name in names})
    connection.flow = SimpleNamespace(**{name: state[name] for name in ("read_paused", "write_paused")})
    connection._sent, connection._body_bytes = state["sent"], state["body_bytes"]
    connection._since = time.monotonic() - state["seconds"]
    assert connection.is_stalled is stalled


def test_a_body_is_read_a_little_at_a_time(monkeypatch: pytest.MonkeyPatch, stranger: Visitor) -> None:
    """Of one-byte chunks a few kilobytes are hundreds of events: the loop takes others in between."""
    sizes: list[int] = []
    receive = h11.Connection.receive_data

    def counted(self: h11.Connection, data: bytes) -> None:
        sizes.append(len(data))
        receive(self, data)

    monkeypatch.setattr(h11.Connection, "receive_data", counted)
    body = f"user=default&password={PASSWORD}&next=/".encode()
    chunks = b"".join(b"1;%s\r\n%c\r\n" % (b"x" * 400, byte) for byte in body) + b"0\r\n\r\n"
    asking = socket.create_connection(("127.0.0.1", stranger.port), timeout=PATIENCE_S)
    head = f"POST /login HTTP/1.1\r\nHost: localhost:{stranger.port}\r\nTransfer-Encoding: chunked\r\n\r\n"
    follows = f"GET /console.css HTTP/1.1\r\nHost: localhost:{stranger.port}\r\nConnection: close\r\n\r\n"
    asking.sendall(head.encode() + chunks + follows.encode())
    answers = all_of(asking)
    assert answers.startswith(b"HTTP/1.1 303 ") and b"HTTP/1.1 200 " in answers
    assert b"connection: close" not in answers.lower().partition(b"\r\n\r\n")[0]
    assert max(sizes) <= 1024 and sum(sizes) == len(head) + len(chunks) + len(follows)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ("GET /login", 200),
        ("POST /login", 413),
        ("GET /nowhere", 404),
        ("POST /console.css", 405),
        ("POST /logout", 403),
    ],
)
@pytest.mark.parametrize(("size", "said"), [(1, ""), (16_000, ""), (16_000, "Connection: close\r\n")])
def test_what_comes_of_a_body_behind_the_answer_is_dropped(
    monkeypatch: pytest.MonkeyPatch, stranger: Visitor, asked: str, status: int, size: int, said: str
) -> None:
    """The answer is the last of its connection, and says so; what is still sent is no body, nor the next request."""
    asking = socket.create_connection(("127.0.0.1", stranger.port), timeout=PATIENCE_S)
    head = f"{asked} HTTP/1.1\r\nHost: localhost:{stranger.port}\r\n{said}Transfer-Encoding: chunked\r\n\r\n"
    asking.sendall(head.encode())
    chunk = b"%x\r\n%s\r\n" % (size, b"x" * size)
    if status == 413:
        asking.sendall(chunk * (16_384 // size + 1))
    answer = all_of(asking)
    assert answer.startswith(b"HTTP/1.1 %d " % status) and answer.count(b"HTTP/1.1 ") == 1
    assert answer.lower().partition(b"\r\n\r\n")[0].count(b"\r\nconnection: close") == 1
    fed = []
    monkeypatch.setattr(h11.Connection, "receive_data", lambda self, data: fed.append(data))
    asking.sendall(chunk * (100_000 // len(chunk)) + b"0\r\n\r\n" + head.encode())
    asking.shutdown(socket.SHUT_WR)
    assert asking.recv(1) == b"" and not fed
    asking.close()


def test_a_body_without_end_is_cut_off(stranger: Visitor, server: Running) -> None:
    asking = socket.create_connection(("127.0.0.1", stranger.port), timeout=PATIENCE_S)
    head = f"GET /login HTTP/1.1\r\nHost: localhost:{stranger.port}\r\nContent-Length: 99999999999\r\n\r\n"
    asking.sendall(head.encode())
    assert all_of(asking).startswith(b"HTTP/1.1 200 ")
    with pytest.raises(OSError):
        while True:
            asking.sendall(bytes(1 << 20))
    connections = server.server.console._http.server_state.connections
    eventually(lambda: not connections)
    asking.close()


def all_of(asking: socket.socket) -> bytes:
    """What comes until the other end has nothing more to say."""
    answer = b""
    while data := asking.recv(1 << 16):
        answer += data
    return answer


@pytest.mark.parametrize(
    ("looks", "closed"),
    [
        # At each look: which request, whether it is answered, how many bytes wait to be taken.
        ([("", True, 0)], True),
        ([("a", False, 0)] * 5, False),
        ([("a", False, 0), ("a", True, 0)], False),
        ([("a", True, 0), ("a", True, 0)], True),
        ([("a", True, 0), ("b", True, 0), ("c", True, 0)], False),
        ([("a", False, 9), ("a", False, 9)], True),
        ([("a", True, 9), ("a", True, 9)], True),
        ([("a", False, 9), ("a", False, 8), ("a", True, 7), ("a", True, 6)], False),
        ([("a", True, 9), ("a", True, 0)], True),
    ],
)
def test_connections_are_closed_that_ask_and_take_nothing(looks: list[tuple[str, bool, int]], closed: bool) -> None:
    connection = object.__new__(console_module._Connection)
    calls: list[str] = []
    waiting = 0
    transport = {"is_closing": lambda: False, "abort": lambda: calls.append("abort")}
    connection.transport = SimpleNamespace(**transport, get_write_buffer_size=lambda: waiting)
    connection.loop = SimpleNamespace(call_later=lambda delay, call: calls.append("again"))
    cycles = {name: SimpleNamespace(response_complete=False) for name, _, _ in looks if name}
    for name, answered, waiting in looks:  # noqa: B007 - the transport tells it
        connection.cycle = cycles.get(name)
        if name:
            cycles[name].response_complete = answered
        connection._look()
    assert calls == ["again"] * (len(looks) - closed) + ["abort"] * closed


# Large memories


def test_of_a_long_text_only_what_is_shown_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[int] = []
    clean = console_svg.clean
    monkeypatch.setattr(console_svg, "clean", lambda text: looked.append(len(text)) or clean(text))
    for text in (b"x" * 1_000_000, "é€😀".encode() * 100_000, b"\xff" * 1_000_000, "x" * 1_000_000):
        shown = short(text, 400)
        assert len(shown) == 400 and shown.endswith("…")
    assert looked == [399] * 4
    assert short("é€😀".encode() * 3, 9) == "é€😀" * 3
    assert short("é€😀".encode() * 3, 8) == "é€😀é€😀é…"


def test_the_graph_has_the_entities_with_the_most_facts_wherever_they_are(
    monkeypatch: pytest.MonkeyPatch, visitor: Visitor, wire: Wire
) -> None:
    wire("MEM.CREATE", "g", "MODE", "SEARCH")
    facts = [("MEM.FACT", "g", f"s{at_}", "knows", f"e{at_:04}", "TYPE", "PERSON") for at_ in range(1500)]
    facts += [("MEM.FACT", "g", f"s{at_}", "likes", "zoe", "TYPE", "PERSON") for at_ in range(9)]
    for begin in range(0, len(facts), 500):
        wire.pipeline(*facts[begin : begin + 500])
    page = visitor(at("/memory/entities", key="g", nodes="5"))
    assert "1,501 entities; the 1,496 with the fewest facts are not drawn." in page.text
    nodes = re.findall(r"<title>(\S+) \(person\), (\d+) facts", page.body, re.IGNORECASE)
    assert nodes[0] == ("zoe", "9") and len(nodes) == 5
    assert "<title>likes</title>" in page.body  # of facts behind the first thousand
    assert "The list has the 200 with the most facts." in page.text and page.body.count("<tr>") == 201
    monkeypatch.setattr(console_facts, "_REPLIES", 1)
    page = visitor(at("/memory/entities", key="g", nodes="5"))
    assert "; 501 more were not looked at." in page.text
    assert "Lines are those of the oldest 1,000 facts of 1,509." in page.text
    wire("DEL", "g")


# Bad words


@pytest.mark.parametrize(
    "moment", ["yesterday", "2026-13-40", "-1", "9" * 40, "\0", "2026-06-01T00:00:00Z OR 1", "nan", "<b>"]
)
@pytest.mark.parametrize("path", ["/memory/query", "/memory/facts", "/memory/entity"])
def test_a_bad_time_is_told(visitor: Visitor, path: str, moment: str) -> None:
    for name in ("asof", "knownat"):
        page = visitor(at(path, key=KEY, q="keys", name="tom", sent="1", **{name: moment}))
        assert page.status == 200, page.text
        assert path == "/memory/entity" or "ERR" in page.text or moment == "-1"
        assert "<b>" not in page.body


@pytest.mark.parametrize("word", ["", "-1", "0", "1e9", "9" * 11, "9" * 30, "٣", "\0", "x", "1.5", " 1", "%"])
def test_bad_numbers_show_some_page(visitor: Visitor, word: str) -> None:
    names = dict.fromkeys(("page", "top", "nodes", "depth"), word)
    for path in PAGES:
        if path not in ("/memory/events", "/memory/record", "/memory/delete"):
            assert visitor(at(path, key=KEY, q="keys", name="tom", sort=word, **names)).status == 200, path


def test_what_a_form_says_of_times_is_taken_as_browsers_write_them(visitor: Visitor) -> None:
    for moment in ("2026-05-25T00:00", "2026-05-25T00:00:01", "2026-05-25T00:00:01.5"):
        for path in ("/memory/query", "/memory/facts", "/memory/entity"):
            page = visitor(at(path, key=KEY, q="keys", name="tom", sent="1", asof=moment))
            assert page.status == 200 and "ERR" not in page.text
            assert moment in page.body


def test_no_template_trusts_anything_but_drawings() -> None:
    folder = Path(console_module.__file__).parent / "console_pages"
    pages = "".join(each.read_text(encoding="utf-8") for each in folder.glob("*.html"))
    trusted = re.findall(r"\{\{([^}]*)\|\s*safe", pages)
    assert {name.strip() for name in trusted} == {"drawing", "shown.bar", "missing_shown.bar"}
    assert not re.search(r"\son\w+=|\sstyle=|javascript:|\s[\w-]+=\{\{", pages)


# In a browser

#: Text whose contrast with what is behind it is below 4.5, and shapes that say something and are below 3.
FAINT = """(() => {
  const light = ink => { const [r, g, b] = ink.match(/[\\d.]+/g).slice(0, 3).map(c => c / 255)
    .map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4); return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const faint = (node, ink, least) => {
    while (node && getComputedStyle(node).backgroundColor === 'rgba(0, 0, 0, 0)') node = node.parentElement;
    const [low, high] = [light(ink), light(getComputedStyle(node).backgroundColor)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05) < least;
  };
  const found = [], walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, style = getComputedStyle(node);
    if (!walker.currentNode.textContent.trim() || !node.getClientRects().length || node.closest('.skip, .sr')) continue;
    if (faint(node, node.closest('svg') ? style.fill : style.color, 4.5)) found.push(node.outerHTML);
  }
  for (const [shapes, how] of [['input:not([type=hidden]), select, textarea', 'borderTopColor'],
      ['svg .edge, svg .line, svg .arrow, svg .now', 'stroke'],
      ['svg rect:not(.band, .bar-back, .bar-gap), svg circle', 'fill'], ['.swatch', 'backgroundColor']])
    for (const node of document.querySelectorAll(shapes))
      if (faint(node.parentElement, getComputedStyle(node)[how], 3)) found.push(node.outerHTML);
  return found; })()"""


@pytest.fixture(scope="module")
def _screen(_shared: tuple[Running, int]) -> Iterator[Any]:
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("needs chromium and chromedriver")
    pytest.importorskip("selenium", reason="needs selenium")
    from test_console_browser import Screen

    with browser() as driver:
        yield Screen(driver, f"http://127.0.0.1:{_shared[1]}")


@pytest.fixture
def screen(_screen: Any, visitor: Visitor) -> Any:
    """Logged in with the visitor's session."""
    _screen.open("/login")
    name, _, value = visitor.cookie.partition("=")
    _screen.driver.delete_all_cookies()
    _screen.driver.add_cookie({"name": name, "value": value})
    as_device(_screen.driver, 1100, 900)
    return _screen


@pytest.mark.parametrize(("key", "decoy"), CHANGED)
def test_what_a_person_deletes_is_what_the_page_shows(screen: Any, wire: Wire, key: bytes, decoy: bytes) -> None:
    for name in (key, decoy):
        wire("MEM.CREATE", name, "MODE", "SEARCH")
        for record_id in (key, decoy):
            wire("MEM.ADD", name, "ID", record_id, "TEXT", "words")
    screen.open(at("/memory/delete", key=key, id=key))
    screen.one("main button.danger").click()
    screen.wait(lambda: wire("MEM.CARD", key) == 1)
    assert wire("MEM.GET", key, key) is None and wire("MEM.CARD", decoy) == 2
    screen.open(at("/memory/query", key=key))
    screen.one("[name=q]").send_keys("words\n")
    screen.wait(lambda: len(screen.all(".hit")) == 1)
    wire("DEL", key, decoy)


def test_no_word_is_too_long_for_a_phone(screen: Any, wire: Wire, stranger: Visitor) -> None:
    long = "x" * 300
    wire("MEM.CREATE", long, "MODE", "SEARCH")
    wire("MEM.ADD", long, "ID", long, "TEXT", f"word {long}", "META", long, long, "TAGS", 1, "t" * 100)
    old = wire("MEM.FACT", long, long, long, long, "TYPE", "ORG", "QUOTE", long, "EPISODE", long)
    wire("MEM.FACT", long, long, "p", f"{long}y", "TYPE", "ORG", "SUPERSEDES", old)
    wire("ACL", "SETUSER", "u" * 200, "on", ">pw", "allkeys", "allchannels", "+@all")
    stranger.log_in("pw", "u" * 200)
    screen.driver.add_cookie(dict(zip(("name", "value"), stranger.cookie.split("="), strict=True)))
    fields = dict.fromkeys(("tags", "field", "value", "why", "search", "name"), long) | {"q": f"word {long}"}
    of_record = {"/memory/record", "/memory/delete"}
    ids = {path: (long, old, long * 2) if path in of_record else (long,) for path in PAGES}
    paths = [at(path, key=long, id=record_id) for path in PAGES for record_id in ids[path]]
    paths += [at(path, key=long, id=long, **fields) for path in PAGES] + [at("/memory", key=long * 2), at("/nothing")]
    as_device(screen.driver, 360, 780)
    for path in paths:
        if not path.startswith("/memory/events"):
            screen.open(path)
            assert screen.ask("document.documentElement.scrollWidth") == 360, path.replace(long, "x")
    wire("ACL", "DELUSER", "u" * 200)
    wire("DEL", long)


@pytest.mark.parametrize("dark", [False, True])
def test_all_that_says_something_is_seen(screen: Any, dark: bool) -> None:
    as_device(screen.driver, 1100, 900, dark=dark)
    fields = {"q": "keys", "like": "keys", "why": "piano", "name": "tom", "id": "garage"}
    for path in (*PAGES, "/login", "/nothing"):
        if path != "/memory/events":
            screen.open(at(path, key=KEY, **fields))
            screen.driver.execute_script("document.querySelectorAll('details').forEach(each => each.open = true)")
            # The colours of buttons change slowly.
            screen.wait(lambda: not screen.ask("document.getAnimations().length"))
            assert screen.ask(FAINT) == [], path
