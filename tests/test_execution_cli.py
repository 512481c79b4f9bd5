"""Can an owner enrol a device, an operator carry out what waits, and an analyst fetch a model, all from a terminal?"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from fleets import Fleet
from typer.testing import CliRunner

from dpbalance.cli.app import app
from dpbalance.errors import DPBalanceError, EngineError, FileFormatError, OptionError
from dpbalance.execution import Agent, plan_signer


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_the_whole_way_from_a_charge_to_a_model_in_a_terminal(tmp_path: Path) -> None:
    key = tmp_path / "plan.key"
    fleet = Fleet(place=tmp_path, signer=plan_signer(key))
    told = {
        "format": "dpbalance-fleet/1",
        "devices": {name: str(folder.relative_to(tmp_path)) for name, folder in fleet.folders.items()},
        "sizes": fleet.sizes,
        "jobs": {"*": {"model": {"kind": "mlp", "features": 6, "classes": 3, "hidden": 4}, "training": {"rounds": 2}}},
    }
    (tmp_path / "fleet.json").write_text(json.dumps(told))
    with fleet.ledger() as ledger:
        ledger.charge(fleet.decision(2))
    runs = ("--runs", str(tmp_path / "runs"))
    database = ("--database", f"sqlite:///{tmp_path / 'ledger.db'}")
    command = ("run", "carry-out", str(tmp_path / "fleet.json"), "--plan-key", str(key), *runs, *database)
    settled = json.loads(printed(*command, "--format", "json"))["settled"]
    assert [each["outcome"] for each in settled] == ["completed"] * 2
    assert "Settled: 0" in printed(*command)
    assert "completed" in printed("run", "list", *runs)
    assert "record within a block" in printed("run", "show", "run-000001", *runs)
    assert "finished after 2 rounds" in printed("run", "logs", "run-000001", *runs)
    out = tmp_path / "mine.npz"
    assert str(out) in printed("run", "model", "run-000001", "--out", str(out), *runs)
    assert json.loads(out.with_suffix(".json").read_text())["blocks"][0]["granted_units"] == [10**9]
    assert "by this run, for a record within a block" in printed("run", "show", "run-000001", *runs)
    for name in ("run-9", "../runs/run-000001", "..", ".", "", "plans", "run-000001/", "run-000002/../run-000001"):
        for command in (["show"], ["logs"], ["model", "--out", str(tmp_path / "no.npz")]):
            with pytest.raises(EngineError, match="no run"):
                printed("run", command[0], name, *command[1:], *runs)
    left = json.loads(printed("agent", "--device", "d0", "--blocks", str(fleet.folders["d0"]), "--format", "json"))
    assert left["plans"] == 2
    assert left["blocks"][0] == {"block": "d0/w0", "left_units": [98 * 10**9]}


def test_a_device_is_enrolled_by_its_owner_with_a_key_and_a_cap(tmp_path: Path) -> None:
    key = plan_signer(None).public
    told = printed(
        "agent", "--device", "d", "--blocks", str(tmp_path), "--trust", key, "--cap", "2.5", "--orders", "2,8"
    )
    assert "d: 0 plans accepted" in told
    assert Agent(tmp_path).enrolment.cap == (2_500_000_000,) * 2
    for wrong in (["--trust", key], ["--cap", "1"], []):
        with pytest.raises(OptionError):
            printed("agent", "--device", "e", "--blocks", str(tmp_path), *wrong)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": "x"}', '{"format": "dpbalance-fleet/1", "devices": 1, "sizes": {}, "jobs": {}}']
)
def test_a_file_that_is_no_fleet_says_so(tmp_path: Path, text: str) -> None:
    (tmp_path / "fleet.json").write_text(text)
    with pytest.raises(FileFormatError, match=r"fleet\.json"):
        printed("run", "carry-out", str(tmp_path / "fleet.json"), "--plan-key", str(tmp_path / "key"))


def test_a_job_that_cannot_be_is_told(tmp_path: Path) -> None:
    jobs = {"p": {"model": {"kind": "forest", "features": 6, "classes": 3}}}
    told = {"format": "dpbalance-fleet/1", "devices": {}, "sizes": {}, "jobs": jobs}
    (tmp_path / "fleet.json").write_text(json.dumps(told))
    with pytest.raises(DPBalanceError, match="forest"):
        printed("run", "carry-out", str(tmp_path / "fleet.json"), "--plan-key", str(tmp_path / "key"))
