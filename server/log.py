"""The server's log, in Redis's line format: `12345:M 30 Nov 2026 01:30:00.123 * Ready to accept connections`.

    loglevel   mark   call
    debug      .      logger.debug
    verbose    -      logger.log(VERBOSE, ...)
    notice     *      logger.info
    warning    #      logger.warning, error, exception

Modules take `logging.getLogger("recalld")`. `M` is the role of the process, as in Redis.
"""

from __future__ import annotations

import logging
import sys
import time
from logging.handlers import WatchedFileHandler

VERBOSE = 15

LEVELS = {"debug": logging.DEBUG, "verbose": VERBOSE, "notice": logging.INFO, "warning": logging.WARNING}

# asyncio reports here what no task caught; with a logfile it would otherwise go to stderr unseen.
_LOGGERS = ("recalld", "asyncio")


class RedisFormatter(logging.Formatter):
    """One line per record; a traceback follows below it."""

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:
        local = time.localtime(record.created)
        return f"{time.strftime(datefmt or '%d %b %Y %H:%M:%S', local)}.{int(record.msecs):03d}"

    def formatMessage(self, record: logging.LogRecord) -> str:
        if record.levelno >= logging.WARNING:
            mark = "#"
        elif record.levelno >= logging.INFO:
            mark = "*"
        elif record.levelno >= VERBOSE:
            mark = "-"
        else:
            mark = "."
        return f"{record.process}:M {self.formatTime(record)} {mark} {record.message}"


def setup(level: str, path: str) -> None:
    """Send the log to the file at `path`, or to stdout where it is empty, from `level` (a loglevel) upwards.

    Raises OSError if the file cannot be opened.
    """
    handler: logging.Handler
    if path:
        # Looks its name up again before each line, as Redis does, so that a log may be rotated without a signal.
        handler = WatchedFileHandler(path, encoding="utf-8", errors="backslashreplace")
    else:
        handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(RedisFormatter())
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        for old in logger.handlers[:]:
            logger.removeHandler(old)
            old.close()
        logger.addHandler(handler)
        logger.propagate = False
    set_level(level)


def set_level(level: str) -> None:
    """Change the level at run time (CONFIG SET loglevel)."""
    logging.getLogger("recalld").setLevel(LEVELS[level])
