"""A soak: many clients, some of which are killed in the middle, a full mix of commands, rewrites meanwhile.

At its end no reply was wrong, memory is flat, and neither tasks nor file descriptors are left. A minute by
default, an hour with RECALLD_LONG=1 in the environment.

What a reply must be: each client has memories of its own (`own:<n>`), of which it knows every record, so each answer
about them is compared with what it wrote; of the shared memory `all` only what always holds is asked (each hit has the
word, ids are of the form that clients give, the scores descend).
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import threading
import time
from pathlib import Path
from typing import Any

from durable import eventually, on_loop
from harness import Running, Wire, WireError

CLIENTS = 200
LONG = os.environ.get("RECALLD_LONG") == "1"
SECONDS = 3600.0 if LONG else 60.0
WORDS = "ash beech cedar elm fir hazel larch maple oak pine rowan willow yew".split()


class Killed(Exception):
    """The client chose to die."""


class Soaker:
    """One client after another in a thread, each with a memory of its own and what it knows of that."""

    def __init__(self, server: Running, number: int, failures: list[str]) -> None:
        self.server = server
        self.rng = random.Random(number)
        self.key = f"own:{number}"
        self.channel = f"news:{number}"
        self.texts: dict[bytes, bytes] = {}
        self.facts: dict[bytes, bytes] = {}  # subject -> object
        self.unsure: set[bytes] = set()  # records of which a killed client does not know whether they are in
        self.next = 0
        self.steps = 0
        self.lives = 0
        self.failures = failures
        self.wire: Wire
        self.ear: Wire | None = None

    def connect(self) -> None:
        self.lives += 1
        self.wire = self.server.wire(self.rng.choice((2, 3)))
        if self.rng.random() < 0.2:
            self.ear = self.server.wire(3)
            self.ear("SUBSCRIBE", self.channel)

    def hang_up(self) -> None:
        self.wire.close()
        if self.ear is not None:
            self.ear.close()
            self.ear = None

    def begin(self) -> None:
        self.connect()
        self.wire("MEM.CREATE", self.key, "DIM", 4)

    def step(self) -> None:
        """One action, and sometimes death."""
        self.steps += 1
        writes = [self.add, self.add, self.change, self.remove, self.fact, self.transact, self.long, self.shared]
        writes.append(self.passing)
        reads = [self.look, self.search, self.list, self.recall, self.shared_query, self.publish]
        action = self.rng.choice(writes + reads)
        try:
            action()
        except Killed:
            self.hang_up()
            self.connect()
            self.settle()
        except (AssertionError, WireError, EOFError, OSError) as error:
            self.failures.append(f"{self.key} {action.__name__}: {error!r}")

    def text(self) -> bytes:
        return " ".join(self.rng.choices(WORDS, k=6)).encode() + b" own"

    def write(self, record_id: bytes, text: bytes | None, *words: Any) -> Any:
        """Send a write; one in a hundred clients is gone before its reply."""
        if self.rng.random() < 0.01:
            self.wire.send(*words)
            self.unsure.add(record_id)
            raise Killed
        reply = self.wire(*words)
        if text is None:
            self.texts.pop(record_id, None)
        else:
            self.texts[record_id] = text
        return reply

    def settle(self) -> None:
        """Find out what became of the writes without a reply: done or not, whole in either case."""
        if self.unsure:
            # A command of a connection that is gone is run before or not at all, but perhaps not yet.
            on_loop(self.server, lambda: None)
        for record_id in self.unsure:
            found = self.wire("MEM.GET", self.key, record_id)
            if found is None:
                self.texts.pop(record_id, None)
            else:
                self.texts[record_id] = fields(found)[b"text"]
        self.unsure.clear()

    # -- actions

    def add(self) -> None:
        self.next += 1
        record_id, text = b"r%d" % self.next, self.text()
        vector = [self.rng.choice((-1, 1)) for _ in range(4)]
        words = ["MEM.ADD", self.key, "ID", record_id, "TEXT", text, "FVEC", 4, *vector, "META", "n", self.next]
        assert self.write(record_id, text, *words) == record_id
        if len(self.texts) > 60:
            self.forget()

    def forget(self) -> None:
        gone, ids = self.wire("MEM.FORGET", self.key, "FILTER", "n", "GT", 0)
        assert gone == len(ids) and set(ids) == set(self.texts), "forgot others than there were"
        self.texts.clear()

    def change(self) -> None:
        if self.texts:
            record_id, text = self.rng.choice(sorted(self.texts)), self.text()
            self.write(record_id, text, "MEM.ADD", self.key, "ID", record_id, "TEXT", text, "META", "n", 1)

    def remove(self) -> None:
        if self.texts:
            record_id = self.rng.choice(sorted(self.texts))
            assert self.write(record_id, None, "MEM.DEL", self.key, record_id) == 1

    def look(self) -> None:
        ids = sorted(self.texts)[:10]
        replies = self.wire("MEM.MGET", self.key, *ids, "none")
        assert [fields(each)[b"text"] for each in replies[:-1]] == [self.texts[each] for each in ids]
        assert replies[-1] is None

    def search(self) -> None:
        word = self.rng.choice(WORDS).encode()
        hits = self.wire("MEM.SEARCH", self.key, word, "TOPK", 1000)
        found = {hit_id(hit): hit_text(hit) for hit in hits}
        expected = {each: text for each, text in self.texts.items() if word in text.split()}
        expected |= {b"f-" + each: each + b" likes " + word for each, thing in self.facts.items() if thing == word}
        assert found == expected, f"{word!r}: {sorted(found)} for {sorted(expected)}"

    def list(self) -> None:
        page = self.wire("MEM.LIST", self.key, "LIMIT", 1000, "FILTER", "n", "GT", 0)
        assert {fields(each)[b"id"]: fields(each)[b"text"] for each in page} == self.texts

    def fact(self) -> None:
        subject, thing = b"s%d" % self.rng.randrange(5), self.rng.choice(WORDS).encode()
        self.facts[subject] = thing
        self.wire("MEM.FACT", self.key, subject, "likes", thing, "ID", b"f-" + subject)
        found = self.wire("MEM.GET", self.key, b"f-" + subject)
        assert fields(found)[b"text"] == subject + b" likes " + thing

    def recall(self) -> None:
        self.wire("MEM.RECALL", self.key, "TEXT", self.rng.choice(WORDS))

    def publish(self) -> None:
        word = b"%d" % self.steps
        heard = self.wire("PUBLISH", self.channel, word)
        assert heard == (self.ear is not None)
        if self.ear is not None:
            assert self.ear.read() == [b"message", self.channel.encode(), word]

    def transact(self) -> None:
        self.next += 1
        record_id, text = b"r%d" % self.next, self.text()
        replies = self.wire.pipeline(
            ["MULTI"],
            ["MEM.ADD", self.key, "ID", record_id, "TEXT", text, "META", "n", 1],
            ["MEM.SEARCH", self.key, "own", "TOPK", 1000, "NOTEXT"],
            ["MEM.GET", self.key, record_id],
            ["EXEC"],
        )
        self.texts[record_id] = text
        done, hits, found = replies[-1]
        assert done == record_id and fields(found)[b"text"] == text
        assert {hit_id(hit) for hit in hits} == set(self.texts)

    def long(self) -> None:
        """A transaction of some ten milliseconds, which goes on in turns: one moment all the same."""
        self.next += 1
        record_id, texts = b"r%d" % self.next, [self.text() for _ in range(100)]
        add = ["MEM.ADD", self.key, "ID", record_id, "META", "n", 1, "TEXT"]
        other = ["MEM.ADD", "all", "ID", f"x{self.rng.randrange(3000)}", "FVEC", 4, 1, 2, 3, 4, "TEXT"]
        replies = self.wire.pipeline(
            ["MULTI"],
            *([*(add if number % 10 else other), text] for number, text in enumerate(texts)),
            ["MEM.GET", self.key, record_id],
            ["MEM.SEARCH", self.key, "own", "TOPK", 1000, "NOTEXT"],
            ["EXEC"],
        )
        self.texts[record_id] = texts[-1]
        *done, found, hits = replies[-1]
        assert len(done) == 100 and fields(found)[b"text"] == texts[-1]
        assert {hit_id(hit) for hit in hits} == set(self.texts)

    def shared(self) -> None:
        record_id = f"x{self.rng.randrange(3000)}"
        if self.rng.random() < 0.3:
            self.wire("MEM.DEL", "all", record_id)
        else:
            self.wire("MEM.ADD", "all", "ID", record_id, "TEXT", self.text(), "FVEC", 4, 1, 2, 3, self.steps % 7)

    def shared_query(self) -> None:
        word = self.rng.choice(WORDS).encode()
        hits = self.wire("MEM.QUERY", "all", "TEXT", word, "FVEC", 4, 1, 2, 3, 4, "TOPK", 20)
        for hit in self.wire("MEM.SEARCH", "all", word, "TOPK", 20) + hits:
            assert re.fullmatch(rb"x\d+", hit_id(hit)) and hit_text(hit).endswith(b" own"), hit

    def passing(self) -> None:
        """A memory that expires by itself, and one that is copied and renamed."""
        key, moved = f"passing:{self.key}", f"moved:{self.key}"
        self.wire("DEL", key, moved)
        assert self.wire("COPY", self.key, key) == 1
        assert self.wire("RENAME", key, moved) == "OK"
        assert self.wire("EXISTS", key, moved) == 1
        hits = self.wire("MEM.SEARCH", moved, "own", "TOPK", 1000, "NOTEXT")
        assert {hit_id(hit) for hit in hits} == set(self.texts)
        self.wire("PEXPIRE", moved, self.rng.choice((1, 100_000)))


def fields(reply: Any) -> dict[bytes, Any]:
    if isinstance(reply, dict):
        return reply
    return dict(zip(reply[::2], reply[1::2], strict=True))


def hit_id(hit: Any) -> bytes:
    return bytes(hit[b"id"] if isinstance(hit, dict) else hit[0])


def hit_text(hit: Any) -> bytes:
    return bytes(hit[b"text"] if isinstance(hit, dict) else hit[1])


def run_all(soakers: list[Soaker], until: float) -> None:
    """Let sixteen threads take turns with the clients, so that all are connected and few run at a time."""
    idle = list(soakers)
    lock = threading.Lock()

    def work() -> None:
        while time.monotonic() < until:
            with lock:
                soaker = idle.pop(0)
            for _ in range(5):
                soaker.step()
            with lock:
                idle.append(soaker)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE") / (1 << 20)


def test_soak(tmp_path: Path) -> None:
    failures: list[str] = []
    with Running(dir=tmp_path, appendfsync="everysec") as server:
        admin = server.wire()
        admin("MEM.CREATE", "all", "DIM", 4)

        def tasks() -> int:
            return len(asyncio.all_tasks(server._loop))

        def descriptors() -> int:
            return len(os.listdir("/proc/self/fd"))

        soakers = [Soaker(server, number, failures) for number in range(CLIENTS)]
        for soaker in soakers[:16]:
            soaker.begin()
        run_all(soakers[:16], time.monotonic() + 0.5)  # every thread and cache there is
        for soaker in soakers[:16]:
            soaker.hang_up()
        eventually(lambda: server.server.clients.keys() <= {admin("CLIENT", "ID")})
        tasks_before, descriptors_before = on_loop(server, tasks), descriptors()

        for soaker in soakers[:16]:
            soaker.connect()
        for soaker in soakers[16:]:
            soaker.begin()
        end = time.monotonic() + SECONDS
        sizes = []
        parts = 5
        for part in range(parts):
            run_all(soakers, end - SECONDS * (parts - 1 - part) / parts)
            admin("BGREWRITEAOF")
            sizes.append(resident_mb())
            assert not failures, failures[:5]
        assert not failures, failures[:5]
        assert sum(soaker.steps for soaker in soakers) > CLIENTS
        assert sum(soaker.lives for soaker in soakers) > CLIENTS  # some were killed
        # The first part fills what is to be filled; from then on there are as many records, keys and clients as ever.
        assert sizes[-1] < sizes[1] * 1.25 + 20, sizes

        for soaker in soakers:
            soaker.settle()
            soaker.look()
            soaker.search()
            soaker.hang_up()
        assert not failures, failures[:5]
        eventually(lambda: len(server.server.clients) == 1)
        eventually(lambda: not server.server.rewriter.running)
        eventually(lambda: on_loop(server, tasks) <= tasks_before)
        eventually(lambda: descriptors() <= descriptors_before)
        admin.close()
        texts = {soaker.key: dict(soaker.texts) for soaker in soakers}
        server.restart()
        wire = server.wire()
        for soaker in soakers:  # what was answered is kept
            soaker.wire = wire
            soaker.look()
            assert soaker.texts == texts[soaker.key]
            soaker.search()
        assert not failures, failures[:5]
