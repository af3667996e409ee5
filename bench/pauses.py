"""The longest PING of another connection while one command works on much.

Each case prepares its keys, lets the server come to rest, and runs its commands on one connection while another process
sends PINGs, half a millisecond apart, until some time after the last reply: what is freed or expires later counts too.
A machine that is busy with other work adds its own pauses: the row `nothing` says how long those are.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import hiredis
from common import (
    DIM,
    Corpus,
    Link,
    encode,
    machine,
    median,
    print_machine,
    print_records,
    recalld,
    write_json,
)

AFTER_S = 0.4  # how long PINGs go on after the last reply
BETWEEN_S = 0.0005
REST_S = 0.3
MADD_RECORDS = 200
TREE = 10_000  # keys below `tree`
WORDS = 32_767  # of one command, beside its name
DUE_S = 6.0  # how long it takes to make the keys that expire together

Word = bytes | str | int | float
Step = Callable[[], object]


@dataclass
class Case:
    name: str
    prepare: Step
    run: Step
    after_s: float = AFTER_S


def ping(port: int, worst: Any, going: Any) -> None:
    """Send PINGs for ever, a process of its own; `worst` is the longest so far, in seconds."""
    command, clock = encode("PING"), time.perf_counter
    with Link(port) as link:
        while going.value:
            before = clock()
            link.call(command)
            worst.value = max(worst.value, clock() - before)
            time.sleep(BETWEEN_S)


class Bench:
    """The large memories that the cases copy, and the cases."""

    def __init__(self, link: Link, records: int, facts: int, keys: int) -> None:
        self.link = link
        self.records = records
        self.facts = facts
        self.keys = keys
        corpus = Corpus()
        self.texts, self.vectors = corpus.texts(records), corpus.vectors(records)
        self.due_ms = 0

    def call(self, *words: Word) -> Any:
        return self.link.call(encode(*words))

    def does(self, *words: Word) -> Step:
        """A step that sends this command, encoded beforehand."""
        command = encode(*words)
        return lambda: self.link.call(command)

    def send(self, commands: list[bytes], depth: int = 500) -> None:
        for start in range(0, len(commands), depth):
            part = commands[start : start + depth]
            self.link.socket.sendall(b"".join(part))
            for _ in part:
                self.link.read()

    # -- what there is

    def fill(self) -> None:
        """`notes`: texts, vectors, a field, two tags; `past`: short texts, with history; `facts`: half of them about
        the entity `other`; `small`: one record."""
        now = time.time_ns() // 1_000_000
        self.call("MEM.CREATE", "notes", "DIM", DIM)
        self.call("MEM.CREATE", "past", "MODE", "SEARCH", "HISTORY", "ALL")
        for key in ("notes", "past"):
            self.add(key, lambda i, key=key: self._record(key, i, now))  # type: ignore[misc]
        self.call("MEM.CREATE", "facts", "MODE", "SEARCH")
        for name in ("hub", "other"):
            self.call("MEM.ENTITY", "facts", name, "TYPE", "ORG")
        commands = []
        for i in range(self.facts):
            commands.append(encode("MEM.FACT", "facts", f"person {i}", "works at", "other", "TYPE", "ORG"))
            commands.append(encode("MEM.FACT", "facts", f"person {i}", "knows", f"person {i + 1}"))
        self.send(commands)
        self.call("MEM.CREATE", "small", "MODE", "SEARCH")
        self.call("MEM.ADD", "small", "TEXT", "hello")

    def add(self, key: str, record: Callable[[int], list[Word]]) -> None:
        commands = []
        for start in range(0, self.records, MADD_RECORDS):
            end = min(self.records, start + MADD_RECORDS)
            words = [word for i in range(start, end) for word in ("RECORD", *record(i))]
            commands.append(encode("MEM.MADD", key, end - start, *words))
        self.send(commands, 4)

    def _record(self, key: str, i: int, now: int) -> list[Word]:
        tags: list[Word] = ["TAGS", 2, "all", "even" if i % 2 == 0 else "odd"]
        if key == "past":
            return ["ID", f"r{i}", "TEXT", self.texts[i][:60], *tags]
        vector = self.vectors[i].tobytes()
        return ["ID", f"r{i}", "TEXT", self.texts[i], "VEC", vector, "AT", now - i * 1000, "META", "n", i % 1000, *tags]

    def make_keys(self, prefix: str, count: int) -> None:
        """So many memories of one record, unless they are there."""
        if self.call("EXISTS", f"{prefix}0"):
            return
        names = [f"{prefix}{i}" for i in range(count)]
        self.send([encode("MEM.CREATE", name, "MODE", "SEARCH") for name in names])
        self.send([encode("MEM.ADD", name, "TEXT", self.texts[i % self.records]) for i, name in enumerate(names)])

    def make_tree(self) -> None:
        self.make_keys("tree:", TREE)
        if not self.call("EXISTS", "tree"):
            self.call("MEM.CREATE", "tree", "MODE", "SEARCH")
        self.call("MEM.QUERY", "tree", "TEXT", "hello", "CASCADE", "DOWN")  # which indexes the paths

    def make_due_keys(self) -> None:
        self.make_keys("due:", self.keys)
        self.due_ms = time.time_ns() // 1_000_000 + int(DUE_S * 1000)
        self.send([encode("PEXPIREAT", f"due:{i}", self.due_ms) for i in range(self.keys)])

    def make_due_records(self) -> None:
        self.call("DEL", "due")
        self.call("MEM.CREATE", "due", "MODE", "SEARCH")
        self.due_ms = time.time_ns() // 1_000_000 + int(2 * DUE_S * 1000)

        def record(i: int) -> list[Word]:
            left_s = max(1, round((self.due_ms - time.time_ns() / 1e6) / 1000))
            return ["TEXT", self.texts[i][:60], "TTL", left_s]

        self.add("due", record)

    def wait_due(self) -> None:
        time.sleep(max(0.0, self.due_ms / 1000 - time.time()))

    def copied(self, source: str) -> Step:
        return self.does("COPY", source, "copy", "REPLACE")

    def own(self, source: str) -> Step:
        """Make `copy`, which has nothing in common with the source."""

        def restore() -> None:
            self.call("DEL", "copy")
            self.call("RESTORE", "copy", 0, self.call("DUMP", source))

        return restore

    # -- cases

    def cases(self) -> Iterator[Case]:
        yield Case("nothing", lambda: None, lambda: time.sleep(0.2))
        yield from self._memories()
        yield from self._changes()
        yield from self._facts()
        yield from self._payloads()
        yield from self._words()
        yield from self._keys()

    def _memories(self) -> Iterator[Case]:
        n, drop = self.records, self.does("DEL", "copy")
        yield Case(f"COPY, {n:,} records", drop, self.does("COPY", "notes", "copy"))
        yield Case("MEM.ADD to the copy", self.copied("notes"), self.adds_one)
        yield Case(f"DEL, {n:,} records", self.own("notes"), drop)
        yield Case(f"UNLINK, {n:,} records", self.own("notes"), self.does("UNLINK", "copy"))

        def small_too() -> None:
            self.own("notes")()
            self.call("COPY", "small", "tiny", "REPLACE")

        yield Case(f"RENAME over {n:,} records", small_too, self.does("RENAME", "tiny", "copy"))
        yield Case(f"a key of {n:,} records expires", self.own("notes"), self.does("PEXPIRE", "copy", 20))

        def due() -> None:
            self.wait_due()
            time.sleep(1.0)

        yield Case(f"{n:,} records expire", self.make_due_records, due)
        yield Case("MEM.LIST at the end", drop, self.does("MEM.LIST", "notes", "OFFSET", n - 20, "NOTEXT"))

    def in_exec(self, *commands: bytes) -> Step:
        """A step that sends these between MULTI and EXEC, as one pipeline."""
        sent = b"".join((encode("MULTI"), *commands, encode("EXEC")))

        def step() -> None:
            self.link.socket.sendall(sent)
            for _ in range(len(commands) + 2):
                self.link.read()

        return step

    def adds_one(self) -> None:
        self.call("MEM.ADD", "copy", "TEXT", "one more", "FVEC", DIM, *[0.5] * DIM)

    def _changes(self) -> Iterator[Case]:
        n, notes = self.records, self.copied("notes")

        def empty() -> None:
            self.call("DEL", "copy")
            self.call("MEM.CREATE", "copy", "DIM", DIM)

        words = [word for i in range(n // 10) for word in ("RECORD", *self._record("notes", i, 0))]
        yield Case(f"MEM.MADD of {n // 10:,}", empty, self.does("MEM.MADD", "copy", n // 10, *words))
        forget = ("MEM.FORGET", "copy", "TAGS", "ANY", 1, "even")
        even = self.does(*forget)
        yield Case(f"MEM.FORGET of all {n:,}", notes, self.does("MEM.FORGET", "copy", "TAGS", "ANY", 1, "all"))
        yield Case("MEM.FORGET of half of them", notes, even)
        yield Case("MEM.FORGET of half, history", self.copied("past"), even)

        yield Case("MEM.FORGET of half, in EXEC", notes, self.in_exec(encode(*forget)))
        madd = encode("MEM.MADD", "copy", n // 10, *words)
        yield Case(f"MEM.MADD of {n // 10:,}, in EXEC", empty, self.in_exec(madd))
        for count in (n // 10, n // 2):
            adds = [encode("MEM.ADD", "copy", *self._record("notes", i, 0)) for i in range(count)]
            yield Case(f"EXEC of {count:,} MEM.ADD", empty, self.in_exec(*adds))
        tenth = self.does("MEM.DEL", "copy", *[f"r{i}" for i in range(n // 10)])
        yield Case(f"MEM.DEL of {n // 10:,}", notes, tenth)
        yield Case(f"MEM.DEL of {n // 10:,}, history", self.copied("past"), tenth)
        yield Case("MEM.EVICT of 1,000", notes, self.does("MEM.EVICT", "copy", "COUNT", 1000))

        def limited() -> None:
            notes()
            self.call("MEM.CONFIG", "copy", "MAXRECORDS", 1000)

        yield Case(f"MEM.ADD after MAXRECORDS fell by {n - 1000:,}", limited, self.adds_one)

        def limit_bytes() -> None:
            self.call("MEM.CONFIG", "copy", "MAXBYTES", 10_000_000)
            self.adds_one()

        yield Case("MEM.CONFIG MAXBYTES, MEM.ADD", notes, limit_bytes)
        yield Case("MEM.CONFIG HISTORY ALL", notes, self.does("MEM.CONFIG", "copy", "HISTORY", "ALL"))

        def ended() -> None:
            self.copied("past")()
            for start in range(0, n, 1000):
                self.call("MEM.DEL", "copy", *[f"r{i}" for i in range(start, min(n, start + 1000))])

        yield Case(f"MEM.CONFIG HISTORY 0, {n:,} versions", ended, self.does("MEM.CONFIG", "copy", "HISTORY", "0"))
        yield Case("MEM.CONFIG MODEL DIM", notes, self.does("MEM.CONFIG", "copy", "MODEL", "another", "DIM", 16))

    def _facts(self) -> Iterator[Case]:
        f, facts, drop = self.facts, self.copied("facts"), self.does("DEL", "copy")
        yield Case(f"COPY, {2 * f:,} facts", drop, self.does("COPY", "facts", "copy"))
        yield Case(f"DEL, {2 * f:,} facts", self.own("facts"), drop)
        merge = self.does("MEM.ENTITY", "copy", "hub", "TYPE", "ORG", "MERGE", "other")
        yield Case(f"MERGE of an entity of {f:,} facts", facts, merge)
        yield Case("MEM.ENTITY of such a one", drop, self.does("MEM.ENTITY", "facts", "other", "TYPE", "ORG"))
        yield Case("MEM.INVALIDATE", facts, self.does("MEM.INVALIDATE", "copy", "1"))
        last = self.does("MEM.FACTS", "facts", "ENTITY", "other", "OFFSET", f - 100, "LIMIT", 100)
        yield Case("MEM.FACTS about it, at the end", drop, last)
        yield Case("MEM.PATHS around it", drop, self.does("MEM.PATHS", "facts", "other", "DEPTH", 2))

    def _payloads(self) -> Iterator[Case]:
        payload = b""

        def dumped() -> None:
            nonlocal payload
            self.call("DEL", "copy")
            payload = encode("RESTORE", "copy", 0, self.call("DUMP", "notes"))

        yield Case(f"DUMP, {self.records:,} records", self.does("DEL", "copy"), self.does("DUMP", "notes"))
        yield Case(f"RESTORE, {self.records:,} records", dumped, lambda: self.link.call(payload))

    def _words(self) -> Iterator[Case]:
        """As many words as a command may have, and words as long as they may be."""
        names, drop = [f"none{i}" for i in range(WORDS)], self.does("DEL", "copy")
        ids = [f"r{i % self.records}" for i in range(WORDS)]
        aliases = [word for name in names[: WORDS // 2 - 3] for word in ("ALIAS", name)]
        meta = [word for name in names[: WORDS // 3 - 2] for word in ("META", name, "v")]
        tags = self.does("MEM.QUERY", "notes", "TEXT", self.texts[3], "NOTEXT", "TAGS", "ANY", WORDS - 10, *names[10:])
        yield Case(f"EXISTS of {WORDS:,} keys", drop, self.does("EXISTS", *names))
        yield Case("WATCH of as many", drop, self.does("WATCH", *names))
        yield Case("UNWATCH", self.does("WATCH", *names), self.does("UNWATCH"))
        yield Case("MEM.MGET of as many ids", drop, self.does("MEM.MGET", "notes", *ids[1:]))
        yield Case("MEM.QUERY with as many TAGS", drop, tags)
        add = self.does("MEM.ADD", "small", "ID", "m", "TEXT", "x", *meta)
        yield Case("MEM.ADD with as many words of META", drop, add)
        yield Case("ALIAS as often, refused", drop, self.tries("MEM.ENTITY", "facts", "hub", *aliases))
        for command in ("SUBSCRIBE", "PSUBSCRIBE"):
            yield Case(f"{command} to as many", drop, lambda command=command: self.listens(command, names))  # type: ignore[misc]
        long = b"x" * (32 << 20)
        yield Case("ECHO of 32 MB", drop, self.does("ECHO", long))
        yield Case("MEM.QUERY, a TEXT of 32 MB", drop, self.does("MEM.QUERY", "notes", "TEXT", long))
        yield Case("a word of 256 MB, refused", drop, self.tries("ECHO", long * 8))

    def tries(self, *words: Word) -> Step:
        """A step that sends this command, which is refused."""
        command = encode(*words)

        def run() -> None:
            try:
                self.link.call(command)
            except hiredis.ReplyError:
                return
            raise SystemExit("it was not refused")

        return run

    def listens(self, command: str, names: list[str]) -> None:
        """Subscribe on a connection of its own, which ends."""
        with Link(self.link.socket.getpeername()[1]) as link:
            link.socket.sendall(encode(command, *names))
            for _ in names:
                link.read()

    def _keys(self) -> Iterator[Case]:
        keys, tree = self.keys, ["MEM.QUERY", "tree", "TEXT", self.texts[3]]
        members = [f"tree:{i}" for i in range(TREE)]
        yield Case(f"CASCADE DOWN over {TREE:,} keys", self.make_tree, self.does(*tree, "CASCADE", "DOWN"))
        yield Case(f"ACROSS {TREE:,} keys", self.make_tree, self.does(*tree, "ACROSS", TREE, *members))

        def many() -> None:
            self.make_keys("k:", keys)

        questions: list[list[Word]] = [["KEYS", "*"], ["KEYS", "k:9*"], ["SCAN", 0, "COUNT", 10_000]]
        questions += [["SCAN", 0, "COUNT", 10_000, "MATCH", "*9*9*"], ["DBSIZE"], ["RANDOMKEY"], ["INFO"]]
        for words in questions:
            yield Case(f"{' '.join(map(str, words))}, {keys:,} keys", many, self.does(*words))
        gone = self.does("DEL", *[f"gone:{i}" for i in range(keys // 10)])
        yield Case(f"DEL of {keys // 10:,} keys", lambda: self.make_keys("gone:", keys // 10), gone)
        for question in ("DBSIZE", "RANDOMKEY"):

            def due(question: str = question) -> None:
                self.wait_due()
                self.call(question)

            yield Case(f"{keys:,} keys expire, {question}", self.make_due_keys, due, DUE_S)
        yield Case(f"FLUSHALL, {keys:,} keys", many, self.does("FLUSHALL"), 2.0)  # ends what there is: the last one


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--facts", type=int, default=50_000, help="about one entity; as many are about others")
    parser.add_argument("--keys", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="cases with one of these words in their names, with commas between")
    parser.add_argument("--json", metavar="FILE", help="write the results there too")
    options = parser.parse_args()
    facts = machine()
    print_machine(facts)
    rows: list[dict[str, Any]] = []
    spawn = multiprocessing.get_context("spawn")
    durable = ("--appendonly", "yes", "--auto-aof-rewrite-percentage", "0", "--client-query-buffer-limit", "2gb")
    with recalld(*durable) as server, Link(server.port, 600.0) as link:
        bench = Bench(link, options.records, options.facts, options.keys)
        bench.call("CONFIG", "SET", "client-output-buffer-limit", "normal 0 0 0")  # payloads are long
        bench.fill()
        worst, going = spawn.Value("d", 0.0), spawn.Value("i", 1)
        neighbour = spawn.Process(target=ping, args=(server.port, worst, going), daemon=True)
        neighbour.start()
        while not worst.value:
            time.sleep(0.01)
        for case in bench.cases():
            if options.only and not any(word in case.name for word in options.only.split(",")):
                continue
            pauses: list[float] = []
            took: list[float] = []
            for _ in range(1 if case.name.startswith("FLUSHALL") else options.rounds):
                case.prepare()
                time.sleep(REST_S)
                worst.value = 0.0
                started = time.perf_counter()
                case.run()
                took.append((time.perf_counter() - started) * 1000)
                time.sleep(case.after_s)
                pauses.append(worst.value * 1000)
            row = {"case": case.name, "pause_ms": median(pauses), "most_ms": max(pauses), "took_ms": median(took)}
            print(f"{row['case']:45} {row['pause_ms']:9.1f} {row['most_ms']:9.1f} {row['took_ms']:9.1f}", flush=True)
            rows.append(row)
        going.value = 0
        neighbour.join()
    print_records("the longest PING beside a command, medians and the most of the rounds; what the command took", rows)
    write_json(options.json, {"machine": facts, "pauses": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
