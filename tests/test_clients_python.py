"""redis-py as it comes, against a server at its defaults: no options but the address, and the protocol where it varies.

redis-py 8 asks for RESP3 by itself, 5 to 7 speak RESP2 unless told otherwise; tests with PROTOCOLS take both, and None
for what this version does.
"""

from __future__ import annotations

import asyncio
import re
import struct
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import redis
import redis.asyncio
from harness import JUNE, PATIENCE_S, Running, Wire, WireError
from redis.backoff import NoBackoff
from redis.retry import Retry

PROTOCOLS = (None, 2, 3)
KEY = "user:123"
# id, text, vector, META type
RECORDS = (
    ("m1", "User prefers Lisbon for winter holidays.", (0.9, 0.4, 0.1), "preference"),
    ("m2", "User is currently planning a mountain hiking trip.", (0.7, 0.2, 0.3), "project"),
    ("m3", "User likes quiet beach resorts.", (0.1, 0.2, 0.9), "preference"),
)


def blob(vector: Sequence[float]) -> bytes:
    return struct.pack(f"<{len(vector)}f", *vector)


def words(record: tuple[str, str, tuple[float, ...], str]) -> tuple[str | bytes, ...]:
    """MEM.ADD's words after the key."""
    name, text, vector, kind = record
    return ("ID", name, "TEXT", text, "VEC", blob(vector), "META", "type", kind)


def pairs(reply: Any) -> dict[Any, Any]:
    """A map, whichever protocol it came by."""
    return reply if isinstance(reply, dict) else dict(zip(reply[::2], reply[1::2], strict=True))


def ids(hits: Any) -> list[Any]:
    """The ids of hits: RESP3 has maps, RESP2 arrays that start with the id."""
    return [hit[b"id" if b"id" in hit else "id"] if isinstance(hit, dict) else hit[0] for hit in hits]


@pytest.fixture(params=PROTOCOLS, ids=["default", "resp2", "resp3"])
def stock(server: Running, request: pytest.FixtureRequest) -> Iterator[redis.Redis]:
    """A client made of an address."""
    options: dict[str, Any] = {} if request.param is None else {"protocol": request.param}
    with redis.Redis(host="127.0.0.1", port=server.port, **options) as client:
        yield client


@pytest.fixture
def filled(stock: redis.Redis) -> redis.Redis:
    """The same, with RECORDS in the memory KEY."""
    stock.execute_command("MEM.CREATE", KEY, "DIM", 3)
    for record in RECORDS:
        stock.execute_command("MEM.ADD", KEY, *words(record))
    return stock


# Connecting.


def test_connects_and_names_its_library(stock: redis.Redis) -> None:
    assert stock.ping()
    me = stock.client_info()
    assert me["lib-name"] == "redis-py"
    assert me["lib-ver"] == redis.__version__
    assert stock.client_id() == me["id"]


def test_info_says_what_clients_switch_on(stock: redis.Redis) -> None:
    info = stock.info()
    assert info["redis_version"] == "7.4.0"
    assert info["redis_mode"] == "standalone"
    assert info["role"] == "master"
    assert info["loading"] == 0
    assert isinstance(info["recalld_version"], str | float)
    assert stock.info("server")["redis_version"] == "7.4.0"


def test_connects_by_url_with_a_name(server: Running) -> None:
    with redis.from_url(f"redis://127.0.0.1:{server.port}/0", client_name="agent-7") as client:
        assert client.client_getname() in (b"agent-7", "agent-7")


def test_another_database_is_refused(server: Running) -> None:
    with redis.Redis(port=server.port, host="127.0.0.1", db=3) as client, pytest.raises(redis.RedisError):
        client.ping()


@pytest.mark.parametrize("protocol", (2, 3))
@pytest.mark.parametrize("username", (None, "default"))
def test_authenticates(running: Any, protocol: int, username: str | None) -> None:
    port = running(requirepass="open sesame").port
    with redis.Redis("127.0.0.1", port, protocol=protocol, username=username, password="open sesame") as client:
        assert client.ping()
    # By default redis-py 8 asks again for seconds.
    once = Retry(NoBackoff(), 0)
    for wrong in ({"username": username, "password": "closed"}, {}):
        with (
            redis.Redis("127.0.0.1", port, protocol=protocol, retry=once, **wrong) as client,
            pytest.raises(redis.AuthenticationError),
        ):
            client.ping()


