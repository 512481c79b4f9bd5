"""What can be asked of the ledger? One value for each kind of write, complete before anything is locked."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import operator
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from dpbalance.allocation import Allocation
from dpbalance.amounts import MAX_UNITS, Units, cost_units, epsilons
from dpbalance.demand.pipeline import Epsilon
from dpbalance.errors import AmountError, InputError
from dpbalance.market.round import MAX_NAME, Indices

KEY_MAX = 200
"""The most characters an idempotency key may have."""


Mark = tuple[int, str]
"""A row of the journal: its number and its hash."""


class State(IntEnum):
    """May a block be charged?"""

    OPEN = 0
    FROZEN = 1
    RETIRED = 2

    @property
    def word(self) -> str:
        return self.name.lower()


class Stage(IntEnum):
    """How far has a grant come? All but DENIED and VOIDED are charged in full."""

    DENIED = 0
    CHARGED = 1
    DISPATCHED = 2
    COMPLETED = 3
    FAILED = 4
    VOIDED = 5

    @property
    def word(self) -> str:
        return self.name.lower()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One pipeline and what it is to be charged on each block, in epsilon."""

    pipeline: str
    analyst: str
    cost: Mapping[str, Epsilon]
    multiple: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decision:
    """What a scheduler decided, as the ledger charges it: whole units for each grant and block."""

    orders: tuple[float, ...] | None
    scheduler: str
    pipelines: tuple[str, ...]
    analysts: tuple[str, ...]
    multiples: tuple[float, ...]
    blocks: Sequence[str]
    """Every block that is charged, once."""
    owner: Indices
    """Which pipeline each charged amount belongs to, ascending."""
    block: Indices
    """Which block each amount is charged on, by its place in `blocks`."""
    cost: Units
    options: Mapping[str, Any] = field(default_factory=dict)
    denied: tuple[Mapping[str, Any], ...] = ()

    def __post_init__(self) -> None:
        self._normalise()
        for what, names in (("pipeline", self.pipelines), ("analyst", self.analysts), ("scheduler", (self.scheduler,))):
            for name in names:
                check_name(what, name)
        asked = np.bincount(self.owner, minlength=len(self.pipelines)) if self.pipelines else np.zeros(0)
        if len(asked) and not asked.all():
            raise InputError(f"pipeline {self.pipelines[int(np.argmin(asked))]!r} is charged on no block")
        if self.cost.dtype != np.int64 or len({len(self.cost), len(self.owner), len(self.block)}) != 1:
            raise AmountError("a charge is whole units of 64 bits, one row for each grant and block")
        if self.cost.size and not (self.cost.min() > 0 and self.cost.max() <= MAX_UNITS + 1):
            wrong = int(np.flatnonzero(~((self.cost > 0) & (self.cost <= MAX_UNITS + 1)).all(axis=1))[0])
            raise AmountError(
                f"pipeline {self.pipelines[self.owner[wrong]]!r}: charge on block {self.blocks[self.block[wrong]]!r} "
                f"must be above 0 and in range at every order, not {self.cost[wrong].tolist()} units"
            )
        place = self.owner * max(len(self.blocks), 1) + self.block
        if len(place) > 1 and not (np.diff(place) > 0).all():
            place = np.sort(place)
            twice = place[1:][place[1:] == place[:-1]]
            if len(twice):
                who, where = divmod(int(twice[0]), len(self.blocks))
                raise InputError(f"pipeline {self.pipelines[who]!r} is charged twice on block {self.blocks[where]!r}")

    def _normalise(self) -> None:
        """One type for each thing, so that what is hashed is what is read again from any store."""
        if not len(self.pipelines) == len(self.analysts) == len(self.multiples):
            raise InputError("every pipeline of a decision has an analyst and a multiple")
        for what, index, count in (("owner", self.owner, len(self.pipelines)), ("block", self.block, len(self.blocks))):
            if index.dtype.kind not in "iu" or (len(index) and not (index.min() >= 0 and index.max() < count)):
                raise InputError(f"{what} of a decision must be indices that exist")
            object.__setattr__(self, what, index.astype(np.int64))
        object.__setattr__(self, "multiples", tuple(_finite("a multiple", each) for each in self.multiples))
        for each in self.denied:
            for what in ("pipeline", "analyst"):
                check_name(f"{what} of a denial", each.get(what))
        try:
            canonical([dict(self.options), *map(dict, self.denied)])
        except (TypeError, ValueError) as problem:
            raise InputError(f"this cannot be written down as JSON: {problem}") from None

    @staticmethod
    def of(allocation: Allocation) -> Decision:
        """The charges and denials of an allocation, whose budget is checked once more."""
        allocation.check_budget()
        round_ = allocation.round
        entries, cost = allocation.charges
        pipeline = np.repeat(np.arange(len(round_.pipelines)), np.diff(round_.start))[entries]
        served, owner = np.unique(pipeline, return_inverse=True)
        used, block = np.unique(round_.block[entries], return_inverse=True)
        every = len(used) == len(round_.blocks)
        return Decision(
            orders=round_.orders,
            scheduler=allocation.scheduler,
            options={key: str(value) for key, value in allocation.options.items()},
            pipelines=tuple(round_.pipelines[at] for at in served.tolist()),
            analysts=tuple(round_.analysts[at] for at in round_.owner[served].tolist()),
            multiples=tuple(allocation.multiple[served].tolist()),
            blocks=round_.blocks if every else tuple(map(round_.blocks.__getitem__, used.tolist())),
            owner=owner,
            block=block,
            cost=cost,
            denied=tuple(_denials(allocation)),
        )

    @staticmethod
    def build(asks: Iterable[Ask], *, orders: Sequence[float] | None = None, scheduler: str = "by hand") -> Decision:
        """A decision out of named values; an amount rounds up, and one that is nothing at every order is refused."""
        listed = list(asks)
        blocks = sorted({name for each in listed for name in each.cost})
        position = {name: at for at, name in enumerate(blocks)}
        width = 1 if orders is None else len(orders)
        pairs = [(at, position[name], each.cost[name]) for at, each in enumerate(listed) for name in sorted(each.cost)]
        cost = np.zeros((len(pairs), width), dtype=np.int64)
        for row, (at, place, amount) in enumerate(pairs):
            what = f"pipeline {listed[at].pipeline!r}: cost of block {blocks[place]!r}"
            units = units_of(what, amount, None if orders is None else width, cost_units)
            cost[row] = np.maximum(units, 1) if units.any() else units
        return Decision(
            orders=None if orders is None else tuple(orders),
            scheduler=scheduler,
            pipelines=tuple(each.pipeline for each in listed),
            analysts=tuple(each.analyst for each in listed),
            multiples=tuple(float(each.multiple) for each in listed),
            blocks=tuple(blocks),
            owner=np.array([at for at, _, _ in pairs], dtype=np.int64),
            block=np.array([place for _, place, _ in pairs], dtype=np.int64),
            cost=cost,
        )


