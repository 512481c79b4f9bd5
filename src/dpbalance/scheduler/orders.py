"""At which Renyi order is each block divided, when there are several? Where the most pipelines fit, as DPK chooses."""

from __future__ import annotations

import numpy as np

from dpbalance.allocation.valuation import Flags
from dpbalance.amounts import Units
from dpbalance.market import Round
from dpbalance.market.round import Floats, Indices
from dpbalance.scheduler.compiled import kernel
from dpbalance.scheduler.dpk import best_orders, candidates
from dpbalance.scheduler.greedy import Items


def packing_orders(round_: Round) -> Indices:
    """One order for each block: the largest knapsack value; among equals the smallest total demand / available."""
    blocks, width = round_.capacity.shape
    if width == 1 or not len(round_.pipelines):
        return np.zeros(blocks, dtype=np.int64)
    left = round_.available
    best = _best(round_.start, round_.block, round_.cost, left, round_.weight, bool(np.ptp(round_.weight) > 0))
    total = np.stack([np.bincount(round_.block, weights=c, minlength=blocks) for c in round_.cost.T], axis=1)
    fill = np.divide(total, left, out=np.full(total.shape, np.inf), where=left > 0)
    fill[~best] = np.inf
    fallback = np.argmax(best, axis=1)
    order: Indices = np.where(np.isfinite(fill).any(axis=1), np.argmin(fill, axis=1), fallback)
    return order


@kernel
def _best(start: Indices, block: Items, cost: Units, left: Units, weight: Floats, weighted: bool) -> Flags:
    wanted = np.zeros(len(left), dtype=np.bool_)
    for k in block:
        wanted[k] = True
    base, size, demand, item = candidates(start, block, cost, left, weight, weighted, wanted)
    pending = np.ones(len(weight), dtype=np.bool_)
    best = np.ones(left.shape, dtype=np.bool_)
    for k in range(len(left)):
        if wanted[k]:
            best_orders(k, left, base, size, demand, item, weight, weighted, pending, best)
    return best
