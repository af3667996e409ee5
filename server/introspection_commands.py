"""What the server says about itself: its commands, its settings, its state."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from ..protocol.reply import OK, SetReply, SimpleString, Verbatim
from . import info as info_text
from .acl_file import users_to_rewrite
from .arguments import integer
from .categories import categories, every_command
from .command_keys import Key, keys_of
from .commands import TABLE, Command, command, container, help_subcommand
from .config_rewrite import rewrite, values_of
from .errors import CommandError, syntax_error
from .glob import compile_glob
from .usage import Argument, parse

if TYPE_CHECKING:
    from .client import Client

log = logging.getLogger("recalld")

_ADMIN = "admin noscript loading stale"
_OPEN = "loading stale"

# COMMAND

# Ten times as many as there are: the same one named a million times would be gigabytes of reply.
_MOST_NAMES = 1_000
# 5 microseconds each.
_MOST_KEYS = 1_000


@command("COMMAND", arity=-1, flags=_OPEN, usage="COMMAND", complexity="O(commands)", group="server")
def command_(ctx: Client, args: list[bytes]) -> list[Any]:
    """Describe every command to a client: arity, flags, where its keys are."""
    return [_info(entry) for entry in TABLE.values()]


help_subcommand("COMMAND", group="server")


@command("COMMAND COUNT", arity=2, flags=_OPEN, usage="COMMAND COUNT", group="server")
def command_count(ctx: Client, args: list[bytes]) -> int:
    """Count the commands, subcommands left out."""
    return len(TABLE)


@command(
    "COMMAND INFO",
    arity=-2,
    flags=_OPEN,
    usage="COMMAND INFO [command-name [command-name ...]]",
    complexity="O(commands)",
    group="server",
)
def command_info(ctx: Client, args: list[bytes]) -> list[Any]:
    """Describe commands as COMMAND does, all of them where none is named; nil for what is no command."""
    if not args:
        return [_info(entry) for entry in TABLE.values()]
    _few(args)
    return [None if entry is None else _info(entry) for entry in map(_named, args)]


@command(
    "COMMAND DOCS",
    arity=-2,
    flags=_OPEN,
    usage="COMMAND DOCS [command-name [command-name ...]]",
    complexity="O(commands)",
    group="server",
)
def command_docs(ctx: Client, args: list[bytes]) -> dict[str, Any]:
    """Describe commands to people: summary, complexity, arguments. All of them where none is named."""
    _few(args)
    entries = map(_named, args) if args else iter(TABLE.values())
    return {entry.name: _docs(entry) for entry in entries if entry is not None}


@command(
    "COMMAND LIST",
    arity=-2,
    flags=_OPEN,
    usage="COMMAND LIST [FILTERBY (MODULE module-name | ACLCAT category | PATTERN pattern)]",
    complexity="O(commands)",
    group="server",
    options=[
        "FILTERBY MODULE: there are no modules, so no commands of one",
        "FILTERBY ACLCAT category, FILTERBY PATTERN pattern: of a category, of a name that matches; subcommands too",
    ],
)
def command_list(ctx: Client, args: list[bytes]) -> list[str]:
    """List the names of the commands."""
    if not args:
        return list(TABLE)
    if len(args) != 3 or args[0].lower() != b"filterby":
        raise syntax_error()
    match args[1].lower():
        case b"module":
            return []
        case b"aclcat":
            category = "@" + args[2].lower().decode("utf-8", "replace")
            return [entry.name for entry in every_command() if category in categories(entry)]
        case b"pattern":
            matches = compile_glob(args[2], nocase=True).fullmatch
            return [entry.name for entry in every_command() if matches(entry.name.encode())]
        case _:
            raise syntax_error()


@command(
    "COMMAND GETKEYS",
    arity=-3,
    flags=_OPEN,
    usage="COMMAND GETKEYS command [arg [arg ...]]",
    complexity="O(arguments)",
    group="server",
)
def command_getkeys(ctx: Client, args: list[bytes]) -> list[bytes]:
    """List the keys in a command's words."""
    return [args[key.at] for key in _keys_in(args)]


@command(
    "COMMAND GETKEYSANDFLAGS",
    arity=-3,
    flags=_OPEN,
    usage="COMMAND GETKEYSANDFLAGS command [arg [arg ...]]",
    complexity="O(arguments)",
    group="server",
)
def command_getkeysandflags(ctx: Client, args: list[bytes]) -> list[Any]:
    """List the keys in a command's words, and what the command does to each."""
    keys = _keys_in(args)
    flags = {key.flags: _statuses(key.flags.split()) for key in keys}
    return [[args[key.at], flags[key.flags]] for key in keys]


def _few(names: list[bytes]) -> None:
    if len(names) > _MOST_NAMES:
        raise CommandError(f"more than {_MOST_NAMES} names; ask for fewer at a time")


