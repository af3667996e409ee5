"""What a user may run: every kind of rule, what it allows and what it denies, over the wire and by ACL DRYRUN."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

import pytest
from harness import Clock, Running, Wire, WireError, Word

DENIED_COMMAND = "NOPERM this user has no permissions to run the '{}' command"
DENIED_KEYS = "NOPERM this user has no permissions to access one of the keys used as arguments"
DENIED_CHANNELS = "NOPERM this user has no permissions to access one of the channels used as arguments"

NO_HASH = "The password hash must be exactly 64 characters and contain only lowercase hexadecimal characters"


@pytest.fixture(scope="module")
def shared() -> Iterator[Running]:
    with Running(clock=Clock()) as server:
        admin = server.wire()
        for key in ("a", "b", "team:x", "team:y"):
            admin("MEM.CREATE", key, "MODE", "SEARCH")
            admin("MEM.ADD", key, "ID", "1", "TEXT", f"alpha {key}")
        admin.close()
        yield server


@pytest.fixture
def admin(shared: Running) -> Iterator[Wire]:
    wire = shared.wire()
    yield wire
    for name in wire("ACL", "USERS"):
        if name != b"default":
            wire("ACL", "DELUSER", name)
    wire("ACL", "LOG", "RESET")
    wire.close()


def as_user(server: Running, admin: Wire, *rules: Word) -> Wire:
    """A connection of a user who has these rules and any password."""
    admin("ACL", "SETUSER", "u", "reset", "on", "nopass", *rules)
    wire = server.wire()
    assert wire("AUTH", "u", "any") == "OK"
    return wire


def outcome(wire: Wire, words: str) -> str:
    """What denied the command: the name of the command, `keys`, `channels`; empty where it was allowed."""
    wire.send(*words.split())
    reply = wire.read()
    if not (isinstance(reply, WireError) and str(reply).startswith("NOPERM")):
        return ""
    if str(reply) == DENIED_KEYS:
        return "keys"
    if str(reply) == DENIED_CHANNELS:
        return "channels"
    name = str(reply).split("'")[1]
    assert str(reply) == DENIED_COMMAND.format(name)
    return name


def dry_outcome(admin: Wire, words: str) -> str:
    """The same, asked of ACL DRYRUN."""
    reply = admin("ACL", "DRYRUN", "u", *words.split())
    if reply == "OK":
        return ""
    text = reply.decode()
    if text.startswith("This user has no permissions to run the "):
        return str(text.split("'")[1])
    assert text.startswith("This user has no permissions to access the ")
    return "keys" if text.endswith("' key") else "channels"


# rules -> command line -> what denies it ("" : nothing).
CASES: dict[str, dict[str, str]] = {
    # commands
    "allkeys": {"PING": "ping", "MEM.CARD a": "mem.card", "CLIENT ID": "client|id"},
    "+ping": {"PING": "", "ECHO x": "echo"},
    "+PiNg": {"PING": ""},
    "+@all -echo": {"PING": "", "ECHO x": "echo", "CLIENT ID": ""},
    "allcommands": {"PING": "", "DBSIZE": "", "CONFIG GET port": ""},
    "+@all nocommands +echo": {"PING": "ping", "ECHO x": ""},
    "+@all -@all +echo": {"PING": "ping", "ECHO x": ""},
    # subcommands
    "+client": {"CLIENT ID": "", "CLIENT LIST": ""},
    "+client -client|list": {"CLIENT ID": "", "CLIENT LIST": "client|list"},
    "+client|id": {"CLIENT ID": "", "CLIENT LIST": "client|list", "CLIENT GETNAME": "client|getname"},
    "+config|get": {"CONFIG GET port": "", "CONFIG SET timeout 0": "config|set"},
    "+@all -config": {"CONFIG GET port": "config|get", "CLIENT ID": ""},
    # first arguments of a command without subcommands
    "+select|0": {"SELECT 0": "", "SELECT 1": "select"},
    "+echo|Hi +echo|ho": {"ECHO hi": "", "ECHO HO": "", "ECHO x": "echo"},
    "+echo|hi -echo": {"ECHO hi": "echo"},
    # categories
    "+@connection": {"PING": "", "CLIENT ID": "", "DBSIZE": "dbsize"},
    "+@read allkeys": {"MEM.CARD a": "", "MEM.DEL a none": "mem.del", "TYPE a": ""},
    "+@write allkeys": {"MEM.CARD a": "mem.card", "MEM.DEL a none": ""},
    "+@memory allkeys": {"MEM.CARD a": "", "MEM.DEL a none": "", "MEM.SEARCH a alpha": "", "TYPE a": "type"},
    "+@memory -@write allkeys": {"MEM.CARD a": "", "MEM.DEL a none": "mem.del"},
    "+@all -@dangerous": {"PING": "", "KEYS *": "keys", "CONFIG GET port": "config|get", "FLUSHALL": "flushall"},
    "+@all -@admin": {"KEYS x": "", "CLIENT LIST": "client|list", "ACL LIST": "acl|list", "ACL WHOAMI": ""},
    "+@transaction": {"UNWATCH": "", "PING": "ping"},
    "+@pubsub": {"PUBSUB CHANNELS": "", "PUBLISH c x": "channels"},
    "+@keyspace allkeys": {"TYPE a": "", "DBSIZE": "", "MEM.CARD a": "mem.card"},
    "+@fast -@memory allkeys": {"TYPE a": "", "MEM.CARD a": "mem.card", "KEYS x": "keys"},
    "+@slow": {"KEYS x": "", "PING": "ping"},
    "+@string +@hash +@list": {"PING": "ping"},  # of Redis, empty here
    "+@all -@scripting": {"PING": ""},
    # keys
    "+@all": {"PING": "", "MEM.CARD a": "keys", "DEL a": "keys", "TYPE a": "keys"},
    "+@all ~a": {"MEM.CARD a": "", "MEM.CARD b": "keys", "TYPE b": "keys"},
    "+@all ~team:*": {"MEM.CARD team:x": "", "MEM.CARD a": "keys", "EXISTS team:x": "", "EXISTS team:x a": "keys"},
    "+@all ~team:? ~[ab]": {"EXISTS team:x a b": "", "EXISTS ab": "keys"},
    "+@all allkeys": {"EXISTS a whatever": ""},
    "+@all ~*": {"EXISTS a whatever": ""},
    "+@all allkeys resetkeys ~b": {"TYPE a": "keys", "TYPE b": ""},
    "+@all %R~a": {"MEM.CARD a": "", "MEM.DEL a none": "keys", "EXPIRE a 9999 XX": "keys"},
    "+@all %W~a": {"MEM.CARD a": "keys", "MEM.DEL a none": "", "PERSIST a": ""},
    "+@all %RW~a": {"MEM.CARD a": "", "MEM.DEL a none": ""},
    "+@all %r~a %w~a": {"MEM.CARD a": "", "MEM.DEL a none": ""},  # one pattern, both rights
    "+@all %R~a %W~b": {"COPY a b": "", "COPY b a": "keys", "RENAME none b": "keys"},
    "+@all %R~a* %W~*": {"RENAME a b": "keys", "TYPE b": "", "COPY a b": ""},
    "+@all %R~[a] %W~a": {"RENAMENX a none": "keys"},  # no one pattern has both rights
    "+@all ~b": {"MEM.QUERY a TEXT alpha": "keys", "MEM.QUERY b TEXT alpha": "", "MEMORY USAGE a": "keys"},
    "+@all ~a ~b": {"MEM.QUERY b TEXT alpha ACROSS 1 team:x": "", "WATCH a b": "", "WATCH a c": "keys"},
    # MEM.ADD tells what is there where it is asked to
    "+@memory %W~a": {
        "MEM.ADD a ID 1 TEXT alpha": "",
        "MEM.ADD a ID 1 TEXT dedup": "",
        "MEM.ADD a TEXT alpha DEDUP": "keys",
        "MEM.ADD a META DEDUP dedup TAGS 1 dedup ID 1 TEXT alpha": "",
    },
    # channels
    "+@all resetchannels": {"PUBLISH c x": "channels", "PUBSUB NUMSUB c": ""},
    "+@all &news:*": {"PUBLISH news:1 x": "", "PUBLISH new x": "channels"},
    "+@all allchannels": {"PUBLISH c x": ""},
    "+@all &*": {"PUBLISH c x": ""},
    "+@all allchannels resetchannels &c": {"PUBLISH c x": "", "PUBLISH d x": "channels"},
    # selectors
    "+ping (+echo)": {"PING": "", "ECHO x": "", "DBSIZE": "dbsize"},
    "+@read ~a (+@write ~b)": {"MEM.CARD a": "", "MEM.CARD b": "keys", "MEM.DEL b none": "", "MEM.DEL a none": "keys"},
    "(+mem.card ~a) (+mem.card ~b)": {"MEM.CARD a": "", "MEM.CARD b": "", "MEM.CARD c": "keys"},
    "(+exists ~a) (+exists ~b)": {"EXISTS a": "", "EXISTS b": "", "EXISTS a b": "keys"},  # one selector alone
    "(+ping) clearselectors +echo": {"PING": "ping", "ECHO x": ""},
    "(+publish &c)": {"PUBLISH c x": "", "PUBLISH d x": "channels"},
    "(%R~a +@memory)": {"MEM.CARD a": "", "MEM.DEL a none": "keys"},
    "(+ping) reset on nopass +echo": {"PING": "ping", "ECHO x": ""},
}


@pytest.mark.parametrize("rules", CASES)
def test_rules(shared: Running, admin: Wire, rules: str) -> None:
    """Every command line is denied by what the table says, and DRYRUN says the same."""
    wire = as_user(shared, admin, *rules.split())
    expected = CASES[rules]
    assert {words: dry_outcome(admin, words) for words in expected} == expected
    assert {words: outcome(wire, words) for words in expected} == expected


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("+nonsense", "Unknown command or category name in ACL"),
        ("-nonsense", "Unknown command or category name in ACL"),
        ("+@nonsense", "Unknown command or category name in ACL"),
        ("+client|nonsense", "Unknown command or category name in ACL"),
        ("-select|0", "Unknown command or category name in ACL"),
        ("+", "Unknown command or category name in ACL"),
        ("+config|get|x", "Allowing first-arg of a subcommand is not supported"),
        ("+select|", "Syntax error"),
        ("nonsense", "Syntax error"),
        ("%~a", "Syntax error"),
        ("%X~a", "Syntax error"),
        ("%RR~a", "Syntax error"),
        ("%R", "Syntax error"),
        ("~a b", "Syntax error"),
        ("&a\n", "Syntax error"),
        ("(nopass)", "Syntax error"),
        (")", "Syntax error"),
        ("#abc", NO_HASH),
        ("#" + "A" * 64, NO_HASH),
        ("!abc", NO_HASH),
        ("<nope", "The password you are trying to remove from the user does not exist"),
    ],
)
def test_rules_that_cannot_be(admin: Wire, rule: str, reason: str) -> None:
    """The error names the rule, and none of the others was applied."""
    admin("ACL", "SETUSER", "u", "reset")
    before = admin("ACL", "LIST")
    expected = f"ERR Error in ACL SETUSER modifier '{rule}': {reason}"
    assert admin.error("ACL", "SETUSER", "u", "on", "+@all", rule) == expected.replace("\n", " ")
    assert admin("ACL", "LIST") == before


def test_patterns_after_all_of_them(admin: Wire) -> None:
    for all_of_them, rule, reset in (("allkeys", "~a", "resetkeys"), ("allchannels", "&a", "resetchannels")):
        error = admin.error("ACL", "SETUSER", "u", all_of_them, rule)
        assert f"modifier '{rule}': Adding a pattern after the * pattern (or the '{all_of_them}' flag)" in error
        assert f"Try '{reset}'" in error
    assert admin("ACL", "USERS") == [b"default"]


def test_a_selector_may_come_in_several_words(admin: Wire) -> None:
    admin("ACL", "SETUSER", "u", "(+ping", "~a", "&c)", "+echo")
    assert admin("ACL", "LIST")[1] == b"user u off resetchannels -@all +echo (~a resetchannels &c -@all +ping)"
    error = admin.error("ACL", "SETUSER", "u", "on", "(+get", "~a")
    assert error == "ERR Unmatched parenthesis in acl selector starting at '(+get'."


# Passwords


def test_passwords(shared: Running, admin: Wire) -> None:
    """Several, added and taken away, in plain and as SHA-256, which is all that is kept."""
    admin("ACL", "SETUSER", "u", "on", ">one", "#" + sha256(b"two").hexdigest(), ">one")
    wire = shared.wire()
    refused = "WRONGPASS invalid username-password pair or user is disabled."

    def works(password: str) -> bool:
        wire.send("AUTH", "u", password)
        reply = wire.read()
        assert reply in ("OK", WireError(refused))
        return bool(reply == "OK")

    assert [works(word) for word in ("one", "two", "three", "")] == [True, True, False, False]
    assert admin("ACL", "GETUSER", "u")[3] == [sha256(word).hexdigest().encode() for word in (b"one", b"two")]
    admin("ACL", "SETUSER", "u", "<one")
    assert [works(word) for word in ("one", "two")] == [False, True]
    admin("ACL", "SETUSER", "u", "!" + sha256(b"two").hexdigest(), ">")
    assert [works(word) for word in ("two", "")] == [False, True]
    admin("ACL", "SETUSER", "u", "nopass")
    assert [works(word) for word in ("two", "any")] == [True, True]
    assert admin("ACL", "GETUSER", "u")[1] == [b"on", b"nopass"]
    admin("ACL", "SETUSER", "u", "resetpass")
    assert not works("any")
    admin("ACL", "SETUSER", "u", ">x", "off")
    assert shared.wire().error("AUTH", "u", "x") == refused
    assert b"x" not in admin("ACL", "LIST")[1].split()
    assert shared.wire().error("AUTH", "nobody", "x") == refused


def test_a_new_user_may_do_nothing(shared: Running, admin: Wire) -> None:
    admin("ACL", "SETUSER", "u")
    assert admin("ACL", "LIST")[1] == b"user u off resetchannels -@all"
    assert shared.wire().error("AUTH", "u", "") == "WRONGPASS invalid username-password pair or user is disabled."
    wire = as_user(shared, admin)
    assert outcome(wire, "PING") == "ping"
    assert outcome(wire, "ACL WHOAMI") == "acl|whoami"
    # These run whoever it is.
    assert wire("AUTH", "default", "") == "OK"
    assert wire("ACL", "WHOAMI") == b"default"


# Channels


def test_subscribing_asks_for_channels(shared: Running, admin: Wire) -> None:
    """A channel is matched; a pattern must be one of the user's own, letter by letter."""
    wire = as_user(shared, admin, "+@pubsub", "&news:*", "&c")
    assert wire.error("SUBSCRIBE", "news:1", "other") == DENIED_CHANNELS
    assert wire.error("PSUBSCRIBE", "news:1*") == DENIED_CHANNELS
    assert wire.error("PSUBSCRIBE", "*") == DENIED_CHANNELS
    assert wire("SUBSCRIBE", "news:1") == [b"subscribe", b"news:1", 1]
    assert wire("PSUBSCRIBE", "news:*") == [b"psubscribe", b"news:*", 2]
    assert wire("UNSUBSCRIBE", "other") == [b"unsubscribe", b"other", 2]  # leaving needs no right


