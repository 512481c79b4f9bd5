"""Can a scheduler be added from outside, by nothing but an installed entry point?"""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "third_party_scheduler"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """What an installer leaves on the path: the module, and metadata with the entry points of its pyproject."""
    site = tmp_path / "site"
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    metadata = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: {project['version']}\n"
    )
    groups = [
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in project["entry-points"].items()
    ]
    (metadata / "entry_points.txt").write_text("\n".join(groups))
    shutil.copy(EXAMPLE / "smallest_first.py", site)
    return site


def dpbalance(site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", "from dpbalance.cli import main; main()", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(site)}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


def test_an_installed_scheduler_decides(installed: Path, tmp_path: Path) -> None:
    path = tmp_path / "round.json"
    path.write_text(dpbalance(installed, "example").stdout)
    ended = dpbalance(
        installed, "allocate", str(path), "--scheduler", "smallest-first", "--option", "serve_max=1", "--format", "json"
    )
    assert ended.returncode == 0, ended.stderr
    document = json.loads(ended.stdout)
    assert document["scheduler"] == "smallest-first"
    assert document["options"]["serve_max"] == 1
    assert [grant["pipeline"] for grant in document["grants"]] == ["P4"]


def test_an_installed_scheduler_is_listed_and_compared(installed: Path, tmp_path: Path) -> None:
    assert "smallest-first" in dpbalance(installed, "schedulers").stdout
    path = tmp_path / "round.json"
    path.write_text(dpbalance(installed, "example").stdout)
    ended = dpbalance(installed, "compare", str(path), "--schedulers", "smallest-first,fcfs", "--format", "json")
    rows = json.loads(ended.stdout)["rows"]
    assert [(row["scheduler"], row["status"]) for row in rows] == [("smallest-first", "decided"), ("fcfs", "decided")]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise ImportError('no such library')", "no such library"),
        ("class SmallestFirst:\n    def decide(self, round_):\n        raise ZeroDivisionError('oops')", "oops"),
        ("class SmallestFirst:\n    def decide(self, round_):\n        return None", ""),
    ],
)
def test_a_broken_scheduler_says_why_and_hides_no_other(
    installed: Path, tmp_path: Path, code: str, reason: str
) -> None:
    (installed / "smallest_first.py").write_text(code)
    path = tmp_path / "round.json"
    path.write_text(dpbalance(installed, "example").stdout)
    ended = dpbalance(installed, "compare", str(path), "--format", "json")
    assert ended.returncode == 0, ended.stderr
    rows = {row["scheduler"]: row for row in json.loads(ended.stdout)["rows"]}
    assert rows["dpbalance"]["status"] == "decided"
    assert rows["smallest-first"]["status"] == "failed"
    assert reason in rows["smallest-first"]["reason"]
    assert "smallest-first" in dpbalance(installed, "schedulers").stdout
    alone = dpbalance(installed, "allocate", str(path), "--scheduler", "smallest-first")
    assert alone.returncode != 0
    assert (alone.stderr.count("\n"), "Traceback" in alone.stderr) == (1, False)
