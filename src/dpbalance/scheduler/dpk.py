"""Whose demand costs least of what the others could use? DPK: packing by each block's best orders.

    v(b, alpha)  the most weight of waiting pipelines that fits into what is left of block b at order alpha
    A(b)         the orders of the largest v(b, alpha), all of them where several are largest
    cost_i       sum over b and alpha in A(b) of d(i, b, alpha) / left(b, alpha)

The largest weight / cost goes first. After every few grants the costs are made anew and the queue starts over, until
it ends without that. Only blocks that were charged can have changed, and only a pipeline that still fits needs a cost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from dpbalance.allocation import Allocation
from dpbalance.allocation.valuation import Flags
from dpbalance.amounts import Units
from dpbalance.market import Round
from dpbalance.market.round import Floats, Indices
from dpbalance.scheduler.compiled import kernel
from dpbalance.scheduler.greedy import Items, charge, fits, fitting, queue_order
from dpbalance.scheduler.knapsack import most_items, most_weight
from dpbalance.scheduler.options import Options, require

ETA = 0.05
LOSS = 2 * ETA / 3
"""The part of a knapsack's optimum that may be missed."""


@dataclass(frozen=True, kw_only=True)
class DPK(Options):
    """Privacy knapsack packing."""

    name: ClassVar[str] = "dpk"

    recompute_every: int = 50
    """Grants after which costs are made anew and the queue starts over; 1 is best and slowest."""
    knapsack: Literal["weighted", "count"] = "weighted"
    """What a block's orders are compared by: the weight that fits, or how many pipelines whatever their weight."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(self.recompute_every >= 1, f"recompute_every must be at least 1 grant, not {self.recompute_every!r}")
        require(
            self.knapsack in ("weighted", "count"), f"knapsack must be 'weighted' or 'count', not {self.knapsack!r}"
        )

    def decide(self, round_: Round, /) -> Allocation:
        several = len(round_.weight) > 0 and bool(np.any(round_.weight != round_.weight[0]))
        granted = pack(
            round_.start,
            round_.block,
            round_.cost,
            round_.available,
            round_.weight,
            queue_order(round_),
            several and self.knapsack == "weighted",
            self.recompute_every,
        )
        return self.all_or_nothing(round_, granted.tolist())


@kernel
def pack(
    start: Indices,
    block: Items,
    cost: Units,
    left: Units,
    weight: Floats,
    queue: Indices,
    weighted: bool,
    recompute_every: int,
) -> Indices:
    """The pipelines granted, in order; charges `left`."""
    waiting = fitting(start, block, cost, left, queue)
    granted = np.empty(len(waiting), np.int64)
    count = 0
    pending = np.ones(len(weight), np.bool_)
    changed = np.zeros(len(left), np.bool_)
    for pipeline in waiting:
        changed[block[start[pipeline] : start[pipeline + 1]]] = True
    base, size, demand, item = candidates(start, block, cost, left, weight, weighted, changed)
    best = np.zeros(left.shape, np.bool_)
    again = len(waiting) > 0
    while again:
        for b in range(len(left)):
            if changed[b]:
                best_orders(b, left, base, size, demand, item, weight, weighted, pending, best)
        changed[:] = False
        gain = gains(start, block, cost, left, weight, best, waiting)
        asked, goal = 0, count + recompute_every
        order = np.argsort(-gain, kind="mergesort")  # stable: equal gains by the queue
        refused = np.zeros(len(waiting), np.bool_)
        while asked < len(order) and count < goal:
            pipeline = waiting[order[asked]]
            refused[order[asked]] = True
            asked += 1
            if fits(start, block, cost, left, pipeline):
                charge(start, block, cost, left, pipeline)
                pending[pipeline] = False
                changed[block[start[pipeline] : start[pipeline + 1]]] = True
                granted[count] = pipeline
                count += 1
        again = count == goal
        waiting = waiting[~refused]
    return granted[:count]


@kernel
def candidates(
    start: Indices, block: Items, cost: Units, left: Units, weight: Floats, weighted: bool, wanted: Flags
) -> tuple[Indices, Indices, Units, Items]:
    """Per wanted block and order the pipelines that fit there alone, by ascending demand (per weight).

    Those of block b and order a are the first size[b, a] from base[b] * orders + a * (base[b + 1] - base[b]) on.
    """
    blocks, orders = left.shape
    base = np.zeros(blocks + 1, np.int64)
    for b in block:
        if wanted[b]:
            base[b + 1] += 1
    base = np.cumsum(base)
    size = np.zeros((blocks, orders), np.int64)
    demand = np.empty(base[-1] * orders, np.int64)
    item = np.empty(base[-1] * orders, np.int32)
    for pipeline in range(len(start) - 1):
        for entry in range(start[pipeline], start[pipeline + 1]):
            b = block[entry]
            if wanted[b]:
                for a in range(orders):
                    if cost[entry, a] <= left[b, a]:
                        at = base[b] * orders + a * (base[b + 1] - base[b]) + size[b, a]
                        demand[at] = cost[entry, a]
                        item[at] = pipeline
                        size[b, a] += 1
    for b in np.flatnonzero(wanted):
        for a in range(orders):
            begin = base[b] * orders + a * (base[b + 1] - base[b])
            mine = slice(begin, begin + size[b, a])
            if weighted:
                order = np.argsort(demand[mine] / weight[item[mine]], kind="mergesort")
            else:
                order = np.argsort(demand[mine], kind="mergesort")
            demand[mine] = demand[mine][order]
            item[mine] = item[mine][order]
    return base, size, demand, item


@kernel
def best_orders(
    b: int,
    left: Units,
    base: Indices,
    size: Indices,
    demand: Units,
    item: Items,
    weight: Floats,
    weighted: bool,
    pending: Flags,
    best: Flags,
) -> None:
    """Mark A(b); candidates that were granted or fit no longer leave their list, which stays sorted."""
    orders = left.shape[1]
    value = np.empty(orders)
    for a in range(orders):
        begin = base[b] * orders + a * (base[b + 1] - base[b])
        end = begin
        for at in range(begin, begin + size[b, a]):
            if pending[item[at]] and demand[at] <= left[b, a]:
                demand[end] = demand[at]
                item[end] = item[at]
                end += 1
        size[b, a] = end - begin
        if weighted:
            value[a] = most_weight(demand[begin:end], weight[item[begin:end]], left[b, a], LOSS)
        else:
            value[a] = most_items(demand[begin:end], left[b, a])
    best[b] = value == value.max()


@kernel
def gains(
    start: Indices, block: Items, cost: Units, left: Units, weight: Floats, best: Flags, waiting: Indices
) -> Floats:
    """weight / cost of those still waiting; infinite where the cost is nothing."""
    gain = np.empty(len(waiting))
    for at, pipeline in enumerate(waiting):
        total = 0.0
        for entry in range(start[pipeline], start[pipeline + 1]):
            b = block[entry]
            for a in range(cost.shape[1]):
                if best[b, a] and left[b, a] > 0:
                    total += cost[entry, a] / left[b, a]
        gain[at] = weight[pipeline] / total if total > 0 else np.inf
    return gain
