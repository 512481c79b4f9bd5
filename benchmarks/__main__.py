"""Which families shall run, and where does the report go? `python -m benchmarks [rounds packings ...] [--out DIR]`."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path

from benchmarks.measure import Result
from benchmarks.specs import FAMILIES


def main(given: list[str] | None = None) -> int:
    """Run, report, and fail if a bar is missed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    parser.add_argument("families", nargs="*", default=[], help=f"of {', '.join(FAMILIES)}; none means all")
    parser.add_argument("--out", type=Path, default=Path("out"))
    arguments = parser.parse_args(given)
    unknown = set(arguments.families) - set(FAMILIES)
    if unknown:
        parser.error(f"unknown family {sorted(unknown)[0]!r}; known are {', '.join(FAMILIES)}")
    results: list[Result] = []
    for name in arguments.families or FAMILIES:
        for result in FAMILIES[name]():
            results.append(result)
            print(_line(result), file=sys.stderr, flush=True)
    arguments.out.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine(), "results": [result.row() for result in results]}
    (arguments.out / "bench.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (arguments.out / "bench.md").write_text(markdown(results), encoding="utf-8")
    print(f"written to {arguments.out / 'bench.json'} and {arguments.out / 'bench.md'}", file=sys.stderr)
    return 0 if all(result.passed is not False for result in results) else 1


def machine() -> dict[str, str | int]:
    """The machine and the versions that made the figures."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    names = ("numpy", "numba", "highspy", "cvxpy", "clarabel", "psycopg")
    return {
        "processor": model,
        "cores": os.cpu_count() or 1,
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def markdown(results: list[Result]) -> str:
    """The report as one table."""
    about = ", ".join(f"{key} {value}" for key, value in machine().items())
    lines = [
        f"Measured on: {about}.",
        "",
        "| family | case | phases (ms) | figure | bar | |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        phases = ", ".join(f"{name} {_short(value)}" for name, value in result.phases_ms.items())
        bar = "" if result.bar is None else f"{'>=' if result.at_least else '<='} {result.bar:g}"
        verdict = {None: "", True: "ok", False: "**missed**"}[result.passed]
        figure = f"{_short(result.figure)} {result.unit}"
        lines.append(f"| {result.family} | {result.case} | {phases} | {figure} | {bar} | {verdict} |")
    return "\n".join(lines) + "\n"


def _line(result: Result) -> str:
    verdict = {None: "", True: "ok", False: "MISSED"}[result.passed]
    return f"{result.family}: {result.case}: {_short(result.figure)} {result.unit} {verdict}"


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


if __name__ == "__main__":
    sys.exit(main())
