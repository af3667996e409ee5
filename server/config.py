r"""The options: one table for recalld.conf, the command line, CONFIG GET and CONFIG SET.

Rules:

1. An option exists only as an entry of OPTIONS, with its default written as a config file would write it. Beside it
   stands a comment in conf/recalld.conf; tests/test_conf.py compares the two.
2. Text becomes a value in one place, `Type.parse`, whose errors are Redis 7's own where Redis has such an error.
   `parse(format(value)) == value`.
3. A change is whole or not at all: CONFIG SET checks every name and value before it changes one, and takes all back
   if a listener (`on_change`) refuses.
4. Text is str with bytes that are not UTF-8 kept as surrogates: decode and encode with ("utf-8", "surrogateescape").

The file format is redis.conf's: one `name value ...` per line, names in any case, the last line of a name wins, `#`
starts a comment line. Words may be quoted: in "..." stand \n \r \t \b \a \xHH and \ before any other byte, in '...'
only \'.
"""

from __future__ import annotations

import logging
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..index.settings import DIM_MAX
from .errors import CommandError
from .glob import compile_glob
from .shown_words import SECRET_SETTINGS

logger = logging.getLogger("recalld")

INT_MAX = 2**31 - 1
UINT_MAX = 2**32 - 1
LONG_MAX = 2**63 - 1
MIB = 1024 * 1024
# Of CONFIG GET, which compiles every pattern: 4 KB of classes take some 60 ms.
_MOST_WORDS = 200
_MOST_PATTERN_BYTES = 4096


class ConfigError(CommandError):
    """A setting that cannot be: from CONFIG SET one line for the client, from `Config.load` the lines to die with."""


# Which memories go where maxmemory is reached (eviction.py): any, or those with a deadline.
POLICIES = (
    "noeviction",
    *(f"{which}-{how}" for which in ("allkeys", "volatile") for how in ("lru", "lfu", "random")),
    "volatile-ttl",
)


# Types: how the text of an option becomes a value.


class Type:
    """`parse` raises ConfigError with the reason alone; who names the option or the line is the caller.

    `current` is the value so far, for the types whose text may change a part of it.
    """

    several_words = False
    """Whether a config file may write the value as several words; they are joined by a space."""

    def parse(self, text: str, current: Any = None) -> Any:
        raise NotImplementedError

    def format(self, value: Any) -> str:
        return str(value)


class Str(Type):
    """Any text, the empty one included."""

    def parse(self, text: str, current: Any = None) -> str:
        return text


@dataclass(frozen=True)
class FileName(Type):
    """The name, not the path, of a file or folder in one that another option chooses.

    Redis's errors name the option here, and what it names: `kind`.
    """

    option: str
    kind: str

    def parse(self, text: str, current: Any = None) -> str:
        if not text:
            raise ConfigError(f"{self.option} can't be empty")
        if "/" in text or "\\" in text or text in (".", ".."):
            raise ConfigError(f"{self.option} can't be a path, just a {self.kind}")
        # A manifest has one line per file and no way to write a line end in a name.
        if "\n" in text or "\0" in text:
            raise ConfigError(f"{self.option} can't hold a line end or a NUL byte")
        return text


class Bool(Type):
    """yes or no."""

    def parse(self, text: str, current: Any = None) -> bool:
        if text.lower() not in ("yes", "no"):
            raise ConfigError("argument must be 'yes' or 'no'")
        return text.lower() == "yes"

    def format(self, value: Any) -> str:
        return "yes" if value else "no"


class Enum(Type):
    """One of a few words, in any case; the empty word is written `""`."""

    def __init__(self, *words: str) -> None:
        self.words = words

    def parse(self, text: str, current: Any = None) -> str:
        if text.lower() not in self.words:
            words = ", ".join(word or '""' for word in self.words)
            raise ConfigError(f"argument(s) must be one of the following: {words}")
        return text.lower()


