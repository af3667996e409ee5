"""When a load of records has the compiled loops loaded."""

from __future__ import annotations

import pytest
from durable import eventually
from harness import Running
from recalld.server import workers


def test_many_records_written_together_load_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[None] = []
    monkeypatch.setattr(workers, "_load_kernels", lambda: loads.append(None))
    monkeypatch.setattr(workers, "_COMPILED_WRITES", 10)
    with Running() as server:
        wire = server.wire()
        wire("MEM.CREATE", "k", "MODE", "SEARCH")
        for _ in range(20):
            wire("MEM.ADD", "k", "TEXT", "one by one")
        wire("MEM.MADD", "k", 10, *["RECORD", "TEXT", "together"] * 10)
        assert not loads
        wire("MEM.MADD", "k", 2, *["RECORD", "TEXT", "more"] * 2)
        eventually(lambda: len(loads) == 1)
        wire("MEM.MADD", "k", 250, *["RECORD", "TEXT", "aside"] * 250)
        wire.pipeline(*[("MEM.ADD", "k", "TEXT", "in one turn")] * 50)
        assert len(loads) == 1
