"""Fixtures: one server for most tests, emptied and set back after each, and clients in every reply format."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis
import pytest
import redis
from harness import FORMS, JUNE, Agent, Clock, Running, Wire
from inference_stand_in import StandIn, says
from recalld.index import kernels
from recalld.server import compiled_loops
from recalld.server.config import OPTIONS

#: RECALLD_LONG=1: as long as it takes, with other examples each time. Without it the same ones, in CI's time.
LONG = bool(os.environ.get("RECALLD_LONG"))

_CALM: dict[str, Any] = {"deadline": None, "suppress_health_check": list(hypothesis.HealthCheck)}
hypothesis.settings.register_profile("ci", derandomize=True, database=None, **_CALM)
hypothesis.settings.register_profile("long", max_examples=1_000, print_blob=True, **_CALM)
hypothesis.settings.load_profile("long" if LONG else "ci")


#: Not only once a large memory is asked: what a test sees must not depend on which ran before.
try:
    compiled_loops.load()
except compiled_loops.NotCompiled as reason:
    NOT_COMPILED = str(reason)
else:
    NOT_COMPILED = ""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The soak first: on several cores its minute is then beside the others, not behind them."""
    items.sort(key=lambda item: item.path.name != "test_soak.py")


@pytest.fixture(params=["numpy", "compiled"])
def loops(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The test runs twice: on numpy's loops and on compiled ones."""
    if request.param == "numpy":
        monkeypatch.setattr(kernels, "loops", None)
    elif NOT_COMPILED:
        pytest.skip(NOT_COMPILED)
    return str(request.param)


@pytest.fixture(scope="session")
def _shared() -> Iterator[tuple[Running, dict[bytes, bytes]]]:
    with Running(clock=Clock()) as server:
        settings = server.wire()("CONFIG", "GET", "mem-*")
        yield server, dict(zip(settings[::2], settings[1::2], strict=True))


@pytest.fixture
def server(_shared: tuple[Running, dict[bytes, bytes]]) -> Iterator[Running]:
    """An empty server at its defaults that keeps nothing, its clock at JUNE."""
    running, settings = _shared
    assert isinstance(running.clock, Clock)
    running.clock.now_ms = JUNE
    yield running
    wire = running.wire()
    wire("FLUSHALL")
    wire("CONFIG", "SET", *(word for pair in settings.items() if OPTIONS[pair[0].decode()].mutable for word in pair))
    wire.close()


@pytest.fixture
def clock(server: Running) -> Clock:
    """The server's clock."""
    assert isinstance(server.clock, Clock)
    return server.clock


@pytest.fixture
def r2(server: Running) -> Iterator[redis.Redis]:
    """redis-py on RESP2."""
    with server.client(2) as client:
        yield client


@pytest.fixture
def r3(server: Running) -> Iterator[redis.Redis]:
    """redis-py on RESP3."""
    with server.client(3) as client:
        yield client


@pytest.fixture
def wire(server: Running) -> Iterator[Wire]:
    """A bare RESP2 connection."""
    wire = server.wire(2)
    yield wire
    wire.close()


@pytest.fixture
def wire3(server: Running) -> Iterator[Wire]:
    """A bare RESP3 connection."""
    wire = server.wire(3)
    yield wire
    wire.close()


@pytest.fixture(params=FORMS)
def agent(server: Running, request: pytest.FixtureRequest) -> Iterator[Agent]:
    """A client in each of the reply formats."""
    agent = server.agent(request.param)
    yield agent
    agent.wire.close()


@pytest.fixture
def running() -> Iterator[Callable[..., Running]]:
    """Start servers of a test's own, in this process; all are stopped at its end."""
    started: list[Running] = []

    def start(**options: Any) -> Running:
        server = Running(**options)
        server.start()
        started.append(server)
        return server

    yield start
    for server in started:
        server.stop()


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """A chat server that finds no facts; it is tried again at once, and without a key of the machine's."""
    from recalld.server import inference_http

    monkeypatch.setattr(inference_http, "_FIRST_PAUSE_S", 0.0)
    for name in ("INFERENCE_API_KEY", "OPENAI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    with StandIn() as stand_in:
        stand_in.will(says({"facts": []}))
        yield stand_in


@pytest.fixture
def asking(running: Callable[..., Running], model: StandIn) -> Callable[..., Running]:
    """Start servers that ask `model`, their clocks at JUNE."""

    def start(**options: Any) -> Running:
        settings = {"clock": Clock(), "inference_url": model.url, "inference_model": "tiny"}
        return running(**(settings | options))

    return start
