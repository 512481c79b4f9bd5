"""Who of a queue still fits, best effort and one after the other?

Left is what is available minus the grants so far. Nothing ever comes back within a round, so whoever does not fit
once need not be asked again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from dpbalance.amounts import Units
from dpbalance.market.round import Indices, Round
from dpbalance.scheduler.compiled import kernel

Items = npt.NDArray[np.int32]
"""Many small indices: of blocks, one for each demand, or of pipelines."""

FLOOR = -(2**61)
"""An order this far overdrawn is charged no further: it serves nobody either way, and 64 bits must not wrap."""


@kernel
def fits(start: Indices, block: Items, cost: Units, left: Units, pipeline: int) -> bool:
    """Whether every block the pipeline asks for has some order with enough left."""
    for entry in range(start[pipeline], start[pipeline + 1]):
        enough = False
        for order in range(cost.shape[1]):
            if cost[entry, order] <= left[block[entry], order]:
                enough = True
                break
        if not enough:
            return False
    return True


@kernel
def charge(start: Indices, block: Items, cost: Units, left: Units, pipeline: int) -> None:
    """Subtract the pipeline's demand at all orders."""
    for entry in range(start[pipeline], start[pipeline + 1]):
        for order in range(cost.shape[1]):
            if left[block[entry], order] > FLOOR:
                left[block[entry], order] -= cost[entry, order]


@kernel
def fitting(start: Indices, block: Items, cost: Units, left: Units, queue: Indices) -> Indices:
    """Those of the queue that fit on their own, in its order."""
    found = np.empty(len(queue), np.int64)
    count = 0
    for pipeline in queue:
        if fits(start, block, cost, left, pipeline):
            found[count] = pipeline
            count += 1
    return found[:count]


@kernel
def serve(start: Indices, block: Items, cost: Units, left: Units, queue: Indices) -> Indices:
    """Grant along the queue, skipping what does not fit; charges `left`."""
    granted = np.empty(len(queue), np.int64)
    count = 0
    for pipeline in queue:
        if fits(start, block, cost, left, pipeline):
            charge(start, block, cost, left, pipeline)
            granted[count] = pipeline
            count += 1
    return granted[:count]


def queue_order(round_: Round) -> Indices:
    """First submitted first; the round's own order, which is that of the names, where that is the same."""
    return np.argsort(round_.submitted, kind="stable").astype(np.int64)
