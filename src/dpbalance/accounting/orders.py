"""At which Renyi orders is privacy loss counted?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpbalance.errors import OptionError

Floats = npt.NDArray[np.float64]

ALPHA = 8.0
"""The one order that is counted when no orders are named."""

ALPHAS = (1.5, 1.75, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 16.0, 32.0, 64.0)
"""The twelve orders of DPack, for who wants every recipe counted at an order that suits it."""

LEAST_ORDER = 1.1
MOST_ORDER = 1024.0
"""Nearer to 1 the conversion to (epsilon, delta) says nothing; above 1024 the sums lose digits."""


def checked_orders(orders: Sequence[float] | None) -> Floats:
    """The orders as an array; None is the single default order, as in a Round.

    >>> checked_orders(None).tolist()
    [8.0]
    """
    given = [ALPHA] if orders is None else list(orders)
    for order in given:
        number = isinstance(order, (int, float, np.integer, np.floating)) and not isinstance(order, bool)
        if not number or not LEAST_ORDER <= order <= MOST_ORDER:
            raise OptionError(f"orders must be numbers from {LEAST_ORDER:g} to {MOST_ORDER:g}, not {str(order)[:60]!r}")
    if not given or len(set(given)) != len(given):
        raise OptionError(f"orders must be one or more distinct numbers, not {str(given)[:60]}")
    return np.array(given, dtype=np.float64)
