"""The ACL commands, logging in and out, and what a change of users does to the clients that are connected."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256

import pytest
import redis
from harness import AT_ONCE, SECOND, Clock, Running, Wire, Word
from recalld.server import server as server_module
from recalld.server.categories import CATEGORIES
from recalld.server.commands import TABLE

Start = Callable[..., Running]
WRONGPASS = "WRONGPASS invalid username-password pair or user is disabled."
NOAUTH = "NOAUTH Authentication required."
PASS = sha256(b"p").hexdigest()


@pytest.fixture
def server(running: Start) -> Running:
    """A server of the test's own: users must not leak into others."""
    return running(clock=Clock())


@pytest.fixture
def admin(server: Running) -> Iterator[Wire]:
    wire = server.wire()
    yield wire
    wire.close()


def user(server: Running, admin: Wire, name: str, *rules: Word, protocol: int = 2) -> Wire:
    """A connection of a new user, whose password is p."""
    admin("ACL", "SETUSER", name, "reset", "on", ">p", *rules)
    wire = server.wire()
    if protocol == 3:
        wire("HELLO", 3, "AUTH", name, "p")
    else:
        wire("AUTH", name, "p")
    return wire


def is_cut(wire: Wire) -> bool:
    try:
        wire("PING")
    except (EOFError, ConnectionError):
        return True
    return False


# Who one is


def test_whoami_users_list(server: Running, admin: Wire) -> None:
    assert admin("ACL", "WHOAMI") == b"default"
    bob = user(server, admin, "bob", "+@all")
    admin("ACL", "SETUSER", "alice")
    assert bob("ACL", "WHOAMI") == b"bob"
    assert admin("ACL", "USERS") == [b"alice", b"bob", b"default"]
    assert admin("ACL", "LIST") == [
        b"user alice off resetchannels -@all",
        b"user bob on sanitize-payload #" + PASS.encode() + b" resetchannels +@all",
        b"user default on nopass ~* &* +@all",
    ]


def test_getuser(server: Running, admin: Wire) -> None:
    rules = ("~a*", "%R~b", "%RW~c", "&ch", "+@read", "-type", "+client|id", "(~x +ping)", "skip-sanitize-payload")
    admin("ACL", "SETUSER", "u", "on", ">p", *rules)
    wire3 = server.wire(3)
    assert wire3("ACL", "GETUSER", "u") == {
        b"flags": [b"on", b"skip-sanitize-payload"],
        b"passwords": [PASS.encode()],
        b"commands": b"-@all +@read -type +client|id",
        b"keys": b"~a* %R~b ~c",
        b"channels": b"&ch",
        b"selectors": [{b"commands": b"-@all +ping", b"keys": b"~x", b"channels": b""}],
    }
    assert admin("ACL", "GETUSER", "nobody") is None
    assert wire3("ACL", "GETUSER", "default") == {
        b"flags": [b"on", b"nopass"],
        b"passwords": [],
        b"commands": b"+@all",
        b"keys": b"~*",
        b"channels": b"&*",
        b"selectors": [],
    }


def test_list_can_be_typed_in_again(server: Running, admin: Wire) -> None:
    """The words of ACL LIST, given to ACL SETUSER, make the same user."""
    admin("ACL", "SETUSER", "u", "on", ">p", "%W~a", "&c", "+@all", "-@admin", "+acl|whoami", "(%R~b +ttl)")
    line = admin("ACL", "LIST")[1]
    assert line.startswith(b"user u ")
    admin("ACL", "SETUSER", "v", *line.split()[2:])
    assert admin("ACL", "LIST")[2] == line.replace(b"user u ", b"user v ")


def test_rules_that_later_ones_make_void_are_forgotten(admin: Wire) -> None:
    """So a user that is changed every day does not grow."""
    for _ in range(3):
        rules = "+ping -ping +client|id +client +@read -@read +select|0 -select"
        admin("ACL", "SETUSER", "u", *rules.split())
    assert b"-@all -ping +client -@read -select" in admin("ACL", "LIST")[1]
    admin("ACL", "SETUSER", "u", "+@all", "-@all", "+echo")
    assert admin("ACL", "LIST")[1] == b"user u off resetchannels -@all +echo"


def test_names(server: Running, admin: Wire) -> None:
    for name in ("a b", "a\n", "a\0b", ""):
        assert admin.error("ACL", "SETUSER", name) == "ERR Usernames can't contain spaces or null characters"
    admin("ACL", "SETUSER", b"\xff\xfe", "on", ">p", "+@all")
    wire = server.wire()
    assert wire("AUTH", b"\xff\xfe", "p") == "OK"
    assert wire("ACL", "WHOAMI") == b"\xff\xfe"
    assert "user=\ufffd\ufffd " in wire("CLIENT", "INFO").decode()


