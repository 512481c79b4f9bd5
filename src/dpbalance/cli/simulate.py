"""How do schedulers compare on workloads that are drawn anew from each seed?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpbalance.cli.app import Format, OptionTexts, Shape, app, put, put_json
from dpbalance.errors import OptionError

if TYPE_CHECKING:
    from dpbalance.simulate import Trace

MEASURES = ("efficiency", "fairness", "jain", "utility_min", "shut_out", "pipelines", "seconds")

ConfigFile = Annotated[Path | None, typer.Option(metavar="FILE.toml", help="Parameters of the workload.")]
Record = Annotated[Path | None, typer.Option(metavar="TRACE.json", help="Write the trace, too; for one seed.")]


@app.command()
def simulate(
    workload: Annotated[str, typer.Option(metavar="NAME", help="What arrives when; see docs/workloads.md.")] = "paper",
    schedulers: Annotated[str, typer.Option(metavar="A,B", help="Who decides.")] = "dpbalance,dpf,dpk,fcfs",
    beta: Annotated[str, typer.Option(metavar="B,B", help="Fairness preferences, each in turn.")] = "2.2",
    lam: Annotated[str | None, typer.Option(metavar="L,L", help="Efficiency preferences, each in turn.")] = None,
    rounds: Annotated[int | None, typer.Option(help="The parameter `rounds`, where the workload has it.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many traces: seeds 0, 1, ..")] = 1,
    set_: Annotated[
        list[str] | None, typer.Option("--set", metavar="K=V", help="A parameter of the workload; may be given again.")
    ] = None,
    config: ConfigFile = None,
    option: OptionTexts = None,
    record: Record = None,
    format_: Shape = Format.table,
) -> None:
    """Draw a workload and run it under several schedulers."""
    from dpbalance.cli.deciding import patience, texts
    from dpbalance.simulate import workload as made
    from dpbalance.simulate import write_trace
    from dpbalance.simulate.workload import parameters_from

    given = texts(set_, "--set", rounds=None if rounds is None else str(rounds))
    drawn = made(workload, **parameters_from(workload, config, given))
    grid = list(_grid([each.strip() for each in schedulers.split(",")], beta, lam, texts(option)))
    if record is not None and seeds > 1:
        raise OptionError(f"--record writes the trace of one seed, not of {seeds}")
    rows = []
    with patience("still simulating"):
        for seed in range(seeds):
            trace = drawn.trace(seed)
            if record is not None:
                write_trace(trace, record)
            rows += [_row(trace, seed, name, asked) for name, asked in grid]
    if format_ == Format.json:
        put_json({"format": "dpbalance-simulation/1", "workload": workload, "rows": rows})
    else:
        put(_text(workload, seeds, rows))


def _grid(
    names: Sequence[str], beta: str, lam: str | None, asked: Mapping[str, str]
) -> Iterator[tuple[str, dict[str, str]]]:
    """Every scheduler with every combination of those of the options that it has."""
    from itertools import product

    from dpbalance.scheduler import options_of

    swept = {"beta": beta.split(",")} | ({"lam": lam.split(",")} if lam is not None else {})
    known = {name: {each.name for each in options_of(name)} for name in names}
    for option in (*asked, *swept):
        if not any(option in mine for mine in known.values()):
            raise OptionError(f"none of {', '.join(names)} has an option {option!r}")
    for name in names:
        fixed = {option: text for option, text in asked.items() if option in known[name]}
        mine = {option: texts for option, texts in swept.items() if option in known[name]}
        for values in product(*mine.values()):
            yield name, fixed | dict(zip(mine, values, strict=True))


def _row(trace: Trace, seed: int, name: str, asked: Mapping[str, str]) -> dict[str, Any]:
    """One run: a scheduler, its options, a seed."""
    from dataclasses import asdict

    from dpbalance.scheduler import options_from_text, scheduler
    from dpbalance.simulate import run

    options = options_from_text(name, asked)
    done = run(trace, scheduler(name, **options))
    metrics = done.metrics
    return {
        "scheduler": name,
        "options": dict(asked),
        "seed": seed,
        "rounds": len(done.rounds),
        **(asdict(metrics) if metrics else {}),
        "seconds": done.seconds,
    }


def _text(workload: str, seeds: int, rows: Sequence[dict[str, Any]]) -> str:
    """Means over the seeds."""
    from dpbalance.cli.tables import number, rendered, table

    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        shown = ", ".join(f"{option} {text}" for option, text in row["options"].items())
        groups.setdefault((row["scheduler"], shown), []).append(row)
    lines = []
    for (name, shown), group in groups.items():
        means = []
        for measure in MEASURES:
            values = [row[measure] for row in group if row[measure] is not None]
            means.append(number(sum(values) / len(values) if values else None))
        lines.append((name, shown, *means))
    title = f"{workload}, {seeds} seed{'s' if seeds > 1 else ''}: sums over rounds, jain and utility_min means"
    return rendered(table(title, ["scheduler", "options", *(f">{each}" for each in MEASURES)], lines))
