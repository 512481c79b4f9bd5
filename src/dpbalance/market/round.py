"""What does a scheduler see? Everything at one moment, frozen, in whole-number amounts and one fixed order.

A Round is canonical: blocks, analysts and pipelines stand in the natural order of their names, and the demand of a
pipeline in the order of the blocks. Whoever decides on a Round therefore cannot depend on the order of the input.
Demand is sparse: pipeline j asks `cost[e]` of block `block[e]` for e in `start[j]:start[j + 1]`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain, pairwise
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dpbalance.amounts import MAX_EPSILON, MAX_UNITS, Units, capacity_units, cost_units
from dpbalance.demand.pipeline import Epsilon, Pipeline
from dpbalance.errors import AmountError, InputError
from dpbalance.market.block import Block

Asked = TypeVar("Asked", Block, Pipeline)
Indices = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MAX_MULTIPLE = 1e9
"""Caps on multiples above this are no caps: a billion times the least demand."""

PRIORITY_MIN, PRIORITY_MAX = 1e-3, 1e3
"""An analyst counts as a thousandth of another at the least and as a thousand at the most."""

MAX_NAME = 256
"""The most characters an id or an analyst's name may have."""


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
    unrounded: Floats
    """The largest amount each pipeline demands, in epsilon, before rounding up, which makes equals of unequals."""
    start: Indices
    block: npt.NDArray[np.int32]
    cost: Units
    priority: Floats = field(default_factory=lambda: np.zeros(0))
    """As how many analysts each analyst counts; left out, each counts as one."""

    def __post_init__(self) -> None:
        if not len(self.priority):
            object.__setattr__(self, "priority", np.ones(len(self.analysts)))
        width = 1 if self.orders is None else len(self.orders)
        blocks, pipelines, entries = len(self.blocks), len(self.pipelines), len(self.block)
        forms: dict[str, tuple[tuple[int, ...], Any]] = {
            "capacity": ((blocks, width), np.int64),
            "spent": ((blocks, width), np.int64),
            "unlocked": ((blocks, width), np.int64),
            "owner": ((pipelines,), np.int64),
            "submitted": ((pipelines,), np.float64),
            "weight": ((pipelines,), np.float64),
            "loss": ((pipelines,), np.float64),
            "max_multiple": ((pipelines,), np.float64),
            "unrounded": ((pipelines,), np.float64),
            "start": ((pipelines + 1,), np.int64),
            "block": ((entries,), np.int32),
            "cost": ((entries, width), np.int64),
            "priority": ((len(self.analysts),), np.float64),
        }
        for name, (shape, dtype) in forms.items():
            array = getattr(self, name)
            if array.shape != shape or array.dtype != dtype:
                found = f"{array.dtype} {array.shape}"
                raise InputError(f"round array {name!r} is {found}, expected {np.dtype(dtype)} {shape}")
            view = array.view()
            view.flags.writeable = False
            object.__setattr__(self, name, view)

    @staticmethod
    def of_arrays(**arrays: Any) -> Round:
        """A round out of arrays that somebody else made: the same fields, and everything kernels rely on is checked."""
        round_ = Round(**arrays)
        amounts = (round_.capacity, round_.spent, round_.unlocked, round_.cost)
        rising = np.diff(round_.block) > 0
        rising[round_.start[1:-1][(round_.start[1:-1] > 0) & (round_.start[1:-1] < len(round_.block))] - 1] = True
        for holds, rule in (
            (
                all(not each.size or (each.min() >= 0 and each.max() <= MAX_UNITS) for each in amounts),
                "amounts in range",
            ),
            (round_.start[0] == 0 and round_.start[-1] == len(round_.block), "start from 0 to the number of demands"),
            (bool(np.all(np.diff(round_.start) > 0)), "at least one demand for each pipeline"),
            (_within(round_.block, len(round_.blocks)), "block indices that exist"),
            (_within(round_.owner, len(round_.analysts)), "owner indices that exist"),
            (not round_.cost.size or bool(round_.cost.min() > 0), "demands above 0 at every order"),
            (bool(rising.all()), "each pipeline's blocks in ascending order, once"),
            (bool(np.all(round_.max_multiple >= 1)), "max_multiple of at least 1"),
            (bool(np.all((round_.weight > 0) & (round_.loss > 0))), "weight and loss above 0"),
            (
                bool(np.all((round_.priority >= PRIORITY_MIN) & (round_.priority <= PRIORITY_MAX))),
                "priorities in range",
            ),
            (bool(np.all(round_.unlocked <= round_.capacity)), "unlocked no more than capacity"),
        ):
            if not holds:
                raise InputError(f"a round of arrays needs {rule}")
        return round_

    @property
    def available(self) -> Units:
        """Unlocked and not yet spent, per block and order; negative where an order is already overdrawn."""
        return self.unlocked - self.spent

    def demands(self, chosen: Indices) -> tuple[Indices, Indices]:
        """Where the demand of these pipelines stands, one after the other: entries, and where each one's begin."""
        asked = np.diff(self.start)[chosen]
        start = np.concatenate(([0], np.cumsum(asked)))
        return start, np.repeat(self.start[chosen] - start[:-1], asked) + np.arange(start[-1])

    def subset(self, chosen: Indices, *, now: float, spent: Units, unlocked: Units) -> Round:
        """The same blocks at another moment, and of the pipelines only these, given by ascending index."""
        start, entries = self.demands(chosen)
        analysts, owner = np.unique(self.owner[chosen], return_inverse=True)
        return replace(
            self,
            now=now,
            spent=spent,
            unlocked=unlocked,
            analysts=tuple(map(self.analysts.__getitem__, analysts.tolist())),
            pipelines=tuple(map(self.pipelines.__getitem__, chosen.tolist())),
            owner=owner,
            submitted=self.submitted[chosen],
            weight=self.weight[chosen],
            loss=self.loss[chosen],
            max_multiple=self.max_multiple[chosen],
            unrounded=self.unrounded[chosen],
            start=start,
            block=self.block[entries],
            cost=self.cost[entries],
            priority=self.priority[analysts],
        )

    @staticmethod
    def build(
        blocks: Iterable[Block],
        pipelines: Iterable[Pipeline],
        *,
        orders: Sequence[float] | None = None,
        now: float = 0.0,
        priorities: Mapping[str, float] | None = None,
    ) -> Round:
        """A canonical round out of named values; every refusal names the culprit.

        An analyst of priority 2 counts as two analysts who share what it gets; whoever is not named counts as one.

        >>> r = Round.build([Block(id="B1", capacity=1.0)], [Pipeline(id="P1", analyst="a", demand={"B1": 0.5})])
        >>> r.cost.tolist()
        [[500000000]]
        """
        orders_ = _checked_orders(orders)
        now_ = checked_number(now, "now")
        blocks_ = _in_order("block", blocks)
        pipelines_ = _in_order("pipeline", pipelines)
        unlocked = [each.capacity if each.unlocked is None else each.unlocked for each in blocks_]
        nothing: Epsilon = 0.0 if orders_ is None else (0.0,) * len(orders_)
        spent = [nothing if _is_zero(each.spent) else each.spent for each in blocks_]

        def named(field: str) -> Callable[[int], str]:
            return lambda at: f"block {blocks_[at].id!r}: {field}"

        amounts: dict[str, Any] = {
            "capacity": capacity_units(_amounts([each.capacity for each in blocks_], orders_, named("capacity"))),
            "spent": cost_units(_amounts(spent, orders_, named("spent"))),
            "unlocked": capacity_units(_amounts(unlocked, orders_, named("unlocked"))),
        }
        _refuse_unlocked_above_capacity(blocks_, amounts["unlocked"], amounts["capacity"])
        return Round(
            orders=orders_,
            now=now_,
            blocks=tuple(each.id for each in blocks_),
            **amounts,
            **_demand_arrays(pipelines_, blocks_, orders_),
            **_pipeline_arrays(pipelines_, now_, priorities or {}),
        )


