"""What can be asked of devices and runs from a terminal?"""

from __future__ import annotations

import enum
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dpbalance.cli.app import Format, Shape, app, put, put_json
from dpbalance.cli.ledger import DATABASE, Database, KeyFile
from dpbalance.errors import EngineError, FileFormatError, OptionError

if TYPE_CHECKING:
    from dpbalance.execution.runs import Outcome

RUNS = Path("runs")

RUN_NAME = re.compile(r"run-[0-9]{6,19}")

RunsFolder = Annotated[
    Path, typer.Option("--runs", metavar="DIR", envvar="DPBALANCE_RUNS", help="Folder of the engine's runs.")
]
RunName = Annotated[str, typer.Argument(metavar="RUN", help="Name of a run; see `run list`.")]

run_app = typer.Typer(help="Training runs and their models.", no_args_is_help=True, rich_markup_mode=None)
engine_app = typer.Typer(help="Engines beside the local one.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(run_app, name="run")
app.add_typer(engine_app, name="engine")


@app.command()
def agent(
    device: Annotated[str, typer.Option(metavar="ID", help="Name of the device.")],
    blocks: Annotated[Path, typer.Option(metavar="DIR", help="Folder of its blocks, one .npz with x and y for each.")],
    trust: Annotated[str | None, typer.Option(metavar="KEY", help="Enrol: the platform's public key.")] = None,
    cap: Annotated[float | None, typer.Option(metavar="EPS", help="Enrol: the most a block may ever lose.")] = None,
    orders: Annotated[str | None, typer.Option(metavar="A,B", help="Enrol: Renyi orders; default one.")] = None,
    serve: Annotated[bool, typer.Option("--serve", help="Answer engines on this machine until stopped.")] = False,
    format_: Shape = Format.table,
) -> None:
    """Enrol a device, show what it has spent, or let it serve."""
    from dpbalance.execution.agent import Agent
    from dpbalance.execution.link import serve as served

    if trust is not None:
        if cap is None:
            raise OptionError("a device that is enrolled needs a cap", hint="--cap 3.0")
        mine = Agent.enrol(blocks, device, trust, cap=cap, orders=_numbers(orders))
    elif cap is not None or orders is not None:
        raise OptionError("cap and orders are set when a device is enrolled", hint="--trust KEY")
    else:
        mine = Agent(blocks)
    if mine.device != device:
        raise OptionError(f"the folder {blocks} is of device {mine.device!r}, not {device!r}")
    if serve:
        served(mine)
        return
    _put_agent(mine, format_)


@run_app.command("list")
def list_(runs: RunsFolder = RUNS, format_: Shape = Format.table) -> None:
    """List the runs of an engine."""
    rows = [_row(each) for each in sorted(runs.glob("run-*")) if RUN_NAME.fullmatch(each.name) and each.is_dir()]
    if format_ == Format.json:
        put_json({"format": "dpbalance-runs/1", "runs": rows})
        return
    from dpbalance.cli.tables import number, rendered, table

    columns = ["run", "pipeline", "analyst", "state", ">devices", ">accuracy", ">loss", ">epsilon"]
    told = [
        (
            each["run"],
            each["pipeline"],
            each["analyst"],
            each["state"],
            f"{each['answered']} of {each['devices']}",
            number(each["accuracy"]),
            number(each["loss"]),
            number(each["epsilon"]),
        )
        for each in rows
    ]
    put(rendered(table(f"Runs: {len(rows)}", columns, told)))


@run_app.command()
def show(run: RunName, runs: RunsFolder = RUNS, format_: Shape = Format.table) -> None:
    """Show where a run's model comes from, and what each block spent for it."""
    from dpbalance.execution.runs import provenance, read_outcome

    outcome = read_outcome(_folder(runs, run))
    told = {**provenance(outcome), **_row(_folder(runs, run))}
    if format_ == Format.json:
        put_json(told)
        return
    from dpbalance.cli.tables import number, rendered, table

    result = outcome.result
    facts = [(name, str(told[name])) for name in ("run", "grant", "pipeline", "analyst", "multiple", "state", "reason")]
    facts += [("accuracy", number(told["accuracy"])), ("loss", number(told["loss"]))]
    facts += [("privacy", f"({number(told['epsilon'])}, {told['delta']:g}) by this run, for a {told['privacy_unit']}")]
    columns = ["block", "device", ">granted", ">spent", ">epsilon", ">noise ratio", ">sampled"]
    rows = [
        (
            each["block"],
            each["device"],
            number(each["granted_units"][0] / 1e9, 9),
            number(each["spent_units"][0] / 1e9, 9),
            number(each["epsilon"]),
            number(each["noise_ratio"]),
            number(each["sampling_rate"]),
        )
        for each in told["blocks"]
    ]
    lost = [f"{each.device} dropped out: {each.reason}" for each in result.dropped] if result else []
    put(rendered(table("Run", ["fact", "value"], facts), table("Blocks", columns, rows), *lost))


@run_app.command()
def logs(run: RunName, runs: RunsFolder = RUNS) -> None:
    """Print what the worker of a run said."""
    from dpbalance.execution.runs import LOG

    path = _folder(runs, run) / LOG
    put(path.read_text(encoding="utf-8", errors="replace").rstrip() if path.exists() else "")


@run_app.command()
def model(
    run: RunName,
    out: Annotated[Path, typer.Option(metavar="FILE", help="Where the .npz goes.")] = Path("model.npz"),
    runs: RunsFolder = RUNS,
) -> None:
    """Write the trained model by layers as .npz, and beside it where it comes from as .json."""
    import json

    import numpy as np

    from dpbalance.execution.runs import named_arrays, provenance, read_outcome

    outcome = read_outcome(_folder(runs, run))
    if outcome.parameters is None:
        raise EngineError(f"{run} has no model: {outcome.damage or 'it came to nothing'}", hint=f"run logs {run}")
    try:
        with out.open("wb") as file:
            np.savez(file, **named_arrays(outcome.plan, outcome.parameters))  # type: ignore[arg-type]
        out.with_suffix(".json").write_text(json.dumps(provenance(outcome), indent=1) + "\n", encoding="utf-8")
    except OSError as problem:
        raise FileFormatError(f"cannot write {out}: {problem.strerror or problem}") from None
    put(f"{out}\n{out.with_suffix('.json')}")


@run_app.command("carry-out")
def carry_out(
    fleet_file: Annotated[Path, typer.Argument(metavar="FLEET.json", help="Devices, declared sizes, and jobs.")],
    plan_key: Annotated[Path, typer.Option(metavar="FILE", help="The key that signs plans; made when there is none.")],
    public: Annotated[Path | None, typer.Option(metavar="FILE", help="Public records as .npz, to judge by.")] = None,
    seconds: Annotated[float, typer.Option(metavar="N", help="How long to wait for all runs.")] = 3600.0,
    at_once: Annotated[int, typer.Option(metavar="N", min=1, help="Runs at the same time.")] = 2,
    flower: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Reach devices through the Flower installed here.")
    ] = None,
    runs: RunsFolder = RUNS,
    database: Database = DATABASE,
    key_file: KeyFile = None,
    format_: Shape = Format.table,
) -> None:
    """Carry out everything that waits in the ledger's outbox, and settle it."""
    from dpbalance.execution import Desk, LocalRunner, plan_signer
    from dpbalance.execution.fleet import read_fleet
    from dpbalance.execution.flower_engine import courier_of
    from dpbalance.feedback.settle import carry_out as carried_out
    from dpbalance.ledger import open_ledger

    fleet = read_fleet(fleet_file)
    desk = Desk(plans=runs / "plans", signer=plan_signer(plan_key), jobs=fleet.job, sizes=fleet.sizes)
    courier = None if flower is None else courier_of(flower)
    runner = LocalRunner(runs, fleet.devices, public=public, at_once=at_once, courier=courier)
    with open_ledger(database, key_file=key_file) as ledger:
        settled = carried_out(ledger, desk, runner, seconds=seconds)
    rows = [{"grant": each.grant, "outcome": each.word, "reason": each.reason} for each in settled]
    if format_ == Format.json:
        put_json({"format": "dpbalance-settled/1", "settled": rows})
        return
    from dpbalance.cli.tables import rendered, table

    told = [(str(each.grant), each.outcome.plan.pipeline, each.word, each.reason) for each in settled]
    put(rendered(table(f"Settled: {len(told)}", [">grant", "pipeline", "outcome", "why"], told)))