def _keys_in(words: list[bytes]) -> list[Key]:
    """The keys of a whole command."""
    entry = _named(words[0])
    if entry is not None and len(words) > 1 and entry.subcommands:
        entry = entry.subcommands.get(words[1].lower().decode("latin-1"))
    if entry is None:
        raise CommandError("Invalid command specified")
    if not entry.key_flags:
        raise CommandError("The command has no key arguments")
    if not entry.arity_ok(len(words)):
        raise CommandError("Invalid number of arguments specified for command")
    keys = keys_of(entry, words)
    if len(keys) > _MOST_KEYS:
        raise CommandError(f"more than {_MOST_KEYS} keys; ask with fewer at a time")
    return keys


def _named(word: bytes) -> Command | None:
    """The entry of a name as COMMAND shows it: `client|kill`."""
    name, bar, sub = word.lower().decode("latin-1").partition("|")
    entry = TABLE.get(name)
    return entry.subcommands.get(sub) if entry is not None and bar else entry


def _statuses(words: Iterable[str]) -> SetReply:
    return SetReply(SimpleString(word) for word in words)


def _info(entry: Command) -> list[Any]:
    """One element of COMMAND's reply."""
    first, last, step = entry.keys
    return [
        entry.name,
        entry.arity,
        _statuses(sorted(entry.flags)),
        first,
        last,
        step,
        _statuses(categories(entry)),
        SetReply(),  # tips say how a cluster's client should ask
        SetReply(_key_specs(entry)),
        SetReply(_info(sub) for sub in entry.subcommands.values()),
    ]


def _key_specs(entry: Command) -> Iterable[dict[str, Any]]:
    """Where the keys are, one specification for each of `key_flags`."""
    first, last, step = entry.keys
    for nth, flags in enumerate(entry.key_flags):
        one_for_all = len(entry.key_flags) == 1
        yield {
            "flags": _statuses(flags.split()),
            "begin_search": {"type": "index", "spec": {"index": first + nth * step}},
            "find_keys": {
                "type": "range",
                # Counted from the first key where it is not negative, unlike `last`.
                "spec": {
                    "lastkey": (last - first if last >= 0 else last) if one_for_all else 0,
                    "keystep": step if one_for_all else 1,
                    "limit": 0,
                },
            },
        }


def _docs(entry: Command) -> dict[str, Any]:
    docs: dict[str, Any] = {
        "summary": entry.summary,
        "since": entry.since,
        "group": entry.group,
        "complexity": entry.complexity,
    }
    arguments = parse(entry.usage, entry.name.count("|") + 1)
    if arguments:
        several_specs = len(entry.key_flags) > 1
        seen = 0
        described = []
        for argument in arguments:
            described.append(_argument(argument, seen))
            seen += several_specs and argument.type == "key"
        docs["arguments"] = described
    if entry.subcommands:
        docs["subcommands"] = {sub.name: _docs(sub) for sub in entry.subcommands.values()}
    return docs


def _argument(argument: Argument, key_spec: int) -> dict[str, Any]:
    described: dict[str, Any] = {"name": argument.name, "type": argument.type}
    if argument.type == "key":
        described["key_spec_index"] = key_spec
    if argument.token:
        described["token"] = argument.token
    flags = {
        "optional": argument.optional,
        "multiple": argument.multiple,
        "multiple_token": argument.repeats_token,
    }
    if any(flags.values()):
        described["flags"] = _statuses(flag for flag, holds in flags.items() if holds)
    if argument.arguments:
        described["arguments"] = [_argument(inner, key_spec) for inner in argument.arguments]
    return described


# CONFIG

container("CONFIG", summary="Look at the settings, and change them.", group="server")


@command(
    "CONFIG GET",
    arity=-3,
    flags=_ADMIN,
    usage="CONFIG GET parameter [parameter ...]",
    complexity="O(settings)",
    group="server",
)
def config_get(ctx: Client, args: list[bytes]) -> dict[bytes, bytes]:
    """Show the settings whose names match any of the glob patterns."""
    found = ctx.server.config.get(args)
    return {_encoded(name): _encoded(text) for name, text in found.items()}


@command(
    "CONFIG SET",
    arity=-4,
    flags=_ADMIN,
    usage="CONFIG SET parameter value [parameter value ...]",
    complexity="O(settings)",
    group="server",
)
def config_set(ctx: Client, args: list[bytes]) -> SimpleString:
    """Change settings, all of those named or none."""
    if len(args) % 2:
        raise syntax_error()
    words = [word.decode("utf-8", "surrogateescape") for word in args]
    ctx.server.config.set(zip(words[::2], words[1::2], strict=True))
    return OK


@command(
    "CONFIG REWRITE",
    arity=2,
    flags=_ADMIN,
    usage="CONFIG REWRITE",
    complexity="O(settings)",
    group="server",
    options=["Comments, blank lines, order, and the lines of settings that have not changed stay as they are."],
)
def config_rewrite(ctx: Client, args: list[bytes]) -> Any:
    """Write the settings as they are now to the config file, and the users where there is no aclfile."""
    path = ctx.server.config.path
    if path is None:
        raise CommandError("The server is running without a config file")
    server, values = ctx.server, values_of(ctx.server.config)
    users = users_to_rewrite(server.acl, values["requirepass"]) if server.acl_file is None else None

    def work() -> SimpleString:
        try:
            rewrite(path, values, users)
        except OSError as error:
            log.error("CONFIG REWRITE failed: %s", error)
            raise CommandError(f"Rewriting config file: {error.strerror}") from None
        log.info("CONFIG REWRITE executed with success.")
        return OK

    return ctx.background(work)


