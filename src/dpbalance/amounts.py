"""What is a privacy amount? A whole number of 1e-9 Renyi-epsilon, and this is the only place that rounds.

Laws for future editors:
1. A cost rounds up and a capacity rounds down, so rounding can never spend what is not there.
2. A double stands for the shortest decimal that names it: 0.1 is one tenth, exactly 100_000_000 units,
   not the binary fraction just above it. Sums of decimals a person wrote therefore come out even.
3. Nothing here wraps around: what may leave 64 bits is refused or summed in Python integers.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbalance.errors import AmountError

UNITS_PER_EPSILON = 10**9
"""How many whole-number units make one Renyi-epsilon."""

MAX_EPSILON = 10**6
"""The largest single amount. 1e15 units still have an exact double, and 9,000 of them fit in 64 bits."""

MAX_UNITS = MAX_EPSILON * UNITS_PER_EPSILON

Units = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


def cost_units(epsilon: Any) -> Units:
    """Whole units of a cost, rounded up.

    >>> int(cost_units(0.1)), int(cost_units(1e-10))
    (100000000, 1)
    """
    value, nearest, decimal = _nearest(epsilon)
    return np.where(value > decimal, nearest + 1, nearest)


def capacity_units(epsilon: Any) -> Units:
    """Whole units of a capacity, rounded down.

    >>> int(capacity_units(0.3)), int(capacity_units(0.1 + 0.2)), int(capacity_units(1e-10))
    (300000000, 300000000, 0)
    """
    value, nearest, decimal = _nearest(epsilon)
    return np.where(value < decimal, nearest - 1, nearest)


def epsilons(units: Any) -> Floats:
    """The doubles that name these amounts; `cost_units` and `capacity_units` give the same units back.

    >>> float(epsilons(300000000))
    0.3
    """
    return np.asarray(units, dtype=np.int64) / UNITS_PER_EPSILON


def multiplied(units: Units, multiple: Floats) -> Units:
    """`ceil(units * multiple)` without a rounding error, for multiples of at least 1; at most `MAX_UNITS + 1`.

    No capacity can hold more than `MAX_UNITS`, so what is charged above it closes an order all the same. That happens
    at the orders that do not bind, whose costs may be many times those of the one that does.

    The product of two doubles is split into its rounded value and the exact remainder (Dekker), because the
    rounded value alone can fall on a whole number that the exact product has already passed.

    >>> multiplied(np.array([3, 10]), np.array([1.25, 1.0])).tolist()
    [4, 10]
    """
    left = np.asarray(units, dtype=np.float64)
    right = np.asarray(multiple, dtype=np.float64)
    product = left * right
    left_high, left_low = _split(left)
    right_high, right_low = _split(right)
    rest = left_low * right_low - (((product - left_high * right_high) - left_low * right_high) - left_high * right_low)
    whole = np.ceil(product)
    exact: Units = np.minimum(whole + ((whole == product) & (rest > 0)), MAX_UNITS + 1).astype(np.int64)
    return exact


def multiplied_exactly(units: int, multiple: float) -> int:
    """The same as `multiplied` by exact fractions: the second route, for checks and single values."""
    exact = Fraction(multiple) * units
    return min(-((-exact.numerator) // exact.denominator), MAX_UNITS + 1)


def _split(value: Floats) -> tuple[Floats, Floats]:
    scaled = value * 134217729.0
    high = scaled - (scaled - value)
    return high, value - high


def _nearest(epsilon: Any) -> tuple[Floats, Units, Floats]:
    """The doubles, their nearest whole units, and the doubles that name those units."""
    try:
        value = np.asarray(epsilon, dtype=np.float64)
    except (TypeError, ValueError) as problem:
        raise AmountError(f"an amount must be a number, not {str(epsilon)[:60]!r}") from problem
    wrong = ~((value >= 0) & (value <= MAX_EPSILON))
    if wrong.any():
        culprit = float(value[wrong].flat[0]) if value.ndim else float(value)
        raise AmountError(f"an amount must be between 0 and {MAX_EPSILON:g} epsilon, not {culprit!r}")
    nearest = np.rint(value * UNITS_PER_EPSILON)
    return value, nearest.astype(np.int64), nearest / UNITS_PER_EPSILON
