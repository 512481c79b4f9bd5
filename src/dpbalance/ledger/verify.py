"""Do the rows tell one story? Every balance and the chain again, by another route than the one that wrote them.

The book adds to balances row by row; this module never reads a rule of it. It sums all entries of each block from
nothing, lets the journal's digests vouch for the rows, and compares.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbalance.allocation.proof import exact_totals
from dpbalance.errors import LedgerDamaged
from dpbalance.ledger.journal import verifier
from dpbalance.ledger.page import CEILING, START, Head, JournalRow
from dpbalance.ledger.requests import Stage, bytes_digest, canonical
from dpbalance.ledger.store import RESTORED, Reader, Store, read_mark
from dpbalance.ledger.tables import amounts, sort_key, tables

PROBLEMS_MAX = 100
"""More problems than this are only counted."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Something that does not fit, and the row of the journal where it shows (0: no single row)."""

    seq: int
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a verification found."""

    seq: int
    rows: int
    blocks: int
    entries: int
    hash: str
    """Of the last row, which together with its number names everything up to there."""
    public_key: str
    problems: tuple[Problem, ...]

    @property
    def clean(self) -> bool:
        return not self.problems

    def demand(self) -> Verdict:
        """Itself, or LedgerDamaged naming the first problem."""
        if self.problems:
            first = min(self.problems, key=lambda each: each.seq or np.inf)
            where = f"row {first.seq} of the journal: " if first.seq else ""
            more = f" (and {len(self.problems) - 1} more)" if len(self.problems) > 1 else ""
            raise LedgerDamaged(f"{where}{first.sentence}{more}", hint="dpbalance ledger restore")
        return self


def verify(store: Store, public: str) -> Verdict:
    """Check everything, as of one moment."""
    with store.reading() as reader:
        return verified(reader, store.meta, public)


def verified(reader: Reader, meta: Mapping[str, str], public: str) -> Verdict:
    """The same of what one reader sees, of a ledger that says this of itself."""
    try:
        return _Check(reader, meta, public).run()
    except (ValueError, TypeError, KeyError, IndexError, OverflowError) as problem:
        raise LedgerDamaged(f"rows cannot be read: {problem}", hint="dpbalance ledger restore") from problem


class _Check:
    def __init__(self, reader: Reader, meta: Mapping[str, str], public: str) -> None:
        self.reader, self.meta, self.public, self.signed = reader, meta, public, verifier(public)
        self.told = Head()
        """What the journal says that the head must be."""
        self.problems: list[Problem] = []
        self.stages: dict[int, int] = {}
        """Stages of the grants that moved on, as the journal tells them."""

    def run(self) -> Verdict:
        reader = self.reader
        self.head = reader.head()
        self.entries = reader.entries()
        self.claims = reader.numbers("claim", ["id", "seq", "stage"], order=("id",))
        width = [*amounts("unlocked", reader.width), *amounts("capacity", reader.width)]
        self.terms = reader.numbers("term", ["seq", "block", "state", *width], order=("seq", "block"))
        self.entry_parts = _parts(self._seq_of_entries())
        self.term_parts = _parts(self.terms[:, 0])
        rows = self._chain()
        self._rows_without_journal()
        self._stages()
        blocks = self._balances()
        return Verdict(
            seq=self.head.seq,
            rows=rows,
            blocks=blocks,
            entries=len(self.entries.block),
            hash=self.head.hash,
            public_key=self.public,
            problems=tuple(self.problems),
        )

    def _wrong(self, seq: int, sentence: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(Problem(seq=seq, sentence=sentence))

    def _seq_of_entries(self) -> Numbers:
        at = np.searchsorted(self.claims[:, 0], self.entries.claim)
        known = at < len(self.claims)
        known[known] = self.claims[at[known], 0] == self.entries.claim[known]
        if not known.all():
            self._wrong(0, f"grant {int(self.entries.claim[~known][0])} has charges but is not there")
        return np.where(
            known, self.claims[np.minimum(at, max(len(self.claims) - 1, 0)), 1] if len(self.claims) else 0, 0
        )

    def _chain(self) -> int:
        columns = list(tables(self.reader.width)["journal"])
        names = ["seq", "id", "pipeline", "analyst", "multiple", "reason"]
        self.of_seq = groupby(self.reader.rows("claim", names, order=("id",)), key=lambda row: row[0])
        self.pending: tuple[int, list[Any]] | None = None
        self.devices = self.reader.rows("device", ["id", "name", "contributor"], order=("id",))
        self.blocks = self.reader.rows("block", ["id", "name", "device", "sort"], order=("id",))
        restored = self._restored()
        before, seq = START, 0
        for seq, values in enumerate(self.reader.rows("journal", columns, order=("seq",)), start=1):
            row = JournalRow(**dict(zip(columns, values, strict=True)))
            if row.seq != seq:
                self._wrong(seq, f"the row is missing; the next one is {row.seq}")
                return seq
            if row.prev != before:
                self._wrong(seq, "the row does not follow the one before it")
            if row.computed() != row.hash:
                self._wrong(seq, "the row is not what was hashed")
            elif not self.signed(row):
                self._wrong(seq, "the signature is not of this ledger's key")
            before = row.hash
            if (seq == 1) != (row.kind == "init"):
                self._wrong(seq, "the journal does not begin with the row that says whose it is")
            if restored is not None and seq == restored[0] and row.hash != restored[1]:
                self._wrong(seq, "the backup that this ledger was made of ended with another row")
            if restored is not None and seq == restored[0] + 1 and row.kind != "restored":
                self._wrong(seq, "the row is missing which says that a backup was brought back")
            try:
                self._told(row)
            except (KeyError, ValueError, TypeError, AttributeError):
                self._wrong(seq, "the row does not say what a row of its kind says")
        if not seq:
            self._wrong(0, "the journal is empty")
        if (self.head.seq, self.head.hash) != (seq, before):
            self._wrong(seq, f"the journal ends here, but its head says row {self.head.seq}")
        for name in ("token", "holder", "until", "devices", "blocks", "claims"):
            is_, should = getattr(self.head, name), getattr(self.told, name)
            if is_ != should:
                self._wrong(0, f"the head says {name} {is_!r}, the journal {should!r}")
        return seq

    def _restored(self) -> tuple[int, str | None] | None:
        return read_mark(self.meta[RESTORED]) if RESTORED in self.meta else None

    def _told(self, row: JournalRow) -> None:
        """Compare what a row of the journal says with the rows it vouches for."""
        told = json.loads(row.body)
        if "claims" in told:
            self._told_claims(row.seq, told)
        if "entries" in told:
            part = self.entry_parts.pop(row.seq, slice(0, 0))
            found = self.entries
            digest = bytes_digest(found.claim[part], found.block[part], found.cost[part])
            if told["entries"] != [part.stop - part.start, digest]:
                self._wrong(row.seq, "the charges are not those that were decided")
        if "terms" in told:
            part = self.term_parts.pop(row.seq, slice(0, 0))
            table, width = self.terms[part], self.reader.width
            digest = bytes_digest(table[:, 1], table[:, 2], table[:, 3 : 3 + width], table[:, 3 + width :])
            if told["terms"] != [len(table), digest]:
                self._wrong(row.seq, "the budgets are not those that were set")
        if "devices" in told and told["devices"] != [list(next(self.devices, ())) for _ in told["devices"]]:
            self._wrong(row.seq, "the devices are not those that were registered")
        if "names" in told:
            self._told_blocks(row.seq, told)
        if "grants" in told:
            stage = int(Stage[row.kind.upper()])
            for grant in told["grants"]:
                if stage == Stage.VOIDED and self.stages.get(grant, Stage.CHARGED) != Stage.CHARGED:
                    self._wrong(row.seq, f"grant {grant} was voided after its dispatch")
                self.stages[grant] = stage
        if row.kind == "init":
            said = {"format": self.meta["format"], "orders": json.loads(self.meta["orders"])}
            if told != {**said, "public_key": self.meta["public_key"]}:
                self._wrong(row.seq, "the ledger says something else of itself than when it began")
        self._told_head(row, told)

    def _told_head(self, row: JournalRow, told: dict[str, Any]) -> None:
        """What the head must be after this row: the lease, and how many of everything there are."""
        before = self.told
        token, holder, until = before.token, before.holder, before.until
        if row.kind in ("lease", "release", "restored"):
            if told["token"] < token:
                self._wrong(row.seq, f"token {told['token']} came after token {token}")
            token, holder, until = told["token"], told.get("holder", ""), told.get("until", 0.0)
        self.told = Head(
            token=token,
            holder=holder,
            until=until,
            devices=before.devices + len(told.get("devices", ())),
            blocks=before.blocks + told.get("blocks", 0),
            claims=before.claims + told.get("granted", 0) + told.get("denied", 0),
        )

    def _told_claims(self, seq: int, told: dict[str, Any]) -> None:
        if self.pending is None:
            following = next(self.of_seq, None)
            self.pending = (following[0], [list(each[1:]) for each in following[1]]) if following else None
        found: list[Any] = []
        if self.pending is not None and self.pending[0] == seq:
            found, self.pending = self.pending[1], None
        if hashlib.sha256(canonical(found)).hexdigest() != told["claims"]:
            self._wrong(seq, "the grants and denials are not those that were decided")

    def _told_blocks(self, seq: int, told: dict[str, Any]) -> None:
        found = list(islice(self.blocks, told["blocks"]))
        ids, names, devices, sorts = zip(*found, strict=True) if found else ((), (), (), ())
        told_names = hashlib.sha256("\n".join(names).encode() + bytes_digest(np.array(devices)).encode()).hexdigest()
        if told_names != told["names"] or list(ids) != list(range(told["first"], told["first"] + told["blocks"])):
            self._wrong(seq, "the blocks are not those that were registered")
        elif any(sort != sort_key(name) for name, sort in zip(names, sorts, strict=True)):
            self._wrong(seq, "the blocks are not in the order of their names")

    def _rows_without_journal(self) -> None:
        for what, parts in (("charges", self.entry_parts), ("budgets", self.term_parts)):
            for seq in parts:
                self._wrong(seq, f"there are {what} that no row of the journal tells of")
        if self.pending is not None or next(self.of_seq, None) is not None:
            self._wrong(0, "there are grants that no row of the journal tells of")
        if next(self.devices, None) is not None or next(self.blocks, None) is not None:
            self._wrong(0, "there are devices or blocks that no row of the journal tells of")

    def _stages(self) -> None:
        ids, stage = self.claims[:, 0], self.claims[:, 2]
        granted = np.isin(ids, self.entries.claim)
        expected = np.where(granted, Stage.CHARGED, Stage.DENIED)
        moved = np.array(sorted(self.stages.items()), dtype=np.int64).reshape(-1, 2)
        place = np.searchsorted(ids, moved[:, 0])
        there = place < len(ids)
        expected[place[there]] = moved[there, 1]
        for at in np.flatnonzero(stage != expected).tolist():
            is_, should = Stage(int(stage[at])).word, Stage(int(expected[at])).word
            self._wrong(0, f"grant {int(ids[at])} is {is_}, the journal says {should}")

    def _balances(self) -> int:
        """What is spent of each block, summed from nothing, and what holds for it, from its last row."""
        number, state, spent, unlocked, capacity = self.reader.balances()
        count, width = self.head.blocks, self.reader.width
        if not np.array_equal(number, np.arange(1, count + 1)):
            self._wrong(0, f"the ledger has {len(number)} balances, registered are {count} blocks")
            return len(number)
        voided = np.isin(self.entries.claim, self.claims[self.claims[:, 2] == Stage.VOIDED, 0])
        place = self.entries.block - 1
        if len(place) and not (place.min() >= 0 and place.max() < count):
            self._wrong(0, "there are charges on a block that is not there")
            return count
        gross = exact_totals(place, self.entries.cost, count)
        given_back = exact_totals(place[voided], self.entries.cost[voided], count)
        sums = np.minimum(gross - given_back, CEILING).astype(np.int64)
        right = (spent == sums) | ((spent == CEILING) & (gross >= CEILING).astype(bool))
        last = np.zeros((count, 1 + 2 * width), dtype=np.int64)
        last[self.terms[:, 1] - 1] = self.terms[:, 2:]  # rows stand in order, so the last one stays
        same = (np.column_stack([state, unlocked, capacity]) == last).all(axis=1)
        holds = (spent <= unlocked).any(axis=1) & (unlocked <= capacity).all(axis=1)
        for at in np.flatnonzero(~right.all(axis=1))[:PROBLEMS_MAX].tolist():
            self._wrong(
                0, f"block number {at + 1} has {spent[at].tolist()} units spent, its rows sum to {sums[at].tolist()}"
            )
        for at in np.flatnonzero(~same)[:PROBLEMS_MAX].tolist():
            self._wrong(0, f"block number {at + 1} does not have the budget that was set last")
        for at in np.flatnonzero(~holds)[:PROBLEMS_MAX].tolist():
            self._wrong(0, f"block number {at + 1} is overspent: {spent[at].tolist()} of {unlocked[at].tolist()} units")
        return count


def _parts(seqs: Numbers) -> dict[int, slice]:
    """Where the rows of each sequence number stand, which are ordered by it."""
    starts = np.flatnonzero(np.diff(seqs, prepend=-1)).tolist()
    stops: Sequence[int] = [*starts[1:], len(seqs)] if starts else []
    return {int(seqs[start]): slice(start, stop) for start, stop in zip(starts, stops, strict=True)}
