"""Which economic properties does an allocation have as granted, when a pipeline runs in full, in a multiple, or not?

An analyst's utility is its dominant share granted, max_k sum_j gamma_ij^k x_j; a_i cancels in everything asked here.
Each question is a mixed-integer program: nobody's theorem covers them. With several orders shares are those at the
reference orders, as everywhere, and budgets are looked at at one order of each block: the reference order, or the one
with most room where the allocation relies on another. What fails there fails; nothing is said to hold, since another
order may allow more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import sparse

from dpbalance.allocation import Allocation
from dpbalance.audit.finding import Finding, answer
from dpbalance.audit.program import CERTAIN, Patience, Program
from dpbalance.errors import BudgetExceeded
from dpbalance.market import Round
from dpbalance.market.round import Floats, Indices
from dpbalance.scheduler.bound import tightest

TOLERANCE = 1e-6
"""A share must change by more than this part of `Granted.unit` to count."""

LIMIT_S = 60.0
"""All questions about what was granted end after this; what is not answered by then is not-found."""

SMALLEST_OVER = 40
"""Up to so many pipelines the smallest counterexample is looked for, not just any."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Granted:
    """An allocation at one order of each block, by the pipelines that could run."""

    allocation: Allocation
    pipelines: Indices
    """Who could run alone, or does."""
    owner: Indices
    demand: Any
    """Whole units, pipelines x blocks, sparse by rows, at the order of each block that counts for budgets."""
    available: Floats
    shares: Any
    """The same as parts of capacities, at the reference orders."""
    multiple: Floats
    complete: bool
    """Whether nothing else could be allowed: there is one order only."""

    @staticmethod
    def of_allocation(allocation: Allocation) -> Granted:
        round_ = allocation.round
        order = allocation.valuation.order
        shares = _table(round_, order)
        shares = shares @ sparse.diags_array(1.0 / np.maximum(_of_blocks(round_.capacity, order), 1.0))
        complete = round_.orders is None or len(round_.orders) == 1
        if not complete:
            room = np.asarray(allocation.left, dtype=np.float64) / np.maximum(round_.capacity, 1)
            here = np.take_along_axis(room, order[:, None], axis=1)[:, 0]
            order = np.where(here >= 0, order, np.argmax(room, axis=1))
        available, demand = _of_blocks(round_.available, order), _table(round_, order)
        fits = np.ones(len(round_.pipelines), dtype=bool)
        if len(fits):
            fits = np.logical_and.reduceat(demand.data <= available[round_.block], round_.start[:-1])
        chosen = np.flatnonzero(fits | (allocation.multiple > 0))
        return Granted(
            allocation=allocation,
            pipelines=chosen,
            owner=round_.owner[chosen],
            demand=demand[chosen],
            available=available,
            shares=sparse.csr_array(shares)[chosen],
            multiple=allocation.multiple[chosen],
            complete=complete,
        )

    @property
    def analysts(self) -> list[int]:
        """Those with a pipeline that could run."""
        return [int(each) for each in np.unique(self.owner)]

    def name(self, analyst: int) -> str:
        return self.allocation.round.analysts[analyst]

    def members(self, analyst: int) -> Indices:
        """Positions of its pipelines here."""
        return np.flatnonzero(self.owner == analyst)

    def taken(self, analyst: int) -> Floats:
        """What its grants take of each block, whole units."""
        mine = self.members(analyst)
        taken: Floats = self.demand[mine].T @ self.multiple[mine]
        return taken

    def share(self, analyst: int, multiple: Floats | None = None) -> float:
        """Its dominant share with its own multiples, or with these."""
        mine = self.members(analyst)
        times = self.multiple[mine] if multiple is None else multiple
        return float(np.max(self.shares[mine].T @ times, initial=0.0))

    def unit(self, analyst: int) -> float:
        """What changes of its share are measured by: the largest that one of its pipelines asks, or what it has."""
        return max(float(np.max(self.shares[self.members(analyst)].data)), self.share(analyst))

    def caps(self, members: Indices, budget: Floats) -> Floats:
        """The largest multiple of each that fits alone into a budget of each block; below 1 where none does."""
        demand = self.demand[members]
        with np.errstate(divide="ignore"):
            ratio = budget[demand.indices] / demand.data
        alone = np.minimum.reduceat(ratio, demand.indptr[:-1]) if len(members) else np.zeros(0)
        caps: Floats = np.minimum(alone, self.allocation.round.max_multiple[self.pipelines[members]])
        return caps

    def patterns(self, members: Indices) -> Floats:
        """Rows of shares over these pipelines whose largest is the dominant share: others are never the largest."""
        table: Floats = tightest(self.shares[members].T.tocsr()).toarray()
        kept: list[Floats] = []
        for row in table[np.argsort(-table.sum(axis=1), kind="stable")]:
            if not any(np.all(row <= other) for other in kept):
                kept.append(row)
        return np.array(kept)


