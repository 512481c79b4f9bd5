"""How is a ledger kept in PostgreSQL? Locks in one order, guarded updates of whole sets, COPY for rows, and a CHECK."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbalance.amounts import Units
from dpbalance.errors import AlreadyRegistered, LedgerDamaged, LedgerUnavailable, OptionError
from dpbalance.ledger.page import Head
from dpbalance.ledger.store import CHUNK, Among, Check, Fill, Reader, Store, WallHeld, Writer, array_of, head_row, only
from dpbalance.ledger.tables import amounts, tables
from dpbalance.market.round import Indices

try:
    import alembic.command
    import alembic.config
    import psycopg
    import sqlalchemy as sa
except ImportError as problem:
    raise OptionError(
        f"a ledger in PostgreSQL needs the package {problem.name!r}, which is not installed",
        hint="pip install 'dpbalance[postgres]'",
    ) from None

ISOLATIONS = ("locks", "serializable")

RETRIES_MAX = 50
"""How often a transaction that PostgreSQL could not order is tried again."""

LOCK_TIMEOUT_MS = 30_000
"""How long a writer waits for another process to finish its transaction."""

CONNECT_TIMEOUT_S = 10

COPY_HEADER = b"PGCOPY\n\xff\r\n\0" + bytes(8)
COPY_TRAILER = b"\xff\xff"


class PostgresWriter(Writer):
    """One connection inside a transaction, and what it can be asked."""

    def __init__(self, connection: sa.Connection, width: int) -> None:
        super().__init__(width)
        self._connection = connection
        self._cursors = 0
        self._raw: psycopg.Connection[Any] = connection.connection.driver_connection  # type: ignore[assignment]

    def rows(
        self, table: str, columns: Sequence[str], *, among: Among | None = None, order: Sequence[str] = ()
    ) -> Iterator[tuple[Any, ...]]:
        text, values = _select(table, columns, among, order)
        if among is not None:
            return iter(self._raw.execute(text, values, binary=True).fetchall())
        return (row for part in self._streamed(text) for row in part)

    def numbers(
        self, table: str, columns: Sequence[str], *, among: Among | None = None, order: Sequence[str] = ()
    ) -> npt.NDArray[np.int64]:
        if among is not None and (len(among[1]) <= CHUNK or among[0] not in columns):
            return array_of(self.rows(table, columns, among=among, order=order), len(columns))
        text, _ = _select(table, columns, None, order)
        parts = [array_of(iter(part), len(columns)) for part in self._streamed(text)]
        made = np.concatenate([np.zeros((0, len(columns)), dtype=np.int64), *parts])
        return made if among is None else only(made, list(columns).index(among[0]), among[1])

    def locked(self, columns: Sequence[str], ids: Indices) -> npt.NDArray[np.int64]:
        """Ordered row locks; for very many blocks the head's lock and the guard of the update stand alone."""
        if len(ids) > CHUNK:
            return super().locked(columns, ids)
        text, values = _select("balance", columns, ("block", ids), ("block",))
        return array_of(iter(self._raw.execute(f"{text} FOR UPDATE", values, binary=True).fetchall()), len(columns))

    def _streamed(self, text: str) -> Iterator[list[tuple[Any, ...]]]:
        """Many rows, through a cursor of the server so that memory stays flat."""
        self._cursors += 1
        with self._raw.cursor(name=f"stream_{self._cursors}") as cursor:
            cursor.execute(text, binary=True)
            while part := cursor.fetchmany(CHUNK):
                yield part

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
        with self._raw.cursor() as cursor, cursor.copy(f"COPY {table} ({', '.join(columns)}) FROM STDIN") as copy:
            for row in rows:
                copy.write_row(row)

    def insert_numbers(self, table: str, columns: Sequence[str], rows: npt.NDArray[np.int64]) -> None:
        text = f"COPY {table} ({', '.join(columns)}) FROM STDIN (FORMAT BINARY)"
        with self._raw.cursor() as cursor, cursor.copy(text) as copy:
            copy.write(COPY_HEADER)
            for at in range(0, len(rows), CHUNK):
                part = rows[at : at + CHUNK]
                made = np.zeros(len(part), dtype=_binary(len(columns)))
                made["count"] = len(columns)
                for place in range(len(columns)):
                    made[f"length{place}"], made[f"value{place}"] = 8, part[:, place]
                copy.write(made.tobytes())
            copy.write(COPY_TRAILER)

    def spend(self, ids: Indices, state: Indices, more: Units) -> int:
        width = self.width
        put = ", ".join(f"spent_{at} = b.spent_{at} + v.more_{at}" for at in range(width))
        guard = " OR ".join(f"b.spent_{at} + v.more_{at} <= b.unlocked_{at}" for at in range(width))
        return self._set(
            f"UPDATE balance AS b SET {put} FROM {{given}} WHERE b.block = v.id AND b.state = v.state AND ({guard})",
            ["id", "state", *amounts("more", width)],
            np.column_stack([ids, state, more]),
        )

    def set_balances(self, ids: Indices, before: Units, rows: npt.NDArray[np.int64]) -> int:
        width = self.width
        names = ["state", *amounts("spent", width), *amounts("unlocked", width), *amounts("capacity", width)]
        put = ", ".join(f"{name} = v.{name}" for name in names)
        same = " AND ".join(f"b.spent_{at} = v.before_{at}" for at in range(width))
        return self._set(
            f"UPDATE balance AS b SET {put} FROM {{given}} WHERE b.block = v.id AND {same}",
            ["id", *amounts("before", width), *names],
            np.column_stack([ids, before, rows]),
        )

    def set_stages(self, rows: Sequence[tuple[int, int, int]]) -> int:
        text = "UPDATE claim AS c SET stage = v.after FROM {given} WHERE c.id = v.id AND c.stage = v.before"
        return self._set(text, ["id", "before", "after"], np.array(rows, dtype=np.int64))

    def set_head(self, before: Head, head: Head) -> int:
        row = head_row(head)
        put = ", ".join(f"{name} = :{name}" for name in row)
        text = sa.text(f"UPDATE head SET {put} WHERE seq = :seq_before AND hash = :hash_before")
        return self._connection.execute(text, {**row, "seq_before": before.seq, "hash_before": before.hash}).rowcount

    def _set(self, text: str, names: list[str], rows: npt.NDArray[np.int64]) -> int:
        """One update for all rows: a few are handed over as arrays, many through a table of this transaction."""
        with self._raw.cursor() as cursor:
            if len(rows) <= CHUNK:
                given = f"unnest({', '.join(['%s::bigint[]'] * len(names))}) AS v({', '.join(names)})"
                return cursor.execute(text.format(given=given), [column.tolist() for column in rows.T]).rowcount
            columns = ", ".join(f"{name} bigint" for name in names)
            cursor.execute(f"CREATE TEMPORARY TABLE given ({columns}) ON COMMIT DROP")
            self.insert_numbers("given", names, rows)
            cursor.execute("ANALYZE given")
            done = cursor.execute(text.format(given="given AS v")).rowcount
            cursor.execute("DROP TABLE given")
            return done


