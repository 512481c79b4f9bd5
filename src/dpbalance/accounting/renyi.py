"""What does a recipe cost at each order?

The neighbouring relation is add-or-remove-one, everywhere. Every number below is an upper bound: where floating point
may fall short of the truth, more than its worst error is added before the amount is rounded up to whole units.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpbalance.accounting.orders import Floats, checked_orders
from dpbalance.accounting.recipes import Composition, Gaussian, Laplace, Recipe, SubsampledGaussian, understood
from dpbalance.accounting.sampled import sampled_gaussian
from dpbalance.amounts import MAX_EPSILON, Units, cost_units
from dpbalance.errors import RecipeError

SAFETY = 1e-11
"""Relative float error that is paid for where a cost is summed or integrated; what tests have seen is below 1e-13."""

LAPLACE_SAFETY = 2e-15
"""The same for Laplace, in shares of 1 / noise: the size of the two terms that cancel in its formula."""


def cost(recipe: Recipe, orders: Sequence[float] | None = None) -> Units:
    """Renyi cost at each order in whole units, never below the truth.

    >>> cost(Gaussian(noise_multiplier=2.0)).tolist()
    [1000000000]
    """
    checked = checked_orders(orders)
    total = renyi(recipe, checked)
    for order, value in zip(checked, total, strict=True):
        if not 0 <= value <= MAX_EPSILON:
            raise RecipeError(
                f"the recipe has no cost from 0 to {MAX_EPSILON:g} epsilon at order {order:g}, but {value:g}: "
                f"{str(recipe)[:120]}",
                hint="more noise, fewer steps, or other orders",
            )
    return cost_units(total)


def renyi(recipe: Recipe, orders: Floats) -> Floats:
    """Upper bound of the Renyi divergence at each order, in epsilon; may be infinite."""
    recipe = understood(recipe)
    if isinstance(recipe, Gaussian):
        return orders / (2 * recipe.noise_multiplier**2)
    if isinstance(recipe, Laplace):
        return _laplace(1 / recipe.noise_multiplier, orders)
    if isinstance(recipe, SubsampledGaussian):
        return _subsampled(recipe, orders)
    if isinstance(recipe, Composition):
        counts = recipe.counts or (1,) * len(recipe.parts)
        parts = (count * renyi(part, orders) for part, count in zip(recipe.parts, counts, strict=True))
        return sum(parts, np.zeros_like(orders))
    return _accountant(recipe, orders)


def _subsampled(recipe: SubsampledGaussian, orders: Floats) -> Floats:
    q, z = recipe.sampling_rate, recipe.noise_multiplier
    step = np.array([sampled_gaussian(q, z, order) for order in orders.tolist()])
    return recipe.steps * step * (1 if q == 1 else 1 + SAFETY)


def _laplace(pure: float, orders: Floats) -> Floats:
    """Mironov (2017), "Renyi Differential Privacy", proposition 6, for Laplace noise that is `pure`-epsilon private."""
    bend = (orders - 1) * np.expm1(pure * (1 - 2 * orders)) / (2 * orders - 1)
    return np.maximum(pure + np.log1p(bend) / (orders - 1), 0) + LAPLACE_SAFETY * pure


def _accountant(event: Recipe, orders: Floats) -> Floats:
    from dp_accounting import NeighboringRelation, UnsupportedEventError
    from dp_accounting.rdp import RdpAccountant

    try:
        accountant = RdpAccountant(orders, NeighboringRelation.ADD_OR_REMOVE_ONE).compose(event)
    except (UnsupportedEventError, ValueError, TypeError, ArithmeticError) as problem:
        raise RecipeError(f"this event has no known Renyi cost: {str(problem)[:300]}") from problem
    return np.asarray(accountant.rdp * (1 + SAFETY), dtype=np.float64)
