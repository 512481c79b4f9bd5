"""Which synthetic rounds do people compare schedulers on?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dpbalance.amounts import Units, capacity_units, cost_units, epsilons
from dpbalance.clock import chance
from dpbalance.demand.paper import Mix
from dpbalance.demand.pipeline import Pipeline
from dpbalance.market.block import Block
from dpbalance.market.round import Floats, Indices, Round


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
    asks = Mix().draw(
        random, analysts=analysts, pipelines_each=pipelines_each, devices=devices, windows=windows, catalogue=windows
    )
    budget = np.repeat(capacity_units(random.uniform(1.0, 1.5, devices)), windows)[:, None]
    return even_round(
        now=100.0,
        blocks=grid_names(devices, windows),
        capacity=budget,
        owner=np.repeat(np.arange(analysts), pipelines_each),
        submitted=100.0 - random.uniform(0, 100, count),
        loss=random.uniform(0.5, 1.0, count),
        asked=asks.blocks,
        cost=cost_units(asks.epsilon)[:, None],
    )


def even_round(
    *,
    now: float,
    blocks: tuple[str, ...],
    capacity: Units,
    owner: Indices,
    submitted: Floats,
    asked: Sequence[Indices],
    cost: Units,
    orders: tuple[float, ...] | None = None,
    weight: Floats | None = None,
    loss: Floats | None = None,
) -> Round:
    """Fresh blocks, in natural order, and pipelines that ask the same of each of theirs, given ascending."""
    count = len(asked)
    asked_each = np.array([len(each) for each in asked], dtype=np.int64)
    present, owner = np.unique(owner, return_inverse=True)
    names = numbered("analyst-", int(present[-1]) + 1 if count else 0)
    return Round(
        orders=orders,
        now=now,
        blocks=blocks,
        capacity=capacity,
        spent=np.zeros_like(capacity),
        unlocked=capacity,
        analysts=tuple(names[at] for at in present),
        pipelines=numbered("p", count),
        owner=owner,
        submitted=submitted,
        weight=np.ones(count) if weight is None else weight,
        loss=np.ones(count) if loss is None else loss,
        max_multiple=np.full(count, np.inf),
        unrounded=epsilons(cost.max(axis=1)),
        start=np.concatenate(([0], np.cumsum(asked_each))),
        block=np.concatenate([*asked, np.zeros(0, dtype=np.int64)]).astype(np.int32),
        cost=np.repeat(cost, asked_each, axis=0),
    )


def numbered(prefix: str, count: int) -> tuple[str, ...]:
    """Names in natural and in letter order at once.

    >>> numbered("p", 11)[9:]
    ('p09', 'p10')
    """
    width = len(str(max(count - 1, 0)))
    return tuple(f"{prefix}{at:0{width}}" for at in range(count))


def grid_names(devices: int, windows: int) -> tuple[str, ...]:
    """The blocks of a catalogue, `device/window`."""
    columns = numbered("w", windows)
    return tuple(f"{device}/{window}" for device in numbered("d", devices) for window in columns)