def _denials(allocation: Allocation) -> Iterable[Mapping[str, Any]]:
    for each in allocation.denied:
        first = each.shortages[0] if each.shortages else None
        told = {"block": first.block, "asked": first.asked, "left": first.left} if first else {}
        yield {"pipeline": each.pipeline, "analyst": each.analyst, "reason": each.reason, **told}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """A write: by whom, and under which key it may safely be asked again."""

    actor: str = "operator"
    key: str | None = None
    known: Mark | None = None
    """The row of the journal until which the numbers in this request were read by their names."""

    def digest(self) -> str:
        """What must be the same when a key comes again; a lease may have changed hands in between."""
        told = {
            each.name: _told(getattr(self, each.name))
            for each in dataclasses.fields(self)
            if each.name not in ("key", "known", "token", "seen", "names")
        }
        try:
            return hashlib.sha256(canonical([type(self).__name__, told])).hexdigest()
        except (TypeError, ValueError) as problem:  # an option, a note or a denial that is neither text nor number
            raise InputError(f"this cannot be written down as JSON: {problem}") from None

    def check(self) -> None:
        """Refuse a key or an actor that cannot be stored and read."""
        for what, text in (("key", self.key), ("actor", self.actor)):
            if text is not None and not (isinstance(text, str) and 0 < len(text) <= KEY_MAX and text.isprintable()):
                raise InputError(f"{what} must be printable text of 1 to {KEY_MAX} characters, not {str(text)[:60]!a}")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegisterDevices(Request):
    """Devices and whose data they hold."""

    devices: tuple[str, ...]
    contributors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RegisterBlocks(Request):
    """New blocks of registered devices."""

    blocks: tuple[str, ...]
    device: Indices
    """The number of each block's device in the ledger."""
    capacity: Units
    unlocked: Units


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OnBlocks(Request):
    """Something about blocks that are in the ledger, by their numbers, ascending; names are for refusals."""

    ids: Indices
    names: Sequence[str]
    contributors: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SetBudget(OnBlocks):
    """Another capacity."""

    capacity: Units


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unlock(OnBlocks):
    """More of the capacity may be used from now on."""

    unlocked: Units


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SetState(OnBlocks):
    """Freeze, thaw or retire."""

    state: State


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Charge(OnBlocks):
    """A whole decision; `ids` are the numbers of `decision.blocks`."""

    decision: Decision
    token: int | None = None
    seen: int | None = None
    """The sequence number of the snapshot that was decided on."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Move(Request):
    """Grants go to their next stage."""

    grants: tuple[int, ...]
    stage: Stage
    note: str = ""
    token: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lease(Request):
    """Be the one scheduler that may charge, for some seconds; none gives the lease back. A renewal shows its token."""

    holder: str
    seconds: float | None
    token: int | None = None


def canonical(value: Any) -> bytes:
    """The one way to write a value as JSON, so that its hash is always the same."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def bytes_digest(*arrays: Any) -> str:
    """SHA-256 over the numbers of these arrays, little-endian 64 bits."""
    summed = hashlib.sha256()
    for each in arrays:
        summed.update(np.ascontiguousarray(each, dtype="<i8").data)
    return summed.hexdigest()


