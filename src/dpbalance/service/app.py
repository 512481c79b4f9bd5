"""How do the parts make one application? Endpoints, who may use them, and what surrounds every request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import sqlalchemy as sa
from fastapi import Depends, FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException

from dpbalance import __version__
from dpbalance.clock import Clock, RealClock
from dpbalance.errors import AlreadyRegistered, DPBalanceError, LedgerDamaged, NotInLedger
from dpbalance.ledger import Ledger, create_ledger, open_ledger
from dpbalance.service import problems, routes_health, routes_house, routes_work
from dpbalance.service.access import RULES, Door
from dpbalance.service.batching import Batches
from dpbalance.service.config import Config
from dpbalance.service.database import Database
from dpbalance.service.desk import Desk
from dpbalance.service.envelope import Envelope, logger
from dpbalance.service.keeping import SHOWN_COLUMNS, Keys
from dpbalance.service.metrics import Metrics
from dpbalance.service.submitting import Submitting
from dpbalance.service.supervisor import Solver, Supervisor
from dpbalance.service.tables import pipeline

REFUSALS = (400, 401, 403, 404, 405, 408, 409, 413, 422, 429, 503)


def make_desk(config: Config, clock: Clock | None = None) -> Desk:
    """Open or make everything that is kept."""
    clock = clock or RealClock()
    database = Database(config.database)
    with database.alone():
        ledger = ledger_at(config, clock)
        database.migrate()
    metrics, log = Metrics(), logger(config.log)
    submitting = Submitting(database, clock, ledger.orders, config)
    return Desk(
        config=config,
        database=database,
        ledger=ledger,
        clock=clock,
        metrics=metrics,
        log=log,
        door=Door(database, clock, config.rate, config.burst),
        keys=Keys(),
        submits=Batches(submitting.run, queue_max=config.queue_max, what="submits"),
        reads=Batches(lambda numbers: _rows(database, numbers), queue_max=config.connections_max, what="reads"),
        solver=Solver(config),
        supervisor=Supervisor(config, ledger, metrics, log),
    )


def ledger_at(config: Config, clock: Clock) -> Ledger:
    """The ledger at this address, or a new one where there is none."""
    try:
        return open_ledger(config.database, key_file=config.ledger_key, clock=clock)
    except (NotInLedger, LedgerDamaged) as problem:
        try:
            return create_ledger(config.database, orders=config.orders, key_file=config.ledger_key, clock=clock)
        except AlreadyRegistered:
            raise problem from None


def _rows(database: Database, numbers: Sequence[int]) -> list[Any]:
    """Many status reads in one query, begun after all of them came in: what was acknowledged is in it."""
    with database.reading() as connection:
        chosen = sa.select(*SHOWN_COLUMNS).where(pipeline.c.number.in_(set(numbers)))
        found = {row.number: row for row in connection.execute(chosen)}
    return [found.get(number) for number in numbers]


def make_app(desk: Desk, *, rounds: bool = True) -> FastAPI:
    """The application; `rounds` starts the round process beside it."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        task = asyncio.create_task(desk.supervisor.run()) if rounds else None
        try:
            yield
        finally:
            if task is not None:
                await desk.supervisor.stop()
                with suppress(DPBalanceError):
                    await task
            desk.submits.close()
            desk.reads.close()
            desk.database.close()
            desk.ledger.close()

    app = FastAPI(
        title="DPBalance",
        version=__version__,
        description="Privacy budget, spent efficiently and shared fairly.",
        lifespan=lifespan,
        redirect_slashes=False,
        docs_url=None,  # its page would load programs from elsewhere
        redoc_url=None,
    )
    app.state.desk = desk
    bearer = Depends(HTTPBearer(auto_error=False, description="A token of `dpbalance token create`."))
    refusals: dict[int | str, dict[str, Any]] = dict.fromkeys(REFUSALS, routes_house.PROBLEM)
    for each in (routes_house, routes_work):
        app.include_router(each.router, dependencies=[bearer], responses=refusals)
    app.include_router(routes_health.router, responses={405: routes_house.PROBLEM})
    app.add_exception_handler(DPBalanceError, problems.refused)
    app.add_exception_handler(RequestValidationError, problems.not_valid)
    app.add_exception_handler(HTTPException, problems.not_http)
    app.add_middleware(Envelope, door=desk.door, config=desk.config, metrics=desk.metrics, log=desk.log)
    return app


def unruled(app: FastAPI) -> set[tuple[str, str]]:
    """Endpoints under /v1 that no rule opens, and rules that open nothing."""
    served = {
        (method.upper(), path)
        for path, operations in app.openapi()["paths"].items()
        for method in operations
        if path.startswith("/v1/")
    }
    return served ^ set(RULES)
