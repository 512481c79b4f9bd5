"""How much weight fits into one order of one block? Counted when all weigh the same, else within a guarantee.

Items come by ascending demand / weight and each of them fits on its own.
"""

from __future__ import annotations

import numpy as np

from dpbalance.amounts import Units
from dpbalance.market.round import Floats
from dpbalance.scheduler.compiled import kernel

NEVER = 2**62


@kernel
def most_items(demand: Units, left: int) -> float:
    """How many fit: the smallest demands first."""
    for at in range(len(demand)):
        left -= demand[at]
        if left < 0:
            return float(at)
    return float(len(demand))


@kernel
def most_weight(demand: Units, weight: Floats, left: int, loss: float) -> float:
    """At least (1 - loss) of the largest total weight that fits, and never more than it.

    The greedy filling is taken when the linear relaxation proves it good enough, which it nearly always does.
    """
    room, greedy, bound, heaviest = left, 0.0, -1.0, 0.0
    for at in range(len(demand)):
        heaviest = max(heaviest, weight[at])
        if demand[at] <= room:
            room -= demand[at]
            greedy += weight[at]
        elif bound < 0:
            bound = greedy + weight[at] * (room / demand[at])
    found = max(greedy, heaviest)
    if bound < 0 or found >= (1.0 - loss) * bound:
        return found
    return max(found, _by_scaled_weight(demand, weight, left, loss, found, bound))


@kernel
def _by_scaled_weight(demand: Units, weight: Floats, left: int, loss: float, found: float, bound: float) -> float:
    """Dynamic program over the weights of heavy items, rounded down; light items fill up by density.

    found >= optimum / 2. An item is heavy above loss/2 * found, so an optimum holds at most 2 / loss * optimum / found
    of them; rounding down to steps of (loss/2)^2 * found loses at most loss/2 of the optimum, and the light item that
    no longer fits at most another loss/2. There are at most 8 / loss^2 steps.
    """
    heavy = weight > 0.5 * loss * found
    step = 0.25 * loss * loss * found
    lightest = np.full(int(bound / step) + 2, NEVER)
    lightest[0] = 0
    reached = 0
    for at in np.flatnonzero(heavy):
        steps = int(weight[at] / step)
        reached = min(reached + steps, len(lightest) - 1)
        for total in range(reached, steps - 1, -1):
            lightest[total] = min(lightest[total], lightest[total - steps] + demand[at])
    fill_demand = np.cumsum(np.concatenate((np.zeros(1, np.int64), np.minimum(demand[~heavy], left + 1))))
    fill_weight = np.cumsum(np.concatenate((np.zeros(1), weight[~heavy])))
    best = 0.0
    for total in range(reached + 1):
        if lightest[total] <= left:
            light = np.searchsorted(fill_demand, left - lightest[total], side="right") - 1
            best = max(best, total * step + fill_weight[light])
    return best
