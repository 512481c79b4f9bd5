"""What did a sweep find? Tables of rounds and pipelines, and a summary over seeds with what can be said for sure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from io import BytesIO
from itertools import product
from math import sqrt
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from dpbalance.errors import OptionError
from dpbalance.simulate.cell import Cell, canonical

if TYPE_CHECKING:
    import polars

FORMAT = "dpbalance-summary/1"

MEASURES = ("efficiency", "jain", "utility_min", "fairness", "pipelines", "shut_out", "of_bound")
"""What the summary is about: sums over rounds of efficiency, pipelines and shut_out, means of the others."""

CONFIDENCE = 0.95

ROW_GROUP = 1_000_000
"""Rows of a Parquet file that are packed together."""

ROUNDS = {
    "analyst": "String",
    "time": "Float64",
    "round": "Int64",
    "asked": "Int64",
    "granted": "Int64",
    "waiting": "Int64",
    "timed_out": "Int64",
    "offered": "Float64",
    "share": "Float64",
    "weight": "Float64",
    "utility": "Float64",
    "denied": "Int64",
    "efficiency": "Float64",
    "fairness": "Float64",
    "jain": "Float64",
    "utility_min": "Float64",
    "shut_out": "Int64",
    "pipelines": "Int64",
    "bound": "Float64",
}
"""Columns of rounds.parquet after those of the cell."""

PIPELINES = {
    "pipeline": "String",
    "analyst": "String",
    "arrived": "Float64",
    "fate": "String",
    "granted_at": "Float64",
    "multiple": "Float64",
    "waited": "Float64",
}
"""Columns of pipelines.parquet after those of the cell."""

Read = Callable[[Cell], dict[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Results:
    """The finished cells, in their order, and what they say together."""

    cells: tuple[Cell, ...]
    measures: tuple[Mapping[str, float | None], ...]
    """Of each cell, its whole run in numbers."""
    reference: str
    """The scheduler that others are compared with."""
    read: Read = field(repr=False)
    """Everything about one cell."""

    @staticmethod
    def of(cells: tuple[Cell, ...], read: Read, reference: str) -> Results:
        measures = tuple(read(cell)["measures"] for cell in cells)
        return Results(cells=cells, measures=measures, reference=reference, read=read)

    @property
    def rounds(self) -> polars.DataFrame:
        """A row for each analyst in each round of each cell, with what was measured of the round."""
        return self._table("rounds", ROUNDS)

    @property
    def pipelines(self) -> polars.DataFrame:
        """A row for each pipeline of each cell."""
        return self._table("pipelines", PIPELINES)

    @property
    def summary(self) -> dict[str, Any]:
        """Means over seeds of each group of cells, and how each group differs from the reference, seed by seed."""
        groups = self._groups()
        return {
            "format": FORMAT,
            "reference": self.reference,
            "confidence": CONFIDENCE,
            "groups": [{**group.named, "seeds": len(group.by_seed), "measures": group.estimates()} for group in groups],
            "differences": [
                {**group.named, "minus": dict(other.named), "measures": group.estimates(other)}
                for group, other in product(groups, groups)
                if other.named["scheduler"] == self.reference != group.named["scheduler"] and group.comparable(other)
            ],
        }

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Name and content of each result file."""
        yield "rounds.parquet", _parquet(self.rounds)
        yield "pipelines.parquet", _parquet(self.pipelines)
        yield "summary.json", (json.dumps(self.summary, indent=1, allow_nan=False) + "\n").encode()

    def _table(self, name: str, columns: Mapping[str, str]) -> polars.DataFrame:
        pl = needs_polars()
        schema = {column: getattr(pl, kind) for column, kind in columns.items()}
        identity = _identity(self.cells)
        kinds = {column: _kind(values) for column, values in identity.items()}
        frames = []
        for at, cell in enumerate(self.cells):
            found = self.read(cell)[name]
            frame = pl.DataFrame({column: found.get(column, []) for column in schema}, schema=schema)
            known = [
                pl.lit(values[at], dtype=getattr(pl, kinds[column])).alias(column)
                for column, values in identity.items()
            ]
            frames.append(frame.select(*known, *schema))
        table: polars.DataFrame = pl.concat(frames)
        return table

    def _groups(self) -> list[_Group]:
        groups: dict[str, _Group] = {}
        for cell, measures in zip(self.cells, self.measures, strict=True):
            named = _named(cell)
            groups.setdefault(canonical(named), _Group(named=named, by_seed={})).by_seed[cell.seed] = measures
        return list(groups.values())


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Group:
    """Cells that differ in nothing but the seed."""

    named: Mapping[str, Any]
    by_seed: dict[int, Mapping[str, float | None]]

    def comparable(self, other: _Group) -> bool:
        """On the same workload, and with the same values of those options that both have."""
        mine, theirs = self.named["options"], other.named["options"]
        same = all(mine[option] == theirs[option] for option in mine.keys() & theirs.keys())
        return same and all(self.named[name] == other.named[name] for name in ("workload", "parameters", "bound"))

    def estimates(self, other: _Group | None = None) -> dict[str, Any]:
        """Of each measure; with another group, of how much more it is here on the same seed."""
        if other is None:
            rows = list(self.by_seed.values())
            return {measure: estimate([row[measure] for row in rows]) for measure in MEASURES}
        pairs = [(row, other.by_seed[seed]) for seed, row in self.by_seed.items() if seed in other.by_seed]
        return {
            measure: estimate([_minus(mine[measure], theirs[measure]) for mine, theirs in pairs])
            for measure in MEASURES
        }


