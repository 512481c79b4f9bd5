"""What if caps bind? Whoever is at its cap leaves the market, the others divide the rest, and prices say who belongs.

An interior point sees a point where a cap and a row bind together only to half its digits, and for a large beta the
price of a poor analyst's cap is so large that the prices of the rows drown in it. Both are gone once caps are facts:

    x_i = u_i for the capped,  alpha-fair shares of what is left for the others,
    m_i y_i^-beta >= exp(-kappa) q_i for the capped, with kappa and q = A' p of the others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NEAR = 1e-5
"""Relatively this near to its cap an analyst is tried on it."""

SWAMPED = 18.0
"""From this logarithm on the smallest weight in the objective is lost beside the largest."""

PASSES_MAX = 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Settled:
    """Shares with caps met exactly, and the prices that go with them."""

    x: Floats
    price: Floats
    bound_price: Floats


Rest = Callable[[Floats, npt.NDArray[np.bool_]], tuple[npt.NDArray[np.int64], Floats, Floats] | None]
"""Divides what is left between those who are not capped: who takes part, their x, and prices per unit of each row."""


def doubtful(x: Floats, upper: Floats, y: Floats, beta: float) -> bool:
    """Whether caps bind in a way that the solver cannot see to the last digit."""
    capped = x >= upper * (1.0 - NEAR)
    if not capped.any():
        return False
    if (capped & (x < upper * (1.0 - 1e-12))).any():
        return True
    return beta > 1 and (beta - 1.0) * float(np.ptp(np.log(np.maximum(y, 1e-300)))) > SWAMPED


def settle(asked: Any, scale: Floats, beta: float, x: Floats, rest: Rest) -> Settled | None:
    """The capped by their prices, or None where no set of them settles. `scale` is y / x of everybody."""
    upper, offset = asked.upper, np.log(asked.priority)
    owner = np.repeat(np.arange(len(x)), np.diff(asked.start))
    taking = x > 0
    capped = taking & (x >= upper * (1.0 - NEAR))
    for _ in range(PASSES_MAX):
        used = np.where(capped, upper, 0.0)[owner] * asked.value if capped.any() else np.zeros(len(owner))
        left = asked.left - np.bincount(asked.row, weights=used, minlength=len(asked.left))
        found = rest(left, capped)
        if found is None:
            return None
        members, own, price = found
        tried = np.where(capped, upper, 0.0)
        tried[members] = own
        if (taking & ~(tried > 0)).any():
            return None  # a row that the capped fill leaves somebody with nothing
        more = ~capped & taking & (tried >= upper * (1.0 - NEAR))
        if more.any():
            capped = capped | more
            continue
        pull = np.bincount(owner, weights=price[asked.row] * asked.value, minlength=len(x))  # per x
        with np.errstate(divide="ignore", invalid="ignore"):  # of those who take no part
            want = offset + np.log(scale) - beta * np.log(tried * scale)  # log of m y^-beta, per x
            kappa = float(np.mean(np.log(pull[members]) - want[members])) if len(members) else -np.inf
            release = capped & (want + kappa < np.log(pull) - 1e-9)
        if not release.any():
            return _priced(asked, tried, capped, price, pull, want, kappa)
        capped = capped & ~release
    return None


def _priced(
    asked: Any, x: Floats, capped: npt.NDArray[np.bool_], price: Floats, pull: Any, want: Floats, kappa: float
) -> Settled:
    """Prices for rows of size 1: of the rows as found, of the caps what makes everybody's account balance."""
    worth = want + (kappa if np.isfinite(kappa) else 0.0)
    largest = float(np.max(worth[capped], initial=0.0))
    own = np.exp(-largest) if np.isfinite(kappa) else 0.0
    excess = np.zeros(len(x))
    excess[capped] = np.maximum(np.exp(worth[capped] - largest) - own * pull[capped], 0.0)
    bound = np.where(capped, excess * np.where(capped, asked.upper, 0.0), 0.0)
    return Settled(x=x, price=own * price * asked.left, bound_price=bound)
