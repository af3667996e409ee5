"""`recalld export` and `recalld import`: memories as JSON lines, by a client of a running server.

portable_lines.py draws the file, portable_export.py and portable_import.py do the work; here is the command line.
"""

from __future__ import annotations

import argparse
import os
import stat
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from typing import IO, TextIO

from .link import DEFAULT_URL, Failed, Link
from .portable_export import Counts, export_lines
from .portable_import import Importer


class Progress:
    """A bar on a terminal, nothing elsewhere."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._active = stream.isatty()
        self._next = 0.0

    def show(self, fraction: float | None, what: str) -> None:
        """Draw the bar anew, ten times a second at most; `fraction` None where nobody knows."""
        if not self._active or (now := time.monotonic()) < self._next:
            return
        self._next = now + 0.1
        bar = "" if fraction is None else f"[{'#' * int(30 * fraction):<30}] {100 * fraction:3.0f} %  "
        shown = "".join(char if char.isprintable() else "?" for char in f"{bar}{what}")
        width = os.get_terminal_size(self._stream.fileno()).columns or 80
        self._stream.write(f"\r\x1b[K{shown[: width - 1]}")
        self._stream.flush()

    def clear(self) -> None:
        if self._active:
            self._stream.write("\r\x1b[K")
            self._stream.flush()


_EXPORT = """\
Write the memories of a running server to a file, as JSON lines. The server goes on; a record that is written meanwhile
is in the file or not, never in part. FILE appears when it is whole.
"""
_IMPORT = """\
Read such a file into a running server. A memory that is not there is made, with its settings, counter of ids, times,
deadline and entities. One that is there keeps those and takes the records: a record of the file replaces the stored
record with its id, unless that was updated later; a fact that another one there says already stays out. So importing
twice changes nothing, and an import that was cut off is begun again. Deadlines of records are kept to the second,
rounded up; what has expired is left out.
"""


def main(argv: Sequence[str]) -> int:
    """Run `export ..` or `import ..`; the exit code."""
    options = _parser().parse_args(argv)
    counts, progress = Counts(), Progress(sys.stderr)
    done = f"{options.command}ed"
    try:
        link = Link(options.url)
        try:
            if options.command == "export":
                with _output(options.file) as file:
                    for line in export_lines(link, options.key, counts, progress):
                        file.write(line)
            else:
                importer = Importer(link, replace=options.replace)
                try:
                    _import(importer, options.file, progress)
                finally:
                    counts = importer.counts
        finally:
            link.close()
    except (Failed, OSError, KeyboardInterrupt) as error:
        progress.clear()
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else error
        print(f"recalld {options.command}: {reason}", file=sys.stderr)
        if options.command == "import":
            print(f"imported before that: {counts}", file=sys.stderr)
        return 1
    progress.clear()
    print(f"{done}: {counts}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="recalld")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (("export", _EXPORT), ("import", _IMPORT)):
        also = "recalld export --car FILE [KEY ...] writes the texts as a CAR v1 archive." if name == "export" else None
        sub = commands.add_parser(name, description=text, epilog=also)
        sub.add_argument("file", metavar="FILE", help="- for standard " + ("output" if name == "export" else "input"))
        url_help = f"redis://[[user]:password@]host[:port] (default: {DEFAULT_URL})"
        sub.add_argument("--url", default=DEFAULT_URL, metavar="URL", help=url_help)
        if name == "export":
            sub.add_argument("--key", default="*", metavar="PATTERN", help="only keys that match, as KEYS has it")
        else:
            sub.add_argument(
                "--replace", action="store_true", help="a memory that is there is dropped and made as in the file"
            )
    return parser


@contextmanager
def _output(path: str) -> Iterator[IO[bytes]]:
    """The file to write. A regular one takes its name when it is whole, so that half a file replaces no good one."""
    if path == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if os.path.exists(path) and not stat.S_ISREG(os.stat(path).st_mode):
        with open(path, "wb") as device:
            yield device
        return
    part = f"{path}.part"
    try:
        # What memories hold is nobody else's to read.
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(part)
        raise


def _import(importer: Importer, path: str, progress: Progress) -> None:
    with nullcontext(sys.stdin.buffer) if path == "-" else open(path, "rb") as file:
        about = os.fstat(file.fileno())
        size = about.st_size if stat.S_ISREG(about.st_mode) else 0
        done = 0
        for line in file:
            importer.line(line)
            done += len(line)
            progress.show(min(1.0, done / size) if size else None, str(importer.counts))
        importer.finish()
