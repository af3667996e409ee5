"""The command line: `recalld [conffile] [--name value ...]`, as redis-server has it.

Rules:

1. A first word that does not start with `-` is the config file, or one of the commands (`./export` is a file).
2. `--name` takes all words up to the next one that starts with `--`, and overrides the file. Given twice, the last
   wins. A value that itself starts with `--` can only stand in the file.
3. Whatever is wrong with the settings is said on stderr before anything starts; the exit code is then 1.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from importlib import metadata

from .. import conf
from . import log
from .config import Config, ConfigError

# Only for a source tree that was never installed; tests/test_conf.py compares it with pyproject.toml.
_SOURCE_VERSION = "0.1.0"

_USAGE = """\
recalld {version}, a memory server for AI agents that speaks the Redis protocol

usage: recalld [conffile] [--name value ...]
       recalld export FILE [--url URL] [--key PATTERN]
       recalld export --car FILE [KEY ...] [--url URL]
       recalld import FILE [--url URL] [--replace]
       recalld check-aof [--fix] DIR
       recalld ping [--url URL]
       recalld --check-config conffile [--name value ...]
       recalld mcp --key KEY [--url URL] [--http PORT]
       recalld -v | --version
       recalld -h | --help

  recalld                                   port 7171, this machine only, data in ./
  recalld /etc/recalld.conf                 settings from a file
  recalld /etc/recalld.conf --port 7172     --name value overrides the file
  recalld --port 0 --appendonly no          any free port, nothing kept
  recalld --bind 0.0.0.0 --requirepass s    several values: --bind 10.0.0.1 ::1
  recalld export memories.jsonl             memories of a running server, as JSON lines (recalld export --help)
  recalld check-aof /var/lib/recalld        whether the log in that `dir` is whole; --fix cuts what is not
  recalld --check-config /etc/recalld.conf  whether a server could start with it: files, users, packages
  recalld ping                              whether a server answers (exit code 0), for health checks
  recalld mcp --key user:1                  that memory of a running server as tools for an agent (recalld mcp --help)

Every setting stands, explained and at its default, in
{conf}
"""

logger = logging.getLogger("recalld")


def version() -> str:
    """Return the installed package's version."""
    try:
        return metadata.version("recalld")
    except metadata.PackageNotFoundError:
        return _SOURCE_VERSION


def parse(words: Sequence[str]) -> tuple[str | None, list[tuple[str, list[str]]]]:
    """Split the command line into the config file, None without one, and the overrides in order.

    Raises ConfigError for a word that belongs to no `--name`.
    """
    path = words[0] if words and not words[0].startswith("-") else None
    overrides: list[tuple[str, list[str]]] = []
    for word in words[path is not None :]:
        if word.startswith("--"):
            overrides.append((word[2:], []))
        elif overrides:
            overrides[-1][1].append(word)
        else:
            raise ConfigError(f"unexpected word '{word}': settings are written --name value (see recalld --help)")
    return path, overrides


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (default: the process's); return the exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words and words[0] in ("-v", "--version"):
        print(f"recalld {version()}")
        return 0
    if words and words[0] in ("-h", "--help"):
        print(_USAGE.format(version=version(), conf=conf.PATH), end="")
        return 0
    if words and words[0] == "export" and "--car" in words:
        from .car import main as car

        return car(words[1:])
    if words and words[0] in ("export", "import"):
        from .portable import main as portable

        return portable(words)
    if words and words[0] == "check-aof":
        from .check_aof import main as check_aof

        return check_aof(words[1:])
    if words and words[0] == "ping":
        from .ping import main as ping

        return ping(words[1:])
    if words and words[0] == "--check-config":
        return _check_config(words[1:])
    if words and words[0] == "mcp":
        from .mcp_server import main as mcp

        return mcp(words[1:])
    try:
        path, overrides = parse(words)
        config = Config.load(path, overrides)
        _start_log(config)
    except ConfigError as error:
        print(error.message, file=sys.stderr)
        return 1
    logger.info("recalld version=%s, pid=%d, just started", version(), os.getpid())
    if config.path is None:
        logger.info("No config file given, defaults are in use; to choose one: recalld /path/to/recalld.conf")
    else:
        logger.info("Configuration loaded from %s", config.path)

    # The scan gives each thread its own rows; a BLAS with threads of its own would fight them for the cores.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Here, so that --help and a bad config file answer at once: the server imports numpy and the index.
    from .server import run

    return run(config)


def _check_config(words: Sequence[str]) -> int:
    """Say whether a server could start with these settings, and what is wrong if not."""
    from .check_config import problems

    try:
        path, overrides = parse(words)
        if path is None:
            raise ConfigError("recalld --check-config needs the name of a config file")
        found = list(problems(Config.load(path, overrides)))
    except ConfigError as error:
        found = [error.message]
    for problem in found:
        print(problem, file=sys.stderr)
    if not found:
        print(f"{path}: good")
    return bool(found)


def _start_log(config: Config) -> None:
    try:
        log.setup(config["loglevel"], config["logfile"], config["log-format"])
    except (OSError, ValueError) as error:  # ValueError: a NUL byte in the name
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"Can't open the log file '{config['logfile']}': {reason}") from None
    config.on_change("loglevel", log.set_level)
    config.on_change("log-format", log.set_format)
