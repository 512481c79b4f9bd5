"""Where are the devices, how many records did they declare, and what does each pipeline want? One file says it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpbalance.errors import FileFormatError
from dpbalance.execution.dispatch import Job
from dpbalance.execution.form import parsed
from dpbalance.execution.models import ModelSpec
from dpbalance.execution.plan import TrainingSpec

FORMAT = "dpbalance-fleet/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """A fleet file, read."""

    devices: Mapping[str, Path]
    """The folder of each device."""
    sizes: Mapping[str, int]
    """Declared records of each block."""
    jobs: Mapping[str, Job]
    """By pipeline; `*` is for every pipeline without one of its own."""

    def job(self, pipeline: str) -> Job | None:
        return self.jobs.get(pipeline) or self.jobs.get("*")


def read_fleet(path: Path) -> Fleet:
    """The fleet in a file; folders are meant from where the file is."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as problem:
        raise FileFormatError(f"cannot read {path}: {problem.strerror or problem}") from None
    except ValueError as problem:
        raise FileFormatError(f"{path} is not JSON: {problem}") from None
    try:
        if document["format"] != FORMAT or set(document) != {"format", "devices", "sizes", "jobs"}:
            raise FileFormatError(f"{path} must hold format {FORMAT!r}, devices, sizes and jobs, and nothing else")
        jobs = {name: _job(f"{path}: job {name!r}", each) for name, each in document["jobs"].items()}
        return Fleet(
            devices={name: (path.parent / folder) for name, folder in document["devices"].items()},
            sizes={name: int(size) for name, size in document["sizes"].items()},
            jobs=jobs,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as problem:
        raise FileFormatError(f"{path} is no fleet file: {problem!r}") from None


def _job(where: str, told: dict[str, Any]) -> Job:
    return Job(
        model=_filled(ModelSpec, told.get("model", {}), f"{where}: model", {"kind": "softmax"}),
        training=_filled(TrainingSpec, told.get("training", {}), f"{where}: training", {}),
    )


def _filled(kind: Any, told: dict[str, Any], where: str, more: dict[str, Any]) -> Any:
    """The value with defaults where nothing is said."""
    from dataclasses import MISSING, fields

    given = {each.name: each.default for each in fields(kind) if each.default is not MISSING}
    return parsed(kind, json.dumps({**given, **more, **told}).encode(), where)
