"""Which blocks does an ask mean? Devices and windows as they are known at the moment it comes in."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Any

from dpbalance.accounting import Composition, Gaussian, Laplace, Recipe, SubsampledGaussian, cost
from dpbalance.amounts import epsilons
from dpbalance.clock import chance
from dpbalance.errors import AmountError, InputError
from dpbalance.market.round import natural
from dpbalance.service import models

KINDS: dict[str, Any] = {
    "gaussian": Gaussian,
    "laplace": Laplace,
    "subsampled-gaussian": SubsampledGaussian,
}

RECIPES_REMEMBERED = 256


class Catalogue:
    """Every block by device, with the windows of each in natural order."""

    def __init__(self, rows: Iterable[tuple[str, str]], version: int) -> None:
        self.version = version
        self.windows: dict[str, list[str]] = {}
        for device, window in rows:
            self.windows.setdefault(device, []).append(window)
        self.devices = sorted(self.windows, key=natural)
        for each in self.windows.values():
            each.sort(key=natural)
        self.most = max(map(len, self.windows.values()), default=0)
        self.named = sorted({natural(each) for listed in self.windows.values() for each in listed})
        self.names = {block_name(device, window) for device, listed in self.windows.items() for window in listed}

    def demand(self, ask: models.Ask, seed: int, orders: Sequence[float] | None) -> dict[str, Any]:
        """What the pipeline asks of each block; every block it names must be there."""
        if ask.blocks is not None:
            for name, amount in ask.blocks.items():
                if name not in self.names:
                    raise InputError(f"there is no block {name[:100]!r}", hint="dpbalance device list")
                check_amount(amount, orders, f"blocks[{name!r}]")
            return dict(ask.blocks)
        amount = self._amount(ask.cost, orders)
        blocks = [
            block_name(device, window)
            for device in self._devices(ask.devices, seed)
            for window in self._windows(device, ask.windows)
        ]
        if not blocks:
            raise InputError("no block is there that this asks for", hint="dpbalance device list")
        return dict.fromkeys(blocks, amount)

    def size(self, ask: models.Ask) -> int:
        """At most so many blocks, known without looking at any."""
        if ask.blocks is not None:
            return len(ask.blocks)
        count = len(self.devices)
        if isinstance(ask.devices, models.Named):
            count = len(ask.devices.named)
        elif isinstance(ask.devices, models.Share | models.Sample):
            count = min(count, self._drawn(ask.devices))
        if isinstance(ask.windows, models.Between):
            first, last = natural(ask.windows.first), natural(ask.windows.last)
            return count * min(self.most, max(0, bisect_right(self.named, last) - bisect_left(self.named, first)))
        assert ask.windows is not None
        return count * min(self.most, ask.windows.latest)

    def _drawn(self, asked: models.Share | models.Sample) -> int:
        return asked.sample if isinstance(asked, models.Sample) else max(1, round(asked.share * len(self.devices)))

    def _devices(self, asked: Any, seed: int) -> list[str]:
        if asked == "all":
            return self.devices
        if isinstance(asked, models.Named):
            for name in asked.named:
                if name not in self.windows:
                    raise InputError(f"there is no device {name!r} with blocks", hint="dpbalance device list")
            return sorted(set(asked.named), key=natural)
        count = len(self.devices)
        size = self._drawn(asked)
        if size > count:
            raise InputError(f"{size} devices are to be drawn, {count} have blocks", hint="a smaller sample")
        drawn = chance(seed).choice(count, size=size, replace=False)
        return [self.devices[at] for at in sorted(drawn.tolist())]

    def _windows(self, device: str, asked: Any) -> list[str]:
        listed = self.windows[device]
        if isinstance(asked, models.Latest):
            return listed[-asked.latest :]
        first, last = natural(asked.first), natural(asked.last)
        return [each for each in listed if first <= natural(each) <= last]

    def _amount(self, asked: Any, orders: Sequence[float] | None) -> Any:
        if isinstance(asked, (int, float, list)):
            check_amount(asked, orders, "cost")
            return asked
        return _recipe_cost(asked.model_dump_json(), None if orders is None else tuple(orders))


def block_name(device: str, window: str) -> str:
    """What the ledger calls a block; one that came without a window is called like its device."""
    return f"{device}/{window}" if window else device


def check_amount(amount: Any, orders: Sequence[float] | None, what: str) -> None:
    """One number where the ledger counts at one order, else one for each."""
    several = isinstance(amount, list)
    if several != (orders is not None) or (several and len(amount) != len(orders or ())):
        wanted = "one number" if orders is None else f"a list of {len(orders)} numbers, one for each order"
        raise AmountError(f"{what} must be {wanted}")
    if several and not any(amount):
        raise AmountError(f"{what} must be above 0 at some order")


@lru_cache(maxsize=RECIPES_REMEMBERED)
def _recipe_cost(asked: str, orders: tuple[float, ...] | None) -> Any:
    import json

    listed = epsilons(cost(_recipe(json.loads(asked)), orders)).tolist()
    return listed if orders is not None else listed[0]


def _recipe(asked: dict[str, Any]) -> Recipe:
    kind = asked.pop("recipe")
    if kind == "composition":
        parts = tuple(_recipe(each) for each in asked["parts"])
        return Composition(parts=parts, counts=None if asked["counts"] is None else tuple(asked["counts"]))
    made: Recipe = KINDS[kind](**asked)
    return made
