"""Does the code keep its own form?"""

import ast
import re
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import dpbalance

ROOT = Path(__file__).parents[1]
SOURCE = sorted((ROOT / "src").rglob("*.py"))
PYTHON = [*SOURCE, *sorted((ROOT / "tests").rglob("*.py")), *sorted((ROOT / "examples").rglob("*.py"))]

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 500
COLUMNS_MAX = 120

OTHER_DOORS = re.compile(
    r"\btime\.(time|perf_counter|monotonic|sleep)\b|\bdatetime\.(now|utcnow)\b|\bdate\.today\b"
    r"|^\s*(import|from) (random|secrets)\b|\bdefault_rng\b|\bnp\.random\.(?!Generator)"
)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("path", PYTHON, ids=named)
def test_functions_and_files_stay_short(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert len(lines) <= FILE_LINES_MAX
    assert max(map(len, lines), default=0) <= COLUMNS_MAX
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            assert length <= FUNCTION_LINES_MAX, f"{node.name} has {length} lines"


@pytest.mark.parametrize("path", SOURCE, ids=named)
def test_a_module_says_in_its_first_line_which_question_it_answers(path: Path) -> None:
    documented = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
    assert documented, "no docstring"
    first, *rest = documented.split("\n")
    assert first.endswith((".", "?", "!")), "the first line is not a whole sentence"
    assert not rest or rest[0] == "", "the first line is not followed by an empty one"


ELSEWHERE = ("server_app.py", "client_app.py")
"""What runs in Flower's environment may import nothing of ours, the clock included."""


@pytest.mark.parametrize("path", [each for each in SOURCE if each.name not in ("clock.py", *ELSEWHERE)], ids=named)
def test_time_and_chance_come_through_the_clock_only(path: Path) -> None:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        assert not OTHER_DOORS.search(line), f"line {number}: {line.strip()}"


@pytest.mark.parametrize("path", [each for each in SOURCE if each.name == "__init__.py"], ids=named)
def test_public_names_are_sorted_and_exist(path: Path) -> None:
    dotted = ".".join(path.relative_to(ROOT / "src").parent.parts)
    module = import_module(dotted)
    names = getattr(module, "__all__", [])
    assert names == sorted(names)
    assert len(names) == len(set(names))
    for name in names:
        assert getattr(module, name) is not None


def test_the_version_is_told_once() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == dpbalance.__version__
    assert f"## {dpbalance.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_constraints_pin_versions_and_nothing_else() -> None:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    assert pins == sorted(pins)
    assert all(re.fullmatch(r"[a-z0-9.-]+==[0-9][0-9a-z.]*", pin) for pin in pins)
