"""What does a device do with a plan? It checks it, records what it spends, and only then trains and answers.

Laws for future editors:
1. Nothing is trained before the spend is on disk.
2. An answer is on disk, and the record says so, before it is sent; asked again, the device sends the same bytes, never
   fresh noise.
3. The device trusts one key, its own clock, its own record and its own accountant.
4. What leaves the device beside noised answers is fixed sentences of public facts: no count, shape or text of a block.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

import numpy as np

from dpbalance.accounting.orders import checked_orders
from dpbalance.amounts import capacity_units
from dpbalance.clock import Clock, RealClock, Secrets, SystemSecrets
from dpbalance.errors import DPBalanceError, InputError, LedgerDamaged, NotInLedger, PlanRefused
from dpbalance.execution.form import canonical, parsed, write_durably
from dpbalance.execution.models import PARAMETER_MAX, Floats, Labels, Model, made, usable
from dpbalance.execution.plan import ADJACENCY, PRIVACY_UNIT, BlockPlan, DevicePlan, check_spend
from dpbalance.execution.replies import Receipt, Replies, Reply, reply_digest
from dpbalance.execution.signature import Envelope, opened
from dpbalance.execution.spending import Answered, Held, SpendRecord, Spent
from dpbalance.execution.training import Records, local_update, noised_loss

STATE = ".dpbalance"
"""Folder beside the blocks in which the agent keeps what it must not forget."""

RECORD = "spend.jsonl"

REPLIES = ".replies"

CLOCK_SKEW_SECONDS = 300.0
"""A plan from further in the future than this is refused."""

KEPT_AFTER_EXPIRY_SECONDS = 7 * 86400.0
"""Answers stay so much longer than they can be asked for, against a clock that is set back."""

TIME_LEFT_MAX_SECONDS = 30 * 86400.0
"""A plan that could be used longer than this is refused."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """What a device was told once, by its owner."""

    device: str
    trusted: str
    """Public key of the platform, as hexadecimal text."""
    orders: tuple[float, ...]
    cap: tuple[int, ...]
    """The most that any of its blocks may lose, in whole units at each order."""


class Agent:
    """The agent of one device, over the folder with its blocks."""

    def __init__(self, folder: Path, *, clock: Clock | None = None, secrets: Secrets | None = None) -> None:
        self.folder = folder
        self._clock, self._secrets = clock or RealClock(), secrets or SystemSecrets()
        try:
            self.enrolment = parsed(Enrolment, (folder / STATE / "agent.json").read_bytes(), "agent.json")
        except OSError:
            raise NotInLedger(
                f"no device is enrolled in {folder}", hint="dpbalance agent --device ID --blocks DIR --trust KEY"
            ) from None
        self.record = SpendRecord(folder / STATE / RECORD)
        self._plans: dict[str, tuple[DevicePlan, str]] = {}
        self._records: dict[str, tuple[Floats, Labels]] = {}

    @staticmethod
    def enrol(
        folder: Path, device: str, trusted: str, *, cap: float | Sequence[float], orders: Sequence[float] | None = None
    ) -> Agent:
        """Set a device up: whom it trusts, and what it will never spend more than."""
        checked = checked_orders(orders)
        units = np.atleast_1d(capacity_units(cap))
        if len(units) == 1:
            units = np.repeat(units, len(checked))
        if units.shape != checked.shape:
            raise InputError(f"the cap must be one number or {len(checked)}, not {str(cap)[:60]}")
        told = Enrolment(device=device, trusted=trusted, orders=tuple(checked.tolist()), cap=tuple(units.tolist()))
        (folder / STATE).mkdir(parents=True, exist_ok=True)
        _check_history(folder / STATE, told)
        (folder / STATE / RECORD).touch()  # its name is on disk when the next file's is
        write_durably(folder / STATE / "agent.json", canonical(told))
        return Agent(folder)

    @property
    def device(self) -> str:
        return self.enrolment.device

    def blocks(self) -> list[str]:
        """Full names of the blocks in the folder; a file that no block would be written to is none."""
        names = {f"{self.device}/{unquote(each.stem)}": each.name for each in self.folder.glob("*.npz")}
        return sorted(name for name, file in names.items() if file_of(name) == file)

    def accept(self, envelope: Envelope) -> DevicePlan:
        """The plan, checked, with its spend on disk. Sent again it is accepted again and spends nothing more."""
        plan = self._checked(envelope)
        for each in plan.blocks:
            self._usable(plan, each)
        replies = self._replies(plan.run)
        with self.record.held() as held:
            known = held.known(plan, envelope.digest)
            if not known:
                self._check_cap(plan, held)
                replies.begin()
                held.add(self._spent(plan, envelope.digest))
                remove_expired(self.folder, held.entries, self._clock.now())
        if known:
            self._check_replies(plan.run)
        self._plans[plan.run] = (plan, envelope.digest)
        return plan

    def answer(self, run: str, number: int, parameters: Floats) -> bytes:
        """The answer to one round, trained now or sent again."""
        plan, digest = self._accepted(run)
        if not 0 <= number < plan.training.rounds:
            raise PlanRefused(f"{run} has {plan.training.rounds} rounds, there is no round {number}")

        def trained() -> Floats:
            model, records = self._ready(plan, parameters)
            return local_update(plan, model, parameters, records, self._secrets)

        return self._once(plan, digest, number, trained)

    def loss(self, run: str, parameters: Floats) -> bytes:
        """The noised loss of the final model, if the plan pays for one; it counts as the round after the last."""
        plan, digest = self._accepted(run)
        if not plan.loss_noise:
            raise PlanRefused(f"{run} pays for no release of a loss")

        def measured() -> Floats:
            model, records = self._ready(plan, parameters)
            return np.array([noised_loss(plan, model, parameters, records, self._secrets)])

        return self._once(plan, digest, plan.training.rounds, measured)

    def left(self) -> dict[str, list[int]]:
        """What each block may still lose by this device's own cap."""
        with self.record.held() as held:
            names, total = {each for entry in held.entries for each in entry.blocks}, self._totals(held)
        cap = self.enrolment.cap
        return {
            block: [most - gone for most, gone in zip(cap, total.get(file_of(block), [0] * len(cap)), strict=True)]
            for block in {*self.blocks(), *names}
        }

    def _once(self, plan: DevicePlan, digest: str, number: int, work: Callable[[], Floats]) -> bytes:
        """The answer that is kept, or a new one: kept first, then told to the record, and only then sent.

        Who holds the answers may ask for the record, never the other way round.
        """
        with self._replies(plan.run).held() as held:
            with self.record.held() as record:
                answered = record.answers(plan.run)
            held.check(plan.run, answered)
            reply = held.get(number)
            if reply is None:
                values = work()
                receipt = Receipt(
                    run=plan.run, plan=digest, device=self.device, round=number, digest=values_digest(values)
                )
                reply = held.keep(number, Reply(receipt=receipt, values=values).encoded())
            if number not in answered:
                with self.record.held() as record:
                    record.add(Answered(run=plan.run, answered=number, digest=reply_digest(reply)))
            return reply

    def _check_replies(self, run: str) -> None:
        """Everything the record says was answered must be there still: it could only be noised afresh."""
        with self._replies(run).held() as held, self.record.held() as record:
            held.check(run, record.answers(run))

    def _spent(self, plan: DevicePlan, digest: str) -> Spent:
        return Spent(
            run=plan.run,
            nonce=plan.nonce,
            plan=digest,
            expires=plan.expires,
            time=self._clock.now(),
            trusted=self.enrolment.trusted,
            orders=list(plan.orders),
            adjacency=plan.adjacency,
            privacy_unit=plan.privacy_unit,
            blocks={each.block: list(each.grant) for each in plan.blocks},
        )

    def _checked(self, envelope: Envelope) -> DevicePlan:
        """Every reason to refuse that needs no record."""
        document = opened(envelope, self.enrolment.trusted)
        try:
            plan = parsed(DevicePlan, document, "plan")
            check_spend(plan)
        except DPBalanceError as problem:
            raise PlanRefused(f"the plan cannot be carried out: {problem.message}") from None
        now = self._clock.now()
        self._check_name(plan.run)
        for wrong, why in (
            (plan.device != self.device, f"it is for device {plan.device!r}, this is {self.device!r}"),
            (now >= plan.expires, "it has expired"),
            (plan.issued > now + CLOCK_SKEW_SECONDS, "it is from the future"),
            (plan.expires > now + TIME_LEFT_MAX_SECONDS, "it could be used too long"),
            (plan.orders != self.enrolment.orders, f"it counts at orders {plan.orders}"),
            (plan.adjacency != ADJACENCY, f"it counts neighbours as {plan.adjacency!r}"),
            (plan.privacy_unit != PRIVACY_UNIT, f"it protects a {plan.privacy_unit!r}"),
            (not plan.blocks, "it names no block"),
        ):
            if wrong:
                raise PlanRefused(f"{plan.run} is refused: {why}")
        self._check_blocks(plan)
        return plan

    def _check_blocks(self, plan: DevicePlan) -> None:
        """Each block by its one full name, and each file once: a block under two names would be counted as two."""
        mine = set(self.blocks())
        for each in plan.blocks:
            if each.block not in mine:
                raise PlanRefused(f"{plan.run} is refused: block {each.block!r} is not on this device")
        files = [self._path(each.block).stat() for each in plan.blocks]
        if len({(each.st_dev, each.st_ino) for each in files}) != len(files):
            raise PlanRefused(f"{plan.run} is refused: it names a block twice")

    def _check_cap(self, plan: DevicePlan, held: Held) -> None:
        """At one order at least a block must stay within the cap, as in the ledger."""
        total = self._totals(held)
        for each in plan.blocks:
            before = total.get(file_of(each.block), [0] * len(each.grant))
            after = [a + b for a, b in zip(before, each.grant, strict=True)]
            if not any(spent <= most for spent, most in zip(after, self.enrolment.cap, strict=True)):
                raise PlanRefused(f"{plan.run} is refused: block {each.block!r} would pass this device's own cap")

    def _totals(self, held: Held) -> dict[str, list[int]]:
        """Whole units spent of each block's file, at this device's orders."""
        total: dict[str, list[int]] = {}
        for entry in held.entries:
            if entry.orders != list(self.enrolment.orders):
                raise LedgerDamaged("the spend record counts at other orders than this device", hint="asking the owner")
            for block, units in entry.blocks.items():
                before = total.get(file_of(block), [0] * len(units))
                total[file_of(block)] = [a + b for a, b in zip(before, units, strict=True)]
        return total

    def _check_name(self, run: str) -> None:
        if not 0 < len(run) <= 100 or quote(run, safe="") != run or run.startswith("."):
            raise PlanRefused(f"{run[:60]!r} cannot be the name of a run")

    def _accepted(self, run: str) -> tuple[DevicePlan, str]:
        if run not in self._plans:
            raise PlanRefused(f"{run[:100]!r} was not accepted by this device")
        plan, digest = self._plans[run]
        if self._clock.now() >= plan.expires:
            raise PlanRefused(f"{run} expired while it was carried out")
        return plan, digest

    def _ready(self, plan: DevicePlan, parameters: Floats) -> tuple[Model, list[Records]]:
        model = made(plan.model)
        if parameters.shape != (model.size,) or not (np.abs(parameters) <= PARAMETER_MAX).all():
            raise PlanRefused(f"{plan.run}: the model must be {model.size} numbers of at most {PARAMETER_MAX:g}")
        records = []
        for each in plan.blocks:
            x, y = self._usable(plan, each)
            records.append(Records(plan=each, x=x, y=y))
        return model, records

    def _usable(self, plan: DevicePlan, block: BlockPlan) -> tuple[Floats, Labels]:
        """The records of a block. Whatever is wrong with them, the sentence that leaves the device is this one."""
        try:
            if block.block not in self._records:
                with self._path(block.block).open("rb") as file, np.load(file, allow_pickle=False) as found:
                    self._records[block.block] = (found["x"], found["y"])
            return usable(plan.model, *self._records[block.block])
        except Exception:
            raise PlanRefused(
                f"{plan.run} is refused: block {block.block!r} holds no records of {plan.model.features} features"
            ) from None

    def _path(self, block: str) -> Path:
        return block_path(self.folder, block)

    def _replies(self, run: str) -> Replies:
        return Replies(self.folder / STATE / f"{run}{REPLIES}")


