"""Where are the service's own tables? Beside the ledger: a second file for SQLite, the same database for PostgreSQL."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import sqlalchemy as sa

from dpbalance.errors import InputError, LedgerUnavailable, OptionError

LOG = logging.getLogger("dpbalance.database")
"""Where an outage is told in full; whoever asks is told that there is one."""

BUSY_S = 30.0
"""How long a writer waits for another process to finish its transaction."""

POOL = 8
"""Connections of one process; each of its threads needs one at a time."""

STARTING = 7_264_001
"""The number of PostgreSQL's advisory lock under which a replica starts."""


def own_address(url: str) -> str:
    """The address of the service's tables, for the address of a ledger.

    >>> own_address("sqlite:////data/budget.db"), own_address("postgresql://host/name")
    ('sqlite:////data/budget-service.db', 'postgresql+psycopg://host/name')
    """
    if url.startswith("sqlite:///"):
        path = Path(url.removeprefix("sqlite:///"))
        return f"sqlite:///{path.with_name(f'{path.stem}-service{path.suffix}')}"
    if url.startswith(("postgresql://", "postgresql+psycopg://")):
        return f"postgresql+psycopg://{url.partition('://')[2]}"
    raise OptionError(
        f"the service keeps its state at sqlite:///FILE or postgresql://HOST/NAME, not at {url[:100]!r}",
        hint="--database sqlite:///dpbalance.db",
    )


class Database:
    """A pool of connections. Any number of threads may use one object."""

    def __init__(self, ledger_url: str) -> None:
        address = sa.make_url(own_address(ledger_url))
        self.sqlite = address.get_backend_name() == "sqlite"
        self.shown = address.render_as_string(hide_password=True)
        given: dict[str, Any] = {"timeout": BUSY_S} if self.sqlite else {"connect_timeout": 10}
        self.engine = sa.create_engine(address, pool_size=POOL, pool_pre_ping=not self.sqlite, connect_args=given)
        if self.sqlite:
            sa.event.listen(self.engine, "connect", _durable)
            sa.event.listen(self.engine, "begin", _begin)
        self._writing = self.engine.execution_options(begin="BEGIN IMMEDIATE")
        self._reading = self.engine.execution_options(begin="BEGIN")

    @contextmanager
    def writing(self) -> Iterator[sa.Connection]:
        """A transaction that commits at the end, durably, or takes everything back."""
        with self._told(), self._writing.begin() as connection:
            yield connection

    @contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """What is committed by now."""
        with self._told(), self._reading.connect() as connection:
            yield connection

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Replicas that start at once make what is missing one after the other."""
        if self.sqlite:
            yield
            return
        with self.reading() as connection:
            connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({STARTING})"))
            yield

    def migrate(self) -> None:
        """Bring the tables to the newest version."""
        with self.writing() as connection:
            config = alembic.config.Config()
            config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
            config.attributes["connection"] = connection
            alembic.command.upgrade(config, "head")

    def close(self) -> None:
        self.engine.dispose()

    @contextmanager
    def _told(self) -> Iterator[None]:
        """An outage in our own words; a constraint that was broken stays what it is, for whoever expects it."""
        try:
            yield
        except (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.TimeoutError) as problem:
            told = " ".join(str(getattr(problem, "orig", problem)).split())
            LOG.warning("the database does not answer: %s: %s", self.shown, told)
            raise LedgerUnavailable("the database does not answer", hint="the same with the same key") from problem
        except sa.exc.DataError as problem:
            raise InputError("a value of this request cannot be kept in the database") from problem


def _durable(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # transactions begin where we say so
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "cache_size = -32768"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql(connection.get_execution_options().get("begin", "BEGIN"))