def test_memory_events_are_channels(shared: Running, admin: Wire) -> None:
    """Who may read a memory may not hear of its writes for that alone, nor the other way round."""
    wire = as_user(shared, admin, "+@all", "~team:x", "&__mem__:team:y")
    assert wire.error("SUBSCRIBE", "__mem__:team:x") == DENIED_CHANNELS
    assert wire("SUBSCRIBE", "__mem__:team:y")[0] == b"subscribe"
    admin("MEM.ADD", "team:y", "ID", "9", "TEXT", "news")
    assert wire.read() == [b"message", b"__mem__:team:y", b"add 9"]
    admin("MEM.DEL", "team:y", "9")


def test_subscribers_who_lose_a_channel_are_cut(shared: Running, admin: Wire) -> None:
    admin("ACL", "SETUSER", "u", "reset", "on", "nopass", "+@pubsub", "+ping", "&a", "&b*")
    wires = [shared.wire() for _ in range(3)]
    for wire in wires:
        wire("AUTH", "u", "")
    wires[0]("SUBSCRIBE", "a")
    wires[1]("SUBSCRIBE", "b1")
    wires[2]("PSUBSCRIBE", "b*")
    admin("ACL", "SETUSER", "u", "&c")
    admin("ACL", "SETUSER", "u", "resetchannels", "&b1", "&a")
    assert wires[0]("PING") == [b"pong", b""]
    assert wires[1]("PING") == [b"pong", b""]
    with pytest.raises((EOFError, ConnectionError)):
        wires[2]("PING")
    admin("ACL", "SETUSER", "u", "allchannels")
    admin("ACL", "SETUSER", "u", "resetchannels")
    for wire in wires[:2]:
        with pytest.raises((EOFError, ConnectionError)):
            wire("PING")


