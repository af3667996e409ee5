"""Options, recalld.conf, CONFIG GET and SET, the command line, the log's format, glob patterns.

Where Redis has the same option, its own server is asked too (skipped where no redis-server 7 is installed).
"""

from __future__ import annotations

import logging
import math
import random
import re
import shutil
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st
from recalld import conf
from recalld.server import cli, log
from recalld.server import config as config_module
from recalld.server.config import (
    OPTIONS,
    BindList,
    Bool,
    Config,
    ConfigError,
    Enum,
    EventClasses,
    FileName,
    Int,
    Memory,
    OutputLimit,
    OutputLimits,
    Percentiles,
    Real,
    Str,
    Type,
    Weights,
    split_words,
)
from recalld.server.errors import CommandError
from recalld.server.glob import compile_glob, glob_match

# recalld.conf


def conf_blocks() -> list[list[str]]:
    """The file's paragraphs: lines between blank lines."""
    return [block.splitlines() for block in re.split(r"\n\s*\n", conf.PATH.read_text().strip())]


def option_lines(block: list[str]) -> list[str]:
    return [line for line in block if not line.startswith("#")]


def test_every_option_stands_under_a_comment_of_its_own() -> None:
    """One paragraph per option: comment first, then its line, or lines, and no other option's."""
    documented: list[str] = []
    for block in conf_blocks():
        lines = option_lines(block)
        if not lines:
            continue
        names = {line.split()[0] for line in lines}
        assert len(names) == 1, names
        assert block[: -len(lines)] and all(line.startswith("# ") for line in block[:1]), names
        assert block[-len(lines) :] == lines, names
        documented += names
    assert sorted(documented) == sorted(OPTIONS)


def test_every_option_stands_there_at_its_default() -> None:
    """The file's words for an option read as the table's default does."""
    for block in conf_blocks():
        words = [split_words(line.encode()) for line in option_lines(block)]
        if words:
            option = OPTIONS[words[0][0]]
            text = " ".join(" ".join(values) for _, *values in words)
            assert option.type.parse(text) == option.type.parse(option.default), option.name


def test_loading_the_file_equals_the_defaults() -> None:
    """The shipped file changes nothing."""
    loaded, defaults = Config.load(str(conf.PATH)), Config.defaults()
    assert {name: loaded[name] for name in OPTIONS} == {name: defaults[name] for name in OPTIONS}
    assert loaded.path == str(conf.PATH)
    assert defaults.path is None


def test_what_is_fixed_at_start_says_so() -> None:
    """An option that CONFIG SET refuses tells it in its comment, and no other one does."""
    fixed = {
        option_lines(block)[0].split()[0]
        for block in conf_blocks()
        if option_lines(block) and "Fixed at start." in "\n".join(block)
    }
    assert fixed == {option.name for option in OPTIONS.values() if not option.mutable}


def test_lines_fit_the_page() -> None:
    assert [line for line in conf.PATH.read_text().splitlines() if len(line) > 120] == []


# Values


@pytest.mark.parametrize(
    ("name", "text", "value", "shown"),
    [
        ("timeout", "0", 0, "0"),
        ("timeout", "2147483647", 2147483647, "2147483647"),
        ("protected-mode", "NO", False, "no"),
        ("protected-mode", "Yes", True, "yes"),
        ("requirepass", "two  words ", "two  words ", "two  words "),
        ("requirepass", "", "", ""),
        ("loglevel", "DEBUG", "debug", "debug"),
        ("appendfsync", "always", "always", "always"),
        ("mem-max-text-bytes", "1", 1, "1"),
        ("mem-max-text-bytes", "1b", 1, "1"),
        ("mem-max-text-bytes", "2k", 2_000, "2000"),
        ("mem-max-text-bytes", "2kb", 2_048, "2048"),
        ("mem-max-text-bytes", "2m", 2_000_000, "2000000"),
        ("mem-max-text-bytes", "2MB", 2_097_152, "2097152"),
        ("mem-max-text-bytes", "2G", 2_000_000_000, "2000000000"),
        ("mem-max-text-bytes", "2gB", 2_147_483_648, "2147483648"),
        ("mem-max-text-bytes", "007", 7, "7"),
        ("mem-entity-threshold", "-.5e0", -0.5, "-0.5"),
        ("mem-default-weights", "1 0 .5 2e-1", (1.0, 0.0, 0.5, 0.2), "1 0 0.5 0.2"),
    ],
)
def test_values(name: str, text: str, value: Any, shown: str) -> None:
    """What CONFIG SET and the command line understand, and how CONFIG GET shows it."""
    config = Config.defaults()
    config.set({name: text})
    assert (config[name], config.text(name)) == (value, shown)
    loaded = Config.load(None, [(name, [text])])
    assert (loaded[name], loaded.text(name)) == (value, shown)


@pytest.mark.parametrize(
    ("name", "text", "value", "shown"),
    [
        ("port", "0", 0, "0"),
        ("port", "65535", 65535, "65535"),
        ("bind", "10.0.0.1  -::1", ("10.0.0.1", "-::1"), "10.0.0.1 -::1"),
        ("bind", "* -::*", ("*", "-::*"), "* -::*"),
        ("bind", " ".join(["1.1.1.1"] * 16), ("1.1.1.1",) * 16, " ".join(["1.1.1.1"] * 16)),
        ("appendonly", "NO", False, "no"),
        ("appendonly", "Yes", True, "yes"),
        ("save", "", "", ""),
        ("appendfilename", "a b.c", "a b.c", "a b.c"),
        ("appenddirname", "...", "...", "..."),
    ],
)
def test_values_fixed_at_start(name: str, text: str, value: Any, shown: str) -> None:
    """What the command line understands, and how CONFIG GET shows it; CONFIG SET refuses even the value that it has."""
    config = Config.load(None, [(name, [text])])
    assert (config[name], config.text(name)) == (value, shown)
    with pytest.raises(ConfigError) as caught:
        config.set({name: text})
    assert caught.value.message == failed(name, "can't set immutable config")
    assert (config[name], config.text(name)) == (value, shown)