@dataclass(frozen=True)
class Int(Type):
    """A decimal integer within bounds; as in Redis without plus sign, leading zeros or spaces."""

    min: int
    max: int

    def parse(self, text: str, current: Any = None) -> int:
        # 19 digits: the length of the longest 64-bit integer.
        if not re.fullmatch(r"0|-?[1-9][0-9]{0,18}", text) or not -LONG_MAX - 1 <= int(text) <= LONG_MAX:
            raise ConfigError("argument couldn't be parsed into an integer")
        return _within(int(text), self.min, self.max)


@dataclass(frozen=True)
class Real(Type):
    """A decimal within bounds."""

    min: float
    max: float

    def parse(self, text: str, current: Any = None) -> float:
        value = _float(text)
        if value is None or not self.min <= value <= self.max:
            least, most = _format_float(self.min), _format_float(self.max)
            raise ConfigError(f"argument must be between {least} and {most} inclusive")
        return value

    def format(self, value: Any) -> str:
        return _format_float(value)


@dataclass(frozen=True)
class Memory(Type):
    """A number of bytes, as `512mb`: k, m, g are powers of 1000, kb, mb, gb of 1024. Shown as plain bytes."""

    min: int
    max: int

    def parse(self, text: str, current: Any = None) -> int:
        return _within(_memory(text), self.min, self.max)


class Percentiles(Type):
    """Percentages, separated by spaces; perhaps none. The value is a tuple."""

    several_words = True

    def parse(self, text: str, current: Any = None) -> tuple[float, ...]:
        values = [_float(word) for word in text.split()]
        if not all(value is not None and 0 <= value <= 100 for value in values):
            raise ConfigError("latency-tracking-info-percentiles parameters should sit between [0.0,100.0]")
        return tuple(value for value in values if value is not None)

    def format(self, value: Any) -> str:
        return " ".join(_format_float(each) for each in value)


class EventClasses(Type):
    """Letters that choose keyspace notifications; A stands for all classes but m and n, and is shown for them."""

    _ALL = "g$lshzxetd"
    _OTHERS = "KEmn"

    def parse(self, text: str, current: Any = None) -> str:
        if not set(text) <= set("A" + self._ALL + self._OTHERS):
            raise ConfigError("Invalid event class character. Use 'Ag$lshzxeKEtmdn'.")
        chosen = text.replace("A", self._ALL)
        return "".join(letter for letter in self._ALL + self._OTHERS if letter in chosen)

    def format(self, value: Any) -> str:
        return str(value).replace(self._ALL, "A")


class Weights(Type):
    """The weights of the four signals; the value is a tuple in the order keyword, vector, recency, importance."""

    several_words = True

    def parse(self, text: str, current: Any = None) -> tuple[float, ...]:
        weights = tuple(weight for word in text.split() if (weight := _float(word)) is not None and weight >= 0)
        if len(weights) != 4 or len(text.split()) != 4:
            raise ConfigError(
                "argument must be four finite and non-negative numbers: keyword, vector, recency and importance"
            )
        return weights

    def format(self, value: Any) -> str:
        return " ".join(_format_float(weight) for weight in value)


class BindList(Type):
    """Addresses to listen on, a tuple of words; a leading `-` marks one that may be missing on this machine."""

    several_words = True

    def parse(self, text: str, current: Any = None) -> tuple[str, ...]:
        addresses = tuple(text.split())
        # Redis takes an empty list for "do not listen", which here would leave no way to talk to the server at all.
        # A lone `-` would name the empty host, and that means every interface.
        if not addresses or "-" in addresses:
            raise ConfigError("argument must be one or more addresses")
        if len(addresses) > 16:  # Redis: CONFIG_BINDADDR_MAX
            raise ConfigError("Too many bind addresses specified.")
        return addresses

    def format(self, value: Any) -> str:
        return " ".join(value)


