"""What would a production cluster ask for? The published Alibaba-DP tasks from their CSV, or tasks of that shape."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite
from typing import Any, ClassVar

import numpy as np

from dpbalance.accounting import ALPHAS, Laplace, cost
from dpbalance.amounts import MAX_EPSILON, Units, cost_units
from dpbalance.errors import FileFormatError
from dpbalance.market.round import Floats
from dpbalance.simulate.dpack import BlockStream, Tasks, gaussian
from dpbalance.simulate.workload import count, positive, share

REQUIRED = ("n_blocks", "alphas", "rdp_epsilons")


@dataclass(frozen=True, kw_only=True)
class AlibabaDP(BlockStream):
    """Epsilons and numbers of blocks that follow power laws: most ask for little, a few for a thousand times more."""

    name: ClassVar[str] = "alibaba-dp"

    file: str | None = None
    """The published file of tasks; without one, tasks are drawn."""
    time_scale: float = positive(1.0)
    """Seconds of the trace that one unit of time in the file lasts."""
    wanted_most: int = count(100)
    """Tasks of the file that ask for more blocks are left out; no drawn task does."""
    wanted_tail: float = positive(1.0)
    """Power of the tail of the number of blocks drawn; larger is thinner."""
    epsilon_low: float = positive(0.1)
    """Least epsilon drawn."""
    epsilon_high: float = positive(1000.0)
    """Largest epsilon drawn."""
    epsilon_tail: float = positive(1.0)
    """Power of the tail of the epsilons drawn; larger is thinner."""
    laplace_share: float = share(0.5)
    """Chance of a drawn task to use Laplace noise; the others use Gaussian noise."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._ordered("epsilon_low", "epsilon_high")

    def tasks(self, random: np.random.Generator) -> Tasks:
        if self.file is not None:
            return read_tasks(self.file, self.time_scale, self.wanted_most)
        submitted = self.times(random)
        pipelines = len(submitted)
        epsilon = power_law(random, pipelines, self.epsilon_low, self.epsilon_high, self.epsilon_tail)
        laplace = random.random(pipelines) < self.laplace_share
        wanted = power_law(random, pipelines, 1.0, self.wanted_most + 1.0, self.wanted_tail)
        return Tasks(
            submitted=submitted,
            wanted=np.minimum(wanted.astype(np.int64), self.wanted_most),
            scattered=np.zeros(pipelines, dtype=np.int64),
            cost=np.array(
                [self._curve(each, pure) for each, pure in zip(epsilon.tolist(), laplace, strict=True)], dtype=np.int64
            ).reshape(pipelines, len(ALPHAS)),
            weight=np.ones(pipelines),
        )

    def _curve(self, epsilon: float, laplace: bool) -> Units:
        return cost(Laplace(noise_multiplier=1 / epsilon), ALPHAS) if laplace else gaussian(epsilon, self.delta)


def power_law(random: np.random.Generator, size: int, low: float, high: float, tail: float) -> Floats:
    """Numbers from low to high whose density falls with the power -(1 + tail): the inverse of their distribution."""
    kept = 1.0 - (low / high) ** tail
    drawn: Floats = low * (1.0 - kept * random.random(size)) ** (-1.0 / tail)
    return drawn


def read_tasks(path: str, time_scale: float, wanted_most: int) -> Tasks:
    """The tasks of a file, first come first; `profit` is the weight."""
    rows = sorted(_rows(path, time_scale, wanted_most), key=lambda row: row["submitted"])
    return Tasks(
        submitted=np.array([row["submitted"] for row in rows], dtype=np.float64),
        wanted=np.array([row["wanted"] for row in rows], dtype=np.int64),
        scattered=np.array([row["scattered"] for row in rows], dtype=np.int64),
        cost=cost_units(np.array([row["cost"] for row in rows], dtype=np.float64).reshape(len(rows), len(ALPHAS))),
        weight=np.array([row["weight"] for row in rows], dtype=np.float64),
    )


def _rows(path: str, time_scale: float, wanted_most: int) -> Iterator[dict[str, Any]]:
    try:
        with open(path, encoding="utf-8", newline="") as text:
            table = csv.DictReader(text)
            columns = set(table.fieldnames or ())
            missing = [name for name in REQUIRED if name not in columns]
            if not columns & {"relative_submit_time", "submit_time"}:
                missing.append("submit_time")
            if missing:
                raise FileFormatError(f"{path} lacks the column {missing[0]!r}")
            clock = 0.0
            first: float | None = None
            for at, row in enumerate(table, start=2):
                where = f"{path}: line {at}"
                if "relative_submit_time" in columns:  # seconds since the task before
                    clock += _number(row, "relative_submit_time", where)
                else:
                    moment = _number(row, "submit_time", where, least=-np.inf)
                    first = moment if first is None else first
                    clock = moment - first
                wanted = _number(row, "n_blocks", where, least=1.0)
                if wanted <= wanted_most:
                    yield {
                        "submitted": max(clock, 0.0) * time_scale,
                        "wanted": int(wanted),
                        "scattered": int("random" in (row.get("block_selection_policy") or "").lower()),
                        "cost": _curve(row, where),
                        "weight": _number(row, "profit", where, least=1e-12, most=1e12) if row.get("profit") else 1.0,
                    }
    except (OSError, ValueError, csv.Error) as problem:
        raise FileFormatError(f"cannot read {path}: {getattr(problem, 'strerror', None) or problem}") from None


def _curve(row: dict[str, Any], where: str) -> list[float]:
    orders, curve = (_list(row, name, where) for name in ("alphas", "rdp_epsilons"))
    if tuple(orders) != ALPHAS or len(curve) != len(ALPHAS):
        raise FileFormatError(f"{where}: alphas must be {list(ALPHAS)}, with one of rdp_epsilons each")
    if not all(0 <= each <= MAX_EPSILON for each in curve) or not max(curve) > 0:
        raise FileFormatError(f"{where}: rdp_epsilons must be numbers from 0 to {MAX_EPSILON}, not all 0")
    return curve


def _list(row: dict[str, Any], column: str, where: str) -> list[float]:
    try:
        return [float(each) for each in json.loads(row[column] or "")]
    except (ValueError, TypeError):
        raise FileFormatError(f"{where}: {column} must be a list of numbers, not {str(row[column])[:60]!r}") from None


def _number(row: dict[str, Any], column: str, where: str, least: float = 0.0, most: float = np.inf) -> float:
    try:
        value = float(row[column] or "")
    except (ValueError, TypeError):
        value = np.nan
    if not (isfinite(value) and least <= value <= most):
        raise FileFormatError(f"{where}: {column} must be a number in range, not {str(row[column])[:60]!r}")
    return value