def test_comes_back_after_its_connection_is_killed(server: Running, stock: redis.Redis) -> None:
    before = stock.client_id()
    with server.client() as other:
        assert other.client_kill_filter(_id=before) == 1
    assert stock.ping()
    assert stock.client_id() != before


def test_health_checks(server: Running) -> None:
    with redis.Redis("127.0.0.1", server.port, health_check_interval=1) as client:
        assert client.ping()
        assert client.echo("still here") in (b"still here", "still here")


def test_a_string_command_says_that_it_is_unknown(stock: redis.Redis) -> None:
    with pytest.raises(redis.ResponseError, match="unknown command 'SET', with args beginning with: 'a' 'b'"):
        stock.set("a", "b")


# Memories.


def test_records_come_back(filled: redis.Redis) -> None:
    record = pairs(filled.execute_command("MEM.GET", KEY, "m1", "WITHMETA", "WITHVEC"))
    assert record[b"text"] == b"User prefers Lisbon for winter holidays."
    assert float(record[b"importance"]) == 0.5
    assert int(record[b"created_at"]) == int(record[b"updated_at"]) == JUNE
    assert int(record[b"pttl"]) == -1
    assert pairs(record[b"meta"]) == {b"type": b"preference"}
    assert struct.unpack("<3f", record[b"vector"]) == pytest.approx((0.9091, 0.4041, 0.1010), abs=1e-4)
    assert filled.execute_command("MEM.GET", KEY, "m9") is None
    found = filled.execute_command("MEM.MGET", KEY, "m2", "m9", "m3")
    assert [record and pairs(record)[b"id"] for record in found] == [b"m2", None, b"m3"]
    assert filled.execute_command("MEM.CARD", KEY) == 3
    assert filled.execute_command("MEM.DEL", KEY, "m2", "m9") == 1


def test_bytes_are_kept(filled: redis.Redis) -> None:
    text = b"line\r\nbreak, NUL \0, no UTF-8 \xff"
    name = filled.execute_command("MEM.ADD", KEY, "TEXT", text, "META", "raw", b"\r\n\0\xfe")
    record = pairs(filled.execute_command("MEM.GET", KEY, name, "WITHMETA"))
    assert record[b"text"] == text
    assert pairs(record[b"meta"]) == {b"raw": b"\r\n\0\xfe"}


def test_three_ways_to_ask(filled: redis.Redis) -> None:
    near = ("VEC", blob((0.1, 0.2, 0.9)))
    assert ids(filled.execute_command("MEM.SEARCH", KEY, "lisbon holiday")) == [b"m1"]
    assert ids(filled.execute_command("MEM.VSEARCH", KEY, *near)) == [b"m3", b"m2", b"m1"]
    assert ids(filled.execute_command("MEM.QUERY", KEY, "TEXT", "quiet beach", *near, "TOPK", 1)) == [b"m3"]
    assert ids(filled.execute_command("MEM.SEARCH", KEY, "user", "FILTER", "type", "EQ", "project")) == [b"m2"]
    assert filled.execute_command("MEM.SEARCH", KEY, "zebra") == []


def test_hits_are_arrays_on_resp2(server: Running) -> None:
    with server.client(2) as client:
        client.execute_command("MEM.CREATE", KEY, "MODE", "SEARCH")
        client.execute_command("MEM.ADD", KEY, "ID", "a", "TEXT", "the keys hang by the door", "META", "room", "hall")
        hits = client.execute_command("MEM.SEARCH", KEY, "keys", "WITHMETA", "WITHSCORES")
    # One record: N = df = 1, dl = avgdl, so idf * 1 * 1.9 / (1 + 0.9) = ln(1 + 0.5 / 1.5) = 0.2877
    name, text, meta, scores = hits[0]
    assert (name, text, meta) == (b"a", b"the keys hang by the door", [b"room", b"hall"])
    assert scores[::2] == [b"score", b"keyword"]
    assert [float(value) for value in scores[1::2]] == pytest.approx([0.2877, 0.2877], abs=1e-4)


