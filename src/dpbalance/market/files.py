"""How is a round written down? `dpbalance-round/1`: strict to read, exact to write."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable
from gzip import GzipFile
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import numpy as np

from dpbalance.amounts import Units, epsilons
from dpbalance.demand.pipeline import Pipeline
from dpbalance.errors import DPBalanceError, FileFormatError
from dpbalance.market.block import Block
from dpbalance.market.round import Round

FORMAT = "dpbalance-round/1"

ROUND_FIELDS = {"format", "orders", "now", "blocks", "pipelines", "priorities"}
BLOCK_FIELDS = {"id", "capacity", "spent", "unlocked"}
PIPELINE_FIELDS = {"id", "analyst", "submitted", "weight", "loss", "max_multiple", "demand"}

MAX_FILE_BYTES = 2**30
"""Reading stops at more than this; rounds of that size are built from arrays."""

Named = TypeVar("Named")


def read_round(path: str | Path) -> Round:
    """Read and check a round file; whatever is wrong comes back as one sentence that names the culprit."""
    document = read_json(path)
    return blaming(path, lambda: round_from_json(document))


def write_round(round_: Round, path: str | Path) -> None:
    """Write a round so that reading it gives the same whole-number amounts back."""
    Path(path).write_text(json.dumps(round_to_json(round_), indent=1) + "\n", encoding="utf-8")


def read_json(path: str | Path) -> Any:
    """The JSON document in a file, gzipped if its name ends in .gz, without duplicate keys, NaN or infinities."""
    try:
        with open(path, "rb") as file:
            return parse_json(GzipFile(fileobj=file) if str(path).endswith(".gz") else file, path)
    except (OSError, ValueError, EOFError, zlib.error) as problem:  # ValueError: a path no file can have
        raise FileFormatError(f"cannot read {path}: {getattr(problem, 'strerror', None) or problem}") from None


def parse_json(file: BinaryIO | GzipFile, name: str | Path) -> Any:
    """The JSON document in an open file; `name` is what a refusal calls it."""
    try:
        raw = file.read(MAX_FILE_BYTES + 1)
        if len(raw) > MAX_FILE_BYTES:
            raise FileFormatError(f"{name} has more than the {MAX_FILE_BYTES} bytes that are read")
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_object, parse_constant=_refuse_constant)
    except UnicodeDecodeError as problem:
        raise FileFormatError(f"{name} is not UTF-8 text: {problem.reason} at byte {problem.start}") from None
    except json.JSONDecodeError as problem:
        place = f"line {problem.lineno} column {problem.colno}"
        raise FileFormatError(f"{name} is not JSON: {problem.msg} at {place}") from None
    except RecursionError:
        raise FileFormatError(f"{name} is not a document of ours: it nests too deeply") from None
    except MemoryError:
        raise FileFormatError(f"{name} does not fit in memory") from None
    except ValueError as problem:
        raise FileFormatError(f"{name} is not JSON: {problem}") from None


def blaming(name: str | Path, work: Callable[[], Named]) -> Named:
    """Do this, and put the name of the file before whatever is refused."""
    try:
        return work()
    except DPBalanceError as problem:
        raise type(problem)(f"{name}: {problem.message}", hint=problem.hint) from None


def round_from_json(document: Any) -> Round:
    """A round out of a parsed `dpbalance-round/1` document."""
    fields(document, "the round", ROUND_FIELDS, {"format", "blocks", "pipelines"})
    if document["format"] != FORMAT:
        raise FileFormatError(f"format must be {FORMAT!r}, not {str(document['format'])[:60]!r}")
    return Round.build(
        list(_blocks(document["blocks"])),
        list(_pipelines(document["pipelines"])),
        orders=orders_of(document),
        now=document.get("now", 0.0),
        priorities=priorities_of(document),
    )


def round_to_json(round_: Round) -> dict[str, Any]:
    """The `dpbalance-round/1` document of a round."""
    cost = demands_to_json(round_)
    several = round_.orders is not None
    names = [round_.blocks[at] for at in round_.block]
    pipelines = []
    for at, name in enumerate(round_.pipelines):
        begin, end = int(round_.start[at]), int(round_.start[at + 1])
        cap = float(round_.max_multiple[at])
        pipelines.append(
            {
                "id": name,
                "analyst": round_.analysts[int(round_.owner[at])],
                "submitted": float(round_.submitted[at]),
                "weight": float(round_.weight[at]),
                "loss": float(round_.loss[at]),
                "max_multiple": cap if np.isfinite(cap) else None,
                "demand": dict(zip(names[begin:end], cost[begin:end], strict=True)),
            }
        )
    columns = zip(
        round_.blocks,
        amounts_to_json(round_.capacity, several),
        amounts_to_json(round_.spent, several),
        amounts_to_json(round_.unlocked, several),
        strict=True,
    )
    blocks = [{"id": i, "capacity": c, "spent": s, "unlocked": u} for i, c, s, u in columns]
    orders = list(round_.orders) if round_.orders is not None else None
    document = {"format": FORMAT, "orders": orders, "now": round_.now, "blocks": blocks, "pipelines": pipelines}
    return {**document, **priorities_to_json(round_)}


def demands_to_json(round_: Round) -> list[Any]:
    """Each demanded amount; a pipeline's largest as it was before rounding, so that reading gives all of it back."""
    amount = epsilons(round_.cost)
    if len(round_.pipelines):
        asked = np.diff(round_.start)
        largest = np.repeat(np.maximum.reduceat(round_.cost.max(axis=1), round_.start[:-1]), asked)[:, None]
        amount = np.where(round_.cost == largest, np.repeat(round_.unrounded, asked)[:, None], amount)
    listed: list[Any] = (amount[:, 0] if round_.orders is None else amount).tolist()
    return listed


