"""How is a question about multiples of 0 or at least 1 put to a solver? Rows and columns by name, solved by HiGHS.

A multiple is written x = z + (u - 1) f with z 0 or 1 and 0 <= f <= z, so that what a very large multiple of a very
small demand takes is no coefficient below what the solver takes for 0. Whatever it says is only a suggestion: who asks
computes utilities and budgets again from the multiples.
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from dpbalance.clock import stopwatch
from dpbalance.market.round import Floats
from dpbalance.scheduler.highs import maximise

NODES_MAX = 500
"""Branch and bound ends here; an answer that would have needed more is `not-found`."""

SECONDS_MAX = 5.0
"""And here, where every node takes long."""

CERTAIN = 1e-7
"""A row that is overfilled by more than this, relatively, is no answer."""


class Patience:
    """How long somebody is ready to wait for all the answers together."""

    def __init__(self, seconds: float) -> None:
        self._until = stopwatch() + seconds

    @property
    def left(self) -> float:
        return self._until - stopwatch()


class Program:
    """A mixed-integer program that grows by rows; its first 2n columns are z and f of n multiples."""

    def __init__(self, upper: Floats) -> None:
        self.count = len(upper)
        self.more = np.maximum(upper - 1.0, 0.0)
        self.lower = [0.0] * (2 * self.count)
        self.upper = [1.0] * (2 * self.count)
        self.whole = [True] * self.count + [False] * self.count
        self.entries: list[tuple[int, int, float]] = []
        self.row_lower: list[float] = []
        self.row_upper: list[float] = []
        for at in range(self.count):
            self.row({self.count + at: 1.0, at: -1.0}, most=0.0)

    def column(self, *, most: float, whole: bool) -> int:
        """One more column from 0 up."""
        self.lower.append(0.0)
        self.upper.append(most)
        self.whole.append(whole)
        return len(self.upper) - 1

    def row(self, terms: dict[int, float], *, least: float = -np.inf, most: float = np.inf) -> None:
        """One more row over columns."""
        at = len(self.row_upper)
        self.entries += [(at, column, value) for column, value in terms.items() if value]
        self.row_lower.append(least)
        self.row_upper.append(most)

    def of_multiples(self, factors: Floats) -> dict[int, float]:
        """sum factor_j x_j as terms of a row."""
        asked = np.flatnonzero(factors).tolist()
        served = {at: float(factors[at]) for at in asked}
        return served | {at + self.count: float(factors[at] * self.more[at]) for at in asked}

    def best(self, gain: dict[int, float], patience: Patience) -> tuple[Floats, float, bool] | None:
        """The multiples that gain most, what they gain, and whether that is proven; None without any answer."""
        if patience.left <= 0:
            return None
        cost = np.zeros(len(self.upper))
        cost[list(gain)] = list(gain.values())
        row, column, value = (np.array(each) for each in zip(*self.entries, strict=True))
        matrix = sparse.csc_array((value, (row, column)), shape=(len(self.row_upper), len(cost)))
        answer, _, status = maximise(
            cost,
            matrix.indptr,
            matrix.indices,
            matrix.data,
            row_lower=np.array(self.row_lower),
            row_upper=np.array(self.row_upper),
            lower=np.array(self.lower),
            upper=np.array(self.upper),
            whole=np.array(self.whole),
            nodes_max=NODES_MAX,
            seconds_max=max(min(patience.left, SECONDS_MAX), 0.0),
        )
        if status == "infeasible" or len(answer) != len(cost):
            return None
        served = answer[: self.count] > 0.5
        x = np.where(served, 1.0 + self.more * np.clip(answer[self.count : 2 * self.count], 0.0, 1.0), 0.0)
        return x, float(cost @ answer), status == "optimal"