def shown(units: Any, orders: tuple[float, ...] | None) -> Any:
    """An amount in epsilon: one number, or one for each order."""
    listed = epsilons(units).tolist()
    return listed if orders is not None else listed[0]


def units_of(what: str, amount: Any, width: int | None, rounded: Callable[[Any], Units]) -> Units:
    """Whole units of one amount: one number, or `width` of them; neither text nor truth values."""
    try:
        table = np.asarray(amount)
    except ValueError:
        table = np.zeros(0)
    if table.dtype.kind not in "iuf" or table.shape != (() if width is None else (width,)):
        wanted = "one number" if width is None else f"a list of {width} numbers, one for each order"
        raise AmountError(f"{what} must be {wanted}, not {str(amount)[:60]!r}")
    return rounded(table).reshape(-1)


def whole(what: str, value: Any) -> int | None:
    """A whole number of at most 63 bits from 0 up, or none."""
    if value is None:
        return None
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if isinstance(value, bool) or not 0 <= number < 2**63:
        raise InputError(f"{what} must be a whole number from 0 up, not {str(value)[:60]!r}")
    return number


def check_new_name(what: str, name: Any) -> None:
    """The same for a name that is to be registered, of which there must be only one way to write it."""
    check_name(what, name)
    if not unicodedata.is_normalized("NFC", name):
        composed = unicodedata.normalize("NFC", name)
        raise InputError(f"{what} {name!a} is not in Unicode's normal form C", hint=f"the composed {composed!a}")


def check_name(what: str, name: Any) -> None:
    """A name is one line of printable text."""
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME or not name.isprintable():
        raise InputError(f"{what} must be printable text of 1 to {MAX_NAME} characters, not {str(name)[:60]!a}")


def _finite(what: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise InputError(f"{what} must be a finite number, not {str(value)[:60]!r}")
    return number


def _told(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return [list(value.shape), bytes_digest(value)]
    if isinstance(value, Decision):
        return {
            each.name: _told(getattr(value, each.name)) for each in dataclasses.fields(value) if each.name != "blocks"
        }
    return value
