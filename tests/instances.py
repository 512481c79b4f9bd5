"""Which random instances are hard for the two kernels? Every degenerate kind we know, from a seed."""

from __future__ import annotations

import numpy as np

SHARE_KINDS = (
    "generic",
    "few_rows",
    "identical_demands",
    "zero_capacity_block",
    "zero_demand_analyst",
    "wild_weights",
    "proportional_rows",
    "single_block",
    "upper_bounds",
    "upper_bounds_wild",
    "paper_like",
    "single_analyst",
    "block_diagonal",
    "loose_rows",
    "tiny_capacity",
    "duplicate_analysts",
)


def shares_instance(random: np.random.Generator, kind: str) -> dict[str, np.ndarray | None]:
    """One step-1 instance: gamma, left, weight and upper."""
    analysts = 1 if kind == "single_analyst" else int(random.integers(2, 10))
    rows = int(random.integers(2, 16))
    if kind == "few_rows":
        rows = int(random.integers(1, 5))
    if kind == "single_block":
        rows = 1
    gamma = random.uniform(0.05, 0.6, (rows, analysts)) * (random.random((rows, analysts)) < random.uniform(0.4, 1.0))
    for analyst in range(analysts):
        if not gamma[:, analyst].any():
            gamma[random.integers(rows), analyst] = random.uniform(0.05, 0.6)
    left = random.uniform(0.3, 1.0, rows)
    weight = random.uniform(0.5, 1.3, analysts)
    upper = None
    if kind == "identical_demands":
        gamma[:] = gamma[:, :1]
        weight[:] = 1.0
    elif kind == "zero_capacity_block":
        gamma = np.vstack([gamma, np.zeros(analysts)])
        left = np.append(left, 0.0)
        gamma[-1, 0] = 0.2
    elif kind == "zero_demand_analyst":
        gamma[:, 0] = 0.0
    elif kind == "wild_weights":
        weight = 10.0 ** random.uniform(-4, 4, analysts)
    elif kind == "proportional_rows":
        factor = random.uniform(0.5, 2.0, rows)
        gamma = np.vstack([gamma, gamma * factor[:, None]])
        left = np.append(left, left * factor * random.choice([1.0, 1.0, 1.2], rows))
    elif kind == "upper_bounds":
        upper = np.where(random.random(analysts) < 0.5, 1.0, random.uniform(0.3, 3.0, analysts))
    elif kind == "upper_bounds_wild":
        upper = 10.0 ** random.uniform(-3, 3, analysts)
    elif kind == "paper_like":
        rows = 20
        window = random.random((10, analysts)) < np.linspace(0.3, 1.0, 10)[:, None]
        budget = random.uniform(1.0, 1.5, 2)
        asked = random.uniform(0.2, 0.8, analysts)
        gamma = np.vstack([window * asked / budget[0], window * asked / budget[1]])
        gamma[9] = asked / budget[0]
        left = np.ones(rows)
    elif kind == "block_diagonal":
        side = np.arange(analysts) % 2
        gamma[: (rows + 1) // 2, side == 0] = 0.0
        gamma[(rows + 1) // 2 :, side == 1] = 0.0
        for analyst in np.flatnonzero(~gamma.any(axis=0)):
            gamma[0 if side[analyst] else -1, analyst] = 0.3
    elif kind == "loose_rows":
        gamma = np.vstack([gamma, gamma * 1e-3])
        left = np.append(left, np.full(rows, 10.0))
    elif kind == "tiny_capacity":
        left[random.integers(rows)] = 10.0 ** random.uniform(-9, -3)
    elif kind == "duplicate_analysts" and analysts > 1:
        gamma[:, 1] = gamma[:, 0]
        weight[1] = weight[0]
    return {"gamma": gamma, "left": left, "weight": weight, "upper": upper}


def large_shares_instance(random: np.random.Generator, analysts: int, rows: int) -> dict[str, np.ndarray]:
    """A step-1 instance of the size of a platform: sparse, uneven blocks, every analyst on many of them."""
    density = 0.25 if analysts <= 100 else 0.135
    gamma = random.uniform(0.05, 0.6, (rows, analysts)) * (random.random((rows, analysts)) < density)
    gamma[random.integers(0, rows, analysts), np.arange(analysts)] = 0.3
    return {"gamma": gamma, "left": random.uniform(0.3, 1.0, rows), "weight": random.uniform(0.5, 1.3, analysts)}


PACKING_KINDS = (
    "paper",
    "few_rows",
    "many_rows",
    "one_fits",
    "none_fits",
    "all_fit",
    "zero_budget_row",
    "dyadic",
    "exact_fit",
    "duplicates",
    "equal_weights",
    "wild_weights",
    "capped",
    "all_or_nothing",
)


def packing_instance(random: np.random.Generator, kind: str, pipelines: int | None = None, rows: int | None = None):
    """One step-2 instance: gamma, left, value and upper. Budgets are a share x of the analyst's total demand."""
    n = pipelines or int(random.integers(3, 13))
    height = rows or {"many_rows": int(random.integers(6, 15))}.get(kind, int(random.integers(1, 4)))
    elephant = random.random(n) < 0.25
    size = np.where(elephant, random.uniform(0.095, 0.105, n), random.uniform(0.005, 0.015, n))
    wants = random.random((height, n)) < np.linspace(1.0, 0.3, height)[:, None]
    gamma = wants * size / random.uniform(1.0, 1.5, height)[:, None]
    if kind == "many_rows":
        gamma = wants * random.uniform(0.005, 0.12, (height, n))
    if kind in ("dyadic", "exact_fit"):
        gamma = np.where(wants, random.integers(1, 64, (height, n)) / 512.0, 0.0)
    if kind == "duplicates":
        gamma[:, n // 2 :] = gamma[:, : n - n // 2]
    gamma[0, ~gamma.any(axis=0)] = 0.01
    share = random.uniform(0.2, 0.95)
    left = gamma.sum(axis=1) * share
    if kind == "dyadic":
        left = np.floor(left * 512) / 512
    if kind == "exact_fit":
        chosen = random.random(n) < 0.5
        left = gamma[:, chosen].sum(axis=1) + 1 / 512
    if kind == "one_fits":
        left = np.min(np.where(gamma > 0, gamma, np.inf), axis=1) * 1.5
        left[~np.isfinite(left)] = 1.0
    if kind == "none_fits":
        left = np.min(np.where(gamma > 0, gamma, np.inf), axis=1) * 0.9
        left[~np.isfinite(left)] = 1.0
    if kind == "all_fit":
        left = gamma.sum(axis=1) * random.uniform(1.05, 3.0)
    if kind == "zero_budget_row" and height > 1:
        left[-1] = 0.0
    left = np.where(left > 0, left, 0.0 if kind == "zero_budget_row" else 0.5)
    weight = random.uniform(0.5, 1.3, n)
    if kind == "equal_weights":
        weight[:] = 1.0
    if kind == "wild_weights":
        weight = 10.0 ** random.uniform(-3, 3, n)
    upper = None
    if kind == "capped":
        upper = np.where(random.random(n) < 0.5, np.inf, random.uniform(1.0, 3.0, n))
    if kind == "all_or_nothing":
        upper = np.ones(n)
    return {"gamma": gamma, "left": left, "value": gamma.max(axis=0) * weight, "upper": upper}