def test_output_limits_of_one_class_leave_the_others() -> None:
    """`slave` is Redis's older word for `replica`, and the one that it shows."""
    config = Config.defaults()
    name = "client-output-buffer-limit"
    assert config.text(name) == "normal 33554432 0 0 pubsub 33554432 8388608 60"
    config.set({name: "PubSub 2mb 1mb 5"})
    assert config.text(name) == "normal 33554432 0 0 pubsub 2097152 1048576 5"
    assert config[name]["normal"] == OutputLimit(hard_bytes=33554432, soft_bytes=0, soft_seconds=0)
    config.set({name: "replica 1k 0 0 normal 0 0 0"})
    assert config.text(name) == "normal 0 0 0 slave 1000 0 0 pubsub 2097152 1048576 5"
    config.set({name: "slave 2k 0 0"})
    assert config[name]["replica"] == OutputLimit(2000, 0, 0)
    config.set({name: ""})
    assert config.text(name) == "normal 0 0 0 slave 2000 0 0 pubsub 2097152 1048576 5"


def finite(least: float, most: float) -> st.SearchStrategy[float]:
    return st.floats(max(least, -1e308), min(most, 1e308), allow_nan=False)


def values_of(kind: Type) -> st.SearchStrategy[Any]:
    """Values that a type can have."""
    match kind:
        case Bool():
            return st.booleans()
        case Int() | Memory():
            return st.integers(kind.min, kind.max)
        case Real():
            return st.floats(kind.min, kind.max)
        case Enum():
            return st.sampled_from(kind.words)
        case Percentiles():
            return st.lists(st.floats(0, 100)).map(tuple)
        case EventClasses():
            return st.sets(st.sampled_from("g$lshzxetdKEmn")).map(
                lambda letters: "".join(letter for letter in "g$lshzxetdKEmn" if letter in letters)
            )
        case Weights():
            return st.tuples(*[finite(0, math.inf)] * 4)
        case BindList():
            return st.lists(st.text("abc019.:-*", min_size=2), min_size=1, max_size=16).map(tuple)
        case OutputLimits():
            number = st.integers(0, 2**31 - 1)
            return st.dictionaries(
                st.sampled_from(["normal", "replica", "pubsub"]), st.builds(OutputLimit, number, number, number)
            )
        case FileName():
            return st.text(min_size=1).filter(lambda text: text not in (".", "..") and not set(text) & set("/\\\n\0"))
        case Str():
            return st.text()
    raise AssertionError(kind)


KINDS = [option.type for option in OPTIONS.values()]


@given(st.sampled_from(KINDS).flatmap(lambda kind: st.tuples(st.just(kind), values_of(kind))))
def test_value_to_text_and_back(case: tuple[Type, Any]) -> None:
    """What CONFIG GET shows, CONFIG SET understands as the same value."""
    kind, value = case
    assert kind.parse(kind.format(value)) == value


@given(st.sampled_from(KINDS), st.text("0123456789.-+eEkKmMgGbB aynosx_\n٣", max_size=20))
def test_any_text_is_a_value_or_a_config_error(kind: Type, text: str) -> None:
    """No text makes a type fail in another way, and what it accepts, it shows in a form that it accepts again."""
    try:
        value = kind.parse(text)
    except ConfigError:
        return
    assert kind.parse(kind.format(value)) == value


# CONFIG SET


def failed(name: str, reason: str) -> str:
    return f"CONFIG SET failed (possibly related to argument '{name}') - {reason}"


NOT_AN_INTEGER = "argument couldn't be parsed into an integer"
BAD_LIMIT = "Error in hard, soft or soft_seconds setting in buffer limit configuration."
BAD_WEIGHTS = "argument must be four finite and non-negative numbers: keyword, vector, recency and importance"
BAD_BIND = "argument must be one or more addresses"

#: The pairs, as a client sends them, and the error; Redis 7 gives the same for these.
SET_ERRORS_OF_REDIS: list[tuple[list[str], str]] = [
    (["x", "1"], "Unknown option or number of arguments for CONFIG SET - 'x'"),
    (["timeout", "5", "foo", "6"], "Unknown option or number of arguments for CONFIG SET - 'foo'"),
    (["timeout", "abc", "foo", "6"], "Unknown option or number of arguments for CONFIG SET - 'foo'"),
    (["timeout", "5", "TIMEOUT", "6"], failed("TIMEOUT", "duplicate parameter")),
    (["timeout", "5", "timeout", "6"], failed("timeout", "duplicate parameter")),
    (["appendfilename", "a"], failed("appendfilename", "can't set immutable config")),
    (["AppendFilename", "a"], failed("AppendFilename", "can't set immutable config")),
    (["appenddirname", "a"], failed("appenddirname", "can't set immutable config")),
    (["logfile", "a"], failed("logfile", "can't set immutable config")),
    (["tcp-backlog", "5"], failed("tcp-backlog", "can't set immutable config")),
    (["timeout", "abc", "tcp-backlog", "5"], failed("tcp-backlog", "can't set immutable config")),
    (["timeout", "7", "maxclients", "0"], failed("maxclients", "argument must be between 1 and 4294967295 inclusive")),
    (["MAXCLIENTS", "0"], failed("maxclients", "argument must be between 1 and 4294967295 inclusive")),
    (["timeout", "-1"], failed("timeout", "argument must be between 0 and 2147483647 inclusive")),
    (["timeout", "2147483648"], failed("timeout", "argument must be between 0 and 2147483647 inclusive")),
    (["tcp-keepalive", "-1"], failed("tcp-keepalive", "argument must be between 0 and 2147483647 inclusive")),
    (["tcp-keepalive", "2147483648"], failed("tcp-keepalive", "argument must be between 0 and 2147483647 inclusive")),
    *[
        (["timeout", text], failed("timeout", NOT_AN_INTEGER))
        for text in ["", "abc", "5x", " 5", "5 ", "+5", "05", "-0", "0x10", "1.0", "1_0", str(2**63), "9" * 30]
    ],
    *[
        (["proto-max-bulk-len", text], failed("proto-max-bulk-len", "argument must be a memory value"))
        for text in ["1xb", "-1", "1.5mb", " 5MB", "5 mb", "mbmb", "1tb"]
    ],
    *[
        (
            ["proto-max-bulk-len", text],
            failed("proto-max-bulk-len", "argument must be between 1048576 and 9223372036854775807 inclusive"),
        )
        for text in ["1", "1023kb", "9223372036854775808", "99999999999gb"]
    ],
    (
        ["client-query-buffer-limit", "1"],
        failed("client-query-buffer-limit", "argument must be between 1048576 and 9223372036854775807 inclusive"),
    ),
    (["protected-mode", "foo"], failed("protected-mode", "argument must be 'yes' or 'no'")),
    (["protected-mode", ""], failed("protected-mode", "argument must be 'yes' or 'no'")),
    (["aof-load-truncated", "1"], failed("aof-load-truncated", "argument must be 'yes' or 'no'")),
    *[
        (
            ["appendfsync", text],
            failed("appendfsync", "argument(s) must be one of the following: everysec, always, no"),
        )
        for text in ["foo", "", "always no"]
    ],
    (
        ["loglevel", "nothing"],
        failed("loglevel", "argument(s) must be one of the following: debug, verbose, notice, warning"),
    ),
    *[
        (["client-output-buffer-limit", text], failed("client-output-buffer-limit", reason))
        for text, reason in [
            ("normal 0 0", "Wrong number of arguments in buffer limit configuration."),
            ("foo 0 0 0", "Invalid client class specified in buffer limit configuration."),
            ("master 1mb 1 1", "Invalid client class specified in buffer limit configuration."),
            ("normal 1mb xx 5", BAD_LIMIT),
            ("normal 1mb 1 x", BAD_LIMIT),
            ("normal 1mb 1 -1", BAD_LIMIT),
            ("normal -1 1 5", BAD_LIMIT),
        ]
    ],
]