def test_hits_are_maps_on_resp3(server: Running) -> None:
    with server.client(3) as client:
        client.execute_command("MEM.CREATE", KEY, "MODE", "SEARCH")
        client.execute_command("MEM.ADD", KEY, "ID", "a", "TEXT", "the keys hang by the door", "META", "room", "hall")
        hits = client.execute_command("MEM.SEARCH", KEY, "keys", "WITHMETA", "WITHSCORES")
    hit = hits[0]
    assert hit[b"id"] == b"a"
    assert isinstance(hit[b"score"], float)
    assert hit[b"score"] == pytest.approx(0.2877, abs=1e-4)
    assert hit[b"keyword_score"] == hit[b"score"]
    assert hit[b"importance"] == 0.5
    assert hit[b"meta"] == {b"room": b"hall"}


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_decoded_replies_take_vectors_as_numbers(server: Running, protocol: int | None) -> None:
    options: dict[str, Any] = {} if protocol is None else {"protocol": protocol}
    with redis.Redis("127.0.0.1", server.port, decode_responses=True, **options) as client:
        client.execute_command("MEM.CREATE", KEY, "DIM", 3)
        client.execute_command("MEM.ADD", KEY, *words(RECORDS[0]))
        record = pairs(client.execute_command("MEM.GET", KEY, "m1", "WITHMETA", "WITHVEC", "FLOATS"))
        hits = client.execute_command("MEM.VSEARCH", KEY, "FVEC", 3, 0.9, 0.4, 0.1, "WITHVEC", "FLOATS", "NOTEXT")
        assert client.execute_command("MEM.INFO", KEY)
    assert record["text"] == RECORDS[0][1]
    assert pairs(record["meta"]) == {"type": "preference"}
    unit = pytest.approx((0.9091, 0.4041, 0.1010), abs=1e-4)
    assert [float(number) for number in record["vector"]] == unit
    assert ids(hits) == ["m1"]
    vector = hits[0]["vector"] if isinstance(hits[0], dict) else hits[0][1]
    assert [float(number) for number in vector] == unit


def test_errors_are_response_errors(filled: redis.Redis) -> None:
    for command, error in (
        (("MEM.CARD", "absent"), "no such memory index"),
        (("MEM.CREATE", KEY, "DIM", 3), "memory index already exists"),
        (("MEM.VSEARCH", KEY, "FVEC", 2, 1, 0), "wrong vector dimension, expected 3 got 2"),
        (("MEM.CARD",), "wrong number of arguments for 'mem.card' command"),
    ):
        with pytest.raises(redis.ResponseError, match=error):
            filled.execute_command(*command)


# The keyspace, through redis-py's own methods.


def test_keys(filled: redis.Redis) -> None:
    assert filled.exists(KEY, "absent") == 1
    assert filled.type(KEY) in (b"memory", "memory")
    assert filled.dbsize() == 1
    assert list(filled.scan_iter(match="user:*", count=10)) == [KEY.encode()]
    assert list(filled.scan_iter(_type="memory")) == [KEY.encode()]
    assert filled.keys("*") == [KEY.encode()]
    assert filled.randomkey() == KEY.encode()
    assert filled.ttl(KEY) == -1
    assert filled.expire(KEY, 100)
    assert filled.ttl(KEY) == 100
    assert filled.expiretime(KEY) == JUNE // 1000 + 100
    assert filled.persist(KEY)
    assert filled.copy(KEY, "twin")
    assert filled.rename("twin", "other")
    assert not filled.renamenx("other", KEY)
    assert filled.execute_command("MEM.CARD", "other") == 3
    assert filled.touch(KEY, "other") == 2
    assert filled.delete("other") == 1
    assert filled.unlink(KEY, "absent") == 1
    assert filled.flushall()


def test_dump_and_restore(filled: redis.Redis) -> None:
    data = filled.dump(KEY)
    assert data is not None
    filled.restore("again", 0, data)
    assert ids(filled.execute_command("MEM.SEARCH", "again", "lisbon")) == [b"m1"]


def test_server_questions(filled: redis.Redis) -> None:
    """What redis-py parses by itself must have the shape that it expects."""
    assert filled.config_get("mem-max-topk") in ({"mem-max-topk": "1000"}, {b"mem-max-topk": b"1000"})
    assert filled.config_set("mem-max-topk", 50)
    assert len(filled.time()) == 2
    assert any(client["lib-name"] == "redis-py" for client in filled.client_list())
    assert filled.command_count() == len(filled.command())
    assert "mem.query" in filled.command()
    assert filled.command_getkeys("MEM.ADD", KEY, "TEXT", "x") in ([KEY], [KEY.encode()])


def test_role(stock: redis.Redis) -> None:
    assert stock.role()[0] in (b"master", "master")


