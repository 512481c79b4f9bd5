"""What was promised, and what is spent? One object over a store; every write is decided by the book."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np

from dpbalance.allocation import Allocation
from dpbalance.amounts import MAX_UNITS, Units, capacity_units
from dpbalance.clock import Clock, RealClock
from dpbalance.demand.pipeline import Epsilon, Pipeline
from dpbalance.errors import AmountError, LedgerDamaged, LedgerUnavailable, NotInLedger, OptionError
from dpbalance.ledger.book import SETTLED, Outdated, begun_again, decide, refusal_of
from dpbalance.ledger.commit import GroupCommit
from dpbalance.ledger.journal import Signer
from dpbalance.ledger.names import Names, device_numbers
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
    check_new_name,
    units_of,
    whole,
)
from dpbalance.ledger.store import CHUNK, Store, WallHeld
from dpbalance.market.block import Block
from dpbalance.market.round import Round, checked_number

if TYPE_CHECKING:
    from dpbalance.ledger.statements import Line
    from dpbalance.ledger.verify import Verdict

VERIFY = "dpbalance ledger verify"


class How(TypedDict, total=False):
    """What every step of a grant may be given besides."""

    actor: str
    key: str | None
    token: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What became of a write: where it stands in the journal, and what its row says."""

    seq: int
    kind: str
    told: Mapping[str, Any]
    hash: str

    @property
    def mark(self) -> str:
        """What to keep outside of the ledger, `SEQ:HASH`: it names this row and everything before it."""
        return f"{self.seq}:{self.hash}"

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
        self.names = Names()

    @property
    def key_file(self) -> Path | None:
        """Where the key is that signs; none for a ledger in memory."""
        return self._signer.key_file

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
            check_new_name("device", name)
            if contributor:
                check_new_name(f"contributor of {name!r}", contributor)
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
            check_new_name("block", name)
        distinct, place = np.unique(np.array(devices, dtype=object), return_inverse=True)
        with self.store.reading() as reader:
            head, known = reader.head(), device_numbers(reader, distinct.tolist())
        for name in distinct.tolist():
            if name not in known:
                raise NotInLedger(f"device {name!r} is not in the ledger", hint="registering it first")
        number = np.array([known[name] for name in distinct.tolist()], dtype=np.int64)
        request = RegisterBlocks(
            blocks=names,
            device=number[place],
            capacity=capacity,
            unlocked=capacity if unlocked is None else unlocked,
            actor=actor,
            key=key,
            known=(head.seq, head.hash),
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
        token, seen = whole("a token", token), whole("seen", seen)
        ids, known = self.names.ids(self.store, decision.blocks)
        names = decision.blocks
        return self._write(
            Charge(ids=ids, names=names, decision=decision, token=token, seen=seen, actor=actor, key=key, known=known)
        )

    def dispatch(self, grants: Sequence[int], **how: Unpack[How]) -> Receipt:
        """These grants are about to leave the outbox; from here on there is no refund.

        While a lease is held this needs its `token`, as a charge and a void do; what became of a grant can be told
        without, but not with a token that has been succeeded.
        """
        return self._move(grants, Stage.DISPATCHED, "", **how)

    def complete(self, grants: Sequence[int], *, note: str = "", **how: Unpack[How]) -> Receipt:
        """These grants were carried out."""
        return self._move(grants, Stage.COMPLETED, note, **how)

    def fail(self, grants: Sequence[int], *, note: str = "", **how: Unpack[How]) -> Receipt:
        """These grants came to nothing, or nobody knows: charged in full."""
        return self._move(grants, Stage.FAILED, note, **how)

    def void(self, grants: Sequence[int], *, note: str = "", **how: Unpack[How]) -> Receipt:
        """Give back what was charged for grants that were never dispatched: the only refund."""
        return self._move(grants, Stage.VOIDED, note, **how)

    def settle(self, grant: int, outcome: str, **how: Unpack[How]) -> Receipt:
        """Close a grant by how its run ended; `SETTLED` of the book has the outcomes."""
        if outcome not in SETTLED:
            raise OptionError(f"outcome must be one of {', '.join(SETTLED)}, not {str(outcome)[:60]!r}")
        return self._move([grant], SETTLED[outcome], outcome, **how)

    def acquire(self, holder: str, seconds: float, *, token: int | None = None, key: str | None = None) -> int:
        """The token of the lease, which only one scheduler holds at a time.

        Whoever shows the token renews the lease and keeps it; whoever shows none gets a higher one, which ends the
        old one even if the holder has the same name.
        """
        check_name("holder", holder)
        for_s, token = checked_number(seconds, "seconds", least=0.0), whole("a token", token)
        return int(self._write(Lease(holder=holder, seconds=for_s, token=token, actor=holder, key=key)).told["token"])

    def release(self, holder: str, *, token: int | None = None) -> None:
        """Give the lease back before it ends; with a token only if that is still the one."""
        check_name("holder", holder)
        self._write(Lease(holder=holder, seconds=None, token=whole("a token", token), actor=holder))

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
        moment = self._clock.now() if now is None else now
        asked = list({name: None for each in pipelines for name in each.demand})
        offers = [Block(id=name, capacity=self._nothing()) for name in asked]
        round_ = Round.build(offers, pipelines, orders=self.orders, now=moment, priorities=priorities)
        with self.store.reading() as reader:
            head = reader.head()
            catalogue = self.names.all_blocks(reader, head)
            ids = np.array([number for number, _ in self.names.look_up(reader, round_.blocks)[0]], dtype=np.int64)
            _, state, spent, unlocked, capacity = reader.balances()
        if len(state) != len(catalogue.ids):
            raise LedgerDamaged(f"{len(catalogue.ids)} blocks have {len(state)} balances", hint=VERIFY)
        place = catalogue.ids - 1
        if not np.array_equal(place, np.arange(len(place))):
            state, spent, unlocked, capacity = state[place], spent[place], unlocked[place], capacity[place]
        unlocked[state != State.OPEN] = 0
        spent = np.minimum(spent, MAX_UNITS)  # an order far overdrawn has nothing left, which is all a round tells
        rank = np.empty(len(place), dtype=np.int64)
        rank[place] = np.arange(len(place))
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
                catalogue = self.names.all_blocks(reader, reader.head())
                names, ids = catalogue.names, catalogue.ids
            else:
                names = tuple(blocks)
                ids = np.array([number for number, _ in self.names.look_up(reader, names)[0]], dtype=np.int64)
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

    def verify(self, *, public_key: str | None = None) -> Verdict:
        """Recompute every balance and the chain from the rows, by another route than the one that wrote them.

        `public_key` is the one that was noted when the ledger was made: whoever replaced every row has another.
        """
        from dpbalance.ledger.opening import check_key
        from dpbalance.ledger.verify import verify

        check_key(self.store, public_key)
        return verify(self.store, self.public)

    def export(self, folder: str | Path, *, format: str = "csv") -> list[Path]:
        """Write every table as CSV or Parquet, all as of one moment."""
        from dpbalance.ledger.statements import export

        return export(self.store, Path(folder), format)

    def backup(self, path: str | Path) -> int:
        """Copy everything as of one moment into a new file, while writing goes on; the sequence number it holds."""
        from dpbalance.ledger.copies import backup

        return backup(self.store, Path(path)).seq

    # How it works

    def _write(self, request: Request) -> Receipt:
        request.check()
        try:
            answer = self._commit((request, request.digest()))
        except Outdated:
            self.names.forget()
            raise LedgerUnavailable(
                f"{self.store.url} was replaced since the names in this request were read; nothing was written",
                hint="the same request with the same key",
            ) from None
        refusal = refusal_of(answer)
        if refusal is not None:
            raise refusal
        return Receipt(seq=answer.seq, kind=answer.kind, told=answer.told, hash=answer.hash)

    def _run(self, batch: Sequence[tuple[Request, str]]) -> list[Answer | BaseException]:
        """One transaction for all; if anything is wrong with it, one for each, so that only the culprit fails."""
        answers: list[Answer | BaseException] = []

        def decide_all(page: Page) -> None:
            answers.clear()
            now = float(self._clock.now())
            if page.restored == page.head.seq:
                begun_again(page, now, self._signer.seal)
            for request, digest in batch:
                try:
                    answers.append(decide(page, request, digest, now, self._signer.seal))
                except Exception as refusal:  # whatever it is, it is the answer to this request alone
                    answers.append(refusal)

        try:
            self.store.write([request for request, _ in batch], decide_all)
        except LedgerUnavailable as problem:
            return [problem] * len(batch)
        except Exception as problem:
            if len(batch) > 1:
                return [self._run([each])[0] for each in batch]
            told = f"the database refused what the rules allow, nothing was written: {problem}"
            return [LedgerDamaged(told, hint=VERIFY) if isinstance(problem, WallHeld) else problem]
        return answers

    def _move(self, grants: Sequence[int], stage: Stage, note: str, **how: Unpack[How]) -> Receipt:
        numbers = tuple(whole("a grant", each) or 0 for each in grants)
        actor, key, token = how.get("actor", "scheduler"), how.get("key"), whole("a token", how.get("token"))
        return self._write(Move(grants=numbers, stage=stage, note=note, token=token, actor=actor, key=key))

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

    def contributors(self, devices: Iterable[str]) -> dict[str, str]:
        """Whose data those of these devices hold that are in the ledger."""
        names = list(dict.fromkeys(devices))
        with self.store.reading() as reader:
            return {
                name: contributor
                for at in range(0, len(names), CHUNK)
                for name, contributor in reader.rows(
                    "device", ["name", "contributor"], among=("name", names[at : at + CHUNK])
                )
            }

    def _on(self, blocks: Sequence[str]) -> dict[str, Any]:
        """These blocks as a request names them: by ascending number, with their contributors."""
        if not blocks:
            raise OptionError("no blocks were named")
        with self.store.reading() as reader:
            both, mark = self.names.look_up(reader, blocks)
            owner = dict(reader.rows("device", ["id", "contributor"], among=("id", sorted({at for _, at in both}))))
        found = sorted(zip(both, blocks, strict=True))
        if len({name for _, name in found}) != len(found):
            raise OptionError("a block is named twice")
        return {
            "ids": np.array([number for (number, _), _ in found], dtype=np.int64),
            "names": [name for _, name in found],
            "contributors": tuple(owner[device] for (_, device), _ in found),
            "known": mark,
        }


def device_of(block: str) -> str:
    """The device a block's name tells of: what stands before its last slash.

    >>> device_of("phone-7/monday"), device_of("B1")
    ('phone-7', 'B1')
    """
    return block.rpartition("/")[0] or block
