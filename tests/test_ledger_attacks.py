"""Can somebody who means ill, or a program that stops half-way, make the ledger lie? What was tried, one test each."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from ledgers import Place, made_place, spend, spent, stocked

from dpbalance.errors import (
    AlreadyRegistered,
    FileFormatError,
    LedgerDamaged,
    LedgerUnavailable,
    NotInLedger,
    OptionError,
)
from dpbalance.ledger import Ledger, create_ledger, open_ledger
from dpbalance.ledger.copies import restore
from dpbalance.ledger.opening import _key_beside
from dpbalance.ledger.postgres import PostgresWriter
from dpbalance.ledger.sqlite import SqliteWriter


@pytest.fixture
def book(tmp_path: Path) -> Iterator[Ledger]:
    """A ledger in a file, with the blocks d1/w0, d2/w1 and d1/w2."""
    with create_ledger(f"sqlite:///{tmp_path / 'ledger.db'}") as ledger:
        stocked(ledger)
        yield ledger


def parts(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir() if ".part" in each.name]


# Copies


def test_a_backup_is_one_closed_file_with_everything_in_it(book: Ledger, tmp_path: Path) -> None:
    spend(book, {"d1/w0": 0.5})
    book.backup(tmp_path / "copy.db")
    assert not list(tmp_path.glob("copy.db-*"))
    assert parts(tmp_path) == []
    shutil.copy(tmp_path / "copy.db", tmp_path / "alone.db")
    with open_ledger(f"sqlite:///{tmp_path / 'alone.db'}") as alone:
        assert (alone.head(), spent(alone, "d1/w0")) == (book.head(), [500_000_000])


@pytest.mark.parametrize("how", ["rows are lost", "the disk is full", "the head is lost"])
def test_a_backup_that_is_not_the_ledger_never_gets_its_name(
    book: Ledger, tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inserted = SqliteWriter.insert

    def insert(self: SqliteWriter, table: str, columns: Any, rows: Any) -> None:
        if table == "journal" and how == "rows are lost":
            return inserted(self, table, columns, list(rows)[:-1])
        if table == "claim" or how == "rows are lost":
            return inserted(self, table, columns, rows)
        raise sqlite3.OperationalError("database or disk is full")

    if how == "the head is lost":
        monkeypatch.setattr(SqliteWriter, "set_head", lambda *_: 1)
    else:
        monkeypatch.setattr(SqliteWriter, "insert", insert)
    with pytest.raises((LedgerDamaged, LedgerUnavailable)):
        book.backup(tmp_path / "copy.db")
    assert not (tmp_path / "copy.db").exists()
    assert parts(tmp_path) == []


def test_a_restored_ledger_that_is_not_the_backup_never_appears(
    lasting_place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with create_ledger(f"sqlite:///{tmp_path / 'source.db'}") as source:
        stocked(source)
        spend(source, {"d1/w0": 0.5, "d2/w1": 0.5})
        source.backup(tmp_path / "copy.db")
    for kind in (SqliteWriter, PostgresWriter):

        def insert(self: Any, table: str, columns: Any, rows: Any, own: Any = kind.insert_numbers) -> None:
            own(self, table, columns, rows[1:] if table == "entry" else rows)

        monkeypatch.setattr(kind, "insert_numbers", insert)
    with pytest.raises(LedgerDamaged, match="the charges are not those"):
        restore(tmp_path / "copy.db", lasting_place.url)
    with pytest.raises((NotInLedger, LedgerDamaged), match=r"is no ledger|there is no ledger"):
        open_ledger(lasting_place.url)
    monkeypatch.undo()
    restore(tmp_path / "copy.db", lasting_place.url)


def test_what_is_left_of_a_copy_that_was_killed_is_named_and_nothing_else_is_replaced(
    book: Ledger, tmp_path: Path
) -> None:
    (tmp_path / "copy.db.part").write_bytes(b"half")
    with pytest.raises(AlreadyRegistered, match=r"copy\.db\.part exists already"):
        book.backup(tmp_path / "copy.db")
    (tmp_path / "other.db-wal").write_bytes(b"of another file")
    with pytest.raises(AlreadyRegistered, match=r"other\.db-wal exists already"):
        book.backup(tmp_path / "other.db")
    (tmp_path / "empty.db").touch()
    for make in (lambda: book.backup(tmp_path / "empty.db"), lambda: create_ledger(f"sqlite:///{tmp_path}/empty.db")):
        with pytest.raises(AlreadyRegistered, match="is empty"):
            make()
    assert not (tmp_path / "empty.db.key").exists()
    book.backup(tmp_path / "whole.db")
    for _ in range(2):
        with pytest.raises(AlreadyRegistered, match=r"ledger\.db exists already"):
            restore(tmp_path / "whole.db", book.store.url)


def test_a_key_of_an_init_that_was_killed_is_named(tmp_path: Path) -> None:
    (tmp_path / "ledger.db.key").touch()
    with pytest.raises(AlreadyRegistered, match="there is a key") as refusal:
        create_ledger(f"sqlite:///{tmp_path / 'ledger.db'}")
    assert "left of an init that was killed" in refusal.value.hint


STOPS = """
import sys, os
from dpbalance.ledger import create_ledger, open_ledger
from dpbalance.ledger.copies import restore
from dpbalance.ledger import sqlite, postgres
left = [int(sys.argv[4])]
for kind in (sqlite.SqliteWriter, postgres.PostgresWriter):
    for name in ("insert", "insert_numbers", "set_head"):
        def dying(self, *rest, own=getattr(kind, name)):
            left[0] -= 1
            if left[0] < 0:
                os.kill(os.getpid(), 9)
            return own(self, *rest)
        setattr(kind, name, dying)
