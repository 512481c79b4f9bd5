"""What is known of a run? A folder for each: its plan, its model, its receipts and where they come from."""

from __future__ import annotations

import hashlib
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpbalance.accounting.people import epsilon
from dpbalance.amounts import MAX_UNITS
from dpbalance.errors import EngineError, FileFormatError
from dpbalance.execution.form import parsed, write_durably
from dpbalance.execution.models import Floats, made
from dpbalance.execution.plan import DevicePlan, RunPlan
from dpbalance.execution.replies import Receipt

PLAN, ORDER, RESULT, MODEL, LOG, LOCK, STARTED = (
    "plan.json",
    "order.json",
    "result.json",
    "model.npz",
    "log.txt",
    "alive.lock",
    "started.json",
)

DELTA = 1e-5
"""At which delta the loss of a run is told to people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Where a device is."""

    device: str
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Courier:
    """How to reach devices through Flower."""

    environment: str
    """Folder of the virtual environment Flower is installed in."""
    home: str
    """Folder of Flower's own configuration, which names the connection."""
    connection: str
    answer_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a worker must know beside the plan."""

    fleet: tuple[Seat, ...]
    seconds: float
    public: str
    """A .npz of public records to judge the model by; empty without one."""
    courier: Courier | None
    """None where devices are on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """A device that did not answer to the end, and why."""

    device: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What an engine says of a run it carried out. Nobody settles by `ended`: receipts and arrays are looked at."""

    run: str
    ended: str
    """`finished`, `early` or `failed`."""
    reason: str
    rounds: int
    """How many rounds were aggregated."""
    receipts: tuple[Receipt, ...]
    """Of the last round that was aggregated."""
    dropped: tuple[Dropped, ...]
    model: str
    """SHA-256 of the model's file; empty where there is none."""
    accuracy: float | None
    loss: float | None
    loss_kind: str
    """`public` from public data, `noised` paid for by the grant, empty where none was released."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A run as its folder shows it."""

    plan: RunPlan
    result: Result | None
    parameters: Floats | None
    damage: str = ""
    """Why what is there cannot be read, where it cannot."""


def read_plan(folder: Path) -> RunPlan:
    """The plan this folder was made for."""
    try:
        return parsed(RunPlan, (folder / PLAN).read_bytes(), str(folder / PLAN))
    except OSError as problem:
        raise EngineError(f"there is no run in {folder}: {problem.strerror}", hint="dpbalance run list") from None


def read_outcome(folder: Path) -> Outcome:
    """What the folder holds; a model counts only if it is the one the result names."""
    plan = read_plan(folder)
    if not (folder / RESULT).exists():
        return Outcome(plan=plan, result=None, parameters=None)
    try:
        result = parsed(Result, (folder / RESULT).read_bytes(), str(folder / RESULT))
    except (OSError, FileFormatError) as problem:
        return Outcome(plan=plan, result=None, parameters=None, damage=str(problem))
    try:
        return Outcome(plan=plan, result=result, parameters=_read_model(folder, result))
    except (OSError, FileFormatError) as problem:
        return Outcome(plan=plan, result=result, parameters=None, damage=str(problem))


def write_result(folder: Path, result: Result) -> None:
    """The last file of a run: when it is there, everything is."""
    from dpbalance.execution.form import canonical

    write_durably(folder / RESULT, canonical(result))


def write_model(folder: Path, plan: RunPlan, parameters: Floats) -> str:
    """The trained parameters; the SHA-256 of the file."""
    buffer = io.BytesIO()
    np.savez(buffer, parameters=parameters)
    content = buffer.getvalue()
    write_durably(folder / MODEL, content)
    return hashlib.sha256(content).hexdigest()


def _read_model(folder: Path, result: Result) -> Floats | None:
    if not result.model:
        return None
    content = (folder / MODEL).read_bytes()
    if hashlib.sha256(content).hexdigest() != result.model:
        raise FileFormatError(f"{folder / MODEL} is not the model of its result")
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as found:
            return np.asarray(found["parameters"], dtype=np.float64)
    except (ValueError, KeyError) as problem:
        raise FileFormatError(f"{folder / MODEL} is no model: {problem}") from None


def provenance(outcome: Outcome) -> dict[str, Any]:
    """Where a model comes from: the grant, what was spent on each block, and what that means as (epsilon, delta)."""
    plan = outcome.plan
    blocks = []
    worst = 0.0
    for each in signed_plans(plan):
        for block in each.blocks:
            spend = each.spend(block)
            told = epsilon([min(units, MAX_UNITS) for units in block.grant], each.orders, DELTA)
            worst = max(worst, told)
            blocks.append(
                {
                    "block": block.block,
                    "device": each.device,
                    "granted_units": list(block.grant),
                    "spent_units": list(spend),
                    "epsilon": told,
                    "sampling_rate": block.sampling_rate,
                    "noise_ratio": each.noise / block.clip,
                    "declared_size": block.size,
                }
            )
    first = signed_plans(plan)[0]
    return {
        "format": "dpbalance-provenance/1",
        "run": plan.run,
        "grant": plan.grant,
        "pipeline": plan.pipeline,
        "analyst": plan.analyst,
        "multiple": plan.multiple,
        "orders": list(plan.orders),
        "adjacency": first.adjacency,
        "privacy_unit": first.privacy_unit,
        "epsilon": worst,
        "delta": DELTA,
        "model": asdict(plan.model),
        "training": asdict(plan.training),
        "blocks": blocks,
    }


def signed_plans(plan: RunPlan) -> Sequence[DevicePlan]:
    """What was signed for each device."""
    return [parsed(DevicePlan, each.document.encode(), plan.run) for each in plan.plans]


def named_arrays(plan: RunPlan, parameters: Floats) -> dict[str, Floats]:
    """The parameters by layer, as whoever uses the model wants them."""
    return {"parameters": parameters, **made(plan.model).named(parameters)}
