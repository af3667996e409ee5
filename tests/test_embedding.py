"""The queue before the embedders: batches, time limits, providers that are down, and what the cache's front is for.

The embedder is a fake that a test holds at a gate. No test waits for time: the clock stands still, and a limit of 1 ms
is met by a batch that never ends.
"""

from __future__ import annotations

import asyncio
import hashlib
from asyncio import Future
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fake_embedder import PATIENCE_S, FakeEmbedder
from harness import Clock
from recalld.server.config import OPTIONS, Config
from recalld.server.embedding import RETRY_MS, EmbedderError, Embedding, Model, model_of
from recalld.server.errors import CommandError

MODEL = Model("local", "fake", 8)
OTHER = Model("local", "fake", 16)

Vectors = list[bytes | None]


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeEmbedder:
    fake = FakeEmbedder()
    monkeypatch.setattr("recalld.server.embedding.make", fake.make)
    return fake


class Bench:
    """An Embedding on the running loop, with a clock that stands still."""

    def __init__(self, directory: Path | None = None, **options: str) -> None:
        self.config = Config.load(None, [(name.replace("_", "-"), [text]) for name, text in options.items()])
        self.clock = Clock()
        loop = asyncio.get_running_loop()
        self.embedding = Embedding(self.config, loop, None if directory is None else str(directory), self.clock)

    async def __aenter__(self) -> Bench:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.embedding.close()

    def start(self, *texts: str, keep: bool = False, model: Model = MODEL) -> Future[Vectors]:
        """Ask for what the front does not have."""
        asked = self.embedding.ask(model, [text.encode() for text in texts], keep=keep)
        assert isinstance(asked, Future)
        return asked

    async def ask(self, *texts: str, keep: bool = False, model: Model = MODEL) -> Vectors:
        """Ask, and wait if need be."""
        asked = self.embedding.ask(model, [text.encode() for text in texts], keep=keep)
        return await asked if isinstance(asked, Future) else asked

    def at_once(self, *texts: str, keep: bool = False, model: Model = MODEL) -> Vectors:
        """Ask for what is there without waiting."""
        asked = self.embedding.ask(model, [text.encode() for text in texts], keep=keep)
        assert isinstance(asked, list)
        return asked

    def info(self, *names: str) -> list[int | str]:
        info = self.embedding.info()
        return [info[f"embed_{name}"] for name in names]


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), PATIENCE_S)

    asyncio.run(bounded())


async def entered(fake: FakeEmbedder) -> None:
    """Return once a batch is in the embedder."""
    assert await asyncio.to_thread(fake.entered.acquire, timeout=PATIENCE_S)


def vectors(fake: FakeEmbedder, *texts: str) -> list[bytes]:
    return [fake.vector(text).tobytes() for text in texts]


# Asking


def test_vectors_come_in_the_order_of_the_texts(fake: FakeEmbedder) -> None:
    """A future the first time, then at once, whether for records or for queries."""

    async def test() -> None:
        async with Bench() as bench:
            asked = bench.start("one", "two", "one")
            assert await asked == vectors(fake, "one", "two", "one")
            assert fake.calls == [["one", "two"]]
            assert bench.at_once("two", "one") == vectors(fake, "two", "one")
            assert bench.at_once("two", keep=True) == vectors(fake, "two")
            assert bench.at_once() == []
            assert bench.info("texts", "batches", "waiting") == [2, 1, 0]

    run(test)


def test_each_model_has_vectors_of_its_own(fake: FakeEmbedder) -> None:
    async def test() -> None:
        async with Bench() as bench:
            short = await bench.ask("one")
            assert bench.embedding.cached(OTHER, [b"one"]) == [None]
            wide = await bench.ask("one", model=OTHER)
            assert [len(vector or b"") for vector in (*short, *wide)] == [32, 64]
            assert bench.embedding.cached(MODEL, [b"one"]) == short

    run(test)