def test_slowlog(stock: redis.Redis) -> None:
    assert stock.config_set("slowlog-log-slower-than", 0)
    stock.echo("slow")
    assert any(entry["command"] == b"ECHO slow" for entry in stock.slowlog_get())
    assert stock.slowlog_reset()
    assert stock.config_set("slowlog-log-slower-than", 10_000)


def test_memory_usage(filled: redis.Redis) -> None:
    usage = filled.memory_usage(KEY)
    assert usage is not None
    assert usage > 0


# Pipelines.


@pytest.mark.parametrize("transaction", (False, True))
def test_pipeline(stock: redis.Redis, transaction: bool) -> None:
    with stock.pipeline(transaction=transaction) as batch:
        batch.execute_command("MEM.CREATE", KEY, "DIM", 3)
        for record in RECORDS:
            batch.execute_command("MEM.ADD", KEY, *words(record))
        batch.execute_command("MEM.CARD", KEY)
        batch.execute_command("MEM.SEARCH", KEY, "beach")
        created, *added, card, hits = batch.execute()
    assert created in (b"OK", "OK", True)
    assert added == [b"m1", b"m2", b"m3"]
    assert card == 3
    assert ids(hits) == [b"m3"]


@pytest.mark.parametrize("transaction", (False, True))
def test_pipeline_with_an_error_within(filled: redis.Redis, transaction: bool) -> None:
    with filled.pipeline(transaction=transaction) as batch:
        batch.execute_command("MEM.ADD", KEY, "ID", "x", "TEXT", "before")
        batch.execute_command("MEM.ADD", KEY, "ID", "y", "TEXT", "bad", "FVEC", 2, 1, 0)
        batch.execute_command("MEM.ADD", KEY, "ID", "z", "TEXT", "after")
        first, error, last = batch.execute(raise_on_error=False)
    assert (first, last) == (b"x", b"z")
    assert isinstance(error, redis.ResponseError)
    assert "wrong vector dimension" in str(error)


def test_a_bad_command_aborts_the_transaction(filled: redis.Redis) -> None:
    with filled.pipeline(transaction=True) as batch:
        batch.execute_command("MEM.ADD", KEY, "ID", "x", "TEXT", "before")
        batch.execute_command("MEM.NONSENSE", KEY)
        with pytest.raises(redis.ResponseError, match=r"unknown command 'MEM\.NONSENSE'"):
            batch.execute()
    assert filled.execute_command("MEM.GET", KEY, "x") is None


def test_a_watched_key_that_changed_stops_the_transaction(server: Running, filled: redis.Redis) -> None:
    with server.client() as other, filled.pipeline() as batch:
        batch.watch(KEY)
        assert batch.execute_command("MEM.CARD", KEY) == 3
        other.execute_command("MEM.DEL", KEY, "m1")
        batch.multi()
        batch.execute_command("MEM.ADD", KEY, "TEXT", "there are three")
        with pytest.raises(redis.WatchError):
            batch.execute()
    assert filled.execute_command("MEM.CARD", KEY) == 2


def test_transaction_helper(filled: redis.Redis) -> None:
    def add_one(batch: Any) -> None:
        card = batch.execute_command("MEM.CARD", KEY)
        batch.multi()
        batch.execute_command("MEM.ADD", KEY, "ID", f"n{card}", "TEXT", f"record number {card}")

    assert filled.transaction(add_one, KEY) == [b"n3"]


def test_a_pipeline_longer_than_the_sockets_hold(stock: redis.Redis) -> None:
    """redis-py writes it all before it reads: a server that stopped reading would wait for ever."""
    stock.execute_command("MEM.CREATE", KEY, "MODE", "SEARCH")
    text = "word " * 800
    with stock.pipeline(transaction=False) as batch:
        for number in range(1_000):
            batch.execute_command("MEM.ADD", KEY, "ID", number, "TEXT", text)
            batch.execute_command("MEM.GET", KEY, number)
        replies = batch.execute()
    assert replies[::2] == [b"%d" % number for number in range(1_000)]
    assert all(pairs(record)[b"text"] == text.encode() for record in replies[1::2])


# Pub/sub.


def messages(subscription: Any, count: int) -> list[tuple[Any, Any]]:
    """The next `count` messages, as (channel, data); confirmations are passed over."""
    found: list[tuple[Any, Any]] = []
    while len(found) < count:
        message = subscription.get_message(timeout=PATIENCE_S)
        assert message is not None, f"only {found} came"
        if message["type"] in ("message", "pmessage"):
            found.append((message["channel"], message["data"]))
    return found