class Engine(enum.StrEnum):
    flower = "flower"


FlowerFolder = Annotated[
    Path, typer.Option("--into", metavar="DIR", envvar="DPBALANCE_FLOWER", help="Flower's virtual environment.")
]
FLOWER = Path("flower")


@engine_app.command("install")
def install_(
    engine: Annotated[Engine, typer.Argument(metavar="flower", help="Which engine.")], into: FlowerFolder = FLOWER
) -> None:
    """Install an engine into a virtual environment of its own."""
    from dpbalance.cli.deciding import patience
    from dpbalance.execution.flower_engine import install

    with patience(f"installing {engine}"):
        put(str(install(into)))


@engine_app.command()
def connect(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the SuperLink is.")],
    certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Root certificate; needed off this machine.")
    ] = None,
    into: FlowerFolder = FLOWER,
) -> None:
    """Tell the installed Flower which SuperLink to use."""
    from dpbalance.execution.flower_engine import HOME, write_connection

    write_connection(into / HOME, address, certificate)
    put(str(into / HOME / "config.toml"))


def _put_agent(mine: Any, format_: Format) -> None:
    spent = len(mine.record.entries())
    left = mine.left()
    rows = [{"block": name, "left_units": left[name]} for name in sorted(left)]
    if format_ == Format.json:
        told = {"device": mine.device, "trusted": mine.enrolment.trusted, "orders": list(mine.enrolment.orders)}
        put_json({"format": "dpbalance-agent/1", **told, "plans": spent, "blocks": rows})
        return
    from dpbalance.cli.tables import number, rendered, table

    told_rows = [(each["block"], ", ".join(number(units / 1e9, 9) for units in each["left_units"])) for each in rows]
    put(rendered(table(f"{mine.device}: {spent} plans accepted", ["block", ">left of its cap"], told_rows)))


