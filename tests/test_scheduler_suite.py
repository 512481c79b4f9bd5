"""What must hold for every scheduler? One suite, all of them, on rounds that hypothesis makes up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dpbalance
from dpbalance import Block, Pipeline, Round, Scheduler
from dpbalance.scheduler import scheduler_names

TWELVE = [1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 16.0, 32.0, 64.0]

SETTINGS = [(name, {}) for name in ("dpbalance", "dpf", "dpk", "fcfs", "round-robin", "optimal")] + [
    ("dpbalance", {"beta": 0.5, "leftover": "refill"}),
    ("dpbalance", {"beta": 5.0, "max_multiple": 1.0}),
    ("dpbalance", {"beta": float("inf")}),
    ("dpbalance", {"beta": 0.0}),
    ("dpbalance", {"lam": 3.0}),
    ("dpk", {"recompute_every": 1}),
]


@st.composite
def rounds(draw: st.DrawFn, orders: list[float] | None) -> tuple[list[Block], list[Pipeline]]:
    """Few blocks and pipelines with amounts on a coarse grid, so that ties, exhaustion and overdraft are common."""
    amount = st.integers(1, 40).map(lambda each: each / 40)
    width = 1 if orders is None else len(orders)

    def curve(value: float, slope: float) -> float | list[float]:
        if orders is None:
            return value
        # a negative slope: nothing at all at the later orders, as where a loss underflows
        return [round(max(value * (1 + slope * at), 0.0), 6) for at in range(width)]

    blocks = []
    for at in range(draw(st.integers(1, 4))):
        capacity, slope = draw(amount), draw(st.sampled_from([0.0, 0.1]))
        spent, unlocked = draw(st.sampled_from([0.0, 0.3, 1.0])), draw(st.sampled_from([0.5, 1.0]))
        blocks.append(
            Block(
                id=f"B{at}",
                capacity=curve(capacity, slope),
                spent=curve(capacity * spent, slope),
                unlocked=curve(capacity * unlocked, slope),
            )
        )
    pipelines = []
    for at in range(draw(st.integers(0, 9))):
        wanted = draw(st.lists(st.integers(0, len(blocks) - 1), min_size=1, max_size=3, unique=True))
        pipelines.append(
            Pipeline(
                id=f"P{at}",
                analyst=f"a{draw(st.integers(0, 3))}",
                demand={f"B{b}": curve(draw(amount), draw(st.sampled_from([0.0, 0.3, 1.0, -0.2]))) for b in wanted},
                submitted=-float(draw(st.integers(0, 3))),
                weight=draw(st.sampled_from([1.0, 1.0, 2.0, 0.5])),
                loss=draw(st.sampled_from([1.0, 0.5])),
                max_multiple=draw(st.sampled_from([None, None, 1.0, 2.5, 5 / 3])),
            )
        )
    return blocks, pipelines


@pytest.mark.parametrize(("name", "options"), SETTINGS, ids=lambda each: str(each) if isinstance(each, str) else "")
@pytest.mark.parametrize("orders", [None, TWELVE], ids=["one-order", "twelve-orders"])
class TestEveryScheduler:
    """Feasible, one-or-more, deterministic, blind to the order of the input, nobody from an exhausted block."""

    @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    @given(data=st.data())
    def test_it_keeps_the_promises(self, name: str, options: dict, orders: list[float] | None, data) -> None:
        blocks, pipelines = data.draw(rounds(orders))
        scheduler = dpbalance.scheduler(name, **options)
        assert isinstance(scheduler, Scheduler)
        round_ = Round.build(blocks, pipelines, orders=orders)
        allocation = scheduler.decide(round_)
        allocation.check()
        multiple = allocation.multiple
        assert np.all((multiple == 0) | (multiple >= 1))
        assert np.all(multiple <= round_.max_multiple)
        exhausted = set(np.flatnonzero((round_.available <= 0).all(axis=1)))
        for at in np.flatnonzero(multiple):
            assert not exhausted & set(round_.block[round_.start[at] : round_.start[at + 1]].tolist())
        assert len(allocation.grants) + len(allocation.denied) == len(pipelines)
        for denial in allocation.denied:
            assert len(denial.shortages), denial
            # against the blocks the order nearest to enough counts, against a share the one it is taken at
            least = np.max if denial.reason == "share-spent" else np.min
            worst = max(least(shortage.short) for shortage in denial.shortages)
            assert (worst > 0) == (denial.reason != "not-chosen")

        again = scheduler.decide(round_)
        np.testing.assert_array_equal(again.multiple, multiple)

        shuffled = data.draw(st.permutations(pipelines)), data.draw(st.permutations(blocks))
        other = scheduler.decide(Round.build(shuffled[1], shuffled[0], orders=orders))
        np.testing.assert_array_equal(other.multiple, multiple)

    def test_nothing_to_do_is_done(self, name: str, options: dict, orders: list[float] | None) -> None:
        allocation = dpbalance.scheduler(name, **options).decide(Round.build([], [], orders=orders))
        assert allocation.grants == ()


def test_the_suite_covers_every_built_in() -> None:
    assert {name for name, _ in SETTINGS} == set(scheduler_names())


def test_a_lying_allocation_is_caught() -> None:
    """The check is worth something: overspending, a half multiple and a wrong charge are each refused."""
    allocation = dpbalance.scheduler("dpbalance").decide(dpbalance.worked_example())
    for multiple in ([1.0, 1.0, 1.0, 1.0], [0.5, 0.0, 0.0, 0.0], [np.nan, 0, 0, 0], [np.inf, 0, 0, 0], [-1.0, 0, 0, 0]):
        with pytest.raises(dpbalance.BudgetExceeded):
            replace(allocation, multiple=np.array(multiple), sequence=None).check()
    shares = replace(allocation.shares, take=allocation.shares.take * 1.1)
    with pytest.raises(dpbalance.BudgetExceeded, match="step 1 offers"):
        replace(allocation, shares=shares).check()
    shares = replace(allocation.shares, take=allocation.shares.take * np.array([1.0, 0.5]))
    with pytest.raises(dpbalance.BudgetExceeded, match="proven only"):
        replace(allocation, shares=shares).check()
