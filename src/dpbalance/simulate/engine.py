"""What would a scheduler have done? A trace, round after round, on a fake clock and over the real rooms.

At equal times arrivals come first, then the round, then what unlocks with time. Before a round whoever has waited too
long leaves; with a timeout so does whoever a fully open block can never serve. Every decision is checked in whole
numbers before it is charged, and a charge never comes back.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict

import numpy as np

from dpbalance.allocation import Allocation
from dpbalance.allocation.valuation import Flags
from dpbalance.amounts import Units
from dpbalance.clock import FakeClock, stopwatch
from dpbalance.errors import DPBalanceError
from dpbalance.market import Round
from dpbalance.market.round import Indices
from dpbalance.market.unlocking import ByArrivals, ByTime, portion
from dpbalance.scheduler import Scheduler
from dpbalance.simulate.record import AnalystRecord, Fate, RoundRecord, Run
from dpbalance.simulate.trace import Trace

_Left = dict[Fate, Indices]

OVERDRAWN = 2**60
"""An order that is charged this much serves nobody any more; it is charged no further, so that 64 bits never wrap."""


def run(
    trace: Trace, scheduler: Scheduler, *, metrics: bool = True, analysts: bool = False, check: bool = False
) -> Run:
    """Replay a trace under one scheduler.

    `metrics` measures every round; `analysts` also keeps what each analyst got in it; `check` proves every decision
    in full (step 1's optimality, too) and not only that the blocks can pay.
    """
    begin = stopwatch()
    market, clock = _Market(trace), FakeClock()
    rounds: list[RoundRecord] = []
    rows: list[AnalystRecord] = []
    sequence: list[Indices] = []
    for moment in trace.moments():
        clock.until(moment)
        round_ = market.round(clock.now())
        if not len(round_.pipelines):
            continue
        before = stopwatch()
        allocation = scheduler.decide(round_)
        seconds = stopwatch() - before
        if not isinstance(allocation, Allocation) or allocation.round is not round_:
            raise DPBalanceError(f"a {type(allocation).__name__} came back that is no decision on this round")
        if check:
            allocation.check()
        else:
            allocation.check_budget()
        sequence.append(market.charge(allocation, clock.now()))
        left = market.closed()
        rounds.append(_round_record(allocation, seconds, left, metrics))
        if analysts:
            rows += _analyst_records(allocation, left, trace.market)
    clock.until(trace.last)
    market.round(clock.now())  # whoever has come, or has to leave, by the end
    return Run(
        trace=trace,
        scheduler=getattr(scheduler, "name", type(scheduler).__name__),
        seconds=stopwatch() - begin,
        ended=clock.now(),
        rounds=tuple(rounds),
        analysts=tuple(rows),
        sequence=np.concatenate([*sequence, np.zeros(0, dtype=np.int64)]),
        fate=market.fate,
        left_at=market.left_at,
        multiple=market.multiple,
        spent=market.spent,
        unlocked=market.unlocked,
    )


class _Market:
    """What is so now: budgets, and who waits."""

    def __init__(self, trace: Trace) -> None:
        self.trace, everything = trace, trace.market
        pipelines = len(everything.pipelines)
        self.fate = np.full(pipelines, Fate.ABSENT, dtype=np.int8)
        self.left_at = np.full(pipelines, np.nan)
        self.multiple = np.zeros(pipelines)
        self.queue: Indices = np.zeros(0, dtype=np.int64)
        self.left: list[tuple[Fate, Indices]] = []
        self.by_arrival = np.argsort(everything.submitted, kind="stable")
        self.arrivals = everything.submitted[self.by_arrival]
        self.arrived = 0
        self.opened = np.zeros(len(everything.blocks), dtype=np.int64)
        self.shown = np.full(len(everything.blocks), -1)  # the count of opened parts that `unlocked` stands for
        self.spent = np.zeros_like(everything.capacity)
        self.unlocked: Units = np.zeros_like(everything.capacity)
        self.due = trace.unlock.first(trace.block_arrived) if isinstance(trace.unlock, ByTime) else trace.block_arrived

    def _arrive(self, now: float) -> None:
        """Let in all who have come by now."""
        until = int(np.searchsorted(self.arrivals, now, side="right"))
        if until == self.arrived:
            return
        new = self.by_arrival[self.arrived : until]
        self.arrived = until
        self.fate[new] = Fate.WAITING
        self.queue = np.flatnonzero(self.fate == Fate.WAITING)
        unlock = self.trace.unlock
        if isinstance(unlock, ByArrivals):
            market = self.trace.market
            start, entries = market.demands(new)
            block = market.block[entries]
            came = np.repeat(market.submitted[new], np.diff(start))
            opening = block[unlock.opens(came - self.trace.block_arrived[block])]
            self.opened = np.minimum(self.opened + np.bincount(opening, minlength=len(self.opened)), unlock.parts)

    def _open(self, now: float) -> None:
        """Open what is due before now."""
        unlock, capacity = self.trace.unlock, self.trace.market.capacity
        if isinstance(unlock, ByTime):
            self.due, self.opened = unlock.passed(self.due, self.opened, now)
        elif not isinstance(unlock, ByArrivals):
            self.opened = (self.trace.block_arrived <= now).astype(np.int64)
        if not np.array_equal(self.shown, self.opened):
            self.shown, self.unlocked = self.opened, portion(capacity, self.opened, unlock.parts)

    def round(self, now: float) -> Round:
        """What a scheduler sees now: with all who have come by now, without those who leave before."""
        self._arrive(now)
        self._open(now)
        trace, queue = self.trace, self.queue
        late = trace.deadline[queue] <= now
        if trace.timeout:
            late |= now - trace.market.submitted[queue] >= trace.timeout
        self._leave(queue[late], Fate.TIMED_OUT, now)
        round_ = self._subset(now)
        if trace.timeout is not None:
            lost = self._lost(round_, now)
            if lost.any():
                self._leave(self.queue[lost], Fate.DENIED, now)
                round_ = self._subset(now)
        return round_

    def charge(self, allocation: Allocation, now: float) -> Indices:
        """Write down a decision that has been checked; the index of each pipeline it serves, in order."""
        taken = np.minimum(allocation.taken, OVERDRAWN).astype(np.int64)
        self.spent = np.minimum(self.spent + taken, OVERDRAWN)
        order = np.array(allocation.served, dtype=np.int64)
        served = self.queue[order]
        self.multiple[served] = allocation.multiple[order]
        self._leave(served, Fate.GRANTED, now)
        if self.trace.timeout == 0:
            self._leave(self.queue, Fate.TIMED_OUT, now)
        return served

    def closed(self) -> _Left:
        """Who has left, and how, since this was last asked."""
        left = {
            fate: np.concatenate([*(each for how, each in self.left if how == fate), np.zeros(0, dtype=np.int64)])
            for fate in (Fate.GRANTED, Fate.DENIED, Fate.TIMED_OUT)
        }
        self.left.clear()
        return left

    def _leave(self, pipelines: Indices, fate: Fate, now: float) -> None:
        if len(pipelines):
            self.left.append((fate, pipelines))
            self.fate[pipelines] = fate
            self.left_at[pipelines] = now
            self.queue = np.flatnonzero(self.fate == Fate.WAITING)

    def _subset(self, now: float) -> Round:
        return self.trace.market.subset(self.queue, now=now, spent=self.spent, unlocked=self.unlocked)

    def _lost(self, round_: Round, now: float) -> Flags:
        """Those with a block that will not open any further and has too little left at every order."""
        unlock = self.trace.unlock
        final = self.opened >= unlock.parts
        if isinstance(unlock, ByArrivals) and unlock.max_age is not None:
            final |= now - self.trace.block_arrived > unlock.max_age
        if not len(self.queue) or not final.any():
            return np.zeros(len(self.queue), dtype=bool)
        short = final[round_.block] & (round_.cost > round_.available[round_.block]).all(axis=1)
        lost: Flags = np.logical_or.reduceat(short, round_.start[:-1])
        return lost


def _round_record(allocation: Allocation, seconds: float, left: _Left, metrics: bool) -> RoundRecord:
    return RoundRecord(
        time=allocation.round.now,
        asked=len(allocation.round.pipelines),
        granted=len(allocation.served),
        timed_out=len(left[Fate.TIMED_OUT]),
        denied=len(left[Fate.DENIED]),
        metrics=allocation.metrics if metrics else None,
        seconds=seconds,
    )


def _analyst_records(allocation: Allocation, left: _Left, everything: Round) -> list[AnalystRecord]:
    """A row for each analyst with pipelines in the round, and for those who only lost some."""
    round_ = allocation.round
    count = len(round_.analysts)
    asked = np.bincount(round_.owner, minlength=count).tolist()
    granted = np.bincount(round_.owner[allocation.multiple > 0], minlength=count).tolist()
    late = Counter(everything.analysts[at] for at in everything.owner[left[Fate.TIMED_OUT]])
    rows = [
        AnalystRecord(
            time=round_.now,
            asked=asked[at],
            granted=granted[at],
            waiting=asked[at] - granted[at],
            timed_out=late.pop(each.analyst, 0),
            **asdict(each),
        )
        for at, each in enumerate(allocation.analysts)
    ]
    nothing = {"asked": 0, "granted": 0, "waiting": 0, "offered": None, "share": 0.0, "weight": 1.0, "utility": 0.0}
    return rows + [
        AnalystRecord(time=round_.now, analyst=name, timed_out=lost, **nothing)  # type: ignore[arg-type]
        for name, lost in late.items()
    ]
