"""Do released losses become l of later rounds: higher loss more useful, old ones forgotten, and never a private one?"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from fleets import Fleet

from dpbalance.demand import Pipeline
from dpbalance.errors import FileFormatError
from dpbalance.execution.runs import Outcome
from dpbalance.feedback.losses import LEAST, MOST, Losses
from dpbalance.feedback.settle import carry_out


@pytest.fixture
def outcome(tmp_path: Path) -> Outcome:
    fleet = Fleet(place=tmp_path, devices=1)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision(cost=30.0))
        (settled,) = carry_out(ledger, fleet.desk(), fleet.runner(), seconds=40)
    return settled.outcome


def with_loss(outcome: Outcome, loss: float | None) -> Outcome:
    assert outcome.result is not None
    return replace(outcome, result=replace(outcome.result, loss=loss))


def test_nothing_known_is_one_and_a_higher_loss_is_more_useful(tmp_path: Path, outcome: Outcome) -> None:
    losses = Losses(tmp_path / "losses.json")
    assert losses.matching("new", 0.0) == 1.0
    for family, loss in (("good", 0.2), ("poor", 0.9), ("wild", 1e9), ("best", 0.0)):
        losses.record(family, with_loss(outcome, loss), 0.0)
    assert losses.matching("good", 0.0) == pytest.approx(0.2 / math.log(3))
    assert losses.matching("good", 0.0) < losses.matching("poor", 0.0)
    assert losses.matching("wild", 0.0) == pytest.approx(MOST)
    assert losses.matching("best", 0.0) == pytest.approx(LEAST)


def test_a_loss_fades_and_outlives_the_process(tmp_path: Path, outcome: Outcome) -> None:
    Losses(tmp_path / "losses.json", half_life=10.0).record("f", with_loss(outcome, 0.0), 100.0)
    again = Losses(tmp_path / "losses.json", half_life=10.0)
    assert again.matching("f", 110.0) == pytest.approx(1 - (1 - LEAST) / 2)
    assert again.matching("f", 1e6) == pytest.approx(1.0)
    (pipeline,) = again.put_into([Pipeline(id="f-1", analyst="a", demand={"b": 1.0})], lambda name: name[0], 100.0)
    assert pipeline.loss == pytest.approx(LEAST)


def test_what_was_not_released_is_not_learned(tmp_path: Path, outcome: Outcome) -> None:
    losses = Losses(tmp_path / "losses.json")
    losses.record("f", with_loss(outcome, None), 0.0)
    losses.record("f", replace(outcome, result=None), 0.0)
    assert losses.matching("f", 0.0) == 1.0


def test_a_file_that_holds_no_losses_says_so(tmp_path: Path) -> None:
    (tmp_path / "losses.json").write_text("[1]")
    with pytest.raises(FileFormatError):
        Losses(tmp_path / "losses.json")
