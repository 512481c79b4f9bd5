"""What arrives when? A trace: blocks and pipelines over time, and `dpbalance-trace/1`, the file it is kept in."""

from __future__ import annotations

import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dpbalance.demand.pipeline import Pipeline
from dpbalance.errors import FileFormatError, InputError
from dpbalance.market import Block, Round
from dpbalance.market.files import (
    amounts_to_json,
    blaming,
    demands_to_json,
    fields,
    list_of,
    named,
    orders_of,
    priorities_of,
    priorities_to_json,
    read_json,
)
from dpbalance.market.round import Floats, checked_number
from dpbalance.market.unlocking import Unlocking, unlocking_from_json, unlocking_to_json

FORMAT = "dpbalance-trace/1"

TRACE_FIELDS = {
    "format",
    "orders",
    "unlock",
    "rounds",
    "timeout",
    "end",
    "blocks",
    "pipelines",
    "priorities",
    "expected",
}
BLOCK_FIELDS = {"id", "arrived", "capacity"}
PIPELINE_FIELDS = {"id", "analyst", "arrived", "weight", "blocks", "cost", "loss", "max_multiple", "deadline"}

MAX_ROUNDS = 10**7
"""The most rounds of one run; more are a slip of the pen in `every` or `end`."""

Rounds = float | Literal["arrival", "once"]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trace:
    """Everything that will happen by itself: what a scheduler decides is not in it."""

    market: Round
    """All blocks, unspent, and all pipelines that ever come; `submitted` is when a pipeline arrives."""
    block_arrived: Floats
    deadline: Floats
    """When each pipeline leaves, whatever the timeout; infinite where it has none."""
    unlock: Unlocking
    rounds: Rounds = "once"
    """Seconds between rounds, the first at 0; a round at each arrival; or one round with everything."""
    timeout: float | None = None
    """A pipeline waits less than this; 0 is to be granted in its first round or never."""
    end: float | None = None
    """The last moment of a round; None is the first round that has seen everything arrive."""

    def __post_init__(self) -> None:
        if isinstance(self.rounds, float):
            count = self.last / self.rounds if self.rounds > 0 else np.inf
            if not count < MAX_ROUNDS:
                raise InputError(f"a round every {self.rounds!r} seconds until {self.last!r} is no number of rounds")
        for name, length in (("block_arrived", len(self.market.blocks)), ("deadline", len(self.market.pipelines))):
            if getattr(self, name).shape != (length,):
                raise InputError(f"trace array {name!r} has shape {getattr(self, name).shape}, expected {(length,)}")

    @property
    def last(self) -> float:
        """The last moment that may matter: the end, or the last arrival."""
        if self.end is not None:
            return self.end
        return float(np.max(np.concatenate((self.market.submitted, self.block_arrived)), initial=0.0))

    def moments(self) -> Iterator[float]:
        """When rounds are."""
        if self.rounds == "once":
            yield self.last
        elif self.rounds == "arrival":
            for moment in np.unique(self.market.submitted).tolist():
                if moment <= self.last:
                    yield moment
        else:
            every, number = float(self.rounds), 0
            while number * every <= self.last:
                yield number * every
                number += 1
            if self.end is None and (number - 1) * every < self.last:
                yield number * every


def read_trace(path: str | Path) -> Trace:
    """Read and check a trace, plain or gzipped; whatever is wrong comes back as one sentence with the culprit."""
    document = read_json(path)
    return blaming(path, lambda: trace_from_json(document))


def write_trace(trace: Trace, path: str | Path) -> None:
    """Write a trace so that reading it gives the same run; gzipped where the name ends in .gz."""
    text = json.dumps(trace_to_json(trace)).encode() + b"\n"
    if str(path).endswith(".gz"):
        buffer = io.BytesIO()
        with gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=6, mtime=0) as packed:  # no clock in the bytes
            packed.write(text)
        text = buffer.getvalue()
    try:
        Path(path).write_bytes(text)
    except (OSError, ValueError) as problem:
        raise FileFormatError(f"cannot write {path}: {getattr(problem, 'strerror', None) or problem}") from None


def trace_from_json(document: Any) -> Trace:
    """A trace out of a parsed `dpbalance-trace/1` document."""
    fields(document, "the trace", TRACE_FIELDS, {"format", "blocks", "pipelines"})
    if document["format"] != FORMAT:
        raise FileFormatError(f"format must be {FORMAT!r}, not {str(document['format'])[:60]!r}")
    blocks, arrived = _blocks(document["blocks"])
    pipelines, deadlines = _pipelines(document["pipelines"])
    market = Round.build(blocks, pipelines, orders=orders_of(document), priorities=priorities_of(document))
    arrival = dict(zip((each.id for each in blocks), arrived, strict=True))
    deadline = dict(zip((each.id for each in pipelines), deadlines, strict=True))
    return Trace(
        market=market,
        block_arrived=np.array([arrival[name] for name in market.blocks], dtype=np.float64),
        deadline=np.array([deadline[name] for name in market.pipelines], dtype=np.float64),
        unlock=unlocking_from_json(document.get("unlock")),
        rounds=_rounds(document.get("rounds")),
        timeout=_optional(document.get("timeout"), "timeout"),
        end=_optional(document.get("end"), "end"),
    )


