"""Attacks on users, rules and secrets that once worked, or might."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_embedder import FakeEmbedder
from harness import PATIENCE_S, SECOND, Clock, Running, Wire, WireError, Word
from hypothesis import given, settings
from hypothesis import strategies as st
from inference_stand_in import MESSAGE, StandIn, fact, says
from recalld.server import command_modules  # noqa: F401 - fills the table
from recalld.server.categories import every_command
from recalld.server.command_keys import keys_of
from recalld.server.dispatch import find

Start = Callable[..., Running]

DENIED_KEYS = "NOPERM this user has no permissions to access one of the keys used as arguments"


def user(server: Running, admin: Wire, name: str, *rules: Word, protocol: int = 2) -> Wire:
    """A connection of a user who has these rules."""
    admin("ACL", "SETUSER", name, "reset", "on", "nopass", *rules)
    wire = server.wire()
    assert wire("AUTH", name, "") == "OK"
    if protocol == 3:
        wire("HELLO", 3)
    return wire


def is_cut(wire: Wire) -> bool:
    """Whether the server has closed the connection, once it has answered what was sent before."""
    try:
        while True:
            wire.read()
    except (EOFError, ConnectionError):
        return True
    except TimeoutError:
        return False


# Every command's keys, and what each needs


#: A line for each command with keys, and for each option that changes what is needed -> key -> the rights it takes:
#: r to read, w to write, "" for any pattern that matches. A key with ? is left out where it may not be read.
LINES: dict[str, dict[str, str]] = {
    "COPY a new": {"a": "r", "new": "w"},
    "COPY a new DB 0 REPLACE": {"a": "r", "new": "w"},
    "DEL b c": {"b": "w", "c": "w"},
    "DUMP a": {"a": "r"},
    "EXISTS a b": {"a": "", "b": ""},
    "EXPIRE a 1000 NX": {"a": "w"},
    "EXPIREAT a 9999999999": {"a": "w"},
    "EXPIRETIME a": {"a": "r"},
    "MEM.ADD a ID 9 TEXT tea": {"a": "w"},
    "MEM.ADD a TEXT DEDUP META DEDUP DEDUP TAGS 1 DEDUP FVEC 2 1 0 VALIDUNTIL 9999999999999": {"a": "w"},
    "MEM.ADD a TEXT tea FVEC 2 1 0 dedup": {"a": "rw"},
    "MEM.ADD a ID DEDUP TEXT tea FVEC 2 1 0 DEDUP NEAR 0.5": {"a": "rw"},
    "MEM.ANALYZE a TEXT hello": {"a": "rw"},
    "MEM.AUDIT a": {"a": "r"},
    "MEM.CARD a": {"a": "r"},
    "MEM.CONFIG a": {"a": "r"},
    "MEM.CONFIG a K1 1.3": {"a": "w"},
    "MEM.CONSULT a TEXT hello": {"a": "r"},
    "MEM.CREATE new MODE SEARCH": {"new": "w"},
    "MEM.DEL a 1": {"a": "w"},
    "MEM.DELMETA a 1 f": {"a": "w"},
    "MEM.EMBED a": {"a": "w"},
    "MEM.ENTITIES a": {"a": "r"},
    "MEM.ENTITY a Anna ALIAS b MERGE c": {"a": "rw"},
    "MEM.EVICT a DRYRUN": {"a": "rw"},
    "MEM.EVICT a": {"a": "rw"},
    "MEM.EXPIRE a 1 1000": {"a": "w"},
    "MEM.EXPLAIN a 1 TEXT tea": {"a": "r"},
    "MEM.EXPLAIN a ACROSS TEXT ACROSS FILTER ACROSS EQ ACROSS ACROSS 1 b": {"a": "r", "b": "r?"},
    "MEM.FACT a user likes tea": {"a": "rw"},
    "MEM.FACT a user likes tea ID 7 SUPERSEDES b EPISODE c IMPORT 1 2 b": {"a": "rw"},
    "MEM.FACTS a ENTITY b": {"a": "r"},
    "MEM.FORGET a FILTER f EQ 1 DRYRUN": {"a": "rw"},
    "MEM.FORGET a TAGS ANY 1 t": {"a": "rw"},
    "MEM.GET a 1": {"a": "r"},
    "MEM.INFO a": {"a": "r"},
    "MEM.INVALIDATE a 5 CLEAR": {"a": "rw"},
    "MEM.LIST a": {"a": "r"},
    "MEM.MADD a 1 RECORD TEXT tea": {"a": "w"},
    "MEM.MGET a 1 2": {"a": "r"},
    "MEM.PATHS a b": {"a": "r"},
    "MEM.QUERY a TEXT tea": {"a": "r"},
    "MEM.QUERY a TEXT tea CASCADE DOWN": {"a": "r"},
    "MEM.QUERY a TEXT tea CASCADE UP ACROSS 2 b c": {"a": "r", "b": "r?", "c": "r?"},
    "MEM.QUERY a TEXT tea ACROSS 1 b ACROSS 1 c": {"a": "r", "c": "r?"},
    "MEM.QUERY a TEXT ACROSS TAGS ANY 2 ACROSS 1 ACROSS 1 b": {"a": "r", "b": "r?"},
    "MEM.RECALL a": {"a": "r"},
    "MEM.RECALL a TEXT tea SYNTHESIS CASCADE UP ACROSS 1 b": {"a": "r", "b": "r?"},
    "MEM.SCAN a 0": {"a": "r"},
    "MEM.SEARCH a tea": {"a": "r"},
    "MEM.SETMETA a 1 f v": {"a": "w"},
    "MEM.STATS a": {"a": "r"},
    "MEM.TIER a": {"a": "r"},
    "MEM.VERIFY a": {"a": "r"},
    "MEM.VSEARCH a FVEC 2 1 0": {"a": "r"},
    "MEMORY USAGE a": {"a": ""},
    "OBJECT ENCODING a": {"a": ""},
    "OBJECT FREQ a": {"a": ""},
    "OBJECT IDLETIME a": {"a": ""},
    "OBJECT REFCOUNT a": {"a": ""},
    "PERSIST a": {"a": "w"},
    "PEXPIRE a 1000000": {"a": "w"},
    "PEXPIREAT a 9999999999999": {"a": "w"},
    "PEXPIRETIME a": {"a": "r"},
    "PTTL a": {"a": "r"},
    "RENAME b new": {"b": "rw", "new": "w"},
    "RENAMENX b new": {"b": "rw", "new": "w"},
    "RESTORE new 0 payload": {"new": "w"},
    "TOUCH a": {"a": ""},
    "TTL a": {"a": "r"},
    "TYPE a": {"a": ""},
    "UNLINK b": {"b": "w"},
    "WATCH a b": {"a": "", "b": ""},
}

GIVEN = {"": "", "r": "%R~", "w": "%W~", "rw": "~"}


def entry_of(line: str) -> str:
    return find([word.encode() for word in line.split()]).name


def test_the_lines_have_every_command_with_keys() -> None:
    """A new command must say here what its keys are."""
    assert {entry_of(line) for line in LINES} == {entry.name for entry in every_command() if entry.keys != (0, 0, 0)}


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with Running(clock=Clock()) as server:
        yield server


@pytest.fixture
def admin(shared: Running) -> Iterator[Wire]:
    """An administrator of a server whose keys a, a:b, b, c hold words that are secret to who may not read them."""
    wire = shared.wire()
    wire("FLUSHALL")
    for key in ("a", "a:b", "b", "c"):
        wire("MEM.CREATE", key, "DIM", 2, "K1", "1.7")
        wire("MEM.ADD", key, "ID", "SECRET1", "TEXT", "SECRET tea", "FVEC", 2, 1, 0, "META", "f", "SECRET")
        wire("MEM.FACT", key, "user", "likes", "Annas", "TYPE", "PERSON", "ID", "SECRET5")
        wire("MEM.ENTITY", key, "Annas", "TYPE", "PERSON", "ALIAS", "Anna", "ALIAS", "SECRET name")
    yield wire
    for name in wire("ACL", "USERS"):
        if name != b"default":
            wire("ACL", "DELUSER", name)
    wire.close()


@pytest.mark.parametrize("line", LINES)
def test_each_key_takes_its_rights(admin: Wire, line: str) -> None:
    """With every combination of rights to each key, all else allowed."""
    needs = LINES[line]
    rights = {key: set(needed) - {"?"} for key, needed in needs.items()}
    for combination in itertools.product(GIVEN, repeat=len(needs)):
        patterns = [GIVEN[each] + key for key, each in zip(needs, combination, strict=True) if each]
        admin("ACL", "SETUSER", "u", "reset", "on", "+@all", *patterns)
        allowed = admin("ACL", "DRYRUN", "u", *line.split()) == "OK"
        enough = all(
            needs[key].endswith("?") or (each != "" and rights[key] <= set(each))
            for key, each in zip(needs, combination, strict=True)
        )
        assert allowed == enough, combination


@pytest.mark.parametrize("line", LINES)
def test_no_command_touches_a_key_that_the_table_does_not_know(
    shared: Running, admin: Wire, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """What it looks up, by name, while it runs."""
    keyspace = shared.server.keyspace
    touched: list[bytes] = []
    get = keyspace.get

    def spy(key: bytes, now: int) -> Any:
        touched.append(key)
        return get(key, now)

    words = [word.encode() for word in line.split()]
    known = {words[key.at] for key in keys_of(find(words), words)}
    monkeypatch.setattr(keyspace, "get", spy)
    admin.send(*words)
    admin.read()
    monkeypatch.undo()
    under = {b"a:b"} if b"DOWN" in words else set()
    assert set(touched) <= known | under


@pytest.mark.parametrize("line", LINES)
def test_who_may_only_write_reads_nothing(shared: Running, admin: Wire, line: str) -> None:
    """The replies of all that may be run with %W~ alone, errors among them: no word of what is stored."""
    wire = user(shared, admin, "u", "+@all", "%W~*")
    wire.send(*line.split())
    reply = wire.read()
    assert "SECRET" not in repr(reply)
    assert "1.7" not in repr(reply)  # a setting
    if any("r" in needed and "?" not in needed for needed in LINES[line].values()):
        assert reply == WireError(DENIED_KEYS)


# Each option of these commands, its values chosen to be taken for other options by who counts them wrongly.
_SHARED = (
    b"VEC ACROSSab|FVEC 2 1 0|TOPK 3|OFFSET 0|MINSCORE 0|FILTER ACROSS EQ ACROSS|TAGS ANY 2 ACROSS 1|TAGS ALL 1 b"
    b"|ASOF 9999999999999|KNOWNAT 9999999999999|NOTEXT|WITHMETA|WITHTAGS|WITHVEC|WITHVEC FLOATS|WITHSCORES|EXPLAIN"
    b"|WITHSTATS|WEIGHTS 1 1 1 1|FUSION RRF|FUSION LINEAR|RRFK 2|HALFLIFE 1|MINSIM 0|DIVERSITY 1|NOEMBED|FALLBACK LIKE"
    b"|TIER KEYWORD|TIER LIKE|TEXT ACROSS|TEXT tea|CASCADE UP|CASCADE DOWN|ACROSS 0|ACROSS 1 b|ACROSS 2 c CASCADE"
)
_OF = {
    b"MEM.QUERY a": _SHARED,
    b"MEM.EXPLAIN a SECRET1": _SHARED,
    b"MEM.RECALL a": (
        b"TEXT ACROSS|VEC ACROSSab|FVEC 2 1 0|FACTS 2|EPISODES 1|MINCONF 1|ANCHORTOPK 1|ANCHORMIN 0|ASOF 9999999999999"
        b"|BUDGET 9|FALLBACK RECENT|SYNTHESIS|FORMAT TEXT|FORMAT MAP|CASCADE UP|CASCADE DOWN|ACROSS 0|ACROSS 1 b"
        b"|ACROSS 2 c CASCADE"
    ),
    b"MEM.ADD a": (
        b"ID DEDUP|TEXT DEDUP|TEXT tea|VEC DEDUPabc|FVEC 2 1 0|META DEDUP DEDUP|TAGS 2 DEDUP TEXT|TAGS 0|IMPORTANCE 1"
        b"|TTL 9|AT 5|VALIDAT 5|VALIDUNTIL 9999999999999|KIND note|KIND episode|PIN|KEEPVEC|NX|XX|DEDUP|DEDUP NEAR 1"
    ),
}


def parts_of(command: bytes) -> list[bytes]:
    return _OF[command].split(b"|")


@pytest.mark.parametrize("command", _OF)
def test_the_parts_have_every_option(command: bytes) -> None:
    """A new option must say here how many words it takes, which ACL and COMMAND GETKEYS have to know."""
    usage = find(command.split()).usage
    known = {word for part in parts_of(command) for word in part.split()}
    assert set(re.findall(rb"[A-Z]{2,}", usage.encode().partition(b" ")[2])) <= known


@pytest.mark.parametrize("command", _OF)
def test_no_option_hides_the_next(command: bytes) -> None:
    """Behind any two options of a command the third is seen."""
    for before in itertools.product(parts_of(command), repeat=2):
        last = b"DEDUP" if command.startswith(b"MEM.ADD") else b"ACROSS 1 secret"
        words = b" ".join([command, *before, last, b"TEXT tea"]).split()
        keys = keys_of(find(words), words)
        if last == b"DEDUP":
            assert [(words[key.at], key.flags) for key in keys] == [(b"a", "RW access update")], before
        else:
            assert [(words[key.at], key.flags) for key in keys] == [(b"a", "RO access"), (b"secret", "RO access")]


def asked_of(command: bytes) -> st.SearchStrategy[tuple[bytes, list[bytes]]]:
    return st.tuples(st.just(command), st.lists(st.sampled_from(parts_of(command)), max_size=7))


@given(st.sampled_from(sorted(_OF)).flatmap(asked_of))
@settings(max_examples=300)
def test_keys_behind_options_are_found_as_the_command_reads_them(
    shared: Running, asked: tuple[bytes, list[bytes]]
) -> None:
    """Whatever the options, in any order, again and again: no key is read that the table does not know of, and nothing
    is told to who may only write."""
    command, parts = asked
    words = b" ".join([command, *parts]).split(b" ")
    wire = shared.wire()
    wire("FLUSHALL")
    for key in ("a", "a:b", "b", "c", "CASCADE"):
        wire("MEM.CREATE", key, "DIM", 2)
    wire("MEM.ADD", "a", "ID", "SECRET1", "TEXT", "tea", "FVEC", 2, 1, 0)
    if words[0] == b"MEM.ADD":
        wire("ACL", "SETUSER", "writer", "reset", "on", "nopass", "+@all", "%W~*")
        wire("AUTH", "writer", "")
        wire.send(*words)
        reply = wire.read()
        assert not isinstance(reply, list), reply  # that is DEDUP's
    else:
        with pytest.MonkeyPatch.context() as patch:
            keyspace, touched = shared.server.keyspace, set()
            get = keyspace.get
            patch.setattr(keyspace, "get", lambda key, now: touched.add(key) or get(key, now))
            wire.send(*words)
            wire.read()
        known = {words[key.at] for key in keys_of(find(words), words)}
        assert touched <= known | ({b"a:b"} if b"CASCADE DOWN" in parts else set())
    wire.close()


def test_cascade_down_asks_for_each_memory_below(shared: Running, admin: Wire) -> None:
    wire = user(shared, admin, "u", "+@all", "~a", "(+mem.recall ~a:b)")
    words = ("MEM.QUERY", "a", "TEXT", "tea", "CASCADE", "DOWN", "NOTEXT")
    assert {hit[1] for hit in admin(*words)} == {b"a", b"a:b"}
    assert {hit[1] for hit in wire(*words)} == {b"a"}  # the selector of a:b has another command


# Rules and files


@pytest.mark.parametrize("rest", [b"x y", b"x\nuser evil on nopass ~* &* +@all", b"x\t", b"\0"])
def test_a_first_argument_cannot_end_a_line_of_the_file(shared: Running, admin: Wire, rest: bytes) -> None:
    """ACL SAVE would write another user, or a file that no server starts with."""
    before = admin("ACL", "LIST")
    assert "Syntax error" in admin.error("ACL", "SETUSER", "u", b"+echo|" + rest)
    assert admin("ACL", "LIST") == before


_RULES = st.one_of(
    st.sampled_from(
        b"on nopass >p skip-sanitize-payload +@all -@dangerous +@read -config +config|get +echo|HI +echo|( +echo|x)"
        b" allchannels allkeys resetkeys nocommands".split()
    ),
    st.just(b"> q)"),
    st.builds(
        bytes.__add__,
        st.sampled_from([b"~", b"%R~", b"%W~", b"&", b"+echo|"]),
        st.sampled_from([*b"a * ( ) #x \\* ' \" [^a] \xff\xfe \xc3\xbc >p %R~ |".split(), b""]),
    ),
)
_SELECTORS = st.builds(lambda rules: b"(" + b" ".join(rules) + b")", st.lists(_RULES, max_size=3))


_NAMES = st.sampled_from([b"u", b"(", b"\xff", b"on", b"default", b"#"])


@given(st.dictionaries(_NAMES, st.lists(st.one_of(_RULES, _SELECTORS), max_size=6)))
@settings(max_examples=60)
def test_what_is_saved_is_what_is_loaded(
    tmp_path_factory: pytest.TempPathFactory, given_users: dict[bytes, list[bytes]]
) -> None:
    """By ACL LOAD, and by a server that starts; rules that cannot be are left out."""
    path = tmp_path_factory.mktemp("acl") / "users.acl"
    path.write_text("user default on nopass ~* &* +@all\n")
    with Running(aclfile=str(path)) as server:
        wire = server.wire()
        for name, rules in given_users.items():
            for rule in rules:
                wire.send("ACL", "SETUSER", name, rule)
                wire.read()
        wire("ACL", "SETUSER", "default", "reset", "on", "nopass", "~*", "&*", "+@all")
        users = wire("ACL", "LIST")
        assert wire("ACL", "SAVE") == "OK"
        saved = path.read_bytes()
        assert wire("ACL", "LOAD") == "OK"
        assert wire("ACL", "LIST") == users
        wire("ACL", "SAVE")
        assert path.read_bytes() == saved
    with Running(aclfile=str(path)) as server:
        assert server.wire()("ACL", "LIST") == users


# Users who change while they are connected


def test_a_monitor_who_may_not_any_more_is_cut(shared: Running, admin: Wire) -> None:
    eve = user(shared, admin, "eve", "+@all")
    bob = user(shared, admin, "bob", "+@all")
    for wire in (eve, bob):
        assert wire("MONITOR") == "OK"
    admin("ACL", "SETUSER", "eve", "-monitor")
    admin("ACL", "SETUSER", "bob", "-echo")
    admin("ECHO", "SECRET")
    assert is_cut(eve)
    assert "SECRET" in bob.read()


def test_who_listens_as_a_stranger_is_cut_when_the_door_closes(running: Start) -> None:
    """A connection that has not logged in, with what the default user let it listen to while it was open."""
    server = running(clock=Clock(), requirepass="p")
    admin = server.wire()
    admin("AUTH", "p")
    listeners = [server.wire() for _ in range(3)]
    for wire in listeners:
        assert wire.error("PING").startswith("NOAUTH")
    admin("ACL", "SETUSER", "default", "nopass")
    listeners[0]("SUBSCRIBE", "news")
    listeners[1]("MONITOR")
    admin("CONFIG", "SET", "requirepass", "other")
    assert admin("PUBLISH", "news", "SECRET") == 0
    assert is_cut(listeners[0])
    assert is_cut(listeners[1])
    assert listeners[2]("AUTH", "other") == "OK"  # who waits may go on waiting


@pytest.mark.parametrize("listen", [("SUBSCRIBE", "news"), ("PSUBSCRIBE", "n*"), ("MONITOR",)])
def test_nobody_takes_what_they_listen_to_to_another_user(
    shared: Running, admin: Wire, listen: tuple[str, ...]
) -> None:
    """Or the one of whom it was could be deleted, and be heard on."""
    admin("ACL", "SETUSER", "poor", "on", "nopass", "+ping")
    wire = user(shared, admin, "rich", "+@all", "&news", "&n*", protocol=3)
    wire(*listen)

    def say(*words: Word) -> Any:
        wire.send(*words)
        while isinstance(reply := wire.read(), str) and "127.0.0.1" in reply:  # a monitor sees its own commands
            pass
        return reply

    for words in (("AUTH", "poor", ""), ("HELLO", 3, "AUTH", "poor", "")):
        assert str(say(*words)).startswith("NOPERM this user has no permissions to listen")
    assert say("ACL", "WHOAMI") == b"rich"
    assert say("AUTH", "default", "") == "OK"
    assert say("RESET") == "RESET"
    assert say("AUTH", "poor", "") == "OK"


def test_a_command_that_a_pause_holds_back_is_checked_when_it_runs(shared: Running, admin: Wire) -> None:
    bob = user(shared, admin, "bob", "+@all", "~*")
    admin("CLIENT", "PAUSE", 100 * SECOND, "WRITE")
    bob.send("MEM.DEL", "a", "SECRET1")
    while b"flags=b" not in admin("CLIENT", "LIST"):
        pass
    admin("ACL", "SETUSER", "bob", "resetkeys", "~b")
    admin("CLIENT", "UNPAUSE")
    assert bob.read() == WireError(DENIED_KEYS)
    assert admin("MEM.CARD", "a") == 2


@pytest.mark.parametrize("change", [("DELUSER", "bob"), ("SETUSER", "bob", "off")])
def test_what_waits_for_an_embedder_is_not_written_by_who_is_gone(
    running: Start, monkeypatch: pytest.MonkeyPatch, change: tuple[str, ...]
) -> None:
    """Nor by whoever comes back under the name. A query that waits has no effect either; the others are served."""
    fake = FakeEmbedder()
    monkeypatch.setattr("recalld.server.embedding.make", fake.make)
    server = running(clock=Clock())
    admin = server.wire()
    admin("MEM.CREATE", "k", "EMBEDDER", "openai", "MODEL", "fake", "DIM", 8)
    fake.gate.clear()
    bob, reader = user(server, admin, "bob", "+@all", "~*"), server.wire()
    reader("AUTH", "bob", "")
    bob.send("MEM.ADD", "k", "ID", "1", "TEXT", "tea")
    reader.send("MEM.QUERY", "k", "TEXT", "coffee")
    fake.entered.acquire()
    admin("ACL", *change)
    assert is_cut(bob) and is_cut(reader)
    admin("ACL", "SETUSER", "bob", "on" if "DELUSER" in change else "off")
    other = server.wire()
    other.send("MEM.ADD", "k", "ID", "2", "TEXT", "milk")
    fake.gate.set()
    assert other.read() == b"2"
    assert admin("MEM.MGET", "k", "1", "2")[0] is None


def test_a_model_states_nothing_for_who_is_gone(asking: Start, model: StandIn) -> None:
    server = asking()
    admin = server.wire()
    admin("MEM.CREATE", "k", "MODE", "SEARCH")
    bob = user(server, admin, "bob", "+@all", "~*")

    def answer_late(handler: Any, asked: Any) -> None:
        admin("ACL", "DELUSER", "bob")
        says({"facts": [fact()]})(handler, asked)

    model.will(answer_late)
    bob.send("MEM.ANALYZE", "k", "TEXT", MESSAGE)
    assert is_cut(bob)
    server.stop()
    assert len(server.server.keyspace.memories[b"k"]) == 0


# What INFO counts


def test_info_counts_refusals(running: Start) -> None:
    """Redis 7.2's four; since the start, whatever RESET forgets, and not what DRYRUN says."""
    server = running(clock=Clock())
    admin = server.wire()
    bob = user(server, admin, "bob", "+@all", "-echo", "~a", "&c")

    def counted() -> list[int]:
        lines = dict(line.split(":", 1) for line in admin("INFO", "stats").decode().split("\r\n") if ":" in line)
        return [int(lines[f"acl_access_denied_{kind}"]) for kind in ("auth", "cmd", "key", "channel")]

    assert counted() == [0, 0, 0, 0]
    refused = "AUTH bob|AUTH x y|HELLO 3 AUTH x y|ECHO x|EXISTS b|EXISTS b|PUBLISH d x|SUBSCRIBE d"
    for line in refused.split("|"):
        bob.send(*line.split())
        assert isinstance(bob.read(), WireError)
    bob.pipeline(["MULTI"], ["EXISTS", "b"], ["EXEC"], ["MULTI"], ["EXISTS", "a"])
    admin("ACL", "SETUSER", "bob", "resetkeys")
    bob("EXEC")
    assert counted() == [2, 1, 4, 2]
    admin("ACL", "DRYRUN", "bob", "echo", "x")
    admin("ACL", "LOG", "RESET")
    admin("CONFIG", "RESETSTAT")
    assert counted() == [2, 1, 4, 2]
    # A stranger who is told to log in was refused no right.
    admin("CONFIG", "SET", "requirepass", "p")
    assert server.wire().error("PING").startswith("NOAUTH")
    assert counted() == [2, 1, 4, 2]


