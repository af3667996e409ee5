"""The fuzz targets (tests/fuzz): every input that is kept, and a few seconds of new ones.

`make fuzz ARGS="command -max_total_time=600"` looks longer; what it finds is fixed, and its input kept in the corpus.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

FUZZ = Path(__file__).parent / "fuzz"

# In a process of its own: two targets do without checksums from their first input on.
REPLAY = """
import pathlib, targets
kept = pathlib.Path("corpus")
assert {path.name for path in kept.iterdir()} == set(targets.TARGETS)
for name in sorted(targets.TARGETS, key=lambda name: (name in ("aof_base", "restore"), name)):
    inputs = sorted((kept / name).iterdir())
    assert inputs, name
    for path in inputs:
        print(path, flush=True)
        targets.TARGETS[name](path.read_bytes())
"""


def test_what_was_found_stays_fixed() -> None:
    ran = subprocess.run([sys.executable, "-c", REPLAY], cwd=FUZZ, capture_output=True, text=True)
    assert ran.returncode == 0, "\n".join(ran.stdout.splitlines()[-1:] + ran.stderr.splitlines()[-12:])


@pytest.mark.skipif(find_spec("atheris") is None, reason="atheris is not installed (Linux, CPython up to 3.13)")
def test_new_inputs(tmp_path: Path) -> None:
    """A second for each target; the folder of a finding is in the message."""
    ran = subprocess.run(
        [sys.executable, str(FUZZ / "run.py"), "all", "-box=1", f"-artifact_prefix={tmp_path}/"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        errors="replace",
        text=True,
    )
    assert ran.returncode == 0, f"see {tmp_path}:\n" + "\n".join(ran.stdout.splitlines()[-40:])