#: Option, text and reason for options that Redis can change while it runs; here they are fixed, so the reason is one
#: for not starting.
START_ERRORS_OF_REDIS: list[tuple[str, str, str]] = [
    *[("port", text, "argument must be between 0 and 65535 inclusive") for text in ["65536", "-1"]],
    *[("port", text, NOT_AN_INTEGER) for text in ["", "abc", "+5", "05", str(2**63)]],
    *[("appendonly", text, "argument must be 'yes' or 'no'") for text in ["foo", "", "1"]],
    ("bind", " ".join(["1.1.1.1"] * 17), "Too many bind addresses specified."),
]

#: Where Redis has another value to offer, or does something that recalld cannot want.
START_ERRORS_OF_OUR_OWN: list[tuple[str, str, str]] = [
    *[("bind", text, BAD_BIND) for text in ["", " ", "127.0.0.1 -"]],
    *[("save", text, 'argument(s) must be one of the following: ""') for text in ["900 1", " ", '""']],
]

#: Options that Redis lacks, or where it does something that recalld cannot want.
SET_ERRORS_OF_OUR_OWN: list[tuple[list[str], str]] = [
    (["dir", "/tmp"], failed("dir", "can't set immutable config")),
    (["bind", "127.0.0.1"], failed("bind", "can't set immutable config")),
    (["Port", "70000"], failed("Port", "can't set immutable config")),
    (["timeout", "5", "appendonly", "no"], failed("appendonly", "can't set immutable config")),
    (["timeout", "abc", "port", "1"], failed("port", "can't set immutable config")),
    (["save", "900 1"], failed("save", "can't set immutable config")),
    (["mem-threads", "2"], failed("mem-threads", "can't set immutable config")),
    (["proto-max-bulk-len", ""], failed("proto-max-bulk-len", "argument must be a memory value")),
    (["proto-max-bulk-len", "mb"], failed("proto-max-bulk-len", "argument must be a memory value")),
    (["mem-max-topk", "0"], failed("mem-max-topk", "argument must be between 1 and 2147483647 inclusive")),
    (["mem-max-dim", "65537"], failed("mem-max-dim", "argument must be between 1 and 65536 inclusive")),
    (["mem-max-records", "-1"], failed("mem-max-records", "argument must be between 0 and 2147483647 inclusive")),
    (
        ["mem-recency-halflife", "0"],
        failed("mem-recency-halflife", "argument must be between 1 and 9223372036854775807 inclusive"),
    ),
    (["mem-anchor-min", "1.1"], failed("mem-anchor-min", "argument must be between -1 and 1 inclusive")),
    (["mem-recall-minconf", "nan"], failed("mem-recall-minconf", "argument must be between 0 and 1 inclusive")),
    (["mem-hit-format", "list"], failed("mem-hit-format", "argument(s) must be one of the following: array, map")),
    *[
        (["mem-default-weights", text], failed("mem-default-weights", BAD_WEIGHTS))
        for text in ["", "1 1 1", "1 1 1 1 1", "1 1 1 -1", "1 1 1 nan", "1 1 1 1e999", "1 1 1 1_0", "1 x 1 1 1"]
    ],
]


def in_pairs(words: list[str]) -> list[tuple[str, str]]:
    return list(zip(words[::2], words[1::2], strict=True))


@pytest.mark.parametrize(("words", "message"), SET_ERRORS_OF_REDIS + SET_ERRORS_OF_OUR_OWN)
def test_config_set_errors(words: list[str], message: str) -> None:
    """The error's exact text, and nothing changed, not even by the good pairs."""
    config = Config.defaults()
    with pytest.raises(ConfigError) as caught:
        config.set(in_pairs(words))
    assert caught.value.message == message
    assert caught.value.wire == f"ERR {message}"
    assert config.get([b"*"]) == Config.defaults().get([b"*"])


@pytest.mark.parametrize(("name", "text", "reason"), START_ERRORS_OF_REDIS + START_ERRORS_OF_OUR_OWN)
def test_errors_at_start(name: str, text: str, reason: str) -> None:
    """What CONFIG SET refuses whatever the value, the command line refuses for the value's sake."""
    assert not OPTIONS[name].mutable
    with pytest.raises(ConfigError) as caught:
        Config.load(None, [(name, [text])])
    assert caught.value.message == (
        f"\n*** FATAL CONFIG FILE ERROR ***\nReading the command line\n>>> '--{name} {text}'\n{reason}"
    )


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        (FileName("x", "name"), "", "x can't be empty"),
        *[
            (FileName("x", "name"), text, "x can't be a path, just a name")
            for text in ("a/b", "a\\b", "/", "a/", ".", "..")
        ],
        *[
            (FileName("x", "name"), text, "x can't hold a line end or a NUL byte")
            for text in ("a\nb", "a\n", "\0")
        ],
        (Enum("", "a"), "b", 'argument(s) must be one of the following: "", a'),
    ],
)
def test_errors_that_config_set_does_not_reach(kind: Type, text: str, message: str) -> None:
    """Types without an option, or whose only option is fixed."""
    with pytest.raises(ConfigError) as caught:
        kind.parse(text)
    assert caught.value.message == message


