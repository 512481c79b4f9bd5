"""How is one analyst's share packed with its pipelines? Step 2, exactly: first how many, then how much they are worth.

The default is our own branch and bound; when it has looked at `nodes_max` nodes the question goes to HiGHS in two
stages. Rows may be many: only those that a trial answer would overfill are ever solved with.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbalance.errors import OptionError, SolverError
from dpbalance.scheduler import kernel_packing as kernels

Floats = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

NODES_MAX = 20_000_000
NODES_MIN, NODES_TOGETHER = 1_000_000, 120_000_000
"""Where many analysts are packed in one round they share so many nodes, and each has some: seconds, whatever is asked.
Nodes and not seconds, so that every machine gives the same answer."""

HIGHS_ENTRIES_MAX = 2_500
"""Where the rows have more entries than this, HiGHS has not been seen to improve what the branch and bound found."""

HIGHS_NODES_MAX = 2_000
"""Nodes for each stage of HiGHS when the branch and bound gave up; after that the best answer so far is returned,
unproven. Nodes and not seconds, so that every machine gives the same answer."""

ROWS_AT_ONCE = 64
"""Up to this many rows all are solved with from the start."""

ROWS_MORE = 8
"""So many of the rows that an answer overfills are added at once."""

PASSES_MAX = 40
NODES_LEAST = 20_000
"""Each pass over the rows takes half the nodes of the one before, but no fewer than these."""

GRID_BITS = 60
"""Rows of doubles are put on a grid of their own, this many bits below the budget: exact for all but the smallest."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Multiples x, who is served, what that is worth, and whether nothing better exists for certain."""

    x: Floats
    served: npt.NDArray[np.int64]
    value: float
    proven: bool


def solve(gamma: Any, left: Any, value: Any, upper: Any | None = None) -> Packing:
    """Pack pipelines (columns of gamma, K x n) into `left` (K): x_j = 0 or 1 <= x_j <= upper_j.

    The rows hold exactly, in rational arithmetic on the doubles given.

    >>> p = solve([[0.4, 0.3], [0.3, 0.3]], [0.5, 0.4286], [0.4, 0.3])
    >>> p.served.tolist(), p.x.round(12).tolist()
    ([0], [1.25, 0.0])
    """
    table = np.asarray(gamma.toarray() if hasattr(gamma, "toarray") else gamma, dtype=np.float64)
    worth = np.array(value, dtype=np.float64)
    budget = np.array(left, dtype=np.float64)
    if table.ndim != 2 or worth.shape != (table.shape[1],) or budget.shape != (table.shape[0],):
        raise OptionError(f"gamma {table.shape}, left {budget.shape} and value {worth.shape} do not belong together")
    cap = np.full(len(worth), np.inf) if upper is None else np.array(upper, dtype=np.float64)
    if cap.shape != worth.shape:
        raise OptionError(f"upper must have {len(worth)} entries, not shape {cap.shape}")
    for name, array in (("gamma", table), ("left", budget), ("value", worth)):
        if not np.all((array >= 0) & (array < np.inf)):
            raise OptionError(f"{name} must be finite and not negative")
    demand, whole = _on_grid(table, budget)
    x, proven = solve_whole(demand, whole, worth, cap)
    x = _rounded_down(demand, whole, x)
    return Packing(x=x, served=np.flatnonzero(x), value=float(worth @ x), proven=proven)


def solve_whole(
    demand: Whole, budget: Whole, value: Floats, cap: Floats, nodes_max: int = NODES_MAX
) -> tuple[Floats, bool]:
    """Multiples for whole-number rows and whether they are proven; sums of least demands hold exactly."""
    fits = np.all(demand <= budget[:, None], axis=0) & (cap >= 1.0)
    members = np.flatnonzero(fits)
    x = np.zeros(len(value))
    if not len(members):
        return x, True
    demand = np.ascontiguousarray(demand[:, members])
    value, cap = value[members], cap[members]
    asked = np.flatnonzero(demand.any(axis=1))
    if len(asked) <= ROWS_AT_ONCE:
        x[members], proven = _pack(demand[asked], budget[asked], value, cap, nodes_max)
        return x, proven
    rows = _different_rows(demand, budget, asked)
    work = rows if len(rows) <= ROWS_AT_ONCE else _tightest(demand, budget, rows)
    for at in range(PASSES_MAX):
        answer, proven = _pack(demand[work], budget[work], value, cap, max(nodes_max >> (2 + at), NODES_LEAST))
        over = _overfull(demand, budget, rows, answer)
        if not len(over):
            x[members] = answer
            return x, proven
        work = rows if at >= PASSES_MAX - 2 else np.append(work, over)
    raise SolverError("a packing over all of its rows overfilled one of them")


def _pack(demand: Whole, budget: Whole, value: Floats, cap: Floats, nodes_max: int) -> tuple[Floats, bool]:
    x = np.zeros(len(value))
    if not len(demand):
        return np.where(np.isfinite(cap), cap, 1.0), True
    _, best, proven = kernels.pack(demand, budget, value, cap, nodes_max, x)
    if proven or demand.size > HIGHS_ENTRIES_MAX:
        return x, bool(proven)
    return _by_highs(demand, budget, value, cap, x, best)


