"""What is one measurement, and what is asked of it?"""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from dpbalance.clock import stopwatch


@dataclass(frozen=True, kw_only=True)
class Result:
    """One row of the report. A bar is a limit on `figure`: at least (ratios) or at most (seconds)."""

    family: str
    case: str
    phases_ms: dict[str, float]
    """Milliseconds of each phase, ours and the peers'."""
    figure: float
    unit: str
    bar: float | None = None
    at_least: bool = True
    notes: dict[str, Any] = field(default_factory=dict)

    @property
    def passed(self) -> bool | None:
        if self.bar is None:
            return None
        return self.figure >= self.bar if self.at_least else self.figure <= self.bar

    def row(self) -> dict[str, Any]:
        return {**asdict(self), "passed": self.passed}


def milliseconds(action: Callable[[], Any], *, times: int = 7, warm: int = 1) -> float:
    """The median of several runs, after some that do not count."""
    for _ in range(warm):
        action()
    gc.collect()
    taken = []
    for _ in range(times):
        began = stopwatch()
        action()
        taken.append(stopwatch() - began)
    return statistics.median(taken) * 1e3