def host_of(word: str) -> str:
    """What a word of a BindList is to a socket: `*` is all of IPv4, `::*` all of IPv6."""
    host = word.removeprefix("-")
    return {"*": "0.0.0.0", "::*": "::"}.get(host, host)


class OutputLimit(NamedTuple):
    """When a client that does not read is cut off: at `hard_bytes`, or `soft_seconds` above `soft_bytes`; 0: never."""

    hard_bytes: int
    soft_bytes: int
    soft_seconds: int


class OutputLimits(Type):
    """Limits per class of client: `class hard soft seconds` repeated. The value maps the class to an OutputLimit.

    Classes that the text does not name keep what they have. `replica` is shown as `slave`, as Redis does.
    """

    several_words = True

    def parse(self, text: str, current: Any = None) -> dict[str, OutputLimit]:
        words = text.split()
        if len(words) % 4:
            raise ConfigError("Wrong number of arguments in buffer limit configuration.")
        limits: dict[str, OutputLimit] = dict(current or {})
        for at in range(0, len(words), 4):
            name, hard, soft, seconds = words[at : at + 4]
            name = "replica" if name.lower() == "slave" else name.lower()
            if name not in ("normal", "replica", "pubsub"):
                raise ConfigError("Invalid client class specified in buffer limit configuration.")
            try:
                limits[name] = OutputLimit(_memory(hard), _memory(soft), Int(0, INT_MAX).parse(seconds))
            except ConfigError:
                raise ConfigError(
                    "Error in hard, soft or soft_seconds setting in buffer limit configuration."
                ) from None
        return limits

    def format(self, value: Any) -> str:
        shown = {"normal": "normal", "replica": "slave", "pubsub": "pubsub"}
        return " ".join(f"{shown[name]} {' '.join(map(str, value[name]))}" for name in shown if name in value)


def _within(value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise ConfigError(f"argument must be between {least} and {most} inclusive")
    return value


_UNITS = {"": 1, "b": 1, "k": 10**3, "kb": 2**10, "m": 10**6, "mb": 2**20, "g": 10**9, "gb": 2**30}


def _memory(text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,30})([a-z]{0,2})", text.lower())
    if not match or match[2] not in _UNITS:
        raise ConfigError("argument must be a memory value")
    return int(match[1]) * _UNITS[match[2]]


