"""How do many writers at once share one transaction? Whoever comes first writes for all that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from threading import Event, Lock
from typing import Generic, TypeVar

from dpbalance.errors import LedgerUnavailable

Asked = TypeVar("Asked")
Answered = TypeVar("Answered")

BATCH_MAX = 256
"""The most requests that share one transaction."""

QUEUE_MAX = 10_000
"""The most requests that wait; one more is refused at once instead of waiting without end."""


class _Job(Generic[Asked, Answered]):
    __slots__ = ("answer", "asked", "leads", "problem", "woken")

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.woken = Event()
        self.leads = False
        self.answer: Answered | None = None
        self.problem: BaseException | None = None


class GroupCommit(Generic[Asked, Answered]):
    """Collects requests of many threads. The first to come leads: it runs the batch and hands the lead on.

    `run` gets a batch and returns for each request its answer, or the exception that is its answer.
    """

    def __init__(
        self,
        run: Callable[[Sequence[Asked]], Sequence[Answered | BaseException]],
        *,
        batch_max: int = BATCH_MAX,
        queue_max: int = QUEUE_MAX,
    ) -> None:
        self._run, self._batch_max, self._queue_max = run, batch_max, queue_max
        self._lock = Lock()
        self._waiting: deque[_Job[Asked, Answered]] = deque()
        self._led = False

    def __call__(self, asked: Asked) -> Answered:
        job: _Job[Asked, Answered] = _Job(asked)
        with self._lock:
            if len(self._waiting) >= self._queue_max:
                raise LedgerUnavailable(f"{self._queue_max} writes are waiting already", hint="asking again later")
            self._waiting.append(job)
            job.leads = not self._led
            self._led = True
        if not job.leads:
            self._wait(job)
        if job.leads:
            self._lead()
        if job.problem is not None:
            raise job.problem
        return job.answer  # type: ignore[return-value]

    def _wait(self, job: _Job[Asked, Answered]) -> None:
        """Until it is answered or leads. Whoever is interrupted leaves the queue, and hands on a lead it was given."""
        try:
            job.woken.wait()
        except BaseException:
            with self._lock:
                if job in self._waiting:
                    self._waiting.remove(job)
                leads = job.leads
            if leads:
                self._lead()
            raise

    def _lead(self) -> None:
        with self._lock:
            batch = [self._waiting.popleft() for _ in range(min(self._batch_max, len(self._waiting)))]
        try:
            answers = self._run([job.asked for job in batch]) if batch else []
            for job, answer in zip(batch, answers, strict=True):
                if isinstance(answer, BaseException):
                    job.problem = answer
                else:
                    job.answer = answer
        except BaseException as problem:
            ordinary = isinstance(problem, Exception)
            unknown = LedgerUnavailable("whoever wrote for all was interrupted", hint="the same request, the same key")
            for job in batch:
                job.problem = problem if ordinary else unknown
            if not ordinary:
                raise
        finally:
            with self._lock:
                following = self._waiting[0] if self._waiting else None
                self._led = following is not None
                if following is not None:
                    following.leads = True
            for job in batch:
                job.woken.set()
            if following is not None:
                following.woken.set()
