"""What can operators and contributors ask for? Analysts, devices and blocks, settings, tokens, and health."""

from __future__ import annotations

import asyncio
import hashlib
import json
from typing import Annotated, Any

import numpy as np
import sqlalchemy as sa
from fastapi import APIRouter, Header, Path, Query, Request, Response

from dpbalance.clock import secret
from dpbalance.errors import AlreadyRegistered, NotAllowed, NotNow, VersionMissing, WrongVersion
from dpbalance.ledger import Ledger
from dpbalance.ledger.requests import shown as amount_shown
from dpbalance.market import Block
from dpbalance.market.unlocking import AtOnce
from dpbalance.service import models
from dpbalance.service.access import Caller, token_hash
from dpbalance.service.catalogue import block_name, check_amount
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
    linked,
    nothing,
    page,
    put_etag,
)
from dpbalance.service.keeping import add_blocks, read_settings, read_state
from dpbalance.service.problems import MEDIA
from dpbalance.service.settings import Settings
from dpbalance.service.tables import analyst, block, state, token

router = APIRouter()

PROBLEM: dict[str, Any] = {"model": models.Problem, "content": {MEDIA: {}}}

PathName = Annotated[str, Path(pattern=models.PATTERN)]


@router.get("/v1/whoami", response_model=models.Whoami, operation_id="whoami")
async def whoami(who: Who) -> Response:
    """Say whose token this is."""
    return as_json({"role": who.role, "name": who.name})


@router.post(
    "/v1/analysts",
    status_code=201,
    response_model=models.Analyst,
    operation_id="add_analyst",
    responses=linked(201, "analyst", "body#/name", "show_analyst", "set_priority"),
)
async def add_analyst(
    desk: Here, who: Who, request: Request, key: IdempotencyKey, new: models.NewAnalyst, dry_run: DryRun = False
) -> Response:
    """Add an analyst."""
    made = {"name": new.name, "priority": new.priority, "created": desk.clock.now()}

    def work(connection: sa.Connection) -> dict[str, Any]:
        if connection.execute(sa.select(analyst.c.name).where(analyst.c.name == new.name)).first():
            raise AlreadyRegistered(f"the analyst {new.name!r} is there already")
        if not dry_run:
            connection.execute(analyst.insert(), made)
        return made

    return as_json(await desk.once(who, key, request, work), 201)


@router.get(
    "/v1/analysts",
    response_model=models.Analysts,
    operation_id="list_analysts",
    responses=linked(200, "analyst", "body#/items/0/name", "show_analyst"),
)
async def list_analysts(desk: Here, who: Who, limit: Limit, cursor: Cursor = None) -> Response:
    """List analysts; an analyst sees itself."""
    chosen = sa.select(analyst).where(analyst.c.name > after(cursor, str)).order_by(analyst.c.name).limit(limit + 1)
    if who.analyst is not None:
        chosen = chosen.where(analyst.c.name == who.name)
    rows = await desk.read(lambda connection: connection.execute(chosen).mappings().all())
    return as_json(page([dict(each) for each in rows], limit, lambda each: each["name"]))


async def _analyst(desk: Desk, who: Caller, name: str) -> dict[str, Any]:
    chosen = sa.select(analyst).where(analyst.c.name == name)
    row = await desk.read(lambda connection: connection.execute(chosen).mappings().one_or_none())
    if row is None or who.analyst not in (None, name):
        raise nothing()
    return dict(row)


@router.get("/v1/analysts/{analyst}", response_model=models.Analyst, operation_id="show_analyst")
async def show_analyst(desk: Here, who: Who, analyst: PathName) -> Response:
    """Show one analyst."""
    return as_json(await _analyst(desk, who, analyst))


@router.patch("/v1/analysts/{analyst}", response_model=models.Analyst, operation_id="set_priority")
async def set_priority(desk: Here, who: Who, analyst: PathName, new: models.Priority) -> Response:
    """Give an analyst another priority, from the next round on."""
    await desk.write(lambda connection: _set_priority(connection, analyst, new.priority))
    return as_json(await _analyst(desk, who, analyst))


def _set_priority(connection: sa.Connection, name: str, priority: float) -> None:
    connection.execute(analyst.update().where(analyst.c.name == name).values(priority=priority))


