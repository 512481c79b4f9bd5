"""Do workloads have the shape they are named for, and do their parameters refuse what cannot be?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from dpbalance import paper_round
from dpbalance.accounting import ALPHAS, capacity
from dpbalance.cli.app import app, main
from dpbalance.errors import DPBalanceError, FileFormatError, OptionError
from dpbalance.scheduler import scheduler
from dpbalance.simulate import Trace, read_trace, run, trace_to_json, workload, write_trace
from dpbalance.simulate.workload import WORKLOADS, parameters_from, parameters_of

SMALL: dict[str, dict[str, Any]] = {
    "paper": {"rounds": 3, "devices": 10, "pipelines_each": 5},
    "privatekube-single": {"duration": 60.0},
    "privatekube-multi": {"duration": 10.0},
    "dpack-mixed": {"pipelines_per_block": 8.0, "blocks": 15},
    "alibaba-dp": {"pipelines_per_block": 8.0, "blocks": 15},
}


def small(name: str, seed: int = 0, **more: Any) -> Trace:
    return workload(name, **SMALL[name] | more).trace(seed)


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_trace_depends_on_the_seed_and_on_nothing_else(name: str) -> None:
    assert trace_to_json(small(name)) == trace_to_json(small(name))
    assert trace_to_json(small(name)) != trace_to_json(small(name, 1))


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_recorded_workload_replays_identically(name: str, tmp_path: Path) -> None:
    trace = small(name)
    write_trace(trace, tmp_path / "trace.json.gz")
    again = read_trace(tmp_path / "trace.json.gz")
    for field in ("cost", "unrounded", "submitted", "loss", "weight", "capacity", "owner", "block", "start"):
        assert np.array_equal(getattr(trace.market, field), getattr(again.market, field)), field
    assert trace.market.pipelines == again.market.pipelines
    for decider in (scheduler("dpf"), scheduler("dpbalance", max_multiple=2.0)):
        first, second = run(trace, decider, check=True), run(again, decider)
        assert first.pipelines == second.pipelines
        assert len(first.granted) > 0


def test_the_paper_workload_is_the_one_of_the_evaluation() -> None:
    trace = workload("paper", arrivals="fixed").trace(0)
    market = trace.market
    assert (len(market.blocks), len(market.pipelines), len(market.analysts)) == (2000, 1500, 60)
    assert list(trace.moments()) == [10.0 * at for at in range(11)]
    assert np.all((market.capacity >= 10**9) & (market.capacity <= 15 * 10**8))
    assert np.all(market.capacity.reshape(100, 20) == market.capacity.reshape(100, 20)[:, :1])  # one number a device
    large = market.unrounded > 0.05
    assert large.sum() == 10 * round(0.25 * 150)
    assert np.all((market.unrounded[large] >= 0.095) & (market.unrounded[large] <= 0.105 + 1e-9))
    assert np.all((market.unrounded[~large] >= 0.005) & (market.unrounded[~large] <= 0.015 + 1e-9))
    counts = np.diff(market.start)
    assert set(counts) <= {20, 100, 40, 200, 80, 400, 120, 600, 160, 800, 1000}  # fifths or all, latest 1 or up to 10
    came = np.maximum.reduceat(trace.block_arrived[market.block], market.start[:-1])
    assert np.array_equal(came, np.floor(market.submitted / 10) * 10)  # the newest blocks there are
    done = run(trace, scheduler("dpbalance"), analysts=True)
    assert len(done.rounds) == 10
    assert {each.asked for each in done.analysts if each.time == 10.0} == {25}


def test_one_round_of_the_paper_is_what_it_was() -> None:
    round_ = paper_round(devices=10, windows=5, analysts=3, pipelines_each=4, seed=2)
    assert (len(round_.blocks), len(round_.pipelines), round_.now) == (50, 12, 100.0)
    assert round_.blocks[-1] == "d9/w4"
    assert np.array_equal(np.sort(round_.unrounded > 0.05), np.arange(12) >= 9)


def test_privatekube_renyi_counts_gaussian_noise_at_its_orders() -> None:
    trace = small("privatekube-single", renyi=True)
    assert trace.market.orders == (1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0)
    mouse = trace.market.cost[np.argmin(trace.market.unrounded)]
    variance = 2 * np.log(1.25 / 1e-9) / 0.01**2
    assert mouse == pytest.approx(1e9 * np.array(trace.market.orders) / (2 * variance), abs=1)
    assert np.array_equal(trace.market.capacity[0], capacity(1.0, 1e-6, trace.market.orders))


def test_privatekube_multi_asks_for_the_latest_blocks() -> None:
    trace = workload("privatekube-multi").trace(0)
    assert len(trace.market.blocks) == 12 + 29
    assert 3600 < len(trace.market.pipelines) < 4100
    counts = np.diff(trace.market.start)
    assert set(counts) == {1, 10}
    assert 0.2 < np.mean(counts == 10) < 0.3
    last = trace.market.block[trace.market.start[1:] - 1]
    assert np.array_equal(last, 11 + np.floor(trace.market.submitted / 10).clip(0, 29))


def test_fcfs_on_arrival_against_the_whole_capacity_is_privatekubes_own() -> None:
    trace = small("privatekube-single", unlock_after=None, timeout=0.0)
    done = run(trace, scheduler("fcfs"))
    assert {each.waited for each in done.pipelines} == {0.0}


def test_the_best_order_gives_the_epsilon_that_was_asked_for() -> None:
    price = np.log(1 / 1e-7) / (np.array(ALPHAS) - 1)
    for epsilon in (0.5, 1.0, 3.0):
        laplace, gauss, sampled = workload("dpack-mixed", sampling_steps=200)._curves(epsilon)
        assert np.max(laplace) <= 1e9 * epsilon
        assert np.min(sampled / 1e9 + price) == pytest.approx(epsilon, rel=1e-6)
        assert epsilon <= np.min(gauss / 1e9 + price) <= 1.1 * epsilon  # its own best order is between two of ours


@pytest.mark.parametrize("spread", ["uniform", "zipf"])
def test_analysts_can_be_dealt_to_every_stream_of_pipelines(spread: str) -> None:
    for name in list(WORKLOADS)[1:]:
        alone = small(name)
        assert len(alone.market.analysts) == len(alone.market.pipelines)
        trace = small(name, analysts=4, spread=spread)
        each = np.bincount(trace.market.owner)
        assert len(each) == len(trace.market.analysts) == 4
        assert each.max() - each.min() <= 1 if spread == "uniform" else each[0] > each[3]
        assert np.array_equal(trace.market.submitted, alone.market.submitted)


def test_drawn_tasks_follow_power_laws() -> None:
    market = (
        workload("alibaba-dp", blocks_at_start=200, blocks=201, pipelines_at_start=2000, laplace_share=1.0)
        .trace(0)
        .market
    )
    counts = np.diff(market.start)
    assert (counts.min(), counts.max() <= 100) == (1, True)
    assert 0.4 < np.mean(counts == 1) < 0.6
    largest = market.cost.max(axis=1)[market.start[:-1]] / 1e9
    assert np.mean(largest > 10) < np.mean(largest > 1) < 0.2
    assert largest.max() <= 1000


CURVE = [0.1 * at for at in range(1, 13)]


def tasks(tmp_path: Path, *rows: dict[str, Any], drop: str = "") -> str:
    columns = ["task_name", "n_blocks", "alphas", "rdp_epsilons", "submit_time", "profit", "block_selection_policy"]
    columns = [each for each in columns if each != drop]
    usual = {"n_blocks": 2, "alphas": list(ALPHAS), "rdp_epsilons": CURVE, "submit_time": 5, "profit": 3}
    lines = [",".join(columns)]
    lines += [",".join(f'"{(usual | row).get(column, "")}"' for column in columns) for row in rows]
    (tmp_path / "tasks.csv").write_text("\n".join(lines) + "\n")
    return str(tmp_path / "tasks.csv")


def test_published_tasks_are_read_by_their_columns(tmp_path: Path) -> None:
    path = tasks(tmp_path, {}, {"submit_time": 7.5, "n_blocks": 101}, {"submit_time": 6, "profit": ""})
    trace = small("alibaba-dp", file=path, time_scale=2.0)
    assert trace.market.submitted.tolist() == [0.0, 2.0]
    assert trace.market.weight.tolist() == [3.0, 1.0]
    assert np.diff(trace.market.start).tolist() == [2, 2]
    assert trace.market.cost[0] == pytest.approx(1e9 * np.array(CURVE))


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"n_blocks": 0}, "line 2: n_blocks must be a number in range, not '0'"),
        ({"profit": -1}, "line 2: profit must be a number in range"),
        ({"submit_time": "now"}, "line 2: submit_time must be a number in range, not 'now'"),
        ({"alphas": [2, 4]}, "line 2: alphas must be"),
        ({"rdp_epsilons": "much"}, "line 2: rdp_epsilons must be a list of numbers, not 'much'"),
        ({"rdp_epsilons": [0] * 12}, "line 2: rdp_epsilons must be numbers from 0"),
    ],
)
def test_a_task_that_cannot_be_is_named_by_its_line(row: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=message):
        small("alibaba-dp", file=tasks(tmp_path, row))


def test_a_file_of_tasks_without_a_column_or_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="lacks the column 'alphas'"):
        small("alibaba-dp", file=tasks(tmp_path, {}, drop="alphas"))
    with pytest.raises(FileFormatError, match="cannot read"):
        small("alibaba-dp", file=str(tmp_path / "none.csv"))


@pytest.mark.parametrize(
    ("name", "parameter", "value", "message"),
    [
        ("paper", "devices", 0, "devices must be at least 1 and at most 1e\\+07, not 0"),
        ("paper", "devices", 2.5, "'devices' must be a whole number, not '2.5'"),
        ("paper", "elephant_share", 1.5, "elephant_share must be at least 0 and at most 1, not 1.5"),
        ("paper", "device_share", 0.0, "device_share must be above 0 and at most 1, not 0.0"),
        ("paper", "mouse_low", 0.5, "mouse_low must be at most mouse_high, 0.015, not 0.5"),
        ("paper", "interval", float("inf"), "interval must be above 0, not inf"),
        ("paper", "arrivals", "often", "'arrivals' must be 'poisson' or 'fixed', not 'often'"),
        ("paper", "windows", 3, "workload 'paper' has no parameter 'windows'; it has rounds, interval"),
        ("dpack-mixed", "blocks", 3, "blocks_at_start must be at most blocks, 3, not 10"),
        ("privatekube-single", "unlock_after", 0, "unlock_after must be at least 1"),
        ("alibaba-dp", "spread", "even", "'spread' must be 'uniform' or 'zipf'"),
        ("alibaba", "spread", "even", "there is no workload 'alibaba'; known are paper, "),
    ],
)
def test_a_wrong_parameter_is_named_with_what_is_allowed(name: str, parameter: str, value: Any, message: str) -> None:
    with pytest.raises(OptionError, match=message):
        workload(name, **{parameter: value})


def test_parameters_come_from_a_file_and_from_texts_which_win(tmp_path: Path) -> None:
    config = tmp_path / "paper.toml"
    config.write_text('devices = 7\ntimeout = 30\narrivals = "fixed"\n')
    found = parameters_from("paper", config, {"devices": "9", "timeout": "none"})
    assert found == {"devices": 9, "timeout": None, "arrivals": "fixed"}
    for text, message in (
        ("devices = 'x'", "'devices'"),
        ("device = 1", "no parameter 'device'"),
        ("devices", "cannot"),
    ):
        config.write_text(text)
        with pytest.raises(DPBalanceError, match=message):
            parameters_from("paper", config, {})


def test_every_parameter_has_a_default_and_a_help() -> None:
    for name in WORKLOADS:
        for each in parameters_of(name):
            assert each.help.endswith("."), (name, each)
            assert each.checked(each.default) == each.default


def printed(*arguments: str) -> str:
    done = CliRunner().invoke(app, list(arguments), catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


QUICK = ("simulate", "--rounds", "2", "--set", "devices=5", "--set", "pipelines_each=4")


def test_simulate_runs_every_scheduler_with_every_beta_and_seed(tmp_path: Path) -> None:
    rows = json.loads(printed(*QUICK, "--beta", "0.5,5", "--lam", "0,1", "--seeds", "2", "--format", "json"))["rows"]
    assert len(rows) == 2 * (4 + 2 + 2 + 2)
    assert {row["scheduler"] for row in rows} == {"dpbalance", "dpf", "dpk", "fcfs"}
    assert {row["options"].get("lam") for row in rows if row["scheduler"] == "dpbalance"} == {0.0, 1.0}
    shown = printed(*QUICK, "--schedulers", "dpf")
    assert "paper, 1 seed" in shown
    assert "beta 2.2" in shown


def test_what_simulate_records_replay_repeats(tmp_path: Path) -> None:
    path = str(tmp_path / "trace.json.gz")
    row = json.loads(printed(*QUICK, "--schedulers", "dpk", "--record", path, "--format", "json"))["rows"][0]
    replay = json.loads(printed("replay", path, "--scheduler", "dpk", "--check", "--format", "json"))
    assert replay["count"] == len(replay["granted"]) == row["pipelines"]
    assert len(replay["rounds"]) == row["rounds"] == 2
    assert sum(each["metrics"]["efficiency"] for each in replay["rounds"]) == pytest.approx(row["efficiency"])
    assert {"granted", "count", "seconds", "rounds"} <= set(replay)
    assert "Rounds: 2 (dpk)" in printed("replay", path, "--scheduler", "dpk")


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        ((*QUICK, "--set", "devices=many"), 4, "'devices'"),
        ((*QUICK, "--rounds", "0"), 4, "rounds"),
        ((*QUICK, "--schedulers", "dpf", "--lam", "1"), 4, "none of dpf has an option 'lam'"),
        ((*QUICK, "--schedulers", "dpz"), 4, "there is no scheduler 'dpz'"),
        ((*QUICK, "--seeds", "2", "--record", "x.json"), 4, "--record writes the trace of one seed"),
        (("simulate", "--workload", "dpack-mixed", "--rounds", "3"), 4, "has no parameter 'rounds'"),
        (("simulate", "--set", "devices"), 4, "--set takes K=V"),
        (("replay", "no.json"), 3, "cannot read no.json"),
    ],
)
def test_a_wrong_command_says_what_is_wrong(
    arguments: tuple[str, ...], status: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = capsys.readouterr()
    assert ended.value.code == status
    assert message in told.err
    assert told.out == ""