def _float(text: str) -> float | None:
    # Python's float() also reads `1_000`, `nan`, spaces and the digits of every script.
    if not re.fullmatch(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?", text):
        return None
    value = float(text)
    return value if math.isfinite(value) else None


def _format_float(value: float) -> str:
    return repr(float(value)).removesuffix(".0")


# The table.


@dataclass(frozen=True)
class Option:
    """`default` is text as in a config file. An option that is not `mutable` is fixed once the server runs.

    CONFIG SET of a `volatile` one is a change although the value is the same: it names a file, which may be another.
    """

    name: str
    type: Type
    default: str
    mutable: bool = True
    volatile: bool = False


OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        # network
        Option("bind", BindList(), "127.0.0.1 ::1", mutable=False),
        Option("port", Int(0, 65535), "7171", mutable=False),
        Option("protected-mode", Bool(), "yes"),
        Option("tcp-backlog", Int(0, INT_MAX), "511", mutable=False),
        Option("timeout", Int(0, INT_MAX), "0"),
        Option("tcp-keepalive", Int(0, INT_MAX), "300"),
        # tls; who may send CONFIG SET can thereby have files read, not shown
        Option("tls-port", Int(0, 65535), "0", mutable=False),
        Option("tls-cert-file", Str(), "", volatile=True),
        Option("tls-key-file", Str(), "", volatile=True),
        Option("tls-key-file-pass", Str(), "", volatile=True),
        Option("tls-ca-cert-file", Str(), "", volatile=True),
        Option("tls-ca-cert-dir", Str(), "", volatile=True),
        Option("tls-auth-clients", Enum("no", "yes", "optional"), "yes"),
        Option("tls-protocols", Str(), ""),
        Option("tls-ciphers", Str(), ""),
        Option("tls-ciphersuites", Str(), ""),
        Option("tls-prefer-server-ciphers", Bool(), "no"),
        # security
        Option("requirepass", Str(), ""),
        # Fixed, as logfile is.
        Option("aclfile", Str(), "", mutable=False),
        Option("acl-pubsub-default", Enum("allchannels", "resetchannels"), "resetchannels"),
        Option("acllog-max-len", Int(0, 1_000_000), "128"),
        # clients
        Option("databases", Int(1, 1), "1", mutable=False),
        Option("maxclients", Int(1, UINT_MAX), "10000"),
        Option("proto-max-bulk-len", Memory(MIB, LONG_MAX), "512mb"),
        Option("client-query-buffer-limit", Memory(MIB, LONG_MAX), "1gb"),
        Option("max-command-words", Int(1024, INT_MAX), "32768"),
        Option("max-client-names", Int(1, INT_MAX), "65536"),
        Option("client-output-buffer-limit", OutputLimits(), "normal 32mb 0 0 pubsub 32mb 8mb 60"),
        # memory
        Option("maxmemory", Memory(0, LONG_MAX), "0"),
        Option("maxmemory-policy", Enum(*POLICIES), "noeviction"),
        Option("maxmemory-samples", Int(1, 64), "10"),
        # general
        Option("notify-keyspace-events", EventClasses(), ""),
        Option("shutdown-timeout", Int(0, INT_MAX), "10"),
        Option("loglevel", Enum("debug", "verbose", "notice", "warning"), "notice"),
        Option("log-format", Enum("text", "json"), "text"),
        # Fixed, as in Redis: who may send CONFIG SET must not thereby write to any file of the machine.
        Option("logfile", Str(), "", mutable=False),
        # insight
        Option("slowlog-log-slower-than", Int(-1, LONG_MAX), "10000"),
        Option("slowlog-max-len", Int(0, 1_000_000), "128"),
        Option("latency-monitor-threshold", Int(0, LONG_MAX), "0"),
        Option("latency-tracking", Bool(), "yes"),
        Option("latency-tracking-info-percentiles", Percentiles(), "50 99 99.9"),
        Option("metrics-port", Int(0, 65535), "0", mutable=False),
        Option("metrics-bind", BindList(), "127.0.0.1", mutable=False),
        Option("console-port", Int(0, 65535), "0", mutable=False),
        Option("console-bind", BindList(), "127.0.0.1 -::1", mutable=False),
        Option("console-host", Str(), ""),
        Option("console-timeout", Int(1, INT_MAX), "1800"),
        # append only file
        Option("appendonly", Bool(), "yes", mutable=False),
        Option("dir", Str(), ".", mutable=False),
        Option("appenddirname", FileName("appenddirname", "dirname"), "appendonlydir", mutable=False),
        Option("appendfilename", FileName("appendfilename", "filename"), "appendonly.aof", mutable=False),
        Option("save", Enum(""), "", mutable=False),
        Option("appendfsync", Enum("everysec", "always", "no"), "everysec"),
        Option("aof-load-truncated", Bool(), "yes"),
        Option("auto-aof-rewrite-percentage", Int(0, INT_MAX), "100"),
        Option("auto-aof-rewrite-min-size", Memory(0, LONG_MAX), "64mb"),
        # ranking
        Option("mem-default-weights", Weights(), "0.35 0.5 0.1 0.05"),
        Option("mem-recency-halflife", Int(1, LONG_MAX), "604800"),
        # replies
        Option("mem-hit-format", Enum("array", "map"), "array"),
        # limits
        Option("mem-max-records", Int(0, INT_MAX), "0"),
        Option("mem-max-text-bytes", Memory(1, LONG_MAX), "65536"),
        Option("mem-max-meta-bytes", Memory(1, LONG_MAX), "1mb"),
        Option("mem-max-terms-per-doc", Int(1, INT_MAX), "1024"),
        Option("mem-max-dim", Int(1, DIM_MAX), "4096"),
        Option("mem-max-topk", Int(1, INT_MAX), "1000"),
        Option("mem-max-scan", Int(1, INT_MAX), "10000000"),
        Option("mem-max-filters", Int(1, INT_MAX), "128"),
        Option("mem-max-query-terms", Int(1, INT_MAX), "1024"),
        # facts
        Option("mem-fact-subjects", Enum("any", "user"), "any"),
        Option("mem-entity-threshold", Real(-1.0, 1.0), "0.88"),
        Option("mem-recall-facts", Int(0, 1000), "8"),
        Option("mem-recall-minconf", Real(0.0, 1.0), "0.5"),
        Option("mem-anchor-topk", Int(0, 1000), "3"),
        Option("mem-anchor-min", Real(-1.0, 1.0), "0.75"),
        # audit
        Option("mem-audit", Enum("no", "others", "all"), "no"),
        Option("mem-audit-len", Int(0, INT_MAX), "10000"),
        # Fixed, as logfile is.
        Option("mem-audit-file", Str(), "", mutable=False),
        Option("mem-audit-file-bytes", Memory(1024, LONG_MAX), "64mb", mutable=False),
        Option("mem-audit-files", Int(1, 1000), "5", mutable=False),
        # embedding
        Option("mem-default-embedder", Enum("none", "local", "static", "openai", "gemini", "auto"), "none"),
        Option("mem-switch-serves", Enum("vectors", "words"), "vectors"),
        # Fixed: who may send CONFIG SET must not thereby send the keys to any server, nor load any file.
        Option("embedder-path", Str(), "", mutable=False),
        Option("embedder-static-path", Str(), "", mutable=False),
        Option("embedder-openai-url", Str(), "https://api.openai.com/v1", mutable=False),
        Option("embedder-gemini-url", Str(), "https://generativelanguage.googleapis.com/v1beta", mutable=False),
        Option("embedder-timeout-ms", Int(1, INT_MAX), "2000"),
        Option("embedder-cache-bytes", Memory(0, LONG_MAX), "256mb"),
        # inference
        Option("inference-url", Str(), "", mutable=False),  # as above
        Option("inference-model", Str(), ""),
        Option("inference-timeout-ms", Int(1, INT_MAX), "30000"),
        # threads
        Option("mem-threads", Int(0, 1024), "0", mutable=False),
    )
}

