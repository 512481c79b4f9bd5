"""What did this device answer? Every answer is on disk before it is sent, and is sent again as the same bytes."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from io import FileIO
from pathlib import Path

import numpy as np

from dpbalance.errors import FileFormatError, LedgerDamaged, PlanRefused
from dpbalance.execution.form import append_durably, canonical, parsed, sync_folder
from dpbalance.execution.models import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Receipt:
    """What a device says of an answer."""

    run: str
    plan: str
    """SHA-256 of the plan it was given for."""
    device: str
    round: int
    digest: str
    """SHA-256 of the numbers."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reply:
    """One answer: a receipt and numbers."""

    receipt: Receipt
    values: Floats

    def encoded(self) -> bytes:
        return canonical(self.receipt) + b"\n" + np.ascontiguousarray(self.values, dtype="<f8").tobytes()

    @staticmethod
    def decoded(message: bytes) -> Reply:
        """The answer in these bytes, if its numbers are those of its receipt and all of them are finite."""
        head, _, body = message.partition(b"\n")
        receipt = parsed(Receipt, head, "receipt")
        if hashlib.sha256(body).hexdigest() != receipt.digest or len(body) % 8:
            raise FileFormatError(f"the answer of {receipt.device!r} is not the one of its receipt")
        values = np.frombuffer(body, dtype="<f8").astype(np.float64)
        if not len(values) or not np.isfinite(values).all():
            raise FileFormatError(f"the answer of {receipt.device!r} holds no finite numbers")
        return Reply(receipt=receipt, values=values)


def reply_digest(reply: bytes) -> str:
    """SHA-256 over a whole answer, as the record keeps it."""
    return hashlib.sha256(reply).hexdigest()


class Replies:
    """The answers of one device for one run, one after the other in one file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def begin(self) -> None:
        """Make the file, so that its name is on disk before the first answer is."""
        if self._path.exists() and self._path.stat().st_size:
            raise PlanRefused(
                f"{self._path.stem} was answered, and the record has lost it; this device answers no more"
            )
        self._path.touch()
        sync_folder(self._path.parent)

    def demand(self) -> None:
        """Refuse to go on with a run whose answers have gone: what was sent could only be noised afresh."""
        if not self._path.exists():
            raise PlanRefused(f"what this device answered for {self._path.stem} has gone; it answers no more")

    @contextmanager
    def held(self) -> Iterator[HeldReplies]:
        """Answer while nobody else can."""
        self.demand()
        with self._path.open("r+b", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield HeldReplies(file)


class HeldReplies:
    """The file under its lock. A part that was not written to its end was never sent."""

    def __init__(self, file: FileIO) -> None:
        self._file = file
        file.seek(0)
        content = file.read()
        self._end, self._places = 0, dict[int, slice]()
        while True:
            line = content.find(b"\n", self._end)
            if line < 0:
                break
            try:
                number, length = map(int, content[self._end : line].split())
            except ValueError:
                raise LedgerDamaged(f"{file.name} is not what this device wrote", hint="asking the owner") from None
            if line + 1 + length > len(content):
                break
            self._places[number] = slice(line + 1, line + 1 + length)
            self._end = line + 1 + length
        self._content = content

    @property
    def empty(self) -> bool:
        """Was no answer ever begun?"""
        return not self._content

    def check(self, run: str, answered: Mapping[int, str]) -> None:
        """Refuse to go on unless each answer that may have been sent is here, byte by byte."""
        for number, digest in answered.items():
            place = self._places.get(number)
            if place is None or reply_digest(self._content[place]) != digest:
                raise PlanRefused(f"what this device answered for {run} has gone; it answers no more")

    def get(self, number: int) -> bytes | None:
        """What was answered to this round, if anything was."""
        place = self._places.get(number)
        return None if place is None else self._content[place]

    def keep(self, number: int, reply: bytes) -> bytes:
        """Write an answer and wait until it is on disk; then it may be sent."""
        try:
            append_durably(self._file.fileno(), self._end, b"%d %d\n" % (number, len(reply)) + reply)
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise PlanRefused(f"this device cannot keep its answer, so it sends none: {reason}") from None
        return reply
