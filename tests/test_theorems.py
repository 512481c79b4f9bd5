"""Which of the paper's theorems hold? Each on hundreds of random markets, or by a counterexample small enough to check.

docs/properties.md names the test behind every line of its table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from markets import market, table_market

from dpbalance.audit import Divisible, divisible_findings, extremes, slope
from dpbalance.audit.granted import Granted, granted_findings
from dpbalance.audit.lies import divisible_lies
from dpbalance.audit.survives import surviving_findings
from dpbalance.clock import chance
from dpbalance.demand import Pipeline
from dpbalance.market import Block, Round
from dpbalance.scheduler import scheduler

INF = float("inf")
MARKETS = 500
EVERY = {"spent": True, "unequal": True, "capped": True, "priorities": True}

PE, SI, EF = "pareto-efficiency", "sharing-incentive", "envy-freeness"
SI_ENTITLED, EF_ENTITLED = "sharing-incentive-entitled", "envy-freeness-entitled"


def divided(round_: Round, **options: Any) -> Divisible:
    found = Divisible.of_allocation(scheduler("dpbalance", **options).decide(round_))
    assert found is not None
    return found


def answers(round_: Round, **options: Any) -> dict[str, str]:
    return {each.property: each.answer for each in divisible_findings(divided(round_, **options))}


def failing(count: int, seed: int, kind: dict[str, bool], options: dict[str, Any]) -> dict[str, int]:
    """How many of so many random markets fail each property of step 1."""
    random, fails = chance(seed), dict.fromkeys((PE, SI, EF, SI_ENTITLED, EF_ENTITLED), 0)
    for _ in range(count):
        for name, found in answers(market(random, **kind), **options).items():
            fails[name] += found != "holds"
    return fails


@pytest.mark.parametrize("beta", [1.0, 1.2, 2.2, 5.0, 20.0, INF])
def test_fresh_blocks_and_equal_weights_have_every_property_from_beta_1_up(beta: float) -> None:
    assert not any(failing(MARKETS, 1, {}, {"beta": beta}).values())


@pytest.mark.parametrize("beta", [2.2, 50.0])
@pytest.mark.parametrize("kind", [{"priorities": True}, {"capped": True}])
def test_so_do_priorities_and_caps(kind: dict[str, bool], beta: float) -> None:
    assert not any(failing(MARKETS, 2, kind, {"beta": beta}).values())


@pytest.mark.parametrize("beta", [1.0, 2.2, 20.0, 50.0, INF])
def test_entitled_properties_hold_whatever_the_weights_and_however_much_is_spent(beta: float) -> None:
    fails = failing(MARKETS, 3, EVERY, {"beta": beta})
    assert not fails[PE] + fails[SI_ENTITLED] + fails[EF_ENTITLED]
    if beta > 1:
        assert fails[SI] > MARKETS / 4  # the paper's own notions do not survive
        assert fails[EF] > MARKETS / 4


def test_proportional_fairness_keeps_the_equal_notions_too() -> None:
    assert not any(failing(MARKETS, 4, EVERY, {"beta": 1.0}).values())


def test_equal_weights_on_partly_spent_blocks_are_free_of_envy_but_not_of_regret() -> None:
    fails = failing(MARKETS, 5, {"spent": True}, {"beta": 2.2})
    assert not fails[PE] + fails[EF] + fails[SI_ENTITLED]
    assert fails[SI] > 0


@pytest.mark.parametrize(
    "options",
    [{"beta": 0.0}, {"beta": 0.5}, {"beta": 0.9}, {"lam": INF}, {"lam": 1.2}, {"beta": 0.5, "lam": 3.0}, {"beta": INF}],
    ids=str,
)
def test_whatever_is_solved_with_lambda_large_enough_is_pareto_efficient(options: dict[str, Any]) -> None:
    assert failing(MARKETS // 2, 6, EVERY, options)[PE] == 0


@pytest.mark.parametrize("options", [{"beta": 0.5}, {"lam": INF}], ids=str)
def test_where_the_paper_calls_them_unsatisfied_many_markets_fail(options: dict[str, Any]) -> None:
    fails = failing(100, 7, {}, options)
    assert fails[SI] > 20
    assert fails[EF] > 20


def test_equal_shares_share_and_leave_no_envy_on_fresh_blocks() -> None:
    fails = failing(MARKETS, 8, {}, {"lam": 0.0})
    assert not fails[SI] + fails[EF]
    assert fails[PE] > 0  # the largest equal shares leave budget that some could use
    others = failing(MARKETS, 8, {"spent": True, "unequal": True}, {"lam": 0.0})
    assert not others[SI_ENTITLED] + others[EF_ENTITLED]


@pytest.mark.parametrize("beta", [1.0, 2.2, INF])
def test_everybody_is_served_as_many_pipelines_as_its_part_could_serve(beta: float) -> None:
    random, decider = chance(9), scheduler("dpbalance", beta=beta, leftover="refill")
    for _ in range(MARKETS):
        allocation = decider.decide(market(random, **EVERY, pipelines_each=8))
        found = surviving_findings(Granted.of_allocation(allocation), Divisible.of_allocation(allocation))
        assert [(each.property, each.answer) for each in found] == [
            ("no-waste", "holds"),
            ("served-incentive", "holds"),
        ]


def test_the_three_properties_do_not_survive_pipelines_that_cannot_be_cut() -> None:
    random, decider, fails = chance(10), scheduler("dpbalance"), dict.fromkeys((PE, SI, EF), 0)
    for _ in range(MARKETS):
        for each in granted_findings(Granted.of_allocation(decider.decide(market(random)))):
            fails[each.property] += each.answer == "fails"
    assert fails[PE] > MARKETS / 2
    assert fails[SI] > MARKETS / 10
    assert fails[EF] > MARKETS / 50


def test_baselines_waste_nothing_but_serve_some_analysts_less_than_their_part() -> None:
    asks = [Pipeline(id="A", analyst="ann", demand={"B1": 0.3}, max_multiple=1.0)]
    asks += [Pipeline(id=f"B{at}", analyst="ben", demand={"B1": 0.2}, max_multiple=1.0) for at in range(5)]
    crowded = scheduler("optimal").decide(Round.build([Block(id="B1", capacity=1.0)], asks))
    assert (
        surviving_findings(Granted.of_allocation(crowded), None)[1].culprit == "ann"
    )  # the most pipelines are ben's five
    for name in ("dpf", "dpk", "fcfs"):
        random, fails = chance(11), {"no-waste": 0, "served-incentive": 0}
        for _ in range(200):
            allocation = scheduler(name).decide(market(random, pipelines_each=8))
            for each in surviving_findings(Granted.of_allocation(allocation), None):
                fails[each.property] += each.answer == "fails"
        assert fails["no-waste"] == 0
        assert fails["served-incentive"] > 0, name


# The paper's own examples and the smallest ones against its claims. All have blocks of capacity 1.

APPENDIX = {"ann": [1.0, 0.6], "ben": [0.0, 1.0]}
"""Appendix B (d): D1 = (1, gamma), D2 = (0, 1) with gamma above one half."""


def test_the_appendix_has_no_sharing_incentive_and_no_envy_freeness_for_efficiency_alone() -> None:
    found = divided(table_market(APPENDIX), lam=INF)
    np.testing.assert_allclose(found.take * found.dominant, [1.0, 0.4], atol=1e-9)
    by_name = {each.property: each for each in divisible_findings(found)}
    assert by_name[SI].answer == "fails"
    assert by_name[SI].culprit == "ben"
    assert by_name[SI].number == pytest.approx(0.8)
    assert by_name[EF].counterexample["envies"] == "ann"
    assert by_name[EF].number == pytest.approx(1.5)
    assert set(answers(table_market(APPENDIX), beta=2.2).values()) == {"holds"}


def test_one_block_and_unequal_weights_are_enough_to_break_both_above_beta_1() -> None:
    one = table_market({"ann": [0.25], "ben": [0.25]}, ben=0.5)
    found = answers(one, beta=INF)  # shares 1/3 and 2/3: a_i times share is evened out
    assert (found[SI], found[EF], found[SI_ENTITLED], found[EF_ENTITLED]) == ("fails", "fails", "holds", "holds")
    assert answers(one, beta=1.0)[SI] == "holds"


def test_two_half_spent_blocks_are_enough_to_break_the_sharing_incentive() -> None:
    two = table_market({"ann": [0.0, 0.25], "ben": [0.5, 0.25]}, left=[1.0, 0.5])
    found = answers(two, beta=2.2)
    assert (found[SI], found[EF], found[SI_ENTITLED]) == ("fails", "holds", "holds")


def test_equal_shares_waste_a_block_that_one_could_use() -> None:
    found = divided(table_market({"ann": [0.0, 0.25], "ben": [0.25, 0.0]}, ben=0.5), lam=0.0)
    worst = divisible_findings(found)[0]
    assert (worst.property, worst.answer, worst.culprit) == (PE, "fails", "ann")
    assert worst.counterexample["share"] == pytest.approx(0.5)
    assert worst.counterexample["share_possible"] == pytest.approx(1.0)


def test_weak_strategy_proofness_fails_above_beta_1() -> None:
    """Theorem 4 (a): ben says it needs twice as much of its other block, and gains without losing anything.

    Honest: s_ann / 2 + s_ben <= 1 binds alone. With the lie s_ann + s_ben / 2 <= 1 binds as well, and both get 2/3.
    """
    honest = {"ann": [0.25, 0.5], "ben": [1.0, 0.25]}
    strong, weak = divisible_lies(divided(table_market(honest), beta=2.2), 0, 0)
    assert (strong.answer, weak.answer, weak.culprit) == ("fails", "fails", "ben")
    assert weak.counterexample["lie"] == "its other demands times 2, at most its dominant one"
    assert weak.counterexample["honest"] == pytest.approx(0.59341, rel=1e-5)
    assert weak.counterexample["lying"] == pytest.approx(2 / 3)


def test_equal_shares_are_not_strongly_strategy_proof_and_no_weak_lie_is_found() -> None:
    """Theorem 4 (c) says strong in the statement and weak in the proof; the first is refuted, the second is not."""
    strong, weak = divisible_lies(divided(table_market({"ann": [0.0, 0.25], "ben": [0.5, 0.25]}), lam=0.0), 0, 0)
    assert (strong.answer, strong.culprit, weak.answer) == ("fails", "ben", "not-found")
    assert strong.counterexample["lying"] == pytest.approx(8 / 9)
    random = chance(12)
    for number in range(100):
        found = divided(market(random, unequal=number % 2 == 1), lam=0.0)
        assert divisible_lies(found, 5, number)[1].answer == "not-found"


def test_equal_shares_are_not_even_weakly_strategy_proof_on_a_partly_spent_block_that_only_the_liar_fills() -> None:
    """Honest: t <= 0.1 / 0.9 on B2, the same share for both. The lie scales ann's x down and what it asks of B1 up."""
    spent = table_market({"ann": [0.1, 0.09], "ben": [0.1, 0.0]}, left=[1.0, 0.1])
    _, weak = divisible_lies(divided(spent, lam=0.0), 0, 0)
    assert (weak.answer, weak.culprit) == ("fails", "ann")
    assert weak.counterexample["honest"] == pytest.approx(1 / 9)
    assert weak.counterexample["lying"] == pytest.approx(4 / 9)


