"""How is a ledger copied while it is written to, and brought back? A copy is a ledger in one file."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from dpbalance.errors import AlreadyRegistered
from dpbalance.ledger.journal import Signer
from dpbalance.ledger.ledger import Ledger
from dpbalance.ledger.opening import check_seq, make_store, open_ledger
from dpbalance.ledger.page import Head
from dpbalance.ledger.store import CHUNK, Reader, Store, Writer
from dpbalance.ledger.tables import tables

NUMBERS = ("balance", "term", "entry")
TEXTS = ("device", "block", "journal", "claim")


def backup(store: Store, path: Path) -> int:
    """Copy everything as of one moment into a new SQLite file; the sequence number it ends with.

    The file appears under its name only when it is complete and closed.
    """
    if path.exists():
        raise AlreadyRegistered(f"{path} exists already", hint="another file")
    unfinished = path.with_name(path.name + ".part")
    unfinished.unlink(missing_ok=True)
    with store.reading() as reader:
        copy = make_store(f"sqlite:///{unfinished}", store.meta, store.width)
        try:
            seq = _copied(reader, copy)
        finally:
            copy.close()
    unfinished.rename(path)
    return seq


def restore(path: str | Path, url: str, *, at_least_seq: int | None = None, isolation: str = "locks") -> int:
    """Bring a backup back as a new ledger; one that contradicts itself, or ends before `at_least_seq`, is refused.

    The signing key is not in a backup: it has to be put where the ledger is opened.
    """
    with open_ledger(f"sqlite:///{path}") as source:
        seq = source.verify().demand().seq
        if at_least_seq is not None:
            check_seq(seq, at_least_seq, str(path))
        store = make_store(url, source.store.meta, source.store.width, isolation=isolation)
        try:
            with source.store.reading() as reader:
                _copied(reader, store)
            Ledger(store, Signer(None), public=source.public).verify().demand()
        finally:
            store.close()
    return seq


def _copied(reader: Reader, store: Store) -> int:
    with store.writing() as writer:
        head = reader.head()
        _copy_rows(reader, writer)
        writer.set_head(Head(), head)
    return head.seq


def _copy_rows(reader: Reader, writer: Writer) -> None:
    columns = tables(reader.width)
    for table in TEXTS:
        names = list(columns[table])
        rows = reader.rows(table, names, order=names[:1])
        while part := list(islice(rows, CHUNK)):
            writer.insert(table, names, part)
    for table in NUMBERS:
        names = list(columns[table])
        writer.insert_numbers(table, names, reader.numbers(table, names, order=names[:2]))