@command("CONFIG RESETSTAT", arity=2, flags=_ADMIN, usage="CONFIG RESETSTAT", group="server")
def config_resetstat(ctx: Client, args: list[bytes]) -> SimpleString:
    """Set the counters of INFO to 0, and the histograms of LATENCY HISTOGRAM."""
    ctx.server.stats.reset()
    ctx.server.observer.times.reset()
    ctx.server.keyspace.expired_keys = 0
    ctx.server.keyspace.expired_records = 0
    return OK


def _encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


# State


@command(
    "INFO",
    arity=-1,
    flags=_OPEN,
    usage="INFO [section [section ...]]",
    complexity="O(memories)",
    group="server",
    options=[
        f"section: one of {', '.join(info_text.SECTIONS)} and memorydb; all and everything are all of them, default is"
        " all but commandstats and latencystats (default)",
    ],
)
def info(ctx: Client, args: list[bytes]) -> Any:
    """Show the state of the server and what it has counted."""
    return info_text.build(ctx.server, ctx.now, [word.decode("utf-8", "replace") for word in args])


@command("TIME", arity=1, flags="loading stale fast", usage="TIME", group="server")
def time(ctx: Client, args: list[bytes]) -> list[str]:
    """Reply with the server's time: unix seconds, and microseconds of the second, exact to the millisecond."""
    seconds, ms = divmod(ctx.now, 1000)
    return [str(seconds), str(ms * 1000)]


@command("ROLE", arity=1, flags="noscript loading stale fast", usage="ROLE", group="server")
def role(ctx: Client, args: list[bytes]) -> list[Any]:
    """Reply with `master`, an offset and the replicas, of which there are none."""
    return ["master", 0, []]


# MEMORY

container("MEMORY", summary="Show how much memory keys and the server take.", group="server")


@command(
    "MEMORY USAGE",
    arity=-3,
    flags="readonly",
    keys=(2, 2, 1),
    key_flags=["RO"],
    usage="MEMORY USAGE key [SAMPLES count]",
    group="server",
    options=[
        "SAMPLES count: accepted; the bytes are counted as records are written, so none need be looked at",
    ],
)
def memory_usage(ctx: Client, args: list[bytes]) -> int | None:
    """Estimate the bytes that a memory takes; nil where there is none."""
    if len(args) > 1:
        if len(args) != 3 or args[1].upper() != b"SAMPLES":
            raise syntax_error()
        if integer(args[2]) < 0:
            raise syntax_error()
    keyspace = ctx.server.keyspace
    return None if keyspace.get(args[0], ctx.now) is None else keyspace.nbytes(args[0])


@command("MEMORY STATS", arity=2, flags="", usage="MEMORY STATS", group="server")
def memory_stats(ctx: Client, args: list[bytes]) -> dict[str, Any]:
    """Show where the server's memory goes."""
    used, startup = info_text.resident_bytes(), ctx.server.startup_bytes
    peak = max(used, info_text.peak_resident_bytes())
    dataset, keys = max(0, used - startup), len(ctx.server.keyspace.memories)
    return {
        "peak.allocated": peak,
        "total.allocated": used,
        "startup.allocated": startup,
        "keys.count": keys,
        "keys.bytes-per-key": dataset // keys if keys else 0,
        "dataset.bytes": dataset,
        "dataset.percentage": 100.0 * dataset / used if used else 0.0,
        "peak.percentage": 100.0 * used / peak if peak else 0.0,
        "vocabulary.terms": len(ctx.server.keyspace.vocabulary),
    }


@command("MEMORY DOCTOR", arity=2, flags="", usage="MEMORY DOCTOR", group="server")
def memory_doctor(ctx: Client, args: list[bytes]) -> Verbatim:
    """Say whether anything about the server's memory looks wrong."""
    eviction = ctx.server.eviction
    if eviction.limit and (counted := eviction.used()) > eviction.limit:
        policy = ctx.server.config["maxmemory-policy"]
        return Verbatim(
            f"{counted} bytes are used, more than maxmemory, {eviction.limit}: where maxmemory-policy, {policy}, finds"
            " no memory to drop, commands that need more are refused with OOM. Raise maxmemory, or delete memories."
        )
    used = info_text.resident_bytes()
    peak = max(used, info_text.peak_resident_bytes())
    if peak > max(1.5 * used, used + (64 << 20)):
        return Verbatim(
            f"The server has held {peak} bytes and holds {used} now: what was freed went back to the system."
        )
    return Verbatim("Nothing looks wrong.")
