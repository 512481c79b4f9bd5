"""DPBalance on whole rounds: the worked example, set-aside, caps, refill, several orders, and both readings."""

from __future__ import annotations

import numpy as np
import pytest

import dpbalance
from dpbalance import Block, Pipeline, Round
from dpbalance.allocation.valuation import Terms, Valuation, analyst_weights
from dpbalance.errors import BudgetExceeded, OptionError
from dpbalance.scheduler import kernel_round
from dpbalance.scheduler.dpbalance import AS_PRINTED, DPBalance, _Problem


def served(allocation) -> dict[str, float]:
    return {grant.pipeline: grant.multiple for grant in allocation.grants}


def test_the_worked_example_comes_out_as_in_the_paper() -> None:
    allocation = dpbalance.scheduler("dpbalance", beta=2.2).decide(dpbalance.worked_example())
    assert served(allocation) == {"P1": 1.0, "P3": 1.25}
    assert allocation.metrics.efficiency == pytest.approx(1.0)
    offered = {each.analyst: each.offered for each in allocation.analysts}
    assert offered == {"alice": pytest.approx(0.5), "bob": pytest.approx(0.5)}
    assert allocation.check().gap < 1e-8


@pytest.mark.parametrize("beta", [0.0, 0.2, 0.5, 1.0, 2.2, 5.0, 20.0, np.inf])
def test_every_beta_is_certified_on_the_papers_round(beta: float) -> None:
    proof = DPBalance(beta=beta).decide(dpbalance.paper_round(seed=3)).check()
    assert proof.violation == 0
    assert proof.gap <= 1e-8


def test_beta_turns_from_efficiency_to_fairness_in_what_is_offered() -> None:
    round_ = dpbalance.paper_round(seed=1)
    offers = []
    for beta in (0.2, 1.0, 5.0):
        allocation = DPBalance(beta=beta).decide(round_)
        offers.append(np.array([each.offered * each.weight for each in allocation.analysts]))
    sums, smallest = [o.sum() for o in offers], [o.min() for o in offers]
    assert sums == sorted(sums, reverse=True)
    assert smallest == sorted(smallest)


def test_a_pipeline_that_cannot_be_met_does_not_starve_its_analyst() -> None:
    blocks = [Block(id="old", capacity=1.0, spent=0.99), Block(id="new", capacity=1.0)]
    round_ = Round.build(
        blocks,
        [
            Pipeline(id="hopeless", analyst="a", demand={"old": 0.5, "new": 0.1}),
            Pipeline(id="fine", analyst="a", demand={"new": 0.2}),
            Pipeline(id="other", analyst="b", demand={"new": 0.2}),
        ],
    )
    allocation = DPBalance().decide(round_)
    assert set(served(allocation)) == {"fine", "other"}
    denial = allocation.denied[0]
    assert (denial.pipeline, denial.reason) == ("hopeless", "exceeds-left")
    shortage = denial.shortages[0]
    assert (shortage.block, shortage.asked, shortage.left, shortage.short) == ("old", 0.5, 0.01, 0.49)


def test_caps_on_multiples_hold_from_the_pipeline_and_from_the_option() -> None:
    round_ = Round.build(
        [Block(id="B", capacity=1.0)],
        [
            Pipeline(id="P", analyst="a", demand={"B": 0.1}),
            Pipeline(id="Q", analyst="b", demand={"B": 0.1}, max_multiple=2),
        ],
    )
    free = served(DPBalance().decide(round_))
    assert free["Q"] == 2.0
    assert free["P"] == pytest.approx(8.0)
    assert served(DPBalance(max_multiple=1).decide(round_)) == {"P": 1.0, "Q": 1.0}


def test_refill_leaves_nothing_that_still_fits() -> None:
    plain = DPBalance(max_multiple=1)
    refilled = DPBalance(max_multiple=1, leftover="refill")
    more = 0
    for seed in range(10):
        round_ = dpbalance.paper_round(seed=seed)
        first, second = plain.decide(round_), refilled.decide(round_)
        second.check()
        assert set(served(first)) <= set(served(second))
        assert all(denial.reason != "not-chosen" for denial in second.denied)
        more += len(second.grants) - len(first.grants)
    assert more > 0