def trace_to_json(trace: Trace) -> dict[str, Any]:
    """The `dpbalance-trace/1` document of a trace."""
    market, several = trace.market, trace.market.orders is not None
    capacities = amounts_to_json(market.capacity, several)
    cost = demands_to_json(market)
    names = [market.blocks[at] for at in market.block]
    pipelines = []
    for at, name in enumerate(market.pipelines):
        mine = slice(int(market.start[at]), int(market.start[at + 1]))
        if np.any(market.cost[mine] != market.cost[mine.start]):
            raise InputError(f"pipeline {name!r} asks different amounts of its blocks, which a trace cannot say")
        cap, deadline = float(market.max_multiple[at]), float(trace.deadline[at])
        pipelines.append(
            {
                "id": name,
                "analyst": market.analysts[int(market.owner[at])],
                "arrived": float(market.submitted[at]),
                "weight": float(market.weight[at]),
                "loss": float(market.loss[at]),
                "max_multiple": cap if np.isfinite(cap) else None,
                "deadline": deadline if np.isfinite(deadline) else None,
                "blocks": names[mine],
                "cost": cost[mine.start],
            }
        )
    columns = zip(market.blocks, trace.block_arrived.tolist(), capacities, strict=True)
    return {
        "format": FORMAT,
        "orders": list(market.orders) if market.orders is not None else None,
        "unlock": unlocking_to_json(trace.unlock),
        "rounds": {"every": trace.rounds} if isinstance(trace.rounds, float) else _WRITTEN[trace.rounds],
        "timeout": trace.timeout,
        "end": trace.end,
        "blocks": [{"id": i, "arrived": a, "capacity": c} for i, a, c in columns],
        "pipelines": pipelines,
        **priorities_to_json(market),
    }


_WRITTEN: dict[str, dict[str, str] | None] = {"arrival": {"on": "arrival"}, "once": None}


def _blocks(listed: Any) -> tuple[list[Block], list[float]]:
    """The blocks and when they arrive."""
    blocks, arrived = [], []
    for at, value in enumerate(list_of(listed, "blocks")):
        what = named(value, f"blocks[{at}]", "block")
        fields(value, what, BLOCK_FIELDS, {"id", "arrived", "capacity"})
        blocks.append(Block(id=value["id"], capacity=value["capacity"]))
        arrived.append(checked_number(value["arrived"], f"{what}: arrived", least=0.0))
    return blocks, arrived


def _pipelines(listed: Any) -> tuple[list[Pipeline], list[float]]:
    """The pipelines and when they leave at the latest."""
    pipelines, deadlines = [], []
    for at, value in enumerate(list_of(listed, "pipelines")):
        what = named(value, f"pipelines[{at}]", "pipeline")
        fields(value, what, PIPELINE_FIELDS, {"id", "analyst", "arrived", "blocks", "cost"})
        asked = list_of(value["blocks"], f"{what}: blocks")
        if not all(isinstance(each, str) for each in asked):
            raise FileFormatError(f"{what}: blocks must be a list of names, not {str(asked)[:60]}")
        demand = dict.fromkeys(asked, value["cost"])
        if len(demand) != len(asked):
            raise FileFormatError(f"{what}: a block stands twice in its blocks")
        pipelines.append(
            Pipeline(
                id=value["id"],
                analyst=value["analyst"],
                submitted=checked_number(value["arrived"], f"{what}: arrived", least=0.0),
                weight=value.get("weight", 1.0),
                loss=value.get("loss", 1.0),
                max_multiple=value.get("max_multiple"),
                demand=demand,
            )
        )
        last = value.get("deadline")
        deadlines.append(np.inf if last is None else checked_number(last, f"{what}: deadline", least=0.0))
    return pipelines, deadlines


def _rounds(value: Any) -> Rounds:
    if value is None:
        return "once"
    if isinstance(value, dict) and set(value) == {"every"}:
        every = checked_number(value["every"], "rounds: every", least=0.0)
        if every > 0:
            return every
    elif value == {"on": "arrival"}:
        return "arrival"
    raise FileFormatError(
        f'rounds must be null, {{"every": seconds above 0}} or {{"on": "arrival"}}, not {str(value)[:60]}'
    )


def _optional(value: Any, what: str) -> float | None:
    return None if value is None else checked_number(value, what, least=0.0)
