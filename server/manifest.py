"""The manifest: which files make up the state, in order; and what a folder holds at start.

    manifest := line+
    line     := "file " name " seq " number " type " ("b" | "i") LF

At most one base, first, then at least one incr file, their numbers rising. A name is the one that its number gives:

    <prefix>.manifest            the prefix is the setting `appendfilename`, the folder `appenddirname` in `dir`
    <prefix>.<seq>.base.rcl      base.py
    <prefix>.<seq>.incr.aof      incr.py
    temp-*                       being written; no part of the state
    lock                         held by the server of the folder

So each line says its number twice, and no single flipped bit makes another manifest. Writing one is a temp file, its
fsync, a rename over the old one, an fsync of the folder: the rename is the moment at which the state has other files.

What a crash can leave beside the named files: temp files; a base that no manifest names (the next one or the last one);
incr files older than the first named one; an incr file without a group. These may go, once the state is loaded. Files
of the log that are none of these mean that the manifest is not theirs: LogDamaged, and nothing is touched.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field, replace
from typing import Literal

from .files import Files
from .incr import EMPTY_BYTES, LogDamaged

LOCK = "lock"
TEMP = "temp-"
_SUFFIX = ".manifest"

_LINE = re.compile(r"file (.+) seq ([1-9][0-9]{0,17}) type ([bhi])")
# Redis's names, too: a folder of Redis's is no empty one.
_PART = re.compile(r".+\.[0-9]+\.(base|incr)\.[a-z]+")


@dataclass(slots=True, frozen=True)
class Manifest:
    """The files of a state by their numbers; `base` None if it begins empty."""

    prefix: str
    base: int | None = None
    incrs: tuple[int, ...] = ()

    @property
    def names(self) -> list[str]:
        """The files in the order in which they are loaded."""
        base = [] if self.base is None else [base_name(self.prefix, self.base)]
        return base + [incr_name(self.prefix, seq) for seq in self.incrs]

    def with_incr(self, seq: int) -> Manifest:
        """And `seq` behind the others."""
        return replace(self, incrs=(*self.incrs, seq))

    def with_base(self, seq: int, since: int) -> Manifest:
        """The base `seq` in place of all before incr file `since`."""
        return replace(self, base=seq, incrs=tuple(incr for incr in self.incrs if incr >= since))

    def format(self) -> bytes:
        lines = [] if self.base is None else [_line(base_name(self.prefix, self.base), self.base, "b")]
        lines += [_line(incr_name(self.prefix, seq), seq, "i") for seq in self.incrs]
        return "".join(lines).encode("utf-8", "surrogateescape")


def manifest_name(prefix: str) -> str:
    return prefix + _SUFFIX


def base_name(prefix: str, seq: int) -> str:
    return f"{prefix}.{seq}.base.rcl"


def incr_name(prefix: str, seq: int) -> str:
    return f"{prefix}.{seq}.incr.aof"


def _line(name: str, seq: int, kind: str) -> str:
    return f"file {name} seq {seq} type {kind}\n"


def parse(text: bytes, name: str, prefix: str) -> Manifest:
    """The manifest that `text`, the content of the file `name`, is. Raises LogDamaged, naming the line."""
    lines = text.decode("utf-8", "surrogateescape").split("\n")
    if lines.pop():
        raise _damaged(name, len(lines) + 1, "it has no end")
    manifest = Manifest(prefix)
    for number, line in enumerate(lines, 1):
        try:
            manifest = _with_line(manifest, line)
        except ValueError as error:
            raise _damaged(name, number, str(error)) from None
    if not manifest.incrs:
        raise _damaged(name, len(lines) + 1, "it names no incr file")
    return manifest


def _with_line(manifest: Manifest, line: str) -> Manifest:
    match = _LINE.fullmatch(line)
    if match is None:
        raise ValueError(f"{line!r} is not `file NAME seq N type b|i`")
    name, seq, kind = match[1], int(match[2]), match[3]
    if kind == "h":
        raise ValueError("a history file (type h) is nothing that recalld writes")
    expected = base_name(manifest.prefix, seq) if kind == "b" else incr_name(manifest.prefix, seq)
    if name != expected:
        raise ValueError(f"the file of this number and type is called {expected!r}, not {name!r}")
    if kind == "b":
        if manifest.base is not None or manifest.incrs:
            raise ValueError("a second base, or one behind incr files")
        return replace(manifest, base=seq)
    if manifest.incrs and seq <= manifest.incrs[-1]:
        raise ValueError("the numbers of the incr files do not rise")
    return manifest.with_incr(seq)


def _damaged(name: str, line: int, why: str) -> LogDamaged:
    return LogDamaged(f"{name} is damaged in line {line}: {why}. Nothing was changed. Restore it from a backup.")


def write(files: Files, folder: str, manifest: Manifest) -> None:
    """Make `manifest` the one that counts. OSError: the old one counts, or, from the last fsync, either."""
    path = os.path.join(folder, manifest_name(manifest.prefix))
    temp = os.path.join(folder, TEMP + manifest_name(manifest.prefix))
    file = files.create(temp)
    try:
        file.write(manifest.format())
        file.sync()
    finally:
        file.close()
    files.rename(temp, path)
    files.sync_dir(folder)


# -- at start


@dataclass(slots=True, frozen=True)
class Survey:
    """What there is to load. Paths are whole ones.

    fresh     nothing: begin with an incr file and a manifest
    format 1  the one file `old`, which is set aside once a manifest is durable
    parts     the files of `manifest`, all there; `old` may still wait to be set aside
    """

    kind: Literal["fresh", "format 1", "parts"]
    manifest: Manifest
    old: str | None = None
    leftovers: list[str] = field(default_factory=list)
    """Remove these once the state is loaded; never a name that beginning anew gives a file."""


def survey(files: Files, directory: str, folder: str, prefix: str) -> Survey:
    """Look at the log in `folder`, and for one of format 1 in `directory` (the setting `dir`), changing nothing.

    Raises LogDamaged if a part of it is missing.
    """
    path = os.path.join(folder, manifest_name(prefix))
    old: str | None = os.path.join(directory, prefix)
    if old == folder or not files.exists(str(old)):
        old = None
    if files.exists(path):
        manifest = parse(files.read(path)[:], path, prefix)
        for name in manifest.names:
            if not files.exists(os.path.join(folder, name)):
                raise LogDamaged(
                    f"{os.path.join(folder, name)} is missing, which {path} names. Nothing was changed. Restore it"
                    " from a backup."
                )
        leftovers, strays = unnamed(files, folder, manifest)
        if strays:
            raise LogDamaged(
                f"{path} does not name {', '.join(strays)} beside it, so it is not the manifest of these files. Nothing"
                " was changed. Restore the manifest from a backup, or move these files away to do without them."
            )
        return Survey("parts", manifest, old, leftovers)
    for name in log_files(files, folder, prefix):
        # Without a manifest a crash leaves no more than what is written before the first one. The next try writes it
        # again, under the same names; so it is no leftover.
        part = os.path.join(folder, name)
        is_empty = _seq(name, prefix, "incr.aof") is not None and files.size(part) <= EMPTY_BYTES
        if not is_empty and not (old and _seq(name, prefix, "base.rcl")):
            raise LogDamaged(
                f"{path} is missing, though {name} is there. Nothing was changed. Restore the manifest from a backup,"
                " or, to begin with nothing, move the folder away. (Was appendfilename another one?)"
            )
    leftovers = [os.path.join(folder, name) for name in files.listdir(folder) if _is_temp(name, prefix)]
    return Survey("format 1" if old else "fresh", Manifest(prefix), old, leftovers)


def log_files(files: Files, folder: str, prefix: str = "") -> list[str]:
    """The names in the folder that a log of any prefix, Redis's included, would have."""
    return [
        name
        for name in files.listdir(folder)
        if not _is_temp(name, prefix) and (name.endswith(_SUFFIX) or _PART.fullmatch(name))
    ]


