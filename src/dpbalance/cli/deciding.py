"""What did this scheduler, or each of them, do with a round? One that fails says why and hides no other."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from math import inf
from threading import Timer
from types import NoneType
from typing import Any

from dpbalance.allocation import Allocation, Metrics
from dpbalance.clock import stopwatch
from dpbalance.errors import TABLE, DPBalanceError, OptionError
from dpbalance.market import Round, worked_example
from dpbalance.scheduler import Scheduler, options_from_text, options_of, scheduler, scheduler_names

PATIENCE_S = 2.0
"""Whoever waits longer than this is told what for."""

COMPARE_LIMIT_S = 10.0
"""What a scheduler with a time limit gets in a comparison, unless the caller gives one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """A checked decision and the seconds it took, or the failure in its place."""

    scheduler: str
    seconds: float
    allocation: Allocation | None = None
    failure: Exception | None = None

    @property
    def checked(self) -> Allocation:
        """The decision; raises the failure if there is none."""
        if self.allocation is None:
            raise self.failure or DPBalanceError(f"{self.scheduler} decided nothing")
        return self.allocation

    @property
    def reason(self) -> str | None:
        """The failure in one line."""
        return one_line(self.failure) if self.failure else None

    def row(self) -> dict[str, Any]:
        """A row of the comparison; numbers are null where nothing was decided."""
        measured = asdict(self.allocation.metrics) if self.allocation else {each.name: None for each in fields(Metrics)}
        return {
            "scheduler": self.scheduler,
            "status": "decided" if self.allocation else "failed",
            **measured,
            "seconds": self.seconds,
            "notes": list(self.allocation.notes) if self.allocation else [],
            "reason": self.reason,
        }


def texts(pairs: Sequence[str] | None, flag: str = "--option", **named: str | None) -> dict[str, str]:
    """Options as they were typed: `--option k=v` and the ones with a name of their own."""
    asked = {name: text for name, text in named.items() if text is not None}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not equals or not name.strip():
            raise OptionError(f"{flag} takes K=V, not {pair[:60]!r}")
        if asked.get(name.strip(), text) != text:
            raise OptionError(f"option {name.strip()!r} is given twice")
        asked[name.strip()] = text
    return asked


def decide(round_: Round, name: str, asked: Mapping[str, str]) -> Outcome:
    """One scheduler's checked decision, or its failure; options that cannot be are refused at once."""
    return _outcome(round_, name, scheduler(name, **options_from_text(name, asked)))


def decide_all(round_: Round, listed: str | None, asked: Mapping[str, str]) -> Iterator[Outcome]:
    """Each scheduler on the same round, as they finish; an option goes to those that have it."""
    names = scheduler_names() if listed is None else [each.strip() for each in listed.split(",")]
    ready = [(name, *_made(name, asked)) for name in names]
    for option in asked:
        if not any(option in taken for _, _, taken in ready):
            raise OptionError(f"none of {', '.join(names)} has an option {option!r}")
    for name, decider, _ in ready:
        if isinstance(decider, Exception):
            yield Outcome(scheduler=name, seconds=0.0, failure=decider)
        else:
            _outcome(worked_example(), name, decider)  # loads what it needs, so that `seconds` is the deciding alone
            yield _outcome(round_, name, decider)


def settings() -> list[dict[str, Any]]:
    """Every scheduler with its options, or why it cannot be used."""
    listed = []
    for name in scheduler_names():
        options: list[dict[str, Any]] = []
        reason = None
        try:
            for each in options_of(name):
                plain = isinstance(each.default, int | float | str | NoneType) and each.default != inf
                default = each.default if plain else str(each.default)
                options.append({"name": each.name, "default": default, "allowed": each.allowed, "meaning": each.help})
        except Exception as problem:  # one that another package brings and that cannot be loaded
            reason = one_line(problem)
        listed.append({"name": name, "options": options, "reason": reason})
    return listed


def one_line(problem: Exception) -> str:
    """Any error as one line that begins with a code."""
    text = str(problem)
    if not isinstance(problem, DPBalanceError):
        text = f"{TABLE['DPBalanceError'].code} {type(problem).__name__}: {text}"
    return " ".join(text.split())


def _made(name: str, asked: Mapping[str, str]) -> tuple[Scheduler | Exception, Set[str]]:
    """A scheduler with those of the options that it has; a broken one is an outcome, a bad name or value is not."""
    try:
        known = {each.name for each in options_of(name)}
        texts_ = {"time_limit": str(COMPARE_LIMIT_S), **asked}
        mine = options_from_text(name, {option: text for option, text in texts_.items() if option in known})
        return scheduler(name, **mine), known
    except Exception as problem:
        if isinstance(problem, OptionError) or name not in scheduler_names():
            raise
        return problem, frozenset()


def _outcome(round_: Round, name: str, decider: Scheduler) -> Outcome:
    begin = stopwatch()
    try:
        with patience(f"{name} is still deciding"):
            allocation = decider.decide(round_)
            seconds = stopwatch() - begin
            if type(allocation) is not Allocation or allocation.round is not round_:  # its check must be ours
                raise DPBalanceError(f"{name} returned a {type(allocation).__name__} that is no decision on this round")
            allocation.check()
        return Outcome(scheduler=name, seconds=seconds, allocation=allocation)
    except Exception as problem:  # a scheduler may come from anywhere
        return Outcome(scheduler=name, seconds=stopwatch() - begin, failure=problem)


@contextmanager
def patience(sentence: str) -> Iterator[None]:
    """Tell whoever waits what is going on, on stderr, once it takes long."""
    timer = Timer(PATIENCE_S, lambda: print(f"dpbalance: {sentence} ...", file=sys.stderr))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
