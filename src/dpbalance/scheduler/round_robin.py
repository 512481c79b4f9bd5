"""What if every block shared itself out evenly? Round robin: max-min among those who wait, run when full.

Each block hands out what is left at one order, the one with the smallest total demand / available, as water fills
vessels of different heights: everybody gets the same until it is full. A pipeline runs when all its blocks have filled
it. What the others were handed goes back, so nothing is remembered from round to round and nothing is overspent. Those
that would not fit even alone are handed nothing, for it would only go back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpbalance.allocation import Allocation
from dpbalance.allocation.valuation import Flags, fits
from dpbalance.amounts import Units
from dpbalance.market import Round
from dpbalance.market.round import Indices
from dpbalance.scheduler.compiled import kernel
from dpbalance.scheduler.greedy import Items, queue_order
from dpbalance.scheduler.options import Options


@dataclass(frozen=True, kw_only=True)
class RoundRobin(Options):
    """Max-min sharing of every block."""

    name: ClassVar[str] = "round-robin"

    def decide(self, round_: Round, /) -> Allocation:
        if not len(round_.pipelines):
            return self.all_or_nothing(round_, [])
        queue = queue_order(round_)
        place = np.empty_like(queue)
        place[queue] = np.arange(len(queue))
        owner = np.repeat(np.arange(len(queue)), np.diff(round_.start))
        entries = np.flatnonzero(fits(round_)[owner])
        order = handing_order(round_, entries)
        demand = round_.cost[np.arange(len(owner)), order[round_.block]]
        left = round_.available[np.arange(len(order)), order]
        entries = entries[np.lexsort((place[owner[entries]], demand[entries], round_.block[entries]))]
        full = np.zeros(len(owner), dtype=bool)
        fill(round_.block, demand, left, place[owner], entries, full)
        runs = np.logical_and.reduceat(full, round_.start[:-1])
        return self.all_or_nothing(round_, queue[runs[queue]].tolist())


def handing_order(round_: Round, entries: Indices) -> Indices:
    """Per block the order it hands out at, judged by these demands; an overdrawn one only where all of them are."""
    available = round_.available
    ratio = np.full(available.shape, np.inf)
    for at in range(available.shape[1]):
        total = np.bincount(round_.block[entries], weights=round_.cost[entries, at], minlength=len(available))
        left = available[:, at]
        ratio[:, at] = np.where(left > 0, total / np.maximum(left, 1), np.where((left == 0) & (total == 0), 0, np.inf))
    best: Indices = np.argmin(ratio, axis=1)
    return best


@kernel
def fill(block: Items, demand: Units, left: Units, place: Indices, entries: Indices, full: Flags) -> None:
    """Mark the entries that get all they ask for; `entries` stand by block, then demand, then place in the queue."""
    begin = 0
    while begin < len(entries):
        b = block[entries[begin]]
        end = begin
        while end < len(entries) and block[entries[end]] == b:
            end += 1
        room = left[b]
        at = begin
        while at < end and demand[entries[at]] <= room // (end - at):
            room -= demand[entries[at]]
            full[entries[at]] = True
            at += 1
        if at < end:  # the units that do not divide go one each to the first of the queue
            level = room // (end - at)
            spare = room - level * (end - at)
            first = np.sort(place[entries[at:end]])[:spare]
            for entry in entries[at:end]:
                full[entry] = demand[entry] == level + 1 and spare > 0 and place[entry] <= first[-1]
        begin = end
