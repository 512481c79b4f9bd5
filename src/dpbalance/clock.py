"""What time is it, and what did chance say? The only door for both; every other room is told."""

from __future__ import annotations

import secrets
import time
from typing import Protocol

import numpy as np


class Clock(Protocol):
    """Seconds since some fixed moment, and a way to let them pass."""

    def now(self) -> float: ...

    def sleep(self, seconds: float) -> None: ...


class RealClock:
    """Wall-clock seconds since the Unix epoch."""

    def now(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(max(0.0, seconds))


class FakeClock:
    """Time that passes only when told to.

    >>> clock = FakeClock(10.0)
    >>> clock.sleep(2.5)
    >>> clock.now()
    12.5
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += max(0.0, seconds)

    def until(self, moment: float) -> None:
        """Let time pass until exactly this moment, which a sum of sleeps may miss by a digit."""
        self._now = max(self._now, moment)


def stopwatch() -> float:
    """Seconds of a clock that never goes back, for measuring how long something took."""
    return time.perf_counter()


def secret() -> str:
    """256 bits that nobody can guess, as text that can stand in a header."""
    return secrets.token_urlsafe(32)


def fresh_seed() -> int:
    """A seed that no other draw shares; kept beside what is drawn, so that it can be drawn again."""
    return secrets.randbits(62)


def chance(seed: int) -> np.random.Generator:
    """A stream of random numbers that depends on nothing but the seed."""
    return np.random.default_rng(seed)
