"""Does a glimpse of the reproduction write all it promises, in both readings, with numbers that can be made again?"""

import json
import re
from math import exp, log
from pathlib import Path
from statistics import fmean
from typing import Any

import polars as pl
import pytest
from test_report import outside

from dpbalance.cli import main
from dpbalance.errors import BudgetExceeded, FileFormatError
from dpbalance.scheduler import scheduler
from dpbalance.simulate import run, workload
from dpbalance.simulate.reproduce import report
from dpbalance.simulate.reproduction.measured import Interval, fairer, ratio
from dpbalance.simulate.reproduction.printed import READING, PrintedCell
from dpbalance.simulate.reproduction.studies import Plan, Studies

PICTURES = (
    "analysts",
    "bound",
    "evaluation",
    "headline-efficiency",
    "headline-fairness",
    "rounds",
    "settings",
    "tradeoff",
    "worked",
    "workloads",
)
WRITTEN = (
    "findings.md",
    "headlines.json",
    "pipelines.parquet",
    "report.html",
    "reproduction.json",
    "rounds.parquet",
    "summary.json",
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reproduction")
    asked = ["reproduce", "paper", "--out", str(folder), "--seeds", "2", "--rounds", "3", "--workers", "1"]
    with pytest.raises(SystemExit) as ended:
        main([*asked, "--quick", "--quiet"])
    assert ended.value.code == 0
    return folder


def test_everything_that_is_promised_is_written(made: Path) -> None:
    found = {each.name for each in made.iterdir() if each.is_file()}
    assert found == {*WRITTEN, *(f"{name}.{kind}" for name in PICTURES for kind in ("png", "svg"))}


def test_the_page_opens_without_a_network(made: Path) -> None:
    assert not outside((made / "report.html").read_text(encoding="utf-8"))


def test_the_text_speaks_of_both_readings_and_hides_nobody(made: Path) -> None:
    text = (made / "findings.md").read_text(encoding="utf-8")
    for said in ("physical", "as printed", "shut out", "What reproduces:", "What does not:", "1.44 to 3.49", "nothing"):
        assert said in text
    assert not re.search(r"\bnan\b", text)
    assert all(f"({name}.png)" in text for name in PICTURES)


def test_the_headlines_are_those_of_the_tables_of_results(made: Path) -> None:
    rounds = pl.read_parquet(made / "rounds.parquet")
    for row in json.loads((made / "headlines.json").read_text(encoding="utf-8")):
        measured = {
            reading: _again(rounds, row, constraint, low)
            for reading, constraint, low in (
                ("physical", None, None),
                ("physical_wide", None, 0.001),
                ("printed", "as-printed-may-overspend", None),
                ("printed_wide", "as-printed-may-overspend", 0.001),
            )
        }
        assert {name: row[name]["mean"] for name in measured} == pytest.approx(measured, rel=1e-9)
        shown = f"{row['physical']['mean']:.2f} ("
        assert shown in (made / "findings.md").read_text(encoding="utf-8")


def _again(rounds: Any, row: dict[str, Any], constraint: str | None, low: float | None) -> float:
    """The ratio of a headline, out of rounds.parquet and nothing else."""

    def sums(who: str, under: str | None) -> list[float]:
        mine = rounds.filter(
            (pl.col("workload") == "paper")
            & (pl.col("scheduler") == who)
            & (pl.col("option_beta") == row["beta"])
            & pl.col("option_constraint").eq_missing(pl.lit(under))
            & pl.col("parameter_loss_low").eq_missing(pl.lit(low, dtype=pl.Float64))
            & (pl.col("parameter_rounds") == 3.0)
            & pl.all_horizontal(
                pl.col(f"parameter_{name}").is_null() for name in ("analysts", "steps", "lifetime", "timeout")
            )
            & pl.all_horizontal(pl.col(f"option_{name}").is_null() for name in ("tau", "max_multiple", "leftover"))
            & pl.col("bound").is_null()
        )
        once = mine.unique(["seed", "round"])
        return once.group_by("seed").agg(pl.col(row["measure"]).sum()).sort("seed")[row["measure"]].to_list()

    ours, theirs = sums("dpbalance", constraint), sums(row["against"], None)
    logs = [log(abs(mine) / abs(other)) for mine, other in zip(ours, theirs, strict=True)]
    turned = row["measure"] == "fairness" and row["beta"] > 1
    return exp(fmean(-each if turned else each for each in logs))


def test_a_report_is_made_again_from_the_results(made: Path) -> None:
    before = {name: (made / name).read_bytes() for name in ("report.html", "findings.md", "headlines.json")}
    for name in before:
        (made / name).unlink()
    with pytest.raises(SystemExit) as ended:
        main(["report", str(made), "--quiet"])
    assert ended.value.code == 0
    assert {name: (made / name).read_bytes() for name in before} == before


def test_a_folder_without_a_reproduction_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match="holds no reproduction"):
        report(tmp_path)
    (tmp_path / "reproduction.json").write_text('{"format": "dpbalance-reproduction/1", "sneeds": 3}')
    with pytest.raises(FileFormatError, match="sneeds"):
        report(tmp_path)


def test_the_printed_reading_runs_in_the_replication_only_and_overspends() -> None:
    trace = workload("paper", rounds=2, devices=10).trace(0)
    options = {"beta": 2.2, **READING}
    with pytest.raises(BudgetExceeded):
        run(trace, scheduler("dpbalance", **options))
    cell = PrintedCell(workload="paper", parameters={}, scheduler="dpbalance", options=options, seed=0)
    printed, physical = run(trace, cell.decider()), run(trace, scheduler("dpbalance", beta=2.2))
    assert printed.metrics is not None
    assert physical.metrics is not None
    assert printed.metrics.efficiency > 1.2 * physical.metrics.efficiency
    assert (printed.spent <= trace.market.capacity).all()  # a block is used up, and no more is written down


def test_equal_runs_of_different_studies_are_run_once() -> None:
    studies = Studies.of(Plan(seeds=4))
    asked = sum(contest.seeds * len(contest.who) for contest in studies.contests())
    assert len({cell.key for cell in studies.cells()}) == len(studies.cells()) < asked


def test_fairer_is_more_below_beta_1_and_nearer_to_zero_above() -> None:
    assert fairer(0.5, [4.0, 4.0], [2.0, 2.0]).mean == pytest.approx(2.0)
    assert fairer(5.0, [-10.0, -10.0], [-30.0, -30.0]).mean == pytest.approx(3.0)


def test_a_ratio_turned_round_turns_its_interval() -> None:
    there, back = ratio([2.0, 8.0], [1.0, 1.0]), ratio([1.0, 1.0], [2.0, 8.0])
    assert (there.mean, there.low) == pytest.approx((1 / back.mean, 1 / back.high))


def test_one_seed_says_nothing_for_sure() -> None:
    assert Interval.of([1.0]).sign == 0
    assert Interval.of([1.0, 0.1]).sign == 0
    assert Interval.of([1.0, 1.1, 1.05]).sign == 1
