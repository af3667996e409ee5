"""How many users and rules there may be, and how long: what is more is refused, and has changed nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from harness import Clock, Running, Wire, Word
from hypothesis import given
from hypothesis import strategies as st
from recalld.server import (
    acl_bounds,
    acl_patterns,
    command_modules,  # noqa: F401 - fills the table
)
from recalld.server.acl import User
from recalld.server.acl_file import load_users
from recalld.server.acl_selector import READ, WRITE, RuleError, Selector
from recalld.server.acl_users import Acl, apply_rules
from recalld.server.config import Config, ConfigError
from recalld.server.glob import glob_match

Start = Callable[..., Running]

NAME = "a username may have 256 bytes at most, this one has {}"
RULE = "a rule may have 1024 bytes at most, this one has {}"
MANY = (
    "more than 1000 rules, each of those in parentheses counted: a user has no more, as ACL LIST shows it, and ACL"
    " SETUSER takes no more at once"
)
WILDCARDS = "the patterns with ? [ or \\ of a user may have 8192 bytes at most together, these would have {}"
USERS = "there are 10000 users already, and there may be no more; delete some first (ACL DELUSER)"


@pytest.fixture
def admin(running: Start) -> Iterator[Wire]:
    """A server of the test's own, with the user u."""
    wire = running(clock=Clock()).wire()
    wire("ACL", "SETUSER", "u", "on", ">p", "~a:*", "&c", "+ping", "(~b +ttl)")
    yield wire
    wire.close()


def test_names(admin: Wire) -> None:
    assert admin("ACL", "SETUSER", "x" * 256) == "OK"
    before = admin("ACL", "LIST")
    for name in ("x" * 257, b"\xff" * 900_000, b" " * 900_000):
        assert admin.error("ACL", "SETUSER", name) == "ERR " + NAME.format(len(name))
        assert admin("ACL", "DELUSER", name) == 0
        assert admin("ACL", "GETUSER", name) is None
    assert admin("ACL", "LIST") == before


@pytest.mark.parametrize("inner", ["{}", "({})", "(+ping {})"])
@pytest.mark.parametrize("start", ["~", "%R~", "&", ">", "+select|"])
def test_a_rule_has_1024_bytes(admin: Wire, start: str, inner: str) -> None:
    if start == ">" and inner != "{}":
        return
    rule = start + "x" * (1024 - len(start))
    assert admin("ACL", "SETUSER", "v", inner.format(rule)) == "OK"
    before = admin("ACL", "LIST")
    error = admin.error("ACL", "SETUSER", "u", "off", inner.format(rule + "x"))
    assert error == f"ERR Error in ACL SETUSER modifier '{rule[:128]}': " + RULE.format(1025)
    assert admin("ACL", "LIST") == before


@pytest.mark.parametrize("word", ["(" + "+ping " * 171_000 + ")", "#" + "0" * 900_000, "+" + "|" * 900_000])
def test_a_large_word(admin: Wire, word: str) -> None:
    before = admin("ACL", "LIST")
    error = admin.error("ACL", "SETUSER", "u", "off", word)
    assert error.startswith(f"ERR Error in ACL SETUSER modifier '{word[:128]}': ")
    assert error.endswith(" at most, this one has " + str(len(word)))
    assert admin("ACL", "LIST") == before


@pytest.mark.parametrize(
    "words",
    [
        [f"~{at}" for at in range(1001)],
        [f">{at}" for at in range(1001)],
        ["+ping", "-ping"] * 501,
        ["(+ping)"] * 1001,
        ["()"] * 1001,
        ["(" + "+ping " * 600 + ")", "(" + "+ping " * 600 + ")"],
        ["(+ping", *["+ping"] * 1000, ")"],
    ],
)
def test_so_many_rules_at_once(admin: Wire, words: list[Word]) -> None:
    before = admin("ACL", "LIST")
    assert admin.error("ACL", "SETUSER", "u", "off", *words) == "ERR " + MANY
    assert admin("ACL", "LIST") == before
    assert admin("ACL", "SETUSER", "u", *["+ping"] * 1000) == "OK"


