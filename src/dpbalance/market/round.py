"""What does a scheduler see? Everything at one moment, frozen, in whole-number amounts and one fixed order.

A Round is canonical: blocks, analysts and pipelines stand in the natural order of their names, and the demand of a
pipeline in the order of the blocks. Whoever decides on a Round therefore cannot depend on the order of the input.
Demand is sparse: pipeline j asks `cost[e]` of block `block[e]` for e in `start[j]:start[j + 1]`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat
from typing import Any

import numpy as np
import numpy.typing as npt

from dpbalance.amounts import MAX_EPSILON, Units, capacity_units, cost_units
from dpbalance.demand.pipeline import Epsilon, Pipeline
from dpbalance.errors import AmountError, InputError
from dpbalance.market.block import Block

Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MAX_MULTIPLE = 1e9
"""Caps on multiples above this are no caps: a billion times the least demand."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Round:
    """Blocks with what is left, pending pipelines, and the time; amounts are (count, orders) whole numbers."""

    orders: tuple[float, ...] | None
    now: float
    blocks: tuple[str, ...]
    capacity: Units
    spent: Units
    unlocked: Units
    analysts: tuple[str, ...]
    pipelines: tuple[str, ...]
    owner: Indices
    """Index of the analyst of each pipeline."""
    submitted: Floats
    weight: Floats
    loss: Floats
    max_multiple: Floats
    """Infinite where there is no cap."""
    start: Indices
    block: npt.NDArray[np.int32]
    cost: Units

    def __post_init__(self) -> None:
        width = 1 if self.orders is None else len(self.orders)
        blocks, pipelines, entries = len(self.blocks), len(self.pipelines), len(self.block)
        shapes = {
            "capacity": (blocks, width),
            "spent": (blocks, width),
            "unlocked": (blocks, width),
            "owner": (pipelines,),
            "submitted": (pipelines,),
            "weight": (pipelines,),
            "loss": (pipelines,),
            "max_multiple": (pipelines,),
            "start": (pipelines + 1,),
            "block": (entries,),
            "cost": (entries, width),
        }
        for name, shape in shapes.items():
            array = getattr(self, name)
            if array.shape != shape:
                raise InputError(f"round array {name!r} has shape {array.shape}, expected {shape}")
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @property
    def available(self) -> Units:
        """Unlocked and not yet spent, per block and order; negative where an order is already overdrawn."""
        return self.unlocked - self.spent

    @staticmethod
    def build(
        blocks: Iterable[Block],
        pipelines: Iterable[Pipeline],
        *,
        orders: Sequence[float] | None = None,
        now: float = 0.0,
    ) -> Round:
        """A canonical round out of named values; every refusal names the culprit.

        >>> r = Round.build([Block(id="B1", capacity=1.0)], [Pipeline(id="P1", analyst="a", demand={"B1": 0.5})])
        >>> r.cost.tolist()
        [[500000000]]
        """
        orders_ = _checked_orders(orders)
        now_ = _number(now, "now")
        blocks_ = sorted(blocks, key=lambda each: natural(each.id))
        pipelines_ = sorted(pipelines, key=lambda each: natural(each.id))
        _refuse_duplicates("block", [each.id for each in blocks_])
        _refuse_duplicates("pipeline", [each.id for each in pipelines_])
        block_names = [f"block {each.id!r}" for each in blocks_]
        unlocked = [each.capacity if each.unlocked is None else each.unlocked for each in blocks_]
        nothing: Epsilon = 0.0 if orders_ is None else (0.0,) * len(orders_)
        spent = [nothing if _is_zero(each.spent) else each.spent for each in blocks_]
        amounts = {
            "capacity": _amounts([each.capacity for each in blocks_], orders_, block_names, "capacity", True),
            "spent": _amounts(spent, orders_, block_names, "spent", False),
            "unlocked": _amounts(unlocked, orders_, block_names, "unlocked", True),
        }
        _refuse_unlocked_above_capacity(blocks_, amounts["unlocked"], amounts["capacity"])
        return Round(
            orders=orders_,
            now=now_,
            blocks=tuple(each.id for each in blocks_),
            **amounts,
            **_demand_arrays(pipelines_, blocks_, orders_),
            **_pipeline_arrays(pipelines_, now_),
        )


def natural(name: str) -> tuple[Any, ...]:
    """A sort key under which P2 stands before P10; names that read the same fall back to their letters."""
    parts = re.split(r"(\d+)", name)
    return (*((int(part), "") if at % 2 else (-1, part) for at, part in enumerate(parts)), (-2, name))


def _pipeline_arrays(pipelines: list[Pipeline], now: float) -> dict[str, Any]:
    analysts = sorted({each.analyst for each in pipelines}, key=natural)
    position = {name: at for at, name in enumerate(analysts)}
    caps = []
    for each in pipelines:
        who = f"pipeline {each.id!r}"
        cap = np.inf if each.max_multiple is None else _number(each.max_multiple, f"{who}: max_multiple", least=1.0)
        caps.append(np.inf if cap > MAX_MULTIPLE else cap)
    return {
        "analysts": tuple(analysts),
        "pipelines": tuple(each.id for each in pipelines),
        "owner": np.array([position[each.analyst] for each in pipelines], dtype=np.int64),
        "submitted": np.array(
            [now if p.submitted is None else _number(p.submitted, f"pipeline {p.id!r}: submitted") for p in pipelines],
            dtype=np.float64,
        ),
        "weight": np.array([_positive(p.weight, f"pipeline {p.id!r}: weight") for p in pipelines], dtype=np.float64),
        "loss": np.array([_positive(p.loss, f"pipeline {p.id!r}: loss") for p in pipelines], dtype=np.float64),
        "max_multiple": np.array(caps, dtype=np.float64),
    }


