"""Why was this pipeline denied, and what would have got it served? Every suggestion was tried before it is made.

A denial names the blocks that could not give what was asked, what was left of them and who has the rest. Then the
scheduler is asked again: with less demand, with another beta, on the rounds to come if nothing new arrived, and with
all of every block unlocked. Nothing is derived from how a scheduler works, so this explains any of them.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from dpbalance.allocation import Allocation
from dpbalance.allocation.allocation import EXCEEDS_LEFT, NOT_CHOSEN, SHARE_SPENT, TAKEN
from dpbalance.amounts import UNITS_PER_EPSILON, epsilons
from dpbalance.audit.lies import Decide, Progress
from dpbalance.audit.restated import after, all_unlocked, with_demand
from dpbalance.errors import InputError
from dpbalance.market import Round

FORMAT = "dpbalance-explanation/1"

FACTORS = (0.99, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5, 0.35, 0.25, 0.1, 0.05, 0.01, 1e-3)
"""Parts of the demand that are tried, largest first; then the line between the last denied and the first served."""

HALVINGS = 12
"""How often that interval is halved."""

BETAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.5, 2.2, 3.0, 5.0, 10.0, 50.0, float("inf"))
"""Fairness preferences that are tried, the nearest one first."""

ROUNDS_AHEAD_MAX = 20
"""So many rounds to come are looked at."""

AtBeta = Callable[[float], Decide]


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """Who has some of a block by this decision."""

    analyst: str
    pipelines: tuple[str, ...]
    amount: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Short:
    """One block that was short, at the order that was nearest to enough; all amounts in epsilon."""

    block: str
    order: float | None
    asked: float
    left: float
    """What the pipeline could have had of it: of its analyst's share, or of the block, as the reason says."""
    short: float
    capacity: float
    locked: float
    """Not open yet."""
    spent_before: float
    granted: float
    """By this decision, to everybody."""
    used_by: tuple[Use, ...]
    """Who has that, most first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Smaller:
    """A demand that is served where the whole one is not."""

    factor: float
    demand: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why, and what would help; None where nothing of the kind helps."""

    pipeline: str
    analyst: str
    scheduler: str
    served: bool
    multiple: float
    reason: str | None
    shortages: tuple[Short, ...] = ()
    smaller: Smaller | None = None
    beta: float | None = None
    """The fairness preference nearest to the one used at which it is served."""
    rounds_ahead: int | None = None
    """It is served so many rounds later, if nothing new arrives and nothing more is unlocked."""
    unlocked: bool | None = None
    """Whether it is served once every block is open in full; None where nothing is locked."""

    @property
    def sentence(self) -> str:
        """The answer in words."""
        if self.served:
            return f"{self.pipeline} is served, with {self.multiple:.6g} times its demand."
        why = {
            EXCEEDS_LEFT: "it asks for more than is left of",
            SHARE_SPENT: f"{self.analyst}'s share is used up on",
            TAKEN: "what it needs has been granted to others on",
            NOT_CHOSEN: "it would still fit, but was passed over; tightest is",
        }[self.reason or NOT_CHOSEN]
        worst = self.shortages[0]
        gap = f", short by {worst.short:.9g}" if worst.short else ""
        others = len(self.shortages) - 1
        more = f" (and on {others} other block{'s' if others > 1 else ''})" if others else ""
        return (
            f"{self.pipeline} is denied: {why} {worst.block}, where it asks {worst.asked:.9g} "
            f"and {worst.left:.9g} is left{gap}{more}."
        )

    @property
    def helps(self) -> tuple[str, ...]:
        """What would have got it served, each in one sentence."""
        found = []
        if self.smaller is not None:
            found.append(f"asking {self.smaller.factor:.6g} times its demand: it is served at once")
        if self.beta is not None:
            found.append(f"beta {self.beta:g}: it is served at once")
        if self.rounds_ahead is not None:
            word = "round" if self.rounds_ahead == 1 else "rounds"
            found.append(f"waiting {self.rounds_ahead} {word}: it is served then, if nothing new arrives")
        if self.unlocked:
            found.append("waiting until its blocks are open in full: it is served then, if nothing new arrives")
        return tuple(found)

    def document(self) -> dict[str, Any]:
        """The `dpbalance-explanation/1` document."""
        beta = "inf" if self.beta == float("inf") else self.beta
        return {"format": FORMAT, "sentence": self.sentence, **asdict(self), "beta": beta, "helps": list(self.helps)}


def explain(
    allocation: Allocation,
    pipeline: str,
    decide: Decide | None = None,
    at_beta: AtBeta | None = None,
    *,
    progress: Progress | None = None,
) -> Explanation:
    """Why this pipeline was denied. `decide` is the scheduler's own; without it nothing is suggested.

    >>> from dpbalance.market import worked_example
    >>> from dpbalance.scheduler import scheduler
    >>> decider = scheduler("dpbalance")
    >>> told = explain(decider.decide(worked_example()), "P4", decider.decide)
    >>> told.sentence
    "P4 is denied: bob's share is used up on B1, where it asks 0.3 and 0 is left, short by 0.3 (and on 1 other block)."
    """
    round_ = allocation.round
    at = position(round_, pipeline)
    multiple = float(allocation.multiple[at])
    facts: dict[str, Any] = {
        "pipeline": pipeline,
        "analyst": round_.analysts[int(round_.owner[at])],
        "scheduler": allocation.scheduler,
        "served": multiple > 0,
        "multiple": multiple,
    }
    if multiple > 0:
        return Explanation(**facts, reason=None)
    denial = next(each for each in allocation.denied if each.pipeline == pipeline)
    shorts = sorted(_shorts(allocation, at, denial.shortages), key=lambda each: -each.short)
    facts |= {"reason": denial.reason, "shortages": tuple(shorts)}
    if decide is None:
        return Explanation(**facts)
    tried = _Tried(allocation, at, decide, progress)
    return Explanation(
        **facts,
        smaller=tried.smaller(),
        beta=None if at_beta is None else tried.beta(at_beta),
        rounds_ahead=tried.rounds_ahead(),
        unlocked=tried.unlocked(),
    )