# Secrets, and what is kept


@pytest.mark.parametrize(
    "line",
    [
        "HELLO 3 SETNAME AUTH AUTH default SECRET",
        "HELLO AUTH default SECRET",
        "HELLO 3 AUTH AUTH SECRET",
        "HELLO 3 AUTH SECRET",
        "AUTH a SECRET c",
        "CONFIG SET timeout requirepass SECRET 1",
        "CONFIG SET masterauth SECRET",
        "CONFIG SET Tls-Key-File-Pass SECRET",
        "COMMAND GETKEYS AUTH default SECRET",
        "COMMAND GETKEYSANDFLAGS ACL SETUSER >SECRET",
        "ACL DRYRUN default AUTH default SECRET",
        "ACL SETUSER bob >SECRET <SECRET2",
        "ACL GETUSER SECRET",
    ],
)
def test_a_slip_shows_no_password(running: Start, line: str) -> None:
    """Words in the wrong place, one too many or too few: SLOWLOG and MONITOR keep the password to themselves."""
    server = running(slowlog_log_slower_than="0")
    admin, watcher, wire = server.wire(), server.wire(), server.wire()
    watcher("MONITOR")
    wire.send(*line.split())
    wire.read()
    wire("PING", "the end")
    shown = [watcher.read()]
    while "the end" not in shown[-1]:
        shown.append(watcher.read())
    assert "SECRET" not in repr(shown) + repr(admin("SLOWLOG", "GET", -1)) + repr(admin("ACL", "LOG"))