def confirmed(subscription: Any) -> None:
    """Wait for the server's word that it has subscribed us."""
    message = subscription.get_message(timeout=PATIENCE_S)
    assert message is not None
    assert message["type"] in ("subscribe", "psubscribe")


def test_pubsub(stock: redis.Redis) -> None:
    with stock.pubsub() as subscription:
        subscription.subscribe("news")
        confirmed(subscription)
        subscription.psubscribe("user:*")
        confirmed(subscription)
        assert stock.publish("news", "hello") == 1
        assert stock.publish("user:1", b"\xff\0") == 1
        assert stock.publish("elsewhere", "x") == 0
        assert messages(subscription, 2) == [(b"news", b"hello"), (b"user:1", b"\xff\0")]
        assert stock.pubsub_channels() == [b"news"]
        assert stock.pubsub_numsub("news") == [(b"news", 1)]
        assert stock.pubsub_numpat() == 1
        subscription.ping()
        message = subscription.get_message(timeout=PATIENCE_S)
        assert message is not None
        assert message["type"] == "pong"
        subscription.unsubscribe()
        subscription.punsubscribe()


def test_writes_are_announced(filled: redis.Redis) -> None:
    with filled.pubsub() as subscription:
        subscription.subscribe(f"__mem__:{KEY}")
        confirmed(subscription)
        filled.execute_command("MEM.ADD", KEY, "ID", "m4", "TEXT", "a new one")
        filled.execute_command("MEM.SETMETA", KEY, "m4", "seen", "yes")
        filled.execute_command("MEM.DEL", KEY, "m4")
        events = [data for _, data in messages(subscription, 3)]
    assert events == [b"add m4", b"meta m4", b"del m4"]


def test_monitor(server: Running, stock: redis.Redis) -> None:
    with stock.monitor() as monitor:
        with server.client() as other:
            other.echo("watched")
        while (seen := monitor.next_command())["command"] != "ECHO watched":
            pass
    assert seen["client_type"] == "tcp"


# Pools and threads.


def test_threads_share_a_pool(server: Running) -> None:
    pool = redis.BlockingConnectionPool(host="127.0.0.1", port=server.port, max_connections=4)
    with redis.Redis(connection_pool=pool) as client:
        client.execute_command("MEM.CREATE", KEY, "MODE", "SEARCH")

        def add(number: int) -> Any:
            return client.execute_command("MEM.ADD", KEY, "TEXT", f"fact number {number}")

        with ThreadPoolExecutor(16) as threads:
            names = list(threads.map(add, range(400)))
        assert len(set(names)) == 400
        assert client.execute_command("MEM.CARD", KEY) == 400
        assert len(client.client_list()) <= 4
    pool.disconnect()


def test_each_thread_gets_its_own_answer(server: Running) -> None:
    with server.client() as client:
        barrier = threading.Barrier(8)

        def echo(number: int) -> bool:
            barrier.wait(PATIENCE_S)
            return all(client.echo(f"{number}.{i}") == f"{number}.{i}".encode() for i in range(100))

        with ThreadPoolExecutor(8) as threads:
            assert all(threads.map(echo, range(8)))


# asyncio.


