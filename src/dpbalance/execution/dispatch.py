"""How does a charge become a run, once and only once, whatever dies in between?

The steps of one grant, each of which may be done again:
1. the plan is made, signed, and on disk;
2. the ledger dispatches the grant: from here on there is one plan for it, for ever, and no refund;
3. the engine takes the run over, which it does once for each name.
Whoever finds a dispatched grant whose run the engine does not know hands over the very plan of step 1 again; devices
that have seen it answer what they answered. Before a plan leaves it is compared with the charge it is for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from dpbalance.accounting.orders import checked_orders
from dpbalance.clock import Clock, RealClock
from dpbalance.errors import DPBalanceError, EngineError, InputError, LedgerDamaged, LedgerRefusal, WrongStage
from dpbalance.execution.form import canonical, parsed, write_durably
from dpbalance.execution.grants import charged, grants_at
from dpbalance.execution.models import ModelSpec
from dpbalance.execution.plan import EXPIRES_AFTER_SECONDS, RunPlan, TrainingSpec, plan_run, run_name
from dpbalance.execution.runner import Runner, Standing
from dpbalance.execution.runs import signed_plans
from dpbalance.execution.signature import PlanSigner
from dpbalance.ledger import Ledger, Stage

Stop = Callable[[str], None]
"""Called before each step with its name; tests kill the process there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What a pipeline wants trained."""

    model: ModelSpec
    training: TrainingSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """Everything that is needed to turn grants into plans, beside the ledger."""

    plans: Path
    """Folder of the plans that were made."""
    signer: PlanSigner
    jobs: Callable[[str], Job | None]
    """What a pipeline wants trained; None when nobody knows."""
    sizes: Mapping[str, int]
    """Declared number of records of each block."""
    rates: Mapping[str, float] | None = None
    expires_after: float = EXPIRES_AFTER_SECONDS
    clock: Clock | None = None


def kept_plan(desk: Desk, grant: int) -> RunPlan | None:
    """The plan that was made for this grant, if one was."""
    path = desk.plans / f"{run_name(grant)}.json"
    return parsed(RunPlan, path.read_bytes(), str(path)) if path.exists() else None


def check_plan(ledger: Ledger, plan: RunPlan, grant: int, where: Path | str) -> None:
    """A plan that is not of this charge, in this ledger, is neither sent nor settled by: its noise was not paid for."""
    asked = charged(ledger, grant).granted
    signed = signed_plans(plan)
    told = {each.block: each.grant for device in signed for each in device.blocks}
    orders = tuple(checked_orders(asked.orders).tolist())
    same = (
        (plan.ledger, plan.run, plan.grant) == (asked.ledger, run_name(grant), grant),
        (plan.pipeline, plan.analyst, plan.multiple) == (asked.pipeline, asked.analyst, asked.multiple),
        plan.orders == orders,
        plan.devices == tuple(each.device for each in signed),
        all((each.run, each.grant, each.orders) == (run_name(grant), grant, orders) for each in signed),
        sum(len(each.blocks) for each in signed) == len(told),
        told == dict(asked.charged),
    )
    if not all(same):
        raise LedgerDamaged(
            f"the plan of {run_name(grant)} in {where} is not of what grant {grant} was charged in this ledger",
            hint="a folder of runs for each ledger",
        )


def planned(ledger: Ledger, desk: Desk, grant: int) -> RunPlan:
    """The plan of a grant that was never dispatched: the one that was made, or a new one, on disk before it is seen.

    One that expired while it waited was seen by nobody, so it is replaced.
    """
    kept = kept_plan(desk, grant)
    if kept is not None:
        check_plan(ledger, kept, grant, desk.plans)
    now = (desk.clock or RealClock()).now()
    if kept is not None and kept.expires - now > desk.expires_after / 2:
        return kept
    asked = charged(ledger, grant)
    job = desk.jobs(asked.granted.pipeline)
    if job is None:
        raise InputError(f"nobody knows what pipeline {asked.granted.pipeline!r} wants trained")
    made = plan_run(
        asked.granted,
        job.model,
        job.training,
        desk.signer,
        sizes=desk.sizes,
        device_of=asked.device_of,
        rates=desk.rates,
        clock=desk.clock,
        expires_after=desk.expires_after,
    )
    desk.plans.mkdir(parents=True, exist_ok=True)
    write_durably(desk.plans / f"{made.run}.json", canonical(made))
    return made


def send_out(
    ledger: Ledger, desk: Desk, runner: Runner, *, actor: str = "runner", stop: Stop = lambda step: None
) -> list[int]:
    """Hand waiting grants to the engine while it has room; what cannot be planned is given back. Who was dispatched."""
    sent = []
    for grant in ledger.outbox():
        if runner.free() < 1:
            break
        stop("plan")
        try:
            plan = planned(ledger, desk, grant)
        except LedgerDamaged:
            raise
        except DPBalanceError as problem:
            # nothing has left: no plan was ever made, and none can be
            with suppress(LedgerRefusal):
                ledger.void([grant], note=f"never-dispatched: {problem.message}"[:200], actor=actor)
            continue
        stop("dispatch")
        try:
            ledger.dispatch([grant], actor=actor, key=f"dispatch:{grant}")
        except WrongStage:
            continue  # somebody voided it, or had it dispatched under another key
        stop("start")
        hand_over(ledger, runner, plan, actor=actor)
        sent.append(grant)
    return sent


def hand_over_lost(ledger: Ledger, desk: Desk, runner: Runner, *, actor: str = "runner") -> list[int]:
    """After a restart: dispatched grants whose run the engine does not know are handed over again, same plan."""
    again = []
    for grant in grants_at(ledger, Stage.DISPATCHED):
        if runner.standing(run_name(grant)) != Standing.UNKNOWN or runner.free() < 1:
            continue
        plan = kept_plan(desk, grant)
        if plan is None:
            # dispatched by somebody who kept no plan here: it may have left, so it is charged
            with suppress(WrongStage):
                ledger.settle(grant, "unknown", actor=actor)
            continue
        check_plan(ledger, plan, grant, desk.plans)
        hand_over(ledger, runner, plan, actor=actor)
        again.append(grant)
    return again


def hand_over(ledger: Ledger, runner: Runner, plan: RunPlan, *, actor: str) -> None:
    """Start a dispatched run; an engine that cannot is an error of the run, which stays charged."""
    try:
        runner.start(plan)
    except (EngineError, OSError):
        with suppress(WrongStage):
            ledger.settle(plan.grant, "error", actor=actor)