def position(round_: Round, pipeline: str) -> int:
    """Where the pipeline stands in the round."""
    if pipeline not in round_.pipelines:
        near = difflib.get_close_matches(pipeline, round_.pipelines, n=3)
        hint = f"one of {', '.join(near)}" if near else ""
        raise InputError(f"there is no pipeline {pipeline[:60]!r} among the {len(round_.pipelines)} here", hint=hint)
    return round_.pipelines.index(pipeline)


def _shorts(allocation: Allocation, pipeline: int, shortages: Sequence[Any]) -> Iterator[Short]:
    """Each shortage with who has the rest of the block."""
    round_ = allocation.round
    entries, charged = allocation.charges
    owner = np.repeat(np.arange(len(round_.pipelines)), np.diff(round_.start))[entries]
    for each in shortages:
        asked, left, short = (np.atleast_1d(value) for value in (each.asked, each.left, each.short))
        order = int(np.argmin(short))
        block = round_.blocks.index(each.block)
        here = round_.block[entries] == block
        yield Short(
            block=each.block,
            order=None if round_.orders is None else round_.orders[order],
            asked=float(asked[order]),
            left=float(left[order]),
            short=float(short[order]),
            capacity=float(epsilons(round_.capacity[block, order])),
            locked=float(epsilons(round_.capacity[block, order] - round_.unlocked[block, order])),
            spent_before=float(epsilons(round_.spent[block, order])),
            granted=float(np.sum(charged[here, order]) / UNITS_PER_EPSILON),
            used_by=_users(round_, owner[here], charged[here, order]),
        )


def _users(round_: Round, pipelines: Any, amounts: Any) -> tuple[Use, ...]:
    """The analysts who have some of a block, with their pipelines, most first."""
    uses: dict[int, tuple[list[str], int]] = {}
    for at, amount in zip(pipelines.tolist(), amounts.tolist(), strict=True):
        names, total = uses.get(int(round_.owner[at]), ([], 0))
        uses[int(round_.owner[at])] = ([*names, round_.pipelines[at]], total + amount)
    return tuple(
        Use(analyst=round_.analysts[owner], pipelines=tuple(names), amount=total / UNITS_PER_EPSILON)
        for owner, (names, total) in sorted(uses.items(), key=lambda each: -each[1][1])
    )


class _Tried:
    """The scheduler asked again and again about one pipeline, on rounds that differ in one thing."""

    def __init__(self, allocation: Allocation, pipeline: int, decide: Decide, progress: Progress | None) -> None:
        self.allocation, self.round = allocation, allocation.round
        self.pipeline, self.name = pipeline, allocation.round.pipelines[pipeline]
        self.decide, self.progress = decide, progress
        self.entries = np.arange(self.round.start[pipeline], self.round.start[pipeline + 1])
        self.count = 0

    def smaller(self) -> Smaller | None:
        """The largest part of its demand that is served, as far as a search along FACTORS and halvings finds it."""
        refused = 1.0
        for factor in FACTORS:
            if self._served_with(factor):
                break
            refused = factor
        else:
            return None
        for _ in range(HALVINGS):
            middle = 0.5 * (factor + refused)
            if self._served_with(middle):
                factor = middle
            else:
                refused = middle
        units = self._units(factor)
        table = epsilons(units)
        amounts = (table if self.round.orders is not None else table[:, 0]).tolist()
        names = [self.round.blocks[each] for each in self.round.block[self.entries]]
        return Smaller(factor=factor, demand=dict(zip(names, amounts, strict=True)))

    def beta(self, at_beta: AtBeta) -> float | None:
        """The nearest beta at which the scheduler serves it."""
        now = self.allocation.terms.beta
        tried = (each for each in sorted(BETAS, key=lambda each: abs(_bend(each) - _bend(now))) if each != now)
        return next((each for each in tried if self._served(self.round, at_beta(each))), None)

    def rounds_ahead(self) -> int | None:
        """In which of the rounds to come it is served if nothing new arrives."""
        allocation = self.allocation
        for ahead in range(1, ROUNDS_AHEAD_MAX + 1):
            if not len(allocation.served):
                return None  # nothing would change from here on
            allocation = self._decided(after(allocation), self.decide)
            if self.name in {allocation.round.pipelines[at] for at in allocation.served}:
                return ahead
        return None

    def unlocked(self) -> bool | None:
        """Whether it is served once all of every block is open."""
        if np.array_equal(self.round.unlocked, self.round.capacity):
            return None
        return self._served(all_unlocked(self.round), self.decide)

    def _units(self, factor: float) -> Any:
        return np.maximum(np.floor(self.round.cost[self.entries] * factor), 1).astype(np.int64)

    def _served_with(self, factor: float) -> bool:
        return self._served(with_demand(self.round, self.entries, self._units(factor)), self.decide)

    def _served(self, round_: Round, decide: Decide) -> bool:
        return bool(self._decided(round_, decide).multiple[self.pipeline] > 0)

    def _decided(self, round_: Round, decide: Decide) -> Allocation:
        self.count += 1
        if self.progress is not None:
            self.progress(self.count, len(FACTORS) + HALVINGS + len(BETAS) + ROUNDS_AHEAD_MAX)
        return decide(round_)


def _bend(beta: float) -> float:
    """Preferences from 0 to infinity on a scale from 0 to 1."""
    return 1.0 if np.isinf(beta) else beta / (1.0 + beta)