def test_set_takes_a_dict_too() -> None:
    config = Config.defaults()
    config.set({"Timeout": "5", "maxclients": "20"})
    assert (config["timeout"], config["maxclients"]) == (5, 20)


def test_listeners_hear_of_changes_after_all_are_in_place() -> None:
    """In the order of the command, with the typed value, and not where the value stays."""
    config = Config.defaults()
    heard: list[tuple[str, Any, int]] = []
    config.on_change("timeout", lambda value: heard.append(("timeout", value, config["maxclients"])))
    config.on_change("maxclients", lambda value: heard.append(("maxclients", value, config["maxclients"])))
    config.on_change("tcp-keepalive", lambda value: heard.append(("tcp-keepalive", value, 0)))
    config.set([("timeout", "5"), ("maxclients", "20"), ("tcp-keepalive", "300")])
    assert heard == [("timeout", 5, 20), ("maxclients", 20, 20)]
    with pytest.raises(KeyError):
        config.on_change("time", print)


def test_a_listener_that_refuses_takes_all_back() -> None:
    """Whoever had followed the change follows it back, latest first; the rest never hears of it."""
    config = Config.defaults()
    heard: list[tuple[str, Any]] = []

    def listen(name: str) -> Callable[[Any], None]:
        return lambda value: heard.append((name, value))

    def refuse(value: Any) -> None:
        assert (config["loglevel"], config["mem-default-weights"]) == ("debug", (1.0, 1.0, 0.0, 0.0))
        raise ConfigError("Not with these weights.")

    config.on_change("timeout", listen("timeout"))
    config.on_change("loglevel", listen("loglevel"))
    config.on_change("mem-default-weights", refuse)
    config.on_change("maxclients", listen("maxclients"))
    with pytest.raises(ConfigError) as caught:
        config.set({"timeout": "5", "loglevel": "debug", "mem-default-weights": "1 1 0 0", "maxclients": "20"})
    assert caught.value.message == failed("mem-default-weights", "Not with these weights.")
    assert heard == [("timeout", 5), ("loglevel", "debug"), ("loglevel", "notice"), ("timeout", 0)]
    assert config.get([b"*"]) == Config.defaults().get([b"*"])


def test_a_listener_that_fails_takes_all_back(caplog: pytest.LogCaptureFixture) -> None:
    """A bug in a listener is no reason to keep half a change, nor is another one on the way back."""
    config = Config.defaults()

    def once(value: int) -> None:
        if value == 0:
            raise RuntimeError("stuck")

    def fail(value: int) -> None:
        raise ZeroDivisionError

    config.on_change("timeout", once)
    config.on_change("maxclients", fail)
    with pytest.raises(ZeroDivisionError):
        config.set({"timeout": "5", "maxclients": "20"})
    assert (config["timeout"], config["maxclients"]) == (0, 10000)
    assert "Failed restoring the previous timeout setting" in caplog.text


# CONFIG GET


@pytest.mark.parametrize(
    ("patterns", "expected"),
    [
        ([b"timeout"], {"timeout": "0"}),
        ([b"TimeOut", b"timeout"], {"TimeOut": "0"}),
        ([b"t?meout", b"TIME*", b"x"], {"timeout": "0"}),
        ([b"APPEND*NAME"], {"appendfilename": "appendonly.aof", "appenddirname": "appendonlydir"}),
        ([b"[m-m]axclients", b"port"], {"maxclients": "10000", "port": "7171"}),
        ([b"save", b"appendonly"], {"save": "", "appendonly": "yes"}),
        ([b"\xff", b"time", b""], {}),
        ([], {}),
    ],
)
def test_config_get(patterns: list[bytes], expected: dict[str, str]) -> None:
    """A name is shown as it was asked for, what a pattern finds by its own name, each once."""
    assert Config.defaults().get(patterns) == expected


@pytest.mark.parametrize(
    ("patterns", "error"),
    [
        ([b"port"] * 200, ""),
        ([b"port"] * 201, "more than 200 names or patterns; ask for fewer at a time"),
        ([b"*?*%d" % n for n in range(201)], "more than 200 names or patterns; ask for fewer at a time"),
        ([b"[a-z]" * 200] * 4 + [b"?" * 96, b"port", b"x" * 100_000], ""),
        ([b"[a-z]" * 200] * 4 + [b"?" * 97], "patterns of more than 4096 bytes together; ask for fewer at a time"),
        ([b"*" + b"x" * 4096], "patterns of more than 4096 bytes together; ask for fewer at a time"),
    ],
)
def test_config_get_compiles_little_and_each_pattern_once(
    monkeypatch: pytest.MonkeyPatch, patterns: list[bytes], error: str
) -> None:
    """What is refused is refused before anything is compiled."""
    compiled: list[bytes] = []
    monkeypatch.setattr(
        config_module, "compile_glob", lambda pattern, nocase: compiled.append(pattern) or compile_glob(pattern, nocase)
    )
    if error:
        with pytest.raises(CommandError) as raised:
            Config.defaults().get(patterns)
        assert raised.value.message == error and not compiled
    else:
        assert Config.defaults().get(patterns) == {"port": "7171"}
        assert compiled == [pattern for pattern in patterns if b"?" in pattern or b"[" in pattern]


# Config files and the command line


def load_text(tmp_path: Path, text: str | bytes) -> Config:
    file = tmp_path / "x.conf"
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    return Config.load(str(file))


