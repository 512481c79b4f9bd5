"""Is step 1 really optimal? A bound on what anyone could reach, from block prices alone, by code that solves nothing.

Step 1 divides what is left between analysts along their total demand D_i. In scaled form, with y_i = mu_i a_i x_i and
A_ki = D_ik / (left_k mu_i a_i), it maximises over A y <= 1

    F(y) = w log W(y) + c log sum y,    W(y) = (mean_i y_i^(1-beta))^(1/(1-beta)),    w = |1-beta|/beta,  c = lam - w.

An analyst of priority m_i counts as m_i analysts who share what it gets: y_i is then what each of them gets, means are
over all of them (M = sum m), and each pays q_i / m_i.

For any prices p >= 0 on the blocks let q = A' p. Hoelder's inequality gives, with no trust in how y was found (c = 0),

    log W* <= log(sum p / M) + beta/(1-beta) log mean q_i^((beta-1)/beta)

(-mean log q at beta = 1, -log min q at 0, -log mean q at infinity). For c > 0 nobody can pass the best of F over the
one row q y <= sum p, which a bisection finds. For lam = 0 the shares are equal and one full block proves them.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpbalance.allocation.valuation import Flags
from dpbalance.market.round import Floats, Indices, Round


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """Step 1's answer with all it takes to check it."""

    beta: float
    lam: float | None
    order: Indices
    """The order of each block at which the round was divided."""
    admitted: Flags
    """Pipelines whose demands were summed."""
    weight: Floats
    """a_i."""
    priority: Floats
    """m_i, as how many analysts each counts."""
    upper: Floats
    """Largest useful x_i, infinite without caps."""
    take: Floats
    """x_i: the multiple of its total demand each analyst is offered."""
    price: Floats
    """One for each block; what certifies the answer."""
    bound_price: Floats
    """One for each analyst's upper bound."""
    as_printed: bool = False
    """The paper's printed constraint, which may hand out more than is left."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the certificate says about shares."""

    violation: float
    """How far any block is overfilled, as a share of what is left of it."""
    gap: float | None
    """How far log W (or F) may be from the best possible; None when not certifiable or nobody takes part."""


def verify(round_: Round, shares: Shares) -> Verdict:
    """Recompute every row of step 1 from the round and bound its optimality gap."""
    demands = totals(round_, shares)
    left = np.take_along_axis(round_.available, shares.order[:, None], axis=1)[:, 0].astype(np.float64)
    capacity = np.take_along_axis(round_.capacity, shares.order[:, None], axis=1)[:, 0].astype(np.float64)
    activity = np.zeros(len(left))
    utility, pull, mass, prices = [], [], [], float(np.sum(shares.price))
    for analyst, (block, amount) in demands.items():
        scale = float(np.max(amount / capacity[block])) * float(shares.weight[analyst] / shares.priority[analyst])
        mass.append(float(shares.priority[analyst]))
        take = float(shares.take[analyst])
        factor = float(shares.weight[analyst]) if shares.as_printed else 1.0
        np.add.at(activity, block, amount * (take * factor))
        upper = float(shares.upper[analyst])
        bound = float(shares.bound_price[analyst])
        utility.append(scale * take)
        pull.append(
            factor * float(np.sum(shares.price[block] * amount / left[block])) / scale
            + (bound / (upper * scale) if np.isfinite(upper) else 0.0)
        )
        prices += bound
    touched = activity > 0
    over = np.max(activity[touched] / left[touched] - 1.0, initial=0.0)
    if not utility or not certifiable(shares.beta, shares.lam):
        return Verdict(float(over), None)
    proven = gap(np.array(utility), np.array(pull), prices, shares.beta, shares.lam, np.array(mass))
    return Verdict(float(over), proven)


def gap(y: Floats, q: Floats, prices: float, beta: float, lam: float | None, mass: Floats) -> float:
    """The certified distance from the optimum of positive y, given q = A' p, sum p and the priorities."""
    if lam == 0:
        return float(np.ptp(np.log(y))) + float(np.log(max(prices / float(q @ y), 1.0)))
    own = strength(beta)
    if lam is None or lam == own:
        return upper_bound(q, prices, beta, mass) - log_welfare(y, beta, mass)
    if np.isinf(lam) or beta == 1:
        return upper_bound(q, prices, 0.0, mass) - log_welfare(y, 0.0, mass)
    return joint_bound(q, prices, beta, lam - own, mass) - joint_value(y, beta, lam - own, mass)


def strength(beta: float) -> float:
    """w = |1-beta|/beta, how much fairness weighs beside the sum."""
    if np.isinf(beta):
        return 1.0
    return np.inf if beta == 0 else abs(1.0 - beta) / beta


