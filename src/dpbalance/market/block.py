"""What does one device's data of one time window still offer?"""

from __future__ import annotations

from dataclasses import dataclass

from dpbalance.demand.pipeline import Epsilon


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The smallest thing a budget belongs to: one number for each amount, or one for each order."""

    id: str
    capacity: Epsilon
    spent: Epsilon = 0.0
    unlocked: Epsilon | None = None
    """How much of the capacity may be used by now; None means all of it."""
