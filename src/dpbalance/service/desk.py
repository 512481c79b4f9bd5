"""What does every endpoint have at hand? One object for the server, and pages, keys and callers."""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import sqlalchemy as sa
from fastapi import Depends, Header, Query, Request
from starlette.responses import Response

from dpbalance.clock import Clock
from dpbalance.errors import InputError, NotFound, TooLarge
from dpbalance.ledger import Ledger
from dpbalance.service.access import Caller, Door
from dpbalance.service.batching import Batches
from dpbalance.service.config import Config
from dpbalance.service.database import Database
from dpbalance.service.keeping import Keys, once, request_digest
from dpbalance.service.metrics import Metrics
from dpbalance.service.submitting import Submit
from dpbalance.service.supervisor import Solver, Supervisor

PAGE = 100
"""Items of a page for which no limit is given."""

KEY_PATTERN = r"^[!-~]{1,200}$"


@dataclass(slots=True, kw_only=True)
class Desk:
    """Everything one server process works with."""

    config: Config
    database: Database
    ledger: Ledger
    clock: Clock
    metrics: Metrics
    log: Any
    door: Door
    keys: Keys
    submits: Batches[Submit]
    reads: Batches[int]
    solver: Solver
    supervisor: Supervisor

    async def once(
        self, caller: Caller, key: str, request: Request, work: Callable[[sa.Connection], dict[str, Any]]
    ) -> dict[str, Any]:
        """Do what a create asks for under its key, once."""
        digest = request_digest(request.method, str(request.url.path), str(request.url.query), await body_text(request))
        with self.keys.under_way(caller.token, key):
            return await asyncio.to_thread(once, self.database, caller.token, key, digest, self.clock.now(), work)

    async def read(self, work: Callable[[sa.Connection], Any]) -> Any:
        """Read something, off the loop."""

        def run() -> Any:
            with self.database.reading() as connection:
                return work(connection)

        return await asyncio.to_thread(run)

    async def write(self, work: Callable[[sa.Connection], Any]) -> Any:
        """Write something, off the loop."""

        def run() -> Any:
            with self.database.writing() as connection:
                return work(connection)

        return await asyncio.to_thread(run)


async def body_text(request: Request) -> str:
    return (await request.body()).decode("utf-8", "replace")


def desk(request: Request) -> Desk:
    found: Desk = request.app.state.desk
    return found


async def caller(request: Request) -> Caller:
    """Whoever asks, if it may."""
    return await desk(request).door(request)


async def limit(request: Request, limit: Annotated[int, Query(ge=1, le=10_000)] = PAGE) -> int:
    """How many items a page may have."""
    most = desk(request).config.page_max
    if limit > most:
        raise TooLarge(f"a page has at most {most} items, not {limit}", hint="following `next`")
    return limit


Here = Annotated[Desk, Depends(desk)]
Who = Annotated[Caller, Depends(caller)]
Limit = Annotated[int, Depends(limit)]
Cursor = Annotated[str | None, Query(max_length=400, description="`next` of the page before.")]
DryRun = Annotated[bool, Query(description="Check and answer, but write nothing.")]
IdempotencyKey = Annotated[
    str,
    Header(alias="Idempotency-Key", pattern=KEY_PATTERN, description="New for each request; the same to repeat one."),
]


def after(cursor: str | None, kind: type = int) -> Any:
    """What a cursor points behind."""
    if cursor is None:
        return 0 if kind is int else ""
    try:
        text = base64.b64decode(cursor.encode(), b"-_", validate=True).decode()
        if text[:1] != "a" or not text.isprintable():
            raise ValueError
        value = kind(text[1:])
        if kind is int and not 0 <= value < 2**63:
            raise ValueError
        return value
    except (ValueError, UnicodeError, binascii.Error):
        raise InputError("cursor must be the `next` of a page", hint="the first page again") from None


def page(items: list[dict[str, Any]], limit: int, last: Any) -> dict[str, Any]:
    """A page, and where the next begins; `items` has one too many when there is a next."""
    more = len(items) > limit
    following = base64.b64encode(f"a{last(items[limit - 1])}".encode(), b"-_").decode() if more else None
    return {"items": items[:limit], "next": following}


def number_of(name: str) -> int:
    """The number in a pipeline's id."""
    digits = name[1:]
    if name[:1] != "p" or not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise nothing()
    return int(digits)


def nothing() -> NotFound:
    """The same for what is not there and for what this token may not see."""
    return NotFound("there is no such thing, or this token may not see it")


def as_json(document: Any, status: int = 200) -> Response:
    """An answer that is JSON already: nothing is validated twice on the way of a submit or a status read."""
    return Response(json.dumps(document), status, media_type="application/json")


def linked(status: int, parameter: str, found: str, *operations: str) -> dict[int | str, dict[str, Any]]:
    """Which operations go on from what an answer names, as OpenAPI links."""
    parameters = {parameter: f"$response.{found}"}
    return {status: {"links": {name: {"operationId": name, "parameters": parameters} for name in operations}}}


def put_etag(response: Response, version: int) -> None:
    response.headers["ETag"] = f'"{version}"'
