"""The console over HTTP: who gets in, what a form may do, what a page shows, and that it is all done by commands."""

from __future__ import annotations

import errno
import http.client
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html import unescape
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, urlencode

import pytest
from console_demo import HOSTILE, PASSWORD, ROOT, console, fill, wire_to
from durable import DIR
from faulty_files import FaultyFiles
from harness import DAY, JUNE, PATIENCE_S, SECOND, Clock, Running, Wire, free_port
from recalld.server.console_session import Attempts

KEY = "user:ann"
PAGES = (
    "/",
    "/status",
    "/slowlog",
    "/memory",
    "/memory/query",
    "/memory/facts",
    "/memory/entities",
    "/memory/entity",
    "/memory/record",
    "/memory/delete",
    "/memory/audit",
    "/memory/watch",
    "/memory/events",
    "/memory/settings",
)


class Answer:
    def __init__(self, response: http.client.HTTPResponse) -> None:
        self.status = response.status
        self.headers = response.headers
        self.body = response.read().decode()

    @property
    def text(self) -> str:
        """What a reader sees: without tags, spaces collapsed."""
        bare = re.sub(r"<(script|style|title)\b.*?</\1>|<[^>]+>", " ", self.body, flags=re.DOTALL)
        return " ".join(unescape(bare).split())