def test_deluser(server: Running, admin: Wire) -> None:
    """A deleted user's connections are closed, and only theirs."""
    gone, left = user(server, admin, "gone", "+@all"), user(server, admin, "left", "+@all")
    assert admin("ACL", "DELUSER", "gone", "nobody", "gone") == 1
    assert is_cut(gone)
    assert not is_cut(left)
    assert server.wire().error("AUTH", "gone", "p") == WRONGPASS
    assert admin.error("ACL", "DELUSER", "left", "default") == "ERR The 'default' user cannot be removed"
    assert admin("ACL", "USERS") == [b"default", b"left"]
    # One may delete oneself, and hear that it was done.
    assert left("ACL", "DELUSER", "left") == 1
    assert is_cut(left)


def test_switching_a_user_off_closes_its_connections(server: Running, admin: Wire) -> None:
    bob, other = user(server, admin, "bob", "+@all"), user(server, admin, "other", "+@all")
    admin("ACL", "SETUSER", "bob", "off")
    assert is_cut(bob)
    assert not is_cut(other)
    assert other("ACL", "SETUSER", "other", "off") == "OK"
    assert is_cut(other)
    # Who has not logged in yet is the default user in name only.
    admin("CONFIG", "SET", "requirepass", "secret")
    stranger = server.wire()
    admin("ACL", "SETUSER", "bob", "on")
    assert admin("ACL", "SETUSER", "default", "off") == "OK"
    assert is_cut(admin)
    assert stranger.error("PING") == NOAUTH
    assert stranger("AUTH", "bob", "p") == "OK"
    assert stranger.error("AUTH", "default", "secret") == WRONGPASS


def test_what_follows_in_a_transaction_is_nobodys(server: Running, admin: Wire) -> None:
    admin("CONFIG", "SET", "requirepass", "secret")
    bob = user(server, admin, "bob", "+@all", "~*")
    replies = bob.pipeline(["MULTI"], ["ACL", "DELUSER", "bob"], ["DBSIZE"], ["EXEC"])
    assert replies[3][0] == 1
    assert str(replies[3][1]) == NOAUTH


def test_changed_rules_hold_for_connected_clients(server: Running, admin: Wire) -> None:
    bob = user(server, admin, "bob", "+@all", "~a")
    assert bob("EXISTS", "a") == 0
    admin("ACL", "SETUSER", "bob", "-exists")
    assert bob.error("EXISTS", "a") == "NOPERM this user has no permissions to run the 'exists' command"
    admin("ACL", "SETUSER", "bob", "+exists", "resetkeys", "~b")
    assert bob.error("EXISTS", "a").startswith("NOPERM this user has no permissions to access one of the keys")
    assert bob("EXISTS", "b") == 0
    # And a bad rule changes nothing for them.
    admin.error("ACL", "SETUSER", "bob", "-@all", "nonsense")
    assert bob("EXISTS", "b") == 0


# AUTH, HELLO, RESET, requirepass


def test_auth(server: Running, admin: Wire) -> None:
    bob = user(server, admin, "bob", "+@all")
    assert bob.error("AUTH", "bob", "wrong") == WRONGPASS
    assert bob("ACL", "WHOAMI") == b"bob"  # a failure changes nothing
    assert bob.error("AUTH", "x").startswith("ERR AUTH <password> called without any password configured")
    assert bob.error("AUTH", "a", "b", "c") == "ERR syntax error"
    assert bob("AUTH", "default", "whatever") == "OK"
    assert bob("ACL", "WHOAMI") == b"default"


def test_hello_auth(server: Running, admin: Wire) -> None:
    user(server, admin, "bob", "+@all")
    wire = server.wire()
    assert wire.error("HELLO", 3, "AUTH", "bob", "wrong") == WRONGPASS
    assert wire("ACL", "WHOAMI") == b"default"
    assert wire("HELLO", 3, "AUTH", "bob", "p", "SETNAME", "me")[b"proto"] == 3
    assert wire("ACL", "WHOAMI") == b"bob"
    assert wire("RESET") == "RESET"
    assert wire("ACL", "WHOAMI") == b"default"