def estimate(values: Sequence[float | None]) -> dict[str, float | None]:
    """Mean, standard deviation, and the interval that holds the true mean with 95% confidence (Student's t).

    Runs in which the measure says nothing do not count; one run alone has a mean and nothing more.

    >>> {name: round(value, 6) for name, value in estimate([1.0, 2.0, 3.0, None]).items()}
    {'n': 3, 'mean': 2.0, 'sd': 1.0, 'low': -0.484138, 'high': 4.484138}
    """
    found = [value for value in values if value is not None]
    mean = fmean(found) if found else None
    if mean is None or len(found) < 2:
        return {"n": len(found), "mean": mean, "sd": None, "low": None, "high": None}
    from scipy.special import stdtrit

    deviation = stdev(found)
    half = float(stdtrit(len(found) - 1, (1 + CONFIDENCE) / 2)) * deviation / sqrt(len(found))
    return {"n": len(found), "mean": mean, "sd": deviation, "low": mean - half, "high": mean + half}


def needs_polars() -> Any:
    """polars, which writes and holds the tables."""
    try:
        import polars
    except ImportError:
        raise OptionError(
            "tables of results need polars, which is not installed", hint="pip install 'dpbalance[results]'"
        ) from None
    return polars


def _minus(mine: float | None, theirs: float | None) -> float | None:
    return None if mine is None or theirs is None else mine - theirs


def _named(cell: Cell) -> dict[str, Any]:
    document = cell.document
    return {name: document[name] for name in ("workload", "parameters", "scheduler", "options", "bound")}


def _identity(cells: Sequence[Cell]) -> dict[str, list[Any]]:
    """Columns that say which cell a row belongs to; null where a cell leaves a parameter or an option alone."""
    parameters = sorted({name for cell in cells for name in cell.parameters})
    options = sorted({name for cell in cells for name in cell.options})
    return {
        "cell": list(range(len(cells))),
        "workload": [cell.workload for cell in cells],
        **{f"parameter_{name}": _alike([cell.parameters.get(name) for cell in cells]) for name in parameters},
        "scheduler": [cell.scheduler for cell in cells],
        **{f"option_{name}": _alike([cell.options.get(name) for cell in cells]) for name in options},
        "seed": [cell.seed for cell in cells],
    }


def _alike(values: Sequence[Any]) -> list[Any]:
    """All numbers, or all text."""
    if all(value is None or (isinstance(value, int | float) and not isinstance(value, bool)) for value in values):
        return [None if value is None else float(value) for value in values]
    return [
        None if value is None else str(value).lower() if isinstance(value, bool) else str(value) for value in values
    ]


def _kind(values: Sequence[Any]) -> str:
    kinds = {int: "Int64", float: "Float64", str: "String"}
    return next((kinds[type(value)] for value in values if value is not None), "Float64")


def _parquet(frame: polars.DataFrame) -> bytes:
    """The frame as Parquet; every setting that would change the bytes is fixed here."""
    content = BytesIO()
    frame.rechunk().write_parquet(
        content, compression="zstd", compression_level=3, statistics=True, row_group_size=ROW_GROUP
    )
    return content.getvalue()
