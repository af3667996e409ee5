"""How many files the process may open, against how many clients `maxclients` lets in: as Redis settles it at start.

Without this, a machine whose limit is 1024 (`ulimit -n`) leaves the thousandth client waiting without a word, and has
no file left for a rewrite of the log.
"""

from __future__ import annotations

import logging
import resource

from .config import Config, ConfigError

log = logging.getLogger("recalld")

#: What is open beside the clients: the log and its next parts, listeners, metrics, console, embedders, caches.
OTHERS = 96


def settle(config: Config) -> None:
    """Raise the process's limit to what maxclients needs, else lower maxclients; from now on CONFIG SET is held to it.

    Raises ConfigError where not even one client fits.
    """
    wanted = config["maxclients"]
    clients = _clients(wanted)
    if clients < 1:
        raise ConfigError(f"the process may open {clients + OTHERS} files, it needs {OTHERS + 1}: raise `ulimit -n`")
    if clients < wanted:
        config.set({"maxclients": str(clients)})
        log.warning(
            "maxclients %d takes %d open files, the process may have %d: maxclients is now %d. Raise `ulimit -n`"
            " (systemd: LimitNOFILE).",
            wanted,
            wanted + OTHERS,
            clients + OTHERS,
            clients,
        )
    config.on_change("maxclients", _check)


def _check(wanted: int) -> None:
    """CONFIG SET maxclients."""
    clients = _clients(wanted)
    if clients < wanted:
        raise ConfigError(
            "The operating system is not able to handle the specified number of clients, try with"
            f" {max(clients, 0)} (`ulimit -n` allows no more)"
        )


def _clients(wanted: int) -> int:
    """For how many clients there are files, `wanted` at most, the limit being raised where it may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHERS
    if soft != resource.RLIM_INFINITY and soft < needed:
        more = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (more, hard))
        except (OSError, ValueError):  # a sandbox may not let us; macOS has a limit beside the hard one
            more = soft
        soft = more
    return wanted if soft == resource.RLIM_INFINITY else min(wanted, soft - OTHERS)
