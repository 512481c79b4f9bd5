"""Step 1: are shares feasible for certain, and as good as the certificate says?"""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
from instances import SHARE_KINDS, large_shares_instance, shares_instance
from scipy.optimize import linprog

from dpbalance.allocation.certificate import log_welfare
from dpbalance.clock import chance
from dpbalance.errors import OptionError
from dpbalance.scheduler import alpha_fair


def holds_exactly(gamma, left, x) -> bool:
    """Every row in rational arithmetic on the doubles."""
    multiples = [Fraction(float(each)) for each in x]
    return all(
        sum((Fraction(float(g)) * m for g, m in zip(row, multiples, strict=True) if g), Fraction(0))
        <= Fraction(float(c))
        for row, c in zip(gamma, left, strict=True)
    )


def test_the_reference_cases_are_met(cases: Path) -> None:
    files = sorted((cases / "alpha_fair").glob("*.json"))
    assert len(files) >= 50
    for file in files:
        case = json.loads(file.read_text())
        solution = alpha_fair.solve(case["G"], case["c"], case["a"], float(case["beta"]), upper=case["u"])
        assert holds_exactly(case["G"], case["c"], solution.x), file.name
        assert abs(solution.log_welfare - float(case["log_W"])) <= 1e-8, file.name
        assert solution.gap <= 1e-8, file.name
        if case["x_unique"]:
            known = [
                (ours, theirs) for ours, theirs in zip(solution.x, case["x_star"], strict=True) if theirs is not None
            ]
            assert all(abs(ours - theirs) <= 1e-3 * abs(theirs) for ours, theirs in known), file.name


@pytest.mark.parametrize("part", range(4))
def test_two_thousand_degenerate_instances_are_certified(part: int) -> None:
    random = chance(7000 + part)
    fixed = [0.0, 0.01, 0.2, 0.5, 1.0, 2.2, 5.0, 20.0, 50.0, np.inf]
    for number in range(500):
        kind = SHARE_KINDS[number % len(SHARE_KINDS)]
        beta = (
            float(random.choice(fixed)) if number % 3 == 0 else float(np.exp(random.uniform(np.log(0.01), np.log(50))))
        )
        instance = shares_instance(random, kind)
        solution = alpha_fair.solve(**instance, beta=beta)
        where = f"{part}/{number} {kind} beta={beta}"
        assert solution.gap is None or solution.gap <= 1e-8, where
        if number % 5 == 0:
            assert holds_exactly(instance["gamma"], instance["left"], solution.x), where
        if instance["upper"] is not None:
            assert np.all(solution.x <= instance["upper"]), where


@pytest.mark.parametrize("beta", [0.3, 1.0, 2.2, 20.0])
def test_a_cap_that_binds_where_a_row_does_is_met_to_the_last_digit(beta: float) -> None:
    """Half of the block each, which is all that the first can use."""
    solution = alpha_fair.solve([[0.5, 0.7]], [1.0], [1.0, 1.0], beta, upper=[1.0, 1.0])
    np.testing.assert_allclose(solution.x, [1.0, 5 / 7], rtol=1e-12)
    assert solution.gap <= 1e-8


def test_lexicographic_max_min_leaves_everyone_a_bottleneck() -> None:
    """Max-min fair: each analyst has a full row (or its bound) on which nobody gets more than it does."""
    random = chance(3)
    for number in range(200):
        instance = shares_instance(random, SHARE_KINDS[number % len(SHARE_KINDS)])
        gamma, left, upper = instance["gamma"], instance["left"], instance["upper"]
        x = alpha_fair.solve(**instance, beta=np.inf).x
        y = gamma.max(axis=0) * instance["weight"] * x
        full = gamma @ x >= left * (1 - 1e-9)
        for analyst in np.flatnonzero(x > 0):
            rows = full & (gamma[:, analyst] > 0)
            at_bound = upper is not None and x[analyst] >= upper[analyst] * (1 - 1e-9)
            sharers = [np.max(y[(gamma[k] > 0) & (x > 0)]) for k in np.flatnonzero(rows)]
            assert at_bound or any(y[analyst] >= most * (1 - 1e-9) for most in sharers)


