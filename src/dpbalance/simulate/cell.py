"""What is one cell of a sweep? A workload, its seed and a scheduler: enough to run it anywhere, to the same end."""

from __future__ import annotations

import json
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import lru_cache
from gzip import compress, decompress
from hashlib import sha256
from itertools import product
from math import inf, isfinite
from statistics import fmean
from typing import Any

from dpbalance import __version__
from dpbalance.allocation import Allocation
from dpbalance.errors import FileFormatError, OptionError
from dpbalance.market import Round
from dpbalance.scheduler import Scheduler, options_of, scheduler
from dpbalance.simulate.engine import run
from dpbalance.simulate.record import AnalystRecord, RoundRecord, Run
from dpbalance.simulate.trace import Trace
from dpbalance.simulate.workload import parameters_of, workload

FORMAT = "dpbalance-cell/1"

ANALYSTS_MAX = 1000
"""A trace with more analysts than this has one row for each round, and none for each analyst in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One run that has to be made; equal cells have equal results."""

    workload: str
    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)
    scheduler: str
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    seed: int
    bound: bool = False
    """Compute for each round what nobody could exceed; it costs time."""

    @property
    def document(self) -> dict[str, Any]:
        """The cell as JSON has it."""
        return {
            "workload": self.workload,
            "parameters": plain(self.parameters),
            "scheduler": self.scheduler,
            "options": plain(self.options),
            "seed": self.seed,
            "bound": self.bound,
        }

    @property
    def key(self) -> str:
        """Its name among the results; another version of this package makes other results."""
        return sha256(canonical({"format": FORMAT, "version": __version__, **self.document}).encode()).hexdigest()

    def decider(self) -> Scheduler:
        """Who decides."""
        return scheduler(self.scheduler, **self.options)


def cells(
    workload: str,
    parameters: Mapping[str, Sequence[Any]],
    schedulers: Sequence[str],
    options: Mapping[str, Sequence[Any]],
    seeds: Iterable[int],
    *,
    bound: bool = False,
) -> tuple[Cell, ...]:
    """Every scheduler with every value of those options that it has, on every workload and seed.

    The order is: parameters, seed, scheduler, options, each as given, so that neighbours share a trace.

    >>> [cell.options["beta"] for cell in cells("paper", {}, ["dpf"], {"beta": [0.5, 2]}, [0])]
    [0.5, 2.0]
    """
    deciders = _grid_of_options(schedulers, options)
    drawn = list(_products(_checked(workload, parameters)))
    for chosen in drawn:
        _workload(workload, chosen)  # refuses now what it would refuse in the middle of the sweep
    made = (
        Cell(workload=workload, parameters=chosen, scheduler=name, options=asked, seed=seed, bound=bound)
        for chosen, seed, (name, asked) in product(drawn, list(seeds), deciders)
    )
    return tuple({cell.key: cell for cell in made}.values())


def run_cell(cell: Cell) -> bytes:
    """The results of a cell as its file has them: compressed JSON, the same bytes whoever runs it."""
    trace = _trace(cell.workload, tuple(sorted(cell.parameters.items())), cell.seed)
    decider = cell.decider()
    watch = _Bounding(decider) if cell.bound else None
    done = run(trace, watch or decider, analysts=len(trace.market.analysts) <= ANALYSTS_MAX)
    bounds: Sequence[float | None] = watch.bounds if watch else [None] * len(done.rounds)
    document = {
        "format": FORMAT,
        "version": __version__,
        "cell": cell.document,
        "measures": _measures(done, bounds),
        "rounds": _columns(_round_rows(done, bounds)),
        "pipelines": _columns(asdict(each) for each in done.pipelines),
    }
    return compress(canonical(document).encode(), mtime=0)


def read_cell(data: bytes, cell: Cell) -> dict[str, Any]:
    """What `run_cell` wrote; its checksum, or what it is about, tells whatever else it may be."""
    try:
        document: dict[str, Any] = json.loads(decompress(data))
        if (document["format"], document["version"], document["cell"]) == (FORMAT, __version__, cell.document):
            return document
    except (OSError, EOFError, ValueError, KeyError, TypeError, zlib.error):
        pass
    raise FileFormatError(f"{cell.key} is no whole result of its cell")


def canonical(document: Any) -> str:
    """The one way to write a document."""
    return json.dumps(document, sort_keys=True, separators=(",", ":"), allow_nan=False)


def plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """In the order of the names, and with infinity as text, which JSON has no number for."""
    return {name: str(value) if value in (inf, -inf) else value for name, value in sorted(values.items())}


class _Bounding:
    """A scheduler, and for each round it decides what nobody could exceed."""

    def __init__(self, inner: Scheduler) -> None:
        self.inner = inner
        self.bounds: list[float | None] = []

    def decide(self, round_: Round, /) -> Allocation:
        from dpbalance.scheduler.bound import bound

        allocation = self.inner.decide(round_)
        most = bound(round_, allocation.terms)
        self.bounds.append(most if isfinite(most) else None)
        return allocation


@lru_cache(maxsize=1)
def _trace(name: str, parameters: tuple[tuple[str, Any], ...], seed: int) -> Trace:
    return workload(name, **dict(parameters)).trace(seed)


def _workload(name: str, parameters: Mapping[str, Any]) -> None:
    workload(name, **parameters)


def _checked(name: str, parameters: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Every value as the workload holds it, so that 10 and 10.0 are one cell."""
    known = {each.name: each for each in parameters_of(name)}
    for key, values in parameters.items():
        if key not in known:
            _workload(name, {key: None})  # says what there is
        _refuse_no_list(key, values)
    return {key: [known[key].checked(value) for value in values] for key, values in parameters.items()}


def _grid_of_options(
    schedulers: Sequence[str], options: Mapping[str, Sequence[Any]]
) -> list[tuple[str, dict[str, Any]]]:
    known = {name: {each.name: each for each in options_of(name)} for name in schedulers}
    for option, values in options.items():
        _refuse_no_list(option, values)
        if not any(option in mine for mine in known.values()):
            raise OptionError(f"none of {', '.join(schedulers)} has an option {option!r}")
    found = []
    for name in schedulers:
        mine = {
            key: [known[name][key].checked(it) for it in values]
            for key, values in options.items()
            if key in known[name]
        }
        for asked in _products(mine):
            scheduler(name, **asked)  # refuses now what it would refuse in the middle of the sweep
            found.append((name, asked))
    return found


def _refuse_no_list(name: str, values: Any) -> None:
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        raise OptionError(f"{name!r} takes a list of values, not {str(values)[:60]!r}")


def _products(grid: Mapping[str, Sequence[Any]]) -> Iterator[dict[str, Any]]:
    return (dict(zip(grid, values, strict=True)) for values in product(*grid.values()))


def _measures(done: Run, bounds: Sequence[float | None]) -> dict[str, float | None]:
    """The whole run in numbers: sums over its rounds, and means of what is judged in each."""
    total = done.metrics
    assert total is not None, "a sweep measures its rounds"
    fairness = [each.metrics.fairness for each in done.rounds if each.metrics and each.metrics.fairness is not None]
    most = sum(bounds) if None not in bounds else 0.0  # type: ignore[arg-type]
    return {
        "rounds": len(done.rounds),
        "efficiency": total.efficiency,
        "jain": total.jain,
        "utility_min": total.utility_min,
        "fairness": fmean(fairness) if fairness else None,
        "pipelines": total.pipelines,
        "shut_out": total.shut_out,
        "of_bound": total.efficiency / most if most > 0 else None,
    }


def _round_rows(done: Run, bounds: Sequence[float | None]) -> Iterator[dict[str, Any]]:
    """A row for each analyst in each round, with what was measured of the round; one for all where none are kept."""
    of_round: dict[float, list[AnalystRecord]] = defaultdict(list)
    for each in done.analysts:
        of_round[each.time].append(each)
    for number, (record, most) in enumerate(zip(done.rounds, bounds, strict=True)):
        assert record.metrics is not None, "a sweep measures its rounds"
        shared = {"round": number, "denied": record.denied, **asdict(record.metrics), "bound": most}
        for row in [asdict(each) for each in of_round[record.time]] or [_everybody(record)]:
            yield row | shared


def _everybody(record: RoundRecord) -> dict[str, Any]:
    row: dict[str, Any] = dict.fromkeys(each.name for each in fields(AnalystRecord))
    counted = {"asked": record.asked, "granted": record.granted, "timed_out": record.timed_out}
    return row | {"time": record.time, "waiting": record.asked - record.granted} | counted


def _columns(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[Any]]:
    columns: dict[str, list[Any]] = defaultdict(list)
    for row in rows:
        for name, value in row.items():
            columns[name].append(value)
    return columns
