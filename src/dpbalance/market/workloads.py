"""Which synthetic rounds do people compare schedulers on?"""

from __future__ import annotations

import numpy as np

from dpbalance.amounts import capacity_units, cost_units
from dpbalance.clock import chance
from dpbalance.demand.pipeline import Pipeline
from dpbalance.demand.selector import Selector
from dpbalance.market.block import Block
from dpbalance.market.round import Round, natural


def worked_example() -> Round:
    """The paper's two analysts and two blocks of budget 1."""
    demands = {"P1": ("alice", 0.5, 0.3), "P2": ("alice", 0.3, 0.5), "P3": ("bob", 0.4, 0.3), "P4": ("bob", 0.3, 0.3)}
    return Round.build(
        [Block(id="B1", capacity=1.0), Block(id="B2", capacity=1.0)],
        [Pipeline(id=name, analyst=who, demand={"B1": b1, "B2": b2}) for name, (who, b1, b2) in demands.items()],
    )


def paper_round(
    *,
    seed: int = 0,
    devices: int = 100,
    windows: int = 20,
    analysts: int = 6,
    pipelines_each: int = 25,
) -> Round:
    """One round of the paper's evaluation: fresh blocks, three quarters mice, one quarter elephants.

    Budgets U(1, 1.5) by device; mice ask U(0.005, 0.015), elephants U(0.095, 0.105), shuffled over the analysts; the
    latest 10 windows with probability 0.25, else the latest one; an analyst asks all devices or a fifth, half and half;
    losses U(0.5, 1) and waits U(0, 100) seconds stand for the paper's unstated T and l.
    """
    random = chance(seed)
    count = analysts * pipelines_each
    elephant = random.permutation(np.arange(count) < round(0.25 * count))
    epsilon = np.where(elephant, random.uniform(0.095, 0.105, count), random.uniform(0.005, 0.015, count))
    latest = np.where(random.random(count) < 0.25, 10, 1)
    wide = random.permutation(np.arange(analysts) < (analysts + 1) // 2)
    entries = []
    for analyst in range(analysts):
        chosen = Selector(device_share=1.0 if wide[analyst] else 0.2).devices(devices, random)
        for newest in latest[analyst * pipelines_each : (analyst + 1) * pipelines_each]:
            entries.append(Selector(latest=int(newest)).blocks(chosen, windows))
    counts = np.array([len(each) for each in entries])
    budget = np.repeat(capacity_units(random.uniform(1.0, 1.5, devices)), windows)[:, None]
    cost = np.repeat(cost_units(epsilon), counts)[:, None]
    width = [len(str(size - 1)) for size in (devices, windows, count, analysts)]
    names = tuple(f"d{d:0{width[0]}}/w{w:0{width[1]}}" for d in range(devices) for w in range(windows))
    owners = tuple(f"analyst-{a:0{width[3]}}" for a in range(analysts))
    assert natural(names[0]) <= natural(names[-1])
    return Round(
        orders=None,
        now=100.0,
        blocks=names,
        capacity=budget,
        spent=np.zeros_like(budget),
        unlocked=budget,
        analysts=owners,
        pipelines=tuple(f"p{at:0{width[2]}}" for at in range(count)),
        owner=np.repeat(np.arange(analysts), pipelines_each),
        submitted=100.0 - random.uniform(0, 100, count),
        weight=np.ones(count),
        loss=random.uniform(0.5, 1.0, count),
        max_multiple=np.full(count, np.inf),
        start=np.concatenate(([0], np.cumsum(counts))),
        block=np.concatenate(entries).astype(np.int32),
        cost=cost,
    )
