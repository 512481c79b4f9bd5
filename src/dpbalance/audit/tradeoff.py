"""What does fairness cost? How efficiency moves with beta at step 1's answer, and along all of beta.

At the optimum of step 1, U_i = a_i mu_i x_i fills the rows J: A U = 1, and (U_i / m_i)^-beta = q_i with q = A' p.
Differentiating both by beta, with z = U / m and D = diag(U / (beta q)),

    dU = -(U / beta) log z - D A' dp,    A dU = 0,    so    A D A' dp = -A (U / beta) log z,    dE/dbeta = sum dU.

Theorem 5 of the paper says that efficiency does not grow with beta if and only if sum_i tau_i det(A_i) >= 0, with Z a
basis of the null space of the full rows, A = Z' H Z for the Hessian H of step 1's objective, A_i the same with column i
replaced by Z' b, b the derivative of the gradient by beta, and tau = Z' 1. Differentiating Z' gradient = 0 gives
dE/dbeta = -tau' A^-1 Z' b, and H is negative definite, so det A has the sign (-1)^n for a null space of dimension n:
the printed condition says the opposite wherever n is odd. `condition` is the sum with that sign put right.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import linalg, optimize, sparse

from dpbalance.allocation.metrics import measure
from dpbalance.audit.divisible import Divisible
from dpbalance.market.round import Floats
from dpbalance.scheduler import alpha_fair

FULL = 1e-6
"""A row with less room than this, relatively, is full."""

BETA_MIN = 1e-3
"""Nearer to 0 step 1 is a linear program for all that doubles can tell, and has no slope."""

DIMENSIONS_MAX = 30
"""Determinants of more dimensions than this are not taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    """How efficiency moves with beta where step 1 stands."""

    beta: float
    efficiency: float
    """E = sum U_i of step 1, before packing."""
    slope: float
    """dE/dbeta."""
    free: int
    """Dimension of the null space of the full rows: in how many ways utility can be moved without breaking one."""
    condition_printed: float | None
    """Theorem 5's sum, over |det A|; None where the null space is empty or too large."""
    condition: float | None
    """The same with the sign that makes it right: at least 0 just where efficiency does not grow with beta."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Step 1 at one beta."""

    beta: float
    efficiency: float
    fairness: float | None
    """The paper's, at this beta; for beta above 1 negative, and larger is fairer."""
    jain: float | None
    utility_min: float | None
    gap: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extremes:
    """The two ends: what is most efficient and what is fairest, and whether they are the same."""

    efficiency_most: float
    efficiency_fairest: float
    """Of lexicographic max-min shares."""
    tradeoff: bool
    """Whether they differ."""
    rows_even: bool
    """Theorem 6's condition: sum_i gamma_i^k / (mu_i a_i) is the same for every block that is asked for."""
    shut_out: int
    """Analysts with nothing where efficiency is largest, which Theorem 7 is about."""


def slope(market: Divisible) -> Slope | None:
    """dE/dbeta at step 1's answer; None where it has no derivative in beta or is not alpha-fair."""
    if (
        market.lam is not None
        or not BETA_MIN <= market.beta < np.inf
        or not market.analysts
        or not np.min(market.take) > 0
    ):
        return None
    optimum = _optimum(market)
    if optimum is None:
        return None
    matrix, utility, price = optimum
    mass, beta = market.priority, market.beta
    pull = matrix.T @ price
    reach = utility / (beta * pull)
    drift = -(utility / beta) * np.log(utility / mass)
    change = np.linalg.lstsq((matrix * reach) @ matrix.T, matrix @ drift, rcond=1e-13)[0]
    moved = drift - reach * (matrix.T @ change)
    basis = linalg.null_space(matrix, rcond=1e-9)
    printed = theorem_5(basis, utility, mass, beta)
    sign = -1.0 if basis.shape[1] % 2 else 1.0
    return Slope(
        beta=beta,
        efficiency=float(np.sum(utility)),
        slope=float(np.sum(moved)) if basis.shape[1] else 0.0,
        free=basis.shape[1],
        condition_printed=printed,
        condition=None if printed is None else sign * printed,
    )


