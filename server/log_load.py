"""Opening the log at start: what of the folder counts, loading it into the keyspace, and going on behind it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterator

from . import incr, manifest
from .aof import FileLog
from .base import BaseDamaged, freeze, read_base
from .entries import Entry
from .files import Files, Locked
from .incr import IncrReader, IncrWriter, LogDamaged, read_format_1
from .keyspace import Keyspace
from .log_files import remove, write_base_file
from .manifest import LOCK, Manifest, base_name, incr_name, log_folders, survey

log = logging.getLogger("recalld")


def open_log(
    files: Files,
    directory: str,
    folder: str,
    prefix: str,
    keyspace: Keyspace,
    loop: asyncio.AbstractEventLoop,
    *,
    policy: str,
    cut_tail: bool,
) -> FileLog:
    """Load the log in `folder`, which is one in `directory`, into `keyspace` and open it to go on.

    Raises LogDamaged, OSError.
    """
    files.makedirs(folder)
    try:
        lock = files.lock(os.path.join(folder, LOCK))
    except Locked as error:
        raise LogDamaged(f"{error}: another server uses this folder. Give each its own `dir`.") from error
    try:
        found = survey(files, directory, folder, prefix)
        began = time.perf_counter()
        if found.kind == "parts":
            current = found.manifest
            writer = _load_parts(files, folder, current, keyspace, cut_tail)
        else:
            if found.kind == "format 1" and found.old is not None:
                _load_format_1(files, found.old, keyspace, cut_tail)
            else:
                _warn_of_others(files, directory, folder)
            current, writer = _begin(files, folder, prefix, keyspace)
        if found.old is not None:
            _set_aside(files, directory, found.old)
        if keyspace.memories:
            log.info("DB loaded from append only file: %.3f seconds", time.perf_counter() - began)
        if found.leftovers:
            log.warning("Removing what a crash left: %s", ", ".join(map(os.path.basename, found.leftovers)))
            remove(files, folder, found.leftovers)
    except BaseException:
        lock.release()
        raise
    return FileLog(files, folder, current, writer, lock, policy, loop)


def _load_parts(files: Files, folder: str, current: Manifest, keyspace: Keyspace, cut_tail: bool) -> IncrWriter:
    if current.base is not None:
        path = os.path.join(folder, base_name(current.prefix, current.base))
        try:
            for key, memory, deadline in read_base(files.read(path), path, keyspace.vocabulary):
                keyspace.restore(key, memory, deadline)
        except BaseDamaged as error:
            raise LogDamaged(f"{error}. Nothing was changed. Restore it from a backup.") from error
        except Exception as error:  # somebody wrote it who can compute a CRC, so anything may be wrong with it
            raise LogDamaged(
                f"{path} holds what is no memory, though its checksums are right: {error!r}. Nothing was changed."
                " Restore it from a backup."
            ) from error
    for seq in current.incrs:
        path = os.path.join(folder, incr_name(current.prefix, seq))
        reader = IncrReader(files.read(path), path, last=seq == current.incrs[-1])
        _apply_all(iter(reader), path, keyspace)
    tail = reader.tail
    if tail.kind == "torn":
        if not cut_tail:
            raise LogDamaged(tail.refusal(path))
        log.warning("%s: a torn tail of %d bytes is cut at offset %d", path, tail.lost, tail.keep)
    return incr.resume(files, path, tail)


def _load_format_1(files: Files, path: str, keyspace: Keyspace, cut_tail: bool) -> None:
    data = files.read(path)
    end = _apply_all(read_format_1(data, path), path, keyspace)
    if 0 < end < len(data):
        what = f"{path} ends in the middle of an entry: {len(data) - end} bytes from offset {end} on"
        if not cut_tail:
            raise LogDamaged(f"{what}. With `aof-load-truncated yes` they are cut and the rest is loaded.")
        log.warning("%s are left out", what)


def _apply_all(groups: Iterator[tuple[int, list[Entry]]], path: str, keyspace: Keyspace) -> int:
    """Apply them; the offset that came with the last."""
    offset = 0
    for offset, group in groups:
        try:
            keyspace.apply_all(group)
        except (KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
            raise LogDamaged(
                f"{path} holds an entry at or behind offset {offset} that does not apply: {error!r}."
                " Nothing was changed. Restore the folder from a backup."
            ) from error
    return offset


def _begin(files: Files, folder: str, prefix: str, keyspace: Keyspace) -> tuple[Manifest, IncrWriter]:
    """The first manifest: an incr file, and a base where there is something to keep already."""
    current = Manifest(prefix, None, (1,))
    if keyspace.memories:
        current = Manifest(prefix, 1, (1,))
        frozen = (freeze(key, each, keyspace.deadlines.get(key, 0), 0) for key, each in keyspace.memories.items())
        write_base_file(files, folder, base_name(prefix, 1), frozen, keyspace.vocabulary)
    writer = incr.create(files, os.path.join(folder, incr_name(prefix, 1)))
    files.sync_dir(folder)
    manifest.write(files, folder, current)
    return current, writer


def _warn_of_others(files: Files, directory: str, folder: str) -> None:
    others: list[str] = []
    with contextlib.suppress(OSError):  # what may not be listed is no reason not to start
        others = log_folders(files, directory)
    for other in others:
        if other != folder:
            log.warning("Beginning with nothing, though %s holds a log. (Was appenddirname another one?)", other)


def _set_aside(files: Files, directory: str, old: str) -> None:
    """A log of format 1 whose state is in the new files by now."""
    number = 1
    while files.exists(f"{old}.migrated-{number}"):
        number += 1
    files.rename(old, f"{old}.migrated-{number}")
    files.sync_dir(directory)
    log.warning("%s is of an older format: loaded, written anew, and kept as %s.migrated-%d", old, old, number)