# Keys that a command may leave out


def hits(wire: Wire, *words: Word) -> list[bytes]:
    return sorted(hit[1] for hit in wire("MEM.QUERY", *words, "NOTEXT"))


def test_across_leaves_forbidden_memories_out(shared: Running, admin: Wire) -> None:
    """As if they were not there, and they are no reason to refuse the rest; nor does ACL LOG hear of it."""
    words = ("team:x", "TEXT", "alpha", "ACROSS", 3, "a", "team:y", "b")
    assert hits(admin, *words) == [b"a", b"b", b"team:x", b"team:y"]
    wire = as_user(shared, admin, "+@all", "~team:*", "%W~a")
    assert hits(wire, *words) == [b"team:x", b"team:y"]
    without = wire("MEM.QUERY", "team:x", "TEXT", "alpha", "ACROSS", 1, "team:y", "WITHSCORES")
    assert wire("MEM.QUERY", *words, "WITHSCORES") == without
    assert wire("ACL", "LOG") == []
    assert wire.error("MEM.QUERY", "a", "TEXT", "alpha", "ACROSS", 1, "team:x") == DENIED_KEYS


def test_a_covered_memory_must_be_readable_by_this_very_command(shared: Running, admin: Wire) -> None:
    wire = as_user(shared, admin, "+mem.query", "~team:*", "(+mem.card %R~a)", "(+@all %R~b)")
    assert wire("MEM.CARD", "a") == 1
    assert hits(wire, "team:x", "TEXT", "alpha", "ACROSS", 2, "a", "b") == [b"b", b"team:x"]


