"""Does an analyst of priority m count as m analysts who share what it gets?"""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from instances import SHARE_KINDS, shares_instance

from dpbalance.allocation import fairness
from dpbalance.allocation.metrics import measure
from dpbalance.clock import chance
from dpbalance.demand import Pipeline
from dpbalance.errors import BudgetExceeded, InputError, OptionError
from dpbalance.market import Block, Round, round_from_json, round_to_json, worked_example
from dpbalance.scheduler import alpha_fair, scheduler


@pytest.mark.parametrize("beta", [0.05, 0.5, 1.0, 2.2, 20.0, np.inf])
def test_shares_with_priorities_are_those_of_as_many_analysts(beta: float) -> None:
    random = chance(11)
    for number in range(60):
        instance = shares_instance(random, SHARE_KINDS[number % len(SHARE_KINDS)])
        count = instance["gamma"].shape[1]
        priority = random.integers(1, 4, count)
        heads = np.repeat(np.arange(count), priority)
        upper = None if instance["upper"] is None else (instance["upper"] / priority)[heads]
        one = alpha_fair.solve(**instance, beta=beta, priority=priority)
        many = alpha_fair.solve(
            instance["gamma"][:, heads], instance["left"], instance["weight"][heads], beta, upper=upper
        )
        if not np.isfinite(one.log_welfare):
            assert not np.any(many.x)
            continue
        assert abs(one.log_welfare - many.log_welfare) <= 1e-9
        assert one.gap <= 1e-8
        if 0.2 < beta < 10:
            np.testing.assert_allclose(np.bincount(heads, many.x, count), one.x, rtol=1e-3)


def _crowded(priorities: dict[str, float] | None = None) -> Round:
    """Two analysts with the same forty small pipelines on one block."""
    pipelines = [
        Pipeline(id=f"{name}{at}", analyst=name, demand={"B": 0.02}, max_multiple=1.0)
        for name in ("ann", "ben")
        for at in range(40)
    ]
    return Round.build([Block(id="B", capacity=1.0)], pipelines, priorities=priorities)


def test_twice_the_priority_is_twice_the_share() -> None:
    for beta in (1.0, 2.2, float("inf")):
        allocation = scheduler("dpbalance", beta=beta).decide(_crowded({"ann": 3.0, "ben": 2.0}))
        allocation.check()
        ann, ben = allocation.analysts
        assert ann.offered == pytest.approx(0.6, rel=1e-6)
        assert ben.offered == pytest.approx(0.4, rel=1e-6)
        assert allocation.metrics.jain == pytest.approx(1.0, abs=1e-2)
    even = scheduler("dpbalance").decide(_crowded())
    assert even.analysts[0].offered == pytest.approx(0.5, rel=1e-6)


def test_metrics_judge_utility_by_priority() -> None:
    utility, judged = np.array([0.6, 0.2]), np.array([True, True])
    weighted = measure(utility, judged, 2, 2.2, np.array([3.0, 1.0]))
    cloned = measure(np.array([0.2, 0.2, 0.2, 0.2]), np.ones(4, dtype=bool), 2, 2.2, np.ones(4))
    assert weighted.fairness == pytest.approx(cloned.fairness)
    assert weighted.jain == pytest.approx(cloned.jain)
    assert weighted.utility_min == pytest.approx(cloned.utility_min)
    assert weighted.efficiency == pytest.approx(cloned.efficiency)
    for beta in (0.0, 0.5, 1.0, 2.2, np.inf):
        clones = fairness(np.array([0.2, 0.2, 0.2, 0.1]), beta)
        assert fairness(np.array([0.6, 0.1]), beta, np.array([3.0, 1.0])) == pytest.approx(clones)


def test_a_round_keeps_its_priorities_and_only_those_that_say_something() -> None:
    assert "priorities" not in round_to_json(worked_example())
    document = round_to_json(_crowded({"ann": 2.5}))
    assert document["priorities"] == {"ann": 2.5}
    assert round_from_json(document).priority.tolist() == [2.5, 1.0]
    subset = _crowded({"ben": 4.0})
    only_ben = np.flatnonzero(subset.owner == 1)
    later = subset.subset(only_ben, now=1.0, spent=subset.spent, unlocked=subset.unlocked)
    assert later.priority.tolist() == [4.0]


@pytest.mark.parametrize(
    ("priorities", "culprit"),
    [
        ({"carl": 2.0}, "carl"),
        ({"ann": 0.0}, "ann"),
        ({"ann": float("nan")}, "ann"),
        ({"ann": 1e9}, "ann"),
        ({"ann": "high"}, "ann"),
    ],
)
def test_a_bad_priority_is_refused_by_the_name_of_its_analyst(priorities: dict, culprit: str) -> None:
    with pytest.raises(InputError, match=culprit):
        _crowded(priorities)


def test_the_kernel_refuses_priorities_that_are_not_above_zero() -> None:
    with pytest.raises(OptionError):
        alpha_fair.solve([[0.5, 0.5]], [1.0], [1.0, 1.0], 2.2, priority=[1.0, 0.0])


def test_a_decision_that_counted_otherwise_fails_its_check() -> None:
    allocation = scheduler("dpbalance").decide(_crowded({"ann": 3.0}))
    assert allocation.shares is not None
    told = dataclasses.replace(allocation, shares=dataclasses.replace(allocation.shares, priority=np.ones(2)))
    with pytest.raises(BudgetExceeded, match="priorities"):
        told.check()
