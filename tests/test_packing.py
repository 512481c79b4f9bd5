"""Step 2: as many as possible, then the most valuable; checked against another program and exact arithmetic."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from instances import PACKING_KINDS, packing_instance
from scipy.optimize import Bounds, LinearConstraint, linprog, milp
from test_alpha_fair import holds_exactly

from dpbalance.clock import chance, stopwatch
from dpbalance.errors import OptionError
from dpbalance.scheduler import packing
from dpbalance.scheduler.kernel_packing import spend


def by_another_program(gamma, left, value, upper) -> tuple[int, float]:
    """The lexicographic optimum by two mixed-integer programs of SciPy."""
    able = np.all(gamma <= left[:, None], axis=0) & (upper is None or upper >= 1)
    index = np.flatnonzero(able)
    if not len(index):
        return 0, 0.0
    rows = gamma[left > 0][:, index] / left[left > 0, None]
    n, worth = len(index), value[index] / value[index].max()
    wide = np.min(np.divide(1.0, rows, out=np.full_like(rows, np.inf), where=rows > 0), axis=0)
    if upper is not None:
        wide = np.minimum(wide, upper[index])
    rules = [
        LinearConstraint(np.hstack([rows, rows]), -np.inf, 1 + 1e-12),
        LinearConstraint(np.hstack([-np.diag(wide - 1), np.eye(n)]), -np.inf, 0),
    ]
    whole, counted = np.r_[np.ones(n), np.zeros(n)], np.r_[np.ones(n), np.zeros(n)]
    space = Bounds(np.zeros(2 * n), np.r_[np.ones(n), wide - 1])
    first = milp(-counted, constraints=rules, integrality=whole, bounds=space, options={"mip_rel_gap": 0})
    count = round(-first.fun)
    rules.append(LinearConstraint(counted[None, :], count, count))
    second = milp(-np.r_[worth, worth], constraints=rules, integrality=whole, bounds=space, options={"mip_rel_gap": 0})
    return count, -second.fun * value[index].max()


def test_the_reference_cases_are_met(cases: Path) -> None:
    files = sorted((cases / "packing").glob("*.json"))
    assert len(files) >= 50
    for file in files:
        case = json.loads(file.read_text())
        answer = packing.solve(case["G"], case["b"], np.array(case["mu"]) * np.array(case["a"]))
        assert holds_exactly(case["G"], case["b"], answer.x), file.name
        assert len(answer.served) == case["count"], file.name
        assert answer.value == pytest.approx(case["value"], rel=1e-7), file.name
        assert np.all((answer.x == 0) | (answer.x >= 1)), file.name


@pytest.mark.parametrize("part", range(2))
def test_five_hundred_instances_agree_with_a_mixed_integer_program(part: int) -> None:
    random = chance(500 + part)
    for number in range(250):
        kind = PACKING_KINDS[number % len(PACKING_KINDS)]
        # the larger ones are where a greedy first choice is not already the best
        large = number % 5 == 0
        instance = packing_instance(random, kind, 22 if large else None, 8 if large and kind == "many_rows" else None)
        answer = packing.solve(**instance)
        where = f"{part}/{number} {kind}"
        assert answer.proven, where
        assert holds_exactly(instance["gamma"], instance["left"], answer.x), where
        assert np.all((answer.x == 0) | (answer.x >= 1)), where
        count, value = by_another_program(**instance)
        assert len(answer.served) == count, where
        assert answer.value == pytest.approx(value, rel=1e-6), where


def test_more_rows_than_are_solved_at_once_are_all_kept() -> None:
    random = chance(4)
    for rows in (100, 400):
        instance = packing_instance(random, "many_rows", 9, rows)
        answer = packing.solve(**instance)
        assert holds_exactly(instance["gamma"], instance["left"], answer.x)
        assert len(answer.served) == by_another_program(**instance)[0]


def test_the_fallback_gives_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    random = chance(12)
    for kind in ("many_rows", "paper", "capped"):
        instance = packing_instance(random, kind, 15, 6)
        ours = packing.solve(**instance)
        monkeypatch.setattr(packing, "NODES_MAX", 1)
        theirs = packing.solve(**instance)
        monkeypatch.undo()
        assert len(ours.served) == len(theirs.served)
        assert theirs.value == pytest.approx(ours.value, rel=1e-7)


def test_the_small_simplex_agrees_with_a_linear_program_and_its_prices_prove_it() -> None:
    random = chance(0)
    for number in range(400):
        height, width = random.integers(1, 30), random.integers(1, 26)
        rows = random.uniform(0.005, 0.3, (height, width)) * (random.random((height, width)) < 0.7)
        rest = np.ones(height) if number % 3 == 0 else random.uniform(0, 1, height)
        value = random.uniform(0.1, 1, width)
        cap = np.where(random.random(width) < 0.7, random.uniform(0, 2), 50.0)
        extra, price = spend(rows, rest, value, cap)
        best = -linprog(-value, A_ub=rows, b_ub=rest, bounds=[(0, each) for each in cap]).fun
        assert np.all(rows @ extra <= rest + 1e-9)
        assert value @ extra == pytest.approx(best, abs=1e-7)
        assert rest @ price + np.maximum(value - price @ rows, 0) @ cap == pytest.approx(best, abs=1e-7)


def test_nobody_asking_or_nothing_left_is_an_answer_too() -> None:
    assert packing.solve(np.zeros((2, 0)), [1.0, 1.0], []).served.tolist() == []
    assert packing.solve([[0.5]], [0.0], [1.0]).served.tolist() == []


@pytest.mark.parametrize(
    "bad", [{"gamma": [[float("nan")]]}, {"left": [-1.0]}, {"value": [1.0, 2.0]}, {"upper": [1.0, 2.0]}]
)
def test_bad_input_is_refused_in_words(bad: dict) -> None:
    with pytest.raises(OptionError):
        packing.solve(**{"gamma": [[0.5]], "left": [1.0], "value": [1.0], **bad})


@pytest.mark.parametrize("rows", [20, 90])
def test_a_packing_too_hard_to_prove_ends_soon_and_holds(rows: int) -> None:
    """Hundreds of pipelines of one analyst, no two alike: nodes end the search, the best found stays."""
    random = chance(5)
    demand = random.integers(5 * 10**7, 15 * 10**7, (rows, 400))
    budget = (demand.sum(axis=1) * random.uniform(0.2, 0.6, rows)).astype(np.int64)
    began = stopwatch()
    x, proven = packing.solve_whole(demand, budget, random.uniform(0.5, 1.5, 400), np.full(400, np.inf))
    assert not proven
    assert stopwatch() - began < 60  # it takes 2 s on two cores
    assert np.all(demand[:, x > 0].sum(axis=1) <= budget)
    assert np.sum(x > 0) > 60
