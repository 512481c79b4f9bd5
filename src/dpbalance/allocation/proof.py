"""Does an allocation keep every promise? Whole numbers, exact fractions, and no solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbalance.allocation.certificate import verify
from dpbalance.amounts import UNITS_PER_EPSILON
from dpbalance.errors import BudgetExceeded

if TYPE_CHECKING:
    from dpbalance.allocation.allocation import Allocation

GAP_MAX = 1e-6
"""A step 1 whose certified gap is larger than this is refused; the kernels promise 1e-8."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What a check found: the largest overspend in epsilon, and the certified gap of step 1."""

    violation: float
    gap: float | None


def prove(allocation: Allocation) -> tuple[Proof, list[str]]:
    """The proof, and a sentence for every broken promise."""
    broken = _one_or_more(allocation)
    if broken:  # there is no sense in what such multiples would cost
        return Proof(float("inf"), None), broken
    worst, overspent = _overspent(allocation)
    broken += [*_sequence(allocation), *_costs(allocation), *overspent]
    gap = None
    if allocation.shares is not None:
        verdict = verify(allocation.round, allocation.shares)
        gap = verdict.gap
        if verdict.violation > 1e-12:
            broken.append(f"step 1 offers {verdict.violation:.3g} more than is left of a block")
        if gap is not None and not gap <= GAP_MAX:
            broken.append(f"step 1 is proven only within {gap:.3g}, more than {GAP_MAX:g}")
    return Proof(worst / UNITS_PER_EPSILON, gap), broken


def demand_proof(allocation: Allocation) -> Proof:
    """The proof, or BudgetExceeded naming the first promise that is broken."""
    proof, broken = prove(allocation)
    _refuse(broken)
    return proof


def demand_budget(allocation: Allocation) -> None:
    """BudgetExceeded unless multiples are what they may be and every block can pay what they take."""
    _refuse([*_one_or_more(allocation), *_sequence(allocation)] or _overspent(allocation)[1])


def _refuse(broken: list[str]) -> None:
    if broken:
        more = f" (and {len(broken) - 1} more)" if len(broken) > 1 else ""
        raise BudgetExceeded(broken[0] + more, hint="deciding again on a fresh round")


def _one_or_more(allocation: Allocation) -> list[str]:
    round_, multiple = allocation.round, allocation.multiple
    good = (multiple == 0) | ((multiple >= 1) & (multiple <= round_.max_multiple) & np.isfinite(multiple))
    return [
        f"pipeline {round_.pipelines[at]!r} is granted {multiple[at]!r} times its demand; "
        f"it must be 0 or from 1 to {round_.max_multiple[at]!r}"
        for at in np.flatnonzero(~good)
    ]


def _sequence(allocation: Allocation) -> list[str]:
    """Whoever is listed as granted must be, and once: only what has a multiple is charged."""
    served = np.flatnonzero(allocation.multiple > 0).tolist()
    if allocation.sequence is None or sorted(allocation.sequence) == served:
        return []
    return [f"{len(served)} pipelines have a multiple; others, or some of them twice, are listed as granted"]


def _costs(allocation: Allocation) -> list[str]:
    """Every charged amount again, in Python integers: ceil(multiple * demand)."""
    wrong = []
    for at in np.flatnonzero(allocation.multiple > 0):
        mine = slice(int(allocation.round.start[at]), int(allocation.round.start[at + 1]))
        charged, demand = allocation.cost[mine], allocation.round.cost[mine]
        if allocation.multiple[at] == 1:
            exact: Any = demand
        else:
            numerator, denominator = float(allocation.multiple[at]).as_integer_ratio()
            exact = -((-demand.astype(object) * numerator) // denominator)
        if not np.array_equal(charged, exact):
            wrong.append(f"pipeline {allocation.round.pipelines[at]!r} is not charged its multiple of its demand")
    return wrong


def _overspent(allocation: Allocation) -> tuple[int, list[str]]:
    """Blocks used by this allocation whose total passes what is unlocked at every order."""
    round_ = allocation.round
    used = np.zeros(len(round_.blocks), dtype=bool)
    used[round_.block[allocation.charges[0]]] = True
    over = np.min(allocation.taken - round_.available, axis=1)
    culprits = np.flatnonzero(used & (over > 0))
    sentences = []
    for at in culprits:
        left = np.max(round_.available[at]) / UNITS_PER_EPSILON
        sentences.append(
            f"block {round_.blocks[at]!r} has {left:.9g} left, the grants take "
            f"{left + over[at] / UNITS_PER_EPSILON:.9g} (over by {over[at] / UNITS_PER_EPSILON:.9g})"
        )
    return (int(np.max(over[culprits])) if len(culprits) else 0), sentences


def exact_totals(block: Any, cost: Any, blocks: int) -> Any:
    """(blocks, orders) totals; in Python integers when 64 bits might not hold them."""
    largest = int(cost.max(initial=0)) * max(len(cost), 1)
    if largest < 2**53:  # sums of doubles are exact, and fast
        columns = [np.bincount(block, weights=column, minlength=blocks) for column in cost.T]
        return np.stack(columns, axis=1).astype(np.int64)
    dtype: Any = np.int64 if largest < 2**62 else object
    total = np.zeros((blocks, cost.shape[1]), dtype=dtype)
    np.add.at(total, block, cost.astype(dtype))
    return total