def theorem_5(basis: Floats, utility: Floats, mass: Floats, beta: float) -> float | None:
    """sum_i tau_i det(A_i), with its determinants as printed, over |det A| so that it does not depend on the basis."""
    free = basis.shape[1]
    if not 0 < free <= DIMENSIONS_MAX:
        return None
    each = utility / mass
    hessian = -beta * each ** (-beta - 1.0) / mass
    mixed = -np.log(each) * each**-beta
    scale = float(np.max(np.abs(hessian)))  # numerator and denominator alike, so that determinants stay in range
    within, right = basis.T @ (hessian[:, None] / scale * basis), basis.T @ (mixed / scale)
    total = 0.0
    for at in range(free):
        replaced = within.copy()
        replaced[:, at] = right
        total += float(np.sum(basis[:, at])) * float(np.linalg.det(replaced))
    return total / abs(float(np.linalg.det(within)))


def frontier(market: Divisible, betas: Sequence[float]) -> list[Point]:
    """Efficiency and fairness of step 1 along beta, each solve begun where the one before it ended."""
    solved = alpha_fair.sweep(market.asked(market.demand, market.dominant), betas)
    points = []
    worth = market.weight * market.dominant
    for beta, solution in zip(betas, solved, strict=True):
        utility = worth * solution.x
        judged = np.ones(len(utility), dtype=bool)
        told = measure(utility, judged, 0, float(beta), market.priority)
        points.append(
            Point(
                beta=float(beta),
                efficiency=told.efficiency,
                fairness=told.fairness,
                jain=told.jain,
                utility_min=told.utility_min,
                gap=solution.gap,
            )
        )
    return points


def extremes(market: Divisible) -> Extremes:
    """The most efficient and the fairest shares of this market."""
    worth = market.weight * market.dominant
    most, fairest = (
        worth * replace(market, beta=beta, lam=None).solved(market.demand, market.dominant) for beta in (0.0, np.inf)
    )
    full = (market.demand @ sparse.diags_array(1.0 / worth)).sum(axis=1)
    asked = full[full > 0] / market.left[full > 0]
    best, fair = float(np.sum(most)), float(np.sum(fairest))
    return Extremes(
        efficiency_most=best,
        efficiency_fairest=fair,
        tradeoff=bool(best - fair > 1e-7 * best),
        rows_even=bool(np.ptp(asked) <= 1e-9 * np.max(asked)),
        shut_out=int(np.sum(most <= 1e-9 * best)),
    )


def _optimum(market: Divisible) -> tuple[Floats, Floats, Floats] | None:
    """The full rows in units of utility, and utilities and prices there to the last digits."""
    worth = market.weight * market.dominant
    rows = sparse.diags_array(1.0 / np.maximum(market.left, 1e-300)) @ market.demand @ sparse.diags_array(1.0 / worth)
    utility = worth * market.take
    full = np.flatnonzero(rows @ utility >= 1.0 - FULL)
    capped = np.flatnonzero(market.take >= market.upper * (1.0 - FULL))
    own = sparse.csr_array((1.0 / utility[capped], (np.arange(len(capped)), capped)), shape=(len(capped), len(utility)))
    table = sparse.vstack([sparse.csr_array(rows)[full], own]).toarray()
    matrix = table[np.sort(np.unique(np.round(table, 9), axis=0, return_index=True)[1])]
    price, misfit = optimize.nnls((matrix * (utility / market.priority) ** market.beta).T, np.ones(len(utility)))
    if misfit > 1e-3:
        return None
    binding = price > 1e-7 * float(np.max(price))
    return _polished(matrix[binding], utility, price[binding], market)


def _polished(matrix: Floats, utility: Floats, price: Floats, market: Divisible) -> tuple[Floats, Floats, Floats]:
    """Newton steps on A U = 1 and beta log z + log q = 0; the solver stops before the last digits."""
    beta, mass = market.beta, market.priority
    for _ in range(20):
        pull = matrix.T @ price
        miss = -beta * np.log(utility / mass) - np.log(pull)
        reach = utility / (beta * pull)
        drift = utility / beta * miss
        room = 1.0 - matrix @ utility
        system: Any = (matrix * reach) @ matrix.T
        change = np.linalg.lstsq(system, matrix @ drift - room, rcond=1e-13)[0]
        step = drift - reach * (matrix.T @ change)
        size = min(1.0, 0.5 / max(float(np.max(-step / utility)), float(np.max(-change / price)), 1e-300))
        utility, price = utility + size * step, price + size * change
        if size == 1.0 and float(np.max(np.abs(step / utility))) < 1e-14:
            break
    return matrix, utility, price
