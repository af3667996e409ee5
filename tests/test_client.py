"""The Python client against a real server: every method, sync and asyncio, RESP2 and RESP3, decoded replies or not."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, NamedTuple

import numpy as np
import pytest
import redis
import redis.asyncio
from fake_provider import Provider
from harness import DAY, HOUR, JUNE, Clock, Running
from hypothesis import given
from hypothesis import strategies as st
from inference_stand_in import MESSAGE, StandIn, fails, says
from inference_stand_in import fact as said
from recalld.client import (
    Analyzed,
    Answer,
    AsyncMemory,
    Embedded,
    Entity,
    Event,
    F,
    Fact,
    Filter,
    Hit,
    Memory,
    NextModel,
    QueryCounts,
    Read,
    Recall,
    Retention,
    Stats,
    Switching,
    Verified,
    Weights,
    fact_commands,
    replies,
)
from recalld.client import commands as building
from recalld.client import words as words_of
from recalld.client.replies import HitForm, as_map, hits
from recalld.index.filters import split_list
from recalld.server.arguments import time_ms

#: No UTF-8, and what surrogateescape makes of it.
BYTES = b"caf\xe9 \xff"
ESCAPED = "caf\udce9 \udcff"


class Way(NamedTuple):
    """How the client is spoken to."""

    asynchronous: bool
    protocol: int
    decode: bool

    def __str__(self) -> str:
        return f"{'async' if self.asynchronous else 'sync'}-resp{self.protocol}{'-decoded' * self.decode}"


WAYS = [Way(flavour, protocol, decode) for flavour in (False, True) for protocol in (2, 3) for decode in (False, True)]


class Caller:
    """Memory's methods, whichever class it is: an AsyncMemory's are run to their end, iterators into lists."""

    def __init__(self, memory: Memory | AsyncMemory, runner: asyncio.Runner) -> None:
        self.memory = memory
        self.runner = runner

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            result = getattr(self.memory, name)(*args, **options)
            if inspect.isasyncgen(result):
                return self.runner.run(_listed(result))
            if inspect.isgenerator(result):
                return list(result)
            return self.runner.run(_awaited(result)) if inspect.isawaitable(result) else result

        return call

    def heard(self, act: Callable[[], Any], count: int) -> list[Event]:
        """The first `count` events of what `act` does."""
        if isinstance(self.memory, Memory):
            with self.memory.events() as events:
                act()
                return [next(events) for _ in range(count)]
        return self.runner.run(_heard(self.memory, act, count))


async def _listed(iterator: Any) -> list[Any]:
    return [each async for each in iterator]


async def _awaited(result: Any) -> Any:
    return await result


async def _heard(memory: AsyncMemory, act: Callable[[], Any], count: int) -> list[Event]:
    async with memory.events() as events:
        act()
        return [await anext(events) for _ in range(count)]


@pytest.fixture(params=WAYS, ids=str)
def way(request: pytest.FixtureRequest) -> Way:
    way: Way = request.param
    return way


@pytest.fixture
def memories(server: Running, way: Way) -> Iterator[Callable[[str | bytes], Caller]]:
    """A memory of the server by key, over one client of this way."""
    options: dict[str, Any] = {"port": server.port, "protocol": way.protocol, "decode_responses": way.decode}
    with asyncio.Runner() as runner:
        if way.asynchronous:
            client = redis.asyncio.Redis(host="127.0.0.1", **options)
            yield lambda key: Caller(AsyncMemory(client, key), runner)
            runner.run(client.aclose())
        else:
            with redis.Redis(host="127.0.0.1", **options) as blocking:
                yield lambda key: Caller(Memory(blocking, key), runner)


@pytest.fixture
def words(memories: Callable[[str | bytes], Caller]) -> Caller:
    """An empty memory of words."""
    memory = memories("words")
    assert memory.create(mode="SEARCH") is True
    return memory


@pytest.fixture
def both(memories: Callable[[str | bytes], Caller]) -> Caller:
    """An empty memory of words and vectors of two numbers."""
    memory = memories("both")
    assert memory.create(dim=2, half_life=3600) is True
    return memory


# -- memories


def test_create_once(words: Caller) -> None:
    with pytest.raises(redis.ResponseError, match="memory index already exists"):
        words.create(mode="SEARCH")
    assert words.create(mode="SEARCH", exists_ok=True) is False
    with pytest.raises(redis.ResponseError, match="HALFLIFE must be positive"):
        words.create(mode="SEARCH", half_life=0, exists_ok=True)


def test_config_and_info(memories: Callable[[str | bytes], Caller]) -> None:
    """What was set is what is read, each number as it was given."""
    memory = memories("settings")
    memory.create(
        mode="HYBRID",
        dim=3,
        metric="L2",
        lang="german",
        weights=(0.1, np.float32(0.25), 0, 1),
        half_life=timedelta(days=1),
        fusion="RRF",
        k1=1.25,
        b=np.float64(0.5),
        history="ALL",
    )
    config = memory.config()
    assert (config.mode, config.dim, config.metric, config.lang) == ("HYBRID", 3, "L2", "german")
    assert config.weights == Weights(keyword=0.1, vector=0.25, recency=0, importance=1)
    assert (config.half_life, config.fusion, config.k1, config.b, config.history) == (86_400, "RRF", 1.25, 0.5, "ALL")
    assert memory.configure(weights=config.weights._replace(recency=0.5), history=timedelta(hours=1)) is None
    assert memory.configure() is None
    changed = memory.config()
    assert (changed.weights, changed.history) == (Weights(0.1, 0.25, 0.5, 1), 3600)
    memory.add("eins zwei", vector=[1, 2, 3])
    info = memory.info()
    assert (info.records, info.vectors, info.terms, info.avg_doc_len, info.next_id) == (1, 1, 2, 2.0, 2)
    assert (info.created_at, info.updated_at, info.pending, info.weights) == (JUNE, JUNE, 0, changed.weights)
    assert info.bytes > 0
    assert memory.count() == 1


def test_a_key_of_any_bytes(memories: Callable[[str | bytes], Caller]) -> None:
    memories(BYTES).create(mode="SEARCH")
    memories(ESCAPED).add("one")
    assert memories(BYTES).count() == 1
    with pytest.raises(redis.ResponseError, match="no such memory index"):
        memories("absent").count()


# -- records


def test_a_record_with_everything(both: Caller) -> None:
    made = both.add(
        "the keys hang by the door",
        vector=np.array([3.0, 4.0]),
        meta={"room": "hall", "floor": 1, "height": 1.5, BYTES: BYTES},
        tags=["home", BYTES],
        importance=0.75,
        ttl=timedelta(seconds=59.5),
        at=datetime(2026, 1, 2, tzinfo=UTC),
        id="keys",
        kind="episode",
        valid_at="2026-01-01",
        valid_until=datetime(2027, 1, 1),
        pin=True,
    )
    assert made == "keys"
    found = both.get("keys", with_vector=True)
    assert (found.id, found.text, found.importance) == ("keys", "the keys hang by the door", 0.75)
    assert found.meta == {"room": "hall", "floor": "1", "height": "1.5", ESCAPED: ESCAPED}
    assert found.tags == ("home", ESCAPED)
    assert (found.created_at, found.updated_at, found.pttl) == (1_767_312_000_000, 1_767_312_000_000, 60_000)
    assert (found.kind, found.valid_at, found.valid_until) == ("episode", 1_767_225_600_000, 1_798_761_600_000)
    assert found.cid.startswith("bafkrei")
    assert found.vector.dtype == np.float32
    np.testing.assert_array_equal(found.vector, np.array([0.6, 0.8], np.float32))
    assert found.vector.flags.writeable


def test_a_record_with_nothing(both: Caller) -> None:
    both.add(ESCAPED)
    found = both.get("1", with_vector=True)
    assert (found.text, found.tags, found.meta, found.vector) == (ESCAPED, (), {}, None)
    assert (found.kind, found.valid_at, found.valid_until, found.pttl, found.fact) == ("note", None, None, -1, None)
    bare = both.get("1", with_text=False, with_meta=False)
    assert (bare.text, bare.meta, bare.vector) == (None, None, None)
    assert both.get("absent") is None


def test_vectors_go_in_as_anything_numeric(both: Caller) -> None:
    spellings = [[0, 1], (0.0, 1.0), np.array([0, 1]), np.array([0, 1], ">f8"), np.array([0, 1], "<f4").tobytes()]
    for spelling in spellings:
        found = both.get(both.add("t", vector=spelling), with_vector=True)
        np.testing.assert_array_equal(found.vector, [0, 1])
    with pytest.raises(ValueError, match="one dimension"):
        both.add("t", vector=[[0, 1]])
    with pytest.raises(redis.ResponseError, match="expected 2 got 3"):
        both.add("t", vector=[1, 2, 3])
    with pytest.raises(redis.ResponseError, match="NaN or infinity"):
        both.add("t", vector=[1e300, 0])


def test_times_go_in_as_they_are(words: Caller) -> None:
    moment = datetime(2026, 6, 1, 2, tzinfo=timezone(timedelta(hours=2)))
    spellings = (JUNE, moment, datetime(2026, 6, 1), "2026-06-01", "2026-06-01T00:00:00Z")
    for at in (*spellings, moment + timedelta(microseconds=9)):
        assert words.get(words.add("t", at=at)).created_at == JUNE
    assert words.get(words.add("t", at=datetime(1969, 12, 31, 23, 59, 59, 999_500, UTC))).created_at == -1


@given(st.datetimes(timezones=st.none() | st.just(UTC) | st.just(timezone(timedelta(hours=-9, minutes=-30)))))
def test_every_time_means_the_same_to_the_server(moment: datetime) -> None:
    """As a datetime, or as the ISO 8601 of it."""
    assert time_ms(words_of.time(moment)) == time_ms(moment.isoformat().encode())


@given(st.binary())
def test_every_text_goes_there_and_back(text: bytes) -> None:
    assert words_of.text(replies.text(text)) == text


@given(st.floats(allow_nan=False) | st.integers(-(2**53), 2**53))
def test_every_number_is_read_as_it_was(number: float) -> None:
    assert float(words_of.number(number)) == number
    assert float(words_of.number(np.float64(number))) == float(number)


def test_conditions(both: Caller) -> None:
    both.add("first", id="x", vector=[1, 0], nx=True)
    with pytest.raises(redis.ResponseError, match="existence condition not met"):
        both.add("second", id="x", nx=True)
    with pytest.raises(redis.ResponseError, match="existence condition not met"):
        both.add("second", id="y", xx=True)
    both.add("second", id="x", xx=True, keepvec=True)
    np.testing.assert_array_equal(both.get("x", with_vector=True).vector, [1, 0])
    both.add("third", id="x")
    assert both.get("x", with_vector=True).vector is None


def test_many_at_once(both: Caller) -> None:
    made = both.add_many(["one", {"text": "two", "id": "b", "tags": ["t"], "vector": [1, 0]}, {"text": BYTES}])
    assert made == ["1", "b", "2"]
    first, second, absent, third = both.mget(["1", "b", "absent", "2"])
    assert (first.text, second.text, absent, third.text) == ("one", "two", None, ESCAPED)
    assert (second.tags, second.meta, second.vector) == (("t",), None, None)
    assert both.add_many([]) == both.mget([]) == []
    with pytest.raises(redis.ResponseError, match="record 2: IMPORTANCE must be between 0 and 1"):
        both.add_many(["fine", {"text": "not", "importance": 2}])
    assert both.count() == 3
    with pytest.raises(TypeError):
        both.add_many([{"text": "t", "colour": "red"}])


def test_delete(words: Caller) -> None:
    words.add_many(["one", "two", "three"])
    assert words.delete("1", "3", "absent") == 2
    assert words.delete() == 0
    assert words.scan() == ["2"]


def test_metadata(words: Caller) -> None:
    words.add("t", meta={"a": 1})
    assert words.set_meta("1", {"a": "x", "b": True, BYTES: ESCAPED}) == 2
    assert words.get("1").meta == {"a": "x", "b": "1", ESCAPED: ESCAPED}
    assert words.delete_meta("1", "a", BYTES, "absent") == 2
    assert words.get("1").meta == {"b": "1"}
    with pytest.raises(redis.ResponseError, match="no such record"):
        words.set_meta("absent", {"a": 1})


def test_expire(words: Caller, clock: Clock) -> None:
    words.add("t")
    assert words.expire("1", 60) is True
    assert words.get("1").pttl == 60_000
    assert words.expire("1", None) is True
    assert words.get("1").pttl == -1
    assert words.expire("absent", 1) is False
    words.expire("1", timedelta(milliseconds=1))
    clock.advance(999)
    assert words.get("1") is not None
    clock.advance(1)
    assert words.get("1") is None


def test_scan_and_list(words: Caller, clock: Clock) -> None:
    for number in range(25):
        words.add(f"note {number}", meta={"n": number}, tags=["even"] if number % 2 == 0 else [])
        clock.advance(1)
    everything = [str(number + 1) for number in range(25)]
    assert words.scan(count=7) == everything
    assert words.scan(filters=F("n") >= 20) == everything[20:]
    assert words.scan(filters=(F("n") >= number for number in (3, 9)), count=4) == everything[9:]
    assert [each.id for each in words.list(limit=3, offset=1)] == ["24", "23", "22"]
    (found,) = words.list(filters=[F.tags.any("even"), F("n") < 2], with_text=False)
    assert (found.id, found.text, found.meta, found.tags) == ("1", None, {"n": "0"}, ("even",))
    with pytest.raises(redis.ResponseError, match="unexpected argument 'TAGS'"):
        words.scan(filters=F.tags.any("even"))


def test_forget(words: Caller) -> None:
    words.add_many([{"text": "a", "tags": ["x"]}, {"text": "b", "tags": ["x", "y"]}, {"text": "c", "id": BYTES}])
    assert sorted(words.forget(F.tags.any("x"), dry_run=True)) == ["1", "2"]
    assert words.count() == 3
    assert words.forget([F.tags.all("x", "y"), ("@text", "EQ", "b")]) == ["2"]
    assert words.forget(("@text", "EQ", "c")) == [ESCAPED]
    assert words.count() == 1
    with pytest.raises(redis.ResponseError):
        words.forget([])


# -- filters


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        (F("price") == 7, "b"),
        (F("price") != 7, "acd"),
        (F("price") < 7.5, "ab"),
        (F("price") <= 7, "ab"),
        (F("price") > 7, "c"),
        (F("price") >= np.int64(7), "bc"),
        (F("name").isin("x,y", "z"), "ab"),
        (F("name").notin("x,y", "z"), "cd"),
        (F("name").contains(","), "a"),
        (F("name").startswith("x"), "a"),
        (F("name").exists(), "abc"),
        (F("name").exists(False), "d"),
        (F(BYTES) == ESCAPED, "c"),
        (F("@created_at") >= datetime(2026, 1, 1), "bcd"),
        (F("@created_at") < JUNE, "a"),
        (F("@importance") > 0.5, "d"),
        (F.tags.any("s", "t"), "abd"),
        (F.tags.all("s", "t"), "b"),
        ([F.tags.any("s"), F("price") > 5], "b"),
        ([F.tags.any("s"), ("price", "GT", 5)], "b"),
        (("price", "EXISTS", 0), "d"),
        ([], "abcd"),
    ],
)
def test_filters(server: Running, clause: Any, expected: str) -> None:
    with Memory(f"redis://127.0.0.1:{server.port}", "k") as memory:
        memory.create(mode="SEARCH")
        memory.add("w", id="a", meta={"price": 5, "name": "x,y"}, tags=["s"], at="2025-12-31")
        memory.add("w", id="b", meta={"price": 7, "name": "z"}, tags=["s", "t"])
        memory.add("w", id="c", meta={"price": 9, "name": "w", BYTES: BYTES})
        memory.add("w", id="d", importance=1, tags=["t"])
        assert "".join(sorted(hit.id for hit in memory.search("w", filters=clause))) == expected


def test_what_is_no_filter() -> None:
    for wrong in (["price < 5"], [("price", "LT")], ["price", "LT", 5]):
        with pytest.raises(TypeError, match="a filter is"):
            building.search("k", "w", filters=wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="value is"):
        F("a") == None  # type: ignore[operator]  # noqa: B015, E711
    with pytest.raises(ValueError, match="backslash"):
        F("a").isin("x\\", "y")
    assert F("a").isin("x", "y\\") == Filter((b"FILTER", b"a", b"IN", b"x,y\\"))
    with pytest.raises(TypeError, match="a list of texts"):
        building.add("k", "t", tags="home")


@given(st.lists(st.binary(max_size=4).filter(lambda value: not value.endswith(b"\\")), min_size=1))
def test_a_list_of_values_is_read_as_it_was(values: list[bytes]) -> None:
    r"""Commas, backslashes and both inside a value; the server's own reading is the judge."""
    (_, _, _, joined) = F("a").isin(*values).words
    assert split_list(joined) == tuple(values)


