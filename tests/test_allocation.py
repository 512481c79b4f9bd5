"""What follows from a decision: metrics, denials, its file, and the certificate's two routes."""

from __future__ import annotations

import json

import numpy as np
import pytest

import dpbalance
from dpbalance import Block, Pipeline, Round
from dpbalance.allocation import allocation_from_json, allocation_to_json, fairness
from dpbalance.allocation.certificate import joint_bound, joint_value, log_welfare, upper_bound
from dpbalance.allocation.valuation import Terms, Valuation
from dpbalance.clock import chance
from dpbalance.errors import FileFormatError


def test_metrics_count_who_was_shut_out() -> None:
    allocation = dpbalance.scheduler("dpf").decide(dpbalance.worked_example())
    metrics = allocation.metrics
    assert (metrics.shut_out, metrics.utility_min, metrics.pipelines) == (1, 0.0, 2)
    assert metrics.efficiency == pytest.approx(0.7)
    assert metrics.jain == pytest.approx(0.5)
    assert metrics.fairness == pytest.approx(-1.0)


def test_fairness_is_the_printed_formula_between_its_limits() -> None:
    utility = np.array([0.2, 0.5, 0.3])
    for beta in (0.5, 2.2, 5.0):
        printed = np.sign(1 - beta) * np.sum((utility / utility.sum()) ** (1 - beta)) ** (1 / beta)
        assert fairness(utility, beta) == pytest.approx(printed, rel=1e-12)
    assert fairness(utility, 1e-9) == pytest.approx(fairness(utility, 0.0), rel=1e-6)
    assert fairness(utility, 1e5) == pytest.approx(fairness(utility, np.inf), rel=1e-3)


def test_waiting_and_loss_weigh_as_defined() -> None:
    round_ = Round.build(
        [Block(id="B", capacity=2.0)],
        [
            Pipeline(id="P", analyst="a", demand={"B": 0.2}, submitted=0.0, loss=0.5),
            Pipeline(id="Q", analyst="a", demand={"B": 0.6}, submitted=100.0, loss=1.0),
        ],
        now=100.0,
    )
    valuation = Valuation.of(round_, Terms(tau=100.0))
    np.testing.assert_allclose(valuation.dominant, [0.1, 0.3])
    np.testing.assert_allclose(valuation.worth, [0.25, 1.0])
    np.testing.assert_allclose(valuation.weight, [(0.1 * 0.5 + 0.3 * 1.0) / 0.4 / 1.5])


def test_a_written_decision_reads_back_the_same() -> None:
    round_ = dpbalance.paper_round(seed=2)
    allocation = dpbalance.scheduler("dpbalance", beta=float("inf")).decide(round_)
    document = json.loads(json.dumps(allocation_to_json(allocation), allow_nan=False))
    again = allocation_from_json(document, round_)
    np.testing.assert_array_equal(again.multiple, allocation.multiple)
    assert again.metrics == allocation.metrics


@pytest.mark.parametrize(
    "change",
    [
        {"format": "x"},
        {"options": []},
        {"options": {"beta": "abc"}},
        {"grants": 3},
        {"grants": [{"pipeline": ["P1"], "multiple": 1}]},
        {"grants": [{"pipeline": "P9", "multiple": 1}]},
        {"grants": [{"pipeline": "P1", "multiple": 0.5}]},
        {"grants": [{"pipeline": "P1", "multiple": 1, "cost": {"B1": 0.1}}]},
        {"grants": [{"pipeline": "P1", "multiple": 1}, {"pipeline": "P1", "multiple": 1}]},
        {"surprise": 1},
    ],
)
def test_a_wrong_decision_file_is_refused_in_words(change: dict) -> None:
    round_ = dpbalance.worked_example()
    document = allocation_to_json(dpbalance.scheduler("dpf").decide(round_))
    with pytest.raises(FileFormatError):
        allocation_from_json({**document, **change}, round_)


@pytest.mark.parametrize("beta", [0.0, 0.05, 0.5, 1.0, 2.2, 20.0, np.inf])
def test_no_feasible_point_passes_the_bound(beta: float) -> None:
    """Weak duality, the certificate's ground: for any prices, any feasible y stays below."""
    random = chance(1)
    for _ in range(200):
        matrix = random.uniform(0.1, 1.0, (4, 5)) * 10.0 ** random.uniform(-2, 2, 5)
        p = random.uniform(0, 1, 4)
        ray = random.uniform(0, 1, 5) / matrix.max(axis=0)
        y = ray / np.max(matrix @ ray)
        q = p @ matrix
        mass = random.choice([0.5, 1.0, 3.0], 5)
        assert log_welfare(y, beta, mass) <= upper_bound(q, float(p.sum()), beta, mass) + 1e-12
        if beta not in (0.0, 1.0, np.inf):
            extra = float(random.uniform(0.1, 5.0))
            assert joint_value(y, beta, extra, mass) <= joint_bound(q, float(p.sum()), beta, extra, mass) + 1e-9


def test_denials_name_the_block_what_was_asked_and_what_is_left() -> None:
    allocation = dpbalance.scheduler("dpf").decide(dpbalance.worked_example())
    denial = next(each for each in allocation.denied if each.pipeline == "P1")
    assert denial.reason == "taken"
    assert [(s.block, s.asked, s.left, s.short) for s in denial.shortages] == [("B1", 0.5, 0.3, 0.2)]
