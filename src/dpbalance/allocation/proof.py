"""Does an allocation keep every promise? Whole numbers, exact fractions, and no solver."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbalance.allocation.certificate import Shares, verify
from dpbalance.amounts import MAX_UNITS, UNITS_PER_EPSILON
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
        broken += _claims(allocation, allocation.shares)
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


def _claims(allocation: Allocation, shares: Shares) -> list[str]:
    """What step 1 says it started from: who takes part, with which weight, and how much of use to it."""
    round_ = allocation.round
    there = (np.arange(len(round_.block)), shares.order[round_.block])
    enough = round_.cost[there] <= round_.available[round_.block, shares.order[round_.block]]
    fits = np.logical_and.reduceat(enough, round_.start[:-1]) if len(round_.pipelines) else np.zeros(0, dtype=bool)
    cap = allocation.options.get("max_multiple") or np.inf
    upper = np.zeros(len(round_.analysts))
    np.maximum.at(upper, round_.owner[fits], np.minimum(round_.max_multiple[fits], cap))
    weight = allocation.valuation.weight
    broken = []
    if not np.array_equal(shares.admitted, fits):
        broken.append("step 1 did not divide between exactly the pipelines that can be met")
    for at in np.flatnonzero(~np.isclose(shares.weight, weight, rtol=1e-9, atol=0.0) & (upper > 0)):
        broken.append(f"step 1 weighs analyst {round_.analysts[at]!r} {shares.weight[at]:.6g}, it is {weight[at]:.6g}")
    if not np.array_equal(shares.priority, round_.priority):
        broken.append("step 1 did not count the analysts by the priorities of the round")
    for at in np.flatnonzero(shares.upper < np.minimum(upper, 1e300)):
        broken.append(f"step 1 holds analyst {round_.analysts[at]!r} to {shares.upper[at]:.6g} times its demand")
    return broken


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
            exact = np.minimum(-((-demand.astype(object) * numerator) // denominator), MAX_UNITS + 1)
        if not np.array_equal(charged, exact):
            wrong.append(f"pipeline {allocation.round.pipelines[at]!r} is not charged its multiple of its demand")
    return wrong


def _overspent(allocation: Allocation) -> tuple[int, list[str]]:
    """Blocks used by this allocation whose total passes what is unlocked at every order."""
    round_ = allocation.round
    used = np.zeros(len(round_.blocks), dtype=bool)
    used[round_.block[allocation.charges[0]]] = True
    excess = allocation.taken - round_.available
    nearest = np.argmin(excess, axis=1)  # the order at which the least is missing
    over = np.take_along_axis(excess, nearest[:, None], axis=1)[:, 0]
    culprits = np.flatnonzero(used & (over > 0))
    sentences = []
    for at in culprits:
        where = "" if round_.orders is None else f" at order {round_.orders[nearest[at]]:g}, its best"
        left, taken = round_.available[at, nearest[at]], allocation.taken[at, nearest[at]]
        sentences.append(
            f"block {round_.blocks[at]!r} has {left / UNITS_PER_EPSILON:.9g} left{where}, the grants take "
            f"{taken / UNITS_PER_EPSILON:.9g} (over by {over[at] / UNITS_PER_EPSILON:.9g})"
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
