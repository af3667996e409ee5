"""Asking a model: what goes on its way, how many at once, for how long. The other server is inference_http.py's.

Rule 1: nobody waits longer than `inference-timeout-ms`, tries and the turn in the queue included.
Rule 2: a request is on its way in a thread of its own; the loop only waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from asyncio import Future, Task
from collections.abc import Callable, Coroutine
from typing import Any

from .config import Config
from .errors import CommandError
from .inference_schema import Schema

#: How many requests are on their way at once; the others wait for their turn.
CONCURRENT = 8
TOO_LATE = "the inference server did not answer within inference-timeout-ms"
_OFF = "inference is off: set inference-url and inference-model"


class InferenceError(CommandError):
    """There is no answer, or none that can be used; the message is for clients."""


def refused(reason: str) -> InferenceError:
    """The error for an answer that is not what was asked for."""
    return InferenceError(f"the model's answer was refused: {reason}")


class Inference:
    """Asks the chat server for one recalld. Everything is called on the loop."""

    def __init__(self, config: Config, loop: asyncio.AbstractEventLoop) -> None:
        self._config = config
        self._loop = loop
        self._turns = asyncio.Semaphore(CONCURRENT)
        self._http: Any = None  # inference_http.Http, the threads'
        self._closing = threading.Event()
        self._tasks: set[Task[Any]] = set()

    def check_on(self) -> None:
        """Raise CommandError where there is nobody to ask."""
        if not (self._config["inference-url"] and self._config["inference-model"]):
            raise CommandError(_OFF)

    def start(self, work: Coroutine[Any, Any, Any]) -> Task[Any]:
        """Run what asks; it is cancelled when the server closes."""
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def chat(self, messages: list[dict[str, str]], schema: Schema) -> dict[str, Any]:
        """The model's answer, which is as the schema has it; raises InferenceError."""
        timeout_s = self._config["inference-timeout-ms"] / 1000
        deadline = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self._turns.acquire()
                found = await self._in_thread(lambda: self._ask(messages, schema, deadline))
        except TimeoutError:
            raise InferenceError(TOO_LATE) from None
        answer: dict[str, Any] = found
        return answer

    async def close(self) -> None:
        """Cancel whatever is asked."""
        self._closing.set()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    def _in_thread(self, work: Callable[[], Any]) -> Future[Any]:
        """The result of `work`. The turn ends when the thread does, whether anyone still waits for it or not."""
        future: Future[Any] = self._loop.create_future()

        def ended(result: Any, error: Exception | None) -> None:
            self._turns.release()
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def run() -> None:
            result, error = None, None
            try:
                result = work()
            except Exception as failed:
                error = failed
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(ended, result, error)

        # A daemon: an executor's thread would hold up the end of the process until the other server answers.
        threading.Thread(target=run, name="inference", daemon=True).start()
        return future

    def _ask(self, messages: list[dict[str, str]], schema: Schema, deadline: float) -> dict[str, Any]:
        """In a thread."""
        from .inference_http import Http  # here: urllib3 takes its time to import, and most servers never need it

        if self._http is None:
            self._http = Http(self._config, self._closing, CONCURRENT)
        found: dict[str, Any] = self._http.ask(messages, schema, deadline)
        return found