def test_file_format(tmp_path: Path) -> None:
    """Comments, blank lines, any case, quotes, CRLF, the last line of a name wins."""
    config = load_text(
        tmp_path,
        "# timeout 1\n\n   \t\r\n  TIMEOUT 5\r\ntimeout 6\n"
        'requirepass "a \\"b\\" # \\x41\\n"\n'
        "bind 10.0.0.1 '-::1'\nmem-default-weights \"1 1 1 1\"\n"
        "client-output-buffer-limit normal 1 2 3\nclient-output-buffer-limit replica 4 5 6 pubsub 7 8 9",
    )
    assert config["timeout"] == 6
    assert config["requirepass"] == 'a "b" # A\n'
    assert config["bind"] == ("10.0.0.1", "-::1")
    assert config["mem-default-weights"] == (1.0, 1.0, 1.0, 1.0)
    assert config.text("client-output-buffer-limit") == "normal 1 2 3 slave 4 5 6 pubsub 7 8 9"


@pytest.mark.parametrize("line", ['save ""', "SAVE ''"])
def test_an_empty_word_is_a_value(tmp_path: Path, line: str) -> None:
    """As redis.conf says it."""
    config = load_text(tmp_path, line)
    assert (config["save"], config.get([b"save"])) == ("", {"save": ""})


def test_bytes_that_are_not_utf8_survive(tmp_path: Path) -> None:
    """A password of any bytes, written as they are or escaped."""
    for line in (b"requirepass \xff\xfe\n", rb'requirepass "\xff\xFE"'):
        password: str = load_text(tmp_path, line)["requirepass"]
        assert password.encode("utf-8", "surrogateescape") == b"\xff\xfe"


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("foo 1", "Bad directive or wrong number of arguments"),
        ('"" 1', "Bad directive or wrong number of arguments"),
        ("TIMEOUT abc", NOT_AN_INTEGER),
        ("timeout 1 2", "wrong number of arguments"),
        ("timeout 5 # comment", "wrong number of arguments"),
        ("timeout", "wrong number of arguments"),
        ("appendfsync foo bar", "wrong number of arguments"),
        ('timeout "1', "Unbalanced quotes in configuration line"),
        ("timeout '1", "Unbalanced quotes in configuration line"),
        ('timeout "1"x', "Unbalanced quotes in configuration line"),
        ("port 70000", "argument must be between 0 and 65535 inclusive"),
        ("client-output-buffer-limit normal 1 1", "Wrong number of arguments in buffer limit configuration."),
        ("bind", BAD_BIND),
        ("appendonly always", "argument must be 'yes' or 'no'"),
        ("save", "wrong number of arguments"),
        ("save 900 1", "wrong number of arguments"),
        ('save "900 1"', 'argument(s) must be one of the following: ""'),
        ("appendfilename a/b", "appendfilename can't be a path, just a filename"),
        ('appendfilename ""', "appendfilename can't be empty"),
        ("appenddirname a/b", "appenddirname can't be a path, just a dirname"),
        ("appenddirname ..", "appenddirname can't be a path, just a dirname"),
        ('appenddirname ""', "appenddirname can't be empty"),
    ],
)
def test_a_bad_line_is_fatal(tmp_path: Path, line: str, reason: str) -> None:
    """The message names file, line and reason."""
    with pytest.raises(ConfigError) as caught:
        load_text(tmp_path, f"port 1\n\n  {line}  \nfoo\n")
    assert caught.value.message == (
        "\n*** FATAL CONFIG FILE ERROR ***\n"
        f"Reading the configuration file, at line 3 of {tmp_path / 'x.conf'}\n"
        f">>> '{line}'\n"
        f"{reason}"
    )


def test_a_file_that_cannot_be_read_is_fatal(tmp_path: Path) -> None:
    missing = str(tmp_path / "missing.conf")
    with pytest.raises(ConfigError) as caught:
        Config.load(missing)
    assert caught.value.message == f"Fatal error, can't open config file '{missing}': No such file or directory"
    with pytest.raises(ConfigError, match="Is a directory"):
        Config.load(str(tmp_path))
    with pytest.raises(ConfigError, match="null byte"):
        Config.load("a\0b")


def test_overrides(tmp_path: Path) -> None:
    """They beat the file, in any case, the last one wins; fixed options can be given too."""
    file = tmp_path / "x.conf"
    file.write_text("timeout 1\nport 5\n")
    config = Config.load(
        str(file),
        [
            ("TIMEOUT", ["2"]),
            ("timeout", ["3"]),
            ("bind", ["10.0.0.1", "-::1"]),
            ("client-output-buffer-limit", ["normal 1 1 1 pubsub 2 2 2"]),
            ("dir", ["/data"]),
            ("requirepass", [""]),
            ("save", [""]),
            ("appendonly", ["no"]),
        ],
    )
    assert (config["timeout"], config["port"], config["dir"]) == (3, 5, "/data")
    assert (config["save"], config["appendonly"]) == ("", False)
    assert config["bind"] == ("10.0.0.1", "-::1")
    assert config.text("client-output-buffer-limit") == "normal 1 1 1 pubsub 2 2 2"