def test_efficiency_alone_is_strategy_proof_in_no_sense() -> None:
    """Theorem 4 (d), which says strong in the statement and weak in the proof."""
    asks = {"ann": [1.0, 0.0, 0.0], "ben": [1.0, 1.0, 0.9], "cat": [0.0, 1.0, 0.0]}
    honest = divided(table_market(asks), lam=INF)
    np.testing.assert_allclose(honest.take, [1.0, 0.0, 1.0], atol=1e-9)  # serving ben costs two others their all
    strong, weak = divisible_lies(honest, 40, 0)
    assert (strong.answer, strong.culprit, weak.answer, weak.culprit) == ("fails", "ben", "fails", "ben")
    stated = divided(table_market({**asks, "ben": [0.25, 0.25, 0.9]}), lam=INF)  # B3 fourfold, in proportion
    assert stated.take[1] * 0.25 == pytest.approx(1.0 / 3.6)


def test_the_printed_condition_of_theorem_5_has_the_wrong_sign_where_an_odd_number_of_ways_is_free() -> None:
    found = slope(divided(table_market({"ann": [0.25, 0.5], "ben": [1.0, 0.25]}), beta=2.2))
    assert found is not None
    assert found.free == 1
    assert found.slope == pytest.approx(-0.0345535, rel=1e-5)
    assert found.condition_printed is not None
    assert found.condition_printed < 0
    assert found.condition is not None
    assert found.condition > 0


