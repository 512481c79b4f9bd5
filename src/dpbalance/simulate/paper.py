"""What is the paper's evaluation? New blocks every ten seconds, a few analysts with mice and elephants each round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from dpbalance.amounts import capacity_units, cost_units
from dpbalance.clock import chance
from dpbalance.demand.paper import Mix
from dpbalance.market.unlocking import MAX_PARTS, AtOnce, ByTime
from dpbalance.market.workloads import even_round, grid_names
from dpbalance.simulate.trace import Trace
from dpbalance.simulate.workload import Workload, bounded, count, positive, share

MIX = Mix()


@dataclass(frozen=True, kw_only=True)
class Paper(Workload):
    """Analysts come in the interval before a round, on the blocks that arrived at its beginning."""

    name: ClassVar[str] = "paper"

    rounds: int = count(10)
    """Rounds, at the end of each interval."""
    interval: float = positive(10.0)
    """Seconds between rounds, and between new blocks."""
    devices: int = count(100)
    """Devices, each with blocks of its own."""
    blocks_each: int = count(2)
    """New blocks of each device in each interval."""
    budget_low: float = positive(1.0)
    """Least budget of a device; its blocks share the number, not the budget."""
    budget_high: float = positive(1.5)
    """Largest budget of a device."""
    analysts: int = count(6)
    """Analysts that come in each interval, or do so on average."""
    arrivals: Literal["poisson", "fixed"] = "poisson"
    """Analysts come as a Poisson process, or exactly as many in each interval; always at random times."""
    pipelines_each: int = count(25)
    """Pipelines of each analyst."""
    elephant_share: float = share(MIX.elephant_share)
    """Share of the pipelines that are elephants; the others are mice."""
    elephant_low: float = positive(MIX.elephant_low)
    """Least demand of an elephant."""
    elephant_high: float = positive(MIX.elephant_high)
    """Largest demand of an elephant."""
    mouse_low: float = positive(MIX.mouse_low)
    """Least demand of a mouse."""
    mouse_high: float = positive(MIX.mouse_high)
    """Largest demand of a mouse."""
    many_share: float = share(MIX.many_share)
    """Chance of a pipeline to ask for `many` blocks of each device instead of `few`."""
    many: int = count(MIX.many)
    """How many of the latest blocks that is."""
    few: int = count(MIX.few)
    """How many of the latest blocks the others ask for."""
    device_share: float = bounded(MIX.device_share, 0.0, 1.0, above=True)
    """Share of the devices that half of the analysts ask for; the other half asks for all."""
    loss_low: float = positive(0.5)
    """Least matching degree l of a pipeline."""
    loss_high: float = positive(1.0)
    """Largest matching degree."""
    lifetime: float = positive(50.0)
    """Seconds after its arrival until a block is open in full."""
    steps: int = bounded(0, 0, MAX_PARTS)
    """Parts in which it opens; 0 opens it at once."""
    timeout: float | None = bounded(None)
    """Seconds a pipeline waits; none is for ever."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for kind in ("budget", "elephant", "mouse", "loss"):
            self._ordered(f"{kind}_low", f"{kind}_high")

    def trace(self, seed: int) -> Trace:
        random = chance(seed)
        windows = self.rounds * self.blocks_each
        budget = capacity_units(random.uniform(self.budget_low, self.budget_high, self.devices))
        mix = Mix(**{name: getattr(self, name) for name in Mix.__dataclass_fields__})
        epsilon, asked, submitted = [np.zeros(0)], [], [np.zeros(0)]
        for number in range(self.rounds):
            coming = int(random.poisson(self.analysts)) if self.arrivals == "poisson" else self.analysts
            times = np.sort(random.uniform(number * self.interval, (number + 1) * self.interval, coming))
            asks = mix.draw(
                random,
                analysts=coming,
                pipelines_each=self.pipelines_each,
                devices=self.devices,
                windows=(number + 1) * self.blocks_each,
                catalogue=windows,
            )
            epsilon.append(asks.epsilon)
            asked += asks.blocks
            submitted.append(np.repeat(times, self.pipelines_each))
        pipelines = len(asked)
        market = even_round(
            now=0.0,
            blocks=grid_names(self.devices, windows),
            capacity=np.repeat(budget, windows)[:, None],
            owner=np.arange(pipelines) // self.pipelines_each,
            submitted=np.concatenate(submitted),
            loss=random.uniform(self.loss_low, self.loss_high, pipelines),
            asked=asked,
            cost=cost_units(np.concatenate(epsilon))[:, None],
        )
        return Trace(
            market=market,
            block_arrived=np.tile(np.arange(windows) // self.blocks_each * self.interval, self.devices),
            deadline=np.full(pipelines, np.inf),
            unlock=ByTime(lifetime=self.lifetime, steps=self.steps) if self.steps else AtOnce(),
            rounds=self.interval,
            timeout=self.timeout,
            end=self.rounds * self.interval,
        )
