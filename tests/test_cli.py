"""Does the command line do what docs/cli.md promises, with data on stdout and talk on stderr?"""

import json
import os
import subprocess
import sys
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import dpbalance.cli.deciding
from dpbalance import Allocation, BudgetExceeded, Round, read_allocation, read_round, worked_example, write_round
from dpbalance.cli.app import app, main
from dpbalance.cli.tables import ROWS_MAX

BUILT_IN = ["dpbalance", "dpf", "dpk", "fcfs", "round-robin", "optimal"]


@pytest.fixture
def round_file(tmp_path: Path) -> str:
    write_round(worked_example(), tmp_path / "round.json")
    return str(tmp_path / "round.json")


def process(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from dpbalance.cli import main; main()", *arguments]
    return subprocess.run(command, capture_output=True, text=True, **more)


def printed(*arguments: str) -> str:
    """What a command that must succeed prints, run in this process."""
    ended = CliRunner().invoke(app, list(arguments))
    assert ended.exit_code == 0, ended.output
    assert ended.exception is None
    return ended.stdout


def test_the_worked_example_on_a_real_command_line(round_file: str) -> None:
    ended = process("allocate", round_file, "--scheduler", "dpbalance", "--beta", "2.2", "--format", "json")
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert document["format"] == "dpbalance-allocation/1"
    multiples = {grant["pipeline"]: grant["multiple"] for grant in document["grants"]}
    alice = multiples.pop("P1", None) or multiples.pop("P2")
    assert alice == pytest.approx(1.0)
    assert multiples == {"P3": pytest.approx(1.25)}
    assert document["metrics"]["efficiency"] == pytest.approx(1.0)
    assert document["metrics"]["shut_out"] == 0
    assert document["proof"]["violation"] == 0
    assert 0.0 <= document["proof"]["gap"] + 1e-12 < 1e-6


def test_a_person_reads_grants_denials_analysts_and_metrics(round_file: str) -> None:
    told = printed("allocate", round_file, "--scheduler", "dpf")
    for words in ("Granted: 2 of 4", "Denied: 2", "already taken", "Analysts: 2", "Checked: no block"):
        assert words in told
    denial = next(line for line in told.splitlines() if line.strip().startswith("P1"))
    assert denial.split()[-4:] == ["B1", "0.5", "0.3", "0.2"]


def test_a_round_can_come_through_a_pipe(round_file: str) -> None:
    ended = process("allocate", "-", "--scheduler", "fcfs", "--format", "json", input=Path(round_file).read_text())
    assert ended.returncode == 0, ended.stderr
    assert [grant["pipeline"] for grant in json.loads(ended.stdout)["grants"]] == ["P1", "P2"]


def test_the_example_is_a_round_file(tmp_path: Path) -> None:
    (tmp_path / "round.json").write_text(printed("example"))
    assert read_round(tmp_path / "round.json").pipelines == worked_example().pipelines
    (tmp_path / "paper.json").write_text(printed("example", "--workload", "paper", "--seed", "1"))
    assert len(read_round(tmp_path / "paper.json").pipelines) == 150


def test_out_writes_the_allocation_file(round_file: str, tmp_path: Path) -> None:
    out = tmp_path / "allocation.json"
    told = printed("allocate", round_file, "--scheduler", "dpk", "--format", "json", "--out", str(out))
    assert json.loads(told) == json.loads(out.read_text())
    read_allocation(out, read_round(round_file)).check()


def test_options_reach_the_scheduler(round_file: str) -> None:
    told = printed("allocate", round_file, "--beta", "inf", "--option", "tau=7", "--lam", "none", "--format", "json")
    options = json.loads(told)["options"]
    assert (options["beta"], options["tau"], options["lam"]) == ("inf", 7.0, None)
    told = printed("allocate", round_file, "--beta", "2", "--lam", "inf", "--format", "json")
    assert json.loads(told)["options"]["lam"] == "inf"


def test_long_tables_say_how_much_they_leave_out(tmp_path: Path) -> None:
    (tmp_path / "paper.json").write_text(printed("example", "--workload", "paper"))
    served = json.loads(printed("allocate", str(tmp_path / "paper.json"), "--scheduler", "dpf", "--format", "json"))
    count = len(served["grants"])
    short = printed("allocate", str(tmp_path / "paper.json"), "--scheduler", "dpf")
    assert f"... and {count - ROWS_MAX} more" in short
    full = printed("allocate", str(tmp_path / "paper.json"), "--scheduler", "dpf", "--all")
    assert " more; --all" not in full
    assert all(grant["pipeline"] in full for grant in served["grants"])


def test_compare_shows_all_schedulers(round_file: str) -> None:
    document = json.loads(printed("compare", round_file, "--format", "json"))
    assert document["format"] == "dpbalance-comparison/1"
    assert [row["scheduler"] for row in document["rows"]][: len(BUILT_IN)] == BUILT_IN
    assert {row["status"] for row in document["rows"]} == {"decided"}
    efficiency = {row["scheduler"]: row["efficiency"] for row in document["rows"]}
    assert efficiency["dpbalance"] == pytest.approx(1.0)
    assert efficiency["dpf"] == efficiency["dpk"] == pytest.approx(0.7)
    assert all(name in printed("compare", round_file) for name in BUILT_IN)


def test_compare_gives_an_option_to_those_that_have_it(round_file: str) -> None:
    told = printed("compare", round_file, "--schedulers", "dpf, dpk", "--option", "recompute_every=1")
    assert "failed" not in told


def test_compare_refuses_what_no_scheduler_has(
    round_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments in (["--option", "colour=red"], ["--schedulers", "dpf,nobody"], ["--beta", "-1"]):
        with pytest.raises(SystemExit) as ended:
            main(["compare", round_file, *arguments])
        assert ended.value.code == 4
        assert capsys.readouterr().err.startswith("DPB-10")


class Overspending:
    """Grants everybody the whole demand, whatever is left."""

    def decide(self, round_: Round, /) -> Allocation:
        return Allocation(round=round_, scheduler="overspending", multiple=np.ones(len(round_.pipelines)))


def test_an_allocation_that_overspends_is_never_shown(
    round_file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dpbalance.cli.deciding, "scheduler", lambda name, **options: Overspending())
    out = tmp_path / "allocation.json"
    with pytest.raises(SystemExit) as ended:
        main(["allocate", round_file, "--scheduler", "dpf", "--out", str(out)])
    told = capsys.readouterr()
    assert (ended.value.code, told.out, out.exists()) == (BudgetExceeded("").row.exit_status, "", False)
    assert told.err.startswith("DPB-203 BudgetExceeded: block 'B1' has 1 left, the grants take 1.5")
    with pytest.raises(SystemExit) as ended:
        main(["compare", round_file, "--schedulers", "dpf"])
    assert ended.value.code == 5
    assert "dpf failed: DPB-203" in capsys.readouterr().out


def test_the_printed_constraint_of_the_paper_is_refused_where_it_overspends(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "paper.json").write_text(printed("example", "--workload", "paper"))
    with pytest.raises(SystemExit) as ended:
        main(["allocate", str(tmp_path / "paper.json"), "--option", "constraint=as-printed-may-overspend"])
    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (5, "")
    assert told.err.startswith("DPB-203 BudgetExceeded: block ")


def test_what_nobody_foresaw_is_one_line_and_a_traceback_only_on_request(
    round_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(name: str, **options: Any) -> None:
        raise ZeroDivisionError("two\nlines")

    monkeypatch.setattr(dpbalance.cli.deciding, "scheduler", broken)
    with pytest.raises(SystemExit) as ended:
        main(["allocate", round_file, "--scheduler", "dpf"])
    told = capsys.readouterr()
    assert (ended.value.code, told.out) == (1, "")
    assert told.err == "DPB-100 ZeroDivisionError: two lines; this is a bug. Try: dpbalance --debug COMMAND\n"
    with pytest.raises(SystemExit):
        main(["--debug", "allocate", round_file, "--scheduler", "dpf"])
    assert "Traceback" in capsys.readouterr().err


def test_a_file_that_cannot_be_written_is_told_so(round_file: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["allocate", round_file, "--scheduler", "fcfs", "--out", "/no/such/folder/allocation.json"])
    assert ended.value.code == 3
    assert capsys.readouterr().err.startswith("DPB-103 FileFormatError: cannot write /no/such/folder")


def test_whoever_stops_reading_is_left_in_peace(round_file: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "from dpbalance.cli import main; main()", "allocate", round_file]
    ended = subprocess.run([*command, "--scheduler", "fcfs"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (130, "")


def test_an_interruption_is_quiet(
    round_file: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(name: str, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dpbalance.cli.deciding, "scheduler", interrupted)
    with pytest.raises(SystemExit) as ended:
        main(["allocate", round_file, "--scheduler", "dpf"])
    assert (ended.value.code, capsys.readouterr().err.strip()) == (130, "")


def test_names_are_never_read_as_markup(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = json.dumps(json.loads(printed("example"))).replace("alice", "[bold]alice[/bold]").replace("bob", "böb")
    (tmp_path / "round.json").write_text(text)
    assert "[bold]alice[/bold]" in printed("allocate", str(tmp_path / "round.json"), "--scheduler", "fcfs")
    latin = {**os.environ, "PYTHONIOENCODING": "ascii"}
    ended = process("allocate", str(tmp_path / "round.json"), "--scheduler", "dpf", env=latin)
    assert (ended.returncode, "b\\xf6b" in ended.stdout) == (0, True)


def test_the_version_and_the_schedulers_are_told() -> None:
    assert printed("--version").strip() == dpbalance.__version__
    listed = json.loads(printed("schedulers", "--format", "json"))["schedulers"]
    assert [each["name"] for each in listed][: len(BUILT_IN)] == BUILT_IN
    assert all({option["name"] for option in each["options"]} >= {"beta", "tau"} for each in listed[: len(BUILT_IN)])
    assert "recompute_every" in printed("schedulers")


def test_the_demo_shows_both_rounds_and_a_platform_that_trains(tmp_path: Path) -> None:
    told = printed("demo", "--out", str(tmp_path))
    assert told.count("What one sees") == 2
    assert "dpbalance    serves P1 (alice), P3 (bob) x 1.25" in told or "P2 (alice)" in told
    assert "every balance were verified" in told
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_the_demo_tells_programs_the_same(tmp_path: Path) -> None:
    told = json.loads(printed("demo", "--out", str(tmp_path), "--format", "json"))
    assert set(told) == {"format", "worked_example", "paper_round", "story"}
    story = told["story"]
    assert len(story["trained"]) + len(story["waiting"]) == 12
    assert {each["word"] for each in story["trained"]} == {"completed"}
    assert max(most for _, _, most in story["spent"]) <= 6.0
    best = max(each["accuracy"] for each in story["trained"])
    assert best > 0.6
    (place,) = tmp_path.glob("platform-*")
    run = story["trained"][0]["run"]
    listed = json.loads(printed("run", "list", "--runs", str(place / "runs"), "--format", "json"))
    assert len(listed["runs"]) == len(story["trained"])
    shown = json.loads(printed("run", "show", run, "--runs", str(place / "runs"), "--format", "json"))
    assert shown["state"] == "completed"
    assert "finished" in printed("run", "logs", run, "--runs", str(place / "runs"))
    assert str(shown["epsilon"])[:4] in printed("run", "show", run, "--runs", str(place / "runs"))
    printed("run", "model", run, "--runs", str(place / "runs"), "--out", str(tmp_path / "model.npz"))
    with np.load(tmp_path / "model.npz") as found:
        assert found["weight"].shape == (64, 10)
    assert json.loads((tmp_path / "model.json").read_text())["run"] == run


def test_whoever_waits_long_is_told_what_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dpbalance.cli.deciding, "PATIENCE_S", 0.01)
    with dpbalance.cli.deciding.patience("optimal is still deciding"):
        Event().wait(0.3)
    assert capsys.readouterr().err == "dpbalance: optimal is still deciding ...\n"