class Visitor:
    """A browser without a screen: cookies, forms, no redirects unless asked for."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""
        self.csrf = ""

    def __call__(
        self, path: str, form: dict[str, str] | bytes | None = None, method: str = "", **headers: str
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        fields = {"Cookie": self.cookie} if self.cookie else {}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        body = form if isinstance(form, bytes) else urlencode(form).encode() if form is not None else None
        if body is not None:
            fields.setdefault("Content-Type", "application/x-www-form-urlencoded")
        connection.request(method or ("GET" if body is None else "POST"), path, body, fields)
        answer = Answer(connection.getresponse())
        connection.close()
        given = answer.headers.get("Set-Cookie")
        if given:
            self.cookie = given.partition(";")[0]
        found = re.search(r'name="csrf" value="([^"]+)"', answer.body)
        if found:
            self.csrf = found[1]
        return answer

    def log_in(self, password: str = PASSWORD, user: str = "default") -> Answer:
        answer = self("/login", {"user": user, "password": password, "next": "/"})
        if answer.status == 303:
            self("/")  # for its csrf
        return answer

    def post(self, path: str, **form: str) -> Answer:
        return self(path, {"csrf": self.csrf, **form})


@pytest.fixture(scope="module")
def _shared() -> Iterator[tuple[Running, int]]:
    with console() as (server, address):
        fill(wire_to(server))
        yield server, int(address.rpartition(":")[2])


@pytest.fixture
def server(_shared: tuple[Running, int]) -> Running:
    running = _shared[0]
    assert isinstance(running.clock, Clock)
    return running


@pytest.fixture
def wire(server: Running) -> Iterator[Wire]:
    wire = wire_to(server)
    yield wire
    wire("ACL", "DELUSER", "eve")
    wire.close()


@pytest.fixture
def stranger(_shared: tuple[Running, int]) -> Visitor:
    server = _shared[0]
    server.server.console.attempts = Attempts()
    return Visitor(_shared[1])


@pytest.fixture
def visitor(stranger: Visitor) -> Visitor:
    assert stranger.log_in().status == 303
    return stranger


def at(path: str, **query: str | bytes) -> str:
    return path + "?" + "&".join(f"{name}={quote(value, safe='')}" for name, value in query.items())


# Who gets in


def test_a_stranger_sees_the_login_and_nothing_else(stranger: Visitor) -> None:
    for path in PAGES:
        answer = stranger(at(path, key=KEY))
        assert answer.status == 303, path
        assert answer.headers["Location"] == f"/login?next={quote(at(path, key=KEY), safe='')}"
        assert answer.body == ""
    assert stranger("/memory/delete", {"key": KEY, "id": "keys"}).status == 403
    assert stranger("/login").status == 200


@pytest.mark.parametrize(("user", "password"), [("default", "wrong"), ("default", ""), ("nobody", PASSWORD), ("", "")])
def test_wrong_passwords_are_refused(stranger: Visitor, user: str, password: str) -> None:
    answer = stranger.log_in(password, user)
    assert answer.status == 403 and "Wrong user or password." in answer.text
    assert stranger.cookie == "" and stranger("/").status == 303


def test_refused_logins_stand_in_the_acl_log(stranger: Visitor, wire: Wire) -> None:
    wire("ACL", "LOG", "RESET")
    stranger.log_in("wrong")
    [entry] = wire("ACL", "LOG")
    assert entry[b"reason"] == b"auth" and entry[b"username"] == b"default"
    assert b"wrong" not in b"".join(value for value in entry.values() if isinstance(value, bytes))


def test_the_cookie_is_for_this_site_and_no_script(stranger: Visitor) -> None:
    given = stranger("/login", {"user": "default", "password": PASSWORD, "next": "/"}).headers["Set-Cookie"]
    token, *attributes = given.split("; ")
    assert len(token.partition("=")[2]) >= 43
    assert {attribute.lower() for attribute in attributes} == {"httponly", "samesite=strict", "path=/"}


@pytest.mark.parametrize(
    "target", ["//evil.example/", "https://evil.example/", "/\\evil.example", "/x\r\nSet-Cookie: a=b"]
)
def test_the_login_leads_to_no_other_place(stranger: Visitor, target: str) -> None:
    answer = stranger("/login", {"user": "default", "password": PASSWORD, "next": target})
    assert answer.headers["Location"] == "/"


def test_after_some_wrong_passwords_an_address_must_wait(stranger: Visitor, server: Running) -> None:
    clock = server.clock
    assert isinstance(clock, Clock)
    before = clock.now_ms
    for _ in range(5):
        assert stranger.log_in("wrong").status == 403
    refused = stranger.log_in()  # even with the right one
    assert refused.status == 429 and int(refused.headers["Retry-After"]) == 20
    clock.advance(20 * SECOND)
    assert stranger.log_in("wrong").status == 403
    assert stranger.log_in().status == 429
    clock.advance(20 * SECOND)
    assert stranger.log_in().status == 303
    clock.now_ms = before


def test_sessions_end(visitor: Visitor, server: Running) -> None:
    clock = server.clock
    assert isinstance(clock, Clock)
    before = clock.now_ms
    clock.advance(1_799 * SECOND)
    assert visitor("/").status == 200  # idle time begins anew
    clock.advance(1_799 * SECOND)
    assert visitor("/").status == 200
    clock.advance(1_801 * SECOND)
    assert visitor("/").status == 303
    clock.now_ms = before
    visitor.log_in()
    old = visitor.cookie
    assert visitor.post("/logout").status == 303
    visitor.cookie = old
    assert visitor("/").status == 303


def test_a_session_lasts_twelve_hours_at_most(visitor: Visitor, server: Running) -> None:
    clock = server.clock
    assert isinstance(clock, Clock)
    before = clock.now_ms
    for _ in range(24):
        clock.advance(1_799 * SECOND)
        assert visitor("/slowlog").status == 200
    clock.advance(1_000 * SECOND)
    assert visitor("/slowlog").status == 303
    clock.now_ms = before


def test_sessions_are_bounded(visitor: Visitor, server: Running) -> None:
    sessions = server.server.console.sessions
    tokens = [sessions.open(server.server.acl.default) for _ in range(300)]
    assert len(sessions) == 256
    assert sessions.find(tokens[0]) is None and sessions.find(tokens[-1]) is not None


@pytest.mark.parametrize("change", [("off",), (">other",), ("resetpass", ">third")])
def test_a_user_who_changes_is_logged_out(stranger: Visitor, wire: Wire, change: tuple[str, ...]) -> None:
    wire("ACL", "SETUSER", "eve", "on", ">pw", "allkeys", "+@all")
    assert stranger.log_in("pw", "eve").status == 303
    assert stranger("/").status == 200
    wire("ACL", "SETUSER", "eve", *change)
    assert stranger("/").status == 303


def test_a_user_who_is_deleted_is_logged_out(stranger: Visitor, wire: Wire) -> None:
    wire("ACL", "SETUSER", "eve", "on", ">pw", "allkeys", "+@all")
    stranger.log_in("pw", "eve")
    wire("ACL", "DELUSER", "eve")
    wire("ACL", "SETUSER", "eve", "on", ">pw", "allkeys", "+@all")
    assert stranger("/").status == 303


# What a form may do


def test_posts_need_the_token_of_the_session(visitor: Visitor, wire: Wire) -> None:
    other = Visitor(visitor.port)
    other.log_in()
    for token in ("", "wrong", other.csrf):
        assert visitor("/memory/delete", {"key": KEY, "id": "keys", "csrf": token}).status == 403
    assert visitor("/memory/delete", {"key": KEY, "id": "keys"}).status == 403
    assert wire("MEM.GET", KEY, "keys") is not None


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ],
)
def test_forms_of_other_pages_are_refused(visitor: Visitor, wire: Wire, headers: dict[str, str]) -> None:
    form = {"key": KEY, "id": "keys", "csrf": visitor.csrf}
    assert visitor("/memory/delete", form, **headers).status == 403
    assert visitor("/login", {"user": "default", "password": PASSWORD}, **headers).status == 403
    assert wire("MEM.GET", KEY, "keys") is not None


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.evil.example:1", ""]
)
def test_other_names_for_this_machine_are_refused(visitor: Visitor, host: str) -> None:
    assert visitor("/", Host=host).status == 403
    assert visitor("/login", Host=host).status == 403


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8080", "127.0.0.1:1", "[::1]:7172", "[::1]"])
def test_names_of_this_machine_are_not(visitor: Visitor, host: str) -> None:
    assert visitor("/", Host=host).status == 200


def test_a_proxy_has_a_name(visitor: Visitor, wire: Wire) -> None:
    wire("CONFIG", "SET", "console-host", "Console.example.org")
    headers = {"Host": "console.example.org", "Origin": "https://console.example.org"}
    assert visitor("/", Host="console.example.org").status == 200
    assert visitor("/memory/delete", {"key": KEY, "id": "none", "csrf": visitor.csrf}, **headers).status == 303
    assert visitor("/", Host="console.example.com").status == 403
    wire("CONFIG", "SET", "console-host", "")
    assert visitor("/", Host="console.example.org").status == 403


def test_get_changes_nothing(visitor: Visitor, wire: Wire) -> None:
    before = wire("MEM.LIST", KEY, "WITHMETA", "LIMIT", 1000)
    for path in PAGES:
        if path != "/memory/events":
            visitor(at(path, key=KEY, id="keys", csrf=visitor.csrf, text="x", ttl="1", name="tom", halflife="1"))
    for path in ("/logout", "/memory/invalidate"):
        assert visitor(at(path, key=KEY, id="keys", csrf=visitor.csrf)).status == 405
    assert wire("MEM.LIST", KEY, "WITHMETA", "LIMIT", 1000) == before


def test_large_forms_are_not_read(visitor: Visitor) -> None:
    assert visitor("/memory/record", b"text=" + b"x" * (4 << 20)).status == 413
    assert visitor("/memory/record", b"a=1&" * 2000).status == 413
    assert visitor("/").status == 200


def test_every_answer_has_the_headers(visitor: Visitor) -> None:
    for path in ("/", "/login", "/console.css", "/console.js", "/nothing", at("/memory", key="absent"), "/status"):
        headers = visitor(path).headers
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'self';") and "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "same-origin"
        assert headers["Cache-Control"] in ("no-store", "no-cache")
        assert headers["Server"] is None
    assert visitor("/", Host="evil.example").headers["X-Frame-Options"] == "DENY"


# What a user may do


def test_a_user_sees_only_what_it_may(stranger: Visitor, wire: Wire) -> None:
    wire("ACL", "SETUSER", "eve", "on", ">pw", "~agent:*", "+@read", "+scan")
    stranger.log_in("pw", "eve")
    listed = stranger("/").text
    assert "agent:planner" in listed and "user:ann" not in listed
    assert stranger(at("/memory", key="agent:planner")).status == 200
    wire("ACL", "LOG", "RESET")
    for path in ("/memory", "/memory/query", "/memory/record", "/memory/settings"):
        answer = stranger(at(path, key=KEY, id="keys", q="keys"))
        assert answer.status == 403 and "NOPERM" in answer.text
        assert "spare keys" not in answer.text
    assert {entry[b"reason"] for entry in wire("ACL", "LOG")} == {b"key"}
    for path in ("/status", "/slowlog"):
        assert stranger(path).status == 403
    assert stranger.post("/memory/delete", key="agent:planner", id="1").status == 403
    assert wire("MEM.GET", "agent:planner", "1") is not None
    page = stranger(at("/memory/facts", key=KEY))
    assert "NOPERM" in page.text and "lisbon" not in page.text
    # Listening is a right of its own.
    assert stranger(at("/memory/events", key="agent:planner")).status == 403


def test_the_documented_onlooker_sees_and_changes_nothing(stranger: Visitor, wire: Wire) -> None:
    page = (ROOT / "docs" / "console.md").read_text(encoding="utf-8")
    [rules] = re.findall(r"^    ACL SETUSER ann (.*)$", page, re.MULTILINE)
    wire("ACL", "SETUSER", "eve", *rules.split())
    stranger.log_in("secret", "eve")
    assert "1 memory." in stranger("/").text
    for path in ("/status", *(at(path, key="team:support", id="1") for path in PAGES if path.startswith("/memory"))):
        if "/events" not in path:
            assert stranger(path).status == 200, path
    assert stranger(at("/memory", key=KEY)).status == 403
    form = form_of(stranger(at("/memory/record", key="team:support", id="1")).body)
    for changed in ({"text": "new"}, {"new_field": "a", "new_value": "b"}, {"ttl": "1"}):
        answer = stranger("/memory/record", form | changed)
        assert answer.status == 403 and "NOPERM" in answer.text
    wire("ACL", "LOG", "RESET")
    connection = http.client.HTTPConnection("127.0.0.1", stranger.port, timeout=PATIENCE_S)
    connection.request("GET", at("/memory/events", key="team:support"), headers={"Cookie": stranger.cookie})
    response = connection.getresponse()
    assert response.status == 200 and response.readline() == b"retry: 3000\n"
    # Who may not hear it any more hears no more.
    wire("ACL", "SETUSER", "eve", "resetchannels")
    while not wire("PUBSUB", "NUMSUB", "__mem__:team:support")[1]:
        pass
    wire("MEM.SETMETA", "team:support", "1", "a", "b")
    assert b"event: ended" in response.read()
    connection.close()


def test_reads_are_audited_under_the_name_of_the_user(visitor: Visitor, wire: Wire) -> None:
    visitor(at("/memory/query", key=KEY, q="a telling question"))
    [newest] = wire("MEM.AUDIT", KEY, "LIMIT", 1)
    assert newest[b"accessor"] == b"default" and newest[b"command"] == b"MEM.QUERY"
    assert newest[b"client"].startswith(b"127.0.0.1") and b"console" in newest[b"client"]
    assert "a telling question" in visitor(at("/memory/audit", key=KEY)).text


def test_paused_writes_wait(visitor: Visitor, wire: Wire, server: Running) -> None:
    wire("MEM.ADD", KEY, "ID", "paused", "TEXT", "x")
    wire("CLIENT", "PAUSE", 60_000, "WRITE")
    try:
        assert visitor(at("/memory/record", key=KEY, id="paused")).status == 200
        answers: list[Answer] = []
        form = {"key": KEY, "id": "paused", "csrf": visitor.csrf}
        thread = threading.Thread(target=lambda: answers.append(visitor("/memory/delete", form)))
        thread.start()
        assert wire("MEM.GET", KEY, "paused") is not None
    finally:
        wire("CLIENT", "UNPAUSE")
    thread.join(PATIENCE_S)
    assert answers[0].status == 303 and wire("MEM.GET", KEY, "paused") is None


def test_the_memory_limit_holds(visitor: Visitor, wire: Wire) -> None:
    visitor(at("/memory/record", key=KEY, id="tea"))
    version = re.search(r'name="version" value="(\w+)"', visitor(at("/memory/record", key=KEY, id="tea")).body)
    assert version is not None
    wire("CONFIG", "SET", "maxmemory", "1")
    try:
        answer = visitor.post("/memory/record", key=KEY, id="tea", version=version[1], text="x", importance="0.3")
        assert answer.status == 503 and "The server refused: OOM" in answer.text
    finally:
        wire("CONFIG", "SET", "maxmemory", "0")


# Pages


def test_memories_are_listed_searched_and_ordered(visitor: Visitor) -> None:
    page = visitor("/").text
    assert "5 memories" in page and "user:bob" in page
    for search in ("agent", "agent:*"):
        found = visitor(at("/", search=search)).text
        assert "2 memories" in found and "agent:writer" in found and "user:bob" not in found
    assert "No memory has such a name." in visitor(at("/", search="zzz")).text


def test_growth_is_told_from_the_first_look(wire: Wire, visitor: Visitor, server: Running) -> None:
    wire("MEM.CREATE", "grows", "MODE", "SEARCH")
    try:
        wire("MEM.ADD", "grows", "TEXT", "one")
        row = re.search(r"grows</bdi>.*?</tr>", visitor(at("/", search="grows")).body, re.DOTALL)
        assert row is not None and "+1 " in row[0]
    finally:
        wire("DEL", "grows")


def test_many_memories_have_pages() -> None:
    with console(requirepass="") as (server, address):
        wire = server.wire(2)
        for at_ in range(0, 3_000, 500):
            wire.pipeline(*(("MEM.CREATE", f"m:{number:05}", "MODE", "SEARCH") for number in range(at_, at_ + 500)))
        visitor = Visitor(int(address.rpartition(":")[2]))
        assert visitor.log_in("").status == 303
        page = visitor("/?page=60").text
        assert "3,000 memories" in page and "Page 60 of 60" in page and "m:02999" in page and "m:02949" not in page
        assert "Page 60 of 60" in visitor("/?page=9999").text


def test_records_are_listed_and_filtered(visitor: Visitor) -> None:
    page = visitor(at("/memory", key=KEY)).text
    assert "The spare keys hang behind the door" in page and "source: chat" in page
    page = visitor(at("/memory", key=KEY, tags="taste, people", all_tags="1")).text
    assert "green tea" in page and "black, never" not in page
    page = visitor(at("/memory", key=KEY, field="@id", operator="EQ", value="wifi")).text
    assert "guest network" in page and "green tea" not in page
    assert visitor(at("/memory", key="absent")).status == 400


def test_a_query_shows_what_its_scores_are_made_of(visitor: Visitor, wire: Wire) -> None:
    answer = visitor(at("/memory/query", key=KEY, q="where are the keys", like="keys", top="3"))
    vector = wire("MEM.GET", KEY, "keys", "WITHVEC")[b"vector"]
    hits = wire("MEM.QUERY", KEY, "TEXT", "where are the keys", "VEC", vector, "TOPK", 3, "EXPLAIN")
    rows = re.findall(r'<th scope="row"><span class="swatch signal-(\w+)"></span>\w+</th>(.*?)</tr>', answer.body)
    shown = [(name, [float(cell) for cell in re.findall(r"[\d.]+(?=<)", cells)]) for name, cells in rows]
    expected = [
        (
            name.decode(),
            [
                *(round(part[each], 4) for each in (b"raw", b"scaled")),
                part[b"rank"],
                round(part[b"weight"], 2),
                round(part[b"contribution"], 4),
            ],
        )
        for hit in hits
        for name, part in hit[b"explain"].items()
        if isinstance(part, dict)
    ]
    assert len(expected) == 12
    assert [(name, pytest.approx(numbers, abs=1e-4)) for name, numbers in expected] == shown
    [term] = hits[0][b"explain"][b"terms"]
    assert f"key {term[b'idf']:.4f} 1.0 {term[b'part']:.4f}" in answer.text
    assert answer.body.count('class="bar"') == 3


def test_a_query_says_why_a_record_is_not_there(visitor: Visitor) -> None:
    page = visitor(at("/memory/query", key=KEY, q="keys", why="zzz")).text
    assert "Not among the hits: absent" in page
    page = visitor(at("/memory/query", key=KEY, q="keys", why="coffee", tier="KEYWORD")).text
    assert "Not among the hits: no query word and no vector" in page
    page = visitor(at("/memory/query", key=KEY, q="keys", asof="yesterday")).text
    assert "ERR 'yesterday' is not a time" in page


def test_a_query_goes_back_in_time(visitor: Visitor, wire: Wire, server: Running) -> None:
    wire("MEM.ADD", KEY, "ID", "moved", "TEXT", "zither in the attic", "AT", JUNE - 9 * DAY)
    wire("MEM.ADD", KEY, "ID", "moved", "TEXT", "zither in the cellar", "AT", JUNE - DAY)
    query = at("/memory/query", key=KEY, q="zither", tier="KEYWORD")
    assert "cellar" in visitor(query).text
    past = visitor(f"{query}&asof=2026-05-25T00%3A00").text
    assert "attic" in past and "cellar" not in past
    wire("MEM.FORGET", KEY, "FILTER", "@id", "EQ", "moved")


def form_of(body: str) -> dict[str, str]:
    """The fields of the edit form as a browser would send them back: line ends as CR LF."""

    class Reader(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.fields: dict[str, str] = {}
            self.area = ""

        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            named = {name: value or "" for name, value in attrs}
            if tag == "input" and named.get("type") != "checkbox" and "name" in named:
                self.fields[named["name"]] = named.get("value", "")
            if tag == "textarea":
                self.area = named["name"]
                self.fields[self.area] = ""

        def handle_data(self, data: str) -> None:
            if self.area:
                self.fields[self.area] += data

        def handle_endtag(self, tag: str) -> None:
            if tag == "textarea":
                text = self.fields[self.area].removeprefix("\n")  # as HTML has it
                self.fields[self.area] = text.replace("\r\n", "\n").replace("\r", "\n").replace("\n", "\r\n")
                self.area = ""

    reader = Reader()
    reader.feed(body[body.index("<h2>Edit</h2>") :])
    return reader.fields


def test_a_record_is_edited_and_only_what_changed_is_written(visitor: Visitor, wire: Wire) -> None:
    words = ["META", "a", "1", "META", "b", "x\ny", "TAGS", 2, "p", "q", "IMPORTANCE", 0.25, "TTL", 500, "PIN"]
    wire("MEM.ADD", KEY, "ID", "e", "TEXT", "\nfirst\r\nsecond ", "FVEC", 4, 1, 2, 3, 4, *words)
    before = wire("MEM.GET", KEY, "e", "WITHMETA", "WITHVEC", "WITHFACT")
    form = form_of(visitor(at("/memory/record", key=KEY, id="e")).body)
    changes = wire("INFO", "persistence")
    assert visitor("/memory/record", form).headers["Location"].endswith("saved=0")
    assert wire("INFO", "persistence") == changes
    assert wire("MEM.GET", KEY, "e", "WITHMETA", "WITHVEC", "WITHFACT") == before

    form |= {"tags": "q\r\nr", "importance": "0.75", "value0": "2", "drop1": "1"}
    form |= {"new_field": "c", "new_value": "3\r\n4"}
    assert visitor("/memory/record", form).headers["Location"].endswith("saved=1")
    after = wire("MEM.GET", KEY, "e", "WITHMETA", "WITHVEC", "WITHFACT")
    changed = {b"tags": [b"q", b"r"], b"importance": 0.75, b"meta": {b"a": b"2", b"c": b"3\n4"}}
    assert after == before | changed

    form = form_of(visitor(at("/memory/record", key=KEY, id="e")).body)
    form |= {"text": "quite new\r\nwords", "ttl": "0"}
    assert visitor("/memory/record", form).status == 303
    after = wire("MEM.GET", KEY, "e", "WITHMETA", "WITHVEC", "WITHFACT")
    assert after[b"text"] == b"quite new\nwords" and after[b"pttl"] == -1 and after[b"pin"] == 1
    assert after[b"created_at"] == before[b"created_at"]
    wire("MEM.DEL", KEY, "e")


def test_an_edit_of_what_has_changed_meanwhile_is_not_saved(visitor: Visitor, wire: Wire) -> None:
    wire("MEM.ADD", KEY, "ID", "e", "TEXT", "one")
    form = form_of(visitor(at("/memory/record", key=KEY, id="e")).body)
    wire("MEM.SETMETA", KEY, "e", "who", "else")
    answer = visitor("/memory/record", form | {"text": "two"})
    assert answer.status == 409 and "has changed since you opened it" in answer.text
    again = form_of(answer.body)
    assert again["text"] == "two"  # nothing of the work is lost
    assert wire("MEM.GET", KEY, "e")[b"text"] == b"one"
    wire("MEM.DEL", KEY, "e")


@pytest.mark.parametrize(("name", "value"), [("importance", "lots"), ("importance", "2"), ("ttl", "-1"), ("text", "")])
def test_a_bad_edit_says_why(visitor: Visitor, wire: Wire, name: str, value: str) -> None:
    wire("MEM.ADD", KEY, "ID", "e", "TEXT", "one")
    form = form_of(visitor(at("/memory/record", key=KEY, id="e")).body)
    answer = visitor("/memory/record", form | {name: value})
    if name == "text":  # any text will do, the empty one too
        assert answer.status == 303
    else:
        assert answer.status == 400 and "The server refused: ERR" in answer.text
        assert form_of(answer.body)[name] == value
    wire("MEM.DEL", KEY, "e")


def test_text_that_is_not_utf8_is_shown_and_kept(visitor: Visitor, wire: Wire) -> None:
    wire("MEM.ADD", KEY, "ID", b"\xff\xfe", "TEXT", b"caf\xe9 \x00", "META", b"\xe9", b"\xe8")
    page = visitor(at("/memory/record", key=KEY, id=b"\xff\xfe"))
    assert page.status == 200 and "caf\\xe9" in page.text
    form = form_of(page.body)
    assert "text" not in form
    body = urlencode({**form, "new_field": "n", "new_value": "v"} | {"id": b"\xff\xfe"}).encode()
    assert visitor("/memory/record", body).status == 303
    record = wire("MEM.GET", KEY, b"\xff\xfe", "WITHMETA")
    assert record[b"text"] == b"caf\xe9 \x00" and record[b"meta"] == {b"\xe9": b"\xe8", b"n": b"v"}
    wire("MEM.DEL", KEY, b"\xff\xfe")


def test_a_record_is_deleted_after_a_question(visitor: Visitor, wire: Wire) -> None:
    wire("MEM.ADD", KEY, "ID", "d", "TEXT", "to be gone")
    page = visitor(at("/memory/delete", key=KEY, id="d"))
    assert "to be gone" in page.text and wire("MEM.GET", KEY, "d") is not None
    assert visitor.post("/memory/delete", key=KEY, id="d").status == 303
    assert wire("MEM.GET", KEY, "d") is None
    assert visitor(at("/memory/delete", key=KEY, id="d")).status == 404


def test_facts_stand_on_a_time_line(visitor: Visitor, wire: Wire) -> None:
    page = visitor(at("/memory/facts", key=KEY))
    assert "12 facts, and 1 that ended or are to come." in page.text
    assert page.body.count('class="span-broken"') == 2 and page.body.count('class="arrow"') == 2
    assert page.body.count('class="span-ended"') == 1
    # As it was believed two years before: nothing of what was said since.
    past = visitor(at("/memory/facts", key=KEY, sent="1", knownat="2024-06-01T00:00", asof="2024-06-01T00:00"))
    assert "acme" in past.text and "tom works at initech" not in past.text
    assert "ann works at acme" not in visitor(at("/memory/facts", key=KEY, sent="1")).text
    found = visitor(at("/memory/facts", key=KEY, sent="1", entity="tom")).text
    assert "ann is married to tom" in found and "rust" not in found


def test_a_fact_is_invalidated_and_restored(visitor: Visitor, wire: Wire) -> None:
    fact = wire("MEM.FACT", KEY, "ann", "owns", "a zeppelin").decode()
    page = visitor(at("/memory/record", key=KEY, id=fact)).text
    assert "It is no longer true" in page and "state another one with MEM.FACT" in page
    visitor.post("/memory/invalidate", key=KEY, id=fact)
    assert wire("MEM.GET", KEY, fact, "WITHFACT")[b"fact"][b"invalid_at"] == JUNE
    visitor.post("/memory/invalidate", key=KEY, id=fact, clear="1")
    assert wire("MEM.GET", KEY, fact, "WITHFACT")[b"fact"][b"invalid_at"] is None
    wire("MEM.DEL", KEY, fact)


def test_entities_are_a_graph_that_leads_to_paths(visitor: Visitor) -> None:
    page = visitor(at("/memory/entities", key=KEY)).body
    assert page.count('class="node"') == 11  # ten entities, and ann, who is a subject
    assert f'href="/memory/entity?key={quote(KEY, safe="")}&amp;name=initech"' in page
    paths = visitor(at("/memory/entity", key=KEY, name="initech")).text
    assert "tom works at initech" in paths and "peanuts" not in paths
    assert "peanuts" in visitor(at("/memory/entity", key=KEY, name="initech", depth="3")).text


def test_settings_are_changed_where_they_differ(visitor: Visitor, wire: Wire) -> None:
    wire("MEM.CREATE", "tuned", "MODE", "SEARCH")
    page = visitor(at("/memory/settings", key="tuned"))
    assert "604800" in page.body
    form = {"weight_keyword": "0.6", "weight_vector": "0.2", "weight_recency": "0.1", "weight_importance": "0.1"}
    assert visitor.post("/memory/settings", key="tuned", halflife="60", fusion="RRF", **form).status == 303
    config = wire("MEM.CONFIG", "tuned")
    assert config[b"halflife"] == 60 and config[b"fusion"] == b"RRF" and config[b"weights"][b"keyword"] == 0.6
    answer = visitor.post("/memory/settings", key="tuned", halflife="-1", **form)
    assert answer.status == 400 and "ERR" in answer.text
    wire("DEL", "tuned")


def test_status_and_slow_log_show_what_was_done(visitor: Visitor) -> None:
    page = visitor("/status").text
    assert "mem.add" in page and "Commands per second" in page
    visitor(at("/memory/query", key=KEY, q="a slow question"))
    assert "a slow question" in visitor("/slowlog").text


def test_events_are_told_as_they_happen(visitor: Visitor, wire: Wire, server: Running) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", visitor.port, timeout=PATIENCE_S)
    connection.request("GET", at("/memory/events", key=KEY), headers={"Cookie": visitor.cookie})
    response = connection.getresponse()
    assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert response.readline() == b"retry: 3000\n" and response.readline() == b"\n"
    while not wire("PUBSUB", "NUMSUB", f"__mem__:{KEY}")[1]:
        pass
    wire("MEM.ADD", KEY, "ID", HOSTILE, "TEXT", "told")
    line = response.readline()
    assert line.startswith(b"data: {") and line.count(b"\n") == 1 and b'"event": "add"' in line
    wire("MEM.DEL", KEY, HOSTILE)
    connection.close()
    while wire("PUBSUB", "NUMSUB", f"__mem__:{KEY}")[1]:
        # It is noticed when something is sent.
        wire("MEM.ADD", KEY, "ID", "noise", "TEXT", "x")
    wire("MEM.DEL", KEY, "noise")


def open_stream(visitor: Visitor) -> http.client.HTTPResponse:
    connection = http.client.HTTPConnection("127.0.0.1", visitor.port, timeout=PATIENCE_S)
    connection.request("GET", at("/memory/events", key=KEY), headers={"Cookie": visitor.cookie})
    return connection.getresponse()


def test_streams_are_bounded_and_end_with_the_session(visitor: Visitor, wire: Wire) -> None:
    streams = [open_stream(visitor) for _ in range(4)]
    assert [stream.status for stream in streams] == [200] * 4
    assert open_stream(visitor).status == 429
    assert visitor.post("/logout").status == 303
    while wire("PUBSUB", "NUMSUB", f"__mem__:{KEY}")[1] < 4:
        pass
    wire("MEM.SETMETA", KEY, "keys", "seen", "1")  # not told any more
    for stream in streams:
        assert stream.read() == b"retry: 3000\n\nevent: ended\ndata: {}\n\n"
    wire("MEM.DELMETA", KEY, "keys", "seen")


def test_the_server_stops_under_an_open_stream() -> None:
    with console() as (server, address):
        wire_to(server)("MEM.CREATE", KEY, "MODE", "SEARCH")
        visitor = Visitor(int(address.rpartition(":")[2]))
        visitor.log_in()
        stream = open_stream(visitor)
        assert stream.readline() == b"retry: 3000\n"
    assert stream.read().startswith(b"\n")  # to its end: nothing was cut off


def elements_of(body: str) -> list[tuple[str, dict[str, str]]]:
    """Every element of a page with its attributes, as a browser reads it."""
    found: list[tuple[str, dict[str, str]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            found.append((tag, {name: value or "" for name, value in attrs}))

    Reader().feed(body)
    return found


def test_hostile_text_is_text_everywhere(visitor: Visitor, wire: Wire) -> None:
    key = f"k{HOSTILE}"
    wire("MEM.CREATE", key, "MODE", "SEARCH")
    wire("MEM.ADD", key, "ID", HOSTILE, "TEXT", f"word {HOSTILE}", "META", HOSTILE, HOSTILE, "TAGS", 1, HOSTILE)
    old = wire("MEM.FACT", key, HOSTILE, HOSTILE, HOSTILE, "TYPE", "ORG", "QUOTE", HOSTILE, "EPISODE", HOSTILE)
    wire("MEM.FACT", key, HOSTILE, "then", HOSTILE, "TYPE", "ORG", "SUPERSEDES", old)
    wire("MEM.ENTITY", key, HOSTILE, "TYPE", "ORG", "ALIAS", HOSTILE + "2")
    fields = {"q": HOSTILE, "why": HOSTILE, "search": "k", "name": HOSTILE.lower()}
    fields |= {"accessor": HOSTILE, "entity": HOSTILE}
    pages = [at(path, key=key, id=HOSTILE) for path in PAGES if path != "/memory/events"]
    pages += [at(path, key=key, id=old, **fields) for path in PAGES if path != "/memory/events"]
    pages += [at("/memory/query", key=key, q="word", why=HOSTILE)]
    pages += [at("/memory/query", key=key, q="word", field=HOSTILE, value="1")]
    pages += [at("/memory", key=HOSTILE, id=HOSTILE), at("/", search=HOSTILE), at("/login", next=HOSTILE)]
    seen = 0
    for page in pages:
        body = visitor(page).body
        elements = elements_of(body)
        scripts = [attributes for tag, attributes in elements if tag == "script"]
        assert scripts in ([], [{"src": "/console.js", "defer": ""}]), page
        assert not [tag for tag, _ in elements if tag in ("img", "iframe", "style", "object")], page
        assert not [name for _, named in elements for name in named if name.startswith("on") or name == "style"], page
        assert "'49" not in body, page
        seen += "&lt;script&gt;" in body
    assert seen > 15
    wire("DEL", key)


def test_bytes_that_are_no_text_break_no_page(visitor: Visitor, wire: Wire) -> None:
    key = b"\xff\x00\n\xc3"
    wire("MEM.CREATE", key, "MODE", "SEARCH")
    wire("MEM.ADD", key, "ID", b"\xfe", "TEXT", b"\xfd", "TAGS", 1, b"\xfc")
    wire("MEM.FACT", key, b"\xfb", b"\xfa", b"\xf9", "TYPE", "ORG")
    for path in PAGES:
        if path != "/memory/events":
            answer = visitor(at(path, key=key, id=b"\xfe", q=b"\xfd", name=b"\xf9", search=b"\xff", accessor=b"\xf0"))
            assert answer.status == 200, (path, answer.text)
    wire("DEL", key)


# The process


def test_a_server_without_a_password_is_for_this_machine() -> None:
    with console(requirepass="", protected_mode="yes") as (_, address):
        visitor = Visitor(int(address.rpartition(":")[2]))
        assert visitor.log_in("").status == 303
        assert visitor("/").status == 200


def test_it_is_off_by_default() -> None:
    with Running() as server:
        assert server.server.console is None


def test_a_missing_package_is_named(tmp_path: Path) -> None:
    """Without the extra the server says at start what to install."""
    blocked = tmp_path / "starlette"
    blocked.mkdir()
    (blocked / "__init__.py").write_text("raise ModuleNotFoundError('no', name='starlette')\n")
    words = ["--port", "0", "--bind", "127.0.0.1", "--appendonly", "no", "--console-port", str(free_port())]
    done = subprocess.run(
        [sys.executable, "-m", "recalld.server", *words],
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 1
    assert "console-port needs the package starlette: pip install 'recalld[console]'" in done.stdout + done.stderr


def test_an_edit_survives_a_restart(tmp_path: Path) -> None:
    """What a page says is saved is in the log."""
    port = free_port()
    with Running(dir=tmp_path, console_port=str(port), console_bind="127.0.0.1", appendfsync="always") as server:
        wire = server.wire(3)
        wire("MEM.CREATE", "m", "MODE", "SEARCH")
        wire("MEM.ADD", "m", "ID", "a", "TEXT", "one")
        visitor = Visitor(port)
        visitor.log_in("")
        form = form_of(visitor("/memory/record?key=m&id=a").body)
        assert visitor("/memory/record", form | {"text": "two"}).status == 303
        server.restart()
        assert server.wire(3)("MEM.GET", "m", "a")[b"text"] == b"two"


@pytest.mark.parametrize("policy", ["always", "everysec"])
def test_what_the_disk_refuses_is_not_called_saved(policy: str) -> None:
    files, port = FaultyFiles(), free_port()
    with Running(dir=DIR, files=files, console_port=str(port), console_bind="127.0.0.1", appendfsync=policy) as server:
        wire = server.wire(3)
        wire("MEM.CREATE", "m", "MODE", "SEARCH")
        wire("MEM.ADD", "m", "ID", "a", "TEXT", "one")
        visitor = Visitor(port)
        visitor.log_in("")
        form = form_of(visitor("/memory/record?key=m&id=a").body)
        files.fail("write", errno.ENOSPC, nth=0)
        for new in ("two", "three"):  # found out by this write, and known before the next
            answer = visitor("/memory/record", form | {"text": new})
            assert answer.status == 503 and "MISCONF" in answer.text
            form = form_of(visitor("/memory/record?key=m&id=a").body)
        files.heal()