def file_of(block: str) -> str:
    """The file a block is kept in: the part of its name after the last slash.

    >>> file_of("phone-7/monday 8h")
    'monday%208h.npz'
    """
    return f"{quote(block.rpartition('/')[2], safe='')}.npz"


def block_path(folder: Path, block: str) -> Path:
    """Where a block is kept."""
    return folder / file_of(block)


def _check_history(state: Path, told: Enrolment) -> None:
    """What was spent at other orders, or for somebody else, or cannot be read, is not forgotten by enrolling anew."""
    record = SpendRecord(state / RECORD)
    if not (state / RECORD).exists():
        if (state / "agent.json").exists() or any(state.glob(f"*{REPLIES}")):
            raise LedgerDamaged(f"the spend record {state / RECORD} has gone", hint="asking the owner")
        return
    with record.held() as held:
        entries = held.entries
        answers = {each.run: held.answers(each.run) for each in entries}
    for each in entries:
        if each.orders != list(told.orders) or each.trusted != told.trusted:
            raise InputError("a device that has spent keeps its orders and whom it trusts", hint="a folder of its own")
    for path in state.glob(f"*{REPLIES}"):
        run = path.name.removesuffix(REPLIES)
        with Replies(path).held() as kept:
            if run not in answers and not kept.empty:
                raise LedgerDamaged(
                    f"the spend record {state / RECORD} does not tell of {run}", hint="asking the owner"
                )
            kept.check(run, answers.get(run, {}))


def write_block(folder: Path, block: str, x: Floats, y: Labels) -> None:
    """Put records into a device's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(block_path(folder, block), x=x, y=y)


def values_digest(values: Floats) -> str:
    """SHA-256 over the bytes of an answer."""
    return hashlib.sha256(np.ascontiguousarray(values, dtype="<f8").tobytes()).hexdigest()


def remove_expired(folder: Path, entries: Sequence[Spent], now: float) -> int:
    """Answers of runs that can no longer be asked for; how many files went."""
    gone = 0
    for each in entries:
        path = folder / STATE / f"{each.run}{REPLIES}"
        if now >= each.expires + KEPT_AFTER_EXPIRY_SECONDS and path.exists():
            os.unlink(path)
            gone += 1
    return gone
