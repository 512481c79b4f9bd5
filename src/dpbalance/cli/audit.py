"""Can a decision be trusted? Its economic properties, what its fairness costs, and why a pipeline was denied."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpbalance.cli.app import All, Beta, OptionTexts, RoundFile, Shape, app, put, put_json, read
from dpbalance.cli.app import Format as Form
from dpbalance.errors import InputError

if TYPE_CHECKING:
    from dpbalance.allocation import Allocation
    from dpbalance.audit import Audit, Explanation, Extremes, Finding, Point
    from dpbalance.market import Round
    from dpbalance.scheduler import Scheduler

BETAS = "0,0.25,0.5,0.75,1,1.5,2,2.5,3,4,5,10,inf"

Name = Annotated[str, typer.Option("--scheduler", metavar="NAME", help="Who decides; see `schedulers`.")]
Lam = Annotated[str | None, typer.Option(metavar="NUMBER", help="Efficiency preference: none, 0 to inf.")]
Decided = Annotated[Path | None, typer.Option(metavar="FILE", help="Look at this decision instead of a fresh one.")]
Lies = Annotated[int, typer.Option(min=0, help="Random lies tried for each analyst, beside the paper's three ways.")]
NoLies = Annotated[bool, typer.Option("--no-lies", help="Try no lies at all.")]
Seed = Annotated[int, typer.Option(min=0, help="Which random lies.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Do not say how far it is.")]


@app.command()
def audit(
    round_file: RoundFile,
    scheduler: Name = "dpbalance",
    beta: Beta = None,
    lam: Lam = None,
    option: OptionTexts = None,
    allocation: Decided = None,
    lies: Lies = 20,
    no_lies: NoLies = False,
    seed: Seed = 0,
    quiet: Quiet = False,
    format_: Shape = Form.table,
) -> None:
    """Look for the economic properties of a decision, with the smallest counterexample where one fails."""
    from dpbalance.audit import audit as audited
    from dpbalance.cli.deciding import texts
    from dpbalance.cli.progress import progress

    round_ = read(round_file)
    decided, decider = _decision(round_, scheduler, texts(option, beta=beta, lam=lam), allocation)
    with progress("auditing", quiet=quiet) as tell:
        found = audited(
            decided,
            None if no_lies or decider is None else decider.decide,
            lies=lies,
            seed=seed,
            progress=tell,
        )
    put_json(found.document()) if format_ == Form.json else put(_audit_text(found))


@app.command()
def explain(
    round_file: RoundFile,
    pipeline: Annotated[str, typer.Argument(metavar="PIPELINE", help="The pipeline to explain.")],
    scheduler: Name = "dpbalance",
    beta: Beta = None,
    lam: Lam = None,
    option: OptionTexts = None,
    quiet: Quiet = False,
    all_rows: All = False,
    format_: Shape = Form.table,
) -> None:
    """Say why a pipeline was denied, and what would have got it served."""
    from dpbalance.audit import explain as explained
    from dpbalance.cli.deciding import texts
    from dpbalance.cli.progress import progress

    round_, asked = read(round_file), texts(option, beta=beta, lam=lam)
    allocation, decider = _decision(round_, scheduler, asked, None)
    assert decider is not None
    with progress("trying what would help", quiet=quiet) as tell:
        told = explained(allocation, pipeline, decider.decide, _at_beta(scheduler, asked), progress=tell)
    put_json(told.document()) if format_ == Form.json else put(_explanation_text(told, all_rows))


@app.command()
def frontier(
    round_file: RoundFile,
    betas: Annotated[str, typer.Option(metavar="B,B", help="Fairness preferences.")] = BETAS,
    option: OptionTexts = None,
    format_: Shape = Form.table,
) -> None:
    """Show what efficiency is left at each fairness preference, as step 1 of DPBalance divides the round."""
    from dataclasses import asdict

    from dpbalance.audit import Divisible, extremes
    from dpbalance.audit import frontier as along
    from dpbalance.cli.deciding import texts

    allocation, _ = _decision(read(round_file), "dpbalance", texts(option), None)
    market = Divisible.of_allocation(allocation)
    assert market is not None
    if not market.analysts:
        raise InputError("there is no frontier: no pipeline of this round can be met")
    points, ends = along(market, _numbers(betas)), extremes(market)
    if format_ == Form.json:
        listed = [{**asdict(each), "beta": "inf" if each.beta == float("inf") else each.beta} for each in points]
        put_json({"format": "dpbalance-frontier/1", "points": listed, "extremes": asdict(ends)})
    else:
        put(_frontier_text(points, ends))


def _decision(
    round_: Round, name: str, asked: Mapping[str, str], file: Path | None
) -> tuple[Allocation, Scheduler | None]:
    """A fresh decision and who made it, or the one in a file."""
    from dpbalance.allocation import read_allocation
    from dpbalance.cli.deciding import decide
    from dpbalance.scheduler import options_from_text
    from dpbalance.scheduler import scheduler as made

    if file is not None:
        decided = read_allocation(file, round_)
        decided.check()
        return decided, None
    return decide(round_, name, asked).checked, made(name, **options_from_text(name, asked))


def _at_beta(name: str, asked: Mapping[str, str]) -> Callable[[float], Any] | None:
    """The same scheduler at another beta; None where beta changes the metrics only."""
    from dpbalance.scheduler import options_from_text, options_of
    from dpbalance.scheduler import scheduler as made

    if "lam" not in {each.name for each in options_of(name)}:  # it does not divide by a preference
        return None
    options = options_from_text(name, asked)
    return lambda beta: made(name, **{**options, "beta": beta}).decide


def _numbers(text: str) -> list[float]:
    from dpbalance.scheduler import options_from_text

    return [options_from_text("dpbalance", {"beta": each})["beta"] for each in text.split(",")]


def _audit_text(found: Audit) -> str:
    from dpbalance.audit.finding import PROPERTIES
    from dpbalance.cli.tables import number, rendered, table

    views = {"divisible": "As divided by step 1", "granted": "As granted"}
    parts: list[Any] = []
    for view, title in views.items():
        mine = [each for each in found.findings if each.view == view]
        rows = [(each.property, each.answer, number(_tidy(each.number)), _shown(each)) for each in mine]
        parts += [table(title, ["property", "answer", ">number", "why"], rows)] if rows else []
    for name in dict.fromkeys(each.property for each in found.findings):
        parts.append(f"{name}: {PROPERTIES[name]}")
    slope = found.slope
    if slope is not None:
        parts.append(
            f"\nWhat fairness costs: at beta {number(slope.beta)} step 1 reaches efficiency "
            f"{number(slope.efficiency)}, and one more of beta changes it by {number(_tidy(slope.slope))}."
        )
    parts += [f"Note: {note}" for note in found.notes]
    return rendered(*parts)


def _tidy(value: float | None) -> float | None:
    """What is left of a 0 after rounding is a 0."""
    return 0.0 if value is not None and abs(value) < 1e-9 else value


def _shown(finding: Finding) -> str:
    """What shows that it fails, or what the number is; then whatever else is to be said."""
    from dpbalance.cli.tables import number

    def told(value: Any) -> str:
        if isinstance(value, dict):
            return ", ".join(f"{key} x {number(times, 6)}" for key, times in value.items())
        return number(value, 6) if isinstance(value, float) else str(value)

    words = [f"{key.replace('_', ' ')} {told(value)}" for key, value in finding.counterexample.items()]
    return "; ".join([*words, finding.note] if words and finding.note else words or [finding.note or finding.meaning])


def _explanation_text(told: Explanation, all_rows: bool) -> str:
    from dpbalance.cli.tables import ROWS_MAX, listed, number, rendered, table

    parts: list[Any] = [told.sentence]
    limit = None if all_rows else ROWS_MAX
    if told.shortages:
        columns = ["block", ">asked", ">left", ">short", ">capacity", ">locked", ">spent before", ">granted now"]
        rows = [
            (
                each.block,
                *(
                    number(amount, 9)
                    for amount in (
                        *(each.asked, each.left, each.short, each.capacity),
                        *(each.locked, each.spent_before, each.granted),
                    )
                ),
            )
            for each in told.shortages[:limit]
        ]
        parts += ["", *listed("Where it was short", columns, rows, len(told.shortages), limit)]
        worst = told.shortages[0]
        users = [
            (each.analyst, number(each.amount, 9), f"{each.amount / worst.capacity:.3%}", _few(each.pipelines))
            for each in worst.used_by
        ]
        if users:
            parts.append(
                table(f"Who has {worst.block}", ["analyst", ">amount", ">of its capacity", "pipelines"], users)
            )
    parts += [f"It would be served by {each}." for each in told.helps]
    if told.smaller is not None:
        parts.append("The demand that is served: " + _amounts(told.smaller.demand, limit))
    if not told.served and not told.helps:
        parts.append("Nothing that was tried would get it served: less demand, another beta, the rounds to come.")
    return rendered(*parts)


def _few(names: tuple[str, ...]) -> str:
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


def _amounts(demand: Mapping[str, Any], limit: int | None) -> str:
    shown = [f"{block} {amount}" for block, amount in list(demand.items())[:limit]]
    rest = len(demand) - len(shown)
    return ", ".join(shown) + (f" and {rest} more blocks; --all prints them." if rest else "")


def _frontier_text(points: list[Point], ends: Extremes) -> str:
    from dpbalance.cli.tables import number, rendered, table

    best = ends.efficiency_most
    rows = [
        (
            number(each.beta),
            *(number(value) for value in (each.efficiency, each.fairness, each.jain, each.utility_min)),
            f"{each.efficiency / best:.2%}",
        )
        for each in points
    ]
    columns = [">beta", ">efficiency", ">fairness", ">jain", ">utility_min", ">of the most efficient"]
    verdict = (
        f"The fairest shares have {ends.efficiency_fairest / best:.2%} of the largest efficiency."
        if ends.tradeoff
        else "There is no trade-off here: the fairest shares are also the most efficient ones."
    )
    return rendered(table("Step 1 along beta", columns, rows), verdict)