class PostgresStore(Store):
    """A database of a PostgreSQL server."""

    def __init__(self, url: str, *, isolation: str = "locks") -> None:
        self._open(url, isolation)
        try:
            with translated(self.url), self._engine.connect() as connection:
                told = connection.execute(sa.text("SELECT name, value FROM meta")).all()
        except BaseException:
            self._engine.dispose()
            raise
        self.describe(dict(map(tuple, told)))

    def _open(self, url: str, isolation: str) -> None:
        if isolation not in ISOLATIONS:
            raise OptionError(f"isolation must be one of {', '.join(ISOLATIONS)}, not {isolation!r}")
        try:
            address = sa.make_url(url).set(drivername="postgresql+psycopg")
        except sa.exc.ArgumentError as problem:
            raise OptionError(f"this is no address of a database: {problem}") from None
        self.url, self.isolation = address.render_as_string(hide_password=True), isolation
        options = f"-c synchronous_commit=on -c lock_timeout={LOCK_TIMEOUT_MS}"
        given = address.query.get("options")
        self._engine = sa.create_engine(
            address.difference_update_query(["options"]),
            pool_pre_ping=True,
            connect_args={"options": f"{given or ''} {options}", "connect_timeout": CONNECT_TIMEOUT_S},
        )
        self._writing = self._engine.execution_options(
            isolation_level="SERIALIZABLE" if isolation == "serializable" else "READ COMMITTED"
        )
        self._reading = self._engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    @staticmethod
    def create(
        url: str, meta: dict[str, str], width: int, fill: Fill, check: Check, *, isolation: str = "locks"
    ) -> PostgresStore:
        """New tables with their first rows in a database that has none of ours: one transaction."""
        store = PostgresStore.__new__(PostgresStore)
        store._open(url, isolation)
        store.describe(meta)
        try:
            store._make(fill, check)
        except WallHeld:  # two began at the same moment
            store.close()
            raise AlreadyRegistered(f"{store.url} holds a ledger already", hint="another database") from None
        except BaseException:
            store.close()
            raise
        return store

    def _make(self, fill: Fill, check: Check) -> None:
        with translated(self.url), self._engine.begin() as connection:
            taken = sorted({*tables(self.width), "alembic_version"} & set(sa.inspect(connection).get_table_names()))
            if taken:
                what = "a ledger" if {"meta", "head", "journal"} <= set(taken) else f"a table {taken[0]!r}"
                raise AlreadyRegistered(f"{self.url} holds {what} already", hint="another database")
            config = alembic.config.Config()
            config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
            config.attributes.update(connection=connection, width=self.width)
            alembic.command.upgrade(config, "head")
            writer = PostgresWriter(connection, self.width)
            writer.insert("meta", ["name", "value"], list(self.meta.items()))
            row = head_row(Head())
            writer.insert("head", list(row), [tuple(row.values())])
            fill(writer)
            check(writer)

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        with translated(self.url), self._reading.begin() as connection:
            yield PostgresWriter(connection, self.width)

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        with translated(self.url), self._writing.begin() as connection:
            if self.isolation == "serializable":  # a lock that is taken before the view of the transaction is
                connection.exec_driver_sql("LOCK TABLE head IN EXCLUSIVE MODE")
            else:
                connection.exec_driver_sql("SELECT seq FROM head FOR UPDATE")
            yield PostgresWriter(connection, self.width)

    def retrying(self, work: Callable[[], Any]) -> Any:
        for _ in range(RETRIES_MAX):
            try:
                return work()
            except _NotInOrder:
                continue
        raise LedgerUnavailable(
            f"{self.url} could not order a write in {RETRIES_MAX} attempts", hint="the same key again"
        )

    def close(self) -> None:
        self._engine.dispose()


