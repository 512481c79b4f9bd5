"""Which economic properties do the shares of step 1 have? Each by the number that decides it, not by a theorem.

Step 1 gives analyst i the bundle D_i x_i, D_i its total demand. What a bundle b is worth to it is how often its total
demand is in there, min_k b_k / D_ik, up to its cap. An analyst of priority m_i counts as m_i analysts.

Two notions of what somebody is due:

    equal       e_i = m_i / sum m, the equal part of what is left of every block
    entitled    e_i ~ m_i r_i^((1 - beta) / beta),  r_i = a_i mu_i / nu_i

with mu_i the dominant share asked of the capacities and nu_i that of what is left. For beta >= 1 and the default lambda
the KKT conditions of step 1 give everybody at least its entitled part and let nobody envy another by the head
of entitlements, whatever the a_i and however much is spent: with r_i^(1-beta) s_i^-beta <= sum_k p_k the argument that
the paper gives for equal a_i and fresh blocks goes through in these units. Where both are given the two notions agree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from dpbalance.allocation import Allocation
from dpbalance.allocation.certificate import strength, totals
from dpbalance.audit.finding import TOLD_MAX, Finding, answer
from dpbalance.market.round import Floats
from dpbalance.scheduler import alpha_fair

TOLERANCE = 1e-6
"""By so much, relatively, somebody must be better or worse off to count; step 1 is solved to about 1e-9."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Divisible:
    """Step 1 as a market of those who take part."""

    analysts: tuple[str, ...]
    blocks: tuple[str, ...]
    demand: Any
    """D: blocks x analysts, sparse by columns."""
    capacity: Floats
    left: Floats
    weight: Floats
    priority: Floats
    upper: Floats
    beta: float
    lam: float | None
    take: Floats
    """x: the multiple of its total demand that each is given."""

    @staticmethod
    def of_allocation(allocation: Allocation) -> Divisible | None:
        """What step 1 of this decision divided, or None for schedulers without it."""
        round_, shares = allocation.round, allocation.shares
        if shares is None:
            return None
        asked = {at: each for at, each in totals(round_, shares).items() if shares.upper[at] > 0}
        index = np.array(list(asked), dtype=np.int64)
        lengths = [len(block) for block, _ in asked.values()]
        demand = sparse.csc_array(
            (
                np.concatenate([amount for _, amount in asked.values()] or [np.zeros(0)]),
                np.concatenate([block for block, _ in asked.values()] or [np.zeros(0, dtype=np.int64)]),
                np.concatenate(([0], np.cumsum(lengths))).astype(np.int64),
            ),
            shape=(len(round_.blocks), len(index)),
        )
        at = shares.order[:, None]
        return Divisible(
            analysts=tuple(round_.analysts[each] for each in index),
            blocks=round_.blocks,
            demand=demand,
            capacity=np.take_along_axis(round_.capacity, at, axis=1)[:, 0].astype(np.float64),
            left=np.take_along_axis(round_.available, at, axis=1)[:, 0].astype(np.float64),
            weight=shares.weight[index],
            priority=shares.priority[index],
            upper=shares.upper[index],
            beta=shares.beta,
            lam=shares.lam,
            take=shares.take[index],
        )

    def column(self, analyst: int) -> tuple[Any, Floats]:
        """The blocks it asks for, and how much of each."""
        mine = slice(int(self.demand.indptr[analyst]), int(self.demand.indptr[analyst + 1]))
        return self.demand.indices[mine], self.demand.data[mine]

    def columns(self) -> Iterator[tuple[Any, Floats]]:
        """The same for each analyst."""
        return (self.column(at) for at in range(len(self.analysts)))

    @property
    def dominant(self) -> Floats:
        """mu_i."""
        return np.array([np.max(amount / self.capacity[block]) for block, amount in self.columns()])

    @property
    def equal(self) -> Floats:
        """The equal part of each, by priority."""
        part: Floats = self.priority / np.sum(self.priority)
        return part

    @property
    def entitled(self) -> Floats:
        """The part of what is left to which step 1 entitles each; see the head of this file."""
        scarce = np.array([np.max(amount / self.left[block]) for block, amount in self.columns()])
        ratio = np.log(self.weight * self.dominant / scarce)
        fair = np.inf if self.lam == 0 else self.beta
        power = -1.0 if np.isinf(fair) else (1.0 - fair) / max(fair, 1e-3)
        logs = power * ratio + np.log(self.priority)
        part: Floats = np.exp(np.maximum(logs - np.max(logs), -30.0))  # near beta 0 all but one are due nothing
        return part / float(np.sum(part))

    @property
    def utility(self) -> Floats:
        """U_i = a_i mu_i x_i."""
        worth: Floats = self.weight * self.dominant * self.take
        return worth

    def solved(self, demand: Any, dominant: Floats) -> Floats:
        """What step 1 gives each when these are the demands."""
        return alpha_fair.solve_columns(self.asked(demand, dominant), self.beta, self.lam).x

    def asked(self, demand: Any, dominant: Floats) -> alpha_fair.Asked:
        """The same market for the solver, with these demands."""
        return alpha_fair.Asked(
            start=demand.indptr.astype(np.int64),
            row=demand.indices.astype(np.int32),
            value=demand.data.astype(np.float64),
            left=self.left,
            weight=self.weight,
            upper=self.upper,
            priority=self.priority,
            dominant=dominant,
        )