def test_what_comes_while_a_batch_runs_is_the_next_batch(fake: FakeEmbedder) -> None:
    """Queries go before records, and a text that several ask for is embedded once."""

    async def test() -> None:
        async with Bench() as bench:
            fake.gate.clear()
            first = bench.start("first")
            await entered(fake)
            records = bench.start("a", "b", keep=True)
            query = bench.start("c", "first")
            again = bench.start("b")
            assert bench.info("waiting") == [4]
            fake.gate.set()
            assert await records == vectors(fake, "a", "b")
            assert await query == vectors(fake, "c", "first")
            assert await again == vectors(fake, "b")
            assert await first == vectors(fake, "first")
            assert fake.calls == [["first"], ["c", "b", "a"]]

    run(test)


def test_batches_are_bounded_by_texts_and_bytes(fake: FakeEmbedder) -> None:
    """By the embedder's bounds once it is loaded; a text larger than the bound is a batch of its own."""
    fake.batch_texts, fake.batch_bytes = 3, 10

    async def test() -> None:
        async with Bench() as bench:
            await bench.ask("loads")
            texts = ["a", "b", "c", "d", "x" * 30, "y" * 6, "z" * 4, "w"]
            assert await bench.ask(*texts, keep=True) == vectors(fake, *texts)
            assert fake.calls[1:] == [["a", "b", "c"], ["d"], ["x" * 30], ["y" * 6, "z" * 4], ["w"]]

    run(test)


def test_bytes_that_are_no_text(fake: FakeEmbedder) -> None:
    """The model gets replacement characters; the cache tells the bytes apart all the same."""

    async def test() -> None:
        async with Bench() as bench:
            asked = bench.embedding.ask(MODEL, [b"a\xff", b"a\xfe"], keep=False)
            assert isinstance(asked, Future)
            assert await asked == vectors(fake, "a\ufffd", "a\ufffd")
            assert fake.calls == [["a\ufffd", "a\ufffd"]]

    run(test)


def test_exec_has_what_the_front_has(fake: FakeEmbedder) -> None:
    async def test() -> None:
        async with Bench() as bench:
            await bench.ask("one")
            assert bench.embedding.cached(MODEL, [b"one", b"two"]) == [*vectors(fake, "one"), None]
            assert fake.calls == [["one"]]

    run(test)


# Time limits


def test_nobody_waits_longer_than_the_limit(fake: FakeEmbedder) -> None:
    """The batch goes on and fills the cache; a text that was in no batch yet is left out."""

    async def test() -> None:
        async with Bench(embedder_timeout_ms="1") as bench:
            fake.gate.clear()
            first = bench.start("first")
            await entered(fake)
            second = bench.start("second", keep=True)
            assert await first == [None]
            assert await second == [None]
            assert bench.embedding.is_up(MODEL)
            bench.config.set({"embedder-timeout-ms": "60000"})
            third = bench.start("third")
            fake.gate.set()
            assert await third == vectors(fake, "third")
            assert bench.at_once("first") == vectors(fake, "first")
            assert fake.calls == [["first"], ["third"]]

    run(test)


def test_close_answers_with_what_is_there(fake: FakeEmbedder) -> None:
    """As at the limit: what is done is given, the rest is not; and nothing is tried any more."""
    fake.batch_texts = 1

    async def test() -> None:
        async with Bench() as bench:
            await bench.ask("loads")
            fake.gate.clear()
            fake.holds = {"b"}
            asked = bench.start("a", "b", "c")
            for _ in range(3):
                await entered(fake)
            closing = asyncio.create_task(bench.embedding.close())
            assert await asked == [*vectors(fake, "a"), None, None]
            assert not bench.embedding.is_up(MODEL)
            assert bench.at_once("d") == [None]
            fake.gate.set()
            await closing
            assert fake.calls == [["loads"], ["a"], ["b"]]

    run(test)


def test_who_gave_up_waits_no_more(fake: FakeEmbedder) -> None:
    """A client that is gone: its future is cancelled, and a text of its own that is in no batch yet left out."""

    async def test() -> None:
        async with Bench() as bench:
            fake.gate.clear()
            first = bench.start("first")
            await entered(fake)
            gone, there = bench.start("gone", "both"), bench.start("both")
            gone.cancel()
            first.cancel()
            fake.gate.set()
            assert await there == vectors(fake, "both")
            assert bench.at_once("first") == vectors(fake, "first")
            assert fake.calls == [["first"], ["both"]]

    run(test)


