"""What did a scheduler decide? The multiples of every pipeline; everything else follows from them and the round."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from dpbalance.allocation.certificate import Shares, totals
from dpbalance.allocation.metrics import Metrics, measure
from dpbalance.allocation.proof import Proof, demand_budget, demand_proof, exact_totals, prove
from dpbalance.allocation.valuation import Terms, Valuation, granted_shares
from dpbalance.amounts import Units, epsilons, multiplied
from dpbalance.market.round import Floats, Indices, Round

EXCEEDS_LEFT = "exceeds-left"
"""Even alone it asks for more than some block has left."""
SHARE_SPENT = "share-spent"
"""Its analyst's share of some block does not hold it, or no longer does beside the others that analyst has there."""
TAKEN = "taken"
"""It fitted when the round began; what it needs has been granted since, to others or its own analyst."""
NOT_CHOSEN = "not-chosen"
"""It would still fit into what is left; the scheduler passed it over. Its tightest block is named."""


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
    """A pipeline not served, and why. Shortages are made when looked at: there may be one for every demand."""

    pipeline: str
    analyst: str
    reason: str
    shortages: Sequence[Shortage]


class _Shortages(Sequence[Shortage]):
    """The shortages at some demand entries, against what is left of their blocks."""

    def __init__(self, round_: Round, entries: Indices, left: Any) -> None:
        self._round, self._entries, self._left = round_, entries, left

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, at: Any) -> Any:
        if isinstance(at, slice):
            return tuple(self[each] for each in range(len(self))[at])
        block = int(self._round.block[self._entries[at]])
        asked, rest = self._round.cost[self._entries[at]], self._left[at]
        return Shortage(
            block=self._round.blocks[block],
            asked=self._shown(asked),
            left=self._shown(rest),
            short=self._shown(np.maximum(asked - rest, 0)),
        )

    def _shown(self, units: Any) -> Any:
        listed = epsilons(units).tolist()
        return listed if self._round.orders is not None else listed[0]


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
        return tuple(
            Denial(
                pipeline=self.round.pipelines[at],
                analyst=self.round.analysts[int(self.round.owner[at])],
                reason=reason,
                shortages=_Shortages(self.round, entries, left),
            )
            for at in np.flatnonzero(self.multiple == 0)
            for reason, entries, left in [self._why(int(at))]
        )

    def _why(self, pipeline: int) -> tuple[str, Indices, Any]:
        """The reason of a denial, the demand entries that show it, and what was left for them."""
        entries = np.arange(self.round.start[pipeline], self.round.start[pipeline + 1])
        block, cost = self.round.block[entries], self.round.cost[entries]
        if not self.valuation.feasible[pipeline]:
            left = self.round.available[block]
            short = (cost > left).all(axis=1)
            return EXCEEDS_LEFT, entries[short], left[short]
        if self.shares is not None and self.shares.admitted[pipeline]:
            there = (np.arange(len(entries)), self.shares.order[block])
            left = cost.copy()
            left[there] = self._share_left[int(self.round.owner[pipeline])][block]
            short = (cost > left).any(axis=1)
            if short.any():
                return SHARE_SPENT, entries[short], left[short]
        left = self.left[block]
        short = (cost > left).all(axis=1)
        if short.any():
            return TAKEN, entries[short], left[short]
        tightest = [int(np.argmax(np.min(cost / np.maximum(left, 1), axis=1)))]
        return NOT_CHOSEN, entries[tightest], left[tightest]

    @cached_property
    def _share_left(self) -> dict[int, Any]:
        """Per analyst that takes part in step 1, what its offer of each block still holds beside its own grants."""
        assert self.shares is not None
        entries, charged = self.charges
        owner = np.repeat(self.round.owner, np.diff(self.round.start))[entries]
        rest = {}
        for analyst, (block, amount) in totals(self.round, self.shares).items():
            rest[analyst] = np.zeros(len(self.round.blocks), dtype=np.int64)
            rest[analyst][block] = np.floor(amount * float(self.shares.take[analyst]) * (1 + 1e-11) + 1e-3)
            mine = owner == analyst
            at = self.round.block[entries[mine]]
            np.subtract.at(rest[analyst], at, charged[mine, self.shares.order[at]])
        return rest

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
        return measure(self.utility, self.valuation.judged, served, self.terms.beta, self.round.priority)

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
