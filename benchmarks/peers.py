"""What would a user pick instead? The same problems for cvxpy with Clarabel, and for HiGHS."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from dpbalance.allocation.certificate import log_welfare


def scaled_rows(instance: dict[str, Any], unit: float) -> Any:
    """A of step 1's A y <= 1 as a sparse matrix, with utilities in `unit`s so that they are about 1 for the peer."""
    import scipy.sparse

    scale = instance["gamma"].max(axis=0) * instance["weight"]
    return scipy.sparse.csr_matrix(instance["gamma"] / (instance["left"][:, None] * scale) * unit)


def shares_by_cvxpy(rows: Any, beta: float, unit: float) -> float:
    """Solve step 1 with cvxpy + Clarabel; returns log W of its answer."""
    import cvxpy as cp

    y = cp.Variable(rows.shape[1], nonneg=True)
    welfare = cp.sum(cp.log(y)) if beta == 1 else cp.sum(cp.power(y, 1 - beta)) / (1 - beta)
    problem = cp.Problem(cp.Maximize(welfare), [rows @ y <= 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says when it is not accurate; the report shows how far off it was
        problem.solve(solver=cp.CLARABEL)
    return log_welfare(np.maximum(y.value, 1e-12) * unit, beta)


def packing_by_highs(instance: dict[str, Any]) -> tuple[int, float]:
    """Solve step 2 with HiGHS in two stages (through SciPy): the count, then the value with that count."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    gamma, left, value = instance["gamma"], instance["left"], instance["value"]
    index = np.flatnonzero(np.all(gamma <= left[:, None], axis=0))
    rows, worth, n = gamma[:, index] / left[:, None], value[index] / value.max(), len(index)
    wide = np.min(np.divide(1.0, rows, out=np.full_like(rows, np.inf), where=rows > 0), axis=0)
    rules = [
        LinearConstraint(np.hstack([rows, rows]), -np.inf, 1.0),
        LinearConstraint(np.hstack([-np.diag(wide - 1), np.eye(n)]), -np.inf, 0.0),
    ]
    whole = np.r_[np.ones(n), np.zeros(n)]
    shared = {
        "integrality": whole,
        "bounds": Bounds(np.zeros(2 * n), np.r_[np.ones(n), wide - 1]),
        "options": {"mip_rel_gap": 0.0},
    }
    first = milp(-whole, constraints=rules, **shared)
    count = round(-first.fun)
    rules.append(LinearConstraint(whole[None, :], count, count))
    second = milp(-np.r_[worth, worth], constraints=rules, **shared)
    return count, -second.fun * value.max()
