"""What did the contests measure? Numbers by seed, and intervals of means, paired differences and paired ratios."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, log, nan
from statistics import fmean
from typing import Any

from dpbalance.simulate.cell import Cell
from dpbalance.simulate.reproduction.studies import Contest
from dpbalance.simulate.results import Results, estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A mean over seeds and where it lies with 95% confidence; one seed alone has no interval (nan)."""

    mean: float
    low: float
    high: float
    seeds: int

    @staticmethod
    def of(values: Sequence[float | None]) -> Interval:
        found = estimate(values)
        mean, low, high = (
            nan if found[name] is None else float(found[name] or 0.0) for name in ("mean", "low", "high")
        )
        return Interval(mean=mean, low=low, high=high, seeds=int(found["n"] or 0))

    def mapped(self, function: Callable[[float], float]) -> Interval:
        return Interval(mean=function(self.mean), low=function(self.low), high=function(self.high), seeds=self.seeds)

    @property
    def row(self) -> dict[str, float]:
        return {"mean": self.mean, "low": self.low, "high": self.high}

    @property
    def sign(self) -> int:
        """1 if it is surely above zero, -1 if surely below, 0 if nobody can say."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """How many times theirs is ours? The geometric mean over seeds, so that turning the ratio turns the answer.

    Nothing can be said where somebody has nothing on some seed; to leave that seed out would hide it.
    """
    if min(*ours, *theirs, 1.0) <= 0:
        return Interval(mean=nan, low=nan, high=nan, seeds=0)
    return Interval.of([log(mine / other) for mine, other in zip(ours, theirs, strict=True)]).mapped(exp)


def fairer(beta: float, ours: Sequence[float], theirs: Sequence[float]) -> Interval:
    """How many times fairer, by the printed metric: ours / theirs below beta 1, |theirs| / |ours| above."""
    mine, other = [abs(each) for each in ours], [abs(each) for each in theirs]
    return ratio(mine, other) if beta < 1 else ratio(other, mine)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunNumbers:
    """One run: what each round measured, and what each analyst got in all."""

    rounds: tuple[Mapping[str, Any], ...]
    utilities: tuple[float, ...]
    """Of every analyst that came, over the whole run; nobody is hidden."""
    of_bound: float | None

    @staticmethod
    def of(document: Mapping[str, Any]) -> RunNumbers:
        columns = document["rounds"]
        rounds: dict[int, dict[str, Any]] = {}
        utilities: dict[str, float] = defaultdict(float)
        names = ("efficiency", "fairness", "jain", "utility_min", "shut_out", "pipelines")
        for at, number in enumerate(columns.get("round", ())):
            if number not in rounds:
                rounds[number] = {name: columns[name][at] for name in names}
            if columns["analyst"][at] is not None:
                utilities[columns["analyst"][at]] += columns["utility"][at]
        return RunNumbers(
            rounds=tuple(rounds[number] for number in sorted(rounds)),
            utilities=tuple(utilities.values()),
            of_bound=document["measures"]["of_bound"],
        )

    def column(self, name: str) -> list[float]:
        """A measure round by round, where it says something."""
        return [each[name] for each in self.rounds if each[name] is not None]

    def number(self, name: str) -> float:
        """Sums over rounds; means of jain and utility_min; jain_run and utility_min_run are of the whole run."""
        if name == "of_bound":
            return nan if self.of_bound is None else self.of_bound
        if name == "jain_run":
            squares = sum(each**2 for each in self.utilities)
            return sum(self.utilities) ** 2 / (len(self.utilities) * squares) if squares > 0 else 0.0
        if name == "utility_min_run":
            return min(self.utilities, default=0.0)
        found = self.column(name)
        if name in ("jain", "utility_min"):
            return fmean(found) if found else 0.0
        return float(sum(found))


@dataclass(frozen=True, kw_only=True, eq=False)
class Measured:
    """The results of all contests."""

    results: Results
    cache: dict[str, RunNumbers] = field(default_factory=dict)

    @cached_property
    def known(self) -> frozenset[str]:
        return frozenset(cell.key for cell in self.results.cells)

    def runs(self, contest: Contest, who: str) -> tuple[RunNumbers, ...]:
        """One for each seed."""
        return tuple(self._run(cell) for cell in contest.cells(who))

    def _run(self, cell: Cell) -> RunNumbers:
        if cell.key not in self.cache:
            self.cache[cell.key] = RunNumbers.of(self.results.read(cell))
        return self.cache[cell.key]

    def numbers(self, contest: Contest, who: str, name: str) -> list[float]:
        return [each.number(name) for each in self.runs(contest, who)]

    def mean(self, contest: Contest, who: str, name: str) -> Interval:
        return Interval.of(self.numbers(contest, who, name))

    def ahead(self, contest: Contest, name: str, of: str, who: str = "dpbalance") -> Interval:
        """How much more the one has than the other on the same trace."""
        pairs = zip(self.numbers(contest, who, name), self.numbers(contest, of, name), strict=True)
        return Interval.of([mine - theirs for mine, theirs in pairs])

    def times(self, contest: Contest, name: str, of: str, who: str = "dpbalance") -> Interval:
        """How many times as much."""
        mine, theirs = self.numbers(contest, who, name), self.numbers(contest, of, name)
        if name == "fairness":
            return fairer(float(contest.terms["beta"]), mine, theirs)
        return ratio(mine, theirs)

    def path(self, contest: Contest, who: str, name: str, *, cumulative: bool) -> list[Interval]:
        """By round: the measure, or its sum so far."""
        columns = []
        for each in self.runs(contest, who):
            values = [float(row[name] or 0.0) for row in each.rounds]
            columns.append([sum(values[: at + 1]) for at in range(len(values))] if cumulative else values)
        length = min(map(len, columns), default=0)
        return [Interval.of([column[at] for column in columns]) for at in range(length)]