def _within(indices: npt.NDArray[Any], count: int) -> bool:
    return not indices.size or bool(indices.min() >= 0 and indices.max() < count)


def natural(name: str) -> tuple[Any, ...]:
    """A sort key under which P2 stands before P10; names that read the same fall back to their letters."""
    parts = re.split(r"(\d+)", name)
    return (*((int(part), "") if at % 2 else (-1, part) for at, part in enumerate(parts)), (-2, name))


def _pipeline_arrays(pipelines: list[Pipeline], now: float, priorities: Mapping[str, float]) -> dict[str, Any]:
    for each in pipelines:
        _refuse_bad_name(f"pipeline {each.id!r}: analyst", each.analyst)
    analysts = sorted({each.analyst for each in pipelines}, key=natural)
    position = {name: at for at, name in enumerate(analysts)}
    for name in priorities:
        if name not in position:
            raise InputError(f"priorities names the analyst {str(name)[:60]!r}, who has no pipeline here")
    caps = []
    for each in pipelines:
        who = f"pipeline {each.id!r}"
        cap = (
            np.inf
            if each.max_multiple is None
            else checked_number(each.max_multiple, f"{who}: max_multiple", least=1.0)
        )
        caps.append(np.inf if cap > MAX_MULTIPLE else cap)
    return {
        "analysts": tuple(analysts),
        "priority": np.array([_priority(name, priorities.get(name, 1.0)) for name in analysts], dtype=np.float64),
        "pipelines": tuple(each.id for each in pipelines),
        "owner": np.array([position[each.analyst] for each in pipelines], dtype=np.int64),
        "submitted": np.array(
            [
                now if p.submitted is None else checked_number(p.submitted, f"pipeline {p.id!r}: submitted")
                for p in pipelines
            ],
            dtype=np.float64,
        ),
        "weight": np.array([_positive(p.weight, f"pipeline {p.id!r}: weight") for p in pipelines], dtype=np.float64),
        "loss": np.array([_positive(p.loss, f"pipeline {p.id!r}: loss") for p in pipelines], dtype=np.float64),
        "max_multiple": np.array(caps, dtype=np.float64),
    }