def _of_blocks(amounts: Any, order: Indices) -> Floats:
    """One amount of each block, at these orders."""
    return np.asarray(np.take_along_axis(amounts, order[:, None], axis=1)[:, 0], dtype=np.float64)


def _table(round_: Round, order: Indices) -> Any:
    """Demands at these orders, pipelines x blocks."""
    cost = _of_blocks(round_.cost, order[round_.block])
    return sparse.csr_array((cost, round_.block, round_.start), shape=(len(round_.pipelines), len(round_.blocks)))


def granted_findings(granted: Granted, limit_s: float = LIMIT_S) -> list[Finding]:
    """Pareto efficiency, sharing incentive and envy-freeness of what was granted."""
    if not granted.analysts:
        return []
    patience = Patience(limit_s)
    return [pareto(granted, patience), sharing(granted, patience), envy(granted, patience)]


def best_use(
    granted: Granted, analyst: int, budget: Floats, above: float, patience: Patience
) -> tuple[float, dict[str, float], bool]:
    """The largest dominant share an analyst could reach within a budget, the multiples, and whether that is proven.

    Whatever cannot pass `above` is not looked for.
    """
    mine = granted.members(analyst)
    caps = granted.caps(mine, budget)
    runs = caps >= 1.0 - 1e-12  # a part of a block is a fraction, and a pipeline may need all of it
    mine, caps = mine[runs], np.maximum(caps[runs], 1.0)
    best, chosen, proven = 0.0, np.zeros(len(mine)), True
    if not len(mine):
        return best, {}, proven
    rows = _budget_rows(granted, mine, budget)
    for pattern in granted.patterns(mine):
        if float(pattern @ caps) <= max(best, above):
            continue
        program = Program(caps)
        for row in rows:
            program.row(program.of_multiples(row), most=1.0)
        found = program.best(program.of_multiples(pattern), patience)
        proven = proven and found is not None and found[2]
        if found is None:
            continue
        if float(np.max(rows @ found[0])) > 1.0 + CERTAIN:
            proven = False  # the solver's idea of a whole number was too generous
            continue
        if float(pattern @ found[0]) > best:
            best, chosen = float(pattern @ found[0]), found[0]
    names = granted.allocation.round.pipelines
    told = {names[granted.pipelines[at]]: float(times) for at, times in zip(mine, chosen, strict=True) if times > 0}
    return best, told, proven


def sharing(granted: Granted, patience: Patience) -> Finding:
    """Against each analyst's best use of its part of what is left of every block."""
    priority = granted.allocation.round.priority
    heads = float(np.sum(priority[granted.analysts]))
    worst, number, culprit, example, proven = np.inf, 0.0, -1, {}, granted.complete
    for analyst in granted.analysts:
        has = granted.share(analyst)
        could, how, sure = best_use(granted, analyst, granted.available * priority[analyst] / heads, has, patience)
        proven = proven and (sure or could > has)
        if (has - could) / granted.unit(analyst) < worst:
            worst, number, culprit = (has - could) / granted.unit(analyst), has - could, analyst
            example = {"analyst": granted.name(analyst), "share": has, "share_of_its_part": could, "by": how}
    good = worst >= -TOLERANCE
    return Finding(
        property="sharing-incentive",
        view="granted",
        answer=answer(good, proven),
        number=number,
        meaning="the smallest of: share granted minus the best use of an equal part of every block; at least 0 holds",
        culprit=None if good else granted.name(culprit),
        counterexample={} if good else example,
    )


