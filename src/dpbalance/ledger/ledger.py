"""What was promised, and what is spent? One object over a store; every write is decided by the book."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpbalance.allocation import Allocation
from dpbalance.amounts import Units, capacity_units
from dpbalance.clock import Clock, RealClock
from dpbalance.demand.pipeline import Epsilon, Pipeline
from dpbalance.errors import AmountError, DPBalanceError, LedgerDamaged, NotInLedger, OptionError
from dpbalance.ledger.book import SETTLED, decide, refusal_of
from dpbalance.ledger.commit import GroupCommit
from dpbalance.ledger.journal import Signer
from dpbalance.ledger.page import Answer, Head, Page
from dpbalance.ledger.requests import (
    Charge,
    Decision,
    Lease,
    Move,
    RegisterBlocks,
    RegisterDevices,
    Request,
    SetBudget,
    SetState,
    Stage,
    State,
    Unlock,
    check_name,
    units_of,
)
from dpbalance.ledger.store import CHUNK, Reader, Store, WallHeld
from dpbalance.market.block import Block
from dpbalance.market.round import Indices, Round, checked_number

if TYPE_CHECKING:
    from dpbalance.ledger.statements import Line
    from dpbalance.ledger.verify import Verdict

NAMES_MAX = 200_000
"""Numbers of so many blocks are remembered by name; more are looked up again."""

VERIFY = "dpbalance ledger verify"


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of a write: where it stands in the journal, and what its row says."""

    seq: int
    kind: str
    told: Mapping[str, Any]

    @property
    def grants(self) -> range:
        """The numbers of what was granted, in the order of the decision's pipelines."""
        first = self.told.get("first", 0)
        return range(first, first + self.told.get("granted", 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """A round of everything on offer, and the row of the journal after which it was taken."""

    round: Round
    seq: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogue:
    """All blocks in the order of a Round, with their numbers; names never change, there are only more of them."""

    names: tuple[str, ...]
    ids: Indices


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """One block as it stands, in whole units."""

    block: str
    state: State
    spent: Units
    unlocked: Units
    capacity: Units


class Ledger:
    """The ledger in a store. Any number of threads may use one object, any number of processes one store."""

    def __init__(self, store: Store, signer: Signer, *, public: str, clock: Clock | None = None) -> None:
        self.store, self.public = store, public
        self._signer, self._clock = signer, clock or RealClock()
        self._commit: GroupCommit[tuple[Request, str], Answer] = GroupCommit(self._run)
        self._numbers: dict[str, tuple[int, int]] = {}
        self._catalogue = Catalogue(names=(), ids=np.zeros(0, dtype=np.int64))

    @property
    def orders(self) -> tuple[float, ...] | None:
        """The orders at which everything is counted; None is the single default order."""
        return self.store.orders

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the store."""
        self.store.close()

    # What can be written

    def register_devices(
        self, devices: Mapping[str, str], *, actor: str = "operator", key: str | None = None
    ) -> Receipt:
        """New devices, each with the contributor whose data it holds (may be empty)."""
        for name, contributor in devices.items():
            check_name("device", name)
            if contributor:
                check_name(f"contributor of {name!r}", contributor)
        names, contributors = tuple(devices), tuple(devices.values())
        return self._write(RegisterDevices(devices=names, contributors=contributors, actor=actor, key=key))

    def register_blocks(
        self,
        blocks: Iterable[Block],
        *,
        devices: Mapping[str, str] | None = None,
        actor: str = "operator",
        key: str | None = None,
    ) -> Receipt:
        """New blocks, with nothing spent; the device is what stands before the last slash of a name, if not given."""
        listed = list(blocks)
        for each in listed:
            if np.any(np.asarray(each.spent) != 0):
                raise AmountError(f"block {each.id!r} has something spent; a ledger begins with what it charged itself")
        own = devices or {}
        return self.register_arrays(
            tuple(each.id for each in listed),
            [own.get(each.id, device_of(each.id)) for each in listed],
            self._units([(each.id, each.capacity) for each in listed]),
            self._units([(each.id, each.capacity if each.unlocked is None else each.unlocked) for each in listed]),
            actor=actor,
            key=key,
        )

    def register_arrays(
        self,
        names: tuple[str, ...],
        devices: Sequence[str],
        capacity: Units,
        unlocked: Units | None = None,
        *,
        actor: str = "operator",
        key: str | None = None,
    ) -> Receipt:
        """The same for many blocks, in whole units, one row for each block and one column for each order."""
        shape = (len(names), self.store.width)
        if capacity.shape != shape or (unlocked is not None and unlocked.shape != shape) or len(devices) != len(names):
            raise AmountError(f"budgets of {len(names)} blocks must be {shape}, not {capacity.shape}")
        if not capacity.dtype == np.int64 == (capacity if unlocked is None else unlocked).dtype:
            raise AmountError("budgets of many blocks are whole units of 64 bits")
        for name in names:
            check_name("block", name)
        distinct, place = np.unique(np.array(devices, dtype=object), return_inverse=True)
        number = self._devices(distinct.tolist())
        request = RegisterBlocks(
            blocks=names,
            device=number[place],
            capacity=capacity,
            unlocked=capacity if unlocked is None else unlocked,
            actor=actor,
            key=key,
        )
        return self._write(request)

    def set_budget(self, block: str, capacity: Epsilon, *, actor: str = "operator", key: str | None = None) -> Receipt:
        """Another capacity: lower down to what is spent, higher only as `contributor:NAME`."""
        units = self._units([(block, capacity)])
        return self._write(SetBudget(**self._on([block]), capacity=units, actor=actor, key=key))

    def unlock(self, amounts: Mapping[str, Epsilon], *, actor: str = "operator", key: str | None = None) -> Receipt:
        """Let these blocks be used up to this much; never less than before."""
        on = self._on(list(amounts))
        units = self._units([(name, amounts[name]) for name in on["names"]])
        return self._write(Unlock(**on, unlocked=units, actor=actor, key=key))

    def freeze(self, blocks: Sequence[str], *, actor: str = "operator", key: str | None = None) -> Receipt:
        """Nothing can be charged on these blocks from now on, whatever was decided before."""
        return self._write(SetState(**self._on(blocks), state=State.FROZEN, actor=actor, key=key))

    def thaw(self, blocks: Sequence[str], *, actor: str, key: str | None = None) -> Receipt:
        """Take a freeze back, as `contributor:NAME`."""
        return self._write(SetState(**self._on(blocks), state=State.OPEN, actor=actor, key=key))

    def retire(self, blocks: Sequence[str], *, actor: str = "operator", key: str | None = None) -> Receipt:
        """Nothing can ever be charged on these blocks again."""
        return self._write(SetState(**self._on(blocks), state=State.RETIRED, actor=actor, key=key))

    def charge(
        self,
        decided: Allocation | Decision,
        *,
        actor: str = "scheduler",
        key: str | None = None,
        token: int | None = None,
        seen: int | None = None,
    ) -> Receipt:
        """Charge a whole decision or nothing of it; `seen` is the sequence number of the snapshot it was taken on.

        A decision on an old snapshot is charged as long as every block still holds it; the refusal names one that
        does not.
        """
        decision = Decision.of(decided) if isinstance(decided, Allocation) else decided
        ids = self._ids(decision.blocks)
        request = Charge(
            ids=ids, names=decision.blocks, decision=decision, token=token, seen=seen, actor=actor, key=key
        )
        return self._write(request)

    def dispatch(self, grants: Sequence[int], *, actor: str = "scheduler", key: str | None = None) -> Receipt:
        """These grants are about to leave the outbox; from here on there is no refund."""
        return self._move(grants, Stage.DISPATCHED, "", actor, key)

    def complete(
        self, grants: Sequence[int], *, note: str = "", actor: str = "scheduler", key: str | None = None
    ) -> Receipt:
        """These grants were carried out."""
        return self._move(grants, Stage.COMPLETED, note, actor, key)

    def fail(
        self, grants: Sequence[int], *, note: str = "", actor: str = "scheduler", key: str | None = None
    ) -> Receipt:
        """These grants came to nothing, or nobody knows: charged in full."""
        return self._move(grants, Stage.FAILED, note, actor, key)

    def void(
        self, grants: Sequence[int], *, note: str = "", actor: str = "scheduler", key: str | None = None
    ) -> Receipt:
        """Give back what was charged for grants that were never dispatched: the only refund."""
        return self._move(grants, Stage.VOIDED, note, actor, key)

    def settle(self, grant: int, outcome: str, *, actor: str = "scheduler", key: str | None = None) -> Receipt:
        """Close a grant by how its run ended; `SETTLED` of the book has the outcomes."""
        if outcome not in SETTLED:
            raise OptionError(f"outcome must be one of {', '.join(SETTLED)}, not {str(outcome)[:60]!r}")
        return self._move([grant], SETTLED[outcome], outcome, actor, key)

    def acquire(self, holder: str, seconds: float, *, key: str | None = None) -> int:
        """The token of the lease, which only one scheduler holds at a time; the same again to renew it."""
        check_name("holder", holder)
        request = Lease(holder=holder, seconds=checked_number(seconds, "seconds", least=0.0), actor=holder, key=key)
        return int(self._write(request).told["token"])

    def release(self, holder: str) -> None:
        """Give the lease back before it ends."""
        self._write(Lease(holder=holder, seconds=None, actor=holder))

    # What can be read

    def head(self) -> Head:
        """The end of the journal; its `seq` is what to keep outside, to recognise a ledger that lost rows."""
        with self.store.reading() as reader:
            return reader.head()

    def snapshot(
        self,
        pipelines: Sequence[Pipeline] = (),
        *,
        now: float | None = None,
        priorities: Mapping[str, float] | None = None,
    ) -> Snapshot:
        """A round of all blocks as they are charged at one moment; of a frozen or retired one nothing is unlocked.

        Retired blocks that nobody asks for are left out.
        """
        with self.store.reading() as reader:
            head = reader.head()
            catalogue = self._all_blocks(reader, head.blocks)
            _, state, spent, unlocked, capacity = reader.balances()
        if len(state) != len(catalogue.ids):
            raise LedgerDamaged(f"{len(catalogue.ids)} blocks have {len(state)} balances", hint=VERIFY)
        place = catalogue.ids - 1
        if not np.array_equal(place, np.arange(len(place))):
            state, spent, unlocked, capacity = state[place], spent[place], unlocked[place], capacity[place]
        unlocked[state != State.OPEN] = 0
        moment = self._clock.now() if now is None else now
        asked = list({name: None for each in pipelines for name in each.demand})
        offers = [Block(id=name, capacity=self._nothing()) for name in asked]
        round_ = Round.build(offers, pipelines, orders=self.orders, now=moment, priorities=priorities)
        rank = np.empty(len(place), dtype=np.int64)
        rank[place] = np.arange(len(place))
        ids = self._ids(round_.blocks)
        if len(ids) and ids.max() > head.blocks:
            raise NotInLedger(
                f"block {round_.blocks[int(np.argmax(ids))]!r} came after this snapshot", hint="another one"
            )
        at = rank[ids - 1]
        names = catalogue.names
        kept = state != State.RETIRED
        if not kept.all():
            kept[at] = True
            names = tuple(names[each] for each in np.flatnonzero(kept).tolist())
            at = (np.cumsum(kept) - 1)[at]
            spent, unlocked, capacity = spent[kept], unlocked[kept], capacity[kept]
        block = at[round_.block].astype(np.int32)
        whole = replace(round_, blocks=names, capacity=capacity, spent=spent, unlocked=unlocked, block=block)
        return Snapshot(round=whole, seq=head.seq)

    def balances(self, blocks: Sequence[str] | None = None) -> list[Balance]:
        """These blocks, or all, in the order of a Round."""
        with self.store.reading() as reader:
            if blocks is None:
                catalogue = self._all_blocks(reader, reader.head().blocks)
                names, ids = catalogue.names, catalogue.ids
            else:
                names, ids = tuple(blocks), self._ids(blocks)
            number, state, spent, unlocked, capacity = reader.balances(None if blocks is None else np.unique(ids))
        places = np.searchsorted(number, ids).tolist()
        return [
            Balance(
                block=name, state=State(int(state[at])), spent=spent[at], unlocked=unlocked[at], capacity=capacity[at]
            )
            for name, at in zip(names, places, strict=True)
        ]

    def outbox(self) -> list[int]:
        """Grants that are charged and were never dispatched."""
        with self.store.reading() as reader:
            among = ("stage", [int(Stage.CHARGED)])
            found: list[int] = reader.numbers("claim", ["id"], among=among, order=("id",))[:, 0].tolist()
        return found

    def statement(self, *, delta: float = 1e-5, **of: str) -> list[Line]:
        """Who spent what, when, on whose decision: of one device, block, analyst or pipeline, or of everybody."""
        from dpbalance.ledger.statements import statement

        return statement(self, of, delta)

    def verify(self) -> Verdict:
        """Recompute every balance and the chain from the rows, by another route than the one that wrote them."""
        from dpbalance.ledger.verify import verify

        return verify(self.store, self.public)

    def export(self, folder: str | Path, *, format: str = "csv") -> list[Path]:
        """Write every table as CSV or Parquet, all as of one moment."""
        from dpbalance.ledger.statements import export

        return export(self.store, Path(folder), format)

    def backup(self, path: str | Path) -> int:
        """Copy everything as of one moment into a new file, while writing goes on; the sequence number it holds."""
        from dpbalance.ledger.copies import backup

        return backup(self.store, Path(path))

    # How it works

    def _write(self, request: Request) -> Receipt:
        request.check()
        answer = self._commit((request, request.digest()))
        refusal = refusal_of(answer)
        if refusal is not None:
            raise refusal
        return Receipt(seq=answer.seq, kind=answer.kind, told=answer.told)

    def _run(self, batch: Sequence[tuple[Request, str]]) -> list[Answer | BaseException]:
        """One transaction for all; if the database refuses it, one for each, so that only the culprit fails."""
        answers: list[Answer | BaseException] = []

        def decide_all(page: Page) -> None:
            answers.clear()
            now = self._clock.now()
            for request, digest in batch:
                try:
                    answers.append(decide(page, request, digest, now, self._signer.seal))
                except DPBalanceError as refusal:
                    answers.append(refusal)

        try:
            self.store.write([request for request, _ in batch], decide_all)
        except WallHeld as problem:
            if len(batch) > 1:
                return [self._run([each])[0] for each in batch]
            return [
                LedgerDamaged(f"the database refused what the rules allow, nothing was written: {problem}", hint=VERIFY)
            ]
        return answers

    def _move(self, grants: Sequence[int], stage: Stage, note: str, actor: str, key: str | None) -> Receipt:
        return self._write(Move(grants=tuple(map(int, grants)), stage=stage, note=note, actor=actor, key=key))

    def _units(self, amounts: Sequence[tuple[str, Epsilon]]) -> Units:
        width = self.store.width
        made = np.zeros((len(amounts), width), dtype=np.int64)
        for at, (name, amount) in enumerate(amounts):
            made[at] = units_of(
                f"block {name!r}: an amount", amount, None if self.orders is None else width, capacity_units
            )
        return made

    def _nothing(self) -> Epsilon:
        return 0.0 if self.orders is None else (0.0,) * self.store.width

    def _all_blocks(self, reader: Reader, count: int) -> Catalogue:
        catalogue = self._catalogue  # another thread may put a newer one there
        if len(catalogue.ids) != count:
            found = list(reader.rows("block", ["name", "id"], order=("sort",)))
            names, ids = zip(*found, strict=True) if found else ((), ())
            catalogue = Catalogue(names=names, ids=np.array(ids, dtype=np.int64))
            if len(ids) != count or not np.array_equal(np.sort(catalogue.ids), np.arange(1, count + 1)):
                raise LedgerDamaged(f"the ledger counts {count} blocks and has {len(ids)}", hint=VERIFY)
            self._catalogue = catalogue
        return catalogue

    def _ids(self, names: Sequence[str]) -> Indices:
        """The numbers of these blocks."""
        catalogue = self._catalogue
        if names is catalogue.names:
            return catalogue.ids
        return np.array([number for number, _ in self._look_up(names)], dtype=np.int64)

    def _look_up(self, names: Sequence[str]) -> list[tuple[int, int]]:
        """The number and the device of each of these blocks, which never change."""
        known = self._numbers
        missing = [name for name in names if name not in known]
        if missing:
            if len(known) + len(missing) > NAMES_MAX:
                known = {name: known[name] for name in names if name in known}
            with self.store.reading() as reader:
                for at in range(0, len(missing), CHUNK):
                    part = missing[at : at + CHUNK]
                    found = reader.rows("block", ["name", "id", "device"], among=("name", part))
                    known.update((name, (number, device)) for name, number, device in found)
            self._numbers = known
            for name in missing:
                if name not in known:
                    raise NotInLedger(f"block {str(name)[:256]!r} is not in the ledger", hint="dpbalance block list")
        return [known[name] for name in names]

    def unregistered(self, devices: Iterable[str]) -> list[str]:
        """Those of these devices that are not in the ledger, each once."""
        distinct = list(dict.fromkeys(devices))
        known = self._device_numbers(distinct)
        return [name for name in distinct if name not in known]

    def _device_numbers(self, names: Sequence[str]) -> dict[str, int]:
        with self.store.reading() as reader:
            return {
                name: number
                for at in range(0, len(names), CHUNK)
                for name, number in reader.rows("device", ["name", "id"], among=("name", names[at : at + CHUNK]))
            }

    def _devices(self, names: Sequence[str]) -> Indices:
        number = self._device_numbers(names)
        for name in names:
            if name not in number:
                raise NotInLedger(f"device {name!r} is not in the ledger", hint="registering it first")
        return np.array([number[name] for name in names], dtype=np.int64)

    def _on(self, blocks: Sequence[str]) -> dict[str, Any]:
        """These blocks as a request names them: by ascending number, with their contributors."""
        if not blocks:
            raise OptionError("no blocks were named")
        found = sorted(zip(self._look_up(blocks), blocks, strict=True))
        if len({name for _, name in found}) != len(found):
            raise OptionError("a block is named twice")
        with self.store.reading() as reader:
            devices = sorted({device for (_, device), _ in found})
            owner = dict(reader.rows("device", ["id", "contributor"], among=("id", devices)))
        return {
            "ids": np.array([number for (number, _), _ in found], dtype=np.int64),
            "names": [name for _, name in found],
            "contributors": tuple(owner[device] for (_, device), _ in found),
        }


def device_of(block: str) -> str:
    """The device a block's name tells of: what stands before its last slash.

    >>> device_of("phone-7/monday"), device_of("B1")
    ('phone-7', 'B1')
    """
    return block.rpartition("/")[0] or block