# -- retrieval


def test_query(both: Caller, way: Way, clock: Clock) -> None:
    """Every field of a hit; what RESP2 leaves out is None."""
    both.add("alpha beta", vector=[1, 0], meta={"m": BYTES}, tags=["t"], importance=0.25, id=BYTES)
    both.add("gamma", vector=[0, 1])
    clock.advance(HOUR)
    first, second = both.query("alpha", [1, 0], with_vector=True)
    assert (first.id, first.text, first.tags, first.meta) == (ESCAPED, "alpha beta", ("t",), {"m": ESCAPED})
    assert (first.similarity, first.recency, first.importance, first.key) == (1.0, 0.5, 0.25, None)
    assert first.keyword > 0
    assert first.explain is None
    np.testing.assert_array_equal(first.vector, np.array([1, 0], np.float32))
    times = (first.created_at, first.updated_at, first.pttl)
    assert times == ((JUNE, JUNE, -1) if way.protocol == 3 else (None, None, None))
    assert (second.id, second.keyword, second.tags, second.meta) == ("1", None, (), {})
    bare = both.query("alpha", with_text=False, with_meta=False)[0]
    assert (bare.id, bare.text, bare.meta, bare.tags, bare.vector) == (ESCAPED, None, None, ("t",), None)
    assert bare.score == pytest.approx(0.35 + 0.1 * 0.5 + 0.05 * 0.25)
    assert both.query(vector=[0, 1])[0].id == "1"
    assert both.query("unknown").stats is None
    with pytest.raises(redis.ResponseError, match="TEXT, VEC, or FVEC is required"):
        both.query()
    with pytest.raises(TypeError):
        both.query("alpha", topk=3)


