"""The README's examples are run as they stand; only times and what depends on them may differ."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import Running

README = (Path(__file__).parent.parent / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)\n```", README, re.S)


def steady(text: str) -> list[str]:
    """Lines with times blanked and other numbers to three places."""

    def number(match: re.Match[str]) -> str:
        value = float(match[0])
        return "TIME" if value > 1e9 or 3_590_000 < value <= 3_600_000 else f"{value:.3f}"

    return [re.sub(r"(?<![\w-])-?\d+(?:\.\d+)?(?!\w)", number, line.rstrip()) for line in text.splitlines()]


@pytest.mark.skipif(shutil.which("redis-cli") is None, reason="redis-cli is not installed")
def test_the_tour_with_redis_cli():
    """Every command of the tour prints what the README says."""
    (tour,) = blocks("console")
    with Running() as server:
        for step in tour.split("$ redis-cli -3 -p 7171 ")[1:]:
            words, _, expected = step.partition("\n")
            command = ["redis-cli", "--no-raw", "-3", "-p", str(server.port), *shlex.split(words)]
            printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
            assert steady(printed.rstrip()) == steady(expected.rstrip()), words


@pytest.mark.parametrize("number", range(len(blocks("python"))))
def test_the_programs(number):
    """Each program prints what the README says behind it."""
    program = blocks("python")[number]
    expected = README.split(program)[1].split("prints\n\n```\n")[1].split("\n```")[0]
    # A busy machine may take its time to load the model.
    with Running(embedder_timeout_ms="60000") as server:
        program = re.sub(r"(?<=port=)7171|(?<=localhost:)7171", str(server.port), program)
        ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == expected
