"""Which small markets are the paper's claims about? Random rounds of a kind, from a seed."""

from __future__ import annotations

import numpy as np

from dpbalance.demand import Pipeline
from dpbalance.market import Block, Round


def market(
    random: np.random.Generator,
    *,
    spent: bool = False,
    unequal: bool = False,
    capped: bool = False,
    priorities: bool = False,
    pipelines_each: int = 3,
) -> Round:
    """2 to 6 analysts who ask some of 1 to 6 blocks: fresh or partly spent, all with the same a_i or not."""
    analysts, blocks = int(random.integers(2, 7)), int(random.integers(1, 7))
    capacity = np.round(random.uniform(0.5, 1.5, blocks), 3)
    used = np.round(capacity * random.uniform(0, 0.9, blocks), 4) if spent else np.zeros(blocks)
    offered = [Block(id=f"B{k}", capacity=float(capacity[k]), spent=float(used[k])) for k in range(blocks)]
    wanted = [
        Pipeline(
            id=f"P{at}-{number}",
            analyst=f"A{at}",
            demand=_demand(random, capacity - used),
            loss=float(random.uniform(0.2, 1.0)) if unequal else 1.0,
            submitted=float(-random.uniform(0, 100)) if unequal else None,
            max_multiple=float(random.uniform(1, 3)) if capped else None,
        )
        for at in range(analysts)
        for number in range(int(random.integers(1, pipelines_each + 1)))
    ]
    heads = {f"A{at}": float(random.integers(1, 5)) for at in range(analysts)} if priorities else None
    return Round.build(offered, wanted, priorities=heads)


def _demand(random: np.random.Generator, left: np.ndarray) -> dict[str, float]:
    """Something of some blocks, and never more than is left of one."""
    asked = random.random(len(left)) < random.uniform(0.3, 1.0)
    asked[random.integers(len(left))] = True
    part = random.uniform(0.02, 0.6, len(left)) * left
    return {f"B{k}": float(np.ceil(part[k] * 1e6) / 1e6) for k in np.flatnonzero(asked)}


def table_market(demands: dict[str, list[float]], left: list[float] | None = None, **loss: float) -> Round:
    """One pipeline each, with this demand on blocks of capacity 1, of which `left` is left."""
    count = len(next(iter(demands.values())))
    remains = [1.0] * count if left is None else left
    return Round.build(
        [Block(id=f"B{k + 1}", capacity=1.0, spent=round(1.0 - remains[k], 9)) for k in range(count)],
        [
            Pipeline(
                id=name.upper(),
                analyst=name,
                demand={f"B{k + 1}": each for k, each in enumerate(asked) if each},
                loss=loss.get(name, 1.0),
            )
            for name, asked in demands.items()
        ],
    )