def test_search_and_vsearch(both: Caller) -> None:
    both.add_many([{"text": "alpha beta", "vector": [1, 0]}, {"text": "alpha", "vector": [0, 1]}, "beta"])
    assert [hit.id for hit in both.search("beta alpha", top_k=2)] == ["1", "2"]
    (found,) = both.search("beta", offset=1)
    assert (found.id, found.similarity, found.recency) == ("1", None, None)
    assert found.keyword == found.score
    found, other = both.vsearch(np.array([0, 2]), with_vector=True)
    assert (found.id, found.score, found.keyword, other.score) == ("2", 1.0, None, 0.0)
    assert [hit.id for hit in both.vsearch([0, 1], min_score=0.5)] == ["2"]


def test_options_of_query(both: Caller, clock: Clock) -> None:
    """Each option changes what it should, and none is lost."""
    both.add("alpha", vector=[1, 0], id="a")
    clock.advance(HOUR)
    both.add("alpha alpha", vector=[0, 1], id="b", tags=["t"])

    def ids(**options: Any) -> list[str]:
        return [hit.id for hit in both.query("alpha", [1, 0], **options)]

    assert ids(weights=(0, 1, 0, 0)) == ["a", "b"]
    assert ids(weights=(1, 0, 0, 0)) == ["b", "a"]
    assert ids(weights=(1, 0, 0, 0), top_k=1, offset=1) == ["a"]
    assert ids(min_sim=0.5) == ["a"]
    assert ids(filters=F.tags.any("t")) == ["b"]
    assert ids(as_of=JUNE) == ["a"]
    assert ids(known_at=datetime(2026, 6, 1)) == ["a"]
    assert both.query("alpha", as_of=JUNE)[0].recency == 1.0
    assert both.query("alpha", half_life=timedelta(minutes=30), weights=(0, 0, 1, 0))[1].score == 0.25
    assert both.query("alpha", fusion="RRF", rrf_k=9, weights=(0, 0, 1, 0))[0].score == pytest.approx(0.1)
    assert both.query("alpha", min_score=0.9, weights=(1, 0, 0, 0))[0].id == "b"
    assert len(ids(diversity=0.5)) == 2
    with pytest.raises(redis.ResponseError, match="DIVERSITY must be between 0 and 1"):
        ids(diversity=2)


