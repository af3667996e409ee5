"""Everything a client can do to memories, in any order, against the oracle.

Each step is a command (or MULTI with several, a rewrite, a restart, the clock moving on); its reply must be the
model's, and after each step every memory must show exactly the model's records and counts and answer its standing
queries. Texts come from few words, vectors from a small grid and times from a handful, so that ties, duplicates and
overwritten records happen all the time.
"""

from __future__ import annotations

import itertools
import tempfile
from dataclasses import replace
from typing import Any

import pytest
from conftest import LONG
from harness import DAY, Clock, Running, WireError, Word, number
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from oracle import Memory, Query, Record, Vector, blob, cid, survives
from test_oracle_ranking import check

KEYS = (b"a", b"b")
#: Some of them what the counter will come to.
IDS = (b"1", b"2", b"3", b"x", b"y", b"\xff\x00")
NO_KEY = WireError("ERR no such memory index")
UNMET = "record existence condition not met"
NO_VECTORS = "this memory index stores no vectors; create it with MODE VECTOR or MODE HYBRID"
NEEDS_VECTOR = "a VECTOR-mode index needs a vector on every record"

VOCABULARY = ("alpha", "beta", "gamma", "the", "user_id", "id", "café", "cafe", "running", "runs", "東京都")
words = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=4).map(lambda chosen: " ".join(chosen).encode())
texts = st.tuples(words, st.sampled_from([b"", b"", b"", b"\n\x00beta", b"\xff"])).map(b"".join)
#: More components than any memory has: each takes as many as its dim.
vectors = st.tuples(st.sampled_from([1.0, -1.0, 2.0, -2.0]), *[st.integers(-2, 2).map(float)] * 3)
values = st.sampled_from([b"1", b"1.0", b"01", b"2", b"10", b"a", b"b", b"a,b", b"", b"\xff"])
fields = st.sampled_from([b"f", b"g"])
tags = st.sampled_from([b"red", b"blue", b"1"])
tag_lists = st.lists(tags, unique=True, max_size=2).map(tuple)
keys = st.sampled_from((b"a", b"a", b"a", b"b"))
ids = st.sampled_from(IDS)
times = st.sampled_from([None, None, None, 0, -1, -1_000, -DAY, -30 * DAY, 5_000])
weights = st.sampled_from(
    [(1, 1, 1, 1), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1), (0, 0, 0, 0), (0.35, 0.5, 0.1, 0.05)]
)


def maybe(strategy: st.SearchStrategy[Any], otherwise: Any = None) -> st.SearchStrategy[Any]:
    """Every third time."""
    return st.tuples(st.sampled_from((0, 0, 1)), strategy).map(lambda drawn: drawn[1] if drawn[0] else otherwise)


def drafts_of(vector: st.SearchStrategy[Any], condition: st.SearchStrategy[str]) -> st.SearchStrategy[dict[str, Any]]:
    """MEM.ADD's options; `at` is relative to the clock."""
    return st.fixed_dictionaries(
        {
            "record_id": maybe(ids),
            "text": texts,
            "vector": vector,
            "meta": st.lists(st.tuples(fields, values), max_size=2),
            "tags": maybe(tag_lists),
            "importance": maybe(st.sampled_from([0.0, 0.5, 0.8, 1.0])),
            "ttl": st.sampled_from([None, None, None, 1, 2, 60]),
            "at": times,
            "keepvec": st.booleans(),
            "condition": condition,
        }
    )


