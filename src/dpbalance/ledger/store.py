"""What must a store be able to do? Read rows, and write what a batch changes in one transaction, or nothing of it."""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbalance.amounts import Units
from dpbalance.errors import LedgerDamaged, OptionError
from dpbalance.ledger.page import Answer, Change, Entries, Head, Page
from dpbalance.ledger.requests import (
    Mark,
    Move,
    OnBlocks,
    RegisterBlocks,
    RegisterDevices,
    Request,
    Stage,
)
from dpbalance.ledger.tables import FORMAT, amounts, check_width, sort_key, tables
from dpbalance.market.round import Indices

CHUNK = 50_000
"""Rows that are handed over at once where a store wants them one by one."""

Among = tuple[str, Sequence[Any] | Indices]
"""Only rows whose column has one of these values."""


RESTORED = "restored"
"""What a ledger says of itself that was made of a backup: the row with which that ended."""

Fill = Callable[["Writer"], None]
"""Writes the first rows of a new ledger, in the transaction that makes its tables."""

Check = Callable[["Reader"], None]
"""Raises what is wrong with a new ledger, before anybody can see it."""


class WallHeld(Exception):
    """The database refused what the rules had allowed; nothing was written."""


class Reader(ABC):
    """Rows as they were at one moment."""

    def __init__(self, width: int) -> None:
        self.width = width

    @abstractmethod
    def rows(
        self, table: str, columns: Sequence[str], *, among: Among | None = None, order: Sequence[str] = ()
    ) -> Iterator[tuple[Any, ...]]:
        """Rows one after the other."""

    @abstractmethod
    def numbers(
        self, table: str, columns: Sequence[str], *, among: Among | None = None, order: Sequence[str] = ()
    ) -> npt.NDArray[np.int64]:
        """The same as one array, for columns of whole numbers."""

    def head(self) -> Head:
        columns = [each.name for each in fields(Head)]
        found = list(self.rows("head", columns))
        if len(found) != 1:
            raise LedgerDamaged(f"the ledger has {len(found)} heads instead of one")
        return Head(**dict(zip(columns, found[0], strict=True)))

    def holds(self, mark: Mark) -> bool:
        """Is this row in the journal?"""
        return list(self.rows("journal", ["hash"], among=("seq", [mark[0]]))) == [(mark[1],)]

    def balances(
        self, ids: Indices | None = None, *, lock: bool = False
    ) -> tuple[Indices, Indices, Units, Units, Units]:
        """Numbers, states, spent, unlocked and capacity of these blocks, or all, by ascending number."""
        columns = ["block", "state", *_wide(self.width)]
        among = None if ids is None else ("block", ids)
        if lock and ids is not None:
            table = self.locked(columns, ids)
        else:
            table = self.numbers("balance", columns, among=among, order=("block",))
        return table[:, 0], table[:, 1], *_amounts(table[:, 2:], self.width)

    def locked(self, columns: Sequence[str], ids: Indices) -> npt.NDArray[np.int64]:
        """Balances that nobody else may change until the transaction ends."""
        return self.numbers("balance", columns, among=("block", ids), order=("block",))

    def entries(self, among: Among | None = None, order: Sequence[str] = ("claim", "block")) -> Entries:
        table = self.numbers("entry", ["claim", "block", *amounts("cost", self.width)], among=among, order=order)
        return Entries(claim=table[:, 0], block=table[:, 1], cost=table[:, 2:])


class Writer(Reader):
    """The same inside a transaction that holds the head of the journal."""

    @abstractmethod
    def insert(self, table: str, columns: Sequence[str], rows: Iterable[tuple[Any, ...]]) -> None:
        """New rows."""

    @abstractmethod
    def insert_numbers(self, table: str, columns: Sequence[str], rows: npt.NDArray[np.int64]) -> None:
        """New rows of whole numbers, any number of them."""

    @abstractmethod
    def spend(self, ids: Indices, state: Indices, more: Units) -> int:
        """Add to what is spent of blocks that are in this state and hold it; how many did."""

    @abstractmethod
    def set_balances(self, ids: Indices, before: Units, rows: npt.NDArray[np.int64]) -> int:
        """Replace state, spent, unlocked and capacity of blocks of which this much was spent; how many were."""

    @abstractmethod
    def set_stages(self, rows: Sequence[tuple[int, int, int]]) -> int:
        """Grants from one stage to the next, as (grant, from, to); how many were there."""

    @abstractmethod
    def set_head(self, before: Head, head: Head) -> int:
        """Replace the head, if it still is the one that was read; how many were."""