# Failures


def test_while_a_provider_is_down_nobody_waits(fake: FakeEmbedder) -> None:
    """Whoever waits when it fails gets None at once too; what the front has is still to be had."""

    async def test() -> None:
        async with Bench() as bench:
            await bench.ask("known")
            await entered(fake)
            fake.fails = EmbedderError("it is down")
            fake.gate.clear()
            first = bench.start("first")
            await entered(fake)
            second = bench.start("known", "second", keep=True)
            fake.gate.set()
            assert await first == [None]
            assert await second == [*vectors(fake, "known"), None]
            assert not bench.embedding.is_up(MODEL)
            assert bench.embedding.is_up(OTHER)
            assert bench.embedding.last_error(MODEL) == "it is down"
            assert bench.at_once("third", "known") == [None, *vectors(fake, "known")]
            assert bench.info("failures", "waiting") == [1, 0]
            assert len(fake.calls) == 2

    run(test)


def test_one_batch_tries_a_provider_that_is_due(fake: FakeEmbedder) -> None:
    """After a longer pause each time, five seconds at most; while one tries, the others do not wait."""

    async def test() -> None:
        async with Bench() as bench:
            fake.fails = EmbedderError("it is down")
            pauses = []
            for _ in range(7):
                assert await bench.ask("text") == [None]
                start = bench.clock()
                while not bench.embedding.is_up(MODEL):
                    bench.clock.advance(100)
                pauses.append(bench.clock() - start)
            assert pauses == [500, 1000, 2000, 4000, 5000, 5000, 5000]
            assert RETRY_MS == 5000
            await asyncio.gather(*(entered(fake) for _ in range(7)))
            fake.fails = None
            fake.gate.clear()
            trying = bench.start("text")
            await entered(fake)
            assert not bench.embedding.is_up(MODEL)
            assert bench.at_once("other") == [None]
            fake.gate.set()
            assert await trying == vectors(fake, "text")
            assert bench.embedding.is_up(MODEL)
            assert bench.embedding.last_error(MODEL) == ""
            assert await bench.ask("other") == vectors(fake, "other")

    run(test)


def test_a_provider_may_ask_for_a_longer_pause(fake: FakeEmbedder) -> None:
    """Retry-After counts up to the five seconds."""

    async def test() -> None:
        async with Bench() as bench:
            for asked_ms, given_ms in ((3_000, 3_000), (60_000, 5_000)):
                fake.fails = EmbedderError("too many requests", asked_ms)
                assert await bench.ask("text") == [None]
                bench.clock.advance(given_ms - 1)
                assert not bench.embedding.is_up(MODEL)
                bench.clock.advance(1)
                assert bench.embedding.is_up(MODEL)

    run(test)


def test_a_clock_that_is_set_back_does_not_keep_it_down(fake: FakeEmbedder) -> None:
    async def test() -> None:
        async with Bench() as bench:
            fake.fails = EmbedderError("it is down")
            await bench.ask("text")
            assert not bench.embedding.is_up(MODEL)
            bench.clock.advance(-3_600_000)
            assert bench.embedding.is_up(MODEL)

    run(test)


def test_a_bug_in_an_embedder_is_a_failure(fake: FakeEmbedder, caplog: pytest.LogCaptureFixture) -> None:
    async def test() -> None:
        async with Bench() as bench:
            fake.fails = ZeroDivisionError("oops")
            assert await bench.ask("text") == [None]
            assert bench.embedding.last_error(MODEL) == "local: internal error"

    run(test)
    assert "ZeroDivisionError" in caplog.text


def test_vectors_of_another_width_are_a_failure(fake: FakeEmbedder) -> None:
    async def test() -> None:
        async with Bench() as bench:
            await bench.ask("loads")
            fake.model = OTHER
            assert await bench.ask("text") == [None]
            assert bench.embedding.last_error(MODEL) == "local gave (1, 16), expected 1 vectors of 8 dimensions"

    run(test)