BLOCK_LINKS: dict[int | str, dict[str, Any]] = {
    200: {
        "links": {
            name: {
                "operationId": name,
                "parameters": {
                    "device": "$response.body#/items/0/device",
                    "window": "$response.body#/items/0/window",
                },
            }
            for name in ("show_block", "change_block")
        }
    }
}


def _ledger_key(who: Caller, key: str) -> str:
    """The same write, under a name that fits the ledger."""
    return "api-" + hashlib.sha256(f"{who.token}:{key}".encode()).hexdigest()[:40]


@router.post("/v1/devices", status_code=201, response_model=models.Count, operation_id="enrol_devices")
async def enrol_devices(
    desk: Here, who: Who, request: Request, key: IdempotencyKey, new: models.NewDevices, dry_run: DryRun = False
) -> Response:
    """Enrol devices: all of them or none. A contributor enrols its own."""
    devices = {}
    for each in new.devices:
        owner = each.contributor or who.contributor or ""
        if who.contributor not in (None, owner):
            raise NotAllowed("a contributor enrols its own devices only")
        devices[each.name] = owner

    def work(_: sa.Connection) -> dict[str, Any]:
        if not dry_run:
            desk.ledger.register_devices(devices, actor=who.actor, key=_ledger_key(who, key))
        return {"count": len(devices), "dry_run": dry_run}

    return as_json(await desk.once(who, key, request, work), 201)


def _devices(ledger: Ledger, names: list[str] | None = None) -> list[dict[str, str]]:
    with ledger.store.reading() as reader:
        among = None if names is None else ("name", names)
        rows = reader.rows("device", ["name", "contributor"], among=among, order=("name",))
        return [{"name": name, "contributor": contributor} for name, contributor in rows]


def _visible(who: Caller, device: dict[str, str]) -> dict[str, str]:
    """Analysts see devices, but not whose they are."""
    return device if who.role != "analyst" else {**device, "contributor": ""}


@router.get(
    "/v1/devices",
    response_model=models.Devices,
    operation_id="list_devices",
    responses=linked(200, "device", "body#/items/0/name", "show_device"),
)
async def list_devices(desk: Here, who: Who, limit: Limit, cursor: Cursor = None) -> Response:
    """List devices; a contributor sees its own."""
    first = after(cursor, str)
    listed = await asyncio.to_thread(_devices, desk.ledger)
    own = [
        _visible(who, each)
        for each in sorted(listed, key=lambda each: each["name"])
        if each["name"] > first and who.contributor in (None, each["contributor"])
    ]
    return as_json(page(own[: limit + 1], limit, lambda each: each["name"]))


async def _device(desk: Desk, who: Caller, name: str) -> dict[str, str]:
    found = await asyncio.to_thread(_devices, desk.ledger, [name])
    if not found or who.contributor not in (None, found[0]["contributor"]):
        raise nothing()
    return found[0]


@router.get("/v1/devices/{device}", response_model=models.Device, operation_id="show_device")
async def show_device(desk: Here, who: Who, device: PathName) -> Response:
    """Show one device."""
    return as_json(_visible(who, await _device(desk, who, device)))


@router.post("/v1/blocks", status_code=201, response_model=models.Count, operation_id="add_blocks")
async def add_new_blocks(
    desk: Here, who: Who, request: Request, key: IdempotencyKey, new: models.NewBlocks, dry_run: DryRun = False
) -> Response:
    """Add blocks as they appear: all of them or none."""
    orders, names = desk.ledger.orders, sorted({each.device for each in new.blocks})
    for each in new.blocks:
        check_amount(each.budget, orders, f"budget of {each.device}/{each.window}")
    there = {each["name"]: each["contributor"] for each in await asyncio.to_thread(_devices, desk.ledger, names)}
    if any(name not in there or who.contributor not in (None, there[name]) for name in names):
        raise nothing()

    def work(connection: sa.Connection) -> dict[str, Any]:
        rule = read_settings(connection)[0].rule
        closed = None if isinstance(rule, AtOnce) else (0.0 if orders is None else [0.0] * len(orders))
        blocks = [
            Block(id=block_name(each.device, each.window), capacity=each.budget, unlocked=closed) for each in new.blocks
        ]
        if not dry_run:
            desk.ledger.register_blocks(blocks, actor=who.actor, key=_ledger_key(who, key))
            listed = [(each.device, each.window) for each in new.blocks]
            add_blocks(connection, listed, desk.clock.now(), rule.parts)
        return {"count": len(blocks), "dry_run": dry_run}

    return as_json(await desk.once(who, key, request, work), 201)


