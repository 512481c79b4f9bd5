"""What came out of a run? Rows that fit into tables: by round, by analyst and round, by pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from statistics import fmean
from typing import Literal

import numpy as np
import numpy.typing as npt

from dpbalance.allocation import Metrics
from dpbalance.amounts import Units
from dpbalance.market.round import Floats, Indices
from dpbalance.simulate.trace import Trace


class Fate(IntEnum):
    """What has become of a pipeline."""

    ABSENT = 0
    WAITING = 1
    GRANTED = 2
    DENIED = 3
    """A block that is open in full could never serve it."""
    TIMED_OUT = 4

    @property
    def word(self) -> str:
        return self.name.lower().replace("_", "-")


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """One round; there is none while nobody waits."""

    time: float
    asked: int
    """Pipelines in the round."""
    granted: int
    timed_out: int
    """Pipelines whose time ran out since the round before."""
    denied: int
    """Pipelines that left since the round before because a block can never serve them."""
    metrics: Metrics | None
    seconds: float
    """Of deciding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnalystRecord:
    """One analyst in one round in which it had pipelines, or lost some to the clock."""

    time: float
    analyst: str
    asked: int
    granted: int
    waiting: int
    """Pipelines that stay for the next round."""
    timed_out: int
    """Pipelines whose time ran out since the round before."""
    offered: float | None
    """Dominant share offered by step 1; None without one."""
    share: float
    """Dominant share granted."""
    weight: float
    utility: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineRecord:
    """One pipeline that came before the end."""

    pipeline: str
    analyst: str
    arrived: float
    fate: Literal["granted", "denied", "timed-out", "waiting"]
    granted_at: float | None
    multiple: float
    """0 unless it was granted."""
    waited: float
    """Seconds until it was granted or left, or until the end."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Run:
    """A trace under one scheduler, from first to last round."""

    trace: Trace
    scheduler: str
    seconds: float
    """Of the whole run: deciding, checking, measuring."""
    ended: float
    """The last moment."""
    rounds: tuple[RoundRecord, ...]
    analysts: tuple[AnalystRecord, ...]
    """Empty unless they were asked for."""
    sequence: Indices
    """Index of each granted pipeline, in the order of granting."""
    fate: npt.NDArray[np.int8]
    left_at: Floats
    """When each pipeline was granted or left; NaN for the others."""
    multiple: Floats
    spent: Units
    """Of each block and order at the end; an order far beyond its capacity is not counted on."""
    unlocked: Units

    @property
    def granted(self) -> tuple[str, ...]:
        """Names of the granted pipelines, in the order of granting."""
        return tuple(self.trace.market.pipelines[at] for at in self.sequence)

    @property
    def metrics(self) -> Metrics | None:
        """Sums over the rounds, and means of jain and utility_min.

        Rounds in which a measure says nothing do not count for it; None when rounds were not measured.
        """
        rounds = [each.metrics for each in self.rounds if each.metrics is not None]
        if len(rounds) < len(self.rounds):
            return None
        fairness = [each.fairness for each in rounds if each.fairness is not None]
        jain = [each.jain for each in rounds if each.jain is not None]
        worst = [each.utility_min for each in rounds if each.utility_min is not None]
        return Metrics(
            efficiency=sum(each.efficiency for each in rounds),
            fairness=sum(fairness) if fairness else None,
            jain=fmean(jain) if jain else None,
            utility_min=fmean(worst) if worst else None,
            shut_out=sum(each.shut_out for each in rounds),
            pipelines=sum(each.pipelines for each in rounds),
        )

    @cached_property
    def pipelines(self) -> tuple[PipelineRecord, ...]:
        """What has become of each pipeline."""
        market = self.trace.market
        return tuple(
            PipelineRecord(
                pipeline=market.pipelines[at],
                analyst=market.analysts[int(market.owner[at])],
                arrived=float(market.submitted[at]),
                fate=Fate(int(self.fate[at])).word,  # type: ignore[arg-type]
                granted_at=float(self.left_at[at]) if self.fate[at] == Fate.GRANTED else None,
                multiple=float(self.multiple[at]),
                waited=float((self.ended if np.isnan(self.left_at[at]) else self.left_at[at]) - market.submitted[at]),
            )
            for at in np.flatnonzero(self.fate != Fate.ABSENT)
        )