def test_an_embedder_that_cannot_be_made_is_tried_again(monkeypatch: pytest.MonkeyPatch, fake: FakeEmbedder) -> None:
    def fails(*_: Any) -> FakeEmbedder:
        raise EmbedderError("not installed")

    async def test() -> None:
        async with Bench() as bench:
            with monkeypatch.context() as patch:
                patch.setattr("recalld.server.embedding.make", fails)
                assert await bench.ask("text") == [None]
                assert bench.embedding.last_error(MODEL) == "not installed"
            bench.clock.advance(RETRY_MS)
            assert await bench.ask("text") == vectors(fake, "text")

    run(test)


def test_a_refused_text_takes_no_other_down(fake: FakeEmbedder) -> None:
    """It has no vector while the model is up, and is not sent again."""
    fake.refuses = {"bad"}

    async def test() -> None:
        async with Bench() as bench:
            assert await bench.ask("good", "bad", keep=True) == [*vectors(fake, "good"), None]
            assert bench.embedding.is_up(MODEL)
            assert bench.at_once("bad") == [None]
            assert bench.embedding.cached(MODEL, [b"bad"]) == [None]
            assert fake.calls == [["good", "bad"]]

    run(test)


# The cache


def test_records_are_kept_across_restarts(fake: FakeEmbedder, tmp_path: Path) -> None:
    """Their vectors are read from the file, bit for bit; those of queries are not there."""

    async def first() -> None:
        async with Bench(tmp_path) as bench:
            await bench.ask("record", keep=True)
            await bench.ask("query")

    async def second() -> None:
        async with Bench(tmp_path) as bench:
            assert await bench.ask("record", keep=True) == vectors(fake, "record")
            assert fake.calls == [["record"], ["query"]]
            assert await bench.ask("query") == vectors(fake, "query")
            await bench.ask("record", model=OTHER)
            assert fake.calls[2:] == [["query"], ["record"]]
            assert bench.info("cache_hits", "cache_misses", "cache_hit_rate") == [1, 2, "0.3333"]
            assert bench.info("cache_entries") == [1]

    run(first)
    run(second)


@pytest.mark.parametrize("running", [True, False])
def test_a_query_that_becomes_a_record_is_kept(fake: FakeEmbedder, tmp_path: Path, running: bool) -> None:
    """Whether its vector is there already, or being made."""

    async def first() -> None:
        async with Bench(tmp_path) as bench:
            fake.gate.clear()
            query = bench.start("text")
            await entered(fake)
            if running:
                record = bench.start("text", keep=True)
                fake.gate.set()
                await record
            else:
                fake.gate.set()
                await query
                bench.at_once("text", keep=True)

    async def second() -> None:
        async with Bench(tmp_path) as bench:
            assert await bench.ask("text") == vectors(fake, "text")

    run(first)
    run(second)
    assert fake.calls == [["text"]]


def test_forgotten_texts_leave_file_and_front(fake: FakeEmbedder, tmp_path: Path) -> None:
    async def test() -> None:
        async with Bench(tmp_path) as bench:
            await bench.ask("dead", "live", keep=True)
            while bench.info("cache_entries") != [2]:
                await asyncio.sleep(0)
            await asyncio.to_thread(bench.embedding.forget, lambda: {hashlib.sha256(b"live").digest()})
            await asyncio.sleep(0)
            assert bench.embedding.cached(MODEL, [b"dead", b"live"]) == [None, *vectors(fake, "live")]
            assert bench.info("cache_entries") == [1]
        for file in tmp_path.iterdir():
            content = file.read_bytes()
            assert fake.vector("dead").tobytes() not in content
            assert hashlib.sha256(b"dead").digest() not in content
        assert fake.vector("live").tobytes() in (tmp_path / "embeddings.sqlite").read_bytes()

    run(test)


