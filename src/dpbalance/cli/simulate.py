"""How do schedulers compare on workloads that are drawn anew from each seed?"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpbalance.cli.app import Format, OptionTexts, Shape, app, put, put_json
from dpbalance.errors import OptionError

if TYPE_CHECKING:
    from dpbalance.simulate import Cell, Results

ConfigFile = Annotated[Path | None, typer.Option(metavar="FILE.toml", help="Parameters of the workload.")]
Record = Annotated[Path | None, typer.Option(metavar="TRACE.json", help="Write the trace, too; for one trace.")]
Out = Annotated[Path | None, typer.Option(metavar="DIR", help="Keep all results here, and go on with those there.")]
Workers = Annotated[str, typer.Option(metavar="N", help="Processes; or ray, or ray://HOST:PORT.")]
Reference = Annotated[str | None, typer.Option(metavar="NAME", help="Whom the others are compared with.")]
Bound = Annotated[bool, typer.Option("--bound", help="Also compute what nobody could exceed.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not say how far it is.")]


@app.command()
def simulate(
    workload: Annotated[str, typer.Option(metavar="NAME", help="What arrives when; see docs/workloads.md.")] = "paper",
    schedulers: Annotated[str, typer.Option(metavar="A,B", help="Who decides.")] = "dpbalance,dpf,dpk,fcfs",
    beta: Annotated[str, typer.Option(metavar="B,B", help="Fairness preferences, each in turn.")] = "2.2",
    lam: Annotated[str | None, typer.Option(metavar="L,L", help="Efficiency preferences, each in turn.")] = None,
    rounds: Annotated[str | None, typer.Option(metavar="N", help="The same as `--set rounds=N`.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many traces: seeds 0, 1, ..")] = 1,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="K=V,V", help="A parameter of the workload, each in turn.")
    ] = None,
    config: ConfigFile = None,
    option: OptionTexts = None,
    bound: Bound = False,
    reference: Reference = None,
    workers: Workers = "1",
    out: Out = None,
    record: Record = None,
    quiet: Quiet = False,
    format_: Shape = Format.table,
) -> None:
    """Draw a workload and run it under several schedulers."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is there: the problems are many and small
    from dpbalance.cli.deciding import texts
    from dpbalance.cli.progress import progress
    from dpbalance.simulate import cells, sweep

    names = [each.strip() for each in schedulers.split(",")]
    wanted = cells(
        workload,
        _parameters(workload, config, texts(set_, "--set", rounds=rounds)),
        names,
        _options(names, texts(option, beta=beta, lam=lam)),
        range(seeds),
        bound=bound,
    )
    if record is not None:
        _record(wanted, record)
    with progress("simulating", quiet=quiet) as tell:
        results = sweep(
            wanted,
            out,
            workers=int(workers) if workers.isdecimal() else workers,
            progress=tell,
            reference=reference,
        )
    if format_ == Format.json:
        put_json(_document(workload, results))
    else:
        put(_text(workload, seeds, results))


def _parameters(workload: str, config: Path | None, asked: Mapping[str, str]) -> dict[str, list[Any]]:
    """Every value of every parameter, as the workload has them."""
    from dpbalance.simulate.workload import parameters_from

    grid = {name: [value] for name, value in parameters_from(workload, config, {}).items()}
    for name, text in asked.items():
        grid[name] = [parameters_from(workload, None, {name: each})[name] for each in text.split(",")]
    return grid


def _options(names: Sequence[str], asked: Mapping[str, str]) -> dict[str, list[Any]]:
    """Every value of every option, as the first scheduler that has it reads them."""
    from dpbalance.scheduler import options_from_text, options_of

    grid: dict[str, list[Any]] = {}
    for option, text in asked.items():
        first = next((name for name in names if any(each.name == option for each in options_of(name))), None)
        if first is None:
            raise OptionError(f"none of {', '.join(names)} has an option {option!r}")
        grid[option] = [options_from_text(first, {option: each})[option] for each in text.split(",")]
    return grid


def _record(cells: Sequence[Cell], path: Path) -> None:
    from dpbalance.simulate import workload, write_trace

    first = cells[0]
    traces = {(str(cell.parameters), cell.seed) for cell in cells}
    if len(traces) > 1:
        raise OptionError(f"--record writes the trace of one seed and one choice of parameters, not of {len(traces)}")
    write_trace(workload(first.workload, **first.parameters).trace(first.seed), path)


def _document(workload: str, results: Results) -> dict[str, Any]:
    rows = [
        {"scheduler": found["scheduler"], "options": found["options"], "parameters": found["parameters"]}
        | {"seed": cell.seed, **measures}
        for cell, measures in zip(results.cells, results.measures, strict=True)
        for found in [cell.document]
    ]
    return {"format": "dpbalance-simulation/1", "workload": workload, "rows": rows, "summary": results.summary}


def _text(workload: str, seeds: int, results: Results) -> str:
    """Means over the seeds, and how the others differ from the reference on the same seeds."""
    from dpbalance.cli.tables import rendered, table

    summary = results.summary
    drawn = f"{workload}, {seeds} seed{'s' if seeds > 1 else ''}"
    interval = "" if seeds == 1 else " +- 95% interval"
    parts = []
    for title, groups in (
        (f"{drawn}: means{interval}", summary["groups"]),
        (f"How much more than {results.reference}, on the same seeds{interval}", summary["differences"]),
    ):
        measures = [name for name in groups[0]["measures"] if _says_something(groups, name)] if groups else []
        varying = len({str(group["parameters"]) for group in groups}) > 1
        columns = ["scheduler", *(["parameters"] if varying else []), "options", *(f">{name}" for name in measures)]
        rows = [
            (
                group["scheduler"],
                *([_listed(group["parameters"])] if varying else []),
                _listed(group["options"]),
                *(_estimate(group["measures"][name]) for name in measures),
            )
            for group in groups
        ]
        parts += [table(title, columns, rows)] if rows else []
    return rendered(*parts)


def _says_something(groups: Sequence[Mapping[str, Any]], measure: str) -> bool:
    return any(group["measures"][measure]["n"] for group in groups)


def _listed(values: Mapping[str, Any]) -> str:
    from dpbalance.cli.tables import number

    return ", ".join(
        f"{name} {number(value) if isinstance(value, float) else str(value).lower()}" for name, value in values.items()
    )


def _estimate(found: Mapping[str, float | None]) -> str:
    from dpbalance.cli.tables import number

    mean, high = found["mean"], found["high"]
    return number(mean) if mean is None or high is None else f"{number(mean)} +- {number(high - mean, 2)}"
