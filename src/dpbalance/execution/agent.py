"""What does a device do with a plan? It checks it, records what it spends, and only then trains and answers.

Laws for future editors:
1. Nothing is trained before the spend is on disk.
2. An answer is on disk before it is sent; asked again, the device sends the same bytes, never fresh noise.
3. The device trusts one key, its own clock, its own record and its own accountant.
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
from dpbalance.errors import DPBalanceError, FileFormatError, InputError, NotInLedger, PlanRefused
from dpbalance.execution.form import canonical, parsed, write_durably
from dpbalance.execution.models import PARAMETER_MAX, Floats, Labels, Model, made, usable
from dpbalance.execution.plan import ADJACENCY, PRIVACY_UNIT, DevicePlan, check_spend
from dpbalance.execution.replies import Receipt, Replies, Reply
from dpbalance.execution.signature import Envelope, opened
from dpbalance.execution.spending import SpendRecord, Spent
from dpbalance.execution.training import Records, local_update, noised_loss

STATE = ".dpbalance"
"""Folder beside the blocks in which the agent keeps what it must not forget."""

RECORD = "spend.jsonl"

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
        (folder / STATE / RECORD).touch()  # its name is on disk when the next file's is
        write_durably(folder / STATE / "agent.json", canonical(told))
        return Agent(folder)

    @property
    def device(self) -> str:
        return self.enrolment.device

    def blocks(self) -> list[str]:
        """Names of the blocks in the folder."""
        return sorted(f"{self.device}/{unquote(each.stem)}" for each in self.folder.glob("*.npz"))

    def accept(self, envelope: Envelope) -> DevicePlan:
        """The plan, checked, with its spend on disk. Sent again it is accepted again and spends nothing more."""
        plan = self._checked(envelope)
        replies = self._replies(plan.run)
        with self.record.held() as held:
            if held.known(plan, envelope.digest):
                replies.demand()
            else:
                self._check_cap(plan, held.totals())
                replies.begin()
                spent = {each.block: list(each.grant) for each in plan.blocks}
                held.add(
                    Spent(
                        run=plan.run,
                        nonce=plan.nonce,
                        plan=envelope.digest,
                        expires=plan.expires,
                        time=self._clock.now(),
                        blocks=spent,
                    )
                )
                remove_expired(self.folder, held.entries, self._clock.now())
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
            total = held.totals()
        cap = self.enrolment.cap
        return {
            block: [most - gone for most, gone in zip(cap, total.get(block, [0] * len(cap)), strict=True)]
            for block in {*self.blocks(), *total}
        }

    def _once(self, plan: DevicePlan, digest: str, number: int, work: Callable[[], Floats]) -> bytes:
        with self._replies(plan.run).held() as held:
            stored = held.get(number)
            if stored is not None:
                return stored
            values = work()
            receipt = Receipt(run=plan.run, plan=digest, device=self.device, round=number, digest=values_digest(values))
            return held.keep(number, Reply(receipt=receipt, values=values).encoded())

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
            (now >= plan.expires, f"it expired {now - plan.expires:.3g} s ago"),
            (plan.issued > now + CLOCK_SKEW_SECONDS, f"it is from the future by {plan.issued - now:.3g} s"),
            (plan.expires > now + TIME_LEFT_MAX_SECONDS, "it could be used too long"),
            (plan.orders != self.enrolment.orders, f"it counts at orders {plan.orders}"),
            (plan.adjacency != ADJACENCY, f"it counts neighbours as {plan.adjacency!r}"),
            (plan.privacy_unit != PRIVACY_UNIT, f"it protects a {plan.privacy_unit!r}"),
            (not plan.blocks, "it names no block"),
            (len({each.block for each in plan.blocks}) != len(plan.blocks), "it names a block twice"),
        ):
            if wrong:
                raise PlanRefused(f"{plan.run} is refused: {why}")
        for each in plan.blocks:
            if not self._path(each.block).exists():
                raise PlanRefused(f"{plan.run} is refused: block {each.block!r} is not on this device")
        return plan

    def _check_cap(self, plan: DevicePlan, total: dict[str, list[int]]) -> None:
        """At one order at least a block must stay within the cap, as in the ledger."""
        for each in plan.blocks:
            before = total.get(each.block, [0] * len(each.grant))
            after = [a + b for a, b in zip(before, each.grant, strict=True)]
            if not any(spent <= most for spent, most in zip(after, self.enrolment.cap, strict=True)):
                raise PlanRefused(
                    f"{plan.run} is refused: block {each.block!r} would have spent {after} units, "
                    f"this device's cap is {list(self.enrolment.cap)}"
                )

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
            x, y = usable(plan.model, *self._load(each.block))
            records.append(Records(plan=each, x=x, y=y))
        return model, records

    def _load(self, block: str) -> tuple[Floats, Labels]:
        if block not in self._records:
            try:
                with np.load(self._path(block), allow_pickle=False) as found:
                    self._records[block] = (found["x"], found["y"])
            except (OSError, ValueError, KeyError) as problem:
                raise FileFormatError(f"block {block!r} cannot be read: {problem}") from None
        return self._records[block]

    def _path(self, block: str) -> Path:
        return block_path(self.folder, block)

    def _replies(self, run: str) -> Replies:
        return Replies(self.folder / STATE / f"{run}.replies")


def block_path(folder: Path, block: str) -> Path:
    """Where a block is kept: the part of its name after the last slash.

    >>> block_path(Path("phone-7"), "phone-7/monday 8h").name
    'monday%208h.npz'
    """
    return folder / f"{quote(block.rpartition('/')[2], safe='')}.npz"


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
        path = folder / STATE / f"{each.run}.replies"
        if now >= each.expires + KEPT_AFTER_EXPIRY_SECONDS and path.exists():
            os.unlink(path)
            gone += 1
    return gone
