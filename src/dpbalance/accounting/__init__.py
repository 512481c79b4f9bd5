"""WHAT IT COSTS: from a training recipe to Renyi cost, from a grant to noise, from spend to (epsilon, delta)."""

from dpbalance.accounting.noise import noise_multiplier
from dpbalance.accounting.orders import ALPHA, ALPHAS
from dpbalance.accounting.people import best_order, capacity, epsilon
from dpbalance.accounting.recipes import Composition, Gaussian, Laplace, Recipe, SubsampledGaussian
from dpbalance.accounting.renyi import cost

__all__ = [
    "ALPHA",
    "ALPHAS",
    "Composition",
    "Gaussian",
    "Laplace",
    "Recipe",
    "SubsampledGaussian",
    "best_order",
    "capacity",
    "cost",
    "epsilon",
    "noise_multiplier",
]