#: What redis.conf has and this server cannot do: name -> why. Ignoring them would leave a server less safe than its
#: config file says.
REFUSED = {
    **dict.fromkeys(
        ("tls-session-caching", "tls-session-cache-size", "tls-session-cache-timeout"),
        "Python's ssl module cannot set the session cache; resumption is by tickets, as OpenSSL does it",
    ),
    **dict.fromkeys(
        ("tls-dh-params-file",), "not needed: TLS 1.3 and ECDHE bring their own groups; remove the line"
    ),
    **dict.fromkeys(
        (
            "tls-replication",
            "tls-cluster",
            "tls-client-cert-file",
            "tls-client-key-file",
            "tls-client-key-file-pass",
        ),
        "this server connects to no other one; remove the line",
    ),
}


# The settings of one server.

Callback = Callable[[Any], None]


class Config:
    """Every option's value now: `config["port"]` is a plain dictionary access, cheap enough for each command.

    `path` is the absolute path of the config file, None without one.
    """

    __slots__ = ("_callbacks", "_values", "path", "users")

    def __init__(self) -> None:
        self.path: str | None = None
        self.users: list[tuple[int, list[str]]] = []  # `user` lines: their numbers and words
        self._values: dict[str, Any] = {o.name: o.type.parse(o.default) for o in OPTIONS.values()}
        self._callbacks: dict[str, list[Callback]] = {}

    @classmethod
    def defaults(cls) -> Config:
        """Return every option at its default."""
        return cls()

    @classmethod
    def load(cls, path: str | None, overrides: Iterable[tuple[str, list[str]]] = ()) -> Config:
        """Read the config file at `path`, then the command line's `overrides`: (name, words) in order.

        Raises ConfigError with the lines to print before giving up: which file, which line, why.
        """
        config = cls()
        if path is not None:
            config.path = os.path.abspath(path)
            config._read(path)
        for name, words in overrides:
            try:
                config._assign(name, words)
            except ConfigError as error:
                given = " ".join([f"--{name}", *words])
                raise _fatal("Reading the command line", given, error) from None
        return config

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def text(self, name: str) -> str:
        """Return the value as CONFIG GET shows it."""
        return OPTIONS[name].type.format(self._values[name])

    def get(self, patterns: Iterable[bytes]) -> dict[str, str]:
        """Return name -> text of the options that any glob pattern matches, in any case.

        As in Redis, a pattern without `*`, `?` or `[` is a name, and shown as the client wrote it. Raises CommandError.
        """
        shown: dict[str, str] = {}
        words = list(patterns)
        if len(words) > _MOST_WORDS:
            raise CommandError(f"more than {_MOST_WORDS} names or patterns; ask for fewer at a time")
        if sum(len(word) for word in words if _is_pattern(word)) > _MOST_PATTERN_BYTES:
            raise CommandError(f"patterns of more than {_MOST_PATTERN_BYTES} bytes together; ask for fewer at a time")
        for pattern in words:
            if _is_pattern(pattern):
                matches = compile_glob(pattern, nocase=True).fullmatch
                for name in OPTIONS:
                    if matches(name.encode()):
                        shown.setdefault(name, name)
            else:
                written = pattern.decode("utf-8", "surrogateescape")
                if written.lower() in OPTIONS:
                    shown.setdefault(written.lower(), written)
        return {written: self.text(name) for name, written in shown.items()}

    def set(self, pairs: Mapping[str, str] | Iterable[tuple[str, str]]) -> None:
        """CONFIG SET: change all of `pairs`, name -> text, or nothing; then tell the listeners of what changed.

        Pass the pairs as they came, not as a dict, where a name may be repeated: that is an error of its own.
        Raises ConfigError with the message for the client.
        """
        items = list(pairs.items() if isinstance(pairs, Mapping) else pairs)
        options: list[Option] = []
        for written, _ in items:
            option = OPTIONS.get(written.lower())
            if option is None:
                raise ConfigError(f"Unknown option or number of arguments for CONFIG SET - '{written}'")
            if not option.mutable:
                raise _set_failed(written, "can't set immutable config")
            if option in options:
                raise _set_failed(written, "duplicate parameter")
            options.append(option)
        new: dict[str, Any] = {}
        for option, (_, text) in zip(options, items, strict=True):
            current = self._values[option.name]
            try:
                value = option.type.parse(text, current)
            except ConfigError as error:
                raise _set_failed(option.name, error.message) from None
            if value != current or option.volatile:
                new[option.name] = value
        self._change(new)

    def on_change(self, name: str, callback: Callback) -> None:
        """Call `callback(value)` whenever CONFIG SET has changed the option; all new values are readable by then.

        A callback that raises ConfigError refuses: everything is taken back, and the callbacks that had already run are
        called again with the old values. The one that refuses must itself have changed nothing.
        """
        if name not in OPTIONS:
            raise KeyError(name)
        self._callbacks.setdefault(name, []).append(callback)

    def _change(self, new: dict[str, Any]) -> None:
        old = {name: self._values[name] for name in new}
        self._values.update(new)
        told: list[tuple[str, Callback]] = []
        for name, value in new.items():
            for callback in self._callbacks.get(name, ()):
                try:
                    callback(value)
                except Exception as error:
                    logger.warning("Failed applying new %s setting, restoring previous settings: %s", name, error)
                    self._values.update(old)
                    _tell_again(old, told)
                    if isinstance(error, ConfigError):
                        raise _set_failed(name, error.message) from None
                    raise
                told.append((name, callback))

    def _read(self, path: str) -> None:
        try:
            with open(path, "rb") as file:
                lines = file.read().split(b"\n")
        except (OSError, ValueError) as error:  # ValueError: a NUL byte in the path
            reason = error.strerror if isinstance(error, OSError) else error
            raise ConfigError(f"Fatal error, can't open config file '{path}': {reason}") from None
        for number, line in enumerate(lines, 1):
            line = line.strip()
            if not line or line.startswith(b"#"):
                continue
            try:
                name, *words = split_words(line)
                if name.lower() == "user":
                    self.users.append((number, ["user", *words]))  # read by acl_file.py
                else:
                    self._assign(name, words)
            except ConfigError as error:
                where = f"Reading the configuration file, at line {number} of {path}"
                raise _fatal(where, line.decode("utf-8", "surrogateescape"), error) from None

    def _assign(self, name: str, words: list[str]) -> None:
        option = OPTIONS.get(name.lower())
        if option is None:
            raise ConfigError(REFUSED.get(name.lower(), "Bad directive or wrong number of arguments"))
        if len(words) != 1 and not option.type.several_words:
            raise ConfigError("wrong number of arguments")
        self._values[option.name] = option.type.parse(" ".join(words), self._values[option.name])


