"""How is a decision written down? `dpbalance-allocation/1`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from dpbalance.allocation.allocation import Allocation
from dpbalance.allocation.valuation import Terms
from dpbalance.errors import FileFormatError
from dpbalance.market.files import amounts_to_json, blaming, fields, read_json
from dpbalance.market.round import Round

FORMAT = "dpbalance-allocation/1"

FIELDS = {
    "format",
    "scheduler",
    "options",
    "grants",
    "denied",
    "analysts",
    "metrics",
    "left",
    "proof",
    "notes",
}
GRANT_FIELDS = {"pipeline", "analyst", "multiple", "cost"}


def allocation_to_json(allocation: Allocation) -> dict[str, Any]:
    """The `dpbalance-allocation/1` document of a decision."""
    return {
        "format": FORMAT,
        "scheduler": allocation.scheduler,
        "options": {key: _finite(value) for key, value in allocation.options.items()},
        "grants": [asdict(grant) for grant in allocation.grants],
        "denied": [
            {
                "pipeline": denial.pipeline,
                "analyst": denial.analyst,
                "reason": denial.reason,
                "short": {each.block: each.short for each in denial.shortages},
            }
            for denial in allocation.denied
        ],
        "analysts": [asdict(each) for each in allocation.analysts],
        "metrics": asdict(allocation.metrics),
        "left": dict(
            zip(
                allocation.round.blocks,
                amounts_to_json(allocation.left, allocation.round.orders is not None),
                strict=True,
            )
        ),
        "proof": {"violation": _finite(allocation.proof.violation), "gap": allocation.proof.gap},
        "notes": list(allocation.notes),
    }


def write_allocation(allocation: Allocation, path: str | Path) -> None:
    """Write a decision to a file."""
    text = json.dumps(allocation_to_json(allocation), indent=1, allow_nan=False)
    try:
        Path(path).write_text(text + "\n", encoding="utf-8")
    except OSError as problem:
        raise FileFormatError(f"cannot write {path}: {problem.strerror or problem}") from None


def read_allocation(path: str | Path, round_: Round) -> Allocation:
    """Read a decision on this round back; what it says and what follows from its multiples must be the same."""
    document = read_json(path)
    return blaming(path, lambda: allocation_from_json(document, round_))


def allocation_from_json(document: Any, round_: Round) -> Allocation:
    """A decision out of a parsed document. Only multiples are taken from it; grants, left and metrics are compared.

    Step 1 and its proof are not in the file, so a decision that is read back has no `shares`.
    """
    fields(document, "the allocation", FIELDS, {"format", "scheduler", "grants"})
    if document["format"] != FORMAT:
        raise FileFormatError(f"format must be {FORMAT!r}, not {str(document['format'])[:60]!r}")
    if not isinstance(document["grants"], list):
        raise FileFormatError("grants must be a list")
    position = {name: at for at, name in enumerate(round_.pipelines)}
    multiple = np.zeros(len(round_.pipelines))
    sequence = []
    for index, grant in enumerate(document["grants"]):
        fields(grant, f"grants[{index}]", GRANT_FIELDS, {"pipeline", "multiple"})
        name = grant["pipeline"]
        if not isinstance(name, str) or name not in position:
            raise FileFormatError(f"grants[{index}] names the unknown pipeline {str(name)[:60]!r}")
        at, times = position[name], grant["multiple"]
        if isinstance(times, bool) or not isinstance(times, (int, float)) or not 1 <= times < 1e15:
            raise FileFormatError(f"grant of {name!r}: multiple must be a number of at least 1, not {times!r}")
        if multiple[at]:
            raise FileFormatError(f"pipeline {name!r} is granted twice")
        multiple[at] = times
        sequence.append(at)
    options = document.get("options", {})
    if not isinstance(options, dict):
        raise FileFormatError(f"options must be an object, not {str(options)[:60]!r}")
    try:
        known = {key: float(options[key]) for key in ("beta", "tau") if key in options}
    except (TypeError, ValueError, OverflowError):
        raise FileFormatError(f"options beta and tau must be numbers, not {str(options)[:60]!r}") from None
    allocation = Allocation(
        round=round_,
        scheduler=str(document["scheduler"]),
        multiple=multiple,
        options=options,
        terms=Terms(**known),
        sequence=tuple(sequence),
    )
    again = allocation_to_json(allocation)
    for grant, recomputed in zip(document["grants"], again["grants"], strict=True):
        if any(grant[field] != recomputed[field] for field in grant):
            raise FileFormatError(f"grant of {recomputed['pipeline']!r} is not its multiple of that pipeline's demand")
    for field in ("left", "metrics"):
        if field in document and document[field] != again[field]:
            raise FileFormatError(f"{field} does not follow from the grants of this decision on this round")
    return allocation


def _finite(value: Any) -> Any:
    """JSON has no infinity; options write it as the word the command line takes."""
    return "inf" if isinstance(value, float) and np.isinf(value) else value