def test_requirepass_is_the_default_users_password(server: Running, admin: Wire) -> None:
    admin("CONFIG", "SET", "requirepass", "secret")
    assert admin("ACL", "GETUSER", "default")[3] == [sha256(b"secret").hexdigest().encode()]
    stranger = server.wire()
    assert stranger.error("PING") == NOAUTH
    assert stranger.error("HELLO", 3).startswith("NOAUTH HELLO must be called with the client already authenticated")
    assert admin("PING") == "PONG"  # who is in stays in
    assert stranger("AUTH", "secret") == "OK"
    assert stranger("RESET") == "RESET"
    assert stranger.error("PING") == NOAUTH
    assert stranger("AUTH", "default", "secret") == "OK"
    assert stranger("PING") == "PONG"
    late = server.wire()
    assert late.error("PING") == NOAUTH
    admin("CONFIG", "SET", "requirepass", "")
    assert late("PING") == "PONG"
    assert late("ECHO", "x" * 20_000) == b"x" * 20_000  # a stranger's limits are gone too
    assert admin("ACL", "LIST") == [b"user default on nopass ~* &* +@all"]


def test_default_user_with_rules(running: Start) -> None:
    """requirepass in the config file, and a connection that may do little before it logs in as somebody."""
    server = running(clock=Clock(), requirepass="secret")
    admin = server.wire()
    admin("AUTH", "secret")
    admin("ACL", "SETUSER", "default", "nopass", "-@all", "+ping")
    wire = server.wire()
    assert wire("PING") == "PONG"
    assert wire.error("ECHO", "x") == "NOPERM this user has no permissions to run the 'echo' command"