_WORD = re.compile(
    rb"""
    ([^\s"']*)                              # bytes outside quotes
    (?: "( (?: \\. | [^"\\] )*+ )"          # then perhaps a quoted rest,
      | '( (?: \\' | [^'] )*+ )'
    )?
    (?= \s | \Z ) \s*                       # behind which a word must end
    """,
    re.VERBOSE | re.DOTALL,
)

_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b", b"a": b"\a"}


def split_words(line: bytes) -> list[str]:
    """Split a line of a config file into its words, quotes and escapes resolved.

    Raises ConfigError where a quote is not closed, or something sticks to its end.
    """
    words = []
    at = 0
    line = line.strip()
    while at < len(line):
        match = _WORD.match(line, at)
        if match is None:
            raise ConfigError("Unbalanced quotes in configuration line")
        bare, double, single = match.groups(default=b"")
        double = re.sub(rb"\\(x[0-9a-fA-F]{2}|.)", _unescape, double, flags=re.DOTALL)
        words.append((bare + double + single.replace(rb"\'", b"'")).decode("utf-8", "surrogateescape"))
        at = match.end()
    return words


def _unescape(match: re.Match[bytes]) -> bytes:
    escaped = match[1]
    return bytes.fromhex(escaped[1:].decode()) if len(escaped) == 3 else _ESCAPES.get(escaped, escaped)


def _fatal(where: str, line: str, error: ConfigError) -> ConfigError:
    first = (line.split(None, 1) or [line])[0]  # str counts more characters as blanks than the file's format does
    name = first.lower().lstrip("-")
    if name == "user" or name.encode("utf-8", "surrogateescape") in SECRET_SETTINGS:  # this goes to the log
        line = f"{first} (redacted)"
    return ConfigError(f"\n*** FATAL CONFIG FILE ERROR ***\n{where}\n>>> '{line}'\n{error.message}")


def _set_failed(name: str, reason: str) -> ConfigError:
    return ConfigError(f"CONFIG SET failed (possibly related to argument '{name}') - {reason}")


def _tell_again(old: Mapping[str, Any], told: list[tuple[str, Callback]]) -> None:
    for name, callback in reversed(told):
        try:
            callback(old[name])
        except Exception:
            logger.exception("Failed restoring the previous %s setting", name)


def _is_pattern(word: bytes) -> bool:
    return any(special in word for special in b"*?[")
