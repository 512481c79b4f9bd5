"""What did DPack measure? Pipelines of mechanisms whose best Renyi orders differ, on blocks that open in time."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from math import log, sqrt
from typing import ClassVar, Literal

import numpy as np

from dpbalance.accounting import ALPHAS, Gaussian, Laplace, Recipe, SubsampledGaussian, capacity, cost
from dpbalance.amounts import Units, epsilons
from dpbalance.clock import chance
from dpbalance.market.round import Floats, Indices
from dpbalance.market.unlocking import MAX_PARTS, AtOnce, ByTime
from dpbalance.market.workloads import even_round, numbered
from dpbalance.simulate.trace import Trace
from dpbalance.simulate.workload import Owned, bounded, count, newest, positive, process, share


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tasks:
    """What was drawn or read of each pipeline, first come first."""

    submitted: Floats
    wanted: Indices
    """How many blocks."""
    scattered: Indices
    """1 for blocks at random, 0 for the latest."""
    cost: Units
    weight: Floats


@dataclass(frozen=True, kw_only=True)
class BlockStream(Owned):
    """Blocks of (epsilon, delta) that arrive one by one and open in steps; twelve Renyi orders."""

    epsilon: float = positive(10.0)
    """Epsilon of a block."""
    delta: float = bounded(1e-7, 1e-300, 0.5)
    """Delta of a block."""
    blocks_at_start: int = count(10)
    """Blocks that are there from the beginning."""
    blocks: int = count(30)
    """All blocks that ever arrive."""
    block_every: float = positive(1.0)
    """Seconds between blocks."""
    pipelines_at_start: int = count(0, least=0)
    """Pipelines that are there from the beginning."""
    pipelines_per_block: float = positive(50.0)
    """Pipelines that arrive between two blocks, on average."""
    arrivals: Literal["poisson", "fixed"] = "poisson"
    """Pipelines come as a Poisson process, or exactly as many; always at random times."""
    lifetime: float = positive(30.0)
    """Seconds after its arrival until a block is open in full."""
    steps: int = bounded(100, 0, MAX_PARTS)
    """Parts in which it opens; 0 opens it at once."""
    round_every: float = positive(1.0)
    """Seconds between rounds."""
    timeout: float | None = bounded(None)
    """Seconds a pipeline waits; none is for ever."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ordered("blocks_at_start", "blocks")

    @property
    def duration(self) -> float:
        """Seconds until one interval after the last block."""
        return (self.blocks - self.blocks_at_start + 1) * self.block_every

    @abstractmethod
    def tasks(self, random: np.random.Generator) -> Tasks:
        """The pipelines."""

    def trace(self, seed: int) -> Trace:
        random = chance(seed)
        tasks = self.tasks(random)
        pipelines = len(tasks.submitted)
        later = np.arange(1, self.blocks - self.blocks_at_start + 1) * self.block_every
        arrived = np.concatenate((np.zeros(self.blocks_at_start), later))
        asked = []
        for now, wanted, scattered in zip(tasks.submitted, tasks.wanted.tolist(), tasks.scattered, strict=True):
            there = newest(arrived, now, self.blocks if scattered else wanted)
            many = min(wanted, len(there))
            asked.append(np.sort(random.choice(there, size=many, replace=False)) if scattered else there)
        market = even_round(
            orders=ALPHAS,
            now=0.0,
            blocks=numbered("b", self.blocks),
            capacity=np.tile(capacity(self.epsilon, self.delta, ALPHAS), (self.blocks, 1)),
            owner=self.owners(random, pipelines),
            submitted=tasks.submitted,
            weight=tasks.weight,
            asked=asked,
            cost=tasks.cost,
        )
        return Trace(
            market=market,
            block_arrived=arrived,
            deadline=np.full(pipelines, np.inf),
            unlock=ByTime(lifetime=self.lifetime, steps=self.steps) if self.steps else AtOnce(),
            rounds=self.round_every,
            timeout=self.timeout,
            end=self.duration,
        )

    def times(self, random: np.random.Generator) -> Floats:
        """When pipelines arrive."""
        later = process(random, self.duration, self.block_every / self.pipelines_per_block, self.arrivals)
        return np.concatenate((np.zeros(self.pipelines_at_start), later))


@dataclass(frozen=True, kw_only=True)
class DPackMixed(BlockStream):
    """Laplace, Gaussian and subsampled Gaussian, each at two epsilons, on few or many of the blocks."""

    name: ClassVar[str] = "dpack-mixed"

    epsilon_low: float = positive(0.5)
    """Epsilon of one half of the pipelines."""
    epsilon_high: float = positive(1.0)
    """Epsilon of the other half."""
    few: int = count(1)
    """Blocks that most pipelines ask for."""
    many: int = count(10)
    """Blocks that the others ask for."""
    many_share: float = share(0.5)
    """Chance of a pipeline to ask for many."""
    selection: Literal["latest", "random"] = "latest"
    """Which blocks: the latest, or any that have arrived."""
    sampling_rate: float = bounded(0.01, 1e-6, 1.0)
    """Of the subsampled Gaussian."""
    sampling_steps: int = count(1000)
    """Its steps."""

    def tasks(self, random: np.random.Generator) -> Tasks:
        submitted = self.times(random)
        pipelines = len(submitted)
        kinds = np.stack([curve for target in (self.epsilon_low, self.epsilon_high) for curve in self._curves(target)])
        return Tasks(
            submitted=submitted,
            wanted=np.where(random.random(pipelines) < self.many_share, self.many, self.few),
            scattered=np.full(pipelines, int(self.selection == "random")),
            cost=kinds[random.integers(0, len(kinds), pipelines)],
            weight=np.ones(pipelines),
        )

    def _curves(self, target: float) -> tuple[Units, ...]:
        def sampled(noise: float) -> Recipe:
            return SubsampledGaussian(
                noise_multiplier=noise, sampling_rate=self.sampling_rate, steps=self.sampling_steps
            )

        return (
            cost(Laplace(noise_multiplier=1 / target), ALPHAS),
            gaussian(target, self.delta),
            cost(sampled(_least_noise(sampled, target, self.delta)), ALPHAS),
        )


def gaussian(epsilon: float, delta: float) -> Units:
    """Cost of the Gaussian noise z that gives (epsilon, delta) at its best order.

    With s = 1/z the smallest over all orders a of a s^2 / 2 + ln(1/delta) / (a - 1) is s^2 / 2 + s sqrt(2 ln(1/delta)).
    """
    half = sqrt(2 * log(1 / delta))
    return cost(Gaussian(noise_multiplier=1 / (sqrt(half**2 + 2 * epsilon) - half)), ALPHAS)


def _least_noise(recipe: Callable[[float], Recipe], epsilon: float, delta: float) -> float:
    """The noise at which the recipe gives (epsilon, delta) at the best of our orders."""
    price = log(1 / delta) / (np.array(ALPHAS) - 1)

    def holds(noise: float) -> bool:
        return bool(np.min(epsilons(cost(recipe(noise), ALPHAS)) + price) <= epsilon)

    low, high = 0.3, 1e3
    for _ in range(40):
        middle = sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
