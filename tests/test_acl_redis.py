"""Random rules, given to redis-server and to ours: the same replies, the same users, the same decisions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from harness import Clock, Running, Wire, Word
from hypothesis import given, settings
from hypothesis import strategies as st
from peer import connect, needs_redis, redis_server
from recalld.server import command_modules  # noqa: F401 - fills the table
from recalld.server.categories import CATEGORIES, every_command

pytestmark = needs_redis

#: Command lines of commands that both have, with the keys and channels that the rules below speak of.
LINES = """
PING|ECHO x|ECHO hi|SELECT 0|SELECT 1|AUTH a b|HELLO 3|QUIT|RESET|CLIENT ID|CLIENT LIST|CLIENT KILL a
CLIENT SETNAME x
CLIENT HELP|COMMAND|COMMAND COUNT|CONFIG GET port|CONFIG SET port 1|CONFIG RESETSTAT|INFO|TIME|MEMORY USAGE a
MEMORY USAGE team:1|MEMORY STATS|MEMORY DOCTOR|EXISTS a|EXISTS a b team:1|TOUCH b|TYPE team:1|DEL a
DEL a team:2|UNLINK b
FLUSHALL|FLUSHDB|EXPIRE a 1|PEXPIRE team:1 1|EXPIREAT b 1|TTL a|PTTL team:1|PERSIST a|RENAME a b|RENAME b a
RENAME team:1 team:2|RENAMENX a team:1|COPY a b|COPY b a|COPY team:1 a|DUMP a|RESTORE a 0 x|RESTORE team:1 0 x|DBSIZE
KEYS x|SCAN 0|RANDOMKEY|BGREWRITEAOF|SAVE|LASTSAVE|SHUTDOWN|SUBSCRIBE news|SUBSCRIBE news:1 c|PSUBSCRIBE news:*
PSUBSCRIBE n*|UNSUBSCRIBE x|PUNSUBSCRIBE x|PUBLISH news x|PUBLISH news:1 x|PUBLISH c x|PUBSUB CHANNELS|PUBSUB NUMSUB c
MULTI|EXEC|DISCARD|WATCH a b|WATCH team:1|UNWATCH|ACL LIST|ACL WHOAMI|ACL SETUSER x|ACL CAT|ACL HELP|NONSENSE x|CLIENT X
DEL|CONFIG GET|RENAME a
"""
COMMANDS = [line.split() for line in LINES.replace("\n", "|").split("|") if line]


class Pair(NamedTuple):
    theirs: Wire
    ours: Wire
    shared: list[str]
    """The commands that both have, subcommands too."""

    def both(self, *words: Word) -> tuple[Any, Any]:
        replies = []
        for wire in (self.theirs, self.ours):
            wire.send(*words)
            replies.append(wire.read())
        return replies[0], replies[1]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with redis_server(tmp_path_factory.mktemp("redis")) as path, Running(clock=Clock()) as server:
        theirs = connect(path, 3)
        names: set[str] = set()

        def gather(rows: list[Any]) -> None:
            for row in rows:
                names.add(row[0].decode())
                gather(row[9])

        gather(theirs("COMMAND"))
        names -= {"command|getkeys", "command|getkeysandflags"}  # whose arity is that of Redis 7.2
        yield Pair(theirs, server.wire(3), sorted(names & {entry.name for entry in every_command()}))


_SHARED: list[str] = "ping echo client client|id client|list config config|get config|set exists del type".split()
_SHARED += "expire rename copy publish subscribe psubscribe multi exec acl acl|whoami memory|usage keys scan".split()
_SHARED += "select restore dump watch flushall shutdown info CLIENT|Kill PiNg nonsense client|nonsense".split()
_CATEGORIES = [*(name for name in CATEGORIES if name != "memory"), "all", "READ", "nonsense"]
_PATTERNS = ["a", "b", "*", "team:*", "team:?", "[ab]", "[^a]", "", "te*:1", "\\a"]
_CHANNELS = ["news", "news:*", "*", "c", "n*", ""]

command_rules = st.one_of(
    st.builds(str.__add__, st.sampled_from(["+", "-"]), st.sampled_from(_SHARED)),
    st.builds(str.__add__, st.sampled_from(["+@", "-@"]), st.sampled_from(_CATEGORIES)),
    st.sampled_from(["allcommands", "nocommands", "+select|0", "+select|1", "+echo|HI", "-select|0"]),
    st.sampled_from(["+config|get|x", "+echo|", "+config|", "+|x"]),
)
key_rules = st.one_of(
    st.builds(str.__add__, st.sampled_from("~ %R~ %W~ %RW~ %wr~ %~ %X~".split()), st.sampled_from(_PATTERNS)),
    st.sampled_from(["allkeys", "resetkeys", "AllKeys", "%"]),
)
channel_rules = st.one_of(
    st.builds(str.__add__, st.just("&"), st.sampled_from(_CHANNELS)), st.sampled_from(["allchannels", "resetchannels"])
)
selector_rules = st.one_of(command_rules, key_rules, channel_rules)
user_rules = st.sampled_from(
    [
        *("on", "off", "ON", "nopass", "resetpass", ">p", ">q", "<p", "<r", "#" + "0" * 64, "!" + "0" * 64),
        *("#0", "reset"),
        *("clearselectors", "skip-sanitize-payload", "sanitize-payload", "", "nonsense", "(", ")", "()", "(nopass)"),
    ]
)
selectors = st.builds(lambda rules: f"({' '.join(rules)})", st.lists(selector_rules, max_size=4))
rules = st.one_of(command_rules, key_rules, channel_rules, selector_rules, user_rules, selectors)


def described(user: dict[bytes, Any]) -> dict[bytes, Any]:
    """What both show alike: of the rules for commands Redis shows some that do the same, chosen from its table."""
    shown = {name: value for name, value in user.items() if name not in (b"commands", b"selectors")}
    shown[b"flags"] = set(user.get(b"flags", ()))
    return shown | {b"selectors": [described(selector) for selector in user.get(b"selectors", ())]}


def same_commands(pair: Pair, theirs: dict[bytes, Any], ours: dict[bytes, Any]) -> None:
    """Redis makes of our rules for commands what it made of the rules that were given."""
    for mine, their in zip([ours, *ours.get(b"selectors", ())], [theirs, *theirs.get(b"selectors", ())], strict=True):
        assert pair.theirs("ACL", "SETUSER", "again", "reset", *mine[b"commands"].split()) == "OK"
        again = pair.theirs("ACL", "GETUSER", "again")[b"commands"]
        assert again == their[b"commands"].lower()  # Redis 7.0 keeps the case of first arguments


def same_decisions(pair: Pair) -> None:
    lines = [["ACL", "DRYRUN", "u", *words] for words in COMMANDS]
    for words, theirs, ours in zip(COMMANDS, pair.theirs.pipeline(*lines), pair.ours.pipeline(*lines), strict=True):
        assert ours == theirs, words


@given(st.lists(st.lists(rules, min_size=1, max_size=6), min_size=1, max_size=5))
@settings(max_examples=150)
def test_random_rules(pair: Pair, changes: list[list[str]]) -> None:
    """SETUSER's reply, GETUSER and every DRYRUN are Redis's after each change, refused ones among them."""
    pair.both("ACL", "DELUSER", "u")
    for change in changes:
        theirs, ours = pair.both("ACL", "SETUSER", "u", *change)
        assert ours == theirs
        theirs, ours = pair.both("ACL", "GETUSER", "u")
        assert (theirs is None) == (ours is None)
        if theirs is not None:
            assert described(ours) == described(theirs)
            same_commands(pair, theirs, ours)
    same_decisions(pair)


@given(st.lists(st.one_of(command_rules, key_rules, channel_rules, selectors), min_size=1, max_size=8))
@settings(max_examples=150)
def test_random_users(pair: Pair, given_rules: list[str]) -> None:
    """Rules that cannot be are left out one by one, so that all that can be meet the commands."""
    pair.both("ACL", "SETUSER", "u", "reset", "on", "nopass")
    for rule in given_rules:
        theirs, ours = pair.both("ACL", "SETUSER", "u", rule)
        assert ours == theirs
    theirs, ours = pair.both("ACL", "GETUSER", "u")
    assert described(ours) == described(theirs)
    same_commands(pair, theirs, ours)
    same_decisions(pair)


def test_every_category_and_command(pair: Pair) -> None:
    """`+@category` alone, `-@category` from all, and each command alone: the same commands on both sides."""

    def runs(wire: Wire) -> list[str]:
        """Each command and what DRYRUN says of it, with more and more words until its arity is met."""
        lines = [["ACL", "DRYRUN", "u", *name.split("|"), *["x"] * count] for name in pair.shared for count in range(4)]
        return [f"{line[3:]} {reply}" for line, reply in zip(lines, wire.pipeline(*lines), strict=True)]

    shared = [name for name in CATEGORIES if name != "memory"]
    for rule in [f"+@{name}" for name in shared] + [f"-@{name}" for name in shared]:
        start = "+@all" if rule[0] == "-" else "-@all"
        pair.both("ACL", "SETUSER", "u", "reset", "allkeys", "allchannels", start, rule)
        assert runs(pair.ours) == runs(pair.theirs), rule
    for name in pair.shared:
        pair.both("ACL", "SETUSER", "u", "reset", "allkeys", "allchannels", f"+{name}")
        assert runs(pair.ours) == runs(pair.theirs), name


@pytest.mark.parametrize(
    "session",
    [
        ["AUTH u wrong", "AUTH nobody x", "AUTH x", "AUTH a b c", "HELLO 3 AUTH u wrong", "AUTH u p", "ACL WHOAMI"],
        ["AUTH u p", "ECHO x", "EXISTS b", "PUBLISH d x", "SUBSCRIBE d", "PSUBSCRIBE c", "PING", "EXISTS a"],
        ["AUTH u p", "MULTI", "EXISTS b", "EXEC", "MULTI", "EXISTS a", "PUBLISH d x", "PUBLISH c x", "EXEC"],
        ["AUTH u p", "MULTI", "AUTH default x", "ACL WHOAMI", "EXEC"],
        ["AUTH u p", "RESET", "ACL WHOAMI"],
        ["ACL NONSENSE", "ACL SETUSER", "ACL GETUSER nobody", "ACL GETUSER", "ACL DELUSER default", "ACL DELUSER x"],
        ["ACL CAT nonsense", "ACL CAT a b", "ACL LOG x", "ACL LOG 1 2", "ACL LOG -1", "ACL GENPASS 0", "ACL GENPASS x"],
        ["ACL GENPASS 1 2", "ACL DRYRUN nobody PING", "ACL DRYRUN u", "ACL DRYRUN u NONSENSE", "ACL DRYRUN u EXISTS"],
        ["ACL SETUSER a\x00b", "ACL WHOAMI x", "ACL LIST x", "CLIENT KILL USER nobody", "CONFIG GET acllog-max-len"],
        ["ACL LOAD", "ACL SAVE", "ACL HELP x", "CONFIG SET acl-pubsub-default x"],
        ["CONFIG GET acl-pubsub-default", "COMMAND LIST FILTERBY ACLCAT nonsense"],
    ],
)
def test_sessions(pair: Pair, tmp_path_factory: pytest.TempPathFactory, session: list[str]) -> None:
    """The replies to whole sessions, errors among them, byte by byte, and what ACL LOG has of them."""
    with redis_server(tmp_path_factory.mktemp("redis")) as path, Running(clock=Clock()) as server:
        replies, logs = [], []
        for wire, admin in ((connect(path), connect(path)), (server.wire(), server.wire())):
            admin("ACL", "SETUSER", "u", "on", ">p", "+@all", "-echo", "~a", "&c")
            got = []
            for line in session:
                wire.send(*line.split(" "))
                wire.read()
                got.append(b"".join(wire._seen))
            replies.append(got)
            logs.append([entry[1:10:2] for entry in admin("ACL", "LOG")])
        assert replies[1] == replies[0]
        assert logs[1] == logs[0]


def test_requirepass(pair: Pair, tmp_path_factory: pytest.TempPathFactory) -> None:
    """A connection before and after the default user has a password, and rules."""
    with redis_server(tmp_path_factory.mktemp("redis")) as path, Running(clock=Clock()) as server:
        replies = []
        for connect_to in (lambda: connect(path), server.wire):
            admin, late = connect_to(), connect_to()
            got: list[Any] = []

            def say(wire: Wire, line: str, got: list[Any] = got) -> None:
                wire.send(*line.split(" "))
                reply = wire.read()
                got.append("greeting" if "version" in repr(reply) else reply)

            say(late, "PING")  # it is in
            say(admin, "CONFIG SET requirepass secret")
            stranger = connect_to()
            for wire in (late, stranger):
                for line in ("PING", "NONSENSE x", "HELLO 3", "AUTH wrong", "AUTH default secret", "PING"):
                    say(wire, line)
            say(admin, "ACL LIST")
            other = connect_to()
            say(admin, "ACL SETUSER default nopass -@all +ping +acl")
            for line in ("PING", "ECHO x", "MULTI", "AUTH default x", "AUTH x"):
                say(other, line)
            say(admin, "ACL SETUSER default +@all")
            say(admin, "CONFIG SET requirepass other")
            say(admin, "ACL GETUSER default")
            replies.append(got)
        assert replies[1] == replies[0]
