"""Does it pay to misstate what one needs? A search for the best lie: the paper's three ways, and random ones.

Strategy proofness is a statement about every lie there is, so a search can refute it and never prove it.

    strong    no lie gets the liar more of what it really needs most
    weak      no lie does so without losing on another block that it needs

Of step 1 the liar gets the bundle that its stated total demand entitles it to, and its share of its true dominant block
counts. As granted, a pipeline runs if what its lie was granted covers what it truly needs; the utility is the
dominant share that is of use to it. Either way the liar's a_i stays: it lies about privacy, not about time or loss.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dpbalance.allocation import Allocation
from dpbalance.amounts import MAX_UNITS
from dpbalance.audit.divisible import Divisible
from dpbalance.audit.finding import TOLD_MAX, Finding
from dpbalance.audit.restated import with_demand
from dpbalance.clock import chance
from dpbalance.market import Round
from dpbalance.market.round import Floats, Indices

FACTORS = (1.05, 1.25, 1.5, 2.0, 4.0)
"""By how much each of the paper's three ways overstates."""

TOLERANCE = 1e-6
"""A lie must gain relatively more than this, and counts as losing somewhere from there on."""

Decide = Callable[[Round], Allocation]
Progress = Callable[[int, int], object]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lie:
    """What an analyst would say: factors on its demand, in words and by block or demand."""

    said: str
    factor: Floats


@dataclass(slots=True)
class Best:
    """The best lie found so far."""

    gain: float = 0.0
    analyst: str = ""
    said: str = ""
    honest: float = 0.0
    lying: float = 0.0

    def offer(self, analyst: str, lie: Lie, honest: float, lying: float) -> None:
        gain = min((lying - honest) / max(honest, 1e-300), TOLD_MAX)
        if gain > self.gain:
            self.gain, self.analyst, self.said, self.honest, self.lying = gain, analyst, lie.said, honest, lying

    def finding(self, kind: str, view: Any, tried: int) -> Finding:
        found = self.gain > TOLERANCE
        return Finding(
            property=f"strategy-proofness-{kind}",
            view=view,
            answer="fails" if found else "not-found",
            number=self.gain,
            meaning="by how much the best lie found raises the liar's share, relatively",
            culprit=self.analyst if found else None,
            counterexample={"analyst": self.analyst, "lie": self.said, "honest": self.honest, "lying": self.lying}
            if found
            else {},
            note=f"{tried} lies tried",
        )


def divisible_lies(market: Divisible, tries: int, seed: int, progress: Progress | None = None) -> list[Finding]:
    """Strategy proofness of step 1."""
    random, strong, weak, tried = chance(seed), Best(), Best(), 0
    dominant = market.dominant
    for liar in range(len(market.analysts)):
        block, true = market.column(liar)
        share = true / market.capacity[block]
        most = share >= float(np.max(share)) * (1.0 - 1e-9)
        honest = share * market.take[liar]
        for lie in _lies(most, _headroom(share), random, tries):
            other = dominant.copy()
            other[liar] = float(np.max(share * lie.factor))
            take = market.solved(_with_column(market.demand, liar, true * lie.factor), other)[liar]
            got = share * lie.factor * take
            before, after = float(np.min(honest[most])), float(np.min(got[most]))
            strong.offer(market.analysts[liar], lie, before, after)
            if np.all(got[~most] >= honest[~most] * (1.0 - TOLERANCE)):
                weak.offer(market.analysts[liar], lie, before, after)
            tried += 1
        if progress is not None:
            progress(liar + 1, len(market.analysts))
    return [strong.finding("strong", "divisible", tried), weak.finding("weak", "divisible", tried)]


