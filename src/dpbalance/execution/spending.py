"""What has this device spent, by its own account? An append-only file, chained, on disk before any training.

Two kinds of lines: a plan that was accepted, and a round that was answered. Each carries the hash of all before it, and
the last one ends with a newline: a record that was shortened by a byte is refused, like one that was edited.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
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
    trusted: str
    """Public key of the platform that signed it."""
    orders: list[float]
    adjacency: str
    privacy_unit: str
    """What the units below mean."""
    blocks: dict[str, list[int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """One answer, on disk in full, that may have been sent."""

    run: str
    answered: int
    """Number of its round."""
    digest: str
    """SHA-256 of the whole answer."""


@dataclass(slots=True)
class Read:
    """What was read of the file and found whole, so that it need not be judged again."""

    content: bytearray = field(default_factory=bytearray)
    last: str = START
    lines: int = 0
    entries: list[Spent] = field(default_factory=list)
    answers: dict[str, dict[int, str]] = field(default_factory=dict)


class SpendRecord:
    """The file, held by one process at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = Read()

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
            yield Held(file, self._read)

    def entries(self) -> list[Spent]:
        """Everything that was accepted, in order."""
        with self.held() as held:
            return list(held.entries)


class Held:
    """The record under its lock."""

    def __init__(self, file: FileIO, read: Read) -> None:
        self._file, self._read = file, read
        file.seek(0)
        content = file.read()
        if content[: len(read.content)] != read.content:
            raise LedgerDamaged(f"{file.name} is not what it was a moment ago", hint="asking the owner")
        if content and not content.endswith(b"\n"):
            raise LedgerDamaged(f"the last line of {file.name} has no end", hint="asking the owner")
        for line in content[len(read.content) :].splitlines(keepends=True):
            self._judge(line)

    @property
    def entries(self) -> list[Spent]:
        """Everything that was accepted, in order."""
        return self._read.entries

    def answers(self, run: str) -> dict[int, str]:
        """The rounds of this run that were answered, with the digests of the answers."""
        return dict(self._read.answers.get(run, {}))

    def _judge(self, line: bytes) -> None:
        read = self._read
        try:
            told = json.loads(line)
            last = told.pop("hash")
            if told.pop("prev") != read.last or _hash(read.last, told) != last:
                raise ValueError("another chain")
            entry = Answered(**told) if "answered" in told else Spent(**told)
        except (ValueError, KeyError, TypeError, AttributeError):
            where = f"line {read.lines + 1} of {self._file.name}"
            raise LedgerDamaged(f"{where} is not what this device wrote", hint="asking the owner") from None
        self._take(entry, line, last)

    def _take(self, entry: Spent | Answered, line: bytes, last: str) -> None:
        read = self._read
        if isinstance(entry, Spent):
            read.entries.append(entry)
        else:
            read.answers.setdefault(entry.run, {})[entry.answered] = entry.digest
        read.content += line
        read.last, read.lines = last, read.lines + 1

    def known(self, plan: DevicePlan, digest: str) -> bool:
        """Was exactly this plan accepted before? Another plan under the same name or nonce is refused."""
        for each in self.entries:
            if each.run == plan.run or each.nonce == plan.nonce:
                if each.plan == digest:
                    return True
                raise PlanRefused(f"{plan.run} was planned otherwise before; this device carries a run out once")
        return False

    def add(self, entry: Spent | Answered) -> None:
        """Write one line and wait until it is on disk."""
        told = {name: getattr(entry, name) for name in type(entry).__slots__}
        now = _hash(self._read.last, told)
        line = canonical({**told, "prev": self._read.last, "hash": now}) + b"\n"
        try:
            append_durably(self._file.fileno(), len(self._read.content), line)
        except OSError as problem:
            reason = problem.strerror or str(problem)
            raise PlanRefused(f"{entry.run}: this device cannot record what it would spend: {reason}") from None
        self._take(entry, line, now)


def _hash(prev: str, told: dict[str, object]) -> str:
    return hashlib.sha256(prev.encode() + canonical(told)).hexdigest()
