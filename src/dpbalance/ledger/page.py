"""What do the writes of one batch look at, and what do they change? Rows as numbers; no database, no clock."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dpbalance.amounts import Units
from dpbalance.errors import LedgerDamaged
from dpbalance.ledger.requests import Stage, canonical
from dpbalance.market.round import Indices

CEILING = 2**61
"""An order at which this much is spent is closed for good and not counted further, so that 64 bits never wrap."""

START = "0" * 64
"""What stands before the first row of the chain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """The end of the journal, the lease, and how many of everything there are."""

    seq: int = 0
    hash: str = START
    token: int = 0
    holder: str = ""
    until: float = 0.0
    devices: int = 0
    blocks: int = 0
    claims: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalRow:
    """One write, chained to the one before it and signed."""

    seq: int
    time: float
    kind: str
    actor: str
    key: str | None
    digest: str
    body: str
    prev: str
    hash: str = ""
    signature: str = ""

    def computed(self) -> str:
        """The hash that belongs to what this row says."""
        told = [self.seq, self.time, self.kind, self.actor, self.key, self.digest, self.body, self.prev]
        return hashlib.sha256(canonical(told)).hexdigest()

    def answer(self) -> Answer:
        """What whoever asked for this row is told."""
        return Answer(seq=self.seq, kind=self.kind, digest=self.digest, body=self.body, hash=self.hash)


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a write came to: its sequence number, its kind, and the body of its row."""

    seq: int
    kind: str
    digest: str
    body: str
    hash: str

    @property
    def told(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.body)
        return document


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Terms:
    """What holds for some blocks from one row of the journal on."""

    ids: Indices
    state: Indices
    unlocked: Units
    capacity: Units


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Entries:
    """What grants were charged, ordered by grant and block."""

    claim: Indices
    block: Indices
    cost: Units

    def of(self, claims: Iterable[int]) -> Entries:
        mine = np.isin(self.claim, np.fromiter(claims, dtype=np.int64))
        return Entries(claim=self.claim[mine], block=self.block[mine], cost=self.cost[mine])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Change:
    """What one write does, when nothing speaks against it."""

    kind: str
    body: dict[str, Any]
    spent: tuple[Indices, Units] | None = None
    """Blocks by their place on the page, and what is spent of them from now on."""
    terms: Terms | None = None
    places: Indices | None = None
    """Where the blocks of `terms` stand on the page; None for new ones."""
    devices: Sequence[tuple[int, str, str]] = ()
    blocks: tuple[Indices, Sequence[str], Indices] | None = None
    """New blocks: their numbers, names, and the numbers of their devices."""
    claims: Sequence[tuple[str, str, float, int, str]] = ()
    entries: Entries | None = None
    stages: tuple[tuple[int, ...], Stage] | None = None
    lease: tuple[int, str, float] | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Page:
    """The rows a batch touches, as they were and as they are after the writes decided so far."""

    head: Head
    orders: tuple[float, ...] | None
    id: Indices
    """Numbers of the touched blocks, ascending."""
    state: Indices
    spent: Units
    unlocked: Units
    capacity: Units
    answers: dict[str, Answer] = field(default_factory=dict)
    stages: dict[int, Stage] = field(default_factory=dict)
    entries: Entries | None = None
    """The charges of the grants that may be voided."""
    names: set[tuple[str, str]] = field(default_factory=set)
    """Kinds and names that are to be registered and stand in the ledger already."""
    hashes: dict[int, str] = field(default_factory=dict)
    """Hashes of the rows of the journal at which names were read."""
    restored: int | None = None
    """The row with which a backup ended that this ledger was made of."""
    before: tuple[Indices, Units, Units, Units] = field(init=False)
    stages_before: dict[int, Stage] = field(init=False)
    journal: list[JournalRow] = field(default_factory=list)
    made: list[tuple[JournalRow, Change]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.before = (self.state.copy(), self.spent.copy(), self.unlocked.copy(), self.capacity.copy())
        self.stages_before = dict(self.stages)

    def find(self, ids: Indices) -> Indices:
        """Where these blocks stand on the page."""
        if len(ids) == len(self.id) and np.array_equal(ids, self.id):
            return np.arange(len(ids))
        at = np.searchsorted(self.id, ids)
        if not np.array_equal(self.id[np.minimum(at, len(self.id) - 1)] if len(self.id) else at, ids):
            raise LedgerDamaged("a block that has a name in the ledger has no balance")
        return at

    def take(self, row: JournalRow, change: Change) -> None:
        """Let a decided write show on the page."""
        if change.spent is not None:
            at, spent = change.spent
            self.spent[at] = spent
        if change.terms is not None and change.places is not None:
            at = change.places
            self.state[at], self.unlocked[at], self.capacity[at] = (
                change.terms.state,
                change.terms.unlocked,
                change.terms.capacity,
            )
        if change.blocks is not None:
            self.names.update(("block", name) for name in change.blocks[1])
        self.names.update(("device", name) for _, name, _ in change.devices)
        if change.stages is not None:
            self.stages.update(dict.fromkeys(*change.stages))
        token, holder, until = change.lease or (self.head.token, self.head.holder, self.head.until)
        self.head = replace(
            self.head,
            seq=row.seq,
            hash=row.hash,
            token=token,
            holder=holder,
            until=until,
            devices=self.head.devices + len(change.devices),
            blocks=self.head.blocks + (len(change.blocks[0]) if change.blocks else 0),
            claims=self.head.claims + len(change.claims),
        )
        if row.key is not None:
            self.answers[row.key] = row.answer()
        self.made.append((row, change))


Seal = Callable[[JournalRow], JournalRow]
"""Gives a row its hash and its signature."""