drafts = drafts_of(st.one_of(st.none(), vectors), st.sampled_from(["", "", "", "", "NX", "XX"]))
batches = st.lists(drafts, min_size=1, max_size=4)
#: What every HYBRID or VECTOR memory takes.
fillings = st.lists(drafts_of(vectors, st.just("")), min_size=2, max_size=8)
creations = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["HYBRID", "HYBRID", "HYBRID", "SEARCH", "VECTOR"]),
        "dim": st.integers(1, 4),
        "metric": st.sampled_from(["COSINE", "COSINE", "L2", "IP"]),
        "weights": weights,
        "half_life": st.sampled_from([1, 3_600, 604_800]),
        "fusion": st.sampled_from(["LINEAR", "RRF"]),
        "lang": st.sampled_from(["english", "english", "none", "german"]),
        "k1": st.sampled_from([0.9, 1.2, 0.0]),
        "b": st.sampled_from([0.4, 0.75, 0.0, 1.0]),
    }
)
filters = st.lists(
    st.one_of(
        st.tuples(
            st.sampled_from([b"f", b"g", b"@tags", b"@id"]),
            st.sampled_from(["EQ", "NE", "GT", "LTE", "IN", "NIN", "CONTAINS", "PREFIX"]),
            values,
        ),
        st.tuples(st.sampled_from([b"f", b"@tags"]), st.just("EXISTS"), st.sampled_from([b"0", b"1"])),
        st.tuples(st.just(b"@importance"), st.sampled_from(["GTE", "LT"]), st.just(b"0.5")),
        st.tuples(st.just(b"@updated_at"), st.sampled_from(["GTE", "LT", "EQ"]), st.just(b"2026-06-01")),
        st.tuples(st.just(b"@text"), st.just("CONTAINS"), st.just(b"alpha")),
    ),
    min_size=1,
    max_size=2,
)
tag_tests = st.lists(
    st.tuples(st.sampled_from(["ANY", "ALL"]), st.lists(tags, min_size=1, max_size=2).map(tuple)), max_size=1
)
#: Nowhere near a score that these memories give.
limits = st.sampled_from([-0.1234567, 0.0123457, 0.2345671, 0.5432107, 0.8765413])


