"""Does nobody exceed the bound, and is it the optimum of the program it is said to be?"""

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import linprog

from dpbalance import Block, Pipeline, Round, Terms, paper_round, scheduler, worked_example
from dpbalance.allocation.valuation import Valuation
from dpbalance.scheduler.bound import bound

DECIDERS = (("dpbalance", 0.0), ("dpbalance", 2.2), ("dpf", 2.2), ("dpk", 2.2), ("fcfs", 2.2), ("optimal", 2.2))


def random_round(seed: int, orders: int = 1) -> Round:
    """A few analysts on a few blocks; caps on some multiples, losses that differ wildly now and then."""
    random = np.random.default_rng(seed)
    blocks, pipelines = int(random.integers(1, 8)), int(random.integers(1, 15))

    def amount(low: float, high: float) -> float | tuple[float, ...]:
        drawn = tuple(random.uniform(low, high, orders).tolist())
        return drawn if orders > 1 else drawn[0]

    def demand() -> dict[str, float | tuple[float, ...]]:
        chosen = np.flatnonzero(random.random(blocks) < 0.6)
        return {f"B{at}": amount(0.01, 0.7) for at in (chosen if len(chosen) else [0])}

    return Round.build(
        [Block(id=f"B{at}", capacity=amount(0.5, 1.5)) for at in range(blocks)],
        [
            Pipeline(
                id=f"P{at}",
                analyst=f"a{random.integers(4)}",
                demand=demand(),
                loss=10.0 ** random.uniform(-12, 3) if seed % 3 == 0 else 1.0,
                max_multiple=random.choice([None, 1.0, 2.5]),
            )
            for at in range(pipelines)
        ],
        orders=(2.0, 4.0, 8.0)[:orders] if orders > 1 else None,
    )


@pytest.mark.parametrize("orders", [1, 3])
def test_no_scheduler_exceeds_the_bound(orders: int) -> None:
    for seed in range(30):
        round_ = random_round(seed, orders)
        for name, beta in DECIDERS:
            allocation = scheduler(name, beta=beta).decide(round_)
            assert allocation.metrics.efficiency <= bound(round_, allocation.terms), (seed, name)


@pytest.mark.parametrize("seed", range(30))
def test_it_is_the_optimum_of_the_whole_program(seed: int) -> None:
    round_ = paper_round(seed=seed, devices=4, windows=3, analysts=3, pipelines_each=6) if seed < 10 else None
    round_ = round_ or random_round(seed)
    valuation = Valuation.of(round_, Terms())
    gamma = np.zeros((len(round_.blocks), len(round_.pipelines)))
    for at in range(len(round_.pipelines)):
        mine = slice(round_.start[at], round_.start[at + 1])
        gamma[round_.block[mine], at] = round_.cost[mine, 0] / round_.available[round_.block[mine], 0]
    value = valuation.weight[round_.owner] * valuation.dominant * valuation.feasible
    caps = [(0.0, None if np.isinf(most) else most) for most in round_.max_multiple * 1.0]
    unit = float(np.max(value))
    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    whole = linprog(-value / unit, gamma * valuation.feasible, np.ones(len(gamma)), bounds=caps, options=tight)
    assert bound(round_, Terms()) == pytest.approx(-whole.fun * unit, rel=2e-9)


def test_shares_of_different_blocks_count_as_if_they_were_of_one() -> None:
    assert bound(worked_example(), Terms()) == pytest.approx(1.25)


def test_a_round_in_which_nothing_fits_has_the_bound_nothing() -> None:
    full = Round.build([Block(id="B", capacity=1.0, spent=1.0)], [Pipeline(id="P", analyst="a", demand={"B": 0.5})])
    assert bound(full, Terms()) == 0.0


def test_where_a_cost_rounds_to_nothing_there_is_no_bound_but_the_cap() -> None:
    cheap = Pipeline(id="P", analyst="a", demand={"B": (0.5, 0.6)})
    other = Pipeline(id="Q", analyst="b", demand={"B": (0.9, 0.1)}, max_multiple=1.0)
    built = Round.build([Block(id="B", capacity=(1.0, 1.0))], [cheap, other], orders=(2.0, 8.0))
    free = replace(built, cost=built.cost * np.array([[0, 1], [1, 1]]))
    assert bound(free, Terms()) == np.inf
    assert bound(replace(free, max_multiple=np.array([3.0, 1.0])), Terms()) == pytest.approx(3 * 0.6 + 0.1)
