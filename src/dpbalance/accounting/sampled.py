"""What does one step of the Poisson-sampled Gaussian cost?

Mironov, Talwar, Zhang (2019), "Renyi Differential Privacy of the Sampled Gaussian Mechanism", section 3.3: with
sampling rate q, noise multiplier z and add-or-remove-one neighbours

    RDP(a) = log(A) / (a - 1),   A = E[(1 + r(x))^a],   r(x) = q (exp((2x - 1) / (2 z^2)) - 1),   x ~ N(0, z^2)

A is 1 plus very little in every recipe worth training, so nothing here computes A: since E[r] = 0, both ways below
sum A - 1 from terms that are never negative, and no digits cancel. That is also why this is not left to
dp-accounting 0.6, whose series for fractional orders adds the magnitudes of terms with alternating signs (far too
large, or without end), and whose sum for whole orders loses the digits of a small A - 1.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpbalance.accounting.orders import Floats

MOST_POINTS = 1_000_000
"""Where more would be needed a record costs over 100,000 epsilon, sampled or not, and is charged as if not sampled."""

TAIL = 10.0
"""Standard deviations beyond which the integrand is left out: exp(-50) of it."""

POINTS = 4.0
"""Points of the trapezoid rule in each z, or z^2, whichever is less: its error then is below exp(-70)."""

SMALL = 0.05
"""Below this a * |r| the power is summed as a series of ten terms: the first one left out is below 1e-13."""


def sampled_gaussian(sampling_rate: float, noise_multiplier: float, order: float) -> float:
    """RDP of one step at this order, to about twelve digits.

    >>> round(sampled_gaussian(0.01, 1.0, 8.0), 9)
    0.000893644
    """
    without_sampling = order / (2 * noise_multiplier**2)
    if sampling_rate == 1:
        return without_sampling
    if order.is_integer():
        log_excess = _whole_order(sampling_rate, noise_multiplier, int(order))
    else:
        log_excess = _fractional_order(sampling_rate, noise_multiplier, order)
    return min(without_sampling, float(np.logaddexp(0.0, log_excess)) / (order - 1))


def _whole_order(q: float, z: float, a: int) -> float:
    """log(A - 1) as a binomial sum: C(a, i) q^i (1 - q)^(a - i) (exp((i^2 - i) / (2 z^2)) - 1), i from 2 to a."""
    i = np.arange(2, a + 1)
    exponent = (i * i - i) / (2 * z * z)
    log_growth = exponent + np.log(-np.expm1(-exponent))
    return _log_sum(_log_binomials(a) + i * math.log(q) + (a - i) * math.log1p(-q) + log_growth)


def _fractional_order(q: float, z: float, a: float) -> float:
    """log(A - 1) by the trapezoid rule on E[(1 + r)^a - 1 - a r], which is smooth, so few points give all digits."""
    low, high = -TAIL * z, a + TAIL * z
    points = math.ceil(POINTS * (high - low) / min(z, z * z)) + 1
    if points > MOST_POINTS:
        return math.inf
    x, step = np.linspace(low, high, points, retstep=True)
    log_density = -0.5 * (x / z) ** 2 - math.log(z * math.sqrt(2 * math.pi))
    return _log_sum(log_density + _log_bend(q, (2 * x - 1) / (2 * z * z), a)) + math.log(step)


def _log_bend(q: float, t: Floats, a: float) -> Floats:
    """log((1 + r)^a - 1 - a r) for r = q (e^t - 1), without overflow for large t and without cancelling for small r."""
    r = q * np.expm1(np.minimum(t, 700.0))
    log_ratio = np.where(t < 700.0, np.log1p(r), math.log(q) + t)
    small = a * np.abs(r) < SMALL
    large = ~small & (a * log_ratio > 1)
    middle = ~small & ~large
    bend = np.empty_like(t)
    with np.errstate(divide="ignore"):  # r = 0 bends nothing: log(0) is the -inf that is meant
        bend[small] = np.log(_power_series(r[small], a))
    v = log_ratio[middle]
    bend[middle] = np.log(np.expm1(a * v) - a * r[middle])
    v = log_ratio[large]
    bend[large] = a * v + np.log1p((a - 1) * np.exp(-a * v) - a * np.exp((1 - a) * v))
    return bend


def _power_series(r: Floats, a: float) -> Floats:
    """C(a, 2) r^2 + C(a, 3) r^3 + ..: ten terms by Horner's rule."""
    series = np.ones_like(r)
    for k in range(11, 2, -1):
        series = 1 + (a - k + 1) / k * r * series
    return a * (a - 1) / 2 * r**2 * series


@lru_cache(maxsize=64)
def _log_binomials(a: int) -> Floats:
    return np.array([math.log(math.comb(a, i)) for i in range(2, a + 1)])


def _log_sum(logarithms: Floats) -> float:
    largest = float(logarithms.max())
    return largest + math.log(float(np.exp(logarithms - largest).sum()))
