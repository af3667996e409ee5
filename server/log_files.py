"""Writing and removing whole files of the log's folder, for the rewrite and for the start."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
from collections.abc import Callable, Iterable

from ..index.analyzer import Vocabulary
from .base import Frozen, write_base
from .files import Files, NewFile
from .manifest import TEMP, Manifest, unnamed

log = logging.getLogger("recalld")


def stopping() -> OSError:
    """What ends a base that is being written when the server stops."""
    return OSError(errno.ECANCELED, "the server is stopping")


class _Stoppable:
    """What a base is written to, until `stopped`."""

    def __init__(self, file: NewFile, stopped: Callable[[], bool]) -> None:
        self._file = file
        self._stopped = stopped

    def write(self, data: bytes | memoryview) -> int:
        if self._stopped():
            raise stopping()
        return self._file.write(data)


def write_base_file(
    files: Files,
    folder: str,
    name: str,
    frozen: Iterable[Frozen],
    vocabulary: Vocabulary,
    stopped: Callable[[], bool] = lambda: False,
) -> int:
    """Write a base under its name, durably, or leave nothing of it; how many records. Raises OSError."""
    temp = os.path.join(folder, TEMP + name)
    file = files.create(temp)
    try:
        try:
            records = write_base(_Stoppable(file, stopped), frozen, vocabulary)
            file.sync()
        finally:
            file.close()
        files.rename(temp, os.path.join(folder, name))
    except OSError:
        with contextlib.suppress(OSError):  # on a full disk it would keep the room that is missing
            files.remove(temp)
        raise
    files.sync_dir(folder)
    return records


def remove_unnamed(files: Files, folder: str, current: Manifest) -> None:
    """Delete what no longer counts, of rewrites that failed before, too: what is forgotten may stand in it."""
    try:
        leftovers, _ = unnamed(files, folder, current)
    except OSError as error:
        log.warning("%s could not be listed: %s", folder, error)
        return
    remove(files, folder, leftovers)


def remove(files: Files, folder: str, paths: Iterable[str]) -> None:
    """Delete files that no longer count. What stays is removed after the next rewrite, or at the next start."""
    for path in paths:
        try:
            files.remove(path)
        except OSError as error:
            log.warning("%s could not be removed: %s", path, error)
    try:
        files.sync_dir(folder)
    except OSError as error:
        log.warning("%s could not be synced: %s", folder, error)
