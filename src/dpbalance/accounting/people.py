"""What does a Renyi amount mean to people, in (epsilon, delta)?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dpbalance.accounting.orders import checked_orders
from dpbalance.amounts import MAX_EPSILON, Units, capacity_units, epsilons
from dpbalance.errors import OptionError

SAFETY = 1e-11
"""Float error that is paid for, as a share of the terms that are added; the true error stays far below."""


def epsilon(spent: Units | Sequence[int], orders: Sequence[float] | None, delta: float) -> float:
    """The epsilon at this delta after spending these units at these orders: the least that any order proves.

    The conversion is proposition 12 of Canonne, Kamath, Steinke (2020), "The Discrete Gaussian".

    >>> round(epsilon([1_250_000_000], None, 1e-5), 3)
    2.464
    """
    return _converted(spent, orders, delta)[0]


def best_order(spent: Units | Sequence[int], orders: Sequence[float] | None, delta: float) -> float:
    """The order that proves the epsilon.

    >>> best_order([125_000_000, 1_000_000_000], [1.5, 8], 1e-5)
    8.0
    """
    return _converted(spent, orders, delta)[1]


def capacity(epsilon: float, delta: float, orders: Sequence[float] | None = None) -> Units:
    """The capacity of a block that may lose (epsilon, delta): max(0, epsilon + ln(delta) / (a - 1)), rounded down.

    An order that can prove nothing at this delta holds 0. This is the plain conversion of Mironov (2017), proposition
    3; `epsilon` is sharper, so a block within its capacity at one order stays below (epsilon, delta).

    >>> capacity(3.0, 1e-5, [1.5, 8]).tolist()
    [0, 1355296362]
    """
    checked = checked_orders(orders)
    _check_delta(delta)
    if not _is_number(epsilon) or not 0 <= epsilon <= MAX_EPSILON:
        raise OptionError(f"epsilon must be a number from 0 to {MAX_EPSILON:g}, not {str(epsilon)[:60]!r}")
    price = -math.log(delta) / (checked - 1)
    return capacity_units(np.maximum(0, epsilon - price - SAFETY * (epsilon + price)))


def _converted(spent: Any, orders: Sequence[float] | None, delta: float) -> tuple[float, float]:
    from dp_accounting.rdp import compute_epsilon

    checked = checked_orders(orders)
    _check_delta(delta)
    units = np.atleast_1d(np.asarray(spent))
    if units.shape != checked.shape or units.dtype.kind not in "iu" or (units < 0).any():
        raise OptionError(f"spent must be {len(checked)} whole units of at least 0, not {str(spent)[:60]}")
    total = epsilons(units) * (1 + SAFETY)
    least, order = compute_epsilon(checked.tolist(), total.tolist(), delta)
    return float(least + SAFETY * (1 + least) if least > 0 else 0.0), float(order)


def _check_delta(delta: float) -> None:
    if not _is_number(delta) or not 1e-300 <= delta < 1:
        raise OptionError(f"delta must be a number above 1e-300 and below 1, not {str(delta)[:60]!r}")


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)
