"""How do many writers at once share one transaction? Whoever comes first writes for all that wait."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
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
    __slots__ = ("answer", "asked", "batch", "done", "problem", "woken")

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.woken = Event()
        self.done = False
        self.batch: list[_Job[Asked, Answered]] = []
        """Whom it writes for, once it leads."""
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
        self._leader: _Job[Asked, Answered] | None = None

    def __call__(self, asked: Asked) -> Answered:
        job: _Job[Asked, Answered] = _Job(asked)
        try:
            self._take_part(job)
            self._leave(job)
        except BaseException:  # an interrupt can come at any line, that of the leave included, which may be repeated
            self._leave(job)
            raise
        if job.problem is not None:
            raise job.problem
        return job.answer  # type: ignore[return-value]

    def _take_part(self, job: _Job[Asked, Answered]) -> None:
        """Until it is answered, by another or by itself."""
        with self._lock:
            if len(self._waiting) >= self._queue_max:
                raise LedgerUnavailable(f"{self._queue_max} writes are waiting already", hint="asking again later")
            self._waiting.append(job)
            if self._leader is None:
                self._leader = job
        if self._leader is not job:
            job.woken.wait()
        if self._leader is job and not job.done:
            self._lead(job)

    def _lead(self, leader: _Job[Asked, Answered]) -> None:
        with self._lock:
            leader.batch = list(islice(self._waiting, self._batch_max))
            for _ in leader.batch:
                self._waiting.popleft()
        answers = self._answered([job.asked for job in leader.batch])
        for job, answer in zip(leader.batch, answers, strict=True):
            if isinstance(answer, BaseException):
                job.problem = answer
            else:
                job.answer = answer
            job.done = True

    def _answered(self, batch: Sequence[Asked]) -> Sequence[Answered | BaseException]:
        try:
            return self._run(batch)
        except Exception as problem:
            return [problem] * len(batch)

    def _leave(self, job: _Job[Asked, Answered]) -> None:
        """Whoever goes, for whatever reason, leaves the queue, answers those it wrote for, and hands on the lead.

        Every step may be repeated, and those who are woken look for themselves.
        """
        with self._lock:
            if not job.done and job in self._waiting:
                self._waiting.remove(job)
            if self._leader is job:
                self._leader = self._waiting[0] if self._waiting else None
            following = self._leader
        for each in job.batch:
            if not each.done:
                unknown = "whoever wrote for all was interrupted"
                each.problem, each.done = LedgerUnavailable(unknown, hint="the same request, the same key"), True
            each.woken.set()
        if following is not None:
            following.woken.set()