@dataclass(slots=True, kw_only=True)
class Touch:
    """What a batch has to look at."""

    keys: list[str] = field(default_factory=list)
    blocks: list[Indices] = field(default_factory=list)
    grants: list[int] = field(default_factory=list)
    voids: list[int] = field(default_factory=list)
    names: list[RegisterBlocks | RegisterDevices] = field(default_factory=list)
    known: set[int] = field(default_factory=set)

    @staticmethod
    def of(requests: Sequence[Request]) -> Touch:
        touch = Touch()
        for each in requests:
            if each.key is not None:
                touch.keys.append(each.key)
            if each.known is not None:
                touch.known.add(each.known[0])
            if isinstance(each, OnBlocks):
                touch.blocks.append(each.ids)
            elif isinstance(each, Move):
                touch.grants += each.grants
                if each.stage == Stage.VOIDED:
                    touch.voids += each.grants
            elif isinstance(each, (RegisterBlocks, RegisterDevices)):
                touch.names.append(each)
        return touch


class Store(ABC):
    """Where a ledger is kept."""

    orders: tuple[float, ...] | None
    width: int
    url: str
    meta: dict[str, str]

    @abstractmethod
    def reading(self) -> AbstractContextManager[Reader]:
        """Everything as it is at this moment, whatever is written meanwhile."""

    @abstractmethod
    def writing(self) -> AbstractContextManager[Writer]:
        """A transaction of the only writer; commits at the end, durably, or takes everything back."""

    @abstractmethod
    def retrying(self, work: Callable[[], Any]) -> Any:
        """Do this again where a store asks for it."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything."""

    def describe(self, told: dict[str, str]) -> None:
        """Take over what a ledger says of itself."""
        try:
            if told["format"] != FORMAT:
                raise LedgerDamaged(f"{self.url} holds {told['format']!r}, not {FORMAT!r}")
            orders = json.loads(told["orders"])
            self.meta, self.orders = told, None if orders is None else tuple(map(float, orders))
            _ = bytes.fromhex(told["public_key"])
        except (KeyError, ValueError, TypeError) as problem:
            raise LedgerDamaged(f"{self.url} does not say what a ledger says of itself: {problem}") from None
        self.width = check_width(self.orders)

    def write(self, requests: Sequence[Request], decide: Callable[[Page], None]) -> None:
        """Load what these touch, let the book decide, write the effects: one transaction."""

        def once() -> None:
            with self.writing() as writer:
                page = load(writer, Touch.of(requests), self.orders)
                head = page.head
                decide(page)
                if page.made:
                    put(writer, head, page)

        self.retrying(once)


def load(reader: Reader, touch: Touch, orders: tuple[float, ...] | None) -> Page:
    """The page of what a batch touches."""
    head = reader.head()
    answers = {}
    if touch.keys:
        columns = ("key", "seq", "kind", "digest", "body", "hash")
        for key, seq, kind, digest, body, hash_ in reader.rows("journal", columns, among=("key", touch.keys)):
            answers[key] = Answer(seq=seq, kind=kind, digest=digest, body=body, hash=hash_)
    hashes = dict(reader.rows("journal", ("seq", "hash"), among=("seq", sorted(touch.known)))) if touch.known else {}
    restored = [read_mark(value)[0] for (value,) in reader.rows("meta", ("value",), among=("name", [RESTORED]))]
    stages = {}
    if touch.grants:
        found = reader.numbers("claim", ["id", "stage"], among=("id", touch.grants)).tolist()
        stages = {grant: Stage(stage) for grant, stage in found}
    entries = reader.entries(("claim", touch.voids)) if touch.voids else None
    blocks = touch.blocks if entries is None else [*touch.blocks, np.unique(entries.block)]
    ids = blocks[0] if len(blocks) == 1 else np.unique(np.concatenate([np.zeros(0, dtype=np.int64), *blocks]))
    number, state, spent, unlocked, capacity = reader.balances(ids, lock=True)
    names: set[tuple[str, str]] = set()
    for each in touch.names:
        kind, asked = ("block", each.blocks) if isinstance(each, RegisterBlocks) else ("device", each.devices)
        for at in range(0, len(asked), CHUNK):
            known = reader.rows(kind, ["name"], among=("name", asked[at : at + CHUNK]))
            names.update((kind, name) for (name,) in known)
    return Page(
        head=head,
        orders=orders,
        id=number,
        state=state,
        spent=spent,
        unlocked=unlocked,
        capacity=capacity,
        answers=answers,
        stages=stages,
        entries=entries,
        names=names,
        hashes=hashes,
        restored=restored[0] if restored else None,
    )


def put(writer: Writer, head: Head, page: Page) -> None:
    """Write what a batch changed; every count of rows is compared, and a difference takes everything back."""
    _put_balances(writer, page)
    moved = [
        (grant, int(before), int(page.stages[grant]))
        for grant, before in page.stages_before.items()
        if page.stages[grant] != before
    ]
    _demand(not moved or writer.set_stages(moved) == len(moved), "a grant moved on meanwhile")
    _put_rows(writer, page)
    _demand(writer.set_head(head, page.head) == 1, "the journal grew meanwhile")