def amounts_to_json(units: Units, several: bool) -> list[Any]:
    """One number for each row, or a list of them with several orders."""
    table = epsilons(units)
    listed: list[Any] = (table if several else table[:, 0]).tolist()
    return listed


def fields(value: Any, what: str, known: set[str], required: set[str]) -> None:
    """Refuse anything that is not an object with the required and only the known fields."""
    if not isinstance(value, dict):
        raise FileFormatError(f"{what} must be an object, not {str(value)[:60]!r}")
    unknown = sorted(set(value) - known)
    if unknown:
        raise FileFormatError(f"{what} has the unknown field {unknown[0]!r}; known are {', '.join(sorted(known))}")
    missing = sorted(required - set(value))
    if missing:
        raise FileFormatError(f"{what} lacks the field {missing[0]!r}")


def orders_of(document: dict[str, Any]) -> list[float] | None:
    """The orders of a document, which may be null or missing."""
    orders = document.get("orders")
    if orders is not None and not isinstance(orders, list):
        raise FileFormatError(f"orders must be null or a list of numbers, not {str(orders)[:60]!r}")
    return orders


def priorities_of(document: dict[str, Any]) -> dict[str, float]:
    """The priorities of a document, which may be missing."""
    priorities = document.get("priorities", {})
    if not isinstance(priorities, dict):
        raise FileFormatError(f"priorities must be an object of analyst: number, not {str(priorities)[:60]!r}")
    return priorities


def priorities_to_json(round_: Round) -> dict[str, Any]:
    """The field `priorities`, where there is anything to say: analysts that do not count as one."""
    told = {name: value for name, value in zip(round_.analysts, round_.priority.tolist(), strict=True) if value != 1}
    return {"priorities": told} if told else {}


def named(value: Any, place: str, kind: str) -> str:
    """What a refusal calls a block or a pipeline: by its name, or by its place in the list if it has none."""
    name = value.get("id") if isinstance(value, dict) else None
    return f"{kind} {name!r}" if isinstance(name, str) else place


def list_of(value: Any, what: str) -> list[Any]:
    """The value, which must be a list."""
    if not isinstance(value, list):
        raise FileFormatError(f"{what} must be a list, not {str(value)[:60]!r}")
    return value


def _blocks(listed: Any) -> Iterable[Block]:
    for at, value in enumerate(list_of(listed, "blocks")):
        what = named(value, f"blocks[{at}]", "block")
        fields(value, what, BLOCK_FIELDS, {"id", "capacity"})
        yield Block(
            id=value["id"],
            capacity=value["capacity"],
            spent=value.get("spent", 0.0),
            unlocked=value.get("unlocked"),
        )


def _pipelines(listed: Any) -> Iterable[Pipeline]:
    for at, value in enumerate(list_of(listed, "pipelines")):
        what = named(value, f"pipelines[{at}]", "pipeline")
        fields(value, what, PIPELINE_FIELDS, {"id", "analyst", "demand"})
        if not isinstance(value["demand"], dict):
            raise FileFormatError(f"{what}: demand must be an object of block: amount")
        yield Pipeline(
            id=value["id"],
            analyst=value["analyst"],
            demand=value["demand"],
            submitted=value.get("submitted"),
            weight=value.get("weight", 1.0),
            loss=value.get("loss", 1.0),
            max_multiple=value.get("max_multiple"),
        )


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the key {name[:60]!r} stands twice in one object")
            seen.add(name)
    return result


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a number that can be used here")
