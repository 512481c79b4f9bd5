"""Is everything a user can type, set or run into documented, and do the documents tell the truth?"""

import doctest
import json
import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from dpbalance import worked_example
from dpbalance.audit import explain
from dpbalance.audit.finding import PROPERTIES
from dpbalance.cli.app import INTERRUPTED, app
from dpbalance.errors import TABLE, DPBalanceError
from dpbalance.market import round_to_json
from dpbalance.market.files import BLOCK_FIELDS, PIPELINE_FIELDS, ROUND_FIELDS
from dpbalance.scheduler import options_of, scheduler
from dpbalance.scheduler.registry import BUILT_IN
from dpbalance.simulate import run, trace
from dpbalance.simulate.results import MEASURES, PIPELINES, ROUNDS
from dpbalance.simulate.workload import WORKLOADS, parameters_of

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]


def page(name: str) -> str:
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def section(text: str, title: str) -> str:
    """The part of a page under `## title`."""
    found = re.search(rf"^## {re.escape(title)}$(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"there is no section {title!r}"
    return found.group(1)


@pytest.mark.parametrize("name", TABLE)
def test_every_error_is_documented_under_its_code(name: str) -> None:
    row = TABLE[name]
    told = section(page("errors.md"), row.code)
    assert f"**{name}.**" in told
    assert "*Next step:*" in told
    assert f"| [{row.code}](#{row.code.lower()}) | {name} | {row.exit_status} | {row.http_status} |" in page(
        "errors.md"
    )


def test_the_table_has_every_error_once() -> None:
    def tree(kind: type[DPBalanceError]) -> set[str]:
        return {kind.__name__}.union(*map(tree, kind.__subclasses__()))

    assert set(TABLE) == tree(DPBalanceError)
    assert len({row.code for row in TABLE.values()}) == len(TABLE)


def test_every_exit_status_is_documented() -> None:
    documented = re.findall(r"^\| (\d+) \|", section(page("cli.md"), "Exit status"), re.MULTILINE)
    assert {int(each) for each in documented} == {0, 2, INTERRUPTED, *(row.exit_status for row in TABLE.values())}


def commands_of(group: Any, before: str = "") -> dict[str, Any]:
    """Every command that does something, by what is typed for it."""
    found = {}
    for name, command in group.commands.items():
        inner = hasattr(command, "commands")
        found.update(commands_of(command, f"{before}{name} ") if inner else {f"{before}{name}": command})
    return found


def test_every_command_and_every_option_is_documented() -> None:
    for name, command in commands_of(get_command(app)).items():
        told = section(page("cli.md"), name)
        assert f"dpbalance {name}" in told
        documented = set(re.findall(r"^\| `(--[a-z-]+)` \|", told, re.MULTILINE))
        options = {text for each in command.params for text in each.opts if text.startswith("--")}
        assert documented == options - {"--help"}, name
    for each in get_command(app).params:
        assert f"`{each.opts[0]}`" in page("cli.md").split("## ")[0]


@pytest.mark.parametrize("name", BUILT_IN)
def test_every_scheduler_and_every_option_is_documented(name: str) -> None:
    told = section(page("schedulers.md"), name)
    common = section(page("schedulers.md"), "Options of every scheduler")
    for option in options_of(name):
        assert option.help, f"{option.name} says nothing of itself"
        row = re.search(rf"^\| `{option.name}` \|.*\| `([^`]*)` \|$", told + common, re.MULTILINE)
        assert row, f"option {option.name} of {name} is not documented"
        assert row.group(1) == str(option.default).lower()


def test_every_property_is_documented_and_every_theorem_names_a_test_that_exists() -> None:
    told = page("properties.md")
    for name in PROPERTIES:
        assert f"`{name}`" in section(told, "The properties"), name
    tests = (ROOT / "tests" / "test_theorems.py").read_text(encoding="utf-8")
    quoted = re.findall(r"`\.\.([a-z0-9_.]+)`", section(told, "Theorem by theorem"))
    assert len(quoted) >= 13
    for each in quoted:
        assert each.strip(".") in tests, each


def test_the_round_in_the_documentation_is_the_worked_example() -> None:
    written = re.search(r"<!-- example: round -->\n```json\n(.*?)```", page("files.md"), re.DOTALL)
    assert written
    assert json.loads(written.group(1)) == round_to_json(worked_example())


def test_every_field_of_a_round_is_documented() -> None:
    for field in ROUND_FIELDS | BLOCK_FIELDS | PIPELINE_FIELDS:
        assert f"| `{field}` |" in page("files.md")


def test_every_field_of_a_trace_is_documented_and_its_example_can_be_run() -> None:
    told = section(page("files.md"), "Trace: `dpbalance-trace/1`")
    rows = set(re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", told, re.MULTILINE))))
    assert rows | {"id", "analyst"} >= trace.TRACE_FIELDS | trace.BLOCK_FIELDS | trace.PIPELINE_FIELDS
    written = re.search(r"<!-- example: trace -->\n```json\n(.*?)```", told, re.DOTALL)
    assert written
    document = json.loads(written.group(1))
    example = trace.trace_from_json(document)
    assert trace.trace_to_json(example)["pipelines"] == document["pipelines"]
    assert run(example, scheduler("fcfs")).granted == ("P1", "P2")


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_and_every_parameter_is_documented(name: str) -> None:
    told = section(page("workloads.md"), name)
    documented = re.findall(r"^\| `(\w+)` \| (.+?) \|.*\| `([^`]*)` \|$", told, re.MULTILINE)
    assert [(name, default) for name, _, default in documented] == [
        (each.name, str(each.default).lower()) for each in parameters_of(name)
    ]
    assert all(each.help.endswith(".") for each in parameters_of(name))


def test_every_column_and_every_measure_of_a_sweep_is_documented() -> None:
    for title, columns in (("Columns", {*ROUNDS, *PIPELINES}), ("Summary", {*MEASURES})):
        rows = re.findall(r"^\| (`.*?) \|", section(page("simulate.md"), title), re.MULTILINE)
        assert set(re.findall(r"`(\w+)`", "".join(rows))) == columns


@pytest.mark.parametrize("path", PAGES, ids=lambda each: each.name)
def test_links_inside_the_project_lead_somewhere(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        assert there.exists(), target
        if anchor:
            titles = re.findall(r"^#+ (.*)$", there.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in titles}, target


def test_the_python_page_runs() -> None:
    found = doctest.testfile(str(ROOT / "docs" / "python.md"), module_relative=False)
    assert found.attempted > 10
    assert not found.failed


def test_every_page_is_found_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for each in (ROOT / "docs").glob("*.md"):
        assert f"(docs/{each.name})" in readme, each.name


def test_the_explanation_in_the_readme_is_the_one_that_is_given() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    decider = scheduler("dpf")
    told = explain(decider.decide(worked_example()), "P2", decider.decide)
    assert f"\n{told.sentence}\n" in readme
    assert f"It would be served by {told.helps[0]}." in readme