def test_infinite_lambda_is_the_linear_program() -> None:
    random = chance(5)
    for number in range(100):
        instance = shares_instance(random, SHARE_KINDS[number % len(SHARE_KINDS)])
        gamma, left, upper = instance["gamma"], instance["left"], instance["upper"]
        solution = alpha_fair.solve(**instance, beta=2.2, lam=np.inf)
        value = gamma.max(axis=0) * instance["weight"]
        dead = ((gamma > 0) & (left[:, None] <= 0)).any(axis=0) | (value == 0)
        bounds = [(0, 0 if dead[i] else (None if upper is None else upper[i])) for i in range(len(value))]
        best = -linprog(-value / value.max(), A_ub=gamma, b_ub=left, bounds=bounds).fun * value.max()
        assert value @ solution.x == pytest.approx(best, rel=1e-7)
        assert solution.gap is None or solution.gap <= 1e-8


def test_lambda_zero_gives_equal_utilities_that_cannot_grow() -> None:
    random = chance(6)
    for number in range(50):
        instance = shares_instance(random, SHARE_KINDS[number % 4])
        solution = alpha_fair.solve(**instance, beta=2.2, lam=0)
        y = (instance["gamma"].max(axis=0) * instance["weight"] * solution.x)[solution.x > 0]
        if len(y):
            assert np.ptp(np.log(y)) < 1e-12
            assert solution.gap <= 1e-8


@pytest.mark.parametrize("beta", [0.3, 0.5, 2.2, 5.0])
def test_more_lambda_buys_more_sum_and_is_certified(beta: float) -> None:
    random = chance(8)
    for number in range(12):
        instance = shares_instance(random, "generic" if number % 2 else "wild_weights")
        value = instance["gamma"].max(axis=0) * instance["weight"]
        strength = abs(1 - beta) / beta
        sums = []
        for factor in (1.0, 1.5, 4.0, 100.0):
            solution = alpha_fair.solve(**instance, beta=beta, lam=strength * factor)
            assert solution.gap <= 1e-8, (number, factor)
            sums.append(float(value @ solution.x))
        assert all(later >= earlier * (1 - 1e-7) for earlier, later in pairwise(sums))


def test_small_lambda_finds_the_best_of_a_fine_grid() -> None:
    random = chance(9)
    for beta, lam in ((0.5, 0.5), (2.2, 0.3), (5.0, 0.2)):
        gamma = random.uniform(0.1, 1.0, (3, 2))
        weight = np.array([1.0, 1.2])
        scale = gamma.max(axis=0) * weight
        strength = abs(1 - beta) / beta

        def objective(y: np.ndarray, beta: float = beta, lam: float = lam, strength: float = strength) -> float:
            return strength * log_welfare(y, beta) + (lam - strength) * float(np.log(np.sum(y)))

        solution = alpha_fair.solve(gamma, np.ones(3), weight, beta, lam=lam)
        assert solution.gap is None
        best = -np.inf
        for share in np.linspace(1e-3, 1 - 1e-3, 2000):
            ray = np.array([share, 1 - share])
            most = 1.0 / np.max(gamma @ (ray / scale))
            best = max(best, objective(ray * most))
        assert objective(solution.x * scale) >= best - 1e-6


def test_sparse_and_dense_input_give_the_same_answer() -> None:
    instance = shares_instance(chance(1), "generic")
    dense = alpha_fair.solve(**instance, beta=2.2)
    for form in (scipy.sparse.csr_matrix, scipy.sparse.csc_array, scipy.sparse.coo_matrix):
        sparse = alpha_fair.solve(**{**instance, "gamma": form(instance["gamma"])}, beta=2.2)
        np.testing.assert_array_equal(sparse.x, dense.x)


@pytest.mark.parametrize("beta", [0.2, 1.0, 5.0])
def test_a_platform_sized_instance_is_certified(beta: float) -> None:
    solution = alpha_fair.solve(**large_shares_instance(chance(2), 60, 2000), beta=beta)
    assert solution.gap <= 1e-10


@pytest.mark.parametrize(
    "bad",
    [
        {"beta": -1.0},
        {"beta": float("nan")},
        {"lam": -0.5},
        {"left": [1.0]},
        {"left": [float("nan"), 1.0]},
        {"weight": [1.0, -1.0]},
        {"gamma": [[float("inf"), 0.1], [0.1, 0.1]]},
        {"gamma": [[-0.1, 0.1], [0.1, 0.1]]},
        {"upper": [1.0]},
    ],
)
def test_bad_input_is_refused_in_words(bad: dict) -> None:
    good = {"gamma": [[0.5, 0.2], [0.1, 0.3]], "left": [1.0, 1.0], "weight": [1.0, 1.0], "beta": 2.2}
    with pytest.raises(OptionError):
        alpha_fair.solve(**{**good, **bad})