def test_tiers_of_query(words: Caller) -> None:
    words.add_many(["alpha one", "alphabet"])
    assert words.tier() == "keyword"
    assert [hit.text for hit in words.query("alpha")] == ["alpha one"]
    found = words.query("pha", fallback="LIKE", stats=True)
    assert (found.stats.tier, {hit.text for hit in found}) == ("like", {"alpha one", "alphabet"})
    assert len(words.query("alpha", tier="LIKE")) == 2
    assert words.query("alphab", tier="KEYWORD", embed=False) == []
    assert words.explain("2", "alpha", tier="LIKE").rank == 2


def test_the_words_of_later_options() -> None:
    """Those that a server may not know yet stand in the command as the contract has them."""
    create = building.create("k", max_records=9, max_bytes=10)
    assert create.words[2:] == (b"MAXRECORDS", b"9", b"MAXBYTES", b"10")


def test_several_memories_as_one(memories: Callable[[str | bytes], Caller]) -> None:
    """Each hit, fact and episode says its key, which is bytes like any other."""
    keys = ["m", b"m:" + BYTES, "x"]
    for key in keys:
        memory = memories(key)
        memory.create(mode="SEARCH")
        memory.add("tea time", kind="episode")
        memory.fact("user", "likes", "tea", type="FOOD")
    named, below = memories("m"), "m:" + ESCAPED
    assert named.query("tea", filters=F("@kind") == "episode")[0].key is None
    for options, expected in (({"cascade": "DOWN"}, ["m", below]), ({"cascade": "UP", "across": ["x"]}, ["m", "x"])):
        found = named.query("tea", filters=F("@kind") == "episode", stats=True, explain=True, **options)
        assert [hit.key for hit in found] == expected
        assert found.stats.records == 2 * len(expected)
        recalled = named.recall("tea", episodes=9, **options)
        assert [fact.key for fact in recalled.facts] == [each.key for each in recalled.episodes] == expected
        assert [(each.name, each.facts) for each in recalled.entities] == [("tea", len(expected))]
    assert [hit.key for hit in memories(keys[1]).query("tea", across=[b"x", "m"], top_k=1)] == ["m"]
    assert named.recall("tea").facts[0].key is None
    assert named.explain("1", "tea", cascade="DOWN", across=["absent"]).rank == 1


