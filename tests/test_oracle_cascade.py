"""CASCADE and ACROSS against the oracle: one memory in plain Python that holds the rows of all that are covered.

A virtual memory has the named memory's settings and every row that shows, each with the terms that its own memory's
language gave it, and without its vector where that cannot be compared. Its ids are key, NUL, id: in the order of ties.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
from conftest import LONG
from harness import DAY, JUNE, Agent, Clock, Hit, Running, Word
from oracle import Answer, Memory, Query, Vector, blob
from recalld.index import cascade, columns, compaction, filters, keyword
from recalld.index import memory as memory_module
from recalld.index.analyzer import Analyzer, Vocabulary
from test_oracle_ranking import FILTERS, TAGS, grid, smooth

WORDS = [f"w{i}" for i in range(6)] + ["running", "runs", "user_id", "id", "café", "cafe", "the", "haus", "red"]
KEYS = ("t", "t:u", "t:u:v", "t:u:w", "t:u2", "tt", "x", "y:z", "t::e")
IDS = tuple(b"%c" % letter for letter in b"abcdefghijkl")
#: So many hits are explained at once; a small memory has fewer.
PAGE = 1_000


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Posting lists, encoded columns and compactions from a few rows on."""
    monkeypatch.setattr(columns, "POSTINGS_MIN", 4)
    monkeypatch.setattr(columns, "_UNPOSTED_MAX", 3)
    monkeypatch.setattr(filters, "COLUMNS_MIN", 6)
    monkeypatch.setattr(keyword, "PRUNE_MIN", 2)
    monkeypatch.setattr(compaction, "_COMPACT_MIN", 4)


class Held:
    """One memory: the oracle's, what its records' validity is, and the model of its vectors."""

    def __init__(self, memory: Memory, model: str) -> None:
        self.memory = memory
        self.model = model
        self.validity: dict[bytes, tuple[int | None, int | None]] = {}

    def shows(self, record_id: bytes, t: int) -> bool:
        """Whether the record counts at `t`."""
        valid_at, valid_until = self.validity.get(record_id, (None, None))
        begin = self.memory.records[record_id].updated_at if valid_at is None else valid_at
        return begin <= t and (valid_until is None or t < valid_until)

    def drop(self, record_id: bytes) -> None:
        self.memory.records.pop(record_id, None)
        self.validity.pop(record_id, None)