@pytest.mark.parametrize(
    "line",
    [
        "requirepass SECRET two",
        'requirepass "SECRET',
        "RequirePass SECRET two",
        "masterauth SECRET",
        "tls-key-file-pass SECRET two",
        'user alice on ">SECRET',
        "user alice on SECRET",
        "user alice on (>SECRET",
        "--requirepass SECRET two",
        "--user alice on >SECRET",
    ],
)
@pytest.mark.parametrize("flags", [[], ["--check-config"]])
def test_a_bad_line_shows_no_password(tmp_path: Path, line: str, flags: list[str]) -> None:
    """The message goes to the log; it names the line."""
    path = tmp_path / "recalld.conf"
    on_the_command_line = line.startswith("--")
    path.write_text(f"dir {tmp_path}\nport 0\nappendonly no\n{'' if on_the_command_line else line}\n")
    words = [*flags, str(path), *(line.split() if on_the_command_line else ())]
    ended = subprocess.run(
        [sys.executable, "-m", "recalld.server", *words], capture_output=True, text=True, timeout=PATIENCE_S
    )
    said = ended.stdout + ended.stderr
    assert ended.returncode != 0
    assert "SECRET" not in said
    assert on_the_command_line or "line 4" in said or ".conf:4" in said


@pytest.mark.parametrize("words", [("SETNAME",), ("SETINFO", "LIB-NAME"), ("SETINFO", "LIB-VER")])
def test_a_name_is_of_bounded_size(shared: Running, words: tuple[str, ...]) -> None:
    """Each entry of ACL LOG, SLOWLOG and the audit has a copy: a hundred megabytes in each would be the memory."""
    wire = shared.wire()
    assert wire("CLIENT", *words, "n" * 256) == "OK"
    assert "cannot be longer than 256 bytes" in wire.error("CLIENT", *words, "n" * 257)
    assert "cannot be longer than 256 bytes" in wire.error("HELLO", 3, "SETNAME", "n" * 257)
