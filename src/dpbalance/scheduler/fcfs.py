"""Who came first? First come, first served: whatever fits is granted in the order of submission."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from dpbalance.allocation import Allocation
from dpbalance.market import Round
from dpbalance.scheduler.greedy import queue_order, serve
from dpbalance.scheduler.options import Options


@dataclass(frozen=True, kw_only=True)
class FCFS(Options):
    """First come, first served."""

    name: ClassVar[str] = "fcfs"

    def decide(self, round_: Round, /) -> Allocation:
        granted = serve(round_.start, round_.block, round_.cost, round_.available, queue_order(round_))
        return self.all_or_nothing(round_, granted.tolist())
