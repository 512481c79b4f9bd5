"""What did PrivateKube measure? Mice and elephants on blocks that open as pipelines arrive, decided at each arrival."""

from __future__ import annotations

from dataclasses import dataclass
from math import log, sqrt
from typing import ClassVar, Literal

import numpy as np

from dpbalance.accounting import Gaussian, capacity, cost
from dpbalance.amounts import Units, capacity_units, cost_units
from dpbalance.clock import chance
from dpbalance.market.unlocking import MAX_PARTS, AtOnce, ByArrivals
from dpbalance.market.workloads import even_round, numbered
from dpbalance.simulate.trace import Trace
from dpbalance.simulate.workload import Owned, bounded, count, newest, positive, process, share

ORDERS = (1.5, *(float(2**power) for power in range(1, 11)))


@dataclass(frozen=True, kw_only=True)
class PrivateKubeSingle(Owned):
    """One block, one pipeline a second."""

    name: ClassVar[str] = "privatekube-single"

    duration: float = positive(236.0)
    """Seconds in which pipelines arrive; the last round is at their end."""
    every: float = positive(1.0)
    """Seconds between pipelines, on average."""
    arrivals: Literal["poisson", "fixed"] = "poisson"
    """Pipelines come as a Poisson process, or exactly as many; always at random times."""
    blocks_at_start: int = count(1)
    """Blocks that are there from the beginning."""
    block_every: float | None = positive(None)
    """Seconds between later blocks; none for no more."""
    epsilon: float = positive(1.0)
    """What a block may lose in all."""
    mouse: float = positive(0.01)
    """Epsilon of a mouse."""
    elephant: float = positive(0.1)
    """Epsilon of an elephant."""
    mouse_share: float = share(0.75)
    """Chance of a pipeline to be a mouse."""
    many_share: float = share(0.25)
    """Chance of a pipeline to ask for `many` of the latest blocks instead of one."""
    many: int = count(10)
    """How many of the latest blocks that is."""
    unlock_after: int | None = bounded(100, 1, MAX_PARTS)
    """N: a block opens in N parts, one for each pipeline that asks for it; none opens it at once."""
    timeout: float | None = bounded(300.0)
    """Seconds a pipeline waits; 0 is served on arrival or never, none for ever."""
    renyi: bool = False
    """Count in Renyi orders from 1.5 to 1024, with Gaussian noise, instead of adding up epsilons."""
    delta: float = bounded(1e-6, 1e-300, 0.5)
    """Delta of a block, in the Renyi variant."""
    pipeline_delta: float = bounded(1e-9, 1e-300, 0.5)
    """Delta of a pipeline, in the Renyi variant."""

    def trace(self, seed: int) -> Trace:
        random = chance(seed)
        submitted = process(random, self.duration, self.every, self.arrivals)
        pipelines = len(submitted)
        later = (
            np.zeros(0) if self.block_every is None else np.arange(self.block_every, self.duration, self.block_every)
        )
        arrived = np.concatenate((np.zeros(self.blocks_at_start), later))
        kind = (random.random(pipelines) >= self.mouse_share).astype(np.int64)
        wanted = np.where(random.random(pipelines) < self.many_share, self.many, 1)
        market = even_round(
            orders=ORDERS if self.renyi else None,
            now=0.0,
            blocks=numbered("b", len(arrived)),
            capacity=np.tile(self._capacity(), (len(arrived), 1)),
            owner=self.owners(random, pipelines),
            submitted=submitted,
            asked=[newest(arrived, now, many) for now, many in zip(submitted, wanted.tolist(), strict=True)],
            cost=np.stack((self._cost(self.mouse), self._cost(self.elephant)))[kind],
        )
        return Trace(
            market=market,
            block_arrived=arrived,
            deadline=np.full(pipelines, np.inf),
            unlock=AtOnce() if self.unlock_after is None else ByArrivals(n=self.unlock_after),
            rounds="arrival",
            timeout=self.timeout,
            end=self.duration,
        )

    def _capacity(self) -> Units:
        return capacity(self.epsilon, self.delta, ORDERS) if self.renyi else capacity_units([self.epsilon])

    def _cost(self, epsilon: float) -> Units:
        if not self.renyi:
            return cost_units([epsilon])
        return cost(Gaussian(noise_multiplier=sqrt(2 * log(1.25 / self.pipeline_delta)) / epsilon), ORDERS)


@dataclass(frozen=True, kw_only=True)
class PrivateKubeMulti(PrivateKubeSingle):
    """Blocks that keep coming, and many pipelines a second."""

    name: ClassVar[str] = "privatekube-multi"

    duration: float = positive(300.0)
    every: float = positive(0.078125)
    blocks_at_start: int = count(12)
    block_every: float | None = positive(10.0)
