"""Does an explanation name the right block, analyst and amount, and does following it get the pipeline served?"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from markets import market
from test_cli import printed, process

from dpbalance import Block, InputError, Pipeline, Round, worked_example, write_round
from dpbalance.audit import Explanation, explain
from dpbalance.audit.restated import after, all_unlocked
from dpbalance.clock import chance
from dpbalance.market import round_from_json, round_to_json
from dpbalance.scheduler import scheduler


def told(round_: Round, pipeline: str, name: str = "dpbalance", **options: Any) -> Explanation:
    decider = scheduler(name, **options)
    again = None if name != "dpbalance" else lambda beta: scheduler(name, **{**options, "beta": beta}).decide
    return explain(decider.decide(round_), pipeline, decider.decide, again)


def with_demand(round_: Round, pipeline: str, demand: Any) -> Round:
    """The round as its owner would write it after reading the suggestion."""
    document = round_to_json(round_)
    for each in document["pipelines"]:
        if each["id"] == pipeline:
            each["demand"] = dict(demand)
    return round_from_json(document)


def served(round_: Round, pipeline: str, name: str = "dpbalance", **options: Any) -> bool:
    return pipeline in {each.pipeline for each in scheduler(name, **options).decide(round_).grants}


@pytest.fixture
def by_hand() -> Round:
    """ann takes most of B2 first come, first served; ben's wants more of it than remains."""
    return Round.build(
        [Block(id="B1", capacity=1.0), Block(id="B2", capacity=1.0, spent=0.1)],
        [
            Pipeline(id="big", analyst="ann", demand={"B2": 0.6}, submitted=-3.0),
            Pipeline(id="small", analyst="ann", demand={"B2": 0.1, "B1": 0.1}, submitted=-2.0),
            Pipeline(id="late", analyst="ben", demand={"B1": 0.4, "B2": 0.5}, submitted=-1.0),
        ],
    )


def test_the_block_the_analyst_and_the_amounts_are_named(by_hand: Round) -> None:
    found = told(by_hand, "late", "fcfs")
    assert not found.served
    assert found.reason == "taken"
    (short,) = found.shortages
    assert (short.block, short.asked, short.left, short.short) == ("B2", 0.5, 0.2, 0.3)
    assert (short.capacity, short.spent_before, short.granted, short.locked) == (1.0, 0.1, 0.7, 0.0)
    assert [(each.analyst, each.pipelines, each.amount) for each in short.used_by] == [("ann", ("big", "small"), 0.7)]
    assert "on B2, where it asks 0.5 and 0.2 is left, short by 0.3" in found.sentence
    assert found.beta is None  # beta changes nothing for first come, first served


def test_following_the_smaller_demand_gets_it_served(by_hand: Round) -> None:
    found = told(by_hand, "late", "fcfs")
    assert found.smaller is not None
    assert found.smaller.factor == pytest.approx(0.4, rel=1e-3)
    assert found.smaller.demand["B2"] <= 0.2
    assert not served(by_hand, "late", "fcfs")
    assert served(with_demand(by_hand, "late", found.smaller.demand), "late", "fcfs")


def test_a_beta_that_serves_it_is_named_and_does() -> None:
    """ann's two pipelines need more than half of the block, which only a preference for efficiency gives."""
    round_ = Round.build(
        [Block(id="B1", capacity=1.0), Block(id="B2", capacity=1.0)],
        [
            Pipeline(id="A", analyst="ann", demand={"B1": 0.9}, max_multiple=1.0),
            Pipeline(id="C", analyst="cat", demand={"B1": 0.5, "B2": 0.6}, max_multiple=1.0),
        ],
    )
    denied = [each for each in ("A", "C") if not served(round_, each)]
    helped = [each for each in denied if told(round_, each).beta is not None]
    assert helped
    for pipeline in helped:
        beta = told(round_, pipeline).beta
        assert beta is not None
        assert served(round_, pipeline, beta=beta)