@pytest.mark.parametrize(
    ("words", "shown", "reason"),
    [
        (["--foo", "1"], "--foo 1", "Bad directive or wrong number of arguments"),
        (["--"], "--", "Bad directive or wrong number of arguments"),
        (["--port=1"], "--port=1", "Bad directive or wrong number of arguments"),
        (["--timeout"], "--timeout", "wrong number of arguments"),
        (["--port", "0", "--timeout", "1", "2"], "--timeout 1 2", "wrong number of arguments"),
        (["--Timeout", "-5"], "--Timeout -5", "argument must be between 0 and 2147483647 inclusive"),
    ],
)
def test_a_bad_override_is_fatal(words: list[str], shown: str, reason: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On stderr, and the exit code is 1."""
    assert cli.main(words) == 1
    printed = capsys.readouterr()
    assert printed.err == f"\n*** FATAL CONFIG FILE ERROR ***\nReading the command line\n>>> '{shown}'\n{reason}\n"
    assert printed.out == ""


QUOTED = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\r": "\\r", "\t": "\\t", "\a": "\\a", "\b": "\\b"}


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]))), st.sampled_from([" ", "\t", "   "]))
def test_quoted_words_round_trip(words: list[str], space: str) -> None:
    line = space.join('"' + "".join(QUOTED.get(c, c) for c in word) + '"' for word in words)
    assert split_words(line.encode()) == words


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"", []),
        (b"  a\tb  ", ["a", "b"]),
        (b'a"b c"', ["ab c"]),
        (b"a'b c' d", ["ab c", "d"]),
        (b"'' \"\"", ["", ""]),
        (rb"'a\'b\n\\c'", [r"a'b\n\\c"]),
        (rb'"\x41\xzz\q\\"', ["Axzzq\\"]),
        (b"caf\xc3\xa9", ["café"]),
        (rb"a\"b", None),
        (rb"'a\'", None),
        (rb"'a\\'", None),
        (rb'"a\"', None),
        (b"''b", None),
    ],
)
def test_words_of_a_line(line: bytes, words: list[str] | None) -> None:
    """As Redis's sdssplitargs; None: unbalanced quotes."""
    if words is None:
        with pytest.raises(ConfigError, match="Unbalanced quotes"):
            split_words(line)
    else:
        assert split_words(line) == words


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], (None, [])),
        (["x.conf"], ("x.conf", [])),
        (["x.conf", "--port", "1"], ("x.conf", [("port", ["1"])])),
        (["--bind", "a", "-b", "--port", "1"], (None, [("bind", ["a", "-b"]), ("port", ["1"])])),
        (["--port", "--timeout", "-1", ""], (None, [("port", []), ("timeout", ["-1", ""])])),
    ],
)
def test_command_line(words: list[str], expected: tuple[str | None, list[tuple[str, list[str]]]]) -> None:
    assert cli.parse(words) == expected