def granted_lies(
    allocation: Allocation, decide: Decide, tries: int, seed: int, progress: Progress | None = None
) -> list[Finding]:
    """Strategy proofness of a scheduler on this round."""
    round_, valuation = allocation.round, allocation.valuation
    random, strong, weak, tried = chance(seed), Best(), Best(), 0
    for liar, name in enumerate(round_.analysts):
        mine = np.flatnonzero(round_.owner == liar)
        _, entries = round_.demands(mine)
        share = _shares(round_, valuation.order, entries)
        honest, before = _use(round_, valuation.order, mine, allocation.multiple, np.ones(len(entries)))
        most = _dominant_entries(round_, mine, share)
        for lie in (*_lies(most, _headroom(share), random, tries), *_hidings(round_, mine, random, tries // 4)):
            multiple = decide(_stated(round_, entries, lie.factor)).multiple
            lying, after = _use(round_, valuation.order, mine, multiple, lie.factor)
            strong.offer(name, lie, honest, lying)
            if np.all(after >= before * (1.0 - TOLERANCE)):
                weak.offer(name, lie, honest, lying)
            tried += 1
        if progress is not None:
            progress(liar + 1, len(round_.analysts))
    return [strong.finding("strong", "granted", tried), weak.finding("weak", "granted", tried)]


def _lies(most: Any, headroom: Floats, random: np.random.Generator, tries: int) -> Iterator[Lie]:
    """Factors on demands: the paper's three ways of overstating, then random ones up and down."""
    for times in FACTORS:
        yield Lie(said=f"its dominant demand times {times:g}", factor=np.where(most, times, 1.0))
        if not most.all():
            others = np.where(most, 1.0, np.minimum(times, headroom))
            yield Lie(said=f"its other demands times {times:g}, at most its dominant one", factor=others)
        yield Lie(said=f"all its demands times {times:g}", factor=np.full(len(most), times))
    for number in range(tries):
        spread = random.uniform(0.05, 1.5)
        factor = np.exp(random.uniform(-spread, spread, len(most)))
        yield Lie(said=f"each demand times a random factor (number {number})", factor=factor)


def _hidings(round_: Round, mine: Indices, random: np.random.Generator, tries: int) -> Iterator[Lie]:
    """Pipelines kept back: a factor of 0 on the whole demand of some of them."""
    lengths = np.diff(round_.start)[mine]
    for _ in range(tries if len(mine) > 1 else 0):
        kept = random.random(len(mine)) < random.uniform(0.2, 0.9)
        if kept.all() or not kept.any():
            continue
        hidden = [round_.pipelines[at] for at in mine[~kept].tolist()]
        told = ", ".join(hidden[:5]) + (f" and {len(hidden) - 5} more" if len(hidden) > 5 else "")
        yield Lie(said=f"keeps back {told}", factor=np.repeat(kept.astype(np.float64), lengths))


def _headroom(share: Floats) -> Floats:
    """By what factor each demand would be the dominant one."""
    return np.asarray(float(np.max(share)) / share)


def _shares(round_: Round, order: Indices, entries: Indices) -> Floats:
    """Demand / capacity of these entries at the reference orders."""
    block = round_.block[entries]
    capacity = np.maximum(round_.capacity[block, order[block]], 1)
    return np.asarray(round_.cost[entries, order[block]] / capacity)


def _dominant_entries(round_: Round, mine: Indices, share: Floats) -> Any:
    """Whether each entry is on the block that its pipeline needs most of."""
    lengths = np.diff(round_.start)[mine]
    start = np.concatenate(([0], np.cumsum(lengths)[:-1]))
    largest = np.repeat(np.maximum.reduceat(share, start), lengths)
    return share >= largest * (1.0 - 1e-9)


def _stated(round_: Round, entries: Indices, factor: Floats) -> Round:
    """The round as the liar has it; what it keeps back is asked in amounts that no block can give."""
    said = np.where(factor[:, None] > 0, np.rint(round_.cost[entries] * factor[:, None]), MAX_UNITS)
    return with_demand(round_, entries, said)


def _use(round_: Round, order: Indices, mine: Indices, multiple: Floats, factor: Floats) -> tuple[float, Floats]:
    """The dominant share of use to the liar, and what it is granted of each block, in shares of capacity.

    A pipeline that asked for factor d and was granted x factor d can run at the smallest x factor over its demands,
    if that is at least 1, and at no more than its cap.
    """
    lengths = np.diff(round_.start)[mine]
    start, entries = round_.demands(mine)
    times = np.repeat(multiple[mine], lengths)
    least = np.minimum.reduceat(times * factor, start[:-1])
    runs = np.where(least >= 1.0 - 1e-9, np.minimum(np.maximum(least, 1.0), round_.max_multiple[mine]), 0.0)
    block, share = round_.block[entries], _shares(round_, order, entries)
    size = len(round_.blocks)
    used = np.bincount(block, weights=share * np.repeat(runs, lengths), minlength=size)
    got = np.bincount(block, weights=share * np.where(factor > 0, times * factor, 0.0), minlength=size)
    return float(np.max(used, initial=0.0)), np.asarray(got, dtype=np.float64)


def _with_column(demand: Any, analyst: int, amount: Floats) -> Any:
    """The same demands, but for one analyst."""
    data = demand.data.copy()
    data[demand.indptr[analyst] : demand.indptr[analyst + 1]] = amount
    return sparse.csc_array((data, demand.indices, demand.indptr), shape=demand.shape)
