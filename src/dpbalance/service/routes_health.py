"""Is it well? What machines ask every few seconds, without a token."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Response

from dpbalance.errors import DPBalanceError
from dpbalance.service import models
from dpbalance.service.desk import Here, as_json
from dpbalance.service.keeping import read_state

router = APIRouter()


@router.get("/healthz", response_model=models.Health, operation_id="healthz")
async def healthz() -> Response:
    """Say that the web process answers."""
    return as_json({"ok": True, "checks": {}})


@router.get("/readyz", response_model=models.Health, operation_id="readyz", responses={503: {"model": models.Health}})
async def readyz(desk: Here) -> Response:
    """Say whether database, ledger and rounds are there."""
    checks = {}
    for name, work in (("database", desk.read(read_state)), ("ledger", asyncio.to_thread(desk.ledger.head))):
        try:
            await work
            checks[name] = "ok"
        except DPBalanceError as problem:
            checks[name] = problem.row.code
    checks["rounds"] = "ok" if desk.supervisor.well else "starting"
    ok = all(each == "ok" for each in checks.values())
    return as_json({"ok": ok, "checks": checks}, 200 if ok else 503)


@router.get("/metrics", operation_id="metrics", response_class=Response)
async def metrics(desk: Here) -> Response:
    """Prometheus."""
    desk.metrics.queue.set(desk.submits.length)
    return Response(desk.metrics.text(), media_type="text/plain; version=0.0.4")
