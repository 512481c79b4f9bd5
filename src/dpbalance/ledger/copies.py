"""How is a ledger copied while it is written to, and brought back? A copy is a ledger in one file."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from dpbalance.errors import LedgerDamaged
from dpbalance.ledger.opening import check_key, check_mark, make_store, open_ledger
from dpbalance.ledger.page import Head
from dpbalance.ledger.store import CHUNK, RESTORED, Reader, Store, Writer
from dpbalance.ledger.tables import tables
from dpbalance.ledger.verify import verified

NUMBERS = ("balance", "term", "entry")
TEXTS = ("device", "block", "journal", "claim")


def backup(store: Store, path: Path) -> Head:
    """Copy everything as of one moment into a new SQLite file; the head it ends with.

    The file appears under its name only when it is complete, was read again, and is on the disk.
    """
    with store.reading() as reader:
        head = reader.head()

        def fill(writer: Writer) -> None:
            _copy(reader, writer)

        def check(copy: Reader) -> None:
            if copy.head() != head or not copy.holds((head.seq, head.hash)):
                raise LedgerDamaged(f"{path} would not hold what was copied, so it was not made", hint="another disk")

        make_store(f"sqlite:///{path}", store.meta, store.width, fill, check).close()
    return head


def restore(
    path: str | Path,
    url: str,
    *,
    at_least_seq: int | str | None = None,
    public_key: str | None = None,
    isolation: str = "locks",
) -> int:
    """Bring a backup back as a new ledger; one that contradicts itself, or lacks `at_least_seq`, is refused.

    The new ledger appears complete or not at all. The signing key is not in a backup: it has to be put where the
    ledger is opened. Before the first write comes a row which says that a backup was brought back: nobody holds the
    lease any more.
    """
    return restored(path, url, at_least_seq=at_least_seq, public_key=public_key, isolation=isolation).seq


def restored(
    path: str | Path, url: str, *, at_least_seq: int | str | None, public_key: str | None, isolation: str = "locks"
) -> Head:
    """The same; the head of the backup."""
    with open_ledger(f"sqlite:///{path}") as source:
        store = source.store
        check_key(store, public_key)
        with store.reading() as reader:
            head = reader.head()
            verified(reader, store.meta, source.public).demand()
            if at_least_seq is not None:
                check_mark(reader, at_least_seq, str(path))
            meta = {**store.meta, RESTORED: f"{head.seq}:{head.hash}"}

            def fill(writer: Writer) -> None:
                _copy(reader, writer)

            def check(made: Reader) -> None:
                verified(made, meta, source.public).demand()

            make_store(url, meta, store.width, fill, check, isolation=isolation).close()
    return head


def _copy(reader: Reader, writer: Writer) -> None:
    columns = tables(reader.width)
    for table in TEXTS:
        names = list(columns[table])
        rows = reader.rows(table, names, order=names[:1])
        while part := list(islice(rows, CHUNK)):
            writer.insert(table, names, part)
    for table in NUMBERS:
        names = list(columns[table])
        writer.insert_numbers(table, names, reader.numbers(table, names, order=names[:2]))
    writer.set_head(Head(), reader.head())
