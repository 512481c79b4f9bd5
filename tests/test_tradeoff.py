"""Is the price of fairness right? Slopes against finite differences, and the frontier against single decisions."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from markets import market, table_market
from test_cli import printed, process

from dpbalance import Block, Pipeline, Round, paper_round, worked_example, write_round
from dpbalance.audit import Divisible, Slope, extremes, frontier, slope
from dpbalance.clock import chance
from dpbalance.scheduler import scheduler


def divided(round_: Round, beta: float) -> Divisible:
    found = Divisible.of_allocation(scheduler("dpbalance", beta=beta).decide(round_))
    assert found is not None
    return found


def _at(market_: Divisible, beta: float) -> Slope | None:
    there = replace(market_, beta=beta)
    return slope(replace(there, take=there.solved(there.demand, there.dominant)))


def test_the_slope_is_that_of_finite_differences_and_theorem_5_with_its_sign_put_right_agrees() -> None:
    random, compared, ways = chance(3), 0, set()
    for number in range(240):
        beta = float(np.exp(random.uniform(np.log(0.2), np.log(8.0))))
        round_ = market(random, unequal=number % 2 == 1, spent=number % 4 > 1, priorities=number % 8 > 3)
        here = divided(round_, beta)
        found, step = slope(here), 1e-3 * beta
        around = [_at(here, beta + times * step) for times in (-2, -1, 1, 2)]
        if found is None or any(each is None or each.free != found.free for each in around):
            continue  # a row fills just here: efficiency has a corner
        low, below, above, high = (each.efficiency for each in around if each is not None)
        difference = (low - 8 * below + 8 * above - high) / (12 * step)
        assert abs(found.slope - difference) <= 1e-4 * max(abs(difference), 1e-6)
        compared += 1
        ways.add(found.free)
        if found.condition is not None and abs(found.slope) > 1e-9:
            assert (found.condition >= 0) == (found.slope <= 0)
            assert abs(found.condition + found.slope) <= 1e-6 * abs(found.slope)
    assert compared >= 200
    assert {0, 1, 2, 3} <= ways


def test_efficiency_may_grow_with_beta() -> None:
    """Theorem 5 is a condition, and not always met: three ask B1, one B2, and dan both, more of B2."""
    asks = {"ann": [1.0, 0.0], "ben": [1.0, 0.0], "cat": [1.0, 0.0], "dan": [0.25, 0.75], "eve": [0.0, 1.0]}
    found = slope(divided(table_market(asks), 5.0))
    assert found is not None
    assert found.slope == pytest.approx(0.00337885, rel=1e-5)
    assert found.condition is not None
    assert found.condition < 0
    low, high = frontier(divided(table_market(asks), 5.0), [5.0, 6.0])
    assert high.efficiency > low.efficiency


def test_there_is_no_slope_where_efficiency_has_none() -> None:
    for beta in (0.0, float("inf")):
        assert slope(divided(worked_example(), beta)) is None
    with_lambda = Divisible.of_allocation(scheduler("dpbalance", lam=2.0).decide(worked_example()))
    assert with_lambda is not None
    assert slope(with_lambda) is None


def test_the_frontier_is_that_of_single_decisions() -> None:
    betas = [0.0, 0.3, 1.0, 2.2, 7.0, float("inf")]
    round_ = paper_round(seed=3, analysts=8)
    points = frontier(divided(round_, 2.2), betas)
    for beta, point in zip(betas, points, strict=True):
        alone = divided(round_, beta)
        assert point.efficiency == pytest.approx(float(np.sum(alone.utility)), rel=1e-6)
        assert point.gap is not None
        assert point.gap <= 1e-8
    efficiency = [point.efficiency for point in points]
    assert efficiency == sorted(efficiency, reverse=True)
    assert points[-1].jain is not None
    assert points[0].jain is not None
    assert points[-1].jain > points[0].jain
    ends = extremes(divided(round_, 2.2))
    assert ends.efficiency_most == pytest.approx(efficiency[0])
    assert ends.efficiency_fairest == pytest.approx(efficiency[-1])
    assert ends.tradeoff


def test_where_all_ask_alike_fairness_costs_nothing() -> None:
    ends = extremes(divided(table_market({"ann": [0.5, 0.5], "ben": [0.5, 0.5]}), 2.2))
    assert ends.rows_even
    assert not ends.tradeoff


def test_frontier_on_a_command_line(tmp_path: Path) -> None:
    file = str(tmp_path / "round.json")
    write_round(paper_round(seed=1), file)
    told = printed("frontier", file)
    assert "Step 1 along beta" in told
    assert "The fairest shares have" in told
    document = json.loads(printed("frontier", file, "--betas", "0,1,inf", "--format", "json"))
    assert [each["beta"] for each in document["points"]] == [0.0, 1.0, "inf"]
    assert document["extremes"]["tradeoff"] is True
    refused = process("frontier", file, "--betas", "1,fast")
    assert refused.returncode == 4
    assert "fast" in refused.stderr


def test_a_frontier_of_a_round_that_nobody_can_use_is_refused_in_words(tmp_path: Path) -> None:
    file = str(tmp_path / "round.json")
    wanted = [Pipeline(id="P1", analyst="ann", demand={"B1": 0.5})]
    write_round(Round.build([Block(id="B1", capacity=0.1)], wanted), file)
    refused = process("frontier", file)
    assert refused.returncode == 3
    assert "no pipeline of this round can be met" in refused.stderr
