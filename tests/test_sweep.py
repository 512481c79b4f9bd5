"""Are the results of a sweep the same bytes whoever ran it, and however often it was stopped?"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars
import pytest

import dpbalance.cli.progress
import dpbalance.simulate.cell
from dpbalance.cli.app import INTERRUPTED, main
from dpbalance.cli.progress import progress
from dpbalance.errors import DPBalanceError, OptionError
from dpbalance.scheduler import scheduler
from dpbalance.simulate import Cell, cells, run, sweep, workload
from dpbalance.simulate.cell import read_cell, run_cell
from dpbalance.simulate.results import estimate
from dpbalance.simulate.workers import ONE_THREAD, answers, one_thread_each

FILES = ("pipelines.parquet", "rounds.parquet", "summary.json")
SMALL = {"devices": [10], "rounds": [3], "pipelines_each": [6]}
COMMAND = ("simulate", "--rounds", "3", "--set", "devices=10", "--set", "pipelines_each=6", "--seeds", "8")
COMMAND = (*COMMAND, "--schedulers", "dpbalance,dpf,fcfs", "--beta", "0.5,2.2", "--bound")


def wanted(seeds: int = 8) -> tuple[Cell, ...]:
    """The cells of COMMAND."""
    return cells("paper", SMALL, ["dpbalance", "dpf", "fcfs"], {"beta": [0.5, 2.2]}, range(seeds), bound=True)


def contents(out: Path) -> dict[str, bytes]:
    """Everything a sweep leaves behind."""
    return {str(each.relative_to(out)): each.read_bytes() for each in out.rglob("*") if each.is_file()}


def started(out: Path, *more: str, **environment: str) -> subprocess.Popen[str]:
    """COMMAND in a process group of its own."""
    command = [sys.executable, "-c", "from dpbalance.cli import main; main()", *COMMAND, "--out", str(out), *more]
    return subprocess.Popen(
        command,
        start_new_session=True,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def until(happened: Callable[[], bool]) -> None:
    for _ in range(6000):
        if happened():
            return
        time.sleep(0.005)
    raise AssertionError("it did not happen in half a minute")


def gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    return False


def finished(out: Path) -> int:
    return len(list((out / "cells").glob("*.json.gz")))


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """What comes of the cells in one go, in this process."""
    out = tmp_path_factory.mktemp("whole")
    sweep(wanted(), out)
    found = contents(out)
    assert set(FILES) | {f"cells/{cell.key}.json.gz" for cell in wanted()} == set(found)
    return found


def test_killed_half_way_and_resumed_the_results_are_the_same_bytes(tmp_path: Path, whole: dict[str, bytes]) -> None:
    killed = started(tmp_path, "--workers", "2")
    until(lambda: finished(tmp_path) >= 3)
    killed.kill()
    killed.communicate()
    until(lambda: gone(killed.pid))  # its workers do not outlive it
    before = finished(tmp_path)
    assert 3 <= before < len(wanted())
    assert not (tmp_path / "summary.json").exists()
    (tmp_path / "cells" / f"{wanted()[-1].key}.json.gz.tmp").write_bytes(b"half of a")
    told: list[int] = []
    sweep(wanted(), tmp_path, progress=lambda done, total: told.append(done))
    assert told == list(range(before, len(wanted()) + 1))
    assert contents(tmp_path) == whole


def test_interrupted_it_ends_without_fuss_and_keeps_what_is_finished(tmp_path: Path) -> None:
    stopped = started(tmp_path, "--workers", "2")
    until(lambda: finished(tmp_path) >= 1)
    os.killpg(stopped.pid, signal.SIGINT)
    out, err = stopped.communicate(timeout=30)
    assert stopped.returncode == INTERRUPTED
    assert out == ""
    assert "Traceback" not in err
    assert 1 <= finished(tmp_path) < len(wanted())
    assert all(read_cell(each.read_bytes(), cell) for cell in wanted() if (each := path_of(tmp_path, cell)).exists())


def path_of(out: Path, cell: Cell) -> Path:
    return out / "cells" / f"{cell.key}.json.gz"


def test_two_processes_write_the_same_bytes_as_one(tmp_path: Path, whole: dict[str, bytes]) -> None:
    sweep(wanted(), tmp_path, workers=2)
    assert contents(tmp_path) == whole


def test_ray_writes_the_same_bytes(tmp_path: Path, whole: dict[str, bytes]) -> None:
    out, home = tmp_path / "out", tmp_path / "home"
    home.mkdir()
    ended = started(out, "--workers", "ray", "--quiet", "--format", "json", HOME=str(home))
    printed, told = ended.communicate(timeout=120)
    assert ended.returncode == 0, told
    assert contents(out) == whole
    assert json.loads(printed)["summary"] == json.loads(whole["summary.json"])
    until(lambda: gone(ended.pid))


def test_damaged_cells_are_run_again(tmp_path: Path, whole: dict[str, bytes]) -> None:
    sweep(wanted(), tmp_path)
    cut, empty, flipped, mixed_up, intact = (path_of(tmp_path, cell) for cell in wanted()[:5])
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    cut.write_bytes(cut.read_bytes()[:-20])
    empty.write_bytes(b"")
    mixed_up.write_bytes(intact.read_bytes())
    told: list[int] = []
    sweep(wanted(), tmp_path, progress=lambda done, total: told.append(done))
    assert told[0] == len(wanted()) - 4
    assert contents(tmp_path) == whole


def test_a_folder_of_other_cells_is_refused_and_one_of_some_of_them_goes_on(tmp_path: Path) -> None:
    few, many = wanted(1), wanted(2)
    sweep(few, tmp_path)
    before = contents(tmp_path)
    with pytest.raises(OptionError, match="6 cells that are not among the 6") as refused:
        sweep(many[len(few) :], tmp_path)
    assert "another folder" in refused.value.hint
    assert contents(tmp_path) == before
    told: list[int] = []
    sweep(many, tmp_path, progress=lambda done, total: told.append(done))
    assert told[0] == len(few)
    with pytest.raises(OptionError, match="are not among"):
        sweep(few, tmp_path)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_first_failure_ends_a_sweep_as_itself(workers: int, tmp_path: Path) -> None:
    broken = replace(wanted()[1], parameters={"devices": 0})
    with pytest.raises(OptionError, match="devices must be at least 1") as failed:
        sweep([wanted()[0], broken], tmp_path, workers=workers)
    assert failed.value.row.code == "DPB-104"


def suicide(item: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return item


def test_a_worker_that_vanishes_is_told_in_words() -> None:
    with pytest.raises(DPBalanceError, match="a worker process ended without an answer") as failed:
        list(answers(suicide, [1, 2], 2))
    assert "fewer workers" in failed.value.hint


def test_workers_get_one_thread_each() -> None:
    before = dict(os.environ)
    with one_thread_each():
        assert set(ONE_THREAD.items()) <= set(os.environ.items())
    assert dict(os.environ) == before


@pytest.mark.parametrize(
    ("workers", "missing", "message"),
    [
        (0, None, "workers must be at least 1, not 0"),
        (True, None, "workers must be at least 1, not True"),
        ("many", None, "workers must be a number, ray, or ray://HOST:PORT, not 'many'"),
        ("ray", "ray", "pip install 'dpbalance[ray]'"),
        (1, "polars", "pip install 'dpbalance[results]'"),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_run(
    workers: Any, missing: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if missing:
        monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(OptionError) as refused:
        sweep(wanted(), tmp_path, workers=workers)
    assert message in str(refused.value)
    assert contents(tmp_path) == {}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"workload": "pepper"}, "there is no workload 'pepper'"),
        ({"parameters": {"devises": [1]}}, "has no parameter 'devises'"),
        ({"parameters": {"devices": [0]}}, "devices must be at least 1"),
        ({"parameters": {"devices": 10}}, "'devices' takes a list of values"),
        ({"options": {"gamma": [1.0]}}, "none of dpf has an option 'gamma'"),
        ({"options": {"beta": [-1.0]}}, "beta must be a number from 0"),
    ],
)
def test_cells_that_cannot_be_run_are_refused_when_they_are_made(change: dict[str, Any], message: str) -> None:
    given = {"workload": "paper", "parameters": {}, "schedulers": ["dpf"], "options": {}, "seeds": [0]}
    with pytest.raises(OptionError, match=message):
        cells(**(given | change))  # type: ignore[arg-type]


def test_equal_cells_have_equal_keys_and_others_have_not() -> None:
    made = cells("paper", {"interval": [10, 20]}, ["dpbalance", "dpf"], {"beta": [2, 2.0], "lam": [None]}, [0, 1])
    assert len(made) == len({cell.key for cell in made}) == 2 * 2 * 2  # an option goes to those that have it, once
    assert [cell.seed for cell in made] == [0, 0, 1, 1] * 2
    assert made[0] == replace(made[0], parameters={"interval": 10.0})
    changes = ({"seed": 7}, {"bound": True}, {"options": {}}, {"scheduler": "fcfs"}, {"parameters": {}})
    assert len({made[0].key, *(replace(made[0], **change).key for change in changes)}) == 1 + len(changes)
    endless = cells("paper", {}, ["dpf"], {"beta": [float("inf")]}, [0])[0]
    assert endless.document["options"] == {"beta": "inf"}


def test_the_tables_hold_what_the_runs_hold(whole: dict[str, bytes], tmp_path: Path) -> None:
    for name in FILES[:2]:
        (tmp_path / name).write_bytes(whole[name])
    rounds, pipelines = (polars.read_parquet(tmp_path / name) for name in ("rounds.parquet", "pipelines.parquet"))
    at, cell = next((at, each) for at, each in enumerate(wanted()) if each.scheduler == "dpf" and each.seed == 1)
    done = run(workload("paper", **cell.parameters).trace(1), scheduler("dpf", **cell.options), analysts=True)
    assert done.metrics is not None
    mine = rounds.filter(polars.col("cell") == at)
    assert mine.select("scheduler", "option_beta", "parameter_devices", "seed").unique().rows() == [("dpf", 0.5, 10, 1)]
    assert mine["utility"].to_list() == [each.utility for each in done.analysts]
    assert mine.unique("round")["efficiency"].sum() == pytest.approx(done.metrics.efficiency)
    assert (mine["efficiency"] <= mine["bound"]).all()
    assert pipelines.filter(polars.col("cell") == at)["waited"].to_list() == [each.waited for each in done.pipelines]


def test_where_there_are_too_many_analysts_a_row_is_about_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dpbalance.simulate.cell, "ANALYSTS_MAX", 2)
    cell = wanted()[0]
    columns = read_cell(run_cell(cell), cell)["rounds"]
    assert columns["analyst"] == [None] * 3
    assert columns["round"] == [0, 1, 2]
    assert all(asked == granted + waiting for asked, granted, waiting in rows(columns, "asked", "granted", "waiting"))


def rows(columns: dict[str, list[Any]], *names: str) -> Sequence[tuple[Any, ...]]:
    return list(zip(*(columns[name] for name in names), strict=True))


def test_the_summary_is_about_seeds_and_about_differences_on_the_same_seed(whole: dict[str, bytes]) -> None:
    summary = json.loads(whole["summary.json"])
    results = sweep(wanted(), reference="fcfs")
    assert summary["reference"] == "dpbalance"
    assert [(each["scheduler"], each["options"]["beta"], each["seeds"]) for each in summary["groups"]] == [
        (name, beta, 8) for name in ("dpbalance", "dpf", "fcfs") for beta in (0.5, 2.2)
    ]
    assert summary["groups"] == results.summary["groups"]
    assert len(results.summary["differences"]) == 4

    def efficiencies(name: str) -> list[float]:
        both = zip(results.cells, results.measures, strict=True)
        return [
            measures["efficiency"] or 0.0
            for cell, measures in both
            if cell.scheduler == name and cell.options["beta"] == 0.5
        ]

    ahead = [mine - theirs for mine, theirs in zip(efficiencies("dpf"), efficiencies("fcfs"), strict=True)]
    told = next(each for each in results.summary["differences"] if each["scheduler"] == "dpf")
    assert told["minus"]["scheduler"] == "fcfs"
    assert told["measures"]["efficiency"] == estimate(ahead)
    with pytest.raises(OptionError, match="the reference 'dpk' is none of dpbalance, dpf, fcfs"):
        sweep(wanted(1), reference="dpk")


def test_one_seed_has_a_mean_and_no_interval() -> None:
    assert estimate([3.0]) == {"n": 1, "mean": 3.0, "sd": None, "low": None, "high": None}
    assert estimate([None]) == {"n": 0, "mean": None, "sd": None, "low": None, "high": None}


def test_the_command_prints_what_it_keeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = ("simulate", "--rounds", "2", "--set", "devices=5,6", "--set", "pipelines_each=4", "--seeds", "2")
    quick = (*quick, "--schedulers", "dpf,fcfs", "--quiet", "--out", str(tmp_path))
    for shape in ("json", "table"):
        with pytest.raises(SystemExit) as ended:
            main([*quick, "--format", shape])
        assert ended.value.code == 0
        told = capsys.readouterr()
        assert told.err == ""
        if shape == "json":
            document = json.loads(told.out)
            assert document["summary"] == json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))
            assert len(document["rows"]) == 2 * 2 * 2
        else:
            assert "paper, 2 seeds: means +- 95% interval" in told.out
            assert "How much more than dpf, on the same seeds" in told.out
            assert "devices 6, pipelines_each 4, rounds 2" in told.out


def test_who_waits_longer_than_two_seconds_is_told_how_long(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter([0.0, 0.0, 1.0, 3.0, 4.0, 10.0, 11.0])
    monkeypatch.setattr(dpbalance.cli.progress, "stopwatch", lambda: next(times))
    with progress("simulating") as tell:
        assert tell is not None
        for done in range(10, 16):
            tell(done, 15)
    assert capsys.readouterr().err.splitlines() == [
        "dpbalance: simulating: 12 of 15, about 4 s to go ...",
        "dpbalance: simulating: 14 of 15, about 2 s to go ...",
    ]
    with progress("simulating", quiet=True) as tell:
        assert tell is None
