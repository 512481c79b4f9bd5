"""How does a test make a ledger, stock it and charge it? The same in every kind of store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from servers import PostgresServer

from dpbalance.clock import Clock
from dpbalance.ledger import Ask, Decision, Ledger, Receipt, create_ledger, open_ledger
from dpbalance.market import Block

KINDS = ("memory", "sqlite", "postgres", "serializable")
"""Every store, and PostgreSQL in both isolations."""


@dataclass(kw_only=True)
class Place:
    """Where a ledger is to be; closes whatever it opened."""

    kind: str
    url: str
    key_file: Path
    opened: list[Ledger] = field(default_factory=list)

    @property
    def isolation(self) -> str:
        return "serializable" if self.kind == "serializable" else "locks"

    def create(self, *, orders: Sequence[float] | None = None, clock: Clock | None = None) -> Ledger:
        ledger = create_ledger(self.url, orders=orders, key_file=self.key_file, clock=clock, isolation=self.isolation)
        self.opened.append(ledger)
        return ledger

    def open(self, **more: Any) -> Ledger:
        ledger = open_ledger(self.url, key_file=self.key_file, isolation=self.isolation, **more)
        self.opened.append(ledger)
        return ledger


@contextmanager
def made_place(kind: str, folder: Path, server: Callable[[], PostgresServer]) -> Iterator[Place]:
    url = "memory:" if kind == "memory" else f"sqlite:///{folder / 'ledger.db'}"
    if kind in ("postgres", "serializable"):
        url = server().database()
    place = Place(kind=kind, url=url, key_file=folder / "ledger.key")
    yield place
    for each in place.opened:
        each.close()


def stocked(ledger: Ledger, count: int = 3, capacity: Any = 1.0) -> tuple[str, ...]:
    """So many blocks of two devices, `d1` of ann and `d2` of nobody in particular."""
    ledger.register_devices({"d1": "ann", "d2": ""})
    names = tuple(f"d{1 + at % 2}/w{at}" for at in range(count))
    ledger.register_blocks([Block(id=name, capacity=capacity) for name in names])
    return names


def asking(cost: Mapping[str, Any], *, pipeline: str = "p", analyst: str = "ana", orders: Any = None) -> Decision:
    return Decision.build([Ask(pipeline=pipeline, analyst=analyst, cost=cost)], orders=orders)


def spend(
    ledger: Ledger, cost: Mapping[str, Any], *, pipeline: str = "p", analyst: str = "ana", **more: Any
) -> Receipt:
    """Charge one pipeline."""
    return ledger.charge(asking(cost, pipeline=pipeline, analyst=analyst, orders=ledger.orders), **more)


def spent(ledger: Ledger, block: str) -> list[int]:
    """Whole units spent of a block, at each order."""
    listed: list[int] = ledger.balances([block])[0].spent.tolist()
    return listed
