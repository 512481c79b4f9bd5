"""What do the paper's analysts ask for? Three quarters mice and one quarter elephants, on few or many of the blocks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbalance.demand.selector import Selector


@dataclass(frozen=True, slots=True, kw_only=True)
class Mix:
    """The shape of the demand, whatever the number of analysts and blocks."""

    elephant_share: float = 0.25
    elephant_low: float = 0.095
    elephant_high: float = 0.105
    mouse_low: float = 0.005
    mouse_high: float = 0.015
    many_share: float = 0.25
    """Chance of a pipeline to ask for `many` of the newest windows instead of `few`."""
    many: int = 10
    few: int = 1
    device_share: float = 0.2
    """Share of the devices that every second analyst asks; the others ask all."""

    def draw(
        self,
        random: np.random.Generator,
        *,
        analysts: int,
        pipelines_each: int,
        devices: int,
        windows: int,
        catalogue: int,
    ) -> Asks:
        """Demand on the first `windows` windows of a catalogue of devices x windows."""
        count = analysts * pipelines_each
        elephant = random.permutation(np.arange(count) < round(self.elephant_share * count))
        large = random.uniform(self.elephant_low, self.elephant_high, count)
        epsilon = np.where(elephant, large, random.uniform(self.mouse_low, self.mouse_high, count))
        latest = np.where(random.random(count) < self.many_share, self.many, self.few)
        wide = random.permutation(np.arange(analysts) < (analysts + 1) // 2)
        blocks = []
        for analyst in range(analysts):
            chosen = Selector(device_share=1.0 if wide[analyst] else self.device_share).devices(devices, random)
            for newest in latest[analyst * pipelines_each : (analyst + 1) * pipelines_each]:
                blocks.append(Selector(latest=int(newest)).blocks(chosen, windows, catalogue))
        return Asks(epsilon=epsilon, blocks=blocks)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Asks:
    """What was drawn for each pipeline, those of one analyst after the other."""

    epsilon: npt.NDArray[np.float64]
    blocks: list[npt.NDArray[np.int64]]
