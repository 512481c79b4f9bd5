"""Does every charge end as the settlement table says, whatever raises, hangs, dies or is handed over twice?"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from fleets import Fleet

from dpbalance.clock import Deadline, FakeClock, RealClock, stopwatch
from dpbalance.errors import PlanRefused
from dpbalance.execution import Agent, Standing, TrainingSpec, plan_signer
from dpbalance.execution.dispatch import planned, send_out
from dpbalance.execution.form import canonical
from dpbalance.execution.grants import charged
from dpbalance.execution.link import FAILED, Served
from dpbalance.execution.runs import ORDER, RESULT, STARTED, Order, provenance
from dpbalance.execution.worker import Run
from dpbalance.feedback.settle import Settled, carry_out, judged, settle_ended, step
from dpbalance.ledger import Ledger, Stage, open_ledger

HERE = Path(__file__).parent
SLOW = TrainingSpec(rounds=5000, learning_rate=0.01)


def stage(ledger: Ledger, grant: int = 1) -> Stage:
    return charged(ledger, grant).stage


def spent(ledger: Ledger) -> set[int]:
    return {int(each.spent[0]) for each in ledger.balances()}


def waited(condition: object, seconds: float = 20.0) -> None:
    deadline = Deadline(seconds)
    while not condition():  # type: ignore[operator]
        assert not deadline.passed
        RealClock().sleep(0.02)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split()[2] == "Z"
    except OSError:
        return True


def worker(fleet: Fleet, run: str = "run-000001") -> int:
    path = fleet.place / "runs" / run / STARTED
    waited(path.exists)
    return int(json.loads(path.read_text())["pid"])


@contextmanager
def serving(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """An agent in a process of its own, as `dpbalance agent --serve` starts it."""
    program = "import sys; from dpbalance.cli import main; main(sys.argv[1:])"
    name = folder.name
    agent = subprocess.Popen(
        [sys.executable, "-c", program, "agent", "--device", name, "--blocks", str(folder), "--serve"]
    )
    try:
        waited((folder / ".dpbalance" / "agent.sock").exists)
        yield agent
    finally:
        agent.kill()
        agent.wait()


def carried(fleet: Fleet, ledger: Ledger, training: TrainingSpec | None = None, **more: float) -> Settled:
    (settled,) = carry_out(ledger, fleet.desk(training), fleet.runner(**more), seconds=40)
    return settled


def carried_all(fleet: Fleet, ledger: Ledger) -> list[Settled]:
    return carry_out(ledger, fleet.desk(TrainingSpec(rounds=3, quorum=0.5)), fleet.runner(), seconds=40)


def test_a_grant_is_trained_and_settled_with_its_provenance(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision(cost=20.0))
        settled = carried(fleet, ledger)
        assert (settled.word, stage(ledger)) == ("completed", Stage.COMPLETED)
        assert spent(ledger) == {20 * 10**9}
        ledger.verify().demand()
    result = settled.outcome.result
    assert result is not None
    assert result.accuracy is not None
    assert result.accuracy > 0.8
    assert len(result.receipts) == 3
    told = provenance(settled.outcome)
    assert {each["block"] for each in told["blocks"]} == set(fleet.sizes)
    assert all(each["spent_units"] <= each["granted_units"] for each in told["blocks"])
    assert told["epsilon"] > 0
    for device, folder in fleet.folders.items():
        (entry,) = Agent(folder).record.entries()
        assert entry.blocks == {f"{device}/w{at}": [20 * 10**9] for at in range(2)}


def test_a_device_that_refuses_is_left_out_while_the_quorum_holds(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    (fleet.folders["d1"] / "w0.npz").write_bytes(b"no data")
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
        settled = carried(fleet, ledger)
        assert settled.word == "completed"
        assert settled.outcome.result is not None
        assert [each.device for each in settled.outcome.result.dropped] == ["d1"]
        assert spent(ledger) == {10**9}


def test_an_empty_block_costs_its_device_the_place_and_nobody_else(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path, devices=2)
    (fleet.folders["d1"] / "w0.npz").write_bytes(b"")
    x = np.full((40, 6), "Alice Smith")
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision(2))
        settled = carried_all(fleet, ledger)
        np.savez(fleet.folders["d1"] / "w0.npz", x=x, y=np.zeros(40))
        ledger.charge(fleet.decision(names=("later",)))
        settled += carried_all(fleet, ledger)
    assert [each.word for each in settled] == ["completed"] * 3
    for each in settled:
        assert each.outcome.result is not None
        (dropped,) = each.outcome.result.dropped
        run = each.outcome.plan.run
        assert (dropped.device, dropped.reason) == (
            "d1",
            f"{run} is refused: block 'd1/w0' holds no records of 6 features",
        )
        log = (tmp_path / "runs" / run / "log.txt").read_text()
        assert "Traceback" not in log
        assert "Alice" not in log
    assert Agent(fleet.folders["d1"]).record.entries() == []


class Raising:
    """A device that does whatever nobody foresaw."""

    def __init__(self, problem: Exception) -> None:
        self.problem = problem

    def accept(self, envelope: object) -> object:
        raise self.problem

    def answer(self, run: str, number: int, parameters: object) -> bytes:
        raise self.problem

    loss = answer  # type: ignore[assignment]


@pytest.mark.parametrize(
    "problem", [ValueError("Alice"), EOFError("Alice"), zipfile.BadZipFile("Alice"), MemoryError("Alice")], ids=repr
)
def test_whatever_a_device_raises_it_alone_drops_out_and_its_words_stay_with_it(
    tmp_path: Path, problem: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = Fleet(place=tmp_path, devices=2)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
        plan = planned(ledger, fleet.desk(TrainingSpec(rounds=2, quorum=0.5)), 1)
    run = Run(plan, {"d0": Agent(fleet.folders["d0"]), "d1": Raising(problem)})
    assert np.isfinite(run.train()).all()
    assert [(each.device, each.reason) for each in run.dropped] == [("d1", FAILED)]
    assert "Alice" not in capsys.readouterr().out


def test_a_worker_that_breaks_off_leaves_no_words_of_the_problem(tmp_path: Path) -> None:
    order = Order(fleet=(), seconds=9.0, public="", courier=None)
    (tmp_path / ORDER).write_bytes(canonical(order))
    program = (
        "import sys; from dpbalance.execution import worker\n"
        "def broken(folder): raise ValueError('Alice')\n"
        "worker.carry_out = broken; sys.exit(worker.main(sys.argv[1:]))\n"
    )
    ended = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert FAILED in ended.stdout
    assert "Alice" not in ended.stdout + ended.stderr


def test_without_a_quorum_the_run_fails_and_stays_charged(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    for device in ("d0", "d1"):
        (fleet.folders[device] / "w0.npz").write_bytes(b"no data")
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
        settled = carried(fleet, ledger)
        assert (settled.word, stage(ledger), spent(ledger)) == ("error", Stage.FAILED, {10**9})
        assert "1 of 3 devices answered, 2 are needed" in settled.reason


def test_a_device_over_its_own_cap_gives_nothing(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    for device, folder in fleet.folders.items():
        Agent.enrol(folder, device, fleet.signer.public, cap=0.5)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
        settled = carried(fleet, ledger)
        assert (settled.word, stage(ledger)) == ("error", Stage.FAILED)
        assert all(not Agent(each).record.entries() for each in fleet.folders.values())


def test_a_killed_worker_is_lost_and_stays_charged(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
        desk, runner = fleet.desk(SLOW), fleet.runner()
        step(ledger, desk, runner)
        pid = worker(fleet)
        assert runner.standing("run-000001") == Standing.RUNNING
        os.kill(pid, signal.SIGKILL)
        waited(lambda: runner.standing("run-000001") == Standing.ENDED)
        (settled,) = settle_ended(ledger, runner)
        assert (settled.word, stage(ledger), spent(ledger)) == ("lost", Stage.FAILED, {10**9})
        assert step(ledger, desk, runner) == []
        assert gone(pid)


def test_a_run_over_its_time_is_ended_by_the_kernel(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
        settled = carried(fleet, ledger, SLOW, seconds=1.0)
        assert (settled.word, stage(ledger), spent(ledger)) == ("timeout", Stage.FAILED, {10**9})
    assert gone(worker(fleet))


def test_a_run_can_be_stopped_and_leaves_no_process(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
        runner = fleet.runner()
        step(ledger, fleet.desk(SLOW), runner)
        pid = worker(fleet)
        runner.stop("run-000001")
        assert gone(pid)
        (settled,) = settle_ended(ledger, runner)
        assert settled.word == "lost"


def test_a_killed_agent_is_lost_to_the_run_and_nobody_waits_for_it(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger, serving(fleet.folders["d0"]) as agent:
        ledger.charge(fleet.decision())
        runner = fleet.runner()
        step(ledger, fleet.desk(replace(SLOW, rounds=400)), runner)
        replies = fleet.folders["d0"] / ".dpbalance" / "run-000001.replies"
        waited(lambda: replies.exists() and replies.stat().st_size > 2000)
        agent.kill()
        agent.wait()
        waited(lambda: runner.standing("run-000001") == Standing.ENDED, 40)
        (settled,) = settle_ended(ledger, runner)
        assert settled.word == "completed"
        assert settled.outcome.result is not None
        assert [each.device for each in settled.outcome.result.dropped] == ["d0"]
        assert spent(ledger) == {10**9}
        assert len(Agent(fleet.folders["d0"]).record.entries()) == 1


def test_a_serving_agent_refuses_through_its_socket_and_sends_the_same_bytes(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger, serving(fleet.folders["d0"]):
        ledger.charge(fleet.decision())
        plan = planned(ledger, fleet.desk(), 1)
        link = Served(fleet.folders["d0"])
        link.accept(plan.plans[0])
        start = np.zeros(21)
        assert link.answer(plan.run, 0, start) == link.answer(plan.run, 0, start)
        with pytest.raises(PlanRefused, match="for device"):
            link.accept(plan.plans[1])
        with pytest.raises(PlanRefused, match="the model must be 21 numbers"):
            link.answer(plan.run, 1, start[:5])


def test_what_nobody_knows_how_to_train_is_given_back(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision(names=("unknown", "p")))
        settled = carry_out(ledger, fleet.desk(), fleet.runner(), seconds=40)
        assert [each.word for each in settled] == ["completed"]
        assert {stage(ledger, 1), stage(ledger, 2)} == {Stage.VOIDED, Stage.COMPLETED}
        assert spent(ledger) == {10**9}


def test_a_plan_that_expired_on_the_way_trains_nothing_and_stays_charged(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
        past = FakeClock(RealClock().now() - 7200.0)
        (settled,) = carry_out(ledger, fleet.desk(clock=past), fleet.runner(), seconds=40)
        assert (settled.word, stage(ledger), spent(ledger)) == ("error", Stage.FAILED, {10**9})
        assert all(not Agent(each).record.entries() for each in fleet.folders.values())


def test_a_plan_that_expired_before_it_was_dispatched_is_made_again(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
        planned(ledger, fleet.desk(clock=FakeClock(RealClock().now() - 7200.0)), 1)
        assert carried(fleet, ledger).word == "completed"


def test_a_plan_tampered_with_on_the_way_trains_nothing_and_stays_charged(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
        planned(ledger, fleet.desk(), 1)
        path = tmp_path / "plans" / "run-000001.json"
        path.write_bytes(path.read_bytes().replace(b'\\"local_steps\\":1', b'\\"local_steps\\":2'))
        settled = carried(fleet, ledger)
        assert (settled.word, stage(ledger), spent(ledger)) == ("error", Stage.FAILED, {10**9})
        assert all(not Agent(each).record.entries() for each in fleet.folders.values())


def test_a_run_handed_over_twice_is_carried_out_once(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
        first, second = fleet.runner(), fleet.runner()
        send_out(ledger, fleet.desk(), first)
        plan = planned(ledger, fleet.desk(), 1)
        first.start(plan)
        second.start(plan)
        assert second.free() == 2
        waited(lambda: second.standing("run-000001") == Standing.ENDED)
        assert [each.word for each in settle_ended(ledger, second)] == ["completed"]
        assert settle_ended(ledger, first) == []
        waited(lambda: first.free() == 2)
        assert all(len(Agent(each).record.entries()) == 1 for each in fleet.folders.values())


def test_ten_pipelines_over_fifty_devices_end_within_a_minute(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path, devices=50, blocks=2, size=50)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision(10))
        begun = stopwatch()
        settled = carry_out(ledger, fleet.desk(TrainingSpec(rounds=10)), fleet.runner(), seconds=120)
        seconds = stopwatch() - begun
        assert [each.word for each in settled] == ["completed"] * 10
        assert seconds < 60
        assert spent(ledger) == {10 * 10**9}


@pytest.mark.parametrize(
    ("at", "before", "after"),
    [
        ("plan", Stage.CHARGED, Stage.COMPLETED),
        ("dispatch", Stage.CHARGED, Stage.COMPLETED),
        ("start", Stage.DISPATCHED, Stage.COMPLETED),
        ("started", Stage.DISPATCHED, Stage.COMPLETED),
        ("settle", Stage.DISPATCHED, Stage.COMPLETED),
    ],
)
def test_a_scheduler_killed_at_any_step_is_followed_by_one_that_ends_it(
    tmp_path: Path, at: str, before: Stage, after: Stage
) -> None:
    fleet = Fleet(place=tmp_path, signer=plan_signer(tmp_path / "plan.key"))
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
    ended = subprocess.run([sys.executable, str(HERE / "execution_kills.py"), str(tmp_path), at], check=False)
    assert ended.returncode == -signal.SIGKILL
    with open_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        assert stage(ledger) == before
        settled = carry_out(ledger, fleet.desk(), fleet.runner(), seconds=40)
        assert (settled[0].word, stage(ledger), spent(ledger)) == ("completed", after, {10**9})
        ledger.verify().demand()
    assert all(len(Agent(each).record.entries()) == 1 for each in fleet.folders.values())
    assert gone(worker(fleet))


def test_success_is_judged_by_receipts_and_arrays_whatever_the_result_says_of_itself(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
        outcome = carried(fleet, ledger).outcome
    result = outcome.result
    assert result is not None
    assert judged(outcome) == ("completed", "")
    assert judged(replace(outcome, parameters=np.zeros(0)))[0] == "error"
    assert judged(replace(outcome, parameters=np.full(21, np.nan)))[0] == "error"
    assert judged(replace(outcome, parameters=None))[0] == "error"
    assert judged(replace(outcome, result=replace(result, receipts=result.receipts[:1])))[0] == "error"
    assert judged(replace(outcome, result=replace(result, receipts=result.receipts[:1] * 3)))[0] == "error"
    foreign = tuple(replace(each, plan="0" * 64) for each in result.receipts)
    assert judged(replace(outcome, result=replace(result, receipts=foreign)))[0] == "error"
    early = tuple(replace(each, round=1) for each in result.receipts)
    assert judged(replace(outcome, result=replace(result, rounds=2, receipts=early)))[0] == "stopped-early"
    assert judged(replace(outcome, result=None), overdue=True)[0] == "timeout"
    assert judged(replace(outcome, result=None))[0] == "lost"


def test_a_result_that_cannot_be_read_is_an_error_and_a_model_of_another_run_is_none(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision())
        runner = fleet.runner()
        carry_out(ledger, fleet.desk(), runner, seconds=40)
    model = tmp_path / "runs" / "run-000001" / "model.npz"
    model.write_bytes(model.read_bytes()[:-1])
    assert judged(runner.outcome("run-000001"))[0] == "error"
    (tmp_path / "runs" / "run-000001" / RESULT).write_text("{")
    assert judged(runner.outcome("run-000001"))[0] == "error"


def test_a_noised_loss_comes_back_where_no_public_data_tells(tmp_path: Path) -> None:
    fleet = Fleet(place=tmp_path)
    training = TrainingSpec(rounds=3, learning_rate=4.0, loss_share=0.1)
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision(cost=50.0))
        runner = fleet.runner()
        runner._public = None
        (settled,) = carry_out(ledger, fleet.desk(training), runner, seconds=40)
    assert settled.outcome.result is not None
    assert settled.outcome.result.loss_kind == "noised"
    assert settled.outcome.result.accuracy is None
    assert settled.outcome.result.loss == pytest.approx(0.6, abs=0.6)