def test_the_round_that_serves_it_is_named_and_does(by_hand: Round) -> None:
    round_ = Round.build(
        [Block(id="B1", capacity=2.0, unlocked=1.0)],
        [
            Pipeline(id="first", analyst="ann", demand={"B1": 0.3}, max_multiple=1.0),
            Pipeline(id="second", analyst="ann", demand={"B1": 0.3}, max_multiple=1.0),
            Pipeline(id="third", analyst="ben", demand={"B1": 0.4}, max_multiple=1.0),
        ],
    )
    denied = [name for name in round_.pipelines if not served(round_, name)]
    for name in denied:
        found = told(round_, name)
        if found.rounds_ahead is not None:
            later, decider = round_, scheduler("dpbalance")
            for _ in range(found.rounds_ahead):
                later = after(decider.decide(later))
            assert served(later, name)
    late = told(by_hand, "late", "fcfs")
    assert late.rounds_ahead is None  # what is spent never comes back


def test_what_is_still_locked_is_told() -> None:
    round_ = Round.build(
        [Block(id="B1", capacity=1.0, unlocked=0.2)], [Pipeline(id="P1", analyst="ann", demand={"B1": 0.5})]
    )
    found = told(round_, "P1")
    assert found.reason == "exceeds-left"
    assert found.shortages[0].locked == pytest.approx(0.8)
    assert found.unlocked is True
    assert served(all_unlocked(round_), "P1")
    assert any("open in full" in each for each in found.helps)
    assert told(worked_example(), "P4").unlocked is None


def test_a_served_pipeline_has_nothing_to_explain() -> None:
    found = told(worked_example(), "P3")
    assert found.served
    assert found.sentence == "P3 is served, with 1.25 times its demand."
    assert found.helps == ()


def test_an_unknown_pipeline_is_refused_with_those_that_look_like_it() -> None:
    with pytest.raises(InputError, match="no pipeline 'P33'") as refused:
        told(worked_example(), "P33")
    assert "P3" in refused.value.hint


@pytest.mark.parametrize("name", ["dpbalance", "dpf", "dpk", "fcfs"])
def test_every_suggestion_on_random_rounds_comes_true(name: str) -> None:
    random, followed = chance(41), 0
    for number in range(25):
        round_ = market(random, spent=number % 2 == 1, unequal=True, pipelines_each=5)
        decider = scheduler(name)
        for denial in decider.decide(round_).denied[:3]:
            found = told(round_, denial.pipeline, name)
            assert found.analyst == denial.analyst
            assert found.shortages
            assert all(each.short >= 0 for each in found.shortages)
            if found.smaller is not None:
                assert served(with_demand(round_, denial.pipeline, found.smaller.demand), denial.pipeline, name)
                followed += 1
            if found.beta is not None:
                assert served(round_, denial.pipeline, name, beta=found.beta)
                followed += 1
    assert followed > 20


def test_uses_add_up_to_what_was_granted_with_several_orders() -> None:
    random = chance(42)
    wanted = [
        Pipeline(id=f"P{at}", analyst=f"A{at % 3}", demand={"B": random.uniform(0.2, 0.6, 2).tolist()})
        for at in range(8)
    ]
    round_ = Round.build([Block(id="B", capacity=[1.0, 1.0])], wanted, orders=[2.0, 8.0])
    for name in ("dpf", "dpbalance"):
        decision = scheduler(name).decide(round_)
        for denial in decision.denied:
            found = explain(decision, denial.pipeline)
            for each in found.shortages:
                assert each.order in (2.0, 8.0)
                assert sum(use.amount for use in each.used_by) == pytest.approx(each.granted)
            json.dumps(found.document(), allow_nan=False)


def test_explain_on_a_command_line(tmp_path: Path, by_hand: Round) -> None:
    file = str(tmp_path / "round.json")
    write_round(by_hand, file)
    text = printed("explain", file, "late", "--scheduler", "fcfs")
    for words in ("late is denied", "Where it was short", "Who has B2", "ann", "big, small", "It would be served by"):
        assert words in text
    document = json.loads(printed("explain", file, "late", "--scheduler", "fcfs", "--format", "json"))
    assert document["format"] == "dpbalance-explanation/1"
    assert document["shortages"][0]["used_by"][0]["analyst"] == "ann"
    refused = process("explain", file, "nobody")
    assert refused.returncode == 3
    assert "DPB-101" in refused.stderr


def test_nothing_helps_a_pipeline_on_an_exhausted_block() -> None:
    round_ = Round.build(
        [Block(id="B1", capacity=1.0, spent=1.0)], [Pipeline(id="P1", analyst="ann", demand={"B1": 0.5})]
    )
    found = told(round_, "P1")
    assert found.helps == ()
    assert replace(found, smaller=None) == found