def step(name: str, **arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[tuple[str, dict[str, Any]]]:
    """A call of one of the machine's methods below."""
    return st.tuples(st.just(name), st.fixed_dictionaries(arguments))


additions = st.one_of(step("add", key=keys, draft=drafts), step("madd", key=keys, batch=batches))
changes = st.one_of(
    step("delete", key=keys, chosen=st.lists(ids, min_size=1, max_size=3)),
    step("set_meta", key=keys, record_id=ids, pairs=st.lists(st.tuples(fields, values), min_size=1, max_size=2)),
    step("delete_meta", key=keys, record_id=ids, field=fields),
    step("expire", key=keys, record_id=ids, seconds=st.sampled_from([0, 1, 2, 60])),
    step("forget", key=keys, clauses=filters, tests=maybe(tag_tests, []), dry=st.booleans()),
    step("configure", key=keys, given=weights, half_life=st.integers(1, 99), k1=st.just(0.5)),
)
key_changes = st.one_of(
    step("create", key=keys, options=creations),
    step("drop", key=keys),
    step("copy", key=keys, to=keys, over=st.booleans()),
    step("rename", key=keys, to=keys),
    step("expire_key", key=keys, ms=st.sampled_from([0, 1_500, 3_600_000])),
    step("flush"),
)


questions = st.fixed_dictionaries(
    {
        "key": keys,
        "kind": st.sampled_from(["SEARCH", "VSEARCH", "QUERY", "QUERY", "QUERY"]),
        "text": st.one_of(st.none(), words),
        "vector": st.one_of(st.none(), vectors),
        "clauses": maybe(filters, []),
        "tests": maybe(maybe(tag_tests, []), []),
        "options": st.fixed_dictionaries(
            {},
            optional={
                "minscore": limits,
                "weights": weights,
                "half_life": st.sampled_from([1, 100_000]),
                "fusion": st.sampled_from(["LINEAR", "RRF"]),
                "rrf_k": st.sampled_from([1, 10]),
                "minsim": limits,
                "diversity": st.sampled_from([0.0, 0.4, 1.0]),
            },
        ),
    }
)


class Machine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.clock = Clock()
        options = {"appendfsync": "everysec", "mem_max_topk": "100000"}
        self.server = Running(clock=self.clock, dir=self.folder.name, **options)
        self.server.start()
        self.agent = self.server.agent("resp3")
        self.memories: dict[bytes, Memory] = {}
        self.deadlines: dict[bytes, int] = {}
        self.queue: list[tuple[list[Word], Any]] | None = None

    def teardown(self) -> None:
        self.agent.wire.close()
        self.server.stop()
        self.folder.cleanup()

    # -- steps

    @initialize(options=creations, batch=fillings)
    def begin(self, options: dict[str, Any], batch: list[dict[str, Any]]) -> None:
        self.fill(KEYS[0], options, batch)

    @rule(key=keys, options=creations, batch=fillings)
    def fill(self, key: bytes, options: dict[str, Any], batch: list[dict[str, Any]]) -> None:
        if key not in self.memories:
            self.create(key, options)
        if self.memories[key].mode == "SEARCH":
            batch = [{**draft, "vector": None} for draft in batch]
        self.madd(key, batch)

    @rule(addition=additions)
    def add_some(self, addition: tuple[str, dict[str, Any]]) -> None:
        self.take(addition)

    @rule(change=changes)
    def change(self, change: tuple[str, dict[str, Any]]) -> None:
        self.take(change)

    @rule(change=key_changes, options=creations, batch=fillings)
    def change_keys(self, change: tuple[str, dict[str, Any]], options: Any, batch: Any) -> None:
        self.take(change)
        self.fill(KEYS[0], options, batch)

    def take(self, taken: tuple[str, dict[str, Any]]) -> None:
        name, arguments = taken
        getattr(self, name)(**arguments)

    @rule(
        several=st.lists(st.one_of(additions, changes, maybe(key_changes)), min_size=1, max_size=5),
        options=creations,
        batch=fillings,
    )
    def transaction(self, several: list[tuple[str, dict[str, Any]] | None], options: Any, batch: Any) -> None:
        self.queue = []
        for taken in filter(None, several):
            self.take(taken)
        self.fill(KEYS[0], options, batch)
        queue, self.queue = self.queue, None
        replies = self.agent.wire.pipeline(["MULTI"], *(words for words, _ in queue), ["EXEC"])
        assert set(replies[1:-1]) == {"QUEUED"}
        for (command, expected), reply in zip(queue, replies[-1], strict=True):
            self.compare(command, reply, expected)

    @rule(ms=st.sampled_from([1, 499, 1_000, 60_000, DAY]))
    def advance(self, ms: int) -> None:
        self.clock.advance(ms)
        self.expire_all()

    @rule()
    def restart(self) -> None:
        self.server.restart()
        self.agent = self.server.agent("resp3")

    @rule()
    def rewrite(self) -> None:
        self.agent("BGREWRITEAOF")
        while b"aof_rewrite_in_progress:1" in self.agent("INFO", "persistence"):
            pass

    @rule(asked=questions)
    def query(self, asked: dict[str, Any]) -> None:
        self.ask(**asked)

    @rule(asked=questions)
    def query_again(self, asked: dict[str, Any]) -> None:
        self.ask(**asked)

    def ask(self, key: bytes, kind: str, text: Any, vector: Any, clauses: Any, tests: Any, options: Any) -> None:
        memory = self.memories.get(key)
        if memory is None:
            assert self.agent.error("MEM.SEARCH", key, "alpha") == str(NO_KEY)
            return
        text = None if kind == "VSEARCH" or memory.mode == "VECTOR" else text
        vector = None if kind == "SEARCH" or memory.mode == "SEARCH" or vector is None else vector[: memory.dim]
        if kind != "QUERY":
            options = {name: value for name, value in options.items() if name == "minscore"}
        if kind == "SEARCH" and memory.mode != "VECTOR":
            text = text or b"alpha"
        elif kind == "VSEARCH" and memory.mode != "SEARCH":
            vector = vector or (1.0,) * memory.dim
        elif kind != "QUERY" or (text is None and vector is None):
            return
        check(self.agent, memory, Query(kind, text, vector, clauses, tests, **options), self.clock.now_ms, key)

    @rule(
        key=keys,
        clauses=maybe(filters, []),
        tests=maybe(tag_tests, []),
        limit=st.integers(1, 5),
        offset=st.integers(0, 3),
    )
    def list_page(self, key: bytes, clauses: Any, tests: Any, limit: int, offset: int) -> None:
        memory = self.memories.get(key)
        if memory is not None:
            page = self.agent("MEM.LIST", key, "LIMIT", limit, "OFFSET", offset, *selection(clauses, tests))
            chosen = memory.select(clauses, tests)[offset : offset + limit]
            assert [record[b"id"] for record in page] == [record.id for record in chosen]

    @invariant()
    def shows_what_the_model_holds(self) -> None:
        assert sorted(self.agent("KEYS", "*")) == sorted(self.memories)
        now = self.clock.now_ms
        for key, memory in self.memories.items():
            assert self.agent("PEXPIRETIME", key) == self.deadlines.get(key, -1)
            listed = self.agent("MEM.LIST", key, "LIMIT", 1000, "WITHMETA", "WITHVEC", "FLOATS")
            assert len(listed) == len(memory.records)
            for record, got in zip(memory.select(()), listed, strict=True):
                assert_record(record, got, now)
            page = self.agent("MEM.SCAN", key, 0, "COUNT", 1000)
            assert (page[0], sorted(page[1])) == (b"0", sorted(memory.records))
            info = self.agent.map("MEM.INFO", key)
            for name, value in memory.info().items():
                assert info[name.encode()] == pytest.approx(value, abs=1e-9), name
            assert info[b"next_id"] == memory.next_id
            assert (info[b"mode"], info[b"halflife"]) == (memory.mode.encode(), memory.half_life)
            assert self.agent("MEM.CARD", key) == len(memory.records)
            for query in standing_queries(memory):
                hits = self.agent.hits(*query.words(key), "TOPK", 1000, "NOTEXT")
                memory.answer(query, now).check([(hit.id, hit.score) for hit in hits])

    # -- writes: to the model at once, to the server at once or in a queue

    def run(self, command: list[Word], expected: Any) -> None:
        if self.queue is not None:
            self.queue.append((command, expected))
            return
        self.agent.wire.send(*command)
        self.compare(command, self.agent.wire.read(), expected)

    def compare(self, command: list[Word], reply: Any, expected: Any) -> None:
        if command[0] == "MEM.FORGET" and isinstance(reply, list):
            reply = [reply[0], sorted(reply[1])]  # their order is the server's
        assert reply == expected, f"{command}: {reply!r}, not {expected!r}"

    def expire_all(self) -> None:
        now = self.clock.now_ms
        for key in [key for key, deadline in self.deadlines.items() if deadline <= now]:
            del self.deadlines[key], self.memories[key]
        for memory in self.memories.values():
            memory.expire(now)

    def create(self, key: bytes, options: dict[str, Any]) -> None:
        options = {**options, "dim": 0 if options["mode"] == "SEARCH" else options["dim"]}
        command: list[Word] = ["MEM.CREATE", key]
        for name, value in options.items():
            if name == "weights":
                command += ["WEIGHTS", *value]
            elif name != "dim" or value:
                command += [name.replace("_", ""), value]
        if key in self.memories:
            self.run(command, WireError("ERR memory index already exists"))
            return
        self.memories[key] = Memory(**options)
        self.run(command, "OK")

    def configure(self, key: bytes, given: tuple[float, ...], half_life: int, k1: float) -> None:
        memory = self.memories.get(key)
        command: list[Word] = ["MEM.CONFIG", key, "WEIGHTS", *given, "HALFLIFE", half_life, "K1", k1]
        if memory is not None:
            self.memories[key] = memory = memory.copy()
            memory.weights, memory.half_life, memory.k1 = given, half_life, k1  # type: ignore[assignment]
        self.run(command, NO_KEY if memory is None else "OK")

    def add(self, key: bytes, draft: dict[str, Any]) -> None:
        memory = self.memories.get(key)
        dim = memory.dim if memory is not None else 1
        command: list[Word] = ["MEM.ADD", key, *self.draft_words(draft, dim)]
        if memory is None:
            self.run(command, NO_KEY)
            return
        after = memory.copy()
        problem, record_id = self.settle(after, draft)
        if problem is not None:
            self.run(command, WireError(f"ERR {problem}"))
            return
        self.memories[key] = after
        self.run(command, record_id)

    def madd(self, key: bytes, batch: list[dict[str, Any]]) -> None:
        memory = self.memories.get(key)
        dim = memory.dim if memory is not None else 1
        records = itertools.chain.from_iterable(["RECORD", *self.draft_words(draft, dim)] for draft in batch)
        command: list[Word] = ["MEM.MADD", key, len(batch), *records]
        if memory is None:
            self.run(command, NO_KEY)
            return
        after, answered = memory.copy(), []
        for at, draft in enumerate(batch, 1):
            problem, record_id = self.settle(after, draft)
            if problem is not None:
                self.run(command, WireError(f"ERR record {at}: {problem}"))
                return
            answered.append(record_id)
        self.memories[key] = after
        self.run(command, answered)

    def draft_words(self, draft: dict[str, Any], dim: int) -> list[Word]:
        command: list[Word] = ["TEXT", draft["text"]]
        if draft["record_id"] is not None:
            command += ["ID", draft["record_id"]]
        if draft["vector"] is not None:
            vector = draft["vector"][: dim or 1]
            command += ["VEC", blob(vector)] if draft["keepvec"] else ["FVEC", len(vector), *vector]
        for field, value in draft["meta"]:
            command += ["META", field, value]
        if draft["tags"] is not None:
            command += ["TAGS", len(draft["tags"]), *draft["tags"]]
        for name in ("importance", "ttl"):
            if draft[name] is not None:
                command += [name, draft[name]]
        if draft["at"] is not None:
            command += ["AT", self.clock.now_ms + draft["at"]]
        command += ["KEEPVEC"] * draft["keepvec"]
        return command + [draft["condition"]] * (draft["condition"] != "")

    def settle(self, memory: Memory, draft: dict[str, Any]) -> tuple[str | None, bytes | None]:
        """Change the model as MEM.ADD does; why it is refused, and the id."""
        record_id = draft["record_id"]
        old = memory.records.get(record_id)
        if (draft["condition"] == "NX" and old is not None) or (draft["condition"] == "XX" and old is None):
            return UNMET, None
        vector: Vector | None = draft["vector"]
        if vector is not None:
            vector = vector[: memory.dim]
            if memory.mode == "SEARCH":
                return NO_VECTORS, None
        elif memory.mode == "VECTOR" and (old is None or not (draft["keepvec"] or old.text == draft["text"])):
            return NEEDS_VECTOR, None
        now = self.clock.now_ms
        given = {name: draft[name] for name in ("meta", "tags", "importance", "ttl", "keepvec")}
        at = None if draft["at"] is None else now + draft["at"]
        return None, memory.add(now, record_id, draft["text"], vector, **given, at=at)

    def delete(self, key: bytes, chosen: list[bytes]) -> None:
        memory = self.memories.get(key)
        command: list[Word] = ["MEM.DEL", key, *chosen]
        if memory is None:
            self.run(command, NO_KEY)
            return
        self.memories[key] = after = memory.copy()
        gone = [after.records.pop(record_id, None) for record_id in chosen]
        self.run(command, sum(record is not None for record in gone))

    def set_meta(self, key: bytes, record_id: bytes, pairs: list[tuple[bytes, bytes]]) -> None:
        command: list[Word] = ["MEM.SETMETA", key, record_id, *itertools.chain.from_iterable(pairs)]
        record = self.record(key, record_id, command)
        if record is not None:
            meta = {**record.meta, **dict(pairs)}
            self.memories[key].records[record_id] = replace(record, meta=meta)
            self.run(command, len(meta) - len(record.meta))

    def delete_meta(self, key: bytes, record_id: bytes, field: bytes) -> None:
        command: list[Word] = ["MEM.DELMETA", key, record_id, field, b"absent", field]
        record = self.record(key, record_id, command)
        if record is not None:
            meta = {name: value for name, value in record.meta.items() if name != field}
            self.memories[key].records[record_id] = replace(record, meta=meta)
            self.run(command, len(record.meta) - len(meta))

    def record(self, key: bytes, record_id: bytes, command: list[Word]) -> Record | None:
        """The record, in a memory that may be changed; where there is none the command has been run, and refused."""
        memory = self.memories.get(key)
        if memory is None:
            self.run(command, NO_KEY)
            return None
        self.memories[key] = memory = memory.copy()
        if record_id not in memory.records:
            self.run(command, WireError("ERR no such record"))
        return memory.records.get(record_id)

    def expire(self, key: bytes, record_id: bytes, seconds: int) -> None:
        memory = self.memories.get(key)
        command: list[Word] = ["MEM.EXPIRE", key, record_id, seconds]
        if memory is None:
            self.run(command, NO_KEY)
            return
        self.memories[key] = memory = memory.copy()
        record = memory.records.get(record_id)
        if record is not None:
            deadline = self.clock.now_ms + seconds * 1000 if seconds else None
            memory.records[record_id] = replace(record, deadline=deadline)
        self.run(command, int(record is not None))

    def forget(self, key: bytes, clauses: Any, tests: Any, dry: bool) -> None:
        memory = self.memories.get(key)
        command: list[Word] = ["MEM.FORGET", key, *selection(clauses, tests), *["DRYRUN"] * dry]
        if memory is None:
            self.run(command, NO_KEY)
            return
        gone = sorted(r.id for r in memory.records.values() if survives(r, clauses, tests))
        if not dry:
            self.memories[key] = memory = memory.copy()
            memory.records = {i: r for i, r in memory.records.items() if i not in gone}
        self.run(command, [len(gone), gone])

    # -- keys

    def flush(self) -> None:
        self.memories.clear()
        self.deadlines.clear()
        self.run(["FLUSHALL"], "OK")

    def drop(self, key: bytes) -> None:
        self.deadlines.pop(key, None)
        self.run(["DEL", key], int(self.memories.pop(key, None) is not None))

    def copy(self, key: bytes, to: bytes, over: bool) -> None:
        command: list[Word] = ["COPY", key, to, *["REPLACE"] * over]
        if key == to:
            self.run(command, WireError("ERR source and destination objects are the same"))
            return
        copied = key in self.memories and (over or to not in self.memories)
        if copied:
            self.memories[to] = self.memories[key].copy()
            self.move_deadline(key, to)
        self.run(command, int(copied))

    def rename(self, key: bytes, to: bytes) -> None:
        if key not in self.memories:
            self.run(["RENAME", key, to], WireError("ERR no such key"))
            return
        if key != to:
            self.memories[to] = self.memories.pop(key)
            self.move_deadline(key, to)
            self.deadlines.pop(key, None)
        self.run(["RENAME", key, to], "OK")

    def move_deadline(self, key: bytes, to: bytes) -> None:
        self.deadlines.pop(to, None)
        if key in self.deadlines:
            self.deadlines[to] = self.deadlines[key]

    def expire_key(self, key: bytes, ms: int) -> None:
        """PEXPIRE; 0 clears."""
        there = key in self.memories
        if ms:
            if there:
                self.deadlines[key] = self.clock.now_ms + ms
            self.run(["PEXPIRE", key, ms], int(there))
        else:
            self.run(["PERSIST", key], int(self.deadlines.pop(key, None) is not None))


def standing_queries(memory: Memory) -> list[Query]:
    """Asked of every memory after every step."""
    text = b"alpha cafe running" if memory.mode != "VECTOR" else None
    vector = (1.0, 1.0, -2.0, 1.0)[: memory.dim] if memory.mode != "SEARCH" else None
    found = [Query("QUERY", text, vector, fusion=fusion, weights=(1, 1, 1, 1)) for fusion in ("LINEAR", "RRF")]
    return (
        found + [Query("SEARCH", text)] * (text is not None) + [Query("VSEARCH", None, vector)] * (vector is not None)
    )


def selection(clauses: Any, tests: Any) -> list[Word]:
    command: list[Word] = []
    for clause in clauses:
        command += ["FILTER", *clause]
    for how, tags in tests:
        command += ["TAGS", how, len(tags), *tags]
    return command


def assert_record(record: Record, got: dict[bytes, Any], now: int) -> None:
    expected = {
        b"id": record.id,
        b"text": record.text,
        b"importance": record.importance,
        b"created_at": record.created_at,
        b"updated_at": record.updated_at,
        b"pttl": -1 if record.deadline is None else record.deadline - now,
        b"cid": cid(record.text),
        b"meta": record.meta,
    }
    if record.tags:
        expected[b"tags"] = list(record.tags)
    vector = got.pop(b"vector", None)
    assert got == expected
    if record.vector is None:
        assert vector is None
    else:
        assert [number(x) for x in vector] == pytest.approx(record.vector, rel=2e-7, abs=1e-45)


Machine.TestCase.settings = settings(
    max_examples=500 if LONG else 24, stateful_step_count=100 if LONG else 40, deadline=None
)
test_memories_are_what_the_oracle_says = Machine.TestCase
