"""`recalld check-aof [--fix] DIR`: is the log whole, and what would it cost to go on with what is.

DIR is the folder of the setting `dir`, or the one in it that holds the log (`appenddirname`). Without --fix nothing is
changed. With it:

Rule 1: before a byte of a file is cut, or the file dropped, NAME.before-fix-N beside it has all its bytes, on the disk.
Rule 2: the cut is at the last checksum that holds, and the files behind it are dropped from the manifest: a log with a
        hole is no state that ever was.
Rule 3: a crash in the middle leaves a log that does not load, or the fixed one; running it again goes on.
Rule 4: what cutting cannot mend (the base, the manifest) is said, and nothing is touched.

Exit code: 0 the log is whole (with --fix: it is now), 1 it is damaged or its tail torn, 2 it could not be looked at.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count

from ..index.analyzer import Vocabulary
from .base import BaseDamaged, read_base
from .config import OPTIONS
from .files import Files, Lock, Locked
from .incr import (
    FORMAT_1_BYTES,
    Damaged,
    IncrReader,
    LogDamaged,
    count_behind,
    create,
    is_format_1,
    read_format_1,
)
from .manifest import (
    LOCK,
    Manifest,
    base_name,
    incr_name,
    log_files,
    log_folders,
    manifest_name,
    parse,
    unnamed,
    write,
)

WHOLE, DAMAGED, UNCHECKED = 0, 1, 2

_COPY = re.compile(r"\.(before-fix|migrated)-[0-9]+$")

_USAGE = """\
usage: recalld check-aof [--fix] DIR

Says of each file of the log in DIR (the setting `dir`, or the folder with the log in it) whether it is whole, and of
what is not, where and what cutting it there would lose. The server must not be running.

  --fix   cut at the first bad place, keeping a copy of each file that changes as NAME.before-fix-N beside it