class _NotInOrder(Exception):
    """PostgreSQL could not put this transaction in an order with others; nothing was written."""


@contextmanager
def translated(url: str) -> Iterator[None]:
    """What SQLAlchemy and psycopg raise, in our own words."""
    try:
        yield
    except sa.exc.TimeoutError as problem:
        raise LedgerUnavailable(f"{url}: {problem}", hint="the same request with the same key") from problem
    except (sa.exc.DBAPIError, psycopg.Error) as problem:
        cause = problem.orig if isinstance(problem, sa.exc.DBAPIError) else problem
        told = " ".join(str(cause).split())
        if isinstance(cause, (psycopg.errors.SerializationFailure, psycopg.errors.DeadlockDetected)):
            raise _NotInOrder from problem
        if isinstance(cause, psycopg.IntegrityError):
            raise WallHeld(told) from problem
        if isinstance(cause, psycopg.errors.UndefinedTable):
            raise LedgerDamaged(f"{url} is no ledger: {told}", hint="dpbalance ledger init") from problem
        if isinstance(cause, (psycopg.OperationalError, psycopg.InterfaceError)):
            raise LedgerUnavailable(f"{url}: {told}", hint="the same request with the same key") from problem
        raise LedgerDamaged(f"{url}: {told}", hint="dpbalance ledger verify") from problem


def _select(table: str, columns: Sequence[str], among: Among | None, order: Sequence[str]) -> tuple[Any, list[Any]]:
    text = f"SELECT {', '.join(columns)} FROM {table}"
    values = []
    if among is not None:
        column, chosen = among
        text += f" WHERE {column} = ANY(%s)"
        values = [chosen.tolist() if isinstance(chosen, np.ndarray) else list(chosen)]
    return text + (f" ORDER BY {', '.join(order)}" if order else ""), values


def _binary(columns: int) -> np.dtype[Any]:
    """A row of whole numbers as COPY writes it."""
    fields: list[tuple[str, str]] = [("count", ">i2")]
    for at in range(columns):
        fields += [(f"length{at}", ">i4"), (f"value{at}", ">i8")]
    return np.dtype(fields)