def test_theorem_6_fills_every_row_but_is_not_always_the_most_efficient() -> None:
    even = extremes(divided(table_market({"ann": [0.5, 0.25], "ben": [0.25, 0.5]})))
    assert even.rows_even
    assert not even.tradeoff
    three = {"ann": [0.0, 0.25, 1.0], "ben": [1.0, 0.75, 0.0], "cat": [1.0, 1.0, 1.0]}
    uneven = extremes(divided(table_market(three)))
    assert uneven.rows_even  # equal shares of 1/2 fill all three rows, and yet
    assert uneven.efficiency_fairest == pytest.approx(1.5)
    assert uneven.efficiency_most == pytest.approx(2.0)


def test_theorem_7_fewer_blocks_than_analysts_shut_some_out_of_the_most_efficient_shares() -> None:
    random = chance(13)
    looked = 0
    for _ in range(200):
        found = divided(market(random))
        asked = int(np.sum(np.diff(found.demand.tocsr().indptr) > 0))
        if asked < len(found.analysts):
            looked += 1
            assert extremes(found).shut_out >= len(found.analysts) - asked
    assert looked > 40


def test_theorem_7_needs_nobody_with_nothing_where_one_block_is_all_there_is() -> None:
    """Half each fills the one row, is the fairest, and is as efficient as anything: nobody is left with nothing."""
    found = extremes(divided(table_market({"ann": [0.25], "ben": [0.25]})))
    assert not found.tradeoff
    assert found.efficiency_fairest == pytest.approx(1.0)


def one_block(cap: float | None, **demands: list[float]) -> Round:
    asked = [
        Pipeline(id=f"{who}-{at}", analyst=who, demand={"B1": amount}, max_multiple=cap)
        for who, amounts in demands.items()
        for at, amount in enumerate(amounts, start=1)
    ]
    return Round.build([Block(id="B1", capacity=1.0)], asked)


def test_one_block_and_two_pipelines_are_enough_to_waste_when_pipelines_cannot_be_cut() -> None:
    """Half of the block is not enough for either; whoever got all of it would be better off and nobody worse."""
    allocation = scheduler("dpbalance").decide(one_block(1.0, ann=[0.6], ben=[0.6]))
    assert not allocation.served
    found = {each.property: each for each in granted_findings(Granted.of_allocation(allocation))}
    assert found[PE].answer == "fails"
    assert found[PE].counterexample["multiples"] == {"ann-1": 1.0}
    assert found[SI].answer == "holds"
    assert found[EF].answer == "holds"
    refilled = scheduler("dpbalance", leftover="refill").decide(one_block(1.0, ann=[0.6], ben=[0.6]))
    assert len(refilled.served) == 1
