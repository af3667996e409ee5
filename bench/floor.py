"""How many durable writes per second a server in Python on uvloop could take at most: one that does nothing with them.

    python bench/floor.py [--connections 1,16,64] [--rounds 3] [--seconds 2] [--dir DIR]

Three servers take turns: redis-server with appendfsync always, `floor`, and recalld with appendfsync always. `floor`
parses a command, appends the bytes that came to a file, syncs it once for all that came in a turn of the loop, and
replies with eight bytes: no lookup, no words, no record, no checksum. What is between it and recalld is recalld's own
work; what is between it and redis-server no work on recalld makes up for. The commands are those of durable.py, texts.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Sequence
from typing import cast

import uvloop
from common import Corpus, Running, free_port, machine, median, print_machine, print_records, recalld, redis_server
from durable import CREATE, _call, _write, in_turn, write_commands
from recalld.protocol.parser import Parser

POLICY = ("--appendonly", "yes", "--appendfsync", "always")


class Floor(asyncio.Protocol):
    """One connection; the class holds what all have in common."""

    loop: asyncio.AbstractEventLoop
    file = -1
    came: list[tuple[asyncio.Transport, bytes]] = []  # noqa: RUF012 - in this turn of the loop
    count = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.parser = Parser()

    def data_received(self, data: bytes) -> None:
        self.parser.feed(data)
        while args := self.parser.next_command():
            if args[0] == b"PING":
                self.transport.write(b"+PONG\r\n")
            elif args[0] == b"MEM.CARD":
                self.transport.write(b":%d\r\n" % Floor.count)
            else:
                if not Floor.came:
                    Floor.loop.call_soon(Floor.end_of_turn)
                Floor.came.append((self.transport, data))

    @classmethod
    def end_of_turn(cls) -> None:
        came, cls.came = cls.came, []
        os.write(cls.file, b"".join([data for _, data in came]))
        os.fdatasync(cls.file)
        cls.count += len(came)
        for transport, _ in came:
            transport.write(b"$8\r\n00000000\r\n")


async def serve(port: int, path: str) -> None:
    Floor.loop = asyncio.get_running_loop()
    Floor.file = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    await Floor.loop.create_server(Floor, "127.0.0.1", port)
    ended = asyncio.Event()
    Floor.loop.add_signal_handler(signal.SIGTERM, ended.set)
    await ended.wait()


def floor(under: str | None) -> Running:
    port = free_port()
    argv = [sys.executable, __file__, "--serve", str(port), "{dir}/log.aof"]
    return Running(argv, name="recalld", port=port, under=under)  # asked for its records as recalld is


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", nargs=2, metavar=("PORT", "FILE"), help=argparse.SUPPRESS)
    parser.add_argument("--connections", default="1,16,64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--dir", help="where the files are written")
    options = parser.parse_args(words)
    if options.serve:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve(int(options.serve[0]), options.serve[1]))
        return
    print_machine(machine())
    commands = write_commands(Corpus(1))
    rows = []
    for connections in map(int, options.connections.split(",")):
        rates: dict[str, list[float]] = {"redis-server": [], "floor": [], "recalld": []}
        for name in in_turn(list(rates), options.rounds):
            theirs = redis_server(*POLICY, under=options.dir) if name == "redis-server" else None
            server = theirs or (floor(options.dir) if name == "floor" else recalld(*POLICY, under=options.dir))
            with server:
                if name == "recalld":
                    _call(server, CREATE["text"])
                rates[name].append(_write(server, commands["text", server.name], connections, options.seconds)["per_s"])
        redis = median(rates["redis-server"])
        for name, seen in rates.items():
            row = {"connections": connections, "server": name, "per_s": median(seen)}
            rows.append(row | {"ratio": median(seen) / redis})
    print_records(f"durable writes, texts, {options.seconds:g} s a point, medians of {options.rounds} rounds", rows)


if __name__ == "__main__":
    main()
