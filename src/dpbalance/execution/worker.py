"""How is one run carried out? Round by round over its devices, in a process of its own that cannot outlive its limit.

python -m dpbalance.execution.worker FOLDER
"""

from __future__ import annotations

import math
import signal
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import numpy as np

from dpbalance.clock import RealClock, stopwatch
from dpbalance.errors import DPBalanceError, EngineError
from dpbalance.execution.form import parsed
from dpbalance.execution.link import FAILED, Link, linked
from dpbalance.execution.models import PARAMETER_MAX, Floats, accuracy, losses, made, usable
from dpbalance.execution.plan import RunPlan
from dpbalance.execution.replies import Receipt, Reply
from dpbalance.execution.runs import ORDER, Dropped, Order, Result, read_plan, signed_plans, write_model, write_result

AT_ONCE_MAX = 32
"""Devices that are asked at the same time where they are far away."""

Answer = TypeVar("Answer")


class Run:
    """One run over links to its devices; whoever fails is dropped, and the rest goes on while the quorum holds."""

    def __init__(self, plan: RunPlan, links: Mapping[str, Link], *, at_once: int = 1) -> None:
        self.plan, self._links, self._at_once = plan, dict(links), at_once
        self._signed = {each.device: each for each in signed_plans(plan)}
        self._envelope = {
            each.device: envelope for each, envelope in zip(self._signed.values(), plan.plans, strict=True)
        }
        self.model = made(plan.model)
        self.dropped: list[Dropped] = []
        self.receipts: tuple[Receipt, ...] = ()
        self.rounds = 0

    def train(self) -> Floats:
        """The model after the last round, or the mean of the last ones."""
        for device, answer in self._asked(lambda device: self._links[device].accept(self._envelope[device])):
            if isinstance(answer, BaseException):
                self._drop(device, answer)
        training = self.plan.training
        parameters, speed = self.model.initial(), np.zeros(self.model.size)
        kept = max(1, math.ceil(training.average * training.rounds))
        mean = np.zeros(self.model.size)
        for number in range(training.rounds):
            speed = training.momentum * speed + self._round(number, parameters)
            parameters = np.clip(parameters + speed, -PARAMETER_MAX, PARAMETER_MAX)
            self.rounds = number + 1
            if number >= training.rounds - kept:
                mean += parameters / kept
        return mean

    def noised_loss(self, parameters: Floats) -> float | None:
        """The loss the devices tell, weighted by their declared sizes."""
        if not self.plan.training.loss_share:
            return None
        told, weight = [], []

        def ask(device: str) -> Reply:
            return self._checked(device, self._links[device].loss(self.plan.run, parameters), self.rounds, 1)

        for device, reply in self._asked(ask):
            if isinstance(reply, BaseException):
                say(f"{device} tells no loss: {_told(reply)}")
                continue
            told.append(float(reply.values[0]))
            weight.append(sum(each.size for each in self._signed[device].blocks))
        return float(np.average(told, weights=weight)) if told else None

    def _round(self, number: int, parameters: Floats) -> Floats:
        total, weight, receipts = np.zeros(self.model.size), 0.0, []

        def ask(device: str) -> Reply:
            message = self._links[device].answer(self.plan.run, number, parameters)
            return self._checked(device, message, number, self.model.size)

        for device, reply in self._asked(ask):
            if isinstance(reply, BaseException):
                self._drop(device, reply)
                continue
            share = self._signed[device].records_expected
            total += share * reply.values
            weight += share
            receipts.append(reply.receipt)
        self._demand_quorum(len(receipts))
        self.receipts = tuple(receipts)
        return total / weight

    def _asked(self, ask: Callable[[str], Answer]) -> list[tuple[str, Answer | BaseException]]:
        """What each device says that is still there, or why it says nothing; always in the same order."""

        def one(device: str) -> Answer | BaseException:
            try:
                return ask(device)
            except Exception as problem:  # whatever a device does, it loses its own place and nobody else's
                return problem

        present = self._present()
        if self._at_once == 1:
            return [(device, one(device)) for device in present]
        with ThreadPoolExecutor(self._at_once) as pool:
            return list(zip(present, pool.map(one, present), strict=True))

    def _checked(self, device: str, message: bytes, number: int, size: int) -> Reply:
        reply = Reply.decoded(message)
        receipt = reply.receipt
        asked = (self.plan.run, self._envelope[device].digest, device, number, size)
        if (receipt.run, receipt.plan, receipt.device, receipt.round, len(reply.values)) != asked:
            raise EngineError(f"{device} answered to something else than it was asked")
        return reply

    def _present(self) -> list[str]:
        gone = {each.device for each in self.dropped}
        return [device for device in self._signed if device not in gone]

    def _drop(self, device: str, problem: BaseException) -> None:
        reason = _told(problem)
        say(f"{device} is lost to {self.plan.run}: {reason}")
        self.dropped.append(Dropped(device=device, reason=reason))

    def _demand_quorum(self, count: int) -> None:
        if count < self.plan.quorum:
            raise EngineError(f"{count} of {len(self._signed)} devices answered, {self.plan.quorum} are needed")