def test_dedup(both: Caller) -> None:
    first = both.add("Red apple", vector=[1, 0])
    assert (first, first.stored, first.near) == ("1", True, ())
    again = both.add("red  APPLE", dedup=True)
    assert (again, again.stored, again.near) == ("1", False, ())
    other = both.add("green apple", vector=[1, 0.1], near=0.9, id=BYTES)
    assert (other, other.stored, other.near) == (ESCAPED, True, ("1",))
    assert both.add("GREEN apple", near=0.9).near == ("1",)
    assert both.get(other).text == "green apple"
    assert both.count() == 2


def test_content_ids(words: Caller) -> None:
    words.add_many([{"text": "one", "id": "a"}, {"text": "two", "id": "b"}])
    cid = words.get("a").cid
    assert (words.get(cid).id, words.get(cid + "x")) == ("a", None)
    assert words.verify() == Verified(checked=2, bad=0)
    assert words.verify(cid) == words.verify("b") == (1, 0)
    assert words.verify("absent").checked == 0


def test_tag_boost(memories: Callable[[str | bytes], Caller]) -> None:
    memory = memories("tags")
    memory.create(mode="SEARCH", tag_boost=0.5)
    memory.add("alpha", tags=["alpha"])
    assert memory.config().tag_boost == 0.5
    (found,) = memory.query("alpha", explain=True)
    assert found.explain.parts["keyword"].tag_boost == 0.5
    assert found.explain.parts["recency"].tag_boost is None
    memory.configure(tag_boost=0)
    assert memory.query("alpha", explain=True)[0].explain.parts["keyword"].tag_boost is None


def test_evict(memories: Callable[[str | bytes], Caller], clock: Clock) -> None:
    """The least importance goes first where all else is equal, and never what has a PIN, which `get` shows."""
    memory = memories("full")
    memory.create(mode="SEARCH", max_records=4, half_life=3600)
    memory.add("pinned", id="p", importance=0, pin=True)
    memory.add_many([{"text": "low", "id": BYTES, "importance": 0.1}, {"text": "kept", "id": "k", "pin": True}])
    memory.add("high", id="h", importance=1)
    assert [memory.get(each, with_fact=True).pin for each in ("p", "k", "h")] == [True, True, False]
    clock.advance(HOUR)
    least = Retention(ESCAPED, pytest.approx((0.1 + 0.5) / 3), 0.1, 0.5, 0.0)
    assert memory.evict(dry_run=True) == [least]
    assert [each.id for each in memory.evict(count=10, dry_run=True)] == [ESCAPED, "h"]
    assert memory.count() == 4
    assert memory.evict() == [least]
    assert memory.get(BYTES) is None
    memory.configure(max_records=3, max_bytes=1 << 20)
    memory.add("new", id="n", importance=0.9)  # makes room by itself
    assert sorted(memory.scan()) == ["k", "n", "p"]
    assert (memory.config().max_records, memory.config().max_bytes) == (3, 1 << 20)


def test_counts_of_queries(both: Caller, clock: Clock) -> None:
    assert both.stats() == QueryCounts(0, 0, 0, 0.0, 0, None, 0, None, None, None)
    both.add("tea with milk", importance=1)
    (hit,) = both.query("tea")
    both.query("nothing of it")
    both.search("tea")
    counts = both.stats()
    assert (counts.queries, counts.empty, counts.last_query_at) == (3, 1, clock())
    assert (counts.scored, counts.score_min, counts.score_max) == (
        1,
        pytest.approx(hit.score, abs=1e-4),
        counts.score_mean,
    )
    assert counts.usec_max <= counts.usec and counts.usec_mean == pytest.approx(counts.usec / 3, abs=1)


def test_audit(memories: Callable[[str | bytes], Caller], server: Running, way: Way) -> None:
    words = memories(str(way))  # entries outlast the memory
    words.create(mode="SEARCH")
    assert words.audit() == []
    server.wire()("CONFIG", "SET", "mem-audit", "all")
    words.add("alpha")
    words.query("alpha beta")
    words.get("1")
    newest, oldest = words.audit()
    assert newest.command == "MEM.GET"
    assert oldest.client
    assert oldest == Read("default", oldest.client, str(way), "MEM.QUERY", oldest.query, 1, "keyword", JUNE)
    assert "alpha beta" in oldest.query
    assert words.audit(limit=1, accessor="default", since=datetime(2026, 6, 1)) == [newest]
    assert words.audit(accessor="nobody") == words.audit(since=JUNE + 1) == []


