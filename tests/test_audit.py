"""Does an audit catch a bad decision and name the right culprit? On decisions made by hand, and through every door."""

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from markets import market, table_market
from test_cli import printed, process

from dpbalance import Allocation, Block, Pipeline, Round, worked_example, write_allocation, write_round
from dpbalance.audit import Divisible, Finding, audit, divisible_findings
from dpbalance.audit.finding import PROPERTIES
from dpbalance.audit.granted import Granted, granted_findings
from dpbalance.audit.survives import surviving_findings
from dpbalance.clock import chance
from dpbalance.scheduler import scheduler


def by_hand(round_: Round, **multiples: float) -> Allocation:
    multiple = np.array([multiples.get(name, 0.0) for name in round_.pipelines])
    made = Allocation(round=round_, scheduler="by hand", multiple=multiple)
    made.check()
    return made


def found(decision: Allocation) -> dict[str, Finding]:
    return {each.property: each for each in audit(decision).findings if each.view == "granted"}


@pytest.fixture
def three() -> Round:
    """Three analysts, two blocks; ann and ben meet on the first, cat is alone on the second."""
    asks = {"ann": {"B1": 0.3}, "ben": {"B1": 0.3}, "cat": {"B2": 0.5}}
    wanted = [Pipeline(id=f"{who}1", analyst=who, demand=demand) for who, demand in asks.items()]
    return Round.build([Block(id="B1", capacity=1.0), Block(id="B2", capacity=1.0)], wanted)


def test_an_unfair_decision_is_caught_with_whoever_was_left_out(three: Round) -> None:
    told = found(by_hand(three, ann1=3.3333333, cat1=2.0))
    assert told["sharing-incentive"].answer == "fails"
    assert told["sharing-incentive"].culprit == "ben"
    assert told["sharing-incentive"].number == pytest.approx(-1 / 3, abs=1e-6)
    assert told["pareto-efficiency"].answer == "holds"
    assert told["served-incentive"].culprit == "ben"


def test_a_wasteful_decision_is_caught_with_whoever_could_have_more(three: Round) -> None:
    told = found(by_hand(three, ann1=1.6666666, ben1=1.6666666, cat1=1.0))
    assert told["pareto-efficiency"].answer == "fails"
    assert told["pareto-efficiency"].culprit == "cat"
    assert told["pareto-efficiency"].number == pytest.approx(0.5)
    assert told["pareto-efficiency"].counterexample["multiples"] == {"cat1": pytest.approx(2.0)}
    assert told["sharing-incentive"].answer == "holds"
    assert told["no-waste"].answer == "holds"  # nobody was denied


def test_an_envious_decision_is_caught_with_both_names(three: Round) -> None:
    told = found(by_hand(three, ann1=2.0, ben1=4 / 3, cat1=2.0))
    assert told["envy-freeness"].answer == "fails"
    assert told["envy-freeness"].culprit == "ben"
    assert told["envy-freeness"].counterexample["envies"] == "ann"
    assert told["envy-freeness"].number == pytest.approx(0.2)
    assert told["sharing-incentive"].answer == "holds"


def test_a_denied_pipeline_that_would_fit_is_waste(three: Round) -> None:
    told = found(by_hand(three, ann1=1.0, ben1=1.0))
    assert told["no-waste"].answer == "fails"
    assert told["no-waste"].counterexample == {"analyst": "cat", "pipeline": "cat1"}


def test_a_good_decision_passes(three: Round) -> None:
    told = found(by_hand(three, ann1=1.6666666, ben1=1.6666666, cat1=2.0))
    assert {each.answer for each in told.values()} == {"holds"}