def divisible_findings(market: Divisible) -> list[Finding]:
    """Pareto efficiency, sharing incentive and envy-freeness of step 1."""
    if not market.analysts:
        return []
    fair = (market.lam is None or market.lam == strength(market.beta)) and market.beta >= 1
    even = market.lam == 0 and not np.isfinite(market.upper).any()
    told = "" if fair or even else "no theorem promises it for this beta and lambda"
    return [
        pareto(market),
        sharing(market, "sharing-incentive", market.equal, ""),
        sharing(market, "sharing-incentive-entitled", market.entitled, told),
        envy(market, "envy-freeness", market.equal, ""),
        envy(market, "envy-freeness-entitled", market.entitled, told),
    ]


def pareto(market: Divisible) -> Finding:
    """Nobody else has to give way: rows hold for less as well, so it is enough to raise one analyst at a time.

    If some allocation were better for one and worse for none, then giving only that one more would be feasible.
    """
    room = market.left - market.demand @ market.take
    more, tight = np.zeros(len(market.analysts)), np.zeros(len(market.analysts), dtype=np.int64)
    for at, (block, amount) in enumerate(market.columns()):
        could = np.maximum(room[block], 0.0) / amount
        tight[at] = block[np.argmin(could)]
        more[at] = min(float(np.min(could)), float(market.upper[at] - market.take[at]))
    gain = more / (market.take + worth_of(market, market.equal))
    worst = int(np.argmax(gain))
    good = bool(gain[worst] <= TOLERANCE)
    return Finding(
        property="pareto-efficiency",
        view="divisible",
        answer=answer(good),
        number=float(gain[worst]),
        meaning=f"the most that one share could grow by itself, relatively; efficient up to {TOLERANCE:g}",
        culprit=None if good else market.analysts[worst],
        counterexample={}
        if good
        else {
            "analyst": market.analysts[worst],
            "share": float(market.take[worst] * market.dominant[worst]),
            "share_possible": float((market.take[worst] + more[worst]) * market.dominant[worst]),
            "first_full": market.blocks[tight[worst]],
        },
    )


def worth_of(market: Divisible, due: Floats) -> Floats:
    """How often each analyst's total demand is in its part of what is left of every block."""
    return np.array(
        [
            min(float(np.min(each * market.left[block] / amount)), float(upper))
            for each, upper, (block, amount) in zip(due, market.upper, market.columns(), strict=True)
        ]
    )


def sharing(market: Divisible, name: str, due: Floats, note: str) -> Finding:
    """Against what its part of every block would be worth to each."""
    part = worth_of(market, due)
    ratio = market.take / part
    worst = int(np.argmin(ratio))
    good = bool(ratio[worst] >= 1.0 - TOLERANCE)
    return Finding(
        property=name,
        view="divisible",
        answer=answer(good),
        number=float(ratio[worst]),
        meaning="the smallest of: what an analyst gets / what its part would be worth to it; at least 1 holds",
        culprit=None if good else market.analysts[worst],
        counterexample={}
        if good
        else {
            "analyst": market.analysts[worst],
            "due": float(due[worst]),
            "share": float(market.take[worst] * market.dominant[worst]),
            "share_of_its_part": float(part[worst] * market.dominant[worst]),
        },
        note=note,
    )


def envy(market: Divisible, name: str, due: Floats, note: str) -> Finding:
    """Would i have more of its total demand in j's bundle, scaled to what i is due?"""
    bundles = sparse.csr_array(market.demand @ sparse.diags_array(market.take / due))
    worst, pair = 0.0, (0, 0)
    for at, (block, amount) in enumerate(market.columns()):
        mine = market.take[at] / due[at]
        if not mine > 0:
            worst, pair = _wanting(market, bundles, at, worst, pair)
            continue
        cap = market.upper[at] / due[at] / mine
        others = np.delete(np.arange(len(market.analysts)), at)
        ratio = np.full(len(others), cap)
        for each, needed in zip(block, amount, strict=True):
            row = np.zeros(len(market.analysts))
            entries = slice(bundles.indptr[each], bundles.indptr[each + 1])
            row[bundles.indices[entries]] = bundles.data[entries]
            ratio = np.minimum(ratio, row[others] / (needed * mine))
            kept = ratio > worst  # whoever is envied less than somebody already found needs no second look
            others, ratio = others[kept], ratio[kept]
            if not len(others):
                break
        if len(others):
            best = int(np.argmax(ratio))
            worst, pair = min(float(ratio[best]), TOLD_MAX), (at, int(others[best]))
    good = worst <= 1.0 + TOLERANCE
    envious, envied = market.analysts[pair[0]], market.analysts[pair[1]]
    return Finding(
        property=name,
        view="divisible",
        answer=answer(good),
        number=worst,
        meaning="the largest of: what another one's bundle would be worth / what one's own is; at most 1 holds",
        culprit=None if good else envious,
        counterexample={} if good else {"analyst": envious, "envies": envied, "would_be_worth": worst},
        note=note,
    )


def _wanting(
    market: Divisible, bundles: Any, analyst: int, worst: float, pair: tuple[int, int]
) -> tuple[float, tuple[int, int]]:
    """Whoever has nothing envies anyone in whose bundle it would find something."""
    block, _ = market.column(analyst)
    rows = bundles[block]
    found = np.flatnonzero(np.bincount(rows.indices[rows.data > 0], minlength=len(market.analysts)) == len(block))
    return (TOLD_MAX, (analyst, int(found[0]))) if len(found) and market.upper[analyst] > 0 else (worst, pair)