def test_embedder(memories: Callable[[str | bytes], Caller], server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server makes the vectors, later where it cannot now; a change of model, and how far it is."""
    provider = Provider(monkeypatch)
    model = str(time.monotonic_ns())  # a server has one embedder for a model, and it is the one of this test
    memory = memories("e")
    memory.create(embedder="openai", model=model, dim=3)
    config = memory.config()
    assert (config.embedder, config.model, config.dim, config.next) == ("openai", model, 3, None)
    memory.add("alpha", id="a")
    assert (memory.info().vectors, memory.tier()) == (1, "hybrid")
    (hit,) = memory.query("alpha")
    assert hit.similarity == pytest.approx(1, abs=1e-6)
    assert memory.query("alpha", embed=False)[0].similarity is None
    provider.down = True
    memory.add("beta")
    assert (memory.info().pending, memory.tier()) == (1, "keyword")
    assert memory.embed(count=1) == Embedded(done=0, left=1)
    provider.down = False
    provider.gate.clear()
    memory.configure(model=model + "b", dim=2)
    assert memory.config().next == NextModel("openai", model + "b", 2)
    assert memory.info().switching == Switching(model + "b", 0, 2)
    provider.gate.set()
    assert memory.embed().left == 0
    assert (memory.config().model, memory.config().next, memory.info().switching) == (model + "b", None, None)
    memory.configure(embedder="NONE")
    assert memory.config().embedder == "NONE"


def test_explanations(both: Caller) -> None:
    both.add_many([{"text": "alpha beta", "vector": [1, 0]}, {"text": "alpha", "vector": [0, 1]}, "gamma"])
    found = both.query("alpha", [1, 0], explain=True)
    for rank, hit in enumerate(found, 1):
        assert sum(part.contribution for part in hit.explain.parts.values()) == pytest.approx(hit.score)
        assert [term.term for term in hit.explain.terms] == ["alpha"]
        assert hit.explain.tier == "hybrid"
        alone = both.explain(hit.id, "alpha", [1, 0])
        assert (alone.id, alone.rank, alone.reason) == (hit.id, rank, None)
        assert alone.score == pytest.approx(hit.score)
        assert set(alone.parts) == {"keyword", "vector", "recency", "importance"}
        assert alone.parts["vector"].rank == rank
    assert both.explain("3", "alpha").reason == "no query word and no vector"
    assert both.explain("absent", "alpha").reason == "absent"
    beyond = both.explain("2", "alpha", [1, 0], top_k=1)
    assert (beyond.reason, beyond.rank) == ("beyond TOPK", 2)


def test_stats(words: Caller) -> None:
    words.add_many([{"text": "alpha", "tags": ["t"]}, "alpha", "beta"])
    found = words.query("alpha", filters=F.tags.any("t"), stats=True)
    stats = found.stats
    assert isinstance(stats, Stats)
    assert (stats.records, stats.matched, stats.filtered, stats.below_min_score, stats.returned) == (3, 2, 1, 0, 1)
    assert (stats.signals, stats.tier) == (("keyword", "recency", "importance"), "keyword")
    assert [hit.id for hit in found] == ["1"]


def test_hits_as_maps_in_resp2(both: Caller, server: Running) -> None:
    """mem-hit-format map: the same hits, with their times."""
    server.wire()("CONFIG", "SET", "mem-hit-format", "map")
    both.add("score", vector=[1, 0], id="id", meta={"a": "b"}, tags=["t"])
    (found,) = both.query("score", [1, 0], explain=True, with_vector=True)
    assert (found.id, found.text, found.meta, found.tags) == ("id", "score", {"a": "b"}, ("t",))
    assert (found.created_at, found.pttl, found.similarity, found.recency) == (JUNE, -1, 1.0, 1.0)
    assert set(found.explain.parts) == {"keyword", "vector", "recency", "importance"}
    (bare,) = both.search("score", with_text=False, with_meta=False)
    assert (bare.id, bare.text, bare.updated_at) == ("id", None, JUNE)


# -- facts


def test_facts(both: Caller, clock: Clock) -> None:
    made = both.fact(
        "Alice",
        "works at",
        "Acme",
        type="ORG",
        confidence=0.75,
        quote=BYTES,
        valid_at="2026-01-01",
        valid_until="2027-01-01",
        episode="e1",
        id="f1",
        vector=[1, 0],
        entity_vector=np.array([0, 1]),
        meta={"source": "chat"},
        tags=["job"],
        ttl=timedelta(days=30),
    )
    assert made == "f1"
    (found,) = page = both.facts()
    assert page.total == 1
    assert found == Fact(
        id="f1",
        subject="alice",
        predicate="works at",
        object="acme",
        entity_type="ORG",
        confidence=0.75,
        quote=ESCAPED,
        valid_at=1_767_225_600_000,
        valid_until=1_798_761_600_000,
        invalid_at=None,
        episode="e1",
        created_at=JUNE,
        supersedes=None,
        superseded_by=None,
    )
    assert found.text == "alice works at acme"
    record = both.get("f1", with_fact=True)
    assert (record.kind, record.fact, record.text, record.tags) == ("fact", found, "alice works at acme", ("job",))
    assert (record.meta, record.pttl) == ({"source": "chat"}, 30 * DAY)
    clock.advance(DAY)
    assert both.fact("alice", "works at", "Globex", supersedes="f1", at=JUNE + HOUR) == "1"
    assert [each.id for each in both.facts()] == ["1"]
    old, new = both.facts(invalidated=True)
    assert (old.invalid_at, old.superseded_by, new.supersedes) == (JUNE + HOUR, "1", "f1")
    assert [each.id for each in both.facts(as_of=JUNE)] == ["f1"]
    assert [each.id for each in both.facts(known_at=datetime(2026, 6, 1), as_of=JUNE)] == ["f1"]
    assert [each.id for each in both.facts("globex")] == ["1"]
    assert [each.id for each in both.facts(entity="acme", invalidated=True)] == ["f1"]
    page = both.facts(invalidated=True, limit=1, offset=1)
    assert ([each.id for each in page], page.total) == (["1"], 2)


def test_invalidate(words: Caller) -> None:
    words.fact("s", "p", "o", id="f")
    assert words.invalidate("f") is True
    assert words.invalidate("f") is False
    assert len(words.facts()) == 0
    assert words.invalidate("f", clear=True) is True
    assert words.invalidate("f", at="2030-01-01") is True
    assert [each.id for each in words.facts()] == ["f"]


def test_entities(both: Caller) -> None:
    made = both.entity("Acme", type="ORG", aliases=["acme corp", "ACME Inc"], vector=[1, 0])
    assert made == Entity("acme", "ORG", ("acme corp", "acme inc"), 0, JUNE, "created")
    assert both.entity("acme corp", type="ORG").resolved == "alias"
    both.fact("alice", "works at", "acme", type="ORG")
    both.entity("globex", type="ORG")
    assert both.entity("acme", type="ORG", merge="globex").aliases == ("acme corp", "acme inc", "globex")
    both.entity("rome", type="PLACE")
    page = both.entities()
    assert ([(each.name, each.facts, each.resolved) for each in page], page.total) == (
        [("acme", 1, None), ("rome", 0, None)],
        2,
    )
    assert [each.name for each in both.entities(type="PLACE")] == ["rome"]
    page = both.entities(limit=1, offset=1)
    assert ([each.name for each in page], page.total) == (["rome"], 2)


def test_paths(words: Caller) -> None:
    words.fact("alice", "works at", "acme", type="ORG", id="1")
    words.fact("acme", "is in", "rome", type="PLACE", id="2")
    assert [(each.id, each.depth) for each in words.paths("alice")] == [("1", 1)]
    assert [(each.id, each.depth) for each in words.paths("alice", depth=2)] == [("1", 1), ("2", 2)]
    assert [each.id for each in words.paths("alice", depth=2, limit=1)] == ["1"]
    assert words.paths("alice", as_of=JUNE - 1) == []


def test_recall(words: Caller) -> None:
    words.fact("user", "likes", "green tea", type="FOOD", id="f")
    words.fact("user", "drives", "a bicycle", id="g", confidence=0.4)
    words.add("We drank green tea in Kyoto", kind="episode", id="e")
    found = words.recall("what tea?", episodes=1)
    assert isinstance(found, Recall)
    assert (
        str(found)
        == found.context
        == (
            "Known facts about user, most relevant first.\n\n"
            "# FACTS  (format: fact (valid: from - to))\n"
            "- user likes green tea  (valid: 2026-06-01 - present)\n\n"
            "# ENTITIES\n- green tea (FOOD)\n\n"
            "# EPISODES\n- We drank green tea in Kyoto  (2026-06-01)"
        )
    )
    (fact,) = found.facts
    assert (fact.id, fact.keyword_rank, fact.vector_rank) == ("f", 1, None)
    assert fact.score > 0
    assert [(each.name, each.type, each.facts) for each in found.entities] == [("green tea", "FOOD", 1)]
    assert [each.id for each in found.episodes] == ["e"]
    assert found.omitted == ()
    assert [each.id for each in words.recall(min_confidence=0.3).facts] == ["f", "g"]
    assert words.recall("zebra").context == ""
    assert [each.id for each in words.recall("zebra", fallback="RECENT").facts] == ["f"]
    cut = words.recall("tea", budget=1)
    assert (cut.context, cut.facts, cut.omitted) == ("", (), ("f",))
    assert words.recall("tea", facts=0, anchor_top_k=1, anchor_min=0.5).facts == ()
    assert words.recall("tea", as_of=JUNE - 1).facts == ()


def test_what_a_model_makes_of_it(asking: Callable[..., Running], model: StandIn, way: Way) -> None:
    """analyze, consult, and recall with synthesis: what the model says, typed, or why it says nothing."""
    server = asking()
    options: dict[str, Any] = {"port": server.port, "protocol": way.protocol, "decode_responses": way.decode}
    kind, client = (AsyncMemory, redis.asyncio.Redis) if way.asynchronous else (Memory, redis.Redis)
    with asyncio.Runner() as runner:
        connected = client(**options)
        memory = Caller(kind(connected, "k"), runner)
        memory.create(mode="SEARCH")
        assert memory.consult("where?") == Answer(None, ())  # nobody is asked where nothing is known
        model.will(says({"facts": [said()]}))
        found = memory.analyze(MESSAGE, at=JUNE - DAY)
        assert found == Analyzed(("1",), stored=1, restated=0)
        assert memory.facts()[0].text == "user lives in berlin"
        assert model.asked[-1].data["time"] == "2026-05-31T00:00:00Z"
        assert memory.analyze(MESSAGE) == Analyzed(("1",), stored=0, restated=1)
        model.will(says({"answer": "In Berlin.", "used": [1]}))
        assert memory.consult("where does the user live?") == Answer("In Berlin.", ("1",))
        model.will(says({"synthesis": "They live in Berlin."}))
        recall = memory.recall("where does the user live?", synthesis=True)
        assert (recall.synthesis, recall.synthesis_error) == ("They live in Berlin.", None)
        assert memory.recall("where does the user live?").synthesis is None
        model.will(fails(400))
        recall = memory.recall("where does the user live?", synthesis=True)
        assert recall.synthesis is None and recall.synthesis_error and recall.facts
        if way.asynchronous:
            runner.run(connected.aclose())
        else:
            connected.close()


# -- events


def test_events(words: Caller, server: Running) -> None:
    """From the moment of entering, whoever writes, ids as they are."""
    writer = server.wire()

    def act() -> None:
        writer("MEM.ADD", "words", "TEXT", "t", "TTL", 5, "ID", b"a b\xff")
        writer("MEM.FACT", "words", "s", "p", "o")
        writer("MEM.DEL", "words", b"a b\xff")

    assert words.heard(act, 4) == [
        Event("add", "a b\udcff"),
        Event("ttl", "a b\udcff"),
        Event("fact", "1"),
        Event("del", "a b\udcff"),
    ]
    # The connection went back, or was closed: the next listener hears the next ones only.
    assert words.heard(lambda: writer("MEM.DEL", "words", "1"), 1) == [Event("del", "1")]


def test_events_outlast_a_socket_timeout(server: Running) -> None:
    with server.client(3, socket_timeout=0.01) as client:
        memory = Memory(client, "k")
        memory.create(mode="SEARCH")
        with memory.events() as events:
            # The first reads may end without an event, which the caller does not see.
            writer = server.wire()
            writer.send("MEM.ADD", "k", "TEXT", "t")
            assert next(events) == Event("add", "1")


def test_a_lost_connection_ends_the_events(running: Callable[..., Running]) -> None:
    server = running()
    with server.client(3) as client, Memory(client, "k").events() as events:
        server.wire()("CLIENT", "KILL", "TYPE", "pubsub")
        with pytest.raises(redis.ConnectionError):
            next(events)


# -- where the connections come from


def test_a_pool_stays_the_callers(server: Running) -> None:
    pool = redis.ConnectionPool(host="127.0.0.1", port=server.port, decode_responses=True)
    with Memory(pool, "k") as memory:
        memory.create(mode="SEARCH")
        memory.add("t")
    assert memory.client.connection_pool is pool
    assert Memory(pool, "k").count() == 1
    pool.disconnect()


def test_a_client_stays_open(server: Running) -> None:
    with server.client(2) as client:
        with Memory(client, "k") as memory:
            memory.create(mode="SEARCH")
        assert memory.client is client
        assert client.ping() is True


def test_a_url_opens_resp3_and_closes_it(server: Running) -> None:
    with Memory(f"redis://127.0.0.1:{server.port}", "k") as memory:
        memory.create(mode="SEARCH")
        memory.add("t")
        assert memory.query("t")[0].created_at == JUNE
        assert len(server.wire()("CLIENT", "LIST", "TYPE", "normal").splitlines()) == 2


@pytest.mark.parametrize("kind", [Memory, AsyncMemory])
def test_what_a_url_leaves_open(kind: type[Memory] | type[AsyncMemory]) -> None:
    """The server's own port and RESP3, unless the URL says otherwise."""

    def options(url: str) -> dict[str, Any]:
        return dict(kind(url, "k").client.connection_pool.connection_kwargs)

    assert (options("redis://host")["port"], options("redis://host")["protocol"]) == (7171, 3)
    assert (options("redis://host:6379")["port"], int(options("redis://host?protocol=2")["protocol"])) == (6379, 2)
    assert options("rediss://host")["port"] == 7171
    assert "port" not in options("unix:///run/recalld.sock")
    assert kind("redis://host", "k", socket_timeout=5).client.connection_pool.connection_kwargs["socket_timeout"] == 5
    with pytest.raises(TypeError, match="socket_timeout: options are for a URL"):
        kind(kind("redis://host", "k").client, "k", socket_timeout=5)  # type: ignore[arg-type]


def test_the_same_with_asyncio(server: Running) -> None:
    async def use() -> None:
        pool = redis.asyncio.ConnectionPool(host="127.0.0.1", port=server.port)
        async with AsyncMemory(pool, "k") as memory:
            await memory.create(mode="SEARCH")
        assert memory.client.connection_pool is pool
        await pool.disconnect()
        async with AsyncMemory(f"redis://127.0.0.1:{server.port}", "k") as memory:
            await asyncio.gather(*(memory.add(f"note {number}") for number in range(20)))
            assert (await memory.query("note"))[0].created_at == JUNE
            assert await memory.count() == 20

    asyncio.run(use())


def test_both_classes_have_the_same_methods() -> None:
    def methods(kind: type) -> set[str]:
        return {name for name in vars(kind) if not name.startswith("_")}

    assert methods(Memory) == methods(AsyncMemory)


def test_what_help_shows() -> None:
    for kind in (Memory, AsyncMemory):
        assert str(inspect.signature(kind.delete)) == "(self, *ids: 'Text') -> 'int'"
        assert str(inspect.signature(kind("redis://host", "k").set_meta)) == "(id: 'Text', meta: 'Meta') -> 'int'"
        assert inspect.getdoc(kind.count) == "How many records it has."


def test_built_commands_go_through_pipelines(server: Running) -> None:
    """What commands.py builds can be sent by other means."""
    with server.client(2) as client:
        batch = [building.create("k", mode="SEARCH"), building.add("k", "alpha"), building.query("k", "alpha")]
        with client.pipeline() as pipe:
            for each in batch:
                pipe.execute_command(*each.words)
            created, made, found = [each.parse(reply) for each, reply in zip(batch, pipe.execute(), strict=True)]
    assert (created, made, [hit.text for hit in found]) == (True, "1", ["alpha"])


# -- replies of a newer server


def test_unknown_fields_are_ignored(server: Running) -> None:
    """In whichever map they stand."""
    with server.client(3) as client:
        memory = Memory(client, "k")
        memory.create(mode="SEARCH")
        memory.fact("s", "p", "o")
        for command, read in (
            (building.get("k", "1"), lambda found: found.text),
            (fact_commands.facts("k"), lambda found: found[0]),
            (building.query("k", "o", explain=True), lambda found: (found[0].score, found[0].explain)),
            (building.explain("k", "1", "o"), lambda found: found),
            (building.config("k"), lambda found: found),
            (building.info("k"), lambda found: found),
            (fact_commands.recall("k", "o"), lambda found: found),
        ):
            reply = client.execute_command(*command.words)
            expected = read(command.parse(reply))
            assert _grow(reply) > 0
            assert read(command.parse(reply)) == expected


def _grow(reply: Any) -> int:
    """Put a field of the future into every map but metadata, whose fields are the client's own; how many maps."""
    if isinstance(reply, dict):
        inner = sum(_grow(value) for name, value in reply.items() if name != b"meta")
        reply[b"of_the_future"] = {b"more": [1, 2]}
        return inner + 1
    return sum(map(_grow, reply)) if isinstance(reply, list) else 0


def test_hits_that_carry_their_memory() -> None:
    """CASCADE and ACROSS: in RESP2 the key follows the id, in maps it is a field."""
    form = HitForm(key=True)
    array = [b"id", b"user:1", b"text", [b"m", b"v"], [b"t"], [b"score", b"0.5", b"keyword", b"1.25"]]
    (found,) = hits([array], form)
    assert (found.id, found.key, found.text, found.score, found.keyword) == ("id", "user:1", "text", 0.5, 1.25)
    mapped = {b"id": b"id", b"key": b"user:1", b"score": 0.5, b"text": b"text", b"importance": 1.0}
    flat = [word for pair in mapped.items() for word in pair]
    for reply in (mapped, flat):
        (found,) = hits([reply], form)
        assert isinstance(found, Hit)
        assert (found.id, found.key, found.text, found.importance) == ("id", "user:1", "text", 1.0)


def test_a_flat_map_must_be_whole() -> None:
    with pytest.raises(ValueError, match="zip"):
        as_map([b"a", 1, b"b"])