def envy(granted: Granted, patience: Patience) -> Finding:
    """Against each analyst's best use of what another one got, by the head."""
    priority = granted.allocation.round.priority
    taken = {analyst: granted.taken(analyst) for analyst in granted.analysts}
    worst, number, example, proven = 0.0, 0.0, {}, granted.complete
    for envious in granted.analysts:
        has, unit = granted.share(envious), granted.unit(envious)
        for envied in granted.analysts:
            if envied == envious:
                continue
            budget = taken[envied] * priority[envious] / priority[envied]
            could, how, sure = best_use(granted, envious, budget, has + worst * unit, patience)
            proven = proven and (sure or could > has)
            if (could - has) / unit > worst:
                worst, number = (could - has) / unit, could - has
                names = {"analyst": granted.name(envious), "envies": granted.name(envied)}
                example = {**names, "share": has, "share_of_the_other": could, "by": how}
    good = worst <= TOLERANCE
    return Finding(
        property="envy-freeness",
        view="granted",
        answer=answer(good, proven),
        number=number,
        meaning="the largest of: best use of another one's grants minus the own share; at most 0 holds",
        culprit=None if good else str(example["analyst"]),
        counterexample={} if good else example,
    )


def pareto(granted: Granted, patience: Patience) -> Finding:
    """Is there a feasible allocation that is better for one and worse for none?"""
    better, proven = _one_change(granted), granted.complete
    if better is None:
        better, sure = _any_change(granted, patience)
        proven = proven and sure
    good = better is None
    gains = {} if better is None else _gains(granted, better)
    culprit = None if good else max(gains, key=lambda each: gains[each] / granted.unit(each))
    gain = 0.0 if culprit is None else gains[culprit]
    changed = {} if better is None else _changed(granted, better)
    name = None if culprit is None else granted.name(culprit)
    return Finding(
        property="pareto-efficiency",
        view="granted",
        answer=answer(good, proven),
        number=gain,
        meaning="how much more of its dominant share one analyst could have with nobody having less; 0 is efficient",
        culprit=name,
        counterexample={} if good else {"analyst": name, "gain": gain, "multiples": changed},
    )


def _budget_rows(granted: Granted, members: Indices, budget: Floats) -> Floats:
    """Rows over these pipelines that keep every block within a budget, of which at most 1 is used."""
    shares = granted.demand[members] @ sparse.diags_array(1.0 / np.maximum(budget, 1e-9))
    table: Floats = tightest(shares.T.tocsr()).toarray()
    return table


def _one_change(granted: Granted) -> Floats | None:
    """The best of all allocations with one pipeline more, or one larger multiple."""
    room = granted.available - granted.demand.T @ granted.multiple
    served = granted.multiple > 0
    everyone = np.arange(len(granted.pipelines))
    within = granted.caps(everyone, np.maximum(room, 0.0))
    limit = granted.allocation.round.max_multiple[granted.pipelines]
    demand = granted.demand
    with np.errstate(divide="ignore"):
        alone = np.minimum.reduceat(np.maximum(room, 0.0)[demand.indices] / demand.data, demand.indptr[:-1])
    more = np.where(served, np.minimum(alone, limit - granted.multiple), np.where(within >= 1.0, within, 0.0))
    best, found = TOLERANCE, None
    for at in np.flatnonzero(more > 0):
        multiple = granted.multiple.copy()
        multiple[at] += more[at] * (1.0 - 1e-12) if served[at] else max(more[at] * (1.0 - 1e-12), 1.0)
        mine = granted.members(int(granted.owner[at]))
        owner = int(granted.owner[at])
        gain = (granted.share(owner, multiple[mine]) - granted.share(owner)) / granted.unit(owner)
        if gain > best and _feasible(granted, multiple):
            best, found = gain, multiple
    return found


