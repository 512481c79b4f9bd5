"""How efficient could anyone be in this round? A number that no allocation exceeds, from a linear program and its dual.

Dominant efficiency is sum_i a_i max_k (what i gets of block k / capacity), to be made large over multiples x_j. The
maximum over blocks is convex, so this is no linear program. But whatever i gets of a block is a sum over its pipelines,
and the largest of sums is at most the sum of the largest, each pipeline's own dominant share mu_ij:

    max_k sum_j gamma_ij^k x_j <= sum_j mu_ij x_j

So no allocation exceeds the maximum of sum_ij a_i mu_ij x_j over 0 <= x_j <= max_j within the budgets, a linear
program. It also lets x_j be between 0 and 1, and at several orders it asks of each block no more than the order that is
easiest for each pipeline, so that nothing that is within budget at some order is left out.
"""

from __future__ import annotations

from collections.abc import Hashable
from math import inf
from typing import Any

import numpy as np

from dpbalance.allocation import Terms
from dpbalance.allocation.valuation import Valuation
from dpbalance.market import Round
from dpbalance.market.round import Floats, Indices
from dpbalance.scheduler.highs import maximise

DIGITS = 12
"""Columns, or rows, that agree to so many digits are one."""

ROUNDING = 1e-9
"""By how much the bound is raised for that."""


def bound(round_: Round, terms: Terms) -> float:
    """The most that the dominant efficiency of an allocation of this round can be.

    >>> from dpbalance.market import worked_example
    >>> round(bound(worked_example(), Terms()), 6)
    1.25
    """
    from scipy import sparse

    valuation = Valuation.of(round_, terms)
    chosen = np.flatnonzero(valuation.feasible & (valuation.dominant > 0))
    if not len(chosen):
        return 0.0
    start, entries = round_.demands(chosen)
    dominant = valuation.dominant[chosen]
    share = _least_shares(round_, entries) / np.repeat(dominant, np.diff(start))
    kept, member = _columns(start, round_.block[entries], share, round_.owner[chosen])
    gain = valuation.weight[round_.owner[chosen[kept]]]
    upper = np.zeros(len(kept))
    np.add.at(upper, member, dominant * round_.max_multiple[chosen])
    matrix = sparse.csr_array((share, round_.block[entries], start), shape=(len(chosen), len(round_.blocks)))[kept]
    matrix.eliminate_zeros()
    rows = tightest(matrix.T.tocsr())
    columns = rows.tocsc()
    largest = columns.max(axis=0).toarray().ravel()
    upper = np.minimum(upper, np.divide(1.0, largest, out=np.full(len(kept), inf), where=largest > 0))
    if not np.isfinite(upper).all():
        return inf  # some order lets a pipeline have as much as it likes
    _, price, _ = maximise(
        gain,
        columns.indptr,
        columns.indices,
        columns.data,
        row_lower=np.full(rows.shape[0], -np.inf),
        row_upper=np.ones(rows.shape[0]),
        lower=np.zeros(len(gain)),
        upper=upper,
    )
    price = np.maximum(price, 0.0)
    beyond = np.maximum(gain - columns.T @ price, 0.0)
    return float(np.sum(price) + beyond @ upper) * (1.0 + ROUNDING)  # the dual value: right whatever the solver did


def _least_shares(round_: Round, entries: Indices) -> Floats:
    """cost / available of each entry, at the order where that is least; the available are those of feasible demands."""
    available = round_.available[round_.block[entries]].astype(np.float64)
    cost = round_.cost[entries]
    open_ = available > 0
    share = np.divide(cost, available, out=np.where(cost > 0, np.inf, 0.0), where=open_)
    least: Floats = np.min(share, axis=1)
    return least


def _columns(start: Indices, block: Any, share: Floats, owner: Indices) -> tuple[Indices, Indices]:
    """Pipelines of one analyst whose demands are multiples of each other are one column: its first, and whose it is."""
    rounded = np.round(share, DIGITS)
    first: dict[Hashable, int] = {}
    kept: list[int] = []
    member = np.zeros(len(owner), dtype=np.int64)
    for at in range(len(owner)):
        mine = slice(int(start[at]), int(start[at + 1]))
        name = (int(owner[at]), block[mine].tobytes(), rounded[mine].tobytes())
        if name not in first:
            first[name] = len(kept)
            kept.append(at)
        member[at] = first[name]
    return np.array(kept, dtype=np.int64), member


def tightest(rows: Any) -> Any:
    """Of blocks that are asked in the same proportions, the one that binds first."""
    rows = rows[np.diff(rows.indptr) > 0]
    largest: Floats = np.maximum.reduceat(rows.data, rows.indptr[:-1])
    relative = np.round(rows.data / np.repeat(largest, np.diff(rows.indptr)), DIGITS)
    first: dict[Hashable, int] = {}
    for at in np.argsort(-largest, kind="stable").tolist():
        mine = slice(int(rows.indptr[at]), int(rows.indptr[at + 1]))
        first.setdefault((rows.indices[mine].tobytes(), relative[mine].tobytes()), at)
    return rows[sorted(first.values())]
