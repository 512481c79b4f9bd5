"""What did a scheduler decide? The multiples of every pipeline; everything else follows from them and the round."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dpbalance.allocation.certificate import Shares
from dpbalance.allocation.metrics import Metrics, measure
from dpbalance.allocation.proof import Proof, demand_budget, demand_proof, exact_totals, prove
from dpbalance.allocation.valuation import Flags, Terms, Valuation, granted_shares
from dpbalance.amounts import Units, epsilons, multiplied
from dpbalance.market.round import Floats, Indices, Round

EXCEEDS_LEFT = "exceeds-left"
"""Even alone it asks for more than some block has left."""
TAKEN = "taken"
"""It fitted when the round began; others took what it needs."""
NOT_CHOSEN = "not-chosen"
"""It would still fit into what is left, but not into its analyst's share, or the scheduler passed it over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A pipeline served: its demand times a multiple of at least 1."""

    pipeline: str
    analyst: str
    multiple: float
    cost: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """A block that could not give what was asked; epsilon, one number or one for each order."""

    block: str
    asked: Any
    left: Any
    short: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Denial:
    """A pipeline not served, and why."""

    pipeline: str
    analyst: str
    reason: str
    shortages: tuple[Shortage, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalystShare:
    """What an analyst was offered in step 1 (None without one), what it got, and what that is worth."""

    analyst: str
    offered: float | None
    share: float
    weight: float
    utility: float


@dataclass(frozen=True, kw_only=True, eq=False)
class Allocation:
    """One decision on one round. `multiple` is 0 for a pipeline not served and at least 1 for one that is."""

    round: Round
    scheduler: str
    multiple: Floats
    options: Mapping[str, Any] = field(default_factory=dict)
    terms: Terms = field(default_factory=Terms)
    shares: Shares | None = None
    sequence: tuple[int, ...] | None = None
    """Pipelines in the order they were granted, where the scheduler has one."""
    notes: tuple[str, ...] = ()
    """What a reader of this decision should know: limits that were hit, readings that are not the default."""

    def check(self) -> Proof:
        """Raise BudgetExceeded unless every promise is kept; return the proof."""
        return demand_proof(self)

    def check_budget(self) -> None:
        """Raise BudgetExceeded unless every block can pay: the part of `check` that costs next to nothing."""
        demand_budget(self)

    @cached_property
    def proof(self) -> Proof:
        return prove(self)[0]

    @cached_property
    def valuation(self) -> Valuation:
        return Valuation.of(self.round, self.terms)

    @cached_property
    def charges(self) -> tuple[Indices, Units]:
        """The demand entries of the served, and what each is charged: ceil(multiple * demand), whole units."""
        times = np.repeat(self.multiple, np.diff(self.round.start))
        entries = np.flatnonzero(times > 0)
        charged = self.round.cost[entries]
        more = np.flatnonzero(times[entries] > 1)
        charged[more] = multiplied(charged[more], times[entries[more], None])
        return entries, charged

    @cached_property
    def cost(self) -> Units:
        """What each demand entry is charged, 0 where its pipeline is not served."""
        cost = np.zeros_like(self.round.cost)
        entries, charged = self.charges
        cost[entries] = charged
        return cost

    @cached_property
    def taken(self) -> Any:
        """What the grants take of each block and order, whole units."""
        entries, charged = self.charges
        return exact_totals(self.round.block[entries], charged, len(self.round.blocks))

    @cached_property
    def left(self) -> Any:
        """Available after the grants, whole units per block and order."""
        return self.round.available - self.taken

    @cached_property
    def served(self) -> tuple[int, ...]:
        """Indices of the served pipelines, in the order of granting where there is one."""
        return self.sequence if self.sequence is not None else tuple(np.flatnonzero(self.multiple > 0).tolist())

    @cached_property
    def grants(self) -> tuple[Grant, ...]:
        several = self.round.orders is not None
        result = []
        for at in self.served:
            mine = slice(int(self.round.start[at]), int(self.round.start[at + 1]))
            table = epsilons(self.cost[mine])
            amounts = (table if several else table[:, 0]).tolist()
            names = [self.round.blocks[block] for block in self.round.block[mine]]
            result.append(
                Grant(
                    pipeline=self.round.pipelines[at],
                    analyst=self.round.analysts[int(self.round.owner[at])],
                    multiple=float(self.multiple[at]),
                    cost=dict(zip(names, amounts, strict=True)),
                )
            )
        return tuple(result)

    @cached_property
    def denied(self) -> tuple[Denial, ...]:
        missed = self._missing(self.left)
        result = []
        for at in np.flatnonzero(self.multiple == 0):
            mine = slice(int(self.round.start[at]), int(self.round.start[at + 1]))
            if not self.valuation.feasible[at]:
                reason, left = EXCEEDS_LEFT, self.round.available
                short = np.flatnonzero((self.round.cost[mine] > left[self.round.block[mine]]).all(axis=1))
            else:
                left, short = self.left, np.flatnonzero(missed[mine])
                reason = TAKEN if len(short) else NOT_CHOSEN
            result.append(
                Denial(
                    pipeline=self.round.pipelines[at],
                    analyst=self.round.analysts[int(self.round.owner[at])],
                    reason=reason,
                    shortages=tuple(self._shortage(mine.start + int(entry), left) for entry in short),
                )
            )
        return tuple(result)

    @cached_property
    def utility(self) -> Floats:
        """U_i = a_i x dominant share granted."""
        return self.valuation.weight * self._granted

    @cached_property
    def analysts(self) -> tuple[AnalystShare, ...]:
        offered = self._offered
        return tuple(
            AnalystShare(
                analyst=name,
                offered=None if offered is None else float(offered[at]),
                share=float(self._granted[at]),
                weight=float(self.valuation.weight[at]),
                utility=float(self.utility[at]),
            )
            for at, name in enumerate(self.round.analysts)
        )

    @cached_property
    def metrics(self) -> Metrics:
        served = int(np.sum(self.multiple > 0))
        return measure(self.utility, self.valuation.judged, served, self.terms.beta)

    @cached_property
    def _granted(self) -> Floats:
        return granted_shares(self.round, self.valuation.order, self.multiple)

    @property
    def _offered(self) -> Floats | None:
        """Step 1's dominant shares, taken at the reference orders like everything else that is shown."""
        if self.shares is None:
            return None
        take = np.where(self.shares.admitted, self.shares.take[self.round.owner], 0.0)
        return granted_shares(self.round, self.valuation.order, take)

    def _missing(self, left: Any) -> Flags:
        flags: Flags = (self.round.cost > left[self.round.block]).all(axis=1)
        return flags

    def _shortage(self, entry: int, left: Any) -> Shortage:
        block = int(self.round.block[entry])
        asked, rest = self.round.cost[entry], left[block]
        return Shortage(
            block=self.round.blocks[block],
            asked=self._shown(asked),
            left=self._shown(rest),
            short=self._shown(np.maximum(asked - rest, 0)),
        )

    def _shown(self, units: Any) -> Any:
        listed = epsilons(units).tolist()
        return listed if self.round.orders is not None else listed[0]
