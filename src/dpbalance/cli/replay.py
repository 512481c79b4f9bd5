"""What would a scheduler have done with a recorded trace?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpbalance.cli.app import All, Format, OptionTexts, Shape, app, put, put_json

if TYPE_CHECKING:
    from dpbalance.simulate import Run

TraceFile = Annotated[str, typer.Argument(metavar="TRACE.json", help="A dpbalance-trace/1 file, or TRACE.json.gz.")]


@app.command()
def replay(
    trace_file: TraceFile,
    scheduler: Annotated[str, typer.Option(metavar="NAME", help="Who decides; see `schedulers`.")] = "dpbalance",
    option: OptionTexts = None,
    check: Annotated[bool, typer.Option("--check", help="Prove every decision in full, step 1 included.")] = False,
    format_: Shape = Format.table,
    all_rows: All = False,
) -> None:
    """Run a trace of blocks and pipelines over time under one scheduler."""
    from dpbalance.cli.deciding import patience, texts
    from dpbalance.scheduler import options_from_text
    from dpbalance.scheduler import scheduler as made
    from dpbalance.simulate import read_trace, run

    decider = made(scheduler, **options_from_text(scheduler, texts(option)))
    with patience(f"{scheduler} is still replaying"):
        done = run(read_trace(trace_file), decider, check=check)
    if format_ == Format.json:
        put_json(_document(done))
    else:
        put(_text(done, all_rows))


def _document(done: Run) -> dict[str, Any]:
    from dataclasses import asdict

    return {
        "format": "dpbalance-replay/1",
        "scheduler": done.scheduler,
        "granted": list(done.granted),
        "count": len(done.granted),
        "seconds": done.seconds,
        "rounds": [
            {"time": each.time, "metrics": asdict(each.metrics) if each.metrics else None} for each in done.rounds
        ],
    }


def _text(done: Run, all_rows: bool) -> str:
    from dpbalance.cli.tables import ROWS_MAX, listed, number, rendered
    from dpbalance.simulate import Fate

    limit = None if all_rows else ROWS_MAX
    rows = []
    for each in done.rounds[:limit]:
        found = each.metrics and (each.metrics.efficiency, each.metrics.fairness, each.metrics.jain)
        rows.append((number(each.time, 6), str(each.asked), str(each.granted), *map(number, found or (None,) * 3)))
    columns = [">time", ">asked", ">granted", ">efficiency", ">fairness", ">jain"]
    total = done.metrics
    fates = {each: int((done.fate == each).sum()) for each in Fate if each != Fate.ABSENT}
    return rendered(
        *listed(f"Rounds: {len(done.rounds)} ({done.scheduler})", columns, rows, len(done.rounds), limit),
        f"Pipelines: {sum(fates.values())} came; {', '.join(f'{count} {fate.word}' for fate, count in fates.items())}.",
        f"Efficiency {number(total.efficiency if total else None)} in all; no block overspent; {done.seconds:.3g} s.",
    )