def test_priorities_are_entitled_to_more(three: Round) -> None:
    first = replace(three, priority=np.array([2.0, 1.0, 1.0]))
    fair = found(by_hand(first, ann1=2.2222222, ben1=1.1111111, cat1=2.0))
    assert {each.answer for each in fair.values()} == {"holds"}
    even = found(by_hand(first, ann1=1.6666666, ben1=1.6666666, cat1=2.0))
    assert even["envy-freeness"].culprit == "ann"  # as two heads it would have twice of what ben has
    assert even["sharing-incentive"].answer == "holds"  # half of B1 is what two heads of four are due


def test_two_for_one_trades_are_found_not_only_single_raises() -> None:
    """P1 alone keeps out P2 and P3, which are worth more together; no single pipeline can be added or raised."""
    asks = {"P1": {"B1": 0.6, "B2": 0.6}, "P2": {"B1": 0.7}, "P3": {"B2": 0.7}}
    wanted = [Pipeline(id=name, analyst="ann", demand=each, max_multiple=1.0) for name, each in asks.items()]
    round_ = Round.build([Block(id="B1", capacity=1.0), Block(id="B2", capacity=1.0)], wanted)
    told = found(by_hand(round_, P1=1.0))
    assert told["pareto-efficiency"].answer == "fails"
    assert told["pareto-efficiency"].number == pytest.approx(0.1)
    assert told["pareto-efficiency"].counterexample["multiples"]["P1"] == 0.0


def _better_by_search(decision: Allocation) -> bool:
    """Is some all-or-nothing choice better for one and worse for none? Every choice is looked at."""
    granted = Granted.of_allocation(decision)
    now = [granted.share(analyst) for analyst in granted.analysts]
    for choice in product((0.0, 1.0), repeat=len(granted.pipelines)):
        multiple = np.array(choice)
        if np.any(granted.demand.T @ multiple > granted.available):
            continue
        then = [granted.share(each, multiple[granted.members(each)]) for each in granted.analysts]
        if all(b >= a - 1e-9 for a, b in zip(now, then, strict=True)) and sum(then) > sum(now) + 1e-5:
            return True
    return False


def test_pareto_efficiency_as_granted_agrees_with_looking_at_every_choice() -> None:
    random, answers = chance(21), {"holds": 0, "fails": 0}
    for number in range(120):
        round_ = market(random, spent=number % 2 == 1)
        round_ = replace(round_, max_multiple=np.ones(len(round_.pipelines)))
        if len(round_.pipelines) > 10:
            continue
        decision = scheduler(("dpbalance", "dpf", "fcfs")[number % 3]).decide(round_)
        pareto = granted_findings(Granted.of_allocation(decision))[0]
        assert (pareto.answer == "fails") == _better_by_search(decision)
        answers[pareto.answer] += 1
    assert min(answers.values()) > 10


def test_an_offer_that_was_tampered_with_is_caught_in_the_divisible_view() -> None:
    decision = scheduler("dpbalance").decide(table_market({"ann": [0.5, 0.2], "ben": [0.4, 0.4], "cat": [0.1, 0.5]}))
    market_ = Divisible.of_allocation(decision)
    assert market_ is not None
    assert {each.answer for each in divisible_findings(market_)} == {"holds"}
    starved = replace(market_, take=market_.take * np.array([1.0, 0.1, 1.0]))
    told = {each.property: each for each in divisible_findings(starved)}
    for name in ("pareto-efficiency", "sharing-incentive", "sharing-incentive-entitled", "envy-freeness"):
        assert (told[name].answer, told[name].culprit) == ("fails", "ben"), name
    nothing = replace(market_, take=market_.take * np.array([1.0, 0.0, 1.0]))
    envy = {each.property: each for each in divisible_findings(nothing)}["envy-freeness"]
    assert (envy.culprit, envy.number) == ("ben", 1e6)


