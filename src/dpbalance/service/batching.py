"""How do many requests share one transaction? What waits is taken together, by one thread for each kind of work."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from dpbalance.errors import Overloaded

Asked = TypeVar("Asked")

BATCH_MAX = 512
"""The most requests that share one transaction."""


class Batches(Generic[Asked]):
    """`run` gets a batch in its own thread and returns for each request its answer, or the exception that is it."""

    def __init__(self, run: Callable[[Sequence[Asked]], Sequence[Any]], *, queue_max: int, what: str) -> None:
        self._run, self._queue_max, self._what = run, queue_max, what
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=what)
        self._waiting: deque[tuple[Asked, int, asyncio.Future[Any]]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self.length = 0
        """What waits or is being done, by weight."""

    async def __call__(self, asked: Asked, weight: int = 1) -> Any:
        """The answer. A full queue refuses at once; one request is always taken, however heavy."""
        if self.length and self.length + weight > self._queue_max:
            raise Overloaded(f"{self.length} {self._what} are waiting already", hint="the same again in a second")
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting.append((asked, weight, future))
        self.length += weight
        if self._worker is None or self._worker.done():
            self._worker = asyncio.create_task(self._work())
        return await future

    async def _work(self) -> None:
        loop = asyncio.get_running_loop()
        while self._waiting:
            batch = [self._waiting.popleft() for _ in range(min(BATCH_MAX, len(self._waiting)))]
            answers: Sequence[Any]
            try:
                answers = await loop.run_in_executor(self._thread, self._run, [asked for asked, _, _ in batch])
            except Exception as problem:
                answers = [problem] * len(batch)
            for (_, weight, future), answer in zip(batch, answers, strict=True):
                self.length -= weight
                if future.done():  # whoever asked has gone
                    continue
                if isinstance(answer, BaseException):
                    future.set_exception(answer)
                else:
                    future.set_result(answer)

    def close(self) -> None:
        self._thread.shutdown()