def _put_balances(writer: Writer, page: Page) -> None:
    """Blocks that are only charged go through the guard; those with other terms are replaced as a whole."""
    state, spent, unlocked, capacity = page.before
    terms = (page.state != state) | (page.unlocked != unlocked).any(axis=1) | (page.capacity != capacity).any(axis=1)
    charged = np.flatnonzero((page.spent != spent).any(axis=1) & ~terms)
    if len(charged):
        more = page.spent[charged] - spent[charged]
        done = writer.spend(page.id[charged], state[charged], more)
        _demand(done == len(charged), f"{len(charged) - done} blocks do not hold what the rules allowed")
    other = np.flatnonzero(terms)
    if len(other):
        rows = np.column_stack([page.state[other], page.spent[other], page.unlocked[other], page.capacity[other]])
        done = writer.set_balances(page.id[other], spent[other], rows)
        _demand(done == len(other), f"{len(other) - done} blocks changed meanwhile")


def _put_rows(writer: Writer, page: Page) -> None:
    width = writer.width
    columns = tables(width)
    told = attrgetter(*columns["journal"])
    writer.insert("journal", list(columns["journal"]), [told(row) for row, _ in page.made])
    claims: list[tuple[Any, ...]] = []
    entries: list[Entries] = []
    first = page.head.claims - sum(len(change.claims) for _, change in page.made) + 1
    for row, change in page.made:
        claims += [
            (first + len(claims) + at, row.seq, pipeline, analyst, multiple, stage, reason)
            for at, (pipeline, analyst, multiple, stage, reason) in enumerate(change.claims)
        ]
        if change.entries is not None:
            entries.append(change.entries)
        if change.devices:
            writer.insert("device", list(columns["device"]), list(change.devices))
        if change.blocks is not None:
            _put_blocks(writer, change)
        if change.terms is not None:
            terms = change.terms
            seq = np.full(len(terms.ids), row.seq)
            made = np.column_stack([seq, terms.ids, terms.state, terms.unlocked, terms.capacity])
            writer.insert_numbers("term", list(columns["term"]), made)
    if claims:
        writer.insert("claim", list(columns["claim"]), claims)
    if entries:
        made = np.concatenate([np.column_stack([each.claim, each.block, each.cost]) for each in entries])
        writer.insert_numbers("entry", list(columns["entry"]), made)


def _put_blocks(writer: Writer, change: Change) -> None:
    assert change.blocks is not None
    assert change.terms is not None
    ids, names, device = change.blocks
    columns = tables(writer.width)
    for at in range(0, len(ids), CHUNK):
        part = slice(at, at + CHUNK)
        listed = names[part]
        rows = zip(ids[part].tolist(), listed, map(sort_key, listed), device[part].tolist(), strict=True)
        writer.insert("block", list(columns["block"]), list(rows))
    terms = change.terms
    nothing = np.zeros_like(terms.capacity)
    rows_ = np.column_stack([ids, terms.state, nothing, terms.unlocked, terms.capacity])
    writer.insert_numbers("balance", list(columns["balance"]), rows_)


def read_mark(text: int | str) -> tuple[int, str | None]:
    """A row of the journal as people keep it: `SEQ:HASH`, or its number alone.

    >>> read_mark(7), read_mark("7")
    ((7, None), (7, None))
    """
    seq, colon, told = str(text).strip().partition(":")
    if not re.fullmatch("[0-9]{1,18}", seq) or (colon and not re.fullmatch("[0-9a-f]{64}", told)):
        raise OptionError(f"a row of the journal is SEQ or SEQ:HASH, not {str(text)[:100]!r}")
    return int(seq), told if colon else None


def head_row(head: Head) -> dict[str, Any]:
    """The head as a row."""
    return asdict(head)


def chunks(rows: npt.NDArray[np.int64]) -> Iterator[Iterator[tuple[Any, ...]]]:
    """Rows as tuples of numbers, so many at a time that memory stays flat."""
    for at in range(0, len(rows), CHUNK):
        yield zip(*(column.tolist() for column in rows[at : at + CHUNK].T), strict=True)


def array_of(rows: Iterator[tuple[Any, ...]], width: int) -> npt.NDArray[np.int64]:
    """Rows of whole numbers as one array."""
    try:
        return np.fromiter(chain.from_iterable(rows), dtype=np.int64).reshape(-1, width)
    except (TypeError, ValueError, OverflowError) as problem:
        raise LedgerDamaged(f"a row holds something that is no whole number: {problem}") from None


def only(rows: npt.NDArray[np.int64], column: int, chosen: Any) -> npt.NDArray[np.int64]:
    """Rows whose column has one of these values: faster than looking up very many one by one."""
    found = rows[:, column]
    return rows if np.array_equal(found, chosen) else rows[np.isin(found, chosen)]


def _wide(width: int) -> list[str]:
    return [*amounts("spent", width), *amounts("unlocked", width), *amounts("capacity", width)]


def _amounts(table: Units, width: int) -> tuple[Units, Units, Units]:
    """Copies, because a page is written on."""
    spent, unlocked, capacity = (np.ascontiguousarray(table[:, at * width : (at + 1) * width]) for at in range(3))
    return spent.copy(), unlocked.copy(), capacity.copy()


def _demand(holds: bool, otherwise: str) -> None:
    if not holds:
        raise WallHeld(otherwise)