def certifiable(beta: float, lam: float | None) -> bool:
    """Whether prices can prove the answer: not where it is found by a search over the sum or the smallest utility."""
    if lam is None or lam == 0 or np.isinf(lam):
        return True
    return lam == 1 if np.isinf(beta) else lam >= strength(beta)


def joint_value(y: Floats, beta: float, extra: float, mass: Floats) -> float:
    """F(y) = w log W(y) + c log sum m y."""
    return strength(beta) * log_welfare(y, beta, mass) + extra * float(np.log(mass @ y))


def joint_bound(q: Floats, prices: float, beta: float, extra: float, mass: Floats) -> float:
    """The largest F over q y <= sum p.

    With q per head its optimum is, up to scale, y_i = (q_i - theta)^(-1/beta) for the theta below min q with
    theta = c P / (w S), P = sum m y^(1-beta), S = sum m y. F is concave, so at the y found its linear bound is one
    for everyone: with dF.y = w + c the excess is sum p * max_i (dF_i / q_i) - (w + c), 0 at the exact theta.
    """
    if not np.min(q) > 0 or not prices > 0:
        return float("inf")
    q = q / mass
    own, least = strength(beta), float(np.min(q))
    above = q - least
    low, high = float(np.log(least)) - 650.0, float(np.log(least))
    log_y = np.zeros(len(q))
    for _ in range(200):
        distance = 0.5 * (low + high)  # the logarithm of min q - theta, which may be tiny
        log_y = -np.log(above + np.exp(distance)) / beta
        ratio = float(np.log(extra / own)) + _log_mean_exp((1.0 - beta) * log_y, mass) - _log_mean_exp(log_y, mass)
        theta = least - float(np.exp(distance))
        if theta <= 0 or np.log(theta) < ratio:
            high = distance
        else:
            low = distance
    log_y += float(np.log(prices)) - float(np.log(np.sum(mass * q * np.exp(log_y - np.max(log_y))))) - np.max(log_y)
    y, powers = np.exp(log_y), (1.0 - beta) * log_y
    share = np.exp(powers - np.max(powers))
    gradient = own * share / (mass @ share) / y + extra / (mass @ y)
    excess = prices * float(np.max(gradient / q)) - (own + extra)
    return joint_value(y, beta, extra, mass) + max(excess, 0.0)


def log_welfare(y: Floats, beta: float, mass: Floats | None = None) -> float:
    """log W(y), the logarithm of the generalised mean."""
    mass = np.ones(len(y)) if mass is None else mass
    with np.errstate(divide="ignore"):
        log_y = np.log(y)
    if beta == 1:
        return float(mass @ log_y / np.sum(mass)) if np.min(y) > 0 else -np.inf
    if np.isinf(beta):
        return float(np.min(log_y))
    return _log_mean_exp((1.0 - beta) * log_y, mass) / (1.0 - beta)


def upper_bound(q: Floats, prices: float, beta: float, mass: Floats | None = None) -> float:
    """The largest log W any feasible y can have, by Hoelder's inequality.

    Infinite if an analyst pays nothing and beta <= 1; above 1 such an analyst merely stops counting.
    """
    if not prices > 0 or not np.max(q) > 0 or (beta <= 1 and not np.min(q) > 0):
        return float("inf")
    mass = np.ones(len(q)) if mass is None else mass
    with np.errstate(divide="ignore"):
        log_q = np.log(q / mass)
    head = float(np.log(prices / np.sum(mass)))
    if beta == 0:
        return head - float(np.min(log_q))
    if beta == 1:
        return head - float(mass @ log_q / np.sum(mass))
    if np.isinf(beta):
        return head - _log_mean_exp(log_q, mass)
    return head + beta / (1.0 - beta) * _log_mean_exp((beta - 1.0) / beta * log_q, mass)


def _log_mean_exp(values: Floats, mass: Floats) -> float:
    top = float(np.max(values))
    return top if np.isinf(top) else top + float(np.log(mass @ np.exp(values - top) / np.sum(mass)))


def totals(round_: Round, shares: Shares) -> dict[int, tuple[Indices, Floats]]:
    """Per analyst that takes part: its blocks and the total of its admitted demands there."""
    found: dict[int, tuple[Indices, Floats]] = {}
    blocks = len(round_.blocks)
    for analyst in range(len(round_.analysts)):
        mine = np.flatnonzero((round_.owner == analyst) & shares.admitted)
        if not len(mine):
            continue
        _, entries = round_.demands(mine)
        block = round_.block[entries]
        amount = np.bincount(block, weights=round_.cost[entries, shares.order[block]], minlength=blocks)
        asked = np.flatnonzero(amount)
        if not len(asked):  # it asks for nothing at these orders
            continue
        found[analyst] = (asked, amount[asked].astype(np.float64))
    return found
