"""docs/client.md: its examples print what it says, and its table names every method."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from harness import Running
from recalld.client import Memory

DOC = (Path(__file__).parent.parent / "docs" / "client.md").read_text(encoding="utf-8")
SEPARATOR = "-- the next example --"


def test_the_examples_print_what_the_page_says() -> None:
    """All blocks are one program; behind each stands what it prints."""
    steps = re.findall(r"```python\n(.*?)\n```\n\n```text\n(.*?)\n```", DOC, re.S)
    assert len(steps) == DOC.count("```python") == DOC.count("```text")
    with Running(embedder_timeout_ms="60000") as server:  # a model may take its time to load
        program = f"\nprint({SEPARATOR!r})\n".join(code for code, _ in steps).replace("7171", str(server.port))
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout.rstrip("\n").split(f"\n{SEPARATOR}\n") == [printed for _, printed in steps]


def test_the_table_names_every_method() -> None:
    table = DOC.partition("## Methods")[2]
    named = {name for row in re.findall(r"^\| (`.*?) \|", table, re.M) for name in re.findall(r"`(\w+)`", row)}
    assert named == {name for name in vars(Memory) if not name.startswith("_")}