def stock_async(server: Running, protocol: int | None, **options: Any) -> Any:
    chosen: dict[str, Any] = {} if protocol is None else {"protocol": protocol}
    return redis.asyncio.Redis(host="127.0.0.1", port=server.port, **chosen, **options)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_asyncio(server: Running, protocol: int | None) -> None:
    async def go() -> None:
        async with stock_async(server, protocol) as client:
            assert await client.ping()
            await client.execute_command("MEM.CREATE", KEY, "DIM", 3)
            await asyncio.gather(*(client.execute_command("MEM.ADD", KEY, *words(record)) for record in RECORDS))
            near = ("VEC", blob((0.1, 0.2, 0.9)))
            asked = [client.execute_command("MEM.QUERY", KEY, "TEXT", "beach", *near, "TOPK", 1) for _ in range(50)]
            assert [ids(hits) for hits in await asyncio.gather(*asked)] == [[b"m3"]] * 50
            assert [key async for key in client.scan_iter()] == [KEY.encode()]
            with pytest.raises(redis.ResponseError, match="no such memory index"):
                await client.execute_command("MEM.CARD", "absent")

    asyncio.run(go())


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("transaction", (False, True))
def test_asyncio_pipeline(server: Running, protocol: int | None, transaction: bool) -> None:
    async def go() -> None:
        async with stock_async(server, protocol, decode_responses=True) as client:
            async with client.pipeline(transaction=transaction) as batch:
                batch.execute_command("MEM.CREATE", KEY, "MODE", "SEARCH")
                batch.execute_command("MEM.ADD", KEY, "ID", "a", "TEXT", "the keys hang by the door")
                batch.execute_command("MEM.SEARCH", KEY, "keys")
                _, name, hits = await batch.execute()
            assert (name, ids(hits)) == ("a", ["a"])

    asyncio.run(go())


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_asyncio_pubsub(server: Running, protocol: int | None) -> None:
    async def go() -> None:
        async with stock_async(server, protocol) as client, client.pubsub() as subscription:
            await subscription.subscribe(f"__mem__:{KEY}")
            assert (await subscription.get_message(timeout=PATIENCE_S))["type"] == "subscribe"
            await client.execute_command("MEM.CREATE", KEY, "MODE", "SEARCH")
            await client.execute_command("MEM.ADD", KEY, "ID", "a", "TEXT", "hello")
            message = await subscription.get_message(timeout=PATIENCE_S)
            assert (message["type"], message["data"]) == ("message", b"add a")

    asyncio.run(go())


def test_client_info_has_what_redis_py_5_requires(wire: Wire) -> None:
    """Up to 5.x it reads these as integers and raises KeyError where one is missing."""
    fields = dict(pair.partition("=")[::2] for pair in wire("CLIENT", "INFO").decode().split())
    integers = "id age idle db sub psub multi qbuf qbuf-free argv-mem obl oll omem tot-mem"
    assert [name for name in integers.split() if not re.fullmatch(r"-?\d+", fields.get(name, ""))] == []


# Clients that this test run lacks: what they send when they connect, and what they make of the replies.


@pytest.mark.parametrize(
    "handshake",
    (
        pytest.param(
            [
                ("HELLO", "3"),
                ("CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "internal-ip"),
                ("CLIENT", "SETINFO", "LIB-NAME", "redis-py"),
                ("CLIENT", "SETINFO", "LIB-VER", "8.1.0"),
            ],
            id="redis-py 8.1",
        ),
        pytest.param(
            [
                ("hello", "3"),
                ("client", "SETINFO", "LIB-VER", "6.0.0"),
                ("client", "SETINFO", "LIB-NAME", "ioredis"),
                ("info",),
            ],
            id="ioredis 6.0",
        ),
        pytest.param(
            [
                ("HELLO", "3"),
                ("CLIENT", "SETINFO", "LIB-VER", "6.3.1"),
                ("CLIENT", "SETINFO", "LIB-NAME", "node-redis"),
                ("CLIENT", "MAINT_NOTIFICATIONS", "ON", "moving-endpoint-type", "external-ip"),
            ],
            id="node-redis 6.3",
        ),
        pytest.param(
            [
                ("hello", "3"),
                ("client", "setinfo", "LIB-NAME", "go-redis(,go1.24.1)"),
                ("client", "setinfo", "LIB-VER", "9.7.0"),
            ],
            id="go-redis 9",
        ),
        pytest.param(
            [
                ("CLIENT", "SETINFO", "lib-name", "jedis"),
                ("CLIENT", "SETINFO", "lib-ver", "5.1.0"),
            ],
            id="Jedis 5",
        ),
    ),
)
def test_handshake(wire: Wire, handshake: list[tuple[str, ...]]) -> None:
    """Sent in one go; only what is no feature of ours may fail, and by the words that its client looks for."""
    for command, reply in zip(handshake, wire.pipeline(*handshake, ("PING",)), strict=False):
        if "MAINT_NOTIFICATIONS" in command:
            assert isinstance(reply, WireError)
            assert str(reply).startswith("ERR unknown subcommand 'MAINT_NOTIFICATIONS'")
        elif command[0].lower() == "hello":
            assert reply[b"proto"] == 3
            assert reply[b"server"] == b"redis"
            assert reply[b"version"] == b"7.4.0"
            assert reply[b"mode"] == b"standalone"
            assert reply[b"role"] == b"master"
            assert reply[b"modules"] == []
        elif command[0] == "info":
            assert b"\r\nloading:0\r\n" in reply
        else:
            assert reply == "OK"
