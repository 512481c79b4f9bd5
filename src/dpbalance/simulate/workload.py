"""Which workloads are there, and what can be set on each? A workload is a few numbers that make a trace from a seed."""

from __future__ import annotations

import tomllib
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib import import_module
from math import inf, isfinite
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from dpbalance.errors import FileFormatError, OptionError
from dpbalance.market.round import Floats, Indices
from dpbalance.scheduler.registry import Option, fields_as_options
from dpbalance.simulate.trace import Trace

WORKLOADS = {
    "paper": "dpbalance.simulate.paper:Paper",
    "privatekube-single": "dpbalance.simulate.privatekube:PrivateKubeSingle",
    "privatekube-multi": "dpbalance.simulate.privatekube:PrivateKubeMulti",
    "dpack-mixed": "dpbalance.simulate.dpack:DPackMixed",
    "alibaba-dp": "dpbalance.simulate.alibaba:AlibabaDP",
}

MOST = 10**7
"""The most blocks, pipelines or parts a parameter may ask for."""


def bounded(default: Any, least: float = 0.0, most: float = inf, *, above: bool = False) -> Any:
    """A number parameter with the range it must be in; `above` leaves out the least itself."""
    return field(default=default, metadata={"least": least, "most": most, "above": above})


def count(default: int, least: int = 1) -> Any:
    """A whole number of things."""
    return bounded(default, least, MOST)


def positive(default: float | None) -> Any:
    """A number above 0."""
    return bounded(default, above=True)


def share(default: float) -> Any:
    """A part of a whole, or a chance."""
    return bounded(default, 0.0, 1.0)


@dataclass(frozen=True, kw_only=True)
class Workload(ABC):
    """Parameters, each in its range, and one method."""

    name: ClassVar[str]

    def __post_init__(self) -> None:
        for each in fields(self):
            value, range_ = getattr(self, each.name), each.metadata
            if range_ and value is not None:
                low = value > range_["least"] if range_["above"] else value >= range_["least"]
                if not (low and value <= range_["most"] and isfinite(value)):
                    bound = f"{'above' if range_['above'] else 'at least'} {range_['least']:g}"
                    bound += "" if range_["most"] == inf else f" and at most {range_['most']:g}"
                    raise OptionError(f"{each.name} must be {bound}, not {value!r}")

    @abstractmethod
    def trace(self, seed: int) -> Trace:
        """What arrives when; depends on nothing but the parameters and the seed."""

    def _ordered(self, low: str, high: str) -> None:
        if getattr(self, low) > getattr(self, high):
            raise OptionError(f"{low} must be at most {high}, {getattr(self, high)!r}, not {getattr(self, low)!r}")


@dataclass(frozen=True, kw_only=True)
class Owned(Workload):
    """A workload whose pipelines belong to nobody in particular: analysts are dealt to them."""

    analysts: int = count(0, least=0)
    """How many analysts share the pipelines; 0 makes each pipeline its own analyst."""
    spread: Literal["uniform", "zipf"] = "uniform"
    """Analysts own equally many pipelines, or the i-th of them as many as 1/i of the first's."""

    def owners(self, random: np.random.Generator, pipelines: int) -> Indices:
        """The analyst of each pipeline."""
        if self.analysts == 0:
            return np.arange(pipelines)
        if self.spread == "uniform":
            return random.permutation(np.arange(pipelines) % self.analysts)
        chance_of = 1.0 / np.arange(1, self.analysts + 1)
        return random.choice(self.analysts, size=pipelines, p=chance_of / chance_of.sum())


def process(random: np.random.Generator, duration: float, every: float, kind: str) -> Floats:
    """Arrival times in `duration` seconds: a Poisson process, or as many at random times as there are on average."""
    number = random.poisson(duration / every) if kind == "poisson" else int(duration / every)
    return np.sort(random.uniform(0.0, duration, number))


def newest(block_arrived: Floats, now: float, wanted: int) -> Indices:
    """The latest blocks that have arrived, at most as many as wanted."""
    there = int(np.searchsorted(block_arrived, now, side="right"))
    return np.arange(max(0, there - wanted), there)


def workload(name: str, **parameters: Any) -> Workload:
    """The workload of this name, with these parameters set.

    >>> workload("paper", devices=10).devices
    10
    """
    known = _known(name)
    made: Workload = _factory(name)(**{key: _option(name, known, key).checked(it) for key, it in parameters.items()})
    return made


def parameters_of(name: str) -> tuple[Option, ...]:
    """What can be set on this workload."""
    return fields_as_options(_factory(name))


def parameters_from(name: str, config: str | Path | None, pairs: Mapping[str, str]) -> dict[str, Any]:
    """Parameters as a TOML file and `k=v` texts set them; the texts win."""
    known, found = _known(name), {}
    if config is not None:
        try:
            found = tomllib.loads(Path(config).read_text(encoding="utf-8"))
        except (OSError, ValueError) as problem:
            raise FileFormatError(f"cannot read {config}: {getattr(problem, 'strerror', None) or problem}") from None
    checked = {key: _option(name, known, key).checked(value) for key, value in found.items()}
    return checked | {key: _option(name, known, key).parsed(text) for key, text in pairs.items()}


def _known(name: str) -> Mapping[str, Option]:
    return {each.name: each for each in parameters_of(name)}


def _option(name: str, known: Mapping[str, Option], key: str) -> Option:
    if key not in known:
        raise OptionError(f"workload {name!r} has no parameter {key!r}; it has {', '.join(known)}")
    return known[key]


def _factory(name: str) -> Any:
    if name not in WORKLOADS:
        raise OptionError(f"there is no workload {str(name)[:60]!r}; known are {', '.join(WORKLOADS)}")
    module, _, attribute = WORKLOADS[name].partition(":")
    return getattr(import_module(module), attribute)
