"""Which blocks does an ask for 'these devices, the latest n windows' mean?"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbalance.errors import OptionError


@dataclass(frozen=True, slots=True, kw_only=True)
class Selector:
    """A rectangle of devices and time windows, in a catalogue where block = device * windows + window."""

    device_share: float = 1.0
    """Share of all devices, drawn at random; 1 asks for every device."""
    latest: int = 1
    """How many of the newest windows."""

    def __post_init__(self) -> None:
        if not 0 < self.device_share <= 1:
            raise OptionError(f"device_share must be above 0 and at most 1, not {self.device_share!r}")
        if self.latest < 1:
            raise OptionError(f"latest must be at least 1 window, not {self.latest!r}")

    def devices(self, count: int, random: np.random.Generator) -> npt.NDArray[np.int64]:
        """The devices asked, ascending; at least one."""
        if self.device_share >= 1:
            return np.arange(count)
        asked = max(1, round(self.device_share * count))
        return np.sort(random.choice(count, size=asked, replace=False))

    def blocks(
        self, devices: npt.NDArray[np.int64], windows: int, catalogue: int | None = None
    ) -> npt.NDArray[np.int64]:
        """The blocks of these devices in the newest of `windows`, ascending.

        A catalogue that keeps room for later windows has more of them for each device.
        """
        newest = np.arange(max(0, windows - self.latest), windows)
        return (devices[:, None] * (catalogue or windows) + newest).ravel()
