"""Is a plan that was kept sent, and its run settled, only for the very charge it was made for?"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fleets import Fleet
from test_carry_out import stage, waited

from dpbalance.errors import LedgerDamaged
from dpbalance.execution import Agent, Standing
from dpbalance.execution.dispatch import check_plan, planned, send_out
from dpbalance.feedback.settle import settle_ended, step
from dpbalance.ledger import Stage


def other_place(tmp_path: Path) -> Fleet:
    """The same devices and folders of plans and runs, with another ledger."""
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision(names=("old",)))
        assert planned(ledger, fleet.desk(), 1).ledger == ledger.public
    (tmp_path / "ledger.db").rename(tmp_path / "old.db")
    for each in tmp_path.glob("ledger.db*"):
        each.unlink()
    for each in tmp_path.glob("*.key"):
        each.unlink()
    return fleet


@pytest.mark.parametrize("name", ["old", "new"])
def test_a_plan_that_was_kept_for_another_ledger_is_refused_and_nothing_leaves(tmp_path: Path, name: str) -> None:
    fleet = other_place(tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision(cost=0.1, names=(name,)))
        with pytest.raises(LedgerDamaged, match="is not of what grant 1 was charged"):
            step(ledger, fleet.desk(), fleet.runner())
        assert stage(ledger) == Stage.CHARGED
        ledger.dispatch([1], actor="somebody")
        with pytest.raises(LedgerDamaged, match="is not of what grant 1 was charged"):
            step(ledger, fleet.desk(), fleet.runner())
        assert stage(ledger) == Stage.DISPATCHED
    assert not (tmp_path / "runs" / "run-000001").exists()
    assert all(not Agent(each).record.entries() for each in fleet.folders.values())


@pytest.mark.parametrize(
    "changed",
    [
        {"ledger": "0" * 64},
        {"pipeline": "q"},
        {"analyst": "bob"},
        {"multiple": 2.0},
        {"grant": 2},
        {"orders": (16.0,)},
        {"devices": ("d0", "d1", "d9")},
        {"plans": ()},
    ],
)
def test_a_kept_plan_must_be_of_its_charge_in_every_part(tmp_path: Path, changed: dict[str, Any]) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
        plan = planned(ledger, fleet.desk(), 1)
        check_plan(ledger, plan, 1, "here")
        with pytest.raises(LedgerDamaged):
            check_plan(ledger, replace(plan, **changed), 1, "here")


def test_units_that_were_not_charged_are_not_handed_over(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision(cost=1.0))
        planned(ledger, fleet.desk(), 1)
        path = tmp_path / "plans" / "run-000001.json"
        path.write_bytes(path.read_bytes().replace(b'\\"grant\\":[1000000000]', b'\\"grant\\":[2000000000]', 1))
        with pytest.raises(LedgerDamaged, match="is not of what grant 1 was charged"):
            step(ledger, fleet.desk(), fleet.runner())


def test_another_plan_under_the_name_of_a_run_is_refused_by_engine_and_settlement(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
        runner = fleet.runner()
        send_out(ledger, fleet.desk(), runner)
        waited(lambda: runner.standing("run-000001") == Standing.ENDED)
        path = tmp_path / "plans" / "run-000001.json"
        kept = path.read_bytes()
        path.unlink()
        other = planned(ledger, fleet.desk(), 1)
        with pytest.raises(LedgerDamaged, match="another plan"):
            runner.start(other)
        with pytest.raises(LedgerDamaged, match="another plan"):
            settle_ended(ledger, runner, desk=fleet.desk())
        assert stage(ledger) == Stage.DISPATCHED
        path.write_bytes(kept)
        assert [each.word for each in settle_ended(ledger, runner, desk=fleet.desk())] == ["completed"]
