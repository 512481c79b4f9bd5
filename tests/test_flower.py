"""Does a run through a real SuperLink end as the settlement table says, with nodes, agents and the server killed?"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fleets import Fleet
from flowers import Garden, installed

from dpbalance.clock import stopwatch
from dpbalance.errors import EngineError
from dpbalance.execution import Agent, LocalRunner, Standing, TrainingSpec
from dpbalance.execution.flower_engine import courier_of, write_connection
from dpbalance.execution.grants import charged
from dpbalance.feedback.settle import Settled, settle_ended, step
from dpbalance.ledger import Ledger, Stage

ANSWER_SECONDS = 20.0


def ended(garden: Garden, ledger: Ledger, runner: LocalRunner, run: str) -> Settled:
    garden.until(lambda: runner.standing(run) in (Standing.ENDED, Standing.OVERDUE), 150)
    (settled,) = settle_ended(ledger, runner)
    return settled


def answered(fleet: Fleet, device: str, run: str) -> bool:
    path = fleet.folders[device] / ".dpbalance" / f"{run}.replies"
    return path.exists() and path.stat().st_size > 0


def of_flower(place: Path) -> list[str]:
    """Processes that have anything to do with this place's SuperLink."""
    listed = subprocess.run(["ps", "axo", "stat,args"], capture_output=True, text=True, check=True).stdout
    return [line for line in listed.splitlines() if str(place) in line and not line.startswith("Z")]


def test_a_run_through_a_real_superlink_survives_lost_nodes_and_fails_charged_without_a_server(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    (fleet.folders["d1"] / "w0.npz").write_bytes(b"no data")  # this one raises when it is to train
    garden = Garden(fleet=fleet, binaries=installed())
    try:
        garden.start()
        with fleet.ledger() as ledger:
            ledger.charge(fleet.decision(2))
            desk = fleet.desk(TrainingSpec(rounds=3, learning_rate=4.0, quorum=0.3))
            runner = garden.runner(answer=ANSWER_SECONDS, at_once=1, seconds=150.0)
            step(ledger, desk, runner)
            garden.until(lambda: answered(fleet, "d0", "run-000001"), 90)
            garden.kill("node d0")  # one is left, which is the quorum
            first = ended(garden, ledger, runner, "run-000001")
            assert (first.word, charged(ledger, 1).stage) == ("completed", Stage.COMPLETED), first.reason
            assert first.outcome.result is not None
            assert {each.device for each in first.outcome.result.dropped} == {"d0", "d1"}
            assert {each.device for each in first.outcome.result.receipts} == {"d2"}
            garden.node("d0")
            garden.until(runner.free)
            step(ledger, desk, runner)
            garden.until(lambda: answered(fleet, "d2", "run-000002"), 90)
            garden.kill("agent d2")
            garden.kill("superlink")
            begun = stopwatch()
            second = ended(garden, ledger, runner, "run-000002")
            assert (second.word, charged(ledger, 2).stage) == ("error", Stage.FAILED)
            assert stopwatch() - begun < 4 * ANSWER_SECONDS
            assert {int(each.spent[0]) for each in ledger.balances()} == {2 * 10**9}
        for folder in fleet.folders.values():
            runs = [each.run for each in Agent(folder).record.entries()]
            assert len(runs) == len(set(runs))
    finally:
        garden.stop()
    garden.until(lambda: not of_flower(tmp_path), 30)


def test_without_tls_only_a_superlink_on_this_machine_is_accepted(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="TLS"):
        write_connection(tmp_path, "fleet.example:9093", None)
    write_connection(tmp_path, "fleet.example:9093", tmp_path / "root.pem")
    assert "root-certificates" in (tmp_path / "config.toml").read_text()
    write_connection(tmp_path, "127.0.0.1:9093", None)
    assert "insecure = true" in (tmp_path / "config.toml").read_text()


def test_what_is_not_installed_or_not_connected_says_so(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="no Flower"):
        courier_of(tmp_path)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "flwr").touch()
    with pytest.raises(EngineError, match="no SuperLink"):
        courier_of(tmp_path)
