"""How is budget divided efficiently and fairly? The paper's two steps: between analysts, then inside each of them.

0. Pipelines that cannot be met even alone leave the round, so that one exhausted block does not speak for an analyst.
1. What is left is divided between analysts along their total demands, alpha-fairly in a_i x dominant share.
2. Each analyst's share is packed with its pipelines: as many as possible, then the most valuable multiples.
What step 2 does not use returns to the blocks, or is offered again in the same round (`leftover="refill"`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from dpbalance.allocation import Allocation, Shares, Valuation
from dpbalance.allocation.certificate import certifiable
from dpbalance.allocation.valuation import analyst_weights, worths
from dpbalance.errors import SolverError
from dpbalance.market import Round
from dpbalance.market.round import MAX_MULTIPLE, Floats, Indices
from dpbalance.scheduler import kernel_round as kernels
from dpbalance.scheduler.alpha_fair import Asked, solve_columns
from dpbalance.scheduler.options import Options, require
from dpbalance.scheduler.orders import packing_orders
from dpbalance.scheduler.packing import nodes_for, solve_whole

AS_PRINTED = "as-printed-may-overspend"


@dataclass(frozen=True, kw_only=True)
class DPBalance(Options):
    """Efficient and fair at once; beta turns from one to the other."""

    name: ClassVar[str] = "dpbalance"

    lam: float | None = None
    """Efficiency preference lambda; None is |1-beta|/beta (alpha-fairness), 0 equal utilities, inf the largest sum."""
    max_multiple: float | None = None
    """The largest multiple of its demand any pipeline gets; 1 is all or nothing, None the pipelines' own caps."""
    leftover: Literal["return", "refill"] = "return"
    """What happens to the part of a share that cannot be used: back to the blocks, or offered again at once."""
    constraint: Literal["physical", "as-printed-may-overspend"] = "physical"
    """The budget as it is, or the paper's printed formula, for replication only: it hands out more than there is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.lam is None or self.lam >= 0, f"lam must be none or a number from 0 to inf, not {self.lam!r}")
        require(
            self.max_multiple is None or self.max_multiple >= 1,
            f"max_multiple must be none or at least 1, not {self.max_multiple!r}",
        )
        require(self.leftover in ("return", "refill"), f"leftover must be 'return' or 'refill', not {self.leftover!r}")
        require(
            self.constraint in ("physical", AS_PRINTED),
            f"constraint must be 'physical' or {AS_PRINTED!r}, not {self.constraint!r}",
        )

    def decide(self, round_: Round, /) -> Allocation:
        problem = _Problem(round_, self)
        shares = problem.divide()
        multiple, notes = problem.pack(shares)
        return Allocation(
            round=round_,
            scheduler=self.name,
            multiple=multiple,
            options=self.written(),
            terms=self.terms,
            shares=shares,
            notes=notes,
        )


class _Problem:
    """One round, seen at one order of each block, on its way from totals to multiples."""

    def __init__(self, round_: Round, options: DPBalance) -> None:
        self.round, self.options = round_, options
        self.order = packing_orders(round_)
        if round_.orders is None or len(round_.orders) == 1:
            self.cost = np.ascontiguousarray(round_.cost[:, 0])
            self.left, capacity = np.ascontiguousarray(round_.available[:, 0]), round_.capacity[:, 0]
        else:
            at = self.order[:, None]
            self.cost = np.ascontiguousarray(np.take_along_axis(round_.cost, at[round_.block], axis=1)[:, 0])
            self.cost.flags.writeable = False  # as in a round; else every kernel is compiled a second time
            self.left = np.ascontiguousarray(np.take_along_axis(round_.available, at, axis=1)[:, 0])
            capacity = np.take_along_axis(round_.capacity, at, axis=1)[:, 0]
        self.inverse_capacity = 1.0 / np.maximum(capacity, 1)
        self.members = np.argsort(round_.owner, kind="stable")
        self.group = np.searchsorted(round_.owner[self.members], np.arange(len(round_.analysts) + 1))
        pipelines, blocks = len(round_.pipelines), len(round_.blocks)
        self.admitted, self.dominant = np.zeros(pipelines, dtype=bool), np.zeros(pipelines)
        self.column, self.row, self.amount, self.fingerprint = kernels.survey(
            self.members,
            self.group,
            round_.start,
            round_.block,
            self.cost,
            self.left,
            self.inverse_capacity,
            self.admitted,
            self.dominant,
            np.zeros(blocks, dtype=np.int64),
            np.zeros(blocks, dtype=np.uint64),
        )
        cap = np.inf if options.max_multiple is None else options.max_multiple
        self.cap = np.minimum(round_.max_multiple, cap if cap <= MAX_MULTIPLE else np.inf)

    def divide(self) -> Shares:
        """Step 1."""
        options, round_ = self.options, self.round
        if round_.orders is None:
            weight = analyst_weights(round_, options.terms, self.dominant, self.admitted)
        else:
            weight = Valuation.of(round_, options.terms).weight
        upper = np.zeros(len(round_.analysts))
        np.maximum.at(upper, round_.owner[self.admitted], self.cap[self.admitted])
        value = self.amount.astype(np.float64)
        dominant = self._dominant(value)
        printed = options.constraint == AS_PRINTED
        if printed:
            value *= np.repeat(weight, np.diff(self.column))
        asked = Asked(
            start=self.column,
            row=self.row,
            value=value,
            left=self.left.astype(np.float64),
            weight=weight,
            upper=upper,
            priority=round_.priority,
            dominant=dominant,
        )
        solution = solve_columns(asked, options.beta, options.lam)
        return Shares(
            beta=options.beta,
            lam=options.lam,
            order=self.order,
            admitted=self.admitted,
            weight=weight,
            priority=round_.priority,
            upper=upper,
            take=solution.x,
            price=solution.price,
            bound_price=solution.bound_price,
            as_printed=printed,
        )

    def pack(self, shares: Shares) -> tuple[Floats, tuple[str, ...]]:
        """Step 2, and what comes after it."""
        round_, options = self.round, self.options
        offered = kernels.offers(self.column, self.row, self.amount, shares.take, self.left, not shares.as_printed)
        value = self.dominant * worths(round_, options.terms) * round_.weight
        multiple = np.zeros(len(round_.pipelines))
        hard = kernels.pack_all(
            self.group,
            self.members,
            self.admitted,
            value,
            self.cap,
            round_.start,
            round_.block,
            self.cost,
            self.column,
            self.row,
            self.fingerprint,
            offered,
            nodes_for(len(round_.analysts)),
            multiple,
        )
        # what the branch and bound could not prove (1) stays as it is; where there are too many rows (2) they are found
        unproven = [
            i for i in np.flatnonzero(hard).tolist() if hard[i] == 1 or not self._pack_hard(i, offered, value, multiple)
        ]
        notes = [f"packing of analyst {round_.analysts[i]!r} is the best found, not proven best" for i in unproven]
        if not certifiable(shares.beta, shares.lam):
            notes.append("step 1 has no certificate for this beta and lam: the answer was searched for")
        if shares.as_printed:
            notes.append("the printed constraint was used: the grants may take more budget than there is")
            return multiple, tuple(notes)
        rest = kernels.usage(round_.start, round_.block, self.cost, multiple, self.left)
        if np.any((rest < 0) & (rest < self.left)):
            raise SolverError("the grants would overspend a block; nothing was granted")
        if options.leftover == "refill":
            self._refill(shares, multiple)
        return multiple, tuple(notes)

    def _dominant(self, value: Floats) -> Floats:
        """mu_i = max over blocks of total / capacity."""
        result = np.zeros(len(self.round.analysts))
        busy = np.flatnonzero(np.diff(self.column))
        if len(busy):
            result[busy] = np.maximum.reduceat(value * self.inverse_capacity[self.row], self.column[busy])
        return result

    def _pack_hard(self, analyst: int, offered: Indices, value: Floats, multiple: Floats) -> bool:
        """One analyst by row generation."""
        mine = self.members[self.group[analyst] : self.group[analyst + 1]]
        mine = mine[self.admitted[mine]]
        entries = kernels.different_rows(self.column[analyst], self.column[analyst + 1], self.fingerprint, offered)
        demand, budget = kernels.small_problem(
            entries, self.row, offered, mine, self.round.start, self.round.block, self.cost
        )
        nodes = nodes_for(len(self.round.analysts))
        x, proven = solve_whole(demand, budget, value[mine], self.cap[mine], nodes)
        kernels.whole_multiples(demand, budget, self.cap[mine], x)
        multiple[mine] = x
        return proven

    def _refill(self, shares: Shares, multiple: Floats) -> None:
        round_ = self.round
        left = round_.available.copy()
        for order in range(left.shape[1]):
            cost, before = np.array(round_.cost[:, order]), np.ascontiguousarray(left[:, order])
            cost.flags.writeable = False
            left[:, order] = kernels.usage(round_.start, round_.block, cost, multiple, before)
        kernels.refill(
            self.group,
            self.members,
            round_.start,
            round_.block,
            round_.cost,
            left,
            self.dominant,
            shares.weight,
            self.order,
            self.inverse_capacity,
            multiple,
        )