@pytest.mark.parametrize("words", [["x.conf", "y"], ["-p", "1"]])
def test_a_stray_word_is_fatal(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(words) == 1
    stray = "y" if "y" in words else "-p"
    assert capsys.readouterr().err.startswith(f"unexpected word '{stray}': settings are written --name value")


@pytest.mark.parametrize("word", ["-v", "--version"])
def test_version(word: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """From the installed package; a bare source tree says what pyproject.toml says."""
    assert cli.main([word]) == 0
    assert capsys.readouterr().out == f"recalld {metadata.version('recalld')}\n"

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    project = tomllib.loads((Path(__file__).parent.parent / "pyproject.toml").read_text())["project"]
    assert cli.version() == project["version"]


@pytest.mark.parametrize("word", ["-h", "--help"])
def test_help(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Names the file in which the settings are explained; every option that it mentions exists.

    On the lines that show a command, that is an option of the command.
    """
    assert cli.main([word]) == 0
    printed = capsys.readouterr().out
    assert str(conf.PATH) in printed
    known: dict[str | None, set[str]] = {None: {*OPTIONS, "version", "help", "name", "check-config"}}
    for command in ("export", "import", "mcp", "ping"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        known[command] = set(re.findall(r"--([a-z-]+)", capsys.readouterr().out))
    with pytest.raises(SystemExit):
        cli.main(["export", "--car", "x", "--help"])
    known["export"] |= set(re.findall(r"--([a-z-]+)", capsys.readouterr().out))
    assert cli.main(["check-aof", "--help"]) == 0
    known["check-aof"] = set(re.findall(r"--([a-z-]+)", capsys.readouterr().out))
    for line in printed.splitlines():
        shown = re.match(r" +recalld (export|import|check-aof|mcp|ping) ", line)
        assert set(re.findall(r"--([a-z-]+)", line)) <= known[shown[1] if shown else None], line


def test_python_m() -> None:
    """`python -m recalld.server` is `recalld`."""
    done = subprocess.run([sys.executable, "-m", "recalld.server", "-v"], capture_output=True, text=True, check=True)
    assert done.stdout == f"recalld {metadata.version('recalld')}\n"


# The log


@pytest.fixture
def restore_loggers() -> Iterator[None]:
    """cli.main takes over the process's loggers; give them back."""
    loggers = [logging.getLogger(name) for name in ("recalld", "asyncio")]
    before = [(logger.handlers[:], logger.level, logger.propagate) for logger in loggers]
    yield
    for logger, (handlers, level, propagate) in zip(loggers, before, strict=True):
        for handler in logger.handlers:
            handler.close()
        logger.handlers[:], logger.level, logger.propagate = handlers, level, propagate


LOG_LINE = re.compile(r"\d+:M \d\d [A-Z][a-z]{2} \d{4} \d\d:\d\d:\d\d\.\d{3} [.*#-] (.*)")


def serve_with(monkeypatch: pytest.MonkeyPatch, run: Callable[[Config], int]) -> None:
    """Put `run` in the place of the server's own."""
    module = ModuleType("recalld.server.server")
    module.run = run  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "recalld.server.server", module)


@pytest.mark.usefixtures("restore_loggers")
def test_main_logs_and_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The config reaches the server, the server's exit code is main's, loglevel can be changed meanwhile."""

    def run(config: Config) -> int:
        logger = logging.getLogger("recalld")
        logger.log(log.VERBOSE, "unsaid")
        config.set({"loglevel": "verbose"})
        logger.log(log.VERBOSE, "said")
        return int(config["timeout"])

    serve_with(monkeypatch, run)
    assert cli.main([str(conf.PATH), "--timeout", "7"]) == 7
    lines = capsys.readouterr().out.splitlines()
    messages = [match[1] for line in lines if (match := LOG_LINE.fullmatch(line))]
    assert len(messages) == len(lines) == 3
    assert messages[0].startswith(f"recalld version={metadata.version('recalld')}, pid=")
    assert messages[1:] == [f"Configuration loaded from {conf.PATH}", "said"]


@pytest.mark.usefixtures("restore_loggers")
def test_logfile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Appended to, and started anew where it was renamed meanwhile."""
    file, old = tmp_path / "log", tmp_path / "log.1"

    def run(config: Config) -> int:
        file.rename(old)
        logging.getLogger("asyncio").error("second")
        return 0

    serve_with(monkeypatch, run)
    file.write_text("first\n")
    assert cli.main(["--logfile", str(file)]) == 0
    assert old.read_text().startswith("first\n")
    assert file.read_text().endswith(" # second\n")


def test_a_logfile_that_cannot_be_opened_is_fatal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "missing" / "log")
    assert cli.main(["--logfile", file]) == 1
    assert capsys.readouterr().err == f"Can't open the log file '{file}': No such file or directory\n"


@pytest.mark.parametrize(
    ("level", "mark"),
    [
        (logging.DEBUG, "."),
        (log.VERBOSE, "-"),
        (logging.INFO, "*"),
        (logging.WARNING, "#"),
        (logging.ERROR, "#"),
    ],
)
def test_log_line(level: int, mark: str) -> None:
    """Redis's line: pid, role, local time to the millisecond (cut, not rounded), mark, message."""
    record = logging.LogRecord("recalld", level, __file__, 1, "%d keys", (3,), None)
    record.process = 12345
    record.created = time.mktime((2026, 11, 30, 1, 30, 0, 0, 0, -1))
    record.msecs = 123.9
    assert log.RedisFormatter().format(record) == f"12345:M 30 Nov 2026 01:30:00.123 {mark} 3 keys"


def test_traceback_follows_the_line() -> None:
    try:
        raise RuntimeError("x")
    except RuntimeError:
        record = logging.LogRecord("recalld", logging.ERROR, __file__, 1, "failed", (), sys.exc_info())
    first, second, *_ = log.RedisFormatter().format(record).splitlines()
    assert first.endswith(" # failed")
    assert second == "Traceback (most recent call last):"


# Glob patterns


@pytest.mark.parametrize(
    ("pattern", "matching", "failing"),
    [
        (b"", [b""], [b"a"]),
        (b"abc", [b"abc"], [b"ab", b"abcd", b"ABC"]),
        (b"h?llo", [b"hello", b"h\nllo", b"h\xffllo"], [b"hllo", b"heello"]),
        (b"h*llo", [b"hllo", b"heeello", b"hllllo"], [b"hell", b"xhllo"]),
        (b"*", [b"", b"a", b"\n\xff"], []),
        (b"**", [b"", b"a"], []),
        (b"a**b*", [b"ab", b"axxb", b"abb\n"], [b"a", b"ba"]),
        (b"*a*ab", [b"aab", b"aabab"], [b"ab", b"aba"]),
        (b"h[ae]llo", [b"hello", b"hallo"], [b"hillo", b"h[ae]llo"]),
        (b"h[^e]llo", [b"hallo", b"h^llo"], [b"hello", b"hllo"]),
        (b"h[a-c]llo", [b"hallo", b"hcllo"], [b"hdllo", b"h-llo"]),
        (b"h[c-a]llo", [b"hbllo"], [b"hdllo"]),
        (b"[!a]", [b"!", b"a"], [b"b"]),
        (b"[a^]", [b"a", b"^"], [b"b"]),
        (b"[-a]", [b"-", b"a"], [b"b"]),
        (b"[]", [], [b"", b"]", b"[]"]),
        (b"[]a]", [], [b"]a]", b"]", b"a"]),
        (b"[^]", [b"]", b"x"], [b"", b"xx"]),
        (b"[^", [b"[", b"x"], [b""]),
        (b"[", [], [b"", b"["]),
        (b"[ab", [b"a", b"b"], [b"[ab"]),
        (b"[a-", [b"a", b"-"], [b"b"]),
        (b"[a-]", [b"a", b"^", b"]"], [b"-", b"b"]),
        (b"[\\]]", [b"]"], [b"\\"]),
        (b"[\\", [b"\\"], [b"["]),
        (b"[a-\\]]", [b"^]", b"a]"], [b"]", b"b]"]),
        (b"[\\a-c]", [b"a", b"-", b"c"], [b"b"]),
        (b"[\x80-\xff]", [b"\xc3"], [b"a"]),
        (b"\\*", [b"*"], [b"a", b"\\*"]),
        (b"\\a", [b"a"], [b"\\a"]),
        (b"\\", [b"\\"], [b""]),
        (b"*\\", [b"x\\"], [b"x"]),
        (b"a.b+(c|d)$", [b"a.b+(c|d)$"], [b"axb+(c|d)$"]),
    ],
)
def test_glob(pattern: bytes, matching: list[bytes], failing: list[bytes]) -> None:
    """Redis's answers."""
    assert [value for value in matching + failing if glob_match(pattern, value)] == matching


@pytest.mark.parametrize(
    ("pattern", "matching", "failing"),
    [
        (b"aB*", [b"ab", b"AB", b"aBc"], [b"b"]),
        (b"[a-c]X", [b"Bx", b"cX"], [b"Dx"]),
        (b"[^A]", [b"b", b"B"], [b"a", b"A"]),
        (b"\\a", [b"A", b"a"], []),
        (b"[\\a]", [b"a"], [b"A"]),
        (b"[Z-a]", [], [b"z", b"a", b"^"]),
        (b"\xc3\x84", [b"\xc3\x84"], [b"\xc3\xa4"]),
    ],
)
def test_glob_nocase(pattern: bytes, matching: list[bytes], failing: list[bytes]) -> None:
    """ASCII letters fold, but not behind a backslash in a class, and the ends of a range after being put in order."""
    assert [value for value in matching + failing if glob_match(pattern, value, nocase=True)] == matching


def oracle(pattern: bytes, value: bytes) -> bool:
    """The plain recursive definition."""
    if not pattern:
        return not value
    first, rest = pattern[:1], pattern[1:]
    if first == b"*":
        return oracle(rest, value) or (value != b"" and oracle(pattern, value[1:]))
    if not value:
        return False
    if first == b"[":
        hit, rest = oracle_class(rest, value[0])
    elif first == b"\\" and rest:
        hit, rest = rest[0] == value[0], rest[1:]
    else:
        hit = first in (b"?", value[:1])
    return hit and oracle(rest, value[1:])


def oracle_class(pattern: bytes, byte: int) -> tuple[bool, bytes]:
    if pattern.startswith(b"^"):
        hit, rest = oracle_class_body(pattern[1:], byte)
        return not hit, rest
    return oracle_class_body(pattern, byte)


def oracle_class_body(pattern: bytes, byte: int) -> tuple[bool, bytes]:
    hit = False
    while pattern:
        if pattern.startswith(b"\\") and len(pattern) > 1:
            hit, pattern = hit or pattern[1] == byte, pattern[2:]
        elif pattern.startswith(b"]"):
            return hit, pattern[1:]
        elif len(pattern) > 2 and pattern[1:2] == b"-":
            ends = pattern[0], pattern[2]
            hit, pattern = hit or min(ends) <= byte <= max(ends), pattern[3:]
        else:
            hit, pattern = hit or pattern[0] == byte, pattern[1:]
    return hit, b""


def some_bytes(alphabet: bytes, longest: int) -> st.SearchStrategy[bytes]:
    return st.lists(st.sampled_from(list(alphabet)), max_size=longest).map(bytes)


@given(some_bytes(b"aab***??[]^-\\c\xff\n", 12), some_bytes(b"aab]^-\\c\xff\n", 9))
def test_glob_against_the_oracle(pattern: bytes, value: bytes) -> None:
    assert glob_match(pattern, value) == oracle(pattern, value)


@given(some_bytes(b"aB*?z", 10), some_bytes(b"abABzZ", 8))
def test_glob_nocase_against_the_oracle(pattern: bytes, value: bytes) -> None:
    """Without classes, folding is lower case on both sides."""
    assert glob_match(pattern, value, nocase=True) == oracle(pattern.lower(), value.lower())


@pytest.mark.parametrize(
    "pattern", [b"a*" * 60 + b"b", b"*" * 3000 + b"b", b"*a" * 5000 + b"b", b"*[ab]?" * 150 + b"b"]
)
def test_glob_does_not_blow_up(pattern: bytes) -> None:
    """With backtracking at each star these take longer than the age of the universe."""
    assert not glob_match(pattern, b"a" * 4000)


def test_long_patterns() -> None:
    """Of bytes and stars, any length; with what needs a regular expression, 1024 bytes, and those are remembered."""
    assert compile_glob(b"?" * 1024) is compile_glob(b"?" * 1024)
    assert compile_glob(b"(" * 5000 + b"*").fullmatch(b"(" * 5001)
    with pytest.raises(CommandError, match="at most"):
        compile_glob(b"?" * 1025)


# Redis's own answers


@pytest.fixture(scope="module")
def real_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[redis.Redis]:
    program = shutil.which("redis-server")
    if program is None or " v=7." not in subprocess.run([program, "-v"], capture_output=True, text=True).stdout:
        pytest.skip("no redis-server 7")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = f"--port {port} --bind 127.0.0.1 --appendonly no --dir {tmp_path_factory.mktemp('redis')} --save".split()
    server = subprocess.Popen([program, *options, ""], stdout=subprocess.DEVNULL)
    client = redis.Redis(port=port)
    try:
        for _ in range(500):
            try:
                client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.01)
        yield client
    finally:
        client.close()
        server.terminate()
        server.wait()


