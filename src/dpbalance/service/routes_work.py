"""What can analysts ask for? Pipelines, and what became of them: grants, rounds, explanations, statements."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict
from typing import Annotated, Any, Literal

import sqlalchemy as sa
from fastapi import APIRouter, Path, Query, Request, Response

from dpbalance.errors import InputError, NotNow
from dpbalance.service import models
from dpbalance.service.access import Caller
from dpbalance.service.desk import (
    Cursor,
    Desk,
    DryRun,
    Here,
    IdempotencyKey,
    Limit,
    Who,
    after,
    as_json,
    body_text,
    linked,
    nothing,
    number_of,
    page,
)
from dpbalance.service.keeping import PENDING, SHOWN, SHOWN_COLUMNS, request_digest, shown
from dpbalance.service.submitting import Submit
from dpbalance.service.tables import pipeline, round_, state

router = APIRouter()

PipelineId = Annotated[str, Path(pattern=r"^p[0-9]{1,18}$", examples=["p1"])]
Number = Annotated[int, Path(ge=1, le=2**62)]
RUN_NOW_S = 30.0
"""So long a client that asks for a round waits for it; it runs all the same."""


async def _submit(
    desk: Desk, who: Caller, request: Request, key: str, asks: list[models.Ask], many: bool, dry: bool
) -> dict[str, Any]:
    if who.analyst is None and any(each.analyst is None for each in asks):
        raise InputError("analyst must be named: this token is not an analyst's")
    named = []
    for each in asks:
        name = each.analyst or who.name
        who.own_analyst(name)
        named.append((name, each))
    digest = request_digest(request.url.path, str(request.url.query), await body_text(request))
    submit = Submit(owner=who.token, key=key, digest=digest, asks=named, many=many, dry_run=dry)
    with desk.keys.under_way(who.token, key):
        made: dict[str, Any] = await desk.submits(submit, len(asks))
    return made


@router.post(
    "/v1/pipelines",
    status_code=201,
    response_model=models.Pipeline,
    operation_id="submit",
    responses=linked(201, "pipeline", "body#/id", "show_pipeline", "cancel_pipeline", "explain_pipeline"),
)
async def submit(
    desk: Here, who: Who, request: Request, key: IdempotencyKey, ask: models.Ask, dry_run: DryRun = False
) -> Response:
    """Submit one pipeline."""
    return as_json(await _submit(desk, who, request, key, [ask], False, dry_run), 201)


@router.post("/v1/batches", status_code=201, response_model=models.Accepted, operation_id="submit_many")
async def submit_many(
    desk: Here, who: Who, request: Request, key: IdempotencyKey, asks: models.Asks, dry_run: DryRun = False
) -> Response:
    """Submit many pipelines: all of them or none."""
    return as_json(await _submit(desk, who, request, key, asks.pipelines, True, dry_run), 201)


@router.get("/v1/pipelines", response_model=models.Pipelines, operation_id="list_pipelines")
async def list_pipelines(
    desk: Here,
    who: Who,
    limit: Limit,
    cursor: Cursor = None,
    state: Literal["pending", "granted", "running", "completed", "failed", "voided", "cancelled", "expired"]
    | None = None,
    analyst: Annotated[str | None, Query(pattern=models.PATTERN)] = None,
) -> Response:
    """List pipelines in the order in which they came."""
    chosen = sa.select(*SHOWN_COLUMNS).where(pipeline.c.number > after(cursor)).order_by(pipeline.c.number)
    if state is not None:
        names = [state, *(inner for inner, outer in SHOWN.items() if outer == state)]
        chosen = chosen.where(pipeline.c.state.in_(names))
    own = who.analyst or analyst
    if own is not None:
        if analyst not in (None, own):
            return as_json(page([], limit, None))
        chosen = chosen.where(pipeline.c.analyst == own)
    rows = await desk.read(lambda connection: connection.execute(chosen.limit(limit + 1)).all())
    return as_json(page([shown(each) for each in rows], limit, lambda each: each["id"][1:]))


async def _mine(desk: Desk, who: Caller, name: str) -> Any:
    row = await desk.reads(number_of(name))
    if row is None or who.analyst not in (None, row.analyst):
        raise nothing()
    return row


@router.get("/v1/pipelines/{pipeline}", response_model=models.Pipeline, operation_id="show_pipeline")
async def show_pipeline(desk: Here, who: Who, pipeline: PipelineId) -> Response:
    """Show one pipeline, as it is committed."""
    return as_json(shown(await _mine(desk, who, pipeline)))


@router.delete("/v1/pipelines/{pipeline}", response_model=models.Pipeline, operation_id="cancel_pipeline")
async def cancel_pipeline(desk: Here, who: Who, pipeline: PipelineId) -> Response:
    """Take a pipeline back that still waits; a second time says the same again."""
    await _mine(desk, who, pipeline)
    await desk.write(lambda connection: _cancel(connection, number_of(pipeline)))
    row = await _mine(desk, who, pipeline)
    if row.state != "cancelled":
        hint = "the same again in a second" if row.state == "deciding" else f"dpbalance status {pipeline}"
        raise NotNow(f"{pipeline} is {'being decided' if row.state == 'deciding' else row.state}", hint=hint)
    return as_json(shown(row))


def _cancel(connection: sa.Connection, number: int) -> None:
    mine = (pipeline.c.number == number) & (pipeline.c.state == PENDING)
    connection.execute(pipeline.update().where(mine).values(state="cancelled"))


@router.get("/v1/pipelines/{pipeline}/explain", operation_id="explain_pipeline")
async def explain_pipeline(desk: Here, who: Who, pipeline: PipelineId) -> dict[str, Any]:
    """Say why a waiting pipeline would not be served now, and what would help; or what it got."""
    row = await _mine(desk, who, pipeline)
    if row.state != PENDING:
        return {"pipeline": pipeline, "sentence": f"{pipeline} is {SHOWN.get(row.state, row.state)}.", **_got(row)}
    return await desk.solver.once(who.token, do="explain", pipeline=pipeline, analyst=who.analyst)


def _got(row: Any) -> dict[str, Any]:
    return {"served": row.claim is not None, "multiple": row.multiple or 0.0, "round": row.round, "grant": row.claim}


def round_shown(row: Any, who: Caller, whole: bool) -> dict[str, Any]:
    """A round; an analyst sees its own grants and denials, and the numbers of all."""
    document = json.loads(row.document)
    listed = {"grants": document.pop("grants"), "denials": document.pop("denials")}
    if who.analyst is not None:
        listed = {name: [each for each in rows if each["analyst"] == who.name] for name, rows in listed.items()}
        document["notes"] = []  # a refusal may name anybody's pipeline
    kept = {name: document[name] for name in ("scheduler", "metrics", "pending", "granted", "denied", "notes")}
    head = {"number": row.number, "state": row.state, "started": row.started, "seconds": row.seconds}
    return {**head, **kept, **(listed if whole else {})}


@router.get(
    "/v1/rounds",
    response_model=models.Rounds,
    operation_id="list_rounds",
    responses=linked(200, "number", "body#/items/0/number", "show_round"),
)
async def list_rounds(desk: Here, who: Who, limit: Limit, cursor: Cursor = None) -> Response:
    """List rounds, the newest first."""
    chosen = sa.select(round_).order_by(round_.c.number.desc()).limit(limit + 1)
    if cursor is not None:
        chosen = chosen.where(round_.c.number < after(cursor))
    rows = await desk.read(lambda connection: connection.execute(chosen).all())
    return as_json(page([round_shown(each, who, False) for each in rows], limit, lambda each: each["number"]))


@router.post(
    "/v1/rounds",
    response_model=models.Ran,
    operation_id="run_round",
    responses=linked(200, "number", "body#/round", "show_round"),
)
async def run_round(desk: Here, who: Who, key: IdempotencyKey, request: Request) -> Response:
    """Run a round now, and wait for it: everything that was submitted before takes part."""

    def ask(connection: sa.Connection) -> dict[str, Any]:
        wish = state.update().values(asked=state.c.asked + 1).returning(state.c.asked)
        return {"asked": connection.execute(wish).scalar_one()}

    asked = (await desk.once(who, key, request, ask))["asked"]
    until = desk.clock.now() + RUN_NOW_S
    while True:
        row = await desk.read(lambda connection: connection.execute(sa.select(state.c.done, state.c.rounds)).one())
        if row.done >= asked or desk.clock.now() > until:
            return as_json({"done": row.done >= asked, "round": row.rounds or None})
        await asyncio.sleep(0.02)


@router.post("/v1/previews", response_model=models.Compared, operation_id="preview_round")
async def preview_round(desk: Here, who: Who, by: models.Preview) -> Response:
    """Show what would be decided now, by any scheduler and preferences, against the present settings."""
    await asyncio.to_thread(by.decider)
    return as_json(await desk.solver(do="preview", by=by.model_dump()))


@router.get("/v1/rounds/{number}", response_model=models.Decided, operation_id="show_round")
async def show_round(desk: Here, who: Who, number: Number) -> Response:
    """Show one round with its grants and its new denials."""
    chosen = sa.select(round_).where(round_.c.number == number)
    row = await desk.read(lambda connection: connection.execute(chosen).one_or_none())
    if row is None:
        raise nothing()
    return as_json(round_shown(row, who, True))


def _grant(row: Any) -> dict[str, Any]:
    kept = ("analyst", "state", "round", "multiple")
    return {"grant": row.claim, "pipeline": f"p{row.number}", **{name: getattr(row, name) for name in kept}}


@router.get(
    "/v1/grants",
    response_model=models.Grants,
    operation_id="list_grants",
    responses=linked(200, "grant", "body#/items/0/grant", "show_grant"),
)
async def list_grants(desk: Here, who: Who, limit: Limit, cursor: Cursor = None) -> Response:
    """List what was granted."""
    chosen = sa.select(*SHOWN_COLUMNS).where(pipeline.c.claim > after(cursor)).order_by(pipeline.c.claim)
    if who.analyst is not None:
        chosen = chosen.where(pipeline.c.analyst == who.name)
    rows = await desk.read(lambda connection: connection.execute(chosen.limit(limit + 1)).all())
    return as_json(page([_grant(each) for each in rows], limit, lambda each: each["grant"]))


@router.get("/v1/grants/{grant}", response_model=models.GrantShown, operation_id="show_grant")
async def show_grant(desk: Here, who: Who, grant: Number) -> Response:
    """Show one grant with what it was charged on each block."""
    chosen = sa.select(*SHOWN_COLUMNS).where(pipeline.c.claim == grant)
    row = await desk.read(lambda connection: connection.execute(chosen).one_or_none())
    if row is None or who.analyst not in (None, row.analyst):
        raise nothing()
    lines = await asyncio.to_thread(desk.ledger.statement, pipeline=f"p{row.number}")
    cost = {each.block: each.cost for each in lines if each.grant == grant and each.block is not None}
    return as_json({**_grant(row), "cost": cost})


Of = Annotated[str | None, Query(max_length=220, pattern=models.PRINTABLE)]


@router.get("/v1/statements", response_model=models.Statement, operation_id="statement")
async def statement(
    desk: Here,
    who: Who,
    device: Of = None,
    block: Of = None,
    analyst: Of = None,
    pipeline: Of = None,
    delta: Annotated[float, Query(gt=0, lt=1)] = 1e-5,
) -> Response:
    """Say who spent what, when, on whose decision: of one device, block, analyst or pipeline."""
    given = {"device": device, "block": block, "analyst": analyst, "pipeline": pipeline}
    of = {name: value for name, value in given.items() if value is not None}
    if len(of) != 1:
        raise InputError("a statement is of one device, block, analyst or pipeline")
    if who.contributor is not None:
        await asyncio.to_thread(_own_block, desk, who, of)
    if who.analyst is not None and analyst not in (None, who.name):
        raise nothing()
    lines = await asyncio.to_thread(lambda: desk.ledger.statement(delta=delta, **of))
    told = [asdict(each) for each in lines if who.analyst in (None, each.analyst)]
    if who.contributor is not None:
        told = [{**each, "analyst": "", "pipeline": ""} for each in told]
    return as_json({"lines": told})


def _own_block(desk: Desk, who: Caller, of: dict[str, str]) -> None:
    """A contributor sees the statements of its own devices only."""
    device = of.get("device", of.get("block", "").rpartition("/")[0])
    with desk.ledger.store.reading() as reader:
        found = list(reader.rows("device", ["contributor"], among=("name", [device])))
    if not device or [row[0] for row in found] != [who.name]:
        raise nothing()