def _demand_arrays(pipelines: list[Pipeline], blocks: list[Block], orders: tuple[float, ...] | None) -> dict[str, Any]:
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

    def named(at: int) -> str:
        owner = pipelines[int(np.searchsorted(np.cumsum(counts), at, side="right"))]
        return f"pipeline {owner.id!r}: demand of block {blocks[block[at]].id!r}"

    amount = _amounts(values, orders, named)
    cost = cost_units(amount)
    # a release that loses anything at one order loses something at every order: what rounds to nothing is one unit,
    # or a block could be used without end at the order where a demand is written as 0
    cost[(cost == 0) & (np.max(cost, axis=1) > 0)[:, None]] = 1
    pipeline = np.repeat(np.arange(len(pipelines)), counts)
    asked = np.max(cost, axis=1) > 0
    order = np.lexsort((block, pipeline))
    order = order[asked[order]]
    kept = np.bincount(pipeline[order], minlength=len(pipelines))
    if (kept == 0).any():
        culprit = pipelines[int(np.argmin(kept))]
        raise InputError(f"pipeline {culprit.id!r} demands nothing: every amount of its demand is 0")
    start = np.concatenate(([0], np.cumsum(kept))).astype(np.int64)
    unrounded = np.maximum.reduceat(np.max(amount[order], axis=1), start[:-1]) if pipelines else np.zeros(0)
    return {"start": start, "block": block[order], "cost": np.ascontiguousarray(cost[order]), "unrounded": unrounded}


