"""Who asks for least in total? A scheduler in one module: the smallest total demand first, whatever still fits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpbalance import Allocation, Round
from dpbalance.scheduler.options import Options, require


@dataclass(frozen=True, kw_only=True)
class SmallestFirst(Options):
    """Smallest total demand first."""

    name: ClassVar[str] = "smallest-first"

    serve_max: int = 1_000_000
    """The most pipelines served in one round."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.serve_max >= 0, f"serve_max must be at least 0, not {self.serve_max!r}")

    def decide(self, round_: Round, /) -> Allocation:
        left = round_.available
        asked = [round_.cost[begin:end] for begin, end in zip(round_.start, round_.start[1:], strict=False)]
        granted: list[int] = []
        for at in sorted(range(len(asked)), key=lambda each: int(asked[each].sum())):
            block = round_.block[round_.start[at] : round_.start[at + 1]]
            fits = bool(np.all(np.any(asked[at] <= left[block], axis=1)))
            if fits and len(granted) < self.serve_max:
                left[block] -= asked[at]
                granted.append(at)
        return self.all_or_nothing(round_, granted)
