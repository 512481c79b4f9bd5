"""What does whoever settles need of an engine? Start once, say how it stands, show what came of it, stop."""

from __future__ import annotations

from enum import StrEnum
from typing import Protocol

from dpbalance.execution.plan import RunPlan
from dpbalance.execution.runs import Outcome


class Standing(StrEnum):
    """How a run stands with its engine; how it ended is told by its receipts, not by this."""

    UNKNOWN = "unknown"
    """The engine was never handed this run."""
    RUNNING = "running"
    ENDED = "ended"
    """Nobody works on it any more."""
    OVERDUE = "overdue"
    """Nobody works on it any more, and its time was over."""


class Runner(Protocol):
    """An engine."""

    def free(self) -> int:
        """How many runs can be started now."""

    def start(self, plan: RunPlan) -> None:
        """Take a run over; a run that is known is left as it is, so this may be asked again."""

    def standing(self, run: str) -> Standing: ...

    def outcome(self, run: str) -> Outcome:
        """What came of a run that stands still."""

    def stop(self, run: str) -> None:
        """End a run that is still going."""
