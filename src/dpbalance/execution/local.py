"""The engine that needs no services: one process for each run, one folder for each run, devices on this machine.

A run is known from the moment its folder has its name, and alive while somebody holds the lock in it. The worker
inherits the lock, so it is held from before its first instruction until its end, however it ends, and a restarted
scheduler sees both without asking anybody.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dpbalance.clock import Clock, RealClock, secret_name
from dpbalance.errors import EngineError, LedgerDamaged
from dpbalance.execution.form import canonical, parsed, sync_folder, write_durably
from dpbalance.execution.plan import RunPlan
from dpbalance.execution.runner import Standing
from dpbalance.execution.runs import (
    LOCK,
    LOG,
    ORDER,
    PLAN,
    RESULT,
    STARTED,
    Courier,
    Order,
    Outcome,
    Seat,
    read_outcome,
    read_plan,
)

RUN_SECONDS = 600.0
"""A run that takes longer is ended by the kernel."""

AT_ONCE = 2
"""Runs at the same time."""

STOP_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """When a worker began, and under which number."""

    pid: int
    time: float


class LocalRunner:
    """Runs in processes of their own, over devices in folders."""

    def __init__(
        self,
        folder: Path,
        fleet: Mapping[str, Path],
        *,
        public: Path | None = None,
        seconds: float = RUN_SECONDS,
        at_once: int = AT_ONCE,
        courier: Courier | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.folder, self._fleet, self._public = folder, dict(fleet), public
        self._seconds, self._at_once, self._clock = seconds, at_once, clock or RealClock()
        self._courier = courier
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        folder.mkdir(parents=True, exist_ok=True)

    def free(self) -> int:
        self._reap()
        return max(0, self._at_once - len(self._children))

    def start(self, plan: RunPlan) -> None:
        """Make the folder under its name, all at once, and a worker for it; whoever comes second does nothing.

        Another plan under a name that is taken is refused: what its run did was not what this one would do.
        """
        final = self.folder / plan.run
        if final.exists():
            _demand_same(final, plan)
            return
        half = self.folder / f".{plan.run}.{secret_name(4)}"
        half.mkdir()
        write_durably(half / PLAN, canonical(plan))
        fleet = tuple(
            Seat(device=each, folder=str(self._fleet[each].resolve())) for each in plan.devices if each in self._fleet
        )
        public = "" if self._public is None else str(self._public.resolve())
        order = Order(fleet=fleet, seconds=self._seconds, public=public, courier=self._courier)
        write_durably(half / ORDER, canonical(order))
        lock = os.open(half / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            try:
                half.rename(final)
            except OSError:
                if final.exists():
                    _discard(half)
                    _demand_same(final, plan)
                    return
                raise
            sync_folder(self.folder)
            self._spawn(plan.run, final, lock)
        finally:
            os.close(lock)

    def standing(self, run: str) -> Standing:
        self._reap()
        folder = self.folder / run
        if not (folder / PLAN).exists():
            return Standing.UNKNOWN
        if held(folder / LOCK):
            return Standing.RUNNING
        child = self._children.pop(run, None)
        if child is not None:
            child.wait()  # it lets go of the lock with its last breath
        if not (folder / RESULT).exists() and (folder / STARTED).exists():
            begun = parsed(Started, (folder / STARTED).read_bytes(), STARTED).time
            if self._clock.now() >= begun + self._seconds:
                return Standing.OVERDUE
        return Standing.ENDED

    def outcome(self, run: str) -> Outcome:
        return read_outcome(self.folder / run)

    def stop(self, run: str) -> None:
        """End the worker, gently first; its number is used only while its lock is held, so nobody else is hit."""
        folder = self.folder / run
        if not held(folder / LOCK) or not (folder / STARTED).exists():
            return
        pid = parsed(Started, (folder / STARTED).read_bytes(), STARTED).pid
        child = self._children.get(run)
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.kill(pid, number)
            except ProcessLookupError:
                break
            for _ in range(int(STOP_SECONDS / 0.05)):
                if child is not None:
                    child.poll()
                if not held(folder / LOCK):
                    break
                self._clock.sleep(0.05)
            if not held(folder / LOCK):
                break
        self._reap()

    def _spawn(self, run: str, folder: Path, lock: int) -> None:
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "dpbalance.execution.worker", str(folder)]
        try:
            with (folder / LOG).open("ab") as log:
                child = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[lock],
                    env=environment,
                    start_new_session=True,  # Ctrl-C at the scheduler ends no training that is paid for
                )
        except OSError as problem:
            raise EngineError(f"{run} cannot be started: {problem.strerror or problem}") from None
        self._children[run] = child
        write_durably(folder / STARTED, canonical(Started(pid=child.pid, time=self._clock.now())))

    def _reap(self) -> None:
        for run, child in list(self._children.items()):
            if child.poll() is not None:
                del self._children[run]


def held(lock: Path) -> bool:
    """Does anybody hold this lock?"""
    try:
        handle = os.open(lock, os.O_RDWR)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(handle)
    return False


def _demand_same(folder: Path, plan: RunPlan) -> None:
    if read_plan(folder).digest != plan.digest:
        raise LedgerDamaged(
            f"{folder} is of another plan than the one of {plan.run} that was handed over",
            hint="a folder of runs for each ledger",
        )


def _discard(folder: Path) -> None:
    for each in folder.iterdir():
        each.unlink()
    folder.rmdir()