def _amounts(values: list[Epsilon], orders: tuple[float, ...] | None, named: Callable[[int], str]) -> Floats:
    """(count, orders) amounts; only when something is wrong is each value looked at to name the culprit."""
    width = 1 if orders is None else len(orders)
    values = [value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value for value in values]
    flat = list(values) if orders is None else list(chain.from_iterable(v for v in values if isinstance(v, Sequence)))
    if set(map(type, flat)) <= {int, float} and len(flat) == width * len(values):
        if orders is None or all(len(v) == width for v in values):  # type: ignore[arg-type]
            with suppress(OverflowError):  # a whole number that no double can hold
                table = np.array(flat, dtype=np.float64).reshape(len(values), width)
                if ((table >= 0) & (table <= MAX_EPSILON)).all():
                    return table
    wanted = "one number" if orders is None else f"a list of {width} numbers, one for each order"
    for at, value in enumerate(values):
        several = orders is not None and isinstance(value, (list, tuple))
        parts = value if several else [value]
        if several != (orders is not None) or len(parts) != width:  # type: ignore[arg-type]
            raise AmountError(f"{named(at)} must be {wanted}, not {str(value)[:60]!r}")
        for part in parts:  # type: ignore[union-attr]
            if isinstance(part, bool) or not isinstance(part, (int, float)):
                raise AmountError(f"{named(at)} must be {wanted}, not {str(value)[:60]!r}")
            if not 0 <= part <= MAX_EPSILON:
                raise AmountError(f"{named(at)} must be between 0 and {MAX_EPSILON:g} epsilon, not {part!r:.30}")
    return np.array(values, dtype=np.float64).reshape(len(values), width)


def _is_zero(value: Epsilon) -> bool:
    return type(value) in (int, float) and value == 0


def _refuse_unlocked_above_capacity(blocks: list[Block], unlocked: Units, capacity: Units) -> None:
    above = np.argwhere(unlocked > capacity)
    if len(above):
        culprit = blocks[int(above[0, 0])]
        raise AmountError(
            f"block {culprit.id!r}: unlocked {culprit.unlocked} is more than its capacity {culprit.capacity}"
        )


def _in_order(kind: str, given: Iterable[Asked]) -> list[Asked]:
    """Blocks or pipelines in the natural order of their ids, each of which must be a name and stand once."""
    listed = list(given)
    for each in listed:
        _refuse_bad_name(f"{kind} id", each.id)
    listed.sort(key=lambda each: natural(each.id))
    for first, second in pairwise(listed):
        if first.id == second.id:
            raise InputError(f"{kind} id {first.id!r} stands twice")
    return listed


def _refuse_bad_name(what: str, name: Any) -> None:
    """A name is read by people and by terminals: text that can be printed on one line."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise InputError(f"{what} must be printable text of 1 to {MAX_NAME} characters, not {str(name)[:60]!a}")


def _checked_orders(orders: Sequence[float] | None) -> tuple[float, ...] | None:
    if orders is None:
        return None
    checked = tuple(checked_number(order, "orders") for order in orders)
    if not checked or any(order <= 1 for order in checked) or len(set(checked)) != len(checked):
        raise InputError(f"orders must be distinct numbers above 1, not {str(list(orders))[:60]}")
    return checked


def checked_number(value: Any, what: str, *, least: float = -np.inf) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.floating, np.integer)):
        raise InputError(f"{what} must be a number, not {str(value)[:60]!r}")
    number = float(value) if -1e300 < value < 1e300 else np.inf
    if not np.isfinite(number) or number < least:
        bound = "" if least == -np.inf else f" of at least {least:g}"
        raise InputError(f"{what} must be a finite number{bound}, not {value!r:.30}")
    return number


def _priority(name: str, value: Any) -> float:
    number = checked_number(value, f"priority of analyst {name!r}")
    if not PRIORITY_MIN <= number <= PRIORITY_MAX:
        raise InputError(
            f"priority of analyst {name!r} must be between {PRIORITY_MIN:g} and {PRIORITY_MAX:g}, not {value!r:.30}"
        )
    return number


def _positive(value: Any, what: str) -> float:
    number = checked_number(value, what)
    if not 1e-12 <= number <= 1e12:
        raise InputError(f"{what} must be between 1e-12 and 1e12, not {value!r:.30}")
    return number