def test_cascade_leaves_forbidden_memories_out(shared: Running, admin: Wire) -> None:
    admin("MEM.CREATE", "team", "MODE", "SEARCH")
    admin("MEM.ADD", "team", "ID", "1", "TEXT", "alpha")
    wire = as_user(shared, admin, "+@all", "~team", "~team:x")
    assert hits(wire, "team", "TEXT", "alpha", "CASCADE", "DOWN") == [b"team", b"team:x"]
    assert hits(admin, "team", "TEXT", "alpha", "CASCADE", "DOWN") == [b"team", b"team:x", b"team:y"]
    admin("DEL", "team")


def test_getkeys_and_acl_have_one_answer(admin: Wire) -> None:
    getkeys = ("COMMAND", "GETKEYSANDFLAGS")
    assert admin(*getkeys, "MEM.QUERY", "a", "TEXT", "ACROSS", "TAGS", "ANY", 1, "ACROSS", "ACROSS", 2, "x", "y") == [
        [key, ["RO", "access"]] for key in (b"a", b"x", b"y")
    ]
    assert admin("COMMAND", "GETKEYS", "MEM.EXPLAIN", "a", "ACROSS", "TEXT", "t", "ACROSS", 1, "x") == [b"a", b"x"]
    twice = ("ACROSS", 1, "x", "FVEC", 2, 1, 0, "ACROSS", 1, "y")
    assert admin("COMMAND", "GETKEYS", "MEM.QUERY", "a", *twice) == [b"a", b"y"]  # the last counts
    assert admin(*getkeys, "MEM.ADD", "a", "TEXT", "t", "DEDUP") == [[b"a", ["RW", "access", "update"]]]
    assert admin(*getkeys, "MEM.ADD", "a", "TEXT", "DEDUP") == [[b"a", ["RW", "update"]]]
    for words in (["ACROSS"], ["ACROSS", "x"], ["ACROSS", "9", "x"], ["ACROSS", "-1", "x"], ["TAGS"], ["FVEC"]):
        assert admin("COMMAND", "GETKEYS", "MEM.QUERY", "a", *words)[0] == b"a"


def test_names_of_keys_are_not_filtered(shared: Running, admin: Wire) -> None:
    """As in Redis, who may run KEYS, SCAN or RANDOMKEY sees the names of all keys."""
    wire = as_user(shared, admin, "+@all", "~nothing")
    assert sorted(wire("KEYS", "*")) == [b"a", b"b", b"team:x", b"team:y"]
    assert sorted(wire("SCAN", 0)[1]) == [b"a", b"b", b"team:x", b"team:y"]