what, url, key = sys.argv[1:4]
if what == "init":
    create_ledger(url, key_file=key)
elif what == "backup":
    open_ledger(url, key_file=key).backup(sys.argv[5])
elif what == "restore":
    restore(sys.argv[5], url)
else:
    from dpbalance.market import Block
    open_ledger(url, key_file=key).register_blocks([Block(id=f"d1/n{at}", capacity=1.0) for at in range(9)])
print("done")
"""


def stopped(what: str, url: str, key: Path, after: int, *more: str) -> bool:
    """Whether it was killed, at its so many-th write."""
    command = [sys.executable, "-c", STOPS, what, url, str(key), str(after), *more]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode in (0, -9), ended.stderr
    return ended.returncode == -9


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("what", ["init", "backup", "restore", "register"])
def test_whoever_is_killed_at_any_write_leaves_all_of_it_or_nothing(
    kind: str, what: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = create_ledger(f"sqlite:///{tmp_path / 'source.db'}")
    stocked(source)
    spend(source, {"d1/w0": 0.5})
    source.backup(tmp_path / "copy.db")
    for after in (0, 1, 4, 99):
        folder = tmp_path / f"{after}"
        folder.mkdir()
        with made_place(kind, folder, lambda: request.getfixturevalue("postgres")) as place:
            ledger = stocked_place(place) if what in ("backup", "register") else None
            target = folder / "made.db"
            more = {"backup": [str(target)], "restore": [str(tmp_path / "copy.db")]}.get(what, [])
            killed = stopped(what, place.url, place.key_file, after, *more)
            assert killed or after > 1
            assert not killed or after < 99
            if what == "register":
                assert ledger is not None
                assert len(ledger.balances()) == (3 if killed else 12)
                assert ledger.verify().demand().clean
            elif what == "backup":
                assert target.exists() != killed
            elif killed:
                with pytest.raises((NotInLedger, LedgerDamaged), match=r"is no ledger|there is no ledger"):
                    open_ledger(place.url)
            else:
                with open_ledger(place.url, key_file=place.key_file) as made:
                    assert made.verify().demand().clean
    source.close()


def stocked_place(place: Place) -> Ledger:
    ledger = place.create()
    stocked(ledger)
    return ledger


def test_a_restore_into_a_database_that_holds_something_is_refused(lasting_place: Place, tmp_path: Path) -> None:
    ledger = lasting_place.create()
    stocked(ledger)
    ledger.backup(tmp_path / "copy.db")
    with pytest.raises(AlreadyRegistered):
        restore(tmp_path / "copy.db", lasting_place.url)
    assert ledger.verify().clean


# Whose is it?


def test_a_key_of_somebody_else_seals_nothing(place: Place, tmp_path: Path) -> None:
    if place.kind == "memory":
        return
    ledger = place.create()
    a, *_ = stocked(ledger)
    before = ledger.head()
    with create_ledger(f"sqlite:///{tmp_path / 'other.db'}") as other:
        pass
    pem = generate_private_key(SECP256R1()).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    (tmp_path / "ec.key").write_bytes(pem)
    (tmp_path / "no.key").write_text("no key")
    for name, told in (
        ("other.db.key", f"holds the key of {other.public}, this ledger is signed by {ledger.public}"),
        ("ec.key", "not Ed25519"),
        ("no.key", "no signing key"),
    ):
        with (
            open_ledger(place.url, key_file=tmp_path / name) as foreign,
            pytest.raises(FileFormatError, match=told),
        ):
            spend(foreign, {a: 0.1})
    assert ledger.head() == before
    assert ledger.verify().clean


def test_the_first_row_says_whose_the_ledger_is(place: Place) -> None:
    ledger = place.create(orders=[2, 8])
    with ledger.store.reading() as reader:
        ((kind, body),) = reader.rows("journal", ["kind", "body"])
    assert (kind, ledger.public in body, "[2.0,8.0]" in body) == ("init", True, True)
    verdict = ledger.verify(public_key=ledger.public.upper())
    assert (verdict.clean, verdict.public_key, verdict.hash) == (True, ledger.public, ledger.head().hash)
    with pytest.raises(LedgerDamaged, match="is signed by"):
        ledger.verify(public_key="0" * 64)
    with pytest.raises(OptionError, match="64 hexadecimal"):
        ledger.verify(public_key="beef")


def test_another_history_is_recognised_by_the_hash_that_was_acknowledged(book: Ledger, tmp_path: Path) -> None:
    book.backup(tmp_path / "old.db")
    receipt = spend(book, {"d1/w0": 0.1})
    assert receipt.mark == f"{book.head().seq}:{book.head().hash}"
    other = f"sqlite:///{tmp_path / 'fork.db'}"
    restore(tmp_path / "old.db", other, public_key=book.public)
    shutil.copy(tmp_path / "ledger.db.key", tmp_path / "fork.db.key")
    with open_ledger(other) as fork:
        for _ in range(5):
            fork.freeze(["d1/w2"])
        fork.backup(tmp_path / "fork.copy")
    open_ledger(other, at_least_seq=receipt.seq).close()  # a number alone does not tell
    for at in (receipt.mark, f" {receipt.mark} "):
        open_ledger(book.store.url, at_least_seq=at).close()
        with pytest.raises(LedgerDamaged, match=f"row {receipt.seq} .* is not the one that was acknowledged"):
            open_ledger(other, at_least_seq=at)
        with pytest.raises(LedgerDamaged, match="is not the one"):
            restore(tmp_path / "fork.copy", f"sqlite:///{tmp_path / 'x.db'}", at_least_seq=at)
    with pytest.raises(LedgerDamaged, match="signed by"):
        restore(tmp_path / "old.db", f"sqlite:///{tmp_path / 'x.db'}", public_key="0" * 64)
    for wrong in ("x", "1:", "1:beef", "-1", "1:" + "g" * 64, "9" * 30):
        with pytest.raises(OptionError, match="SEQ:HASH"):
            open_ledger(other, at_least_seq=wrong)


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://postgres@/mine?host=/tmp/a/b", "mine.ledger.key"),
        ("postgresql://me@host:5432/mine?sslmode=require", "mine.ledger.key"),
        ("postgresql:///?host=/tmp/x", "dpbalance.ledger.key"),
    ],
)
def test_the_key_of_a_database_has_its_name(url: str, name: str) -> None:
    assert _key_beside("postgresql", url) == name


def test_a_ledger_in_memory_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("memory:", "sqlite:///:memory:"):
        with create_ledger(url) as ledger:
            assert (ledger.store.url, ledger.key_file, list(tmp_path.iterdir())) == ("memory:", None, [])
