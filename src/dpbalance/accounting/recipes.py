"""What does a training run do with private records? A recipe says all that its privacy cost depends on.

A recipe stands for two data sets that differ by one record, added or removed, within a block.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from dpbalance.errors import RecipeError

if TYPE_CHECKING:
    from dp_accounting import DpEvent

NOISE = (1e-6, 1e12)
"""Least and most noise: what is below costs more than any block holds, what is above costs nothing that counts."""

SAMPLING_RATE = (1e-12, 1.0)

MOST_REPEATS = 10**12
"""The most steps, or repetitions of a part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gaussian:
    """One release of a sum with Gaussian noise."""

    noise_multiplier: float
    """Standard deviation of the noise over the L2 sensitivity of the sum."""

    def __post_init__(self) -> None:
        _check_number(self, "noise_multiplier", *NOISE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Laplace:
    """One release of a sum with Laplace noise."""

    noise_multiplier: float
    """Scale of the noise over the L1 sensitivity of the sum."""

    def __post_init__(self) -> None:
        _check_number(self, "noise_multiplier", *NOISE)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubsampledGaussian:
    """DP-SGD: in each step every record takes part by its own coin toss, and the sum gets Gaussian noise."""

    noise_multiplier: float
    """Standard deviation of the noise over the clipping norm of one record."""
    sampling_rate: float
    """Chance of each record to take part in a step (Poisson sampling: no shuffled batches of fixed size)."""
    steps: int = 1

    def __post_init__(self) -> None:
        _check_number(self, "noise_multiplier", *NOISE)
        _check_number(self, "sampling_rate", *SAMPLING_RATE)
        _check_whole(self, "steps", self.steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """Several recipes on the same records, each done once or a number of times; later ones may depend on earlier."""

    parts: tuple[Recipe, ...]
    counts: tuple[int, ...] | None = None
    """How often each part is done; None means once each."""

    def __post_init__(self) -> None:
        for name in ("parts", "counts"):
            value = getattr(self, name)
            if not isinstance(value, (tuple, list)) and (name == "parts" or value is not None):
                raise RecipeError(f"Composition: {name} must be a tuple, not {str(value)[:60]!r}")
            object.__setattr__(self, name, value if value is None else tuple(value))
        if not self.parts:
            raise RecipeError("Composition: parts must hold at least one recipe, not ()")
        for part in self.parts:
            _check_recipe(part, "Composition: parts must hold recipes")
        if self.counts is None:
            return
        if len(self.counts) != len(self.parts):
            raise RecipeError(f"Composition: counts must be {len(self.parts)} numbers, one a part, not {self.counts}")
        for count in self.counts:
            _check_whole(self, "counts", count)


Recipe: TypeAlias = "Gaussian | Laplace | SubsampledGaussian | Composition | DpEvent"
"""What has a cost; a `dp_accounting.DpEvent` is one too."""


def understood(recipe: Recipe) -> Recipe:
    """The recipe, or what a DpEvent is in the words of this module; an event without such words stays as it is.

    >>> import dp_accounting
    >>> step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1))
    >>> understood(step)
    SubsampledGaussian(noise_multiplier=1.1, sampling_rate=0.01, steps=1)
    """
    if isinstance(recipe, (Gaussian, Laplace, SubsampledGaussian, Composition)):
        return recipe
    _check_recipe(recipe, "a recipe must be a recipe")
    import dp_accounting

    match recipe:
        case dp_accounting.GaussianDpEvent():
            return Gaussian(noise_multiplier=recipe.noise_multiplier)
        case dp_accounting.LaplaceDpEvent():
            return Laplace(noise_multiplier=recipe.noise_multiplier)
        case dp_accounting.ComposedDpEvent():
            return Composition(parts=tuple(recipe.events))
        case dp_accounting.SelfComposedDpEvent():
            return Composition(parts=(recipe.event,), counts=(recipe.count,))
        case dp_accounting.PoissonSampledDpEvent():
            noise = float(_inverse_variance(recipe.event) ** -0.5)
            return SubsampledGaussian(noise_multiplier=noise, sampling_rate=recipe.sampling_probability)
        case dp_accounting.dp_event.RepeatAndSelectDpEvent():
            if not isinstance(understood(recipe.event), (Gaussian, Laplace)):  # sampling inside would escape us
                raise RecipeError(f"only a Gaussian or Laplace release can be selected from, not {str(recipe)[:80]}")
    return recipe


def _inverse_variance(event: Recipe) -> float:
    """Gaussians on one and the same sample are one Gaussian: their inverse variances add up."""
    recipe = understood(event)
    if isinstance(recipe, Gaussian):
        return recipe.noise_multiplier**-2
    if isinstance(recipe, Composition):
        counts = recipe.counts or (1,) * len(recipe.parts)
        return sum(count * _inverse_variance(part) for part, count in zip(recipe.parts, counts, strict=True))
    raise RecipeError(f"under Poisson sampling only Gaussian noise has a known cost, not {str(recipe)[:80]}")


def _check_recipe(value: Any, what: str) -> None:
    if isinstance(value, (Gaussian, Laplace, SubsampledGaussian, Composition)):
        return
    import dp_accounting

    if not isinstance(value, dp_accounting.DpEvent):
        raise RecipeError(f"{what} of this package or dp_accounting events, not {str(value)[:60]!r}")


def _check_number(recipe: Any, field: str, least: float, most: float) -> None:
    value = getattr(recipe, field)
    number = isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
    if not number or not least <= value <= most:
        name = type(recipe).__name__
        raise RecipeError(f"{name}: {field} must be a number from {least:g} to {most:g}, not {str(value)[:60]!r}")


def _check_whole(recipe: Any, field: str, value: Any) -> None:
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or not 1 <= value <= MOST_REPEATS:
        name = type(recipe).__name__
        raise RecipeError(f"{name}: {field} must be a whole number from 1 to {MOST_REPEATS:g}, not {str(value)[:60]!r}")
