"""Where is the ledger? An address names the store: `sqlite:///ledger.db`, `postgresql://host/name` or `memory:`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from dpbalance.clock import Clock
from dpbalance.errors import AlreadyRegistered, LedgerDamaged, OptionError
from dpbalance.ledger.journal import Signer, new_signer
from dpbalance.ledger.ledger import Ledger
from dpbalance.ledger.store import Store
from dpbalance.ledger.tables import FORMAT, check_width
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
    if scheme == "sqlite" and Path(place).exists():
        raise AlreadyRegistered(f"{place} exists already", hint="another file, or dpbalance ledger verify")
    key = None if scheme == "memory" else Path(key_file or _key_beside(scheme, place))
    signer, public = new_signer(key)
    meta = {"format": FORMAT, "orders": json.dumps(checked), "public_key": public}
    try:
        store = make_store(url, meta, width, isolation=isolation)
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
    at_least_seq: int | None = None,
    isolation: str = "locks",
) -> Ledger:
    """The ledger at this address; `memory:` is a new one that nobody else sees.

    `at_least_seq` is the last sequence number that was acknowledged: a ledger that ends before it is refused.
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
    signer = Signer(Path(key_file or _key_beside(scheme, place)))
    ledger = Ledger(store, signer, public=store.meta["public_key"], clock=clock)
    if at_least_seq is not None:
        try:
            check_seq(ledger.head().seq, at_least_seq, url)
        except BaseException:
            ledger.close()
            raise
    return ledger


def make_store(url: str, meta: dict[str, str], width: int, *, isolation: str = "locks") -> Store:
    """A new, empty store."""
    scheme, place = _parts(url)
    if scheme == "postgresql":
        from dpbalance.ledger.postgres import PostgresStore

        return PostgresStore.create(url, meta, width, isolation=isolation)
    from dpbalance.ledger.sqlite import SqliteStore

    return SqliteStore.create(place, meta, width)


def check_seq(seq: int, at_least: int, url: str) -> None:
    """Refuse a ledger that has lost what was acknowledged."""
    if seq < at_least:
        raise LedgerDamaged(
            f"{url} ends at row {seq}, but row {at_least} was acknowledged: {at_least - seq} rows are missing",
            hint="a newer backup; what the missing rows charged is spent",
        )


def _parts(url: str) -> tuple[str, str]:
    if url == "memory:":
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
    return f"{place.rpartition('/')[2].partition('?')[0] or 'dpbalance'}.ledger.key"
