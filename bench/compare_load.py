"""The load of compare.py: queries from pre-encoded commands, back to back, and what they cost on both ends.

One process, one thread, `connections` sockets. A reply is read to its end by hiredis and thrown away; only where the
client has work to do with it (fusing two rankings) is that done, since it is a part of the query. What the generator
itself costs stands beside each rate: `client_cpu_ms` per query, to be compared with 1000 / per_s.
"""

from __future__ import annotations

import os
import selectors
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.synchronize import Event
from typing import Any

from common import Link, Load, Running, encode, percentile

PING = encode("PING")
PING_PAUSE_S = 0.001  # a PING sent the moment the last one is answered would take a core from the server


@dataclass(frozen=True)
class Queries:
    """Requests of one kind, taken in turn. Each gets `replies` replies, which go to `finish` where there is one."""

    requests: Sequence[bytes]
    replies: int = 1
    finish: Callable[[Sequence[Any]], object] | None = None


def cpu_s(running: Running) -> float:
    """The processor time a server has used so far; 0 where there is no /proc."""
    try:
        with open(f"/proc/{running.process.pid if running.process else 0}/stat", "rb") as file:
            user, system = file.read().rpartition(b")")[2].split()[11:13]
    except OSError:
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def measure(running: Running, queries: Queries, connections: int, seconds: float) -> dict[str, float]:
    """Ask for so many seconds; each connection has one query under way all the time."""
    server, client = cpu_s(running), time.process_time()
    end = time.perf_counter() + seconds
    load = ask(running.port, queries, connections, lambda now: now < end)
    client, server = time.process_time() - client, cpu_s(running) - server
    return {
        "per_s": load.rate,
        "p50_ms": load.ms(50),
        "p99_ms": load.ms(99),
        "server_cpu_ms": server / load.requests * 1000,
        "client_cpu_ms": client / load.requests * 1000,
    }


def ask(port: int, queries: Queries, connections: int, more: Callable[[float], bool]) -> Load:
    """Send queries as long as `more(perf_counter())`, at least one per connection, and wait for all replies."""
    links = [Link(port) for _ in range(connections)]
    try:
        return _alone(links[0], queries, more) if connections == 1 else _together(links, queries, more)
    finally:
        for link in links:
            link.socket.close()


def _alone(link: Link, queries: Queries, more: Callable[[float], bool]) -> Load:
    load = Load()
    clock = time.perf_counter
    started = before = clock()
    while not load.requests or more(before):
        link.socket.sendall(queries.requests[load.requests % len(queries.requests)])
        replies = [link.read() for _ in range(queries.replies)]
        if queries.finish:
            queries.finish(replies)
        now = clock()
        load.latencies_s.append(now - before)
        load.requests += 1
        before = now
    load.elapsed_s = before - started
    return load


def _together(links: Sequence[Link], queries: Queries, more: Callable[[float], bool]) -> Load:
    load = Load()
    clock = time.perf_counter
    arrived: dict[Link, list[Any]] = {}
    sent_at: dict[Link, float] = {}
    sent = 0
    started = now = clock()
    with selectors.DefaultSelector() as selector:

        def send(link: Link) -> None:
            nonlocal sent
            arrived[link] = []
            sent_at[link] = clock()
            link.socket.sendall(queries.requests[sent % len(queries.requests)])
            sent += 1

        for link in links:
            selector.register(link.socket, selectors.EVENT_READ, link)
            send(link)
        while load.requests < sent:
            for key, _ in selector.select():
                link = key.data
                link.fill()
                replies = arrived[link]
                while len(replies) < queries.replies and (reply := link.poll()) is not False:
                    replies.append(reply)
                if len(replies) < queries.replies:
                    continue
                if queries.finish:
                    queries.finish(replies)
                now = clock()
                load.latencies_s.append(now - sent_at[link])
                load.requests += 1
                if more(now):
                    send(link)
    load.elapsed_s = now - started
    return load


def hammer(port: int, queries: Queries, connections: int, ready: Event, stop: Event, rate: Any) -> None:
    """Ask without a pause until told to stop: the body of a process of its own."""

    def more(now: float) -> bool:
        ready.set()
        return not stop.is_set()

    rate.value = ask(port, queries, connections, more).rate


def ping(port: int, seconds: float) -> dict[str, float]:
    """PING on one connection, a short pause between them."""
    took: list[float] = []
    with Link(port) as link:
        end = time.perf_counter() + seconds
        while (before := time.perf_counter()) < end or not took:
            link.call(PING)
            took.append(time.perf_counter() - before)
            time.sleep(PING_PAUSE_S)
    p50, p99, slowest = (percentile(took, percent) * 1000 for percent in (50, 99, 100))
    return {"pings": len(took), "p50_ms": p50, "p99_ms": p99, "max_ms": slowest}