class World:
    """Some memories on a server, and the same in plain Python."""

    def __init__(self, agent: Agent, clock: Clock, chance: random.Random, keys: tuple[str, ...] = KEYS) -> None:
        self.agent, self.clock, self.chance = agent, clock, chance
        self.vocabulary = Vocabulary()
        self.held: dict[str, Held] = {}
        self.mixed = self.facts = 0
        for key in keys:
            if chance.random() < 0.9 or key == "t:u":
                self.create(key)

    def create(self, key: str) -> None:
        chance = self.chance
        mode = chance.choice(("HYBRID", "HYBRID", "HYBRID", "SEARCH", "VECTOR"))
        dim = 0 if mode == "SEARCH" else chance.choice((3, 3, 3, 2))
        metric = chance.choice(("COSINE", "COSINE", "COSINE", "L2", "IP"))
        lang = chance.choice(("english", "english", "english", "german", "none"))
        model = chance.choice(("", "", "", "m2")) if dim else ""
        weights = chance.choice(((0.35, 0.5, 0.1, 0.05), (1, 1, 1, 1), (0.3, 2, 0, 5)))
        half_life = chance.choice((604800, 3600))
        fusion = chance.choice(("LINEAR", "RRF"))
        k1, b = chance.choice(((0.9, 0.4), (1.2, 0.75)))
        words: list[Word] = ["MODE", mode, "METRIC", metric, "LANG", lang, "WEIGHTS", *weights, "HALFLIFE", half_life]
        tagboost = chance.choice((0, 0, 0.5))
        words += ["FUSION", fusion, "K1", k1, "B", b, "TAGBOOST", tagboost]
        words += ["DIM", dim] if dim else []
        words += ["MODEL", model] if model else []
        self.agent("MEM.CREATE", key, *words)
        memory = Memory(mode, dim, metric, weights, half_life, fusion, lang, k1, b, tagboost)
        memory.analyzer = Analyzer(lang, self.vocabulary)
        self.held[key] = Held(memory, model)

    # -- writes

    def text(self, most: int = 6) -> bytes:
        return " ".join(self.chance.choices(WORDS, k=self.chance.randint(0, most))).encode()

    def vector(self, dim: int) -> Vector:
        return grid(self.chance, dim)

    def write(self) -> None:
        chance = self.chance
        key = chance.choice(list(self.held))
        held = self.held[key]
        record_id = chance.choice(IDS)
        kind = chance.random()
        if kind < 0.1:
            self.agent("MEM.DEL", key, record_id)
            held.drop(record_id)
        elif kind < 0.2:
            self.fact(key, held)
        else:
            self.add(key, held, record_id)

    def add(self, key: str, held: Held, record_id: bytes) -> None:
        chance, memory, now = self.chance, held.memory, self.clock.now_ms
        text = self.text()
        with_vector = memory.dim and (memory.mode == "VECTOR" or chance.random() < 0.7)
        vector = self.vector(memory.dim) if with_vector else None
        importance = chance.choice((0.0, 0.25, 0.5, 0.5, 1.0))
        at = now - chance.choice((0, 0, 1, 1000, DAY, 400 * DAY))
        meta = [(b"n", b"%d" % chance.randint(0, 9)), (b"f", chance.choice((b"a", b"b", b"c")))]
        tags = tuple(chance.sample((b"red", b"green", b"blue"), chance.randint(0, 2)))
        ttl = chance.choice((10, 1000)) if chance.random() < 0.1 else None
        words: list[Word] = ["ID", record_id, "TEXT", text, "IMPORTANCE", importance, "AT", at]
        words += ["TAGS", len(tags), *tags]
        words += [word for name, value in meta for word in ("META", name, value)]
        words += ["VEC", blob(vector)] if vector is not None else []
        words += ["TTL", ttl] if ttl is not None else []
        valid_at, valid_until = held.validity.get(record_id, (None, None))
        if chance.random() < 0.15:
            valid_at = now + chance.choice((-DAY, -500, 3000, DAY))
            words += ["VALIDAT", valid_at]
        if chance.random() < 0.15 or (valid_at is not None and valid_until is not None):
            valid_until = max(now, valid_at or 0) + chance.choice((500, 5000, DAY))
            words += ["VALIDUNTIL", valid_until]
        self.agent("MEM.ADD", key, *words)
        if valid_at is not None or valid_until is not None:
            held.validity[record_id] = valid_at, valid_until
        memory.add(now, record_id, text, vector, meta, tags, importance, ttl, at)

    def fact(self, key: str, held: Held) -> None:
        chance, memory, now = self.chance, held.memory, self.clock.now_ms
        self.facts += 1
        record_id = b"fact%d" % self.facts
        thing = f"{chance.choice(WORDS)} {chance.choice(WORDS)} f{self.facts}".encode()
        vector = self.vector(memory.dim) if memory.dim else None
        words: list[Word] = ["VEC", blob(vector)] if vector is not None else []
        valid_at = now + chance.choice((-DAY, -500, 0, 3000))
        valid_until = chance.choice((None, valid_at + 2000, now + DAY))
        words += ["VALIDAT", valid_at, *(("VALIDUNTIL", valid_until) if valid_until else ())]
        self.agent("MEM.FACT", key, "user", "likes", thing, "ID", record_id, *words)
        memory.add(now, record_id, b"user likes " + thing, vector)
        if chance.random() < 0.3:
            self.agent("MEM.INVALIDATE", key, record_id)
            valid_until = min(valid_until or now, now)
        held.validity[record_id] = valid_at, valid_until

    def pass_time(self) -> None:
        self.clock.advance(self.chance.choice((1, 1, 700, 4_000, 20_000)))
        for held in self.held.values():
            for record_id in held.memory.expire(self.clock.now_ms):
                held.drop(record_id)

    # -- reads

    def covered(self, key: str) -> tuple[list[Word], list[str]]:
        """Options, and the memories that they cover beside `key`."""
        chance, words, covered = self.chance, list[Word](), [key]
        direction = chance.choice(("UP", "DOWN", ""))
        if direction == "UP":
            covered += [other for other in self.held if key.startswith(other + ":")]
        elif direction == "DOWN":
            covered += [other for other in self.held if other.startswith(key + ":")]
        words += ["CASCADE", direction] if direction else []
        if len(covered) == 1 or chance.random() < 0.5:
            across = chance.choices([*KEYS, "absent"], k=chance.choice((0, 2, 4, 8)))
            words += ["ACROSS", len(across), *across]
            covered += [other for other in across if other in self.held]
        return words, list(dict.fromkeys(covered))

    def virtual(self, key: str, covered: list[str], t: int) -> Memory:
        """The memory that holds them all."""
        named = self.held[key]
        whole = named.memory.copy()
        whole.records = {}
        for other in covered:
            held = self.held[other]
            same = (held.memory.dim, held.memory.metric, held.model) == (
                named.memory.dim,
                named.memory.metric,
                named.model,
            )
            for record in held.memory.records.values():
                if held.shows(record.id, t):
                    name = other.encode() + b"\0" + record.id
                    whole.records[name] = replace(record, id=name, vector=record.vector if same else None)
        return whole

    def query(self, key: str) -> Query:
        chance, memory = self.chance, self.held[key].memory
        text = (self.text(4) or b"w1") if memory.mode != "VECTOR" else None
        vector = self.vector(memory.dim) if memory.dim and (text is None or chance.random() < 0.6) else None
        if vector is not None and chance.random() < 0.3:
            text = None
        query = Query("QUERY", text, vector)
        if chance.random() < 0.2:
            query.filters, query.tags = chance.choice(FILTERS), chance.choice(TAGS)
        query.fusion = chance.choice((None, "LINEAR", "RRF"))
        query.rrf_k = chance.choice((60, 60, 1))
        query.half_life = chance.choice((None, 3600))
        query.weights = chance.choice((None, None, (1, 1, 1, 1), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 0, 0)))
        if chance.random() < 0.2:
            query.minscore = round(chance.uniform(0, 0.4), 3) + 0.000137
        if vector is not None and chance.random() < 0.15:
            query.minsim = round(chance.uniform(-1, 1), 3) + 0.000137
        if chance.random() < 0.15:
            query.diversity = chance.choice((0.0, 0.3, 1.0))
        return query

    def ask(self) -> None:
        chance = self.chance
        key = chance.choice(list(self.held))
        options, covered = self.covered(key)
        t = self.clock.now_ms
        if chance.random() < 0.3:
            t += chance.choice((-DAY, -800, -800, -800, 0, 2500))
            options += ["ASOF", t]
        query = self.query(key)
        whole = self.virtual(key, covered, t)
        answer = whole.answer(query, t)
        self.check(answer, [*query.words(key.encode()), *options])
        self.mixed += len({match.record.id.split(b"\0")[0] for match in answer.hits}) > 1

    def check(self, answer: Answer, words: list[Word]) -> None:
        """Every hit in order, pages, counts and explanations."""
        agent, chance = self.agent, self.chance
        hits = agent.hits(*words, "TOPK", 100_000, "NOTEXT")
        names = list(map(name_of, hits))
        answer.check([(name, hit.score) for name, hit in zip(names, hits, strict=True)])
        for offset, top_k in ((0, 1), (len(names) // 2, 3), (1, 10)):
            page = agent.hits(*words, "TOPK", top_k, "OFFSET", offset, "NOTEXT")
            assert list(map(name_of, page)) == names[offset : offset + top_k], (offset, top_k)
        _, stats = agent(*words, "WITHSTATS")
        stats = agent.as_map(stats)
        assert (stats[b"records"], stats[b"matched"]) == (len(answer.memory.records), answer.matched)
        assert stats[b"filtered"] == answer.filtered
        if answer.query.minsim is None and not answer.doubtful:
            assert stats[b"below_minscore"] == answer.below_minscore
        if chance.random() < 0.3:
            self.check_explained(answer, words, len(names))
        if chance.random() < 0.3:
            self.check_places(words, names)

    def check_explained(self, answer: Answer, words: list[Word], count: int) -> None:
        """All of some hits, of thousands a page of them."""
        expected = {match.record.id: match for match in answer.hits}
        offset = self.chance.randrange(count - PAGE) if count > PAGE else 0
        for hit in self.agent.hits(*words, "TOPK", PAGE, "OFFSET", offset, "NOTEXT", "EXPLAIN"):
            match, explain = expected.get(name_of(hit)), hit.explain
            if match is None:
                continue  # in doubt
            assert explain is not None
            for name, signal in match.signals.items():
                part = explain[name.encode()]
                assert part[b"raw"] == pytest.approx(signal.raw, abs=1e-6)
                assert part[b"scaled"] == pytest.approx(signal.scaled, abs=1e-6)
                assert signal.rank_low <= part[b"rank"] <= signal.rank_high, name
            parts = {term[b"term"].decode(): (term[b"tf"], term[b"idf"], term[b"part"]) for term in explain[b"terms"]}
            assert parts.keys() == {term for term, *_ in match.term_parts}
            for term, idf, tf, part in match.term_parts:
                assert parts[term] == (tf, pytest.approx(idf), pytest.approx(part, abs=1e-9))

    def check_places(self, words: list[Word], names: list[bytes]) -> None:
        """MEM.EXPLAIN knows the place of each of the named memory's records among all."""
        assert isinstance(words[1], bytes)
        for record_id in IDS:
            name = words[1] + b"\0" + record_id
            shown = self.agent.map("MEM.EXPLAIN", words[1], record_id, *words[2:], "TOPK", 100_000)
            assert shown.get(b"rank") == (names.index(name) + 1 if name in names else None), shown
            assert (b"reason" in shown) == (name not in names)


def name_of(hit: Hit) -> bytes:
    assert hit.pairs is not None
    name: bytes = hit.pairs[b"key"] + b"\0" + hit.id
    return name


@pytest.fixture
def maps(server: Running) -> Agent:
    """RESP3, where numbers are shown to the last bit."""
    agent = server.agent("resp3")
    agent("CONFIG", "SET", "mem-max-topk", 100_000)
    return agent


@pytest.mark.parametrize("seed", range(60 if LONG else 8))
@pytest.mark.parametrize("lists", [False, True])
def test_random_memories(
    maps: Agent, clock: Clock, seed: int, lists: bool, request: pytest.FixtureRequest
) -> None:
    """With posting lists from a few rows on, and in the forward index alone."""
    if lists:
        request.getfixturevalue("small")
    world = World(maps, clock, random.Random(f"{seed} {lists}"))
    for _ in range(150):
        world.write()
    for _ in range(25):
        for _ in range(6):
            world.write()
        world.pass_time()
        world.ask()
    assert world.mixed > 1


@pytest.mark.parametrize("metric", ["COSINE", "L2"])
def test_memories_of_several_blocks(maps: Agent, clock: Clock, metric: str) -> None:
    """Rows by the thousand: whole blocks and what is behind them, posting lists of some, a thread, what was deleted."""
    chance = random.Random(metric)
    world = World(maps, clock, chance, ())
    sizes = {"t": 4_096, "t:u": 4_700, "t:u:v": 300, "x": 9_000 if LONG else 4_200}
    for key, size in sizes.items():
        maps("MEM.CREATE", key, "DIM", 2, "METRIC", metric, "HISTORY", "ALL")
        held = world.held[key] = Held(Memory("HYBRID", 2, metric), "")
        held.memory.analyzer = Analyzer("english", world.vocabulary)
        batch: list[Word] = []
        for number in range(size):
            record_id, text, vector = b"%d" % number, world.text(3), smooth(chance, 2)
            has = chance.random() < 0.9
            held.memory.add(JUNE, record_id, text, vector if has else None)
            batch += ["RECORD", "ID", record_id, "TEXT", text, *(("VEC", blob(vector)) if has else ())]
        maps("MEM.MADD", key, size, *batch)
    scopes: list[tuple[str, list[Word], list[str]]] = [
        ("t", ["CASCADE", "DOWN"], ["t", "t:u", "t:u:v"]),
        ("t:u:v", ["CASCADE", "UP", "ACROSS", 1, "x"], ["t:u:v", "t:u", "t", "x"]),
    ]
    all_of_them = [world.virtual(key, covered, JUNE) for key, _, covered in scopes]
    clock.advance(1_000)
    for key, size in sizes.items():
        maps("MEM.DEL", key, *range(0, size, 5))
        for number in range(0, size, 5):
            world.held[key].drop(b"%d" % number)
    left = [world.virtual(key, covered, clock.now_ms) for key, _, covered in scopes]
    asked = [
        Query("QUERY", b"w1 w2", (1.0, 0.5), weights=(1, 1, 1, 1), fusion="RRF"),
        Query("QUERY", None, (1.0, 0.5), weights=(0, 1, 0, 0)),
        Query("QUERY", b"running w5", (1.0, 0.5)),
    ]
    for (key, options, _), then, now in zip(scopes, all_of_them, left, strict=True):
        for query in asked:
            words = [*query.words(key.encode()), *options]
            world.check(now.answer(query, clock.now_ms), words)
        world.check(then.answer(query, JUNE), [*words, "ASOF", JUNE])


LONERS = ("a", "b:c", "bb", "d")


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_alone_it_is_the_plain_query_and_the_key(
    server: Running, clock: Clock, seed: int, joined: bool, protocol: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A memory without relatives; and to the last bit where it goes through what joins several, one of them empty."""
    beside: dict[bytes, memory_module.Memory] = {}
    plan = cascade.plan
    monkeypatch.setattr(cascade, "plan", lambda members, *rest: plan({**members, **beside}, *rest))
    world = World(server.agent("resp3"), clock, random.Random(seed), LONERS)
    chance, wire = world.chance, server.wire(protocol)
    for _ in range(40):
        world.write()
    for _ in range(30):
        world.write()
        world.pass_time()
        key = chance.choice(list(world.held))
        words = world.query(key).words(key.encode())
        words += chance.choice(([], ["EXPLAIN"], ["WITHMETA", "WITHTAGS", "WITHVEC", "WITHSCORES"]))
        if chance.random() < 0.3:
            words += ["ASOF", clock.now_ms - 800]
        explains: list[list[Word]] = [["MEM.EXPLAIN", key, record_id, *words[2:]] for record_id in IDS[:3]]
        hits, explained = wire(*words), [wire.raw(*each) for each in explains]
        if joined:
            beside[b"~"] = memory_module.Memory(memory_module.Settings(mode="SEARCH"), Vocabulary(), 0)
        for alone in (["CASCADE", "DOWN"], ["CASCADE", "UP"], ["ACROSS", 0], ["ACROSS", 3, key, "absent", key]):
            assert wire(*words, *alone) == [with_key(hit, key.encode()) for hit in hits]
            assert [wire.raw(*each, *alone) for each in explains] == explained
        beside.clear()


def with_key(hit: Any, key: bytes) -> Any:
    if isinstance(hit, dict):
        return {b"key": key, **hit}
    return [hit[0], key, *hit[1:]]


@pytest.mark.parametrize("seed", range(8 if LONG else 3))
def test_what_was_said_is_said_again(server: Running, clock: Clock, seed: int, small: None) -> None:
    """ASOF t KNOWNAT t over memories that hold all history gives, to the byte, what the query gave at t."""
    chance = random.Random(seed)
    agent = server.agent("resp3")
    wire = agent.wire
    keys = ("t", "t:u", "t:u:v", "x")
    for key in keys:
        mode = chance.choice(("HYBRID", "HYBRID", "SEARCH"))
        wire("MEM.CREATE", key, "MODE", mode, *(("DIM", 2) if mode == "HYBRID" else ()), "HISTORY", "ALL")
    modes = {key: wire("MEM.INFO", key)[b"mode"] for key in keys}
    told: list[tuple[int, list[Word], bytes]] = []
    for turn in range(120):
        key, record_id = chance.choice(keys), chance.choice(IDS)
        if chance.random() < 0.2:
            wire("MEM.DEL", key, record_id)
        else:
            words: list[Word] = ["TEXT", " ".join(chance.choices(WORDS, k=3)), "META", "f", chance.choice("ab")]
            if modes[key] == b"HYBRID":
                words += ["FVEC", 2, 1.0, chance.choice((0.0, 1.0, -1.5))]
            if chance.random() < 0.2:
                words += ["VALIDUNTIL", clock.now_ms + 900]
            wire("MEM.ADD", key, "ID", record_id, *words)
        clock.advance(chance.choice((1, 300)))
        if turn % 3 == 0:
            key = chance.choice(keys)
            words = ["MEM.QUERY", key, "TEXT", " ".join(chance.choices(WORDS, k=2)), "TOPK", 20]
            words += ["CASCADE", chance.choice(("UP", "DOWN")), "ACROSS", 2, *chance.sample(keys, 2)]
            words += chance.choice(([], ["EXPLAIN"], ["FILTER", "f", "EQ", "a"], ["FUSION", "RRF"]))
            if modes[key] == b"HYBRID":
                words += ["FVEC", 2, 1.0, 0.5]
            told.append((clock.now_ms, words, wire.raw(*words)))
            clock.advance(1)
        for at, asked, reply in told[-6:]:
            assert wire.raw(*asked, "ASOF", at, "KNOWNAT", at) == reply
    assert any(len(reply) > 200 for _, _, reply in told)
