"""`recalld --check-config`: whether a server could start with a config file, and has what its settings need.

Nothing is opened, made or listened on, so it may run beside the server. It looks as the user who runs it; that
should be the server's.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from .acl_file import load_users
from .acl_users import Acl
from .config import Config, ConfigError
from .embedder import EmbedderError, model_of
from .metrics import prometheus
from .server import console_class
from .tls import make_context


def problems(config: Config) -> Iterator[str]:
    """What is wrong, a message for each; none where all is well."""
    for check in _CHECKS:
        try:
            check(config)
        except ConfigError as error:
            yield error.message


def _ports(config: Config) -> None:
    """Two listeners need two ports, unless their addresses differ. Whether others have taken one is not looked at."""
    taken: list[tuple[str, int, str]] = []
    for name, bind in _LISTENERS.items():
        port = config[name]
        if not port:
            continue
        hosts = [host for host in config[bind] if not host.startswith("-")]  # those may be missing
        for other, same, where in taken:
            if port == same and any(_overlap(host, where) for host in hosts):
                raise ConfigError(f"{name} and {other} are both {port}: give each a port of its own")
        taken += [(name, port, host) for host in hosts]


def _overlap(one: str, other: str) -> bool:
    everywhere = {"::", "::*"} if ":" in one else {"0.0.0.0", "*"}
    return one == other or ((":" in one) == (":" in other) and not everywhere.isdisjoint((one, other)))


def _users(config: Config) -> None:
    from . import command_modules  # noqa: F401 - the rules of users name commands

    load_users(config, Acl(config, {}))


def _tls(config: Config) -> None:
    if config["tls-port"]:
        make_context(config)


def _metrics(config: Config) -> None:
    if config["metrics-port"]:
        prometheus()


def _console(config: Config) -> None:
    if config["console-port"]:
        console_class()


def _embedder(config: Config) -> None:
    """The ones that run in the server; the others need a key in its environment, which is not ours."""
    name = config["mem-default-embedder"]
    if name in ("local", "static"):
        try:
            model_of(name, "", 0, config)
        except EmbedderError as error:
            raise ConfigError(f"mem-default-embedder {name}: {error}") from None


def _log(config: Config) -> None:
    """The append-only files: `dir` and what is in it are made where they are missing."""
    if not config["appendonly"]:
        return
    folder = os.path.abspath(os.path.join(config["dir"], config["appenddirname"]))
    _writable_folder("dir", folder)
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:  # of a server that somebody once ran as root
            if not _may(entry.path, os.R_OK | os.W_OK):
                raise ConfigError(f"dir: '{entry.path}' may not be read and written by this user")


def _log_files(config: Config) -> None:
    for name in ("logfile", "mem-audit-file"):
        path = os.path.abspath(config[name]) if config[name] else ""
        if path and os.path.exists(path):
            if os.path.isdir(path):
                raise ConfigError(f"{name}: '{path}' is a folder")
            if not _may(path, os.W_OK):
                raise ConfigError(f"{name}: '{path}' may not be written by this user")
        elif path and not os.path.isdir(os.path.dirname(path)):
            raise ConfigError(f"{name}: there is no folder '{os.path.dirname(path)}'")
        elif path:
            _writable_folder(name, os.path.dirname(path))


def _writable_folder(name: str, path: str) -> None:
    """That the folder may be written to, or made where it is missing."""
    while not os.path.lexists(path):
        path = os.path.dirname(path)
    if not os.path.isdir(path):
        raise ConfigError(f"{name}: '{path}' is no folder")
    if not _may(path, os.R_OK | os.W_OK | os.X_OK):
        raise ConfigError(f"{name}: the folder '{path}' may not be read and written by this user")


def _may(path: str, how: int) -> bool:
    return os.access(path, how, effective_ids=os.access in os.supports_effective_ids)


_LISTENERS = {"port": "bind", "tls-port": "bind", "metrics-port": "metrics-bind", "console-port": "console-bind"}

_CHECKS: tuple[Callable[[Config], None], ...] = (
    _ports,
    _users,
    _tls,
    _metrics,
    _console,
    _embedder,
    _log,
    _log_files,
)