def _folder(runs: Path, run: str) -> Path:
    folder = runs / run
    if not RUN_NAME.fullmatch(run) or not folder.is_dir():
        raise EngineError(f"there is no run {run[:100]!r} in {runs}", hint="dpbalance run list")
    return folder


def _row(folder: Path) -> dict[str, Any]:
    from dpbalance.execution.runs import provenance, read_outcome

    outcome = read_outcome(folder)
    state, reason = _state(folder, outcome)
    result = outcome.result
    return {
        "run": outcome.plan.run,
        "pipeline": outcome.plan.pipeline,
        "analyst": outcome.plan.analyst,
        "state": state,
        "reason": reason,
        "devices": len(outcome.plan.devices),
        "answered": len(result.receipts) if result else 0,
        "accuracy": result.accuracy if result else None,
        "loss": result.loss if result else None,
        "epsilon": provenance(outcome)["epsilon"],
    }


def _state(folder: Path, outcome: Outcome) -> tuple[str, str]:
    from dpbalance.execution.local import held
    from dpbalance.execution.runs import LOCK
    from dpbalance.feedback.settle import judged

    return ("running", "") if held(folder / LOCK) else judged(outcome)


def _numbers(text: str | None) -> list[float] | None:
    try:
        return None if text is None else [float(each) for each in text.split(",")]
    except ValueError:
        raise OptionError(f"numbers separated by commas are expected, not {text!r}") from None
