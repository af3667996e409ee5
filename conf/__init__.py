"""The reference configuration, shipped with the package: every option at its default, explained."""

from pathlib import Path

PATH = Path(__file__).with_name("recalld.conf")