def test_without_a_file_all_is_in_memory(fake: FakeEmbedder) -> None:
    """A fifth of the bound; the least recently used goes first, and 0 keeps nothing."""

    async def test() -> None:
        async with Bench(embedder_cache_bytes="10kb") as bench:
            texts = [str(number) for number in range(5)]
            await bench.ask(*texts, keep=True)
            assert bench.embedding.cached(MODEL, [b"0"]) == vectors(fake, "0")
            await bench.ask("new")
            there = bench.embedding.cached(MODEL, [text.encode() for text in (*texts, "new")])
            assert [vector is not None for vector in there] == [True, False, True, True, True, True]
            [size] = bench.info("cache_bytes")
            assert isinstance(size, int) and 0 < size <= 2048
            assert bench.info("cache_entries") == [5]
            bench.config.set({"embedder-cache-bytes": "0"})
            assert bench.info("cache_bytes", "cache_entries") == [0, 0]
            await bench.ask("new")
            await bench.ask("new")
            assert fake.calls[-2:] == [["new"], ["new"]]

    run(test)


# Models


def config_of(**options: str) -> Config:
    return Config.load(None, [(name.replace("_", "-"), [text]) for name, text in options.items()])


@pytest.mark.parametrize(
    ("asked", "model"),
    [
        (("openai", "", 0), Model("openai", "text-embedding-3-small", 1536)),
        (("openai", "", 256), Model("openai", "text-embedding-3-small", 256)),
        (("openai", "text-embedding-3-large", 0), Model("openai", "text-embedding-3-large", 3072)),
        (("openai", "text-embedding-ada-002", 0), Model("openai", "text-embedding-ada-002", 1536)),
        (("openai", "nomic-embed-text", 768), Model("openai", "nomic-embed-text", 768)),
        (("gemini", "", 0), Model("gemini", "gemini-embedding-001", 3072)),
        (("gemini", "gemini-embedding-001", 768), Model("gemini", "gemini-embedding-001", 768)),
    ],
)
def test_models(asked: tuple[str, str, int], model: Model) -> None:
    assert model_of(*asked, Config.defaults()) == model


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("openai", "nomic-embed-text", 0), "DIM is required for model 'nomic-embed-text', whose width is not known"),
        (("openai", "", 1537), "DIM of model 'text-embedding-3-small' must be at most 1536, not 1537"),
        (("openai", "text-embedding-ada-002", 512), "DIM of model 'text-embedding-ada-002' must be 1536, not 512"),
        (("gemini", "", 4096), "DIM of model 'gemini-embedding-001' must be at most 3072, not 4096"),
        (("none", "", 0), "EMBEDDER must be none, local, static, openai, gemini or auto"),
    ],
)
def test_models_that_are_not(asked: tuple[str, str, int], message: str) -> None:
    with pytest.raises(CommandError) as caught:
        model_of(*asked, Config.defaults())
    assert caught.value.message == message


def missing(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    """As if these were not installed."""
    from recalld.server import embedder

    find_spec = embedder.find_spec
    embedder.need.cache_clear()
    monkeypatch.setattr(embedder, "find_spec", lambda name: None if name in packages else find_spec(name))


def test_auto_takes_the_first_that_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config.defaults()
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    missing(monkeypatch, "onnxruntime")
    with pytest.raises(EmbedderError, match=r"no embedder is available: set OPENAI_API_KEY or .*recalld\[local\]"):
        model_of("auto", "", 0, config)
    monkeypatch.setenv("GEMINI_API_KEY", "secret")
    assert model_of("auto", "", 0, config).embedder == "gemini"
    monkeypatch.setenv("OPENAI_API_KEY", "")
    assert model_of("auto", "", 0, config).embedder == "gemini"
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    assert model_of("auto", "", 128, config) == Model("openai", "text-embedding-3-small", 128)


@pytest.mark.parametrize("embedder", ["local", "static"])
def test_an_extra_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, embedder: str) -> None:
    missing(monkeypatch, "tokenizers")
    with pytest.raises(EmbedderError) as caught:
        model_of(embedder, "", 0, Config.defaults())
    assert str(caught.value) == f"EMBEDDER {embedder} is not installed: pip install 'recalld[{embedder}]'"


def test_default_embedder_offers_every_one() -> None:
    from recalld.server.embedder import EMBEDDERS

    words: Sequence[str] = OPTIONS["mem-default-embedder"].type.words  # type: ignore[attr-defined]
    assert set(words) == {"none", *EMBEDDERS, "auto"}
