"""Who may import whom: read from the source, so that nothing has to be imported to know.

Rule 1: protocol and index never import each other, nor server.
Rule 2: protocol and index do no I/O: no event loop, no sockets, no signals, no processes.
Rule 3: index is pure: no clock, no chance, no files, no environment. `now` and ids are arguments.
Rule 4: protocol needs nothing but the standard library and hiredis.
Rule 5: client (the folder protocol/client) is a library of its own: redis-py, numpy, and nothing of the other folders.
Rule 6: inside the product imports are relative; tests and bench say `recalld.index`, never `index`, or Python
        would load the same module twice.
"""

from __future__ import annotations

import ast
import builtins
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("server", "protocol", "client", "index", "conf")
#: Folders that stand elsewhere than their name says.
PLACES = {"client": "protocol/client"}

# A name forbids itself and all below it.
IO = {"asyncio", "multiprocessing", "select", "selectors", "signal", "socket", "socketserver", "ssl", "subprocess"}
CLOCKS = {"time", "datetime.date.today"} | {f"datetime.datetime.{name}" for name in ("now", "today", "utcnow")}
CHANCE = {"random", "secrets", "uuid", "numpy.random"}
FILES = {"glob", "os", "pathlib", "shutil", "tempfile", "open"}
FILES |= {f"numpy.{name}" for name in ("fromfile", "load", "memmap", "save", "savez", "savez_compressed")}
# An import by computed name would pass every rule here unseen.
HIDDEN = {"importlib", "__import__"}
# By its name, and as the folder that it is.
CLIENT = {"recalld.client", "recalld.protocol.client"}

FORBIDDEN = {
    "protocol": {*CLIENT, "recalld.index", "recalld.server", "uvloop"} | IO | HIDDEN,
    "client": {"recalld.index", "recalld.protocol", "recalld.server", "uvloop"} | CLOCKS | CHANCE | FILES | HIDDEN,
    "index": {*CLIENT, "recalld.protocol", "recalld.server", "uvloop"} | IO | CLOCKS | CHANCE | FILES | HIDDEN,
    "server": set[str](),
    "conf": {*CLIENT, "recalld.index", "recalld.protocol", "recalld.server"},
}
#: All that these may import beside the standard library.
NEEDS = {"protocol": {"hiredis"}, "client": {"numpy", "redis"}}


def used_names(tree: ast.Module, package: str) -> Iterator[tuple[int, str]]:
    """Yield (line, full dotted name) of everything a module of `package` imports or reaches through an import.

    Relative imports are resolved (`from ..index import bm25` is recalld.index.bm25), local names too: after
    `import numpy as np`, `np.random.rand` is numpy.random.rand. Of names that were not imported only builtins count
    (`open`): a parameter may well be called `time`.
    """
    local: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
                local[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: 1 - node.level or None]
                base = ".".join([*above, base] if base else above)
            for alias in node.names:
                yield node.lineno, f"{base}.{alias.name}"
                local[alias.asname or alias.name] = f"{base}.{alias.name}"
    for node in ast.walk(tree):
        parts: list[str] = []
        at = node
        while isinstance(at, ast.Attribute):
            parts.append(at.attr)
            at = at.value
        if isinstance(at, ast.Name) and (at.id in local or hasattr(builtins, at.id)):
            yield at.lineno, ".".join([local.get(at.id, at.id), *reversed(parts)])


def is_below(name: str, top: str) -> bool:
    return name == top or name.startswith(top + ".")


