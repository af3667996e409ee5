"""Memory and AsyncMemory: they send what commands.py builds, and hand back what it reads."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import redis
import redis.asyncio
from redis.exceptions import ResponseError

from . import commands, fact_commands, replies
from .commands import Command
from .filters import Filter, Filters, filter_words
from .results import Event
from .words import Text

P = ParamSpec("P")
T = TypeVar("T")

# redis-py then leaves strings as bytes, whatever its decode_responses says: vectors are no text.
_RAW: dict[str, Any] = {"NEVER_DECODE": []}


def _method(build: Callable[Concatenate[Text, P], Command[T]]) -> Callable[Concatenate[Memory, P], T]:
    """The command as a method that sends it."""

    @wraps(build)
    def send(self: Memory, /, *args: P.args, **options: P.kwargs) -> T:
        return self._run(build(self.key, *args, **options))

    return _described(send, build)


def _async_method(
    build: Callable[Concatenate[Text, P], Command[T]],
) -> Callable[Concatenate[AsyncMemory, P], Coroutine[Any, Any, T]]:
    @wraps(build)
    async def send(self: AsyncMemory, /, *args: P.args, **options: P.kwargs) -> T:
        return await self._run(build(self.key, *args, **options))

    return _described(send, build)


def _described(send: Callable[P, T], build: Callable[..., Command[Any]]) -> Callable[P, T]:
    """What help() shows of a method: no key, and what comes back rather than the command."""
    signature = inspect.signature(build)
    key, *options = signature.parameters.values()
    result = str(signature.return_annotation).removeprefix("Command[").removesuffix("]")
    own = [key.replace(name="self", annotation=key.empty), *options]
    send.__signature__ = signature.replace(parameters=own, return_annotation=result)  # type: ignore[attr-defined]
    return send


def _url_options(url: str, given: dict[str, Any]) -> dict[str, Any]:
    # A URL that names a port, or a protocol, overrides these.
    return {"protocol": 3, **({} if url.startswith("unix:") else {"port": 7171}), **given}


def _no_options(given: dict[str, Any]) -> None:
    if given:
        raise TypeError(f"{', '.join(given)}: options are for a URL; a client or a pool has its own")


def _settled(command: Command[T], error: ResponseError) -> T:
    if command.settled_by is None or command.settled_by not in str(error):
        raise error
    return command.parse(None)


class Memory:
    """One memory of a server, by its key.

    `server` is a client or a connection pool of redis-py, which stays the caller's, or a URL, `redis://host` (7171 is
    the port unless it says another); `options` are then those of redis-py's client (`socket_timeout`, `password`, ..).
    A refused command raises redis-py's ResponseError, with the server's words.
    """

    def __init__(self, server: redis.Redis | redis.ConnectionPool | str, key: Text, **options: Any) -> None:
        self.key = key
        self._own = isinstance(server, str)
        if isinstance(server, str):
            server = redis.Redis.from_url(server, **_url_options(server, options))
        else:
            _no_options(options)
        if isinstance(server, redis.ConnectionPool):
            server = redis.Redis(connection_pool=server)
        self.client = server

    def _run(self, command: Command[T]) -> T:
        if not command.words:
            return command.parse(None)
        client: Any = self.client  # untyped in some versions of redis-py
        try:
            reply = client.execute_command(*command.words, **_RAW)
        except ResponseError as error:
            return _settled(command, error)
        return command.parse(reply)

    def close(self) -> None:
        """Close the connections, where they are its own."""
        if self._own:
            self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def scan(self, *, count: int = 100, filters: Filters = ()) -> Iterator[str]:
        """All ids, a page of `count` at a time; records that come and go meanwhile disturb nobody."""
        cursor = 0
        filters = Filter(filter_words(filters))  # once: they may be an iterator
        while True:
            cursor, ids = self._run(commands.scan_page(self.key, cursor, count=count, filters=filters))
            yield from ids
            if cursor == 0:
                return

    @contextmanager
    def events(self) -> Iterator[Iterator[Event]]:
        """`with memory.events() as events: for event in events: ..`: the writes from here on, as they come.

        A lost connection raises redis-py's ConnectionError: what happened meanwhile nobody hears.
        """
        client: Any = self.client
        with client.pubsub() as pubsub:
            pubsub.subscribe(commands.channel(self.key))
            # PubSub.listen would decode, and fail on an id that is no UTF-8, and connect anew in silence.
            connection = pubsub.connection

            def messages() -> Iterator[Event]:
                while True:
                    try:
                        reply = connection.read_response(
                            disable_decoding=True, disconnect_on_error=False, push_request=True
                        )
                    except redis.TimeoutError:  # nothing happened for the client's socket_timeout
                        continue
                    if reply[0] == b"message":
                        yield replies.event(reply[2])

            connection.read_response(disable_decoding=True, push_request=True)  # subscribed: no write is missed now
            yield messages()

    create = _method(commands.create)
    config = _method(commands.config)
    configure = _method(commands.configure)
    info = _method(commands.info)
    count = _method(commands.count)
    tier = _method(commands.tier)
    embed = _method(commands.embed)
    stats = _method(commands.stats)
    evict = _method(commands.evict)
    audit = _method(commands.audit)
    add = _method(commands.add)
    add_many = _method(commands.add_many)
    get = _method(commands.get)
    verify = _method(commands.verify)
    mget = _method(commands.mget)
    delete = _method(commands.delete)
    set_meta = _method(commands.set_meta)
    delete_meta = _method(commands.delete_meta)
    expire = _method(commands.expire)
    list = _method(commands.list_records)
    forget = _method(commands.forget)
    search = _method(commands.search)
    vsearch = _method(commands.vsearch)
    query = _method(commands.query)
    explain = _method(commands.explain)
    fact = _method(fact_commands.fact)
    facts = _method(fact_commands.facts)
    invalidate = _method(fact_commands.invalidate)
    entity = _method(fact_commands.entity)
    entities = _method(fact_commands.entities)
    paths = _method(fact_commands.paths)
    recall = _method(fact_commands.recall)
    analyze = _method(fact_commands.analyze)
    consult = _method(fact_commands.consult)


class AsyncMemory:
    """Memory for asyncio: every method is awaited, `scan` and `events` are asynchronous iterators."""

    def __init__(
        self, server: redis.asyncio.Redis | redis.asyncio.ConnectionPool | str, key: Text, **options: Any
    ) -> None:
        self.key = key
        self._own = isinstance(server, str)
        if isinstance(server, str):
            server = redis.asyncio.Redis.from_url(server, **_url_options(server, options))
        else:
            _no_options(options)
        if isinstance(server, redis.asyncio.ConnectionPool):
            server = redis.asyncio.Redis(connection_pool=server)
        self.client = server

    async def _run(self, command: Command[T]) -> T:
        if not command.words:
            return command.parse(None)
        client: Any = self.client
        try:
            reply = await client.execute_command(*command.words, **_RAW)
        except ResponseError as error:
            return _settled(command, error)
        return command.parse(reply)

    async def close(self) -> None:
        """Close the connections, where they are its own."""
        if self._own:
            await self.client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def scan(self, *, count: int = 100, filters: Filters = ()) -> AsyncIterator[str]:
        """All ids, a page of `count` at a time; records that come and go meanwhile disturb nobody."""
        cursor = 0
        filters = Filter(filter_words(filters))  # once: they may be an iterator
        while True:
            cursor, ids = await self._run(commands.scan_page(self.key, cursor, count=count, filters=filters))
            for each in ids:
                yield each
            if cursor == 0:
                return

    @asynccontextmanager
    async def events(self) -> AsyncIterator[AsyncIterator[Event]]:
        """`async with memory.events() as events: async for event in events: ..`, as Memory's."""
        client: Any = self.client
        async with client.pubsub() as pubsub:
            await pubsub.subscribe(commands.channel(self.key))
            connection = pubsub.connection

            async def messages() -> AsyncIterator[Event]:
                while True:
                    try:
                        reply = await connection.read_response(
                            disable_decoding=True, disconnect_on_error=False, push_request=True
                        )
                    except redis.TimeoutError:
                        continue
                    if reply[0] == b"message":
                        yield replies.event(reply[2])

            await connection.read_response(disable_decoding=True, push_request=True)
            yield messages()

    create = _async_method(commands.create)
    config = _async_method(commands.config)
    configure = _async_method(commands.configure)
    info = _async_method(commands.info)
    count = _async_method(commands.count)
    tier = _async_method(commands.tier)
    embed = _async_method(commands.embed)
    stats = _async_method(commands.stats)
    evict = _async_method(commands.evict)
    audit = _async_method(commands.audit)
    add = _async_method(commands.add)
    add_many = _async_method(commands.add_many)
    get = _async_method(commands.get)
    verify = _async_method(commands.verify)
    mget = _async_method(commands.mget)
    delete = _async_method(commands.delete)
    set_meta = _async_method(commands.set_meta)
    delete_meta = _async_method(commands.delete_meta)
    expire = _async_method(commands.expire)
    list = _async_method(commands.list_records)
    forget = _async_method(commands.forget)
    search = _async_method(commands.search)
    vsearch = _async_method(commands.vsearch)
    query = _async_method(commands.query)
    explain = _async_method(commands.explain)
    fact = _async_method(fact_commands.fact)
    facts = _async_method(fact_commands.facts)
    invalidate = _async_method(fact_commands.invalidate)
    entity = _async_method(fact_commands.entity)
    entities = _async_method(fact_commands.entities)
    paths = _async_method(fact_commands.paths)
    recall = _async_method(fact_commands.recall)
    analyze = _async_method(fact_commands.analyze)
    consult = _async_method(fact_commands.consult)
