"""How efficient and how fair is an allocation? The paper's two measures, and beside them some that hide nobody.

An analyst of priority m counts as m analysts who share its utility, so fairness is judged over utility / priority.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpbalance.allocation.valuation import Flags
from dpbalance.market.round import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """One round's outcome in numbers."""

    efficiency: float
    """Dominant efficiency, the sum of U_i = a_i x dominant share granted."""
    fairness: float | None
    """The paper's dominant fairness over analysts that got something; None when nobody did."""
    jain: float | None
    """Jain's index of the utilities by priority of all analysts with a feasible pipeline."""
    utility_min: float | None
    """The smallest utility among them."""
    shut_out: int
    """How many of them got nothing."""
    pipelines: int
    """Pipelines served."""


def measure(utility: Floats, judged: Flags, pipelines: int, beta: float, priority: Floats) -> Metrics:
    """The metrics of these utilities, fairness judged over `judged` analysts."""
    mass = priority[judged]
    counted = utility[judged] / mass
    squares = float(mass @ counted**2)
    return Metrics(
        efficiency=float(np.sum(utility)),
        fairness=fairness(utility, beta, priority),
        jain=float((mass @ counted) ** 2 / (np.sum(mass) * squares))
        if squares > 0
        else (0.0 if len(counted) else None),
        utility_min=float(np.min(counted)) if len(counted) else None,
        shut_out=int(np.sum(counted <= 0)),
        pipelines=pipelines,
    )


def fairness(utility: Floats, beta: float, priority: Floats | None = None) -> float | None:
    """f_beta = sgn(1 - beta) (sum_i (U_i / sum U)^(1 - beta))^(1/beta), over the positive utilities.

    The ends are limits: exp(entropy) at beta = 0, the number of analysts at 1 (from below), -1/min share at infinity.

    >>> fairness(np.array([1.0, 1.0]), 0.5), fairness(np.array([1.0, 0.0]), 5.0), fairness(np.zeros(2), 1.0)
    (2.0, -1.0, None)
    """
    got = utility > 0
    served = utility[got]
    if not len(served):
        return None
    mass = np.ones(len(served)) if priority is None else priority[got]
    log_share = np.log(served / mass / np.sum(served))
    if beta == 0:
        return float(np.exp(-(mass @ (np.exp(log_share) * log_share))))
    if beta == 1:
        return float(np.sum(mass))
    if np.isinf(beta):
        return -float(np.exp(-np.min(log_share)))
    powers = (1.0 - beta) * log_share
    top = float(np.max(powers))
    logarithm = min((top + float(np.log(mass @ np.exp(powers - top)))) / beta, 700.0)
    size = round(float(np.exp(logarithm)), 12) if logarithm < 10 else float(np.exp(logarithm))
    return size if beta < 1 else -size
