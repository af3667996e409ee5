"""ioredis and node-redis as npm has them: the scripts in tests/clients, each against an empty server.

The packages are looked for in $RECALLD_NODE_MODULES, tests/clients/node_modules and tests/node_modules. To get them:
`npm install --prefix tests/clients` (git-ignored).
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import PATIENCE_S, Running

HERE = Path(__file__).resolve().parent
NODE = shutil.which("node")


def _folder(package: str) -> Path | None:
    """The node_modules that has the package."""
    named = os.environ.get("RECALLD_NODE_MODULES")
    folders = [Path(named)] if named else [HERE / "clients/node_modules", HERE / "node_modules"]
    return next((folder for folder in folders if (folder / package / "package.json").exists()), None)


@pytest.mark.skipif(NODE is None, reason="needs node on PATH")
@pytest.mark.parametrize(("script", "package"), (("ioredis.mjs", "ioredis"), ("node-redis.mjs", "redis")))
def test_script(server: Running, script: str, package: str) -> None:
    folder = _folder(package)
    if folder is None:
        pytest.skip(f"npm's {package} is not installed: npm install --prefix tests/clients")
    command = [str(NODE), str(HERE / "clients" / script), str(server.port)]
    environ = os.environ | {"RECALLD_NODE_MODULES": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, env=environ)
    # The last line of stdout names the case.
    assert (done.returncode, done.stderr) == (0, ""), f"{script}:\n{done.stdout}\n{done.stderr}"
