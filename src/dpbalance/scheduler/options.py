"""What can be set on every scheduler, and how is a bad value refused?"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, ClassVar

import numpy as np

from dpbalance.allocation import Allocation, Terms
from dpbalance.errors import OptionError
from dpbalance.market import Round
from dpbalance.market.round import Floats


@dataclass(frozen=True, kw_only=True)
class Options:
    """The options all schedulers share: by which terms their decisions are valued."""

    name: ClassVar[str]

    beta: float = 2.2
    """Fairness preference: 0 pure efficiency, 1 proportional, inf max-min. Baselines use it in the metrics only."""
    tau: float = 100.0
    """Seconds of waiting after which urgency has halved."""

    def __post_init__(self) -> None:
        Terms(beta=self.beta, tau=self.tau)

    @property
    def terms(self) -> Terms:
        return Terms(beta=self.beta, tau=self.tau)

    def written(self) -> dict[str, Any]:
        """The options as they go into the allocation file."""
        return {each.name: getattr(self, each.name) for each in fields(self)}

    def all_or_nothing(self, round_: Round, granted: list[int], notes: tuple[str, ...] = ()) -> Allocation:
        """An allocation that serves these pipelines, in this order, with exactly their demand."""
        multiple: Floats = np.zeros(len(round_.pipelines))
        multiple[granted] = 1.0
        return Allocation(
            round=round_,
            scheduler=self.name,
            multiple=multiple,
            options=self.written(),
            terms=self.terms,
            sequence=tuple(int(at) for at in granted),
            notes=notes,
        )


def require(condition: bool, message: str) -> None:
    """Refuse an option value with one sentence."""
    if not condition:
        raise OptionError(message)
