"""What does an audit say? One answer about one property, with the number that decides it and whoever shows it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

Answer = Literal["holds", "fails", "not-found"]

TOLD_MAX = 1e6
"""Larger ratios are told as this one: somebody has nothing, and anything is infinitely more."""

PROPERTIES = {
    "pareto-efficiency": "nobody can get more without somebody getting less",
    "sharing-incentive": "everybody gets at least what an equal part of every block would be worth to it",
    "sharing-incentive-entitled": "the same against its entitlement instead of an equal part",
    "envy-freeness": "nobody would prefer what another one got",
    "envy-freeness-entitled": "the same, by the head of their entitlements",
    "no-waste": "nobody was denied a pipeline that would still fit",
    "served-incentive": "everybody is served as many pipelines as its part, along its total demand, could serve",
    "strategy-proofness-strong": "nobody gets more by misstating what it needs",
    "strategy-proofness-weak": "nobody gets more by misstating what it needs without losing elsewhere",
}
"""Every property that is looked at, in one sentence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Whether a property holds, in one of the two views of an allocation."""

    property: str
    view: Literal["divisible", "granted"]
    answer: Answer
    """`not-found`: neither proven nor refuted; nothing against it turned up within the limits of the search."""
    number: float | None
    """What decides it; None where there is nothing to decide."""
    meaning: str
    """What the number is, and where the line lies."""
    culprit: str | None = None
    """The analyst who shows that it fails."""
    counterexample: Mapping[str, Any] = field(default_factory=dict)
    """What shows that it fails: enough to check it by hand."""
    note: str = ""


def answer(good: bool, proven: bool = True) -> Answer:
    """Holds if nothing was found and that is proven, fails if something was found."""
    if not good:
        return "fails"
    return "holds" if proven else "not-found"
