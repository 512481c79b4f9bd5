"""How did a run end, and what becomes of its charge? Judged by receipts and arrays, never by an engine's word.

| what is seen                                               | outcome          | the charge                    |
|------------------------------------------------------------|------------------|-------------------------------|
| never dispatched                                           | never-dispatched | given back: the only refund   |
| receipts of a quorum, all rounds, a model of finite numbers| completed        | stands                        |
| the same after fewer rounds than planned                   | stopped-early    | stands, for the planned steps |
| a result without that                                      | error            | stands                        |
| no result, and the time was over                           | timeout          | stands                        |
| no result, and nobody works on it                          | lost             | stands                        |
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpbalance.clock import Clock, Deadline, RealClock
from dpbalance.errors import LedgerDamaged, WrongStage
from dpbalance.execution.dispatch import Desk, check_plan, hand_over_lost, kept_plan, send_out
from dpbalance.execution.grants import grants_at
from dpbalance.execution.models import made
from dpbalance.execution.plan import run_name
from dpbalance.execution.runner import Runner, Standing
from dpbalance.execution.runs import Outcome
from dpbalance.ledger import Ledger, Stage

POLL_SECONDS = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Settled:
    """A run that is over, and how."""

    grant: int
    word: str
    """One of the ledger's outcomes."""
    reason: str
    outcome: Outcome


def judged(outcome: Outcome, *, overdue: bool = False) -> tuple[str, str]:
    """The outcome of a run nobody works on any more, and why."""
    plan, result = outcome.plan, outcome.result
    if outcome.damage:
        return "error", outcome.damage
    if result is None:
        return ("timeout", "its time was over") if overdue else ("lost", "its worker is gone")
    digest = {device: envelope.digest for device, envelope in zip(plan.devices, plan.plans, strict=True)}
    valid = {
        each.device
        for each in result.receipts
        if (each.run, each.round, each.plan) == (plan.run, result.rounds - 1, digest.get(each.device))
    }
    if result.run != plan.run or len(valid) < plan.quorum:
        return "error", result.reason or f"receipts of {len(valid)} devices, {plan.quorum} are needed"
    if outcome.parameters is None or not len(outcome.parameters):
        return "error", result.reason or "there is no model"
    if outcome.parameters.shape != (made(plan.model).size,) or not np.isfinite(outcome.parameters).all():
        return "error", "the model is not one of finite numbers of the right count"
    if result.rounds < plan.training.rounds:
        return "stopped-early", f"{result.rounds} of {plan.training.rounds} rounds"
    return "completed", ""


def settle_ended(ledger: Ledger, runner: Runner, *, actor: str = "runner", desk: Desk | None = None) -> list[Settled]:
    """Close every dispatched grant whose run stands still; a run of another charge or another plan closes nothing."""
    closed = []
    for grant in grants_at(ledger, Stage.DISPATCHED):
        standing = runner.standing(run_name(grant))
        if standing in (Standing.UNKNOWN, Standing.RUNNING):
            continue
        outcome = runner.outcome(run_name(grant))
        check_plan(ledger, outcome.plan, grant, "the engine")
        kept = None if desk is None else kept_plan(desk, grant)
        if kept is not None and kept.digest != outcome.plan.digest:
            raise LedgerDamaged(f"the engine carried out another plan of {run_name(grant)} than the one that is kept")
        word, reason = judged(outcome, overdue=standing == Standing.OVERDUE)
        try:
            ledger.settle(grant, word, actor=actor)
        except WrongStage:
            continue  # somebody else has closed it
        closed.append(Settled(grant=grant, word=word, reason=reason, outcome=outcome))
    return closed


def step(
    ledger: Ledger,
    desk: Desk,
    runner: Runner,
    *,
    actor: str = "runner",
    stop: Callable[[str], None] = lambda step: None,
) -> list[Settled]:
    """One turn of the loop, from the ledger alone: hand over what was lost, send out what waits, settle what ended.

    A command and a service call this again and again; it returns at once.
    """
    hand_over_lost(ledger, desk, runner, actor=actor)
    send_out(ledger, desk, runner, actor=actor, stop=stop)
    stop("settle")
    return settle_ended(ledger, runner, actor=actor, desk=desk)


def carry_out(
    ledger: Ledger, desk: Desk, runner: Runner, *, seconds: float = 3600.0, clock: Clock | None = None
) -> list[Settled]:
    """Turn after turn until nothing waits and nothing is under way, or the time is over; runs go on then."""
    deadline, settled = Deadline(seconds), list[Settled]()
    watch = clock or RealClock()
    while True:
        settled += step(ledger, desk, runner)
        if not ledger.outbox() and not grants_at(ledger, Stage.DISPATCHED):
            return settled
        if deadline.passed:
            return settled
        watch.sleep(POLL_SECONDS)
