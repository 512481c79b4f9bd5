"""How is a ledger kept in one file, or in memory? SQLite with a write-ahead log that is synced at every commit."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbalance.amounts import Units
from dpbalance.errors import AlreadyRegistered, FileFormatError, LedgerDamaged, LedgerUnavailable, NotInLedger
from dpbalance.ledger.page import Head
from dpbalance.ledger.store import (
    CHUNK,
    Among,
    Check,
    Fill,
    Reader,
    Store,
    WallHeld,
    Writer,
    array_of,
    chunks,
    head_row,
    only,
)
from dpbalance.ledger.tables import Columns, amounts, checks, tables
from dpbalance.market.round import Indices

BUSY_S = 30.0
"""How long a writer waits for another process to finish its transaction."""

TYPES = {"int": "INTEGER", "real": "REAL", "text": "TEXT", "bytes": "BLOB"}
KEYS = {"meta": "name", "device": "id", "block": "id", "balance": "block", "journal": "seq", "claim": "id"}
CLUSTERED = {"term": "block, seq", "entry": "claim, block"}
UNIQUE = {"device": ("name",), "block": ("name", "sort"), "journal": ("key", "hash")}
INDEXES = {"claim": ("seq", "pipeline", "analyst"), "entry": ("block",)}
NULLABLE = {"key"}


def schema(width: int) -> list[str]:
    """The statements that make the tables."""
    strict = "STRICT" if sqlite3.sqlite_version_info >= (3, 37) else ""
    made = []
    for table, columns in tables(width).items():
        parts = [_column(name, kind, name == KEYS.get(table)) for name, kind in columns.items()]
        parts += [f"UNIQUE ({name})" for name in UNIQUE.get(table, ())]
        if table in CLUSTERED:
            parts.append(f"PRIMARY KEY ({CLUSTERED[table]})")
        if table == "balance":
            parts += [f"CONSTRAINT {name} CHECK ({rule})" for name, rule in checks(width).items()]
        options = ", ".join(filter(None, [strict, "WITHOUT ROWID" if table in CLUSTERED else ""]))
        made.append(f"CREATE TABLE {table} ({', '.join(parts)}) {options}")
        made += [f"CREATE INDEX {table}_{name} ON {table} ({name})" for name in INDEXES.get(table, ())]
    return made


def _column(name: str, kind: str, key: bool) -> str:
    return f"{name} {TYPES[kind]}{'' if name in NULLABLE else ' NOT NULL'}{' PRIMARY KEY' if key else ''}"


class SqliteWriter(Writer):
    """One connection, and what it can be asked."""

    def __init__(self, connection: sqlite3.Connection, width: int) -> None:
        super().__init__(width)
        self._connection = connection
        self._tables: dict[str, Columns] = tables(width)

    def rows(
        self, table: str, columns: Sequence[str], *, among: Among | None = None, order: Sequence[str] = ()
    ) -> Iterator[tuple[Any, ...]]:
        values: tuple[Any, ...] = ()
        text = f"SELECT {', '.join(columns)} FROM {table}"
        if among is not None:
            column, chosen = among
            listed = chosen.tolist() if isinstance(chosen, np.ndarray) else list(chosen)
            text += f" WHERE {column} IN (SELECT value FROM json_each(?))"
            values = (json.dumps(listed),)
        if order:
            text += f" ORDER BY {', '.join(order)}"
        return iter(self._connection.execute(text, values))

    def numbers(
        self, table: str, columns: Sequence[str], *, among: Among | None = None, order: Sequence[str] = ()
    ) -> npt.NDArray[np.int64]:
        if among is None or len(among[1]) <= CHUNK or among[0] not in columns:
            return array_of(self.rows(table, columns, among=among, order=order), len(columns))
        column, chosen = among  # reading everything is faster than looking up so many one by one
        made = array_of(self.rows(table, columns, order=order), len(columns))
        return only(made, list(columns).index(column), chosen)

    def insert(self, table: str, columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
        marks = ", ".join("?" * len(columns))
        self._connection.executemany(f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})", rows)

    def insert_numbers(self, table: str, columns: Sequence[str], rows: npt.NDArray[np.int64]) -> None:
        for part in chunks(rows):
            self.insert(table, columns, part)

    def spend(self, ids: Indices, state: Indices, more: Units) -> int:
        width = self.width
        given = [f"?{3 + at}" for at in range(width)]
        put = ", ".join(f"{name} = {name} + {mark}" for name, mark in zip(amounts("spent", width), given, strict=True))
        guard = " OR ".join(f"spent_{at} + {mark} <= unlocked_{at}" for at, mark in enumerate(given))
        text = f"UPDATE balance SET {put} WHERE block = ?1 AND state = ?2 AND ({guard})"
        return self._many(text, np.column_stack([ids, state, more]))

    def set_balances(self, ids: Indices, before: Units, rows: npt.NDArray[np.int64]) -> int:
        width = self.width
        names = ["state", *amounts("spent", width), *amounts("unlocked", width), *amounts("capacity", width)]
        put = ", ".join(f"{name} = ?{2 + width + at}" for at, name in enumerate(names))
        same = " AND ".join(f"{name} = ?{2 + at}" for at, name in enumerate(amounts("spent", width)))
        text = f"UPDATE balance SET {put} WHERE block = ?1 AND {same}"
        return self._many(text, np.column_stack([ids, before, rows]))

    def set_stages(self, rows: Sequence[tuple[int, int, int]]) -> int:
        return self._connection.executemany("UPDATE claim SET stage = ?3 WHERE id = ?1 AND stage = ?2", rows).rowcount

    def set_head(self, before: Head, head: Head) -> int:
        row = head_row(head)
        put = ", ".join(f"{name} = ?" for name in row)
        values = (*row.values(), before.seq, before.hash)
        return self._connection.execute(f"UPDATE head SET {put} WHERE seq = ? AND hash = ?", values).rowcount

    def _many(self, text: str, rows: npt.NDArray[np.int64]) -> int:
        return sum(self._connection.executemany(text, part).rowcount for part in chunks(rows))


class SqliteStore(Store):
    """A file, or memory for the path `:memory:`."""

    def __init__(self, path: str, *, log: bool = True) -> None:
        self.path = path
        self.url = "memory:" if path == ":memory:" else f"sqlite:///{path}"
        self._lock = RLock()
        if path != ":memory:" and not Path(path).is_file():
            raise NotInLedger(f"there is no ledger at {path}", hint="dpbalance ledger init")
        with translated(self.url):
            self._connection = _connect(path, log=log)
            self._file = _identity(path)
            try:
                told = dict(self._connection.execute("SELECT name, value FROM meta"))
                self.describe(told)
            except BaseException:
                self._connection.close()
                raise

    @staticmethod
    def create(path: str, meta: dict[str, str], width: int, fill: Fill, check: Check) -> SqliteStore:
        """A new ledger, which appears under its name only when it is complete, checked and on the disk."""
        if path == ":memory:":
            store = SqliteStore.__new__(SqliteStore)
            store.path, store.url, store._lock, store._connection = path, "memory:", RLock(), _connect(path)
            store._file = None
            _make(store._connection, meta, width, fill)
            store.describe(meta)
            return store
        with appearing(Path(path)) as unfinished:
            with translated(f"sqlite:///{path}"):
                connection = _connect(str(unfinished), log=False)  # one file only, whoever copies it
                try:
                    _make(connection, meta, width, fill)
                finally:
                    connection.close()
            made = SqliteStore(str(unfinished), log=False)
            try:
                with made.reading() as reader:
                    check(reader)
            finally:
                made.close()
        return SqliteStore(path)

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        if self.path == ":memory:":
            with self._lock:
                yield SqliteWriter(self._connection, self.width)
            return
        with translated(self.url):
            connection = _connect(self.path, log=None)
            try:
                connection.execute("BEGIN")
                connection.execute("SELECT seq FROM head").fetchall()  # from here on the view is fixed
                yield SqliteWriter(connection, self.width)
            finally:
                connection.close()

    @contextmanager
    def writing(self) -> Iterator[Writer]:
        with self._lock, translated(self.url):
            if self._file != _identity(self.path):
                raise LedgerUnavailable(f"the file of {self.url} was replaced by another", hint="opening it again")
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield SqliteWriter(self._connection, self.width)
                self._connection.execute("COMMIT")
            finally:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")

    def retrying(self, work: Callable[[], Any]) -> Any:
        return work()

    def close(self) -> None:
        with self._lock:
            self._connection.close()


@contextmanager
def translated(url: str) -> Iterator[None]:
    """What SQLite raises, in our own words."""
    try:
        yield
    except sqlite3.IntegrityError as problem:
        raise WallHeld(str(problem)) from problem
    except sqlite3.ProgrammingError as problem:
        raise LedgerUnavailable(f"the ledger {url} is closed: {problem}") from problem
    except sqlite3.OperationalError as problem:
        if "no such table" in str(problem):
            raise LedgerDamaged(f"{url} is no ledger: {problem}", hint="dpbalance ledger init") from problem
        raise LedgerUnavailable(f"{url}: {problem}", hint="the same request with the same key") from problem
    except (sqlite3.DatabaseError, UnicodeDecodeError) as problem:
        raise LedgerDamaged(f"{url} cannot be read: {problem}", hint="dpbalance ledger restore") from problem


def _connect(path: str, *, log: bool | None = True) -> sqlite3.Connection:
    """With a write-ahead log, without one, or as the file is."""
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
    try:
        if log is not None:
            connection.execute(f"PRAGMA journal_mode = {'WAL' if log else 'DELETE'}")
    except sqlite3.OperationalError as problem:
        if "readonly" not in str(problem):  # who may only read leaves the file as it is
            connection.close()
            raise
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA cache_size = -65536")
    return connection


def _identity(path: str) -> tuple[int, int] | None:
    """Which file this is; none for memory, or where there is no file."""
    if path == ":memory:":
        return None
    try:
        told = os.stat(path)
    except FileNotFoundError:
        return None
    return told.st_dev, told.st_ino


@contextmanager
def appearing(path: Path) -> Iterator[Path]:
    """A name for a new file that is to appear complete or not at all, and never in the place of another."""
    unfinished = path.with_name(f"{path.name}.part")
    beside = [path.with_name(path.name + end) for end in ("", "-wal", "-shm", "-journal")]
    if path.exists() and not path.stat().st_size:
        raise AlreadyRegistered(f"{path} exists already and is empty", hint="removing it, or another file")
    for each in beside:
        if each.exists():
            raise AlreadyRegistered(f"{each} exists already", hint="another file, or dpbalance ledger verify")
    try:
        os.close(os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644))
    except FileExistsError:
        raise AlreadyRegistered(
            f"{unfinished} exists already: {path} is being made at this moment, or whoever made it was killed",
            hint="removing it, if nobody writes it",
        ) from None
    except OSError as problem:
        raise FileFormatError(f"cannot write {unfinished}: {problem.strerror or problem}") from None
    parts = [unfinished.with_name(unfinished.name + end) for end in ("", "-wal", "-shm", "-journal")]
    try:
        for each in parts[1:]:
            each.unlink(missing_ok=True)
        yield unfinished
        _sync(unfinished)
        try:
            os.link(unfinished, path)  # refuses to replace a file that came meanwhile
        except FileExistsError:
            raise AlreadyRegistered(f"{path} exists already", hint="another file") from None
        except OSError:  # a file system without links
            unfinished.rename(path)
    finally:
        for each in parts:
            each.unlink(missing_ok=True)
    _sync(path.parent)


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def _make(connection: sqlite3.Connection, meta: dict[str, str], width: int, fill: Fill) -> None:
    connection.execute("BEGIN EXCLUSIVE")
    for statement in schema(width):
        connection.execute(statement)
    connection.executemany("INSERT INTO meta VALUES (?, ?)", meta.items())
    row = head_row(Head())
    connection.execute(f"INSERT INTO head VALUES ({', '.join('?' * len(row))})", tuple(row.values()))
    fill(SqliteWriter(connection, width))
    connection.execute("COMMIT")