def _blocks(ledger: Ledger, rows: list[Any]) -> list[dict[str, Any]]:
    names = [block_name(each.device, each.period) for each in rows]
    found = ledger.balances(names) if names else []
    return [
        {
            "id": name,
            "device": row.device,
            "window": row.period,
            "state": each.state.word,
            "arrived": row.arrived,
            "spent": amount_shown(np.minimum(each.spent, 10**15), ledger.orders),
            "unlocked": amount_shown(each.unlocked, ledger.orders),
            "capacity": amount_shown(each.capacity, ledger.orders),
        }
        for name, row, each in zip(names, rows, found, strict=True)
    ]


@router.get("/v1/blocks", response_model=models.Blocks, operation_id="list_blocks", responses=BLOCK_LINKS)
async def list_blocks(
    desk: Here,
    who: Who,
    limit: Limit,
    cursor: Cursor = None,
    device: Annotated[str | None, Query(pattern=models.PATTERN)] = None,
) -> Response:
    """List blocks in the order in which they came."""
    chosen = sa.select(block).where(block.c.number > after(cursor)).order_by(block.c.number).limit(limit + 1)
    if who.contributor is not None:
        listed = await asyncio.to_thread(_devices, desk.ledger)
        chosen = chosen.where(block.c.device.in_([e["name"] for e in listed if e["contributor"] == who.name]))
    if device is not None:
        chosen = chosen.where(block.c.device == device)
    rows = list(await desk.read(lambda connection: connection.execute(chosen).all()))
    items = await asyncio.to_thread(_blocks, desk.ledger, rows)
    number = {item["id"]: row.number for item, row in zip(items, rows, strict=True)}
    return as_json(page(items, limit, lambda each: number[each["id"]]))


async def _block(desk: Desk, who: Caller, device: str, window: str) -> dict[str, Any]:
    await _device(desk, who, device)
    chosen = sa.select(block).where((block.c.device == device) & (block.c.period == window))
    row = await desk.read(lambda connection: connection.execute(chosen).one_or_none())
    if row is None:
        raise nothing()
    return (await asyncio.to_thread(_blocks, desk.ledger, [row]))[0]


@router.get("/v1/devices/{device}/blocks/{window}", response_model=models.Block, operation_id="show_block")
async def show_block(desk: Here, who: Who, device: PathName, window: PathName) -> Response:
    """Show one block with what is left of it."""
    return as_json(await _block(desk, who, device, window))


@router.patch("/v1/devices/{device}/blocks/{window}", response_model=models.Block, operation_id="change_block")
async def change_block(
    desk: Here, who: Who, device: PathName, window: PathName, change: models.BlockChange
) -> Response:
    """Set the budget of a block, or freeze, thaw or retire it."""
    name = (await _block(desk, who, device, window))["id"]
    if change.budget is not None:
        check_amount(change.budget, desk.ledger.orders, "budget")

    def work() -> None:
        if change.budget is not None:
            desk.ledger.set_budget(name, change.budget, actor=who.actor)
        elif change.state == "open":
            desk.ledger.thaw([name], actor=who.actor)
        elif change.state == "frozen":
            desk.ledger.freeze([name], actor=who.actor)
        else:
            desk.ledger.retire([name], actor=who.actor)

    await asyncio.to_thread(work)
    return as_json(await _block(desk, who, device, window))


@router.get("/v1/settings", response_model=Settings, operation_id="show_settings")
async def show_settings(desk: Here, who: Who) -> Response:
    """Show what is set; its version is the ETag."""
    settings, version = await desk.read(read_settings)
    response = as_json(settings.model_dump())
    put_etag(response, version)
    return response


