"""Does the paper's evaluation reproduce, and how does one look at it again?"""

from __future__ import annotations

import enum
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from dpbalance.cli.app import app, put
from dpbalance.cli.simulate import Quiet, Workers


class Published(enum.StrEnum):
    paper = "paper"


Folder = Annotated[Path, typer.Argument(metavar="DIR", help="Where `reproduce` wrote its results.")]
Quick = Annotated[bool, typer.Option("--quick", help="A glimpse of every study instead of enough to be sure.")]


@app.command()
def reproduce(
    published: Annotated[Published, typer.Argument(metavar="paper", help="What is reproduced.")],
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results, pictures and report go.")],
    seeds: Annotated[int, typer.Option(min=1, help="Traces of the evaluation; other studies use fewer.")] = 20,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of the evaluation.")] = 10,
    workers: Workers = "2",
    quick: Quick = False,
    quiet: Quiet = False,
) -> None:
    """Run the paper's evaluation, and what it does not show, and write the report."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # before NumPy is there: the problems are many and small
    from dpbalance.cli.progress import progress
    from dpbalance.simulate.reproduce import reproduce as reproduced
    from dpbalance.simulate.reproduction.studies import Plan

    plan = Plan(seeds=seeds, rounds=rounds, quick=quick)
    with progress(f"reproducing the {published}", quiet=quiet) as tell:
        files = reproduced(out, plan, workers=int(workers) if workers.isdecimal() else workers, progress=tell)
    _list(files)


@app.command()
def report(folder: Folder, quiet: Quiet = False) -> None:
    """Write report and pictures again from the result files of `reproduce`."""
    from dpbalance.cli.progress import progress
    from dpbalance.simulate.reproduce import report as reported

    with progress("reporting", quiet=quiet) as tell:
        files = reported(folder, tell)
    _list(files)


def _list(files: Sequence[Path]) -> None:
    put("\n".join(str(each) for each in files))
