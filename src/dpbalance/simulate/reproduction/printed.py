"""What would the paper's formula have handed out, taken literally? For the replication alone: it spends too much.

As printed, the budget limits sum_i gamma_i x_i T(t_i) l_i and not sum_i gamma_i x_i; with T and l at most 1 that lets
through up to 1 / a_i times what there is. Nothing else in this package runs such a decision: the check refuses it, and
so would the ledger.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np

from dpbalance.allocation import Allocation
from dpbalance.market import Round
from dpbalance.scheduler import Scheduler
from dpbalance.scheduler.dpbalance import AS_PRINTED
from dpbalance.simulate.cell import Cell

READING = {"constraint": AS_PRINTED}


@dataclass(frozen=True, slots=True, kw_only=True)
class PrintedCell(Cell):
    """A run under the printed constraint."""

    def decider(self) -> Scheduler:
        return _Printed(Cell.decider(self))


@dataclass(frozen=True, kw_only=True, eq=False)
class Overspent(Allocation):
    """A decision whose overspending is looked away from: a block it takes too much of is simply used up."""

    def check_budget(self) -> None:
        """Nothing is refused."""

    @cached_property
    def taken(self) -> Any:
        return np.minimum(super().taken, self.round.available)


class _Printed:
    """DPBalance under the printed constraint, as a scheduler whose decisions pass."""

    def __init__(self, inner: Scheduler) -> None:
        self.inner = inner

    def decide(self, round_: Round, /) -> Allocation:
        decision = self.inner.decide(round_)
        return Overspent(**{each.name: getattr(decision, each.name) for each in fields(decision)})