exit code: 0 whole, 1 damaged or torn, 2 could not be checked
"""
_HOW_TO_FIX = "Nothing was changed. `recalld check-aof --fix` cuts it there and keeps copies."


@dataclass(slots=True)
class Part:
    """An incr file, or a log of format 1: what of it is whole, and what is wrong with the rest."""

    path: str
    size: int = 0
    groups: int = 0
    entries: int = 0
    keep: int = 0
    lost_entries: int = 0  # whole ones behind `keep`
    fault: str | None = None
    is_torn: bool = False

    def __str__(self) -> str:
        held = f"{self.groups} groups, {self.entries} entries, {self.size} bytes"
        if self.fault is None:
            return f"{self.path}: {held}, whole"
        return (
            f"{self.path}: {self.fault}\n  whole up to offset {self.keep}: {self.groups} groups, {self.entries} entries"
            f"\n  lost by cutting there: {self.size - self.keep} bytes, among them {self.lost_entries} whole entries"
        )


def main(argv: Sequence[str]) -> int:
    """Run the words behind `check-aof`; return the exit code."""
    if any(word in ("-h", "--help") for word in argv):
        print(_USAGE, end="")
        return WHOLE
    paths = [word for word in argv if word != "--fix"]
    if len(paths) != 1 or paths[0].startswith("-"):
        print(_USAGE, end="", file=sys.stderr)
        return UNCHECKED
    try:
        return check(Files(), paths[0], fix="--fix" in argv)
    except Locked as locked:
        print(f"{locked}: stop the server first; nothing was looked at.", file=sys.stderr)
    except OSError as error:
        print(f"{error.filename or paths[0]}: {error.strerror or error}", file=sys.stderr)
    return UNCHECKED


def check(files: Files, path: str, *, fix: bool) -> int:
    """Check, and with `fix` mend, the log at `path`; say what there is on stdout. Raises Locked and OSError."""
    found = _find(files, path)
    if len(found) > 1:
        print(f"{path} holds several logs: say which of {', '.join(found)}", file=sys.stderr)
        return UNCHECKED
    if found:
        lock = _lock(files, os.path.join(found[0], LOCK), fix)
        try:
            return _check_folder(files, found[0], fix)
        finally:
            if lock is not None:
                lock.release()
    old = [name for name in files.listdir(path) if not _COPY.search(name) and _is_format_1(files, path, name)]
    if not old:
        print(f"{path} holds no log", file=sys.stderr)
        return UNCHECKED
    code = WHOLE
    for name in old:
        lock = files.lock(os.path.join(path, name), write_pid=False)
        try:
            code = max(code, _check_format_1(files, os.path.join(path, name), fix))
        finally:
            lock.release()
    return code


def _find(files: Files, path: str) -> list[str]:
    """The folders that may be meant: the one in `path` with the default name, `path` itself, or all that hold a log."""
    usual = os.path.join(path, OPTIONS["appenddirname"].default)
    if log_files(files, usual):
        for other in log_folders(files, path):
            if other != usual:
                print(f"{other} holds a log, too, and is not looked at", file=sys.stderr)
        return [usual]
    if log_files(files, path):
        return [path]
    return log_folders(files, path)


def _lock(files: Files, path: str, fix: bool) -> Lock | None:
    # Who only looks may have a folder that cannot be written to, and leaves no file where none was.
    if fix:
        return files.lock(path)
    if not files.exists(path):
        return None
    return files.lock(path, write_pid=False)


def _check_folder(files: Files, folder: str, fix: bool) -> int:
    manifest = _read_manifest(files, folder)
    if manifest is None or not _base_is_whole(files, folder, manifest):
        print("\nCutting cannot mend this. Nothing was changed: restore the folder from a backup.")
        return DAMAGED
    parts = _check_parts(files, folder, manifest)
    leftovers, strays = unnamed(files, folder, manifest)
    for path in leftovers:
        print(f"{path}: left by a crash, the next start removes it")
    for name in strays:
        stray = _read_part(files, os.path.join(folder, name), last=True)
        print(f"{stray.path}: not in the manifest, {stray.entries} entries, {stray.size} bytes")
    bad = next((index for index, part in enumerate(parts) if part.fault is not None), None)
    if bad is None and not strays:
        print("\nThe log is whole.")
        return WHOLE
    behind = [] if bad is None else parts[bad + 1 :]
    dropped = [part.path for part in behind] + [os.path.join(folder, name) for name in strays]
    print()
    if bad is None:
        print("The log is damaged: the manifest does not name all of its files.")
    else:
        print(f"The log is {'torn' if parts[bad].is_torn else 'damaged'}: see {parts[bad].path}.")
    if behind:
        entries = sum(part.entries + part.lost_entries for part in behind)
        print(f"The files behind it go with the cut: {len(behind)} with {entries} entries.")
    if not fix:
        print(_HOW_TO_FIX)
        return DAMAGED
    cut = None if bad is None else parts[bad]
    if cut is not None:
        manifest = Manifest(manifest.prefix, manifest.base, manifest.incrs[: len(parts) - len(behind)])
    _fix(files, folder, manifest if behind else None, cut, dropped)
    return WHOLE


def _fix(files: Files, folder: str, manifest: Manifest | None, cut: Part | None, dropped: list[str]) -> None:
    """Copy, then change the manifest where it changes, then set aside, then cut: rule 3."""
    changed = dropped if cut is None else [cut.path, *dropped]
    number = next(n for n in count(1) if not any(files.exists(_copy_name(path, n)) for path in changed))
    if cut is not None and files.exists(cut.path):
        files.copy(cut.path, _copy_name(cut.path, number))
        files.sync_dir(folder)
        print(f"{_copy_name(cut.path, number)}: copied")
    if manifest is not None:
        write(files, folder, manifest)
    for path in dropped:
        if files.exists(path):
            files.rename(path, _copy_name(path, number))
            print(f"{_copy_name(path, number)}: set aside")
    files.sync_dir(folder)
    if cut is not None:
        _cut(files, cut)
        files.sync_dir(folder)
    print("The log is whole now.")


def _cut(files: Files, part: Part) -> None:
    if not part.keep:
        create(files, part.path).close()
    else:
        file = files.open_append(part.path)
        try:
            file.truncate(part.keep)
            file.sync()
        finally:
            file.close()
    print(f"{part.path}: cut at offset {part.keep}, {part.size - part.keep} bytes lost")


def _copy_name(path: str, number: int) -> str:
    return f"{path}.before-fix-{number}"


# -- looking


def _read_manifest(files: Files, folder: str) -> Manifest | None:
    names = [name for name in log_files(files, folder) if name.endswith(manifest_name(""))]
    if len(names) != 1:
        print(f"{folder}: {'its manifest is missing' if not names else 'it holds the manifests of several logs'}")
        return None
    path = os.path.join(folder, names[0])
    try:
        manifest = parse(files.read(path)[:], path, names[0].removesuffix(manifest_name("")))
    except LogDamaged as damaged:
        print(damaged)
        return None
    print(f"{path}: names {len(manifest.names)} files")
    return manifest


def _base_is_whole(files: Files, folder: str, manifest: Manifest) -> bool:
    if manifest.base is None:
        return True
    path = os.path.join(folder, base_name(manifest.prefix, manifest.base))
    try:
        data = files.read(path)
        memories = [memory for _, memory, _ in read_base(data, path, Vocabulary())]
    except FileNotFoundError:
        print(f"{path}: missing")
        return False
    except BaseDamaged as damaged:
        print(damaged)
        return False
    records = sum(len(memory.table.by_id) for memory in memories)
    print(f"{path}: base, {len(memories)} memories, {records} records, {len(data)} bytes, whole")
    return True


def _check_parts(files: Files, folder: str, manifest: Manifest) -> list[Part]:
    parts: list[Part] = []
    for seq in manifest.incrs:
        part = _read_part(files, os.path.join(folder, incr_name(manifest.prefix, seq)), last=seq == manifest.incrs[-1])
        print(part)
        parts.append(part)
    return parts


def _read_part(files: Files, path: str, *, last: bool) -> Part:
    part = Part(path)
    try:
        data = files.read(path)
    except FileNotFoundError:
        part.fault = "missing"
        return part
    part.size = len(data)
    reader = IncrReader(data, path, last=last)
    try:
        for _, group in reader:
            part.groups += 1
            part.entries += len(group)
    except Damaged as damaged:
        part.keep = damaged.keep
        part.fault = f"damaged at offset {damaged.offset}: {damaged.why}"
        part.lost_entries = count_behind(data, damaged.keep)
        return part
    part.keep = reader.tail.keep
    if reader.tail.kind == "torn":
        part.is_torn = True
        part.fault = f"torn at offset {part.keep}: it ends in the middle of a write"
        part.lost_entries = reader.tail.entries
    return part


# -- the one file of format 1, which has no checksums


def _check_format_1(files: Files, path: str, fix: bool) -> int:
    part = Part(path)
    data = files.read(path)
    part.size, part.keep = len(data), FORMAT_1_BYTES
    try:
        for part.keep, group in read_format_1(data, path):
            part.groups += 1
            part.entries += len(group)
        if part.keep < part.size:
            part.fault = f"torn at offset {part.keep}: it ends in the middle of a write"
    except Damaged as damaged:
        part.fault = f"damaged at offset {damaged.offset}: {damaged.why}"
    print(f"{part} (format 1, without checksums)")
    if part.fault is None:
        return WHOLE
    if not fix:
        print(_HOW_TO_FIX)
        return DAMAGED
    _fix(files, os.path.dirname(path), None, part, [])
    return WHOLE


def _is_format_1(files: Files, folder: str, name: str) -> bool:
    try:
        return is_format_1(files.read(os.path.join(folder, name)))
    except OSError:
        return False  # a folder, or nothing that may be read