def _any_change(granted: Granted, patience: Patience) -> tuple[Floats | None, bool]:
    """A feasible allocation that is better for one and worse for none, found by the solver; whether none is proven."""
    everyone = np.arange(len(granted.pipelines))
    caps = np.maximum(granted.caps(everyone, granted.available), granted.multiple)
    program = Program(caps)
    for row in _budget_rows(granted, everyone, granted.available):
        program.row(program.of_multiples(row), most=1.0)
    gain: dict[int, float] = {}
    for analyst in granted.analysts:
        utility = _utility(granted, program, analyst)
        program.row(utility, least=granted.share(analyst) / granted.unit(analyst))
        for column, value in utility.items():
            gain[column] = gain.get(column, 0.0) + value
    found = program.best(gain, patience)
    if found is None:
        return None, False
    now = sum(granted.share(analyst) / granted.unit(analyst) for analyst in granted.analysts)
    if found[1] - now <= TOLERANCE:
        return None, found[2]
    better = _repaired(granted, found[0])
    if len(everyone) <= SMALLEST_OVER:
        program.row(gain, least=now + max(0.01 * (found[1] - now), 10 * TOLERANCE))
        changes = _changes(granted, program, caps)
        fewest = program.best(dict.fromkeys(changes, -1.0), patience)
        if fewest is not None:
            program.row(dict.fromkeys(changes, 1.0), most=round(-fewest[1]) + 0.5)
            smallest = program.best(gain, patience)
            fewer = None if smallest is None else _repaired(granted, smallest[0])
            better = better if fewer is None else fewer
    return better, better is not None


def _utility(granted: Granted, program: Program, analyst: int) -> dict[int, float]:
    """The analyst's dominant share in its unit as terms of a row: of several possible dominant blocks one is picked."""
    mine = granted.members(analyst)
    own = granted.patterns(mine) / granted.unit(analyst)
    patterns = np.zeros((len(own), len(granted.pipelines)))
    patterns[:, mine] = own
    if len(patterns) == 1:
        return program.of_multiples(patterns[0])
    picked, total = [], {}
    for pattern in patterns:
        most = float(pattern[mine] @ np.maximum(granted.caps(mine, granted.available), granted.multiple[mine]))
        share, pick = program.column(most=most, whole=False), program.column(most=1.0, whole=True)
        program.row({share: 1.0, **{k: -v for k, v in program.of_multiples(pattern).items()}}, most=0.0)
        program.row({share: 1.0, pick: -most}, most=0.0)
        picked.append(pick)
        total[share] = 1.0
    program.row(dict.fromkeys(picked, 1.0), most=1.0)
    return total


def _changes(granted: Granted, program: Program, caps: Floats) -> list[int]:
    """Columns that are 1 where a pipeline's multiple is not what it was."""
    columns = []
    for at, was in enumerate(granted.multiple.tolist()):
        change = program.column(most=1.0, whole=True)
        scale = float(caps[at]) + 1.0
        here = {at: 1.0 / scale, program.count + at: float(program.more[at]) / scale}
        program.row({**here, change: -1.0}, most=was / scale)
        program.row({**here, change: was / scale}, least=was / scale)
        columns.append(change)
    return columns


def _repaired(granted: Granted, multiple: Floats) -> Floats | None:
    """Multiples that hold in whole numbers: unchanged where nearly so, else a hair less than the solver's."""
    same = np.abs(multiple - granted.multiple) <= 1e-7
    for hair in (0.0, 1e-12, 1e-10, 1e-9, 1e-8):
        shrunk = np.where(multiple > 1, np.maximum(multiple * (1.0 - hair), 1.0), multiple)
        tried = np.where(same, granted.multiple, shrunk)
        tried = np.minimum(tried, granted.allocation.round.max_multiple[granted.pipelines])
        gains = [gain / granted.unit(analyst) for analyst, gain in _gains(granted, tried).items()]
        if min(gains) >= -1e-7 and max(gains) > TOLERANCE and _feasible(granted, tried):
            return tried
    return None


def _feasible(granted: Granted, multiple: Floats) -> bool:
    """Whether these grants keep every promise, in whole numbers."""
    everything = np.zeros(len(granted.allocation.round.pipelines))
    everything[granted.pipelines] = multiple
    try:
        replace(granted.allocation, multiple=everything, shares=None, sequence=None).check_budget()
    except BudgetExceeded:
        return False
    return True


def _gains(granted: Granted, multiple: Floats) -> dict[int, float]:
    """How much more of its dominant share each analyst would have."""
    return {
        analyst: granted.share(analyst, multiple[granted.members(analyst)]) - granted.share(analyst)
        for analyst in granted.analysts
    }


def _changed(granted: Granted, multiple: Floats) -> dict[str, float]:
    """The pipelines whose multiple is another, and which."""
    names = granted.allocation.round.pipelines
    return {
        names[granted.pipelines[at]]: float(multiple[at])
        for at in np.flatnonzero(multiple != granted.multiple).tolist()
    }