def breaches(source: str, folder: str) -> list[str]:
    """Name each line of a module in product folder `folder` that breaks a rule, as "line: why"."""
    tree = ast.parse(source)
    found = {
        f"{line}: {folder} uses {name}"
        for line, name in used_names(tree, f"recalld.{folder}")
        if any(is_below(name, top) for top in FORBIDDEN[folder])
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level > 2:
            found.add(f"{node.lineno}: a relative import that leaves recalld")
    for line, name in absolute_imports(tree):
        top = name.partition(".")[0]
        if top in (*PRODUCT, "recalld"):
            found.add(f"{line}: {name} is imported by its absolute name")
        elif folder in NEEDS and top not in sys.stdlib_module_names and top not in NEEDS[folder]:
            found.add(f"{line}: {folder} imports {name}")
    return sorted(found)


def absolute_imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""


def modules(*folders: str) -> list[str]:
    return sorted(path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py"))


def layer(module: str) -> str:
    """The product folder that a module belongs to."""
    for folder, place in PLACES.items():
        if module.startswith(place + "/"):
            return folder
    return module.partition("/")[0]


@pytest.mark.parametrize("module", modules(*(folder for folder in PRODUCT if folder not in PLACES)))
def test_module_keeps_its_layer(module: str) -> None:
    """No module of the product breaks a rule."""
    assert breaches((ROOT / module).read_text(encoding="utf-8"), layer(module)) == []


@pytest.mark.parametrize("module", [name for name in modules("tests", "bench") if "node_modules" not in name])
def test_outside_the_product_names_are_absolute(module: str) -> None:
    """Tests and benchmarks import recalld as installed, not the folders beside them."""
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    tops = {name.partition(".")[0] for _, name in absolute_imports(tree)}
    assert tops & set(PRODUCT) == set()


@pytest.mark.parametrize(
    ("folder", "source", "why"),
    [
        ("protocol", "from ..index import bm25", "1: protocol uses recalld.index.bm25"),
        ("protocol", "from .. import server", "1: protocol uses recalld.server"),
        ("protocol", "def f():\n    import asyncio", "2: protocol uses asyncio"),
        ("protocol", "from socket import socket", "1: protocol uses socket.socket"),
        ("protocol", "import numpy", "1: protocol imports numpy"),
        ("protocol", "from .client import Memory", "1: protocol uses recalld.protocol.client.Memory"),
        ("client", "from ..protocol import reply", "1: client uses recalld.protocol.reply"),
        ("client", "import pydantic", "1: client imports pydantic"),
        ("index", "from ..protocol.reply import Push", "1: index uses recalld.protocol.reply.Push"),
        ("index", "from ..server import aof as log", "1: index uses recalld.server.aof"),
        ("index", "import os.path", "1: index uses os.path"),
        ("index", "from time import monotonic as clock", "1: index uses time.monotonic"),
        ("index", "import datetime as dt\ndt.datetime.now()", "2: index uses datetime.datetime.now"),
        ("index", "from datetime import datetime\ndatetime.now()", "2: index uses datetime.datetime.now"),
        ("index", "import numpy as np\nnp.random.rand()", "2: index uses numpy.random.rand"),
        ("index", "from numpy import random", "1: index uses numpy.random"),
        ("index", "open('x')", "1: index uses open"),
        ("index", "from importlib import import_module", "1: index uses importlib.import_module"),
        ("index", "from ... import x", "1: a relative import that leaves recalld"),
        ("server", "from recalld.index import bm25", "1: recalld.index is imported by its absolute name"),
        ("server", "import index.bm25", "1: index.bm25 is imported by its absolute name"),
        ("conf", "from ..server import config", "1: conf uses recalld.server.config"),
    ],
)
def test_breach_is_found(folder: str, source: str, why: str) -> None:
    """The rules above would see each of these."""
    assert why in breaches(source, folder)


@pytest.mark.parametrize(
    ("folder", "source"),
    [
        ("protocol", "import hiredis, struct\nfrom .errors import ProtocolError\nfrom . import reply"),
        ("client", "import asyncio\nimport numpy as np\nimport redis.asyncio\nfrom .words import Text"),
        ("index", "import datetime as dt\ndt.datetime.fromtimestamp(0, dt.UTC)"),
        ("index", "import numpy as np\nfrom pyroaring import BitMap\nfrom .columns import Columns\nnp.exp2(1.0)"),
        ("index", "class Segment:\n    def open(self) -> None: ...\nSegment().open()"),
        ("index", "def mask(time: float, os: Columns) -> bool:\n    return os.now < time"),
        ("server", "import asyncio, os, time\nfrom ..index import fusion\nfrom ..protocol.reply import Push"),
    ],
)
def test_what_is_allowed_passes(folder: str, source: str) -> None:
    """Nor do the rules see breaches where there are none."""
    assert breaches(source, folder) == []
