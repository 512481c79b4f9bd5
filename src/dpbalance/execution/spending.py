"""What has this device spent, by its own account? An append-only file, chained, on disk before any training.

A line that was not written to its end was never acted upon: the device trains only after the write has returned.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

from dpbalance.errors import LedgerDamaged, PlanRefused
from dpbalance.execution.form import append_durably, canonical
from dpbalance.execution.plan import DevicePlan

START = "0" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """One accepted plan."""

    run: str
    nonce: str
    plan: str
    """SHA-256 of the document that was accepted."""
    expires: float
    time: float
    blocks: dict[str, list[int]]


class SpendRecord:
    """The file, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @contextmanager
    def held(self) -> Iterator[Held]:
        """Read and add while nobody else can. A record that has gone is not begun anew: what it told is spent."""
        try:
            file = open(self._path, "r+b", buffering=0)  # noqa: SIM115
        except OSError as problem:
            raise LedgerDamaged(
                f"the spend record {self._path} cannot be opened: {problem.strerror}", hint="asking the owner"
            ) from None
        with file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield Held(file)

    def entries(self) -> list[Spent]:
        """Everything that was accepted, in order."""
        with self.held() as held:
            return held.entries


class Held:
    """The record under its lock."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        file.seek(0)
        content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        self._end, self._last, self.entries = len(whole), START, list[Spent]()
        for at, line in enumerate(whole.splitlines(), start=1):
            try:
                told = json.loads(line)
                last = told.pop("hash")
                intact = told.pop("prev") == self._last and _hash(self._last, told) == last
                self.entries.append(Spent(**told))
            except (ValueError, KeyError, TypeError, AttributeError):
                intact = False
            if not intact:
                raise LedgerDamaged(f"line {at} of {file.name} is not what this device wrote", hint="asking the owner")
            self._last = last

    def totals(self) -> dict[str, list[int]]:
        """Whole units spent of each block, at each order."""
        total: dict[str, list[int]] = {}
        for each in self.entries:
            for block, units in each.blocks.items():
                before = total.get(block, [0] * len(units))
                total[block] = [a + b for a, b in zip(before, units, strict=True)]
        return total

    def known(self, plan: DevicePlan, digest: str) -> bool:
        """Was exactly this plan accepted before? Another plan under the same name or nonce is refused."""
        for each in self.entries:
            if each.run == plan.run or each.nonce == plan.nonce:
                if each.plan == digest:
                    return True
                raise PlanRefused(f"{plan.run} was planned otherwise before; this device carries a run out once")
        return False

    def add(self, spent: Spent) -> None:
        """Write one line and wait until it is on disk."""
        told = {name: getattr(spent, name) for name in Spent.__slots__}
        now = _hash(self._last, told)
        line = canonical({**told, "prev": self._last, "hash": now}) + b"\n"
        try:
            append_durably(self._file.fileno(), self._end, line)
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise PlanRefused(f"{spent.run}: this device cannot record what it would spend: {reason}") from None
        self._last, self._end = now, self._end + len(line)
        self.entries.append(spent)


def _hash(prev: str, told: dict[str, object]) -> str:
    return hashlib.sha256(prev.encode() + canonical(told)).hexdigest()
