"""Which commands are there, and how does each of them end? Everything heavy is imported when a command runs."""

from __future__ import annotations

import enum
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from dpbalance.errors import TABLE, DPBalanceError, FileFormatError

if TYPE_CHECKING:
    from dpbalance.market import Round

INTERRUPTED = 130
"""Exit status after Ctrl-C, and when whoever reads our output has gone."""


class Format(enum.StrEnum):
    table = "table"
    json = "json"


class Workload(enum.StrEnum):
    worked = "worked"
    paper = "paper"


RoundFile = Annotated[str, typer.Argument(metavar="ROUND.json", help="A dpbalance-round/1 file; - reads stdin.")]
Beta = Annotated[str | None, typer.Option(metavar="NUMBER", help="Fairness preference, 0 to inf; default 2.2.")]
OptionTexts = Annotated[
    list[str] | None, typer.Option("--option", metavar="K=V", help="Any scheduler option; may be given again.")
]
Shape = Annotated[Format, typer.Option("--format", help="For people, or for programs.")]
All = Annotated[bool, typer.Option("--all", help="Print every row of a long table.")]

app = typer.Typer(
    name="dpbalance",
    help="Spend privacy budget efficiently and share it fairly.",
    add_completion=False,
    no_args_is_help=True,
    rich_markup_mode=None,  # help is plain text, so that showing it does not load rich
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show where in the program an error was raised.")] = False,
) -> None:
    if version:
        from dpbalance import __version__

        put(__version__)
        raise typer.Exit


@app.command()
def allocate(
    round_file: RoundFile,
    scheduler: Annotated[str, typer.Option(metavar="NAME", help="Who decides; see `schedulers`.")] = "dpbalance",
    beta: Beta = None,
    lam: Annotated[str | None, typer.Option(metavar="NUMBER", help="Efficiency preference: none, 0 to inf.")] = None,
    option: OptionTexts = None,
    format_: Shape = Format.table,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Write the allocation file, too.")] = None,
    all_rows: All = False,
) -> None:
    """Decide one round, check the decision, and print it."""
    from dpbalance.allocation import allocation_to_json, write_allocation
    from dpbalance.cli.deciding import decide, texts

    asked = texts(option, beta=beta, lam=lam)
    allocation = decide(read(round_file), scheduler, asked).checked
    if out is not None:
        try:
            write_allocation(allocation, out)
        except OSError as problem:
            raise FileFormatError(f"cannot write {out}: {problem.strerror or problem}") from None
    if format_ == Format.json:
        put_json(allocation_to_json(allocation))
    else:
        from dpbalance.cli.tables import allocation_text

        put(allocation_text(allocation, all_rows))


@app.command()
def compare(
    round_file: RoundFile,
    schedulers: Annotated[str | None, typer.Option(metavar="A,B", help="Only these; default all.")] = None,
    beta: Beta = None,
    option: OptionTexts = None,
    format_: Shape = Format.table,
) -> None:
    """Decide one round with several schedulers, side by side."""
    from dpbalance.cli.deciding import decide_all, texts

    outcomes = list(decide_all(read(round_file), schedulers, texts(option, beta=beta)))
    if format_ == Format.json:
        put_json({"format": "dpbalance-comparison/1", "rows": [each.row() for each in outcomes]})
    else:
        from dpbalance.cli.tables import comparison_text

        put(comparison_text(outcomes))
    if not any(each.allocation for each in outcomes):
        _ = outcomes[0].checked  # nobody decided: end with the first failure


@app.command()
def schedulers(format_: Shape = Format.table) -> None:
    """List the schedulers and what can be set on each."""
    from dpbalance.cli.deciding import settings

    listed = settings()
    if format_ == Format.json:
        put_json({"format": "dpbalance-schedulers/1", "schedulers": listed})
    else:
        from dpbalance.cli.tables import settings_text

        put(settings_text(listed))


@app.command()
def example(
    workload: Annotated[
        Workload, typer.Option(metavar="NAME", help="worked (2 blocks) or paper (2,000 blocks).")
    ] = Workload.worked,
    seed: Annotated[int, typer.Option(min=0, help="Which random paper round.")] = 0,
) -> None:
    """Print a round file to start from."""
    from dpbalance.market import paper_round, round_to_json, worked_example

    put_json(round_to_json(worked_example() if workload == Workload.worked else paper_round(seed=seed)))


@app.command()
def demo(
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where the platform and the report go.")] = Path("out/demo"),
    format_: Shape = Format.table,
) -> None:
    """Show two rounds under every scheduler, then a platform of 20 devices that decides, charges and trains."""
    from dpbalance.cli.demo import demo_json, demo_text

    if format_ == Format.json:
        put_json(demo_json(out))
    else:
        for part in demo_text(out):
            put(part)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command. Whatever goes wrong is told in one line on stderr and in the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # a name is never a reason to fail
    try:
        app(given, prog_name="dpbalance")
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except DPBalanceError as problem:
        complain(str(problem), "--debug" in given)
        sys.exit(problem.row.exit_status)
    except Exception as problem:
        code, _, status = TABLE["DPBalanceError"]
        hint = "" if "--debug" in given else ". Try: dpbalance --debug COMMAND"
        complain(f"{code} {type(problem).__name__}: {problem}; this is a bug{hint}", "--debug" in given)
        sys.exit(status)
    sys.exit(0)


def complain(sentence: str, debug: bool) -> None:
    """One line on stderr; before it, only on request, where in the program it happened."""
    if debug:
        traceback.print_exc()
    print(" ".join(sentence.split()), file=sys.stderr)


def read(round_file: str) -> Round:
    """The round in a file, or on stdin for `-`."""
    from dpbalance.market import read_round
    from dpbalance.market.files import blaming, parse_json, round_from_json

    if round_file != "-":
        return read_round(round_file)
    if sys.stdin is None:
        raise FileFormatError("cannot read stdin: it is closed")
    document = parse_json(sys.stdin.buffer, "stdin")
    return blaming("stdin", lambda: round_from_json(document))


def put_json(document: dict[str, Any]) -> None:
    import json

    put(json.dumps(document, indent=1, allow_nan=False))


def put(text: str) -> None:
    """Data to stdout: the only place that writes there."""
    import os

    try:
        print(text, flush=True)
    except OSError as problem:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is still buffered has nowhere to go
        if isinstance(problem, BrokenPipeError):
            raise typer.Exit(INTERRUPTED) from None
        raise FileFormatError(f"cannot write to stdout: {problem.strerror or problem}") from None