@router.put(
    "/v1/settings", response_model=Settings, operation_id="put_settings", responses={412: PROBLEM, 428: PROBLEM}
)
async def put_settings(
    desk: Here,
    who: Who,
    new: Settings,
    if_match: Annotated[str | None, Header(max_length=60, description="The ETag this change starts from.")] = None,
) -> Response:
    """Replace the settings, from the next round on; nobody else's change is lost."""
    if if_match is None:
        raise VersionMissing("If-Match must name the version this change starts from", hint="the ETag of GET")
    await asyncio.to_thread(new.check)

    def work(connection: sa.Connection) -> int:
        version = read_state(connection).version
        mine = state.c.version == version
        if if_match.strip() not in (f'"{version}"', "*"):
            raise WrongVersion(f"the settings are at version {version} by now", hint="GET, then PUT again")
        done = connection.execute(
            state.update().where(mine).values(version=version + 1, settings=json.dumps(new.model_dump()))
        )
        if done.rowcount != 1:
            raise WrongVersion("the settings were changed at the same moment", hint="GET, then PUT again")
        return int(version) + 1

    response = as_json(new.model_dump())
    put_etag(response, await desk.write(work))
    return response


def _token(row: Any) -> dict[str, Any]:
    names = ("id", "role", "name", "label", "created", "expires", "revoked")
    return {name: getattr(row, name) for name in names}


def make_token(connection: sa.Connection, new: models.NewToken, now: float) -> dict[str, Any]:
    """A new token with its secret; an analyst that is not there yet is added."""
    made = secret()
    row = {
        "id": f"t-{hashlib.sha256(made.encode()).hexdigest()[:12]}",
        "hash": token_hash(made),
        "role": new.role,
        "name": new.name,
        "label": new.label,
        "created": now,
        "expires": None if new.seconds is None else now + new.seconds,
        "revoked": None,
    }
    connection.execute(token.insert(), row)
    if new.role == "analyst":
        if not connection.execute(sa.select(analyst.c.name).where(analyst.c.name == new.name)).first():
            connection.execute(analyst.insert(), {"name": new.name, "priority": 1.0, "created": now})
    return {**{name: value for name, value in row.items() if name != "hash"}, "secret": made}


@router.post(
    "/v1/tokens",
    status_code=201,
    response_model=models.MadeToken,
    operation_id="create_token",
    responses=linked(201, "token", "body#/id", "revoke_token"),
)
async def create_token(desk: Here, who: Who, request: Request, key: IdempotencyKey, new: models.NewToken) -> Response:
    """Make a token; its secret is shown this once."""
    shown: dict[str, str] = {}

    def work(connection: sa.Connection) -> dict[str, Any]:
        made = make_token(connection, new, desk.clock.now())
        shown["secret"] = made.pop("secret")
        return made

    made = await desk.once(who, key, request, work)
    return as_json({**made, "secret": shown.get("secret")}, 201)


@router.get("/v1/tokens", response_model=models.Tokens, operation_id="list_tokens")
async def list_tokens(desk: Here, who: Who, limit: Limit, cursor: Cursor = None) -> Response:
    """List tokens, without their secrets."""
    chosen = sa.select(token).where(token.c.id > after(cursor, str)).order_by(token.c.id).limit(limit + 1)
    rows = await desk.read(lambda connection: connection.execute(chosen).all())
    return as_json(page([_token(each) for each in rows], limit, lambda each: each["id"]))


@router.delete("/v1/tokens/{token}", response_model=models.Token, operation_id="revoke_token")
async def revoke_token(desk: Here, who: Who, token: PathName) -> Response:
    """Revoke a token: at once here, within a second on every replica."""
    row = await desk.write(lambda connection: _revoke(connection, token, desk.clock.now()))
    desk.door.forget()
    if row is None:
        raise nothing()
    return as_json(_token(row))


def _revoke(connection: sa.Connection, name: str, now: float) -> Any:
    connection.execute(state.update().values(done=state.c.done))  # two at once: one after the other
    good = token.c.revoked.is_(None) & (token.c.expires.is_(None) | (token.c.expires > now))
    operators = connection.execute(sa.select(token.c.id).where((token.c.role == "operator") & good)).scalars().all()
    if operators == [name]:
        raise NotNow("this is the last token of an operator", hint="dpbalance token create operator NAME")
    mine = (token.c.id == name) & token.c.revoked.is_(None)
    connection.execute(token.update().where(mine).values(revoked=now))
    return connection.execute(sa.select(token).where(token.c.id == name)).one_or_none()
