"""What would a round be if something in it were otherwise? The same round with other demands, or after its grants."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dpbalance.allocation import Allocation
from dpbalance.amounts import MAX_UNITS, epsilons
from dpbalance.market import Round
from dpbalance.market.round import Indices


def with_demand(round_: Round, entries: Indices, units: Any) -> Round:
    """The round in which these demand entries ask other amounts, in whole units, at least one."""
    cost = round_.cost.copy()
    cost[entries] = np.clip(units, 1, MAX_UNITS).astype(np.int64)
    changed = np.unique(np.searchsorted(round_.start, entries, side="right") - 1)
    largest = np.maximum.reduceat(cost.max(axis=1), round_.start[:-1])[changed]
    unrounded = round_.unrounded.copy()
    unrounded[changed] = epsilons(largest)
    return replace(round_, cost=cost, unrounded=unrounded)


def after(allocation: Allocation) -> Round:
    """The next round, if nothing new came: what was granted is spent, and whoever was denied still waits."""
    round_ = allocation.round
    waiting = np.flatnonzero(allocation.multiple == 0)
    spent = np.minimum(round_.spent + allocation.taken, MAX_UNITS).astype(np.int64)
    return round_.subset(waiting, now=round_.now, spent=spent, unlocked=round_.unlocked)


def all_unlocked(round_: Round) -> Round:
    """The round in which every block may be used in full."""
    return replace(round_, unlocked=round_.capacity)
