"""What is a share of the budget worth to each analyst? Plain NumPy over a round; schedulers have faster kernels.

    gamma_ij^k = demand / capacity            mu_ij = max_k gamma_ij^k
    a_i = T(t_i) l_i     T(t) = 1 / (1 + t/tau), t_i the mean wait of i's pipelines
    l_i = sum_j (mu_ij / sum_j mu_ij) l_ij

Only pipelines that can be met alone count: one exhausted block must not speak for the whole analyst.
With several orders the share of a block is taken at its reference order, the one that will bind last.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from dpbalance.errors import OptionError
from dpbalance.market.round import Floats, Indices, Round

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """By which yardstick allocations are valued; the same for every scheduler."""

    beta: float = 2.2
    """Fairness preference, 0 to infinity."""
    tau: float = 100.0
    """Seconds of waiting after which urgency T has halved."""

    def __post_init__(self) -> None:
        if not self.beta >= 0:
            raise OptionError(f"beta must be a number from 0 to inf, not {self.beta!r}")
        if not self.tau > 0:
            raise OptionError(f"tau must be a number of seconds above 0, not {self.tau!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Valuation:
    """What the demands of a round are worth under some terms."""

    order: Indices
    """Reference order of each block."""
    feasible: Flags
    """Pipelines whose whole demand fits on its own."""
    dominant: Floats
    """mu_ij: the dominant share each pipeline asks for."""
    worth: Floats
    """a_ij = T(t_ij) l_ij of each pipeline."""
    weight: Floats
    """a_i of each analyst; 1 where it has no feasible pipeline."""
    judged: Flags
    """Analysts with a feasible pipeline: those whom fairness is about."""

    @staticmethod
    def of(round_: Round, terms: Terms) -> Valuation:
        order = reference_orders(round_)
        feasible = fits(round_)
        dominant = dominant_shares(round_, order)
        return Valuation(
            order=order,
            feasible=feasible,
            dominant=dominant,
            worth=worths(round_, terms),
            weight=analyst_weights(round_, terms, dominant, feasible),
            judged=np.bincount(round_.owner[feasible], minlength=len(round_.analysts)) > 0,
        )


def reference_orders(round_: Round) -> Indices:
    """Per block the order with the smallest total demand / capacity: the last that will bind."""
    blocks, width = round_.capacity.shape
    if width == 1:
        return np.zeros(blocks, dtype=np.int64)
    totals = [np.bincount(round_.block, weights=round_.cost[:, at], minlength=blocks) for at in range(width)]
    total = np.stack(totals, axis=1)
    ratio = np.divide(total, round_.capacity, out=np.full(total.shape, np.inf), where=round_.capacity > 0)
    best: Indices = np.argmin(ratio, axis=1)
    return best


def fits(round_: Round) -> Flags:
    """Pipelines for which every demanded block has some order with enough available."""
    if not len(round_.pipelines):
        return np.zeros(0, dtype=bool)
    enough = (round_.cost <= round_.available[round_.block]).any(axis=1)
    return np.logical_and.reduceat(enough, round_.start[:-1])


def dominant_shares(round_: Round, order: Indices) -> Floats:
    """mu_ij; infinite where something is asked of a block without capacity."""
    if not len(round_.pipelines):
        return np.zeros(0)
    at = order[round_.block]
    cost = np.take_along_axis(round_.cost, at[:, None], axis=1)[:, 0].astype(np.float64)
    capacity = round_.capacity[round_.block, at].astype(np.float64)
    gamma = np.divide(cost, capacity, out=np.where(cost > 0, np.inf, 0.0), where=capacity > 0)
    return np.maximum.reduceat(gamma, round_.start[:-1])


def worths(round_: Round, terms: Terms) -> Floats:
    """a_ij = T(t_ij) l_ij of each pipeline."""
    waited = np.maximum(round_.now - round_.submitted, 0.0)
    return round_.loss / (1.0 + waited / terms.tau)


def analyst_weights(round_: Round, terms: Terms, dominant: Floats, counted: Flags) -> Floats:
    """a_i over the counted pipelines."""
    analysts = len(round_.analysts)
    chosen = counted & np.isfinite(dominant)
    owner = round_.owner[chosen]
    number = np.bincount(owner, minlength=analysts)
    waited = np.maximum(round_.now - round_.submitted[chosen], 0.0)
    wait = np.bincount(owner, weights=waited, minlength=analysts) / np.maximum(number, 1)
    mu = dominant[chosen]
    asked = np.bincount(owner, weights=mu, minlength=analysts)
    matched = np.bincount(owner, weights=mu * round_.loss[chosen], minlength=analysts)
    match = np.divide(matched, asked, out=np.ones(analysts), where=asked > 0)
    return np.where(number > 0, match / (1.0 + wait / terms.tau), 1.0)


def granted_shares(round_: Round, order: Indices, multiple: Floats) -> Floats:
    """The dominant share really granted to each analyst: max over blocks of what its pipelines got of it."""
    shares = np.zeros(len(round_.analysts))
    served = np.flatnonzero(multiple > 0)
    capacity = np.take_along_axis(round_.capacity, order[:, None], axis=1)[:, 0].astype(np.float64)
    usable = np.where(capacity > 0, capacity, np.inf)
    for analyst in np.unique(round_.owner[served]):
        mine = served[round_.owner[served] == analyst]
        start, entries = round_.demands(mine)
        times = np.repeat(multiple[mine], np.diff(start))
        block = round_.block[entries]
        amount = round_.cost[entries, order[block]] * times
        shares[analyst] = np.max(np.bincount(block, weights=amount, minlength=len(usable)) / usable)
    return shares