def log_folders(files: Files, directory: str) -> list[str]:
    """The folders in `directory` that hold base or incr files, recalld's or Redis's."""
    return [folder for name in files.listdir(directory) if _has_parts(files, folder := os.path.join(directory, name))]


def _has_parts(files: Files, folder: str) -> bool:
    try:
        return any(_PART.fullmatch(name) for name in files.listdir(folder))
    except OSError:
        return False  # a file, or a folder that may not be read


def unnamed(files: Files, folder: str, manifest: Manifest) -> tuple[list[str], list[str]]:
    """Beside the files of the manifest: paths that a crash may leave, and names of incr files that it cannot."""
    leftovers: list[str] = []
    strays: list[str] = []
    for name in files.listdir(folder):
        path = os.path.join(folder, name)
        seq = _seq(name, manifest.prefix, "incr.aof")
        if name in manifest.names or name == manifest_name(manifest.prefix):
            continue
        if seq is not None and seq > manifest.incrs[0] and files.size(path) > EMPTY_BYTES:
            strays.append(name)
        elif seq is not None or _is_temp(name, manifest.prefix) or _seq(name, manifest.prefix, "base.rcl") is not None:
            leftovers.append(path)
    return leftovers, strays


def _is_temp(name: str, prefix: str) -> bool:
    # The prefix may begin with temp-, too.
    return name.startswith(TEMP) and not name.startswith(prefix + ".")


def _seq(name: str, prefix: str, suffix: str) -> int | None:
    match = re.fullmatch(rf"{re.escape(prefix)}\.([1-9][0-9]{{0,17}})\.{re.escape(suffix)}", name)
    return int(match[1]) if match else None
