"""Who asks for least of what matters most to it? DPF: the smallest dominant share first.

The key of a pipeline is the list of demand / (weight * initial capacity) over its blocks and all orders that have a
capacity, largest first; keys are compared like words, and equal keys go by the queue. The quotient of two whole
amounts below 2**53 is rounded once, so shares that are equal as fractions are equal here too. Keys that only became
equal when amounts were rounded up to whole units go by the amounts as they were asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpbalance.allocation import Allocation
from dpbalance.amounts import Units, epsilons
from dpbalance.market import Round
from dpbalance.market.round import Floats, Indices
from dpbalance.scheduler.compiled import kernel
from dpbalance.scheduler.greedy import Items, fitting, queue_order, serve
from dpbalance.scheduler.options import Options


@dataclass(frozen=True, kw_only=True)
class DPF(Options):
    """Dominant private block fairness."""

    name: ClassVar[str] = "dpf"

    def decide(self, round_: Round, /) -> Allocation:
        left = round_.available
        queue = fitting(round_.start, round_.block, round_.cost, left, queue_order(round_))
        granted = serve(round_.start, round_.block, round_.cost, left, by_share(round_, queue))
        return self.all_or_nothing(round_, granted.tolist())


def by_share(round_: Round, queue: Indices) -> Indices:
    """The queue by ascending share; whole keys are only made for those whose largest share is not their own."""
    market = (round_.start, round_.block, round_.cost, round_.capacity, round_.weight)
    largest = largest_shares(*market, queue)
    order = np.argsort(largest, kind="stable").astype(np.int64)
    _, group, size = np.unique(largest, return_inverse=True, return_counts=True)
    tied = np.flatnonzero(size[group] > 1)
    if len(tied):
        ends, shares = sorted_shares(*market, queue[tied])
        # Doubles that are not negative compare like their bytes, most significant first.
        text = shares.astype(">f8")
        rounded = np.maximum.reduceat(round_.cost.max(axis=1), round_.start[:-1])
        exact = (round_.unrounded / epsilons(rounded))[queue[tied]].tolist()
        keys = {at: (text[ends[i] : ends[i + 1]].tobytes(), exact[i]) for i, at in enumerate(tied.tolist())}
        first = largest.tolist()
        order = np.array(sorted(order.tolist(), key=lambda at: (first[at], keys.get(at))), dtype=np.int64)
    return queue[order]


@kernel
def largest_shares(
    start: Indices, block: Items, cost: Units, capacity: Units, weight: Floats, queue: Indices
) -> Floats:
    """The first component of each key, 0 for an empty key."""
    largest = np.zeros(len(queue))
    for at, pipeline in enumerate(queue):
        for entry in range(start[pipeline], start[pipeline + 1]):
            for order in range(cost.shape[1]):
                if capacity[block[entry], order] > 0:
                    share = cost[entry, order] / capacity[block[entry], order] / weight[pipeline]
                    largest[at] = max(largest[at], share)
    return largest


@kernel
def sorted_shares(
    start: Indices, block: Items, cost: Units, capacity: Units, weight: Floats, queue: Indices
) -> tuple[Indices, Floats]:
    """The whole keys, one after the other: the key of queue[i] is shares[ends[i]:ends[i + 1]]."""
    ends = np.zeros(len(queue) + 1, np.int64)
    for at, pipeline in enumerate(queue):
        ends[at + 1] = ends[at] + (start[pipeline + 1] - start[pipeline]) * cost.shape[1]
    shares = np.empty(ends[-1])
    filled = 0
    for at, pipeline in enumerate(queue):
        ends[at] = filled
        for entry in range(start[pipeline], start[pipeline + 1]):
            for order in range(cost.shape[1]):
                if capacity[block[entry], order] > 0:
                    shares[filled] = cost[entry, order] / capacity[block[entry], order] / weight[pipeline]
                    filled += 1
        shares[ends[at] : filled] = np.sort(shares[ends[at] : filled])[::-1]
    ends[-1] = filled
    return ends, shares[:filled]
