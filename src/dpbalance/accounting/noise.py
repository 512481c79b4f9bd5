"""How little noise does a grant buy?"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpbalance.accounting.orders import checked_orders
from dpbalance.accounting.recipes import NOISE, SubsampledGaussian
from dpbalance.accounting.renyi import renyi
from dpbalance.amounts import MAX_EPSILON, capacity_units, cost_units
from dpbalance.errors import OptionError, RecipeError

PRECISION = 1e-12
"""How near to the smallest noise the search comes, as a share of it."""


def noise_multiplier(
    budget: float | Sequence[float],
    orders: Sequence[float] | None = None,
    sampling_rate: float = 1.0,
    steps: int = 1,
) -> float:
    """The smallest noise whose cost in whole units stays within the budget, in epsilon, at every order.

    A grant is charged at all orders, so none of them may be passed. Cost falls as noise grows: the answer is bracketed
    and halved on log z, and the end that is returned is one whose cost has been seen to hold.

    >>> round(noise_multiplier(1.0), 9)
    2.0
    """
    checked = checked_orders(orders)
    allowed = np.atleast_1d(capacity_units(budget))
    if allowed.shape != checked.shape:
        raise OptionError(f"budget must be {len(checked)} numbers, one for each order, not {str(budget)[:60]}")
    for order, units in zip(checked, allowed, strict=True):
        if units == 0:
            raise RecipeError(f"no noise is enough for a budget of 0 at order {order:g}: {str(budget)[:60]}")

    def holds(noise: float) -> bool:
        recipe = SubsampledGaussian(noise_multiplier=noise, sampling_rate=sampling_rate, steps=steps)
        total = renyi(recipe, checked)
        return bool(np.all(total <= MAX_EPSILON)) and bool(np.all(cost_units(total) <= allowed))

    low, high = (
        NOISE  # the least costs more than any budget, the most a single unit: both for every rate and step count
    )
    while high > low * (1 + PRECISION):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if holds(middle) else (middle, high)
    return high
