"""What must anything that decides be able to do?"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from dpbalance.allocation import Allocation
from dpbalance.market import Round


@runtime_checkable
class Scheduler(Protocol):
    """One object with one method. It must be deterministic and keep no memory between rounds."""

    def decide(self, round_: Round, /) -> Allocation:
        """Who gets what of this round. Never more than is available; never between 0 and 1 of a demand."""
        ...