def test_every_answer_can_be_written_as_json_for_every_scheduler_and_several_orders() -> None:
    random = chance(22)
    blocks = [Block(id=f"B{at}", capacity=[1.0, 0.6]) for at in range(3)]
    wanted = [
        Pipeline(
            id=f"P{at}",
            analyst=f"A{at % 3}",
            demand={
                f"B{b}": random.uniform(0.05, 0.5, 2).tolist() for b in range(3) if random.random() < 0.7 or b == 0
            },
        )
        for at in range(9)
    ]
    several = Round.build(blocks, wanted, orders=[2.0, 8.0])
    for name, round_ in product(("dpbalance", "dpf", "dpk", "fcfs", "round-robin"), (several, worked_example())):
        decider = scheduler(name)
        decision = decider.decide(round_)
        made = audit(decision, decider.decide, lies=2)
        document = json.loads(json.dumps(made.document(), allow_nan=False))
        assert {each["property"] for each in document["findings"]} <= set(PROPERTIES)
        assert all(each["answer"] in ("holds", "fails", "not-found") for each in document["findings"])
        assert all(each["culprit"] for each in document["findings"] if each["answer"] == "fails")
        assert bool(made.slope) == (name == "dpbalance")


def test_a_round_that_nobody_can_use_has_nothing_to_find() -> None:
    empty = Round.build([Block(id="B1", capacity=0.1)], [Pipeline(id="P1", analyst="ann", demand={"B1": 0.5})])
    for name in ("dpbalance", "dpf"):
        decider = scheduler(name)
        made = audit(decider.decide(empty), decider.decide)
        assert {each.property for each in made.findings} <= {"strategy-proofness-strong", "strategy-proofness-weak"}
        json.dumps(made.document(), allow_nan=False)


def test_the_printed_constraint_is_not_judged_by_its_shares() -> None:
    decider = scheduler("dpbalance", constraint="as-printed-may-overspend")
    made = audit(decider.decide(worked_example()))
    assert {each.view for each in made.findings} == {"granted"}
    assert any("printed" in note for note in made.notes)


def test_the_same_audit_is_the_same_every_time() -> None:
    decider = scheduler("dpbalance")
    once, again = (audit(decider.decide(worked_example()), decider.decide, seed=3).document() for _ in range(2))
    assert once == again


def test_audit_on_a_command_line(tmp_path: Path) -> None:
    file = str(tmp_path / "round.json")
    write_round(worked_example(), file)
    told = printed("audit", file)
    for words in (
        "As divided by step 1",
        "As granted",
        "pareto-efficiency",
        "served-incentive",
        "P2 x 1.25",
        "lies tried",
    ):
        assert words in told
    document = json.loads(printed("audit", file, "--scheduler", "dpf", "--no-lies", "--format", "json"))
    assert document["format"] == "dpbalance-audit/1"
    culprits = {each["property"]: each["culprit"] for each in document["findings"]}
    assert culprits["envy-freeness"] == "alice"
    assert "strategy-proofness-strong" not in culprits
    assert document["tradeoff"] is None


def test_a_decision_from_a_file_is_audited_without_trusting_it(tmp_path: Path) -> None:
    file, decided = str(tmp_path / "round.json"), tmp_path / "decision.json"
    write_round(worked_example(), file)
    write_allocation(scheduler("dpf").decide(worked_example()), decided)
    document = json.loads(printed("audit", file, "--allocation", str(decided), "--format", "json"))
    assert document["scheduler"] == "dpf"
    assert any("no lies" in note for note in document["notes"])
    grants = [{"pipeline": f"P{at}", "multiple": 1.5} for at in (1, 2, 3)]
    decided.write_text(
        json.dumps({"format": "dpbalance-allocation/1", "scheduler": "mine", "grants": grants}), encoding="utf-8"
    )
    refused = process("audit", file, "--allocation", str(decided))
    assert refused.returncode == 5
    assert "DPB-203" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_surviving_properties_are_found_for_a_round_with_nothing_served() -> None:
    decision = by_hand(worked_example())
    told = {each.property: each.answer for each in surviving_findings(Granted.of_allocation(decision), None)}
    assert told == {"no-waste": "fails", "served-incentive": "fails"}
