"""What is fair and efficient when efficiency counts extra (lam > |1-beta|/beta)? A barrier method on the objective.

    maximise  w log W(y) + c log sum m y + (1/t) sum_k log s_k,   s = 1 - A y,

for growing t. The objective is concave, so damped Newton steps always lead up. Everything is scaled by y, so that
utilities of very different size are solved alike. With shares u_i ~ m_i y_i^(1-beta) and v_i ~ m_i y_i of sum 1 the
scaled gradient is w u + c v, and minus the scaled Hessian w (beta diag u + (1-beta) u u') + c v v'. Used over few
rows only.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpbalance.allocation.certificate import joint_value, strength
from dpbalance.market.round import Floats

T_MAX = 1e11
STEPS_MAX = 60

NEAR = 1e-3
"""Below this decrement (times t) Newton steps are taken whole; the objective can no longer tell them apart."""

DONE = 1e-16
"""Prices are right to about the root of this."""


def primal_newton(
    start: Any, row: Any, value: Floats, y: Floats, beta: float, extra: float, mass: Floats
) -> tuple[Floats, Floats]:
    """Utilities and row prices, from a strictly feasible y; `extra` is c."""
    rows = int(row.max()) + 1
    matrix = np.zeros((rows, len(y)))
    matrix[row, np.repeat(np.arange(len(y)), np.diff(start))] = value
    own = strength(beta)
    t = 10.0
    # the slacks are carried along, not recomputed: 1 - A y is too coarse in the end for the prices 1 / (t s)
    slack = 1.0 - matrix @ y
    while True:
        for _ in range(STEPS_MAX):
            u, v = _shares(y, 1.0 - beta, mass), _shares(y, 1.0, mass)
            flow = matrix * y
            load = flow / slack[:, None]
            gradient = own * u + extra * v - load.sum(axis=0) / t
            hessian = own * ((1.0 - beta) * np.outer(u, u) + beta * np.diag(u)) + extra * np.outer(v, v)
            hessian += load.T @ load / t
            scale = 1.0 / np.sqrt(np.diag(hessian))
            step = scale * np.linalg.lstsq(hessian * np.outer(scale, scale), gradient * scale, rcond=1e-15)[0]
            rise = float(gradient @ step) * t
            size = min(1.0, 0.95 / max(float(np.max(-step)), float(np.max(load @ step)), 1e-300))
            here = _value(y, slack, beta, extra, t, mass)
            while rise > NEAR and size > 1e-12:
                if _value(y * (1 + size * step), slack - size * (flow @ step), beta, extra, t, mass) > here:
                    break
                size *= 0.5
            if not rise > 0 or size <= 1e-12:
                break
            y, slack = y * (1.0 + size * step), slack - size * (flow @ step)
            if rise < DONE:
                break
        if t >= T_MAX:
            break
        t *= 10.0
    return y, 1.0 / (t * slack)


def _shares(y: Floats, power: float, mass: Floats) -> Floats:
    logs = power * np.log(y)
    share: Floats = mass * np.exp(logs - np.max(logs))
    return share / float(np.sum(share))


def _value(y: Floats, slack: Floats, beta: float, extra: float, t: float, mass: Floats) -> float:
    if not np.min(slack) > 0 or not np.min(y) > 0:
        return -np.inf
    return joint_value(y, beta, extra, mass) + float(np.sum(np.log(slack))) / t