def test_protected_mode_asks_for_the_default_users_password(running: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other machines are turned away while the default user has none, however it came by it."""
    server = running(clock=Clock())
    admin = server.wire()
    admin("PING")  # it is in
    monkeypatch.setattr(server_module, "_is_loopback", lambda peer: False)
    stranger = server.wire()
    assert str(stranger.read()).startswith("DENIED recalld is running in protected mode")
    admin("ACL", "SETUSER", "default", ">p")
    assert server.wire().error("PING") == NOAUTH
    admin("ACL", "SETUSER", "default", "nopass")
    assert str(server.wire().read()).startswith("DENIED")
    admin("CONFIG", "SET", "protected-mode", "no")
    assert server.wire()("PING") == "PONG"


@pytest.mark.parametrize("protocol", [2, 3])
def test_redis_py_logs_in_and_reads_the_replies(server: Running, protocol: int) -> None:
    with server.client(protocol, True) as admin:
        assert admin.acl_setuser("bob", enabled=True, passwords="+p", commands=["+@all"], keys=["a"])
        with server.client(protocol, True, username="bob", password="p") as bob:
            assert bob.acl_whoami() == "bob"
            with pytest.raises(redis.exceptions.NoPermissionError):
                bob.exists("b")
        stranger = server.client(protocol, username="bob", password="wrong", retry=AT_ONCE)
        with stranger, pytest.raises(redis.AuthenticationError):
            stranger.ping()
        assert admin.acl_getuser("bob")["flags"][0] == "on"
        auth, key = admin.acl_log()
        assert (auth["reason"], key["reason"], key["object"]) == ("auth", "key", "b")
        assert "bob" in str(key["client-info"])
        assert admin.acl_list()[0].startswith("user bob on ")
        assert admin.acl_deluser("bob") == 1


# MULTI


def test_transactions_check_when_queued_and_when_run(server: Running, admin: Wire) -> None:
    bob = user(server, admin, "bob", "+@all", "~a", "&c")
    assert bob("MULTI") == "OK"
    assert bob.error("EXISTS", "b").startswith("NOPERM")
    assert bob.error("EXEC") == "EXECABORT Transaction discarded because of previous errors."
    queued = (["EXISTS", "a"], ["PUBLISH", "c", "x"], ["CLIENT", "ID"], ["PING"])
    assert bob.pipeline(["MULTI"], *queued)[1:] == ["QUEUED"] * 4
    admin("ACL", "SETUSER", "bob", "resetkeys", "resetchannels", "-client")
    changed = (
        "NOPERM ACLs rules changed between the moment the transaction was accumulated and the EXEC call."
        " This command is no longer allowed for the following reason: "
    )
    *denied, pong = bob("EXEC")
    assert [str(error) for error in denied] == [
        changed + "no permission to touch the specified keys",
        changed + "no permission to access one of the channels used as arguments",
        changed + "no permission to execute the command or subcommand",
    ]
    assert pong == "PONG"
    assert [entry[5] for entry in admin("ACL", "LOG")] == [b"multi"] * 4
    admin("ACL", "SETUSER", "bob", "-exec")
    bob("MULTI")
    assert bob.error("EXEC").startswith("EXECABORT Transaction discarded because of: NOPERM this user has no")


# ACL LOG


def log(wire: Wire, *words: Word) -> list[tuple[bytes, ...]]:
    """Count, reason, context, object and user of each entry."""
    return [tuple(entry[1:10:2]) for entry in wire("ACL", "LOG", *words)]


def test_log_says_why(server: Running, admin: Wire) -> None:
    bob = user(server, admin, "bob", "+@all", "-echo", "~a", "&c")
    bob.error("AUTH", "alice", "SECRET")
    bob.error("HELLO", 3, "AUTH", "alice", "SECRET")
    bob.error("ECHO", "SECRET")
    bob.error("MEM.ADD", "b", "TEXT", "SECRET")
    bob.error("PUBLISH", "d", "SECRET")
    bob("MULTI")
    bob.error("EXISTS", "a", "x")
    assert log(admin) == [
        (1, b"key", b"multi", b"x", b"bob"),
        (1, b"channel", b"toplevel", b"d", b"bob"),
        (1, b"key", b"toplevel", b"b", b"bob"),
        (1, b"command", b"toplevel", b"echo", b"bob"),
        (1, b"auth", b"toplevel", b"HELLO", b"alice"),
        (1, b"auth", b"toplevel", b"AUTH", b"alice"),
    ]
    assert b"SECRET" not in repr(admin("ACL", "LOG")).encode()
    assert len(admin("ACL", "LOG", 2)) == 2
    assert admin("ACL", "LOG", 0) == admin("ACL", "LOG", -1) == []
    assert b"user=bob" in admin("ACL", "LOG", 1)[0][13]
    assert admin("ACL", "LOG", "reset") == "OK"
    assert admin("ACL", "LOG") == []
    assert admin.error("ACL", "LOG", "x") == "ERR value is not an integer or out of range"
    assert admin.error("ACL", "LOG", 1, 2).startswith("ERR unknown subcommand or wrong number of arguments for 'LOG'")


def test_log_counts_what_repeats_within_a_minute(server: Running, admin: Wire) -> None:
    clock = server.clock
    assert isinstance(clock, Clock)
    bob = user(server, admin, "bob")
    bob.error("PING")
    clock.advance(50 * SECOND)
    bob.error("ECHO", "x")
    bob.error("PING")
    wire3 = server.wire(3)
    clock.advance(1500)
    first, second = wire3("ACL", "LOG")
    assert (first[b"count"], first[b"object"], first[b"age-seconds"]) == (2, b"ping", 1.5)
    assert first[b"timestamp-last-updated"] - first[b"timestamp-created"] == 50 * SECOND
    assert (second[b"count"], second[b"object"]) == (1, b"echo")
    clock.advance(61 * SECOND)
    bob.error("PING")
    assert [entry[:2] for entry in log(admin)] == [(1, b"command"), (2, b"command"), (1, b"command")]


def test_log_is_bounded(running: Start) -> None:
    server = running(clock=Clock(), acllog_max_len="3")
    admin = server.wire()
    bob = user(server, admin, "bob", "+exists")
    for number in range(5):
        bob.error("EXISTS", f"key{number}")
    assert [entry[3] for entry in log(admin)] == [b"key4", b"key3", b"key2"]
    bob.error("EXISTS", b"x" * 100_000)
    assert len(log(admin)[0][3]) == 1024
    admin("CONFIG", "SET", "acllog-max-len", 1)
    assert len(log(admin)) == 1
    admin("CONFIG", "SET", "acllog-max-len", 0)
    bob.error("EXISTS", "y")
    assert log(admin) == []


# The rest


def test_cat(admin: Wire) -> None:
    assert [name.decode() for name in admin("ACL", "CAT")] == list(CATEGORIES)
    memory = {name.decode() for name in admin("ACL", "CAT", "Memory")}
    assert memory == {name for name in TABLE if name.startswith("mem.")}
    assert b"config|set" in admin("ACL", "CAT", "dangerous")
    assert admin("ACL", "CAT", "hash") == []
    assert admin.error("ACL", "CAT", "nonsense") == "ERR Unknown category 'nonsense'"
    assert "wrong number of arguments for 'CAT'" in admin.error("ACL", "CAT", "a", "b")
    every = {name for category in CATEGORIES for name in admin("ACL", "CAT", category)}
    assert every == {
        entry.name.encode() for top in TABLE.values() for entry in (top, *top.subcommands.values())
    }


def test_genpass(admin: Wire) -> None:
    assert len(admin("ACL", "GENPASS")) == 64
    assert admin("ACL", "GENPASS") != admin("ACL", "GENPASS")
    assert [len(admin("ACL", "GENPASS", bits)) for bits in (1, 4, 5, 9, 4096)] == [1, 1, 2, 3, 1024]
    for bits in (0, -1, 4097):
        assert admin.error("ACL", "GENPASS", bits).startswith("ERR ACL GENPASS argument must be the number of bits")


def test_dryrun(server: Running, admin: Wire) -> None:
    user(server, admin, "bob", "+exists", "+publish", "+config|get", "~a")
    assert admin("ACL", "DRYRUN", "bob", "exists", "a") == "OK"
    denied = admin("ACL", "DRYRUN", "bob", "EXISTS", "a", "b")
    assert denied == b"This user has no permissions to access the 'b' key"
    denied = admin("ACL", "DRYRUN", "bob", "publish", "c", "x")
    assert denied == b"This user has no permissions to access the 'c' channel"
    denied = admin("ACL", "DRYRUN", "bob", "config", "set", "port", "1")
    assert denied == b"This user has no permissions to run the 'config|set' command"
    assert admin.error("ACL", "DRYRUN", "nobody", "ping") == "ERR User 'nobody' not found"
    assert admin.error("ACL", "DRYRUN", "bob", "nonsense") == "ERR Command 'nonsense' not found"
    assert admin.error("ACL", "DRYRUN", "bob", "config", "nonsense") == "ERR Command 'config' not found"
    assert admin.error("ACL", "DRYRUN", "bob", "exists") == "ERR wrong number of arguments for 'exists' command"
    assert admin("ACL", "LOG") == []


def test_client_list_and_kill_know_users(server: Running, admin: Wire) -> None:
    bob, other = user(server, admin, "bob", "+@all"), user(server, admin, "other", "+@all")
    users = [line.split(" user=")[1].split()[0] for line in admin("CLIENT", "LIST").decode().splitlines()]
    assert sorted(users) == ["bob", "default", "other"]
    assert admin.error("CLIENT", "KILL", "USER", "nobody") == "ERR No such user 'nobody'"
    assert admin("CLIENT", "KILL", "USER", "bob") == 1
    assert is_cut(bob)
    assert not is_cut(other)


def test_acl_pubsub_default(server: Running, admin: Wire) -> None:
    admin("CONFIG", "SET", "acl-pubsub-default", "allchannels")
    admin("ACL", "SETUSER", "u", "(+ping)")
    assert admin("ACL", "LIST")[1] == b"user u off &* -@all (&* -@all +ping)"
    admin("CONFIG", "SET", "acl-pubsub-default", "resetchannels")
    admin("ACL", "SETUSER", "u", "reset")
    assert admin("ACL", "LIST")[1] == b"user u off sanitize-payload resetchannels -@all"


def test_secrets_reach_neither_slowlog_nor_monitor(server: Running, admin: Wire) -> None:
    admin("CONFIG", "SET", "slowlog-log-slower-than", 0)
    watcher = server.wire()
    watcher("MONITOR")
    admin("ACL", "SETUSER", "bob", "on", ">SECRET", "<SECRET", ">SECRET", "+@all")
    admin.error("ACL", "SETUSER", "bob", "<SECRET2")
    wire = server.wire()
    wire("AUTH", "bob", "SECRET")
    wire("HELLO", 3, "AUTH", "bob", "SECRET")
    wire.error("AUTH", "bob", "SECRET2")
    wire("PING", "the end")
    lines = []
    while b"the end" not in (line := str(watcher.read()).encode()):
        lines.append(line)
    shown = repr(admin("SLOWLOG", "GET", -1)) + repr(lines) + repr(admin("ACL", "LOG"))
    assert "SECRET" not in shown
    assert "redacted" in shown


def test_owner_and_accessor_are_the_user(running: Start) -> None:
    """The audit knows who created a memory and who reads it."""
    server = running(clock=Clock(), mem_audit="others")
    admin = server.wire()
    bob, eve = user(server, admin, "bob", "+@all", "~*"), user(server, admin, "eve", "+@all", "~*")
    bob("MEM.CREATE", "m", "MODE", "SEARCH")
    bob("MEM.ADD", "m", "ID", "1", "TEXT", "t")
    bob("MEM.SEARCH", "m", "t")
    eve("MEM.SEARCH", "m", "t")
    admin("MEM.SEARCH", "m", "t")
    assert [entry[1] for entry in admin("MEM.AUDIT", "m")] == [b"default", b"eve"]