def test_the_printed_reading_overspends_and_is_caught() -> None:
    allocation = DPBalance(constraint=AS_PRINTED).decide(dpbalance.paper_round())
    assert any("printed" in note for note in allocation.notes)
    with pytest.raises(BudgetExceeded):
        allocation.check()
    assert allocation.proof.violation > 0


def test_with_several_orders_one_that_does_not_bind_is_chosen() -> None:
    """At the second order everything fits; the first alone would serve one of the two."""
    round_ = Round.build(
        [Block(id="B", capacity=(1.0, 1.0))],
        [
            Pipeline(id="P", analyst="a", demand={"B": (0.9, 0.4)}),
            Pipeline(id="Q", analyst="b", demand={"B": (0.9, 0.4)}),
        ],
        orders=[2.0, 8.0],
    )
    allocation = DPBalance(max_multiple=1).decide(round_)
    assert served(allocation) == {"P": 1.0, "Q": 1.0}
    allocation.check()
    assert allocation.left.tolist() == [[-800_000_000, 200_000_000]]


def test_exact_ties_with_the_budget_are_served() -> None:
    for parts in (2, 3, 5, 7, 10):
        amount = 1.0 / 8
        round_ = Round.build(
            [Block(id="B", capacity=amount * parts)],
            [Pipeline(id=f"P{at}", analyst=f"a{at}", demand={"B": amount}) for at in range(parts)],
        )
        assert len(DPBalance(max_multiple=1).decide(round_).grants) == parts


def test_the_kernels_survey_agrees_with_the_plain_valuation() -> None:
    for seed in range(5):
        round_ = dpbalance.paper_round(seed=seed)
        problem, valuation = _Problem(round_, DPBalance()), Valuation.of(round_, Terms())
        np.testing.assert_array_equal(problem.admitted, valuation.feasible)
        np.testing.assert_allclose(problem.dominant, valuation.dominant, rtol=1e-14)
        weight = analyst_weights(round_, Terms(), problem.dominant, problem.admitted)
        np.testing.assert_allclose(weight, valuation.weight, rtol=1e-14)


def test_whole_charges_of_a_multiple_never_pass_the_budget() -> None:
    random = dpbalance.clock.chance(2)
    for _ in range(300):
        demand = random.integers(1, 2**40, (2, 4))
        x = 1.0 + random.uniform(0, 3, 4)
        exact = [
            [dpbalance.amounts.multiplied_exactly(int(d), float(t)) for d, t in zip(r, x, strict=True)] for r in demand
        ]
        for row, wanted in zip(demand, exact, strict=True):
            assert [kernel_round.ceil_product(d, t) for d, t in zip(row, x, strict=True)] == wanted
        budget = np.array([sum(row) for row in exact]) - random.integers(0, 3, 2)
        kernel_round.whole_multiples(demand, budget, np.full(4, np.inf), x)
        used = [
            sum(dpbalance.amounts.multiplied_exactly(int(d), float(t)) for d, t in zip(row, x, strict=True))
            for row in demand
        ]
        assert all(u <= b for u, b in zip(used, budget, strict=True))
        assert np.all(x >= 1)


def test_an_analyst_with_very_many_different_rows_is_packed_too() -> None:
    random = dpbalance.clock.chance(4)
    names = [f"B{at}" for at in range(300)]
    pipelines = [
        Pipeline(
            id=f"P{at}",
            analyst="a" if at % 2 else "b",
            demand=dict(zip(names, random.uniform(0.01, 0.2, 300).tolist(), strict=True)),
        )
        for at in range(20)
    ]
    allocation = DPBalance().decide(Round.build([Block(id=n, capacity=1.0) for n in names], pipelines))
    assert len(allocation.grants) >= 2
    allocation.check()


def test_an_empty_round_is_an_empty_answer() -> None:
    for blocks in ([], [Block(id="B", capacity=1.0)]):
        allocation = DPBalance().decide(Round.build(blocks, []))
        assert allocation.grants == ()
        assert allocation.metrics.fairness is None
        allocation.check()


@pytest.mark.parametrize(
    "bad",
    [
        {"beta": -1},
        {"beta": float("nan")},
        {"lam": -1},
        {"max_multiple": 0.5},
        {"leftover": "keep"},
        {"constraint": "no"},
        {"tau": 0},
    ],
)
def test_bad_options_are_refused(bad: dict) -> None:
    with pytest.raises(OptionError):
        DPBalance(**bad)