def nodes_for(analysts: int) -> int:
    """How many nodes each of so many analysts may take.

    >>> nodes_for(1), nodes_for(12), nodes_for(5_000)
    (20000000, 10000000, 1000000)
    """
    return min(NODES_MAX, max(NODES_MIN, NODES_TOGETHER // max(analysts, 1)))


def _tightest(demand: Whole, budget: Whole, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The row that bounds each pipeline most on its own: with these no multiple is unbounded."""
    tightest: npt.NDArray[np.int64] = rows[np.unique(np.argmax(demand[rows] / budget[rows, None], axis=0))]
    return tightest


def _different_rows(demand: Whole, budget: Whole, asked: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Each row once, however many blocks look like it."""
    _, first = np.unique(np.column_stack([budget[asked], demand[asked]]), axis=0, return_index=True)
    return asked[np.sort(first)]


def _overfull(demand: Whole, budget: Whole, rows: npt.NDArray[np.int64], x: Floats) -> npt.NDArray[np.int64]:
    """The fullest rows above their budgets, for the least demands in whole numbers and for the multiples in doubles."""
    served = x > 0
    least = demand[:, served].sum(axis=1)
    extra = demand @ np.maximum(x - 1.0, 0.0)
    rest = budget - least
    broken = rows[(rest[rows] < 0) | (extra[rows] > rest[rows] * (1 + 1e-9) + 1e-9 * budget[rows])]
    fullest: npt.NDArray[np.int64] = broken[
        np.argsort(-((least + extra)[broken] / budget[broken]), kind="stable")[:ROWS_MORE]
    ]
    return fullest


def _on_grid(table: Floats, budget: Floats) -> tuple[Whole, Whole]:
    """Each row on its own binary grid: demands round up, the budget down, so what fits there fits."""
    exponent = np.frexp(budget)[1]
    scale = np.ldexp(1.0, np.where(budget > 0, GRID_BITS - exponent, 0))
    whole = np.where(budget > 0, np.floor(budget * scale), 0.0)
    lifted = np.ceil(np.minimum(table, 2 * budget[:, None]) * scale[:, None])
    lifted = np.where((table > 0) & (budget[:, None] <= 0), 1.0, lifted)
    return lifted.astype(np.int64), whole.astype(np.int64)


def _rounded_down(demand: Whole, budget: Whole, x: Floats) -> Floats:
    """Take from the multiples above 1 until every row holds exactly, summing errors of doubles included."""
    served = x > 0
    rest = (budget - demand[:, served].sum(axis=1)).astype(np.float64)
    extra = np.where(served, x - 1.0, 0.0)
    taken = demand @ extra
    spent = rest <= 0
    if spent.any():
        extra[(demand[spent] > 0).any(axis=0)] = 0.0
    over = max(1.0, float(np.max(taken[~spent] / rest[~spent], initial=0.0)))
    extra *= (1.0 - (len(x) + 16) * 2.0**-51) / over
    result = 1.0 + extra
    result = np.where(result - 1.0 > extra, np.nextafter(result, 0.0), result)
    return np.where(served, np.maximum(result, 1.0), 0.0)


def _by_highs(
    demand: Whole, budget: Whole, value: Floats, cap: Floats, fallback: Floats, known: float
) -> tuple[Floats, bool]:
    """Two stages of mixed-integer programming: the largest count, then the largest value with that count."""
    from dpbalance.scheduler.highs import maximise

    height, width = demand.shape
    scaled = demand / budget[:, None]
    wide = np.minimum(cap, np.min(np.divide(1.0, scaled, out=np.full_like(scaled, np.inf), where=scaled > 0), axis=0))
    # columns z_0..z_n-1 (served), e_0..e_n-1 (beyond the least); rows: budgets, e <= (wide - 1) z, sum z
    identity = np.eye(width)
    matrix = np.block([[scaled, scaled], [-np.diag(wide - 1.0), identity], [np.ones((1, width)), np.zeros((1, width))]])
    row, column = np.nonzero(matrix.T)[::-1]
    order = np.lexsort((row, column))
    row, column = row[order], column[order]
    start = np.searchsorted(column, np.arange(2 * width + 1))
    shared: dict[str, Any] = {
        "row_upper": np.concatenate([np.ones(height), np.zeros(width), [np.inf]]),
        "lower": np.zeros(2 * width),
        "upper": np.concatenate([np.ones(width), wide - 1.0]),
        "whole": np.arange(2 * width) < width,
        "nodes_max": HIGHS_NODES_MAX,
    }
    lower = np.full(height + width + 1, -np.inf)
    entries = matrix[row, column]
    cost = np.concatenate([np.ones(width), np.zeros(width)])
    first, _, status = maximise(cost, start, row, entries, row_lower=lower, **shared)
    if status != "optimal":
        return fallback, False
    lower = lower.copy()
    lower[-1] = float(np.round(np.sum(first[:width])))
    second, _, status = maximise(np.concatenate([value, value]), start, row, entries, row_lower=lower, **shared)
    chosen = np.round((second if status == "optimal" else first)[:width]) > 0
    if np.any(demand[:, chosen].sum(axis=1) > budget):
        return fallback, False
    x = np.zeros(width)
    reached = kernels.worth(demand, budget, scaled, value, cap, chosen, x, np.empty(height))
    if np.sum(chosen) < np.sum(fallback > 0) or (np.sum(chosen) == np.sum(fallback > 0) and reached < known):
        return fallback, False
    return x, status == "optimal"