def _demand_arrays(
    pipelines: list[Pipeline], blocks: list[Block], orders: tuple[float, ...] | None
) -> dict[str, Any]:
    position = {each.id: at for at, each in enumerate(blocks)}
    for each in pipelines:
        if not each.demand:
            raise InputError(f"pipeline {each.id!r} demands nothing: its demand is empty")
        for name in each.demand:
            if name not in position:
                raise InputError(f"pipeline {each.id!r} demands the unknown block {name!r}")
    counts = np.array([len(each.demand) for each in pipelines], dtype=np.int64)
    names = chain.from_iterable(each.demand for each in pipelines)
    block = np.fromiter((position[name] for name in names), dtype=np.int32, count=int(counts.sum()))
    values = list(chain.from_iterable(each.demand.values() for each in pipelines))
    owners = list(chain.from_iterable(repeat(f"pipeline {p.id!r}", len(p.demand)) for p in pipelines))
    cost = _amounts(values, orders, owners, "demand", False)
    pipeline = np.repeat(np.arange(len(pipelines)), counts)
    asked = (cost > 0).any(axis=1)
    order = np.lexsort((block, pipeline))
    order = order[asked[order]]
    kept = np.bincount(pipeline[order], minlength=len(pipelines))
    if (kept == 0).any():
        culprit = pipelines[int(np.argmin(kept))]
        raise InputError(f"pipeline {culprit.id!r} demands nothing: every amount of its demand is 0")
    start = np.concatenate(([0], np.cumsum(kept))).astype(np.int64)
    return {"start": start, "block": block[order], "cost": np.ascontiguousarray(cost[order])}


def _amounts(
    values: list[Epsilon], orders: tuple[float, ...] | None, owners: Sequence[str], field: str, down: bool
) -> Units:
    """(count, orders) whole units; only when something is wrong is each value looked at to name the culprit."""
    width = 1 if orders is None else len(orders)
    convert = capacity_units if down else cost_units
    flat = list(values) if orders is None else list(chain.from_iterable(v for v in values if isinstance(v, Sequence)))
    if set(map(type, flat)) <= {int, float} and len(flat) == width * len(values):
        if orders is None or all(len(v) == width for v in values):  # type: ignore[arg-type]
            try:
                return convert(np.array(flat, dtype=np.float64).reshape(len(values), width))
            except (AmountError, OverflowError):
                pass
    wanted = "one number" if orders is None else f"a list of {width} numbers, one for each order"
    for value, owner in zip(values, owners, strict=True):
        parts = value if orders is not None and isinstance(value, (list, tuple)) else [value]
        if (orders is not None and parts is not value) or len(parts) != width:
            raise AmountError(f"{owner}: {field} must be {wanted}, not {str(value)[:60]}")
        for part in parts:
            if isinstance(part, bool) or not isinstance(part, (int, float)):
                raise AmountError(f"{owner}: {field} must be {wanted}, not {str(value)[:60]!r}")
            if not 0 <= part <= MAX_EPSILON:
                raise AmountError(f"{owner}: {field} must be between 0 and {MAX_EPSILON:g} epsilon, not {part!r:.30}")
    return convert(np.array(values, dtype=np.float64).reshape(len(values), width))


def _is_zero(value: Epsilon) -> bool:
    return type(value) in (int, float) and value == 0


def _refuse_unlocked_above_capacity(blocks: list[Block], unlocked: Units, capacity: Units) -> None:
    above = np.argwhere(unlocked > capacity)
    if len(above):
        culprit = blocks[int(above[0, 0])]
        raise AmountError(
            f"block {culprit.id!r}: unlocked {culprit.unlocked} is more than its capacity {culprit.capacity}"
        )


def _refuse_duplicates(kind: str, names: list[str]) -> None:
    for name in names:
        if not isinstance(name, str) or not name:
            raise InputError(f"a {kind} id must be a non-empty text, not {name!r}")
    for first, second in zip(names, names[1:], strict=False):
        if first == second:
            raise InputError(f"{kind} id {first!r} stands twice")


def _checked_orders(orders: Sequence[float] | None) -> tuple[float, ...] | None:
    if orders is None:
        return None
    checked = tuple(_number(order, "orders") for order in orders)
    if not checked or any(order <= 1 for order in checked) or len(set(checked)) != len(checked):
        raise InputError(f"orders must be distinct numbers above 1, not {list(orders)}")
    return checked


def _number(value: Any, what: str, *, least: float = -np.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        raise InputError(f"{what} must be a number, not {str(value)[:60]!r}")
    number = float(value) if abs(value) < 1e300 else np.inf
    if not np.isfinite(number) or number < least:
        bound = "" if least == -np.inf else f" of at least {least:g}"
        raise InputError(f"{what} must be a finite number{bound}, not {value!r}")
    return number


def _positive(value: Any, what: str) -> float:
    number = _number(value, what)
    if not 1e-12 <= number <= 1e12:
        raise InputError(f"{what} must be between 1e-12 and 1e12, not {value!r}")
    return number