def test_redis_gives_the_same_errors(real_redis: redis.Redis) -> None:
    answers = []
    for words, _ in SET_ERRORS_OF_REDIS:
        with pytest.raises(redis.ResponseError) as caught:
            real_redis.execute_command("CONFIG", "SET", *words)  # type: ignore[no-untyped-call]
        answers.append((words, str(caught.value)))
    assert answers == SET_ERRORS_OF_REDIS


def test_redis_gives_the_same_reasons_at_start(real_redis: redis.Redis) -> None:
    """Asked by CONFIG SET, which Redis allows for these options."""
    answers = []
    for name, text, _ in START_ERRORS_OF_REDIS:
        with pytest.raises(redis.ResponseError) as caught:
            real_redis.execute_command("CONFIG", "SET", name, text)  # type: ignore[no-untyped-call]
        answers.append((name, text, str(caught.value)))
    assert answers == [(name, text, failed(name, reason)) for name, text, reason in START_ERRORS_OF_REDIS]


def test_redis_refuses_the_same_names_of_files(real_redis: redis.Redis, tmp_path: Path) -> None:
    """Asked at start, since CONFIG SET refuses both names whatever they are; `.` and `..` are refused only here."""
    program = shutil.which("redis-server")
    assert program is not None
    for name in ("appendfilename", "appenddirname"):
        assert real_redis.config_get(name) == Config.defaults().get([name.encode()])
        for text in ("", "a/b", "a\\b"):
            line = f"{name} '{text}'"
            with pytest.raises(ConfigError) as caught:
                load_text(tmp_path, line)
            (tmp_path / "redis.conf").write_text(f"port 0\n{line}\n")
            ended = subprocess.run([program, tmp_path / "redis.conf"], capture_output=True, text=True, timeout=60)
            said = (ended.stdout + ended.stderr).splitlines()
            assert said[-1] == caught.value.message.splitlines()[-1], line


def test_redis_without_snapshots_shows_the_same(real_redis: redis.Redis) -> None:
    assert real_redis.config_get("save") == Config.defaults().get([b"save"]) == {"save": ""}


def test_redis_matches_the_same_keys(real_redis: redis.Redis) -> None:
    """2000 random patterns against 200 random keys, and in any case against the names of Redis's options."""
    dice = random.Random(7171)
    keys = sorted({bytes(dice.choices(b"aab]^-\\c*", k=dice.randint(1, 5))) for _ in range(200)})
    real_redis.mset(dict.fromkeys(keys, b""))
    names = sorted(str(name).encode() for name in real_redis.config_get("*"))
    pipe = real_redis.pipeline(transaction=False)
    patterns = [bytes(dice.choices(b"aab***??[]^-\\c", k=dice.randint(1, 9))) for _ in range(2000)]
    folded = [bytes(dice.choices(b"aEmOnX***??[[]^-\\", k=dice.randint(1, 9))) + b"*" for _ in range(2000)]
    for pattern in patterns:
        pipe.keys(pattern)
    for pattern in folded:
        # In one word, so that redis-py makes a dict of the reply whichever protocol it speaks.
        pipe.execute_command("CONFIG GET", pattern)  # type: ignore[no-untyped-call]
    answers = pipe.execute()
    for pattern, found in zip(patterns, answers[:2000], strict=True):
        assert [key for key in keys if glob_match(pattern, key)] == sorted(found), pattern
    for pattern, settings in zip(folded, answers[2000:], strict=True):
        found = sorted(name if isinstance(name, bytes) else name.encode() for name in settings)
        assert [name for name in names if glob_match(pattern, name, nocase=True)] == found, pattern
