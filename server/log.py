"""The server's log, in Redis's line format: `12345:M 30 Nov 2026 01:30:00.123 * Ready to accept connections`, or with
`log-format json` an object per line.

    loglevel   mark   call
    debug      .      logger.debug
    verbose    -      logger.log(VERBOSE, ...)
    notice     *      logger.info
    warning    #      logger.warning, error, exception

Modules take `logging.getLogger("recalld")`. `M` is the role of the process, as in Redis.
"""

from __future__ import annotations

import json
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


class JsonFormatter(logging.Formatter):
    """One object per line, whatever the message holds; `level` is a loglevel, `time` is UTC."""

    def format(self, record: logging.LogRecord) -> str:
        utc = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = {
            "time": f"{utc}.{int(record.msecs):03d}Z",
            "level": next((name for name, least in _FROM_WORST if record.levelno >= least), "debug"),
            "pid": record.process,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields)


_FROM_WORST = sorted(LEVELS.items(), key=lambda item: -item[1])
_FORMATTERS: dict[str, type[logging.Formatter]] = {"text": RedisFormatter, "json": JsonFormatter}


def setup(level: str, path: str, form: str = "text") -> None:
    """Send the log to the file at `path`, or to stdout where it is empty, from `level` (a loglevel) upwards, in the
    log-format `form`.

    Raises OSError if the file cannot be opened.
    """
    handler: logging.Handler
    if path:
        # Looks its name up again before each line, as Redis does, so that a log may be rotated without a signal.
        handler = WatchedFileHandler(path, encoding="utf-8", errors="backslashreplace")
    else:
        handler = logging.StreamHandler(sys.stdout)
    for name in _LOGGERS:
        logger = logging.getLogger(name)
        for old in logger.handlers[:]:
            logger.removeHandler(old)
            old.close()
        logger.addHandler(handler)
        logger.propagate = False
    set_format(form)
    set_level(level)


def set_level(level: str) -> None:
    """Change the level at run time (CONFIG SET loglevel)."""
    logging.getLogger("recalld").setLevel(LEVELS[level])


def set_format(form: str) -> None:
    """Change the format at run time (CONFIG SET log-format)."""
    for name in _LOGGERS:
        for handler in logging.getLogger(name).handlers:
            handler.setFormatter(_FORMATTERS[form]())


def reopen() -> None:
    """Open the logfile again (SIGHUP), so that one that was renamed is let go of at once."""
    for handler in logging.getLogger("recalld").handlers:
        if isinstance(handler, logging.FileHandler):
            reopen_file(handler)


def reopen_file(handler: logging.FileHandler) -> None:
    """Go on in the file that has the name now; where none can be opened, in the old one."""
    path = handler.baseFilename
    try:
        stream = open(path, "a", encoding=handler.encoding, errors=handler.errors)  # noqa: SIM115 - the handler's now
    except OSError as error:
        logging.getLogger("recalld").error("Can't reopen '%s', the old file goes on: %s", path, error.strerror)
        return
    old = handler.setStream(stream)
    if old is not None:
        old.close()
