"""What is left of the properties when a pipeline cannot be cut in two? Two weaker ones that a scheduler can promise.

    no-waste           weak Pareto efficiency: no pipeline that was denied would still fit into what is left
    served-incentive   sharing incentive counted in pipelines: everybody is served at least as many of its pipelines as
                       its part of every block, taken in the proportions of its total demand, could serve

DPBalance promises the first with leftover=refill, for it goes on until nothing fits. It promises the second wherever
step 1 gives everybody its part (beta from 1 up, default lambda), because step 2 serves as many pipelines as possible
before it looks at anything else, and more budget never serves fewer.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np

from dpbalance.allocation import Allocation
from dpbalance.audit.divisible import Divisible
from dpbalance.audit.finding import Finding, answer
from dpbalance.audit.granted import Granted
from dpbalance.market.round import Floats, Indices
from dpbalance.scheduler.packing import solve_whole

HAIR = 1e-6
"""Step 1 may miss a share by this, relatively: whether a part that needs more digits serves a pipeline is not-found."""


def surviving_findings(granted: Granted, market: Divisible | None) -> list[Finding]:
    """Both, for any scheduler; entitlements count where there is a step 1, else equal parts."""
    if not granted.analysts:
        return []
    return [no_waste(granted.allocation), served(granted, market)]


def no_waste(allocation: Allocation) -> Finding:
    """Whoever was denied and would still fit; with several orders, at some order of each block."""
    round_ = allocation.round
    fits = np.logical_and.reduceat((round_.cost <= allocation.left[round_.block]).any(axis=1), round_.start[:-1])
    wasted = np.flatnonzero(fits & (allocation.multiple == 0))
    first = None if not len(wasted) else int(wasted[0])
    owner = None if first is None else round_.analysts[int(round_.owner[first])]
    return Finding(
        property="no-waste",
        view="granted",
        answer=answer(first is None),
        number=float(len(wasted)),
        meaning="how many denied pipelines would still fit into what is left, each alone; 0 holds",
        culprit=owner,
        counterexample={} if first is None else {"analyst": owner, "pipeline": round_.pipelines[first]},
    )


def served(granted: Granted, market: Divisible | None) -> Finding:
    """The number of pipelines of each analyst against what its part could serve."""
    worst, proven = 0, granted.complete
    example: dict[str, Any] = {}
    entitled = {} if market is None else dict(zip(market.analysts, market.entitled.tolist(), strict=True))
    priority = granted.allocation.round.priority
    heads = sum(Fraction(float(priority[each])) for each in granted.analysts)
    for analyst in granted.analysts:
        mine, name = granted.members(analyst), granted.name(analyst)
        equal = Fraction(float(priority[analyst])) / heads
        due = Fraction(entitled[name]) if name in entitled else equal
        runs = int(np.sum(granted.multiple[mine] > 0))
        could, sure = _count(granted, mine, due * Fraction(1.0 + HAIR if market else 1.0))
        proven = proven and sure
        if market is not None and runs < could:  # perhaps within the digits of step 1
            could, sure = _count(granted, mine, due * Fraction(1.0 - HAIR))
            proven = False
        if runs - could < worst or not example:
            worst = runs - could
            example = {"analyst": name, "served": runs, "could_serve": could, "due": float(due)}
    good = worst >= 0
    return Finding(
        property="served-incentive",
        view="granted",
        answer=answer(good, proven),
        number=float(worst),
        meaning="the smallest of: pipelines served minus pipelines its part could serve; at least 0 holds",
        culprit=None if good else str(example["analyst"]),
        counterexample={} if good else example,
        note="" if market is None else "parts are entitlements, which are equal for equal a_i and fresh blocks",
    )


def _count(granted: Granted, mine: Indices, due: Fraction) -> tuple[int, bool]:
    """How many of these pipelines fit into a part of what is left, taken along their total; whether that is proven."""
    demand = granted.demand[mine]
    total: Floats = demand.sum(axis=0)
    asked = np.flatnonzero(total)
    times = due * min(Fraction(int(granted.available[at]), int(total[at])) for at in asked.tolist())
    budget = np.array([int(total[at]) * times.numerator // times.denominator for at in asked.tolist()], dtype=np.int64)
    table = np.asarray(demand[:, asked].toarray().T, dtype=np.int64)
    x, proven = solve_whole(table, budget, np.ones(len(mine)), np.ones(len(mine)))
    return int(np.sum(x > 0)), proven