def carry_out(folder: Path) -> Result:
    """Carry out the run of this folder and write what came of it; the result is written last."""
    plan = read_plan(folder)
    order = parsed(Order, (folder / ORDER).read_bytes(), ORDER)
    if order.courier is None:
        links = {each.device: _linked(Path(each.folder)) for each in order.fleet}
        return _carried_out(
            folder, plan, order, Run(plan, {at: link for at, link in links.items() if link is not None})
        )
    from dpbalance.execution.flower_engine import couriers

    try:
        with couriers(order.courier, folder, plan.devices, order.seconds) as asked:
            return _carried_out(folder, plan, order, Run(plan, asked, at_once=min(AT_ONCE_MAX, len(asked))))
    except DPBalanceError as problem:
        say(f"{plan.run} cannot reach its devices: {problem}")
        unreached = Result(
            run=plan.run,
            ended="failed",
            reason=problem.message,
            rounds=0,
            receipts=(),
            dropped=(),
            model="",
            accuracy=None,
            loss=None,
            loss_kind="",
        )
        write_result(folder, unreached)
        return unreached


def _carried_out(folder: Path, plan: RunPlan, order: Order, run: Run) -> Result:
    begun = stopwatch()
    say(f"{plan.run} begins: {len(plan.devices)} devices, {plan.training.rounds} rounds")
    digest, score, loss, kind, ended, reason = "", None, None, "", "finished", ""
    try:
        parameters = run.train()
        score, loss = _judged(plan, parameters, order.public)
        kind = "" if loss is None else "public"
        if loss is None:
            loss = run.noised_loss(parameters)
            kind = "" if loss is None else "noised"
        digest = write_model(folder, plan, parameters)
    except Exception as problem:
        ended, reason = "failed", _told(problem)
    result = Result(
        run=plan.run,
        ended=ended,
        reason=reason,
        rounds=run.rounds,
        receipts=run.receipts,
        dropped=tuple(run.dropped),
        model=digest,
        accuracy=score,
        loss=loss,
        loss_kind=kind,
    )
    write_result(folder, result)
    say(f"{plan.run} {ended} after {run.rounds} rounds in {stopwatch() - begun:.3g} s {reason}".rstrip())
    return result


def _told(problem: BaseException) -> str:
    """What may stand in a log: our own sentences, and of anything else that it was."""
    return problem.message if isinstance(problem, DPBalanceError) else FAILED


def _linked(folder: Path) -> Link | None:
    try:
        return linked(folder)
    except Exception as problem:
        say(f"nobody answers in {folder}: {_told(problem)}")
        return None


def _judged(plan: RunPlan, parameters: Floats, public: str) -> tuple[float | None, float | None]:
    """Accuracy and loss on public records, which cost nothing."""
    if not public:
        return None, None
    with np.load(public, allow_pickle=False) as found:
        x, y = usable(plan.model, found["x"], found["y"])
    logits = made(plan.model).logits(parameters, x)
    return accuracy(logits, y), float(losses(logits, y).mean())


def say(sentence: str) -> None:
    """One line of the run's log."""
    print(f"{RealClock().now():.3f} {sentence}", flush=True)


def main(arguments: list[str]) -> int:
    """Carry out one run; the kernel ends this process when its time is over, whatever it is doing."""
    folder = Path(arguments[0])
    seconds = parsed(Order, (folder / ORDER).read_bytes(), ORDER).seconds
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        return 0 if carry_out(folder).ended == "finished" else 1
    except Exception as problem:
        say(f"{folder.name} is broken off: {_told(problem)}")  # a traceback could hold what a record holds
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