def kept(admin: Wire, name: str) -> int:
    """How many rules ACL LIST shows of a user."""
    (line,) = (line for line in admin("ACL", "LIST") if line.split(b" ")[1] == name.encode())
    return len(line.split(b" ")) - 2


@pytest.mark.parametrize(
    "rule",
    [
        lambda at: f"~{at}",
        lambda at: f"%R~{at}*",
        lambda at: f"&{at}",
        lambda at: f">{at}",
        lambda at: f"+select|{at}",
        lambda at: f"(~{at})",
    ],
)
def test_so_many_rules_of_a_user(admin: Wire, rule: Callable[[int], str]) -> None:
    """It may be filled to the last rule, in several commands; what ACL LIST shows then makes the same user again."""
    step = 3 if rule(0)[0] == "(" else 1
    free = 1000 - kept(admin, "u")
    rules = [rule(at) for at in range(free // step)] + ["(+ping"[1:] if free % step else "on"] * (free % step)
    del rules[free // step :]
    for at in range(0, len(rules), 400):
        assert admin("ACL", "SETUSER", "u", *rules[at : at + 400]) == "OK"
    assert kept(admin, "u") == 1000 - free % step
    before = admin("ACL", "LIST")
    assert admin.error("ACL", "SETUSER", "u", "off", rule(1000), rule(1001), rule(1002)) == "ERR " + MANY
    assert admin("ACL", "LIST") == before
    (line,) = (line for line in before if line.startswith(b"user u "))
    assert admin("ACL", "SETUSER", "again", *line.split(b" ")[2:]) == "OK"
    assert line.replace(b"user u", b"user again") in admin("ACL", "LIST")
    assert admin("ACL", "SETUSER", "u", "resetpass", "resetkeys", "resetchannels", "clearselectors", "-@all") == "OK"
    assert kept(admin, "u") < 10


def test_wildcards(admin: Wire) -> None:
    """A pattern that becomes a regular expression takes time to compile, so all of a user are bounded together."""
    rules = [f"~{at:04}[a-z]{'x' * 502}" for at in range(15)] + ["&" + "?" * 512]
    assert sum(len(rule) - 1 for rule in rules) == 16 * 512 - 15
    assert admin("ACL", "SETUSER", "u", *rules, "(~" + "\\" * 15 + ")", "~" + "x" * 1000 + "*") == "OK"
    before = admin("ACL", "LIST")
    for rule in ("(&?)", "~[", "%R~\\"):
        error = admin.error("ACL", "SETUSER", "u", "off", rule)
        assert error == "ERR " + WILDCARDS.format(8192 + len(rule.strip("()").lstrip("&~%R")))
    assert admin("ACL", "LIST") == before
    assert admin("ACL", "SETUSER", "u", "resetkeys", "~[") == "OK"


@pytest.fixture
def three_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acl_bounds, "USERS_MAX", 3)


def test_so_many_users(admin: Wire, three_users: None) -> None:
    assert acl_bounds.NAME_BYTES_MAX == 256
    assert admin("ACL", "SETUSER", "third") == "OK"
    before = admin("ACL", "LIST")
    error = admin.error("ACL", "SETUSER", "fourth", "on")
    assert error == "ERR " + USERS.replace("10000", "3")
    assert admin("ACL", "LIST") == before
    assert admin("ACL", "SETUSER", "third", "on") == "OK"
    admin("ACL", "DELUSER", "u")
    assert admin("ACL", "SETUSER", "fourth", "on") == "OK"


def test_ten_thousand_users_is_what_there_may_be() -> None:
    assert acl_bounds.USERS_MAX == 10_000


def configured(tmp_path: Path, text: str) -> Config:
    path = tmp_path / "recalld.conf"
    path.write_text(text)
    return Config.load(str(path))


BAD_LINES = {
    "user " + "x" * 257: NAME.format(257),
    "user x on >" + "p" * 1024: RULE.format(1025),
    "user x (~" + "p" * 1024 + " +ttl)": RULE.format(1025),
    "user x " + " ".join(f"~{at}" for at in range(1001)): MANY,
    "user x " + " ".join(f"~{at}" for at in range(1000)): MANY,  # with off, resetchannels and -@all
    "user x " + " ".join(f"~?{'x' * 1000}{at}" for at in range(9)): WILDCARDS.format(9 * 1002),
}


@pytest.mark.parametrize(("line", "reason"), BAD_LINES.items(), ids=range(len(BAD_LINES)))
def test_files(running: Start, tmp_path: Path, line: str, reason: str) -> None:
    path = tmp_path / "users.acl"
    path.write_text("user bob on\n")
    wire = running(clock=Clock(), aclfile=str(path)).wire()
    before = wire("ACL", "LIST")
    path.write_text("user eve on\n" + line + "\n")
    assert wire.error("ACL", "LOAD").startswith(f"ERR {path}:2: {reason}. WARNING")
    assert wire("ACL", "LIST") == before
    config = configured(tmp_path, "user bob on\n" + line + "\n")
    with pytest.raises(ConfigError) as raised:
        load_users(config, Acl(config, {}))
    assert str(raised.value) == f"{config.path}:2: {reason}"


def test_so_many_users_in_files(running: Start, tmp_path: Path, three_users: None) -> None:
    """The default user counts, whether it is among them or not."""
    path = tmp_path / "users.acl"
    path.write_text("user bob on\n")
    wire = running(clock=Clock(), aclfile=str(path)).wire()
    reason = "there are 3 users already, and there may be no more"
    for names in ("abcde", ["a", "b", "default", "c", "d"]):
        path.write_text("".join(f"user {name} on\n" for name in names))
        number = 3 if "default" not in names else 4
        error = wire.error("ACL", "LOAD")
        assert error.startswith(f"ERR {path}:{number}: {reason}")
        assert error.count(reason) == 1
        assert wire("ACL", "USERS") == [b"bob", b"default"]
    config = configured(tmp_path, "user a on\nuser b on\nuser c on\n")
    with pytest.raises(ConfigError, match=f"{config.path}:3: {reason}"):
        load_users(config, Acl(config, {}))
    path.write_text("user a on\nuser b on\n")
    assert wire("ACL", "LOAD") == "OK"
    assert wire("ACL", "SAVE") == "OK"
    assert wire("ACL", "LOAD") == "OK"


def test_what_a_file_may_have(running: Start, tmp_path: Path) -> None:
    """A user filled to the last rule is saved and read again."""
    path = tmp_path / "users.acl"
    path.write_text("user bob on  " + " ".join(f">{at}" for at in range(997)) + "\n")  # resetchannels, -@all
    wire = running(clock=Clock(), aclfile=str(path)).wire()
    before = wire("ACL", "LIST")
    assert kept(wire, "bob") == 1000
    assert wire("ACL", "SAVE") == "OK"
    assert wire("ACL", "LOAD") == "OK"
    assert wire("ACL", "LIST") == before


def test_what_an_error_shows(running: Start, tmp_path: Path) -> None:
    path = tmp_path / "users.acl"
    path.write_text("")
    wire = running(clock=Clock(), aclfile=str(path)).wire()
    for word in ("x" * 1000, "(" + "x" * 1000):
        shown = f"'{word[:128]}'"
        assert shown in wire.error("ACL", "SETUSER", "u", "+ping", word)
        assert shown in wire.error("ACL", "DRYRUN", word, "PING")
        assert shown in wire.error("ACL", "DRYRUN", "default", word)
        assert shown in wire.error("ACL", "CAT", word)
    path.write_text("user x +" + "x" * 1000 + "\n")
    assert f"'+{'x' * 127}'" in wire.error("ACL", "LOAD")


# What is kept, against keeping it in a list


COMMANDS = "get select config config|get config|set client|id client ping mem.add".split()
command_rules = st.one_of(
    st.builds(str.__add__, st.sampled_from("+-"), st.sampled_from(COMMANDS)),
    st.builds("+{}|{}".format, st.sampled_from(["select", "mem.add", "get"]), st.sampled_from("abc")),
    st.builds("{}@{}".format, st.sampled_from("+-"), st.sampled_from(["read", "write", "scripting", "all", "admin"])),
)


@given(rules=st.lists(command_rules, max_size=30))
def test_rules_made_void_are_left_out(rules: list[str]) -> None:
    """A rule makes void what was said before of the same name, or of a part of it; the others keep their order."""
    selector, expected = Selector(), ["-@all"]
    for rule in rules:
        try:
            selector.apply(rule.encode())
        except RuleError:
            continue
        name = rule[1:]
        if name == "@all":
            expected = [rule]
            continue
        others = [each for each in expected[1:] if each[1:] != name and not each[1:].startswith(name + "|")]
        expected = [expected[0], *others, rule]
    assert selector.commands_text().decode().split() == expected
    assert selector.copy().commands_text() == selector.commands_text()


def test_what_is_void_is_not_kept() -> None:
    """However often rules are given, no more of them are kept than ACL LIST shows, the first arguments' too."""
    selector = Selector()
    for at in range(3000):
        for rule in (b"+mem.add|%d" % at, b"-mem.add", b"+@read", b"-@read"):
            selector.apply(rule)
    assert selector.commands_text() == b"-@all -mem.add -@read"
    assert selector.size == len(selector.text().split())
    assert len(selector.first_args) == 0


# Patterns, against one after the other


names = st.text("ab:*", max_size=5) | st.text("ab*?[]\\-^", max_size=6)


@given(
    patterns=st.dictionaries(names, st.integers(1, 3), max_size=12),
    keys=st.lists(st.text("ab:c", max_size=6) | names, min_size=1, max_size=8),
)
def test_patterns_match_as_one_by_one(patterns: dict[str, int], keys: list[str]) -> None:
    selector = Selector(allchannels=False)
    letters = {READ: "%R~", WRITE: "%W~", READ | WRITE: "~"}
    kept = {pattern: given for pattern, given in patterns.items() if pattern != "*"}
    for pattern, permissions in kept.items():
        selector.apply((letters[permissions] + pattern).encode())
        selector.apply(f"&{pattern}".encode())
    for key in keys:
        matching = [given for pattern, given in kept.items() if glob_match(pattern.encode(), key.encode())]
        for asked in (0, READ, WRITE, READ | WRITE):
            allowed = any(given & asked == asked for given in matching)
            assert selector.allows_key(key.encode(), asked) == allowed
        assert selector.allows_channel(key.encode(), is_pattern=False) == bool(matching)
        assert selector.allows_channel(key.encode(), is_pattern=True) == (key in kept)


def test_a_pattern_is_asked_of_the_keys_that_begin_like_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand patterns for as many tenants cost each key no more than one."""
    asked: list[bytes] = []
    real = acl_patterns.compile_glob

    class Counting:
        def __init__(self, pattern: bytes) -> None:
            self._pattern, self._glob = pattern, real(pattern)

        def fullmatch(self, value: bytes, /) -> Any:
            asked.append(self._pattern)
            return self._glob.fullmatch(value)

    monkeypatch.setattr(acl_patterns, "compile_glob", Counting)
    user = User("u")
    apply_rules(user, [b"~user:%04d:*:x" % at for at in range(900)], allchannels=False)
    (selector,) = user.selectors
    for at in range(900):
        assert selector.allows_key(b"user:%04d:key:x" % at, READ)
    assert not selector.allows_key(b"user:0001:key:y", READ)
    assert not selector.allows_key(b"other", READ)
    assert len(asked) == 901


TOO_MANY = (
    "ERR {} keys or channels are too many for one command of this user, against whose patterns they would take too long"
    " to match; send several"
)


@pytest.mark.parametrize("form", ["~*:{:04}", "~user:*:{:04}", "(~user:* +exists)", "(~user:{}* +exists ~user:*:x)"])
def test_names_that_would_take_long_to_match(running: Start, form: str) -> None:
    """Where many patterns may be asked of each key, only so many keys go into one command; a few always do."""
    server = running(clock=Clock())
    admin = server.wire()
    admin("ACL", "SETUSER", "u", "on", "nopass", "+exists", "+ping", "~user:7", *(form.format(at) for at in range(160)))
    wire = server.wire()
    wire("AUTH", "u", "")
    keys = [f"user:{at}:0159" for at in range(20_000)]
    assert wire.error("EXISTS", *keys) == TOO_MANY.format(20_000)
    assert admin.error("ACL", "DRYRUN", "u", "EXISTS", *keys) == TOO_MANY.format(20_000)
    assert wire("EXISTS", *["user:7"] * 100) == 0
    admin("ACL", "SETUSER", "u", "clearselectors", "resetkeys", "~user:*", "~x:*")
    assert wire("EXISTS", *keys) == 0


def test_long_names_that_would_take_long_to_match(running: Start) -> None:
    server = running(clock=Clock())
    admin = server.wire()
    admin("ACL", "SETUSER", "u", "on", "nopass", "+exists", "~[a-z]*" + "[^x]" * 200 + "*", "~b*")
    wire = server.wire()
    wire("AUTH", "u", "")
    keys = [f"a{at}".ljust(4000, "x") for at in range(40)]
    assert wire.error("EXISTS", *keys) == TOO_MANY.format(40)
    assert wire.error("EXISTS", *keys[:4]).startswith("NOPERM")
    assert wire("EXISTS", *(f"a{at}" + "y" * 200 for at in range(40))) == 0


def test_channels_that_would_take_long_to_match(running: Start) -> None:
    server = running(clock=Clock())
    admin = server.wire()
    admin("ACL", "SETUSER", "u", "on", "nopass", "+@pubsub", *(f"&*:{at:04}" for at in range(900)))
    wire = server.wire(3)
    wire("AUTH", "u", "")
    assert wire.error("SUBSCRIBE", *["a:0899"] * 20_000) == TOO_MANY.format(20_000)
    assert wire("SUBSCRIBE", "a:0899")[1:] == [b"a:0899", 1]
    wire.close()


def test_a_login_with_a_long_name(running: Start) -> None:
    server = running(clock=Clock())
    wire = server.wire()
    assert wire.error("AUTH", b"\xff" * 900_000, "p").startswith("WRONGPASS")
    (entry,) = wire("ACL", "LOG")
    assert dict(zip(entry[::2], entry[1::2], strict=True))[b"username"] == b"\xff" * 1024
    assert wire("ACL", "SETUSER", "u", "#" + sha256(b"p").hexdigest(), "on") == "OK"
    assert wire("AUTH", "u", "p") == "OK"


@pytest.mark.parametrize(
    "rules", [["%RW~*", "~a"], ["%R~*", "%W~*", "~a"], ["~a", "%R~*", "%W~*"], ["(%RW~* ~a)"]], ids=" ".join
)
def test_all_keys_by_halves_are_read_again(running: Start, tmp_path: Path, rules: list[str]) -> None:
    """A pattern may not follow `~*`, so it stands last."""
    path = tmp_path / "users.acl"
    path.write_text("")
    wire = running(aclfile=str(path)).wire()
    wire("ACL", "SETUSER", "u", *rules)
    assert wire("ACL", "SAVE") == wire("ACL", "LOAD") == "OK"
    assert any(b"~*" in line and b"~a" not in line for line in wire("ACL", "LIST"))  # which is all that it said
