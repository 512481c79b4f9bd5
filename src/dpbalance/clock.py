"""What time is it, and what did chance say? The only door for both; every other room is told."""

from __future__ import annotations

import os
import secrets
import time
from typing import Protocol

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Words = npt.NDArray[np.uint64]

WORDS = 2**53
"""How many different words there are: whole numbers of 53 bits."""

NORMAL_PARTS = 4
"""How many normal draws one number of noise is the sum of."""


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


class Deadline:
    """A moment on a clock that never goes back.

    >>> Deadline(0.0).passed, Deadline(60.0).left > 59
    (True, True)
    """

    def __init__(self, seconds: float) -> None:
        self._end = stopwatch() + seconds

    @property
    def left(self) -> float:
        """Seconds until then, 0 when it has passed."""
        return max(0.0, self._end - stopwatch())

    @property
    def passed(self) -> bool:
        return self.left == 0.0


def chance(seed: int) -> np.random.Generator:
    """A stream of random numbers that depends on nothing but the seed."""
    return np.random.default_rng(seed)


class Secrets(Protocol):
    """Chance that nobody outside this process can know or repeat."""

    def words(self, count: int) -> Words: ...

    def normal(self, shape: tuple[int, ...]) -> Floats: ...


class SystemSecrets:
    """Chance from the operating system's cryptographic source; there is no seed that could leak."""

    def words(self, count: int) -> Words:
        """Whole numbers from 0 to 2^53 (excluded), each as likely as any other."""
        return np.frombuffer(os.urandom(8 * count), dtype="<u8") >> np.uint64(11)

    def uniform(self, count: int) -> Floats:
        """Numbers from 0 (included) to 1 (excluded), each a multiple of 2^-53."""
        return self.words(count).astype(np.float64) / WORDS

    def normal(self, shape: tuple[int, ...]) -> Floats:
        """Standard normal numbers, each the sum of four halves, so that the last digits of a double tell less.

        Holohan, Braghin (2021), "Secure Random Sampling in Differential Privacy", section 5.1: to find the digits of a
        single draw in a released sum is easy, to find those of several at once is not.
        """
        count = int(np.prod(shape))
        pairs = -(-count // 2) * NORMAL_PARTS
        radius = np.sqrt(-2.0 * np.log1p(-self.uniform(pairs)))
        angle = 2.0 * np.pi * self.uniform(pairs)
        sines = np.roll(radius * np.sin(angle), 1)  # the two of one pair never meet in one sum
        drawn = np.concatenate([radius * np.cos(angle), sines]).reshape(NORMAL_PARTS, -1)
        summed: Floats = drawn.sum(axis=0)[:count].reshape(shape) / np.sqrt(NORMAL_PARTS)
        return summed


class SeededSecrets:
    """The same numbers for the same seed: for tests and simulations, never for anybody's data."""

    def __init__(self, seed: int) -> None:
        self._random = chance(seed)

    def words(self, count: int) -> Words:
        return self._random.integers(0, WORDS, size=count, dtype=np.uint64)

    def normal(self, shape: tuple[int, ...]) -> Floats:
        return self._random.standard_normal(shape)


def secret_name(bytes_: int = 16) -> str:
    """A name nobody can guess, as hexadecimal text."""
    return os.urandom(bytes_).hex()
