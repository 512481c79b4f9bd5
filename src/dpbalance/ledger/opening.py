"""Where is the ledger? An address names the store: `sqlite:///ledger.db`, `postgresql://host/name` or `memory:`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from operator import attrgetter
from pathlib import Path

from dpbalance.clock import Clock, RealClock
from dpbalance.errors import AlreadyRegistered, LedgerDamaged, OptionError
from dpbalance.ledger.book import begun
from dpbalance.ledger.journal import Signer, new_signer, public_key
from dpbalance.ledger.ledger import Ledger
from dpbalance.ledger.page import Head
from dpbalance.ledger.store import Check, Fill, Reader, Store, Writer, read_mark
from dpbalance.ledger.tables import FORMAT, check_width, tables
from dpbalance.market.round import Round


def create_ledger(
    url: str,
    *,
    orders: Sequence[float] | None = None,
    key_file: str | Path | None = None,
    clock: Clock | None = None,
    isolation: str = "locks",
) -> Ledger:
    """A new, empty ledger that counts at these orders, and a new key that signs its journal."""
    checked = Round.build([], [], orders=orders).orders
    width = check_width(checked)
    scheme, place = _parts(url)
    if scheme == "sqlite" and Path(place).exists() and Path(place).stat().st_size:
        raise AlreadyRegistered(f"{place} exists already", hint="another file, or dpbalance ledger verify")
    key = None if scheme == "memory" else Path(key_file or _key_beside(scheme, place))
    signer, public = new_signer(key)
    meta = {"format": FORMAT, "orders": json.dumps(checked), "public_key": public}
    now = float((clock or RealClock()).now())

    def fill(writer: Writer) -> None:
        row = begun(meta, now, signer.seal)
        columns = list(tables(width)["journal"])
        writer.insert("journal", columns, [attrgetter(*columns)(row)])
        writer.set_head(Head(), Head(seq=row.seq, hash=row.hash))

    try:
        store = make_store(url, meta, width, fill, lambda reader: None, isolation=isolation)
    except BaseException:
        if key is not None:
            key.unlink()
        raise
    return Ledger(store, signer, public=public, clock=clock)


def open_ledger(
    url: str,
    *,
    key_file: str | Path | None = None,
    clock: Clock | None = None,
    at_least_seq: int | str | None = None,
    isolation: str = "locks",
) -> Ledger:
    """The ledger at this address; `memory:` is a new one that nobody else sees.

    `at_least_seq` is the last row that was acknowledged, as its number or as SEQ:HASH: a ledger that ends before it is
    refused, and with the hash one that has another row there.
    """
    scheme, place = _parts(url)
    if scheme == "memory":
        return create_ledger(url, clock=clock)
    if scheme == "sqlite":
        from dpbalance.ledger.sqlite import SqliteStore

        store: Store = SqliteStore(place)
    else:
        from dpbalance.ledger.postgres import PostgresStore

        store = PostgresStore(url, isolation=isolation)
    signer = Signer(Path(key_file or _key_beside(scheme, place)), store.meta["public_key"])
    ledger = Ledger(store, signer, public=signer.public, clock=clock)
    if at_least_seq is not None:
        try:
            with store.reading() as reader:
                check_mark(reader, at_least_seq, url)
        except BaseException:
            ledger.close()
            raise
    return ledger


def make_store(
    url: str, meta: dict[str, str], width: int, fill: Fill, check: Check, *, isolation: str = "locks"
) -> Store:
    """A new store with its first rows, complete and checked, or none."""
    scheme, place = _parts(url)
    if scheme == "postgresql":
        from dpbalance.ledger.postgres import PostgresStore

        return PostgresStore.create(url, meta, width, fill, check, isolation=isolation)
    from dpbalance.ledger.sqlite import SqliteStore

    return SqliteStore.create(place, meta, width, fill, check)


def check_key(store: Store, public: str | None) -> None:
    """Refuse a ledger that is signed by another key than the one that was noted at its beginning."""
    if public is not None and public_key(public) != store.meta["public_key"]:
        raise LedgerDamaged(
            f"{store.url} is signed by {store.meta['public_key']}, not by {public_key(public)}",
            hint="a backup of the right ledger",
        )


def check_mark(reader: Reader, acknowledged: int | str, url: str) -> None:
    """Refuse a ledger that has lost what was acknowledged."""
    at_least, told = read_mark(acknowledged)
    seq = reader.head().seq
    if told is not None and seq >= at_least and not reader.holds((at_least, told)):
        raise LedgerDamaged(
            f"row {at_least} of {url} is not the one that was acknowledged, {told}",
            hint="a backup of the same history; this one went another way",
        )
    if seq < at_least:
        raise LedgerDamaged(
            f"{url} ends at row {seq}, but row {at_least} was acknowledged: {at_least - seq} rows are missing",
            hint="a newer backup; what the missing rows charged is spent",
        )


def _parts(url: str) -> tuple[str, str]:
    if url in ("memory:", "sqlite:///:memory:"):
        return "memory", ":memory:"
    if url.startswith("sqlite:///") and len(url) > len("sqlite:///"):
        return "sqlite", url.removeprefix("sqlite:///")
    if url.startswith(("postgresql://", "postgresql+psycopg://")):
        return "postgresql", url
    raise OptionError(
        f"a ledger is at sqlite:///FILE, postgresql://HOST/NAME or memory:, not at {url[:100]!r}",
        hint="--database sqlite:///ledger.db",
    )


def _key_beside(scheme: str, place: str) -> str:
    """Where the signing key is when nobody says: beside the file, or in the current folder."""
    if scheme == "sqlite":
        return f"{place}.key"
    return f"{place.partition('?')[0].rpartition('/')[2] or 'dpbalance'}.ledger.key"
