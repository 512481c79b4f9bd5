"""What if the interior point method loses its way? The dual with a barrier: slower, convex, always downhill.

    minimise  (1/c) log sum_i m_i (q_i / m_i)^-c + sum_k p_k - (1/t) sum_k log p_k,   q = A' p,  c = (1 - beta) / beta,

for growing t. Where its gradient vanishes, y_i = share_i / q_i (share_i as m_i (q_i / m_i)^-c) leaves a slack of
1 / (t p_k) on row k: a strictly feasible y with a gap of at most rows / t. Used over few rows only, so plain NumPy.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dpbalance.market.round import Floats

T_MAX = 1e14
STEPS_MAX = 100


def dual_newton(start: Any, row: Any, value: Floats, rows: int, beta: float, mass: Floats) -> tuple[Floats, Floats]:
    """Utilities y and prices p."""
    matrix = np.zeros((rows, len(start) - 1))
    matrix[row, np.repeat(np.arange(len(start) - 1), np.diff(start))] = value
    c = (1.0 - beta) / beta
    p, t = np.full(rows, 1.0 / rows), 10.0
    while t < T_MAX:
        for _ in range(STEPS_MAX):
            q, share = _shares(matrix, p, c, mass)
            slope = matrix / q
            mean = slope @ share
            gradient = 1.0 - mean - 1.0 / (t * p)
            # scaled by p, so that rows of very different prices are solved alike
            scaled = slope * p[:, None]
            hessian = (1.0 + c) * (scaled * share) @ scaled.T - c * np.outer(mean * p, mean * p)
            hessian[np.diag_indices(rows)] += 1.0 / t
            step = p * np.linalg.lstsq(hessian, -gradient * p, rcond=1e-16)[0]
            decrease = -float(gradient @ step)
            if not decrease > 1e-3 / t:
                break
            size = min(1.0, 0.95 / max(float(np.max(-step / p)), 1e-300))
            here = _value(matrix, p, c, t, mass)
            while size > 1e-12 and not _value(matrix, p + size * step, c, t, mass) <= here - 0.1 * size * decrease:
                size *= 0.5
            if size <= 1e-12:
                break
            p = p + size * step
        t *= 10.0
    q, share = _shares(matrix, p, c, mass)
    return np.maximum(share / q, 1e-280), p


def _shares(matrix: Floats, p: Floats, c: float, mass: Floats) -> tuple[Floats, Floats]:
    q = p @ matrix
    powers = -c * np.log(q / mass)
    share = mass * np.exp(powers - np.max(powers))
    return q, share / np.sum(share)


def _value(matrix: Floats, p: Floats, c: float, t: float, mass: Floats) -> float:
    q = p @ matrix / mass
    barrier = float(np.sum(p)) - float(np.sum(np.log(p))) / t
    if c == 0:
        return barrier - float(mass @ np.log(q) / np.sum(mass))
    powers = -c * np.log(q)
    top = float(np.max(powers))
    return barrier + (top + float(np.log(mass @ np.exp(powers - top)))) / c
