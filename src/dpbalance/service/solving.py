"""What would be decided now, and why not this pipeline? On the present state, writing nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from dpbalance.audit import explain
from dpbalance.clock import Clock
from dpbalance.errors import DPBalanceError, NotNow
from dpbalance.ledger import Ledger, Snapshot
from dpbalance.service.database import Database
from dpbalance.service.keeping import read_settings
from dpbalance.service.rounds import Pending, decided, granted, taken
from dpbalance.service.settings import Deciding

OTHERS = "others"


def answer(database: Database, ledger: Ledger, clock: Clock, asked: dict[str, Any]) -> dict[str, Any]:
    """The answer, or the refusal as a problem."""
    try:
        snapshot = taken(database, ledger, Pending(), clock.now())
        if snapshot is None:
            raise NotNow("nothing is pending", hint="dpbalance submit")
        with database.reading() as connection:
            settings, _ = read_settings(connection)
        if asked["do"] == "preview":
            return preview(snapshot, Deciding.model_validate(asked["by"]), settings)
        return explained(snapshot, settings, asked["pipeline"], asked["analyst"])
    except DPBalanceError as problem:
        return {"code": problem.row.code, "detail": problem.message, "hint": problem.hint}


def preview(snapshot: Snapshot, by: Deciding, settings: Deciding) -> dict[str, Any]:
    """The decision of `by`, and what each analyst would gain or lose against the present settings."""
    asked, present = decided(snapshot, by), decided(snapshot, settings)
    before = {each.analyst: each for each in present.analysts}
    return {
        "scheduler": by.scheduler,
        "metrics": asdict(asked.metrics),
        "present": asdict(present.metrics),
        "analysts": [
            {
                "analyst": each.analyst,
                "share": each.share,
                "utility": each.utility,
                "gain": each.utility - before[each.analyst].utility,
            }
            for each in asked.analysts
        ],
        "grants": granted(asked),
    }


def explained(snapshot: Snapshot, settings: Deciding, pipeline: str, analyst: str | None) -> dict[str, Any]:
    """Why it would not be served now; to an analyst, everybody else is `others`."""
    decision = decided(snapshot, settings)
    document = explain(decision, pipeline, settings.decider().decide).document()
    return document if analyst is None else _without_others(document, analyst)


def _without_others(document: Any, analyst: str) -> Any:
    """Amounts stay; whose they are does not."""
    if isinstance(document, list | tuple):
        return [_without_others(each, analyst) for each in document]
    if not isinstance(document, dict):
        return document
    told = {name: _without_others(each, analyst) for name, each in document.items()}
    if "analyst" in told and told["analyst"] != analyst:
        told["analyst"] = OTHERS
        if "pipelines" in told:
            told["pipelines"] = []
    return told
