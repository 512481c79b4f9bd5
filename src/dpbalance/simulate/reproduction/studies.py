"""What is run? Every study as contests between schedulers on the same traces, sized to take minutes on two cores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from typing import Any

from dpbalance.simulate.cell import Cell, cells
from dpbalance.simulate.reproduction.printed import READING, PrintedCell

OURS, PRINTED = "dpbalance", "as printed"
BASELINES = ("dpf", "dpk", "fcfs")
EVERYBODY = (OURS, *BASELINES)

BETAS = (0.5, 2.2, 5.0)
"""Of the paper's evaluation: for efficiency, unbiased, for fairness."""
MIDDLE = 2.2

LOSSES = {"l ~ U(0.5, 1)": 0.5, "l ~ U(0, 1)": 0.001}
"""The paper does not say how l is spread; a matching degree of exactly 0 would make a pipeline worthless."""

LEFTOVER = "leftover shares; returned"

PATIENCE = 300.0
"""Seconds a pipeline waits in long runs; measured, it changes no decision there, and queues stay short."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is run."""

    seeds: int = 20
    rounds: int = 10
    quick: bool = False
    """A glimpse of every study instead of enough of each to be sure."""

    @property
    def few(self) -> int:
        """Seeds of what is repeated over many settings."""
        return max(1, self.seeds // 2)

    @property
    def fewest(self) -> int:
        """Seeds of what takes long."""
        return max(1, self.seeds // 4)

    @property
    def document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contest:
    """Who does what on the same traces, valued alike."""

    label: str
    seeds: int
    workload: str = "paper"
    parameters: Mapping[str, Any] = field(default_factory=dict)
    terms: Mapping[str, Any] = field(default_factory=dict)
    """beta and tau, of every scheduler's measures."""
    ours: Mapping[str, Any] = field(default_factory=dict)
    """What else is set on DPBalance."""
    who: tuple[str, ...] = EVERYBODY
    bound: bool = False

    def cells(self, who: str) -> tuple[Cell, ...]:
        """A run for each seed."""
        mine = {OURS: self.ours, PRINTED: {**self.ours, **READING}}.get(who, {})
        options = {**self.terms, **mine}
        return _cells(self.workload, _items(self.parameters), who, _items(options), self.seeds, self.bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class Studies:
    """All contests, by the question they answer."""

    evaluation: Mapping[tuple[str, float], Contest]
    tradeoff: Mapping[float, Contest]
    long: Contest
    crowds: Mapping[int, Contest]
    settings: Mapping[str, tuple[Contest, ...]]
    others: tuple[Contest, ...]
    bound: Mapping[float, Contest]

    @staticmethod
    def of(plan: Plan) -> Studies:
        rounds = {"rounds": plan.rounds}
        betas = (0.0, 0.5, 2.2, 5.0) if plan.quick else (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.2, 3.0, 4.0, 5.0)
        return Studies(
            evaluation={
                (loss, beta): Contest(
                    label=f"beta {beta:g}, {loss}",
                    seeds=plan.seeds,
                    parameters=_loss(rounds, low),
                    terms={"beta": beta},
                    who=(OURS, PRINTED, *BASELINES),
                )
                for loss, low in LOSSES.items()
                for beta in BETAS
            },
            tradeoff={
                beta: Contest(
                    label=f"beta {beta:g}",
                    seeds=plan.seeds,
                    parameters=rounds,
                    terms={"beta": beta},
                    who=(OURS, PRINTED),
                )
                for beta in betas
            },
            long=_middle(
                f"{12 if plan.quick else 200} rounds",
                plan.fewest,
                {"rounds": 12 if plan.quick else 200, "timeout": PATIENCE},
            ),
            crowds={
                number: _middle(
                    f"{number} analysts", plan.few if number <= 10 else plan.fewest, {**rounds, "analysts": number}
                )
                for number in ((2, 6) if plan.quick else (2, 4, 6, 10, 20, 50))
            },
            settings=dict(_settings(plan, rounds)),
            others=tuple(_others(plan)),
            bound={
                beta: Contest(
                    label=f"beta {beta:g}",
                    seeds=plan.fewest,
                    parameters=rounds,
                    terms={"beta": beta},
                    who=EVERYBODY if beta == MIDDLE else (OURS,),
                    bound=True,
                )
                for beta in BETAS
            },
        )

    def contests(self) -> Iterator[Contest]:
        for each in (self.evaluation, self.tradeoff, self.crowds, self.bound):
            yield from each.values()
        yield self.long
        for several in self.settings.values():
            yield from several
        yield from self.others

    def cells(self) -> tuple[Cell, ...]:
        """All runs, each once; those on one trace beside each other."""
        found = {cell.key: cell for each in self.contests() for who in each.who for cell in each.cells(who)}
        return tuple(
            sorted(found.values(), key=lambda cell: (cell.workload, str(sorted(cell.parameters.items())), cell.seed))
        )


def _middle(label: str, seeds: int, parameters: Mapping[str, Any], **more: Any) -> Contest:
    """A contest at the beta between efficiency and fairness."""
    terms = {"beta": MIDDLE, **more.pop("terms", {})}
    return Contest(label=label, seeds=seeds, parameters=parameters, terms=terms, **more)


def _loss(parameters: Mapping[str, Any], low: float) -> dict[str, Any]:
    """The default is left unsaid, so that equal runs are one run."""
    return {**parameters, **({} if low == 0.5 else {"loss_low": low})}


def _settings(plan: Plan, rounds: Mapping[str, Any]) -> Iterator[tuple[str, tuple[Contest, ...]]]:
    """One thing changed at a time."""
    taus = (30.0, 300.0) if plan.quick else (10.0, 30.0, 300.0, 1000.0)
    yield (
        "T(t) = 1 / (1 + t/tau); tau is 100 s",
        tuple(_middle(f"tau {tau:g} s", plan.few, rounds, terms={"tau": tau}) for tau in taus),
    )
    yield (
        "matching degree l; drawn from 0.5 to 1",
        (
            _middle("l from 0 to 1", plan.few, _loss(rounds, 0.001)),
            _middle("l is 1 for all", plan.few, {**rounds, "loss_low": 1.0}),
        ),
    )
    caps = (1.0,) if plan.quick else (1.0, 1.5, 2.0, 5.0)
    yield (
        "largest multiple; no cap",
        tuple(_middle(f"at most {cap:g} times", plan.few, rounds, ours={"max_multiple": cap}) for cap in caps),
    )
    yield (
        "unlocking; blocks open at once",
        tuple(
            _middle(f"in ten parts over {life:g} s", plan.few, {**rounds, "lifetime": life, "steps": 10})
            for life in ((50.0,) if plan.quick else (25.0, 50.0, 100.0))
        ),
    )
    refill = {"leftover": "refill"}
    yield (
        LEFTOVER,
        (
            _middle("refill", plan.few, rounds, ours=refill),
            _middle("refill, at most 1 times", plan.few, rounds, ours={**refill, "max_multiple": 1.0}),
            _middle("refill, in ten parts over 50 s", plan.few, {**rounds, "lifetime": 50.0, "steps": 10}, ours=refill),
        ),
    )


def _others(plan: Plan) -> Iterator[Contest]:
    """Every other workload, with ten analysts."""
    short = 20.0 if plan.quick else 100.0
    dealt = {"analysts": 10}
    for name, parameters, seeds in (
        ("privatekube-single", {"duration": 60.0} if plan.quick else {}, plan.seeds),
        ("privatekube-multi", {"duration": short}, plan.fewest),
    ):
        yield _middle(f"{name}, basic", seeds, {**dealt, **parameters}, workload=name)
        yield _middle(f"{name}, Renyi", seeds, {**dealt, **parameters, "renyi": True}, workload=name)
    for name in ("dpack-mixed", "alibaba-dp"):
        yield _middle(name, plan.seeds, dealt, workload=name)
        yield _middle(f"{name}, refill", plan.seeds, dealt, workload=name, ours={"leftover": "refill"})


def _items(values: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    return tuple(values.items())


@cache
def _cells(
    workload: str,
    parameters: tuple[tuple[str, Any], ...],
    who: str,
    options: tuple[tuple[str, Any], ...],
    seeds: int,
    bound: bool,
) -> tuple[Cell, ...]:
    found = cells(
        workload,
        {name: [value] for name, value in parameters},
        [OURS if who == PRINTED else who],
        {name: [value] for name, value in options},
        range(seeds),
        bound=bound,
    )
    if who != PRINTED:
        return found
    return tuple(PrintedCell(**{name: getattr(each, name) for name in Cell.__dataclass_fields__}) for each in found)
